/* SPDX-License-Identifier: MIT
 *
 * Kernels that reach the memory of all nodes, on the GPU `host`: every call of weft/device.h, between nodes, over whatever transport
 * there is. WEFT_TEST_GPU names another GPU: then only what needs no kernel is done here (tests/gpu has the kernels).
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#include "gpu_test.h"

#define BLOCKS 6u
#define WORDS  64u

struct job {
    /* a page at the same offset on every node: its first words are shared by all; then each block of each node has some words */
    weft_gaddr at;
    weft_gaddr mine; /* memory of this node, some for each block */
    uint32_t rounds;
    uint32_t handled; /* unused by kernels */
};

static weft_gaddr place(const weft_device *d, const struct job *j, uint32_t node, uint32_t block)
{
    return on_node(j->at, node) + 8 * WORDS * (1 + d->rank * BLOCKS + block);
}

/* Puts, puts of values and gets to every node; the results are read back. */
static void put_and_get(const weft_device *d, void *arg)
{
    const struct job *j = arg;
    weft_gaddr mine = j->mine + d->block * 2 * 8 * WORDS, back = mine + 8 * WORDS;
    uint64_t *out = weft_device_ptr(d, mine, 8 * WORDS), *in = weft_device_ptr(d, back, 8 * WORDS);
    for (uint32_t round = 1; round <= j->rounds; round++)
        for (uint32_t node = 0; node < d->size; node++) {
            weft_gaddr there = place(d, j, node, d->block);
            for (uint32_t i = 0; i < WORDS; i++)
                out[i] = (uint64_t)round << 32 | node << 16 | i;
            KERNEL(weft_device_put(d, there, mine, 8 * WORDS, NULL));
            KERNEL(weft_device_fence(d, node));
            KERNEL(weft_device_put_value(d, there + 8, round, NULL));
            KERNEL(weft_device_flush(d, node));
            weft_device_op op;
            memset(in, 0, 8 * WORDS);
            KERNEL(weft_device_get(d, back, there, 8 * WORDS, &op));
            KERNEL(weft_device_wait(d, &op));
            out[1] = round;
            if (memcmp(in, out, 8 * WORDS)) {
                fprintf(stderr, "block %u: not what was put to node %u in round %u\n", d->block, node, round);
                _exit(1);
            }
        }
}

/* A kernel that uses a copy from weft_gpu_device_copy() in place of its weft_device. */
static void by_copy(const weft_device *given, void *arg)
{
    const weft_device *d = arg;
    (void)given;
    KERNEL(weft_device_nothing(d, true));
}

static void check_copy(weft_node *w, weft_gpu *g)
{
    weft_device d;
    memset(&d, 0xff, sizeof d);
    weft_gpu_device_copy(g, &d, sizeof d);
    CHECK(d.rank == weft_rank(w) && d.size == weft_size(w) && d.block == 0);
    OK(weft_gpu_run(g, by_copy, 1, &d));
}

static void node_put_and_get(weft_node *w, void *arg)
{
    (void)arg;
    struct job j = {.rounds = 100};
    j.at = symmetric_alloc(w, 8 * WORDS * (1 + weft_size(w) * BLOCKS));
    OK(weft_alloc(w, (size_t)2 * 8 * WORDS * BLOCKS, &j.mine));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    weft_gpu *g = open_host(w, 2, 64);
    OK(weft_gpu_run(g, put_and_get, BLOCKS, &j));
    weft_gpu_stats stats;
    OK(weft_gpu_stat(g, &stats, sizeof stats));
    CHECK(stats.requests == (uint64_t)BLOCKS * j.rounds * weft_size(w) * 5 && stats.failed == 0);
    check_copy(w, g);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_gpu_close(g));
}

static void test_put_and_get(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, node_put_and_get, NULL), 0);
}

/* Kernels of all nodes and the nodes' processors change words of every node by atomics: no change is lost. */
static void atomics(const weft_device *d, void *arg)
{
    const struct job *j = arg;
    for (uint32_t i = 0; i < j->rounds; i++) {
        weft_gaddr word = on_node(j->at, (d->rank + i) % d->size);
        uint64_t old, seen;
        KERNEL(weft_device_fetch_add(d, word, 3, &old));
        KERNEL(weft_device_fetch_add(d, word + 8, 0, &seen));
        while (true) { /* add 1 by swaps */
            KERNEL(weft_device_compare_swap(d, word + 8, seen, seen + 1, &old));
            if (old == seen)
                break;
            seen = old;
        }
        KERNEL(weft_device_put_signal(d, word, 0, 0, word + 16, 5, NULL));
    }
    for (uint32_t node = 0; node < d->size; node++)
        KERNEL(weft_device_flush(d, node));
    uint64_t old;
    KERNEL(weft_device_swap(d, place(d, j, d->rank, d->block), 7, &old));
    if (old != 0)
        _exit(1);
}

static void node_atomics(weft_node *w, void *arg)
{
    (void)arg;
    struct job j = {.rounds = 120, .at = symmetric_alloc(w, 8 * WORDS * (1 + weft_size(w) * BLOCKS))};
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    weft_gpu *g = open_host(w, 3, 16);
    for (uint32_t i = 0; i < 50; i++)
        OK(weft_fetch_add_blocking(w, on_node(j.at, i % weft_size(w)), 1, NULL));
    OK(weft_gpu_run(g, atomics, BLOCKS, &j));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    uint64_t words[3], sum[3] = {0};
    for (uint32_t node = 0; node < weft_size(w); node++) {
        OK(weft_get_blocking(w, words, on_node(j.at, node), sizeof words));
        for (int i = 0; i < 3; i++)
            sum[i] += words[i];
    }
    uint64_t all = (uint64_t)weft_size(w) * BLOCKS * j.rounds;
    CHECK(sum[0] == 3 * all + 50 * weft_size(w) && sum[1] == all && sum[2] == 5 * all);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_atomics(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, node_atomics, NULL), 0);
}

/* A ping-pong of two kernels by signals, without their processors; then messages to the other node's processor. */
static void ping_pong(const weft_device *d, void *arg)
{
    const struct job *j = arg;
    weft_gaddr mine = on_node(j->at, d->rank) + 24, theirs = on_node(j->at, 1 - d->rank) + 24;
    for (uint64_t i = 1; i <= j->rounds; i++) {
        if (d->rank == 0)
            KERNEL(weft_device_put_signal(d, theirs, 0, 0, theirs, 1, NULL));
        uint64_t seen;
        KERNEL(weft_device_wait_at_least(d, mine, i, &seen));
        if (seen != i)
            _exit(1);
        if (d->rank == 1)
            KERNEL(weft_device_put_signal(d, theirs, 0, 0, theirs, 1, NULL));
    }
    for (uint64_t i = 0; i < j->rounds; i++)
        KERNEL(weft_device_send(d, 1 - d->rank, 5, i, j->mine, 16, NULL));
    KERNEL(weft_device_flush(d, 1 - d->rank));
}

static _Atomic uint64_t heard;
static void on_message(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                       void *arg)
{
    uint64_t number;
    (void)w, (void)arg;
    CHECK(header_len == 8 && payload_len == 16 && !memcmp(payload, "sixteen bytes...", 16));
    memcpy(&number, header, 8);
    CHECK(number == heard && from < 2);
    heard++;
}

static void node_ping_pong(weft_node *w, void *arg)
{
    (void)arg;
    struct job j = {.rounds = 200, .at = symmetric_alloc(w, 4096)};
    OK(weft_alloc(w, 64, &j.mine));
    memcpy(weft_ptr(w, j.mine, 16), "sixteen bytes...", 16);
    OK(weft_handle(w, 5, on_message, NULL));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    weft_gpu *g = open_host(w, 1, 8);
    OK(weft_gpu_run(g, ping_pong, 1, &j));
    for (int64_t until = (int64_t)time(NULL) + 60; heard < j.rounds && (int64_t)time(NULL) < until;)
        weft_progress(w);
    CHECK(heard == j.rounds);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT)); /* the other node's kernel may still flush towards this node */
    OK(weft_gpu_close(g));
}

static void test_ping_pong(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, node_ping_pong, NULL), 0);
}

/* More messages than the target node accepts at once: they wait for room; none is lost, and none overtakes another. */
#define FLOOD_BYTES 2000u
static void flood(const weft_device *d, void *arg)
{
    const struct job *j = arg;
    for (uint64_t i = 0; i < j->rounds; i++)
        KERNEL(weft_device_send(d, 1, 6, i, j->mine, FLOOD_BYTES, NULL));
    KERNEL(weft_device_flush(d, 1));
}

static void on_flood(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    uint64_t number;
    (void)w, (void)arg, (void)from, (void)payload;
    CHECK(header_len == 8 && payload_len == FLOOD_BYTES);
    memcpy(&number, header, 8);
    CHECK(number == heard);
    if (number == 0)
        usleep((useconds_t)(patience_ns(1) / 5000)); /* by then everything that is queued for this node is full */
    heard++;
}

static void node_flood(weft_node *w, void *arg)
{
    (void)arg;
    struct job j = {.rounds = 3000};
    OK(weft_alloc(w, FLOOD_BYTES, &j.mine));
    OK(weft_handle(w, 6, on_flood, NULL));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 0) {
        weft_gpu *g = open_host(w, 1, 8192);
        weft_gpu_stats stats;
        OK(weft_gpu_run(g, flood, 1, &j));
        OK(weft_gpu_stat(g, &stats, sizeof stats));
        CHECK(stats.requests == j.rounds + 1 && stats.failed == 0 && stats.waits > 0);
        OK(weft_gpu_close(g));
    } else {
        for (int64_t until = (int64_t)time(NULL) + 100; heard < j.rounds && weft_alive(w, 0) && (int64_t)time(NULL) < until;)
            weft_progress(w);
        CHECK(heard == j.rounds);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_flood(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, node_flood, NULL), 0);
}

/* A request whose place has never had an answer is under way, also if its number has 32 bits of 1. */
static void fresh(const weft_device *d, void *arg)
{
    (void)arg;
    for (uint64_t number = UINT32_MAX - d->ring->mask; number <= UINT32_MAX; number++)
        CHECK(weft_device_test(d, &(weft_device_op){.ticket = number, .status = 1}) == -EINPROGRESS);
}

/* Invalid requests: the error comes by the answer or by the next flush, and other requests are not affected. */
static void wrong(const weft_device *d, void *arg)
{
    const struct job *j = arg;
    uint64_t old;
    weft_device_op op;
    weft_gaddr good = on_node(j->at, d->rank);
    CHECK(weft_device_fetch_add(d, weft_gaddr_make(77, 0, 1 << 20), 1, &old) == -EFAULT);
    CHECK(weft_device_fetch_add(d, good + 4, 1, &old) == -EINVAL);
    CHECK(weft_device_fetch_add(d, weft_gaddr_make(d->rank, 3, 1 << 20), 1, &old) == -EFAULT);
    CHECK(weft_device_put(d, good, 16, 8, &op) == 0 && weft_device_wait(d, &op) == -EFAULT); /* the source is in no heap */
    CHECK(weft_device_put(d, good, j->mine, 1ull << 40, &op) == 0 && weft_device_wait(d, &op) == -EFAULT);
    CHECK(weft_device_put_signal(d, good, j->mine, 8, weft_gaddr_make(d->rank + 1, 0, 8), 1, NULL) == -EINVAL);
    CHECK(weft_device_send(d, 0, 5000, 1, j->mine, 8, &op) == 0 && weft_device_wait(d, &op) == -EINVAL);
    CHECK(weft_device_send(d, 0, 5, 1, j->mine, 5000, &op) == 0 && weft_device_wait(d, &op) == -EMSGSIZE);
    CHECK(weft_device_put_value(d, 0, 1, NULL) == 0);
    CHECK(weft_device_flush(d, 0) == -EFAULT); /* reported once */
    CHECK(weft_device_flush(d, 0) == 0);
    CHECK(weft_device_flush(d, 9) == -EFAULT);
    CHECK(weft_device_ptr(d, 77ull << 48, 8) == NULL && weft_device_ptr(d, good, 1ull << 40) == NULL);
    CHECK(weft_device_ptr(d, WEFT_NULL, 8) == NULL && weft_device_ptr(d, WEFT_DEVICE_FIRST - 8, 8) == NULL);
    CHECK(weft_device_wait_at_least(d, good + 4, 1, NULL) == -EINVAL);
    CHECK(weft_device_wait_until(d, WEFT_NULL, WEFT_EQ, 1, NULL, 0) == -EINVAL);
    KERNEL(weft_device_fetch_add(d, good, 1, &old));
}

static void nothing_comes(const weft_device *d, void *arg)
{
    const struct job *j = arg;
    uint64_t seen;
    CHECK(weft_device_wait_at_least(d, on_node(j->at, d->rank) + 8, 1, &seen) == -ETIMEDOUT);
}

static void add_one(const weft_device *d, void *arg)
{
    const struct job *j = arg;
    uint64_t old;
    KERNEL(weft_device_fetch_add(d, on_node(j->at, d->rank), 1, &old));
}

static void node_wrong(weft_node *w, void *arg)
{
    (void)arg;
    struct job j = {.at = symmetric_alloc(w, 4096)};
    weft_gpu *g, *none;
    weft_gpu_info info;
    OK(weft_alloc(w, 64, &j.mine));
    CHECK(weft_gpu_open(w, &(weft_gpu_config){.bytes = sizeof(weft_gpu_config), .name = "abacus"}, &none) == -ENODEV && !none);
    CHECK(strstr(weft_error(), "there is no GPU abacus; there are:") && strstr(weft_error(), "host"));
    bool cuda = weft_gpu_look(0, &info, sizeof info) == 0 && !strncmp(info.name, "cuda", 4);
    CHECK(weft_gpu_open(w, &(weft_gpu_config){.bytes = sizeof(weft_gpu_config), .name = "cuda:99"}, &none) == -ENODEV && !none);
    CHECK(strstr(weft_error(), cuda ? "there are:" : "GPU cuda:99 cannot be used: ") && strstr(weft_error(), cuda ? "cuda:0" : "CUDA"));
    CHECK(weft_gpu_open(w, &(weft_gpu_config){.bytes = sizeof(weft_gpu_config), .slots = 3}, &none) == -EINVAL);
    CHECK(weft_gpu_open(w, &(weft_gpu_config){.bytes = sizeof(weft_gpu_config), .rings = 100000}, &none) == -EINVAL);
    CHECK(weft_gpu_open(w, &(weft_gpu_config){0}, &none) == -EINVAL);
    uint32_t n = 0;
    while (weft_gpu_look(n, &info, sizeof info) == 0)
        n++;
    CHECK(n > 0 && !strcmp(info.name, "host") && info.usable);
    g = open_host(w, 1, 8);
    CHECK(weft_gpu_run(g, NULL, 1, NULL) == -EINVAL && weft_gpu_run(g, wrong, 0, NULL) == -EINVAL);
    CHECK(weft_gpu_run(g, wrong, 100000, NULL) == -EINVAL);
    OK(weft_gpu_run(g, fresh, 1, NULL));
    OK(weft_gpu_run(g, wrong, 1, &j));
    OK(weft_gpu_run(g, nothing_comes, 1, &j));
    OK(weft_gpu_close(g));
    CHECK(weft_gpu_close(g) == -EINVAL && strstr(weft_error(), "closed already"));
    CHECK(weft_gpu_run(g, add_one, 1, &j) == -EINVAL && weft_gpu_arena(g, 4096, &n) == -EINVAL && strstr(weft_error(), "closed already"));
    OK(weft_gpu_close(NULL));
    g = open_host(w, 1, 8); /* opens the same GPU twice */
    weft_gpu *again = open_host(w, 1, 8);
    OK(weft_gpu_run(g, add_one, 1, &j));
    OK(weft_gpu_close(g));
    OK(weft_gpu_run(again, add_one, 1, &j));
    OK(weft_gpu_close(again));
    open_host(w, 4, 1024); /* weft_close() closes it */
}

static void test_wrong(void **state)
{
    (void)state;
    const char *environment[] = {"WEFT_DEADLINE=1s", NULL};
    assert_int_equal(nodes_failed_with(1, node_wrong, NULL, environment), 0);
}

/* Answers that the kernel does not read keep their places. A request that needs such a place waits or fails; other requests do not. */
static void full(const weft_device *d, void *arg)
{
    const struct job *j = arg;
    weft_gaddr good = on_node(j->at, d->rank);
    weft_device_op ops[8];
    for (int i = 0; i < 8; i++)
        KERNEL(weft_device_put_nowait(d, good + 8, j->mine, 8, &ops[i]));
    weft_device_op more;
    CHECK(weft_device_put_nowait(d, good, j->mine, 8, &more) == -EAGAIN);
    weft_device now = *d;
    now.nowait = true;
    CHECK(weft_device_get(&now, j->mine, good, 8, &more) == -EAGAIN && weft_device_fetch_add(&now, good, 1, NULL) == -EAGAIN);
    CHECK(weft_device_put(d, good, j->mine, 8, &more) == -ETIMEDOUT);
    CHECK(weft_device_nothing(d, true) == -ETIMEDOUT); /* a request without an op needs no place for an answer */
    for (int i = 0; i < 8; i++)
        CHECK(weft_device_load_flag(&d->ring->awaited[i]) == 1);
    KERNEL(weft_device_put_value(d, good, 1, NULL));                   /* needs no place for an answer */
    for (uint64_t i = weft_device_load_own(d->ring->next); i % 8; i++) /* up to the place of the first */
        KERNEL(weft_device_put_value(d, good, i, NULL));
    KERNEL(weft_device_wait(d, &ops[0]));
    KERNEL(weft_device_put(d, good, j->mine, 8, &more));
    KERNEL(weft_device_wait(d, &more));
    weft_device_leave(d, &ops[1]);
    weft_device_leave(d, &ops[2]);
    KERNEL(weft_device_put_signal(d, good, j->mine, 8, good + 8, 1, &more));
    KERNEL(weft_device_wait(d, &more));
    for (int i = 3; i < 8; i++)
        KERNEL(weft_device_wait(d, &ops[i]));
    KERNEL(weft_device_flush(d, d->rank));
}

static void node_full(weft_node *w, void *arg)
{
    (void)arg;
    struct job j = {.at = symmetric_alloc(w, 4096)};
    OK(weft_alloc(w, 64, &j.mine));
    weft_gpu *g = open_host(w, 1, 8);
    OK(weft_gpu_run(g, full, 1, &j));
    OK(weft_gpu_close(g));
}

static void test_full(void **state)
{
    (void)state;
    const char *environment[] = {"WEFT_DEADLINE=300ms", NULL};
    assert_int_equal(nodes_failed_with(1, node_full, NULL, environment), 0);
}

/* With weft_device.nowait each call that posts a request is told that the ring is full. The ring stays full because the node takes no
 * request while the kernel runs (weft_gpu_config.turns). */
#define TOLD(call) CHECK((call) == -WEFT_DEVICE_EAGAIN)
static void told(const weft_device *d, void *arg)
{
    const struct job *j = arg;
    weft_gaddr good = on_node(j->at, d->rank), mine = j->mine;
    weft_device now = *d;
    weft_device_op op;
    weft_device_worker worker = {0};
    weft_device_task task = {0};
    uint64_t old;
    CHECK(!now.nowait);
    now.nowait = true;
    KERNEL(weft_device_get(&now, mine, good, 8, &op)); /* there is room */
    weft_device_leave(&now, &op);
    for (int i = 0; i < 7; i++)
        KERNEL(weft_device_put_value(&now, good, (uint64_t)i, NULL));
    for (int with_op = 0; with_op < 2; with_op++) {
        weft_device_op *o = with_op ? &op : NULL;
        TOLD(weft_device_put(&now, good, mine, 8, o));
        TOLD(weft_device_put_nowait(d, good, mine, 8, o));
        TOLD(weft_device_put_value(&now, good, 1, o));
        TOLD(weft_device_get(&now, mine, good, 8, o));
        TOLD(weft_device_put_signal(&now, good, mine, 8, good + 8, 1, o));
        TOLD(weft_device_send(&now, d->rank, 5, 1, mine, 8, o));
        TOLD(weft_device_fetch_add_start(&now, good, 1, o));
        TOLD(weft_device_swap_start(&now, good, 1, o));
        TOLD(weft_device_compare_swap_start(&now, good, 0, 1, o));
        TOLD(weft_device_ask_start(&now, 1, mine, o));
        TOLD(weft_device_submit_start(&now, 0, mine, 1, 0, true, o));
        TOLD(weft_device_claim_start(&now, 0, mine, 1, true, o));
        TOLD(weft_device_renew_start(&now, 0, mine, 1, true, o));
        TOLD(weft_device_complete_start(&now, 0, mine, mine, 1, true, o));
        TOLD(weft_device_nothing(&now, with_op));
    }
    TOLD(weft_device_fence(&now, d->rank));
    TOLD(weft_device_flush(&now, d->rank));
    TOLD(weft_device_fetch_add(&now, good, 1, &old));
    TOLD(weft_device_swap(&now, good, 1, &old));
    TOLD(weft_device_compare_swap(&now, good, 0, 1, &old));
    TOLD(weft_device_ask(&now, 1, mine, &old));
    TOLD(weft_device_submit(&now, 0, mine, 1, 0));
    TOLD(weft_device_claim(&now, 0, mine, 1));
    TOLD(weft_device_renew(&now, 0, mine, 1, NULL));
    TOLD(weft_device_complete(&now, 0, mine, mine, 1, NULL));
    TOLD(weft_device_task_done(&now, &worker, &task, 0, 0, 0));
    CHECK(weft_device_put_value(d, good, 1, NULL) == -WEFT_DEVICE_ETIMEDOUT); /* without `nowait` a call waits */
}

static void node_told(weft_node *w, void *arg)
{
    (void)arg;
    struct job j = {.at = symmetric_alloc(w, 4096)};
    weft_gpu *g;
    weft_gpu_config config = {.bytes = sizeof config, .name = "host", .rings = 1, .slots = 8, .turns = 1};
    OK(weft_alloc(w, 64, &j.mine));
    OK(weft_gpu_open(w, &config, &g));
    for (int i = 0; i < 2; i++)
        OK(weft_gpu_run(g, told, 1, &j)); /* after a turn there is room again */
    weft_gpu_stats stats;
    OK(weft_gpu_stat(g, &stats, sizeof stats));
    CHECK(stats.requests == 16 && stats.failed == 0); /* calls that were told have posted nothing */
    OK(weft_gpu_close(g));
}

static void test_told(void **state)
{
    (void)state;
    const char *environment[] = {"WEFT_DEADLINE=300ms", NULL};
    assert_int_equal(nodes_failed_with(1, node_told, NULL, environment), 0);
}

/* A kernel writes invalid requests into a ring: the node does not execute them, the next flush reports this, even if an earlier request for
 * no node has failed, and other requests are not affected. */
static void write_nonsense(const weft_device *d, void *arg)
{
    const struct job *j = arg;
    weft_device_ring *r = &d->ring[d->block];
    uint64_t old;
    int rc = 0;
    for (int64_t until = weft_device_now_ns() + 60000000000; d->block == 0 && rc != -EPROTO && weft_device_now_ns() < until;) {
        KERNEL(weft_device_put_value(d, on_node(j->at, 77), 1, NULL));
        uint64_t next = weft_device_load_own(r->next);
        weft_device_store_cell(&r->slots[next & r->mask].cell[0], ~0ull, ~WEFT_DEVICE_ROUND | weft_device_round(next, r->mask));
        usleep(2000); /* by then the node has most likely read it, before the next request overwrites it */
        rc = weft_device_flush(d, d->rank);
    }
    CHECK(rc == (d->block == 0 ? -EPROTO : 0));
    KERNEL(weft_device_flush(d, d->rank));
    KERNEL(weft_device_fetch_add(d, on_node(j->at, d->rank), 1, &old));
}

static void node_nonsense(weft_node *w, void *arg)
{
    (void)arg;
    struct job j = {.at = symmetric_alloc(w, 4096)};
    weft_gpu *g = open_host(w, 2, 8);
    OK(weft_gpu_run(g, write_nonsense, 2, &j));
    OK(weft_gpu_close(g));
    CHECK(*(uint64_t *)weft_ptr(w, j.at, 8) == 2);
}

static void test_nonsense(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, node_nonsense, NULL), 0);
}

/* A node dies while another node's kernel puts to it: these calls fail, and calls to other nodes still work. */
static void to_the_dying(const weft_device *d, void *arg)
{
    const struct job *j = arg;
    int rc = 0;
    for (int64_t until = weft_device_now_ns() + 60000000000; rc == 0 && weft_device_now_ns() < until;) {
        for (int i = 0; i < 20; i++)
            KERNEL(weft_device_put(d, on_node(j->at, 1), j->mine, 512, NULL));
        rc = weft_device_flush(d, 1);
    }
    CHECK(rc == -ECONNRESET);
    uint64_t old;
    KERNEL(weft_device_fetch_add(d, on_node(j->at, 2), 1, &old));
    KERNEL(weft_device_flush(d, 2));
}

static void node_dying(weft_node *w, void *arg)
{
    (void)arg;
    struct job j = {.at = symmetric_alloc(w, 4096)};
    OK(weft_alloc(w, 4096, &j.mine));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 1) {
        usleep(50000);
        _exit(9);
    }
    if (weft_rank(w) == 0) {
        weft_gpu *g = open_host(w, 2, 32);
        OK(weft_gpu_run(g, to_the_dying, 4, &j));
        OK(weft_gpu_close(g));
    }
    int rc;
    while ((rc = weft_barrier(w, WEFT_TIMEOUT_DEFAULT)) == -ECONNRESET)
        ;
    OK(rc);
}

static void test_dying(void **state)
{
    (void)state;
    int status[NODES_MAX];
    nodes_run(3, node_dying, NULL, NULL, status);
    assert_int_equal(status[0], 0);
    assert_true(WIFEXITED(status[1]) && WEXITSTATUS(status[1]) == 9);
    assert_int_equal(status[2], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_and_get), cmocka_unit_test(test_atomics),  cmocka_unit_test(test_ping_pong),
        cmocka_unit_test(test_flood),       cmocka_unit_test(test_wrong),    cmocka_unit_test(test_full),
        cmocka_unit_test(test_dying),       cmocka_unit_test(test_nonsense), cmocka_unit_test(test_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
