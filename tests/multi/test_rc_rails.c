/* SPDX-License-Identifier: MIT
 *
 * Several devices to one peer: large puts and gets use all of them, order is kept, and the devices are chosen. over_softverbs.py starts
 * this with the topology "rails:4:3"; or with "crossed" and the argument "crossed", or "uneven:3:2" and the argument "uneven".
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

#include "rc_rails_test.h"

/* --- all devices carry data --- */

static void carry(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    uint32_t me = weft_rank(w), peer = 1 - me;
    weft_gaddr ours, theirs;
    OK(weft_alloc(w, 4 * LARGE, &ours));   /* the peer writes here */
    OK(weft_alloc(w, 4 * LARGE, &theirs)); /* the source of this node's puts */
    uint8_t *came = weft_ptr(w, ours, 4 * LARGE), *from = weft_ptr(w, theirs, 4 * LARGE);
    memset(came, 0xee, 4 * LARGE);
    meet(&stage->here, 2);
    wait_for_rails(w, peer, theirs, 3);
    meet(&stage->here, 4); /* the peer's rails are ready, too */
    CHECK(strchr(stats(w, peer).devices, ','));
    static const struct {
        size_t at, len, source;
    } cases[] = {{4096, LARGE, 0}, {4096 + 17, 2 * LARGE + 4321, 3}, {1, 256 << 10, 4095}, {8191, (256 << 10) + 1, 1}, {64, 3 * LARGE, 77}};
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t at = cases[i].at, len = cases[i].len;
        uint8_t before = byte_at(came + at - 1), after = byte_at(came + at + len);
        weft_link_stats was = stats(w, peer);
        fill(from + cases[i].source, len, 2 * i + me);
        meet(&stage->there, 2 * (3 * i + 1));
        OK(weft_put_blocking(w, on_node(ours, peer) + at, from + cases[i].source, len));
        weft_link_stats is = stats(w, peer);
        uint64_t sum = 0;
        for (int k = 0; k < 3; k++) {
            uint64_t bytes = is.rail_bytes[k] - was.rail_bytes[k];
            CHECK(bytes + 2 * 4096 >= len / 3 && bytes <= len / 3 + 2 * 4096);
            sum += bytes;
        }
        CHECK(sum == len && is.rail_bytes[3] == 0);
        CHECK(is.sent_bytes - was.sent_bytes == len && is.fetched_bytes == was.fetched_bytes);
        meet(&stage->there, 2 * (3 * i + 2));
        CHECK(filled(came + at, len, 2 * i + peer) && byte_at(came + at - 1) == before && byte_at(came + at + len) == after);
        memset(from, 0, 4 * LARGE);
        OK(weft_get_blocking(w, from + 5, on_node(ours, peer) + at, len));
        CHECK(filled(from + 5, len, 2 * i + me) && from[4] == 0 && from[len + 5] == 0);
        was = is;
        is = stats(w, peer);
        CHECK(is.fetched_bytes - was.fetched_bytes == len && is.sent_bytes == was.sent_bytes);
        CHECK(is.rail_bytes[0] + is.rail_bytes[1] + is.rail_bytes[2] == was.rail_bytes[0] + was.rail_bytes[1] + was.rail_bytes[2] + len);
        meet(&stage->there, 2 * (3 * i + 3));
    }
    weft_link_stats was = stats(w, peer); /* small operations, and those on memory outside the pool, use the first rail */
    uint8_t *outside = malloc(LARGE);
    CHECK(outside);
    fill(outside, LARGE, 99 + me);
    OK(weft_put_blocking(w, on_node(ours, peer), outside, LARGE));
    OK(weft_put_blocking(w, on_node(theirs, peer), from, (256 << 10) - 1));
    weft_link_stats is = stats(w, peer);
    CHECK(memcmp(was.rail_bytes, is.rail_bytes, sizeof is.rail_bytes) == 0);
    meet(&stage->done, 2);
    CHECK(filled(came, LARGE, 99 + peer));
    free(outside);
}

static void test_carry(void **state)
{
    (void)state;
    run(2, carry, shared_words(4096), NULL);
}

/* --- order, while a device is slow --- */

#define ROUNDS 12u

static void count_message(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                          void *arg)
{
    (void)w, (void)from, (void)header_len, (void)payload, (void)payload_len;
    uint64_t n;
    memcpy(&n, header, sizeof n);
    __atomic_store_n((uint64_t *)arg, n, __ATOMIC_RELEASE);
}

enum way { SIGNAL, FENCE_PUT, FENCE_MESSAGE, FENCE_ATOMIC, SMALL_FIRST, FLUSH, READ_FIRST, WAYS };

/* One round of node 0: writes data, then notifies node 1 in one of several ways. `from` has three parts. */
static void write_and_tell(weft_node *w, enum way way, uint64_t n, uint64_t seed, weft_gaddr words, weft_gaddr data, uint8_t *from)
{
    uint64_t *word = (void *)(from + LARGE);
    weft_op read;
    fill(from, LARGE, seed);
    *word = n;
    if (way == SMALL_FIRST) {
        OK(weft_put(w, words + 24, word, 8, NULL));
        OK(weft_fence(w, 1));
    }
    if (way == SIGNAL)
        OK(weft_put_signal(w, data, from, LARGE, words, 1, NULL));
    else
        OK(weft_put(w, data, from, LARGE, NULL));
    if (way != SIGNAL && way != SMALL_FIRST)
        OK(weft_fence(w, 1));
    if (way == FENCE_PUT)
        OK(weft_put(w, words + 8, word, 8, NULL));
    if (way == FENCE_MESSAGE)
        OK(weft_send(w, 1, 1, &n, sizeof n, NULL, 0, NULL));
    if (way == FENCE_ATOMIC)
        OK(weft_fetch_add(w, words + 16, 1, NULL, NULL));
    if (way == READ_FIRST) {
        fill(from + 2 * LARGE, LARGE, seed + 1000);
        OK(weft_get(w, from + LARGE, data, LARGE, &read));
        OK(weft_fence(w, 1));
        OK(weft_put(w, data, from + 2 * LARGE, LARGE, NULL));
        OK(weft_wait(w, &read, WEFT_TIMEOUT_DEFAULT));
        CHECK(filled(from + LARGE, LARGE, seed));
    }
    if (way == FLUSH || way == READ_FIRST)
        OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT));
}

/* Node 0 writes and notifies node 1, which then must find all bytes. */
static void order(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    uint32_t me = weft_rank(w);
    uint64_t told = 0;
    weft_gaddr all, source;
    OK(weft_handle(w, 1, count_message, &told));
    OK(weft_alloc(w, 2 * LARGE, &all));
    OK(weft_alloc(w, 3 * LARGE, &source));
    uint64_t *words = weft_ptr(w, all, 4096);
    uint8_t *data = weft_ptr(w, all + 4096, LARGE), *from = weft_ptr(w, source, 3 * LARGE);
    memset(words, 0, 4096);
    meet(&stage->here, 2);
    if (me == 0) {
        wait_for_rails(w, 1, source, 3);
        const char *late = getenv("LATE");
        CHECK(late);
        softverbs(late);
    }
    meet(&stage->there, 2);
    for (uint32_t round = 0; round < ROUNDS * WAYS; round++) {
        enum way way = (enum way)(round % WAYS);
        uint64_t n = round / WAYS + 1, seed = n * 10 + way;
        if (me == 0) {
            write_and_tell(w, way, n, seed, on_node(all, 1), on_node(all, 1) + 4096, from);
            if (way == FLUSH || way == READ_FIRST)
                atomic_store(&stage->turn, round);
        } else {
            int64_t end = now_ns() + patience_ns(60);
            uint64_t *last = (void *)(data + LARGE - 8), expected = (seed << 32) + LARGE - 8;
            for (bool seen = false; !seen;) {
                CHECK(now_ns() < end);
                weft_progress(w);
                seen = way == SIGNAL          ? word_at(&words[0]) == n
                       : way == FENCE_PUT     ? word_at(&words[1]) == n
                       : way == FENCE_MESSAGE ? __atomic_load_n(&told, __ATOMIC_ACQUIRE) == n
                       : way == FENCE_ATOMIC  ? word_at(&words[2]) == n
                       : way == SMALL_FIRST   ? word_at(last) == expected
                                              : atomic_load(&stage->turn) == round;
            }
            if (way == SMALL_FIRST)
                CHECK(word_at(&words[3]) == n);
            else
                CHECK(filled(data, LARGE, way == READ_FIRST ? seed + 1000 : seed));
        }
        if (me == 0)
            OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT)); /* the sources may be changed again */
        meet(&stage->done, 2 * (2 * round + 1));
        if (me == 1)
            wipe(data, LARGE);
        meet(&stage->done, 2 * (2 * round + 2));
    }
    if (me == 0)
        CHECK(stats(w, 1).rail_bytes[1] > ROUNDS * LARGE && stats(w, 1).rail_bytes[2] > ROUNDS * LARGE);
    meet(&stage->here, 4);
}

static void test_order(void **state)
{
    (void)state;
    for (int rail = 0; rail < 3; rail++) {
        static char late[3][64];
        snprintf(late[rail], sizeof late[rail], "LATE=fault add delay --device 0:sv%d --time 3ms", rail);
        run(2, order, shared_words(4096), (const char *const[]){late[rail], NULL});
    }
}

/* --- the choice of devices --- */

static void chosen(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr all;
    const char *rails = getenv("EXPECT_RAILS"), *devices = getenv("EXPECT_DEVICES");
    CHECK(rails && devices);
    uint32_t peer = 1 - weft_rank(w), n = (uint32_t)atoi(rails);
    OK(weft_alloc(w, 2 * LARGE, &all));
    meet(&stage->here, 2);
    wait_for_rails(w, peer, all, n);
    CHECK(strcmp(stats(w, peer).devices, devices) == 0);
    OK(weft_put_blocking(w, on_node(all, peer), weft_ptr(w, all, LARGE), LARGE));
    CHECK((stats(w, peer).rail_bytes[0] > 0) == (n > 1));
    meet(&stage->done, 2);
}

static void test_chosen(void **state)
{
    (void)state;
    static const char *const how[][5] = {
        {"WEFT_RAILS=1", "EXPECT_RAILS=1", "EXPECT_DEVICES=sv0", NULL},
        {"WEFT_RAILS=2", "EXPECT_RAILS=2", "EXPECT_DEVICES=sv0, sv1", NULL},
        {"WEFT_RAILS=sv2,sv0", "EXPECT_RAILS=2", "EXPECT_DEVICES=sv2, sv0", NULL},
        {"WEFT_RAILS=sv1", "EXPECT_RAILS=1", "EXPECT_DEVICES=sv1", NULL},
        {"WEFT_DEVICE=sv1", "EXPECT_RAILS=1", "EXPECT_DEVICES=sv1", NULL},
        {"WEFT_RAILS=3", "WEFT_DEVICE=sv1", "EXPECT_RAILS=3", "EXPECT_DEVICES=sv1, sv0, sv2", NULL},
        {"WEFT_RAILS=sv1,nowhere", "WEFT_LOG=error", "EXPECT_RAILS=1", "EXPECT_DEVICES=sv1", NULL},
    };
    for (size_t i = 0; i < sizeof how / sizeof how[0]; i++)
        run(2, chosen, shared_words(4096), how[i]);
}

/* All addresses are in one subnet, so they do not show which device is connected to which: weft tries. */
static void crossed(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr all;
    uint32_t peer = 1 - weft_rank(w);
    OK(weft_alloc(w, 2 * LARGE, &all));
    meet(&stage->here, 2);
    wait_for_rails(w, peer, all, 3);
    OK(weft_put_blocking(w, on_node(all, peer), weft_ptr(w, all, LARGE), LARGE));
    CHECK(stats(w, peer).rail_bytes[1] > 0 && stats(w, peer).rail_bytes[2] > 0);
    meet(&stage->done, 2);
}

static void test_crossed(void **state)
{
    (void)state;
    run(2, crossed, shared_words(4096), NULL);
}

/* The nodes have different numbers of devices; each of the two leads once. */
static void uneven(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr all;
    uint32_t me = weft_rank(w);
    OK(weft_alloc(w, 2 * LARGE, &all));
    meet(&stage->here, 3);
    for (uint32_t peer = 0; peer < 3; peer++) {
        if (peer == me)
            continue;
        wait_for_rails(w, peer, all, 2);
        OK(weft_put_blocking(w, on_node(all, peer), weft_ptr(w, all, LARGE), LARGE));
        CHECK(stats(w, peer).rail_bytes[0] + stats(w, peer).rail_bytes[1] + stats(w, peer).rail_bytes[2] == LARGE);
    }
    meet(&stage->done, 3);
}

static void test_uneven(void **state)
{
    (void)state;
    run(3, uneven, shared_words(4096), NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_carry),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_chosen),
    };
    const struct CMUnitTest only_crossed[] = {cmocka_unit_test(test_crossed)}, only_uneven[] = {cmocka_unit_test(test_uneven)};
    const char *which = argc > 1 ? argv[1] : "";
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    if (strcmp(which, "crossed") == 0)
        return cmocka_run_group_tests(only_crossed, NULL, NULL);
    if (strcmp(which, "uneven") == 0)
        return cmocka_run_group_tests(only_uneven, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
