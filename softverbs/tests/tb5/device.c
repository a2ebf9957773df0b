/* SPDX-License-Identifier: MIT
 *
 * The library, the device, its port, link and addresses. The comment at each check states the property of the device that the check proves.
 */
#include "tb5.h"

#include <dlfcn.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>

/* ---- The library --------------------------------------------------------------------------------------- */
/* librdma.dylib has the API of rdma-core, and is loaded with dlopen. ibv_post_send, ibv_post_recv and ibv_poll_cq are not symbols, because
 * they go through the context. Some symbols are not in the header, for example ibv_reg_dmabuf_mr. */
static void check_symbols(void)
{
    void *handle = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
    expect(handle);
    expect(!dlsym(handle, "ibv_post_send") && !dlsym(handle, "ibv_post_recv") && !dlsym(handle, "ibv_poll_cq"));
    expect(dlsym(handle, "ibv_get_device_list") && dlsym(handle, "ibv_reg_mr") && dlsym(handle, "ibv_create_qp"));
    expect(dlsym(handle, "ibv_reg_dmabuf_mr"));
    struct ibv_context *context = open_port(0);
    expect(context->ops.post_send && context->ops.post_recv && context->ops.poll_cq);
}

/* No SRQ (max_srq 0), no inline data, max_sge 1, max_qp_rd_atom 0. */
static void check_absent(void)
{
    struct end e = begin(FRAME);
    struct ibv_device_attr attr;
    expect_error(ibv_query_device(e.context, &attr), 0);
    expect(attr.max_srq == 0 && attr.max_sge == 1 && attr.max_qp_rd_atom == 0);
    expect(attr.atomic_cap == IBV_ATOMIC_NONE);
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 16, .max_sge = 1}};
    expect(!ibv_create_srq(e.pd, &srq));
    struct ibv_qp_init_attr init = {.send_cq = e.cq,
                                    .recv_cq = e.cq,
                                    .qp_type = IBV_QPT_UC,
                                    .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 1}};
    expect(!ibv_create_qp(e.pd, &init));
    init.cap.max_send_sge = 1;
    init.cap.max_inline_data = 16;
    expect(!ibv_create_qp(e.pd, &init));
    init.cap.max_inline_data = 0;
    struct ibv_qp *qp = ibv_create_qp(e.pd, &init);
    expect(qp && init.cap.max_inline_data == 0);
}

/* Transport type of a device is 100 (Thunderbolt). */
static void check_transport_type(void)
{
    struct ibv_context *context = open_port(0);
    expect_error((int)context->device->transport_type, 100);
}

/* ---- Devices, ports, links ----------------------------------------------------------------------------- */
/* Device rdma_enN pairs with IP interface enN; one port, number 1. */
static void check_names(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    expect(list && count == 1);
    expect(!strcmp(ibv_get_device_name(list[0]), "rdma_en2"));
    struct ibv_context *context = ibv_open_device(list[0]);
    struct ibv_device_attr attr;
    struct ibv_port_attr port;
    expect(context && !ibv_query_device(context, &attr) && attr.phys_port_cnt == 1);
    expect(!ibv_query_port(context, 1, &port));
    expect(ibv_query_port(context, 2, &port));
    expect(ibv_query_port(context, 0, &port));
}

/* Every link is point to point to one peer; nothing is routed. (The fabric has three hosts, and left's first port leads to only one of the
 * others.) */
static void check_point_to_point(void)
{
    struct end e = begin(FRAME);
    int count, reached = 0;
    expect((e.qp = make_qp(&e, IBV_QPT_UC, 16)));
    expect_error(to_init(e.qp), 0);
    struct ibv_device **list = ibv_get_device_list(&count);
    expect(list && count == 2);
    /* one of the other side's ports leads to left, the other one to the third host */
    for (int port = 0; port < 2; port++) {
        struct ibv_context *context = ibv_open_device(list[port]);
        struct card mine = {.number = e.qp->qp_num}, other;
        expect(context && !ibv_query_gid(context, 1, V4, &mine.gid));
        other = trade(mine);
        int error = to_rtr(e.qp, &other.gid, other.number, V4, IBV_MTU_1024);
        reached += error == 0;
        /* errno 22 (EINVAL): a GID of another port; errno 60: the GID cannot be reached on this link */
        expect(error == 0 || error == EINVAL || error == 60);
        if (!error) {
            struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
            expect_error(ibv_modify_qp(e.qp, &attr, IBV_QP_STATE), 0);
            expect_error(to_init(e.qp), 0);
        }
        meet();
    }
    expect(reached <= 1);
    /* of the two sides' first ports, at least one is at the cable that joins the two sides */
    tell(&reached, sizeof(reached));
    int other_reached;
    hear(&other_reached, sizeof(other_reached));
    expect(reached + other_reached >= 1);
}

/* A port is PORT_ACTIVE only when both ends are up. A device whose port is down still opens; ibv_alloc_pd
 * then returns NULL. */
static void check_port_down(void)
{
    struct ibv_context *context = open_port(0);
    struct ibv_port_attr port;
    expect(!ibv_query_port(context, 1, &port));
    expect(port.state != IBV_PORT_ACTIVE);
    errno = 0;
    expect(!ibv_alloc_pd(context) && errno);
}

static void plan_port_down(struct ground *g)
{
    /* the two ends of one cable */
    g->model.topology.devices[0].port_up = g->model.topology.devices[1].port_up = 0;
}

static void check_port_active(void)
{
    struct ibv_context *context = open_port(0);
    struct ibv_port_attr port;
    expect(!ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE);
    expect(ibv_alloc_pd(context));
}

static sigjmp_buf crash;
static void crashed(int number)
{
    (void)number;
    siglongjmp(crash, 1);
}

/* If the cable is pulled during a transfer, the provider's post_recv accesses memory that is no longer mapped: both ends get SIGSEGV. */
static void check_pulled_cable(void)
{
    struct end e = join(FRAME, 16);
    struct ibv_port_attr port;
    expect_error(post_receive(&e, 1, 0, FRAME), 0);
    meet();
    if (left) {
        expect_error(softverbs("fault", "pull", "0:en2"), 0);
    }
    meet();
    expect(!ibv_query_port(e.context, 1, &port) && port.state != IBV_PORT_ACTIVE);
    signal(SIGSEGV, crashed);
    if (!sigsetjmp(crash, 1)) {
        post_receive(&e, 2, 0, FRAME);
        failed(__LINE__, "post_recv came back");
    }
    signal(SIGSEGV, SIG_DFL);
}

/* A peer that dies gives no error completion and no event. */
static void check_peer_dies(void)
{
    struct end e = join(16 * FRAME, 16);
    struct ibv_wc wc;
    expect_error(post_receive(&e, 1, 0, FRAME), 0);
    meet();
    if (!left) {
        raise(SIGKILL);
    }
    char c;
    expect(recv(wire, &c, 1, MSG_WAITALL) <= 0); /* the peer has ended */
    for (unsigned i = 0; i < 8; i++) {
        expect_error(post_send(&e, 2, FRAME, FRAME), 0);
    }
    /* its one receive may have taken a message while it died; no completion other than a success may come */
    while (next(&e, &wc, 4 * QUIET_MS)) {
        expect_error(wc.status, IBV_WC_SUCCESS);
    }
    struct pollfd p = {.fd = e.context->async_fd, .events = POLLIN};
    expect_error(poll(&p, 1, QUIET_MS), 0);
}

/* ---- Addresses ----------------------------------------------------------------------------------------- */
static bool link_local(const union ibv_gid *g)
{
    return g->raw[0] == 0xfe && g->raw[1] == 0x80;
}

/* GIDs: index 0 is the fe80:: address made from the MAC, index 1 the IPv4-mapped address (one of 169.254/16 is enough), index 2 the other
 * fe80:: address. */
static void check_gids(void)
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, none[16];
    struct ibv_context *context = open_port(0);
    struct ibv_port_attr port;
    union ibv_gid gid[4];
    expect(!ibv_query_port(context, 1, &port) && port.gid_tbl_len >= 3);
    for (int i = 0; i < 3; i++) {
        expect(!ibv_query_gid(context, 1, i, &gid[i]));
    }
    /* an fe80:: address that is made from a MAC has ff and fe in its middle */
    expect(link_local(&gid[0]) && gid[0].raw[11] == 0xff && gid[0].raw[12] == 0xfe);
    expect(!memcmp(gid[1].raw, mapped, sizeof(mapped)) && gid[1].raw[12] == 169 && gid[1].raw[13] == 254);
    expect(link_local(&gid[2]) && memcmp(&gid[2], &gid[0], 16));
    if (port.gid_tbl_len > 3) {
        expect(!ibv_query_gid(context, 1, 3, &gid[3]) && !memcmp(&gid[3], none, 16));
    }
}

/* Without an IPv4 address there are only fe80:: entries. */
static void check_gids_without_ipv4(void)
{
    static const uint8_t none[16];
    struct ibv_context *context = open_port(0);
    struct ibv_port_attr port;
    union ibv_gid gid;
    int entries = 0;
    expect(!ibv_query_port(context, 1, &port));
    for (int i = 0; i < port.gid_tbl_len; i++) {
        expect(!ibv_query_gid(context, 1, i, &gid));
        if (memcmp(&gid, none, 16)) {
            expect(link_local(&gid));
            entries++;
        }
    }
    expect(entries >= 1);
}

static void plan_no_ipv4(struct ground *g)
{
    for (uint32_t d = 0; d < g->model.topology.device_count; d++) {
        struct sv_device_model *m = &g->model.topology.devices[d];
        m->gids[V4] = m->gids[V4 + 1];
        m->gids[V4 + 1] = (struct sv_gid_model){.raw = {0}};
        m->gid_count = 2;
    }
}

/* A GID that was never set: INIT to RTR fails with errno 22; so does an index at which there is no GID. */
static void check_bad_gid(void)
{
    struct end e = begin(FRAME);
    const union ibv_gid none = {.raw = {0}}, unknown = {.raw = {0xfe, 0x80, [15] = 0x77}};
    expect((e.qp = make_qp(&e, IBV_QPT_UC, 16)));
    struct card other = trade((struct card){e.gid, e.qp->qp_num});
    expect_error(to_init(e.qp), 0);
    expect_error(to_rtr(e.qp, &none, other.number, V4, IBV_MTU_1024), EINVAL);
    expect_error(to_rtr(e.qp, &unknown, other.number, V4, IBV_MTU_1024), EINVAL);
    expect_error(to_rtr(e.qp, &other.gid, other.number, 7, IBV_MTU_1024), EINVAL);
    expect_error(to_rtr(e.qp, &other.gid, other.number, V4, IBV_MTU_1024), 0);
    meet();
}

/* A real GID that cannot be reached on this link (index 0 on some ports): errno 60. Index 1, the
 * IPv4-mapped one, works, with the same index as sgid_index. */
static void check_unreachable_gid(void)
{
    struct end e = begin(FRAME);
    union ibv_gid first;
    expect(!ibv_query_gid(e.context, 1, 0, &first));
    expect((e.qp = make_qp(&e, IBV_QPT_UC, 16)));
    struct card other = trade((struct card){first, e.qp->qp_num});
    expect_error(to_init(e.qp), 0);
    expect_error(to_rtr(e.qp, &other.gid, other.number, 0, IBV_MTU_1024), strict ? 60 : 0);
    if (strict) {
        other = trade((struct card){e.gid, e.qp->qp_num});
        expect_error(to_rtr(e.qp, &other.gid, other.number, 0, IBV_MTU_1024), 60);
        expect_error(to_rtr(e.qp, &other.gid, other.number, V4, IBV_MTU_1024), 0);
    }
    meet();
}

/* ---- All of them --------------------------------------------------------------------------------------- */
const struct check device_checks[] = {
    {.name = "symbols", .run = check_symbols},
    {.name = "no SRQ, inline, second element, atomics", .run = check_absent},
    {.name = "transport type 100", .run = check_transport_type},
    {.name = "names and ports", .run = check_names},
    {.name = "links are point to point", .run = check_point_to_point, .hosts = 3},
    {.name = "a port is active", .run = check_port_active},
    {.name = "a port is down", .run = check_port_down, .plan = plan_port_down},
    {.name = "a cable is pulled", .run = check_pulled_cable},
    {.name = "a peer dies", .run = check_peer_dies, .right_dies = true},
    {.name = "GID table", .run = check_gids},
    {.name = "GID table without IPv4", .run = check_gids_without_ipv4, .plan = plan_no_ipv4},
    {.name = "a GID that is none: 22", .run = check_bad_gid},
    {.name = "a GID that does not work: 60", .run = check_unreachable_gid},
    {.name = NULL},
};
