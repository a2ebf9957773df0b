/* SPDX-License-Identifier: MIT
 *
 * Gives other nodes the bytes that only this node can read: those of its input files, its spool and its spill file. A node on another host
 * that needs such bytes sends a request (bring.c) with an address in its own pool. A thread of this node, a carrier, puts the bytes to that
 * address, and then adds to a word in the asking node's pool. The carrier takes the bytes from the cache of this node's file service
 * (cached.c), or reads them into private memory, so that a full pool cannot block an answer. Each asking node has carriers of its own, so
 * that a slow or stopped node does not delay other nodes.
 */
#include "map/job.h"

#include <stdlib.h>
#include <string.h>

#include "weft/file.h"

#define CARRIERS 8u /* threads that answer one node: some wait for the disk while others put bytes into the node's pool */
/* The bytes are put in parts of MAP_CHUNK_BYTES. Few parts should be under way to a node, because everything else that this node sends to
 * that node waits behind them. A network with a long delay needs more parts under way (put_ended()). */
#define PUTS_LEAST 4u
#define PUTS_MOST  16u
#define PUTS_QUEUE 4
#define PUT_AGAIN  (10 * WEFT_MS)
#define PARTS      (MAP_ASK_BYTES / MAP_CHUNK_BYTES)
/* Whether the word of an answer is changed by an operation of its own, after the one that puts the last bytes. Two carriers may put to the
 * same address in the asking node, one after the other. What orders the two puts is memory of the asking node, which the thread sanitizer
 * does not see. With an operation of its own for the word, the thread sanitizer sees the order by `lock` (put_ended(), asker_add()). In
 * other builds, one operation puts the last bytes and changes the word, since a second operation makes a map up to 15 % slower.
 */
#define WORD_APART BASE_THREAD_SANITIZER
/* Maximum number of requests of one node that can wait at this node, if the asking node obeys the protocol. */
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
    uint32_t puts, puts_most; /* puts: number of parts under way; puts_most: how many there may be */
    uint32_t ended;           /* number of parts that have ended since puts_most was last adjusted */
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
    uint8_t *memory; /* [MAP_CHUNK_BYTES]; NULL: not allocated yet */
};

/* The value that is added to the word of a request (struct map_ask). It contains Linux's number of the error. */
static uint64_t answer_of(int rc)
{
    return 1 + ((uint64_t)-base_status_out(rc) << 32);
}

/* --- answering --- */

static void *carrier_main(void *arg);

static bool comes_before(const struct map_ask *a, const struct map_ask *b)
{
    return a->input < b->input || (a->input == b->input && a->offset < b->offset);
}

/* Adds a request to the list. Requests for inputs are sorted by their position in the input. So one piece after the other becomes complete,
 * and slots work on it while the next piece arrives. */
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

/* Takes a request. Starts one more carrier for the node if all are busy. Returns false if there is no memory, or if too many requests
 * wait. */
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
    /* A MAP_ASK_DROP that is lost does no harm: the space is then freed at the end of the job. */
    if (!asker_add(&c->from[from], &ask) && !drop)
        weft_put_signal(w, ask.to, NULL, 0, ask.word, answer_of(-ENOMEM), NULL);
}

/* Whether other nodes may ask this node for bytes of this input. */
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
    bool whole; /* the part has MAP_CHUNK_BYTES */
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

/* A part has ended. The time that it took shows how many parts wait for the network. If almost no part waits, more may be under way; if
 * many wait, fewer. */
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
    int rc = map_ended(f->carry->job, &p->op);
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

/* Called when a put could not begin. Returns whether to try again. `*rc`: the error for the answer, if the bytes are given up. */
static bool put_again(struct asker *f, const struct map_ask *ask, int begun, int *rc)
{
    struct map_job *job = f->carry->job;
    uint32_t node = weft_gaddr_node(ask->to);
    pthread_mutex_lock(&f->carry->lock);
    bool stop = f->carry->stop;
    pthread_mutex_unlock(&f->carry->lock);
    while (!stop && weft_flush(job->w, node, WEFT_TIMEOUT_DEFAULT) == -ETIMEDOUT && weft_alive(job->w, node))
        ; /* wait for the parts under way, because their memory is reused next */
    if (stop || !weft_alive(job->w, node))
        return false;
    if (begun != -ETIMEDOUT && begun != -ENETDOWN && !*rc)
        *rc = begun; /* neither room nor a route was missing, so the put would fail again: the next try sends only the answer */
    base_sleep_ns(PUT_AGAIN);
    return true;
}

/* Puts the bytes at `view`, then changes the word. `view` NULL: reads the bytes part by part into the carrier's memory, and puts them from
 * that memory. */
static void put_answer(struct asker *f, struct carrier *r, const struct map_ask *ask, const uint8_t *view, int rc)
{
    struct map_job *job = f->carry->job;
    struct part parts[PARTS + WORD_APART];
    uint32_t head = 0, tail = 0;
    uint64_t done = 0;
    for (bool last = false; !last;) {
        size_t n = rc ? 0 : ask->len - done < MAP_CHUNK_BYTES ? (size_t)(ask->len - done) : MAP_CHUNK_BYTES;
        last = rc || (done + n == ask->len && (!WORD_APART || !n));
        /* Wait for the parts under way: the word may change only when all bytes have arrived, and the next part needs the carrier's
         * memory. */
        if (last || !view) {
            int ended = parts_wait(f, parts, &tail, head);
            rc = rc                                             ? rc
                 : ended == -ENETDOWN || ended == -ECONNABORTED ? -EAGAIN
                                                                : ended; /* there was no route for a while: the node may ask again */
        }
        if (!rc && !view)
            rc = read_asked(job, ask, &r->held, done, r->memory, n);
        last = last || rc;
        n = rc ? 0 : n;
        while (!put_may(f, tail == head)) { /* first wait for this thread's own parts, so that threads do not wait for each other */
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
            last = !put_again(f, ask, begun, &rc);
            continue;
        }
        head++;
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
        /* No request waits, so close the file's handle: it holds pieces of the cache that it has requested in advance. */
        if (!f->first && !c->stop && r.shown.f) {
            pthread_mutex_unlock(&c->lock);
            map_shown_close(&r.shown);
            pthread_mutex_lock(&c->lock);
        }
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
