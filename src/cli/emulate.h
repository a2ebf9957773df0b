/* SPDX-License-Identifier: MIT
 *
 * --softverbs: run the nodes on emulated RDMA devices, each on an emulated host of its own. The fabric is made for the run, in a directory
 * that the launcher or its keeper removes.
 */
#ifndef WEFT_CLI_EMULATE_H
#define WEFT_CLI_EMULATE_H

#include <stddef.h>
#include <stdint.h>

#define EMULATE_HOSTS 256u /* of one fabric */

struct emulation {
    char command[4096];  /* softverbs */
    char directory[128]; /* SOFTVERBS_DIR=..., for the nodes' environment */
    char transport[64];  /* WEFT_TRANSPORT=..., or "" */
    char host[32];       /* the name in `argv`, written before each start */
    char **argv[2];      /* softverbs run --fabric weft --host NAME -- PROGRAM ARGUMENT...; of node 0, of the others */
    char topology[4096]; /* a kind, or a file's path */
    char count[16];      /* hosts of a kind; "": a file */
    char profile[256];
    uint32_t hosts;
    char names[EMULATE_HOSTS][32]; /* of the hosts, node 0's first */
};
/* "switch:8", "mesh:4:tb5-strict", "ring:4:PATH.json", "lab.json", "lab.json:tb5". A topology file is read, its host names and
 * whether it has cables; softverbs checks it. Without a profile a switch is generic, cables are tb5. 0, or a negative errno with a
 * sentence. `nodes` must fit on its hosts. */
int emulate_parse(struct emulation *e, const char *text, uint32_t nodes);
/* Makes the fabric in `dir`, which exists. `first` is what node 0 is to run, `others` what the others are; they stay the
 * caller's. */
int emulate_start(struct emulation *e, const char *dir, char *const *first, char *const *others);
void emulate_end(struct emulation *e);

#endif
