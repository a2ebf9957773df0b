/* SPDX-License-Identifier: MIT
 *
 * The file service's jobs on threads, and the answers to requests. While a job runs, its file stays open and its handle is not freed.
 */
#include "gateway/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct file_job *file_job_of(struct files *all, enum file_task task, struct file_open *o, struct gateway_call *c,
                             void (*done)(struct gateway_work *work))
{
    struct file_job *job = file_job_new(all, task, done);
    if (!job) {
        gateway_answer(c, -ENOMEM, NULL, 0, NULL, 0);
        return NULL;
    }
    job->call = c;
    job->open = o;
    job->body = o->body;
    job->fd = o->fd >= 0 ? o->fd : o->body->fd;
    job->is = o->body->is;
    o->jobs++;
    o->body->jobs++;
    return job;
}

void file_job_start(struct files *all, struct file_job *job)
{
    job->at_next = &all->jobs;
    job->next = all->jobs;
    if (job->next)
        job->next->at_next = &job->next;
    all->jobs = job;
    int rc = gateway_work(all->works, &job->work); /* from here on another thread writes to the job */
    if (!rc)
        return;
    job->result = rc;
    gateway_work_skip(all->works, &job->work); /* queues done() instead of calling it here, because done() starts other jobs */
}

struct gateway_call *file_job_call(struct file_job *job)
{
    struct gateway_call *c = job->call;
    job->call = NULL;
    return c;
}

void file_job_over(struct file_job *job)
{
    struct files *all = job->all;
    if (job->next)
        job->next->at_next = job->at_next;
    *job->at_next = job->next;
    if (job->body) {
        job->body->jobs--;
        file_body_leave(all, job->body);
    }
    if (job->open && --job->open->jobs == 0 && job->open->closed)
        file_open_free(all, job->open);
    file_job_free(job);
}

void file_open_free(struct files *all, struct file_open *o)
{
    file_body_closed(all, o->body, o);
    if (o->fd >= 0)
        close(o->fd);
    free(o);
}

/* --- comparing a file with the disk --- */

static void recheck_done(struct gateway_work *work)
{
    struct file_job *job = (struct file_job *)(void *)work;
    struct files *all = job->all;
    struct file_body *b = job->body;
    b->checking = false;
    if (job->result == -ESTALE)
        file_body_stale(all, b);
    if (b->again && !b->stale)
        file_recheck(all, b);
    file_job_over(job);
}

void file_recheck(struct files *all, struct file_body *b)
{
    b->again = b->checking;
    if (b->checking)
        return;
    struct file_job *job = file_job_new(all, FILE_TASK_CHECK, recheck_done);
    if (!job)
        return;
    b->checked = base_now_ns();
    b->checking = true;
    b->jobs++;
    job->body = b;
    job->fd = b->fd;
    job->is = b->is;
    if (b->fd < 0) /* the file is in the cache, but not open */
        snprintf(job->path, sizeof job->path, "%s", b->path);
    file_job_start(all, job);
}

/* --- answers --- */

void file_answer_info(struct gateway_call *c, const struct file_open *o, uint64_t word)
{
    const struct file_body *b = o->body;
    const weft_file_info info = {
        .bytes = b->is.bytes, .device = b->is.device, .inode = b->is.inode, .modified_ns = b->is.modified_ns, .generation = b->generation};
    gateway_answer(c, 0, &word, 1, &info, sizeof info);
}

void file_answer_failed(struct gateway_call *c, int rc, const char *path)
{
    uint32_t node = gateway_of(c->server)->w->rank;
    if (rc == -ESTALE)
        base_fail(rc, "%.300s at node %u has changed since it was opened: open the file again", path, node);
    else if (rc == -ENOBUFS)
        base_fail(rc,
                  "%.300s at node %u: this would map or pin more than half of the file cache: unmap or unpin some files, or give node %u a "
                  "larger cache (WEFT_FILE_CACHE, weft up --cache)",
                  path, node, node);
    else
        base_fail(rc, "%.300s at node %u: %s", path, node,
                  rc == -EISDIR   ? "this is a directory, not a file; name a file in it"
                  : rc == -EINVAL ? "this is not a regular file; name a regular file"
                                  : base_strerror(rc));
    gateway_answer_error(c, rc);
}
