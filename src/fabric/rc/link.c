/* SPDX-License-Identifier: MIT
 *
 * What the other files say of a link: that it wants a queue pair, that its queue pair has broken, that its peer is to be given up, and
 * how long a queue pair may take. And the node's stages and frames, which all links share.
 */
#include "fabric/rc/rc.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define PATIENCE 5 /* times what the retries of a request should take; four are allowed (InfiniBand: Local ACK Timeout) */

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

/* A peer that cannot be reached keeps what its link holds for as long as it may take to reach it again. So no link takes more than it
 * leaves: half of all when it is alone, and whoever comes after it finds some. But for frames that a queue pair has left behind, where
 * the peer is reached again: those behind them hold theirs already. */
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

/* Others may hold theirs for long: a request that asked for no completion gives its stage back with the next one that does, on the same
 * link. So who takes one of the last half asks, and the next finds one. */
bool rc_stages_scarce(const struct rc *rc, bool frame)
{
    return stages_left(rc, frame) < (frame ? RC_TX_FRAMES : RC_STAGES) / 2;
}

/* Who was refused one may have nothing under way whose end would make it look again. */
static BASE_COLD void look_for_refused(struct rc *rc)
{
    atomic_store_explicit(&rc->freed, true, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the progress thread's: rc_idle() sees `freed`, or we that it naps */
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

/* --- what is to be done about a link --- */

void rc_look_again(struct rc *rc)
{
    /* release: pairs with the exchange in rc_upkeep(); who sees it sees what is wanted, at the latest under the link's lock */
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
    return fab_refuse_node(l->w, l->link->node) ? -ECONNRESET : base_fail(-ECONNRESET, "node %u is gone", l->link->node);
}

/* --- how long a queue pair may take --- */

/* The timeout of a request, such that the queue pair goes on trying for the liveness time at least: whether a host that
 * does not answer for a while is dead is not for the device to say. At most half a minute and a little. And at most about a
 * second where a queue pair that breaks is made anew: that costs little, and may find another way. */
uint8_t rc_retry_time(const struct verbs_qp *q, int64_t liveness_ns, int64_t reconnect_ns)
{
    uint8_t timeout = q->timeout;
    int64_t enough_ns = reconnect_ns && liveness_ns > WEFT_SECOND ? WEFT_SECOND : liveness_ns;
    while (timeout < 20 && (q->retry + 1) * (INT64_C(4096) << timeout) < enough_ns)
        timeout++;
    return timeout;
}

/* A queue pair ends its requests, well or not, when its retries are over. Not all do: rdma_rxe of Linux 6.1 sometimes begins a
 * retry and then neither sends nor complains. Time in which this thread did not look does not count: completions may have been
 * there all along. */
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
