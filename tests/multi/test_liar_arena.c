/* SPDX-License-Identifier: MIT
 *
 * Messages about memory of GPUs that lie (liar.h): the requests and answers of operations, and what nodes tell each other about their
 * arenas and about slots.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "arena_test.h"
#include "liar.h"

struct liar_to {
    weft_node *w;
    struct told *t;
    uint32_t node, handler;
    size_t payload;
};

static void tell_arena(const void *record, size_t bytes, const char *what, void *arg)
{
    static const uint8_t payload[WEFT_PAYLOAD_MAX];
    struct liar_to *to = arg;
    note(to->t, what);
    int rc = fab_send(to->w, to->node, to->handler, record, bytes, payload, to->payload, NULL);
    CHECK(rc == 0 || rc == -ETIMEDOUT || rc == -ECONNRESET);
}

static const struct lie_field ASK[] = {
    LIE_FIELD(struct arena_message, id),     LIE_FIELD(struct arena_message, kind),   LIE_FIELD(struct arena_message, space),
    LIE_FIELD(struct arena_message, offset), LIE_FIELD(struct arena_message, length), LIE_FIELD(struct arena_message, a),
    LIE_FIELD(struct arena_message, b),      LIE_FIELD(struct arena_message, atomic),
};
static const struct lie_field ANSWER[] = {
    LIE_FIELD(struct arena_answer, id),
    LIE_FIELD(struct arena_answer, status),
    LIE_FIELD(struct arena_answer, value),
};

static const struct lie_field ROOM[] = {
    LIE_FIELD(struct arena_room, kind),  LIE_FIELD(struct arena_room, count), LIE_FIELD(struct arena_room, bytes),
    LIE_FIELD(struct arena_room, at[0]), LIE_FIELD(struct arena_room, at[3]), LIE_FIELD(struct arena_room, question),
};

static const struct lie_field SPACES[] = {
    LIE_FIELD(struct arena_space, space),
    LIE_FIELD(struct arena_space, bytes),
    LIE_FIELD(struct arena_space, kind),
    LIE_FIELD(struct arena_space, rdma),
};
static const struct lie_field SHARE[] = {
    LIE_FIELD(struct arena_share, space),
    LIE_FIELD(struct arena_share, secret),
};

/* Messages about arenas that do not exist, and requests to hand over arenas at sockets that do not exist. */
static void lie_about_sharing(struct liar_to *to)
{
    to->payload = 0;
    to->handler = ARENA_HANDLER_SPACE;
    struct arena_space space = {.space = SPACE, .bytes = 1 << 20, .kind = arena_kind(&(struct gpu_place){.backend = &gpu_host})};
    lie_about(&space, sizeof space, SPACES, LIE_COUNT(SPACES), tell_arena, to);
    to->handler = ARENA_HANDLER_SHARE;
    struct arena_share share = {.space = SPACE, .place = "weft-arena-0"};
    lie_about(&share, sizeof share, SHARE, LIE_COUNT(SHARE), tell_arena, to);
    memset(share.place, 'x', sizeof share.place);
    lie_about(&share, sizeof share, SHARE, LIE_COUNT(SHARE), tell_arena, to);
    to->handler = ARENA_HANDLER_TOLD;
    tell_arena(NULL, 0, "told", to);
}

/* Slots that nobody has asked for, slots of other nodes, and slots given back that are in use. */
static void lie_about_slots(struct liar_to *to, weft_gaddr mine)
{
    to->payload = 0;
    to->handler = ARENA_HANDLER_ROOM;
    for (uint32_t kind = ROOM_WANT; kind <= ROOM_GIVE; kind++) {
        struct arena_room room = {.kind = kind, .count = 4, .bytes = 4096, .at = {mine, mine + 4096, mine + 8192, mine + 12288}};
        lie_about(&room, sizeof room, ROOM, LIE_COUNT(ROOM), tell_arena, to);
        OK(weft_flush(to->w, to->node, WEFT_TIMEOUT_DEFAULT));
    }
}

static void lie_about_arenas(weft_node *w, struct told *t, weft_gaddr mine)
{
    for (uint32_t node = 0; node < NODES - 1; node++) {
        struct liar_to to = {w, t, node, ARENA_HANDLER_ASK, 0};
        for (uint32_t kind = ASK_WRITE; kind <= ASK_LAND; kind++) {
            struct arena_message truth = {.kind = kind,
                                          .space = 1,
                                          /* The node's device executes both kinds, perhaps at the same time, so they use different
                                           * memory. */
                                          .offset = kind == ASK_PUSH ? 1 << 19 : 1 << 16,
                                          .length = kind < ASK_PULL      ? 100
                                                    : kind == ASK_ATOMIC ? 8
                                                                         : 70000,
                                          .a = mine};
            to.payload = kind == ASK_WRITE ? 100 : 0;
            lie_about(&truth, sizeof truth, ASK, LIE_COUNT(ASK), tell_arena, &to);
            OK(weft_flush(w, node, WEFT_TIMEOUT_DEFAULT));
        }
        to.handler = ARENA_HANDLER_ANSWER;
        struct arena_answer truth = {.id = 256};
        for (to.payload = 0; to.payload <= 8; to.payload += 8)
            lie_about(&truth, sizeof truth, ANSWER, LIE_COUNT(ANSWER), tell_arena, &to);
        lie_about_slots(&to, mine);
        lie_about_sharing(&to);
        OK(weft_flush(w, node, WEFT_TIMEOUT_DEFAULT));
    }
}

/* An offset beyond the largest one is refused: without its upper bits it would name other memory. */
static void node_offset(weft_node *w, void *arg)
{
    (void)arg;
    weft_gpu *g = open_arena(w, 1 << 20);
    weft_gaddr at;
    uint64_t seven = 7, got = 1;
    OK(weft_gpu_alloc(g, SPACE, 65536, &at));
    at = on_node(at, 0);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 1) {
        OK(weft_put_blocking(w, at, &seven, 8));
        for (int high = 44; high < 64; high++) {
            struct arena_message m = {
                .id = 256, .kind = ASK_ATOMIC, .space = SPACE, .offset = weft_gaddr_offset(at) + (1ull << high), .length = 8, .a = 1};
            OK(fab_send(w, 0, ARENA_HANDLER_ASK, &m, sizeof m, NULL, 0, NULL));
        }
        OK(weft_fetch_add_blocking(w, at, 0, &got)); /* the owner executes it after the operations that arrived before it */
        CHECK(got == 7);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_offset(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, node_offset, NULL), 0);
}

/* Meanwhile the honest nodes use each other's arenas. The liar may write every byte of these. */
static void node_liar(weft_node *w, void *arg)
{
    struct told *t = arg;
    weft_gaddr mine = symmetric_alloc(w, 1 << 17), theirs;
    weft_gpu *g = open_arena(w, 1 << 20);
    OK(weft_gpu_alloc(g, SPACE, 200000, &theirs));
    meet(&t->here, NODES);
    if (weft_rank(w) == LIAR) {
        lie_about_arenas(w, t, on_node(mine, LIAR));
        atomic_store(&t->over, 1);
        meet(&t->met[0], NODES);
        return;
    }
    uint8_t *bytes = calloc(1, 200000);
    theirs = on_node(theirs, 1 - weft_rank(w));
    do {
        uint64_t old;
        OK(weft_put_blocking(w, theirs, bytes, 200000));
        OK(weft_get_blocking(w, bytes, theirs, 3000));
        OK(weft_fetch_add_blocking(w, theirs, 1, &old));
    } while (!t->over);
    free(bytes);
    meet(&t->met[0], NODES);
}

static void test_liar(void **state)
{
    (void)state;
    run_with_liar(node_liar);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_liar), cmocka_unit_test(test_offset)};
    return cmocka_run_group_tests_name("liar_arena", tests, NULL, NULL);
}
