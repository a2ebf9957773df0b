/* SPDX-License-Identifier: MIT
 *
 * Executes a program's calls. The program's objects are in tables. Numbers of objects and ranges are checked before use, because the
 * program may send anything. Each call fills in its answer, and returns the verb's result, 0 or an errno.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "verbs/guard_serve.h"

#define ENTRIES_MAX (1u << 20) /* maximum number of entries of a ring */
#define TABLE_MAX   (1u << 17)
/* Limits for one program, because all programs share the guard's descriptors and mappings. */
#define CHANNELS_MAX 256u
#define SHARES_MAX   64u

static const size_t sizes[KINDS] = {sizeof(struct context),     sizeof(struct domain), sizeof(struct region), sizeof(struct channel),
                                    sizeof(struct completions), sizeof(struct pair),   sizeof(struct share)};

/* --- tables --- */

/* Allocates a zeroed object of this kind, and enters it in the guard's table. Returns NULL if there is no memory. */
static void *objects_make(struct guard *g, enum kind kind, uint32_t *id)
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

static void objects_drop(struct guard *g, enum kind kind, const void *one)
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

/* --- calls --- */

static void count_object(_Atomic uint32_t *count, int by)
{
    atomic_fetch_add_explicit(count, (uint32_t)by, memory_order_relaxed); /* relaxed: the counts are only displayed */
}

static int objects_failed(void)
{
    return errno ? errno : EIO;
}

static int share(struct guard *g, const struct guard_call *c, int fd)
{
    uint32_t id, shares = 0;
    for (uint32_t i = 0; i < g->table[SHARE].top; i++)
        shares += guard_find(g, SHARE, i) != NULL;
    if (shares >= SHARES_MAX)
        return ENOMEM;
    if (fd < 0 || c->b == 0 || c->a + c->b < c->a || base_memory_fd_check(fd, c->b) != 0)
        return EINVAL;
    void *p = mmap(NULL, c->b, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return errno;
    struct share *s = objects_make(g, SHARE, &id);
    if (!s) {
        munmap(p, c->b);
        return ENOMEM;
    }
    *s = (struct share){.at = c->a, .bytes = c->b, .here = p};
    return 0;
}

static int list(struct guard *g, const struct guard_call *c, struct guard_answer *a)
{
    const struct guard_shared *s = g->shared;
    int rc = guard_shared_list(g->shared);
    if (rc)
        return rc;
    a->a = (uint64_t)s->listed; /* the list is constant once it was read */
    if (c->object < (uint32_t)s->listed) {
        struct ibv_device *d = s->list[c->object];
        snprintf(a->device.name, sizeof a->device.name, "%s", g->lib->get_device_name(d));
        a->device.transport = (int32_t)d->transport_type;
        a->device.node = (int32_t)d->node_type;
    }
    return 0;
}

static int objects_open_device(struct guard *g, uint32_t index, struct guard_answer *a)
{
    struct context *c = objects_make(g, CONTEXT, &a->object);
    if (!c || a->object >= GUARD_CONTEXTS) {
        objects_drop(g, CONTEXT, c);
        return ENOMEM;
    }
    c->id = a->object;
    c->device = index;
    int error = guard_shared_open(g->shared, index, &c->real);
    if (error)
        objects_drop(g, CONTEXT, c);
    return error;
}

static int objects_query_port(struct guard *g, struct context *c, uint64_t port, struct guard_answer *a)
{
    if (port < 1 || port > UINT8_MAX)
        return EINVAL;
    int rc = g->lib->query_port(c->real, (uint8_t)port, &a->port_attr);
    if (rc == 0 && port <= GUARD_PORTS) {
        c->watched |= 1u << (port - 1);
        guard_look(g, c, 0);
        if (c->dead)
            a->port_attr.state = IBV_PORT_DOWN;
    }
    return rc > 0 ? rc : rc ? objects_failed() : 0;
}

static int register_memory(struct guard *g, const struct guard_call *c, struct domain *d, struct guard_answer *a)
{
    const struct share *s = NULL;
    for (uint32_t i = 0; i < g->table[SHARE].top && !s; i++) {
        const struct share *one = guard_find(g, SHARE, i);
        if (one && c->a >= one->at && c->b <= one->bytes && c->a - one->at <= one->bytes - c->b)
            s = one;
    }
    if (!s)
        return EFAULT;
    struct region *m = objects_make(g, REGION, &a->object);
    if (!m)
        return ENOMEM;
    *m = (struct region){.domain = d, .at = c->a, .bytes = c->b, .here = s->here + (c->a - s->at)};
    errno = 0;
    m->real = g->lib->reg_mr(d->real, m->here, c->b, (int)c->c);
    if (m->real) {
        count_object(&g->regions[d->context->device], 1);
        return 0;
    }
    int error = objects_failed();
    objects_drop(g, REGION, m);
    return error;
}

static int create_channel(struct guard *g, struct context *c, struct guard_answer *a, int *fd)
{
    int ends[2];
    struct channel *ch = objects_make(g, CHANNEL, &a->object);
    if (!ch || a->object >= CHANNELS_MAX) {
        objects_drop(g, CHANNEL, ch);
        return ENOMEM;
    }
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
    int error = rc ? -rc : objects_failed();
    if (!rc) {
        close(ends[0]);
        close(ends[1]);
    }
    objects_drop(g, CHANNEL, ch);
    return error;
}

static int objects_create_cq(struct guard *g, const struct guard_call *call, struct context *c, struct guard_answer *a, int *fd)
{
    struct channel *ch = guard_find(g, CHANNEL, call->b);
    if (!ch || ch->context != c || call->a == 0 || call->a > ENTRIES_MAX)
        return EINVAL;
    struct completions *q = objects_make(g, COMPLETIONS, &a->object);
    if (!q)
        return ENOMEM;
    *q = (struct completions){.context = c, .channel = ch};
    errno = 0;
    q->real = g->lib->create_cq(c->real, (int)call->a, NULL, ch->real, 0);
    if (!q->real) {
        int error = objects_failed();
        objects_drop(g, COMPLETIONS, q);
        return error;
    }
    q->q.count = power_of_two((uint32_t)(q->real->cqe > (int)call->a ? q->real->cqe : (int)call->a));
    int error = -make_queues(&q->q, 1, sizeof(struct guard_completion), fd);
    if (error) {
        g->lib->destroy_cq(q->real);
        objects_drop(g, COMPLETIONS, q);
        return error;
    }
    a->a = q->q.count;
    a->b = (uint64_t)q->real->cqe;
    return 0;
}

static int objects_create_qp(struct guard *g, const struct guard_call *call, struct domain *d, struct guard_answer *a, int *fd)
{
    struct completions *send = guard_find(g, COMPLETIONS, call->a), *receive = guard_find(g, COMPLETIONS, call->b);
    if (!send || !receive || send->context != d->context || receive->context != d->context)
        return EINVAL;
    struct pair *p = objects_make(g, PAIR, &a->object);
    if (!p)
        return ENOMEM;
    struct ibv_qp_init_attr init = {.send_cq = send->real,
                                    .recv_cq = receive->real,
                                    .cap = call->init.cap,
                                    .qp_type = call->init.qp_type,
                                    .sq_sig_all = call->init.sq_sig_all};
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.cap.max_inline_data = 0;
    errno = 0;
    p->real = g->lib->create_qp(d->real, &init);
    int error = p->real ? 0 : objects_failed();
    if (!error) {
        /* A device may grant more entries than it reports in `init`. With twice as many entries, the ring is never full before the device's
         * queue is. */
        p->q[0].count = power_of_two(2 * init.cap.max_send_wr + 2);
        p->q[1].count = power_of_two(2 * init.cap.max_recv_wr + 2);
        error = -make_queues(p->q, 2, sizeof(struct guard_request), fd);
    }
    if (error) {
        if (p->real)
            g->lib->destroy_qp(p->real);
        objects_drop(g, PAIR, p);
        return error;
    }
    count_object(&g->pairs[d->context->device], 1);
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

/* Whether another object still uses `one`, so that `one` must not be destroyed. */
static bool used(const struct guard *g, const void *one)
{
    for (uint32_t i = 0; i < g->table[PAIR].top; i++) {
        const struct pair *p = guard_find(g, PAIR, i);
        if (p && (p->cq[0] == one || p->cq[1] == one || p->domain == one || p->context == one))
            return true;
    }
    for (uint32_t i = 0; i < g->table[COMPLETIONS].top; i++) {
        const struct completions *c = guard_find(g, COMPLETIONS, i);
        if (c && (c->channel == one || c->context == one))
            return true;
    }
    for (uint32_t i = 0; i < g->table[CHANNEL].top; i++) {
        const struct channel *ch = guard_find(g, CHANNEL, i);
        if (ch && ch->context == one)
            return true;
    }
    for (uint32_t i = 0; i < g->table[REGION].top; i++) {
        const struct region *m = guard_find(g, REGION, i);
        if (m && m->domain == one)
            return true;
    }
    for (uint32_t i = 0; i < g->table[DOMAIN].top; i++) {
        const struct domain *d = guard_find(g, DOMAIN, i);
        if (d && d->context == one)
            return true;
    }
    return false;
}

int guard_destroy(struct guard *g, enum kind kind, void *one)
{
    int rc = 0;
    if (used(g, one))
        return EBUSY;
    switch (kind) {
    case CONTEXT: {
        struct context *c = one;
        rc = guard_shared_close(g->shared, c->device);
        atomic_store_explicit(&g->page->up[c->id], 0, memory_order_relaxed);
        break;
    }
    case DOMAIN: rc = guard_shared_free_domain(g->shared, ((struct domain *)one)->context->device); break;
    case REGION:
        rc = g->lib->dereg_mr(((struct region *)one)->real);
        if (rc == 0)
            count_object(&g->regions[((struct region *)one)->domain->context->device], -1);
        break;
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
            count_object(&g->pairs[p->context->device], -1);
            free_queues(p->q, 2);
        }
        break;
    }
    default: break;
    }
    if (rc)
        return rc > 0 ? rc : objects_failed();
    objects_drop(g, kind, one);
    return 0;
}

static int objects_query_qp(struct guard *g, const struct guard_call *c, struct pair *p, struct guard_answer *a)
{
    int rc = g->lib->query_qp(p->real, &a->qp.attr, (int)c->a, &a->qp.init);
    a->qp.init.qp_context = NULL;
    a->qp.init.send_cq = a->qp.init.recv_cq = NULL;
    return rc > 0 ? rc : rc ? objects_failed() : 0;
}

static int objects_modify_qp(struct guard *g, const struct guard_call *c, struct pair *p)
{
    struct ibv_qp_attr attr = c->attr;
    int rc = g->lib->modify_qp(p->real, &attr, (int)c->a);
    return rc > 0 ? rc : rc ? objects_failed() : 0;
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
    return rc > 0 ? rc : rc ? objects_failed() : 0;
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
    case GUARD_CLOSE: return guard_destroy(g, CONTEXT, x);
    case GUARD_QUERY_DEVICE: rc = g->lib->query_device(x->real, &a->device_attr); return rc > 0 ? rc : rc ? objects_failed() : 0;
    case GUARD_QUERY_PORT: return objects_query_port(g, x, c->a, a);
    case GUARD_QUERY_GID:
        rc = g->lib->query_gid(x->real, (uint8_t)c->a, (int)c->b, &a->gid);
        return rc > 0 ? rc : rc ? objects_failed() : 0;
    case GUARD_QUERY_GID_EX: return gid_entry(g, c, x, a);
    case GUARD_ALLOC_PD: {
        struct domain *d = objects_make(g, DOMAIN, &a->object);
        if (!d)
            return ENOMEM;
        d->context = x;
        rc = guard_shared_domain(g->shared, x->device, &d->real);
        if (rc)
            objects_drop(g, DOMAIN, d);
        return rc;
    }
    case GUARD_HOLDERS: guard_shared_holders(g->shared, x->device, a->text, sizeof a->text); return 0;
    case GUARD_CREATE_CHANNEL: return create_channel(g, x, a, &fd[0]);
    default: return objects_create_cq(g, c, x, a, &fd[0]);
    }
}

int guard_answer_call(struct guard *g, const struct guard_call *c, struct guard_answer *a, int fd[2])
{
    static const struct {
        enum guard_verb verb;
        enum kind kind;
    } ends[] = {{GUARD_DEALLOC_PD, DOMAIN},
                {GUARD_DEREG_MR, REGION},
                {GUARD_DESTROY_CHANNEL, CHANNEL},
                {GUARD_DESTROY_CQ, COMPLETIONS},
                {GUARD_DESTROY_QP, PAIR}};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        void *one = c->verb == (uint32_t)ends[i].verb ? guard_find(g, ends[i].kind, c->object) : NULL;
        if (c->verb == (uint32_t)ends[i].verb)
            return one ? guard_destroy(g, ends[i].kind, one) : EINVAL;
    }
    struct domain *d = guard_find(g, DOMAIN, c->object);
    struct pair *p = guard_find(g, PAIR, c->object);
    switch (c->verb) {
    case GUARD_SHARE: return share(g, c, fd[0]);
    case GUARD_LIST: return list(g, c, a);
    case GUARD_OPEN: return objects_open_device(g, c->object, a);
    case GUARD_REG_MR: return d ? register_memory(g, c, d, a) : EINVAL;
    case GUARD_CREATE_QP: return d ? objects_create_qp(g, c, d, a, &fd[0]) : EINVAL;
    case GUARD_QUERY_QP: return p ? objects_query_qp(g, c, p, a) : EINVAL;
    case GUARD_MODIFY_QP: return p ? objects_modify_qp(g, c, p) : EINVAL;
    case GUARD_CLOSE:
    case GUARD_QUERY_DEVICE:
    case GUARD_QUERY_PORT:
    case GUARD_QUERY_GID:
    case GUARD_QUERY_GID_EX:
    case GUARD_ALLOC_PD:
    case GUARD_HOLDERS:
    case GUARD_CREATE_CHANNEL:
    case GUARD_CREATE_CQ: return on_context(g, c, guard_find(g, CONTEXT, c->object), a, fd);
    default: return ENOSYS;
    }
}
