/* SPDX-License-Identifier: MIT
 *
 * spawn: node 1 asks node 0 to run a program, and prints the program's output. The input of the program is in the memory of node 0; node 1
 * looks up a name to find the address of this memory.
 *
 * Shown: weft_spawn(), weft_process_read(), weft_process_wait(); weft_name_publish() and weft_name_wait(). A node offers services if
 * WEFT_SERVE is set, usually by the launcher.
 *
 * Run:
 *     weft run -n 2 -- ./spawn
 * It prints:
 *     node 1: node 0 says:
 *     APPLE
 *     PEAR
 *     FIG
 *     node 1: it ended with status 3
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "spawn: %s: %s\n", what, weft_error());
        exit(1);
    }
}

static void offer(weft_node *w)
{
    static const char fruit[] = "apple\npear\nfig\n";
    weft_gaddr at;
    check(weft_alloc(w, sizeof fruit, &at), "alloc");
    memcpy(weft_ptr(w, at, sizeof fruit), fruit, sizeof fruit);
    check(weft_name_publish(w, 0, "fruit", at, sizeof fruit - 1, WEFT_TIMEOUT_DEFAULT), "publish");
}

static void ask(weft_node *w)
{
    weft_name fruit;
    weft_process *p;
    weft_exit end;
    char text[256];
    size_t n;
    check(weft_name_wait(w, 0, "fruit", &fruit, WEFT_TIMEOUT_DEFAULT), "name");
    const char *argv[] = {"sh", "-c", "tr a-z A-Z; exit 3", NULL};
    weft_spawn_spec spec = {
        .bytes = sizeof spec,
        .program = "sh",
        .argv = argv,
        .flags = WEFT_SPAWN_STDIN_DATA | WEFT_SPAWN_STDOUT,
        .stdin_data = fruit.addr,
        .stdin_bytes = fruit.bytes,
    };
    printf("node 1: node 0 says:\n");
    check(weft_spawn(w, 0, &spec, &p, WEFT_TIMEOUT_DEFAULT), "spawn");
    do {
        check(weft_process_read(p, 1, text, sizeof text, &n, WEFT_TIMEOUT_DEFAULT), "read");
        fwrite(text, 1, n, stdout);
    } while (n);
    check(weft_process_wait(p, &end, sizeof end, WEFT_TIMEOUT_DEFAULT), "wait");
    printf("node 1: it ended with status %d\n", (int)end.status);
    check(weft_process_close(p), "close");
}

int main(void)
{
    weft_node *w;
    const char *rank = getenv("WEFT_RANK");
    if (rank && strcmp(rank, "0") == 0)
        setenv("WEFT_SERVE", "process,name", 1);
    check(weft_open(&w, NULL), "open");
    if (weft_rank(w) == 0)
        offer(w);
    else if (weft_rank(w) == 1)
        ask(w);
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier"); /* node 0 offers its services until the other nodes no longer need them */
    check(weft_close(w), "close");
    return 0;
}
