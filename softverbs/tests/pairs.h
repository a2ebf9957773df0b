/* SPDX-License-Identifier: MIT
 *
 * Queue pairs of one device: the device, valid attributes, and the steps between states. A process can join only one fabric, so each group
 * of tests runs in a child process on a fabric of its own.
 */
#ifndef SOFTVERBS_TESTS_PAIRS_H
#define SOFTVERBS_TESTS_PAIRS_H

#include "lib/lib.h"

extern struct sv_model model;
extern struct ibv_context *context;
extern struct ibv_pd *pd;
extern struct ibv_cq *cq;

/* Set up and tear down a group of tests. */
int open_device(void **state);
int close_device(void **state);
const char *new_directory(void); /* for the fabrics of this process; NULL: it cannot be made */
/* Runs a group in a child process, on a new fabric. Returns 0 if all passed. */
int in_child(const char *directory, const char *fabric, const char *profile, int words, const char *const *word, int (*run)(void));

struct ibv_qp_init_attr asks(enum ibv_qp_type type);
struct ibv_qp *make(enum ibv_qp_type type);
const struct sv_device_model *device_of(uint32_t device);
uint32_t neighbour(void);       /* the device at the other end of device 0's cable; on a switch, another device of it */
struct ibv_qp_attr right(void); /* attributes with valid values, for any step */

enum { RESET = IBV_QPS_RESET, INIT, RTR, RTS, SQD, SQE, ERR };

/* The letter that stands for each attribute. */
#define LETTERS 20
extern const struct pair_letter {
    char letter;
    int bit;
} letters[LETTERS];

int bits(const char *text); /* the attributes whose letters these are */

/* The attributes that the specification requires and allows for a step. False: there is no such step. */
bool step_of(enum ibv_qp_type type, int from, int to, int *required, int *optional);
int step(struct ibv_qp *qp, int from, int to, int mask);
void bring(struct ibv_qp *qp, int to); /* brings a queue pair from RESET to a state, by the steps of the specification */
uint32_t state_of(struct ibv_qp *qp);
int to_rtr(struct ibv_qp *qp, struct ibv_qp_attr *a); /* brings it to INIT, and asks for RTR with these attributes */

#endif
