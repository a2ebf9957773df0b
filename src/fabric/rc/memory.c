/* SPDX-License-Identifier: MIT
 *
 * Memory outside the pool that the device accesses directly. The memory's dmabuf is registered with the first device only, so puts from
 * this memory and gets into it are not striped. The processor may be unable to access the memory, so they are neither staged nor sent
 * inline.
 */
#include "fabric/rc/rc.h"

#include <stdlib.h>

static const struct verbs_regions *regions_of(const struct fab_memory *m)
{
    return &((const struct rc_memory *)m)->regions;
}

/* How many regions are left for memory outside the pool. Regions for received frames count as used even before they are made. The caller
 * holds memory_lock. */
static uint32_t regions_left(const struct rc *rc)
{
    uint32_t used = rc->pool.count + rc->private.count + rc->receives.room, all = rc->device->traits.regions;
    for (const struct rc_memory *m = rc->memories; m; m = m->next)
        used += m->regions.count;
    return used < all ? all - used : 0;
}

int rc_memory_add(struct weft_node *w, int fd, void *base, uint64_t bytes, struct fab_memory **out)
{
    struct rc *rc = w->rc;
    if (!rc->pool.count)
        return base_fail(-ENODEV, "this node uses no RDMA device yet");
    struct rc_memory *m = calloc(1, sizeof *m);
    if (!m)
        return base_fail(-ENOMEM, "no memory to register a dmabuf" BASE_MEMORY_HINT);
    m->memory.transport = rc->transport;
    pthread_mutex_lock(&rc->memory_lock);
    uint32_t left = regions_left(rc);
    int err = left ? verbs_register_dmabuf(&m->regions, rc->device, fd, 0, base, bytes, left)
                   : base_fail(-ENOSPC, "%s: all of its %u memory regions are in use; open fewer arenas, or a smaller pool (WEFT_POOL)",
                               rc->device->name, rc->device->traits.regions);
    if (!err) {
        m->next = rc->memories;
        rc->memories = m;
        *out = &m->memory;
    }
    pthread_mutex_unlock(&rc->memory_lock);
    if (err)
        free(m);
    return err;
}

static void unlist(struct rc *rc, const struct rc_memory *m)
{
    struct rc_memory **at = &rc->memories;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
}

void rc_memory_remove(struct weft_node *w, struct fab_memory *memory)
{
    struct rc *rc = w->rc;
    struct rc_memory *m = (struct rc_memory *)memory;
    pthread_mutex_lock(&rc->memory_lock);
    unlist(rc, m);
    pthread_mutex_unlock(&rc->memory_lock);
    verbs_unregister(&m->regions);
    free(m);
}

void rc_memory_close(struct rc *rc)
{
    for (struct rc_memory *m; (m = rc->memories);) {
        rc->memories = m->next;
        verbs_unregister(&m->regions);
        free(m);
    }
}

int rc_put_from(struct weft_node *w, struct fab_link *l, struct fab_memory *m, uint64_t to, const void *src, size_t len, weft_op *op)
{
    return rc_transfer_memory(w, l, true, regions_of(m), to, (uint8_t *)(uintptr_t)src, len, op);
}

int rc_get_into(struct weft_node *w, struct fab_link *l, struct fab_memory *m, void *dst, uint64_t from, size_t len, weft_op *op)
{
    return rc_transfer_memory(w, l, false, regions_of(m), from, dst, len, op);
}
