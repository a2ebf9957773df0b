/* SPDX-License-Identifier: MIT
 *
 * The fabric: operations on the memory of any node of the cluster, and messages between nodes.
 *
 * Completion. Operations are asynchronous. Each takes an optional weft_op, which the caller owns and keeps alive until the operation is
 * complete: weft_test() and weft_wait() tell. Without an op (NULL) the operation is complete after the next weft_flush() to its node.
 * Until then the source and destination buffers belong to weft.
 *
 * Errors. An operation fails either in the call that starts it or later, as the result of its op; `Errors:` below lists both. A call
 * that returns an error has started nothing, unless its comment says otherwise: the op is not pending and may be used again at once.
 * An address that does not exist (no such node, space or range) is -EFAULT before anything happens.
 *
 * Backpressure. If too much is queued for the target node, a call waits for room, up to the node's default deadline; then it returns
 * -ETIMEDOUT. While it waits it delivers messages. The limits are, for each node:
 * - shm: 1 MiB of messages. Puts, gets and atomics never wait.
 * - rc: 16 KiB of requests for puts and gets (about 100), 256 unanswered atomics and signals, and 1 MiB of messages.
 * - tb: 1 MiB of messages, and 1 MiB of the rest.
 * - memory of GPUs: 1024 operations; in a handler -ENOBUFS past that.
 * In a handler no call waits: past 64 MiB (and past 256 atomics and signals over rc) it returns -ENOBUFS.
 *
 * Order. Puts are unordered until a weft_fence() to their node. Messages from one node to another arrive once, in the order they were sent.
 *
 * Failure. A node that has left or died is gone: operations to it end with -ECONNRESET. Over Thunderbolt a node may be alive and have no
 * route: then they end with -ENETDOWN and may or may not have happened. Of those without an op, the next weft_flush() to that node that
 * finds a route returns -ECONNABORTED. Later operations work again when there is a route.
 *
 * Broken RDMA links. When a link breaks and its node is alive, weft builds the link anew for up to WEFT_RECONNECT. Operations wait for it.
 * When that time is over, the node counts as dead. Messages, signals and atomics still happen once and in order. What was under way then:
 * - A put is repeated: until it is complete, its bytes may be written more than once. This can be seen by a program that learns of a put
 *   from a later put, and then writes to the same memory itself: the put may overwrite that. A program that learns of it from a message,
 *   from weft_put_signal(), from an atomic that the other node's processor does, or by waiting for completion, sees no repetition.
 * - A get is repeated, and may read newer bytes.
 * - An atomic done by a device (native_atomics below) ends with -ECONNABORTED: it may or may not have happened. So does a request that
 *   a device refused. Without an op, the next weft_flush() to that node returns this.
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
 * Errors: -EFAULT no such node, space or range; -ECONNRESET the node is gone; -ENETDOWN no route (tb); -ECONNABORTED a device refused it,
 * and it may or may not have happened (rc); -ETIMEDOUT no room in the queue before the deadline; -ENOBUFS in a handler, 64 MiB are queued;
 * -ENOMEM no memory to queue it. */
WEFT_API int weft_put(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
WEFT_API int weft_get(weft_node *w, void *dst, weft_gaddr src, size_t len, weft_op *op);

/* The same, but never wait for room: -EAGAIN, and weft_error() is unchanged. Such a call delivers messages first, so a loop that
 * only tries again makes progress.
 * Errors: -EAGAIN no room in the queue; -EFAULT no such node, space or range; -ECONNRESET the node is gone; -ENETDOWN no route (tb);
 * -ECONNABORTED a device refused it, and it may or may not have happened (rc); -ENOBUFS in a handler, 64 MiB are queued; -ENOMEM no memory
 * to queue it. */
WEFT_API int weft_put_nowait(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
WEFT_API int weft_get_nowait(weft_node *w, void *dst, weft_gaddr src, size_t len, weft_op *op);

/* 64-bit atomics on a word aligned to 8 bytes. They are atomic against every other weft atomic on that word, from any node, its owner
 * included. `*old` (may be NULL) receives the word's former value.
 * Errors: -EFAULT no such node, space or range; -EINVAL the word is not aligned; -ECONNRESET the node is gone; -ENETDOWN no route (tb);
 * -ECONNABORTED the link broke, and the device may have done it or not (rc); -ETIMEDOUT no room in the queue before the deadline;
 * -ENOBUFS in a handler, too much is queued; -ENOMEM no memory to queue it. */
WEFT_API int weft_fetch_add(weft_node *w, weft_gaddr word, uint64_t add, uint64_t *old, weft_op *op);
WEFT_API int weft_compare_swap(weft_node *w, weft_gaddr word, uint64_t expected, uint64_t desired, uint64_t *old, weft_op *op);
WEFT_API int weft_swap(weft_node *w, weft_gaddr word, uint64_t value, uint64_t *old, weft_op *op);

/* Put, then add to the 8-byte word `signal` at the same node. A reader that sees the new word sees the bytes, too. Wakes weft_wait_until()
 * there. With `len` 0 only the signal is sent, and `dst` is ignored. After an error the signal is not added, but over rc the bytes may
 * still be put: do not change `src` before the next weft_flush().
 * Errors: -EFAULT no such node, space or range; -EINVAL the word is not aligned, or is not at the node of `dst`; -ECONNRESET the node is
 * gone; -ENETDOWN no route (tb); -ETIMEDOUT no room in the queue before the deadline; -ENOBUFS in a handler, too much is queued;
 * -ENOMEM no memory to queue it. */
WEFT_API int weft_put_signal(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal, uint64_t add, weft_op *op);

/* Limits of messages. */
#define WEFT_HANDLERS    128u  /* ids 0 to 127 are the program's */
#define WEFT_HEADER_MAX  64u   /* bytes */
#define WEFT_PAYLOAD_MAX 3840u /* bytes */

/* Send a message: run the handler `id` at `node`, which may be this one, with a small header and a payload. Both are copied before the call
 * returns or, with an op, before the op completes. The op completes when the message is on its way, not when it is handled.
 * Errors: -EINVAL no such id; -EMSGSIZE header or payload is too large; -EFAULT no such node; -ECONNRESET the node is gone; -ENETDOWN no
 * route (tb); -ETIMEDOUT no room in the queue before the deadline; -ENOBUFS in a handler, 64 MiB are queued; -ENOMEM no memory to queue
 * it. */
WEFT_API int weft_send(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
                       size_t payload_len, weft_op *op);

/* The same, but never wait for room, as weft_put_nowait().
 * Errors: -EAGAIN no room in the queue; -EINVAL no such id; -EMSGSIZE header or payload is too large; -EFAULT no such node;
 * -ECONNRESET the node is gone; -ENETDOWN no route (tb); -ENOBUFS in a handler, 64 MiB are queued; -ENOMEM no memory to queue it. */
WEFT_API int weft_send_nowait(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
                              size_t payload_len, weft_op *op);

/* A handler runs on whichever thread makes progress, one at a time in a node. `header` and `payload` are private copies, valid during the
 * call. A handler may start operations and send messages. It must not wait: calls that would wait return -EDEADLK. */
typedef void (*weft_handler_fn)(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                                void *arg);

/* Install the handler for `id`; NULL removes it. Install handlers right after weft_open(): a message without a handler waits for one up to
 * the node's deadline, even if its sender is gone by then, and holds up all the program's messages behind it from the same node. Then it
 * is dropped, and the log says so.
 * Errors: -EINVAL no such id; -EDEADLK called from a handler. */
WEFT_API int weft_handle(weft_node *w, uint32_t id, weft_handler_fn fn, void *arg);

/* Wait until all earlier operations of this node to `node` are complete and visible there. Messages have then arrived, but their handlers
 * may not have run yet.
 * Errors: -EFAULT no such node; -ECONNRESET the node is gone; -ECONNABORTED the link broke, and an operation without an op may or may not
 * have happened (rc, tb); -ETIMEDOUT not complete before the deadline; -EDEADLK it would wait in a handler. Of an operation on a GPU's
 * memory without an op: its own error, such as -EFAULT, no such address. */
WEFT_API int weft_flush(weft_node *w, uint32_t node, int64_t timeout_ns);

/* Order operations to `node`: the earlier ones are visible there before the later ones. Waits only for operations on GPUs' memory
 * (weft/gpu.h), if there are any under way to that node.
 * Errors: -EFAULT no such node; -ECONNRESET the node is gone; -ETIMEDOUT operations on GPUs' memory were not complete before the deadline;
 * -EDEADLK it would wait for these in a handler. */
WEFT_API int weft_fence(weft_node *w, uint32_t node);

/* The result of an operation, or -EINPROGRESS while it is pending.
 * Errors: -EINPROGRESS it is pending; -ECONNRESET, -ENETDOWN, -ECONNABORTED the operation ended so, as listed at the call that started
 * it. */
WEFT_API int weft_test(weft_node *w, weft_op *op);

/* Wait for an operation, and return its result. After -ETIMEDOUT it is still pending.
 * Errors: -ETIMEDOUT not complete before the deadline; -EDEADLK it would wait in a handler; -ECONNRESET, -ENETDOWN, -ECONNABORTED the
 * operation ended so, as listed at the call that started it. */
WEFT_API int weft_wait(weft_node *w, weft_op *op, int64_t timeout_ns);

/* Make progress: deliver messages, run handlers. Returns how many events were handled; 0 in a handler. Never needed, since the node has a
 * thread for it; a program that polls gets its messages sooner.
 * Errors: none. */
WEFT_API int weft_progress(weft_node *w);

typedef enum weft_cmp { WEFT_EQ, WEFT_NE, WEFT_LT, WEFT_LE, WEFT_GT, WEFT_GE } weft_cmp;

/* Wait until the 8-byte word at `word`, in this node's own pool, satisfies `cmp value` (unsigned). `*seen` (may be NULL) receives the
 * value seen last. weft_put_signal(), weft_counter_add() and atomics from any node end the wait at once. Two changes are noticed up to
 * 10 ms late: a plain put, and an atomic that this node's device does (native_atomics of weft_link_stats). How long the wait lasts with
 * WEFT_TIMEOUT_DEFAULT is said in weft/types.h.
 * Errors: -EFAULT no such word; -EINVAL the word is another node's or not aligned, or `cmp` is none; -ETIMEDOUT the word did not change so
 * before the deadline; -ECONNRESET a node died that may have been the one to change it, or no other is left; -EDEADLK it
 * would wait in a handler. */
WEFT_API int weft_wait_until(weft_node *w, weft_gaddr word, weft_cmp cmp, uint64_t value, uint64_t *seen, int64_t timeout_ns);

/* How this node reaches another, and counts since weft_open(). */
typedef struct weft_link_stats {
    char transport[16];      /* "shm", "rc", "tb", "ofi" */
    uint64_t staged_puts;    /* pieces that were copied once more, because they were outside this node's pool; */
    uint64_t staged_gets;    /* a small put travels inside its request and does not count */
    uint64_t native_atomics; /* done by the other node's device, atomically with its processor; waiters there are not woken */
    uint64_t breaks;         /* rc: queue pairs that broke */
    uint64_t connects;       /* rc: queue pairs made for this peer; 0: none was needed yet */
    char devices[112];       /* RDMA devices of this node that lead there: "rdma_en2, rdma_en3"; "": none */
    uint32_t via;            /* the next node on the route; `node` itself when it is direct; UINT32_MAX when there is no route now */
    uint32_t cables;         /* tb: cables that lead there; 0: only a route through other nodes, or none */
    uint64_t frames_sent, frames_retransmitted;    /* tb: control frames, and how many were sent again */
    uint64_t frames_received, frames_damaged;      /* tb: damaged ones are dropped, and sent again by the other node */
    uint64_t bulk_sent_bytes, bulk_received_bytes; /* tb: bytes of large puts and gets that went without a copy */
    uint64_t bulk_rejected, bulk_repairs;          /* tb: pieces that arrived damaged or out of order, and were sent again; lanes
                                                      repaired after a loss */
    uint32_t rails;                                /* rc: devices in use towards that node now */
    uint64_t rail_breaks;                          /* rc: how often a device other than the first was lost */
    uint64_t rail_bytes[4];                        /* rc: bytes of striped puts and gets (WEFT_STRIPE), for each device */
    char arena_way[16];                            /* to memory of that node's GPUs: "own", "mapped", "rdma", "staged"; "": not used yet */
    char arena_why[96];                            /* why so */
} weft_link_stats;

/* Fill `*out`. `bytes` is sizeof *out; fields that this library does not know are set to 0.
 * Errors: -EFAULT no such node; -ECONNRESET the node is gone. */
WEFT_API int weft_link_stat(weft_node *w, uint32_t node, weft_link_stats *out, size_t bytes);

/* Start an operation and wait for it, up to the node's default deadline. On timeout the operation may still complete. Buffers of up to
 * WEFT_BLOCKING_BYTES outside the pool may be reused at once; leave others alone until weft_flush() returns or the node is gone. In a
 * handler such a call returns -EDEADLK and starts nothing; over shm it works there too, because it does not wait. */
#define WEFT_BLOCKING_BYTES 256u

/* weft_put() and weft_get(), waited for.
 * Errors: -EFAULT no such node, space or range; -ECONNRESET the node is gone; -ENETDOWN no route (tb); -ECONNABORTED a device refused it,
 * and it may or may not have happened (rc); -ETIMEDOUT not complete before the deadline; -EDEADLK called from a handler; -ENOMEM no memory
 * for it. */
WEFT_API int weft_put_blocking(weft_node *w, weft_gaddr dst, const void *src, size_t len);
WEFT_API int weft_get_blocking(weft_node *w, void *dst, weft_gaddr src, size_t len);

/* The atomics, waited for. After an error `*old` is left as it was.
 * Errors: -EFAULT no such node, space or range; -EINVAL the word is not aligned; -ECONNRESET the node is gone; -ENETDOWN no route (tb);
 * -ECONNABORTED the link broke, and the device may have done it or not (rc); -ETIMEDOUT not complete before the deadline;
 * -EDEADLK called from a handler; -ENOMEM no memory for it. */
WEFT_API int weft_fetch_add_blocking(weft_node *w, weft_gaddr word, uint64_t add, uint64_t *old);
WEFT_API int weft_compare_swap_blocking(weft_node *w, weft_gaddr word, uint64_t expected, uint64_t desired, uint64_t *old);
WEFT_API int weft_swap_blocking(weft_node *w, weft_gaddr word, uint64_t value, uint64_t *old);

#ifdef __cplusplus
}
#endif
#endif
