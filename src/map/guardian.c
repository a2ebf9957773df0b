/* SPDX-License-Identifier: MIT
 *
 * The guardian of a node that is apart: a child in a session of its own, which nothing kills that kills the node's process group. It sees
 * on the board what runs, and in a pipe when the node has ended; then it ends what commands have started.
 */
#include "map/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static _Noreturn void guard(struct map_job *job, int fd, size_t lines)
{
    char byte;
    base_process_set_apart("weft-guardian");
    while (read(fd, &byte, 1) < 0 && errno == EINTR)
        ;
    for (size_t i = 0; i < lines; i++)
        map_line_kill(&job->board->lines[i]);
    _exit(0);
}

/* Before anything is open that others must see closed when this process has ended. */
int map_guardian_start(struct map_job *job, size_t lines)
{
    int fds[2], rc = base_pipe(fds, 0);
    if (rc)
        return base_fail(rc, "cannot make a pipe: %s", base_strerror(rc));
    fflush(NULL);
    pid_t pid = base_process_fork(); /* all signals stay blocked in the guardian */
    if (pid == 0) {
        close(fds[1]);
        guard(job, fds[0], lines);
    }
    close(fds[0]);
    if (pid < 0) {
        close(fds[1]);
        return base_fail((int)pid, "cannot start a process: %s", base_strerror((int)pid));
    }
    job->guardian = pid;
    job->guardian_fd = fds[1];
    return 0;
}

void map_guardian_end(struct map_job *job)
{
    if (job->guardian <= 0)
        return;
    close(job->guardian_fd);
    base_process_reap(job->guardian);
    job->guardian = 0;
}
