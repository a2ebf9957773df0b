/* SPDX-License-Identifier: MIT
 *
 * farm: node 0 submits 1000 tasks to a queue, all nodes work on them, and node 0 adds up the results. A task counts the primes among 10000
 * numbers, so the sum is the number of primes below ten million.
 *
 * It shows the work queue, and that the result is right even if a node is killed: other nodes do the tasks that the killed node had
 * claimed, and no task counts twice.
 *
 * Run:
 *     weft run -n 4 -- ./farm
 * It prints:
 *     1000 tasks done: 664579 primes below 10000000
 *
 * The same with a node that kills itself while it has claimed tasks. You may also use `kill -9` on any node except node 0. The exit status
 * is then 137, the status of the killed node. `weft run` and the survivors report the death on standard error.
 * Run:
 *     weft run -n 4 -- ./farm 2
 * It prints:
 *     1000 tasks done: 664579 primes below 10000000
 * Exit status:
 *     137
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

#define TASKS   1000
#define NUMBERS 10000 /* numbers of a task */
#define ROOT    3163  /* the square of this is larger than all numbers */

static bool must_die;

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "farm: %s: %s\n", what, weft_error());
        exit(1);
    }
}

/* A sieve: in [first, first + NUMBERS), the numbers that are not marked as multiples are prime. */
static int32_t count_primes(uint64_t first)
{
    static bool struck[NUMBERS];
    int32_t count = 0;
    memset(struck, 0, sizeof struck);
    for (uint64_t d = 2; d < ROOT; d++) {
        uint64_t multiple = (first + d - 1) / d * d;
        for (multiple = multiple < 2 * d ? 2 * d : multiple; multiple < first + NUMBERS; multiple += d)
            struck[multiple - first] = true;
    }
    for (uint64_t i = 0; i < NUMBERS; i++)
        count += first + i >= 2 && !struck[i];
    return count;
}

/* Claim some tasks and do them. Returns the number of tasks, or an error. */
static int work(weft_queue *q, int64_t timeout_ns)
{
    weft_lease claims[4];
    int n = weft_claim(q, claims, 4, timeout_ns);
    for (int i = 0; i < n; i++) {
        weft_result result = {.status = count_primes(claims[i].task.arg[0])};
        if (must_die)
            raise(SIGKILL); /* this task is done but not completed */
        check(weft_complete(q, &claims[i], &result, 1, NULL), "complete");
    }
    return n;
}

/* Node 0: submit the tasks, then work like the other nodes until all results have arrived. */
static void lead(weft_queue *q)
{
    static weft_task tasks[TASKS];
    static weft_done done[TASKS];
    uint64_t sum = 0;
    for (uint64_t i = 0; i < TASKS; i++)
        tasks[i].arg[0] = i * NUMBERS;
    for (int sent = 0; sent < TASKS;) {
        int n = weft_submit(q, tasks + sent, (uint32_t)(TASKS - sent), NULL, WEFT_TIMEOUT_DEFAULT);
        check(n, "submit");
        sent += n;
    }
    for (int got = 0; got < TASKS;) {
        int worked = work(q, 0); /* -ETIMEDOUT: no task can be claimed now */
        int n = weft_reap(q, done, TASKS, worked > 0 ? 0 : 10 * WEFT_MS);
        if (n != -ETIMEDOUT)
            check(n, "reap");
        for (int i = 0; i < n; i++)
            sum += (uint64_t)done[i].status;
        got += n > 0 ? n : 0;
    }
    printf("%d tasks done: %llu primes below %d\n", TASKS, (unsigned long long)sum, TASKS * NUMBERS);
    check(weft_queue_shutdown(q), "shutdown");
}

int main(int argc, char **argv)
{
    weft_node *w;
    weft_queue *q;
    check(weft_open(&w, NULL), "open");
    check(weft_queue_open(w, "primes", NULL, &q), "open the queue");
    must_die = argc > 1 && weft_rank(w) > 0 && weft_rank(w) == (uint32_t)atoi(argv[1]);

    if (weft_rank(w) == 0) {
        lead(q);
    } else {
        int n;
        do {
            n = work(q, WEFT_TIMEOUT_DEFAULT);
        } while (n > 0 || (n == -ETIMEDOUT && weft_alive(w, 0)));
        if (n != -ESHUTDOWN)
            check(n, "claim");
    }
    check(weft_queue_close(q), "close the queue");
    check(weft_close(w), "close");
    return 0;
}
