/* SPDX-License-Identifier: MIT
 *
 * The queue when a node acts on what is no longer so: it was stopped and declared dead, its lease is over, its call has timed out and is
 * executed later, its queue is closed; and calls in a handler, which must not wait.
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

#include "queue_late_test.h"

/* --- a node that was declared dead while it was stopped continues, and submits before it notices that --- */
static void late_submitter(weft_node *w, void *arg)
{
    struct late *l = arg;
    weft_queue *q;
    OK(weft_queue_open(w, "work", &(weft_queue_config){.bytes = sizeof(weft_queue_config), .slots = 64, .lease_ns = 20 * WEFT_MS}, &q));
    wait_for_view(q, !weft_rank(w));
    uint32_t incarnation = queue_view_of(q, !weft_rank(w))->incarnation; /* read it before the other node may leave */
    meet_here(w, &l->met[0]);
    if (weft_rank(w) == 1)
        return;
    while (queue_view_of(q, 1)) { /* until this node has noticed that node 1 is gone */
        weft_progress(w);
        usleep(1000);
    }
    weft_task t = numbered(1);
    uint64_t id = 1, word;
    weft_lease c;
    weft_result r = {0};
    CHECK(slot_submit(&q->own->shard, slot_user(1, incarnation), 0, (const uint64_t *)(const void *)&t, &id, 1) == 1);
    CHECK(weft_claim(q, &c, 1, WEFT_TIMEOUT_DEFAULT) == 1 && c.submitter == 1);
    CHECK(weft_complete(q, &c, &r, 1, NULL) == 0);
    do {
        usleep(1000);
        OK(weft_get_blocking(w, &word, c.private_[0], sizeof word));
    } while (slot_status(word) != SLOT_FREE);
}

static void test_late_submitter(void **state)
{
    (void)state;
    run_late(late_submitter);
}

/* --- a renewal that is refused changes nothing, however often it is tried --- */
static void stale_renewal(weft_node *w, void *arg)
{
    (void)arg;
    weft_queue *q;
    OK(weft_queue_open(w, "work", &(weft_queue_config){.bytes = sizeof(weft_queue_config), .slots = 1, .lease_ns = 20 * WEFT_MS}, &q));
    weft_task t = {.tag = 111};
    weft_lease stale, next;
    weft_result r = {0};
    weft_done d;
    bool accepted;
    CHECK(weft_submit(q, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
    CHECK(weft_claim(q, &stale, 1, WEFT_TIMEOUT_DEFAULT) == 1);
    do { /* the lease ends; on a busy machine later leases end as well */
        CHECK(weft_claim(q, &next, 1, WEFT_TIMEOUT_DEFAULT) == 1);
    } while (weft_complete(q, &next, &r, 1, NULL) == 0);
    CHECK(weft_reap(q, &d, 1, WEFT_TIMEOUT_DEFAULT) == 1);
    queue_set_lease(q, 3600 * WEFT_SECOND);
    t.tag = 222;
    CHECK(weft_submit(q, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
    CHECK(weft_claim(q, &next, 1, WEFT_TIMEOUT_DEFAULT) == 1);
    weft_lease before = stale;
    for (int i = 0; i < 100; i++)
        CHECK(weft_renew(q, &stale) == -ESTALE && memcmp(&stale, &before, sizeof stale) == 0);
    CHECK(weft_complete(q, &stale, &r, 1, &accepted) == 0 && !accepted);
    CHECK(weft_renew(q, &next) == 0);
    CHECK(weft_complete(q, &next, &r, 1, &accepted) == 1 && accepted);
    CHECK(weft_reap(q, &d, 1, WEFT_TIMEOUT_DEFAULT) == 1 && d.tag == 222);
}

static void test_stale_renewal(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, stale_renewal, NULL), 0);
}

/* --- a lease that is shorter than the time between two checks by the home --- */
static void short_lease(weft_node *w, void *arg)
{
    (void)arg;
    weft_queue *q;
    OK(weft_queue_open(w, "work", &(weft_queue_config){.bytes = sizeof(weft_queue_config), .slots = 1u << 16, .lease_ns = WEFT_MS}, &q));
    weft_task t = {.tag = 1};
    weft_lease c;
    CHECK(weft_submit(q, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
    for (uint32_t attempt = 0; attempt < 3; attempt++)
        CHECK(weft_claim(q, &c, 1, patience_ns(20)) == 1 && c.attempt == attempt);
}

static void test_short_lease(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, short_lease, NULL), 0);
}

/* --- a home is stopped past the deadline and continues: compare-and-swaps whose calls have timed out are executed then --- */
static void stopped(weft_node *w, struct late *l, int64_t deadline_ns)
{
    stop_asleep(l->pid);
    w->options.deadline_ns = deadline_ns;
}

static void continued(weft_node *w, struct late *l, int64_t deadline_ns)
{
    CHECK(kill(l->pid, SIGCONT) == 0);
    w->options.deadline_ns = deadline_ns;
}

static void claim_again(weft_queue *q, weft_lease *c)
{
    CHECK(weft_claim(q, c, 1, patience_ns(30)) == 1);
}

static void complete_one(weft_queue *q, const weft_lease *c)
{
    weft_result r = {.status = 7};
    weft_done d;
    CHECK(weft_complete(q, c, &r, 1, NULL) == 1);
    CHECK(weft_reap(q, &d, 1, WEFT_TIMEOUT_DEFAULT) == 1 && d.status == 7 && d.tag == c->task.tag);
}

static void stopped_home(weft_node *w, void *arg)
{
    enum { SLOTS = 8 };
    struct late *l = arg;
    const int64_t usual = w->options.deadline_ns, soon = 200 * WEFT_MS;
    weft_queue *q;
    OK(weft_queue_open(
        w, "work",
        &(weft_queue_config){
            .bytes = sizeof(weft_queue_config), .slots = SLOTS, .lease_ns = 3600 * WEFT_SECOND, .submit_only = !weft_rank(w)},
        &q));
    wait_for_view(q, !weft_rank(w));
    if (weft_rank(w) == 1)
        l->pid = getpid();
    meet_here(w, &l->met[0]);
    if (weft_rank(w) == 0 && !queue_view_of(q, 1)->shard.mem) {
        weft_task t[SLOTS] = {{.tag = 1}};
        weft_lease c, before;
        weft_result r = {0};
        bool accepted = true;

        CHECK(weft_submit(q, t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
        claim_again(q, &c);
        stopped(w, l, soon);
        CHECK(weft_complete(q, &c, &r, 1, &accepted) == 0 && !accepted);
        continued(w, l, usual);
        claim_again(q, &c);
        CHECK(c.attempt > 0);
        stopped(w, l, soon);
        before = c;
        CHECK(weft_renew(q, &c) == -ETIMEDOUT && memcmp(&c, &before, sizeof c) == 0);
        continued(w, l, usual);
        OK(weft_renew(q, &c));
        stopped(w, l, soon);
        CHECK(weft_release(q, &c) == -ETIMEDOUT);
        continued(w, l, usual);
        claim_again(q, &c);
        complete_one(q, &c);

        CHECK(weft_submit(q, t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
        stopped(w, l, usual);
        CHECK(weft_claim(q, &c, 1, 0) == -ETIMEDOUT && weft_claim(q, &c, 1, soon) == -ETIMEDOUT);
        continued(w, l, usual);
        claim_again(q, &c);
        complete_one(q, &c);

        /* Tasks that weft_submit() accepted run once; tasks that it refused never run. */
        for (int round = 0; round < 5; round++) {
            stopped(w, l, usual);
            int n = weft_submit(q, t, SLOTS, NULL, round % 2 ? 0 : soon);
            CHECK(n == -ETIMEDOUT || (n > 0 && n <= SLOTS));
            continued(w, l, usual);
            for (int i = 0; i < n; i++) {
                claim_again(q, &c);
                complete_one(q, &c);
            }
            weft_done d;
            CHECK(weft_reap(q, &d, 1, 0) == -ENOENT);
        }
        for (uint32_t n = 0; n < SLOTS;) { /* all slots can be used again: none is lost */
            int more = weft_submit(q, t, SLOTS - n, NULL, patience_ns(30));
            CHECK(more > 0);
            n += (uint32_t)more;
        }
        for (int i = 0; i < SLOTS; i++) {
            claim_again(q, &c);
            complete_one(q, &c);
        }
        OK(weft_drain(q, WEFT_TIMEOUT_DEFAULT));
    }
    meet(&l->met[1], 2);
}

static void test_stopped_home(void **state)
{
    (void)state;
    run_late(stopped_home);
}

/* --- calls in a handler on a shard that cannot be reached without waiting --- */
struct in_handler {
    weft_queue *q;
    weft_lease c;
    int complete, renew, release;
    _Atomic uint32_t done;
};

static void use_claim(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                      void *arg)
{
    struct in_handler *h = arg;
    weft_result r = {0};
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    h->renew = weft_renew(h->q, &h->c);
    h->complete = weft_complete(h->q, &h->c, &r, 1, NULL);
    h->release = weft_release(h->q, &h->c);
    atomic_store(&h->done, 1);
}

static void in_a_handler(weft_node *w, void *arg)
{
    struct late *l = arg;
    struct in_handler h = {.q = open_slots(w, weft_rank(w) ? 64 : 0)};
    OK(weft_handle(w, MARK, use_claim, &h));
    wait_for_view(h.q, !weft_rank(w));
    if (weft_rank(w) == 0) {
        bool waits = !queue_view_of(h.q, 1)->shard.mem;
        weft_task t = {.tag = 1};
        CHECK(weft_submit(h.q, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1 && weft_claim(h.q, &h.c, 1, WEFT_TIMEOUT_DEFAULT) == 1);
        OK(weft_send(w, 0, MARK, NULL, 0, NULL, 0, NULL));
        wait_for(&h.done, 1);
        CHECK(h.renew == (waits ? -EDEADLK : 0) && h.complete == (waits ? -EDEADLK : 1));
        CHECK(h.release == (waits ? -EDEADLK : -ESTALE));
        if (waits)
            complete_one(h.q, &h.c);
    }
    meet(&l->met[0], 2);
}

static void test_in_a_handler(void **state)
{
    (void)state;
    run_late(in_a_handler);
}

/* --- calls on a closed queue, and closing a queue while a thread waits in a call on it --- */
static void *claimer(void *arg)
{
    weft_lease c;
    CHECK(weft_claim(arg, &c, 1, 600 * WEFT_SECOND) == -ESHUTDOWN);
    return NULL;
}

static void closed_twice(weft_node *w, void *arg)
{
    (void)arg;
    weft_queue *q = open_slots(w, 64), *next;
    pthread_t id;
    CHECK(pthread_create(&id, NULL, claimer, q) == 0);
    for (bool waits = false; !waits; usleep(1000)) {
        base_spin_lock(&q->waiting_lock);
        waits = q->waiting == 1;
        base_spin_unlock(&q->waiting_lock);
    }
    CHECK(weft_queue_close(q) == -EBUSY);
    OK(weft_queue_shutdown(q));
    pthread_join(id, NULL);
    OK(weft_queue_close(q));
    CHECK(weft_queue_close(q) == -EBADF);
    next = open_slots(w, 64);
    CHECK(next != q && weft_queue_close(q) == -EBADF);
    weft_task t = {.tag = 1};
    weft_lease c;
    weft_result r = {0};
    weft_done d;
    weft_queue_stats s;
    CHECK(weft_submit(next, &t, 1, NULL, 0) == 1 && weft_claim(next, &c, 1, 0) == 1);
    CHECK(weft_submit(q, &t, 1, NULL, 0) == -EBADF && weft_claim(q, &c, 1, 0) == -EBADF);
    CHECK(weft_complete(q, &c, &r, 1, NULL) == -EBADF && weft_renew(q, &c) == -EBADF && weft_release(q, &c) == -EBADF);
    CHECK(weft_reap(q, &d, 1, WEFT_TIMEOUT_DEFAULT) == -EBADF && weft_drain(q, WEFT_TIMEOUT_DEFAULT) == -EBADF);
    CHECK(weft_queue_shutdown(q) == -EBADF && weft_queue_stat(q, &s, sizeof s) == -EBADF);
    CHECK(weft_complete(next, &c, &r, 1, NULL) == 1 && weft_drain(next, WEFT_TIMEOUT_DEFAULT) == 0);
}

static void test_closed_twice(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, closed_twice, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_submitter), cmocka_unit_test(test_stale_renewal), cmocka_unit_test(test_short_lease),
        cmocka_unit_test(test_stopped_home),   cmocka_unit_test(test_in_a_handler),  cmocka_unit_test(test_closed_twice),
    };
    setenv("WEFT_POOL", "16M", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
