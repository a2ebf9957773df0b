/* SPDX-License-Identifier: MIT
 *
 * Queue pairs: every transition between two states with every attribute, limits of values, what is granted, and what the tb5 profiles
 * refuse; shared receive queues and address handles. No data moves here.
 *
 * A process can join only one fabric, so each group of tests runs in a child process on a fabric of its own.
 *
 * Over 600 lines: the groups share one device and one set of attributes, which each of them changes in one place.
 */
#include "lib/lib.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct sv_model model;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

/* ---- The device -------------------------------------------------------------------------------------------------- */
static int open_device(void **state)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    (void)state;
    if (!list || count == 0)
        return -1;
    context = ibv_open_device(list[0]);
    pd = context ? ibv_alloc_pd(context) : NULL;
    cq = pd ? ibv_create_cq(context, 64, NULL, NULL, 0) : NULL;
    ibv_free_device_list(list);
    return cq ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    return ibv_destroy_cq(cq) || ibv_dealloc_pd(pd) || ibv_close_device(context);
}

static struct ibv_qp_init_attr asks(enum ibv_qp_type type)
{
    return (struct ibv_qp_init_attr){
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = type,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
    };
}

static struct ibv_qp *make(enum ibv_qp_type type)
{
    struct ibv_qp_init_attr a = asks(type);
    struct ibv_qp *qp = ibv_create_qp(pd, &a);
    assert_non_null(qp);
    return qp;
}

static const struct sv_device_model *device_of(uint32_t device)
{
    return &model.topology.devices[device];
}

/* The other end of device 0's cable; another device of the switch. */
static uint32_t neighbour(void)
{
    int32_t cable = device_of(0)->cable;
    return cable >= 0 ? (uint32_t)cable : 1;
}

/* Attributes with valid values, for any step. */
static struct ibv_qp_attr right(void)
{
    struct ibv_qp_attr a = {
        .path_mtu = IBV_MTU_1024,
        .qkey = 0x11111111,
        .rq_psn = 1,
        .sq_psn = 2,
        .dest_qp_num = 77,
        .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}},
        .port_num = 1,
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .min_rnr_timer = 12,
    };
    memcpy(a.ah_attr.grh.dgid.raw, device_of(neighbour())->gids[1].raw, 16);
    return a;
}

/* ---- Steps --------------------------------------------------------------------------------------------------------- */
enum { RESET = IBV_QPS_RESET, INIT, RTR, RTS, SQD, SQE, ERR };

/* The letter that stands for each attribute. */
static const struct {
    char letter;
    int bit;
} letters[] = {
    {'c', IBV_QP_CUR_STATE},
    {'n', IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {'f', IBV_QP_ACCESS_FLAGS},
    {'k', IBV_QP_PKEY_INDEX},
    {'p', IBV_QP_PORT},
    {'q', IBV_QP_QKEY},
    {'a', IBV_QP_AV},
    {'m', IBV_QP_PATH_MTU},
    {'t', IBV_QP_TIMEOUT},
    {'r', IBV_QP_RETRY_CNT},
    {'R', IBV_QP_RNR_RETRY},
    {'P', IBV_QP_RQ_PSN},
    {'i', IBV_QP_MAX_QP_RD_ATOMIC},
    {'A', IBV_QP_ALT_PATH},
    {'T', IBV_QP_MIN_RNR_TIMER},
    {'S', IBV_QP_SQ_PSN},
    {'d', IBV_QP_MAX_DEST_RD_ATOMIC},
    {'g', IBV_QP_PATH_MIG_STATE},
    {'C', IBV_QP_CAP},
    {'D', IBV_QP_DEST_QPN},
};

static int bits(const char *text)
{
    int all = 0;
    for (; *text; text++)
        for (size_t i = 0; i < sizeof(letters) / sizeof(*letters); i++)
            if (letters[i].letter == *text)
                all |= letters[i].bit;
    return all;
}

/* The attributes that each transition requires and allows, from the text of the specification. Over Ethernet, an alternate path is refused,
 * as Linux refuses it. */
static const struct {
    enum ibv_qp_type type;
    int from, to;
    const char *required, *optional;
} expected[] = {
    {IBV_QPT_RC, RESET, INIT, "kpf", ""},    {IBV_QPT_UC, RESET, INIT, "kpf", ""},
    {IBV_QPT_UD, RESET, INIT, "kpq", ""},    {IBV_QPT_RC, INIT, INIT, "", "kpf"},
    {IBV_QPT_UC, INIT, INIT, "", "kpf"},     {IBV_QPT_UD, INIT, INIT, "", "kpq"},
    {IBV_QPT_RC, INIT, RTR, "amDPdT", "fk"}, {IBV_QPT_UC, INIT, RTR, "amDP", "fk"},
    {IBV_QPT_UD, INIT, RTR, "", "kq"},       {IBV_QPT_RC, RTR, RTS, "trRSi", "cfTg"},
    {IBV_QPT_UC, RTR, RTS, "S", "cfg"},      {IBV_QPT_UD, RTR, RTS, "S", "cq"},
    {IBV_QPT_RC, RTS, RTS, "", "cfgT"},      {IBV_QPT_UC, RTS, RTS, "", "cfg"},
    {IBV_QPT_UD, RTS, RTS, "", "cq"},        {IBV_QPT_RC, RTS, SQD, "", "n"},
    {IBV_QPT_UC, RTS, SQD, "", "n"},         {IBV_QPT_UD, RTS, SQD, "", "n"},
    {IBV_QPT_RC, SQD, RTS, "", "cfTg"},      {IBV_QPT_UC, SQD, RTS, "", "cfg"},
    {IBV_QPT_UD, SQD, RTS, "", "cq"},        {IBV_QPT_RC, SQD, SQD, "", "patrRidfkTg"},
    {IBV_QPT_UC, SQD, SQD, "", "afkg"},      {IBV_QPT_UD, SQD, SQD, "", "kq"},
    {IBV_QPT_RC, SQE, RTS, "", ""},          {IBV_QPT_UC, SQE, RTS, "", "cf"},
    {IBV_QPT_UD, SQE, RTS, "", "cq"},
};

static bool step_of(enum ibv_qp_type type, int from, int to, int *required, int *optional)
{
    *required = *optional = 0;
    if (to == RESET || (to == ERR && from != RESET))
        return true;
    for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++)
        if (expected[i].type == type && expected[i].from == from && expected[i].to == to) {
            *required = bits(expected[i].required);
            *optional = bits(expected[i].optional);
            return true;
        }
    return false;
}

static int step(struct ibv_qp *qp, int from, int to, int mask)
{
    struct ibv_qp_attr a = right();
    a.qp_state = (enum ibv_qp_state)to;
    a.cur_qp_state = (enum ibv_qp_state)from;
    return ibv_modify_qp(qp, &a, mask);
}

/* Brings a queue pair from RESET to a state, by the steps of the specification. */
static void bring(struct ibv_qp *qp, int to)
{
    static const int way[] = {INIT, RTR, RTS};
    int required, optional, at = RESET;

    assert_int_equal(step(qp, RESET, RESET, IBV_QP_STATE), 0);
    for (size_t i = 0; i < 3 && to != RESET && at != to && !(to == ERR && at == INIT); at = way[i++]) {
        assert_true(step_of(qp->qp_type, at, way[i], &required, &optional));
        assert_int_equal(step(qp, at, way[i], IBV_QP_STATE | required), 0);
    }
    if (to == SQD || to == ERR)
        assert_int_equal(step(qp, at, to, IBV_QP_STATE), 0);
    if (to == SQE) /* SQE is reached by a failed request, not by a step */
        atomic_store(&((struct sv_qp *)qp)->shared->state, SQE);
}

static uint32_t state_of(struct ibv_qp *qp)
{
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    assert_int_equal(ibv_query_qp(qp, &a, IBV_QP_STATE, &init), 0);
    assert_int_equal(a.qp_state, a.cur_qp_state);
    return a.qp_state;
}

static void check_step(struct ibv_qp *qp, int from, int to)
{
    int required, optional;
    bool valid = step_of(qp->qp_type, from, to, &required, &optional);

    bring(qp, from);
    assert_int_equal(step(qp, from, to, IBV_QP_STATE | required), valid ? 0 : EINVAL);
    assert_int_equal(state_of(qp), valid ? to : from);
    for (size_t i = 0; i < sizeof(letters) / sizeof(*letters); i++) {
        int bit = letters[i].bit;
        bool fine = valid && (optional & bit);
        bring(qp, from);
        assert_int_equal(step(qp, from, to, (IBV_QP_STATE | required) ^ bit), fine ? 0 : EINVAL);
        assert_int_equal(state_of(qp), fine ? to : from);
    }
}

static void every_step(enum ibv_qp_type type)
{
    struct ibv_qp *qp = make(type);
    for (int from = RESET; from <= ERR; from++)
        for (int to = RESET; to <= ERR; to++)
            check_step(qp, from, to);
    assert_int_equal(ibv_destroy_qp(qp), 0);
}

static void steps_of_rc(void **state)
{
    (void)state;
    every_step(IBV_QPT_RC);
}
static void steps_of_uc(void **state)
{
    (void)state;
    every_step(IBV_QPT_UC);
}
static void steps_of_ud(void **state)
{
    (void)state;
    every_step(IBV_QPT_UD);
}

static void steps_without_a_state(void **state)
{
    struct ibv_qp *qp = make(IBV_QPT_RC);
    struct ibv_qp_attr a = right();
    (void)state;
    bring(qp, INIT);
    a.qp_access_flags = 0;
    assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_ACCESS_FLAGS), 0);
    assert_int_equal(state_of(qp), INIT);
    bring(qp, RTR); /* RTR is the only state from which no transition leads to the same state */
    assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_ACCESS_FLAGS), EINVAL);
    assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_RATE_LIMIT), EOPNOTSUPP);
    a.qp_state = (enum ibv_qp_state)7;
    assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_STATE), EINVAL);
    assert_int_equal(ibv_destroy_qp(qp), 0);
}

static void the_state_assumed_must_be_the_state(void **state)
{
    struct ibv_qp *qp = make(IBV_QPT_RC);
    struct ibv_qp_attr a = right();
    (void)state;
    bring(qp, RTS);
    a.qp_state = IBV_QPS_RTS;
    a.cur_qp_state = IBV_QPS_SQD;
    assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL);
    a.cur_qp_state = IBV_QPS_RTS;
    assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_CUR_STATE), 0);
    assert_int_equal(ibv_destroy_qp(qp), 0);
}

/* ---- Values -------------------------------------------------------------------------------------------------------- */
static int to_rtr(struct ibv_qp *qp, struct ibv_qp_attr *a)
{
    int required, optional;
    bring(qp, INIT);
    step_of(qp->qp_type, INIT, RTR, &required, &optional);
    a->qp_state = IBV_QPS_RTR;
    return ibv_modify_qp(qp, a, IBV_QP_STATE | required);
}

static void values_at_their_edges(void **state)
{
    struct ibv_qp *qp = make(IBV_QPT_RC);
    struct ibv_qp_attr a;
    (void)state;
#define RTR_IS(expect, change) (a = right(), (change), assert_int_equal(to_rtr(qp, &a), (expect)))
    RTR_IS(0, a.path_mtu = (enum ibv_mtu)model.profile.active_mtu);
    RTR_IS(EINVAL, a.path_mtu = (enum ibv_mtu)(model.profile.active_mtu + 1));
    RTR_IS(EINVAL, a.path_mtu = (enum ibv_mtu)0);
    RTR_IS(0, a.dest_qp_num = 0xffffff);
    RTR_IS(EINVAL, a.dest_qp_num = 0x1000000);
    RTR_IS(0, a.max_dest_rd_atomic = (uint8_t)model.profile.max_rd_atomic);
    RTR_IS(EINVAL, a.max_dest_rd_atomic = (uint8_t)(model.profile.max_rd_atomic + 1));
    RTR_IS(0, a.min_rnr_timer = 31);
    RTR_IS(EINVAL, a.min_rnr_timer = 32);
    RTR_IS(EINVAL, a.ah_attr.is_global = 0);
    RTR_IS(EINVAL, a.ah_attr.port_num = 2);
    RTR_IS(EINVAL, a.ah_attr.grh.sgid_index = (uint8_t)device_of(0)->gid_count);
    RTR_IS(0, a.rq_psn = 0x1000005); /* cut to 24 bits, as Linux does */
    struct ibv_qp_init_attr init;
    assert_int_equal(ibv_query_qp(qp, &a, 0, &init), 0);
    assert_int_equal(a.rq_psn, 5);
#define RTS_IS(expect, change)                                        \
    (bring(qp, RTR), a = right(), a.qp_state = IBV_QPS_RTS, (change), \
     assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_STATE | bits("trRSi")), (expect)))
    RTS_IS(0, a.timeout = 31);
    RTS_IS(EINVAL, a.timeout = 32);
    RTS_IS(EINVAL, a.retry_cnt = 8);
    RTS_IS(EINVAL, a.rnr_retry = 8);
    RTS_IS(EINVAL, a.max_rd_atomic = (uint8_t)(model.profile.max_rd_atomic + 1));
    bring(qp, RESET);
    a = right();
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 2;
    assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_STATE | bits("kpf")), EINVAL);
    a.port_num = 1;
    a.pkey_index = model.profile.pkeys;
    assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_STATE | bits("kpf")), EINVAL);
    assert_int_equal(ibv_destroy_qp(qp), 0);
}

static void a_query_tells_what_was_set(void **state)
{
    struct ibv_qp *qp = make(IBV_QPT_RC);
    struct sf_qp *shared = ((struct sv_qp *)qp)->shared;
    struct ibv_qp_attr a, b = right();
    struct ibv_qp_init_attr init;
    (void)state;
    bring(qp, RTS);
    assert_int_equal(ibv_query_qp(qp, &a, ~0, &init), 0);
    assert_int_equal(a.qp_state, IBV_QPS_RTS);
    assert_int_equal(qp->state, IBV_QPS_RTS);
    assert_int_equal(a.path_mtu, b.path_mtu);
    assert_int_equal(a.dest_qp_num, 77);
    assert_int_equal(a.sq_psn, 2);
    assert_int_equal(a.timeout, 14);
    assert_int_equal(a.qp_access_flags, b.qp_access_flags);
    assert_memory_equal(&a.ah_attr.grh.dgid, &b.ah_attr.grh.dgid, 16);
    assert_int_equal(a.cap.max_send_wr, 8);
    assert_ptr_equal(init.send_cq, cq);
    assert_int_equal(init.qp_type, IBV_QPT_RC);
    assert_int_equal(shared->peer_device, neighbour());
    assert_int_equal(shared->mtu, 1024);

    uint32_t connection = shared->connection;
    assert_int_equal(step(qp, RTS, RESET, IBV_QP_STATE), 0);
    assert_int_equal(ibv_query_qp(qp, &a, ~0, &init), 0);
    assert_int_equal(a.dest_qp_num, 0);
    assert_int_equal(shared->connection, connection + 1);
    assert_int_equal(shared->peer_device, SF_NO_DEVICE);
    assert_int_equal(ibv_destroy_qp(qp), 0);
}

/* ---- Making -------------------------------------------------------------------------------------------------------- */
static void refused(struct ibv_qp_init_attr a, int error)
{
    errno = 0;
    assert_null(ibv_create_qp(pd, &a));
    assert_int_equal(errno, error);
}

static void what_is_granted(void **state)
{
    const struct sv_profile *p = &model.profile;
    struct ibv_qp_init_attr a = asks(IBV_QPT_RC);
    (void)state;
#define REFUSED(change) (a = asks(IBV_QPT_RC), (change), refused(a, EINVAL))
    REFUSED(a.cap.max_send_wr = p->max_qp_wr + 1);
    REFUSED(a.cap.max_recv_wr = p->max_qp_wr + 1);
    REFUSED(a.cap.max_send_sge = p->max_sge + 1);
    REFUSED(a.cap.max_recv_sge = p->max_sge + 1);
    REFUSED(a.cap.max_inline_data = p->max_inline + 1);
    REFUSED(a.send_cq = NULL);
    REFUSED(a.recv_cq = NULL);
    a = asks(IBV_QPT_RAW_PACKET);
    refused(a, EOPNOTSUPP);

    a = asks(IBV_QPT_UC);
    a.cap.max_send_wr = p->max_qp_wr;
    a.cap.max_send_sge = p->max_sge;
    a.cap.max_inline_data = 100;
    struct ibv_qp *qp = ibv_create_qp(pd, &a);
    assert_non_null(qp);
    assert_int_equal(a.cap.max_send_wr, p->max_qp_wr);
    assert_int_equal(a.cap.max_send_sge, p->max_sge);
    assert_true(a.cap.max_inline_data >= 100 && a.cap.max_inline_data <= p->max_inline);
    struct sf_qp *shared = ((struct sv_qp *)qp)->shared;
    assert_true(shared->send_capacity >= p->max_qp_wr && (shared->send_capacity & (shared->send_capacity - 1)) == 0);
    assert_true(shared->send_stride >= offsetof(struct sf_send, data) + a.cap.max_inline_data);
    assert_ptr_equal(sv_lib.qps[sf_number_entry(qp->qp_num)], qp);
    assert_int_equal(ibv_destroy_cq(cq), EBUSY);
    assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
    assert_int_equal(ibv_destroy_qp(qp), 0);

    qp = make(IBV_QPT_UD); /* UD has no path_mtu: it uses the port's */
    bring(qp, RTS);
    assert_int_equal(((struct sv_qp *)qp)->shared->mtu, 128u << p->active_mtu);
    assert_int_equal(ibv_destroy_qp(qp), 0);
}

static void the_extended_call(void **state)
{
    struct ibv_qp_init_attr_ex a = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .pd = pd,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ,
    };
    (void)state;
    struct ibv_qp *qp = ibv_create_qp_ex(context, &a);
    assert_non_null(qp);
    assert_non_null(ibv_qp_to_qp_ex(qp));
    assert_int_equal(ibv_destroy_qp(qp), 0);
    a.qp_type = IBV_QPT_UC; /* UC has no READ */
    assert_null(ibv_create_qp_ex(context, &a));
    assert_int_equal(errno, EOPNOTSUPP);
    a.qp_type = IBV_QPT_RC;
    a.send_ops_flags = IBV_QP_EX_WITH_TSO;
    assert_null(ibv_create_qp_ex(context, &a));
    assert_int_equal(errno, EOPNOTSUPP);
    a.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD;
    assert_null(ibv_create_qp_ex(context, &a));
    assert_int_equal(errno, EOPNOTSUPP);
    a.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    assert_null(ibv_create_qp_ex(context, &a));
    assert_int_equal(errno, EINVAL);
    a.comp_mask = IBV_QP_INIT_ATTR_PD;
    qp = ibv_create_qp_ex(context, &a);
    assert_non_null(qp);
    assert_null(ibv_qp_to_qp_ex(qp));
    assert_int_equal(ibv_query_ece(qp, &(struct ibv_ece){0}), EOPNOTSUPP);
    assert_int_equal(ibv_attach_mcast(qp, &(union ibv_gid){{0xff}}, 0), EOPNOTSUPP);
    assert_int_equal(ibv_query_qp_data_in_order(qp, IBV_WR_SEND, 0), 0);
    assert_int_equal(ibv_destroy_qp(qp), 0);
}

/* Destroying everything frees the arena's pages, and sets the device's counts back to zero. */
static void what_is_taken_is_given_back(void **state)
{
    uint32_t before = atomic_load(&sv_lib.fabric->devices[sv_context_of(context)->device].qps), pages = 0, after = 0;
    (void)state;
    for (uint32_t i = 0; i < SF_PAGES; i++)
        pages += sv_lib.fabric->pages[i] != 0;
    uint32_t number = 0;
    for (int i = 0; i < 40; i++) { /* numbers are not used again at once */
        struct ibv_qp *qp = make(IBV_QPT_UC);
        assert_true(qp->qp_num != number && qp->qp_num > 1 && qp->qp_num <= 0xffffff);
        number = qp->qp_num;
        assert_int_equal(ibv_destroy_qp(qp), 0);
    }
    for (uint32_t i = 0; i < SF_PAGES; i++)
        after += sv_lib.fabric->pages[i] != 0;
    assert_int_equal(pages, after);
    assert_int_equal(atomic_load(&sv_lib.fabric->devices[sv_context_of(context)->device].qps), before);
}

/* ---- Shared receive queues, address handles ------------------------------------------------------------------------ */
static void shared_receive_queues(void **state)
{
    const struct sv_profile *p = &model.profile;
    struct ibv_srq_init_attr a = {.attr = {.max_wr = p->max_srq_wr + 1, .max_sge = 1}};
    struct ibv_srq_attr q;
    (void)state;
    assert_null(ibv_create_srq(pd, &a));
    assert_int_equal(errno, EINVAL);
    a.attr = (struct ibv_srq_attr){.max_wr = 8, .max_sge = p->max_srq_sge + 1};
    assert_null(ibv_create_srq(pd, &a));
    assert_int_equal(errno, EINVAL);
    a.attr = (struct ibv_srq_attr){.max_wr = 8, .max_sge = 2};
    struct ibv_srq *srq = ibv_create_srq(pd, &a);
    assert_non_null(srq);

    struct ibv_qp_init_attr ask = asks(IBV_QPT_RC);
    ask.srq = srq;
    struct ibv_qp *qp = ibv_create_qp(pd, &ask);
    assert_non_null(qp);
    assert_int_equal(ask.cap.max_recv_wr, 0);
    assert_int_equal(ibv_destroy_srq(srq), EBUSY);

    assert_int_equal(ibv_modify_srq(srq, &(struct ibv_srq_attr){.srq_limit = 9}, IBV_SRQ_LIMIT), EINVAL);
    assert_int_equal(ibv_modify_srq(srq, &(struct ibv_srq_attr){.max_wr = 20}, IBV_SRQ_MAX_WR), 0);
    assert_int_equal(ibv_modify_srq(srq, &(struct ibv_srq_attr){.max_wr = p->max_srq_wr + 1}, IBV_SRQ_MAX_WR), EINVAL);
    assert_int_equal(ibv_modify_srq(srq, &q, 4), EINVAL);
    assert_int_equal(ibv_query_srq(srq, &q), 0);
    assert_int_equal(q.max_wr, 20);
    assert_int_equal(q.max_sge, 2);
    assert_int_equal(q.srq_limit, 0);

    /* The queue is empty when the limit is set, so the limit event comes at once. The last-request event of a queue pair that fails comes
       at once, too. */
    struct ibv_async_event event;
    assert_int_equal(ibv_modify_srq(srq, &(struct ibv_srq_attr){.srq_limit = 9}, IBV_SRQ_LIMIT), 0);
    assert_int_equal(ibv_get_async_event(context, &event), 0);
    assert_int_equal(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    assert_ptr_equal(event.element.srq, srq);
    ibv_ack_async_event(&event);
    bring(qp, ERR);
    assert_int_equal(ibv_get_async_event(context, &event), 0);
    assert_int_equal(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    assert_ptr_equal(event.element.qp, qp);
    ibv_ack_async_event(&event);

    assert_int_equal(ibv_destroy_qp(qp), 0);
    assert_int_equal(ibv_destroy_srq(srq), 0);
}

static void a_drained_queue_says_so(void **state)
{
    struct ibv_qp *qp = make(IBV_QPT_RC);
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    struct ibv_async_event event;
    (void)state;
    bring(qp, RTS);
    assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
    assert_int_equal(ibv_get_async_event(context, &event), 0);
    assert_int_equal(event.event_type, IBV_EVENT_SQ_DRAINED);
    ibv_ack_async_event(&event);
    assert_int_equal(ibv_destroy_qp(qp), 0);
}

static void address_handles(void **state)
{
    struct ibv_ah_attr a = right().ah_attr;
    (void)state;
    struct ibv_ah *ah = ibv_create_ah(pd, &a);
    assert_non_null(ah);
    assert_int_equal(((struct sv_ah *)ah)->device, neighbour());
    assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
    assert_int_equal(ibv_destroy_ah(ah), 0);
#define AH_REFUSED(change) (a = right().ah_attr, (change), assert_null(ibv_create_ah(pd, &a)), assert_int_equal(errno, EINVAL))
    AH_REFUSED(a.is_global = 0);
    AH_REFUSED(a.port_num = 0);
    AH_REFUSED(a.grh.sgid_index = 200);

    /* The way back of a datagram over IPv4: the header fills the last 20 of the 40 bytes. */
    uint8_t header[40] = {[20] = 0x45};
    memcpy(header + 32, device_of(neighbour())->gids[1].raw + 12, 4);
    memcpy(header + 36, device_of(0)->gids[1].raw + 12, 4);
    struct ibv_wc wc = {.wc_flags = IBV_WC_GRH};
    assert_int_equal(ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)(void *)header, &a), 0);
    assert_int_equal(a.grh.sgid_index, 1);
    assert_memory_equal(a.grh.dgid.raw, device_of(neighbour())->gids[1].raw, 16);
}

/* ---- tb5 ------------------------------------------------------------------------------------------------------------ */
static void ten_queue_pairs(void **state)
{
    struct ibv_qp *qp[10];
    (void)state;
    for (int i = 0; i < 10; i++)
        qp[i] = make(IBV_QPT_UC);
    refused(asks(IBV_QPT_UC), EBUSY);
    assert_int_equal(ibv_destroy_qp(qp[0]), 0);
    qp[0] = make(IBV_QPT_UC);
    refused(asks(IBV_QPT_UC), EBUSY);
    for (int i = 0; i < 10; i++)
        assert_int_equal(ibv_destroy_qp(qp[i]), 0);
}

static void uc_only(void **state)
{
    struct ibv_srq_init_attr a = {.attr = {.max_wr = 8, .max_sge = 1}};
    (void)state;
    refused(asks(IBV_QPT_RC), 102);
    refused(asks(IBV_QPT_UD), 102);
    assert_null(ibv_create_srq(pd, &a));
}

static void depth_in_frames(void **state)
{
    static const struct {
        uint32_t asked, granted;
    } depths[] = {
        {1, 1023}, {32, 1023}, {256, 1023}, {1023, 1023}, {1024, 4095}, {4095, 4095},
    };
    struct ibv_qp_attr attr;
    (void)state;
    for (size_t i = 0; i < sizeof(depths) / sizeof(*depths); i++) {
        struct ibv_qp_init_attr a = asks(IBV_QPT_UC), init;
        a.cap.max_send_wr = a.cap.max_recv_wr = depths[i].asked;
        struct ibv_qp *qp = ibv_create_qp(pd, &a);
        assert_non_null(qp);
        assert_int_equal(ibv_query_qp(qp, &attr, IBV_QP_CAP, &init), 0);
        assert_int_equal(attr.cap.max_send_wr, depths[i].granted);
        assert_int_equal(init.cap.max_recv_wr, depths[i].granted);
        assert_int_equal(((struct sv_qp *)qp)->shared->frame_depth_send, depths[i].granted);
        assert_int_equal(ibv_destroy_qp(qp), 0);
    }
    struct ibv_qp_init_attr a = asks(IBV_QPT_UC);
    a.cap.max_send_wr = 4096;
    refused(a, EINVAL);
    a = asks(IBV_QPT_UC);
    a.cap.max_send_sge = 2;
    refused(a, EINVAL);
    a = asks(IBV_QPT_UC);
    a.cap.max_inline_data = 1;
    refused(a, EINVAL);
}

static void gids_that_lead_nowhere(void **state)
{
    struct ibv_qp *qp = make(IBV_QPT_UC);
    struct ibv_qp_attr a = right();
    bool strict = model.profile.first_gid_unreachable;
    (void)state;
    assert_int_equal(to_rtr(qp, &a), 0);
    memset(a.ah_attr.grh.dgid.raw, 0, 16); /* never set */
    assert_int_equal(to_rtr(qp, &a), 22);
    memset(a.ah_attr.grh.dgid.raw, 0x77, 16); /* of no port */
    assert_int_equal(to_rtr(qp, &a), 22);
    memcpy(a.ah_attr.grh.dgid.raw, device_of(neighbour())->gids[0].raw, 16);
    assert_int_equal(to_rtr(qp, &a), strict ? 60 : 0);
    a = right();
    a.ah_attr.grh.sgid_index = 0;
    assert_int_equal(to_rtr(qp, &a), strict ? 60 : 0);
    a.ah_attr.grh.sgid_index = 15; /* an empty place of the table */
    assert_int_equal(to_rtr(qp, &a), 22);
    for (uint32_t d = 0; d < model.topology.device_count; d++) {
        a = right();
        memcpy(a.ah_attr.grh.dgid.raw, device_of(d)->gids[1].raw, 16);
        assert_int_equal(to_rtr(qp, &a), d == neighbour() ? 0 : 60); /* nothing is routed */
    }
    assert_int_equal(ibv_destroy_qp(qp), 0);
}

static void error_blocks_deregistration(void **state)
{
    struct ibv_qp *qp = make(IBV_QPT_UC);
    struct sf_device *d = &sv_lib.fabric->devices[sv_context_of(context)->device];
    (void)state;
    bring(qp, RTS);
    assert_int_equal(atomic_load(&d->dereg_blocked), 0);
    bring(qp, ERR);
    assert_int_equal(atomic_load(&d->dereg_blocked) != 0, model.profile.error_blocks_dereg);
    assert_int_equal(ibv_destroy_qp(qp), 0);
}

/* ---- Groups --------------------------------------------------------------------------------------------------------- */
static int run_generic(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_of_rc),
        cmocka_unit_test(steps_of_uc),
        cmocka_unit_test(steps_of_ud),
        cmocka_unit_test(steps_without_a_state),
        cmocka_unit_test(the_state_assumed_must_be_the_state),
        cmocka_unit_test(values_at_their_edges),
        cmocka_unit_test(a_query_tells_what_was_set),
        cmocka_unit_test(what_is_granted),
        cmocka_unit_test(the_extended_call),
        cmocka_unit_test(what_is_taken_is_given_back),
        cmocka_unit_test(shared_receive_queues),
        cmocka_unit_test(a_drained_queue_says_so),
        cmocka_unit_test(address_handles),
    };
    return cmocka_run_group_tests_name("generic", tests, open_device, close_device);
}

static int run_tb5(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_of_uc),     cmocka_unit_test(ten_queue_pairs),        cmocka_unit_test(uc_only),
        cmocka_unit_test(depth_in_frames), cmocka_unit_test(gids_that_lead_nowhere),
    };
    return cmocka_run_group_tests_name(model.profile.name, tests, open_device, close_device);
}

/* A device of its own, because the test leaves it changed. */
static int run_tb5_error(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(error_blocks_deregistration)};
    return cmocka_run_group_tests_name("tb5, an error", tests, open_device, close_device);
}

static int in_child(const char *directory, const char *fabric, const char *profile, int words, const char *const *word, int (*run)(void))
{
    struct sv_why why = {""};
    int status = 1;

    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (setenv("SOFTVERBS_DIR", directory, 1) || setenv("SOFTVERBS_FABRIC", fabric, 1) || unsetenv("SOFTVERBS_HOST") ||
            sv_profile_load(profile, &model.profile, &why) || sv_topology_load(words, word, &model.profile, &model.topology, &why) ||
            sf_create(fabric, &model, 1, &why)) {
            fprintf(stderr, "%s: %s\n", fabric, why.text);
            exit(1);
        }
        status = run();
        exit(sf_remove(fabric, true, NULL, &why) != 0 || status != 0);
    }
    return child < 0 || waitpid(child, &status, 0) != child || status != 0;
}

int main(void)
{
    static const char *const joined[] = {"switch", "3"}, *const ring[] = {"ring", "3"};
    char memory[] = "/dev/shm/softverbs-states-XXXXXX", disk[] = "/tmp/softverbs-states-XXXXXX";
    const char *directory = mkdtemp(memory);

    if (!directory && !(directory = mkdtemp(disk)))
        return 1;
    int failed = in_child(directory, "generic", "generic", 2, joined, run_generic);
    failed |= in_child(directory, "tb5", "tb5", 2, ring, run_tb5);
    failed |= in_child(directory, "strict", "tb5-strict", 2, ring, run_tb5);
    failed |= in_child(directory, "error", "tb5", 2, ring, run_tb5_error);
    return rmdir(directory) != 0 || failed;
}
