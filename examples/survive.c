/* SPDX-License-Identifier: MIT
 *
 * survive: the last node kills itself. The other nodes notice, and go on without it.
 *
 * It shows how survivors learn of a death: the callback runs, one barrier returns -ECONNRESET, and operations to the dead node fail at
 * once. The next barrier waits only for the nodes that are left.
 *
 * Run:
 *     weft run -n 4 -- ./survive
 * It prints, in any order:
 *     node 0: node 3 died; 3 of 4 nodes go on in epoch 2
 *     node 1: node 3 died; 3 of 4 nodes go on in epoch 2
 *     node 2: node 3 died; 3 of 4 nodes go on in epoch 2
 * Exit status:
 *     137
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

#define READY 0 /* number of the message handler */

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "survive: %s: %s\n", what, weft_error());
        exit(1);
    }
}

static weft_gaddr make_word(weft_node *w)
{
    weft_gaddr word;
    check(weft_alloc(w, sizeof(uint64_t), &word), "alloc");
    memset(weft_ptr(w, word, sizeof(uint64_t)), 0, sizeof(uint64_t));
    return word;
}

/* Called by weft when a node has gone. Stores the number of a dead node, plus 1, in a word that main() waits for. */
static void on_change(weft_node *w, uint64_t epoch, uint32_t node, bool died, void *arg)
{
    (void)epoch;
    if (died)
        weft_swap(w, *(weft_gaddr *)arg, 1 + (uint64_t)node, NULL, NULL);
}

/* Runs at the last node when another node is ready. */
static void on_ready(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    weft_fetch_add(w, *(weft_gaddr *)arg, 1, NULL, NULL);
}

int main(void)
{
    weft_node *w;
    check(weft_open(&w, NULL), "open");
    weft_gaddr dead = make_word(w), ready = make_word(w);
    check(weft_on_change(w, on_change, &dead), "on_change");
    uint32_t me = weft_rank(w), nodes = weft_size(w);

    if (me == nodes - 1) {
        check(weft_handle(w, READY, on_ready, &ready), "handle");
        check(weft_wait_until(w, ready, WEFT_EQ, nodes - 1, NULL, WEFT_TIMEOUT_DEFAULT), "wait for the others");
        raise(SIGKILL);
    }
    check(weft_send(w, nodes - 1, READY, NULL, 0, NULL, 0, NULL), "send");

    /* At each survivor one barrier fails: the current or the next barrier. */
    int rc = weft_barrier(w, WEFT_TIMEOUT_DEFAULT);
    if (rc != -ECONNRESET) {
        fprintf(stderr, "survive: node %u: expected a barrier that fails, got %d\n", me, rc);
        return 1;
    }
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "the barrier of those that are left");

    uint64_t who, word;
    check(weft_wait_until(w, dead, WEFT_NE, 0, &who, WEFT_TIMEOUT_DEFAULT), "wait for the callback");
    rc = weft_get_blocking(w, &word, weft_gaddr_make(nodes - 1, 0, 1 << 20), sizeof word);
    if (rc != -ECONNRESET) {
        fprintf(stderr, "survive: node %u: expected a get that fails, got %d\n", me, rc);
        return 1;
    }
    printf("node %u: node %u died; %u of %u nodes go on in epoch %u\n", me, (unsigned)who - 1, weft_alive_count(w), nodes,
           (unsigned)weft_epoch(w));
    fflush(stdout);
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier"); /* no node leaves before all have printed their counts */
    check(weft_close(w), "close");
    return 0;
}
