/* SPDX-License-Identifier: MIT
 *
 * Slots for puts. The owner of an arena grants slots of its stage to a node. The node puts pieces into the slots, and the owner copies each
 * piece to the GPU. A put takes less processor time at both nodes than a get by the owner. When the node has a free slot, it need send no
 * message before the put. A node gives its slots back when it has used none of them for a while.
 *
 * Why no put can reach a slot that the owner uses for something else: the node puts into a slot only between the owner's grant and the
 * node's message LAND about the slot, or between an answer that leaves the slot to the node and the next LAND. The node sends LAND when its
 * put is complete, so no further bytes will arrive. If a put or the sending of LAND fails, bytes may still be under way. Then the node puts
 * into none of its slots, waits until the link is flushed, and gives all slots back. The owner uses a slot for something else only after
 * one of these:
 *
 *   - The owner's answer to a LAND said that the slot is not the node's any more. The node had nothing under way to this slot, because it
 *   waited for the answer.
 *   - The node's message GIVE has arrived. The node sends it when no put into any of its slots is under way, and after every LAND. A slot
 *     that is being copied becomes free when the copy has ended. A GIVE is about all slots that were granted before it arrived. So the node
 *     takes a grant only as the answer to its last question (`question`), which it asked after its last GIVE.
 *   - The node is gone. grant_gone() is called after the link was closed, when nothing can arrive from the node any more.
 *
 * A node that is stopped keeps its slots. So a node gets at most as many slots as stay free. While requests of other nodes wait for a slot,
 * answers to LAND take slots back.
 */
#include "gpu/arena.h"

#define IDLE_NS  (5 * WEFT_MS)  /* a node gives its slots back when it has used none for this time */
#define AGAIN_NS (10 * WEFT_MS) /* a node that did not get all the slots it asked for asks again only after this time */
/* how long pieces wait for the owner's answer if there are no slots; after that, the owner gets the pieces itself */
#define PULL_NS (20 * WEFT_MS)
#define LOST_NS WEFT_SECOND /* a question that is not answered in this time counts as lost */

/* The state of the last question, in the low bits of grants.offer. With OFFER_WANTED, the whole word is the number of the question, which
 * is never 0. */
enum { OFFER_NONE, OFFER_WANTED, OFFER_HERE, OFFER_NEXT = 4 };

/* Makes the next grant_step() look at all nodes again, even if no message arrives before it. */
static void step_again(struct arenas *c)
{
    c->rooms_seen = atomic_load_explicit(&c->rooms, memory_order_relaxed) - 1;
}

static int room_send(struct arenas *c, uint32_t node, const struct arena_room *m)
{
    return fab_send(c->w, node, ARENA_HANDLER_ROOM, m, sizeof *m, NULL, 0, NULL);
}

/* --- the owner --- */

static void slot_end(struct arenas *c, struct stage_slot *s)
{
    s->granted = s->landing = s->ends = false;
    stage_give(&c->serves, s);
    atomic_fetch_sub_explicit(&c->grants, 1, memory_order_relaxed);
}

struct stage_slot *grant_land(struct arenas *c, uint32_t from, weft_gaddr at, uint64_t bytes)
{
    for (uint32_t i = 0; i < STAGE_SLOTS; i++) {
        struct stage_slot *s = &c->serves.slot[i];
        if (s->granted && s->holder == from + 1 && s->addr == at && bytes <= s->bytes && !s->landing && !s->ends) {
            s->landing = true;
            atomic_fetch_add_explicit(&c->landed, 1, memory_order_relaxed);
            return s;
        }
    }
    return NULL;
}

bool grant_stays(const struct arenas *c, const struct stage_slot *s)
{
    return !s->ends && !c->waiting;
}

void grant_landed(struct arenas *c, struct stage_slot *s, bool stays)
{
    s->landing = false;
    if (!stays)
        slot_end(c, s);
}

/* Takes back all slots of a node. */
static void take_back(struct arenas *c, uint32_t node)
{
    for (uint32_t i = 0; i < STAGE_SLOTS; i++) {
        struct stage_slot *s = &c->serves.slot[i];
        if (!s->granted || s->holder != node + 1)
            continue;
        if (s->landing)
            s->ends = true;
        else
            slot_end(c, s);
    }
}

/* Grants slots to a node that has asked for some. Returns false if the answer cannot be sent now. */
static bool grant_give(struct arenas *c, uint32_t node, uint32_t question)
{
    struct stage_slot *taken[GRANTS_MOST];
    struct arena_room m = {.kind = ROOM_GRANT, .question = question, .bytes = ARENA_PIECE};
    uint32_t has = 0;
    int why = 0;
    for (uint32_t i = 0; i < STAGE_SLOTS; i++)
        has += c->serves.slot[i].granted && c->serves.slot[i].holder == node + 1;
    while (has + m.count < GRANTS_MOST && !c->waiting && (taken[m.count] = stage_take(c->w, &c->serves, node, &why))) {
        m.at[m.count] = taken[m.count]->addr;
        m.bytes = taken[m.count]->bytes < m.bytes ? taken[m.count]->bytes : m.bytes;
        m.count++;
    }
    int rc = room_send(c, node, &m);
    for (uint32_t i = 0; i < m.count; i++)
        if (rc)
            stage_give(&c->serves, taken[i]);
        else
            taken[i]->granted = true;
    if (!rc)
        atomic_fetch_add_explicit(&c->grants, m.count, memory_order_relaxed);
    return rc != -EAGAIN;
}

static bool owner_look(struct arenas *c, uint32_t node)
{
    struct grants *g = &c->peer[node].grants;
    /* Read `wanted` before `given`: a node sends its GIVE before its next WANT, so the GIVE is not about the slots that are granted
     * below. */
    uint32_t question = atomic_exchange_explicit(&g->wanted, 0, memory_order_acquire), none = 0;
    bool gave = atomic_exchange_explicit(&g->given, false, memory_order_acquire);
    if (gave)
        take_back(c, node);
    bool told = question && fab_alive(c->w, node) && grant_give(c, node, question);
    if (question && !told && fab_alive(c->w, node)) /* keep the question, unless the node has asked again */
        atomic_compare_exchange_strong_explicit(&g->wanted, &none, question, memory_order_relaxed, memory_order_relaxed);
    return gave || told;
}

void grant_gone(struct arenas *c, uint32_t node)
{
    atomic_store_explicit(&c->peer[node].grants.wanted, 0, memory_order_relaxed);
    atomic_store_explicit(&c->peer[node].grants.given, true, memory_order_release);
    atomic_fetch_add_explicit(&c->rooms, 1, memory_order_release);
    arena_ring(c);
}

/* --- the node that puts --- */

bool grant_serves(struct arenas *c, uint32_t node, uint32_t space)
{
    const struct fab_transport *t = c->w->links[node].transport;
    bool direct = t && t->get_into && !atomic_load_explicit(&c->peer[node].rdma[space], memory_order_relaxed);
    /* no slot is needed if the owner's RDMA device gets the bytes into the arena (`direct`), or if the two nodes have mapped each other's
     * pools */
    return !direct && !weft_ptr(c->w, weft_gaddr_make(node, 0, FAB_NULL_BYTES), 1);
}

static uint32_t offer_of(const struct grants *g)
{
    return atomic_load_explicit(&g->offer, memory_order_acquire) % OFFER_NEXT;
}

/* Changes the state of the question from `from` to `to`. OFFER_WANTED begins a new question. */
static bool offer_turn(struct arenas *c, struct grants *g, uint32_t from, uint32_t to)
{
    uint32_t was = atomic_load_explicit(&g->offer, memory_order_relaxed), is = was - from + to + (to == OFFER_WANTED ? OFFER_NEXT : 0);
    if (was % OFFER_NEXT != from ||
        !atomic_compare_exchange_strong_explicit(&g->offer, &was, is, memory_order_acq_rel, memory_order_relaxed))
        return false;
    if (to == OFFER_WANTED)
        atomic_fetch_add_explicit(&c->grants, 1, memory_order_relaxed);
    if (to == OFFER_NONE)
        atomic_fetch_sub_explicit(&c->grants, 1, memory_order_relaxed);
    return true;
}

static void want(struct arenas *c, uint32_t node, struct grants *g)
{
    g->wanted_at = base_now_ns();
    if (g->wanted_at < g->again || !offer_turn(c, g, OFFER_NONE, OFFER_WANTED))
        return;
    uint32_t question = atomic_load_explicit(&g->offer, memory_order_relaxed);
    int rc = room_send(c, node, &(struct arena_room){.kind = ROOM_WANT, .question = question});
    if (rc && offer_turn(c, g, OFFER_WANTED, OFFER_NONE))
        g->lost = rc != -EAGAIN; /* after other errors, the owner may or may not have got the message */
    if (g->lost)
        step_again(c);
}

struct grant *grant_take(struct arenas *c, uint32_t node, bool *pull)
{
    struct grants *g = &c->peer[node].grants;
    *pull = g->lost;
    if (g->lost)
        return NULL;
    for (uint32_t i = 0; i < GRANTS_MOST; i++)
        if (g->slot[i].at && !g->slot[i].busy) {
            g->slot[i].busy = true;
            g->busy++;
            return &g->slot[i];
        }
    if (g->count < GRANTS_MOST && offer_of(g) == OFFER_NONE)
        want(c, node, g);
    *pull = g->lost || (!g->count && (offer_of(g) == OFFER_NONE || base_now_ns() - g->wanted_at > PULL_NS));
    return NULL;
}

static void slot_drop(struct arenas *c, struct grants *g, struct grant *one)
{
    if (!one->at)
        return;
    one->at = WEFT_NULL;
    g->count--;
    atomic_fetch_sub_explicit(&c->grants, 1, memory_order_relaxed);
}

void grant_end(struct arenas *c, uint32_t node, struct grant *one, enum grant_fate fate)
{
    struct grants *g = &c->peer[node].grants;
    g->busy--;
    one->busy = false;
    g->used = base_now_ns();
    if (fate == GRANT_LOST)
        g->lost = true;
    else if (fate == GRANT_TAKEN)
        slot_drop(c, g, one);
}

/* Forgets all grants of the other node. */
static void forget(struct arenas *c, struct grants *g)
{
    for (uint32_t i = 0; i < GRANTS_MOST; i++)
        slot_drop(c, g, &g->slot[i]);
    g->lost = false;
    g->flush = (struct fab_flush){0};
}

/* Takes the grants that the owner has sent. */
static void take_offer(struct arenas *c, struct grants *g)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < GRANTS_MOST && taken < g->offered; i++)
        if (!g->slot[i].at)
            g->slot[i] = (struct grant){.at = g->offered_at[taken++], .bytes = g->offered_bytes};
    g->lost |= taken < g->offered; /* the owner has granted more slots than this node can keep */
    g->count += taken;
    atomic_fetch_add_explicit(&c->grants, taken, memory_order_relaxed);
    g->used = base_now_ns();
    g->again = g->used + (g->count < GRANTS_MOST ? AGAIN_NS : 0);
    (void)offer_turn(c, g, OFFER_HERE, OFFER_NONE);
}

/* Gives all slots back, if it is time to do so. */
static bool give_back(struct arenas *c, uint32_t node, struct grants *g)
{
    struct fab_link *l = &c->w->links[node];
    if (g->busy || (!g->count && !g->lost) || offer_of(g) != OFFER_NONE)
        return false;
    if (g->lost ? !l->transport->flushed(c->w, l, &g->flush) : base_now_ns() - g->used < IDLE_NS)
        return false;
    if (room_send(c, node, &(struct arena_room){.kind = ROOM_GIVE}))
        return false;
    forget(c, g);
    return true;
}

static bool taker_look(struct arenas *c, uint32_t node)
{
    struct grants *g = &c->peer[node].grants;
    if (!fab_alive(c->w, node)) {
        (void)(offer_turn(c, g, OFFER_WANTED, OFFER_NONE) || offer_turn(c, g, OFFER_HERE, OFFER_NONE));
        if (!g->busy)
            forget(c, g);
        return false;
    }
    bool moved = offer_of(g) == OFFER_HERE;
    if (moved)
        take_offer(c, g);
    if (offer_of(g) == OFFER_WANTED && base_now_ns() - g->wanted_at > LOST_NS && offer_turn(c, g, OFFER_WANTED, OFFER_NONE))
        g->lost = true; /* slots that arrive later must be given back, too */
    if (atomic_exchange_explicit(&g->stray, false, memory_order_relaxed))
        g->lost = true;
    return give_back(c, node, g) || moved;
}

bool grant_step(struct arenas *c)
{
    bool moved = false;
    uint32_t rooms = atomic_load_explicit(&c->rooms, memory_order_acquire);
    if (rooms == c->rooms_seen && !atomic_load_explicit(&c->grants, memory_order_relaxed))
        return false;
    c->rooms_seen = rooms;
    for (uint32_t i = 0; i < c->w->size; i++) {
        struct grants *g = &c->peer[i].grants;
        moved |= owner_look(c, i);
        moved |= taker_look(c, i);
        if (g->lost || atomic_load_explicit(&g->wanted, memory_order_relaxed))
            step_again(c);
    }
    return moved;
}

/* --- messages, in a handler --- */

static bool offer_right(uint32_t from, const struct arena_room *m)
{
    bool right = m->count <= GRANTS_MOST && m->bytes >= 1 && m->bytes <= ARENA_PIECE;
    for (uint32_t i = 0; right && i < m->count; i++)
        right = weft_gaddr_node(m->at[i]) == from && weft_gaddr_space(m->at[i]) == 0 && weft_gaddr_offset(m->at[i]) != 0;
    return right;
}

/* At any time, a step may give up the question and ask again. A step reads the offered slots only in state OFFER_HERE. */
static void offered(struct grants *g, uint32_t from, const struct arena_room *m)
{
    uint32_t asked = m->question, here = asked - OFFER_WANTED + OFFER_HERE;
    bool last = asked == atomic_load_explicit(&g->offer, memory_order_acquire) && asked % OFFER_NEXT == OFFER_WANTED;
    if (last && offer_right(from, m)) {
        g->offered = m->count;
        g->offered_bytes = (uint32_t)m->bytes;
        memcpy(g->offered_at, m->at, sizeof g->offered_at);
        if (atomic_compare_exchange_strong_explicit(&g->offer, &asked, here, memory_order_release, memory_order_relaxed))
            return;
    }
    atomic_store_explicit(&g->stray, true, memory_order_relaxed);
}

void grant_told(struct arenas *c, uint32_t from, const void *header, size_t len)
{
    struct arena_room m;
    struct grants *g = &c->peer[from].grants;
    if (len != sizeof m || arena_start(c))
        return;
    memcpy(&m, header, sizeof m);
    if (m.kind == ROOM_WANT) {
        atomic_store_explicit(&g->wanted, m.question, memory_order_release);
    } else if (m.kind == ROOM_GIVE) {
        atomic_store_explicit(&g->given, true, memory_order_release);
    } else if (m.kind == ROOM_GRANT) {
        offered(g, from, &m);
    }
    atomic_fetch_add_explicit(&c->rooms, 1, memory_order_release);
    arena_ring(c);
}
