/* SPDX-License-Identifier: MIT
 *
 * Links of the rc transport that have no room: for requests, for receives at the peer, and in the stages that all links share. Started by
 * over_softverbs.py; an argument names the tests to run ("test_un*"), else all.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

#include "rc_links_test.h"

/* --- a device that works: its requests wait for a peer that is in a handler and has no receives left --- */

#define SENDERS 4u

static void slow_handler(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                         void *arg)
{
    struct stage *stage = arg;
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    atomic_store(&stage->there, 1);
    usleep(6000000); /* longer than a queue pair may make no progress */
}

static void no_receives(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    static _Atomic uint32_t came;
    weft_gaddr mine;
    uint64_t v = weft_rank(w), back = 0;
    OK(weft_handle(w, 1, count_message, (void *)&came));
    OK(weft_handle(w, 2, slow_handler, stage));
    OK(weft_alloc(w, 4096, &mine));
    meet(&stage->here, SENDERS + 1);
    if (v != 1)
        OK(weft_put_blocking(w, on_node(mine, 1) + v * 8, &v, sizeof v));
    meet(&stage->here, 2 * (SENDERS + 1)); /* all are connected */
    if (v == 0)
        OK(weft_send(w, 1, 2, NULL, 0, NULL, 0, NULL));
    wait_for(&stage->there, 1);
    if (v == 1) { /* without a call of weft, handlers run on the progress thread */
        wait_for(&came, SENDERS * RC_WINDOW - 1);
    } else {
        for (uint32_t i = v == 0; i < RC_WINDOW; i++)
            OK(weft_send(w, 1, 1, NULL, 0, NULL, 0, NULL));
        OK(weft_get_blocking(w, &back, on_node(mine, 1) + v * 8, sizeof back));
        CHECK(back == v && stats(w, 1).breaks == 0);
    }
    meet(&stage->done, SENDERS + 1);
}

static void test_no_receives(void **state)
{
    (void)state;
    static const char *const settings[] = {"WEFT_LOG=error", "WEFT_LIVENESS=300ms", NULL};
    assert_int_equal(nodes_failed_with(SENDERS + 1, no_receives, shared_words(4096), settings), 0);
}

/* --- no room, and calls that do not wait for it (weft_put_nowait()) --- */

static void no_room(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr mine;
    OK(weft_alloc(w, 4096, &mine));
    meet(&stage->here, 2);
    if (weft_rank(w) == 0) {
        static uint64_t values[2000], back;
        int rc = 0, n = 0;
        weft_op op;
        for (uint64_t i = 0; i < 2000; i++)
            values[i] = i;
        OK(weft_put_blocking(w, on_node(mine, 1), values, 8));
        softverbs("fault pull 1:sv0");
        while (n < 2000 && (rc = weft_put_nowait(w, on_node(mine, 1), &values[n], 8, NULL)) == 0)
            n++;
        CHECK(rc == -EAGAIN && n > 0);
        memset(&op, 0x5a, sizeof op);
        const weft_op untouched = op;
        CHECK(weft_get_nowait(w, &back, on_node(mine, 1), 8, &op) == -EAGAIN);
        CHECK(memcmp(&op, &untouched, sizeof op) == 0);
        softverbs("fault plug 1:sv0");
        for (int64_t end = now_ns() + patience_ns(30); n < 2000 && now_ns() < end;) {
            rc = weft_put_nowait(w, on_node(mine, 1), &values[n], 8, NULL);
            CHECK(rc == 0 || rc == -EAGAIN);
            OK(weft_fence(w, 1));
            n += rc == 0;
        }
        OK(weft_flush(w, 1, patience_ns(30)));
        OK(weft_get_blocking(w, &back, on_node(mine, 1), 8));
        CHECK(n == 2000 && back == 1999);
        atomic_store(&stage->done, 1);
    }
    wait_for(&stage->done, 1);
}

static void test_no_room(void **state)
{
    (void)state;
    static const char *const settings[] = {"WEFT_LOG=error", "WEFT_RECONNECT=100s", NULL};
    int failed = nodes_failed_with(2, no_room, shared_words(4096), settings);
    softverbs("fault plug 1:sv0");
    assert_int_equal(failed, 0);
}

/* --- peers that cannot be reached hold stages that all links share, but never so many that the other links stop --- */

static void unreachable(weft_node *w, void *arg)
{
    enum { BYTES = (RC_STAGES + 8) * RC_STAGE_BYTES };
    struct stage *stage = arg;
    weft_gaddr there = symmetric_alloc(w, BYTES);
    meet(&stage->here, 4);
    if (weft_rank(w) == 0) {
        uint8_t *from = malloc(BYTES), *back = malloc(BYTES); /* outside the pool */
        weft_op put, get;
        CHECK(from && back);
        memset(from, 7, BYTES);
        memset(back, 1, BYTES);
        memset(weft_ptr(w, there, BYTES), 0, BYTES);
        for (uint32_t p = 1; p < 4; p++)
            OK(weft_put_blocking(w, on_node(there, p), from, 4096));
        softverbs("fault pull 1:sv0");
        softverbs("fault pull 2:sv0");
        OK(weft_put(w, on_node(there, 1), from, BYTES, &put));
        OK(weft_get(w, back, on_node(there, 2), BYTES, &get));
        for (int i = 0; i < 2; i++) { /* first while the requests are under way; then when the queue pairs have broken and the requests wait
                                         to be posted again */
            OK(weft_put_blocking(w, on_node(there, 3), from, BYTES));
            CHECK(weft_test(w, &put) == -EINPROGRESS && weft_test(w, &get) == -EINPROGRESS);
            for (int64_t end = now_ns() + patience_ns(20); (!stats(w, 1).breaks || !stats(w, 2).breaks) && now_ns() < end;)
                weft_progress(w);
        }
        CHECK(stats(w, 1).breaks && stats(w, 2).breaks);
        softverbs("fault plug 1:sv0");
        softverbs("fault plug 2:sv0");
        OK(weft_wait(w, &put, 100 * WEFT_SECOND));
        OK(weft_wait(w, &get, 100 * WEFT_SECOND));
        CHECK(back[0] == 7 && back[4095] == 7 && back[4096] == 0 && back[BYTES - 1] == 0);
        OK(weft_get_blocking(w, back, on_node(there, 1), BYTES));
        CHECK(memcmp(from, back, BYTES) == 0);
        free(from);
        free(back);
        atomic_store(&stage->done, 1);
    } else {
        wait_for(&stage->done, 1);
    }
}

static void test_unreachable(void **state)
{
    (void)state;
    static const char *const settings[] = {"WEFT_LOG=error", "WEFT_RECONNECT=100s", "WEFT_DEADLINE=20s", NULL};
    int failed = nodes_failed_with(4, unreachable, shared_words(4096), settings);
    softverbs("fault plug 1:sv0"); /* also if the test failed */
    softverbs("fault plug 2:sv0");
    assert_int_equal(failed, 0);
}

/* --- a link waits for a stage, which is returned while the progress thread sleeps: its request is posted at once, not after the sleep ---
 */

/* Takes all stages that are left; weft itself would give the link only half of them. */
static uint32_t take_all(struct rc_link *l, void *stages[RC_STAGES + 1])
{
    uint32_t n = 0;
    base_spin_lock(&l->lock);
    while ((stages[n] = rc_take_stage(l, false)) != NULL) {
        l->held[0] = 0;
        n++;
    }
    base_spin_unlock(&l->lock);
    return n;
}

static void give_all(struct rc_link *l, void *stages[], uint32_t n)
{
    l->held[0] = n;
    while (n > 0)
        rc_give_stage(l, stages[--n], false);
}

/* Fills a block, and puts it to both peers: then they are connected. */
static void connect_both(weft_node *w, weft_gaddr there, uint8_t from[4096])
{
    memset(from, 7, 4096);
    for (uint32_t p = 1; p < 3; p++)
        OK(weft_put_blocking(w, on_node(there, p), from, 4096));
}

static void given_back(weft_node *w, void *arg)
{
    enum { ROUNDS = 40 };
    struct stage *stage = arg;
    weft_gaddr there = symmetric_alloc(w, 4096);
    meet(&stage->here, 3);
    if (weft_rank(w) == 0) {
        struct rc_link *l = w->links[1].impl;
        void *stages[RC_STAGES + 1];
        uint8_t from[4096];
        weft_op op;
        connect_both(w, there, from);
        int64_t end =
            now_ns() +
            patience_ns(5); /* if each round waited for the progress thread's sleep, up to a second, this would take four times as long */
        for (int i = 0; i < ROUNDS; i++) {
            uint32_t n = take_all(l, stages);
            CHECK(n == RC_STAGES);
            OK(weft_put(w, on_node(there, 2), from, sizeof from, &op));
            while (!atomic_load(&w->bell->napping))
                usleep(1000);
            usleep(2000);                                              /* the progress thread has polled, and sleeps */
            CHECK(__atomic_load_n(&op.status, __ATOMIC_ACQUIRE) == 1); /* pending */
            give_all(l, stages, n);
            while (__atomic_load_n(&op.status, __ATOMIC_ACQUIRE) == 1)
                usleep(100);
            OK(weft_wait(w, &op, WEFT_TIMEOUT_DEFAULT));
        }
        CHECK(now_ns() < end);
        atomic_store(&stage->done, 1);
    } else {
        wait_for(&stage->done, 1);
    }
}

static void test_given_back(void **state)
{
    (void)state;
    assert_int_equal(
        nodes_failed_with(3, given_back, shared_words(4096), (const char *const[]){"WEFT_LOG=error", "WEFT_LIVENESS=100s", NULL}), 0);
}

/* --- a link waits for stages that its own requests hold, which requested no completion because there were plenty of stages --- */

static void own_stages(weft_node *w, void *arg)
{
    enum { ROUNDS = 10 };
    struct stage *stage = arg;
    weft_gaddr there = symmetric_alloc(w, 4096);
    meet(&stage->here, 3);
    if (weft_rank(w) == 0) {
        struct rc_link *l = w->links[1].impl;
        void *stages[RC_STAGES + 1];
        uint8_t from[4096];
        connect_both(w, there, from);
        int64_t end = now_ns() + patience_ns(5); /* the progress thread requests a completion after a second */
        for (int i = 0; i < ROUNDS; i++) {
            for (uint32_t k = 0; k < RC_SIGNAL_EVERY / 2; k++)
                OK(weft_put(w, on_node(there, 2), from, sizeof from, NULL));
            uint32_t n = take_all(l, stages);
            OK(weft_put_blocking(w, on_node(there, 2), from, sizeof from));
            give_all(l, stages, n);
        }
        CHECK(now_ns() < end);
        atomic_store(&stage->done, 1);
    } else {
        wait_for(&stage->done, 1);
    }
}

static void test_own_stages(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(3, own_stages, shared_words(4096), (const char *const[]){"WEFT_LOG=error", NULL}), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_receives), cmocka_unit_test(test_no_room),    cmocka_unit_test(test_unreachable),
        cmocka_unit_test(test_given_back),  cmocka_unit_test(test_own_stages),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
