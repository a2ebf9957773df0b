/* SPDX-License-Identifier: MIT
 *
 * Buffers in the pool, called slots, through which pieces are copied between a GPU and another node. One node may have at most as many
 * slots as stay free, so that no node can use all slots.
 */
#include "gpu/arena.h"

#define SLOT_LEAST MEM_EXTENT_BYTES

static int slot_make(struct weft_node *w, struct stage_slot *s)
{
    uint64_t bytes = w->pool_bytes / 128;
    bytes = bytes > ARENA_PIECE ? ARENA_PIECE : bytes < SLOT_LEAST ? SLOT_LEAST : bytes;
    int rc = weft_alloc(w, bytes, &s->addr);
    if (rc && bytes > SLOT_LEAST)
        rc = weft_alloc(w, bytes = SLOT_LEAST, &s->addr);
    if (rc)
        return base_context(rc, "no room in this node's pool for buffers between a GPU and another node");
    s->at = weft_ptr(w, s->addr, bytes);
    s->bytes = (uint32_t)bytes;
    return 0;
}

struct stage_slot *stage_take(struct weft_node *w, struct stage *s, uint32_t node, int *why)
{
    uint32_t held = 0;
    struct stage_slot *found = NULL;
    *why = 0;
    for (uint32_t i = 0; i < STAGE_SLOTS; i++) {
        held += s->slot[i].holder == node + 1;
        if (!s->slot[i].holder && (!found || (!found->at && s->slot[i].at)))
            found = &s->slot[i];
    }
    if (!found || (held && held >= STAGE_SLOTS - s->held))
        return NULL;
    if (!found->at) {
        int rc = slot_make(w, found);
        if (rc) {
            *why = s->held ? 0 : rc; /* while other slots are in use, one of these will become free: no error */
            return NULL;
        }
    }
    found->holder = node + 1;
    s->held++;
    return found;
}

void stage_give(struct stage *s, struct stage_slot *slot)
{
    if (slot) {
        slot->holder = 0;
        s->held--;
    }
}
