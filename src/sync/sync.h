/* SPDX-License-Identifier: MIT
 *
 * sync: barrier, lock, counters, on top of fabric. The state of this folder is w->sync.
 */
#ifndef WEFT_SYNC_ROOM_H
#define WEFT_SYNC_ROOM_H

#include "fabric/fabric.h"
#include "weft/sync.h"

/* --- sync's system words, in every pool --- */
/* The barrier's words in a node's pool: one cache line for each node. */
static inline uint64_t sync_barrier_offset(uint32_t from)
{
    return FAB_NULL_BYTES + (uint64_t)from * BASE_CACHE_LINE;
}
/* Behind the barrier's lines: for weft_exchange(), two places for each node, each with a tag and WEFT_EXCHANGE_WORDS words. */
static inline uint64_t sync_exchange_offset(uint32_t nodes, uint32_t from)
{
    return sync_barrier_offset(nodes) + (uint64_t)from * 2 * (1 + WEFT_EXCHANGE_WORDS) * 8;
}
static inline uint64_t sync_system_bytes(uint32_t nodes)
{
    return sync_exchange_offset(nodes, nodes) - FAB_NULL_BYTES;
}

enum { SYNC_HANDLER_LOCK = FAB_ROOM_HANDLERS(0) };

int sync_open(struct weft_node *w); /* called before joining, because the first message needs the handlers */

#endif
