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

/* Answers a request for a piece that is in the cache. */
static void lease_answer(struct files *all, struct gateway_call *c, struct file_piece *p)
{
    uint64_t id;
    struct file_open *o = open_of(all, c);
    int rc = o ? file_lease_new(all, o, p, c->record.flags & FILE_MAPS, &id) : -EBADF;
    if (rc)
        file_answer_failed(c, rc, p->body->path);
    else
        gateway_answer(c, 0, (const uint64_t[3]){p->at, p->bytes, id}, 3, NULL, 0);
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
    struct file_piece *p = rc ? NULL : file_piece_find(all, o->body, c->record.arg[0]);
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
        if (l && l->open == o)
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

bool file_lease_again(struct files *all)
{
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
            found = take_from(&p->waiting, c);
    if (found)
        gateway_answer(c, -ECANCELED, NULL, 0, NULL, 0);
    return found;
}
