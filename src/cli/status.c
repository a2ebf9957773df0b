/* SPDX-License-Identifier: MIT
 *
 * weft status.
 */
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/standing.h"

/* An answer may have the cluster's secret, so its text is wiped before it is freed. */
static void forget_text(char *text, size_t len)
{
    if (text)
        sodium_memzero(text, len);
    free(text);
}

static bool grow_text(char **text, size_t *room, size_t len, size_t more)
{
    size_t larger = 2 * (len + more + 1);
    char *new = malloc(larger);
    if (!new)
        return false;
    memcpy(new, *text, len);
    forget_text(*text, len);
    *text = new;
    *room = larger;
    return true;
}

/* Read the texts of an answer. Returns 0, or the exit status after an error was printed; -1: the control node has ended. */
static int read_text(const char *sub, int fd, char **out)
{
    struct control_frame f = {0};
    size_t len = 0, room = 1;
    char *payload = malloc(CONTROL_PIECE_MAX + 1), *text = calloc(1, 1);
    int status = payload && text ? 0 : cli_error(sub, "no memory for the answer of the cluster" BASE_MEMORY_HINT);
    while (!status) {
        int rc = standing_answer(fd, &f, payload, base_deadline(CONTROL_SILENT_NS));
        if (rc == -ETIMEDOUT)
            status = cli_error(sub, "%s", CONTROL_SILENT);
        else if (rc)
            status =
                rc == -ECONNRESET
                    ? -1
                    : cli_error(sub,
                                "the answer of the cluster's node on this host is invalid (%s); run the same version of weft on all hosts",
                                base_strerror(rc));
        else if (f.type == CONTROL_ERROR)
            status = cli_error(sub, "%s", payload);
        if (status || f.type != CONTROL_TEXT)
            break;
        if (len + f.bytes >= room && !grow_text(&text, &room, len, f.bytes)) {
            status = cli_error(sub, "no memory for the answer of the cluster" BASE_MEMORY_HINT);
            break;
        }
        memcpy(text + len, payload, f.bytes + 1);
        len += f.bytes;
    }
    if (payload)
        sodium_memzero(payload, CONTROL_PIECE_MAX + 1);
    free(payload);
    if (status) {
        forget_text(text, len);
        text = NULL;
    }
    *out = text;
    return status;
}

int standing_text(const char *sub, const char *cluster, struct control_request *r, char **out)
{
    int status = -1;
    *out = NULL;
    for (int tries = 0; status < 0 && tries < CONTROL_TRIES; tries++) {
        int fd = standing_ask(sub, cluster, r);
        if (fd < 0)
            return CLI_FAILED;
        status = read_text(sub, fd, out);
        close(fd);
    }
    return status < 0 ? cli_error(sub, "each node of the cluster that was asked on this host ended before it answered: see `weft logs`")
                      : status;
}

/* --- weft status --- */

#define LINKS_MAX 400 /* if there are more links (more than 20 nodes), only links with something wrong are printed one by one */

static const char status_help[] =
    "Usage: weft status [--cluster NAME] [--json | --metrics | --memory] [--watch]\n"
    "\n"
    "Shows a standing cluster (`weft up`): its nodes with their hosts, memory, services and RDMA devices, the links between\n"
    "the nodes, the proxies and published ports of this host, and the number of jobs. A node is the process of weft on a host.\n"
    "What is shown is at most two seconds old; the state of the devices is at most ten seconds old.\n"
    "\n"
    "      --cluster NAME     the name of the cluster; default: the value of WEFT_CLUSTER, or \"default\"\n"
    "      --json             print everything as JSON\n"
    "      --metrics          print the numbers in the text format of Prometheus\n"
    "      --memory           show what the memory of each node is used for, instead of devices and links\n"
    "      --watch            show the status again every second, until a signal\n"
    "  -h, --help             print this text\n"
    "\n"
    "Exit status: 0; 1 if the cluster is not up; 2 if the command line is wrong.\n";

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text && text[0] ? text : "-";
}

static uint64_t number_of(const json_t *o, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(o, key));
}

static struct cli_table *nodes_table(const json_t *list)
{
    static const struct cli_column columns[] = {{"node", true}, {"host", false},  {"place", true},     {"state", false},  {"pid", true},
                                                {"pool", true}, {"in use", true}, {"services", false}, {"devices", false}};
    struct cli_table *t = cli_table_new(columns, 9);
    size_t i, k;
    json_t *o, *x;
    json_array_foreach (list, i, o) {
        char number[16], place[16], pid[16], pool[32], live[32], services[128] = "", devices[512] = "";
        size_t at = 0;
        snprintf(number, sizeof number, "%u", (unsigned)number_of(o, "node"));
        snprintf(place, sizeof place, "%u", (unsigned)number_of(o, "place"));
        snprintf(pid, sizeof pid, "%u", (unsigned)number_of(o, "pid"));
        json_array_foreach (json_object_get(o, "services"), k, x)
            at += (size_t)snprintf(services + at, at < sizeof services ? sizeof services - at : 0, "%s%s", k ? "," : "",
                                   json_string_value(x));
        at = 0;
        json_array_foreach (json_object_get(o, "devices"), k, x) {
            bool usable = json_is_true(json_object_get(x, "usable"));
            if (at < sizeof devices)
                at += (size_t)snprintf(devices + at, sizeof devices - at, "%s%s (%s)", k ? ", " : "", text_of(x, "device"),
                                       text_of(x, usable ? "state" : "reason"));
        }
        base_format_bytes(number_of(o, "pool_bytes"), pool, sizeof pool);
        base_format_bytes(number_of(o, "pool_live_bytes"), live, sizeof live);
        const char *cells[] = {number,
                               text_of(o, "host"),
                               place,
                               text_of(o, "state"),
                               pid,
                               pool,
                               live,
                               services[0] ? services : "-",
                               devices[0] ? devices : "-"};
        if (t)
            cli_table_add(t, cells);
    }
    return t;
}

/* Whether to show a link in a table of many links. */
static bool is_unusual(const json_t *link)
{
    return strcmp(text_of(link, "state"), "up") != 0 || number_of(link, "errors") || number_of(link, "retransmitted");
}

/* `all`: all links; otherwise only the links with something wrong. */
static struct cli_table *links_table(const json_t *list, bool all)
{
    static const struct cli_column columns[] = {{"from", true},     {"to", true},   {"state", false}, {"transport", false},
                                                {"devices", false}, {"rate", true}, {"errors", true}, {"resent", true}};
    struct cli_table *t = cli_table_new(columns, 8);
    size_t i;
    json_t *o;
    json_array_foreach (list, i, o) {
        if (!all && !is_unusual(o))
            continue;
        char from[16], to[16], rate[48], errors[24], resent[24], size[32];
        snprintf(from, sizeof from, "%u", (unsigned)number_of(o, "from"));
        snprintf(to, sizeof to, "%u", (unsigned)number_of(o, "to"));
        snprintf(errors, sizeof errors, "%llu", (unsigned long long)number_of(o, "errors"));
        snprintf(resent, sizeof resent, "%llu", (unsigned long long)number_of(o, "retransmitted"));
        bool counted = json_is_integer(json_object_get(o, "bytes_per_second"));
        snprintf(rate, sizeof rate, "%s/s", base_format_bytes(number_of(o, "bytes_per_second"), size, sizeof size));
        const char *cells[] = {from,   to,    text_of(o, "state"), text_of(o, "transport"), text_of(o, "devices"), counted ? rate : "-",
                               errors, resent};
        if (t)
            cli_table_add(t, cells);
    }
    return t;
}

static struct cli_table *forwards_table(const json_t *list)
{
    static const struct cli_column columns[] = {{"kind", false}, {"address", false}, {"gateway", true},     {"leads to", false},
                                                {"kept", false}, {"open", true},     {"connections", true}, {"refused", true},
                                                {"up", true},    {"down", true}};
    struct cli_table *t = cli_table_new(columns, 10);
    size_t i;
    json_t *o;
    json_array_foreach (list, i, o) {
        char gateway[16], to[300] = "-", open[24], count[24], refused[24], up[32], down[32];
        snprintf(gateway, sizeof gateway, "%u", (unsigned)number_of(o, "gateway"));
        if (json_object_get(o, "to"))
            snprintf(to, sizeof to, "%u:%s", (unsigned)number_of(o, "target"), text_of(o, "to"));
        snprintf(open, sizeof open, "%llu", (unsigned long long)number_of(o, "open"));
        snprintf(count, sizeof count, "%llu", (unsigned long long)number_of(o, "connections"));
        snprintf(refused, sizeof refused, "%llu", (unsigned long long)number_of(o, "refused"));
        base_format_bytes(number_of(o, "up_bytes"), up, sizeof up);
        base_format_bytes(number_of(o, "down_bytes"), down, sizeof down);
        const char *cells[] = {text_of(o, "kind"),
                               text_of(o, "address"),
                               gateway,
                               to,
                               json_is_true(json_object_get(o, "kept")) ? "yes" : "no",
                               open,
                               count,
                               refused,
                               up,
                               down};
        if (t)
            cli_table_add(t, cells);
    }
    return t;
}

static struct cli_table *memory_table(const json_t *list)
{
    static const struct cli_column columns[] = {{"node", true},    {"host", false}, {"pool", true},  {"in use", true}, {"network", true},
                                                {"streams", true}, {"files", true}, {"tasks", true}, {"other", true}};
    static const char *const uses[] = {"network", "streams", "files", "tasks", "other"};
    struct cli_table *t = cli_table_new(columns, 9);
    size_t i;
    json_t *o;
    json_array_foreach (list, i, o) {
        char number[16], pool[32], live[32], use[5][32];
        snprintf(number, sizeof number, "%u", (unsigned)number_of(o, "node"));
        for (unsigned k = 0; k < 5; k++)
            base_format_bytes(number_of(json_object_get(o, "pool_use"), uses[k]), use[k], sizeof use[k]);
        const char *cells[] = {number,
                               text_of(o, "host"),
                               base_format_bytes(number_of(o, "pool_bytes"), pool, sizeof pool),
                               base_format_bytes(number_of(o, "pool_live_bytes"), live, sizeof live),
                               use[0],
                               use[1],
                               use[2],
                               use[3],
                               use[4]};
        if (t && json_object_get(o, "pool_use")) /* without pool_use the node is gone, or does not answer */
            cli_table_add(t, cells);
    }
    return t;
}

static int print_memory(const char *text, bool watch)
{
    json_t *o = json_loads(text, 0, NULL);
    if (!o)
        return cli_error("status", "the answer of the cluster's node on this host is not JSON; run the same version of weft on all hosts");
    struct cli_table *t = memory_table(json_object_get(o, "nodes"));
    if (watch && isatty(STDOUT_FILENO))
        fputs("\033[H\033[J", stdout);
    if (t)
        cli_table_print(t, stdout);
    cli_table_free(t);
    json_decref(o);
    return t ? cli_flush("status") : cli_error("status", "no memory for the table" BASE_MEMORY_HINT);
}

static int print_status(const char *text, bool watch)
{
    json_t *o = json_loads(text, 0, NULL);
    if (!o)
        return cli_error("status", "the answer of the cluster's node on this host is not JSON; run the same version of weft on all hosts");
    size_t count = json_array_size(json_object_get(o, "links")), unusual = 0, i;
    json_t *link;
    json_array_foreach (json_object_get(o, "links"), i, link)
        unusual += is_unusual(link);
    bool all = count <= LINKS_MAX;
    struct cli_table *nodes = nodes_table(json_object_get(o, "nodes")), *links = links_table(json_object_get(o, "links"), all);
    struct cli_table *forwards = forwards_table(json_object_get(o, "forwards"));
    if (watch && isatty(STDOUT_FILENO))
        fputs("\033[H\033[J", stdout);
    if (nodes)
        cli_table_print(nodes, stdout);
    if ((all ? count : unusual) && links) {
        putchar('\n');
        cli_table_print(links, stdout);
    }
    if (!all)
        printf("\n%zu links are up, without errors, and nothing was resent (--json lists them)\n", count - unusual);
    if (json_array_size(json_object_get(o, "forwards")) && forwards) {
        putchar('\n');
        cli_table_print(forwards, stdout);
    }
    size_t jobs = json_array_size(json_object_get(o, "jobs"));
    printf("\n%zu job%s%s\n", jobs, jobs == 1 ? "" : "s", jobs ? " (`weft ps`)" : "");
    cli_table_free(nodes);
    cli_table_free(links);
    cli_table_free(forwards);
    json_decref(o);
    return nodes && links && forwards ? cli_flush("status") : cli_error("status", "no memory for the tables" BASE_MEMORY_HINT);
}

static int show_status(const char *cluster, int how, bool watch)
{
    struct control_request r = {
        .head = {.what = how == 'M' ? CONTROL_METRICS : CONTROL_STATUS, .flags = how == 'm' ? CONTROL_WITHOUT_LINKS : 0}};
    char *text;
    int status = standing_text("status", cluster, &r, &text);
    if (!status && how == 'j')
        status = cli_json_print("status", json_loads(text, 0, NULL));
    else if (!status && how == 'M')
        status = fputs(text, stdout) < 0 ? CLI_FAILED : cli_flush("status");
    else if (!status)
        status = how == 'm' ? print_memory(text, watch) : print_status(text, watch);
    free(text);
    return status;
}

int cli_status(int argc, char **argv)
{
    static const struct option longs[] = {{"cluster", required_argument, NULL, 'C'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"metrics", no_argument, NULL, 'M'},
                                          {"memory", no_argument, NULL, 'm'},
                                          {"watch", no_argument, NULL, 'w'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    const char *cluster = NULL;
    bool started = false, watch = false;
    int c, how = 0, status;
    while ((c = cli_option("status", argc, argv, "h", longs, &started)) != -1) {
        switch (c) {
        case 'C': cluster = optarg; break;
        case 'w': watch = true; break;
        case 'j':
        case 'M':
        case 'm':
            if (how && how != c)
                return cli_usage("status", "--json, --metrics and --memory exclude each other: give only one of them");
            how = c;
            break;
        case 'h': fputs(status_help, stdout); return cli_flush("status");
        default: return CLI_USAGE;
        }
    }
    if (optind < argc)
        return cli_usage("status", "unexpected argument '%s'", argv[optind]);
    if (watch)
        cli_catch_signals();
    do
        status = show_status(cluster, how, watch);
    while (!status && watch && !cli_stopped() && (poll(NULL, 0, 1000), !cli_stopped())); /* poll(): a signal ends the wait */
    return status;
}
