/* SPDX-License-Identifier: MIT
 *
 * The operations between nodes: what they move, in what order, what they refuse. No test here depends on the transport; WEFT_TRANSPORT
 * chooses it. fabric_messages.c has the tests of messages.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "fabric/fabric.h"
#include "fabric_test.h"

/* --- put and get: every byte, and its neighbours --- */

static void put_get(weft_node *w, void *arg)
{
    (void)arg;
    static const size_t sizes[] = {
        0, 1, 2, 3, 7, 8, 9, 15, 16, 63, 64, 65, 255, 4095, 4096, 4097, 65536, 65537, 1u << 20, (1u << 20) + 3, (20u << 20) + 5};
    const size_t room = 34u << 20;
    uint32_t me = weft_rank(w), n = weft_size(w), to = (me + 1) % n;
    weft_gaddr area = symmetric_alloc(w, room);
    uint8_t *source = malloc(room), *back = malloc(room), *mine = weft_ptr(w, area, room);
    CHECK(source && back && mine);
    uint64_t seed = 42 + me;
    for (size_t i = 0; i < room; i++)
        source[i] = (uint8_t)random_next(&seed);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t shift = 0; shift<9; shift += sizes[s]> 100000 ? 4 : 1) {
            size_t len = sizes[s], at = 64 + shift;
            memset(mine, 0xee, len + 192);
            OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
            OK(weft_put_blocking(w, on_node(area, to) + at, source + (shift * 3) % 8, len));
            OK(weft_flush(w, to, WEFT_TIMEOUT_DEFAULT));
            memset(back, 0x11, len + 16);
            OK(weft_get_blocking(w, back + 8, on_node(area, to) + at, len));
            CHECK(memcmp(back + 8, source + (shift * 3) % 8, len) == 0);
            CHECK(back[7] == 0x11 && back[8 + len] == 0x11);
            OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
            for (size_t i = 0; i < 64; i++)
                CHECK(mine[i] == 0xee && mine[at + len + i] == 0xee);
            CHECK(mine[at - 1] == 0xee);
            OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
        }
    }
    free(source);
    free(back);
}

/* --- what a link counts --- */

static void on_nothing(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                       void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len, (void)arg;
}

/* Each byte of a put, a get or a message counts once, at the node that has begun it, in its direction. */
static void counts(weft_node *w, void *arg)
{
    static const size_t sizes[] = {8, 3000, 70000, (20u << 20) + 5};
    _Atomic uint32_t *met = arg;
    static uint8_t bytes[(20u << 20) + 5];
    weft_gaddr there = on_node(symmetric_alloc(w, sizeof bytes), 1);
    OK(weft_handle(w, 12, on_nothing, NULL));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_flush(w, 1 - weft_rank(w), WEFT_TIMEOUT_DEFAULT));
    meet(&met[0], 2); /* from here on node 1 begins nothing */
    for (size_t i = 0; weft_rank(w) == 0 && i < sizeof sizes / sizeof sizes[0]; i++) {
        weft_link_stats before = stats(w, 1), sent, got;
        bool none = !strcmp(before.transport, "shm");
        OK(weft_put_blocking(w, there, bytes, sizes[i]));
        OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT));
        sent = stats(w, 1);
        CHECK(sent.sent_bytes - before.sent_bytes == (none ? 0 : sizes[i]) && sent.fetched_bytes == before.fetched_bytes);
        OK(weft_get_blocking(w, bytes, there, sizes[i]));
        got = stats(w, 1);
        CHECK(got.fetched_bytes - sent.fetched_bytes == (none ? 0 : sizes[i]) && got.sent_bytes == sent.sent_bytes);
        if (sizes[i] <= WEFT_PAYLOAD_MAX) {
            OK(weft_send(w, 1, 12, bytes, 8, bytes, sizes[i], NULL)); /* lengths that need no padding, which rc counts, too */
            OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT));
            sent = stats(w, 1);
            CHECK(sent.sent_bytes - got.sent_bytes == (none ? 0 : 8 + sizes[i]) && sent.fetched_bytes == got.fetched_bytes);
        }
    }
    meet(&met[1], 2);
    weft_link_stats other = stats(w, 1 - weft_rank(w));
    CHECK(weft_rank(w) == 0 || other.fetched_bytes == 0); /* what only the peer has begun counts there */
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_counts(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, counts, shared_words(2 * sizeof(uint32_t))), 0);
}

/* A pointer into the pool has an address; a pointer to memory elsewhere has none. */
static void addresses(weft_node *w, void *arg)
{
    uint32_t me = weft_rank(w);
    weft_gaddr a = symmetric_alloc(w, 64);
    uint8_t *mine = weft_ptr(w, a, 64), *theirs = weft_ptr(w, on_node(a, 1 - me), 64);
    (void)arg;
    CHECK(mine && weft_addr(w, mine) == a && weft_addr(w, mine + 63) == a + 63);
    CHECK(weft_addr(w, &a) == WEFT_NULL && weft_addr(w, NULL) == WEFT_NULL);
    CHECK(weft_addr(w, mine - weft_gaddr_offset(a)) == WEFT_NULL); /* the start of the pool, which is never a valid address */
    CHECK(!theirs || weft_addr(w, theirs) == WEFT_NULL);           /* another node's pool that is mapped here */
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_addresses(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, addresses, NULL), 0);
}

static void test_put_get(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, put_get, NULL), 0);
    assert_int_equal(nodes_failed(1, put_get, NULL), 0);
}

/* --- atomics: none is lost, the owner's own included --- */

#define ADDS repeats(20000)

static void atomics(weft_node *w, void *arg)
{
    (void)arg;
    uint32_t me = weft_rank(w), n = weft_size(w);
    weft_gaddr words = on_node(symmetric_alloc(w, 64 * 4), 0);
    weft_gaddr sum = words, cas = words + 64, token = words + 128, seen = words + 192;
    uint64_t old, before = 0;
    for (uint32_t i = 0; i < ADDS; i++) {
        OK(weft_fetch_add_blocking(w, sum, 3, &old));
        CHECK(i == 0 || old > before); /* the word only grows */
        before = old;
        OK(weft_fetch_add(w, seen, 1, NULL, NULL));
    }
    for (uint32_t i = 0; i < ADDS / 4; i++) {
        uint64_t expected = 0;
        for (;;) {
            OK(weft_compare_swap_blocking(w, cas, expected, expected + 1, &old));
            if (old == expected)
                break;
            expected = old;
        }
    }
    /* A token of value 1 is passed around by swaps: at the end the sum of what all nodes hold is 1. */
    uint64_t mine = me == 0;
    for (uint32_t i = 0; i < ADDS / 4; i++)
        OK(weft_swap_blocking(w, token, mine, &mine));
    OK(weft_fetch_add_blocking(w, seen + 8, mine, NULL));
    OK(weft_flush(w, 0, WEFT_TIMEOUT_DEFAULT));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    uint64_t now[4];
    OK(weft_get_blocking(w, &now[0], sum, 8));
    OK(weft_get_blocking(w, &now[1], cas, 8));
    OK(weft_get_blocking(w, &now[2], token, 8));
    OK(weft_get_blocking(w, &now[3], seen, 8));
    CHECK(now[0] == (uint64_t)3 * ADDS * n);
    CHECK(now[1] == (uint64_t)(ADDS / 4) * n);
    CHECK(now[3] == (uint64_t)ADDS * n);
    uint64_t held;
    OK(weft_get_blocking(w, &held, seen + 8, 8));
    CHECK(held + now[2] == 1);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_atomics(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, atomics, NULL), 0);
}

/* --- operations with answers, after a fence, in both directions: no answer waits for another answer --- */

static void questions(weft_node *w, void *arg)
{
    (void)arg;
    const uint64_t rounds = repeats(2000);
    weft_gaddr words = symmetric_alloc(w, 128);
    uint32_t other = 1 - weft_rank(w);
    for (uint64_t i = 0; i < rounds; i++) {
        uint64_t before;
        OK(weft_fetch_add(w, on_node(words, other), 1, NULL, NULL));
        OK(weft_fence(w, other));
        OK(weft_fetch_add_blocking(w, on_node(words, other) + 64, 1, &before));
        CHECK(before == i);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    const uint64_t *mine = weft_ptr(w, on_node(words, weft_rank(w)), 128);
    CHECK(mine[0] == rounds && mine[8] == rounds);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_questions(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, questions, NULL), 0);
}

/* --- put_signal: the bytes before the word --- */

static void put_signal(weft_node *w, void *arg)
{
    (void)arg;
    enum { LEN = 1000 };
    const uint64_t rounds = repeats(3000);
    uint32_t me = weft_rank(w), n = weft_size(w), to = (me + 1) % n, from = (me + n - 1) % n;
    weft_gaddr area = symmetric_alloc(w, LEN + 64), ready = symmetric_alloc(w, 64), taken = symmetric_alloc(w, 64);
    uint8_t block[LEN], *mine = weft_ptr(w, area, LEN);
    for (uint64_t i = 1; i <= rounds; i++) {
        memset(block, (int)(i * 7 + me), sizeof block);
        OK(weft_put_signal(w, on_node(area, to), block, LEN, on_node(ready, to), 1, NULL));
        OK(weft_wait_until(w, on_node(ready, me), WEFT_GE, i, NULL, WEFT_TIMEOUT_DEFAULT));
        for (size_t k = 0; k < LEN; k++)
            CHECK(mine[k] == (uint8_t)(i * 7 + from));
        OK(weft_put_signal(w, 0, NULL, 0, on_node(taken, from), 1, NULL));
        OK(weft_wait_until(w, on_node(taken, me), WEFT_EQ, i, NULL, WEFT_TIMEOUT_DEFAULT));
    }
    CHECK(weft_put_signal(w, on_node(area, me), block, 8, on_node(ready, to), 1, NULL) == -EINVAL || n == 1);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_put_signal(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, put_signal, NULL), 0);
    assert_int_equal(nodes_failed(5, put_signal, NULL), 0);
}

/* --- large puts with signals, several under way: each word says that its own bytes are there, and after a fence all words are there --- */

static void put_signals(weft_node *w, void *arg)
{
    (void)arg;
    enum { AT_ONCE = 6, LEN = 40000 };
    const uint64_t rounds = repeats(300);
    uint32_t me = weft_rank(w), other = 1 - me;
    weft_gaddr area = symmetric_alloc(w, AT_ONCE * LEN), words = symmetric_alloc(w, (AT_ONCE + 2) * 64);
    weft_gaddr last = words + (uint64_t)AT_ONCE * 64, taken = last + 64;
    uint8_t *blocks = malloc((size_t)AT_ONCE * LEN), *mine = weft_ptr(w, on_node(area, me), AT_ONCE * LEN);
    const uint64_t *word = weft_ptr(w, on_node(words, me), AT_ONCE * 64);
    CHECK(blocks && mine && word);
    for (uint64_t i = 1; i <= rounds; i++) {
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            memset(blocks + (size_t)k * LEN, (int)(i * 7 + k * 31 + me), LEN);
            OK(weft_put_signal(w, on_node(area, other) + (uint64_t)k * LEN, blocks + (size_t)k * LEN, LEN,
                               on_node(words, other) + k * UINT64_C(64), 1, NULL));
        }
        OK(weft_fence(w, other));
        OK(weft_put_blocking(w, on_node(last, other), &i, sizeof i));
        for (uint32_t at = 0; at < AT_ONCE; at++) {
            uint32_t k = i % 2 ? at : AT_ONCE - 1 - at;
            if (at == 0 && i % 3 == 0) {
                OK(weft_wait_until(w, on_node(last, me), WEFT_GE, i, NULL, WEFT_TIMEOUT_DEFAULT));
                for (uint32_t each = 0; each < AT_ONCE; each++)
                    CHECK(__atomic_load_n(&word[(size_t)each * 8], __ATOMIC_ACQUIRE) == i);
            }
            OK(weft_wait_until(w, on_node(words, me) + k * UINT64_C(64), WEFT_GE, i, NULL, WEFT_TIMEOUT_DEFAULT));
            for (size_t b = 0; b < LEN; b += 97)
                CHECK(mine[(size_t)k * LEN + b] == (uint8_t)(i * 7 + k * 31 + other));
            CHECK(mine[(size_t)k * LEN + LEN - 1] == (uint8_t)(i * 7 + k * 31 + other));
        }
        OK(weft_put_signal(w, 0, NULL, 0, on_node(taken, other), 1, NULL));
        OK(weft_wait_until(w, on_node(taken, me), WEFT_GE, i, NULL, WEFT_TIMEOUT_DEFAULT));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    free(blocks);
}

static void test_put_signals(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, put_signals, NULL), 0);
}

/* --- a fence between a small operation and a large one, which some transports move in different ways --- */

static void fenced(weft_node *w, void *arg)
{
    (void)arg;
    enum { LEN = 64 << 10, AT = 40 << 10 };
    const uint64_t rounds = repeats(2000);
    uint32_t me = weft_rank(w), other = 1 - me;
    weft_gaddr area = symmetric_alloc(w, LEN);
    uint8_t *back = malloc(LEN);
    CHECK(back);
    for (uint64_t i = 1; i <= rounds; i++) {
        uint64_t seen;
        OK(weft_put(w, on_node(area, other) + AT, &i, sizeof i, NULL));
        OK(weft_fence(w, other));
        OK(weft_get_blocking(w, back, on_node(area, other), LEN));
        memcpy(&seen, back + AT, sizeof seen);
        CHECK(seen == i);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    free(back);
}

static void test_fenced(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, fenced, NULL), 0);
}

/* --- what is refused --- */

static void refusals(weft_node *w, void *arg)
{
    (void)arg;
    uint64_t word = 0;
    weft_op op;
    weft_gaddr a = symmetric_alloc(w, 4096);
    const weft_gaddr wrong[] = {
        WEFT_NULL,
        weft_gaddr_make(0, 0, 8),
        weft_gaddr_make(0, 0, 4095),
        weft_gaddr_make(1, 0, 4096), /* weft's own words */
        weft_gaddr_make(1, 0, 65528),
        weft_gaddr_make(2, 0, 65536),
        weft_gaddr_make(65535, 0, 65536),
        weft_gaddr_make(1, 1, 65536),
        weft_gaddr_make(1, 15, 65536),
        weft_gaddr_make(1, 0, (64u << 20) - 7),
        weft_gaddr_make(1, 0, 64u << 20),
        weft_gaddr_make(1, 0, WEFT_MAX_POOL_BYTES - 8),
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK(weft_put(w, wrong[i], &word, 8, &op) == -EFAULT);
        CHECK(weft_error()[0] != 0);
        CHECK(weft_get(w, &word, wrong[i], 8, &op) == -EFAULT);
        CHECK(weft_fetch_add(w, wrong[i], 1, &word, &op) == -EFAULT);
        CHECK(weft_compare_swap(w, wrong[i], 1, 2, &word, NULL) == -EFAULT);
        CHECK(weft_swap(w, wrong[i], 1, &word, NULL) == -EFAULT);
        CHECK(weft_put_signal(w, on_node(a, 1), &word, 8, wrong[i], 1, NULL) == -EFAULT);
        CHECK(weft_put_signal(w, wrong[i], &word, 8, on_node(a, 1), 1, NULL) == -EFAULT);
        CHECK(weft_ptr(w, wrong[i], 8) == NULL);
    }
    CHECK(weft_put(w, on_node(a, 1), &word, (size_t)-1, &op) == -EFAULT); /* the end of the range would overflow */
    CHECK(weft_get(w, &word, on_node(a, 1), 64u << 20, &op) == -EFAULT);
    CHECK(weft_ptr(w, on_node(a, 1), (size_t)-8) == NULL);
    CHECK(weft_fetch_add(w, on_node(a, 1) + 4, 1, &word, &op) == -EINVAL);
    CHECK(weft_wait_until(w, on_node(a, 1 - weft_rank(w)), WEFT_EQ, 0, NULL, 0) == -EINVAL);
    CHECK(weft_send(w, 2, 1, NULL, 0, NULL, 0, NULL) != 0);
    CHECK(weft_send(w, 1, WEFT_HANDLERS, NULL, 0, NULL, 0, NULL) == -EINVAL);
    uint8_t big[WEFT_PAYLOAD_MAX + 1] = {0};
    CHECK(weft_send(w, 1, 1, big, WEFT_HEADER_MAX + 1, NULL, 0, NULL) == -EMSGSIZE);
    CHECK(weft_send(w, 1, 1, NULL, 0, big, sizeof big, NULL) == -EMSGSIZE);
    CHECK(weft_handle(w, WEFT_HANDLERS, on_nothing, NULL) == -EINVAL);
    CHECK(weft_flush(w, 9, 0) != 0 && weft_fence(w, 9) != 0);
    CHECK(weft_free(w, on_node(a, 1 - weft_rank(w))) == -EFAULT);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (size_t i = 0; i < 4096; i++)
        CHECK(((uint8_t *)weft_ptr(w, on_node(a, weft_rank(w)), 4096))[i] == 0);
    int64_t start = now_ns();
    CHECK(weft_wait_until(w, on_node(a, weft_rank(w)), WEFT_NE, 0, &word, 30 * WEFT_MS) == -ETIMEDOUT);
    CHECK(now_ns() - start >= 30 * WEFT_MS && word == 0);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_refusals(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, refusals, NULL), 0);
}

/* --- threads: any may call anything --- */

#define THREADS       4u
#define THREAD_ROUNDS repeats(2000)
static struct {
    weft_node *w;
    weft_gaddr words;
    _Atomic uint64_t heard;
} shared;

static void on_thread(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                      void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len, (void)arg;
    shared.heard++;
}

static void *thread_main(void *arg)
{
    uint32_t number = *(uint32_t *)arg, n = weft_size(shared.w);
    uint64_t seed = number * 31 + weft_rank(shared.w);
    for (uint32_t i = 0; i < THREAD_ROUNDS; i++) {
        uint32_t node = (uint32_t)random_next(&seed) % n;
        weft_gaddr mine = on_node(shared.words, node) + 64 * (1 + weft_rank(shared.w) * THREADS + number);
        uint64_t v = random_next(&seed), back = 0;
        OK(weft_put_blocking(shared.w, mine, &v, 8));
        OK(weft_fetch_add_blocking(shared.w, on_node(shared.words, node), 1, NULL));
        OK(weft_send(shared.w, node, 3, &v, 8, NULL, 0, NULL));
        OK(weft_get_blocking(shared.w, &back, mine, 8));
        CHECK(back == v);
        weft_gaddr block;
        OK(weft_alloc(shared.w, 1 + random_next(&seed) % 5000, &block));
        OK(weft_free(shared.w, block));
    }
    return NULL;
}

static void threads(weft_node *w, void *arg)
{
    (void)arg;
    pthread_t t[THREADS];
    uint32_t numbers[THREADS];
    shared.w = w;
    shared.words = symmetric_alloc(w, 64 * (1 + THREADS * NODES_MAX));
    weft_gaddr sums = on_node(symmetric_alloc(w, 64), 0);
    OK(weft_handle(w, 3, on_thread, NULL));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t i = 0; i < THREADS; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&t[i], NULL, thread_main, &numbers[i]) == 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    for (uint32_t i = 0; i < weft_size(w); i++)
        OK(weft_flush(w, i, WEFT_TIMEOUT_DEFAULT));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    /* Every addition was counted, and every message was handled on some node. */
    int64_t end = now_ns() + 40 * WEFT_SECOND;
    uint64_t here, sum = 0, all = (uint64_t)weft_size(w) * THREADS * THREAD_ROUNDS;
    OK(weft_get_blocking(w, &here, on_node(shared.words, weft_rank(w)), 8));
    while (shared.heard < here && now_ns() < end)
        usleep(500);
    CHECK(shared.heard == here);
    OK(weft_fetch_add_blocking(w, sums, here, NULL));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_get_blocking(w, &sum, sums, 8));
    CHECK(sum == all);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_threads(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, threads, NULL), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_get),      cmocka_unit_test(test_atomics),     cmocka_unit_test(test_questions),
        cmocka_unit_test(test_put_signal),   cmocka_unit_test(test_messages),    cmocka_unit_test(test_handlers),
        cmocka_unit_test(test_late_handler), cmocka_unit_test(test_refusals),    cmocka_unit_test(test_threads),
        cmocka_unit_test(test_backpressure), cmocka_unit_test(test_put_signals), cmocka_unit_test(test_fenced),
        cmocka_unit_test(test_addresses),    cmocka_unit_test(test_counts),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
