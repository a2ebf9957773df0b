/* SPDX-License-Identifier: MIT
 *
 * Makes calls to a guard, one at a time. If the guard has ended, or does not answer in time, it is not used again.
 */
#include <poll.h>
#include <unistd.h>

#include "verbs/guard_ask.h"

#define LOOK (5 * WEFT_MS) /* the least time between two checks that the guard is alive */

void guard_lost(struct verbs_guard *g, const char *why)
{
    if (!atomic_exchange_explicit(&g->gone, true, memory_order_relaxed))
        base_log(BASE_LOG_ERROR,
                 "the guard that owns this node's RDMA devices is gone: %s; the node's cables stay unusable until the node is restarted",
                 why);
}

/* How long to wait for the guard's answer. After a time-out the guard is not used again, because a late answer would be taken for the
 * answer to the next call. Calls that only destroy an object wait less, because the guard executes them even if nobody waits. */
static int64_t patience(uint32_t verb)
{
    switch (verb) {
    case GUARD_OPEN:
    case GUARD_ALLOC_PD:
    case GUARD_REG_MR:
    case GUARD_CREATE_CQ:
    case GUARD_CREATE_QP:
    case GUARD_MODIFY_QP: return GUARD_SLOW;
    default: return GUARD_PATIENCE;
    }
}

int guard_ask(struct verbs_guard *g, struct guard_call *c, struct guard_answer *a, int *fd, bool gives)
{
    struct guard_answer none;
    int came = -1, rc = -ENODEV;
    a = a ? a : &none;
    pthread_mutex_lock(&g->lock);
    if (!atomic_load_explicit(&g->gone, memory_order_relaxed)) {
        rc = base_send_fds(g->fd, c, sizeof *c, fd, gives ? 1 : 0);
        if (!rc)
            rc = base_receive_fds(g->fd, a, sizeof *a, &came, 1, base_deadline(patience(c->verb)));
        if (rc && rc != -EMFILE) {
            guard_lost(g, base_strerror(rc));
            rc = -ENODEV;
        }
        rc = rc ? rc : -a->result;
    }
    pthread_mutex_unlock(&g->lock);
    if (came >= 0 && (rc || gives || !fd))
        close(came);
    else if (came >= 0)
        *fd = came;
    else if (!rc && fd && !gives)
        rc = -EPROTO;
    errno = -rc;
    return -rc;
}

bool guard_lives(struct verbs_guard *g)
{
    int64_t now = base_now_ns();
    if (atomic_load_explicit(&g->gone, memory_order_relaxed))
        return false;
    if (now - atomic_load_explicit(&g->looked_at, memory_order_relaxed) < LOOK)
        return true;
    atomic_store_explicit(&g->looked_at, now, memory_order_relaxed);
    struct pollfd end = {.fd = g->fd};
    if (poll(&end, 1, 0) > 0 && end.revents & (POLLHUP | POLLERR))
        guard_lost(g, "it has ended");
    return !atomic_load_explicit(&g->gone, memory_order_relaxed);
}
