/* SPDX-License-Identifier: MIT
 *
 * Counts how often each byte value occurs.
 */
#include "kernel/kernel.h"

#include <stdio.h>
#include <string.h>

#define LANES 4 /* number of tables; equal bytes in a row use different tables, so that no increment waits for the one before */

static int histogram_run(const weft_span *in, const char *arg, weft_out *out)
{
    (void)arg;
    uint64_t total[256] = {0};
    const uint8_t *p = in->bytes;
    size_t left = in->len;
    while (left) {
        /* The tables have 32-bit counters, so that they fit into the L1 cache. A round is at most 1 GiB, so no counter overflows. */
        uint32_t table[LANES][256] = {{0}};
        size_t round = left < ((size_t)1 << 30) ? left : (size_t)1 << 30, i = 0;
        for (; i + 8 <= round; i += 8) {
            uint64_t v;
            memcpy(&v, p + i, 8);
            table[0][v & 255]++;
            table[1][v >> 8 & 255]++;
            table[2][v >> 16 & 255]++;
            table[3][v >> 24 & 255]++;
            table[0][v >> 32 & 255]++;
            table[1][v >> 40 & 255]++;
            table[2][v >> 48 & 255]++;
            table[3][v >> 56]++;
        }
        for (; i < round; i++)
            table[0][p[i]]++;
        for (unsigned b = 0; b < 256; b++)
            for (unsigned k = 0; k < LANES; k++)
                total[b] += table[k][b];
        p += round;
        left -= round;
    }
    return weft_out_write(out, total, sizeof total);
}

static int histogram_fold(void *state, const void *output, size_t len)
{
    uint64_t *sum = state, total[256];
    if (len != sizeof total)
        return base_fail(-EPROTO,
                         "kernel histogram: the result of a piece has %zu bytes instead of %zu; run the same version of weft on all hosts",
                         len, sizeof total);
    memcpy(total, output, sizeof total);
    for (unsigned b = 0; b < 256; b++)
        sum[b] += total[b];
    return 0;
}

static int histogram_finish(const void *state, weft_out *out)
{
    const uint64_t *sum = state;
    for (unsigned b = 0; b < 256; b++) {
        char line[48];
        int n = snprintf(line, sizeof line, "%u %llu\n", b, (unsigned long long)sum[b]);
        int rc = sum[b] ? weft_out_write(out, line, (size_t)n) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

const weft_kernel kernel_histogram = {
    .bytes = sizeof(weft_kernel),
    .name = "histogram",
    .help = "how often each byte value occurs: 'byte count', a line each",
    .run = histogram_run,
    .state_bytes = 256 * sizeof(uint64_t),
    .fold = histogram_fold,
    .finish = histogram_finish,
};
