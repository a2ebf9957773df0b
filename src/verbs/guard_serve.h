/* SPDX-License-Identifier: MIT
 *
 * The guard's own side (guard.h): what its three files share. guard_serve.c is the process, guard_objects.c the objects and the calls
 * about them, guard_move.c moves requests and completions between rings and devices.
 */
#ifndef WEFT_VERBS_GUARD_SERVE_H
#define WEFT_VERBS_GUARD_SERVE_H

#include "verbs/guard.h"

struct share {
    uint64_t at, bytes; /* there */
    uint8_t *here;
};
struct context {
    struct ibv_context *real;
    uint32_t id, watched, dead; /* ports whose state is on the page; queue pairs that are not touched any more */
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
struct queue { /* a ring as this side has it */
    struct guard_ring *ring;
    uint8_t *entries;
    uint64_t bytes;
    uint32_t count, mine; /* mine: the word that this side writes */
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
    struct completions *cq[2]; /* of sends, of receives */
    struct queue q[2];
    bool dead;
};

enum kind { CONTEXT, DOMAIN, REGION, CHANNEL, COMPLETIONS, PAIR, SHARE, KINDS };

struct guard {
    const struct verbs_library *lib;
    struct ibv_device **list;
    int listed, fd, bell[2], program; /* program: tells of its end; negative where the system does not */
    struct guard_page *page;
    struct table {
        void **at;
        uint32_t top, room;
    } table[KINDS];
    int64_t now;
    const char *broken; /* what makes no sense */
};

static inline void *guard_find(const struct guard *g, enum kind kind, uint64_t id)
{
    return id < g->table[kind].top ? g->table[kind].at[id] : NULL;
}

/* --- guard_objects.c --- */
/* `fd`: that came with the call (one); then those for the answer. The result is a verb's, 0 or an errno. */
int guard_answer_call(struct guard *g, const struct guard_call *c, struct guard_answer *a, int fd[2]);
int guard_destroy(struct guard *g, enum kind kind, void *one); /* 0 or an errno: EBUSY while another object needs it */

/* --- guard_move.c --- */
void guard_look(struct guard *g, struct context *c, int64_t at_most); /* at the ports, unless that was `at_most` ago */
uint32_t guard_move_all(struct guard *g);                             /* how many requests and completions went on */

#endif
