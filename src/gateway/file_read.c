/* SPDX-License-Identifier: MIT
 *
 * The asker's side of reading. The asker requests a piece by its number; the answer is an address in the gateway's pool and a lease. The
 * asker copies the bytes, and uses the copy only if the lease has not ended meanwhile.
 */
#include "gateway/file_handle.h"

#include <stdlib.h>
#include <string.h>

/* --- slots --- */

/* Writes the answer to the slot. Called with gateway.lock held. */
void file_slot_told(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    (void)g;
    struct file_slot *s = a->arg;
    int rc = r->status ? r->status : file_lease_fits(r, a->node, s->bytes) ? 0 : -EPROTO;
    s->error = rc;
    size_t n = rc && r->len ? (r->len < FILE_TEXT - 1 ? r->len : FILE_TEXT - 1) : 0;
    if (n)
        memcpy(s->text, r->payload, n);
    s->text[n] = '\0';
    s->at = rc ? WEFT_NULL : r->word[0];
    s->lease = rc ? 0 : r->word[2];
    atomic_store_explicit(&s->state, rc ? SLOT_FAILED : SLOT_READY, memory_order_release); /* release: pairs with file_slot_state() */
}

bool file_slot_settled(void *arg)
{
    return file_slot_state(arg) != SLOT_ASKED;
}

int file_slot_error(const weft_file *f, const struct file_slot *s)
{
    const weft_request r = {.service = WEFT_SERVICE_FILE, .node = f->node};
    return gateway_ask_status(f->g, &r, s->error, s->text);
}

static struct file_slot *slot_of(weft_file *f, uint64_t index)
{
    for (unsigned i = 0; i < FILE_SLOTS; i++)
        if (file_slot_state(&f->slot[i]) != SLOT_FREE && f->slot[i].index == index)
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
        int state = file_slot_state(s);
        bool wanted = s->index - from <= FILE_AHEAD_PIECES && (state == SLOT_ASKED || state == SLOT_READY);
        if (wanted && (state == SLOT_ASKED || base_now_ns() < s->until))
            continue;
        if (state == SLOT_ASKED && gateway_ask_leave(f->g, s->ask, 0)) /* if the gateway still makes a lease, that expires */
            state = SLOT_FREE;
        if (file_slot_state(s) == SLOT_READY && state != SLOT_FREE)
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
    s->bytes = file_piece_bytes(f->info.bytes, index);
    s->until = base_deadline(FILE_LEASE_NS) - FILE_COPY_NS;
    atomic_store_explicit(&s->state, SLOT_ASKED, memory_order_relaxed);
    int rc = gateway_ask(f->g, &(struct gateway_question){.record = &r, .tell = file_slot_told, .arg = s, .post = post}, &s->ask);
    if (rc)
        atomic_store_explicit(&s->state, SLOT_FREE, memory_order_relaxed);
    return rc;
}

/* Asks for the pieces after `index` in advance, if this read goes on beyond the piece (`more`) or the previous read was of the piece
 * before. */
static void ask_ahead(weft_file *f, uint64_t index, bool more)
{
    uint64_t pieces = file_pieces(f->info.bytes);
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
        int state = s ? file_slot_state(s) : SLOT_FREE;
        if (state == SLOT_READY && base_now_ns() < s->until) {
            *out = s;
            return 0;
        }
        if (state == SLOT_FAILED && s->error != -EAGAIN) {
            atomic_store_explicit(&s->state, SLOT_FREE, memory_order_relaxed);
            return file_slot_error(f, s);
        }
        if (state == SLOT_ASKED) {
            int rc = fab_wait(f->g->w, file_slot_settled, s, deadline);
            if (rc == -ETIMEDOUT)
                return base_fail(rc, "%s at node %u: no answer before the deadline; try again, or allow more time", f->path, f->node);
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

/* The file has changed: the pieces are given back with the next request, whose answer is -ESTALE. */
static void slots_expire(weft_file *f)
{
    for (unsigned i = 0; i < FILE_SLOTS; i++)
        f->slot[i].until = INT64_MIN;
}

int file_read(weft_file *f, void *buf, size_t len, uint64_t offset, size_t *got, int64_t deadline)
{
    weft_node *w = f->g->w;
    uint8_t *to = buf;
    int rc = 0;
    *got = 0;
    uint64_t left = offset < f->info.bytes ? f->info.bytes - offset : 0;
    left = left < len ? left : len;
    while (!rc && left) {
        if (atomic_exchange_explicit(&f->changed[FILE_CHANGED_READ], false, memory_order_relaxed))
            slots_expire(f);
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
        if (rc || base_now_ns() >= s->until + FILE_COPY_NS)
            continue; /* the lease has ended, and the memory may hold another piece: read again */
        to += n;
        offset += n;
        left -= n;
        *got += (size_t)n;
    }
    return rc;
}

int weft_file_read(weft_file *f, void *buf, size_t len, uint64_t offset, size_t *got, int64_t timeout_ns)
{
    int64_t deadline = fab_timeout(f->g->w, timeout_ns);
    *got = 0;
    int rc = file_use(f, true);
    if (rc)
        return rc;
    rc = file_read(f, buf, len, offset, got, deadline);
    file_unuse(f, true);
    return rc;
}
