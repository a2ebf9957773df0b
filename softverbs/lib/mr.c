/* SPDX-License-Identifier: MIT
 *
 * Makes, changes and destroys memory regions. Executors of requests find a region's entry by its key, and check it at every use. An
 * executor marks its queue busy before it reads `live`. So after `live` is set to 0, and all busy queues were waited for (sv_quiesce), no
 * executor accesses the memory.
 */
#include "lib.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ENOTSUPP of the kernel, which no header defines; NVIDIA's driver returns it when its dmabufs are mapped */
enum { KERNELS_ENOTSUPP = 524 };

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

enum {
    ACCESS_KNOWN = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                   IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB,
    ACCESS_WRITES = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND,
    ACCESS_FULL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
};

static struct sv_mr *mr_of(struct ibv_mr *mr)
{
    return sv_container(mr, struct sv_mr, base);
}

static int check_access(unsigned int access)
{
    const struct sv_profile *p = sv_lib.profile;

    access &= ~(unsigned int)IBV_ACCESS_OPTIONAL_RANGE;
    if (access & ~(unsigned int)ACCESS_KNOWN)
        return sv_refuse(EINVAL, "ibv_reg_mr: access %#x has bits that softverbs does not know: leave them out", access);
    if (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) && !(access & IBV_ACCESS_LOCAL_WRITE))
        return sv_refuse(EINVAL, "ibv_reg_mr: access %#x: remote write and remote atomic need local write", access);
    if (access & IBV_ACCESS_ON_DEMAND)
        return sv_refuse(EOPNOTSUPP, "ibv_reg_mr: on-demand paging is not supported: leave IBV_ACCESS_ON_DEMAND out");
    if (p->full_access && (access & ACCESS_FULL) != ACCESS_FULL)
        return sv_refuse(p->access_errno,
                         "ibv_reg_mr: access %#x: this device needs all of local write, remote write and remote read (profile %s, "
                         "full_access; " SV_DOCUMENTED ")",
                         access, p->name);
    return 0;
}

/* Checks the size of the range, whether it is mapped, and whether this kind of memory can be registered. */
static int check_memory(const void *address, size_t length, unsigned int access)
{
    const struct sv_profile *p = sv_lib.profile;
    uintptr_t start = (uintptr_t)address, end = start + length;
    int err;

    if (end < start || end + SF_PAGE - 1 < end)
        return sv_refuse(EINVAL,
                         "ibv_reg_mr: address %p with length %zu bytes reaches beyond the end of the address space: check the length",
                         address, length);
    /* As in the kernel, pages count: an empty range inside a page has one page. */
    if (length == 0 && start % SF_PAGE == 0)
        return sv_refuse(EINVAL, "ibv_reg_mr: the length is 0; expected at least 1 byte");
    if (length > p->real_mr_size)
        return sv_refuse(p->mr_size_errno,
                         "ibv_reg_mr: %zu bytes: one region may have at most %llu; register the memory as several regions (profile %s, "
                         "real_mr_size; " SV_DOCUMENTED ")",
                         length, (unsigned long long)p->real_mr_size, p->name);
    if (length >> 32 && p->huge_region == SV_HUGE_REFUSE)
        return sv_refuse(p->huge_region_errno,
                         "ibv_reg_mr: %zu bytes: a region of 4 GiB or more corrupts data on the real device "
                         "(profile %s, huge_region; " SV_DOCUMENTED ")",
                         length, p->name);
    err = sv_memory_check(address, length ? length : 1, access & ACCESS_WRITES);
    if (err == EFAULT)
        return sv_refuse(err, "ibv_reg_mr: the %zu bytes at %p are not all mapped%s", length, address,
                         access & ACCESS_WRITES ? " and writable" : "");
    if (err)
        return sv_refuse(err, "ibv_reg_mr: this device does not register memory like that at %p%s (profile %s, memory; " SV_DOCUMENTED ")",
                         address, p->memory.mapping ? "" : ": it is heap memory; use mmap", p->name);
    if (length >> 32 && p->huge_region == SV_HUGE_WRAPS)
        sv_log(SV_INFO,
               "ibv_reg_mr: %zu bytes: accepted, but as on the real device, data for an offset from 4 GiB on goes to the offset modulo "
               "4 GiB (profile %s, huge_region; " SV_DOCUMENTED ")",
               length, p->name);
    return 0;
}

/* Fills in the entry, which is not live yet, so that no executor reads it. */
static void mr_describe(struct sf_mr *e, const void *address, size_t length, uint64_t iova, unsigned int access)
{
    e->access = access & ~(unsigned int)IBV_ACCESS_OPTIONAL_RANGE;
    e->address = (uintptr_t)address;
    e->length = length;
    e->iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova;
}

static void go_live(struct sf_mr *e)
{
    /* release: pairs with the acquire in move.c */
    atomic_store_explicit(&e->live, 1, memory_order_release);
}

static void go_dead(struct sf_mr *e)
{
    /* seq_cst: either an executor sees this 0, or sv_quiesce() sees that the executor is busy */
    atomic_store_explicit(&e->live, 0, memory_order_seq_cst);
    sv_quiesce();
}

/* Makes a region. The caller has made all checks except the device's limit. Returns NULL on an error, with errno set. */
static struct sv_mr *mr_make(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned int access)
{
    const struct sv_profile *p = sv_lib.profile;
    struct sv_context *ctx = sv_context_of(pd->context);
    struct sv_pd *domain = sv_container(pd, struct sv_pd, base);
    struct sv_mr *mr = calloc(1, sizeof *mr);
    struct sf_mr *e;
    int entry;

    if (!mr) {
        errno = ENOMEM;
        return NULL;
    }
    entry = sf_take_mr(&sv_lib.view, ctx->device, p->real_mr);
    if (entry < 0) {
        if (entry == -EBUSY)
            sv_refuse(p->mr_errno,
                      "ibv_reg_mr: the device already has %u regions, its limit: deregister one first (profile %s, real_mr; " SV_DOCUMENTED
                      ")",
                      p->real_mr, p->name);
        else
            errno = -entry;
        free(mr);
        return NULL;
    }
    e = &sv_lib.fabric->mrs[entry];
    e->pd = domain->entry;
    mr_describe(e, address, length, iova, access);
    mr->entry = (uint32_t)entry;
    mr->base = (struct ibv_mr){
        .context = pd->context,
        .pd = pd,
        .addr = address,
        .length = length,
        .handle = (uint32_t)entry,
        .lkey = sf_key(sv_lib.fabric, (uint32_t)entry),
        .rkey = sf_key(sv_lib.fabric, (uint32_t)entry),
    };
    atomic_fetch_add_explicit(&domain->users, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&ctx->objects, 1, memory_order_relaxed);
    go_live(e);
    return mr;
}

/* The first checks of every registration. Returns true if it is refused, with errno set. */
static bool mr_refused(struct ibv_pd *pd)
{
    uint32_t device = sv_context_of(pd->context)->device;
    int err;

    if (!sv_mine(pd->context, &sv_lib.fabric->pds[sv_container(pd, struct sv_pd, base)->entry].owner)) {
        errno = ENODEV; /* a forked child cannot use its parent's domain */
        return true;
    }
    err = sv_refused(SF_VERB_REG_MR, device);
    if (err)
        sv_refuse(err, "ibv_reg_mr: refused by a rule, which `softverbs fault list` shows");
    else if (atomic_load_explicit(&sv_lib.fabric->devices[device].removed, memory_order_relaxed))
        sv_refuse(err = EIO, "ibv_reg_mr: the device was removed; `softverbs fault restore` brings it back");
    return err;
}

/* Both addresses of a region need the same offset in their pages, because hardware translates whole pages. */
static bool same_place(uint64_t a, uint64_t b)
{
    if ((a ^ b) % SF_PAGE == 0)
        return true;
    sv_refuse(EINVAL, "ibv_reg_mr_iova: address and iova must have the same offset within a page");
    return false;
}

SV_PUBLIC struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
    struct sv_mr *mr;

    if (mr_refused(pd) || !same_place((uintptr_t)addr, iova) || check_access(access) || check_memory(addr, length, access))
        return NULL;
    mr = mr_make(pd, addr, length, iova, access);
    return mr ? &mr->base : NULL;
}

SV_PUBLIC struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
    return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned int)access);
}

SV_PUBLIC struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

/* Returns the size of a descriptor's file; for a dma-buf, the offset of its end. */
static int64_t size_of(int fd)
{
    struct stat st;
    off_t end;

    if (fstat(fd, &st))
        return -errno;
    if (S_ISREG(st.st_mode))
        return st.st_size;
    end = lseek(fd, 0, SEEK_END);
    if (end < 0)
        return -EINVAL;
    lseek(fd, 0, SEEK_SET);
    return end;
}

SV_PUBLIC struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
    const int allowed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC |
                        (int)IBV_ACCESS_RELAXED_ORDERING;
    uint64_t lead = offset % SF_PAGE;
    struct sv_mr *mr;
    int64_t size;
    char *map;

    if (mr_refused(pd))
        return NULL;
    if (!sv_lib.profile->dmabuf) {
        sv_refuse(EOPNOTSUPP, "ibv_reg_dmabuf_mr: not supported by this device (profile %s, dmabuf; " SV_DOCUMENTED ")",
                  sv_lib.profile->name);
        return NULL;
    }
    if (!same_place(offset, iova) || check_access((unsigned int)access))
        return NULL;
    if (access & ~allowed) {
        sv_refuse(EINVAL, "ibv_reg_dmabuf_mr: access %#x has flags that are not allowed for a dmabuf: leave %#x out", (unsigned int)access,
                  (unsigned int)(access & ~allowed));
        return NULL;
    }
    if (length == 0) {
        sv_refuse(EINVAL, "ibv_reg_dmabuf_mr: the length is 0; expected at least 1 byte");
        return NULL;
    }
    size = size_of(fd);
    if (size < 0) {
        errno = (int)-size;
        return NULL;
    }
    if (offset > (uint64_t)size || length > (uint64_t)size - offset) {
        sv_refuse(EINVAL, "ibv_reg_dmabuf_mr: %zu bytes at offset %llu reach beyond the end of the buffer, which has %lld bytes", length,
                  (unsigned long long)offset, (long long)size);
        return NULL;
    }
    map = mmap(NULL, length + lead, (unsigned int)access & ACCESS_WRITES ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd,
               (off_t)(offset - lead));
    if (map == MAP_FAILED) {
        sv_refuse(errno == KERNELS_ENOTSUPP ? EOPNOTSUPP : errno, "ibv_reg_dmabuf_mr: descriptor %d cannot be mapped%s", fd,
                  errno == KERNELS_ENOTSUPP ? ": it seems to be GPU memory that the CPU cannot access" : "");
        return NULL;
    }
    mr = check_memory(map + lead, length, (unsigned int)access) ? NULL : mr_make(pd, map + lead, length, iova, (unsigned int)access);
    if (!mr) {
        int err = errno;
        munmap(map, length + lead);
        errno = err;
        return NULL;
    }
    mr->mapped = map;
    mr->mapped_bytes = length + lead;
    mr->base.addr = (void *)(uintptr_t)offset; /* as in verbs: memory of a dmabuf has no address */
    return &mr->base;
}

SV_PUBLIC int ibv_dereg_mr(struct ibv_mr *base)
{
    struct sv_mr *mr = mr_of(base);
    struct sv_context *ctx = sv_context_of(base->context);

    if (sv_mine(base->context, &sv_lib.fabric->mrs[mr->entry].owner)) {
        const struct sv_profile *p = sv_lib.profile;
        int err = sv_refused(SF_VERB_DEREG_MR, ctx->device);

        if (err)
            return sv_refuse(err, "ibv_dereg_mr: refused by a rule, which `softverbs fault list` shows");
        if (p->error_blocks_dereg && atomic_load_explicit(&sv_lib.fabric->devices[ctx->device].dereg_blocked, memory_order_relaxed))
            return sv_refuse(p->dereg_errno,
                             "ibv_dereg_mr: a queue pair went to the error state before it was destroyed, and then this device deregisters "
                             "nothing until `softverbs reboot` (profile %s: error_blocks_dereg)",
                             p->name);
        go_dead(&sv_lib.fabric->mrs[mr->entry]);
        sf_give_mr(&sv_lib.view, mr->entry);
    }
    if (mr->mapped)
        munmap(mr->mapped, mr->mapped_bytes);
    atomic_fetch_sub_explicit(&sv_container(base->pd, struct sv_pd, base)->users, 1, memory_order_release);
    atomic_fetch_sub_explicit(&ctx->objects, 1, memory_order_relaxed);
    free(mr);
    return 0;
}

/* If this fails, the region stays unchanged. */
SV_PUBLIC int ibv_rereg_mr(struct ibv_mr *base, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
    struct sv_mr *mr = mr_of(base);
    bool moves = flags & IBV_REREG_MR_CHANGE_TRANSLATION;
    struct sf_mr *e;
    struct sv_pd *domain;
    unsigned int rights;

    if (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED || (moves && (!addr || !length)) || (access && !(flags & IBV_REREG_MR_CHANGE_ACCESS))) {
        errno = EINVAL;
        return IBV_REREG_MR_ERR_INPUT;
    }
    e = &sv_lib.fabric->mrs[mr->entry];
    if (!sv_mine(base->context, &e->owner)) {
        errno = ENODEV;
        return IBV_REREG_MR_ERR_CMD;
    }
    if (!flags || (flags & IBV_REREG_MR_CHANGE_PD && (!pd || pd->context != base->context))) {
        errno = EINVAL;
        return IBV_REREG_MR_ERR_CMD;
    }
    domain = sv_container(flags & IBV_REREG_MR_CHANGE_PD ? pd : base->pd, struct sv_pd, base);
    rights = flags & IBV_REREG_MR_CHANGE_ACCESS ? (unsigned int)access : e->access;
    if (!moves) {
        addr = (void *)(uintptr_t)e->address;
        length = e->length;
    }
    if ((flags & IBV_REREG_MR_CHANGE_ACCESS && check_access(rights)) ||
        ((moves || (rights & ~e->access & ACCESS_WRITES)) && check_memory(addr, length, rights)))
        return IBV_REREG_MR_ERR_CMD;

    go_dead(e);
    mr_describe(e, addr, length, moves ? (uintptr_t)addr : e->iova, rights);
    e->pd = domain->entry;
    go_live(e);

    if (&domain->base != base->pd) {
        atomic_fetch_add_explicit(&domain->users, 1, memory_order_relaxed);
        atomic_fetch_sub_explicit(&sv_container(base->pd, struct sv_pd, base)->users, 1, memory_order_release);
        base->pd = &domain->base;
    }
    if (moves) {
        base->addr = addr;
        base->length = length;
        if (mr->mapped)
            munmap(mr->mapped, mr->mapped_bytes);
        mr->mapped = NULL;
    }
    return 0;
}
