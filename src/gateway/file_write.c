/* SPDX-License-Identifier: MIT
 *
 * The file service's requests to write and to sync. A write gives the file a new generation. The handle of the writer then reads this
 * generation.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gateway/file.h"

/* Moves the handle to the generation that its write has made. If the handle already shows a later write, the file has changed since the
 * thread of this write looked at it, and the handle stays as it is. Returns false if there is no memory; then the handle keeps its old
 * generation, which is stale. */
static bool move_on(struct files *all, struct file_open *o, const struct file_job *job)
{
    struct file_body *old = o->body;
    if (job->number < o->shown)
        return true;
    o->shown = job->number;
    int fd = fcntl(o->fd, F_DUPFD_CLOEXEC, 0);
    file_body_stale(all, old); /* the bytes have changed, even if size and time have not */
    struct file_body *new = fd < 0 ? NULL : file_body_get(all, &job->is, old->path, fd);
    if (!new)
        return false;
    file_watch(all, new);
    file_body_opened(new, o);
    o->body = new;
    file_body_closed(all, old, o);
    return true;
}

static void write_done(struct gateway_work *work)
{
    struct file_job *job = (struct file_job *)(void *)work;
    struct files *all = job->all;
    struct file_open *o = job->open;
    struct gateway_call *c = file_job_call(job);
    if (!job->number) /* no thread has begun the write */
        job->bytes = 0;
    bool moved = !job->number || move_on(all, o, job);
    int rc = job->result && !job->bytes ? job->result : moved ? 0 : -ENOMEM;
    if (c && rc)
        file_answer_failed(c, rc, job->body->path);
    else if (c)
        file_answer_info(c, o, job->bytes); /* if only a part was written, the next write reports the error */
    file_job_over(job);
    (void)file_lease_again(all);
}

void file_begin_write(struct files *all, struct file_open *o, struct gateway_call *c)
{
    uint64_t bytes = c->record.data_bytes;
    if (o->fd < 0 || c->record.arg[0] > INT64_MAX - bytes) {
        file_answer_failed(c, o->fd < 0 ? -EBADF : -EFBIG, o->body->path);
        return;
    }
    struct file_job *job = file_job_of(all, FILE_TASK_WRITE, o, c, write_done);
    if (!job)
        return;
    job->bytes = bytes;
    job->offset = c->record.arg[0];
    job->memory = malloc(bytes + 1);
    if (!job->memory) {
        (void)file_job_call(job);
        gateway_answer(c, -ENOMEM, NULL, 0, NULL, 0);
        o->jobs--;
        job->body->jobs--;
        file_job_free(job);
        return;
    }
    if (bytes)
        memcpy(job->memory, c->data, bytes); /* a copy, because the request may be cancelled while the thread writes */
    file_job_start(all, job);
}

static void sync_done(struct gateway_work *work)
{
    struct file_job *job = (struct file_job *)(void *)work;
    struct gateway_call *c = file_job_call(job);
    if (c && job->result)
        file_answer_failed(c, job->result, job->body->path);
    else if (c)
        gateway_answer(c, 0, NULL, 0, NULL, 0);
    file_job_over(job);
}

void file_begin_sync(struct files *all, struct file_open *o, struct gateway_call *c)
{
    if (o->fd < 0) {
        file_answer_failed(c, -EBADF, o->body->path);
        return;
    }
    struct file_job *job = file_job_of(all, FILE_TASK_SYNC, o, c, sync_done);
    if (job)
        file_job_start(all, job);
}
