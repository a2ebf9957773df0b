/* SPDX-License-Identifier: MIT
 *
 * When a queue pair breaks, its unfinished requests are posted again on the next one, in the same order.
 *
 * Frames are numbered in their lane. The sender keeps each frame until the peer acknowledges it. When a new queue pair is made, each end
 * tells the other how many frames it has received; by then it has destroyed its old queue pair, so this number is final. So each frame is
 * received exactly once.
 *
 * Unfinished puts and gets are repeated, so a put may be written twice before it completes. But a put that was posted before a frame which
 * the peer has received is not repeated: it has arrived, and the program may have written to its target since. Two kinds of requests end
 * with -ECONNABORTED: an atomic of the device, because it may have been executed already; and a request that a device has refused, because
 * it would break the next queue pair, too.
 */
#include "fabric/rc/rc.h"

#include <stdlib.h>
#include <string.h>

static void rc_again_end(struct rc_link *l, struct rc_slot *s, int status)
{
    bool told = s->op || (s->work && s->work->op);
    rc_finish(l, s, status);
    if (status && !told) /* the next flush reports the error */
        atomic_store_explicit(&l->link->unsure, true, memory_order_relaxed);
}

/* Atomic, because rc_progress() reads l->again without the lock. */
static void set_again(struct rc_link *l, struct rc_slot *list)
{
    struct rc_slot *was = l->again;
    __atomic_store_n(&l->again, list, __ATOMIC_RELAXED);
    free(was);
}

static bool before(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b) < 0;
}

static bool was_received(const struct rc_slot *s, const uint32_t received[RC_LANES])
{
    return s->kind == RC_SLOT_FRAME && before(s->number, received[s->lane]);
}

/* Adds frames whose requests have completed here, but which the peer has not received: its device had received them, but the peer destroyed
 * the queue pair before it polled their completions. These frames are older than all unfinished requests. */
static uint32_t gather_older(struct rc_link *l, struct rc_slot *list, const uint32_t from[RC_LANES], const uint32_t to[RC_LANES])
{
    uint32_t n = 0, at[RC_LANES];
    memcpy(at, from, sizeof at);
    for (;;) {
        int lane = -1;
        uint64_t oldest = UINT64_MAX;
        for (int i = 0; i < RC_LANES; i++) {
            const struct rc_kept *k = &l->kept[(uint32_t)i * RC_WINDOW + at[i] % RC_WINDOW];
            if (before(at[i], to[i]) && k->position < oldest) {
                oldest = k->position;
                lane = i;
            }
        }
        if (lane < 0)
            return n;
        list[n++] = (struct rc_slot){.kind = RC_SLOT_FRAME, .lane = (uint8_t)lane, .number = at[lane]++, .frame = true};
    }
}

int rc_gather_locked(struct rc_link *l, const uint32_t received[RC_LANES])
{
    uint32_t window = (uint32_t)(l->posted - l->done), rest = l->again ? l->again_count - l->again_at : 0;
    struct rc_slot *list = malloc((window + rest + RC_LANES * RC_WINDOW + 1) * sizeof *list);
    if (!list)
        return base_fail(-ENOMEM, "rc: no memory for the list of requests to repeat on a new queue pair" BASE_MEMORY_HINT);
    uint32_t first[RC_LANES], executed = 0, n = 0;
    for (int i = 0; i < RC_LANES; i++)
        first[i] = l->lane[i].sent;
    /* Go from the newest request to the oldest: so in the end first[lane] is the oldest frame of the lane that still has a request. */
    for (uint32_t i = window + rest; i-- > 0;) {
        const struct rc_slot *s = i < window ? rc_slot_at(l, l->done + i) : &l->again[l->again_at + i - window];
        if (s->kind == RC_SLOT_FRAME) /* NOLINT(clang-analyzer-core.NullDereference): without `again`, `rest` is 0 */
            first[s->lane] = s->number;
        if (executed == 0 && was_received(s, received))
            executed = i + 1; /* this request and all before it have arrived */
    }
    uint32_t older = n = gather_older(l, list, received, first);
    for (uint32_t i = 0; i < window + rest; i++) {
        struct rc_slot *s = i < window ? rc_slot_at(l, l->done + i) : &l->again[l->again_at + i - window];
        switch ((enum rc_slot_kind)s->kind) {
        case RC_SLOT_TELL:
        case RC_SLOT_FLUSH: rc_finish(l, s, 0); break;
        case RC_SLOT_FRAME:
            if (was_received(s, received))
                rc_finish(l, s, 0);
            else
                list[n++] = *s;
            break;
        case RC_SLOT_ATOMIC: rc_again_end(l, s, -ECONNABORTED); break;
        case RC_SLOT_PUT:
        case RC_SLOT_GET:
            if (s->refused)
                rc_again_end(l, s, -ECONNABORTED);
            else if (s->kind == RC_SLOT_PUT && i < executed)
                rc_finish(l, s, 0);
            else
                list[n++] = *s;
        }
    }
    /* On the next queue pair nothing precedes the first of these requests, so it needs no IBV_SEND_FENCE. For each later fence, the first
     * repeated request behind it gets IBV_SEND_FENCE. */
    if (n > older)
        l->fences_posted = list[older].fences;
    for (uint32_t i = 0; i < older; i++)
        list[i].fences = l->fences_posted;
    set_again(l, n ? list : NULL);
    if (!n)
        free(list);
    l->again_at = 0;
    l->again_count = n;
    l->done = l->signalled = l->posted;
    l->flush_read = 0;
    l->gathered++;
    return 0;
}

void rc_resume_locked(struct rc_link *l)
{
    while (l->up && l->again && l->posted - l->done < l->depth) {
        struct rc_slot *s = &l->again[l->again_at];
        bool last = l->again_at + 1 == l->again_count;
        bool posted = s->kind == RC_SLOT_FRAME ? rc_post_frame_again(l, s) : rc_post_transfer_again(l, s, last || s->op || s->work);
        if (!posted)
            return;
        l->again_at++;
        if (last)
            set_again(l, NULL);
    }
}

void rc_drop_again_locked(struct rc_link *l, int status)
{
    for (uint32_t i = l->again_at; l->again && i < l->again_count; i++)
        rc_finish(l, &l->again[i], status);
    set_again(l, NULL);
}
