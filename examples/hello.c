/* SPDX-License-Identifier: MIT
 *
 * hello: every node writes a line into the memory of node 0, which prints them.
 *
 * Shown: an address that node 0 sends to all, weft_put_signal(), and weft_wait_until().
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

#define ADDRESS 0  /* our handler's id */
#define LINE    64 /* bytes of a greeting */

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "hello: %s: %s\n", what, weft_error());
        exit(1);
    }
}

/* Node 0 says where its board is: put that into our own box, where main() waits for it. */
static void on_address(weft *w, uint32_t from, const void *header, size_t header_len, const void *payload,
                       size_t payload_len, void *arg)
{
    weft_gaddr board;
    (void)from, (void)payload, (void)payload_len;
    if (header_len != sizeof board)
        return;
    memcpy(&board, header, sizeof board);
    weft_swap(w, *(weft_gaddr *)arg, board, NULL, NULL);
}

int main(void)
{
    weft *w;
    weft_gaddr box, board, arrived;
    check(weft_open(&w, NULL), "open");
    uint32_t me = weft_rank(w), nodes = weft_size(w);

    check(weft_alloc(w, sizeof(uint64_t), &box), "alloc");
    memset(weft_ptr(w, box, sizeof(uint64_t)), 0, sizeof(uint64_t));
    check(weft_handle(w, ADDRESS, on_address, &box), "handle");

    if (me == 0) { /* the board: a count of the greetings, then a line a node */
        size_t bytes = (1 + nodes) * LINE;
        check(weft_alloc(w, bytes, &board), "alloc");
        memset(weft_ptr(w, board, bytes), 0, bytes);
        for (uint32_t i = 0; i < nodes; i++)
            check(weft_send(w, i, ADDRESS, &board, sizeof board, NULL, 0, NULL), "send");
    }
    check(weft_wait_until(w, box, WEFT_NE, 0, &board, WEFT_DEFAULT), "wait for the address");

    char line[LINE];
    snprintf(line, sizeof line, "Hello from node %u of %u", me, nodes);
    arrived = board;
    check(weft_put_signal(w, board + (1 + me) * LINE, line, sizeof line, arrived, 1, NULL), "put");

    if (me == 0) {
        check(weft_wait_until(w, arrived, WEFT_EQ, nodes, NULL, WEFT_DEFAULT), "wait for the greetings");
        const char *lines = weft_ptr(w, board + LINE, nodes * LINE);
        for (uint32_t i = 0; i < nodes; i++)
            puts(lines + i * LINE);
    }
    check(weft_close(w), "close"); /* sends what is not sent yet */
    return 0;
}
