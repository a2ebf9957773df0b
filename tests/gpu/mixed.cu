// SPDX-License-Identifier: MIT
//
// A million mixed operations of kernels and processors of all nodes, against a shadow memory: each thread has a page of its own at every
// node, puts, gets, signals and swaps there in random order, and knows what must be where; counters that all share must come out exactly.
// weft run -n N -- mixed [OPERATIONS a thread]
#include "check.cuh"

#define BLOCKS  32u
#define THREADS 64u
#define ALL     (BLOCKS * THREADS)
#define WORDS   16u /* of each thread of each node, at every node */
#define SHARED  8u  /* words that all add to */

struct job {
    weft_gaddr at;   /* SHARED words, then WORDS for each thread of each node */
    weft_gaddr mine; /* 2 * WORDS words of this node for each thread */
    uint32_t rounds, seed;
};

__device__ uint32_t next_random(uint32_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 17;
    *s ^= *s << 5;
    return *s;
}

__device__ weft_gaddr at_node(weft_gaddr a, uint32_t node)
{
    return weft_gaddr_make(node, weft_gaddr_space(a), weft_gaddr_offset(a));
}

/* Each thread chooses one node, changes its own words there and checks them; all threads add to the shared words. */
__global__ void mixed(const weft_device *d, struct job j, struct report *bad, unsigned long long *adds)
{
    uint32_t me = blockIdx.x * blockDim.x + threadIdx.x, s = j.seed + me * 2654435761u + d->rank + 1;
    uint32_t node = (me + d->rank) % d->size;
    uint64_t shadow[WORDS] = {0}, old;
    weft_gaddr there = at_node(j.at, node) + 8 * (SHARED + WORDS * (d->rank * ALL + me)), mine = j.mine + 8ull * 2 * WORDS * me;
    volatile uint64_t *out = (volatile uint64_t *)weft_device_ptr(d, mine, 8 * WORDS), *in = out + WORDS;
    KERNEL_CHECK(out != NULL);
    for (uint32_t i = 0; i < j.rounds; i++) {
        uint32_t k = next_random(&s) % WORDS, n = 1 + next_random(&s) % (WORDS - k), what = next_random(&s) % 8;
        uint64_t v = (uint64_t)d->rank << 48 | (uint64_t)me << 24 | i;
        weft_device_op op;
        switch (what) {
        case 0: /* puts several words, and waits until they are there before later operations on them */
            for (uint32_t w = 0; w < n; w++)
                out[k + w] = shadow[k + w] = v + w;
            KERNEL(weft_device_put(d, there + 8 * k, mine + 8 * k, 8 * n, &op));
            KERNEL(weft_device_wait(d, &op));
            break;
        case 1:
            shadow[k] = v;
            KERNEL(weft_device_put_value(d, there + 8 * k, v, &op));
            KERNEL(weft_device_wait(d, &op));
            break;
        case 2:
            KERNEL(weft_device_get(d, mine + 8 * (WORDS + k), there + 8 * k, 8 * n, &op));
            KERNEL(weft_device_wait(d, &op));
            for (uint32_t w = 0; w < n; w++)
                KERNEL_CHECK(in[k + w] == shadow[k + w]);
            break;
        case 3:
            KERNEL(weft_device_swap(d, there + 8 * k, v, &old));
            KERNEL_CHECK(old == shadow[k]);
            shadow[k] = v;
            break;
        case 4:
            KERNEL(weft_device_compare_swap(d, there + 8 * k, (i & 1) ? shadow[k] : ~shadow[k], v, &old));
            KERNEL_CHECK(old == shadow[k]);
            shadow[k] = (i & 1) ? v : shadow[k];
            break;
        case 5:
            out[k] = shadow[k] = v;
            KERNEL(weft_device_put_signal(d, there + 8 * k, mine + 8 * k, 8, at_node(j.at, node) + 8 * (i % SHARED), 1, &op));
            KERNEL(weft_device_wait(d, &op));
            atomicAdd(&adds[node * SHARED + i % SHARED], 1ull);
            break;
        default:
            KERNEL(weft_device_fetch_add(d, at_node(j.at, i % d->size) + 8 * k % (8 * SHARED), 1, &old));
            atomicAdd(&adds[(i % d->size) * SHARED + k % SHARED], 1ull);
        }
    }
    KERNEL(weft_device_flush(d, node));
    KERNEL(weft_device_get(d, mine + 8 * WORDS, there, 8 * WORDS, NULL));
    KERNEL(weft_device_flush(d, node));
    __threadfence_system();
    for (uint32_t w = 0; w < WORDS; w++)
        KERNEL_CHECK(in[w] == shadow[w]);
}

int main(int argc, char **argv)
{
    open_node();
    uint32_t size = weft_size(w), cpu = 20000;
    struct job j = {same_place(8 * (SHARED + (size_t)WORDS * ALL * size)), 0, argc > 1 ? (uint32_t)atoi(argv[1]) : 300, 12345};
    OK(weft_alloc(w, 8ull * 2 * WORDS * ALL, &j.mine));
    unsigned long long *adds;
    CUDA(cudaHostAlloc(&adds, 8 * SHARED * size, cudaHostAllocMapped));
    memset(adds, 0, 8 * SHARED * size);
    open_gpu(8, 1024);
    all_here();
    mixed<<<BLOCKS, THREADS>>>(weft_gpu_device(gpu), j, bad, adds);
    for (uint32_t i = 0; i < cpu; i++) { /* operations of this node's processor at the same time */
        OK(weft_fetch_add_blocking(w, on_node(j.at, i % size) + 8 * (i % SHARED), 1, NULL));
    }
    KERNEL_DONE();
    uint64_t sum = 0, all[8 * WEFT_EXCHANGE_WORDS];
    CHECK(size <= 8);
    for (uint32_t n = 0; n < size; n++) { /* what each node has added to node n, in all */
        uint64_t mine = 0;
        for (uint32_t k = 0; k < SHARED; k++)
            mine += adds[n * SHARED + k];
        for (uint32_t i = 0; i < cpu; i++)
            mine += i % size == n;
        OK(weft_exchange(w, &mine, 1, all, NULL, 60 * WEFT_SECOND));
        for (uint32_t i = 0; i < size && n == weft_rank(w); i++)
            sum += all[i];
    }
    all_here();
    uint64_t found = 0;
    for (uint32_t k = 0; k < SHARED; k++)
        found += ((volatile uint64_t *)weft_ptr(w, j.at, 8 * SHARED))[k];
    CHECK(found == sum);
    OK(weft_gpu_close(gpu));
    OK(weft_close(w));
    printf("mixed: %u operations of %u threads, %u of the processor: all as in the shadow\n", j.rounds * ALL, ALL, cpu);
    return 0;
}
