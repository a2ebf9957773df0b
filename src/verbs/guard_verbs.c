/* SPDX-License-Identifier: MIT
 *
 * The table of verbs for a program with a guard. The objects belong to the guard. Requests and completions go through rings; everything
 * else is a call to the guard.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "verbs/guard_ask.h"

struct context {
    struct ibv_context base;
    struct verbs_guard *g;
    uint32_t id;
    struct ibv_port_attr port[GUARD_PORTS]; /* the last answer for each port; protected by verbs_guard.lock */
    bool known[GUARD_PORTS];
};
struct object { /* a protection domain, or a region */
    union {
        struct ibv_pd pd;
        struct ibv_mr mr;
    };
    uint32_t id;
};
struct queue {
    base_spin lock;
    struct guard_ring *ring;
    uint8_t *entries;
    uint32_t count, mine;
    uint64_t bytes;
};
struct channel {
    struct ibv_comp_channel base;
    uint32_t id;
    struct ibv_cq *cq; /* the completion queue that this channel reports events of */
};
struct completions {
    struct ibv_cq base;
    uint32_t id;
    struct queue q;
};
struct pair {
    struct ibv_qp base;
    uint32_t id;
    struct queue q[2]; /* sends, receives */
};

static struct context *of(struct ibv_context *c)
{
    return (struct context *)(void *)c;
}

/* --- create and destroy objects --- */

static int simple(struct verbs_guard *g, enum guard_verb verb, uint32_t object)
{
    return guard_ask(g, &(struct guard_call){.verb = (uint32_t)verb, .object = object}, NULL, NULL, false);
}

/* Destroys an object. Succeeds even after the guard has died, because its objects are gone, too. */
static int destroy(struct verbs_guard *g, enum guard_verb verb, uint32_t object)
{
    int rc = simple(g, verb, object);
    return atomic_load_explicit(&g->gone, memory_order_relaxed) ? 0 : rc;
}

/* Allocates a zeroed struct of `bytes` for an object, and makes call `c`, which creates the object in the guard. Returns NULL on an error,
 * with errno set. */
static void *guarded_make(struct verbs_guard *g, struct guard_call *c, struct guard_answer *a, int *fd, size_t bytes)
{
    void *o = calloc(1, bytes);
    int error = o ? guard_ask(g, c, a, fd, false) : ENOMEM;
    if (!error)
        return o;
    free(o);
    errno = error;
    return NULL;
}

/* --- rings --- */

static int map_queues(struct queue *q, uint32_t n, size_t each, int fd)
{
    uint64_t bytes = 0, at = 0;
    for (uint32_t i = 0; i < n; i++)
        bytes += q[i].bytes = guard_ring_bytes(q[i].count, each);
    void *p = base_memory_fd_check(fd, bytes) ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        return ENOMEM;
    for (uint32_t i = 0; i < n; at += q[i++].bytes) {
        q[i].ring = (struct guard_ring *)(void *)((uint8_t *)p + at);
        q[i].entries = (uint8_t *)p + at + sizeof(struct guard_ring);
    }
    return 0;
}

static void ring_bell(struct verbs_guard *g)
{
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the fence in nap() of guard_serve.c */
    if (BASE_UNLIKELY(atomic_load_explicit(&g->page->sleeping, memory_order_relaxed)) &&
        atomic_exchange_explicit(&g->page->sleeping, 0, memory_order_relaxed))
        /* if the socket is full, the guard is awake; if it is closed, the guard has died, and SIGPIPE must not kill the program */
        (void)!send(g->bell, "r", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static int guarded_post(struct verbs_guard *g, struct queue *q, uint64_t wr_id, const struct ibv_sge *sge, int count, uint32_t flags)
{
    if (count != 1)
        return EINVAL;
    if (atomic_load_explicit(&g->gone, memory_order_relaxed))
        return ENODEV;
    const struct guard_request r = {.wr_id = wr_id, .address = sge->addr, .bytes = sge->length, .region = sge->lkey, .flags = flags};
    base_spin_lock(&q->lock);
    /* acquire: the guard has read the old entries before the program overwrites them */
    bool fits = q->mine - atomic_load_explicit(&q->ring->out, memory_order_acquire) < q->count;
    if (fits) {
        memcpy(q->entries + (q->mine & (q->count - 1)) * sizeof r, &r, sizeof r);
        /* release: pairs with the acquire in move_requests() of guard_move.c */
        atomic_store_explicit(&q->ring->in, ++q->mine, memory_order_release);
    }
    base_spin_unlock(&q->lock);
    if (fits)
        ring_bell(g);
    return fits ? 0 : ENOMEM;
}

static int guarded_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct pair *p = (struct pair *)(void *)qp;
    for (; wr; wr = wr->next) {
        int err = wr->opcode != IBV_WR_SEND || wr->send_flags & IBV_SEND_INLINE
                      ? EOPNOTSUPP
                      : guarded_post(of(qp->context)->g, &p->q[0], wr->wr_id, wr->sg_list, wr->num_sge, wr->send_flags);
        if (err) {
            *bad = wr;
            return err;
        }
    }
    return 0;
}

static int guarded_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct pair *p = (struct pair *)(void *)qp;
    for (; wr; wr = wr->next) {
        int err = guarded_post(of(qp->context)->g, &p->q[1], wr->wr_id, wr->sg_list, wr->num_sge, 0);
        if (err) {
            *bad = wr;
            return err;
        }
    }
    return 0;
}

static int guarded_poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
    struct queue *q = &((struct completions *)(void *)cq)->q;
    int n = 0;
    base_spin_lock(&q->lock);
    /* acquire: pairs with the release in put_completion() of guard_move.c */
    uint32_t in = atomic_load_explicit(&q->ring->in, memory_order_acquire);
    for (; n < most && q->mine != in && in - q->mine <= q->count; n++, q->mine++) {
        struct guard_completion e;
        memcpy(&e, q->entries + (q->mine & (q->count - 1)) * sizeof e, sizeof e);
        wc[n] = (struct ibv_wc){.wr_id = e.wr_id,
                                .status = (enum ibv_wc_status)e.status,
                                .opcode = (enum ibv_wc_opcode)e.opcode,
                                .byte_len = e.bytes,
                                .qp_num = e.qp_num};
    }
    if (n) /* release: the guard may overwrite these entries */
        atomic_store_explicit(&q->ring->out, q->mine, memory_order_release);
    base_spin_unlock(&q->lock);
    return n;
}

static int guarded_req_notify_cq(struct ibv_cq *cq, int solicited)
{
    (void)solicited;
    /* seq_cst: pairs with mover_tell() in guard_move.c. The caller polls once more after this. */
    atomic_store_explicit(&((struct completions *)(void *)cq)->q.ring->armed, 1, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst);
    return 0;
}

/* --- the table of verbs --- */

static void guarded_holders(struct ibv_context *context, char *out, size_t len)
{
    struct guard_answer a;
    out[0] = '\0';
    if (guard_ask(of(context)->g, &(struct guard_call){.verb = GUARD_HOLDERS, .object = of(context)->id}, &a, NULL, false) == 0)
        snprintf(out, len, "%.*s", (int)sizeof a.text - 1, a.text);
}

static const char *guarded_get_device_name(struct ibv_device *device)
{
    return device->name;
}

static struct ibv_context *guarded_open_device(struct ibv_device *device)
{
    struct guard_device *d = (struct guard_device *)(void *)device;
    struct guard_answer a;
    struct context *c = guarded_make(d->g, &(struct guard_call){.verb = GUARD_OPEN, .object = d->index}, &a, NULL, sizeof *c);
    if (!c)
        return NULL;
    c->g = d->g;
    c->id = a.object < GUARD_CONTEXTS ? a.object : 0;
    c->base.device = device;
    c->base.ops.poll_cq = guarded_poll_cq;
    c->base.ops.req_notify_cq = guarded_req_notify_cq;
    c->base.ops.post_send = guarded_post_send;
    c->base.ops.post_recv = guarded_post_recv;
    c->base.cmd_fd = c->base.async_fd = -1;
    return &c->base;
}

static int guarded_close_device(struct ibv_context *context)
{
    struct context *c = of(context);
    int rc = destroy(c->g, GUARD_CLOSE, c->id);
    free(c);
    return rc;
}

static int guarded_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    struct guard_answer a;
    int rc = guard_ask(of(context)->g, &(struct guard_call){.verb = GUARD_QUERY_DEVICE, .object = of(context)->id}, &a, NULL, false);
    if (!rc)
        *attr = a.device_attr;
    return rc;
}

/* Programs query port states before every post. So this function asks the guard only if the shared page shows that a state has changed. */
static int guarded_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
    struct context *c = of(context);
    struct guard_answer a;
    bool keeps = port >= 1 && port <= GUARD_PORTS, same = false;
    if (!guard_lives(c->g))
        return ENODEV;
    if (keeps) {
        bool up = atomic_load_explicit(&c->g->page->up[c->id], memory_order_relaxed) >> (port - 1) & 1;
        pthread_mutex_lock(&c->g->lock);
        same = c->known[port - 1] && up == (c->port[port - 1].state == IBV_PORT_ACTIVE);
        if (same)
            *attr = c->port[port - 1];
        pthread_mutex_unlock(&c->g->lock);
    }
    if (same)
        return 0;
    int rc = guard_ask(c->g, &(struct guard_call){.verb = GUARD_QUERY_PORT, .object = c->id, .a = port}, &a, NULL, false);
    if (rc)
        return rc;
    *attr = a.port_attr;
    if (keeps) {
        pthread_mutex_lock(&c->g->lock);
        c->port[port - 1] = a.port_attr;
        c->known[port - 1] = true;
        pthread_mutex_unlock(&c->g->lock);
    }
    return 0;
}

static int guarded_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    struct guard_answer a;
    int rc =
        guard_ask(of(context)->g, &(struct guard_call){.verb = GUARD_QUERY_GID, .object = of(context)->id, .a = port, .b = (uint64_t)index},
                  &a, NULL, false);
    if (!rc)
        *gid = a.gid;
    return rc;
}

#if !defined(__APPLE__)
static int guarded_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags,
                                size_t size)
{
    struct guard_answer a;
    (void)flags, (void)size;
    int rc = guard_ask(of(context)->g, &(struct guard_call){.verb = GUARD_QUERY_GID_EX, .object = of(context)->id, .a = port, .b = index},
                       &a, NULL, false);
    if (!rc) {
        entry->gid_type = a.gid_entry.kind;
        entry->ndev_ifindex = a.gid_entry.interface;
    }
    return rc;
}
#endif

static struct ibv_pd *guarded_alloc_pd(struct ibv_context *context)
{
    struct guard_answer a;
    struct object *o =
        guarded_make(of(context)->g, &(struct guard_call){.verb = GUARD_ALLOC_PD, .object = of(context)->id}, &a, NULL, sizeof *o);
    if (!o)
        return NULL;
    o->pd.context = context;
    o->id = a.object;
    return &o->pd;
}

static int guarded_dealloc_pd(struct ibv_pd *pd)
{
    int rc = destroy(of(pd->context)->g, GUARD_DEALLOC_PD, ((struct object *)(void *)pd)->id);
    free(pd);
    return rc;
}

static struct ibv_mr *guarded_reg_mr(struct ibv_pd *pd, void *address, size_t bytes, int access)
{
    struct guard_answer a;
    struct guard_call c = {
        .verb = GUARD_REG_MR, .object = ((struct object *)(void *)pd)->id, .a = (uintptr_t)address, .b = bytes, .c = (uint64_t)access};
    struct object *o = guarded_make(of(pd->context)->g, &c, &a, NULL, sizeof *o);
    if (!o)
        return NULL;
    o->mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = address, .length = bytes, .lkey = a.object, .rkey = a.object};
    o->id = a.object;
    return &o->mr;
}

static int guarded_dereg_mr(struct ibv_mr *mr)
{
    int rc = destroy(of(mr->context)->g, GUARD_DEREG_MR, ((struct object *)(void *)mr)->id);
    if (!rc)
        free(mr);
    return rc;
}

static struct ibv_comp_channel *guarded_create_comp_channel(struct ibv_context *context)
{
    struct guard_answer a;
    int fd = -1;
    struct channel *ch =
        guarded_make(of(context)->g, &(struct guard_call){.verb = GUARD_CREATE_CHANNEL, .object = of(context)->id}, &a, &fd, sizeof *ch);
    if (!ch)
        return NULL;
    ch->base.context = context;
    ch->base.fd = fd;
    ch->id = a.object;
    return &ch->base;
}

static int guarded_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    int rc = destroy(of(channel->context)->g, GUARD_DESTROY_CHANNEL, ((struct channel *)(void *)channel)->id);
    if (rc)
        return rc;
    close(channel->fd);
    free(channel);
    return 0;
}

static int guarded_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
    struct channel *ch = (struct channel *)(void *)channel;
    struct verbs_guard *g = of(channel->context)->g;
    char byte;
    ssize_t n = read(channel->fd, &byte, 1);
    if (n == 0) { /* the guard has died: put a descriptor that never becomes readable in place of this one */
        guard_lost(g, "it has ended");
        dup2(g->quiet[0], channel->fd);
        errno = EAGAIN;
    }
    if (n != 1 || !ch->cq)
        return -1;
    *cq = ch->cq;
    *context = ch->cq->cq_context;
    return 0;
}

static void guarded_ack_cq_events(struct ibv_cq *cq, unsigned count)
{
    (void)cq, (void)count;
}

static struct ibv_cq *guarded_create_cq(struct ibv_context *context, int entries, void *cq_context, struct ibv_comp_channel *channel,
                                        int vector)
{
    struct guard_answer a;
    struct channel *ch = (struct channel *)(void *)channel;
    int fd = -1;
    (void)vector;
    if (!ch || entries <= 0) {
        errno = EINVAL;
        return NULL;
    }
    struct guard_call c = {.verb = GUARD_CREATE_CQ, .object = of(context)->id, .a = (uint64_t)entries, .b = ch->id};
    struct completions *q = guarded_make(of(context)->g, &c, &a, &fd, sizeof *q);
    if (!q)
        return NULL;
    q->q.count = (uint32_t)a.a;
    q->id = a.object;
    int error = map_queues(&q->q, 1, sizeof(struct guard_completion), fd);
    if (error) {
        destroy(of(context)->g, GUARD_DESTROY_CQ, q->id);
        free(q);
        errno = error;
        return NULL;
    }
    q->base.context = context;
    q->base.channel = channel;
    q->base.cq_context = cq_context;
    q->base.cqe = (int)a.b;
    ch->cq = &q->base;
    return &q->base;
}

static int guarded_destroy_cq(struct ibv_cq *cq)
{
    struct completions *q = (struct completions *)(void *)cq;
    int rc = destroy(of(cq->context)->g, GUARD_DESTROY_CQ, q->id);
    if (rc)
        return rc;
    struct channel *ch = (struct channel *)(void *)cq->channel;
    ch->cq = ch->cq == cq ? NULL : ch->cq;
    munmap(q->q.ring, q->q.bytes);
    free(q);
    return 0;
}

static struct ibv_qp *guarded_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    struct guard_answer a;
    struct verbs_guard *g = of(pd->context)->g;
    int fd = -1;
    struct guard_call c = {.verb = GUARD_CREATE_QP,
                           .object = ((struct object *)(void *)pd)->id,
                           .a = ((struct completions *)(void *)init->send_cq)->id,
                           .b = ((struct completions *)(void *)init->recv_cq)->id};
    c.init.cap = init->cap;
    c.init.qp_type = init->qp_type;
    c.init.sq_sig_all = init->sq_sig_all;
    struct pair *p = guarded_make(g, &c, &a, &fd, sizeof *p);
    if (!p)
        return NULL;
    p->id = a.object;
    p->q[0].count = (uint32_t)a.a;
    p->q[1].count = (uint32_t)a.b;
    int error = map_queues(p->q, 2, sizeof(struct guard_request), fd);
    if (error) {
        destroy(g, GUARD_DESTROY_QP, p->id);
        free(p);
        errno = error;
        return NULL;
    }
    p->base.context = pd->context;
    p->base.pd = pd;
    p->base.send_cq = init->send_cq;
    p->base.recv_cq = init->recv_cq;
    p->base.qp_type = init->qp_type;
    p->base.qp_num = a.number;
    init->cap = a.qp.init.cap;
    return &p->base;
}

static int guarded_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
    struct guard_answer a;
    int rc = guard_ask(of(qp->context)->g,
                       &(struct guard_call){.verb = GUARD_QUERY_QP, .object = ((struct pair *)(void *)qp)->id, .a = (uint64_t)mask}, &a,
                       NULL, false);
    if (!rc) {
        *attr = a.qp.attr;
        *init = a.qp.init;
        init->send_cq = qp->send_cq;
        init->recv_cq = qp->recv_cq;
    }
    return rc;
}

static int guarded_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    return guard_ask(
        of(qp->context)->g,
        &(struct guard_call){.verb = GUARD_MODIFY_QP, .object = ((struct pair *)(void *)qp)->id, .a = (uint64_t)mask, .attr = *attr}, NULL,
        NULL, false);
}

static int guarded_destroy_qp(struct ibv_qp *qp)
{
    struct pair *p = (struct pair *)(void *)qp;
    int rc = destroy(of(qp->context)->g, GUARD_DESTROY_QP, p->id);
    if (rc)
        return rc;
    for (int i = 0; i < 2; i++)
        munmap(p->q[i].ring, p->q[i].bytes);
    free(p);
    return 0;
}

int guard_fill_verbs(struct verbs_guard *g)
{
    const struct verbs_library *real;
    int rc = verbs_load(&real); /* for functions that need no device, such as wc_status_str() */
    if (rc)
        return rc;
    g->lib = (struct verbs_library){
        .get_device_name = guarded_get_device_name,
        .open_device = guarded_open_device,
        .close_device = guarded_close_device,
        .query_device = guarded_query_device,
        .query_port = guarded_query_port,
        .query_gid = guarded_query_gid,
        .alloc_pd = guarded_alloc_pd,
        .dealloc_pd = guarded_dealloc_pd,
        .reg_mr = guarded_reg_mr,
        .dereg_mr = guarded_dereg_mr,
        .create_comp_channel = guarded_create_comp_channel,
        .destroy_comp_channel = guarded_destroy_comp_channel,
        .get_cq_event = guarded_get_cq_event,
        .ack_cq_events = guarded_ack_cq_events,
        .create_cq = guarded_create_cq,
        .destroy_cq = guarded_destroy_cq,
        .create_qp = guarded_create_qp,
        .query_qp = guarded_query_qp,
        .modify_qp = guarded_modify_qp,
        .destroy_qp = guarded_destroy_qp,
        .wc_status_str = real->wc_status_str,
        .holders = guarded_holders,
    };
#if !defined(__APPLE__)
    g->lib.query_gid_ex = real->query_gid_ex ? guarded_query_gid_ex : NULL;
#endif
    memcpy(g->lib.path, real->path, sizeof g->lib.path);
    return 0;
}
