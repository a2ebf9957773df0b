/* SPDX-License-Identifier: MIT
 *
 * A node that lies (liar.h) to two honest ones, about locks, barriers and exchanges. About queues: test_liar_queue.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "liar.h"
#include "sync/lock.h"

/* When the liar has left, the others lock and meet as usual. */
static void honest_end(weft_node *w, struct told *t, weft_gaddr word)
{
    while (weft_alive(w, LIAR))
        usleep(1000);
    int rc;
    do
        rc = weft_barrier(w, 100 * WEFT_SECOND);
    while (rc == -ECONNRESET);
    OK(rc);
    for (uint32_t i = 0; i < repeats(200); i++) {
        OK(weft_lock(w, word, 100 * WEFT_SECOND, NULL));
        OK(weft_unlock(w, word));
    }
    OK(weft_barrier(w, 100 * WEFT_SECOND));
    meet(&t->met[0], NODES - 1);
}

/* --- the lock's messages --- */

struct message_to {
    weft_node *w;
    struct told *t;
    uint32_t node;
};

static void tell_lock(const void *record, size_t bytes, const char *what, void *arg)
{
    struct message_to *to = arg;
    note(to->t, what);
    int rc = fab_send(to->w, to->node, SYNC_HANDLER_LOCK, record, bytes, NULL, 0, NULL);
    CHECK(rc == 0 || rc == -ETIMEDOUT || rc == -ECONNRESET);
}

static const struct lie_field LOCK_MESSAGE[] = {
    LIE_FIELD(struct lock_message, word),
    LIE_FIELD(struct lock_message, ticket),
    LIE_FIELD(struct lock_message, verb),
    LIE_FIELD(struct lock_message, flag),
};

/* Lies about a lock of the honest nodes, about a lock that nobody else uses, and as if the honest node waited for a lock of the liar. */
static void lie_by_message(weft_node *w, struct told *t, weft_gaddr area)
{
    for (uint32_t node = 0; node < NODES - 1; node++) {
        struct message_to to = {w, t, node};
        const weft_gaddr words[] = {on_node(area, 0), on_node(area, node) + 32, on_node(area, LIAR)};
        for (uint32_t verb = LOCK_REQUEST; verb <= LOCK_REFUSE; verb++)
            for (size_t i = 0; i < LIE_COUNT(words); i++) {
                struct lock_message truth = {.word = words[i], .ticket = 1, .verb = verb};
                lie_about(&truth, sizeof truth, LOCK_MESSAGE, LIE_COUNT(LOCK_MESSAGE), tell_lock, &to);
            }
        OK(weft_flush(w, node, WEFT_TIMEOUT_DEFAULT));
    }
}

static void lock_messages(weft_node *w, void *arg)
{
    struct told *t = arg;
    weft_gaddr area = symmetric_alloc(w, 64), word = on_node(area, 0);
    meet(&t->here, NODES);
    if (weft_rank(w) == LIAR) {
        lie_by_message(w, t, area);
        atomic_store(&t->over, 1);
        return;
    }
    /* Meanwhile the honest nodes use a lock of their own, which the liar may hold for a moment, because it may ask for it; and a lock in
       the liar's memory. */
    while (!t->over) {
        int rc = weft_lock(w, word, 100 * WEFT_SECOND, NULL);
        OK(rc);
        OK(weft_unlock(w, word));
        rc = weft_lock(w, on_node(area, LIAR), WEFT_MS, NULL);
        if (rc == 0)
            rc = weft_unlock(w, on_node(area, LIAR));
        CHECK(rc == 0 || rc == -ETIMEDOUT || rc == -ECONNRESET || rc == -EPERM || rc == -ENOMEM || rc == -ENOBUFS);
    }
    honest_end(w, t, word);
}

static void test_lock_messages(void **state)
{
    (void)state;
    run_with_liar(lock_messages);
}

/* --- the lock's word --- */

/* Sets a word in the same way in which a node writes such words into the pools of others. */
static int set_word(weft_node *w, weft_gaddr at, uint64_t value)
{
    return fab_system_set(w, weft_gaddr_node(at), weft_gaddr_offset(at), value, true);
}

static void lie_in_word(weft_node *w, struct told *t, weft_gaddr at, uint64_t truth)
{
    lie_about_word(&(struct word_to){w, t, at, set_word, 200}, truth);
    OK(weft_flush(w, weft_gaddr_node(at), WEFT_TIMEOUT_DEFAULT));
}

static void lock_word(weft_node *w, void *arg)
{
    struct told *t = arg;
    weft_gaddr area = symmetric_alloc(w, 64), word = on_node(area, 0);
    meet(&t->here, NODES);
    if (weft_rank(w) == LIAR) {
        for (uint32_t owner = 0; owner < NODES; owner++)
            for (uint64_t flags = 0; flags < 4; flags++)
                lie_in_word(w, t, word + 8, lock_value(owner, 5) | flags << 62);
        atomic_store(&t->over, 1);
        return;
    }
    while (!t->over) {
        OK(weft_lock(w, word, 100 * WEFT_SECOND, NULL));
        OK(weft_unlock(w, word));
        int rc = weft_lock(w, word + 8, WEFT_MS, NULL); /* the lock that the lies are about */
        CHECK(rc == 0 || rc == -ETIMEDOUT);
        rc = rc ? 0 : weft_unlock(w, word + 8);
        CHECK(rc == 0 || rc == -EPERM);
    }
    honest_end(w, t, word);
}

static void test_lock_word(void **state)
{
    (void)state;
    run_with_liar(lock_word);
}

/* --- requests without end --- */

static _Atomic uint32_t refused;

static void swallow(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    struct lock_message m;
    (void)w, (void)from, (void)header_len, (void)payload, (void)payload_len, (void)arg;
    memcpy(&m, header, sizeof m);
    if (m.verb == LOCK_REFUSE && m.flag)
        atomic_fetch_add(&refused, 1);
}

/* A home keeps a bounded amount for one node: of waiting requests, for one lock or for many, and of cancelled requests. */
static void endless(weft_node *w, void *arg)
{
    enum { MANY = 5000, WORDS = 8192 };
    struct told *t = arg;
    weft_gaddr area = symmetric_alloc(w, 64 + 8 * WORDS), word = on_node(area, 0), words = word + 64;
    if (weft_rank(w) == LIAR)
        OK(fab_handle(w, SYNC_HANDLER_LOCK, swallow, NULL));
    if (weft_rank(w) == 0)
        for (uint64_t i = 0; i < WORDS; i++)
            *(uint64_t *)weft_ptr(w, words + 8 * i, 8) = lock_value(1, 1); /* all of them are held */
    /* only for the thread sanitizer: handlers run with this lock held */
    base_spin_lock(&w->progress);
    base_spin_unlock(&w->progress);
    meet(&t->here, NODES);
    if (weft_rank(w) == LIAR) {
        for (uint64_t i = 0; i < WORDS; i++) {
            OK(lock_say(w, 0, LOCK_REQUEST, words + 8 * i, i, false));
            OK(lock_say(w, 0, LOCK_CANCEL, words + 8 * i, i, false));
        }
        for (uint64_t i = 0; i < MANY; i++) {
            OK(lock_say(w, 0, LOCK_REQUEST, words + 8 * (i % 2), i, false));
            OK(lock_say(w, 0, LOCK_REQUEST, words + 8 * (i % WORDS), i, false));
        }
        note(t, "too many requests");
        atomic_fetch_add(&t->lies, MANY);
        while (refused < 2 * MANY - LOCK_REQUESTS_MAX)
            usleep(1000);
        CHECK(refused == 2 * MANY - LOCK_REQUESTS_MAX);
        atomic_store(&t->over, 1);
        wait_for(&t->over, 2);
        return;
    }
    wait_for(&t->over, 1);
    if (weft_rank(w) == 0) {
        uint32_t queues = 0;
        CHECK(lock_home_requests(w->sync, &queues) == LOCK_REQUESTS_MAX && queues <= LOCK_REQUESTS_MAX);
        atomic_store(&t->over, 2);
    }
    honest_end(w, t, word);
}

static void test_endless(void **state)
{
    (void)state;
    run_with_liar(endless);
}

/* --- barrier and exchange: the words that a node writes into the pools of others --- */

static void barrier_words(weft_node *w, struct told *t, bool exchange)
{
    enum { LINE_WORDS = 8, GIVEN_WORDS = 2 * (1 + WEFT_EXCHANGE_WORDS) };
    uint64_t all[NODES_MAX];
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    meet(&t->here, NODES);
    if (weft_rank(w) == LIAR) {
        /* The set of the honest nodes, and the number of their next barrier: true values. */
        const struct sync *s = w->sync;
        for (uint32_t node = 0; node < NODES - 1; node++)
            for (uint32_t i = 0; i < (exchange ? GIVEN_WORDS : LINE_WORDS); i++) {
                uint64_t line = exchange ? sync_exchange_offset(NODES, LIAR) : sync_barrier_offset(LIAR);
                weft_gaddr at = weft_gaddr_make(node, 0, line + 8 * i);
                lie_in_word(w, t, at, s->set << 32 | (s->generation + 1));
                OK(set_word(w, at, 0));
            }
        atomic_store(&t->over, 1);
        return;
    }
    while (!t->over) {
        int rc = exchange ? weft_exchange(w, &(uint64_t){1}, 1, all, NULL, 2 * WEFT_MS) : weft_barrier(w, 2 * WEFT_MS);
        CHECK(rc == 0 || rc == -ETIMEDOUT || rc == -ECONNRESET);
    }
}

static void lie_in_barrier(weft_node *w, void *arg)
{
    weft_gaddr word = on_node(symmetric_alloc(w, 64), 0);
    barrier_words(w, arg, false);
    if (weft_rank(w) != LIAR)
        honest_end(w, arg, word);
}

static void lie_in_exchange(weft_node *w, void *arg)
{
    weft_gaddr word = on_node(symmetric_alloc(w, 64), 0);
    barrier_words(w, arg, true);
    if (weft_rank(w) != LIAR)
        honest_end(w, arg, word);
}

static void test_barrier_words(void **state)
{
    (void)state;
    run_with_liar(lie_in_barrier);
}

static void test_exchange_words(void **state)
{
    (void)state;
    run_with_liar(lie_in_exchange);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lock_messages), cmocka_unit_test(test_lock_word),      cmocka_unit_test(test_endless),
        cmocka_unit_test(test_barrier_words), cmocka_unit_test(test_exchange_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
