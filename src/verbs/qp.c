/* SPDX-License-Identifier: MIT
 *
 * Makes, connects and destroys queue pairs. The text of an error contains the objects of both sides and the usual cause.
 */
#include <stdio.h>
#include <string.h>

#include "verbs/verbs.h"

#define NUMBER_24 UINT32_C(0xffffff)

static const char *type_text(enum ibv_qp_type type)
{
    switch (type) {
    case IBV_QPT_RC: return "RC";
    case IBV_QPT_UC: return "UC";
    case IBV_QPT_UD: return "UD";
    default: return "unknown";
    }
}

static bool qp_thunderbolt(const struct verbs_device *d)
{
    return d->traits.link == VERBS_THUNDERBOLT;
}

/* --- creation --- */
static int cannot_create(const struct verbs_device *d, const struct verbs_qp_options *o)
{
    int raw, code = verbs_code(0, qp_thunderbolt(d), &raw);
    const char *meaning = "";
    char text[700], who[480];
    if (code == -EBUSY || code == -ENOMEM || code == -ENOSPC) {
        snprintf(text, sizeof text, ". All of its %u queue pairs may be in use, by this process or by others%s", d->traits.qps,
                 verbs_holders(d->lib, d->context, who, sizeof who));
        meaning = text;
    } else if (code == -EOPNOTSUPP) {
        snprintf(text, sizeof text, ". The device has no %s queue pairs", type_text(o->type));
        meaning = text;
    }
    return base_fail(code, "%s: cannot create a %s queue pair (%u sends, %u receives): errno %d (%s)%s", d->name, type_text(o->type),
                     o->send_depth, o->recv_depth, raw, base_strerror(code), meaning);
}

static uint32_t qp_at_most(uint32_t n, uint32_t limit)
{
    return limit && n > limit ? limit : n;
}

/* No query tells how much inline data a request can have. If the device refuses to make the queue pair, this function asks again for
 * less. */
static struct ibv_qp *qp_make(const struct verbs_device *d, const struct verbs_qp_options *o, struct ibv_qp_init_attr *init)
{
    uint32_t data = qp_at_most(o->inline_bytes, d->traits.inline_bytes);
    if (d->traits.inline_bytes == 0)
        data = 0;
    for (;;) {
        *init = (struct ibv_qp_init_attr){
            .send_cq = o->send_cq,
            .recv_cq = o->recv_cq,
            .cap = {.max_send_wr = qp_at_most(o->send_depth, d->traits.depth),
                    .max_recv_wr = o->srq ? 0 : qp_at_most(o->recv_depth, d->traits.depth),
                    .max_send_sge = qp_at_most(o->sge ? o->sge : 1, d->traits.sge),
                    .max_recv_sge = o->srq ? 0 : qp_at_most(o->sge ? o->sge : 1, d->traits.sge),
                    .max_inline_data = data},
            .qp_type = o->type,
            .sq_sig_all = o->signal_all,
        };
#if !defined(__APPLE__) /* Apple's header and devices have no shared receive queues */
        init->srq = o->srq;
#endif
        errno = 0;
        struct ibv_qp *qp = d->lib->create_qp(d->pd, init);
        if (qp || data == 0 || (errno != EINVAL && errno != ENOMEM))
            return qp;
        data = data > 32 ? data / 2 : 0;
    }
}

static int to_init(struct verbs_qp *q, enum ibv_qp_type type)
{
    struct verbs_device *d = q->device;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .pkey_index = 0, .port_num = d->port, .qp_access_flags = (unsigned)d->traits.access};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    int raw;
    if (type != IBV_QPT_RC)
        attr.qp_access_flags &= ~(unsigned)IBV_ACCESS_REMOTE_ATOMIC;
    int rc = d->lib->modify_qp(q->qp, &attr, mask);
    if (rc) {
        rc = verbs_code(rc, qp_thunderbolt(d), &raw);
        return base_fail(
            rc, "%s port %u: queue pair 0x%06x cannot be initialised (state INIT): errno %d (%s); `weft doctor` examines the device",
            d->name, d->port, q->qp->qp_num, raw, base_strerror(rc));
    }
    return 0;
}

/* Reads back the depths that the device granted: they may be larger than requested, or counted in another unit. */
static void read_back(struct verbs_qp *q, const struct ibv_qp_init_attr *made)
{
    struct ibv_qp_attr attr = {0};
    struct ibv_qp_init_attr init = {0};
    struct ibv_qp_cap cap = made->cap;
    if (q->device->lib->query_qp(q->qp, &attr, IBV_QP_CAP, &init) == 0)
        cap = init.cap.max_send_wr ? init.cap : attr.cap.max_send_wr ? attr.cap : made->cap;
    q->send_depth = cap.max_send_wr;
    q->recv_depth = cap.max_recv_wr;
    q->inline_bytes = cap.max_inline_data;
    q->sge = cap.max_send_sge;
}

static void note_address(struct verbs_qp *q, uint32_t psn)
{
    const struct verbs_device *d = q->device;
    struct verbs_address *a = &q->here;
    memset(a, 0, sizeof *a);
    memcpy(a->gid, d->chosen.gid.raw.raw, sizeof a->gid);
    a->qpn = q->qp->qp_num;
    a->psn = psn & NUMBER_24;
    a->lid = d->port_attr.lid;
    a->mtu = (uint8_t)d->traits.mtu;
    a->rd_atomic = (uint8_t)d->traits.rd_atomic;
    a->global = d->traits.link != VERBS_INFINIBAND;
    a->port = d->port;
    a->gid_index = (uint8_t)d->chosen.gid.index;
    snprintf(a->device, sizeof a->device, "%.31s", d->name);
}

int verbs_qp_create(struct verbs_qp *out, struct verbs_device *d, const struct verbs_qp_options *options)
{
    struct verbs_qp q = {.device = d, .timeout = 14, .retry = 7, .rnr_retry = 7, .rnr_timer = 12};
    struct ibv_qp_init_attr made;
    uint32_t psn;
    memset(out, 0, sizeof *out);
    if (!d->pd)
        return base_fail(-EINVAL, "cannot create a queue pair on %s: the device was not prepared for use" BASE_BUG_HINT, d->name);
    if ((options->type == IBV_QPT_RC && !d->traits.rc) || (options->type == IBV_QPT_UC && !d->traits.uc))
        return base_fail(-EOPNOTSUPP, "device %s has no %s queue pairs; use another device (WEFT_DEVICE)", d->name,
                         type_text(options->type));
    if (d->chosen.gid.index > UINT8_MAX)
        return base_fail(-ERANGE, "%s: GID index %u is too large for a queue pair: set an index up to 255 (WEFT_GID_INDEX)", d->name,
                         d->chosen.gid.index);
    int rc = base_random(&psn, sizeof psn);
    if (rc)
        return rc;
    q.qp = qp_make(d, options, &made);
    if (!q.qp)
        return cannot_create(d, options);
    if ((rc = to_init(&q, options->type))) {
        verbs_qp_destroy(&q);
        return rc;
    }
    read_back(&q, &made);
    note_address(&q, psn);
    *out = q;
    return 0;
}

/* --- connecting --- */
static bool zero(const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (bytes[i])
            return false;
    return true;
}

bool verbs_address_valid(const struct verbs_address *a)
{
    if (a->port == 0 || a->mtu < IBV_MTU_256 || a->mtu > IBV_MTU_4096 || a->qpn > NUMBER_24 || a->psn > NUMBER_24)
        return false;
    if (a->global > 1 || (a->global ? zero(a->gid, sizeof a->gid) : a->lid == 0))
        return false;
    for (size_t i = 0; i < sizeof a->device; i++) {
        if (a->device[i] == '\0')
            return true;
        if (a->device[i] < ' ' || a->device[i] > '~')
            return false;
    }
    return false;
}

static const char *meaning_of(int code)
{
    switch (code) {
    case -EINVAL:
        return ". Usually a GID was never set, or belongs to another port: look at both GID tables with `weft devices -v`, and give both "
               "interfaces an IPv4 address";
    case -ETIMEDOUT:
        return ". Usually the peer's GID is valid, but cannot be reached on this link: use the IPv4-mapped entry, the same subnet at both "
               "ends, and the two ports that one cable joins";
    case -ENETUNREACH:
    case -EHOSTUNREACH: return ". No route leads from one address to the other: put both in one subnet";
    case -ENETDOWN: return ". The interface is down: bring it up";
    default: return "";
    }
}

static int cannot(const struct verbs_qp *q, const struct verbs_address *peer, const char *step, int returned)
{
    char here[48], there[48];
    int raw, code = verbs_code(returned, qp_thunderbolt(q->device), &raw);
    const struct verbs_address *a = &q->here;
    union ibv_gid from, to;
    memcpy(from.raw, a->gid, sizeof from.raw);
    memcpy(to.raw, peer->gid, sizeof to.raw);
    return base_fail(code,
                     "queue pair %s: errno %d (%s); here %s port %u, GID %s (index %u), queue pair 0x%06x; there %s port %u, "
                     "GID %s (index %u), queue pair 0x%06x%s",
                     step, raw, base_strerror(code), a->device, a->port, verbs_gid_text(&from, here, sizeof here), a->gid_index, a->qpn,
                     peer->device, peer->port, verbs_gid_text(&to, there, sizeof there), peer->gid_index, peer->qpn, meaning_of(code));
}

/* Whether two InfiniBand ports are in different subnets, so that a LID does not suffice as an address. The first half of a GID identifies
 * the subnet.
 */
static bool routed(const struct verbs_address *a, const struct verbs_address *b)
{
    return a->global || b->global || (!zero(a->gid, 16) && !zero(b->gid, 16) && memcmp(a->gid, b->gid, 8) != 0);
}

static int to_rtr(struct verbs_qp *q, const struct verbs_address *peer, bool reliable)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = (enum ibv_mtu)(peer->mtu < q->here.mtu ? peer->mtu : q->here.mtu),
        .dest_qp_num = peer->qpn,
        .rq_psn = peer->psn,
        .max_dest_rd_atomic = q->here.rd_atomic,
        .min_rnr_timer = q->rnr_timer,
        .ah_attr = {.dlid = peer->lid, .port_num = q->here.port},
    };
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (routed(&q->here, peer)) {
        attr.ah_attr.is_global = 1;
        memcpy(attr.ah_attr.grh.dgid.raw, peer->gid, sizeof peer->gid);
        attr.ah_attr.grh.sgid_index = q->here.gid_index; /* the entry of the GID that this node has sent to the peer */
        attr.ah_attr.grh.hop_limit = qp_thunderbolt(q->device) ? 1 : 64;
    }
    if (reliable)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    int rc = q->device->lib->modify_qp(q->qp, &attr, mask);
    return rc ? cannot(q, peer, "INIT to RTR", rc) : 0;
}

static int to_rts(struct verbs_qp *q, const struct verbs_address *peer, bool reliable)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = q->here.psn,
        .timeout = q->timeout,
        .retry_cnt = q->retry,
        .rnr_retry = q->rnr_retry,
        .max_rd_atomic = peer->rd_atomic < q->here.rd_atomic ? peer->rd_atomic : q->here.rd_atomic,
    };
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (reliable)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    int rc = q->device->lib->modify_qp(q->qp, &attr, mask);
    return rc ? cannot(q, peer, "RTR to RTS", rc) : 0;
}

int verbs_qp_connect(struct verbs_qp *q, const struct verbs_address *peer)
{
    bool reliable = q->qp->qp_type == IBV_QPT_RC;
    if (!verbs_address_valid(peer))
        return base_fail(-EINVAL,
                         "%s: the other node sent an invalid address of its queue pair; run the same version of weft on both hosts",
                         q->here.device);
    int rc = to_rtr(q, peer, reliable);
    return rc ? rc : to_rts(q, peer, reliable);
}

int verbs_qp_stop(struct verbs_qp *q)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    int rc = q->qp ? q->device->lib->modify_qp(q->qp, &attr, IBV_QP_STATE) : 0;
    return rc ? verbs_code(rc, qp_thunderbolt(q->device), NULL) : 0;
}

/* Does not move the queue pair to the error state before destroying it: on a Thunderbolt device that would make all later deregistrations
 * of memory fail. */
void verbs_qp_destroy(struct verbs_qp *q)
{
    int raw;
    if (!q->qp)
        return;
    int rc = q->device->lib->destroy_qp(q->qp);
    if (rc) {
        int code = verbs_code(rc, qp_thunderbolt(q->device), &raw);
        base_log(BASE_LOG_WARN, "%s: queue pair 0x%06x cannot be freed: errno %d (%s); it stays in use until this program ends",
                 q->device->name, q->here.qpn, raw, base_strerror(code));
    }
    q->qp = NULL;
}
