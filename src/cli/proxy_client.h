/* SPDX-License-Identifier: MIT
 *
 * The clients of one `weft proxy`: what proxy_serve.c (their requests) and proxy_move.c (their bytes) share. All of it belongs to the
 * thread of the proxy, or to the thread that works in its place (forward_loop.h).
 */
#ifndef WEFT_CLI_PROXY_CLIENT_H
#define WEFT_CLI_PROXY_CLIENT_H

#include "cli/forward.h"
#include "cli/forward_direct.h"
#include "cli/forward_loop.h"
#include "cli/proxy_talk.h"
#include "cli/proxy_udp.h"
#include "weft/net.h"

enum client_state { CLIENT_TALKS, CLIENT_WAITS, CLIENT_MOVES, CLIENT_DIRECT, CLIENT_ASSOCIATED, CLIENT_REFUSED };
struct speech { /* the buffers of a client that is sending its request */
    struct talk talk;
    int64_t deadline;
    size_t bytes, at; /* bytes: number of bytes in `in`; those from `at` on are not read yet */
    uint8_t in[TALK_MAX];
    struct talk_reply reply;
};
struct client {
    struct forward_changed changed; /* must be the first member */
    struct proxy *p;
    struct client *next, **at;
    struct gateway_watch watch;
    enum client_state state;
    bool up_over, down_over; /* up_over: the client sends no more; down_over: the network sends no more */
    /* plain: the connection carries one request of plain HTTP; answered: the client has received bytes of the answer */
    bool plain, answered;
    struct talk_body body; /* the body of a request of plain HTTP */
    struct speech *speech; /* NULL: the request has been read, and from now on bytes are passed on */
    weft_socket *net;
    struct association *association;
    /* exchanges: number of short requests that were each followed by a short answer, up to DIRECT_AFTER; asked: the last piece was a
     * request. */
    uint8_t exchanges;
    bool asked;
    bool borrows;          /* the gateway was asked to lend the socket. Nothing is sent until the gateway answers */
    int lent;              /* the lent socket, until the bytes in the ring are passed on; -1: none */
    struct direct *direct; /* in CLIENT_DIRECT */
    bool counted;          /* the client is counted in proxy.directs */
    weft_op op;
};
struct proxy {
    weft_node *w;
    struct forward *f;
    struct forward_loop loop;
    struct gateway_watch listener;
    bool paused;
    struct client *clients;
    uint32_t count, talking, directs;
    bool never_lends;            /* the gateway lends no sockets to this node */
    uint64_t round, accepted_in; /* number of the loop's round, and of the round in which a client was accepted last */
    uint64_t pool_bytes;
    struct proxy_udp *udp;
};

/* --- proxy_move.c --- */
void client_free(struct client *c);
/* Resets the connections to client and server. The resets tell both that the stream is incomplete. */
void client_reset(struct client *c);
/* Moves bytes in both directions, and frees the client when both directions have ended. `readable`: the client may have sent bytes. */
void client_move(struct client *c, bool readable);
/* Called when the connection at the gateway has changed. The client is in CLIENT_MOVES or CLIENT_DIRECT. */
void client_changed(struct client *c);
void client_direct(struct client *c, bool client, bool far); /* in CLIENT_DIRECT: one or both ends may be ready */

#endif
