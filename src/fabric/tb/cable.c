/* SPDX-License-Identifier: MIT
 *
 * A cable: the queue pairs to a neighbour over one device. The control queue pair carries frames. Each lane has a queue pair that carries
 * messages of one size. Posted requests never exceed the depth that the device has granted, in the device's own unit.
 */
#include "fabric/tb/tb.h"

#include <stdlib.h>
#include <string.h>

/* If a receive is posted after the cable was unplugged, the device's driver accesses freed memory. No verb checks the port and posts in one
 * step. So the port is queried just before receives are posted. When a send is posted, the last query may be a little older, because sends
 * are more frequent. These are the greatest ages of the last query, in ns. */
#define LOOK_RECEIVE 0
#define LOOK_SEND    (WEFT_MS / 20)

/* Converts messages to the unit in which the device counts the depth of its queues. */
static uint32_t cable_units(const struct tb_device *d, uint32_t messages, uint32_t bytes)
{
    uint32_t unit = d->d->traits.depth_unit_bytes;
    return unit ? messages * ((bytes + unit - 1) / unit) : messages;
}

static int cable_make_qp(struct verbs_qp *qp, struct tb_device *d, uint32_t sends, uint32_t receives, uint32_t bytes)
{
    struct verbs_qp_options options = {
        .type = IBV_QPT_UC,
        .send_cq = d->of[TB_SENT].cq,
        .recv_cq = d->of[TB_RECEIVED].cq,
        .send_depth = cable_units(d, sends, bytes),
        .recv_depth = cable_units(d, receives, bytes),
        .sge = 1,
        .signal_all = true,
    };
    return verbs_qp_create(qp, d->d, &options);
}

/* Reads how many frames the device has granted to the control queue pair, which may be fewer than requested. */
static void cable_take_grant(struct tb_cable *c)
{
    c->sends = c->control.send_depth < TB_SENDS ? c->control.send_depth : TB_SENDS;
    c->receives = c->control.recv_depth < TB_RECEIVES ? c->control.recv_depth : TB_RECEIVES;
}

struct tb_cable *tb_cable_make(struct tb *tb, struct tb_device *device, uint32_t node)
{
    uint32_t index = 0;
    while (index < tb->cable_count && tb->cables[index])
        index++;
    if (index == tb->cable_max) {
        base_fail(-ENOSPC,
                  "tb: no room for another cable: %u cables are connected, the most for the nodes and devices of this cluster; unplug one",
                  tb->cable_max);
        return NULL;
    }
    struct tb_cable *c = calloc(1, sizeof *c);
    if (!c) {
        base_fail(-ENOMEM, "tb: no memory for the cable to node %u" BASE_MEMORY_HINT, node);
        return NULL;
    }
    *c = (struct tb_cable){.tb = tb,
                           .device = device,
                           .index = index,
                           .node = node,
                           .generation = 1,
                           .made = ++tb->made,
                           .frames = tb->cable_frames + (uint64_t)index * TB_RECEIVES * TB_FRAME_BYTES};
    if (cable_make_qp(&c->control, device, TB_SENDS, TB_RECEIVES, TB_FRAME_BYTES) != 0) {
        free(c);
        return NULL;
    }
    cable_take_grant(c);
    tb->cables[index] = c;
    tb->cable_count = index == tb->cable_count ? index + 1 : tb->cable_count;
    device->cables++;
    return c;
}

int tb_cable_add_lane(struct tb_cable *c)
{
    const struct tb_lane_option *o = &c->tb->lanes[c->lane_count];
    const struct verbs_device *d = c->device->d;
    struct verbs_qp *qp = &c->lanes[c->lane_count];
    uint32_t need = cable_units(c->device, o->depth, o->message);
    if (o->message > d->traits.message_bytes)
        return base_fail(-EMSGSIZE, "%s: a message of %u bytes is larger than the device allows, %llu: set smaller ones in WEFT_TB_LANES",
                         d->name, o->message, (unsigned long long)d->traits.message_bytes);
    int err = cable_make_qp(qp, c->device, o->depth, o->depth, o->message);
    if (err)
        return err;
    c->lane_count++; /* count the lane even if it is refused below, so that it is closed with the cable */
    if (qp->send_depth < need || qp->recv_depth < need)
        return base_fail(
            -ENOSPC,
            "%s: a lane of %u messages of %u bytes needs a depth of %u, and the device grants %u: set fewer or smaller messages in "
            "WEFT_TB_LANES",
            d->name, o->depth, o->message, need, qp->send_depth < qp->recv_depth ? qp->send_depth : qp->recv_depth);
    return 0;
}

static int cable_post_receive(struct verbs_qp *qp, struct tb_device *d, void *at, uint32_t bytes, uint64_t wr_id)
{
    struct ibv_sge sge = {.addr = (uintptr_t)at, .length = bytes, .lkey = tb_lkey(d, at)};
    struct ibv_recv_wr *bad, wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1};
    return ibv_post_recv(qp->qp, &wr, &bad);
}

static int cable_post_send(struct verbs_qp *qp, struct tb_device *d, void *at, uint32_t bytes, uint64_t wr_id)
{
    struct ibv_sge sge = {.addr = (uintptr_t)at, .length = bytes, .lkey = tb_lkey(d, at)};
    struct ibv_send_wr *bad, wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    return ibv_post_send(qp->qp, &wr, &bad);
}

/* Posts the receives that wait to be posted again, in one call. If the port is down, drops these receives: the cable will be taken down,
 * and when it is rebuilt it gets all its receives. */
int tb_cable_receive_owed(struct tb_cable *c)
{
    struct ibv_sge sge[TB_OWED];
    struct ibv_recv_wr wr[TB_OWED], *bad;
    uint32_t n = c->owed_count;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *frame = c->frames + (uint64_t)c->owed[i] * TB_FRAME_BYTES;
        sge[i] = (struct ibv_sge){.addr = (uintptr_t)frame, .length = TB_FRAME_BYTES, .lkey = tb_lkey(c->device, frame)};
        wr[i] = (struct ibv_recv_wr){.wr_id = tb_wr_id(TB_REQUEST_RECEIVE, c, c->node, c->owed[i]),
                                     .next = i + 1 < n ? &wr[i + 1] : NULL,
                                     .sg_list = &sge[i],
                                     .num_sge = 1};
    }
    c->owed_count = 0;
    if (n == 0 || !tb_device_up(c->tb, c->device, LOOK_RECEIVE))
        return 0;
    int err = ibv_post_recv(c->control.qp, wr, &bad);
    return err ? base_fail(-err, "%s: the queue pair to node %u accepts no receive buffers: %s", c->device->d->name, c->node,
                           base_strerror(err))
               : 0;
}

int tb_cable_receive(struct tb_cable *c, uint32_t slot)
{
    c->owed[c->owed_count++] = (uint16_t)slot;
    return c->owed_count == TB_OWED ? tb_cable_receive_owed(c) : 0;
}

int tb_cable_start(struct tb_cable *c)
{
    int err = 0;
    c->owed_count = c->expected = 0;
    for (uint32_t i = 0; i < c->receives && !err; i++)
        err = tb_cable_receive(c, i);
    err = err ? err : tb_cable_receive_owed(c);
    if (!err && atomic_load_explicit(&c->device->down, memory_order_relaxed))
        err = base_fail(-ENETDOWN, "%s: its port is down", c->device->d->name);
    c->open = err == 0;
    return err;
}

int tb_cable_remake(struct tb_cable *c, struct tb_device *device)
{
    c->device->cables--;
    c->device = device;
    device->cables++;
    c->made = ++c->tb->made;
    int err = cable_make_qp(&c->control, c->device, TB_SENDS, TB_RECEIVES, TB_FRAME_BYTES);
    if (!err)
        cable_take_grant(c);
    while (!err && c->lane_count < c->tb->lane_count)
        err = tb_cable_add_lane(c);
    if (err)
        tb_cable_down(c);
    return err;
}

void tb_cable_lanes_down(struct tb_cable *c)
{
    while (c->lane_count)
        verbs_qp_destroy(&c->lanes[--c->lane_count]);
}

void tb_cable_down(struct tb_cable *c)
{
    base_spin_lock(&c->lock);
    c->ready = c->open = false;
    base_spin_unlock(&c->lock);
    tb_cable_lanes_down(c);
    verbs_qp_destroy(&c->control);
}

void tb_cable_close(struct tb_cable *c)
{
    if (!c)
        return;
    tb_cable_down(c);
    c->device->cables--;
    c->tb->cables[c->index] = NULL;
    free(c);
}

bool tb_cable_send(struct tb_cable *c, enum tb_request what, uint32_t whose, uint32_t slot, void *frame, uint32_t bytes)
{
    base_spin_lock(&c->lock);
    /* A failed post means that the queue is full; some devices report this as ENOMEM. */
    bool went = c->ready && c->flight_in - c->flight_out < c->sends && tb_device_up(c->tb, c->device, LOOK_SEND) &&
                cable_post_send(&c->control, c->device, frame, bytes, tb_wr_id(what, c, whose, slot)) == 0;
    if (went) {
        c->flight[c->flight_in % TB_SENDS].whose = (uint16_t)whose;
        c->flight[c->flight_in % TB_SENDS].slot = (uint16_t)slot;
        c->flight[c->flight_in++ % TB_SENDS].passed_on = what == TB_REQUEST_FORWARD;
    }
    base_spin_unlock(&c->lock);
    return went;
}

void tb_cable_left(struct tb_cable *c)
{
    base_spin_lock(&c->lock);
    c->flight_out += c->flight_out != c->flight_in;
    base_spin_unlock(&c->lock);
}

bool tb_cable_lane_receive(struct tb_cable *c, uint32_t lane, void *at)
{
    return tb_device_up(c->tb, c->device, LOOK_RECEIVE) && cable_post_receive(&c->lanes[lane], c->device, at, c->tb->lanes[lane].message,
                                                                              tb_wr_id(TB_REQUEST_LANE_RECEIVE, c, c->node, lane)) == 0;
}

bool tb_cable_lane_send(struct tb_cable *c, uint32_t lane, void *at)
{
    return tb_device_up(c->tb, c->device, LOOK_SEND) && cable_post_send(&c->lanes[lane], c->device, at, c->tb->lanes[lane].message,
                                                                        tb_wr_id(TB_REQUEST_LANE_SEND, c, c->node, lane)) == 0;
}
