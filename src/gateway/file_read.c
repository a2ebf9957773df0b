/* SPDX-License-Identifier: MIT
 *
 * The asker's side of reading and mapping. The asker requests a piece by its number; the answer is an address in the gateway's pool and a
 * lease. The asker copies the bytes, and uses the copy only if the lease has not ended meanwhile.
 */
#include "gateway/file_handle.h"

#include <stdlib.h>
#include <string.h>

#define COPY_NS (100 * WEFT_MS) /* a lease that ends within this time is not used, because copying a piece may take as long */

/* --- slots --- */

/* Writes the answer to the slot. Called with gateway.lock held. */
static void slot_told(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    (void)g;
    struct file_slot *s = a->arg;
    int rc = r->status;
    if (!rc && (weft_gaddr_node(r->word[0]) != a->node || weft_gaddr_space(r->word[0]) || r->word[1] != s->bytes))
        rc = -EPROTO;
    s->error = rc;
    size_t n = rc && r->len ? (r->len < FILE_TEXT - 1 ? r->len : FILE_TEXT - 1) : 0;
    if (n)
        memcpy(s->text, r->payload, n);
    s->text[n] = '\0';
    s->at = rc ? WEFT_NULL : r->word[0];
    s->lease = rc ? 0 : r->word[2];
    atomic_store_explicit(&s->state, rc ? SLOT_FAILED : SLOT_READY, memory_order_release); /* release: pairs with slot_state() */
}

static int slot_state(const struct file_slot *s)
{
    return atomic_load_explicit(&s->state, memory_order_acquire);
}

static bool slot_settled(void *arg)
{
    return slot_state(arg) != SLOT_ASKED;
}

static int slot_error(const weft_file *f, const struct file_slot *s)
{
    const weft_request r = {.service = WEFT_SERVICE_FILE, .node = f->node};
    return gateway_ask_status(f->g, &r, s->error, s->text);
}

static uint32_t piece_bytes(const weft_file *f, uint64_t index)
{
    uint64_t left = f->info.bytes - index * WEFT_FILE_PIECE;
    return left < WEFT_FILE_PIECE ? (uint32_t)left : WEFT_FILE_PIECE;
}

static struct file_slot *slot_of(weft_file *f, uint64_t index)
{
    for (unsigned i = 0; i < FILE_SLOTS; i++)
        if (slot_state(&f->slot[i]) != SLOT_FREE && f->slot[i].index == index)
            return &f->slot[i];
    return NULL;
}

/* Frees the slots of all pieces except `from` and the FILE_AHEAD_PIECES after it. Adds their leases to request `r`, which ends them. */
static struct file_slot *slot_take(weft_file *f, uint64_t from, weft_request *r)
{
    struct file_slot *free_one = NULL;
    unsigned n = 0;
    for (unsigned i = 0; i < FILE_SLOTS; i++) {
        struct file_slot *s = &f->slot[i];
        int state = slot_state(s);
        bool wanted = s->index - from <= FILE_AHEAD_PIECES && (state == SLOT_ASKED || state == SLOT_READY);
        if (wanted && (state == SLOT_ASKED || base_now_ns() < s->until))
            continue;
        if (state == SLOT_ASKED && gateway_ask_leave(f->g, s->ask, 0)) /* if the gateway still makes a lease, that expires */
            state = SLOT_FREE;
        if (slot_state(s) == SLOT_READY && state != SLOT_FREE)
            r->arg[FILE_ENDS_AT + n++] = s->lease;
        atomic_store_explicit(&s->state, SLOT_FREE, memory_order_relaxed);
        free_one = s;
    }
    return free_one; /* never NULL: there are more slots than pieces that are kept */
}

/* Asks for a piece. `post`: if the message finds no room, queue it instead of waiting. */
static int slot_ask(weft_file *f, uint64_t from, uint64_t index, uint32_t flags, bool post)
{
    weft_request r = file_request(f, FILE_LEASE);
    struct file_slot *s = slot_take(f, from, &r);
    r.flags = flags;
    r.arg[0] = index;
    r.timeout_ns = INT64_MAX; /* the thread that waits for the piece has a deadline of its own */
    s->index = index;
    s->bytes = piece_bytes(f, index);
    s->until = base_deadline(FILE_LEASE_NS) - COPY_NS;
    atomic_store_explicit(&s->state, SLOT_ASKED, memory_order_relaxed);
    int rc = gateway_ask(f->g, &(struct gateway_question){.record = &r, .tell = slot_told, .arg = s, .post = post}, &s->ask);
    if (rc)
        atomic_store_explicit(&s->state, SLOT_FREE, memory_order_relaxed);
    return rc;
}

/* Asks for the pieces after `index` in advance, if this read goes on beyond the piece (`more`) or the previous read was of the piece
 * before. */
static void ask_ahead(weft_file *f, uint64_t index, bool more)
{
    uint64_t pieces = f->info.bytes / WEFT_FILE_PIECE + (f->info.bytes % WEFT_FILE_PIECE != 0);
    bool next = f->last != index && (more || (f->last != UINT64_MAX && f->last + 1 == index));
    f->last = index;
    for (uint64_t i = index + 1; next && i <= index + FILE_AHEAD_PIECES && i < pieces; i++)
        if (!slot_of(f, i) && slot_ask(f, index, i, FILE_AHEAD, true))
            return; /* not an error: the piece is requested again when it is needed */
}

/* Gets a slot with a lease of the piece; waits until the piece is in the gateway's cache. */
static int slot_get(weft_file *f, uint64_t index, int64_t deadline, struct file_slot **out)
{
    for (;;) {
        struct file_slot *s = slot_of(f, index);
        int state = s ? slot_state(s) : SLOT_FREE;
        if (state == SLOT_READY && base_now_ns() < s->until) {
            *out = s;
            return 0;
        }
        if (state == SLOT_FAILED && s->error != -EAGAIN) {
            atomic_store_explicit(&s->state, SLOT_FREE, memory_order_relaxed);
            return slot_error(f, s);
        }
        if (state == SLOT_ASKED) {
            int rc = fab_wait(f->g->w, slot_settled, s, deadline);
            if (rc == -ETIMEDOUT)
                return base_fail(rc, "%s at node %u: no answer before the deadline", f->path, f->node);
            if (rc)
                return rc;
            continue;
        }
        int64_t before = fab_limit(deadline);
        int rc = slot_ask(f, index, index, 0, false);
        fab_limit(before);
        if (rc)
            return rc;
    }
}

/* --- reading --- */

int weft_file_read(weft_file *f, void *buf, size_t len, uint64_t offset, size_t *got, int64_t timeout_ns)
{
    weft_node *w = f->g->w;
    int64_t deadline = fab_timeout(w, timeout_ns);
    uint8_t *to = buf;
    *got = 0;
    int rc = file_use(f, true);
    if (rc)
        return rc;
    uint64_t left = offset < f->info.bytes ? f->info.bytes - offset : 0;
    left = left < len ? left : len;
    while (!rc && left) {
        uint64_t index = offset / WEFT_FILE_PIECE, within = offset % WEFT_FILE_PIECE;
        struct file_slot *s = NULL;
        rc = slot_get(f, index, deadline, &s);
        if (rc)
            break;
        uint64_t n = s->bytes - within < left ? s->bytes - within : left;
        ask_ahead(f, index, n < left);
        int64_t before = fab_limit(deadline);
        rc = weft_get_blocking(w, to, s->at + within, (size_t)n);
        fab_limit(before);
        if (rc || base_now_ns() >= s->until + COPY_NS)
            continue; /* the lease has ended, and the memory may hold another piece: read again */
        to += n;
        offset += n;
        left -= n;
        *got += (size_t)n;
    }
    file_unuse(f, true);
    return rc;
}

/* --- mapping --- */

static void post_return(struct gateway *g, uint32_t node, uint64_t lease)
{
    const weft_request r = {
        .version = WEFT_REQUEST_VERSION, .service = WEFT_SERVICE_FILE, .kind = FILE_RETURN, .node = node, .arg = {lease}};
    (void)gateway_ask(g, &(struct gateway_question){.record = &r, .tell = gateway_tell_nobody, .post = true}, NULL);
}

/* The answer to a request to map that this node has cancelled: ends the lease. */
static void mapped_late(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    if (r->status == 0)
        post_return(g, a->node, r->word[2]);
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

static int map_once(weft_file *f, uint64_t offset, weft_file_view *out, int64_t deadline)
{
    weft_node *w = f->g->w;
    uint64_t index = offset / WEFT_FILE_PIECE, within = offset % WEFT_FILE_PIECE;
    uint32_t bytes = piece_bytes(f, index);
    bool here = weft_ptr(w, weft_gaddr_make(f->node, 0, w->heap_offset), 1) != NULL;
    weft_request r = file_request(f, FILE_LEASE);
    struct gateway_result result;
    int64_t until = base_deadline(FILE_LEASE_NS), left = deadline - base_now_ns();
    r.flags = here ? FILE_MAPS : 0;
    r.arg[0] = index;
    struct gateway_question q = {.record = &r, .late = mapped_late};
    int rc = gateway_ask_wait(f->g, &q, left > 0 ? left : 0, &result, NULL, NULL);
    if (rc)
        return rc;
    weft_gaddr at = result.word[0], copy = WEFT_NULL;
    const uint8_t *p = NULL;
    if (weft_gaddr_node(at) != f->node || weft_gaddr_space(at) || result.word[1] != bytes || (here && !(p = weft_ptr(w, at, bytes))))
        rc = base_fail(-EPROTO, "%s: node %u has sent an invalid answer", f->path, f->node);
    if (!rc && !here) {
        int64_t before = fab_limit(deadline);
        rc = map_copy(f, at, bytes, until, &copy);
        fab_limit(before);
        p = rc ? NULL : weft_ptr(w, copy, bytes);
    }
    if (rc || !here)
        post_return(f->g, f->node, result.word[2]);
    if (!rc)
        *out = (weft_file_view){.at = p + within, .bytes = bytes - within, .addr = at + within, .own = {here ? result.word[2] : 0, copy}};
    return rc;
}

int weft_file_map(weft_file *f, uint64_t offset, weft_file_view *out, int64_t timeout_ns)
{
    int64_t deadline = fab_timeout(f->g->w, timeout_ns);
    *out = (weft_file_view){.at = NULL};
    int rc = file_use(f, false);
    if (rc)
        return rc;
    if (offset >= f->info.bytes)
        rc = base_fail(-EINVAL, "%s at node %u has only %llu bytes, so offset %llu cannot be mapped", f->path, f->node,
                       (unsigned long long)f->info.bytes, (unsigned long long)offset);
    else
        while ((rc = map_once(f, offset, out, deadline)) == -EAGAIN && base_now_ns() < deadline)
            ;
    file_unuse(f, false);
    return rc;
}

void weft_file_unmap(weft_file *f, weft_file_view *view)
{
    if (view->own[0])
        post_return(f->g, f->node, view->own[0]);
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
