/* SPDX-License-Identifier: MIT
 *
 * The work of the file service that may block and therefore runs on threads: opens, reads, checks, writes and syncs files.
 *
 * A change of a file changes its modification time, but this time advances in steps: at most 10 ms on Linux, up to two seconds on some file
 * systems. Two changes within one step would have the same time. So a file that has just changed is not read before the step is over.
 */
#include "gateway/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STEP_NS       (20 * WEFT_MS)
#define NO_SIZE_MAX   UINT64_C(65536)   /* files of /sys report the size of a page; no page is larger than this */
#define WHOLE_STEP_NS (2 * WEFT_SECOND) /* for a modification time of whole seconds: the file system may store no fractions */

/* A time beyond the year 2262 wraps around. That does no harm: times are compared for equality, or subtracted modulo 2^64. */
static int64_t time_ns(const struct timespec *t)
{
    return (int64_t)((uint64_t)t->tv_sec * (uint64_t)WEFT_SECOND + (uint64_t)t->tv_nsec);
}

static struct file_identity identity_of(const struct stat *st)
{
#if defined(__APPLE__)
    const struct timespec *t = &st->st_mtimespec;
#else
    const struct timespec *t = &st->st_mtim;
#endif
    return (struct file_identity){
        .device = (uint64_t)st->st_dev, .inode = (uint64_t)st->st_ino, .bytes = (uint64_t)st->st_size, .modified_ns = time_ns(t)};
}

bool file_same(const struct file_identity *a, const struct file_identity *b)
{
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes && a->modified_ns == b->modified_ns;
}

static int look(int fd, struct file_identity *out)
{
    struct stat st;
    if (fstat(fd, &st))
        return -errno;
    *out = identity_of(&st);
    return 0;
}

static int check(const struct file_job *job)
{
    struct file_identity is = {0};
    bool outside;
    int fd = job->fd >= 0 ? job->fd : file_path_open(job->root, job->path, O_RDONLY, &outside);
    int rc = fd < 0 ? -ESTALE : look(fd, &is);
    if (fd >= 0 && job->fd < 0)
        close(fd);
    return rc ? rc : file_same(&is, &job->is) ? 0 : -ESTALE;
}

/* Waits until any further change would give the file another modification time. */
static void settle(int64_t modified_ns)
{
    struct timespec t;
    int64_t step = modified_ns % WEFT_SECOND ? STEP_NS : WHOLE_STEP_NS;
    clock_gettime(CLOCK_REALTIME, &t);
    int64_t since = (int64_t)((uint64_t)time_ns(&t) - (uint64_t)modified_ns);
    if (since >= 0 && since < step) /* a time in the future needs no wait: any change now gets an earlier time */
        base_sleep_ns(step - since);
}

/* Refuses a file that reports a wrong size, such as one of /proc. Files of more than NO_SIZE_MAX report the right size. */
static int check_size(int fd, struct file_identity *is)
{
    const struct file_identity before = *is;
    if (is->bytes > NO_SIZE_MAX || base_size_is_true(fd, is->bytes))
        return 0;
    int rc = look(fd, is);
    return rc                       ? rc
           : file_same(&before, is) ? -EINVAL
                                    : 0; /* if `before` and `is` differ, the file has grown meanwhile, so its size was
                                            right */
}

static int job_open(struct file_job *job)
{
    int flags = job->flags & WEFT_FILE_WRITE ? O_RDWR : O_RDONLY;
    if (job->flags & WEFT_FILE_CREATE)
        flags |= O_CREAT;
    int rc = job->fd = file_path_open(job->root, job->path, flags, &job->outside);
    if (rc < 0)
        return rc;
    /* not truncated by O_TRUNC, because the file may not be a regular one */
    rc = job->flags & WEFT_FILE_TRUNCATE && ftruncate(job->fd, 0) ? -errno : 0;
    rc = rc ? rc : look(job->fd, &job->is);
    return rc || flags != O_RDONLY ? rc : check_size(job->fd, &job->is);
}

static int job_read(struct file_job *job)
{
    if (job->pool)
        mem_prepare(job->pool, job->place, job->bytes);
    settle(job->is.modified_ns);
    int rc = check(job);
    for (uint64_t got = 0; !rc && got < job->bytes;) {
        ssize_t n = pread(job->fd, job->memory + got, job->bytes - got, (off_t)(job->offset + got));
        if (n > 0)
            got += (uint64_t)n;
        else if (n == 0)
            rc = -ESTALE; /* the file has become shorter */
        else if (errno != EINTR)
            rc = -errno;
    }
    if (!rc && job->hashes)
        job->hash = file_hash(job->memory, job->bytes);
    return rc ? rc : check(job);
}

static int job_write(struct file_job *job)
{
    uint64_t put = 0;
    int rc = 0;
    while (!rc && put < job->bytes) {
        ssize_t n = pwrite(job->fd, job->memory + put, job->bytes - put, (off_t)(job->offset + put));
        if (n > 0)
            put += (uint64_t)n;
        else if (n == 0 || errno != EINTR)
            rc = n == 0 ? -EIO : -errno;
    }
    job->bytes = put;
    /* acquire and release: pairs with other writes through the handle, so look() of the write with the highest number sees what the writes
     * with lower numbers have written */
    job->number = 1 + atomic_fetch_add_explicit(&job->open->written, 1, memory_order_acq_rel);
    int seen = look(job->fd, &job->is);
    return rc ? rc : seen;
}

static void job_run(struct gateway_work *work)
{
    struct file_job *job = (struct file_job *)(void *)work;
    switch (job->task) {
    case FILE_TASK_OPEN: job->result = job_open(job); break;
    case FILE_TASK_READ: job->result = job_read(job); break;
    case FILE_TASK_CHECK: job->result = check(job); break;
    case FILE_TASK_WRITE: job->result = job_write(job); break;
    case FILE_TASK_SYNC: job->result = fsync(job->fd) ? -errno : 0; break;
    }
}

struct file_job *file_job_new(struct files *all, enum file_task task, void (*done)(struct gateway_work *work))
{
    struct file_job *job = calloc(1, sizeof *job);
    if (job) {
        job->work = (struct gateway_work){.run = job_run, .done = done};
        job->all = all;
        job->task = task;
        job->root = &all->root;
        job->fd = -1;
    }
    return job;
}

void file_job_free(struct file_job *job)
{
    if (job->task == FILE_TASK_OPEN && job->fd >= 0)
        close(job->fd);
    if (job->task == FILE_TASK_WRITE)
        free(job->memory);
    free(job);
}
