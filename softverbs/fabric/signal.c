/* SPDX-License-Identifier: MIT
 *
 * Wakes another process by a short message in the pipe on which that process sleeps.
 *
 * The pipe's writing end is opened through /proc/PID/fd once, and kept in a small cache. This is safe, because the library never closes a
 * pipe whose number is on the fabric (lib/pipe.c): while the process lives, the number names the same pipe. The cookie, which is a part of
 * the cache's key, distinguishes a process from a later one with the same number.
 *
 * The pipe is opened for reading, too; otherwise a write to a dead process's pipe would raise SIGPIPE.
 */
#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENDS = 32, MANY = 4096 };

static struct end {
    uint64_t cookie; /* 0: unused */
    uint32_t process;
    int theirs, mine;
} ends[ENDS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects `ends`; held during writes */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* In a forked child: drops the parent's cache. The mutex may be held by a thread that the child does not have. */
static void signal_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    for (int i = 0; i < ENDS; i++) {
        if (ends[i].cookie)
            close(ends[i].mine);
        ends[i].cookie = 0;
    }
}

static void signal_prepare(void)
{
    pthread_atfork(NULL, NULL, signal_in_child);
}

/* Writes a message. If the pipe is full, enlarges it as far as an unprivileged user may, because the reader must not miss this message. */
static int signal_put(int fd, const void *message, size_t bytes)
{
    for (;;) {
        ssize_t n = write(fd, message, bytes);
        if (n == (ssize_t)bytes)
            return 0;
        if (n >= 0)
            return -EIO; /* pipes take short messages completely or not at all, so this is not a pipe */
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return -errno;
        int size = fcntl(fd, F_GETPIPE_SZ);
        if (size < 0 || size > 1 << 29 || fcntl(fd, F_SETPIPE_SZ, size * 2) < 0)
            return -EAGAIN;
    }
}

static int open_end(struct sf_fabric *f, uint32_t process, int fd)
{
    char path[64];
    struct stat st;

    if (!sf_alive(f, process))
        return -ESRCH;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)sf_reach(f, process), fd);
    int mine = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (mine < 0)
        return -errno;
    /* the process may have died, and its number may belong to a new process, in which this descriptor may be any file */
    if (fstat(mine, &st) != 0 || !S_ISFIFO(st.st_mode) || !sf_alive(f, process)) {
        close(mine);
        return -ESRCH;
    }
    return mine;
}

int sf_signal(struct sf_view *v, uint32_t process, int fd, const void *message, size_t bytes)
{
    struct sf_fabric *f = v->fabric;
    int err;

    if (process == 0 || process > SF_PROCESSES || fd < 0)
        return -EINVAL;
    if (process == v->process)
        return signal_put(fd, message, bytes);
    if (!atomic_load_explicit(&f->processes[process - 1].owner, memory_order_acquire))
        return -ESRCH;

    pthread_once(&once, signal_prepare);
    pthread_mutex_lock(&mutex);
    uint64_t cookie = f->processes[process - 1].cookie;
    struct end *e = &ends[(process * 7 + (uint32_t)fd) % ENDS];
    if (e->cookie == 0 || e->cookie != cookie || e->process != process || e->theirs != fd) {
        int mine = open_end(f, process, fd);
        if (mine < 0) {
            err = mine;
            goto out;
        }
        if (e->cookie)
            close(e->mine);
        *e = (struct end){.cookie = cookie, .process = process, .theirs = fd, .mine = mine};
    }
    /* Leave out a request to check the timers if MANY bytes are unread: a reader with so many messages checks its timers anyway, and the
     * rest of the pipe is for completion events. */
    int unread;
    bool clock = bytes == sizeof(struct sv_event) && ((const struct sv_event *)message)->kind == 2;
    err = clock && ioctl(e->mine, FIONREAD, &unread) == 0 && unread >= MANY ? 0 : signal_put(e->mine, message, bytes);
out:
    pthread_mutex_unlock(&mutex);
    return err;
}
