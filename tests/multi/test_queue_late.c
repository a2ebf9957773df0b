/* SPDX-License-Identifier: MIT
 *
 * The queue when messages arrive late: messages about a queue that was closed and opened again, and nodes that are not known yet.
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

#include "queue_late_test.h"

static _Atomic uint32_t marks; /* messages of mark() handled by this process */

/* This handler keeps the node from handling any message until `go_on` is set. */
static void block(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    struct late *l = arg;
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    atomic_store(&l->in_handler, 1);
    wait_for(&l->go_on, 1);
}

/* When this message is handled, all messages that were sent before it have been handled. */
static void mark(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len, (void)arg;
    atomic_fetch_add(&marks, 1);
}

static void handlers(weft_node *w, struct late *l)
{
    OK(weft_handle(w, BLOCK, block, l));
    OK(weft_handle(w, MARK, mark, l));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    meet(&l->met[15], 2); /* wait until no thread is in the barrier any more, because a thread there might run block() */
}

/* --- a completion of a queue that is closed, when the same name is open again --- */
static void late_completion(weft_node *w, void *arg)
{
    struct late *l = arg;
    weft_task t = {.tag = 111};
    weft_lease c;
    weft_result r = {.status = 1234};
    handlers(w, l);
    weft_queue *q = open_slots(w, weft_rank(w) ? 64 : 0);
    wait_for_view(q, !weft_rank(w));
    if (weft_rank(w) == 0) {
        CHECK(weft_submit(q, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
        OK(weft_send(w, 0, BLOCK, NULL, 0, NULL, 0, NULL));
        wait_for(&l->in_handler, 1);
        meet_here(w, &l->met[0]);
        meet_here(w, &l->met[1]); /* the task is complete, and this node has not handled the message about it */
        OK(weft_queue_close(q));
        q = open_slots(w, 64);
        t.tag = 222;
        CHECK(weft_submit(q, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
        atomic_store(&l->go_on, 1);
        wait_for(&marks, 1);
        weft_done d;
        CHECK(weft_reap(q, &d, 1, 0) == -ETIMEDOUT);
        r.status = 5;
        while (weft_claim(q, &c, 1, WEFT_TIMEOUT_DEFAULT) == 1 && c.task.tag != 222)
            CHECK(c.task.tag == 111); /* from the shard that node 1 still has: this task may run twice */
        CHECK(weft_complete(q, &c, &r, 1, NULL) == 1);
        CHECK(weft_reap(q, &d, 1, WEFT_TIMEOUT_DEFAULT) == 1 && d.tag == 222 && d.status == 5);
        CHECK(weft_reap(q, &d, 1, 0) == -ENOENT);
    } else {
        meet_here(w, &l->met[0]);
        CHECK(weft_claim(q, &c, 1, WEFT_TIMEOUT_DEFAULT) == 1);
        CHECK(weft_complete(q, &c, &r, 1, NULL) == 1);
        OK(weft_send(w, 0, MARK, NULL, 0, NULL, 0, NULL));
        meet_here(w, &l->met[1]);
    }
    meet_here(w, &l->met[2]);
}

static void test_late_completion(void **state)
{
    (void)state;
    run_late(late_completion);
}

/* --- a node completes a task of a queue that its submitter has closed and opened again: the new queue gets no result of it --- */
static void own_completion(weft_node *w, void *arg)
{
    struct late *l = arg;
    weft_task t = {.tag = 111};
    weft_lease c[2];
    weft_result r = {.status = 1234};
    weft_done d;
    handlers(w, l);
    weft_queue *q = open_slots(w, weft_rank(w) ? 64 : 0);
    wait_for_view(q, !weft_rank(w));
    meet_here(w, &l->met[0]);
    if (weft_rank(w) == 0) {
        CHECK(weft_submit(q, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
        OK(weft_send(w, 1, BLOCK, NULL, 0, NULL, 0, NULL));
        wait_for(&l->in_handler, 1);
        OK(weft_queue_close(q)); /* node 1 does not handle the message about this */
        q = open_slots(w, 64);
        t.tag = 222;
        CHECK(weft_submit(q, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
        meet_here(w, &l->met[1]);
        wait_for_view(q, 1); /* node 1 asks for this node's shard, and with that message tells where its own is */
        for (int i = 0; i < 2; i++)
            CHECK(weft_claim(q, &c[i], 1, WEFT_TIMEOUT_DEFAULT) == 1);
        CHECK(c[0].task.tag == 222 && c[1].task.tag == 111); /* a node claims from its own shard first */
        CHECK(weft_complete(q, &c[1], &r, 1, NULL) == 1);
        CHECK(weft_reap(q, &d, 1, 0) == -ETIMEDOUT);
        r.status = 5;
        CHECK(weft_complete(q, &c[0], &r, 1, NULL) == 1);
        CHECK(weft_reap(q, &d, 1, WEFT_TIMEOUT_DEFAULT) == 1 && d.tag == 222 && d.status == 5);
        CHECK(weft_reap(q, &d, 1, 0) == -ENOENT);
    } else {
        meet_here(w, &l->met[1]);
        CHECK(weft_drain(q, 0) == -ETIMEDOUT);
    }
    meet_here(w, &l->met[2]);
    atomic_store(&l->go_on, 1);
    OK(weft_drain(q, WEFT_TIMEOUT_DEFAULT));
    meet(&l->met[3], 2);
}

static void test_own_completion(void **state)
{
    (void)state;
    run_late(own_completion);
}

/* --- the CLOSE of an earlier queue is handled when tasks of the next queue are in the shard, and one of them is claimed --- */
static void late_close(weft_node *w, void *arg)
{
    struct late *l = arg;
    weft_queue *q;
    weft_lease c[4];
    weft_result r[4] = {{0}};
    handlers(w, l);
    if (weft_rank(w) == 0) {
        q = open_slots(w, 0);
        OK(weft_send(w, 1, BLOCK, NULL, 0, NULL, 0, NULL));
        wait_for(&l->in_handler, 1);
        OK(weft_queue_close(q));
        q = open_slots(w, 0);
        meet_here(w, &l->met[0]);
        wait_for_view(q, 1);
        weft_task t[4] = {{.tag = 1}, {.tag = 2}, {.tag = 3}, {.tag = 4}};
        CHECK(weft_submit(q, t, 4, NULL, WEFT_TIMEOUT_DEFAULT) == 4);
        OK(weft_send(w, 1, MARK, NULL, 0, NULL, 0, NULL));
        meet_here(w, &l->met[1]);
        weft_done d[4];
        for (int n = 0; n < 4;) {
            int more = weft_reap(q, d, 4, WEFT_TIMEOUT_DEFAULT);
            CHECK(more > 0);
            n += more;
        }
        weft_queue_stats s;
        CHECK(weft_queue_stat(q, &s, sizeof s) == 0 && s.completed == 4 && s.resubmitted == 0 && s.duplicates == 0);
    } else {
        meet_here(w, &l->met[0]);
        q = open_slots(w, 64);
        meet_here(w, &l->met[1]);
        CHECK(weft_claim(q, c, 4, WEFT_TIMEOUT_DEFAULT) == 4);
        atomic_store(&l->go_on, 1);
        wait_for(&marks, 1);
        CHECK(weft_complete(q, c, r, 4, NULL) == 4);
    }
    meet_here(w, &l->met[2]);
}

static void test_late_close(void **state)
{
    (void)state;
    run_late(late_close);
}

/* --- a worker has closed the queue and opened it again: the CLOSE of the earlier queue ends only the earlier claims --- */
static void late_close_of_worker(weft_node *w, void *arg)
{
    struct late *l = arg;
    weft_queue *q;
    weft_lease c, again;
    weft_result r = {.status = 1};
    bool accepted = true;
    handlers(w, l);
    if (weft_rank(w) == 0) { /* the home, which handles no messages meanwhile */
        q = open_slots(w, 64);
        wait_for_view(q, 1);
        weft_task t[2] = {{.tag = 1}, {.tag = 2}};
        CHECK(weft_submit(q, t, 2, NULL, WEFT_TIMEOUT_DEFAULT) == 2);
        OK(weft_send(w, 0, BLOCK, NULL, 0, NULL, 0, NULL));
        wait_for(&l->in_handler, 1);
        meet_here(w, &l->met[0]);
        meet_here(w, &l->met[1]);
        atomic_store(&l->go_on, 1);
        wait_for(&marks, 1);
        meet_here(w, &l->met[2]);
        weft_done d[2];
        for (int n = 0; n < 2;) {
            int more = weft_reap(q, d, 2, WEFT_TIMEOUT_DEFAULT);
            CHECK(more > 0);
            n += more;
        }
        weft_queue_stats s;
        CHECK(weft_queue_stat(q, &s, sizeof s) == 0 && s.requeued == 1 && s.duplicates == 0);
    } else {
        q = open_slots(w, 0);
        wait_for_view(q, 0);
        meet_here(w, &l->met[0]);
        CHECK(weft_claim(q, &c, 1, WEFT_TIMEOUT_DEFAULT) == 1);
        weft_gaddr at = queue_view_of(q, 0)->at;
        OK(weft_queue_close(q));
        q = open_slots(w, 0);
        /* The home's answer has not come yet: claim from its shard directly, as a node would that knew the shard. */
        struct slot_claim taken;
        struct queue_view *v = queue_view_make(q, 0, 1, at, 64, false);
        CHECK(v && slot_claim(&v->shard, slot_user(1, q->incarnation), 2, &taken, 1, false) == 1);
        OK(weft_send(w, 0, MARK, NULL, 0, NULL, 0, NULL));
        meet_here(w, &l->met[1]);
        meet_here(w, &l->met[2]);
        wait_for_view(q, 0);
        again = (weft_lease){.submitter = 0, .private_ = {queue_slot_address(v, taken.slot), taken.word, taken.id, taken.submitter}};
        CHECK(weft_complete(q, &again, &r, 1, &accepted) == 1 && accepted);
        CHECK(weft_claim(q, &again, 1, WEFT_TIMEOUT_DEFAULT) == 1 && again.attempt == 1 && again.task.tag == c.task.tag);
        CHECK(weft_complete(q, &again, &r, 1, &accepted) == 1 && accepted);
        free(v);
    }
    meet_here(w, &l->met[3]);
}

static void test_late_close_of_worker(void **state)
{
    (void)state;
    run_late(late_close_of_worker);
}

/* --- the SHUTDOWN of an earlier queue --- */
static void late_shutdown(weft_node *w, void *arg)
{
    struct late *l = arg;
    handlers(w, l);
    weft_queue *q = open_slots(w, 64);
    wait_for_view(q, !weft_rank(w));
    meet_here(w, &l->met[0]);
    if (weft_rank(w) == 0) {
        OK(weft_send(w, 1, BLOCK, NULL, 0, NULL, 0, NULL));
        wait_for(&l->in_handler, 1);
        OK(weft_queue_shutdown(q));
        OK(weft_queue_close(q));
        OK(weft_send(w, 1, MARK, NULL, 0, NULL, 0, NULL));
        meet_here(w, &l->met[1]);
    } else {
        meet_here(w, &l->met[1]);
        OK(weft_queue_close(q));
        q = open_slots(w, 64);
        atomic_store(&l->go_on, 1);
        wait_for(&marks, 1);
        weft_lease c;
        CHECK(weft_claim(q, &c, 1, 0) == -ETIMEDOUT);
    }
    meet_here(w, &l->met[2]);
}

static void test_late_shutdown(void **state)
{
    (void)state;
    run_late(late_shutdown);
}

/* --- a drain while a node's shard is not known yet, because its HELLO was not handled, or it has closed and opened the queue again --- */
static void drain_of_the_unknown(weft_node *w, void *arg)
{
    struct late *l = arg;
    weft_queue *q = NULL;
    handlers(w, l);
    if (weft_rank(w) == 0) {
        q = open_slots(w, 64);
        OK(weft_drain(q, WEFT_TIMEOUT_DEFAULT)); /* node 1 has not opened the queue */
        OK(weft_send(w, 0, BLOCK, NULL, 0, NULL, 0, NULL));
        wait_for(&l->in_handler, 1);
        meet_here(w, &l->met[0]);
        meet_here(w, &l->met[1]); /* node 1 has opened the queue */
        CHECK(weft_drain(q, 0) == -ETIMEDOUT && weft_drain(q, WEFT_MS) == -ETIMEDOUT);
        atomic_store(&l->go_on, 1);
        CHECK(weft_drain(q, 50 * WEFT_MS) == -ETIMEDOUT);
        wait_for_view(q, 1);
        CHECK(weft_drain(q, 0) == -ETIMEDOUT);
        meet_here(w, &l->met[2]);
        OK(weft_drain(q, WEFT_TIMEOUT_DEFAULT));
        meet_here(w, &l->met[3]);
        /* Node 1's shard is known; then node 1 closes the queue and opens it again. */
        atomic_store(&l->in_handler, 0);
        atomic_store(&l->go_on, 0);
        OK(weft_send(w, 0, BLOCK, NULL, 0, NULL, 0, NULL));
        wait_for(&l->in_handler, 1);
        meet_here(w, &l->met[4]);
        meet_here(w, &l->met[5]);
        CHECK(weft_drain(q, 0) == -ETIMEDOUT && weft_drain(q, WEFT_MS) == -ETIMEDOUT);
        atomic_store(&l->go_on, 1);
        meet_here(w, &l->met[6]);
        OK(weft_drain(q, WEFT_TIMEOUT_DEFAULT));
    } else {
        uint8_t seen[3] = {0};
        weft_task t = numbered(1);
        meet_here(w, &l->met[0]);
        q = open_slots(w, 64);
        CHECK(weft_submit(q, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
        meet_here(w, &l->met[1]);
        meet_here(w, &l->met[2]);
        CHECK(work(q, 1, WEFT_TIMEOUT_DEFAULT) == 1 && reap(q, seen, 3, WEFT_TIMEOUT_DEFAULT) == 1);
        meet_here(w, &l->met[3]);
        meet_here(w, &l->met[4]);
        OK(weft_queue_close(q));
        q = open_slots(w, 64);
        t = numbered(2);
        CHECK(weft_submit(q, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
        meet_here(w, &l->met[5]);
        meet_here(w, &l->met[6]);
        CHECK(work(q, 1, WEFT_TIMEOUT_DEFAULT) == 1 && reap(q, seen, 3, WEFT_TIMEOUT_DEFAULT) == 1);
    }
    meet(&l->met[7], 2);
}

static void test_drain_of_the_unknown(void **state)
{
    (void)state;
    run_late(drain_of_the_unknown);
}

/* --- a drain asks a node, which answers with its shard and closes the queue before the drain looks again --- */
static void drain_and_close(weft_node *w, void *arg)
{
    struct late *l = arg;
    handlers(w, l);
    weft_queue *q = weft_rank(w) == 0 ? open_slots(w, 64) : NULL;
    for (uint32_t round = 0; round < 20; round++) {
        if (weft_rank(w) == 0) {
            atomic_store(&l->in_handler, 0);
            atomic_store(&l->go_on, 0);
            OK(weft_send(w, 0, BLOCK, NULL, 0, NULL, 0, NULL));
            wait_for(&l->in_handler, 1);
            meet_here(w, &l->met[round + 16]);
            OK(weft_drain(q, 60 * WEFT_SECOND));
        } else {
            meet_here(w, &l->met[round + 16]);
            q = open_slots(w, 64);
            usleep(10000); /* meanwhile node 1 is asked and answers; node 0 does not handle the answer yet */
            OK(weft_queue_close(q));
            atomic_store(&l->go_on, 1);
        }
        meet_here(w, &l->met[round + 40]);
    }
}

static void test_drain_and_close(void **state)
{
    (void)state;
    run_late(drain_and_close);
}

/* --- messages that found no room are sent after the queue was closed: they neither bring the closed shard back nor hide the next --- */
static void late_answer(weft_node *w, void *arg)
{
    struct late *l = arg;
    handlers(w, l);
    weft_queue *q = open_slots(w, 64);
    wait_for_view(q, !weft_rank(w));
    for (uint32_t round = 0; round < 2; round++) { /* first it stays closed, then it is opened again */
        if (weft_rank(w) == 0) {
            if (round == 1) {
                q = open_slots(w, 64);
                wait_for_view(q, 1);
            }
            atomic_store(&l->in_handler, 0);
            atomic_store(&l->go_on, 0);
            OK(weft_send(w, 0, BLOCK, NULL, 0, NULL, 0, NULL)); /* so that node 0's upkeep does not run */
            wait_for(&l->in_handler, 1);
            if (round == 0) {
                meet_here(w, &l->met[2]);
                meet_here(w, &l->met[3]);
            }
            queue_keep(q, 1, QUEUE_ANSWER, 0, NULL, 0, 0);
            OK(weft_queue_close(q));
            if (round == 1)
                open_slots(w, 64);
            atomic_store(&l->go_on, 1);
            for (uint32_t left = 1; left;) {
                base_spin_lock(&q->unsent_lock);
                left = queue_unsent_count(q);
                base_spin_unlock(&q->unsent_lock);
                usleep(1000);
            }
            OK(weft_send(w, 1, MARK, NULL, 0, NULL, 0, NULL));
            meet_here(w, &l->met[round]);
        } else {
            if (round == 0) { /* this queue does not know node 0's shard */
                meet_here(w, &l->met[2]);
                OK(weft_queue_close(q));
                q = open_slots(w, 64);
                meet_here(w, &l->met[3]);
            }
            wait_for(&marks, round + 1);
            struct queue_view *v = queue_view_of(q, 0);
            CHECK(round == 0 ? v == NULL : v && v->incarnation == 3);
            meet_here(w, &l->met[round]);
        }
    }
    meet(&l->met[7], 2);
}

static void test_late_answer(void **state)
{
    (void)state;
    run_late(late_answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_completion),      cmocka_unit_test(test_own_completion), cmocka_unit_test(test_late_close),
        cmocka_unit_test(test_late_close_of_worker), cmocka_unit_test(test_late_shutdown),  cmocka_unit_test(test_drain_of_the_unknown),
        cmocka_unit_test(test_drain_and_close),      cmocka_unit_test(test_late_answer),
    };
    setenv("WEFT_POOL", "16M", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
