/* SPDX-License-Identifier: MIT
 *
 * Kernels and work queues: calls that submit, claim and complete tasks, and persistent workers, whose blocks take tasks that the node has
 * claimed ahead. Included by weft/device.h.
 */
#ifndef WEFT_DEVICE_TASKS_H
#define WEFT_DEVICE_TASKS_H

#include "device_ring.h"
#if !defined(WEFT_DEVICE_METAL)
#include "queue.h"
#endif

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
extern "C" {
#endif

/* --- work queues: like the calls of the same names in weft/queue.h --- */

/* `queue` is a number from weft_gpu_queue(). A call handles at most WEFT_DEVICE_TASKS tasks; with more it fails with -WEFT_DEVICE_EINVAL.
 * The arrays of tasks, ids, leases and results are in this node's own pool or in one of its arenas. Kernels read and write an array in an
 * arena faster, but the GPU copies the array from and to the node, which takes some microseconds. The arrays belong to the node until the
 * answer has arrived: after -WEFT_DEVICE_ETIMEDOUT the node may still write there, until the GPU is closed. The errors are those of
 * weft/queue.h, and -WEFT_DEVICE_ENOENT for a number that no queue has, -WEFT_DEVICE_EFAULT for memory outside the pool and the arenas, and
 * -EIO if the GPU has failed.
 *
 * The `_start` calls make one attempt. When it succeeds, the `value` of the op is the number of tasks. When there is no room or no task is
 * ready, the op ends with -WEFT_DEVICE_EAGAIN. If the ring of requests is full, a `_start` call with `wait` waits for room, and one without
 * `wait` returns -WEFT_DEVICE_EAGAIN.
 *
 * The other calls wait until there is room or a task, at most weft_device.deadline_ns, and at most as long again for each answer. */

/* A payload that the kernel has stored itself is visible to the node that claims the task. If the kernel has put the payload to another
   node, call weft_device_flush() before this call. */
WEFT_DEVICE_CALL int weft_device_submit_start(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t tasks, uint32_t count, uint64_t ids,
                                              bool wait, WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_SUBMIT, {tasks, ids, 0}, {count, queue, 0}};
    return weft_device_post(d, &q, wait, op);
}
WEFT_DEVICE_CALL int weft_device_claim_start(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint32_t max, bool wait,
                                             WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_CLAIM, {leases, 0, 0}, {max, queue, 0}};
    return weft_device_post(d, &q, wait, op);
}
/* The op's `value` has a bit for each claim that this node still holds, bit 0 for the first. */
WEFT_DEVICE_CALL int weft_device_renew_start(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint32_t count, bool wait,
                                             WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_RENEW, {leases, 0, 0}, {count, queue, 0}};
    return weft_device_post(d, &q, wait, op);
}
/* Bit i of the op's `value` is 1 if completion i was accepted (counted from 0). */
WEFT_DEVICE_CALL int weft_device_complete_start(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint64_t results,
                                                uint32_t count, bool wait, WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_COMPLETE, {leases, results, 0}, {count, queue, 0}};
    return weft_device_post(d, &q, wait, op);
}
/* Repeats the request until its answer is not -WEFT_DEVICE_EAGAIN. Returns the number of tasks. */
WEFT_DEVICE_CALL int weft_device_ask_queue(WEFT_NEAR const weft_device *d, WEFT_NEAR const weft_device_request *q)
{
    weft_device_patience p = {0, 0};
    for (;;) {
        uint64_t n = 0;
        int rc = weft_device_call(d, q, &n);
        if (rc != -WEFT_DEVICE_EAGAIN)
            return rc ? rc : (int)n;
        if (weft_device_late(d, &p))
            return -WEFT_DEVICE_ETIMEDOUT;
    }
}
/* Submits as many of the first tasks as there is room for, at least 1, and returns how many. `ids` may be 0. -WEFT_DEVICE_ETIMEDOUT: there
   was no room, or no answer arrived; in the second case the tasks may have been submitted. */
WEFT_DEVICE_CALL int weft_device_submit(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t tasks, uint32_t count, uint64_t ids)
{
    weft_device_request q = {WEFT_DEVICE_SUBMIT, {tasks, ids, 0}, {count, queue, 0}};
    return weft_device_ask_queue(d, &q);
}
/* Claims up to `max` tasks, and returns how many, at least 1. If a task takes longer than the queue's lease, renew its lease in time
   (weft_device_renew()); a persistent worker renews leases itself. -WEFT_DEVICE_ESHUTDOWN: no task is ready, and no more will come.
   -WEFT_DEVICE_ETIMEDOUT: if the node has claimed tasks after all, they are ready again when their leases end. */
WEFT_DEVICE_CALL int weft_device_claim(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint32_t max)
{
    weft_device_request q = {WEFT_DEVICE_CLAIM, {leases, 0, 0}, {max, queue, 0}};
    return weft_device_ask_queue(d, &q);
}
/* Submits a request about several claims. Returns for how many claims it succeeded. In `*which` (may be NULL) bit i is set if it succeeded
   for claim i. */
WEFT_DEVICE_CALL int weft_device_ask_bits(WEFT_NEAR const weft_device *d, WEFT_NEAR const weft_device_request *q, WEFT_NEAR uint64_t *which)
{
    uint64_t bits = 0;
    int rc = weft_device_call(d, q, &bits), n = 0;
    if (rc)
        return rc;
    if (which)
        *which = bits;
    for (; bits; bits &= bits - 1)
        n++;
    return n;
}
/* Completes `count` claims with the `count` weft_result at `results`. Returns how many completions were accepted. In `*accepted` (may be
   NULL) bit i is set if completion i was accepted. */
WEFT_DEVICE_CALL int weft_device_complete(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint64_t results, uint32_t count,
                                          WEFT_NEAR uint64_t *accepted)
{
    weft_device_request q = {WEFT_DEVICE_COMPLETE, {leases, results, 0}, {count, queue, 0}};
    return weft_device_ask_bits(d, &q, accepted);
}
/* Renews `count` claims, like weft_renew(): changes the leases at `leases`. Returns how many claims this node still holds. In `*held` (may
 * be NULL) bit i is set if claim i is still held. A claim that is not held is lost, or the node that has its task does not answer now. */
WEFT_DEVICE_CALL int weft_device_renew(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint32_t count,
                                       WEFT_NEAR uint64_t *held)
{
    weft_device_request q = {WEFT_DEVICE_RENEW, {leases, 0, 0}, {count, queue, 0}};
    return weft_device_ask_bits(d, &q, held);
}

/* --- persistent workers: kernels that do tasks until there are no more --- */
#if !defined(WEFT_DEVICE_METAL)

/* If more than WEFT_DEVICE_TASKS_SURE tasks are in the ring, a thread takes a number without checking that its task is there
 * (weft_device_next_task()). */
#ifndef WEFT_DEVICE_TASKS_SURE
#define WEFT_DEVICE_TASKS_SURE 512u
#endif
/* A thread that takes a task whose number is a multiple of this also reads, for all threads, how many tasks are in the ring. */
#define WEFT_DEVICE_TASKS_LOOK 64u

/* A task for a worker's blocks. The node writes it: `number` is the task's number + 1, and 0 while the other words change. */
typedef struct weft_device_task_slot {
    uint64_t number, unused[7];
    weft_device_cell task[4]; /* a weft_task */
} __attribute__((aligned(128))) weft_device_task_slot;

#define WEFT_DEVICE_BEATS 1024u
/* A ring of tasks that the node has claimed ahead (weft_gpu_worker_open()). The node writes `slots`, `filled` and `ended`; kernels write
   the rest. A block takes the number of a task by an atomic of the device (weft_device_next_task()). */
typedef struct weft_device_worker {
    uint64_t number; /* the worker's number */
    uint64_t mask;   /* the number of slots, which is a power of two, minus 1 */
    WEFT_FAR const weft_device_task_slot *slots;
    const uint64_t *filled; /* how many tasks have been put into the ring */
    const uint64_t *ended;  /* not 0: no more tasks will come */
    uint64_t *beats;        /* for each block: the number of the task for which the block last waited, + 1 */
    uint64_t *next;         /* the number of the next task to be taken */
    uint64_t *filled_seen;  /* the value of `filled` that was last read */
} weft_device_worker;

/* A task that a block has taken. */
typedef struct weft_device_task {
    weft_task task;
    uint64_t number; /* private */
} weft_device_task;

/* Reads the task with that number. The task has been put into the ring: this thread has loaded, with acquire, a `filled` above the number.
   False: the node has taken the task back, or has skipped the number. */
WEFT_DEVICE_CALL bool weft_device_read_task(WEFT_FAR const weft_device_worker *k, uint64_t number, WEFT_NEAR weft_device_task *out)
{
    union {
        weft_task task;
        uint64_t words[8];
    } u;
    WEFT_FAR const weft_device_task_slot *s = &k->slots[number & k->mask];
    weft_device_load_words(s->task, 4, u.words);
    out->task = u.task;
    out->number = number;
    return weft_device_load(&s->number) == number + 1; /* otherwise the words may belong to other tasks */
}

/* Waits until task `t` is in the ring. If `drawn` is false, this thread has not taken the number `t` yet: then the call polls once, and
   returns -WEFT_DEVICE_EAGAIN if the task is not there. */
WEFT_DEVICE_CALL int weft_device_task_is_in(WEFT_NEAR const weft_device *d, WEFT_FAR const weft_device_worker *k, uint64_t t, bool drawn,
                                            WEFT_NEAR weft_device_patience *p)
{
    uint64_t *beat = &k->beats[weft_device_block(d) % WEFT_DEVICE_BEATS];
    while (t >= weft_device_load_passed(k->filled_seen)) {
        uint64_t ended = weft_device_load(k->ended); /* read before `filled`: tasks that came before the end are still done */
        uint64_t filled = weft_device_load(k->filled);
        if (t < filled) {
            weft_device_store_passed(k->filled_seen, filled);
            return 0;
        }
        if (ended)
            return -WEFT_DEVICE_ESHUTDOWN;
        weft_device_tell(beat, t + 1); /* all tasks before `t` have been taken */
        if (weft_device_late(d, p))    /* also true if the GPU is being closed; its workers were ended before that */
            return weft_device_load(k->ended) ? -WEFT_DEVICE_ESHUTDOWN : -WEFT_DEVICE_ETIMEDOUT;
        if (!drawn)
            return -WEFT_DEVICE_EAGAIN;
    }
    return 0;
}

/* Takes the next task of a worker, and waits for one if there is none. Each call takes one task: if the threads of a block work on it
   together, let one thread call this and tell the others. -WEFT_DEVICE_ESHUTDOWN: there are no more tasks, because the worker was closed or
   its queue was shut down. -WEFT_DEVICE_ETIMEDOUT: no task has arrived for weft_device.deadline_ns.

   While more than WEFT_DEVICE_TASKS_SURE tasks are in the ring, a thread takes the number of its task by an addition, which always
   succeeds. Otherwise it takes the number by a compare-and-swap, and only once the task is there, so that a thread whose wait ends holds no
   number. Of all threads that try this at the same time only one succeeds, so it is slow with many threads. If more threads than
   WEFT_DEVICE_TASKS_SURE add at the same time, a thread may take the number of a task that has not arrived yet. It then waits for this
   task. If its wait ends first, the node gives the task back to the queue after weft_gpu_worker_config.task_ns. */
WEFT_DEVICE_CALL int weft_device_next_task(WEFT_NEAR const weft_device *d, WEFT_FAR const weft_device_worker *worker,
                                           WEFT_NEAR weft_device_task *out)
{
    const weft_device_worker own = *worker, *k = &own; /* read once: each acquire empties the multiprocessor's cache */
    weft_device_patience p = {0, 0};
    for (;;) {
        uint64_t t = weft_device_load_own(k->next), seen = weft_device_load_passed(k->filled_seen);
        bool sure = (int64_t)(seen - t) > (int64_t)WEFT_DEVICE_TASKS_SURE;
        if (sure)
            t = weft_device_add_own(k->next, 1);
        int rc = t < seen ? 0 : weft_device_task_is_in(d, k, t, sure, &p);
        if (rc == -WEFT_DEVICE_EAGAIN)
            continue;
        if (rc)
            return rc;
        if (!sure && weft_device_swap_own(k->next, t, t + 1) != t)
            continue;
        if (t % WEFT_DEVICE_TASKS_LOOK == 0)
            weft_device_store_passed(k->filled_seen,
                                     weft_device_load(k->filled)); /* another thread may have stored a newer value: no harm */
        if (weft_device_read_task(k, t, out))
            return 0;
    }
}

/* Completes a task: its submitter gets `status`, `result` and `result_len` as from weft_complete(). A node that sees the completion also
   sees all that this thread stored before the call, and what other threads of the block stored before a barrier of the block. Does not wait
   for the completion. */
WEFT_DEVICE_CALL int weft_device_task_done(WEFT_NEAR const weft_device *d, WEFT_FAR const weft_device_worker *k,
                                           WEFT_NEAR const weft_device_task *task, int32_t status, uint64_t result, uint64_t result_len)
{
    weft_device_request q = {
        WEFT_DEVICE_TASK_DONE, {task->number, result, k->number << 32 | (uint32_t)status}, {0, result_len & ~WEFT_DEVICE_ROUND, 0}};
    return weft_device_post(d, &q, true, NULL);
}

#endif

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
}
#endif
#endif
