/* SPDX-License-Identifier: MIT
 *
 * A shard that is accessed through a fabric whose answers get lost. Any operation may end with an error, and may have been executed before
 * that, be executed at any later time, or never. Messages to the home (slot_settle()) may arrive late, too, but after the puts before their
 * fence. All runs in one thread, and a seed determines it: before each operation some operations under way are executed, or another actor
 * acts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "queue/slot.h"

enum { NODES = 4, SLOTS = 4, PENDING = 64, TASKS = 4096 };

struct pending {
    enum { SWAP, STORE, SETTLE } kind;
    uint64_t order;
    uint32_t word, count; /* of SETTLE: the slot's word, and its new state */
    uint64_t expected, desired, in[SLOT_WORDS];
};

static struct world {
    uint64_t seed, order;
    struct slot_shard home, remote[NODES]; /* [node] */
    _Atomic uint64_t tried[NODES][SLOTS];
    struct pending pending[PENDING];
    uint32_t numbers, pendings, lost; /* lost: how many answers of 1000 are lost */
    bool settles, held, lose_swap;    /* held: operations under way stay so; lose_swap: all answers to swaps are lost */
    uint8_t submitted[TASKS], completed[TASKS];
} world;

static uint32_t drawn(uint32_t below)
{
    uint64_t x = world.seed += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((x ^ (x >> 31)) >> 32) % below;
}

static void do_pending(uint32_t i)
{
    struct pending p = world.pending[i];
    world.pending[i] = world.pending[--world.pendings];
    if (p.kind == SWAP)
        atomic_compare_exchange_strong(&world.home.mem[p.word], &p.expected, p.desired);
    else if (p.kind == STORE)
        for (uint32_t k = 0; k < p.count; k++)
            atomic_store(&world.home.mem[p.word + k], p.in[k]);
    else if (world.settles)
        slot_settle(&world.home, p.word, p.expected, p.desired, (enum slot_status)p.count);
}

/* Executes one of the operations under way. A settlement is executed only after the stores that were started before it. */
static void some_pending(void)
{
    uint32_t i = drawn(world.pendings);
    for (uint32_t k = 0; world.pending[i].kind == SETTLE && k < world.pendings; k++)
        if (world.pending[k].kind == STORE && world.pending[k].order < world.pending[i].order)
            i = k;
    if (world.pending[i].kind == SWAP && drawn(4) == 0)
        world.pending[i] = world.pending[--world.pendings]; /* this operation is never executed */
    else
        do_pending(i);
}

static struct pending *later(void)
{
    assert_in_range(world.pendings, 0, PENDING - 1);
    struct pending *p = &world.pending[world.pendings++];
    memset(p, 0, sizeof *p);
    p->order = world.order++;
    return p;
}

/* False: the answer of the operation is lost. */
static bool answered(void)
{
    while (world.pendings && !world.held && (drawn(3) == 0 || world.pendings > PENDING / 2))
        some_pending();
    return drawn(1000) >= world.lost;
}

static int remote_load(void *arg, uint32_t word, uint64_t *out, uint32_t count)
{
    (void)arg;
    if (!answered())
        return -ETIMEDOUT;
    for (uint32_t i = 0; i < count; i++)
        out[i] = atomic_load(&world.home.mem[word + i]);
    return 0;
}

static int remote_store(void *arg, uint32_t word, const uint64_t *in, uint32_t count)
{
    (void)arg;
    bool known = answered();
    if (known || drawn(2)) {
        for (uint32_t i = 0; i < count; i++)
            atomic_store(&world.home.mem[word + i], in[i]);
    } else {
        struct pending *p = later();
        p->kind = STORE;
        p->word = word;
        p->count = count;
        memcpy(p->in, in, count * sizeof *in);
    }
    return known ? 0 : -ETIMEDOUT;
}

static int remote_swap(void *arg, uint32_t word, uint64_t expected, uint64_t desired, uint64_t *old)
{
    (void)arg;
    if (answered() && !world.lose_swap) {
        *old = expected;
        atomic_compare_exchange_strong(&world.home.mem[word], old, desired);
        return 0;
    }
    struct pending *p = later();
    p->kind = SWAP;
    p->word = word;
    p->expected = expected;
    p->desired = desired;
    if (!world.held && drawn(2))
        do_pending(world.pendings - 1);
    return drawn(2) ? -ETIMEDOUT : -ECONNABORTED;
}

static uint32_t remote_number(void *arg)
{
    (void)arg;
    return world.numbers++;
}

static void remote_settle(void *arg, uint32_t slot, uint64_t from, uint64_t to, enum slot_status then)
{
    (void)arg;
    struct pending *p = later();
    p->kind = SETTLE;
    p->word = slot;
    p->expected = from;
    p->desired = to;
    p->count = (uint32_t)then;
}

static const struct slot_remote lossy = {remote_load, remote_store, remote_swap, remote_number, remote_settle};

static uint64_t word_of(uint32_t slot)
{
    return atomic_load(&world.home.mem[SLOT_HEADER_WORDS + slot * SLOT_WORDS]);
}

/* Does a few steps of a worker: claims, perhaps renews or releases, completes, and tells the submitter, which frees the slot. */
static void act_as_worker(uint32_t node)
{
    struct slot_claim c[3];
    struct slot_shard *remote = &world.remote[node];
    uint64_t done;
    int n = slot_claim(remote, slot_user(node, 1), NODES, c, 1 + drawn(3), drawn(2));
    for (int i = 0; i < n; i++) {
        assert_int_equal(c[i].task[0], c[i].id);
        assert_true(world.submitted[c[i].id] == 1);      /* only submitted tasks run */
        assert_int_equal(word_of(c[i].slot), c[i].word); /* a claim stays until its owner changes it: no lease ends here */
        while (drawn(3) == 0)
            slot_renew(remote, c[i].slot, c[i].word, &c[i].word);
        if (drawn(8) == 0) {
            slot_release(remote, c[i].slot, c[i].word);
            continue;
        }
        if (slot_complete(remote, c[i].slot, c[i].word, &done))
            continue;
        assert_int_equal(world.completed[c[i].id]++, 0); /* a completion is accepted only once */
        slot_free(remote, c[i].slot, done);
    }
}

static void make_world(uint64_t seed, bool settles)
{
    world = (struct world){.seed = seed, .settles = settles, .lost = seed % 2 ? 30 : 200};
    world.home.slots = SLOTS;
    world.home.mem = aligned_alloc(128, base_round_up(slot_shard_bytes(SLOTS), 128));
    for (uint32_t i = 0; i < NODES; i++)
        world.remote[i] = (struct slot_shard){.remote = &lossy, .slots = SLOTS, .incarnation = 1, .tried = world.tried[i]};
    slot_format(&world.home);
}

static bool run_world(uint64_t seed, bool settles)
{
    make_world(seed, settles);
    uint64_t next = 0, back = 0, out = 0;
    for (uint32_t step = 0; step < 600; step++) {
        uint64_t ids[3], tasks[3 * SLOT_TASK_WORDS] = {0};
        uint32_t count = 1 + drawn(3);
        for (uint32_t i = 0; i < count; i++) {
            ids[i] = tasks[i * SLOT_TASK_WORDS] = next + i;
            world.submitted[next + i] = 1; /* other nodes may see the task while the call is under way */
        }
        int placed = step < 400 ? slot_submit(&world.remote[0], slot_user(0, 1), 0, tasks, ids, count) : 0;
        for (uint32_t i = placed < 0 ? 0 : (uint32_t)placed; i < count; i++)
            world.submitted[next + i] = 2;
        next += count;
        act_as_worker(1 + drawn(3));
    }
    /* From now on all answers arrive. */
    world.lost = 0;
    while (world.pendings)
        some_pending();
    for (uint32_t round = 0; round < 4 * SLOTS; round++)
        act_as_worker(1);
    while (world.pendings)
        some_pending();
    for (uint64_t i = 0; i < next; i++) {
        out += world.submitted[i] == 1;
        back += world.completed[i];
    }
    bool good = out == back;
    for (uint32_t i = 0; i < SLOTS; i++)
        good = good && slot_status(word_of(i)) == SLOT_FREE;
    free((void *)world.home.mem);
    return good;
}

static void test_lost_answers(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4000; seed++)
        if (!run_world(seed, true))
            fail_msg("seed %lu: a task or a slot is lost", (unsigned long)seed);
}

/* Check that this test can fail: without settlements, tasks and slots are lost. */
static void test_unsettled(void **state)
{
    (void)state;
    uint32_t bad = 0;
    for (uint64_t seed = 1; seed <= 50; seed++)
        bad += !run_world(seed, false);
    assert_in_range(bad, 1, 50);
}

/* A thread gives up a claim, which has not happened. Another thread of its node sees the same READY word, and would swap it for the same
 * claimed word: it leaves the task alone until the home has settled the claim, which would undo its own, too. */
static void test_given_up_claim(void **state)
{
    (void)state;
    make_world(1, true);
    world.lost = 0;
    world.held = true;
    uint64_t id = 7, task[SLOT_TASK_WORDS] = {7}, done;
    struct slot_claim c;
    assert_int_equal(slot_submit(&world.remote[0], slot_user(0, 1), 0, task, &id, 1), 1);
    world.lose_swap = true;
    assert_true(slot_claim(&world.remote[1], slot_user(1, 1), NODES, &c, 1, false) < 0);
    world.lose_swap = false;
    assert_int_equal(world.pendings, 2); /* the swap, and the message that settles it */
    int n = slot_claim(&world.remote[1], slot_user(1, 1), NODES, &c, 1, false);
    do_pending(1);
    if (n == 0)
        n = slot_claim(&world.remote[1], slot_user(1, 1), NODES, &c, 1, false);
    assert_int_equal(n, 1);
    do_pending(0);
    assert_int_equal(word_of(c.slot), c.word);
    assert_int_equal(slot_complete(&world.remote[1], c.slot, c.word, &done), 0);
    /* Other nodes do not wait for that. */
    assert_int_equal(slot_submit(&world.remote[0], slot_user(0, 1), 0, task, &id, 1), 1);
    world.lose_swap = true;
    assert_true(slot_claim(&world.remote[1], slot_user(1, 1), NODES, &c, 1, false) < 0);
    world.lose_swap = false;
    assert_int_equal(slot_claim(&world.remote[2], slot_user(2, 1), NODES, &c, 1, false), 1);
    do_pending(1);
    do_pending(0);
    assert_int_equal(word_of(c.slot), c.word);
    free((void *)world.home.mem);
}

static int claim_remote(struct slot_claim *c)
{
    return slot_claim(&world.remote[1], slot_user(1, 1), NODES, c, 1, false);
}

/* The home opens the queue anew, and the versions of its slots begin again. What a node has tried before says nothing about the new slots;
 * and a thread that still has the former view tries nothing. */
static void test_reopened(void **state)
{
    (void)state;
    make_world(1, true);
    world.lost = 0;
    uint64_t id = 7, task[SLOT_TASK_WORDS] = {7};
    struct slot_claim c;
    assert_int_equal(slot_submit(&world.remote[0], slot_user(0, 1), 0, task, &id, 1), 1);
    assert_int_equal(claim_remote(&c), 1);
    slot_format(&world.home);
    world.remote[1].incarnation = 2;
    assert_int_equal(slot_submit(&world.remote[0], slot_user(0, 1), 0, task, &id, 1), 1);
    assert_int_equal(claim_remote(&c), 1);
    slot_format(&world.home);
    assert_int_equal(slot_submit(&world.remote[0], slot_user(0, 1), 0, task, &id, 1), 1);
    world.remote[1].incarnation = 1;
    assert_int_equal(claim_remote(&c), 0);
    free((void *)world.home.mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost_answers),
        cmocka_unit_test(test_unsettled),
        cmocka_unit_test(test_given_up_claim),
        cmocka_unit_test(test_reopened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
