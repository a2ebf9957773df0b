/* SPDX-License-Identifier: MIT
 *
 * Messages that arrived before their handler was installed. They are kept in order, until there is a handler or the node's deadline is
 * over. w->progress guards everything in this file.
 */
#ifndef WEFT_STASH_H
#define WEFT_STASH_H

#include "fabric/fabric.h"

#define STASH_MAX 1024u /* how many messages of one sender may wait for their handlers before the sender must wait */

struct stashed;
struct stash {
    struct stashed *first, **end;
    uint32_t count, from;
};

void stash_init(struct stash *s, uint32_t from);
/* Runs the handler, or keeps the message until its handler is installed. While a message is kept, later messages for the program are kept
 * behind it, but messages between layers of weft are delivered at once. */
void stash_deliver(struct weft_node *w, struct stash *s, uint32_t id, const void *header, size_t header_len, const void *payload,
                   size_t payload_len);
/* Delivers the kept messages in order, up to the first one whose handler is still missing. Drops a message that has waited for the node's
 * deadline. Returns how many messages were removed. */
int stash_retry(struct weft_node *w, struct stash *s);
void stash_clear(struct stash *s);

#endif
