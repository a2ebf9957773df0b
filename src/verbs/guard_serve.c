/* SPDX-License-Identifier: MIT
 *
 * The guard: a process that owns RDMA devices for a program, so that the program may be killed in any way and everything is still
 * given back in order. It has the program's pool mapped, does what the program's rings and calls say, and ends with the program. See
 * guard.h; what this does not help against stands in docs/thunderbolt-guard.md.
 *
 * One thread, one program. What the program writes may be anything: numbers of objects, rings and ranges are checked before use.
 */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "verbs/guard.h"

#define SPIN        (20 * WEFT_US)
#define LOOK        (5 * WEFT_MS)   /* ports are looked at so often while data moves, ... */
#define LOOK_POST   (WEFT_MS / 20)  /* ... before something is sent, and each time before receives are posted (tb/cable.c says why), ... */
#define NAP_MS      20              /* ... and while nothing does */
#define BATCH       32u
#define ENTRIES_MAX (1u << 20)      /* of a ring */
#define TABLE_MAX   (1u << 17)

struct share {
    uint64_t at, bytes; /* there */
    uint8_t *here;
};
struct context {
    struct ibv_context *real;
    uint32_t id, watched, dead; /* ports whose state is on the page; queue pairs that are not touched any more */
    int64_t looked_at;
};
struct domain {
    struct context *context;
    struct ibv_pd *real;
};
struct region {
    struct domain *domain;
    struct ibv_mr *real;
    uint64_t at, bytes;
    uint8_t *here;
};
struct channel {
    struct context *context;
    struct ibv_comp_channel *real;
    int tell;
};
struct queue { /* a ring as this side has it */
    struct guard_ring *ring;
    uint8_t *entries;
    uint64_t bytes;
    uint32_t count, mine; /* mine: the word that this side writes */
};
struct completions {
    struct context *context;
    struct ibv_cq *real;
    struct channel *channel;
    struct queue q;
};
struct pair {
    struct context *context;
    struct domain *domain;
    struct ibv_qp *real;
    struct completions *cq[2]; /* of sends, of receives */
    struct queue q[2];
    bool dead;
};

enum kind { CONTEXT, DOMAIN, REGION, CHANNEL, COMPLETIONS, PAIR, SHARE, KINDS };
static const size_t sizes[KINDS] = {sizeof(struct context), sizeof(struct domain), sizeof(struct region), sizeof(struct channel),
                                    sizeof(struct completions), sizeof(struct pair), sizeof(struct share)};

struct guard {
    const struct verbs_library *lib;
    struct ibv_device **list;
    int listed, fd, bell[2], program; /* program: tells of its end; negative where the system does not */
    struct guard_page *page;
    struct table {
        void **at;
        uint32_t top, room;
    } table[KINDS];
    int64_t now;
    const char *broken; /* what makes no sense */
};

/* --- tables --- */

static void *find(const struct guard *g, enum kind kind, uint64_t id)
{
    return id < g->table[kind].top ? g->table[kind].at[id] : NULL;
}

/* A new, empty one. NULL: no memory. */
static void *make(struct guard *g, enum kind kind, uint32_t *id)
{
    struct table *t = &g->table[kind];
    uint32_t i = 0;
    while (i < t->top && t->at[i])
        i++;
    if (i == t->room) {
        uint32_t room = t->room ? 2 * t->room : 16;
        void **at = room > TABLE_MAX ? NULL : realloc(t->at, room * sizeof *at);
        if (!at)
            return NULL;
        t->at = at;
        t->room = room;
    }
    t->at[i] = calloc(1, sizes[kind]);
    if (t->at[i] && i == t->top)
        t->top++;
    *id = i;
    return t->at[i];
}

static void drop(struct guard *g, enum kind kind, const void *one)
{
    struct table *t = &g->table[kind];
    for (uint32_t i = 0; i < t->top; i++)
        if (t->at[i] == one) {
            free(t->at[i]);
            t->at[i] = NULL;
        }
}

/* --- rings --- */

static int make_queues(struct queue *q, uint32_t n, size_t each, int *out)
{
    uint64_t bytes = 0, at = 0;
    for (uint32_t i = 0; i < n; i++)
        bytes += q[i].bytes = guard_ring_bytes(q[i].count, each);
    int fd = base_memory_fd("weft-guard", bytes, false);
    if (fd < 0)
        return fd;
    uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        int error = errno;
        close(fd);
        return -error;
    }
    for (uint32_t i = 0; i < n; at += q[i++].bytes) {
        q[i].ring = (struct guard_ring *)(void *)(p + at);
        q[i].entries = p + at + sizeof(struct guard_ring);
    }
    *out = fd;
    return 0;
}

static void free_queues(struct queue *q, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (q[i].ring)
            munmap(q[i].ring, q[i].bytes);
}

static uint32_t power_of_two(uint32_t n)
{
    uint32_t p = 1;
    while (p < n && p < ENTRIES_MAX)
        p *= 2;
    return p;
}

/* --- data --- */

static void look(struct guard *g, struct context *c, int64_t at_most)
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
    /* A queue pair whose port went down is not touched again but to be destroyed: its memory may be gone with the cable. Until that
     * has happened the program is told that the port is down, also if it is back: so it cannot miss it. */
    for (uint32_t i = 0; was & ~up && i < g->table[PAIR].top; i++) {
        struct pair *p = find(g, PAIR, i);
        if (p && p->context == c && !p->dead) {
            p->dead = true;
            c->dead++;
        }
    }
    atomic_store_explicit(&g->page->up[c->id], c->dead ? 0 : up, memory_order_relaxed);
}

static void tell(struct completions *c)
{
    /* Before this, entries were written (release). The program writes `armed`, then looks at `in` again: both sequentially
     * consistent, so either it sees them, or this sees that it wants to be told. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&c->q.ring->armed, memory_order_relaxed) &&
        atomic_exchange_explicit(&c->q.ring->armed, 0, memory_order_seq_cst))
        (void)!write(c->channel->tell, "c", 1); /* full: it has not read those before */
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
    /* release: pairs with the acquire of the program's poll_cq */
    atomic_store_explicit(&c->q.ring->in, ++c->q.mine, memory_order_release);
}

static uint32_t move_completions(struct guard *g, struct completions *c)
{
    struct ibv_wc wc[BATCH];
    uint32_t n = room(g, c);
    int got = n ? ibv_poll_cq(c->real, (int)(n < BATCH ? n : BATCH), wc) : 0;
    for (int i = 0; i < got; i++)
        put_completion(c, &(struct guard_completion){.wr_id = wc[i].wr_id, .status = wc[i].status, .opcode = wc[i].opcode,
                                                     .bytes = wc[i].byte_len, .qp_num = wc[i].qp_num});
    if (got > 0)
        tell(c);
    return got > 0 ? (uint32_t)got : 0;
}

static int post(struct pair *p, uint32_t which, const struct guard_request *r, struct ibv_sge *sge)
{
    if (which) {
        struct ibv_recv_wr *bad, wr = {.wr_id = r->wr_id, .sg_list = sge, .num_sge = 1};
        return ibv_post_recv(p->real, &wr, &bad);
    }
    struct ibv_send_wr *bad, wr = {.wr_id = r->wr_id, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = r->flags & IBV_SEND_SIGNALED};
    return ibv_post_send(p->real, &wr, &bad);
}

/* Requests of a queue to its device, as many as that takes now. */
static uint32_t move_requests(struct guard *g, struct pair *p, uint32_t which)
{
    struct queue *q = &p->q[which];
    uint32_t n = 0, in = atomic_load_explicit(&q->ring->in, memory_order_acquire); /* pairs with the release in post() of guard.c */
    if (in - q->mine > q->count) {
        g->broken = "a work queue with more requests than it has room for";
        return 0;
    }
    if (in != q->mine && !p->dead)
        look(g, p->context, which ? 0 : LOOK_POST);
    if (p->dead)
        q->mine = in;
    for (; q->mine != in && n < BATCH; n++) {
        struct guard_request r;
        memcpy(&r, q->entries + (q->mine & (q->count - 1)) * sizeof r, sizeof r);
        const struct region *m = find(g, REGION, r.region);
        int err = EFAULT;
        if (m && r.address >= m->at && r.bytes <= m->bytes && r.address - m->at <= m->bytes - r.bytes) {
            struct ibv_sge sge = {.addr = (uintptr_t)m->here + (r.address - m->at), .length = r.bytes, .lkey = m->real->lkey};
            err = post(p, which, &r, &sge);
        }
        if (err == ENOMEM)
            break; /* its queue is full: again when something has left it */
        if (err) { /* the program has gone on: it is told as of any request that failed */
            if (room(g, p->cq[which]) == 0)
                break;
            put_completion(p->cq[which], &(struct guard_completion){.wr_id = r.wr_id, .status = IBV_WC_LOC_QP_OP_ERR, .qp_num = p->real->qp_num});
            tell(p->cq[which]);
        }
        q->mine++;
    }
    /* release: the entries have been read, and may be written again */
    atomic_store_explicit(&q->ring->out, q->mine, memory_order_release);
    return n;
}

static uint32_t move_all(struct guard *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->table[PAIR].top; i++) {
        struct pair *p = find(g, PAIR, i);
        if (p)
            n += move_requests(g, p, 1) + move_requests(g, p, 0);
    }
    for (uint32_t i = 0; i < g->table[COMPLETIONS].top; i++) {
        struct completions *c = find(g, COMPLETIONS, i);
        if (c)
            n += move_completions(g, c);
    }
    return n;
}

/* --- calls: each fills its answer; the result is a verb's, 0 or an errno --- */

static int failed(void)
{
    return errno ? errno : EIO;
}

static int share(struct guard *g, const struct guard_call *c, int fd)
{
    uint32_t id;
    if (fd < 0 || c->b == 0 || c->a + c->b < c->a || base_memory_fd_check(fd, c->b) != 0)
        return EINVAL;
    void *p = mmap(NULL, c->b, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return errno;
    struct share *s = make(g, SHARE, &id);
    if (!s) {
        munmap(p, c->b);
        return ENOMEM;
    }
    *s = (struct share){.at = c->a, .bytes = c->b, .here = p};
    return 0;
}

static int list(struct guard *g, const struct guard_call *c, struct guard_answer *a)
{
    errno = 0;
    if (!g->list)
        g->list = g->lib->get_device_list(&g->listed);
    if (!g->list)
        return failed();
    a->a = (uint64_t)g->listed;
    if (c->object < (uint32_t)g->listed) {
        struct ibv_device *d = g->list[c->object];
        snprintf(a->device.name, sizeof a->device.name, "%s", g->lib->get_device_name(d));
        a->device.transport = (int32_t)d->transport_type;
        a->device.node = (int32_t)d->node_type;
    }
    return 0;
}

static int open_device(struct guard *g, uint32_t index, struct guard_answer *a)
{
    if (!g->list || index >= (uint32_t)g->listed)
        return ENODEV;
    struct context *c = make(g, CONTEXT, &a->object);
    if (!c || a->object >= GUARD_CONTEXTS) {
        drop(g, CONTEXT, c);
        return ENOMEM;
    }
    errno = 0;
    c->id = a->object;
    c->real = g->lib->open_device(g->list[index]);
    if (c->real)
        return 0;
    int error = failed();
    drop(g, CONTEXT, c);
    return error;
}

static int query_port(struct guard *g, struct context *c, uint64_t port, struct guard_answer *a)
{
    if (port < 1 || port > UINT8_MAX)
        return EINVAL;
    int rc = g->lib->query_port(c->real, (uint8_t)port, &a->port_attr);
    if (rc == 0 && port <= GUARD_PORTS) {
        c->watched |= 1u << (port - 1);
        look(g, c, 0);
        if (c->dead)
            a->port_attr.state = IBV_PORT_DOWN;
    }
    return rc > 0 ? rc : rc ? failed() : 0;
}

static int register_memory(struct guard *g, const struct guard_call *c, struct domain *d, struct guard_answer *a)
{
    const struct share *s = NULL;
    for (uint32_t i = 0; i < g->table[SHARE].top && !s; i++) {
        const struct share *one = find(g, SHARE, i);
        if (one && c->a >= one->at && c->b <= one->bytes && c->a - one->at <= one->bytes - c->b)
            s = one;
    }
    if (!s)
        return EFAULT;
    struct region *m = make(g, REGION, &a->object);
    if (!m)
        return ENOMEM;
    *m = (struct region){.domain = d, .at = c->a, .bytes = c->b, .here = s->here + (c->a - s->at)};
    errno = 0;
    m->real = g->lib->reg_mr(d->real, m->here, c->b, (int)c->c);
    if (m->real)
        return 0;
    int error = failed();
    drop(g, REGION, m);
    return error;
}

static int create_channel(struct guard *g, struct context *c, struct guard_answer *a, int *fd)
{
    int ends[2];
    struct channel *ch = make(g, CHANNEL, &a->object);
    if (!ch)
        return ENOMEM;
    int rc = base_pipe(ends, O_NONBLOCK);
    errno = 0;
    if (!rc)
        ch->real = g->lib->create_comp_channel(c->real);
    if (ch->real) {
        fcntl(ch->real->fd, F_SETFL, fcntl(ch->real->fd, F_GETFL) | O_NONBLOCK);
        ch->context = c;
        ch->tell = ends[1];
        *fd = ends[0];
        return 0;
    }
    int error = rc ? -rc : failed();
    if (!rc) {
        close(ends[0]);
        close(ends[1]);
    }
    drop(g, CHANNEL, ch);
    return error;
}

static int create_cq(struct guard *g, const struct guard_call *call, struct context *c, struct guard_answer *a, int *fd)
{
    struct channel *ch = find(g, CHANNEL, call->b);
    if (!ch || ch->context != c || call->a == 0 || call->a > ENTRIES_MAX)
        return EINVAL;
    struct completions *q = make(g, COMPLETIONS, &a->object);
    if (!q)
        return ENOMEM;
    *q = (struct completions){.context = c, .channel = ch};
    errno = 0;
    q->real = g->lib->create_cq(c->real, (int)call->a, NULL, ch->real, 0);
    if (!q->real) {
        int error = failed();
        drop(g, COMPLETIONS, q);
        return error;
    }
    q->q.count = power_of_two((uint32_t)(q->real->cqe > (int)call->a ? q->real->cqe : (int)call->a));
    int error = -make_queues(&q->q, 1, sizeof(struct guard_completion), fd);
    if (error) {
        g->lib->destroy_cq(q->real);
        drop(g, COMPLETIONS, q);
        return error;
    }
    a->a = q->q.count;
    a->b = (uint64_t)q->real->cqe;
    return 0;
}

static int create_qp(struct guard *g, const struct guard_call *call, struct domain *d, struct guard_answer *a, int *fd)
{
    struct completions *send = find(g, COMPLETIONS, call->a), *receive = find(g, COMPLETIONS, call->b);
    if (!send || !receive || send->context != d->context || receive->context != d->context)
        return EINVAL;
    struct pair *p = make(g, PAIR, &a->object);
    if (!p)
        return ENOMEM;
    struct ibv_qp_init_attr init = {.send_cq = send->real, .recv_cq = receive->real, .cap = call->init.cap, .qp_type = call->init.qp_type,
                                    .sq_sig_all = call->init.sq_sig_all};
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.cap.max_inline_data = 0;
    errno = 0;
    p->real = g->lib->create_qp(d->real, &init);
    int error = p->real ? 0 : failed();
    if (!error) {
        /* A device may grant more than it says here, and tell when it is asked again: nobody should have to wait for the ring. */
        p->q[0].count = power_of_two(2 * init.cap.max_send_wr + 2);
        p->q[1].count = power_of_two(2 * init.cap.max_recv_wr + 2);
        error = -make_queues(p->q, 2, sizeof(struct guard_request), fd);
    }
    if (error) {
        if (p->real)
            g->lib->destroy_qp(p->real);
        drop(g, PAIR, p);
        return error;
    }
    p->context = d->context;
    p->domain = d;
    p->cq[0] = send;
    p->cq[1] = receive;
    a->a = p->q[0].count;
    a->b = p->q[1].count;
    a->qp.init = init;
    a->qp.init.send_cq = a->qp.init.recv_cq = NULL;
    a->number = p->real->qp_num;
    return 0;
}

/* What is destroyed must not be named by what stays. */
static bool used(const struct guard *g, const void *one)
{
    for (uint32_t i = 0; i < g->table[PAIR].top; i++) {
        const struct pair *p = find(g, PAIR, i);
        if (p && (p->cq[0] == one || p->cq[1] == one || p->domain == one || p->context == one))
            return true;
    }
    for (uint32_t i = 0; i < g->table[COMPLETIONS].top; i++) {
        const struct completions *c = find(g, COMPLETIONS, i);
        if (c && (c->channel == one || c->context == one))
            return true;
    }
    for (uint32_t i = 0; i < g->table[CHANNEL].top; i++) {
        const struct channel *ch = find(g, CHANNEL, i);
        if (ch && ch->context == one)
            return true;
    }
    for (uint32_t i = 0; i < g->table[REGION].top; i++) {
        const struct region *m = find(g, REGION, i);
        if (m && m->domain == one)
            return true;
    }
    for (uint32_t i = 0; i < g->table[DOMAIN].top; i++) {
        const struct domain *d = find(g, DOMAIN, i);
        if (d && d->context == one)
            return true;
    }
    return false;
}

static int destroy(struct guard *g, enum kind kind, void *one)
{
    int rc = 0;
    if (used(g, one))
        return EBUSY;
    switch (kind) {
    case CONTEXT: {
        struct context *c = one;
        rc = g->lib->close_device(c->real);
        atomic_store_explicit(&g->page->up[c->id], 0, memory_order_relaxed);
        break;
    }
    case DOMAIN: rc = g->lib->dealloc_pd(((struct domain *)one)->real); break;
    case REGION: rc = g->lib->dereg_mr(((struct region *)one)->real); break;
    case CHANNEL:
        rc = g->lib->destroy_comp_channel(((struct channel *)one)->real);
        if (rc == 0)
            close(((struct channel *)one)->tell);
        break;
    case COMPLETIONS:
        rc = g->lib->destroy_cq(((struct completions *)one)->real);
        if (rc == 0)
            free_queues(&((struct completions *)one)->q, 1);
        break;
    case PAIR: {
        struct pair *p = one;
        rc = g->lib->destroy_qp(p->real);
        if (rc == 0) {
            p->context->dead -= p->dead;
            free_queues(p->q, 2);
        }
        break;
    }
    default:
        break;
    }
    if (rc)
        return rc > 0 ? rc : failed();
    drop(g, kind, one);
    return 0;
}

static int query_qp(struct guard *g, const struct guard_call *c, struct pair *p, struct guard_answer *a)
{
    int rc = g->lib->query_qp(p->real, &a->qp.attr, (int)c->a, &a->qp.init);
    a->qp.init.qp_context = NULL;
    a->qp.init.send_cq = a->qp.init.recv_cq = NULL;
    return rc > 0 ? rc : rc ? failed() : 0;
}

static int modify_qp(struct guard *g, const struct guard_call *c, struct pair *p)
{
    struct ibv_qp_attr attr = c->attr;
    int rc = g->lib->modify_qp(p->real, &attr, (int)c->a);
    return rc > 0 ? rc : rc ? failed() : 0;
}

static int gid_entry(struct guard *g, const struct guard_call *c, struct context *x, struct guard_answer *a)
{
#if !defined(__APPLE__)
    struct ibv_gid_entry entry = {0};
    if (!g->lib->query_gid_ex)
        return EOPNOTSUPP;
    int rc = g->lib->query_gid_ex(x->real, (uint32_t)c->a, (uint32_t)c->b, &entry, 0, sizeof entry);
    a->gid_entry.kind = entry.gid_type;
    a->gid_entry.interface = entry.ndev_ifindex;
    return rc > 0 ? rc : rc ? failed() : 0;
#else
    (void)g, (void)c, (void)x, (void)a;
    return EOPNOTSUPP;
#endif
}

static int on_context(struct guard *g, const struct guard_call *c, struct context *x, struct guard_answer *a, int fd[2])
{
    int rc;
    if (!x)
        return EINVAL;
    switch (c->verb) {
    case GUARD_CLOSE: return destroy(g, CONTEXT, x);
    case GUARD_QUERY_DEVICE:
        rc = g->lib->query_device(x->real, &a->device_attr);
        return rc > 0 ? rc : rc ? failed() : 0;
    case GUARD_QUERY_PORT: return query_port(g, x, c->a, a);
    case GUARD_QUERY_GID:
        rc = g->lib->query_gid(x->real, (uint8_t)c->a, (int)c->b, &a->gid);
        return rc > 0 ? rc : rc ? failed() : 0;
    case GUARD_QUERY_GID_EX: return gid_entry(g, c, x, a);
    case GUARD_ALLOC_PD: {
        struct domain *d = make(g, DOMAIN, &a->object);
        if (!d)
            return ENOMEM;
        errno = 0;
        *d = (struct domain){.context = x, .real = g->lib->alloc_pd(x->real)};
        rc = d->real ? 0 : failed();
        if (rc)
            drop(g, DOMAIN, d);
        return rc;
    }
    case GUARD_CREATE_CHANNEL: return create_channel(g, x, a, &fd[0]);
    default: return create_cq(g, c, x, a, &fd[0]);
    }
}

/* `fd`: that came with it (one); then those for the answer. */
static int serve_call(struct guard *g, const struct guard_call *c, struct guard_answer *a, int fd[2])
{
    static const struct {
        enum guard_verb verb;
        enum kind kind;
    } ends[] = {{GUARD_DEALLOC_PD, DOMAIN}, {GUARD_DEREG_MR, REGION}, {GUARD_DESTROY_CHANNEL, CHANNEL}, {GUARD_DESTROY_CQ, COMPLETIONS},
                {GUARD_DESTROY_QP, PAIR}};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        void *one = c->verb == (uint32_t)ends[i].verb ? find(g, ends[i].kind, c->object) : NULL;
        if (c->verb == (uint32_t)ends[i].verb)
            return one ? destroy(g, ends[i].kind, one) : EINVAL;
    }
    struct domain *d = find(g, DOMAIN, c->object);
    struct pair *p = find(g, PAIR, c->object);
    switch (c->verb) {
    case GUARD_SHARE: return share(g, c, fd[0]);
    case GUARD_LIST: return list(g, c, a);
    case GUARD_OPEN: return open_device(g, c->object, a);
    case GUARD_REG_MR: return d ? register_memory(g, c, d, a) : EINVAL;
    case GUARD_CREATE_QP: return d ? create_qp(g, c, d, a, &fd[0]) : EINVAL;
    case GUARD_QUERY_QP: return p ? query_qp(g, c, p, a) : EINVAL;
    case GUARD_MODIFY_QP: return p ? modify_qp(g, c, p) : EINVAL;
    case GUARD_CLOSE: case GUARD_QUERY_DEVICE: case GUARD_QUERY_PORT: case GUARD_QUERY_GID: case GUARD_QUERY_GID_EX:
    case GUARD_ALLOC_PD: case GUARD_CREATE_CHANNEL: case GUARD_CREATE_CQ:
        return on_context(g, c, find(g, CONTEXT, c->object), a, fd);
    default: return ENOSYS;
    }
}

/* One call, if there is one. False: the program is gone, or makes no sense. */
static bool serve_one(struct guard *g, bool *some)
{
    struct pollfd ready = {.fd = g->fd, .events = POLLIN};
    struct guard_call c;
    struct guard_answer a;
    int came[1] = {-1}, fd[2] = {-1, -1};
    *some = false;
    if (poll(&ready, 1, 0) <= 0)
        return true;
    if (guard_receive(g->fd, &c, sizeof c, came, 1, base_deadline(WEFT_SECOND)) != 0)
        return false;
    *some = true;
    memset(&a, 0, sizeof a);
    fd[0] = came[0];
    int result = serve_call(g, &c, &a, fd);
    if (came[0] >= 0)
        close(came[0]); /* mapped, if it was any good */
    bool gives = result == 0 && (c.verb == GUARD_CREATE_CHANNEL || c.verb == GUARD_CREATE_CQ || c.verb == GUARD_CREATE_QP);
    a.result = result;
    bool sent = guard_send(g->fd, &a, sizeof a, fd, gives ? 1 : 0) == 0;
    if (gives)
        close(fd[0]);
    return sent;
}

/* --- the process --- */

/* Everything, in the order that devices wish: queue pairs, regions, completion queues, channels, domains, contexts. */
static void give_back(struct guard *g)
{
    static const enum kind order[] = {PAIR, REGION, COMPLETIONS, CHANNEL, DOMAIN, CONTEXT};
    uint32_t n = 0, domains = 0;
    for (size_t k = 0; k < sizeof order / sizeof order[0]; k++)
        for (uint32_t i = 0; i < g->table[order[k]].top; i++) {
            void *one = find(g, order[k], i);
            int err = one ? destroy(g, order[k], one) : 0;
            n += one && order[k] != CONTEXT;
            domains += one && order[k] == DOMAIN;
            if (err)
                base_log(BASE_LOG_WARN, "an object of an RDMA device cannot be given back: %s", base_strerror(err));
        }
    if (n)
        base_log(BASE_LOG_INFO, "the program ended without giving back its RDMA devices: done for it (%u domains, %u objects)", domains, n);
}

/* Until something happens. What came before the devices and the program were told to wake us is looked for once more. */
static void nap(struct guard *g)
{
    struct pollfd fds[3 + 64] = {{.fd = g->fd, .events = POLLIN}, {.fd = g->bell[0], .events = POLLIN}, {.fd = g->program, .events = POLLIN}};
    nfds_t n = 3;
    for (uint32_t i = 0; i < g->table[COMPLETIONS].top; i++) {
        struct completions *c = find(g, COMPLETIONS, i);
        if (c)
            ibv_req_notify_cq(c->real, 0);
        if (c && n < sizeof fds / sizeof fds[0])
            fds[n++] = (struct pollfd){.fd = c->channel->real->fd, .events = POLLIN};
    }
    /* seq_cst: a program that writes a request and then sees 0 here is seen by the look below (fence in ring_bell(), guard.c) */
    atomic_store_explicit(&g->page->sleeping, 1, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst);
    if (move_all(g) == 0 && !g->broken)
        poll(fds, n, NAP_MS);
    atomic_store_explicit(&g->page->sleeping, 0, memory_order_relaxed);
    char bytes[64];
    while (read(g->bell[0], bytes, sizeof bytes) == (ssize_t)sizeof bytes)
        ;
    for (uint32_t i = 0; i < g->table[CHANNEL].top; i++) {
        struct channel *ch = find(g, CHANNEL, i);
        struct ibv_cq *cq;
        void *context;
        while (ch && g->lib->get_cq_event(ch->real, &cq, &context) == 0)
            g->lib->ack_cq_events(cq, 1);
    }
}

static bool program_ended(const struct guard *g)
{
    struct pollfd end = {.fd = g->program, .events = POLLIN};
    return g->program >= 0 && poll(&end, 1, 0) > 0;
}

static void serve(struct guard *g)
{
    int64_t active = 0, served = 0, looked = 0;
    for (;;) {
        g->now = base_now_ns();
        bool some = move_all(g) > 0, called = false;
        /* Not before every request: a call into the system. */
        if (!some || g->now - served > WEFT_MS) {
            served = g->now;
            if (!serve_one(g, &called))
                return;
        }
        if (g->broken) {
            base_log(BASE_LOG_WARN, "what the program wrote makes no sense: %s; its RDMA devices are given back", g->broken);
            return;
        }
        if (g->now - looked > LOOK) {
            looked = g->now;
            for (uint32_t i = 0; i < g->table[CONTEXT].top; i++)
                if (find(g, CONTEXT, i))
                    look(g, find(g, CONTEXT, i), LOOK);
            if (program_ended(g))
                return;
        }
        if (some || called)
            active = g->now;
        else if (g->now - active < SPIN)
            sched_yield();
        else
            nap(g);
    }
}

static int start(struct guard *g)
{
    unsigned uid;
    int pid = 0, page = base_memory_fd("weft-guard-page", base_round_up(sizeof *g->page, BASE_PAGE), false);
    if (page < 0)
        return page;
    void *p = mmap(NULL, base_round_up(sizeof *g->page, BASE_PAGE), PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
    /* A pair of sockets: who rings a pipe whose reader has died is killed for it. */
    int rc = p == MAP_FAILED ? -errno : base_socketpair(g->bell);
    if (!rc) {
        fcntl(g->bell[0], F_SETFL, O_NONBLOCK);
        g->page = p;
        const struct guard_greeting hello = {GUARD_MAGIC, sizeof(struct guard_call), sizeof(struct guard_answer), sizeof(struct guard_completion)};
        rc = guard_send(g->fd, &hello, sizeof hello, (int[]){page, g->bell[1]}, 2);
        close(g->bell[1]);
    }
    close(page);
    /* A program that forks and is killed leaves our socket open in its child. */
    g->program = base_peer_identity(g->fd, &uid, &pid) == 0 && pid > 0 ? base_watch_process(pid) : -1;
    return rc;
}

int verbs_guard_serve(void)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGTTOU, SIGTTIN, SIGPIPE, SIGUSR1, SIGUSR2};
    struct guard g = {.fd = GUARD_FD, .program = -1};
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        signal(ignored[i], SIG_IGN); /* it ends with the program, which is asked by these */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    base_name_process("weft-guard");
    base_log_name("guard");
    int rc = verbs_load(&g.lib);
    if (!rc)
        rc = start(&g);
    if (rc) {
        const int32_t error = -rc;
        (void)!write(g.fd, &error, sizeof error);
        return rc;
    }
    serve(&g);
    give_back(&g);
    close(g.fd);
    return 0;
}
