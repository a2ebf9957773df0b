// SPDX-License-Identifier: MIT
//
// A million mixed operations of kernels and processors of all nodes, on pools and arenas, against a shadow memory: each thread has a page
// of its own at every node, puts, gets, signals and swaps there in random order, and knows what must be where; counters that all share must
// come out exactly. One thread in 64 has its page in the node's arena, and half have their local buffers in an arena. weft run -n N
// -- mixed [OPERATIONS a thread]
#include <vector>

#include "check.cuh"

#define BLOCKS  32u
#define THREADS 64u
#define ALL     (BLOCKS * THREADS)
#define WORDS   16u /* of each thread of each node, at every node */
#define SHARED  8u  /* words that all add to */

struct job {            /* of each pair, the first is in the pool and the second in the arena */
    weft_gaddr at[2];   /* SHARED words, then WORDS for each thread of each node */
    weft_gaddr mine[2]; /* 2 * WORDS words of this node for each thread */
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

/* Each thread chooses one node, changes its own words there and checks them; all threads add to the shared words. `adds`: what this node's
 * threads have added to the words of each node. */
__global__ void mixed(const weft_device *d, struct job j, struct report *bad, unsigned long long *adds)
{
    uint32_t me = blockIdx.x * blockDim.x + threadIdx.x, s = j.seed + me * 2654435761u + d->rank + 1;
    uint32_t node = (me / 8 + d->rank) % d->size;
    uint64_t shadow[WORDS] = {0}, old;
    weft_gaddr shared = j.at[me % 256 == 4]; /* few, because an atomic on an arena takes milliseconds if two processes share a GPU */
    weft_gaddr there = at_node(j.at[me % 64 == 1], node) + 8 * (SHARED + WORDS * (d->rank * ALL + me));
    weft_gaddr mine = j.mine[me / 2 % 2] + 8ull * 2 * WORDS * me;
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
            KERNEL(weft_device_put_signal(d, there + 8 * k, mine + 8 * k, 8, at_node(shared, node) + 8 * (i % SHARED), 1, &op));
            KERNEL(weft_device_wait(d, &op));
            atomicAdd(&adds[node], 1ull);
            break;
        default:
            KERNEL(weft_device_fetch_add(d, at_node(shared, i % d->size) + 8 * k % (8 * SHARED), 1, &old));
            atomicAdd(&adds[i % d->size], 1ull);
        }
    }
    KERNEL(weft_device_flush(d, node));
    KERNEL(weft_device_get(d, mine + 8 * WORDS, there, 8 * WORDS, NULL));
    KERNEL(weft_device_flush(d, node));
    __threadfence_system();
    for (uint32_t w = 0; w < WORDS; w++)
        KERNEL_CHECK(in[w] == shadow[w]);
}

/* Allocates zeros in this node's arena, at the same offset on every node. */
static weft_gaddr same_place_in_arena(uint32_t space, size_t bytes)
{
    uint64_t all[WEFT_MAX_NODES];
    weft_gaddr at;
    OK(weft_gpu_alloc(gpu, space, bytes, &at));
    std::vector<uint8_t> zeros(bytes);
    OK(weft_put_blocking(w, at, zeros.data(), bytes));
    OK(weft_exchange(w, &at, 1, all, NULL, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t i = 0; i < weft_size(w); i++)
        CHECK(all[i] == on_node(at, i));
    return at;
}

/* What all nodes have added to this node's words. `adds`: what this node has added to those of each node. */
static uint64_t added_here(const unsigned long long *adds)
{
    uint64_t sum = 0, all[WEFT_MAX_NODES];
    for (uint32_t n = 0; n < weft_size(w); n++) {
        uint64_t mine = adds[n];
        OK(weft_exchange(w, &mine, 1, all, NULL, 60 * WEFT_SECOND));
        for (uint32_t i = 0; i < weft_size(w) && n == weft_rank(w); i++)
            sum += all[i];
    }
    return sum;
}

int main(int argc, char **argv)
{
    open_node();
    uint32_t size = weft_size(w), cpu = 20000, space;
    size_t shared = 8 * (SHARED + (size_t)WORDS * ALL * size), local = 8ull * 2 * WORDS * ALL;
    struct job j = {{same_place(shared), 0}, {0, 0}, argc > 1 ? (uint32_t)atoi(argv[1]) : 300, 12345};
    OK(weft_alloc(w, local, &j.mine[0]));
    unsigned long long *adds;
    CUDA(cudaHostAlloc(&adds, 8 * size, cudaHostAllocMapped));
    memset(adds, 0, 8 * size);
    open_gpu(8, 1024);
    OK(weft_gpu_arena(gpu, shared + local + (1 << 20), &space));
    j.at[1] = same_place_in_arena(space, shared);
    OK(weft_gpu_alloc(gpu, space, local, &j.mine[1]));
    all_here();
    mixed<<<BLOCKS, THREADS>>>(weft_gpu_device(gpu), j, bad, adds);
    for (uint32_t i = 0; i < cpu; i++) { /* operations of this node's processor at the same time, one in 64 in arenas */
        OK(weft_fetch_add_blocking(w, on_node(j.at[i % 64 == 63], i % size) + 8 * (i % SHARED), 1, NULL));
    }
    KERNEL_DONE();
    for (uint32_t i = 0; i < cpu; i++)
        adds[i % size]++;
    uint64_t sum = added_here(adds), found = 0, words[SHARED];
    all_here();
    for (int k = 0; k < 2; k++) {
        OK(weft_get_blocking(w, words, on_node(j.at[k], weft_rank(w)), sizeof words));
        for (uint32_t i = 0; i < SHARED; i++)
            found += words[i];
    }
    CHECK(found == sum);
    all_here();
    OK(weft_gpu_close(gpu));
    OK(weft_close(w));
    printf("mixed: %u operations of %u threads, %u of the processor, on pools and arenas: all as in the shadow\n", j.rounds * ALL, ALL,
           cpu);
    return 0;
}
