/* SPDX-License-Identifier: MIT
 *
 * The devices of the tb transport. Everything that can be checked is checked before a protection domain is allocated. A node keeps what it
 * has allocated on a device until its end. Then it frees everything in the order that the device needs: queue pairs (cable.c), regions,
 * completion queues, channels, domain, context.
 */
#include "fabric/tb/tb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Allocates the frames of links, the receives of cables, and the scrap memory. */
static int device_make_memory(struct tb *tb)
{
    uint32_t peers = tb->w->founders - 1, scrap = 0;
    for (uint32_t i = 0; i < tb->lane_count; i++)
        scrap = tb->lanes[i].message > scrap ? tb->lanes[i].message : scrap;
    uint64_t links = (uint64_t)peers * TB_SLOTS * TB_FRAME_BYTES, cables = (uint64_t)tb->cable_max * TB_RECEIVES * TB_FRAME_BYTES;
    tb->memory_bytes = base_round_up(links + cables + scrap, BASE_PAGE);
    int fd = tb->guard ? base_memory_fd("weft-frames", tb->memory_bytes, false) : -1, rc = 0;
    if (tb->guard && fd < 0)
        return fd;
    void *p = mmap(NULL, tb->memory_bytes, PROT_READ | PROT_WRITE, tb->guard ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    if (p == MAP_FAILED)
        rc = base_fail(-errno, "tb: cannot map %llu bytes for frames: %s" BASE_MEMORY_HINT, (unsigned long long)tb->memory_bytes,
                       base_strerror(errno));
    else
        tb->memory = tb->link_frames = p;
    if (!rc && tb->guard)
        rc = verbs_guard_share(tb->guard, p, tb->memory_bytes, fd);
    if (!rc && tb->guard)
        rc = verbs_guard_share(tb->guard, tb->w->pool_base, tb->w->pool_bytes, mem_fd(tb->w->pool));
    if (fd >= 0)
        close(fd);
    if (rc)
        return rc;
    tb->cable_frames = tb->link_frames + links;
    tb->scrap = tb->cable_frames + cables;
    return 0;
}

static int device_take(struct tb *tb, struct tb_device *dev)
{
    struct verbs_device *d = dev->d;
    bool alone = d->traits.link == VERBS_THUNDERBOLT; /* the port has only one cable, so only one peer uses the device */
    uint32_t users = alone ? 1 : tb->w->founders - 1, a_cable = (TB_SENDS > TB_RECEIVES ? TB_SENDS : TB_RECEIVES) + 8;
    for (uint32_t i = 0; i < tb->lane_count; i++)
        a_cable += tb->lanes[i].depth;
    uint64_t entries = (uint64_t)users * a_cable;
    if (entries > d->traits.cqe)
        return base_fail(
            -ENOSPC,
            "device %s: its completion queues have %u entries, and %u peers need %llu; set fewer lanes or messages in WEFT_TB_LANES",
            d->name, d->traits.cqe, users, (unsigned long long)entries);
    int err = verbs_device_use(d);
    if (err)
        return err;
    for (unsigned i = 0; i < TB_DIRECTIONS; i++) {
        struct tb_completions *c = &dev->of[i];
        err = verbs_cq_create(&c->cq, &c->channel, d, (uint32_t)entries);
        if (err)
            return err;
        c->fd = c->channel->fd;
    }
    err = verbs_register(&dev->private, d, tb->memory, tb->memory_bytes, 0);
    if (!err)
        err = verbs_register(&dev->pool, d, tb->w->pool_base, tb->w->pool_bytes, d->traits.regions - dev->private.count);
    if (!err && dev->pool.segment_bytes < tb->segment)
        tb->segment = dev->pool.segment_bytes;
    if (!err)
        base_log(BASE_LOG_INFO, "the transport tb uses device %s, port %u, GID %s, %u regions", d->name, d->port, d->chosen.why,
                 dev->pool.count + dev->private.count);
    return err;
}

static void device_give(struct tb_device *dev)
{
    verbs_unregister(&dev->pool);
    verbs_unregister(&dev->private);
    for (unsigned i = 0; i < TB_DIRECTIONS; i++)
        verbs_cq_destroy(&dev->of[i].cq, &dev->of[i].channel, dev->d);
}

static bool device_wanted(const struct tb *tb, const struct verbs_device *d)
{
    return !tb->w->options.device[0] || strcmp(tb->w->options.device, d->name) == 0;
}

int tb_devices_find(struct tb *tb, bool *thunderbolt)
{
    const struct fab_options *o = &tb->w->options;
    /* A shared guard is for Thunderbolt devices only: other devices leak nothing, and have enough queue pairs for all programs. */
    bool guarded = o->guard_socket[0] ? verbs_thunderbolt_here() : o->guard[0];
    int err = guarded ? verbs_guard_start(&tb->guard, o->guard, o->guard_socket) : 0;
    if (!err)
        err = tb->guard ? verbs_guard_devices(tb->guard, &tb->all, &tb->all_count, tb->w->options.gid_index)
                        : verbs_devices(&tb->all, &tb->all_count, tb->w->options.gid_index);
    if (err)
        return err;
    char why[1100] = "";
    uint32_t n = 0;
    *thunderbolt = false;
    for (uint32_t i = 0; i < tb->all_count; i++) {
        const struct verbs_device *d = &tb->all[i];
        if (device_wanted(tb, d) && d->usable == 0 && d->traits.uc) {
            n++;
            *thunderbolt = *thunderbolt || d->traits.link == VERBS_THUNDERBOLT;
        } else if (device_wanted(tb, d) && !why[0]) {
            snprintf(why, sizeof why, "; device %s: %s", d->name, d->usable ? d->why_not : "has no UC queue pairs");
        }
    }
    if (n == 0)
        return base_fail(-ENODEV, "no device of this host can be used by the transport tb%s; `weft doctor` examines the devices", why);
    tb->cable_max = tb->w->founders - 1 + (n < TB_DEVICES ? n : TB_DEVICES);
    tb->cables = calloc(tb->cable_max, sizeof(struct tb_cable *));
    if (!tb->cables)
        return base_fail(-ENOMEM, "tb: no memory for the table of %u cables" BASE_MEMORY_HINT, tb->cable_max);
    tb->segment = VERBS_SEGMENT;
    return device_make_memory(tb);
}

int tb_devices_take(struct tb *tb, bool thunderbolt)
{
    int err = 0;
    for (uint32_t i = 0; i < tb->all_count && !err && tb->device_count < TB_DEVICES; i++) {
        /* If a signal ends the process, another thread frees the devices (ending.c), and this thread blocks here until the process ends. */
        base_spin_lock(&tb->receiving);
        struct verbs_device *d = &tb->all[i];
        /* If the node has Thunderbolt ports, tb uses no other ports. */
        if (device_wanted(tb, d) && !d->usable && d->traits.uc &&
            (d->traits.link == VERBS_THUNDERBOLT || (!thunderbolt && !tb->device_count))) {
            struct tb_device *dev = &tb->devices[tb->device_count++];
            dev->d = d;
            err = device_take(tb, dev);
        }
        base_spin_unlock(&tb->receiving);
    }
    return err;
}

/* relaxed: these words order no other memory, and an unnecessary query does no harm. A thread that posts and the thread that takes the
 * cable down are kept apart by the link's lock. */
bool tb_device_up(struct tb *tb, struct tb_device *d, int64_t at_most)
{
    if (atomic_load_explicit(&d->down, memory_order_relaxed))
        return false;
    if (at_most) {
        int64_t now = base_recent_ns();
        if (now - atomic_load_explicit(&d->looked_at, memory_order_relaxed) < at_most)
            return true;
        atomic_store_explicit(&d->looked_at, now, memory_order_relaxed);
    }
    if (verbs_port_up(d->d))
        return true;
    if (!atomic_exchange_explicit(&d->down, true, memory_order_relaxed))
        fab_kick(tb->w); /* the progress thread then calls tb_watch() */
    return false;
}

static bool device_taken(const struct tb *tb, const struct verbs_device *d)
{
    for (uint32_t i = 0; i < tb->device_count; i++)
        if (tb->devices[i].d == d)
            return true;
    return false;
}

void tb_devices_again(struct tb *tb)
{
    for (uint32_t i = 0; i < tb->all_count && tb->device_count < TB_DEVICES; i++) {
        struct verbs_device *d = &tb->all[i];
        if (!d->context || d->traits.link != VERBS_THUNDERBOLT || !device_wanted(tb, d) || device_taken(tb, d) || !verbs_port_up(d) ||
            verbs_device_again(d, tb->w->options.gid_index) || !d->traits.uc)
            continue;
        struct tb_device *dev = &tb->devices[tb->device_count];
        uint64_t segment = tb->segment;
        *dev = (struct tb_device){.d = d};
        int err = device_take(tb, dev);
        if (!err && tb->segment < segment) {
            err = base_fail(-ENOSPC,
                            "device %s: its memory regions are smaller than those of the devices that are used already; restart this node "
                            "to use this device, too",
                            d->name);
            tb->segment = segment; /* the links have agreed on this segment size */
        }
        if (err) {
            base_log(BASE_LOG_WARN, "a Thunderbolt port has come up, but weft cannot use it: %s", base_error());
            device_give(dev);
            d->traits.uc = false; /* do not try this device again */
            continue;
        }
        tb->device_count++;
    }
}

void tb_devices_close(struct tb *tb)
{
    uint32_t count = tb->device_count;
    tb->device_count = 0; /* threads that wait for completions use no device from now on */
    for (uint32_t i = 0; i < count; i++)
        device_give(&tb->devices[i]);
    if (tb->all)
        verbs_devices_close(tb->all, tb->all_count);
    tb->all = NULL;
    verbs_guard_end(tb->guard);
    tb->guard = NULL;
    if (tb->memory)
        munmap(tb->memory, tb->memory_bytes);
    tb->memory = NULL;
    free(tb->cables);
    tb->cables = NULL;
    tb->cable_count = 0;
}

void tb_regions(struct weft_node *w, uint32_t *used, uint32_t *budget)
{
    struct tb *tb = w->tb;
    *used = *budget = 0;
    if (!tb)
        return;
    base_spin_lock(&tb->receiving); /* keeps the progress thread from adding a device meanwhile, for a port that has come up */
    for (uint32_t i = 0; i < tb->device_count; i++) {
        const struct tb_device *dev = &tb->devices[i];
        if (dev->pool.count + dev->private.count > *used) {
            *used = dev->pool.count + dev->private.count;
            *budget = dev->d->traits.regions;
        }
    }
    base_spin_unlock(&tb->receiving);
}
