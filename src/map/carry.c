/* SPDX-License-Identifier: MIT
 *
 * Bytes that only another node can read, because the nodes are on different hosts: the owner has the spool and input files, other nodes
 * may have input files, too, and each node has its own spill file. A node that needs such bytes sends a request (struct map_ask) with an
 * address in its own pool. A thread of the other node, a carrier, puts the bytes at the address, and then adds to a word of the asking
 * node. It takes them from the cache of this node's file service (cached.c), or reads them into private memory. Answering needs no pool
 * memory, so a full pool cannot block an answer. Each asking node has carriers of its own, so that a slow or stopped one does not hold up
 * others.
 */
#include "map/job.h"

#include <stdlib.h>
#include <string.h>

#include "weft/file.h"

#define CARRIERS 8u /* threads that answer a node: some wait for the disk while others put */
/* The bytes are put in parts of MAP_CHUNK_BYTES. Few of them are under way to a node, because everything else that this node sends to it,
 * as claims of pieces, waits behind them. But if a part takes long only because the network is long, more are needed to fill the network
 * (put_ended()). */
#define PUTS_LEAST 4u
#define PUTS_MOST  16u
#define PUTS_QUEUE 4
#define PARTS      (MAP_ASK_BYTES / MAP_CHUNK_BYTES)
/* The most requests of one node that can wait here. A node that sends more violates the protocol. */
#define ASKS_MAX (2 * MAP_SLOTS_MAX * MAP_BRING_DEPTH)

struct asked {
    struct map_ask ask;
    struct asked *next;
};

struct asker {
    struct map_carry *carry;
    uint32_t node;
    struct asked *first, **last;
    uint32_t waiting; /* requests in that list */
    uint32_t idle, running;
    pthread_t thread[CARRIERS]; /* [running] */
    pthread_cond_t more;
    uint32_t puts, puts_most; /* parts under way, and how many there may be */
    uint32_t ended;           /* parts that have ended since puts_most was looked at */
    int64_t shortest;         /* the shortest time that a part has taken */
    pthread_cond_t put_over;
};

struct map_carry {
    struct map_job *job;
    pthread_mutex_t lock;
    struct asker from[MAP_NODES_MAX];
    bool stop;
};

/* What one carrier keeps. */
struct carrier {
    struct map_held held;
    struct map_shown shown;
    uint8_t *memory; /* [MAP_CHUNK_BYTES]; NULL: not needed yet */
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

static void *carrier_main(void *arg);

static bool comes_before(const struct map_ask *a, const struct map_ask *b)
{
    return a->input < b->input || (a->input == b->input && a->offset < b->offset);
}

/* Adds a request to the list. Those for inputs are in the order of the input: so one piece after the other becomes complete, and is worked
 * on while the next one comes. Otherwise all slots would wait for the network at the same time, and then none. */
static void asker_put(struct asker *f, struct asked *a)
{
    struct asked **at = f->last;
    if (a->ask.what == MAP_ASK_FILE)
        for (at = &f->first; *at && ((*at)->ask.what != MAP_ASK_FILE || !comes_before(&a->ask, &(*at)->ask));)
            at = &(*at)->next;
    a->next = *at;
    *at = a;
    if (!a->next)
        f->last = &a->next;
    f->waiting++;
}

/* Takes a request. Starts one more carrier for the node if all are busy. False: there is no memory, or too many requests wait. */
static bool asker_add(struct asker *f, const struct map_ask *ask)
{
    struct asked *a = malloc(sizeof *a);
    pthread_mutex_lock(&f->carry->lock);
    bool taken = a && f->waiting < ASKS_MAX && !f->carry->stop;
    if (taken && f->idle <= f->waiting && f->running < CARRIERS && pthread_create(&f->thread[f->running], NULL, carrier_main, f) == 0)
        f->running++;
    taken = taken && f->running;
    if (taken) {
        *a = (struct asked){*ask, NULL};
        asker_put(f, a);
        pthread_cond_signal(&f->more);
    }
    pthread_mutex_unlock(&f->carry->lock);
    if (!taken)
        free(a);
    return taken;
}

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
        (!drop && (ask.len > MAP_ASK_BYTES || weft_gaddr_node(ask.to) != from || weft_gaddr_node(ask.word) != from)))
        return;
    if (!asker_add(&c->from[from], &ask) && !drop) /* MAP_ASK_DROP needs no answer: without it, the space is freed at the end of the job */
        weft_put_signal(w, ask.to, NULL, 0, ask.word, answer_of(-ENOMEM), NULL);
}

/* Whether the node may ask for bytes of this input here. */
static int check_input(const struct map_job *job, const struct map_ask *ask)
{
    if (ask->input >= job->input_count || !job->inputs || job->inputs[ask->input].stream || job->inputs[ask->input].home != job->rank)
        return -EINVAL;
    const struct map_input *in = &job->inputs[ask->input];
    return ask->file && ask->file != map_identity(in->device, in->inode) ? -ESTALE : 0;
}

/* Reads `len` bytes of a request, from its byte `at` on. */
static int read_asked(struct map_job *job, const struct map_ask *ask, struct map_held *held, uint64_t at, uint8_t *to, size_t len)
{
    if (ask->what == MAP_ASK_SPILL)
        return map_scratch_read(&job->spill, ask->offset + at, to, len);
    if (ask->what == MAP_ASK_SPOOL)
        return map_is_apart(job) ? -EINVAL : map_scratch_read(&job->spool, ask->offset + at, to, len);
    int fd = map_input_fd(job, ask->input, held);
    if (fd < 0)
        return fd;
    return map_read_at(fd, ask->offset + at, to, len);
}

/* --- putting --- */

struct part {
    weft_op op;
    int64_t since;
    bool whole; /* it has MAP_CHUNK_BYTES */
};

/* Waits until one more part may be under way. With `wait` false it does not wait, and may return false. */
static bool put_may(struct asker *f, bool wait)
{
    pthread_mutex_lock(&f->carry->lock);
    while (wait && f->puts >= f->puts_most)
        pthread_cond_wait(&f->put_over, &f->carry->lock);
    bool may = f->puts < f->puts_most;
    f->puts += may;
    pthread_mutex_unlock(&f->carry->lock);
    return may;
}

/* A part has ended. From the time that it took, estimates how many parts were waiting in front of the network: if almost none, more may be
 * under way; if many, fewer. */
static void put_ended(struct asker *f, int64_t took)
{
    pthread_mutex_lock(&f->carry->lock);
    bool full = f->puts == f->puts_most;
    f->puts--;
    if (took > 0) {
        f->shortest = took < f->shortest ? took : f->shortest;
        int64_t queue = (int64_t)f->puts_most * (took - f->shortest) / took;
        bool look = ++f->ended >= f->puts_most;
        if (look)
            f->ended = 0;
        if (look && full && queue < 1 && f->puts_most < PUTS_MOST)
            f->puts_most++;
        else if (look && queue > PUTS_QUEUE && f->puts_most > PUTS_LEAST)
            f->puts_most--;
    }
    pthread_cond_signal(&f->put_over);
    pthread_mutex_unlock(&f->carry->lock);
}

static int part_wait(struct asker *f, struct part *p)
{
    int rc = wait_for(f->carry->job, &p->op);
    put_ended(f, p->whole ? base_now_ns() - p->since : 0);
    return rc;
}

/* Waits for all parts of a thread that are under way. Returns the first error. */
static int parts_wait(struct asker *f, struct part *parts, uint32_t *tail, uint32_t head)
{
    int rc = 0;
    while (*tail < head) {
        int ended = part_wait(f, &parts[(*tail)++]);
        rc = rc ? rc : ended;
    }
    return rc;
}

/* Puts the bytes, which are at `view`, or are read into the carrier's memory part by part (NULL). Then changes the word. */
static void put_answer(struct asker *f, struct carrier *r, const struct map_ask *ask, const uint8_t *view, int rc)
{
    struct map_job *job = f->carry->job;
    struct part parts[PARTS];
    uint32_t head = 0, tail = 0;
    uint64_t done = 0;
    for (bool last = false; !last;) {
        size_t n = rc ? 0 : ask->len - done < MAP_CHUNK_BYTES ? (size_t)(ask->len - done) : MAP_CHUNK_BYTES;
        last = rc || done + n == ask->len;
        if (last || !view) { /* the word is changed when all bytes are there; and the memory is used again */
            int ended = parts_wait(f, parts, &tail, head);
            rc = rc ? rc : ended;
        }
        if (!rc && !view)
            rc = read_asked(job, ask, &r->held, done, r->memory, n);
        last = last || rc;
        n = rc ? 0 : n;
        while (!put_may(f, tail == head)) { /* this thread's own parts come first, or all threads could wait for each other */
            int ended = part_wait(f, &parts[tail++]);
            rc = rc ? rc : ended;
        }
        struct part *p = &parts[head];
        const void *from = view ? view + done : r->memory;
        *p = (struct part){.since = base_now_ns(), .whole = n == MAP_CHUNK_BYTES};
        int begun = last ? weft_put_signal(job->w, ask->to + done, from, n, ask->word, answer_of(rc), &p->op)
                         : weft_put(job->w, ask->to + done, from, n, &p->op);
        if (begun) {
            put_ended(f, 0);
            last = true; /* the node is gone */
        }
        head += !begun;
        done += n;
    }
    (void)parts_wait(f, parts, &tail, head);
}

static void answer(struct asker *f, struct carrier *r, const struct map_ask *ask)
{
    struct map_job *job = f->carry->job;
    if (ask->what == MAP_ASK_DROP) {
        map_scratch_drop(&job->spill, ask->offset, ask->len);
        return;
    }
    weft_file_view view = {.at = NULL};
    int rc = ask->what == MAP_ASK_FILE ? check_input(job, ask) : 0;
    if (!rc && ask->what == MAP_ASK_FILE)
        (void)map_show(job, &r->shown, ask, &view);
    if (!rc && !view.at && !r->memory && !(r->memory = malloc(MAP_CHUNK_BYTES)))
        rc = -ENOMEM;
    put_answer(f, r, ask, view.at, rc);
    if (view.at)
        weft_file_unmap(r->shown.f, &view);
}

static void *carrier_main(void *arg)
{
    struct asker *f = arg;
    struct map_carry *c = f->carry;
    struct carrier r = {.held.fd = -1};
    pthread_mutex_lock(&c->lock);
    for (;;) {
        f->idle++;
        while (!f->first && !c->stop)
            pthread_cond_wait(&f->more, &c->lock);
        f->idle--;
        struct asked *a = c->stop ? NULL : f->first;
        if (!a)
            break;
        if (!(f->first = a->next))
            f->last = &f->first;
        f->waiting--;
        pthread_mutex_unlock(&c->lock);
        answer(f, &r, &a->ask);
        free(a);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    map_held_close(&r.held);
    map_shown_close(&r.shown);
    free(r.memory);
    return NULL;
}

int map_carry_start(struct map_job *job)
{
    struct map_carry *c = calloc(1, sizeof *c);
    if (!c)
        return base_fail(-ENOMEM, "no memory for requests of other nodes" BASE_MEMORY_HINT);
    c->job = job;
    pthread_mutex_init(&c->lock, NULL);
    for (uint32_t i = 0; i < MAP_NODES_MAX; i++) {
        struct asker *f = &c->from[i];
        f->carry = c;
        f->last = &f->first;
        f->puts_most = PUTS_LEAST;
        f->shortest = INT64_MAX;
        pthread_cond_init(&f->more, NULL);
        pthread_cond_init(&f->put_over, NULL);
    }
    job->carry = c;
    return weft_handle(job->w, MAP_HANDLER_ASK, on_ask, c);
}

static void asker_end(struct asker *f)
{
    for (uint32_t i = 0; i < f->running; i++)
        pthread_join(f->thread[i], NULL);
    for (struct asked *a = f->first, *next; a; a = next) {
        next = a->next;
        free(a);
    }
    pthread_cond_destroy(&f->more);
    pthread_cond_destroy(&f->put_over);
}

void map_carry_stop(struct map_job *job)
{
    struct map_carry *c = job->carry;
    if (!c)
        return;
    weft_handle(job->w, MAP_HANDLER_ASK, NULL, NULL);
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    for (uint32_t i = 0; i < MAP_NODES_MAX; i++)
        pthread_cond_broadcast(&c->from[i].more);
    pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < MAP_NODES_MAX; i++)
        asker_end(&c->from[i]);
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
            size_t len = chunk_bytes(piece, started, whole);
            rc = start_chunk(slot, piece, started, len, whole ? to + started : to + k * (uint64_t)MAP_CHUNK_BYTES, k, &ops[k]);
            if (!rc) {
                started += len;
                head++;
            }
            continue;
        }
        unsigned k = tail++ % MAP_BRING_DEPTH;
        size_t len = chunk_bytes(piece, ended, whole);
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

/* Renew the slot's claim when it is time: reading a large piece may take long. */
void map_slot_renew(struct map_slot *slot, int64_t *next)
{
    int64_t now = base_now_ns();
    if (now < *next)
        return;
    *next = now + slot->job->renew_ns;
    slot->lost = slot->lost || weft_renew(slot->job->queue, slot->claim) == -ESTALE;
}
