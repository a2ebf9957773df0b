/* SPDX-License-Identifier: MIT
 *
 * The guard's own side (guard.h): what its three files share. guard_serve.c is the process, guard_objects.c the objects and the calls
 * about them, guard_move.c moves requests and completions between rings and devices.
 */
#ifndef WEFT_VERBS_GUARD_SERVE_H
#define WEFT_VERBS_GUARD_SERVE_H

#include "verbs/guard.h"

struct share {
    uint64_t at, bytes; /* address in the program, and length */
    uint8_t *here;
};
struct context {
    struct ibv_context *real;
    uint32_t id, watched, dead; /* watched: ports whose state is in the shared page; dead: queue pairs that must not be touched any more */
    int64_t looked_at;
};
struct domain {
    struct context *context;
    struct ibv_pd *real;
};
struct region {
    struct domain *domain;
    struct ibv_mr *real;
    uint64_t at, bytes;
    uint8_t *here;
};
struct channel {
    struct context *context;
    struct ibv_comp_channel *real;
    int tell;
};
struct queue { /* the guard's side of a ring */
    struct guard_ring *ring;
    uint8_t *entries;
    uint64_t bytes;
    uint32_t count, mine; /* mine: the ring's word that the guard writes */
};
struct completions {
    struct context *context;
    struct ibv_cq *real;
    struct channel *channel;
    struct queue q;
};
struct pair {
    struct context *context;
    struct domain *domain;
    struct ibv_qp *real;
    struct completions *cq[2]; /* the completion queues of its sends and of its receives */
    struct queue q[2];
    bool dead;
};

enum kind { CONTEXT, DOMAIN, REGION, CHANNEL, COMPLETIONS, PAIR, SHARE, KINDS };

struct guard {
    const struct verbs_library *lib;
    struct ibv_device **list;
    int listed, fd, bell[2], program; /* program: a descriptor that tells when the program ends; negative where the system has none */
    struct guard_page *page;
    struct table {
        void **at;
        uint32_t top, room;
    } table[KINDS];
    int64_t now;
    const char *broken; /* what the program has sent that is invalid; NULL: nothing */
};

static inline void *guard_find(const struct guard *g, enum kind kind, uint64_t id)
{
    return id < g->table[kind].top ? g->table[kind].at[id] : NULL;
}

/* --- guard_objects.c --- */
/* Executes a call. `fd`: first the descriptor that came with the call (one), then those to send with the answer. Returns the verb's
   result, 0 or an errno. */
int guard_answer_call(struct guard *g, const struct guard_call *c, struct guard_answer *a, int fd[2]);
int guard_destroy(struct guard *g, enum kind kind, void *one); /* 0 or an errno: EBUSY while another object needs it */

/* --- guard_move.c --- */
/* reads the port states, unless that was done less than `at_most` ago */
void guard_look(struct guard *g, struct context *c, int64_t at_most);
uint32_t guard_move_all(struct guard *g); /* moves requests and completions; returns how many */

#endif
