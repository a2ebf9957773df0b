/* SPDX-License-Identifier: MIT
 *
 * One process of a mesh that sends without end: over RC, UC, and RC with a shared receive queue, to each of its peers. test_kill.py starts
 * several, connects them, and kills them. Every byte that arrives is checked.
 *
 * Reads commands, one in a line, and answers on stdout:
 *   link PEER KIND EPOCH   makes a new queue pair for the peer
 *                          -> card PEER KIND EPOCH GID NUMBER ADDRESS RKEY
 *   join PEER KIND EPOCH GID NUMBER ADDRESS RKEY
 *                          connects it                   -> joined PEER KIND EPOCH
 *   go PEER KIND EPOCH     begins to send; for when both sides have joined
 *   quiet                  stops sending                 -> quiet, when all sends are complete
 *   count                  counts until now              -> stat PEER KIND SENT RECEIVED for each link, then told
 *   tell                   the same, when nothing more arrives
 *   stop                   frees everything and ends
 * Printed at any time: "broken PEER KIND EPOCH STATUS", the status of the first failed completion of a link; and "wrong ..." when something
 * happened that must not.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kind { RC, UC, SRQ, KINDS };
static const char *const kind_name[KINDS] = {"rc", "uc", "srq"};

enum { PEERS = 16, WINDOW = 8, RECEIVES = 16, SLOT = 8192, SHARED_RECEIVES = 128 };
enum what { SENT = 1, RECEIVED, WRITTEN, READ };

struct message {
    uint64_t epoch, seq;
    uint32_t from, kind, length;
    uint32_t pad;
    uint64_t sum;
    uint8_t payload[];
};

/* Memory that one peer writes to and reads back. No other peer uses it. */
struct block {
    uint64_t epoch, version, sum;
    uint8_t payload[4096 - 24];
};

struct link_memory {
    uint8_t send[WINDOW][SLOT], receive[RECEIVES][SLOT];
    struct block source, target, back;
};

struct link {
    bool used, joined, going, broken;
    unsigned peer;
    enum kind kind;
    uint64_t epoch;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    struct link_memory *memory;
    uint64_t remote;
    uint32_t rkey;
    uint64_t next, expected, version;
    uint64_t sent, received;
    unsigned free_slots; /* a bit for each free slot */
    bool writing;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_mr *shared_mr;
static uint8_t shared[SHARED_RECEIVES][SLOT] __attribute__((aligned(4096)));
static union ibv_gid gid;
static struct link links[PEERS][KINDS];
static unsigned me;
static bool quiet, tell;

static void wrong(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void wrong(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("wrong ");
    vprintf(format, list);
    printf("\n");
    fflush(stdout);
    va_end(list);
    _exit(1);
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Fills the bytes with a pattern that depends on the seed, and returns their sum. */
static uint64_t fill(uint8_t *bytes, size_t count, uint64_t seed)
{
    uint64_t sum = seed;
    for (size_t i = 0; i < count; i++) {
        if (i % 8 == 0) {
            seed = mix(seed + i);
        }
        bytes[i] = (uint8_t)(seed >> i % 8 * 8);
        sum = sum * 31 + bytes[i];
    }
    return sum;
}

static uint64_t sum_of(const uint8_t *bytes, size_t count, uint64_t seed)
{
    uint64_t sum = seed;
    for (size_t i = 0; i < count; i++) {
        sum = sum * 31 + bytes[i];
    }
    return sum;
}

static uint64_t id_of(const struct link *l, enum what what, unsigned slot)
{
    return (uint64_t)what << 56 | (uint64_t)l->peer << 48 | (uint64_t)l->kind << 40 | (uint64_t)slot << 32 | (l->epoch & 0xffffffff);
}

static void post_receive(struct link *l, unsigned slot)
{
    struct ibv_sge sge = {(uintptr_t)l->memory->receive[slot], SLOT, l->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id_of(l, RECEIVED, slot), .sg_list = &sge, .num_sge = 1}, *bad;
    int error = ibv_post_recv(l->qp, &wr, &bad);
    if (error) {
        wrong("ibv_post_recv: %s", strerror(error));
    }
}

static void post_shared(unsigned slot)
{
    struct ibv_sge sge = {(uintptr_t)shared[slot], SLOT, shared_mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = (uint64_t)RECEIVED << 56 | (uint64_t)PEERS << 48 | slot, .sg_list = &sge, .num_sge = 1};
    struct ibv_recv_wr *bad;
    int error = ibv_post_srq_recv(srq, &wr, &bad);
    if (error) {
        wrong("ibv_post_srq_recv: %s", strerror(error));
    }
}

static void post(struct link *l, struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad;
    int error = ibv_post_send(l->qp, wr, &bad);
    if (error) {
        wrong("ibv_post_send to %u %s: %s", l->peer, kind_name[l->kind], strerror(error));
    }
}

/* Sends a message. Now and then it writes a block of memory instead, and reads the block back if this kind of connection can read. */
static void send_next(struct link *l)
{
    if (l->next % 8 == 7 && !l->writing) {
        struct block *b = &l->memory->source;
        b->epoch = l->epoch;
        b->version = ++l->version;
        b->sum = fill(b->payload, sizeof(b->payload), mix(l->epoch) + l->version);
        struct ibv_sge from = {(uintptr_t)b, sizeof(*b), l->mr->lkey};
        struct ibv_sge back = {(uintptr_t)&l->memory->back, sizeof(*b), l->mr->lkey};
        struct ibv_send_wr read = {.wr_id = id_of(l, READ, 0),
                                   .sg_list = &back,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_RDMA_READ,
                                   .send_flags = IBV_SEND_SIGNALED,
                                   .wr.rdma = {l->remote, l->rkey}};
        struct ibv_send_wr write = {.wr_id = id_of(l, WRITTEN, 0),
                                    .sg_list = &from,
                                    .num_sge = 1,
                                    .opcode = IBV_WR_RDMA_WRITE,
                                    .send_flags = IBV_SEND_SIGNALED,
                                    .next = l->kind == UC ? NULL : &read,
                                    .wr.rdma = {l->remote, l->rkey}};
        l->writing = true;
        post(l, &write);
    }
    unsigned slot = (unsigned)__builtin_ctz(l->free_slots);
    l->free_slots &= ~(1u << slot);
    struct message *m = (struct message *)l->memory->send[slot];
    *m = (struct message){.epoch = l->epoch, .seq = l->next++, .from = me, .kind = l->kind};
    uint64_t dice = mix(m->epoch * 1000003 + m->seq);
    m->length = (uint32_t)(dice % 4 ? dice % 200 : dice % (SLOT - sizeof(*m)));
    m->sum = fill(m->payload, m->length, dice);
    struct ibv_sge sge = {(uintptr_t)m, (uint32_t)sizeof(*m) + m->length, l->mr->lkey};
    struct ibv_send_wr wr = {
        .wr_id = id_of(l, SENT, slot), .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    if (sge.length <= 64) {
        wr.send_flags |= IBV_SEND_INLINE;
    }
    post(l, &wr);
}

static struct link *link_of_number(uint32_t number)
{
    for (unsigned i = 0; i < PEERS; i++) {
        if (links[i][SRQ].used && links[i][SRQ].qp->qp_num == number) {
            return &links[i][SRQ];
        }
    }
    return NULL;
}

static void received(struct link *l, const uint8_t *bytes, uint32_t length)
{
    const struct message *m = (const struct message *)bytes;
    if (length < sizeof(*m) || m->from != l->peer || m->kind != l->kind || m->epoch != l->epoch || m->length != length - sizeof(*m)) {
        wrong("a message of another link on %u %s: from %u kind %u epoch %" PRIu64 " (of %" PRIu64 ") length %u of %u", l->peer,
              kind_name[l->kind], m->from, m->kind, m->epoch, l->epoch, m->length, length);
    }
    if (sum_of(m->payload, m->length, mix(m->epoch * 1000003 + m->seq)) != m->sum) {
        wrong("a message from %u %s with other bytes than were sent", l->peer, kind_name[l->kind]);
    }
    if (l->kind == UC ? m->seq < l->expected : m->seq != l->expected) {
        wrong("message %" PRIu64 " of %u %s in place of %" PRIu64, m->seq, l->peer, kind_name[l->kind], l->expected);
    }
    l->expected = m->seq + 1;
    l->received++;
}

static void completed(const struct ibv_wc *wc)
{
    const enum what what = (enum what)(wc->wr_id >> 56);
    const unsigned peer = wc->wr_id >> 48 & 0xff, slot = wc->wr_id >> 32 & 0xff;
    if (peer == PEERS) { /* a completion of the shared receive queue */
        const unsigned at = wc->wr_id & 0xffff;
        struct link *l = link_of_number(wc->qp_num);
        if (wc->status) {
            wrong("a receive of the shared queue completed with %d", (int)wc->status);
        }
        if (l && l->joined) { /* otherwise the completion belongs to a queue pair that is gone */
            received(l, shared[at], wc->byte_len);
        }
        post_shared(at);
        return;
    }
    const unsigned kind = wc->wr_id >> 40 & 0xff;
    struct link *l = &links[peer][kind];
    if (!l->used || (l->epoch & 0xffffffff) != (wc->wr_id & 0xffffffff)) {
        return; /* the completion belongs to a queue pair that is gone */
    }
    if (wc->status) {
        if (!l->broken) {
            printf("broken %u %s %" PRIu64 " %d\n", peer, kind_name[kind], l->epoch, (int)wc->status);
            fflush(stdout);
        } else if (wc->status != IBV_WC_WR_FLUSH_ERR) {
            wrong("after its first error, %u %s completes with %d", peer, kind_name[kind], (int)wc->status);
        }
        l->broken = true;
        return;
    }
    if (l->broken) {
        wrong("a success after an error on %u %s", peer, kind_name[kind]);
    }
    if (what == RECEIVED) {
        received(l, l->memory->receive[slot], wc->byte_len);
        post_receive(l, slot);
    } else if (what == SENT) {
        l->sent++;
        l->free_slots |= 1u << slot;
    } else if (what == WRITTEN) {
        l->writing = l->kind != UC;
    } else {
        if (memcmp(&l->memory->back, &l->memory->source, sizeof(struct block))) {
            wrong("%u %s: what was read back is not what was written", peer, kind_name[kind]);
        }
        l->writing = false;
    }
}

/* Checks the sum of the block that the peer wrote last, unless the block is just being written. */
static void check_target(const struct link *l)
{
    struct block copy = l->memory->target;
    if (copy.version && copy.epoch != l->epoch) {
        wrong("%u %s: written by another epoch", l->peer, kind_name[l->kind]);
    }
    if (copy.version && sum_of(copy.payload, sizeof(copy.payload), mix(copy.epoch) + copy.version) != copy.sum) {
        wrong("%u %s: the block that was written is torn", l->peer, kind_name[l->kind]);
    }
}

static void unlink_peer(struct link *l)
{
    int error;
    if (!l->used) {
        return;
    }
    if ((error = ibv_destroy_qp(l->qp)) || (error = ibv_dereg_mr(l->mr))) {
        wrong("freeing %u %s: %s", l->peer, kind_name[l->kind], strerror(error));
    }
    free(l->memory);
    *l = (struct link){0};
}

static void link_peer(unsigned peer, enum kind kind, uint64_t epoch)
{
    struct link *l = &links[peer][kind];
    unlink_peer(l);
    *l = (struct link){.used = true, .peer = peer, .kind = kind, .epoch = epoch, .free_slots = (1u << WINDOW) - 1};
    l->memory = aligned_alloc(4096, sizeof(*l->memory));
    if (!l->memory) {
        wrong("no memory");
    }
    memset(l->memory, 0, sizeof(*l->memory));
    l->mr = ibv_reg_mr(pd, l->memory, sizeof(*l->memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = kind == UC ? IBV_QPT_UC : IBV_QPT_RC,
        .srq = kind == SRQ ? srq : NULL,
        .cap = {.max_send_wr = WINDOW + 4,
                .max_recv_wr = kind == SRQ ? 0 : RECEIVES,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 64},
    };
    l->qp = ibv_create_qp(pd, &init);
    if (!l->mr || !l->qp) {
        wrong("making the queue pair for %u: %s", peer, strerror(errno));
    }
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (kind == UC ? 0u : IBV_ACCESS_REMOTE_READ),
    };
    int error = ibv_modify_qp(l->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (error) {
        wrong("to INIT: %s", strerror(error));
    }
    for (unsigned i = 0; i < RECEIVES && kind != SRQ; i++) {
        post_receive(l, i);
    }
    char text[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, gid.raw, text, sizeof(text));
    printf("card %u %s %" PRIu64 " %s %u %" PRIu64 " %u\n", peer, kind_name[kind], epoch, text, l->qp->qp_num,
           (uint64_t)(uintptr_t)&l->memory->target, l->mr->rkey);
    fflush(stdout);
}

static void join_peer(struct link *l, const union ibv_gid *to, uint32_t number)
{
    const bool rc = l->kind != UC;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = number,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *to, .hop_limit = 1}},
    };
    int error = ibv_modify_qp(l->qp, &attr,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                  (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
    if (!error) {
        attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 8, .retry_cnt = 3, .rnr_retry = 7, .max_rd_atomic = 4};
        error = ibv_modify_qp(l->qp, &attr,
                              IBV_QP_STATE | IBV_QP_SQ_PSN |
                                  (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0));
    }
    if (error) {
        wrong("joining %u %s: %s", l->peer, kind_name[l->kind], strerror(error));
    }
    l->joined = true;
    printf("joined %u %s %" PRIu64 "\n", l->peer, kind_name[l->kind], l->epoch);
    fflush(stdout);
}

static void statistics(void)
{
    for (unsigned i = 0; i < PEERS; i++) {
        for (unsigned k = 0; k < KINDS; k++) {
            if (links[i][k].used) {
                printf("stat %u %s %" PRIu64 " %" PRIu64 "\n", i, kind_name[k], links[i][k].sent, links[i][k].received);
            }
        }
    }
    printf("told\n");
    fflush(stdout);
}

static void command(char *line)
{
    char name[8], address[64];
    unsigned peer, number, rkey, kind = 0;
    uint64_t epoch, remote;
    int got = sscanf(line, "%*s %u %7s %" SCNu64 " %63s %u %" SCNu64 " %u", &peer, name, &epoch, address, &number, &remote, &rkey);
    while (got >= 3 && kind < KINDS && strcmp(name, kind_name[kind])) {
        kind++;
    }
    if (!strncmp(line, "link ", 5) && got >= 3 && peer < PEERS && kind < KINDS) {
        link_peer(peer, (enum kind)kind, epoch);
    } else if (!strncmp(line, "join ", 5) && got == 7 && peer < PEERS && kind < KINDS) {
        struct link *l = &links[peer][kind];
        union ibv_gid to;
        if (l->used && l->epoch == epoch && inet_pton(AF_INET6, address, to.raw) == 1) {
            l->remote = remote;
            l->rkey = rkey;
            join_peer(l, &to, number);
        }
    } else if (!strncmp(line, "go ", 3) && got >= 3 && peer < PEERS && kind < KINDS) {
        links[peer][kind].going = links[peer][kind].joined && links[peer][kind].epoch == epoch;
    } else if (!strcmp(line, "quiet")) {
        quiet = true;
    } else if (!strcmp(line, "count")) {
        statistics();
    } else if (!strcmp(line, "tell")) {
        tell = true;
    } else if (!strcmp(line, "stop")) {
        int error = 0;
        for (unsigned i = 0; i < PEERS; i++) {
            for (unsigned k = 0; k < KINDS; k++) {
                if (links[i][k].joined && !links[i][k].broken) {
                    check_target(&links[i][k]);
                }
                unlink_peer(&links[i][k]);
            }
        }
        if ((error = ibv_destroy_srq(srq)) || (error = ibv_dereg_mr(shared_mr)) || (error = ibv_destroy_cq(cq)) ||
            (error = ibv_dealloc_pd(pd)) || (error = ibv_close_device(context))) {
            wrong("freeing: %s", strerror(error));
        }
        exit(0);
    } else {
        wrong("not understood: %s", line);
    }
}

/* Reads the commands that have arrived; waits up to `ms` for one. */
static void commands(int ms)
{
    static char text[8192];
    static size_t have;
    struct pollfd p = {.fd = 0, .events = POLLIN};
    while (poll(&p, 1, ms) == 1) {
        ssize_t got = read(0, text + have, sizeof(text) - have - 1);
        if (got <= 0) {
            exit(3); /* the test has ended */
        }
        have += (size_t)got;
        text[have] = 0;
        char *line = text, *end;
        while ((end = strchr(line, '\n'))) {
            *end = 0;
            command(line);
            line = end + 1;
        }
        have -= (size_t)(line - text);
        memmove(text, line, have + 1);
        ms = 0;
    }
}

static void set_up(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    if (!list || !count || !(context = ibv_open_device(list[0])) || ibv_query_gid(context, 1, 0, &gid)) {
        wrong("no device: %s", strerror(errno));
    }
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 4096, NULL, NULL, 0);
    struct ibv_srq_init_attr init = {.attr = {.max_wr = SHARED_RECEIVES, .max_sge = 1}};
    srq = pd ? ibv_create_srq(pd, &init) : NULL;
    shared_mr = pd ? ibv_reg_mr(pd, shared, sizeof(shared), IBV_ACCESS_LOCAL_WRITE) : NULL;
    if (!cq || !srq || !shared_mr) {
        wrong("setting up: %s", strerror(errno));
    }
    for (unsigned i = 0; i < SHARED_RECEIVES; i++) {
        post_shared(i);
    }
}

int main(int count, char **word)
{
    if (count != 2) {
        fprintf(stderr, "usage: mesh NUMBER, under softverbs run; commands on stdin\n");
        return 2;
    }
    me = (unsigned)strtoul(word[1], NULL, 10);
    set_up();
    bool said = false;
    for (;;) {
        struct ibv_wc wc[16];
        int got = ibv_poll_cq(cq, 16, wc);
        if (got < 0) {
            wrong("ibv_poll_cq: %d", got);
        }
        for (int i = 0; i < got; i++) {
            completed(&wc[i]);
        }
        bool all_quiet = quiet;
        for (unsigned i = 0; i < PEERS; i++) {
            for (unsigned k = 0; k < KINDS; k++) {
                struct link *l = &links[i][k];
                if (l->going && !l->broken && !quiet && l->free_slots) {
                    send_next(l);
                }
                all_quiet = all_quiet && (!l->joined || l->broken || (l->free_slots == (1u << WINDOW) - 1 && !l->writing));
            }
        }
        if (all_quiet && !said) {
            said = true;
            printf("quiet\n");
            fflush(stdout);
        }
        if (tell && !got) { /* nothing more arrives: all other processes are quiet */
            tell = false;
            statistics();
        }
        commands(got ? 0 : 1);
    }
}
