/* SPDX-License-Identifier: MIT
 *
 * Finds the line of a value in a JSON text, for error messages. The JSON library does not store lines.
 */
#ifndef WEFT_CLUSTER_POSITION_H
#define WEFT_CLUSTER_POSITION_H

#include <stdbool.h>
#include <stddef.h>

#define POSITION_STEPS 8

/* The path from the root to a value, as in hosts, 2, rdma, 1. */
struct position_path {
    struct position_step {
        const char *key; /* key of an object; NULL: use `index` of a list */
        size_t index;
    } steps[POSITION_STEPS];
    unsigned depth;
};

/* The line of the value, counted from 1. If the value is missing: the line of its nearest existing ancestor. `text` must be valid JSON. */
unsigned position_line(const char *text, size_t len, const struct position_path *path);

/* Write the path as "hosts[2].rdma[1]"; the root is "the file". Control characters become '?'. */
const char *position_name(const struct position_path *path, char *buf, size_t len);

#endif
