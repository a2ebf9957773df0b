/* SPDX-License-Identifier: MIT
 *
 * The desk of a node of a standing cluster: memory in the node's own pool that describes the node and its links. The node refreshes its
 * desk every second, and other nodes read it. The desk has two pages, which are written in turn: page K + 2 overwrites page K after the
 * number of page K + 1 was written. So a reader has read a whole page if the page's number is still the newest one after the read.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/standing.h"
#include "weft/service.h"

#define DEVICES_NS (10 * WEFT_SECOND) /* how often the devices are read; rarely, because reading opens all devices */
#define DESK_SPARE 8u                 /* room for links to nodes that join later */
#define SILENT_NS  (2 * WEFT_SECOND)  /* how long to wait for a node */
#define READS      32                 /* how often to try again to read a page that was overwritten meanwhile */

struct desk {
    weft_node *w;
    uint32_t rank, slot, room; /* room: number of links for which the desk has space */
    /* at: address of the desk. before: where the desk was before it was enlarged; a node may still be reading there; 0: nowhere */
    weft_gaddr at, before;
    uint64_t page_bytes, number;
    struct desk_head *head;
    struct desk_page *page[2]; /* the last two pages; page K is page[K % 2] */
    int64_t refreshed, looked, joined;
    struct topo_node node;
};

static uint64_t page_bytes(uint32_t room)
{
    return base_round_up(sizeof(struct desk_page) + (uint64_t)room * sizeof(struct desk_link), BASE_CACHE_LINE);
}

static uint64_t page_at(uint64_t number, uint64_t one)
{
    return BASE_CACHE_LINE + number % 2 * one;
}

static int make_room(struct desk *d, uint64_t one)
{
    for (int i = 0; i < 2; i++) {
        struct desk_page *p = calloc(1, one);
        if (!p)
            return base_fail(-ENOMEM, "no memory for what the node publishes about itself" BASE_MEMORY_HINT);
        if (d->page[i])
            memcpy(p, d->page[i], d->page_bytes);
        free(d->page[i]);
        d->page[i] = p;
    }
    return 0;
}

/* Make a desk with room for more links, and copy the newest page to it. */
static int desk_move(struct desk *d, uint32_t room)
{
    uint64_t one = page_bytes(room), bytes = BASE_CACHE_LINE + 2 * one;
    weft_gaddr at;
    int rc = make_room(d, one);
    if (!rc)
        rc = weft_alloc_aligned(d->w, bytes, BASE_CACHE_LINE, &at);
    if (rc)
        return rc;
    struct desk_head *head = weft_ptr(d->w, at, bytes);
    memset(head, 0, bytes);
    *head = (struct desk_head){.magic = DESK_MAGIC, .newest = d->number, .page_bytes = one};
    memcpy((uint8_t *)head + page_at(d->number, one), d->page[d->number % 2], one);
    if (d->before)
        weft_free(d->w, d->before);
    d->before = d->at;
    d->at = at;
    d->head = head;
    d->room = room;
    d->page_bytes = one;
    return 0;
}

static int desk_publish(struct desk *d)
{
    return weft_name_publish(d->w, d->rank, DESK_NAME, d->at, BASE_CACHE_LINE + 2 * d->page_bytes, WEFT_TIMEOUT_DEFAULT);
}

int desk_open(struct desk **out, weft_node *w, uint32_t slot)
{
    struct desk *d = *out = calloc(1, sizeof *d);
    if (!d)
        return base_fail(-ENOMEM, "no memory for what the node publishes about itself" BASE_MEMORY_HINT);
    d->w = w;
    d->rank = weft_rank(w);
    d->joined = (int64_t)time(NULL);
    d->slot = slot;
    int rc = desk_move(d, weft_alive_count(w) + DESK_SPARE);
    if (rc)
        return rc;
    desk_refresh(d);
    return desk_publish(d);
}

static uint64_t rate(uint64_t now, uint64_t before, int64_t since)
{
    return now > before ? (uint64_t)((double)(now - before) * 1e9 / (double)(since > 0 ? since : 1)) : 0;
}

/* Fill in the links to all living nodes. `before`: the page of the last refresh, with the links in the same order. */
static void refresh_links(struct desk *d, struct desk_page *p, const struct desk_page *before, int64_t since)
{
    uint32_t size = weft_size(d->w), k = 0;
    p->count = 0;
    for (uint32_t i = 0; i < size && p->count < d->room; i++) {
        struct desk_link *l = &p->links[p->count];
        if (i == d->rank || !weft_alive(d->w, i))
            continue;
        memset(l, 0, sizeof *l);
        if (weft_link_stat(d->w, i, &l->stats, sizeof l->stats))
            continue; /* not an error: the node has died just now */
        l->node = i;
        while (k < before->count && before->links[k].node < i)
            k++;
        if (k < before->count && before->links[k].node == i) {
            l->sent_rate = rate(l->stats.sent_bytes, before->links[k].stats.sent_bytes, since);
            l->fetched_rate = rate(l->stats.fetched_bytes, before->links[k].stats.fetched_bytes, since);
        }
        p->count++;
    }
}

void desk_refresh(struct desk *d)
{
    int64_t now = base_now_ns(), since = now - d->refreshed;
    uint32_t alive = weft_alive_count(d->w);
    if (!d->looked || now - d->looked > DEVICES_NS) {
        d->node = (struct topo_node){.host = ""};
        topo_describe(&d->node);
        d->looked = now;
    }
    if (alive > d->room + 1 && desk_move(d, alive + DESK_SPARE) == 0 && d->number)
        desk_publish(d);
    const struct desk_page *before = d->page[d->number % 2];
    struct desk_page *p = d->page[(d->number + 1) % 2];
    const char *door = getenv("WEFT_GROW");
    p->number = d->number + 1;
    p->pid = (uint32_t)getpid();
    p->joined = d->joined;
    p->slot = d->slot;
    snprintf(p->door, sizeof p->door, "%s", door ? door : "");
    p->node = d->node;
    weft_pool_stat(d->w, &p->pool, sizeof p->pool);
    refresh_links(d, p, before, since);
    d->refreshed = now;
    weft_fence(d->w, d->rank); /* page K overwrites page K - 2; before that, readers must see the number of page K - 1 */
    if (weft_put_blocking(d->w, d->at + page_at(p->number, d->page_bytes), p, d->page_bytes))
        return;
    d->number++;
    /* release: readers on this host see the page before they see its number */
    __atomic_store_n(&d->head->newest, d->number, __ATOMIC_RELEASE);
}

void desk_close(struct desk *d)
{
    if (d) {
        free(d->page[0]);
        free(d->page[1]);
    }
    free(d); /* the desk itself is freed with the pool */
}

/* Check the page of another node, which may contain anything. */
static int check_page(struct desk_page *p, uint64_t bytes, uint32_t node)
{
    uint32_t last = 0;
    if (p->count > (bytes - sizeof *p) / sizeof p->links[0])
        return base_fail(-EPROTO, "node %u sent a report of the wrong length for its %u links; run the same version of weft on all hosts",
                         node, p->count);
    topo_check_node(&p->node);
    topo_check_text(p->door, sizeof p->door);
    for (uint32_t i = 0; i < p->count; i++) {
        weft_link_stats *s = &p->links[i].stats;
        if (p->links[i].node >= WEFT_MAX_NUMBERS || (i && p->links[i].node <= last))
            return base_fail(-EPROTO,
                             "node %u reported a link to node %u, which is not a possible link; run the same version of weft on all hosts",
                             node, p->links[i].node);
        last = p->links[i].node;
        topo_check_text(s->transport, sizeof s->transport);
        topo_check_text(s->devices, sizeof s->devices);
    }
    return 0;
}

/* A buffer into which the fabric may still write, because a get of a page has timed out. The buffer is never freed, and is used again only
 * for the same node. */
struct late {
    struct late *next;
    uint64_t bytes;
    char page[];
};

struct desks {
    weft_node *w;
    pthread_mutex_t lock;
    struct late **late; /* [WEFT_MAX_NUMBERS]: the buffers of each node */
};

int desks_open(struct desks **out, weft_node *w)
{
    struct desks *d = *out = calloc(1, sizeof *d);
    if (d)
        d->late = calloc(WEFT_MAX_NUMBERS, sizeof(struct late *));
    if (!d || !d->late)
        return base_fail(-ENOMEM, "no memory for the table of the nodes' reports" BASE_MEMORY_HINT);
    d->w = w;
    pthread_mutex_init(&d->lock, NULL);
    return 0;
}

void desks_close(struct desks *d)
{
    if (d && d->late)
        pthread_mutex_destroy(&d->lock);
    if (d)
        free(d->late);
    free(d);
}

static struct late *take_late(struct desks *d, uint32_t node, uint64_t bytes)
{
    pthread_mutex_lock(&d->lock);
    struct late *l = d->late[node];
    if (l && l->bytes >= bytes)
        d->late[node] = l->next;
    else
        l = NULL;
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

/* Get a page from `at`. Checks a copy of the page, because a late answer may change the buffer. */
static int get_page(struct desks *d, uint32_t node, weft_gaddr at, uint64_t bytes, struct desk_page **out)
{
    struct late *before = take_late(d, node, bytes), *l = before ? before : malloc(sizeof *l + bytes);
    struct desk_page *p = *out = malloc(bytes);
    int rc = l && p ? 0 : base_fail(-ENOMEM, "no memory for the report of node %u" BASE_MEMORY_HINT, node);
    if (l && !before)
        l->bytes = bytes;
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

/* The first step to get a page: a request for the address of the desk to the node's name service. This step is begun for all nodes at once.
 */
struct seek {
    weft_name name;
    weft_op op;
    int rc;
};

static void seek_begin(struct desks *d, uint32_t node, struct seek *s)
{
    s->rc = node < WEFT_MAX_NUMBERS ? weft_name_lookup_start(d->w, node, DESK_NAME, false, &s->name, SILENT_NS, &s->op) : -EFAULT;
}

static int seek_end(struct desks *d, struct seek *s)
{
    if (s->rc)
        return s->rc;
    s->rc = weft_wait(d->w, &s->op, 2 * SILENT_NS);
    if (weft_test(d->w, &s->op) == -EINPROGRESS) { /* `s` must not be freed before the operation has ended */
        weft_request_cancel(d->w, &s->op);
        s->rc = weft_wait(d->w, &s->op, WEFT_TIMEOUT_DEFAULT);
    }
    return s->rc;
}

/* Read the head of a desk. If `rc` is an error, returns it. */
static int get_head(struct desks *d, uint32_t node, const weft_name *name, struct desk_head *head, int rc)
{
    if (!rc)
        rc = weft_fence(d->w, node); /* gets are unordered: without a fence, the head could be read before the page that was requested
                                        before it */
    if (!rc)
        rc = weft_get_blocking(d->w, head, name->addr, sizeof *head);
    if (!rc && (head->magic != DESK_MAGIC || head->page_bytes != (name->bytes - BASE_CACHE_LINE) / 2))
        rc = base_fail(-EPROTO, "node %u sent a report that this version of weft cannot read; run the same version of weft on all hosts",
                       node);
    return rc ? rc : weft_fence(d->w, node);
}

static int get_found(struct desks *d, uint32_t node, const weft_name *name, bool links, struct desk_page **out)
{
    struct desk_head head, after;
    uint64_t bytes = 0;
    int rc = 0;
    if (weft_gaddr_node(name->addr) != node || name->bytes < BASE_CACHE_LINE + 2 * page_bytes(0) ||
        name->bytes > BASE_CACHE_LINE + 2 * page_bytes(WEFT_MAX_NODES + DESK_SPARE))
        rc = base_fail(-EPROTO, "node %u sent an invalid address of its report; run the same version of weft on all hosts", node);
    rc = get_head(d, node, name, &after, rc);
    for (int i = 0; !rc && (i == 0 || after.newest != head.newest); i++) {
        if (i)
            free(*out);
        *out = NULL;
        head = after;
        bytes = links ? head.page_bytes : page_bytes(0);
        if (i == READS)
            rc = base_fail(-EAGAIN, "the report of node %u was overwritten again and again while it was read; try again", node);
        else
            rc = get_page(d, node, name->addr + page_at(head.newest, head.page_bytes), bytes, out);
        rc = get_head(d, node, name, &after, rc);
    }
    if (!rc && !links)
        (*out)->count = 0;
    if (!rc)
        rc = check_page(*out, bytes, node);
    if (rc) {
        free(*out);
        *out = NULL;
    }
    return rc;
}

uint32_t desks_get(struct desks *d, const uint32_t *nodes, uint32_t count, bool links, struct desk_page **out)
{
    struct seek *all = calloc(count + 1, sizeof *all);
    uint32_t silent = 0;
    for (uint32_t i = 0; i < count; i++) {
        out[i] = NULL;
        if (all)
            seek_begin(d, nodes[i], &all[i]);
    }
    for (uint32_t i = 0; i < count; i++)
        silent += !all || seek_end(d, &all[i]) || get_found(d, nodes[i], &all[i].name, links, &out[i]);
    free(all);
    return silent;
}
