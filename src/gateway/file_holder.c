/* SPDX-License-Identifier: MIT
 *
 * Holders: nodes of other hosts that have a copy of a piece in their pools, or are getting one. If nodes of several hosts read a file, the
 * gateway sends each piece about once: the second node gets it from the first one, the third one from the second one, and so on. The
 * gateway sends the next asker to the copy to which it has sent the fewest askers. While a node is getting a copy, others wait for it, but
 * not if it takes much longer than earlier pieces (struct file_pace).
 *
 * A holder may use the memory for something else at any time. So an asker that gets a piece from a holder compares the bytes with the hash
 * that the gateway has sent.
 */
#include "gateway/file.h"

#include <stdlib.h>

/* a node begins no get if its pieces under way take longer than this, unless they are fewer than FILE_GETS_LEAST */
#define QUEUE_NS    (8 * WEFT_MS)
#define GAP_MOST_NS (20 * WEFT_MS) /* after a longer gap between two pieces, the program has probably paused */

/* --- how fast pieces arrive --- */

void file_pace_came(struct file_pace *p, int64_t since, int64_t now)
{
    int64_t took = now - since, before = p->came > since ? p->came : since;
    int64_t gap = now - before < GAP_MOST_NS ? now - before : GAP_MOST_NS;
    p->gap = p->gap ? p->gap + (gap - p->gap) / 4 : gap;
    p->took = took > p->took ? took : p->took - (p->took - took) / 4;
    p->came = now;
}

int64_t file_pace_until(const struct file_pace *p, int64_t since, int64_t least)
{
    /* FILE_LEASE_NS: no piece has arrived yet, and the link may be slow */
    int64_t patience = p->came ? FILE_PACE_TIMES * p->took : FILE_LEASE_NS;
    patience = patience < FILE_PATIENCE_MAX ? patience : FILE_PATIENCE_MAX;
    patience = patience > least ? patience : least;
    int64_t last = since + FILE_GETS_MAX * patience; /* the limit even if other pieces arrive all the time */
    int64_t until = (since > p->came ? since : p->came) + patience;
    return until < last ? until : last;
}

/* Messages wait behind the bytes that a node gets: messages to this node, and also messages from it, because their confirmations take the
 * same way. With many bytes under way over a slow link, the node's requests and its reports about copies would be late, and other nodes
 * would wait for them. So a node gets little more at a time than fills the network. */
bool file_pace_may_get(const struct file_pace *p, unsigned gets)
{
    return gets < FILE_GETS_LEAST || (p->gap && gets * p->gap < QUEUE_NS);
}

/* --- holders of a piece --- */

void file_piece_moved(struct files *all, struct file_piece *p)
{
    if (!p->delayed || p->moved)
        return;
    p->moved = true;
    p->next_moved = all->moved;
    all->moved = p;
}

static void holder_free(struct files *all, struct file_holder **at)
{
    struct file_holder *h = *at;
    *at = h->next;
    if (h->of_node)
        h->of_node->of_node_at = h->of_node_at;
    *h->of_node_at = h->of_node;
    file_piece_moved(all, h->piece);
    free(h);
}

static struct file_holder **holder_of(struct file_piece *p, uint32_t node)
{
    struct file_holder **at = &p->holders;
    while (*at && (*at)->node != node)
        at = &(*at)->next;
    return at;
}

/* Adds an entry, and removes the oldest one if there are too many. Returns NULL if there is no memory. */
static struct file_holder *holder_new(struct files *all, struct file_piece *p, const struct file_open *o)
{
    unsigned n = 0;
    for (struct file_holder **last = &p->holders; *last; last = &(*last)->next)
        if (++n == FILE_HOLDERS_MAX) {
            holder_free(all, last);
            break;
        }
    struct file_holder *h = malloc(sizeof *h), **of_node = &all->holders[o->node];
    if (!h)
        return NULL;
    *h = (struct file_holder){
        .next = p->holders, .of_node = *of_node, .of_node_at = of_node, .piece = p, .node = o->node, .host = o->host, .at = WEFT_NULL};
    if (h->of_node)
        h->of_node->of_node_at = &h->of_node;
    return *of_node = p->holders = h;
}

bool file_holder_gets(struct files *all, struct file_piece *p, const struct file_open *o, int64_t now)
{
    struct file_holder *h = *holder_of(p, o->node);
    if (!h)
        h = holder_new(all, p, o);
    if (!h || h->at) /* the node has a copy already */
        return false;
    h->open = o->id;
    h->since = now;
    return true;
}

void file_holder_has(struct files *all, struct file_piece *p, struct file_open *o, weft_gaddr at, int64_t now)
{
    struct file_holder *h = *holder_of(p, o->node);
    if (h && !h->at)
        file_pace_came(&o->pace, h->since, now);
    if (!h)
        h = holder_new(all, p, o);
    if (h)
        h->at = at;
    file_piece_moved(all, p);
}

void file_holder_left(struct files *all, struct file_piece *p, const struct file_open *o)
{
    struct file_holder **at = holder_of(p, o->node);
    if (*at && !(*at)->at && (*at)->open == o->id)
        holder_free(all, at);
}

bool file_holder_drop(struct files *all, struct file_piece *p, uint32_t node)
{
    struct file_holder **at = holder_of(p, node);
    bool found = *at;
    if (found)
        holder_free(all, at);
    return found;
}

void file_holder_gone(struct files *all, const struct file_body *b, uint32_t node)
{
    for (struct file_holder *h = all->holders[node], *next; h; h = next) {
        next = h->of_node;
        if (!b || h->piece->body == b)
            (void)file_holder_drop(all, h->piece, node);
    }
}

void file_holder_closed(struct files *all, const struct file_open *o)
{
    for (struct file_holder *h = all->holders[o->node], *next; h; h = next) {
        next = h->of_node;
        if (!h->at && h->open == o->id)
            (void)file_holder_drop(all, h->piece, o->node);
    }
}

void file_holders_free(struct files *all, struct file_piece *p)
{
    while (p->holders)
        holder_free(all, &p->holders);
}

/* Until when other nodes wait for the copy that this holder is getting. */
static int64_t holder_until(const struct files *all, const struct file_holder *h, int64_t patience)
{
    const struct file_open *o = gateway_table_find(&all->opens, h->open);
    return o ? file_pace_until(&o->pace, h->since, patience) : INT64_MIN;
}

int64_t file_holder_choose(const struct files *all, const struct file_piece *p, const struct file_open *o, int64_t now, int64_t patience,
                           struct file_holder **out)
{
    struct file_holder *best = NULL;
    uint32_t least = p->given;
    int64_t until = INT64_MAX;
    for (struct file_holder *h = p->holders; h; h = h->next) { /* begins with the newest copy, which was probably given least often */
        if (h->at && h->host == o->host) {
            *out = h;
            return 0;
        }
        int64_t comes = h->at || h->node == o->node ? INT64_MIN : holder_until(all, h, patience);
        if (comes > now)
            until = comes < until ? comes : until;
        if (h->at && (h->given < least || (!best && h->given == least))) {
            best = h;
            least = h->given;
        }
    }
    *out = best;
    return !least || until == INT64_MAX ? 0 : until;
}
