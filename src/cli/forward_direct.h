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

#define DIRECT_MAX   64u         /* the most connections of a forward that are moved in this way at the same time */
#define DIRECT_PIECE (16u << 10) /* the buffer of each direction, and so the largest piece */
#define DIRECT_AFTER 16u         /* a connection is moved in this way after so many short requests, each followed by a short answer */

enum direct_state {
    DIRECT_GOES,   /* call direct_move() again when one of the two ends is ready */
    DIRECT_LARGE,  /* a large piece was moved, and both buffers are empty: end this, and move the connection through the rings again */
    DIRECT_OVER,   /* both have ended */
    DIRECT_BROKEN, /* reset the connection */
};
struct direct;
/* `fd`: the lent socket; it is closed with the result, or now if there is no memory (NULL). `ready` is called when it is ready; its `arg`
 * is that of `client`, whose descriptor stays the caller's. */
struct direct *direct_new(struct forward *f, struct forward_loop *loop, struct gateway_watch *client, int fd,
                          void (*ready)(struct gateway_watch *watch));
/* Moves the bytes that can be moved now, and watches both ends for more. `client`, `far`: whether that end may be ready. */
enum direct_state direct_move(struct direct *d, bool client, bool far);
bool direct_client_ended(const struct direct *d); /* the client sends no more, and the far end was told so */
/* Closes the lent socket. `reset`: resets its connection. NULL is allowed. */
void direct_free(struct direct *d, bool reset);

#endif
