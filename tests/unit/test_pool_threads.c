/* SPDX-License-Identifier: MIT
 *
 * The pool under load: random steps compared with a shadow model, threads that free what others have allocated, caches that outlive their
 * threads or their pools.
 */
#include <pthread.h>

#include "pool.h"

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* --- against a shadow model --- */

#define SHADOW_GRAIN 16u
#define LIVE_MAX     2000u
#define FILL         256u /* bytes of pattern at each end of a buffer */

struct buffer {
    uint64_t at, bytes;
    uint8_t pattern;
};

struct world {
    struct mem_pool *pool;
    uint8_t *shadow; /* for each 16 bytes of the pool, one byte: which thread owns them */
    unsigned threads;
    pthread_mutex_t lock;
    struct buffer *passed; /* buffers that any thread may free */
    unsigned passed_count;
    _Atomic unsigned no_room;
};

struct walker {
    struct world *world;
    uint64_t seed;
    unsigned steps;
    const char *wrong; /* cmocka's asserts are for the main thread only */
};

/* Like repeats() of cluster_test.h: fewer rounds where every step is slow. */
static unsigned often(unsigned n)
{
    const char *by = getenv("TEST_DIVIDE");
    int divisor = by ? atoi(by) : 1;
    return divisor > 1 ? n / (unsigned)divisor : n;
}

static uint64_t random_size(uint64_t r)
{
    uint64_t low = r >> 32;
    switch (r % 32) {
    case 0: return 32 * KIB + 1 + low % (256 * KIB);
    case 1 ... 6: return 1 + low % (32 * KIB);
    case 7 ... 16: return 1 + low % KIB;
    default: return 1 + low % 160;
    }
}

static bool all_are(const uint8_t *bytes, uint8_t value, uint64_t n)
{
    return n == 0 || (bytes[0] == value && memcmp(bytes, bytes + 1, n - 1) == 0);
}

static const char *adopt(struct walker *me, struct buffer *b)
{
    struct world *w = me->world;
    uint64_t size = mem_size(w->pool, b->at), end = b->at + size;
    if (size < b->bytes)
        return "a buffer is smaller than asked for";
    if (b->at < HEAP || end > mem_bytes(w->pool))
        return "a buffer is outside of the heap";
    uint8_t *shadow = w->shadow + b->at / SHADOW_GRAIN;
    if (!all_are(shadow, 0, size / SHADOW_GRAIN))
        return "a buffer overlaps a live one";
    memset(shadow, b->pattern, size / SHADOW_GRAIN);
    uint64_t n = b->bytes < FILL ? b->bytes : FILL;
    memset(bytes_at(w->pool, b->at), b->pattern, n);
    memset(bytes_at(w->pool, b->at + b->bytes - n), b->pattern, n);
    return NULL;
}

static const char *drop(struct walker *me, const struct buffer *b)
{
    struct world *w = me->world;
    uint64_t size = mem_size(w->pool, b->at), n = b->bytes < FILL ? b->bytes : FILL;
    uint8_t *shadow = w->shadow + b->at / SHADOW_GRAIN;
    if (!all_are(shadow, b->pattern, size / SHADOW_GRAIN) || shadow[0] != b->pattern)
        return "the shadow of a live buffer changed";
    if (!all_are(bytes_at(w->pool, b->at), b->pattern, n) || !all_are(bytes_at(w->pool, b->at + b->bytes - n), b->pattern, n))
        return "the bytes of a live buffer changed";
    if (size > 16 && mem_free(w->pool, b->at + 16) != -EINVAL)
        return "an interior pointer was not refused";
    memset(shadow, 0, size / SHADOW_GRAIN);
    if (mem_free(w->pool, b->at))
        return "a live buffer was not freed";
    /* If other threads run, the address may have been allocated again. */
    if (w->threads == 1 && mem_free(w->pool, b->at) != -EALREADY)
        return "a double free was not refused";
    if (w->threads == 1 && mem_size(w->pool, b->at) != 0)
        return "a freed buffer has a size";
    return NULL;
}

static void *walk(void *arg)
{
    struct walker *me = arg;
    struct world *w = me->world;
    struct buffer *live = calloc(LIVE_MAX, sizeof *live);
    unsigned count = 0;
    uint64_t r = me->seed;
    for (unsigned step = 0; step < me->steps && !me->wrong; step++) {
        uint64_t dice = next_random(&r);
        /* Allocates more than it frees for a time, then the other way round. */
        bool grow = dice % 100 < ((step / 4096) % 2 ? 35u : 65u);
        if (grow && count < LIVE_MAX) {
            struct buffer b = {.bytes = random_size(next_random(&r)), .pattern = (uint8_t)(dice >> 8 | 1)};
            uint64_t align = (dice >> 16) % 16 ? 0 : UINT64_C(1) << ((dice >> 20) % 17);
            int rc = mem_alloc(w->pool, b.bytes, align, &b.at);
            if (rc == 0) {
                if (align && b.at % align)
                    me->wrong = "an alignment was not kept";
                else
                    me->wrong = adopt(me, &b);
                live[count++] = b;
                continue;
            }
            if (rc != -ENOMEM)
                me->wrong = "an allocation failed otherwise than by -ENOMEM";
            atomic_fetch_add_explicit(&w->no_room, 1, memory_order_relaxed);
        }
        if (count && w->threads > 1 && dice >> 62 == 0) {
            /* Passes a buffer to another thread, and frees one that another thread has passed. */
            struct buffer other = {0};
            unsigned k = (unsigned)(next_random(&r) % count);
            pthread_mutex_lock(&w->lock);
            if (w->passed_count)
                other = w->passed[--w->passed_count];
            if (w->passed_count < LIVE_MAX / 4) {
                w->passed[w->passed_count++] = live[k];
                live[k] = live[--count];
            }
            pthread_mutex_unlock(&w->lock);
            if (other.at)
                me->wrong = drop(me, &other);
        } else if (count) {
            unsigned k = (unsigned)(next_random(&r) % count);
            struct buffer b = live[k];
            live[k] = live[--count];
            me->wrong = drop(me, &b);
        }
    }
    while (count && !me->wrong)
        me->wrong = drop(me, &live[--count]);
    free(live);
    return NULL;
}

/* Returns how many allocations found no room. */
static unsigned walk_all(unsigned threads, unsigned steps, uint64_t pool_bytes)
{
    enum { MAX = 8 };
    struct world w = {.pool = open_pool(pool_bytes), .threads = threads};
    struct walker walker[MAX] = {0};
    pthread_t thread[MAX];
    w.shadow = calloc(mem_bytes(w.pool) / SHADOW_GRAIN, 1);
    w.passed = calloc(LIVE_MAX, sizeof *w.passed);
    pthread_mutex_init(&w.lock, NULL);
    for (unsigned i = 0; i < threads; i++) {
        walker[i] = (struct walker){.world = &w, .seed = i + 1, .steps = steps / threads};
        assert_int_equal(pthread_create(&thread[i], NULL, walk, &walker[i]), 0);
    }
    for (unsigned i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    for (unsigned i = 0; i < threads; i++) {
        if (walker[i].wrong)
            fail_msg("thread %u: %s", i, walker[i].wrong);
    }
    while (w.passed_count) {
        const char *wrong = drop(&walker[0], &w.passed[--w.passed_count]);
        if (wrong)
            fail_msg("%s", wrong);
    }
    assert_empty(w.pool);
    pthread_mutex_destroy(&w.lock);
    free(w.passed);
    free(w.shadow);
    mem_pool_destroy(w.pool);
    return atomic_load(&w.no_room);
}

static void random_one_thread(void **state)
{
    (void)state;
    walk_all(1, often(1000000), 64 * MIB);
}

static void random_four_threads(void **state)
{
    (void)state;
    walk_all(4, often(1000000), 128 * MIB);
}

static void random_in_a_pool_too_small(void **state)
{
    (void)state;
    /* Usually there is no room for large buffers: this tests the slow paths of exhaustion under load. */
    assert_true(walk_all(4, 200000, 4 * MIB) > 100);
}

/* The cache of an idle thread keeps only a limited amount of memory. */
struct hoarder {
    struct mem_pool *pool;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int stage;
};

static void *hoard(void *arg)
{
    struct hoarder *h = arg;
    static const uint64_t sizes[] = {64, 512, 4096, 32768, 20000, 9000};
    uint64_t at[512];
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned n = 0;
        for (unsigned round = 0; round < 8; round++) {
            for (n = 0; n < 512 && mem_alloc(h->pool, sizes[i], 0, &at[n]) == 0; n++)
                ;
            for (unsigned k = 0; k < n; k++)
                (void)mem_free(h->pool, at[k]);
        }
    }
    pthread_mutex_lock(&h->lock);
    h->stage = 1;
    pthread_cond_broadcast(&h->changed);
    while (h->stage != 2)
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

static void hoards_are_bounded(void **state)
{
    (void)state;
    struct hoarder h = {.pool = open_pool(16 * MIB)};
    pthread_t thread;
    pthread_mutex_init(&h.lock, NULL);
    pthread_cond_init(&h.changed, NULL);
    assert_int_equal(pthread_create(&thread, NULL, hoard, &h), 0);
    pthread_mutex_lock(&h.lock);
    while (h.stage != 1)
        pthread_cond_wait(&h.changed, &h.lock);
    pthread_mutex_unlock(&h.lock);

    /* In blocks of 32 KiB, so that an extent with a few hoarded blocks loses only these. */
    uint64_t at[512];
    unsigned n = 0;
    while (n < 512 && mem_alloc(h.pool, 32 * KIB, 0, &at[n]) == 0)
        n++;
    struct mem_stats s;
    mem_stat(h.pool, &s);
    assert_int_equal(s.live_buffers, n);
    /* The idle thread's cache may keep up to an eighth of the blocks. Another eighth is enough for extents that blocks of other classes
     * occupy. */
    if (n < 512 * 3 / 4)
        fail_msg("an idle thread leaves others %u of 512 blocks", n);
    for (unsigned k = 0; k < n; k++)
        put_back(h.pool, at[k]);

    pthread_mutex_lock(&h.lock);
    h.stage = 2;
    pthread_cond_broadcast(&h.changed);
    pthread_mutex_unlock(&h.lock);
    pthread_join(thread, NULL);
    assert_empty(h.pool); /* the thread's cache was freed when it ended */
    pthread_cond_destroy(&h.changed);
    pthread_mutex_destroy(&h.lock);
    mem_pool_destroy(h.pool);
}

/* --- threads and pools come and go --- */

struct pipe_of_buffers {
    struct mem_pool *pool;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t at[64];
    unsigned count;
    bool done, wrong;
};

static void *consume(void *arg)
{
    struct pipe_of_buffers *q = arg;
    pthread_mutex_lock(&q->lock);
    while (!q->done || q->count) {
        if (!q->count) {
            pthread_cond_wait(&q->changed, &q->lock);
            continue;
        }
        uint64_t at = q->at[--q->count];
        pthread_cond_signal(&q->changed);
        pthread_mutex_unlock(&q->lock);
        if (mem_free(q->pool, at))
            q->wrong = true;
        pthread_mutex_lock(&q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static void freed_by_another(void **state)
{
    (void)state;
    struct pipe_of_buffers q = {.pool = open_pool(2 * MIB)};
    pthread_t thread;
    pthread_mutex_init(&q.lock, NULL);
    pthread_cond_init(&q.changed, NULL);
    assert_int_equal(pthread_create(&thread, NULL, consume, &q), 0);
    /* Many times the size of the pool passes through: one thread only allocates, the other only frees. */
    for (unsigned i = 0; i < 100000; i++) {
        uint64_t at = get(q.pool, 16 + i % 3000);
        pthread_mutex_lock(&q.lock);
        while (q.count == 64)
            pthread_cond_wait(&q.changed, &q.lock);
        q.at[q.count++] = at;
        pthread_cond_signal(&q.changed);
        pthread_mutex_unlock(&q.lock);
    }
    pthread_mutex_lock(&q.lock);
    q.done = true;
    pthread_cond_broadcast(&q.changed);
    pthread_mutex_unlock(&q.lock);
    pthread_join(thread, NULL);
    assert_false(q.wrong);
    assert_empty(q.pool);
    pthread_cond_destroy(&q.changed);
    pthread_mutex_destroy(&q.lock);
    mem_pool_destroy(q.pool);
}

static void two_pools_in_turns(void **state)
{
    (void)state;
    struct mem_pool *p[2] = {open_pool(1 * MIB), open_pool(2 * MIB)};
    uint64_t at[2][100];
    for (unsigned i = 0; i < 100; i++) {
        for (unsigned k = 0; k < 2; k++) {
            at[k][i] = get(p[k], 64 + i);
            bytes_at(p[k], at[k][i])[0] = (uint8_t)(i + 100 * k);
        }
    }
    for (unsigned i = 0; i < 100; i++) {
        for (unsigned k = 0; k < 2; k++) {
            assert_int_equal(bytes_at(p[k], at[k][i])[0], i + 100 * k);
            put_back(p[k], at[k][i]);
            assert_int_equal(mem_free(p[k], at[k][i]), -EALREADY);
        }
    }
    assert_empty(p[0]);
    mem_pool_destroy(p[0]);
    put_back(p[1], get(p[1], 64));
    assert_empty(p[1]);
    mem_pool_destroy(p[1]);
}

/* A thread outlives pools for which it has caches. */
struct visitor {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct mem_pool *pool; /* the pool to use next; NULL: no more */
    bool end;
};

static void *visit(void *arg)
{
    struct visitor *v = arg;
    pthread_mutex_lock(&v->lock);
    while (!v->end) {
        if (v->pool) {
            uint64_t at[200];
            unsigned n = 0;
            while (n < 200 && mem_alloc(v->pool, 64 + n * 7, 0, &at[n]) == 0)
                n++;
            while (n)
                (void)mem_free(v->pool, at[--n]);
            v->pool = NULL;
            pthread_cond_broadcast(&v->changed);
        }
        pthread_cond_wait(&v->changed, &v->lock);
    }
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

static void pools_go_under_caches(void **state)
{
    (void)state;
    struct visitor v = {0};
    pthread_t thread;
    pthread_mutex_init(&v.lock, NULL);
    pthread_cond_init(&v.changed, NULL);
    assert_int_equal(pthread_create(&thread, NULL, visit, &v), 0);
    for (unsigned i = 0; i < 50; i++) {
        struct mem_pool *p = open_pool(1 * MIB);
        uint64_t mine = get(p, 64);
        pthread_mutex_lock(&v.lock);
        v.pool = p;
        pthread_cond_broadcast(&v.changed);
        while (v.pool)
            pthread_cond_wait(&v.changed, &v.lock);
        pthread_mutex_unlock(&v.lock);
        put_back(p, mine);
        mem_pool_destroy(p);
    }
    pthread_mutex_lock(&v.lock);
    v.end = true;
    pthread_cond_broadcast(&v.changed);
    pthread_mutex_unlock(&v.lock);
    pthread_join(thread, NULL);
    pthread_cond_destroy(&v.changed);
    pthread_mutex_destroy(&v.lock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_one_thread),     cmocka_unit_test(random_four_threads), cmocka_unit_test(random_in_a_pool_too_small),
        cmocka_unit_test(hoards_are_bounded),    cmocka_unit_test(freed_by_another),    cmocka_unit_test(two_pools_in_turns),
        cmocka_unit_test(pools_go_under_caches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
