/* SPDX-License-Identifier: MIT
 *
 * The commands weft cat, weft files and weft pin: print files of the nodes of a standing cluster, and list and fill the nodes' caches of
 * files.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/standing.h"

#define PART_NS (60 * WEFT_SECOND) /* how long to wait for the next part: longer than the control node waits for a disk */

/* Splits HOST:PATH. Returns 0, or the exit status after an error was printed. */
static int split_file(const char *sub, char *word, const char **host, const char **path)
{
    char *colon = strchr(word, ':');
    if (!colon || colon == word || !colon[1])
        return cli_usage(
            sub, "'%s' is not valid: write HOST:PATH, where HOST is a host's name or a node's number, as `weft status` shows them", word);
    *colon = '\0';
    *host = word;
    *path = colon + 1;
    return 0;
}

/* --- weft cat --- */

static const char cat_help[] =
    "Usage: weft cat [--range FIRST-LAST] [--cluster NAME] HOST:PATH\n"
    "\n"
    "Prints a file of another host of a standing cluster (`weft up`). The file's host reads the file from its disk once, and\n"
    "keeps the bytes in memory for later readers. If the file changes while it is printed, the command stops with an error.\n"
    "\n"
    "HOST is the name of a host or the number of a node, as `weft status` prints them. A relative PATH starts in the home\n"
    "directory there; with `weft up --root DIR` it starts in DIR.\n"
    "\n"
    "      --range FIRST-LAST print only these bytes, counted from 0; without LAST, all bytes from FIRST to the end\n"
    "      --cluster NAME     the name of the cluster; default: the value of WEFT_CLUSTER, or \"default\"\n"
    "  -h, --help             print this text\n"
    "\n"
    "Exit status: 0; 1 if the file cannot be read; 2 if the command line is wrong.\n"
    "\n"
    "  weft cat node1:/data/results.csv\n"
    "  weft cat --range 0-1023 node1:model.bin | xxd    the first kilobyte of a file\n";

/* Splits FIRST-LAST. Returns false if the range is not valid. */
static bool take_range(char *text, const char **first, const char **last)
{
    static char end[] = "9223372036854775807";
    int64_t a, b = INT64_MAX;
    char *dash = strchr(text, '-');
    if (!dash)
        return false;
    *dash = '\0';
    *first = text;
    *last = dash[1] ? dash + 1 : end;
    return base_parse_number(*first, 0, INT64_MAX, &a) == 0 && base_parse_number(*last, 0, INT64_MAX, &b) == 0 && a <= b;
}

static bool write_all(const char *bytes, size_t len)
{
    while (len) {
        ssize_t n = write(STDOUT_FILENO, bytes, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        bytes += n;
        len -= (size_t)n;
    }
    return true;
}

static int print_file(int fd)
{
    struct control_frame f;
    char *payload = malloc(CONTROL_PIECE_MAX + 1);
    int status = payload ? 0 : cli_error("cat", "no memory for the cluster's answer" BASE_MEMORY_HINT);
    while (!status) {
        int rc = standing_answer(fd, &f, payload, base_deadline(PART_NS));
        if (rc == -ETIMEDOUT)
            status = cli_error("cat", "the node of the cluster on this host has not answered for a minute: if its process is stopped, "
                                      "continue it (kill -CONT), or end it (kill -9)");
        else if (rc)
            status =
                cli_error("cat", "the node of the cluster on this host has ended, or runs another version of weft: %s; see `weft logs`",
                          base_strerror(rc));
        else if (f.type == CONTROL_ERROR)
            status = cli_error("cat", "%s", payload);
        else if (f.type == CONTROL_DONE)
            break;
        else if (f.type == CONTROL_OUT && !write_all(payload, f.bytes))
            status = cli_error("cat", "cannot write to standard output: %s", base_strerror(errno));
    }
    free(payload);
    return status;
}

int cli_cat(int argc, char **argv)
{
    static const struct option longs[] = {
        {"range", required_argument, NULL, 'R'}, {"cluster", required_argument, NULL, 'C'}, {"help", no_argument, NULL, 'h'}, {0}};
    const char *cluster = NULL, *hosts[2] = {NULL}, *words[4] = {NULL, "0", "9223372036854775807", NULL};
    struct control_request r = {.head = {.what = CONTROL_CAT}, .hosts = hosts, .arguments = words};
    bool started = false;
    int c, status;
    while ((c = cli_option("cat", argc, argv, "h", longs, &started)) != -1) {
        switch (c) {
        case 'C': cluster = optarg; break;
        case 'R':
            if (!take_range(optarg, &words[1], &words[2]))
                return cli_usage("cat", "--range is not valid: write FIRST-LAST or FIRST-, counted in bytes from 0, as in 0-1023");
            break;
        case 'h': fputs(cat_help, stdout); return cli_flush("cat");
        default: return CLI_USAGE;
        }
    }
    if (argc - optind != 1)
        return cli_usage("cat", "give one file, as HOST:PATH");
    if ((status = split_file("cat", argv[optind], &hosts[0], &words[0])))
        return status;
    int fd = standing_ask("cat", cluster, &r);
    if (fd < 0)
        return CLI_FAILED;
    status = print_file(fd);
    close(fd);
    return status;
}

/* --- weft files --- */

static const char files_help[] =
    "Usage: weft files [--cluster NAME] [--json]\n"
    "\n"
    "When a program reads a file of another host of a standing cluster (`weft up`), that host keeps the bytes in a cache in\n"
    "its memory for later readers. This command lists the files in the caches:\n"
    "\n"
    "  cached       how much of the file is in the cache\n"
    "  hits         how often a piece of 1 MiB was needed and was in the cache\n"
    "  disk reads   how often a piece was read from the disk\n"
    "  readers      how many readers have the file open now\n"
    "  state        pinned: `weft pin` keeps the file in the cache; changed: the file on the disk is newer\n"
    "\n"
    "      --cluster NAME     the name of the cluster; default: the value of WEFT_CLUSTER, or \"default\"\n"
    "      --json             print JSON\n"
    "  -h, --help             print this text\n"
    "\n"
    "Exit status: 0; 1 if the cluster is not up; 2 if the command line is wrong.\n";

static uint64_t number_of(const json_t *o, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(o, key));
}

static const char *number_text(const json_t *o, const char *key, char out[24])
{
    snprintf(out, 24, "%llu", (unsigned long long)number_of(o, key));
    return out;
}

static int print_files(const json_t *nodes)
{
    static const struct cli_column columns[] = {{"node", true}, {"file", false},      {"size", true},    {"cached", true},
                                                {"hits", true}, {"disk reads", true}, {"readers", true}, {"state", false}};
    struct cli_table *t = cli_table_new(columns, 8);
    size_t i, k;
    json_t *n, *f;
    json_array_foreach (nodes, i, n) {
        char a[32], b[32], hits[24], reads[24];
        printf("node %llu (%s): %s of %s cached, %s hits, %s disk reads\n", (unsigned long long)number_of(n, "node"),
               json_string_value(json_object_get(n, "host")), base_format_bytes(number_of(n, "cached_bytes"), a, sizeof a),
               base_format_bytes(number_of(n, "limit_bytes"), b, sizeof b), number_text(n, "hits", hits),
               number_text(n, "disk_reads", reads));
        json_array_foreach (json_object_get(n, "files"), k, f) {
            char node[24], readers[24];
            bool pinned = json_is_true(json_object_get(f, "pinned")), stale = json_is_true(json_object_get(f, "stale"));
            const char *cells[] = {number_text(n, "node", node),
                                   json_string_value(json_object_get(f, "path")),
                                   base_format_bytes(number_of(f, "bytes"), a, sizeof a),
                                   base_format_bytes(number_of(f, "cached_bytes"), b, sizeof b),
                                   number_text(f, "hits", hits),
                                   number_text(f, "disk_reads", reads),
                                   number_text(f, "readers", readers),
                                   stale    ? "changed"
                                   : pinned ? "pinned"
                                            : "-"};
            if (t && cells[1])
                cli_table_add(t, cells);
        }
    }
    putchar('\n');
    if (t)
        cli_table_print(t, stdout);
    cli_table_free(t);
    return t ? cli_flush("files") : cli_error("files", "no memory to print the table" BASE_MEMORY_HINT);
}

int cli_files(int argc, char **argv)
{
    static const struct option longs[] = {
        {"cluster", required_argument, NULL, 'C'}, {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
    const char *cluster = NULL;
    struct control_request r = {.head = {.what = CONTROL_FILES}};
    bool started = false, as_json = false;
    char *text;
    int c;
    while ((c = cli_option("files", argc, argv, "h", longs, &started)) != -1) {
        switch (c) {
        case 'C': cluster = optarg; break;
        case 'j': as_json = true; break;
        case 'h': fputs(files_help, stdout); return cli_flush("files");
        default: return CLI_USAGE;
        }
    }
    if (optind < argc)
        return cli_usage("files", "unexpected argument '%s'", argv[optind]);
    int status = standing_text("files", cluster, &r, &text);
    json_t *o = status ? NULL : json_loads(text, 0, NULL), *nodes = json_object_get(o, "nodes");
    if (!status && !json_is_array(nodes))
        status = cli_error("files", "the cluster's answer is invalid; run the same version of weft on all hosts");
    else if (!status)
        status = as_json ? cli_json_print("files", json_incref(o)) : print_files(nodes);
    json_decref(o);
    free(text);
    return status;
}

/* --- weft pin --- */

static const char pin_help[] =
    "Usage: weft pin [--unpin] [--cluster NAME] HOST:PATH\n"
    "\n"
    "Reads a file into the memory of its host, a host of a standing cluster (`weft up`), so that other hosts can read the\n"
    "file without waiting for the disk. The file stays in memory until it is unpinned, until it changes, or until the node\n"
    "ends. Pinned files can fill at most half of the host's cache (`weft up --cache`). HOST and PATH are as in `weft cat`.\n"
    "\n"
    "      --unpin            unpin the file; write PATH as `weft files` shows it\n"
    "      --cluster NAME     the name of the cluster; default: the value of WEFT_CLUSTER, or \"default\"\n"
    "  -h, --help             print this text\n"
    "\n"
    "Exit status: 0; 1 if the file cannot be pinned, or was not pinned; 2 if the command line is wrong.\n";

int cli_pin(int argc, char **argv)
{
    static const struct option longs[] = {
        {"unpin", no_argument, NULL, 'U'}, {"cluster", required_argument, NULL, 'C'}, {"help", no_argument, NULL, 'h'}, {0}};
    const char *cluster = NULL, *hosts[2] = {NULL}, *words[3] = {NULL};
    struct control_request r = {.head = {.what = CONTROL_PIN}, .hosts = hosts, .arguments = words};
    bool started = false;
    char *text;
    int c, status;
    while ((c = cli_option("pin", argc, argv, "h", longs, &started)) != -1) {
        switch (c) {
        case 'C': cluster = optarg; break;
        case 'U': words[1] = "unpin"; break;
        case 'h': fputs(pin_help, stdout); return cli_flush("pin");
        default: return CLI_USAGE;
        }
    }
    if (argc - optind != 1)
        return cli_usage("pin", "give one file, as HOST:PATH");
    if ((status = split_file("pin", argv[optind], &hosts[0], &words[0])))
        return status;
    status = standing_text("pin", cluster, &r, &text);
    free(text);
    return status;
}
