/* SPDX-License-Identifier: MIT
 *
 * A fabric: one file in shared memory that every program on the fabric maps. The file holds the model, the tables of all objects on the
 * devices, the queues, and the fault rules. There is no daemon: the process that uses an object does the object's work.
 *
 * Trust: all processes of a fabric belong to one user and may access each other's memory, because data is moved that way. Nevertheless
 * every value that is read from the file is checked before it is used as an index or an offset, so that a program which overwrites the file
 * does not crash the others.
 *
 * Death: an entry of a table names the process that owns it, and a lock names its holder. The objects of a dead process are freed by the
 * next process that needs its lock, finds a table full, or joins the fabric (sf_reap).
 *
 * Containers: processes find each other by process number, so all processes of a fabric must be in one PID namespace. A process from a
 * different namespace is refused as long as a process of the first one lives. To see this across namespaces, each process holds a lock on a
 * byte beyond the file's end (file.c).
 *
 * Order of locks (each may be left out): fabric -> send queue -> receive queue or shared receive queue -> completion queue.
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
    SF_PAGES = 1 << 20, /* pages of the arena, which holds the queues: 4 GiB of the file, backed only where used */
};
/* version 3 of the layout; sf_layout() also distinguishes builds with different structures */
#define SF_MAGIC        UINT64_C(0x3330626146765331)
#define SF_MAGIC_FAMILY UINT64_C(0x0000ffffffffffff) /* the bits that are the same in all versions; the others are the version */

/* ---- Locks ---- The word is 0, or the holder's process number + 1, with SF_LOCK_WAITED if a process sleeps on it. */
struct sf_lock {
    _Atomic uint32_t word;
};

/* ---- Tables ---------------------------------------------------------------------------------------------------
 * `owner` is 0 (free), or the owning process's number + 1, or SF_LEAKED for a protection domain that outlived its process. An entry is
 * taken by a compare-and-swap of `owner`, and freed by clearing `owner` last. `generation` grows each time an entry is used again. It is
 * part of queue pair numbers and keys, so that stale ones are recognized. */
#define SF_LEAKED  UINT32_C(0xffffffff)
#define SF_JOINING UINT32_C(0x80000000)

#define SF_NO_HOST UINT16_MAX /* for the command softverbs, which runs on no host */

struct sf_process {
    _Atomic uint32_t owner; /* 1: in use; SF_JOINING | pid: it is being filled in */
    int32_t pid;
    uint64_t cookie;         /* a random number by which other processes recognize the process */
    uint64_t cookie_address; /* address in the process's memory at which that number is found as long as the process lives */
    uint16_t host;
    char command[30];
    _Atomic uint64_t space; /* the PID namespace of `pid`; SF_SPACE_DEAD: a process of another namespace that has died */
    uint64_t started;       /* start time, in the ticks of /proc/PID/stat: used if the process's memory may not be read */
    /* the thread whose number gives access to the process's memory: `pid`, or another thread if the first one has ended */
    _Atomic int32_t thread;
};
#define SF_SPACE_DEAD UINT64_MAX

/* An opened device: where its asynchronous events go. */
struct sf_context {
    _Atomic uint32_t owner;
    uint32_t device;
    int32_t async_fd; /* the writing end of the owner's pipe, in the owner's table of descriptors */
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
    _Atomic uint32_t live; /* 1 from registration to deregistration; an executor reads it after it has marked itself busy */
    uint32_t generation;   /* its low 8 bits are part of the key */
    uint32_t device, pd, access;
    uint64_t iova, address, length; /* start in the addresses that requests use; start in the owner's memory; length */
    uint64_t reserved;
};

/* Entries of a completion queue. */
struct sf_cqe {
    uint64_t wr_id;
    uint64_t timestamp; /* CLOCK_MONOTONIC, ns */
    uint32_t qp;        /* entry number in qps */
    uint32_t qp_num, source_qp;
    uint32_t byte_len;
    uint32_t imm;  /* as on the wire */
    uint32_t slot; /* low bits of the request's position in its queue; polling this completion frees the slots up to it */
    /* enum ibv_wc_status; enum ibv_wc_opcode without its receive bit; flags; 1: of a receive queue */
    uint8_t status, opcode, wc_flags, receive;
    uint8_t solicited;
    uint8_t service_level; /* for datagrams: see lib/finish.c */
    uint8_t pad[2];
    uint16_t source_lid; /* for a message received on InfiniBand: the sender's LID */
    uint16_t srq;        /* entry number + 1 of the shared queue that the receive came from; 0: none */
    uint32_t vendor_error;
    /* position of this completion + 1, written last: to find a new completion, the consumer reads only this word. The structure is one
     * cache line. */
    uint64_t turn;
};
_Static_assert(sizeof(struct sf_cqe) == 64, "a completion is one cache line");

/* What a process was doing when it published a completion. If the process dies meanwhile, another one finishes the step, so that no request
 * is used twice or lost. */
struct sf_intent {
    /* 0: nothing; 1: a send queue; 2: a receive queue; 3: a shared receive queue; 4: a shared receive queue, and there is no room for the
     * completion, so nobody will poll it and the slot is free at once */
    _Atomic uint32_t kind;
    uint32_t index;    /* entry in qps or srqs */
    uint64_t produced; /* the completion queue's `produced` before this completion */
    uint64_t done;     /* the work queue's count when the completion has been published */
    uint64_t dropped;  /* kind 4: the new value of sf_srq.dropped */
};

struct sf_cq {
    _Atomic uint32_t owner;
    uint32_t generation;
    uint32_t device;
    uint32_t capacity;      /* a power of two */
    uint32_t limit;         /* the most completions that may be unpolled; one more is an overrun */
    _Atomic uint32_t dead;  /* 1: it has overrun */
    uint64_t ring;          /* offset of struct sf_cqe [capacity] in the file; changed by a resize under `lock` */
    int32_t channel_fd;     /* the writing end of its channel in the owner's table, or -1 */
    int32_t context;        /* entry of the context to which the event of an overrun is sent */
    uint32_t timed;         /* 1: completions carry a timestamp */
    _Atomic uint32_t armed; /* 0: not armed, 1: for any completion, 2: for a solicited one or an error. Written under `lock` */
    /* Three cache lines: one that producers write, one that the consumer polls, one that the consumer writes. With fewer lines, a reader
     * would take a line away from the processor that writes it. */
    struct sf_lock lock __attribute__((aligned(64))); /* held by producers */
    struct sf_intent intent;
    uint64_t seen; /* the value of `consumed` that a producer last read */
    _Atomic uint64_t produced __attribute__((aligned(64)));
    _Atomic uint64_t consumed __attribute__((aligned(64)));
    /* 1: a queue pair that completes here may be waiting for a point in time; cleared before the queue pairs are checked */
    _Atomic uint32_t waiting;
};

/* A request in a queue. A slot is this header, followed by space for the maximum of elements, or for inline data. */
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
enum { SF_UD_GLOBAL = 1 << 28 }; /* in ud_hop: the datagram has a global header */
struct sf_send {
    uint64_t wr_id;
    uint32_t opcode; /* enum ibv_wr_opcode */
    uint32_t flags;  /* enum ibv_send_flags, and SF_SEND_MOVED */
    uint32_t imm;
    uint32_t length; /* the sum over all elements */
    uint32_t sge_count;
    uint32_t rkey;
    uint64_t remote;
    uint64_t compare_add, swap;
    uint32_t ud_device, ud_qp, ud_qkey; /* the peer that the address handle names, found when the request was posted */
    uint32_t ud_hop;                    /* sgid index | traffic class << 8 | hop limit << 16 | service level << 24 | SF_UD_GLOBAL */
    uint8_t ud_dgid[16];
    union {
        struct sf_sge sge[1];
        uint8_t data[1];
    };
};

/* Flag of a write whose data was moved before an earlier read (SF_FAULT_OVERTAKE). Its completion still comes in order. */
#define SF_SEND_MOVED (UINT32_C(1) << 31)

/* A receive queue of one queue pair, or a shared one. */
struct sf_receive_queue {
    uint64_t ring;                                        /* offset in the file */
    uint32_t capacity, stride;                            /* slots (a power of two), bytes of one */
    uint32_t limit, sge_limit;                            /* the most unpolled requests; the most elements of a request */
    _Atomic uint64_t posted __attribute__((aligned(64))); /* written only by the owner */
    struct sf_lock lock __attribute__((aligned(64)));     /* held by the process that takes requests */
    _Atomic uint64_t done;
};

struct sf_srq {
    _Atomic uint32_t owner;
    uint32_t generation;
    uint32_t device, pd;
    int32_t context;            /* entry in contexts */
    _Atomic uint32_t watermark; /* an event is sent when fewer requests than this are left; 0: not armed */
    /* 1: a sender to one of its queue pairs may be waiting for a receive; cleared before the senders are checked */
    _Atomic uint32_t waiting;
    _Atomic uint64_t dropped; /* requests that were taken although there was no room for their completion. Written under queue.lock */
    struct sf_receive_queue queue __attribute__((aligned(64)));
};

#define SF_NO_DEVICE   UINT32_C(0xffffffff)
#define SF_LOCK_WAITED UINT32_C(0x80000000)

struct sf_qp {
    _Atomic uint32_t owner;
    uint32_t generation; /* its low 8 bits are part of the number */
    /* atomic, because polling reads all entries, even one that another thread has just taken and is filling in */
    _Atomic uint32_t number; /* the 24 bits the program sees */
    uint32_t device, pd;
    _Atomic uint32_t type;                /* enum ibv_qp_type */
    _Atomic uint32_t send_cq, receive_cq; /* entries */
    _Atomic uint32_t srq;                 /* entry + 1, or 0 */
    int32_t context;                      /* entry in contexts */
    uint32_t signal_all;
    uint32_t inline_limit;
    uint64_t send_ring;
    uint32_t send_capacity, send_stride, send_limit, send_sge_limit;
    uint32_t frame_depth_send, frame_depth_receive; /* the granted depth in frames, if the profile counts frames */

    /* The attributes of ibv_modify_qp(). The owner writes them while it holds the locks of the send queue and of the receive queue.
     * They are atomic, because executors in peers read them before they have a lock; where it matters, an executor checks again under
     * the lock. */
    _Atomic uint32_t state __attribute__((aligned(64))); /* enum ibv_qp_state */
    _Atomic uint32_t access;
    _Atomic uint32_t qkey;
    _Atomic uint32_t peer_number;
    _Atomic uint32_t peer_device; /* the device that the destination's address leads to; SF_NO_DEVICE: none */
    _Atomic uint32_t peer_qp;     /* entry of peer_number in qps */
    _Atomic uint32_t send_psn, receive_psn;
    uint32_t mtu;                                               /* bytes */
    _Atomic uint8_t timeout, retry_count, rnr_retry, rnr_timer; /* encoded as in ibv_qp_attr */
    _Atomic uint8_t rd_atomic, dest_rd_atomic, sgid_index, port;
    uint32_t broken;             /* 1: the device's cable was unplugged while the queue pair was connected */
    uint32_t established;        /* 1: a message has arrived in state RTR, and the owner got the event IBV_EVENT_COMM_EST */
    _Atomic uint32_t connection; /* increased by each RESET: events and failures of an earlier connection are ignored */
    _Atomic uint32_t failing;    /* the connection that a peer is bringing to ERR; the owner completes this (lib/execute.c) */

    _Atomic uint64_t send_posted __attribute__((aligned(64))); /* written only by the owner */

    /* Execution of the send queue, by the process that holds the lock: the owner, or the peer that has just posted a receive. */
    struct sf_lock lock __attribute__((aligned(64)));
    _Atomic uint32_t kick;      /* 1: a process wanted to execute it while the lock was held */
    _Atomic uint64_t busy;      /* increased before and after each access to memory, so it is odd during an access */
    _Atomic uint32_t busy_with; /* number + 1 of the other process that takes part in the access */
    _Atomic uint64_t send_done;
    uint64_t wait_since, wait_until;           /* CLOCK_MONOTONIC ns; wait_until ~0: for ever */
    _Atomic uint64_t next_look;                /* when to try the request again even if nothing has happened */
    _Atomic uint32_t wait_for;                 /* enum sf_wait; 0: not waiting */
    uint32_t attempts;                         /* attempts of the message at send_done that faults have made fail */
    uint32_t judged, drop, corrupt, overtaken; /* what the faults do to that message; valid if `judged` is set */
    uint64_t hold_ns, dice;
    _Atomic uint32_t waiting; /* 1: wait_for is set, and `waiting` of its completion queue is set too */
    uint64_t messages;        /* messages executed so far; the faults' random decisions depend on it */
    /* the number of queue pairs that were created on the device before this one: random decisions depend on it, and it is the same in each
     * run */
    uint32_t ordinal;

    /* 1: a peer's sender waits for a receive of this queue pair. Set by the executor; checked when a receive is posted. */
    _Atomic uint32_t wanted;
    struct sf_receive_queue receive __attribute__((aligned(64)));
};

enum sf_wait {
    SF_WAIT_NOTHING,
    SF_WAIT_RECEIVE, /* receiver not ready */
    SF_WAIT_ANSWER,  /* the peer does not answer: the request is retried */
    SF_WAIT_DELAY,   /* a fault delays the message */
    SF_WAIT_HELD,    /* a fault delays the completion, but the data has been moved */
};

/* ---- The state of devices -------------------------------------------------------------------------------------- */
struct sf_device {
    _Atomic uint32_t port_up, removed;
    _Atomic uint32_t qps, pds, mrs, cqs, srqs; /* entries in use; pds includes leaked ones. Updated by sf_take_* and sf_give_* */
    _Atomic uint32_t dereg_blocked;            /* profile: error_blocks_dereg */
    _Atomic uint32_t reboots;
    struct sf_lock atomics;                             /* held during remote atomics on this device's memory */
    _Atomic uint64_t sent __attribute__((aligned(64))); /* messages and bytes that the device has sent, messages that were lost */
    _Atomic uint64_t sent_bytes, dropped;
    /* written by senders on other devices, so on a separate cache line */
    _Atomic uint64_t received __attribute__((aligned(64))), received_bytes;
};

/* ---- Faults ---------------------------------------------------------------------------------------------------- */
enum sf_fault_kind {
    SF_FAULT_NONE,
    SF_FAULT_DROP,     /* the message is lost */
    SF_FAULT_CORRUPT,  /* one byte of the message arrives wrong */
    SF_FAULT_DELAY,    /* the message starts later, by `nanoseconds` */
    SF_FAULT_WITHHOLD, /* the request's completions come later, by `nanoseconds` */
    SF_FAULT_REORDER,  /* the request's completions come later, by a random time up to `nanoseconds`; completions of other queue pairs
                          overtake them */
    SF_FAULT_REFUSE,   /* a call of `verb` fails with `error` */
    SF_FAULT_OVERTAKE, /* a read starts later, by `nanoseconds`, and writes posted after it go first, up to the next write with the fence
                          flag */
};
enum sf_verb { /* what can be refused */
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
    _Atomic uint32_t kind; /* written last, with release: from then on the rule is in force */
    uint32_t device;       /* entry, or SF_NO_DEVICE for all (of `host`) */
    uint32_t host;         /* entry, or SF_NO_DEVICE for all */
    uint32_t qp_num;       /* 0: all */
    uint32_t chance_ppm;   /* parts per million; 0: not random */
    uint32_t verb;
    int32_t error;
    uint32_t id; /* the number by which `softverbs fault` names it */
    /* by counting matches: the rule applies to match number `first` (from 1), then to each `every`-th (0: no further), at most `count`
       times (0: no limit) */
    uint64_t first, every, count;
    uint64_t nanoseconds;
    uint64_t seed;
    _Atomic uint64_t matches, hits;
};

/* ---- The file -------------------------------------------------------------------------------------------------- */
_Static_assert(SF_SRQS < UINT16_MAX, "sf_cqe.srq");
struct sf_fabric {
    uint64_t magic;
    uint64_t layout; /* sf_layout(): a number made of the sizes of these structures, so that the file of another build is refused */
    uint64_t bytes;
    uint64_t seed;    /* the seed of the profile's losses, and of faults without one of their own */
    uint64_t created; /* CLOCK_REALTIME seconds */
    char name[SV_NAME];
    _Atomic uint32_t down;        /* 1: `softverbs down` has removed the fabric, and no process can join */
    _Atomic uint32_t fault_count; /* how many rules are in force; 0: skip them */
    struct sf_lock lock;          /* held to take entries of tables and pages of the arena */
    _Atomic uint32_t next_fault;
    /* Never changes. It is on separate pages, which processes map read-only. */
    struct sv_model model __attribute__((aligned(4096)));
    struct sf_device devices[SV_DEVICES] __attribute__((aligned(4096)));
    struct sf_fault faults[SF_FAULTS];

    /* One above the highest entry ever used: searches end there. */
    _Atomic uint32_t process_top, context_top, pd_top, mr_top, cq_top, qp_top, srq_top, page_top;
    uint32_t process_next, context_next, pd_next, mr_next, cq_next, qp_next, srq_next, page_next; /* where a search begins */
    struct sf_process processes[SF_PROCESSES];
    struct sf_context contexts[SF_CONTEXTS];
    struct sf_pd pds[SF_PDS];
    struct sf_mr mrs[SF_MRS];
    struct sf_srq srqs[SF_SRQS];
    struct sf_cq cqs[SF_CQS];
    struct sf_qp qps[SF_QPS];
    _Atomic uint32_t pages[SF_PAGES]; /* for each page of the arena: the owner's process number + 1, or 0 */
    uint8_t arena[] __attribute__((aligned(4096)));
};

#define SF_BYTES (sizeof(struct sf_fabric) + (uint64_t)SF_PAGES * SF_PAGE) /* of the file */

/* ---- A process's view ------------------------------------------------------------------------------------------ */
struct sf_view {
    struct sf_fabric *fabric;
    uint32_t process; /* this process's number + 1; 0 for a process that only reads, and takes no lock */
    int fd;           /* kept open: to give pages back */
    uint64_t cookie;  /* processes[].cookie_address points to it, so the view must not move */
    char path[256];
    void (*full)(const struct sf_view *); /* called when the file system has no room for the file to grow; may be NULL */
};

/* file.c: names. The directory is $SOFTVERBS_DIR, else /dev/shm/softverbs-UID. It is made with mode 0700, and refused if it belongs to
   another user. */
int sf_directory(char *path, size_t bytes, bool make, struct sv_why *);
bool sf_name_valid(const char *name); /* letters, digits, - _ . ; at most SV_NAME - 1; not starting with . */
uint64_t sf_layout(void);

/* Whether there is a file of that name that belongs to this user and is a fabric, of this or another version. */
bool sf_is_fabric(const char *name);
/* Makes the file `name`; -EEXIST if there is one. Other processes see the complete file or none. */
int sf_create(const char *name, const struct sv_model *, uint64_t seed, struct sv_why *);
/* Sets where a device's cable leads: another device, or SV_NO_CABLE. The caller holds the fabric's lock; the ports of both are down. */
int sf_set_cable(struct sf_fabric *, uint32_t device, int32_t cable);
/* Maps a fabric. Errors: -ENOENT, -EPROTO (made by another build), -EACCES. With `join` this process takes an entry in `processes`. */
int sf_attach(struct sf_view *, const char *name, bool join, uint16_t host, struct sv_why *);
/* Free all that this process has on the fabric, and unmap the fabric. If the profile says so, protection domains leak. */
void sf_detach(struct sf_view *);
/* Removes the name and marks the file as down. -EBUSY, with the number of live processes in *live, unless `force`. */
int sf_remove(const char *name, bool force, unsigned *live, struct sv_why *);

/* alive.c */
pid_t sf_reach(const struct sf_fabric *,
               uint32_t process);                      /* the thread whose number gives access to the memory and descriptors of a process */
void sf_know_self(uint64_t *space, uint64_t *started); /* of this process; 0 if /proc does not tell */
/* `process`: its number + 1. A process of another PID namespace, or one that may not be read and is not certainly dead, counts as alive.
 * The call takes a few microseconds, because it makes a system call. */
bool sf_alive(struct sf_fabric *, uint32_t process);

/* process.c */
void sf_reap(struct sf_view *, uint32_t process); /* frees everything of a dead process; a living one is left alone */
unsigned sf_reap_all(struct sf_view *);           /* as sf_reap(), for all dead processes; returns how many there were */
/* Frees all that this process has on the fabric. Called when the process exits. If a stopped process, or a thread that a signal handler has
 * interrupted, holds a lock that is needed for this, nothing is freed here; the next process that finds the objects frees them. */
void sf_leave(struct sf_view *);
void sf_inherit(
    struct sf_view *); /* call when this process has taken over the table entry of a dead process: frees that process's objects */

/* lock.c. True: the last holder died with the lock, so the data under it may have to be repaired. */
bool sf_lock(struct sf_view *, struct sf_lock *);
bool sf_try_lock(struct sf_view *,
                 struct sf_lock *); /* false: another thread holds the lock; a lock is never taken over from a dead holder here */
void sf_unlock(struct sf_view *, struct sf_lock *);
void sf_recount(struct sf_fabric *); /* counts the devices' entries anew from the tables; the fabric's lock is held */
/* Each takes a lock, and repairs the data under it if the last holder died. */
void sf_lock_fabric(struct sf_view *);
void sf_lock_cq(struct sf_view *, struct sf_cq *);
void sf_lock_receive(struct sf_view *, struct sf_receive_queue *, struct sf_cq *completes_on);
void sf_lock_send(struct sf_view *, struct sf_qp *);
void sf_wake_cq(struct sf_view *, struct sf_cq *); /* wakes the owner, so that it finishes what a dead process has begun */
/* advances the work queue that a completion belongs to; repeating it does no harm */
void sf_advance(struct sf_fabric *, const struct sf_intent *);
void sf_mend_cq(struct sf_fabric *, struct sf_cq *); /* after the lock was taken over from a dead holder */
void sf_mend_send(struct sf_qp *);

/* table.c: takes a free entry of a table for this process, and increases the entry's generation and, where there is one, the device's count
 * of such entries. -ENOMEM: there is no free entry; -EBUSY: the count is at `limit`; both only after dead processes were reaped. */
int sf_take_context(struct sf_view *, uint32_t device);
int sf_take_pd(struct sf_view *, uint32_t device, uint32_t limit);
int sf_take_mr(struct sf_view *, uint32_t device, uint32_t limit);
int sf_take_cq(struct sf_view *, uint32_t device, uint32_t limit);
int sf_take_qp(struct sf_view *, uint32_t device, uint32_t limit); /* also sets its number */
int sf_take_srq(struct sf_view *, uint32_t device, uint32_t limit);
void sf_give_context(struct sf_view *, uint32_t);
void sf_give_pd(struct sf_view *, uint32_t);
void sf_give_mr(struct sf_view *, uint32_t);
void sf_give_cq(struct sf_view *, uint32_t);
void sf_give_qp(struct sf_view *, uint32_t);
void sf_give_srq(struct sf_view *, uint32_t);

/* free.c: the owner may be any process; the fabric's lock is held. */
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

/* arena.c: backs a part of the file with memory. Parts that are not backed are holes, and on a full /dev/shm even reading a hole is
 * SIGBUS. 0 or -errno. */
int sf_back(struct sf_view *, const volatile void *at, size_t bytes);
/* Takes whole pages for a ring, zeroed and backed with memory, so that no access raises SIGBUS later. Returns the offset in the file, or 0
 * with errno ENOMEM or ENOSPC. */
uint64_t sf_arena_take(struct sf_view *, size_t bytes);
void sf_arena_give(struct sf_view *, uint64_t offset, size_t bytes);
static inline void *sf_at(const struct sf_view *v, uint64_t offset)
{
    return (char *)v->fabric + offset;
}

/* Keys and numbers. */
static inline uint32_t sf_key(const struct sf_fabric *f, uint32_t mr)
{
    return mr << 8 | (f->mrs[mr].generation & 0xff);
}
static inline uint32_t sf_number(uint32_t qp, uint32_t generation)
{
    /* 24 bits: the entry and a part of the generation. Entry 0 is never used, because the numbers 0 and 1 are special in verbs. */
    return (generation & 0xff) << 16 | qp;
}
static inline uint32_t sf_number_entry(uint32_t number)
{
    return number & (SF_QPS - 1);
}

/* The device with this GID, or SF_NO_DEVICE; *gid (`gid` may be NULL) is the GID's index in its table. */
uint32_t sf_find_gid(const struct sf_fabric *, const uint8_t raw[16], uint32_t *gid);
/* The device whose port has this LID on an InfiniBand fabric, or SF_NO_DEVICE; and the LID of a device, 0 on Ethernet. */
uint32_t sf_find_lid(const struct sf_fabric *, uint16_t lid);
uint16_t sf_lid(const struct sf_fabric *, uint32_t device);
/* Whether messages can get from one device to another now. That depends on cables, the switch, ports, and removed devices. */
bool sf_reachable(const struct sf_fabric *, uint32_t from, uint32_t to);

/* signal.c: the message in the pipes of channels and contexts, written with one write(). */
struct sv_event {
    uint32_t kind; /* 1: a completion event of cq `entry`; 2: check the timers; 3: an asynchronous event of type `type` */
    uint32_t entry, generation;
    uint32_t type;       /* enum ibv_event_type; it says whether `entry` is a device, cq, qp or srq */
    uint32_t connection; /* for an event of a queue pair: its sf_qp.connection at that time */
};
/* Writes into the pipe whose writing end is descriptor `fd` of a process (number + 1), which may be this one. Does not block if the writing
   ends of this process do not. 0, -ESRCH (the process has died), -EAGAIN (the pipe is full), or another negative errno. */
int sf_signal(struct sf_view *, uint32_t process, int fd, const void *event, size_t bytes);

uint64_t sf_now(void); /* CLOCK_MONOTONIC, ns */

#endif
