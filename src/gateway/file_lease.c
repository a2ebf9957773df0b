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

static bool has_piece(const struct file_body *b, uint64_t index)
{
    return index < file_pieces(b->is.bytes);
}

/* The request waits until another node has a copy of the piece. */
static void lease_delay(struct files *all, struct gateway_call *c, struct file_piece *p)
{
    if (!p->delayed) {
        p->delayed_until = base_deadline(FILE_PATIENCE_NS);
        p->next_delayed = all->delayed;
        all->delayed = p;
    }
    c->next = p->delayed;
    p->delayed = c;
}

static uint64_t hash_of(const struct files *all, struct file_piece *p)
{
    if (!p->hash) /* the piece was read for nodes of this host, which need no hash */
        p->hash = file_hash(weft_ptr(gateway_of(all->server)->w, p->at, p->bytes), p->bytes);
    return p->hash;
}

/* Answers a node of another host, which can use a copy at any node. */
static void lease_answer_far(struct files *all, struct gateway_call *c, struct file_piece *p, struct file_lease *l,
                             struct file_holder *from)
{
    l->keeps = p->body->several;
    l->from = from ? from->node : gateway_of(all->server)->w->rank;
    p->under_way += l->keeps;
    (*(from ? &from->given : &p->given))++;
    *(from ? &all->passed_bytes : &all->given_bytes) += p->bytes;
    gateway_answer(c, 0, (const uint64_t[6]){from ? from->at : p->at, p->bytes, l->id, hash_of(all, p), l->keeps, p->body->generation}, 6,
                   NULL, 0);
}

/* Answers a request for a piece that is in the cache, or lets it wait for a copy at another node. */
static void lease_answer(struct files *all, struct gateway_call *c, struct file_piece *p)
{
    struct file_lease *l;
    struct file_holder *from = NULL;
    struct file_open *o = open_of(all, c);
    bool far = o && o->host && c->record.flags & FILE_KEEPS;
    if (far && p->body->several && !(c->record.flags & FILE_HERE) && !file_holder_choose(p, o->host, &from)) {
        lease_delay(all, c, p);
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
    struct gateway_call *c = p->waiting;
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

/* While a file is read from the cache, compares it with the disk once per FILE_CHECK_NS, so that readers learn of a change. Even without
 * this check, readers never get bytes of two generations. */
static void recheck(struct files *all, struct file_body *b)
{
    if (base_now_ns() - b->checked >= FILE_CHECK_NS)
        file_recheck(all, b);
}

static void enlarge_done(struct gateway_work *work)
{
    struct file_job *job = (struct file_job *)(void *)work;
    job->all->enlarging = false;
    file_job_over(job);
}

/* Puts a piece that is read often into huge pages, one at a time. The piece may be dropped meanwhile: its memory stays as it is. */
static void enlarge(struct files *all, struct file_piece *p)
{
    struct mem_pool *pool = gateway_of(all->server)->w->pool;
    if (++p->hits < FILE_HOT || all->enlarging || !mem_can_enlarge(pool, weft_gaddr_offset(p->at), p->bytes))
        return;
    struct file_job *job = file_job_new(all, FILE_TASK_ENLARGE, enlarge_done);
    if (!job)
        return;
    all->enlarging = true;
    job->pool = pool;
    job->place = weft_gaddr_offset(p->at);
    job->bytes = p->bytes;
    file_job_start(all, job);
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
    /* a write may have come while the request waited */
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

void file_begin_lease(struct files *all, struct file_open *o, struct gateway_call *c)
{
    const weft_request *r = &c->record;
    for (unsigned i = 0; i < FILE_ENDS; i++) {
        struct file_lease *l = gateway_table_find(&all->leases, r->arg[FILE_ENDS_AT + i]);
        if (!l || l->open != o)
            continue;
        if (r->flags & FILE_HERE && l->piece->index == r->arg[0] && l->from != gateway_of(all->server)->w->rank)
            file_holder_gone(all, l->piece->body, l->from); /* its copies are probably all gone, or it does not answer */
        file_lease_end(all, l);
    }
    if (!has_piece(o->body, r->arg[0])) {
        base_fail(-EINVAL, "%.300s at node %u ends before its MiB number %llu (counted from 0): read within the file's size", o->body->path,
                  gateway_of(all->server)->w->rank, (unsigned long long)r->arg[0]);
        gateway_answer_error(c, -EINVAL);
        return;
    }
    bool ahead = r->flags & FILE_AHEAD;
    bool full = ahead ? all->leased > all->limit / 2 : all->waiting != NULL; /* requests that wait already come first */
    if (ahead && r->flags & FILE_MAPS) /* pieces that are mapped in advance must leave room for pieces that are mapped now */
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

/* A lease of this node. NULL: there is none with this number, or its handle is closed. */
static struct file_lease *lease_of(const struct files *all, const struct gateway_call *c)
{
    struct file_lease *l = gateway_table_find(&all->leases, c->record.arg[0]);
    return l && l->open->node == c->node ? l : NULL;
}

void file_begin_hold(struct files *all, struct gateway_call *c)
{
    struct file_lease *l = lease_of(all, c);
    weft_gaddr at = c->record.arg[1];
    if (l && l->keeps && weft_gaddr_node(at) == c->node && weft_gaddr_space(at) == 0) {
        l->piece->moved = true;
        file_holder_add(l->piece, c->node, l->open->host, at);
    }
    if (l)
        file_lease_end(all, l);
    gateway_answer(c, 0, NULL, 0, NULL, 0);
    (void)file_lease_again(all);
}

void file_begin_drop(struct files *all, struct gateway_call *c)
{
    struct file_piece *p = file_piece_find(all, c->record.arg[0], c->record.arg[1]);
    if (p && file_holder_drop(p, c->node))
        p->moved = true;
    gateway_answer(c, 0, NULL, 0, NULL, 0);
}

/* The askers that are getting the piece are slow: nobody waits for them any more. */
static void lose_patience(struct files *all, const struct file_piece *p)
{
    uint32_t at = 0;
    for (struct file_lease *l; p->under_way && (l = gateway_table_next(&all->leases, &at));)
        if (l->piece == p && l->keeps) {
            l->keeps = false;
            l->piece->under_way--;
        }
}

int64_t file_lease_delayed(struct files *all)
{
    int64_t now = base_now_ns(), next = INT64_MAX;
    struct file_piece *list = all->delayed;
    all->delayed = NULL;
    for (struct file_piece *p; (p = list);) {
        list = p->next_delayed;
        struct gateway_call *c = p->delayed;
        bool late = now >= p->delayed_until;
        if (!c || late || p->moved) {
            if (late)
                lose_patience(all, p);
            p->moved = false;
            p->delayed = NULL;
            for (struct gateway_call *n; c; c = n) { /* a request that still has to wait is added to the lists again */
                n = c->next;
                if (p->body->stale)
                    file_answer_failed(c, -ESTALE, p->body->path);
                else
                    lease_answer(all, c, p);
            }
            file_piece_rest(all, p);
        } else {
            p->next_delayed = all->delayed;
            all->delayed = p;
        }
    }
    for (struct file_piece *p = all->delayed; p; p = p->next_delayed)
        next = p->delayed_until - now < next ? p->delayed_until - now : next;
    return next;
}

bool file_lease_again(struct files *all)
{
    if (all->delayed)
        (void)file_lease_delayed(all);
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

bool file_lease_cancel(struct files *all, struct gateway_call *c)
{
    bool found = take_from(&all->waiting, c);
    all->waiting_last = &all->waiting;
    while (*all->waiting_last)
        all->waiting_last = &(*all->waiting_last)->next;
    for (uint32_t i = 0; i < FILE_BUCKETS && !found; i++)
        for (struct file_piece *p = all->piece[i]; p && !found; p = p->hashed)
            found = take_from(&p->waiting, c) || take_from(&p->delayed, c);
    (void)file_lease_delayed(all); /* now, because a piece without such requests may be dropped at any time */
    if (found)
        gateway_answer(c, -ECANCELED, NULL, 0, NULL, 0);
    return found;
}
