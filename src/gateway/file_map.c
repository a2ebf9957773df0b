/* SPDX-License-Identifier: MIT
 *
 * The asker's side of mapping. On the gateway's host, a view points into the gateway's pool. On another host, the piece is copied to this
 * node's pool (file_keep.c), from the gateway or from another node that has a copy. If pieces are mapped in sequence, the next ones are
 * requested in advance.
 */
#include "gateway/file_handle.h"

#include <stdlib.h>
#include <string.h>

#define MAP_AGAIN 1 /* not an error: the piece must be requested once more */

/* Handles the answer to a request to map a piece, after this node has cancelled the request: ends the lease. */
static void mapped_late(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    if (r->status == 0)
        file_post_return(g, a->node, r->word[2]);
}

/* --- mapping ahead --- */

/* Reserves the slot of a piece for this thread. Returns NULL if the piece was not requested in advance. */
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

/* Returns a free slot for a piece, or NULL if the piece has a slot already or no slot is free. */
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

/* Called after piece `index` was mapped. Requests the next pieces in advance if the previous map was of the piece before. */
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
        r.timeout_ns = INT64_MAX; /* the thread that waits has a deadline of its own */
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

/* Whether the piece may now be longer than `bytes`, because another thread writes or has written through the handle. */
static bool map_may_be_longer(const weft_file *f, uint64_t index, uint32_t bytes)
{
    /* acquire: pairs with file_unuse(). If no write is under way any more, file_size() below returns the size after the last write */
    bool writing = f->flags & WEFT_FILE_WRITE && atomic_load_explicit(&f->busy, memory_order_acquire);
    return writing || file_piece_bytes(file_size(f), index) != bytes;
}

/* Takes a piece of `bytes` bytes that was requested in advance. Returns MAP_AGAIN if the piece must be requested now. */
static int map_take(weft_file *f, uint64_t index, uint32_t bytes, int64_t deadline, weft_gaddr *at, uint64_t *lease)
{
    struct file_slot *s = map_claim(f, index);
    if (!s)
        return MAP_AGAIN;
    int rc = fab_wait(f->g->w, file_slot_settled, s, deadline);
    pthread_mutex_lock(&f->maps);
    if (rc && !gateway_ask_leave(f->g, s->ask, 0))
        rc = 0; /* the answer arrived after the deadline, but before this request was cancelled */
    if (!rc && file_slot_state(s) == SLOT_FAILED)
        rc = s->error == -ENOBUFS || s->error == -EAGAIN || map_may_be_longer(f, index, s->bytes) ? MAP_AGAIN : file_slot_error(f, s);
    if (!rc && s->bytes != bytes) { /* a write has made the piece longer since the request */
        file_post_return(f->g, f->node, s->lease);
        rc = MAP_AGAIN;
    }
    *at = s->at;
    *lease = s->lease;
    file_map_slot_free(s);
    pthread_mutex_unlock(&f->maps);
    return rc == -ETIMEDOUT ? base_fail(rc, "%s at node %u: no answer before the deadline; try again, or allow more time", f->path, f->node)
                            : rc;
}

/* --- mapping --- */

/* A copy at another node that was of no use. `node`: the number of that node plus 1; 0: there was no such copy. */
struct map_lost {
    uint64_t lease, node;
    uint32_t flags;
};

/* Requests a piece of `bytes` bytes, and waits for the answer. `flags`: FILE_MAPS and others. `lost`: the last copy that was of no use, or
 * zeros. Returns MAP_AGAIN if the answer is about another generation. */
static int map_ask(weft_file *f, uint64_t index, uint32_t bytes, uint32_t flags, const struct map_lost *lost, int64_t deadline,
                   struct gateway_result *result)
{
    weft_request r = file_request(f, FILE_LEASE);
    r.flags = flags;
    r.arg[0] = index;
    r.arg[FILE_ENDS_AT] = lost->lease;
    r.arg[FILE_LOST_AT] = lost->node;
    int rc;
    do {
        int64_t left = deadline - base_now_ns();
        struct gateway_question q = {.record = &r, .late = mapped_late, .post = true};
        rc = gateway_ask_wait(f->g, &q, left > 0 ? left : 0, result, NULL, NULL);
    } while (rc == -ENOBUFS && file_maps_leave(f)); /* pieces requested in advance count as mapped: give them back, and try again */
    if (rc || file_lease_fits(result, f->node, bytes, flags & FILE_KEEPS && !(flags & FILE_HERE)))
        return rc;
    file_post_return(f->g, f->node, result->word[2]);
    return map_may_be_longer(f, index, bytes)
               ? MAP_AGAIN
               : base_fail(-EPROTO, "%s: node %u has sent an invalid answer; run the same version of weft on all hosts", f->path, f->node);
}

/* Maps a piece for a node of the gateway's host: the piece stays where it is. */
static int map_here(weft_file *f, uint64_t index, uint32_t bytes, weft_file_view *out, int64_t deadline)
{
    struct gateway_result r;
    weft_gaddr at;
    uint64_t lease;
    int rc = map_take(f, index, bytes, deadline, &at, &lease);
    if (rc == MAP_AGAIN) {
        if ((rc = map_ask(f, index, bytes, FILE_MAPS, &(struct map_lost){0}, deadline, &r)))
            return rc;
        at = r.word[0];
        lease = r.word[2];
    }
    if (rc)
        return rc;
    *out = (weft_file_view){.at = weft_ptr(f->g->w, at, bytes), .bytes = bytes, .addr = at, .own = {lease}};
    if (!out->at) {
        file_post_return(f->g, f->node, lease);
        return base_fail(-EPROTO, "%s: node %u has sent an invalid answer; run the same version of weft on all hosts", f->path, f->node);
    }
    map_ahead(f, index);
    return 0;
}

/* Until when to wait for a get that is begun now. */
static int64_t map_until(weft_file *f, bool other, int64_t now, int64_t deadline)
{
    base_spin_lock(&f->g->lock);
    int64_t until = file_get_until(f->g, &f->map_pace, now, other);
    base_spin_unlock(&f->g->lock);
    return until < deadline ? until : deadline;
}

/* Gets the piece into this node's pool. Returns MAP_AGAIN if the bytes are wrong, or if the node with the copy does not answer; `*lost`
 * then names that node. */
static int map_get(weft_file *f, uint64_t index, uint32_t bytes, struct file_kept *k, struct map_lost *lost, int64_t deadline)
{
    weft_node *w = f->g->w;
    struct gateway_result r;
    int64_t until = base_deadline(FILE_LEASE_NS);
    int rc = map_ask(f, index, bytes, FILE_KEEPS | lost->flags, lost, deadline, &r);
    if (rc)
        return rc;
    void *to = weft_ptr(w, k->at, bytes);
    bool other = weft_gaddr_node(r.word[0]) != f->node;
    int64_t now = base_now_ns(), end = map_until(f, other, now, deadline);
    int64_t before = fab_limit(end);
    rc = weft_get(w, to, r.word[0], bytes, &k->op);
    fab_limit(before);
    int64_t left = end - base_now_ns();
    if (!rc)
        rc = weft_wait(w, &k->op, left > 0 ? left : 0);
    bool right = !rc && ((!other && base_now_ns() < until) || file_hash(to, bytes) == r.word[3]);
    if (right) {
        base_spin_lock(&f->g->lock);
        file_pace_came(&f->map_pace, now, base_now_ns());
        base_spin_unlock(&f->g->lock);
    }
    if (right && r.word[4])
        file_keep_tell(f->g, f->there, k, r.word[2], r.word[5], index);
    else if (right || !other)
        file_post_return(f->g, f->node, r.word[2]);
    if (!right && other)
        *lost = (struct map_lost){r.word[2], weft_gaddr_node(r.word[0]) + 1, rc ? FILE_HERE | FILE_SILENT : FILE_HERE};
    return right ? 0 : other || !rc ? MAP_AGAIN : rc;
}

/* Maps a piece of a file of another host, in sequence. Gets the piece as file_read() does, but the view takes the copy. Returns MAP_AGAIN
 * if this is not possible: either another thread is in this function, or the handle is open for writing, so pieces that were requested in
 * advance may be older than what another thread has written. */
static int map_line(weft_file *f, uint64_t index, int64_t deadline, struct file_kept **out)
{
    struct file_line *line = &f->maps_far;
    struct file_slot *s;
    if (f->flags & WEFT_FILE_WRITE ||
        atomic_exchange_explicit(&f->lining, true, memory_order_acquire)) /* acquire: pairs with the release below */
        return MAP_AGAIN;
    if (atomic_exchange_explicit(&f->changed[FILE_CHANGED_MAP], false, memory_order_relaxed))
        file_slots_expire(f, line);
    file_line_begin(f, line);
    const bool begins = index == 0 && file_line_begins(f, line);
    int rc = file_slot_begin(f, line, index, begins, true, file_size(f), deadline);
    if (!rc)
        rc = file_slot_get(f, line, index, true, deadline, &s);
    if (!rc) {
        *out = s->kept;
        s->kept = NULL;
        atomic_store_explicit(&s->state, SLOT_TAKEN, memory_order_relaxed);
        file_slot_ahead(f, line, index, false, true, file_size(f)); /* the first request in advance ends the lease, and frees the slot */
        if (file_slot_state(s) == SLOT_TAKEN)
            file_slot_return(f, s);
    }
    file_line_end(line);
    atomic_store_explicit(&f->lining, false, memory_order_release);
    return rc;
}

/* Maps a single piece of a file of another host. */
static int map_alone(weft_file *f, uint64_t index, uint32_t bytes, int64_t deadline, struct file_kept **out)
{
    struct map_lost lost = {0};
    struct file_kept *k;
    int rc;
    do {
        k = file_keep(f->g, f->node, bytes);
        rc = k ? map_get(f, index, bytes, k, &lost, deadline) : -ENOMEM;
        if (rc && k)
            file_keep_leave(f->g, k);
    } while (rc == MAP_AGAIN && file_piece_bytes(file_size(f), index) == bytes && base_now_ns() < deadline);
    *out = k;
    return rc; /* if a write has made the piece longer, the caller begins again */
}

/* Maps a piece of a file of another host: copies it into this node's pool. */
static int map_far(weft_file *f, uint64_t index, uint32_t bytes, weft_file_view *out, int64_t deadline)
{
    struct gateway *g = f->g;
    struct file_kept *k = NULL;
    int rc = map_line(f, index, deadline, &k);
    if (rc == MAP_AGAIN)
        rc = map_alone(f, index, bytes, deadline, &k);
    if (rc)
        return rc;
    base_spin_lock(&g->lock);
    uint64_t id = gateway_table_add(&f->copies, k);
    base_spin_unlock(&g->lock);
    if (!id) {
        file_keep_leave(g, k);
        return base_fail(-ENOMEM, "%s: no memory to map a part of the file" BASE_MEMORY_HINT, f->path);
    }
    *out = (weft_file_view){.at = weft_ptr(g->w, k->at, bytes), .bytes = bytes, .addr = k->at, .own = {0, id}};
    return 0;
}

static int map_once(weft_file *f, uint64_t offset, weft_file_view *out, int64_t deadline)
{
    const uint64_t size = file_size(f);
    if (offset >= size)
        return base_fail(-EINVAL, "%s at node %u has only %llu bytes, so offset %llu cannot be mapped", f->path, f->node,
                         (unsigned long long)size, (unsigned long long)offset);
    uint64_t index = offset / WEFT_FILE_PIECE, within = offset % WEFT_FILE_PIECE;
    uint32_t bytes = file_piece_bytes(size, index);
    int rc = f->far ? map_far(f, index, bytes, out, deadline) : map_here(f, index, bytes, out, deadline);
    if (rc)
        return rc;
    out->at = (const uint8_t *)out->at + within;
    out->bytes -= within;
    out->addr += within;
    return 0;
}

int weft_file_map(weft_file *f, uint64_t offset, weft_file_view *out, int64_t timeout_ns)
{
    weft_node *w = f->g->w;
    int64_t deadline = fab_timeout(w, timeout_ns);
    *out = (weft_file_view){.at = NULL};
    int rc = file_use(f, false);
    if (rc)
        return rc;
    if (!f->far && atomic_exchange_explicit(&f->changed[FILE_CHANGED_MAP], false, memory_order_relaxed))
        (void)file_maps_leave(f);
    do {
        rc = map_once(f, offset, out, deadline);
    } while (rc == MAP_AGAIN && base_now_ns() < deadline);
    file_unuse(f, false);
    return rc == MAP_AGAIN
               ? base_fail(-ETIMEDOUT, "%s at node %u: no answer before the deadline; try again, or allow more time", f->path, f->node)
               : rc;
}

void weft_file_unmap(weft_file *f, weft_file_view *view)
{
    if (view->own[0])
        file_post_return(f->g, f->node, view->own[0]);
    base_spin_lock(&f->g->lock);
    struct file_kept *k = gateway_table_find(&f->copies, view->own[1]);
    gateway_table_remove(&f->copies, view->own[1]);
    base_spin_unlock(&f->g->lock);
    if (k)
        file_keep_leave(f->g, k);
    *view = (weft_file_view){.at = NULL};
}
