/* SPDX-License-Identifier: MIT
 *
 * Creates, queries and destroys queue pairs. states.c has their states.
 *
 * A queue pair gets exactly as many requests and elements as requested, with two exceptions. If the profile counts frames, the depth is
 * rounded up to one of the profile's steps. If the profile's inline data grows, it gets as much as fits into a slot. The result is written
 * into the caller's attributes, and reported by ibv_query_qp().
 */
#include "lib.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char DOCUMENTED[] = SV_DOCUMENTED;

/* ---- The granted depths and sizes ------------------------------------------------------------------------------- */
static int too_many(const char *what, uint32_t asked, uint32_t most, const char *key)
{
    return sv_refuse(EINVAL, "ibv_create_qp: %s %u: at most %u (profile %s, %s; %s)", what, asked, most, sv_lib.profile->name, key,
                     DOCUMENTED);
}

/* Computes the depth of a queue. *frames gets its depth in frames if the profile counts frames, otherwise 0. */
static int grant_depth(const char *what, uint32_t *depth, uint32_t *frames)
{
    const struct sv_profile *p = sv_lib.profile;
    uint32_t asked = *depth, steps = p->depth_step_count < SV_STEPS ? p->depth_step_count : SV_STEPS;

    *frames = 0;
    if (p->frame_bytes == 0 || steps == 0) {
        if (asked > p->max_qp_wr)
            return too_many(what, asked, p->max_qp_wr, "max_qp_wr");
        if (p->frame_bytes != 0)
            *frames = asked;
        return 0;
    }
    if (asked > p->depth_steps[steps - 1])
        return too_many(what, asked, p->depth_steps[steps - 1], "depth_steps, in frames");
    for (uint32_t i = 0; asked != 0 && i < steps; i++) {
        if (p->depth_steps[i] < asked)
            continue;
        *depth = *frames = p->depth_steps[i];
        if (*depth != asked)
            sv_log(SV_INFO, "ibv_create_qp: %s %u: %u granted (profile %s, depth_steps; %s)", what, asked, *depth, p->name, DOCUMENTED);
        break;
    }
    return 0;
}

struct grant {
    struct ibv_qp_cap cap;
    uint32_t frames_send, frames_receive;
};

static int qp_grant(struct grant *g, bool shared_receive)
{
    const struct sv_profile *p = sv_lib.profile;
    struct ibv_qp_cap *cap = &g->cap;
    int error;

    if (shared_receive) /* no receive queue of its own */
        cap->max_recv_wr = cap->max_recv_sge = 0;
    if (cap->max_send_sge > p->max_sge)
        return too_many("max_send_sge", cap->max_send_sge, p->max_sge, "max_sge");
    if (cap->max_recv_sge > p->max_sge)
        return too_many("max_recv_sge", cap->max_recv_sge, p->max_sge, "max_sge");
    if (cap->max_inline_data > p->max_inline)
        return too_many("max_inline_data", cap->max_inline_data, p->max_inline, "max_inline");
    if ((error = grant_depth("max_send_wr", &cap->max_send_wr, &g->frames_send)) != 0)
        return error;
    if ((error = grant_depth("max_recv_wr", &cap->max_recv_wr, &g->frames_receive)) != 0)
        return error;
    if (p->inline_grows) {
        uint32_t room = sv_send_stride(cap->max_send_sge, cap->max_inline_data) - (uint32_t)offsetof(struct sf_send, data);
        cap->max_inline_data = room < p->max_inline ? room : p->max_inline;
    }
    return 0;
}

static uint32_t power_of_two(uint32_t least)
{
    uint32_t n = 1;
    while (n < least && n < UINT32_C(1) << 31)
        n *= 2;
    return n;
}

/* ---- The allowed requests --------------------------------------------------------------------------------------- */
static int check_type(enum ibv_qp_type type)
{
    const struct sv_profile *p = sv_lib.profile;
    uint32_t bit = type == IBV_QPT_RC ? SV_RC : type == IBV_QPT_UC ? SV_UC : type == IBV_QPT_UD ? SV_UD : 0;

    if (p->transports & bit)
        return 0;
    return sv_refuse(p->transport_errno ? p->transport_errno : EOPNOTSUPP,
                     "ibv_create_qp: this device has no queue pairs of type %d (%s) (profile %s, transports; %s)", (int)type,
                     bit == SV_RC   ? "RC"
                     : bit == SV_UC ? "UC"
                     : bit == SV_UD ? "UD"
                                    : "another",
                     p->name, DOCUMENTED);
}

static int check_extended(const struct ibv_qp_init_attr_ex *a)
{
    const uint32_t known =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
    static const struct {
        uint64_t flag;
        uint32_t operation, types;
    } operations[] = {
        {IBV_QP_EX_WITH_SEND, SV_OP_SEND, SV_RC | SV_UC | SV_UD},
        {IBV_QP_EX_WITH_SEND_WITH_IMM, SV_OP_SEND_IMM, SV_RC | SV_UC | SV_UD},
        {IBV_QP_EX_WITH_RDMA_WRITE, SV_OP_WRITE, SV_RC | SV_UC},
        {IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, SV_OP_WRITE_IMM, SV_RC | SV_UC},
        {IBV_QP_EX_WITH_RDMA_READ, SV_OP_READ, SV_RC},
        {IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, SV_OP_CAS, SV_RC},
        {IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, SV_OP_FADD, SV_RC},
    };
    uint32_t type = a->qp_type == IBV_QPT_RC ? SV_RC : a->qp_type == IBV_QPT_UC ? SV_UC : SV_UD;

    if (!(a->comp_mask & IBV_QP_INIT_ATTR_PD) || !a->pd)
        return sv_refuse(EINVAL,
                         "ibv_create_qp_ex: the attributes have no protection domain: set pd, and IBV_QP_INIT_ATTR_PD in comp_mask");
    if (a->comp_mask & ~known)
        return sv_refuse(EOPNOTSUPP,
                         "ibv_create_qp_ex: comp_mask has the unsupported bits %#x (XRC, receive tables, hashing): leave them out",
                         a->comp_mask & ~known);
    if ((a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) && a->create_flags)
        return sv_refuse(EOPNOTSUPP, "ibv_create_qp_ex: create_flags %#x: no flag is supported; set it to 0", a->create_flags);
    if ((a->comp_mask & IBV_QP_INIT_ATTR_MAX_TSO_HEADER) && a->max_tso_header)
        return sv_refuse(EOPNOTSUPP, "ibv_create_qp_ex: max_tso_header: segmentation offload is not supported; give 0");
    if (!(a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS))
        return 0;
    uint64_t left = a->send_ops_flags;
    for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++)
        if ((operations[i].types & type) && (sv_lib.profile->operations & operations[i].operation))
            left &= ~operations[i].flag;
    if (left)
        return sv_refuse(EOPNOTSUPP,
                         "ibv_create_qp_ex: send_ops_flags %#llx: not supported for this type of queue pair (profile %s, "
                         "operations; %s)",
                         (unsigned long long)left, sv_lib.profile->name, DOCUMENTED);
    return 0;
}

static bool qp_take_ring(struct sv_ring *r)
{
    r->offset = sf_arena_take(&sv_lib.view, sv_ring_bytes(r));
    r->base = r->offset ? sf_at(&sv_lib.view, r->offset) : NULL;
    return r->offset != 0;
}

/* ---- Creating ---- */
static int qp_rings(struct sv_qp *qp, const struct grant *g, bool shared_receive)
{
    struct sf_qp *q = qp->shared;
    q->send_stride = sv_send_stride(g->cap.max_send_sge, g->cap.max_inline_data);
    q->send_capacity = power_of_two(g->cap.max_send_wr);
    q->send_limit = g->cap.max_send_wr;
    q->send_sge_limit = g->cap.max_send_sge;
    q->inline_limit = g->cap.max_inline_data;
    q->mtu = 128u << sv_lib.profile->active_mtu; /* a datagram is at most as long as the port's MTU; connected queue pairs set their own */
    q->frame_depth_send = g->frames_send;
    q->frame_depth_receive = g->frames_receive;
    q->receive.stride = sv_receive_stride(g->cap.max_recv_sge);
    q->receive.capacity = power_of_two(g->cap.max_recv_wr);
    q->receive.limit = g->cap.max_recv_wr;
    q->receive.sge_limit = g->cap.max_recv_sge;

    qp->send = (struct sv_ring){
        .mask = q->send_capacity - 1, .stride = q->send_stride, .limit = g->cap.max_send_wr, .sge_limit = g->cap.max_send_sge};
    qp->receive = (struct sv_ring){
        .mask = q->receive.capacity - 1, .stride = q->receive.stride, .limit = g->cap.max_recv_wr, .sge_limit = g->cap.max_recv_sge};
    if (!qp_take_ring(&qp->send) || (!shared_receive && !qp_take_ring(&qp->receive)))
        return ENOMEM;
    q->send_ring = qp->send.offset;
    q->receive.ring = qp->receive.offset;
    return 0;
}

static void give_rings(struct sv_qp *qp)
{
    if (qp->send.offset != 0)
        sf_arena_give(&sv_lib.view, qp->send.offset, sv_ring_bytes(&qp->send));
    if (qp->receive.offset != 0)
        sf_arena_give(&sv_lib.view, qp->receive.offset, sv_ring_bytes(&qp->receive));
    qp->shared->send_ring = qp->shared->receive.ring = 0;
}

/* Takes an entry of the table. The entry's locks are held meanwhile, because a process that has waited for such a lock since the entry
 * belonged to another queue pair may still get the lock for a moment. */
static int qp_enter_table(struct sv_qp *qp, uint32_t device, const struct ibv_qp_init_attr_ex *a, const struct grant *g)
{
    const struct sv_profile *p = sv_lib.profile;
    uint32_t most = p->real_qp ? p->real_qp : p->max_qp;
    int entry = sf_take_qp(&sv_lib.view, device, most);
    int error;

    if (entry == -EBUSY)
        return sv_refuse(p->qp_errno ? p->qp_errno : ENOMEM,
                         "ibv_create_qp: %s already has %u queue pairs, its limit: destroy one first (profile %s, real_qp; %s)",
                         sv_lib.fabric->model.topology.devices[device].name, most, p->name, DOCUMENTED);
    if (entry < 0)
        return sv_refuse(-entry, "ibv_create_qp: no entry is free: the fabric has room for %u queue pairs, or its file system is full",
                         (unsigned)SF_QPS);

    struct sf_qp *q = &sv_lib.fabric->qps[entry];
    qp->entry = (uint32_t)entry;
    qp->shared = q;
    qp->life = sv_lib.life;
    sf_lock_send(&sv_lib.view, q);
    sf_lock_receive(&sv_lib.view, &q->receive, NULL);
    atomic_store_explicit(&q->state, IBV_QPS_RESET, memory_order_relaxed);
    q->pd = sv_container(a->pd, struct sv_pd, base)->entry;
    q->type = a->qp_type;
    q->send_cq = sv_container(a->send_cq, struct sv_cq, base)->entry;
    q->receive_cq = sv_container(a->recv_cq, struct sv_cq, base)->entry;
    q->srq = a->srq ? sv_container(a->srq, struct sv_srq, base)->entry + 1 : 0;
    q->context = (int32_t)sv_context_of(a->pd->context)->entry;
    q->signal_all = a->sq_sig_all != 0;
    q->port = 1;
    error = qp_rings(qp, g, a->srq != NULL);
    sf_unlock(&sv_lib.view, &q->receive.lock);
    sf_unlock(&sv_lib.view, &q->lock);
    if (error) {
        give_rings(qp);
        sf_give_qp(&sv_lib.view, qp->entry);
        return sv_refuse(
            error, "ibv_create_qp: no room for its queues in the fabric's file; free space in its file system, or destroy other objects");
    }
    return 0;
}

static void count_users(const struct ibv_qp *base, int by)
{
    atomic_fetch_add(&sv_container(base->pd, struct sv_pd, base)->users, (uint32_t)by);
    atomic_fetch_add(&sv_container(base->send_cq, struct sv_cq, base)->users, (uint32_t)by);
    atomic_fetch_add(&sv_container(base->recv_cq, struct sv_cq, base)->users, (uint32_t)by);
    if (base->srq)
        atomic_fetch_add(&sv_container(base->srq, struct sv_srq, base)->users, (uint32_t)by);
    atomic_fetch_add(&sv_context_of(base->context)->objects, (uint32_t)by);
}

static void qp_publish(struct sv_qp *qp, struct sv_qp *as)
{
    pthread_mutex_lock(&sv_lib.mutex);
    if (as || sv_lib.qps[qp->entry] == qp)
        __atomic_store_n(&sv_lib.qps[qp->entry], as, __ATOMIC_RELEASE); /* pollers read this with acquire */
    pthread_mutex_unlock(&sv_lib.mutex);
}

static int check_owners(const struct ibv_context *context, const struct ibv_qp_init_attr_ex *a)
{
    if (!a->send_cq || !a->recv_cq)
        return sv_refuse(EINVAL, "ibv_create_qp: a completion queue is missing: set both send_cq and recv_cq");
    if (a->pd->context != context || a->send_cq->context != context || a->recv_cq->context != context ||
        (a->srq && a->srq->context != context))
        return sv_refuse(EINVAL, "ibv_create_qp: the protection domain and the queues must all belong to one opened device");
    return 0;
}

struct ibv_qp *sv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *a)
{
    uint32_t device = sv_context_of(context)->device;
    bool extended = (a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
    struct grant g = {.cap = a->cap};
    struct sv_qp *qp;
    int error;

    if (!sv_joined() || sv_context_of(context)->life != sv_lib.life) {
        errno = ENODEV; /* a forked child cannot use its parent's device */
        return NULL;
    }
    if ((error = sv_refused(SF_VERB_CREATE_QP, device)) != 0 || (error = check_type(a->qp_type)) != 0 || (error = check_extended(a)) != 0 ||
        (error = check_owners(context, a)) != 0 || (error = qp_grant(&g, a->srq != NULL)) != 0)
        goto refused;
    error = ENOMEM;
    qp = calloc(1, sizeof *qp);
    if (!qp)
        goto refused;
    error = qp_enter_table(qp, device, a, &g);
    if (error)
        goto no_entry;

    struct ibv_qp *base = &qp->base;
    base->context = context;
    base->qp_context = a->qp_context;
    base->pd = a->pd;
    base->send_cq = a->send_cq;
    base->recv_cq = a->recv_cq;
    base->srq = a->srq;
    base->handle = qp->entry;
    base->qp_num = qp->shared->number;
    base->state = IBV_QPS_RESET;
    base->qp_type = a->qp_type;
    pthread_mutex_init(&base->mutex, NULL);
    pthread_cond_init(&base->cond, NULL);
    pthread_mutex_init(&qp->post_send, NULL);
    pthread_mutex_init(&qp->post_receive, NULL);
    qp->init = (struct ibv_qp_init_attr){
        .qp_context = a->qp_context,
        .send_cq = a->send_cq,
        .recv_cq = a->recv_cq,
        .srq = a->srq,
        .cap = g.cap,
        .qp_type = a->qp_type,
        .sq_sig_all = a->sq_sig_all,
    };
    if (extended) {
        errno = 0;
        sv_wr_install(qp, a->send_ops_flags);
        error = errno;
        if (error)
            goto no_interface;
    }
    count_users(base, 1);
    a->cap = g.cap;
    qp_publish(qp, qp);
    sv_log(SV_DEBUG, "queue pair 0x%06x on %s: %u sends, %u receives", base->qp_num, sv_lib.fabric->model.topology.devices[device].name,
           g.cap.max_send_wr, g.cap.max_recv_wr);
    return base;

no_interface:
    give_rings(qp);
    sf_give_qp(&sv_lib.view, qp->entry);
no_entry:
    free(qp);
refused:
    errno = error;
    return NULL;
}

SV_PUBLIC struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
    struct ibv_qp_init_attr_ex ex = {
        .qp_context = a->qp_context,
        .send_cq = a->send_cq,
        .recv_cq = a->recv_cq,
        .srq = a->srq,
        .cap = a->cap,
        .qp_type = a->qp_type,
        .sq_sig_all = a->sq_sig_all,
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = pd,
    };
    struct ibv_qp *qp = sv_create_qp(pd->context, &ex);
    if (qp)
        a->cap = ex.cap;
    return qp;
}

/* ---- Destroying ---- */
SV_PUBLIC int ibv_destroy_qp(struct ibv_qp *base)
{
    struct sv_qp *qp = sv_container(base, struct sv_qp, base);
    bool mine = sv_mine(base->context, &qp->shared->owner);

    int error = mine ? sv_refused(SF_VERB_DESTROY_QP, qp->shared->device) : 0;
    if (error)
        return errno = error;
    if (!mine) {
        if (qp->life == sv_lib.life)
            qp_publish(qp, NULL); /* another process has overwritten the entry's owner; pollers must not find the freed queue pair */
        goto gone;
    }
    /* While its locks are held, no thread works on the queue pair, and in RESET none begins. Pollers find the queue pair only while holding
     * a lock that this thread now holds. */
    sv_enter_qp(qp, true);
    sv_reset_qp(qp);
    qp_publish(qp, NULL);
    sv_leave_qp(qp, true);
    sv_quiesce();
    sv_async_forget(base->context, SV_QP_EVENTS, qp->entry, qp->shared->generation);

    pthread_mutex_lock(&base->mutex);
    while (base->events_completed != qp->async_delivered)
        pthread_cond_wait(&base->cond, &base->mutex);
    pthread_mutex_unlock(&base->mutex);

    give_rings(qp);
    sf_give_qp(&sv_lib.view, qp->entry);
gone:
    sv_wr_remove(qp);
    count_users(base, -1);
    pthread_mutex_destroy(&qp->post_send);
    pthread_mutex_destroy(&qp->post_receive);
    pthread_cond_destroy(&base->cond);
    pthread_mutex_destroy(&base->mutex);
    free(qp);
    return 0;
}

/* ---- Queries ----------------------------------------------------------------------------------------------------- */
SV_PUBLIC int ibv_query_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
    struct sv_qp *qp = sv_container(base, struct sv_qp, base);
    (void)mask; /* the mask says what the caller needs; all attributes are available at no cost */

    pthread_mutex_lock(&qp->post_send); /* as in ibv_modify_qp() */
    *attr = qp->attr;
    attr->qp_state = atomic_load_explicit(&qp->shared->state, memory_order_acquire);
    pthread_mutex_unlock(&qp->post_send);
    attr->cur_qp_state = attr->qp_state;
    attr->cap = qp->init.cap;
    attr->sq_draining = 0; /* a stopped queue has drained */
    base->state = attr->qp_state;
    *init = qp->init;
    return 0;
}

SV_PUBLIC int ibv_query_qp_data_in_order(struct ibv_qp *base, enum ibv_wr_opcode opcode, uint32_t flags)
{
    (void)base, (void)opcode, (void)flags;
    return 0; /* 0: data may arrive in any order, so it is complete only when there is a completion */
}

SV_PUBLIC int ibv_query_ece(struct ibv_qp *base, struct ibv_ece *ece)
{
    (void)base, (void)ece;
    return sv_refuse(EOPNOTSUPP, "ibv_query_ece: enhanced connection establishment is not supported");
}

SV_PUBLIC int ibv_set_ece(struct ibv_qp *base, struct ibv_ece *ece)
{
    (void)base;
    if (ece->vendor_id == 0 && ece->options == 0 && ece->comp_mask == 0)
        return 0; /* no options */
    return sv_refuse(EOPNOTSUPP, "ibv_set_ece: enhanced connection establishment is not supported");
}

SV_PUBLIC int ibv_attach_mcast(struct ibv_qp *base, const union ibv_gid *gid, uint16_t lid)
{
    (void)base, (void)gid, (void)lid;
    return sv_refuse(EOPNOTSUPP, "ibv_attach_mcast: multicast is not supported");
}

SV_PUBLIC int ibv_detach_mcast(struct ibv_qp *base, const union ibv_gid *gid, uint16_t lid)
{
    (void)base, (void)gid, (void)lid;
    return sv_refuse(EOPNOTSUPP, "ibv_detach_mcast: multicast is not supported");
}
