/* SPDX-License-Identifier: MIT
 *
 * Shared by all subcommands: messages and the parsing of options.
 */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"

static void cli_output_say(const char *sub, const char *format, va_list args, const char *after)
{
    char line[2048];
    vsnprintf(line, sizeof line, format, args);
    fflush(stdout); /* keeps the order if both streams go to the same file or terminal */
    fprintf(stderr, "weft%s%s: %s\n%s", sub[0] ? " " : "", sub, line, after);
}

int cli_error(const char *sub, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    cli_output_say(sub, format, args, "");
    va_end(args);
    return CLI_FAILED;
}

int cli_usage(const char *sub, const char *format, ...)
{
    char hint[96];
    va_list args;
    snprintf(hint, sizeof hint, "See `weft %s%s--help`.\n", sub, sub[0] ? " " : "");
    va_start(args, format);
    cli_output_say(sub, format, args, hint);
    va_end(args);
    return CLI_USAGE;
}

int cli_option(const char *sub, int argc, char **argv, const char *shorts, const struct option *longs, bool *started)
{
    char all[64];
    bool ends = shorts[0] == '+';
    snprintf(all, sizeof all, "%s:%s", ends ? "+" : "", shorts + ends);
    if (!*started) {
#if defined(__GLIBC__)
        optind = 0; /* resets the state that glibc has kept from an earlier scan */
#else
        optind = 1;
#endif
        opterr = 0;
        *started = true;
    }
    int at = optind < 1 ? 1 : optind;
    int c = getopt_long(argc, argv, all, longs, NULL);
    /* Find the argument that was read, for error messages. It is the argument before optind, except inside a group of letters such as -ab.
     */
    int last = optind > at ? optind - 1 : at;
    const char *word = last < argc ? argv[last] : "";
    if (c == ':') {
        cli_usage(sub, "option '%s' needs a value", word);
        return '?';
    }
    if (c == '?') {
        if (strncmp(word, "--", 2) == 0)
            cli_usage(sub, "unknown option '%s'", word);
        else
            cli_usage(sub, "unknown option '-%c'", optopt);
    }
    return c;
}

int cli_flush(const char *sub)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    return cli_error(sub, "cannot write to standard output: %s", base_strerror(errno));
}

void cli_hold_standard_files(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd)
            _exit(CLI_FAILED);
}
