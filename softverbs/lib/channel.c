/* SPDX-License-Identifier: MIT
 *
 * Completion channels. The program's descriptor is an epoll set of a pipe and a timer. A process that produces a completion writes into the
 * pipe. The timer is for requests that wait for a time, because the receiver was not ready, or a fault delays a message. The library has no
 * threads, so the timer must wake the program's sleeping thread.
 */
#include "lib.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

static struct sv_channel *channel_of(struct ibv_comp_channel *c)
{
    return sv_container(c, struct sv_channel, base);
}

static bool channel_stale(const struct sv_channel *ch)
{
    return !sv_joined() || ch->life != sv_lib.life;
}

/* Continues requests whose time has come, and sets the timer for the others. */
static void look_at_clock(struct sv_channel *ch)
{
    sv_alarm_set(ch, sv_progress(SF_NO_DEVICE));
}

/* ---- The channel ------------------------------------------------------------------------------------------------ */
SV_PUBLIC struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    struct sv_context *ctx = sv_context_of(context);
    struct epoll_event in = {.events = EPOLLIN};
    struct sv_channel *ch;
    int err = ctx->life != sv_lib.life ? ENODEV : sv_refused(SF_VERB_CREATE_CHANNEL, ctx->device);

    if (err)
        goto out;
    ch = calloc(1, sizeof *ch);
    if (!ch) {
        err = ENOMEM;
        goto out;
    }
    err = sv_pipe_take(&ch->pipe_read, &ch->pipe_write);
    if (err)
        goto memory;
    ch->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (ch->timer < 0) {
        err = errno;
        goto pipe;
    }
    ch->base.fd = epoll_create1(EPOLL_CLOEXEC);
    if (ch->base.fd < 0) {
        err = errno;
        goto timer;
    }
    if (fcntl(ch->pipe_read, F_SETFL, O_NONBLOCK) || epoll_ctl(ch->base.fd, EPOLL_CTL_ADD, ch->pipe_read, &in) ||
        epoll_ctl(ch->base.fd, EPOLL_CTL_ADD, ch->timer, &in)) {
        err = errno;
        goto epoll;
    }
    ch->base.context = context;
    ch->life = sv_lib.life;
    pthread_mutex_init(&ch->mutex, NULL);
    atomic_fetch_add_explicit(&ctx->objects, 1, memory_order_relaxed);
    return &ch->base;

epoll:
    close(ch->base.fd);
timer:
    close(ch->timer);
pipe:
    sv_pipe_give(ch->pipe_read, ch->pipe_write);
memory:
    free(ch);
out:
    errno = err;
    return NULL;
}

SV_PUBLIC int ibv_destroy_comp_channel(struct ibv_comp_channel *base)
{
    struct sv_channel *ch = channel_of(base);
    int used;

    pthread_mutex_lock(&sv_lib.mutex);
    used = ch->base.refcnt; /* cq.c holds the same lock when it counts users */
    pthread_mutex_unlock(&sv_lib.mutex);
    if (used)
        return EBUSY;
    atomic_fetch_sub_explicit(&sv_context_of(base->context)->objects, 1, memory_order_relaxed);
    close(ch->base.fd);
    close(ch->timer);
    if (!channel_stale(ch))
        sv_pipe_give(ch->pipe_read, ch->pipe_write);
    pthread_mutex_destroy(&ch->mutex);
    free(ch);
    return 0;
}

/* Returns the queue of an event, and counts the event as delivered: the program must acknowledge it. Returns NULL if the queue was
 * destroyed. */
static struct sv_cq *channel_deliver(struct sv_channel *ch, const struct sv_event *event)
{
    struct sv_cq *cq = NULL;

    if (event->entry >= SF_CQS)
        return NULL;
    /* ibv_destroy_cq() removes the queue under this lock, and then waits until the delivered events are acknowledged. */
    pthread_mutex_lock(&sv_lib.mutex);
    cq = sv_lib.cqs[event->entry];
    if (cq && (cq->generation != event->generation || cq->channel != ch))
        cq = NULL;
    if (cq) {
        pthread_mutex_lock(&cq->base.mutex);
        cq->events_delivered++;
        pthread_mutex_unlock(&cq->base.mutex);
        /* seq_cst: pairs with the load in tell_of_unpolled (complete.c) */
        atomic_store_explicit(&cq->told, 0, memory_order_seq_cst);
    }
    pthread_mutex_unlock(&sv_lib.mutex);
    return cq;
}

/* Whether all signal handlers of the program have SA_RESTART. On a real channel, the kernel restarts the program's read() after such a
 * handler. poll() is never restarted, and no call tells which handler has run. */
static bool all_handlers_restart(void)
{
    for (int s = 1; s <= SIGRTMAX; s++) {
        struct sigaction action;
        if (s == SIGSEGV || s == SIGBUS || s == SIGILL || s == SIGFPE || s == SIGTRAP || s == SIGABRT || s == SIGSYS)
            continue; /* a thread's own instructions cause these signals, so a thread that sleeps here does not get them */
        if (sigaction(s, NULL, &action) == 0 && action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN &&
            !(action.sa_flags & SA_RESTART))
            return false;
    }
    return true;
}

SV_PUBLIC int ibv_get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **cq_out, void **cq_context)
{
    struct sv_channel *ch = channel_of(base);

    if (channel_stale(ch)) {
        errno = ENODEV;
        return -1;
    }
    for (bool looked = false;;) {
        struct sv_event event;
        ssize_t n = read(ch->pipe_read, &event, sizeof event);

        if (n == (ssize_t)sizeof event) {
            struct sv_cq *cq = event.kind == 1 ? channel_deliver(ch, &event) : NULL;
            if (cq) {
                *cq_out = &cq->base;
                *cq_context = cq->base.cq_context;
                return 0;
            }
            if (event.kind == 2)
                look_at_clock(ch);
            continue;
        }
        if (n < 0 && errno != EAGAIN)
            return -1;
        if (!looked && sv_alarm_rang(ch)) {
            look_at_clock(ch);
            looked = true; /* do this once for each call, because it takes time */
            continue;
        }
        /* There is no event. O_NONBLOCK on the program's descriptor says whether to wait. */
        int flags = fcntl(ch->base.fd, F_GETFL);
        if (flags < 0)
            return -1;
        if (flags & O_NONBLOCK) {
            errno = EAGAIN;
            return -1;
        }
        struct pollfd wait[2] = {{.fd = ch->pipe_read, .events = POLLIN}, {.fd = ch->timer, .events = POLLIN}};
        if (poll(wait, 2, -1) < 0 && (errno != EINTR || !all_handlers_restart()))
            return -1;
        looked = false;
    }
}

SV_PUBLIC void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += count;
    pthread_cond_broadcast(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}
