/* SPDX-License-Identifier: MIT
 *
 * Writes asynchronous events of queues, queue pairs and ports into the pipe of an opened device. async_event.c reads them.
 */
#include "lib.h"

void sv_async(uint32_t context, enum ibv_event_type type, uint32_t entry, uint32_t generation)
{
    struct sf_context *c;
    uint32_t owner;

    if (!sv_lib.joined || context >= SF_CONTEXTS)
        return;
    c = &sv_lib.fabric->contexts[context];
    owner = atomic_load_explicit(&c->owner, memory_order_acquire);
    if (owner)
        sv_signal(owner, c->async_fd, &(struct sv_event){.kind = 3, .entry = entry, .generation = generation, .type = (uint32_t)type});
}

void sv_async_qp(uint32_t q, uint32_t types)
{
    const struct sf_qp *qp = &sv_lib.fabric->qps[q % SF_QPS];
    struct sv_event events[32];
    struct sf_context *c;
    uint32_t owner;
    size_t count = 0;

    if (!sv_joined() || qp->context < 0 || qp->context >= SF_CONTEXTS)
        return;
    for (uint32_t type = 0; type < 32; type++) {
        if (types >> type & 1)
            events[count++] =
                (struct sv_event){.kind = 3, .entry = q, .generation = qp->generation, .type = type, .connection = qp->connection};
    }
    c = &sv_lib.fabric->contexts[qp->context];
    owner = atomic_load_explicit(&c->owner, memory_order_acquire);
    if (owner && count)
        sv_signal_all(owner, c->async_fd, events, count);
}

void sv_async_forget(struct ibv_context *context, uint32_t types, uint32_t entry, uint32_t generation)
{
    struct sv_context *ctx = sv_context_of(context);

    if (sv_lib.joined)
        sv_pipe_forget(ctx->async_read, ctx->async_write, 3, types, entry, generation);
}

void sv_async_own(uint32_t q, enum ibv_event_type type)
{
    const struct sf_qp *shared = &sv_lib.fabric->qps[q % SF_QPS];
    struct ibv_context *context = NULL;
    const struct sv_qp *qp;

    pthread_mutex_lock(&sv_lib.mutex);
    qp = sv_lib.qps[q % SF_QPS];
    if (qp && !(qp->told_in == shared->connection && (qp->told >> type & 1)))
        context = qp->base.context;
    pthread_mutex_unlock(&sv_lib.mutex);
    if (!context)
        return;
    sv_async_forget(context, UINT32_C(1) << type, q, shared->generation);
    sv_async_qp(q, UINT32_C(1) << type);
}
