/* SPDX-License-Identifier: MIT
 *
 * weft map: its options and its help; src/map/ does the work. If there are nodes on other hosts, the launcher starts each node by this
 * command with --as-node as first argument. Only node 0 gets the other arguments.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/emulate.h"
#include "cli/hosts.h"
#include "kernel/kernel.h"
#include "map/map.h"

static const char help[] =
    "Usage: weft map [OPTIONS] FILE... -- COMMAND [ARG...]\n"
    "       weft map [OPTIONS] --kernel NAME[:TEXT] FILE...\n"
    "       weft map [OPTIONS] --kernel-from OBJECT.so:NAME[:TEXT] FILE...\n"
    "\n"
    "Processes big files on all processors of a host, or of several hosts: cuts the FILEs into pieces at the ends of lines,\n"
    "runs COMMAND on every piece, with the piece as its standard input, and prints the outputs in the order of the input.\n"
    "The FILE - is standard input; with --hostfile or --cluster, HOST:PATH is a file of that host. A failed command is run\n"
    "again, and nothing of the failed attempt is printed. The commands run on nodes: processes that weft starts for this job.\n"
    "\n"
    "Pieces:\n"
    "  --block SIZE       smallest size of a piece (default: 4M); a piece ends after the first newline from there on\n"
    "  --separator TEXT   pieces end after TEXT instead of a newline; \\n, \\t, \\r, \\0 and \\\\ mean what they mean in C\n"
    "  --exact            pieces have exactly the size of --block, even if that cuts lines\n"
    "  --dry-run          print the pieces, and run nothing\n"
    "\n"
    "Work:\n"
    "  --kernel NAME      run a function that is built into weft instead of a command:\n";

static const char help_more[] =
    "  --kernel-from OBJECT.so:NAME   run your own function: the weft_kernel NAME in a shared object\n"
    "  --gpu[=N|host]     run the built-in function on GPUs, each node on one; with N all nodes use GPU N; with host the\n"
    "                     processor runs the same code, for tests\n"
    "  --nodes N          nodes that share the work, including this process (default: the processors, 2 to 4)\n"
    "  --slots N          commands at the same time on a node (default: processors / nodes)\n"
    "  --memory SIZE      memory of all nodes together (default: 1G, but at most an eighth of the host's); data that does not\n"
    "                     fit goes to temporary files in $TMPDIR\n"
    "  --retries N        how many times a failed piece is retried (default: 2), if possible on another node\n"
    "  --timeout TIME     kill a command that takes longer, and treat it as failed: 30, 500ms, 5m\n"
    "  --literal          leave {#}, {file}, {offset}, {length}, {node} in the ARGs unchanged. Without this option they are\n"
    "                     replaced by the piece's number (from 1), its file, its offset there, its length, the node's number\n"
    "\n"
    "Hosts:\n"
    "  --cluster NAME     start the nodes on the hosts of a standing cluster (`weft up`), without ssh\n"
    "  --hostfile FILE    start a node on each host of FILE, as `weft run` does; the first host must be this one\n"
    "  --remote-weft PATH the path of the command weft on other hosts, if it differs from the path here\n"
    "  --softverbs TOPO   emulated RDMA devices, each node on an emulated host: switch:8, chain:4:tb5, lab.json\n"
    "  --guard            start a second process for each node that cleans up its Thunderbolt devices, as `weft run --guard`\n"
    "\n"
    "Output:\n"
    "  --output FILE      write to FILE instead of standard output (-). FILE is created or replaced when the output is\n"
    "                     complete, and not changed if a piece failed\n"
    "  --unordered        print the output of a piece as soon as it is complete\n"
    "  --stats            print a summary at the end, on standard error\n"
    "  --json             print this summary as JSON\n"
    "  --stats-file FILE  write this summary to FILE, as JSON\n"
    "  --progress         show progress even if standard error is not a terminal; --no-progress: never\n"
    "  -h, --help         print this text\n"
    "\n"
    "  weft map big.txt -- wc -l\n"
    "  weft map --block 1M big.txt -- sort > runs.txt\n"
    "  zcat big.gz | weft map --kernel wc -\n"
    "\n"
    "Exit status: 0; 1 if a piece or the job failed; 2 if the command line is wrong; 126 if COMMAND cannot be\n"
    "executed, 127 if there is none; 128 + N if signal N ended the job.\n";

static int cli_map_print_help(void)
{
    fputs(help, stdout);
    for (const weft_kernel *k = weft_kernel_next(NULL); k; k = weft_kernel_next(k)) {
        char name[32];
        snprintf(name, sizeof name, "%s%s", k->name, k->takes_arg ? ":TEXT" : "");
        printf("                       %-13s %s\n", name, k->help);
    }
    fputs(help_more, stdout);
    return cli_flush("map");
}

#define GPU_NUMBER_MAX 63u

enum {
    BLOCK = 256,
    SEPARATOR,
    EXACT,
    DRY_RUN,
    KERNEL,
    KERNEL_FROM,
    GPU,
    NODES,
    SLOTS,
    MEMORY,
    RETRIES,
    TIMEOUT,
    LITERAL,
    OUTPUT,
    UNORDERED,
    STATS,
    JSON,
    STATS_FILE,
    PROGRESS,
    NO_PROGRESS,
    HOSTFILE,
    CLUSTER,
    REMOTE_WEFT,
    SOFTVERBS,
    GUARD,
    HOMES
};

static const struct option longs[] = {{"block", required_argument, NULL, BLOCK},
                                      {"separator", required_argument, NULL, SEPARATOR},
                                      {"exact", no_argument, NULL, EXACT},
                                      {"dry-run", no_argument, NULL, DRY_RUN},
                                      {"kernel", required_argument, NULL, KERNEL},
                                      {"kernel-from", required_argument, NULL, KERNEL_FROM},
                                      {"gpu", optional_argument, NULL, GPU},
                                      {"nodes", required_argument, NULL, NODES},
                                      {"slots", required_argument, NULL, SLOTS},
                                      {"memory", required_argument, NULL, MEMORY},
                                      {"retries", required_argument, NULL, RETRIES},
                                      {"timeout", required_argument, NULL, TIMEOUT},
                                      {"literal", no_argument, NULL, LITERAL},
                                      {"output", required_argument, NULL, OUTPUT},
                                      {"unordered", no_argument, NULL, UNORDERED},
                                      {"stats", no_argument, NULL, STATS},
                                      {"json", no_argument, NULL, JSON},
                                      {"stats-file", required_argument, NULL, STATS_FILE},
                                      {"progress", no_argument, NULL, PROGRESS},
                                      {"no-progress", no_argument, NULL, NO_PROGRESS},
                                      {"hostfile", required_argument, NULL, HOSTFILE},
                                      {"cluster", required_argument, NULL, CLUSTER},
                                      {"remote-weft", required_argument, NULL, REMOTE_WEFT},
                                      {"softverbs", required_argument, NULL, SOFTVERBS},
                                      {"guard", no_argument, NULL, GUARD},
                                      {"homes", required_argument, NULL, HOMES}, /* only the launcher passes this option, to node 0 */
                                      {"help", no_argument, NULL, 'h'},
                                      {0}};

/* Parse a whole number from `least` to `most`; false after an error was printed. */
static bool cli_map_number(const char *option, const char *text, uint32_t least, uint32_t most, uint32_t *out)
{
    int64_t n;
    if (base_parse_number(text, least, most, &n) == 0) {
        *out = (uint32_t)n;
        return true;
    }
    cli_usage("map", "--%s %s: expected a whole number from %u to %u", option, text, least, most);
    return false;
}

static bool size(const char *option, const char *text, uint64_t *out)
{
    if (base_parse_bytes(text, out)) {
        cli_usage("map", "--%s: %s", option, base_error());
        return false;
    }
    if (*out == 0) {
        cli_usage("map", "--%s 0: expected at least one byte", option);
        return false;
    }
    return true;
}

/* Replace escapes such as \n. `to` has room for as many bytes as `text`. Returns the length; 0 after an error was printed. */
static size_t unescape(char *to, const char *text)
{
    char *const start = to;
    for (const char *p = text; *p; p++) {
        if (*p != '\\') {
            *to++ = *p;
            continue;
        }
        switch (*++p) {
        case 'n': *to++ = '\n'; break;
        case 't': *to++ = '\t'; break;
        case 'r': *to++ = '\r'; break;
        case '0': *to++ = '\0'; break;
        case '\\': *to++ = '\\'; break;
        default: cli_usage("map", "--separator: '\\%.1s' is not one of \\n, \\t, \\r, \\0, \\\\", p); return 0;
        }
    }
    if (to == start)
        cli_usage("map", "--separator: expected a text that is not empty; use --exact to cut anywhere");
    return (size_t)(to - start);
}

/* Parse OBJECT.so:NAME[:TEXT]. Uses the absolute path, since nodes may run in another directory. */
static int kernel_from(struct map_options *o, const char *arg)
{
    static char path[PATH_MAX]; /* static: the options point to it */
    char file[PATH_MAX];
    size_t n = strcspn(arg, ":");
    if (!arg[n] || n == 0 || n >= sizeof file)
        return cli_usage("map", "--kernel-from %s: expected OBJECT.so:NAME or OBJECT.so:NAME:TEXT", arg);
    memcpy(file, arg, n);
    file[n] = '\0';
    if (o->kernel && !o->kernel_file)
        return cli_usage("map", "--kernel and --kernel-from exclude each other: give only one of them");
    if (!realpath(file, path))
        return cli_usage("map", "--kernel-from %s: %s: %s", arg, file, base_strerror(errno));
    o->kernel = arg + n + 1;
    o->kernel_file = path;
    return 0;
}

static int cli_map_take_option(struct map_options *o, struct launch *l, char **own, int c)
{
    switch (c) {
    case HOSTFILE: l->hostfile = optarg; return 0;
    case CLUSTER: l->cluster = optarg; return 0;
    case REMOTE_WEFT: l->weft = optarg; return 0;
    case SOFTVERBS: l->softverbs = optarg; return 0;
    case GUARD: l->guard = true; return 0;
    case HOMES: o->homes = optarg; return 0;
    case BLOCK: return size("block", optarg, &o->block_bytes) ? 0 : CLI_USAGE;
    case MEMORY: o->memory = optarg; return size("memory", optarg, &o->memory_bytes) ? 0 : CLI_USAGE;
    case SEPARATOR:
        if (o->cut == MAP_CUT_EXACT)
            return cli_usage("map", "--separator and --exact exclude each other: give only one of them");
        o->cut = MAP_CUT_SEPARATOR;
        free(*own);
        o->separator = *own = strdup(optarg); /* a copy, since the argument is passed on to the nodes */
        o->separator_len = *own ? unescape(*own, optarg) : 0;
        return o->separator_len ? 0 : CLI_USAGE;
    case EXACT:
        if (o->cut == MAP_CUT_SEPARATOR)
            return cli_usage("map", "--separator and --exact exclude each other: give only one of them");
        o->cut = MAP_CUT_EXACT;
        return 0;
    case NODES: return cli_map_number("nodes", optarg, 1, MAP_NODES_MAX, &o->nodes) ? 0 : CLI_USAGE;
    case SLOTS: return cli_map_number("slots", optarg, 1, MAP_SLOTS_MAX, &o->slots) ? 0 : CLI_USAGE;
    case RETRIES: return cli_map_number("retries", optarg, 0, 1000, &o->retries) ? 0 : CLI_USAGE;
    case TIMEOUT:
        if (base_parse_duration(optarg, &o->timeout_ns))
            return cli_usage("map", "--timeout: %s", base_error());
        return o->timeout_ns > 0 ? 0 : cli_usage("map", "--timeout 0: expected a time of more than 0, as in 30 or 5m");
    case DRY_RUN: o->dry_run = true; return 0;
    case KERNEL:
        if (o->kernel_file)
            return cli_usage("map", "--kernel and --kernel-from exclude each other: give only one of them");
        o->kernel = optarg;
        return 0;
    case KERNEL_FROM: return kernel_from(o, optarg);
    case GPU: {
        int64_t n;
        const char *which = optarg && !strncmp(optarg, "cuda:", 5) ? optarg + 5 : optarg; /* a name that `weft gpus` prints */
        if (which && strcmp(optarg, "host") && base_parse_number(which, 0, GPU_NUMBER_MAX, &n))
            return cli_usage("map", "--gpu=%s: expected the number of a GPU, from 0 to %u, or its name as in `weft gpus`: cuda:0, host",
                             optarg, GPU_NUMBER_MAX);
        o->gpu = which ? which : "";
        return 0;
    }
    case LITERAL: o->literal = true; return 0;
    case OUTPUT: o->output = strcmp(optarg, "-") ? optarg : NULL; return 0;
    case UNORDERED: o->unordered = true; return 0;
    case STATS: o->stats = true; return 0;
    case JSON: o->json = true; return 0;
    case STATS_FILE: o->stats_file = optarg; return 0;
    case PROGRESS: o->progress = MAP_ALWAYS; return 0;
    case NO_PROGRESS: o->progress = MAP_NEVER; return 0;
    default: return CLI_USAGE;
    }
}

/* Whether standard input is one of the inputs. */
static bool reads_input(const struct map_options *o)
{
    bool any = false;
    for (uint32_t i = 0; i < o->file_count; i++)
        any = any || strcmp(o->files[i], "-") == 0;
    return any;
}

/* Finds the inputs that are files of other nodes. Such an input is HOST:PATH, and this host has no file of that name. `*out` becomes the
 * value of --homes (the caller frees it), or NULL. */
static int find_homes(const struct map_options *o, const struct hosts *hosts, uint32_t nodes, char **out)
{
    for (uint32_t i = 0; i < o->file_count; i++) {
        const char *name = o->files[i], *colon = strchr(name, ':'), *slash = strchr(name, '/');
        if (!colon || !colon[1] || colon == name || (slash && slash < colon) || access(name, F_OK) == 0)
            continue;
        int64_t node = hosts_find(hosts, nodes, name, (size_t)(colon - name));
        if (node < 0)
            return cli_usage("map", "there is no file %s here, and '%.*s' is neither a host nor the number of a node of this job", name,
                             (int)(colon - name), name);
        if (o->file_count > MAP_HOMES_MAX)
            return cli_usage("map",
                             "%u files: a job with files of other hosts can have at most %u; give fewer, or run `weft map` on the host "
                             "that has them",
                             o->file_count, MAP_HOMES_MAX);
        if (!*out) {
            if (!(*out = malloc(o->file_count + 1)))
                return cli_error("map", "no memory for the list of files" BASE_MEMORY_HINT);
            memset(*out, MAP_HOME_HERE, o->file_count);
            (*out)[o->file_count] = '\0';
        }
        (*out)[i] = (char)(MAP_HOME_FIRST + node);
    }
    return 0;
}

/* Start all nodes with the launcher, and wait for their end. Returns the exit status. */
static int launch(struct map_options *o, struct launch *l, int argc, char **argv)
{
    struct hosts hosts = {.count = 0};
    struct emulation e;
    char pool[32];
    uint64_t bytes;
    char **first = calloc((size_t)argc + 5, sizeof *first), *homes = NULL;
    int status = 0;
    if (!first)
        return cli_error("map", "no memory for the nodes' arguments" BASE_MEMORY_HINT);
    l->lead = true;
    l->nodes = o->nodes;
    if (reads_input(o) && isatty(STDIN_FILENO))
        status =
            cli_usage("map", "with nodes on other hosts, a terminal cannot be the input: name a file, or pass the input through a pipe");
    if (!status && l->softverbs && emulate_parse(&e, l->softverbs, l->nodes))
        status = cli_usage("map", "%s", base_error());
    if (!status && l->cluster && (l->hostfile || l->softverbs))
        status =
            cli_usage("map", "--cluster cannot be used with --hostfile or --softverbs, because the cluster has its own: leave these out");
    if (!status)
        status = l->cluster ? hosts_apply_cluster(l, &hosts, l->cluster) : hosts_apply(l, &hosts, l->hostfile);
    if (!status && l->softverbs && !l->nodes)
        l->nodes = e.hosts;
    if (!status && l->nodes > MAP_NODES_MAX)
        status = cli_usage("map", "%u nodes: a job has at most %u; see --nodes", l->nodes, MAP_NODES_MAX);
    if (!status && l->cluster && l->ssh[0] && !hosts.emulated)
        status = cli_error("map", "cluster '%s' has no node on this host that answers: see `weft status`", l->cluster);
    if (!status && hosts.emulated && reads_input(o))
        status = cli_usage("map", "cluster '%s' has emulated hosts, which have no standard input: name the files", l->cluster);
    if (!status && l->ssh && l->ssh[0] && !l->cluster)
        status = cli_usage("map", "hostfile %s: the first host, %s, is not this host: it must be, because the files are here", l->hostfile,
                           l->ssh[0]);
    if (!status)
        status = find_homes(o, &hosts, l->nodes, &homes);
    o->nodes = l->nodes;
    o->apart = true;
    o->emulated = l->softverbs != NULL;
    if (!status && (status = map_plan(o, &bytes)) == 0) {
        char *others[] = {hosts.self, (char *)(uintptr_t) "map", (char *)(uintptr_t) "--as-node", NULL};
        memcpy(first, others, 3 * sizeof *first);
        if (homes) {
            first[3] = (char *)(uintptr_t) "--homes";
            first[4] = homes;
        }
        memcpy(first + (homes ? 5 : 3), argv + 1, (size_t)(argc - 1) * sizeof *first);
        snprintf(pool, sizeof pool, "%llu", (unsigned long long)bytes);
        l->pool = pool;
        l->argv = first;
        l->others = others;
        status = launch_cluster(l);
    }
    hosts_free(&hosts, l->nodes);
    free(homes);
    free(first);
    return status;
}

int cli_map(int argc, char **argv)
{
    bool as_node = argc > 1 && strcmp(argv[1], "--as-node") == 0;
    const char *rank = getenv("WEFT_RANK"), *nodes = getenv("WEFT_SIZE");
    if (as_node) {
        if (!rank || !nodes)
            return cli_usage(
                "map", "--as-node is for weft's own use: leave it out; if weft itself gave it, run the same version of weft on all hosts");
        const char *hostfile = getenv("WEFT_HOSTFILE");
        if (hostfile && strncmp(hostfile, "/dev/fd/", 8) == 0) /* a descriptor of the launcher (hosts.c); commands must not inherit it */
            fcntl((int)strtol(hostfile + 8, NULL, 10), F_SETFD, FD_CLOEXEC);
        if (strcmp(rank, "0") != 0)
            return map_serve();
        argv++;
        argc--;
    }
    struct launch l = {.sub = "map"};
    struct map_options o = {.block_bytes = MAP_BLOCK_DEFAULT, .retries = MAP_RETRIES_DEFAULT};
    /* The options and files of this command end at the first "--"; the command to run follows. */
    int ours = 1;
    while (ours < argc && strcmp(argv[ours], "--"))
        ours++;
    char **files = calloc((size_t)argc + 1, sizeof *files);
    if (!files)
        return cli_error("map", "no memory for the list of files" BASE_MEMORY_HINT);
    int status = 0, c;
    bool started = false, asked = false;
    char *separator = NULL;
    /* Options may come after files; each scan stops at a file. */
    char *const whole_end = argv[ours];
    argv[ours] = NULL;
    while (!status && !asked) {
        c = cli_option("map", ours, argv, "+h", longs, &started);
        if (c == 'h') {
            asked = true;
        } else if (c != -1) {
            status = cli_map_take_option(&o, &l, &separator, c);
        } else if (optind < ours) {
            files[o.file_count++] = argv[optind++];
        } else {
            break;
        }
    }
    argv[ours] = whole_end;
    if (asked) {
        free(separator);
        free(files);
        return cli_map_print_help();
    }
    if (!status) {
        o.files = files;
        o.command = ours + 1 < argc ? argv + ours + 1 : NULL;
        if (o.homes && !as_node)
            status = cli_usage(
                "map", "--homes is for weft's own use: leave it out; if weft itself gave it, run the same version of weft on all hosts");
        else if (o.file_count == 0)
            status = cli_usage("map", "no FILE given; - is standard input");
        else if (o.gpu && !o.kernel)
            status = cli_usage("map", "--gpu runs kernels, not commands: give --kernel instead of a COMMAND");
        else if (o.kernel && o.command)
            status = cli_usage("map", "%s and a COMMAND exclude each other: give only one of them",
                               o.kernel_file ? "--kernel-from" : "--kernel");
        else if (!o.kernel && !o.command && !o.dry_run)
            status = cli_usage("map", "no COMMAND given; write it after --, as in: weft map FILE -- wc -l");
        else if (as_node) {
            o.nodes = (uint32_t)strtoul(nodes, NULL, 10);
            o.apart = true;
            o.emulated = l.softverbs != NULL;
            status = o.nodes && o.nodes <= MAP_NODES_MAX
                         ? map_run(&o)
                         : cli_usage("map", "WEFT_SIZE is not a number of nodes from 1 to the most that a job can have: unset it");
        } else if ((l.hostfile || l.softverbs || l.cluster) && !o.dry_run)
            status = launch(&o, &l, argc, argv);
        else
            status = map_run(&o);
    }
    free(separator);
    free(files);
    return status;
}
