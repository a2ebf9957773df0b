/* SPDX-License-Identifier: MIT
 *
 * Creates and breaks the links of tb, and posts what their endpoints (records/endpoint.h) send.
 */
#include "fabric/tb/tb.h"

#include <stdlib.h>

struct tb_link *tb_link_make(struct tb *tb, struct fab_link *link)
{
    struct tb_link *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->tb = tb;
    l->r.w = tb->w;
    l->r.link = link;
    l->r.no_way = "its cables are unplugged, or their ports are down; try again when one is back";
    l->r.earliest = &tb->due;
    atomic_init(&l->r.due, INT64_MAX);
    stash_init(&l->r.stash, link->node);
    link->impl = l;
    return l;
}

static bool link_emit(void *ctx, uint32_t slot, void *frame, uint32_t bytes)
{
    struct tb_link *l = ctx;
    bool went = l->via && tb_cable_send(l->via, TB_REQUEST_FRAME, l->r.link->node, slot, frame, bytes);
    if (!went)
        atomic_store_explicit(&l->r.no_room, true, memory_order_relaxed);
    return went;
}

/* Returns the cable of lane number *lane of the link, and sets *lane to the number of this lane on the cable. */
static struct tb_cable *link_lane(struct tb_link *l, uint32_t *lane)
{
    uint32_t i = *lane / l->tb->lane_count;
    *lane %= l->tb->lane_count;
    return l->cables[i];
}

static void *link_lane_memory(struct tb_link *l, uint64_t offset)
{
    return offset == TB_SCRAP ? l->tb->scrap : l->tb->w->pool_base + offset;
}

static bool link_lane_receive(void *ctx, uint32_t lane, uint64_t offset)
{
    struct tb_link *l = ctx;
    struct tb_cable *c = link_lane(l, &lane);
    return tb_cable_lane_receive(c, lane, link_lane_memory(l, offset));
}

static bool link_lane_send(void *ctx, uint32_t lane, uint64_t offset)
{
    struct tb_link *l = ctx;
    struct tb_cable *c = link_lane(l, &lane);
    return tb_cable_lane_send(c, lane, link_lane_memory(l, offset));
}

static void link_completed(void *ctx, weft_op *op, int status)
{
    (void)ctx;
    fab_complete(op, status);
}

int tb_link_ready(struct tb_link *l, uint32_t session, uint64_t segment)
{
    struct tb *tb = l->tb;
    struct weft_node *w = tb->w;
    uint32_t node = l->r.link->node, place = node < w->rank ? node : node - 1;
    struct tb_endpoint_env env = {.ctx = l,
                                  .emit = link_emit,
                                  .lane_receive = link_lane_receive,
                                  .lane_send = link_lane_send,
                                  .message = records_message_keep,
                                  .complete = link_completed};
    struct tb_endpoint_config config = {
        .here = (uint16_t)w->rank,
        .node = (uint16_t)node,
        .session = session,
        .frames = tb->link_frames + (uint64_t)place * TB_SLOTS * TB_FRAME_BYTES,
        .pool = w->pool_base,
        .pool_bytes = w->pool_bytes,
        .first_byte = FAB_NULL_BYTES,
        .segment = segment,
        .check = tb->check,
    };
    l->r.inbox = malloc(TB_MESSAGES * sizeof *l->r.inbox);
    if (!l->r.inbox)
        return base_fail(-ENOMEM, "tb: no memory for messages of node %u" BASE_MEMORY_HINT, node);
    tb_endpoint_init(&l->r.endpoint, &env, &config);
    for (uint32_t i = 0; i < l->cable_count; i++)
        for (uint32_t k = 0; k < l->cables[i]->lane_count; k++)
            tb_endpoint_add_lane(&l->r.endpoint, tb->lanes[k].message, tb->lanes[k].depth);
    l->r.endpoint.stream.hops = (uint8_t)(w->founders < UINT8_MAX ? w->founders : UINT8_MAX);
    if (l->cable_count) {
        for (uint32_t i = 0; i < l->cable_count; i++)
            l->cables[i]->ready = true;
        l->via = l->cables[0];
        atomic_store_explicit(&l->led, true, memory_order_relaxed);
    }
    /* release: pairs with the acquire in tb_link_of(), so a thread that polls sees a complete link */
    __atomic_store_n(&tb->links[node], l, __ATOMIC_RELEASE);
    return 0;
}

struct tb_cable *tb_link_cable(const struct tb_link *l)
{
    for (uint32_t i = 0; i < l->cable_count; i++)
        if (l->cables[i]->ready)
            return l->cables[i];
    return NULL;
}
