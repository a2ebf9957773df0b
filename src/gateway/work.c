/* SPDX-License-Identifier: MIT
 *
 * Runs blocking work, such as reading a disk or asking a name server, on a few threads. A thread is started when all others are busy, and
 * ends when the service closes. Closing need not wait for a thread that blocks, because the last user of the shared state frees it.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "gateway/gateway.h"

#define THREADS_MAX 16u

struct works_asker {
    uint32_t runs, queued; /* runs: how many jobs of this asker are running; queued: how many are not done */
};
struct gateway_works {
    struct gateway_works_how how;
    struct gateway_watches *watches;
    struct gateway_watch watch;
    pthread_mutex_t lock;
    pthread_cond_t some;
    struct gateway_work *waiting, **waiting_last, *done, **done_last;
    struct works_asker *asker;                              /* [how.askers] */
    uint32_t threads, idle, unstarted, runs, queued, users; /* users: how many threads use this structure, plus one for the service */
    bool closing;
    int wake; /* write end of the pipe; -1: closed */
    pthread_t thread[THREADS_MAX];
};

/* --- the caller holds all->lock --- */

static struct works_asker *asker_of(struct gateway_works *all, const struct gateway_work *job)
{
    return job->asker < all->how.askers ? &all->asker[job->asker] : NULL;
}

/* Takes the first job whose asker may use one more thread. Returns NULL if there is no such job. */
static struct gateway_work *work_take(struct gateway_works *all)
{
    for (struct gateway_work **at = &all->waiting, *job; (job = *at); at = &job->next) {
        struct works_asker *a = asker_of(all, job);
        if (a && !job->left && !gateway_share_allows(a->runs, all->runs, all->how.threads))
            continue;
        if (!(*at = job->next))
            all->waiting_last = at;
        if (a)
            a->runs++;
        all->runs++;
        all->unstarted--;
        return job;
    }
    return NULL;
}

/* Puts the job on the list of those for which done() is to be called. */
static void work_over(struct gateway_works *all, struct gateway_work *job)
{
    bool first = !all->done;
    job->next = NULL;
    *all->done_last = job;
    all->done_last = &job->next;
    if (first && all->wake >= 0) {
        ssize_t n = write(all->wake, "", 1);
        (void)n; /* a full pipe wakes its reader as well */
    }
}

static void work_ended(struct gateway_works *all, struct gateway_work *job)
{
    struct works_asker *a = asker_of(all, job);
    if (a) {
        a->runs--;
        a->queued--;
    }
    all->runs--;
    all->queued--;
    if (all->waiting && all->idle)
        pthread_cond_signal(&all->some); /* a job that waited because its asker had too many threads may run now */
    if (all->watches)
        work_over(all, job);
}

static void drop_all(const struct gateway_works *all, struct gateway_work *job)
{
    for (struct gateway_work *next; job; job = next) {
        next = job->next;
        all->how.drop(job);
    }
}

/* Removes one user; the last user frees the structure. Releases the lock. */
static void works_leave(struct gateway_works *all)
{
    bool last = --all->users == 0;
    pthread_mutex_unlock(&all->lock);
    if (!last)
        return;
    drop_all(all, all->waiting);
    drop_all(all, all->done);
    pthread_mutex_destroy(&all->lock);
    pthread_cond_destroy(&all->some);
    free(all->asker);
    free(all);
}

/* --- the threads --- */

static void *works_run(void *arg)
{
    struct gateway_works *all = arg;
    pthread_mutex_lock(&all->lock);
    while (!all->closing) {
        struct gateway_work *job = work_take(all);
        if (!job) {
            all->idle++;
            pthread_cond_wait(&all->some, &all->lock);
            all->idle--;
            continue;
        }
        bool left = job->left;
        pthread_mutex_unlock(&all->lock);
        if (!left)
            job->run(job);
        pthread_mutex_lock(&all->lock);
        work_ended(all, job);
        if (!all->watches) {
            pthread_mutex_unlock(&all->lock);
            job->done(job);
            pthread_mutex_lock(&all->lock);
        }
    }
    works_leave(all);
    return NULL;
}

/* --- the thread that waits for the watches --- */

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
        if (job->left)
            all->how.drop(job);
        else
            job->done(job);
    }
}

int gateway_works_open(struct gateway_works **out, struct gateway_watches *watches, const struct gateway_works_how *how)
{
    struct gateway_works *all = calloc(1, sizeof *all);
    struct works_asker *askers = calloc(how->askers ? how->askers : 1, sizeof *askers);
    int fds[2] = {-1, -1}, rc = !all || !askers ? -ENOMEM : watches ? base_pipe(fds, O_NONBLOCK) : 0;
    if (rc) {
        free(all);
        free(askers);
        return rc;
    }
    *all = (struct gateway_works){.how = *how,
                                  .watches = watches,
                                  .watch = {.fd = -1, .ready = works_done, .arg = all},
                                  .waiting_last = &all->waiting,
                                  .done_last = &all->done,
                                  .asker = askers,
                                  .users = 1,
                                  .wake = fds[1]};
    all->how.threads = how->threads < THREADS_MAX ? how->threads : THREADS_MAX;
    rc = watches ? gateway_watch(watches, &all->watch, fds[0], GATEWAY_READABLE) : 0;
    if (rc) {
        close(fds[0]);
        close(fds[1]);
        free(all);
        free(askers);
        return rc;
    }
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->some, NULL);
    *out = all;
    return 0;
}

static int thread_add(struct gateway_works *all)
{
    all->users++;
    int rc = base_thread(&all->thread[all->threads], works_run, all);
    if (!rc)
        all->threads++;
    else
        all->users--;
    return all->threads ? 0 : rc; /* if there are threads, one of them will run the job */
}

int gateway_work(struct gateway_works *all, struct gateway_work *job)
{
    int rc = 0;
    pthread_mutex_lock(&all->lock);
    struct works_asker *a = asker_of(all, job);
    if (all->how.queued && (all->queued >= all->how.queued || (a && !gateway_share_allows(a->queued, all->queued, all->how.queued))))
        rc = -EDQUOT;
    if (!rc && all->unstarted >= all->idle && all->threads < all->how.threads)
        rc = thread_add(all);
    if (!rc) {
        if (a)
            a->queued++;
        all->queued++;
        all->unstarted++;
        job->left = false;
        job->next = NULL;
        *all->waiting_last = job;
        all->waiting_last = &job->next;
        pthread_cond_signal(&all->some);
    }
    pthread_mutex_unlock(&all->lock);
    return rc;
}

void gateway_work_skip(struct gateway_works *all, struct gateway_work *job)
{
    pthread_mutex_lock(&all->lock);
    job->left = false;
    work_over(all, job);
    pthread_mutex_unlock(&all->lock);
}

void gateway_work_leave(struct gateway_works *all, struct gateway_work *job)
{
    pthread_mutex_lock(&all->lock);
    job->left = true;
    pthread_mutex_unlock(&all->lock);
}

void gateway_works_close(struct gateway_works *all)
{
    if (!all)
        return;
    if (all->watches)
        gateway_unwatch(all->watches, &all->watch);
    pthread_mutex_lock(&all->lock);
    all->closing = true;
    if (all->wake >= 0)
        close(all->wake);
    all->wake = -1;
    pthread_cond_broadcast(&all->some);
    pthread_mutex_unlock(&all->lock);
    for (unsigned i = 0; i < all->threads; i++) {
        if (all->how.leaves)
            pthread_detach(all->thread[i]);
        else
            pthread_join(all->thread[i], NULL); /* wait without a deadline: while a disk hangs, the process cannot end anyway */
    }
    pthread_mutex_lock(&all->lock);
    works_leave(all);
}
