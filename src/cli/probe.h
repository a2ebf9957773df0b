/* SPDX-License-Identifier: MIT
 *
 * weft probe: what all probes share. A probe opens one device, tries something until it is refused, frees what it allocated, and prints a
 * table, or the same as JSON.
 */
#ifndef WEFT_CLI_PROBE_H
#define WEFT_CLI_PROBE_H

#include "cli/device_words.h"

struct probe {
    const char *kind;          /* "regions" */
    const char *name;          /* of the device; NULL: the best one */
    const char *to;            /* another device of this host as the other end; NULL: the same */
    const char *listen, *peer; /* the other end is on another host */
    uint64_t size;             /* bytes of a region or a buffer; 0: the kind's default */
    uint32_t count;            /* regions, buffers, queue pairs; 0: the kind's default */
    int gid_index;
    bool json, markdown;
};

/* Each opens what it needs, prints, and returns the exit status. */
int probe_regions(const struct probe *p);
int probe_pool(const struct probe *p);
int probe_memory(const struct probe *p);
int probe_queue(const struct probe *p);
int probe_link(const struct probe *p);

/* The device that was asked for, with its domain; NULL after a message. */
struct verbs_device *probe_open(const struct probe *p);
int probe_error(const struct probe *p, const char *format, ...) BASE_PRINTF(2, 3);
/* As a table, as Markdown, or `j` as JSON, by the options. Frees both (either may be NULL: no memory). */
int probe_print(const struct probe *p, struct cli_table *t, json_t *j);
/* Anonymous memory of mmap, touched by nobody; NULL: no memory. */
void *probe_map(uint64_t bytes);

#endif
