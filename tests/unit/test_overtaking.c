/* SPDX-License-Identifier: MIT
 *
 * Messages beside large gets (records/endpoint.h). A message overtakes gets for which there is no room, but not a fence, nor an earlier
 * message. With `paced`, records wait only for a short time to share a frame, because the acknowledgement may be late.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fabric/records/endpoint_private.h"

#define POOL    (UINT64_C(1) << 20)
#define LARGE   (64u << 10)
#define US      INT64_C(1000)
#define ID      7u
#define SESSION 1

static struct {
    struct tb_endpoint e;
    uint8_t *pool, *frames;
    bool room;    /* a move may begin */
    void *moving; /* the cookie of the move that is under way; NULL: none */
    uint32_t frames_sent, messages, puts;
    uint8_t order[16]; /* the first byte of each message that was sent */
} t;

static bool on_emit(void *ctx, uint32_t slot, void *frame, uint32_t bytes)
{
    (void)ctx;
    (void)slot;
    t.frames_sent++;
    for (uint32_t at = TB_HEADER_BYTES; at < bytes;) {
        struct tb_record r;
        memcpy(&r, (uint8_t *)frame + at, sizeof r);
        if (r.kind == TB_MESSAGE)
            t.order[t.messages++ % sizeof t.order] = ((uint8_t *)frame)[at + TB_MESSAGE_HEAD];
        t.puts += r.kind == TB_PUT;
        at += tb_padded(r.length);
    }
    return true;
}

static bool on_move(void *ctx, bool get, bool whole, uint8_t *local, uint64_t remote, uint64_t len, void *cookie)
{
    (void)ctx, (void)get, (void)whole, (void)local, (void)remote, (void)len;
    if (!t.room || t.moving)
        return false;
    t.moving = cookie;
    return true;
}

static bool on_movable(void *ctx, const uint8_t *local, uint64_t len)
{
    (void)ctx, (void)local, (void)len;
    return true;
}

static void on_complete(void *ctx, weft_op *op, int status)
{
    (void)ctx;
    if (op)
        op->status = status;
}

static int setup(void **state)
{
    (void)state;
    memset(&t, 0, sizeof t);
    t.pool = aligned_alloc(4096, POOL);
    t.frames = aligned_alloc(4096, TB_SLOTS * TB_FRAME_BYTES);
    const struct tb_endpoint_env env = {.emit = on_emit, .complete = on_complete, .move = on_move, .movable = on_movable};
    const struct tb_endpoint_config config = {.here = 0,
                                              .node = 1,
                                              .session = SESSION,
                                              .frames = t.frames,
                                              .pool = t.pool,
                                              .pool_bytes = POOL,
                                              .first_byte = 4096,
                                              .segment = POOL,
                                              .check = TB_CHECK_FULL,
                                              .move_least = 8192,
                                              .move_most = LARGE,
                                              .move_segment = POOL};
    tb_endpoint_init(&t.e, &env, &config);
    t.room = true;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    if (t.moving)
        tb_endpoint_moved(&t.e, t.moving, 0);
    t.room = false;
    tb_endpoint_end(&t.e, -ECONNRESET);
    free(t.pool);
    free(t.frames);
    return 0;
}

static void get(weft_op *op)
{
    op->status = 1;
    assert_int_equal(tb_endpoint_get(&t.e, t.pool + 4096, 4096, LARGE, op), 0);
}

static void message(uint8_t number)
{
    uint8_t body[8];
    memset(body, number, sizeof body);
    assert_int_equal(tb_endpoint_message(&t.e, ID, body, sizeof body, NULL, 0, NULL), 0);
}

static void move_ends(void)
{
    void *cookie = t.moving;
    t.moving = NULL;
    tb_endpoint_moved(&t.e, cookie, 0);
}

static void test_overtakes_gets(void **state)
{
    (void)state;
    static weft_op ops[3]; /* teardown completes those under way */
    for (unsigned i = 0; i < 3; i++)
        get(&ops[i]);
    message(1);
    tb_endpoint_pump(&t.e, US);
    assert_int_equal(t.messages, 1);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(ops[i].status, 1);
        move_ends();
        assert_int_equal(ops[i].status, 0);
        tb_endpoint_pump(&t.e, US);
    }
}

/* A message behind a fence waits for the gets before the fence, and later messages wait behind it: also when the fence has been passed, and
 * a further get has no room. */
static void test_not_a_fence(void **state)
{
    (void)state;
    static weft_op ops[3]; /* teardown completes those under way */
    get(&ops[0]);
    assert_int_equal(tb_endpoint_fence(&t.e), 0);
    get(&ops[1]);
    get(&ops[2]);
    message(1);
    tb_endpoint_pump(&t.e, US);
    assert_int_equal(t.messages, 0);
    move_ends(); /* the second get begins, but the third one has no room, and the message waits behind it */
    tb_endpoint_pump(&t.e, US);
    message(2);
    tb_endpoint_pump(&t.e, US);
    assert_int_equal(t.messages, 0);
    move_ends();
    tb_endpoint_pump(&t.e, US);
    message(3);
    tb_endpoint_pump(&t.e, 1000 * US);
    assert_int_equal(t.messages, 3);
    for (uint8_t i = 0; i < 3; i++)
        assert_int_equal(t.order[i], i + 1);
}

/* When the operations fail, fences and messages stay, and still count. */
static void test_failure(void **state)
{
    (void)state;
    static weft_op op;
    t.room = false;
    get(&op);
    message(1);
    assert_int_equal(tb_endpoint_fence(&t.e), 0);
    message(2);
    (void)tb_endpoint_fail(&t.e, -ENETDOWN);
    assert_int_equal(op.status, -ENETDOWN);
    message(3);
    tb_endpoint_pump(&t.e, US);
    tb_endpoint_pump(&t.e, 2 * US);
    assert_int_equal(t.messages, 3);
    for (uint8_t i = 0; i < 3; i++)
        assert_int_equal(t.order[i], i + 1);
}

/* Messages without end do not keep a put from being sent: there is room for one frame at a time, and each record needs one of its own. */
static void test_puts_have_turns(void **state)
{
    (void)state;
    static weft_op op;
    static const uint8_t payload[3600];
    t.e.stream.window.size = 0;
    assert_int_equal(tb_endpoint_message(&t.e, ID, payload, 8, payload, sizeof payload, NULL), 0);
    op.status = 1;
    assert_int_equal(tb_endpoint_put(&t.e, 4096, t.pool + 4096, sizeof payload, &op), 0);
    for (int i = 1; i <= 8; i++) {
        t.e.stream.window.size++;
        assert_int_equal(tb_endpoint_message(&t.e, ID, payload, 8, payload, sizeof payload, NULL), 0);
        tb_endpoint_pump(&t.e, i * US);
    }
    assert_int_equal(t.puts, 1);
    assert_true(t.messages > 0);
}

static void test_gathers_briefly(void **state)
{
    (void)state;
    t.e.stream.paced = true;
    t.e.stream.rto_least = t.e.stream.rto = 1000000 * US;
    message(1);
    tb_endpoint_pump(&t.e, 1 * US);
    message(2);
    tb_endpoint_pump(&t.e, 2 * US);
    assert_int_equal(t.messages, 2); /* two frames are under way, neither is acknowledged */
    message(3);
    assert_false(tb_endpoint_gathers(&t.e)); /* pump must see it, so that it is sent in time */
    tb_endpoint_pump(&t.e, 3 * US);
    assert_true(tb_endpoint_gathers(&t.e));
    assert_int_equal(t.messages, 2);
    int64_t due = tb_endpoint_due(&t.e);
    assert_true(due > 3 * US && due <= 1000 * US);
    message(4);
    tb_endpoint_pump(&t.e, due - 1);
    assert_int_equal(t.messages, 2);
    tb_endpoint_pump(&t.e, due);
    assert_int_equal(t.messages, 4);
    assert_int_equal(t.frames_sent, 3);
    message(5);
    tb_endpoint_pump(&t.e, due);
    assert_true(tb_endpoint_due(&t.e) > due);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_overtakes_gets, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_a_fence, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failure, setup, teardown),
        cmocka_unit_test_setup_teardown(test_puts_have_turns, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gathers_briefly, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
