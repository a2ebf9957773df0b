/* SPDX-License-Identifier: MIT
 *
 * Parts that only the rc transport has: pieces and stages, the edges of segments, invalid frames, fences between lanes.
 * Started by over_softverbs.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cluster_test.h"
#include "fabric/rc/rc.h"

static bool native; /* the profile claims that devices' atomics are atomic with the processor's */

/* --- memory outside the pool, of any length, is copied through stages: every byte is checked, and the statistics count it --- */

static void fill(uint8_t *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(i * 131u + (i >> 9) + seed);
}

static void outside(weft_node *w, void *arg)
{
    static const size_t lengths[] = {1, 7, 219, 220, 221, 4096, 65535, 65536, 65537, 300001, 9000000};
    (void)arg;
    weft_gaddr there, here; /* `there` is memory of the peer that only this node reads and writes; `here` is memory of this node that no
                               other node accesses */
    OK(weft_alloc(w, 16 << 20, &there));
    OK(weft_alloc(w, 9000, &here));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    uint32_t peer = 1 - weft_rank(w);
    uint8_t *out = malloc(10 << 20), *back = malloc(10 << 20);
    CHECK(out && back);
    weft_link_stats s;
    OK(weft_link_stat(w, peer, &s, sizeof s));
    CHECK(strcmp(s.transport, "rc") == 0 && s.staged_puts == 0 && s.staged_gets == 0);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t n = lengths[i], at = i * 13;
        fill(out, n, (unsigned)i + weft_rank(w));
        memset(back, 0xee, n + 1);
        OK(weft_put_blocking(w, on_node(there, peer) + at, out, n));
        OK(weft_get_blocking(w, back, on_node(there, peer) + at, n));
        CHECK(memcmp(out, back, n) == 0 && back[n] == 0xee);
    }
    OK(weft_link_stat(w, peer, &s, sizeof s));
    CHECK(s.staged_puts > 0 && s.staged_gets > 0);
    uint64_t puts = s.staged_puts, gets = s.staged_gets;
    OK(weft_put_blocking(w, on_node(there, peer), weft_ptr(w, here, 9000), 9000));
    OK(weft_get_blocking(w, weft_ptr(w, here, 9000), on_node(there, peer), 9000));
    OK(weft_link_stat(w, peer, &s, sizeof s));
    CHECK(s.staged_puts == puts && s.staged_gets == gets);
    CHECK(weft_link_stat(w, 2, &s, sizeof s) == -EFAULT);
    OK(weft_link_stat(w, weft_rank(w), &s, sizeof s));
    CHECK(strcmp(s.transport, "shm") == 0);
    weft_pool_stats pool;
    OK(weft_pool_stat(w, &pool, sizeof pool));
    CHECK(pool.regions_used > 0 && pool.regions_budget >= pool.regions_used);
    /* Puts without an op, then a flush: more of them at once than there are stages and slots. */
    for (int i = 0; i < 500; i++)
        OK(weft_put(w, on_node(there, peer) + (uint64_t)i * 5000, out + i, 5000, NULL));
    OK(weft_flush(w, peer, WEFT_TIMEOUT_DEFAULT));
    for (int i = 0; i < 500; i += 37) {
        OK(weft_get_blocking(w, back, on_node(there, peer) + (uint64_t)i * 5000, 5000));
        CHECK(memcmp(back, out + i, 5000) == 0);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    free(out);
    free(back);
}

static void test_outside(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, outside, NULL), 0);
}

/* --- an invalid frame: its sender is given up, and the others go on --- */

struct nonsense {
    struct rc_frame frame;
    _Atomic uint32_t here, given_up;
};

static void nonsense(weft_node *w, void *arg)
{
    struct nonsense *s = arg;
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    meet(&s->here, weft_size(w));
    if (weft_rank(w) == 1) {
        rc_frame_send(w->links[0].impl, &s->frame, NULL, NULL, false, NULL, NULL);
        wait_for(&s->given_up, 1); /* node 0 gives this node up because of that frame, node 2 because this process ends */
        _exit(0);                  /* without leaving, so that the others need not wait for this node */
    }
    int64_t until = base_deadline(40 * WEFT_SECOND);
    while (weft_alive(w, 1) && base_now_ns() < until)
        weft_progress(w);
    CHECK(!weft_alive(w, 1));
    if (weft_rank(w) == 0)
        s->given_up = 1;
    int rc;
    while ((rc = weft_barrier(w, WEFT_TIMEOUT_DEFAULT)) == -ECONNRESET) /* fails once; the next barrier is among the remaining nodes */
        ;
    OK(rc);
}

static void test_nonsense(void **state)
{
    (void)state;
    const uint64_t good = UINT64_C(1) << 20;
    const struct rc_frame frames[] = {
        {.kind = 99, .offset = good},
        {.kind = RC_ATOMIC, .what = 77, .offset = good},
        {.kind = RC_ATOMIC, .what = FAB_ADD, .offset = UINT64_C(1) << 43}, /* beyond the pool */
        {.kind = RC_ATOMIC, .what = FAB_ADD, .offset = good + 3},          /* not aligned to a word */
        {.kind = RC_ATOMIC, .what = FAB_ADD, .offset = 8},                 /* in the null page of the pool */
    };
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        int status[NODES_MAX];
        struct nonsense *shared = shared_words(4096);
        shared->frame = frames[i];
        shared->frame.token = RC_NO_ASK;
        nodes_run(3, nonsense, shared, (const char *const[]){"WEFT_LOG=error", NULL}, status);
        assert_int_equal(status[0], 0);
        assert_int_equal(status[2], 0);
    }
}

/* --- fence: operations before it become visible before those after it, whatever their kinds --- */

static void count_message(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                          void *arg)
{
    (void)w, (void)from, (void)header_len, (void)payload, (void)payload_len;
    uint64_t *words = arg, n;
    memcpy(&n, header, sizeof n);
    /* The sender started a put and an add, then a fence, then this message: so both must have arrived. */
    if (__atomic_load_n(&words[1], __ATOMIC_ACQUIRE) < n || __atomic_load_n(&words[0], __ATOMIC_ACQUIRE) < n)
        __atomic_fetch_add(&words[2], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&words[3], 1, __ATOMIC_RELEASE);
}

static void fences(weft_node *w, void *arg)
{
    enum { ROUNDS = 500 };
    (void)arg;
    weft_gaddr words;
    OK(weft_alloc(w, 64, &words));
    uint64_t *mine = weft_ptr(w, words, 64);
    memset(mine, 0, 64);
    OK(weft_handle(w, 3, count_message, mine));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 0) {
        for (uint64_t n = 1; n <= ROUNDS; n++) {
            OK(weft_put(w, on_node(words, 1), &n, sizeof n, NULL));
            OK(weft_fetch_add(w, on_node(words, 1) + 8, 1, NULL, NULL));
            OK(weft_fence(w, 1));
            OK(weft_send(w, 1, 3, &n, sizeof n, NULL, 0, NULL));
            OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT)); /* `n` may be changed again */
        }
    } else {
        int64_t until = base_deadline(40 * WEFT_SECOND);
        while (__atomic_load_n(&mine[3], __ATOMIC_ACQUIRE) < ROUNDS && base_now_ns() < until)
            weft_progress(w);
        CHECK(mine[3] == ROUNDS && mine[2] == 0);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_fences(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, fences, NULL), 0);
}

/* The home's processor executes an add, its device a put. Here the home's processor does not poll for a while: a put behind the add and a
 * fence must wait for that add. */
struct held {
    _Atomic uint32_t rounds, asked;
};

static void add_then_put(weft_node *w, void *arg)
{
    enum { ROUNDS = 20 };
    struct held *held = arg;
    weft_gaddr words = symmetric_alloc(w, 128);
    if (weft_rank(w) == 0) {
        for (uint64_t n = 1; n <= ROUNDS; n++) {
            wait_for(&held->rounds, (uint32_t)n);
            OK(weft_fetch_add(w, on_node(words, 1), 1, NULL, NULL));
            OK(weft_fence(w, 1));
            OK(weft_put(w, on_node(words, 1) + 64, &n, sizeof n, NULL));
            held->asked = (uint32_t)n;
            OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT));
        }
    } else {
        uint64_t *added = weft_ptr(w, on_node(words, 1), 128), *put = added + 8;
        struct rc *rc = w->rc;
        for (uint32_t n = 1; n <= ROUNDS; n++) {
            base_spin_lock(&rc->receiving);
            held->rounds = n;
            wait_for(&held->asked, n);
            usleep(1000); /* in this time the device executes everything that needs no help of the processor */
            if (!native)  /* the add needs this node's processor */
                CHECK(__atomic_load_n(put, __ATOMIC_ACQUIRE) == n - 1 && __atomic_load_n(added, __ATOMIC_ACQUIRE) == n - 1);
            base_spin_unlock(&rc->receiving);
            OK(weft_wait_until(w, on_node(words, 1) + 64, WEFT_EQ, n, NULL, WEFT_TIMEOUT_DEFAULT));
            CHECK(__atomic_load_n(added, __ATOMIC_ACQUIRE) == n);
        }
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_add_then_put(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, add_then_put, shared_words(4096)), 0);
}

/* A device may execute a write before an earlier read, unless the write has the fence bit; here it does. More gets are started than there
 * are stages, so some wait and are posted after weft_fence() was called. A put that is posted right after them must still have the fence
 * bit, otherwise these gets return the bytes of the put. */
static void gets_then_put(weft_node *w, void *arg)
{
    enum { ROUNDS = 10, GETS = RC_STAGES + 6 };
    static uint64_t got[GETS][32]; /* outside the pool */
    weft_op ops[GETS];
    (void)arg;
    weft_gaddr words = symmetric_alloc(w, sizeof got[0]);
    if (weft_rank(w) == 0) {
        struct rc_link *l = w->links[1].impl;
        OK(weft_get_blocking(w, got[0], on_node(words, 1), sizeof got[0])); /* makes the queue pair */
        softverbs("fault add overtake --time 500us --every 8");
        for (uint64_t n = 1; n <= ROUNDS; n++) {
            for (int i = 0; i < GETS; i++)
                OK(weft_get(w, got[i], on_node(words, 1), sizeof got[i], &ops[i]));
            OK(weft_fence(w, 1));
            int64_t until = base_deadline(patience_ns(10));
            while (__atomic_load_n(&l->lane[RC_MAIN].bytes, __ATOMIC_RELAXED) && base_now_ns() < until)
                weft_progress(w); /* until no get waits for a stage */
            OK(weft_put_blocking(w, on_node(words, 1), &n, sizeof n));
            for (int i = 0; i < GETS; i++) {
                OK(weft_wait(w, &ops[i], WEFT_TIMEOUT_DEFAULT));
                CHECK(got[i][0] == n - 1);
            }
        }
        softverbs("fault clear");
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_gets_then_put(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, gets_then_put, NULL), 0);
}

/* --- counters of requests to the peer's processor work for any number of requests since the last fence --- */

static void many_asks(weft_node *w, void *arg)
{
    const uint64_t steps[] = {UINT64_C(1) << 31, UINT64_C(1) << 31,
                              UINT64_C(1) << 31}; /* multiples of RC_ASKS, so that the tokens keep their sequence */
    (void)arg;
    weft_gaddr words = symmetric_alloc(w, 64);
    if (weft_rank(w) == 0) {
        struct rc_link *l = w->links[1].impl;
        uint64_t old = 0, done = 0, value = 5;
        OK(weft_swap_blocking(w, on_node(words, 1), 0, &old));
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
            base_spin_lock(&l->lock);
            CHECK(l->asked == l->answered);
            l->asked = l->answered = l->asked + steps[i]; /* sets the counters as if this many requests had been answered since the fence */
            base_spin_unlock(&l->lock);
            for (uint64_t k = 0; k < 3; k++, done++) {
                OK(weft_fetch_add_blocking(w, on_node(words, 1), 1, &old));
                CHECK(old == done);
                OK(weft_put_blocking(w, on_node(words, 1) + 8, &value, sizeof value));
                OK(weft_put_signal(w, on_node(words, 1) + 16, &value, sizeof value, on_node(words, 1) + 24, 1, NULL));
                OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT));
            }
            OK(weft_fence(w, 1));
            OK(weft_put_blocking(w, on_node(words, 1) + 8, &value, sizeof value));
        }
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_many_asks(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, many_asks, NULL), 0);
}

/* --- receives that links share: more frames come at once than there are receives; all arrive, and the number of receives grows --- */

struct burst {
    _Atomic uint32_t go, sent, heard;
};

static void on_burst(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    atomic_fetch_add(&((struct burst *)arg)->heard, 1);
}

static void bursts(weft_node *w, void *arg)
{
    struct burst *b = arg;
    uint32_t peers = weft_size(w) - 1;
    struct rc *rc = w->rc;
    OK(weft_handle(w, 5, on_burst, b));
    uint64_t value;
    weft_gaddr word = symmetric_alloc(w, 8);
    if (weft_rank(w) != 0)
        OK(weft_get_blocking(w, &value, on_node(word, 0), 8)); /* makes the queue pair */
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 0) {
        base_spin_lock(&rc->receiving); /* no thread polls for frames */
        uint32_t before = atomic_load(&rc->receives.count);
        b->go = 1;
        wait_for(&b->sent, peers);
        base_spin_unlock(&rc->receiving);
        int64_t until = base_deadline(20 * WEFT_SECOND);
        while (atomic_load(&b->heard) < peers * RC_WINDOW && base_now_ns() < until)
            weft_progress(w);
        CHECK(atomic_load(&b->heard) == peers * RC_WINDOW);
        base_spin_lock(&rc->receiving); /* the thread that polled has finished handling the frames */
        uint32_t after = atomic_load(&rc->receives.count);
        base_spin_unlock(&rc->receiving);
        if (rc->receives.srq) /* one chunk more, unless there were enough receives before; at most one chunk for each peer */
            CHECK((after > before || before * RC_RECEIVES > peers * RC_WINDOW) && after <= peers);
        else
            CHECK(after == peers);
    } else {
        wait_for(&b->go, 1);
        for (uint32_t i = 0; i < RC_WINDOW; i++)
            OK(weft_send(w, 0, 5, NULL, 0, NULL, 0, NULL));
        struct rc_link *l = w->links[0].impl;
        int64_t until = base_deadline(20 * WEFT_SECOND);
        while (__atomic_load_n(&l->lane[RC_MESSAGES].bytes, __ATOMIC_ACQUIRE) && base_now_ns() < until)
            weft_progress(w);
        CHECK(!__atomic_load_n(&l->lane[RC_MESSAGES].bytes, __ATOMIC_ACQUIRE)); /* all were sent */
        atomic_fetch_add(&b->sent, 1);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_bursts(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(6, bursts, shared_words(4096)), 0);
}

/* --- atomics: executed by the home's device if that is atomic with the home's processor, otherwise by the processor --- */

/* Two nodes add to and swap words of a third node, many at once and one by one. Meanwhile no processor accesses the words directly, because
 * softverbs' atomics are atomic only with respect to each other, whatever a profile claims. */
static void atomics(weft_node *w, void *arg)
{
    enum { MANY = 700, CHAIN = 60 };
    (void)arg;
    weft_gaddr words;
    OK(weft_alloc(w, 64, &words));
    uint64_t *mine = weft_ptr(w, words, 64), start = weft_rank(w) == 0 ? 5 : 0;
    memset(mine, 0, 64);
    mine[0] = start;
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) != 0) {
        uint64_t old[MANY], last = 0, seen;
        weft_link_stats s;
        for (int i = 0; i < MANY; i++)
            OK(weft_fetch_add(w, on_node(words, 0), 1, &old[i], NULL));
        OK(weft_flush(w, 0, WEFT_TIMEOUT_DEFAULT));
        for (int i = 0; i < MANY; i++) {
            CHECK(i == 0 ? old[i] >= 5 : old[i] > last); /* a node's adds are executed in order, so the value only grows */
            last = old[i];
        }
        for (int i = 0; i < CHAIN; i++) { /* compare-and-swaps bring the word to every value once */
            do
                OK(weft_compare_swap_blocking(w, on_node(words, 0) + 8, (uint64_t)i * 2 + (weft_rank(w) - 1),
                                              (uint64_t)i * 2 + weft_rank(w), &seen));
            while (seen != (uint64_t)i * 2 + (weft_rank(w) - 1));
        }
        OK(weft_link_stat(w, 0, &s, sizeof s));
        CHECK(native ? s.native_atomics >= MANY + CHAIN : s.native_atomics == 0);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 0)
        CHECK(__atomic_load_n(&mine[0], __ATOMIC_ACQUIRE) == 5 + 2 * MANY && __atomic_load_n(&mine[1], __ATOMIC_ACQUIRE) == 2 * CHAIN);
    /* A processor executes swaps in any case: with a fence between them, each finds the value that the one before it stored. */
    if (weft_rank(w) == 1) {
        uint64_t old[4];
        OK(weft_swap(w, on_node(words, 0) + 16, 10, &old[0], NULL));
        OK(weft_fence(w, 0));
        OK(weft_fetch_add(w, on_node(words, 0) + 16, 5, &old[1], NULL));
        OK(weft_fence(w, 0));
        OK(weft_swap(w, on_node(words, 0) + 16, 3, &old[2], NULL));
        OK(weft_fence(w, 0));
        OK(weft_compare_swap(w, on_node(words, 0) + 16, 3, 4, &old[3], NULL));
        OK(weft_flush(w, 0, WEFT_TIMEOUT_DEFAULT));
        CHECK(old[0] == 0 && old[1] == 10 && old[2] == 15 && old[3] == 3);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 0)
        CHECK(mine[2] == 4);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_atomics(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, atomics, NULL), 0);
}

/* A fence between put and atomic, and between atomic and put: node 2 reads node 0's memory, which node 1 changes. */
static void ordered_atomics(weft_node *w, void *arg)
{
    enum { ROUNDS = 300 };
    (void)arg;
    weft_gaddr words;
    OK(weft_alloc(w, 64, &words));
    uint64_t *mine = weft_ptr(w, words, 64);
    memset(mine, 0, 64);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 1) {
        uint64_t n[ROUNDS];
        for (uint64_t i = 0; i < ROUNDS; i++) {
            n[i] = i + 1;
            OK(weft_put(w, on_node(words, 0), &n[i], 8, NULL));
            OK(weft_fence(w, 0));
            OK(weft_fetch_add(w, on_node(words, 0) + 8, 1, NULL, NULL));
            OK(weft_fence(w, 0));
            OK(weft_put(w, on_node(words, 0) + 16, &n[i], 8, NULL));
            OK(weft_fence(w, 0));
        }
        OK(weft_flush(w, 0, WEFT_TIMEOUT_DEFAULT));
    } else if (weft_rank(w) == 2) {
        uint64_t first, second, third = 0;
        while (third < ROUNDS) { /* read the word that changes last first */
            OK(weft_get_blocking(w, &third, on_node(words, 0) + 16, 8));
            OK(weft_get_blocking(w, &second, on_node(words, 0) + 8, 8));
            OK(weft_get_blocking(w, &first, on_node(words, 0), 8));
            CHECK(first >= second && second >= third);
        }
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_ordered_atomics(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, ordered_atomics, NULL), 0);
}

/* A home that sleeps in weft_counter_wait() wakes up when any node adds to the counter, and usually before its own next check. */
static void counted(weft_node *w, void *arg)
{
    (void)arg;
    weft_gaddr words;
    OK(weft_alloc(w, 64, &words));
    memset(weft_ptr(w, words, 64), 0, 64);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (uint64_t i = 1; i <= 50; i++) {
        if (weft_rank(w) == 0) {
            OK(weft_counter_wait(w, words, i, WEFT_TIMEOUT_DEFAULT));
        } else {
            OK(weft_counter_add(w, on_node(words, 0), 1, NULL));
        }
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    }
}

static void test_counted(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, counted, NULL), 0);
}

/* --- stages that other links hold --- */

/* Puts to six peers, for which nobody waits, need more stages than there are. A put to another peer must not wait for their completions. */
static void stages_of_others(weft_node *w, void *arg)
{
    enum { PEERS = 6, EACH = 12, BYTES = 3000 };
    (void)arg;
    weft_gaddr there = symmetric_alloc(w, EACH * BYTES);
    uint8_t *from = malloc(EACH * BYTES);
    CHECK(from && PEERS * EACH > RC_STAGES && EACH < RC_SIGNAL_EVERY);
    fill(from, EACH * BYTES, 7);
    if (weft_rank(w) == 0) {
        for (uint32_t p = 1; p <= PEERS + 1; p++) /* connects, and requests a completion */
            OK(weft_put_blocking(w, on_node(there, p), from, BYTES));
        for (uint32_t p = 1; p <= PEERS; p++)
            for (unsigned i = 0; i < EACH; i++)
                OK(weft_put(w, on_node(there, p) + i * BYTES, from + i * BYTES, BYTES, NULL));
        weft_op op;
        OK(weft_put(w, on_node(there, PEERS + 1), from, BYTES, &op));
        OK(weft_wait(w, &op, patience_ns(1))); /* less than the two seconds after which all links request completions */
        for (uint32_t p = 1; p <= PEERS; p++)
            OK(weft_flush(w, p, WEFT_TIMEOUT_DEFAULT));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) > 0 && weft_rank(w) <= PEERS)
        CHECK(memcmp(weft_ptr(w, on_node(there, weft_rank(w)), EACH * BYTES), from, EACH * BYTES) == 0);
    free(from);
}

static void test_stages_of_others(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(8, stages_of_others, NULL), 0);
}

int main(int argc, char **argv)
{
    native = argc > 1 && strcmp(argv[1], "native") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outside),         cmocka_unit_test(test_nonsense),         cmocka_unit_test(test_fences),
        cmocka_unit_test(test_many_asks),       cmocka_unit_test(test_bursts),           cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_ordered_atomics), cmocka_unit_test(test_counted),          cmocka_unit_test(test_add_then_put),
        cmocka_unit_test(test_gets_then_put),   cmocka_unit_test(test_stages_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
