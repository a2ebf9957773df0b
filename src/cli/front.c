/* SPDX-License-Identifier: MIT
 *
 * The small command: the program that is installed as `weft`. It has `weft exec`, which is for short programs, so the time of its own start
 * counts. For every other command it is replaced by the whole command (main.c), which needs five times as long to start: it is large and
 * loads more libraries. Only Linux has the small command.
 */
#include <string.h>
#include <unistd.h>

#include "base/process.h"
#include "cli/command.h"
#include "cli/exec.h"
#include "cli/self.h"

static char **words;

/* Replaces this process by the whole command, with the same arguments. Returns only if that fails. */
static int become_whole(void)
{
    static const char *const places[] = {WEFT_WHOLE, "whole/weft"}; /* where it is installed; where it is built */
    char path[PATH_MAX];
    int error = ENOENT;
    for (size_t i = 0; i < sizeof places / sizeof places[0] && error == ENOENT; i++) {
        error = -self_beside(places[i], path);
        if (error)
            continue;
        execv(path, words);
        error = errno;
    }
    return cli_error("", "%s, which has all commands but `weft exec`, cannot be executed: %s; install weft again", places[0],
                     error == EPERM ? "another user may have put it there" : base_strerror(error));
}

/* `weft exec --json` needs a library, so the whole command does it. */
int exec_events(exec_event **out)
{
    *out = NULL;
    return become_whole();
}

int main(int argc, char **argv)
{
    cli_hold_standard_files();
    words = argv;
    return argc > 1 && strcmp(argv[1], "exec") == 0 ? cli_exec(argc - 1, argv + 1) : become_whole();
}
