/* SPDX-License-Identifier: MIT
 *
 * The ways to copy, and the choice of one for a size (copy.c).
 */
#ifndef WEFT_COPY_WAYS_H
#define WEFT_COPY_WAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COPY_WAYS_MAX 8u

struct copy_way {
    const char *name;
    bool (*works)(void);                                        /* whether this processor supports this way */
    void (*copy)(uint8_t *dst, const uint8_t *src, size_t len); /* any alignment and length; the ranges do not overlap */
    /* uses non-temporal stores, which bypass the caches, so that the next reader fetches the data from memory */
    bool streams;
};

/* The table ends with an entry without a name. Its first entry is the C library's memcpy. Of two ways that are about equally fast, the
 * earlier one is chosen. */
extern const struct copy_way copy_ways[COPY_WAYS_MAX + 1];

/* A way is chosen for each size class. Each class has twice the sizes of the one before, from COPY_LARGE (copy.h) on; the last has all
 * sizes from 16 MiB. */
#define COPY_CLASSES 10u
unsigned copy_class(size_t len);
size_t copy_class_bytes(unsigned class); /* the smallest size of the class; this size is measured */

/* Chooses a way by the measured times `ns`, of which 0 means: not measured. Returns an index into copy_ways. */
unsigned copy_choose(const uint64_t ns[COPY_WAYS_MAX]);
/* Measures the ways for a class. Returns false if there is no memory to measure with. */
bool copy_measure(unsigned class, uint64_t ns[COPY_WAYS_MAX]);
/* Returns the way for a copy of `len` bytes. Counts the copies of each class, and measures a class after several. */
const struct copy_way *copy_way_for(size_t len);

#endif
