/* SPDX-License-Identifier: MIT
 *
 * The fabric: operations on the memory of any node of the cluster, and messages between nodes.
 *
 * Completion. Operations are asynchronous. Each takes an optional weft_op, the "op". The caller owns the op and keeps it alive until the
 * operation is complete, as weft_test() or weft_wait() reports. Without an op (NULL) the operation is complete after the next weft_flush()
 * to its node. Until then the source and destination buffers belong to weft.
 *
 * Errors. An operation fails either in the call that starts it or later, as the result of its op; the lists of errors below contain both. A
 * call that returns an error has started nothing, unless its comment says otherwise: the op is not pending and may be used again at once. A
 * call with an address that does not exist (no such node, space or range) returns -EFAULT before anything happens.
 *
 * Backpressure. If too much is queued for the target node, a call waits for room, up to the default deadline of this node; then it returns
 * -ETIMEDOUT. While a call waits, it delivers messages. The limits for each target node are:
 * - shm: 1 MiB of messages. Puts, gets and atomics never wait.
 * - rc: 16 KiB of requests for puts and gets (about 100), 256 unanswered atomics and signals, and 1 MiB of messages.
 * - tb, ofi: 1 MiB of messages, and 1 MiB of all other operations.
 * - memory of GPUs: 1024 operations.
 * In a handler no call waits. A call in a handler queues more than these limits allow, and returns -ENOBUFS only if 64 MiB are queued, or
 * over rc 256 atomics and signals, or 1024 operations on memory of GPUs.
 *
 * Order. Puts, also those with a signal, are unordered until a weft_fence() to their node. Messages from one node to another arrive once,
 * in the order they were sent.
 *
 * Failure. A node that has left or died is gone: operations to it end with -ECONNRESET. Over Thunderbolt, a node may be alive while no
 * route leads to it, because cables are unplugged. Operations to this node end with -ENETDOWN: they may or may not have happened. If such
 * an operation had no op, the next weft_flush() to the node that finds a route returns -ECONNABORTED. When there is a route again, new
 * operations work.
 *
 * Broken RDMA links. When a link breaks while its node is alive, weft tries for WEFT_RECONNECT to connect again. Operations wait meanwhile.
 * If weft has not connected by then, the node counts as dead. Messages, signals, and atomics that a processor does still happen once and
 * in order. For the other operations that were under way:
 * - A put is repeated: until it is complete, its bytes may be written more than once. A program notices the repetition if it learns of a
 *   put from a later put, and then writes to the same memory itself: the repeated put may overwrite what the program wrote. A program that
 *   learns of the put from a message, from weft_put_signal(), from an atomic that the other node's processor does, or by waiting for
 *   completion, sees no repetition.
 * - A get is repeated, and may read newer bytes.
 * - An atomic that a device does (weft_link_stats.native_atomics) ends with -ECONNABORTED: it may or may not have happened. A request that
 *   a device refused ends so, too. If such an operation had no op, the next weft_flush() to that node returns -ECONNABORTED.
 *
 * Several RDMA devices. Puts and gets of WEFT_STRIPE bytes or more are spread over all devices that lead to the node. Order, completion
 * and repetition are the same as above.
 */
#ifndef WEFT_FABRIC_H
#define WEFT_FABRIC_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One operation. The fields are private. May be used again once the operation is complete. */
typedef struct weft_op {
    int32_t status; /* accessed atomically: 1 pending, else the result */
    uint32_t node;
    void *next;
} weft_op;

/* Copy `len` bytes to (put) or from (get) remote memory. Any length and alignment. Local memory may be outside the pool.
 * Errors: -EFAULT no such node, space or range; -ECONNRESET the node is gone; -ENETDOWN no route (tb); -ECONNABORTED a device refused the
 * operation, which may or may not have happened (rc); -ETIMEDOUT no room in the queue before the deadline; -ENOBUFS in a handler, 64 MiB
 * are queued; -ENOMEM no memory to queue it. */
WEFT_API int weft_put(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
WEFT_API int weft_get(weft_node *w, void *dst, weft_gaddr src, size_t len, weft_op *op);

/* The same, but without waiting for room: if there is none, the call returns -EAGAIN and leaves weft_error() unchanged. Such a call
 * delivers messages first, so a loop that only repeats the call makes progress.
 * Errors: -EAGAIN no room in the queue; -EFAULT no such node, space or range; -ECONNRESET the node is gone; -ENETDOWN no route (tb);
 * -ECONNABORTED a device refused the operation, which may or may not have happened (rc); -ENOBUFS in a handler, 64 MiB are queued; -ENOMEM
 * no memory to queue it. */
WEFT_API int weft_put_nowait(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
WEFT_API int weft_get_nowait(weft_node *w, void *dst, weft_gaddr src, size_t len, weft_op *op);

/* 64-bit atomics on a word aligned to 8 bytes. They are atomic against every other weft atomic on that word, from any node, its owner
 * included. `*old` (may be NULL) receives the word's former value.
 * Errors: -EFAULT no such node, space or range; -EINVAL the word is not aligned; -ECONNRESET the node is gone; -ENETDOWN no route (tb);
 * -ECONNABORTED the link broke, and the device may have done the atomic or not (rc); -ETIMEDOUT no room in the queue before the deadline;
 * -ENOBUFS in a handler, too much is queued; -ENOMEM no memory to queue it. */
WEFT_API int weft_fetch_add(weft_node *w, weft_gaddr word, uint64_t add, uint64_t *old, weft_op *op);
WEFT_API int weft_compare_swap(weft_node *w, weft_gaddr word, uint64_t expected, uint64_t desired, uint64_t *old, weft_op *op);
WEFT_API int weft_swap(weft_node *w, weft_gaddr word, uint64_t value, uint64_t *old, weft_op *op);

/* Put, then add `add` to the 8-byte word at `signal`, which is at the same node. A reader that sees the new word sees the bytes, too. A
 * weft_wait_until() for the word at that node wakes. If several such puts add to the same word, its value does not say which of them have
 * arrived: use a word for each, or weft_fence(). With `len` 0 the call only adds to the signal, and ignores `dst`. After an error
 * nothing is added to the signal, but over rc the bytes may still be put: do not change `src` before the next weft_flush().
 * Errors: -EFAULT no such node, space or range; -EINVAL the word is not aligned, or is not at the node of `dst`; -ECONNRESET the node is
 * gone; -ENETDOWN no route (tb); -ETIMEDOUT no room in the queue before the deadline; -ENOBUFS in a handler, too much is queued;
 * -ENOMEM no memory to queue it. */
WEFT_API int weft_put_signal(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal, uint64_t add, weft_op *op);

/* Limits of messages. */
#define WEFT_HANDLERS    128u  /* ids 0 to 127 are the program's */
#define WEFT_HEADER_MAX  64u   /* bytes */
#define WEFT_PAYLOAD_MAX 3840u /* bytes */

/* Send a message: run the handler `id` at `node`, which may be this node, with a small header and a payload. weft copies header and payload
 * before the call returns or, with an op, before the op completes. The op completes when the message is on its way, not when the handler
 * has run.
 * Errors: -EINVAL no such id; -EMSGSIZE header or payload is too large; -EFAULT no such node; -ECONNRESET the node is gone; -ENETDOWN no
 * route (tb); -ETIMEDOUT no room in the queue before the deadline; -ENOBUFS in a handler, 64 MiB are queued; -ENOMEM no memory to queue
 * it. */
WEFT_API int weft_send(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
                       size_t payload_len, weft_op *op);

/* The same, but without waiting for room, as weft_put_nowait().
 * Errors: -EAGAIN no room in the queue; -EINVAL no such id; -EMSGSIZE header or payload is too large; -EFAULT no such node;
 * -ECONNRESET the node is gone; -ENETDOWN no route (tb); -ENOBUFS in a handler, 64 MiB are queued; -ENOMEM no memory to queue it. */
WEFT_API int weft_send_nowait(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
                              size_t payload_len, weft_op *op);

/* A handler: a function of the program that runs when a message arrives. It runs on any thread that makes progress; a node runs one
 * handler at a time. `header` and `payload` are private copies, valid during the call. A handler may start operations and send messages. It
 * must not wait: calls that would wait return -EDEADLK. */
typedef void (*weft_handler_fn)(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                                void *arg);

/* Install the handler for `id`. NULL removes the handler. Install handlers right after weft_open(). A message that has no handler waits
 * for one, up to the node's deadline, even if its sender is gone by then. All later messages of the program from the same node wait behind
 * it. At the deadline weft drops the message and writes a line to the log.
 * Errors: -EINVAL no such id; -EDEADLK called from a handler. */
WEFT_API int weft_handle(weft_node *w, uint32_t id, weft_handler_fn fn, void *arg);

/* Wait until all earlier operations of this node to `node` are complete and visible there. Messages have then arrived, but their handlers
 * may not have run yet.
 * Errors: -EFAULT no such node; -ECONNRESET the node is gone; -ECONNABORTED the link broke, and an operation without an op may or may not
 * have happened (rc, tb); -ETIMEDOUT not complete before the deadline; -EDEADLK the call would wait in a handler. If an operation on a
 * GPU's memory without an op has failed, the call returns that operation's error, such as -EFAULT. */
WEFT_API int weft_flush(weft_node *w, uint32_t node, int64_t timeout_ns);

/* Order operations to `node`: operations before the fence are visible there before those after it. Waits only if operations on that node's
 * GPU memory (weft/gpu.h) are under way, until they are complete.
 * Errors: -EFAULT no such node; -ECONNRESET the node is gone; -ETIMEDOUT operations on GPU memory were not complete before the deadline;
 * -EDEADLK the call would wait for such operations in a handler. */
WEFT_API int weft_fence(weft_node *w, uint32_t node);

/* The result of an operation, or -EINPROGRESS while it is pending.
 * Errors: -EINPROGRESS the operation is pending; -ECONNRESET, -ENETDOWN, -ECONNABORTED the operation ended with this error, which the
 * comment of the call that started it explains. */
WEFT_API int weft_test(weft_node *w, weft_op *op);

/* Wait for an operation, and return its result. After -ETIMEDOUT the operation is still pending.
 * Errors: -ETIMEDOUT not complete before the deadline; -EDEADLK the call would wait in a handler; -ECONNRESET, -ENETDOWN, -ECONNABORTED
 * the operation ended with this error, which the comment of the call that started it explains. */
WEFT_API int weft_wait(weft_node *w, weft_op *op, int64_t timeout_ns);

/* Make progress: deliver messages and run handlers. Returns how many events were handled; in a handler 0. A program need not call this,
 * because a thread of the node makes progress. A program that polls with it gets its messages sooner.
 * Errors: none. */
WEFT_API int weft_progress(weft_node *w);

typedef enum weft_cmp { WEFT_EQ, WEFT_NE, WEFT_LT, WEFT_LE, WEFT_GT, WEFT_GE } weft_cmp;

/* Wait until the 8-byte word at `word`, in this node's own pool, satisfies `cmp value` (unsigned). `*seen` (may be NULL) receives the
 * value seen last. weft_put_signal(), weft_counter_add() and atomics from any node end the wait at once. The wait may notice two kinds of
 * changes up to 10 ms late: a plain put, and an atomic that this node's device does (weft_link_stats.native_atomics). weft/types.h
 * explains how long the wait lasts with WEFT_TIMEOUT_DEFAULT.
 * Errors: -EFAULT no such word; -EINVAL the word is at another node or not aligned, or `cmp` is not a weft_cmp; -ETIMEDOUT the condition
 * was not true before the deadline; -ECONNRESET a node died that might have changed the word, or no other node is left; -EDEADLK the call
 * would wait in a handler. */
WEFT_API int weft_wait_until(weft_node *w, weft_gaddr word, weft_cmp cmp, uint64_t value, uint64_t *seen, int64_t timeout_ns);

/* How this node reaches another node (the peer), and counts since weft_open(). */
typedef struct weft_link_stats {
    char transport[16];      /* "shm", "rc", "tb", "ofi" */
    uint64_t staged_puts;    /* pieces of puts that needed one more copy, because they were outside this node's pool. A small put travels
                                inside its request, and does not count */
    uint64_t staged_gets;    /* the same for gets */
    uint64_t native_atomics; /* atomics that the peer's device does, atomically with the peer's processor. They do not wake waiters there */
    uint64_t breaks;         /* rc: queue pairs that broke */
    uint64_t connects;       /* rc: queue pairs that were created for the peer; 0: none was needed yet */
    char devices[112];       /* RDMA devices of this node that lead to the peer: "rdma_en2, rdma_en3"; "": none */
    uint32_t via;            /* the next node on the route to the peer; the peer itself if the route is direct; UINT32_MAX: no route now */
    uint32_t cables;         /* tb: cables that lead to the peer; 0: only a route through other nodes, or no route */
    uint64_t frames_sent, frames_retransmitted;    /* tb: control frames, and how many of them were sent again */
    uint64_t frames_received, frames_damaged;      /* tb: frames. Damaged ones are dropped, and the peer sends them again */
    uint64_t bulk_sent_bytes, bulk_received_bytes; /* tb: bytes of large puts and gets that were transferred without a copy */
    uint64_t bulk_rejected;                        /* tb: pieces that arrived damaged or out of order, and were sent again */
    uint64_t bulk_repairs;                         /* tb: how often a lane was repaired after a loss */
    uint32_t rails;                                /* rc: devices in use towards the peer now */
    uint64_t rail_breaks;                          /* rc: how often the connection over a device other than the first has broken */
    uint64_t rail_bytes[4];                        /* rc: bytes of striped puts and gets (WEFT_STRIPE), for each device */
    char arena_way[16]; /* how this node reaches the memory of the peer's GPUs: "own", "mapped", "rdma", "staged"; "": not used yet */
    char arena_why[96]; /* the reason for arena_way */
} weft_link_stats;

/* Fill `*out`. `bytes` is sizeof *out; fields that this library does not know are set to 0.
 * Errors: -EFAULT no such node; -ECONNRESET the node is gone. */
WEFT_API int weft_link_stat(weft_node *w, uint32_t node, weft_link_stats *out, size_t bytes);

/* The following calls start an operation and wait for it, up to the node's default deadline. After a time-out the operation may still
 * complete. A buffer of up to WEFT_BLOCKING_BYTES outside the pool may then be reused at once; do not touch any other buffer until
 * weft_flush() returns or the node is gone. In a handler such a call returns -EDEADLK and starts nothing, except over shm, where it does
 * not wait. */
#define WEFT_BLOCKING_BYTES 256u

/* weft_put() and weft_get() that wait for completion.
 * Errors: -EFAULT no such node, space or range; -ECONNRESET the node is gone; -ENETDOWN no route (tb); -ECONNABORTED a device refused the
 * operation, which may or may not have happened (rc); -ETIMEDOUT not complete before the deadline; -EDEADLK called from a handler; -ENOMEM
 * no memory for it. */
WEFT_API int weft_put_blocking(weft_node *w, weft_gaddr dst, const void *src, size_t len);
WEFT_API int weft_get_blocking(weft_node *w, void *dst, weft_gaddr src, size_t len);

/* The atomics that wait for completion. After an error `*old` is unchanged.
 * Errors: -EFAULT no such node, space or range; -EINVAL the word is not aligned; -ECONNRESET the node is gone; -ENETDOWN no route (tb);
 * -ECONNABORTED the link broke, and the device may have done the atomic or not (rc); -ETIMEDOUT not complete before the deadline;
 * -EDEADLK called from a handler; -ENOMEM no memory for it. */
WEFT_API int weft_fetch_add_blocking(weft_node *w, weft_gaddr word, uint64_t add, uint64_t *old);
WEFT_API int weft_compare_swap_blocking(weft_node *w, weft_gaddr word, uint64_t expected, uint64_t desired, uint64_t *old);
WEFT_API int weft_swap_blocking(weft_node *w, weft_gaddr word, uint64_t value, uint64_t *old);

#ifdef __cplusplus
}
#endif
#endif
