/* SPDX-License-Identifier: MIT
 *
 * survive: the last node kills itself. The others are told, and go on without it.
 *
 * Shown: what a death looks like from outside: the callback, the barrier that returns -ECONNRESET once, operations to
 * the dead node that fail instead of hanging, and the next barrier, which is one of the nodes that are left.
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

#define READY 0 /* our handler's id */

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "survive: %s: %s\n", what, weft_error());
        exit(1);
    }
}

/* A word of our own pool, zero at first. */
static weft_gaddr make_word(weft_node *w)
{
    weft_gaddr word;
    check(weft_alloc(w, sizeof(uint64_t), &word), "alloc");
    memset(weft_ptr(w, word, sizeof(uint64_t)), 0, sizeof(uint64_t));
    return word;
}

/* Runs on a thread of weft's, and leaves word of the dead where main() can wait for it. */
static void on_change(weft_node *w, uint64_t epoch, uint32_t node, bool died, void *arg)
{
    (void)epoch;
    if (died)
        weft_swap(w, *(weft_gaddr *)arg, 1 + (uint64_t)node, NULL, NULL);
}

/* At the last node: another one has installed its callback. */
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

    /* Every survivor hears of it at its next barrier, whether it waited there or came later. */
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
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier"); /* so that nobody counts one that has left already */
    check(weft_close(w), "close");
    return 0;
}
