/* SPDX-License-Identifier: MIT
 *
 * The slots of a node: each is a thread that claims a piece, runs the command or the kernel on it, and completes it.
 */
#include "map/job.h"
#include "queue/queue.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* If nodes die while they run a piece, the piece runs again at most this many times, in addition to --retries. Then it fails, since it may
 * be the cause of the deaths. */
#define DEATHS_MAX 3u

/* A node on which a piece has failed passes the piece on, so that another node can take it. All nodes together pass a piece on at most this
 * many times; then the node that claims it runs it. If all other nodes are stopped, a node reaches this limit by itself after about two
 * seconds, so that stopped nodes do not hold up the job for ever. */
#define GIVE_AWAY_MAX 36u

/* A node that gets only pieces that have failed on it waits before it claims again: first WEFT_MS, then twice as long each time, at most
 * WEFT_MS << MISSES_MAX.
 */
#define MISSES_MAX 6u
#define MISS_STEP  (2 * WEFT_MS)

#define READ_STEP (UINT64_C(16) << 20) /* bytes read between two checks of whether the claim must be renewed */

/* The command's arguments for one piece, in one allocation that the caller frees. Returns NULL if there is no memory. */
static char **fill_arguments(const struct map_job *job, const struct map_piece *piece)
{
    struct {
        const char *mark;
        char text[24];
        const char *value;
    } marks[] = {{"{#}", "", NULL}, {"{file}", "", NULL}, {"{offset}", "", NULL}, {"{length}", "", NULL}, {"{node}", "", NULL}};
    snprintf(marks[0].text, 24, "%" PRIu64, piece->number + 1);
    /* A node that is apart has the names only if an argument needs them. */
    marks[1].value = job->inputs ? job->inputs[piece->input].name : "";
    snprintf(marks[2].text, 24, "%" PRIu64, piece->offset);
    snprintf(marks[3].text, 24, "%" PRIu64, piece->length);
    snprintf(marks[4].text, 24, "%" PRIu32, job->rank);
    const size_t kinds = sizeof marks / sizeof marks[0];
    char **argv = NULL, *to = NULL;
    size_t count = 0, bytes = 0;
    for (int pass = 0; pass < 2; pass++) { /* measure, then write */
        if (pass) {
            argv = malloc((count + 1) * sizeof *argv + bytes);
            if (!argv)
                return NULL;
            to = (char *)(argv + count + 1);
        }
        for (count = 0; job->command.argv[count]; count++) {
            if (pass)
                argv[count] = to;
            for (const char *p = job->command.argv[count]; *p;) {
                size_t k = 0;
                while (k < kinds && strncmp(p, marks[k].mark, strlen(marks[k].mark)))
                    k++;
                const char *text = k == kinds ? p : marks[k].value ? marks[k].value : marks[k].text;
                size_t n = k == kinds ? 1 : strlen(text);
                p += k == kinds ? 1 : strlen(marks[k].mark);
                if (pass)
                    memcpy(to, text, n), to += n;
                else
                    bytes += n;
            }
            if (pass)
                *to++ = '\0';
            else
                bytes++;
        }
    }
    argv[count] = NULL;
    return argv;
}

/* The arguments with which /bin/sh runs a script that has no interpreter line. Shells run such scripts in the same way. */
static char **for_the_shell(const struct map_job *job, char *const *argv)
{
    size_t n = 0;
    while (argv[n])
        n++;
    char **with = malloc((n + 2) * sizeof *with);
    if (!with)
        return NULL;
    with[0] = (char *)"sh";
    with[1] = (char *)job->command.path;
    memcpy(with + 2, argv + 1, n * sizeof *with);
    return with;
}

static void run_command(struct map_slot *slot, const struct map_piece *piece, const struct map_span *in, enum map_kind *kind, int *code)
{
    struct map_job *job = slot->job;
    char **filled = job->command.placeholders ? fill_arguments(job, piece) : NULL, **script = NULL;
    char *const *argv = filled ? filled : job->command.argv;
    *kind = MAP_NO_START;
    *code = ENOEXEC;
    if (job->command.placeholders && !filled)
        *code = ENOMEM;
    else if (!slot->script)
        map_command_run(slot, job->command.path, argv, in, kind, code);
    if (*kind == MAP_NO_START && *code == ENOEXEC && (script = for_the_shell(job, argv))) {
        slot->script = true;
        map_command_run(slot, "/bin/sh", script, in, kind, code);
    }
    free(script);
    free(filled);
}

/* Bring a piece's bytes into memory: read them into the slot's buffer or, if the buffer cannot be made so large, map the file. */
static const uint8_t *worker_load(struct map_slot *slot, const struct map_span *in, struct map_mapped *mapped)
{
    struct map_job *job = slot->job;
    int64_t next = base_now_ns() + job->renew_ns;
    if (in->memory)
        return in->memory;
    if (map_slot_buffer(slot, in->length)) {
        uint8_t *to = weft_ptr(job->w, slot->buffer, slot->buffer_bytes);
        uint64_t done = 0;
        while (done < in->length) {
            uint64_t want = in->length - done < READ_STEP ? in->length - done : READ_STEP;
            ssize_t n = pread(in->fd, to + done, want, (off_t)(in->offset + done));
            if (n < 0 && errno == EINTR)
                continue;
            if (n < 0) {
                base_fail(-errno, "cannot read a piece of the input for the kernel: %s", base_strerror(errno));
                return NULL;
            }
            if (n == 0) {
                base_fail(-EIO,
                          "the input ends %llu bytes before the end of the piece: it was truncated during the job; run the job again when "
                          "the file does not change",
                          (unsigned long long)(in->length - done));
                return NULL;
            }
            done += (uint64_t)n;
            map_slot_renew(slot, &next);
        }
        return to;
    }
    if (map_mapped_open(mapped, in->fd, in->offset, in->length))
        return NULL;
    for (uint64_t at = 0; at < mapped->len && !mapped->cut; at += mapped->page) { /* read the pages from the disk */
        (void)((const volatile uint8_t *)mapped->start)[at];
        if (at % READ_STEP == 0)
            map_slot_renew(slot, &next);
    }
    return mapped->bytes;
}

static void run_kernel(struct map_slot *slot, const struct map_piece *piece, const struct map_span *in, enum map_kind *kind, int *code)
{
    struct map_job *job = slot->job;
    struct map_mapped mapped = {0};
    uint64_t offset = piece->offset - (piece->place == MAP_IN_FILE ? piece->at : 0);
    if (job->options->gpu && map_gpu_run(slot, in, offset, kind, code))
        return;
    const uint8_t *bytes = worker_load(slot, in, &mapped);
    if (!bytes) {
        *kind = MAP_NO_INPUT;
        *code = EIO;
        return;
    }
    weft_span span = {bytes, in->length, offset};
    weft_out out = {map_capture_write, &slot->capture};
    int rc = job->kernel->run(&span, job->kernel_arg, &out);
    *kind = rc ? MAP_NO_RESULT : MAP_OK;
    *code = -rc;
    if (map_mapped_close(&mapped)) {
        *kind = MAP_NO_INPUT;
        *code = EIO;
        base_fail(-EIO, "the input ends before the end of the piece: it was truncated during the job; run the job again once the file no "
                        "longer changes");
    }
}

/* Address of the word in the owner's pool that counts how many times the piece was passed on since it was last submitted. */
static weft_gaddr given_word(const struct map_job *job, const weft_lease *claim)
{
    return atomic_load_explicit(&job->board->given, memory_order_relaxed) + claim->task.tag % MAP_WINDOW * sizeof(uint64_t);
}

static uint64_t given_away(struct map_job *job, const weft_lease *claim)
{
    uint64_t times = 0;
    if (claim->attempt == 0) /* no node has claimed the task before */
        return 0;
    weft_gaddr at = given_word(job, claim);
    const _Atomic uint64_t *here = weft_ptr(job->w, at, sizeof *here);
    if (here)
        return atomic_load_explicit(here, memory_order_relaxed);
    return weft_get_blocking(job->w, &times, at, sizeof times) ? 0 : times;
}

/* Whether this node should run the piece: the piece has not failed on this node, or has failed on all living nodes, or was passed on often
 * enough. */
static bool suits(struct map_job *job, const weft_lease *claim)
{
    uint64_t failed_on = claim->task.arg[0];
    if (!(failed_on >> job->rank & 1) || given_away(job, claim) >= GIVE_AWAY_MAX)
        return true;
    for (uint32_t node = 0; node < weft_size(job->w); node++)
        if (!(failed_on >> node & 1) && weft_alive(job->w, node))
            return false;
    return true;
}

static void give_away(struct map_job *job, const weft_lease *claim)
{
    weft_fetch_add_blocking(job->w, given_word(job, claim), 1, NULL);
    weft_release(job->queue, claim); /* refused if the claim has already been lost */
}

/* Records whether the node has found a piece that it should run. If it has not, all its slots wait before they claim again. Without that
 * wait, a node with many slots would be faster than other nodes at claiming the pieces that failed on it. */
static void note_choice(struct map_job *job, bool found)
{
    if (found && atomic_load_explicit(&job->misses, memory_order_relaxed) == 0)
        return;
    pthread_mutex_lock(&job->turn_lock);
    int64_t now = base_now_ns();
    uint32_t misses = atomic_load_explicit(&job->misses, memory_order_relaxed);
    if (found) {
        atomic_store_explicit(&job->misses, 0, memory_order_relaxed);
    } else if (misses == 0 || now >= job->look_ns) { /* if several slots find no suitable piece at the same time, this counts once */
        job->look_ns = now + (WEFT_MS << (misses < MISSES_MAX ? misses : MISSES_MAX));
        atomic_store_explicit(&job->misses, misses + 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&job->turn_lock);
}

/* If a piece has failed on this node before, give it back to the queue, so that another node can try it. Before that, claim another piece,
 * because the queue would hand out the same piece again. Returns false if nothing is claimed now. */
static bool worker_choose(struct map_job *job, weft_lease *claim)
{
    bool found = suits(job, claim);
    if (!found) {
        weft_lease instead;
        bool more = weft_claim(job->queue, &instead, 1, 0) == 1;
        give_away(job, claim);
        found = more && suits(job, &instead);
        if (found)
            *claim = instead;
        else if (more)
            give_away(job, &instead);
    }
    note_choice(job, found);
    return found;
}

/* Whether a piece is valid. This must be checked, because other nodes can write to the pool that holds the tasks. Only nodes that have
 * opened the piece's file can check the range in it. */
static bool possible(const struct map_job *job, const struct map_piece *piece)
{
    if (piece->input >= job->input_count || piece->place > MAP_IN_CACHE || piece->length == 0 || piece->length > MAP_LENGTH_MAX ||
        piece->offset > MAP_LENGTH_MAX)
        return false;
    if (piece->place == MAP_IN_CACHE && (!job->apart || !job->inputs || !job->inputs[piece->input].cached))
        return false;
    if (map_is_apart(job) || (piece->place != MAP_IN_FILE && piece->place != MAP_IN_CACHE))
        return true;
    const struct map_input *in = &job->inputs[piece->input];
    return piece->offset >= in->start && piece->offset + piece->length <= in->size;
}

/* Whether this node is the home of the piece's file. */
static bool is_here(const struct map_job *job, const struct map_piece *piece)
{
    if (piece->place == MAP_IN_CACHE)
        return job->inputs[piece->input].home == job->rank;
    return !map_is_apart(job);
}

/* Whether a request to the piece's home may be lost. Over tb, a route can end and come back. Then a get fails, but a request may be lost
 * without an error. */
static bool loses_requests(const struct map_job *job, const struct map_piece *piece)
{
    weft_link_stats s;
    return weft_link_stat(job->w, job->inputs[piece->input].home, &s, sizeof s) == 0 && strcmp(s.transport, "tb") == 0;
}

static int do_piece(struct map_slot *slot, weft_lease *claim, weft_result *result)
{
    struct map_job *job = slot->job;
    const weft_task *t = &claim->task;
    struct map_piece piece = {.number = t->tag,
                              .input = (uint32_t)t->arg[1],
                              .place = (enum map_place)(t->arg[1] >> 32),
                              .offset = t->arg[2],
                              .length = t->arg[3],
                              .at = t->arg[4]};
    struct map_span in = {.fd = -1, .length = piece.length};
    enum map_kind kind = MAP_OK;
    int code = 0;
    slot->claim = claim;
    slot->lost = false;
    slot->errors.total = 0;
    base_error_clear();
    if (!possible(job, &piece)) {
        kind = MAP_NO_INPUT;
        code = EPROTO;
        base_fail(-EPROTO, "the description of a piece is invalid: another node has overwritten it; run the job again, with the same "
                           "version of weft on all hosts");
    } else if (claim->attempt > given_away(job, claim) + DEATHS_MAX + job->options->retries) {
        kind = MAP_DEADLY;
    } else if (piece.place == MAP_IN_POOL && (in.memory = weft_ptr(job->w, piece.at, piece.length))) {
        ;
    } else if (!is_here(job, &piece)) {
        code = piece.place == MAP_IN_CACHE && loses_requests(job, &piece) ? -map_bring_cached(slot, &piece, &in) : ENOTSUP;
        if (code && code != ENETDOWN)
            code = -map_bring(slot, &piece, &in);
        kind = code ? MAP_NO_INPUT : MAP_OK;
        if (code == ENETDOWN || code == EAGAIN) { /* there was no route to the node, so the piece has not failed */
            weft_release(job->queue, claim);      /* if this fails, the claim ends with its lease */
            slot->lost = true;
        }
    } else {
        in.fd = piece.place == MAP_IN_SPOOL ? job->spool.fd : map_input_fd(job, piece.input, &slot->held);
        if (in.fd < 0) {
            kind = MAP_NO_INPUT;
            code = -in.fd;
        }
        in.offset = piece.place == MAP_IN_SPOOL ? piece.at : piece.offset;
    }
    if (kind == MAP_OK && !slot->lost) {
        if (job->kernel)
            run_kernel(slot, &piece, &in, &kind, &code);
        else
            run_command(slot, &piece, &in, &kind, &code);
    }
    map_brought_drop(slot);
    if (slot->lost) { /* another slot may have the piece now */
        map_capture_drop(&slot->capture);
        return -ESTALE;
    }
    /* If weft itself failed, the outcome has weft's error text instead of the command's stderr. */
    size_t len;
    if (kind >= MAP_NO_START) {
        len = (size_t)snprintf(slot->text, MAP_STDERR_BYTES, "%s", weft_error());
    } else {
        len = map_errors_text(&slot->errors, slot->text);
    }
    int rc = map_capture_finish(&slot->capture, kind, code, slot->text, len, result);
    if (rc) { /* there is no memory for the outcome: report the error in the status */
        map_capture_drop(&slot->capture);
        *result = (weft_result){.status = base_status_out(rc)};
    }
    return 0;
}

static int start_slot(struct map_job *job);

/* Wait until the node may claim again after pieces that do not suit it. */
static void wait_to_look(struct map_job *job)
{
    for (;;) {
        pthread_mutex_lock(&job->turn_lock);
        int64_t left = atomic_load_explicit(&job->misses, memory_order_relaxed) ? job->look_ns - base_now_ns() : 0;
        pthread_mutex_unlock(&job->turn_lock);
        if (left <= 0 || queue_is_shut(job->queue) || atomic_load_explicit(&job->board->ending, memory_order_relaxed))
            return;
        base_sleep_ns(left < MISS_STEP ? left : MISS_STEP);
    }
}

/* Wait for a piece that suits this node, and claim it. Only one idle slot waits for the queue, since that wait polls. The other idle slots
 * sleep until that slot stops waiting. Returns 1 or an error. */
static int wait_for_piece(struct map_job *job, weft_lease *claim)
{
    pthread_mutex_lock(&job->turn_lock);
    job->asleep++;
    while (job->waits)
        pthread_cond_wait(&job->turn, &job->turn_lock);
    job->asleep--;
    job->waits = true;
    pthread_mutex_unlock(&job->turn_lock);
    wait_to_look(job);
    int n = weft_claim(job->queue, claim, 1, WEFT_SECOND);
    if (n == 1 && !worker_choose(job, claim))
        n = -ETIMEDOUT;
    pthread_mutex_lock(&job->turn_lock);
    job->waits = false;
    pthread_cond_signal(&job->turn);
    pthread_mutex_unlock(&job->turn_lock);
    return n;
}

/* Claim a piece that suits this node, without waiting if there is one. `*start`: when the slot's work on it began. Returns like
 * wait_for_piece(). */
static int take_piece(struct map_job *job, weft_lease *claim, int64_t *start)
{
    *start = base_now_ns();
    int n = -ETIMEDOUT;
    if (atomic_load_explicit(&job->misses, memory_order_relaxed) == 0) {
        n = weft_claim(job->queue, claim, 1, 0);
        if (n == 1)
            return worker_choose(job, claim) ? 1 : -ETIMEDOUT;
    }
    if (n == -ETIMEDOUT) {
        n = wait_for_piece(job, claim);
        *start = base_now_ns(); /* do not count the wait as busy time */
    }
    return n;
}

/* Called by a slot that has claimed a piece: start one more slot if none is idle, since there may be more pieces. */
static void start_another(struct map_job *job)
{
    pthread_mutex_lock(&job->turn_lock);
    if (!job->waits && !job->asleep && job->slots_started < job->slots && start_slot(job))
        base_log(BASE_LOG_INFO, "weft map: %s", weft_error()); /* the running slots go on; the next claim tries again */
    pthread_mutex_unlock(&job->turn_lock);
}

static void *slot_main(void *arg)
{
    struct map_slot *slot = arg;
    struct map_job *job = slot->job;
    while (!atomic_load_explicit(&job->board->ending, memory_order_relaxed)) {
        weft_lease claim;
        if (atomic_load_explicit(&job->board->stopped, memory_order_relaxed)) {
            base_sleep_ns(10 * WEFT_MS);
            continue;
        }
        int64_t start;
        int n = take_piece(job, &claim, &start);
        if (n == -ETIMEDOUT)
            continue;
        if (n < 0) {
            if (n != -ESHUTDOWN && !atomic_load_explicit(&job->board->ending, memory_order_relaxed))
                base_log(BASE_LOG_INFO, "weft map: slot %u: %s", slot->index, weft_error());
            break;
        }
        start_another(job);
        atomic_store_explicit(&slot->line->busy, 1, memory_order_relaxed);
        map_tally_tell(job);
        weft_result result;
        bool accepted = false;
        if (do_piece(slot, &claim, &result) == 0) {
            weft_complete(job->queue, &claim, &result, 1, &accepted);
            if (!accepted) /* nobody else will free the outcome */
                map_capture_refused(&slot->capture, &result);
        }
        atomic_store_explicit(&slot->line->busy, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&slot->line->busy_ns, (uint64_t)(base_now_ns() - start), memory_order_relaxed);
        if (accepted)
            atomic_fetch_add_explicit(&slot->line->pieces, 1, memory_order_relaxed);
        map_tally_tell(job);
    }
    /* Another thread or process is ending the job: do nothing more until this process is killed. */
    while (atomic_load_explicit(&job->board->ending, memory_order_relaxed))
        pause();
    map_capture_close(&slot->capture);
    map_held_close(&slot->held);
    map_gpu_leave(slot);
    weft_free(job->w, slot->buffer);
    weft_free(job->w, slot->window);
    weft_free(job->w, slot->words);
    return NULL;
}

/* Start the next slot of this node. The caller holds `turn_lock`. */
static int start_slot(struct map_job *job)
{
    uint32_t i = job->slots_started;
    struct map_slot *slot = &job->slot[i];
    *slot = (struct map_slot){.job = job, .index = i, .line = map_line(job, job->rank, i), .capture.job = job, .held.fd = -1};
    int rc = -ENOMEM;
    if ((map_is_apart(job) || job->look) && (weft_alloc(job->w, (size_t)MAP_BRING_DEPTH * MAP_CHUNK_BYTES, &slot->window) ||
                                             weft_alloc(job->w, MAP_BRING_DEPTH * sizeof(uint64_t), &slot->words))) {
        base_fail(rc, "no memory in the pool for the buffers of slot %u: raise --memory, or use fewer slots (--slots)", i);
        goto fail;
    }
    slot->errors.bytes = malloc(2 * MAP_STDERR_BYTES + 64);
    if (!slot->errors.bytes) {
        base_fail(rc, "no memory for the state of slot %u: use fewer slots (--slots)", i);
        goto fail;
    }
    slot->text = slot->errors.bytes + MAP_STDERR_BYTES;
    rc = -pthread_create(&slot->thread, NULL, slot_main, slot);
    if (rc) {
        base_fail(rc, "cannot start the thread of slot %u: %s" BASE_THREAD_HINT, i, base_strerror(rc));
        goto fail;
    }
    job->slots_started++;
    return 0;
fail:
    free(slot->errors.bytes);
    weft_free(job->w, slot->window);
    weft_free(job->w, slot->words);
    return rc;
}

int map_slots_start(struct map_job *job)
{
    int rc = map_gpu_open(job);
    if (rc)
        return rc;
    job->slot = calloc(job->slots, sizeof *job->slot);
    if (!job->slot)
        return base_fail(-ENOMEM, "no memory for the state of %u slots: use fewer (--slots)", job->slots);
    pthread_mutex_init(&job->turn_lock, NULL);
    pthread_cond_init(&job->turn, NULL);
    pthread_mutex_lock(&job->turn_lock);
    rc = start_slot(job);
    pthread_mutex_unlock(&job->turn_lock);
    return rc;
}

void map_slots_join(struct map_job *job)
{
    if (!job->slot)
        return;
    for (uint32_t i = 0;; i++) { /* check each time: a running slot may start another */
        pthread_mutex_lock(&job->turn_lock);
        bool more = i < job->slots_started;
        pthread_mutex_unlock(&job->turn_lock);
        if (!more)
            break;
        pthread_join(job->slot[i].thread, NULL);
        free(job->slot[i].errors.bytes);
    }
    pthread_cond_destroy(&job->turn);
    pthread_mutex_destroy(&job->turn_lock);
    free(job->slot);
    job->slot = NULL;
    job->slots_started = 0;
}
