/* SPDX-License-Identifier: MIT
 *
 * The name service: a table of names and addresses, and the requests that wait for a name to be published.
 */
#include "gateway/gateway.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define NAMES_MOST   65536u
#define NAME_BUCKETS 8192u
#define LISTED_MOST  40u /* maximum number of names in one answer */

struct name {
    struct name *next;
    weft_name n;
};
struct names {
    struct gateway_server *server;
    uint32_t count;
    uint32_t *own; /* [number of nodes for which the cluster has room]: how many of the names each asker has published */
    struct name *bucket[NAME_BUCKETS];
    struct gateway_call *waiting[NAME_BUCKETS]; /* requests, by the hash of the name that they wait for */
};

static int name_open(struct gateway_server *s, void **state)
{
    struct names *all = calloc(1, sizeof *all);
    if (!all)
        return base_fail(-ENOMEM, "no memory for the table of names (service 'name')" BASE_MEMORY_HINT);
    *state = all;
    all->server = s;
    all->own = calloc(gateway_of(s)->w->room, sizeof *all->own);
    return all->own
               ? 0
               : base_fail(-ENOMEM, "no memory to count the names of %u nodes (service 'name')" BASE_MEMORY_HINT, gateway_of(s)->w->room);
}

/* Copies the name in a request: 64 bytes, padded with zeros. Returns false if it is not a valid name. */
static bool name_read(const weft_request *r, char out[WEFT_NAME_BYTES])
{
    memcpy(out, &r->arg[4], WEFT_NAME_BYTES);
    size_t len = strnlen(out, WEFT_NAME_BYTES);
    if (len == 0 || len == WEFT_NAME_BYTES)
        return false;
    memset(out + len, 0, WEFT_NAME_BYTES - len);
    return true;
}

static uint32_t bucket_of(const char name[WEFT_NAME_BYTES])
{
    return (uint32_t)(XXH3_64bits(name, WEFT_NAME_BYTES) % NAME_BUCKETS);
}

static struct name **name_find(struct names *all, const char name[WEFT_NAME_BYTES])
{
    struct name **at = &all->bucket[bucket_of(name)];
    while (*at && memcmp((*at)->n.name, name, WEFT_NAME_BYTES) != 0)
        at = &(*at)->next;
    return at;
}

static void name_drop(struct names *all, struct name **at)
{
    struct name *gone = *at;
    *at = gone->next;
    all->count--;
    all->own[gone->n.owner]--;
    free(gone);
}

static void answer_name(struct gateway_call *c, const weft_name *n)
{
    gateway_answer(c, 0, (const uint64_t[3]){n->addr, n->bytes, n->owner}, 3, NULL, 0);
}

/* A name was published: answers the requests that wait for it. */
static void name_tell(struct names *all, const weft_name *n)
{
    struct gateway_call **at = &all->waiting[bucket_of(n->name)];
    while (*at) {
        struct gateway_call *c = *at;
        char wanted[WEFT_NAME_BYTES];
        if (!name_read(&c->record, wanted) || memcmp(wanted, n->name, WEFT_NAME_BYTES) != 0) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        answer_name(c, n);
    }
}

/* Checks whether a node may publish one more name. Returns -ENOSPC if it may not. */
static int name_allowed(const struct names *all, uint32_t node, const char *name)
{
    const struct gateway *g = gateway_of(all->server);
    uint32_t own = all->own[node];
    if (all->count < NAMES_MOST && (g->names ? own < g->names : gateway_share_allows(own, all->count, NAMES_MOST)))
        return 0;
    return base_fail(
        -ENOSPC,
        "name '%s': node %u has published %u names at node %u and cannot publish more%s: withdraw some, or raise WEFT_NAMES of "
        "node %u (now %u); all nodes together can have %u names",
        name, node, own, g->w->rank, g->names ? "" : "; the rest is for names of other nodes", g->w->rank, g->names, NAMES_MOST);
}

static int name_publish(struct names *all, const struct gateway_call *c, const char name[WEFT_NAME_BYTES])
{
    struct weft_node *w = gateway_of(all->server)->w;
    struct fab_link *link;
    weft_gaddr addr = c->record.arg[0];
    uint64_t bytes = c->record.arg[1];
    int rc = weft_gaddr_space(addr) ? fab_refuse_node(w, weft_gaddr_node(addr)) : fab_resolve(w, addr, bytes ? bytes : 1, &link);
    if (rc)
        return base_context(rc == -ECONNRESET ? rc : -EFAULT, "name '%s'", name);
    struct name **at = name_find(all, name), *n = *at;
    if (n && n->n.owner != c->node)
        return base_fail(-EEXIST, "name '%s': node %u has already published this name: choose another name", name, n->n.owner);
    if (!n && (rc = name_allowed(all, c->node, name)))
        return rc;
    if (!n) {
        n = *at = calloc(1, sizeof *n);
        if (!n)
            return base_fail(-ENOMEM, "name '%s': no memory for its entry in the table of names" BASE_MEMORY_HINT, name);
        memcpy(n->n.name, name, WEFT_NAME_BYTES);
        all->count++;
        all->own[c->node]++;
    }
    n->n.addr = addr;
    n->n.bytes = bytes;
    n->n.owner = c->node;
    name_tell(all, &n->n);
    return 0;
}

static void name_lookup(struct names *all, struct gateway_call *c, const char name[WEFT_NAME_BYTES])
{
    struct name *n = *name_find(all, name);
    if (n) {
        answer_name(c, &n->n);
    } else if (c->record.flags & WEFT_NAME_WAIT) {
        struct gateway_call **at = &all->waiting[bucket_of(name)];
        c->next = *at;
        *at = c;
    } else {
        gateway_answer(c, -ENOENT, NULL, 0, NULL, 0);
    }
}

static int name_withdraw(struct names *all, const struct gateway_call *c, const char name[WEFT_NAME_BYTES])
{
    struct name **at = name_find(all, name);
    if (!*at)
        return -ENOENT;
    if ((*at)->n.owner != c->node)
        return base_fail(-EPERM, "name '%s': only node %u, which has published this name, can withdraw it", name, (*at)->n.owner);
    name_drop(all, at);
    return 0;
}

/* Answers with a list of names. It begins at the bucket, and at the position in this bucket, that the request gives. */
static void name_list(const struct names *all, struct gateway_call *c)
{
    weft_name found[LISTED_MOST];
    uint64_t from = c->record.arg[0], most = c->record.arg[1], n = 0, next = 0;
    uint32_t place = (uint32_t)from;
    most = most < LISTED_MOST ? most : LISTED_MOST;
    for (uint64_t i = from >> 32; i < NAME_BUCKETS && !next; i++, place = 0) {
        const struct name *at = all->bucket[i];
        for (uint32_t k = 0; at && k < place; k++)
            at = at->next;
        for (; at && !next; at = at->next, place++) {
            if (n == most)
                next = i << 32 | place;
            else
                found[n++] = at->n;
        }
    }
    gateway_answer(c, most ? 0 : -EINVAL, (const uint64_t[2]){n, next}, 2, found, n * sizeof found[0]);
}

static void name_begin(void *state, struct gateway_call *c)
{
    struct names *all = state;
    char name[WEFT_NAME_BYTES];
    uint16_t kind = c->record.kind;
    if (kind != WEFT_NAME_LIST && !name_read(&c->record, name)) {
        base_fail(-EINVAL, "cannot %s a name: the name is %s; give a name of 1 to %u bytes",
                  kind == WEFT_NAME_PUBLISH    ? "publish"
                  : kind == WEFT_NAME_WITHDRAW ? "withdraw"
                                               : "look up",
                  name[0] ? "too long" : "empty", WEFT_NAME_BYTES - 1);
        gateway_answer_error(c, -EINVAL);
        return;
    }
    base_error_clear();
    switch (kind) {
    case WEFT_NAME_PUBLISH: gateway_answer_error(c, name_publish(all, c, name)); break;
    case WEFT_NAME_LOOKUP: name_lookup(all, c, name); break;
    case WEFT_NAME_WITHDRAW: gateway_answer_error(c, name_withdraw(all, c, name)); break;
    case WEFT_NAME_LIST: name_list(all, c); break;
    default: gateway_answer(c, -EINVAL, NULL, 0, NULL, 0); break;
    }
}

static void name_cancel(void *state, struct gateway_call *c)
{
    struct names *all = state;
    char name[WEFT_NAME_BYTES];
    if (name_read(&c->record, name))
        for (struct gateway_call **at = &all->waiting[bucket_of(name)]; *at; at = &(*at)->next)
            if (*at == c) {
                *at = c->next;
                break;
            }
    gateway_answer(c, -ECANCELED, NULL, 0, NULL, 0);
}

/* A node is gone: removes the names that it has published, and all names that stand for addresses in its memory. */
static void name_gone(void *state, uint32_t node)
{
    struct names *all = state;
    for (uint32_t i = 0; i < NAME_BUCKETS; i++)
        for (struct name **at = &all->bucket[i]; *at;) {
            if ((*at)->n.owner == node || weft_gaddr_node((*at)->n.addr) == node)
                name_drop(all, at);
            else
                at = &(*at)->next;
        }
}

static void name_close(void *state)
{
    struct names *all = state;
    for (uint32_t i = 0; i < NAME_BUCKETS; i++)
        while (all->bucket[i])
            name_drop(all, &all->bucket[i]);
    free(all->own);
    free(all);
}

const struct gateway_service gateway_name = {
    .name = "name",
    .number = WEFT_SERVICE_NAME,
    .open = name_open,
    .close = name_close,
    .begin = name_begin,
    .cancel = name_cancel,
    .gone = name_gone,
    .submit = gateway_name_submit,
    .told = gateway_name_told,
};
