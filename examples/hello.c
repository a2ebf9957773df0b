/* SPDX-License-Identifier: MIT
 *
 * hello: every node writes a line into the memory of node 0, which prints them.
 *
 * It shows weft_exchange(), by which all nodes get an address in node 0's pool, weft_put_signal(), and weft_wait_until().
 *
 * Run:
 *     weft run -n 4 -- ./hello
 * It prints:
 *     Hello from node 0 of 4
 *     Hello from node 1 of 4
 *     Hello from node 2 of 4
 *     Hello from node 3 of 4
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

#define LINE 64 /* bytes of a greeting */

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "hello: %s: %s\n", what, weft_error());
        exit(1);
    }
}

int main(void)
{
    weft_node *w;
    weft_gaddr board = WEFT_NULL, all[WEFT_MAX_NODES];
    check(weft_open(&w, NULL), "open");
    uint32_t me = weft_rank(w), nodes = weft_size(w);

    if (me == 0) { /* the board is a counter of greetings, followed by a line for each node */
        size_t bytes = (1 + nodes) * LINE;
        check(weft_alloc(w, bytes, &board), "alloc");
        memset(weft_ptr(w, board, bytes), 0, bytes);
    }
    check(weft_exchange(w, &board, 1, all, NULL, WEFT_TIMEOUT_DEFAULT), "exchange");
    board = all[0];

    char line[LINE];
    snprintf(line, sizeof line, "Hello from node %u of %u", me, nodes);
    check(weft_put_signal(w, board + (1 + me) * LINE, line, sizeof line, board, 1, NULL), "put");

    if (me == 0) {
        check(weft_wait_until(w, board, WEFT_EQ, nodes, NULL, WEFT_TIMEOUT_DEFAULT), "wait for the greetings");
        const char *lines = weft_ptr(w, board + LINE, nodes * LINE);
        for (uint32_t i = 0; i < nodes; i++)
            puts(lines + i * LINE);
    }
    check(weft_close(w), "close"); /* also completes the put */
    return 0;
}
