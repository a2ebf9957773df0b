/* SPDX-License-Identifier: MIT
 *
 * Functions by which other files report the state of a link: it needs a queue pair, its queue pair has broken, or its peer must be treated
 * as dead. Also computes after which time a queue pair counts as standing still, and manages the stages and frames, which all links share.
 */
#include "fabric/rc/rc.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A queue pair counts as standing still after PATIENCE times the nominal time of all its retries. The InfiniBand standard allows a device
 * four times the nominal time (Local ACK Timeout). */
#define PATIENCE 5

/* --- stages and frames --- */

static uint32_t stages_left(const struct rc *rc, bool frame)
{
    return atomic_load_explicit(&rc->left[frame], memory_order_relaxed);
}

void rc_put_back(struct rc *rc, void *stage, bool frame)
{
    memcpy(stage, &rc->free[frame], sizeof rc->free[frame]);
    rc->free[frame] = stage;
    atomic_store_explicit(&rc->left[frame], stages_left(rc, frame) + 1, memory_order_relaxed);
}

/* A link may hold at most as many stages as are free, because a link whose peer cannot be reached keeps its stages. Repeated requests of a
 * broken queue pair are exempt, because operations that hold stages wait until these requests are posted. */
void *rc_take_stage(struct rc_link *l, bool frame)
{
    struct rc *rc = l->rc;
    void *s = NULL;
    base_spin_lock(&rc->lock);
    if (BASE_LIKELY((l->again ? 0 : l->held[frame]) < stages_left(rc, frame))) {
        s = rc->free[frame];
        memcpy(&rc->free[frame], s, sizeof s);
        atomic_store_explicit(&rc->left[frame], stages_left(rc, frame) - 1, memory_order_relaxed);
        l->held[frame]++;
    } else {
        rc->refused[frame] = true;
    }
    base_spin_unlock(&rc->lock);
    return s;
}

/* A request without a completion holds its stage until the next completion on the link, which may come much later. So when fewer than half
 * of the stages are free, each request that takes one asks for a completion. */
bool rc_stages_scarce(const struct rc *rc, bool frame)
{
    return stages_left(rc, frame) < (frame ? RC_TX_FRAMES : RC_STAGES) / 2;
}

/* Makes the progress thread check all links: a link that found no stage may have no pending request, and then no completion makes the link
 * try again. */
static BASE_COLD void look_for_refused(struct rc *rc)
{
    atomic_store_explicit(&rc->freed, true, memory_order_relaxed);
    /* pairs with the fence of the progress thread: either rc_idle() sees `freed`, or this thread sees `napping` */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&rc->w->bell->napping, memory_order_relaxed))
        fab_kick(rc->w);
}

void rc_give_stage(struct rc_link *l, void *stage, bool frame)
{
    struct rc *rc = l->rc;
    base_spin_lock(&rc->lock);
    rc_put_back(rc, stage, frame);
    l->held[frame]--;
    bool refused = rc->refused[frame];
    rc->refused[frame] = false;
    base_spin_unlock(&rc->lock);
    if (BASE_UNLIKELY(refused))
        look_for_refused(rc);
}

/* --- reports about a link --- */

void rc_look_again(struct rc *rc)
{
    /* release: pairs with the exchange in rc_upkeep() */
    atomic_store_explicit(&rc->attention, true, memory_order_release);
    fab_kick(rc->w);
}

void rc_want_locked(struct rc_link *l)
{
    if (l->wanted || l->closed)
        return;
    l->wanted = true;
    rc_look_again(l->rc);
}

void rc_lose_locked(struct rc_link *l, const char *why, ...)
{
    va_list ap;
    if (l->lost || l->closed || !l->qp.qp)
        return;
    va_start(ap, why);
    vsnprintf(l->lost_why, sizeof l->lost_why, why, ap);
    va_end(ap);
    l->lost = true;
    l->up = false;
    rc_look_again(l->rc);
}

void rc_break(struct rc_link *l, const char *why, ...)
{
    va_list ap;
    if (atomic_load_explicit(&l->broken, memory_order_relaxed))
        return;
    va_start(ap, why);
    vsnprintf(l->why, sizeof l->why, why, ap);
    va_end(ap);
    atomic_store_explicit(&l->broken, true, memory_order_release);
    fab_kick(l->w);
}

bool rc_own_fault(enum ibv_wc_status status)
{
    return status == IBV_WC_LOC_LEN_ERR || status == IBV_WC_LOC_QP_OP_ERR || status == IBV_WC_LOC_PROT_ERR ||
           status == IBV_WC_LOC_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR || status == IBV_WC_REM_ACCESS_ERR ||
           status == IBV_WC_REM_OP_ERR;
}

int rc_gone(struct rc_link *l)
{
    return fab_refuse_node(l->w, l->link->node)
               ? -ECONNRESET
               : base_fail(-ECONNRESET, "node %u has left or died; go on with the nodes that remain", l->link->node);
}

/* --- how long a queue pair may make no progress --- */

/* The time-out of a request, in the device's encoding. Retries must last at least the liveness time, because a silent host may be alive. If
 * broken queue pairs are replaced, one second is enough: a new queue pair costs little, and may find another path. */
uint8_t rc_retry_time(const struct verbs_qp *q, int64_t liveness_ns, int64_t reconnect_ns)
{
    uint8_t timeout = q->timeout;
    int64_t enough_ns = reconnect_ns && liveness_ns > WEFT_SECOND ? WEFT_SECOND : liveness_ns;
    while (timeout < 20 && (q->retry + 1) * (INT64_C(4096) << timeout) < enough_ns)
        timeout++;
    return timeout;
}

/* When its retries are over, a queue pair should complete or fail its requests, but rdma_rxe of Linux 6.1 sometimes does neither. After a
 * long pause between two checks only a part of the pause counts, because completions may have waited in the queue without being polled. */
bool rc_stands_still(struct rc_stand *s, const struct verbs_qp *q, bool waits, uint64_t done, int64_t now)
{
    int64_t since = now - s->looked_ns;
    if (!waits || done != s->done)
        *s = (struct rc_stand){.done = done};
    else
        s->still_ns += since < 2 * RC_STANDSTILL_LOOK ? since : 2 * RC_STANDSTILL_LOOK;
    s->looked_ns = now;
    return s->still_ns > PATIENCE * (q->retry + 1) * (INT64_C(4096) << q->timeout);
}
