/* SPDX-License-Identifier: MIT
 *
 * fabric: operations on remote memory, messages, waiting, and the death of peers. The node's handle is defined here. The folders of src/
 * that may use this one are called higher layers, such as sync, queue and gpu (docs/architecture.md). They attach their state and their
 * hooks to the handle.
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
 *   memory.c    memory outside the pool that a device accesses directly
 *   now.c       operations that are started and waited for in one call
 *   side.c      the side connection of two nodes
 *   peer.c      heartbeats, and the end of a peer
 *   progress.c  the progress thread
 *   grow.c      nodes that join the running cluster
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

/* The beginning of a pool has the same layout on every node. [0, FAB_NULL_BYTES) is never a valid address. Then come
 * fab_config.system_bytes bytes for the system words: 64-bit words of weft's own, such as those of barriers, which no program can address.
 * The heap, the memory for programs, begins at w->heap_offset. */
#define FAB_NULL_BYTES 4096u

/* Handler numbers: first the program's, then eight for each higher layer. Messages to handlers of the layers do not wait behind the
 * program's messages, and do not fail when a cable is unplugged. */
#define FAB_ROOM_HANDLERS(room) (WEFT_HANDLERS + 8u * (room))
#define FAB_HANDLERS            FAB_ROOM_HANDLERS(8)
static inline bool fab_is_system(uint32_t id)
{
    return id >= WEFT_HANDLERS;
}

#define FAB_GUARD_MAX        512u
#define FAB_GUARD_SOCKET_MAX 104u /* how long the path of a socket's address may be on macOS */
#define FAB_LANES_MAX        8u
#define FAB_LANE_DEPTH       64u
/* A bulk lane of the tb transport: the size of a message, and how many may be under way. */
struct fab_lane {
    uint32_t message, depth;
};

/* Maximum number of devices that the rc transport uses together, the first one included. */
#define FAB_RAILS_MAX 4u

#define FAB_COPY_THREADS_MAX 16u

/* The fabric's settings. The caller has checked them (cluster/settings_table.c). */
struct fab_options {
    int64_t deadline_ns;  /* how long an operation may take if its call has no time-out */
    bool bounded;         /* the deadline also bounds waits for other nodes (patience.c) */
    int64_t say_after_ns; /* after this time, a wait without a deadline prints for which nodes it waits */
    int64_t spin_ns;      /* how long a wait spins before it sleeps */
    int64_t liveness_ns;  /* how long a node on another host may be silent before it counts as dead */
    int64_t reconnect_ns; /* how long to try to connect a broken link again; 0: its peer is declared dead at once */
    char transport[16];   /* the transport for peers; "rdma": any that uses devices; "": the best */
    char device[64];      /* the verbs device to use; "": the best */
    int gid_index;        /* index into the device's GID table; -1: choose (verbs_choose_gid()) */
    /* rc: number of devices to use together; 0: only `device`, or all devices that are as good as the best if `device` is not set */
    uint32_t rails;
    char rail_names[FAB_RAILS_MAX][64]; /* rc: names of the devices; "": choose */
    uint64_t stripe_bytes;              /* rc: puts and gets of at least this size are spread over several rails */
    bool gpu_rdma;                      /* arenas of GPUs are registered with the RDMA device, where that is possible */
    /* shm: threads that copy a large buffer together, the caller included; 0: depends on the processors */
    uint32_t copy_threads;
    /* tb: path of the command weft, which runs as the guard; "": this process owns the devices */
    char guard[FAB_GUARD_MAX];
    char guard_socket[FAB_GUARD_SOCKET_MAX]; /* tb: where a guard of several programs listens; "": none */
    struct fab_lane lanes[FAB_LANES_MAX];    /* tb */
    uint32_t lane_count;
    char ofi_provider[256]; /* ofi: libfabric's providers, best first, with commas between; "": weft's own order */
    char ofi_interface[64]; /* ofi: a network interface, or an address of this host; "": that of the side connections */
    bool check_frames;      /* tb: verify only a part of each frame of bulk data, instead of every byte */
};

/* What the higher layers allocate in the pool, for weft_pool_stat(). */
enum fab_use { FAB_USE_NETWORK, FAB_USE_STREAMS, FAB_USE_FILES, FAB_USE_TASKS, FAB_USES };

#define FAB_TRANSPORTS_MAX 4u
#define FAB_TRANSPORT_FDS  16u

enum fab_peer_state { FAB_UNKNOWN, FAB_ALIVE, FAB_LEFT, FAB_DEAD };

struct weft_node;
struct pollfd;
struct fab_link;
struct fab_memory;

/* What every transport implements. The caller has checked all offsets. Functions return 0 or a negative errno. If an op is passed, the
 * transport completes it by fab_complete(), unless the function fails. */
struct fab_transport {
    const char *name;
    bool rdma;                        /* uses RDMA devices: WEFT_TRANSPORT=rdma allows it */
    bool founders_only;               /* does not connect two nodes if one of them joined a running cluster */
    bool at_once;                     /* puts, gets and atomics are complete when the call returns */
    int (*open)(struct weft_node *w); /* allocates resources, before any peer is known */
    void (*close)(struct weft_node *w);
    bool (*reaches)(struct weft_node *w, const uint8_t *peer_host_id);
    /* Both nodes of a pair call it with their side connection. It blocks until `deadline` at most. */
    int (*connect)(struct weft_node *w, struct fab_link *l, int side_fd, int64_t deadline);
    const char *(*broken)(struct weft_node *w, struct fab_link *l); /* why the peer must be treated as dead; NULL: no reason */
    /* The peer is gone: deliver a bounded number of the messages that it has sent, since it may be alive and still be sending. */
    void (*last_words)(struct weft_node *w, struct fab_link *l);
    void (*disconnect)(struct weft_node *w, struct fab_link *l); /* ends the connection, and then fails every pending operation */
    void (*release)(struct weft_node *w, struct fab_link *l);    /* at close, when nothing uses the link any more */

    int (*put)(struct weft_node *w, struct fab_link *l, uint64_t to, const void *src, size_t len, weft_op *op);
    int (*get)(struct weft_node *w, struct fab_link *l, void *dst, uint64_t from, size_t len, weft_op *op);
    int (*atomic)(struct weft_node *w, struct fab_link *l, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, uint64_t *old,
                  weft_op *op);
    int (*put_signal)(struct weft_node *w, struct fab_link *l, uint64_t to, const void *src, size_t len, uint64_t signal, uint64_t add,
                      weft_op *op);
    /* Sets a system word (FAB_NULL_BYTES) at the peer. With `wake`, also wakes the peer's threads that wait for the word. There is no
     * answer. While a cable is unplugged, the operation waits. */
    int (*set_system)(struct weft_node *w, struct fab_link *l, uint64_t at, uint64_t value, bool wake);
    int (*send)(struct weft_node *w, struct fab_link *l, uint32_t id, const void *header, size_t header_len, const void *payload,
                size_t payload_len, weft_op *op);
    /* One step of a flush, without waiting; weft_flush() repeats it. `f` is all zeros at first. */
    bool (*flushed)(struct weft_node *w, struct fab_link *l, struct fab_flush *f);
    void (*fence)(struct weft_node *w, struct fab_link *l);
    /* may be NULL; does the transport's work that needs no handler. Any thread calls this, also while a handler runs. */
    int (*service)(struct weft_node *w);
    int (*progress)(struct weft_node *w); /* called with w->progress held; returns how many events the transport handled */
    /* Whether the transport has nothing to do. Called when the progress thread has announced that it will sleep. */
    bool (*idle)(struct weft_node *w);
    /* NULL: the peer's pool cannot be accessed by loads and stores (fab_no_pointer()) */
    void *(*pointer)(struct weft_node *w, struct fab_link *l, uint64_t offset);
    /* Wakes the threads of the peer that wait for its memory to change (weft_wait_until). */
    void (*wake)(struct weft_node *w, struct fab_link *l);
    /* may be NULL; `out` contains the transport's name already */
    void (*stat)(struct weft_node *w, struct fab_link *l, weft_link_stats *out);
    /* May be NULL. How many regions the pool uses on a device, and how many that device allows, for the device on which it uses most. Both
     * are 0 before a device is used. */
    void (*regions)(struct weft_node *w, uint32_t *used, uint32_t *budget);
    /* All four may be NULL (see memory.c). memory_add() registers memory that only the device may be able to access, such as a GPU's: the
     * first `bytes` of the dmabuf `fd`, which the caller may close afterwards. Its addresses begin at `base`. put_from() and get_into() are
     * put() and get() with local memory of this kind. memory_remove() is called when no operation uses the memory any more; close() removes
     * what is left. */
    int (*memory_add)(struct weft_node *w, int fd, void *base, uint64_t bytes, struct fab_memory **out);
    void (*memory_remove)(struct weft_node *w, struct fab_memory *m);
    int (*put_from)(struct weft_node *w, struct fab_link *l, struct fab_memory *m, uint64_t to, const void *src, size_t len, weft_op *op);
    int (*get_into)(struct weft_node *w, struct fab_link *l, struct fab_memory *m, void *dst, uint64_t from, size_t len, weft_op *op);
    /* May be NULL. The i-th descriptor that the progress thread must poll after idle() has returned true; -1: there are no more (at most
     * FAB_TRANSPORT_FDS). woken() is called when the descriptor is readable. */
    int (*fd)(struct weft_node *w, uint32_t i);
    void (*woken)(struct weft_node *w);
    /* Both may be NULL; both are called on the progress thread. side: handles a message from the same transport at the peer
     * (fab_side_send()); the message must be checked. upkeep: periodic work; returns after how many ns to call it again. fab_kick() makes
     * the thread call upkeep at once. */
    void (*side)(struct weft_node *w, struct fab_link *l, const void *bytes, size_t len);
    int64_t (*upkeep)(struct weft_node *w, int64_t now_ns);
    /* may be NULL; called when the node has joined and the progress thread runs: checks that all nodes can be reached */
    int (*settle)(struct weft_node *w, int64_t deadline);
    /* may be NULL; called when this node wants to leave: whether other nodes reach each other through this node */
    bool (*needed)(struct weft_node *w);
};

/* The connection to one peer, or to this node itself. */
struct fab_link {
    _Atomic int state; /* fab_peer_state */
    uint32_t node;
    uint64_t pool_bytes;
    const struct fab_transport *transport;
    void *impl;
    int side_fd;   /* the side connection, whose end shows that the peer has died; -1 for this node itself */
    int pid_fd;    /* a pidfd of the peer's process, where the system has such; else -1 */
    char host[64]; /* for error messages and the log */
    int pid;       /* for error messages and the log, too */
    base_spin side_lock;
    struct fab_side *side; /* buffers of side.c; NULL while no message is on its way */
    /* When the peer left, died, or could not join (fab_abandon()); 0: not yet. Once set, only the progress thread uses this link. */
    int64_t gone_ns;
    char *gone_why; /* why the peer is gone; written before the state changes; NULL: not known */
    bool goodbye;   /* the peer has said that it leaves; used by the progress thread only */
    /* why a higher layer wants to treat the peer as dead (fab_give_up()); NULL: no layer wants this */
    _Atomic(const char *) given_up;
    /* true: an operation that was started without an op may not have happened; the next flush reports this */
    _Atomic bool unsure;
    /* The following fields are only for peers on other hosts (peer.c): */
    int64_t liveness_ns;   /* how long the peer and its host may be silent; 0: the peer is on this host, and the kernel reports its death */
    int64_t silent_ns;     /* how long the peer has been silent while this node listened; used by the progress thread only */
    int64_t unanswered_ns; /* how long the peer's host has acknowledged nothing while this node listened */
    _Atomic bool heard;    /* the transport has received something that only a living process sends */
    _Atomic bool answered; /* the peer's host has acknowledged a heartbeat */
    /* bytes written to the side connection, and how many of them the peer's host is known to have acknowledged; guarded by side_lock */
    int64_t side_sent, side_taken;
};

/* Callbacks of the higher layers, called in the order in which they were installed. */
struct fab_hook {
    void (*gone)(struct weft_node *w, uint32_t node, bool died, void *arg); /* called on the progress thread */
    void (*joined)(struct weft_node *w, uint32_t node, void *arg); /* on the progress thread: a node has joined the running cluster */
    /* Periodic work on the progress thread. Returns after how many ns to call it again; INT64_MAX: never. fab_kick() makes the thread call
     * it at once. */
    int64_t (*tick)(struct weft_node *w, int64_t now_ns, void *arg);
    /* On the progress thread: node `node` of this host has sent a descriptor (fab_side_give()). `fd` is -1 if this process has too many
     * open files. The layer must check `what` and the descriptor. If the descriptor is for this layer, it returns true, and closes the
     * descriptor later. NULL: the layer takes no descriptors. */
    bool (*given)(struct weft_node *w, uint32_t node, uint64_t what, int fd, void *arg);
    void (*close)(struct weft_node *w, void *arg); /* called when no thread of weft runs any more: frees what the layer has */
    /* Called when the links are closed: frees memory to which operations could write until then, such as ops. */
    void (*free)(struct weft_node *w, void *arg);
    void *arg;
};
#define FAB_HOOKS_MAX 16u

/* What this node's waiting threads sleep on. It is in memory that peers of the same host can write (shm/transport.c). A waiter increments
 * `sleepers` (seq_cst), reads seq, checks its condition, and sleeps on seq. A waker changes memory, executes a full fence, and if
 * `sleepers` is not 0, increments seq and wakes. */
struct fab_bell {
    _Alignas(BASE_CACHE_LINE) _Atomic uint32_t seq;
    _Atomic uint32_t sleepers;
    /* For senders of messages: `pollers` is the number of this node's threads that poll for messages now. `napping` is 1 while the progress
     * thread sleeps and needs a byte on the side connection to wake. */
    _Alignas(BASE_CACHE_LINE) _Atomic uint32_t pollers;
    _Atomic uint32_t napping;
};

/* Operations on memory of GPUs, implemented by src/gpu/. Any thread may call them. They are like the operations in weft/fabric.h, but the
 * caller has not checked the addresses. */
struct fab_arenas {
    int (*put)(struct weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
    int (*get)(struct weft_node *w, void *dst, weft_gaddr src, size_t len, weft_op *op);
    int (*atomic)(struct weft_node *w, enum fab_atomic kind, weft_gaddr word, uint64_t a, uint64_t b, uint64_t *old, weft_op *op);
    int (*put_signal)(struct weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal, uint64_t add, weft_op *op);
    int (*free)(struct weft_node *w, weft_gaddr addr);
    bool (*owns)(struct weft_node *w, const void *p); /* whether the address is in memory of a GPU of this process */
    /* Whether all operations to the node that had begun when `f` was first passed (flush.h) are complete. */
    bool (*flushed)(struct weft_node *w, uint32_t node, struct fab_flush *f);
    int (*service)(struct weft_node *w);
    /* Whether a GPU is copying for this node, and should end within milliseconds. Only polling shows the end of a copy. */
    bool (*copying)(struct weft_node *w);
    /* the first error of the operations that were started without an op; reading the error clears it */
    int (*failure)(struct weft_node *w, uint32_t node);
    void (*stat)(struct weft_node *w, uint32_t node, weft_link_stats *out);
};

struct fab_handler {
    _Atomic(weft_handler_fn) fn;
    void *arg;
};

struct weft_node {
    uint32_t rank;
    /* This node knows of nodes with numbers below `size`. When a node joins the running cluster, its entry of `links` is written before
     * `size` (seq_cst). So a thread that sees the new `size` also sees the entry. */
    _Atomic uint32_t size;
    uint32_t founders;          /* the nodes 0 to founders - 1 started together; only they take part in barriers and exchanges */
    uint32_t room;              /* size of the tables of nodes: `size` if no node can join later, else WEFT_MAX_NUMBERS */
    _Atomic uint32_t size_here; /* nodes on this host */
    uint32_t prepared;          /* how many entries of `links` are written; used only by the thread that connects nodes */
    _Atomic uint32_t newcomer;  /* a node that is connected, for the progress thread to announce; 0: none (grow.c) */
    struct fab_options options;
    struct mem_pool *pool;
    _Atomic uint64_t used[FAB_USES]; /* how many bytes of the pool each use has */
    uint8_t *pool_base;
    uint64_t pool_bytes;
    uint64_t heap_offset; /* offset of the heap in every pool; the system words (FAB_NULL_BYTES) are before it */
    uint8_t host_id[16];
    bool oversubscribed; /* more nodes on this host than processors */
    /* A local pointer may be an address of a GPU's memory, so each put and get must check its pointer. */
    _Atomic bool gpu_memory;

    const struct fab_transport *transports[FAB_TRANSPORTS_MAX + 1]; /* NULL-terminated; those that are open */
    void *shm, *rc, *tb, *ofi;
    char address[64]; /* the numeric address by which nodes of other hosts reach this one; "": all are on this host */
    base_spin now_lock;
    struct fab_now *now; /* protected by now_lock; see now.c */
    /* [founders]: the device that leads to each node, NULL: none. NULL instead of an array: not configured, so tb finds the cables. */
    char **towards;

    struct fab_link *links; /* [room] */
    struct fab_bell *bell;

    base_spin progress; /* the thread that holds this lock delivers messages */
    struct fab_handler handlers[FAB_HANDLERS];

    _Atomic uint64_t epoch;
    pthread_mutex_t member_lock;
    struct fab_hook hooks[FAB_HOOKS_MAX];
    _Atomic uint32_t hook_count;

    pthread_t thread; /* the progress thread */
    bool thread_started;
    pthread_t pulse_thread; /* sends heartbeats, see peer.c */
    bool pulse_started;
    _Atomic uint32_t pulse_end;
    int64_t pulse_ns;            /* interval of heartbeats; 0: no peer needs any */
    int64_t listened_ns;         /* when the side connections were last read; used by the progress thread only */
    _Atomic bool polled;         /* a device in use cannot wake a thread, so a thread that waits for its operations must poll */
    _Atomic bool lazy;           /* the program polls by itself, so the progress thread polls only every LAZY_MS */
    _Atomic uint64_t polls;      /* counts calls of weft_progress() and spinning waits: it changes while the program polls */
    _Atomic uint32_t last_looks; /* how often fab_last_look() polled, because the progress thread was asleep */
    /* The value of `polls` when a thread of the program last went to sleep in a wait. While `polls` is the same, the program has not polled
     * since then, and the progress thread polls. */
    _Atomic uint64_t rested;
    _Atomic bool stopping;
    _Atomic uint32_t waiting;    /* threads of the program that are inside a waiting call; weft_close() fails unless this is 0 */
    struct weft_node *next_open; /* node/open.c */
    int wake_fd[2];              /* a pipe that wakes the progress thread */
    struct pollfd *poll_fds;     /* the progress thread's poll set, and the link of each entry */
    uint32_t *poll_nodes;

    const struct fab_arenas *arenas; /* set before the node joins */
    _Atomic bool arenas_used;        /* an operation on memory of a GPU has begun, so fences and flushes must use `arenas`, too */

    void *cluster, *sync, *queues, *gpus, *gateway;
};

/* Adds `bytes` to the count of the pool's bytes in use for the purpose `use`; negative for bytes that are no longer in use. */
static inline void fab_use(struct weft_node *w, enum fab_use use, int64_t bytes)
{
    atomic_fetch_add_explicit(&w->used[use], (uint64_t)bytes, memory_order_relaxed);
}

/* --- members.c --- */
bool fab_alive(const struct weft_node *w, uint32_t node);
void *fab_no_pointer(struct weft_node *w, struct fab_link *l, uint64_t offset); /* as `pointer` of a struct fab_transport: returns NULL */
uint32_t fab_count_dead(const struct weft_node *w, uint32_t below);
int fab_refuse_node(struct weft_node *w, uint32_t node); /* 0 if operations can go to this node; else the error that tells why not */

/* --- wake.c --- */
void fab_wake_here(struct weft_node *w); /* wakes this node's own waiting threads; call this after changing what they wait for */
void fab_wake(struct weft_node *w,
              uint32_t node);       /* wakes the waiting threads of another node; call this after putting to that node's memory */
void fab_kick(struct weft_node *w); /* wakes the progress thread of this node */

/* --- deliver.c --- */
/* Whether this thread is inside a handler or hook, where waiting is refused. */
bool fab_in_handler(void);
bool fab_nowait(bool on); /* true: this thread's operations return -EAGAIN from now on, if they find no room. Returns the former value. */
bool fab_is_nowait(void);
bool fab_queues_more(void); /* whether operations are queued beyond the usual limits: in a handler, unless fab_nowait(true) was called */
bool fab_on_progress_thread(void);
/* Delivers messages, unless another thread is delivering. Returns how many events it handled. */
int fab_progress(struct weft_node *w);
/* Records that the program polls, so that the progress thread does not poll for a while. A lost increment does no harm. */
static inline uint64_t fab_polled(struct weft_node *w)
{
    uint64_t polls = atomic_load_explicit(&w->polls, memory_order_relaxed) + 1;
    atomic_store_explicit(&w->polls, polls, memory_order_relaxed);
    return polls;
}
/* One in WAITS_PER_PROGRESS waits also delivers messages, for a program that only puts and waits. */
#define WAITS_PER_PROGRESS 16u
/* Makes progress without calling handlers. */
int fab_service(struct weft_node *w);
/* Does only the work that needs handlers. */
int fab_messages(struct weft_node *w);
/* Called by a thread that stops polling: polls once more if the progress thread is asleep, because that thread would not notice a message
 * that has just arrived. */
void fab_last_look(struct weft_node *w);
/* Runs the handler of a message; transports call this from progress(). Returns false if no handler is installed yet: try again later. */
bool fab_deliver(struct weft_node *w, uint32_t from, uint32_t id, const void *header, size_t header_len, const void *payload,
                 size_t payload_len);
/* For peer.c and the progress thread: deliver the last messages of a peer, and call the hooks of the higher layers. Hooks must not wait, as
 * handlers must not. */
void fab_last_words(struct weft_node *w, struct fab_link *l, enum fab_peer_state gone); /* `gone`: the link's new state */
void fab_run_gone(struct weft_node *w, uint32_t node, bool died);
void fab_run_joined(struct weft_node *w, uint32_t node);
bool fab_run_given(struct weft_node *w, uint32_t node, uint64_t what, int fd); /* returns false if no layer has taken the descriptor */
int64_t fab_run_ticks(struct weft_node *w);                                    /* returns the time in ns until the next call is due */

/* --- fabric.c --- */
/* Resolve an address: the link and the offset, or -EFAULT / -ECONNRESET with base_fail(). */
int fab_resolve(struct weft_node *w, weft_gaddr addr, uint64_t bytes, struct fab_link **link);
/* Whether `p` points to local memory that only a GPU can access. */
static inline bool fab_gpu_memory(struct weft_node *w, const void *p)
{
    return BASE_UNLIKELY(atomic_load_explicit(&w->gpu_memory, memory_order_relaxed)) && w->arenas->owns(w, p);
}
/* Sets a system word (FAB_NULL_BYTES) of a node. With `wake`, also wakes the threads that wait for the word. `offset` is not checked.
 * -ECONNRESET if the node is gone. */
int fab_system_set(struct weft_node *w, uint32_t node, uint64_t offset, uint64_t value, bool wake);
/* Reads a system word of a node. Waits at most `timeout_ns`. */
int fab_system_get(struct weft_node *w, uint32_t node, uint64_t offset, uint64_t *value, int64_t timeout_ns);
/* As weft_flush(), but does not report lost operations: the program's next flush does (fab_link.unsure). A broken link never loses messages
 * and system words. */
int fab_flush(struct weft_node *w, uint32_t node, int64_t timeout_ns);
/* One step of a flush, without waiting; `f` is all zeros at first. Returns -EINPROGRESS if this must be called again, else the flush's
 * result. Sets no error text.
 */
int fab_flush_look(struct weft_node *w, uint32_t node, struct fab_flush *f);
/* One step of weft_fence(), without waiting; `f` is all zeros at first. Returns -EAGAIN: call this again. Sets no error text. */
int fab_fence_look(struct weft_node *w, uint32_t node, struct fab_flush *f);
/* Complete an op (NULL allowed). */
void fab_complete(weft_op *op, int status);
/* Mark an op pending, before a transport may complete it. */
static inline void fab_pending(weft_op *op, uint32_t node)
{
    op->node = node;
    __atomic_store_n(&op->status, 1, __ATOMIC_RELAXED);
}
/* weft_send() for any handler id. In a handler it never waits: a message for which there is no room is kept and sent later. */
int fab_send(struct weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
             size_t payload_len, weft_op *op);

/* --- memory.c: memory outside the pool that a transport's device accesses directly --- */
/* Memory that is registered with a transport. The transport's own struct begins with struct fab_memory. */
struct fab_memory {
    const struct fab_transport *transport;
};
/* Registers the memory of a dmabuf (see struct fab_transport). Returns -ENODEV if no transport of this node uses a device that could access
 * the memory. */
int fab_memory_add(struct weft_node *w, int fd, void *base, uint64_t bytes, struct fab_memory **out);
void fab_memory_remove(struct weft_node *w, struct fab_memory *m); /* before the transports are closed; NULL allowed */
/* Whether the device can move bytes between this memory and the pool of `node` directly. `m` may be NULL. */
bool fab_memory_leads(const struct weft_node *w, const struct fab_memory *m, uint32_t node);
/* Like weft_put() and weft_get(), for local memory in `m`. fab_memory_leads() must be true for the other node. */
int fab_memory_put(struct weft_node *w, struct fab_memory *m, weft_gaddr dst, const void *src, size_t len, weft_op *op);
int fab_memory_get(struct weft_node *w, struct fab_memory *m, void *dst, weft_gaddr src, size_t len, weft_op *op);

/* --- now.c: a compare-and-swap that may outlast its call, and for which a later call can wait --- */
/* Whether puts, gets and atomics to this address are complete when the call returns. Also true if the operation would be refused. */
bool fab_at_once(const struct weft_node *w, weft_gaddr where);
struct fab_now;
/* weft_get_blocking() and weft_put_blocking() copy a buffer of at most FAB_NOW_BYTES, so the caller may reuse its buffer after a time-out.
 * weft/fabric.h promises this only up to WEFT_BLOCKING_BYTES. */
#define FAB_NOW_BYTES 2048u
int fab_swap_begin(struct weft_node *w, weft_gaddr word, uint64_t expected, uint64_t desired, struct fab_now **swap);
/* Waits for the swap. Returns -EINPROGRESS if it is not complete: call this again. Any other result is final and sets `*swap` to NULL.
 * After 0, `*old` is the former value. -ECONNRESET: the node is gone. After other errors it is not known whether the swap has happened, or
 * will happen before the next atomic to that node. In a handler this does not wait. */
int fab_swap_wait(struct weft_node *w, struct fab_now **swap, uint64_t *old, int64_t timeout_ns);
void fab_swap_leave(struct weft_node *w, struct fab_now **swap); /* the caller no longer wants the result */
void fab_now_free(struct weft_node *w);                          /* called when the transports are closed */

/* --- peer.c: liveness --- */
/* Handles the loss of a peer, once for each peer: delivers what the peer had sent, fails operations to it, increments the epoch, calls the
 * hooks. */
void fab_peer_gone(struct weft_node *w, uint32_t node, bool died, const char *why);
/* Asks the progress thread to treat the node as dead, although it may be alive. Any thread may call it. `why` is a string constant. */
void fab_give_up(struct weft_node *w, uint32_t node, const char *why);
static inline void fab_heard(struct fab_link *l)
{
    if (!atomic_load_explicit(&l->heard, memory_order_relaxed)) /* do not write this shared cache line for every message */
        atomic_store_explicit(&l->heard, true, memory_order_relaxed);
}
int fab_pulse_start(struct weft_node *w); /* starts the heartbeats to the peers on other hosts */
void fab_pulse_stop(struct weft_node *w);
/* declares silent peers dead. Called right after the side connections were read; returns when they must be read again */
int64_t fab_judge_silence(struct weft_node *w);

/* --- side.c: the side connection, once the pair is connected --- */
/* Sends or receives all these bytes before `deadline`, while two nodes connect. Returns a negative errno without base_fail(). */
int fab_side_transfer(int fd, void *bytes, size_t len, bool out, int64_t deadline);
#define FAB_SIDE_MESSAGE_MAX 512u
/* Sends a message to the same transport at the peer, in order. Only on the progress thread. Returns -ENOBUFS if the peer has not read the
 * earlier messages. */
int fab_side_send(struct fab_link *l, const void *bytes, size_t len);
bool fab_side_byte(struct fab_link *l, char byte); /* any thread; returns false if the socket is full and the byte was dropped */
/* Sends a copy of a descriptor to a node of this host. That node's hook given() gets the copy. Any thread; never waits. Returns -EAGAIN if
 * there is no room now. */
int fab_side_give(struct fab_link *l, uint64_t what, int fd);
void fab_side_free(struct fab_link *l);                      /* frees the buffers, and what they hold */
void fab_side_goodbye(struct fab_link *l, int64_t deadline); /* waits until the socket has accepted the goodbye */
/* Whether bytes wait to be sent. If so, call fab_side_read() also when the socket becomes writable, because it sends these bytes. */
bool fab_side_pending(struct fab_link *l);
/* Reads at most `most` kilobytes. If the peer is gone, returns the reason, and sets `*died` to whether it died. Otherwise returns NULL. */
const char *fab_side_read(struct weft_node *w, struct fab_link *l, uint32_t most, bool *died);
/* Whether the other host has acknowledged more bytes since the last call, or has nothing to acknowledge. */
bool fab_side_answered(struct fab_link *l);

/* --- progress.c: the progress thread --- */
int fab_start(struct weft_node *w);                    /* starts the progress thread, once all links are connected */
int fab_settle(struct weft_node *w, int64_t deadline); /* waits until every node is known to be reachable */
void fab_stop(struct weft_node *w);                    /* says goodbye to the peers and ends the thread */

/* --- wait.c --- */
/* Waits until ready(arg) is true: polls, then sleeps. -ETIMEDOUT at `deadline`, without base_fail(). -EDEADLK in a handler. */
typedef bool (*fab_ready_fn)(void *arg);
int fab_wait(struct weft_node *w, fab_ready_fn ready, void *arg, int64_t deadline);
/* As fab_wait(), but sleeps at once: for what takes much longer than WEFT_SPIN, such as the start of a process. */
int fab_wait_asleep(struct weft_node *w, fab_ready_fn ready, void *arg, int64_t deadline);
/* As fab_wait(), but sleeps at once, so that the progress thread polls, also between two such waits; unless a device must be polled. */
int fab_wait_beside(struct weft_node *w, fab_ready_fn ready, void *arg, int64_t deadline);
/* Makes progress for a few times WEFT_SPIN, before a thread sleeps elsewhere than in fab_wait(). Returns whether the condition holds.
 * Message handlers may run in this call. */
bool fab_linger(struct weft_node *w, fab_ready_fn ready, void *arg);
/* converts a time-out, WEFT_TIMEOUT_DEFAULT included, to a point in time */
int64_t fab_timeout(const struct weft_node *w, int64_t timeout_ns);
/* Waits for room for one more operation. -ETIMEDOUT at the node's deadline, -EAGAIN if this call must not wait; without base_fail(). */
int fab_wait_for_room(struct weft_node *w, fab_ready_fn has_room, void *arg);
/* For a call that consists of several operations and has one deadline. After `deadline`, this thread waits no longer when it starts an
 * operation, or waits for one with WEFT_TIMEOUT_DEFAULT. INT64_MAX: no limit. Returns the former limit, which the caller must restore. */
int64_t fab_limit(int64_t deadline);

/* --- patience.c: waits for something that another node must do --- */
enum fab_whom {
    FAB_KNOWN, /* a node that the caller knows, and whose death the caller checks for */
    FAB_ANY,   /* it is not known which node: each node that dies during the wait may be the one */
    FAB_LAST,  /* any living node can end the wait, which fails only when no other node is left */
};
struct fab_patience {
    struct weft_node *w;
    enum fab_whom whom;
    bool lasting, lonely; /* the wait has no deadline of its own; `lost_at` was set because no other node was alive */
    int64_t deadline;     /* INT64_MAX: none */
    int64_t say_at;       /* when to print whom this node waits for; INT64_MAX: printed already, or never */
    int64_t lost_at;      /* the node that should end the wait is gone, so the wait fails at this time; INT64_MAX: no node is gone */
    uint64_t epoch;       /* the epoch in which the members were last checked */
    uint32_t dead;        /* how many nodes were dead in that epoch */
};
void fab_patience_begin(struct fab_patience *p, struct weft_node *w, enum fab_whom whom, int64_t timeout_ns);
/* When to call fab_patience_check() again at the latest: the deadline to pass to fab_wait(). */
static inline int64_t fab_patience_next(const struct fab_patience *p)
{
    int64_t next = p->deadline < p->say_at ? p->deadline : p->say_at;
    return next < p->lost_at ? next : p->lost_at;
}
/* Returns 0 to go on waiting, -ETIMEDOUT after the deadline, or -ECONNRESET if the node that should end the wait is gone. Sets no error
 * text. */
int fab_patience_check(struct fab_patience *p);
/* True once: it is time to print for whom this node waits. */
bool fab_patience_due(struct fab_patience *p);
/* Prints what this node waits for and for whom: "barrier", "nodes 2 and 3, which are alive". */
void fab_patience_say(const struct fab_patience *p, const char *what, const char *whom);
/* Writes which nodes below `count` have `in` set: "no node", "node 2", "nodes 2 and 3"; of many nodes only the first. Returns how many
 * nodes have it set. */
uint32_t fab_name_nodes(const bool in[], uint32_t count, char *buf, size_t len);
/* Writes which nodes are alive, such as "node 1 is alive" or "no other node is alive". */
void fab_name_living(const struct weft_node *w, char *buf, size_t len);
/* Returns the end of an error text for -ECONNRESET, after a wait with FAB_ANY or FAB_LAST. */
const char *fab_patience_loss(const struct fab_patience *p);

/* --- grow.c: nodes that join the running cluster. Only the thread that connects nodes calls these --- */
/* Whether this node or `node` joined the running cluster later, so it is not one of the founders. */
static inline bool fab_late(const struct weft_node *w, uint32_t node)
{
    return w->rank >= w->founders || node >= w->founders;
}
/* Writes the entries of `links` up to that of `node`, which is below w->room. */
void fab_prepare(struct weft_node *w, uint32_t node);
/* Call this when `node` is connected (fab_connect()). Waits until the progress thread has marked the node as alive and called the hooks. At
 * the deadline, returns 0 if only hooks still run, and -ETIMEDOUT if the node is not marked; then it never will be. */
int fab_admit(struct weft_node *w, uint32_t node, int64_t deadline);
void fab_announce(struct weft_node *w); /* for the progress thread: does what fab_admit() waits for */
/* fab_connect() or fab_admit() has failed: closes the side connection and the pidfd. The rest of the link stays until this node is closed.
 * The node's number is not used again. */
void fab_abandon(struct weft_node *w, uint32_t node);

/* --- node.c --- */
/* What fab_create() needs to make the node's handle and open the transports. The new w->links has entries for `size` nodes, all
 * FAB_UNKNOWN. */
struct fab_config {
    uint32_t rank, size;
    uint32_t founders; /* see struct weft_node; 0: as `size` */
    bool grows;        /* other nodes may join later */
    /* NULL-terminated, at most FAB_TRANSPORTS_MAX, best first. The first one also connects the node to itself, and owns weft_node.bell. */
    const struct fab_transport *const *transports;
    const struct fab_options *options; /* copied */
    const char *const *towards;        /* see weft_node.towards */
    uint64_t system_bytes;             /* bytes of each pool for the system words of the higher layers */
    struct mem_options pool;
};
int fab_create(struct weft_node **out, const struct fab_config *config);
void fab_destroy(struct weft_node *w); /* after fab_stop() */

/* Makes the RDMA transports, and with `networks` all transports, search for devices now, because nodes that join later may need these. Call
 * this before the progress thread starts: rc must not find its device while another thread polls. */
void fab_look_early(struct weft_node *w, bool networks);
int fab_may_join(struct weft_node *w, const uint8_t *peer_host_id); /* Returns -EOPNOTSUPP if no node of that host can be connected later */
int fab_connect_self(struct weft_node *w, int64_t deadline);
/* The best transport to a peer of that host, as far as this node knows; NULL: there is none. */
const struct fab_transport *fab_choose(struct weft_node *w, const uint8_t *peer_host_id);
/* Agrees with the peer on the best transport that both can use, and connects. Both nodes call it with their side connection. */
int fab_connect(struct weft_node *w, struct fab_link *l, const uint8_t *peer_host_id, int side_fd, int64_t deadline);

/* The result of the search for devices. The search runs once, when a peer first needs a device. */
struct fab_look {
    bool done;
    int failed;    /* the errno with which the search failed; 0: the search has not failed */
    char why[960]; /* the error text of that failure */
};
/* Returns false when the search failed; base_error() then says why. */
bool fab_look(struct weft_node *w, struct fab_look *l, int (*look)(struct weft_node *w));

int fab_handle(struct weft_node *w, uint32_t id, weft_handler_fn fn, void *arg); /* installs a handler of the program or of a layer */
int fab_hook(struct weft_node *w, const struct fab_hook *hook);
void fab_run_close(struct weft_node *w); /* calls the close hooks, the last installed first */

#endif
