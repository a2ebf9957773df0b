/* SPDX-License-Identifier: MIT
 *
 * Kernels of the GPU `host` submit, claim and complete themselves: each task is done once, whichever nodes' blocks take it, with rings of a
 * few slots that blocks share; a block that waits does not delay other blocks; and the queue refuses claims that a kernel has invented.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cluster_test.h"
#include "queue/queue.h"

#define BLOCKS 3u
#define TASKS  600u
#define BATCH  7u

#define ARENA_BYTES (1u << 16)
#define IN_ARENA    (1u << 31) /* beside enum queue_force: the memory of blocks is in an arena */

/* The memory of one block. */
struct desk {
    weft_task tasks[BATCH];
    uint64_t ids[BATCH];
    weft_lease leases[BATCH];
    weft_result results[BATCH];
};
#define OF(b, what) (f->desks + (uint64_t)(b) * sizeof(struct desk) + offsetof(struct desk, what))

struct farm {
    weft_gpu *g;
    weft_queue *q;
    uint32_t number;      /* the number by which kernels name the queue */
    weft_gaddr desks;     /* in the pool or an arena of this node: one struct desk for each block */
    weft_gaddr counts;    /* in the pool of node 0: how often each task was done */
    weft_gaddr elsewhere; /* the arena of this node */
    uint64_t id[TASKS];   /* the ids that the submitting block was given */
    _Atomic uint32_t ended;
};

static void farm_open(weft_node *w, struct farm *f, uint32_t rings, uint32_t slots, bool in_arena)
{
    uint32_t space;
    weft_queue_config c = {.bytes = sizeof c, .slots = 64};
    weft_gpu_config gc = {.bytes = sizeof gc, .name = "host", .rings = rings, .slots = slots};
    uint32_t again;
    OK(weft_queue_open(w, "farm", &c, &f->q));
    OK(weft_gpu_open(w, &gc, &f->g));
    CHECK(weft_gpu_queue(f->g, NULL, &again) == -EINVAL);
    OK(weft_gpu_queue(f->g, f->q, &f->number));
    OK(weft_gpu_queue(f->g, f->q, &again));
    CHECK(again == f->number);
    OK(weft_gpu_arena(f->g, ARENA_BYTES, &space));
    f->elsewhere = weft_gaddr_make(weft_rank(w), space, 0);
    if (in_arena)
        OK(weft_gpu_alloc(f->g, space, BLOCKS * sizeof(struct desk), &f->desks));
    else
        OK(weft_alloc_aligned(w, BLOCKS * sizeof(struct desk), 64, &f->desks));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void submit_all(const weft_device *d, struct farm *f, struct desk *mine)
{
    for (uint32_t i = 0; i < TASKS;) {
        uint32_t count = TASKS - i < BATCH ? TASKS - i : BATCH;
        for (uint32_t k = 0; k < count; k++)
            mine->tasks[k] = (weft_task){.kind = (i + k) % 5, .arg = {i + k, ~(uint64_t)(i + k)}, .tag = i + k};
        int n = weft_device_submit(d, f->number, OF(d->block, tasks), count, OF(d->block, ids));
        CHECK(n > 0 && (uint32_t)n <= count);
        memcpy(&f->id[i], mine->ids, (size_t)n * sizeof *mine->ids);
        i += (uint32_t)n;
    }
}

/* Waits for the result of a call that tries once. */
static int once(const weft_device *d, int rc, weft_device_op *op)
{
    return rc ? rc : weft_device_wait(d, op);
}

static int work_some(const weft_device *d, struct farm *f, struct desk *mine)
{
    int n = weft_device_claim(d, f->number, OF(d->block, leases), BATCH);
    for (int i = 0; i < n; i++) {
        const weft_task *t = &mine->leases[i].task;
        CHECK(t->arg[0] < TASKS && t->arg[1] == ~t->arg[0] && t->tag == t->arg[0]);
        CHECK(weft_device_fetch_add(d, f->counts + 8 * t->arg[0], 1, NULL) == 0);
        mine->results[i] = (weft_result){.status = (int32_t)t->kind - 9, .result = t->arg[0] * 3, .result_len = t->arg[0] + 1};
    }
    uint64_t accepted = 0, held = 0;
    weft_device_op op;
    if (n > 0)
        CHECK(weft_device_renew(d, f->number, OF(d->block, leases), (uint32_t)n, &held) == n && held == (1ull << n) - 1);
    if (n > 0)
        CHECK(once(d, weft_device_renew_start(d, f->number, OF(d->block, leases), (uint32_t)n, true, &op), &op) == 0 &&
              op.value == (1ull << n) - 1);
    if (n > 0)
        CHECK(weft_device_complete(d, f->number, OF(d->block, leases), OF(d->block, results), (uint32_t)n, &accepted) == n &&
              accepted == (1ull << n) - 1);
    return n;
}

static void work(const weft_device *d, void *arg)
{
    struct farm *f = arg;
    struct desk *mine = weft_device_ptr(d, OF(d->block, tasks), sizeof *mine);
    int rc;
    CHECK(mine);
    if (d->rank == 0 && d->block == 0)
        submit_all(d, f, mine);
    while ((rc = work_some(d, f, mine)) > 0)
        ;
    CHECK(rc == -WEFT_DEVICE_ESHUTDOWN);
    atomic_fetch_add(&f->ended, 1);
}

static void *reap(void *arg)
{
    struct farm *f = arg;
    static uint64_t id[TASKS];
    static bool seen[TASKS];
    weft_done done[32];
    for (uint32_t got = 0; got < TASKS;) {
        int n = weft_reap(f->q, done, 32, WEFT_TIMEOUT_DEFAULT);
        if (n == -ENOENT) { /* the block has submitted none yet */
            usleep(100);
            continue;
        }
        CHECK(n > 0);
        for (int i = 0; i < n; i++, got++) {
            uint64_t tag = done[i].tag;
            CHECK(tag < TASKS && !seen[tag] && done[i].status == (int32_t)(tag % 5) - 9 && done[i].result == tag * 3 &&
                  done[i].result_len == tag + 1);
            seen[tag] = true;
            id[tag] = done[i].id;
        }
    }
    OK(weft_queue_shutdown(f->q));
    OK(weft_drain(f->q, WEFT_TIMEOUT_DEFAULT));
    return memcpy(malloc(sizeof id), id, sizeof id);
}

static void node_farm(weft_node *w, void *arg)
{
    struct farm f = {.counts = on_node(symmetric_alloc(w, 8 * TASKS), 0)};
    pthread_t thread;
    void *ids;
    uint32_t how = *(const uint32_t *)arg;
    farm_open(w, &f, 1, 8, how & IN_ARENA);
    queue_set_force(f.q, how & ~IN_ARENA);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 0)
        CHECK(pthread_create(&thread, NULL, reap, &f) == 0);
    OK(weft_gpu_run(f.g, work, BLOCKS, &f));
    CHECK(f.ended == BLOCKS);
    if (weft_rank(w) == 0) {
        pthread_join(thread, &ids);
        CHECK(!memcmp(ids, f.id, sizeof f.id));
        free(ids);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t i = 0; weft_rank(w) == 0 && i < TASKS; i++)
        CHECK(((uint64_t *)weft_ptr(w, f.counts, 8 * TASKS))[i] == 1);
    OK(weft_gpu_close(f.g));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_farm(void **state)
{
    (void)state;
    uint32_t near = 0, far = QUEUE_REMOTE | QUEUE_SPREAD; /* far: uses other nodes' shards through the fabric, so that calls have to wait */
    assert_int_equal(nodes_failed(2, node_farm, &near), 0);
    assert_int_equal(nodes_failed(2, node_farm, &far), 0);
    near |= IN_ARENA, far |= IN_ARENA;
    assert_int_equal(nodes_failed(2, node_farm, &near), 0);
    assert_int_equal(nodes_failed(2, node_farm, &far), 0);
}

static void lie_about_memory(const weft_device *d, struct farm *f)
{
    uint64_t here = OF(0, tasks), end = weft_gaddr_make(d->rank, 0, d->pool_bytes[d->rank] - 64);
    uint64_t past = f->elsewhere + 2 * ARENA_BYTES + (1u << 20), none = weft_gaddr_make(d->rank, 7, 1 << 16);
    uint64_t first = f->elsewhere; /* the first bytes of an arena are never given out */
    uint64_t wrong[] = {0,
                        end,
                        weft_gaddr_make(d->rank + 1, 0, 4096),
                        weft_gaddr_make(d->rank, 0, 1ull << 43),
                        first,
                        past,
                        none,
                        weft_gaddr_make(d->rank + 1, 1, 1 << 16),
                        UINT64_MAX};
    weft_device_op op;
    for (uint32_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK(weft_device_submit(d, f->number, wrong[i], 2, 0) == -EFAULT);
        CHECK(i == 0 || i == 1 || weft_device_submit(d, f->number, here, 2, wrong[i]) == -EFAULT);
        CHECK(weft_device_claim(d, f->number, wrong[i], 2) == -EFAULT);
        CHECK(weft_device_complete(d, f->number, wrong[i], here, 2, NULL) == -EFAULT);
        CHECK(i == 1 || weft_device_complete(d, f->number, here, wrong[i], 2, NULL) == -EFAULT);
    }
    uint32_t counts[] = {0, WEFT_DEVICE_TASKS + 1, UINT32_MAX}, queues[] = {f->number + 1, 63, 64, UINT32_MAX};
    for (uint32_t i = 0; i < 3; i++) {
        CHECK(weft_device_submit(d, f->number, here, counts[i], 0) == -EINVAL);
        CHECK(weft_device_claim(d, f->number, here, counts[i]) == -EINVAL);
        CHECK(once(d, weft_device_complete_start(d, f->number, here, here, counts[i], true, &op), &op) == -EINVAL);
    }
    for (uint32_t i = 0; i < 4; i++)
        CHECK(weft_device_claim(d, queues[i], here, 1) == -ENOENT);
    CHECK(weft_device_submit_start(d, f->number, f->elsewhere, 1, 0, true, NULL) == 0);
    CHECK(weft_device_flush(d, weft_gaddr_node(f->elsewhere)) == -EFAULT); /* a call without an op gets its error here */
}

/* Completes claims that do not exist: the queue refuses them, and goes on working. */
static void lie_about_claims(const weft_device *d, struct farm *f, struct desk *mine)
{
    uint64_t bits = 1, x = 88172645463325252ull;
    for (uint32_t i = 0; i < 2000; i++) {
        uint64_t *words = (uint64_t *)mine->leases;
        for (uint32_t k = 0; k < 2 * sizeof(weft_lease) / 8; k++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            words[k] = x >> (x & 63);
        }
        int n = weft_device_complete(d, f->number, OF(0, leases), OF(0, results), 2, &bits);
        CHECK(n == 0 && bits == 0);
    }
    /* A real claim, with each bit of its private words inverted in turn. */
    weft_device_op op;
    mine->tasks[0] = (weft_task){.tag = 5};
    CHECK(weft_device_submit(d, f->number, OF(0, tasks), 1, 0) == 1);
    CHECK(once(d, weft_device_claim_start(d, f->number, OF(0, leases), 3, true, &op), &op) == 0 && op.value == 1);
    weft_lease good = mine->leases[0];
    for (uint32_t bit = 0; bit < 128; bit++) { /* the bits of the slot's address and state */
        mine->leases[0] = good;
        mine->leases[0].private_[bit / 64] ^= 1ull << (bit % 64);
        CHECK(weft_device_complete(d, f->number, OF(0, leases), OF(0, results), 1, &bits) == 0);
    }
    mine->leases[0] = mine->leases[1] = good;
    /* a second completion is refused */
    CHECK(weft_device_complete(d, f->number, OF(0, leases), OF(0, results), 2, &bits) == 1 && bits == 1);
    CHECK(once(d, weft_device_claim_start(d, f->number, OF(0, leases), 1, true, &op), &op) == -WEFT_DEVICE_EAGAIN);
}

/* Every place of the ring is taken: a call that does not wait fails with EAGAIN. */
static void fill_ring(const weft_device *d, struct farm *f)
{
    weft_device_op op[8], more;
    for (uint32_t i = 0; i < 8; i++)
        CHECK(weft_device_claim_start(d, f->number, OF(0, leases), 1, true, &op[i]) == 0);
    CHECK(weft_device_claim_start(d, f->number, OF(0, leases), 1, false, &more) == -WEFT_DEVICE_EAGAIN);
    CHECK(weft_device_submit_start(d, f->number, OF(0, tasks), 1, 0, false, &more) == -WEFT_DEVICE_EAGAIN);
    for (uint32_t i = 0; i < 8; i++)
        CHECK(weft_device_wait(d, &op[i]) == -WEFT_DEVICE_EAGAIN);
}

static void lie(const weft_device *d, void *arg)
{
    struct farm *f = arg;
    struct desk *mine = weft_device_ptr(d, OF(0, tasks), sizeof *mine);
    lie_about_memory(d, f);
    lie_about_claims(d, f, mine);
    fill_ring(d, f);
    /* No task comes, so the call ends at its deadline. Only this call's deadline is short: on a busy machine the others take a while. */
    weft_device hurried = *d;
    hurried.deadline_ns = 300 * WEFT_MS;
    CHECK(weft_device_claim(&hurried, f->number, OF(0, leases), 1) == -WEFT_DEVICE_ETIMEDOUT);
    weft_device now = *d;
    now.nowait = true; /* a single attempt */
    CHECK(weft_device_claim(&now, f->number, OF(0, leases), 1) == -WEFT_DEVICE_EAGAIN);
}

static void closed(const weft_device *d, void *arg)
{
    struct farm *f = arg;
    CHECK(weft_device_submit(d, f->number, OF(0, tasks), 1, 0) == -EBADF && weft_device_claim(d, f->number, OF(0, leases), 1) == -EBADF &&
          weft_device_complete(d, f->number, OF(0, leases), OF(0, results), 1, NULL) == -EBADF);
}

static void node_lie(weft_node *w, void *arg)
{
    struct farm f = {0};
    weft_done done;
    farm_open(w, &f, 2, 8, *(const bool *)arg);
    OK(weft_gpu_run(f.g, lie, 1, &f));
    CHECK(weft_reap(f.q, &done, 1, 0) == 1 && done.tag == 5);
    CHECK(weft_reap(f.q, &done, 1, 0) == -ENOENT);
    OK(weft_queue_close(f.q));
    OK(weft_gpu_run(f.g, closed, 1, &f));
    OK(weft_gpu_close(f.g));
}

static void test_lie(void **state)
{
    (void)state;
    bool in_arena = false;
    assert_int_equal(nodes_failed(1, node_lie, &in_arena), 0);
    in_arena = true;
    assert_int_equal(nodes_failed(1, node_lie, &in_arena), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_farm), cmocka_unit_test(test_lie)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
