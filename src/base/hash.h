/* SPDX-License-Identifier: MIT
 *
 * XXH3. Short data, of which there is much, by code that is here; long data with the widest vectors that this processor has: a hash
 * is computed over every byte that travels, and with the least that all x86 processors have it takes three times as long.
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
