/* SPDX-License-Identifier: MIT
 *
 * Posts requests. If the request itself is wrong, the call fails and nothing is posted. If its memory or its peer is wrong, a completion
 * reports the error.
 */
#include "engine.h"

#include <errno.h>
#include <string.h>

/* For a forked child, which may not use its copies of its parent's queue pairs. */
static int post_forked(void)
{
    return sv_refuse(ENODEV, "a forked child cannot use its parent's queues: open the device anew");
}

/* The operation of a request, as a bit of the profile; 0: the queue pair's type does not support it. */
static uint32_t post_operation(uint32_t type, uint32_t opcode)
{
    bool rc = type == IBV_QPT_RC, connected = rc || type == IBV_QPT_UC;
    switch (opcode) {
    case IBV_WR_SEND: return SV_OP_SEND;
    case IBV_WR_SEND_WITH_IMM: return SV_OP_SEND_IMM;
    case IBV_WR_RDMA_WRITE: return connected ? SV_OP_WRITE : 0;
    case IBV_WR_RDMA_WRITE_WITH_IMM: return connected ? SV_OP_WRITE_IMM : 0;
    case IBV_WR_RDMA_READ: return rc ? SV_OP_READ : 0;
    case IBV_WR_ATOMIC_CMP_AND_SWP: return rc ? SV_OP_CAS : 0;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return rc ? SV_OP_FADD : 0;
    default: return 0;
    }
}

/* Checks the depth in frames. Returns 0 if there is room, or if the profile says that the request is accepted and lost (*lose). A lost
 * request is not visible to the program, so the first one is logged at any log level. */
static int post_overdepth(const struct sv_qp *qp, bool send, uint64_t outstanding, uint64_t length, uint32_t depth, bool *lose)
{
    static _Atomic int said;
    const struct sv_profile *p = sv_lib.profile;
    uint64_t more = sv_frames(length);
    if (outstanding + more <= depth)
        return 0;
    *lose = p->overdepth == SV_OVERDEPTH_LOSE;
    bool first = *lose && !atomic_exchange_explicit(&said, 1, memory_order_relaxed);
    sv_log(first ? SV_ERROR : SV_INFO,
           "%s, queue pair 0x%06x: a %s of %llu bytes (frames of %u bytes: %llu) was posted beyond the depth of the %s queue: %u frames "
           "are granted, and %llu are outstanding. %s. Keep fewer frames outstanding, or ask for a greater %s: ibv_query_qp tells what is "
           "granted (profile %s, " SV_DOCUMENTED ": depth)%s",
           qp->base.context->device->name, qp->base.qp_num, send ? "send" : "receive", (unsigned long long)length, p->frame_bytes,
           (unsigned long long)more, send ? "send" : "receive", depth, (unsigned long long)outstanding,
           *lose ? "It is lost: it never completes, and no error comes, as on this device" : "It is refused",
           send ? "max_send_wr" : "max_recv_wr", p->name,
           first ? ". This is printed once; SOFTVERBS_LOG=info prints it for each such request" : "");
    return *lose ? 0 : p->overdepth_errno;
}

static int write_send(struct sv_qp *qp, const struct ibv_send_wr *wr, uint64_t position, bool *lose)
{
    const struct sv_profile *p = sv_lib.profile;
    struct sf_qp *s = qp->shared;
    uint32_t type = qp->base.qp_type, most_inline = qp->init.cap.max_inline_data;
    uint32_t op = post_operation(type, wr->opcode);
    if (op == 0)
        return sv_refuse(EINVAL, "queue pair 0x%06x: queue pairs of its type do not have operation %d", s->number, (int)wr->opcode);
    if (!(p->operations & op))
        return sv_refuse(p->operation_errno,
                         "queue pair 0x%06x: this device has no operation %d (wr.opcode; profile %s, " SV_DOCUMENTED ": operations)",
                         s->number, (int)wr->opcode, p->name);
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->send.sge_limit)
        return sv_refuse(
            EINVAL, "queue pair 0x%06x: a request has %d scatter/gather elements; at most %u were granted: ask for more (max_send_sge)",
            s->number, wr->num_sge, qp->send.sge_limit);
    bool atomic = op == SV_OP_CAS || op == SV_OP_FADD;
    bool inlined = (wr->send_flags & IBV_SEND_INLINE) != 0;
    uint64_t length = 0;
    for (int i = 0; i < wr->num_sge; i++)
        length += wr->sg_list[i].length;
    if (inlined && (op == SV_OP_READ || atomic || length > most_inline))
        return sv_refuse(
            EINVAL, "queue pair 0x%06x: a request has %llu bytes of inline data; at most %u were granted, and none for reads and atomics",
            s->number, (unsigned long long)length, most_inline);
    if (length > p->max_message)
        return sv_refuse(
            p->message_errno,
            "queue pair 0x%06x: a message has %llu bytes; at most %llu are allowed: send it in several messages (profile %s, " SV_DOCUMENTED
            ": max_message)",
            s->number, (unsigned long long)length, (unsigned long long)p->max_message, p->name);
    if (type == IBV_QPT_UD && !wr->wr.ud.ah)
        return sv_refuse(EINVAL, "queue pair 0x%06x: a datagram needs an address handle: set wr.ud.ah", s->number);
    if (p->frame_bytes) {
        int r = post_overdepth(qp, true, atomic_load_explicit(&qp->frames_send, memory_order_relaxed), length, s->frame_depth_send, lose);
        if (r || *lose)
            return r;
        atomic_fetch_add_explicit(&qp->frames_send, sv_frames(length), memory_order_relaxed);
    }
    struct sf_send *slot = sv_ring_slot(&qp->send, position);
    slot->wr_id = wr->wr_id;
    slot->opcode = wr->opcode;
    slot->flags = wr->send_flags & ~SF_SEND_MOVED;
    slot->imm = wr->imm_data;
    slot->length = (uint32_t)length;
    slot->sge_count = (uint32_t)wr->num_sge;
    if (atomic) {
        slot->remote = wr->wr.atomic.remote_addr;
        slot->rkey = wr->wr.atomic.rkey;
        slot->compare_add = wr->wr.atomic.compare_add;
        slot->swap = wr->wr.atomic.swap;
    } else if (type == IBV_QPT_UD) {
        const struct sv_ah *ah = (const struct sv_ah *)wr->wr.ud.ah;
        slot->ud_device = ah->device;
        slot->ud_qp = wr->wr.ud.remote_qpn;
        /* the high bit means: use the queue pair's own key */
        slot->ud_qkey = wr->wr.ud.remote_qkey & UINT32_C(0x80000000) ? s->qkey : wr->wr.ud.remote_qkey;
        slot->ud_hop = (uint32_t)(ah->attr.sl & 0xf) << 24;
        if (ah->attr.is_global)
            slot->ud_hop |=
                SF_UD_GLOBAL | ah->attr.grh.sgid_index | (uint32_t)ah->attr.grh.traffic_class << 8 | (uint32_t)ah->attr.grh.hop_limit << 16;
        memcpy(slot->ud_dgid, ah->attr.grh.dgid.raw, 16);
    } else {
        slot->remote = wr->wr.rdma.remote_addr;
        slot->rkey = wr->wr.rdma.rkey;
    }
    if (inlined) {
        uint8_t *to = slot->data;
        for (int i = 0; i < wr->num_sge; i++) {
            memcpy(to, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
            to += wr->sg_list[i].length;
        }
    } else {
        for (int i = 0; i < wr->num_sge; i++)
            slot->sge[i] = (struct sf_sge){wr->sg_list[i].addr, wr->sg_list[i].length, wr->sg_list[i].lkey};
    }
    return 0;
}

int sv_post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct sv_qp *qp = (struct sv_qp *)base;
    struct sf_qp *s = qp->shared;
    int r = qp->life != sv_lib.life ? post_forked() : sv_refused(SF_VERB_POST_SEND, s->device);
    if (r) {
        *bad = wr;
        return r;
    }
    pthread_mutex_lock(&qp->post_send);
    uint64_t posted = atomic_load_explicit(&s->send_posted, memory_order_relaxed), before = posted;
    uint32_t state = atomic_load_explicit(&s->state, memory_order_relaxed);
    if (wr && state < IBV_QPS_RTS)
        r = sv_refuse(EINVAL, "queue pair 0x%06x is in %s, where no requests can be sent: bring it to RTS with ibv_modify_qp", s->number,
                      state == IBV_QPS_RESET  ? "RESET"
                      : state == IBV_QPS_INIT ? "INIT"
                                              : "RTR");
    for (; wr && r == 0; wr = wr->next) {
        /* acquire: pairs with the release in free_slots(), so the request in a free slot was read */
        if (posted - atomic_load_explicit(&qp->send_polled, memory_order_acquire) >= qp->send.limit) {
            r = sv_refuse(ENOMEM,
                          "queue pair 0x%06x: its send queue is full: %u requests are posted, and no completion for them was polled; poll "
                          "the completion queue, or ask for a larger max_send_wr",
                          s->number, qp->send.limit);
            break;
        }
        bool lose = false;
        if ((r = write_send(qp, wr, posted, &lose)) != 0)
            break;
        if (!lose)
            /* release: pairs with the acquire in execute_drain(), so a process that sees the count sees the request */
            atomic_store_explicit(&s->send_posted, ++posted, memory_order_release);
    }
    pthread_mutex_unlock(&qp->post_send);
    if (posted != before)
        sv_run(qp->entry);
    if (r)
        *bad = wr;
    return r;
}

static void write_receive(const struct sv_ring *ring, const struct ibv_recv_wr *wr, uint64_t position, uint64_t length)
{
    struct sf_receive *slot = sv_ring_slot(ring, position);
    slot->wr_id = wr->wr_id;
    slot->sge_count = (uint32_t)wr->num_sge;
    slot->length = (uint32_t)length;
    for (int i = 0; i < wr->num_sge; i++)
        slot->sge[i] = (struct sf_sge){wr->sg_list[i].addr, wr->sg_list[i].length, wr->sg_list[i].lkey};
}

/* `kind` and `number`: the queue, for error messages. */
static int check_receive(const char *kind, uint32_t number, const struct sv_ring *ring, const struct ibv_recv_wr *wr, uint64_t unpolled,
                         uint64_t *length)
{
    if (unpolled >= ring->limit)
        return sv_refuse(ENOMEM,
                         "%s 0x%06x: the receive queue is full: %u receives are posted, or complete and not polled; poll the completion "
                         "queue, or ask for a larger max_recv_wr",
                         kind, number, ring->limit);
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > ring->sge_limit)
        return sv_refuse(
            EINVAL, "%s 0x%06x: a receive has %d scatter/gather elements; at most %u were granted: ask for more when the queue is created",
            kind, number, wr->num_sge, ring->sge_limit);
    *length = 0;
    for (int i = 0; i < wr->num_sge; i++)
        *length += wr->sg_list[i].length;
    return 0;
}

/* Executes the peer's send queue if it waits for the receive that was just posted. */
static void serve_sender(const struct sf_qp *s)
{
    struct sf_qp *peer = &sv_lib.fabric->qps[s->peer_qp % SF_QPS];
    if (s->type != IBV_QPT_UD && peer->number == s->peer_number && peer->owner != 0)
        sv_run(s->peer_qp % SF_QPS);
}

int sv_post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct sv_qp *qp = (struct sv_qp *)base;
    struct sf_qp *s = qp->shared;
    const struct sv_profile *p = sv_lib.profile;
    uint32_t state = atomic_load_explicit(&s->state, memory_order_relaxed);
    int r = qp->life != sv_lib.life ? post_forked() : sv_refused(SF_VERB_POST_RECV, s->device);
    if (r == 0 && s->broken && p->unplugged == SV_UNPLUGGED_CRASHES) {
        sv_log(
            SV_ERROR,
            "ibv_post_recv on queue pair 0x%06x after its cable was pulled: this device's driver crashes here (profile %s, " SV_DOCUMENTED
            ": unplugged)",
            s->number, p->name);
        volatile int *volatile gone = (volatile int *)(uintptr_t)SF_PAGE - 1;
        *gone = 0;
    }
    if (r == 0 && base->srq)
        r = sv_refuse(EINVAL, "queue pair 0x%06x takes its receives from a shared receive queue: post them there (ibv_post_srq_recv)",
                      s->number);
    if (r == 0 && state == IBV_QPS_RESET)
        r = sv_refuse(EINVAL, "queue pair 0x%06x is in RESET, where no receives can be posted: bring it to INIT with ibv_modify_qp",
                      s->number);
    if (r == 0 && p->receive_needs_rts && state != IBV_QPS_RTS && state != IBV_QPS_ERR)
        r = sv_refuse(p->receive_errno,
                      "queue pair 0x%06x is not in RTS yet, and this device accepts receives only in RTS (profile %s, " SV_DOCUMENTED
                      ": receive_needs_rts)",
                      s->number, p->name);
    if (r) {
        *bad = wr;
        return r;
    }
    pthread_mutex_lock(&qp->post_receive);
    uint64_t posted = atomic_load_explicit(&s->receive.posted, memory_order_relaxed), before = posted;
    for (; wr; wr = wr->next) {
        uint64_t length = 0;
        bool lose = false;
        r = check_receive("queue pair", s->number, &qp->receive, wr,
                          posted - atomic_load_explicit(&qp->receive_polled, memory_order_acquire), &length);
        if (r == 0 && p->frame_bytes) {
            r = post_overdepth(qp, false, atomic_load_explicit(&qp->frames_receive, memory_order_relaxed), length, s->frame_depth_receive,
                               &lose);
            if (r == 0 && !lose)
                atomic_fetch_add_explicit(&qp->frames_receive, sv_frames(length), memory_order_relaxed);
        }
        if (r)
            break;
        if (lose)
            continue;
        write_receive(&qp->receive, wr, posted, length);
        /* release: pairs with the acquire in take_receive() */
        atomic_store_explicit(&s->receive.posted, ++posted, memory_order_release);
    }
    pthread_mutex_unlock(&qp->post_receive);
    if (posted != before) {
        /* pairs with the stores of `wanted` in take_receive() and of ERR in sv_fail_qp() */
        atomic_thread_fence(memory_order_seq_cst);
        if (atomic_load_explicit(&s->wanted, memory_order_relaxed) && atomic_exchange(&s->wanted, 0))
            serve_sender(s);
        if (atomic_load_explicit(&s->state, memory_order_seq_cst) == IBV_QPS_ERR)
            sv_flush_receives(qp->entry);
    }
    if (r)
        *bad = wr;
    return r;
}

int sv_post_srq_recv(struct ibv_srq *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct sv_srq *srq = (struct sv_srq *)base;
    struct sf_srq *s = srq->shared;
    struct sf_fabric *f = sv_lib.fabric;
    int r = srq->life != sv_lib.life ? post_forked() : sv_refused(SF_VERB_POST_RECV, s->device);
    if (r) {
        *bad = wr;
        return r;
    }
    pthread_mutex_lock(&srq->post);
    uint64_t posted = atomic_load_explicit(&s->queue.posted, memory_order_relaxed), before = posted;
    for (; wr; wr = wr->next) {
        uint64_t length = 0;
        r = check_receive("shared receive queue", base->handle, &srq->ring, wr, sv_srq_used(srq, posted), &length);
        if (r)
            break;
        write_receive(&srq->ring, wr, posted, length);
        /* release: as in sv_post_recv() */
        atomic_store_explicit(&s->queue.posted, ++posted, memory_order_release);
    }
    pthread_mutex_unlock(&srq->post);
    if (posted != before) {
        /* pairs with the stores in take_receive() */
        atomic_thread_fence(memory_order_seq_cst);
        if (atomic_load_explicit(&s->waiting, memory_order_relaxed) && atomic_exchange(&s->waiting, 0))
            for (uint32_t i = 0; i < f->qp_top && i < SF_QPS; i++) {
                struct sf_qp *qp = &f->qps[i];
                if (qp->owner == sv_lib.view.process && qp->srq == (uint32_t)(srq->entry + 1) &&
                    atomic_load_explicit(&qp->wanted, memory_order_relaxed) && atomic_exchange(&qp->wanted, 0))
                    serve_sender(qp);
            }
    }
    if (r)
        *bad = wr;
    return r;
}
