/* SPDX-License-Identifier: MIT
 *
 * Registers a range of memory as a few large regions, so that any number of buffers in the range need no region of their own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "verbs/verbs.h"

#define PAGE 4096u /* the smallest page of the systems that weft runs on */

/* log2 of the segment size. The size is a power of two, so that a request finds its segment by a shift. */
static uint32_t segment_shift(const struct verbs_device *d)
{
    uint64_t most = d->traits.region_bytes < VERBS_SEGMENT ? d->traits.region_bytes : VERBS_SEGMENT;
    return 63 - (uint32_t)__builtin_clzll(most > BASE_PAGE ? most : BASE_PAGE);
}

static int explain(const struct verbs_device *d, bool dmabuf, uint64_t bytes, uint32_t index, uint32_t count)
{
    char size[32], limit[32];
    int raw, code = verbs_code(0, d->traits.link == VERBS_THUNDERBOLT, &raw);
    struct rlimit lock = {0};
    const char *meaning = "";
    char text[700], who[480];
    bool limited = getrlimit(RLIMIT_MEMLOCK, &lock) == 0 && lock.rlim_cur != RLIM_INFINITY;
    base_format_bytes(bytes, size, sizeof size);
    if (dmabuf) {
        meaning = code == -EOPNOTSUPP                 ? ". The device's driver does not register dmabufs, or not those of this exporter"
                  : code == -EBADF || code == -EINVAL ? ". The descriptor is no dmabuf, or its buffer does not have these bytes"
                                                      : "";
    } else if (d->traits.link == VERBS_THUNDERBOLT) {
        snprintf(text, sizeof text, ". The device has %u regions for all processes, and registers memory from mmap(), not from malloc()%s",
                 d->traits.regions, code == -ENOMEM || code == -ENOSPC ? verbs_holders(d->lib, d->context, who, sizeof who) : "");
        meaning = text;
    } else if (code == -ENOMEM && limited) {
        snprintf(text, sizeof text,
                 ". This process may lock %s of memory (ulimit -l); raise this limit. If the limit is high enough, the device has no "
                 "region left",
                 base_format_bytes((uint64_t)lock.rlim_cur, limit, sizeof limit));
        meaning = text;
    } else if (code == -EFAULT) {
        meaning = ". A part of the range is not mapped, or not writable";
    } else if (code == -ENOMEM) {
        meaning = ". The device has no region left, or the host no memory: end other programs";
    }
    return base_fail(code, "device %s refuses memory region %u of %u (%s): errno %d (%s)%s", d->name, index + 1, count, size, raw,
                     base_strerror(code), meaning);
}

/* What is registered: memory of this process, or a dmabuf. */
struct source {
    int fd;          /* the dmabuf; -1: memory of this process */
    uint64_t offset; /* in the dmabuf */
};

static struct ibv_mr *region_ask(const struct verbs_regions *r, const struct source *s, uint64_t at, uint64_t bytes, int access)
{
    const struct verbs_device *d = r->device;
    return s->fd < 0 ? d->lib->reg_mr(d->pd, r->base + at, bytes, access)
                     : d->lib->reg_dmabuf_mr(d->pd, s->offset + at, bytes, (uintptr_t)r->base + at, s->fd, access);
}

/* Registers one segment. The first segment shows which access flags the device accepts. */
static struct ibv_mr *region_one(struct verbs_regions *r, const struct source *s, uint32_t i, uint64_t bytes)
{
    const struct verbs_device *d = r->device;
    uint64_t at = (uint64_t)i * r->segment_bytes;
    errno = 0;
    struct ibv_mr *mr = region_ask(r, s, at, bytes, r->access);
    if (!mr && i == 0 && d->traits.access_else) {
        int first = errno;
        mr = region_ask(r, s, at, bytes, d->traits.access_else);
        if (mr)
            r->access = d->traits.access_else;
        else
            errno = first;
    }
    return mr;
}

static int register_all(struct verbs_regions *out, struct verbs_device *d, const struct source *s, void *base, uint64_t bytes,
                        uint32_t budget)
{
    struct verbs_regions r = {.device = d, .base = base, .bytes = bytes, .segment_shift = segment_shift(d), .access = d->traits.access};
    r.segment_bytes = UINT64_C(1) << r.segment_shift;
    char size[32], piece[32];
    memset(out, 0, sizeof *out);
    if (!d->pd)
        return base_fail(-EINVAL, "cannot register memory with %s: the device was not prepared for use" BASE_BUG_HINT, d->name);
    if (bytes == 0)
        return base_fail(-EINVAL, "%s: cannot register memory of 0 bytes: pass at least 1 byte", d->name);
    if (budget == 0)
        budget = d->traits.regions;
    uint64_t needed = (bytes - 1) / r.segment_bytes + 1;
    if (needed > budget)
        return base_fail(-ENOSPC, "%s: %s need %llu regions of %s, and only %u are available: make %s smaller", d->name,
                         base_format_bytes(bytes, size, sizeof size), (unsigned long long)needed,
                         base_format_bytes(r.segment_bytes, piece, sizeof piece), budget,
                         s->fd < 0 ? "the pool (WEFT_POOL)" : "the arena of the GPU, or the pool (WEFT_POOL),");
    r.mr = calloc(needed, sizeof(struct ibv_mr *));
    if (!r.mr)
        return base_fail(-ENOMEM, "no memory for %llu regions" BASE_MEMORY_HINT, (unsigned long long)needed);
    for (; r.count < needed; r.count++) {
        uint64_t left = bytes - r.count * r.segment_bytes;
        uint64_t length = left < r.segment_bytes ? left : r.segment_bytes;
        r.mr[r.count] = region_one(&r, s, r.count, length);
        if (!r.mr[r.count]) {
            int rc = explain(d, s->fd >= 0, length, r.count, (uint32_t)needed);
            verbs_unregister(&r);
            return rc;
        }
    }
    *out = r;
    return 0;
}

int verbs_register(struct verbs_regions *out, struct verbs_device *d, void *base, uint64_t bytes, uint32_t budget)
{
    return register_all(out, d, &(struct source){.fd = -1}, base, bytes, budget);
}

int verbs_register_dmabuf(struct verbs_regions *out, struct verbs_device *d, int fd, uint64_t offset, void *base, uint64_t bytes,
                          uint32_t budget)
{
    memset(out, 0, sizeof *out);
    if (!d->lib->reg_dmabuf_mr)
        return base_fail(-EOPNOTSUPP, "%s has no ibv_reg_dmabuf_mr, so it cannot register a dmabuf: install rdma-core 34 or newer",
                         d->lib->path);
    if (!d->traits.dmabuf)
        return base_fail(-EOPNOTSUPP,
                         "device %s cannot register dmabufs, which are file descriptors of GPU memory: use another device (WEFT_DEVICE)",
                         d->name);
    if (fd < 0)
        return base_fail(-EBADF, "%s: cannot register a dmabuf: its file descriptor is not valid", d->name);
    if (offset % PAGE != (uintptr_t)base % PAGE)
        return base_fail(
            -EINVAL, "%s: cannot register a dmabuf: its offset %llu and the address %p must have the same remainder modulo the page size",
            d->name, (unsigned long long)offset, base);
    return register_all(out, d, &(struct source){.fd = fd, .offset = offset}, base, bytes, budget);
}

void verbs_unregister(struct verbs_regions *r)
{
    int raw;
    while (r->count) {
        int rc = r->device->lib->dereg_mr(r->mr[--r->count]);
        if (rc) {
            int code = verbs_code(rc, r->device->traits.link == VERBS_THUNDERBOLT, &raw);
            base_log(BASE_LOG_WARN, "%s: a memory region cannot be freed: errno %d (%s); it stays in use until this program ends",
                     r->device->name, raw, base_strerror(code));
        }
    }
    free(r->mr);
    memset(r, 0, sizeof *r);
}
