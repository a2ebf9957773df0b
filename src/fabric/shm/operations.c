/* SPDX-License-Identifier: MIT
 *
 * Puts, gets and atomics. The caller's own loads and stores do them, so they are complete when the call returns.
 */
#include "fabric/shm/shm.h"

#include "fabric/shm/copy.h"

void shm_ring_bell(struct fab_bell *bell)
{
    atomic_fetch_add_explicit(&bell->seq, 1, memory_order_seq_cst);
    base_futex_wake(&bell->seq, INT32_MAX);
}

static void copy_much(struct weft_node *w, void *dst, const void *src, size_t len)
{
    struct shm *s = w->shm;
    struct copy_team *team =
        /* acquire: pairs with the release in shm_settle() */
        len >= COPY_TEAM_LEAST ? atomic_load_explicit(&s->team, memory_order_acquire) : NULL;
    if (team)
        copy_by_team(team, dst, src, len);
    else
        copy_large(dst, src, len);
}

static inline void copy(struct weft_node *w, void *dst, const void *src, size_t len)
{
    if (BASE_LIKELY(len < COPY_LARGE))
        fab_copy_little(dst, src, len);
    else
        copy_much(w, dst, src, len);
}

int shm_put(struct weft_node *w, struct fab_link *l, uint64_t to, const void *src, size_t len, weft_op *op)
{
    struct shm_link *s = l->impl;
    copy(w, s->pool + to, src, len);
    fab_complete(op, 0);
    return 0;
}

int shm_get(struct weft_node *w, struct fab_link *l, void *dst, uint64_t from, size_t len, weft_op *op)
{
    struct shm_link *s = l->impl;
    copy(w, dst, s->pool + from, len);
    fab_fence_after_get();
    fab_complete(op, 0);
    return 0;
}

int shm_atomic(struct weft_node *w, struct fab_link *l, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, uint64_t *old,
               weft_op *op)
{
    (void)w;
    struct shm_link *s = l->impl;
    uint64_t *word = (uint64_t *)(void *)(s->pool + at);
    uint64_t before;
    if (fab_atomic_do(kind, word, a, b, &before) && old)
        *old = before;
    fab_fence_after_rmw();
    shm_wake_sleepers(s);
    fab_complete(op, 0);
    return 0;
}

int shm_put_signal(struct weft_node *w, struct fab_link *l, uint64_t to, const void *src, size_t len, uint64_t signal, uint64_t add,
                   weft_op *op)
{
    struct shm_link *s = l->impl;
    if (len)
        copy(w, s->pool + to, src, len); /* non-temporal stores end with a fence */
    /* release (part of seq_cst): the data is visible before the signal */
    __atomic_fetch_add((uint64_t *)(void *)(s->pool + signal), add, __ATOMIC_SEQ_CST);
    fab_fence_after_rmw();
    shm_wake_sleepers(s);
    fab_complete(op, 0);
    return 0;
}

int shm_set_system(struct weft_node *w, struct fab_link *l, uint64_t at, uint64_t value, bool wake)
{
    struct shm_link *s = l->impl;
    if (wake)
        return shm_atomic(w, l, FAB_SWAP, at, value, 0, NULL, NULL);
    /* relaxed: the caller orders this store by a fence or a barrier that follows */
    __atomic_store_n((uint64_t *)(void *)(s->pool + at), value, __ATOMIC_RELAXED);
    return 0;
}

void shm_fence(struct weft_node *w, struct fab_link *l)
{
    (void)w;
    (void)l;
    atomic_thread_fence(memory_order_seq_cst);
}

void *shm_pointer(struct weft_node *w, struct fab_link *l, uint64_t offset)
{
    (void)w;
    struct shm_link *s = l->impl;
    return s && s->pool ? s->pool + offset : NULL;
}

void shm_wake(struct weft_node *w, struct fab_link *l)
{
    (void)w;
    atomic_thread_fence(memory_order_seq_cst); /* orders the caller's stores before the load of `sleepers` */
    shm_wake_sleepers(l->impl);
}
