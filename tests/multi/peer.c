/* SPDX-License-Identifier: MIT
 *
 * One node of a cluster, whose rank and addresses come from the environment, for tests that start each node on a machine of its own.
 *
 * Usage: multi_peer TIMES END. It does all operations of peer_checks.h with the other nodes, TIMES times, and then ends by END: "leave":
 * all nodes close. Otherwise the last node dies, and the others wait until they know: "kill" (SIGKILL), "stop" (SIGSTOP), or "cut": another
 * program ends it after it has printed "cut here".
 */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "peer_checks.h"

int main(int argc, char **argv)
{
    weft_node *w;
    if (argc != 3) {
        fprintf(stderr, "usage: multi_peer TIMES END\n");
        return 2;
    }
    OK(weft_open(&w, NULL));
    uint32_t n = weft_size(w), last = n - 1;
    CHECK(n > 1 && n <= NODES_MAX);
    check_everything(w, (uint32_t)atoi(argv[1]));
    printf("node %u of %u: all is well\n", weft_rank(w), n);
    fflush(stdout);
    /* The death of the last node would fail the barrier of nodes that are still in it. So each node reports when it has left the
       barrier. */
    weft_gaddr left = on_node(symmetric_alloc(w, 64), last);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (strcmp(argv[2], "leave") != 0) {
        if (weft_rank(w) != last)
            OK(weft_fetch_add(w, left, 1, NULL, NULL));
        if (weft_rank(w) == last) {
            OK(weft_wait_until(w, left, WEFT_EQ, n - 1, NULL, WEFT_TIMEOUT_DEFAULT));
            if (strcmp(argv[2], "kill") == 0)
                kill(getpid(), SIGKILL);
            if (strcmp(argv[2], "stop") == 0)
                kill(getpid(), SIGSTOP);
            printf("cut here\n");
            fflush(stdout);
            sleep(15);
            _exit(0);
        }
        int64_t start = now_ns(), end = start + patience_ns(60);
        while (weft_alive(w, last)) {
            CHECK(now_ns() < end);
            usleep(1000);
        }
        printf("node %u: node %u is dead after %lld ms\n", weft_rank(w), last, (long long)((now_ns() - start) / 1000000));
        uint64_t old;
        CHECK(weft_fetch_add_blocking(w, weft_gaddr_make(last, 0, 1 << 20), 1, &old) == -ECONNRESET);
        int rc;
        while ((rc = weft_barrier(w, WEFT_TIMEOUT_DEFAULT)) == -ECONNRESET)
            ;
        OK(rc);
    }
    OK(weft_close(w));
    return 0;
}
