/* SPDX-License-Identifier: MIT
 *
 * weft probe pool: moves data between many buffers of one region at each end. At any time the right value of each word is known, and no two
 * words have the same value, so that a byte in a wrong place is found.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/probe_end.h"

enum { BUFFERS = 256, ROUNDS = 6, EDGE = 8, RESENDS = 20 };
#define SIZE    (UINT64_C(512) << 10)
#define SECOND  INT64_C(1000000000)
#define NOTHING INT64_C(-1) /* "no word is wrong" */
#define LOST    INT64_C(-2) /* "nothing came" */

/* The rounds. If the leading end does not start a round, the other end does. */
static const struct round {
    enum ibv_wr_opcode opcode;
    bool leader_starts;
    const char *name;
} rounds[ROUNDS] = {
    {IBV_WR_SEND, true, "send"},        {IBV_WR_SEND, false, "receive"},
    {IBV_WR_RDMA_WRITE, true, "write"}, {IBV_WR_RDMA_WRITE, false, "be written"},
    {IBV_WR_RDMA_READ, true, "read"},   {IBV_WR_RDMA_READ, false, "be read"},
};

struct result {
    bool tried;
    uint32_t good;
    int64_t lost, bad; /* lost: number of lost messages; bad: offset of the first wrong word, or NOTHING */
    bool bad_is_theirs;
};

struct pool {
    struct probe_end end;
    struct result results[ROUNDS];
    int rc; /* the error and its text, for the main thread */
    char why[1024];
};

/* --- the right values of words --- */
static uint64_t word(uint64_t seed, uint64_t index)
{
    return ((index + 1) * UINT64_C(0x9e3779b97f4a7c15)) ^ (seed * UINT64_C(0xd1b54a32d192ed03));
}

static uint64_t source_seed(unsigned round)
{
    return 2 * round + 1;
}

static uint64_t guard_seed(unsigned round)
{
    return 2 * round + 2;
}

static void probe_pool_fill(struct probe_end *e, uint64_t seed)
{
    uint64_t *at = (uint64_t *)(void *)e->base;
    for (uint64_t i = 0; i < e->bytes / 8; i++)
        at[i] = word(seed, i);
}

/* Compare words [first, first + n) of this end's region with those that `seed` gives for the words from `as` on. Returns the offset of the
 * first wrong word, or NOTHING. */
static int64_t probe_pool_wrong(const struct probe_end *e, uint64_t first, uint64_t n, uint64_t seed, uint64_t as)
{
    const uint64_t *at = (const uint64_t *)(const void *)e->base;
    for (uint64_t i = 0; i < n; i++)
        if (at[first + i] != word(seed, as + i))
            return (int64_t)((first + i) * 8);
    return NOTHING;
}

/* Check words of buffer b, after buffers [low, high) have received data. Buffer b gets the data of the other end's buffer count - 1 - b. */
static int64_t wrong_words(const struct probe_end *e, unsigned round, uint32_t b, uint32_t low, uint32_t high, uint64_t from, uint64_t n)
{
    uint64_t words = e->size / 8, first = b * words + from;
    if (b >= low && b < high)
        return probe_pool_wrong(e, first, n, source_seed(round), (e->count - 1 - b) * words + from);
    return probe_pool_wrong(e, first, n, guard_seed(round), first);
}

/* Check buffer b, which has just received data, and the adjacent edges of its neighbours. */
static int64_t check_arrival(const struct probe_end *e, unsigned round, uint32_t b, uint32_t low, uint32_t high)
{
    uint64_t words = e->size / 8;
    int64_t bad = wrong_words(e, round, b, low, high, 0, words);
    if (bad == NOTHING && b > 0)
        bad = wrong_words(e, round, b - 1, low, high, words - EDGE, EDGE);
    if (bad == NOTHING && b + 1 < e->count)
        bad = wrong_words(e, round, b + 1, low, high, 0, EDGE);
    return bad;
}

static int64_t check_all(const struct probe_end *e, unsigned round, uint32_t low, uint32_t high)
{
    int64_t bad = NOTHING;
    for (uint32_t b = 0; b < e->count && bad == NOTHING; b++)
        bad = wrong_words(e, round, b, low, high, 0, e->size / 8);
    return bad;
}

/* --- one round, at both ends --- */

/* Send or write each buffer i to the other end's buffer count - 1 - i. The other end checks its buffers and reports the result. */
static int start_out(struct probe_end *e, unsigned round, struct result *r)
{
    for (uint32_t i = 0; i < e->count && r->bad == NOTHING; i++) {
        int64_t said = LOST;
        int rc = rounds[round].opcode == IBV_WR_SEND ? probe_end_hear(e, &said) : 0; /* wait until the other end has posted its receive */
        said = LOST;
        for (unsigned turn = 0; rc == 0 && said == LOST; turn++) {
            rc = turn > RESENDS ? base_fail(-EIO, "buffer %u has not arrived, although it was sent %u times; check the cable", i, turn)
                                : probe_end_do(e, rounds[round].opcode, i, e->count - 1 - i);
            if (rc == 0)
                rc = probe_end_trade(e, 0, &said);
            r->lost += said == LOST;
        }
        if (rc)
            return rc;
        r->bad = said;
        r->bad_is_theirs = said != NOTHING;
        r->good += said == NOTHING;
    }
    return 0;
}

static int take_in(struct probe_end *e, unsigned round, struct result *r)
{
    bool sent = rounds[round].opcode == IBV_WR_SEND;
    int64_t patience = e->d->traits.acknowledges ? 10 * SECOND : SECOND / 4, word_;
    for (uint32_t b = e->count; b-- > 0 && r->bad == NOTHING;) {
        int rc = sent ? probe_end_post_receive(e, b) : 0;
        if (rc == 0 && sent)
            rc = probe_end_say(e, 0);
        bool here = false;
        while (rc == 0 && !here) {
            rc = probe_end_hear(e, &word_);
            int came = rc || !sent ? rc : probe_end_received(e, patience);
            if (came == -ETIMEDOUT && !e->d->traits.acknowledges)
                r->lost++;
            else
                rc = came;
            here = came == 0;
            if (rc == 0) {
                r->bad = here ? check_arrival(e, round, b, b, e->count) : NOTHING;
                rc = probe_end_say(e, here ? r->bad : LOST);
            }
        }
        if (rc)
            return rc;
        r->good += r->bad == NOTHING;
    }
    return 0;
}

static int start_read(struct probe_end *e, unsigned round, struct result *r)
{
    for (uint32_t i = 0; i < e->count && r->bad == NOTHING; i++) {
        int rc = probe_end_do(e, IBV_WR_RDMA_READ, i, e->count - 1 - i);
        if (rc)
            return rc;
        r->bad = check_arrival(e, round, i, 0, i + 1);
        r->good += r->bad == NOTHING;
    }
    return 0;
}

static int one_round(struct probe_end *e, unsigned round, struct result *r)
{
    bool starts = rounds[round].leader_starts == e->leads, reads = rounds[round].opcode == IBV_WR_RDMA_READ;
    bool destination = starts == reads;
    int64_t theirs, all;
    *r = (struct result){.tried = true, .bad = NOTHING};
    probe_pool_fill(e, destination ? guard_seed(round) : source_seed(round));
    int rc = probe_end_trade(e, round, &theirs);
    if (rc == 0 && theirs != (int64_t)round)
        rc = base_fail(-EPROTO, "the two ends are not at the same step of the probe; run the same version of weft at both ends");
    if (rc == 0 && !reads)
        rc = starts ? start_out(e, round, r) : take_in(e, round, r);
    else if (rc == 0 && starts)
        rc = start_read(e, round, r);
    if (rc)
        return rc;
    /* Check both regions completely: the received data, and that the sent data has not changed. */
    if (destination)
        all = r->bad == NOTHING ? check_all(e, round, 0, e->count) : r->bad;
    else
        all = probe_pool_wrong(e, 0, e->bytes / 8, source_seed(round), 0);
    if ((rc = probe_end_trade(e, all, &theirs)))
        return rc;
    if (r->bad == NOTHING && (all != NOTHING || theirs != NOTHING)) {
        r->bad = all != NOTHING ? all : theirs;
        r->bad_is_theirs = all == NOTHING;
    }
    /* With READ, only the end that starts the reads counts the good buffers. */
    if ((rc = probe_end_trade(e, r->good, &theirs)))
        return rc;
    if (theirs > r->good && theirs <= e->count)
        r->good = (uint32_t)theirs;
    return 0;
}

static bool can(const struct probe_end *e, unsigned round)
{
    return (rounds[round].opcode != IBV_WR_RDMA_WRITE || e->can_write) && (rounds[round].opcode != IBV_WR_RDMA_READ || e->can_read);
}

static int all_rounds(struct pool *pool)
{
    struct probe_end *e = &pool->end;
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (!can(e, i))
            continue;
        int rc = one_round(e, i, &pool->results[i]);
        if (rc)
            return base_context(rc, "%s", rounds[i].name);
        if (pool->results[i].bad != NOTHING)
            break; /* data was damaged: stop before more data is damaged */
    }
    return 0;
}

static void probe_pool_work(struct pool *pool, struct verbs_device *d)
{
    pool->rc = probe_end_open(&pool->end, d);
    if (pool->rc == 0)
        pool->rc = all_rounds(pool);
    if (pool->rc)
        snprintf(pool->why, sizeof pool->why, "%.*s", (int)sizeof pool->why - 1, base_error());
}

/* --- the other end on this host --- */
static void *probe_pool_other_end(void *arg)
{
    struct pool *pool = arg;
    struct verbs_device *d = probe_open(pool->end.p);
    if (d)
        probe_pool_work(pool, d);
    probe_end_close(&pool->end);
    return NULL;
}

/* --- reporting --- */
static json_t *result_json(const struct pool *pool, unsigned i)
{
    const struct result *r = &pool->results[i];
    return json_pack("{s:s, s:b, s:i, s:i, s:I, s:I, s:b}", "operation", rounds[i].name, "tried", r->tried, "buffers", (int)pool->end.count,
                     "good", (int)r->good, "bytes", (json_int_t)(r->good * pool->end.size), "lost", (json_int_t)r->lost, "ok",
                     r->tried && r->bad == NOTHING && r->good == pool->end.count);
}

/* Why a round was not run. */
static void why_not(const struct pool *pool, unsigned round, char *out, size_t len)
{
    const struct verbs_traits *t = &pool->end.d->traits;
    bool here = rounds[round].opcode == IBV_WR_RDMA_WRITE ? t->write : t->read;
    if (!can(&pool->end, round)) {
        snprintf(out, len, "not tried: %s cannot", here ? "the other end's device" : "the device");
        return;
    }
    unsigned before = round;
    while (before-- > 0)
        if (pool->results[before].tried && pool->results[before].bad != NOTHING)
            break;
    snprintf(out, len, "not tried: %s failed, and going on might do damage", before < round ? rounds[before].name : "an earlier operation");
}

static int probe_pool_add_row(struct cli_table *t, const struct pool *pool, unsigned i)
{
    const struct result *r = &pool->results[i];
    char buffers[48], bytes[32], lost[32], said[128];
    snprintf(buffers, sizeof buffers, "%u/%u", r->good, pool->end.count);
    base_format_bytes(r->good * pool->end.size, bytes, sizeof bytes);
    snprintf(lost, sizeof lost, "%lld", (long long)r->lost);
    if (r->tried && r->bad == NOTHING)
        snprintf(said, sizeof said, "every byte right, neighbours unchanged");
    else if (r->tried)
        snprintf(said, sizeof said, "WRONG at offset %lld of %s region", (long long)r->bad, r->bad_is_theirs ? "the other" : "this");
    else
        why_not(pool, i, said, sizeof said);
    const char *cells[] = {rounds[i].name, buffers, bytes, lost, said};
    return cli_table_add(t, cells);
}

static int probe_pool_report(const struct probe *p, const struct pool *pool)
{
    static const struct cli_column columns[] = {
        {"operation", false}, {"buffers", true}, {"bytes", true}, {"lost", true}, {"result", false}};
    struct cli_table *t = cli_table_new(columns, 5);
    json_t *list = json_array();
    char size[32];
    bool good = pool->rc == 0;
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (t && probe_pool_add_row(t, pool, i)) {
            cli_table_free(t);
            t = NULL;
        }
        json_array_append_new(list, result_json(pool, i));
        good = good && (!pool->results[i].tried || pool->results[i].bad == NOTHING);
    }
    if (!p->json)
        printf("%s and %s: %u buffers of %s in one region each\n%s", pool->end.d->name, pool->end.theirs, pool->end.count,
               base_format_bytes(pool->end.size, size, sizeof size), p->markdown ? "\n" : "");
    json_t *j = json_pack("{s:s, s:s, s:i, s:i, s:I, s:b, s:o}", "device", pool->end.d->name, "other", pool->end.theirs, "regions", 1,
                          "buffers", (int)pool->end.count, "buffer_bytes", (json_int_t)pool->end.size, "ok", good, "operations", list);
    int rc = probe_print(p, t, j);
    return rc ? rc : good ? 0 : CLI_FAILED;
}

/* --- running, with the other end on another host or in a thread --- */
static int probe_pool_lead(const struct probe *p, struct pool *pool, struct verbs_device *d)
{
    probe_pool_work(pool, d);
    return pool->rc ? probe_error(p, "%s", pool->why) : probe_pool_report(p, pool);
}

static int with_thread(const struct probe *p, struct pool *pool, struct verbs_device *d)
{
    struct probe there = *p;
    struct pool other = {.end = {.p = &there}};
    pthread_t thread;
    int fds[2];
    char name[sizeof d->name]; /* a copy: this end may close its device before the other end has opened its own */
    snprintf(name, sizeof name, "%s", d->name);
    there.name = p->to ? p->to : name;
    if (base_socketpair(fds)) {
        verbs_device_close(d);
        return probe_error(p, "%s", base_error());
    }
    pool->end.fd = fds[0];
    other.end.fd = fds[1];
    if (pthread_create(&thread, NULL, probe_pool_other_end, &other)) {
        close(fds[1]);
        verbs_device_close(d);
        return probe_error(p, "cannot start a thread for the other end of the transfers" BASE_THREAD_HINT);
    }
    int rc = probe_pool_lead(p, pool, d);
    probe_end_close(&pool->end); /* closes the stream: the other end may be waiting for it */
    pthread_join(thread, NULL);
    return rc;
}

int probe_pool(const struct probe *p)
{
    struct pool pool = {.end = {.p = p,
                                .fd = -1,
                                .leads = !p->listen,
                                .count = p->count ? p->count : BUFFERS,
                                .size = base_round_up(p->size ? p->size : SIZE, 64)}};
    struct verbs_device *d = probe_open(p); /* open the device first: without a device there is no reason to contact the other end */
    if (!d)
        return CLI_FAILED;
    int fd = probe_end_reach(p);
    if (fd < 0 && (p->listen || p->peer)) {
        verbs_device_close(d);
        return probe_error(p, "%s", base_error());
    }
    if (fd < 0)
        return with_thread(p, &pool, d);
    pool.end.fd = fd;
    int rc = probe_pool_lead(p, &pool, d);
    probe_end_close(&pool.end);
    return rc;
}
