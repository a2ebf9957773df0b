/* SPDX-License-Identifier: MIT
 *
 * A fabric is one file in shared memory, which all programs on the fabric map. The file has the model, the tables of all objects of the
 * devices, the queues, and the fault rules. There is no daemon: the process that uses an object does the object's work.
 *
 * Trust: all processes of a fabric belong to one user, and may access each other's memory, because data is moved in this way. But every
 * value that is read from the file is checked before it is used as an index or an offset, so that a program which overwrites the file does
 * not crash others.
 *
 * Death: an entry of a table names the process that owns it, and a lock names its holder. The objects of a dead process are freed by the
 * next process that needs its lock, finds a table full, or joins the fabric (sf_reap).
 *
 * Containers: processes know each other by process number, so all processes of a fabric must be in one PID namespace. A process of another
 * namespace is refused while a process of the first one lives. For this check, which must work across namespaces, each process locks a byte
 * beyond the file's end (file.c).
 *
 * Order of locks (any may be left out): fabric -> send queue -> receive queue or shared receive queue -> completion queue.
 */
#ifndef SOFTVERBS_SHARED_H
#define SOFTVERBS_SHARED_H

#include "../model/model.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

enum {
    SF_PROCESSES = 1024,
    SF_CONTEXTS = 4096,
    SF_PDS = SV_FABRIC_PDS,
    SF_MRS = SV_FABRIC_MRS,
    SF_CQS = SV_FABRIC_CQS,
    SF_QPS = SV_FABRIC_QPS,
    SF_SRQS = SV_FABRIC_SRQS,
    SF_FAULTS = 64,
    SF_PAGE = 4096,
    SF_PAGES = 1 << 20, /* pages of the arena: 4 GiB of the file, with memory only where used */
};
/* version 3 of the layout; sf_layout() also distinguishes builds with different structures */
#define SF_MAGIC        UINT64_C(0x3330626146765331)
#define SF_MAGIC_FAMILY UINT64_C(0x0000ffffffffffff) /* these bits are the same in all versions; the others are the version */

/* ---- Locks ---- The word is 0, or the holder's process number + 1, with SF_LOCK_WAITED if a process sleeps on it. */
struct sf_lock {
    _Atomic uint32_t word;
};

/* ---- Tables ----
 * `owner` is 0 (free), the owning process's number + 1, or SF_LEAKED for a protection domain that outlived its process. An entry is taken
 * by a compare-and-swap of `owner`, and freed by clearing `owner` last. `generation` grows with each use of an entry. It is a part of
 * numbers and keys, so that stale numbers and keys are recognized. */
#define SF_LEAKED  UINT32_C(0xffffffff)
#define SF_JOINING UINT32_C(0x80000000)

#define SF_NO_HOST UINT16_MAX /* for softverbs commands, which run on no host */

struct sf_process {
    _Atomic uint32_t owner; /* 1: in use; SF_JOINING | pid: being filled in */
    int32_t pid;
    uint64_t cookie;         /* a random number that identifies the process */
    uint64_t cookie_address; /* where the cookie is in the process's memory, while the process lives */
    uint16_t host;
    char command[30];
    _Atomic uint64_t space; /* the PID namespace of `pid`; SF_SPACE_DEAD: a dead process of another namespace */
    uint64_t started;       /* in ticks, from /proc/PID/stat; used if the process's memory may not be read */
    /* the thread by which the process's memory is accessible: `pid`, or another one if the first thread has ended */
    _Atomic int32_t thread;
};
#define SF_SPACE_DEAD UINT64_MAX

/* An opened device, with the pipe for its asynchronous events. */
struct sf_context {
    _Atomic uint32_t owner;
    uint32_t device;
    int32_t async_fd; /* the writing end of the owner's pipe: a descriptor of the owner */
    uint32_t generation;
};

struct sf_pd {
    _Atomic uint32_t owner;
    uint32_t device;
    uint32_t host;
    uint32_t generation;
};

struct sf_mr {
    _Atomic uint32_t owner;
    _Atomic uint32_t live; /* 1 from registration to deregistration; executors read this after they have marked their queue busy */
    uint32_t generation;   /* the low 8 bits are part of the key */
    uint32_t device, pd, access;
    uint64_t iova, address, length; /* iova: the start address in requests; address: the start address in the owner's memory */
    uint64_t reserved;
};

struct sf_cqe {
    uint64_t wr_id;
    uint64_t timestamp; /* CLOCK_MONOTONIC, ns */
    uint32_t qp;        /* entry number in qps */
    uint32_t qp_num, source_qp;
    uint32_t byte_len;
    uint32_t imm;  /* immediate data, as on the wire */
    uint32_t slot; /* low bits of the request's position in its queue; polling this completion frees the slots up to that position */
    /* status: enum ibv_wc_status; opcode: enum ibv_wc_opcode without its receive bit; receive: 1 for a receive */
    uint8_t status, opcode, wc_flags, receive;
    uint8_t solicited;
    uint8_t service_level; /* datagrams: see lib/finish.c */
    uint8_t pad[2];
    uint16_t source_lid; /* LID of the sender, for messages received on InfiniBand */
    uint16_t srq;        /* entry + 1 of the shared receive queue of the receive; 0: none */
    uint32_t vendor_error;
    /* Position of this completion + 1, written last. To find a new completion, a consumer reads only this word. The structure is one cache
     * line. */
    uint64_t turn;
};
_Static_assert(sizeof(struct sf_cqe) == 64, "a completion is one cache line");

/* What a process is doing while it publishes a completion. If the process dies, another one finishes the step, so that no request is used
 * twice or lost. */
struct sf_intent {
    /* The work queue: 0: none; 1: a send queue; 2: a receive queue; 3: a shared receive queue; 4: a shared receive queue, without room for
     * the completion, so that the slot becomes free at once */
    _Atomic uint32_t kind;
    uint32_t index;    /* entry in qps or srqs */
    uint64_t produced; /* the completion queue's `produced` before this completion */
    uint64_t done;     /* the work queue's count after the completion was published */
    uint64_t dropped;  /* kind 4: the new value of sf_srq.dropped */
};

struct sf_cq {
    _Atomic uint32_t owner;
    uint32_t generation;
    uint32_t device;
    uint32_t capacity;      /* a power of two */
    uint32_t limit;         /* maximum number of unpolled completions; one more is an overrun */
    _Atomic uint32_t dead;  /* 1: the queue has overrun */
    uint64_t ring;          /* offset of struct sf_cqe [capacity] in the file; a resize changes it while `lock` is held */
    int32_t channel_fd;     /* the writing end of the channel's pipe, a descriptor of the owner; -1: none */
    int32_t context;        /* entry of the context that gets the event of an overrun */
    uint32_t timed;         /* 1: completions have a timestamp */
    _Atomic uint32_t armed; /* 0: not armed; 1: for any completion; 2: for a solicited completion or an error. Guarded by `lock` */
    /* From here on there are three cache lines: one that producers write, one that the consumer polls, and one that the consumer writes. In
     * a common line, each reader would take the line away from the processor that writes it. */
    struct sf_lock lock __attribute__((aligned(64))); /* held by producers */
    struct sf_intent intent;
    uint64_t seen; /* the last `consumed` that a producer has read */
    _Atomic uint64_t produced __attribute__((aligned(64)));
    _Atomic uint64_t consumed __attribute__((aligned(64)));
    /* 1: a queue pair of this queue may wait for a time; cleared before the queue pairs are checked */
    _Atomic uint32_t waiting;
};

/* A request in a queue: this header, then space for the most elements, or for inline data. */
struct sf_sge {
    uint64_t address;
    uint32_t length, lkey;
};
struct sf_receive {
    uint64_t wr_id;
    uint32_t sge_count;
    uint32_t length;
    struct sf_sge sge[];
};
enum { SF_UD_GLOBAL = 1 << 28 }; /* flag in ud_hop: the datagram has a global header */
struct sf_send {
    uint64_t wr_id;
    uint32_t opcode; /* enum ibv_wr_opcode */
    uint32_t flags;  /* enum ibv_send_flags, and SF_SEND_MOVED */
    uint32_t imm;
    uint32_t length; /* length of all elements together */
    uint32_t sge_count;
    uint32_t rkey;
    uint64_t remote;
    uint64_t compare_add, swap;
    uint32_t ud_device, ud_qp, ud_qkey; /* the peer, by its address handle when the request was posted */
    uint32_t ud_hop;                    /* sgid index | traffic class << 8 | hop limit << 16 | service level << 24 | SF_UD_GLOBAL */
    uint8_t ud_dgid[16];
    union {
        struct sf_sge sge[1];
        uint8_t data[1];
    };
};

/* Flag of a write whose data was moved before an earlier read (SF_FAULT_OVERTAKE). The write still completes in order. */
#define SF_SEND_MOVED (UINT32_C(1) << 31)

/* The receive queue of a queue pair, or a shared one. */
struct sf_receive_queue {
    uint64_t ring;                                        /* offset in the file */
    uint32_t capacity, stride;                            /* slots (a power of two), bytes of a slot */
    uint32_t limit, sge_limit;                            /* maximum number of unpolled requests; maximum number of elements of a request */
    _Atomic uint64_t posted __attribute__((aligned(64))); /* written only by the owner */
    struct sf_lock lock __attribute__((aligned(64)));     /* held to take requests */
    _Atomic uint64_t done;
};

struct sf_srq {
    _Atomic uint32_t owner;
    uint32_t generation;
    uint32_t device, pd;
    int32_t context;            /* entry in contexts */
    _Atomic uint32_t watermark; /* send an event when fewer requests than this are left; 0: not armed */
    /* 1: a sender may wait for a receive of this queue; cleared before the senders are checked */
    _Atomic uint32_t waiting;
    _Atomic uint64_t dropped; /* requests that were taken without room for their completions; written under queue.lock */
    struct sf_receive_queue queue __attribute__((aligned(64)));
};

#define SF_NO_DEVICE   UINT32_C(0xffffffff)
#define SF_LOCK_WAITED UINT32_C(0x80000000)

struct sf_qp {
    _Atomic uint32_t owner;
    uint32_t generation; /* the low 8 bits are part of the number */
    /* atomic, because polling also reads entries that are being filled in */
    _Atomic uint32_t number; /* 24 bits, as the program sees it */
    uint32_t device, pd;
    _Atomic uint32_t type;                /* enum ibv_qp_type */
    _Atomic uint32_t send_cq, receive_cq; /* entries */
    _Atomic uint32_t srq;                 /* entry + 1, or 0 */
    int32_t context;                      /* entry in contexts */
    uint32_t signal_all;
    uint32_t inline_limit;
    uint64_t send_ring;
    uint32_t send_capacity, send_stride, send_limit, send_sge_limit;
    uint32_t frame_depth_send, frame_depth_receive; /* depths in frames, if the profile counts frames */

    /* Attributes of ibv_modify_qp(). The owner holds the locks of the send queue and the receive queue while writing. The fields are
     * atomic, because peers read them without a lock. Where it matters, peers check again while holding the lock. */
    _Atomic uint32_t state __attribute__((aligned(64))); /* enum ibv_qp_state */
    _Atomic uint32_t access;
    _Atomic uint32_t qkey;
    _Atomic uint32_t peer_number;
    _Atomic uint32_t peer_device; /* the device of the destination's address; SF_NO_DEVICE: none */
    _Atomic uint32_t peer_qp;     /* entry of peer_number in qps */
    _Atomic uint32_t send_psn, receive_psn;
    uint32_t mtu;                                               /* bytes */
    _Atomic uint8_t timeout, retry_count, rnr_retry, rnr_timer; /* encoded as in ibv_qp_attr */
    _Atomic uint8_t rd_atomic, dest_rd_atomic, sgid_index, port;
    uint32_t broken;             /* 1: the device's cable was unplugged while this queue pair was connected */
    uint32_t established;        /* 1: a message has arrived in state RTR, and the owner got IBV_EVENT_COMM_EST */
    _Atomic uint32_t connection; /* grows with each RESET: events and failures of earlier connections are ignored */
    _Atomic uint32_t failing;    /* number of the connection that a peer is bringing to ERR; the owner completes this (lib/execute.c) */

    _Atomic uint64_t send_posted __attribute__((aligned(64))); /* written only by the owner */

    /* Execution of the send queue. The executor holds the lock: the owner, or the peer that has just posted a receive. */
    struct sf_lock lock __attribute__((aligned(64)));
    _Atomic uint32_t kick;      /* 1: a process tried to execute the queue while another one held the lock */
    _Atomic uint64_t busy;      /* increased before and after each access to memory, so odd during an access */
    _Atomic uint32_t busy_with; /* number + 1 of the process that owns the target queue pair of this access */
    _Atomic uint64_t send_done;
    uint64_t wait_since, wait_until;           /* CLOCK_MONOTONIC ns; wait_until ~0: for ever */
    _Atomic uint64_t next_look;                /* when to try the request again without an event */
    _Atomic uint32_t wait_for;                 /* enum sf_wait; 0: not waiting */
    uint32_t attempts;                         /* number of failed attempts of the message at send_done, because of faults */
    uint32_t judged, drop, corrupt, overtaken; /* what faults do to this message; valid if `judged` is set */
    uint64_t hold_ns, dice;
    _Atomic uint32_t waiting; /* 1: wait_for and the completion queue's `waiting` are set */
    uint64_t messages;        /* number of messages executed, for the faults' random decisions */
    /* number of queue pairs created on the device before this one; the same in each run, for random decisions */
    uint32_t ordinal;

    /* 1: a peer waits for a receive of this queue pair; checked when a receive is posted */
    _Atomic uint32_t wanted;
    struct sf_receive_queue receive __attribute__((aligned(64)));
};

enum sf_wait {
    SF_WAIT_NOTHING,
    SF_WAIT_RECEIVE, /* receiver not ready */
    SF_WAIT_ANSWER,  /* the peer does not answer; the request will be sent again */
    SF_WAIT_DELAY,   /* a fault delays the message */
    SF_WAIT_HELD,    /* a fault delays the completion; the data was moved */
};

/* ---- The state of devices -------------------------------------------------------------------------------------- */
struct sf_device {
    _Atomic uint32_t port_up, removed;
    _Atomic uint32_t qps, pds, mrs, cqs, srqs; /* entries in use; pds includes leaked ones */
    _Atomic uint32_t dereg_blocked;            /* profile: error_blocks_dereg */
    _Atomic uint32_t reboots;
    struct sf_lock atomics; /* held during remote atomics in this device's memory */
    /* messages sent; bytes sent; messages lost */
    _Atomic uint64_t sent __attribute__((aligned(64)));
    _Atomic uint64_t sent_bytes, dropped;
    /* these words are on another cache line, because senders on other devices write them */
    _Atomic uint64_t received __attribute__((aligned(64))), received_bytes;
};

/* ---- Faults ---------------------------------------------------------------------------------------------------- */
enum sf_fault_kind {
    SF_FAULT_NONE,
    SF_FAULT_DROP,     /* the message is lost */
    SF_FAULT_CORRUPT,  /* one byte of the message is changed */
    SF_FAULT_DELAY,    /* the message starts `nanoseconds` later */
    SF_FAULT_WITHHOLD, /* the request's completions come `nanoseconds` later */
    SF_FAULT_REORDER,  /* the request's completions come later by a random time up to `nanoseconds`, so that other queue pairs' completions
                          overtake them */
    SF_FAULT_REFUSE,   /* a call of `verb` fails with `error` */
    SF_FAULT_OVERTAKE, /* a read waits `nanoseconds`, and the writes behind it are done first, up to the next fence, send or atomic */
};
enum sf_verb { /* calls that can be refused */
               SF_VERB_OPEN_DEVICE,
               SF_VERB_QUERY_DEVICE,
               SF_VERB_QUERY_PORT,
               SF_VERB_QUERY_GID,
               SF_VERB_ALLOC_PD,
               SF_VERB_REG_MR,
               SF_VERB_DEREG_MR,
               SF_VERB_CREATE_CHANNEL,
               SF_VERB_CREATE_CQ,
               SF_VERB_CREATE_QP,
               SF_VERB_MODIFY_QP,
               SF_VERB_DESTROY_QP,
               SF_VERB_CREATE_SRQ,
               SF_VERB_CREATE_AH,
               SF_VERB_POST_SEND,
               SF_VERB_POST_RECV,
               SF_VERB_POLL_CQ,
               SF_VERB_REQ_NOTIFY,
               SF_VERBS,
};
struct sf_fault {
    _Atomic uint32_t kind; /* written last, with release: then the rule is in force */
    uint32_t device;       /* entry, or SF_NO_DEVICE for all (of `host`) */
    uint32_t host;         /* entry, or SF_NO_DEVICE for all */
    uint32_t qp_num;       /* 0: all queue pairs */
    uint32_t chance_ppm;   /* parts per million; 0: not random */
    uint32_t verb;
    int32_t error;
    uint32_t id; /* as shown by `softverbs fault` */
    /* Which matching messages or calls the rule applies to: number `first` (counted from 1), then each `every`-th after it (0: no other);
     * in all at most `count` (0: no limit) */
    uint64_t first, every, count;
    uint64_t nanoseconds;
    uint64_t seed;
    _Atomic uint64_t matches, hits;
};

/* ---- The file -------------------------------------------------------------------------------------------------- */
_Static_assert(SF_SRQS < UINT16_MAX, "sf_cqe.srq");
struct sf_fabric {
    uint64_t magic;
    uint64_t layout; /* sf_layout(): computed from the sizes of these structures, so that files of other builds are refused */
    uint64_t bytes;
    uint64_t seed;    /* seed for the profile's losses, and for faults without a seed */
    uint64_t created; /* CLOCK_REALTIME seconds */
    char name[SV_NAME];
    _Atomic uint32_t down; /* 1: `softverbs down` has removed the fabric; no process can join */
    _Atomic uint32_t fault_count;
    struct sf_lock lock; /* held to take entries of tables and pages of the arena */
    _Atomic uint32_t next_fault;
    /* Constant. On separate pages, which processes map read-only. */
    struct sv_model model __attribute__((aligned(4096)));
    struct sf_device devices[SV_DEVICES] __attribute__((aligned(4096)));
    struct sf_fault faults[SF_FAULTS];

    /* one above the highest entry ever used, where searches end */
    _Atomic uint32_t process_top, context_top, pd_top, mr_top, cq_top, qp_top, srq_top, page_top;
    uint32_t process_next, context_next, pd_next, mr_next, cq_next, qp_next, srq_next, page_next; /* where searches begin */
    struct sf_process processes[SF_PROCESSES];
    struct sf_context contexts[SF_CONTEXTS];
    struct sf_pd pds[SF_PDS];
    struct sf_mr mrs[SF_MRS];
    struct sf_srq srqs[SF_SRQS];
    struct sf_cq cqs[SF_CQS];
    struct sf_qp qps[SF_QPS];
    _Atomic uint32_t pages[SF_PAGES]; /* for each page of the arena: the owning process's number + 1, or 0 */
    uint8_t arena[] __attribute__((aligned(4096)));
};

#define SF_BYTES (sizeof(struct sf_fabric) + (uint64_t)SF_PAGES * SF_PAGE) /* size of the file */

/* ---- A process's view ------------------------------------------------------------------------------------------ */
struct sf_view {
    struct sf_fabric *fabric;
    uint32_t process; /* number + 1; 0: this process only reads, and takes no locks */
    int fd;           /* open, to give pages back */
    uint64_t cookie;  /* processes[].cookie_address is the address of this, so the view must not move */
    char path[256];
    void (*full)(const struct sf_view *); /* called when the file system is full; may be NULL */
};

/* file.c. The directory of fabrics is $SOFTVERBS_DIR, or else /dev/shm/softverbs-UID. It is made with mode 0700, and refused if another
 * user owns it. */
int sf_directory(char *path, size_t bytes, bool make, struct sv_why *);
bool sf_name_valid(const char *name); /* letters, digits, - _ . ; at most SV_NAME - 1; not starting with . */
uint64_t sf_layout(void);

/* Whether there is a file of this name that belongs to this user and is a fabric, of any version. */
bool sf_is_fabric(const char *name);
/* Makes the file `name`. Returns -EEXIST if there is one. Other processes see the complete file or none. */
int sf_create(const char *name, const struct sv_model *, uint64_t seed, struct sv_why *);
/* Sets the other end of a device's cable: a device, or SV_NO_CABLE. The caller holds the fabric's lock, and the ports of both are down. */
int sf_set_cable(struct sf_fabric *, uint32_t device, int32_t cable);
/* Maps a fabric. Returns 0, -ENOENT, -EACCES, or -EPROTO if another build made the fabric. With `join`, this process takes an entry in
 * `processes`. */
int sf_attach(struct sf_view *, const char *name, bool join, uint16_t host, struct sv_why *);
/* Frees all that this process has on the fabric, and unmaps it. Protection domains leak if the profile says so. */
void sf_detach(struct sf_view *);
/* Removes the fabric's name, and marks its file as down. Returns -EBUSY if programs use the fabric, and `force` is false. *live gets the
 * number of living processes. */
int sf_remove(const char *name, bool force, unsigned *live, struct sv_why *);

/* alive.c */
pid_t sf_reach(const struct sf_fabric *, uint32_t process); /* the thread by which a process's memory and descriptors are accessible */
void sf_know_self(uint64_t *space, uint64_t *started);      /* PID namespace and start time of this process; 0: /proc does not tell */
/* `process`: its number + 1. Unless a process is certainly dead, it counts as alive. Makes a system call, which takes some microseconds. */
bool sf_alive(struct sf_fabric *, uint32_t process);

/* process.c */
void sf_reap(struct sf_view *, uint32_t process); /* frees everything of a dead process; has no effect on a living one */
unsigned sf_reap_all(struct sf_view *);           /* sf_reap() for all dead processes; returns their number */
/* Frees all that this process has on the fabric, when the process exits. If a lock that is needed does not become free, because its holder
 * is stopped or interrupted, the next process that finds the objects frees them. */
void sf_leave(struct sf_view *);
void sf_inherit(struct sf_view *); /* frees the objects of a dead process whose entry this process has taken over */

/* lock.c. Takes the lock. Returns true if the last holder died while holding the lock, so the protected data may need repair. */
bool sf_lock(struct sf_view *, struct sf_lock *);
bool sf_try_lock(struct sf_view *, struct sf_lock *); /* false if another thread holds the lock; never takes over a dead holder's lock */
void sf_unlock(struct sf_view *, struct sf_lock *);
void sf_recount(struct sf_fabric *); /* counts the devices' entries anew; the caller holds the fabric's lock */
/* These take a lock, and repair its data if the last holder died. */
void sf_lock_fabric(struct sf_view *);
void sf_lock_cq(struct sf_view *, struct sf_cq *);
void sf_lock_receive(struct sf_view *, struct sf_receive_queue *, struct sf_cq *completes_on);
void sf_lock_send(struct sf_view *, struct sf_qp *);
void sf_wake_cq(struct sf_view *, struct sf_cq *); /* wakes the queue's owner, which finishes what a dead process has begun */
/* advances the work queue of a completion; may be repeated */
void sf_advance(struct sf_fabric *, const struct sf_intent *);
void sf_mend_cq(struct sf_fabric *, struct sf_cq *); /* repairs the queue after its lock was taken over from a dead holder */
void sf_mend_send(struct sf_qp *);

/* table.c: takes a free entry for this process, and increases the entry's generation and the device's count. Returns -ENOMEM if no entry is
 * free, or -EBUSY if the count is at `limit`, but only after dead processes were reaped. */
int sf_take_context(struct sf_view *, uint32_t device);
int sf_take_pd(struct sf_view *, uint32_t device, uint32_t limit);
int sf_take_mr(struct sf_view *, uint32_t device, uint32_t limit);
int sf_take_cq(struct sf_view *, uint32_t device, uint32_t limit);
int sf_take_qp(struct sf_view *, uint32_t device, uint32_t limit); /* also sets the queue pair's number */
int sf_take_srq(struct sf_view *, uint32_t device, uint32_t limit);
void sf_give_context(struct sf_view *, uint32_t);
void sf_give_pd(struct sf_view *, uint32_t);
void sf_give_mr(struct sf_view *, uint32_t);
void sf_give_cq(struct sf_view *, uint32_t);
void sf_give_qp(struct sf_view *, uint32_t);
void sf_give_srq(struct sf_view *, uint32_t);

/* free.c: frees an object of any owner. The caller holds the fabric's lock. */
void sf_free_mr(struct sf_fabric *, uint32_t);
void sf_free_pd(struct sf_fabric *, uint32_t);
void sf_free_cq(struct sf_fabric *, uint32_t);
void sf_free_qp(struct sf_fabric *, uint32_t);
void sf_free_srq(struct sf_fabric *, uint32_t);
void sf_free_pages(struct sf_view *, uint32_t page, uint32_t count);
void sf_free_all_pages(struct sf_view *, uint32_t process);
static inline uint64_t sf_page_offset(uint32_t page) /* offset in the file */
{
    return sizeof(struct sf_fabric) + (uint64_t)page * SF_PAGE;
}

/* arena.c: allocates memory for a part of the file. Other parts are holes; on a full /dev/shm even reading a hole raises SIGBUS. 0 or
 * -errno. */
int sf_back(struct sf_view *, const volatile void *at, size_t bytes);
/* Takes whole pages for a ring, zeroed and with memory, so that no access raises SIGBUS. Returns the offset in the file; 0: errno is ENOMEM
 * or ENOSPC. */
uint64_t sf_arena_take(struct sf_view *, size_t bytes);
void sf_arena_give(struct sf_view *, uint64_t offset, size_t bytes);
static inline void *sf_at(const struct sf_view *v, uint64_t offset)
{
    return (char *)v->fabric + offset;
}

static inline uint32_t sf_key(const struct sf_fabric *f, uint32_t mr)
{
    return mr << 8 | (f->mrs[mr].generation & 0xff);
}
static inline uint32_t sf_number(uint32_t qp, uint32_t generation)
{
    /* 24 bits: the entry and a part of the generation. Entry 0 is not used, because the numbers 0 and 1 are special in verbs. */
    return (generation & 0xff) << 16 | qp;
}
static inline uint32_t sf_number_entry(uint32_t number)
{
    return number & (SF_QPS - 1);
}

/* Returns the device with this GID, or SF_NO_DEVICE. *gid (`gid` may be NULL) gets the GID's index in its table. */
uint32_t sf_find_gid(const struct sf_fabric *, const uint8_t raw[16], uint32_t *gid);
/* sf_find_lid() returns the device whose port has this LID, or SF_NO_DEVICE. sf_lid() returns a device's LID; 0 on Ethernet. */
uint32_t sf_find_lid(const struct sf_fabric *, uint16_t lid);
uint16_t sf_lid(const struct sf_fabric *, uint32_t device);
/* Whether messages can get from one device to another now: a cable or the switch connects them, both ports are up, and neither device is
 * removed. */
bool sf_reachable(const struct sf_fabric *, uint32_t from, uint32_t to);

/* signal.c: a message in the pipe of a channel or context, written with one write(). */
struct sv_event {
    uint32_t kind; /* 1: a completion event of cq `entry`; 2: check the timers; 3: an asynchronous event `type` */
    uint32_t entry, generation;
    uint32_t type;       /* enum ibv_event_type, which says whether `entry` is a device, cq, qp or srq */
    uint32_t connection; /* the queue pair's sf_qp.connection when the event was sent */
};
/* Writes into the pipe whose writing end is descriptor `fd` of a process (number + 1), which may be this one. Does not block. Returns 0,
 * -ESRCH if the process has died, -EAGAIN if the pipe is full, or another negative errno. */
int sf_signal(struct sf_view *, uint32_t process, int fd, const void *event, size_t bytes);

uint64_t sf_now(void); /* CLOCK_MONOTONIC, ns */

#endif
