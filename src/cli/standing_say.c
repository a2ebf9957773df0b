/* SPDX-License-Identifier: MIT
 *
 * What a job sends to its command. Frames are added to a buffer, and the job's thread sends them when it has nothing else to do, so that
 * several frames wake the command once. The thread never waits for the command: if the socket is full, the rest stays in the buffer, and
 * the thread reads no more output. The output of a detached job is kept instead.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/standing_job.h"

void job_wake(struct job *j)
{
    if (atomic_exchange(&j->woken, true))
        return;
    ssize_t n = write(j->news[1], "", 1);
    (void)n; /* a full pipe wakes the thread as well */
}

static void keep_output(struct job *j, uint32_t node, uint32_t which, const char *data, size_t bytes)
{
    struct piece *p = malloc(sizeof *p + bytes);
    if (!p) {
        j->dropped += bytes;
        return;
    }
    *p = (struct piece){.number = j->pieces++, .node = node, .which = which, .bytes = bytes};
    memcpy(p->data, data, bytes);
    *j->last = p;
    j->last = &p->next;
    j->kept += bytes + sizeof *p;
    while (j->kept > JOBS_KEPT_MAX) {
        struct piece *old = j->first;
        j->first = old->next;
        if (!j->first)
            j->last = &j->first;
        j->kept -= old->bytes + sizeof *old;
        j->dropped += old->bytes;
        free(old);
    }
}

/* The caller holds j->send. */
static void unsent_add(struct job *j, const struct control_frame *f, const void *payload)
{
    struct unsent *u = &j->unsent;
    size_t more = sizeof *f + f->bytes;
    if (j->stop || j->detached)
        return;
    if (u->first) {
        memmove(u->bytes, u->bytes + u->first, u->last - u->first);
        u->last -= u->first;
        u->first = 0;
    }
    if (u->last + more > u->room) {
        size_t room = 2 * (u->last + more);
        char *new = realloc(u->bytes, room);
        if (!new) {
            j->stop = true; /* without this frame, the command would not understand the next ones */
            return;
        }
        u->bytes = new;
        u->room = room;
    }
    memcpy(u->bytes + u->last, f, sizeof *f);
    if (f->bytes)
        memcpy(u->bytes + u->last + sizeof *f, payload, f->bytes);
    u->last += more;
}

void job_put(struct job *j, enum control_type type, uint32_t node, uint32_t number, const void *payload, size_t bytes)
{
    const struct control_frame f = {(uint32_t)type, (uint32_t)bytes, node, number};
    pthread_mutex_lock(&j->send);
    unsent_add(j, &f, payload);
    pthread_mutex_unlock(&j->send);
}

void job_say(struct job *j, enum control_type type, uint32_t node, uint32_t number, const char *text)
{
    job_put(j, type, node, number, text, strlen(text));
    job_wake(j);
}

void job_output(struct job *j, uint32_t node, uint32_t which, const char *data, size_t bytes)
{
    if (!j->detached) {
        job_put(j, CONTROL_OUT, node, which, data, bytes);
        return;
    }
    pthread_mutex_lock(&j->send);
    keep_output(j, node, which, data, bytes);
    pthread_mutex_unlock(&j->send);
    pthread_mutex_lock(&j->all->lock);
    pthread_cond_broadcast(&j->all->changed);
    pthread_mutex_unlock(&j->all->lock);
}

/* The caller holds j->send. */
static void unsent_send(struct job *j)
{
    struct unsent *u = &j->unsent;
    while (u->first < u->last && !j->stop) {
        ssize_t n = send(j->fd, u->bytes + u->first, u->last - u->first, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0)
            u->first += (size_t)n;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return;
        else if (errno != EINTR)
            j->stop = true; /* the command is gone */
    }
    u->first = u->last = 0;
}

void job_flush(struct job *j)
{
    pthread_mutex_lock(&j->send);
    unsent_send(j);
    pthread_mutex_unlock(&j->send);
}

size_t job_unsent(struct job *j)
{
    pthread_mutex_lock(&j->send);
    size_t n = j->unsent.last - j->unsent.first;
    pthread_mutex_unlock(&j->send);
    return n;
}

/* Never waits. Sends nothing to a command that has not read all that was sent before. */
void jobs_alive(struct jobs *all)
{
    static const struct control_frame alive = {.type = CONTROL_TEXT, .node = UINT32_MAX};
    pthread_mutex_lock(&all->lock);
    for (struct job *j = all->first; j; j = j->next) {
        if (pthread_mutex_trylock(&j->send))
            continue;
        if (!j->detached && j->unsent.first == j->unsent.last) {
            unsent_add(j, &alive, NULL);
            unsent_send(j);
        }
        pthread_mutex_unlock(&j->send);
    }
    pthread_mutex_unlock(&all->lock);
}
