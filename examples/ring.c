/* SPDX-License-Identifier: MIT
 *
 * ring: a token goes round the nodes twice. The node that has it prints a line and passes it on.
 *
 * It shows weft_put_signal(), which writes bytes and then adds to a signal, so that a node that sees the signal also sees the bytes. It
 * also shows weft_exchange(), by which each node gets an address in the next node's pool.
 *
 * Run:
 *     weft run -n 4 -- ./ring
 * It prints:
 *     hop 1: node 0 to node 1
 *     hop 2: node 1 to node 2
 *     hop 3: node 2 to node 3
 *     hop 4: node 3 to node 0
 *     hop 5: node 0 to node 1
 *     hop 6: node 1 to node 2
 *     hop 7: node 2 to node 3
 *     hop 8: node 3 to node 0
 *     home after 8 hops
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

#define LAPS 2

/* The data of each node, in its pool. */
struct place {
    uint64_t signal; /* how many times the token has arrived at this node */
    uint64_t hops;   /* the token: the number of hops so far */
};

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "ring: %s: %s\n", what, weft_error());
        exit(1);
    }
}

int main(void)
{
    weft_node *w;
    weft_gaddr mine, all[WEFT_MAX_NODES];
    check(weft_open(&w, NULL), "open");
    uint32_t me = weft_rank(w), nodes = weft_size(w);

    check(weft_alloc(w, sizeof(struct place), &mine), "alloc");
    struct place *place = weft_ptr(w, mine, sizeof *place);
    memset(place, 0, sizeof *place);
    check(weft_exchange(w, &mine, 1, all, NULL, WEFT_TIMEOUT_DEFAULT), "exchange");
    weft_gaddr next = all[(me + 1) % nodes];

    for (uint64_t lap = 1; lap <= LAPS; lap++) {
        uint64_t hops = 0;
        if (me > 0 || lap > 1) { /* at the start node 0 has the token */
            check(weft_wait_until(w, mine + offsetof(struct place, signal), WEFT_GE, me > 0 ? lap : lap - 1, NULL, WEFT_TIMEOUT_DEFAULT),
                  "wait");
            hops = place->hops;
        }
        hops++;
        printf("hop %u: node %u to node %u\n", (unsigned)hops, me, (me + 1) % nodes);
        fflush(stdout); /* before the next node prints */
        check(weft_put_signal(w, next + offsetof(struct place, hops), &hops, sizeof hops, next + offsetof(struct place, signal), 1, NULL),
              "put");
        check(weft_flush(w, (me + 1) % nodes, WEFT_TIMEOUT_DEFAULT), "flush"); /* after the flush, `hops` may change */
    }
    if (me == 0) {
        check(weft_wait_until(w, mine + offsetof(struct place, signal), WEFT_GE, LAPS, NULL, WEFT_TIMEOUT_DEFAULT), "wait");
        printf("home after %u hops\n", (unsigned)place->hops);
    }
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier"); /* no node leaves while another node still flushes to it */
    check(weft_close(w), "close");
    return 0;
}
