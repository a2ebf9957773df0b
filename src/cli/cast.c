/* SPDX-License-Identifier: MIT
 *
 * weft cast and weft cp: read the options, choose the hosts, and start the nodes; src/cast/ does the work. The nodes are a cluster of their
 * own, started by nodes of the standing cluster. Node 0 runs here, gets all settings as arguments, and sends them to the other nodes.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cast/cast.h"
#include "cli/command.h"
#include "cli/hosts.h"
#include "cli/launch.h"
#include "cli/standing.h"
#include "cluster/cluster.h"

#define SILENT_NS      (10 * WEFT_SECOND) /* how long to repeat a request to a node that does not answer */
#define TARGETS_MAX    900u               /* maximum number of targets, because their ranks must fit into one message */
#define POOL           "32M"
#define BWLIMIT_MIN    1024u /* a smaller value is probably a mistake: a number without a unit means bytes */
#define FOLLOW_SECONDS 60

#define OPTIONS_HELP                                                                                                              \
    "      --cluster NAME     the name of the cluster; default: the value of WEFT_CLUSTER, or \"default\"\n"                      \
    "      --checksum         decide by the contents, not by the time, whether a host already has a file\n"                       \
    "      --verify           at the end, read all files again on all hosts, and compare them with the source\n"                  \
    "      --delete           delete on the other hosts what the copied directories do not have here\n"                           \
    "      --exclude PATTERN  leave out files and directories with this name (* ? []), or this path if it has a /; may be\n"      \
    "                         repeated\n"                                                                                         \
    "      --dry-run          print what would be sent and deleted, but change nothing\n"                                         \
    "      --bwlimit SIZE     send at most this many bytes a second, for example 100M\n"                                          \
    "      --follow[=SEC]     SRC is one file that is still being written: send it until it has not grown for SEC seconds (60)\n" \
    "      --json             print a summary as JSON\n"                                                                          \
    "      --verbose          print the order in which the hosts pass the files on\n"                                             \
    "      --progress         show progress even if standard error is not a terminal; --no-progress: never\n"                     \
    "  -h, --help             print this text\n"                                                                                  \
    "\n"                                                                                                                          \
    "Permissions, times, symbolic and hard links and empty directories are copied; owners are not. If the copy was\n"             \
    "interrupted, run the same command again: it sends only what is missing. If a host fails, the other hosts still get all\n"    \
    "files.\n"                                                                                                                    \
    "\n"                                                                                                                          \
    "Exit status: 0 if all hosts have all files; 1 if not; 2 if the command line is wrong; 128 + N if signal N ended it.\n"

static const char cast_help[] =
    "Usage: weft cast [OPTIONS] SRC... [HOST,...:]DEST\n"
    "       weft cast [OPTIONS] SRC... --to HOST,... DEST\n"
    "\n"
    "Copies files and directories from this host to many other hosts of a standing cluster (`weft up`) at the same time. Each\n"
    "file is read once; the hosts pass it on in a chain.\n"
    "\n"
    "SRC/ means the contents of the directory SRC. DEST is the directory for the copies, and is created if needed. But if SRC\n"
    "is one file, DEST is the name of the copy, unless DEST is a directory or ends in /. {node} and {host} in DEST stand for\n"
    "the number of the node and the name of the host. A relative DEST starts in the home directory on each host.\n"
    "\n"
    "      --to HOST,...      hosts, or numbers of nodes, as `weft status` prints them; the default \"all\" is all other "
    "hosts\n" OPTIONS_HELP "\n"
    "  weft cast model/ all:/data/model         to all other hosts\n"
    "  weft cast --to a,b results.bin /tmp/     to two hosts\n";

static const char cp_help[] =
    "Usage: weft cp [OPTIONS] [HOST:]SRC... [HOST,...:]DEST\n"
    "\n"
    "Copies files and directories from one host of a standing cluster (`weft up`) to one or several others. A path without\n"
    "HOST: is on this host. All SRC must be on the same host. The rest works as in `weft cast`.\n"
    "\n" OPTIONS_HELP "\n"
    "  weft cp a:/data/log .                    from host a to this directory\n"
    "  weft cp a:/data/model/ b,c:/data/model   from a to b and c\n";

#define LISTED_MAX (2 * WEFT_MAX_NODES) /* the list of `weft status` also has nodes that are gone */
struct cast_command {
    const char *sub, *cluster;
    bool cp, progress_always, progress_never;
    char *to;
    struct cast_config config;
    char **excludes, **sources;
    char *from; /* the host of the sources; NULL: this host */
    bool missing;
    uint32_t pick[WEFT_MAX_NODES], count; /* for each node of the cast, the standing node that starts it */
    char *labels[WEFT_MAX_NODES], *numbers[WEFT_MAX_NODES];
};

/* --- hosts --- */

struct standing_list {
    json_t *status;
    uint32_t here, count; /* here: index of the control node; LISTED_MAX: the control node is not in the list */
    uint32_t node[LISTED_MAX];
    const char *host[LISTED_MAX];
    bool up[LISTED_MAX], silent[LISTED_MAX];
};

static int ask_hosts(struct cast_command *k, struct standing_list *l)
{
    *l = (struct standing_list){.status = NULL};
    struct control_request q = {.head = {.what = CONTROL_STATUS, .flags = CONTROL_WITHOUT_LINKS}};
    char *text = NULL;
    size_t i;
    json_t *o;
    int status = standing_text(k->sub, k->cluster, &q, &text);
    l->status = status ? NULL : json_loads(text, 0, NULL);
    free(text);
    if (status)
        return status;
    json_int_t here = json_integer_value(json_object_get(l->status, "control_node"));
    l->here = LISTED_MAX;
    json_array_foreach (json_object_get(l->status, "nodes"), i, o) {
        json_int_t n = json_integer_value(json_object_get(o, "node"));
        const char *host = json_string_value(json_object_get(o, "host")), *state = json_string_value(json_object_get(o, "state"));
        if (n < 0 || n >= WEFT_MAX_NUMBERS || l->count == LISTED_MAX)
            continue;
        if (n == here)
            l->here = l->count;
        l->node[l->count] = (uint32_t)n;
        l->host[l->count] = host && host[0] ? host : "?";
        l->silent[l->count] = state && strcmp(state, "silent") == 0;
        l->up[l->count++] = state && strcmp(state, "up") == 0;
    }
    return l->here < l->count
               ? 0
               : cli_error(k->sub,
                           "the standing cluster's answer does not list its control node; run the same version of weft on all hosts");
}

static bool means(const struct standing_list *l, const char *word, uint32_t i)
{
    int64_t n;
    size_t bare = strcspn(l->host[i], ".");
    if (strcmp(word, l->host[i]) == 0 || (strlen(word) == bare && memcmp(word, l->host[i], bare) == 0))
        return true;
    return base_parse_number(word, 0, WEFT_MAX_NUMBERS - 1, &n) == 0 && (uint32_t)n == l->node[i];
}

/* Whether some node that the command needs is alive, but has not answered. */
static bool needs_silent(const struct cast_command *k, const struct standing_list *l)
{
    bool found = false;
    for (uint32_t i = 0; i < l->count && !found; i++)
        found = l->silent[i] && k->from && means(l, k->from, i);
    char *words = k->to ? strdup(k->to) : NULL, *save = NULL;
    for (char *word = words ? strtok_r(words, ",", &save) : NULL; word; word = strtok_r(NULL, ",", &save))
        for (uint32_t i = 0; i < l->count && !found; i++)
            found = l->silent[i] && (strcmp(word, "all") == 0 || means(l, word, i));
    free(words);
    return found;
}

/* Lists the nodes. Asks again if a node is silent: it may have no processor for a moment, or be behind a slow network. */
static int list_hosts(struct cast_command *k, struct standing_list *l)
{
    int64_t deadline = base_deadline(SILENT_NS);
    int status = ask_hosts(k, l);
    while (!status && needs_silent(k, l) && base_now_ns() < deadline) {
        base_sleep_ns(100 * WEFT_MS);
        json_decref(l->status);
        status = ask_hosts(k, l);
    }
    return status;
}

/* Add a node. In messages the node has the name of its host, and its number if several nodes are on that host. */
static int add_node(struct cast_command *k, const struct standing_list *l, uint32_t at)
{
    char label[160], number[16];
    bool several = false;
    for (uint32_t i = 0; i < l->count; i++)
        several = several || (i != at && l->up[i] && strcmp(l->host[i], l->host[at]) == 0);
    snprintf(number, sizeof number, "%u", l->node[at]);
    snprintf(label, sizeof label, several ? "%s:%s" : "%s", l->host[at], number);
    if (k->count == TARGETS_MAX)
        return cli_error(k->sub, "there are more than %u hosts: copy to some of them first, and then to the others", TARGETS_MAX);
    k->pick[k->count] = l->node[at];
    k->labels[k->count] = strdup(label);
    k->numbers[k->count] = strdup(number);
    k->count++;
    return k->labels[k->count - 1] && k->numbers[k->count - 1] ? 0 : cli_error(k->sub, "no memory for the list of hosts" BASE_MEMORY_HINT);
}

/* Whether a living node of the list also has the name `word`. */
static bool lives_too(const struct standing_list *l, const char *word)
{
    for (uint32_t i = 0; i < l->count; i++)
        if (l->up[i] && means(l, word, i))
            return true;
    return false;
}

static int add_source(struct cast_command *k, const struct standing_list *l, uint32_t *at)
{
    *at = l->here;
    int status = add_node(k, l, l->here);
    if (status || !k->from || means(l, k->from, l->here))
        return status;
    for (uint32_t i = 0; i < l->count; i++) {
        if (!means(l, k->from, i) || (!l->up[i] && lives_too(l, k->from)))
            continue;
        if (!l->up[i])
            return cli_error(k->sub, "the node of host '%s' is not up: see `weft status`", k->from);
        *at = i;
        k->config.head.source = 1;
        return add_node(k, l, i);
    }
    return cli_error(k->sub, "there is no host or node '%s' in the cluster: `weft status` lists them", k->from);
}

static int add_targets(struct cast_command *k, const struct standing_list *l, uint32_t source)
{
    bool chosen[LISTED_MAX] = {false};
    char *save = NULL;
    int status = 0;
    for (char *word = strtok_r(k->to, ",", &save); word && !status; word = strtok_r(NULL, ",", &save)) {
        bool all = strcmp(word, "all") == 0, found = all;
        for (uint32_t i = 0; i < l->count && !status; i++) {
            bool lives = l->up[i] || l->silent[i];
            if (chosen[i] || (all ? !lives || i == source : !means(l, word, i) || (!l->up[i] && lives_too(l, word))))
                continue;
            found = chosen[i] = true;
            if (l->up[i]) {
                status = add_node(k, l, i);
            } else {
                k->missing = true;
                cli_error(k->sub, "'%s' is left out, because its node (%u) %s: see `weft status`", all ? l->host[i] : word, l->node[i],
                          lives ? "does not answer" : "is not up");
            }
        }
        if (!found && !status)
            status = cli_error(k->sub, "there is no host or node '%s' in the cluster: `weft status` lists them", word);
    }
    if (!status && k->count <= k->config.head.source + 1)
        status = cli_error(k->sub, "there is nowhere to copy to, because no other host has a node that is up: see `weft status`");
    return status;
}

static int choose_nodes(struct cast_command *k)
{
    struct standing_list l = {.status = NULL};
    uint32_t source;
    int status = list_hosts(k, &l);
    if (!status)
        status = add_source(k, &l, &source);
    if (!status)
        status = add_targets(k, &l, source);
    json_decref(l.status);
    k->config.head.size = k->count;
    k->config.head.flags |= k->missing ? CAST_LEFT_OUT : 0;
    return status;
}

/* --- the nodes --- */

/* Node 0's arguments: --as-node FLAGS SOURCE RATE NODES EXCLUDES SOURCES FOLLOW DEST, then the lists. */
#define NUMBERS 7
#define FIXED   (NUMBERS + 4)
static char **lead_arguments(const struct cast_command *k, char *self, char numbers[NUMBERS][24])
{
    const struct cast_head *h = &k->config.head;
    const uint64_t values[NUMBERS] = {h->flags, h->source, h->bytes_per_second, h->size, h->excludes, h->sources, h->follow};
    char **argv = calloc(FIXED + 2 * (size_t)h->size + h->excludes + h->sources + 1, sizeof *argv), **at = argv;
    if (!argv)
        return NULL;
    *at++ = self;
    *at++ = (char *)(uintptr_t)k->sub;
    *at++ = (char *)(uintptr_t) "--as-node";
    for (int i = 0; i < NUMBERS; i++) {
        snprintf(numbers[i], 24, "%llu", (unsigned long long)values[i]);
        *at++ = numbers[i];
    }
    *at++ = (char *)(uintptr_t)k->config.dest;
    for (uint32_t i = 0; i < h->size; i++)
        *at++ = k->labels[i];
    for (uint32_t i = 0; i < h->size; i++)
        *at++ = k->numbers[i];
    for (uint32_t i = 0; i < h->excludes; i++)
        *at++ = k->excludes[i];
    for (uint32_t i = 0; i < h->sources; i++)
        *at++ = k->sources[i];
    return argv;
}

static int launch_nodes(struct cast_command *k)
{
    struct launch l = {.sub = k->sub, .lead = true, .pool = POOL, .nodes = k->count};
    l.draws = k->config.head.flags & CAST_PROGRESS && isatty(STDERR_FILENO);
    struct hosts hosts = {.pick = k->pick};
    char numbers[NUMBERS][24], **argv = NULL;
    int status = hosts_apply_cluster(&l, &hosts, k->cluster);
    if (!status && !(argv = lead_arguments(k, hosts.self, numbers)))
        status = cli_error(k->sub, "no memory for the arguments of the nodes" BASE_MEMORY_HINT);
    /* the current directory may not exist on other hosts; all paths are absolute by now, or relative to the home directory */
    if (!status && chdir("/"))
        status = cli_error(k->sub, "/: %s", base_strerror(errno));
    if (!status) {
        char *others[] = {hosts.self, (char *)(uintptr_t)k->sub, (char *)(uintptr_t) "--as-node", NULL};
        l.argv = argv;
        l.others = others;
        status = launch_cluster(&l);
    }
    hosts_free(&hosts, k->count);
    free(argv);
    return status ? status : k->missing ? CLI_FAILED : 0;
}

static int stopped_or_told(void)
{
    sigset_t pending;
    return cli_stopped() || (sigpending(&pending) == 0 && sigismember(&pending, LAUNCH_TOLD) == 1);
}

/* Whether the launcher has already printed why a node failed: after that message it sends this process the signal LAUNCH_TOLD. */
static bool launcher_printed(void)
{
    sigset_t told, pending;
    int number;
    sigemptyset(&told);
    sigaddset(&told, LAUNCH_TOLD);
    return sigpending(&pending) == 0 && sigismember(&pending, LAUNCH_TOLD) == 1 && sigwait(&told, &number) == 0;
}

static int lead(const char *sub, int argc, char **argv)
{
    struct cast_options o = {.sub = sub, .stopped = cli_stopped, .printed = launcher_printed};
    struct cast_head *h = &o.config.head;
    int64_t v[NUMBERS];
    for (int i = 0; i < NUMBERS; i++)
        if (argc < FIXED || base_parse_number(argv[3 + i - 1], 0, INT64_MAX, &v[i]))
            return cli_usage(
                sub, "--as-node is for weft's own use: leave it out; if weft itself gave it, run the same version of weft on all hosts");
    *h = (struct cast_head){.flags = (uint32_t)v[0],
                            .source = (uint32_t)v[1],
                            .bytes_per_second = (uint64_t)v[2],
                            .size = (uint32_t)v[3],
                            .excludes = (uint32_t)v[4],
                            .sources = (uint32_t)v[5],
                            .follow = (uint32_t)v[6]};
    if ((int64_t)argc != FIXED - 1 + 2 * v[3] + v[4] + v[5])
        return cli_usage(
            sub, "--as-node is for weft's own use: leave it out; if weft itself gave it, run the same version of weft on all hosts");
    const char **at = (const char **)(uintptr_t)(argv + FIXED - 2);
    o.config.dest = *at++;
    o.config.hosts = at;
    o.config.numbers = at + h->size;
    o.config.excludes = o.config.numbers + h->size;
    o.config.sources = o.config.excludes + h->excludes;
    o.progress = h->flags & CAST_PROGRESS;
    return cast_lead(&o);
}

static int as_node(const char *sub, int argc, char **argv)
{
    const char *rank = getenv("WEFT_RANK"), *home = getenv("HOME");
    if (!rank || !getenv("WEFT_SIZE"))
        return cli_usage(
            sub, "--as-node is for weft's own use: leave it out; if weft itself gave it, run the same version of weft on all hosts");
    cli_catch_signals();
    cluster_stopped = stopped_or_told;
    if (home && home[0] == '/' && chdir(home)) /* relative paths begin in the home directory */
        base_log(BASE_LOG_INFO, "cannot change to the home directory, %s: %s", home, base_strerror(errno));
    return strcmp(rank, "0") == 0 ? lead(sub, argc, argv) : cast_serve(sub, cli_stopped);
}

/* --- the command line --- */

/* Remove "HOST:" from the start of an argument. Returns NULL if there is no "HOST:". */
static char *cut_host(char *arg, char **rest)
{
    size_t n = strcspn(arg, ":/");
    if (n == 0 || arg[n] != ':') {
        *rest = arg;
        return NULL;
    }
    arg[n] = '\0';
    *rest = arg + n + 1;
    return arg;
}

static char *absolute(const char *path)
{
    char folder[4096], *out;
    if (path[0] == '/')
        return strdup(path);
    if (!getcwd(folder, sizeof folder))
        return NULL;
    size_t n = strlen(folder) + strlen(path) + 2;
    if ((out = malloc(n)))
        snprintf(out, n, "%s/%s", strcmp(folder, "/") == 0 ? "" : folder, path);
    return out;
}

static int take_paths(struct cast_command *k, int count, char **args)
{
    char *rest;
    if (count < 2)
        return cli_usage(k->sub, "expected at least one SRC, and DEST");
    for (int i = k->cp ? 0 : count - 1; i < count; i++) /* ":PATH" comes from a script in which the variable with the host is empty */
        if (args[i][0] == ':')
            return cli_usage(k->sub, "'%s': there is no host before ':'; for a path that begins with ':', write './%s'", args[i], args[i]);
    char *hosts = cut_host(args[count - 1], &rest);
    if (hosts && k->to)
        return cli_usage(k->sub, "the hosts are given twice: name them by --to or before DEST, not both");
    bool local = !hosts && !k->to && k->cp;
    static char all[] = "all";
    k->to = hosts ? hosts : k->to ? k->to : local ? NULL : all;
    k->config.dest = local ? absolute(rest) : rest;
    if (!k->config.dest || !k->config.dest[0])
        return cli_usage(k->sub, "DEST is empty: write '.' for the home directory");
    if (!(k->sources = calloc((size_t)count, sizeof *k->sources)))
        return cli_error(k->sub, "no memory for the list of sources" BASE_MEMORY_HINT);
    for (int i = 0; i < count - 1; i++) {
        char *host = k->cp ? cut_host(args[i], &rest) : NULL;
        rest = k->cp ? rest : args[i];
        if (!rest[0])
            return cli_usage(k->sub, "SRC is empty: name a file or a directory");
        if (i && (host ? !k->from || strcmp(host, k->from) != 0 : k->from != NULL))
            return cli_usage(k->sub, "all SRC must be on the same host: copy from other hosts by another command");
        k->from = host;
        if (!(k->sources[i] = host ? strdup(rest) : absolute(rest)))
            return cli_error(k->sub, "no memory for the list of sources" BASE_MEMORY_HINT);
        k->config.head.sources = (uint32_t)i + 1;
    }
    if (k->config.head.follow && (count > 2 || cast_is_content(k->sources[0])))
        return cli_usage(k->sub, "--follow takes exactly one SRC, a file: leave out the others");
    return 0;
}

static int take_option(struct cast_command *k, int c)
{
    uint64_t bytes;
    int64_t seconds = FOLLOW_SECONDS;
    switch (c) {
    case 'C': k->cluster = optarg; return 0;
    case 'T': k->to = optarg; return optarg[0] ? 0 : cli_usage(k->sub, "--to: expected names of hosts, with commas between");
    case 'S': k->config.head.flags |= CAST_CHECKSUM; return 0;
    case 'D': k->config.head.flags |= CAST_DELETE; return 0;
    case 'N': k->config.head.flags |= CAST_DRY_RUN; return 0;
    case 'V': k->config.head.flags |= CAST_VERIFY; return 0;
    case 'J': k->config.head.flags |= CAST_JSON; return 0;
    case 'v': k->config.head.flags |= CAST_VERBOSE; return 0;
    case 'P': k->progress_always = true; return 0;
    case 'Q': k->progress_never = true; return 0;
    case 'X': k->excludes[k->config.head.excludes++] = optarg; return 0;
    case 'F':
        if (optarg && base_parse_number(optarg, 1, CAST_FOLLOW_MAX, &seconds))
            return cli_usage(k->sub, "--follow '%s': expected seconds, from 1 to %u", optarg, CAST_FOLLOW_MAX);
        k->config.head.follow = (uint32_t)seconds;
        return 0;
    case 'B':
        if (base_parse_bytes(optarg, &bytes) || bytes < BWLIMIT_MIN || bytes > INT64_MAX)
            return cli_usage(k->sub, "--bwlimit '%s': expected bytes a second, from 1K on, as in 100M", optarg);
        k->config.head.bytes_per_second = bytes;
        return 0;
    default: return CLI_USAGE;
    }
}

static int run_command(struct cast_command *k, int argc, char **argv, const char *help)
{
    static const struct option longs[] = {
        {"cluster", required_argument, NULL, 'C'}, {"to", required_argument, NULL, 'T'},      {"checksum", no_argument, NULL, 'S'},
        {"delete", no_argument, NULL, 'D'},        {"exclude", required_argument, NULL, 'X'}, {"dry-run", no_argument, NULL, 'N'},
        {"follow", optional_argument, NULL, 'F'},  {"bwlimit", required_argument, NULL, 'B'}, {"verify", no_argument, NULL, 'V'},
        {"json", no_argument, NULL, 'J'},          {"verbose", no_argument, NULL, 'v'},       {"progress", no_argument, NULL, 'P'},
        {"no-progress", no_argument, NULL, 'Q'},   {"help", no_argument, NULL, 'h'},          {0}};
    bool started = false;
    int c, status = 0;
    while (!status && (c = cli_option(k->sub, argc, argv, "h", longs, &started)) != -1) {
        if (c == 'h') {
            fputs(help, stdout);
            return cli_flush(k->sub);
        }
        status = take_option(k, c);
    }
    if (!status)
        status = take_paths(k, argc - optind, argv + optind);
    if (!status && !k->progress_never && (k->progress_always || isatty(STDERR_FILENO)))
        k->config.head.flags |= CAST_PROGRESS;
    if (!status && !k->to) { /* weft cp to this host */
        static char here[16];
        struct standing_list l = {.status = NULL};
        status = list_hosts(k, &l);
        snprintf(here, sizeof here, "%u", status ? 0 : l.node[l.here]);
        json_decref(l.status);
        k->to = here;
    }
    if (!status)
        status = choose_nodes(k);
    return status ? status : launch_nodes(k);
}

static int command(const char *sub, int argc, char **argv, const char *help)
{
    static struct cast_command k;
    if (argc > 1 && strcmp(argv[1], "--as-node") == 0)
        return as_node(sub, argc, argv);
    k = (struct cast_command){.sub = sub, .cp = strcmp(sub, "cp") == 0};
    if (!(k.excludes = calloc((size_t)argc + 1, sizeof *k.excludes)))
        return cli_error(sub, "no memory for the list of patterns (--exclude)" BASE_MEMORY_HINT);
    int status = run_command(&k, argc, argv, help);
    for (uint32_t i = 0; i < k.count; i++) {
        free(k.labels[i]);
        free(k.numbers[i]);
    }
    for (uint32_t i = 0; k.sources && i < k.config.head.sources; i++)
        free(k.sources[i]);
    free(k.sources);
    free(k.excludes);
    return status;
}

int cli_cast(int argc, char **argv)
{
    return command("cast", argc, argv, cast_help);
}

int cli_cp(int argc, char **argv)
{
    return command("cp", argc, argv, cp_help);
}
