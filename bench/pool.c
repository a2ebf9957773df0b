/* SPDX-License-Identifier: MIT
 *
 * One round of the pool's allocator beside glibc's malloc and mimalloc: the time of an allocation and its free together. Prints one line of
 * JSON for each measurement; bench/run runs several rounds. The memory itself is not accessed.
 *
 *   pair     allocate, free, again
 *   batch    allocate 100, free them in random order, again
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef BENCH_INSIDE
#include "mem/mem.h"
#else
#include "weft.h"
#endif

#define BATCH    100
#define THREADS  2
#define SLICE_NS 3e6
#define SLICES   9 /* how often each allocator runs in a round, in turns; its best time counts */

enum who { OURS, GLIBC, MIMALLOC, WHO };
static const char *const names[WHO] = {"ours", "glibc", "mimalloc"};

/* All allocators are called through pointers, so that the compiler cannot inline any of them. */
static void *(*volatile peer_alloc[WHO])(size_t);
static void (*volatile peer_free[WHO])(void *);

#ifdef BENCH_INSIDE
typedef uint64_t address;
static struct mem_pool *pool;
static int take(struct mem_pool *p, size_t bytes, address *out)
{
    return mem_alloc(p, bytes, 0, out);
}
static int (*volatile our_alloc)(struct mem_pool *, size_t, address *) = take;
static int (*volatile our_free)(struct mem_pool *, address) = mem_free;
#else
typedef weft_gaddr address;
static weft_node *pool;
static int (*volatile our_alloc)(weft_node *, size_t, address *) = weft_alloc;
static int (*volatile our_free)(weft_node *, address) = weft_free;
#endif

static uint8_t order[BATCH];

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void run_ours(size_t bytes, bool batch, uint64_t pairs)
{
    __typeof__(our_alloc) alloc_at = our_alloc;
    __typeof__(our_free) free_at = our_free;
    address at[BATCH] = {0};
    int bad = 0;
    if (!batch) {
        for (uint64_t i = 0; i < pairs; i++) {
            bad |= alloc_at(pool, bytes, &at[0]);
            bad |= free_at(pool, at[0]);
        }
    } else {
        for (uint64_t i = 0; i < pairs; i += BATCH) {
            for (unsigned k = 0; k < BATCH; k++)
                bad |= alloc_at(pool, bytes, &at[k]);
            for (unsigned k = 0; k < BATCH; k++)
                bad |= free_at(pool, at[order[k]]);
        }
    }
    if (bad) {
        fprintf(stderr, "bench pool: an allocation of %zu bytes failed\n", bytes);
        exit(1);
    }
}

static void run_peer(enum who who, size_t bytes, bool batch, uint64_t pairs)
{
    void *(*alloc_at)(size_t) = peer_alloc[who];
    void (*free_at)(void *) = peer_free[who];
    void *at[BATCH];
    if (!batch) {
        for (uint64_t i = 0; i < pairs; i++)
            free_at(alloc_at(bytes));
    } else {
        for (uint64_t i = 0; i < pairs; i += BATCH) {
            for (unsigned k = 0; k < BATCH; k++)
                at[k] = alloc_at(bytes);
            for (unsigned k = 0; k < BATCH; k++)
                free_at(at[order[k]]);
        }
    }
}

struct slice {
    enum who who;
    size_t bytes;
    bool batch;
    unsigned threads;
    uint64_t pairs;
    _Atomic unsigned ready;
};

static void *slice_thread(void *arg)
{
    struct slice *s = arg;
    /* Warm up; then all threads start together. */
    for (unsigned warm = 0; warm < 2; warm++) {
        uint64_t pairs = warm ? s->pairs : s->pairs / 10 + BATCH;
        if (warm) {
            atomic_fetch_add(&s->ready, 1);
            while (atomic_load(&s->ready) < s->threads)
                ;
        }
        int64_t *spent = warm ? malloc(sizeof *spent) : NULL;
        int64_t start = now_ns();
        if (s->who == OURS)
            run_ours(s->bytes, s->batch, pairs);
        else
            run_peer(s->who, s->bytes, s->batch, pairs);
        if (spent) {
            *spent = now_ns() - start;
            return spent;
        }
    }
    return NULL;
}

/* Nanoseconds for each pair, measured by the slower thread. */
static double slice(enum who who, size_t bytes, bool batch, unsigned threads, uint64_t pairs)
{
    struct slice s = {.who = who, .bytes = bytes, .batch = batch, .threads = threads, .pairs = pairs};
    pthread_t thread[THREADS];
    int64_t worst = 0;
    for (unsigned i = 0; i < threads; i++) {
        if (pthread_create(&thread[i], NULL, slice_thread, &s)) {
            fprintf(stderr, "bench pool: cannot start a thread\n");
            exit(1);
        }
    }
    for (unsigned i = 0; i < threads; i++) {
        void *spent;
        pthread_join(thread[i], &spent);
        if (*(int64_t *)spent > worst)
            worst = *(int64_t *)spent;
        free(spent);
    }
    return (double)worst / (double)pairs;
}

static void measure(size_t bytes, bool batch, unsigned threads)
{
    double best[WHO] = {0};
    uint64_t pairs[WHO] = {0};
    for (unsigned turn = 0; turn < SLICES; turn++) {
        for (unsigned w = 0; w < WHO; w++) {
            if (w != OURS && !peer_alloc[w])
                continue;
            if (turn == 0) {
                double guess = slice((enum who)w, bytes, batch, threads, 2000);
                double fit = SLICE_NS / guess;
                pairs[w] = fit > 1000 ? (uint64_t)fit : 1000;
            }
            double ns = slice((enum who)w, bytes, batch, threads, pairs[w]);
            if (turn == 0 || ns < best[w])
                best[w] = ns;
        }
    }
    char size[32];
    if (bytes < 1024)
        snprintf(size, sizeof size, "%zu B", bytes);
    else
        snprintf(size, sizeof size, "%zu KiB", bytes / 1024);
    printf("{\"name\":\"%s %s, %u thread%s\",\"unit\":\"ns\",\"ours\":%.3f,\"peers\":{", batch ? "batch" : "pair", size, threads,
           threads > 1 ? "s" : "", best[OURS]);
    const char *comma = "";
    for (unsigned w = OURS + 1; w < WHO; w++) {
        if (peer_alloc[w]) {
            printf("%s\"%s\":%.3f", comma, names[w], best[w]);
            comma = ",";
        }
    }
    printf("}}\n");
    fflush(stdout);
}

static void find_mimalloc(void)
{
    static const char *const files[] = {"libmimalloc.so.2", "libmimalloc.so", "libmimalloc.so.3", "libmimalloc.dylib"};
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++) {
        void *lib = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
        if (!lib)
            continue;
        void *a = dlsym(lib, "mi_malloc"), *f = dlsym(lib, "mi_free");
        if (a && f) {
            peer_alloc[MIMALLOC] = (void *(*)(size_t))(uintptr_t)a;
            peer_free[MIMALLOC] = (void (*)(void *))(uintptr_t)f;
            return;
        }
    }
    printf("{\"missing\":\"mimalloc\",\"why\":\"libmimalloc is not installed (Debian: libmimalloc2.0)\"}\n");
}

int main(void)
{
    peer_alloc[GLIBC] = malloc;
    peer_free[GLIBC] = free;
    find_mimalloc();
#ifdef BENCH_INSIDE
    struct mem_options options = {.bytes = UINT64_C(256) << 20};
    if (mem_pool_create(&pool, &options)) {
        fprintf(stderr, "bench pool: %s\n", base_error());
        return 1;
    }
#else
    weft_config config = {.bytes = sizeof config, .pool_bytes = UINT64_C(256) << 20};
    if (weft_open(&pool, &config)) {
        fprintf(stderr, "bench pool: %s\n", weft_error());
        return 1;
    }
#endif
    uint64_t r = 88172645463325252;
    for (unsigned i = 0; i < BATCH; i++)
        order[i] = (uint8_t)i;
    for (unsigned i = BATCH - 1; i > 0; i--) {
        r ^= r << 13, r ^= r >> 7, r ^= r << 17;
        unsigned k = (unsigned)(r % (i + 1));
        uint8_t swap = order[i];
        order[i] = order[k];
        order[k] = swap;
    }
    static const size_t sizes[] = {64, 256, 1024, 4096, 16384, 32768};
    for (unsigned batch = 0; batch < 2; batch++) {
        for (unsigned threads = 1; threads <= THREADS; threads++) {
            for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
                measure(sizes[i], batch, threads);
        }
    }
#ifdef BENCH_INSIDE
    mem_pool_destroy(pool);
#else
    weft_close(pool);
#endif
    return 0;
}
