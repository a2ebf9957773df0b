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
void forward_list_add(struct forward_list *l, struct forward_changed *c); /* does nothing if it is in the list */
struct forward_changed *forward_list_take(struct forward_list *l);        /* NULL: the list is empty */
void forward_list_remove(struct forward_list *l, struct forward_changed *c);
void forward_wake(int wake_fd);

struct forward_loop {
    struct gateway_watches *watches;
    struct gateway_watch control, wake;
    struct forward_list changed;
    bool over; /* the other end of `control` is closed */
};
/* Watch `control`, of which the loop has a copy. Returns 0 or a negative errno; in both cases forward_loop_close() must follow. */
int forward_loop_open(struct forward_loop *l, int control);
void forward_loop_close(struct forward_loop *l);
/* Watch a copy of a descriptor for bytes; gateway_unwatch() closes it. */
int forward_loop_watch(struct forward_loop *l, struct gateway_watch *watch, int fd, void (*ready)(struct gateway_watch *), void *arg);

#endif
