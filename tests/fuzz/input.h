/* SPDX-License-Identifier: MIT
 *
 * The input of a fuzz target, taken from its front as numbers.
 */
#ifndef WEFT_FUZZ_INPUT_H
#define WEFT_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>

struct input {
    const uint8_t *at;
    size_t left;
};

/* The next number of so many bytes; where the input has ended, zeros. */
static inline uint64_t take(struct input *in, size_t bytes)
{
    uint64_t v = 0;
    for (size_t i = 0; i < bytes && in->left; i++, in->at++, in->left--)
        v |= (uint64_t)*in->at << 8 * i;
    return v;
}

#endif
