/* SPDX-License-Identifier: MIT
 *
 * Resolves names. getaddrinfo(3) blocks, so a few threads call it. The threads and the service share `struct shared`, and the last user
 * frees it. So net_names_close() need not wait for a thread whose name server does not answer.
 */
#include "gateway/net.h"

#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS_MAX 8u
#define QUEUED_MAX  1024u

struct shared {
    pthread_mutex_t lock;
    pthread_cond_t some;
    struct net_lookup *waiting, **waiting_last, *done;
    /* queued: lookups without a result; unstarted: of these, not taken by a thread; users: threads and the service */
    unsigned threads, idle, queued, unstarted, users;
    bool closing;
    int wake; /* write end of the pipe; -1: the service has closed it */
};
struct net_names {
    struct shared *shared;
    struct gateway_watches *watches;
    struct gateway_watch watch;
    void (*done)(struct net_lookup *l);
};

void net_lookup_free(struct net_lookup *l)
{
    if (l && l->found)
        freeaddrinfo(l->found);
    free(l);
}

static int lookup_errno(int code)
{
    switch (code) {
    case EAI_AGAIN: return -EAGAIN; /* the name server does not answer */
    case EAI_MEMORY: return -ENOMEM;
    case EAI_SYSTEM: return errno > 0 ? -errno : -EIO;
    default: return -ENOENT;
    }
}

static void look_up(struct net_lookup *l, int flags)
{
    const struct addrinfo hints = {
        .ai_family = l->family, .ai_socktype = l->type, .ai_flags = flags | AI_NUMERICSERV | (l->passive ? AI_PASSIVE : 0)};
    int code = getaddrinfo(l->host[0] ? l->host : NULL, l->port, &hints, &l->found);
    l->result = code ? lookup_errno(code) : 0;
    if (code)
        l->found = NULL;
}

int net_names_numeric(struct net_lookup *l)
{
    look_up(l, AI_NUMERICHOST);
    return l->result;
}

static void shared_leave(struct shared *s)
{
    bool last = --s->users == 0;
    pthread_mutex_unlock(&s->lock);
    if (!last)
        return;
    for (struct net_lookup *l; (l = s->waiting);) {
        s->waiting = l->next;
        net_lookup_free(l);
    }
    for (struct net_lookup *l; (l = s->done);) {
        s->done = l->next;
        net_lookup_free(l);
    }
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->some);
    free(s);
}

static void *resolve(void *arg)
{
    struct shared *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->closing) {
        struct net_lookup *l = s->waiting;
        if (!l) {
            s->idle++;
            pthread_cond_wait(&s->some, &s->lock);
            s->idle--;
            continue;
        }
        s->waiting = l->next;
        if (!s->waiting)
            s->waiting_last = &s->waiting;
        s->unstarted--;
        bool wanted = l->owner;
        pthread_mutex_unlock(&s->lock);
        if (wanted)
            look_up(l, 0);
        pthread_mutex_lock(&s->lock);
        s->queued--;
        l->next = s->done;
        s->done = l;
        if (s->wake >= 0) {
            ssize_t n = write(s->wake, "", 1);
            (void)n; /* a full pipe wakes its reader as well */
        }
    }
    shared_leave(s);
    return NULL;
}

static void names_done(struct gateway_watch *watch)
{
    struct net_names *all = watch->arg;
    char bytes[64];
    while (read(watch->fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes)
        ;
    pthread_mutex_lock(&all->shared->lock);
    struct net_lookup *l = all->shared->done;
    all->shared->done = NULL;
    pthread_mutex_unlock(&all->shared->lock);
    for (struct net_lookup *next; l; l = next) {
        next = l->next;
        if (l->owner)
            all->done(l);
        else
            net_lookup_free(l);
    }
}

int net_names_open(struct net_names **out, struct gateway_watches *watches, void (*done)(struct net_lookup *l))
{
    struct net_names *all = calloc(1, sizeof *all);
    struct shared *s = calloc(1, sizeof *s);
    int fds[2], rc = all && s ? base_pipe(fds, O_NONBLOCK) : -ENOMEM;
    if (rc) {
        free(all);
        free(s);
        return base_fail(rc, "cannot start resolving names for other nodes: %s", base_strerror(rc));
    }
    *s = (struct shared){.waiting_last = &s->waiting, .users = 1, .wake = fds[1]};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->some, NULL);
    *all = (struct net_names){.shared = s, .watches = watches, .done = done, .watch = {.fd = -1, .ready = names_done, .arg = all}};
    *out = all;
    rc = gateway_watch(watches, &all->watch, fds[0], GATEWAY_READABLE);
    if (!rc)
        return 0;
    close(fds[0]);
    net_names_close(all);
    *out = NULL;
    return base_fail(rc, "cannot start resolving names for other nodes: %s", base_strerror(rc));
}

int net_names_ask(struct net_names *all, struct net_lookup *l)
{
    struct shared *s = all->shared;
    pthread_t thread;
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    if (s->queued >= QUEUED_MAX)
        rc = -EAGAIN;
    if (!rc && s->unstarted >= s->idle && s->threads < THREADS_MAX) {
        s->users++;
        rc = base_thread(&thread, resolve, s);
        if (!rc) {
            pthread_detach(thread);
            s->threads++;
        } else {
            s->users--;
            rc = s->threads ? 0 : rc; /* the existing threads will resolve the name */
        }
    }
    if (!rc) {
        s->queued++;
        s->unstarted++;
        l->next = NULL;
        *s->waiting_last = l;
        s->waiting_last = &l->next;
        pthread_cond_signal(&s->some);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void net_names_leave(struct net_names *all, struct net_lookup *l)
{
    pthread_mutex_lock(&all->shared->lock);
    l->owner = NULL;
    pthread_mutex_unlock(&all->shared->lock);
}

void net_names_close(struct net_names *all)
{
    if (!all)
        return;
    struct shared *s = all->shared;
    gateway_unwatch(all->watches, &all->watch);
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    close(s->wake);
    s->wake = -1;
    pthread_cond_broadcast(&s->some);
    shared_leave(s);
    free(all);
}
