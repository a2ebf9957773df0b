/* SPDX-License-Identifier: MIT
 *
 * Runs blocking work, such as reading a disk, on a few threads, so that the server thread does not wait. A thread is started when all
 * others are busy. Threads end when the service closes.
 */
#include "gateway/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define THREADS_MAX 16u

struct gateway_works {
    struct gateway_watches *watches;
    struct gateway_watch watch;
    pthread_mutex_t lock;
    pthread_cond_t some;
    struct gateway_work *waiting, **waiting_last, *done, **done_last;
    unsigned most, threads, idle, unstarted;
    bool closing;
    int wake; /* write end of the pipe */
    pthread_t thread[THREADS_MAX];
};

static struct gateway_work *work_next(struct gateway_works *all)
{
    while (!all->waiting && !all->closing) {
        all->idle++;
        pthread_cond_wait(&all->some, &all->lock);
        all->idle--;
    }
    struct gateway_work *job = all->closing ? NULL : all->waiting;
    if (!job)
        return NULL;
    all->waiting = job->next;
    if (!all->waiting)
        all->waiting_last = &all->waiting;
    all->unstarted--;
    return job;
}

static void *works_run(void *arg)
{
    struct gateway_works *all = arg;
    pthread_mutex_lock(&all->lock);
    for (struct gateway_work *job; (job = work_next(all));) {
        pthread_mutex_unlock(&all->lock);
        job->run(job);
        pthread_mutex_lock(&all->lock);
        bool first = !all->done;
        job->next = NULL;
        *all->done_last = job;
        all->done_last = &job->next;
        if (first) {
            ssize_t n = write(all->wake, "", 1);
            (void)n; /* a full pipe wakes its reader as well */
        }
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

static void works_done(struct gateway_watch *watch)
{
    struct gateway_works *all = watch->arg;
    char bytes[64];
    while (read(watch->fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes)
        ;
    pthread_mutex_lock(&all->lock);
    struct gateway_work *job = all->done;
    all->done = NULL;
    all->done_last = &all->done;
    pthread_mutex_unlock(&all->lock);
    for (struct gateway_work *next; job; job = next) {
        next = job->next;
        job->done(job);
    }
}

int gateway_works_open(struct gateway_works **out, struct gateway_watches *watches, unsigned threads)
{
    struct gateway_works *all = calloc(1, sizeof *all);
    int fds[2], rc = all ? base_pipe(fds, O_NONBLOCK) : -ENOMEM;
    if (rc) {
        free(all);
        return rc;
    }
    *all = (struct gateway_works){.watches = watches,
                                  .watch = {.fd = -1, .ready = works_done, .arg = all},
                                  .waiting_last = &all->waiting,
                                  .done_last = &all->done,
                                  .most = threads < THREADS_MAX ? threads : THREADS_MAX,
                                  .wake = fds[1]};
    rc = gateway_watch(watches, &all->watch, fds[0], GATEWAY_READABLE);
    if (rc) {
        close(fds[0]);
        close(fds[1]);
        free(all);
        return rc;
    }
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->some, NULL);
    *out = all;
    return 0;
}

int gateway_work(struct gateway_works *all, struct gateway_work *job)
{
    int rc = 0;
    pthread_mutex_lock(&all->lock);
    if (all->unstarted >= all->idle && all->threads < all->most) {
        rc = base_thread(&all->thread[all->threads], works_run, all);
        all->threads += rc == 0;
        rc = all->threads ? 0 : rc; /* the existing threads will run the job */
    }
    if (!rc) {
        all->unstarted++;
        job->next = NULL;
        *all->waiting_last = job;
        all->waiting_last = &job->next;
        pthread_cond_signal(&all->some);
    }
    pthread_mutex_unlock(&all->lock);
    return rc;
}

static void drop_all(struct gateway_work *job, void (*drop)(struct gateway_work *job))
{
    for (struct gateway_work *next; job; job = next) {
        next = job->next;
        drop(job);
    }
}

void gateway_works_close(struct gateway_works *all, void (*drop)(struct gateway_work *job))
{
    if (!all)
        return;
    pthread_mutex_lock(&all->lock);
    all->closing = true;
    pthread_cond_broadcast(&all->some);
    pthread_mutex_unlock(&all->lock);
    for (unsigned i = 0; i < all->threads; i++)
        pthread_join(all->thread[i], NULL); /* no deadline: while a disk hangs, the system would not let the process end either */
    drop_all(all->waiting, drop);
    drop_all(all->done, drop);
    gateway_unwatch(all->watches, &all->watch);
    close(all->wake);
    pthread_mutex_destroy(&all->lock);
    pthread_cond_destroy(&all->some);
    free(all);
}
