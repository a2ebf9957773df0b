/* SPDX-License-Identifier: MIT
 *
 * fabric: operations on remote memory, messages, waiting, and the death of peers. The node's handle lives here;
 * the rooms above hang their state on it and their hooks in it.
 *
 * A transport is one file with one table (struct fab_transport). fabric.c checks addresses and chooses the link;
 * the transport moves bytes.
 */
#ifndef WEFT_FABRIC_ROOM_H
#define WEFT_FABRIC_ROOM_H

#include <pthread.h>

#include "base/base.h"
#include "mem/mem.h"
#include "weft/fabric.h"
#include "weft/node.h"
#include "weft/pool.h"

/* --- layout of a pool's first bytes, the same on every node --- */
#define FAB_NULL_BYTES 4096u /* [0, 4096): null, never valid */
/* From 4096: a cache line for each node of the cluster: the barrier's words. */
static inline uint64_t fab_barrier_offset(uint32_t from)
{
    return FAB_NULL_BYTES + (uint64_t)from * BASE_CACHE_LINE;
}
/* Then half a line for each node: what it gives in weft_exchange(). */
static inline uint64_t fab_exchange_offset(uint32_t nodes, uint32_t from)
{
    return fab_barrier_offset(nodes) + (uint64_t)from * 32;
}
static inline uint64_t fab_heap_offset(uint32_t nodes)
{
    return base_round_up(fab_exchange_offset(nodes, nodes), MEM_EXTENT_BYTES);
}

/* --- handler ids above the program's --- */
enum fab_handler_id {
    FAB_HANDLER_LOCK = WEFT_HANDLERS,
    FAB_HANDLER_QUEUE,
    FAB_HANDLER_MAP,
    FAB_HANDLERS = WEFT_HANDLERS + 64
};

#define FAB_TRANSPORTS_MAX 4u

enum fab_atomic { FAB_ADD, FAB_SWAP, FAB_CAS };

enum fab_peer_state { FAB_UNKNOWN, FAB_ALIVE, FAB_LEFT, FAB_DEAD };

struct weft;
struct pollfd;
struct fab_link;

/* What a transport gives. Offsets are checked already. Return 0 or a negative errno; an op that is given is
 * completed by fab_complete(), now or later; on an error return it is not touched. */
struct fab_transport {
    const char *name;
    int (*open)(struct weft *w);  /* resources, before anyone is known */
    void (*close)(struct weft *w);
    bool (*reaches)(struct weft *w, const uint8_t *peer_host_id);
    /* Both sides call it, over their side connection; blocks until `deadline`. */
    int (*connect)(struct weft *w, struct fab_link *l, int side_fd, int64_t deadline);
    bool (*broken)(struct weft *w, struct fab_link *l);     /* the peer misbehaves: it is to be given up */
    void (*last_words)(struct weft *w, struct fab_link *l); /* the peer is gone: deliver what it had sent */
    void (*disconnect)(struct weft *w, struct fab_link *l); /* then fail what is pending */
    void (*release)(struct weft *w, struct fab_link *l);    /* at close: nobody uses the link any more */

    int (*put)(struct weft *w, struct fab_link *l, uint64_t to, const void *src, size_t len, weft_op *op);
    int (*get)(struct weft *w, struct fab_link *l, void *dst, uint64_t from, size_t len, weft_op *op);
    int (*atomic)(struct weft *w, struct fab_link *l, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b,
                  uint64_t *old, weft_op *op);
    int (*put_signal)(struct weft *w, struct fab_link *l, uint64_t to, const void *src, size_t len,
                      uint64_t signal, uint64_t add, weft_op *op);
    int (*send)(struct weft *w, struct fab_link *l, uint32_t id, const void *header, size_t header_len,
                const void *payload, size_t payload_len, weft_op *op);
    bool (*flushed)(struct weft *w, struct fab_link *l); /* asked while waiting in weft_flush() */
    void (*fence)(struct weft *w, struct fab_link *l);
    int (*progress)(struct weft *w);   /* under w->progress; events handled */
    bool (*idle)(struct weft *w);      /* nothing to handle: looked at after announcing sleep */
    void *(*pointer)(struct weft *w, struct fab_link *l, uint64_t offset); /* NULL: no loads and stores */
    /* Wake whoever waits at the peer for memory (weft_wait_until). */
    void (*wake)(struct weft *w, struct fab_link *l);
};

extern const struct fab_transport fab_shm;
/* For tests that write nonsense into them: the rings to and from a node. */
struct ring *fab_shm_ring(struct weft *w, uint32_t to);
struct ring *fab_shm_inbound(struct weft *w, uint32_t from);

/* The path from this node to one peer (itself included). */
struct fab_link {
    _Atomic int state; /* fab_peer_state */
    uint32_t node;
    uint64_t pool_bytes;
    const struct fab_transport *transport;
    void *impl;        /* the transport's */
    int side_fd;       /* liveness anchor; -1 for oneself */
    int pid_fd;        /* the peer's process, where the system has it; else -1 */
    char host[64];     /* for messages */
    int pid;           /* for messages */
    bool goodbye;      /* the peer has said that it leaves; the progress thread's */
};

/* Hooks of the rooms above, called in the order installed. */
struct fab_hook {
    void (*gone)(struct weft *w, uint32_t node, bool died, void *arg); /* on the progress thread */
    /* Periodic upkeep on the progress thread; returns ns until it wants to be called again, INT64_MAX for never.
     * fab_kick() makes it ask again. */
    int64_t (*tick)(struct weft *w, int64_t now_ns, void *arg);
    void (*close)(struct weft *w, void *arg); /* at the end: no thread of weft's runs any more; free what you have */
    void *arg;
};
#define FAB_HOOKS_MAX 16u

/* Where this node's waiters sleep. In memory that peers of the host can reach (see shm.c), so that they wake them:
 * an event count. Waiters: sleepers++ (seq_cst), read seq, look at the condition, sleep on seq. Wakers: change the
 * memory, full fence, look at sleepers, seq++, wake. */
struct fab_bell {
    _Alignas(BASE_CACHE_LINE) _Atomic uint32_t seq;
    _Atomic uint32_t sleepers;
    /* For those who send messages: `pollers` threads of this node look at their rings now; `napping` is 1 while the
     * progress thread sleeps and wants a byte on the side connection. */
    _Alignas(BASE_CACHE_LINE) _Atomic uint32_t pollers;
    _Atomic uint32_t napping;
};

struct fab_handler {
    _Atomic(weft_handler_fn) fn;
    void *arg;
};

struct weft {
    uint32_t rank, size, size_here; /* size_here: nodes on this host */
    int64_t deadline_ns, spin_ns;
    struct mem_pool *pool;
    uint8_t *pool_base;
    uint64_t pool_bytes;
    uint64_t heap_offset; /* of every pool: below it are the rooms' own words, which no program may name */
    uint8_t host_id[16];
    bool oversubscribed; /* more nodes on this host than processors */

    const struct fab_transport *transports[FAB_TRANSPORTS_MAX + 1]; /* NULL-terminated; those that are open */
    void *shm; /* the shm transport's state */

    struct fab_link *links; /* [size] */
    struct fab_bell *bell;  /* this node's */

    base_spin progress; /* who holds it delivers messages */
    struct fab_handler handlers[FAB_HANDLERS];

    _Atomic uint64_t epoch;
    pthread_mutex_t member_lock;
    struct fab_hook hooks[FAB_HOOKS_MAX];
    _Atomic uint32_t hook_count;

    pthread_t thread; /* the progress thread */
    bool thread_started;
    _Atomic bool lazy;        /* the program polls by itself: the progress thread only looks in now and then */
    _Atomic uint64_t polls;   /* weft_progress() calls and spinning waits, to tell that */
    _Atomic bool stopping;
    int wake_fd[2]; /* local kicks for the progress thread */
    struct pollfd *poll_fds; /* the progress thread's, with whose they are */
    uint32_t *poll_nodes;

    void *cluster, *sync, *queues; /* of the rooms above */
};

/* --- fabric.c --- */
/* Make the node's handle and open the transports; free it. `w->links` has `size` entries, all FAB_UNKNOWN. */
struct fab_config {
    uint32_t rank, size;
    int64_t deadline_ns, spin_ns;
    const char *transport; /* NULL: choose */
    struct mem_options pool;
};
int fab_create(struct weft **out, const struct fab_config *config);
void fab_destroy(struct weft *w); /* after fab_stop() */

/* The best transport to a peer of that host; NULL: none reaches it. */
const struct fab_transport *fab_choose(struct weft *w, const uint8_t *peer_host_id);

/* Resolve an address: the link and the offset, or -EFAULT / -ECONNRESET with a sentence. */
int fab_resolve(struct weft *w, weft_gaddr addr, uint64_t bytes, struct fab_link **link);
/* The rooms' own words, at offsets below the heap: put one word / swap it and wake who waits there. `offset` is ours
 * and not checked; -ECONNRESET as above. */
int fab_system_put(struct weft *w, uint32_t node, uint64_t offset, uint64_t value);
int fab_system_swap(struct weft *w, uint32_t node, uint64_t offset, uint64_t value);
/* Complete an op (NULL allowed). */
void fab_complete(weft_op *op, int status);
/* Mark an op pending, before a transport may complete it. */
static inline void fab_pending(weft_op *op, uint32_t node)
{
    op->node = node;
    __atomic_store_n(&op->status, 1, __ATOMIC_RELAXED);
}
/* weft_send() for any handler id. From a handler it never waits: what finds no room is kept and sent later. */
int fab_send(struct weft *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
             size_t payload_len, weft_op *op);
int fab_handle(struct weft *w, uint32_t id, weft_handler_fn fn, void *arg); /* any id */
int fab_hook(struct weft *w, const struct fab_hook *hook);
void fab_run_close(struct weft *w); /* the close hooks, last installed first */

/* For peer.c: the last messages of a peer, and the `gone` hooks; as inside a handler. */
void fab_last_words(struct weft *w, struct fab_link *l);
void fab_run_gone(struct weft *w, uint32_t node, bool died);

/* --- peer.c: liveness --- */
/* A peer is gone: deliver what it had sent, fail its ops, raise the epoch, call the hooks. Once a peer. */
void fab_peer_gone(struct weft *w, uint32_t node, bool died, const char *why);
bool fab_alive(const struct weft *w, uint32_t node);

/* --- progress.c --- */
/* Is this thread inside a handler or hook? Waiting is refused then. */
bool fab_in_handler(void);
/* Deliver messages if nobody else does just now; events handled. */
int fab_progress(struct weft *w);
/* Run the handler for a message; called by transports from progress(). False: no handler yet, try again later. */
bool fab_deliver(struct weft *w, uint32_t from, uint32_t id, const void *header, size_t header_len,
                 const void *payload, size_t payload_len);
int fab_start(struct weft *w); /* the progress thread; links are connected */
void fab_stop(struct weft *w); /* says goodbye to the peers, ends the thread */
void fab_kick(struct weft *w); /* wake the progress thread of this node */

/* --- wait.c --- */
/* Wait until ready(arg) is true: spin a little (making progress), then sleep. -ETIMEDOUT at the deadline
 * (absolute), without a sentence. -EDEADLK in a handler. */
typedef bool (*fab_ready_fn)(void *arg);
int fab_wait(struct weft *w, fab_ready_fn ready, void *arg, int64_t deadline);
void fab_wake_here(struct weft *w); /* wake this node's own waiters, after changing what they wait for */
void fab_wake(struct weft *w, uint32_t node); /* wake the waiters of a node, after putting to its memory */
int64_t fab_timeout(const struct weft *w, int64_t timeout_ns); /* WEFT_DEFAULT resolved; to an absolute moment */

#endif
