/* SPDX-License-Identifier: MIT
 *
 * The messages of joining. All have a fixed size, integers are little-endian, and text is zero-terminated inside its field. The receiver
 * checks every field before it uses it.
 *
 *   node k                          node 0 (the coordinator)
 *     hello  -------------------------->
 *     <------------------------ challenge
 *     proof (card, MAC) --------------->      wrong MAC: closed without an answer
 *     <------------- answer: table of cards, MAC; or an error text
 *
 * Then every pair opens a side connection, which stays open, and exchanges tokens over it. Until all pairs have connected, the connections
 * to node 0 stay open too (hub.c). Over them a node sends `wire_news` to node 0 when it has connected to all nodes or has failed. Node 0
 * sends `wire_news` to all nodes when all have connected or one has failed. The MACs are keyed with the cluster secret. Without a secret
 * the key is a constant, so a node with a secret and a node without one cannot join each other.
 */
#ifndef WEFT_WIRE_H
#define WEFT_WIRE_H

#include <stdint.h>

#include "base/base.h"
#include "weft/types.h"

#define WIRE_MAGIC        UINT64_C(0x7765667430303036) /* "weft0006": increase the number when a message changes */
#define WIRE_NONCE        32
#define WIRE_MAC          32
#define WIRE_ADDRESS      108
#define WIRE_TEXT         512
#define WIRE_REASON       1024 /* room for the longest text of base_error() */
#define WIRE_LIVENESS_MAX (3600 * WEFT_SECOND)

#define WIRE_NEWCOMER UINT32_MAX /* rank of a node that joins a running cluster, until it gets a rank */

struct wire_hello {
    uint64_t magic;
    uint32_t rank, size; /* size 0: the node joins a running cluster */
    uint8_t nonce[WIRE_NONCE];
};

struct wire_challenge {
    uint64_t magic;
    uint8_t nonce[WIRE_NONCE];
};

struct wire_card {
    uint64_t pool_bytes;
    uint32_t rank, pid;
    uint32_t grows; /* 1: nodes may join later (WEFT_GROW). Must be the same for all nodes that start together */
    uint32_t reserved;
    uint8_t host_id[16];
    char host[64];
    char side[WIRE_ADDRESS]; /* address at which the node listens for side connections from its host */
    char away[WIRE_ADDRESS]; /* address at which the node listens for side connections from other hosts: numeric HOST:PORT; "": none */
    int64_t liveness_ns;     /* how long a peer on another host may be silent */
    uint64_t cpus[BASE_CPU_WORDS]; /* processors of its host that the node may use */
};

struct wire_proof {
    struct wire_card card;
    uint8_t mac[WIRE_MAC];
};

/* WIRE_MEMBERS: the answer to a node that joins a running cluster */
enum wire_answer_kind { WIRE_TABLE = 1, WIRE_REFUSED = 2, WIRE_MEMBERS = 3 };

struct wire_answer {
    uint64_t magic;
    uint32_t kind, count; /* WIRE_TABLE, WIRE_MEMBERS: `count` cards follow */
    int32_t error;        /* WIRE_REFUSED: an errno, in Linux's numbers (base_status_out()), with its text in `text` */
    uint32_t reserved;
    uint32_t number, founders, from; /* WIRE_MEMBERS: number: the joining node's number; founders: how many nodes the cluster began with;
                                        from: the node that answers */
    uint32_t reserved2;
    char text[WIRE_TEXT];
    uint8_t session[WIRE_NONCE]; /* random. WIRE_TABLE: chosen by node 0 for this run of the cluster; WIRE_MEMBERS: chosen for the joining
                                    node */
    uint8_t mac[WIRE_MAC];       /* authenticates all other fields and the cards */
};

struct wire_token {
    uint64_t magic;
    uint32_t from, to;
    uint8_t mac[WIRE_MAC];
};

struct wire_news {
    uint64_t magic;
    uint32_t rank; /* the node that the message is about */
    int32_t error; /* 0: the node is connected to all nodes; from node 0: all nodes are connected. Otherwise the errno with which the node
                      failed */
    char text[WIRE_REASON]; /* why the node failed */
    uint8_t mac[WIRE_MAC];  /* authenticates all other fields and the session */
};

/* Published by every node that a PMIx launcher has started, before the node joins (meet.c). Only processes of the same job receive it. */
#define WIRE_INTERFACES 16

struct wire_interface {
    uint8_t family; /* 4 or 6 */
    uint8_t prefix; /* number of network bits of the address */
    uint8_t reserved[2];
    uint8_t address[16];
};

struct wire_notice {
    uint64_t magic;
    uint32_t rank, pid;
    int32_t error; /* 0: the node joins. Otherwise its weft_open() has failed with this errno, and `text` says why */
    uint8_t host_id[16];
    char host[64];
    uint32_t interface_count; /* number of interfaces in the list below */
    struct wire_interface interfaces[WIRE_INTERFACES];
    /* Set by node 0 only: */
    uint32_t port;            /* TCP port at which node 0 listens on all interfaces; 0: it does not listen at TCP */
    char here[WIRE_ADDRESS];  /* Unix socket at which node 0 listens if all nodes are on its host */
    char coord[128];          /* the address in node 0's settings, used instead of `port` and `here`; "": none */
    uint8_t secret[WIRE_MAC]; /* the cluster's secret if no setting gives one */
    char text[WIRE_REASON];
};

#endif
