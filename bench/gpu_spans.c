/* SPDX-License-Identifier: MIT
 *
 * Kernels on a GPU over spans of attached host memory: what `weft map --gpu` does with a piece, but without reading a file. It uses
 * internal functions of the library, which has no public call for this. `bytes` of a test is the number of threads, iterations are pieces
 * of 4 MiB.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "gpu/spans.h"
#include "spec.h"

#define PIECE       ((size_t)4 << 20)
#define SPANS       128u /* pieces of memory: 512 MiB, more than a cache holds */
#define THREADS_MAX 64u

static const char *const tests[] = {"wc", "histogram", "xxh64", "grep"};

struct work {
    struct gpu_spans *spans;
    const uint8_t *memory;
    void *own; /* memory of the pass */
    uint64_t pieces;
    _Atomic uint64_t *next;
    pthread_t thread;
    int rc;
};

static int drop(void *arg, const void *bytes, size_t len)
{
    (void)arg, (void)bytes, (void)len;
    return 0;
}

static void *run(void *arg)
{
    struct work *k = arg;
    struct gpu_pass *p;
    weft_out out = {drop, NULL};
    k->rc = gpu_pass_open(k->spans, k->own, &p);
    for (uint64_t i; !k->rc && (i = (*k->next)++) < k->pieces;)
        k->rc = gpu_pass_run(p, &(struct gpu_input){.bytes = k->memory + i % SPANS * PIECE, .len = PIECE, .offset = i * PIECE}, &out);
    if (k->rc)
        fprintf(stderr, "bench_gpu_spans: %s\n", weft_error());
    gpu_pass_close(p);
    return NULL;
}

/* Gigabytes a second; negative: an error. */
static double measure(const char *gpu, const weft_kernel *kernel, uint32_t threads, uint64_t pieces, uint8_t *memory, size_t all)
{
    struct gpu_spans *s;
    struct work work[THREADS_MAX];
    _Atomic uint64_t next = 0;
    if (gpu_spans_open(gpu, kernel, kernel->takes_arg ? "needle" : NULL, &s) || gpu_spans_attach(s, memory, all)) {
        fprintf(stderr, "bench_gpu_spans: %s\n", weft_error());
        return -1;
    }
    uint64_t start = spec_now_ns();
    for (uint32_t i = 0; i < threads; i++) {
        work[i] = (struct work){s, memory, memory + SPANS * PIECE + i * gpu_pass_bytes(), pieces, &next, 0, 0};
        if (pthread_create(&work[i].thread, NULL, run, &work[i]))
            exit(1);
    }
    int rc = 0;
    for (uint32_t i = 0; i < threads; i++) {
        pthread_join(work[i].thread, NULL);
        rc = rc ? rc : work[i].rc;
    }
    double ns = (double)(spec_now_ns() - start);
    gpu_spans_close(s);
    return rc ? -1 : (double)pieces * (double)PIECE / ns;
}

int main(int argc, char **argv)
{
    char gpu[16] = "host";
    uint32_t count;
    size_t all = SPANS * PIECE + THREADS_MAX * gpu_pass_bytes();
    if ((argc < 2 || strcmp(argv[1], "host")) && gpu_spans_look(0, gpu, &count)) {
        fprintf(stderr, "bench_gpu_spans: %s\n", weft_error());
        return 1;
    }
    uint8_t *memory = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    uint64_t x = 1;
    for (size_t i = 0; i < SPANS * PIECE; i += 8) { /* random bytes, with a newline in each 64 */
        x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
        memcpy(memory + i, &x, 8);
        memory[i + 7] = i % 64 ? memory[i + 7] : '\n';
    }
    for (int i = 1 + !strcmp(gpu, "host"); i < argc; i++) {
        struct spec s;
        const weft_kernel *kernel = NULL;
        if (spec_parse(&s, argv[i]))
            return 2;
        for (size_t k = 0; k < sizeof tests / sizeof *tests; k++)
            if (!strcmp(s.test, tests[k]))
                kernel = weft_kernel_find(tests[k]);
        if (!kernel || !s.bytes || s.bytes > THREADS_MAX)
            return 2;
        if (measure(gpu, kernel, (uint32_t)s.bytes, s.warmup, memory, all) < 0)
            return 1;
        spec_value(&s, measure(gpu, kernel, (uint32_t)s.bytes, s.iterations, memory, all));
    }
    return 0;
}
