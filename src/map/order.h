/* SPDX-License-Identifier: MIT
 *
 * The order: what the owner tells nodes that are apart (on other hosts): command or kernel, limits, addresses. The parser gets bytes from
 * another host; it uses no other file of this folder, so that it can be tested alone.
 */
#ifndef WEFT_MAP_ORDER_H
#define WEFT_MAP_ORDER_H

#include "base/base.h"

#define MAP_ORDER_MAX (UINT64_C(64) << 20) /* bytes; large, because with {file} an order has the names of all files */

struct map_order {
    uint32_t slots; /* 0: the node chooses by its processors */
    uint32_t retries;
    int64_t timeout_ns, lease_ns;
    uint64_t given, tallies; /* addresses in the owner's pool. given: see map_board.given; tallies: a struct map_tally for each node */
    bool literal;
    uint32_t inputs, names, served, argc;
    const char *kernel;      /* NULL: a command */
    const char *kernel_file; /* as in map_options; NULL: a built-in kernel */
    const char *gpu;         /* as in map_options; NULL: no GPU. Only with a kernel */
    char **argv;             /* [argc], then NULL */
    char **name;             /* [names]: names of the inputs; there are no names if no argument needs them */
    char **serve; /* [served], for each input: NODE:PATH if one node reads the input for all nodes, else "". NULL: no input is read in this
                     way */
};

/* Serialize an order. The caller frees `*out`. */
int map_order_write(const struct map_order *o, void **out, size_t *len);
/* Parse an order. `o` then points into `bytes`, except for its lists, which map_order_free() frees. Returns -EPROTO, with an error text, if
 * the order is invalid. */
int map_order_read(struct map_order *o, char *bytes, size_t len);
void map_order_free(struct map_order *o);

#endif
