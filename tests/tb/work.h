/* SPDX-License-Identifier: MIT
 *
 * The operations of the nodes of sim.h: what work.c, which begins them, and work_check.c, which checks their results, share.
 */
#ifndef WEFT_TB_WORK_H
#define WEFT_TB_WORK_H

#include "sim.h"

#define STEPS_OF_CHAIN 6u

enum step_kind { PUT, SIGNAL, GET, MESSAGE, ADD, SWAP, CAS, SHARED };

struct range {
    struct range *next, **back;
    uint64_t low, high;
    bool written;
};

struct step {
    weft_op op;
    enum step_kind kind;
    bool has_op, done;
    uint8_t *local;         /* source or destination */
    bool in_pool;           /* `local` is in the pool; false: it was allocated for this step */
    uint64_t old, expected; /* of an atomic */
    bool answer;
    uint8_t *after; /* the bytes of the range after this step; allocated for it if `changes` */
    bool changes;
    uint64_t sum;       /* the value of the word after this step */
    struct range range; /* of `local` */
};

struct chain {
    struct chain *next;                       /* in the list of its end */
    struct chain *next_signal, **back_signal; /* in the list of its target node */
    uint64_t id;
    struct end *e;
    uint64_t to, len, word;
    uint8_t *first; /* the bytes of the range before the chain */
    uint64_t first_sum;
    bool signals, hot;
    bool failed;     /* it is unknown which of its operations took effect, until the next flush */
    uint64_t hot_at; /* offset of 8 bytes that change all the time */
    uint32_t count;
    struct range range, word_range;
    struct step steps[STEPS_OF_CHAIN];
};

extern struct range *ranges[NODES_MAX];
extern struct chain *signalled[NODES_MAX]; /* chains that signal to each node */
extern struct chain *hot[NODES_MAX];       /* at most one chain for each node */
extern uint64_t chain_id;

void give_range(struct world *w, struct range *r, uint32_t node);
uint8_t letter(uint64_t number, uint64_t i); /* byte `i` of a message */

#endif
