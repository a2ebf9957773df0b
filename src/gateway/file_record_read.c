/* SPDX-License-Identifier: MIT
 *
 * Reading by record: the pieces of a file that records need.
 *
 * A read needs a lease of one piece of the file. The first record that needs a piece requests the lease, and gets the answer -EAGAIN. When
 * the kernel submits the record again, the bytes are copied if the lease is there. A file has at most FILE_RECORD_SLOTS slots, each for a
 * piece that was requested or leased. A slot that no record has used yet is kept for a while, so that blocks of a kernel do not take slots
 * from each other for ever.
 */
#include "gateway/file_record.h"

#include <stdlib.h>

#define AHEAD    4u
#define KEPT_NS  (100 * WEFT_MS) /* a slot that was not used yet is kept for this time */
#define WAITS_NS (5 * WEFT_MS)   /* if a record waits longer for a piece, leases that records have used are ended */

struct file_read { /* a record that is copying from a piece */
    struct gateway_copy copy;
    struct file_record_slot *slot;
    weft_request *r;
};

/* --- pieces; with the lock held --- */

static struct file_record_slot *slot_find(struct file_record *f, uint64_t index)
{
    for (unsigned i = 0; i < FILE_RECORD_SLOTS; i++) {
        struct file_record_slot *s = &f->slot[i];
        if (s->state != PIECE_NONE && s->index == index && s->writes == f->writes)
            return s;
    }
    return NULL;
}

static bool slot_is_free(const struct file_record_slot *s, int64_t now)
{
    if (s->state == PIECE_NONE)
        return true;
    if (s->state == PIECE_ASKED || s->copies)
        return false;
    return now >= s->until || !s->fresh || now - s->since > KEPT_NS || s->writes != s->f->writes;
}

/* Frees the least recently used slot for another piece. NULL: all slots are in use. */
static struct file_record_slot *slot_take(struct file_record *f, int64_t now)
{
    struct file_record_slot *oldest = NULL;
    for (unsigned i = 0; i < FILE_RECORD_SLOTS; i++) {
        struct file_record_slot *s = &f->slot[i];
        if (!slot_is_free(s, now))
            continue;
        if (s->state == PIECE_NONE)
            return s;
        if (!oldest || s->since < oldest->since)
            oldest = s;
    }
    return oldest;
}

/* If records have waited long for a piece, this file's own leases may fill the cache. Then this writes the leases that records have used to
 * `leases`, so that the caller ends them. Returns how many. */
static unsigned slots_give_back(struct file_record *f, const struct file_record_slot *wanted, uint64_t leases[FILE_RECORD_SLOTS])
{
    unsigned n = 0;
    int64_t now = base_now_ns();
    if (now - wanted->since <= WAITS_NS)
        return 0;
    for (unsigned i = 0; i < FILE_RECORD_SLOTS; i++) {
        struct file_record_slot *s = &f->slot[i];
        if (s->state != PIECE_READY || !slot_is_free(s, now))
            continue;
        s->state = PIECE_NONE;
        leases[n++] = s->lease;
    }
    return n;
}

static void slot_told(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    struct file_record_slot *s = a->arg;
    int rc = r->status ? r->status : file_lease_fits(r, a->node, s->bytes, false) ? 0 : -EPROTO;
    s->error = rc;
    s->at = rc ? WEFT_NULL : r->word[0];
    s->lease = rc ? 0 : r->word[2];
    s->since = base_now_ns();
    s->state = !rc ? PIECE_READY : rc == -EAGAIN ? PIECE_NONE : PIECE_FAILED;
    gateway_object_leave_locked(g, &s->f->object);
}

/* Prepares a request for a piece. False: there is no slot for it now. */
static bool slot_prepare(struct file_record *f, uint64_t index, weft_request *ask, struct file_record_slot **out)
{
    int64_t now = base_now_ns();
    struct file_record_slot *s = slot_take(f, now);
    if (!s)
        return false;
    *ask = file_record_request(f, FILE_LEASE);
    ask->arg[0] = index;
    ask->arg[FILE_ENDS_AT] = s->state == PIECE_READY ? s->lease : 0;
    *s = (struct file_record_slot){.f = f,
                                   .state = PIECE_ASKED,
                                   .fresh = true,
                                   .index = index,
                                   .writes = f->writes,
                                   .bytes = file_piece_bytes(f->info.bytes, index),
                                   .since = now,
                                   .until = base_deadline(FILE_LEASE_NS) - FILE_COPY_NS};
    f->object.uses++; /* until the answer comes */
    *out = s;
    return true;
}

/* --- reading: without the lock --- */

static int slot_ask(struct gateway *g, struct file_record_slot *s, const weft_request *ask)
{
    int rc = gateway_ask(g, &(struct gateway_question){.record = ask, .tell = slot_told, .arg = s, .post = true}, NULL);
    if (!rc)
        return 0;
    base_spin_lock(&g->lock);
    s->state = PIECE_NONE;
    gateway_object_leave_locked(g, &s->f->object);
    base_spin_unlock(&g->lock);
    return rc;
}

/* Requests the next pieces in advance, if the piece before this one was read as well. */
static void ask_ahead(struct gateway *g, struct file_record *f, uint64_t index)
{
    for (uint64_t i = index + 1; i <= index + AHEAD; i++) {
        weft_request ask = {.flags = 0};
        struct file_record_slot *s = NULL;
        base_spin_lock(&g->lock);
        bool wanted = i < file_pieces(f->info.bytes) && !slot_find(f, i) && slot_prepare(f, i, &ask, &s);
        base_spin_unlock(&g->lock);
        ask.flags = FILE_AHEAD;
        if (wanted && slot_ask(g, s, &ask))
            return;
    }
}

static void read_copied(struct gateway_copy *c, int rc)
{
    struct file_read *j = (struct file_read *)(void *)c;
    struct gateway *g = c->g;
    struct file_record_slot *s = j->slot;
    struct file_record *f = s->f; /* now, because another record may take the slot when the lock is released */
    weft_request *r = j->r;
    base_spin_lock(&g->lock);
    int64_t now = base_now_ns();
    if (!rc && now >= s->until + FILE_COPY_NS)
        rc = -EAGAIN; /* the lease has ended, and the memory may hold another piece */
    s->copies--;
    s->since = now;
    base_spin_unlock(&g->lock);
    r->result[0] = rc ? 0 : c->bytes;
    free(j);
    gateway_record_answer(g, r, rc);
    gateway_object_leave(g, &f->object);
}

/* Finds the slot of a piece. GATEWAY_LATER: the piece is there, and `*out` is in use until read_copied(). -EAGAIN: the piece is not there;
 * request it if `*out` is not NULL. With the lock held. */
static int slot_use(struct file_record *f, const weft_request *r, uint64_t index, struct file_record_slot **out, weft_request *ask)
{
    struct file_record_slot *s = slot_find(f, index);
    *out = NULL;
    if (s && s->state == PIECE_FAILED) {
        s->state = PIECE_NONE;
        return s->error;
    }
    if (s && s->state == PIECE_READY && base_now_ns() < s->until) {
        s->copies++;
        *out = s;
        return GATEWAY_LATER;
    }
    if (s && s->state == PIECE_READY && !s->copies) { /* the lease ends soon, so do not use it */
        s->state = PIECE_NONE;
        s = NULL;
    }
    if (!s && slot_prepare(f, index, ask, out))
        ask->timeout_ns = r->timeout_ns;
    return -EAGAIN;
}

/* Whether the next pieces will probably be read: this piece is used for the first time, and the read goes to its end or follows a read of
 * the piece before. With the lock held. */
static bool slot_leads_on(struct file_record *f, struct file_record_slot *s, bool to_end)
{
    const struct file_record_slot *before = s->index ? slot_find(f, s->index - 1) : NULL;
    bool first = s->fresh;
    s->fresh = false;
    return first && (to_end || (before && !before->fresh));
}

static int read_begin(struct gateway *g, struct file_record *f, weft_request *r, uint64_t bytes)
{
    uint64_t index = r->arg[2] / WEFT_FILE_PIECE, within = r->arg[2] % WEFT_FILE_PIECE;
    struct file_read *j = malloc(sizeof *j);
    struct file_record_slot *s, *waits;
    weft_request ask;
    uint64_t leases[FILE_RECORD_SLOTS];
    if (!j)
        return base_fail(-ENOMEM, "no memory for a request to read a file" BASE_MEMORY_HINT);
    base_spin_lock(&g->lock);
    int rc = slot_use(f, r, index, &s, &ask);
    bool there = s && rc == GATEWAY_LATER, ahead = there && slot_leads_on(f, s, bytes < r->arg[1]);
    waits = rc == -EAGAIN && !s ? slot_find(f, index) : NULL;
    unsigned back = waits && waits->state == PIECE_ASKED ? slots_give_back(f, waits, leases) : 0;
    base_spin_unlock(&g->lock);
    while (back)
        file_post_return(g, f->node, leases[--back]);
    if (!there) {
        free(j);
        int failed = s ? slot_ask(g, s, &ask) : 0;
        return failed ? failed : rc;
    }
    *j = (struct file_read){.copy = {.to = r->arg[0], .from = s->at + within, .bytes = bytes, .done = read_copied}, .slot = s, .r = r};
    if (ahead)
        ask_ahead(g, f, index);
    gateway_copy(g, &j->copy);
    return GATEWAY_LATER;
}

int file_record_read(struct gateway *g, struct file_record *f, weft_request *r)
{
    if (!r->arg[1])
        return base_fail(-EINVAL, "the record of a request to read a file has a length of 0: expected at least 1 byte");
    base_spin_lock(&g->lock);
    uint64_t size = f->info.bytes;
    base_spin_unlock(&g->lock);
    if (r->arg[2] >= size)
        return 0;
    uint64_t left = size - r->arg[2], piece = WEFT_FILE_PIECE - r->arg[2] % WEFT_FILE_PIECE;
    left = left < piece ? left : piece;
    return read_begin(g, f, r, left < r->arg[1] ? left : r->arg[1]);
}
