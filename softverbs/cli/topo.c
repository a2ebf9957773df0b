/* SPDX-License-Identifier: MIT
 *
 * softverbs topo: prints a topology as JSON, as a graph, or as MLX's hostfile.
 */
#include "subcommand.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] = "Usage: softverbs topo [--fabric F] [--json | --dot | --matrix]\n"
                           "       softverbs topo [--profile P] [--json | --dot | --matrix] TOPOLOGY\n"
                           "\n"
                           "Prints the topology of a fabric, or the topology that `softverbs up TOPOLOGY` would make, without making it.\n"
                           "\n"
                           "  --fabric F    name of the fabric (default: SOFTVERBS_FABRIC, or 'default')\n"
                           "  --profile P   the profile that gives devices their names and addresses (default: generic)\n"
                           "  --json        print JSON, which you can edit and give to `softverbs up` (this is the default)\n"
                           "  --dot         print a graph for Graphviz\n"
                           "  --matrix      print a hostfile for MLX: for each pair of hosts, the device that connects them, or null\n"
                           "\n"
                           "  softverbs topo --profile tb5 --dot ring 4 | dot -Tsvg >ring.svg\n"
                           "  softverbs topo --profile tb5 --matrix mesh 4 >hosts.json\n";

static char *topo_matrix(const struct sv_topology *t)
{
    struct sv_several several;
    char *text = sv_topology_matrix(t, &several);
    if (text && several.pairs)
        fprintf(stderr,
                "softverbs topo: several cables join %u pair%s of hosts, the first pair being '%s' and '%s'; MLX's hostfile has one device "
                "for a pair, so the first cable is taken\n",
                several.pairs, several.pairs == 1 ? "" : "s", t->hosts[several.a].name, t->hosts[several.b].name);
    return text;
}

int cli_topo(int argc, char **argv)
{
    static const struct option longs[] = {{"fabric", required_argument, NULL, 'F'},
                                          {"profile", required_argument, NULL, 'P'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"dot", no_argument, NULL, 'd'},
                                          {"matrix", no_argument, NULL, 'm'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    const char *fabric = NULL, *profile = NULL, *name = NULL;
    bool json = false, dot = false, mlx = false, started = false;
    int c, status;
    while ((c = cli_option("topo", argc, argv, false, longs, &started)) != -1) {
        switch (c) {
        case 'F': fabric = optarg; break;
        case 'P': profile = optarg; break;
        case 'j': json = true; break;
        case 'd': dot = true; break;
        case 'm': mlx = true; break;
        case 'h': return cli_help("topo", help);
        default: return CLI_USAGE;
        }
    }
    bool planned = optind < argc;
    if (json + dot + mlx > 1)
        return cli_usage("topo", "two of --json, --dot and --matrix together: use one of them");
    if (planned && fabric)
        return cli_usage("topo", "--fabric '%s' and topology '%s' together: use one of them", fabric, argv[optind]);
    if (profile && !planned)
        return cli_usage(
            "topo",
            "--profile '%s' needs a topology, because an existing fabric has its own profile: give a topology, or leave out --profile",
            profile);
    struct sv_model *model = NULL;
    struct sf_view view = {.fd = -1};
    const struct sv_topology *t;
    if (planned) {
        if ((status = cli_model("topo", profile ? profile : "generic", argc - optind, argv + optind, &model)))
            return status;
        t = &model->topology;
    } else {
        if ((status = cli_fabric_name("topo", fabric, NULL, &name)) || (status = cli_attach("topo", &view, name, false)))
            return status;
        t = &view.fabric->model.topology;
    }
    char *text = dot ? sv_topology_dot(t) : mlx ? topo_matrix(t) : sv_topology_json(t);
    status = text ? 0
             : mlx && errno == ENXIO
                 ? cli_error("topo", "'%s': no cable and no switch joins any two hosts, so there is no matrix of devices", t->name)
             : errno == EINVAL ? cli_error("topo", "the topology is damaged; `softverbs down` removes the fabric")
                               : cli_error("topo", "no memory for the topology; end other programs");
    if (text) {
        size_t n = strlen(text);
        fputs(text, stdout);
        if (n == 0 || text[n - 1] != '\n')
            putchar('\n');
        status = cli_flush("topo");
    }
    free(text);
    free(model);
    if (view.fabric)
        sf_detach(&view);
    return status;
}
