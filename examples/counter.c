/* SPDX-License-Identifier: MIT
 *
 * counter: all nodes add to one word at the same time, and nothing is lost.
 *
 * Shown: counters (weft_counter_add(), weft_counter_read()) and the barrier.
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

#define ADDRESS 0 /* our handler's id */
#define TIMES   50000

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "counter: %s: %s\n", what, weft_error());
        exit(1);
    }
}

static void on_address(weft *w, uint32_t from, const void *header, size_t header_len, const void *payload,
                       size_t payload_len, void *arg)
{
    weft_gaddr counter;
    (void)from, (void)payload, (void)payload_len;
    if (header_len != sizeof counter)
        return;
    memcpy(&counter, header, sizeof counter);
    weft_swap(w, *(weft_gaddr *)arg, counter, NULL, NULL);
}

int main(void)
{
    weft *w;
    weft_gaddr box, counter;
    uint64_t sum;
    check(weft_open(&w, NULL), "open");

    check(weft_alloc(w, sizeof(uint64_t), &box), "alloc");
    memset(weft_ptr(w, box, sizeof(uint64_t)), 0, sizeof(uint64_t));
    check(weft_handle(w, ADDRESS, on_address, &box), "handle");

    if (weft_rank(w) == 0) { /* the counter is here; the others are told where */
        check(weft_alloc(w, sizeof(uint64_t), &counter), "alloc");
        memset(weft_ptr(w, counter, sizeof(uint64_t)), 0, sizeof(uint64_t));
        for (uint32_t i = 0; i < weft_size(w); i++)
            check(weft_send(w, i, ADDRESS, &counter, sizeof counter, NULL, 0, NULL), "send");
    }
    check(weft_wait_until(w, box, WEFT_NE, 0, &counter, WEFT_DEFAULT), "wait for the address");

    for (int i = 0; i < TIMES; i++)
        check(weft_counter_add(w, counter, 1, NULL), "add");
    check(weft_barrier(w, WEFT_DEFAULT), "barrier"); /* everybody has added */

    check(weft_counter_read(w, counter, &sum), "read");
    if (weft_rank(w) == 0)
        printf("%u nodes added 1 to the counter %d times each: %llu\n", weft_size(w), TIMES, (unsigned long long)sum);
    check(weft_barrier(w, WEFT_DEFAULT), "barrier"); /* nobody leaves while others still read */
    check(weft_close(w), "close");
    return 0;
}
