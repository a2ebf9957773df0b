/* SPDX-License-Identifier: MIT
 *
 * The wait of the threads that serve proxies and published ports: for descriptors, for connections of the net service that have changed,
 * and for the end of the forward.
 */
#ifndef WEFT_CLI_FORWARD_LOOP_H
#define WEFT_CLI_FORWARD_LOOP_H

#include "gateway/gateway.h"

/* A member of each connection, by which it is linked into the list of changed connections. */
struct forward_changed {
    struct forward_changed *next;
    bool listed;
};
/* The connections that have changed, in the order of their changes. Any thread may add connections; one thread takes them. */
struct forward_list {
    base_spin lock;
    struct forward_changed *first, **last;
    int wake_fd; /* a byte is written here when a connection is added to an empty list */
};
void forward_list_init(struct forward_list *l, int wake_fd);
/* Adds a connection without waking the thread of the loop. Returns whether the list was empty. */
bool forward_list_put(struct forward_list *l, struct forward_changed *c);
void forward_list_add(struct forward_list *l, struct forward_changed *c); /* does nothing if the connection is in the list already */
struct forward_changed *forward_list_take(struct forward_list *l);        /* returns NULL if the list is empty */
void forward_list_remove(struct forward_list *l, struct forward_changed *c);
void forward_wake(int wake_fd);

#define FORWARD_TURNS 16u    /* how many pieces a connection moves before other connections may move theirs */
#define FORWARD_BRIEF 65536u /* the largest piece that the progress thread moves; it moves at most two pieces */

struct forward_loop {
    struct gateway *gateway;
    struct gateway_watches *watches;
    struct gateway_watch control, wake;
    struct forward_list changed;
    struct gateway_turn turn;
    bool (*go_on)(void *arg); /* serves one connection that has changed. Returns false if no connection has changed */
    void *arg;
    bool brief; /* the progress thread calls go_on(): it must move little, and leave the rest to the thread of the loop */
    bool over;  /* the other end of `control` was closed, so the forward must end */
};
/* Starts watching a copy of `control`. `w` is NULL if nothing calls forward_notice(). Returns 0 or a negative errno. In both cases call
 * forward_loop_close() later: on the thread of the loop, when no connection calls forward_notice() any more. */
int forward_loop_open(struct forward_loop *l, weft_node *w, int control, bool (*go_on)(void *arg), void *arg);
void forward_loop_close(struct forward_loop *l);
/* Call this when a connection has changed. The thread of the loop serves the connection or, if that thread sleeps, the progress thread
 * does. */
void forward_notice(struct forward_loop *l, struct forward_changed *c);
/* forward_piece(): how many of `bytes` bytes may move as one piece now. forward_turns(): how many pieces a connection may move. */
static inline size_t forward_piece(const struct forward_loop *l, size_t bytes)
{
    return l->brief && bytes > FORWARD_BRIEF ? FORWARD_BRIEF : bytes;
}
static inline unsigned forward_turns(const struct forward_loop *l)
{
    return l->brief ? 2 : FORWARD_TURNS;
}
/* Watches a copy of a descriptor for bytes to read; gateway_unwatch() closes the copy. */
int forward_loop_watch(struct forward_loop *l, struct gateway_watch *watch, int fd, void (*ready)(struct gateway_watch *), void *arg);

#endif
