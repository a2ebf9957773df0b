/* SPDX-License-Identifier: MIT
 *
 * What the control node makes of the counters of links, for `weft status` and Prometheus: each counter is in the sums to which it belongs,
 * and once. The pages of two nodes are made up here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/forward.h"
#include "cli/standing.h"
#include "weft/service.h"

/* --- a cluster of nodes 0 and 1; node 0 answers --- */

static weft_link_stats links[2]; /* links[i]: the link of node i to the other */

uint32_t jobs_nodes(struct jobs *all, uint32_t **out)
{
    (void)all;
    *out = calloc(2, sizeof **out);
    assert_non_null(*out);
    (*out)[1] = 1;
    return 2;
}

uint32_t jobs_desks(struct jobs *all, const uint32_t *nodes, uint32_t count, bool wanted, struct desk_page **out)
{
    (void)all, (void)nodes;
    assert_true(wanted);
    for (uint32_t i = 0; i < count; i++) {
        out[i] = calloc(1, sizeof **out + sizeof out[i]->links[0]);
        assert_non_null(out[i]);
        out[i]->count = 1;
        out[i]->links[0] = (struct desk_link){.stats = links[i], .node = 1 - i, .sent_rate = 100 + i, .fetched_rate = 1000 + i};
    }
    return count;
}

void jobs_host(struct jobs *all, uint32_t node, char *out, size_t len)
{
    (void)all;
    snprintf(out, len, "host%u", node);
}

uint32_t jobs_slot(struct jobs *all, uint32_t node)
{
    (void)all, (void)node;
    return 0;
}

json_t *jobs_list(struct jobs *all)
{
    (void)all;
    return json_array();
}

json_t *forwards_list(struct jobs *jobs)
{
    (void)jobs;
    return json_array();
}

bool __wrap_weft_alive(weft_node *w, uint32_t node);
bool __wrap_weft_alive(weft_node *w, uint32_t node)
{
    (void)w, (void)node;
    return true;
}

bool __wrap_weft_service_offered(weft_node *w, uint32_t node, uint32_t kind);
bool __wrap_weft_service_offered(weft_node *w, uint32_t node, uint32_t kind)
{
    (void)w, (void)node, (void)kind;
    return false;
}

uint32_t __wrap_weft_rank(const weft_node *w);
uint32_t __wrap_weft_rank(const weft_node *w)
{
    (void)w;
    return 0;
}

uint32_t __wrap_weft_size(const weft_node *w);
uint32_t __wrap_weft_size(const weft_node *w)
{
    (void)w;
    return 2;
}

uint64_t __wrap_weft_epoch(const weft_node *w);
uint64_t __wrap_weft_epoch(const weft_node *w)
{
    (void)w;
    return 1;
}

/* --- what is said about the link from node 0 to node 1 --- */

static int64_t said(const char *key)
{
    char *text = standing_status(NULL, NULL, "test", true);
    assert_non_null(text);
    json_t *status = json_loads(text, 0, NULL), *link, *found = NULL;
    size_t i;
    free(text);
    assert_non_null(status);
    json_array_foreach (json_object_get(status, "links"), i, link)
        if (json_integer_value(json_object_get(link, "from")) == 0)
            found = json_object_get(link, key);
    assert_non_null(found);
    int64_t value = json_is_integer(found) ? json_integer_value(found) : -1; /* -1: null */
    json_decref(status);
    return value;
}

static int64_t measured(const char *name)
{
    char *text = standing_metrics(NULL, NULL), line[128];
    assert_non_null(text);
    snprintf(line, sizeof line, "\n%s{from=\"0\",to=\"1\",transport=\"%s\"} ", name, links[0].transport);
    const char *at = strstr(text, line);
    int64_t value = at ? strtoll(at + strlen(line), NULL, 10) : -1;
    free(text);
    return value;
}

static void set_transport(const char *name)
{
    memset(links, 0, sizeof links);
    for (uint32_t i = 0; i < 2; i++) {
        snprintf(links[i].transport, sizeof links[i].transport, "%s", name);
        links[i].via = 1 - i;
    }
}

static const struct counter {
    size_t at;
    bool error, breaks, retransmitted, damaged, repairs; /* the sums in which it is */
} counters[] = {
    {offsetof(weft_link_stats, breaks), .error = true, .breaks = true},
    {offsetof(weft_link_stats, rail_breaks), .error = true},
    {offsetof(weft_link_stats, frames_damaged), .error = true, .damaged = true},
    {offsetof(weft_link_stats, bulk_rejected), .error = true, .repairs = true},
    {offsetof(weft_link_stats, bulk_repairs), .error = true, .repairs = true},
    {offsetof(weft_link_stats, frames_retransmitted), .retransmitted = true},
    {offsetof(weft_link_stats, frames_sent), .error = false},
    {offsetof(weft_link_stats, bulk_sent_bytes), .error = false},
};

static void test_errors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        const struct counter *c = &counters[i];
        set_transport("tb");
        memcpy((char *)&links[0] + c->at, &(uint64_t){7}, 8);
        memcpy((char *)&links[1] + c->at, &(uint64_t){100}, 8); /* what the other node counts is said of its own link */
        assert_int_equal(said("errors"), c->error ? 7 : 0);
        assert_int_equal(said("breaks"), c->breaks ? 7 : 0);
        assert_int_equal(said("retransmitted"), c->retransmitted ? 7 : 0);
        assert_int_equal(said("damaged"), c->damaged ? 7 : 0);
        assert_int_equal(said("repairs"), c->repairs ? 7 : 0);
        assert_int_equal(measured("weft_link_errors_total"), c->error ? 7 : 0);
        assert_int_equal(measured("weft_link_retransmits_total"), c->retransmitted ? 7 : 0);
    }
}

/* What the node sends, and what the other one fetches from it. */
static void test_bytes(void **state)
{
    (void)state;
    set_transport("rc");
    links[0].sent_bytes = 10;
    links[0].fetched_bytes = 200;
    links[1].sent_bytes = 3000;
    links[1].fetched_bytes = 40000;
    assert_int_equal(said("bytes"), 40010);
    assert_int_equal(said("bytes_per_second"), 100 + 1001);
    assert_int_equal(measured("weft_link_bytes_total"), 40010);
    set_transport("shm"); /* counts nothing */
    assert_int_equal(said("bytes"), -1);
    assert_int_equal(said("bytes_per_second"), -1);
    assert_int_equal(measured("weft_link_bytes_total"), -1);
}

static void test_up(void **state)
{
    (void)state;
    set_transport("tb");
    assert_int_equal(measured("weft_link_up"), 1);
    assert_int_equal(said("via"), 1);
    links[0].via = UINT32_MAX;
    assert_int_equal(measured("weft_link_up"), 0);
    assert_int_equal(said("via"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_errors), cmocka_unit_test(test_bytes), cmocka_unit_test(test_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
