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

#define AHEAD     4u
#define KEEPS     (FILE_KEEPS | FILE_STRAIGHT)
#define READ_PART 4u              /* if 1/READ_PART of a piece was read, the next piece will probably be read as a whole */
#define KEPT_NS   (100 * WEFT_MS) /* a slot whose piece was not read yet is kept for this time */
#define WAITS_NS  (5 * WEFT_MS)   /* if a record waits longer for a piece, leases that records have used are ended */

struct file_read { /* a record that is copying from a piece */
    struct gateway_copy copy;
    struct file_record_slot *slot;
    weft_request *r;
};

/* A request for a piece. */
struct slot_question {
    weft_request ask;
    struct file_record_slot *slot; /* NULL: there is nothing to request */
    struct file_kept *old;         /* the copy that the slot had before, to be given up; or NULL */
};

/* --- pieces; the caller holds gateway.lock --- */

static struct file_record_slot *slot_find(struct file_record *f, uint64_t index)
{
    for (unsigned i = 0; i < FILE_RECORD_SLOTS; i++) {
        struct file_record_slot *s = &f->slot[i];
        if (s->state != PIECE_NONE && s->index == index && s->writes == f->writes)
            return s;
    }
    return NULL;
}

/* The slot that a piece has, or had last. The slot still tells how much records have read from the piece. */
static const struct file_record_slot *slot_was(const struct file_record *f, uint64_t index)
{
    const struct file_record_slot *last = NULL;
    for (unsigned i = 0; i < FILE_RECORD_SLOTS; i++) {
        const struct file_record_slot *s = &f->slot[i];
        if (s->f && s->index == index && s->writes == f->writes && (!last || s->since > last->since))
            last = s;
    }
    return last;
}

/* What a record reads of a piece. */
struct file_range {
    uint64_t index;
    uint32_t within, bytes;
    bool more;    /* the kernel's call goes on beyond the piece */
    bool keeps;   /* the piece is read as a whole: a copy of it is wanted, if the gateway is on another host */
    bool whole;   /* the next pieces, up to `end`, are read as a whole, too */
    bool streams; /* pieces are read one after the other, by more than one call */
    uint64_t end; /* nothing beyond this offset is wanted now */
};

/* What a record reads of a piece, and what the kernel will probably read next. The caller holds gateway.lock. If a kernel's call reads
 * several pieces, there is a record for each piece; `call` of a slot says that the next record belongs to the same call. If a kernel reads
 * a few MiB here and there, no more than these few MiB must be transferred over the network. */
static struct file_range range_of(struct file_record *f, const weft_request *r, uint64_t bytes)
{
    struct file_range x = {.index = r->arg[2] / WEFT_FILE_PIECE,
                           .within = r->arg[2] % WEFT_FILE_PIECE,
                           .bytes = (uint32_t)bytes,
                           .more = bytes < r->arg[1],
                           .end = f->info.bytes};
    const struct file_record_slot *before = x.index ? slot_was(f, x.index - 1) : NULL;
    /* The blocks of a kernel read the parts of a piece in any order, and one block may be far ahead of the others. */
    bool follows = before && before->read && (before->streams || before->read >= before->bytes / READ_PART);
    x.streams = follows && (!before->call || before->streams);
    if (!f->far)
        return x;
    x.keeps = follows || bytes == file_piece_bytes(f->info.bytes, x.index);
    x.whole = x.keeps || x.more;
    if (x.whole && !x.streams && r->arg[1] < f->info.bytes - r->arg[2])
        x.end = r->arg[2] + r->arg[1];
    return x;
}

/* Whether a record may still want the piece, because it was requested and not read yet. */
static bool slot_waits(const struct file_record_slot *s, int64_t now)
{
    return s->fresh && now < s->until && s->writes == s->f->writes && s->state != PIECE_NONE;
}

static bool slot_is_free(const struct file_record_slot *s, int64_t now)
{
    if (s->state == PIECE_NONE)
        return true;
    if (s->state == PIECE_ASKED || s->state == PIECE_GETS || s->copies)
        return false;
    return !slot_waits(s, now) || now - s->since > KEPT_NS;
}

/* The order in which slots are taken for another piece. 0: the slot has no piece; 1: records have read its piece; 2: a record probably
 * still wants its piece. */
static unsigned slot_worth(const struct file_record_slot *s, int64_t now)
{
    return s->state == PIECE_NONE ? 0 : slot_waits(s, now) ? 2 : 1;
}

/* Frees the slot with the lowest slot_worth(); if several slots have the same, the least recently used one. Returns NULL if all slots are
 * in use. */
static struct file_record_slot *slot_take(struct file_record *f, int64_t now)
{
    struct file_record_slot *best = NULL;
    unsigned least = 0;
    for (unsigned i = 0; i < FILE_RECORD_SLOTS; i++) {
        struct file_record_slot *s = &f->slot[i];
        unsigned worth = slot_worth(s, now);
        if (!slot_is_free(s, now) || (best && (worth > least || (worth == least && s->since >= best->since))))
            continue;
        best = s;
        least = worth;
    }
    return best;
}

/* If records have waited long for a piece, the gateway's cache may be full of leases of this file. Then this function stores in `leases`
 * those leases that records have used, and the caller ends them. Returns how many. */
static unsigned slots_give_back(struct file_record *f, const struct file_record_slot *wanted, uint64_t leases[FILE_RECORD_SLOTS])
{
    unsigned n = 0;
    int64_t now = base_now_ns();
    if (now - wanted->since <= WAITS_NS)
        return 0;
    for (unsigned i = 0; i < FILE_RECORD_SLOTS; i++) {
        struct file_record_slot *s = &f->slot[i];
        if (s->state != PIECE_READY || !s->lease || !slot_is_free(s, now))
            continue;
        s->state = PIECE_NONE;
        leases[n++] = s->lease;
    }
    return n;
}

/* Prepares a request for a piece. Returns false if no slot is free for the piece now. */
static bool slot_prepare(struct file_record *f, uint64_t index, uint32_t flags, struct slot_question *q)
{
    struct file_record_slot *s = slot_take(f, base_now_ns());
    if (!s)
        return false;
    q->slot = s;
    q->old = s->kept;
    *s = (struct file_record_slot){.f = f,
                                   .fresh = true,
                                   .index = index,
                                   .writes = f->writes,
                                   .lease = s->state == PIECE_READY || s->state == PIECE_NAMED ? s->lease : 0,
                                   .bytes = file_piece_bytes(f->info.bytes, index)};
    file_record_ask_of(f, s, flags, &q->ask);
    return true;
}

/* --- reading: the caller does not hold gateway.lock --- */

static int slot_ask(struct gateway *g, const struct slot_question *q)
{
    if (q->old)
        file_keep_leave(g, q->old);
    return file_record_ask(g, q->slot, &q->ask);
}

/* Requests the next pieces in advance, none beyond what the kernel wants. For pieces that are read as a whole, requests copies. */
static void ask_ahead(struct gateway *g, struct file_record *f, const struct file_range *x)
{
    const int64_t away = atomic_load_explicit(&g->file_patience, memory_order_relaxed) / FILE_AWAY_PART;
    base_spin_lock(&g->lock);
    uint32_t keeps = KEEPS | (f->pause >= away ? FILE_LATER : 0);
    uint64_t pieces = file_pieces(x->end);
    f->pause = 0;
    base_spin_unlock(&g->lock);
    for (uint64_t i = x->index + 1; i <= x->index + AHEAD && i < pieces; i++) {
        struct slot_question q;
        base_spin_lock(&g->lock);
        bool whole = i * WEFT_FILE_PIECE + file_piece_bytes(f->info.bytes, i) <= x->end;
        bool wanted =
            i < file_pieces(f->info.bytes) && !slot_find(f, i) && slot_prepare(f, i, FILE_AHEAD | (x->whole && whole ? keeps : 0), &q);
        base_spin_unlock(&g->lock);
        if (wanted && slot_ask(g, &q))
            return;
    }
}

static void read_copied(struct gateway_copy *c, int rc)
{
    struct file_read *j = (struct file_read *)(void *)c;
    struct gateway *g = c->g;
    struct file_record_slot *s = j->slot;
    struct file_record *f = s->f; /* read now, because another record may take the slot when the lock is released */
    weft_request *r = j->r;
    base_spin_lock(&g->lock);
    int64_t now = base_now_ns();
    if (!rc && !s->kept && now >= s->until + FILE_COPY_NS)
        rc = -EAGAIN; /* the lease has ended, and the memory may hold another piece */
    s->copies--;
    s->since = now;
    base_spin_unlock(&g->lock);
    r->result[0] = rc ? 0 : c->bytes;
    free(j);
    gateway_record_answer(g, r, rc);
    gateway_object_leave(g, &f->object);
}

/* Finds the slot of a piece. Returns GATEWAY_LATER if the piece is there; `*out` is then in use until read_copied(). Returns -EAGAIN if the
 * piece is not there; the caller requests it if `q->slot` is not NULL. The caller holds gateway.lock. */
static int slot_use(struct file_record *f, const struct file_range *x, struct file_record_slot **out, struct slot_question *q)
{
    struct file_record_slot *s = slot_find(f, x->index);
    *out = NULL;
    if (s && s->state == PIECE_FAILED) {
        s->state = PIECE_NONE;
        return s->error;
    }
    if (s && s->state == PIECE_READY && base_now_ns() < s->until) {
        s->copies++;
        s->read += x->bytes;
        s->call = x->more && x->bytes == s->bytes;
        s->streams = x->streams;
        *out = s;
        return GATEWAY_LATER;
    }
    if (s && s->state == PIECE_READY && !s->copies) { /* the lease ends soon, so do not use the piece */
        s->state = PIECE_NONE;
        s = NULL;
    }
    if (!s)
        (void)slot_prepare(f, x->index, x->keeps ? KEEPS : 0, q);
    return -EAGAIN;
}

/* Whether the next pieces will probably be read: this piece is used for the first time, and the read goes to its end or follows a read of
 * the piece before. The caller holds gateway.lock. */
static bool slot_leads_on(struct file_record *f, struct file_record_slot *s, bool to_end)
{
    const struct file_record_slot *before = s->index ? slot_find(f, s->index - 1) : NULL;
    bool first = s->fresh;
    s->fresh = false;
    return first && (to_end || (before && !before->fresh));
}

/* Notes when records read from the file. The caller holds gateway.lock. */
static void record_came(struct file_record *f)
{
    int64_t now = base_now_ns(), pause = f->asked ? now - f->asked : 0;
    f->pause = pause > f->pause ? pause : f->pause;
    f->asked = now;
}

static int read_begin(struct gateway *g, struct file_record *f, weft_request *r, uint64_t bytes)
{
    struct file_read *j = malloc(sizeof *j);
    struct file_record_slot *s, *waits;
    struct slot_question q = {.slot = NULL};
    uint64_t leases[FILE_RECORD_SLOTS];
    if (!j)
        return base_fail(-ENOMEM, "no memory for a request to read a file" BASE_MEMORY_HINT);
    file_record_move(g, f, r->arg[2] / WEFT_FILE_PIECE);
    base_spin_lock(&g->lock);
    record_came(f);
    const struct file_range x = range_of(f, r, bytes);
    int rc = slot_use(f, &x, &s, &q);
    bool ahead = s && slot_leads_on(f, s, x.more);
    waits = rc == -EAGAIN && !q.slot ? slot_find(f, x.index) : NULL;
    unsigned back = waits && waits->state == PIECE_ASKED ? slots_give_back(f, waits, leases) : 0;
    base_spin_unlock(&g->lock);
    while (back)
        file_post_return(g, f->node, leases[--back]);
    if (!s) {
        free(j);
        int failed = q.slot ? slot_ask(g, &q) : 0;
        return failed ? failed : rc;
    }
    *j = (struct file_read){.copy = {.to = r->arg[0], .from = s->at + x.within, .bytes = bytes, .done = read_copied}, .slot = s, .r = r};
    if (ahead)
        ask_ahead(g, f, &x);
    gateway_copy(g, &j->copy);
    return GATEWAY_LATER;
}

int file_record_read(struct gateway *g, struct file_record *f, weft_request *r)
{
    if (!r->arg[1])
        return base_fail(-EINVAL, "a request to read a file of node %u has the length 0 (arg[1]): set it to at least 1 byte", f->node);
    base_spin_lock(&g->lock);
    uint64_t size = f->info.bytes;
    base_spin_unlock(&g->lock);
    if (r->arg[2] >= size)
        return 0;
    uint64_t left = size - r->arg[2], piece = WEFT_FILE_PIECE - r->arg[2] % WEFT_FILE_PIECE;
    left = left < piece ? left : piece;
    return read_begin(g, f, r, left < r->arg[1] ? left : r->arg[1]);
}
