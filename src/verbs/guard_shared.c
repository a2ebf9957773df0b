/* SPDX-License-Identifier: MIT
 *
 * The objects that all programs of a guard share. Each device is opened once, with one protection domain, so a driver can leak at most one
 * domain. Regions and queue pairs belong to one program each; their number is limited, and programs get them in the order of their calls.
 */
#include <stdio.h>
#include <string.h>

#include "verbs/guard_serve.h"

static int shared_failed(void)
{
    return errno ? errno : EIO;
}

void guard_shared_init(struct guard_shared *s)
{
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->list_lock, NULL);
    for (uint32_t i = 0; i < GUARD_CONTEXTS; i++)
        pthread_mutex_init(&s->device[i].lock, NULL);
}

int guard_shared_list(struct guard_shared *s)
{
    pthread_mutex_lock(&s->list_lock);
    errno = 0;
    if (!s->list)
        s->list = s->lib->get_device_list(&s->listed);
    int rc = s->list ? 0 : shared_failed();
    pthread_mutex_unlock(&s->list_lock);
    return rc;
}

/* Returns the device with this number in the list; NULL: there is no such device. */
static struct ibv_device *shared_listed(struct guard_shared *s, uint32_t index)
{
    pthread_mutex_lock(&s->list_lock);
    struct ibv_device *device = s->list && index < (uint32_t)s->listed && index < GUARD_CONTEXTS ? s->list[index] : NULL;
    pthread_mutex_unlock(&s->list_lock);
    return device;
}

int guard_shared_open(struct guard_shared *s, uint32_t index, struct ibv_context **out)
{
    struct ibv_device *listed = shared_listed(s, index);
    if (!listed)
        return ENODEV;
    struct shared_device *d = &s->device[index];
    pthread_mutex_lock(&d->lock);
    errno = 0;
    if (!d->opened)
        d->real = s->lib->open_device(listed);
    int rc = d->real ? 0 : shared_failed();
    d->opened += d->real != NULL;
    *out = d->real;
    pthread_mutex_unlock(&d->lock);
    return rc;
}

int guard_shared_close(struct guard_shared *s, uint32_t index)
{
    struct shared_device *d = &s->device[index];
    int rc = 0;
    pthread_mutex_lock(&d->lock);
    errno = 0;
    if (d->opened == 1 && (rc = s->lib->close_device(d->real)))
        rc = rc > 0 ? rc : shared_failed();
    if (!rc && --d->opened == 0)
        d->real = NULL;
    pthread_mutex_unlock(&d->lock);
    return rc;
}

int guard_shared_domain(struct guard_shared *s, uint32_t index, struct ibv_pd **out)
{
    struct shared_device *d = &s->device[index];
    pthread_mutex_lock(&d->lock);
    errno = 0;
    if (!d->domains)
        d->domain = s->lib->alloc_pd(d->real);
    int rc = d->domain ? 0 : shared_failed();
    d->domains += d->domain != NULL;
    *out = d->domain;
    pthread_mutex_unlock(&d->lock);
    return rc;
}

int guard_shared_free_domain(struct guard_shared *s, uint32_t index)
{
    struct shared_device *d = &s->device[index];
    int rc = 0;
    pthread_mutex_lock(&d->lock);
    errno = 0;
    if (d->domains == 1 && (rc = s->lib->dealloc_pd(d->domain)))
        rc = rc > 0 ? rc : shared_failed();
    if (!rc && --d->domains == 0)
        d->domain = NULL;
    pthread_mutex_unlock(&d->lock);
    return rc;
}

void guard_shared_holders(struct guard_shared *s, uint32_t index, char *out, size_t len)
{
    size_t n = 0;
    out[0] = '\0';
    pthread_mutex_lock(&s->lock);
    for (const struct guard *g = s->programs; g; g = g->next) {
        uint32_t pairs = atomic_load_explicit(&g->pairs[index], memory_order_relaxed);
        uint32_t regions = atomic_load_explicit(&g->regions[index], memory_order_relaxed);
        if ((!pairs && !regions) || n >= len)
            continue;
        int m = snprintf(out + n, len - n, "%sprocess %d%s %u queue pairs and %u regions", n ? ", " : "", g->pid, g->name, pairs, regions);
        n += m > 0 ? (size_t)m : 0;
    }
    pthread_mutex_unlock(&s->lock);
}

void guard_shared_enter(struct guard_shared *s, struct guard *g)
{
    pthread_mutex_lock(&s->lock);
    g->next = s->programs;
    s->programs = g;
    s->count++;
    pthread_mutex_unlock(&s->lock);
}

void guard_shared_leave(struct guard_shared *s, const struct guard *g)
{
    pthread_mutex_lock(&s->lock);
    for (struct guard **at = &s->programs; *at; at = &(*at)->next)
        if (*at == g) {
            *at = g->next;
            s->count--;
            break;
        }
    pthread_mutex_unlock(&s->lock);
}
