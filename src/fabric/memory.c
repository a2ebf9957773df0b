/* SPDX-License-Identifier: MIT
 *
 * Memory of a GPU that a transport's device accesses directly: the device has registered the memory's dmabuf. No other node gets a key for
 * this memory, so only this node's own puts and gets use it.
 */
#include "fabric/fabric.h"

int fab_memory_add(struct weft_node *w, int fd, void *base, uint64_t bytes, struct fab_memory **out)
{
    int rc = -ENODEV;
    *out = NULL;
    for (const struct fab_transport **t = w->transports; *t && rc == -ENODEV; t++)
        if ((*t)->memory_add)
            rc = (*t)->memory_add(w, fd, base, bytes, out);
    return rc == -ENODEV ? base_fail(rc, "this node uses no RDMA device that reads and writes other nodes' memory (transport rc)") : rc;
}

void fab_memory_remove(struct weft_node *w, struct fab_memory *m)
{
    if (m)
        m->transport->memory_remove(w, m);
}

bool fab_memory_leads(const struct weft_node *w, const struct fab_memory *m, uint32_t node)
{
    return m && w->links[node].transport == m->transport;
}

int fab_memory_put(struct weft_node *w, struct fab_memory *m, weft_gaddr dst, const void *src, size_t len, weft_op *op)
{
    struct fab_link *l;
    int rc = fab_resolve(w, dst, len, &l);
    return rc ? rc : m->transport->put_from(w, l, m, weft_gaddr_offset(dst), src, len, op);
}

int fab_memory_get(struct weft_node *w, struct fab_memory *m, void *dst, weft_gaddr src, size_t len, weft_op *op)
{
    struct fab_link *l;
    int rc = fab_resolve(w, src, len, &l);
    return rc ? rc : m->transport->get_into(w, l, m, dst, weft_gaddr_offset(src), len, op);
}
