/* SPDX-License-Identifier: MIT
 *
 * softverbs up: makes a fabric of a topology and a profile.
 */
#include "subcommand.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Usage: softverbs up [--fabric F] [--profile P] [--seed N] TOPOLOGY\n"
    "\n"
    "Makes a fabric: emulated hosts, their devices, and the cables or the switch that connect the devices. TOPOLOGY is one of\n"
    "  switch N     N hosts with one device each, all on one switch\n"
    "  mesh N       N hosts with a cable between every two\n"
    "  ring N       N hosts, each with a cable to the next, and the last to the first\n"
    "  chain N      N hosts, each with a cable to the next\n"
    "  FILE.json    a topology of your own; `softverbs topo ring 4` prints one to start from\n"
    "\n"
    "  --fabric F    name of the fabric (default: SOFTVERBS_FABRIC, or the profile's name if --profile is given,\n"
    "                or 'default')\n"
    "  --profile P   kind of device: a name that `softverbs profile` lists, or a JSON file (default: generic)\n"
    "  --seed N      seed for faults that are added without --seed, and for profiles that lose messages (default: 1)\n"
    "\n"
    "  softverbs up --fabric macs --profile tb5 mesh 4\n"
    "\n"
    "The fabric is a file in memory (in /dev/shm, or in SOFTVERBS_DIR) and stays until `softverbs down`.\n";

int cli_up(int argc, char **argv)
{
    static const struct option longs[] = {{"fabric", required_argument, NULL, 'F'},
                                          {"profile", required_argument, NULL, 'P'},
                                          {"seed", required_argument, NULL, 's'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    const char *fabric = NULL, *profile = NULL, *name = NULL;
    uint64_t seed = CLI_SEED;
    bool started = false;
    int c, status;
    while ((c = cli_option("up", argc, argv, false, longs, &started)) != -1) {
        switch (c) {
        case 'F': fabric = optarg; break;
        case 'P': profile = optarg; break;
        case 's':
            if (cli_parse_number(optarg, 0, INT64_MAX, &seed))
                return cli_usage("up", "--seed '%s': expected a whole number from 0 to 9223372036854775807", optarg);
            break;
        case 'h': return cli_help("up", help);
        default: return CLI_USAGE;
        }
    }
    if (optind >= argc)
        return cli_usage("up", "the topology is missing: one of switch N, mesh N, ring N, chain N, FILE.json");
    struct sv_model *model = NULL;
    struct sv_why why = {""};
    if ((status = cli_model("up", profile ? profile : "generic", argc - optind, argv + optind, &model)))
        return status;
    if ((status = cli_fabric_name("up", fabric, profile ? &model->profile : NULL, &name)))
        goto out;
    int error = sf_create(name, model, seed, &why);
    if (error == -EEXIST)
        status = cli_error("up",
                           "there is a fabric '%s' already. `softverbs down --fabric %s` removes it; or name another with "
                           "--fabric",
                           name, name);
    else if (error)
        status = cli_error("up", "cannot make fabric '%s': %s", name, why.text[0] ? why.text : strerror(-error));
out:
    free(model);
    return status;
}
