/* SPDX-License-Identifier: MIT
 *
 * The desk of a standing node (src/cli/standing_desk.c) while the node refreshes it without a pause: what a reader gets is always one page
 * as a whole, whether the reader is a thread of the same node or another node.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "cli/standing.h"
#include "cluster_test.h"

#define NODES 2
#define READS 20000u

/* Replacements for the functions of topo that the desk calls. */
void topo_describe(struct topo_node *n)
{
    snprintf(n->host, sizeof n->host, "somewhere");
}
void topo_check_text(char *text, size_t room)
{
    text[room - 1] = '\0';
}
void topo_check_node(struct topo_node *n)
{
    n->host[sizeof n->host - 1] = '\0';
}

static char door[] = "WEFT_GROW=0000000000"; /* in the environment; the desk shows the address after '=' */
static _Atomic unsigned reading;

/* Reads the desk of a node many times: its door is the number of the page, and its host has not changed. */
static void read_desk(weft_node *w, uint32_t node)
{
    struct desks *d;
    OK(desks_open(&d, w));
    for (uint64_t last = 0, got = 0; got < repeats(READS);) {
        struct desk_page *p;
        bool links = got % 2;
        if (desks_get(d, &node, 1, links, &p)) { /* it was overwritten each time that it was read; or is not published yet */
            CHECK(!p);
            continue;
        }
        CHECK(strtoull(p->door, NULL, 10) == p->number);
        CHECK(strcmp(p->node.host, "somewhere") == 0);
        CHECK(p->number >= last && (links ? p->count == NODES - 1 && p->links[0].node == 1 - node : p->count == 0));
        last = p->number;
        got++;
        free(p);
    }
    desks_close(d);
}

static void *read_own(void *w)
{
    read_desk(w, weft_rank(w));
    reading--;
    return NULL;
}

static void *read_other(void *w)
{
    read_desk(w, 1 - weft_rank(w));
    reading--;
    return NULL;
}

static void run_node(weft_node *w, void *arg)
{
    void *(*const readers[])(void *) = {read_own, read_other};
    pthread_t thread[2];
    struct desk *d;
    (void)arg;
    putenv(door);
    snprintf(door + 10, sizeof door - 10, "1");
    OK(desk_open(&d, w, 0));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    reading = 2;
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&thread[i], NULL, readers[i], w) == 0);
    for (unsigned number = 2; reading; number++) {
        snprintf(door + 10, sizeof door - 10, "%u", number);
        desk_refresh(d);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    desk_close(d);
}

static void test_whole_pages(void **state)
{
    (void)state;
    static const char *const environment[] = {"WEFT_SERVE=name", NULL};
    assert_int_equal(nodes_failed_with(NODES, run_node, NULL, environment), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_whole_pages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
