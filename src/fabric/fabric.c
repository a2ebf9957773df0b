/* SPDX-License-Identifier: MIT
 *
 * The operations: check the address, choose the link, call its transport.
 */
#include "fabric/fabric.h"

#include <stdio.h>

/* Whether src/gpu/ must handle this address: it is in an arena (memory of a GPU), not in a pool, and this node can use arenas. */
static inline bool of_arena(const struct weft_node *w, weft_gaddr addr)
{
    return weft_gaddr_space(addr) != 0 && w->arenas;
}

static BASE_COLD int fabric_refuse(struct weft_node *w, weft_gaddr addr, uint64_t bytes)
{
    uint32_t node = weft_gaddr_node(addr), space = weft_gaddr_space(addr);
    unsigned long long a = addr, offset = weft_gaddr_offset(addr), n = bytes;
    int rc = fab_refuse_node(w, node);
    if (rc == -EFAULT)
        return base_context(rc, "address %#llx", a);
    if (rc)
        return rc;
    if (space != 0)
        return base_fail(-EFAULT, "address %#llx: node %u has no space %u; its only space is its pool, space 0", a, node, space);
    if (addr == WEFT_NULL)
        return base_fail(-EFAULT, "the address is null (WEFT_NULL), which names no memory: use an address that weft_alloc() returned");
    if (offset < w->heap_offset)
        return base_fail(-EFAULT,
                         "address %#llx: the first %llu bytes of each pool belong to weft itself: use addresses that weft_alloc() returned",
                         a, (unsigned long long)w->heap_offset);
    return base_fail(-EFAULT,
                     "address %#llx: %llu bytes at offset %llu reach beyond the pool of node %u, which has %llu bytes: use addresses "
                     "inside a buffer of weft_alloc()",
                     a, n, offset, node, (unsigned long long)w->links[node].pool_bytes);
}

/* The link to the living node whose pool contains these bytes; NULL: there is none. */
static inline struct fab_link *fabric_link(struct weft_node *w, weft_gaddr addr, uint64_t bytes)
{
    uint32_t node = weft_gaddr_node(addr);
    uint64_t offset = weft_gaddr_offset(addr);
    if (BASE_UNLIKELY(node >= w->size || weft_gaddr_space(addr) != 0))
        return NULL;
    struct fab_link *l = &w->links[node];
    if (BASE_UNLIKELY(atomic_load_explicit(&l->state, memory_order_acquire) != FAB_ALIVE || offset < w->heap_offset ||
                      offset > l->pool_bytes || bytes > l->pool_bytes - offset))
        return NULL;
    return l;
}

int fab_resolve(struct weft_node *w, weft_gaddr addr, uint64_t bytes, struct fab_link **link)
{
    *link = fabric_link(w, addr, bytes);
    return BASE_LIKELY(*link != NULL) ? 0 : base_failure(fabric_refuse(w, addr, bytes));
}

/* The link to a node; NULL if the node is not alive. */
static inline struct fab_link *living(struct weft_node *w, uint32_t node)
{
    return node < w->size && atomic_load_explicit(&w->links[node].state, memory_order_acquire) == FAB_ALIVE ? &w->links[node] : NULL;
}

int fab_system_set(struct weft_node *w, uint32_t node, uint64_t offset, uint64_t value, bool wake)
{
    struct fab_link *l = living(w, node);
    return l ? l->transport->set_system(w, l, offset, value, wake) : fab_refuse_node(w, node);
}

void fab_complete(weft_op *op, int status)
{
    /* release: what the operation wrote is visible before its status; pairs with weft_test() */
    if (op)
        __atomic_store_n(&op->status, status, __ATOMIC_RELEASE);
}

/* Whether the operation may access memory of a GPU: then src/gpu/ must handle it. */
static inline bool not_only_pools(const struct weft_node *w, const struct fab_link *l)
{
    return BASE_UNLIKELY(!l || atomic_load_explicit(&w->gpu_memory, memory_order_relaxed));
}

/* A put that may access memory of a GPU; a function of its own, so that puts between pools stay fast. */
static BASE_COLD int put_elsewhere(struct weft_node *w, struct fab_link *l, weft_gaddr dst, const void *src, size_t len, weft_op *op)
{
    if (l && !w->arenas->owns(w, src))
        return l->transport->put(w, l, weft_gaddr_offset(dst), src, len, op);
    return l || of_arena(w, dst) ? w->arenas->put(w, dst, src, len, op) : base_failure(fabric_refuse(w, dst, len));
}

static BASE_COLD int get_elsewhere(struct weft_node *w, struct fab_link *l, void *dst, weft_gaddr src, size_t len, weft_op *op)
{
    if (l && !w->arenas->owns(w, dst))
        return l->transport->get(w, l, dst, weft_gaddr_offset(src), len, op);
    return l || of_arena(w, src) ? w->arenas->get(w, dst, src, len, op) : base_failure(fabric_refuse(w, src, len));
}

int weft_put(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op)
{
    struct fab_link *l = fabric_link(w, dst, len);
    if (not_only_pools(w, l))
        return put_elsewhere(w, l, dst, src, len, op);
    return l->transport->put(w, l, weft_gaddr_offset(dst), src, len, op);
}

int weft_get(weft_node *w, void *dst, weft_gaddr src, size_t len, weft_op *op)
{
    struct fab_link *l = fabric_link(w, src, len);
    if (not_only_pools(w, l))
        return get_elsewhere(w, l, dst, src, len, op);
    return l->transport->get(w, l, dst, weft_gaddr_offset(src), len, op);
}

int weft_put_nowait(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op)
{
    bool before = fab_nowait(!fab_in_handler());
    int rc = weft_put(w, dst, src, len, op);
    fab_nowait(before);
    return rc;
}

int weft_get_nowait(weft_node *w, void *dst, weft_gaddr src, size_t len, weft_op *op)
{
    bool before = fab_nowait(!fab_in_handler());
    int rc = weft_get(w, dst, src, len, op);
    fab_nowait(before);
    return rc;
}

static BASE_COLD int atomic_elsewhere(struct weft_node *w, const struct fab_link *l, enum fab_atomic kind, weft_gaddr word, uint64_t a,
                                      uint64_t b, uint64_t *old, weft_op *op)
{
    if (!l && !of_arena(w, word))
        return base_failure(fabric_refuse(w, word, 8));
    if (word & 7)
        return base_fail(-EINVAL, "atomic at %#llx: the word must be aligned to 8 bytes", (unsigned long long)word);
    return w->arenas->atomic(w, kind, word, a, b, old, op);
}

static inline int atomic_op(weft_node *w, enum fab_atomic kind, weft_gaddr word, uint64_t a, uint64_t b, uint64_t *old, weft_op *op)
{
    struct fab_link *l = fabric_link(w, word, 8);
    if (BASE_UNLIKELY(!l || word & 7))
        return atomic_elsewhere(w, l, kind, word, a, b, old, op);
    return l->transport->atomic(w, l, kind, weft_gaddr_offset(word), a, b, old, op);
}

int weft_fetch_add(weft_node *w, weft_gaddr word, uint64_t add, uint64_t *old, weft_op *op)
{
    return atomic_op(w, FAB_ADD, word, add, 0, old, op);
}

int weft_compare_swap(weft_node *w, weft_gaddr word, uint64_t expected, uint64_t desired, uint64_t *old, weft_op *op)
{
    return atomic_op(w, FAB_CAS, word, expected, desired, old, op);
}

int weft_swap(weft_node *w, weft_gaddr word, uint64_t value, uint64_t *old, weft_op *op)
{
    return atomic_op(w, FAB_SWAP, word, value, 0, old, op);
}

/* The slow path of put-signal: an address is invalid, or is in memory of a GPU. */
static BASE_COLD int signal_elsewhere(struct weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal, uint64_t add,
                                      weft_op *op)
{
    struct fab_link *l = fabric_link(w, signal, 8);
    bool arenas = !l || (len && (weft_gaddr_space(dst) != 0 || fab_gpu_memory(w, src)));
    if (!l && !of_arena(w, signal))
        return base_failure(fabric_refuse(w, signal, 8));
    if (signal & 7)
        return base_fail(-EINVAL, "signal at %#llx: the word must be aligned to 8 bytes", (unsigned long long)signal);
    if (len && !fabric_link(w, dst, len) && !of_arena(w, dst))
        return base_failure(fabric_refuse(w, dst, len));
    if (len && weft_gaddr_node(dst) != weft_gaddr_node(signal))
        return base_fail(-EINVAL, "weft_put_signal(): the bytes go to node %u and the signal to node %u, but both must go to the same node",
                         weft_gaddr_node(dst), weft_gaddr_node(signal));
    return arenas ? w->arenas->put_signal(w, dst, src, len, signal, add, op)
                  : l->transport->put_signal(w, l, len ? weft_gaddr_offset(dst) : 0, src, len, weft_gaddr_offset(signal), add, op);
}

int weft_put_signal(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal, uint64_t add, weft_op *op)
{
    struct fab_link *l = fabric_link(w, signal, 8);
    if (BASE_UNLIKELY(not_only_pools(w, l) || signal & 7))
        return signal_elsewhere(w, dst, src, len, signal, add, op);
    if (len && BASE_UNLIKELY(fabric_link(w, dst, len) != l))
        return signal_elsewhere(w, dst, src, len, signal, add, op);
    return l->transport->put_signal(w, l, len ? weft_gaddr_offset(dst) : 0, src, len, weft_gaddr_offset(signal), add, op);
}

int fab_send(struct weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
             size_t payload_len, weft_op *op)
{
    if (BASE_UNLIKELY(node >= w->size || atomic_load_explicit(&w->links[node].state, memory_order_acquire) != FAB_ALIVE))
        return fab_refuse_node(w, node);
    if (BASE_UNLIKELY(header_len > WEFT_HEADER_MAX || payload_len > WEFT_PAYLOAD_MAX))
        return base_fail(-EMSGSIZE,
                         "message to node %u: a header of %zu bytes and a payload of %zu bytes; at most %u and %u bytes are possible; send "
                         "larger data by weft_put()",
                         node, header_len, payload_len, WEFT_HEADER_MAX, WEFT_PAYLOAD_MAX);
    struct fab_link *l = &w->links[node];
    return l->transport->send(w, l, id, header, header_len, payload, payload_len, op);
}

int weft_send(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload, size_t payload_len,
              weft_op *op)
{
    if (BASE_UNLIKELY(id >= WEFT_HANDLERS))
        return base_fail(-EINVAL, "a message is for handler %u, but handlers have numbers from 0 to %u", id, WEFT_HANDLERS - 1);
    return fab_send(w, node, id, header, header_len, payload, payload_len, op);
}

int weft_send_nowait(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
                     size_t payload_len, weft_op *op)
{
    bool before = fab_nowait(!fab_in_handler());
    int rc = weft_send(w, node, id, header, header_len, payload, payload_len, op);
    fab_nowait(before);
    return rc;
}

/* Check operations on memory of GPUs first, because their last steps may be operations that the transport must flush, too. */
static inline bool flushed_all(struct weft_node *w, struct fab_link *l, struct fab_flush *f)
{
    if (BASE_UNLIKELY(atomic_load_explicit(&w->arenas_used, memory_order_relaxed)) && !w->arenas->flushed(w, l->node, f))
        return false;
    return l->transport->flushed(w, l, f);
}

/* The first error of the operations on memory of GPUs that were started without an op. */
static inline int arena_failure(struct weft_node *w, uint32_t node)
{
    return BASE_UNLIKELY(atomic_load_explicit(&w->arenas_used, memory_order_relaxed)) ? w->arenas->failure(w, node) : 0;
}

int fab_flush_look(struct weft_node *w, uint32_t node, struct fab_flush *f)
{
    struct fab_link *l = living(w, node);
    if (!l)
        return fab_refuse_node(w, node);
    if (!flushed_all(w, l, f))
        return -EINPROGRESS;
    int rc = arena_failure(w, node);
    if (rc)
        return rc;
    return atomic_exchange_explicit(&l->unsure, false, memory_order_relaxed) ? -ECONNABORTED : 0;
}

struct flush_wait {
    struct weft_node *w;
    struct fab_link *l;
    struct fab_flush f;
};

static bool flushed(void *arg)
{
    struct flush_wait *f = arg;
    return atomic_load_explicit(&f->l->state, memory_order_acquire) != FAB_ALIVE || flushed_all(f->w, f->l, &f->f);
}

int fab_flush(struct weft_node *w, uint32_t node, int64_t timeout_ns)
{
    if (node >= w->size || atomic_load_explicit(&w->links[node].state, memory_order_acquire) != FAB_ALIVE)
        return fab_refuse_node(w, node);
    struct flush_wait f = {.w = w, .l = &w->links[node]};
    if (!flushed(&f)) {
        int rc = fab_wait(w, flushed, &f, fab_timeout(w, timeout_ns));
        if (rc == -ETIMEDOUT)
            return base_fail(rc,
                             "the flush of operations to node %u was not complete before the deadline, because the node accepts no more "
                             "work (is its process stopped?); flush again, or allow more time",
                             node);
        if (rc)
            return rc;
    }
    if (atomic_load_explicit(&f.l->state, memory_order_acquire) != FAB_ALIVE)
        return fab_refuse_node(w, node);
    atomic_thread_fence(memory_order_seq_cst); /* the caller's stores into shared pools become visible before its next operations */
    return 0;
}

int weft_flush(weft_node *w, uint32_t node, int64_t timeout_ns)
{
    int rc = fab_flush(w, node, timeout_ns);
    if (BASE_UNLIKELY(rc))
        return rc;
    if (BASE_UNLIKELY(atomic_exchange_explicit(&w->links[node].unsure, false, memory_order_relaxed)))
        return base_fail(-ECONNABORTED,
                         "flush of operations to node %u: the link broke, or a device refused a request, so an operation that was started "
                         "without an op may not have happened; to learn which one, pass an op to each operation",
                         node);
    rc = arena_failure(w, node);
    return rc ? base_fail(rc,
                          "flush of operations to node %u: an operation on a GPU's memory that was started without an op has failed: %s; "
                          "to learn which one, pass an op to each operation",
                          node, base_strerror(rc))
              : 0;
}

struct arena_wait {
    struct weft_node *w;
    uint32_t node;
    struct fab_flush f;
};

static bool arenas_flushed(void *arg)
{
    struct arena_wait *a = arg;
    return a->w->arenas->flushed(a->w, a->node, &a->f);
}

/* Operations after the fence must not overtake operations on memory of a GPU, which take several steps. So the fence waits until these are
 * complete. */
static BASE_COLD int fence_arenas(struct weft_node *w, uint32_t node)
{
    struct arena_wait a = {.w = w, .node = node};
    if (arenas_flushed(&a))
        return 0;
    int rc = fab_wait_for_room(w, arenas_flushed, &a);
    return rc == -ETIMEDOUT                   ? base_fail(rc,
                                                          "fence to node %u: operations on GPUs' memory were not complete before the default deadline; "
                                                                            "call weft_fence() again, or set a longer WEFT_DEADLINE",
                                                          node)
           : rc == -ENOBUFS || rc == -EDEADLK ? base_fail(-EDEADLK,
                                                          "fence to node %u: it would wait for operations on GPUs' memory, and a handler "
                                                          "must not wait; call weft_fence() in another thread",
                                                          node)
                                              : rc;
}

int weft_fence(weft_node *w, uint32_t node)
{
    if (node >= w->size || atomic_load_explicit(&w->links[node].state, memory_order_acquire) != FAB_ALIVE)
        return fab_refuse_node(w, node);
    if (BASE_UNLIKELY(atomic_load_explicit(&w->arenas_used, memory_order_relaxed))) {
        int rc = fence_arenas(w, node);
        if (rc)
            return rc;
    }
    w->links[node].transport->fence(w, &w->links[node]);
    return 0;
}

int fab_fence_look(struct weft_node *w, uint32_t node, struct fab_flush *f)
{
    struct fab_link *l = living(w, node);
    if (!l)
        return fab_refuse_node(w, node);
    if (BASE_UNLIKELY(atomic_load_explicit(&w->arenas_used, memory_order_relaxed)) && !w->arenas->flushed(w, node, f))
        return -EAGAIN;
    l->transport->fence(w, l);
    return 0;
}

int weft_test(weft_node *w, weft_op *op)
{
    (void)w;
    int status = __atomic_load_n(&op->status, __ATOMIC_ACQUIRE); /* pairs with fab_complete() */
    return status == 1 ? -EINPROGRESS : status;
}

static bool op_done(void *arg)
{
    weft_op *op = arg;
    return __atomic_load_n(&op->status, __ATOMIC_ACQUIRE) != 1;
}

int weft_wait(weft_node *w, weft_op *op, int64_t timeout_ns)
{
    if (!op_done(op)) { /* the op is often complete already: check before setting up a wait */
        if (fab_polled(w) % WAITS_PER_PROGRESS || fab_in_handler())
            fab_service(w);
        else
            fab_progress(w);
    }
    if (BASE_UNLIKELY(!op_done(op))) {
        int rc = fab_wait(w, op_done, op, fab_timeout(w, timeout_ns));
        if (rc == -ETIMEDOUT)
            return base_fail(rc, "an operation to node %u was not complete before the deadline; wait again, or allow more time", op->node);
        if (rc)
            return rc;
    }
    int status = op->status;
    if (BASE_UNLIKELY(status == -ECONNRESET))
        return fab_refuse_node(w, op->node)
                   ? base_context(status, "the operation has failed")
                   : base_fail(status, "operation to node %u: the node has left or died; go on with the nodes that remain", op->node);
    if (BASE_UNLIKELY(status < 0))
        return base_fail(status, "operation to node %u: %s; the operation may or may not have happened", op->node,
                         status == -ENETDOWN       ? "no route leads to the node now; operations work again when a cable is back"
                         : status == -ECONNABORTED ? "the link broke while the operation was under way, or a device refused the operation"
                                                   : base_strerror(status));
    return status;
}

void *weft_ptr(weft_node *w, weft_gaddr addr, size_t bytes)
{
    uint32_t node = weft_gaddr_node(addr);
    uint64_t offset = weft_gaddr_offset(addr);
    if (node >= w->size || weft_gaddr_space(addr) != 0 || offset < w->heap_offset)
        return NULL;
    struct fab_link *l = &w->links[node];
    if (!l->transport || offset > l->pool_bytes || bytes > l->pool_bytes - offset)
        return NULL;
    return l->transport->pointer(w, l, offset);
}

void *fab_no_pointer(struct weft_node *w, struct fab_link *l, uint64_t offset)
{
    (void)w, (void)l, (void)offset;
    return NULL;
}

int weft_link_stat(weft_node *w, uint32_t node, weft_link_stats *out, size_t bytes)
{
    struct fab_link *l = living(w, node);
    if (!l)
        return fab_refuse_node(w, node);
    weft_link_stats stats = {.via = node};
    snprintf(stats.transport, sizeof stats.transport, "%s", l->transport->name);
    if (l->transport->stat)
        l->transport->stat(w, l, &stats);
    if (w->arenas)
        w->arenas->stat(w, node, &stats);
    base_give_struct(out, bytes, &stats, sizeof stats);
    return 0;
}

struct word_wait {
    const uint64_t *word;
    uint64_t value, seen;
    weft_cmp cmp;
    bool met;
    struct fab_patience patience;
};

static bool compare(struct word_wait *c)
{
    uint64_t v = __atomic_load_n(c->word, __ATOMIC_ACQUIRE); /* pairs with the signal's release */
    c->seen = v;
    switch (c->cmp) {
    case WEFT_EQ: return v == c->value;
    case WEFT_NE: return v != c->value;
    case WEFT_LT: return v < c->value;
    case WEFT_LE: return v <= c->value;
    case WEFT_GT: return v > c->value;
    case WEFT_GE: return v >= c->value;
    }
    return false;
}

/* Whether the wait must look again: the word has the wanted value, or a node has joined, left or died. */
static bool word_or_loss(void *arg)
{
    struct word_wait *c = arg;
    c->met = compare(c);
    return c->met || weft_epoch(c->patience.w) != c->patience.epoch;
}

static BASE_COLD void say_word(const struct fab_patience *p, weft_gaddr word, uint64_t seen)
{
    char what[64], whom[256], living[160];
    fab_name_living(p->w, living, sizeof living);
    snprintf(what, sizeof what, "wait for the word at %#llx", (unsigned long long)word);
    snprintf(whom, sizeof whom, "a change of its value, which is %llu; %s", (unsigned long long)seen, living);
    fab_patience_say(p, what, whom);
}

static int fabric_wait_for_word(struct word_wait *c, weft_gaddr word)
{
    struct fab_patience *p = &c->patience;
    for (;;) {
        int rc = fab_wait(p->w, word_or_loss, c, fab_patience_next(p));
        if (c->met || (rc && rc != -ETIMEDOUT))
            return rc;
        rc = fab_patience_check(p);
        if (rc == -ETIMEDOUT)
            return base_fail(rc, "the word at %#llx was still %llu at the deadline of the wait; wait again, or allow more time",
                             (unsigned long long)word, (unsigned long long)c->seen);
        if (rc)
            return base_fail(rc, "the wait for a change of the word at %#llx, which is still %llu, has ended because %s",
                             (unsigned long long)word, (unsigned long long)c->seen, fab_patience_loss(p));
        if (fab_patience_due(p))
            say_word(p, word, c->seen);
    }
}

int weft_wait_until(weft_node *w, weft_gaddr word, weft_cmp cmp, uint64_t value, uint64_t *seen, int64_t timeout_ns)
{
    struct fab_link *l;
    int rc = fab_resolve(w, word, 8, &l);
    if (rc)
        return rc;
    if (weft_gaddr_node(word) != w->rank || (word & 7) || (unsigned)cmp > WEFT_GE)
        return base_fail(
            -EINVAL, "weft_wait_until() at %#llx: the word must be aligned to 8 bytes and in this node's pool, and cmp must be a weft_cmp",
            (unsigned long long)word);
    struct word_wait c = {.word = (const uint64_t *)(const void *)(w->pool_base + weft_gaddr_offset(word)), .value = value, .cmp = cmp};
    if (!compare(&c)) {
        fab_patience_begin(&c.patience, w, FAB_ANY, timeout_ns);
        rc = fabric_wait_for_word(&c, word);
    }
    if (seen)
        *seen = c.seen;
    return rc;
}
