// SPDX-License-Identifier: MIT
//
// Requests of kernels to their node; beside them the limits without weft: two words in host memory that a kernel and a thread set in turns,
// and rings of 16-byte slots that a thread only reads. Tasks done by one persistent kernel, and by a kernel for each task. Stores of a
// kernel to another node's pool. Puts, gets and atomics of the processor to arenas, beside copies by CUDA. `bytes` of a test is the number
// of blocks; for arenas the number of bytes, or of atomics at a time. Started as two nodes; node 0 measures.
#include <cuda_runtime.h>
#include <pthread.h>
#include <sched.h>
#include <vector>

#include "must.cuh"
#include "spec.h"
#include "weft.h"
#include "weft/device.h"
#include "weft/gpu.h"

#define THREADS 128u
#define RINGS   8u
#define SLOTS   4096u

static weft_node *w;
static weft_gpu *g;
static weft_gaddr at[2];   /* a page of each node */
static weft_gaddr ends[4]; /* the addresses between which data is copied: node 0's pool, the arenas of both nodes, node 1's pool */
#define ARENA_BYTES (96u << 20)
#define COPY_BYTES  (64u << 20) /* at most */

static double launched_ms(cudaEvent_t from, cudaEvent_t to)
{
    float ms;
    CUDA(cudaGetLastError());
    CUDA(cudaEventSynchronize(to));
    CUDA(cudaEventElapsedTime(&ms, from, to));
    return ms;
}

/* The milliseconds that a kernel takes, measured by events before and after it. */
#define TIMED(launch)               \
    ({                              \
        cudaEvent_t a_, b_;         \
        CUDA(cudaEventCreate(&a_)); \
        CUDA(cudaEventCreate(&b_)); \
        CUDA(cudaEventRecord(a_));  \
        launch;                     \
        CUDA(cudaEventRecord(b_));  \
        launched_ms(a_, b_);        \
    })

/* --- weft --- */

/* Empty requests: the round trip from kernel to node and back. */
__global__ void request(const weft_device *d, uint64_t n, int *rc)
{
    int r = 0; /* a local variable: `*rc` is in the host's memory, and reading it takes as long as half a request */
    for (uint64_t i = 0; i < n && r == 0; i++)
        r = weft_device_nothing(d, true);
    *rc = r;
}

/* The same by a kernel whose parameter is the weft_device itself, which is in constant memory. */
__global__ void request_given(const __grid_constant__ weft_device d, uint64_t n, int *rc)
{
    int r = 0;
    for (uint64_t i = 0; i < n && r == 0; i++)
        r = weft_device_nothing(&d, true);
    *rc = r;
}

/* Empty requests, with a pause of `pause` clocks of the GPU before the first look at the answer. Adds to `sum` the number of looks, the
 * clocks of posting, and the clocks from posting to the answer. */
__global__ void request_parts(const weft_device *d, uint64_t n, long long pause, unsigned long long *sum, int *rc)
{
    const weft_device_request q = {WEFT_DEVICE_NOTHING, {0, 0, 0}, {0, 0, 0}};
    unsigned long long looks = 0;
    long long post = 0, answer = 0;
    int r = 0;
    for (uint64_t i = 0; i < n && r == 0; i++) {
        weft_device_op op;
        long long began = clock64(), posted;
        r = weft_device_post(d, &q, true, &op);
        posted = clock64();
        post += posted - began;
        while (clock64() - posted < pause)
            ;
        while (r == 0 && (r = weft_device_test(d, &op)) == -WEFT_DEVICE_EINPROGRESS) {
            looks++;
            r = 0;
        }
        looks++;
        answer += clock64() - posted;
    }
    sum[0] = looks;
    sum[1] = (unsigned long long)post;
    sum[2] = (unsigned long long)answer;
    *rc = r;
}

/* Puts of 8 bytes, each waited for. */
__global__ void put_wait(const weft_device *d, uint64_t there, uint64_t n, int *rc)
{
    int r = 0;
    for (uint64_t i = 0; i < n && r == 0; i++) {
        weft_device_op op;
        r = weft_device_put_value(d, there, i, &op);
        if (r == 0)
            r = weft_device_wait(d, &op);
    }
    *rc = r;
}

__global__ void requests(const weft_device *d, uint64_t each, int *rc)
{
    for (uint64_t i = 0; i < each; i++)
        if (weft_device_nothing(d, false))
            *rc = 1;
}

__global__ void puts(const weft_device *d, uint64_t there, uint64_t each, int *rc)
{
    uint64_t mine = there + 8ull * (blockIdx.x * blockDim.x + threadIdx.x);
    for (uint64_t i = 0; i < each; i++)
        if (weft_device_put_value(d, mine, i, NULL))
            *rc = 1;
    __syncthreads();
    if (threadIdx.x == 0 && weft_device_flush(d, (uint32_t)(there >> 48)))
        *rc = 2;
}

static int *rc_word(void)
{
    static int *rc;
    if (!rc)
        CUDA(cudaHostAlloc(&rc, sizeof *rc, cudaHostAllocMapped));
    return rc;
}

/* The round trip of a kernel's own store to the other node's pool, which the processor there answers by a put. KEEP: the kernel asks for
   its pointers once. */
template <bool KEEP> __global__ void store_ping(const weft_device *given, uint64_t there, uint64_t here, uint64_t from, uint64_t n, int *rc)
{
    const weft_device copy = *given, *d = &copy;
    uint64_t *kept = (uint64_t *)weft_device_ptr(d, there, 8), *answer = (uint64_t *)weft_device_ptr(d, here, 8);
    int r = kept && answer ? 0 : -WEFT_DEVICE_EFAULT;
    for (uint64_t i = from; i < from + n && r == 0; i++) {
        uint64_t *word = KEEP ? kept : (uint64_t *)weft_device_ptr(d, there, 8);
        weft_device_tell(word, i);
        weft_device_publish();
        if (!KEEP)
            r = weft_device_wait_at_least(d, here, i, NULL);
        else
            while (weft_device_load(answer) < i)
                ;
    }
    *rc = r;
}

static void store_pong(const struct spec *s)
{
    static uint64_t last;
    const uint64_t *word = (const uint64_t *)weft_ptr(w, at[1], 8);
    for (uint64_t end = last + s->warmup + s->iterations; last < end;) {
        last++;
        while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < last)
            ;
        OK(weft_put(w, at[0], &last, 8, NULL));
    }
}

/* Waits until the node has taken all requests. Sleeps meanwhile, because a thread that polls may share a core with the node's thread. */
static double wait_taken(uint64_t before, uint64_t more, uint64_t start)
{
    const struct timespec nap = {0, 50000};
    weft_gpu_stats s;
    do {
        nanosleep(&nap, NULL);
        OK(weft_gpu_stat(g, &s, sizeof s));
    } while (s.requests - before < more);
    return (double)(spec_now_ns() - start) / 1e3;
}

/* The option `bytes` is the pause. Prints the microseconds of a request, and its parts on standard error. */
static void parts(const struct spec *s)
{
    static unsigned long long *sum;
    int *rc = rc_word();
    if (!sum)
        CUDA(cudaHostAlloc(&sum, 3 * sizeof *sum, cudaHostAllocMapped));
    (void)TIMED((request_parts<<<1, 1>>>(weft_gpu_device(g), s->warmup, (long long)s->bytes, sum, rc)));
    double ms = TIMED((request_parts<<<1, 1>>>(weft_gpu_device(g), s->iterations, (long long)s->bytes, sum, rc)));
    double n = (double)s->iterations;
    fprintf(stderr, "pause of %llu clocks: %.3f us a request; looks %.2f; clocks: posting %.0f, until the answer %.0f\n",
            (unsigned long long)s->bytes, ms * 1e3 / n, (double)sum[0] / n, (double)sum[1] / n, (double)sum[2] / n);
    spec_value(s, ms * 1e3 / n);
}

static void ours(const struct spec *s)
{
    int *rc = rc_word();
    uint32_t blocks = s->bytes ? (uint32_t)s->bytes : 1;
    uint64_t each = s->iterations / (blocks * THREADS) + 1, all = each * blocks * THREADS;
    *rc = 0;
    weft_gpu_stats before;
    OK(weft_gpu_stat(g, &before, sizeof before));
    if (strcmp(s->test, "request_lat") == 0) {
        (void)TIMED((request<<<1, 1>>>(weft_gpu_device(g), s->warmup, rc)));
        double ms = TIMED((request<<<1, 1>>>(weft_gpu_device(g), s->iterations, rc)));
        spec_value(s, ms * 1e3 / (double)s->iterations);
    } else if (strcmp(s->test, "request_given_lat") == 0) {
        weft_device d;
        weft_gpu_device_copy(g, &d, sizeof d);
        (void)TIMED((request_given<<<1, 1>>>(d, s->warmup, rc)));
        double ms = TIMED((request_given<<<1, 1>>>(d, s->iterations, rc)));
        spec_value(s, ms * 1e3 / (double)s->iterations);
    } else if (strcmp(s->test, "put_lat") == 0) {
        (void)TIMED((put_wait<<<1, 1>>>(weft_gpu_device(g), at[1], s->warmup, rc)));
        double ms = TIMED((put_wait<<<1, 1>>>(weft_gpu_device(g), at[1], s->iterations, rc)));
        spec_value(s, ms * 1e3 / (double)s->iterations);
    } else if (strcmp(s->test, "store_lat") == 0 || strcmp(s->test, "store_kept_lat") == 0) {
        static uint64_t from = 1; /* the words increase over all tests, so that each is new */
        auto ping = s->test[5] == '_' && s->test[6] == 'k' ? store_ping<true> : store_ping<false>;
        (void)TIMED((ping<<<1, 1>>>(weft_gpu_device(g), at[1], at[0], from, s->warmup, rc)));
        double ms = TIMED((ping<<<1, 1>>>(weft_gpu_device(g), at[1], at[0], from + s->warmup, s->iterations, rc)));
        from += s->warmup + s->iterations;
        spec_value(s, ms * 1e3 / (double)s->iterations);
    } else if (strcmp(s->test, "requests") == 0) {
        uint64_t start = spec_now_ns();
        requests<<<blocks, THREADS>>>(weft_gpu_device(g), each, rc);
        CUDA(cudaGetLastError());
        double us = wait_taken(before.requests, all, start);
        CUDA(cudaDeviceSynchronize());
        spec_value(s, (double)all / us);
    } else {
        double ms = TIMED((puts<<<blocks, THREADS>>>(weft_gpu_device(g), at[1], each, rc)));
        spec_value(s, (double)all / ms / 1e3);
    }
    if (*rc) {
        fprintf(stderr, "a kernel's call failed: %d\n", *rc);
        exit(1);
    }
}

/* --- arenas --- */

/* Measures GB/s of puts or gets by the processor, to or from an arena of the GPU of node 0 (this node) or node 1. */
static double arena_gbs(const struct spec *s, uint32_t node, bool get)
{
    void *memory = weft_ptr(w, ends[0], s->bytes);
    memset(memory, 1, s->bytes);
    uint64_t start = 0;
    for (uint64_t i = 0; i < s->warmup + s->iterations; i++) {
        if (i == s->warmup)
            start = spec_now_ns();
        weft_op op;
        OK(get ? weft_get(w, memory, ends[1 + node], s->bytes, &op) : weft_put(w, ends[1 + node], memory, s->bytes, &op));
        OK(weft_wait(w, &op, WEFT_TIMEOUT_DEFAULT));
    }
    return spec_gbs(spec_now_ns() - start, s->bytes, s->iterations);
}

#define ATOMICS_MOST 1024u

/* Measures the microseconds of one atomic addition by the processor to words of such an arena, with s->bytes additions under way. */
static double arena_atomic_us(const struct spec *s, uint32_t node)
{
    static weft_op op[ATOMICS_MOST];
    static uint64_t old[ATOMICS_MOST];
    uint64_t start = 0, all = s->warmup + s->iterations, many = s->bytes < ATOMICS_MOST ? s->bytes : ATOMICS_MOST;
    for (uint64_t i = 0; i < all + many; i++) {
        if (i == s->warmup)
            start = spec_now_ns();
        uint64_t k = i % many;
        if (i >= many)
            OK(weft_wait(w, &op[k], WEFT_TIMEOUT_DEFAULT));
        if (i < all)
            OK(weft_fetch_add(w, ends[1 + node] + 8 * k, 1, &old[k], &op[k]));
    }
    return (double)(spec_now_ns() - start) / 1e3 / (double)s->iterations;
}

/* The same by CUDA for one processor: a copy of the word from the GPU, and one back. */
static double bare_atomic_us(const struct spec *s)
{
    uint64_t *host, *there, start = 0;
    cudaStream_t stream;
    CUDA(cudaHostAlloc(&host, 8, cudaHostAllocDefault));
    CUDA(cudaMalloc(&there, 8));
    CUDA(cudaMemset(there, 0, 8));
    CUDA(cudaStreamCreate(&stream));
    for (uint64_t i = 0; i < s->warmup + s->iterations; i++) {
        if (i == s->warmup)
            start = spec_now_ns();
        CUDA(cudaMemcpyAsync(host, there, 8, cudaMemcpyDeviceToHost, stream));
        CUDA(cudaStreamSynchronize(stream));
        ++*host;
        CUDA(cudaMemcpyAsync(there, host, 8, cudaMemcpyHostToDevice, stream));
        CUDA(cudaStreamSynchronize(stream));
    }
    double us = (double)(spec_now_ns() - start) / 1e3 / (double)s->iterations;
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFree(there));
    CUDA(cudaFreeHost(host));
    return us;
}

/* Puts or gets between the pools of the two nodes: the limit of the link. */
static double pool_gbs(const struct spec *s, bool get)
{
    void *memory = weft_ptr(w, ends[0], s->bytes);
    uint64_t start = 0;
    for (uint64_t i = 0; i < s->warmup + s->iterations; i++) {
        if (i == s->warmup)
            start = spec_now_ns();
        weft_op op;
        OK(get ? weft_get(w, memory, ends[3], s->bytes, &op) : weft_put(w, ends[3], memory, s->bytes, &op));
        OK(weft_wait(w, &op, WEFT_TIMEOUT_DEFAULT));
    }
    return spec_gbs(spec_now_ns() - start, s->bytes, s->iterations);
}

static double bare_copy_gbs(const struct spec *s, bool get)
{
    void *host, *there;
    cudaStream_t stream;
    CUDA(cudaHostAlloc(&host, s->bytes, cudaHostAllocDefault));
    memset(host, 1, s->bytes);
    CUDA(cudaMalloc(&there, s->bytes));
    CUDA(cudaStreamCreate(&stream));
    uint64_t start = 0;
    for (uint64_t i = 0; i < s->warmup + s->iterations; i++) {
        if (i == s->warmup)
            start = spec_now_ns();
        CUDA(get ? cudaMemcpyAsync(host, there, s->bytes, cudaMemcpyDeviceToHost, stream)
                 : cudaMemcpyAsync(there, host, s->bytes, cudaMemcpyHostToDevice, stream));
        CUDA(cudaStreamSynchronize(stream));
    }
    double gbs = spec_gbs(spec_now_ns() - start, s->bytes, s->iterations);
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFree(there));
    CUDA(cudaFreeHost(host));
    return gbs;
}

/* --- tasks --- */

__global__ void farm(const weft_device *d, const weft_device_worker *k)
{
    weft_device_task t;
    while (weft_device_next_task(d, k, &t) == 0)
        if (weft_device_task_done(d, k, &t, 0, t.task.arg[0], 8))
            return;
}

/* Microseconds for each task that is submitted, claimed ahead, done by blocks, completed and reaped, all by node 0. */
static double tasks_us(uint32_t blocks, uint64_t tasks)
{
    static weft_task batch[256];
    static weft_done done[256];
    weft_queue_config qc = {};
    weft_gpu_worker_config kc = {};
    weft_queue *q;
    weft_gpu_worker *k;
    qc.bytes = sizeof qc;
    qc.slots = 16384;
    kc.bytes = sizeof kc;
    kc.ahead = 4096;
    OK(weft_queue_open(w, "bench", &qc, &q));
    OK(weft_gpu_worker_open(g, q, &kc, &k));
    farm<<<blocks, 1>>>(weft_gpu_device(g), weft_gpu_worker_device(k));
    CUDA(cudaGetLastError());
    uint64_t start = spec_now_ns();
    for (uint64_t sent = 0, got = 0; got < tasks;) {
        uint32_t n = 0;
        for (; n < 256 && sent + n < tasks && sent + n - got < 8192; n++) {
            batch[n] = (weft_task){};
            batch[n].arg[0] = sent + n;
        }
        int rc = n ? weft_submit(q, batch, n, NULL, WEFT_TIMEOUT_DEFAULT) : 0;
        OK(rc);
        sent += (uint64_t)rc;
        rc = weft_reap(q, done, 256, 0);
        got += rc > 0 ? (uint64_t)rc : 0;
    }
    double us = (double)(spec_now_ns() - start) / 1e3;
    OK(weft_queue_shutdown(q));
    CUDA(cudaDeviceSynchronize());
    OK(weft_gpu_worker_close(k));
    OK(weft_queue_close(q));
    return us;
}

/* A kernel for each task, which does as little as a task of the persistent kernel. */
__global__ void one_task(uint64_t *result, uint64_t number)
{
    *result = number;
}

#define GRAPH 1000u

static double launches_us(bool graph, uint64_t tasks)
{
    uint64_t *result;
    cudaStream_t stream;
    cudaGraph_t plan;
    cudaGraphExec_t ready;
    CUDA(cudaMalloc(&result, 8));
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < GRAPH; i++)
        one_task<<<1, 1, 0, stream>>>(result, i);
    CUDA(cudaStreamEndCapture(stream, &plan));
    CUDA(cudaGraphInstantiate(&ready, plan, 0));
    uint64_t start = spec_now_ns();
    for (uint64_t i = 0; i < tasks; i += graph ? GRAPH : 1) {
        if (graph)
            CUDA(cudaGraphLaunch(ready, stream));
        else
            one_task<<<1, 1, 0, stream>>>(result, i);
    }
    CUDA(cudaStreamSynchronize(stream));
    double us = (double)(spec_now_ns() - start) / 1e3;
    CUDA(cudaGraphExecDestroy(ready));
    CUDA(cudaGraphDestroy(plan));
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFree(result));
    return us;
}

/* --- limits, without weft --- */

__global__ void bare_ping(volatile uint64_t *out, volatile uint64_t *in, uint64_t n)
{
    for (uint64_t i = 1; i <= n; i++) {
        *out = i;
        __threadfence_system();
        while (*in < i)
            ;
    }
}

/* Reads a word of the host's memory again and again, each time after the previous read has returned. */
__global__ void bare_read(volatile uint64_t *word, uint64_t n, uint64_t *sum)
{
    uint64_t at = 0;
    for (uint64_t i = 0; i < n; i++)
        at = word[at]; /* is 0 */
    *sum = at;
}

static double bare_read_us(uint64_t n)
{
    uint64_t *words;
    CUDA(cudaHostAlloc(&words, 4096, cudaHostAllocMapped));
    memset(words, 0, 4096);
    double ms = TIMED((bare_read<<<1, 1>>>(words, n, words + 64)));
    CUDA(cudaFreeHost(words));
    return ms * 1e3 / (double)n;
}

static void *bare_pong(void *arg)
{
    volatile uint64_t *words = (volatile uint64_t *)arg, n = words[32];
    for (uint64_t i = 1; i <= n; i++) {
        while (words[0] < i)
            ;
        words[16] = i;
    }
    return NULL;
}

static double bare_ping_ms(uint64_t n)
{
    uint64_t *words;
    pthread_t t;
    CUDA(cudaHostAlloc(&words, 4096, cudaHostAllocMapped));
    memset(words, 0, 4096);
    words[32] = n;
    pthread_create(&t, NULL, bare_pong, words);
    double ms = TIMED((bare_ping<<<1, 1>>>(words, words + 16, n)));
    pthread_join(t, NULL);
    CUDA(cudaFreeHost(words));
    return ms;
}

struct bare_ring {
    weft_device_cell *slots;  /* host */
    volatile uint64_t *taken; /* host */
    uint64_t *next, *seen;    /* device */
};

__global__ void bare_push(struct bare_ring *rings, uint64_t each)
{
    struct bare_ring r = rings[blockIdx.x % RINGS];
    for (uint64_t i = 0; i < each; i++) {
        uint64_t t = atomicAdd((unsigned long long *)r.next, 1ull);
        while (t - *(volatile uint64_t *)r.seen >= SLOTS)
            *(volatile uint64_t *)r.seen = *r.taken;
        weft_device_store_cell(&r.slots[t % SLOTS], i, (t / SLOTS + 1) << 32 | 1);
    }
}

struct bare_rings {
    struct bare_ring ring[RINGS];
    uint64_t all;
};

static void *bare_take(void *arg)
{
    struct bare_rings *b = (struct bare_rings *)arg;
    uint64_t head[RINGS] = {0}, left = b->all;
    while (left)
        for (uint32_t i = 0; i < RINGS; i++) {
            uint64_t before = head[i];
            while (head[i] - before < 64) {
                weft_device_cell *c = &b->ring[i].slots[head[i] % SLOTS];
                if (__atomic_load_n(&c->high, __ATOMIC_ACQUIRE) >> 32 != head[i] / SLOTS + 1)
                    break;
                head[i]++;
            }
            if (head[i] != before) {
                *b->ring[i].taken = head[i];
                left -= head[i] - before;
            }
        }
    return NULL;
}

static double bare_requests(uint32_t blocks, uint64_t each)
{
    struct bare_rings b;
    struct bare_ring *there;
    pthread_t t;
    b.all = each * blocks * THREADS;
    for (uint32_t i = 0; i < RINGS; i++) {
        void *slots, *own;
        CUDA(cudaHostAlloc(&slots, SLOTS * 16 + 4096, cudaHostAllocMapped));
        memset(slots, 0, SLOTS * 16 + 4096);
        CUDA(cudaMalloc(&own, 512));
        CUDA(cudaMemset(own, 0, 512));
        b.ring[i] = (struct bare_ring){(weft_device_cell *)slots, (volatile uint64_t *)((char *)slots + SLOTS * 16), (uint64_t *)own,
                                       (uint64_t *)own + 32};
    }
    CUDA(cudaMalloc(&there, sizeof b.ring));
    CUDA(cudaMemcpy(there, b.ring, sizeof b.ring, cudaMemcpyHostToDevice));
    pthread_create(&t, NULL, bare_take, &b);
    uint64_t start = spec_now_ns();
    bare_push<<<blocks, THREADS>>>(there, each);
    CUDA(cudaGetLastError());
    pthread_join(t, NULL);
    double us = (double)(spec_now_ns() - start) / 1e3;
    CUDA(cudaDeviceSynchronize());
    for (uint32_t i = 0; i < RINGS; i++) {
        CUDA(cudaFreeHost(b.ring[i].slots));
        CUDA(cudaFree(b.ring[i].next));
    }
    CUDA(cudaFree(there));
    return us;
}

/* Gigabytes a second from pinned host memory, by the copy engine: copies of 64 MiB, several at a time. */
static double bare_copy(uint64_t bytes)
{
    const size_t part = 64 << 20, parts = 8;
    void *from, *to;
    cudaStream_t stream[2];
    CUDA(cudaHostAlloc(&from, part * parts, 0));
    memset(from, 1, part * parts);
    CUDA(cudaMalloc(&to, part * parts));
    for (int i = 0; i < 2; i++)
        CUDA(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking));
    uint64_t done = 0, start = spec_now_ns();
    for (size_t i = 0; done < bytes; i++, done += part)
        CUDA(cudaMemcpyAsync((char *)to + i % parts * part, (char *)from + i % parts * part, part, cudaMemcpyHostToDevice, stream[i % 2]));
    CUDA(cudaDeviceSynchronize());
    double ns = (double)(spec_now_ns() - start);
    CUDA(cudaFree(to));
    CUDA(cudaFreeHost(from));
    return (double)done / ns;
}

static void bare(const struct spec *s)
{
    if (strcmp(s->test, "bare_copy") == 0) {
        (void)bare_copy(s->warmup << 20);
        spec_value(s, bare_copy(s->iterations << 20));
    } else if (strcmp(s->test, "bare_read_lat") == 0) {
        (void)bare_read_us(s->warmup);
        spec_value(s, bare_read_us(s->iterations));
    } else if (strcmp(s->test, "bare_lat") == 0) {
        (void)bare_ping_ms(s->warmup);
        spec_value(s, bare_ping_ms(s->iterations) * 1e3 / (double)s->iterations);
    } else {
        uint64_t each = s->iterations / (s->bytes * THREADS) + 1;
        spec_value(s, (double)(each * s->bytes * THREADS) / bare_requests((uint32_t)s->bytes, each));
    }
}

int main(int argc, char **argv)
{
    OK(weft_open(&w, NULL));
    weft_gaddr page;
    uint64_t all[2];
    OK(weft_alloc_aligned(w, 8 * 256 * THREADS, 4096, &page));
    if (weft_size(w) != 2) {
        fprintf(stderr, "bench_gpu wants two nodes, started by bench/run or weft run -n 2\n");
        return 2;
    }
    OK(weft_exchange(w, &page, 1, all, NULL, WEFT_TIMEOUT_DEFAULT));
    at[0] = all[0];
    at[1] = all[1];
    weft_gpu_config config = {};
    config.bytes = sizeof config;
    config.name = "cuda:0";
    config.rings = RINGS;
    OK(weft_gpu_open(w, &config, &g));
    uint32_t space;
    weft_gaddr mine[2], theirs[4];
    OK(weft_alloc_aligned(w, COPY_BYTES, 4096, &mine[0]));
    OK(weft_gpu_arena(g, ARENA_BYTES, &space));
    OK(weft_gpu_alloc(g, space, COPY_BYTES, &mine[1]));
    OK(weft_exchange(w, mine, 2, theirs, NULL, WEFT_TIMEOUT_DEFAULT));
    ends[0] = theirs[0];
    ends[1] = theirs[1];
    ends[2] = theirs[3];
    ends[3] = theirs[2];
    for (int i = 1; i < argc; i++) {
        struct spec s;
        if (spec_parse(&s, argv[i]))
            return 2;
        bool get = strstr(s.test, "get") != NULL;
        if (weft_rank(w)) {
            if (strncmp(s.test, "store_", 6) == 0)
                store_pong(&s);
        } else if (strcmp(s.test, "bare_put") == 0 || strcmp(s.test, "bare_get") == 0)
            spec_value(&s, bare_copy_gbs(&s, get));
        else if (strcmp(s.test, "bare_atomic") == 0)
            spec_value(&s, 1 / bare_atomic_us(&s));
        else if (strcmp(s.test, "arena_atomic") == 0 || strcmp(s.test, "remote_atomic") == 0)
            spec_value(&s, 1 / arena_atomic_us(&s, s.test[0] == 'r'));
        else if (strncmp(s.test, "arena_", 6) == 0)
            spec_value(&s, arena_gbs(&s, 0, get));
        else if (strncmp(s.test, "remote_", 7) == 0)
            spec_value(&s, arena_gbs(&s, 1, get));
        else if (strcmp(s.test, "request_parts") == 0)
            parts(&s);
        else if (strncmp(s.test, "pool_", 5) == 0)
            spec_value(&s, pool_gbs(&s, get));
        else if (strncmp(s.test, "bare", 4) == 0)
            bare(&s);
        else if (strcmp(s.test, "tasks") == 0)
            spec_value(&s, (double)s.iterations / tasks_us((uint32_t)s.bytes, s.iterations));
        else if (strcmp(s.test, "launches") == 0 || strcmp(s.test, "graphs") == 0)
            spec_value(&s, (double)s.iterations / launches_us(s.test[0] == 'g', s.iterations));
        else
            ours(&s);
    }
    while (weft_barrier(w, WEFT_TIMEOUT_DEFAULT) < 0)
        ;
    OK(weft_gpu_close(g));
    return weft_close(w);
}
