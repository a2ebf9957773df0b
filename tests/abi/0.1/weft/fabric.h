/* SPDX-License-Identifier: MIT
 *
 * The fabric: operations on the memory of any node of the cluster, and messages to it.
 *
 * All operations are asynchronous. Each takes an optional weft_op, which the caller owns and keeps alive until
 * it is complete (weft_test(), weft_wait()). Without one the operation is complete after the next weft_flush()
 * to its node. Source and destination memory belong to weft until then.
 *
 * A call that returns an error has started nothing: its op is not pending, and may be used again at once.
 *
 * A call waits in one case: when so much is kept for that node already that it has to make room first. That is 16 KiB of requests for puts
 * and gets (some 100), and 1 MiB for messages and the rest, over rc and tb; over shm only messages wait. It waits up to the default
 * deadline, then it is -ETIMEDOUT, and delivers messages meanwhile. weft_put_nowait(), weft_get_nowait() and weft_send_nowait() never
 * wait: -EAGAIN.
 *
 * Order: puts are unordered until a weft_fence() to that node; messages to one node arrive in order, once.
 * Every weft_gaddr is checked before anything happens: -EFAULT for a node, space or range that does not exist.
 * An operation to a node that is gone ends with -ECONNRESET; one over Thunderbolt to a node that lives, and to which no cable
 * leads now, with -ENETDOWN: it may or may not have happened, and later ones work again when there is a way.
 *
 * An RDMA link that breaks while its node lives is built anew, for as long as WEFT_RECONNECT says, and operations wait for it
 * and go on: messages, signals and atomics happen once all the same, and in order. What was under way then:
 * - A put is repeated: until it is complete its bytes may be written more than once. A program that is told of a put by a later
 *   put, looks at the memory, and then writes there itself, may find the put's bytes there again. Who is told by a message, by
 *   weft_put_signal() or by an atomic that the other node's processor does, and who waited for completion, sees no repetition.
 * - A get is repeated; what it reads may be newer.
 * - An atomic done by a device (native_atomics below), and what a device has refused, ends with -ECONNABORTED: it may or may
 *   not have happened. Without an op, the next weft_flush() says so.
 * When the time is over the node counts as dead.
 *
 * Where several RDMA devices lead to a node, puts and gets of WEFT_STRIPE bytes and more go by all of them in pieces. All that
 * is said here of order, of completion and of repetition is as true of these.
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
WEFT_API int weft_put(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
WEFT_API int weft_get(weft_node *w, void *dst, weft_gaddr src, size_t len, weft_op *op);
/* The same, and -EAGAIN instead of waiting for room: nothing was started, and weft_error() has no sentence for it. Such a call delivers
 * messages first: calling it again and again is enough. */
WEFT_API int weft_put_nowait(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
WEFT_API int weft_get_nowait(weft_node *w, void *dst, weft_gaddr src, size_t len, weft_op *op);

/* 64-bit atomics on an 8-byte aligned word (-EINVAL else), atomic against every other weft atomic on that word,
 * the owner's included. The word's former value is stored to `*old` (may be NULL). */
WEFT_API int weft_fetch_add(weft_node *w, weft_gaddr word, uint64_t add, uint64_t *old, weft_op *op);
WEFT_API int weft_compare_swap(weft_node *w, weft_gaddr word, uint64_t expected, uint64_t desired, uint64_t *old, weft_op *op);
WEFT_API int weft_swap(weft_node *w, weft_gaddr word, uint64_t value, uint64_t *old, weft_op *op);

/* Put, then add to the 8-byte word `signal` at the same node: whoever sees the new word sees the bytes. Wakes
 * weft_wait_until() there. `len` may be 0. */
WEFT_API int weft_put_signal(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal, uint64_t add, weft_op *op);

/* Messages: run the handler `id` at `node` with a small header and a payload. Both are copied before the call
 * returns or, with an op, before it completes. The op completes when the message is on its way. When the node takes
 * no messages the call waits for room, up to the default deadline; in a handler it does not, and the message is kept
 * (-ENOBUFS past 64 MiB). */
#define WEFT_HANDLERS    128u  /* ids 0 to 127 are the program's */
#define WEFT_HEADER_MAX  64u   /* bytes */
#define WEFT_PAYLOAD_MAX 3840u /* bytes */
WEFT_API int weft_send(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
                       size_t payload_len, weft_op *op);

/* The same, and -EAGAIN instead of waiting for room, as weft_put_nowait(). */
WEFT_API int weft_send_nowait(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
                              size_t payload_len, weft_op *op);

/* A handler runs on whichever thread makes progress, one at a time a node. `header` and `payload` are private
 * copies, valid during the call. It may start operations and send; waiting in it is refused (-EDEADLK). */
typedef void (*weft_handler_fn)(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                                void *arg);

/* Install (or, with NULL, remove) a handler; not from inside one (-EDEADLK). A message for an id without one waits up
 * to the node's deadline for it to be installed, and with it all the program's messages behind it from the same node,
 * also when that node has gone meanwhile; then it is dropped, and that is logged. Install right after weft_open(). */
WEFT_API int weft_handle(weft_node *w, uint32_t id, weft_handler_fn fn, void *arg);

/* flush: all earlier operations of this node to `node` are complete and visible there. fence: earlier ones are
 * seen before later ones. */
WEFT_API int weft_flush(weft_node *w, uint32_t node, int64_t timeout_ns);
WEFT_API int weft_fence(weft_node *w, uint32_t node);

/* -EINPROGRESS while pending, else the operation's result. */
WEFT_API int weft_test(weft_node *w, weft_op *op);
/* Wait for one operation; its result, or -ETIMEDOUT (it is then still pending). */
WEFT_API int weft_wait(weft_node *w, weft_op *op, int64_t timeout_ns);
/* Make progress: deliver messages, run handlers. Returns how many events were handled. */
WEFT_API int weft_progress(weft_node *w);

/* Wait until the 8-byte word at `word`, in this node's own pool, satisfies `cmp value`. Woken by weft_put_signal,
 * weft_counter_add() and the atomics, from any node; a plain put, and an atomic that this node's device does by itself
 * (weft_link_stats.native_atomics), are noticed only at the next look (at most 10 ms later). With WEFT_TIMEOUT_DEFAULT it lasts as long
 * as the other nodes live: see weft/types.h for how, and for its -ECONNRESET. */
typedef enum weft_cmp { WEFT_EQ, WEFT_NE, WEFT_LT, WEFT_LE, WEFT_GT, WEFT_GE } weft_cmp;
WEFT_API int weft_wait_until(weft_node *w, weft_gaddr word, weft_cmp cmp, uint64_t value, uint64_t *seen, int64_t timeout_ns);

/* How this node reaches another, and what came of it. */
typedef struct weft_link_stats {
    char transport[16];      /* "shm", "rc", "tb" */
    uint64_t staged_puts;    /* pieces that took one copy more because they were not in this node's pool; small */
    uint64_t staged_gets;    /* puts travel inside their request, and do not count */
    uint64_t native_atomics; /* done by the other node's device, which is atomic with its processor; its waiters are not woken */
    uint64_t breaks;         /* rc: queue pairs that broke */
    uint64_t connects;       /* rc: queue pairs made for this peer; 0: none was needed so far */
    char devices[112];       /* RDMA devices of this node that lead there: "rdma_en2, rdma_en3"; "": none is used */
    uint32_t via;            /* the next node on the way: itself when that is direct; UINT32_MAX when no way leads there now */
    uint32_t cables;         /* tb: that lead there; 0: other nodes do, or no cable was found */
    uint64_t frames_sent, frames_retransmitted;    /* tb: control frames, and how often one was sent again */
    uint64_t frames_received, frames_damaged;      /* tb: damaged ones were dropped; their sender sends them again */
    uint64_t bulk_sent_bytes, bulk_received_bytes; /* tb: bytes of large puts and gets that went without a copy */
    uint64_t bulk_rejected, bulk_repairs;          /* tb: pieces that came damaged or out of order, and were sent again; lanes
                                                      repaired after a loss */
    uint32_t rails;                                /* rc: devices that lead there now, together */
    uint64_t rail_breaks;                          /* rc: how often one of them but the first stopped to */
    uint64_t rail_bytes[4];                        /* rc: of puts and gets that were spread over them (WEFT_STRIPE), what went by each */
} weft_link_stats;

/* `bytes`: sizeof *out. What this library does not know is 0. -EFAULT: no such node; -ECONNRESET: it is gone. */
WEFT_API int weft_link_stat(weft_node *w, uint32_t node, weft_link_stats *out, size_t bytes);

/* Start and wait, with the default deadline. On -ETIMEDOUT the operation may still happen: nothing of the caller's is touched
 * then any more but by a put or get of more than WEFT_BLOCKING_BYTES, or in the pool, whose memory belongs to it until
 * weft_flush() of that node, or the node is gone. In a handler: -EDEADLK, and nothing is started. */
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
