/* SPDX-License-Identifier: MIT
 *
 * Checks of the common operations between nodes, for tests in which the nodes are on different hosts. Every byte is checked. Collective;
 * `times` is the number of repetitions.
 */
#ifndef WEFT_PEER_CHECKS_H
#define WEFT_PEER_CHECKS_H

#include "queue_test.h"

#define PEER_CHECKS_BYTES (1u << 20)

static inline void peer_fill(uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(random_next(&seed) >> 32);
}

/* Puts and gets of many lengths, aligned and not, to all nodes at the same time. */
static inline void check_transfers(weft_node *w, uint32_t times)
{
    uint32_t me = weft_rank(w), n = weft_size(w);
    weft_gaddr area = symmetric_alloc(w, (size_t)n * PEER_CHECKS_BYTES);
    uint8_t *out = malloc(PEER_CHECKS_BYTES), *back = malloc(PEER_CHECKS_BYTES);
    uint64_t seed = me + 1;
    CHECK(out && back);
    for (uint32_t t = 0; t < times; t++) {
        size_t len = t % 3 == 0 ? 1 + random_next(&seed) % 300 : 1 + random_next(&seed) % (PEER_CHECKS_BYTES - 64);
        size_t skew = random_next(&seed) % 64;
        for (uint32_t i = 0; i < n; i++) {
            weft_gaddr at = on_node(area, i) + (uint64_t)me * PEER_CHECKS_BYTES + skew;
            peer_fill(out, len, seed + i);
            OK(weft_put_blocking(w, at, out, len));
            memset(back, 0, len);
            OK(weft_get_blocking(w, back, at, len));
            CHECK(memcmp(out, back, len) == 0);
        }
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_free(w, on_node(area, me)));
    free(out);
    free(back);
}

static inline void check_atomics(weft_node *w, uint32_t times)
{
    uint32_t n = weft_size(w);
    weft_gaddr words = symmetric_alloc(w, 256);
    uint64_t old, now[3];
    for (uint32_t t = 0; t < times; t++) {
        for (uint32_t i = 0; i < n; i++) {
            OK(weft_fetch_add_blocking(w, on_node(words, i), 3, &old));
            OK(weft_fetch_add(w, on_node(words, i) + 64, 1, NULL, NULL));
            uint64_t expected = 0;
            for (;; expected = old) {
                OK(weft_compare_swap_blocking(w, on_node(words, i) + 128, expected, expected + 1, &old));
                if (old == expected)
                    break;
            }
        }
    }
    for (uint32_t i = 0; i < n; i++)
        OK(weft_flush(w, i, WEFT_TIMEOUT_DEFAULT));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < 3; k++)
            OK(weft_get_blocking(w, &now[k], on_node(words, i) + 64 * (uint64_t)k, 8));
        CHECK(now[0] == (uint64_t)3 * times * n && now[1] == (uint64_t)times * n && now[2] == (uint64_t)times * n);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

struct peer_messages {
    uint64_t next[NODES_MAX]; /* number of the next message from each node */
    uint64_t wrong;
};

static inline void peer_message(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                                void *arg)
{
    struct peer_messages *m = arg;
    uint64_t number = 0, seed;
    (void)w;
    memcpy(&number, header, header_len < 8 ? header_len : 8);
    seed = number * 31 + from;
    bool right = header_len == 8 && number == m->next[from] && payload_len == number * 37 % 2000;
    for (size_t i = 0; i < payload_len && right; i++)
        right = ((const uint8_t *)payload)[i] == (uint8_t)(random_next(&seed) >> 32);
    m->wrong += !right;
    __atomic_store_n(&m->next[from], number + 1, __ATOMIC_RELEASE);
}

/* Messages arrive complete, in order, and once. */
static inline void check_messages(weft_node *w, uint32_t times)
{
    static struct peer_messages m;
    uint8_t payload[2000];
    uint32_t n = weft_size(w);
    memset(&m, 0, sizeof m);
    OK(weft_handle(w, 9, peer_message, &m));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (uint64_t t = 0; t < times; t++) {
        size_t len = t * 37 % 2000;
        peer_fill(payload, len, t * 31 + weft_rank(w));
        for (uint32_t i = 0; i < n; i++)
            OK(weft_send(w, i, 9, &t, sizeof t, payload, len, NULL));
    }
    for (uint32_t i = 0; i < n; i++) {
        int64_t end = now_ns() + 60 * WEFT_SECOND;
        while (__atomic_load_n(&m.next[i], __ATOMIC_ACQUIRE) < times) {
            CHECK(now_ns() < end);
            weft_progress(w);
        }
    }
    CHECK(m.wrong == 0);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

/* The signal is seen after the data. */
static inline void check_signals(weft_node *w, uint32_t times)
{
    uint32_t me = weft_rank(w), n = weft_size(w), next = (me + 1) % n, before = (me + n - 1) % n;
    weft_gaddr area = symmetric_alloc(w, 8192);
    uint8_t bytes[4096], *here = weft_ptr(w, on_node(area, me), 8192);
    for (uint32_t t = 1; t <= times; t++) {
        memset(bytes, (int)(t + me), sizeof bytes);
        OK(weft_put_signal(w, on_node(area, next), bytes, sizeof bytes, on_node(area, next) + 4096, 1, NULL));
        OK(weft_wait_until(w, on_node(area, me) + 4096, WEFT_GE, t, NULL, WEFT_TIMEOUT_DEFAULT));
        for (size_t i = 0; i < sizeof bytes; i++)
            CHECK(here[i] == (uint8_t)(t + before));
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    }
}

static inline void check_lock(weft_node *w, uint32_t times)
{
    weft_gaddr words = symmetric_alloc(w, 128), lock = on_node(words, 0), sum = lock + 64;
    uint64_t value;
    for (uint32_t t = 0; t < times; t++) {
        OK(weft_lock(w, lock, WEFT_TIMEOUT_DEFAULT, NULL));
        OK(weft_get_blocking(w, &value, sum, 8));
        value++;
        OK(weft_put_blocking(w, sum, &value, 8));
        OK(weft_unlock(w, lock));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_get_blocking(w, &value, sum, 8));
    CHECK(value == (uint64_t)times * weft_size(w));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

/* All nodes submit and all nodes work; every result comes once. */
static inline void check_queue(weft_node *w, uint32_t count)
{
    weft_queue *q = open_queue(w, 64, 0, false, QUEUE_SPREAD);
    uint8_t *seen = calloc(count, 1);
    uint64_t submitted = 0, reaped = 0;
    CHECK(seen);
    while (reaped < count) {
        if (submitted < count) {
            weft_task t = numbered(submitted);
            int rc = weft_submit(q, &t, 1, NULL, 0);
            CHECK(rc > 0 || rc == -ETIMEDOUT);
            submitted += rc > 0 ? (uint32_t)rc : 0;
        }
        work(q, 8, submitted < count ? 0 : WEFT_MS);
        reaped += reap(q, seen, count, 0);
    }
    bool drained = false;
    while (!drained) {
        work(q, 8, 0);
        int rc = weft_drain(q, 0);
        CHECK(rc == 0 || rc == -ETIMEDOUT);
        drained = rc == 0;
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_queue_close(q));
    free(seen);
}

static inline void check_everything(weft_node *w, uint32_t times)
{
    for (uint32_t i = 0; i < times; i++)
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    check_transfers(w, times / 10 + 1);
    check_atomics(w, times);
    check_messages(w, 3 * times);
    check_signals(w, times);
    check_lock(w, times);
    check_queue(w, 3 * times);
}

#endif
