/* SPDX-License-Identifier: MIT
 *
 * A program of version 0.1: compiled with the headers in this folder, run with the library of today. It uses every struct that later
 * versions may add fields to, and each room once.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <weft.h>

#define MUST(condition)                                                                        \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "old_program.c:%d: %s: %s\n", __LINE__, #condition, weft_error()); \
            return 1;                                                                          \
        }                                                                                      \
    } while (0)

static int count_bytes(const weft_span *in, const char *arg, weft_out *out)
{
    (void)arg;
    return weft_out_write(out, &in->len, sizeof in->len);
}

static const weft_kernel counter = {.bytes = sizeof counter, .name = "old-counter", .help = "bytes of the input", .run = count_bytes};

static void on_message(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                       void *arg)
{
    (void)w, (void)header, (void)payload;
    atomic_fetch_add((atomic_int *)arg, from == 0 && header_len == 4 && payload_len == 0); // maybe in the progress thread
}

int main(void)
{
    weft_node *w;
    weft_queue *q;
    weft_gaddr at;
    atomic_int heard = 0;
    weft_config config = {.bytes = sizeof config, .size = 1, .pool_bytes = 8u << 20};
    MUST(weft_open(&w, &config) == 0);
    MUST(weft_rank(w) == 0 && weft_size(w) == 1 && weft_alive_count(w) == 1);

    weft_pool_stats pool;
    MUST(weft_pool_stat(w, &pool, sizeof pool) == 0 && pool.reserved_bytes == 8u << 20);
    weft_link_stats link;
    MUST(weft_link_stat(w, 0, &link, sizeof link) == 0 && strcmp(link.transport, "shm") == 0 && link.via == 0);

    uint64_t word = 7, back = 0, old;
    weft_op op;
    MUST(weft_alloc(w, 64, &at) == 0 && weft_gaddr_node(at) == 0);
    MUST(weft_put(w, at, &word, sizeof word, &op) == 0 && weft_wait(w, &op, WEFT_TIMEOUT_DEFAULT) == 0);
    MUST(weft_get_blocking(w, &back, at, sizeof back) == 0 && back == 7);
    MUST(weft_fetch_add_blocking(w, at, 1, &old) == 0 && old == 7);
    MUST(weft_handle(w, 1, on_message, &heard) == 0 && weft_send(w, 0, 1, "word", 4, NULL, 0, NULL) == 0);
    MUST(weft_flush(w, 0, WEFT_SECOND) == 0);
    while (!heard)
        weft_progress(w);

    uint64_t all;
    bool gave, inherited;
    MUST(weft_exchange(w, &word, 1, &all, &gave, WEFT_TIMEOUT_DEFAULT) == 0 && all == 7 && gave);
    MUST(weft_lock(w, at + 8, 0, &inherited) == 0 && weft_unlock(w, at + 8) == 0);

    weft_queue_config queue = {.bytes = sizeof queue, .slots = 8};
    MUST(weft_queue_open(w, "work", &queue, &q) == 0);
    weft_task task = {.kind = 1, .tag = 2};
    weft_lease lease;
    weft_result result = {.status = 3};
    weft_done done;
    MUST(weft_submit(q, &task, 1, NULL, 0) == 1 && weft_claim(q, &lease, 1, 0) == 1 && lease.task.tag == 2);
    MUST(weft_complete(q, &lease, &result, 1, NULL) == 1);
    MUST(weft_reap(q, &done, 1, WEFT_SECOND) == 1 && done.tag == 2 && done.status == 3);
    weft_queue_stats stats;
    MUST(weft_queue_stat(q, &stats, sizeof stats) == 0 && stats.completed == 1);

    MUST(weft_kernel_register(&counter) == 0 && weft_kernel_find("old-counter") == &counter);
    MUST(weft_close(w) == 0);
    return 0;
}
