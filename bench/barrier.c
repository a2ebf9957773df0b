/* SPDX-License-Identifier: MIT
 *
 * The time of a weft barrier, averaged over many in a row. bench/run starts one process a node.
 */
#include "spec.h"
#include "weft.h"

static int barriers(weft_node *w, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        int rc = weft_barrier(w, WEFT_TIMEOUT_DEFAULT);
        if (rc) {
            fprintf(stderr, "weft: barrier %llu: %s (%s)\n", (unsigned long long)i, weft_error(), strerror(-rc));
            return rc;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct spec spec;
    weft_node *w;
    if (argc != 2 || spec_parse(&spec, argv[1]) || strcmp(spec.test, "barrier")) {
        fprintf(stderr, "usage: %s barrier:0:ITERATIONS:WARMUP\n", argv[0]);
        return 2;
    }
    if (weft_open(&w, NULL)) {
        fprintf(stderr, "weft: open: %s\n", weft_error());
        return 1;
    }
    int rc = barriers(w, spec.warmup);
    uint64_t start = spec_now_ns();
    if (!rc)
        rc = barriers(w, spec.iterations);
    uint64_t elapsed = spec_now_ns() - start;
    if (!rc && weft_rank(w) == 0)
        spec_value(&spec, spec_us(elapsed, spec.iterations));
    weft_close(w);
    return rc ? 1 : 0;
}
