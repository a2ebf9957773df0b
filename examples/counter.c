/* SPDX-License-Identifier: MIT
 *
 * counter: all nodes add to one word at the same time, and no addition is lost.
 *
 * It shows counters (weft_counter_add(), weft_counter_read()), the barrier, and weft_exchange(), by which all nodes get the address of the
 * counter.
 *
 * Run:
 *     weft run -n 4 -- ./counter
 * It prints:
 *     4 nodes added 1 to the counter 50000 times each: 200000
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

#define TIMES 50000

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "counter: %s: %s\n", what, weft_error());
        exit(1);
    }
}

int main(void)
{
    weft_node *w;
    weft_gaddr counter = WEFT_NULL;
    uint64_t all[WEFT_MAX_NODES], sum;
    check(weft_open(&w, NULL), "open");

    if (weft_rank(w) == 0) { /* the counter is in node 0's pool */
        check(weft_alloc(w, sizeof(uint64_t), &counter), "alloc");
        memset(weft_ptr(w, counter, sizeof(uint64_t)), 0, sizeof(uint64_t));
    }
    check(weft_exchange(w, &counter, 1, all, NULL, WEFT_TIMEOUT_DEFAULT), "exchange");
    counter = all[0];

    for (int i = 0; i < TIMES; i++)
        check(weft_counter_add(w, counter, 1, NULL), "add");
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier"); /* after the barrier, all nodes have added */

    check(weft_counter_read(w, counter, &sum), "read");
    if (weft_rank(w) == 0)
        printf("%u nodes added 1 to the counter %d times each: %llu\n", weft_size(w), TIMES, (unsigned long long)sum);
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier"); /* no node leaves while another node still reads */
    check(weft_close(w), "close");
    return 0;
}
