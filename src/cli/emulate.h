/* SPDX-License-Identifier: MIT
 *
 * --softverbs: runs the nodes on emulated RDMA devices, each on an emulated host of its own. The emulated fabric is in a directory, which
 * the launcher or its keeper (keeper.c) removes at the end.
 */
#ifndef WEFT_CLI_EMULATE_H
#define WEFT_CLI_EMULATE_H

#include <stddef.h>
#include <stdint.h>

#define EMULATE_HOSTS 256u /* maximum number of hosts of one fabric */

struct emulation {
    char command[4096];  /* path of the command softverbs */
    char directory[128]; /* SOFTVERBS_DIR=..., for the nodes' environment */
    char transport[64];  /* WEFT_TRANSPORT=..., or "" */
    char host[32];       /* the NAME in `argv`; the caller sets it before each start */
    char **argv[2];      /* softverbs run --fabric weft --host NAME -- PROGRAM ARGUMENT...; [0]: for node 0; [1]: for the other nodes */
    char topology[4096]; /* a kind such as "mesh", or the path of a file */
    char count[16];      /* number of hosts of the kind; "" for a file */
    char profile[256];
    uint32_t hosts;
    char names[EMULATE_HOSTS][32]; /* names of the hosts, by rank */
};
/* Parse KIND:HOSTS[:PROFILE] or FILE[:PROFILE], as in "switch:8", "mesh:4:tb5-strict", "ring:4:PATH.json", "lab.json", "lab.json:tb5". The
 * default profile is tb5 for topologies with cables, and generic for a switch. The topology must have at least `nodes` hosts. Returns 0, or
 * a negative errno with base_error(). softverbs reports other errors in a topology file. */
int emulate_parse(struct emulation *e, const char *text, uint32_t nodes);
/* Create the fabric in `dir`, which exists. `first` is the command line of node 0, `others` that of the other nodes; both must stay valid
 * until emulate_end(). */
int emulate_start(struct emulation *e, const char *dir, char *const *first, char *const *others);
void emulate_end(struct emulation *e);

#endif
