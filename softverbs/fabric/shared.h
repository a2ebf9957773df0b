/* SPDX-License-Identifier: MIT
 *
 * A fabric: one file in shared memory that every program on it maps. It holds the model, the tables of everything
 * that lives on the devices, the queues, the faults. There is no daemon: who touches an object does its work.
 *
 * Trust: all processes of a fabric belong to one user and may attach to each other's memory (that is how data moves).
 * Yet what is read here is checked before it is used as an index or an offset: a program gone wild in one process must
 * not take the others with it.
 *
 * Death: an entry names the process that owns it. A lock names its holder. When a process has died, whoever runs into
 * what it left (a lock, a full table, its start) takes it away: sf_reap.
 *
 * Containers: processes find each other by number, so all of a fabric are in one PID namespace. Whoever comes from another
 * one while somebody lives is turned away. The kernel tells who does across namespaces: each process holds a lock on
 * a byte behind the file's end (file.c).
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
    SF_PAGES = 1 << 20, /* of the arena that queues are cut from: 4 GiB of file, used where it is touched */
};
#define SF_MAGIC UINT64_C(0x3330626146765331) /* version 3 of the layout, for this build of it: see sf_layout */
#define SF_MAGIC_FAMILY UINT64_C(0x0000ffffffffffff) /* what all versions have in common: the rest is the version */

/* ---- Locks ---------------------------------------------------------------------------------------------------
 * A word: 0, or the holder's process number + 1, with SF_LOCK_WAITED where someone sleeps on it. */
struct sf_lock {
    _Atomic uint32_t word;
};

/* ---- Tables ---------------------------------------------------------------------------------------------------
 * `owner` is 0 (free), or the owning process's number + 1; SF_LEAKED for a protection domain that outlived its process.
 * It is taken by compare-and-swap and is the last word to be cleared. `generation` grows each time an entry is used
 * again: it is a part of queue pair numbers and keys, so that a stale one is seen for what it is. */
#define SF_LEAKED UINT32_C(0xffffffff)
#define SF_JOINING UINT32_C(0x80000000)

#define SF_NO_HOST UINT16_MAX /* of a member that is no program on a device: the command, while it works */

struct sf_process {
    _Atomic uint32_t owner; /* 1 in use; SF_JOINING | pid while it is being filled in */
    int32_t pid;
    uint64_t cookie;         /* a random number ... */
    uint64_t cookie_address; /* ... that is found at this address of the process as long as it lives */
    uint16_t host;
    char command[30];
    _Atomic uint64_t space;  /* the PID namespace in which `pid` is its number; SF_SPACE_DEAD: it was another one, and is dead */
    uint64_t started;        /* when the process began, in /proc/PID/stat's ticks: for where its memory may not be read */
    _Atomic int32_t thread;  /* by which its memory is reached: `pid`, or another thread of it once the first has ended */
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
    _Atomic uint32_t live;  /* 1 from registration to deregistration; an executor reads it after it said it is busy */
    uint32_t generation;    /* its low 8 bits are the key's */
    uint32_t device, pd, access;
    uint64_t iova, address, length; /* the range's name in requests, and where it is in the owner's memory */
    uint64_t reserved;
};

/* Entries of a completion queue. */
struct sf_cqe {
    uint64_t wr_id;
    uint64_t timestamp;     /* CLOCK_MONOTONIC, ns */
    uint32_t qp;            /* entry number in qps */
    uint32_t qp_num, source_qp;
    uint32_t byte_len;
    uint32_t imm;           /* as on the wire */
    uint32_t slot;          /* low bits of the request's position in its queue: what it frees when polled */
    uint8_t status, opcode, wc_flags, receive; /* enum ibv_wc_status; enum ibv_wc_opcode less its receive bit; 1 of a receive queue */
    uint8_t solicited;
    uint8_t service_level;  /* of a datagram: what the device tells there (lib/finish.c) */
    uint8_t pad[2];
    uint16_t source_lid;    /* of a received message on InfiniBand: the sender's port */
    uint16_t srq;           /* entry number + 1 where the receive came from a shared queue */
    uint32_t vendor_error;
    uint64_t turn;          /* its position + 1, written last: the consumer looks at nothing else, so that the completion
                             * comes to it in one line of a cache, which is what this structure is long */
};
_Static_assert(sizeof(struct sf_cqe) == 64, "a completion is a line");

/* What a dying process was doing when it published a completion, so that the request is not used twice or lost. */
struct sf_intent {
    _Atomic uint32_t kind;  /* 0 nothing, 1 a send queue, 2 a receive queue, 3 a shared receive queue, 4 the same, and the completion
                             * finds no room: nobody will poll it, so its slot is free at once */
    uint32_t index;         /* entry in qps or srqs */
    uint64_t produced;      /* completion queue's count before this completion */
    uint64_t done;          /* the queue's count once it is published */
    uint64_t dropped;       /* kind 4: sf_srq.dropped after it */
};

struct sf_cq {
    _Atomic uint32_t owner;
    uint32_t generation;
    uint32_t device;
    uint32_t capacity;      /* a power of two */
    uint32_t limit;         /* entries that may be unpolled: more is an overrun */
    _Atomic uint32_t dead;  /* overrun */
    uint64_t ring;          /* offset of struct sf_cqe [capacity] in the file; changed by a resize under `lock` */
    int32_t channel_fd;     /* the writing end of its channel in the owner's table, or -1 */
    int32_t context;        /* entry in contexts: who hears of an overrun */
    uint32_t timed;         /* completions carry the time */
    _Atomic uint32_t armed; /* 0, 1 any completion, 2 a solicited one or an error. Written under `lock` */
    /* A line for producers, one that the consumer looks at all the time, one for the consumer: looking takes a line away
     * from who writes to it. */
    struct sf_lock lock __attribute__((aligned(64))); /* of producers */
    struct sf_intent intent;
    uint64_t seen;          /* `consumed`, as a producer last looked */
    _Atomic uint64_t produced __attribute__((aligned(64)));
    _Atomic uint64_t consumed __attribute__((aligned(64)));
    _Atomic uint32_t waiting; /* 1: perhaps a queue pair that completes here waits for time; who looks clears it first */
};

/* Requests, as they lie in a queue. A slot is its header and then room for the most elements, or for inline data. */
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
    uint32_t opcode;        /* enum ibv_wr_opcode */
    uint32_t flags;         /* enum ibv_send_flags, and SF_SEND_MOVED */
    uint32_t imm;
    uint32_t length;        /* of all elements */
    uint32_t sge_count;
    uint32_t rkey;
    uint64_t remote;
    uint64_t compare_add, swap;
    uint32_t ud_device, ud_qp, ud_qkey; /* of an address handle's peer, looked up when it was posted */
    uint32_t ud_hop;        /* sgid index | traffic class << 8 | hop limit << 16 | service level << 24 | SF_UD_GLOBAL */
    uint8_t ud_dgid[16];
    union {
        struct sf_sge sge[1];
        uint8_t data[1];
    };
};

/* Of a write: its bytes went past a read before it (SF_FAULT_OVERTAKE). Its completion keeps its place. */
#define SF_SEND_MOVED (UINT32_C(1) << 31)

/* A receive queue, of one queue pair or shared. */
struct sf_receive_queue {
    uint64_t ring;          /* offset in the file */
    uint32_t capacity, stride; /* slots (a power of two), bytes of one */
    uint32_t limit, sge_limit; /* requests that may be unpolled, elements of one */
    _Atomic uint64_t posted __attribute__((aligned(64))); /* by the owner alone */
    struct sf_lock lock __attribute__((aligned(64)));     /* of whoever takes requests */
    _Atomic uint64_t done;
};

struct sf_srq {
    _Atomic uint32_t owner;
    uint32_t generation;
    uint32_t device, pd;
    int32_t context;        /* entry in contexts */
    _Atomic uint32_t watermark; /* the limit whose crossing is an event; 0 unarmed */
    _Atomic uint32_t waiting;   /* 1: perhaps a queue pair on it has a sender waiting for a receive; who looks clears it first */
    _Atomic uint64_t dropped;   /* requests that were taken and whose completion found no room. Written under queue.lock */
    struct sf_receive_queue queue __attribute__((aligned(64)));
};

#define SF_NO_DEVICE UINT32_C(0xffffffff)
#define SF_LOCK_WAITED UINT32_C(0x80000000)

struct sf_qp {
    _Atomic uint32_t owner;
    uint32_t generation;    /* low 8 bits are the number's */
    /* Atomic: who polls goes over all entries, also over one that another thread has just taken and is filling in. */
    _Atomic uint32_t number; /* the 24 bits the program sees */
    uint32_t device, pd;
    _Atomic uint32_t type;  /* enum ibv_qp_type */
    _Atomic uint32_t send_cq, receive_cq; /* entries */
    _Atomic uint32_t srq;   /* entry + 1, or 0 */
    int32_t context;        /* entry in contexts */
    uint32_t signal_all;
    uint32_t inline_limit;
    uint64_t send_ring;
    uint32_t send_capacity, send_stride, send_limit, send_sge_limit;
    uint32_t frame_depth_send, frame_depth_receive; /* granted depth in frames, where the profile counts them */

    /* The attributes of ibv_modify_qp. Written by the owner with the send queue's and the receive queue's lock held. Atomic:
     * peers' executors read them before they have a lock, and again under it where it matters. */
    _Atomic uint32_t state __attribute__((aligned(64))); /* enum ibv_qp_state */
    _Atomic uint32_t access;
    _Atomic uint32_t qkey;
    _Atomic uint32_t peer_number;
    _Atomic uint32_t peer_device;   /* found from the destination's address; SF_NO_DEVICE when that leads nowhere */
    _Atomic uint32_t peer_qp;       /* entry of peer_number in qps */
    _Atomic uint32_t send_psn, receive_psn;
    uint32_t mtu;           /* bytes */
    _Atomic uint8_t timeout, retry_count, rnr_retry, rnr_timer; /* encoded as in ibv_qp_attr */
    _Atomic uint8_t rd_atomic, dest_rd_atomic, sgid_index, port;
    uint32_t broken;        /* its cable was pulled while it was connected */
    uint32_t established;   /* a message came while it was in RTR, and its owner was told */
    _Atomic uint32_t connection; /* grows with each RESET: events and a failure of the last one are not of this one */
    _Atomic uint32_t failing;    /* the connection that goes to ERR by a peer's hand: its owner finishes that (lib/finish.c) */

    _Atomic uint64_t send_posted __attribute__((aligned(64))); /* by the owner alone */

    /* Execution of the send queue, by whoever holds the lock: the owner, or the peer that has just posted a receive. */
    struct sf_lock lock __attribute__((aligned(64)));
    _Atomic uint32_t kick;  /* someone wanted it executed while the lock was held */
    _Atomic uint64_t busy;  /* grows by 1 before and after each access to memory: odd while there is one */
    _Atomic uint32_t busy_with; /* the other process of that access, number + 1 */
    _Atomic uint64_t send_done;
    uint64_t wait_since, wait_until; /* CLOCK_MONOTONIC ns; wait_until ~0: for ever */
    _Atomic uint64_t next_look;     /* when to try again without being asked */
    _Atomic uint32_t wait_for;      /* enum sf_wait; 0: not waiting */
    uint32_t attempts;      /* of the message at send_done that were lost on purpose */
    uint32_t judged, drop, corrupt, overtaken; /* the faults' verdict on it, once judged */
    uint64_t hold_ns, dice;
    _Atomic uint32_t waiting; /* 1 with wait_for set: its completion queue's `waiting` is set too */
    uint64_t messages;      /* executed so far: the faults' dice */
    uint32_t ordinal;       /* queue pairs of the device when it was made: the dice's name for it, the same in each run */

    /* What a peer's sender waits for: a receive of mine. Set by the executor, looked at when I post one. */
    _Atomic uint32_t wanted;
    struct sf_receive_queue receive __attribute__((aligned(64)));
};

enum sf_wait {
    SF_WAIT_NOTHING,
    SF_WAIT_RECEIVE, /* receiver not ready */
    SF_WAIT_ANSWER,  /* nobody there: retries run */
    SF_WAIT_DELAY,   /* a fault holds the message up */
    SF_WAIT_HELD,    /* a fault holds the completion back: the data has moved */
};

/* ---- Devices, now ---------------------------------------------------------------------------------------------- */
struct sf_device {
    _Atomic uint32_t port_up, removed;
    _Atomic uint32_t qps, pds, mrs, cqs, srqs; /* in use; pds with what has leaked. Kept by sf_take and sf_give */
    _Atomic uint32_t dereg_blocked;            /* profile: error_blocks_dereg */
    _Atomic uint32_t reboots;
    struct sf_lock atomics;  /* of remote atomics on this device's memory */
    _Atomic uint64_t sent __attribute__((aligned(64))); /* messages and bytes that left it; messages lost */
    _Atomic uint64_t sent_bytes, dropped;
    _Atomic uint64_t received __attribute__((aligned(64))), received_bytes; /* written by the senders: a line apart */
};

/* ---- Faults ---------------------------------------------------------------------------------------------------- */
enum sf_fault_kind {
    SF_FAULT_NONE,
    SF_FAULT_DROP,     /* the message is lost on its way */
    SF_FAULT_CORRUPT,  /* one byte of it arrives wrong */
    SF_FAULT_DELAY,    /* it starts later, by `nanoseconds` */
    SF_FAULT_WITHHOLD, /* its completions come later, by `nanoseconds` */
    SF_FAULT_REORDER,  /* its completions come later, by anything up to `nanoseconds`: those of other queue pairs overtake */
    SF_FAULT_REFUSE,   /* a call of `verb` fails with `error` */
    SF_FAULT_OVERTAKE, /* a read starts later, by `nanoseconds`, and writes behind it go first, up to one with the fence bit */
};
enum sf_verb { /* what can be refused */
    SF_VERB_OPEN_DEVICE, SF_VERB_QUERY_DEVICE, SF_VERB_QUERY_PORT, SF_VERB_QUERY_GID, SF_VERB_ALLOC_PD, SF_VERB_REG_MR,
    SF_VERB_DEREG_MR, SF_VERB_CREATE_CHANNEL, SF_VERB_CREATE_CQ, SF_VERB_CREATE_QP, SF_VERB_MODIFY_QP, SF_VERB_DESTROY_QP, SF_VERB_CREATE_SRQ,
    SF_VERB_CREATE_AH, SF_VERB_POST_SEND, SF_VERB_POST_RECV, SF_VERB_POLL_CQ, SF_VERB_REQ_NOTIFY,
    SF_VERBS,
};
struct sf_fault {
    _Atomic uint32_t kind;   /* written last, with release: the rule counts from then on */
    uint32_t device;         /* entry, or SF_NO_DEVICE for all (of `host`) */
    uint32_t host;           /* entry, or SF_NO_DEVICE for all */
    uint32_t qp_num;         /* 0: all */
    uint32_t chance_ppm;     /* of a million; 0: not by chance */
    uint32_t verb;
    int32_t error;
    uint32_t id;             /* what `softverbs fault` calls it */
    uint64_t first, every, count; /* by turn: the first-th match (from 1), then every so many (0: never again), at most count (0: no end) */
    uint64_t nanoseconds;
    uint64_t seed;
    _Atomic uint64_t matches, hits;
};

/* ---- The file -------------------------------------------------------------------------------------------------- */
_Static_assert(SF_SRQS < UINT16_MAX, "sf_cqe.srq");
struct sf_fabric {
    uint64_t magic;
    uint64_t layout;         /* sf_layout(): sizes of all this, so that another build's file is refused */
    uint64_t bytes;
    uint64_t seed;           /* of the profile's losses and of faults that name none */
    uint64_t created;        /* CLOCK_REALTIME seconds */
    char name[SV_NAME];
    _Atomic uint32_t down;   /* `softverbs down` was here: nobody comes in any more */
    _Atomic uint32_t fault_count; /* live rules: 0 is the quick way past all of them */
    struct sf_lock lock;     /* of the tables' and the arena's taking */
    _Atomic uint32_t next_fault;
    /* Never changes: on pages of its own, which nobody may write who has attached. */
    struct sv_model model __attribute__((aligned(4096)));
    struct sf_device devices[SV_DEVICES] __attribute__((aligned(4096)));
    struct sf_fault faults[SF_FAULTS];

    /* One above the highest entry ever used: what a search has to look at. */
    _Atomic uint32_t process_top, context_top, pd_top, mr_top, cq_top, qp_top, srq_top, page_top;
    uint32_t process_next, context_next, pd_next, mr_next, cq_next, qp_next, srq_next, page_next; /* where to look first */
    struct sf_process processes[SF_PROCESSES];
    struct sf_context contexts[SF_CONTEXTS];
    struct sf_pd pds[SF_PDS];
    struct sf_mr mrs[SF_MRS];
    struct sf_srq srqs[SF_SRQS];
    struct sf_cq cqs[SF_CQS];
    struct sf_qp qps[SF_QPS];
    _Atomic uint32_t pages[SF_PAGES]; /* of the arena: owner's process number + 1, or 0 */
    uint8_t arena[] __attribute__((aligned(4096)));
};

#define SF_BYTES (sizeof(struct sf_fabric) + (uint64_t)SF_PAGES * SF_PAGE) /* of the file */

/* ---- A process's view ------------------------------------------------------------------------------------------ */
struct sf_view {
    struct sf_fabric *fabric;
    uint32_t process;        /* my number + 1; 0 for one that only looks on, and takes no lock */
    int fd;                  /* kept open: to give pages back */
    uint64_t cookie;         /* processes[].cookie_address points here: the view must not move */
    char path[256];
    void (*full)(const struct sf_view *); /* told when the file system has no room for the file to grow; NULL: nobody is */
};

/* file.c: names. The directory is $SOFTVERBS_DIR, else /dev/shm/softverbs-UID, made 0700 and refused when not ours. */
int sf_directory(char *path, size_t bytes, bool make, struct sv_why *);
bool sf_name_valid(const char *name); /* letters, digits, - _ . ; at most SV_NAME - 1; not starting with . */
uint64_t sf_layout(void);

/* Whether there is a file of that name, of this user, that is a fabric of this or another version. */
bool sf_is_fabric(const char *name);
/* Makes the file `name`: -EEXIST when there is one. Atomic: others see the whole of it or none. */
/* Where a device's cable leads from now on: another device, or SV_NO_CABLE. Under the fabric's lock, with both their ports down. */
int sf_set_cable(struct sf_fabric *, uint32_t device, int32_t cable);
int sf_create(const char *name, const struct sv_model *, uint64_t seed, struct sv_why *);
/* Maps it: -ENOENT, -EPROTO (another build's), -EACCES. `join` takes an entry in processes. */
int sf_attach(struct sf_view *, const char *name, bool join, uint16_t host, struct sv_why *);
/* Gives back all this process has on the fabric (domains leak where the profile says so) and unmaps it. */
void sf_detach(struct sf_view *);
/* Takes the name away and marks the file down. -EBUSY with the number of live processes in *live unless `force`. */
int sf_remove(const char *name, bool force, unsigned *live, struct sv_why *);

/* alive.c */
pid_t sf_reach(const struct sf_fabric *, uint32_t process); /* the number by which the memory and descriptors of a process are reached */
void sf_know_self(uint64_t *space, uint64_t *started); /* this process's; 0 where /proc does not tell */
/* Who is of another PID namespace, or may not be looked at and has not died for certain, counts as alive. */
bool sf_alive(struct sf_fabric *, uint32_t process);   /* by number + 1; a few microseconds: a system call */

/* process.c */
void sf_reap(struct sf_view *, uint32_t process);      /* everything of a dead one; what is not dead is left alone */
unsigned sf_reap_all(struct sf_view *);                /* looks for the dead; how many it buried */
/* Gives back all this process has. Called at its end, perhaps from a signal's handler that interrupted a holder of one of its
 * locks, or while a stopped process holds one: then it does nothing, and the next process that comes by does it. */
void sf_leave(struct sf_view *);
void sf_inherit(struct sf_view *);                     /* my entry was a dead process's: frees what that one had */

/* lock.c. Returns true when the last holder died with it: what it guards may want mending. */
bool sf_lock(struct sf_view *, struct sf_lock *);
bool sf_try_lock(struct sf_view *, struct sf_lock *); /* false: someone holds it; never takes it from the dead */
void sf_unlock(struct sf_view *, struct sf_lock *);
void sf_recount(struct sf_fabric *); /* the devices' counts, from the tables; the fabric's lock is held */
/* The locks whose data can be mended without more ado, mended where the last holder died. */
void sf_lock_fabric(struct sf_view *);
void sf_lock_cq(struct sf_view *, struct sf_cq *);
void sf_lock_receive(struct sf_view *, struct sf_receive_queue *, struct sf_cq *completes_on);
void sf_lock_send(struct sf_view *, struct sf_qp *);
void sf_wake_cq(struct sf_view *, struct sf_cq *);   /* its owner, who may be asleep, is to look at what a dead one has left */
void sf_advance(struct sf_fabric *, const struct sf_intent *); /* the queue that a completion is of; doing it twice does no harm */
void sf_mend_cq(struct sf_fabric *, struct sf_cq *); /* for who holds the lock in a dead one's place */
void sf_mend_send(struct sf_qp *);

/* table.c: takes a free entry of a table for this process, or returns -ENOMEM after looking for the dead. The entry's
 * generation has grown, and the device's count where there is one. `limit` of the count is checked under the lock: -EBUSY. */
int sf_take_context(struct sf_view *, uint32_t device);
int sf_take_pd(struct sf_view *, uint32_t device, uint32_t limit);
int sf_take_mr(struct sf_view *, uint32_t device, uint32_t limit);
int sf_take_cq(struct sf_view *, uint32_t device, uint32_t limit);
int sf_take_qp(struct sf_view *, uint32_t device, uint32_t limit); /* its number is set */
int sf_take_srq(struct sf_view *, uint32_t device, uint32_t limit);
void sf_give_context(struct sf_view *, uint32_t);
void sf_give_pd(struct sf_view *, uint32_t);
void sf_give_mr(struct sf_view *, uint32_t);
void sf_give_cq(struct sf_view *, uint32_t);
void sf_give_qp(struct sf_view *, uint32_t);
void sf_give_srq(struct sf_view *, uint32_t);

/* free.c: with the fabric's lock held, for any owner. */
void sf_free_mr(struct sf_fabric *, uint32_t);
void sf_free_pd(struct sf_fabric *, uint32_t);
void sf_free_cq(struct sf_fabric *, uint32_t);
void sf_free_qp(struct sf_fabric *, uint32_t);
void sf_free_srq(struct sf_fabric *, uint32_t);
void sf_free_pages(struct sf_view *, uint32_t page, uint32_t count);
void sf_free_all_pages(struct sf_view *, uint32_t process);
static inline uint64_t sf_page_offset(uint32_t page) /* in the file */
{
    return sizeof(struct sf_fabric) + (uint64_t)page * SF_PAGE;
}

/* arena.c: backs the pages of a part of the file, which else are holes: even to look at a hole of a full /dev/shm is SIGBUS.
 * 0 or -errno. */
int sf_back(struct sf_view *, const volatile void *at, size_t bytes);
/* Whole pages for a ring, zeroed and backed (no SIGBUS later). Offset in the file, or 0 with errno ENOMEM/ENOSPC. */
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
    /* 24 bits: entry and generation; the numbers 0 and 1 are special in verbs: entry 0 is never given out */
    return (generation & 0xff) << 16 | qp;
}
static inline uint32_t sf_number_entry(uint32_t number)
{
    return number & (SF_QPS - 1);
}

/* Which device of the fabric has this GID; entry, or SF_NO_DEVICE. `gid` may be NULL for its index in that table. */
uint32_t sf_find_gid(const struct sf_fabric *, const uint8_t raw[16], uint32_t *gid);
/* Which port's local identifier it is on an InfiniBand fabric; device's entry, or SF_NO_DEVICE. And a device's own, 0 on Ethernet. */
uint32_t sf_find_lid(const struct sf_fabric *, uint16_t lid);
uint16_t sf_lid(const struct sf_fabric *, uint32_t device);
/* Whether messages get from one device to another now: cables, switch, ports, removal. */
bool sf_reachable(const struct sf_fabric *, uint32_t from, uint32_t to);

/* signal.c: what goes through the pipes of channels and contexts, in one write, whole. */
struct sv_event {
    uint32_t kind;  /* 1 a completion event of cq `entry`, 2 look at the clock, 3 an asynchronous event of type `type` */
    uint32_t entry, generation;
    uint32_t type;  /* enum ibv_event_type: the entry is of a device's port, cq, qp or srq accordingly */
    uint32_t connection; /* of an event of a queue pair: sf_qp.connection when it came */
};
/* Writes into the pipe whose writing end is descriptor `fd` of a process (number + 1), this one or another; never blocks,
 * where a pipe of this process does not. 0, -ESRCH (it has died), -EAGAIN (full), or another negative errno. */
int sf_signal(struct sf_view *, uint32_t process, int fd, const void *event, size_t bytes);

uint64_t sf_now(void); /* CLOCK_MONOTONIC, ns */

#endif
