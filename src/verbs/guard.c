/* SPDX-License-Identifier: MIT
 *
 * Devices that a guard owns (guard_serve.c), for the program that it guards: a table of verbs like the library's, whose objects are
 * the guard's. What is registered has to be memory that the guard has mapped as well (verbs_guard_share()). When the guard is gone
 * its ports are down, and everything else fails or does nothing.
 */
#include "verbs/guard.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE (10 * WEFT_SECOND) /* for the answer to a call, ... */
#define SLOW     (60 * WEFT_SECOND) /* ... and to one that may wait for a peer, or for much memory. Who ends is noticed at once */
#define LOOK     (5 * WEFT_MS)      /* whether the guard lives, at most so often */
#define FDS      2u

struct guard_device {
    struct ibv_device base;
    struct verbs_guard *g;
    uint32_t index;
};

struct verbs_guard {
    struct verbs_library lib;
    pthread_mutex_t lock;   /* of calls */
    int fd, bell, quiet[2]; /* quiet: never readable, and never waited for */
    _Atomic bool gone;
    _Atomic int64_t looked_at;
    struct guard_page *page;
    struct guard_device devices[GUARD_CONTEXTS];
    struct ibv_device *list[GUARD_CONTEXTS + 1];
    int count;
};

struct context {
    struct ibv_context base;
    struct verbs_guard *g;
    uint32_t id;
    struct ibv_port_attr port[GUARD_PORTS]; /* as last asked; under the lock of calls */
    bool known[GUARD_PORTS];
};
struct object { /* a domain, a region */
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
    struct ibv_cq *cq; /* the one that tells by it */
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

/* --- messages with descriptors --- */

int guard_send(int fd, const void *bytes, size_t len, const int *fds, uint32_t count)
{
    struct iovec iov = {(void *)(uintptr_t)bytes, len};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(FDS * sizeof(int))];
    } c;
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    memset(&c, 0, sizeof c);
    if (count) {
        m.msg_control = c.space;
        const uint32_t bytes_of_fds = count * (uint32_t)sizeof(int);
        m.msg_controllen = (__typeof__(m.msg_controllen))CMSG_SPACE(bytes_of_fds);
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&m);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = (__typeof__(cmsg->cmsg_len))CMSG_LEN(bytes_of_fds);
        memcpy(CMSG_DATA(cmsg), fds, bytes_of_fds);
    }
    for (;;) {
        ssize_t n = sendmsg(fd, &m, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        return n == (ssize_t)len ? 0 : n < 0 ? -errno : -EPROTO; /* less than the socket holds: it goes at once */
    }
}

static void take_fds(struct msghdr *m, int *fds, uint32_t count, uint32_t *got)
{
    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(m); cmsg; cmsg = CMSG_NXTHDR(m, cmsg)) {
        if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int one;
            memcpy(&one, CMSG_DATA(cmsg) + i * sizeof one, sizeof one);
            fcntl(one, F_SETFD, FD_CLOEXEC);
            if (*got < count)
                fds[(*got)++] = one;
            else
                close(one);
        }
    }
}

int guard_receive(int fd, void *bytes, size_t len, int *fds, uint32_t count, int64_t deadline)
{
    uint8_t *at = bytes;
    uint32_t got = 0;
    int rc = 0;
    for (uint32_t i = 0; i < count; i++)
        fds[i] = -1;
    while (len && !rc) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int64_t left = deadline - base_now_ns();
        if (left <= 0)
            rc = -ETIMEDOUT;
        if (rc || poll(&ready, 1, left > WEFT_SECOND ? 1000 : (int)(left / WEFT_MS) + 1) <= 0)
            continue;
        struct iovec iov = {at, len};
        union {
            struct cmsghdr align;
            char space[CMSG_SPACE(FDS * sizeof(int))];
        } c;
        struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.space, .msg_controllen = sizeof c.space};
#ifdef MSG_CMSG_CLOEXEC
        ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
#else
        ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT);
#endif
        if (n > 0) {
            take_fds(&m, fds, count, &got);
            at += n;
            len -= (size_t)n;
        } else if (n == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)) {
            rc = n == 0 ? -ECONNRESET : -errno;
        }
    }
    for (uint32_t i = 0; rc && i < got; i++) {
        close(fds[i]);
        fds[i] = -1;
    }
    return rc;
}

/* --- calls --- */

static void lost(struct verbs_guard *g, const char *why)
{
    if (!atomic_exchange_explicit(&g->gone, true, memory_order_relaxed))
        base_log(BASE_LOG_ERROR, "the guard that owns this node's RDMA devices is gone: %s; no cable works any more", why);
}

/* After this the guard is given up for good: an answer that comes later would be taken for that to the next call. What only gives
 * something back is not waited for as long: the guard does it also when nobody waits. */
static int64_t patience(uint32_t verb)
{
    switch (verb) {
    case GUARD_OPEN: case GUARD_ALLOC_PD: case GUARD_REG_MR: case GUARD_CREATE_CQ: case GUARD_CREATE_QP: case GUARD_MODIFY_QP:
        return SLOW;
    default:
        return PATIENCE;
    }
}

/* 0, or an errno, which is also in errno. `fd`: to send when `gives`, else for one that comes; or NULL. */
static int call(struct verbs_guard *g, struct guard_call *c, struct guard_answer *a, int *fd, bool gives)
{
    struct guard_answer none;
    int came = -1, rc = -ENODEV;
    a = a ? a : &none;
    pthread_mutex_lock(&g->lock);
    if (!atomic_load_explicit(&g->gone, memory_order_relaxed)) {
        rc = guard_send(g->fd, c, sizeof *c, fd, gives ? 1 : 0);
        if (!rc)
            rc = guard_receive(g->fd, a, sizeof *a, &came, 1, base_deadline(patience(c->verb)));
        if (rc)
            lost(g, base_strerror(rc));
        rc = rc ? -ENODEV : -a->result;
    }
    pthread_mutex_unlock(&g->lock);
    if (came >= 0 && (rc || gives || !fd))
        close(came);
    else if (came >= 0)
        *fd = came;
    else if (!rc && fd && !gives)
        rc = -EPROTO;
    errno = -rc;
    return -rc;
}

static int simple(struct verbs_guard *g, enum guard_verb verb, uint32_t object)
{
    return call(g, &(struct guard_call){.verb = (uint32_t)verb, .object = object}, NULL, NULL, false);
}

/* Of what is destroyed: also when its owner is gone, and the object with it. */
static int destroy(struct verbs_guard *g, enum guard_verb verb, uint32_t object)
{
    int rc = simple(g, verb, object);
    return atomic_load_explicit(&g->gone, memory_order_relaxed) ? 0 : rc;
}

/* `bytes` of zeros for what this call makes in the guard; NULL with errno. */
static void *make(struct verbs_guard *g, struct guard_call *c, struct guard_answer *a, int *fd, size_t bytes)
{
    void *o = calloc(1, bytes);
    int error = o ? call(g, c, a, fd, false) : ENOMEM;
    if (!error)
        return o;
    free(o);
    errno = error;
    return NULL;
}

static bool lives(struct verbs_guard *g)
{
    int64_t now = base_now_ns();
    if (atomic_load_explicit(&g->gone, memory_order_relaxed))
        return false;
    if (now - atomic_load_explicit(&g->looked_at, memory_order_relaxed) < LOOK)
        return true;
    atomic_store_explicit(&g->looked_at, now, memory_order_relaxed);
    struct pollfd end = {.fd = g->fd};
    if (poll(&end, 1, 0) > 0 && end.revents & (POLLHUP | POLLERR))
        lost(g, "it has ended");
    return !atomic_load_explicit(&g->gone, memory_order_relaxed);
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
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the one in nap() of guard_serve.c */
    if (BASE_UNLIKELY(atomic_load_explicit(&g->page->sleeping, memory_order_relaxed)) &&
        atomic_exchange_explicit(&g->page->sleeping, 0, memory_order_relaxed))
        (void)!send(g->bell, "r", 1, MSG_DONTWAIT | MSG_NOSIGNAL); /* full: it has been told; gone: that is no end for the program */
}

static int post(struct verbs_guard *g, struct queue *q, uint64_t wr_id, const struct ibv_sge *sge, int count, uint32_t flags)
{
    if (count != 1)
        return EINVAL;
    if (atomic_load_explicit(&g->gone, memory_order_relaxed))
        return ENODEV;
    const struct guard_request r = {.wr_id = wr_id, .address = sge->addr, .bytes = sge->length, .region = sge->lkey, .flags = flags};
    base_spin_lock(&q->lock);
    /* acquire: what the guard has read may be written again */
    bool fits = q->mine - atomic_load_explicit(&q->ring->out, memory_order_acquire) < q->count;
    if (fits) {
        memcpy(q->entries + (q->mine & (q->count - 1)) * sizeof r, &r, sizeof r);
        /* release: pairs with the acquire in move_requests() of guard_serve.c */
        atomic_store_explicit(&q->ring->in, ++q->mine, memory_order_release);
    }
    base_spin_unlock(&q->lock);
    if (fits)
        ring_bell(g);
    return fits ? 0 : ENOMEM;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct pair *p = (struct pair *)(void *)qp;
    for (; wr; wr = wr->next) {
        int err = wr->opcode != IBV_WR_SEND || wr->send_flags & IBV_SEND_INLINE
                      ? EOPNOTSUPP : post(of(qp->context)->g, &p->q[0], wr->wr_id, wr->sg_list, wr->num_sge, wr->send_flags);
        if (err) {
            *bad = wr;
            return err;
        }
    }
    return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct pair *p = (struct pair *)(void *)qp;
    for (; wr; wr = wr->next) {
        int err = post(of(qp->context)->g, &p->q[1], wr->wr_id, wr->sg_list, wr->num_sge, 0);
        if (err) {
            *bad = wr;
            return err;
        }
    }
    return 0;
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
    struct queue *q = &((struct completions *)(void *)cq)->q;
    int n = 0;
    base_spin_lock(&q->lock);
    /* acquire: pairs with the release in put_completion() of guard_serve.c */
    uint32_t in = atomic_load_explicit(&q->ring->in, memory_order_acquire);
    for (; n < most && q->mine != in && in - q->mine <= q->count; n++, q->mine++) {
        struct guard_completion e;
        memcpy(&e, q->entries + (q->mine & (q->count - 1)) * sizeof e, sizeof e);
        wc[n] = (struct ibv_wc){.wr_id = e.wr_id, .status = (enum ibv_wc_status)e.status, .opcode = (enum ibv_wc_opcode)e.opcode,
                                .byte_len = e.bytes, .qp_num = e.qp_num};
    }
    if (n) /* release: these entries may be written again */
        atomic_store_explicit(&q->ring->out, q->mine, memory_order_release);
    base_spin_unlock(&q->lock);
    return n;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
    (void)solicited;
    /* seq_cst: the caller polls once more after this; see tell() in guard_serve.c */
    atomic_store_explicit(&((struct completions *)(void *)cq)->q.ring->armed, 1, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst);
    return 0;
}

/* --- the table of verbs --- */

static const char *get_device_name(struct ibv_device *device)
{
    return device->name;
}

static struct ibv_context *open_device(struct ibv_device *device)
{
    struct guard_device *d = (struct guard_device *)(void *)device;
    struct guard_answer a;
    struct context *c = make(d->g, &(struct guard_call){.verb = GUARD_OPEN, .object = d->index}, &a, NULL, sizeof *c);
    if (!c)
        return NULL;
    c->g = d->g;
    c->id = a.object < GUARD_CONTEXTS ? a.object : 0;
    c->base.device = device;
    c->base.ops.poll_cq = poll_cq;
    c->base.ops.req_notify_cq = req_notify_cq;
    c->base.ops.post_send = post_send;
    c->base.ops.post_recv = post_recv;
    c->base.cmd_fd = c->base.async_fd = -1;
    return &c->base;
}

static int close_device(struct ibv_context *context)
{
    struct context *c = of(context);
    int rc = destroy(c->g, GUARD_CLOSE, c->id);
    free(c);
    return rc;
}

static int query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    struct guard_answer a;
    int rc = call(of(context)->g, &(struct guard_call){.verb = GUARD_QUERY_DEVICE, .object = of(context)->id}, &a, NULL, false);
    if (!rc)
        *attr = a.device_attr;
    return rc;
}

/* Asked often, and before anything is posted: the guard is asked only when the page says that something has changed. */
static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
    struct context *c = of(context);
    struct guard_answer a;
    bool keeps = port >= 1 && port <= GUARD_PORTS, same = false;
    if (!lives(c->g))
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
    int rc = call(c->g, &(struct guard_call){.verb = GUARD_QUERY_PORT, .object = c->id, .a = port}, &a, NULL, false);
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

static int query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    struct guard_answer a;
    int rc = call(of(context)->g, &(struct guard_call){.verb = GUARD_QUERY_GID, .object = of(context)->id, .a = port, .b = (uint64_t)index},
                  &a, NULL, false);
    if (!rc)
        *gid = a.gid;
    return rc;
}

#if !defined(__APPLE__)
static int query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags, size_t size)
{
    struct guard_answer a;
    (void)flags, (void)size;
    int rc = call(of(context)->g, &(struct guard_call){.verb = GUARD_QUERY_GID_EX, .object = of(context)->id, .a = port, .b = index}, &a,
                  NULL, false);
    if (!rc) {
        entry->gid_type = a.gid_entry.kind;
        entry->ndev_ifindex = a.gid_entry.interface;
    }
    return rc;
}
#endif

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
    struct guard_answer a;
    struct object *o = make(of(context)->g, &(struct guard_call){.verb = GUARD_ALLOC_PD, .object = of(context)->id}, &a, NULL, sizeof *o);
    if (!o)
        return NULL;
    o->pd.context = context;
    o->id = a.object;
    return &o->pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
    int rc = destroy(of(pd->context)->g, GUARD_DEALLOC_PD, ((struct object *)(void *)pd)->id);
    free(pd);
    return rc;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *address, size_t bytes, int access)
{
    struct guard_answer a;
    struct guard_call c = {.verb = GUARD_REG_MR, .object = ((struct object *)(void *)pd)->id, .a = (uintptr_t)address, .b = bytes,
                           .c = (uint64_t)access};
    struct object *o = make(of(pd->context)->g, &c, &a, NULL, sizeof *o);
    if (!o)
        return NULL;
    o->mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = address, .length = bytes, .lkey = a.object, .rkey = a.object};
    o->id = a.object;
    return &o->mr;
}

static int dereg_mr(struct ibv_mr *mr)
{
    int rc = destroy(of(mr->context)->g, GUARD_DEREG_MR, ((struct object *)(void *)mr)->id);
    if (!rc)
        free(mr);
    return rc;
}

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
    struct guard_answer a;
    int fd = -1;
    struct channel *ch = make(of(context)->g, &(struct guard_call){.verb = GUARD_CREATE_CHANNEL, .object = of(context)->id}, &a, &fd,
                              sizeof *ch);
    if (!ch)
        return NULL;
    ch->base.context = context;
    ch->base.fd = fd;
    ch->id = a.object;
    return &ch->base;
}

static int destroy_comp_channel(struct ibv_comp_channel *channel)
{
    int rc = destroy(of(channel->context)->g, GUARD_DESTROY_CHANNEL, ((struct channel *)(void *)channel)->id);
    if (rc)
        return rc;
    close(channel->fd);
    free(channel);
    return 0;
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
    struct channel *ch = (struct channel *)(void *)channel;
    struct verbs_guard *g = of(channel->context)->g;
    char byte;
    ssize_t n = read(channel->fd, &byte, 1);
    if (n == 0) { /* who would write is gone; from now on this descriptor wakes nobody */
        lost(g, "it has ended");
        dup2(g->quiet[0], channel->fd);
        errno = EAGAIN;
    }
    if (n != 1 || !ch->cq)
        return -1;
    *cq = ch->cq;
    *context = ch->cq->cq_context;
    return 0;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned count)
{
    (void)cq, (void)count;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int entries, void *cq_context, struct ibv_comp_channel *channel, int vector)
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
    struct completions *q = make(of(context)->g, &c, &a, &fd, sizeof *q);
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

static int destroy_cq(struct ibv_cq *cq)
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

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    struct guard_answer a;
    struct verbs_guard *g = of(pd->context)->g;
    int fd = -1;
    struct guard_call c = {.verb = GUARD_CREATE_QP, .object = ((struct object *)(void *)pd)->id,
                           .a = ((struct completions *)(void *)init->send_cq)->id, .b = ((struct completions *)(void *)init->recv_cq)->id};
    c.init.cap = init->cap;
    c.init.qp_type = init->qp_type;
    c.init.sq_sig_all = init->sq_sig_all;
    struct pair *p = make(g, &c, &a, &fd, sizeof *p);
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

static int query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
    struct guard_answer a;
    int rc = call(of(qp->context)->g, &(struct guard_call){.verb = GUARD_QUERY_QP, .object = ((struct pair *)(void *)qp)->id, .a = (uint64_t)mask},
                  &a, NULL, false);
    if (!rc) {
        *attr = a.qp.attr;
        *init = a.qp.init;
        init->send_cq = qp->send_cq;
        init->recv_cq = qp->recv_cq;
    }
    return rc;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    return call(of(qp->context)->g, &(struct guard_call){.verb = GUARD_MODIFY_QP, .object = ((struct pair *)(void *)qp)->id, .a = (uint64_t)mask,
                                                         .attr = *attr}, NULL, NULL, false);
}

static int destroy_qp(struct ibv_qp *qp)
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

static int fill(struct verbs_guard *g)
{
    const struct verbs_library *real;
    int rc = verbs_load(&real); /* for what needs no device: texts */
    if (rc)
        return rc;
    g->lib = (struct verbs_library){
        .get_device_name = get_device_name, .open_device = open_device, .close_device = close_device, .query_device = query_device,
        .query_port = query_port, .query_gid = query_gid, .alloc_pd = alloc_pd, .dealloc_pd = dealloc_pd, .reg_mr = reg_mr,
        .dereg_mr = dereg_mr, .create_comp_channel = create_comp_channel, .destroy_comp_channel = destroy_comp_channel,
        .get_cq_event = get_cq_event, .ack_cq_events = ack_cq_events, .create_cq = create_cq, .destroy_cq = destroy_cq,
        .create_qp = create_qp, .query_qp = query_qp, .modify_qp = modify_qp, .destroy_qp = destroy_qp,
        .wc_status_str = real->wc_status_str,
    };
#if !defined(__APPLE__)
    g->lib.query_gid_ex = real->query_gid_ex ? query_gid_ex : NULL;
#endif
    memcpy(g->lib.path, real->path, sizeof g->lib.path);
    return 0;
}

/* --- start and end --- */

/* In a new process of a program that may have threads: only what a signal handler may do. It is nobody's child, so that the program
 * does not meet it when it waits for its own, and in no group or session of the program's. */
static _Noreturn void become_guard(const char *command, int socket)
{
    static const char *const words[] = {"weft", "run", "--as-guard", NULL};
    setsid();
    pid_t pid = fork();
    if (pid)
        _exit(pid < 0);
    int error = dup2(socket, GUARD_FD) < 0 ? errno : 0;
    if (!error) {
        execvp(command, (char *const *)(uintptr_t)words);
        error = errno;
    }
    const int32_t said = error;
    (void)!write(socket, &said, sizeof said);
    _exit(127);
}

static int greet(struct verbs_guard *g, const char *command)
{
    struct guard_greeting hello;
    int fds[FDS] = {-1, -1}, rc = guard_receive(g->fd, &hello.magic, sizeof hello.magic, fds, FDS, base_deadline(PATIENCE));
    if (rc)
        return base_fail(rc, "the guard does not start: %s (WEFT_GUARD='%s': expected the command weft)", base_strerror(rc), command);
    if (hello.magic != GUARD_MAGIC)
        return base_fail(-ENOENT, "the guard does not start: %s (WEFT_GUARD='%s': expected the command weft)",
                         hello.magic < 4096 ? base_strerror((int)hello.magic) : "it is another program", command);
    int none[FDS];
    rc = guard_receive(g->fd, &hello.call_bytes, sizeof hello - sizeof hello.magic, none, 0, base_deadline(PATIENCE));
    if (rc || fds[0] < 0 || fds[1] < 0 || hello.call_bytes != sizeof(struct guard_call) || hello.answer_bytes != sizeof(struct guard_answer) ||
        hello.completion_bytes != sizeof(struct guard_completion))
        rc = base_fail(-EPROTO, "the guard is of another version of weft than this program (WEFT_GUARD='%s')", command);
    uint64_t bytes = base_round_up(sizeof *g->page, BASE_PAGE);
    if (!rc && base_memory_fd_check(fds[0], bytes))
        rc = base_fail(-EPROTO, "the guard's memory is not what it should be");
    if (!rc) {
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
        if (p == MAP_FAILED)
            rc = base_fail(-errno, "mapping the guard's memory: %s", base_strerror(errno));
        else
            g->page = p;
    }
    if (fds[0] >= 0)
        close(fds[0]);
    g->bell = fds[1];
    return rc;
}

static int list_devices(struct verbs_guard *g)
{
    struct guard_answer a = {.result = 0};
    for (uint32_t i = 0; i < GUARD_CONTEXTS; i++) {
        int rc = call(g, &(struct guard_call){.verb = GUARD_LIST, .object = i}, &a, NULL, false);
        if (rc)
            return rc == ENOSYS || rc == ENOENT ? 0 : base_fail(-rc, "the guard cannot list devices: %s", base_strerror(rc));
        if (i >= a.a)
            return 0;
        struct guard_device *d = &g->devices[i];
        d->g = g;
        d->index = i;
        snprintf(d->base.name, sizeof d->base.name, "%.*s", (int)sizeof a.device.name - 1, a.device.name);
        memcpy(&d->base.transport_type, &a.device.transport, sizeof d->base.transport_type);
        memcpy(&d->base.node_type, &a.device.node, sizeof d->base.node_type);
        g->list[g->count++] = &d->base;
    }
    return 0;
}

int verbs_guard_start(struct verbs_guard **out, const char *command)
{
    int ends[2] = {-1, -1};
    struct verbs_guard *g = calloc(1, sizeof *g);
    if (!g)
        return base_fail(-ENOMEM, "no memory for a guard");
    pthread_mutex_init(&g->lock, NULL);
    g->fd = g->bell = g->quiet[0] = g->quiet[1] = -1;
    int rc = fill(g);
    if (!rc)
        rc = base_pipe(g->quiet, O_NONBLOCK);
    if (!rc)
        rc = base_socketpair(ends);
    if (!rc) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before); /* no handler of the program's runs in the child; the guard takes its mask back */
        pid_t pid = fork();
        if (pid == 0)
            become_guard(command, ends[1]);
        int error = errno;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        close(ends[1]);
        g->fd = ends[0];
        while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        rc = pid < 0 ? base_fail(-error, "starting the guard: %s", base_strerror(error)) : greet(g, command);
    }
    if (!rc)
        rc = list_devices(g);
    if (rc) {
        verbs_guard_end(g);
        return rc;
    }
    *out = g;
    return 0;
}

int verbs_guard_share(struct verbs_guard *g, void *base, uint64_t bytes, int fd)
{
    int rc = call(g, &(struct guard_call){.verb = GUARD_SHARE, .a = (uintptr_t)base, .b = bytes}, NULL, &fd, true);
    return rc ? base_fail(-rc, "the guard cannot map %llu bytes of this node's memory: %s", (unsigned long long)bytes, base_strerror(rc)) : 0;
}

int verbs_guard_devices(struct verbs_guard *g, struct verbs_device **out, uint32_t *count, int wanted_gid)
{
    return verbs_devices_of(&g->lib, g->list, g->count, out, count, wanted_gid);
}

void verbs_guard_end(struct verbs_guard *g)
{
    char byte;
    if (!g)
        return;
    /* Until it is no more: then nothing of the devices is in use by it either. */
    if (g->fd >= 0) {
        shutdown(g->fd, SHUT_WR);
        while (!atomic_load_explicit(&g->gone, memory_order_relaxed) && guard_receive(g->fd, &byte, 1, NULL, 0, base_deadline(PATIENCE)) == 0)
            ;
        close(g->fd);
    }
    if (g->page)
        munmap(g->page, base_round_up(sizeof *g->page, BASE_PAGE));
    for (int i = 0; i < 2; i++)
        if (g->quiet[i] >= 0)
            close(g->quiet[i]);
    if (g->bell >= 0)
        close(g->bell);
    pthread_mutex_destroy(&g->lock);
    free(g);
}
