/* SPDX-License-Identifier: MIT
 *
 * The command `softverbs`: finds the subcommand and calls it.
 */
#include "subcommand.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

struct command {
    const char *name, *help;
    int (*run)(int argc, char **argv);
};

/* In the order of the help. */
static const struct command commands[] = {
    {"run", "start a program on a host; it sees the devices of that host", cli_run},
    {"up", "make a fabric: switch N, mesh N, ring N, chain N or a file", cli_up},
    {"ls", "list fabrics, their devices, and the processes that use them", cli_ls},
    {"down", "remove a fabric", cli_down},
    {"reboot", "restart the devices of a host: frees leaked protection domains", cli_reboot},
    {"fault", "lose, corrupt or delay messages, refuse calls, pull cables", cli_fault},
    {"topo", "print a topology as JSON, as a graph, or as MLX's hostfile", cli_topo},
    {"profile", "list the profiles, which are kinds of device, or print one", cli_profile},
};
#define COMMANDS (sizeof commands / sizeof commands[0])

static void print_help(FILE *to)
{
    fputs("Usage: softverbs COMMAND [OPTIONS] [ARGUMENTS]\n"
          "\n"
          "A software RDMA device: programs written for libibverbs, or for Apple's librdma, run unchanged on a\n"
          "machine that has no RDMA hardware, with the limits and errors of the device they are meant for.\n"
          "\n"
          "Commands:\n",
          to);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(to, "  %-8s  %s\n", commands[i].name, commands[i].help);
    fputs("\n"
          "  softverbs run -- ibv_devinfo                            the device of host 0\n"
          "  softverbs run --host 0 -- ib_write_bw &                 two hosts of one fabric, which the first `run`\n"
          "  softverbs run --host 1 -- ib_write_bw 127.0.0.1         makes: a switch with hosts 0 to 7\n"
          "\n"
          "  softverbs up --fabric macs --profile tb5 mesh 4         four Macs, a cable between every two\n"
          "  softverbs run --fabric macs --host 2 -- ./program\n"
          "  softverbs fault add --fabric macs drop --chance 0.05%   lose some messages, the same ones each time\n"
          "  softverbs ls; softverbs down --fabric macs\n"
          "\n"
          "`softverbs COMMAND --help` explains a command; softverbs(1) is the manual; `softverbs --version` prints the version.\n"
          "--fabric names the fabric (default: SOFTVERBS_FABRIC, else 'default'), --host the host (default: SOFTVERBS_HOST,\n"
          "else the first). With SOFTVERBS_LOG=info a program says on standard error why a call was refused.\n"
          "Exit status: 0; 1 for a failure; 2 for a wrong command line.\n",
          to);
}

static int main_unknown(const char *word)
{
    const char *near = cli_nearest(word, &commands[0].name, COMMANDS, sizeof commands[0]);
    if (near)
        return cli_usage("", "unknown command '%s'; did you mean '%s'?", word, near);
    return cli_usage("", "unknown command '%s'", word);
}

static const struct command *main_find(const char *word)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(word, commands[i].name) == 0)
            return &commands[i];
    return NULL;
}

/* Opens descriptors 0, 1 and 2 if they are closed, so that a fabric's file does not get such a number. Each becomes /dev/null, opened only
 * for the opposite direction, so that using it fails as before. O_CLOEXEC closes them when the program starts. */
static void hold_standard_files(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", (fd ? O_RDONLY : O_WRONLY) | O_CLOEXEC) != fd)
            _exit(CLI_FAILED);
}

int main(int argc, char **argv)
{
    hold_standard_files();
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || (strcmp(word, "help") == 0 && argc == 2)) {
        print_help(stdout);
        return cli_flush("");
    }
    if (strcmp(word, "--version") == 0) {
        printf("softverbs %s\n", SOFTVERBS_VERSION);
        return cli_flush("");
    }
    if (strcmp(word, "help") == 0) {
        const struct command *c = main_find(argv[2]);
        char dash[] = "--help";
        char *args[] = {argv[2], dash, NULL};
        return c ? c->run(2, args) : main_unknown(argv[2]);
    }
    if (word[0] == '-')
        return cli_usage("", "unknown option '%s'", word);
    const struct command *c = main_find(word);
    return c ? c->run(argc - 1, argv + 1) : main_unknown(word);
}
