/* SPDX-License-Identifier: MIT
 *
 * Checks of the data path, and of the end of processes and objects. The comment at each check states the property of the device that the
 * check proves.
 */
#include "tb5.h"

#include <fcntl.h>
#include <sys/socket.h>

/* ---- Data path ----------------------------------------------------------------------------------------- */
/* SEND and RECV only. No RDMA write, no read, no atomics. */
static void check_send_only(void)
{
    static const enum ibv_wr_opcode others[] = {
        IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    };
    struct end e = join(FRAME, 16);
    struct {
        uint64_t address;
        uint32_t rkey;
    } mine = {(uintptr_t)e.memory, e.mr->rkey}, other;
    tell(&mine, sizeof(mine));
    hear(&other, sizeof(other));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        struct ibv_sge sge = {(uintptr_t)e.memory, 8, e.mr->lkey};
        struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = others[i], .send_flags = IBV_SEND_SIGNALED}, *bad;
        if (i < 3) {
            wr.wr.rdma.remote_addr = other.address;
            wr.wr.rdma.rkey = other.rkey;
        } else {
            wr.wr.atomic.remote_addr = other.address;
            wr.wr.atomic.rkey = other.rkey;
        }
        expect(ibv_post_send(e.qp, &wr, &bad));
        expect(bad == &wr);
    }
    struct ibv_wc wc;
    expect(!next(&e, &wc, 10));
    meet();
}

/* A SEND and the RECV it meets must cover the same number of frames, or the receive fails (local length
 * error). */
static void check_equal_frames(void)
{
    struct end e = join(16 * FRAME, 63);
    if (left) {
        fill(e.memory, 2 * FRAME, 9);
        meet();
        expect_error(post_send(&e, 1, 0, FRAME + 1), 0); /* a SEND of two frames meets a RECV of two frames */
        done(&e, 1);
        expect_error(post_send(&e, 2, 0, FRAME), 0); /* a SEND of one frame meets a RECV of two frames */
        struct ibv_wc wc;
        next(&e, &wc, QUIET_MS);
    } else {
        expect_error(post_receive(&e, 1, 0, 2 * FRAME), 0);
        expect_error(post_receive(&e, 2, 2 * FRAME, 2 * FRAME), 0);
        meet();
        struct ibv_wc wc;
        expect(next(&e, &wc, LIMIT_MS));
        expect_error(wc.status, IBV_WC_SUCCESS);
        expect_error((int)wc.byte_len, FRAME + 1);
        expect(filled(e.memory, FRAME + 1, 9));
        expect(next(&e, &wc, LIMIT_MS));
        expect_error(wc.status, IBV_WC_LOC_LEN_ERR);
        expect_error((int)wc.wr_id, 2);
    }
    meet();
}

/* Receives are matched in the order posted. */
static void check_order(void)
{
    struct end e = join(32 * FRAME, 63);
    if (left) {
        for (unsigned i = 0; i < 16; i++) {
            fill(e.memory + i * FRAME, FRAME, i);
        }
        meet();
        for (unsigned i = 0; i < 16; i++) {
            expect_error(post_send(&e, i, i * FRAME, FRAME), 0);
        }
        for (unsigned i = 0; i < 16; i++) {
            done(&e, i);
        }
    } else {
        for (unsigned i = 0; i < 16; i++) {
            expect_error(post_receive(&e, 100 + i, (31 - i) * FRAME, FRAME), 0);
        }
        meet();
        for (unsigned i = 0; i < 16; i++) {
            done(&e, 100 + i);
            expect(filled(e.memory + (31 - i) * FRAME, FRAME, i));
        }
    }
    meet();
}

/* Flow control in hardware: a SEND is not processed until the peer has posted a matching RECV. So if a SEND has completed, the peer had a
 * RECV. */
static void check_credits(void)
{
    struct end e = join(2 * FRAME, 63);
    struct ibv_wc wc;
    if (left) {
        fill(e.memory, FRAME, 4);
        expect_error(post_send(&e, 1, 0, FRAME), 0);
        expect(!next(&e, &wc, QUIET_MS));
        fill(e.memory, FRAME, 5); /* the send has not left yet: it sends the bytes that are there when it leaves */
        meet();
        done(&e, 1);
        expect(!next(&e, &wc, QUIET_MS));
    } else {
        meet();
        expect_error(post_receive(&e, 2, 0, FRAME), 0);
        done(&e, 2);
        expect(filled(e.memory, FRAME, 5));
    }
    meet();
}

/* Receives can be posted only when the QP is ready to send; before that, the provider refuses them. */
static void check_receive_before_ready(void)
{
    struct end e = begin(FRAME);
    expect((e.qp = make_qp(&e, IBV_QPT_UC, 16)));
    struct card other = trade((struct card){e.gid, e.qp->qp_num});
    expect(post_receive(&e, 1, 0, FRAME));
    expect_error(to_init(e.qp), 0);
    expect(post_receive(&e, 1, 0, FRAME));
    expect_error(to_rtr(e.qp, &other.gid, other.number, V4, IBV_MTU_1024), 0);
    expect(post_receive(&e, 1, 0, FRAME));
    expect_error(to_rts(e.qp), 0);
    expect_error(post_receive(&e, 1, 0, FRAME), 0);
    meet();
}

/* The completion of a SEND does not mean that the bytes have arrived, because nothing is acknowledged. Between Macs, 0.05 % of pages were
 * lost under load; the strict profile does the same, the other profile loses none. */
static void check_losses(void)
{
    enum { COUNT = 20000, FLIGHT = 32 };
    struct end e = join(FLIGHT * FRAME, 63);
    struct ibv_wc wc;
    unsigned posted = 0, got = 0;
    if (left) {
        meet();
        while (got < COUNT) {
            while (posted < COUNT && posted - got < FLIGHT) {
                expect_error(post_send(&e, posted, posted % FLIGHT * FRAME, FRAME), 0);
                posted++;
            }
            expect(next(&e, &wc, LIMIT_MS));
            expect_error(wc.status, IBV_WC_SUCCESS); /* also for messages that were lost */
            got++;
        }
        meet();
        return;
    }
    for (; posted < FLIGHT; posted++) {
        expect_error(post_receive(&e, posted, posted * FRAME, FRAME), 0);
    }
    meet();
    fcntl(wire, F_SETFL, fcntl(wire, F_GETFL) | O_NONBLOCK);
    char c = 'm';
    bool all = false;
    for (;;) {
        if (next(&e, &wc, all ? QUIET_MS : 1)) {
            expect_error(wc.status, IBV_WC_SUCCESS);
            got++;
            expect_error(post_receive(&e, wc.wr_id, wc.wr_id * FRAME, FRAME), 0);
        } else if (all) {
            break;
        } else {
            all = recv(wire, &c, 1, 0) == 1; /* the other side has sent all messages */
        }
    }
    tell(&c, 1);
    expect(got <= COUNT);
    if (strict) {
        expect(got < COUNT && got > COUNT - 60); /* 10 of 20000 are to be expected */
    } else {
        expect(got == COUNT);
    }
}

/* A loss is the loss of one page. So of messages of 16 pages 16 times as many are lost. */
static void check_losses_of_long_messages(void)
{
    enum { COUNT = 2000, PAGES = 16, FLIGHT = 32 };
    const size_t bytes = PAGES * FRAME;
    struct end e = join(FLIGHT * bytes, FLIGHT * PAGES);
    struct ibv_wc wc;
    unsigned got = 0, total = 0, receives = 0;
    for (; total < COUNT; total += FLIGHT) {
        for (; !left && receives < got + FLIGHT; receives++) { /* a message that is lost consumes no receive */
            expect_error(post_receive(&e, receives, receives % FLIGHT * bytes, bytes), 0);
        }
        meet();
        for (unsigned i = 0; left && i < FLIGHT; i++) {
            expect_error(post_send(&e, i, i * bytes, bytes), 0);
        }
        for (unsigned i = 0; left && i < FLIGHT; i++) {
            done(&e, i); /* also for messages that were lost */
        }
        meet(); /* everything that was not lost has arrived by now */
        while (!left && next(&e, &wc, 0)) {
            expect_error(wc.status, IBV_WC_SUCCESS);
            got++;
        }
    }
    if (left) {
        return;
    }
    if (strict) {
        expect(total - got >= 4 && total - got <= 60); /* about 16 of 32256 pages; a loss per message would be 1 of 2016 */
    } else {
        expect(got == total);
    }
}

/* JACCL asks for a depth of 32 and keeps two messages of 128 frames in flight. */
static void check_depth_of_32(void)
{
    enum { ROUNDS = 4 };
    const size_t message = 128 * FRAME;
    struct end e = join(4 * message, 32);
    struct ibv_wc wc;
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < 2; i++) {
            fill(e.memory + i * message, message, round + i);
            expect_error(post_receive(&e, 100 + i, (2 + i) * message, message), 0);
        }
        meet();
        for (unsigned i = 0; i < 2; i++) {
            expect_error(post_send(&e, i, i * message, message), 0);
        }
        for (unsigned sent = 0, got = 0; sent < 2 || (got < 2 && !strict);) {
            expect(next(&e, &wc, LIMIT_MS));
            expect_error(wc.status, IBV_WC_SUCCESS);
            *(wc.wr_id >= 100 ? &got : &sent) += 1;
        }
        if (strict) { /* this profile loses some messages */
            meet();
            return;
        }
        expect(filled(e.memory + 2 * message, message, round) && filled(e.memory + 3 * message, message, round + 1));
        meet();
    }
}

/* Queue pairs connect with a path_mtu of 1024 or 4096, with hop_limit 1 and is_global 1. */
static void check_path(void)
{
    static const enum ibv_mtu mtus[] = {IBV_MTU_1024, IBV_MTU_4096};
    struct end e = begin(FRAME);
    for (int i = 0; i < 2; i++) {
        struct ibv_qp *qp = make_qp(&e, IBV_QPT_UC, 16);
        expect(qp);
        struct card other = trade((struct card){e.gid, qp->qp_num});
        expect_error(to_init(qp), 0);
        expect_error(to_rtr(qp, &other.gid, other.number, V4, mtus[i]), 0);
        expect_error(to_rts(qp), 0);
        meet();
    }
}

/* In each direction 60 messages of one frame can be in flight, without an error. */
static void check_many_in_flight(void)
{
    enum { FLIGHT = 60 };
    struct end e = join(2 * FLIGHT * FRAME, 63);
    struct ibv_wc wc;
    unsigned sent = 0, got = 0;
    for (unsigned i = 0; i < FLIGHT; i++) {
        fill(e.memory + i * FRAME, FRAME, i);
        expect_error(post_receive(&e, 100 + i, (FLIGHT + i) * FRAME, FRAME), 0);
    }
    meet();
    for (unsigned i = 0; i < FLIGHT; i++) {
        expect_error(post_send(&e, i, i * FRAME, FRAME), 0);
    }
    bool all = false; /* sent, by both sides */
    while (sent < FLIGHT || got < FLIGHT) {
        if (sent == FLIGHT && !all) {
            meet();
            all = true;
        }
        if (!next(&e, &wc, strict && all ? QUIET_MS : LIMIT_MS)) {
            expect(strict && got + 5 > FLIGHT); /* losses */
            break;
        }
        expect_error(wc.status, IBV_WC_SUCCESS);
        if (wc.wr_id >= 100) {
            got++;
        } else {
            sent++;
        }
    }
    if (!all) {
        meet();
    }
    for (unsigned i = 0; i < FLIGHT && got == FLIGHT; i++) {
        expect(filled(e.memory + (FLIGHT + i) * FRAME, FRAME, i));
    }
    meet();
}

/* Destroy the QP first, then regions, then CQ, PD, context. */
static void check_end_in_order(void)
{
    struct end e = join(FRAME, 16);
    expect_error(post_receive(&e, 1, 0, FRAME), 0);
    meet();
    expect_error(ibv_destroy_qp(e.qp), 0);
    expect_error(ibv_dereg_mr(e.mr), 0);
    expect_error(ibv_destroy_cq(e.cq), 0);
    expect_error(ibv_dealloc_pd(e.pd), 0);
    expect_error(ibv_close_device(e.context), 0);
}

/* Going to the error state before destroying a QP makes every later deregistration fail. */
static void check_end_through_error(void)
{
    struct end e = join(FRAME, 16);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    meet();
    expect_error(ibv_modify_qp(e.qp, &attr, IBV_QP_STATE), 0);
    expect_error(ibv_destroy_qp(e.qp), 0);
    expect(ibv_dereg_mr(e.mr));
    expect(ibv_dereg_mr(e.mr));
}

/* ---- All of them --------------------------------------------------------------------------------------- */
const struct check data_checks[] = {
    {.name = "SEND only", .run = check_send_only},
    {.name = "equal frames", .run = check_equal_frames},
    {.name = "receives in order", .run = check_order},
    {.name = "a SEND waits for a receive", .run = check_credits},
    {.name = "no receive before RTS", .run = check_receive_before_ready},
    {.name = "losses", .run = check_losses},
    {.name = "losses of long messages", .run = check_losses_of_long_messages},
    {.name = "two of 128 frames in a depth of 32", .run = check_depth_of_32},
    {.name = "path", .run = check_path},
    {.name = "60 in flight each way", .run = check_many_in_flight},
    {.name = "an end in order", .run = check_end_in_order},
    {.name = "an end through ERR", .run = check_end_through_error},
    {.name = NULL},
};
