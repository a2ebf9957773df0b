/* SPDX-License-Identifier: MIT
 *
 * The keeper: a process that knows the process groups of the nodes, and reads from a pipe of the launcher. When the launcher has ended, the
 * pipe ends, and the keeper kills the groups that are left. A launcher that ends normally has removed all groups.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/base.h"
#include "base/process.h"
#include "cli/launch.h"
#include "weft/types.h"

#define ROUNDS   100 /* maximum number of attempts to remove the directory */
#define QUIET    20  /* this many attempts in a row must succeed, because a process that is being killed may still create files */
#define ROUND_NS (10 * WEFT_MS)
/* Maximum number of rounds to wait for the end of a launcher whose pipe was closed. */
#define GONE_WITHIN 500

bool keeper_remove_dir(const char *dir)
{
    DIR *d = dir[0] ? opendir(dir) : NULL;
    if (!d)
        return true;
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        unlinkat(dirfd(d), e->d_name, 0); /* "." and ".." are refused */
    closedir(d);
    return rmdir(dir) == 0;
}

static _Noreturn void keeper_keep(int fd, const char *remove_dir, pid_t launcher, const _Atomic int32_t *starting)
{
    static pid_t groups[WEFT_MAX_NODES];
    unsigned count = 0;
    int32_t message;
    bool in_order = false; /* the launcher ends normally, and waits for the keeper */
    /* Signals to the launcher's session and process group must not reach the keeper. The keeper must not hold the launcher's output open,
     * because whoever reads that output waits for its end. All signals stay blocked. */
    base_process_set_apart("weft-keeper");
    for (;;) {
        ssize_t n = read(fd, &message, sizeof message);
        if (n < 0 && errno == EINTR)
            continue;
        if (n != (ssize_t)sizeof message)
            break;
        if ((in_order = message == 0))
            break;
        if (message > 0 && count < WEFT_MAX_NODES)
            groups[count++] = message;
        for (unsigned i = 0; message < 0 && i < count; i++) {
            if (groups[i] == -message) {
                groups[i] = groups[--count];
                break;
            }
        }
    }
    for (unsigned i = 0; i < count; i++)
        kill(-groups[i], SIGKILL);
    int32_t group = atomic_load_explicit(starting, memory_order_relaxed);
    if (!in_order && group > 0)
        kill(-group, SIGKILL);
    for (int i = 0; !in_order && i < GONE_WITHIN && getppid() == launcher; i++)
        base_sleep_ns(ROUND_NS);
    for (int i = 0, quiet = 0; remove_dir[0] && i < ROUNDS; i++) {
        quiet = keeper_remove_dir(remove_dir) ? quiet + 1 : 0;
        if (quiet == (in_order ? 1 : QUIET))
            break;
        base_sleep_ns(ROUND_NS);
    }
    _exit(0);
}

static void keeper_forget(struct keeper *k)
{
    if (k->starting)
        munmap((void *)(uintptr_t)k->starting, sizeof *k->starting);
    k->starting = NULL;
}

int keeper_start(struct keeper *k, const char *remove_dir)
{
    int fds[2];
    k->fd = -1;
    int rc = base_pipe(fds, 0);
    if (rc)
        return rc;
    void *shared = mmap(NULL, sizeof *k->starting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        rc = base_fail(-errno, "cannot share memory with the process that ends the nodes if this launcher is killed: %s" BASE_MEMORY_HINT,
                       base_strerror(errno));
        close(fds[0]);
        close(fds[1]);
        return rc;
    }
    k->starting = shared;
    pid_t launcher = getpid();
    k->pid = base_process_fork();
    if (k->pid == 0) {
        close(fds[1]);
        keeper_keep(fds[0], remove_dir, launcher, k->starting);
    }
    close(fds[0]);
    if (k->pid < 0) {
        close(fds[1]);
        keeper_forget(k);
        return base_fail((int)k->pid, "cannot start the process that ends the nodes if this launcher is killed: %s" BASE_THREAD_HINT,
                         base_strerror((int)k->pid));
    }
    k->fd = fds[1];
    return 0;
}

static void keeper_tell(struct keeper *k, int32_t message)
{
    /* Errors are ignored: if the keeper was killed, the launch goes on without it. */
    while (k->fd >= 0 && write(k->fd, &message, sizeof message) < 0 && errno == EINTR)
        ;
}

void keeper_add(struct keeper *k, pid_t group)
{
    keeper_tell(k, (int32_t)group);
    atomic_store_explicit(k->starting, 0, memory_order_relaxed);
}

void keeper_drop(struct keeper *k, pid_t group)
{
    keeper_tell(k, (int32_t)-group);
}

void keeper_stop(struct keeper *k)
{
    if (k->fd < 0)
        return;
    keeper_tell(k, 0);
    close(k->fd);
    k->fd = -1;
    base_process_reap(k->pid);
    keeper_forget(k);
}
