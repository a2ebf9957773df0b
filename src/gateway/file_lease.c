/* SPDX-License-Identifier: MIT
 *
 * The file service's requests for pieces. If the piece is being read, the request waits in the piece's list. If the cache has no room for
 * the piece, the request waits in a list of the service until a lease ends.
 */
#include "gateway/file.h"

#include <stdlib.h>

static struct file_open *open_of(const struct files *all, const struct gateway_call *c)
{
    struct file_open *o = gateway_table_find(&all->opens, c->record.handle);
    return o && o->node == c->node ? o : NULL;
}

static int64_t patience_of(const struct files *all)
{
    return atomic_load_explicit(&gateway_of(all->server)->file_patience, memory_order_relaxed);
}

static bool has_piece(const struct file_body *b, uint64_t index)
{
    return index < file_pieces(b->is.bytes);
}

/* Lets the request wait until another node has a copy of the piece. */
static void lease_delay(struct files *all, struct gateway_call *c, struct file_piece *p, int64_t until)
{
    file_piece_wanted(all, p);
    if (!p->delayed) {
        p->delayed_until = until;
        p->next_delayed = all->delayed;
        p->at_delayed = &all->delayed;
        if (p->next_delayed)
            p->next_delayed->at_delayed = &p->next_delayed;
        all->delayed = p;
    }
    p->delayed_until = until < p->delayed_until ? until : p->delayed_until;
    all->look = until < all->look ? until : all->look;
    c->next = p->delayed;
    p->delayed = c;
}

static uint64_t hash_of(const struct files *all, struct file_piece *p)
{
    if (!p->hash) /* not computed yet: only nodes of other hosts need the hash */
        p->hash = file_hash(weft_ptr(gateway_of(all->server)->w, p->at, p->bytes), p->bytes);
    return p->hash;
}

/* Answers the request of a node of another host. The answer may name a copy at any node. */
static void lease_answer_far(struct files *all, struct gateway_call *c, struct file_piece *p, struct file_lease *l,
                             struct file_holder *from)
{
    bool several = p->body->several;
    weft_gaddr at = from ? from->at : p->at;
    (*(from ? &from->given : &p->given))++;
    *(from ? &all->passed_bytes : &all->given_bytes) += p->bytes;
    l->gets = several && !(c->record.flags & FILE_LATER) && file_holder_gets(all, p, l->open, base_now_ns()); /* this may remove `from` */
    gateway_answer(c, 0, (const uint64_t[6]){at, p->bytes, l->id, hash_of(all, p), several, p->body->generation}, 6, NULL, 0);
}

/* Reverses a list of requests, because new requests are added in front. Otherwise askers would overtake each other with each piece. */
static struct gateway_call *in_order(struct gateway_call *last)
{
    struct gateway_call *first = NULL;
    for (struct gateway_call *c; (c = last);) {
        last = c->next;
        c->next = first;
        first = c;
    }
    return first;
}

/* Answers a request for a piece that is in the cache, or lets the request wait for a copy at another node. */
static void lease_answer(struct files *all, struct gateway_call *c, struct file_piece *p)
{
    struct file_lease *l;
    struct file_holder *from = NULL;
    struct file_open *o = open_of(all, c);
    bool far = o && o->host && c->record.flags & FILE_KEEPS && (p->body->nodes || !(c->record.flags & FILE_STRAIGHT));
    int64_t until = 0;
    if (far && p->body->several && !(c->record.flags & FILE_HERE))
        until = file_holder_choose(all, p, o, base_now_ns(), patience_of(all), &from);
    if (until) {
        lease_delay(all, c, p, until);
        return;
    }
    int rc = o ? file_lease_new(all, o, p, c->record.flags & FILE_MAPS, &l) : -EBADF;
    if (rc)
        file_answer_failed(c, rc, p->body->path);
    else if (far)
        lease_answer_far(all, c, p, l, from);
    else
        gateway_answer(c, 0, (const uint64_t[3]){p->at, p->bytes, l->id}, 3, NULL, 0);
}

static void read_done(struct gateway_work *work)
{
    struct file_job *job = (struct file_job *)(void *)work;
    struct files *all = job->all;
    struct file_piece *p = job->piece;
    struct file_body *b = job->body;
    struct gateway_call *c = in_order(p->waiting);
    int rc = job->result;
    if (rc == -ESTALE)
        file_body_stale(all, b);
    rc = b->stale ? -ESTALE : rc;
    p->waiting = NULL;
    p->ready = true;
    p->hash = job->hash;
    for (struct gateway_call *next; c; c = next) {
        next = c->next;
        if (rc)
            file_answer_failed(c, rc, b->path);
        else
            lease_answer(all, c, p);
    }
    if (rc)
        file_piece_drop(all, p);
    else
        file_piece_rest(all, p);
    file_job_over(job);
    (void)file_lease_again(all);
}

/* While a file is read from the cache, compares it with the disk once per FILE_CHECK_NS, so that readers learn of a change. */
static void recheck(struct files *all, struct file_body *b)
{
    if (base_now_ns() - b->checked >= FILE_CHECK_NS)
        file_recheck(all, b);
}

/* Puts a piece that is read often into huge pages. */
static void enlarge(struct files *all, struct file_piece *p)
{
    struct mem_pool *pool = gateway_of(all->server)->w->pool;
    if (++p->hits >= FILE_HOT && mem_can_enlarge(pool, weft_gaddr_offset(p->at), p->bytes))
        mem_enlarge(pool, weft_gaddr_offset(p->at), p->bytes);
}

static int piece_read(struct files *all, struct file_open *o, struct gateway_call *c)
{
    struct file_piece *p;
    struct file_body *b = o->body;
    struct file_job *job = file_job_new(all, FILE_TASK_READ, read_done);
    int rc = job ? file_piece_new(all, b, c->record.arg[0], &p) : -ENOMEM;
    if (rc) {
        free(job);
        return rc;
    }
    all->reads++;
    all->read_bytes += p->bytes;
    b->reads++;
    b->checked = base_now_ns();
    b->jobs++;
    job->body = b;
    job->piece = p;
    job->fd = b->fd;
    job->is = b->is;
    job->memory = weft_ptr(gateway_of(all->server)->w, p->at, p->bytes);
    job->pool = gateway_of(all->server)->w->pool;
    job->place = weft_gaddr_offset(p->at);
    job->offset = p->index * WEFT_FILE_PIECE;
    job->bytes = p->bytes;
    job->hashes = b->far != 0;
    c->next = NULL;
    p->waiting = c;
    file_job_start(all, job);
    return 0;
}

/* Returns -EAGAIN if the cache has no room now. Otherwise the request was answered or waits in its piece's list. */
static int lease_try(struct files *all, struct gateway_call *c)
{
    struct file_open *o = open_of(all, c);
    /* a write may have changed the file while the request waited */
    int rc = !o ? -EBADF : o->body->stale || !has_piece(o->body, c->record.arg[0]) ? -ESTALE : 0;
    struct file_piece *p = rc ? NULL : file_piece_find(all, o->body->generation, c->record.arg[0]);
    if (p) {
        all->hits++;
        o->body->hits++;
    }
    if (p && p->ready) {
        struct file_body *b = p->body;
        enlarge(all, p);
        lease_answer(all, c, p);
        recheck(all, b);
        return 0;
    }
    if (p) {
        c->next = p->waiting;
        p->waiting = c;
        return 0;
    }
    if (!rc)
        rc = piece_read(all, o, c);
    if (rc && rc != -EAGAIN)
        file_answer_failed(c, rc, o ? o->body->path : "a file");
    return rc == -EAGAIN ? rc : 0;
}

/* The asker has got wrong bytes from another node, so that node's copy of this piece counts as lost. If the node has not answered at all
 * (FILE_SILENT), all its copies count as lost. */
static void copy_lost(struct files *all, const struct file_body *b, const weft_request *r)
{
    uint64_t node = r->arg[FILE_LOST_AT] - 1;
    if (node >= gateway_of(all->server)->w->room)
        return;
    struct file_piece *p = file_piece_find(all, b->generation, r->arg[0]);
    if (r->flags & FILE_SILENT)
        file_holder_gone(all, b, (uint32_t)node);
    else if (p)
        (void)file_holder_drop(all, p, (uint32_t)node);
}

void file_begin_lease(struct files *all, struct file_open *o, struct gateway_call *c)
{
    const weft_request *r = &c->record;
    for (unsigned i = 0; i < FILE_ENDS; i++) {
        struct file_lease *l = gateway_table_find(&all->leases, r->arg[FILE_ENDS_AT + i]);
        if (!l || l->open != o)
            continue;
        file_lease_end(all, l);
    }
    if (r->flags & FILE_HERE && r->arg[FILE_LOST_AT])
        copy_lost(all, o->body, r);
    if (!has_piece(o->body, r->arg[0])) {
        base_fail(-EINVAL, "%.300s at node %u has no bytes from offset %llu MiB on: read within the file's size", o->body->path,
                  gateway_of(all->server)->w->rank, (unsigned long long)r->arg[0]);
        gateway_answer_error(c, -EINVAL);
        return;
    }
    bool ahead = r->flags & FILE_AHEAD;
    bool full = ahead ? all->leased > all->limit / 2 : all->waiting != NULL; /* earlier requests that wait for room are answered first */
    if (ahead && r->flags & FILE_MAPS)                                       /* leave room for pieces that are mapped now */
        full = full || all->mapped + all->pinned + WEFT_FILE_PIECE > all->limit / 4;
    int rc = full ? -EAGAIN : lease_try(all, c);
    if (rc == -EAGAIN && ahead) {
        gateway_answer(c, rc, NULL, 0, NULL, 0);
    } else if (rc == -EAGAIN) {
        c->next = NULL;
        *all->waiting_last = c;
        all->waiting_last = &c->next;
    }
    (void)file_lease_again(all);
}

/* --- copies at other nodes --- */

/* The asker's lease that the request names. Returns NULL if the asker has no such lease, or if the lease's handle is closed. */
static struct file_lease *lease_of(const struct files *all, const struct gateway_call *c)
{
    struct file_lease *l = gateway_table_find(&all->leases, c->record.arg[0]);
    return l && l->open->node == c->node ? l : NULL;
}

void file_begin_hold(struct files *all, struct file_open *o, struct gateway_call *c)
{
    const uint64_t *arg = c->record.arg;
    struct file_lease *l = lease_of(all, c);
    struct file_piece *p = file_piece_find(all, arg[2], arg[3]);
    weft_gaddr at = arg[1];
    if (p && p->body == o->body && o->host && at && weft_gaddr_node(at) == c->node && weft_gaddr_space(at) == 0)
        file_holder_has(all, p, o, at, base_now_ns());
    if (l)
        file_lease_end(all, l);
    gateway_answer(c, 0, NULL, 0, NULL, 0);
    (void)file_lease_again(all);
}

void file_begin_drop(struct files *all, struct gateway_call *c)
{
    struct file_piece *p = file_piece_find(all, c->record.arg[0], c->record.arg[1]);
    if (p)
        (void)file_holder_drop(all, p, c->node);
    gateway_answer(c, 0, NULL, 0, NULL, 0);
}

/* Answers the requests that wait for a copy of the piece, or lets them wait again. */
static void delayed_look(struct files *all, struct file_piece *p)
{
    if (p->next_delayed) /* the piece is always in the list of pieces with delayed requests here */
        p->next_delayed->at_delayed = p->at_delayed;
    *p->at_delayed = p->next_delayed;
    struct gateway_call *first = in_order(p->delayed);
    p->delayed = NULL;
    for (struct gateway_call *c; (c = first);) {
        first = c->next;
        if (p->body->stale)
            file_answer_failed(c, -ESTALE, p->body->path);
        else
            lease_answer(all, c, p);
    }
    file_piece_rest(all, p);
}

static void moved_look(struct files *all)
{
    for (struct file_piece *p; (p = all->moved);) {
        all->moved = p->next_moved;
        p->moved = false;
        delayed_look(all, p);
    }
}

int64_t file_lease_delayed(struct files *all)
{
    int64_t now = base_now_ns();
    if (now >= all->look) {
        all->look = INT64_MAX;
        for (struct file_piece *p = all->delayed; p; p = p->next_delayed)
            if (now >= p->delayed_until)
                file_piece_moved(all, p);
            else if (p->delayed_until < all->look)
                all->look = p->delayed_until;
        moved_look(all);
    }
    return all->look == INT64_MAX ? INT64_MAX : all->look - now;
}

bool file_lease_again(struct files *all)
{
    moved_look(all);
    for (struct gateway_call *c; (c = all->waiting);) {
        all->waiting = c->next;
        if (!all->waiting)
            all->waiting_last = &all->waiting;
        if (lease_try(all, c) == 0)
            continue;
        c->next = all->waiting;
        all->waiting = c;
        if (!c->next)
            all->waiting_last = &c->next;
        return true;
    }
    return false;
}

static bool take_from(struct gateway_call **list, const struct gateway_call *c)
{
    for (; *list; list = &(*list)->next)
        if (*list == c) {
            *list = c->next;
            return true;
        }
    return false;
}

/* Takes the request out of the lists of requests that wait for the piece. Returns false if the request is in neither list. */
static bool take_from_piece(struct files *all, struct file_piece *p, const struct gateway_call *c)
{
    if (!p || take_from(&p->waiting, c))
        return p;
    /* called before the request is removed, so that moved_look() takes the piece out of files.delayed */
    file_piece_moved(all, p);
    return take_from(&p->delayed, c);
}

bool file_lease_cancel(struct files *all, struct gateway_call *c)
{
    const struct file_open *o = open_of(all, c);
    bool found = take_from(&all->waiting, c);
    all->waiting_last = &all->waiting;
    while (*all->waiting_last)
        all->waiting_last = &(*all->waiting_last)->next;
    if (!found && o)
        found = take_from_piece(all, file_piece_find(all, o->body->generation, c->record.arg[0]), c);
    /* search all pieces, because the handle may be closed or may have moved to another generation */
    for (uint32_t i = 0; i < all->buckets && !found; i++)
        for (struct file_piece *p = all->piece[i]; p && !found; p = p->hashed)
            found = take_from_piece(all, p, c);
    moved_look(all); /* call this now, because a piece without requests may be dropped */
    if (found)
        gateway_answer(c, -ECANCELED, NULL, 0, NULL, 0);
    return found;
}
