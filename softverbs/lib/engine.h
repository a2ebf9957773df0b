/* SPDX-License-Identifier: MIT
 *
 * The interface between the files that run the queues: post.c, execute.c, deliver.c, move.c, complete.c, poll.c.
 */
#ifndef SOFTVERBS_ENGINE_H
#define SOFTVERBS_ENGINE_H

#include "lib.h"

#include <string.h>
#include <sys/uio.h>

enum { SV_PIECES = 128 }; /* maximum number of pieces of a message on one side: an element may have two pieces */

/* The memory of a message on one side, as pieces of one process's memory. `process` is that process's number + 1. */
struct sv_place {
    uint32_t process;
    int count;
    uint64_t bytes;
    struct iovec piece[SV_PIECES];
};
/* Empties a place. Does not clear the array of pieces: it has two kilobytes, and most messages use one piece. */
static inline void sv_place_begin(struct sv_place *p, uint32_t process)
{
    p->process = process;
    p->count = 0;
    p->bytes = 0;
}

enum sv_moved {
    SV_MOVED,
    SV_MOVED_DEAD,   /* the other process is dead */
    SV_MOVED_SOURCE, /* memory of the source is not mapped */
    SV_MOVED_TARGET, /* memory of the target is not mapped, or not writable */
    SV_MOVED_DENIED, /* this machine does not let processes access each other's memory */
};

/* move.c. Appends a range to a place, if its key, owner, domain, bounds and rights are right and the region is live. Returns false if the
 * range is refused. */
bool sv_place_add(struct sv_place *, uint32_t process, uint32_t pd, uint32_t key, uint64_t address, uint64_t bytes, uint32_t access);
/* Copies the first `bytes` of the source to the target. One of the two is in this process. Both places are empty afterwards. `one_sided`:
 * an RDMA write or read. */
enum sv_moved sv_move(struct sv_place *source, struct sv_place *target, uint64_t bytes, bool one_sided);
/* Executes an atomic on a 64-bit word of the target's memory, while holding the device's lock for atomics. *old gets the old value. */
enum sv_moved sv_move_atomic(uint32_t process, uint32_t device, uint64_t address, bool compare, uint64_t compare_add, uint64_t swap,
                             uint64_t *old);
/* Flips a bit of the byte at `offset` of a place. Call this before sv_move(). */
void sv_flip(const struct sv_place *, uint64_t offset);

static inline struct sf_send *sv_send_slot(const struct sf_qp *qp, uint64_t position)
{
    return sf_at(&sv_lib.view, qp->send_ring + (position & (qp->send_capacity - 1)) * qp->send_stride);
}
static inline struct sf_receive *sv_receive_slot(const struct sf_receive_queue *q, uint64_t position)
{
    return sf_at(&sv_lib.view, q->ring + (position & (q->capacity - 1)) * q->stride);
}
/* Whether a ring is in the arena, its size is a power of two, and its slots have room for `least` bytes. Other processes may have
 * overwritten these words. */
static inline bool sv_ring_sane(uint64_t ring, uint32_t capacity, uint32_t stride, size_t least)
{
    return capacity != 0 && (capacity & (capacity - 1)) == 0 && ring >= sizeof(struct sf_fabric) && ring <= SF_BYTES && stride >= least &&
           ((stride | ring) & 7) == 0 && (uint64_t)capacity * stride <= SF_BYTES - ring;
}
static inline bool sv_send_ring_sane(const struct sf_qp *qp)
{
    return sv_ring_sane(qp->send_ring, qp->send_capacity, qp->send_stride, offsetof(struct sf_send, sge) + sizeof(struct sf_sge));
}
static inline bool sv_receive_ring_sane(const struct sf_receive_queue *q)
{
    return sv_ring_sane(q->ring, q->capacity, q->stride, sizeof(struct sf_receive));
}

/* The frames of a message, if the device counts frames (frame_bytes); otherwise 1. */
static inline uint64_t sv_frames(uint64_t bytes)
{
    uint32_t one = sv_lib.profile->frame_bytes;
    uint64_t n = one ? (bytes + one - 1) / one : 1;
    return n ? n : 1;
}

static inline bool sv_over_ipv4(const struct sf_send *s)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(s->ud_dgid, mapped, sizeof mapped) == 0;
}

/* Work for after all locks were released: queue pairs to run or to flush, and processes to reap. */
struct sv_later {
    int count, flush_count, dead_count;
    uint32_t run[6], flush[6], dead[4];
};
static inline bool sv_later_any(const struct sv_later *l)
{
    return (l->count | l->flush_count | l->dead_count) != 0;
}
static inline void sv_later_run(struct sv_later *l, uint32_t qp)
{
    if (l->count < 6)
        l->run[l->count++] = qp;
}
static inline void sv_later_flush(struct sv_later *l, uint32_t qp)
{
    if (l->flush_count < 6)
        l->flush[l->flush_count++] = qp;
}

struct sv_job {
    uint32_t q, t; /* entries of the sender's and the target's queue pair */
    struct sf_qp *qp, *target;
    struct sf_send *s;
    struct sf_receive_queue *rq; /* locked if the operation takes a receive */
    struct sv_later *later;
};

static inline bool sv_takes_receive(uint32_t opcode)
{
    return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/* deliver.c: executes a request of a send queue, completely or not at all. The caller holds the send queue's lock. */
enum sv_step {
    SV_DONE,  /* go on with the next request */
    SV_STALL, /* the request waits, as the queue pair's wait_* members say */
};
enum sv_step sv_step(uint32_t qp, struct sv_later *);

/* finish.c. Ends the request at send_done with this status. After an error, the queue pair goes to the state that its type requires. */
void sv_end_send(uint32_t qp, enum ibv_wc_status, struct sv_later *);
/* Ends the receive at `done` of the locked receive queue. */
void sv_end_receive(struct sv_job *, enum ibv_wc_status, uint64_t bytes);
/* Sends the limit event of a shared receive queue if fewer receives are left than its armed limit. The caller holds the queue's lock. */
void sv_tell_limit(uint32_t srq);
/* Brings a queue pair to ERR: sends `event`, unless it is IBV_EVENT_CQ_ERR, and adds the queue pair to `later` for flushing. */
void sv_fail_qp(uint32_t qp, enum ibv_event_type event, struct sv_later *);
/* Sets the state to ERR. Returns false if the state does not allow this, or if the owner has reset the queue pair. */
bool sv_to_error(struct sf_qp *);

/* wait.c */
/* makes the request wait until `until`, which is ignored if the request already waits for the same thing */
enum sv_step sv_stall(struct sv_job *, enum sf_wait, uint64_t until);
enum sv_step sv_end(struct sv_job *, enum ibv_wc_status);
enum sv_step sv_lost(struct sv_job *); /* ends the request with success: the type is unreliable, so its sender is not told of a loss */
/* for a queue pair that does not exist, is not connected to this one, belongs to a dead process, or cannot be reached */
enum sv_step sv_no_answer(struct sv_job *);
enum sv_step sv_not_ready(struct sv_job *);              /* the receiver has posted no receive */
enum sv_step sv_died(struct sv_job *, uint32_t process); /* the other process died during the access */

#endif
