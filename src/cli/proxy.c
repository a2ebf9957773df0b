/* SPDX-License-Identifier: MIT
 *
 * weft proxy: lets programs of a host without network use the network of another node's host. This command makes the listening socket and
 * passes it to the control node, which serves the clients (proxy_serve.c). So programs in a network namespace of their own can use it, too.
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
#define LOOK_MS   100 /* between two looks at the command's process, where the system does not report its end */

static const char help[] =
    "Usage: weft proxy [OPTIONS] [-- COMMAND [ARGUMENT...]]\n"
    "\n"
    "Lets programs of this host use the network of another host of a standing cluster (`weft up`): a proxy for SOCKS5 and HTTP,\n"
    "whose connections another node, the gateway, makes. That node also resolves the names. With COMMAND: runs it with the\n"
    "variables http_proxy, https_proxy, all_proxy and no_proxy set, and ends with it. Else it prints the address and stays\n"
    "until a signal or the cluster's end. `weft status` shows the proxies of this host.\n"
    "\n"
    "      --via HOST         the gateway: a host, as `weft status` names it, or the number of a node; else the first other node\n"
    "      --listen ADDRESS   where the proxy listens: 127.0.0.1:1080; with COMMAND any free port of 127.0.0.1\n"
    "      --auth FILE        ask clients for the user and the password in FILE, which has USER:PASSWORD as its first line\n"
    "      --keep             do not stay: the proxy stays until --end or the cluster's end\n"
    "      --end ADDRESS      end a proxy of --keep, which listens at ADDRESS or at this port\n"
    "      --cluster NAME     the cluster's name on this host (WEFT_CLUSTER, else \"default\")\n"
    "  -h, --help             this text\n"
    "\n"
    "Whom the gateway connects to is said by its rules: `weft up --allow`, `weft up --deny`.\n"
    "\n"
    "Exit status: 0; 1 for a failure; 2 for a wrong command line. With COMMAND: that of COMMAND, 128 + N if signal N ended it;\n"
    "127 if it is not found, 126 if it cannot be executed, 255 if weft itself failed.\n"
    "\n"
    "  weft proxy -- curl https://example.com/\n"
    "  weft proxy --via node1 --listen 127.0.0.1:1080\n";

struct proxy_options {
    const char *via, *listen, *cluster;
    bool keep;
    char **command; /* NULL: none */
    char auth[2 * FORWARD_WORD_MAX + 4];
    const char *user, *password; /* NULL: none */
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
    fclose(f);
    o->auth[n] = '\0';
    o->auth[strcspn(o->auth, "\r\n")] = '\0';
    char *colon = strchr(o->auth, ':');
    if (!colon || colon == o->auth || colon - o->auth > (int)FORWARD_WORD_MAX || strlen(colon + 1) > FORWARD_WORD_MAX || !colon[1])
        return cli_error("proxy", "--auth %s: expected USER:PASSWORD as the first line, each of 1 to %u bytes", path, FORWARD_WORD_MAX);
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
    const char *set = getenv("no_proxy") ? getenv("no_proxy") : getenv("NO_PROXY");
    char none[1024];
    snprintf(none, sizeof none, "%s", set ? set : "localhost,127.0.0.1,::1");
    setenv("no_proxy", none, 1);
    setenv("NO_PROXY", none, 1);
}

static volatile sig_atomic_t child;

/* Ctrl-C reaches the command by itself; what is sent to this process alone is passed on. */
static void on_signal(int number)
{
    if (child > 0 && number != SIGINT && number != SIGQUIT)
        kill((pid_t)child, number);
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
        cli_error("proxy", "%s: %s", o->command[0], base_strerror(rc));
        return rc == -ENOENT ? LAUNCH_NOT_FOUND : LAUNCH_NOT_USABLE;
    }
    child = pid;
    int watch = base_watch_process(pid);
    struct pollfd p[2] = {{.fd = watch, .events = POLLIN}, {.fd = control, .events = POLLIN}};
    while (!base_process_ended(pid, NULL)) {
        if (poll(p, 2, watch >= 0 ? 1000 : LOOK_MS) > 0 && p[1].revents) {
            forward_print_end("proxy", control);
            p[1].fd = -1; /* the command goes on, without a network */
        }
    }
    child = 0;
    if (watch >= 0)
        close(watch);
    return base_process_status(base_process_reap(pid));
}

/* A socket of UDP at the listener's address: at the same port, if it is free. -1: none, and SOCKS5 has no datagrams. */
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
    if (!o->user && strncmp(bound, "127.", 4) != 0 && strncmp(bound, "[::1]", 5) != 0)
        fprintf(stderr, "weft proxy: warning: whoever reaches %s can use the network of the gateway: --auth FILE asks for a password\n",
                bound);
    signal(SIGPIPE, SIG_IGN);
    if (!o->command)
        cli_catch_signals();
    const char *hosts[] = {o->via, NULL}, *words[] = {o->user, o->password, NULL};
    struct control_request r = {
        .head = {.what = CONTROL_PROXY, .flags = o->keep ? CONTROL_DETACHED : 0}, .hosts = hosts, .arguments = words};
    int passed[2] = {listener, datagrams_beside(listener)};
    int control = forward_ask("proxy", o->cluster, &r, passed, passed[1] < 0 ? 1 : 2, host, &node, NULL);
    close(listener); /* the control node has it now */
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
                return cli_usage("proxy", "--listen '%s': expected ADDRESS:PORT, as in " LISTEN_AT, optarg);
            o.listen = optarg;
            break;
        case 'k': o.keep = true; break;
        case 'e': end = optarg; break;
        case 'h': fputs(help, stdout); return cli_flush("proxy");
        default: return CLI_USAGE;
        }
    if (optind < argc && strcmp(argv[optind - 1], "--") != 0)
        return cli_usage("proxy", "unexpected '%s': give a command after --", argv[optind]);
    o.command = optind < argc ? argv + optind : NULL;
    if (o.keep && o.command)
        return cli_usage("proxy", "--keep is for a proxy without a command");
    if (end)
        return o.command || o.keep || o.via || o.listen || auth ? cli_usage("proxy", "--end excludes all but --cluster")
                                                                : forward_end("proxy", o.cluster, CONTROL_PROXY, end);
    if (auth && read_auth(&o, auth))
        return proxy_failed(&o);
    return proxy_begin(&o);
}
