/* SPDX-License-Identifier: MIT
 *
 * What the files of joining share. Each calls only those before it:
 *
 *   wire.c     whole messages, and the MACs that prove who knows the secret
 *   address.c  addresses: listening, calling
 *   pmix.c     what a launcher that speaks PMIx says
 *   meet.c     where node 0 is found
 *   hub.c      node 0 keeps every node's connection until all pairs have connected
 *   pairs.c    every pair connects
 *   join.c     the nodes meet at node 0
 */
#ifndef WEFT_JOIN_H
#define WEFT_JOIN_H

#include <poll.h>

#include "cluster/cluster.h"
#include "cluster/meet.h"
#include "cluster/wire.h"
#include "fabric/fabric.h"

#define JOIN_STRANGER_WAIT (1 * WEFT_SECOND) /* for a connection to take the few bytes it is sent */
#define JOIN_STRANGERS     16u               /* connections beyond those of all nodes, of which nothing is known yet */

struct join_listener {
    int fd; /* -1: none */
    char bound[WIRE_ADDRESS];
};

/* A connection to node 0; or, at node 0, to another node. */
struct join_hub {
    int fd; /* -1: closed */
    uint32_t rank;
    bool done; /* it has connected with all; node 0: all have */
};

struct join {
    struct weft_node *w;
    const struct cluster_settings *settings;
    struct meet_place place;
    int64_t deadline;
    uint8_t key[32]; /* from the secret */
    uint8_t session[WIRE_NONCE];
    struct wire_card *cards; /* [size] */
    /* For side connections: from nodes of this host, and from other hosts when node 0 is reached by TCP. */
    struct join_listener here, away;
    struct join_hub *hubs; /* [hub_count] */
    struct pollfd *fds;    /* of join_hub_wait() */
    uint32_t hub_count;
    bool told;      /* who failed first is known to all */
    char scope[32]; /* "%eth0": of our address towards node 0, where it is a link-local one; else "" */
};

/* --- wire.c --- */
int join_stopped(void); /* -EINTR with a sentence when cluster_stopped says so, else 0 */
int join_wait(int fd, short events, int64_t deadline);
int join_read(int fd, void *buf, size_t len, int64_t deadline);
int join_write(int fd, const void *buf, size_t len, int64_t deadline);
/* On a Unix socket only the same user (or root) may talk with us at all, whoever of the two called. */
bool join_user_allowed(int fd, int *pid);
void join_token(struct wire_token *t, const struct join *j, uint32_t from, uint32_t to);

void join_mac(uint8_t out[WIRE_MAC], const uint8_t key[32], const char *what, const void *a, size_t a_len, const void *b, size_t b_len,
              const void *c, size_t c_len);

/* --- hub.c --- */
int join_hub_add(struct join *j, int fd, uint32_t rank); /* takes the descriptor */
/* Until one of `others` can be read (the first is *ready, else -1; at most 2 * size + JOIN_STRANGERS of them), somebody has news, `until`
 * or a second is over. An error: a node has failed, and the sentence says which and why. */
int join_hub_wait(struct join *j, const int *others, uint32_t count, int64_t until, int *ready);
/* This node has connected with all, or failed (`rc`, with its sentence): tell the others; when it has, wait until all have. What is to
 * be returned. */
int join_hub_end(struct join *j, int rc);

/* --- pairs.c --- */
int join_listen_here(struct join *j);
/* Listen beside `fd`, a TCP socket: at its own address, on a port of the system's choice. Nothing for others. */
int join_listen_away(struct join *j, int fd);
void join_unlisten(struct join *j);
/* "HOST:PORT" of a card, with another host: the one that `fd` is connected to. Text as it is when that is no TCP socket. */
void join_correct_host(char address[WIRE_ADDRESS], int fd);
int join_pairs(struct join *j);

#endif
