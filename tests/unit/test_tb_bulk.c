/* SPDX-License-Identifier: MIT
 *
 * What the simulated worlds of tests/tb do not reach or do not check: what the bulk protocol counts, and this case. A put is complete at
 * the receiver, but the receiver cannot send DONE yet. Meanwhile the sender gives the put up, and uses its number for another put. The DONE
 * of the first put must then not be sent, because it would be taken for the DONE of the second.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "fabric/records/bulk.h"

#define POOL    (UINT64_C(1) << 20)
#define MESSAGE (32u << 10)
#define AT      (64u << 10)

static struct {
    struct tb_stream stream;
    struct tb_bulk bulk;
    uint8_t *pool, *frames;
    bool full; /* the device takes no frame */
    uint32_t came, receives;
    struct tb_words said[64]; /* the records in the frames that were sent */
    uint32_t said_count;
} t;

static bool on_emit(void *ctx, uint32_t slot, void *frame, uint32_t bytes)
{
    (void)ctx;
    (void)slot;
    if (t.full)
        return false;
    for (uint32_t at = TB_HEADER_BYTES; at < bytes;) {
        struct tb_record r;
        memcpy(&r, (uint8_t *)frame + at, sizeof r);
        if (r.kind >= TB_OPEN && t.said_count < 64)
            memcpy(&t.said[t.said_count++], (uint8_t *)frame + at, sizeof t.said[0]);
        at += tb_padded(r.length);
    }
    return true;
}

static int on_records(void *ctx, const uint8_t *payload, uint32_t bytes)
{
    (void)ctx;
    (void)payload;
    (void)bytes;
    return 0;
}

static void on_complete(void *ctx, weft_op *op, int status)
{
    (void)ctx;
    (void)op;
    (void)status;
}

static bool on_receive(void *ctx, uint32_t lane, uint64_t offset)
{
    (void)ctx;
    (void)lane;
    t.receives += offset == AT;
    return true;
}

static bool on_send(void *ctx, uint32_t lane, uint64_t offset)
{
    (void)ctx;
    (void)lane;
    (void)offset;
    return true;
}

static bool on_fetch(void *ctx, uint32_t transfer, uint16_t generation, uint64_t to, uint64_t from, uint32_t bytes)
{
    (void)ctx;
    (void)transfer;
    (void)generation;
    (void)to;
    (void)from;
    (void)bytes;
    return true;
}

static void on_received(void *ctx, uint64_t word, uint64_t add, uint32_t what)
{
    (void)ctx;
    (void)word;
    (void)add;
    (void)what;
    t.came++;
}

static void on_done(void *ctx, void *cookie)
{
    (void)ctx;
    (void)cookie;
}

static int setup(void **state)
{
    (void)state;
    memset(&t, 0, sizeof t);
    t.pool = aligned_alloc(4096, POOL);
    t.frames = aligned_alloc(4096, TB_SLOTS * TB_FRAME_BYTES);
    if (!t.pool || !t.frames)
        return -1;
    memset(t.pool, 7, POOL);
    memset(t.frames, 0, TB_SLOTS * TB_FRAME_BYTES);
    tb_stream_init(&t.stream, &(struct tb_stream_env){.emit = on_emit, .records = on_records, .complete = on_complete}, 0, 1, 1, t.frames);
    tb_bulk_init(&t.bulk, &t.stream,
                 &(struct tb_bulk_env){.lane_receive = on_receive,
                                       .lane_send = on_send,
                                       .fetch = on_fetch,
                                       .received = on_received,
                                       .done = on_done,
                                       .again = on_done},
                 t.pool, POOL, 4096, UINT64_C(1) << 30, TB_CHECK_FULL);
    return tb_bulk_add_lane(&t.bulk, MESSAGE, 4);
}

static int teardown(void **state)
{
    (void)state;
    tb_bulk_end(&t.bulk);
    tb_stream_end(&t.stream, 0);
    free(t.pool);
    free(t.frames);
    return 0;
}

static int hear(enum tb_record_kind kind, uint32_t detail, uint16_t generation, const struct tb_words *more)
{
    struct tb_words m = *more;
    m.r = (struct tb_record){.kind = (uint8_t)kind, .detail = (uint16_t)detail, .length = sizeof m, .generation = generation};
    return tb_bulk_record(&t.bulk, &m, 1);
}

static void pump(void)
{
    tb_bulk_pump(&t.bulk, 1);
    tb_stream_pump(&t.stream, 1);
}

static uint32_t said(enum tb_record_kind kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t.said_count; i++)
        n += t.said[i].r.kind == kind;
    return n;
}

/* Stops frames from leaving, and fills the window of frames under way. */
static void fill_stream(void)
{
    static const struct tb_record filler = {.kind = TB_SIGNAL, .length = sizeof(struct tb_words)};
    struct tb_words m = {.r = filler};
    void *room;
    t.full = true;
    while ((room = tb_stream_room(&t.stream, sizeof m))) {
        memcpy(room, &m, sizeof m);
        tb_stream_commit(&t.stream, sizeof m);
    }
}

/* Let a transfer arrive completely, while there is no room to send its DONE. */
static void come_whole(uint32_t id)
{
    assert_int_equal(hear(TB_OPEN, id, 1, &(struct tb_words){.offset = AT, .a = MESSAGE}), 0);
    pump();
    assert_int_equal(t.receives, 1);
    assert_int_equal(said(TB_READY), 1);
    fill_stream();
    tb_bulk_landed(&t.bulk, 0, 1);
    assert_int_equal(hear(TB_SUM, 0, t.bulk.lanes[0].generation, &(struct tb_words){.token = 0, .a = base_hash(t.pool + AT, MESSAGE, 0)}),
                     0);
    assert_int_equal(t.came, 1);
    pump();
    assert_int_equal(said(TB_DONE), 0);
}

static void leave_all(void)
{
    for (uint32_t i = 0; i < TB_SLOTS; i++)
        while (t.stream.slots[i].posted)
            tb_stream_left(&t.stream, i);
}

/* Frames under way arrive, so there is room again. */
static void drain(void)
{
    t.full = false;
    for (unsigned i = 0; i < 4; i++) {
        pump();
        leave_all();
        struct tb_frame f = {
            .magic = TB_MAGIC, .version = TB_VERSION, .type = TB_BARE, .from = 1, .to = 0, .session = 1, .ack = t.stream.next};
        _Alignas(8) uint8_t frame[TB_HEADER_BYTES];
        tb_frame_seal(&f, frame, sizeof frame);
        assert_int_equal(tb_stream_receive(&t.stream, frame, sizeof frame, 1), 0);
    }
    pump();
}

static void test_number_used_again_before_done_was_said(void **state)
{
    (void)state;
    come_whole(3);
    assert_int_equal(hear(TB_DROP, 3, 1, &(struct tb_words){0}), 0);
    assert_int_equal(hear(TB_OPEN, 3, 2, &(struct tb_words){.offset = AT, .a = MESSAGE}), 0);
    drain();
    assert_int_equal(said(TB_DONE), 0); /* the second transfer has not arrived */
    assert_int_equal(said(TB_DROPPED), 1);
    assert_int_equal(said(TB_READY), 2);
    tb_bulk_landed(&t.bulk, 0, 1);
    assert_int_equal(hear(TB_SUM, 0, t.bulk.lanes[0].generation, &(struct tb_words){.token = 1, .a = base_hash(t.pool + AT, MESSAGE, 0)}),
                     0);
    drain();
    assert_int_equal(t.came, 2);
    assert_int_equal(said(TB_DONE), 1);
    for (uint32_t i = 0; i < t.said_count; i++)
        if (t.said[i].r.kind == TB_DONE)
            assert_int_equal(t.said[i].r.generation, 2);
}

static void test_done_is_said_when_there_is_room(void **state)
{
    (void)state;
    come_whole(3);
    /* Until then the number is in use: if the peer uses it again without having dropped the transfer, the peer is invalid. */
    assert_int_equal(hear(TB_OPEN, 4, 2, &(struct tb_words){.offset = AT, .a = MESSAGE}), 0);
    assert_true(hear(TB_OPEN, 4, 3, &(struct tb_words){.offset = AT, .a = MESSAGE}) < 0);
    drain();
    assert_int_equal(said(TB_DONE), 1);
}

/* The sums of half a lane's pieces are announced before all the pieces have been sent. */
static void test_half_is_told_of(void **state)
{
    (void)state;
    struct tb_words m = {.token = 0, .a = 0, .b = 4};
    assert_true(tb_bulk_put(&t.bulk, AT, AT, 4 * MESSAGE, 0, 0, 0, &t));
    pump();
    leave_all();
    uint32_t before = t.stream.order;
    assert_int_equal(hear(TB_READY, 0, t.bulk.lanes[0].generation, &m), 0);
    pump();
    assert_int_equal(said(TB_SUM), 4);
    assert_int_equal(t.stream.order - before, 2); /* the number of frames */
}

/* --- what is counted --- */

enum { LENGTH = 3 * MESSAGE + 100 }; /* four pieces, the last of which overlaps the third */

static void ready_for(uint32_t first, uint32_t count)
{
    assert_int_equal(hear(TB_READY, 0, t.bulk.lanes[0].generation, &(struct tb_words){.token = first, .a = first, .b = count}), 0);
    pump();
    leave_all();
    for (uint32_t i = 0; i < count; i++)
        tb_bulk_left(&t.bulk, 0);
}

/* Each byte of a put counts when it is sent, and once. What the lane has sent counts as often as it was sent. */
static void test_put_is_counted(void **state)
{
    (void)state;
    const struct tb_bulk_counts *c = &t.bulk.counts;
    assert_true(tb_bulk_put(&t.bulk, AT, AT, LENGTH, 0, 0, 0, &t));
    drain();
    assert_int_equal(c->put_bytes, 0);
    ready_for(0, 2);
    assert_int_equal(c->put_bytes, 2 * MESSAGE);
    assert_int_equal(c->sent_bytes, 2 * MESSAGE);
    assert_int_equal(hear(TB_RESEND, 0, t.bulk.lanes[0].generation, &(struct tb_words){.token = 1, .a = 1}), 0); /* one was lost */
    pump();
    leave_all();
    tb_bulk_left(&t.bulk, 0);
    assert_int_equal(c->sent_bytes, 3 * MESSAGE);
    assert_in_range(c->put_bytes, 2 * MESSAGE, 3 * MESSAGE); /* which piece it was is not kept */
    ready_for(2, 2);
    assert_int_equal(c->sent_bytes, 5 * MESSAGE);
    assert_int_equal(c->put_bytes, LENGTH);
    assert_int_equal(hear(TB_DONE, 0, t.bulk.begun, &(struct tb_words){0}), 0);
    assert_int_equal(c->put_bytes, LENGTH);
    assert_int_equal(c->get_bytes + c->received_bytes, 0);
}

/* The peer has all of a put, although this node has sent only a part of it over the lane. */
static void test_put_is_counted_at_its_end(void **state)
{
    (void)state;
    assert_true(tb_bulk_put(&t.bulk, AT, AT, LENGTH, 0, 0, 0, &t));
    drain();
    ready_for(0, 1);
    assert_int_equal(t.bulk.counts.put_bytes, MESSAGE);
    assert_int_equal(hear(TB_DONE, 0, t.bulk.begun, &(struct tb_words){0}), 0);
    assert_int_equal(t.bulk.counts.put_bytes, LENGTH);
    assert_int_equal(t.bulk.counts.sent_bytes, MESSAGE);
}

/* A piece has landed, and its checksum arrives. */
static void land(uint32_t number, uint64_t at, bool damaged)
{
    tb_bulk_landed(&t.bulk, 0, 1);
    assert_int_equal(
        hear(TB_SUM, 0, t.bulk.lanes[0].generation, &(struct tb_words){.token = number, .a = base_hash(t.pool + at, MESSAGE, 0) + damaged}),
        0);
}

/* Each byte of a get counts when it has arrived. A damaged piece counts as rejected, and the lane is repaired. */
static void test_get_is_counted(void **state)
{
    (void)state;
    const struct tb_bulk_counts *c = &t.bulk.counts;
    assert_true(tb_bulk_get(&t.bulk, AT, AT, LENGTH, &t));
    drain();
    assert_int_equal(said(TB_READY), 1);
    land(0, AT, false);
    assert_int_equal(c->get_bytes, MESSAGE);
    land(1, AT + MESSAGE, false);
    assert_int_equal(c->get_bytes, 2 * MESSAGE);
    assert_int_equal(c->rejected + c->repairs, 0);
    land(2, AT + 2 * MESSAGE, true);
    assert_int_equal(c->get_bytes, 2 * MESSAGE);
    assert_int_equal(c->rejected, 1);
    drain();
    assert_int_equal(said(TB_QUIESCE), 1);
    assert_int_equal(c->repairs, 1);
    land(3, AT + LENGTH - MESSAGE, false);
    assert_int_equal(c->get_bytes, 3 * MESSAGE);
    assert_int_equal(c->received_bytes, 0); /* counts whole transfers */
    assert_int_equal(hear(TB_QUIET, 0, t.bulk.lanes[0].generation, &(struct tb_words){0}), 0);
    tb_bulk_pump(&t.bulk, WEFT_SECOND);
    drain();
    assert_int_equal(said(TB_READY), 2); /* for the damaged piece again */
    land(4, AT + 2 * MESSAGE, false);
    assert_int_equal(c->get_bytes, LENGTH);
    assert_int_equal(c->received_bytes, LENGTH);
    assert_int_equal(c->rejected, 1);
    assert_int_equal(c->put_bytes + c->sent_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_number_used_again_before_done_was_said, setup, teardown),
        cmocka_unit_test_setup_teardown(test_done_is_said_when_there_is_room, setup, teardown),
        cmocka_unit_test_setup_teardown(test_half_is_told_of, setup, teardown),
        cmocka_unit_test_setup_teardown(test_put_is_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_put_is_counted_at_its_end, setup, teardown),
        cmocka_unit_test_setup_teardown(test_get_is_counted, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
