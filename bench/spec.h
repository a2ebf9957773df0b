/* SPDX-License-Identifier: MIT
 *
 * The interface between bench/run and the benchmark programs: tests are command-line arguments, TEST:BYTES:ITERATIONS:WARMUP. weft's
 * program and those of the peers read the same arguments, so that they do the same work. A program prints one line of JSON for each test:
 * {"test": "put_bw", "bytes": 4096, "value": 1.25}, or with "missing": "why" instead of a value.
 */
#ifndef WEFT_BENCH_SPEC_H
#define WEFT_BENCH_SPEC_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct spec {
    char test[32];
    uint64_t bytes, iterations, warmup;
};

static inline int spec_parse(struct spec *s, const char *word)
{
    unsigned long long bytes, iterations, warmup;
    if (sscanf(word, "%31[^:]:%llu:%llu:%llu", s->test, &bytes, &iterations, &warmup) != 4 || !iterations) {
        fprintf(stderr, "'%s' is not TEST:BYTES:ITERATIONS:WARMUP\n", word);
        return -1;
    }
    s->bytes = bytes;
    s->iterations = iterations;
    s->warmup = warmup;
    return 0;
}

static inline uint64_t spec_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The processor's time stamp counter, if all cores have the same, as perftest uses it: reading the clock takes long compared with an
 * operation of a microsecond. spec_tick_ns() gives the length of a tick, from a short measurement of both. */
static inline uint64_t spec_ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return spec_now_ns();
#endif
}

static inline double spec_tick_ns(void)
{
#if defined(__x86_64__)
    uint64_t ns = spec_now_ns(), ticks = spec_ticks(), now;
    do
        now = spec_now_ns();
    while (now - ns < 10000000);
    return (double)(now - ns) / (double)(spec_ticks() - ticks);
#else
    return 1;
#endif
}

static inline void spec_value(const struct spec *s, double value)
{
    printf("{\"test\": \"%s\", \"bytes\": %llu, \"value\": %.6g}\n", s->test, (unsigned long long)s->bytes, value);
    fflush(stdout);
}

static inline void spec_missing(const struct spec *s, const char *why)
{
    printf("{\"test\": \"%s\", \"bytes\": %llu, \"missing\": \"%s\"}\n", s->test, (unsigned long long)s->bytes, why);
    fflush(stdout);
}

/* Microseconds for one of `n`; gigabytes (10^9) a second for `n` times `bytes`. */
static inline double spec_us(uint64_t elapsed_ns, uint64_t n)
{
    return (double)elapsed_ns / 1e3 / (double)n;
}

static inline double spec_gbs(uint64_t elapsed_ns, uint64_t bytes, uint64_t n)
{
    return (double)bytes * (double)n / (double)elapsed_ns;
}

#endif
