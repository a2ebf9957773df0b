/* SPDX-License-Identifier: MIT
 *
 * The owner. A feeder thread cuts the inputs and submits the pieces. The main thread takes completions, submits failed pieces again, prints
 * the outputs in order, and tells nodes to free the memory of printed outputs.
 */
#include "map/owner.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK_NS  (100 * WEFT_MS)
#define TOLD_NS  (10 * WEFT_MS) /* when nothing was printed for this time, the owner counts as not printing */
#define REAP_MAX 64u

/* --- submitting --- */

/* Called by the feeder: waits while the window is full. */
static int feed_piece(struct map_owner *o, const struct map_piece *piece)
{
    struct map_job *job = o->job;
    pthread_mutex_lock(&job->lock);
    while (job->submitted - job->low >= MAP_WINDOW)
        pthread_cond_wait(&job->changed, &job->lock);
    struct record *r = &o->window[job->submitted % MAP_WINDOW];
    *r = (struct record){.piece = *piece, .state = SUBMITTED};
    r->piece.number = job->submitted++;
    job->counts.pieces++;
    job->counts.bytes_in += piece->length;
    pthread_mutex_unlock(&job->lock);
    return owner_submit(o, r);
}

static int feed_inputs(struct map_owner *o)
{
    struct map_job *job = o->job;
    struct map_stream stream = {0};
    struct map_held held = {.fd = -1};
    int rc = 0;
    for (uint32_t i = 0; i < job->input_count && !rc; i++) {
        const struct map_input *in = &job->inputs[i];
        struct map_piece piece = {.input = i};
        struct map_remote remote = {job, in, i};
        int fd = in->home ? -1 : map_input_fd(job, i, &held);
        if (fd < 0 && !in->home) {
            rc = fd;
            break;
        }
        if (in->stream) {
            map_stream_reset(&stream, in, fd);
            while ((rc = map_stream_next(job, &stream, &piece)) == 1) {
                rc = feed_piece(o, &piece);
                if (rc)
                    break;
            }
            continue;
        }
        for (uint64_t at = in->start, end; at < in->size && !rc; at = end) {
            rc = in->home ? map_cut_file(job, in, map_read_remote, &remote, at, &end) : map_cut_file(job, in, map_read_fd, &fd, at, &end);
            if (rc)
                break;
            piece.offset = at;
            piece.length = end - at;
            piece.place = in->cached ? MAP_IN_CACHE : MAP_IN_FILE;
            piece.at = in->cached ? map_identity(in->device, in->inode) : in->start;
            rc = feed_piece(o, &piece);
        }
    }
    map_stream_close(&stream);
    map_held_close(&held);
    return rc;
}

static void *feeder_main(void *arg)
{
    struct map_owner *o = arg;
    struct map_job *job = o->job;
    int rc = feed_inputs(o);
    pthread_mutex_lock(&job->lock);
    if (rc)
        snprintf(job->feed_text, sizeof job->feed_text, "%s", weft_error());
    job->feed_error = rc;
    job->fed = true;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
    return NULL;
}

/* --- printing --- */

/* Allocate only for bytes that have arrived, because the length in the outcome may be wrong. */
static int fold_bytes(struct map_owner *o, uint64_t at, const void *bytes, size_t len)
{
    if (at + len > o->fold_room) {
        uint64_t room = 2 * (at + len);
        uint8_t *more = realloc(o->fold_input, room);
        if (!more)
            return base_fail(-ENOMEM, "no memory to combine the results of the kernel" BASE_MEMORY_HINT);
        o->fold_input = more;
        o->fold_room = room;
    }
    memcpy(o->fold_input + at, bytes, len);
    return 0;
}

static int take_bytes(struct map_owner *o, uint64_t *at, const void *bytes, size_t len)
{
    int rc = o->fold_state ? fold_bytes(o, *at, bytes, len) : map_emit_write(&o->job->emit, bytes, len);
    *at += len;
    return rc;
}

static int print_spilled(struct map_owner *o, uint64_t *at, const struct map_part *part)
{
    uint64_t left = part->len & ~MAP_SPILLED, from = part->at;
    uint8_t *buffer = malloc(MAP_CHUNK_BYTES);
    int rc = buffer ? 0 : base_fail(-ENOMEM, "no memory to read temporary files" BASE_MEMORY_HINT);
    while (!rc && left) {
        size_t n = left < MAP_CHUNK_BYTES ? (size_t)left : MAP_CHUNK_BYTES;
        rc = map_scratch_read(&o->job->spill, from, buffer, n);
        if (!rc)
            rc = take_bytes(o, at, buffer, n);
        from += n;
        left -= n;
    }
    free(buffer);
    return rc;
}

static int print_outcome(struct map_owner *o, const struct record *r, const struct map_outcome *oc)
{
    const struct map_part *part = (const struct map_part *)(const void *)(oc + 1);
    const char *error = (const char *)(part + oc->parts);
    uint64_t at = 0;
    int rc = 0;
    for (uint32_t i = 0; i < oc->parts && !rc; i++) {
        if (part[i].len & MAP_SPILLED) {
            rc = print_spilled(o, &at, &part[i]);
            owner_release_part(o, r, &part[i]);
            continue;
        }
        const uint8_t *bytes = weft_ptr(o->job->w, part[i].at, part[i].len);
        rc = bytes ? take_bytes(o, &at, bytes, part[i].len)
                   : base_fail(-EPROTO, "output of a piece is not in the pool of node %u; run the same version of weft on all hosts",
                               r->worker);
        owner_release_part(o, r, &part[i]);
    }
    if (!rc && oc->tail_len)
        rc = take_bytes(o, &at, error + oc->error_len, oc->tail_len);
    if (!rc && o->fold_state)
        rc = o->job->kernel->fold(o->fold_state, o->fold_input, at);
    if (oc->error_len) {
        map_progress_clear(o->job);
        (void)!write(STDERR_FILENO, error, oc->error_len);
    }
    return rc;
}

/* Record whether the owner is printing. While the owner is printing, nodes may leave output in pipes. Nodes that are apart are not told of
 * short pauses. */
static void set_printing(struct map_owner *o, bool printing)
{
    struct map_job *job = o->job;
    atomic_store_explicit(&job->board->printing, printing, memory_order_relaxed);
    if (!job->apart)
        return;
    int64_t now = base_now_ns();
    if (printing)
        o->printed_ns = now;
    if (printing == o->told || (!printing && now - o->printed_ns < TOLD_NS))
        return;
    o->told = printing;
    map_apart_printing(job, printing);
}

static int print_piece(struct map_owner *o, struct record *r)
{
    struct map_outcome *oc;
    int rc = owner_read_outcome(o, r, &oc);
    if (!rc && oc->kind != MAP_OK) { /* the kind was MAP_OK when the piece completed, so a node has overwritten the outcome */
        free(oc);
        rc = base_fail(-EPROTO, "node %u changed the outcome of a piece while this node read it; run the same version of weft on all hosts",
                       r->worker);
    }
    if (rc)
        return rc;
    set_printing(o, true);
    rc = print_outcome(o, r, oc);
    owner_release_outcome(o, r);
    if (oc->parts)
        owner_send_releases(o);
    free(oc);
    if (!rc) {
        o->job->counts.done++;
        owner_finish_piece(o, r);
    }
    return rc;
}

/* --- completions --- */

static int handle_done(struct map_owner *o, const weft_done *d, int *status)
{
    struct record *r = &o->window[d->tag % MAP_WINDOW];
    if (r->state != SUBMITTED || r->piece.number != d->tag || d->worker >= o->job->nodes)
        return base_fail(-EPROTO, "a result arrived for a piece that no node works on; run the same version of weft on all hosts");
    r->worker = d->worker;
    r->status = base_status_in(d->status);
    r->result = d->result;
    r->result_len = d->result_len;
    r->attempts++;
    if (r->status != 0 && r->status != MAP_STATUS_SPILLED)
        return base_fail(-EIO, "node %u could not keep the outcome of a piece: %s", r->worker,
                         r->status < 0 && r->status > -MAP_ERRNO_MAX ? base_strerror(r->status) : "for an unknown reason");
    if (o->home && r->worker)
        return home_expect(o, r);
    struct map_outcome *oc = NULL;
    int rc = owner_read_outcome(o, r, &oc);
    return rc ? rc : owner_take_outcome(o, r, oc, status);
}

/* Print all complete pieces or, with output in order, those before the first incomplete piece. */
static int print_ready(struct map_owner *o, const weft_done *done, int count)
{
    struct map_job *job = o->job;
    int rc = 0;
    pthread_mutex_lock(&job->lock); /* entries of the window from `submitted` on belong to the feeder */
    uint64_t submitted = job->submitted;
    pthread_mutex_unlock(&job->lock);
    if (job->options->unordered) {
        for (int i = 0; i < count && !rc; i++) {
            struct record *r = &o->window[done[i].tag % MAP_WINDOW];
            if (r->state == COMPLETE && r->piece.number == done[i].tag)
                rc = print_piece(o, r);
        }
        uint64_t low = job->low;
        for (uint64_t i = 0; low + i < submitted && !rc && o->home; i++) { /* take the pieces whose outputs have been fetched by now */
            struct record *r = &o->window[(low + i) % MAP_WINDOW];
            if (r->state == COMPLETE)
                rc = print_piece(o, r);
        }
        return rc;
    }
    while (!rc && job->low < submitted) {
        struct record *r = &o->window[job->low % MAP_WINDOW];
        if (r->state != COMPLETE || r->piece.number != job->low)
            break;
        rc = print_piece(o, r);
        map_progress_show(job);
    }
    return rc;
}

/* No piece is outstanding: wait until the feeder submits a piece. Returns true if the feeder will submit no more pieces, so that the job is
 * done. */
static bool wait_for_feeder(struct map_job *job)
{
    pthread_mutex_lock(&job->lock);
    bool end = job->fed && job->low == job->submitted;
    if (!end && job->low == job->submitted)
        base_cond_wait(&job->changed, &job->lock, base_deadline(TICK_NS));
    pthread_mutex_unlock(&job->lock);
    return end;
}

static int main_loop(struct map_owner *o, int *status)
{
    struct map_job *job = o->job;
    for (;;) {
        weft_done done[REAP_MAX];
        int rc = 0, n = weft_reap(job->queue, done, REAP_MAX, 0), came = o->home ? home_step(o, status) : 0;
        if (came < 0)
            return came;
        if ((n == -ETIMEDOUT || n == -ENOENT) && came == 0) { /* idle: do the low-priority work */
            rc = map_emit_flush(&job->emit);
            if (rc)
                return rc;
            owner_send_releases(o);
            set_printing(o, false);
            if (home_busy(o))
                home_wait(o);
            else if (n == -ETIMEDOUT)
                n = weft_reap(job->queue, done, REAP_MAX, o->told ? TOLD_NS : TICK_NS);
        }
        if (n == -ENOENT && wait_for_feeder(job) && !job->feed_error)
            return 0;
        if (n < 0 && n != -ENOENT && n != -ETIMEDOUT)
            return n;
        for (int i = 0; i < n && !rc; i++)
            rc = handle_done(o, &done[i], status);
        if (!rc && (n > 0 || came))
            rc = print_ready(o, done, n > 0 ? n : 0);
        if (rc)
            return rc;
        if (job->feed_error)
            return base_fail(job->feed_error, "%s", job->feed_text);
        if (job->apart)
            map_apart_check(job, home_unsure);
        else
            map_forks_check(job);
        map_progress_show(job);
    }
}

static int emit_out(void *arg, const void *bytes, size_t len)
{
    return map_emit_write(arg, bytes, len);
}

/* --- the whole job --- */

static int make_given(struct map_owner *o)
{
    weft_gaddr at;
    int rc = weft_alloc(o->job->w, MAP_WINDOW * sizeof *o->given, &at);
    if (rc)
        return rc;
    o->given = weft_ptr(o->job->w, at, MAP_WINDOW * sizeof *o->given);
    atomic_store_explicit(&o->job->board->given, at, memory_order_relaxed);
    return 0;
}

int map_owner_run(struct map_job *job)
{
    struct map_owner *o = calloc(1, sizeof *o);
    if (!o)
        return base_fail(-ENOMEM, "no memory for the list of pieces" BASE_MEMORY_HINT);
    job->owner = o;
    o->job = job;
    int rc = 0;
    if (job->kernel && job->kernel->fold) {
        o->fold_state = calloc(1, job->kernel->state_bytes);
        rc = o->fold_state ? 0 : base_fail(-ENOMEM, "no memory for the combined result of the kernel" BASE_MEMORY_HINT);
    }
    if (!rc)
        rc = job->apart ? map_apart_start(job) : map_forks_start(job);
    if (!rc)
        rc = make_given(o);
    if (!rc && job->apart && !(rc = home_open(o)) && !(rc = map_homes_offer(job)) && !(rc = map_apart_order(job)))
        rc = map_homes_open(job);
    if (!rc)
        rc = map_slots_start(job);
    job->counts.open_ns = base_now_ns();
    if (!rc) {
        pthread_t feeder; /* not joined: main_loop() waits for job->fed, the thread's last action */
        rc = -pthread_create(&feeder, NULL, feeder_main, o);
        if (rc)
            base_fail(rc, "cannot start the thread that reads the input: %s" BASE_THREAD_HINT, base_strerror(rc));
        else
            pthread_detach(feeder);
    }
    int status = 0;
    if (!rc)
        rc = main_loop(o, &status);
    if (!rc && o->fold_state) {
        weft_out out = {emit_out, &job->emit};
        rc = job->kernel->finish(o->fold_state, &out);
    }
    /* An incomplete output must not replace an existing file. */
    bool kept = job->counts.failed && job->emit.final_path, existed = job->emit.exists;
    if (!rc && kept) {
        map_emit_abandon(&job->emit);
        job->emit.bytes = 0;
    } else if (!rc) {
        rc = map_emit_close(&job->emit);
    }
    map_progress_clear(job);
    if (rc)                          /* threads still use this memory, so it is freed only at the end of the process */
        return status ? status : rc; /* if there is an exit status, the error has been printed already */
    job->counts.end_ns = base_now_ns();
    job->over = true;
    weft_queue_shutdown(job->queue);
    map_slots_join(job);
    map_gpu_close(job);
    if (job->apart)
        map_apart_wait(job, home_unsure);
    else
        map_forks_wait(job);
    weft_queue_close(job->queue);
    weft_close(job->w);
    if (kept)
        map_say(job, "the output %s was not %s, because %" PRIu64 " of %" PRIu64 " pieces failed: see the messages above",
                job->options->output, existed ? "changed" : "created", job->counts.failed, job->counts.pieces);
    else if (job->counts.failed)
        map_say(job, "%" PRIu64 " of %" PRIu64 " pieces failed: see the messages above; their output is missing", job->counts.failed,
                job->counts.pieces);
    rc = map_report_stats(job);
    return rc ? rc : job->counts.failed ? 1 : 0;
}

void map_owner_free(struct map_job *job)
{
    struct map_owner *o = job->owner;
    if (!o)
        return;
    home_free(o);
    free(o->fold_state);
    free(o->fold_input);
    free(o);
    job->owner = NULL;
}
