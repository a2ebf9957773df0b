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
        topo_check_text(s->transport, sizeof s->transport);
        topo_check_text(s->devices, sizeof s->devices);
    }
    return 0;
}

/* A buffer into which the fabric may still write, because getting a page into it has timed out. It is never freed, and only the same node's
 * page is got into it again. */
struct late {
    struct late *next;
    char page[];
};

struct desks {
    weft_node *w;
    uint32_t size;
    pthread_mutex_t lock;
    struct late *late[]; /* [size]: of each node: at most as many as threads got its page at the same time */
};

int desks_open(struct desks **out, weft_node *w)
{
    uint32_t size = weft_size(w);
    struct desks *d = *out = calloc(1, sizeof *d + size * sizeof(struct late *));
    if (!d)
        return base_fail(-ENOMEM, "no memory for the figures of the nodes");
    d->w = w;
    d->size = size;
    pthread_mutex_init(&d->lock, NULL);
    return 0;
}

void desks_close(struct desks *d)
{
    if (d)
        pthread_mutex_destroy(&d->lock);
    free(d);
}

static struct late *take_late(struct desks *d, uint32_t node)
{
    pthread_mutex_lock(&d->lock);
    struct late *l = d->late[node];
    if (l)
        d->late[node] = l->next;
    pthread_mutex_unlock(&d->lock);
    return l;
}

static void keep_late(struct desks *d, uint32_t node, struct late *l)
{
    pthread_mutex_lock(&d->lock);
    l->next = d->late[node];
    d->late[node] = l;
    pthread_mutex_unlock(&d->lock);
}

/* Get a page from `at`. What a late answer may still change is not checked where it lies, but copied first. */
static int get_page(struct desks *d, uint32_t node, weft_gaddr at, struct desk_page **out)
{
    uint64_t bytes = page_bytes(d->size);
    struct late *before = take_late(d, node), *l = before ? before : malloc(sizeof *l + bytes);
    struct desk_page *p = *out = malloc(bytes);
    int rc = l && p ? 0 : base_fail(-ENOMEM, "no memory for the figures of node %u", node);
    if (!rc)
        rc = weft_get_blocking(d->w, l->page, at, bytes);
    if (!rc)
        memcpy(p, l->page, bytes);
    if (l && (before || rc == -ETIMEDOUT))
        keep_late(d, node, l);
    else
        free(l);
    return rc;
}

int desk_get(struct desks *d, uint32_t node, struct desk_page **out)
{
    *out = NULL;
    if (node >= d->size)
        return base_fail(-EFAULT, "node %u has joined later: its figures are not known", node);
    weft_node *w = d->w;
    uint64_t bytes = page_bytes(d->size);
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
    if (!rc)
        rc = get_page(d, node, name.addr + BASE_CACHE_LINE + head.newest % 2 * bytes, out);
    if (!rc)
        rc = check_page(*out, d->size, node);
    if (rc) {
        free(*out);
        *out = NULL;
    }
    return rc;
}
