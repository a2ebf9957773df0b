/* SPDX-License-Identifier: MIT
 *
 * Operations that are started and waited for in one call. The operation may last longer than the wait, and then the caller's stack frame is
 * gone. So the op, the former value of a word and a little data are in memory of the node (struct fab_now). This memory is reused when the
 * operation has ended, and freed when the transports are closed.
 */
#include "fabric/fabric.h"

#include <stdlib.h>
#include <string.h>

struct fab_now {
    struct fab_now *next;
    weft_op op;
    uint64_t old;
    uint8_t bytes[FAB_NOW_BYTES];
};

static bool ended(const struct fab_now *n)
{
    return __atomic_load_n(&n->op.status, __ATOMIC_ACQUIRE) != 1; /* pairs with fab_complete() */
}

static struct fab_now *now_take(struct weft_node *w)
{
    base_spin_lock(&w->now_lock);
    struct fab_now **at = &w->now;
    while (*at && !ended(*at)) /* the list has the operations whose callers no longer wait: reuse the memory of one that has ended */
        at = &(*at)->next;
    struct fab_now *n = *at;
    if (n)
        *at = n->next;
    base_spin_unlock(&w->now_lock);
    if (!n && !(n = malloc(sizeof *n)))
        base_fail(-ENOMEM, "no memory for an operation" BASE_MEMORY_HINT);
    return n;
}

static void now_give(struct weft_node *w, struct fab_now *n)
{
    base_spin_lock(&w->now_lock);
    n->next = w->now;
    w->now = n;
    base_spin_unlock(&w->now_lock);
}

void fab_now_free(struct weft_node *w)
{
    while (w->now) {
        struct fab_now *n = w->now;
        w->now = n->next;
        free(n);
    }
}

bool fab_at_once(const struct weft_node *w, weft_gaddr where)
{
    uint32_t node = weft_gaddr_node(where);
    const struct fab_transport *t = node < w->size ? w->links[node].transport : NULL;
    return !t || (t->at_once && weft_gaddr_space(where) == 0);
}

/* `call`: the name of the function that the program has called, for the error text. */
static int now_begin(struct weft_node *w, const char *call, struct fab_now **n)
{
    *n = NULL;
    if (fab_in_handler())
        return base_fail(-EDEADLK,
                         "%s: a handler must not wait, because no messages arrive while it runs; the operation was not started: call it in "
                         "another thread",
                         call);
    *n = now_take(w);
    return *n ? 0 : -ENOMEM;
}

/* `rc`: the result of the call that started the swap. */
static int now_end(struct weft_node *w, struct fab_now *n, int rc, int64_t timeout_ns)
{
    if (rc)
        n->op.status = rc; /* the operation was not started */
    else
        rc = weft_wait(w, &n->op, timeout_ns);
    return rc;
}

static bool in_pool(const struct weft_node *w, const void *p)
{
    return (uintptr_t)p - (uintptr_t)w->pool_base < w->pool_bytes;
}

int fab_system_get(struct weft_node *w, uint32_t node, uint64_t offset, uint64_t *value, int64_t timeout_ns)
{
    if (!fab_alive(w, node))
        return fab_refuse_node(w, node);
    struct fab_link *l = &w->links[node];
    const uint64_t *word = l->transport->pointer(w, l, offset);
    if (word) {
        *value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        return 0;
    }
    struct fab_now *n;
    int rc = now_begin(w, "reading a word of another node", &n);
    if (rc)
        return rc;
    rc = now_end(w, n, l->transport->get(w, l, n->bytes, offset, sizeof *value, &n->op), timeout_ns);
    if (rc == 0)
        memcpy(value, n->bytes, sizeof *value);
    now_give(w, n);
    return rc;
}

int weft_put_blocking(weft_node *w, weft_gaddr dst, const void *src, size_t len)
{
    if (fab_at_once(w, dst) && !fab_gpu_memory(w, src))
        return weft_put(w, dst, src, len, NULL);
    struct fab_now *n;
    int rc = now_begin(w, "weft_put_blocking()", &n);
    if (rc)
        return rc;
    if (len <= sizeof n->bytes && !in_pool(w, src) && !fab_gpu_memory(w, src)) {
        memcpy(n->bytes, src, len);
        src = n->bytes;
    }
    rc = now_end(w, n, weft_put(w, dst, src, len, &n->op), WEFT_TIMEOUT_DEFAULT);
    now_give(w, n);
    return rc;
}

int weft_get_blocking(weft_node *w, void *dst, weft_gaddr src, size_t len)
{
    if (fab_at_once(w, src) && !fab_gpu_memory(w, dst))
        return weft_get(w, dst, src, len, NULL);
    struct fab_now *n;
    int rc = now_begin(w, "weft_get_blocking()", &n);
    if (rc)
        return rc;
    bool little = len <= sizeof n->bytes && !in_pool(w, dst) && !fab_gpu_memory(w, dst);
    rc = now_end(w, n, weft_get(w, little ? n->bytes : dst, src, len, &n->op), WEFT_TIMEOUT_DEFAULT);
    if (rc == 0 && little)
        memcpy(dst, n->bytes, len);
    now_give(w, n);
    return rc;
}

static int atomic_now(weft_node *w, const char *call, enum fab_atomic what, weft_gaddr word, uint64_t a, uint64_t b, uint64_t *old)
{
    struct fab_now *n = NULL;
    weft_op *op = NULL;
    uint64_t *to = old;
    if (!fab_at_once(w, word)) {
        int rc = now_begin(w, call, &n);
        if (rc)
            return rc;
        op = &n->op;
        to = &n->old;
    }
    int rc = what == FAB_ADD    ? weft_fetch_add(w, word, a, to, op)
             : what == FAB_SWAP ? weft_swap(w, word, a, to, op)
                                : weft_compare_swap(w, word, a, b, to, op);
    if (n) {
        rc = now_end(w, n, rc, WEFT_TIMEOUT_DEFAULT);
        if (rc == 0 && old)
            *old = n->old;
        now_give(w, n);
    }
    return rc;
}

int fab_swap_begin(struct weft_node *w, weft_gaddr word, uint64_t expected, uint64_t desired, struct fab_now **out)
{
    struct fab_now *n = now_take(w);
    if (!n)
        return -ENOMEM;
    int rc = weft_compare_swap(w, word, expected, desired, &n->old, &n->op);
    if (rc) {
        n->op.status = rc; /* the operation was not started */
        now_give(w, n);
        return rc;
    }
    *out = n;
    return 0;
}

int fab_swap_wait(struct weft_node *w, struct fab_now **swap, uint64_t *old, int64_t timeout_ns)
{
    struct fab_now *n = *swap;
    int rc = ended(n) || !fab_in_handler() ? weft_wait(w, &n->op, timeout_ns) : -EINPROGRESS;
    if (!ended(n))
        return rc == -ETIMEDOUT ? -EINPROGRESS : rc;
    if (rc == -ETIMEDOUT || rc == -EINPROGRESS)
        rc = n->op.status; /* the operation ended just after the wait had timed out */
    if (rc == 0)
        *old = n->old;
    fab_swap_leave(w, swap);
    return rc;
}

void fab_swap_leave(struct weft_node *w, struct fab_now **swap)
{
    now_give(w, *swap);
    *swap = NULL;
}

int weft_fetch_add_blocking(weft_node *w, weft_gaddr word, uint64_t add, uint64_t *old)
{
    return atomic_now(w, "weft_fetch_add_blocking()", FAB_ADD, word, add, 0, old);
}

int weft_compare_swap_blocking(weft_node *w, weft_gaddr word, uint64_t expected, uint64_t desired, uint64_t *old)
{
    return atomic_now(w, "weft_compare_swap_blocking()", FAB_CAS, word, expected, desired, old);
}

int weft_swap_blocking(weft_node *w, weft_gaddr word, uint64_t value, uint64_t *old)
{
    return atomic_now(w, "weft_swap_blocking()", FAB_SWAP, word, value, 0, old);
}
