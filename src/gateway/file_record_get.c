/* SPDX-License-Identifier: MIT
 *
 * Reading by record: copies of whole pieces in this node's pool. If nodes of several hosts have a file open, the gateway answers a request
 * for a piece with the address of its own memory or of a copy at another node (file_holder.c). Then this node gets the piece into its pool,
 * checks the bytes, and tells the gateway of its copy, so that other nodes can get the piece from here. Records copy from this copy. The
 * next step for a piece is taken when a record reads from the file: a kernel that waits for a piece sends its record again and again.
 */
#include "gateway/file_record.h"

#include <stdlib.h>

/* A piece that is being copied to this node's pool. While this exists, the file is not freed. */
struct file_record_get {
    struct gateway_copy copy;
    struct file_record *f;
    struct file_record_slot *slot; /* NULL: nobody waits for the copy any more. Guarded by gateway.lock */
    struct file_kept *kept;
    bool other, tell;
    uint64_t index, lease, hash, generation;
    int64_t since, until; /* until: the end of the lease */
};

/* --- asking --- */

void file_record_ask_of(struct file_record *f, struct file_record_slot *s, uint32_t flags, weft_request *ask)
{
    *ask = file_record_request(f, FILE_LEASE);
    ask->flags = flags;
    ask->timeout_ns = INT64_MAX; /* records of several kernels may wait for the piece; each kernel has a deadline of its own */
    ask->arg[0] = s->index;
    ask->arg[FILE_ENDS_AT] = s->lease;
    ask->arg[FILE_LOST_AT] = flags & FILE_HERE && weft_gaddr_node(s->at) != f->node ? weft_gaddr_node(s->at) + 1 : 0;
    s->state = PIECE_ASKED;
    s->keeps = flags & FILE_KEEPS;
    s->lost = flags & FILE_HERE;
    s->get = NULL;
    s->lease = 0;
    s->since = base_now_ns();
    s->until = base_deadline(FILE_LEASE_NS) - FILE_COPY_NS;
    f->object.uses++; /* for the request, until its answer arrives */
}

static void slot_told(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    struct file_record_slot *s = a->arg;
    bool named = !r->status && s->keeps && r->word[3];
    int rc = r->status ? r->status : file_lease_fits(r, a->node, s->bytes, named && !s->lost) ? 0 : -EPROTO;
    s->error = rc;
    s->at = rc ? WEFT_NULL : r->word[0];
    s->lease = rc ? 0 : r->word[2];
    s->hash = r->word[3];
    s->tell = r->word[4];
    s->generation = r->word[5];
    s->since = base_now_ns();
    s->state = rc == -EAGAIN ? PIECE_NONE : rc ? PIECE_FAILED : named ? PIECE_NAMED : PIECE_READY;
    gateway_object_leave_locked(g, &s->f->object);
}

int file_record_ask(struct gateway *g, struct file_record_slot *s, const weft_request *ask)
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

/* --- getting --- */

/* Requests the gateway's own piece, because the copy of another node does not arrive or is wrong. `flags`: FILE_HERE and others; 0: this
 * node has no room for a copy. The caller holds gateway.lock; the function releases it. If the request cannot be sent, the next record
 * sends one. */
static void slot_ask_again(struct gateway *g, struct file_record_slot *s, uint32_t flags)
{
    weft_request ask;
    file_record_ask_of(s->f, s, flags, &ask);
    base_spin_unlock(&g->lock);
    (void)file_record_ask(g, s, &ask);
}

static void get_free(struct gateway *g, struct file_record_get *j)
{
    if (j->kept)
        file_keep_leave(g, j->kept);
    gateway_object_leave(g, &j->f->object);
    free(j);
}

/* Called when the copy has arrived and is right. From now on records read the copy. */
static void get_came(struct gateway *g, struct file_record_get *j)
{
    struct file_record_slot *s = j->slot;
    if (j->tell)
        file_keep_tell(g, j->f->there, j->kept, j->lease, j->generation, j->index);
    else
        file_post_return(g, j->f->node, j->lease);
    base_spin_lock(&g->lock);
    s->kept = j->kept;
    s->lease = 0;
    s->at = j->kept->at;
    s->since = base_now_ns();
    s->until = INT64_MAX;
    s->state = PIECE_READY;
    base_spin_unlock(&g->lock);
    j->kept = NULL;
}

/* Bytes from the gateway are right if they arrived before the lease ended. All other bytes are compared with the hash. */
static bool get_is_right(struct gateway *g, const struct file_record_get *j)
{
    if (!j->other && base_now_ns() < j->until + FILE_COPY_NS)
        return true;
    return file_hash(weft_ptr(g->w, j->kept->at, j->copy.bytes), j->copy.bytes) == j->hash;
}

static void get_done(struct gateway_copy *c, int rc)
{
    struct file_record_get *j = (struct file_record_get *)(void *)c;
    struct gateway *g = c->g;
    bool right = !rc && get_is_right(g, j);
    base_spin_lock(&g->lock);
    struct file_record_slot *s = j->slot;
    if (right)
        file_pace_came(&j->f->pace, j->since, base_now_ns());
    if (s)
        s->get = NULL; /* the get has ended, so file_record_move() must not give it up any more */
    if (s && !right && (!rc || j->other)) {
        slot_ask_again(g, s, FILE_HERE | FILE_KEEPS | FILE_STRAIGHT | (rc ? FILE_SILENT : 0));
    } else {
        if (s && !right) {
            s->error = rc;
            s->state = PIECE_FAILED;
        }
        base_spin_unlock(&g->lock);
        if (s && right)
            get_came(g, j);
    }
    get_free(g, j);
}

/* Begins to get the piece of a slot, which is in the state PIECE_NAMED, unless another thread has done so. */
static void get_begin(struct gateway *g, struct file_record *f, struct file_record_slot *s)
{
    struct file_record_get *j = malloc(sizeof *j);
    struct file_kept *k = j ? file_keep(g, f->node, 0) : NULL;
    base_spin_lock(&g->lock);
    if (s->state != PIECE_NAMED) {
        base_spin_unlock(&g->lock);
    } else if (!k) {
        slot_ask_again(g, s, 0);
    } else {
        *j = (struct file_record_get){.copy = {.to = k->at, .from = s->at, .bytes = s->bytes, .done = get_done},
                                      .f = f,
                                      .slot = s,
                                      .kept = k,
                                      .other = weft_gaddr_node(s->at) != f->node,
                                      .tell = s->tell,
                                      .index = s->index,
                                      .lease = s->lease,
                                      .hash = s->hash,
                                      .generation = s->generation,
                                      .since = base_now_ns(),
                                      .until = s->until};
        s->get = j;
        s->state = PIECE_GETS;
        f->object.uses++; /* for the copy, until get_free() */
        base_spin_unlock(&g->lock);
        gateway_copy(g, &j->copy);
        return;
    }
    if (k)
        file_keep_leave(g, k);
    free(j);
}

/* --- the next steps --- */

/* Whether the piece is probably still at the address that the gateway has given. If the get is late, the hash shows whether the piece was
 * still there. */
static bool slot_may_get(const struct file_record_slot *s, int64_t now)
{
    return now < s->since + FILE_LEASE_NS - FILE_COPY_NS;
}

/* Finds the first slot, from piece `wanted` on, for which there is a step to take. The caller holds gateway.lock. */
static struct file_record_slot *slot_to_move(const struct gateway *g, struct file_record *f, uint64_t wanted, int64_t now)
{
    struct file_record_slot *next = NULL;
    unsigned gets = 0;
    for (unsigned i = 0; i < FILE_RECORD_SLOTS; i++)
        gets += f->slot[i].state == PIECE_GETS;
    bool may = file_pace_may_get(&f->pace, gets);
    for (unsigned i = 0; i < FILE_RECORD_SLOTS; i++) {
        struct file_record_slot *s = &f->slot[i];
        if (s->state == PIECE_GETS && s->get && now >= file_get_until(g, &f->pace, s->get->since, s->get->other))
            return s;
        bool begins = s->state == PIECE_NAMED && s->writes == f->writes && (may || s->index == wanted || !slot_may_get(s, now));
        if (begins && (!next || s->index - wanted < next->index - wanted))
            next = s;
    }
    return next;
}

void file_record_move(struct gateway *g, struct file_record *f, uint64_t wanted)
{
    if (!f->far)
        return;
    for (;;) {
        int64_t now = base_now_ns();
        base_spin_lock(&g->lock);
        struct file_record_slot *s = slot_to_move(g, f, wanted, now);
        if (s && s->state == PIECE_GETS) { /* the node that sends the copy does not answer */
            s->get->slot = NULL;
            slot_ask_again(g, s, FILE_HERE | FILE_KEEPS | FILE_STRAIGHT | FILE_SILENT);
            continue;
        }
        bool late = s && !slot_may_get(s, now);
        if (late) {
            s->state = PIECE_NONE; /* a record that needs the piece will request it once more; the old lease ends by itself */
            s->lease = 0;
        }
        base_spin_unlock(&g->lock);
        if (!s)
            return;
        if (!late)
            get_begin(g, f, s);
    }
}
