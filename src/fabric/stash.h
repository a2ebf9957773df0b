/* SPDX-License-Identifier: MIT
 *
 * Messages that arrived before their handler: kept in order, until there is a handler or the node's deadline is over. Everything here is
 * under w->progress.
 */
#ifndef WEFT_STASH_H
#define WEFT_STASH_H

#include "fabric/fabric.h"

#define STASH_MAX 1024u /* put aside of one sender before it is made to wait */

struct stashed;
struct stash {
    struct stashed *first, **end;
    uint32_t count, from;
};

void stash_init(struct stash *s, uint32_t from);
/* Run the handler, or put the message aside: behind one of the program's that waits, all of the program's do. weft's own do
 * not wait for them. */
void stash_deliver(struct weft_node *w, struct stash *s, uint32_t id, const void *header, size_t header_len, const void *payload,
                   size_t payload_len);
/* Deliver what waits, as far as there are handlers now; how many left. */
int stash_retry(struct weft_node *w, struct stash *s);
void stash_clear(struct stash *s);

#endif
