/* SPDX-License-Identifier: MIT
 *
 * The extended interface for polling, which polls one completion at a time. The program reads the fields by separate calls. Between
 * start_poll and end_poll no other thread can poll the queue.
 */
#include "entry.h"

#include <errno.h>
#include <sched.h>
#include <limits.h>
#include <time.h>

/* the supported fields; VLANs, flow tags and tag matching are not supported */
enum {
    KNOWN = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
};

static struct sv_cq *cq_of(struct ibv_cq_ex *ex)
{
    return sv_container(ex, struct sv_cq, ex);
}

static int cq_ex_take(struct sv_cq *cq)
{
    if (!sv_take_cqe(cq, &cq->current))
        return ENOENT;
    cq->ex.wr_id = cq->current.wr_id;
    cq->ex.status = (enum ibv_wc_status)cq->current.status;
    return 0;
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
    struct sv_cq *cq = cq_of(ex);
    int error;

    if (attr->comp_mask)
        return EINVAL;
    if (cq->life != sv_lib.life)
        return ENODEV; /* a forked child cannot use its parent's queue */
    error = sv_refused(SF_VERB_POLL_CQ, cq->shared->device);
    if (error)
        return sv_refuse(error, "ibv_start_poll: refused by a rule, which `softverbs fault list` shows");
    pthread_mutex_lock(&cq->poll);
    error = cq_ex_take(cq);
    bool tired = sv_tired(cq, !error);
    if (error) {
        pthread_mutex_unlock(&cq->poll); /* after an error the program does not call end_poll */
        if (tired)
            sched_yield();
        return error;
    }
    cq->reading = true;
    return 0;
}

static int next_poll(struct ibv_cq_ex *ex)
{
    return cq_ex_take(cq_of(ex));
}

static void end_poll(struct ibv_cq_ex *ex)
{
    struct sv_cq *cq = cq_of(ex);

    if (!cq->reading)
        return;
    cq->reading = false;
    pthread_mutex_unlock(&cq->poll);
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex)
{
    const struct sf_cqe *cqe = &cq_of(ex)->current;

    return (enum ibv_wc_opcode)(cqe->receive ? cqe->opcode | IBV_WC_RECV : cqe->opcode);
}

static uint32_t read_vendor_err(struct ibv_cq_ex *ex)
{
    return cq_of(ex)->current.vendor_error;
}

static uint32_t read_byte_len(struct ibv_cq_ex *ex)
{
    return cq_of(ex)->current.byte_len;
}

static __be32 read_imm_data(struct ibv_cq_ex *ex)
{
    return cq_of(ex)->current.imm;
}

static uint32_t read_qp_num(struct ibv_cq_ex *ex)
{
    return cq_of(ex)->current.qp_num;
}

static uint32_t read_src_qp(struct ibv_cq_ex *ex)
{
    return cq_of(ex)->current.source_qp;
}

static unsigned read_wc_flags(struct ibv_cq_ex *ex)
{
    return cq_of(ex)->current.wc_flags;
}

static uint32_t read_slid(struct ibv_cq_ex *ex)
{
    return cq_of(ex)->current.source_lid;
}

static uint8_t read_sl(struct ibv_cq_ex *ex)
{
    return cq_of(ex)->current.service_level;
}

/* Always 0: a port has one LID. */
static uint8_t read_dlid_path_bits(struct ibv_cq_ex *ex)
{
    (void)ex;
    return 0;
}

static uint64_t read_completion_ts(struct ibv_cq_ex *ex)
{
    return cq_of(ex)->current.timestamp;
}

/* Returns how far the wall clock is ahead of sf_now(). The wall clock may have been set, so it is read each time. Of several readings the
 * closest counts, because the thread may be preempted between reading the two clocks. The error that remains must not make a queue's times
 * go back. */
static uint64_t wall_ahead(struct sv_cq *cq)
{
    enum { TRIES = 8, NARROW_NS = 1000, STEP_NS = 100000 };
    uint64_t ahead = 0, width = UINT64_MAX;

    for (int i = 0; i < TRIES && width > NARROW_NS; i++) {
        struct timespec wall;
        uint64_t from = sf_now();
        clock_gettime(CLOCK_REALTIME, &wall);
        uint64_t to = sf_now();
        if (to - from < width) {
            width = to - from;
            ahead = (uint64_t)wall.tv_sec * 1000000000 + (uint64_t)wall.tv_nsec - (from + width / 2);
        }
    }
    uint64_t apart = ahead > cq->wall_ahead ? ahead - cq->wall_ahead : cq->wall_ahead - ahead;
    if (apart > STEP_NS + width)
        cq->wall_ahead = ahead;
    return cq->wall_ahead;
}

static uint64_t read_completion_wallclock_ns(struct ibv_cq_ex *ex)
{
    struct sv_cq *cq = cq_of(ex);

    return cq->current.timestamp + wall_ahead(cq);
}

void sv_cq_ex_install(struct sv_cq *cq)
{
    struct ibv_cq_ex *ex = &cq->ex;

    ex->start_poll = start_poll;
    ex->next_poll = next_poll;
    ex->end_poll = end_poll;
    ex->read_opcode = read_opcode;
    ex->read_vendor_err = read_vendor_err;
    ex->read_wc_flags = read_wc_flags;
    if (cq->wc_flags & IBV_WC_EX_WITH_BYTE_LEN)
        ex->read_byte_len = read_byte_len;
    if (cq->wc_flags & IBV_WC_EX_WITH_IMM)
        ex->read_imm_data = read_imm_data;
    if (cq->wc_flags & IBV_WC_EX_WITH_QP_NUM)
        ex->read_qp_num = read_qp_num;
    if (cq->wc_flags & IBV_WC_EX_WITH_SRC_QP)
        ex->read_src_qp = read_src_qp;
    if (cq->wc_flags & IBV_WC_EX_WITH_SLID)
        ex->read_slid = read_slid;
    if (cq->wc_flags & IBV_WC_EX_WITH_SL)
        ex->read_sl = read_sl;
    if (cq->wc_flags & IBV_WC_EX_WITH_DLID_PATH_BITS)
        ex->read_dlid_path_bits = read_dlid_path_bits;
    if (cq->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
        ex->read_completion_ts = read_completion_ts;
    if (cq->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
        ex->read_completion_wallclock_ns = read_completion_wallclock_ns;
}

struct ibv_cq_ex *sv_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
    const uint32_t flags = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attr->flags : 0;
    struct ibv_cq *base;
    struct sv_cq *cq;

    if (attr->comp_mask & ~(uint32_t)(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) ||
        flags & ~(uint32_t)(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN)) {
        sv_refuse(EINVAL, "ibv_create_cq_ex: comp_mask (%#x) and flags (%#x) must not have bits that softverbs does not know",
                  attr->comp_mask, flags);
        return NULL;
    }
    if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD || flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) {
        sv_refuse(EOPNOTSUPP, "ibv_create_cq_ex: %s is not supported; leave it out",
                  attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD ? "a parent domain (IBV_CQ_INIT_ATTR_MASK_PD)"
                                                             : "IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN");
        return NULL;
    }
    if (attr->wc_flags & ~(uint64_t)KNOWN) {
        sv_refuse(EOPNOTSUPP, "ibv_create_cq_ex: wc_flags has flags that are not supported (%#llx): leave them out",
                  (unsigned long long)attr->wc_flags & ~(unsigned long long)KNOWN);
        return NULL;
    }
    if (attr->cqe > INT_MAX || attr->comp_vector > INT_MAX) {
        sv_refuse(EINVAL, "ibv_create_cq_ex: cqe %u, comp_vector %u: a value is too large", attr->cqe, attr->comp_vector);
        return NULL;
    }
    base = sv_create_cq(context, (int)attr->cqe, attr->cq_context, attr->channel, (int)attr->comp_vector);
    if (!base)
        return NULL;
    cq = sv_container(base, struct sv_cq, base);
    cq->wc_flags = attr->wc_flags;
    cq->shared->timed = (attr->wc_flags & (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)) != 0;
    sv_cq_ex_install(cq);
    return &cq->ex;
}
