/* SPDX-License-Identifier: MIT
 *
 * Creates and ends queued operations (works), and ends their requests. A striped operation is in a list until it is done (rails.h).
 */
#include "fabric/rc/rails.h"

#include <stdlib.h>
#include <string.h>

struct rc_work *rc_work_make(enum rc_work_kind kind, uint32_t bytes)
{
    struct rc_work *k = malloc(sizeof *k + bytes);
    if (k)
        *k = (struct rc_work){.kind = kind, .bytes = bytes};
    return k;
}

void rc_take_from_backlog(struct rc_queue *q)
{
    struct rc_work *k = q->backlog;
    q->backlog = k->next;
    if (!q->backlog)
        q->end = &q->backlog;
    q->posted++;
    __atomic_fetch_sub(&q->bytes, sizeof *k + k->bytes, __ATOMIC_RELEASE);
}

/* --- striped works --- */

static void look_at_oldest(struct rc_link *l)
{
    const struct rc_work *k = l->tracks->oldest;
    l->stripes_done = k ? k->number : UINT64_MAX;
}

void rc_stripe_begin(struct rc_link *l, struct rc_work *k)
{
    struct rc_tracks *tracks = l->tracks;
    k->striped = true;
    k->before = tracks->newest;
    k->after = NULL;
    if (k->before)
        k->before->after = k;
    else
        tracks->oldest = k;
    tracks->newest = k;
    look_at_oldest(l);
}

void rc_stripe_over(struct rc_link *l, struct rc_work *k)
{
    struct rc_tracks *tracks = l->tracks;
    if (k->before)
        k->before->after = k->after;
    else
        tracks->oldest = k->after;
    if (k->after)
        k->after->before = k->before;
    else
        tracks->newest = k->before;
    look_at_oldest(l);
}

/* --- end --- */

void rc_finish(struct rc_link *l, struct rc_slot *s, int status)
{
    if (s->copy_to && status == 0)
        memcpy(s->copy_to, s->stage, s->len);
    if (s->stage)
        rc_give_stage(l, s->stage, s->frame);
    if (s->work) {
        struct rc_work *k = s->work;
        k->pieces--;
        k->status = k->status ? k->status : status;
        if (k->whole && k->pieces == 0) {
            if (BASE_UNLIKELY(k->striped))
                rc_stripe_over(l, k);
            fab_complete(k->op, k->status);
            free(k);
        }
    } else {
        fab_complete(s->op, status);
    }
}
