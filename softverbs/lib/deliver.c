/* SPDX-License-Identifier: MIT
 *
 * Executes one request of a send queue: moves the data between the two processes' memory, and writes the completions of both sides.
 *
 * The executor holds the send queue's lock. It is the sender, or the connected receiver, when it has just posted the receive for which the
 * sender waits. A request that cannot proceed changes nothing, and the queue pair's wait_* members say what it waits for. There is one
 * exception: a fault may hold back a completion after the data was moved (SF_WAIT_HELD).
 */
#include "engine.h"

#include <endian.h>
#include <string.h>
#include <time.h>

enum { GRH = 40 };

static uint32_t me(void)
{
    return sv_lib.view.process;
}

/* ---- The target ------------------------------------------------------------------------------------------------- */

static bool deliver_hears(const struct sf_qp *t)
{
    uint32_t state = atomic_load_explicit(&t->state, memory_order_acquire);
    return state >= IBV_QPS_RTR && state <= IBV_QPS_SQE;
}

static bool deliver_connected(const struct sf_qp *qp, const struct sf_qp *t)
{
    if (t->owner == 0 || !deliver_hears(t) || t->type != qp->type || t->number != qp->peer_number || t->device != qp->peer_device)
        return false;
    if (t->peer_number != qp->number || t->peer_device != qp->device)
        return false;
    /* A reliable receiver accepts only the sequence number that it expects. */
    return qp->type != IBV_QPT_RC || t->receive_psn == qp->send_psn;
}

/* Prefetches words that the receiver has written, and that must come from another core's cache. What is read here without a lock only
 * selects the cache line. */
__attribute__((no_sanitize("thread"))) static void fetch_early(const struct sf_receive_queue *rq)
{
    uint64_t slot = rq->done & (rq->capacity - 1);
    __builtin_prefetch(&rq->posted);
    __builtin_prefetch((const void *)((uintptr_t)sv_lib.fabric + rq->ring + slot * rq->stride));
}

/* Sets the queue pair that the message is for. found_target() checks later, when the queue is marked busy, whether the message can get
 * there. */
static void name_target(struct sv_job *j)
{
    j->t = j->qp->type == IBV_QPT_UD ? sf_number_entry(j->s->ud_qp) : j->qp->peer_qp % SF_QPS;
    j->target = &sv_lib.fabric->qps[j->t];
    if (sv_takes_receive(j->s->opcode))
        fetch_early(&j->target->receive);
}

static bool found_target(const struct sv_job *j)
{
    struct sf_fabric *f = sv_lib.fabric;
    const struct sf_qp *qp = j->qp, *t = j->target;
    bool ud = qp->type == IBV_QPT_UD;
    uint32_t device = ud ? j->s->ud_device : qp->peer_device;
    if (!sf_reachable(f, qp->device, device))
        return false;
    if (!ud)
        return deliver_connected(qp, t);
    return t->owner != 0 && deliver_hears(t) && t->type == IBV_QPT_UD && t->number == j->s->ud_qp && t->device == device &&
           t->qkey == j->s->ud_qkey;
}

/* Locks the target's receive queue, and finds a receive. Returns false if there is none, and the queue is not locked. */
static bool take_receive(struct sv_job *j, bool *gone)
{
    struct sf_fabric *f = sv_lib.fabric;
    struct sf_qp *t = j->target;
    struct sf_srq *srq = t->srq ? &f->srqs[(t->srq - 1) % SF_SRQS] : NULL;
    struct sf_receive_queue *rq = srq ? &srq->queue : &t->receive;
    sf_lock_receive(&sv_lib.view, rq, &f->cqs[t->receive_cq % SF_CQS]);
    j->rq = rq;
    /* check again with the lock held: the owner holds it to reset, connect or destroy the queue pair */
    *gone = (j->qp->type != IBV_QPT_UD ? !deliver_connected(j->qp, t) : !deliver_hears(t) || t->owner == 0 || t->number != j->s->ud_qp) ||
            !sv_receive_ring_sane(rq);
    uint64_t done = atomic_load_explicit(&rq->done, memory_order_relaxed);
    /* acquire: pairs with the release in post.c */
    uint64_t there = atomic_load_explicit(&rq->posted, memory_order_acquire) - done;
    *gone = *gone || there > rq->capacity; /* another process has overwritten a count */
    if (!*gone && there != 0)
        return true;
    if (!*gone && srq)
        sv_tell_limit(t->srq - 1);
    if (!*gone && j->qp->type != IBV_QPT_UD) {
        /* seq_cst: set `wanted`, then look once more. Pairs with the fence after `posted` in post.c: either this process sees the receive,
         * or the process that posts it sees `wanted`. */
        atomic_store_explicit(&t->wanted, 1, memory_order_seq_cst);
        if (srq)
            atomic_store_explicit(&srq->waiting, 1, memory_order_seq_cst);
        atomic_thread_fence(memory_order_seq_cst);
        if (atomic_load_explicit(&rq->posted, memory_order_acquire) != done)
            return true;
    }
    sf_unlock(&sv_lib.view, &rq->lock);
    j->rq = NULL;
    return false;
}

static void let_receive_go(struct sv_job *j)
{
    if (j->rq)
        sf_unlock(&sv_lib.view, &j->rq->lock);
    j->rq = NULL;
}

/* ---- The operations ----------------------------------------------------------------------------------------------- */

/* Finds the memory of the sender's elements. Inline data is in the request, which every process has mapped. */
static bool local_place(struct sv_job *j, struct sv_place *p, uint32_t access)
{
    const struct sf_send *s = j->s;
    if (s->flags & IBV_SEND_INLINE) {
        p->process = me();
        uint32_t length = s->length;
        if (length > 0 && length <= j->qp->send_stride - offsetof(struct sf_send, data)) {
            p->piece[p->count++] = (struct iovec){(void *)s->data, length};
            p->bytes += length;
        }
        return true;
    }
    p->process = j->qp->owner;
    uint32_t count = s->sge_count;
    if (count > SV_PIECES / 2 || count > (j->qp->send_stride - offsetof(struct sf_send, sge)) / sizeof(struct sf_sge))
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (!sv_place_add(p, j->qp->owner, j->qp->pd, s->sge[i].lkey, s->sge[i].address, s->sge[i].length, access))
            return false;
    return true;
}

/* Finds the memory for the first `bytes` of a message. *room is the size of the whole receive. Elements after these bytes are not checked.
 */
static bool receive_place(struct sv_job *j, struct sv_place *p, uint64_t bytes, uint64_t *room)
{
    const struct sf_qp *t = j->target;
    const struct sf_receive *r = sv_receive_slot(j->rq, atomic_load_explicit(&j->rq->done, memory_order_relaxed));
    uint32_t pd = t->srq ? sv_lib.fabric->srqs[(t->srq - 1) % SF_SRQS].pd : t->pd;
    sv_place_begin(p, t->owner);
    uint32_t count = r->sge_count;
    if (count > SV_PIECES / 2 || count > (j->rq->stride - sizeof *r) / sizeof(struct sf_sge))
        return false;
    *room = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (*room < bytes && !sv_place_add(p, t->owner, pd, r->sge[i].lkey, r->sge[i].address, r->sge[i].length, IBV_ACCESS_LOCAL_WRITE))
            return false;
        *room += r->sge[i].length;
    }
    return true;
}

static enum sv_moved deliver_move(struct sv_job *j, struct sv_place *source, struct sv_place *target, uint64_t bytes, bool one_sided)
{
    if (!j->qp->corrupt || bytes == 0)
        return sv_move(source, target, bytes, one_sided);
    static _Thread_local struct sv_place whole; /* not on the stack, which may be small */
    whole = *target;
    enum sv_moved r = sv_move(source, target, bytes, one_sided);
    if (r == SV_MOVED)
        sv_flip(&whole, j->qp->dice % bytes);
    return r;
}

/* The receiver answers with an error: its queue pair goes to ERR, and the request ends with sender_status. If the receiver's owner has
 * reset or destroyed the queue pair meanwhile, there is no answer. */
static enum sv_step deliver_refuse(struct sv_job *j, enum ibv_event_type event, enum ibv_wc_status sender_status)
{
    /* acquire: pairs with sv_reset_qp(), which changes the state first */
    atomic_thread_fence(memory_order_acquire);
    if (!found_target(j))
        return sv_no_answer(j);
    if (j->qp->type == IBV_QPT_RC) {
        sv_fail_qp(j->t, event, j->later);
        return sv_end(j, sender_status);
    }
    return sv_lost(j);
}

/* Called if the receive cannot hold the message: the receive ends with `status`, and its queue pair goes to ERR. */
static enum sv_step refuse_receive(struct sv_job *j, enum ibv_wc_status status, enum ibv_wc_status sender_status)
{
    /* if this process is killed here, poll_done() in poll.c does the rest */
    sv_end_receive(j, status, 0);
    if (j->qp->type != IBV_QPT_UD)
        sv_fail_qp(j->t, IBV_EVENT_CQ_ERR, j->later);
    return j->qp->type == IBV_QPT_RC ? sv_end(j, sender_status) : sv_lost(j);
}

static void count_sent(struct sv_job *j)
{
    struct sf_device *from = &sv_lib.fabric->devices[j->qp->device % SV_DEVICES];
    struct sf_device *to = &sv_lib.fabric->devices[j->target->device % SV_DEVICES];
    atomic_fetch_add_explicit(&from->sent, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&from->sent_bytes, j->s->length, memory_order_relaxed);
    atomic_fetch_add_explicit(&to->received, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&to->received_bytes, j->s->length, memory_order_relaxed);
}

/* The data was moved: write the completions, now or later if a fault holds them back. */
static enum sv_step deliver_arrived(struct sv_job *j, uint64_t received)
{
    if (atomic_load_explicit(&j->target->state, memory_order_relaxed) == IBV_QPS_RTR && !j->target->established &&
        j->qp->type != IBV_QPT_UD) {
        /* tell the owner, which may not know yet that the other side is connected */
        sv_async_qp(j->t, 1 << IBV_EVENT_COMM_EST);
        j->target->established = 1;
    }
    bool receive_waits = j->target->srq == 0 && j->qp->type != IBV_QPT_UD;
    if (j->rq && !(j->qp->hold_ns && receive_waits))
        sv_end_receive(j, IBV_WC_SUCCESS, received);
    count_sent(j); /* count late, because these words are in other cores' caches, and the receiver does not wait for them */
    if (j->qp->hold_ns)
        return sv_stall(j, SF_WAIT_HELD, sf_now() + j->qp->hold_ns);
    return sv_end(j, IBV_WC_SUCCESS);
}

/* The data was moved before: write the held completions when their time has come. */
static enum sv_step release_held(struct sv_job *j)
{
    bool gone;
    if (sf_now() < j->qp->wait_until)
        return sv_stall(j, SF_WAIT_HELD, 0);
    if (sv_takes_receive(j->s->opcode) && j->target->srq == 0 && j->qp->type != IBV_QPT_UD && deliver_connected(j->qp, j->target) &&
        take_receive(j, &gone))
        sv_end_receive(j, IBV_WC_SUCCESS, j->s->length);
    return sv_end(j, IBV_WC_SUCCESS);
}

/* Writes the 40 bytes before a datagram's data. They have the addresses of both ends. For IPv4 addresses of RoCE version 2, the last 20
 * bytes are an IPv4 header. */
static void write_grh(const struct sv_job *j, uint8_t grh[GRH], uint64_t bytes)
{
    enum { AROUND = 12 + 8 + 4, UDP = 17 }; /* AROUND: bytes on the wire around the data, for transport headers and checksum */
    const struct sv_topology *topology = &sv_lib.fabric->model.topology;
    const struct sf_send *s = j->s;
    const uint8_t *from = topology->devices[j->qp->device % SV_DEVICES].gids[(s->ud_hop & 0xff) % SV_GIDS].raw;
    uint8_t traffic_class = (uint8_t)(s->ud_hop >> 8), hop_limit = (uint8_t)(s->ud_hop >> 16);
    memset(grh, 0, GRH);
    if (!(s->ud_hop & SF_UD_GLOBAL))
        return; /* InfiniBand without a global header: the 40 bytes stay unchanged */
    if (sv_lib.profile->gid_type == SV_GID_ROCE_V2 && sv_over_ipv4(s)) {
        uint8_t *ip = grh + 20;
        uint16_t length = htobe16((uint16_t)(20 + 8 + bytes + AROUND));
        ip[0] = 0x45;
        ip[1] = traffic_class;
        memcpy(ip + 2, &length, 2);
        ip[6] = 0x40; /* the flag "don't fragment" */
        ip[8] = hop_limit;
        ip[9] = UDP;
        memcpy(ip + 12, from + 12, 4);
        memcpy(ip + 16, s->ud_dgid + 12, 4);
        uint32_t sum = 0;
        for (int i = 0; i < 20; i += 2)
            sum += (uint32_t)ip[i] << 8 | ip[i + 1];
        sum = (sum & 0xffff) + (sum >> 16);
        sum = ~((sum & 0xffff) + (sum >> 16));
        ip[10] = (uint8_t)(sum >> 8);
        ip[11] = (uint8_t)sum;
        return;
    }
    uint32_t first = htobe32(UINT32_C(6) << 28 | (uint32_t)traffic_class << 20);
    uint16_t length = htobe16((uint16_t)(bytes + AROUND));
    memcpy(grh, &first, 4);
    memcpy(grh + 4, &length, 2);
    grh[6] = 0x1b;
    grh[7] = hop_limit;
    memcpy(grh + 8, from, 16);
    memcpy(grh + 24, s->ud_dgid, 16);
}

static enum sv_step deliver_send(struct sv_job *j)
{
    struct sv_place source, target;
    uint8_t grh[GRH];
    const struct sf_send *s = j->s;
    bool gone, ud = j->qp->type == IBV_QPT_UD;
    uint64_t room;
    sv_place_begin(&source, me());
    if (ud) {
        write_grh(j, grh, s->length);
        source.piece[source.count++] = (struct iovec){grh, GRH};
        source.bytes = GRH;
    }
    if (!local_place(j, &source, 0))
        return sv_end(j, IBV_WC_LOC_PROT_ERR);
    if (ud && s->length > j->qp->mtu)
        return sv_end(j, IBV_WC_LOC_LEN_ERR);
    if (j->qp->drop && ud)
        return sv_lost(j);
    if (!take_receive(j, &gone))
        return gone ? sv_no_answer(j) : sv_not_ready(j);
    if (j->qp->drop) /* a fault drops the message on its way */
        return sv_lost(j);
    uint64_t bytes = source.bytes;
    if (!receive_place(j, &target, bytes, &room))
        return refuse_receive(j, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR);
    if (sv_lib.profile->equal_frames && sv_frames(bytes) != sv_frames(room)) {
        sv_log(SV_INFO,
               "a SEND of %llu bytes to a receive of %llu bytes fails: on this device both must have the same number of frames of %u bytes "
               "(" SV_DOCUMENTED ")",
               (unsigned long long)bytes, (unsigned long long)room, sv_lib.profile->frame_bytes);
        return refuse_receive(j, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR);
    }
    if (bytes > room)
        return refuse_receive(j, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR);
    switch (deliver_move(j, &source, &target, bytes, false)) {
    case SV_MOVED: return deliver_arrived(j, bytes);
    case SV_MOVED_DEAD: return sv_died(j, me() == j->qp->owner ? j->target->owner : j->qp->owner);
    case SV_MOVED_SOURCE: return sv_end(j, IBV_WC_LOC_PROT_ERR);
    case SV_MOVED_TARGET: return refuse_receive(j, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR);
    default: return sv_end(j, IBV_WC_GENERAL_ERR);
    }
}

/* Whether the queue pair allows this kind of operation at all. If not, the answer is "remote invalid request" (InfiniBand's table of NAK
 * codes), not the access error of a wrong key. */
static bool set_up_for(const struct sf_qp *t, unsigned access)
{
    return (t->access & access) != 0;
}

static enum sv_step write_remote(struct sv_job *j)
{
    struct sv_place source, target;
    const struct sf_send *s = j->s;
    const struct sf_qp *t = j->target;
    bool gone;
    if (s->flags & SF_SEND_MOVED)
        return deliver_arrived(j, 0);
    sv_place_begin(&source, me());
    sv_place_begin(&target, t->owner);
    if (!local_place(j, &source, 0))
        return sv_end(j, IBV_WC_LOC_PROT_ERR);
    if (j->qp->drop)
        return sv_lost(j);
    if (!set_up_for(t, IBV_ACCESS_REMOTE_WRITE))
        return deliver_refuse(j, IBV_EVENT_QP_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
    if (s->length > 0 && !sv_place_add(&target, t->owner, t->pd, s->rkey, s->remote, s->length, IBV_ACCESS_REMOTE_WRITE))
        return deliver_refuse(j, IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
    if (s->opcode == IBV_WR_RDMA_WRITE_WITH_IMM && !take_receive(j, &gone))
        return gone ? sv_no_answer(j) : sv_not_ready(j);
    uint64_t bytes = source.bytes;
    switch (deliver_move(j, &source, &target, bytes, true)) {
    case SV_MOVED: return deliver_arrived(j, bytes);
    case SV_MOVED_DEAD: return sv_died(j, me() == j->qp->owner ? t->owner : j->qp->owner);
    case SV_MOVED_SOURCE: return sv_end(j, IBV_WC_LOC_PROT_ERR);
    case SV_MOVED_TARGET: return deliver_refuse(j, IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
    default: return sv_end(j, IBV_WC_GENERAL_ERR);
    }
}

/* Moves the data of the writes that follow a read in the queue, up to a fence, a send or an atomic: the standard orders a write after an
 * earlier read only by a fence. A write that cannot be moved now is executed later, in order. */
__attribute__((noinline)) static void let_writes_pass(const struct sv_job *read)
{
    const struct sf_qp *qp = read->qp, *t = read->target;
    uint64_t done = atomic_load_explicit(&qp->send_done, memory_order_relaxed);
    /* acquire: pairs with the release in sv_post_send */
    uint64_t there = atomic_load_explicit(&qp->send_posted, memory_order_acquire) - done;
    for (uint64_t i = 1; i < there && i < qp->send_capacity; i++) {
        struct sf_send *s = sv_send_slot(qp, done + i);
        struct sv_job j = *read;
        struct sv_place source, target;
        if (s->flags & IBV_SEND_FENCE)
            return;
        if (s->opcode == IBV_WR_RDMA_READ || (s->flags & SF_SEND_MOVED))
            continue;
        if (s->opcode != IBV_WR_RDMA_WRITE)
            return;
        j.s = s;
        sv_place_begin(&source, me());
        sv_place_begin(&target, t->owner);
        if (!local_place(&j, &source, 0) || !set_up_for(t, IBV_ACCESS_REMOTE_WRITE) ||
            !sv_place_add(&target, t->owner, t->pd, s->rkey, s->remote, s->length, IBV_ACCESS_REMOTE_WRITE) ||
            sv_move(&source, &target, source.bytes, true) != SV_MOVED)
            return;
        s->flags |= SF_SEND_MOVED;
    }
}

static enum sv_step read_remote(struct sv_job *j)
{
    struct sv_place source, target;
    const struct sf_send *s = j->s;
    const struct sf_qp *t = j->target;
    sv_place_begin(&source, t->owner);
    sv_place_begin(&target, me());
    if (!local_place(j, &target, IBV_ACCESS_LOCAL_WRITE))
        return sv_end(j, IBV_WC_LOC_PROT_ERR);
    if (j->qp->rd_atomic == 0)
        return sv_end(j, IBV_WC_LOC_QP_OP_ERR);
    if (t->dest_rd_atomic == 0 || !set_up_for(t, IBV_ACCESS_REMOTE_READ))
        return deliver_refuse(j, IBV_EVENT_QP_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
    if (s->length > 0 && !sv_place_add(&source, t->owner, t->pd, s->rkey, s->remote, s->length, IBV_ACCESS_REMOTE_READ))
        return deliver_refuse(j, IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
    switch (deliver_move(j, &source, &target, s->length, true)) {
    case SV_MOVED: break;
    case SV_MOVED_DEAD: return sv_died(j, me() == j->qp->owner ? t->owner : j->qp->owner);
    case SV_MOVED_SOURCE: return deliver_refuse(j, IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
    case SV_MOVED_TARGET: return sv_end(j, IBV_WC_LOC_PROT_ERR);
    default: return sv_end(j, IBV_WC_GENERAL_ERR);
    }
    return deliver_arrived(j, s->length);
}

static enum sv_step atomic_remote(struct sv_job *j)
{
    struct sv_place remote, target;
    const struct sf_send *s = j->s;
    const struct sf_qp *t = j->target;
    sv_place_begin(&remote, t->owner);
    sv_place_begin(&target, me());
    if (!local_place(j, &target, IBV_ACCESS_LOCAL_WRITE))
        return sv_end(j, IBV_WC_LOC_PROT_ERR);
    if (target.bytes < 8)
        return sv_end(j, IBV_WC_LOC_LEN_ERR);
    if (j->qp->rd_atomic == 0)
        return sv_end(j, IBV_WC_LOC_QP_OP_ERR);
    if (t->dest_rd_atomic == 0 || (s->remote & 7) != 0 || !set_up_for(t, IBV_ACCESS_REMOTE_ATOMIC))
        return deliver_refuse(j, IBV_EVENT_QP_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
    if (!sv_place_add(&remote, t->owner, t->pd, s->rkey, s->remote, 8, IBV_ACCESS_REMOTE_ATOMIC) || remote.count != 1)
        return deliver_refuse(j, IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
    uint64_t old = 0;
    enum sv_moved r = sv_move_atomic(t->owner, t->device, (uintptr_t)remote.piece[0].iov_base, s->opcode == IBV_WR_ATOMIC_CMP_AND_SWP,
                                     s->compare_add, s->swap, &old);
    if (r == SV_MOVED_TARGET)
        return deliver_refuse(j, IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
    if (r == SV_MOVED) {
        sv_place_begin(&remote, me()); /* the old value goes to the sender */
        remote.piece[remote.count++] = (struct iovec){&old, 8};
        remote.bytes = 8;
        r = deliver_move(j, &remote, &target, 8, true);
    }
    switch (r) {
    case SV_MOVED: return deliver_arrived(j, 8);
    case SV_MOVED_DEAD: return sv_died(j, me() == j->qp->owner ? t->owner : j->qp->owner);
    case SV_MOVED_TARGET:
    case SV_MOVED_SOURCE: return sv_end(j, IBV_WC_LOC_PROT_ERR);
    default: return sv_end(j, IBV_WC_GENERAL_ERR);
    }
}

/* ---- One step ------------------------------------------------------------------------------------------------------ */

/* Whether a frame of the message is lost, and with it the whole message. The decision is random for each frame. */
static bool loses_frame(const struct sv_job *j, uint64_t message)
{
    const struct sf_qp *qp = j->qp;
    uint64_t count = sv_frames(j->s->length);
    bool lost = false;
    for (uint64_t i = 0; i < count && !lost; i++)
        lost = sv_dice(sv_lib.fabric->seed, qp->device, qp->ordinal | i << 32, message) % 1000000 < sv_lib.profile->loss_ppm;
    return lost;
}

/* Decides, once for each attempt, what faults and the profile's losses do to the message. Returns true if the message must wait first. */
static bool deliver_judge(struct sv_job *j)
{
    struct sf_fabric *f = sv_lib.fabric;
    struct sf_qp *qp = j->qp;
    struct sv_verdict verdict = {0};
    uint64_t message = qp->messages | (uint64_t)qp->attempts << 48;
    /* retry_count is exceeded, and one time-out has passed since the last attempt */
    if (qp->type == IBV_QPT_RC && qp->attempts > qp->retry_count) {
        sv_end(j, IBV_WC_RETRY_EXC_ERR);
        return false;
    }
    if (sv_rules())
        sv_judge_slow(j->q, message, &verdict);
    if (sv_lib.profile->loss_ppm && loses_frame(j, message))
        verdict.drop = true;
    qp->judged = 1;
    qp->drop = verdict.drop;
    qp->corrupt = verdict.corrupt;
    qp->overtaken = verdict.overtaken;
    qp->hold_ns = verdict.hold_ns;
    qp->dice = verdict.dice;
    if (verdict.drop && qp->type == IBV_QPT_RC) {
        /* The sender gets no answer, and repeats the message after its time-out. */
        qp->drop = 0;
        qp->attempts++;
        qp->judged = 0;
        verdict.delay_ns += UINT64_C(4096) << (qp->timeout & 31);
        atomic_fetch_add_explicit(&f->devices[qp->device % SV_DEVICES].dropped, 1, memory_order_relaxed);
    }
    if (verdict.delay_ns) {
        sv_stall(j, SF_WAIT_DELAY, sf_now() + verdict.delay_ns);
        return true;
    }
    return false;
}

static enum sv_step deliver_operate(struct sv_job *j)
{
    switch (j->s->opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: return deliver_send(j);
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return write_remote(j);
    case IBV_WR_RDMA_READ:
        if (j->qp->overtaken)
            let_writes_pass(j);
        return read_remote(j);
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return atomic_remote(j);
    default: return sv_end(j, IBV_WC_LOC_QP_OP_ERR);
    }
}

/* Whether the process at the other end is still the same program. Checked every few milliseconds: the system does not give its process
 * number to another program faster than that. */
static bool still_there(uint32_t process)
{
    static _Atomic uint64_t looked[SF_PROCESSES + 1];
    enum { LOOK_NS = 8000000 };
    struct timespec t;
    if (process == me() || process > SF_PROCESSES)
        return true;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    if (now - atomic_load_explicit(&looked[process], memory_order_relaxed) < LOOK_NS)
        return true;
    if (!sf_alive(sv_lib.fabric, process))
        return false;
    atomic_store_explicit(&looked[process], now, memory_order_relaxed);
    return true;
}

enum sv_step sv_step(uint32_t q, struct sv_later *later)
{
    struct sf_fabric *f = sv_lib.fabric;
    struct sf_qp *qp = &f->qps[q];
    uint64_t done = atomic_load_explicit(&qp->send_done, memory_order_relaxed);
    struct sv_job j = {.q = q, .qp = qp, .s = sv_send_slot(qp, done), .later = later};
    enum sv_step step;

    name_target(&j);
    if (me() != qp->owner && !(qp->type != IBV_QPT_UD && me() == j.target->owner)) {
        /* This process is neither the sender nor the receiver, and cannot access the memory of both. The owner executes the request when it
         * checks its queues. */
        return sv_stall(&j, qp->wait_for ? (enum sf_wait)qp->wait_for : SF_WAIT_DELAY, sf_now());
    }
    if (qp->wait_for == SF_WAIT_HELD) {
        step = release_held(&j);
        let_receive_go(&j);
        return step;
    }
    if (qp->wait_for == SF_WAIT_DELAY) {
        if (sf_now() < qp->wait_until)
            return sv_stall(&j, SF_WAIT_DELAY, 0);
        qp->wait_for = SF_WAIT_NOTHING;
    }
    if (!qp->judged && (sv_rules() || sv_lib.profile->loss_ppm)) {
        if (deliver_judge(&j))
            return SV_STALL;
        if (atomic_load_explicit(&qp->send_done, memory_order_relaxed) != done)
            return SV_DONE;
    } else if (!qp->judged) {
        qp->judged = 1;
        qp->drop = qp->corrupt = qp->overtaken = 0;
        qp->hold_ns = 0;
    }

    /* Mark the queue as busy. Pairs with `live` = 0 and sv_quiesce() in deregistration, and with sv_quiesce() after the target has left the
     * receiving states. */
    uint64_t busy = atomic_load_explicit(&qp->busy, memory_order_relaxed);
    atomic_store_explicit(&qp->busy_with, j.target->owner, memory_order_relaxed);
    atomic_exchange_explicit(&qp->busy, busy + 1, memory_order_seq_cst);
    uint32_t other = me() == qp->owner ? j.target->owner : qp->owner;
    if (!found_target(&j))
        step = sv_no_answer(&j);
    else if (still_there(other))
        step = deliver_operate(&j);
    else
        step = sv_died(&j, other);
    let_receive_go(&j);
    /* release: all accesses come before; pairs with the acquire in sv_quiesce() */
    atomic_store_explicit(&qp->busy, busy + 2, memory_order_release);
    return step;
}
