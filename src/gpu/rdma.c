/* SPDX-License-Identifier: MIT
 *
 * Registers arenas with the RDMA device, by a dmabuf. The device then moves data directly between an arena and another node's pool. If an
 * arena cannot be registered, its transfers are staged. Its node logs the reason, and sends the errno to the other nodes.
 */
#include "gpu/arena.h"

#include <unistd.h>

static int rdma_register(struct arenas *c, struct gpu_arena *a)
{
    const struct gpu_backend *b = a->place.backend;
    if (!c->w->options.gpu_rdma)
        return base_fail(-ECANCELED, "WEFT_GPU_RDMA is set to no");
    if (!b->memory_dmabuf)
        return base_fail(-EOPNOTSUPP, "RDMA devices cannot access the memory of GPUs of kind `%s`", b->name);
    int fd = b->memory_dmabuf(a->place.device, &a->memory);
    if (fd < 0)
        return fd;
    int rc = fab_memory_add(c->w, fd, a->memory.base, a->memory.bytes, &a->rdma);
    close(fd);
    return rc;
}

void rdma_open(struct arenas *c, struct gpu_arena *a)
{
    int rc = rdma_register(c, a);
    atomic_store_explicit(&a->rdma_why, rc, memory_order_relaxed);
    if (rc) {
        base_log(BASE_LOG_INFO,
                 "an arena of %llu bytes is not registered with an RDMA device: %s; its data goes to and from other hosts through the pool",
                 (unsigned long long)a->memory.bytes, base_error());
        base_error_clear(); /* clear the error, because the arena can be used without the RDMA device */
    } else {
        base_log(BASE_LOG_INFO, "an arena of %llu bytes is registered with the RDMA device", (unsigned long long)a->memory.bytes);
    }
}

void rdma_close(struct arenas *c, struct gpu_arena *a)
{
    fab_memory_remove(c->w, a->rdma);
    a->rdma = NULL;
}

bool rdma_leads(const struct arenas *c, const struct gpu_arena *a, uint32_t node)
{
    return a && !atomic_load_explicit(&a->rdma_why, memory_order_relaxed) && fab_memory_leads(c->w, a->rdma, node);
}

/* Whether kernels of other GPUs, in this process or in another one, may read the arena. */
static bool others_reach(const struct gpu_arena *a)
{
    uint64_t gpus = atomic_load_explicit(&a->gpus, memory_order_relaxed);
    return (gpus & (gpus - 1)) || atomic_load_explicit(&a->given, memory_order_relaxed);
}

int rdma_step(struct arenas *c, struct gpu_arena *a, bool in, void *at, weft_gaddr far, uint64_t bytes, weft_op *op, bool *started)
{
    int rc = 0;
    if (!*started) {
        rc = in ? fab_memory_get(c->w, a->rdma, at, far, bytes, op) : fab_memory_put(c->w, a->rdma, far, at, bytes, op);
        *started = rc == 0;
    }
    if (*started)
        rc = weft_test(c->w, op);
    if (rc == -EAGAIN || rc == -EINPROGRESS)
        return rc;
    *started = false;
    if (rc == -ECONNABORTED && !atomic_exchange_explicit(&a->rdma_why, -EACCES, memory_order_relaxed)) {
        base_log(BASE_LOG_WARN,
                 "the RDMA device cannot access the arena in space %u, although the arena was registered with it: from now on the data of "
                 "this arena goes through the pool, which is slower; to avoid this warning, set WEFT_GPU_RDMA=no",
                 a->space);
        atomic_store_explicit(&c->refusals, true, memory_order_relaxed);
    }
    if (!rc)
        atomic_fetch_add_explicit(&c->direct, 1, memory_order_relaxed);
    if (!rc && in && a->place.backend->memory_settle)
        rc = a->place.backend->memory_settle(a->place.device, others_reach(a));
    return rc;
}

const char *rdma_reason(int why)
{
    switch (why) {
    case -ECANCELED: return "WEFT_GPU_RDMA is set to no on its node";
    case -ENODEV: return "its node uses no RDMA device";
    case -ENOSPC: return "its RDMA device has too few regions for it";
    case -EACCES: return "its RDMA device refuses to access it";
    case -EOPNOTSUPP: return "its GPU gives no dmabuf, or its device takes none";
    default: return base_strerror(why);
    }
}
