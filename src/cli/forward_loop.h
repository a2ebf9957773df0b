/* SPDX-License-Identifier: MIT
 *
 * What the threads of proxies and published ports wait for: descriptors, connections of the net service that have changed, and the end.
 */
#ifndef WEFT_CLI_FORWARD_LOOP_H
#define WEFT_CLI_FORWARD_LOOP_H

#include "gateway/gateway.h"

/* Part of a connection: it is in the list of those that have changed. */
struct forward_changed {
    struct forward_changed *next;
    bool listed;
};
/* Connections that have changed, the one that changed first at the head. Any thread may add; one thread takes. */
struct forward_list {
    base_spin lock;
    struct forward_changed *first, **last;
    int wake_fd; /* gets a byte when the list was empty */
};
void forward_list_init(struct forward_list *l, int wake_fd);
bool forward_list_put(struct forward_list *l, struct forward_changed *c); /* returns whether the list was empty, and wakes nobody */
void forward_list_add(struct forward_list *l, struct forward_changed *c); /* does nothing if it is in the list */
struct forward_changed *forward_list_take(struct forward_list *l);        /* NULL: the list is empty */
void forward_list_remove(struct forward_list *l, struct forward_changed *c);
void forward_wake(int wake_fd);

struct forward_loop {
    struct gateway *gateway;
    struct gateway_watches *watches;
    struct gateway_watch control, wake;
    struct forward_list changed;
    struct gateway_turn turn;
    bool (*go_on)(void *arg); /* goes on with one connection that has changed. False: there is none */
    void *arg;
    bool brief; /* go_on() is called by the progress thread: do a little, and leave the rest for later */
    bool over;  /* the other end of `control` is closed */
};
/* Watch `control`, of which the loop has a copy. Without `w` nothing calls forward_notice(). Returns 0 or a negative errno; in both cases forward_loop_close() must follow, on the
 * thread of the loop, when no connection calls forward_notice() any more. */
int forward_loop_open(struct forward_loop *l, weft_node *w, int control, bool (*go_on)(void *arg), void *arg);
void forward_loop_close(struct forward_loop *l);
/* A connection has changed, says weft: the thread of the loop goes on with it, or the progress thread in its place, if it sleeps. */
void forward_notice(struct forward_loop *l, struct forward_changed *c);
/* Watch a copy of a descriptor for bytes; gateway_unwatch() closes it. */
int forward_loop_watch(struct forward_loop *l, struct gateway_watch *watch, int fd, void (*ready)(struct gateway_watch *), void *arg);

#endif
