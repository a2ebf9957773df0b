/* SPDX-License-Identifier: MIT
 *
 * A simulated world for the tb protocol: nodes with pools, cables between some of them, devices that lose, delay, damage and reorder, and a
 * clock that only events move. One seed decides everything, so every schedule can be repeated.
 *
 * world.c has the clock and the events, nodes.c the nodes' loops and sessions, devices.c the devices, work.c the nodes' operations, and
 * work_check.c the checks of their results.
 */
#ifndef TEST_TB_SIM_H
#define TEST_TB_SIM_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fabric/records/endpoint.h"

#define US INT64_C(1000)
#define MS (1000 * US)
#define S  (1000 * MS)

#define NODES_MAX 5u
#define LANES_MAX 4u
#define QUEUES    (1u + LANES_MAX) /* queue pairs in a direction of a cable: control, lanes */
#define FIRST     4096u            /* the first byte of a pool that may be written */
/* The number of shared words, which begin at FIRST. Operations add to the words with an even index, and swap those with an odd index. */
#define WORDS 16u

struct chain;
struct world;

struct lane_config {
    uint32_t message, depth;
};

/* What goes wrong in this world; probabilities are in 1/100000. */
struct faults {
    uint32_t lose, lose_lane, twice, spoil, spoil_lane, reorder, withhold, refuse, stop, restart, hang, pull, deaf;
};

struct config {
    uint64_t seed;
    uint32_t nodes, lane_count;
    struct lane_config lanes[LANES_MAX];
    bool credits; /* a send waits for its receive; otherwise it is lost without one */
    enum tb_check check;
    uint64_t pool_bytes, segment;
    uint32_t control_depth; /* the depths of a control queue pair: receives, and sends */
    int64_t delay_most, idle_most, handle_most;
    uint32_t ops, burst, biggest;     /* log2 of the largest transfer */
    uint32_t words, shared, messages; /* percent of the operations; the others are blocks */
    uint32_t faults_percent; /* percent of the operations after which nothing goes wrong any more; 100: things go wrong until the end */
    bool heat;               /* some gets read memory that changes whenever a lane sends it */
    bool puts;               /* blocks are put one at a time, so nothing waits for a fence */
    bool one_sided;          /* only node 0 begins operations */
    bool wrap;               /* all counters start just before they wrap */
    struct faults faults;
};

struct send {
    struct end *end;        /* the endpoint whose frame buffer or pool holds the data; NULL: `copy` */
    uint32_t session, slot; /* of a control frame */
    uint64_t offset;        /* of a lane's message */
    uint8_t *copy;
    uint64_t sum; /* checksum of the data at the time of posting */
    uint32_t bytes;
    bool departed;
};

#define QUEUE_MAX 256u
/* One direction of a queue pair. */
struct queue {
    uint8_t from, to, number;
    uint32_t generation; /* messages that are under way are lost when this number grows */
    struct send sends[QUEUE_MAX];
    uint32_t send_first, send_next, departed; /* [send_first, departed) have been sent, and their completions have not come */
    uint64_t receives[QUEUE_MAX];
    uint32_t receive_first, receive_next, flying;
    bool leaving;
    int64_t last_arrival, last_sent, last_received;
    int64_t deaf_until; /* everything is lost */
};

struct message {
    struct message *next;
    uint32_t id, header_len, payload_len;
    uint8_t bytes[];
};

/* One node's end of its link with another node. */
struct end {
    struct world *w;
    uint32_t node, peer;
    struct tb_endpoint p;
    uint8_t *frames;
    bool up, flushing, pump, adjacent;
    struct fab_flush flush;           /* flushing: since when */
    uint64_t flush_chain, flush_sent; /* flushing: what had begun by then */
    uint16_t generation;              /* of its lanes */
    bool down, failing;               /* down: some lanes are down */
    int64_t armed;
    int64_t jammed_until[3];      /* frames, receives of lanes, sends of lanes: whether they are refused */
    uint64_t sent, came, handled; /* messages of this session */
    struct message *waiting, **waiting_end;
    uint32_t waiting_count;
    bool handling;
    struct chain *chains; /* operations under way */
    uint32_t chain_count;
};

enum done_kind { SENT, RECEIVED };
struct done { /* a completion in a node's completion queue */
    struct done *next;
    enum done_kind kind;
    struct queue *q;
    uint32_t generation;
    struct send send;
    uint8_t *frame;
    uint32_t bytes;
};

struct node {
    uint8_t *pool, *shadow;
    struct end ends[NODES_MAX];
    uint8_t route[NODES_MAX]; /* the next node on the way to */
    struct done *done, **done_end;
    bool waking;
    int64_t stopped_until;
    uint64_t word_sum[WORDS], word_maybe[WORDS]; /* added for certain, and possibly; values swapped in minus values swapped out */
    bool word_unknown[WORDS];
};

enum event_kind { LEAVE, ARRIVE, SENT_DONE, RECEIVE_DONE, WAKE, TIMER, PUMP, WORK, HANDLE, RESTART, COME_UP, LANES_UP };
struct event {
    int64_t at;
    uint64_t order;
    enum event_kind kind;
    uint32_t a, b, generation;
    struct queue *q;
    uint8_t *data;
    uint32_t bytes;
    bool lost;
};

struct world {
    struct config c;
    uint64_t random;
    int64_t now, faults_end;
    uint64_t order, steps;
    struct event *heap;
    uint32_t heap_count, heap_room;
    struct node nodes[NODES_MAX];
    struct queue *queues[NODES_MAX][NODES_MAX]; /* [QUEUES], or NULL: no cable */
    uint32_t begun, chains_open, restarting;
    uint32_t session;
    bool calm; /* nothing goes wrong any more */
    uint64_t ops_done, bytes_done;
    bool verbose;
};

_Noreturn void sim_fail(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t sim_random(struct world *w);
uint64_t sim_below(struct world *w, uint64_t n);      /* [0, n) */
bool sim_chance(struct world *w, uint32_t in_100000); /* the probability that something goes wrong */
void sim_at(struct world *w, int64_t at, const struct event *e);

/* Runs one world to its end; sim_fail() reports a failure. */
void sim_draw(struct config *c, uint64_t seed);
uint64_t sim_run(const struct config *c, bool verbose); /* counts the steps */
void sim_wake(struct world *w, uint32_t node, int64_t at);
static inline struct end *sim_end_of(struct world *w, uint32_t node, uint32_t peer)
{
    return &w->nodes[node].ends[peer];
}

/* --- nodes.c --- */
void sim_pump(struct end *e);
void node_wake(struct world *w, uint32_t node); /* the node handles its completions, then pumps */
void node_come_up(struct world *w, struct end *e, uint32_t session);
void node_drop_messages(struct end *e);
void node_restart(struct world *w, uint32_t a, uint32_t b); /* the session between two nodes ends, and a new one begins a little later */
void node_pull(struct world *w, uint32_t a, uint32_t b);

/* --- devices.c --- */
uint32_t device_room(const struct world *w, const struct queue *q);
void device_send(struct world *w, struct queue *q, const struct send *s);
void device_receive(struct world *w, struct queue *q, uint64_t offset);
void device_leave(struct world *w, struct queue *q);
void device_arrive(struct world *w, struct queue *q, struct event *e);
void device_completed(struct world *w, const struct event *e);
uint64_t device_sum(const uint8_t *at, uint32_t bytes);

/* --- work.c, work_check.c --- */
void work_begin(struct world *w, struct end *e); /* begins one operation, or a chain */
void work_complete(void *ctx, weft_op *op, int status);
bool work_message(void *ctx, uint32_t id, const void *header, uint32_t header_len, const void *payload, uint32_t payload_len);
void work_look(struct world *w, uint32_t node); /* call it after something was written to this node */
void work_flush(struct end *e);   /* begins a flush of the operations that have begun; tb_endpoint_flushed() is called from now on */
void work_flushed(struct end *e); /* call it when tb_endpoint_flushed() has become true */
void work_settle(struct end *e);  /* handles completed operations */
/* after tb_endpoint_fail(): all operations must be complete, with any result, and may still take effect */
void work_failed(struct end *e);
void work_ended(struct end *e); /* after tb_endpoint_end(): all operations must be complete, with any result */
void work_handle(struct end *e);
void work_check_all(struct world *w, uint32_t node);
void work_check_words(struct world *w);
/* Whether an operation under way may write to this memory of the node. */
void work_heat(struct world *w, uint32_t node, uint64_t offset, uint64_t bytes); /* the memory is about to be sent by a lane */
bool work_covers(struct world *w, uint32_t node, uint64_t offset, uint64_t bytes);

#endif
