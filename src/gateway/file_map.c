/* SPDX-License-Identifier: MIT
 *
 * The asker's side of mapping. On the gateway's host, a view points into the gateway's pool. If pieces are mapped in sequence, the next
 * pieces are requested in advance, so that the caller need not wait for an answer each time. On another host, a piece is copied to this
 * node's pool.
 */
#include "gateway/file_handle.h"

#include <stdlib.h>
#include <string.h>

/* The answer to a request to map that this node has cancelled: ends the lease. */
static void mapped_late(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    if (r->status == 0)
        file_post_return(g, a->node, r->word[2]);
}

/* Copies the piece to this node's pool. -EAGAIN: the lease ended before the copy was complete. */
static int map_copy(weft_file *f, weft_gaddr at, uint32_t bytes, int64_t until, weft_gaddr *out)
{
    weft_node *w = f->g->w;
    struct file_copy *c = malloc(sizeof *c);
    int rc = c ? weft_alloc(w, bytes, &c->at) : base_fail(-ENOMEM, "%s: no memory to map a piece", f->path);
    if (rc) {
        free(c);
        return rc;
    }
    rc = weft_get_blocking(w, weft_ptr(w, c->at, bytes), at, bytes);
    if (!rc && base_now_ns() >= until)
        rc = -EAGAIN;
    if (rc) {
        if (rc != -ETIMEDOUT) /* after a time-out the get may still write to the memory, so it is never freed */
            weft_free(w, c->at);
        free(c);
        return rc;
    }
    c->bytes = bytes;
    fab_use(w, FAB_USE_FILES, bytes);
    base_spin_lock(&f->g->lock);
    c->next = f->copies;
    f->copies = c;
    base_spin_unlock(&f->g->lock);
    *out = c->at;
    return 0;
}

/* --- mapping ahead --- */

/* Reserves the slot of a piece for this thread. NULL: the piece was not requested in advance. */
static struct file_slot *map_claim(weft_file *f, uint64_t index)
{
    struct file_slot *found = NULL;
    pthread_mutex_lock(&f->maps);
    for (unsigned i = 0; i < FILE_MAP_SLOTS && !found; i++) {
        struct file_slot *s = &f->map_slot[i];
        if (file_slot_state(s) != SLOT_FREE && !s->claimed && s->index == index)
            found = s;
    }
    if (found)
        found->claimed = true;
    pthread_mutex_unlock(&f->maps);
    return found;
}

/* Returns a free slot for a piece; NULL: the piece has a slot already, or none is free. */
static struct file_slot *map_slot_for(weft_file *f, uint64_t index)
{
    struct file_slot *to = NULL;
    for (unsigned i = 0; i < FILE_MAP_SLOTS; i++) {
        struct file_slot *s = &f->map_slot[i];
        bool used = file_slot_state(s) != SLOT_FREE;
        if (used && s->index == index)
            return NULL;
        to = used ? to : s;
    }
    return to;
}

/* Called after piece `index` was mapped: requests the next pieces in advance if the piece before was mapped last. */
static void map_ahead(weft_file *f, uint64_t index)
{
    const uint64_t size = file_size(f), pieces = file_pieces(size);
    pthread_mutex_lock(&f->maps);
    bool next = f->mapped != UINT64_MAX && f->mapped + 1 == index;
    f->mapped = index;
    for (unsigned i = 0; i < FILE_MAP_SLOTS; i++) { /* frees the slots of pieces that are not among the next ones */
        struct file_slot *s = &f->map_slot[i];
        if (file_slot_state(s) != SLOT_FREE && !s->claimed && s->index - index - 1 >= FILE_MAP_AHEAD)
            file_map_slot_leave(f, s);
    }
    for (uint64_t i = index + 1; next && i <= index + FILE_MAP_AHEAD && i < pieces; i++) {
        struct file_slot *s = map_slot_for(f, i);
        if (!s)
            continue;
        weft_request r = file_request(f, FILE_LEASE);
        r.flags = FILE_MAPS | FILE_AHEAD;
        r.arg[0] = i;
        r.timeout_ns = INT64_MAX; /* the thread that waits for the piece has a deadline of its own */
        s->index = i;
        s->keeps = false;
        s->bytes = file_piece_bytes(size, i);
        atomic_store_explicit(&s->state, SLOT_ASKED, memory_order_relaxed);
        if (gateway_ask(f->g, &(struct gateway_question){.record = &r, .tell = file_slot_told, .late = mapped_late, .arg = s, .post = true},
                        &s->ask))
            file_map_slot_free(s);
    }
    pthread_mutex_unlock(&f->maps);
}

/* Takes a piece that was requested in advance. -EAGAIN: it must be requested now. */
static int map_take(weft_file *f, uint64_t index, int64_t deadline, weft_gaddr *at, uint64_t *lease)
{
    struct file_slot *s = map_claim(f, index);
    if (!s)
        return -EAGAIN;
    int rc = fab_wait(f->g->w, file_slot_settled, s, deadline);
    pthread_mutex_lock(&f->maps);
    if (rc && !gateway_ask_leave(f->g, s->ask, 0))
        rc = 0; /* the answer has come in the meantime */
    if (!rc && file_slot_state(s) == SLOT_FAILED)
        rc = s->error == -ENOBUFS || s->error == -EAGAIN ? -EAGAIN : file_slot_error(f, s);
    *at = s->at;
    *lease = s->lease;
    file_map_slot_free(s);
    pthread_mutex_unlock(&f->maps);
    return rc == -ETIMEDOUT ? base_fail(rc, "%s at node %u: no answer before the deadline", f->path, f->node) : rc;
}

/* --- mapping --- */

/* Requests a piece of `bytes` bytes, and waits for the answer. */
static int map_ask(weft_file *f, uint64_t index, uint32_t bytes, bool here, int64_t deadline, weft_gaddr *at, uint64_t *lease)
{
    struct gateway_result result;
    weft_request r = file_request(f, FILE_LEASE);
    r.flags = here ? FILE_MAPS : 0;
    r.arg[0] = index;
    int rc;
    do {
        int64_t left = deadline - base_now_ns();
        struct gateway_question q = {.record = &r, .late = mapped_late, .post = true};
        rc = gateway_ask_wait(f->g, &q, left > 0 ? left : 0, &result, NULL, NULL);
    } while (rc == -ENOBUFS && file_maps_leave(f)); /* pieces that were requested in advance count as mapped, so give them back first */
    *at = rc ? WEFT_NULL : result.word[0];
    *lease = rc ? 0 : result.word[2];
    if (!rc && !file_lease_fits(&result, f->node, bytes, false)) {
        file_post_return(f->g, f->node, *lease);
        rc = base_fail(-EPROTO, "%s: node %u has sent an invalid answer", f->path, f->node);
    }
    return rc;
}

/* `*again`: the lease ended before the copy was complete, or another thread has written to the file, so the piece must be requested once
 * more. */
static int map_once(weft_file *f, uint64_t offset, weft_file_view *out, int64_t deadline, bool *again)
{
    weft_node *w = f->g->w;
    const uint64_t size = file_size(f);
    if (offset >= size)
        return base_fail(-EINVAL, "%s at node %u has only %llu bytes, so offset %llu cannot be mapped", f->path, f->node,
                         (unsigned long long)size, (unsigned long long)offset);
    uint64_t index = offset / WEFT_FILE_PIECE, within = offset % WEFT_FILE_PIECE, lease;
    uint32_t bytes = file_piece_bytes(size, index);
    bool here = weft_ptr(w, weft_gaddr_make(f->node, 0, w->heap_offset), 1) != NULL;
    int64_t until = base_deadline(FILE_LEASE_NS);
    weft_gaddr at, copy = WEFT_NULL;
    const uint8_t *p = NULL;
    if (atomic_exchange_explicit(&f->changed[FILE_CHANGED_MAP], false, memory_order_relaxed))
        (void)file_maps_leave(f);
    int rc = here ? map_take(f, index, deadline, &at, &lease) : -EAGAIN;
    if (rc == -EAGAIN)
        rc = map_ask(f, index, bytes, here, deadline, &at, &lease);
    *again = rc == -EPROTO && file_size(f) != size; /* another thread has written to the file: the answer is of the new generation */
    if (rc)
        return rc;
    if (here) {
        p = weft_ptr(w, at, bytes);
        if (!p)
            rc = base_fail(-EPROTO, "%s: node %u has sent an invalid answer", f->path, f->node);
        else
            map_ahead(f, index);
    } else {
        int64_t before = fab_limit(deadline);
        rc = map_copy(f, at, bytes, until, &copy);
        fab_limit(before);
        *again = rc == -EAGAIN;
        p = rc ? NULL : weft_ptr(w, copy, bytes);
    }
    if (rc || !here)
        file_post_return(f->g, f->node, lease);
    if (!rc)
        *out = (weft_file_view){.at = p + within, .bytes = bytes - within, .addr = at + within, .own = {here ? lease : 0, copy}};
    return rc;
}

int weft_file_map(weft_file *f, uint64_t offset, weft_file_view *out, int64_t timeout_ns)
{
    int64_t deadline = fab_timeout(f->g->w, timeout_ns);
    bool again;
    *out = (weft_file_view){.at = NULL};
    int rc = file_use(f, false);
    if (rc)
        return rc;
    do {
        again = false;
        rc = map_once(f, offset, out, deadline, &again);
    } while (again && base_now_ns() < deadline);
    file_unuse(f, false);
    return rc;
}

void weft_file_unmap(weft_file *f, weft_file_view *view)
{
    if (view->own[0])
        file_post_return(f->g, f->node, view->own[0]);
    base_spin_lock(&f->g->lock);
    struct file_copy **at = &f->copies, *c = NULL;
    while (*at && (*at)->at != view->own[1])
        at = &(*at)->next;
    if (*at) {
        c = *at;
        *at = c->next;
    }
    base_spin_unlock(&f->g->lock);
    if (c)
        file_copy_free(f, c);
    *view = (weft_file_view){.at = NULL};
}
