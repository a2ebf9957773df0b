/* SPDX-License-Identifier: MIT
 *
 * weft probe: shared by all probes. A probe opens one device, tries something until it is refused, frees what it allocated, and prints the
 * results as a table or as JSON.
 */
#ifndef WEFT_CLI_PROBE_H
#define WEFT_CLI_PROBE_H

#include "cli/device_words.h"

struct probe {
    const char *kind;          /* "regions" */
    const char *name;          /* name of the device; NULL: the best one */
    const char *to;            /* device of this host that is the other end; NULL: the same device */
    const char *listen, *peer; /* addresses, if the other end is on another host; else NULL */
    uint64_t size;             /* bytes of a region or a buffer; 0: the probe's default */
    uint32_t count;            /* number of regions, buffers or queue pairs; 0: the probe's default */
    int gid_index;
    bool json, markdown;
};

/* The probes. Each opens the device, tests it, prints the results, and returns the exit status. */
int probe_regions(const struct probe *p);
int probe_pool(const struct probe *p);
int probe_memory(const struct probe *p);
int probe_queue(const struct probe *p);
int probe_link(const struct probe *p);

/* Open the device that the user chose, and its protection domain; NULL after an error was printed. */
struct verbs_device *probe_open(const struct probe *p);
int probe_error(const struct probe *p, const char *format, ...) BASE_PRINTF(2, 3);
/* Print `t` as a table or as Markdown, or `j` as JSON, as the options say. Frees both. If the one to print is NULL, reports a lack of
 * memory. Returns the exit status. */
int probe_print(const struct probe *p, struct cli_table *t, json_t *j);
/* Map anonymous memory, without touching it. Returns NULL if there is no memory. */
void *probe_map(uint64_t bytes);

#endif
