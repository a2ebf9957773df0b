/* SPDX-License-Identifier: MIT
 *
 * The slot protocol on plain memory: each transition, who may make it and who is refused; positions and full rings;
 * the home's upkeep; and threads as submitters, workers and home at the same time. The threads take the place of a cluster's processes, so
 * that the thread sanitizer can check them.
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "queue/slot.h"

#define NODES 16u

static struct slot_shard make(uint32_t slots)
{
    struct slot_shard s = {.slots = slots};
    s.mem = aligned_alloc(128, base_round_up(slot_shard_bytes(slots), 128));
    assert_non_null(s.mem);
    slot_format(&s);
    return s;
}

static void drop(struct slot_shard *s)
{
    free((void *)s->mem);
}

static int submit(const struct slot_shard *s, uint32_t node, uint64_t id)
{
    uint64_t task[SLOT_TASK_WORDS];
    for (uint32_t i = 0; i < SLOT_TASK_WORDS; i++)
        task[i] = id * 100 + i;
    return slot_submit(s, node, 0, task, &id, 1);
}

static int claim(const struct slot_shard *s, uint32_t node, struct slot_claim *c)
{
    int n = slot_claim(s, node, NODES, c, 1, false);
    for (uint32_t i = 0; n == 1 && i < SLOT_TASK_WORDS; i++)
        if (c->task[i] != c->id * 100 + i)
            return -EBADMSG; /* a torn copy */
    return n;
}

static uint64_t state_of(const struct slot_shard *s, uint32_t slot)
{
    return atomic_load(&s->mem[SLOT_HEADER_WORDS + slot * SLOT_WORDS]);
}

static void test_a_task_s_way(void **state)
{
    (void)state;
    struct slot_shard s = make(4);
    struct slot_claim c;
    uint64_t done;
    assert_int_equal(claim(&s, 2, &c), 0);
    assert_int_equal(submit(&s, 1, 77), 1);
    assert_int_equal(slot_backlog(&s), 1);
    assert_int_equal(claim(&s, 2, &c), 1);
    assert_int_equal(c.id, 77);
    assert_int_equal(c.submitter, 1);
    assert_int_equal(slot_attempt(c.word), 0);
    assert_int_equal(slot_backlog(&s), 0);
    assert_int_equal(slot_complete(&s, c.slot, c.word, &done), 0);
    assert_int_equal(slot_complete(&s, c.slot, c.word, &done), -ESTALE); /* a task can be completed only once */
    assert_int_equal(slot_free(&s, c.slot, c.word), -ESTALE);
    assert_int_equal(slot_free(&s, c.slot, done), 0);
    assert_int_equal(slot_free(&s, c.slot, done), -ESTALE);
    assert_int_equal(slot_status(state_of(&s, c.slot)), SLOT_FREE);
    assert_int_equal(state_of(&s, c.slot) >> 32, 5); /* five changes, five versions */
    drop(&s);
}

static void test_full_and_positions(void **state)
{
    (void)state;
    struct slot_shard s = make(4);
    struct slot_claim c[4];
    uint64_t done;
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(submit(&s, 0, i), 1);
    assert_int_equal(submit(&s, 0, 4), 0);
    assert_false(slot_room(&s));
    assert_int_equal(slot_claim(&s, 1, NODES, c, 4, true), 2); /* a thief takes only half of the tasks */
    assert_int_equal(submit(&s, 0, 4), 0);                     /* a claimed slot is not free */
    assert_int_equal(slot_complete(&s, c[1].slot, c[1].word, &done), 0);
    assert_int_equal(submit(&s, 0, 4), 0); /* a done slot is not free either */
    assert_int_equal(slot_free(&s, c[1].slot, done), 0);
    assert_int_equal(submit(&s, 0, 4), 1); /* submitting skips the slot at tail, which is in use */
    assert_int_equal(atomic_load(&s.mem[SLOT_TAIL]), 6);
    assert_int_equal(slot_claim(&s, 1, NODES, c + 1, 3, false), 3);
    assert_int_equal(c[1].id, 2);
    assert_int_equal(c[2].id, 3);
    assert_int_equal(c[3].id, 4);
    assert_int_equal(slot_claim(&s, 1, NODES, c, 4, false), 0);
    drop(&s);
}

static void test_batch_over_slots_in_use(void **state)
{
    (void)state;
    struct slot_shard s = make(8);
    struct slot_claim c[8];
    uint64_t tasks[8 * SLOT_TASK_WORDS] = {0}, ids[8] = {0, 1, 2, 3, 4, 5, 6, 7}, done;
    assert_int_equal(slot_submit(&s, 0, 3, tasks, ids, 8), 8);
    assert_int_equal(slot_claim(&s, 1, NODES, c, 8, false), 8);
    for (uint32_t i = 0; i < 8; i += 2) {
        assert_int_equal(slot_attempt(c[i].word), 3);
        assert_int_equal(slot_complete(&s, c[i].slot, c[i].word, &done), 0);
        assert_int_equal(slot_free(&s, c[i].slot, done), 0);
    }
    assert_int_equal(slot_submit(&s, 0, 0, tasks, ids, 8), 4);
    assert_int_equal(slot_claim(&s, 1, NODES, c, 8, false), 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(c[i].id, i);
    drop(&s);
}

/* A shard that is reached through a fabric: each call is a round trip. */
struct far {
    struct slot_shard home;
    uint32_t trips;
};

static int far_load(void *arg, uint32_t word, uint64_t *out, uint32_t count)
{
    struct far *f = arg;
    f->trips++;
    if (word + count > SLOT_HEADER_WORDS + f->home.slots * SLOT_WORDS)
        return -EFAULT;
    for (uint32_t i = 0; i < count; i++)
        out[i] = atomic_load(&f->home.mem[word + i]);
    return 0;
}

static int far_swap(void *arg, uint32_t word, uint64_t expected, uint64_t desired, uint64_t *old)
{
    struct far *f = arg;
    f->trips++;
    *old = expected;
    atomic_compare_exchange_strong(&f->home.mem[word], old, desired);
    return 0;
}

/* A task that is ready behind a long run of claimed ones, at the end of the ring and at its start: few round trips lead to it. */
static void test_few_round_trips(void **state)
{
    (void)state;
    enum { SLOTS = 128, USED = 100 };
    struct far f = {.home = make(SLOTS)};
    const struct slot_remote access = {.load = far_load, .swap = far_swap};
    static _Atomic uint64_t tried[SLOTS];
    const struct slot_shard there = {.slots = SLOTS, .remote = &access, .arg = &f, .incarnation = 1, .tried = tried};
    static struct slot_claim c[USED];
    uint64_t done;
    for (uint32_t round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < USED; i++)
            assert_int_equal(submit(&f.home, 0, i), 1);
        assert_int_equal(slot_claim(&f.home, 1, NODES, c, USED, false), USED);
        for (uint32_t i = 0; i < USED; i += USED - 1) /* makes the first and the last ready again, so claimers begin at the first */
            assert_int_equal(slot_release(&f.home, c[i].slot, c[i].word), 0);
        for (uint32_t i = 0; i < USED; i += USED - 1) {
            struct slot_claim far;
            f.trips = 0;
            assert_int_equal(slot_claim(&there, 2, NODES, &far, 1, true), 1);
            assert_int_equal(far.id, i);
            for (uint32_t k = 0; k < SLOT_TASK_WORDS; k++)
                assert_int_equal(far.task[k], i * 100 + k);
            assert_in_range(f.trips, 1, 16);
            c[i].word = far.word;
        }
        assert_int_equal(slot_claim(&there, 2, NODES, &(struct slot_claim){0}, 1, true), 0);
        for (uint32_t i = 0; i < USED; i++) {
            assert_int_equal(slot_complete(&f.home, c[i].slot, c[i].word, &done), 0);
            assert_int_equal(slot_free(&f.home, c[i].slot, done), 0);
        }
    }
    drop(&f.home);
}

static void test_stale_owner(void **state)
{
    (void)state;
    struct slot_shard s = make(4);
    struct slot_watch watch = {.word = calloc(4, 8), .since = calloc(4, 8)};
    struct slot_claim old, c;
    uint64_t now;
    assert_int_equal(submit(&s, 0, 5), 1);
    assert_int_equal(claim(&s, 1, &old), 1);
    assert_int_equal(slot_expire(&s, &watch, 1000, 1000, 100), 0); /* the lease is seen for the first time */
    assert_int_equal(slot_expire(&s, &watch, 1099, 1099, 100), 0);
    assert_int_equal(slot_renew(&s, old.slot, old.word, &old.word), 0);
    assert_int_equal(slot_expire(&s, &watch, 1100, 1100, 100), 0); /* the lease was renewed, so it counts as new */
    assert_int_equal(slot_expire(&s, &watch, 1120, 1500, 100), 0); /* the home itself was stopped, so only 20 of the elapsed time counts */
    assert_int_equal(slot_expire(&s, &watch, 1579, 1579, 100), 0);
    assert_int_equal(slot_expire(&s, &watch, 1580, 1580, 100), 1);
    assert_int_equal(slot_backlog(&s), 1); /* head points to the slot again */
    assert_int_equal(slot_complete(&s, old.slot, old.word, &now), -ESTALE);
    assert_int_equal(claim(&s, 1, &c), 1); /* the same node claims it again */
    assert_int_equal(slot_attempt(c.word), 1);
    assert_int_equal(slot_complete(&s, old.slot, old.word, &now), -ESTALE);
    assert_int_equal(slot_renew(&s, old.slot, old.word, &now), -ESTALE);
    assert_int_equal(slot_release(&s, old.slot, old.word), -ESTALE);
    assert_int_equal(slot_release(&s, c.slot, c.word), 0);
    assert_int_equal(claim(&s, 3, &c), 1);
    assert_int_equal(slot_attempt(c.word), 2);
    assert_int_equal(slot_complete(&s, c.slot, c.word, &now), 0);
    assert_int_equal(slot_expire(&s, &watch, 9999, 9999, 100), 0); /* a done task has no lease */
    assert_int_equal(slot_free(&s, c.slot, now), 0);
    assert_int_equal(slot_expire(&s, &watch, 19999, 19999, 100), 0);
    assert_true(watch.empty);
    free(watch.word);
    free(watch.since);
    drop(&s);
}

/* The home checks a long ring less than once in two leases, and a busy home is late each time: leases still end. */
static void test_looks_far_apart(void **state)
{
    (void)state;
    for (int64_t late = 0; late <= 1000; late += 1000) {
        struct slot_shard s = make(4);
        struct slot_watch watch = {.word = calloc(4, 8), .since = calloc(4, 8)};
        struct slot_claim c;
        uint32_t looks = 0;
        assert_int_equal(submit(&s, 0, 5), 1);
        assert_int_equal(claim(&s, 1, &c), 1);
        for (int64_t due = 1000; slot_expire(&s, &watch, due, due + late, 100) == 0; due += late + (late ? 25 : 300))
            assert_in_range(++looks, 1, 5);
        assert_int_equal(looks, late ? 4 : 1);
        free(watch.word);
        free(watch.since);
        drop(&s);
    }
}

static void test_nodes_gone(void **state)
{
    (void)state;
    struct slot_shard s = make(8);
    struct slot_claim c;
    uint64_t done;
    assert_int_equal(submit(&s, 1, 10), 1); /* claimed by 5 */
    assert_int_equal(submit(&s, 1, 11), 1); /* done by 5 */
    assert_int_equal(submit(&s, 2, 12), 1); /* claimed by 6, of 2 */
    assert_int_equal(submit(&s, 2, 13), 1); /* ready, of 2 */
    assert_int_equal(claim(&s, 5, &c), 1);
    assert_int_equal(claim(&s, 5, &c), 1);
    assert_int_equal(slot_complete(&s, c.slot, c.word, &done), 0);
    assert_int_equal(claim(&s, 6, &c), 1);
    /* Node 2 dies while it writes into slot 4. */
    atomic_store(&s.mem[SLOT_HEADER_WORDS + 4 * SLOT_WORDS], slot_next(0, 2, 0, SLOT_WRITING));
    assert_int_equal(slot_gone(&s, 2), 0);
    for (uint32_t i = 2; i < 5; i++)
        assert_int_equal(slot_status(state_of(&s, i)), SLOT_FREE);
    assert_int_equal(slot_complete(&s, c.slot, c.word, &done), -ESTALE);
    assert_int_equal(slot_gone(&s, 5), 2);
    assert_int_equal(claim(&s, 6, &c), 1);
    assert_int_equal(c.id, 10);
    assert_int_equal(claim(&s, 6, &c), 1);
    assert_int_equal(c.id, 11);
    assert_int_equal(slot_attempt(c.word), 1);
    assert_int_equal(claim(&s, 6, &c), 0);
    drop(&s);
}

/* A node has died after it made a slot ready, and before it lowered `head`: the home's upkeep finds the slot. */
static void test_ready_behind_head(void **state)
{
    (void)state;
    struct slot_shard s = make(4);
    struct slot_watch watch = {.word = calloc(4, 8), .since = calloc(4, 8)};
    struct slot_claim c;
    assert_int_equal(submit(&s, 0, 1), 1);
    assert_int_equal(claim(&s, 1, &c), 1);
    atomic_store(&s.mem[SLOT_HEADER_WORDS + c.slot * SLOT_WORDS], slot_next(c.word, 0, 1, SLOT_READY));
    assert_int_equal(claim(&s, 1, &c), 0);
    assert_int_equal(slot_expire(&s, &watch, 0, 0, 100), 0);
    assert_int_equal(claim(&s, 1, &c), 1);
    free(watch.word);
    free(watch.since);
    drop(&s);
}

/* Values that another process may have written into the shard. */
static void test_nonsense(void **state)
{
    (void)state;
    struct slot_shard s = make(4);
    struct slot_watch watch = {.word = calloc(4, 8), .since = calloc(4, 8)};
    struct slot_claim c[4];
    unsigned seed = 1;
    for (int round = 0; round < 2000; round++) {
        for (uint32_t i = 0; i < slot_shard_bytes(4) / 8; i++)
            atomic_store(&s.mem[i], (uint64_t)rand_r(&seed) << 40 ^ (uint64_t)rand_r(&seed) << 20 ^ (uint64_t)(rand_r(&seed) % 9));
        uint64_t out;
        int n = slot_claim(&s, 1, NODES, c, 4, false);
        assert_in_range(n, 0, 4);
        for (int i = 0; i < n; i++) {
            assert_in_range(c[i].slot, 0, 3);
            assert_in_range(slot_user_node(c[i].submitter), 0, NODES - 1);
            slot_complete(&s, c[i].slot, c[i].word, &out);
        }
        submit(&s, 1, 7);
        slot_gone(&s, (uint32_t)rand_r(&seed) % NODES);
        slot_expire(&s, &watch, round, round, 1);
        assert_in_range(slot_backlog(&s), 0, 4);
    }
    free(watch.word);
    free(watch.since);
    drop(&s);
}

/* --- threads --- */
enum { SUBMITTERS = 2, WORKERS = 3, MOST = 8000 };

struct message {
    uint64_t id, word;
    uint32_t slot;
};

struct rig {
    struct slot_shard s;
    /* Completions of all workers for each submitter; a lock replaces the fabric. */
    pthread_mutex_t lock[SUBMITTERS];
    struct message *box[SUBMITTERS];
    uint32_t in_box[SUBMITTERS];
    uint32_t each; /* tasks of each submitter */
    _Atomic uint32_t left;
    _Atomic uint64_t ran, refused, requeued;
};

struct thread {
    struct rig *r;
    uint32_t me;
};

static void *submitter_thread(void *arg)
{
    struct thread *t = arg;
    struct rig *r = t->r;
    uint8_t *seen = calloc(r->each, 1);
    uint32_t sent = 0, back = 0;
    struct message got[64];
    unsigned seed = t->me;
    while (back < r->each) {
        uint64_t ids[8], tasks[8 * SLOT_TASK_WORDS];
        uint32_t n = 1 + (uint32_t)rand_r(&seed) % 8;
        if (n > r->each - sent)
            n = r->each - sent;
        for (uint32_t i = 0; i < n; i++) {
            ids[i] = (uint64_t)t->me << 32 | (sent + i);
            for (uint32_t w = 0; w < SLOT_TASK_WORDS; w++)
                tasks[i * SLOT_TASK_WORDS + w] = ids[i] * 100 + w;
        }
        int placed = n ? slot_submit(&r->s, t->me, 0, tasks, ids, n) : 0;
        if (placed < 0)
            abort();
        sent += (uint32_t)placed;
        pthread_mutex_lock(&r->lock[t->me]);
        uint32_t m = r->in_box[t->me] < 64 ? r->in_box[t->me] : 64;
        for (uint32_t i = 0; i < m; i++)
            got[i] = r->box[t->me][--r->in_box[t->me]];
        pthread_mutex_unlock(&r->lock[t->me]);
        for (uint32_t i = 0; i < m; i++) {
            uint32_t k = (uint32_t)got[i].id;
            if (k >= r->each || got[i].id >> 32 != t->me || seen[k]++)
                abort(); /* no node dies here, so no completion may come twice */
            if (slot_free(&r->s, got[i].slot, got[i].word))
                abort();
            back++;
        }
        if (!m && !placed)
            sched_yield();
    }
    atomic_fetch_sub(&r->left, 1);
    free(seen);
    return NULL;
}

static void *worker_thread(void *arg)
{
    struct thread *t = arg;
    struct rig *r = t->r;
    unsigned seed = t->me + 99;
    while (atomic_load(&r->left)) {
        struct slot_claim c[8];
        int n = slot_claim(&r->s, 8 + t->me, NODES, c, 1 + (uint32_t)rand_r(&seed) % 8, t->me == 0);
        if (n < 0)
            abort();
        for (int i = 0; i < n; i++) {
            for (uint32_t w = 0; w < SLOT_TASK_WORDS; w++)
                if (c[i].task[w] != c[i].id * 100 + w)
                    abort(); /* the payload is torn */
            uint32_t to = slot_user_node(c[i].submitter);
            if (to >= SUBMITTERS || c[i].id >> 32 != to)
                abort();
            if (rand_r(&seed) % 16 == 0) {
                int rc = slot_release(&r->s, c[i].slot, c[i].word);
                if (rc && rc != -ESTALE)
                    abort();
                continue;
            }
            if (rand_r(&seed) % 16 == 0 && slot_renew(&r->s, c[i].slot, c[i].word, &c[i].word))
                continue;
            struct message m = {c[i].id, 0, c[i].slot};
            if (slot_complete(&r->s, c[i].slot, c[i].word, &m.word)) {
                atomic_fetch_add(&r->refused, 1);
                continue;
            }
            atomic_fetch_add(&r->ran, 1);
            pthread_mutex_lock(&r->lock[to]);
            r->box[to][r->in_box[to]++] = m;
            pthread_mutex_unlock(&r->lock[to]);
        }
        if (n == 0)
            sched_yield();
    }
    return NULL;
}

/* Leases end after a few checks, so many claims are taken back from workers that are still working. This stops after a time, because on a
   busy machine a worker might never be fast enough. */
static void *home_thread(void *arg)
{
    struct rig *r = arg;
    struct slot_watch watch = {.word = calloc(r->s.slots, 8), .since = calloc(r->s.slots, 8)};
    for (int64_t now = 0; atomic_load(&r->left); now++) {
        int64_t lease = atomic_load(&r->requeued) < 2000 ? 2 : INT64_MAX;
        atomic_fetch_add(&r->requeued, slot_expire(&r->s, &watch, now, now, lease));
        if (lease != 2)
            sched_yield();
    }
    free(watch.word);
    free(watch.since);
    return NULL;
}

static void run_threads(uint32_t slots, uint32_t each)
{
    struct rig r = {.s = make(slots), .each = each, .left = SUBMITTERS};
    struct thread t[SUBMITTERS + WORKERS];
    pthread_t id[SUBMITTERS + WORKERS + 1];
    for (uint32_t i = 0; i < SUBMITTERS; i++) {
        pthread_mutex_init(&r.lock[i], NULL);
        r.box[i] = calloc(each, sizeof(struct message));
    }
    for (uint32_t i = 0; i < SUBMITTERS + WORKERS; i++) {
        t[i] = (struct thread){&r, i < SUBMITTERS ? i : i - SUBMITTERS};
        assert_int_equal(pthread_create(&id[i], NULL, i < SUBMITTERS ? submitter_thread : worker_thread, &t[i]), 0);
    }
    assert_int_equal(pthread_create(&id[SUBMITTERS + WORKERS], NULL, home_thread, &r), 0);
    for (uint32_t i = 0; i <= SUBMITTERS + WORKERS; i++)
        pthread_join(id[i], NULL);
    assert_int_equal(atomic_load(&r.ran), SUBMITTERS * each);
    for (uint32_t i = 0; i < slots; i++)
        assert_int_equal(slot_status(state_of(&r.s, i)), SLOT_FREE);
    for (uint32_t i = 0; i < SUBMITTERS; i++) {
        free(r.box[i]);
        pthread_mutex_destroy(&r.lock[i]);
    }
    print_message("%u slots: %lu leases ended, %lu completions refused\n", slots, (unsigned long)atomic_load(&r.requeued),
                  (unsigned long)atomic_load(&r.refused));
    drop(&r.s);
}

static void test_threads(void **state)
{
    (void)state;
    run_threads(2, MOST / 8); /* with a small ring threads must be switched for each task */
    run_threads(8, MOST / 2);
    run_threads(256, MOST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_task_s_way),    cmocka_unit_test(test_full_and_positions), cmocka_unit_test(test_batch_over_slots_in_use),
        cmocka_unit_test(test_few_round_trips), cmocka_unit_test(test_stale_owner),        cmocka_unit_test(test_looks_far_apart),
        cmocka_unit_test(test_nodes_gone),      cmocka_unit_test(test_ready_behind_head),  cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
