/* SPDX-License-Identifier: MIT
 *
 * Checks of verbs that a device need not support: either they work, or they fail in the way that programs which try them expect, and have
 * no effect.
 */
#include "conf.h"

static bool has_not(int err)
{
    return err == EOPNOTSUPP || err == ENOSYS || err == EPROTONOSUPPORT;
}

#define TRY(made)                                                                                   \
    do {                                                                                            \
        if (!(made) && has_not(errno))                                                              \
            return;                                                                                 \
        if (!(made))                                                                                \
            fail(t, "line %d: expected success or EOPNOTSUPP, came %s", __LINE__, err_name(errno)); \
    } while (0)

static void mw(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);

    errno = 0;
    struct ibv_mw *made = ibv_alloc_mw(pd, (enum ibv_mw_type)arg);
    TRY(made);
    want_ok(t, ibv_dealloc_mw(made));
}

static void xrcd(struct t *t, long arg)
{
    struct ibv_xrcd_init_attr init = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
        .fd = -1,
        .oflags = 0100 /* O_CREAT */,
    };

    (void)arg;
    errno = 0;
    struct ibv_xrcd *made = ibv_open_xrcd(t->ctx, &init);
    TRY(made);
    want_ok(t, ibv_close_xrcd(made));
}

static void thread_domain(struct t *t, long arg)
{
    struct ibv_td_init_attr init = {0};

    (void)arg;
    errno = 0;
    struct ibv_td *made = ibv_alloc_td(t->ctx, &init);
    TRY(made);
    want_ok(t, ibv_dealloc_td(made));
}

static void parent_domain(struct t *t, long arg)
{
    struct ibv_parent_domain_init_attr init = {.pd = pd_new(t)};

    (void)arg;
    errno = 0;
    struct ibv_pd *made = ibv_alloc_parent_domain(t->ctx, &init);
    TRY(made);
    want_ok(t, ibv_dealloc_pd(made));
}

static void device_memory(struct t *t, long arg)
{
    struct ibv_alloc_dm_attr init = {.length = 64};

    (void)arg;
    errno = 0;
    struct ibv_dm *made = ibv_alloc_dm(t->ctx, &init);
    TRY(made);
    want_ok(t, ibv_free_dm(made));
}

static void null_mr(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);

    (void)arg;
    errno = 0;
    struct ibv_mr *made = ibv_alloc_null_mr(pd);
    TRY(made);
    want_ok(t, ibv_dereg_mr(made));
}

static void counters(struct t *t, long arg)
{
    struct ibv_counters_init_attr init = {0};

    (void)arg;
    errno = 0;
    struct ibv_counters *made = ibv_create_counters(t->ctx, &init);
    TRY(made);
    want_ok(t, ibv_destroy_counters(made));
}

static void work_queue(struct t *t, long arg)
{
    struct ibv_wq_init_attr init = {
        .wq_type = IBV_WQT_RQ,
        .max_wr = 4,
        .max_sge = 1,
        .pd = pd_new(t),
        .cq = cq_new(t, 4, NULL),
    };

    (void)arg;
    errno = 0;
    struct ibv_wq *made = ibv_create_wq(t->ctx, &init);
    TRY(made);
    want_ok(t, ibv_destroy_wq(made));
}

static void srq_ex(struct t *t, long arg)
{
    struct ibv_srq_init_attr_ex init = {
        .attr = {.max_wr = 4, .max_sge = 1},
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
        .srq_type = IBV_SRQT_BASIC,
        .pd = pd_new(t),
    };

    (void)arg;
    errno = 0;
    struct ibv_srq *made = ibv_create_srq_ex(t->ctx, &init);
    TRY(made);
    want_ok(t, ibv_destroy_srq(made));
}

static void moderation(struct t *t, long arg)
{
    struct ibv_modify_cq_attr attr = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {1, 0}};
    int ret = ibv_modify_cq(cq_new(t, 4, NULL), &attr);

    (void)arg;
    if (!has_not(ret))
        want_eq(t, ret, 0);
}

static void advise(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    char *buf = mem_new(t, 4096);
    struct ibv_mr *mr = mr_new(t, pd, buf, 4096, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_sge sge = {(uintptr_t)buf, 4096, mr->lkey};
    int ret = ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1);

    (void)arg;
    if (!has_not(ret) && ret != EINVAL) /* EINVAL: the region is not paged on demand */
        want_eq(t, ret, 0);
}

static void multicast(struct t *t, long arg)
{
    struct ibv_qp *qp = qp_simple(t, pd_new(t), cq_new(t, 8, NULL), IBV_QPT_UD);
    union ibv_gid group = {.raw = {0xff, 0x0e, [15] = 0x77}};

    (void)arg;
    to_init(t, qp);
    int ret = ibv_attach_mcast(qp, &group, 0xc001);
    if (!has_not(ret)) {
        want_eq(t, ret, 0);
        want_ok(t, ibv_detach_mcast(qp, &group, 0xc001));
    }
}

static void enhanced_connection(struct t *t, long arg)
{
    struct ibv_qp *qp = qp_simple(t, pd_new(t), cq_new(t, 8, NULL), IBV_QPT_RC);
    struct ibv_ece ece = {0};
    int ret = ibv_query_ece(qp, &ece);

    (void)arg;
    if (!has_not(ret))
        want_eq(t, ret, 0);
}

const struct check optional_checks[] = {
    {"optional.mw_type_1", mw, IBV_MW_TYPE_1, 0},
    {"optional.mw_type_2", mw, IBV_MW_TYPE_2, 0},
    {"optional.xrcd", xrcd, 0, 0},
    {"optional.thread_domain", thread_domain, 0, 0},
    {"optional.parent_domain", parent_domain, 0, 0},
    {"optional.device_memory", device_memory, 0, 0},
    {"optional.null_mr", null_mr, 0, 0},
    {"optional.counters", counters, 0, 0},
    {"optional.work_queue", work_queue, 0, 0},
    {"optional.srq_ex", srq_ex, 0, NEED_SRQ},
    {"optional.moderation", moderation, 0, 0},
    {"optional.advise", advise, 0, 0},
    {"optional.multicast", multicast, 0, NEED_UD},
    {"optional.enhanced_connection", enhanced_connection, 0, 0},
    {0},
};
