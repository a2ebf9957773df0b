/* SPDX-License-Identifier: MIT
 *
 * Stores the output of one piece in chunks of this node's pool and, when the pool is full, in the spill file. Forked nodes share one spill
 * file; each node that is apart has its own. On the owner's host, the output survives the node's death, since the owner has mapped the
 * node's pool. From nodes on other hosts the owner fetches the output (home.c).
 */
#include "map/job.h"

#include <stdlib.h>
#include <string.h>

static int add_part(struct map_capture *c, uint64_t at, uint64_t len)
{
    /* Merge parts that are adjacent in the spill file. */
    if (c->count && (len & MAP_SPILLED)) {
        struct map_part *last = &c->parts[c->count - 1];
        if ((last->len & MAP_SPILLED) && last->at + (last->len & ~MAP_SPILLED) == at) {
            last->len += len & ~MAP_SPILLED;
            return 0;
        }
    }
    if (c->count == c->room) {
        uint32_t room = c->room ? 2 * c->room : 16;
        struct map_part *more = realloc(c->parts, room * sizeof *more);
        if (!more)
            return base_fail(-ENOMEM, "no memory for a list of %u parts of an output" BASE_MEMORY_HINT, room);
        c->parts = more;
        c->room = room;
    }
    c->parts[c->count++] = (struct map_part){at, len};
    return 0;
}

uint64_t map_spill_take(struct map_job *job, uint64_t len)
{
    return atomic_fetch_add_explicit(&job->board->spill_bytes, base_round_up(len, MAP_SCRATCH_ALIGN), memory_order_relaxed);
}

/* Store a chunk, which is full or the last one, as a part of the output. */
static int store_chunk(struct map_capture *c)
{
    if (c->at != WEFT_NULL) {
        int rc = add_part(c, c->at, c->used);
        if (rc)
            return rc;
        c->at = WEFT_NULL;
    } else {
        uint64_t to = map_spill_take(c->job, c->used);
        int rc = map_scratch_write(&c->job->spill, to, c->chunk, c->used);
        if (!rc)
            rc = add_part(c, to, c->used | MAP_SPILLED);
        if (rc)
            return rc;
    }
    c->chunk = NULL;
    c->used = 0;
    return 0;
}

int map_capture_room(struct map_capture *c, uint8_t **at, size_t *room, bool may_wait)
{
    if (c->chunk && c->used == MAP_CHUNK_BYTES) {
        int rc = store_chunk(c);
        if (rc)
            return rc;
    }
    if (!c->chunk) {
        if (weft_alloc(c->job->w, MAP_CHUNK_BYTES, &c->at) == 0) {
            c->chunk = weft_ptr(c->job->w, c->at, MAP_CHUNK_BYTES);
        } else {
            c->at = WEFT_NULL;
            if (may_wait && atomic_load_explicit(&c->job->board->printing, memory_order_relaxed))
                return -EAGAIN;
            if (!c->spare)
                c->spare = malloc(MAP_CHUNK_BYTES);
            if (!c->spare)
                return base_fail(-ENOMEM, "no memory for the output of a piece: raise --memory");
            c->chunk = c->spare;
        }
        c->used = 0;
    }
    *at = c->chunk + c->used;
    *room = MAP_CHUNK_BYTES - c->used;
    return 0;
}

void map_capture_commit(struct map_capture *c, size_t len)
{
    c->used += len;
    c->total += len;
}

int map_capture_write(void *capture, const void *bytes, size_t len)
{
    struct map_capture *c = capture;
    const uint8_t *p = bytes;
    while (len) {
        uint8_t *at;
        size_t room;
        int rc = map_capture_room(c, &at, &room, false);
        if (rc)
            return rc;
        size_t n = len < room ? len : room;
        memcpy(at, p, n);
        map_capture_commit(c, n);
        p += n;
        len -= n;
    }
    return 0;
}

static void drop_parts(const struct map_capture *c, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct map_part *part = &c->parts[i];
        if (part->len & MAP_SPILLED)
            map_scratch_drop(&c->job->spill, part->at, part->len & ~MAP_SPILLED);
        else
            weft_free(c->job->w, part->at);
    }
}

/* Uses the slot's own list of parts, because other nodes may have overwritten the outcome. */
void map_capture_refused(struct map_capture *c, const weft_result *result)
{
    drop_parts(c, c->given);
    c->given = 0;
    if (result->status == 0)
        weft_free(c->job->w, result->result);
    else if (result->status == MAP_STATUS_SPILLED)
        map_scratch_drop(&c->job->spill, result->result, result->result_len);
}

void map_capture_drop(struct map_capture *c)
{
    drop_parts(c, c->count);
    c->count = 0;
    c->used = 0; /* keep the chunk for the next piece */
    c->total = 0;
}

static int code_out(enum map_kind kind, int code)
{
    return kind == MAP_SIGNALLED ? base_signal_out(code) : kind >= MAP_NO_START && code > 0 ? -base_status_out(-code) : code;
}

int map_outcome_code(const struct map_outcome *oc)
{
    int code = oc->code;
    return oc->kind == MAP_SIGNALLED ? base_signal_in(code) : oc->kind >= MAP_NO_START && code > 0 ? -base_status_in(-code) : code;
}

int map_capture_finish(struct map_capture *c, enum map_kind kind, int code, const char *error, size_t error_len, weft_result *result)
{
    int rc;
    c->given = 0;
    if (kind != MAP_OK) {
        map_capture_drop(c);
    } else if (c->used > MAP_INLINE_BYTES) {
        rc = store_chunk(c);
        if (rc)
            return rc;
    }
    size_t parts_len = c->count * sizeof *c->parts;
    size_t len = sizeof(struct map_outcome) + parts_len + error_len + c->used;
    if (len > c->outcome_room) {
        uint8_t *more = realloc(c->outcome, len + MAP_INLINE_BYTES);
        if (!more)
            return base_fail(-ENOMEM, "no memory to report the outcome of a piece" BASE_MEMORY_HINT);
        c->outcome = more;
        c->outcome_room = len + MAP_INLINE_BYTES;
    }
    struct map_outcome head = {.kind = kind,
                               .code = code_out(kind, code),
                               .parts = c->count,
                               .error_len = (uint32_t)error_len,
                               .tail_len = (uint32_t)c->used,
                               .output_len = c->total};
    uint8_t *p = c->outcome;
    memcpy(p, &head, sizeof head);
    p += sizeof head;
    if (parts_len)
        memcpy(p, c->parts, parts_len);
    p += parts_len;
    if (error_len)
        memcpy(p, error, error_len);
    p += error_len;
    if (c->used)
        memcpy(p, c->chunk, c->used);

    *result = (weft_result){.result_len = len};
    weft_gaddr at;
    if (weft_alloc(c->job->w, len, &at) == 0) {
        memcpy(weft_ptr(c->job->w, at, len), c->outcome, len);
        result->result = at;
    } else {
        result->status = MAP_STATUS_SPILLED;
        result->result = map_spill_take(c->job, len);
        rc = map_scratch_write(&c->job->spill, result->result, c->outcome, len);
        if (rc)
            return rc;
    }
    /* release: pairs with on_release(). The owner's messages give the same order, but the thread sanitizer does not see these messages. */
    atomic_fetch_add_explicit(&c->job->stored, 1, memory_order_release);
    /* From now on the captured parts belong to the outcome. */
    c->given = c->count;
    c->count = 0;
    c->used = 0;
    c->total = 0;
    return 0;
}

void map_capture_close(struct map_capture *c)
{
    map_capture_drop(c);
    if (c->at != WEFT_NULL)
        weft_free(c->job->w, c->at);
    free(c->spare);
    free(c->parts);
    free(c->outcome);
    memset(c, 0, sizeof *c);
}
