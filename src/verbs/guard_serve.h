/* SPDX-License-Identifier: MIT
 *
 * The guard's side (guard.h). guard_move.c moves requests and completions between rings and devices. guard_shared.c has the objects that
 * all programs of the guard share. guard_objects.c executes the calls of a program. guard_serve.c serves one program. guard_listen.c is the
 * process, which serves one or several programs.
 *
 * Each program has a thread. Only this thread uses the program's struct guard, except for the counts of objects. So a program that does not
 * answer or sends something invalid delays only itself. The threads share the devices (struct guard_shared).
 */
#ifndef WEFT_VERBS_GUARD_SERVE_H
#define WEFT_VERBS_GUARD_SERVE_H

#include <pthread.h>

#include "verbs/guard.h"

struct share {
    uint64_t at, bytes; /* the address in the program, and the length */
    uint8_t *here;
};
struct context {
    struct ibv_context *real;
    uint32_t device; /* index in the list of devices */
    /* watched: bit i: the state of port i + 1 is in the shared page; dead: number of queue pairs that the guard may only destroy */
    uint32_t id, watched, dead;
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
    uint32_t count, mine; /* mine: a copy of the ring's word that the guard writes */
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
    struct completions *cq[2]; /* for sends, for receives */
    struct queue q[2];
    bool dead;
};

enum kind { CONTEXT, DOMAIN, REGION, CHANNEL, COMPLETIONS, PAIR, SHARE, KINDS };

/* A device that was opened once for all programs. A driver may take long to open or close it; meanwhile only programs that need this device
 * wait. */
struct shared_device {
    pthread_mutex_t
        lock; /* protects the fields below; a thread may hold it during slow calls of the driver, but never while it waits for a program */
    struct ibv_context *real;
    struct ibv_pd *domain;
    uint32_t opened, domains; /* how many times programs have opened the device, and have allocated a domain on it */
};
struct guard_shared {
    const struct verbs_library *lib;
    pthread_mutex_t list_lock; /* protects `list` and `listed`, which are constant once they were read */
    struct ibv_device **list;
    int listed;
    struct shared_device device[GUARD_CONTEXTS];
    pthread_mutex_t lock; /* protects the fields below */
    struct guard *programs;
    uint32_t count; /* number of programs */
};

struct guard { /* one program */
    const struct verbs_library *lib;
    struct guard_shared *shared;
    struct guard *next;
    int pid;
    char name[40];                                                   /* for messages: " (NAME)", or "" */
    _Atomic uint32_t pairs[GUARD_CONTEXTS], regions[GUARD_CONTEXTS]; /* objects that the program has on each device */
    int fd, bell[2], program; /* program: becomes readable when the program ends; negative: not supported by this system */
    struct guard_page *page;
    struct table {
        void **at;
        uint32_t top, room;
    } table[KINDS];
    int64_t now;
    const char *broken; /* why the program's data is invalid; NULL: valid so far */
};

static inline void *guard_find(const struct guard *g, enum kind kind, uint64_t id)
{
    return id < g->table[kind].top ? g->table[kind].at[id] : NULL;
}

/* --- guard_shared.c: any thread may call these. Devices are numbered as in the list. Results are 0 or an errno --- */
void guard_shared_init(struct guard_shared *s);
int guard_shared_list(struct guard_shared *s);                                           /* reads the list of devices when first called */
int guard_shared_open(struct guard_shared *s, uint32_t index, struct ibv_context **out); /* ENODEV: there is no such device */
int guard_shared_close(struct guard_shared *s, uint32_t index);
int guard_shared_domain(struct guard_shared *s, uint32_t index, struct ibv_pd **out);
int guard_shared_free_domain(struct guard_shared *s, uint32_t index);
/* Writes a list of the processes, and how many objects each has on the device. */
void guard_shared_holders(struct guard_shared *s, uint32_t index, char *out, size_t len);
void guard_shared_enter(struct guard_shared *s, struct guard *g);
void guard_shared_leave(struct guard_shared *s, const struct guard *g);

/* --- guard_objects.c --- */
/* Executes a call, and returns the verb's result, 0 or an errno. On entry `fd` has the descriptor that arrived with the call; on return,
 * the descriptors to send with the answer. */
int guard_answer_call(struct guard *g, const struct guard_call *c, struct guard_answer *a, int fd[2]);
int guard_destroy(struct guard *g, enum kind kind, void *one); /* returns 0, EBUSY if another object still uses it, or another errno */

/* --- guard_move.c --- */
/* Queries the ports, unless the last query is less than `at_most` old. */
void guard_look(struct guard *g, struct context *c, int64_t at_most);
uint32_t guard_move_all(struct guard *g); /* moves requests and completions; returns how many */

/* --- guard_serve.c --- */
/* Serves the program at g->fd until it ends, then frees its objects, and closes g->fd last. If the program could not be served, returns a
 * negative errno, and also sends it to the program. */
int guard_serve_program(struct guard_shared *s, struct guard *g);

#endif
