/* SPDX-License-Identifier: MIT
 *
 * Finds out which processes of a fabric are alive.
 *
 * Each process has a random number, its cookie, in its memory, at an address that its entry names. A process is alive if the cookie can be
 * read there. This also recognizes a later process with the same number, and a program that has replaced the process (exec).
 *
 * If the memory may not be read (Yama's scope 2, another user namespace, a program that may not be traced), the start time of the process
 * decides. A living process must never be taken for dead, because its queues would be destroyed.
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

/* cache of sf_know_self(); a forked child may be in another namespace, and computes this value again when it joins */
static _Atomic uint64_t own_space;

/* Returns field 22 of /proc/PID/stat, or -errno. The command's name before this field is in brackets, and may contain any character. */
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

/* Whether the process with this number started at the time in the entry. Returns true if this is unknown. */
static bool same_start(const struct sf_process *p)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/stat", p->pid);
    int64_t start = p->started ? start_of(path) : -EACCES;
    if (start < 0) /* if /proc hides other users' processes, a living process may have no file there */
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

/* Finds a living thread of the process. When the first thread of a process has ended, its memory is accessible only by the number of
 * another thread. */
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
    if (owner & SF_JOINING) /* the process is joining, and has not written its cookie yet: its process number decides */
        return kill((pid_t)(owner & ~SF_JOINING), 0) == 0 || errno == EPERM;
    uint64_t space = atomic_load_explicit(&p->space, memory_order_relaxed);
    if (space != atomic_load_explicit(&own_space, memory_order_relaxed))
        /* The process is in another PID namespace, where it has another number. Only sf_attach() can decide. */
        return space != SF_SPACE_DEAD;
    uint64_t cookie = 0;
    ssize_t n = read_cookie(p, sf_reach(f, process), &cookie);
    if (n < 0 && (errno == EPERM || errno == ENOSYS))
        return same_start(p);
    return (n == (ssize_t)sizeof cookie && cookie == p->cookie) || found_thread(p);
}
