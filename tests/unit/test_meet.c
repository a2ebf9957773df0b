/* SPDX-License-Identifier: MIT
 *
 * How nodes that a launcher has started meet: which address of node 0 they choose, and which notices are invalid.
 */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cluster/meet.h"

#define NODES 4

static struct wire_notice all[NODES];

/* "10.0.0.1/24" */
static void add(uint32_t node, const char *address, uint8_t prefix)
{
    struct wire_notice *n = &all[node];
    struct wire_interface *w = &n->interfaces[n->interface_count++];
    w->family = strchr(address, ':') ? 6 : 4;
    w->prefix = prefix;
    assert_int_equal(inet_pton(w->family == 6 ? AF_INET6 : AF_INET, address, w->address), 1);
}

/* Four nodes on three hosts: nodes 0 and 1 share the first. */
static int setup(void **state)
{
    (void)state;
    memset(all, 0, sizeof all);
    for (uint32_t i = 0; i < NODES; i++) {
        all[i].magic = WIRE_MAGIC;
        all[i].rank = i;
        all[i].host_id[0] = (uint8_t)(i < 2 ? 1 : i);
        all[i].port = i == 0 ? 4321 : 0;
    }
    return 0;
}

static void expect(uint32_t count, const char *const *addresses)
{
    char got[WIRE_INTERFACES][128];
    assert_int_equal(meet_addresses(all, NODES, got), count);
    for (uint32_t i = 0; i < count; i++)
        assert_string_equal(got[i], addresses[i]);
}

static void the_network_that_most_are_in(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) { /* the host of nodes 0 and 1 has a cable to node 2's host, and is in the network of all */
        add(i, "192.168.7.1", 30);
        add(i, "10.0.0.1", 8);
        add(i, "fd00::1", 64);
    }
    add(2, "192.168.7.2", 30);
    add(2, "10.200.0.2", 8);
    add(2, "fd00::2", 64);
    add(3, "10.0.9.3", 8);
    expect(3, (const char *[]){"10.0.0.1:4321", "192.168.7.1:4321", "[fd00::1]:4321"});
}

static void an_address_that_every_host_has(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < NODES; i++) {
        add(i, "172.17.0.1", 16);
        add(i, i < 2 ? "10.1.2.3" : i == 2 ? "10.9.9.9" : "10.8.8.8", 24); /* networks behind routers, which no other node is in */
    }
    expect(1, (const char *[]){"10.1.2.3:4321"});
    all[0].interface_count = 1;
    expect(0, NULL);
}

static void bits_of_a_network(void **state)
{
    (void)state;
    add(0, "10.0.0.129", 25);
    add(0, "10.1.0.1", 16);
    add(2, "10.0.0.127", 25); /* the other half of the network */
    add(3, "10.1.200.1", 16);
    expect(2, (const char *[]){"10.1.0.1:4321", "10.0.0.129:4321"});
}

static void what_is_no_notice(void **state)
{
    (void)state;
    struct wire_notice *n = &all[2];
    add(2, "10.0.0.1", 8);
    assert_true(meet_notice_ok(n, 2));
    assert_false(meet_notice_ok(n, 1));
    static const struct {
        size_t at;
        uint8_t value;
    } wrong[] = {{offsetof(struct wire_notice, magic), 1},
                 {offsetof(struct wire_notice, interface_count), WIRE_INTERFACES + 1},
                 {offsetof(struct wire_notice, error) + 3, 0x80},
                 {offsetof(struct wire_notice, port) + 2, 1},
                 {offsetof(struct wire_notice, interfaces) + offsetof(struct wire_interface, family), 5},
                 {offsetof(struct wire_notice, interfaces) + offsetof(struct wire_interface, prefix), 33},
                 {offsetof(struct wire_notice, here), 'x'},
                 {offsetof(struct wire_notice, coord), 'x'}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct wire_notice copy = *n;
        ((uint8_t *)&copy)[wrong[i].at] = wrong[i].value;
        if (meet_notice_ok(&copy, 2))
            fail_msg("wrong in place %zu", i);
    }
    struct wire_notice copy = *n;
    memset(copy.text, 'x', sizeof copy.text); /* a text without a terminating zero */
    assert_false(meet_notice_ok(&copy, 2));
    snprintf(copy.text, sizeof copy.text, "no memory");
    copy.error = 12;
    snprintf(copy.here, sizeof copy.here, "unix:@weft-meet-0");
    snprintf(copy.coord, sizeof copy.coord, "[fd00::1]:99");
    assert_true(meet_notice_ok(&copy, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_network_that_most_are_in, setup),
        cmocka_unit_test_setup(an_address_that_every_host_has, setup),
        cmocka_unit_test_setup(bits_of_a_network, setup),
        cmocka_unit_test_setup(what_is_no_notice, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
