/* SPDX-License-Identifier: MIT
 *
 * weft topo: parses the options and starts the nodes that measure, in the way of `weft run`. Each node runs `weft topo --as-node`.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/emulate.h"
#include "cli/hosts.h"
#include "cli/topo.h"

static const char help[] =
    "Usage: weft topo -n N | --hostfile FILE | --softverbs TOPO [OPTIONS]\n"
    "\n"
    "Measures how fast the hosts of a cluster reach each other, and shows by which way. The command starts a node on each host,\n"
    "as `weft run` does. The nodes measure one pair after another. A line for each direction of a pair shows:\n"
    "\n"
    "  transport             shm (shared memory), rc (RDMA), tb (RDMA over Thunderbolt) or ofi (other networks)\n"
    "  way                   direct, or the next node on the way\n"
    "  devices               the devices of the sending node\n"
    "  round trip            the time to write 8 bytes to the other node, and to get 8 bytes back\n"
    "  bandwidth             how fast large data is written to the other node\n"
    "  retransmits           tb, ofi: how often small data was sent again, because it was lost\n"
    "  repairs               tb: how often a connection for large data was repaired, because data was lost\n"
    "\n"
    "  -n, --nodes N          how many nodes, 2 to 256; required without a hostfile or --softverbs\n"
    "      --hostfile FILE    start the nodes on the hosts in this file\n"
    "      --remote-weft PATH the path of the command weft on other hosts, if it differs from the path here\n"
    "      --softverbs TOPO   emulated RDMA devices, each node on an emulated host: mesh:4:tb5, chain:5, lab.json\n"
    "      --time TIME        how long each of the two measurements of a direction takes (default: 50ms; with --matrix 1ms)\n"
    "      --json             print JSON\n"
    "      --dot              print a drawing for Graphviz\n"
    "      --svg              print a drawing as SVG\n"
    "      --matrix           print a hostfile for MLX: for each host the device that leads to each other host, or null\n"
    "  -h, --help             print this text\n"
    "\n"
    "Other work on the hosts makes the results worse: measure while the hosts have no other work.\n"
    "\n"
    "  weft topo --softverbs mesh:4:tb5\n"
    "  weft topo --hostfile hosts.json --svg > cluster.svg\n"
    "  weft topo --hostfile hosts.json --matrix > mlx.json\n"
    "\n"
    "Exit status: 0; 1 if the nodes could not connect, or a pair could not be measured; 2 if the command line is wrong; 128 + N\n"
    "if signal N ended the command.\n";

struct options {
    enum topo_format format;
    int64_t time_ns;
};

static int topo_take_option(int c, struct options *o, struct launch *l)
{
    int64_t n;
    switch (c) {
    case 'n':
        if (base_parse_number(optarg, 2, TOPO_NODES_MAX, &n))
            return cli_usage("topo", "-n '%s': expected a number of nodes from 2 to %u", optarg, TOPO_NODES_MAX);
        l->nodes = (uint32_t)n;
        return 0;
    case 'H': l->hostfile = optarg; return 0;
    case 'W': l->weft = optarg; return 0;
    case 'S': l->softverbs = optarg; return 0;
    case 'T':
        if (base_parse_duration(optarg, &o->time_ns) || o->time_ns < WEFT_MS || o->time_ns > TOPO_TIME_MAX)
            return cli_usage("topo", "--time '%s': expected a duration from 1ms to 1m, as in 50ms", optarg);
        return 0;
    case 'j':
    case 'd':
    case 's':
    case 'm':
        if (o->format != TOPO_TABLE)
            return cli_usage("topo", "--json, --dot, --svg and --matrix exclude each other: give only one of them");
        o->format = c == 'j' ? TOPO_JSON : c == 'd' ? TOPO_DOT : c == 's' ? TOPO_SVG : TOPO_MATRIX;
        return 0;
    default: return CLI_USAGE;
    }
}

static int topo_start(struct launch *l, int argc, char **argv)
{
    struct hosts hosts = {.count = 0};
    struct emulation e;
    char *others[] = {hosts.self, (char *)(uintptr_t) "topo", (char *)(uintptr_t) "--as-node", NULL};
    char **first = calloc((size_t)argc + 3, sizeof *first);
    if (!first)
        return cli_error("topo", "no memory for the command line of the nodes" BASE_MEMORY_HINT);
    int status = 0;
    if (l->softverbs && emulate_parse(&e, l->softverbs, l->nodes))
        status = cli_usage("topo", "%s", base_error());
    if (!status && (status = hosts_apply(l, &hosts, hosts_file(l->hostfile))) == 0 && l->softverbs && !l->nodes)
        l->nodes = e.hosts;
    if (!status && l->nodes == 0)
        status = cli_usage("topo", "the cluster is missing: give --hostfile FILE, --softverbs TOPO or -n N");
    if (!status && (l->nodes < 2 || l->nodes > TOPO_NODES_MAX))
        status = cli_usage("topo", "the cluster has %u node%s: expected 2 to %u", l->nodes, l->nodes == 1 ? "" : "s", TOPO_NODES_MAX);
    if (!status && l->ssh && l->ssh[0])
        status = cli_usage("topo", "hostfile %s: the first host, %s, is not this host: it must be, because the result is printed here",
                           hosts_file(l->hostfile), l->ssh[0]);
    if (!status) {
        memcpy(first, others, 3 * sizeof *first);
        memcpy(first + 3, argv + 1, (size_t)(argc - 1) * sizeof *first);
        l->lead = true;
        l->argv = first;
        l->others = others;
        status = launch_cluster(l);
        l->argv = l->others = NULL;
    }
    hosts_free(&hosts, l->nodes);
    free(first);
    return status;
}

int cli_topo(int argc, char **argv)
{
    static const struct option longs[] = {{"nodes", required_argument, NULL, 'n'},
                                          {"hostfile", required_argument, NULL, 'H'},
                                          {"remote-weft", required_argument, NULL, 'W'},
                                          {"softverbs", required_argument, NULL, 'S'},
                                          {"time", required_argument, NULL, 'T'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"dot", no_argument, NULL, 'd'},
                                          {"svg", no_argument, NULL, 's'},
                                          {"matrix", no_argument, NULL, 'm'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    struct launch l = {.sub = "topo"};
    struct options o = {.format = TOPO_TABLE};
    bool as_node = argc > 1 && strcmp(argv[1], "--as-node") == 0, started = false;
    int c, status;
    if (as_node && (!getenv("WEFT_RANK") || !getenv("WEFT_SIZE")))
        return cli_usage(
            "topo", "--as-node is for weft's own use: leave it out; if weft itself gave it, run the same version of weft on all hosts");
    argv += as_node;
    argc -= as_node;
    while ((c = cli_option("topo", argc, argv, "n:h", longs, &started)) != -1) {
        if (c == 'h') {
            fputs(help, stdout);
            return cli_flush("topo");
        }
        if ((status = topo_take_option(c, &o, &l)))
            return status;
    }
    if (optind < argc)
        return cli_usage("topo", "unexpected argument '%s'", argv[optind]);
    if (!o.time_ns)
        o.time_ns = o.format == TOPO_MATRIX ? WEFT_MS : 50 * WEFT_MS;
    return as_node ? topo_node(o.format, o.time_ns, hosts_file(l.hostfile)) : topo_start(&l, argc, argv);
}
