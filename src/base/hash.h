/* SPDX-License-Identifier: MIT
 *
 * XXH3. Short data is hashed by inline code. Long data is hashed with the processor's widest vector instructions, because SSE2 alone takes
 * three times as long.
 */
#ifndef WEFT_BASE_HASH_H
#define WEFT_BASE_HASH_H

#define XXH_INLINE_ALL
#include <xxhash.h>

#ifdef WEFT_XXH_DISPATCH     /* set by meson.build if the xxHash library selects its instructions at run time (x86 only) */
#define BASE_HASH_SHORT 240u /* XXH3 uses no vector instructions up to this length */
/* A declaration from xxh_x86dispatch.h. That header cannot be included together with xxhash.h's inline functions. */
XXH64_hash_t XXH3_64bits_withSeed_dispatch(const void *input, size_t len, XXH64_hash_t seed);
XXH128_hash_t XXH3_128bits_withSeed_dispatch(const void *input, size_t len, XXH64_hash_t seed);
#endif

static inline uint64_t base_hash(const void *p, size_t len, uint64_t seed)
{
#ifdef WEFT_XXH_DISPATCH
    if (len > BASE_HASH_SHORT)
        return XXH3_64bits_withSeed_dispatch(p, len, seed);
#endif
    return XXH3_64bits_withSeed(p, len, seed);
}

static inline void base_hash128(uint64_t out[2], const void *p, size_t len, uint64_t seed)
{
#ifdef WEFT_XXH_DISPATCH
    XXH128_hash_t h = len > BASE_HASH_SHORT ? XXH3_128bits_withSeed_dispatch(p, len, seed) : XXH3_128bits_withSeed(p, len, seed);
#else
    XXH128_hash_t h = XXH3_128bits_withSeed(p, len, seed);
#endif
    out[0] = h.low64;
    out[1] = h.high64;
}

#endif
