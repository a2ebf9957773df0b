/* SPDX-License-Identifier: MIT
 *
 * Objects that records name by a handle, such as open files and sockets; and the answers to records.
 */
#include "gateway/record.h"

#include <stdlib.h>
#include <string.h>

/* --- answers --- */

void gateway_record_write(const struct gateway_record *x, int status)
{
    weft_request *there = x->there;
    memcpy(there->result, x->r.result, sizeof there->result);
    there->status = base_status_out(status);
    /* release: an asker that sees the new `answered` also sees the rest of the answer */
    __atomic_store_n(&there->answered, x->r.id, __ATOMIC_RELEASE);
    if (x->call)
        (void)weft_gpu_answer(x->call, status, x->r.result[0]);
}

void gateway_record_answer(struct gateway *g, weft_request *r, int status)
{
    struct gateway_record *x = (struct gateway_record *)(void *)r;
    weft_op *op = x->op;
    gateway_record_write(x, status);
    free(x);
    if (!op)
        return;
    fab_complete(op, status);
    fab_wake_here(g->w);
}

/* --- objects --- */

int gateway_object_add(struct gateway *g, struct gateway_object *o)
{
    base_spin_lock(&g->lock);
    o->id = gateway_table_add(&g->objects, o);
    base_spin_unlock(&g->lock);
    return o->id ? 0
                 : base_fail(-ENOMEM, "there is no memory for another process, socket or file, or too many of these are open by records of "
                                      "requests of this node: close some");
}

struct gateway_object *gateway_object_use(struct gateway *g, const weft_request *r)
{
    base_spin_lock(&g->lock);
    struct gateway_object *o = gateway_table_find(&g->objects, r->handle);
    if (o && o->service != r->service)
        o = NULL;
    if (o)
        o->uses++;
    base_spin_unlock(&g->lock);
    return o;
}

void gateway_object_leave_locked(struct gateway *g, struct gateway_object *o)
{
    if (--o->uses || !o->closed)
        return;
    o->next_dead = g->dead_objects;
    g->dead_objects = o;
    fab_kick(g->w);
}

void gateway_object_leave(struct gateway *g, struct gateway_object *o)
{
    base_spin_lock(&g->lock);
    gateway_object_leave_locked(g, o);
    base_spin_unlock(&g->lock);
}

void gateway_object_close_locked(struct gateway *g, struct gateway_object *o)
{
    if (!o->closed)
        gateway_table_remove(&g->objects, o->id);
    o->closed = true;
}

void gateway_object_close(struct gateway *g, struct gateway_object *o)
{
    base_spin_lock(&g->lock);
    gateway_object_close_locked(g, o);
    base_spin_unlock(&g->lock);
}

void gateway_objects_tick(struct gateway *g)
{
    base_spin_lock(&g->lock);
    struct gateway_object *dead = g->dead_objects;
    g->dead_objects = NULL;
    base_spin_unlock(&g->lock);
    for (struct gateway_object *o; (o = dead);) {
        dead = o->next_dead;
        o->free(g, o, false);
    }
}

void gateway_objects_free(struct gateway *g)
{
    uint32_t at = 0;
    for (struct gateway_object *o; (o = g->dead_objects);) {
        g->dead_objects = o->next_dead;
        o->free(g, o, true);
    }
    for (struct gateway_object *o; (o = gateway_table_next(&g->objects, &at));)
        o->free(g, o, true);
    gateway_table_free(&g->objects);
}
