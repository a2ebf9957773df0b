/* SPDX-License-Identifier: MIT
 *
 * The command `weft`: calls the subcommand.
 */
#include <string.h>

#include "cli/command.h"
#include "weft/types.h"

struct command {
    const char *name, *help;
    int (*run)(int argc, char **argv);
};

/* The subcommands, in the order in which --help lists them. */
static const struct command commands[] = {
    {"map", "run a command on pieces of files, many at the same time; print the outputs in order", cli_map},
    {"run", "start a program on every node of a cluster", cli_run},
    {"up", "start a standing cluster: connect hosts until `weft down`", cli_up},
    {"down", "end a standing cluster", cli_down},
    {"status", "show hosts, devices, links, memory and jobs of a standing cluster", cli_status},
    {"exec", "run a command on hosts of a standing cluster, without ssh", cli_exec},
    {"cast", "copy files to many hosts of a standing cluster at once", cli_cast},
    {"cp", "copy files between hosts of a standing cluster", cli_cp},
    {"proxy", "let programs on this host use the network of another host", cli_proxy},
    {"publish", "make a server of this host reachable at a port of another host", cli_publish},
    {"cat", "print a file of another host", cli_cat},
    {"files", "list the files that hosts keep in memory for others", cli_files},
    {"pin", "keep a file of a host in its memory", cli_pin},
    {"ps", "list the jobs: the commands that `weft exec` has started", cli_ps},
    {"kill", "end a job", cli_kill},
    {"logs", "print the output of a job, or the log of a standing cluster", cli_logs},
    {"topo", "measure how fast the hosts of a cluster reach each other, and by which way", cli_topo},
    {"devices", "show the RDMA devices of this host, and how weft would use them", cli_devices},
    {"gpus", "show the GPUs of this host, and whether weft can use them", cli_gpus},
    {"plan", "compute whether an RDMA device has enough resources for a program", cli_plan},
    {"doctor", "find what prevents RDMA on this host, and say how to repair it", cli_doctor},
    {"probe", "test what an RDMA device really does", cli_probe},
    {"config", "print all settings, and where each value comes from", cli_config},
};
#define COMMANDS (sizeof commands / sizeof commands[0])

static void cli_main_print_help(FILE *to)
{
    fputs("Usage: weft COMMAND [OPTIONS] [ARGUMENTS]\n"
          "\n"
          "weft lets processes on one host or on several hosts work together: each can read and write the memory of all others,\n"
          "send them messages, and share work with them. Such a group of processes is a cluster; its processes are nodes.\n"
          "\n"
          "Commands:\n",
          to);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(to, "  %-8s  %s\n", commands[i].name, commands[i].help);
    fputs("\n"
          "  weft map big.txt -- wc -l    count the lines of every piece of a file, on all processors\n"
          "  weft run -n 4 -- ./program   start four nodes here; the program calls weft_open() to join\n"
          "  weft config                  show the settings, and where each comes from\n"
          "\n"
          "`weft COMMAND --help` (or `weft help COMMAND`) explains a command; `weft --version` prints the version.\n"
          "Settings are environment variables, WEFT_...; `weft config` lists them.\n"
          "Messages go to standard error. Exit status: 0, 1 for a failure, 2 for a wrong command line;\n"
          "`run`, `map`, `exec` and `proxy` have more.\n",
          to);
}

/* Levenshtein distance of two words of up to 31 letters. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[32];
    size_t n = strnlen(b, 31);
    for (unsigned j = 0; j <= n; j++)
        row[j] = j;
    for (unsigned i = 1; a[i - 1]; i++) {
        unsigned diagonal = row[0];
        row[0] = i;
        for (unsigned j = 1; j <= n; j++) {
            unsigned best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

static int unknown(const char *word)
{
    const char *near = NULL;
    unsigned best = 3;
    for (size_t i = 0; i < COMMANDS; i++) {
        unsigned d = distance(word, commands[i].name);
        if (strncmp(word, commands[i].name, strlen(word)) == 0)
            d = 1; /* the word is the beginning of a command's name */
        if (d < best) {
            best = d;
            near = commands[i].name;
        }
    }
    if (near)
        return cli_usage("", "unknown command '%s'; did you mean '%s'?", word, near);
    return cli_usage("", "unknown command '%s'", word);
}

static const struct command *cli_main_find(const char *word)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(word, commands[i].name) == 0)
            return &commands[i];
    return NULL;
}

int main(int argc, char **argv)
{
    cli_hold_standard_files();
    if (argc < 2) {
        cli_main_print_help(stderr);
        return CLI_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || (strcmp(word, "help") == 0 && argc == 2)) {
        cli_main_print_help(stdout);
        return cli_flush("");
    }
    if (strcmp(word, "--version") == 0) {
        printf("weft %s\n", weft_version());
        return cli_flush("");
    }
    if (strcmp(word, "help") == 0) {
        const struct command *c = cli_main_find(argv[2]);
        char dash[] = "--help";
        char *args[] = {argv[2], dash, NULL};
        return c ? c->run(2, args) : unknown(argv[2]);
    }
    if (word[0] == '-')
        return cli_usage("", "unknown option '%s'", word);
    const struct command *c = cli_main_find(word);
    return c ? c->run(argc - 1, argv + 1) : unknown(word);
}
