/* SPDX-License-Identifier: MIT
 *
 * Queue pairs: every transition between two states with every attribute, and limits of values. No data moves here.
 */
#include "pairs.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void check_step(struct ibv_qp *qp, int from, int to)
{
    int required, optional;
    bool valid = step_of(qp->qp_type, from, to, &required, &optional);

    bring(qp, from);
    assert_int_equal(step(qp, from, to, IBV_QP_STATE | required), valid ? 0 : EINVAL);
    assert_int_equal(state_of(qp), valid ? to : from);
    for (size_t i = 0; i < LETTERS; i++) {
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
    };
    return cmocka_run_group_tests_name("generic", tests, open_device, close_device);
}

static int run_tb5(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_of_uc)};
    return cmocka_run_group_tests_name(model.profile.name, tests, open_device, close_device);
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
    return rmdir(directory) != 0 || failed;
}
