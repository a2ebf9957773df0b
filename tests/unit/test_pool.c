/* SPDX-License-Identifier: MIT
 *
 * The pool: every buffer is its own memory, wrong frees are refused and change nothing, exhaustion is an error one
 * can go on after, threads may free what others allocated, and nothing is lost when threads or pools go.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mem/mem.h"

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)
#define GIB (MIB * 1024)
#define HEAP MEM_EXTENT_BYTES /* what the pools here leave below the heap: one extent, the least there is */

static struct mem_pool *open_pool(uint64_t heap_bytes)
{
    struct mem_options o = {.bytes = heap_bytes + HEAP, .heap_offset = HEAP};
    struct mem_pool *p = NULL;
    if (mem_pool_create(&p, &o))
        fail_msg("%s", base_error());
    return p;
}

static uint64_t get(struct mem_pool *p, uint64_t bytes)
{
    uint64_t at = 0;
    if (mem_alloc(p, bytes, 0, &at))
        fail_msg("%s", base_error());
    return at;
}

static void put_back(struct mem_pool *p, uint64_t at)
{
    if (mem_free(p, at))
        fail_msg("%s", base_error());
}

static uint8_t *bytes_at(struct mem_pool *p, uint64_t at)
{
    return (uint8_t *)mem_base(p) + at;
}

/* Nothing is live, and all of the heap is one piece again. */
static void assert_empty(struct mem_pool *p)
{
    struct mem_stats s;
    mem_stat(p, &s);
    assert_int_equal(s.live_buffers, 0);
    assert_int_equal(s.live_bytes, 0);
    assert_int_equal(s.largest_free_bytes, mem_bytes(p) - HEAP);
}

static void assert_says(const char *part)
{
    if (!strstr(base_error(), part))
        fail_msg("\"%s\" does not say \"%s\"", base_error(), part);
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* --- many buffers live at once --- */

static inline uint64_t word_of(uint64_t buffer, uint64_t word)
{
    return (buffer + 1) * UINT64_C(0x9e3779b97f4a7c15) + word * UINT64_C(0xbf58476d1ce4e5b9);
}

static void fill_and_check(uint64_t count, uint64_t size)
{
    /* Beside the buffers only the extent below the heap: 512 KiB is 8 extents, and all books are private. */
    struct mem_pool *p = open_pool(count * size);
    uint64_t *at = calloc(count, sizeof *at);
    for (uint64_t i = 0; i < count; i++) {
        at[i] = get(p, size);
        uint64_t *w = (uint64_t *)(void *)bytes_at(p, at[i]);
        for (uint64_t k = 0; k < size / 8; k++)
            w[k] = word_of(i, k);
    }
    uint64_t none, wrong = 0;
    assert_int_equal(mem_alloc(p, 1, 0, &none), -ENOMEM);
    struct mem_stats s;
    mem_stat(p, &s);
    assert_int_equal(s.live_buffers, count);
    assert_int_equal(s.live_bytes, count * size);
    assert_int_equal(s.largest_free_bytes, 0);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t *w = (uint64_t *)(void *)bytes_at(p, at[i]);
        for (uint64_t k = 0; k < size / 8; k++)
            wrong += w[k] != word_of(i, k);
    }
    assert_int_equal(wrong, 0);
    for (uint64_t i = 0; i < count; i += 2)
        put_back(p, at[i]);
    for (uint64_t i = 1; i < count; i += 2)
        put_back(p, at[i]);
    assert_empty(p);
    free(at);
    mem_pool_destroy(p);
}

static void buffers_256_of_128_mib(void **state)
{
    (void)state;
    fill_and_check(256, 512 * KIB);
}

static void buffers_4096_of_2_gib(void **state)
{
    (void)state;
    /* The thread sanitizer shadows each byte with four: there 512 MiB must do. */
    fill_and_check(UNDER_TSAN ? 1024 : 4096, 512 * KIB);
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
    uint8_t *shadow; /* a byte for each 16 of the pool: who owns it */
    unsigned threads;
    pthread_mutex_t lock;
    struct buffer *passed; /* to be freed by whoever comes */
    unsigned passed_count;
    _Atomic unsigned no_room;
};

struct walker {
    struct world *world;
    uint64_t seed;
    unsigned steps;
    const char *wrong; /* cmocka's asserts are for the main thread only */
};

static uint64_t random_size(uint64_t r)
{
    uint64_t low = r >> 32;
    switch (r % 32) {
    case 0:
        return 32 * KIB + 1 + low % (256 * KIB);
    case 1 ... 6:
        return 1 + low % (32 * KIB);
    case 7 ... 16:
        return 1 + low % KIB;
    default:
        return 1 + low % 160;
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
    if (!all_are(bytes_at(w->pool, b->at), b->pattern, n) ||
        !all_are(bytes_at(w->pool, b->at + b->bytes - n), b->pattern, n))
        return "the bytes of a live buffer changed";
    if (size > 16 && mem_free(w->pool, b->at + 16) != -EINVAL)
        return "an interior pointer was not refused";
    memset(shadow, 0, size / SHADOW_GRAIN);
    if (mem_free(w->pool, b->at))
        return "a live buffer was not freed";
    /* With other threads about, the address may be somebody's again. */
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
        /* Waves: for a time more is allocated than freed, then the other way. */
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
            /* Give one away, and free what another gave. */
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

static void walk_all(unsigned threads, unsigned steps, uint64_t pool_bytes)
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
}

static void random_one_thread(void **state)
{
    (void)state;
    walk_all(1, 1000000, 64 * MIB);
}

static void random_four_threads(void **state)
{
    (void)state;
    walk_all(4, 1000000, 128 * MIB);
}

static void random_in_a_pool_too_small(void **state)
{
    (void)state;
    /* Most of the time there is no room for large buffers: the slow paths of exhaustion under traffic. */
    walk_all(4, 200000, 4 * MIB);
}

/* --- exhaustion --- */

static void exhaustion(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {16, 48, 64, 100, 320, 1000, 5000, 9 * KIB, 20 * KIB, 24 * KIB, 32 * KIB, 64 * KIB, 300 * KIB};
    struct mem_pool *p = open_pool(8 * MIB);
    uint64_t *at = calloc(8 * MIB / 16 + 1, sizeof *at);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t n = 0, none;
        while (mem_alloc(p, sizes[i], 0, &at[n]) == 0)
            n++;
        assert_int_equal(mem_alloc(p, sizes[i], 0, &none), -ENOMEM);
        assert_says("no room");
        uint64_t used = n * mem_size(p, at[0]);
        if (used < 8 * MIB * 85 / 100)
            fail_msg("full with %llu buffers of %llu bytes only", (unsigned long long)n, (unsigned long long)sizes[i]);
        /* All stays usable: what is freed can be had again. */
        uint64_t again;
        put_back(p, at[n / 2]);
        assert_int_equal(mem_alloc(p, sizes[i], 0, &again), 0);
        assert_int_equal(again, at[n / 2]);
        for (uint64_t k = 0; k < n; k++)
            put_back(p, at[k]);
        /* Also what lies in this thread's cache: the next takes the whole heap. */
        uint64_t whole = get(p, 8 * MIB);
        assert_int_equal(mem_size(p, whole), 8 * MIB);
        put_back(p, whole);
        assert_empty(p);
    }
    free(at);
    mem_pool_destroy(p);
}

/* What a thread keeps in its cache while it does nothing is bounded. */
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

    /* In 32 KiB blocks, so that extents broken by a few hoarded blocks lose at most their own. */
    uint64_t at[512];
    unsigned n = 0;
    while (n < 512 && mem_alloc(h.pool, 32 * KIB, 0, &at[n]) == 0)
        n++;
    struct mem_stats s;
    mem_stat(h.pool, &s);
    assert_int_equal(s.live_buffers, n);
    /* An eighth may be hoarded; blocks of other classes break extents, an eighth more is ample for that. */
    if (n < 512 * 3 / 4)
        fail_msg("an idle thread leaves others %u of 512 blocks", n);
    for (unsigned k = 0; k < n; k++)
        put_back(h.pool, at[k]);

    pthread_mutex_lock(&h.lock);
    h.stage = 2;
    pthread_cond_broadcast(&h.changed);
    pthread_mutex_unlock(&h.lock);
    pthread_join(thread, NULL);
    assert_empty(h.pool); /* the thread's end gave its cache back */
    pthread_cond_destroy(&h.changed);
    pthread_mutex_destroy(&h.lock);
    mem_pool_destroy(h.pool);
}

/* --- wrong frees --- */

static void assert_refused(struct mem_pool *p, uint64_t at, int code, const char *says)
{
    struct mem_stats before, after;
    char hex[32];
    snprintf(hex, sizeof hex, "0x%llx", (unsigned long long)at);
    mem_stat(p, &before);
    base_error_clear();
    assert_int_equal(mem_free(p, at), code);
    assert_says(says);
    assert_says(hex);
    mem_stat(p, &after);
    assert_memory_equal(&before, &after, sizeof before);
}

static void wrong_frees(void **state)
{
    (void)state;
    struct mem_pool *p = open_pool(16 * MIB);
    static const uint64_t sizes[] = {1, 16, 40, 48, 64, 65, 500, 1024, 1100, 5000, 24 * KIB, 32 * KIB, 33 * KIB, 64 * KIB, 1 * MIB};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t at = get(p, sizes[i]), keep = get(p, sizes[i]), size = mem_size(p, at);
        for (uint64_t inside = 1; inside < size; inside = inside < 128 ? inside + 1 : inside * 2 - 3)
            assert_refused(p, at + inside, -EINVAL, "inside the buffer");
        assert_refused(p, at + size - 1, -EINVAL, "inside the buffer");
        assert_int_equal(mem_size(p, at + 1), 0);
        put_back(p, at);
        /* Now it is in this thread's cache, if it is small. */
        base_error_clear();
        assert_int_equal(mem_free(p, at), -EALREADY);
        assert_says("freed before");
        assert_refused(p, at, -EALREADY, "freed before"); /* and now back in its slab: mem_stat() emptied the cache */
        if (size > 16)
            assert_refused(p, at + 16, -EALREADY, "no buffer is there");
        put_back(p, keep);
        assert_refused(p, keep, -EALREADY, "freed before");
        /* Never does a refused free make a block come out twice. */
        uint64_t one = get(p, sizes[i]), two = get(p, sizes[i]);
        assert_int_not_equal(one, two);
        put_back(p, one);
        put_back(p, two);
    }
    assert_refused(p, 0, -EFAULT, "the heap is from");
    assert_refused(p, HEAP - 16, -EFAULT, "the heap is from");
    assert_refused(p, mem_bytes(p), -EFAULT, "the heap is from");
    assert_refused(p, UINT64_MAX, -EFAULT, "the heap is from");
    assert_refused(p, UINT64_MAX - 15, -EFAULT, "the heap is from");
    assert_refused(p, HEAP, -EALREADY, "never");
    assert_refused(p, mem_bytes(p) - 16, -EALREADY, "never");
    assert_empty(p);
    mem_pool_destroy(p);
}

static void wrong_allocations(void **state)
{
    (void)state;
    struct mem_pool *p = open_pool(4 * MIB);
    uint64_t at = 1;
    assert_int_equal(mem_alloc(p, 0, 0, &at), -EINVAL);
    assert_int_equal(mem_alloc(p, 64, 3, &at), -EINVAL);
    assert_says("power of two");
    assert_int_equal(mem_alloc(p, 64, 48, &at), -EINVAL);
    assert_int_equal(mem_alloc(p, 64, 4 * MIB, &at), -EINVAL);
    assert_int_equal(mem_alloc(p, 5 * MIB, 0, &at), -ENOMEM);
    assert_says("4 MiB");
    assert_int_equal(mem_alloc(p, UINT64_MAX, 0, &at), -ENOMEM);
    assert_int_equal(mem_alloc(p, UINT64_MAX - 70000, 64, &at), -ENOMEM);
    assert_int_equal(at, 1);
    assert_empty(p);
    mem_pool_destroy(p);
}

/* --- sizes and alignment --- */

static void sizes_and_waste(void **state)
{
    (void)state;
    struct mem_pool *p = open_pool(4 * MIB);
    for (uint64_t bytes = 1; bytes <= 32 * KIB; bytes++) {
        uint64_t at = get(p, bytes), size = mem_size(p, at);
        assert_true(size >= bytes);
        /* To the next 16, or cache line from 64 on; an eighth at most where that is more. */
        uint64_t line = bytes < 64 ? 16 : 64, rounded = base_round_up(bytes, line);
        if (size > rounded && size - bytes > size / 8)
            fail_msg("%llu bytes take %llu", (unsigned long long)bytes, (unsigned long long)size);
        assert_int_equal(at % line, 0);
        put_back(p, at);
    }
    assert_empty(p);
    mem_pool_destroy(p);
}

static void alignments(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 64, 100, 3000, 20 * KIB, 32 * KIB, 40 * KIB, 64 * KIB, 700 * KIB, 2 * MIB};
    struct mem_pool *p = open_pool(64 * MIB);
    for (uint64_t align = 1; align <= MEM_ALIGN_MAX; align *= 2) {
        uint64_t at[20];
        unsigned n = 0;
        for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            for (unsigned twice = 0; twice < 2; twice++) {
                assert_int_equal(mem_alloc(p, sizes[i], align, &at[n]), 0);
                assert_int_equal(at[n] % align, 0);
                assert_int_equal((uintptr_t)bytes_at(p, at[n]) % align, 0);
                assert_true(mem_size(p, at[n]) >= sizes[i]);
                n++;
            }
        }
        while (n)
            put_back(p, at[--n]);
        assert_empty(p);
    }
    mem_pool_destroy(p);
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
    /* Many times the pool goes through; one thread only allocates, the other only frees. */
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

/* A thread outlives pools that it has caches of. */
struct visitor {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct mem_pool *pool; /* to be visited; NULL: done */
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

/* --- the range --- */

static void too_large(void **state)
{
    (void)state;
    struct mem_pool *p = NULL;
    char have[32];
    static const uint64_t factors[] = {2, 1000};
    for (unsigned i = 0; i < 2; i++) {
        struct mem_options o = {.bytes = base_memory_total() * factors[i]};
        base_error_clear();
        assert_int_equal(mem_pool_create(&p, &o), -ENOMEM);
        assert_says("available of");
        assert_says(base_format_bytes(base_memory_total(), have, sizeof have));
    }
    struct mem_options most = {.bytes = UINT64_MAX};
    assert_int_equal(mem_pool_create(&p, &most), -ENOMEM);
    struct mem_options small = {.bytes = 1 * MIB, .heap_offset = 2 * MIB};
    assert_int_equal(mem_pool_create(&p, &small), -EINVAL);
    assert_says("at least");
    struct mem_options none = {.bytes = 0};
    assert_int_equal(mem_pool_create(&p, &none), -EINVAL);
    assert_null(p);
}

static void segments(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1 * MIB, 1 * GIB - HEAP, 1 * GIB, 1 * GIB + HEAP, 5 * GIB / 2};
    static const uint32_t counts[] = {1, 1, 1, 2, 3};
    for (unsigned i = 0; i < 5; i++) {
        struct mem_options o = {.bytes = sizes[i], .heap_offset = HEAP};
        struct mem_pool *p;
        struct mem_stats s;
        assert_int_equal(mem_pool_create(&p, &o), 0);
        assert_int_equal(mem_bytes(p), sizes[i]);
        assert_int_equal(mem_segments(p), counts[i]);
        mem_stat(p, &s);
        assert_int_equal(s.segments, counts[i]);
        assert_int_equal(s.reserved_bytes, sizes[i]);
        uint64_t end = 0;
        for (uint32_t k = 0; k < counts[i]; k++) {
            struct mem_segment g = mem_segment_at(p, k);
            assert_int_equal(g.offset, end);
            assert_true(g.bytes > 0 && g.bytes <= MEM_SEGMENT_BYTES);
            end += g.bytes;
        }
        assert_int_equal(end, sizes[i]);
        assert_int_equal(mem_segment_at(p, counts[i]).bytes, 0);
        mem_pool_destroy(p);
    }
}

static void others_can_map_it(void **state)
{
    (void)state;
    struct mem_options o = {.bytes = 1 * MIB - 5, .heap_offset = 70000, .prefault = true};
    struct mem_pool *p;
    assert_int_equal(mem_pool_create(&p, &o), 0);
    assert_int_equal(mem_bytes(p), 1 * MIB);
    assert_int_equal((uintptr_t)mem_base(p) % MEM_ALIGN_MAX, 0);
    uint64_t at = get(p, 100);
    assert_true(at >= 2 * MEM_EXTENT_BYTES); /* 70000 bytes are two extents */
    assert_int_equal(base_memory_fd_check(mem_fd(p), 1 * MIB), 0);
    uint8_t *other = mmap(NULL, 1 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, mem_fd(p), 0);
    assert_ptr_not_equal(other, MAP_FAILED);
    memset(bytes_at(p, at), 0x5a, 100);
    assert_int_equal(other[at + 99], 0x5a);
    munmap(other, 1 * MIB);

    /* Prefaulted: every page is there. */
    long page = sysconf(_SC_PAGESIZE);
    unsigned char *seen = calloc(1 * MIB / (uint64_t)page, 1);
    assert_int_equal(mincore(mem_base(p), 1 * MIB, seen), 0);
    for (uint64_t i = 0; i < 1 * MIB / (uint64_t)page; i++)
        assert_true(seen[i] & 1);
    free(seen);
    mem_pool_destroy(p);
}

static void huge_pages(void **state)
{
    (void)state;
    uint64_t have = base_memory_huge();
    struct mem_pool *p = NULL;
    struct mem_options o = {.bytes = have + 2 * MIB, .huge = true};
    base_error_clear();
    assert_int_equal(mem_pool_create(&p, &o), -ENOMEM);
    assert_says("vm.nr_hugepages=");
    assert_null(p);
    if (have < 4 * MIB)
        return;
    o.bytes = 3 * MIB; /* rounded up to two pages */
    assert_int_equal(mem_pool_create(&p, &o), 0);
    assert_int_equal(mem_bytes(p), 4 * MIB);
    memset(bytes_at(p, get(p, 1 * MIB)), 1, 1 * MIB);
    mem_pool_destroy(p);
}

static void locked_memory(void **state)
{
    (void)state;
    struct mem_options o = {.bytes = 1 * MIB, .lock = true};
    struct mem_pool *p = NULL;
    struct rlimit limit;
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (geteuid() == 0 || limit.rlim_cur >= 2 * MIB) {
        if (mem_pool_create(&p, &o))
            fail_msg("%s", base_error());
        mem_pool_destroy(p);
    }
    /* Refused in a process that has neither the right nor the limit. */
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit none = {.rlim_cur = 65536, .rlim_max = 65536};
        if (setrlimit(RLIMIT_MEMLOCK, &none) || (geteuid() == 0 && setuid(65534)))
            _exit(9);
        int rc = mem_pool_create(&p, &o);
        _exit(rc != -ENOMEM && rc != -EPERM && rc != -EAGAIN        ? 1
              : !strstr(base_error(), "RLIMIT_MEMLOCK is 64 KiB") ? 2
                                                                  : 0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_256_of_128_mib), cmocka_unit_test(buffers_4096_of_2_gib),
        cmocka_unit_test(random_one_thread),      cmocka_unit_test(random_four_threads),
        cmocka_unit_test(random_in_a_pool_too_small), cmocka_unit_test(exhaustion),
        cmocka_unit_test(hoards_are_bounded),     cmocka_unit_test(wrong_frees),
        cmocka_unit_test(wrong_allocations),      cmocka_unit_test(sizes_and_waste),
        cmocka_unit_test(alignments),             cmocka_unit_test(freed_by_another),
        cmocka_unit_test(two_pools_in_turns),     cmocka_unit_test(pools_go_under_caches),
        cmocka_unit_test(too_large),              cmocka_unit_test(segments),
        cmocka_unit_test(others_can_map_it),      cmocka_unit_test(huge_pages),
        cmocka_unit_test(locked_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
