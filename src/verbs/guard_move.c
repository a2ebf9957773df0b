/* SPDX-License-Identifier: MIT
 *
 * Moves requests from the program's rings to the devices, and completions from the devices to the rings. The program may write anything
 * into a ring, so each entry is read once and checked.
 */
#include <string.h>
#include <unistd.h>

#include "verbs/guard_serve.h"

/* How old the last query of the ports may be when a send is posted. Before a receive is posted, the ports are always queried; tb/cable.c
 * says why. */
#define LOOK_POST (WEFT_MS / 20)
#define BATCH     32u

void guard_look(struct guard *g, struct context *c, int64_t at_most)
{
    if (!c->watched || g->now - c->looked_at < at_most)
        return;
    c->looked_at = g->now;
    uint32_t up = 0, was = atomic_load_explicit(&g->page->up[c->id], memory_order_relaxed);
    for (uint32_t i = 0; i < GUARD_PORTS; i++) {
        struct ibv_port_attr attr = {0};
        if (c->watched >> i & 1 && g->lib->query_port(c->real, (uint8_t)(i + 1), &attr) == 0 && attr.state == IBV_PORT_ACTIVE)
            up |= 1u << i;
    }
    /* When a port goes down, the guard uses the context's queue pairs only to destroy them: if the cable was pulled, the driver may have
     * freed their memory. Until they are destroyed, the guard reports all ports as down, so that the program cannot miss the change. */
    for (uint32_t i = 0; was & ~up && i < g->table[PAIR].top; i++) {
        struct pair *p = guard_find(g, PAIR, i);
        if (p && p->context == c && !p->dead) {
            p->dead = true;
            c->dead++;
        }
    }
    atomic_store_explicit(&g->page->up[c->id], c->dead ? 0 : up, memory_order_relaxed);
}

static void mover_tell(struct completions *c)
{
    /* The fence orders the store of the entries before the load of `armed`. The program stores `armed`, and then loads `in` again. So
     * either the program sees the entries, or this thread sees `armed`. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&c->q.ring->armed, memory_order_relaxed) &&
        atomic_exchange_explicit(&c->q.ring->armed, 0, memory_order_seq_cst))
        (void)!write(c->channel->tell, "c", 1); /* if the pipe is full, the program has unread events anyway */
}

static uint32_t room(struct guard *g, struct completions *c)
{
    uint32_t used = c->q.mine - atomic_load_explicit(&c->q.ring->out, memory_order_acquire);
    if (used > c->q.count)
        g->broken = "a completion queue that was read further than it was written";
    return used > c->q.count ? 0 : c->q.count - used;
}

static void put_completion(struct completions *c, const struct guard_completion *e)
{
    memcpy(c->q.entries + (c->q.mine & (c->q.count - 1)) * sizeof *e, e, sizeof *e);
    /* release: pairs with the acquire in the program's poll_cq() */
    atomic_store_explicit(&c->q.ring->in, ++c->q.mine, memory_order_release);
}

static uint32_t move_completions(struct guard *g, struct completions *c)
{
    struct ibv_wc wc[BATCH];
    uint32_t n = room(g, c);
    int got = n ? ibv_poll_cq(c->real, (int)(n < BATCH ? n : BATCH), wc) : 0;
    for (int i = 0; i < got; i++)
        put_completion(
            c, &(struct guard_completion){
                   .wr_id = wc[i].wr_id, .status = wc[i].status, .opcode = wc[i].opcode, .bytes = wc[i].byte_len, .qp_num = wc[i].qp_num});
    if (got > 0)
        mover_tell(c);
    return got > 0 ? (uint32_t)got : 0;
}

static int mover_post(struct pair *p, uint32_t which, const struct guard_request *r, struct ibv_sge *sge)
{
    if (which) {
        struct ibv_recv_wr *bad, wr = {.wr_id = r->wr_id, .sg_list = sge, .num_sge = 1};
        return ibv_post_recv(p->real, &wr, &bad);
    }
    struct ibv_send_wr *bad,
        wr = {.wr_id = r->wr_id, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = r->flags & IBV_SEND_SIGNALED};
    return ibv_post_send(p->real, &wr, &bad);
}

/* Moves as many requests from a ring to the device's work queue as the device accepts now. Returns how many. */
static uint32_t move_requests(struct guard *g, struct pair *p, uint32_t which)
{
    struct queue *q = &p->q[which];
    uint32_t n = 0, in = atomic_load_explicit(&q->ring->in, memory_order_acquire); /* pairs with the release in guarded_post() */
    if (in - q->mine > q->count) {
        g->broken = "a work queue with more requests than it has room for";
        return 0;
    }
    if (in != q->mine && !p->dead)
        guard_look(g, p->context, which ? 0 : LOOK_POST);
    if (p->dead)
        q->mine = in;
    for (; q->mine != in && n < BATCH; n++) {
        struct guard_request r;
        memcpy(&r, q->entries + (q->mine & (q->count - 1)) * sizeof r, sizeof r);
        const struct region *m = guard_find(g, REGION, r.region);
        int err = EFAULT;
        if (m && r.address >= m->at && r.bytes <= m->bytes && r.address - m->at <= m->bytes - r.bytes) {
            struct ibv_sge sge = {.addr = (uintptr_t)m->here + (r.address - m->at), .length = r.bytes, .lkey = m->real->lkey};
            err = mover_post(p, which, &r, &sge);
        }
        if (err == ENOMEM)
            break; /* the device's work queue is full: try again when a request has completed */
        if (err) { /* the program's call that posted the request has already returned, so a completion reports the failure */
            if (room(g, p->cq[which]) == 0)
                break;
            put_completion(p->cq[which],
                           &(struct guard_completion){.wr_id = r.wr_id, .status = IBV_WC_LOC_QP_OP_ERR, .qp_num = p->real->qp_num});
            mover_tell(p->cq[which]);
        }
        q->mine++;
    }
    /* release: the program may overwrite these entries */
    atomic_store_explicit(&q->ring->out, q->mine, memory_order_release);
    return n;
}

uint32_t guard_move_all(struct guard *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->table[PAIR].top; i++) {
        struct pair *p = guard_find(g, PAIR, i);
        if (p)
            n += move_requests(g, p, 1) + move_requests(g, p, 0);
    }
    for (uint32_t i = 0; i < g->table[COMPLETIONS].top; i++) {
        struct completions *c = guard_find(g, COMPLETIONS, i);
        if (c)
            n += move_completions(g, c);
    }
    return n;
}
