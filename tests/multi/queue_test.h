/* SPDX-License-Identifier: MIT
 *
 * Helpers of the queue's tests: tasks that carry a number in every field, work whose result depends on it, and reaping, which checks
 * numbers and results, and that no task comes twice.
 */
#ifndef WEFT_QUEUE_TEST_H
#define WEFT_QUEUE_TEST_H

#include <string.h>

#include "base/base.h"
#include "cluster_test.h"
#include "queue/queue.h"

static inline weft_queue *open_queue(weft_node *w, uint32_t slots, int64_t lease_ns, bool submit_only, uint32_t force)
{
    weft_queue *q;
    weft_queue_config c = {.bytes = sizeof c, .slots = slots, .lease_ns = lease_ns, .submit_only = submit_only};
    CHECK(weft_queue_open(w, "work", &c, &q) == 0);
    CHECK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT) == 0);
    /* After the barrier every HELLO is delivered or about to be. Waits for the answers, so that all shards are known. */
    for (uint32_t i = 0; i < weft_size(w); i++)
        while (!queue_view_of(q, i)) {
            weft_progress(w);
            base_relax();
        }
    queue_set_force(q, force);
    CHECK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT) == 0);
    return q;
}

static inline weft_task numbered(uint64_t n)
{
    weft_task t = {.kind = 7, .tag = n, .payload_len = (uint32_t)n, .payload = n * 3};
    for (uint32_t i = 0; i < 5; i++)
        t.arg[i] = n * 1000 + i;
    return t;
}

static inline void check_numbered(const weft_task *t)
{
    weft_task want = numbered(t->tag);
    CHECK(memcmp(t, &want, sizeof want) == 0);
}

/* Claims and completes what is ready, at most `max` tasks. Results are made from the task. */
static inline int work(weft_queue *q, uint32_t max, int64_t timeout_ns)
{
    weft_lease claims[64];
    weft_result results[64];
    int n = weft_claim(q, claims, max > 64 ? 64 : max, timeout_ns);
    for (int i = 0; i < n; i++) {
        check_numbered(&claims[i].task);
        results[i] = (weft_result){
            .status = (int32_t)(claims[i].task.tag % 100) - 50, .result = claims[i].task.tag * 7, .result_len = claims[i].task.tag + 1};
    }
    if (n > 0)
        CHECK(weft_complete(q, claims, results, (uint32_t)n, NULL) >= 0);
    return n;
}

/* Reaps into seen[tag]; each task must come once. Returns how many came. */
static inline uint32_t reap(weft_queue *q, uint8_t *seen, uint64_t count, int64_t timeout_ns)
{
    weft_done done[64];
    int n = weft_reap(q, done, 64, timeout_ns);
    for (int i = 0; i < n; i++) {
        CHECK(done[i].tag < count);
        CHECK(seen[done[i].tag]++ == 0);
        CHECK(done[i].status == (int32_t)(done[i].tag % 100) - 50);
        CHECK(done[i].result == done[i].tag * 7 && done[i].result_len == done[i].tag + 1);
    }
    return n > 0 ? (uint32_t)n : 0;
}

#endif
