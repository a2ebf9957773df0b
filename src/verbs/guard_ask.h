/* SPDX-License-Identifier: MIT
 *
 * The program's side of a guard (guard.h). guard.c starts and ends a guard, guard_ask.c makes calls, guard_verbs.c is the table of verbs.
 */
#ifndef WEFT_VERBS_GUARD_ASK_H
#define WEFT_VERBS_GUARD_ASK_H

#include <pthread.h>

#include "verbs/guard.h"

#define GUARD_PATIENCE (10 * WEFT_SECOND) /* the longest wait for the answer to a call; the death of the guard is noticed at once */
/* The longest wait for calls that may take long, because the guard waits for a peer or registers much memory. */
#define GUARD_SLOW (60 * WEFT_SECOND)

struct guard_device {
    struct ibv_device base;
    struct verbs_guard *g;
    uint32_t index;
};

struct verbs_guard {
    struct verbs_library lib;
    pthread_mutex_t lock;   /* held during a call */
    int fd, bell, quiet[2]; /* quiet: descriptors that never become readable; they are used after the guard has died */
    _Atomic bool gone;
    _Atomic int64_t looked_at;
    struct guard_page *page;
    struct guard_device devices[GUARD_CONTEXTS];
    struct ibv_device *list[GUARD_CONTEXTS + 1];
    int count;
};

/* --- guard_ask.c --- */
/* Makes a call to the guard. Returns 0 or an errno, and also sets errno. If `gives` is true, *fd is sent with the call; otherwise *fd
 * becomes the descriptor that arrived with the answer. `fd` may be NULL. */
int guard_ask(struct verbs_guard *g, struct guard_call *c, struct guard_answer *a, int *fd, bool gives);
bool guard_lives(struct verbs_guard *g);                 /* checks at most every few milliseconds */
void guard_lost(struct verbs_guard *g, const char *why); /* records that the guard has died; reports the reason once */

/* --- guard_verbs.c --- */
int guard_fill_verbs(struct verbs_guard *g); /* fills the guard's table of verbs; 0 or a negative errno with an error text */

#endif
