/* SPDX-License-Identifier: MIT
 *
 * fabric: operations on remote memory, messages, waiting, and the death of peers. The node's handle lives here; the rooms above attach
 * their state and their hooks to it.
 *
 * A transport is a folder with one table (struct fab_transport). fabric.c checks addresses and chooses the link; the transport moves bytes.
 * Each file here calls only those before it:
 *
 *   members.c   the nodes of the cluster
 *   wake.c      waking waiters and the progress thread
 *   deliver.c   running handlers and hooks
 *   wait.c      waiting
 *   patience.c  waits for other nodes
 *   stash.c     messages that wait for their handler
 *   fabric.c    the operations
 *   now.c       operations that are started and waited for in one call
 *   side.c      the side connection of two nodes
 *   peer.c      heartbeats, and the end of a peer
 *   progress.c  the progress thread
 *   node.c      the node's handle
 */
#ifndef WEFT_FABRIC_ROOM_H
#define WEFT_FABRIC_ROOM_H

#include <pthread.h>

#include "base/base.h"
#include "fabric/atomic.h"
#include "fabric/flush.h"
#include "mem/mem.h"
#include "weft/fabric.h"
#include "weft/node.h"
#include "weft/pool.h"

/* A pool's first bytes, the same on every node: [0, FAB_NULL_BYTES) is null and never valid; then come the system words, which the
 * rooms above share out among themselves (fab_config.system_bytes); then, at w->heap_offset, the heap. */
#define FAB_NULL_BYTES 4096u

/* Handlers: the program's, then eight for each room above, which names its own in its header. Messages to these are the system's: they
 * do not wait behind the program's, nor for a cable that is pulled. */
#define FAB_ROOM_HANDLERS(room) (WEFT_HANDLERS + 8u * (room))
#define FAB_HANDLERS            FAB_ROOM_HANDLERS(8)
static inline bool fab_is_system(uint32_t id)
{
    return id >= WEFT_HANDLERS;
}

/* A bulk lane of the tb transport: bytes of a message, and how many are under way at most. */
#define FAB_GUARD_MAX  512u
#define FAB_LANES_MAX  8u
#define FAB_LANE_DEPTH 64u
struct fab_lane {
    uint32_t message, depth;
};

/* Devices that the rc transport uses together, the first one included. */
#define FAB_RAILS_MAX 4u

/* Threads that copy together over shm. */
#define FAB_COPY_THREADS_MAX 16u

/* What a node is told about its fabric. Who fills it has checked it: the cluster's settings (cluster/settings_table.c) do. */
struct fab_options {
    int64_t deadline_ns;                /* so long an operation waits that is not told how long */
    bool bounded;                       /* the deadline bounds waits for other nodes' doing too: see patience.c */
    int64_t say_after_ns;               /* else such a wait says after so long for whom it waits */
    int64_t spin_ns;                    /* so long a wait spins before it sleeps */
    int64_t liveness_ns;                /* a node on another host that is silent for so long is dead */
    int64_t reconnect_ns;               /* so long a broken link is tried to be built anew; 0: its peer counts as dead at once */
    char transport[16];                 /* the one to use for peers; "rdma": any over devices; "": the best */
    char device[64];                    /* the verbs device to use; "": the best */
    int gid_index;                      /* of its table; -1: choose (verbs_choose_gid()) */
    uint32_t rails;                     /* rc: devices that are used together; 0: all as good as the best, or only `device` */
    char rail_names[FAB_RAILS_MAX][64]; /* which; "": choose */
    uint64_t stripe_bytes;              /* rc: puts and gets from so many bytes on are spread over them */
    uint32_t copy_threads;              /* shm: that copy large data together, the caller included; 0: by the processors */
    char guard[FAB_GUARD_MAX]; /* tb: the command weft, which is to own the devices in a process of its own; "": this process does */
    struct fab_lane lanes[FAB_LANES_MAX]; /* tb */
    uint32_t lane_count;
    bool check_frames; /* tb: looks at a part of every frame of bulk data; else at all of it */
};

#define FAB_TRANSPORTS_MAX 4u
#define FAB_TRANSPORT_FDS  16u

enum fab_peer_state { FAB_UNKNOWN, FAB_ALIVE, FAB_LEFT, FAB_DEAD };

struct weft_node;
struct pollfd;
struct fab_link;

/* What a transport gives. Offsets are checked already. Return 0 or a negative errno; an op that is given is
 * completed by fab_complete(), now or later; on an error return it is not pending. */
struct fab_transport {
    const char *name;
    bool rdma;                        /* over devices: WEFT_TRANSPORT=rdma allows it */
    bool at_once;                     /* puts, gets and atomics are done when they return */
    int (*open)(struct weft_node *w); /* resources, before anyone is known */
    void (*close)(struct weft_node *w);
    bool (*reaches)(struct weft_node *w, const uint8_t *peer_host_id);
    /* Both sides call it, over their side connection; blocks until `deadline`. */
    int (*connect)(struct weft_node *w, struct fab_link *l, int side_fd, int64_t deadline);
    const char *(*broken)(struct weft_node *w, struct fab_link *l); /* why the peer is to be given up; NULL: it is not */
    /* The peer is gone: deliver what it had sent, and no more than it can have sent by now: it may live all the same, and go on. */
    void (*last_words)(struct weft_node *w, struct fab_link *l);
    void (*disconnect)(struct weft_node *w, struct fab_link *l); /* then fail what is pending */
    void (*release)(struct weft_node *w, struct fab_link *l);    /* at close: nobody uses the link any more */

    int (*put)(struct weft_node *w, struct fab_link *l, uint64_t to, const void *src, size_t len, weft_op *op);
    int (*get)(struct weft_node *w, struct fab_link *l, void *dst, uint64_t from, size_t len, weft_op *op);
    int (*atomic)(struct weft_node *w, struct fab_link *l, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, uint64_t *old,
                  weft_op *op);
    int (*put_signal)(struct weft_node *w, struct fab_link *l, uint64_t to, const void *src, size_t len, uint64_t signal, uint64_t add,
                      weft_op *op);
    /* A system word: set it, and with `wake` wake who waits there. Nothing is answered, and it waits for a cable that is pulled. */
    int (*set_system)(struct weft_node *w, struct fab_link *l, uint64_t at, uint64_t value, bool wake);
    int (*send)(struct weft_node *w, struct fab_link *l, uint32_t id, const void *header, size_t header_len, const void *payload,
                size_t payload_len, weft_op *op);
    bool (*flushed)(struct weft_node *w, struct fab_link *l,
                    struct fab_flush *f); /* asked while waiting in weft_flush(); `f` is zeros first */
    void (*fence)(struct weft_node *w, struct fab_link *l);
    int (*service)(struct weft_node *w);  /* may be NULL: what needs no handler; by any thread, also while a handler runs */
    int (*progress)(struct weft_node *w); /* under w->progress; events handled */
    bool (*idle)(struct weft_node *w);    /* nothing to handle: looked at after announcing sleep */
    void *(*pointer)(struct weft_node *w, struct fab_link *l, uint64_t offset); /* NULL: no loads and stores */
    /* Wake whoever waits at the peer for memory (weft_wait_until). */
    void (*wake)(struct weft_node *w, struct fab_link *l);
    void (*stat)(struct weft_node *w, struct fab_link *l, weft_link_stats *out); /* may be NULL; `out` has the name already */
    /* May be NULL: regions of the pool on its device (where it has several, on that with the most), and how many that allows; both
     * 0 before it is used. */
    void (*regions)(struct weft_node *w, uint32_t *used, uint32_t *budget);
    /* May be NULL: the i-th descriptor that is readable when there is something for progress(), after idle() said that there was
     * nothing (-1: there are no more, at most FAB_TRANSPORT_FDS), and what to do when one is. */
    int (*fd)(struct weft_node *w, uint32_t i);
    void (*woken)(struct weft_node *w);
    /* Both may be NULL, both are called on the progress thread. A message that this transport sent with fab_side_send() at the
     * other end: any bytes, to be checked. And upkeep: returns ns until it wants to be called again; fab_kick() calls it. */
    void (*side)(struct weft_node *w, struct fab_link *l, const void *bytes, size_t len);
    int64_t (*upkeep)(struct weft_node *w, int64_t now_ns);
    int (*settle)(struct weft_node *w, int64_t deadline); /* may be NULL: joined, and the progress thread runs; can all be reached? */
    bool (*needed)(struct weft_node *w);                  /* may be NULL: the node wants to leave; do others still need it between them? */
};

/* The path from this node to one peer (itself included). */
struct fab_link {
    _Atomic int state; /* fab_peer_state */
    uint32_t node;
    uint64_t pool_bytes;
    const struct fab_transport *transport;
    void *impl;    /* the transport's */
    int side_fd;   /* liveness anchor; -1 for oneself */
    int pid_fd;    /* the peer's process, where the system has it; else -1 */
    char host[64]; /* for messages */
    int pid;       /* for messages */
    base_spin side_lock;
    struct fab_side *side;          /* side.c; NULL while no message is on its way */
    char *gone_why;                 /* written before the state says so; NULL: nobody knows */
    bool goodbye;                   /* the peer has said that it leaves; the progress thread's */
    _Atomic(const char *) given_up; /* why a room above has done with it (fab_give_up()); NULL: none has */
    _Atomic bool unsure;            /* an operation without an op may not have happened; the next flush says so */
    /* Of a peer on another host (peer.c): */
    int64_t liveness_ns;           /* so long it and its host may be silent; 0: the kernel tells of its death */
    int64_t silent_ns;             /* and so long it has been, as far as we listened; the progress thread's */
    int64_t unanswered_ns;         /* and so long its host; the progress thread's */
    _Atomic bool heard;            /* the transport has: what only a living process sends */
    _Atomic bool answered;         /* its host has acknowledged a heartbeat */
    int64_t side_sent, side_taken; /* bytes of the side connection, and those known to be acknowledged; under side_lock */
};

/* Hooks of the rooms above, called in the order installed. */
struct fab_hook {
    void (*gone)(struct weft_node *w, uint32_t node, bool died, void *arg); /* on the progress thread */
    /* Periodic upkeep on the progress thread; returns ns until it wants to be called again, INT64_MAX for never.
     * fab_kick() makes it ask again. */
    int64_t (*tick)(struct weft_node *w, int64_t now_ns, void *arg);
    void (*close)(struct weft_node *w, void *arg); /* at the end: no thread of weft's runs any more; free what you have */
    void *arg;
};
#define FAB_HOOKS_MAX 16u

/* Where this node's waiters sleep. In memory that peers of the host can reach (see shm/transport.c), so that they wake them:
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

/* What a room above does for addresses with a space, the memory of GPUs, and for local memory that only a GPU reaches. All of it from any
 * thread. The operations are as those of weft/fabric.h; addresses are not checked. */
struct fab_arenas {
    int (*put)(struct weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
    int (*get)(struct weft_node *w, void *dst, weft_gaddr src, size_t len, weft_op *op);
    int (*atomic)(struct weft_node *w, enum fab_atomic kind, weft_gaddr word, uint64_t a, uint64_t b, uint64_t *old, weft_op *op);
    int (*put_signal)(struct weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal, uint64_t add, weft_op *op);
    int (*free)(struct weft_node *w, weft_gaddr addr);
    bool (*owns)(struct weft_node *w, const void *p); /* is it memory of a GPU of this process? */
    /* Those to the node that had begun before `f` was first given (flush.h) are complete. */
    bool (*flushed)(struct weft_node *w, uint32_t node, struct fab_flush *f);
    int (*failure)(struct weft_node *w, uint32_t node); /* the first error of those without an op; asked once */
    void (*stat)(struct weft_node *w, uint32_t node, weft_link_stats *out);
};

struct fab_handler {
    _Atomic(weft_handler_fn) fn;
    void *arg;
};

struct weft_node {
    uint32_t rank, size, size_here; /* size_here: nodes on this host */
    struct fab_options options;
    struct mem_pool *pool;
    uint8_t *pool_base;
    uint64_t pool_bytes;
    uint64_t heap_offset; /* of every pool: below it are the system words, which no program may name */
    uint8_t host_id[16];
    bool oversubscribed; /* more nodes on this host than processors */

    const struct fab_transport *transports[FAB_TRANSPORTS_MAX + 1]; /* NULL-terminated; those that are open */
    void *shm, *rc, *tb;                                            /* the transports' state */
    base_spin now_lock;
    struct fab_now *now; /* under it: see now.c */
    char **towards;      /* [size]: the device towards each node, NULL: none there; NULL: nobody says, they are found (tb) */

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
    pthread_t pulse_thread; /* peer.c */
    bool pulse_started;
    _Atomic uint32_t pulse_end;
    int64_t pulse_ns;            /* between two heartbeats; 0: nobody needs any */
    int64_t listened_ns;         /* when the side connections were last read; the progress thread's */
    _Atomic bool lazy;           /* the program polls by itself: the progress thread only looks in now and then */
    _Atomic uint64_t polls;      /* weft_progress() calls and spinning waits, to tell that */
    _Atomic uint32_t last_looks; /* how often a thread has looked at the end of its wait, because the progress thread napped */
    _Atomic uint64_t rested;     /* `polls` when a wait went to sleep: those before it say nothing about what comes */
    _Atomic bool stopping;
    _Atomic uint32_t waiting;    /* threads of the program in a call that waits: weft_close() refuses then */
    struct weft_node *next_open; /* node/open.c */
    int wake_fd[2];              /* local kicks for the progress thread */
    struct pollfd *poll_fds;     /* the progress thread's, with whose they are */
    uint32_t *poll_nodes;

    const struct fab_arenas *arenas; /* set before the node joins */
    _Atomic bool gpu_memory;         /* a GPU of this process has memory: a local pointer may be of it */
    _Atomic bool arenas_used;        /* an operation has begun that these did: a fence or flush asks them */

    void *cluster, *sync, *queues, *gpus; /* of the rooms above */
};

/* --- members.c --- */
bool fab_alive(const struct weft_node *w, uint32_t node);
uint32_t fab_count_dead(const struct weft_node *w);
int fab_refuse_node(struct weft_node *w, uint32_t node); /* why nothing can go to this node, as an error; 0: something can */

/* --- wake.c --- */
void fab_wake_here(struct weft_node *w);           /* this node's own waiters, after changing what they wait for */
void fab_wake(struct weft_node *w, uint32_t node); /* the waiters of a node, after putting to its memory */
void fab_kick(struct weft_node *w);                /* the progress thread of this node */

/* --- deliver.c --- */
/* Is this thread inside a handler or hook? Waiting is refused then. */
bool fab_in_handler(void);
/* Deliver messages if nobody else does just now; events handled. */
int fab_progress(struct weft_node *w);
/* The program looks by itself: the progress thread stays out of its way for a while. A hint, not a count: lost increments
 * do no harm. */
static inline uint64_t fab_polled(struct weft_node *w)
{
    uint64_t polls = atomic_load_explicit(&w->polls, memory_order_relaxed) + 1;
    atomic_store_explicit(&w->polls, polls, memory_order_relaxed);
    return polls;
}
/* A program that only puts and waits delivers messages too, every so many waits. */
#define WAITS_PER_PROGRESS 16u
/* Only what needs no handler. */
int fab_service(struct weft_node *w);
/* Only that which does. */
int fab_messages(struct weft_node *w);
/* This thread polls no more, and nobody else does but, when it is woken, the progress thread: no message is to be left. */
void fab_last_look(struct weft_node *w);
/* Run the handler for a message; called by transports from progress(). False: no handler yet, try again later. */
bool fab_deliver(struct weft_node *w, uint32_t from, uint32_t id, const void *header, size_t header_len, const void *payload,
                 size_t payload_len);
/* For peer.c and the progress thread: the last messages of a peer, the `gone` hooks, and the periodic ones; as inside a handler. */
void fab_last_words(struct weft_node *w, struct fab_link *l, enum fab_peer_state gone); /* which is the link's state then */
void fab_run_gone(struct weft_node *w, uint32_t node, bool died);
int64_t fab_run_ticks(struct weft_node *w); /* ns until they want to be called again */

/* --- fabric.c --- */
/* Resolve an address: the link and the offset, or -EFAULT / -ECONNRESET with a sentence. */
int fab_resolve(struct weft_node *w, weft_gaddr addr, uint64_t bytes, struct fab_link **link);
/* Local memory that only a GPU reaches. */
static inline bool fab_gpu_memory(struct weft_node *w, const void *p)
{
    return BASE_UNLIKELY(atomic_load_explicit(&w->gpu_memory, memory_order_relaxed)) && w->arenas->owns(w, p);
}
/* System words, at offsets below the heap: set one, and with `wake` wake who waits there. `offset` is not checked; -ECONNRESET as
 * above. */
int fab_system_set(struct weft_node *w, uint32_t node, uint64_t offset, uint64_t value, bool wake);
/* Read one. Waits, for `timeout_ns` at most. */
int fab_system_get(struct weft_node *w, uint32_t node, uint64_t offset, uint64_t *value, int64_t timeout_ns);
/* weft_flush() of what cannot be lost: messages and system words. What a broken link did to the program's operations stays for the
 * program's own flush to say. */
int fab_flush(struct weft_node *w, uint32_t node, int64_t timeout_ns);
/* A flush that does not wait: `f` is zeros first. -EINPROGRESS: look again; else its result, without a sentence. */
int fab_flush_look(struct weft_node *w, uint32_t node, struct fab_flush *f);
/* Complete an op (NULL allowed). */
void fab_complete(weft_op *op, int status);
/* Mark an op pending, before a transport may complete it. */
static inline void fab_pending(weft_op *op, uint32_t node)
{
    op->node = node;
    __atomic_store_n(&op->status, 1, __ATOMIC_RELAXED);
}
/* weft_send() for any handler id. From a handler it never waits: what finds no room is kept and sent later. */
int fab_send(struct weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
             size_t payload_len, weft_op *op);

/* --- now.c: a compare-and-swap whose call may end before it does, and that can be waited for again --- */
/* Whether puts, gets and atomics there are done when the call that starts them returns: nothing can be left behind. So is what will be
 * refused. */
bool fab_at_once(const struct weft_node *w, weft_gaddr where);
struct fab_now;
int fab_swap_begin(struct weft_node *w, weft_gaddr word, uint64_t expected, uint64_t desired, struct fab_now **swap);
/* -EINPROGRESS: it goes on. Else it has ended, and `*swap` is NULL: 0 and what was there; -ECONNRESET: the node is gone; another error:
 * it may have happened, or may happen before the next atomic to that node. In a handler it only looks. */
int fab_swap_wait(struct weft_node *w, struct fab_now **swap, uint64_t *old, int64_t timeout_ns);
void fab_swap_leave(struct weft_node *w, struct fab_now **swap); /* nobody asks any more how it ends */
void fab_now_free(struct weft_node *w);                          /* the transports are closed */

/* --- peer.c: liveness --- */
/* A peer is gone: deliver what it had sent, fail its ops, raise the epoch, call the hooks. Once a peer. */
void fab_peer_gone(struct weft_node *w, uint32_t node, bool died, const char *why);
/* Any thread: the progress thread is to treat the node as dead, soon, though it may live. `why` is a string constant. */
void fab_give_up(struct weft_node *w, uint32_t node, const char *why);
static inline void fab_heard(struct fab_link *l)
{
    if (!atomic_load_explicit(&l->heard, memory_order_relaxed)) /* no line is written for every message */
        atomic_store_explicit(&l->heard, true, memory_order_relaxed);
}
int fab_pulse_start(struct weft_node *w); /* heartbeats to the peers on other hosts */
void fab_pulse_stop(struct weft_node *w);
int64_t fab_judge_silence(struct weft_node *w); /* right after the side connections were read; when to read again, at the latest */

/* --- side.c: the side connection, once the pair is connected --- */
/* While the pair connects: all of these bytes out or in, before `deadline`. A negative errno without a sentence. */
int fab_side_transfer(int fd, void *bytes, size_t len, bool out, int64_t deadline);
#define FAB_SIDE_MESSAGE_MAX 512u
/* To the peer's transport, in order; on the progress thread. -ENOBUFS: it does not read what was sent before. */
int fab_side_send(struct fab_link *l, const void *bytes, size_t len);
bool fab_side_byte(struct fab_link *l, char byte);           /* any thread; false: dropped, the socket is full */
void fab_side_goodbye(struct fab_link *l, int64_t deadline); /* waits until the socket takes it */
bool fab_side_pending(struct fab_link *l);                   /* the socket did not take all: fab_side_read() when it does */
/* What has come, `most` kilobytes of it. NULL: it goes on; else why the peer is gone, and whether it died. */
const char *fab_side_read(struct weft_node *w, struct fab_link *l, uint32_t most, bool *died);
/* Whether the other host has acknowledged more since it was last asked, or has nothing to acknowledge. */
bool fab_side_answered(struct fab_link *l);

/* --- progress.c: the progress thread --- */
int fab_start(struct weft_node *w);                    /* the progress thread; links are connected */
int fab_settle(struct weft_node *w, int64_t deadline); /* until it is known that all can be reached */
void fab_stop(struct weft_node *w);                    /* says goodbye to the peers, ends the thread */

/* --- wait.c --- */
/* Wait until ready(arg) is true: spin a little (making progress), then sleep. -ETIMEDOUT at the deadline
 * (absolute), without a sentence. -EDEADLK in a handler. */
typedef bool (*fab_ready_fn)(void *arg);
int fab_wait(struct weft_node *w, fab_ready_fn ready, void *arg, int64_t deadline);
int64_t fab_timeout(const struct weft_node *w, int64_t timeout_ns); /* WEFT_TIMEOUT_DEFAULT resolved; to an absolute moment */
/* For operations, before they keep more for a peer that takes nothing just now: wait for room, up to the node's deadline; -EAGAIN, at
 * once, in a call that is not to wait for it. Both without a sentence. */
int fab_wait_for_room(struct weft_node *w, fab_ready_fn has_room, void *arg);
bool fab_nowait(bool on); /* from now on this thread's operations do not wait for room; what it was before */
/* For a call that has a deadline and is made of operations: none that this thread starts or waits for with WEFT_TIMEOUT_DEFAULT takes
 * longer, waiting for room included. INT64_MAX: no limit. Returns the one before, to be set again when the call ends. */
int64_t fab_limit(int64_t deadline);

/* --- patience.c: waits for other nodes' doing --- */
/* Who is to end a wait. */
enum fab_whom {
    FAB_KNOWN, /* a node that the caller knows, and whose death it looks for itself */
    FAB_ANY,   /* nobody knows: a node that dies meanwhile may be the one, and so may be the last other node that goes */
    FAB_LAST,  /* any living node can: only when the last other node has gone there is nobody left */
};
struct fab_patience {
    struct weft_node *w;
    enum fab_whom whom;
    bool lasting;     /* it has no deadline of its own */
    int64_t deadline; /* INT64_MAX: none */
    int64_t say_at;   /* INT64_MAX: said, or nothing is to be said */
    int64_t lost_at;  /* who was to end it is gone: it goes on until then; INT64_MAX: nobody is */
    uint64_t epoch;   /* in which the members were looked at last */
    uint32_t dead;    /* there were then */
};
void fab_patience_begin(struct fab_patience *p, struct weft_node *w, enum fab_whom whom, int64_t timeout_ns);
/* When to look at it again, at the latest: the deadline to give to fab_wait(). */
static inline int64_t fab_patience_next(const struct fab_patience *p)
{
    int64_t next = p->deadline < p->say_at ? p->deadline : p->say_at;
    return next < p->lost_at ? next : p->lost_at;
}
/* 0: go on waiting. -ETIMEDOUT: the deadline has passed. -ECONNRESET: who was to end it is gone. Without a sentence. */
int fab_patience_check(struct fab_patience *p);
/* True once, when it is time to say for whom this node waits. */
bool fab_patience_due(struct fab_patience *p);
/* "barrier", "nodes 2 and 3, which are alive". */
void fab_patience_say(const struct fab_patience *p, const char *what, const char *whom);
/* "no node", "node 2", "nodes 2 and 3": those with `in`, the first ones by number; returns how many there are. */
uint32_t fab_name_nodes(const struct weft_node *w, const bool in[], char *buf, size_t len);
/* "node 1 is alive", "no other node is alive" */
void fab_name_living(const struct weft_node *w, char *buf, size_t len);
/* Why a wait is over whose end nobody knew: the rest of a sentence for -ECONNRESET. */
const char *fab_patience_loss(const struct fab_patience *p);

/* --- node.c --- */
/* Make the node's handle and open the transports; free it. `w->links` has `size` entries, all FAB_UNKNOWN. */
struct fab_config {
    uint32_t rank, size;
    /* NULL-terminated, at most FAB_TRANSPORTS_MAX, best first. The first also carries what a node says to itself, and has the bell
     * that its waiters sleep on. */
    const struct fab_transport *const *transports;
    const struct fab_options *options; /* copied */
    const char *const *towards;        /* [size]: this node's device towards each other, NULL: none; NULL: nobody says */
    uint64_t system_bytes;             /* of each pool, for the words of the rooms above */
    struct mem_options pool;
};
int fab_create(struct weft_node **out, const struct fab_config *config);
void fab_destroy(struct weft_node *w); /* after fab_stop() */

/* The link to oneself. */
int fab_connect_self(struct weft_node *w, int64_t deadline);
/* The best transport to a peer of that host; NULL: none reaches it. */
const struct fab_transport *fab_choose(struct weft_node *w, const uint8_t *peer_host_id);

/* Devices are looked for when a peer first needs them, and once: what was found out then is the answer. */
struct fab_look {
    bool done;
    int failed;    /* with this errno, */
    char why[960]; /* for this reason */
};
bool fab_look(struct weft_node *w, struct fab_look *l, int (*look)(struct weft_node *w)); /* false: it failed, with the sentence */

int fab_handle(struct weft_node *w, uint32_t id, weft_handler_fn fn, void *arg); /* any id */
int fab_hook(struct weft_node *w, const struct fab_hook *hook);
void fab_run_close(struct weft_node *w); /* the close hooks, last installed first */

#endif
