/* SPDX-License-Identifier: MIT
 *
 * One node puts to several peers at once: the test links:BYTES:ITERATIONS:WARMUP gives the GB/s to the first peer, to the first two, and so
 * on up to all. Rank 0 puts, the others make progress.
 */
#include <stdbool.h>

#include "spec.h"
#include <weft.h>

#define PEERS_MAX 15u

static bool failed(const char *what, int rc)
{
    if (rc)
        fprintf(stderr, "weft: %s: %s\n", what, weft_error());
    return rc != 0;
}

/* `n` puts to each of the first `peers` addresses after to[0], in turns. */
static int put_all(weft_node *w, const uint64_t *to, uint32_t peers, const void *from, size_t bytes, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        for (uint32_t p = 1; p <= peers; p++)
            if (failed("put", weft_put(w, to[p], from, bytes, NULL)))
                return -1;
    for (uint32_t p = 1; p <= peers; p++)
        if (failed("flush", weft_flush(w, p, WEFT_TIMEOUT_DEFAULT)))
            return -1;
    return 0;
}

int main(int argc, char **argv)
{
    struct spec spec;
    weft_node *w;
    weft_gaddr mine;
    uint64_t all[PEERS_MAX + 1];
    if (argc != 2 || spec_parse(&spec, argv[1])) {
        fprintf(stderr, "usage: %s links:BYTES:ITERATIONS:WARMUP\n", argv[0]);
        return 2;
    }
    if (failed("open", weft_open(&w, &(weft_config){.bytes = sizeof(weft_config), .pool_bytes = spec.bytes + (32u << 20)})))
        return 1;
    int rc = 1;
    uint32_t peers = weft_size(w) - 1;
    if (peers > PEERS_MAX) {
        fprintf(stderr, "links: at most %u peers\n", PEERS_MAX);
        goto out;
    }
    if (failed("alloc", weft_alloc_aligned(w, spec.bytes + 8, 4096, &mine)))
        goto out;
    uint8_t *memory = weft_ptr(w, mine, spec.bytes + 8);
    uint64_t *over = (void *)(memory + spec.bytes);
    memset(memory, 1, spec.bytes);
    *over = 0;
    if (failed("exchange", weft_exchange(w, &mine, 1, all, NULL, WEFT_TIMEOUT_DEFAULT)))
        goto out;
    for (uint32_t p = 1; weft_rank(w) == 0 && p <= peers; p++) {
        if (put_all(w, all, p, memory, spec.bytes, spec.warmup))
            goto out;
        uint64_t start = spec_now_ns();
        if (put_all(w, all, p, memory, spec.bytes, spec.iterations))
            goto out;
        printf("{\"test\": \"links %u\", \"bytes\": %llu, \"value\": %.6g}\n", p, (unsigned long long)spec.bytes,
               spec_gbs(spec_now_ns() - start, spec.bytes, spec.iterations * p));
    }
    fflush(stdout);
    for (uint32_t p = 1; weft_rank(w) == 0 && p <= peers; p++)
        if (failed("fetch_add", weft_fetch_add(w, all[p] + spec.bytes, 1, NULL, NULL)))
            goto out;
    while (weft_rank(w) != 0 && !__atomic_load_n(over, __ATOMIC_ACQUIRE))
        weft_progress(w);
    rc = failed("barrier", weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
out:
    failed("close", weft_close(w));
    return rc;
}
