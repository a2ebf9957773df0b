/* SPDX-License-Identifier: MIT
 *
 * The desk of a standing node: a record in its own pool that says what it is and how its links are. The node refreshes it every second, and
 * the control node gets it. It has two pages, so that a page that was just announced is not written for a second.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/standing.h"
#include "weft/service.h"

#define DEVICES_NS (10 * WEFT_SECOND) /* between two looks at the devices: each opens all of them */

struct desk {
    weft_node *w;
    uint32_t rank, size;
    weft_gaddr at;
    uint64_t page_bytes, number;
    struct desk_head *head;
    int64_t refreshed, looked;
    struct topo_node node;
};

static uint64_t page_bytes(uint32_t size)
{
    return base_round_up(sizeof(struct desk_page) + (uint64_t)size * sizeof(struct desk_link), BASE_CACHE_LINE);
}

static struct desk_page *page_of(const struct desk *d, uint64_t number)
{
    return (struct desk_page *)(void *)((uint8_t *)d->head + BASE_CACHE_LINE + number % 2 * d->page_bytes);
}

int desk_open(struct desk **out, weft_node *w)
{
    struct desk *d = *out = calloc(1, sizeof *d);
    if (!d)
        return base_fail(-ENOMEM, "no memory for the node's figures");
    d->w = w;
    d->rank = weft_rank(w);
    d->size = weft_size(w);
    d->page_bytes = page_bytes(d->size);
    uint64_t bytes = BASE_CACHE_LINE + 2 * d->page_bytes;
    int rc = weft_alloc_aligned(w, bytes, BASE_CACHE_LINE, &d->at);
    if (rc)
        return rc;
    d->head = weft_ptr(w, d->at, bytes);
    memset(d->head, 0, bytes);
    *d->head = (struct desk_head){.magic = DESK_MAGIC, .page_bytes = d->page_bytes};
    desk_refresh(d);
    return weft_name_publish(w, d->rank, DESK_NAME, d->at, bytes, WEFT_TIMEOUT_DEFAULT);
}

static uint64_t traffic(const weft_link_stats *s)
{
    uint64_t n = s->bulk_sent_bytes + s->bulk_received_bytes;
    for (unsigned i = 0; i < 4; i++)
        n += s->rail_bytes[i];
    return n;
}

void desk_refresh(struct desk *d)
{
    int64_t now = base_now_ns(), since = now - d->refreshed;
    if (!d->looked || now - d->looked > DEVICES_NS) {
        d->node = (struct topo_node){.host = ""};
        topo_describe(&d->node);
        d->looked = now;
    }
    const struct desk_page *before = page_of(d, d->number);
    struct desk_page *p = page_of(d, d->number + 1);
    p->number = d->number + 1;
    p->pid = (uint32_t)getpid();
    p->size = d->size;
    p->node = d->node;
    weft_pool_stat(d->w, &p->pool, sizeof p->pool);
    for (uint32_t i = 0; i < d->size; i++) {
        struct desk_link *l = &p->links[i];
        memset(l, 0, sizeof *l);
        l->alive = weft_alive(d->w, i);
        if (i == d->rank || !l->alive || weft_link_stat(d->w, i, &l->stats, sizeof l->stats))
            continue;
        l->bytes = traffic(&l->stats);
        if (d->number && l->bytes > before->links[i].bytes)
            l->bytes_per_second = (uint64_t)((double)(l->bytes - before->links[i].bytes) * 1e9 / (double)(since > 0 ? since : 1));
    }
    d->refreshed = now;
    d->number++;
    __atomic_store_n(&d->head->newest, d->number, __ATOMIC_RELEASE); /* after the page, for readers on this host */
}

void desk_close(struct desk *d)
{
    free(d); /* its memory goes with the pool */
}

/* A page of another node: nothing in it is to be believed. */
static int check_page(struct desk_page *p, uint32_t size, uint32_t node)
{
    if (p->size != size)
        return base_fail(-EPROTO, "node %u reported %u nodes instead of %u", node, p->size, size);
    topo_check_node(&p->node);
    for (uint32_t i = 0; i < size; i++) {
        weft_link_stats *s = &p->links[i].stats;
        s->transport[sizeof s->transport - 1] = s->devices[sizeof s->devices - 1] = '\0';
    }
    return 0;
}

int desk_get(weft_node *w, uint32_t node, struct desk_page **out)
{
    uint32_t size = weft_size(w);
    uint64_t bytes = page_bytes(size);
    struct desk_head head;
    weft_name name;
    int rc = weft_name_lookup(w, node, DESK_NAME, &name, 2 * WEFT_SECOND);
    if (!rc && (weft_gaddr_node(name.addr) != node || name.bytes != BASE_CACHE_LINE + 2 * bytes))
        rc = base_fail(-EPROTO, "node %u sent an invalid address of its figures", node);
    if (!rc)
        rc = weft_get_blocking(w, &head, name.addr, sizeof head);
    if (!rc && (head.magic != DESK_MAGIC || head.page_bytes != bytes))
        rc = base_fail(-EPROTO, "node %u sent figures that this version of weft does not understand: run the same version on all hosts",
                       node);
    struct desk_page *p = *out = rc ? NULL : malloc(bytes);
    if (!rc && !p)
        rc = base_fail(-ENOMEM, "no memory for the figures of node %u", node);
    if (!rc)
        rc = weft_get_blocking(w, p, name.addr + BASE_CACHE_LINE + head.newest % 2 * bytes, bytes);
    if (!rc)
        rc = check_page(p, size, node);
    if (rc && rc != -ETIMEDOUT) /* after a time-out the fabric may still write to it: it is never freed */
        free(p);
    if (rc)
        *out = NULL;
    return rc;
}
