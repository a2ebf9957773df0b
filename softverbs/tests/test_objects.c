/* SPDX-License-Identifier: MIT
 *
 * Queue pairs: what is granted when one is made, and what the tb5 profiles refuse; shared receive queues and address handles. No data moves
 * here.
 */
#include "pairs.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

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
        cmocka_unit_test(what_is_granted),       cmocka_unit_test(the_extended_call),       cmocka_unit_test(what_is_taken_is_given_back),
        cmocka_unit_test(shared_receive_queues), cmocka_unit_test(a_drained_queue_says_so), cmocka_unit_test(address_handles),
    };
    return cmocka_run_group_tests_name("generic", tests, open_device, close_device);
}

static int run_tb5(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_queue_pairs),
        cmocka_unit_test(uc_only),
        cmocka_unit_test(depth_in_frames),
        cmocka_unit_test(gids_that_lead_nowhere),
    };
    return cmocka_run_group_tests_name(model.profile.name, tests, open_device, close_device);
}

/* A device of its own, because the test leaves it changed. */
static int run_tb5_error(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(error_blocks_deregistration)};
    return cmocka_run_group_tests_name("tb5, an error", tests, open_device, close_device);
}

int main(void)
{
    static const char *const joined[] = {"switch", "3"}, *const ring[] = {"ring", "3"};
    const char *directory = new_directory();

    if (!directory)
        return 1;
    int failed = in_child(directory, "generic", "generic", 2, joined, run_generic);
    failed |= in_child(directory, "tb5", "tb5", 2, ring, run_tb5);
    failed |= in_child(directory, "strict", "tb5-strict", 2, ring, run_tb5);
    failed |= in_child(directory, "error", "tb5", 2, ring, run_tb5_error);
    return rmdir(directory) != 0 || failed;
}
