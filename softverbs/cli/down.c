/* SPDX-License-Identifier: MIT
 *
 * softverbs down: removes a fabric, or all of them.
 */
#include "subcommand.h"

#include <errno.h>
#include <string.h>

static const char help[] = "Usage: softverbs down [--fabric F] [--force]\n"
                           "       softverbs down --all [--force]\n"
                           "\n"
                           "Removes a fabric. Without --force, the command does not remove a fabric that programs still use.\n"
                           "\n"
                           "  --fabric F   name of the fabric (default: SOFTVERBS_FABRIC, or 'default')\n"
                           "  --all        remove all fabrics of this user\n"
                           "  --force      remove the fabric even if programs use it: these programs still reach each other, and no other\n"
                           "               program can join\n";

static int down_one(const char *name, bool force)
{
    struct sv_why why = {""};
    unsigned live = 0;
    int error = sf_remove(name, force, &live, &why);
    if (error == -EBUSY)
        return cli_error("down",
                         "fabric '%s' is in use by %u process%s, which `softverbs ls` shows: end %s first, or use "
                         "--force",
                         name, live, live == 1 ? "" : "es", live == 1 ? "it" : "them");
    if (error == -ENOENT)
        return cli_error("down", "there is no fabric '%s'; `softverbs ls` lists the fabrics", name);
    if (error)
        return cli_error("down", "fabric '%s': %s", name, why.text[0] ? why.text : strerror(-error));
    return 0;
}

int cli_down(int argc, char **argv)
{
    static const struct option longs[] = {{"fabric", required_argument, NULL, 'F'},
                                          {"force", no_argument, NULL, 'f'},
                                          {"all", no_argument, NULL, 'a'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    const char *fabric = NULL, *name = NULL;
    bool force = false, all = false, started = false;
    int c, status = 0;
    while ((c = cli_option("down", argc, argv, false, longs, &started)) != -1) {
        switch (c) {
        case 'F': fabric = optarg; break;
        case 'f': force = true; break;
        case 'a': all = true; break;
        case 'h': return cli_help("down", help);
        default: return CLI_USAGE;
        }
    }
    if (optind < argc)
        return cli_usage("down", "unexpected word '%s'; a fabric is named with --fabric", argv[optind]);
    if (all && fabric)
        return cli_usage("down", "--all and --fabric '%s' together: use one of them", fabric);
    if (!all)
        return (status = cli_fabric_name("down", fabric, NULL, &name)) ? status : down_one(name, force);
    char **names;
    size_t count;
    if ((status = cli_fabrics("down", &names, &count)))
        return status;
    for (size_t i = 0; i < count; i++)
        if (down_one(names[i], force))
            status = CLI_FAILED;
    cli_fabrics_free(names, count);
    return status;
}
