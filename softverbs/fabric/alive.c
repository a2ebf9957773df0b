/* SPDX-License-Identifier: MIT
 *
 * Finds out which processes of a fabric are alive.
 *
 * A process is alive if its memory holds a random number, its cookie, at the address that its entry names. One read of its memory decides
 * this. The read also distinguishes the process from a later one with the same number, and from a program that has replaced it (exec).
 *
 * If that read is forbidden (Yama's scope 2, another user namespace, a program that may not be traced), the start time of the process
 * decides instead. A mistake would be serious: the queues of a living process would be destroyed.
 */
#include "shared.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static _Atomic uint64_t own_space; /* cache of sf_know_self(); a forked child may be in another namespace, and asks again when it joins */

/* Field 22 of /proc/PID/stat, or -errno if it cannot be read. The command's name before it is in brackets and may contain any character. */
static int64_t start_of(const char *path)
{
    char text[1024];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return -ESRCH;
    text[n] = 0;
    char *field = strrchr(text, ')');
    for (int i = 2; field && i < 22; i++)
        field = strchr(field + 1, ' ');
    return field ? strtoll(field, NULL, 10) : -EIO;
}

void sf_know_self(uint64_t *space, uint64_t *started)
{
    struct stat s;
    int64_t start = start_of("/proc/self/stat");
    *space = stat("/proc/self/ns/pid", &s) == 0 ? s.st_ino : 0;
    *started = start > 0 ? (uint64_t)start : 0;
    atomic_store_explicit(&own_space, *space, memory_order_relaxed);
}

/* Whether the process with this number started at the time that the entry has. True if that cannot be found out. */
static bool same_start(const struct sf_process *p)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/stat", p->pid);
    int64_t start = p->started ? start_of(path) : -EACCES;
    if (start < 0) /* if /proc hides the processes of other users, a living process may have no file there */
        return kill(p->pid, 0) == 0 || errno == EPERM;
    return (uint64_t)start == p->started;
}

pid_t sf_reach(const struct sf_fabric *f, uint32_t process)
{
    return atomic_load_explicit(&f->processes[(process - 1) % SF_PROCESSES].thread, memory_order_relaxed);
}

static ssize_t read_cookie(const struct sf_process *p, pid_t by, uint64_t *cookie)
{
    struct iovec here = {cookie, sizeof *cookie}, there = {(void *)(uintptr_t)p->cookie_address, sizeof *cookie};
    return process_vm_readv(by, &here, 1, &there, 1, 0);
}

/* Find a living thread of the process. After its first thread has ended, a process goes on, but its memory is accessible only through the
 * number of another thread. */
static bool found_thread(struct sf_process *p)
{
    char path[32];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/task", p->pid);
    DIR *threads = opendir(path);
    for (struct dirent *e; threads && !found && (e = readdir(threads));) {
        uint64_t cookie;
        pid_t by = (pid_t)strtol(e->d_name, NULL, 10);
        found = by > 0 && read_cookie(p, by, &cookie) == (ssize_t)sizeof cookie && cookie == p->cookie;
        if (found)
            atomic_store_explicit(&p->thread, by, memory_order_relaxed);
    }
    if (threads)
        closedir(threads);
    return found;
}

bool sf_alive(struct sf_fabric *f, uint32_t process)
{
    if (process == 0 || process > SF_PROCESSES)
        return false;
    struct sf_process *p = &f->processes[process - 1];
    uint32_t owner = atomic_load_explicit(&p->owner, memory_order_acquire);
    if (owner == 0)
        return false;
    if (owner & SF_JOINING) /* the process has not written its cookie yet; for these few microseconds its process number decides */
        return kill((pid_t)(owner & ~SF_JOINING), 0) == 0 || errno == EPERM;
    uint64_t space = atomic_load_explicit(&p->space, memory_order_relaxed);
    if (space != atomic_load_explicit(&own_space, memory_order_relaxed))
        return space !=
               SF_SPACE_DEAD; /* the process is in another PID namespace, where its number is another one: only sf_attach() can decide */
    uint64_t cookie = 0;
    ssize_t n = read_cookie(p, sf_reach(f, process), &cookie);
    if (n < 0 && (errno == EPERM || errno == ENOSYS))
        return same_start(p);
    return (n == (ssize_t)sizeof cookie && cookie == p->cookie) || found_thread(p);
}
