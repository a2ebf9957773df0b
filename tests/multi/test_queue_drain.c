/* SPDX-License-Identifier: MIT
 *
 * A drain while the queue changes: between its reads of other nodes' counters, tasks run that submit further tasks, and a node closes the
 * queue and opens it again. Node 0 drains. The other nodes act when the drain has reached a certain read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

#include "queue_test.h"

enum { PARENT = 1, CHILD, GRANDCHILD };

/* Shared by the nodes. */
struct course {
    _Atomic uint32_t open, submitted;
    _Atomic uint32_t run_parent, parent_ran, open_anew, opened;
};

/* used in node 0 only */
static struct course *course;
static weft_queue *queue;
static struct slot_remote overtaken;
static int (*load)(void *arg, uint32_t word, uint64_t *out, uint32_t count);
static uint32_t step;
static bool in_step;

static weft_queue *open_here(weft_node *w)
{
    weft_queue *q;
    OK(weft_queue_open(w, "work", &(weft_queue_config){.bytes = sizeof(weft_queue_config), .slots = 64}, &q));
    return q;
}

static struct queue_view *view_later_than(weft_queue *q, uint32_t node, uint32_t incarnation)
{
    struct queue_view *v;
    for (; !(v = queue_view_of(q, node)) || v->incarnation <= incarnation; usleep(100))
        weft_progress(q->w);
    return v;
}

/* Claim a task, submit its child, and complete it. */
static void run(weft_queue *q, uint64_t tag, uint64_t child)
{
    weft_lease c;
    weft_result r = {0};
    weft_task t = {.tag = child};
    CHECK(weft_claim(q, &c, 1, WEFT_TIMEOUT_DEFAULT) == 1 && c.task.tag == tag);
    CHECK(child == 0 || weft_submit(q, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
    CHECK(weft_complete(q, &c, &r, 1, NULL) == 1);
}

static void wait_for_completion(struct queue_view *v)
{
    for (uint64_t completed = 0; completed == 0; usleep(100))
        OK(load(v, SLOT_COMPLETED, &completed, 1));
}

/* Called before each read of the drain, and after it (`after`): makes the other nodes act. */
static void overtake(struct queue_view *v, uint32_t word, bool after)
{
    if (step == 0 && v->node == 2 && word == SLOT_COMPLETED && !after) {
        atomic_store(&course->run_parent, 1); /* the drain has read node 1's counter */
        wait_for(&course->parent_ran, 1);
        wait_for_completion(v);
        step++;
    } else if (step == 1 && v->node == 2 && word == SLOT_SUBMITTED && after) {
        atomic_store(&course->open_anew, 1); /* the drain has read all counters once */
        wait_for(&course->opened, 1);
        view_later_than(queue, 2, v->incarnation);
        step++;
    } else if (step == 2 && v->node == 1 && word == SLOT_COMPLETED && !after) {
        run(queue, CHILD, GRANDCHILD); /* the drain has read node 0's counter */
        wait_for_completion(v);
        step++;
    }
}

static int overtaken_load(void *arg, uint32_t word, uint64_t *out, uint32_t count)
{
    if (in_step)
        return load(arg, word, out, count);
    int64_t before = fab_limit(INT64_MAX); /* no deadline: the steps may take any time */
    in_step = true;
    overtake(arg, word, false);
    int rc = load(arg, word, out, count);
    overtake(arg, word, true);
    in_step = false;
    fab_limit(before);
    return rc;
}

static void drain_overtaken(void)
{
    queue_set_force(queue, QUEUE_REMOTE); /* also for queues that are opened later */
    overtaken = *queue_view_of(queue, 1)->shard.remote;
    load = overtaken.load;
    overtaken.load = overtaken_load;
    for (uint32_t i = 1; i <= 2; i++)
        queue_view_of(queue, i)->shard.remote = &overtaken;
    /* At each moment one of the three tasks is outstanding. */
    CHECK(weft_drain(queue, 0) == -ETIMEDOUT);
    CHECK(step == 3);
    run(queue, GRANDCHILD, 0);
    OK(weft_drain(queue, WEFT_TIMEOUT_DEFAULT));
}

static void node(weft_node *w, void *arg)
{
    course = arg;
    queue = open_here(w);
    for (uint32_t i = 0; i < weft_size(w); i++)
        view_later_than(queue, i, 0);
    meet(&course->open, 3);
    if (weft_rank(w) == 2) {
        weft_task t = {.tag = PARENT};
        CHECK(weft_submit(queue, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
    }
    meet(&course->submitted, 3);
    if (weft_rank(w) == 0) {
        drain_overtaken();
    } else if (weft_rank(w) == 1) {
        wait_for(&course->run_parent, 1);
        run(queue, PARENT, CHILD);
        atomic_store(&course->parent_ran, 1);
    } else {
        wait_for(&course->open_anew, 1);
        OK(weft_queue_close(queue));
        queue = open_here(w);
        atomic_store(&course->opened, 1);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_overtaken(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, node, shared_words(sizeof *course)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_overtaken)};
    setenv("WEFT_POOL", "16M", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
