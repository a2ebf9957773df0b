/* SPDX-License-Identifier: MIT
 *
 * weft topo: topo.c has the command line and starts the nodes, topo_node.c is what each of them does, topo_print.c and
 * topo_matrix.c print.
 */
#ifndef WEFT_CLI_TOPO_H
#define WEFT_CLI_TOPO_H

#include "cli/command.h"
#include "weft/fabric.h"

#define TOPO_NODES_MAX 256u
#define TOPO_DEVICES   8u
#define TOPO_TIME_MAX  (60 * WEFT_SECOND)

enum topo_format { TOPO_TABLE, TOPO_JSON, TOPO_DOT, TOPO_SVG, TOPO_MATRIX };

/* What the nodes put into node 0's pool. */
struct topo_device {
    char name[64], interface[32], link[16], state[16];
    char reason[24]; /* why weft does not use it, as `weft devices --json` has it; "": it can */
    double gbits;
};
struct topo_node {
    char host[64];
    bool reported; /* this is all there, and its links */
    uint64_t pool_bytes;
    uint32_t device_count;
    struct topo_device devices[TOPO_DEVICES];
};
struct topo_link {
    weft_link_stats stats; /* of the node it goes from, after measuring */
    int64_t round_trip_ns; /* median */
    uint64_t bytes_per_second;
    bool measured;
    char why[160]; /* not measured, or only in part */
};

struct topo {
    uint32_t size;
    const struct topo_node *nodes; /* [size] */
    const struct topo_link *links; /* [size][size]: from, to */
};

/* One node of the cluster that is looked at; its environment says which. Node 0 says how long a measure takes, and prints. `hostfile`:
 * which the nodes were started by, NULL: none. */
int topo_node(enum topo_format format, int64_t time_ns, const char *hostfile);
int topo_print(const struct topo *t, enum topo_format format);
int topo_matrix(const struct topo *t, const char *hostfile);

#endif
