/* SPDX-License-Identifier: MIT
 *
 * One node of the tb transport, number 1 of 3, with a cable to each of the other two. Its devices are made here; the test decides what they
 * grant and complete. A device stops the process where a driver might crash: a receive on a port that is down, more requests than were
 * granted, a queue pair that is destroyed or not connected. A program includes this file once.
 */
#ifndef WEFT_TESTS_TB_NODE_H
#define WEFT_TESTS_TB_NODE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabric/tb/tb.h"
#include "fabric/transports.h"
#include "sync/sync.h"

enum { BEFORE, HERE, BEHIND, NODES }; /* HERE is the number of this node */
enum { CABLES = 2, LANES = 2 };
enum { SESSION = 77, POOL = 1 << 18, POSTED = 256, COMPLETIONS = 8192 };
static const struct fab_lane node_lanes[LANES] = {{4096, 8}, {16384, 2}};

struct fake_request {
    uint64_t wr_id;
    uint8_t *at;
    uint32_t bytes;
};
struct fake_pair {
    struct ibv_qp base;
    struct fake_request sends[POSTED], receives[POSTED];
    uint32_t sends_in, sends_out, receives_in, receives_out, granted_sends, granted_receives;
};
struct fake_queue {
    struct ibv_cq base;
    struct ibv_wc wc[COMPLETIONS];
    uint32_t in, out;
};
struct fake_device {
    struct ibv_context context; /* first, because the verbs return pointers to it */
    struct ibv_device device;
    bool up;
    uint32_t grants; /* the most requests of a control queue pair; 0: as many as requested */
};

static struct fake_node {
    struct weft_node w;
    struct tb *tb;
    struct fab_link links[NODES];
    struct fab_bell bell;
    struct fake_device device[CABLES];
    struct verbs_device verbs[CABLES];
    struct fake_queue *poured; /* set by a test: that queue is never empty; it gets a new completion for each that is taken, */
    struct fake_request pour;  /* copied from this one */
    bool stale;                /* completions stay when their queue pair is destroyed */
    int other_end[NODES];
} node;

static int alive_here, *alive = &alive_here; /* counts objects of the devices; a test may place it in memory that outlives its process */

static void must(bool right)
{
    if (!right)
        abort();
}

static void *object(size_t bytes)
{
    void *p = calloc(1, bytes);
    must(p);
    ++*alive;
    return p;
}

static int gone(void *p)
{
    free(p);
    --*alive;
    return 0;
}

static inline struct fake_pair *pair_of(const struct verbs_qp *q)
{
    return (struct fake_pair *)(void *)q->qp;
}

/* --- the devices --- */

static struct fake_device *device_of(struct ibv_context *c)
{
    return (struct fake_device *)(void *)c;
}

static void complete(struct ibv_cq *cq, const struct ibv_wc *wc)
{
    struct fake_queue *q = (struct fake_queue *)(void *)cq;
    must(q->in - q->out < COMPLETIONS);
    q->wc[q->in++ % COMPLETIONS] = *wc;
}

static int fake_poll(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
    struct fake_queue *q = (struct fake_queue *)(void *)cq;
    int n = 0;
    for (; n < most && q->out != q->in; n++) {
        wc[n] = q->wc[q->out++ % COMPLETIONS];
        if (q == node.poured)
            complete(cq, &wc[n]);
    }
    return n;
}

static int fake_notify(struct ibv_cq *cq, int solicited)
{
    (void)cq, (void)solicited;
    return 0;
}

static int fake_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct fake_pair *p = (struct fake_pair *)(void *)qp;
    *bad = wr;
    must(!wr->next && p->base.state == IBV_QPS_RTS);
    if (p->sends_in - p->sends_out >= p->granted_sends)
        return ENOMEM;
    p->sends[p->sends_in++ % POSTED] = (struct fake_request){wr->wr_id, (uint8_t *)(uintptr_t)wr->sg_list->addr, wr->sg_list->length};
    return 0;
}

static int fake_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct fake_pair *p = (struct fake_pair *)(void *)qp;
    *bad = wr;
    for (; wr; wr = wr->next) {
        must(p->base.state == IBV_QPS_RTS && device_of(p->base.context)->up);
        must(p->receives_in - p->receives_out < p->granted_receives);
        p->receives[p->receives_in++ % POSTED] =
            (struct fake_request){wr->wr_id, (uint8_t *)(uintptr_t)wr->sg_list->addr, wr->sg_list->length};
    }
    return 0;
}

static int fake_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a)
{
    (void)port;
    *a = (struct ibv_port_attr){.state = device_of(c)->up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN};
    return 0;
}

static struct ibv_mr *fake_register(struct ibv_pd *pd, void *at, size_t bytes, int access)
{
    struct ibv_mr *m = object(sizeof *m);
    (void)access;
    *m = (struct ibv_mr){.pd = pd, .addr = at, .length = bytes};
    return m;
}

static int fake_deregister(struct ibv_mr *m)
{
    return gone(m);
}

static struct ibv_comp_channel *fake_channel(struct ibv_context *c)
{
    struct ibv_comp_channel *ch = object(sizeof *ch);
    ch->context = c;
    ch->fd = -1;
    return ch;
}

static int fake_close_channel(struct ibv_comp_channel *ch)
{
    return gone(ch);
}

static struct ibv_cq *fake_make_queue(struct ibv_context *c, int entries, void *context, struct ibv_comp_channel *ch, int vector)
{
    struct fake_queue *q = object(sizeof *q);
    (void)entries, (void)context, (void)vector;
    q->base.context = c;
    q->base.channel = ch;
    return &q->base;
}

static int fake_destroy_queue(struct ibv_cq *cq)
{
    return gone(cq);
}

static struct ibv_qp *fake_make_pair(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    static uint32_t number;
    struct fake_pair *p = object(sizeof *p);
    uint32_t most = device_of(pd->context)->grants;
    p->base = (struct ibv_qp){.context = pd->context,
                              .pd = pd,
                              .send_cq = init->send_cq,
                              .recv_cq = init->recv_cq,
                              .qp_num = ++number & 0xffffff,
                              .qp_type = init->qp_type};
    if (most && init->cap.max_recv_wr == TB_RECEIVES)
        init->cap.max_send_wr = init->cap.max_recv_wr = most;
    p->granted_sends = init->cap.max_send_wr;
    p->granted_receives = init->cap.max_recv_wr;
    must(p->granted_sends <= POSTED && p->granted_receives <= POSTED);
    return &p->base;
}

static int fake_query_pair(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
    const struct fake_pair *p = (const struct fake_pair *)(const void *)qp;
    (void)mask;
    memset(attr, 0, sizeof *attr);
    memset(init, 0, sizeof *init);
    init->cap = (struct ibv_qp_cap){.max_send_wr = p->granted_sends, .max_recv_wr = p->granted_receives, .max_send_sge = 1};
    return 0;
}

static int fake_modify_pair(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    must(mask & IBV_QP_STATE);
    if (attr->qp_state == IBV_QPS_RTR && !device_of(qp->context)->up)
        return ENETDOWN;
    qp->state = attr->qp_state;
    return 0;
}

static void forget(struct ibv_cq *cq, uint32_t pair)
{
    struct fake_queue *q = (struct fake_queue *)(void *)cq;
    uint32_t to = q->out;
    for (uint32_t i = q->out; i != q->in; i++)
        if (q->wc[i % COMPLETIONS].qp_num != pair)
            q->wc[to++ % COMPLETIONS] = q->wc[i % COMPLETIONS];
    q->in = to;
}

static int fake_destroy_pair(struct ibv_qp *qp)
{
    if (!node.stale) {
        forget(qp->send_cq, qp->qp_num);
        forget(qp->recv_cq, qp->qp_num);
    }
    return gone(qp);
}

static const char *fake_status(enum ibv_wc_status status)
{
    (void)status;
    return "as the test says";
}

static const struct verbs_library node_library = {
    .query_port = fake_port,
    .reg_mr = fake_register,
    .dereg_mr = fake_deregister,
    .create_comp_channel = fake_channel,
    .destroy_comp_channel = fake_close_channel,
    .create_cq = fake_make_queue,
    .destroy_cq = fake_destroy_queue,
    .create_qp = fake_make_pair,
    .query_qp = fake_query_pair,
    .modify_qp = fake_modify_pair,
    .destroy_qp = fake_destroy_pair,
    .wc_status_str = fake_status,
};

/* Executes the next request of the devices. False: nothing is posted. */

static inline bool arrives(struct fake_pair *p, const void *bytes, uint32_t len)
{
    if (p->receives_in == p->receives_out)
        return false;
    const struct fake_request *r = &p->receives[p->receives_out++ % POSTED];
    len = len < r->bytes ? len : r->bytes;
    memcpy(r->at, bytes, len);
    complete(p->base.recv_cq, &(struct ibv_wc){.wr_id = r->wr_id, .byte_len = len, .qp_num = p->base.qp_num});
    return true;
}

static inline bool leaves(struct fake_pair *p)
{
    if (p->sends_in == p->sends_out)
        return false;
    const struct fake_request *r = &p->sends[p->sends_out++ % POSTED];
    complete(p->base.send_cq, &(struct ibv_wc){.wr_id = r->wr_id, .byte_len = r->bytes, .qp_num = p->base.qp_num});
    return true;
}

/* --- the node --- */

static inline struct tb_link *link_to(uint32_t to)
{
    return tb_link_of(node.tb, to);
}

static struct verbs_address address_of_nobody(void)
{
    return (struct verbs_address){.gid = {1}, .qpn = 5, .mtu = IBV_MTU_4096, .global = 1, .port = 1, .device = "other"};
}

static void make_device(uint32_t i)
{
    static struct ibv_pd domains[CABLES];
    struct fake_device *f = &node.device[i];
    struct verbs_device *d = &node.verbs[i];
    struct tb_device *dev = &node.tb->devices[i];
    *f = (struct fake_device){.up = true};
    f->context.device = &f->device;
    f->context.ops.poll_cq = fake_poll;
    f->context.ops.req_notify_cq = fake_notify;
    f->context.ops.post_send = fake_send;
    f->context.ops.post_recv = fake_recv;
    domains[i] = (struct ibv_pd){.context = &f->context};
    *d = (struct verbs_device){.lib = &node_library,
                               .context = &f->context,
                               .pd = &domains[i],
                               .port = 1,
                               .traits = {.link = VERBS_THUNDERBOLT,
                                          .uc = true,
                                          .regions = 100,
                                          .region_bytes = VERBS_SEGMENT,
                                          .depth = POSTED,
                                          .message_bytes = 1u << 24,
                                          .sge = 1,
                                          .mtu = IBV_MTU_4096},
                               .chosen.gid.raw.raw = {2}};
    snprintf(d->name, sizeof d->name, "port%u", i);
    dev->d = d;
    for (unsigned k = 0; k < TB_DIRECTIONS; k++)
        must(verbs_cq_create(&dev->of[k].cq, &dev->of[k].channel, d, COMPLETIONS) == 0);
    must(verbs_register(&dev->private, d, node.tb->memory, node.tb->memory_bytes, 0) == 0);
    must(verbs_register(&dev->pool, d, node.w.pool_base, node.w.pool_bytes, 0) == 0);
    node.tb->device_count = i + 1;
}

/* Connects to the node at the end of the cable of the device with this number. */
static void make_link(uint32_t to, uint32_t device)
{
    struct verbs_address there = address_of_nobody();
    int ends[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    node.links[to].side_fd = ends[0];
    node.other_end[to] = ends[1];
    struct tb_link *l = tb_link_make(node.tb, &node.links[to]);
    must(l);
    node.links[to].transport = &fab_tb;
    struct tb_cable *c = tb_cable_make(node.tb, &node.tb->devices[device], to);
    must(c && verbs_qp_connect(&c->control, &there) == 0);
    while (c->lane_count < LANES)
        must(tb_cable_add_lane(c) == 0 && verbs_qp_connect(&c->lanes[c->lane_count - 1], &there) == 0);
    must(tb_cable_start(c) == 0);
    l->cables[l->cable_count++] = c;
    base_spin_lock(&node.tb->receiving);
    must(tb_link_ready(l, SESSION, VERBS_SEGMENT) == 0);
    tb_routes_cable(node.tb, to, true);
    base_spin_unlock(&node.tb->receiving);
    node.links[to].state = FAB_ALIVE;
}

static void open_node(void)
{
    memset(&node, 0, sizeof node);
    struct weft_node *w = &node.w;
    w->rank = HERE;
    w->size = w->founders = NODES;
    w->links = node.links;
    w->bell = &node.bell;
    w->wake_fd[0] = w->wake_fd[1] = -1;
    w->options.deadline_ns = WEFT_SECOND;
    w->options.lane_count = LANES;
    memcpy(w->options.lanes, node_lanes, sizeof node_lanes);
    w->heap_offset = base_round_up(FAB_NULL_BYTES + sync_system_bytes(NODES), MEM_EXTENT_BYTES);
    w->pool_bytes = POOL;
    w->pool_base = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(w->pool_base != MAP_FAILED && fab_tb.open(w) == 0);
    struct tb *tb = node.tb = w->tb;
    tb->cable_max = CABLES;
    tb->cables = calloc(CABLES, sizeof(struct tb_cable *));
    uint64_t links = (NODES - 1) * TB_SLOTS * TB_FRAME_BYTES, cables = (uint64_t)CABLES * TB_RECEIVES * TB_FRAME_BYTES;
    tb->memory_bytes = base_round_up(links + cables + node_lanes[LANES - 1].message, BASE_PAGE);
    tb->memory = mmap(NULL, tb->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(tb->cables && tb->memory != MAP_FAILED);
    tb->segment = VERBS_SEGMENT;
    tb->link_frames = tb->memory;
    tb->cable_frames = tb->memory + links;
    tb->scrap = tb->cable_frames + cables;
    for (uint32_t i = 0; i < NODES; i++)
        node.links[i] =
            (struct fab_link){.node = i, .side_fd = -1, .pid_fd = -1, .pool_bytes = POOL, .state = i == HERE ? FAB_ALIVE : FAB_UNKNOWN};
    for (uint32_t i = 0; i < CABLES; i++)
        make_device(i);
    make_link(BEFORE, 0);
    make_link(BEHIND, 1);
}

static void close_node(void)
{
    node.poured = NULL;
    for (uint32_t i = 0; i < NODES; i++) {
        if (i == HERE)
            continue;
        fab_tb.release(&node.w, &node.links[i]);
        free(node.links[i].side);
        close(node.links[i].side_fd);
        close(node.other_end[i]);
    }
    must(node.tb->cable_count == 0 || (!node.tb->cables[0] && !node.tb->cables[1]));
    fab_tb.close(&node.w);
    munmap(node.w.pool_base, POOL);
    must(*alive == 0);
}

/* --- messages of the other nodes --- */

/* as in watch.c */
enum { CABLE_DOWN = 1, CABLE_ADDRESS, CABLE_READY };
struct cable_message {
    uint16_t kind;
    uint8_t word, cable, queue, count;
    uint16_t generation;
    struct verbs_address address;
};

static inline void hear(uint32_t from, const void *bytes, size_t len)
{
    fab_tb.side(&node.w, &node.links[from], bytes, len);
}

static inline void hear_of_cable(uint32_t from, uint8_t word, uint8_t queue, uint16_t generation)
{
    struct cable_message m = {
        .kind = TB_SIDE_CABLE, .word = word, .queue = queue, .count = 1 + LANES, .generation = generation, .address = address_of_nobody()};
    hear(from, &m, sizeof m);
}

static inline void hear_neighbours(uint32_t from, uint16_t count, uint16_t a, uint16_t b)
{
    uint16_t m[4] = {TB_SIDE_NEIGHBOURS, count, a, b};
    hear(from, m, 4 + 2 * (size_t)count);
}

/* Does what a node does as time passes: checks ports, sends what is due, connects cables again. */
static inline void upkeep(void)
{
    char bytes[4096];
    for (uint32_t i = 0; i < CABLES; i++) {
        node.tb->devices[i].looked_at = 0;
        if (node.tb->cables[i])
            node.tb->cables[i]->again_at = 0;
    }
    fab_tb.upkeep(&node.w, base_now_ns());
    for (uint32_t i = 0; i < NODES; i++)
        while (i != HERE && recv(node.other_end[i], bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            ;
}

static inline uint32_t serve(void)
{
    return (uint32_t)fab_tb.service(&node.w);
}

#endif
