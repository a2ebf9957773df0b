/* SPDX-License-Identifier: MIT
 *
 * Two or three processes on a fabric of their own; each is one side of a test. They exchange through a shared page what programs usually
 * exchange over a socket. At the end of a test nothing of any of them may be left (tear_down()).
 */
#ifndef SOFTVERBS_TESTS_SIDES_H
#define SOFTVERBS_TESTS_SIDES_H

#include "ground.h"

#include "../lib/engine.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 1 << 16 };

/* The shared page: what the sides tell each other. */
struct meeting {
    _Atomic uint32_t number[4], key[4], stage;
    _Atomic uint64_t address[4];
};

#define NEED(x)                                                                                      \
    do {                                                                                             \
        if (!(x)) {                                                                                  \
            fprintf(stderr, "%s:%d: side %d: %s (errno %d)\n", __FILE__, __LINE__, side, #x, errno); \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)

/* How to connect a queue pair: to RTR, and to RTS if `send`; then the sender's RNR retries, retries and RNR timer. */
struct how {
    uint32_t peer, peer_host;
    uint8_t rnr, retries, timeout, rnr_timer;
};

extern const struct how quick, stubborn;
extern struct meeting *meeting;
extern struct ground ground;
extern int side;
extern struct ibv_context *context;
extern struct ibv_pd *pd;
extern struct ibv_mr *mr;
extern char *memory;
extern struct ibv_comp_channel *channel;
extern struct ibv_cq *send_cq, *receive_cq;

void nap(long microseconds);
void await(uint32_t stage);
void say(uint32_t stage);
void begin(int which);
struct ibv_qp *make(enum ibv_qp_type type, struct ibv_srq *srq);
void connect_to(struct ibv_qp *qp, struct how how, bool ready, bool send);
struct how acquainted(const struct ibv_qp *qp, struct how how);
void connect_both(struct ibv_qp *qp, struct how how);
struct ibv_qp *pair(enum ibv_qp_type type, struct how how);
int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint64_t id, uint32_t bytes);
int receive(struct ibv_qp *qp, uint64_t id, uint32_t bytes);
struct ibv_wc next(struct ibv_cq *cq);
struct ibv_wc sleep_for(struct ibv_cq *cq);
pid_t start(int which, void (*body)(void));
int end(pid_t child);
int set_up(void **state);
void only_comes(void);
void nothing_left(void);
int tear_down(void **state);
void both(void (*a)(void), void (*b)(void));
enum { ROUNDS = 1000 };
/* Two sides that sleep on their channels during many messages. */
void sleepy_sender(void);
void sleepy_receiver(void);

#endif
