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
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

#define READY 0 /* our handler's id */

static _Atomic uint32_t dead = UINT32_MAX;

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "survive: %s: %s\n", what, weft_error());
        exit(1);
    }
}

/* Runs on a thread of weft's. */
static void on_change(weft *w, uint64_t epoch, uint32_t node, bool died, void *arg)
{
    (void)w, (void)epoch, (void)arg;
    if (died)
        atomic_store(&dead, node);
}

/* At the last node: another one has installed its callback. */
static void on_ready(weft *w, uint32_t from, const void *header, size_t header_len, const void *payload,
                     size_t payload_len, void *arg)
{
    (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    weft_fetch_add(w, *(weft_gaddr *)arg, 1, NULL, NULL);
}

int main(void)
{
    weft *w;
    weft_gaddr ready;
    check(weft_open(&w, NULL), "open");
    check(weft_on_change(w, on_change, NULL), "on_change");
    uint32_t me = weft_rank(w), nodes = weft_size(w);

    if (me == nodes - 1) {
        check(weft_alloc(w, sizeof(uint64_t), &ready), "alloc");
        memset(weft_ptr(w, ready, sizeof(uint64_t)), 0, sizeof(uint64_t));
        check(weft_handle(w, READY, on_ready, &ready), "handle");
        check(weft_wait_until(w, ready, WEFT_EQ, nodes - 1, NULL, WEFT_DEFAULT), "wait for the others");
        raise(SIGKILL);
    }
    check(weft_send(w, nodes - 1, READY, NULL, 0, NULL, 0, NULL), "send");

    /* Every survivor hears of it at its next barrier, whether it waited there or came later. */
    int rc = weft_barrier(w, WEFT_DEFAULT);
    if (rc != -ECONNRESET) {
        fprintf(stderr, "survive: node %u: expected a barrier that fails, got %d\n", me, rc);
        return 1;
    }
    check(weft_barrier(w, WEFT_DEFAULT), "the barrier of those that are left");

    uint64_t word = 0;
    rc = weft_get_now(w, &word, weft_gaddr_make(nodes - 1, 0, 1 << 20), sizeof word);
    if (rc != -ECONNRESET) {
        fprintf(stderr, "survive: node %u: expected a get that fails, got %d\n", me, rc);
        return 1;
    }
    printf("node %u: node %u died; %u of %u nodes go on in epoch %u\n", me, atomic_load(&dead), weft_alive_count(w),
           nodes, (unsigned)weft_epoch(w));
    fflush(stdout);
    check(weft_barrier(w, WEFT_DEFAULT), "barrier"); /* so that nobody counts one that has left already */
    check(weft_close(w), "close");
    return 0;
}
