/* SPDX-License-Identifier: MIT
 *
 * Ends requests: writes their completions, and brings queue pairs to ERR after an error.
 */
#include "engine.h"

bool sv_to_error(struct sf_qp *qp)
{
    uint32_t state = atomic_load_explicit(&qp->state, memory_order_relaxed);
    do {
        if (state < IBV_QPS_RTR || state == IBV_QPS_ERR)
            return false;
        /* seq_cst: pairs with the load in sv_post_recv() after the post, so that one of the two processes flushes the receive */
    } while (!atomic_compare_exchange_weak_explicit(&qp->state, &state, IBV_QPS_ERR, memory_order_seq_cst, memory_order_relaxed));
    if (sv_lib.profile->error_blocks_dereg && qp->device < SV_DEVICES)
        atomic_store_explicit(&sv_lib.fabric->devices[qp->device].dereg_blocked, 1, memory_order_relaxed);
    return true;
}

/* A peer that calls this may be killed between any two steps, while the owner sleeps. So it writes the events and wakes the owner first,
 * and changes the state last. If the peer is killed in between, the owner changes the state (sv_finish_failing). */
void sv_fail_qp(uint32_t q, enum ibv_event_type event, struct sv_later *later)
{
    struct sf_fabric *f = sv_lib.fabric;
    struct sf_qp *qp = &f->qps[q];
    uint32_t state = atomic_load_explicit(&qp->state, memory_order_relaxed);
    if (state < IBV_QPS_RTR || state == IBV_QPS_ERR)
        return;
    /* IBV_EVENT_CQ_ERR means: no event */
    sv_async_qp(q, (event != IBV_EVENT_CQ_ERR ? 1u << event : 0) | (qp->srq ? 1u << IBV_EVENT_QP_LAST_WQE_REACHED : 0));
    if (qp->owner != sv_lib.view.process) {
        struct sf_cq *sends = &f->cqs[qp->send_cq % SF_CQS], *receives = &f->cqs[qp->receive_cq % SF_CQS];
        /* release: pairs with the acquires in sv_finish_failing() and sv_progress(), so a process that sees `failing` or `waiting` sees the
         * events */
        atomic_store_explicit(&qp->failing, qp->connection, memory_order_release);
        atomic_store_explicit(&sends->waiting, 1, memory_order_release);
        atomic_store_explicit(&receives->waiting, 1, memory_order_release);
        sv_wake_at(qp->receive_cq, sf_now());
        if (sends->channel_fd != receives->channel_fd)
            sv_wake_at(qp->send_cq, sf_now());
    }
    if (!sv_to_error(qp))
        return;
    sv_later_flush(later, q);
    sv_later_run(later, q);
}

static void fail_overrun(uint32_t q, uint32_t cq, struct sv_later *later)
{
    if (atomic_load_explicit(&sv_lib.fabric->cqs[cq % SF_CQS].dead, memory_order_relaxed))
        sv_fail_qp(q, IBV_EVENT_QP_FATAL, later);
}

static uint8_t send_opcode(uint32_t opcode)
{
    switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP: return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return IBV_WC_FETCH_ADD;
    default: return IBV_WC_SEND;
    }
}

void sv_end_send(uint32_t q, enum ibv_wc_status status, struct sv_later *later)
{
    struct sf_qp *qp = &sv_lib.fabric->qps[q];
    uint64_t done = atomic_load_explicit(&qp->send_done, memory_order_relaxed);
    const struct sf_send *s = sv_send_slot(qp, done);

    qp->judged = qp->attempts = 0;
    atomic_store_explicit(&qp->wait_for, SF_WAIT_NOTHING, memory_order_relaxed);
    qp->messages++;
    if (status != IBV_WC_SUCCESS && status != IBV_WC_WR_FLUSH_ERR) {
        sv_log(SV_INFO, "queue pair 0x%06x: a request failed: %s", qp->number, ibv_wc_status_str(status));
        if (qp->type == IBV_QPT_RC)
            sv_fail_qp(q, IBV_EVENT_CQ_ERR, later);
        else { /* go to SQE, unless a peer has brought the queue pair to ERR meanwhile */
            uint32_t ready = IBV_QPS_RTS;
            atomic_compare_exchange_strong_explicit(&qp->state, &ready, IBV_QPS_SQE, memory_order_release, memory_order_relaxed);
        }
    }
    if (!qp->signal_all && !(s->flags & IBV_SEND_SIGNALED) && status == IBV_WC_SUCCESS) {
        /* release: the request was read before its slot becomes free */
        atomic_store_explicit(&qp->send_done, done + 1, memory_order_release);
        return;
    }
    bool atomic = s->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || s->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    struct sf_cqe e = {
        .wr_id = s->wr_id,
        .qp = q,
        .qp_num = qp->number,
        .byte_len = status != IBV_WC_SUCCESS ? 0
                    : atomic                 ? 8
                                             : s->length,
        .slot = (uint32_t)done,
        .status = (uint8_t)status,
        .opcode = send_opcode(s->opcode),
    };
    struct sf_intent in = {.kind = 1, .index = q, .done = done + 1};
    sv_complete(qp->send_cq, &e, &in);
    fail_overrun(q, qp->send_cq, later);
}

/* The service level in a datagram's completion. RoCE version 2 has no service level. There ConnectX adapters report in this field which
 * header precedes the data: 8, plus 1 for IPv6 or 2 for IPv4. Without this, UCX 1.13 drops datagrams over IPv4. */
static uint8_t service_level(const struct sf_qp *target, const struct sf_send *s)
{
    if (target->type != IBV_QPT_UD)
        return 0;
    if (sv_lib.profile->link_layer == SV_LINK_INFINIBAND)
        return s->ud_hop >> 24 & 0xf;
    if (sv_lib.profile->gid_type != SV_GID_ROCE_V2)
        return 0;
    return sv_over_ipv4(s) ? 8 | 2 : 8 | 1;
}

/* Called by every process that takes a receive or finds none, because a process that crossed the limit may have been killed. The event is
 * sent before the limit is disarmed, so it may be sent twice, but is not lost. */
void sv_tell_limit(uint32_t index)
{
    struct sf_srq *srq = &sv_lib.fabric->srqs[index % SF_SRQS];
    uint32_t mark = atomic_load_explicit(&srq->watermark, memory_order_relaxed);
    uint64_t left =
        atomic_load_explicit(&srq->queue.posted, memory_order_relaxed) - atomic_load_explicit(&srq->queue.done, memory_order_relaxed);
    if (mark == 0 || left >= mark)
        return;
    if (srq->context >= 0)
        sv_async((uint32_t)srq->context, IBV_EVENT_SRQ_LIMIT_REACHED, index, srq->generation);
    atomic_store_explicit(&srq->watermark, 0, memory_order_relaxed);
}

void sv_end_receive(struct sv_job *j, enum ibv_wc_status status, uint64_t bytes)
{
    struct sf_qp *t = j->target;
    struct sf_receive_queue *rq = j->rq;
    uint64_t done = atomic_load_explicit(&rq->done, memory_order_relaxed);
    const struct sf_receive *r = sv_receive_slot(rq, done);
    const struct sf_send *s = j->s;
    bool imm = s->opcode == IBV_WR_SEND_WITH_IMM || s->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    struct sf_cqe e = {
        .wr_id = r->wr_id,
        .qp = j->t,
        .qp_num = t->number,
        .source_qp = j->qp->number,
        .byte_len = (uint32_t)bytes,
        .imm = imm ? s->imm : 0,
        .slot = (uint32_t)done,
        .status = (uint8_t)status,
        .opcode = s->opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RECV_RDMA_WITH_IMM - IBV_WC_RECV : 0,
        .wc_flags = (uint8_t)((imm ? IBV_WC_WITH_IMM : 0) | (t->type == IBV_QPT_UD && (s->ud_hop & SF_UD_GLOBAL) ? IBV_WC_GRH : 0)),
        .receive = 1,
        .solicited = (s->flags & IBV_SEND_SOLICITED) != 0,
        .service_level = service_level(t, s),
        .source_lid = sf_lid(sv_lib.fabric, j->qp->device),
        .srq = (uint16_t)t->srq,
    };
    struct sf_intent in = {.kind = t->srq ? 3 : 2, .index = t->srq ? t->srq - 1 : j->t, .done = done + 1};
    sv_complete(t->receive_cq, &e, &in);
    fail_overrun(j->t, t->receive_cq, j->later);
    if (t->srq)
        sv_tell_limit(t->srq - 1);
}
