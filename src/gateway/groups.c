/* SPDX-License-Identifier: MIT
 *
 * The process groups that this node runs for other nodes. Their numbers are in memory that is shared with a helper process, the guardian.
 * The guardian reads from a pipe whose other end the node's process holds. When the node's process ends in any way, the pipe closes, and
 * the guardian kills the groups that are left.
 */
#include "gateway/gateway.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/process.h"

struct gateway_groups {
    _Atomic int32_t *number; /* [GATEWAY_PROCESSES] process groups; 0: free; -1: reserved for a process that has not started yet */
    pid_t guardian;
    int fd; /* the write end of the guardian's pipe; the system closes it when this process ends */
};

#define GROUPS_BYTES (GATEWAY_PROCESSES * sizeof(_Atomic int32_t))

/* Runs in the forked child. The parent may have threads, so the child makes only system calls. */
static _Noreturn void guard(const _Atomic int32_t *number, int fd)
{
    char byte;
    base_process_set_apart("weft-guardian");
    if (dup2(fd, 3) == 3) {
        base_close_from(4);
        int rc = chdir("/");
        (void)rc;
        while (read(3, &byte, 1) < 0 && errno == EINTR)
            ;
    }
    for (uint32_t i = 0; i < GATEWAY_PROCESSES; i++) {
        int32_t n = atomic_load_explicit(&number[i], memory_order_seq_cst);
        if (n > 1)
            kill(-n, SIGKILL);
    }
    _exit(0);
}

int gateway_groups_open(struct gateway_groups **out)
{
    int fds[2];
    struct gateway_groups *all = calloc(1, sizeof *all);
    if (!all)
        return base_fail(-ENOMEM, "no memory for the table of the processes that other nodes may start on this node" BASE_MEMORY_HINT);
    void *memory = mmap(NULL, GROUPS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int rc = memory == MAP_FAILED ? -errno : base_pipe(fds, 0);
    if (rc) {
        if (memory != MAP_FAILED)
            munmap(memory, GROUPS_BYTES);
        free(all);
        return base_fail(rc, "cannot share the table of the processes that other nodes may start on this node: %s" BASE_MEMORY_HINT,
                         base_strerror(rc));
    }
    all->number = memory;
    all->guardian = base_process_fork();
    if (all->guardian == 0)
        guard(all->number, fds[0]);
    close(fds[0]);
    if (all->guardian < 0) {
        rc = (int)all->guardian;
        close(fds[1]);
        munmap(memory, GROUPS_BYTES);
        free(all);
        return base_fail(
            rc,
            "cannot start the process that ends the programs which this node runs for other nodes, if this node dies: %s" BASE_THREAD_HINT,
            base_strerror(rc));
    }
    all->fd = fds[1];
    *out = all;
    return 0;
}

_Atomic int32_t *gateway_groups_place(struct gateway_groups *all)
{
    for (uint32_t i = 0; i < GATEWAY_PROCESSES; i++) {
        int32_t none = 0;
        if (atomic_compare_exchange_strong_explicit(&all->number[i], &none, -1, memory_order_seq_cst, memory_order_relaxed))
            return &all->number[i];
    }
    return NULL;
}

void gateway_groups_close(struct gateway_groups *all)
{
    if (!all)
        return;
    close(all->fd);
    base_process_reap(all->guardian);
    munmap((void *)all->number, GROUPS_BYTES);
    free(all);
}
