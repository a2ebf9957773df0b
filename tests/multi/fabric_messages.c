/* SPDX-License-Identifier: MIT
 *
 * The tests of test_fabric.c that are about messages and their handlers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "fabric/fabric.h"
#include "fabric_test.h"

/* --- messages: once, in order, whole --- */

#define MESSAGES repeats(8000)

struct stream {
    uint64_t next[NODES_MAX], seeds[NODES_MAX], total, wrong;
};

static size_t message_fill(uint64_t *seed, uint8_t *payload)
{
    size_t len = random_next(seed) % 8 == 0 ? random_next(seed) % (WEFT_PAYLOAD_MAX + 1) : random_next(seed) % 64;
    uint8_t first = (uint8_t)random_next(seed);
    for (size_t i = 0; i < len; i++)
        payload[i] = (uint8_t)(first + i);
    return len;
}

static void on_stream(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                      void *arg)
{
    (void)w;
    struct stream *s = arg;
    uint8_t expected[WEFT_PAYLOAD_MAX];
    size_t len = message_fill(&s->seeds[from], expected);
    uint64_t number;
    memcpy(&number, header, 8);
    s->wrong += header_len != 8 || number != s->next[from]++ || payload_len != len || memcmp(payload, expected, len) != 0;
    __atomic_fetch_add(&s->total, 1, __ATOMIC_RELEASE); /* the main thread reads it */
}

static void messages(weft_node *w, void *arg)
{
    (void)arg;
    static struct stream s;
    uint32_t me = weft_rank(w), n = weft_size(w);
    for (uint32_t i = 0; i < n; i++)
        s.seeds[i] = i * 1000 + me;
    OK(weft_handle(w, 5, on_stream, &s));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    uint64_t seeds[NODES_MAX];
    uint8_t payload[WEFT_PAYLOAD_MAX];
    for (uint32_t i = 0; i < n; i++)
        seeds[i] = me * 1000 + i;
    for (uint64_t k = 0; k < MESSAGES; k++) {
        for (uint32_t i = 0; i < n; i++) {
            size_t len = message_fill(&seeds[i], payload);
            OK(weft_send(w, i, 5, &k, 8, payload, len, NULL));
        }
    }
    for (uint32_t i = 0; i < n; i++)
        OK(weft_flush(w, i, WEFT_TIMEOUT_DEFAULT));
    int64_t end = now_ns() + 40 * WEFT_SECOND;
    while (__atomic_load_n(&s.total, __ATOMIC_ACQUIRE) < (uint64_t)MESSAGES * n && now_ns() < end)
        weft_progress(w);
    CHECK(s.total == (uint64_t)MESSAGES * n);
    CHECK(s.wrong == 0);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

void test_messages(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, messages, NULL), 0);
    assert_int_equal(nodes_failed(4, messages, NULL), 0);
}

/* --- handlers answer although no thread of the program polls --- */

static _Atomic uint64_t answers;

static void on_ping(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)arg;
    uint64_t word = 0;
    weft_op op;
    if (weft_barrier(w, 0) != -EDEADLK || weft_close(w) != -EDEADLK || weft_get(w, &word, WEFT_NULL, 8, &op) != -EFAULT)
        _exit(9);
    if (weft_send(w, from, 7, header, header_len, payload, payload_len, NULL))
        _exit(8);
}

static void on_pong(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)arg;
    answers += payload_len == 5;
}

static void ping(weft_node *w, void *arg)
{
    (void)arg;
    weft_gaddr done = symmetric_alloc(w, 64);
    OK(weft_handle(w, 6, on_ping, NULL));
    OK(weft_handle(w, 7, on_pong, NULL));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) != 0) {
        /* This thread sleeps, so the progress thread answers. */
        OK(weft_wait_until(w, on_node(done, weft_rank(w)), WEFT_EQ, 1, NULL, WEFT_TIMEOUT_DEFAULT));
        return;
    }
    for (int i = 0; i < 200; i++) {
        uint64_t before = answers;
        OK(weft_send(w, 1, 6, "h", 1, "hello", 5, NULL));
        int64_t end = now_ns() + 40 * WEFT_SECOND;
        while (answers == before && now_ns() < end) {
            if (i % 3 == 0)
                weft_progress(w);
            else
                usleep(50);
        }
        CHECK(answers == before + 1);
    }
    OK(weft_put_signal(w, 0, NULL, 0, on_node(done, 1), 1, NULL));
}

void test_handlers(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, ping, NULL), 0);
}

/* A message whose handler is installed later is not lost, and does not overtake others. */
static void late_handler(weft_node *w, void *arg)
{
    (void)arg;
    static struct stream s;
    uint32_t from = 1 - weft_rank(w);
    s.seeds[from] = 77;
    uint64_t seed = 77;
    uint8_t payload[WEFT_PAYLOAD_MAX];
    for (uint64_t k = 0; k < 500; k++) {
        size_t len = message_fill(&seed, payload);
        OK(weft_send(w, from, 9, &k, 8, payload, len, NULL));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    usleep(20000);
    OK(weft_handle(w, 9, on_stream, &s));
    int64_t end = now_ns() + 40 * WEFT_SECOND;
    while (__atomic_load_n(&s.total, __ATOMIC_ACQUIRE) < 500 && now_ns() < end)
        usleep(1000);
    CHECK(s.total == 500 && s.wrong == 0);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

/* A message stays, even if its sender leaves before the handler is installed. And weft's own messages do not wait behind the program's. */
static void late_and_gone(weft_node *w, void *arg)
{
    (void)arg;
    static struct stream s;
    weft_gaddr lock = on_node(symmetric_alloc(w, 64), 0);
    s.seeds[1] = 5;
    if (weft_rank(w) == 0)
        OK(weft_lock(w, lock, WEFT_TIMEOUT_DEFAULT, NULL));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 1) {
        uint64_t seed = 5;
        uint8_t payload[WEFT_PAYLOAD_MAX];
        for (uint64_t k = 0; k < 300; k++) {
            size_t len = message_fill(&seed, payload);
            OK(weft_send(w, 0, 11, &k, 8, payload, len, NULL));
        }
        for (int i = 0; i < 3; i++) {
            OK(weft_lock(w, lock, WEFT_TIMEOUT_DEFAULT, NULL)); /* the lock is taken, so this sends a message to node 0 */
            OK(weft_unlock(w, lock));
        }
        return;
    }
    /* Wait until node 1 waits for the lock: the highest bit of the word shows that, see src/sync/lock.c. */
    const uint64_t *word = weft_ptr(w, lock, 8);
    while (!(__atomic_load_n(word, __ATOMIC_ACQUIRE) >> 63))
        usleep(1000);
    OK(weft_unlock(w, lock));
    while (weft_alive(w, 1))
        usleep(1000);
    CHECK(s.total == 0);
    OK(weft_handle(w, 11, on_stream, &s));
    int64_t end = now_ns() + 40 * WEFT_SECOND;
    while (__atomic_load_n(&s.total, __ATOMIC_ACQUIRE) < 300 && now_ns() < end)
        usleep(1000);
    CHECK(s.total == 300 && s.wrong == 0);
}

void test_late_handler(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, late_handler, NULL), 0);
    assert_int_equal(nodes_failed(2, late_and_gone, NULL), 0);
}

/* --- a receiver that does not accept work: the sender's call fails at its deadline, and other nodes are not disturbed --- */

static void slow_handler(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                         void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    const uint64_t *go = arg;
    while (!__atomic_load_n(go, __ATOMIC_ACQUIRE))
        usleep(500);
}

/* The queue to node 1 is full. In a handler, weft's own operations that must not wait get -EAGAIN; those of a program are queued all the
 * same. */
static void full_handler(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                         void *arg)
{
    (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    static const uint8_t more[WEFT_PAYLOAD_MAX];
    _Atomic bool *ran = arg;
    bool before = fab_nowait(true);
    int rc = 0;
    for (int i = 0; i < 2000 && rc == 0; i++)
        rc = weft_send(w, 1, 4, NULL, 0, more, sizeof more, NULL);
    fab_nowait(before);
    CHECK(rc == -EAGAIN && !before);
    OK(weft_send(w, 1, 4, NULL, 0, NULL, 0, NULL));
    OK(weft_send_nowait(w, 1, 4, NULL, 0, NULL, 0, NULL));
    *ran = true;
}

static void backpressure(weft_node *w, void *arg)
{
    (void)arg;
    _Atomic bool ran = false;
    weft_gaddr go = symmetric_alloc(w, 64);
    OK(weft_handle(w, 4, slow_handler, weft_ptr(w, on_node(go, weft_rank(w)), 8)));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 1) {
        OK(weft_wait_until(w, on_node(go, 1), WEFT_EQ, 1, NULL, 40 * WEFT_SECOND));
    } else {
        uint8_t payload[WEFT_PAYLOAD_MAX] = {0};
        int rc = 0;
        weft_op ops[2];
        OK(weft_send(w, 1, 4, NULL, 0, NULL, 0, &ops[0]));
        OK(weft_wait(w, &ops[0], WEFT_TIMEOUT_DEFAULT));
        for (int i = 0; i < 2000 && rc == 0; i++)
            rc = weft_send_nowait(w, 1, 4, NULL, 0, payload, sizeof payload, NULL);
        CHECK(rc == -EAGAIN);
        OK(weft_handle(w, 5, full_handler, &ran));
        OK(weft_send(w, 0, 5, NULL, 0, NULL, 0, NULL));
        (void)fab_nowait(true); /* a handler that this thread runs begins without it */
        while (!ran)
            weft_progress(w);
        (void)fab_nowait(false);
        rc = 0;
        const int64_t deadline_ns = w->options.deadline_ns;
        w->options.deadline_ns = 500 * WEFT_MS; /* for the operations that time out; all others may take as long as before */
        for (int i = 0; i < 2000 && rc == 0; i++)
            rc = weft_send(w, 1, 4, NULL, 0, payload, sizeof payload, NULL);
        w->options.deadline_ns = deadline_ns;
        CHECK(rc == -ETIMEDOUT);
        CHECK(weft_flush(w, 1, 10 * WEFT_MS) == -ETIMEDOUT);
        OK(weft_put_signal(w, 0, NULL, 0, on_node(go, 0), 1, NULL));
        OK(weft_send(w, 0, 4, NULL, 0, NULL, 0, NULL)); /* to oneself */
        OK(weft_put_signal(w, 0, NULL, 0, on_node(go, 1), 1, NULL));
        OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

void test_backpressure(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, backpressure, NULL), 0);
}
