/* SPDX-License-Identifier: MIT */
#include "cli/forward_loop.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

void forward_wake(int wake_fd)
{
    ssize_t n = write(wake_fd, "", 1);
    (void)n; /* a full pipe wakes its reader as well */
}

void forward_list_init(struct forward_list *l, int wake_fd)
{
    *l = (struct forward_list){.last = &l->first, .wake_fd = wake_fd};
}

bool forward_list_put(struct forward_list *l, struct forward_changed *c)
{
    base_spin_lock(&l->lock);
    bool empty = !l->first;
    if (!c->listed) {
        c->listed = true;
        c->next = NULL;
        *l->last = c;
        l->last = &c->next;
    }
    base_spin_unlock(&l->lock);
    return empty;
}

void forward_list_add(struct forward_list *l, struct forward_changed *c)
{
    if (forward_list_put(l, c))
        forward_wake(l->wake_fd);
}

/* The caller holds the lock of the list. */
static void list_unlink(struct forward_list *l, struct forward_changed **at)
{
    struct forward_changed *c = *at;
    *at = c->next;
    if (l->last == &c->next)
        l->last = at;
    c->listed = false;
}

struct forward_changed *forward_list_take(struct forward_list *l)
{
    base_spin_lock(&l->lock);
    struct forward_changed *c = l->first;
    if (c)
        list_unlink(l, &l->first);
    base_spin_unlock(&l->lock);
    return c;
}

void forward_list_remove(struct forward_list *l, struct forward_changed *c)
{
    base_spin_lock(&l->lock);
    if (c->listed) {
        struct forward_changed **at = &l->first;
        while (*at != c)
            at = &(*at)->next;
        list_unlink(l, at);
    }
    base_spin_unlock(&l->lock);
}

static void on_control(struct gateway_watch *watch)
{
    struct forward_loop *l = watch->arg;
    char some[64];
    /* this does not block, because the descriptor is ready. It is a socket, or a pipe for a forward that is kept */
    ssize_t n = read(watch->fd, some, sizeof some);
    l->over = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

static void on_wake(struct gateway_watch *watch)
{
    char bytes[64];
    while (read(watch->fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes)
        ;
}

int forward_loop_watch(struct forward_loop *l, struct gateway_watch *watch, int fd, void (*ready)(struct gateway_watch *), void *arg)
{
    *watch = (struct gateway_watch){.fd = -1, .ready = ready, .arg = arg};
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 3); /* a duplicate, because gateway_unwatch() closes the descriptor */
    int rc = own < 0 ? -errno : gateway_watch(l->watches, watch, own, GATEWAY_READABLE);
    if (rc && own >= 0)
        close(own);
    return rc;
}

#define BRIEF_MAX 4u /* maximum number of connections that the progress thread serves at a time */

static void loop_wake(struct gateway_turn *t)
{
    const struct forward_loop *l = t->arg;
    forward_wake(l->changed.wake_fd);
}

/* On the progress thread: serves a few connections, if the thread of the loop sleeps. */
static void loop_turn(struct gateway_turn *t)
{
    struct forward_loop *l = t->arg;
    unsigned n = 0;
    if (!gateway_watches_try(l->watches)) {
        loop_wake(t);
        return;
    }
    l->brief = true;
    while (n < BRIEF_MAX && l->go_on(l->arg))
        n++;
    l->brief = false;
    gateway_watches_leave(l->watches);
    if (n == BRIEF_MAX) /* there may be more changed connections */
        loop_wake(t);
}

void forward_notice(struct forward_loop *l, struct forward_changed *c)
{
    if (forward_list_put(&l->changed, c))
        gateway_turn(&l->turn);
}

int forward_loop_open(struct forward_loop *l, weft_node *w, int control, bool (*go_on)(void *arg), void *arg)
{
    int wake[2];
    *l = (struct forward_loop){.gateway = w ? gateway_in(w) : NULL,
                               .control = {.fd = -1},
                               .wake = {.fd = -1},
                               .turn = {.run = loop_turn, .wake = loop_wake, .arg = l},
                               .go_on = go_on,
                               .arg = arg};
    forward_list_init(&l->changed, -1);
    int rc = base_pipe(wake, O_NONBLOCK);
    if (rc)
        return rc;
    l->changed.wake_fd = wake[1];
    rc = gateway_watches_open(&l->watches);
    if (!rc)
        rc = forward_loop_watch(l, &l->wake, wake[0], on_wake, l);
    close(wake[0]);
    return rc ? rc : forward_loop_watch(l, &l->control, control, on_control, l);
}

void forward_loop_close(struct forward_loop *l)
{
    if (l->gateway)
        gateway_turn_close(l->gateway, &l->turn);
    if (l->watches) {
        gateway_unwatch(l->watches, &l->control);
        gateway_unwatch(l->watches, &l->wake);
    }
    gateway_watches_close(l->watches);
    if (l->changed.wake_fd >= 0)
        close(l->changed.wake_fd);
}
