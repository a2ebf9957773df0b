/* SPDX-License-Identifier: MIT
 *
 * Marks entries of the tables and pages of the arena as free, when their owner gives them back or has died. The caller holds the fabric's
 * lock.
 */
#include "shared.h"

#include <fcntl.h>
#include <string.h>

#define FREE(kind, table)                                                                              \
    void sf_free_##kind(struct sf_fabric *f, uint32_t i)                                               \
    {                                                                                                  \
        if (f->table[i].device < SV_DEVICES)                                                           \
            atomic_fetch_sub_explicit(&f->devices[f->table[i].device].table, 1, memory_order_relaxed); \
        atomic_store_explicit(&f->table[i].owner, 0, memory_order_release);                            \
    }

FREE(pd, pds)
FREE(mr, mrs)
FREE(cq, cqs)
FREE(srq, srqs)
FREE(qp, qps)

void sf_free_pages(struct sf_view *v, uint32_t page, uint32_t count)
{
    struct sf_fabric *f = v->fabric;
    if (fallocate(v->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)sf_page_offset(page), (off_t)count * SF_PAGE) != 0)
        memset((char *)f + sf_page_offset(page), 0, (size_t)count * SF_PAGE);
    for (uint32_t p = page; p < page + count; p++)
        atomic_store_explicit(&f->pages[p], 0, memory_order_release);
    if (page < f->page_next)
        f->page_next = page; /* search from the lowest free page, so that the file stays short */
}

void sf_free_all_pages(struct sf_view *v, uint32_t process)
{
    struct sf_fabric *f = v->fabric;
    for (uint32_t p = 0; p < f->page_top && p < SF_PAGES; p++) {
        uint32_t count = 0;
        while (p + count < SF_PAGES && atomic_load_explicit(&f->pages[p + count], memory_order_relaxed) == process)
            count++;
        if (count > 0) {
            sf_free_pages(v, p, count);
            p += count;
        }
    }
}
