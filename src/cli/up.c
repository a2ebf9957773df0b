/* SPDX-License-Identifier: MIT
 *
 * weft up and weft down: start and end a standing cluster.
 *
 * Each host has its own launcher, in the background. The launcher starts the nodes of its host (`weft up --as-node`), and starts a new node
 * when one has died. ssh is used only to start the launchers of other hosts (up_hosts.c). If a launcher is killed, its keeper process kills
 * its nodes.
 */
#include "cli/up.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/process.h"
#include "cli/command.h"
#include "cli/emulate.h"
#include "cluster/cluster.h"

#define FILE_ROOT_MAX 1024u
#define CACHE_MIN     (UINT64_C(4) << 20)

static const char up_help[] =
    "Usage: weft up -n N | --hostfile FILE | --softverbs TOPO [OPTIONS]\n"
    "       weft up --add N|HOST,... [--cluster NAME] [--remote-weft PATH]\n"
    "       weft up --here [--hostfile FILE] [OPTIONS]\n"
    "\n"
    "Connects several hosts into a group, a standing cluster. Then you can run programs on all of them (`weft exec`), copy\n"
    "files (`weft cast`), and use the network of one from another (`weft proxy`), without ssh. The command starts a process of\n"
    "weft in the background on each host, called a node, and returns when all nodes are connected. The nodes stay until\n"
    "`weft down`.\n"
    "\n"
    "The first host of the hostfile must be this host; the others are reached by ssh. Once the cluster is up, no host depends\n"
    "on another. When a node dies, a new one is started on its host.\n"
    "\n"
    "  -n, --nodes N          start N nodes on this host, to try out a cluster; default: as in the hostfile\n"
    "      --hostfile FILE    the hosts and settings of the cluster\n"
    "      --add N|HOST,...   add nodes to a cluster that is up: N nodes on this host, or one on each of these hosts\n"
    "      --cluster NAME     the name of the cluster; default: the value of WEFT_CLUSTER, or \"default\"\n"
    "      --foreground       stay in the foreground until the cluster ends, and print its log here\n"
    "      --here             start only the node of this host, in the foreground and without ssh, for systemd and launchd;\n"
    "                         run this on every host. WEFT_RANK is the number of the node. If the cluster is already running,\n"
    "                         the node joins it\n"
    "      --metrics ADDRESS  serve http://ADDRESS/metrics for Prometheus on this host, as in 127.0.0.1:9464\n"
    "      --allow WHAT       let other hosts reach WHAT through the network of these nodes: an address, a network or a name,\n"
    "                         with :PORT or without (`man weft-proxy`). By default they reach all addresses except link-local\n"
    "                         and multicast addresses, metadata services of clouds, and the node's own loopback\n"
    "      --deny WHAT        do not let other hosts reach WHAT. The first --allow or --deny that matches decides\n"
    "      --root DIR         let other hosts open files only below this directory (`weft cat`)\n"
    "      --cache SIZE       how much memory of its pool a node uses to keep files that other hosts have read; default: a\n"
    "                         quarter\n"
    "      --pool SIZE        the memory that each node shares with the cluster, as in 1G (sets WEFT_POOL)\n"
    "      --remote-weft PATH the path of the command weft on other hosts, if it differs from the path here\n"
    "      --softverbs TOPO   emulated RDMA devices, each node on an emulated host: switch:4, mesh:4:tb5\n"
    "  -h, --help             print this text\n"
    "\n"
    "The log is in $XDG_RUNTIME_DIR/weft/NAME, or in /tmp/weft-UID/NAME, on each host: see `weft logs`.\n"
    "\n"
    "Exit status: 0; 1 if the cluster could not be started; 2 if the command line is wrong.\n";

/* Adds a rule to those of the environment. */
static int up_add_rule(const char *word, const char *what)
{
    char rules[1024];
    const char *before = getenv("WEFT_NET_RULES");
    int n = snprintf(rules, sizeof rules, "%s%s%s=%s", before ? before : "", before && before[0] ? "," : "", word, what);
    if (strchr(what, ','))
        return cli_usage("up", "--%s '%.64s': expected one rule, without a comma: repeat the option for each rule", word, what);
    if (n >= (int)sizeof rules)
        return cli_usage("up", "--%s '%.64s': all rules together must have less than %zu bytes: give fewer or shorter rules", word, what,
                         sizeof rules);
    setenv("WEFT_NET_RULES", rules, 1);
    return 0;
}

static int up_take_option(int c, struct up *u, struct launch *l)
{
    int64_t n;
    uint64_t bytes;
    switch (c) {
    case 'n':
        if (base_parse_number(optarg, 1, WEFT_MAX_NODES, &n))
            return cli_usage("up", "-n '%s': expected a number of nodes from 1 to %u", optarg, WEFT_MAX_NODES);
        l->nodes = (uint32_t)n;
        return 0;
    case 'H': l->hostfile = optarg; return 0;
    case 'C': u->cluster = optarg; return 0;
    case 'F': u->foreground = true; return 0;
    case 'O': u->here = true; return 0;
    case 'A': u->as_node = true; return 0;
    case 'E': u->end = true; return 0;
    case 'D': u->add = optarg; return 0;
    case 'T': u->on_host = optarg; return 0;
    case 'I': u->start = optarg; return 0;
    case 'S':
        if (base_parse_number(optarg, 0, WEFT_MAX_NODES, &n))
            return cli_usage(
                "up", "--first is for weft's own use: leave it out; if weft itself gave it, run the same version of weft on all hosts");
        u->first = (uint32_t)n;
        return 0;
    case 'M':
        if (cluster_address_check(optarg) || strncmp(optarg, "unix:", 5) == 0)
            return cli_usage("up", "--metrics '%s': expected ADDRESS:PORT, as in 127.0.0.1:9464", optarg);
        u->metrics = optarg;
        return 0;
    case 'P':
        if (cluster_pool_check(optarg) || strlen(optarg) > 40)
            return cli_usage("up", "--pool '%s': expected a size from 1M to 16T, as in 256M or 1.5G", optarg);
        l->pool = optarg;
        return 0;
    case 'L': return up_add_rule("allow", optarg);
    case 'N': return up_add_rule("deny", optarg);
    case 'R':
        if (optarg[0] != '/' || strlen(optarg) >= FILE_ROOT_MAX)
            return cli_usage("up", "--root '%.64s': expected the absolute path of a directory, of less than %u bytes", optarg,
                             FILE_ROOT_MAX);
        setenv("WEFT_FILE_ROOT", optarg, 1);
        return 0;
    case 'B':
        if (base_parse_bytes(optarg, &bytes) || bytes < CACHE_MIN)
            return cli_usage("up", "--cache '%s': expected a size from 4M to that of the pool, as in 64M or 1G", optarg);
        setenv("WEFT_FILE_CACHE", optarg, 1);
        return 0;
    case 'W': l->weft = optarg; return 0;
    case 'V': l->softverbs = optarg; return 0;
    default: return CLI_USAGE;
    }
}

/* Choose the address at which the nodes of this host let other nodes join. It is a Unix socket if the whole cluster is on one host;
 * otherwise it has the port after that of node 0. */
static int choose_door(struct up *u, const struct launch *l, const struct standing_place *p)
{
    const char *given = getenv("WEFT_GROW");
    int rc = 0;
    if (given && given[0])
        snprintf(u->door, sizeof u->door, "%s", given);
    else if (!l->coord || strncmp(l->coord, "unix:", 5) == 0)
        rc = cluster_private_address(u->door, sizeof u->door, "grow", p->folder);
    else
        rc = up_door_beside(u->door, sizeof u->door, l->coord, l->coord);
    if (rc)
        return cli_error("up", "%s", base_error());
    snprintf(u->join, sizeof u->join, "%s", u->door);
    setenv("WEFT_GROW", u->door, 1);
    return 0;
}

static int up_start(struct up *u, struct launch *l)
{
    struct hosts hosts = {.count = 0};
    struct standing_place place;
    struct emulation e;
    int lock = -1, status = 0;
    if (standing_find(&place, u->cluster, true) || (lock = standing_lock(&place, false)) < 0)
        return cli_error("up", "%s", base_error());
    u->cluster = place.name;
    if (l->softverbs && emulate_parse(&e, l->softverbs, l->nodes))
        status = cli_usage("up", "%s", base_error());
    setenv("WEFT_SERVE", "process,name,net,file", 1);
    const char *file = hosts_file(l->hostfile);
    static char absolute[4096]; /* absolute, because commands read it from other directories */
    if (file && realpath(file, absolute))
        l->hostfile = absolute;
    if (!status && (status = hosts_apply(l, &hosts, hosts_file(l->hostfile))) == 0 && l->softverbs && !l->nodes)
        l->nodes = e.hosts;
    if (!status && l->nodes == 0)
        status = cli_usage("up", "the cluster is missing: give --hostfile FILE, --softverbs TOPO or -n N");
    if (!status && l->ssh && l->ssh[0])
        status = cli_usage("up", "hostfile %s: the first host, %s, is not this host: it must be, because node 0 is started here",
                           hosts_file(l->hostfile), l->ssh[0]);
    if (!status)
        status = choose_door(u, l, &place);
    if (!status && l->ssh) {
        close(lock); /* the launcher of this host takes the lock */
        lock = -1;
        status = up_hosts(u, l, &place);
    } else if (!status && u->foreground) {
        up_remove_old(&place);
        status = up_launch(u, l, &place);
    } else if (!status) {
        status = up_background(u, l, &place);
    }
    if (!status && !u->foreground)
        fprintf(stderr, "weft up: cluster '%s' is up, with %u node%s; its log: %s\n", place.name, l->nodes, l->nodes == 1 ? "" : "s",
                place.log);
    hosts_free(&hosts, l->nodes);
    if (lock >= 0)
        close(lock);
    return status;
}

/* --- one node --- */

static int up_as_node(struct up *u)
{
    struct standing_place place;
    const char *rank = getenv("WEFT_RANK"), *size = getenv("WEFT_SIZE"), *join = getenv("WEFT_JOIN");
    bool joins = join && join[0];
    int64_t slot;
    if (!rank || base_parse_number(rank, joins ? 0 : u->first, WEFT_MAX_NUMBERS, &slot) || (!size && !joins))
        return cli_usage(
            "up", "--as-node is for weft's own use: leave it out; if weft itself gave it, run the same version of weft on all hosts");
    if (joins) {
        unsetenv("WEFT_RANK");
        unsetenv("WEFT_SIZE");
    }
    if (standing_find(&place, u->cluster, false))
        return cli_error("up", "%s", base_error());
    return standing_node(&place, (uint32_t)slot - (joins ? 0 : u->first), joins ? UINT32_MAX : u->first, u->metrics, NULL);
}

int cli_up(int argc, char **argv)
{
    static const struct option longs[] = {{"nodes", required_argument, NULL, 'n'},
                                          {"hostfile", required_argument, NULL, 'H'},
                                          {"add", required_argument, NULL, 'D'},
                                          {"cluster", required_argument, NULL, 'C'},
                                          {"foreground", no_argument, NULL, 'F'},
                                          {"here", no_argument, NULL, 'O'},
                                          {"as-node", no_argument, NULL, 'A'},
                                          {"end", no_argument, NULL, 'E'},
                                          {"on-host", required_argument, NULL, 'T'},
                                          {"start", required_argument, NULL, 'I'},
                                          {"first", required_argument, NULL, 'S'},
                                          {"metrics", required_argument, NULL, 'M'},
                                          {"allow", required_argument, NULL, 'L'},
                                          {"deny", required_argument, NULL, 'N'},
                                          {"root", required_argument, NULL, 'R'},
                                          {"cache", required_argument, NULL, 'B'},
                                          {"pool", required_argument, NULL, 'P'},
                                          {"remote-weft", required_argument, NULL, 'W'},
                                          {"softverbs", required_argument, NULL, 'V'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    struct launch l = {.sub = "up"};
    struct up u = {.cluster = NULL};
    const char *join = getenv("WEFT_JOIN");
    bool started = false;
    int c, status;
    while ((c = cli_option("up", argc, argv, "n:h", longs, &started)) != -1) {
        if (c == 'h') {
            fputs(up_help, stdout);
            return cli_flush("up");
        }
        if ((status = up_take_option(c, &u, &l)))
            return status;
    }
    if (optind < argc)
        return cli_usage("up", "unexpected argument '%s'", argv[optind]);
    if (u.as_node)
        return up_as_node(&u);
    if (u.end)
        return up_end_started(&u);
    if (u.on_host)
        return up_on_host(&u, &l);
    if (u.here)
        return up_here(&u, &l);
    if (join && join[0])
        return cli_error("up", "WEFT_JOIN='%.200s': a node that joins is started by `weft up --add` or `weft up --here`: unset WEFT_JOIN",
                         join);
    return u.add ? up_add(&u, &l) : up_start(&u, &l);
}

/* --- weft down --- */

static const char down_help[] =
    "Usage: weft down [--cluster NAME]\n"
    "\n"
    "Ends a standing cluster (`weft up`) on all its hosts, and kills the commands that `weft exec` has started there. Returns\n"
    "when the cluster has ended.\n"
    "\n"
    "      --cluster NAME     the name of the cluster; default: the value of WEFT_CLUSTER, or \"default\"\n"
    "  -h, --help             print this text\n"
    "\n"
    "Exit status: 0; 1 if there is no such cluster, or it does not end; 2 if the command line is wrong.\n";

int cli_down(int argc, char **argv)
{
    static const struct option longs[] = {{"cluster", required_argument, NULL, 'C'}, {"help", no_argument, NULL, 'h'}, {0}};
    const char *cluster = NULL;
    bool started = false;
    int c;
    while ((c = cli_option("down", argc, argv, "h", longs, &started)) != -1) {
        if (c == 'h') {
            fputs(down_help, stdout);
            return cli_flush("down");
        }
        if (c != 'C')
            return CLI_USAGE;
        cluster = optarg;
    }
    if (optind < argc)
        return cli_usage("down", "unexpected argument '%s'", argv[optind]);
    return up_end("down", cluster, false);
}
