/* SPDX-License-Identifier: MIT
 *
 * Where a value stands in a JSON text. The parser keeps no positions, and an error without a line number is of little help.
 */
#ifndef WEFT_CLUSTER_POSITION_H
#define WEFT_CLUSTER_POSITION_H

#include <stdbool.h>
#include <stddef.h>

#define POSITION_STEPS 8

/* The way from the root to a value: hosts, 2, rdma, 1. */
struct position_path {
    struct position_step {
        const char *key; /* NULL: `index` into a list */
        size_t index;
    } steps[POSITION_STEPS];
    unsigned depth;
};

/* The line (from 1) at which the value stands; of its nearest ancestor that is found, when it is not there (a
 * missing key). `text` is valid JSON. */
unsigned position_line(const char *text, size_t len, const struct position_path *path);

/* "hosts[2].rdma[1]" into buf; "the file" for the root. What a terminal could take for a command is left out. */
const char *position_name(const struct position_path *path, char *buf, size_t len);

#endif
