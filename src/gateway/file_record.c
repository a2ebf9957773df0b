/* SPDX-License-Identifier: MIT
 *
 * Requests by record about files (weft/request.h), at the asker. A record can name only files that a record has opened.
 *
 * A read needs a lease of one piece of the file. The first record that needs a piece requests the lease, and gets the answer -EAGAIN. When
 * the kernel submits the record again, the lease may be there, and the bytes are copied. A file has at most FILE_RECORD_SLOTS slots; each
 * is for a piece that was requested or leased. A slot that no record has used yet is kept for a while. Otherwise blocks of a kernel that
 * read different pieces could take the slots from each other for ever.
 */
#include <stdlib.h>
#include <string.h>

#include "gateway/file.h"
#include "gateway/record.h"

#define FILE_RECORD_SLOTS 16u
#define AHEAD             4u
#define KEPT_NS           (100 * WEFT_MS) /* a slot that was not used yet is kept for this time */
#define WAITS_NS          (5 * WEFT_MS)   /* if a record waits longer than this for a piece, the file gives back leases that it has used */

enum file_record_state { PIECE_NONE, PIECE_ASKED, PIECE_READY, PIECE_FAILED };
struct file_record_slot {
    struct file_record *f;
    enum file_record_state state;
    bool fresh; /* no record has used the slot yet */
    int error;
    uint32_t copies; /* number of records that are copying from the piece */
    uint64_t index, writes;
    uint64_t lease;
    weft_gaddr at;
    uint32_t bytes;
    int64_t since, until; /* since: time of the request, the answer or the last use; until: end of the lease on this node's clock */
};
/* An open file. gateway.lock protects all members except those that are set when the file is opened. */
struct file_record {
    struct gateway_object object;
    uint32_t node;
    uint64_t there;  /* the file's number at the gateway; 0: not open */
    int broken;      /* error of an invalid answer from the gateway; 0: none */
    uint64_t writes; /* increased when a write begins and ends: pieces that were requested before are of an old generation */
    weft_file_info info;
    struct file_record_slot slot[FILE_RECORD_SLOTS];
};
struct file_read { /* a record that is copying from a piece */
    struct gateway_copy copy;
    struct file_record_slot *slot;
    weft_request *r;
};
struct file_write {
    struct gateway_copy copy;
    struct file_record *f;
    weft_request *r;
    weft_gaddr buffer; /* a copy of the bytes; WEFT_NULL: they are sent from where they are */
};

static weft_request file_request(const struct file_record *f, enum file_kind kind)
{
    return (weft_request){
        .version = WEFT_REQUEST_VERSION, .service = WEFT_SERVICE_FILE, .kind = (uint16_t)kind, .node = f->node, .handle = f->there};
}

static void file_free(struct gateway *g, struct gateway_object *o, bool over)
{
    struct file_record *f = (struct file_record *)(void *)o;
    if (f->there && !over)
        file_post_close(g, f->node, f->there);
    free(f);
}

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

/* If records have waited long for a piece, the cache may be small and full of pieces of which this file has leases. So collects the leases
 * that were used, to give them back. Returns how many are in `leases`. */
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
    int rc = r->status ? r->status : file_lease_fits(r, a->node, s->bytes) ? 0 : -EPROTO;
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
    *ask = file_request(f, FILE_LEASE);
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
    struct file_record *f = s->f; /* now, because another record may take the slot as soon as the lock is released */
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

/* Finds the slot of a piece. GATEWAY_LATER: the piece is there, and `*out` is in use until read_copied(). -EAGAIN: the piece is not there
 * yet; if `*out` is not NULL, it must be requested. With the lock held. */
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
    if (s && s->state == PIECE_READY && !s->copies) { /* the lease is ending, so it is not used any more */
        s->state = PIECE_NONE;
        s = NULL;
    }
    if (!s && slot_prepare(f, index, ask, out))
        ask->timeout_ns = r->timeout_ns;
    return -EAGAIN;
}

/* Whether the next pieces will probably be read: this is the first use of the piece, and the read goes to its end or follows a read of the
 * piece before. With the lock held. */
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
        return base_fail(-ENOMEM, "no memory for a record that reads a file");
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

static int file_read(struct gateway *g, struct file_record *f, weft_request *r)
{
    if (!r->arg[1])
        return base_fail(-EINVAL, "a record that reads a file has a length of 0");
    base_spin_lock(&g->lock);
    uint64_t size = f->info.bytes;
    base_spin_unlock(&g->lock);
    if (r->arg[2] >= size)
        return 0;
    uint64_t left = size - r->arg[2], piece = WEFT_FILE_PIECE - r->arg[2] % WEFT_FILE_PIECE;
    left = left < piece ? left : piece;
    return read_begin(g, f, r, left < r->arg[1] ? left : r->arg[1]);
}

/* --- writing --- */

static void put_info(weft_request *r, const weft_file_info *info)
{
    r->result[1] = info->bytes;
    r->result[2] = info->device;
    r->result[3] = info->inode;
    r->result[4] = (uint64_t)info->modified_ns;
    r->result[5] = info->generation;
}

/* Reads the gateway's answer, which describes the file's present generation. With the lock held. */
static int take_info(struct file_record *f, weft_request *r, const struct gateway_result *result)
{
    if (result->status)
        return result->status;
    if (result->len != sizeof f->info)
        return -EPROTO;
    memcpy(&f->info, result->payload, sizeof f->info);
    put_info(r, &f->info);
    return 0;
}

/* With the lock held. */
static void write_end(struct gateway *g, struct file_write *j, int rc)
{
    struct file_record *f = j->f;
    weft_request *r = j->r;
    f->writes++;
    free(j);
    gateway_record_answer(g, r, rc);
    gateway_object_leave_locked(g, &f->object);
}

static void write_failed(struct gateway *g, struct file_write *j, int rc)
{
    weft_free(g->w, j->buffer);
    base_spin_lock(&g->lock);
    write_end(g, j, rc);
    base_spin_unlock(&g->lock);
}

static void write_told(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *result)
{
    struct file_write *j = a->arg;
    weft_request *r = j->r;
    int rc = take_info(j->f, r, result);
    r->result[0] = rc ? 0 : result->word[0] < r->arg[1] ? result->word[0] : r->arg[1];
    write_end(g, j, rc);
}

/* Sends the request. Its bytes are in this node's pool, from where the gateway fetches them; the gateway notices if they have changed in
 * between. */
static void write_ask(struct gateway *g, struct file_write *j, weft_gaddr at)
{
    weft_request ask = file_request(j->f, FILE_WRITE);
    ask.timeout_ns = j->r->timeout_ns;
    ask.data = at;
    ask.data_bytes = j->r->arg[1];
    ask.arg[0] = j->r->arg[2];
    int rc = gateway_ask(g,
                         &(struct gateway_question){.record = &ask,
                                                    .data = weft_ptr(g->w, at, (size_t)ask.data_bytes),
                                                    .tell = write_told,
                                                    .arg = j,
                                                    .owned = j->buffer,
                                                    .post = true},
                         NULL);
    if (rc)
        write_failed(g, j, rc);
}

static void write_copied(struct gateway_copy *c, int rc)
{
    struct file_write *j = (struct file_write *)(void *)c;
    if (rc)
        write_failed(c->g, j, rc);
    else
        write_ask(c->g, j, j->buffer);
}

static int file_write(struct gateway *g, struct file_record *f, weft_request *r)
{
    bool here = weft_gaddr_node(r->arg[0]) == g->w->rank && weft_gaddr_space(r->arg[0]) == 0;
    if (!r->arg[1] || r->arg[1] > WEFT_FILE_PIECE)
        return base_fail(-EINVAL, "a record that writes to a file has %llu bytes: from 1 to %u are possible", (unsigned long long)r->arg[1],
                         WEFT_FILE_PIECE);
    if (here && !weft_ptr(g->w, r->arg[0], (size_t)r->arg[1]))
        return base_fail(-EFAULT, "a record names address %#llx, %llu bytes, which are not in this node's pool",
                         (unsigned long long)r->arg[0], (unsigned long long)r->arg[1]);
    struct file_write *j = malloc(sizeof *j);
    if (!j)
        return base_fail(-ENOMEM, "no memory for a record that writes to a file");
    *j = (struct file_write){.f = f, .r = r, .buffer = WEFT_NULL};
    int rc = here ? 0 : weft_alloc(g->w, r->arg[1], &j->buffer);
    if (rc) {
        free(j);
        return rc;
    }
    base_spin_lock(&g->lock);
    f->writes++;
    base_spin_unlock(&g->lock);
    if (here) {
        write_ask(g, j, r->arg[0]);
    } else {
        j->copy = (struct gateway_copy){.to = j->buffer, .from = r->arg[0], .bytes = r->arg[1], .done = write_copied};
        gateway_copy(g, &j->copy);
    }
    return GATEWAY_LATER;
}

/* --- opening, and requests that the gateway answers --- */

static int file_open(struct gateway *g, weft_request *r, uint64_t *arg)
{
    if (r->data_bytes > WEFT_FILE_PATH_MAX)
        return base_fail(-ENAMETOOLONG, "a record to open a file has a path of %llu bytes, but at most %u are possible",
                         (unsigned long long)r->data_bytes, WEFT_FILE_PATH_MAX);
    struct file_record *f = calloc(1, sizeof *f);
    if (!f)
        return base_fail(-ENOMEM, "no memory for a file that a record opens");
    f->object.service = WEFT_SERVICE_FILE;
    f->object.free = file_free;
    f->object.uses = 1; /* until the answer comes */
    f->node = r->node;
    int rc = gateway_object_add(g, &f->object);
    if (rc) {
        free(f);
        return rc;
    }
    memset(r->arg, 0, sizeof r->arg);
    r->kind = FILE_OPEN;
    r->handle = 0;
    *arg = (uint64_t)(uintptr_t)f;
    return 1;
}

static void opened(struct gateway *g, struct file_record *f, weft_request *r, const struct gateway_result *result)
{
    if (result->status) {
        gateway_object_close_locked(g, &f->object);
        return;
    }
    f->there = result->word[0];
    f->broken = take_info(f, r, result);
    r->result[0] = f->object.id;
}

/* The server's answer. With the lock held. */
void gateway_file_told(struct gateway *g, weft_request *r, uint64_t arg, const struct gateway_result *result, void *data)
{
    struct file_record *f = (struct file_record *)(uintptr_t)arg;
    (void)data;
    if (r->kind == FILE_OPEN)
        opened(g, f, r, result);
    else if (r->kind == FILE_STAT && take_info(f, r, result) == -EPROTO)
        f->broken = -EPROTO;
    gateway_object_leave_locked(g, &f->object);
}

void gateway_file_late(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    if (r->status == 0 && a->kind == FILE_OPEN)
        file_post_close(g, a->node, r->word[0]);
}

/* --- records --- */

static int file_do(struct gateway *g, struct file_record *f, weft_request *r)
{
    base_spin_lock(&g->lock);
    int broken = f->there ? f->broken : -EBADF;
    base_spin_unlock(&g->lock);
    if (broken && r->kind != WEFT_FILE_CLOSE)
        return broken;
    switch (r->kind) {
    case WEFT_FILE_READ_RANGE: return file_read(g, f, r);
    case WEFT_FILE_WRITE_RANGE: return file_write(g, f, r);
    case WEFT_FILE_STAT:
    case WEFT_FILE_SYNC: return 1;
    case WEFT_FILE_CLOSE: gateway_object_close(g, &f->object); return 0;
    default: return -EINVAL;
    }
}

int gateway_file_submit(struct gateway *g, weft_request *r, void *data, uint64_t *arg)
{
    (void)data;
    memset(r->result, 0, sizeof r->result);
    if (r->kind == WEFT_FILE_OPEN)
        return file_open(g, r, arg);
    struct file_record *f = (struct file_record *)(void *)gateway_object_use(g, r);
    if (!f)
        return -EBADF;
    int rc = file_do(g, f, r);
    if (rc == 1) { /* the gateway answers */
        weft_request ask = file_request(f, r->kind == WEFT_FILE_STAT ? FILE_STAT : FILE_SYNC);
        ask.id = r->id;
        ask.timeout_ns = r->timeout_ns;
        *r = ask;
        *arg = (uint64_t)(uintptr_t)f;
    } else if (rc != GATEWAY_LATER) { /* otherwise the operation that was started releases it */
        gateway_object_leave(g, &f->object);
    }
    return rc;
}
