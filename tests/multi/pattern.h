/* SPDX-License-Identifier: MIT
 *
 * Bytes of files and streams that tell their version and their place. Whole words are written where possible: with sanitizers, tests of
 * large files spent most of their time on single bytes.
 */
#ifndef WEFT_TESTS_PATTERN_H
#define WEFT_TESTS_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Bytes 8 * i to 8 * i + 7 of version `seed`. */
static inline uint64_t word_of(uint64_t seed, uint64_t i)
{
    return i * UINT64_C(0x9e3779b97f4a7c15) ^ seed * UINT64_C(0xbf58476d1ce4e5b9);
}

static inline uint8_t byte_of(uint64_t seed, uint64_t i)
{
    return (uint8_t)(word_of(seed, i / 8) >> i % 8 * 8);
}

static inline void fill(uint8_t *to, uint64_t seed, uint64_t from, size_t n)
{
    for (size_t i = 0; i < n;) {
        if ((from + i) % 8 || n - i < 8) {
            to[i] = byte_of(seed, from + i);
            i++;
            continue;
        }
        uint64_t word = word_of(seed, (from + i) / 8);
        memcpy(to + i, &word, sizeof word); /* the low byte first: little-endian, as weft is */
        i += sizeof word;
    }
}

static inline bool right(const uint8_t *bytes, uint64_t seed, uint64_t from, size_t n)
{
    uint8_t want[4096];
    for (size_t at = 0; at < n; at += sizeof want) {
        size_t some = n - at < sizeof want ? n - at : sizeof want;
        fill(want, seed, from + at, some);
        if (memcmp(bytes + at, want, some) != 0)
            return false;
    }
    return true;
}

#endif
