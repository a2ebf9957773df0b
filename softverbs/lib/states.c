/* SPDX-License-Identifier: MIT
 *
 * ibv_modify_qp(): the states of a queue pair, the attributes that each transition requires and allows, and the effects of a transition.
 *
 * The table is that of the InfiniBand specification (volume 1, 11.2.5.2), as Linux enforces it. Attributes are written with all locks of
 * the queue pair held, so that an executor sees a transition completely or not at all.
 */
#include "lib.h"

#include <errno.h>
#include <string.h>

/* ---- The table ------------------------------------------------------------------------------------------------- */
enum kind { RC, UC, UD, KINDS };

enum {
    PATH = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
    SECOND = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE,
    START = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
    START_UD = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
    LIVE = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | SECOND,
    LIVE_UD = IBV_QP_CUR_STATE | IBV_QP_QKEY,
    RETRIES = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
    /* The bits that rdma-core 44 passes to the kernel. Higher bits are refused in every transition. */
    KNOWN = (IBV_QP_DEST_QPN << 1) - 1,
};

struct step {
    bool valid;
    int required[KINDS], optional[KINDS];
};

static const struct step steps[IBV_QPS_ERR + 1][IBV_QPS_ERR + 1] = {
    [IBV_QPS_RESET][IBV_QPS_RESET] = {.valid = true},
    [IBV_QPS_RESET][IBV_QPS_INIT] = {true, {[RC] = START, [UC] = START, [UD] = START_UD}, {0}},

    [IBV_QPS_INIT][IBV_QPS_RESET] = {.valid = true},
    [IBV_QPS_INIT][IBV_QPS_ERR] = {.valid = true},
    [IBV_QPS_INIT][IBV_QPS_INIT] = {true, {0}, {[RC] = START, [UC] = START, [UD] = START_UD}},
    [IBV_QPS_INIT][IBV_QPS_RTR] = {true,
                                   {[RC] = PATH | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, [UC] = PATH, [UD] = 0},
                                   {[RC] = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
                                    [UC] = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
                                    [UD] = IBV_QP_PKEY_INDEX | IBV_QP_QKEY}},

    [IBV_QPS_RTR][IBV_QPS_RESET] = {.valid = true},
    [IBV_QPS_RTR][IBV_QPS_ERR] = {.valid = true},
    [IBV_QPS_RTR][IBV_QPS_RTS] = {true,
                                  {[RC] = RETRIES | IBV_QP_SQ_PSN, [UC] = IBV_QP_SQ_PSN, [UD] = IBV_QP_SQ_PSN},
                                  {[RC] = LIVE | IBV_QP_MIN_RNR_TIMER, [UC] = LIVE, [UD] = LIVE_UD}},

    [IBV_QPS_RTS][IBV_QPS_RESET] = {.valid = true},
    [IBV_QPS_RTS][IBV_QPS_ERR] = {.valid = true},
    [IBV_QPS_RTS][IBV_QPS_RTS] = {true, {0}, {[RC] = LIVE | IBV_QP_MIN_RNR_TIMER, [UC] = LIVE, [UD] = LIVE_UD}},
    [IBV_QPS_RTS][IBV_QPS_SQD] =
        {true, {0}, {[RC] = IBV_QP_EN_SQD_ASYNC_NOTIFY, [UC] = IBV_QP_EN_SQD_ASYNC_NOTIFY, [UD] = IBV_QP_EN_SQD_ASYNC_NOTIFY}},

    [IBV_QPS_SQD][IBV_QPS_RESET] = {.valid = true},
    [IBV_QPS_SQD][IBV_QPS_ERR] = {.valid = true},
    [IBV_QPS_SQD][IBV_QPS_RTS] = {true, {0}, {[RC] = LIVE | IBV_QP_MIN_RNR_TIMER, [UC] = LIVE, [UD] = LIVE_UD}},
    [IBV_QPS_SQD][IBV_QPS_SQD] = {true,
                                  {0},
                                  {[RC] = IBV_QP_PORT | IBV_QP_AV | RETRIES | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ACCESS_FLAGS |
                                          IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER | SECOND,
                                   [UC] = IBV_QP_AV | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | SECOND,
                                   [UD] = IBV_QP_PKEY_INDEX | IBV_QP_QKEY}},

    [IBV_QPS_SQE][IBV_QPS_RESET] = {.valid = true},
    [IBV_QPS_SQE][IBV_QPS_ERR] = {.valid = true},
    [IBV_QPS_SQE][IBV_QPS_RTS] = {true, {0}, {[RC] = 0, [UC] = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS, [UD] = LIVE_UD}},

    [IBV_QPS_ERR][IBV_QPS_RESET] = {.valid = true},
    [IBV_QPS_ERR][IBV_QPS_ERR] = {.valid = true},
};

static const char *state_name(uint32_t state)
{
    static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    return state < sizeof(names) / sizeof(*names) ? names[state] : "?";
}

static enum kind kind_of(const struct sf_qp *q)
{
    return q->type == IBV_QPT_RC ? RC : q->type == IBV_QPT_UC ? UC : UD;
}

/* ---- Locks ----------------------------------------------------------------------------------------------------- */
/* Locks two completion queues in the order of their entries, because another thread may lock the same two in opposite roles. */
static void lock_polls(struct sv_cq *a, struct sv_cq *b)
{
    pthread_mutex_lock(a->entry < b->entry ? &a->poll : &b->poll);
    if (a != b)
        pthread_mutex_lock(a->entry < b->entry ? &b->poll : &a->poll);
}

static struct sv_cq *send_cq(struct sv_qp *qp)
{
    return sv_container(qp->base.send_cq, struct sv_cq, base);
}

static struct sv_cq *receive_cq(struct sv_qp *qp)
{
    return sv_container(qp->base.recv_cq, struct sv_cq, base);
}

static struct sf_receive_queue *shared_receives(struct sv_qp *qp)
{
    return &sv_container(qp->base.srq, struct sv_srq, base)->shared->queue;
}

void sv_enter_qp(struct sv_qp *qp, bool pollers)
{
    pthread_mutex_lock(&qp->post_send);
    pthread_mutex_lock(&qp->post_receive);
    if (pollers)
        /* lock the pollers before the queues, because a poller runs queues while it holds its lock */
        lock_polls(send_cq(qp), receive_cq(qp));
    sf_lock_send(&sv_lib.view, qp->shared);
    sf_lock_receive(&sv_lib.view, &qp->shared->receive, receive_cq(qp)->shared);
    if (qp->base.srq) /* held by a process that takes a receive from the shared receive queue for this queue pair */
        sf_lock_receive(&sv_lib.view, shared_receives(qp), receive_cq(qp)->shared);
}

void sv_leave_qp(struct sv_qp *qp, bool pollers)
{
    if (qp->base.srq)
        sf_unlock(&sv_lib.view, &shared_receives(qp)->lock);
    sf_unlock(&sv_lib.view, &qp->shared->receive.lock);
    sf_unlock(&sv_lib.view, &qp->shared->lock);
    if (pollers) {
        pthread_mutex_unlock(&send_cq(qp)->poll);
        if (send_cq(qp) != receive_cq(qp))
            pthread_mutex_unlock(&receive_cq(qp)->poll);
    }
    pthread_mutex_unlock(&qp->post_receive);
    pthread_mutex_unlock(&qp->post_send);
}

/* ---- Reset ----------------------------------------------------------------------------------------------------- */
/* Removes unpolled completions, as mlx4, mlx5 and hns do, so that a later connection does not find them. New completions cannot be written,
 * because the locks for writing them are held. */
void sv_reset_qp(struct sv_qp *qp)
{
    struct sf_qp *q = qp->shared;
    /* set the state first, because a process that waits for a lock checks the state when it has the lock */
    atomic_store_explicit(&q->state, IBV_QPS_RESET, memory_order_release);
    q->connection = q->connection == UINT32_MAX ? 1 : q->connection + 1;
    q->broken = 0;
    q->established = 0;
    q->peer_device = SF_NO_DEVICE;
    q->peer_number = q->peer_qp = 0;
    q->access = q->qkey = 0;
    q->send_psn = q->receive_psn = 0;
    q->timeout = q->retry_count = q->rnr_retry = q->rnr_timer = 0;
    q->rd_atomic = q->dest_rd_atomic = q->sgid_index = 0;

    q->wait_since = q->wait_until = 0;
    q->next_look = 0;
    q->judged = q->attempts = q->drop = q->corrupt = 0;
    q->hold_ns = q->dice = 0;
    q->wait_for = SF_WAIT_NOTHING;
    atomic_store_explicit(&q->waiting, 0, memory_order_relaxed);
    atomic_store_explicit(&q->kick, 0, memory_order_relaxed);
    atomic_store_explicit(&q->wanted, 0, memory_order_relaxed);
    q->messages = 0;

    atomic_store_explicit(&q->send_posted, 0, memory_order_relaxed);
    atomic_store_explicit(&q->send_done, 0, memory_order_relaxed);
    atomic_store_explicit(&qp->send_polled, 0, memory_order_relaxed);
    atomic_store_explicit(&qp->frames_send, 0, memory_order_relaxed);
    atomic_store_explicit(&q->receive.posted, 0, memory_order_relaxed);
    atomic_store_explicit(&q->receive.done, 0, memory_order_relaxed);
    atomic_store_explicit(&qp->receive_polled, 0, memory_order_relaxed);
    atomic_store_explicit(&qp->frames_receive, 0, memory_order_relaxed);
    memset(&qp->attr, 0, sizeof(qp->attr));
    sv_forget_completions(receive_cq(qp), qp->base.qp_num);
    if (send_cq(qp) != receive_cq(qp))
        sv_forget_completions(send_cq(qp), qp->base.qp_num);
}

/* ---- Checking attributes ----------------------------------------------------------------------------------------- */
int sv_check_route(uint32_t device, const struct ibv_ah_attr *ah, const char *verb)
{
    static const uint8_t none[16];
    const struct sv_profile *p = sv_lib.profile;
    const struct sv_device_model *d = &sv_lib.fabric->model.topology.devices[device];

    if (ah->port_num != 1)
        return sv_refuse(EINVAL, "%s: the address names port %u; a device has only port 1", verb, ah->port_num);
    if (!ah->is_global) {
        if (p->link_layer == IBV_LINK_LAYER_ETHERNET)
            return sv_refuse(EINVAL, "%s: is_global is 0: over Ethernet an address needs a GID (pingpongs: -g 1, perftest: -x 1)", verb);
        return 0; /* the LID alone is enough, because a fabric is one subnet */
    }
    int bad = p->bad_gid_errno ? p->bad_gid_errno : EINVAL;
    if (ah->grh.sgid_index >= d->gid_count || memcmp(d->gids[ah->grh.sgid_index].raw, none, 16) == 0)
        return sv_refuse(bad, "%s: sgid_index %u: %s has no such GID (profile %s, bad_gid_errno; " SV_DOCUMENTED ")", verb,
                         ah->grh.sgid_index, d->name, p->name);
    return 0;
}

uint32_t sv_find_port(const struct ibv_ah_attr *ah, uint32_t *gid)
{
    uint32_t index = 0, found = ah->is_global ? sf_find_gid(sv_lib.fabric, ah->grh.dgid.raw, &index) : SF_NO_DEVICE;

    if (gid)
        *gid = index;
    if (sv_lib.profile->link_layer == IBV_LINK_LAYER_ETHERNET)
        return found;
    /* InfiniBand switches forward by LID. The port accepts a global header only if it has that GID. */
    uint32_t port = sf_find_lid(sv_lib.fabric, ah->dlid);
    return ah->is_global && port != found ? SF_NO_DEVICE : port;
}

/* Finds the device of an address. Returns an errno if there is no such device and the profile detects this. */
static int find_peer(uint32_t device, const struct ibv_ah_attr *ah, uint32_t *peer)
{
    static const uint8_t none[16];
    const struct sv_profile *p = sv_lib.profile;
    const struct sv_device_model *d = &sv_lib.fabric->model.topology.devices[device];
    uint32_t index = 0;

    int error = sv_check_route(device, ah, "ibv_modify_qp");
    if (error)
        return error;
    if (!ah->is_global) { /* if no port has this LID, requests will time out */
        *peer = sv_find_port(ah, NULL);
        return 0;
    }
    if (memcmp(ah->grh.dgid.raw, none, 16) == 0)
        return sv_refuse(p->bad_gid_errno ? p->bad_gid_errno : EINVAL,
                         "ibv_modify_qp: the destination GID is zero: it was never set (profile %s, bad_gid_errno; " SV_DOCUMENTED ")",
                         p->name);
    *peer = sv_find_port(ah, &index);
    if (*peer == SF_NO_DEVICE && p->link_layer == IBV_LINK_LAYER_ETHERNET && p->bad_gid_errno)
        return sv_refuse(p->bad_gid_errno,
                         "ibv_modify_qp: no port of the fabric has the destination GID (profile %s, bad_gid_errno; " SV_DOCUMENTED ")",
                         p->name);
    if (p->unreachable_gid_errno == 0)
        return 0; /* requests will time out */

    const char *why = NULL;
    if (*peer == SF_NO_DEVICE)
        why = "no port has the destination GID";
    else if (sv_lib.fabric->model.topology.devices[*peer].gids[index].unreachable || (p->first_gid_unreachable && index == 0))
        why = "the destination GID is in its port's table, but does not work on this link";
    else if (d->gids[ah->grh.sgid_index].unreachable || (p->first_gid_unreachable && ah->grh.sgid_index == 0))
        why = "the GID at sgid_index is in the table, but does not work on this link";
    else if (!sf_reachable(sv_lib.fabric, device, *peer))
        why = "the destination GID is not of the device at the other end of this device's cable";
    if (why)
        return sv_refuse(p->unreachable_gid_errno, "ibv_modify_qp: %s (profile %s, unreachable_gid_errno; " SV_DOCUMENTED ")", why,
                         p->name);
    return 0;
}

static int too_large(const char *name, uint32_t value, uint32_t most)
{
    return sv_refuse(EINVAL, "ibv_modify_qp: %s %u: expected at most %u", name, value, most);
}

static int check_values(const struct ibv_qp_attr *a, int mask)
{
    const struct sv_profile *p = sv_lib.profile;

    if ((mask & IBV_QP_PORT) && a->port_num != 1)
        return sv_refuse(EINVAL, "ibv_modify_qp: port_num %u: a device has only port 1", a->port_num);
    if ((mask & IBV_QP_PKEY_INDEX) && a->pkey_index >= p->pkeys)
        return sv_refuse(EINVAL, "ibv_modify_qp: pkey_index %u: the table has %u entries (profile %s, pkeys; " SV_DOCUMENTED ")",
                         a->pkey_index, p->pkeys, p->name);
    if ((mask & IBV_QP_PATH_MTU) && (a->path_mtu < IBV_MTU_256 || (uint32_t)a->path_mtu > p->active_mtu))
        return sv_refuse(EINVAL, "ibv_modify_qp: path_mtu %d: expected 1 to %u, which is the port's active_mtu (profile %s)",
                         (int)a->path_mtu, p->active_mtu, p->name);
    if ((mask & IBV_QP_DEST_QPN) && a->dest_qp_num > 0xffffff)
        return too_large("dest_qp_num", a->dest_qp_num, 0xffffff);
    if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) && a->max_rd_atomic > p->max_rd_atomic)
        return too_large("max_rd_atomic", a->max_rd_atomic, p->max_rd_atomic);
    if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) && a->max_dest_rd_atomic > p->max_rd_atomic)
        return too_large("max_dest_rd_atomic", a->max_dest_rd_atomic, p->max_rd_atomic);
    if ((mask & IBV_QP_TIMEOUT) && a->timeout > 31)
        return too_large("timeout", a->timeout, 31);
    if ((mask & IBV_QP_RETRY_CNT) && a->retry_cnt > 7)
        return too_large("retry_cnt", a->retry_cnt, 7);
    if ((mask & IBV_QP_RNR_RETRY) && a->rnr_retry > 7)
        return too_large("rnr_retry", a->rnr_retry, 7);
    if ((mask & IBV_QP_MIN_RNR_TIMER) && a->min_rnr_timer > 31)
        return too_large("min_rnr_timer", a->min_rnr_timer, 31);
    if (mask & IBV_QP_ALT_PATH)
        return sv_refuse(EINVAL,
                         "ibv_modify_qp: an alternate path is not supported, because a device has one port: leave IBV_QP_ALT_PATH out");
    if ((mask & IBV_QP_PATH_MIG_STATE) && (uint32_t)a->path_mig_state > IBV_MIG_ARMED)
        return too_large("path_mig_state", (uint32_t)a->path_mig_state, IBV_MIG_ARMED);
    return 0;
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */
/* Writes the attributes, and keeps what ibv_query_qp() reports. */
static void write_attributes(struct sv_qp *qp, const struct ibv_qp_attr *a, int mask, uint32_t peer)
{
    struct sf_qp *q = qp->shared;
    struct ibv_qp_attr *said = &qp->attr;

    if (mask & IBV_QP_ACCESS_FLAGS)
        q->access = said->qp_access_flags = a->qp_access_flags;
    if (mask & IBV_QP_PKEY_INDEX)
        said->pkey_index = a->pkey_index;
    if (mask & IBV_QP_PORT)
        q->port = said->port_num = a->port_num;
    if (mask & IBV_QP_QKEY)
        q->qkey = said->qkey = a->qkey;
    if (mask & IBV_QP_AV) {
        said->ah_attr = a->ah_attr;
        q->sgid_index = a->ah_attr.is_global ? a->ah_attr.grh.sgid_index : 0;
        q->peer_device = peer;
    }
    if (mask & IBV_QP_PATH_MTU) {
        said->path_mtu = a->path_mtu;
        q->mtu = 128u << a->path_mtu;
    }
    if (q->type == IBV_QPT_UD) /* UD has no path MTU: a datagram may be as long as the port's packets */
        q->mtu = 128u << sv_lib.profile->active_mtu;
    if (mask & IBV_QP_DEST_QPN) {
        q->peer_number = said->dest_qp_num = a->dest_qp_num;
        q->peer_qp = sf_number_entry(a->dest_qp_num);
    }
    if (mask & IBV_QP_RQ_PSN)
        q->receive_psn = said->rq_psn = a->rq_psn & 0xffffff; /* 24 bits, as in Linux */
    if (mask & IBV_QP_SQ_PSN)
        q->send_psn = said->sq_psn = a->sq_psn & 0xffffff;
    if (mask & IBV_QP_TIMEOUT)
        q->timeout = said->timeout = a->timeout;
    if (mask & IBV_QP_RETRY_CNT)
        q->retry_count = said->retry_cnt = a->retry_cnt;
    if (mask & IBV_QP_RNR_RETRY)
        q->rnr_retry = said->rnr_retry = a->rnr_retry;
    if (mask & IBV_QP_MIN_RNR_TIMER)
        q->rnr_timer = said->min_rnr_timer = a->min_rnr_timer;
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
        q->rd_atomic = said->max_rd_atomic = a->max_rd_atomic;
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
        q->dest_rd_atomic = said->max_dest_rd_atomic = a->max_dest_rd_atomic;
    if (mask & IBV_QP_PATH_MIG_STATE)
        said->path_mig_state = a->path_mig_state;
    if (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY)
        said->en_sqd_async_notify = a->en_sqd_async_notify;
}

/* Checks whether the transition is allowed. The caller holds the queue pair's locks. */
static int check_step(const struct sf_qp *q, uint32_t now, uint32_t next, const struct ibv_qp_attr *a, int mask)
{
    const struct step *s = &steps[now][next];
    int required = s->required[kind_of(q)], optional = s->optional[kind_of(q)];

    if (!s->valid)
        return sv_refuse(EINVAL, "ibv_modify_qp: a queue pair cannot go from %s to %s", state_name(now), state_name(next));
    if ((mask & required) != required)
        return sv_refuse(EINVAL, "ibv_modify_qp: %s to %s: required attributes are missing: set them, and add %#x to the mask",
                         state_name(now), state_name(next), required & ~mask);
    if (mask & ~(required | optional | IBV_QP_STATE))
        return sv_refuse(EINVAL, "ibv_modify_qp: %s to %s: this step does not accept all the attributes: leave %#x out of the mask",
                         state_name(now), state_name(next), mask & ~(required | optional | IBV_QP_STATE));
    if ((mask & IBV_QP_CUR_STATE) && (uint32_t)a->cur_qp_state != now)
        return sv_refuse(EINVAL, "ibv_modify_qp: cur_qp_state is %s, but the queue pair is in %s", state_name((uint32_t)a->cur_qp_state),
                         state_name(now));
    return 0;
}

/* What is done after the locks were released. */
static void after_step(struct sv_qp *qp, uint32_t was, uint32_t next)
{
    struct sf_qp *q = qp->shared;

    if (next == IBV_QPS_RTS)
        sv_run(qp->entry);
    if (was == IBV_QPS_INIT && next == IBV_QPS_RTR && q->type != IBV_QPT_UD) {
        /* run a peer that has posted too early, instead of waiting for its next check */
        const struct sf_qp *peer = &sv_lib.fabric->qps[q->peer_qp % SF_QPS];
        if (peer->owner != 0 && peer->number == q->peer_number && atomic_load_explicit(&peer->waiting, memory_order_relaxed))
            sv_run(q->peer_qp % SF_QPS);
    }
    if (next != IBV_QPS_ERR)
        return;
    sv_run(qp->entry); /* flushes */
    sv_flush_receives(qp->entry);
    if (was != IBV_QPS_ERR && q->srq != 0) /* send the event only once, even if a peer brings the queue pair to ERR at the same time */
        sv_async_qp(qp->entry, 1 << IBV_EVENT_QP_LAST_WQE_REACHED);
    if (sv_lib.profile->error_blocks_dereg) {
        atomic_store_explicit(&sv_lib.fabric->devices[sv_context_of(qp->base.context)->device].dereg_blocked, 1, memory_order_relaxed);
        sv_log(SV_INFO,
               "a queue pair went to ERR: from now on ibv_dereg_mr fails on this device (profile %s, "
               "error_blocks_dereg; " SV_DOCUMENTED ")",
               sv_lib.profile->name);
    }
}

SV_PUBLIC int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
    struct sv_qp *qp = sv_container(base, struct sv_qp, base);
    struct sf_qp *q = qp->shared;
    uint32_t peer = SF_NO_DEVICE, device = sv_context_of(base->context)->device;

    if (qp->life != sv_lib.life)
        return errno = ENODEV; /* a forked child cannot use its parent's queue pair */
    int error = sv_refused(SF_VERB_MODIFY_QP, device);
    if (error)
        return errno = error;
    if (mask & ~KNOWN)
        return sv_refuse(EOPNOTSUPP, "ibv_modify_qp: the mask has bits that softverbs does not know: leave %#x out", mask & ~KNOWN);
    if (((mask & IBV_QP_STATE) && (uint32_t)attr->qp_state > IBV_QPS_ERR) ||
        ((mask & IBV_QP_CUR_STATE) && (uint32_t)attr->cur_qp_state > IBV_QPS_ERR))
        return sv_refuse(EINVAL, "ibv_modify_qp: qp_state or cur_qp_state is not one of IBV_QPS_RESET to IBV_QPS_ERR");

    /* Only a reset takes the pollers' locks, because a program may call this between ibv_start_poll() and ibv_end_poll(), which hold them.
     */
    bool reset = (mask & IBV_QP_STATE) && attr->qp_state == IBV_QPS_RESET;
    sv_enter_qp(qp, reset);
    uint32_t now = atomic_load_explicit(&q->state, memory_order_relaxed);
    uint32_t next = mask & IBV_QP_STATE ? (uint32_t)attr->qp_state : now;
    error = now > IBV_QPS_ERR ? EIO : check_step(q, now, next, attr, mask);
    if (!error)
        error = check_values(attr, mask);
    if (!error && (mask & IBV_QP_AV))
        error = find_peer(device, &attr->ah_attr, &peer);
    if (error)
        goto out;

    if (reset) {
        sv_reset_qp(qp);
    } else {
        write_attributes(qp, attr, mask, peer);
        /* release: pairs with the acquire in deliver_hears(), so a process that sees the state sees the attributes. If a peer has brought
         * the queue pair to ERR meanwhile, it stays in ERR. */
        uint32_t still = now;
        if (!atomic_compare_exchange_strong(&q->state, &still, next) && next != IBV_QPS_ERR)
            error = sv_refuse(EINVAL, "ibv_modify_qp: the queue pair has just failed: its state is %s; bring it to RESET, or destroy it",
                              state_name(still));
    }
    if (!error && (mask & IBV_QP_STATE))
        base->state = attr->qp_state;
out:
    sv_leave_qp(qp, reset);
    /* Wait until no more data arrives. Do not hold the locks meanwhile, because a process that moves data may wait for a lock. */
    if (!error && now != next && (next == IBV_QPS_RESET || next == IBV_QPS_ERR))
        sv_quiesce();
    if (atomic_load_explicit(&q->kick, memory_order_seq_cst))
        sv_run(qp->entry); /* a process tried to execute the queue pair while it was locked */
    if (error)
        return errno = error;
    if (mask & IBV_QP_STATE)
        sv_log(SV_DEBUG, "queue pair 0x%06x: %s to %s", base->qp_num, state_name(now), state_name(next));
    /* No request is under way while this thread holds the locks, so the stopped queue has drained. */
    if (now == IBV_QPS_RTS && next == IBV_QPS_SQD && (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) && attr->en_sqd_async_notify)
        sv_async_qp(qp->entry, 1 << IBV_EVENT_SQ_DRAINED);
    after_step(qp, now, next);
    return 0;
}
