/* SPDX-License-Identifier: MIT
 *
 * Traits that are derived from the attributes which devices report; and a machine without the library.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "verbs/verbs.h"

#define THREE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)

/* Apple's Thunderbolt device: transport 100, and it reports some limits wrongly. */
static void thunderbolt(void **state)
{
    (void)state;
    const struct ibv_device_attr device = {.max_mr_size = 16400000,
                                           .max_qp = 11,
                                           .max_qp_wr = 4095,
                                           .max_sge = 1,
                                           .max_cq = 1024,
                                           .max_cqe = 65535,
                                           .max_mr = 100,
                                           .max_pd = 11,
                                           .atomic_cap = IBV_ATOMIC_NONE,
                                           .phys_port_cnt = 1};
    const struct ibv_port_attr port = {
        .state = IBV_PORT_ACTIVE, .active_mtu = IBV_MTU_4096, .gid_tbl_len = 16, .pkey_tbl_len = 1, .link_layer = IBV_LINK_LAYER_ETHERNET};
    struct verbs_traits t;
    verbs_traits_from(&t, 100, &device, &port, true);
    assert_int_equal(t.link, VERBS_THUNDERBOLT);
    assert_true(t.uc && !t.rc && !t.ud && !t.write && !t.read && !t.srq && !t.atomics && !t.atomics_with_cpu);
    assert_true(t.dmabuf && !t.acknowledges && !t.heap);
    assert_int_equal(t.qps, 10);
    assert_int_equal(t.pds, 11);
    assert_int_equal(t.regions, 100);
    assert_int_equal(t.region_bytes, UINT64_C(1) << 30);
    assert_int_equal(t.message_bytes, 16773120);
    assert_int_equal(t.depth, 4095);
    assert_int_equal(t.depth_unit_bytes, 4096);
    assert_int_equal(t.cqe, 4096);
    assert_int_equal(t.sge, 1);
    assert_int_equal(t.inline_bytes + t.rd_atomic, 0);
    assert_int_equal(t.access, THREE);
    assert_int_equal(t.access_else, IBV_ACCESS_LOCAL_WRITE);
    assert_int_equal(t.mtu, IBV_MTU_4096);
}

/* Devices that report other limits than the known Thunderbolt device: zeros are replaced by the known limits, but a reported limit that is
 * smaller than the known one is kept. */
static void thunderbolt_of_another_version(void **state)
{
    (void)state;
    struct ibv_device_attr device = {0};
    struct ibv_port_attr port = {0};
    struct verbs_traits t;
    verbs_traits_from(&t, 100, &device, &port, false);
    assert_int_equal(t.qps, 10);
    assert_int_equal(t.regions, 100);
    assert_int_equal(t.depth, 4095);
    assert_int_equal(t.mtu, IBV_MTU_1024);
    assert_false(t.dmabuf);
    device.max_qp = 4;
    device.max_mr = 50;
    device.max_qp_wr = 1023;
    verbs_traits_from(&t, 100, &device, &port, false);
    assert_int_equal(t.qps, 4);
    assert_int_equal(t.regions, 50);
    assert_int_equal(t.depth, 1023);
    device.max_mr = 4096; /* a later driver may allow more; the measured limit stays until it is probed */
    verbs_traits_from(&t, 100, &device, &port, false);
    assert_int_equal(t.regions, 100);
}

/* ConnectX, InfiniBand, as mlx5 reports it. */
static void infiniband(void **state)
{
    (void)state;
    const struct ibv_device_attr device = {.max_mr_size = UINT64_MAX,
                                           .max_qp = 131072,
                                           .max_qp_wr = 32768,
                                           .max_sge = 30,
                                           .max_sge_rd = 30,
                                           .max_cq = 16777216,
                                           .max_cqe = 4194303,
                                           .max_mr = 16777216,
                                           .max_pd = 8388608,
                                           .max_qp_rd_atom = 16,
                                           .max_qp_init_rd_atom = 16,
                                           .atomic_cap = IBV_ATOMIC_HCA,
                                           .max_srq = 8388608,
                                           .max_srq_wr = 32767,
                                           .phys_port_cnt = 1};
    const struct ibv_port_attr port = {.state = IBV_PORT_ACTIVE,
                                       .active_mtu = IBV_MTU_4096,
                                       .gid_tbl_len = 8,
                                       .max_msg_sz = 1u << 30,
                                       .pkey_tbl_len = 128,
                                       .lid = 12,
                                       .link_layer = IBV_LINK_LAYER_INFINIBAND};
    struct verbs_traits t;
    verbs_traits_from(&t, IBV_TRANSPORT_IB, &device, &port, true);
    assert_int_equal(t.link, VERBS_INFINIBAND);
    assert_true(t.rc && t.uc && t.ud && t.write && t.read && t.srq && t.atomics && t.acknowledges && t.heap && t.dmabuf);
    assert_false(t.atomics_with_cpu); /* atomic only among operations of the device itself */
    assert_int_equal(t.region_bytes, UINT64_C(1) << 30);
    assert_int_equal(t.message_bytes, UINT64_C(1) << 30);
    assert_int_equal(t.rd_atomic, 16);
    assert_int_equal(t.depth, 32768);
    assert_int_equal(t.srq_depth, 32767);
    assert_int_equal(t.depth_unit_bytes, 0);
    assert_int_equal(t.access, THREE | IBV_ACCESS_REMOTE_ATOMIC);
    assert_int_equal(t.access_else, THREE);
}

/* Linux's software RoCE: transport InfiniBand, link layer Ethernet; and one whose atomics are global. */
static void roce(void **state)
{
    (void)state;
    struct ibv_device_attr device = {.max_mr_size = UINT64_MAX,
                                     .max_qp = 1048560,
                                     .max_qp_wr = 1048576,
                                     .max_sge = 32,
                                     .max_cq = 1048576,
                                     .max_cqe = 32767,
                                     .max_mr = 524287,
                                     .max_pd = 1048576,
                                     .max_qp_rd_atom = 128,
                                     .max_qp_init_rd_atom = 128,
                                     .atomic_cap = IBV_ATOMIC_HCA,
                                     .max_srq = 917503,
                                     .max_srq_wr = 32752,
                                     .phys_port_cnt = 1};
    const struct ibv_port_attr port = {.state = IBV_PORT_ACTIVE,
                                       .active_mtu = IBV_MTU_1024,
                                       .gid_tbl_len = 1024,
                                       .max_msg_sz = 1u << 23,
                                       .pkey_tbl_len = 1,
                                       .link_layer = IBV_LINK_LAYER_ETHERNET};
    struct verbs_traits t;
    verbs_traits_from(&t, IBV_TRANSPORT_IB, &device, &port, false);
    assert_int_equal(t.link, VERBS_ETHERNET);
    assert_int_equal(t.mtu, IBV_MTU_1024);
    assert_int_equal(t.message_bytes, 1u << 23);
    assert_int_equal(t.gids, 1024);
    assert_false(t.dmabuf);
    device.atomic_cap = IBV_ATOMIC_GLOB;
    device.max_mr_size = 65536;
    device.max_qp_rd_atom = 1000; /* the field of a queue pair has eight bits */
    device.max_qp_init_rd_atom = 1000;
    verbs_traits_from(&t, IBV_TRANSPORT_IB, &device, &port, false);
    assert_true(t.atomics_with_cpu);
    assert_int_equal(t.region_bytes, 65536);
    assert_int_equal(t.rd_atomic, 255);
}

static void iwarp(void **state)
{
    (void)state;
    const struct ibv_device_attr device = {.max_qp = 65536,
                                           .max_qp_wr = 32768,
                                           .max_sge = 6,
                                           .max_mr = 65536,
                                           .max_pd = 65536,
                                           .max_cq = 65536,
                                           .max_cqe = 32768,
                                           .max_qp_rd_atom = 128,
                                           .atomic_cap = IBV_ATOMIC_NONE,
                                           .phys_port_cnt = 1};
    const struct ibv_port_attr port = {.active_mtu = IBV_MTU_1024, .gid_tbl_len = 1};
    struct verbs_traits t;
    verbs_traits_from(&t, IBV_TRANSPORT_IWARP, &device, &port, true);
    assert_int_equal(t.link, VERBS_ETHERNET);
    assert_true(t.rc && !t.uc && !t.ud && t.write && t.read && !t.atomics);
    assert_int_equal(t.rd_atomic, 128);
    assert_int_equal(t.access, THREE);
    assert_int_equal(t.access_else, 0);
}

/* Devices that offer neither RC nor UC to verbs programs. */
static void others(void **state)
{
    (void)state;
    const struct ibv_device_attr device = {.max_qp = -1, .max_mr = 256, .atomic_cap = IBV_ATOMIC_GLOB};
    const struct ibv_port_attr port = {.active_mtu = IBV_MTU_4096, .gid_tbl_len = -3};
    static const int transports[] = {IBV_TRANSPORT_USNIC, IBV_TRANSPORT_USNIC_UDP, IBV_TRANSPORT_UNSPECIFIED, -1, 77};
    for (size_t i = 0; i < sizeof transports / sizeof transports[0]; i++) {
        struct verbs_traits t;
        verbs_traits_from(&t, transports[i], &device, &port, true);
        assert_int_equal(t.link, VERBS_OTHER);
        assert_true(!t.rc && !t.uc && t.ud && !t.write && !t.read && !t.atomics && !t.atomics_with_cpu);
        assert_int_equal(t.qps, 0); /* a negative limit counts as 0 */
        assert_int_equal(t.gids, 0);
        assert_int_equal(t.access, IBV_ACCESS_LOCAL_WRITE);
    }
}

static void no_library(void **state)
{
    (void)state;
    const struct verbs_library *l = NULL;
    struct verbs_device *d;
    uint32_t count;
    setenv("WEFT_VERBS_LIBRARY", "/nonexistent", 1);
    assert_int_equal(verbs_load(&l), -ENOENT);
    assert_non_null(strstr(base_error(), "WEFT_VERBS_LIBRARY"));
    assert_non_null(strstr(base_error(), "/nonexistent"));
    assert_int_equal(verbs_devices(&d, &count, -1), -ENOENT);
    assert_int_equal(verbs_device_open(&d, NULL, -1), -ENOENT);
    setenv("WEFT_VERBS_LIBRARY", "libc.so.6", 1);
    assert_int_equal(verbs_load(&l), -ENOENT);
    assert_non_null(strstr(base_error(), "libc.so.6 has no ibv_get_device_list"));
    assert_null(l);
}

/* The result of a verb: the code, or -1 and errno; macOS's numbers on a Thunderbolt device. */
static void codes(void **state)
{
    (void)state;
    int raw;
    errno = 0;
    assert_int_equal(verbs_code(22, false, &raw), -EINVAL);
    assert_int_equal(raw, 22);
    errno = ENOMEM;
    assert_int_equal(verbs_code(-1, false, NULL), -ENOMEM);
    assert_int_equal(verbs_code(0, true, &raw), -ENOMEM);
    assert_int_equal(verbs_code(60, true, &raw), -ETIMEDOUT);
    assert_int_equal(raw, 60);
    assert_int_equal(verbs_code(102, true, &raw), -EOPNOTSUPP);
    errno = 0;
    assert_int_equal(verbs_code(0, false, &raw), -EIO);
}

static void addresses(void **state)
{
    (void)state;
    const struct verbs_address good = {
        .gid = {[10] = 0xff, [11] = 0xff, [15] = 1}, .qpn = 5, .psn = 7, .mtu = IBV_MTU_4096, .global = 1, .port = 1, .device = "mlx5_0"};
    struct verbs_address a = good;
    assert_true(verbs_address_valid(&a));
    a.mtu = 0;
    assert_false(verbs_address_valid(&a));
    a = good, a.qpn = 1u << 24;
    assert_false(verbs_address_valid(&a));
    a = good, a.psn = 1u << 24;
    assert_false(verbs_address_valid(&a));
    a = good, a.port = 0;
    assert_false(verbs_address_valid(&a));
    a = good, a.global = 2;
    assert_false(verbs_address_valid(&a));
    a = good, a.global = 0;
    assert_false(verbs_address_valid(&a)); /* invalid: the address has no LID */
    a.lid = 3;
    assert_true(verbs_address_valid(&a));
    a = good, memset(a.gid, 0, 16);
    assert_false(verbs_address_valid(&a));
    a = good, memset(a.device, 'x', sizeof a.device);
    assert_false(verbs_address_valid(&a)); /* the name has no terminating zero */
    a = good, a.device[2] = '\n';
    assert_false(verbs_address_valid(&a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thunderbolt), cmocka_unit_test(thunderbolt_of_another_version),
        cmocka_unit_test(infiniband),  cmocka_unit_test(roce),
        cmocka_unit_test(iwarp),       cmocka_unit_test(others),
        cmocka_unit_test(no_library),  cmocka_unit_test(codes),
        cmocka_unit_test(addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
