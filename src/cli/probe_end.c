/* SPDX-License-Identifier: MIT
 *
 * One end of a connection: creates, connects, uses and destroys it. See probe_end.h.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/probe_end.h"
#include "cluster/cluster.h"

#define MAGIC    UINT32_C(0x77707262)
#define PATIENCE INT64_C(30000000000) /* ns to wait for the other end */
#define SECOND   INT64_C(1000000000)

/* The first message of both ends. Integers are little-endian. */
struct hello {
    uint32_t magic, count;
    uint64_t size, base;
    uint32_t rkey;
    uint8_t can_write, can_read, reliable, failed;
    struct verbs_address address;
    char error[512]; /* if `failed`: why this end could not be created */
};

/* --- the stream --- */
int probe_end_reach(const struct probe *p)
{
    char bound[128];
    if (p->peer)
        return cluster_connect(p->peer, base_deadline(PATIENCE));
    if (!p->listen)
        return -1;
    int listener = cluster_listen(p->listen, bound, sizeof bound), fd = -1;
    if (listener < 0)
        return listener;
    fprintf(stderr, "weft probe %s: listening at %s\n", p->kind, bound);
    while (fd < 0 && !cli_stopped()) {
        fd = cluster_accept(listener);
        if (fd < 0)
            base_sleep_ns(20000000);
    }
    cluster_unlisten(listener, bound);
    return fd < 0 ? base_fail(-EINTR, "interrupted") : fd;
}

void probe_end_hang_up(int fd)
{
    if (fd >= 0)
        close(fd);
}

static int ready(struct probe_end *e, short events, int64_t deadline)
{
    for (;;) {
        struct pollfd f = {.fd = e->fd, .events = events};
        if (cli_stopped())
            return base_fail(-EINTR, "interrupted");
        if (base_now_ns() > deadline)
            return base_fail(-ETIMEDOUT, "the other end of the probe does not answer: is its `weft probe` still running?");
        if (poll(&f, 1, 100) > 0)
            return 0;
    }
}

static int move(struct probe_end *e, void *bytes, size_t len, bool out)
{
    uint8_t *at = bytes;
    int64_t deadline = base_deadline(PATIENCE);
    while (len) {
        int rc = ready(e, out ? POLLOUT : POLLIN, deadline);
        if (rc)
            return rc;
        ssize_t n = out ? send(e->fd, at, len, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(e->fd, at, len, MSG_DONTWAIT);
        if ((n == 0 && !out) || (n < 0 && (errno == ECONNRESET || errno == EPIPE)))
            return base_fail(-ECONNRESET, "the other end of the probe has closed the connection: its own output may have the reason");
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return base_fail(-errno, "the connection to the other end of the probe failed: %s", base_strerror(errno));
        if (n > 0) {
            at += n;
            len -= (size_t)n;
        }
    }
    return 0;
}

int probe_end_say(struct probe_end *e, int64_t value)
{
    return move(e, &value, sizeof value, true);
}

int probe_end_hear(struct probe_end *e, int64_t *value)
{
    return move(e, value, sizeof *value, false);
}

int probe_end_trade(struct probe_end *e, int64_t say, int64_t *hear)
{
    int rc = probe_end_say(e, say);
    return rc ? rc : probe_end_hear(e, hear);
}

/* --- creating an end --- */
#define LANE_DEPTH 4095u
#define LANE_CQE   1024

static enum ibv_qp_type probe_end_kind_of(const struct probe_end *e)
{
    return e->d->traits.rc && !e->lane ? IBV_QPT_RC : IBV_QPT_UC;
}

static int probe_end_make(struct probe_end *e)
{
    const struct verbs_traits *t = &e->d->traits;
    char a[32], b[32];
    e->bytes = e->count * e->size;
    if (e->bytes > t->region_bytes)
        return base_fail(-ENOSPC, "%u buffers of %s do not fit into one region of %s: give a smaller --count or --size", e->count,
                         base_format_bytes(e->size, a, sizeof a), e->d->name);
    if (e->size > t->message_bytes)
        return base_fail(-EMSGSIZE, "%s: a message has at most %s: give a smaller --size", e->d->name,
                         base_format_bytes(t->message_bytes, b, sizeof b));
    if (e->bytes > base_memory_available() / 2 || !(e->base = probe_map(e->bytes)))
        return base_fail(-ENOMEM, "no memory for %u buffers of %s" BASE_MEMORY_HINT, e->count, base_format_bytes(e->size, a, sizeof a));
    int rc = verbs_register(&e->region, e->d, e->base, e->bytes, 1);
    if (rc)
        return rc;
    e->cq = (errno = 0, e->d->lib->create_cq(e->d->context, e->lane ? LANE_CQE : 64, NULL, NULL, 0));
    if (!e->cq)
        return base_fail(verbs_code(0, false, NULL),
                         "%s: cannot create a completion queue for the transfers: %s; other programs may use all that the device has",
                         e->d->name, base_strerror(errno));
    uint32_t depth = t->depth_unit_bytes ? (uint32_t)((e->size - 1) / t->depth_unit_bytes + 1) : 16;
    if (e->lane)
        depth = t->depth < LANE_DEPTH ? t->depth : LANE_DEPTH;
    struct verbs_qp_options o = {.type = probe_end_kind_of(e),
                                 .send_cq = e->cq,
                                 .recv_cq = e->cq,
                                 .send_depth = depth,
                                 .recv_depth = depth,
                                 .sge = 1,
                                 .signal_all = true};
    if ((rc = verbs_qp_create(&e->q, e->d, &o)))
        return rc;
    if (!e->lane && (e->q.send_depth < depth || e->q.recv_depth < depth))
        return base_fail(-ENOSPC, "%s: a buffer needs a queue pair of depth %u, and the device grants %u: use a smaller --size", e->d->name,
                         depth, e->q.send_depth < e->q.recv_depth ? e->q.send_depth : e->q.recv_depth);
    return 0;
}

/* The probes pool and link have different protocols, so their first messages have different numbers. */
static uint32_t magic(const struct probe_end *e)
{
    return e->lane ? MAGIC + 2 : MAGIC;
}

static int say_hello(struct probe_end *e, int failed)
{
    struct hello h = {.magic = magic(e), .count = e->count, .size = e->size, .failed = failed != 0};
    if (failed) {
        snprintf(h.error, sizeof h.error, "%.*s", (int)sizeof h.error - 1, base_error());
    } else {
        h.base = (uintptr_t)e->base;
        h.rkey = e->region.mr[0]->rkey;
        h.can_write = e->d->traits.write;
        h.can_read = e->d->traits.read;
        h.reliable = probe_end_kind_of(e) == IBV_QPT_RC;
        h.address = e->q.here;
    }
    return move(e, &h, sizeof h, true);
}

static int read_hello(struct probe_end *e, struct hello *h)
{
    int rc = move(e, h, sizeof *h, false);
    if (rc)
        return rc;
    if (h->magic != magic(e))
        return base_fail(-EPROTO, "the other end is not a `weft probe %s` of this version", e->p->kind);
    h->error[sizeof h->error - 1] = '\0';
    for (char *c = h->error; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
    if (h->failed)
        return base_fail(-ECONNABORTED, "the other end reports: %s", h->error);
    if (h->count < 1 || h->count > (1u << 20) || h->size < 64 || h->size % 64 || h->size > VERBS_SEGMENT / h->count)
        return base_fail(-EPROTO, "the other end sent invalid sizes of buffers; run the same version of weft at both ends");
    return 0;
}

/* If the two devices cannot reach each other, make an error text that names both devices. */
static int not_joined(const struct probe_end *e, int rc, int64_t why_not)
{
    char why[768];
    bool unreachable = why_not == -ETIMEDOUT || why_not == -EHOSTUNREACH || why_not == -ENETUNREACH;
    if (!unreachable || !(e->p->listen || e->p->peer))
        return rc;
    snprintf(why, sizeof why, "%.*s", (int)sizeof why - 1, base_error());
    return base_fail(rc,
                     "%s here and %s there may not be connected by a cable: use --device at both ends to choose devices that are "
                     "(`weft devices` lists them). %s",
                     e->d->name, e->theirs, why);
}

static int connect_to(struct probe_end *e, const struct hello *h)
{
    if (!verbs_address_valid(&h->address))
        return base_fail(-EPROTO, "the other end sent an invalid address of its queue pair; run the same version of weft at both ends");
    if (h->reliable != (probe_end_kind_of(e) == IBV_QPT_RC))
        return base_fail(-EOPNOTSUPP, "the device at one end has reliable connections (RC), but the other device has not: name two "
                                      "devices of one kind with --device");
    if (h->count != e->count || h->size != e->size)
        return base_fail(-EPROTO, "the other end chose other sizes of buffers; run the same version of weft at both ends");
    e->can_write = h->can_write && e->d->traits.write;
    e->can_read = h->can_read && e->d->traits.read;
    e->their_base = h->base;
    e->their_key = h->rkey;
    snprintf(e->theirs, sizeof e->theirs, "%s", h->address.device);
    return verbs_qp_connect(&e->q, &h->address);
}

int probe_end_open(struct probe_end *e, struct verbs_device *d)
{
    struct hello h = {0};
    int64_t their;
    int rc, said;
    e->d = d;
    if (!e->leads) {
        if ((rc = read_hello(e, &h)))
            return rc;
        e->count = h.count;
        e->size = h.size;
    }
    rc = probe_end_make(e);
    said = say_hello(e, rc);
    if (rc || said)
        return rc ? rc : said;
    if (e->leads && (rc = read_hello(e, &h)))
        return rc;
    rc = connect_to(e, &h);
    /* Start only when both ends are connected, since a send to a queue pair that is not ready would be lost. */
    if ((said = probe_end_trade(e, rc, &their)))
        return rc ? rc : said;
    if (rc == 0 && their)
        return not_joined(e, base_fail(-ECONNABORTED, "the other end cannot connect: %s", base_strerror((int)their)), their);
    return not_joined(e, rc, rc);
}

void probe_end_close(struct probe_end *e)
{
    if (e->q.qp)
        verbs_qp_destroy(&e->q);
    if (e->region.mr)
        verbs_unregister(&e->region);
    if (e->cq)
        e->d->lib->destroy_cq(e->cq);
    verbs_device_close(e->d);
    if (e->base)
        munmap(e->base, e->bytes);
    if (e->fd >= 0)
        close(e->fd);
    *e = (struct probe_end){.fd = -1};
}

/* --- using an end --- */
static int probe_end_complete(struct probe_end *e, int64_t timeout_ns)
{
    struct ibv_wc wc;
    int64_t deadline = base_deadline(timeout_ns), n;
    for (unsigned turn = 0; (n = ibv_poll_cq(e->cq, 1, &wc)) == 0; turn++) {
        if (cli_stopped())
            return base_fail(-EINTR, "interrupted");
        if (base_now_ns() > deadline)
            return base_fail(
                -ETIMEDOUT,
                "%s: an operation was not complete within %.1f s: check the cable or the network, and `weft doctor` at both ends",
                e->d->name, (double)timeout_ns / SECOND);
        if (turn > 1000)
            base_sleep_ns(50000);
    }
    if (n < 0)
        return base_fail(-EIO, "%s: ibv_poll_cq() failed; try another version of the driver or firmware", e->d->name);
    if (wc.status != IBV_WC_SUCCESS)
        return base_fail(-EIO, "%s: a request failed: %s (%d)", e->d->name, e->d->lib->wc_status_str(wc.status), (int)wc.status);
    return 0;
}

static struct ibv_sge piece(struct probe_end *e, uint32_t buffer)
{
    uint64_t offset = buffer * e->size;
    return (struct ibv_sge){(uintptr_t)(e->base + offset), (uint32_t)e->size, verbs_lkey(&e->region, offset)};
}

int probe_end_do(struct probe_end *e, enum ibv_wr_opcode opcode, uint32_t mine, uint32_t theirs)
{
    struct ibv_sge sge = piece(e, mine);
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;
    wr.wr.rdma.remote_addr = e->their_base + theirs * e->size;
    wr.wr.rdma.rkey = e->their_key;
    int rc = ibv_post_send(e->q.qp, &wr, &bad);
    if (rc) {
        rc = verbs_code(rc, e->d->traits.link == VERBS_THUNDERBOLT, NULL);
        return base_fail(rc, "%s: the device refused a request to send or write: %s", e->d->name, base_strerror(rc));
    }
    return probe_end_complete(e, 10 * SECOND);
}

int probe_end_post_receive(struct probe_end *e, uint32_t mine)
{
    struct ibv_sge sge = piece(e, mine);
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    int rc = ibv_post_recv(e->q.qp, &wr, &bad);
    if (rc) {
        rc = verbs_code(rc, e->d->traits.link == VERBS_THUNDERBOLT, NULL);
        return base_fail(rc, "%s: the device refused a receive buffer: %s", e->d->name, base_strerror(rc));
    }
    return 0;
}

int probe_end_received(struct probe_end *e, int64_t timeout_ns)
{
    return probe_end_complete(e, timeout_ns);
}
