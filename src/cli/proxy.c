/* SPDX-License-Identifier: MIT
 *
 * weft proxy: lets programs on a host without network use the network of another host. This command makes the listening socket, so that the
 * proxy also works inside a network namespace. The control node, a node of the standing cluster on this host, serves the clients
 * (proxy_serve.c).
 */
#include "cli/forward.h"

#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process.h"
#include "cli/command.h"
#include "cli/launch.h"
#include "cli/standing.h"
#include "cluster/cluster.h"

#define LISTEN_AT "127.0.0.1:1080"
#define LOOK_MS   100 /* on systems that do not report the end of the command's process: how often to check it */

static const char help[] =
    "Usage: weft proxy [OPTIONS] [-- COMMAND [ARGUMENT...]]\n"
    "\n"
    "Lets programs on this host use the network of another host of a standing cluster (`weft up`). Starts a proxy for SOCKS5\n"
    "and HTTP on this host. The other host, the gateway, resolves the names and makes the connections.\n"
    "\n"
    "With COMMAND: runs COMMAND with the variables http_proxy, https_proxy, all_proxy and no_proxy set; the proxy ends with\n"
    "COMMAND. Without COMMAND: prints the proxy's address; the proxy runs until a signal comes or the cluster ends.\n"
    "`weft status` shows the proxies of this host.\n"
    "\n"
    "      --via HOST         the gateway: the name of a host or the number of a node, as `weft status` prints them; default:\n"
    "                         the first other node\n"
    "      --listen ADDRESS   where the proxy listens; default: 127.0.0.1:1080, or with COMMAND a free port of 127.0.0.1\n"
    "      --auth FILE        clients must give a user and a password; the first line of FILE is USER:PASSWORD\n"
    "      --keep             return at once; the proxy runs until --end or until the cluster ends\n"
    "      --end ADDRESS      end a proxy that was started with --keep; ADDRESS is its address and port, or only its port\n"
    "      --cluster NAME     the name of the cluster; default: the value of WEFT_CLUSTER, or \"default\"\n"
    "  -h, --help             print this text\n"
    "\n"
    "Rules decide which addresses can be reached through the gateway: see `weft up --allow` and `weft up --deny`.\n"
    "\n"
    "Exit status: 0; 1 for a failure; 2 for a wrong command line. With COMMAND: that of COMMAND, or 128 + N if signal N ended\n"
    "it; 127 if COMMAND is not found, 126 if it cannot be executed, 255 if weft itself failed.\n"
    "\n"
    "  weft proxy -- curl https://example.com/\n"
    "  weft proxy --via node1 --listen 127.0.0.1:1080\n";

struct proxy_options {
    const char *via, *listen, *cluster;
    bool keep;
    char **command; /* NULL: no command */
    char auth[2 * FORWARD_WORD_MAX + 4];
    const char *user, *password; /* NULL: clients need no password */
};

static int proxy_failed(const struct proxy_options *o)
{
    return o->command ? 255 : CLI_FAILED;
}

/* Reads USER:PASSWORD. Returns 0, or the exit status after an error was printed. */
static int read_auth(struct proxy_options *o, const char *path)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return cli_error("proxy", "--auth %s: %s", path, base_strerror(errno));
    size_t n = fread(o->auth, 1, sizeof o->auth - 1, f);
    int failed = ferror(f) ? errno : 0;
    fclose(f);
    if (failed)
        return cli_error("proxy", "--auth %s: %s", path, base_strerror(failed));
    o->auth[n] = '\0';
    o->auth[strcspn(o->auth, "\r\n")] = '\0';
    char *colon = strchr(o->auth, ':');
    if (!colon || colon == o->auth || colon - o->auth > (int)FORWARD_WORD_MAX || strlen(colon + 1) > FORWARD_WORD_MAX || !colon[1])
        return cli_error("proxy", "--auth %s: the first line must be USER:PASSWORD, each of 1 to %u bytes", path, FORWARD_WORD_MAX);
    *colon = '\0';
    o->user = o->auth;
    o->password = colon + 1;
    return 0;
}

/* --- the command --- */

static void put_escaped(char *to, size_t room, const char *text)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    size_t n = strlen(to);
    for (; *text && n + 4 < room; text++)
        if (strchr(plain, *text))
            to[n++] = *text;
        else
            n += (size_t)snprintf(to + n, room - n, "%%%02X", (unsigned char)*text);
    to[n] = '\0';
}

static void set_variables(const struct proxy_options *o, const char *address)
{
    static const char *const names[] = {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"};
    char url[6 * FORWARD_WORD_MAX + 64 + 160];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(url, sizeof url, "%s", i < 4 ? "http://" : "socks5h://");
        if (o->user) {
            put_escaped(url, sizeof url, o->user);
            strcat(url, ":");
            put_escaped(url, sizeof url, o->password);
            strcat(url, "@");
        }
        strncat(url, address, sizeof url - strlen(url) - 1);
        setenv(names[i], url, 1);
    }
    if (!getenv("no_proxy"))
        setenv("no_proxy", getenv("NO_PROXY") ? getenv("NO_PROXY") : "localhost,127.0.0.1,::1", 1);
    setenv("NO_PROXY", getenv("no_proxy"), 1);
}

static volatile sig_atomic_t child, early; /* early: the signal that arrived before the command was started; 0: no signal */

/* Passes signals on to the command. SIGINT and SIGQUIT of the terminal are not passed on, because the command gets them from the terminal.
 */
static void on_signal(int number)
{
    if (child > 0 && number != SIGINT && number != SIGQUIT)
        kill((pid_t)child, number);
    else if (!child)
        early = number;
}

static void catch_signals(struct base_dispositions *before)
{
    static const int numbers[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP};
    struct sigaction a = {.sa_handler = on_signal};
    sigfillset(&a.sa_mask);
    before->count = sizeof numbers / sizeof numbers[0];
    for (unsigned i = 0; i < before->count; i++) {
        before->number[i] = numbers[i];
        sigaction(numbers[i], NULL, &before->action[i]);
        if (before->action[i].sa_handler != SIG_IGN)
            sigaction(numbers[i], &a, NULL);
    }
}

static int run_command(const struct proxy_options *o, int control)
{
    char path[4096];
    struct base_dispositions before = {.count = 0};
    pid_t pid;
    int rc = base_process_find(o->command[0], path, sizeof path);
    if (!rc) {
        catch_signals(&before);
        rc = base_process_start(&(struct base_process){.path = path, .argv = o->command, .dispositions = &before}, &pid, NULL);
    }
    if (rc) {
        cli_error("proxy", "cannot start %s: %s", o->command[0], base_strerror(rc));
        return rc == -ENOENT ? LAUNCH_NOT_FOUND : LAUNCH_NOT_USABLE;
    }
    child = pid;
    if (early) /* pass on SIGINT, too: the terminal may have sent it before there was a command */
        kill(pid, early);
    int watch = base_watch_process(pid);
    struct pollfd p[2] = {{.fd = watch, .events = POLLIN}, {.fd = control, .events = POLLIN}};
    int64_t silent_ns = 0;
    while (!base_process_ended(pid, NULL)) {
        int64_t began = base_now_ns();
        bool readable = poll(p, 2, watch >= 0 ? FORWARD_LISTEN_MS : LOOK_MS) > 0 && p[1].revents;
        if (p[1].fd >= 0 && !forward_hears("proxy", control, readable, base_now_ns() - began, &silent_ns))
            p[1].fd = -1; /* the command still runs, without a proxy */
    }
    child = -1;
    if (watch >= 0)
        close(watch);
    return base_process_status(base_process_reap(pid));
}

static bool is_loopback(int listener)
{
    char host[64];
    return cluster_socket_host(listener, false, host, sizeof host) == 0 && (strncmp(host, "127.", 4) == 0 || strcmp(host, "[::1]") == 0);
}

/* Makes a UDP socket at the listener's address, if possible at the same port. Returns -1 if there is no socket; then the proxy offers no
 * datagrams. */
static int datagrams_beside(int listener)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    if (getsockname(listener, (struct sockaddr *)&a, &len))
        return -1;
    int fd = socket(a.ss_family, SOCK_DGRAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, len) == 0)
        return fd;
    if (a.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&a)->sin6_port = 0;
    else
        ((struct sockaddr_in *)&a)->sin_port = 0;
    if (bind(fd, (struct sockaddr *)&a, len) == 0)
        return fd;
    close(fd);
    return -1;
}

static int proxy_begin(struct proxy_options *o)
{
    char bound[160], host[64] = "";
    uint32_t node = 0;
    const char *at = o->listen ? o->listen : o->command ? "127.0.0.1:0" : LISTEN_AT;
    int listener = cluster_listen(at, bound, sizeof bound);
    if (listener < 0) {
        cli_error("proxy", "--listen %s: %s", at, base_error());
        return proxy_failed(o);
    }
    if (!o->user && !is_loopback(listener))
        fprintf(stderr,
                "weft proxy: warning: everybody who can connect to %s can use the gateway's network; set a password with --auth FILE\n",
                bound);
    signal(SIGPIPE, SIG_IGN);
    if (!o->command)
        cli_catch_signals();
    const char *hosts[] = {o->via, NULL}, *words[] = {o->user, o->password, NULL};
    struct control_request r = {
        .head = {.what = CONTROL_PROXY, .flags = o->keep ? CONTROL_DETACHED : 0}, .hosts = hosts, .arguments = words};
    int passed[2] = {listener, datagrams_beside(listener)};
    int control = forward_ask("proxy", o->cluster, &r, passed, passed[1] < 0 ? 1 : 2, host, &node, NULL);
    close(listener); /* the control node has a duplicate of the descriptor */
    if (passed[1] >= 0)
        close(passed[1]);
    if (control < 0)
        return proxy_failed(o);
    int status;
    if (o->command) {
        set_variables(o, bound);
        signal(SIGPIPE, SIG_DFL);
        status = run_command(o, control);
    } else {
        status = o->keep ? forward_kept("proxy", control) : 0;
        if (!status) {
            fprintf(stderr, "weft proxy: SOCKS5 and HTTP at %s, through node %u (%s)\n", bound, node, host);
            printf("%s\n", bound);
            status = cli_flush("proxy");
        }
        if (!status && !o->keep)
            status = forward_stay("proxy", control);
    }
    close(control);
    return status;
}

int cli_proxy(int argc, char **argv)
{
    static const struct option longs[] = {{"via", required_argument, NULL, 'V'},  {"listen", required_argument, NULL, 'L'},
                                          {"auth", required_argument, NULL, 'A'}, {"cluster", required_argument, NULL, 'C'},
                                          {"keep", no_argument, NULL, 'k'},       {"end", required_argument, NULL, 'e'},
                                          {"help", no_argument, NULL, 'h'},       {0}};
    struct proxy_options o = {.via = NULL};
    const char *auth = NULL, *end = NULL;
    bool started = false;
    int c;
    while ((c = cli_option("proxy", argc, argv, "+h", longs, &started)) != -1)
        switch (c) {
        case 'V': o.via = optarg; break;
        case 'A': auth = optarg; break;
        case 'C': o.cluster = optarg; break;
        case 'L':
            if (cluster_address_check(optarg) || strncmp(optarg, "unix:", 5) == 0)
                return cli_usage("proxy", "--listen '%s' is not valid: write ADDRESS:PORT, as in " LISTEN_AT, optarg);
            o.listen = optarg;
            break;
        case 'k': o.keep = true; break;
        case 'e': end = optarg; break;
        case 'h': fputs(help, stdout); return cli_flush("proxy");
        default: return CLI_USAGE;
        }
    if (optind < argc && strcmp(argv[optind - 1], "--") != 0)
        return cli_usage("proxy", "unexpected argument '%s': write -- before a command", argv[optind]);
    if (optind == argc && strcmp(argv[argc - 1], "--") == 0)
        return cli_usage("proxy", "no command after --: give one, or leave out the --");
    o.command = optind < argc ? argv + optind : NULL;
    if (o.keep && o.command)
        return cli_usage("proxy",
                         "--keep cannot be used with a command, because the proxy ends with the command: leave out one of the two");
    if (end)
        return o.command || o.keep || o.via || o.listen || auth ? cli_usage("proxy", "with --end, only --cluster is possible")
                                                                : forward_end("proxy", o.cluster, CONTROL_PROXY, end);
    if (auth && read_auth(&o, auth))
        return proxy_failed(&o);
    return proxy_begin(&o);
}
