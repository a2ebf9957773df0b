/* SPDX-License-Identifier: MIT
 *
 * Runs tests in a child process.
 */
#include "inside.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int inside_run(struct ground *g, int (*tests)(void))
{
    int status = -1, error;
    pid_t child = fork();

    if (child == 0)
        exit(tests());
    if (child > 0)
        waitpid(child, &status, 0);
    error = ground_remove(g);
    return !WIFEXITED(status) || error ? 1 : WEXITSTATUS(status);
}
