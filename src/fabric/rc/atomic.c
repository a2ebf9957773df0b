/* SPDX-License-Identifier: MIT
 *
 * Atomics: by the home's device, where that says that it is atomic with its processor too; else, and swaps always, by the home's
 * processor, asked with a frame. Both may be used on one word then.
 *
 * To the send queue a native atomic is a read of 8 bytes, which come by way of a frame of ours.
 */
#include "fabric/rc/rc.h"

int rc_post_atomic(struct rc_link *l, const struct rc_work *k, weft_op *op)
{
    struct rc *rc = l->rc;
    if (!rc_has_slot(l))
        return 0;
    struct rc_slot *slot = rc_slot_next(l);
    *slot = (struct rc_slot){.op = op, .stage = rc_take_stage(rc, true), .copy_to = k->local, .len = 8, .frame = true,
                             .kind = RC_SLOT_ATOMIC, .fences = k->fences};
    if (!slot->stage)
        return 0;
    struct ibv_sge sge = {.addr = (uintptr_t)slot->stage, .length = 8,
                          .lkey = verbs_lkey(&rc->private, (uint64_t)((uint8_t *)slot->stage - rc->memory))};
    struct ibv_send_wr wr = {
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = k->what == FAB_ADD ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP,
        .wr.atomic = {.remote_addr = l->peer_base + k->remote, .compare_add = k->a, .swap = k->b,
                      .rkey = l->peer_keys[k->remote >> l->peer_shift]},
    };
    if (rc_post(l, &wr, true)) {
        rc_give_stage(rc, slot->stage, true);
        return 0;
    }
    l->last_read = l->posted;
    atomic_fetch_add_explicit(&l->native_atomics, 1, memory_order_relaxed);
    return 1;
}

static int native(struct rc_link *l, const struct rc_work *what)
{
    int err = rc_wait_for_room(l, RC_MAIN, RC_BACKLOG_PUTS), n = 0;
    if (err)
        return err;
    base_spin_lock(&l->lock);
    if (l->closed) {
        err = rc_gone(l);
    } else {
        struct rc_work now = *what;
        now.fences = l->fences;
        if (rc_clear_way(l, RC_MAIN))
            n = rc_post_atomic(l, &now, what->op);
        if (n == 0)
            err = rc_keep(l, RC_MAIN, what);
        else if (what->op) /* it completes under the lock; an op whose start fails stays as it was */
            fab_pending(what->op, l->link->node);
    }
    base_spin_unlock(&l->lock);
    return err;
}

int rc_atomic(struct weft *w, struct fab_link *link, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, uint64_t *old,
              weft_op *op)
{
    struct rc_link *l = link->impl;
    (void)w;
    if (l->has_atomics && kind != FAB_SWAP) {
        struct rc_work k = {.kind = RC_WORK_ATOMIC, .what = kind, .op = op, .remote = at, .local = (uint8_t *)old, .a = a, .b = b};
        return native(l, &k);
    }
    struct rc_frame f = {.kind = RC_ATOMIC, .what = (uint8_t)kind, .offset = at, .a = a, .b = b};
    return rc_frame_send(l, &f, NULL, NULL, true, old, op);
}
