/* SPDX-License-Identifier: MIT
 *
 * Messages that a joined peer can send to a node of the tb transport over the side connection (watch.c, routes.c, leave.c), mixed with
 * other events: ports that go down and come up, frames that arrive, are forwarded or fail, operations, time, a node that leaves. The input
 * is a sequence of commands, each a byte and its arguments. For every input: no device is used in a way in which a driver might crash
 * (../tb/node.h), a node at the end of a cable is reached over that cable, and at the end everything is freed.
 */
#include <stdint.h>

#include "../tb/node.h"
#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tb_cable *cable(uint32_t to)
{
    struct tb_link *l = link_to(to);
    return l && l->cable_count ? l->cables[0] : NULL;
}

static void raw(struct input *in, uint32_t from)
{
    size_t len = take(in, 2) % (FAB_SIDE_MESSAGE_MAX + 1);
    len = len < in->left ? len : in->left;
    uint8_t *exact = malloc(len ? len : 1); /* a sanitizer detects reads beyond it */
    must(exact);
    memcpy(exact, in->at, len);
    in->at += len;
    in->left -= len;
    hear(from, exact, len);
    free(exact);
}

static void about_a_cable(struct input *in, uint32_t from)
{
    uint8_t how = (uint8_t)take(in, 1), word = (uint8_t)(1 + how % 4);
    const struct tb_cable *c = cable(from);
    uint16_t generation = (uint16_t)((c ? c->generation : 0) + (how & 16 ? 1 : how & 32 ? (uint16_t)take(in, 2) : 0));
    struct cable_message m = {
        .kind = TB_SIDE_CABLE, .word = word, .count = 1 + LANES, .generation = generation, .address = address_of_nobody()};
    if (how & 64) /* handles all messages at once */
        for (uint8_t i = 0; i <= LANES; i++)
            hear_of_cable(from, CABLE_ADDRESS, i, generation);
    m.queue = (uint8_t)take(in, 1);
    if (how & 8)
        m.queue = (uint8_t)(m.queue % (1 + LANES));
    if (how & 128) {
        m.cable = (uint8_t)take(in, 1);
        m.address.qpn = (uint32_t)take(in, 4);
        m.address.port = (uint8_t)take(in, 1);
    }
    hear(from, &m, sizeof m);
}

static void about_leaving(struct input *in, uint32_t from)
{
    struct {
        uint16_t kind, word;
        uint32_t number;
    } m = {TB_SIDE_LEAVE, (uint16_t)take(in, 1), (uint32_t)take(in, 1)};
    hear(from, &m, sizeof m);
}

static void frame(struct input *in, uint32_t by)
{
    const struct tb_cable *c = cable(by);
    uint8_t bytes[TB_FRAME_BYTES] = {0};
    uint8_t how = (uint8_t)take(in, 1);
    struct tb_frame f = {.magic = TB_MAGIC,
                         .version = TB_VERSION,
                         .type = TB_SEQUENCED,
                         .hops = (uint8_t)(how & 3),
                         .from = (uint16_t)by,
                         .to = (uint16_t)(how >> 2 & 3),
                         .session = SESSION};
    struct tb_words w = {.r = {.kind = how & 128 ? TB_LANE : TB_OPEN, .length = sizeof w}};
    if (!c || !c->control.qp)
        return;
    const struct tb_link *l = link_to(by);
    f.sequence = l->r.endpoint.stream.expected;
    f.ack = l->r.endpoint.stream.next;
    f.grant = l->r.endpoint.stream.granted;
    w.r.lane = how >> 4 & 1;
    w.r.detail = how & 128 ? c->generation : (uint16_t)(how >> 5 & 3);
    w.r.generation = how & 128 ? 0 : (uint16_t)take(in, 1);
    w.offset = node.w.heap_offset;
    w.a = take(in, 1) * 1024;
    memcpy(bytes + sizeof f, &w, sizeof w);
    tb_frame_seal(&f, bytes, sizeof f + sizeof w);
    (void)arrives(pair_of(&c->control), bytes, take(in, 1) & 1 ? sizeof f + sizeof w : (uint32_t)take(in, 2) % TB_FRAME_BYTES);
}

static void device(struct input *in, uint32_t of)
{
    const struct tb_cable *c = cable(of);
    uint8_t how = (uint8_t)take(in, 1);
    if (!c || !c->control.qp)
        return;
    struct fake_pair *p = pair_of(how & 1 || (how & 2) >= c->lane_count ? &c->control : &c->lanes[how >> 1 & 1]);
    if (how & 4) {
        for (unsigned i = 0; i < (how & 8 ? 64 : 1); i++)
            (void)leaves(p);
    } else if (how & 16 && how & 32 && how & 64 && how & 128 && p->receives_in != p->receives_out) {
        const struct fake_request *r = &p->receives[p->receives_out++ % POSTED];
        complete(p->base.recv_cq, &(struct ibv_wc){.wr_id = r->wr_id, .status = IBV_WC_GENERAL_ERR, .qp_num = p->base.qp_num});
    } else if (p != pair_of(&c->control)) {
        uint8_t bytes[64] = {how};
        (void)arrives(p, bytes, sizeof bytes);
    }
}

static weft_op ops[64];

static void operation(struct input *in, uint32_t to)
{
    uint8_t how = (uint8_t)take(in, 1);
    weft_op *op = &ops[how % 64];
    if (op->status == 1 || !fab_alive(&node.w, to))
        return;
    uint8_t *mine = node.w.pool_base + node.w.heap_offset;
    int rc = how & 64 ? fab_tb.put(&node.w, &node.links[to], node.w.heap_offset, mine, take(in, 1) * 512, op)
                      : fab_tb.get(&node.w, &node.links[to], mine, node.w.heap_offset, take(in, 1) * 512, op);
    must(rc == 0 || op->status != 1);
}

/* Checks that each node at the end of a cable is reached over it, and that no node is reached over a cable that does not exist. */
static void look(void)
{
    base_spin_lock(&node.tb->receiving);
    tb_routes_apply(node.tb);
    for (uint32_t i = 0; i < NODES; i++) {
        const struct tb_link *l = link_to(i);
        if (!l)
            continue;
        const struct tb_cable *own = l->r.closed ? NULL : tb_link_cable(l);
        must(!own || l->via == own);
        must(!l->via || (l->via->ready && l->via->control.qp));
        must(!own || !l->r.cut);
    }
    for (uint32_t i = 0; i < node.tb->cable_count; i++) {
        const struct tb_cable *c = node.tb->cables[i];
        uint32_t held = 0;
        for (uint32_t k = 0; c && k < TB_RECEIVES; k++)
            held += c->held[k] != 0;
        must(!c || (held == c->held_count && (!c->ready || (c->open && c->lane_count == LANES))));
    }
    base_spin_unlock(&node.tb->receiving);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    base_log_set("error");
    memset(ops, 0, sizeof ops);
    open_node();
    node.stale = size & 1;
    for (unsigned commands = 0; in.left && commands < 300; commands++) {
        uint8_t command = (uint8_t)take(&in, 1);
        uint32_t whom = command & 128 ? BEHIND : BEFORE;
        bool there = fab_alive(&node.w, whom);
        switch (command % 16) {
        case 0:
            if (there)
                raw(&in, whom);
            break;
        case 1:
        case 2:
        case 3:
            if (there)
                about_a_cable(&in, whom);
            break;
        case 4: {
            uint8_t how = (uint8_t)take(&in, 1);
            if (there)
                hear_neighbours(whom, how & 3 & 2 ? 2 : how & 1, how >> 2 & 3, how >> 4 & 3);
            break;
        }
        case 5:
            if (there)
                about_leaving(&in, whom);
            break;
        case 6: node.device[whom == BEHIND].up = !node.device[whom == BEHIND].up; break;
        case 7:
        case 8: upkeep(); break;
        case 9: frame(&in, whom); break;
        case 10: device(&in, whom); break;
        case 11: (void)serve(); break;
        case 12: operation(&in, whom); break;
        case 13: (void)fab_tb.needed(&node.w); break;
        case 14: node.device[whom == BEHIND].grants = (uint32_t)take(&in, 1) % TB_RECEIVES; break;
        default: /* does not happen often, because little can be tested without it */
            if (take(&in, 1) > 240 && there) {
                fab_last_words(&node.w, &node.links[whom], FAB_LEFT);
                fab_tb.disconnect(&node.w, &node.links[whom]);
            }
        }
        look();
        for (uint32_t i = 0; i < NODES; i++)
            if (i != HERE && fab_alive(&node.w, i) && fab_tb.broken(&node.w, &node.links[i])) {
                fab_last_words(&node.w, &node.links[i], FAB_DEAD);
                fab_tb.disconnect(&node.w, &node.links[i]);
            }
    }
    close_node();
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        must(ops[i].status != 1);
    return 0;
}
