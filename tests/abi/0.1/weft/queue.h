/* SPDX-License-Identifier: MIT
 *
 * The header of weft 0.1, without its comments: a program that was built with it must run with a later library.
 */
#ifndef WEFT_QUEUE_H
#define WEFT_QUEUE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_queue weft_queue;

typedef struct weft_queue_config {
    size_t bytes;
    uint32_t slots;
    int64_t lease_ns;
    bool submit_only;
} weft_queue_config;

typedef struct weft_task {
    uint32_t kind;
    uint32_t payload_len;
    weft_gaddr payload;
    uint64_t arg[5];
    uint64_t tag;
} weft_task;

typedef struct weft_lease {
    weft_task task;
    uint32_t submitter;
    uint32_t attempt;
    uint64_t private_[4];
} weft_lease;

typedef struct weft_done {
    uint64_t tag;
    uint64_t id;
    int32_t status;
    uint32_t worker;
    weft_gaddr result;
    uint64_t result_len;
} weft_done;

WEFT_API int weft_queue_open(weft_node *w, const char *name, const weft_queue_config *config, weft_queue **out);

WEFT_API int weft_queue_close(weft_queue *q);

WEFT_API int weft_submit(weft_queue *q, const weft_task *tasks, uint32_t count, uint64_t *ids, int64_t timeout_ns);

WEFT_API int weft_claim(weft_queue *q, weft_lease *out, uint32_t max, int64_t timeout_ns);

typedef struct weft_result {
    int32_t status;
    uint32_t reserved;
    weft_gaddr result;
    uint64_t result_len;
} weft_result;
WEFT_API int weft_complete(weft_queue *q, const weft_lease *claims, const weft_result *results, uint32_t count, bool *accepted);

WEFT_API int weft_renew(weft_queue *q, weft_lease *claim);

WEFT_API int weft_release(weft_queue *q, const weft_lease *claim);

WEFT_API int weft_reap(weft_queue *q, weft_done *out, uint32_t max, int64_t timeout_ns);

WEFT_API int weft_drain(weft_queue *q, int64_t timeout_ns);

WEFT_API int weft_queue_shutdown(weft_queue *q);

typedef struct weft_queue_stats {
    uint64_t submitted;
    uint64_t completed;
    uint64_t outstanding;
    uint64_t claimed;
    uint64_t stolen;
    uint64_t refused;
    uint64_t requeued;
    uint64_t resubmitted;
    uint64_t duplicates;
    uint64_t ready;
} weft_queue_stats;

WEFT_API int weft_queue_stat(weft_queue *q, weft_queue_stats *out, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
