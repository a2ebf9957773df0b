/* SPDX-License-Identifier: MIT
 *
 * Everything that a peer of the tb transport can send. One end of a link, with operations and transfers of its own under way, executes the
 * input as a sequence of commands, each a byte and its arguments:
 *   a frame as it stands; a frame with a right header and checksum around records as they stand, or around one record of
 *   fixed fields with values at the edges; a completion of its devices; time; an operation; a cable that is unplugged or plugged in;
 * credit. For every input: no byte outside the allowed part of the pool is written or read, every operation completes once, and memory is
 * bounded. A peer that violates the protocol is given up, and the next session begins.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fabric/records/endpoint.h"
#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define POOL  (256u << 10)
#define FIRST 4096u
#define LANES 3u
#define OPS   64u
static const uint32_t messages[LANES] = {4096, 8192, 65536}, depths[LANES] = {64, 3, 1};

static struct {
    struct tb_endpoint p;
    uint8_t *pool, *frames;
    uint32_t session;
    int64_t now;
    weft_op ops[OPS];
    uint64_t olds[OPS];
    uint8_t outside[64 << 10];
    struct {
        uint64_t at[TB_LANE_DEPTH];
        uint32_t first, next, sends;
    } lanes[LANES];
    uint32_t posted[TB_SLOTS];
    uint32_t waiting;
} f;

static bool on_emit(void *ctx, uint32_t slot, void *frame, uint32_t bytes)
{
    (void)ctx;
    if (slot >= TB_SLOTS || frame != f.frames + (size_t)slot * TB_FRAME_BYTES || bytes > TB_FRAME_BYTES)
        abort();
    if (f.posted[slot] > 3)
        return false;
    f.posted[slot]++;
    return true;
}

static bool inside(uint64_t offset, uint32_t bytes)
{
    return offset == TB_SCRAP || (offset >= FIRST && offset <= POOL && bytes <= POOL - offset);
}

static bool on_receive(void *ctx, uint32_t lane, uint64_t offset)
{
    (void)ctx;
    if (lane >= LANES || !inside(offset, messages[lane]) || f.lanes[lane].next - f.lanes[lane].first >= depths[lane])
        abort();
    f.lanes[lane].at[f.lanes[lane].next++ % TB_LANE_DEPTH] = offset;
    return true;
}

static bool on_send(void *ctx, uint32_t lane, uint64_t offset)
{
    (void)ctx;
    if (lane >= LANES || !inside(offset, messages[lane]) || f.lanes[lane].sends >= depths[lane])
        abort();
    f.lanes[lane].sends++;
    return true;
}

static bool on_message(void *ctx, uint32_t id, const void *header, uint32_t header_len, const void *payload, uint32_t payload_len)
{
    (void)ctx, (void)id;
    static volatile uint8_t sum;
    if (header_len > WEFT_HEADER_MAX || payload_len > WEFT_PAYLOAD_MAX || ++f.waiting > TB_MESSAGES)
        abort();
    for (uint32_t i = 0; i < header_len; i++)
        sum ^= ((const uint8_t *)header)[i];
    for (uint32_t i = 0; i < payload_len; i++)
        sum ^= ((const uint8_t *)payload)[i];
    (void)sum;
    return true;
}

static void on_complete(void *ctx, weft_op *op, int status)
{
    (void)ctx;
    if (op->status != 1 || status > 0)
        abort();
    op->status = status;
}

static void begin(void)
{
    struct tb_endpoint_env env = {
        .emit = on_emit, .lane_receive = on_receive, .lane_send = on_send, .message = on_message, .complete = on_complete};
    struct tb_endpoint_config config = {.here = 3,
                                        .node = 7,
                                        .session = ++f.session,
                                        .frames = f.frames,
                                        .pool = f.pool,
                                        .pool_bytes = POOL,
                                        .first_byte = FIRST,
                                        .segment = POOL / 2,
                                        .check = f.session & 1};
    tb_endpoint_init(&f.p, &env, &config);
    for (uint32_t i = 0; i < LANES; i++)
        if (tb_endpoint_add_lane(&f.p, messages[i], depths[i]))
            abort();
    memset(f.lanes, 0, sizeof f.lanes);
    memset(f.posted, 0, sizeof f.posted);
    f.waiting = 0;
}

static void end(void)
{
    tb_endpoint_end(&f.p, -5);
    for (uint32_t i = 0; i < OPS; i++)
        if (f.ops[i].status == 1)
            abort();
    for (uint32_t i = 0; i < FIRST; i++)
        if (f.pool[i] != 0xa5)
            abort();
}

/* A small number, or one near the limits of the pool. */
static uint64_t edge(struct input *in)
{
    static const uint64_t edges[] = {
        0,          1,         8,        FIRST,       FIRST + 8,    FIRST - 8,    4096,    8192,           65536,
        POOL / 2,   POOL,      POOL - 8, POOL - 4096, POOL - 65536, TB_ASK_BYTES, TB_ASKS, TB_NO_TRANSFER, TB_TRANSFER_MAX,
        UINT32_MAX, UINT64_MAX};
    uint8_t which = (uint8_t)take(in, 1);
    if (which < 64)
        return which;
    uint64_t v = edges[which % (sizeof edges / sizeof edges[0])];
    return which & 128 ? v + take(in, 1) - 128 : v;
}

static void frame_of(struct input *in, uint8_t *frame, uint32_t payload)
{
    const struct tb_stream *s = &f.p.stream;
    uint8_t how = (uint8_t)take(in, 1);
    struct tb_frame h = {.magic = TB_MAGIC,
                         .version = TB_VERSION,
                         .type = how & 1 ? TB_BARE : TB_SEQUENCED,
                         .hops = 1,
                         .flags = how >> 1 & 1,
                         .from = 7,
                         .to = 3,
                         .session = f.session,
                         .sequence = s->expected,
                         .ack = s->first,
                         .grant = s->granted};
    if (how & 4)
        h.ack = s->next;
    if (how & 8)
        h.sequence += (uint32_t)take(in, 1) - 2;
    if (how & 16)
        h.early = take(in, 8);
    if (how & 32)
        h.grant += (uint32_t)edge(in);
    if (how & 64)
        h.ack += (uint32_t)take(in, 1) - 2;
    tb_frame_seal(&h, frame, (uint32_t)sizeof h + payload);
    uint8_t *exact = malloc(sizeof h + payload);
    if (!exact)
        abort();
    memcpy(exact, frame, sizeof h + payload);
    (void)tb_endpoint_frame(&f.p, exact, (uint32_t)sizeof h + payload, f.now);
    free(exact);
}

static void fixed_record(struct input *in)
{
    uint8_t frame[TB_FRAME_BYTES];
    struct tb_words w = {.r = {.length = sizeof w}};
    uint8_t kind = (uint8_t)take(in, 1);
    w.r.kind = (uint8_t)(1 + kind % (TB_LANE + 1)); /* one of these kinds does not exist */
    w.r.lane = (uint8_t)(take(in, 1) % (LANES + 1));
    w.r.detail = (uint16_t)edge(in);
    const struct tb_lane *l = &f.p.bulk.lanes[w.r.lane % LANES];
    w.token = (uint32_t)edge(in);
    w.offset = edge(in);
    w.a = edge(in);
    w.b = edge(in);
    /* Valid numbers are hard to guess, so they are taken from the node's state. */
    w.r.generation = (uint16_t)w.b;
    if (kind & 128) {
        const struct tb_bulk *b = &f.p.bulk;
        bool of_transfer = w.r.kind == TB_DONE || w.r.kind == TB_DROP || w.r.kind == TB_DROPPED;
        uint32_t id = w.r.detail % TB_TRANSFERS;
        w.r.generation = !of_transfer ? l->generation : b->out[id].used ? b->out[id].generation : b->in[id].generation;
        w.token += w.r.kind == TB_READY    ? l->out_end
                   : w.r.kind == TB_SUM    ? l->in_first
                   : w.r.kind == TB_RESEND ? l->out_end - (uint32_t)w.a
                                           : 0;
    }
    memcpy(frame + TB_HEADER_BYTES, &w, sizeof w);
    frame_of(in, frame, sizeof w);
}

static void operation(struct input *in)
{
    uint32_t i = 0;
    while (i < OPS && f.ops[i].status == 1)
        i++;
    if (i == OPS)
        return;
    uint8_t what = (uint8_t)take(in, 1);
    uint64_t len = take(in, 1) * (what & 64 ? 512 : 17) + 1, at = FIRST + take(in, 1) * 256;
    len = len > POOL - at ? POOL - at : len;
    len = len > sizeof f.outside && !(what & 128) ? sizeof f.outside : len;
    uint8_t *local = what & 128 ? f.pool + POOL - len : f.outside;
    f.ops[i].status = 1;
    int rc;
    switch (what % 6) {
    case 0: rc = tb_endpoint_put(&f.p, at, local, len, &f.ops[i]); break;
    case 1: rc = tb_endpoint_get(&f.p, local, at, len, &f.ops[i]); break;
    case 2: rc = tb_endpoint_put_signal(&f.p, at, local, len, FIRST, 1, &f.ops[i]); break;
    case 3: rc = tb_endpoint_atomic(&f.p, FAB_CAS, at, len, 1, true, &f.olds[i], &f.ops[i]); break;
    case 4: rc = tb_endpoint_message(&f.p, 1, f.outside, 8, f.outside, (uint32_t)(len % WEFT_PAYLOAD_MAX), &f.ops[i]); break;
    default: f.ops[i].status = 0; rc = tb_endpoint_fence(&f.p);
    }
    if (rc)
        abort();
}

static void lane_down(uint32_t lane)
{
    if (!f.p.bulk.lanes[lane].up)
        return;
    tb_endpoint_lane_down(&f.p, lane);
    memset(&f.lanes[lane], 0, sizeof f.lanes[lane]);
}

/* Unplugs a cable, or plugs it in again. */
static void cable(struct input *in)
{
    uint8_t what = (uint8_t)take(in, 1);
    uint32_t lane = what % LANES;
    if (what < 200) {
        if (f.p.bulk.lanes[lane].up)
            lane_down(lane);
        else
            tb_endpoint_lane_up(&f.p, lane, (uint16_t)(what % 4 + 1));
        return;
    }
    for (uint32_t i = 0; i < LANES; i++)
        lane_down(i);
    if (what & 1)
        tb_endpoint_reroute(&f.p);
    else
        tb_endpoint_fail(&f.p, -5);
    for (uint32_t i = 0; i < OPS && !(what & 1); i++)
        if (f.ops[i].status == 1)
            abort();
}

static void device(struct input *in)
{
    uint8_t what = (uint8_t)take(in, 1);
    uint32_t lane = what % LANES, slot = what % TB_SLOTS;
    switch (what >> 6) {
    case 0: /* completes a receive: its memory was written to */
        if (f.lanes[lane].first == f.lanes[lane].next)
            return;
        uint64_t at = f.lanes[lane].at[f.lanes[lane].first++ % TB_LANE_DEPTH];
        if (at != TB_SCRAP)
            memset(f.pool + at, what, messages[lane]);
        tb_endpoint_lane_landed(&f.p, lane, f.now);
        break;
    case 1:
        if (f.lanes[lane].sends) {
            f.lanes[lane].sends--;
            tb_endpoint_lane_left(&f.p, lane);
        }
        break;
    default:
        if (f.posted[slot]) {
            f.posted[slot]--;
            tb_endpoint_left(&f.p, slot);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    uint8_t frame[TB_FRAME_BYTES];
    if (!f.pool) {
        f.pool = malloc(POOL); /* a sanitizer detects writes beyond it */
        f.frames = malloc(TB_SLOTS * TB_FRAME_BYTES);
        if (!f.pool || !f.frames)
            abort();
        memset(f.pool, 0xa5, POOL);
    }
    f.now = 1;
    begin();
    for (unsigned commands = 0; in.left && commands < 400; commands++) {
        uint8_t command = (uint8_t)take(&in, 1);
        size_t len;
        switch (command % 9) {
        case 0: /* the frame as it is in the input */
            len = take(&in, 2) % (TB_FRAME_BYTES + 1);
            len = len > in.left ? in.left : len;
            (void)tb_endpoint_frame(&f.p, in.at, (uint32_t)len, f.now);
            in.at += len, in.left -= len;
            break;
        case 1: /* the records as they are in the input */
            len = take(&in, 2) % (TB_PAYLOAD_BYTES + 1);
            len = len > in.left ? in.left : len;
            memcpy(frame + TB_HEADER_BYTES, in.at, len);
            in.at += len, in.left -= len;
            frame_of(&in, frame, (uint32_t)len);
            break;
        case 2:
        case 3: fixed_record(&in); break;
        case 4: device(&in); break;
        case 5: f.now += (int64_t)take(&in, 1) * 1000000; break;
        case 6: operation(&in); break;
        case 7: cable(&in); break;
        default:
            if (f.waiting) {
                f.waiting--;
                tb_endpoint_granted(&f.p, 1);
            }
        }
        if (f.p.broken[0]) {
            end();
            begin();
        }
        tb_endpoint_pump(&f.p, f.now);
        if (tb_endpoint_due(&f.p) <= f.now || f.p.serve_count > TB_ASKS || f.p.tracked > TB_ASKS + TB_TRANSFERS)
            abort();
        (void)tb_endpoint_flushed(&f.p, &(struct fab_flush){0});
    }
    end();
    return 0;
}
