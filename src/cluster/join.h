/* SPDX-License-Identifier: MIT
 *
 * Shared by the files that implement joining. Each file calls only those listed before it:
 *
 *   wire.c     sends and receives whole messages; computes the MACs that prove knowledge of the secret
 *   address.c  listens at and connects to addresses
 *   pmix.c     talks to a launcher that speaks PMIx
 *   meet.c     finds the address of node 0
 *   hub.c      keeps every node's connection to node 0 until all pairs have connected
 *   pairs.c    connects every pair of nodes
 *   join.c     connects every node to node 0 and exchanges the cards
 */
#ifndef WEFT_JOIN_H
#define WEFT_JOIN_H

#include <poll.h>

#include "cluster/cluster.h"
#include "cluster/meet.h"
#include "cluster/wire.h"
#include "fabric/fabric.h"

#define JOIN_STRANGER_WAIT (1 * WEFT_SECOND) /* time-out for sending the challenge to an unauthenticated connection */
#define JOIN_STRANGERS     16u               /* unauthenticated connections allowed beyond one for each node */

struct join_listener {
    int fd; /* -1: none */
    char bound[WIRE_ADDRESS];
};

/* The connection between node 0 and another node, at either end. */
struct join_hub {
    int fd; /* -1: closed */
    uint32_t rank;
    bool done; /* the peer reported that it has connected to all nodes; if the peer is node 0: that all nodes have */
};

struct join {
    struct weft_node *w;
    const struct cluster_settings *settings;
    struct meet_place place;
    int64_t deadline;
    uint8_t key[32]; /* derived from the secret */
    uint8_t session[WIRE_NONCE];
    struct wire_card *cards; /* [size] */
    /* Listeners for side connections: `here` for nodes of this host, `away` for other hosts if node 0 is reached by TCP. */
    struct join_listener here, away;
    struct join_hub *hubs; /* [hub_count] */
    struct pollfd *fds;    /* used by join_hub_wait() */
    uint32_t hub_count;
    bool told;      /* node 0 has told all nodes which node failed, or has told this one */
    char scope[32]; /* as "%eth0": the interface to node 0, if this node's address is link-local; else "" */
};

/* --- wire.c --- */
int join_stopped(void); /* -EINTR, with base_fail(), if cluster_stopped() returns non-zero; else 0 */
int join_wait(int fd, short events, int64_t deadline);
int join_read(int fd, void *buf, size_t len, int64_t deadline);
int join_write(int fd, const void *buf, size_t len, int64_t deadline);
/* Whether the peer's user may join: over a Unix socket, only this user and root. *pid: the peer's process; 0: unknown. */
bool join_user_allowed(int fd, int *pid);
void join_token(struct wire_token *t, const struct join *j, uint32_t from, uint32_t to);

void join_mac(uint8_t out[WIRE_MAC], const uint8_t key[32], const char *what, const void *a, size_t a_len, const void *b, size_t b_len,
              const void *c, size_t c_len);

/* --- hub.c --- */
int join_hub_add(struct join *j, int fd, uint32_t rank); /* takes ownership of the descriptor, also on failure */
/* Wait until one of `others` is readable, a node has sent a report, `until` has passed, or one second has passed. *ready: the first
 * readable one of `others`, or -1. `count` is at most 2 * size + JOIN_STRANGERS. A negative errno: a node failed; the error says which and
 * why. */
int join_hub_wait(struct join *j, const int *others, uint32_t count, int64_t until, int *ready);
/* Report to the others that this node has connected to all (`rc` 0), or that it failed with `rc` and the current error. After success,
 * wait until all nodes have connected. Returns the result of joining. */
int join_hub_end(struct join *j, int rc);

/* --- pairs.c --- */
int join_listen_here(struct join *j);
/* Listen at the local address of `fd`, a TCP socket, on a port that the system chooses. Does nothing for other sockets. */
int join_listen_away(struct join *j, int fd);
void join_unlisten(struct join *j);
/* Replace the host in `address` ("HOST:PORT") by the peer's address of `fd`. Does nothing if `fd` is no TCP socket. */
void join_correct_host(char address[WIRE_ADDRESS], int fd);
int join_pairs(struct join *j);

#endif
