/* SPDX-License-Identifier: MIT
 *
 * weft run: the command line of the launcher.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/emulate.h"
#include "cli/hosts.h"
#include "cli/launch.h"
#include "cli/ssh.h"
#include "cluster/cluster.h"
#include "verbs/verbs.h"

static const char help[] =
    "Usage: weft run -n N | --hostfile FILE | --softverbs TOPO | --cluster NAME [OPTIONS] [--] PROGRAM [ARGUMENT...]\n"
    "\n"
    "Starts PROGRAM several times, on this host or on several hosts. Each process is a node of the cluster, and joins it with\n"
    "weft_open(). This command ends when all nodes have ended. If it is killed itself, it leaves no process and no file behind.\n"
    "Nodes on other hosts are started by ssh; these hosts need weft and PROGRAM at the same paths.\n"
    "\n"
    "  -n, --nodes N          how many nodes, 1 to 1024; default: as in the hostfile, or one for each host of TOPO or NAME\n"
    "      --hostfile FILE    start the nodes on the hosts in this file\n"
    "      --remote-weft PATH the path of the command weft on other hosts, if it differs from the path here\n"
    "      --cluster NAME     start the nodes on the hosts of a standing cluster (`weft up`), without ssh\n"
    "      --pool SIZE        the memory that each node shares with the others, for example 1G (sets WEFT_POOL)\n"
    "      --softverbs TOPO   emulated RDMA devices, each node on an emulated host: switch:8, chain:4:tb5, lab.json\n"
    "      --gpus K           give each node K GPUs of its host (sets CUDA_VISIBLE_DEVICES); nodes share GPUs if there are too\n"
    "                         few\n"
    "      --guard            start a second process for each node that owns the node's Thunderbolt devices, and cleans up even\n"
    "                         if the node is killed (sets WEFT_GUARD)\n"
    "  -t, --tag              begin each line of node K's output with \"[K] \"\n"
    "      --timeout TIME     end all nodes after this time: 10 (seconds), 500ms, 2m\n"
    "  -k, --kill-on-failure  when a node fails, end the other nodes, too\n"
    "  -h, --help             print this text\n"
    "\n"
    "Node 0 reads the standard input of `weft run`, unless this is a terminal or node 0 is on another host. WEFT_SSH is the\n"
    "command to use instead of ssh; it may have arguments. Ctrl-C, SIGTERM and SIGHUP go to all nodes; nodes that have not\n"
    "ended after 5 seconds are killed, and so are all nodes at a second signal.\n"
    "\n"
    "Exit status: that of the first node that failed (128 + N if signal N killed it), else 0; 124 after --timeout;\n"
    "127 if PROGRAM is not found, 126 if it cannot be executed; 2 for a wrong command line; 1 for another failure.\n"
    "\n"
    "  weft run -n 4 -- ./program        four nodes\n"
    "  weft run -n 4 -t -- hostname      show which node prints what\n";

static int parse_nodes(const char *text, uint32_t *out)
{
    int64_t n;
    if (base_parse_number(text, 1, WEFT_MAX_NODES, &n))
        return cli_usage("run", "-n '%s': expected a number of nodes from 1 to %u", text, WEFT_MAX_NODES);
    *out = (uint32_t)n;
    return 0;
}

static int parse_options(int argc, char **argv, struct launch *l, bool *done)
{
    static const struct option longs[] = {{"nodes", required_argument, NULL, 'n'},
                                          {"hostfile", required_argument, NULL, 'H'},
                                          {"cluster", required_argument, NULL, 'C'},
                                          {"pool", required_argument, NULL, 'P'},
                                          {"remote-weft", required_argument, NULL, 'W'},
                                          {"softverbs", required_argument, NULL, 'S'},
                                          {"guard", no_argument, NULL, 'G'},
                                          {"gpus", required_argument, NULL, 'U'},
                                          {"tag", no_argument, NULL, 't'},
                                          {"timeout", required_argument, NULL, 'T'},
                                          {"kill-on-failure", no_argument, NULL, 'k'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    bool started = false;
    int64_t gpus;
    int c, status;
    while ((c = cli_option("run", argc, argv, "+n:tkh", longs, &started)) != -1) {
        switch (c) {
        case 'n':
            if ((status = parse_nodes(optarg, &l->nodes)))
                return status;
            break;
        case 'H': l->hostfile = optarg; break;
        case 'C': l->cluster = optarg; break;
        case 'P':
            if (cluster_pool_check(optarg) || strlen(optarg) > 40)
                return cli_usage("run", "--pool '%s': expected a size from 1M to 16T, as in 256M or 1.5G", optarg);
            l->pool = optarg;
            break;
        case 'W': l->weft = optarg; break;
        case 'S': l->softverbs = optarg; break;
        case 'G': l->guard = true; break;
        case 'U':
            if (base_parse_number(optarg, 1, 64, &gpus))
                return cli_usage("run", "--gpus '%s': expected a number of GPUs for each node, from 1 to 64", optarg);
            l->gpus = (uint32_t)gpus;
            break;
        case 't': l->tag = true; break;
        case 'T':
            if (base_parse_duration(optarg, &l->timeout_ns))
                return cli_usage("run", "--timeout: %s", base_error());
            if (l->timeout_ns == 0)
                return cli_usage("run", "--timeout '%s': expected a time of more than 0, as in 30 or 5m", optarg);
            break;
        case 'k': l->kill_on_failure = true; break;
        case 'h':
            fputs(help, stdout);
            *done = true;
            return cli_flush("run");
        default: return CLI_USAGE;
        }
    }
    return 0;
}

/* Serves as the guard process at the socket `path`. Before that, closes all descriptors that this process has inherited from the
 * program. */
static int serve_as_guard(const char *path)
{
    DIR *open_files = opendir("/dev/fd");
    int own = open_files ? dirfd(open_files) : -1;
    for (struct dirent *e; open_files && (e = readdir(open_files));) {
        int fd = atoi(e->d_name);
        if (fd > STDERR_FILENO && fd != own)
            close(fd);
    }
    if (open_files)
        closedir(open_files);
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null >= 0)
        dup2(null, STDOUT_FILENO);
    return verbs_guard_serve(path) ? CLI_FAILED : 0;
}

int cli_run(int argc, char **argv)
{
    struct launch l = {.sub = "run"};
    struct hosts hosts = {.count = 0};
    bool done = false;
    if (argc == 2 && strcmp(argv[1], "--as-node") == 0)
        return ssh_serve();
    if ((argc == 2 || argc == 3) && strcmp(argv[1], "--as-guard") == 0)
        return serve_as_guard(argv[2]);
    int status = parse_options(argc, argv, &l, &done);
    if (status || done)
        return status;
    if (l.cluster && (l.hostfile || l.softverbs)) {
        status =
            cli_usage("run", "--cluster cannot be used with --hostfile or --softverbs, because the cluster has its own: leave these out");
        goto out;
    }
    if ((status = l.cluster ? hosts_apply_cluster(&l, &hosts, l.cluster) : hosts_apply(&l, &hosts, hosts_file(l.hostfile))))
        goto out;
    struct emulation emulated;
    if (l.softverbs && emulate_parse(&emulated, l.softverbs, l.nodes)) {
        status = cli_usage("run", "%s", base_error());
        goto out;
    }
    if (!l.nodes && l.softverbs)
        l.nodes = emulated.hosts;
    if (!l.nodes) {
        status = cli_usage("run", "the number of nodes is missing: give -n N, --hostfile FILE or --cluster NAME");
    } else if (optind >= argc) {
        status = cli_usage("run", "the program is missing: give it after the options");
    } else {
        l.argv = argv + optind;
        status = launch_cluster(&l);
    }
out:
    hosts_free(&hosts, l.nodes);
    return status;
}
