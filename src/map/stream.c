/* SPDX-License-Identifier: MIT
 *
 * Inputs that can only be read from front to back, such as pipes and terminals. The owner reads their pieces into its pool, where all nodes
 * can read them. A piece that is too large goes to the spool, an unlinked file. Pieces that are read in advance take at most half of the
 * pool.
 */
#include "map/job.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPOOL_AHEAD 2u /* maximum number of pieces in the spool, for each slot of the job */

static int read_some(const struct map_stream *s, uint8_t *to, size_t want, size_t *got)
{
    ssize_t n;
    do
        n = read(s->fd, to, want);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return base_fail(-errno, "cannot read %s: %s", s->in->name, base_strerror(errno));
    *got = (size_t)n;
    return 0;
}

/* Wait for the owner's condition variable, but at most 20 ms: memory may be freed without a signal to this variable. */
static void wait_a_little(struct map_job *job)
{
    base_cond_wait(&job->changed, &job->lock, base_deadline(20 * WEFT_MS));
}

/* Allocate pool memory for a piece, within the budget for reading ahead. A piece that already has `held` bytes may exceed the budget if no
 * other piece has memory. Waits until there is memory. Returns false if the piece cannot fit. */
static bool take_memory(struct map_job *job, uint64_t bytes, uint64_t held, weft_gaddr *at)
{
    bool got = false;
    pthread_mutex_lock(&job->lock);
    while (bytes <= job->pool_bytes / 2) {
        if (job->input_live + bytes <= job->pool_bytes / 2 || job->input_live == held) {
            got = weft_alloc(job->w, bytes, at) == 0;
            if (got)
                job->input_live += bytes;
            /* If no piece is in work, no memory will be freed: waiting is useless. */
            if (got || job->low == job->submitted)
                break;
        }
        wait_a_little(job);
    }
    pthread_mutex_unlock(&job->lock);
    return got;
}

static void give_memory(struct map_job *job, weft_gaddr at, uint64_t bytes)
{
    weft_free(job->w, at);
    pthread_mutex_lock(&job->lock);
    job->input_live -= bytes;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
}

/* How much pool memory is counted for a stream piece. This depends only on the piece's length, so it need not be stored. */
static uint64_t piece_memory(uint64_t length)
{
    return base_round_up(length + 1, MAP_STEP_BYTES);
}

void map_piece_release(struct map_job *job, const struct map_piece *piece)
{
    if (piece->place == MAP_IN_POOL) {
        give_memory(job, piece->at, piece_memory(piece->length));
    } else if (piece->place == MAP_IN_SPOOL) {
        map_scratch_drop(&job->spool, piece->at, piece->length);
        pthread_mutex_lock(&job->lock);
        job->spool_live--;
        pthread_cond_broadcast(&job->changed);
        pthread_mutex_unlock(&job->lock);
    }
}

/* Write a piece that does not fit in memory to the spool: the bytes read so far (`begun`), and the rest. */
static int spool_piece(struct map_job *job, struct map_stream *s, const uint8_t *begun, size_t begun_len, struct map_piece *piece)
{
    pthread_mutex_lock(&job->lock);
    while (job->spool_live >= SPOOL_AHEAD * job->nodes * job->slots)
        wait_a_little(job);
    job->spool_live++;
    pthread_mutex_unlock(&job->lock);

    /* `window` holds bytes [seen, seen + held) of the piece. It starts with the last bytes that were searched already, since a separator
     * may begin in them. */
    size_t keep = job->separator_len ? job->separator_len - 1 : 0;
    if (keep > begun_len)
        keep = begun_len;
    size_t room = keep + job->separator_len + 4 * MAP_STEP_BYTES;
    uint8_t *window = malloc(room);
    if (!window)
        return base_fail(-ENOMEM, "no memory to find the end of a long piece of %s" BASE_MEMORY_HINT, s->in->name);
    uint64_t block = job->options->block_bytes, length = 0;
    int rc = map_scratch_write(&job->spool, s->spool_end, begun, begun_len);
    memcpy(window, begun + begun_len - keep, keep);
    uint64_t seen = begun_len - keep;
    size_t held = keep;
    while (!rc) {
        size_t fresh = 0, want = room - held;
        /* Read in large steps up to the nominal end, then in small steps, because bytes behind the end must be kept for the next piece. */
        if (seen + held >= block && want > MAP_STEP_BYTES)
            want = MAP_STEP_BYTES;
        else if (seen + held < block && want > block - seen - held)
            want = (size_t)(block - seen - held);
        rc = read_some(s, window + held, want, &fresh);
        if (rc)
            break;
        s->ended = fresh == 0;
        size_t scan = 0, found = 0;
        uint64_t nominal = block > seen ? block - seen : 0;
        held += fresh;
        if (nominal <= held)
            found = map_cut_find(job, window, held, nominal, &scan);
        size_t old = held - fresh, upto = found ? found : held;
        if (upto > old)
            rc = map_scratch_write(&job->spool, s->spool_end + seen + old, window + old, upto - old);
        if (found) {
            s->carry_len = held - found;
            memcpy(s->carry, window + found, s->carry_len);
        }
        if (found || s->ended) {
            length = seen + upto;
            break;
        }
        keep = job->separator_len ? job->separator_len - 1 : 0;
        if (keep > held)
            keep = held;
        memmove(window, window + held - keep, keep);
        seen += held - keep;
        held = keep;
    }
    free(window);
    piece->place = MAP_IN_SPOOL;
    piece->at = s->spool_end;
    piece->length = length;
    s->spool_end += base_round_up(length, MAP_SCRATCH_ALIGN);
    return rc ? rc : 1;
}

int map_stream_next(struct map_job *job, struct map_stream *s, struct map_piece *piece)
{
    if (!s->carry) {
        s->carry = malloc(2 * MAP_STEP_BYTES + job->separator_len);
        if (!s->carry)
            return base_fail(-ENOMEM, "no memory to read %s" BASE_MEMORY_HINT, s->in->name);
    }
    if (s->ended && s->carry_len == 0)
        return 0;

    uint64_t block = job->options->block_bytes;
    uint64_t room = piece_memory((block > s->carry_len ? block : s->carry_len) + MAP_STEP_BYTES);
    piece->offset = s->offset;
    weft_gaddr at;
    size_t len = s->carry_len, scan = 0, end = 0;
    int rc;
    if (!take_memory(job, room, 0, &at)) {
        uint8_t begun[2 * MAP_STEP_BYTES];
        size_t n = len < sizeof begun ? len : sizeof begun;
        memcpy(begun, s->carry, n);
        s->carry_len = 0;
        rc = spool_piece(job, s, begun, n, piece);
        s->offset += piece->length;
        return rc == 1 && piece->length == 0 ? 0 : rc;
    }
    uint8_t *bytes = weft_ptr(job->w, at, room);
    memcpy(bytes, s->carry, len);
    s->carry_len = 0;
    for (;;) {
        end = len >= block ? map_cut_find(job, bytes, len, block, &scan) : 0;
        if (end || s->ended)
            break;
        if (len == room) { /* no separator so far: take twice as much memory */
            weft_gaddr larger;
            if (room > UINT64_MAX / 4 || !take_memory(job, 2 * room, room, &larger)) {
                rc = spool_piece(job, s, bytes, len, piece);
                give_memory(job, at, room);
                s->offset += piece->length;
                return rc;
            }
            uint8_t *to = weft_ptr(job->w, larger, 2 * room);
            memcpy(to, bytes, len);
            give_memory(job, at, room);
            at = larger;
            bytes = to;
            room *= 2;
        }
        size_t want = len < block ? (size_t)(block - len) : MAP_STEP_BYTES, fresh = 0;
        if (want > room - len)
            want = (size_t)(room - len);
        rc = read_some(s, bytes + len, want, &fresh);
        if (rc) {
            give_memory(job, at, room);
            return rc;
        }
        s->ended = fresh == 0;
        len += fresh;
    }
    if (!end)
        end = len;
    if (end == 0) {
        give_memory(job, at, room);
        return 0;
    }
    s->carry_len = len - end;
    memcpy(s->carry, bytes + end, s->carry_len);
    s->offset += end;
    piece->place = MAP_IN_POOL;
    piece->at = at;
    piece->length = end;
    /* Count only piece_memory() from here on. Freeing the piece frees the whole buffer. */
    pthread_mutex_lock(&job->lock);
    job->input_live = job->input_live - room + piece_memory(end);
    pthread_mutex_unlock(&job->lock);
    return 1;
}

void map_stream_reset(struct map_stream *s, const struct map_input *in, int fd)
{
    s->in = in;
    s->fd = fd;
    s->carry_len = 0;
    s->offset = 0;
    s->ended = false;
}

void map_stream_close(struct map_stream *s)
{
    free(s->carry);
    s->carry = NULL;
}
