/* SPDX-License-Identifier: MIT
 *
 * The fabric: operations on the memory of any node of the cluster, and messages to it.
 *
 * All operations are asynchronous. Each takes an optional weft_op, which the caller owns and keeps alive until
 * it is complete (weft_test(), weft_wait()). Without one the operation is complete after the next weft_flush()
 * to its node. Source and destination memory belong to weft until then.
 *
 * Order: puts are unordered until a weft_fence() to that node; messages to one node arrive in order, once.
 * Every weft_gaddr is checked before anything happens: -EFAULT for a node, space or range that does not exist.
 * An operation to a node that is gone ends with -ECONNRESET.
 */
#ifndef WEFT_FABRIC_H
#define WEFT_FABRIC_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One operation. The fields are private; treat it as opaque. May be used again once complete. */
typedef struct weft_op {
    int32_t status; /* accessed atomically: 1 pending, else the result */
    uint32_t node;
    void *next;
} weft_op;

/* Copy `len` bytes to / from remote memory. Any length, any alignment; local memory may be outside the pool. */
WEFT_API int weft_put(weft *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
WEFT_API int weft_get(weft *w, void *dst, weft_gaddr src, size_t len, weft_op *op);

/* 64-bit atomics on an 8-byte aligned word (-EINVAL else), atomic against every other weft atomic on that word,
 * the owner's included. The word's former value is stored to `*old` (may be NULL). */
WEFT_API int weft_fetch_add(weft *w, weft_gaddr word, uint64_t add, uint64_t *old, weft_op *op);
WEFT_API int weft_compare_swap(weft *w, weft_gaddr word, uint64_t expected, uint64_t desired, uint64_t *old,
                               weft_op *op);
WEFT_API int weft_swap(weft *w, weft_gaddr word, uint64_t value, uint64_t *old, weft_op *op);

/* Put, then add to the 8-byte word `signal` at the same node: whoever sees the new word sees the bytes. Wakes
 * weft_wait_until() there. `len` may be 0. */
WEFT_API int weft_put_signal(weft *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal,
                             uint64_t add, weft_op *op);

/* Messages: run the handler `id` at `node` with a small header and a payload. Both are copied before the call
 * returns or, with an op, before it completes. The op completes when the message is on its way. When the node takes
 * no messages the call waits for room, up to the default deadline; in a handler it does not, and the message is kept
 * (-ENOBUFS past 64 MiB). */
#define WEFT_HANDLERS     128u  /* ids 0 to 127 are the program's */
#define WEFT_HEADER_MAX   64u   /* bytes */
#define WEFT_PAYLOAD_MAX  3840u /* bytes */
WEFT_API int weft_send(weft *w, uint32_t node, uint32_t id, const void *header, size_t header_len,
                       const void *payload, size_t payload_len, weft_op *op);

/* A handler runs on whichever thread makes progress, one at a time a node. `header` and `payload` are private
 * copies, valid during the call. It may start operations and send; waiting in it is refused (-EDEADLK). */
typedef void (*weft_handler_fn)(weft *w, uint32_t from, const void *header, size_t header_len,
                                const void *payload, size_t payload_len, void *arg);

/* Install (or, with NULL, remove) a handler; not from inside one (-EDEADLK). A message for an id without one waits up
 * to the node's deadline for it to be installed, and with it all the program's messages behind it from the same node,
 * also when that node has gone meanwhile; then it is dropped, and that is logged. Install right after weft_open(). */
WEFT_API int weft_handle(weft *w, uint32_t id, weft_handler_fn fn, void *arg);

/* flush: all earlier operations of this node to `node` are complete and visible there. fence: earlier ones are
 * seen before later ones. */
WEFT_API int weft_flush(weft *w, uint32_t node, int64_t timeout_ns);
WEFT_API int weft_fence(weft *w, uint32_t node);

/* -EINPROGRESS while pending, else the operation's result. */
WEFT_API int weft_test(weft *w, weft_op *op);
/* Wait for one operation; its result, or -ETIMEDOUT (it is then still pending). */
WEFT_API int weft_wait(weft *w, weft_op *op, int64_t timeout_ns);
/* Make progress: deliver messages, run handlers. Returns how many events were handled. */
WEFT_API int weft_progress(weft *w);

/* Wait until the 8-byte word at `word`, in this node's own pool, satisfies `cmp value`. Woken by weft_put_signal
 * and the atomics, from any node; a plain put is noticed only at the next look (at most 10 ms later). */
typedef enum weft_cmp { WEFT_EQ, WEFT_NE, WEFT_LT, WEFT_LE, WEFT_GT, WEFT_GE } weft_cmp;
WEFT_API int weft_wait_until(weft *w, weft_gaddr word, weft_cmp cmp, uint64_t value, uint64_t *seen,
                             int64_t timeout_ns);

/* Start and wait, with the default deadline. */
static inline int weft_put_now(weft *w, weft_gaddr dst, const void *src, size_t len)
{
    weft_op op;
    int rc = weft_put(w, dst, src, len, &op);
    return rc ? rc : weft_wait(w, &op, WEFT_DEFAULT);
}

static inline int weft_get_now(weft *w, void *dst, weft_gaddr src, size_t len)
{
    weft_op op;
    int rc = weft_get(w, dst, src, len, &op);
    return rc ? rc : weft_wait(w, &op, WEFT_DEFAULT);
}

static inline int weft_fetch_add_now(weft *w, weft_gaddr word, uint64_t add, uint64_t *old)
{
    weft_op op;
    int rc = weft_fetch_add(w, word, add, old, &op);
    return rc ? rc : weft_wait(w, &op, WEFT_DEFAULT);
}

static inline int weft_compare_swap_now(weft *w, weft_gaddr word, uint64_t expected, uint64_t desired,
                                        uint64_t *old)
{
    weft_op op;
    int rc = weft_compare_swap(w, word, expected, desired, old, &op);
    return rc ? rc : weft_wait(w, &op, WEFT_DEFAULT);
}

static inline int weft_swap_now(weft *w, weft_gaddr word, uint64_t value, uint64_t *old)
{
    weft_op op;
    int rc = weft_swap(w, word, value, old, &op);
    return rc ? rc : weft_wait(w, &op, WEFT_DEFAULT);
}

#ifdef __cplusplus
}
#endif
#endif
