/* SPDX-License-Identifier: MIT
 *
 * The library inside the program: its objects, and the functions that its files call of each other. docs/design.md has a table of the
 * files, and says which file may call which.
 *
 * Every object begins with libibverbs' structure for it, and has the index of its entry in the fabric's tables.
 */
#ifndef SOFTVERBS_LIB_H
#define SOFTVERBS_LIB_H

#include "../fabric/shared.h"

#include <infiniband/verbs.h>
#include <pthread.h>

#define SV_PUBLIC                           __attribute__((visibility("default")))
#define sv_container(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

/* ---- The library in this process ------------------------------------------------------------------------------- */
struct sv_library {
    pthread_mutex_t mutex; /* protects what follows; taken when objects are made and destroyed, never while data moves */
    bool joined;           /* this process is on a fabric; sv_joined() reads it without the mutex */
    uint32_t life;         /* increased in a forked child: objects with a lower value belong to the parent */
    struct sf_view view;
    struct sf_fabric *fabric;
    const struct sv_profile *profile;
    uint32_t host;
    struct sv_qp **qps;   /* [SF_QPS], by entry; may be NULL. Guarded by `mutex`, except that pollers read with acquire and without it. */
    struct sv_cq **cqs;   /* [SF_CQS], by entry */
    struct sv_srq **srqs; /* [SF_SRQS], by entry */
};
extern struct sv_library sv_lib;

/* setup.c: joins the fabric $SOFTVERBS_FABRIC as host $SOFTVERBS_HOST, unless this process has joined. Returns 0, or an errno whose reason
 * was logged. A forked child may join as a process of its own, without its parent's objects. */
int sv_join(void);

/* log.c: prints to stderr, according to SOFTVERBS_LOG=error|info|debug. Refusals are logged at `info`, with the limit, the profile that
 * sets the limit, and where it is documented. */
enum sv_level { SV_ERROR = 1, SV_INFO = 2, SV_DEBUG = 3 };
extern int sv_level;
void sv_log_line(enum sv_level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define sv_log(level, ...) ((level) <= sv_level ? sv_log_line(level, __VA_ARGS__) : (void)0)
/* The page about the keys of profiles, for messages. */
#define SV_DOCUMENTED "softverbs/docs/profiles.md"

/* Logs a refusal, sets errno, and returns the errno. Usage: `return sv_refuse(ENOMEM, ...), NULL`. */
int sv_refuse(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline bool sv_joined(void)
{
    return __atomic_load_n(&sv_lib.joined, __ATOMIC_RELAXED);
}

/* ---- Objects ------------------------------------------------------------------------------------------------- */
struct sv_device {
    struct ibv_device base;
    uint32_t entry; /* index into topology.devices and fabric.devices */
};

struct sv_context {
    uint32_t device, entry, life;
    int async_read, async_write;
    _Atomic uint32_t objects;   /* number of existing objects of the context */
    struct verbs_context verbs; /* what the program sees is verbs.context; the ABI requires this member to be last */
};
static inline struct sv_context *sv_context_of(struct ibv_context *c)
{
    return sv_container(c, struct sv_context, verbs.context);
}

/* Whether an object's entry on the fabric belongs to this process. In a forked child, objects of its parent do not: then only the program's
 * structure is freed, and the fabric is not changed. */
static inline bool sv_mine(struct ibv_context *context, _Atomic uint32_t *owner)
{
    return sv_joined() && sv_context_of(context)->life == sv_lib.life &&
           atomic_load_explicit(owner, memory_order_relaxed) == sv_lib.view.process;
}

/* The location of a queue of this process. The owner uses this private copy of the values on the fabric, so that it writes only to its own
 * slots even if another process overwrites those values. */
struct sv_ring {
    char *base;
    uint64_t offset;           /* offset in the fabric's file; 0: no queue */
    uint32_t mask, stride;     /* slots minus 1; bytes of a slot */
    uint32_t limit, sge_limit; /* maximum number of unpolled requests; maximum number of elements of a request */
};
static inline void *sv_ring_slot(const struct sv_ring *r, uint64_t position)
{
    return r->base + (position & r->mask) * r->stride;
}
static inline size_t sv_ring_bytes(const struct sv_ring *r)
{
    return ((size_t)r->mask + 1) * r->stride;
}

struct sv_pd {
    struct ibv_pd base;
    uint32_t entry;
    _Atomic uint32_t users; /* number of regions, queue pairs, shared receive queues and address handles that use this domain */
};

struct sv_mr {
    struct ibv_mr base;
    uint32_t entry;
    void *mapped; /* the mapping of a dmabuf; unmapped on deregistration */
    size_t mapped_bytes;
};

struct sv_channel {
    struct ibv_comp_channel base; /* base.fd is an epoll set of the pipe and the timer */
    int pipe_read, pipe_write, timer;
    pthread_mutex_t mutex;
    uint64_t timer_at; /* when the timer expires, ns; 0: not set. Guarded by `mutex` */
    uint32_t life;     /* sv_lib.life when the channel was made */
};

struct sv_cq {
    union {
        struct ibv_cq base;
        struct ibv_cq_ex ex;
    };
    uint32_t entry, generation, life;
    struct sf_cq *shared;
    struct sv_ring ring; /* its slots are struct sf_cqe; changed while `poll` is held */
    struct sv_channel *channel;
    pthread_mutex_t poll;  /* held by consumers */
    uint64_t look_again;   /* ns; guarded by `poll`: when to check waiting queue pairs again */
    struct sf_cqe current; /* the completion that the extended interface has polled */
    bool reading;
    uint32_t turns;            /* polls that found something */
    uint32_t idle;             /* consecutive polls that found nothing */
    uint64_t wc_flags;         /* as given to ibv_create_cq_ex */
    uint64_t wall_ahead;       /* ns: how far the wall clock is ahead of CLOCK_MONOTONIC */
    _Atomic uint32_t told;     /* 1: the queue had completions when it was armed; the event for these was sent, and is still unread */
    uint32_t events_delivered; /* guarded by base.mutex */
    uint32_t async_delivered;
    bool failed;            /* the event for the queue's overrun was delivered; guarded by sv_lib.mutex */
    _Atomic uint32_t users; /* number of queue pairs that use this queue */
};

struct sv_srq {
    struct ibv_srq base;
    uint32_t entry, generation, life;
    struct sf_srq *shared;
    struct sv_ring ring; /* changed only by a thread that holds `post` */
    pthread_mutex_t post;
    _Atomic uint64_t polled; /* requests whose completions were polled, so that their slots are free */
    uint32_t async_delivered;
    _Atomic uint32_t users;
};
/* The number of slots in use after `posted` requests were posted. acquire: pairs with the releases in free_slots() and sf_advance(), so a
 * free slot has been read. */
static inline uint64_t sv_srq_used(const struct sv_srq *srq, uint64_t posted)
{
    return posted - atomic_load_explicit(&srq->polled, memory_order_acquire) -
           atomic_load_explicit(&srq->shared->dropped, memory_order_acquire);
}

struct sv_qp {
    union {
        struct ibv_qp base;
        struct ibv_qp_ex ex;
    };
    uint32_t entry, life;
    struct sf_qp *shared;
    struct sv_ring send, receive;
    pthread_mutex_t post_send, post_receive;
    _Atomic uint64_t send_polled; /* number of send requests whose slots are free, because their completions or later ones were polled */
    _Atomic uint64_t receive_polled;
    _Atomic uint64_t frames_send, frames_receive; /* outstanding frames, if the profile counts frames */
    uint32_t async_delivered;
    /* told: the events of SV_ONCE_EVENTS that the program has read; told_in: in which connection. Guarded by sv_lib.mutex */
    uint32_t told, told_in;
    struct ibv_qp_attr attr; /* as last modified, for ibv_query_qp */
    struct ibv_qp_init_attr init;
    struct sv_builder *builder; /* for wr.c; may be NULL */
};

struct sv_ah {
    struct ibv_ah base;
    struct ibv_ah_attr attr;
    uint32_t device; /* the peer's device; SF_NO_DEVICE: messages are lost */
};

/* ---- cq.c, complete.c, poll.c ------------------------------------------------------------------------------------------ */
struct ibv_cq *sv_create_cq(struct ibv_context *, int cqe, void *cq_context, struct ibv_comp_channel *, int vector);
int sv_resize_cq(struct ibv_cq *, int cqe);
int sv_destroy_cq(struct ibv_cq *);
int sv_req_notify_cq(struct ibv_cq *, int solicited_only);     /* complete.c */
int sv_poll_cq(struct ibv_cq *, int entries, struct ibv_wc *); /* poll.c: ibv_context_ops.poll_cq */
/* poll.c: takes the next completion, and frees its slots. If there is no completion, first runs queue pairs whose time has come. Returns
 * false if there is still no completion. The caller holds cq->poll. */
bool sv_take_cqe(struct sv_cq *, struct sf_cqe *);
/* poll.c: removes the unpolled completions of a queue pair. The caller holds cq->poll and the queue pair's locks. */
void sv_forget_completions(struct sv_cq *, uint32_t qp_num);
/* Whether a thread whose poll found nothing should yield: after some tens of microseconds without a completion, the peer may need this
 * core. The caller holds cq->poll, and yields after releasing it. */
static inline bool sv_tired(struct sv_cq *cq, bool found)
{
    enum { PATIENCE = 1000 };
    cq->idle = found ? 0 : cq->idle + 1;
    return cq->idle >= PATIENCE && cq->idle % (PATIENCE / 10) == 0;
}
/* Publishes a completion, and wakes the owner if it sleeps. `intent` (may be NULL): the work queue to advance in the same step, by kind,
 * index and done. The caller holds the lock of that work queue. */
void sv_complete(uint32_t cq, const struct sf_cqe *, const struct sf_intent *);

/* ---- pipe.c, alarm.c, async.c --------------------------------------------------------------------------------- */
/* Takes a pipe for events from other processes. Returns 0 or an errno. Writing never blocks, reading does. A pipe that is given back stays
 * open, because other processes know its descriptor's number. */
int sv_pipe_take(int *read_end, int *write_end);
void sv_pipe_give(int read_end, int write_end);
bool sv_pipe_ours(int write_end); /* whether the descriptor is the writing end of one of these pipes of this process */
/* Removes from a pipe the events of an object that is being destroyed: only events of this `kind` (struct sv_event), and for kind 3 only
 * the types whose bits are set in `types`. */
void sv_pipe_forget(int read_end, int write_end, uint32_t kind, uint32_t types, uint32_t entry, uint32_t generation);
/* sf_signal() (fabric/signal.c) with this process's view. Logs failures. Returns false if nothing was sent. */
bool sv_signal(uint32_t process, int fd, const struct sv_event *);
bool sv_signal_all(uint32_t process, int fd, const struct sv_event *, size_t count); /* sends all events with one write, or none */
/* Sends an asynchronous event to the process that opened a context (an entry in contexts). */
void sv_async(uint32_t context, enum ibv_event_type, uint32_t entry, uint32_t generation);
/* Sends events of a queue pair (`types`: bits) with one write, so that a killed process has sent all or none. The program reads each of
 * SV_ONCE_EVENTS at most once in a connection. */
void sv_async_qp(uint32_t qp, uint32_t types);
/* As sv_async_qp(), for a queue pair of this process and one event of SV_ONCE_EVENTS. Replaces an unread event of this type, and sends
 * nothing if the program has read one. */
void sv_async_own(uint32_t qp, enum ibv_event_type);
/* Sets of events, as bits 1 << enum ibv_event_type. */
enum {
    SV_ONCE_EVENTS = 1 << IBV_EVENT_QP_FATAL | 1 << IBV_EVENT_QP_REQ_ERR | 1 << IBV_EVENT_QP_ACCESS_ERR | 1 << IBV_EVENT_COMM_EST |
                     1 << IBV_EVENT_QP_LAST_WQE_REACHED,
    SV_ERROR_EVENTS = SV_ONCE_EVENTS & ~(1 << IBV_EVENT_COMM_EST), /* say that the queue pair is in ERR, or is being brought there */
    SV_CQ_EVENTS = 1 << IBV_EVENT_CQ_ERR,
    SV_QP_EVENTS = 1 << IBV_EVENT_QP_FATAL | 1 << IBV_EVENT_QP_REQ_ERR | 1 << IBV_EVENT_QP_ACCESS_ERR | 1 << IBV_EVENT_COMM_EST |
                   1 << IBV_EVENT_SQ_DRAINED | 1 << IBV_EVENT_PATH_MIG | 1 << IBV_EVENT_PATH_MIG_ERR | 1 << IBV_EVENT_QP_LAST_WQE_REACHED,
    SV_SRQ_EVENTS = 1 << IBV_EVENT_SRQ_ERR | 1 << IBV_EVENT_SRQ_LIMIT_REACHED,
};
/* Removes the unread events of an object that is being destroyed. */
void sv_async_forget(struct ibv_context *, uint32_t types, uint32_t entry, uint32_t generation);
/* Sets a channel's timer to `at` (ns; 0 and ~0: never), unless it expires earlier. sv_alarm_rang(): whether it has expired since the last
 * call. */
void sv_alarm_set(struct sv_channel *, uint64_t at);
bool sv_alarm_rang(struct sv_channel *);
/* If `cq` has a channel, makes the channel wake the owner at `until` (ns), when a queue pair of this queue must be checked. */
void sv_wake_at(uint32_t cq, uint64_t until);

/* ---- post.c, execute.c ---------------------------------------------------------------------------------------- */
int sv_post_send(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **bad);
int sv_post_recv(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **bad);
int sv_post_srq_recv(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **bad);
/* Executes the send queue of an entry as far as possible, or flushes it if the queue pair is in ERR. Hold no lock. */
void sv_run(uint32_t qp);
/* If a peer has begun to bring a queue pair of this process to ERR, completes this and flushes the queue pair. */
void sv_finish_failing(uint32_t qp);
/* Completes all receives of a queue pair in ERR with a flush error. Takes the receive queue's lock. */
void sv_flush_receives(uint32_t qp);
/* Runs the queue pairs of this process that wait for a time and complete on `cq` (an entry; SF_NO_DEVICE: any). Returns when to check again
 * (ns); 0: no queue pair waits. */
uint64_t sv_progress(uint32_t cq);
/* Waits until all accesses to this process's memory that have begun are over. */
void sv_quiesce(void);
/* Bytes of a slot, for sf_qp.send_stride and sf_receive_queue.stride. */
static inline uint32_t sv_send_stride(uint32_t sges, uint32_t inline_bytes)
{
    size_t body = sges * sizeof(struct sf_sge) > inline_bytes ? sges * sizeof(struct sf_sge) : inline_bytes;
    return (uint32_t)((offsetof(struct sf_send, sge) + body + 63) / 64 * 64);
}
static inline uint32_t sv_receive_stride(uint32_t sges)
{
    return (uint32_t)((sizeof(struct sf_receive) + sges * sizeof(struct sf_sge) + 31) / 32 * 32);
}

/* ---- sysfs.c, for paths.c: once joined -------------------------------------------------------------------------- */
/* Writes the text of a device's file. Returns as snprintf() does; -1: no device of this host has such a file. */
int sv_sysfs_text(const char *path, char *text, size_t bytes);
/* Whether the path is /sys/class/infiniband, or a directory below it of a device of this host. */
bool sv_sysfs_directory(const char *path);
/* Returns the name of entry `index` of a directory, counted from 0 without "." and "..". The path has passed sv_sysfs_directory(). Returns
 * false if there are no more entries. */
bool sv_sysfs_entry(const char *path, uint32_t index, char *name, size_t bytes, bool *folder);
/* Whether a device of this host has the device node `name` ("uverbs0"); `number` gets its number. */
bool sv_device_node(const char *name, uint32_t *number);

/* ---- memory.c --------------------------------------------------------------------------------------------------- */
/* Whether this memory can be registered: 0, EFAULT if it is not mapped, or the errno of the profile. */
int sv_memory_check(const void *address, size_t bytes, bool writable);

/* ---- pd.c mr.c ah.c srq.c qp.c states.c ------------------------------------------------------------------------- */
struct ibv_pd *sv_alloc_pd(struct ibv_context *);
int sv_dealloc_pd(struct ibv_pd *);
struct ibv_srq *sv_create_srq(struct ibv_pd *, struct ibv_srq_init_attr *);
struct ibv_qp *sv_create_qp(struct ibv_context *, struct ibv_qp_init_attr_ex *); /* for ibv_create_qp() and ibv_create_qp_ex() */
/* states.c: takes all locks of a queue pair, so that no thread posts to it, executes it, or (with `pollers`) polls its completions. */
void sv_enter_qp(struct sv_qp *, bool pollers);
void sv_leave_qp(struct sv_qp *, bool pollers);
/* Resets a queue pair: removes its requests and unpolled completions. Call it between sv_enter_qp() with `pollers` and sv_leave_qp(). */
void sv_reset_qp(struct sv_qp *);
/* states.c: returns the device of an address, or SF_NO_DEVICE. For a global address, *gid (`gid` may be NULL) gets the GID's index in that
 * device's table. */
uint32_t sv_find_port(const struct ibv_ah_attr *, uint32_t *gid);
/* states.c: checks the port, is_global and sgid_index of an address. Returns 0 or an errno. */
int sv_check_route(uint32_t device, const struct ibv_ah_attr *, const char *verb);
void sv_wr_install(struct sv_qp *, uint64_t send_ops); /* wr.c: fills the function pointers of ex */
void sv_wr_remove(struct sv_qp *);
void sv_cq_ex_install(struct sv_cq *); /* cq_ex.c: fills the function pointers of ex */

/* ---- fault.c ------------------------------------------------------------------------------------------------------ */
/* What the fault rules do to a message. All 0: no rule applies. */
struct sv_verdict {
    bool drop, corrupt, overtaken;
    uint64_t delay_ns, hold_ns;
    uint64_t dice; /* a random number of this message, which selects the corrupted byte */
};
void sv_judge_slow(uint32_t qp, uint64_t message, struct sv_verdict *);
int sv_refused_slow(enum sf_verb, uint32_t device);
/* A pseudo-random number that depends only on the arguments. The profile's loss_ppm uses sv_dice(fabric->seed, qp->device, qp->ordinal |
 * frame << 32, message) % 1000000. */
uint64_t sv_dice(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);
static inline bool sv_rules(void)
{
    return atomic_load_explicit(&sv_lib.fabric->fault_count, memory_order_relaxed) != 0;
}
/* The errno with which a fault rule makes this call fail; 0: none. */
static inline int sv_refused(enum sf_verb verb, uint32_t device)
{
    return sv_rules() ? sv_refused_slow(verb, device) : 0;
}

#endif
