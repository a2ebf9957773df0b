/* SPDX-License-Identifier: MIT
 *
 * Protection domains.
 */
#include "lib.h"

#include <errno.h>
#include <stdlib.h>

/* Checks whether a protection domain may be allocated: returns 0 or an errno. */
static int pd_allowed(uint32_t device)
{
    const struct sv_profile *p = sv_lib.profile;
    const struct sf_device *d = &sv_lib.fabric->devices[device];
    const char *name = sv_lib.fabric->model.topology.devices[device].name;
    int err = sv_refused(SF_VERB_ALLOC_PD, device);

    if (err)
        return sv_refuse(err, "ibv_alloc_pd: %s: refused by a rule, which `softverbs fault list` shows", name);
    if (atomic_load_explicit(&d->removed, memory_order_relaxed))
        return sv_refuse(EIO, "ibv_alloc_pd: %s was removed; `softverbs fault restore` brings it back", name);
    if (p->down_port_refuses_pd && !atomic_load_explicit(&d->port_up, memory_order_relaxed))
        return sv_refuse(
            p->down_pd_errno,
            "ibv_alloc_pd: the port of %s is down: `softverbs fault plug` joins its cable (profile %s, down_port_refuses_pd; " SV_DOCUMENTED
            ")",
            name, p->name);
    return 0;
}

struct ibv_pd *sv_alloc_pd(struct ibv_context *context)
{
    struct sv_context *ctx = sv_context_of(context);
    const struct sv_profile *p;
    struct sv_pd *pd;
    int entry;

    if (!sv_lib.joined || ctx->life != sv_lib.life) { /* a forked child cannot use its parent's device */
        errno = ENODEV;
        return NULL;
    }
    p = sv_lib.profile;
    if (pd_allowed(ctx->device))
        return NULL;
    pd = calloc(1, sizeof *pd);
    if (!pd) {
        errno = ENOMEM;
        return NULL;
    }
    entry = sf_take_pd(&sv_lib.view, ctx->device, p->real_pd);
    if (entry < 0) {
        if (entry == -EBUSY)
            sv_refuse(p->pd_errno,
                      "ibv_alloc_pd: the device already has %u protection domains, its limit%s (profile %s, real_pd; " SV_DOCUMENTED ")",
                      p->real_pd, p->pd_leaks ? "; those of processes that did not free them stay until `softverbs reboot`" : "", p->name);
        else
            errno = -entry;
        free(pd);
        return NULL;
    }
    sv_lib.fabric->pds[entry].host = sv_lib.host;
    pd->base.context = context;
    pd->base.handle = (uint32_t)entry;
    pd->entry = (uint32_t)entry;
    atomic_fetch_add_explicit(&ctx->objects, 1, memory_order_relaxed);
    return &pd->base;
}

int sv_dealloc_pd(struct ibv_pd *base)
{
    struct sv_pd *pd = sv_container(base, struct sv_pd, base);

    if (atomic_load_explicit(&pd->users, memory_order_acquire))
        return EBUSY;
    if (sv_mine(base->context, &sv_lib.fabric->pds[pd->entry].owner))
        sf_give_pd(&sv_lib.view, pd->entry);
    atomic_fetch_sub_explicit(&sv_context_of(base->context)->objects, 1, memory_order_relaxed);
    free(pd);
    return 0;
}

SV_PUBLIC struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    return sv_alloc_pd(context);
}

SV_PUBLIC int ibv_dealloc_pd(struct ibv_pd *pd)
{
    return sv_dealloc_pd(pd);
}
