/* SPDX-License-Identifier: MIT
 *
 * Brings the outputs of nodes on other hosts to the owner ("home") before any byte of them is printed. The outcome of a piece is fetched
 * first, then the parts of its output: into chunks of the owner's pool or, if the pool has no room, into the owner's spill file. When a
 * node dies, pieces run again if their outputs have not been fetched completely. While a living node has no route, its outputs stay at that
 * node.
 *
 * Pieces with lower numbers come first. Memory limits how many outputs are fetched in advance. The output that is printed next is always
 * fetched, through the spill file if necessary.
 */
#include "map/owner.h"

#include <stdlib.h>
#include <string.h>

#define MOVES   16u
#define BOUNCES 4u /* bounce buffers: chunks of the pool, set aside for bytes on their way to the spill file */
_Static_assert(BOUNCES *MAP_CHUNK_BYTES == MAP_HOME_BYTES, "the pool's size is computed with MAP_HOME_BYTES");
#define WAIT_NS (2 * WEFT_MS)
#define NO_PART UINT32_MAX

struct coming {             /* a piece that is being fetched */
    struct map_outcome *oc; /* the outcome as the node wrote it; its parts are addresses in that node's memory */
    /* Where the parts are at this node: `parts` entries, with memory for `room`. The list grows when parts arrive, because the node's count
     * of parts may be wrong. */
    struct map_part *home;
    uint32_t parts, room;
    bool planned;   /* the outcome has arrived, and its parts are being fetched */
    uint32_t part;  /* index of the part to fetch next, in `oc` */
    uint64_t from;  /* offset of the next bytes, in that part or in the outcome itself */
    uint32_t moves; /* number of moves in flight */
    int failed;     /* an error, after which nothing more is fetched; 0: none */
};

struct move {
    struct record *r;
    bool asked;      /* the node's carrier (carry.c) puts the bytes into this node's memory; false: this node fetches them by a get */
    bool held_up;    /* the move was not started, because there was no route to the node */
    bool unsure;     /* after the bytes were requested, there was no route for a while: the request or the answer may be lost or late */
    uint64_t source; /* address or offset of the bytes at the node */
    weft_gaddr at;   /* address in the owner's pool at which the bytes arrive */
    weft_op op;
    uint8_t *to, *copy_to; /* copy_to: destination to which the bytes are copied from the bounce buffer; NULL: none */
    size_t len;
    uint32_t part;      /* the part of `home` that these bytes belong to; NO_PART: the outcome itself */
    weft_gaddr release; /* memory of the node to release when the move has ended; WEFT_NULL: none */
    int bounce;         /* index of the bounce buffer that the move uses; -1: none */
};

struct home {
    struct move moves[MOVES];
    uint32_t head, count; /* moves[] is a ring, in the order in which the moves were started */
    weft_gaddr words;     /* [MOVES] */
    weft_gaddr bounces;
    bool taken[BOUNCES];
    uint32_t coming; /* pieces being fetched */
};

int home_open(struct map_owner *o)
{
    struct home *h = o->home = calloc(1, sizeof *h);
    if (!h)
        return base_fail(-ENOMEM, "no memory for the list of outputs of other nodes" BASE_MEMORY_HINT);
    int rc = weft_alloc(o->job->w, MOVES * sizeof(uint64_t), &h->words);
    return rc ? rc : weft_alloc(o->job->w, MAP_HOME_BYTES, &h->bounces);
}

static void coming_free(struct record *r)
{
    if (!r->coming)
        return;
    free(r->coming->oc);
    free(r->coming->home);
    free(r->coming);
    r->coming = NULL;
}

void home_free(struct map_owner *o)
{
    for (size_t i = 0; o->home && i < MAP_WINDOW; i++)
        coming_free(&o->window[i]);
    free(o->home);
    o->home = NULL;
}

static int home_wrong(const struct record *r)
{
    return base_fail(-EPROTO, "node %u reports an impossible outcome of a piece; run the same version of weft on all hosts", r->worker);
}

int home_expect(struct map_owner *o, struct record *r)
{
    if (r->result_len < sizeof(struct map_outcome) || r->result_len > OWNER_OUTCOME_MAX)
        return home_wrong(r);
    r->coming = calloc(1, sizeof *r->coming);
    if (!r->coming)
        return base_fail(-ENOMEM, "no memory for the output of a piece of another node" BASE_MEMORY_HINT);
    r->state = COMING;
    o->home->coming++;
    return 0;
}

bool home_busy(const struct map_owner *o)
{
    return o->home && o->home->count;
}

static struct map_part *parts_of(struct map_outcome *oc)
{
    return (struct map_part *)(void *)(oc + 1);
}

static void hold(struct map_owner *o, struct record *r, uint64_t bytes)
{
    r->held += bytes;
    o->held += bytes;
}

static void drop_part(struct map_owner *o, const struct map_part *part)
{
    if (part->len & MAP_SPILLED)
        map_scratch_drop(&o->job->spill, part->at, part->len & ~MAP_SPILLED);
    else
        weft_free(o->job->w, part->at);
}

/* --- one move --- */

/* Whether a piece is the next to be printed, so that it may take all the memory that it needs. */
static bool has_turn(const struct map_owner *o, const struct record *r)
{
    return r->piece.number == o->job->low || o->job->options->unordered;
}

static bool home_has_room(const struct map_owner *o, uint64_t bytes)
{
    return o->held + bytes <= o->job->pool_bytes / 2;
}

static weft_gaddr home_word_of(const struct home *h, const struct move *m)
{
    return h->words + (uint64_t)(m - h->moves) * sizeof(uint64_t);
}

static int take_bounce(struct map_owner *o, struct move *m, weft_gaddr *at)
{
    struct home *h = o->home;
    for (int i = 0; i < (int)BOUNCES; i++) {
        if (h->taken[i])
            continue;
        m->bounce = i;
        *at = h->bounces + (uint64_t)i * MAP_CHUNK_BYTES;
        m->to = weft_ptr(o->job->w, *at, MAP_CHUNK_BYTES);
        return 1;
    }
    return 0;
}

/* Choose where the next bytes of a part go. Returns 1, or 0 if there is no memory now, or an error. */
static int place_part(struct map_owner *o, struct record *r, struct move *m, weft_gaddr *at)
{
    struct coming *c = r->coming;
    if (c->parts == c->room) {
        uint32_t room = c->room ? 2 * c->room : 16;
        struct map_part *more = realloc(c->home, room * sizeof *more);
        if (!more)
            return base_fail(-ENOMEM, "no memory for a list of %u parts of another node's output" BASE_MEMORY_HINT, room);
        c->home = more;
        c->room = room;
    }
    m->part = c->parts;
    c->home[m->part] = (struct map_part){0};
    if (home_has_room(o, m->len) && weft_alloc(o->job->w, m->len, at) == 0) {
        hold(o, r, m->len);
        c->home[m->part] = (struct map_part){*at, m->len};
        m->to = weft_ptr(o->job->w, *at, m->len);
        return 1;
    }
    return has_turn(o, r) ? take_bounce(o, m, at) : 0;
}

static int start_move(struct map_owner *o, struct move *m)
{
    int rc;
    if (m->asked) {
        struct map_ask ask = {.what = MAP_ASK_SPILL, .offset = m->source, .len = m->len, .to = m->at, .word = home_word_of(o->home, m)};
        rc = map_ask(o->job, m->r->worker, &ask);
    } else {
        rc = weft_get(o->job->w, m->to, m->source, m->len, &m->op);
    }
    m->held_up = rc == -ENETDOWN;
    return m->held_up ? 0 : rc;
}

/* Fetch the next bytes of a piece. Returns 1 if a move was started, 0 if no move can be started now or nothing is left to fetch. */
static int next_move(struct map_owner *o, struct record *r)
{
    struct home *h = o->home;
    struct coming *c = r->coming;
    if (h->count == MOVES || c->failed || (c->planned && c->part == c->oc->parts))
        return 0;
    struct move *m = &h->moves[(h->head + h->count) % MOVES];
    *m = (struct move){.r = r, .part = NO_PART, .bounce = -1};
    weft_gaddr at = WEFT_NULL;
    uint64_t source, len;
    int placed = 1;
    if (!c->planned) {
        source = r->result;
        len = r->result_len;
        m->asked = r->status == MAP_STATUS_SPILLED;
        if (c->from == len || (!c->oc && !has_turn(o, r) && !home_has_room(o, len)))
            return 0;
        if (!c->oc) {
            if (!(c->oc = malloc(len)))
                return base_fail(-ENOMEM, "no memory to fetch the output of a piece from another node" BASE_MEMORY_HINT);
            hold(o, r, len);
        }
        m->len = m->asked && len - c->from > MAP_CHUNK_BYTES ? MAP_CHUNK_BYTES : (size_t)(len - c->from);
        m->to = (uint8_t *)c->oc + c->from;
        if (m->asked) {
            m->copy_to = m->to;
            placed = take_bounce(o, m, &at);
        }
    } else {
        const struct map_part *part = &parts_of(c->oc)[c->part];
        source = part->at;
        len = part->len & ~MAP_SPILLED;
        m->asked = part->len & MAP_SPILLED;
        m->len = len - c->from > MAP_CHUNK_BYTES ? MAP_CHUNK_BYTES : (size_t)(len - c->from);
        m->release = m->asked ? WEFT_NULL : source;
        placed = place_part(o, r, m, &at);
    }
    if (placed != 1)
        return placed;
    m->source = source + c->from;
    m->at = at;
    int rc = start_move(o, m);
    c->from += m->len;
    if (c->planned) {
        c->parts++;
        if (c->from == len) {
            c->part++;
            c->from = 0;
        }
    }
    if (rc) {
        c->failed = rc;
        return 1;
    }
    if (m->bounce >= 0)
        h->taken[m->bounce] = true;
    h->count++;
    c->moves++;
    return 1;
}

static int move_result(struct map_owner *o, struct move *m)
{
    int started = 0;
    if (m->held_up && (!weft_alive(o->job->w, m->r->worker) || (started = start_move(o, m))))
        return started ? started : -ECONNRESET;
    if (m->held_up)
        return -EINPROGRESS;
    if (!m->asked) {
        int rc = weft_test(o->job->w, &m->op);
        m->held_up = rc == -ENETDOWN;
        return m->held_up ? -EINPROGRESS : rc;
    }
    bool there =
        weft_alive(o->job->w, m->r->worker); /* read before the word: if the node is dead, all bytes that it has put are then visible */
    const _Atomic uint64_t *word = weft_ptr(o->job->w, home_word_of(o->home, m), sizeof *word);
    /* acquire: a thread that sees the word sees the bytes of the answer */
    int rc = map_answer(atomic_load_explicit(word, memory_order_acquire));
    return rc == -EINPROGRESS && !there ? -ECONNRESET : rc;
}

/* The outcome has arrived: check it, and prepare to fetch its parts. */
static int plan(struct record *r)
{
    struct coming *c = r->coming;
    if (owner_check_outcome(c->oc, r->result_len))
        return home_wrong(r);
    c->planned = true;
    c->from = 0;
    return 0;
}

/* All parts have arrived: make an outcome with the addresses of the parts at this node. */
static struct map_outcome *outcome_at_home(const struct coming *c)
{
    size_t list = c->parts * sizeof *c->home, rest = (size_t)c->oc->error_len + c->oc->tail_len;
    struct map_outcome *oc = malloc(sizeof *oc + list + rest);
    if (!oc)
        return NULL;
    *oc = *c->oc;
    oc->parts = c->parts;
    if (list)
        memcpy(parts_of(oc), c->home, list);
    memcpy(parts_of(oc) + c->parts, parts_of(c->oc) + c->oc->parts, rest);
    return oc;
}

/* Tell a node that it may free a range of its spill file. */
static void drop_there(struct map_owner *o, uint32_t node, uint64_t at, uint64_t len)
{
    struct map_ask ask = {.what = MAP_ASK_DROP, .offset = at, .len = len};
    map_ask(o->job, node, &ask); /* an error means that the node is gone */
}

/* The oldest move has ended. */
static int end_move(struct map_owner *o, struct move *m, int result)
{
    struct home *h = o->home;
    struct record *r = m->r;
    struct coming *c = r->coming;
    int rc = 0;
    if (result && !c->failed)
        c->failed = result;
    if (!result && m->copy_to)
        memcpy(m->copy_to, m->to, m->len);
    if (!result && m->part != NO_PART && m->bounce >= 0) {
        uint64_t to = map_spill_take(o->job, m->len);
        rc = map_scratch_write(&o->job->spill, to, m->to, m->len);
        c->home[m->part] = (struct map_part){to, m->len | MAP_SPILLED};
    }
    if (!result && m->release != WEFT_NULL)
        owner_release(o, r->worker, m->release);
    if (m->bounce >= 0)
        h->taken[m->bounce] = false;
    h->head = (h->head + 1) % MOVES;
    h->count--;
    c->moves--;
    if (rc || c->failed || c->planned || c->moves || c->from < r->result_len)
        return rc;
    rc = plan(r);
    if (r->status == MAP_STATUS_SPILLED)
        drop_there(o, r->worker, r->result, r->result_len);
    else
        owner_release(o, r->worker, r->result);
    return rc;
}

/* --- a piece --- */

/* The rest of a piece is lost: drop the bytes that were fetched, and run the piece again. */
static int run_again(struct map_owner *o, struct record *r)
{
    struct coming *c = r->coming;
    for (uint32_t i = 0; i < c->parts; i++)
        if (c->home[i].len)
            drop_part(o, &c->home[i]);
    o->held -= r->held;
    r->held = 0;
    r->attempts--; /* an attempt whose output was lost does not count */
    r->state = SUBMITTED;
    o->home->coming--;
    o->job->counts.retried++;
    coming_free(r);
    return owner_submit(o, r);
}

/* Continue with a piece that has no move in flight. Returns 1 if something was done, 0 if not, or an error. */
static int home_look_at(struct map_owner *o, struct record *r, int *status)
{
    struct coming *c = r->coming;
    int rc;
    if (c->failed == -ECONNRESET)
        return (rc = run_again(o, r)) ? rc : 1;
    if (c->failed)
        return base_fail(c->failed, "the outcome of a piece cannot be fetched from node %u: %s", r->worker, base_strerror(c->failed));
    if (!c->planned || c->part < c->oc->parts)
        return 0;
    const struct map_part *part = parts_of(c->oc);
    for (uint32_t i = 0; i < c->oc->parts; i++)
        if (part[i].len & MAP_SPILLED)
            drop_there(o, r->worker, part[i].at, part[i].len & ~MAP_SPILLED);
    struct map_outcome *oc = outcome_at_home(c);
    if (!oc)
        return base_fail(-ENOMEM, "no memory to keep the outcome of a piece of another node" BASE_MEMORY_HINT);
    o->home->coming--;
    coming_free(r);
    r->status = MAP_STATUS_HOME;
    r->home = oc;
    r->state = SUBMITTED;
    rc = owner_take_outcome(o, r, oc, status);
    return rc ? rc : 1;
}

int home_step(struct map_owner *o, int *status)
{
    struct home *h = o->home;
    struct map_job *job = o->job;
    int steps = 0, rc;
    while (h->count && (rc = move_result(o, &h->moves[h->head])) != -EINPROGRESS) {
        if ((rc = end_move(o, &h->moves[h->head], rc)))
            return rc;
        steps++;
    }
    uint32_t left = h->coming;
    for (uint64_t number = job->low; left; number++) {
        struct record *r = &o->window[number % MAP_WINDOW];
        if (number - job->low >= MAP_WINDOW)
            break;
        if (r->state != COMING || r->piece.number != number)
            continue;
        left--;
        while ((rc = next_move(o, r)) == 1)
            steps++;
        if (!rc && !r->coming->moves)
            rc = home_look_at(o, r, status);
        if (rc < 0)
            return rc;
        steps += rc;
    }
    return steps;
}

bool home_unsure(struct map_owner *o, uint32_t node, bool cut)
{
    struct home *h = o->home;
    bool unsure = false;
    for (uint32_t i = 0; h && i < h->count; i++) {
        struct move *m = &h->moves[(h->head + i) % MOVES];
        if (!m->asked || m->held_up || m->r->worker != node)
            continue;
        m->unsure = m->unsure || cut;
        unsure = unsure || m->unsure;
    }
    return unsure;
}

void home_wait(struct map_owner *o)
{
    struct move *m = &o->home->moves[o->home->head];
    uint64_t seen;
    if (m->held_up)
        base_sleep_ns(WAIT_NS);
    else if (m->asked)
        weft_wait_until(o->job->w, home_word_of(o->home, m), WEFT_NE, 0, &seen, WAIT_NS);
    else
        weft_wait(o->job->w, &m->op, WAIT_NS);
}
