/* SPDX-License-Identifier: MIT
 *
 * The header of weft 0.1, without its comments: a program that was built with it must run with a later library.
 */
#ifndef WEFT_FABRIC_H
#define WEFT_FABRIC_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_op {
    int32_t status;
    uint32_t node;
    void *next;
} weft_op;

WEFT_API int weft_put(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
WEFT_API int weft_get(weft_node *w, void *dst, weft_gaddr src, size_t len, weft_op *op);

WEFT_API int weft_put_nowait(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
WEFT_API int weft_get_nowait(weft_node *w, void *dst, weft_gaddr src, size_t len, weft_op *op);

WEFT_API int weft_fetch_add(weft_node *w, weft_gaddr word, uint64_t add, uint64_t *old, weft_op *op);
WEFT_API int weft_compare_swap(weft_node *w, weft_gaddr word, uint64_t expected, uint64_t desired, uint64_t *old, weft_op *op);
WEFT_API int weft_swap(weft_node *w, weft_gaddr word, uint64_t value, uint64_t *old, weft_op *op);

WEFT_API int weft_put_signal(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal, uint64_t add, weft_op *op);

#define WEFT_HANDLERS    128u
#define WEFT_HEADER_MAX  64u
#define WEFT_PAYLOAD_MAX 3840u
WEFT_API int weft_send(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
                       size_t payload_len, weft_op *op);

WEFT_API int weft_send_nowait(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
                              size_t payload_len, weft_op *op);

typedef void (*weft_handler_fn)(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                                void *arg);

WEFT_API int weft_handle(weft_node *w, uint32_t id, weft_handler_fn fn, void *arg);

WEFT_API int weft_flush(weft_node *w, uint32_t node, int64_t timeout_ns);
WEFT_API int weft_fence(weft_node *w, uint32_t node);

WEFT_API int weft_test(weft_node *w, weft_op *op);

WEFT_API int weft_wait(weft_node *w, weft_op *op, int64_t timeout_ns);

WEFT_API int weft_progress(weft_node *w);

typedef enum weft_cmp { WEFT_EQ, WEFT_NE, WEFT_LT, WEFT_LE, WEFT_GT, WEFT_GE } weft_cmp;
WEFT_API int weft_wait_until(weft_node *w, weft_gaddr word, weft_cmp cmp, uint64_t value, uint64_t *seen, int64_t timeout_ns);

typedef struct weft_link_stats {
    char transport[16];
    uint64_t staged_puts;
    uint64_t staged_gets;
    uint64_t native_atomics;
    uint64_t breaks;
    uint64_t connects;
    char devices[112];
    uint32_t via;
    uint32_t cables;
    uint64_t frames_sent, frames_retransmitted;
    uint64_t frames_received, frames_damaged;
    uint64_t bulk_sent_bytes, bulk_received_bytes;
    uint64_t bulk_rejected, bulk_repairs;
    uint32_t rails;
    uint64_t rail_breaks;
    uint64_t rail_bytes[4];
} weft_link_stats;

WEFT_API int weft_link_stat(weft_node *w, uint32_t node, weft_link_stats *out, size_t bytes);

#define WEFT_BLOCKING_BYTES 256u
WEFT_API int weft_put_blocking(weft_node *w, weft_gaddr dst, const void *src, size_t len);
WEFT_API int weft_get_blocking(weft_node *w, void *dst, weft_gaddr src, size_t len);
WEFT_API int weft_fetch_add_blocking(weft_node *w, weft_gaddr word, uint64_t add, uint64_t *old);
WEFT_API int weft_compare_swap_blocking(weft_node *w, weft_gaddr word, uint64_t expected, uint64_t desired, uint64_t *old);
WEFT_API int weft_swap_blocking(weft_node *w, weft_gaddr word, uint64_t value, uint64_t *old);

#ifdef __cplusplus
}
#endif
#endif
