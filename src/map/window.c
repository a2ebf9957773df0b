/* SPDX-License-Identifier: MIT
 *
 * The pieces in work: submits a piece to the queue, reads its outcome, handles success and failure, and releases the memory of the node
 * that ran it.
 */
#include "map/owner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIND_PIECE    1u
#define RELEASE_PARTS 4u /* how many releases are sent together: as many as 1 MiB of output needs */

int owner_submit(struct map_owner *o, const struct record *r)
{
    const struct map_piece *p = &r->piece;
    atomic_store_explicit(&o->given[p->number % MAP_WINDOW], 0, memory_order_relaxed);
    weft_task task = {
        .kind = KIND_PIECE, .arg = {r->failed_on, p->input | (uint64_t)p->place << 32, p->offset, p->length, p->at}, .tag = p->number};
    int n = weft_submit(o->job->queue, &task, 1, NULL, WEFT_TIMEOUT_DEFAULT);
    return n < 0 ? n : 0;
}

/* --- outcomes --- */

/* Check all fields of an outcome, because any node may have written it. */
int owner_check_outcome(const struct map_outcome *oc, size_t len)
{
    if (len < sizeof *oc || oc->kind > MAP_DEADLY || oc->error_len > MAP_STDERR_BYTES + 64 || oc->tail_len > MAP_CHUNK_BYTES ||
        sizeof *oc + (uint64_t)oc->parts * sizeof(struct map_part) + oc->error_len + oc->tail_len != len)
        return -EPROTO;
    if (oc->kind != MAP_OK)
        return oc->parts || oc->tail_len || oc->output_len ? -EPROTO : 0;
    const struct map_part *part = (const struct map_part *)(const void *)(oc + 1);
    uint64_t bytes = oc->tail_len;
    for (uint32_t i = 0; i < oc->parts; i++) {
        uint64_t n = part[i].len & ~MAP_SPILLED;
        if (n == 0 || n > MAP_LENGTH_MAX || (!(part[i].len & MAP_SPILLED) && n > MAP_CHUNK_BYTES) || bytes > oc->output_len)
            return -EPROTO;
        bytes += n; /* cannot overflow: both are at most 2^48 */
    }
    return bytes == oc->output_len && bytes <= MAP_LENGTH_MAX ? 0 : -EPROTO;
}

int owner_read_outcome(struct map_owner *o, struct record *r, struct map_outcome **out)
{
    size_t len = r->result_len;
    if (r->status == MAP_STATUS_HOME) {
        *out = r->home;
        r->home = NULL;
        return 0;
    }
    if (len < sizeof(struct map_outcome) || len > OWNER_OUTCOME_MAX)
        return base_fail(-EPROTO,
                         "the outcome of a piece from node %u has %zu bytes, not %zu to %u; run the same version of weft on all hosts",
                         r->worker, len, sizeof(struct map_outcome), (unsigned)OWNER_OUTCOME_MAX);
    struct map_outcome *oc = malloc(len);
    if (!oc)
        return base_fail(-ENOMEM, "no memory to read the outcome of a piece, which has %zu bytes" BASE_MEMORY_HINT, len);
    int rc = 0;
    if (r->status == MAP_STATUS_SPILLED) {
        rc = map_scratch_read(&o->job->spill, r->result, oc, len);
    } else {
        const void *p = weft_ptr(o->job->w, r->result, len);
        if (p)
            memcpy(oc, p, len);
        else
            rc = base_fail(-EPROTO, "the outcome of a piece is not in the pool of node %u; run the same version of weft on all hosts",
                           r->worker);
    }
    if (!rc && owner_check_outcome(oc, len))
        rc =
            base_fail(-EPROTO, "the outcome of a piece from node %u is inconsistent; run the same version of weft on all hosts", r->worker);
    if (rc)
        free(oc);
    else
        *out = oc;
    return rc;
}

/* --- releasing memory --- */

void owner_send_releases(struct map_owner *o)
{
    /* Ignore errors: they mean that the node is gone, and its pool with it. */
    if (o->release_count)
        weft_send(o->job->w, o->release_node, MAP_HANDLER_RELEASE, NULL, 0, o->release, o->release_count * sizeof *o->release, NULL);
    o->release_count = 0;
}

void owner_release(struct map_owner *o, uint32_t node, weft_gaddr at)
{
    if (node == 0) {
        weft_free(o->job->w, at);
        return;
    }
    if (o->release_count && (o->release_node != node || o->release_count == sizeof o->release / sizeof *o->release))
        owner_send_releases(o);
    o->release_node = node;
    o->release[o->release_count++] = at;
}

void owner_release_part(struct map_owner *o, const struct record *r, const struct map_part *part)
{
    if (part->len & MAP_SPILLED)
        map_scratch_drop(&o->job->spill, part->at, part->len & ~MAP_SPILLED);
    else
        owner_release(o, r->worker, part->at);
    if (o->release_count >= RELEASE_PARTS)
        owner_send_releases(o); /* the node may be waiting for this memory */
}

void owner_release_outcome(struct map_owner *o, const struct record *r)
{
    if (r->status == 0)
        owner_release(o, r->worker, r->result);
    else if (r->status == MAP_STATUS_SPILLED)
        map_scratch_drop(&o->job->spill, r->result, r->result_len);
}

void owner_finish_piece(struct map_owner *o, struct record *r)
{
    struct map_job *job = o->job;
    job->counts.bytes_done += r->piece.length;
    map_piece_release(job, &r->piece);
    o->held -= r->held;
    r->held = 0;
    pthread_mutex_lock(&job->lock);
    r->state = FREE;
    while (job->low < job->submitted && o->window[job->low % MAP_WINDOW].state == FREE)
        job->low++;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
}

/* The job cannot go on after this outcome: print the error, and return it. */
static int fatal(struct map_owner *o, const struct record *r, const struct map_outcome *oc, const char *error)
{
    const char *name = o->job->options->command ? o->job->options->command[0] : "";
    char where[32] = "";
    if (o->job->apart)
        snprintf(where, sizeof where, " on node %u", r->worker);
    if (oc->kind == MAP_NO_START) {
        int code = map_outcome_code(oc);
        map_say(o->job, "cannot start '%s'%s: %s%s", name, where, base_strerror(code),
                code == E2BIG ? "; its arguments and the environment are too large" : "");
        return code == ENOENT ? -ENOENT : -EACCES;
    }
    if (o->job->apart)
        map_say(o->job, "node %u: %.*s", r->worker, (int)oc->error_len, error);
    else
        map_say(o->job, "%.*s", (int)oc->error_len, error);
    return -ENOSPC;
}

int owner_take_outcome(struct map_owner *o, struct record *r, struct map_outcome *oc, int *status)
{
    struct map_job *job = o->job;
    int rc = 0;
    if (oc->kind == MAP_OK) {
        r->state = COMPLETE;
        if (r->status == MAP_STATUS_HOME) {
            r->home = oc;
            r->worker = 0; /* the owner holds the whole output now */
        } else {
            free(oc); /* the outcome is read again for printing */
        }
        return 0;
    }
    const char *error = (const char *)(oc + 1) + oc->parts * sizeof(struct map_part);
    if (oc->kind == MAP_NO_START || oc->kind == MAP_NO_SPACE) {
        rc = fatal(o, r, oc, error);
        *status = oc->kind == MAP_NO_SPACE ? 1 : rc == -ENOENT ? 127 : 126;
    } else if (r->attempts <= job->options->retries && oc->kind != MAP_DEADLY) {
        job->counts.retried++;
        owner_release_outcome(o, r);
        r->failed_on |= UINT64_C(1) << r->worker;
        o->held -= r->held;
        r->held = 0;
        rc = owner_submit(o, r);
    } else {
        map_report_failure(job, &r->piece, oc, error, r->attempts);
        job->counts.failed++;
        owner_release_outcome(o, r);
        owner_finish_piece(o, r);
    }
    free(oc);
    return rc;
}
