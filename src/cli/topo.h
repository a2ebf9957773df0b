/* SPDX-License-Identifier: MIT
 *
 * weft topo: topo.c parses the command line and starts the nodes, topo_node.c measures in each node, topo_print.c and topo_matrix.c print
 * the results.
 */
#ifndef WEFT_CLI_TOPO_H
#define WEFT_CLI_TOPO_H

#include "cli/command.h"
#include "weft/fabric.h"

#define TOPO_NODES_MAX 256u
#define TOPO_DEVICES   8u
#define TOPO_TIME_MAX  (60 * WEFT_SECOND)

enum topo_format { TOPO_TABLE, TOPO_JSON, TOPO_DOT, TOPO_SVG, TOPO_MATRIX };

/* The nodes put struct topo_node and struct topo_link into node 0's pool. */
struct topo_device {
    char name[64], interface[32], link[16], state[16];
    char reason[24]; /* why weft does not use the device, in the words of `weft devices --json`; "": weft can use it */
    double gbits;
};
struct topo_node {
    char host[64];
    bool reported; /* set last, when this record and the node's links are complete */
    uint64_t pool_bytes;
    uint32_t device_count;
    struct topo_device devices[TOPO_DEVICES];
    /* a provider of libfabric on this host that weft prefers to TCP; "": none, or the node has no link over libfabric */
    char better[48];
};
struct topo_link {
    weft_link_stats stats; /* statistics of the sending node after the measurement */
    int64_t round_trip_ns; /* median */
    uint64_t bytes_per_second;
    bool measured;
    char why[160]; /* why the link was not measured completely; "": it was measured completely */
};

struct topo {
    uint32_t size;
    const struct topo_node *nodes; /* [size] */
    const struct topo_link *links; /* [size][size]: from, to */
};

/* Run one node. Its number is in the environment. Node 0 prints. `hostfile`: the launcher's hostfile; NULL: there is none. */
int topo_node(enum topo_format format, int64_t time_ns, const char *hostfile);
/* Describe this host and its devices. Opens each device for a moment. */
void topo_describe(struct topo_node *n);
/* Terminate a text of another node, and replace all but printable ASCII by '?'. */
void topo_check_text(char *text, size_t room);
/* Make a description that another node has sent safe to use: all strings end, all counts fit. */
void topo_check_node(struct topo_node *n);
int topo_print(const struct topo *t, enum topo_format format);
int topo_matrix(const struct topo *t, const char *hostfile);

#endif
