/* SPDX-License-Identifier: MIT
 *
 * The calls of weft/file.h that do not wait (weft_file_read_start() and others). A thread of this node makes the call that waits, and then
 * completes the op. Only one such call of a handle may be under way, which bounds the queue.
 */
#include "gateway/file_handle.h"

#include <stdlib.h>
#include <string.h>

#define ASYNC_THREADS 4u

enum async_kind { ASYNC_OPEN, ASYNC_READ, ASYNC_WRITE, ASYNC_SYNC };
struct async_call {
    struct gateway_work work;
    weft_node *w;
    enum async_kind kind;
    weft_file *f;
    weft_file **out;
    void *buf;
    size_t len, *done;
    uint64_t offset;
    uint32_t node, flags;
    int status;
    weft_op *op;
    char path[]; /* for ASYNC_OPEN: the path of the file */
};
struct file_async {
    pthread_mutex_t lock;
    struct gateway_works *works; /* NULL: this node is being closed */
};

static int async_make(struct async_call *c, weft_node *w)
{
    switch (c->kind) {
    case ASYNC_OPEN: return weft_file_open(w, c->node, c->path, c->flags, c->out, WEFT_TIMEOUT_DEFAULT);
    case ASYNC_READ: return file_read(c->f, c->buf, c->len, c->offset, c->done, fab_timeout(w, WEFT_TIMEOUT_DEFAULT));
    case ASYNC_WRITE: return file_write(c->f, c->buf, c->len, c->offset, c->done, fab_timeout(w, WEFT_TIMEOUT_DEFAULT));
    default: return file_sync(c->f, WEFT_TIMEOUT_DEFAULT);
    }
}

/* Ends a call and completes its op. Releases the handle before that, because the program may use or close the handle as soon as the op is
 * complete. */
static void async_over(weft_node *w, struct async_call *c, int status)
{
    weft_op *op = c->op;
    if (c->f)
        file_unuse(c->f, true);
    free(c);
    fab_complete(op, status);
    fab_wake_here(w);
}

static struct async_call *call_of(struct gateway_work *work)
{
    return (struct async_call *)(void *)work;
}

static void async_run(struct gateway_work *work)
{
    struct async_call *c = call_of(work);
    c->status = async_make(c, c->w);
}

static void async_done(struct gateway_work *work)
{
    struct async_call *c = call_of(work);
    async_over(c->w, c, c->status);
}

static void async_drop(struct gateway_work *work)
{
    struct async_call *c = call_of(work);
    async_over(c->w, c, -ECONNRESET);
}

int file_async_open(struct gateway *g)
{
    struct file_async *all = g->file_async = calloc(1, sizeof *all);
    if (!all)
        return base_fail(-ENOMEM, "no memory for calls that use files" BASE_MEMORY_HINT);
    pthread_mutex_init(&all->lock, NULL);
    int rc = gateway_works_open(&all->works, NULL, &(struct gateway_works_how){.threads = ASYNC_THREADS, .drop = async_drop});
    return rc ? base_fail(rc, "no memory for calls that use files" BASE_MEMORY_HINT) : 0;
}

void file_async_end(struct gateway *g)
{
    struct file_async *all = g->file_async;
    if (!all)
        return;
    pthread_mutex_lock(&all->lock);
    struct gateway_works *works = all->works;
    all->works = NULL;
    pthread_mutex_unlock(&all->lock);
    gateway_works_close(works);
}

void file_async_free(struct gateway *g)
{
    if (!g->file_async)
        return;
    if (g->file_async->works)
        file_async_end(g);
    pthread_mutex_destroy(&g->file_async->lock);
    free(g->file_async);
    g->file_async = NULL;
}

/* Queues the call `c`, and takes ownership of `c`. After a failure the op is not pending, and the program may use the handle again. */
static int async_start(struct gateway *g, struct async_call *c, weft_op *op)
{
    struct file_async *all = g->file_async;
    weft_file *f = c->f;
    c->work = (struct gateway_work){.run = async_run, .done = async_done};
    c->w = g->w;
    c->op = op;
    fab_pending(op, c->node); /* do this before the call is queued: a thread may complete the op at once */
    pthread_mutex_lock(&all->lock);
    int rc = !all->works ? -ECONNRESET : gateway_work(all->works, &c->work) ? -EAGAIN : 0;
    pthread_mutex_unlock(&all->lock);
    if (!rc)
        return 0;
    fab_complete(op, rc);
    if (f)
        file_unuse(f, true);
    free(c);
    return base_fail(rc, rc == -EAGAIN ? "no thread can be started for a call that uses a file" BASE_THREAD_HINT
                                       : "this node is being closed, so it starts no more calls that use files");
}

static struct async_call *async_new(enum async_kind kind, const char *path)
{
    size_t len = path ? strlen(path) + 1 : 0;
    struct async_call *c = calloc(1, sizeof *c + len);
    if (!c) {
        base_fail(-ENOMEM, "no memory for a call that uses a file" BASE_MEMORY_HINT);
        return NULL;
    }
    c->kind = kind;
    if (path)
        memcpy(c->path, path, len);
    return c;
}

int weft_file_open_start(weft_node *w, uint32_t node, const char *path, uint32_t flags, weft_file **out, weft_op *op)
{
    *out = NULL;
    int rc = file_open_check(w, node, path, flags);
    if (rc)
        return rc;
    struct async_call *c = async_new(ASYNC_OPEN, path);
    if (!c)
        return -ENOMEM;
    c->node = node;
    c->flags = flags;
    c->out = out;
    return async_start(gateway_in(w), c, op);
}

static int start_with(weft_file *f, enum async_kind kind, void *buf, size_t len, uint64_t offset, size_t *done, weft_op *op)
{
    struct async_call *c = async_new(kind, NULL);
    if (!c)
        return -ENOMEM;
    int rc = file_claim(f);
    if (rc) {
        free(c);
        return rc;
    }
    c->f = f;
    c->node = f->node;
    c->buf = buf;
    c->len = len;
    c->offset = offset;
    c->done = done;
    return async_start(f->g, c, op);
}

int weft_file_read_start(weft_file *f, void *buf, size_t len, uint64_t offset, size_t *got, weft_op *op)
{
    *got = 0;
    return start_with(f, ASYNC_READ, buf, len, offset, got, op);
}

int weft_file_write_start(weft_file *f, const void *buf, size_t len, uint64_t offset, size_t *put, weft_op *op)
{
    *put = 0;
    int rc = file_write_check(f);
    return rc ? rc : start_with(f, ASYNC_WRITE, (void *)(uintptr_t)buf, len, offset, put, op);
}

int weft_file_sync_start(weft_file *f, weft_op *op)
{
    int rc = file_write_check(f);
    return rc ? rc : start_with(f, ASYNC_SYNC, NULL, 0, 0, NULL, op);
}
