/* SPDX-License-Identifier: MIT
 *
 * The file service at the gateway: opens, closes and pins files, and lists what is cached.
 */
#include "gateway/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gateway/record.h"

#define WAIT_LOOK_NS (100 * WEFT_MS) /* how often to try requests again that wait for room in the cache */

static void job_drop(struct gateway_work *work)
{
    struct file_job *job = (struct file_job *)(void *)work;
    struct file_open *o = job->open;
    if (o && --o->jobs == 0 && o->closed) { /* a handle that is not closed is still in the table of handles, whose end frees it */
        if (o->fd >= 0)
            close(o->fd);
        free(o);
    }
    file_job_free(job);
}

static int file_open(struct gateway_server *server, void **state)
{
    struct files *all = calloc(1, sizeof *all);
    struct gateway *g = gateway_of(server);
    if (!all)
        return base_fail(-ENOMEM, "no memory to serve files to other nodes (WEFT_SERVE=file)" BASE_MEMORY_HINT);
    *state = all;
    all->server = server;
    all->root.fd = all->notices.fd = -1;
    all->waiting_last = &all->waiting;
    all->limit = g->file_cache ? g->file_cache : g->w->pool_bytes / 4;
    if (g->file_cache && (g->file_cache < FILE_CACHE_MIN || g->file_cache > g->w->pool_bytes))
        return base_fail(-EINVAL,
                         "WEFT_FILE_CACHE: a cache of %llu bytes for files is not possible; set WEFT_FILE_CACHE to at least 4M and at most "
                         "the size of the pool (WEFT_POOL)",
                         (unsigned long long)g->file_cache);
    g->file_offers = file_cache_open(all) ? NULL : file_offers_new();
    if (!g->file_offers)
        return base_fail(-ENOMEM, "no memory to serve files to other nodes (WEFT_SERVE=file)" BASE_MEMORY_HINT);
    int rc = file_root_open(&all->root, g->file_root, g->file_offers);
    if (rc)
        return rc;
    file_watch_open(all);
    rc = gateway_works_open(&all->works, gateway_server_watches(server),
                            &(struct gateway_works_how){.threads = FILE_THREADS, .drop = job_drop});
    return rc ? base_fail(rc, "cannot start the threads that read files for other nodes: %s" BASE_THREAD_HINT, base_strerror(rc)) : 0;
}

/* --- opening --- */

/* Makes the handle. The descriptor of the job then belongs to the handle. */
static int open_make(struct files *all, struct file_job *job, uint32_t node, struct file_open **out)
{
    struct file_open *o = all->opens.used < FILE_OPEN_MAX ? calloc(1, sizeof *o) : NULL;
    if (!o)
        return all->opens.used < FILE_OPEN_MAX ? -ENOMEM : -EMFILE;
    *o = (struct file_open){.node = node, .host = job->host, .fd = -1};
    if (job->flags & WEFT_FILE_WRITE && (o->fd = fcntl(job->fd, F_DUPFD_CLOEXEC, 0)) < 0) {
        int rc = -errno;
        free(o);
        return rc;
    }
    o->body = file_body_get(all, &job->is, job->path, job->fd);
    job->fd = -1;
    if (o->body)
        file_watch(all, o->body);
    o->id = o->body ? gateway_table_add(&all->opens, o) : 0;
    if (o->body)
        file_body_opened(o->body, o);
    if (!o->id) {
        if (o->body) {
            file_open_free(all, o);
        } else {
            if (o->fd >= 0)
                close(o->fd);
            free(o);
        }
        return -ENOMEM;
    }
    *out = o;
    return 0;
}

static void open_done(struct gateway_work *work)
{
    struct file_job *job = (struct file_job *)(void *)work;
    struct files *all = job->all;
    struct file_open *o = NULL;
    struct gateway_call *c = file_job_call(job);
    int rc = job->result;
    if (c && !rc)
        rc = open_make(all, job, c->node, &o);
    if (c && rc && job->outside) {
        base_fail(rc,
                  rc == -EPERM
                      ? "%.300s: node %u serves only files that its program offers (weft_file_offer()), and only for reading, because its "
                        "WEFT_FILE_ROOT is %s"
                      : "%.300s: node %u serves only files below its WEFT_FILE_ROOT, which is %s",
                  job->path, gateway_of(all->server)->w->rank, all->root.path);
        gateway_answer_error(c, rc);
    } else if (c && rc == -EINVAL && job->fd >= 0) { /* a regular file was opened, but its size is wrong */
        base_fail(rc, "%.300s at node %u: this file does not tell its size, as most files of /proc: print it with `weft exec`", job->path,
                  gateway_of(all->server)->w->rank);
        gateway_answer_error(c, rc);
    } else if (c && rc) {
        file_answer_failed(c, rc, job->path);
    } else if (o) {
        file_answer_info(c, o, o->id);
    }
    file_job_over(job);
}

/* Copies the path of a request and adds a zero byte. If the path is invalid, answers the request and returns false. */
static bool take_path(struct gateway_call *c, char out[WEFT_FILE_PATH_MAX + 1])
{
    uint64_t len = c->record.data_bytes;
    if (!len || len > WEFT_FILE_PATH_MAX || !c->data || memchr(c->data, 0, len)) {
        base_fail(-EINVAL, "the path of the file is invalid: it must have 1 to %u bytes, none of them zero", WEFT_FILE_PATH_MAX);
        gateway_answer_error(c, -EINVAL);
        return false;
    }
    memcpy(out, c->data, len);
    out[len] = '\0';
    return true;
}

static void begin_open(struct files *all, struct gateway_call *c)
{
    uint32_t flags = c->record.flags;
    if (flags & ~WEFT_FILE_FLAGS || (flags && !(flags & WEFT_FILE_WRITE))) {
        if (flags & ~WEFT_FILE_FLAGS)
            base_fail(-EINVAL, "the request to open a file has unknown flags (%#x): leave them out", flags & ~WEFT_FILE_FLAGS);
        else
            base_fail(-EINVAL, "the request to open a file has flags (%#x) that need WEFT_FILE_WRITE as well: add this flag", flags);
        gateway_answer_error(c, -EINVAL);
        return;
    }
    struct file_job *job = file_job_new(all, FILE_TASK_OPEN, open_done);
    if (!job) {
        gateway_answer(c, -ENOMEM, NULL, 0, NULL, 0);
        return;
    }
    if (!take_path(c, job->path)) {
        file_job_free(job);
        return;
    }
    job->call = c;
    job->flags = flags;
    job->host = c->record.arg[0];
    file_job_start(all, job);
}

/* Closes a handle that its asker has closed, or whose asker is gone. */
static void open_close(struct files *all, struct file_open *o)
{
    file_leases_of(all, o);
    file_holder_closed(all, o);
    gateway_table_remove(&all->opens, o->id);
    o->closed = true;
    if (!o->jobs)
        file_open_free(all, o);
}

/* --- information about files and the cache --- */

static void check_done(struct gateway_work *work)
{
    struct file_job *job = (struct file_job *)(void *)work;
    struct gateway_call *c = file_job_call(job);
    struct file_body *b = job->body;
    if (job->result == -ESTALE)
        file_body_stale(job->all, b);
    int rc = b->stale ? -ESTALE : job->result;
    if (c && rc)
        file_answer_failed(c, rc, b->path);
    else if (c)
        file_answer_info(c, job->open, 0);
    file_job_over(job);
}

static void begin_list(struct files *all, struct gateway_call *c)
{
    struct file_body *b = file_body_next(all, c->record.arg[0]), *next = b ? file_body_next(all, b->generation + 1) : NULL;
    if (!b) {
        gateway_answer(c, -ENOENT, NULL, 0, NULL, 0);
        return;
    }
    weft_file_cached out = {.info = {.bytes = b->is.bytes,
                                     .device = b->is.device,
                                     .inode = b->is.inode,
                                     .modified_ns = b->is.modified_ns,
                                     .generation = b->generation},
                            .cached_bytes = b->cached,
                            .hits = b->hits,
                            .disk_reads = b->reads,
                            .readers = b->opens,
                            .pinned = b->pinned,
                            .stale = b->stale};
    memcpy(out.path, b->path, strlen(b->path));
    for (const struct file_piece *p = b->pieces; p; p = p->of_body)
        out.leases += p->leases;
    const uint64_t word = next ? next->generation : 0;
    gateway_answer(c, 0, &word, 1, &out, sizeof out);
}

static void answer_cache(const struct files *all, struct gateway_call *c)
{
    const weft_file_cache out = {.limit_bytes = all->limit,
                                 .cached_bytes = all->cached,
                                 .mapped_bytes = all->mapped,
                                 .pinned_bytes = all->pinned,
                                 .hits = all->hits,
                                 .disk_reads = all->reads,
                                 .disk_bytes = all->read_bytes,
                                 .dropped = all->dropped,
                                 .open_files = all->bodies,
                                 .readers = all->opens.used,
                                 .given_bytes = all->given_bytes,
                                 .passed_bytes = all->passed_bytes};
    gateway_answer(c, 0, NULL, 0, &out, sizeof out);
}

static void begin_unpin(struct files *all, struct gateway_call *c)
{
    char path[WEFT_FILE_PATH_MAX + 1];
    if (take_path(c, path))
        gateway_answer(c, file_body_unpin(all, path, NULL) ? 0 : -ENOENT, NULL, 0, NULL, 0);
}

/* --- requests --- */

static void begin_handle(struct files *all, struct file_open *o, struct gateway_call *c)
{
    struct file_job *job;
    switch (c->record.kind) {
    case FILE_LEASE: file_begin_lease(all, o, c); return;
    case FILE_HOLD: file_begin_hold(all, o, c); return;
    case FILE_WRITE: file_begin_write(all, o, c); return;
    case FILE_SYNC: file_begin_sync(all, o, c); return;
    case FILE_STAT:
        if ((job = file_job_of(all, FILE_TASK_CHECK, o, c, check_done)))
            file_job_start(all, job);
        return;
    case FILE_PIN:
        if (!o->body->stale && file_body_pin(all, o->body, true))
            gateway_answer(c, 0, NULL, 0, NULL, 0);
        else
            file_answer_failed(c, o->body->stale ? -ESTALE : -ENOBUFS, o->body->path);
        return;
    case FILE_CLOSE:
        open_close(all, o);
        gateway_answer(c, 0, NULL, 0, NULL, 0);
        (void)file_lease_again(all);
        return;
    default: gateway_answer(c, -EINVAL, NULL, 0, NULL, 0);
    }
}

static void begin_return(struct files *all, struct gateway_call *c)
{
    struct file_lease *l = gateway_table_find(&all->leases, c->record.arg[0]);
    if (l && l->open->node == c->node)
        file_lease_end(all, l);
    gateway_answer(c, 0, NULL, 0, NULL, 0);
    (void)file_lease_again(all);
}

static void file_begin(void *state, struct gateway_call *c)
{
    struct files *all = state;
    struct file_open *o = gateway_table_find(&all->opens, c->record.handle);
    switch (c->record.kind) {
    case FILE_OPEN: begin_open(all, c); return;
    case FILE_LIST: begin_list(all, c); return;
    case FILE_CACHE: answer_cache(all, c); return;
    case FILE_UNPIN: begin_unpin(all, c); return;
    case FILE_RETURN: begin_return(all, c); return;
    case FILE_DROP: file_begin_drop(all, c); return;
    default:
        if (o && o->node == c->node)
            begin_handle(all, o, c);
        else
            gateway_answer(c, -EBADF, NULL, 0, NULL, 0);
    }
}

static void file_cancel(void *state, struct gateway_call *c)
{
    struct files *all = state;
    struct file_job *job = all->jobs;
    while (job && job->call != c)
        job = job->next;
    if (job)
        gateway_answer(file_job_call(job), -ECANCELED, NULL, 0, NULL, 0);
    else if (!file_lease_cancel(all, c))
        gateway_answer(c, -ECANCELED, NULL, 0, NULL, 0);
}

static void file_gone(void *state, uint32_t node)
{
    struct files *all = state;
    uint32_t at = 0;
    for (struct file_open *o; (o = gateway_table_next(&all->opens, &at));)
        if (o->node == node)
            open_close(all, o);
    file_holder_gone(all, NULL, node);
    (void)file_lease_again(all);
}

static int64_t file_tick(void *state, int64_t now)
{
    struct files *all = state;
    (void)now;
    int64_t next = file_leases_over(all);
    if (file_lease_again(all) && next > WAIT_LOOK_NS)
        next = WAIT_LOOK_NS;
    int64_t delayed = file_lease_delayed(all);
    return delayed < next ? delayed : next;
}

static void file_close(void *state)
{
    struct files *all = state;
    uint32_t at = 0;
    gateway_works_close(all->works);
    file_watch_close(all);
    for (struct file_open *o; (o = gateway_table_next(&all->opens, &at));) {
        if (o->fd >= 0)
            close(o->fd);
        free(o);
    }
    gateway_table_free(&all->opens);
    file_cache_free(all);
    gateway_of(all->server)->file_offers = NULL;
    file_root_close(&all->root);
    free(all);
}

const struct gateway_service gateway_file = {
    .name = "file",
    .number = WEFT_SERVICE_FILE,
    .open = file_open,
    .close = file_close,
    .begin = file_begin,
    .cancel = file_cancel,
    .gone = file_gone,
    .tick = file_tick,
    .submit = gateway_file_submit,
    .told = gateway_file_told,
    .late = gateway_file_late,
    .valid = gateway_file_valid,
};
