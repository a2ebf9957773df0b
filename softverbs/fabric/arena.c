/* SPDX-License-Identifier: MIT
 *
 * The arena: memory for queues, in whole pages of the file, each with its owner. Memory is allocated for a page when the page is taken, so
 * that a full /dev/shm is an error then, and not a SIGBUS later. The memory of freed pages is returned to the system.
 */
#include "shared.h"

#include <errno.h>
#include <fcntl.h>

int sf_back(struct sf_view *v, const volatile void *at, size_t bytes)
{
    int r;
    do
        r = fallocate(v->fd, 0, (off_t)((const volatile char *)at - (const volatile char *)v->fabric), (off_t)bytes);
    while (r != 0 && errno == EINTR);
    int error = r == 0 ? 0 : errno;
    if (error == ENOSPC && v->full)
        v->full(v);
    return -error;
}

static uint32_t pages_of(size_t bytes)
{
    return (uint32_t)((bytes + SF_PAGE - 1) / SF_PAGE);
}

/* Returns the first run of `count` free pages from `from` on, or SF_PAGES if there is none. */
static uint32_t arena_find_run(struct sf_fabric *f, uint32_t from, uint32_t count)
{
    uint32_t length = 0;
    for (uint32_t p = from; p < SF_PAGES; p++) {
        length = atomic_load_explicit(&f->pages[p], memory_order_relaxed) == 0 ? length + 1 : 0;
        if (length == count)
            return p + 1 - count;
    }
    return SF_PAGES;
}

/* Allocates memory for the owners' words that a search for `count` pages may read. Those of pages below page_top have memory already. */
static int back_marks(struct sf_view *v, uint32_t count)
{
    struct sf_fabric *f = v->fabric;
    uint32_t top = f->page_top < SF_PAGES ? f->page_top : SF_PAGES;
    uintptr_t start = (uintptr_t)&f->pages[top], end = (uintptr_t)&f->pages[count < SF_PAGES - top ? top + count : SF_PAGES];
    if (start == end || (top > 0 && (start - 1) / SF_PAGE == (end - 1) / SF_PAGE))
        return 0;
    return sf_back(v, &f->pages[top], end - start);
}

uint64_t sf_arena_take(struct sf_view *v, size_t bytes)
{
    struct sf_fabric *f = v->fabric;
    if (bytes == 0 || bytes > (size_t)SF_PAGES * SF_PAGE) {
        errno = ENOMEM;
        return 0;
    }
    uint32_t count = pages_of(bytes), page = SF_PAGES;
    for (int again = 0; again < 2 && page == SF_PAGES; again++) {
        sf_lock_fabric(v);
        int error = back_marks(v, count);
        if (error) {
            sf_unlock(v, &f->lock);
            errno = -error;
            return 0;
        }
        page = arena_find_run(f, f->page_next % SF_PAGES, count);
        if (page == SF_PAGES)
            page = arena_find_run(f, 0, count);
        if (page < SF_PAGES) {
            for (uint32_t p = page; p < page + count; p++)
                atomic_store_explicit(&f->pages[p], v->process, memory_order_relaxed);
            f->page_next = page + count;
            if (page + count > f->page_top)
                f->page_top = page + count;
        }
        sf_unlock(v, &f->lock);
        if (page == SF_PAGES && sf_reap_all(v) == 0)
            break;
    }
    if (page == SF_PAGES) {
        errno = ENOMEM;
        return 0;
    }
    /* unused pages of the arena are holes, and read as zeros */
    int error = sf_back(v, sf_at(v, sf_page_offset(page)), (size_t)count * SF_PAGE);
    if (error) {
        sf_arena_give(v, sf_page_offset(page), bytes);
        errno = -error;
        return 0;
    }
    return sf_page_offset(page);
}

void sf_arena_give(struct sf_view *v, uint64_t offset, size_t bytes)
{
    uint32_t count = pages_of(bytes);
    if (offset < sizeof(struct sf_fabric) || count == 0)
        return;
    uint64_t page = (offset - sizeof(struct sf_fabric)) / SF_PAGE;
    if (page >= SF_PAGES || count > SF_PAGES - page)
        return;
    sf_lock_fabric(v);
    /* a forked child may be destroying its copy of a queue of its parent */
    uint32_t own = 0;
    while (own < count && atomic_load_explicit(&v->fabric->pages[page + own], memory_order_relaxed) == v->process)
        own++;
    if (own == count)
        sf_free_pages(v, (uint32_t)page, count);
    sf_unlock(v, &v->fabric->lock);
}
