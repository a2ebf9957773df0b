/* SPDX-License-Identifier: MIT
 *
 * The order: what the owner tells nodes that are no forks of it. Parses bytes of another host; needs nothing else.
 */
#ifndef WEFT_MAP_ORDER_H
#define WEFT_MAP_ORDER_H

#include "base/base.h"

#define MAP_ORDER_MAX (UINT64_C(64) << 20) /* bytes; with {file} the names of all files are in it */

struct map_order {
    uint32_t slots; /* 0: the node chooses by its processors */
    uint32_t retries;
    int64_t timeout_ns, lease_ns;
    uint64_t given, tallies; /* gaddrs in the owner's pool; `tallies`: a struct map_tally a node */
    bool literal;
    uint32_t inputs, names, argc;
    const char *kernel;      /* NULL: a command */
    const char *kernel_file; /* as map_options has it; NULL: one of weft's */
    char **argv;             /* [argc], NULL behind them */
    char **name;             /* [names]: of the inputs; 0 of them when no argument needs them */
};

/* The order as bytes; `*out` is to be freed. */
int map_order_write(const struct map_order *o, void **out, size_t *len);
/* Reads it; what `o` points at is in `bytes`, but for the lists, which map_order_free() frees. -EPROTO with a sentence. */
int map_order_read(struct map_order *o, char *bytes, size_t len);
void map_order_free(struct map_order *o);

#endif
