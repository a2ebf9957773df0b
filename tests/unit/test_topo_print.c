/* SPDX-License-Identifier: MIT
 *
 * What weft topo prints of nodes that reach each other over libfabric (src/cli/topo_print.c): each node's own address at its end of a link,
 * its network in the table of nodes, and which pairs use TCP although they need not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>
#include <unistd.h>

#include "cli/topo.h"

enum { NODES = 3 };

static struct topo_node nodes[NODES];
static struct topo_link links[NODES * NODES];
static const struct topo topo = {NODES, nodes, links};

/* Three nodes over libfabric. A link's `devices` has the address of the peer. Node 2 has an RDMA device, too. */
static void over(const char *provider)
{
    memset(nodes, 0, sizeof nodes);
    memset(links, 0, sizeof links);
    for (uint32_t i = 0; i < NODES; i++) {
        nodes[i].reported = true;
        snprintf(nodes[i].host, sizeof nodes[i].host, "host%u", i);
        for (uint32_t k = 0; k < NODES; k++) {
            struct topo_link *l = &links[i * NODES + k];
            l->measured = i != k;
            l->stats.via = k;
            snprintf(l->stats.transport, sizeof l->stats.transport, "ofi");
            snprintf(l->stats.devices, sizeof l->stats.devices, "%s 10.0.0.%u:7", provider, k);
        }
    }
    nodes[2].device_count = 1;
    snprintf(nodes[2].devices[0].name, sizeof nodes[2].devices[0].name, "mlx5_0");
}

/* The output and the messages of topo_print(). */
static const char *printed(enum topo_format format)
{
    static char text[20000];
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    fflush(stderr);
    int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    assert_true(out >= 0 && err >= 0);
    dup2(fileno(file), STDOUT_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    int status = topo_print(&topo, format);
    fflush(stdout);
    fflush(stderr);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    assert_int_equal(status, 0);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

static void has(const char *text, const char *what)
{
    if (!strstr(text, what))
        fail_msg("'%s' is not in:\n%s", what, text);
}

static void test_own_addresses(void **state)
{
    (void)state;
    over("net");
    const char *dot = printed(TOPO_DOT);
    has(dot, "taillabel=\"net 10.0.0.0:7\", headlabel=\"net 10.0.0.1:7\"");
    has(dot, "taillabel=\"net 10.0.0.1:7\", headlabel=\"net 10.0.0.2:7\"");
    /* Near node 0, at the top, and near node 1. */
    const char *svg = printed(TOPO_SVG), *zero = strstr(svg, ">net 10.0.0.0:7<"), *one = strstr(svg, ">net 10.0.0.1:7<");
    assert_true(zero && one && zero < one);
    has(printed(TOPO_JSON), "\"network\": \"net 10.0.0.1:7\"");
    /* RDMA devices are the sending node's own. */
    over("net");
    for (uint32_t i = 0; i < NODES * NODES; i++)
        snprintf(links[i].stats.transport, sizeof links[i].stats.transport, "rc");
    has(printed(TOPO_DOT), "taillabel=\"net 10.0.0.1:7\", headlabel=\"net 10.0.0.0:7\"");
}

static void test_table_of_nodes(void **state)
{
    (void)state;
    over("tcp;ofi_rxm");
    const char *table = printed(TOPO_TABLE);
    has(table, "host0   0 B  tcp;ofi_rxm 10.0.0.0:7");
    has(table, "host1   0 B  tcp;ofi_rxm 10.0.0.1:7");
    has(table, "host2   0 B  mlx5_0");
}

static void better(const char *zero, const char *one)
{
    snprintf(nodes[0].better, sizeof nodes[0].better, "%s", zero);
    snprintf(nodes[1].better, sizeof nodes[1].better, "%s", one);
}

static void test_slow_pairs(void **state)
{
    (void)state;
    static const char said[] = "1 pair of nodes (the first: 0 and 1) use TCP, although libfabric has the faster provider efa on both hosts";
    static const char *const tcp[] = {"net", "tcp", "tcp;ofi_rxm"};
    for (size_t i = 0; i < sizeof tcp / sizeof tcp[0]; i++) {
        over(tcp[i]);
        assert_null(strstr(printed(TOPO_TABLE), "use TCP"));
        better("efa", "efa");
        has(printed(TOPO_TABLE), said);
        better("efa", "cxi");
        assert_null(strstr(printed(TOPO_TABLE), "use TCP"));
    }
    over("efa");
    better("efa", "efa");
    assert_null(strstr(printed(TOPO_TABLE), "use TCP"));
    over("net");
    better("efa", "efa");
    nodes[0].devices[0] = nodes[1].devices[0] = nodes[2].devices[0];
    nodes[0].device_count = nodes[1].device_count = 1;
    const char *table = printed(TOPO_TABLE);
    has(table, "3 pairs of nodes (the first: 0 and 1) use libfabric (ofi), although both have RDMA devices");
    assert_null(strstr(table, "use TCP"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_own_addresses), cmocka_unit_test(test_table_of_nodes),
                                       cmocka_unit_test(test_slow_pairs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
