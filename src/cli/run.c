/* SPDX-License-Identifier: MIT
 *
 * weft run: the command line of the launcher, and the check that every host of the hostfile is this machine.
 */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/launch.h"
#include "cluster/cluster.h"

static const char help[] =
    "Usage: weft run -n N [OPTIONS] [--] PROGRAM [ARGUMENT...]\n"
    "\n"
    "Starts PROGRAM N times on this machine, as the nodes of one cluster: weft_open() in it joins them. Ends when all\n"
    "have ended, and leaves nothing behind, also when it is itself killed.\n"
    "\n"
    "  -n, --nodes N          how many nodes, 1 to 1024; needed without a hostfile\n"
    "      --hostfile FILE    the cluster's hosts and settings; for now all hosts must be this machine\n"
    "      --pool SIZE        each node's pool, as in 1G (sets WEFT_POOL)\n"
    "  -t, --tag              put \"[K] \" before each line of node K's output\n"
    "      --timeout TIME     end all nodes after this time: 10 (seconds), 500ms, 2m\n"
    "  -k, --kill-on-failure  when a node fails, end the others; else they go on\n"
    "  -h, --help             this text\n"
    "\n"
    "Node 0 reads our standard input unless that is a terminal; the others read nothing. SIGINT, SIGTERM and SIGHUP\n"
    "are passed to all nodes; a second one (Ctrl-C twice), or 5 seconds, kills them.\n"
    "\n"
    "Exit status: that of the first node that failed (128 + signal when it was killed), else 0; 124 after --timeout;\n"
    "127 PROGRAM not found, 126 not usable; 2 wrong command line; 1 another failure of our own.\n"
    "\n"
    "  weft run -n 4 -- ./program        four nodes\n"
    "  weft run -n 4 -t -- hostname      see which node says what\n";

static bool is_own_address(const char *text)
{
    struct in6_addr wanted;
    char bare[INET6_ADDRSTRLEN + 1];
    size_t n = strcspn(text, "%"); /* fe80::1%en1: without the interface */
    struct ifaddrs *list;
    bool found = false;
    if (strcasecmp(text, "localhost") == 0)
        return true;
    if (n >= sizeof bare)
        return false;
    memcpy(bare, text, n);
    bare[n] = '\0';
    int family = strchr(bare, ':') ? AF_INET6 : AF_INET;
    if (inet_pton(family, bare, &wanted) != 1 || getifaddrs(&list))
        return false;
    for (struct ifaddrs *i = list; i && !found; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != family)
            continue;
        if (family == AF_INET)
            found = memcmp(&((struct sockaddr_in *)i->ifa_addr)->sin_addr, &wanted, sizeof(struct in_addr)) == 0;
        else
            found = memcmp(&((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr, &wanted, sizeof wanted) == 0;
    }
    freeifaddrs(list);
    return found;
}

/* An entry with only devices is this machine; else one of its names or addresses must be ours. */
static bool is_here(const struct cluster_host *h)
{
    char name[256] = "";
    if (!h->ssh && h->ip_count == 0)
        return true;
    gethostname(name, sizeof name - 1);
    const char *at = h->ssh ? strchr(h->ssh, '@') : NULL;
    const char *ssh = at ? at + 1 : h->ssh;
    if (ssh && (strcasecmp(ssh, name) == 0 || is_own_address(ssh)))
        return true;
    for (uint32_t i = 0; i < h->ip_count; i++)
        if (is_own_address(h->ips[i]) || strcasecmp(h->ips[i], name) == 0)
            return true;
    return false;
}

static bool is_set(const char *variable)
{
    const char *value = getenv(variable);
    return value && value[0];
}

/* What the hostfile says: the number of nodes, and whether it names a secret. */
static int apply_hostfile(struct launch *l, const char *path)
{
    struct cluster_hostfile *h;
    int status = 0;
    if (cluster_hostfile_read(&h, path))
        return cli_error("run", "%s", base_error());
    for (uint32_t i = 0; i < h->count && !status; i++) {
        const struct cluster_host *host = &h->hosts[i];
        if (!is_here(host))
            status = cli_error("run",
                               "hostfile %s: node %u's host (%s) is not this machine: starting nodes on other machines "
                               "comes later; until then start the program there yourself, with WEFT_RANK, WEFT_SIZE "
                               "and WEFT_COORD set",
                               path, i, host->ssh ? host->ssh : host->ips[0]);
    }
    if (!status && l->nodes && l->nodes != h->count)
        status = cli_usage("run", "-n says %u nodes, hostfile %s has %u: leave out -n", l->nodes, path, h->count);
    for (uint32_t i = 0; i < h->setting_count; i++)
        if (strcmp(h->settings[i].name, "secret_file") == 0)
            l->make_secret = false;
    l->nodes = h->count;
    cluster_hostfile_free(h);
    return status;
}

static int parse_nodes(const char *text, uint32_t *out)
{
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (errno || end == text || *end || n < 1 || n > (long)WEFT_MAX_NODES)
        return cli_usage("run", "-n '%s': expected a number of nodes from 1 to %u", text, WEFT_MAX_NODES);
    *out = (uint32_t)n;
    return 0;
}

static int parse_options(int argc, char **argv, struct launch *l, bool *done)
{
    static const struct option longs[] = {{"nodes", required_argument, NULL, 'n'},
                                          {"hostfile", required_argument, NULL, 'H'},
                                          {"pool", required_argument, NULL, 'P'},
                                          {"tag", no_argument, NULL, 't'},
                                          {"timeout", required_argument, NULL, 'T'},
                                          {"kill-on-failure", no_argument, NULL, 'k'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    bool started = false;
    int c, status;
    while ((c = cli_option("run", argc, argv, "n:tkh", longs, &started)) != -1) {
        switch (c) {
        case 'n':
            if ((status = parse_nodes(optarg, &l->nodes)))
                return status;
            break;
        case 'H': l->hostfile = optarg; break;
        case 'P':
            if (cluster_pool_check(optarg) || strlen(optarg) > 40)
                return cli_usage("run", "--pool '%s': expected a size from 1M to 16T, as in 256M or 1.5G", optarg);
            l->pool = optarg;
            break;
        case 't': l->tag = true; break;
        case 'T':
            if (base_parse_duration(optarg, &l->timeout_ns))
                return cli_usage("run", "--timeout: %s", base_error());
            if (l->timeout_ns == 0)
                return cli_usage("run", "--timeout '%s': expected more than nothing", optarg);
            break;
        case 'k': l->kill_on_failure = true; break;
        case 'h': fputs(help, stdout); *done = true; return cli_flush("run");
        default: return CLI_USAGE;
        }
    }
    return 0;
}

int cli_run(int argc, char **argv)
{
    struct launch l = {.who = "weft run"};
    bool done = false;
    int status = parse_options(argc, argv, &l, &done);
    if (status || done)
        return status;
    if (cluster_secret_check()) /* else a new secret would take the place of the one that is missing */
        return cli_error("run", "%s", base_error());
    l.make_secret = !is_set("WEFT_SECRET") && !is_set("WEFT_SECRET_FILE");
    const char *hostfile = l.hostfile ? l.hostfile : is_set("WEFT_HOSTFILE") ? getenv("WEFT_HOSTFILE") : NULL;
    if (hostfile && (status = apply_hostfile(&l, hostfile)))
        return status;
    if (!l.nodes)
        return cli_usage("run", "how many nodes? give -n N, or --hostfile FILE");
    if (optind >= argc)
        return cli_usage("run", "which program? give it after the options");
    l.argv = argv + optind;
    return launch_cluster(&l);
}
