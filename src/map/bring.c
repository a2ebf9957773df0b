/* SPDX-License-Identifier: MIT
 *
 * Fetches the bytes of a piece that only another node can read: from that node's pool, or by requests to its carriers (carry.c). The bytes
 * go into this node's pool or, if the pool has no room, into this node's spill file.
 */
#include "map/job.h"

#include "fabric/fabric.h"
#include "mem/mem.h"

#include "weft/file.h"

/* --- asking --- */

int map_ask(struct map_job *job, uint32_t node, const struct map_ask *ask)
{
    if (ask->what != MAP_ASK_DROP) {
        _Atomic uint64_t *word = weft_ptr(job->w, ask->word, sizeof *word);
        atomic_store_explicit(word, 0, memory_order_relaxed);
    }
    return weft_send(job->w, node, MAP_HANDLER_ASK, ask, sizeof *ask, NULL, 0, NULL);
}

/* No time-out: until the other node answers or dies, it may write to this memory. */
int map_asked(struct map_job *job, uint32_t node, weft_gaddr word, struct map_slot *slot, int64_t *next)
{
    uint64_t seen = 0;
    for (;;) {
        bool there = weft_alive(job->w, node); /* read before the word: if the node is dead, all bytes that it has put are then visible */
        int rc = weft_wait_until(job->w, word, WEFT_NE, 0, &seen, there ? 100 * WEFT_MS : 0);
        if (rc == 0)
            return map_answer(seen);
        if (rc != -ETIMEDOUT)
            return rc;
        if (slot)
            map_slot_renew(slot, next);
        if (!there)
            return base_fail(-ECONNRESET, "node %u, which reads the input for this node, is gone; run the job again", node);
    }
}

int map_answer(uint64_t word)
{
    if (word == 0)
        return -EINPROGRESS;
    /* Refuse error numbers that only this node itself can set. If another node sent one of those, this node would wait or ask for ever. */
    uint64_t error = word >> 32;
    if ((uint32_t)word != 1 || error >= MAP_ERRNO_MAX)
        return -EPROTO;
    int rc = base_status_in(-(int)error);
    return rc == -EINPROGRESS || rc == -ECONNRESET || rc == -ENETDOWN ? -EPROTO : rc;
}

/* --- fetching a piece --- */

/* No time-out: until the operation has ended, it uses its memory. */
int map_ended(struct map_job *job, weft_op *op)
{
    int rc;
    do
        rc = weft_wait(job->w, op, WEFT_TIMEOUT_DEFAULT);
    while (rc == -ETIMEDOUT);
    return rc;
}

bool map_slot_buffer(struct map_slot *slot, uint64_t bytes)
{
    struct map_job *job = slot->job;
    if (bytes > slot->buffer_bytes) {
        weft_free(job->w, slot->buffer);
        slot->buffer = WEFT_NULL;
        slot->buffer_bytes = 0;
        slot->buffer_touched = false;
        const uint64_t most = job->pool_bytes / 2 / job->slots;
        uint64_t room = bytes < most ? bytes + bytes / 8 : bytes; /* with some spare bytes, since pieces differ a little in length */
        if (room <= most && weft_alloc(job->w, room, &slot->buffer) == 0)
            slot->buffer_bytes = room;
    }
    return slot->buffer_bytes >= bytes && bytes;
}

/* The node that has the piece's bytes. */
static uint32_t home_of(const struct map_job *job, const struct map_piece *piece)
{
    return piece->place == MAP_IN_CACHE ? job->inputs[piece->input].home : 0;
}

/* How many bytes to fetch at once, at offset `at` of the piece. A chunk from the cache lies in one piece of the cache. */
static size_t chunk_bytes(const struct map_piece *piece, uint64_t at, bool whole)
{
    uint64_t left = piece->length - at, most = MAP_CHUNK_BYTES;
    if (piece->place == MAP_IN_CACHE) {
        uint64_t end = WEFT_FILE_PIECE - (piece->offset + at) % WEFT_FILE_PIECE;
        most = whole || end < most ? end : most;
    }
    return (size_t)(left < most ? left : most);
}

static int start_chunk(struct map_slot *slot, const struct map_piece *piece, uint64_t at, size_t len, weft_gaddr to, unsigned k,
                       weft_op *op)
{
    struct map_job *job = slot->job;
    if (piece->place == MAP_IN_POOL)
        return weft_get(job->w, weft_ptr(job->w, to, len), piece->at + at, len, op);
    bool file = piece->place != MAP_IN_SPOOL;
    struct map_ask ask = {.what = file ? MAP_ASK_FILE : MAP_ASK_SPOOL,
                          .input = piece->input,
                          .file = piece->place == MAP_IN_CACHE ? piece->at : 0,
                          .offset = (file ? piece->offset : piece->at) + at,
                          .len = len,
                          .to = to,
                          .word = slot->words + k * sizeof(uint64_t)};
    return map_ask(job, home_of(job, piece), &ask);
}

static int end_chunk(struct map_slot *slot, const struct map_piece *piece, unsigned k, weft_op *op, int64_t *next)
{
    if (piece->place != MAP_IN_POOL)
        return map_asked(slot->job, home_of(slot->job, piece), slot->words + k * sizeof(uint64_t), slot, next);
    return map_ended(slot->job, op);
}

bool map_bring_room(struct map_slot *slot, const struct map_piece *piece, weft_gaddr *to)
{
    const uint64_t window = (uint64_t)MAP_BRING_DEPTH * MAP_CHUNK_BYTES;
    *to = slot->window;
    if (piece->length <= window)
        return true;
    if (map_slot_buffer(slot, piece->length)) {
        *to = slot->buffer;
        return true;
    }
    if (!slot->brought) {
        slot->brought = piece->length;
        slot->brought_at = map_spill_take(slot->job, piece->length);
    }
    return false;
}

void map_brought(struct map_slot *slot, uint64_t length, bool whole, weft_gaddr to, struct map_span *in)
{
    if (whole)
        in->memory = weft_ptr(slot->job->w, to, length);
    else
        in->fd = slot->job->spill.fd;
    in->offset = slot->brought_at;
}

/* Takes the memory of the slot's buffer from the host. Otherwise the progress thread, which receives the bytes for all slots, would take
 * it page by page. */
static void touch_buffer(struct map_slot *slot, uint64_t bytes)
{
    slot->buffer_touched = true;
    mem_prepare(slot->job->w->pool, weft_gaddr_offset(slot->buffer), bytes);
}

int map_bring(struct map_slot *slot, const struct map_piece *piece, struct map_span *in)
{
    struct map_job *job = slot->job;
    int64_t next = base_now_ns() + job->renew_ns;
    weft_gaddr to;
    bool whole = map_bring_room(slot, piece, &to);
    weft_op ops[MAP_BRING_DEPTH];
    uint64_t started = 0, ended = 0;
    int rc = 0;
    for (unsigned head = 0, tail = 0; ended < started || (!rc && !slot->lost && started < piece->length);) {
        if (!rc && !slot->lost && started < piece->length && head - tail < MAP_BRING_DEPTH) {
            unsigned k = head % MAP_BRING_DEPTH;
            size_t len = chunk_bytes(piece, started, whole);
            rc = start_chunk(slot, piece, started, len, whole ? to + started : to + k * (uint64_t)MAP_CHUNK_BYTES, k, &ops[k]);
            if (!rc) {
                started += len;
                head++;
            }
            continue;
        }
        if (whole && to == slot->buffer && !slot->buffer_touched)
            touch_buffer(slot, piece->length); /* while the answers to the requests come */
        unsigned k = tail++ % MAP_BRING_DEPTH;
        size_t len = chunk_bytes(piece, ended, whole);
        int end = end_chunk(slot, piece, k, &ops[k], &next);
        rc = rc ? rc : end;
        if (!rc && !whole)
            rc = map_scratch_write(&job->spill, slot->brought_at + ended, weft_ptr(job->w, to + k * (uint64_t)MAP_CHUNK_BYTES, len), len);
        ended += len;
        map_slot_renew(slot, &next);
    }
    if (rc == -ENODATA)
        return base_fail(rc, "the input ends before the end of the piece: it was truncated during the job; run the job again once the file "
                             "no longer changes");
    if (rc == -ECONNRESET)
        return base_fail(rc, "node %u, which has the file, is gone; run the job again when its host is back", home_of(job, piece));
    if (rc == -ESTALE)
        return base_fail(rc, "%s: the file was replaced by another one during the job; run the job again",
                         job->inputs ? job->inputs[piece->input].name : "an input");
    if (rc)
        return base_fail(rc, "cannot read a piece of the input at node %u: %s", home_of(job, piece), base_strerror(rc));
    map_brought(slot, piece->length, whole, to, in);
    return 0;
}

void map_brought_drop(struct map_slot *slot)
{
    if (slot->brought)
        map_scratch_drop(&slot->job->spill, slot->brought_at, slot->brought);
    slot->brought = 0;
}

/* Reading a large piece may take longer than the lease of its claim. */
void map_slot_renew(struct map_slot *slot, int64_t *next)
{
    int64_t now = base_now_ns();
    if (now < *next)
        return;
    *next = now + slot->job->renew_ns;
    slot->lost = slot->lost || weft_renew(slot->job->queue, slot->claim) == -ESTALE;
}
