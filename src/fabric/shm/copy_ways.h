/* SPDX-License-Identifier: MIT
 *
 * The ways to copy that this processor has, and which of them serves a copy of a given size (copy.c).
 */
#ifndef WEFT_COPY_WAYS_H
#define WEFT_COPY_WAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COPY_WAYS_MAX 8u

struct copy_way {
    const char *name;
    bool (*works)(void);                                        /* on this processor */
    void (*copy)(uint8_t *dst, const uint8_t *src, size_t len); /* any alignment and length; the ranges are apart */
    bool streams;                                               /* past the caches: whoever reads the bytes next fetches them from memory */
};

/* Ends with an entry without a name. The first is the C library's, which works everywhere. Of two that are about as fast the
 * one that comes first is chosen. */
extern const struct copy_way copy_ways[COPY_WAYS_MAX + 1];

/* Copies are chosen for by size classes: an octave each from COPY_LARGE (copy.h) on, and all from 16 MiB on together. */
#define COPY_CLASSES 10u
unsigned copy_class(size_t len);
size_t copy_class_bytes(unsigned class); /* the smallest of the class; it is measured with this */

/* The way of a class, from its measured times: an index into copy_ways. `ns[i]` is 0 where way i was not measured. */
unsigned copy_choose(const uint64_t ns[COPY_WAYS_MAX]);
/* Measure the ways of a class now: copy_choose() for the result. False: no memory to measure with. */
bool copy_measure(unsigned class, uint64_t ns[COPY_WAYS_MAX]);
/* What serves a copy of `len` bytes. Counts it: a class is measured when several copies of it were asked for. */
const struct copy_way *copy_way_for(size_t len);

#endif
