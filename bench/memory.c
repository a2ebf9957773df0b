/* SPDX-License-Identifier: MIT
 *
 * How much memory a node needs for each peer: all nodes open, meet, send messages to each other and read one word of each other; then node
 * 0 prints how many KiB its process has (proportional set size), and how many milliseconds joining and the first messages took. Each run
 * has one test, "peer_memory:0:MESSAGES:0", and measures with the number of nodes of the cluster.
 */
#include <stdatomic.h>

#include "spec.h"
#include "weft.h"

enum { ON_HELLO };

static _Atomic uint32_t heard;

static void on_hello(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len, (void)arg;
    atomic_fetch_add_explicit(&heard, 1, memory_order_relaxed);
}

static bool failed(const char *what, int rc)
{
    if (rc >= 0)
        return false;
    fprintf(stderr, "weft: %s: %s (%s)\n", what, weft_error(), strerror(-rc));
    return true;
}

/* The value of a line of /proc/self/smaps_rollup, in KiB. */
static double kib(const char *name)
{
    char line[256];
    double found = 0;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name)))
            found = strtod(line + strlen(name), NULL);
    if (f)
        fclose(f);
    return found;
}

int main(int argc, char **argv)
{
    struct spec spec;
    weft_node *w;
    uint64_t word = 0;
    int rc = 1;
    if (argc != 2 || spec_parse(&spec, argv[1]) || strcmp(spec.test, "peer_memory")) {
        fprintf(stderr, "usage: %s peer_memory:0:MESSAGES:0\n", argv[0]);
        return 2;
    }
    weft_config config = {.bytes = sizeof config, .pool_bytes = 8u << 20};
    uint64_t begun = spec_now_ns(), joined;
    if (failed("open", weft_open(&w, &config)))
        return 1;
    uint32_t size = weft_size(w), rank = weft_rank(w);
    weft_gaddr mine, *all = calloc(size, sizeof *all);
    if (!all || failed("handle", weft_handle(w, ON_HELLO, on_hello, NULL)) || failed("alloc", weft_alloc(w, 8, &mine)) ||
        failed("exchange", weft_exchange(w, &mine, 1, all, NULL, WEFT_TIMEOUT_DEFAULT)))
        goto out;
    joined = spec_now_ns();
    for (uint32_t i = 1; i < size; i++) {
        uint32_t to = (rank + i) % size;
        for (uint64_t k = 0; k < spec.iterations; k++)
            if (failed("send", weft_send(w, to, ON_HELLO, NULL, 0, NULL, 0, NULL)))
                goto out;
        if (failed("get", weft_get_blocking(w, &word, all[to], 8)))
            goto out;
    }
    while (atomic_load_explicit(&heard, memory_order_relaxed) < (size - 1) * spec.iterations)
        weft_progress(w);
    if (failed("barrier", weft_barrier(w, WEFT_TIMEOUT_DEFAULT)))
        goto out;
    if (rank == 0) {
        printf("{\"test\": \"join\", \"value\": %.6g}\n{\"test\": \"meet\", \"value\": %.6g}\n", (double)(joined - begun) / 1e6,
               (double)(spec_now_ns() - joined) / 1e6);
        printf("{\"test\": \"peer_memory\", \"nodes\": %u, \"messages\": %llu, \"value\": %.6g, \"anonymous\": %.6g}\n", size,
               (unsigned long long)spec.iterations, kib("Pss:"), kib("Anonymous:"));
    }
    rc = failed("barrier", weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
out:
    free(all);
    failed("close", weft_close(w));
    return rc;
}
