/* SPDX-License-Identifier: MIT
 *
 * Kernels in the form that Metal's language has (tests/gpu/metal_kernels.metal, compiled with a stand-in for its library), played by the
 * GPU `host`, whose kernels take turns with the node as Apple's have to: rings, answers, addresses, between nodes, and all services.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "../gpu/metal_kernels.h"
#include "cluster_test.h"
#include "net_test.h"
#include "weft/request.h"

#define BLOCKS 5u
#define RINGS  2u
#define SLOTS  64u
#define ROUNDS 60u /* a ring goes round several times */

typedef void metal_uses(const weft_device *given, struct metal_service *all, unsigned block);
metal_uses metal_program, metal_file, metal_net;

typedef void metal_kernel(const weft_device *given, struct metal_argument *all, unsigned block);
metal_kernel metal_start, metal_look, metal_read, metal_flood, metal_wrong;

struct launch {
    metal_kernel *kernel;
    struct metal_argument a[BLOCKS];
    _Atomic uint32_t again; /* counts requests that found room in a full ring while the kernel ran, which must not happen */
};

/* Runs the kernel as a GPU of Apple does, which passes the number of the block to all threads as an argument. */
static void play(const weft_device *d, void *arg)
{
    struct launch *l = arg;
    weft_device given = *d;
    given.block = 0;
    l->kernel(&given, l->a, d->block);
}

static void play_twice(const weft_device *d, void *arg)
{
    struct launch *l = arg;
    play(d, l);
    struct metal_argument first = l->a[d->block];
    nanosleep(&(struct timespec){.tv_nsec = 30 * 1000 * 1000}, NULL);
    play(d, l);
    if (l->a[d->block].posted)
        atomic_fetch_add(&l->again, 1);
    l->a[d->block].posted = first.posted;
}

static void run(weft_gpu *g, struct launch *l, metal_kernel *kernel, int wanted)
{
    l->kernel = kernel;
    int rc = weft_gpu_run(g, kernel == metal_flood ? play_twice : play, BLOCKS, l);
    for (uint32_t i = 0; i < BLOCKS; i++)
        if (l->a[i].result) {
            fprintf(stderr, "metal_kernels.metal:%d: block %u\n", l->a[i].result, i);
            _exit(1);
        }
    CHECK(rc == wanted);
}

static void heard(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len, void *arg)
{
    (void)w, (void)from, (void)header, (void)payload, (void)len;
    CHECK(header_len == 8);
    atomic_fetch_add((_Atomic uint32_t *)arg, 1);
}

static void prepare(weft_node *w, struct launch *l, weft_gaddr *counter, weft_gpu **g)
{
    weft_gpu_config config = {.bytes = sizeof config, .name = "host", .rings = RINGS, .slots = SLOTS, .turns = 1};
    uint32_t next = (weft_rank(w) + 1) % weft_size(w);
    weft_gaddr mine = symmetric_alloc(w, 8 * METAL_WORDS * BLOCKS), at = symmetric_alloc(w, 8 * METAL_WORDS * BLOCKS);
    *counter = symmetric_alloc(w, 8);
    for (uint32_t i = 0; i < BLOCKS; i++)
        l->a[i] = (struct metal_argument){.mine = on_node(mine, weft_rank(w)) + 8 * METAL_WORDS * i,
                                          .there = on_node(at, next) + 8 * METAL_WORDS * i,
                                          .counter = on_node(*counter, 0)};
    OK(weft_gpu_open(w, &config, g));
}

static void node_all(weft_node *w, void *arg)
{
    static _Atomic uint32_t messages;
    struct launch l = {0};
    weft_gaddr counter;
    weft_gpu *g;
    (void)arg;
    OK(weft_handle(w, 40, heard, &messages));
    prepare(w, &l, &counter, &g);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        run(g, &l, metal_start, 0);
        run(g, &l, metal_look, 0);
        run(g, &l, metal_read, 0);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    uint64_t n = 0;
    OK(weft_get_blocking(w, &n, on_node(counter, 0), 8));
    CHECK(n == (uint64_t)ROUNDS * BLOCKS * weft_size(w));
    wait_for(&messages, ROUNDS * BLOCKS);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_gpu_close(g));
}

static void test_all(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, node_all, NULL), 0);
}

/* The node takes no request out of a ring while a kernel runs. A request that finds no room fails. */
static void node_full(weft_node *w, void *arg)
{
    struct launch l = {0};
    weft_gaddr counter;
    weft_gpu *g;
    weft_gpu_stats s;
    (void)arg;
    prepare(w, &l, &counter, &g);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t round = 0; round < 3; round++) {
        run(g, &l, metal_flood, 0);
        uint32_t posted = 0;
        for (uint32_t i = 0; i < BLOCKS; i++)
            posted += (uint32_t)l.a[i].posted;
        CHECK(posted == RINGS * SLOTS && l.again == 0);
        OK(weft_gpu_stat(g, &s, sizeof s));
        CHECK(s.requests == (uint64_t)(round + 1) * RINGS * SLOTS);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_gpu_close(g));
}

static void test_full(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, node_full, NULL), 0);
}

static void node_wrong(weft_node *w, void *arg)
{
    struct launch l = {0};
    weft_gaddr counter;
    weft_gpu *g;
    weft_gpu_worker *k;
    weft_queue *q;
    (void)arg;
    prepare(w, &l, &counter, &g);
    run(g, &l, metal_wrong, -EFAULT);
    run(g, &l, metal_wrong, -EFAULT); /* and the failure is reported once for each turn */
    OK(weft_queue_open(w, "metal", NULL, &q));
    CHECK(weft_gpu_worker_open(g, q, NULL, &k) == -ENOTSUP && strstr(weft_error(), "waits while a kernel runs"));
    CHECK(weft_gpu_run_text(g, "kernel", "k", 1, 1, NULL, 0) == -ENOTSUP);
    CHECK(weft_gpu_open(w, &(weft_gpu_config){.bytes = sizeof(weft_gpu_config), .turns = 2}, &g) == -EINVAL);
}

static void test_wrong(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, node_wrong, NULL), 0);
}

/* --- services: a call that would wait is continued by the next kernel --- */

struct uses {
    metal_uses *kernel;
    struct metal_service a[BLOCKS];
};

static void play_uses(const weft_device *d, void *arg)
{
    struct uses *u = arg;
    weft_device given = *d;
    given.block = 0;
    u->kernel(&given, u->a, d->block);
}

static weft_gaddr put_text(weft_node *w, const char *text, size_t bytes)
{
    weft_gaddr at;
    OK(weft_alloc(w, bytes, &at));
    memcpy(weft_ptr(w, at, bytes), text, bytes);
    return at;
}

/* Runs the kernel again and again, until all blocks have taken all steps. */
static void run_uses(weft_gpu *g, struct uses *u, metal_uses *kernel)
{
    int64_t until = now_ns() + patience_ns(40);
    u->kernel = kernel;
    for (bool over = false; !over;) {
        over = true;
        int rc = weft_gpu_run(g, play_uses, BLOCKS, u);
        for (uint32_t i = 0; i < BLOCKS; i++) {
            if (u->a[i].result || now_ns() > until) {
                fprintf(stderr, "metal_kernels.metal:%d: block %u, step %d\n", u->a[i].result, i, u->a[i].step);
                _exit(1);
            }
            over &= u->a[i].step == METAL_ENDED;
        }
        CHECK(rc == 0);
    }
    for (uint32_t i = 0; i < BLOCKS; i++)
        u->a[i].step = 0;
}

static void node_services(weft_node *w, void *arg)
{
    static const char cat[] = "cat\0\0cat", loopback[] = "127.0.0.1";
    weft_gpu_config config = {.bytes = sizeof config, .name = "host", .rings = RINGS, .slots = SLOTS, .turns = 1};
    struct uses u = {0};
    weft_gpu *g;
    (void)arg;
    OK(weft_gpu_open(w, &config, &g));
    for (uint32_t i = 0; i < BLOCKS; i++) {
        struct metal_service *a = &u.a[i];
        char path[64];
        snprintf(path, sizeof path, "/tmp/weft-metal-%d-%u", (int)getpid(), i);
        a->path = put_text(w, path, a->path_bytes = strlen(path));
        a->texts = put_text(w, cat, a->text_bytes = sizeof cat);
        a->host = put_text(w, loopback, a->host_bytes = sizeof loopback - 1);
        OK(weft_alloc_aligned(w, WEFT_REQUEST_BYTES, 64, &a->record));
        memset(weft_ptr(w, a->record, WEFT_REQUEST_BYTES), 0, WEFT_REQUEST_BYTES);
        OK(weft_alloc(w, METAL_BYTES, &a->in));
        OK(weft_alloc(w, METAL_BYTES + 8, &a->out));
        OK(weft_alloc(w, 8, &a->word));
        for (uint32_t k = 0; k < METAL_BYTES; k++)
            ((uint8_t *)weft_ptr(w, a->in, METAL_BYTES))[k] = (uint8_t)(k * 7 + i);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    metal_uses *const all[] = {metal_program, metal_file, metal_net};
    for (uint32_t k = 0; weft_rank(w) == 1 && k < 3; k++) {
        run_uses(g, &u, all[k]);
        for (uint32_t i = 0; i < BLOCKS; i++) {
            CHECK(!memcmp(weft_ptr(w, u.a[i].in, METAL_BYTES), weft_ptr(w, u.a[i].out, METAL_BYTES), METAL_BYTES));
            memset(weft_ptr(w, u.a[i].out, METAL_BYTES), 0, METAL_BYTES);
        }
    }
    for (uint32_t i = 0; weft_rank(w) == 1 && i < BLOCKS; i++) {
        char path[64] = {0};
        memcpy(path, weft_ptr(w, u.a[i].path, u.a[i].path_bytes), u.a[i].path_bytes);
        CHECK(unlink(path) == 0);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_gpu_close(g));
}

static void test_services(void **state)
{
    (void)state;
    static const char *const offers[] = {"WEFT_SERVE=process,name,net,file", "WEFT_NET_RULES=" LOOPBACK, "WEFT_LOG=error", NULL};
    assert_int_equal(nodes_failed_with(2, node_services, NULL, offers), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all), cmocka_unit_test(test_full), cmocka_unit_test(test_wrong),
                                       cmocka_unit_test(test_services)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
