/* SPDX-License-Identifier: MIT
 *
 * Arenas that the RDMA device accesses: bytes between arenas, pools and other memory of two nodes, also while messages are lost and cables
 * are pulled; and what makes weft use the pool instead. The GPU is `host`, or the one that WEFT_TEST_GPU names.
 *
 * Usage: test_gpu_rdma [direct | few | none]: a device that takes arenas (the default), one with few regions, one that takes no dmabufs
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#include "cluster_test.h"
#include "fabric/rc/rc.h"
#include "gpu/arena.h"

#define AREA  (4u << 20)
#define SPACE 1u

struct plan {
    const char *way, *why; /* how weft_link_stat() reports it */
    bool direct;           /* the device moves data from and to arenas */
    bool broken;           /* the device was told to refuse */
    int rounds;
};

struct mine {
    weft_node *w;
    weft_gpu *g;
    weft_gaddr arena, pool; /* areas of every node, at the same offsets */
    uint8_t *near[3];       /* outside the pool, in the pool, in the arena (the GPU's address) */
    uint64_t seed;
    uint8_t *bytes, *back;
};

static void fill(uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t r = random_next(&seed);
        memcpy(p + i, &r, n - i < 8 ? n - i : 8);
    }
}

static void mine_open(struct mine *m, weft_node *w)
{
    const char *name = getenv("WEFT_TEST_GPU");
    weft_gpu_config config = {.bytes = sizeof config, .name = name ? name : "host", .rings = 1, .slots = 64};
    uint32_t space;
    weft_gaddr local;
    *m = (struct mine){.w = w, .seed = 77 + weft_rank(w)};
    m->pool = symmetric_alloc(w, 2 * AREA);
    OK(weft_gpu_open(w, &config, &m->g));
    OK(weft_gpu_arena(m->g, 3 * AREA, &space));
    CHECK(space == SPACE);
    OK(weft_gpu_alloc(m->g, SPACE, 2 * AREA, &m->arena)); /* the first allocation is at the same offset on every node */
    OK(weft_gpu_alloc(m->g, SPACE, AREA, &local));
    m->near[0] = malloc(AREA);
    m->near[1] = weft_ptr(w, on_node(m->pool, weft_rank(w)) + AREA, AREA);
    m->near[2] = weft_gpu_ptr(m->g, local, AREA);
    m->bytes = malloc(AREA);
    m->back = malloc(AREA);
    CHECK(m->near[0] && m->near[1] && m->near[2] && m->bytes && m->back);
    m->arena += AREA; /* the area that other nodes use */
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static struct gpu_arena *own_arena(weft_node *w)
{
    return gpu_arenas_of(w)->own[SPACE];
}

static size_t some_length(uint64_t *seed)
{
    static const size_t most[] = {64, 5000, 300000, 1u << 20, AREA - 64};
    return 1 + random_next(seed) % most[random_next(seed) % 5];
}

/* The local end: memory of the arena is reached by puts and gets of this node to itself. */
static void near_write(struct mine *m, unsigned kind, const uint8_t *from, size_t n)
{
    weft_gaddr own = on_node(m->arena, weft_rank(m->w)) + AREA;
    if (kind < 2)
        memcpy(m->near[kind], from, n);
    else
        OK(weft_put_blocking(m->w, own, from, n));
}

static void near_read(struct mine *m, unsigned kind, uint8_t *to, size_t n)
{
    weft_gaddr own = on_node(m->arena, weft_rank(m->w)) + AREA;
    if (kind < 2)
        memcpy(to, m->near[kind], n);
    else
        OK(weft_get_blocking(m->w, to, own, n));
}

static int waited(weft_node *w, weft_op *op)
{
    return weft_wait(w, op, WEFT_TIMEOUT_DEFAULT);
}

/* One put and one get of the same bytes, from one kind of local memory, into another. */
static void there_and_back(struct mine *m, uint32_t peer, weft_gaddr area, unsigned from, unsigned to)
{
    size_t n = some_length(&m->seed), at = random_next(&m->seed) % (AREA - n);
    weft_op op;
    fill(m->bytes, n, random_next(&m->seed));
    near_write(m, from, m->bytes, n);
    OK(weft_put(m->w, on_node(area, peer) + at, m->near[from], n, &op));
    CHECK(waited(m->w, &op) == 0);
    memset(m->back, 0xee, n);
    near_write(m, to, m->back, n);
    OK(weft_get(m->w, m->near[to], on_node(area, peer) + at, n, &op));
    CHECK(waited(m->w, &op) == 0);
    near_read(m, to, m->back, n);
    if (memcmp(m->bytes, m->back, n)) {
        fprintf(stderr, "node %u: %zu bytes at %zu, local memory %u and %u: not what was put\n", weft_rank(m->w), n, at, from, to);
        _exit(1);
    }
}

static void all_ends(struct mine *m, uint32_t peer)
{
    for (unsigned kind = 0; kind < 3; kind++) {
        there_and_back(m, peer, m->arena, kind, (kind + 1) % 3);
        there_and_back(m, peer, m->pool, kind, 2);
    }
}

/* Make a region that is registered but cannot be accessed, as with some drivers. */
static void break_region(weft_node *w)
{
    struct rc_memory *m = (struct rc_memory *)own_arena(w)->rdma;
    CHECK(m);
    for (uint32_t i = 0; i < m->regions.count; i++)
        m->regions.mr[i]->lkey ^= 0x5500;
}

static void way_is(weft_node *w, uint32_t node, const struct plan *p)
{
    weft_link_stats s = stats(w, node);
    for (time_t until = time(NULL) + 20; p->broken && !strstr(s.arena_why, p->why) && time(NULL) < until; s = stats(w, node))
        usleep(1000); /* until the node has been told */
    if (strcmp(s.arena_way, p->way) || !strstr(s.arena_why, p->why)) {
        fprintf(stderr, "node %u: %s (%s), not %s (%s)\n", weft_rank(w), s.arena_way, s.arena_why, p->way, p->why);
        _exit(1);
    }
}

static void node_moves(weft_node *w, void *arg)
{
    const struct plan *p = arg;
    uint32_t peer = 1 - weft_rank(w);
    struct mine m;
    mine_open(&m, w);
    if (p->broken)
        break_region(w);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    _Atomic uint64_t *direct = &gpu_arenas_of(w)->direct;
    OK(weft_put_blocking(w, on_node(m.arena, peer), m.near[0], AREA));
    OK(weft_get_blocking(w, m.near[1], on_node(m.arena, peer), AREA));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    uint64_t for_other = *direct; /* this node's device has moved what the other node asked for */
    CHECK(p->direct ? for_other >= 2 * AREA / ARENA_PIECE : for_other == 0);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_get_blocking(w, m.near[1], on_node(m.arena, peer), AREA));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for_other = *direct;
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_put_blocking(w, on_node(m.pool, peer), m.near[2], AREA));
    CHECK(p->direct ? *direct >= for_other + AREA / ARENA_PIECE : *direct == 0);
    for (int i = 0; i < p->rounds; i++)
        all_ends(&m, peer);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    way_is(w, peer, p);
    CHECK(!p->broken || own_arena(w)->rdma_why == -EACCES);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (p->broken)
        break_region(w); /* restore it, so that it can be deregistered */
    OK(weft_gpu_close(m.g));
    free(m.near[0]);
    free(m.bytes);
    free(m.back);
}

static const char *const DIRECT = "the RDMA device of its node accesses the GPU's memory";
static const char *const OFF = "WEFT_GPU_RDMA is set to no on its node";
static const char *const REFUSES = "through the pools: its RDMA device refuses to access it";

static void moves(struct plan p, const char *const *environment)
{
    p.rounds = p.rounds ? p.rounds : (int)repeats(10);
    assert_int_equal(nodes_failed_with(2, node_moves, &p, environment), 0);
}

static void test_direct(void **state)
{
    (void)state;
    moves((struct plan){.way = "rdma", .why = DIRECT, .direct = true}, NULL);
}

static void test_off(void **state)
{
    (void)state;
    moves((struct plan){.way = "staged", .why = OFF}, (const char *const[]){"WEFT_GPU_RDMA=no", NULL});
}

static void moves_with_loss(struct plan p, const char *const *environment)
{
    softverbs("fault add drop --chance 2% --seed 5");
    softverbs("fault add delay --time 1ms --every 7");
    moves(p, environment);
    softverbs("fault clear");
}

static void test_loss(void **state)
{
    (void)state;
    moves_with_loss((struct plan){.way = "rdma", .why = DIRECT, .direct = true}, NULL);
}

static void test_loss_off(void **state)
{
    (void)state;
    moves_with_loss((struct plan){.way = "staged", .why = OFF}, (const char *const[]){"WEFT_GPU_RDMA=no", NULL});
}

/* Queue pairs break while the device reads and writes arenas. */
static void node_cables(weft_node *w, void *arg)
{
    const struct plan *p = arg;
    uint32_t peer = 1 - weft_rank(w);
    struct mine m;
    mine_open(&m, w);
    for (int i = 0; i < p->rounds; i++) {
        weft_op op;
        fill(m.bytes, AREA, (uint64_t)i + 1);
        near_write(&m, 2, m.bytes, AREA);
        for (int way = 0; way < 2; way++) {
            weft_gaddr to = on_node(way ? m.arena : m.pool, peer);
            OK(weft_put(w, to, m.near[2 * !way], 0, NULL));
            memcpy(m.near[0], m.bytes, AREA);
            OK(weft_put(w, to, m.near[way ? 0 : 2], AREA - 64, &op));
            if (weft_rank(w) == 0)
                softverbs("fault pull 1:sv0");
            usleep(20000);
            if (weft_rank(w) == 0)
                softverbs("fault plug 1:sv0");
            CHECK(waited(w, &op) == 0);
            OK(weft_get_blocking(w, m.back, to, AREA - 64));
            CHECK(!memcmp(m.bytes, m.back, AREA - 64));
        }
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    CHECK(gpu_arenas_of(w)->direct > 0);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_gpu_close(m.g));
}

static void test_cables(void **state)
{
    (void)state;
    struct plan p = {.rounds = 3};
    assert_int_equal(nodes_failed_with(2, node_cables, &p, NULL), 0);
    softverbs("fault plug 1:sv0"); /* also if the test failed */
}

/* The device registers the arena and then cannot access it. */
static void test_broken(void **state)
{
    (void)state;
    moves((struct plan){.way = "staged", .why = REFUSES, .broken = true}, (const char *const[]){"WEFT_LOG=error", NULL});
}

/* The device has moved data of the arena, and then refuses to, while this node's own puts and gets are under way: these still complete, and
 * a signal still arrives after its data. */
static void node_refused_later(weft_node *w, void *arg)
{
    const struct plan *p = arg;
    uint32_t me = weft_rank(w), peer = 1 - me;
    _Atomic uint64_t *direct = &gpu_arenas_of(w)->direct;
    struct mine m;
    weft_op put, get, signalled;
    mine_open(&m, w);
    weft_gaddr words = symmetric_alloc(w, 64);
    weft_gaddr own = on_node(m.arena, me) + AREA; /* m.near[2] */
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    fill(m.bytes, AREA, 5);
    OK(weft_put_blocking(w, own, m.bytes, AREA));
    OK(weft_put_blocking(w, on_node(m.pool, peer), m.near[2], AREA));
    CHECK(*direct >= AREA / ARENA_PIECE);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    CHECK(!memcmp(weft_ptr(w, on_node(m.pool, me), AREA), m.bytes, AREA));
    memset(weft_ptr(w, on_node(m.pool, me), 2 * AREA), 0, 2 * AREA);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (me == 0)
        break_region(w);
    uint64_t before = *direct;
    fill(m.bytes, AREA, 6);
    OK(weft_put_blocking(w, own, m.bytes, AREA));
    OK(weft_put(w, on_node(m.pool, peer), m.near[2], AREA / 2, &put));
    OK(weft_put_signal(w, on_node(m.pool, peer) + AREA / 2, m.near[2] + AREA / 2, AREA / 2, on_node(words, peer), 1, &signalled));
    CHECK(waited(w, &put) == 0 && waited(w, &signalled) == 0);
    OK(weft_wait_until(w, on_node(words, me), WEFT_GE, 1, NULL, WEFT_TIMEOUT_DEFAULT));
    CHECK(!memcmp((uint8_t *)weft_ptr(w, on_node(m.pool, me), AREA) + AREA / 2, m.bytes + AREA / 2, AREA / 2));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    CHECK(!memcmp(weft_ptr(w, on_node(m.pool, me), AREA), m.bytes, AREA));
    OK(weft_put_blocking(w, own, m.back, AREA)); /* other bytes, so that the get must bring them */
    OK(weft_get(w, m.near[2], on_node(m.pool, peer), AREA, &get));
    CHECK(waited(w, &get) == 0);
    OK(weft_get_blocking(w, m.back, own, AREA));
    CHECK(!memcmp(m.back, m.bytes, AREA));
    CHECK(me == 0 ? own_arena(w)->rdma_why == -EACCES && *direct == before : own_arena(w)->rdma_why == 0 && *direct > before);
    if (me == 1)
        way_is(w, 0, p);
    else
        CHECK(!strcmp(stats(w, 1).arena_way, "rdma"));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (me == 0)
        break_region(w); /* as it was */
    OK(weft_gpu_close(m.g));
}

static void test_later(void **state)
{
    (void)state;
    struct plan p = {.way = "staged", .why = REFUSES, .broken = true};
    assert_int_equal(nodes_failed_with(2, node_refused_later, &p, (const char *const[]){"WEFT_LOG=error", NULL}), 0);
}

/* The device registers the first arena, but no more after it: the second arena is staged, the first one is not. */
static void node_second(weft_node *w, void *arg)
{
    const struct plan *p = arg;
    uint32_t me = weft_rank(w), peer = 1 - me, space;
    _Atomic uint64_t *direct = &gpu_arenas_of(w)->direct;
    struct mine m;
    weft_gaddr second;
    mine_open(&m, w);
    if (me == 0)
        softverbs("fault add refuse --verb reg_mr --errno ENOMEM");
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_gpu_arena(m.g, 2 * AREA, &space));
    CHECK(space == SPACE + 1);
    OK(weft_gpu_alloc(m.g, space, AREA, &second));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    CHECK(gpu_arenas_of(w)->own[space]->rdma_why == -ENOMEM && own_arena(w)->rdma_why == 0);
    uint64_t before = *direct;
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    fill(m.bytes, AREA, 9 + me);
    OK(weft_put_blocking(w, on_node(second, peer), m.bytes, AREA));
    OK(weft_get_blocking(w, m.back, on_node(second, peer), AREA));
    CHECK(!memcmp(m.back, m.bytes, AREA));
    OK(weft_put_blocking(w, on_node(m.pool, peer), weft_gpu_ptr(m.g, on_node(second, me), AREA), AREA));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    CHECK(*direct == before);
    OK(weft_put_blocking(w, on_node(m.pool, peer), m.near[2], AREA));
    CHECK(*direct >= before + AREA / ARENA_PIECE);
    way_is(w, peer, p);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_gpu_close(m.g));
}

static void test_second(void **state)
{
    (void)state;
    struct plan p = {.way = "rdma", .why = "by its node's RDMA device, except space 2: "};
    int failed = nodes_failed_with(2, node_second, &p, NULL);
    softverbs("fault clear");
    assert_int_equal(failed, 0);
}

static void test_refused(void **state)
{
    (void)state;
    moves((struct plan){.way = "staged", .why = "gives no dmabuf, or its device takes none"}, NULL);
}

static void test_few(void **state)
{
    (void)state;
    moves((struct plan){.way = "staged", .why = "has too few regions"}, (const char *const[]){"WEFT_POOL=76M", NULL});
    moves((struct plan){.way = "rdma", .why = DIRECT, .direct = true}, (const char *const[]){"WEFT_POOL=24M", NULL});
}

/* The owner is killed while the other node's device accesses pool and arena. */
static void node_killed(weft_node *w, void *arg)
{
    struct mine m;
    (void)arg;
    mine_open(&m, w);
    if (weft_rank(w) == 1) {
        usleep(100000);
        kill(getpid(), SIGKILL);
    }
    int rc = 0;
    for (time_t until = time(NULL) + 60; rc == 0 && time(NULL) < until;) {
        weft_op ops[3];
        int started = 0;
        rc = weft_put(w, on_node(m.arena, 1), m.near[0], AREA, &ops[0]);
        started += rc == 0;
        rc = rc ? rc : weft_put(w, on_node(m.pool, 1), m.near[2], AREA, &ops[1]);
        started += rc == 0;
        rc = rc ? rc : weft_get(w, m.near[2], on_node(m.pool, 1), AREA, &ops[2]);
        started += rc == 0;
        for (int i = 0; i < started; i++) {
            int one = waited(w, &ops[i]);
            CHECK(one == 0 || one == -ECONNRESET);
            rc = rc ? rc : one;
        }
    }
    CHECK(rc == -ECONNRESET && own_arena(w)->users == 0);
    OK(weft_gpu_close(m.g));
    _exit(0);
}

static void test_killed(void **state)
{
    (void)state;
    int status[NODES_MAX];
    nodes_run(2, node_killed, NULL, (const char *const[]){"WEFT_LOG=error", NULL}, status);
    assert_true(WIFSIGNALED(status[1]));
    assert_int_equal(status[0], 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest direct[] = {cmocka_unit_test(test_direct),   cmocka_unit_test(test_off),    cmocka_unit_test(test_loss),
                                        cmocka_unit_test(test_loss_off), cmocka_unit_test(test_cables), cmocka_unit_test(test_broken),
                                        cmocka_unit_test(test_later),    cmocka_unit_test(test_second), cmocka_unit_test(test_killed)};
    const struct CMUnitTest few[] = {cmocka_unit_test(test_few)}, none[] = {cmocka_unit_test(test_refused)};
    const char *which = argc > 1 ? argv[1] : "direct";
    if (!strcmp(which, "few"))
        return cmocka_run_group_tests_name("gpu_rdma, few regions", few, NULL, NULL);
    if (!strcmp(which, "none"))
        return cmocka_run_group_tests_name("gpu_rdma, no dmabufs", none, NULL, NULL);
    return cmocka_run_group_tests_name("gpu_rdma", direct, NULL, NULL);
}
