/* SPDX-License-Identifier: MIT
 *
 * Cables between two nodes of the tb transport: cables that a hostfile names, and cables that are moved to another port. Run by
 * over_softverbs.py on twin:2:1 of tb5-stalls: two cables, en2 to en2 and en3 to en3, and a port without a cable at each node, en4.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "cluster_test.h"

#define LONG patience_ns(60)

/* --- hostfiles --- */

struct matrix {
    char path[64], coord[64];
    struct {
        int opened;
        char why[1024], devices[128];
        uint32_t cables;
        bool left;
    } node[2];
};

static int opens(int rank, void *arg)
{
    struct matrix *m = arg;
    weft_node *w = NULL;
    weft_link_stats s;
    setenv("WEFT_HOSTFILE", m->path, 1);
    setenv("WEFT_SIZE", "2", 1);
    setenv("WEFT_COORD", m->coord, 1);
    setenv("WEFT_LOG", "error", 0);
    m->node[rank].opened = weft_open(&w, NULL);
    if (!w) {
        snprintf(m->node[rank].why, sizeof m->node[rank].why, "%s", weft_error());
        return 0;
    }
    uint64_t old;
    weft_gaddr area = symmetric_alloc(w, 4096);
    m->node[rank].opened = weft_fetch_add_blocking(w, on_node(area, 1 - (uint32_t)rank), 1, &old);
    if (m->node[rank].opened == -ECONNRESET) { /* that node has failed and left before this node waited for it */
        snprintf(m->node[rank].why, sizeof m->node[rank].why, "%s", weft_error());
        m->node[rank].left = true;
        OK(weft_close(w));
        return 0;
    }
    OK(m->node[rank].opened);
    OK(weft_link_stat(w, 1 - (uint32_t)rank, &s, sizeof s));
    snprintf(m->node[rank].devices, sizeof m->node[rank].devices, "%s", s.devices);
    m->node[rank].cables = s.cables;
    OK(weft_barrier(w, LONG));
    OK(weft_close(w));
    return 0;
}

/* Runs two nodes with a hostfile. `zero` is the device, as JSON, that it names at node 0 towards node 1; `one` is that at node 1 towards
 * node 0. NULL: it names none. */
static struct matrix *with(const char *zero, const char *one)
{
    static unsigned number;
    struct matrix *m = shared_words(sizeof *m);
    snprintf(m->path, sizeof m->path, "/tmp/weft-matrix-%d.json", (int)getpid());
    snprintf(m->coord, sizeof m->coord, "unix:@weft-matrix-%d-%u", (int)getpid(), number++);
    FILE *f = fopen(m->path, "we");
    assert_non_null(f);
    fprintf(f, "[{\"ssh\": \"a\"%s%s%s}, {\"ssh\": \"b\"%s%s%s}]\n", zero ? ", \"rdma\": [null, " : "", zero ? zero : "", zero ? "]" : "",
            one ? ", \"rdma\": [" : "", one ? one : "", one ? ", null]" : "");
    fclose(f);
    assert_int_equal(processes_failed(2, opens, m), 0);
    unlink(m->path);
    return m;
}

static void test_matrix(void **state)
{
    (void)state;
    static const struct {
        const char *zero, *one, *devices;
        uint32_t cables;
    } right[] = {{"\"rdma_en2\"", "\"rdma_en2\"", "rdma_en2", 1},
                 {"\"rdma_en3\"", "\"rdma_en3\"", "rdma_en3", 1},
                 {"\"rdma_en3\"", NULL, "rdma_en3", 1},
                 {NULL, NULL, NULL, 2}};
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        struct matrix *m = with(right[i].zero, right[i].one);
        for (int k = 0; k < 2; k++) {
            if (m->node[k].opened)
                fprintf(stderr, "node %d: %s\n", k, m->node[k].why);
            assert_int_equal(m->node[k].opened, 0);
            assert_int_equal(m->node[k].cables, right[i].cables);
            if (right[i].devices)
                assert_string_equal(m->node[k].devices, right[i].devices);
        }
    }
}

static void test_wrong_matrix(void **state)
{
    (void)state;
    static const struct {
        const char *zero, *one, *says[3];
    } wrong[] = {
        {"\"rdma_en2\"", "\"rdma_en3\"", {"device rdma_en2 of node 0", "device rdma_en3 of node 1", "no cable joins these"}},
        {"\"rdma_en2\"", "\"rdma_en9\"", {"device rdma_en9 of node 1", "no such device", "rdma_en2, rdma_en3"}},
        {"\"rdma_en2\"", "null", {"device rdma_en2 of node 0", "no device of node 1", "two ends"}},
        {"null", "null", {"no cable leads to", "node ", ""}},
        {"\"rdma_en4\"", "\"rdma_en2\"", {"device rdma_en4 of node 0", "", ""}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct matrix *m = with(wrong[i].zero, wrong[i].one);
        for (int k = 0; k < 2; k++) {
            assert_true(m->node[k].opened < 0 && m->node[k].opened != -ETIMEDOUT);
            assert_false(m->node[0].left && m->node[1].left);
            for (int s = 0; s < 3 && !m->node[k].left; s++) {
                if (!strstr(m->node[k].why, wrong[i].says[s]))
                    fprintf(stderr, "node %d: '%s' is not in: %s\n", k, wrong[i].says[s], m->node[k].why);
                assert_non_null(strstr(m->node[k].why, wrong[i].says[s]));
            }
            if (i < 3 && !strstr(m->node[k].why, "correct \"rdma\" in the hostfile"))
                fprintf(stderr, "node %d: no remedy in: %s\n", k, m->node[k].why);
            assert_true(i >= 3 || strstr(m->node[k].why, "correct \"rdma\" in the hostfile"));
        }
    }
}

/* --- a cable is moved --- */

#define BIG (1u << 20)

/* Both nodes put to each other, large and small, and check the bytes. Puts may fail only because there is no route. Returns how many
 * succeeded. */
static uint32_t traffic(weft_node *w, weft_gaddr area, uint8_t *mine, uint8_t seed)
{
    uint32_t other = 1 - weft_rank(w), went = 0;
    memset(mine, seed, BIG);
    int rc = weft_put_blocking(w, on_node(area, other), mine, BIG - seed);
    CHECK(rc == 0 || rc == -ENETDOWN);
    went += rc == 0;
    int got = rc == 0 ? weft_get_blocking(w, mine + BIG, on_node(area, other), BIG - seed) : -ENETDOWN;
    CHECK(got == 0 || got == -ENETDOWN);
    if (got == 0)
        CHECK(memcmp(mine, mine + BIG, BIG - seed) == 0);
    return went + (got == 0);
}

/* Wait until this node has this many cables, on these devices. */
static void until(weft_node *w, weft_gaddr area, uint8_t *mine, uint32_t cables, const char *devices)
{
    weft_link_stats s = {.cables = UINT32_MAX};
    for (uint8_t i = 1; s.cables != cables || strcmp(s.devices, devices) != 0; i = (uint8_t)(i % 250 + 1)) {
        traffic(w, area, mine, i);
        OK(weft_link_stat(w, 1 - weft_rank(w), &s, sizeof s));
    }
    while (cables && traffic(w, area, mine, 77) != 2) /* until both puts succeed */
        usleep(1000);
}

struct move {
    _Atomic uint32_t step;
};

static void moved(weft_node *w, void *arg)
{
    static const struct {
        const char *fault[2];
        uint32_t cables;
        const char *devices[2]; /* the devices of each node, in the order of the link's cables */
    } steps[] = {
        {{NULL}, 2, {"rdma_en2, rdma_en3", "rdma_en2, rdma_en3"}},
        {{"fault plug 0:rdma_en4 1:rdma_en2"},
         2,
         {"rdma_en4, rdma_en3", "rdma_en2, rdma_en3"}}, /* at node 0 the cable is moved from en2 to en4 */
        {{"fault plug 0:rdma_en4 1:rdma_en4"}, 2, {"rdma_en4, rdma_en3", "rdma_en4, rdma_en3"}}, /* at node 1 as well */
        {{"fault pull 0:rdma_en3"}, 1, {"rdma_en4", "rdma_en4"}},
        {{"fault pull 0:rdma_en4"}, 0, {"", ""}},
        {{"fault plug 0:rdma_en2 1:rdma_en3"}, 1, {"rdma_en2", "rdma_en3"}}, /* both ends at once */
    };
    struct move *m = arg;
    uint32_t me = weft_rank(w);
    weft_gaddr area = symmetric_alloc(w, 2 * BIG);
    uint8_t *mine = weft_ptr(w, on_node(area, me), 2 * BIG);
    weft_gaddr to = symmetric_alloc(w, BIG);
    for (uint32_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if (me == 0)
            for (int k = 0; k < 2 && steps[i].fault[k]; k++)
                softverbs(steps[i].fault[k]);
        until(w, to, mine, steps[i].cables, steps[i].devices[me]);
        meet(&m->step, 2 * (i + 1));
    }
}

static void test_moved(void **state)
{
    (void)state;
    struct move *m = shared_words(4096);
    assert_int_equal(nodes_failed_with(2, moved, m, (const char *const[]){"WEFT_LOG=warn", NULL}), 0);
    softverbs("fault plug 0:rdma_en2 1:rdma_en2");
    softverbs("fault plug 0:rdma_en3 1:rdma_en3");
}

/* --- one of several cables is pulled --- */

/* Whichever cable is pulled: while another one is left no operation fails, and nothing is lost or repeated. */
static void spared(weft_node *w, void *arg)
{
    static const char *const faults[] = {"fault pull 0:rdma_en2", "fault plug 0:rdma_en2", "fault pull 1:rdma_en3",
                                         "fault plug 1:rdma_en3"};
    struct move *m = arg;
    struct numbers count = {0};
    uint32_t me = weft_rank(w), other = 1 - me, sent = 0;
    uint64_t added = 0, old;
    OK(weft_handle(w, 1, on_number, &count));
    weft_gaddr to = symmetric_alloc(w, BIG + 64), own = symmetric_alloc(w, 2 * BIG);
    uint8_t *mine = weft_ptr(w, on_node(own, me), 2 * BIG);
    for (uint32_t i = 0; i < 4 * 4; i++) {
        meet(&m->step, 2 * (2 * i + 1));
        if (me == 0)
            softverbs(faults[i % 4]);
        weft_link_stats s = {.cables = 0};
        for (uint32_t more = 0; more < 3; more += s.cables == (i % 2 ? 2 : 1)) {
            memset(mine, (int)(i + more), BIG);
            OK(weft_send(w, other, 1, &sent, sizeof sent, NULL, 0, NULL));
            sent++;
            OK(weft_put_blocking(w, on_node(to, other), mine, BIG));
            OK(weft_fetch_add_blocking(w, on_node(to, other) + BIG, 1, &old));
            CHECK(old == added);
            added++;
            OK(weft_get_blocking(w, mine + BIG, on_node(to, other), BIG));
            CHECK(memcmp(mine, mine + BIG, BIG) == 0);
            OK(weft_link_stat(w, other, &s, sizeof s));
        }
        meet(&m->step, 2 * (2 * i + 2));
    }
    OK(weft_flush(w, other, LONG));
    OK(weft_barrier(w, LONG));
    CHECK(!count.wrong);
}

static void test_spared(void **state)
{
    (void)state;
    struct move *m = shared_words(4096);
    assert_int_equal(nodes_failed_with(2, spared, m, (const char *const[]){"WEFT_LOG=error", NULL}), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrix),
        cmocka_unit_test(test_wrong_matrix),
        cmocka_unit_test(test_spared),
        cmocka_unit_test(test_moved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
