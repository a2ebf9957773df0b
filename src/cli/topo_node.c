/* SPDX-License-Identifier: MIT
 *
 * A node that measures. All nodes go through the same list of pairs, with a barrier before each, so that only one measurement runs at a
 * time. One node of a pair leads. For round trips it puts a number into a word of the other node, which puts the number back. For the
 * bandwidth it puts large blocks. Each node puts its results into the pool of node 0, which prints them.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/topo.h"
#include "cli/device_words.h"
#include "cli/networks.h"
#include "cluster/cluster.h"
#include "weft/node.h"
#include "weft/pool.h"
#include "weft/sync.h"

#define BLOCK    (1u << 20)
#define WINDOW   4u                /* blocks in flight */
#define SLOW     (2 * WEFT_SECOND) /* if the first block takes longer, no others are put, because they could take minutes */
#define SAMPLES  4096u             /* maximum number of round trips that are recorded */
#define WARM     16u               /* the first round trips do not count, because connections are made at first use */
#define FLOOR    64u               /* the fewest round trips */
#define NUMBERS  16u               /* puts that may be incomplete: a number's answer may arrive before its put is complete */
#define SPIN     (20 * WEFT_US)    /* after waiting for this time, yield the processor, because the peer may need it */
#define LAST     UINT32_MAX
#define PATIENCE (60 * WEFT_SECOND)
#define AWAY     (5 * WEFT_SECOND) /* how long to wait for a route between two measurements */

/* What every node has in its pool for the measurements. */
struct desk {
    uint64_t word;         /* the peer puts its number here */
    uint64_t out[NUMBERS]; /* this node's numbers, from which puts read */
    uint8_t pad[BASE_PAGE - 8 - 8 * NUMBERS];
    uint8_t from[WINDOW * BLOCK], to[WINDOW * BLOCK];
};

struct measurer {
    weft_node *w;
    uint32_t rank, size;
    int64_t time_ns;
    uint64_t epoch;    /* the membership epoch while all nodes live; if it changes, the measurement fails */
    weft_gaddr *desks; /* [size] */
    struct desk *desk; /* the desk of this node */
    weft_gaddr report; /* address in node 0's pool: struct topo_node of all nodes, then struct topo_link of all pairs */
    int64_t *samples;
    weft_op ops[NUMBERS];
    uint32_t told; /* how many numbers were put in this measurement */
};

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The k-th number of a pair. Pairs have different numbers, so that words need not be reset. */
static uint64_t topo_node_number(const struct measurer *m, uint32_t from, uint32_t to, uint32_t k)
{
    return ((uint64_t)from * m->size + to + 1) << 32 | k;
}

static int whole(const struct measurer *m)
{
    if (cli_stopped())
        return base_fail(-EINTR, "interrupted");
    for (uint32_t i = 0; weft_epoch(m->w) != m->epoch && i < m->size; i++)
        if (!weft_alive(m->w, i))
            return base_fail(-ECONNRESET,
                             "node %u has ended before its links were measured: its messages on standard error may have the reason", i);
    return 0;
}

/* Fail if there is no route to a node now. */
static int way(const struct measurer *m, uint32_t node)
{
    weft_link_stats s;
    if (weft_link_stat(m->w, node, &s, sizeof s) == 0 && s.via == UINT32_MAX)
        return base_fail(
            -ENETDOWN,
            "no route leads to node %u: its cables are unplugged, or their ports are down; `weft doctor` on its host examines them", node);
    return 0;
}

/* Wait until there is a route to every node: a barrier needs that. */
static int ways(const struct measurer *m)
{
    int64_t deadline = base_deadline(AWAY);
    int rc = 0;
    for (uint32_t i = 0; i < m->size && !rc; i++)
        while (i != m->rank && !rc && way(m, i)) {
            rc = whole(m);
            if (!rc && base_now_ns() > deadline)
                rc = way(m, i);
            base_sleep_ns(10 * WEFT_MS);
        }
    return rc;
}

static int topo_node_tell(struct measurer *m, uint32_t peer, uint64_t value)
{
    uint32_t i = m->told % NUMBERS;
    int rc = m->told >= NUMBERS ? weft_wait(m->w, &m->ops[i], PATIENCE) : 0;
    m->desk->out[i] = value;
    if (!rc)
        rc = weft_put(m->w, m->desks[peer] + offsetof(struct desk, word), &m->desk->out[i], sizeof value, &m->ops[i]);
    m->told += rc == 0;
    return rc;
}

/* Wait for the completion of all puts of numbers. */
static int told(struct measurer *m)
{
    int rc = 0;
    for (uint32_t i = 0; i < m->told && i < NUMBERS; i++) {
        int err = weft_wait(m->w, &m->ops[i], PATIENCE);
        rc = rc ? rc : err;
    }
    m->told = 0;
    return rc;
}

/* One round of a wait for `peer` that began at `since`. Returns 0, or an error if the wait must end. */
static int pass(struct measurer *m, uint32_t *turns, uint32_t peer, int64_t since, int64_t deadline)
{
    weft_progress(m->w);
    if (base_now_ns() - since > SPIN)
        sched_yield();
    if (++*turns % 256)
        return 0;
    int rc = whole(m);
    if (!rc)
        rc = way(m, peer);
    return rc == 0 && base_now_ns() > deadline ? base_fail(-ETIMEDOUT, "node %u does not answer: is its process stopped?", peer) : rc;
}

static int await(struct measurer *m, uint32_t peer, uint64_t value)
{
    int64_t begin = base_now_ns(), deadline = base_deadline(PATIENCE);
    uint32_t turns = 0;
    int rc = 0;
    while (!rc && __atomic_load_n(&m->desk->word, __ATOMIC_ACQUIRE) != value)
        rc = pass(m, &turns, peer, begin, deadline);
    return rc;
}

static int round_trips(struct measurer *m, uint32_t peer, int64_t *median)
{
    int64_t end = 0;
    uint32_t count = 0;
    for (uint32_t k = 0; k < WARM + FLOOR || (k < WARM + SAMPLES && base_now_ns() < end); k++) {
        uint64_t value = topo_node_number(m, m->rank, peer, k);
        if (k == WARM)
            end = base_now_ns() + m->time_ns;
        int64_t before = base_now_ns();
        int rc = topo_node_tell(m, peer, value);
        if (!rc)
            rc = await(m, peer, value);
        if (!rc && k >= WARM)
            m->samples[count++] = base_now_ns() - before;
        if (rc)
            return rc;
    }
    qsort(m->samples, count, sizeof *m->samples, by_value);
    *median = m->samples[count / 2];
    return 0;
}

static int block(struct measurer *m, uint32_t peer, uint64_t n, weft_op *op)
{
    uint64_t place = n % WINDOW * BLOCK;
    return weft_put(m->w, m->desks[peer] + offsetof(struct desk, to) + place, m->desk->from + place, BLOCK, op);
}

static int blocks(struct measurer *m, uint32_t peer, uint64_t *bytes_per_second)
{
    weft_op ops[WINDOW];
    int64_t start = base_now_ns(), end = start + m->time_ns;
    uint64_t n = 1;
    int rc = block(m, peer, 0, &ops[0]);
    if (!rc)
        rc = weft_wait(m->w, &ops[0], PATIENCE);
    bool slow = base_now_ns() - start > SLOW;
    for (; !rc && !slow && (n < 2 * WINDOW || base_now_ns() < end); n++) {
        rc = whole(m);
        if (!rc && n >= WINDOW)
            rc = weft_wait(m->w, &ops[n % WINDOW], PATIENCE);
        if (!rc)
            rc = block(m, peer, n, &ops[n % WINDOW]);
    }
    for (uint64_t i = n < WINDOW ? 0 : n - WINDOW; !rc && i < n; i++)
        rc = weft_wait(m->w, &ops[i % WINDOW], PATIENCE);
    int64_t took = base_now_ns() - start;
    *bytes_per_second = (uint64_t)((double)n * BLOCK * 1e9 / (double)(took > 0 ? took : 1));
    return rc;
}

/* The other end of a measurement: puts each number back to the leader. */
static int topo_node_answer(struct measurer *m, uint32_t leader)
{
    uint64_t seen = 0, last = topo_node_number(m, leader, m->rank, LAST);
    int64_t deadline = base_deadline(2 * m->time_ns + PATIENCE), since = base_now_ns();
    uint32_t turns = 0;
    int rc = 0;
    while (!rc) {
        uint64_t now = __atomic_load_n(&m->desk->word, __ATOMIC_ACQUIRE);
        if (now == last)
            return told(m);
        if (now != seen && now >> 32 == last >> 32) {
            rc = topo_node_tell(m, leader, now);
            seen = now;
            since = base_now_ns();
            deadline = base_deadline(2 * m->time_ns + PATIENCE);
        }
        if (!rc)
            rc = pass(m, &turns, leader, since, deadline);
    }
    told(m);
    return rc == -ENETDOWN ? 0 : rc; /* not an error here: only this measurement failed, and the leader reports that */
}

static void topo_node_lead(struct measurer *m, uint32_t peer, struct topo_link *link)
{
    int rc = round_trips(m, peer, &link->round_trip_ns), err = told(m);
    rc = rc ? rc : err;
    if (!rc)
        rc = blocks(m, peer, &link->bytes_per_second);
    link->measured = rc == 0;
    if (rc)
        snprintf(link->why, sizeof link->why, "%.*s", (int)sizeof link->why - 1, base_error());
    topo_node_tell(m, peer, topo_node_number(m, m->rank, peer, LAST));
    told(m);
}

static int all_pairs(struct measurer *m, struct topo_link *links)
{
    for (uint32_t from = 0; from < m->size; from++) {
        for (uint32_t to = 0; to < m->size; to++) {
            if (from == to)
                continue;
            int rc = ways(m);
            if (!rc)
                rc = weft_barrier(m->w, 2 * m->time_ns + 2 * PATIENCE);
            if (!rc && from == m->rank)
                topo_node_lead(m, to, &links[to]);
            else if (!rc && to == m->rank)
                rc = topo_node_answer(m, from);
            if (rc)
                return rc;
        }
    }
    return 0;
}

/* --- describing this node --- */

void topo_describe(struct topo_node *n)
{
    struct verbs_device *all;
    uint32_t count = 0;
    int gid_index;
    if (gethostname(n->host, sizeof n->host - 1))
        n->host[0] = '\0';
    /* Without a verbs library there are no devices. That is no error: shared memory needs none. */
    if (cli_gid_index(&gid_index) || verbs_devices(&all, &count, gid_index)) {
        base_error_clear();
        return;
    }
    for (uint32_t i = 0; i < count && n->device_count < TOPO_DEVICES; i++) {
        struct topo_device *d = &n->devices[n->device_count++];
        const char *reason = cli_reason(&all[i]);
        snprintf(d->name, sizeof d->name, "%s", all[i].name);
        snprintf(d->interface, sizeof d->interface, "%s", all[i].interface);
        snprintf(d->link, sizeof d->link, "%s", cli_link_text(all[i].traits.link));
        snprintf(d->state, sizeof d->state, "%s", cli_port_state_text(all[i].port_attr.state));
        snprintf(d->reason, sizeof d->reason, "%s", reason ? reason : "");
        d->gbits = all[i].gbits;
    }
    verbs_devices_close(all, count);
}

/* --- results of other nodes: check them before use --- */

void topo_check_text(char *text, size_t room)
{
    text[room - 1] = '\0';
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || (unsigned char)*text > 0x7e)
            *text = '?';
}

void topo_check_node(struct topo_node *n)
{
    topo_check_text(n->host, sizeof n->host);
    topo_check_text(n->better, sizeof n->better);
    n->reported = *(const uint8_t *)&n->reported == 1;
    n->device_count = n->device_count < TOPO_DEVICES ? n->device_count : TOPO_DEVICES;
    for (uint32_t k = 0; k < TOPO_DEVICES; k++) {
        struct topo_device *d = &n->devices[k];
        topo_check_text(d->name, sizeof d->name);
        topo_check_text(d->interface, sizeof d->interface);
        topo_check_text(d->link, sizeof d->link);
        topo_check_text(d->state, sizeof d->state);
        topo_check_text(d->reason, sizeof d->reason);
    }
}

static void topo_node_check(struct topo_node *nodes, struct topo_link *links, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++)
        topo_check_node(&nodes[i]);
    for (uint64_t i = 0; i < (uint64_t)size * size; i++) {
        weft_link_stats *s = &links[i].stats;
        topo_check_text(s->transport, sizeof s->transport);
        topo_check_text(s->devices, sizeof s->devices);
        links[i].why[sizeof links[i].why - 1] = '\0';
    }
}

static uint64_t links_at(uint32_t size)
{
    return (uint64_t)size * sizeof(struct topo_node);
}

static int hand_in(struct measurer *m, struct topo_node *node, struct topo_link *links)
{
    uint64_t row = (uint64_t)m->size * sizeof *links;
    bool ofi = false;
    for (uint32_t i = 0; i < m->size; i++) {
        weft_link_stat(m->w, i, &links[i].stats, sizeof links[i].stats);
        ofi = ofi || strcmp(links[i].stats.transport, "ofi") == 0;
    }
    if (ofi) /* only if a link uses libfabric, because cli_networks_better() loads it */
        cli_networks_better(node->better, sizeof node->better);
    int rc = weft_put_blocking(m->w, m->report + links_at(m->size) + m->rank * row, links, row);
    node->reported = true;
    return rc ? rc : weft_put_blocking(m->w, m->report + m->rank * sizeof *node, node, sizeof *node);
}

/* A node cannot be reached: wait for the reports of the others. */
static void gather(struct measurer *m)
{
    int64_t deadline = base_deadline(2 * AWAY);
    for (uint32_t i = 0; i < m->size; i++) {
        const struct topo_node *n = weft_ptr(m->w, m->report + i * sizeof *n, sizeof *n);
        while (!__atomic_load_n((const uint8_t *)&n->reported, __ATOMIC_ACQUIRE) && base_now_ns() < deadline && !cli_stopped() &&
               weft_alive(m->w, i) && way(m, i) == 0)
            base_sleep_ns(10 * WEFT_MS);
    }
}

static int print_report(struct measurer *m, enum topo_format format, const char *hostfile)
{
    uint8_t *at = weft_ptr(m->w, m->report, links_at(m->size));
    struct topo_node *nodes = (struct topo_node *)(void *)at;
    struct topo_link *links = (struct topo_link *)(void *)(at + links_at(m->size));
    bool whole = true;
    topo_node_check(nodes, links, m->size);
    for (uint32_t i = 0; i < m->size; i++)
        for (uint32_t k = 0; k < m->size; k++) {
            struct topo_link *l = &links[(uint64_t)i * m->size + k];
            if (!nodes[i].reported)
                snprintf(l->why, sizeof l->why, "node %u has not reported", i);
            else if (!l->measured && !l->why[0])
                snprintf(l->why, sizeof l->why, "not measured");
        }
    for (uint64_t i = 0; i < (uint64_t)m->size * m->size; i++)
        whole = whole && (links[i].measured || i % (m->size + 1) == 0);
    const struct topo t = {m->size, nodes, links};
    if (format == TOPO_MATRIX) /* in a matrix, missing links would look like absent cables */
        return whole ? topo_matrix(&t, hostfile)
                     : cli_error("topo", "not every pair of nodes could be measured, so there is no matrix: see the messages above");
    int status = topo_print(&t, format);
    return status ? status : whole ? 0 : cli_error("topo", "not every pair of nodes could be measured: see the reasons above");
}

/* Exchange addresses: every node gives the address of its desk. Node 0 also gives the address of the report, and the time of a measurement.
 */
static int meet(struct measurer *m)
{
    uint64_t *words = calloc(m->size, sizeof *words);
    weft_gaddr desk, report = WEFT_NULL;
    if (!words || !m->desks || !m->samples) {
        free(words);
        return base_fail(-ENOMEM, "no memory for the addresses of %u nodes" BASE_MEMORY_HINT, m->size);
    }
    int rc = weft_alloc_aligned(m->w, sizeof(struct desk), BASE_PAGE, &desk);
    if (!rc && m->rank == 0)
        rc = weft_alloc_aligned(m->w, links_at(m->size) + (uint64_t)m->size * m->size * sizeof(struct topo_link), BASE_PAGE, &report);
    if (!rc) {
        m->desk = weft_ptr(m->w, desk, sizeof(struct desk));
        memset(m->desk, 0, offsetof(struct desk, from));
        memset(m->desk->from, 1, sizeof m->desk->from);
        rc = weft_exchange(m->w, &desk, 1, m->desks, NULL, PATIENCE);
    }
    if (!rc)
        rc = weft_exchange(m->w, &report, 1, words, NULL, PATIENCE);
    m->report = words[0];
    if (!rc)
        rc = weft_exchange(m->w, &(uint64_t){(uint64_t)m->time_ns}, 1, words, NULL, PATIENCE);
    m->time_ns = words[0] <= (uint64_t)TOPO_TIME_MAX ? (int64_t)words[0] : TOPO_TIME_MAX;
    free(words);
    return rc;
}

/* After a failure, wait a little for a signal: after Ctrl-C, the end of another node may be noticed first. */
static int stopped_with_others(void)
{
    for (int i = 0; i < 200 && !cli_stopped(); i++)
        base_sleep_ns(WEFT_MS);
    return cli_stopped();
}

int topo_node(enum topo_format format, int64_t time_ns, const char *hostfile)
{
    struct measurer m = {.time_ns = time_ns};
    struct topo_node node = {.host = ""};
    struct topo_link *links = NULL;
    cli_catch_signals();
    cluster_stopped = cli_stopped;
    topo_describe(&node);
    int rc = weft_open(&m.w, NULL), status = CLI_FAILED;
    if (rc)
        return stopped_with_others() ? 128 + cli_stopped() : cli_error("topo", "%s", base_error());
    m.rank = weft_rank(m.w);
    m.size = weft_size(m.w);
    m.epoch = weft_epoch(m.w);
    m.desks = calloc(m.size, sizeof *m.desks);
    m.samples = calloc(SAMPLES, sizeof *m.samples);
    links = calloc(m.size, sizeof *links);
    weft_pool_stats pool;
    if (weft_pool_stat(m.w, &pool, sizeof pool) == 0)
        node.pool_bytes = pool.reserved_bytes;
    rc = links ? meet(&m) : base_fail(-ENOMEM, "no memory for the results of %u links" BASE_MEMORY_HINT, m.size);
    bool met = !rc; /* false: the exchange failed, so this node does not know where to put the report */
    if (!rc)
        rc = all_pairs(&m, links);
    bool cut_off = met && (rc == -ENETDOWN || rc == -ECONNRESET) && !stopped_with_others();
    if (cut_off) {
        cli_error("topo", "node %u: %s", m.rank, base_error());
        (void)hand_in(&m, &node, links); /* so that node 0 does not print that this node has not reported */
        if (m.rank == 0)
            gather(&m);
        rc = 0;
    } else if (!rc) {
        rc = hand_in(&m, &node, links);
        rc = rc ? rc : weft_barrier(m.w, PATIENCE);
    }
    if (rc && stopped_with_others()) /* print no error: the user has interrupted the command */
        status = 128 + cli_stopped();
    else if (rc)
        cli_error("topo", "node %u: %s", m.rank, base_error());
    else
        status = m.rank ? 0 : print_report(&m, format, hostfile);
    weft_close(m.w);
    free(links);
    free(m.samples);
    free(m.desks);
    return status;
}
