/* SPDX-License-Identifier: MIT
 *
 * Holders: nodes of other hosts that have a copy of a piece in their pools. If nodes of several hosts read a file, the gateway sends each
 * piece about once: the second node gets it from the first one, the third one from the second one, and so on. Each copy is given once
 * before any is given twice, so no link carries a piece much more often than others.
 *
 * A holder promises nothing. It may use the memory for something else at any time, and then reports this. So an
 * asker that gets a piece from a holder compares the bytes with the hash that the gateway has sent.
 */
#include "gateway/file.h"

#include <stdlib.h>

bool file_holder_choose(const struct file_piece *p, uint64_t host, struct file_holder **out)
{
    struct file_holder *best = NULL;
    uint32_t least = p->given;
    for (struct file_holder *h = p->holders; h; h = h->next) { /* the newest one first: it has probably given least */
        if (h->host == host) {
            *out = h;
            return true;
        }
        if (h->given < least || (!best && h->given == least)) {
            best = h;
            least = h->given;
        }
    }
    *out = best;
    return !least || !p->under_way;
}

void file_holder_add(struct file_piece *p, uint32_t node, uint64_t host, weft_gaddr at)
{
    unsigned n = 0;
    (void)file_holder_drop(p, node);
    for (struct file_holder **last = &p->holders; *last; last = &(*last)->next)
        if (++n == FILE_HOLDERS_MAX) { /* the oldest one */
            free(*last);
            *last = NULL;
            break;
        }
    struct file_holder *h = malloc(sizeof *h);
    if (!h)
        return; /* others get the piece from elsewhere */
    *h = (struct file_holder){.next = p->holders, .node = node, .host = host, .at = at};
    p->holders = h;
}

bool file_holder_drop(struct file_piece *p, uint32_t node)
{
    for (struct file_holder **at = &p->holders, *h; (h = *at); at = &h->next)
        if (h->node == node) {
            *at = h->next;
            free(h);
            return true;
        }
    return false;
}

void file_holders_free(struct file_piece *p)
{
    while (p->holders)
        (void)file_holder_drop(p, p->holders->node);
}
