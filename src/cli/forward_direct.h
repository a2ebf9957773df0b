/* SPDX-License-Identifier: MIT
 *
 * Moves the bytes of a connection of a proxy by itself, between the client and a socket that the gateway has lent (gateway_net_borrow()).
 * So a request and its answer wake no other thread. It is for short requests and answers: large pieces are faster through the rings, where
 * two processes work at the same time.
 */
#ifndef WEFT_CLI_FORWARD_DIRECT_H
#define WEFT_CLI_FORWARD_DIRECT_H

#include "cli/forward.h"
#include "cli/forward_loop.h"

#define DIRECT_MAX   64u         /* most connections of a forward that are moved so */
#define DIRECT_PIECE (16u << 10) /* the buffer of each direction, and so the largest piece */
#define DIRECT_AFTER 16u         /* after so many short requests in turn with short answers a connection is worth it */

enum direct_state {
    DIRECT_GOES,   /* on: direct_move() when one of the two is ready */
    DIRECT_LARGE,  /* a large piece was moved, and no byte is left here: go on through the rings */
    DIRECT_OVER,   /* both have ended */
    DIRECT_BROKEN, /* reset the connection */
};
struct direct;
/* `fd`: the lent socket; it is closed with the result, or now if there is no memory (NULL). `ready` is called when it is ready; its `arg`
 * is that of `client`, whose descriptor stays the caller's. */
struct direct *direct_new(struct forward *f, struct forward_loop *loop, struct gateway_watch *client, int fd,
                          void (*ready)(struct gateway_watch *watch));
/* Moves what it can, and watches both for what it waits for. `client`, `far`: which may be ready. */
enum direct_state direct_move(struct direct *d, bool client, bool far);
bool direct_client_ended(const struct direct *d); /* the client sends no more, and the far end was told so */
/* Closes the lent socket. `reset`: resets its connection. NULL is allowed. */
void direct_free(struct direct *d, bool reset);

#endif
