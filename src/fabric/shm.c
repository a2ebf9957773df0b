/* SPDX-License-Identifier: MIT
 *
 * shm: the transport between nodes of one host. Each maps the other's pool and control region, which come as file
 * descriptors over the side connection. put, get and atomics are the caller's own loads and stores, complete when
 * they return; messages go through a ring a direction, in the receiver's control region.
 */
#include "fabric/fabric.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabric/copy.h"
#include "fabric/ring.h"

#define CONTROL_MAGIC  UINT64_C(0x7765667473686d31) /* "weftshm1" */
#define BATCH          64u                          /* messages taken from a ring before looking at the next */
#define STASH_MAX      1024u                        /* messages put aside of one sender before its ring waits */
#define BACKLOG_WAIT   (1u << 20)                   /* bytes kept for a peer before its senders wait */
#define BACKLOG_MAX    (64u << 20)                  /* bytes kept for a peer before handlers get -ENOBUFS */

/* A node's control region, shared with the nodes of its host. */
struct control {
    uint64_t magic;
    struct fab_bell bell;
    struct ring rings[]; /* [size]: messages from node i */
};

struct kept { /* a message that found no room */
    struct kept *next;
    weft_op *op;
    uint32_t id, header_len, payload_len;
    uint8_t body[];
};

struct waiting { /* a message whose handler is not installed yet, or that came behind one */
    struct waiting *next;
    int64_t since;
    bool warned;
    struct ring_message message; /* only as much of it as there is */
};

struct shm_link {
    struct fab_link *link;
    uint8_t *pool;          /* the peer's, mapped here */
    struct control *control; /* likewise */
    size_t control_bytes;

    base_spin send_lock; /* guards what follows, to `in` */
    struct ring_sender out;
    struct kept *backlog, **backlog_end;
    _Atomic uint64_t backlog_bytes; /* read without the lock as a hint */

    struct ring_receiver in; /* under w->progress, like the rest */
    struct waiting *stash, **stash_end; /* the program's messages from one without a handler on, in order */
    uint32_t stashed;
    _Atomic bool broken;
};

struct shm {
    int control_fd;
    struct control *control;
    size_t control_bytes;
    struct shm_link **here; /* [count]: links to nodes of this host */
    uint32_t count;
    struct ring_message message; /* being delivered */
};

static size_t control_size(uint32_t nodes)
{
    return base_round_up(sizeof(struct control) + (size_t)nodes * sizeof(struct ring), BASE_PAGE);
}

static int shm_open_transport(struct weft *w)
{
    struct shm *s = calloc(1, sizeof *s);
    if (!s)
        return base_fail(-ENOMEM, "no memory for the shm transport");
    s->control_fd = -1;
    w->shm = s;
    s->here = calloc(w->size, sizeof *s->here);
    if (!s->here)
        return base_fail(-ENOMEM, "no memory for %u shm links", w->size);
    s->control_bytes = control_size(w->size);
    s->control_fd = base_memory_fd("weft-control", s->control_bytes, false);
    if (s->control_fd < 0)
        return s->control_fd;
    void *p = mmap(NULL, s->control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->control_fd, 0);
    if (p == MAP_FAILED)
        return base_fail(-errno, "mapping %zu bytes of shared memory: %s", s->control_bytes, base_strerror(errno));
    s->control = p;
    s->control->magic = CONTROL_MAGIC;
    w->bell = &s->control->bell;
    return 0;
}

static void shm_close(struct weft *w)
{
    struct shm *s = w->shm;
    if (!s)
        return;
    if (s->control)
        munmap(s->control, s->control_bytes);
    if (s->control_fd >= 0)
        close(s->control_fd);
    free(s->here);
    free(s);
    w->shm = NULL;
}

static int shm_card(struct weft *w, void *card)
{
    (void)w;
    (void)card;
    return 0; /* all that a peer needs comes over the side connection */
}

static bool shm_reaches(struct weft *w, const uint8_t *peer_host_id)
{
    return memcmp(w->host_id, peer_host_id, sizeof w->host_id) == 0;
}

/* --- connecting --- */

struct hello {
    uint64_t magic, pool_bytes, control_bytes;
    uint32_t rank, size;
};

static int send_hello(int fd, const struct hello *h, int pool_fd, int control_fd)
{
    struct iovec iov = {(void *)(uintptr_t)h, sizeof *h};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(2 * sizeof(int))];
    } c = {0};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.space, .msg_controllen = sizeof c.space};
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&m);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(2 * sizeof(int));
    memcpy(CMSG_DATA(cmsg), (int[2]){pool_fd, control_fd}, 2 * sizeof(int));
    ssize_t n;
    do
        n = sendmsg(fd, &m, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof *h ? 0 : n < 0 ? -errno : -EPROTO;
}

static int receive_hello(int fd, struct hello *h, int fds[2], int64_t deadline)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (;;) {
        int64_t left = deadline - base_now_ns();
        if (left <= 0)
            return -ETIMEDOUT;
        int n = poll(&p, 1, left > WEFT_SECOND ? 1000 : (int)(left / 1000000) + 1);
        if (n > 0)
            break;
        if (n < 0 && errno != EINTR)
            return -errno;
    }
    struct iovec iov = {h, sizeof *h};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(2 * sizeof(int))];
    } c = {0};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.space, .msg_controllen = sizeof c.space};
#ifdef MSG_CMSG_CLOEXEC
    int flags = MSG_CMSG_CLOEXEC;
#else
    int flags = 0;
#endif
    ssize_t n = recvmsg(fd, &m, flags);
    if (n < 0)
        return -errno;
    int got = 0;
    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(&m); cmsg; cmsg = CMSG_NXTHDR(&m, cmsg)) {
        if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
            continue;
        int count = (int)((cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < count; i++) {
            int one;
            memcpy(&one, CMSG_DATA(cmsg) + (size_t)i * sizeof(int), sizeof one);
            if (got < 2)
                fds[got++] = one;
            else
                close(one);
        }
    }
    return n == (ssize_t)sizeof *h && got == 2 ? 0 : -EPROTO;
}

static int map_peer(struct weft *w, struct shm_link *s, const struct hello *h, const int fds[2])
{
    size_t want = control_size(w->size);
    if (h->magic != CONTROL_MAGIC || h->rank != s->link->node || h->size != w->size || h->control_bytes != want ||
        h->pool_bytes < fab_heap_offset(w->size) || h->pool_bytes > WEFT_MAX_POOL_BYTES)
        return base_fail(-EPROTO, "node %u: its shared memory is not what this version of weft expects", s->link->node);
    int rc = base_memory_fd_check(fds[0], h->pool_bytes);
    if (!rc)
        rc = base_memory_fd_check(fds[1], h->control_bytes);
    if (rc)
        return base_context(rc, "node %u", s->link->node);
    void *pool = mmap(NULL, h->pool_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fds[0], 0);
    if (pool == MAP_FAILED)
        return base_fail(-errno, "mapping the pool of node %u (%llu bytes): %s", s->link->node,
                         (unsigned long long)h->pool_bytes, base_strerror(errno));
    void *control = mmap(NULL, want, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
    if (control == MAP_FAILED) {
        rc = base_fail(-errno, "mapping the rings of node %u: %s", s->link->node, base_strerror(errno));
        munmap(pool, h->pool_bytes);
        return rc;
    }
    s->pool = pool;
    s->control = control;
    s->control_bytes = want;
    s->link->pool_bytes = h->pool_bytes;
    return 0;
}

static int shm_connect(struct weft *w, struct fab_link *l, int side_fd, const void *card, int card_len, int64_t deadline)
{
    (void)card;
    (void)card_len;
    struct shm *shm = w->shm;
    struct shm_link *s = calloc(1, sizeof *s);
    if (!s)
        return base_fail(-ENOMEM, "no memory for the link to node %u", l->node);
    s->link = l;
    s->backlog_end = &s->backlog;
    s->stash_end = &s->stash;
    l->impl = s;
    l->transport = &fab_shm;
    if (l->node == w->rank) {
        s->pool = w->pool_base;
        s->control = shm->control;
        l->pool_bytes = w->pool_bytes;
    } else {
        struct hello mine = {CONTROL_MAGIC, w->pool_bytes, shm->control_bytes, w->rank, w->size}, theirs = {0};
        int fds[2] = {-1, -1};
        int rc = send_hello(side_fd, &mine, mem_fd(w->pool), shm->control_fd);
        if (!rc)
            rc = receive_hello(side_fd, &theirs, fds, deadline);
        if (rc)
            base_fail(rc, "exchange of shared memory with node %u: %s", l->node, base_strerror(rc));
        else
            rc = map_peer(w, s, &theirs, fds);
        for (int i = 0; i < 2; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        if (rc)
            return rc; /* release() frees the rest */
    }
    s->out.ring = &s->control->rings[w->rank];
    s->in.ring = &shm->control->rings[l->node];
    shm->here[shm->count++] = s;
    return 0;
}

static void fail_backlog(struct shm_link *s, int status)
{
    base_spin_lock(&s->send_lock);
    struct kept *k = s->backlog;
    s->backlog = NULL;
    s->backlog_end = &s->backlog;
    atomic_store_explicit(&s->backlog_bytes, 0, memory_order_relaxed);
    base_spin_unlock(&s->send_lock);
    while (k) {
        struct kept *next = k->next;
        fab_complete(k->op, status);
        free(k);
        k = next;
    }
}

static void forget_first(struct shm_link *s)
{
    struct waiting *first = s->stash;
    s->stash = first->next;
    if (!s->stash)
        s->stash_end = &s->stash;
    s->stashed--;
    free(first);
}

static void shm_disconnect(struct weft *w, struct fab_link *l)
{
    (void)w;
    if (l->impl)
        fail_backlog(l->impl, -ECONNRESET);
}

static void shm_release(struct weft *w, struct fab_link *l)
{
    struct shm_link *s = l->impl;
    if (!s)
        return;
    fail_backlog(s, -ECONNRESET);
    while (s->stash)
        forget_first(s);
    if (l->node != w->rank) {
        if (s->pool)
            munmap(s->pool, l->pool_bytes);
        if (s->control)
            munmap(s->control, s->control_bytes);
    }
    free(s);
    l->impl = NULL;
}

/* --- memory --- */

/* After a read-modify-write with seq_cst: x86 needs no more to order it before the next load; others do. */
static inline void fence_after_rmw(void)
{
#if defined(__x86_64__)
    atomic_signal_fence(memory_order_seq_cst);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

static BASE_COLD void ring_bell(struct fab_bell *bell)
{
    atomic_fetch_add_explicit(&bell->seq, 1, memory_order_seq_cst);
    base_futex_wake(&bell->seq, INT32_MAX);
}

static inline void wake_sleepers(struct shm_link *s)
{
    /* pairs with the waiter's sleepers++ and fence in fab_wait() */
    if (BASE_UNLIKELY(atomic_load_explicit(&s->control->bell.sleepers, memory_order_relaxed)))
        ring_bell(&s->control->bell);
}

static int shm_put(struct weft *w, struct fab_link *l, uint64_t to, const void *src, size_t len, weft_op *op)
{
    (void)w;
    struct shm_link *s = l->impl;
    copy_bytes(s->pool + to, src, len);
    fab_complete(op, 0);
    return 0;
}

static int shm_get(struct weft *w, struct fab_link *l, void *dst, uint64_t from, size_t len, weft_op *op)
{
    (void)w;
    struct shm_link *s = l->impl;
    copy_bytes(dst, s->pool + from, len);
    fab_complete(op, 0);
    return 0;
}

static int shm_atomic(struct weft *w, struct fab_link *l, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b,
                      uint64_t *old, weft_op *op)
{
    (void)w;
    struct shm_link *s = l->impl;
    uint64_t *word = (uint64_t *)(void *)(s->pool + at);
    uint64_t before = a;
    switch (kind) {
    case FAB_ADD:
        before = __atomic_fetch_add(word, a, __ATOMIC_SEQ_CST);
        break;
    case FAB_SWAP:
        before = __atomic_exchange_n(word, a, __ATOMIC_SEQ_CST);
        break;
    case FAB_CAS:
        __atomic_compare_exchange_n(word, &before, b, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        break;
    }
    if (old)
        *old = before;
    fence_after_rmw();
    wake_sleepers(s);
    fab_complete(op, 0);
    return 0;
}

static int shm_put_signal(struct weft *w, struct fab_link *l, uint64_t to, const void *src, size_t len, uint64_t signal,
                          uint64_t add, weft_op *op)
{
    (void)w;
    struct shm_link *s = l->impl;
    if (len)
        copy_bytes(s->pool + to, src, len); /* ends with a store fence when it streams */
    /* release (within seq_cst): the bytes before the word */
    __atomic_fetch_add((uint64_t *)(void *)(s->pool + signal), add, __ATOMIC_SEQ_CST);
    fence_after_rmw();
    wake_sleepers(s);
    fab_complete(op, 0);
    return 0;
}

static void shm_fence(struct weft *w, struct fab_link *l)
{
    (void)w;
    (void)l;
    atomic_thread_fence(memory_order_seq_cst);
}

static void *shm_pointer(struct weft *w, struct fab_link *l, uint64_t offset)
{
    (void)w;
    struct shm_link *s = l->impl;
    return s && s->pool ? s->pool + offset : NULL;
}

static void shm_wake(struct weft *w, struct fab_link *l)
{
    (void)w;
    atomic_thread_fence(memory_order_seq_cst); /* the caller's stores before the look at sleepers */
    wake_sleepers(l->impl);
}

/* --- messages --- */

/* The peer's progress thread sleeps, and nobody else there looks at the rings: wake it. */
static inline void nudge(struct weft *w, struct shm_link *s)
{
    struct fab_bell *bell = &s->control->bell;
    if (atomic_load_explicit(&bell->pollers, memory_order_relaxed) ||
        !atomic_load_explicit(&bell->napping, memory_order_relaxed))
        return;
    if (!atomic_exchange_explicit(&bell->napping, 0, memory_order_relaxed))
        return; /* another sender wakes it */
    if (s->link->node == w->rank)
        fab_kick(w);
    else
        (void)!send(s->link->side_fd, "w", 1, MSG_DONTWAIT | MSG_NOSIGNAL); /* full: it has been told plenty */
}

/* Have the receiver wake us when it makes room. To be followed by one more attempt. */
static void ask_for_room(struct shm_link *s)
{
    atomic_store_explicit(&s->out.ring->want_room, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* before the next look at head; pairs with the fence in take() */
}

static int keep(struct shm_link *s, uint32_t id, const void *header, size_t header_len,
                const void *payload, size_t payload_len, weft_op *op)
{
    size_t at = ring_payload_at((uint32_t)header_len), bytes = sizeof(struct kept) + at + payload_len;
    if (atomic_load_explicit(&s->backlog_bytes, memory_order_relaxed) + bytes > BACKLOG_MAX)
        return base_fail(-ENOBUFS, "node %u does not take its messages: %u MiB wait for it", s->link->node,
                         BACKLOG_MAX >> 20);
    struct kept *k = malloc(bytes);
    if (!k)
        return base_fail(-ENOMEM, "no memory to keep a message to node %u", s->link->node);
    *k = (struct kept){.op = op, .id = id, .header_len = (uint32_t)header_len, .payload_len = (uint32_t)payload_len};
    if (header_len)
        memcpy(k->body, header, header_len);
    if (payload_len)
        memcpy(k->body + at, payload, payload_len);
    if (op)
        fab_pending(op, s->link->node);
    *s->backlog_end = k;
    s->backlog_end = &k->next;
    atomic_fetch_add_explicit(&s->backlog_bytes, bytes, memory_order_relaxed);
    ask_for_room(s);
    return 0;
}

/* Send what was kept, as far as there is room; how many went. With send_lock. */
static int drain(struct shm_link *s)
{
    int n = 0;
    bool asked = false;
    while (s->backlog) {
        struct kept *k = s->backlog;
        int rc = ring_push(&s->out, k->id, k->body, k->header_len, k->body + ring_payload_at(k->header_len),
                           k->payload_len);
        if (rc == -EAGAIN && asked)
            break;
        if (rc == -EAGAIN) {
            ask_for_room(s);
            asked = true;
            continue; /* room may have come just before we asked */
        }
        if (rc)
            atomic_store_explicit(&s->broken, true, memory_order_relaxed);
        s->backlog = k->next;
        if (!s->backlog)
            s->backlog_end = &s->backlog;
        atomic_fetch_sub_explicit(&s->backlog_bytes,
                                  sizeof *k + ring_payload_at(k->header_len) + k->payload_len, memory_order_relaxed);
        fab_complete(k->op, rc ? -ECONNRESET : 0);
        free(k);
        n++;
    }
    return n;
}


static bool has_room(void *arg)
{
    struct shm_link *s = arg;
    return atomic_load_explicit(&s->backlog_bytes, memory_order_relaxed) < BACKLOG_WAIT ||
           atomic_load_explicit(&s->link->state, memory_order_acquire) != FAB_ALIVE;
}

static BASE_COLD int send_slow(struct weft *w, struct shm_link *s, uint32_t id, const void *header, size_t header_len,
                               const void *payload, size_t payload_len, weft_op *op)
{
    if (!fab_in_handler() && !has_room(s)) {
        int rc = fab_wait(w, has_room, s, fab_timeout(w, WEFT_DEFAULT));
        if (rc)
            return base_fail(rc, "message to node %u: it takes no messages (is it stopped?), %llu bytes wait for it",
                             s->link->node, (unsigned long long)atomic_load(&s->backlog_bytes));
    }
    base_spin_lock(&s->send_lock);
    int rc = keep(s, id, header, header_len, payload, payload_len, op);
    if (rc == 0)
        drain(s); /* room may have come in between */
    base_spin_unlock(&s->send_lock);
    if (rc == 0 && atomic_load_explicit(&s->link->state, memory_order_acquire) != FAB_ALIVE)
        fail_backlog(s, -ECONNRESET); /* it went just before we kept it: nobody else will look here again */
    return rc;
}

static int shm_send(struct weft *w, struct fab_link *l, uint32_t id, const void *header, size_t header_len,
                    const void *payload, size_t payload_len, weft_op *op)
{
    struct shm_link *s = l->impl;
    base_spin_lock(&s->send_lock);
    int rc = s->backlog ? -EAGAIN
                        : ring_push(&s->out, id, header, (uint32_t)header_len, payload, (uint32_t)payload_len);
    base_spin_unlock(&s->send_lock);
    if (BASE_UNLIKELY(rc)) {
        if (rc == -EPROTO) {
            atomic_store_explicit(&s->broken, true, memory_order_relaxed);
            fab_kick(w);
            return base_fail(-ECONNRESET, "node %u has written nonsense into its message ring", l->node);
        }
        rc = send_slow(w, s, id, header, header_len, payload, payload_len, op);
    } else {
        fab_complete(op, 0);
    }
    /* The word in the ring before the look at napping; pairs with the progress thread's fence before it naps. */
    atomic_thread_fence(memory_order_seq_cst);
    nudge(w, s);
    return rc;
}

static bool shm_flushed(struct weft *w, struct fab_link *l)
{
    (void)w;
    struct shm_link *s = l->impl;
    return atomic_load_explicit(&s->backlog_bytes, memory_order_acquire) == 0;
}

static bool deliver(struct weft *w, struct shm_link *s, struct ring_message *m)
{
    return fab_deliver(w, s->link->node, m->id, m->body, m->header_len, m->body + ring_payload_at(m->header_len),
                       m->payload_len);
}

static BASE_COLD void put_aside(struct shm_link *s, const struct ring_message *m)
{
    size_t body = ring_payload_at(m->header_len) + m->payload_len;
    struct waiting *copy = malloc(sizeof *copy); /* the whole: its size is checked where it is used */
    if (!copy) {
        base_log(BASE_LOG_ERROR, "a message from node %u is lost: no memory to keep it", s->link->node);
        return;
    }
    copy->next = NULL;
    copy->since = base_now_ns();
    copy->warned = false;
    memcpy(&copy->message, m, offsetof(struct ring_message, body) + body);
    *s->stash_end = copy;
    s->stash_end = &copy->next;
    s->stashed++;
}

/* Take up to `most` messages of one ring, unless so many wait for handlers already. */
static int take(struct weft *w, struct shm *shm, struct shm_link *s, unsigned most, unsigned most_stashed)
{
    struct ring_message *m = &shm->message;
    uint64_t told = s->in.head_told;
    unsigned n = 0;
    while (n < most && BASE_LIKELY(s->stashed < most_stashed)) {
        int rc = ring_pop(&s->in, m);
        if (rc == 0)
            break;
        if (rc < 0) {
            atomic_store_explicit(&s->broken, true, memory_order_relaxed);
            fab_kick(w);
            break;
        }
        n++;
        /* The program's messages keep their order: behind one that waits, all do. weft's own do not wait for them. */
        bool behind = s->stash && m->id < WEFT_HANDLERS;
        if (BASE_UNLIKELY(behind || !deliver(w, s, m)))
            put_aside(s, m);
    }
    if (BASE_UNLIKELY(s->in.head_told != told)) {
        atomic_thread_fence(memory_order_seq_cst); /* head before the look at want_room; pairs with ask_for_room() */
        if (atomic_load_explicit(&s->in.ring->want_room, memory_order_relaxed)) {
            atomic_store_explicit(&s->in.ring->want_room, 0, memory_order_relaxed);
            wake_sleepers(s);
            nudge(w, s);
        }
    }
    return (int)n;
}

/* Deliver what waits, as far as there are handlers now; how many left the stash. */
static BASE_COLD int retry_stash(struct weft *w, struct shm_link *s)
{
    int n = 0;
    for (; s->stash; n++, forget_first(s)) {
        struct waiting *first = s->stash;
        if (deliver(w, s, &first->message))
            continue;
        int64_t waits = base_now_ns() - first->since;
        if (waits >= w->deadline_ns) {
            base_log(BASE_LOG_ERROR, "a message from node %u is dropped: no handler %u was installed before the deadline",
                     s->link->node, first->message.id);
            continue;
        }
        if (waits >= WEFT_SECOND && !first->warned) {
            first->warned = true;
            base_log(BASE_LOG_WARN, "%u messages from node %u wait: no handler %u is installed (weft_handle)", s->stashed,
                     s->link->node, first->message.id);
        }
        break;
    }
    return n;
}

static int shm_progress(struct weft *w)
{
    struct shm *shm = w->shm;
    int n = 0;
    for (uint32_t i = shm->count; i-- > 0;) { /* oneself, the first, last */
        struct shm_link *s = shm->here[i];
        if (BASE_UNLIKELY(s->stash))
            n += retry_stash(w, s);
        if (ring_has(&s->in) && !atomic_load_explicit(&s->broken, memory_order_relaxed))
            n += take(w, shm, s, BATCH, STASH_MAX);
        if (BASE_UNLIKELY(atomic_load_explicit(&s->backlog_bytes, memory_order_relaxed)) && base_spin_try(&s->send_lock)) {
            int sent = drain(s);
            base_spin_unlock(&s->send_lock);
            if (sent) {
                atomic_thread_fence(memory_order_seq_cst);
                nudge(w, s);
            }
            n += sent;
        }
    }
    return n;
}

static bool shm_idle(struct weft *w)
{
    struct shm *shm = w->shm;
    for (uint32_t i = 0; i < shm->count; i++)
        if (ring_has(&shm->here[i]->in) && shm->here[i]->stashed < STASH_MAX &&
            !atomic_load_explicit(&shm->here[i]->broken, memory_order_relaxed))
            return false;
    return true;
}

/* All that a peer has sent, after it is gone. What waits for a handler waits on. */
static void shm_last_words(struct weft *w, struct fab_link *l)
{
    struct shm_link *s = l->impl;
    while (!atomic_load_explicit(&s->broken, memory_order_relaxed) && take(w, w->shm, s, RING_CELLS, UINT32_MAX) > 0)
        ;
}

static bool shm_broken(struct weft *w, struct fab_link *l)
{
    (void)w;
    struct shm_link *s = l->impl;
    return s && atomic_load_explicit(&s->broken, memory_order_relaxed);
}

struct ring *fab_shm_ring(struct weft *w, uint32_t to)
{
    struct shm_link *s = w->links[to].impl;
    return s->out.ring;
}

struct ring *fab_shm_inbound(struct weft *w, uint32_t from)
{
    struct shm_link *s = w->links[from].impl;
    return s->in.ring;
}

const struct fab_transport fab_shm = {
    .name = "shm",
    .open = shm_open_transport,
    .close = shm_close,
    .card = shm_card,
    .reaches = shm_reaches,
    .connect = shm_connect,
    .last_words = shm_last_words,
    .broken = shm_broken,
    .disconnect = shm_disconnect,
    .release = shm_release,
    .put = shm_put,
    .get = shm_get,
    .atomic = shm_atomic,
    .put_signal = shm_put_signal,
    .send = shm_send,
    .flushed = shm_flushed,
    .fence = shm_fence,
    .progress = shm_progress,
    .idle = shm_idle,
    .pointer = shm_pointer,
    .wake = shm_wake,
};
