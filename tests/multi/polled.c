/* SPDX-License-Identifier: MIT
 *
 * A node that waits as readers of files of other hosts do (fab_wait_beside()), and prints whether it has polled meanwhile. Its rank and
 * addresses come from the environment.
 */
#include "cluster_test.h"
#include "fabric/fabric.h"

#define LOOKS 8u

struct looks {
    weft_node *w;
    uint32_t count;
    bool polls; /* this thread was polling at one of these looks */
};

static bool looked(void *arg)
{
    struct looks *k = arg;
    k->polls = k->polls || atomic_load_explicit(&k->w->bell->pollers, memory_order_relaxed) != 0;
    return k->count++ == LOOKS;
}

int main(void)
{
    weft_node *w;
    OK(weft_open(&w, NULL));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    struct looks k = {.w = w};
    OK(fab_wait_beside(w, looked, &k, base_deadline(patience_ns(60))));
    printf("node %u %s\n", weft_rank(w), k.polls ? "polls" : "sleeps");
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_close(w));
    return 0;
}
