/* SPDX-License-Identifier: MIT
 *
 * The ways to copy that this processor supports, and the choice of one for a copy of a given size (copy.c).
 */
#ifndef WEFT_COPY_WAYS_H
#define WEFT_COPY_WAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COPY_WAYS_MAX 8u

struct copy_way {
    const char *name;
    bool (*works)(void);                                        /* whether this processor supports the way */
    void (*copy)(uint8_t *dst, const uint8_t *src, size_t len); /* any alignment and length; the ranges do not overlap */
    /* uses non-temporal stores, which bypass the caches: the next reader fetches the data from memory */
    bool streams;
};

/* The last entry has no name. The first is the C library's memcpy, which works everywhere. Of two ways that are about equally fast, the
   earlier one is chosen. */
extern const struct copy_way copy_ways[COPY_WAYS_MAX + 1];

/* A way is chosen for each size class. A class is an octave, beginning with COPY_LARGE (copy.h); the last one has everything from 16 MiB
   on. */
#define COPY_CLASSES 10u
unsigned copy_class(size_t len);
size_t copy_class_bytes(unsigned class); /* the smallest size of the class, which is measured */

/* Chooses the way of a class by its measured times: an index into copy_ways. `ns[i]` is 0 if way i was not measured. */
unsigned copy_choose(const uint64_t ns[COPY_WAYS_MAX]);
/* Measures the ways of a class now; pass the result to copy_choose(). False: no memory to measure with. */
bool copy_measure(unsigned class, uint64_t ns[COPY_WAYS_MAX]);
/* The way for a copy of `len` bytes. Also counts the copies of each class (size range), and measures a class after several copies. */
const struct copy_way *copy_way_for(size_t len);

#endif
