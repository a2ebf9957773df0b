/* SPDX-License-Identifier: MIT
 *
 * Finds and connects the cables between two nodes, over their side connection. Each node sends a list of the ports that it offers, with
 * their GIDs. Every pair of ports is tried, the likeliest first; both nodes compute the same order. If the queue pairs of two ports
 * connect, there is a cable between these ports. If a hostfile names the port of a node, only that port is tried, and a mismatch is an
 * error. No node sends over a cable before both have reported that they are ready.
 */
#include "fabric/tb/tb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TB_HELLO UINT64_C(0x7765667474623032) /* "wefttb02" */

struct offer {
    uint8_t gid[16];
    uint8_t thunderbolt, busy; /* busy: the port has a cable to another node, and is a Thunderbolt port, which has only one cable */
    char device[38];
};

enum told {
    TOLD_NOTHING,
    TOLD_NONE,
    TOLD_DEVICE,
    TOLD_DOWN
}; /* what the hostfile says about a device; TOLD_DOWN: the hostfile names a device that cannot be used now */

struct hello {
    uint64_t magic, pool_bytes, segment;
    uint32_t rank, size, session, check, lanes, offers;
    uint32_t told;    /* enum told: what this node's hostfile says about this node's device to the other node */
    char towards[40]; /* the name of this node's device in the hostfile */
    struct tb_lane_option lane[TB_CABLE_LANES];
    struct offer offer[TB_DEVICES];
};

/* What each node sends to the other after each step of connecting: the result of the step at its side. */
struct step {
    int32_t result; /* 0: this side has succeeded */
    uint32_t count;
    struct verbs_address address[TB_CABLE_LANES];
};

static int connect_exchange(struct tb_link *l, int fd, const void *mine, void *theirs, size_t len, int64_t deadline)
{
    int err = fab_side_transfer(fd, (void *)(uintptr_t)mine, len, true, deadline);
    if (!err)
        err = fab_side_transfer(fd, theirs, len, false, deadline);
    return err ? base_fail(err, "node %u did not send the addresses of its queue pairs: %s; see the messages of that node", l->r.link->node,
                           base_strerror(err))
               : 0;
}

static bool connect_offered(const struct tb_device *d)
{
    return d->d->traits.link != VERBS_THUNDERBOLT || d->cables == 0;
}

/* Stores what the hostfile says about this node's device to the other node. A name is sent even if no device has it. */
static void say_told(const struct tb *tb, struct hello *h, uint32_t node)
{
    const char *name = tb->w->towards ? tb->w->towards[node] : NULL;
    h->told = tb->w->towards ? name ? TOLD_DEVICE : TOLD_NONE : TOLD_NOTHING;
    if (!name)
        return;
    snprintf(h->towards, sizeof h->towards, "%.37s", name);
    for (uint32_t i = 0; i < tb->all_count; i++)
        if (strcmp(tb->all[i].name, name) == 0 && tb->all[i].usable)
            h->told = TOLD_DOWN;
}

static void connect_introduce(const struct tb *tb, struct hello *h, uint32_t node)
{
    *h = (struct hello){.magic = TB_HELLO,
                        .pool_bytes = tb->w->pool_bytes,
                        .segment = tb->segment,
                        .rank = tb->w->rank,
                        .size = tb->w->founders,
                        .check = tb->check,
                        .lanes = tb->lane_count,
                        .offers = tb->device_count};
    memcpy(h->lane, tb->lanes, sizeof tb->lanes);
    for (uint32_t i = 0; i < tb->device_count; i++) {
        const struct verbs_device *d = tb->devices[i].d;
        struct offer *o = &h->offer[i];
        memcpy(o->gid, d->chosen.gid.raw.raw, sizeof o->gid);
        o->thunderbolt = d->traits.link == VERBS_THUNDERBOLT;
        o->busy = !connect_offered(&tb->devices[i]);
        snprintf(o->device, sizeof o->device, "%.37s", d->name);
    }
    say_told(tb, h, node);
}

static int check_hello(const struct tb_link *l, const struct hello *mine, const struct hello *h)
{
    uint32_t node = l->r.link->node;
    if (h->magic != TB_HELLO || h->rank != node || h->size != mine->size || h->offers > TB_DEVICES || h->lanes > TB_CABLE_LANES ||
        h->pool_bytes < l->tb->w->heap_offset || h->pool_bytes > WEFT_MAX_POOL_BYTES || h->segment < BASE_PAGE ||
        (h->segment & (h->segment - 1)) || h->check > TB_CHECK_FRAMES || h->told > TOLD_DOWN || !memchr(h->towards, 0, sizeof h->towards))
        return base_fail(-EPROTO,
                         "node %u uses another transport, or another version of weft: set the same WEFT_TRANSPORT on all nodes, and run "
                         "the same version of weft on all hosts",
                         node);
    if (h->lanes != mine->lanes || memcmp(h->lane, mine->lane, sizeof h->lane) != 0 || h->check != mine->check)
        return base_fail(
            -EINVAL, "node %u and this node have different settings: set the same WEFT_TB_LANES and the same WEFT_TB_CHECK on all nodes",
            node);
    return 0;
}

/* Returns how many leading bits two addresses have in common. The more, the likelier a cable connects the two ports, because the ends of a
 * cable are usually in one network. */
static uint32_t connect_likeness(const uint8_t a[16], const uint8_t b[16])
{
    uint32_t n = 0;
    while (n < 128 && !((a[n / 8] ^ b[n / 8]) >> (7 - n % 8) & 1))
        n++;
    return n;
}

/* Exchanges the results of a step. `err`: this side's result. `*both`: both sides have succeeded. */
static int connect_agree(struct tb_link *l, int fd, struct step *mine, struct step *theirs, int err, int64_t deadline, bool *both)
{
    mine->result = err;
    int rc = connect_exchange(l, fd, mine, theirs, sizeof *mine, deadline);
    *both = !rc && err == 0 && theirs->result == 0;
    return rc;
}

static void connect_addresses(struct step *s, const struct verbs_qp *qps, uint32_t count)
{
    *s = (struct step){.count = count};
    for (uint32_t i = 0; i < count; i++)
        s->address[i] = qps[i].here;
}

static int connect_queue_pairs(struct verbs_qp *qps, uint32_t count, const struct step *theirs)
{
    int err = theirs->count == count
                  ? 0
                  : base_fail(-EPROTO, "the other node made %u queue pairs, and this node %u: set the same WEFT_TB_LANES on all nodes",
                              theirs->count, count);
    for (uint32_t i = 0; i < count && !err; i++)
        err =
            verbs_address_valid(&theirs->address[i])
                ? verbs_qp_connect(&qps[i], &theirs->address[i])
                : base_fail(-EPROTO, "the other node sent an invalid address of its queue pair; run the same version of weft on all hosts");
    return err;
}

/* Tries one pair of ports: both nodes make, connect and start their queue pairs. Sets `*out` to NULL if no cable connects these ports.
 * Returns a negative errno if the side connection failed. This thread holds tb->receiving during calls of the device. When a signal ends
 * the process, the thread that frees the devices takes this lock (ending.c), and this thread calls the device no more. */
static int try_pair(struct tb_link *l, struct tb_device *device, int fd, int64_t deadline, struct tb_cable **out, char *why, size_t why_len)
{
    base_spin *receiving = &l->tb->receiving;
    struct step mine = {0}, theirs;
    bool both;
    *out = NULL;
    base_spin_lock(receiving);
    struct tb_cable *c = tb_cable_make(l->tb, device, l->r.link->node);
    int err = c ? 0 : -1;
    if (c)
        connect_addresses(&mine, &c->control, 1);
    base_spin_unlock(receiving);
    int rc = connect_agree(l, fd, &mine, &theirs, err, deadline, &both);
    if (rc || !both)
        goto out;
    base_spin_lock(receiving);
    err = connect_queue_pairs(&c->control, 1, &theirs);
    while (!err && c->lane_count < l->tb->lane_count)
        err = tb_cable_add_lane(c);
    connect_addresses(&mine, c->lanes, err ? 0 : c->lane_count);
    base_spin_unlock(receiving);
    rc = connect_agree(l, fd, &mine, &theirs, err, deadline, &both);
    if (rc || !both)
        goto out;
    base_spin_lock(receiving);
    c->lane_base = l->cable_count * l->tb->lane_count;
    err = connect_queue_pairs(c->lanes, c->lane_count, &theirs);
    if (!err)
        err = tb_cable_start(c);
    base_spin_unlock(receiving);
    rc = connect_agree(l, fd, &mine, &theirs, err, deadline, &both);
out:
    if (rc || !both) {
        if (!rc && err && why_len)
            snprintf(why, why_len, "%s", base_error());
        base_spin_lock(receiving);
        tb_cable_close(c);
        base_spin_unlock(receiving);
        return rc;
    }
    *out = c;
    return 0;
}

struct pair {
    uint32_t low, high, likeness; /* the ports of the lower-numbered and of the higher-numbered node */
};

static int by_likeness(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    if (x->likeness != y->likeness)
        return x->likeness > y->likeness ? -1 : 1;
    return x->low != y->low ? (x->low > y->low) - (x->low < y->low) : (x->high > y->high) - (x->high < y->high);
}

#define REMEDY                                                                                                                          \
    "correct \"rdma\" in the hostfile (the list of a node names its device towards each other node), or leave \"rdma\" out: then weft " \
    "finds the cables itself"

/* Whether the hostfile allows this port as an end of the cable. */
static bool connect_meant(const struct hello *h, uint32_t i)
{
    return h->told == TOLD_NOTHING || (h->told == TOLD_DEVICE && strncmp(h->towards, h->offer[i].device, sizeof h->offer[i].device) == 0);
}

/* Checks the device that a hostfile names for this pair of nodes. Returns 0 if there is no error. */
static int check_told_of(const struct hello *h, const struct hello *other)
{
    char there[400] = "";
    bool found = h->told != TOLD_DEVICE;
    for (uint32_t i = 0; i < h->offers && !found; i++) {
        const struct offer *o = &h->offer[i];
        size_t n = strlen(there);
        found = memchr(o->device, 0, sizeof o->device) && strcmp(o->device, h->towards) == 0;
        if (found && o->busy)
            return base_fail(
                -EINVAL, "the hostfile names device %s of node %u towards node %u, but this device has the cable to another node: " REMEDY,
                h->towards, h->rank, other->rank);
        snprintf(there + n, sizeof there - n, "%s%.*s", n ? ", " : "", (int)sizeof o->device, o->device);
    }
    if (!found)
        return base_fail(
            -ENODEV, "the hostfile names device %s of node %u towards node %u, but that node has no such device for tb, only %s: " REMEDY,
            h->towards, h->rank, other->rank, there[0] ? there : "none");
    if ((h->told == TOLD_DEVICE || h->told == TOLD_DOWN) && other->told == TOLD_NONE)
        return base_fail(-EINVAL,
                         "the hostfile names device %s of node %u for the cable to node %u, but no device of node %u for the cable to node "
                         "%u; a cable has two ends: " REMEDY,
                         h->towards, h->rank, other->rank, other->rank, h->rank);
    return 0;
}

static int check_told(const struct hello *low, const struct hello *high)
{
    int err = check_told_of(low, high);
    return err ? err : check_told_of(high, low);
}

static int find_cables(struct tb_link *l, int fd, const struct hello *mine, const struct hello *theirs, int64_t deadline, char *why,
                       size_t why_len)
{
    bool lower = mine->rank < theirs->rank;
    const struct hello *low = lower ? mine : theirs, *high = lower ? theirs : mine;
    struct pair pairs[TB_DEVICES * TB_DEVICES] = {{0, 0, 0}};
    uint32_t n = 0;
    bool used_low[TB_DEVICES] = {0}, used_high[TB_DEVICES] = {0};
    for (uint32_t i = 0; i < low->offers; i++)
        for (uint32_t j = 0; j < high->offers; j++)
            if (!low->offer[i].busy && !high->offer[j].busy && connect_meant(low, i) && connect_meant(high, j) &&
                low->offer[i].thunderbolt == high->offer[j].thunderbolt)
                pairs[n++] = (struct pair){i, j, connect_likeness(low->offer[i].gid, high->offer[j].gid)};
    qsort(pairs, n, sizeof *pairs, by_likeness);
    for (uint32_t k = 0; k < n && l->cable_count < TB_DEVICES; k++) {
        if (used_low[pairs[k].low] || used_high[pairs[k].high])
            continue;
        struct tb_device *device = &l->tb->devices[lower ? pairs[k].low : pairs[k].high];
        struct tb_cable *c;
        int rc = try_pair(l, device, fd, deadline, &c, why, why_len);
        if (rc)
            return rc;
        if (!c)
            continue;
        used_low[pairs[k].low] = used_high[pairs[k].high] = true;
        l->cables[l->cable_count++] = c;
    }
    bool down = mine->told == TOLD_DOWN || theirs->told == TOLD_DOWN;
    if (down)
        snprintf(why, why_len, "the hostfile names device %s of node %u for this cable, and that device cannot be used now",
                 mine->told == TOLD_DOWN ? mine->towards : theirs->towards, mine->told == TOLD_DOWN ? mine->rank : theirs->rank);
    if (l->cable_count == 0 && !down && (mine->told == TOLD_DEVICE || theirs->told == TOLD_DEVICE))
        return base_fail(-ENETUNREACH,
                         "the hostfile names device %s of node %u and device %s of node %u for the cable between them, but no cable joins "
                         "these two devices%s%s: " REMEDY,
                         low->told == TOLD_DEVICE ? low->towards : "(any)", low->rank, high->told == TOLD_DEVICE ? high->towards : "(any)",
                         high->rank, why[0] ? ": " : "", why);
    return 0;
}

int tb_connect(struct tb_link *l, int side_fd, int64_t deadline)
{
    struct tb *tb = l->tb;
    struct fab_link *link = l->r.link;
    struct hello mine, theirs = {0};
    char why[900] = "";
    base_spin_lock(&tb->receiving);
    connect_introduce(tb, &mine, link->node);
    base_spin_unlock(&tb->receiving);
    int err = base_random(&mine.session, sizeof mine.session);
    if (!err)
        err = connect_exchange(l, side_fd, &mine, &theirs, sizeof mine, deadline);
    if (!err)
        err = check_hello(l, &mine, &theirs);
    if (!err)
        err = mine.rank < theirs.rank ? check_told(&mine, &theirs) : check_told(&theirs, &mine);
    if (!err)
        err = find_cables(l, side_fd, &mine, &theirs, deadline, why, sizeof why);
    if (err)
        return base_context(err, "link to node %u", link->node);
    if (l->cable_count == 0)
        snprintf(l->no_cable, sizeof l->no_cable, "%s", why);
    if (l->cable_count == 0)
        base_log(BASE_LOG_INFO, "no cable leads to node %u%s%s; perhaps a route through other nodes leads there", link->node,
                 why[0] ? ": " : "", why);
    uint64_t segment = theirs.segment < tb->segment ? theirs.segment : tb->segment;
    link->pool_bytes = theirs.pool_bytes;
    base_spin_lock(&tb->receiving);
    err = tb_link_ready(l, mine.session + theirs.session, segment);
    if (!err && l->cable_count)
        tb_routes_cable(tb, link->node, true);
    base_spin_unlock(&tb->receiving);
    /* A node may send frames only when both have made their endpoints. */
    char ready = 'r', answer = 0;
    if (!err)
        err = connect_exchange(l, side_fd, &ready, &answer, 1, deadline);
    if (!err && answer != 'r')
        err = base_fail(-EPROTO,
                        "link to node %u: that node sent byte 0x%02x instead of 'r' (ready) after both nodes had exchanged addresses; run "
                        "the same version of weft on all hosts",
                        link->node, (unsigned)(unsigned char)answer);
    return err;
}
