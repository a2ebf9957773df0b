/* SPDX-License-Identifier: MIT
 *
 * Moves the bytes of a proxy's connection directly between the client and a socket that the gateway has lent (gateway_net_borrow()). So
 * short requests and answers wake no other thread. Large pieces are faster through the rings, where two processes work at the same time.
 */
#ifndef WEFT_CLI_FORWARD_DIRECT_H
#define WEFT_CLI_FORWARD_DIRECT_H

#include "cli/forward.h"
#include "cli/forward_loop.h"

#define DIRECT_MAX   64u         /* maximum number of connections of one forward that are moved directly at the same time */
#define DIRECT_PIECE (16u << 10) /* size of the buffer of each direction, and so of the largest piece */
#define DIRECT_AFTER 16u         /* a connection is moved directly after this many short requests, each followed by a short answer */

enum direct_state {
    DIRECT_GOES,   /* call direct_move() again when one of the two ends is ready */
    DIRECT_LARGE,  /* a large piece was moved: move the bytes through the rings again. Both buffers are empty */
    DIRECT_OVER,   /* both ends have ended */
    DIRECT_BROKEN, /* reset the connection */
};
struct direct;
/* Takes ownership of `fd`, the lent socket. When the socket is ready, `ready` is called with a watch whose `arg` is that of `client`.
 * Returns NULL if there is no memory. */
struct direct *direct_new(struct forward *f, struct forward_loop *loop, struct gateway_watch *client, int fd,
                          void (*ready)(struct gateway_watch *watch));
/* Moves the bytes that can be moved now, and watches both ends for more. `client`, `far`: whether the client's end, or the far end, may be
 * ready. */
enum direct_state direct_move(struct direct *d, bool client, bool far);
bool direct_client_ended(const struct direct *d); /* the client sends no more, and the far end was told so */
/* Closes the lent socket. `reset`: resets its connection. NULL is allowed. */
void direct_free(struct direct *d, bool reset);

#endif
