/* SPDX-License-Identifier: MIT
 *
 * weft's operations between two nodes, each on a core of its own, and the limit of the machine: the same ping-pong and the same copies by
 * plain stores between shared mappings. bench/run starts one process for each node with WEFT_RANK, WEFT_SIZE and WEFT_COORD set, both with
 * the same tests (spec.h). A test named `..._typical` gives the median of single rounds, as perftest does; a test named `..._rate` gives
 * millions of operations a second. With BENCH_PATIENT set, the node that has nothing to do does not poll all the time, because its core and
 * the other node's may be two threads of one. perftest's does not poll either.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

#include "copy.h"
#include "spec.h"
#include "weft.h"

#define WIDE 64u /* blocks in a test with "wide" */

enum { WORDS = 4096, AT_PING = 0, AT_CSWAP = 512, AT_SIGNAL = 1024, AT_SUM = 1536 };
enum { ON_TURN, ON_PING, ON_PONG };

struct bench {
    weft_node *w;
    uint32_t rank, peer;
    weft_gaddr mine, theirs; /* WORDS bytes of words, then the buffer */
    uint8_t *memory;
    uint32_t pauses;       /* pause instructions between two polls */
    uint64_t *took;        /* [iterations] ticks of each round, for tests of the median; else NULL */
    bool patient;          /* polls only now and then while the other node works */
    uint64_t turn, ponged; /* counts of the peer's messages; changed by handlers, on any thread that makes progress */
};

static bool failed(const char *what, int rc)
{
    if (rc >= 0)
        return false;
    fprintf(stderr, "weft: %s: %s (%s)\n", what, weft_error(), strerror(-rc));
    return true;
}

static void on_word(uint64_t *to, const void *header, size_t len)
{
    uint64_t word = 0;
    if (len == sizeof(word))
        memcpy(&word, header, sizeof(word));
    __atomic_store_n(to, word, __ATOMIC_RELEASE);
}

static void on_turn(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)w, (void)from, (void)payload, (void)payload_len;
    on_word(&((struct bench *)arg)->turn, header, header_len);
}

static void on_ping(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)payload, (void)payload_len, (void)arg;
    failed("answer", weft_send(w, from, ON_PONG, header, header_len, NULL, 0, NULL));
}

static void on_pong(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)w, (void)from, (void)payload, (void)payload_len;
    on_word(&((struct bench *)arg)->ponged, header, header_len);
}

/* Makes progress until a word that a handler changes has reached `value`; -1: the peer is gone. */
static int reached(struct bench *b, const uint64_t *word, uint64_t value)
{
    for (uint32_t i = 1; __atomic_load_n(word, __ATOMIC_ACQUIRE) < value; i++) {
        weft_progress(b->w);
        if (b->patient)
            usleep(500);
        /* Messages that the peer sent before it ended are delivered before it counts as gone: so read the word once more. */
        if (i % 4096 == 0 && !weft_alive(b->w, b->peer) && __atomic_load_n(word, __ATOMIC_ACQUIRE) < value) {
            fprintf(stderr, "weft: node %u is gone\n", b->peer);
            return -1;
        }
    }
    return 0;
}

/* Polling without a pause doubles the time in which the cache line arrives (48 instead of 24 ns where this was measured), because loads
 * that wait for it pile up. The polling loops of other libraries make progress in between. */
static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static int meet(struct bench *b, uint64_t turn)
{
    if (failed("send", weft_send(b->w, b->peer, ON_TURN, &turn, sizeof(turn), NULL, 0, NULL)))
        return -1;
    return reached(b, &b->turn, turn);
}

/* Records the time of a round, for a test of the median. */
static inline void mark(struct bench *b, uint64_t round, uint64_t *since)
{
    if (b->took) {
        uint64_t now = spec_ticks();
        b->took[round] = now - *since;
        *since = now;
    }
}

/* Ping-pong: each node puts a word into the other's memory and polls its own. `bare`: by plain stores instead of puts. */
static int put_latency(struct bench *b, uint64_t n, uint64_t first, bool bare)
{
    uint64_t *word = (uint64_t *)(void *)(b->memory + AT_PING);
    uint64_t *far = weft_ptr(b->w, b->theirs + AT_PING, 8);
    if (bare && !far)
        return -1;
    uint64_t since = spec_ticks();
    for (uint64_t i = first; i < first + n; i++) {
        for (uint32_t half = 0; half < 2; half++) {
            if (half != b->rank)
                while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != i)
                    for (uint32_t pause = 0; pause < b->pauses; pause++)
                        relax();
            else if (bare)
                __atomic_store_n(far, i, __ATOMIC_RELEASE);
            else if (failed("put", weft_put_blocking(b->w, b->theirs + AT_PING, &i, 8)))
                return -1;
        }
        mark(b, i - first, &since);
    }
    return 0;
}

/* Ping-pong with put and signal: works over any transport. */
static int signal_latency(struct bench *b, uint64_t n, uint64_t first, size_t len)
{
    weft_gaddr mine = b->mine + AT_SIGNAL, far = b->theirs + AT_SIGNAL;
    uint64_t since = spec_ticks();
    for (uint64_t i = first; i < first + n; i++) {
        for (uint32_t half = 0; half < 2; half++) {
            if (half != b->rank) {
                if (failed("wait", weft_wait_until(b->w, mine, WEFT_GE, i, NULL, WEFT_TIMEOUT_DEFAULT)))
                    return -1;
            } else if (failed("put_signal", weft_put_signal(b->w, b->theirs + WORDS, b->memory + WORDS, len, far, 1, NULL))) {
                return -1;
            }
        }
        mark(b, i - first, &since);
    }
    return 0;
}

static int add_latency(struct bench *b, uint64_t n)
{
    uint64_t since = spec_ticks();
    for (uint64_t i = 0; i < n; i++) {
        if (failed("fetch_add", weft_fetch_add_blocking(b->w, b->theirs + AT_SUM, 1, NULL)))
            return -1;
        mark(b, i, &since);
    }
    return 0;
}

static int get_latency(struct bench *b, uint64_t n)
{
    uint64_t since = spec_ticks();
    for (uint64_t i = 0; i < n; i++) {
        if (failed("get", weft_get_blocking(b->w, b->memory + AT_PING, b->theirs + AT_PING, 8)))
            return -1;
        mark(b, i, &since);
    }
    return 0;
}

static int message_latency(struct bench *b, uint64_t n, uint64_t first)
{
    uint64_t since = spec_ticks();
    for (uint64_t i = first; i < first + n; i++) {
        if (failed("send", weft_send(b->w, b->peer, ON_PING, &i, sizeof(i), NULL, 0, NULL)) || reached(b, &b->ponged, i))
            return -1;
        mark(b, i - first, &since);
    }
    return 0;
}

static int compare_swap(struct bench *b, uint64_t n, uint64_t first)
{
    uint64_t old;
    for (uint64_t i = first; i < first + n; i++) {
        if (failed("compare_swap", weft_compare_swap_blocking(b->w, b->theirs + AT_CSWAP, i, i + 1, &old)))
            return -1;
        if (old != i) {
            fprintf(stderr, "weft: compare_swap found %llu, not %llu\n", (unsigned long long)old, (unsigned long long)i);
            return -1;
        }
    }
    return 0;
}

/* `blocks`: how many blocks of memory take turns, on both nodes. One block stays in the processor's caches. */
static int stream(struct bench *b, uint64_t n, size_t len, bool put, uint64_t blocks)
{
    for (uint64_t i = 0; i < n; i++) {
        uint8_t *here = b->memory + WORDS + i % blocks * len;
        weft_gaddr far = b->theirs + WORDS + i % blocks * len;
        if (failed(put ? "put" : "get", put ? weft_put(b->w, far, here, len, NULL) : weft_get(b->w, here, far, len, NULL)))
            return -1;
    }
    return failed("flush", weft_flush(b->w, b->peer, WEFT_TIMEOUT_DEFAULT)) ? -1 : 0;
}

/* The machine's own copy, between two separate shared mappings of this process. */
static int copy_limit(const struct spec *spec)
{
    uint8_t *from = copy_mapping(spec->bytes), *to = copy_mapping(spec->bytes);
    if (!from || !to) {
        perror("copy_bw: mapping");
        return -1;
    }
    double best = 0;
    const char *how = "";
    for (size_t m = 0; copy_methods[m].copy; m++) {
        if (!copy_methods[m].works())
            continue;
        for (uint64_t i = 0; i < spec->warmup; i++)
            copy_methods[m].copy(to, from, spec->bytes);
        uint64_t start = spec_now_ns();
        for (uint64_t i = 0; i < spec->iterations; i++)
            copy_methods[m].copy(to, from, spec->bytes);
        double gbs = spec_gbs(spec_now_ns() - start, spec->bytes, spec->iterations);
        if (gbs > best)
            best = gbs, how = copy_methods[m].name;
    }
    munmap(from, spec->bytes);
    munmap(to, spec->bytes);
    printf("{\"test\": \"%s\", \"bytes\": %llu, \"value\": %.6g, \"how\": \"%s\"}\n", spec->test, (unsigned long long)spec->bytes, best,
           how);
    return 0;
}

/* Rank 0's part of a test; rank 1 takes part in the ping-pongs, else it makes progress. */
static uint64_t blocks_of(const struct spec *spec)
{
    return strstr(spec->test, "_wide_bw") ? WIDE : 1;
}

static int part(struct bench *b, const struct spec *spec, uint64_t n, uint64_t first)
{
    const char *t = spec->test;
    if (!strcmp(t, "put_lat") || !strcmp(t, "put_typical") || !strcmp(t, "line_lat"))
        return put_latency(b, n, first, *t == 'l');
    if (!strcmp(t, "signal_typical"))
        return signal_latency(b, n, first, spec->bytes);
    if (b->rank == 1)
        return 0;
    if (!strcmp(t, "add_typical"))
        return add_latency(b, n);
    if (!strcmp(t, "msg_lat") || !strcmp(t, "msg_typical"))
        return message_latency(b, n, first);
    if (!strcmp(t, "get_typical"))
        return get_latency(b, n);
    if (!strcmp(t, "cswap_lat"))
        return compare_swap(b, n, first);
    return stream(b, n, spec->bytes, *t == 'p', blocks_of(spec));
}

static int ascending(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static uint64_t median(uint64_t *of, uint64_t n)
{
    qsort(of, n, sizeof *of, ascending);
    return of[n / 2];
}

static int measure(struct bench *b, const struct spec *spec, uint64_t number)
{
    uint64_t n = spec->iterations, elapsed;
    double halves = !strncmp(spec->test, "put_", 4) || !strcmp(spec->test, "signal_typical") || !strcmp(spec->test, "line_lat") ? 2 : 1;

    if (!strcmp(spec->test, "copy_bw")) {
        if (b->rank == 0 && copy_limit(spec))
            return -1;
        return meet(b, 3 * number + 3);
    }
    if (meet(b, 3 * number + 1))
        return -1;
    memset(b->memory, 0, WORDS);
    b->ponged = 0;
    *(uint64_t *)(void *)(b->memory + AT_CSWAP) = 1;
    if (meet(b, 3 * number + 2) || part(b, spec, spec->warmup, 1))
        return -1;
    /* The machine's limit is measured with each way of polling, and the best result counts. */
    static const uint32_t ways[] = {1, 0, 2, 8};
    uint64_t done = spec->warmup;
    elapsed = UINT64_MAX;
    for (uint32_t i = 0; i < (*spec->test == 'l' ? sizeof ways / sizeof *ways : 1); i++, done += n) {
        b->pauses = ways[i];
        uint64_t start = spec_now_ns();
        if (part(b, spec, n, done + 1))
            return -1;
        uint64_t took = spec_now_ns() - start;
        elapsed = took < elapsed ? took : elapsed;
    }
    if (b->rank == 0) {
        if (strstr(spec->test, "_bw"))
            spec_value(spec, spec_gbs(elapsed, spec->bytes, n));
        else if (strstr(spec->test, "_rate"))
            spec_value(spec, (double)n * 1e3 / (double)elapsed);
        else if (b->took)
            spec_value(spec, (double)median(b->took, n) * spec_tick_ns() / 1e3 / halves);
        else
            spec_value(spec, spec_us(elapsed, n) / halves);
    }
    b->patient = b->rank == 1 && !strstr(spec->test, "_lat") && strcmp(spec->test, "msg_typical") && getenv("BENCH_PATIENT");
    int rc = meet(b, 3 * number + 3);
    b->patient = false;
    return rc;
}

static int test(struct bench *b, const struct spec *spec, uint64_t number)
{
    if (strstr(spec->test, "_typical")) {
        uint64_t most = spec->iterations > spec->warmup ? spec->iterations : spec->warmup;
        b->took = malloc(most * sizeof *b->took);
        if (!b->took)
            return -1;
        memset(b->took, 0, most * sizeof *b->took); /* so that its pages exist before the clock starts */
    }
    int rc = measure(b, spec, number);
    free(b->took);
    b->took = NULL;
    return rc;
}

int main(int argc, char **argv)
{
    static const char *known[] = {"put_lat",     "line_lat",    "msg_lat",     "cswap_lat",      "put_bw",
                                  "get_bw",      "copy_bw",     "put_wide_bw", "get_wide_bw",    "put_rate",
                                  "put_typical", "get_typical", "msg_typical", "signal_typical", "add_typical"};
    static struct spec specs[64];
    uint64_t largest = 0;
    if (argc < 2 || argc > 65) {
        fprintf(stderr, "usage: %s TEST:BYTES:ITERATIONS:WARMUP...\n", argv[0]);
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        bool found = false;
        if (spec_parse(&specs[i - 1], argv[i]))
            return 2;
        for (size_t k = 0; k < sizeof(known) / sizeof(*known); k++)
            found = found || !strcmp(specs[i - 1].test, known[k]);
        if (!found) {
            fprintf(stderr, "fabric: no test '%s'\n", specs[i - 1].test);
            return 2;
        }
        uint64_t bytes = specs[i - 1].bytes * blocks_of(&specs[i - 1]);
        largest = bytes > largest ? bytes : largest;
    }

    struct bench b = {.pauses = 1};
    weft_config config = {.bytes = sizeof config, .pool_bytes = largest + (64u << 20)};
    int rc = 1;
    if (failed("open", weft_open(&b.w, &config)))
        return 1;
    b.rank = weft_rank(b.w);
    b.peer = !b.rank;
    if (weft_size(b.w) != 2) {
        fprintf(stderr, "fabric: needs a cluster of two nodes\n");
        goto out;
    }
    if (failed("handle", weft_handle(b.w, ON_TURN, on_turn, &b)) || failed("handle", weft_handle(b.w, ON_PING, on_ping, &b)) ||
        failed("handle", weft_handle(b.w, ON_PONG, on_pong, &b)) ||
        failed("alloc", weft_alloc_aligned(b.w, WORDS + largest, 4096, &b.mine)))
        goto out;
    b.memory = weft_ptr(b.w, b.mine, WORDS + largest);
    memset(b.memory, 1, WORDS + largest);
    uint64_t all[2];
    if (failed("exchange", weft_exchange(b.w, &b.mine, 1, all, NULL, WEFT_TIMEOUT_DEFAULT)))
        goto out;
    b.theirs = all[b.peer];
    rc = 0;
    for (int i = 1; i < argc && !rc; i++)
        rc = test(&b, &specs[i - 1], (uint64_t)i) ? 1 : 0;
out:
    failed("close", weft_close(b.w));
    return rc;
}
