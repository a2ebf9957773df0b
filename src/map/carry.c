/* SPDX-License-Identifier: MIT
 *
 * Bytes that only another node can read, because the nodes are on different hosts: the owner has the spool and input files, other nodes
 * may have input files, too, and each node has its own spill file. A node that needs such bytes sends a request (struct map_ask) with an
 * address in its own pool. A thread of the other node, its carrier, reads the bytes into private memory, puts them at the address, and then
 * adds to a word of the asking node. Answering needs no pool memory, so a full pool cannot block an answer.
 */
#include "map/job.h"

#include <stdlib.h>
#include <string.h>

#define PUTS 4u /* the most puts in flight at once */
/* The most requests of one node that can wait here. A node that sends more violates the protocol. */
#define ASKS_MAX (2 * MAP_SLOTS_MAX * MAP_BRING_DEPTH)

struct asked {
    struct map_ask ask;
    uint32_t from;
    struct asked *next;
};

struct map_carry {
    struct map_job *job;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct asked *first, **last;
    uint32_t waiting[MAP_NODES_MAX]; /* requests of each node in that list */
    bool stop, running;
};

/* The value that is added to the word: 1, plus the errno, if any, in the upper 32 bits, with Linux's number. */
static uint64_t answer_of(int rc)
{
    return 1 + ((uint64_t)-base_status_out(rc) << 32);
}

int map_answer(uint64_t word)
{
    if (word == 0)
        return -EINPROGRESS;
    /* Refuse errors that only this node can detect: -EINPROGRESS, a death, no route. If another node sent one, this node would wait or
     * repeat the request for ever. */
    uint64_t error = word >> 32;
    if ((uint32_t)word != 1 || error >= MAP_ERRNO_MAX)
        return -EPROTO;
    int rc = base_status_in(-(int)error);
    return rc == -EINPROGRESS || rc == -ECONNRESET || rc == -ENETDOWN ? -EPROTO : rc;
}

/* Wait without limit: the operation's memory cannot be reused before the operation has ended. */
static int wait_for(struct map_job *job, weft_op *op)
{
    int rc;
    do
        rc = weft_wait(job->w, op, WEFT_TIMEOUT_DEFAULT);
    while (rc == -ETIMEDOUT);
    return rc;
}

/* --- answering --- */

static void on_ask(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)payload, (void)payload_len;
    struct map_carry *c = arg;
    struct map_ask ask;
    if (header_len != sizeof ask || from >= MAP_NODES_MAX)
        return;
    memcpy(&ask, header, sizeof ask);
    bool drop = ask.what == MAP_ASK_DROP;
    if (ask.what > MAP_ASK_DROP ||
        (!drop && (ask.len > MAP_CHUNK_BYTES || weft_gaddr_node(ask.to) != from || weft_gaddr_node(ask.word) != from)))
        return;
    struct asked *a = malloc(sizeof *a);
    pthread_mutex_lock(&c->lock);
    bool taken = a && c->waiting[from] < ASKS_MAX;
    if (taken) {
        *a = (struct asked){ask, from, NULL};
        c->waiting[from]++;
        *c->last = a;
        c->last = &a->next;
        pthread_cond_signal(&c->more);
    }
    pthread_mutex_unlock(&c->lock);
    if (taken)
        return;
    free(a);
    if (!drop) /* MAP_ASK_DROP needs no answer: without it, the space is freed at the end of the job */
        weft_put_signal(w, ask.to, NULL, 0, ask.word, answer_of(-ENOMEM), NULL);
}

static int read_asked(struct map_job *job, const struct map_ask *ask, struct map_held *held, uint8_t *to)
{
    if (ask->what == MAP_ASK_SPILL)
        return map_scratch_read(&job->spill, ask->offset, to, ask->len);
    if (ask->what == MAP_ASK_SPOOL)
        return map_is_apart(job) ? -EINVAL : map_scratch_read(&job->spool, ask->offset, to, ask->len);
    if (ask->input >= job->input_count || !job->inputs || job->inputs[ask->input].stream || job->inputs[ask->input].home != job->rank)
        return -EINVAL;
    int fd = map_input_fd(job, ask->input, held);
    if (fd < 0)
        return fd;
    return map_read_at(fd, ask->offset, to, ask->len);
}

static void *carrier_main(void *arg)
{
    struct map_carry *c = arg;
    struct map_job *job = c->job;
    struct map_held held = {.fd = -1};
    uint8_t *memory = malloc(PUTS * (size_t)MAP_CHUNK_BYTES);
    weft_op ops[PUTS] = {0};
    bool busy[PUTS] = {false};
    for (uint32_t n = 0;; n = (n + 1) % PUTS) {
        pthread_mutex_lock(&c->lock);
        while (!c->first && !c->stop)
            pthread_cond_wait(&c->more, &c->lock);
        struct asked *a = c->stop ? NULL : c->first;
        if (a && !(c->first = a->next))
            c->last = &c->first;
        if (a)
            c->waiting[a->from]--;
        pthread_mutex_unlock(&c->lock);
        if (!a)
            break;
        if (a->ask.what == MAP_ASK_DROP) {
            map_scratch_drop(&job->spill, a->ask.offset, a->ask.len);
            free(a);
            continue;
        }
        if (busy[n])
            wait_for(job, &ops[n]);
        uint8_t *at = memory ? memory + n * (size_t)MAP_CHUNK_BYTES : NULL;
        int rc = memory ? read_asked(job, &a->ask, &held, at) : -ENOMEM;
        busy[n] = weft_put_signal(job->w, a->ask.to, at, rc ? 0 : (size_t)a->ask.len, a->ask.word, answer_of(rc), &ops[n]) == 0;
        free(a);
    }
    for (uint32_t n = 0; n < PUTS; n++)
        if (busy[n])
            wait_for(job, &ops[n]);
    map_held_close(&held);
    free(memory);
    return NULL;
}

int map_carry_start(struct map_job *job)
{
    struct map_carry *c = calloc(1, sizeof *c);
    if (!c)
        return base_fail(-ENOMEM, "no memory for requests of other nodes" BASE_MEMORY_HINT);
    c->job = job;
    c->last = &c->first;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->more, NULL);
    job->carry = c;
    int rc = -pthread_create(&c->thread, NULL, carrier_main, c);
    if (rc)
        return base_fail(rc, "cannot start the thread that answers other nodes: %s" BASE_THREAD_HINT, base_strerror(rc));
    c->running = true;
    return weft_handle(job->w, MAP_HANDLER_ASK, on_ask, c);
}

void map_carry_stop(struct map_job *job)
{
    struct map_carry *c = job->carry;
    if (!c)
        return;
    if (c->running) {
        weft_handle(job->w, MAP_HANDLER_ASK, NULL, NULL);
        pthread_mutex_lock(&c->lock);
        c->stop = true;
        pthread_cond_signal(&c->more);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
    }
    for (struct asked *a = c->first, *next; a; a = next) {
        next = a->next;
        free(a);
    }
    pthread_cond_destroy(&c->more);
    pthread_mutex_destroy(&c->lock);
    free(c);
    job->carry = NULL;
}

/* --- asking --- */

int map_ask(struct map_job *job, uint32_t node, const struct map_ask *ask)
{
    if (ask->what != MAP_ASK_DROP) {
        _Atomic uint64_t *word = weft_ptr(job->w, ask->word, sizeof *word);
        atomic_store_explicit(word, 0, memory_order_relaxed);
    }
    return weft_send(job->w, node, MAP_HANDLER_ASK, ask, sizeof *ask, NULL, 0, NULL);
}

/* No time-out: late bytes are written to the same place, so it must stay reserved until the other node answers or dies. */
int map_asked(struct map_job *job, uint32_t node, weft_gaddr word)
{
    uint64_t seen = 0;
    for (;;) {
        bool there = weft_alive(job->w, node); /* read before the word: if the node is dead, all bytes that it has put are then visible */
        int rc = weft_wait_until(job->w, word, WEFT_NE, 0, &seen, there ? 100 * WEFT_MS : 0);
        if (rc == 0)
            return map_answer(seen);
        if (rc != -ETIMEDOUT)
            return rc;
        if (!there)
            return base_fail(-ECONNRESET, "node %u, which reads the input for this node, is gone; run the job again", node);
    }
}

/* --- fetching a piece --- */

bool map_slot_buffer(struct map_slot *slot, uint64_t bytes)
{
    struct map_job *job = slot->job;
    if (bytes > slot->buffer_bytes) {
        weft_free(job->w, slot->buffer);
        slot->buffer = WEFT_NULL;
        slot->buffer_bytes = 0;
        const uint64_t most = job->pool_bytes / 2 / job->slots;
        uint64_t room =
            bytes < most ? bytes + bytes / 8 : bytes; /* some spare room, since pieces end at line ends and differ a little in length */
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

static int start_chunk(struct map_slot *slot, const struct map_piece *piece, uint64_t at, size_t len, weft_gaddr to, unsigned k,
                       weft_op *op)
{
    struct map_job *job = slot->job;
    if (piece->place == MAP_IN_POOL)
        return weft_get(job->w, weft_ptr(job->w, to, len), piece->at + at, len, op);
    bool file = piece->place != MAP_IN_SPOOL;
    struct map_ask ask = {.what = file ? MAP_ASK_FILE : MAP_ASK_SPOOL,
                          .input = piece->input,
                          .offset = (file ? piece->offset : piece->at) + at,
                          .len = len,
                          .to = to,
                          .word = slot->words + k * sizeof(uint64_t)};
    return map_ask(job, home_of(job, piece), &ask);
}

static int end_chunk(struct map_slot *slot, const struct map_piece *piece, unsigned k, weft_op *op)
{
    if (piece->place != MAP_IN_POOL)
        return map_asked(slot->job, home_of(slot->job, piece), slot->words + k * sizeof(uint64_t));
    return wait_for(slot->job, op);
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

int map_bring(struct map_slot *slot, const struct map_piece *piece, struct map_span *in)
{
    struct map_job *job = slot->job;
    int64_t next = base_now_ns() + job->renew_ns;
    weft_gaddr to;
    bool whole = map_bring_room(slot, piece, &to);
    weft_op ops[MAP_BRING_DEPTH];
    uint64_t started = 0, ended = 0;
    int rc = 0;
    for (unsigned head = 0, tail = 0; ended < started || (!rc && started < piece->length);) {
        if (!rc && started < piece->length && head - tail < MAP_BRING_DEPTH) {
            unsigned k = head % MAP_BRING_DEPTH;
            uint64_t left = piece->length - started;
            size_t len = left < MAP_CHUNK_BYTES ? (size_t)left : MAP_CHUNK_BYTES;
            rc = start_chunk(slot, piece, started, len, whole ? to + started : to + k * (uint64_t)MAP_CHUNK_BYTES, k, &ops[k]);
            if (!rc) {
                started += len;
                head++;
            }
            continue;
        }
        unsigned k = tail++ % MAP_BRING_DEPTH;
        uint64_t left = piece->length - ended;
        size_t len = left < MAP_CHUNK_BYTES ? (size_t)left : MAP_CHUNK_BYTES;
        int end = end_chunk(slot, piece, k, &ops[k]);
        rc = rc ? rc : end;
        if (!rc && !whole)
            rc = map_scratch_write(&job->spill, slot->brought_at + ended, weft_ptr(job->w, to + k * (uint64_t)MAP_CHUNK_BYTES, len), len);
        ended += len;
        map_slot_renew(slot, &next);
    }
    if (rc == -ENODATA)
        return base_fail(
            rc,
            "the input ends before the end of the piece: it was truncated during the job; run the job again when the file does not change");
    if (rc == -ECONNRESET)
        return base_fail(rc, "node %u, which has the file, is gone; run the job again when its host is back", home_of(job, piece));
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

/* Renew the slot's claim when it is time: reading a large piece may take long. */
void map_slot_renew(struct map_slot *slot, int64_t *next)
{
    int64_t now = base_now_ns();
    if (now < *next)
        return;
    *next = now + slot->job->renew_ns;
    slot->lost = slot->lost || weft_renew(slot->job->queue, slot->claim) == -ESTALE;
}
