/* SPDX-License-Identifier: MIT
 *
 * Cables of one node, on devices made here (node.h): cables that are built again, frames that are forwarded meanwhile, and a peer that is
 * gone while another never stops sending.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>

#include "node.h"

static struct tb_cable *cable_to(uint32_t to)
{
    return link_to(to)->cables[0];
}

static void pull(uint32_t device)
{
    node.device[device].up = false;
    upkeep();
}

/* Node 0 leads: it proposes queue pairs of the next generation, and reports that it is ready. */
static void plug(void)
{
    struct tb_cable *c = cable_to(BEFORE);
    uint16_t generation = (uint16_t)(c->generation + 1);
    node.device[0].up = true;
    upkeep();
    for (uint8_t i = 0; i <= LANES; i++)
        hear_of_cable(BEFORE, CABLE_ADDRESS, i, generation);
    hear_of_cable(BEFORE, CABLE_READY, 0, generation);
    assert_true(c->ready && c->open);
}

/* A frame from node 0 to node 2 arrives, which this node forwards. */
static void a_frame_to_pass_on(void)
{
    struct tb_frame f = {.magic = TB_MAGIC, .hops = 3, .from = BEFORE, .to = BEHIND};
    assert_true(arrives(pair_of(&cable_to(BEFORE)->control), &f, sizeof f));
    assert_int_equal(serve(), 1);
}

static uint32_t posted(const struct tb_cable *c)
{
    const struct fake_pair *p = pair_of(&c->control);
    return p->receives_in - p->receives_out + c->owed_count;
}

/* A frame is being forwarded when the cable that it came by is lost. When that cable is back, the frame's receive is posted exactly once.
 */
static void test_passed_on_meanwhile(void **state)
{
    (void)state;
    open_node();
    struct tb_cable *from = cable_to(BEFORE), *to = cable_to(BEHIND);
    a_frame_to_pass_on();
    assert_int_equal(from->held_count, 1);
    assert_int_equal(posted(from), TB_RECEIVES - 1);
    pull(0);
    plug();
    assert_int_equal(from->held_count, 0);
    assert_int_equal(posted(from), TB_RECEIVES);
    while (leaves(pair_of(&to->control)))
        ;
    for (int i = 0; i < 10; i++)
        (void)serve();
    assert_int_equal(posted(from), TB_RECEIVES);
    /* Forwarding still works: up to half of the receives may hold forwarded frames. */
    for (uint32_t i = 0; i < 2 * TB_RECEIVES; i++) {
        a_frame_to_pass_on();
        assert_int_equal(from->held_count, 1);
        while (leaves(pair_of(&to->control)))
            ;
        fab_tb.upkeep(&node.w, base_now_ns());
        (void)serve();
        assert_int_equal(from->held_count, 0);
    }
    close_node();
}

/* A cable is built again on a device that grants a smaller queue than before. */
static void test_smaller_grant(void **state)
{
    (void)state;
    open_node();
    for (uint32_t grants = TB_RECEIVES / 2; grants >= 16; grants /= 2) {
        node.device[0].grants = grants;
        pull(0);
        plug();
        struct tb_cable *c = cable_to(BEFORE);
        assert_int_equal(c->receives, grants);
        assert_int_equal(posted(c), grants);
        for (uint32_t i = 0; i < grants / 2; i++)
            a_frame_to_pass_on();
        assert_int_equal(c->held_count, grants / 2);
        while (leaves(pair_of(&cable_to(BEHIND)->control)))
            ;
        (void)serve();
    }
    close_node();
}

/* A cable is pulled before this node knows the other nodes' cables: an operation waits until it is known whether there is another route. */
static void test_pulled_early(void **state)
{
    (void)state;
    uint64_t value = 0;
    for (uint16_t way = 0; way < 2; way++) {
        weft_op op = {0};
        open_node();
        uint8_t *mine = node.w.pool_base + node.w.heap_offset;
        pull(0);
        assert_null(link_to(BEFORE)->via);
        assert_int_equal(fab_tb.get(&node.w, &node.links[BEFORE], mine, node.w.heap_offset, sizeof value, &op), 0);
        assert_int_equal(op.status, 1);
        hear_neighbours(BEFORE, way, BEHIND, 0);
        assert_int_equal(op.status, 1);
        hear_neighbours(BEHIND, (uint16_t)(1 + way), HERE, BEFORE);
        assert_ptr_equal(link_to(BEFORE)->via, way ? cable_to(BEHIND) : NULL);
        assert_int_equal(op.status, way ? 1 : -ENETDOWN);
        if (way)
            fab_tb.disconnect(&node.w, &node.links[BEFORE]);
        close_node();
    }
}

/* Ending the link to a node that is gone takes bounded time, however much other nodes send. */
static void test_last_words(void **state)
{
    (void)state;
    open_node();
    struct tb_frame f = {.magic = TB_MAGIC, .hops = 3, .from = BEHIND, .to = HERE};
    node.poured = (struct fake_queue *)(void *)node.tb->devices[1].of[TB_RECEIVED].cq;
    struct fake_pair *p = pair_of(&cable_to(BEHIND)->control);
    p->granted_receives = UINT32_MAX; /* the endless completions are not for posted receives */
    assert_true(arrives(p, &f, sizeof f));
    alarm(60);
    fab_last_words(&node.w, &node.links[BEFORE], FAB_DEAD);
    alarm(0);
    assert_false(fab_alive(&node.w, BEFORE));
    close_node();
}

int main(void)
{
    base_log_set("error");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passed_on_meanwhile),
        cmocka_unit_test(test_smaller_grant),
        cmocka_unit_test(test_pulled_early),
        cmocka_unit_test(test_last_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
