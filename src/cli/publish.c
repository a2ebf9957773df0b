/* SPDX-License-Identifier: MIT
 *
 * weft publish: makes a server on a host without network reachable at a port of another host, the gateway. The control node, a node of the
 * standing cluster on this host, asks the gateway to listen, and moves the bytes of all connections (publish_serve.c).
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/forward.h"
#include "cli/launch.h"
#include "cli/standing.h"

static const char help[] =
    "Usage: weft publish [OPTIONS] [ADDRESS:]PORT\n"
    "       weft publish --end [ADDRESS:]PORT [--cluster NAME]\n"
    "\n"
    "Makes a server of this host reachable at a port of another host of a standing cluster (`weft up`). The other host, the\n"
    "gateway, listens at PORT; whoever connects there talks to the server at the same port of this host. The command prints\n"
    "the gateway's address, and runs until a signal comes or the cluster ends. `weft status` shows the published ports.\n"
    "Without ADDRESS the gateway listens at all its addresses. PORT 0 means any free port.\n"
    "\n"
    "      --via HOST         the gateway: the name of a host or the number of a node, as `weft status` prints them; default:\n"
    "                         the first other node\n"
    "      --to HOST:PORT     the server is at PORT of the loopback address of HOST; an empty HOST is this host. If HOST is\n"
    "                         another host, the default gateway is this host\n"
    "      --to HOST:/PATH    the server is at a Unix socket of HOST\n"
    "      --keep             return at once; the port stays published until --end, or until the gateway or the cluster ends\n"
    "      --end              end a port that was published with --keep\n"
    "      --cluster NAME     the name of the cluster; default: the value of WEFT_CLUSTER, or \"default\"\n"
    "  -h, --help             print this text\n"
    "\n"
    "Exit status: 0; 1 for a failure; 2 for a wrong command line.\n"
    "\n"
    "  weft publish 8080                        port 8080 of the gateway leads to port 8080 of this host\n"
    "  weft publish --to :22 --keep 2222        then: ssh -p 2222 GATEWAY\n"
    "  weft publish --to node3:/run/app.sock 127.0.0.1:8000\n";

struct publish_options {
    const char *via, *to, *cluster;
    bool keep, end;
};

static int publish(const struct publish_options *o, const char *at)
{
    const char *hosts[] = {o->via, NULL}, *words[] = {at, o->to ? o->to : "", NULL};
    struct control_request r = {
        .head = {.what = CONTROL_PUBLISH, .flags = o->keep ? CONTROL_DETACHED : 0}, .hosts = hosts, .arguments = words};
    char host[64], address[FORWARD_ADDRESS] = "";
    uint32_t node;
    cli_catch_signals();
    int control = forward_ask("publish", o->cluster, &r, NULL, 0, host, &node, address);
    if (control < 0)
        return CLI_FAILED;
    int status = o->keep ? forward_kept("publish", control) : 0;
    if (!status) {
        fprintf(stderr, "weft publish: node %u (%s) listens at %s\n", node, host, address);
        printf("%s\n", address);
        status = cli_flush("publish");
    }
    if (!status && !o->keep)
        status = forward_stay("publish", control);
    close(control);
    return status;
}

static bool is_target(const char *to)
{
    const char *colon = strchr(to, ':');
    int64_t port;
    return colon && colon - to <= (int)FORWARD_WORD_MAX &&
           (colon[1] == '/' ? strlen(colon + 1) <= 103 : base_parse_number(colon + 1, 1, 65535, &port) == 0);
}

int cli_publish(int argc, char **argv)
{
    static const struct option longs[] = {{"via", required_argument, NULL, 'V'},
                                          {"to", required_argument, NULL, 'T'},
                                          {"cluster", required_argument, NULL, 'C'},
                                          {"keep", no_argument, NULL, 'k'},
                                          {"end", no_argument, NULL, 'e'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    struct publish_options o = {.via = NULL};
    char host[FORWARD_WORD_MAX + 1];
    uint32_t port;
    bool started = false;
    int c;
    while ((c = cli_option("publish", argc, argv, "h", longs, &started)) != -1)
        switch (c) {
        case 'V': o.via = optarg; break;
        case 'C': o.cluster = optarg; break;
        case 'k': o.keep = true; break;
        case 'e': o.end = true; break;
        case 'T':
            if (!is_target(optarg))
                return cli_usage("publish", "--to '%s' is not valid: write HOST:PORT, or HOST:/PATH with a path of at most 103 bytes",
                                 optarg);
            o.to = optarg;
            break;
        case 'h': fputs(help, stdout); return cli_flush("publish");
        default: return CLI_USAGE;
        }
    if (optind + 1 != argc)
        return cli_usage("publish",
                         argc > optind ? "unexpected argument '%s'"
                         : o.end       ? "no port: give the published port, as `weft status` shows it"
                                       : "no port: give the port at which the gateway must listen",
                         argv[argc - 1]);
    if (o.end && (o.via || o.to || o.keep))
        return cli_usage("publish", "--end cannot be used with --via, --to or --keep: leave these out");
    if (forward_parse(argv[optind], host, &port))
        return cli_usage("publish", "%s", base_error());
    return o.end ? forward_end("publish", o.cluster, CONTROL_PUBLISH, argv[optind]) : publish(&o, argv[optind]);
}
