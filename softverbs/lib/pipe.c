/* SPDX-License-Identifier: MIT
 *
 * Pipes for events to a program. Another process reads the number of a writing end on the fabric, opens it and keeps it open
 * (fabric/signal.c). So this number must never name another descriptor of the program: when a channel is destroyed, its pipe stays open,
 * and is used for the next channel.
 */
#include "lib.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static struct resting {
    struct resting *next;
    int read_end, write_end;
} * resting;
enum { NUMBERS = 1 << 16 };
/* a bit for each descriptor that is a writing end; higher numbers count as writing ends */
static _Atomic uint64_t ours[NUMBERS / 64];
static pid_t owner; /* the process that made the list; in a forked child the pipes belong to its parent */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* Opens a pipe a second time, with O_NONBLOCK, because the program's descriptor must keep its flags. Returns -1 if the pipe is empty. */
static int look_into(int fd)
{
    char path[32];
    int bytes = 0;

    if (ioctl(fd, FIONREAD, &bytes) || bytes == 0)
        return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
}

static void pipe_empty(int fd)
{
    struct sv_event events[64];
    int mine = look_into(fd);

    if (mine < 0)
        return;
    while (read(mine, events, sizeof events) > 0)
        ;
    close(mine);
}

static void pipe_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
}

static void pipe_prepare(void)
{
    pthread_atfork(NULL, NULL, pipe_in_child);
}

int sv_pipe_take(int *read_end, int *write_end)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct resting *r = NULL;
    int fd[2];

    pthread_once(&once, pipe_prepare);
    pthread_mutex_lock(&mutex);
    if (owner != getpid()) {
        owner = getpid();
        resting = NULL;
        for (int i = 0; i < NUMBERS / 64; i++)
            atomic_store_explicit(&ours[i], 0, memory_order_relaxed);
    }
    if (resting) {
        r = resting;
        resting = r->next;
    }
    pthread_mutex_unlock(&mutex);
    if (r) {
        *read_end = r->read_end;
        *write_end = r->write_end;
        free(r);
        pipe_empty(*read_end); /* drops late messages to the pipe's previous user */
        return 0;
    }
    if (pipe2(fd, O_CLOEXEC))
        return errno;
    if (fcntl(fd[1], F_SETFL, O_NONBLOCK)) {
        int err = errno;
        close(fd[0]);
        close(fd[1]);
        return err;
    }
    *read_end = fd[0];
    *write_end = fd[1];
    if (fd[1] < NUMBERS)
        atomic_fetch_or_explicit(&ours[fd[1] / 64], UINT64_C(1) << fd[1] % 64, memory_order_relaxed);
    return 0;
}

bool sv_pipe_ours(int write_end)
{
    return write_end >= NUMBERS ||
           (write_end >= 0 && (atomic_load_explicit(&ours[write_end / 64], memory_order_relaxed) >> write_end % 64 & 1));
}

bool sv_signal(uint32_t process, int fd, const struct sv_event *event)
{
    return sv_signal_all(process, fd, event, 1);
}

bool sv_signal_all(uint32_t process, int fd, const struct sv_event *events, size_t count)
{
    int err;

    /* a forked child must not wake programs through its copies of its parent's queues */
    if (!sv_joined() || fd < 0)
        return false;
    if (process == sv_lib.view.process && !sv_pipe_ours(fd))
        return false; /* another process has overwritten the number, so it names another descriptor */
    err = sf_signal(&sv_lib.view, process, fd, events, count * sizeof *events);
    if (err && err != -ESRCH)
        sv_log(SV_ERROR, "an asynchronous event for process %d is lost: %s",
               process - 1 < SF_PROCESSES ? sv_lib.fabric->processes[process - 1].pid : 0, strerrordesc_np(-err));
    return !err;
}

void sv_pipe_give(int read_end, int write_end)
{
    struct resting *r;

    if (owner != getpid())
        return;                  /* in a forked child: the parent reads from the pipe, so the child must not */
    fcntl(read_end, F_SETFL, 0); /* the program may have changed the flags */
    pipe_empty(read_end);
    r = malloc(sizeof *r);
    if (!r)
        return; /* the pipe stays open, unused */
    *r = (struct resting){.read_end = read_end, .write_end = write_end};
    pthread_mutex_lock(&mutex);
    r->next = resting;
    resting = r;
    pthread_mutex_unlock(&mutex);
}

void sv_pipe_forget(int read_end, int write_end, uint32_t kind, uint32_t types, uint32_t entry, uint32_t generation)
{
    struct sv_event batch[64], *kept = NULL;
    size_t count = 0, room = 0;
    int mine = look_into(read_end);
    ssize_t n;

    if (mine < 0)
        return;
    while ((n = read(mine, batch, sizeof batch)) > 0) {
        for (size_t i = 0; i < (size_t)n / sizeof *batch; i++) {
            const struct sv_event *e = &batch[i];
            if (e->kind == kind && e->entry == entry && e->generation == generation &&
                (kind != 3 || (e->type < 32 && (types >> e->type & 1))))
                continue;
            if (count == room) {
                struct sv_event *more = realloc(kept, (room = room * 2 + 64) * sizeof *more);
                if (!more) { /* this event and later ones stay in the pipe; the reader drops stale ones */
                    sv_signal(sv_lib.view.process, write_end, e);
                    room = count;
                    continue;
                }
                kept = more;
            }
            kept[count++] = *e;
        }
        if ((size_t)n < sizeof batch)
            break;
    }
    close(mine);
    for (size_t i = 0; i < count; i++)
        sv_signal(sv_lib.view.process, write_end, &kept[i]);
    free(kept);
}
