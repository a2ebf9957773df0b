/* SPDX-License-Identifier: MIT
 *
 * Checks whether memory can be registered. The whole range must be mapped, and writable if the region is to be written. Some profiles
 * distinguish memory from mmap and from malloc, because Apple's library refuses the heap. Apple's library recognizes the heap by the tag of
 * a mapping. Here it is recognized by the mapping itself, and by what the C library's allocator writes before its blocks.
 *
 * The following counts as heap: the mapping called [heap]; blocks for which glibc's malloc has made their own mappings; arenas of other
 * threads than the first. Memory of other allocators (musl's, jemalloc's, a sanitizer's) counts as mapped memory.
 */
#include "lib.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

/* ---- The mappings of this process ----------------------------------------------------------------------------- */
struct mapping {
    uint64_t start, end;
    bool readable, writable;
    bool heap;      /* the kernel calls it [heap]: brk() made it */
    bool anonymous; /* not a mapping of a file */
};

/* Since Linux 6.11 the kernel answers for one address (PROCMAP_QUERY of linux/fs.h, which older headers lack). For older kernels, the list
 * of mappings is read up to the address. */
struct map_query {
    uint64_t size, flags, address;                       /* in */
    uint64_t start, end, bits, page_size, offset, inode; /* out */
    uint32_t device_major, device_minor;
    uint32_t name_size, build_id_size; /* in: room, out: length */
    uint64_t name, build_id;           /* in: addresses of the buffers */
};
#define MAP_QUERY _IOWR('f', 17, struct map_query)
enum { QUERY_READABLE = 1, QUERY_WRITABLE = 2, QUERY_COVERING_OR_NEXT = 16 };

struct maps {
    int fd;
    bool text;
    size_t used, filled; /* bytes of `buffer` */
    char buffer[8192];
};

static int open_maps(struct maps *m)
{
    m->fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    m->text = false;
    m->used = m->filled = 0;
    return m->fd < 0 ? -errno : 0;
}

static int memory_query(struct maps *m, uint64_t address, struct mapping *to)
{
    char name[64] = "";
    struct map_query q = {
        .size = sizeof q,
        .flags = QUERY_COVERING_OR_NEXT,
        .address = address,
        .name_size = sizeof name,
        .name = (uintptr_t)name,
    };

    if (ioctl(m->fd, MAP_QUERY, &q)) {
        if (errno != ENAMETOOLONG)
            return -errno;
        q.name_size = 0; /* only files have such long names; do not ask for the name */
        q.name = 0;
        name[0] = '/';
        if (ioctl(m->fd, MAP_QUERY, &q))
            return -errno;
    }
    *to = (struct mapping){
        .start = q.start,
        .end = q.end,
        .readable = q.bits & QUERY_READABLE,
        .writable = q.bits & QUERY_WRITABLE,
        .heap = !strcmp(name, "[heap]"),
        .anonymous = q.inode == 0,
    };
    return 0;
}

/* Returns the next line of the text; NULL at its end. */
static char *memory_line(struct maps *m)
{
    for (;;) {
        char *start = m->buffer + m->used, *end = memchr(start, '\n', m->filled - m->used);
        ssize_t n;

        if (end) {
            *end = 0;
            m->used = (size_t)(end + 1 - m->buffer);
            return start;
        }
        memmove(m->buffer, start, m->filled - m->used);
        m->filled -= m->used;
        m->used = 0;
        if (m->filled == sizeof m->buffer)
            return NULL; /* not reached: a path has at most 4096 bytes */
        do
            n = read(m->fd, m->buffer + m->filled, sizeof m->buffer - m->filled);
        while (n < 0 && errno == EINTR);
        if (n <= 0)
            return NULL;
        m->filled += (size_t)n;
    }
}

/* Parses a line: START-END rwxp OFFSET MAJOR:MINOR INODE NAME */
static bool memory_parse(char *text, struct mapping *to)
{
    char *p = text, *end;

    to->start = strtoull(p, &end, 16);
    if (end == p || *end != '-')
        return false;
    p = end + 1;
    to->end = strtoull(p, &end, 16);
    if (end == p || *end != ' ' || strlen(end) < 6)
        return false;
    to->readable = end[1] == 'r';
    to->writable = end[2] == 'w';
    p = end + 6;
    for (int skip = 0; skip < 2 && p; skip++)
        p = (p = strchr(p, ' ')) ? p + 1 : NULL;
    if (!p)
        return false;
    to->anonymous = strtoull(p, &end, 10) == 0;
    to->heap = strstr(end, "[heap]") != NULL && to->anonymous;
    return true;
}

/* Finds the mapping at an address, or the next one. Addresses of successive calls must ascend. */
static int find_mapping(struct maps *m, uint64_t address, struct mapping *to)
{
    char *text;

    if (!m->text) {
        int err = memory_query(m, address, to);
        if (err == 0 || err == -ENOENT)
            return err;
        m->text = true;
    }
    while ((text = memory_line(m))) {
        if (!memory_parse(text, to))
            return -EPROTO;
        if (to->end > address)
            return 0;
    }
    return -ENOENT;
}

/* ---- The C library's allocator ---------------------------------------------------------------------------------- */
/* What glibc writes before a block: the size of the chunk before, and the block's own size, with flags in its low bits. */
struct chunk {
    uint64_t before, size;
};
enum { CHUNK_MAPPED = 2, CHUNK_FLAGS = 7 };
#define ARENA_SPAN (UINT64_C(64) << 20)       /* a thread's arena begins at a multiple of this */
enum { SCAN_PAGES = 4096, SCAN_BATCH = 256 }; /* in larger blocks only the first 16 MiB are recognized as heap */

/* The beginning of an arena other than the first. */
struct arena {
    uint64_t state;    /* address of the arena's state; in the first part of an arena the state follows this structure */
    uint64_t previous; /* the previous part, or 0 */
    uint64_t size, accessible;
};

/* Reads memory that may be unmapped. The system call then fails, where a load would raise SIGSEGV. */
static bool memory_peek(uint64_t address, void *to, size_t bytes)
{
    struct iovec here = {to, bytes}, there = {(void *)(uintptr_t)address, bytes};

    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)bytes;
}

/* Whether the words before `block` belong to a block that glibc has mapped, and that contains the range. */
static bool maps_block(const struct chunk *c, uint64_t block, uint64_t address, uint64_t bytes)
{
    uint64_t size = c->size & ~(uint64_t)CHUNK_FLAGS, start = block - sizeof *c - c->before;

    return (c->size & CHUNK_FLAGS) == CHUNK_MAPPED && c->before < block && size >= SF_PAGE / 2 && size < UINT64_C(1) << 47 &&
           start % SF_PAGE == 0 && (c->before + size) % SF_PAGE == 0 && address >= block && address + bytes <= block - sizeof *c + size;
}

static bool in_mapped_block(const struct mapping *m, uint64_t address, uint64_t bytes)
{
    uint64_t page = address - address % SF_PAGE, lowest = m->start;
    struct chunk seen[SCAN_BATCH];

    /* The address may be the start of a mapped block, or the aligned result of posix_memalign(). The words before the address may be in
     * another mapping. */
    if (address % sizeof *seen == 0 && memory_peek(address - sizeof *seen, seen, sizeof *seen) && maps_block(seen, address, address, bytes))
        return true;
    /* The address may be inside a mapped block. Such blocks begin at the start of a page, so check the starts of the pages before the
     * address. */
    if (page - lowest > (uint64_t)SCAN_PAGES * SF_PAGE)
        lowest = page - (uint64_t)SCAN_PAGES * SF_PAGE;
    for (;;) {
        struct iovec here = {seen, 0}, there[SCAN_BATCH];
        unsigned count = 0;
        ssize_t n;

        for (uint64_t at = page; count < SCAN_BATCH && at >= lowest && at <= page; at -= SF_PAGE)
            there[count++] = (struct iovec){(void *)(uintptr_t)at, sizeof *seen};
        here.iov_len = count * sizeof *seen;
        n = process_vm_readv(getpid(), &here, 1, there, count, 0);
        for (unsigned i = 0; n > 0 && i < (size_t)n / sizeof *seen; i++) {
            uint64_t start = page - (uint64_t)i * SF_PAGE;
            if (seen[i].before == 0 && start + (seen[i].size & ~(uint64_t)CHUNK_FLAGS) <= m->end &&
                maps_block(&seen[i], start + sizeof *seen, address, bytes))
                return true;
        }
        if (n != (ssize_t)here.iov_len || count < SCAN_BATCH)
            return false;
        page -= (uint64_t)SCAN_BATCH * SF_PAGE;
        if (page < lowest)
            return false;
    }
}

static bool in_arena(const struct mapping *m, uint64_t address)
{
    uint64_t base = address & ~(ARENA_SPAN - 1);
    struct arena a;

    if (base < m->start || !memory_peek(base, &a, sizeof a))
        return false;
    if (a.size == 0 || a.size > ARENA_SPAN || a.accessible < a.size || a.accessible > ARENA_SPAN || a.size % SF_PAGE ||
        a.accessible % SF_PAGE || address - base >= a.size || a.previous % ARENA_SPAN)
        return false;
    return a.state % 16 == 0 && a.state % ARENA_SPAN >= sizeof a && a.state % ARENA_SPAN < 4 * sizeof a &&
           (a.previous == 0) == ((a.state & ~(ARENA_SPAN - 1)) == base);
}

static bool on_heap(const struct mapping *m, uint64_t address, uint64_t bytes)
{
    return m->heap || (m->anonymous && m->writable && (in_arena(m, address) || in_mapped_block(m, address, bytes)));
}

/* ---- The check -------------------------------------------------------------------------------------------------- */
int sv_memory_check(const void *address, size_t bytes, bool writable)
{
    const struct sv_memory_rules *rules = &sv_lib.profile->memory;
    uint64_t start = (uintptr_t)address, end = start + bytes, at = start;
    struct mapping first = {0}, m = {0};
    struct maps maps;
    bool heap = false;
    int err;

    if (end < start || bytes == 0)
        return EINVAL;
    err = open_maps(&maps);
    if (err) {
        sv_log(SV_ERROR, "cannot read /proc/self/maps, and so cannot tell the kind of memory that is registered: %s; mount /proc",
               strerror(-err));
        return -err;
    }
    while (at < end) {
        if (find_mapping(&maps, at, &m) || m.start > at || !m.readable || (writable && !m.writable)) {
            err = EFAULT;
            break;
        }
        if (at == start)
            first = m;
        heap = heap || m.heap;
        at = m.end;
    }
    close(maps.fd);
    if (err || (!rules->mapping && !rules->heap && !rules->heap_aligned))
        return err;
    if (heap || on_heap(&first, start, bytes))
        return start % SF_PAGE ? rules->heap : rules->heap_aligned;
    return rules->mapping;
}
