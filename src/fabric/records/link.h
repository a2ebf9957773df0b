/* SPDX-License-Identifier: MIT
 *
 * A link whose operations are records: the endpoint, its lock, and the messages that wait for their handlers. The transports tb and ofi
 * each have a struct for a link that begins with struct records_link and adds fields of its own, such as devices. fab_link's `impl` points
 * to it.
 *
 *   message.c      messages that wait for their handlers
 *   operations.c   puts, gets, atomics, messages, flush, fence, as struct fab_transport wants them
 *
 * A link's lock guards its endpoint. Lock order: the transport's lock for polling, then a link's lock.
 */
#ifndef WEFT_RECORDS_LINK_H
#define WEFT_RECORDS_LINK_H

#include "fabric/fabric.h"
#include "fabric/records/endpoint.h"
#include "fabric/stash.h"

#define RECORDS_BACKLOG_WAIT (1u << 20)  /* with this many bytes queued for a peer, calls that send to the peer wait */
#define RECORDS_BACKLOG_MAX  (64u << 20) /* with this many bytes queued for a peer, calls in handlers fail with -ENOBUFS */

struct records_message {
    uint16_t id, header_len, payload_len;
    _Alignas(8) uint8_t bytes[WEFT_HEADER_MAX + WEFT_PAYLOAD_MAX];
};

struct records_link {
    struct weft_node *w;
    struct fab_link *link;
    void (*make_room)(struct weft_node *w); /* polls for completions, unless another thread does; call it without a lock */
    const char *no_way;                     /* end of the error text if `cut` is set */
    _Atomic int64_t *earliest;              /* a lower bound of the timers of all links of the transport */
    base_spin lock;                         /* protects the endpoint */
    struct tb_endpoint endpoint;
    uint32_t crowded; /* counts operations that begin while the stream is crowded (tb_stream_crowded()) */
    bool closed;
    _Atomic bool no_room; /* a frame or a piece could not be posted */
    _Atomic int64_t due;  /* when a timer of the endpoint expires next */
    _Atomic bool cut;     /* no route leads to the peer; false while it is not known yet whether there is one */
    /* Messages that wait for their handlers. Messages are added while `lock` is held, and removed while w->progress is held. */
    struct records_message *inbox; /* [TB_MESSAGES] */
    _Atomic uint32_t inbox_in, inbox_out;
    /* number of the message at inbox[0]. Reset when the inbox is empty, so that mostly the start of the inbox is used */
    uint32_t inbox_base;
    /* how many delivered messages the peer has not got credit for yet, because too many messages wait for a handler to be installed */
    uint32_t withheld;
    struct stash stash;
    _Atomic bool broken;
    char why[400]; /* written before `broken` is set */
};

/* Lowers the transport's earliest timer to `at`. Always a read-modify-write, even if the timer is already earlier. So either
 * records_timers_begin() sees this thread's earlier stores to a link's `due` and `no_room`, or the timer stays at `at` or below. */
static inline void records_timer(_Atomic int64_t *earliest, int64_t at)
{
    int64_t was = atomic_load_explicit(earliest, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(earliest, &was, at < was ? at : was, memory_order_acq_rel, memory_order_relaxed))
        ;
}

/* Call this before reading the timers of all links. After reading, call records_timer() with the earliest timer that was found. */
static inline void records_timers_begin(_Atomic int64_t *earliest)
{
    (void)atomic_exchange_explicit(earliest, INT64_MAX, memory_order_acq_rel);
}

static inline void records_pump_locked(struct records_link *l, int64_t now)
{
    atomic_store_explicit(&l->no_room, false, memory_order_relaxed);
    tb_endpoint_pump(&l->endpoint, now);
    int64_t due = tb_endpoint_due(&l->endpoint);
    atomic_store_explicit(&l->due, due, memory_order_relaxed);
    records_timer(l->earliest, due);
}

/* message.c */
/* The callback `message` of struct tb_endpoint_env; its argument is the link. */
bool records_message_keep(void *ctx, uint32_t id, const void *header, uint32_t header_len, const void *payload, uint32_t payload_len);
int records_message_deliver(struct weft_node *w, struct records_link *l, uint32_t most); /* returns the number of delivered messages */
int records_progress(struct weft_node *w,
                     struct records_link *l);            /* also delivers messages that have waited for their handler to be installed */
bool records_message_none(const struct records_link *l); /* whether no message waits to be delivered */
/* Mark the peer as broken, so that it is given up. Only the first reason is kept. */
void records_break(struct records_link *l, const char *why, ...) BASE_PRINTF(2, 3);

/* operations.c: functions for the table struct fab_transport */
int records_put(struct weft_node *w, struct fab_link *link, uint64_t to, const void *src, size_t len, weft_op *op);
int records_get(struct weft_node *w, struct fab_link *link, void *dst, uint64_t from, size_t len, weft_op *op);
int records_set_system(struct weft_node *w, struct fab_link *link, uint64_t at, uint64_t value, bool wake);
int records_atomic(struct weft_node *w, struct fab_link *link, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, uint64_t *old,
                   weft_op *op);
int records_put_signal(struct weft_node *w, struct fab_link *link, uint64_t to, const void *src, size_t len, uint64_t signal, uint64_t add,
                       weft_op *op);
int records_send(struct weft_node *w, struct fab_link *link, uint32_t id, const void *header, size_t header_len, const void *payload,
                 size_t payload_len, weft_op *op);
bool records_flushed(struct weft_node *w, struct fab_link *link, struct fab_flush *f);
void records_fence(struct weft_node *w, struct fab_link *link);
void records_no_wake(struct weft_node *w, struct fab_link *l);
void records_stat_locked(const struct records_link *l, weft_link_stats *out); /* copies the endpoint's counters */

#endif
