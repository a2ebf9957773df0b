/* SPDX-License-Identifier: MIT
 *
 * The process groups that this node runs for others, in memory that is shared with a process of its own, the guardian. When the node ends,
 * however it does, a pipe tells the guardian, which kills the groups that are left.
 */
#include "gateway/gateway.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/process.h"

struct gateway_groups {
    _Atomic int32_t *number; /* [GATEWAY_PROCESSES]; 0: none; -1: taken, and its process has not begun */
    pid_t guardian;
    int fd; /* closed by this node's end */
};

#define GROUPS_BYTES (GATEWAY_PROCESSES * sizeof(_Atomic int32_t))

/* The new process of a process that may have threads: system calls, and nothing else. */
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
        return base_fail(-ENOMEM, "no memory for the processes that this node is to run");
    void *memory = mmap(NULL, GROUPS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int rc = memory == MAP_FAILED ? -errno : base_pipe(fds, 0);
    if (rc) {
        if (memory != MAP_FAILED)
            munmap(memory, GROUPS_BYTES);
        free(all);
        return base_fail(rc, "preparing to run processes for other nodes: %s", base_strerror(rc));
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
        return base_fail(rc, "starting the process that ends what this node runs for others: %s", base_strerror(rc));
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
