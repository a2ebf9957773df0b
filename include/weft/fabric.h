/* SPDX-License-Identifier: MIT
 *
 * Operations on the memory of any node of the cluster, and messages between nodes.
 *
 * Waiting. Operations are asynchronous: a call starts an operation, and the program waits for its end later. Each call takes an optional
 * weft_op, the "op". The caller owns the op, and keeps it until weft_test() or weft_wait() reports that the operation is complete. An
 * operation without an op (NULL) is complete after the next weft_flush() to its node. Until an operation is complete, its buffers belong to
 * weft.
 *
 * Errors. An operation fails in the call that starts it, or later as the result of its op; the lists of errors below contain both. A call
 * that returns an error has started nothing, unless its comment says otherwise, and its op may be used again at once. A call with an
 * address that does not exist (no such node, space or range) returns -EFAULT before anything happens.
 *
 * Full queues. If too much is queued for the target node, a call waits until there is room, and delivers messages meanwhile. At this node's
 * default deadline, the call returns -ETIMEDOUT. The limits for each target node are:
 * - shm: 1 MiB of messages. Puts, gets and atomics never wait.
 * - rc: 16 KiB of requests for puts and gets (about 100), 256 unanswered atomics and signals, and 1 MiB of messages.
 * - tb, ofi: 1 MiB of messages, and 1 MiB of all other operations.
 * - memory of GPUs: 1024 operations.
 *
 * In a handler, calls do not wait but queue more than these limits. They return -ENOBUFS beyond 64 MiB, over rc beyond 256 atomics and
 * signals, and beyond 1024 operations on memory of GPUs.
 *
 * Order. Puts, with or without a signal, are unordered until a weft_fence() to their node. Messages from one node to another arrive once,
 * in the order in which they were sent.
 *
 * Nodes that are gone. A node that has left or died is gone: operations to it end with -ECONNRESET. Over Thunderbolt (tb) a node can be
 * alive but out of reach, because its cables are unplugged. Operations to it end with -ENETDOWN, and may have happened or not. If such an
 * operation was started without an op, the next weft_flush() that reaches the node returns -ECONNABORTED. When a cable is plugged in again,
 * new operations work.
 *
 * Broken RDMA connections. If a connection breaks while its node is alive, weft repairs it within WEFT_RECONNECT. Operations wait
 * meanwhile. If this fails, the node counts as dead. Messages, signals, and those atomics that a processor carries out still happen once
 * and in order. For other operations that were under way, a repair has these consequences:
 * - A put may write its bytes twice. This matters only if the receiver learns of the put from a later plain put, and then writes to the
 *   same memory. It does not matter if the sender has waited for the put's completion, or if the receiver learns of the put from a
 *   message, from weft_put_signal(), or from an atomic that a processor carries out.
 * - A get may be repeated, and then reads later bytes.
 * - An atomic that a device carries out (weft_link_stats.native_atomics) ends with -ECONNABORTED, and may have happened or not. A request
 *   that a device refuses ends in the same way. If the operation was started without an op, the next weft_flush() to that node returns
 *   -ECONNABORTED.
 *
 * Several RDMA devices. Puts and gets of WEFT_STRIPE bytes or more are spread over all devices that lead to the node. The rules above stay
 * the same.
 */
#ifndef WEFT_FABRIC_H
#define WEFT_FABRIC_H

#include "cmp.h"
#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An operation under way. The fields are private. The struct may be reused when the operation is complete. */
typedef struct weft_op {
    int32_t status; /* accessed atomically: 1 pending, else the result */
    uint32_t node;
    void *next;
} weft_op;

/* Copy `len` bytes to (put) or from (get) the memory of any node. Any length and alignment is allowed. Local memory may be anywhere in the
 * process. Source and destination must not overlap.
 * Errors: -EFAULT no such node, space or range; -ECONNRESET the node is gone; -ENETDOWN no route (tb); -ECONNABORTED a device refused the
 * operation, which may or may not have happened (rc); -ETIMEDOUT no room in the queue before the deadline; -ENOBUFS in a handler, 64 MiB
 * are queued; -ENOMEM no memory to queue it. */
WEFT_API int weft_put(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
WEFT_API int weft_get(weft_node *w, void *dst, weft_gaddr src, size_t len, weft_op *op);

/* Like weft_put() and weft_get(), but returns -EAGAIN if the queue to the node is full. weft_error() does not change then. The call
 * delivers messages before it returns -EAGAIN, so a loop may simply repeat it.
 * Errors: -EAGAIN no room in the queue; -EFAULT no such node, space or range; -ECONNRESET the node is gone; -ENETDOWN no route (tb);
 * -ECONNABORTED a device refused the operation, which may or may not have happened (rc); -ENOBUFS in a handler, 64 MiB are queued; -ENOMEM
 * no memory to queue it. */
WEFT_API int weft_put_nowait(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
WEFT_API int weft_get_nowait(weft_node *w, void *dst, weft_gaddr src, size_t len, weft_op *op);

/* Atomics on an 8-byte word, which must be aligned to 8. They are atomic against each other, whichever node calls them. `*old` (may be
 * NULL) receives the value that the word had before.
 * Errors: -EFAULT no such node, space or range; -EINVAL the word is not aligned; -ECONNRESET the node is gone; -ENETDOWN no route (tb);
 * -ECONNABORTED the link broke, and the device may have done the atomic or not (rc); -ETIMEDOUT no room in the queue before the deadline;
 * -ENOBUFS in a handler, too much is queued; -ENOMEM no memory to queue it. */
WEFT_API int weft_fetch_add(weft_node *w, weft_gaddr word, uint64_t add, uint64_t *old, weft_op *op);
WEFT_API int weft_compare_swap(weft_node *w, weft_gaddr word, uint64_t expected, uint64_t desired, uint64_t *old, weft_op *op);
WEFT_API int weft_swap(weft_node *w, weft_gaddr word, uint64_t value, uint64_t *old, weft_op *op);

/* Put `len` bytes, and then add `add` to the 8-byte word at `signal`, on the same node. When that node sees the new value, the bytes have
 * arrived, too. The node can wait for the word by weft_wait_until(). If several puts use one word, its value does not show which puts have
 * arrived: use one word for each put, or weft_fence(). If `len` is 0, the call only adds to the word, and ignores `dst`.
 *
 * If the call itself fails, nothing has been added to the word. Over rc, however, the bytes may still be written: do not change `src`
 * before the next weft_flush().
 * Errors: -EFAULT no such node, space or range; -EINVAL the word is not aligned, or is not at the node of `dst`; -ECONNRESET the node is
 * gone; -ENETDOWN no route (tb); -ETIMEDOUT no room in the queue before the deadline; -ENOBUFS in a handler, too much is queued; -ENOMEM
 * no memory to queue it. */
WEFT_API int weft_put_signal(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal, uint64_t add, weft_op *op);

/* Limits of messages. */
#define WEFT_HANDLERS    128u  /* ids 0 to 127 are the program's */
#define WEFT_HEADER_MAX  64u   /* bytes */
#define WEFT_PAYLOAD_MAX 3840u /* bytes */

/* Send a message to the handler `id` of `node`, which may be this node. Header and payload may be reused when the call returns (`op` NULL)
 * or when the op is complete. The op completes when the message was sent, not when the handler has run.
 * Errors: -EINVAL no such id; -EMSGSIZE header or payload is too large; -EFAULT no such node; -ECONNRESET the node is gone; -ENETDOWN no
 * route (tb); -ETIMEDOUT no room in the queue before the deadline; -ENOBUFS in a handler, 64 MiB are queued; -ENOMEM no memory to queue
 * it. */
WEFT_API int weft_send(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
                       size_t payload_len, weft_op *op);

/* Like weft_send(), but returns -EAGAIN if the queue to that node is full, as weft_put_nowait() does.
 * Errors: -EAGAIN no room in the queue; -EINVAL no such id; -EMSGSIZE header or payload is too large; -EFAULT no such node; -ECONNRESET
 * the node is gone; -ENETDOWN no route (tb); -ENOBUFS in a handler, 64 MiB are queued; -ENOMEM no memory to queue it. */
WEFT_API int weft_send_nowait(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
                              size_t payload_len, weft_op *op);

/* A handler: a function of the program that runs when a message arrives. Handlers run on threads that wait in weft, or on a thread of weft.
 * Only one handler of a node runs at a time. `header` and `payload` are copies that are valid during the call. A handler may start
 * operations and send messages. It must not wait: calls that would wait return -EDEADLK. */
typedef void (*weft_handler_fn)(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                                void *arg);

/* Install the handler for `id`. NULL removes it. Install handlers right after weft_open(). A message without a handler waits for its
 * handler until the node's default deadline. Later messages from the same node wait, too. After the deadline, weft drops the message and
 * writes a line to the log.
 * Errors: -EINVAL no such id; -EDEADLK called from a handler. */
WEFT_API int weft_handle(weft_node *w, uint32_t id, weft_handler_fn fn, void *arg);

/* Wait until all earlier operations of this node to `node` are complete and visible there. Messages have then arrived, but their handlers
 * may not have run yet.
 * Errors: -EFAULT no such node; -ECONNRESET the node is gone; -ECONNABORTED the link broke, and an operation without an op may or may not
 * have happened (rc, tb); -ETIMEDOUT not complete before the deadline; -EDEADLK the call would wait in a handler. If an operation on a
 * GPU's memory without an op has failed, the call returns that operation's error, such as -EFAULT. */
WEFT_API int weft_flush(weft_node *w, uint32_t node, int64_t timeout_ns);

/* Order operations: operations before the fence become visible at `node` before operations after it. The call does not wait, except for
 * operations on that node's GPU memory (weft/gpu.h).
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

/* Deliver messages that have arrived, and run their handlers. Returns the number of handled messages and other events. In a handler the
 * call does nothing, and returns 0. A program need not make this call, because a thread of weft does the same, but calls in a loop deliver
 * messages sooner. Errors: none. */
WEFT_API int weft_progress(weft_node *w);

/* Wait until an unsigned comparison of the 8-byte word at `word`, in this node's own pool, with `value` is true. `cmp` selects the
 * comparison, for example WEFT_GE: greater or equal. `*seen` (may be NULL) receives the last value of the word, also after a time-out. A
 * change by weft_put_signal(), by weft_counter_add(), or by an atomic that a processor carries out ends the wait at once. A change by a
 * plain put, or by an atomic that this node's device carries out (weft_link_stats.native_atomics), may be noticed up to 10 ms late.
 * weft/types.h explains how long the call waits with WEFT_TIMEOUT_DEFAULT.
 * Errors: -EFAULT no such word; -EINVAL the word is at another node or not aligned, or `cmp` is not a weft_cmp; -ETIMEDOUT the condition
 * was not true before the deadline; -ECONNRESET a node died during the wait, perhaps the one that would have changed the word, or no other
 * node is left; -EDEADLK the call would wait in a handler. */
WEFT_API int weft_wait_until(weft_node *w, weft_gaddr word, weft_cmp cmp, uint64_t value, uint64_t *seen, int64_t timeout_ns);

/* How this node reaches another node (the peer), and counts since weft_open(). */
typedef struct weft_link_stats {
    char transport[16];   /* "shm", "rc", "tb", "ofi" */
    uint64_t staged_puts; /* pieces of puts that needed an additional copy, because their bytes were outside this node's pool. Small puts do
                             not count: their bytes are inside the request */
    uint64_t staged_gets; /* pieces of gets that needed such a copy */
    uint64_t native_atomics; /* atomics that the peer's device does, atomically with the peer's processor. They do not wake waiters */
    uint64_t breaks; /* rc: queue pairs that broke; ofi: operations that the provider has refused or that have failed; they are repeated */
    uint64_t connects; /* rc: queue pairs that were created for the peer; 0: no queue pair was needed yet. ofi: how often the peer has
                          replaced its address */
    char devices[112]; /* RDMA devices of this node that lead to the peer: "rdma_en2, rdma_en3"; "": none. ofi: libfabric's provider and
                          the peer's address: "tcp 10.0.0.2:41234" */
    uint32_t via;      /* the next node on the route to the peer; the peer itself if the route is direct; UINT32_MAX: no route now */
    uint32_t cables;   /* tb: cables that lead to the peer; 0: only a route through other nodes, or no route */
    uint64_t frames_sent, frames_retransmitted; /* tb, ofi: frames sent, and how many of them were sent again */
    uint64_t frames_received, frames_damaged;   /* tb, ofi: frames received, and how many of them were damaged. Damaged frames are dropped,
                                                   and the peer sends them again */
    uint64_t bulk_sent_bytes, bulk_received_bytes; /* tb: bytes of large puts and gets that were transferred without a copy */
    uint64_t bulk_rejected;                        /* tb: pieces that arrived damaged or out of order, and were sent again */
    uint64_t bulk_repairs;                         /* tb: how often a queue pair for large data was repaired after a loss */
    uint32_t rails;                                /* rc: devices in use towards the peer now */
    uint64_t rail_breaks;                          /* rc: how often the connection over a device other than the first has broken */
    uint64_t rail_bytes[4];                        /* rc: bytes of striped puts and gets (WEFT_STRIPE), for each device */
    char arena_way[16]; /* how this node reaches the memory of the peer's GPUs: "own", "mapped", "rdma", "staged"; "": not used yet */
    char arena_why[96]; /* the reason for arena_way */
    /* rc, tb, ofi; 0 for shm. Operations of the peer are counted at the peer. */
    uint64_t sent_bytes;    /* bytes of this node's puts and messages to the peer */
    uint64_t fetched_bytes; /* bytes of this node's gets from the peer */
} weft_link_stats;

/* Fill `*out`. `bytes` is sizeof *out; fields that this library does not know are set to 0.
 * Errors: -EFAULT no such node; -ECONNRESET the node is gone. */
WEFT_API int weft_link_stat(weft_node *w, uint32_t node, weft_link_stats *out, size_t bytes);

/* The following calls start an operation and wait for its end, up to the node's default deadline. After -ETIMEDOUT the operation may still
 * happen. Then the program may reuse at once a buffer of up to WEFT_BLOCKING_BYTES that is outside the pool. Do not touch other buffers
 * until weft_flush() has returned or the node is gone. In a handler these calls return -EDEADLK and start nothing. Over shm they work in a
 * handler, too, because they do not wait. */
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
