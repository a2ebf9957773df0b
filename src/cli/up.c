/* SPDX-License-Identifier: MIT
 *
 * weft up, weft down: a standing cluster begins and ends.
 *
 * The nodes are started by the launcher of `weft run`, which stays in the background. Each node runs `weft up --as-node`. If the launcher
 * is killed, its keeper kills the nodes; if the control node ends, the launcher ends the others.
 */
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process.h"
#include "cli/command.h"
#include "cli/emulate.h"
#include "cli/hosts.h"
#include "cli/launch.h"
#include "cli/standing.h"
#include "cluster/cluster.h"

#define LOOK_NS  (2 * WEFT_MS) /* between two looks whether the cluster is up, or down */
#define DOWN_NS  (20 * WEFT_SECOND)
#define LOG_SHOW (64 << 10) /* bytes of the log that are printed at most when the cluster could not be started */

static const char up_help[] =
    "Usage: weft up -n N | --hostfile FILE | --softverbs TOPO [OPTIONS]\n"
    "       weft up --here [--hostfile FILE] [OPTIONS]\n"
    "\n"
    "Starts a standing cluster: one node on each host of the hostfile, as `weft run` does, which stays until `weft down`.\n"
    "Returns when all nodes have joined. Programs of this user on this host use it: `weft exec`, `weft status`, `weft run\n"
    "--cluster`. The first host must be this one.\n"
    "\n"
    "  -n, --nodes N          N nodes on this host, to try it out; else one for each entry of the hostfile\n"
    "      --hostfile FILE    the cluster's hosts and settings\n"
    "      --cluster NAME     the cluster's name on this host (WEFT_CLUSTER, else \"default\")\n"
    "      --foreground       do not return: stay until the cluster ends, and print its log here\n"
    "      --here             start only the node of this host, in the foreground, without ssh; each host does the same (for\n"
    "                         systemd and launchd). The number of the node comes from WEFT_RANK\n"
    "      --metrics ADDRESS  serve http://ADDRESS/metrics for Prometheus: 127.0.0.1:9464\n"
    "      --allow WHAT       let other nodes reach this through the network of a node (weft-proxy): an address, a network, a name,\n"
    "                         with :PORT or not. All may be reached but link-local addresses and each node's own loopback\n"
    "      --deny WHAT        do not let them reach this. The first --allow or --deny that fits counts\n"
    "      --pool SIZE        each node's pool, as in 1G (sets WEFT_POOL)\n"
    "      --remote-weft PATH the command weft on other hosts, if its path is not the same as here\n"
    "      --softverbs TOPO   emulated RDMA devices, each node on a host of its own: switch:4, mesh:4:tb5\n"
    "  -h, --help             this text\n"
    "\n"
    "The control socket and the log are in $XDG_RUNTIME_DIR/weft/NAME, or in /tmp/weft-UID/NAME. The log keeps at most 8 MiB.\n"
    "\n"
    "Exit status: 0; 1 if the cluster could not be started; 2 if the command line is wrong.\n";

struct up {
    const char *cluster, *metrics;
    bool foreground, here, as_node;
};

/* Adds a rule to those of the environment. */
static int up_add_rule(const char *word, const char *what)
{
    char rules[1024];
    const char *before = getenv("WEFT_NET_RULES");
    int n = snprintf(rules, sizeof rules, "%s%s%s=%s", before ? before : "", before && before[0] ? "," : "", word, what);
    if (n >= (int)sizeof rules || strchr(what, ','))
        return cli_usage("up", "--%s '%.64s': expected one rule, and all rules must have less than %zu bytes", word, what, sizeof rules);
    setenv("WEFT_NET_RULES", rules, 1);
    return 0;
}

static int up_take_option(int c, struct up *u, struct launch *l)
{
    int64_t n;
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
    case 'D': return up_add_rule("deny", optarg);
    case 'W': l->weft = optarg; return 0;
    case 'S': l->softverbs = optarg; return 0;
    default: return CLI_USAGE;
    }
}

/* --- the launcher --- */

/* The command lines of the nodes: only the first one is told of the control socket. */
static int up_launch(struct up *u, struct launch *l, struct hosts *hosts)
{
    char *first[8], *others[] = {hosts->self, (char *)(uintptr_t) "up", (char *)(uintptr_t) "--as-node", NULL};
    size_t n = 3;
    memcpy(first, others, 3 * sizeof *first);
    first[n++] = (char *)(uintptr_t) "--cluster";
    first[n++] = (char *)(uintptr_t)u->cluster;
    if (u->metrics) {
        first[n++] = (char *)(uintptr_t) "--metrics";
        first[n++] = (char *)(uintptr_t)u->metrics;
    }
    first[n] = NULL;
    l->lead = l->tag = true;
    l->argv = first;
    l->others = others;
    int status = launch_cluster(l);
    l->argv = l->others = NULL;
    return status;
}

/* In the new process: leave the terminal, and write to the log from now on. */
static int go_to_background(const struct standing_place *p)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int log = open(p->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (null < 0 || log < 0)
        return cli_error("up", "%s: %s", log < 0 ? p->log : "/dev/null", base_strerror(errno));
    setsid();
    dup2(null, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    close(null);
    close(log);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    return 0;
}

/* Print what the log has got since it had `from` bytes. */
static void show_log(const struct standing_place *p, off_t from)
{
    char some[4096];
    size_t left = LOG_SHOW;
    FILE *f = fopen(p->log, "re");
    if (f && fseeko(f, from, SEEK_SET) == 0)
        for (size_t n; left && (n = fread(some, 1, sizeof some < left ? sizeof some : left, f)) > 0; left -= n)
            fwrite(some, 1, n, stderr);
    if (f)
        fclose(f);
}

/* Wait until the control socket answers, or the launcher has ended. */
static int wait_until_up(const struct standing_place *p, pid_t launcher, uint32_t nodes, off_t log_from)
{
    cli_catch_signals();
    for (bool told = false;; base_sleep_ns(LOOK_NS)) {
        if (cli_stopped() && !told) {
            kill(launcher, SIGTERM);
            told = true;
        }
        if (base_process_ended(launcher, NULL)) {
            int status = base_process_status(base_process_reap(launcher));
            show_log(p, log_from);
            if (cli_stopped())
                return 128 + cli_stopped();
            cli_error("up", "cluster '%s' could not be started", p->name);
            return status ? status : CLI_FAILED;
        }
        int fd = standing_connect(p);
        if (fd < 0)
            continue;
        close(fd);
        fprintf(stderr, "weft up: cluster '%s' is up, with %u node%s; its log: %s\n", p->name, nodes, nodes == 1 ? "" : "s", p->log);
        return 0;
    }
}

/* systemd removes /run/user/UID when the user's last session ends, unless the user lingers: then no command finds the cluster. */
static void warn_of_logout(const struct standing_place *p)
{
    char linger[300];
    const struct passwd *user = getpwuid(geteuid());
    if (!user || strncmp(p->folder, "/run/user/", 10) != 0)
        return;
    snprintf(linger, sizeof linger, "/var/lib/systemd/linger/%s", user->pw_name);
    if (access(linger, F_OK))
        fprintf(stderr,
                "weft up: warning: %s is removed when user %s logs out, and then no command finds the cluster: `loginctl enable-linger %s` "
                "keeps it\n",
                p->folder, user->pw_name, user->pw_name);
}

static int up_background(struct up *u, struct launch *l, struct hosts *hosts, const struct standing_place *p)
{
    struct stat st;
    off_t log_from = stat(p->log, &st) == 0 ? st.st_size : 0;
    unlink(p->socket); /* of a cluster that was killed: this process has its lock */
    warn_of_logout(p);
    fflush(NULL);
    pid_t pid = base_process_fork();
    if (pid < 0)
        return cli_error("up", "no process for the launcher: %s", base_strerror((int)pid));
    if (pid > 0)
        return wait_until_up(p, pid, l->nodes, log_from);
    int status = go_to_background(p);
    if (!status) {
        l->log = p->log;
        l->log_max = STANDING_LOG_MAX;
        status = up_launch(u, l, hosts);
    }
    unlink(p->socket); /* the control node may have been killed */
    exit(status);
}

static int up_start(struct up *u, struct launch *l)
{
    struct hosts hosts = {.count = 0};
    struct standing_place place;
    struct emulation e;
    int lock = -1, status = 0;
    if (standing_find(&place, u->cluster, true) || (lock = standing_lock(&place)) < 0)
        return cli_error("up", "%s", base_error());
    u->cluster = place.name;
    if (l->softverbs && emulate_parse(&e, l->softverbs, l->nodes))
        status = cli_usage("up", "%s", base_error());
    setenv("WEFT_SERVE", "process,name,net", 1);
    const char *file = hosts_file(l->hostfile);
    static char absolute[4096]; /* commands read it from wherever they run */
    if (file && realpath(file, absolute))
        l->hostfile = absolute;
    if (!status && (status = hosts_apply(l, &hosts, hosts_file(l->hostfile))) == 0 && l->softverbs && !l->nodes)
        l->nodes = e.hosts;
    if (!status && l->nodes == 0)
        status = cli_usage("up", "the cluster is missing: give --hostfile FILE, --softverbs TOPO or -n N");
    if (!status && l->ssh && l->ssh[0])
        status = cli_usage("up", "hostfile %s: the first host, %s, is not this host: it must be, because it has the control socket",
                           hosts_file(l->hostfile), l->ssh[0]);
    if (!status && u->foreground) {
        unlink(place.socket);
        status = up_launch(u, l, &hosts);
    } else if (!status) {
        status = up_background(u, l, &hosts, &place);
    }
    hosts_free(&hosts, l->nodes);
    close(lock);
    return status;
}

/* --- one node --- */

/* --here: this process is the node. */
static int up_here(struct up *u, const struct launch *l)
{
    struct standing_place place;
    if (l->nodes || l->softverbs)
        return cli_usage("up", "--here starts one node: leave out -n and --softverbs");
    if (standing_find(&place, u->cluster, true) || standing_lock(&place) < 0)
        return cli_error("up", "%s", base_error());
    if (l->hostfile)
        setenv("WEFT_HOSTFILE", l->hostfile, 1);
    if (l->pool)
        setenv("WEFT_POOL", l->pool, 1);
    return standing_node(&place, u->metrics, true);
}

static int up_as_node(struct up *u)
{
    struct standing_place place;
    if (!getenv("WEFT_RANK") || !getenv("WEFT_SIZE"))
        return cli_usage("up", "only the launcher may use --as-node");
    if (u->cluster && standing_find(&place, u->cluster, false))
        return cli_error("up", "%s", base_error());
    return standing_node(u->cluster ? &place : NULL, u->metrics, false);
}

/* A standing cluster has the nodes that it began with. */
static int up_refuse_growth(void)
{
    static const char *const names[] = {"WEFT_GROW", "WEFT_JOIN"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        if (value && value[0])
            return cli_error("up", "%s='%.200s': no node can join a standing cluster after its start: unset %s", names[i], value, names[i]);
    }
    return 0;
}

int cli_up(int argc, char **argv)
{
    static const struct option longs[] = {{"nodes", required_argument, NULL, 'n'},
                                          {"hostfile", required_argument, NULL, 'H'},
                                          {"cluster", required_argument, NULL, 'C'},
                                          {"foreground", no_argument, NULL, 'F'},
                                          {"here", no_argument, NULL, 'O'},
                                          {"as-node", no_argument, NULL, 'A'},
                                          {"metrics", required_argument, NULL, 'M'},
                                          {"allow", required_argument, NULL, 'L'},
                                          {"deny", required_argument, NULL, 'D'},
                                          {"pool", required_argument, NULL, 'P'},
                                          {"remote-weft", required_argument, NULL, 'W'},
                                          {"softverbs", required_argument, NULL, 'S'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    struct launch l = {.sub = "up"};
    struct up u = {.cluster = NULL};
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
        return cli_usage("up", "unexpected '%s'", argv[optind]);
    if ((status = up_refuse_growth()))
        return status;
    return u.as_node ? up_as_node(&u) : u.here ? up_here(&u, &l) : up_start(&u, &l);
}

/* --- weft down --- */

static const char down_help[] = "Usage: weft down [--cluster NAME]\n"
                                "\n"
                                "Ends a standing cluster: its jobs are killed, its nodes leave. Returns when they have.\n"
                                "\n"
                                "      --cluster NAME     the cluster's name on this host (WEFT_CLUSTER, else \"default\")\n"
                                "  -h, --help             this text\n"
                                "\n"
                                "Exit status: 0; 1 if there is no such cluster, or it does not end; 2 if the command line is wrong.\n";

int cli_down(int argc, char **argv)
{
    static const struct option longs[] = {{"cluster", required_argument, NULL, 'C'}, {"help", no_argument, NULL, 'h'}, {0}};
    const char *cluster = NULL;
    struct standing_place place;
    char *text = NULL;
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
        return cli_usage("down", "unexpected '%s'", argv[optind]);
    struct control_request r = {.head = {.what = CONTROL_DOWN}};
    int fd = standing_ask("down", cluster, &r);
    if (fd < 0)
        return CLI_FAILED;
    int status = standing_text("down", fd, &text);
    free(text);
    close(fd);
    if (status)
        return status;
    if (standing_find(&place, cluster, false))
        return cli_error("down", "%s", base_error());
    for (int64_t deadline = base_deadline(DOWN_NS); standing_locked(&place); base_sleep_ns(LOOK_NS))
        if (base_now_ns() > deadline)
            return cli_error("down", "cluster '%s' did not end within %d s: see its log, %s", place.name, (int)(DOWN_NS / WEFT_SECOND),
                             place.log);
    return 0;
}
