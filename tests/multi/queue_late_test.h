/* SPDX-License-Identifier: MIT
 *
 * For tests of the queue in which two nodes wait for each other at certain points.
 */
#ifndef WEFT_QUEUE_LATE_TEST_H
#define WEFT_QUEUE_LATE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

#include "queue_test.h"

/* Shared by the nodes. */
struct late {
    _Atomic uint32_t met[64];
    _Atomic uint32_t in_handler, go_on;
    _Atomic int pid;
};

enum { BLOCK = 5, MARK = 6 };

static inline weft_queue *open_slots(weft_node *w, uint32_t slots)
{
    weft_queue *q;
    OK(weft_queue_open(w, "work", &(weft_queue_config){.bytes = sizeof(weft_queue_config), .slots = slots, .submit_only = slots == 0}, &q));
    return q;
}

static inline void wait_for_view(weft_queue *q, uint32_t node)
{
    while (!queue_view_of(q, node)) {
        weft_progress(q->w);
        usleep(100);
    }
}

/* Like meet(), but runs the transport meanwhile: while the progress thread is in block(), no other thread executes other nodes' operations
 * on this node's memory. Handles no messages, because then block() could hold this thread. */
static inline void meet_here(weft_node *w, _Atomic uint32_t *word)
{
    for (atomic_fetch_add(word, 1); atomic_load(word) < 2; usleep(100))
        fab_service(w);
}

static inline void run_late(node_fn fn)
{
    struct late *l = shared_words(sizeof *l);
    assert_int_equal(nodes_failed(2, fn, l), 0);
}

#endif
