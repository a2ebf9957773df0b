/* SPDX-License-Identifier: MIT
 *
 * The guardian of a node that is apart (on another host than the owner). It is a child process in a session of its own, so that a signal to
 * the node's process group does not reach it. A pipe tells it when the node has ended. Then the guardian kills the process groups of the
 * node's commands. The numbers of these groups are on the board.
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

/* Start the guardian before other descriptors are opened. If the guardian inherited such descriptors, the processes at their other ends
 * would not notice this node's death. */
int map_guardian_start(struct map_job *job, size_t lines)
{
    int fds[2], rc = base_pipe(fds, 0);
    if (rc)
        return base_fail(rc, "cannot make the pipe to the process that ends a dead node's commands: %s" BASE_FILES_HINT, base_strerror(rc));
    fflush(NULL);
    pid_t pid = base_process_fork(); /* all signals stay blocked in the guardian */
    if (pid == 0) {
        close(fds[1]);
        guard(job, fds[0], lines);
    }
    close(fds[0]);
    if (pid < 0) {
        close(fds[1]);
        return base_fail((int)pid, "cannot start the process that ends a dead node's commands: %s" BASE_THREAD_HINT,
                         base_strerror((int)pid));
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
