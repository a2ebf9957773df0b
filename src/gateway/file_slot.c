/* SPDX-License-Identifier: MIT
 *
 * The pieces that a handle has requested. The answer to a request is an address and a lease. If whole pieces of a file of another host are
 * read in order, the handle gets them into this node's pool before the program needs them. Such a copy is right if it came from the gateway
 * before the lease ended, or if it has the hash that the gateway has sent. If several hosts read the file, the address may be of a copy at
 * another node, and the handle tells the gateway when it has a copy itself. If the other node does not answer, or its bytes are not right,
 * the handle requests the gateway's own piece.
 */
#include "gateway/file_handle.h"

#include <string.h>

/* Writes the answer to the slot. Called with gateway.lock held. */
void file_slot_told(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    (void)g;
    struct file_slot *s = a->arg;
    int rc = r->status ? r->status : file_lease_fits(r, a->node, s->bytes, s->keeps && !s->lost) && (!s->keeps || r->word[3]) ? 0 : -EPROTO;
    s->error = rc;
    size_t n = rc && r->len ? (r->len < FILE_TEXT - 1 ? r->len : FILE_TEXT - 1) : 0;
    if (n)
        memcpy(s->text, r->payload, n);
    s->text[n] = '\0';
    s->at = rc ? WEFT_NULL : r->word[0];
    s->lease = rc ? 0 : r->word[2];
    s->hash = rc ? 0 : r->word[3];
    s->tell = !rc && r->word[4];
    s->generation = rc ? 0 : r->word[5];
    s->since = s->named = base_now_ns();
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

void file_slot_return(weft_file *f, struct file_slot *s)
{
    if (s->lease)
        file_post_return(f->g, f->node, s->lease);
    file_slot_free(f, s);
}

static struct file_slot *slot_of(struct file_line *line, uint64_t index)
{
    for (unsigned i = 0; i < FILE_SLOTS; i++) {
        int state = file_slot_state(&line->slot[i]);
        if (state != SLOT_FREE && state != SLOT_TAKEN && line->slot[i].index == index)
            return &line->slot[i];
    }
    return NULL;
}

void file_line_begin(weft_file *f, struct file_line *line)
{
    line->away =
        line->left && base_now_ns() - line->left >= atomic_load_explicit(&f->g->file_patience, memory_order_relaxed) / FILE_AWAY_PART;
}

void file_line_end(struct file_line *line)
{
    line->left = base_now_ns();
}

/* How many pieces to request in advance. `keeps`: whole pieces are copied from another host; otherwise the gateway only reads the pieces
 * into its cache. */
static uint64_t ahead_of(const weft_file *f, const struct file_line *line, bool keeps)
{
    return !f->far ? FILE_AHEAD_PIECES : keeps ? line->ahead : FILE_AHEAD_FAR;
}

/* Called when a piece of a file of another host has arrived. Adapts how many pieces are requested in advance. Over a slow link they must be
 * few, because other nodes wait for pieces that this node is getting. */
static void slot_came(struct file_line *line, const struct file_slot *s)
{
    int64_t now = base_now_ns();
    file_pace_came(&line->pace, s->since, now);
    if (now - s->named < FILE_SLOW_NS)
        line->ahead += line->ahead < FILE_AHEAD_FAR;
    else
        line->ahead = (line->ahead + 1) / 2;
}

/* Whether the piece is probably still at the address in the answer: the lease has not ended, or the hash will show whether the piece was
 * there. */
static bool slot_is_fresh(const struct file_slot *s)
{
    int64_t now = base_now_ns();
    return now < s->until || (s->keeps && s->until != INT64_MIN && now < s->since + FILE_LEASE_NS - FILE_COPY_NS);
}

static bool slot_is_current(const struct file_slot *s, int state)
{
    return state == SLOT_ASKED || state == SLOT_GETS || state == SLOT_HELD || (state == SLOT_READY && slot_is_fresh(s));
}

static unsigned line_gets(const struct file_line *line)
{
    unsigned gets = 0;
    for (unsigned i = 0; i < FILE_SLOTS; i++)
        gets += file_slot_state(&line->slot[i]) == SLOT_GETS;
    return gets;
}

/* Whether the get of the piece may be begun. */
static bool slot_may_get(const struct file_line *line, const struct file_slot *s)
{
    if (s->index == line->wanted)
        return true;
    if (s->index - line->wanted > FILE_COPY_AHEAD)
        return false;
    return !line->full && file_pace_may_get(&line->pace, line_gets(line));
}

/* --- requests --- */

/* Frees all slots except those of piece `from` and of the pieces that are requested in advance after it. Adds the leases of the freed slots
 * to request `r`, which ends these leases. `index`: the piece for which a slot is needed. */
static struct file_slot *slot_take(weft_file *f, struct file_line *line, uint64_t from, uint64_t index, weft_request *r)
{
    struct file_slot *free_one = NULL;
    unsigned n = 0;
    for (unsigned i = 0; i < FILE_SLOTS; i++) {
        struct file_slot *s = &line->slot[i];
        int state = file_slot_state(s);
        /* The caller still copies the piece `from`, and checks the piece's lease after that. */
        bool read = s->index == from && index != from && state == SLOT_READY;
        if (s->index - from <= (f->far ? FILE_AHEAD_FAR : FILE_AHEAD_PIECES) && (read || slot_is_current(s, state)))
            continue;
        if (state == SLOT_ASKED && gateway_ask_leave(f->g, s->ask, 0)) /* if the gateway has made a lease meanwhile, it expires there */
            s->lease = 0;
        state = file_slot_state(s);
        if ((state == SLOT_READY || state == SLOT_GETS || state == SLOT_HELD || state == SLOT_TAKEN) && s->lease)
            r->arg[FILE_ENDS_AT + n++] = s->lease;
        file_slot_free(f, s);
        free_one = s;
    }
    return free_one; /* never NULL, because there are more slots than pieces that keep theirs */
}

static int slot_send(weft_file *f, struct file_slot *s, weft_request *r, bool post)
{
    r->arg[0] = s->index;
    r->timeout_ns = INT64_MAX; /* the thread that waits for the piece has a deadline of its own */
    s->keeps = r->flags & FILE_KEEPS;
    s->lost = r->flags & FILE_HERE;
    s->until = base_deadline(FILE_LEASE_NS) - FILE_COPY_NS;
    atomic_store_explicit(&s->state, SLOT_ASKED, memory_order_relaxed);
    int rc = gateway_ask(f->g, &(struct gateway_question){.record = r, .tell = file_slot_told, .arg = s, .post = post}, &s->ask);
    if (rc)
        file_slot_free(f, s);
    return rc;
}

/* Requests a piece. `post`: if there is no room for the message, queue it instead of waiting. */
static int slot_ask(weft_file *f, struct file_line *line, uint64_t from, uint64_t index, uint32_t flags, bool post)
{
    weft_request r = file_request(f, FILE_LEASE);
    struct file_slot *s = slot_take(f, line, from, index, &r);
    r.flags = flags;
    s->index = index;
    s->bytes = file_piece_bytes(file_size(f), index);
    return slot_send(f, s, &r, post);
}

/* How many more pieces may be requested. To map a piece, this node needs room for a copy of it. */
static uint64_t line_room(weft_file *f, struct file_line *line)
{
    uint64_t room = line->cramped ? 0 : line->maps ? file_keep_room(f->g) : UINT64_MAX;
    for (unsigned i = 0; i < FILE_SLOTS; i++) {
        int state = file_slot_state(&line->slot[i]);
        room -= line->maps && room && (state == SLOT_ASKED || state == SLOT_READY);
    }
    return room;
}

void file_slot_ahead(weft_file *f, struct file_line *line, uint64_t index, bool more, bool keeps, uint64_t end)
{
    uint64_t pieces = file_pieces(end), last = index + ahead_of(f, line, more || keeps);
    bool next = line->last != index && (more || (line->last != UINT64_MAX && line->last + 1 == index));
    line->last = index;
    uint64_t room = next ? line_room(f, line) : 0;
    for (uint64_t i = index + 1; room && i <= last && i < pieces; i++) {
        if (slot_of(line, i))
            continue;
        bool whole = i * WEFT_FILE_PIECE + file_piece_bytes(file_size(f), i) <= end;
        bool copy = f->far && whole && (more || keeps);
        uint32_t flags = FILE_AHEAD | (copy ? FILE_KEEPS : 0) | (copy && line->away ? FILE_LATER : 0);
        if (slot_ask(f, line, index, i, flags, true))
            return; /* not an error: the piece is requested again when it is needed */
        room--;
    }
}

/* Requests the piece that the program needs now. */
static int slot_ask_now(weft_file *f, struct file_line *line, uint64_t index, bool keeps, int64_t deadline)
{
    int64_t before = fab_limit(deadline);
    int rc = slot_ask(f, line, index, index, keeps ? FILE_KEEPS : 0, false);
    fab_limit(before);
    return rc;
}

int file_slot_begin(weft_file *f, struct file_line *line, uint64_t index, bool more, bool keeps, uint64_t end, int64_t deadline)
{
    line->full = line->cramped = false;
    if (slot_of(line, index))
        return 0;
    int rc = slot_ask_now(f, line, index, keeps, deadline);
    if (!rc)
        file_slot_ahead(f, line, index, more, keeps, end);
    return rc;
}

bool file_line_begins(const weft_file *f, const struct file_line *line)
{
    return f->far && (line->last == UINT64_MAX || line->last + 1 == file_pieces(file_size(f)));
}

/* --- copies in this node's pool --- */

static bool slot_from_other(const weft_file *f, const struct file_slot *s)
{
    return weft_gaddr_node(s->at) != f->node;
}

/* Requests the gateway's own piece instead of another node's copy. `flags`: FILE_HERE | FILE_KEEPS if the copy is wrong, and also
 * FILE_SILENT if the other node does not answer; 0 if this node has no room for a copy. */
static int slot_ask_again(weft_file *f, struct file_slot *s, uint32_t flags)
{
    weft_request r = file_request(f, FILE_LEASE);
    r.flags = flags;
    r.arg[FILE_ENDS_AT] = s->lease;
    r.arg[FILE_LOST_AT] = flags & FILE_HERE && slot_from_other(f, s) ? weft_gaddr_node(s->at) + 1 : 0;
    file_slot_free(f, s);
    return slot_send(f, s, &r, true);
}

static int slot_silent(weft_file *f, struct file_slot *s)
{
    return slot_ask_again(f, s, FILE_HERE | FILE_KEEPS | FILE_SILENT);
}

static int64_t slot_until(const weft_file *f, const struct file_line *line, const struct file_slot *s)
{
    return file_get_until(f->g, &line->pace, s->since, slot_from_other(f, s));
}

/* Called before a copy is made. Frees a copy that was read, if there are many copies. Usually the next request frees such a copy, but at
 * the end of a file there is no next request. */
static void line_trim(weft_file *f, struct file_line *line)
{
    struct file_slot *old = NULL;
    unsigned copies = 0;
    for (unsigned i = 0; i < FILE_SLOTS; i++) {
        struct file_slot *s = &line->slot[i];
        copies += s->kept != NULL;
        if (file_slot_state(s) == SLOT_HELD && s->index - line->wanted > FILE_AHEAD_FAR)
            old = s;
    }
    if (old && copies >= FILE_COPY_AHEAD + 2)
        file_slot_return(f, old);
}

/* Begins to get the piece. If the pool has no room for the copy, ends the lease, so that no other node waits for this node's copy. Then a
 * read requests the piece again, without a copy; a map does not. */
static int slot_begin(weft_file *f, struct file_line *line, struct file_slot *s)
{
    weft_node *w = f->g->w;
    bool wanted = s->index == line->wanted, other = slot_from_other(f, s);
    line_trim(f, line);
    s->kept = file_keep(f->g, f->node, line->maps && wanted ? s->bytes : 0);
    if (!s->kept && line->maps) {
        line->cramped = true;
        file_slot_return(f, s);
        return wanted ? -ENOMEM : 0;
    }
    if (!s->kept)
        return slot_ask_again(f, s, 0);
    bool before = fab_nowait(!wanted);
    int64_t deadline = fab_limit(INT64_MAX);
    s->since = base_now_ns();
    int64_t until = slot_until(f, line, s);
    fab_limit(until < deadline ? until : deadline); /* if the other node does not send the piece in time, the gateway does */
    int rc = weft_get(w, weft_ptr(w, s->kept->at, s->bytes), s->at, s->bytes, &s->kept->op);
    fab_limit(deadline);
    fab_nowait(before);
    if (!rc) {
        atomic_store_explicit(&s->state, SLOT_GETS, memory_order_relaxed);
        return 0;
    }
    file_keep_leave(f->g, s->kept);
    s->kept = NULL;
    if (rc == -EAGAIN) {
        line->full = true;
        return 0;
    }
    return other ? slot_silent(f, s) : rc;
}

/* Called when the copy has arrived and is right. Tells the gateway of the copy if the gateway has asked for that (`tell`). */
static void slot_hold(weft_file *f, struct file_slot *s)
{
    atomic_store_explicit(&s->state, SLOT_HELD, memory_order_relaxed);
    if (!s->tell)
        return;
    file_keep_tell(f->g, f->there, s->kept, s->lease, s->generation, s->index);
    s->lease = 0;
}

/* Checks whether the bytes of the copy have arrived. */
static int slot_look(weft_file *f, struct file_line *line, struct file_slot *s)
{
    weft_node *w = f->g->w;
    int rc = weft_test(w, &s->kept->op);
    bool other = slot_from_other(f, s);
    if (rc == -EINPROGRESS)
        return base_now_ns() >= slot_until(f, line, s) ? slot_silent(f, s) : 0;
    if (rc)
        return other ? slot_silent(f, s) : rc;
    slot_came(line, s);
    bool known = !other && base_now_ns() < s->until + FILE_COPY_NS;
    if (!known && file_hash(weft_ptr(w, s->kept->at, s->bytes), s->bytes) != s->hash)
        return slot_ask_again(f, s, FILE_HERE | FILE_KEEPS);
    slot_hold(f, s);
    return 0;
}

/* Takes the next step for each piece, in the order of the pieces. Returns 0, or the error of the piece for which the thread waits. */
static int slots_move(weft_file *f, struct file_line *line)
{
    int wanted = 0;
    for (uint64_t i = line->wanted; i <= line->wanted + FILE_AHEAD_FAR; i++) {
        struct file_slot *s = slot_of(line, i);
        if (!s)
            continue;
        int state = file_slot_state(s), rc = 0;
        if (state == SLOT_READY && s->keeps && !slot_is_fresh(s))
            file_slot_free(f, s); /* the lease is ending */
        else if (state == SLOT_READY && s->keeps && slot_may_get(line, s))
            rc = slot_begin(f, line, s);
        else if (state == SLOT_GETS)
            rc = slot_look(f, line, s);
        if (rc && file_slot_state(s) != SLOT_ASKED)
            file_slot_free(f, s);
        if (rc && s->index == line->wanted)
            wanted = rc;
    }
    return wanted;
}

struct slot_wait {
    weft_file *f;
    struct file_line *line;
};

/* Whether the wanted piece has arrived or failed, or slots_move() can take a step. */
static bool slots_moved(void *arg)
{
    const struct slot_wait *wait = arg;
    const struct file_line *line = wait->line;
    for (unsigned i = 0; i < FILE_SLOTS; i++) {
        const struct file_slot *s = &line->slot[i];
        int state = file_slot_state(s);
        /* slots_move() takes no step for such a slot */
        if (state == SLOT_FREE || state == SLOT_TAKEN || s->index - line->wanted > FILE_AHEAD_FAR)
            continue;
        if (s->index == line->wanted && state != SLOT_ASKED && state != SLOT_GETS)
            return true;
        if (state == SLOT_READY && s->keeps && (slot_may_get(line, s) || !slot_is_fresh(s)))
            return true;
        if (state == SLOT_GETS && weft_test(wait->f->g->w, &s->kept->op) != -EINPROGRESS)
            return true;
    }
    return false;
}

/* --- waiting --- */

/* Waits for the next step. If gets of other pieces are under way, the progress thread receives all bytes, and this thread only sleeps. So
 * the bytes of those pieces keep arriving while the program uses this piece. */
static int slots_wait(weft_file *f, struct file_line *line, int64_t deadline)
{
    struct slot_wait wait = {f, line};
    bool more = line_gets(line) > 1;
    return (more ? fab_wait_beside : fab_wait)(f->g->w, slots_moved, &wait, deadline);
}

int file_slot_get(weft_file *f, struct file_line *line, uint64_t index, bool keeps, int64_t deadline, struct file_slot **out)
{
    line->wanted = index;
    for (;;) {
        int64_t before = fab_limit(deadline);
        int rc = slots_move(f, line);
        fab_limit(before);
        if (rc)
            return rc;
        struct file_slot *s = slot_of(line, index);
        int state = s ? file_slot_state(s) : SLOT_FREE;
        if (state == SLOT_HELD || (state == SLOT_READY && !s->keeps && base_now_ns() < s->until)) {
            *out = s;
            return 0;
        }
        if (state == SLOT_READY && s->keeps)
            continue; /* not an error: the answer has just arrived */
        if (state == SLOT_FAILED && s->error != -EAGAIN) {
            rc = file_slot_error(f, s);
            file_slot_free(f, s);
            return rc;
        }
        if (base_now_ns() >= deadline)
            return base_fail(-ETIMEDOUT, "%s at node %u: no answer before the deadline; try again, or allow more time", f->path, f->node);
        if (state == SLOT_ASKED || state == SLOT_GETS) {
            int64_t until = state == SLOT_GETS ? slot_until(f, line, s) : deadline;
            rc = slots_wait(f, line, until < deadline ? until : deadline);
            if (rc && rc != -ETIMEDOUT)
                return rc;
            continue;
        }
        if ((rc = slot_ask_now(f, line, index, keeps, deadline)))
            return rc;
    }
}

void file_slots_expire(weft_file *f, struct file_line *line)
{
    for (unsigned i = 0; i < FILE_SLOTS; i++) {
        int state = file_slot_state(&line->slot[i]);
        if (state == SLOT_GETS || state == SLOT_HELD)
            file_slot_free(f, &line->slot[i]);
        line->slot[i].until = INT64_MIN; /* so that the next request ends this lease; the gateway answers that request with -ESTALE */
    }
}
