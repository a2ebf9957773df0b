/* SPDX-License-Identifier: MIT
 *
 * Empty tasks through weft's queue: submit, claim, complete, reap. `bytes` of a test is the size of a batch, the iterations are tasks;
 * values are tasks a second. bench/run starts one process for each node.
 *
 *   local  one node, one thread: all four steps, one after the other
 *   pair   node 0 submits and reaps, node 1 claims and completes; WINDOW batches are outstanding
 */
#include <errno.h>

#include "spec.h"
#include "weft.h"

enum { BATCH_MAX = 1024, WINDOW = 16 };

static weft_task tasks[BATCH_MAX];
static weft_lease claims[BATCH_MAX];
static weft_result results[BATCH_MAX];
static weft_done dones[BATCH_MAX];

static int failed(const char *what, int rc)
{
    fprintf(stderr, "weft: %s: %s (%s)\n", what, weft_error(), strerror(-rc));
    return -1;
}

static int submit(weft_queue *q, uint32_t count)
{
    for (uint32_t sent = 0; sent < count;) {
        int n = weft_submit(q, tasks, count - sent, NULL, WEFT_TIMEOUT_DEFAULT);
        if (n < 0)
            return failed("submit", n);
        sent += (uint32_t)n;
    }
    return 0;
}

static int local(weft_queue *q, uint64_t count, uint32_t batch)
{
    for (uint64_t i = 0; i < count; i += batch) {
        if (submit(q, batch))
            return -1;
        for (uint32_t back = 0; back < batch;) {
            int n = weft_claim(q, claims, batch, WEFT_TIMEOUT_DEFAULT);
            if (n < 0)
                return failed("claim", n);
            int rc = weft_complete(q, claims, results, (uint32_t)n, NULL);
            if (rc != n)
                return failed("complete", rc);
            back += (uint32_t)n;
        }
        for (uint32_t back = 0; back < batch;) {
            int n = weft_reap(q, dones, batch, WEFT_TIMEOUT_DEFAULT);
            if (n < 0)
                return failed("reap", n);
            back += (uint32_t)n;
        }
    }
    return 0;
}

static int submitter(weft_queue *q, uint64_t count, uint32_t batch)
{
    uint64_t sent = 0, back = 0;
    while (back < count) {
        if (sent < count && sent - back + batch <= (uint64_t)WINDOW * batch) {
            if (submit(q, batch))
                return -1;
            sent += batch;
            continue;
        }
        int n = weft_reap(q, dones, batch, WEFT_TIMEOUT_DEFAULT);
        if (n < 0)
            return failed("reap", n);
        back += (uint64_t)n;
    }
    return 0;
}

static int worker(weft_queue *q, uint32_t batch)
{
    for (;;) {
        int n = weft_claim(q, claims, batch, WEFT_TIMEOUT_DEFAULT);
        if (n == -ESHUTDOWN)
            return 0;
        if (n < 0)
            return failed("claim", n);
        int rc = weft_complete(q, claims, results, (uint32_t)n, NULL);
        if (rc < 0)
            return failed("complete", rc);
    }
}

int main(int argc, char **argv)
{
    struct spec spec;
    weft_node *w;
    weft_queue *q;
    if (argc != 2 || spec_parse(&spec, argv[1]) || spec.bytes < 1 || spec.bytes > BATCH_MAX ||
        (strcmp(spec.test, "local") && strcmp(spec.test, "pair"))) {
        fprintf(stderr, "usage: %s local|pair:BATCH:TASKS:WARMUP\n", argv[0]);
        return 2;
    }
    if (weft_open(&w, NULL)) {
        fprintf(stderr, "weft: open: %s\n", weft_error());
        return 1;
    }
    bool pair = *spec.test == 'p';
    if (weft_size(w) != (pair ? 2u : 1u)) {
        fprintf(stderr, "weft: %s needs %d nodes, here are %u\n", spec.test, pair ? 2 : 1, weft_size(w));
        weft_close(w);
        return 2;
    }
    /* The submitter serves no shard, so its tasks are in the worker's shard. */
    weft_queue_config config = {.bytes = sizeof config, .submit_only = pair && weft_rank(w) == 0};
    int rc = weft_queue_open(w, "bench", &config, &q);
    if (!rc)
        rc = weft_barrier(w, WEFT_TIMEOUT_DEFAULT);
    if (rc) {
        failed("opening the queue", rc);
        weft_close(w);
        return 1;
    }
    uint32_t batch = (uint32_t)spec.bytes;
    uint64_t count = spec.iterations / batch * batch, warmup = spec.warmup / batch * batch;
    if (weft_rank(w) == 1) {
        rc = worker(q, batch);
    } else {
        rc = pair ? submitter(q, warmup, batch) : local(q, warmup, batch);
        uint64_t start = spec_now_ns();
        if (!rc)
            rc = pair ? submitter(q, count, batch) : local(q, count, batch);
        uint64_t elapsed = spec_now_ns() - start;
        if (!rc)
            spec_value(&spec, (double)count * 1e9 / (double)elapsed);
        weft_queue_shutdown(q);
    }
    weft_queue_close(q);
    weft_close(w);
    return rc ? 1 : 0;
}
