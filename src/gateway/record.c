/* SPDX-License-Identifier: MIT
 *
 * Takes records from programs and GPU kernels (weft/request.h): checks what all services have in common, and hands them to their service.
 */
#include "gateway/record.h"

#include <stdlib.h>
#include <string.h>

static void record_told(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *result)
{
    struct gateway_record *x = a->arg;
    if (x->service->told)
        x->service->told(g, &x->r, x->arg, result, x->data);
    else
        memcpy(x->r.result, result->word, sizeof x->r.result);
    gateway_record_write(x, result->status);
    free(x);
}

static int record_check(struct gateway *g, struct gateway_record *x)
{
    const weft_request *r = &x->r;
    if (r->version != WEFT_REQUEST_VERSION || r->id == 0 || r->timeout_ns < 0 || r->data_bytes > WEFT_REQUEST_DATA_MAX)
        return base_fail(-EINVAL,
                         "the record of a request is invalid: its version (%u), id (%llu), time-out (%lld ns) or number of data bytes "
                         "(%llu) is not possible: see weft_request_start(3)",
                         r->version, (unsigned long long)r->id, (long long)r->timeout_ns, (unsigned long long)r->data_bytes);
    for (const struct gateway_service *const *s = g->services; *s; s++)
        if ((*s)->number == r->service)
            x->service = *s;
    if (!x->service)
        return base_fail(-EINVAL, "the record of a request names service %u, which does not exist: see weft_request_start(3)", r->service);
    if (r->data_bytes) {
        bool own = weft_gaddr_node(r->data) == g->w->rank && weft_gaddr_space(r->data) == 0;
        x->data = own ? weft_ptr(g->w, r->data, r->data_bytes) : NULL;
        if (!x->data || weft_gaddr_offset(r->data) < g->w->heap_offset)
            return base_fail(-EFAULT, "the record of a request names %llu bytes of data at %#llx, which are not in this node's pool",
                             (unsigned long long)r->data_bytes, (unsigned long long)r->data);
    }
    return 0;
}

/* Starts the request of a record. Takes ownership of `x`. If this fails, nothing is written to the record. */
static int record_start(struct gateway *g, struct gateway_record *x, weft_op *op)
{
    int rc = record_check(g, x);
    if (rc) {
        if (x->call)
            gateway_record_write(x, rc);
        rc = x->call ? 0 : rc;
        free(x);
        return rc;
    }
    x->op = op;
    if (op)
        fab_pending(op, g->w->rank);
    rc = x->service->submit ? x->service->submit(g, &x->r, x->data, &x->arg) : 1;
    if (rc == GATEWAY_LATER) /* the record may be answered and freed already */
        return 0;
    if (rc != 1) { /* the request needs no server, and is answered now */
        gateway_record_write(x, rc);
        if (op)
            fab_complete(op, rc);
        free(x);
        return 0;
    }
    /* The data is not copied: the owner of the data must not change it before the answer. */
    rc = gateway_ask(
        g,
        &(struct gateway_question){
            .record = &x->r, .data = x->data, .tell = record_told, .late = x->service->late, .arg = x, .op = op, .post = x->call != NULL},
        NULL);
    if (!rc)
        return 0;
    const struct gateway_result failed = {.status = rc, .answered = true};
    base_spin_lock(&g->lock);
    if (x->service->told)
        x->service->told(g, &x->r, x->arg, &failed, NULL);
    if (x->call)
        gateway_record_write(x, rc);
    base_spin_unlock(&g->lock);
    rc = x->call ? 0 : rc;
    free(x);
    return rc;
}

int weft_request_start(weft_node *w, weft_gaddr at, weft_op *op)
{
    struct gateway *g = gateway_in(w);
    weft_request *there = weft_gaddr_node(at) == w->rank && weft_gaddr_space(at) == 0 ? weft_ptr(w, at, sizeof *there) : NULL;
    if (!there || at % 8 || weft_gaddr_offset(at) < w->heap_offset)
        return base_fail(-EFAULT, "the record of a request is at address %#llx: it must be in this node's pool, at a multiple of 8 bytes",
                         (unsigned long long)at);
    struct gateway_record *x = calloc(1, sizeof *x);
    if (!x)
        return base_fail(-ENOMEM, "no memory for the record of a request" BASE_MEMORY_HINT);
    x->there = there;
    memcpy(&x->r, there, sizeof x->r);
    return record_start(g, x, op);
}

void gateway_record_of_kernel(weft_node *w, void *record, weft_gpu_call *call, void *arg)
{
    struct gateway *g = arg;
    (void)w;
    struct gateway_record *x = calloc(1, sizeof *x);
    if (!x) {
        (void)weft_gpu_answer(call, -ENOMEM, 0);
        return;
    }
    x->there = record;
    x->call = call;
    memcpy(&x->r, record, sizeof x->r);
    (void)record_start(g, x, NULL);
}

int weft_request_cancel(weft_node *w, weft_op *op)
{
    struct gateway *g = gateway_in(w);
    if (gateway_ask_cancel(g, op) || gateway_handle_cancel(g, op)) {
        fab_wake_here(w);
        return 0;
    }
    return base_fail(-ENOENT, "weft_request_cancel(): no request or wait was started with this op, or it has ended already, or it is a "
                              "record that sends, receives, reads or writes bytes");
}
