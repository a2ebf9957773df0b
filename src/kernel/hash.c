/* SPDX-License-Identifier: MIT
 *
 * The XXH64 hash of each piece.
 */
#include "kernel/kernel.h"

#include <stdio.h>
#include <xxhash.h>

int kernel_hash_give(const weft_span *in, uint64_t hash, weft_out *out)
{
    char line[80];
    int n = snprintf(line, sizeof line, "%llu %zu %016llx\n", (unsigned long long)in->offset, in->len, (unsigned long long)hash);
    return weft_out_write(out, line, (size_t)n);
}

static int hash_run(const weft_span *in, const char *arg, weft_out *out)
{
    (void)arg;
    return kernel_hash_give(in, XXH64(in->bytes, in->len, 0), out);
}

const weft_kernel kernel_xxh64 = {
    .bytes = sizeof(weft_kernel),
    .name = "xxh64",
    .help = "the XXH64 hash of each piece: 'offset length hash'",
    .run = hash_run,
};
