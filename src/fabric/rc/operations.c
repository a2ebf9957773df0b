/* SPDX-License-Identifier: MIT
 *
 * The operations of the transport. An operation that fits into one request is posted at once if there is room. Others are queued
 * (backlog.c).
 *
 * The home of a word is the node that has the word in its pool. If atomics of the home's device and of its processor are atomic with
 * respect to each other, the device executes add and compare-and-swap. Otherwise, and always for swap, a frame asks the home's processor.
 */
#include "fabric/rc/rc.h"

#include <stdlib.h>
#include <string.h>

/* --- puts and gets --- */

BASE_INLINE int transfer(struct weft_node *w, struct fab_link *link, bool put, uint64_t remote, uint8_t *local,
                         const struct verbs_regions *memory, size_t len, weft_op *op)
{
    struct rc_link *l = link->impl;
    if (len == 0) {
        fab_complete(op, 0);
        return 0;
    }
    int err = 0;
    if (BASE_UNLIKELY(__atomic_load_n(&l->lane[RC_MAIN].bytes, __ATOMIC_RELAXED) >= RC_BACKLOG_PUTS))
        err = rc_wait_for_room(l, RC_MAIN, RC_BACKLOG_PUTS);
    if (err)
        return err;
    base_spin_lock(&l->lock);
    if (BASE_UNLIKELY(!rc_has_slot(l) || l->lane[RC_MAIN].backlog)) {
        /* No room: handle completions, which may make room, so that the operation need not be queued. */
        base_spin_unlock(&l->lock);
        fab_polled(w);
        fab_service(w);
        base_spin_lock(&l->lock);
    }
    if (l->closed) {
        base_spin_unlock(&l->lock);
        return rc_gone(l);
    }
    if (len < l->stripe && rc_clear_way(l, RC_MAIN) && rc_post_whole(l, put, remote, local, memory, len, op)) {
        if (op) /* completions are handled under this lock, so the op cannot complete earlier; a failed start must not change the op */
            fab_pending(op, link->node);
        base_spin_unlock(&l->lock);
        return 0;
    }
    struct rc_work what = {
        .kind = put ? RC_WORK_PUT : RC_WORK_GET, .op = op, .remote = remote, .local = local, .memory = memory, .len = len};
    err = rc_keep(l, RC_MAIN, &what);
    base_spin_unlock(&l->lock);
    return err;
}

int rc_put(struct weft_node *w, struct fab_link *link, uint64_t to, const void *src, size_t len, weft_op *op)
{
    return transfer(w, link, true, to, (uint8_t *)(uintptr_t)src, NULL, len, op);
}

int rc_get(struct weft_node *w, struct fab_link *link, void *dst, uint64_t from, size_t len, weft_op *op)
{
    return transfer(w, link, false, from, dst, NULL, len, op);
}

int rc_transfer_memory(struct weft_node *w, struct fab_link *link, bool put, const struct verbs_regions *memory, uint64_t remote,
                       uint8_t *local, size_t len, weft_op *op)
{
    return transfer(w, link, put, remote, local, memory, len, op);
}

/* --- frames --- */

static bool can_ask(void *arg)
{
    struct rc_link *l = arg;
    return __atomic_load_n(&l->asked, __ATOMIC_RELAXED) - __atomic_load_n(&l->answered, __ATOMIC_ACQUIRE) < RC_ASKS ||
           atomic_load_explicit(&l->link->state, memory_order_acquire) != FAB_ALIVE;
}

/* Takes the link's lock. With `ask`, first waits until one more request may be sent to the peer's processor. After an error the lock is not
 * held. */
static int lock_for(struct rc_link *l, bool ask)
{
    for (;;) {
        base_spin_lock(&l->lock);
        if (l->closed) {
            base_spin_unlock(&l->lock);
            return rc_gone(l);
        }
        if (!ask || l->asked - l->answered < RC_ASKS)
            return 0;
        base_spin_unlock(&l->lock);
        if (fab_in_handler())
            return base_fail(-ENOBUFS, "node %u has not answered %u operations yet, which is the most: start fewer operations in a handler",
                             l->link->node, RC_ASKS);
        int err = fab_wait(l->w, can_ask, l, fab_timeout(l->w, WEFT_TIMEOUT_DEFAULT));
        if (err)
            return base_fail(err, "node %u accepts no more work (is its process stopped?): %u operations wait for it", l->link->node,
                             RC_ASKS);
    }
}

int rc_frame_send(struct rc_link *l, struct rc_frame *head, const void *header, const void *payload, bool ask, uint64_t *old, weft_op *op)
{
    uint8_t little[RC_LITTLE], *body = little;
    struct rc_work *k = NULL;
    uint32_t at = (uint32_t)sizeof *head, payload_at = at + ((head->header_len + 7u) & ~7u);
    uint32_t bytes = payload_at + head->payload_len;
    enum rc_lane lane = rc_lane_of(head->kind);
    int err = rc_wait_for_room(l, lane, RC_BACKLOG_WAIT);
    if (err)
        return err;
    if (bytes > sizeof little) {
        k = rc_work_make(RC_WORK_FRAME, bytes);
        if (!k)
            return base_fail(-ENOMEM, "rc: no memory to build a message to node %u" BASE_MEMORY_HINT, l->link->node);
        body = k->body;
    }
    err = lock_for(l, ask);
    if (err)
        goto out;
    head->token = ask ? (uint32_t)(l->asked % RC_ASKS) : RC_NO_ASK;
    memcpy(body, head, sizeof *head);
    if (head->header_len)
        memcpy(body + at, header, head->header_len);
    if (head->payload_len)
        memcpy(body + payload_at, payload, head->payload_len);
    /* A signal must arrive after the data that it announces. The data may be striped over several rails, and rails have no common order. */
    uint64_t stripes = head->kind == RC_SIGNAL ? l->lane[RC_MAIN].begun : l->fence_stripes;
    if (stripes > l->stripes_done || !rc_clear_way(l, lane) || !rc_post_frame(l, body, bytes, l->fences, &k)) {
        if (!k && (k = rc_work_make(RC_WORK_FRAME, bytes)) != NULL)
            memcpy(k->body, body, bytes);
        if (k) {
            rc_enqueue(l, lane, k, stripes);
            rc_push_locked(l);
            k = NULL;
        } else {
            err = base_fail(-ENOMEM, "rc: no memory to queue a message to node %u" BASE_MEMORY_HINT, l->link->node);
        }
    }
    if (!err && ask) {
        l->asks[head->token] = (struct rc_ask){.op = op, .old = old};
        if (op)
            fab_pending(op, l->link->node);
        l->asked++;
    }
    base_spin_unlock(&l->lock);
    if (!err && !ask)
        fab_complete(op, 0);
out:
    free(k);
    return err;
}

/* Sends a frame instead of an RDMA write, because a thread of the peer may sleep until the word changes. The peer's processor writes the
 * word, and then wakes that thread. */
int rc_set_system(struct weft_node *w, struct fab_link *link, uint64_t at, uint64_t value, bool wake)
{
    struct rc_frame f = {.kind = RC_STORE, .offset = at, .a = value};
    (void)w, (void)wake;
    return rc_frame_send(link->impl, &f, NULL, NULL, false, NULL, NULL);
}

int rc_put_signal(struct weft_node *w, struct fab_link *link, uint64_t to, const void *src, size_t len, uint64_t signal, uint64_t add,
                  weft_op *op)
{
    struct rc_frame f = {.kind = RC_SIGNAL, .offset = signal, .a = add};
    if (len) {
        int err = rc_put(w, link, to, src, len, NULL); /* arrives before the signal, because both use the same queue pair */
        if (err)
            return err;
    }
    return rc_frame_send(link->impl, &f, NULL, NULL, true, NULL, op);
}

int rc_send(struct weft_node *w, struct fab_link *link, uint32_t id, const void *header, size_t header_len, const void *payload,
            size_t payload_len, weft_op *op)
{
    (void)w;
    struct rc_frame f = {.kind = RC_MESSAGE, .id = (uint16_t)id, .header_len = (uint16_t)header_len, .payload_len = (uint16_t)payload_len};
    return rc_frame_send(link->impl, &f, header, payload, false, NULL, op);
}

/* --- atomics --- */

static int native(struct rc_link *l, const struct rc_work *what)
{
    int err = rc_wait_for_room(l, RC_MAIN, RC_BACKLOG_PUTS), n = 0;
    if (err)
        return err;
    base_spin_lock(&l->lock);
    if (l->closed) {
        err = rc_gone(l);
    } else {
        struct rc_work now = *what;
        now.fences = l->fences;
        if (rc_clear_way(l, RC_MAIN))
            n = rc_post_atomic(l, &now, what->op);
        if (n == 0)
            err = rc_keep(l, RC_MAIN, what);
        else if (what->op) /* mark the op before the lock is released, as in transfer() */
            fab_pending(what->op, l->link->node);
    }
    base_spin_unlock(&l->lock);
    return err;
}

int rc_atomic(struct weft_node *w, struct fab_link *link, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, uint64_t *old,
              weft_op *op)
{
    struct rc_link *l = link->impl;
    (void)w;
    if (l->has_atomics && kind != FAB_SWAP) {
        struct rc_work k = {.kind = RC_WORK_ATOMIC, .what = kind, .op = op, .remote = at, .local = (uint8_t *)old, .a = a, .b = b};
        return native(l, &k);
    }
    struct rc_frame f = {.kind = RC_ATOMIC, .what = (uint8_t)kind, .offset = at, .a = a, .b = b};
    return rc_frame_send(l, &f, NULL, NULL, true, old, op);
}
