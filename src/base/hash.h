/* SPDX-License-Identifier: MIT
 *
 * XXH3. Short data, which is frequent, is hashed by code in this file. Long data is hashed with the widest vectors that this processor has:
 * every byte that travels is hashed, and with SSE2 alone that takes three times as long.
 */
#ifndef WEFT_BASE_HASH_H
#define WEFT_BASE_HASH_H

#define XXH_INLINE_ALL
#include <xxhash.h>

#ifdef WEFT_XXH_DISPATCH     /* meson.build: the library chooses while running; on arm64 there is nothing to choose */
#define BASE_HASH_SHORT 240u /* up to here XXH3 has no use for wide vectors */
/* As in xxh_x86dispatch.h, which cannot be included beside the functions above. */
XXH64_hash_t XXH3_64bits_withSeed_dispatch(const void *input, size_t len, XXH64_hash_t seed);
#endif

static inline uint64_t base_hash(const void *p, size_t len, uint64_t seed)
{
#ifdef WEFT_XXH_DISPATCH
    if (len > BASE_HASH_SHORT)
        return XXH3_64bits_withSeed_dispatch(p, len, seed);
#endif
    return XXH3_64bits_withSeed(p, len, seed);
}

#endif
