/* SPDX-License-Identifier: MIT
 *
 * gateway: services that nodes offer to each other, and those who ask for them. No room above needs more of it than the three functions
 * at the end.
 *
 * Each file here calls only those before it:
 *
 *   table.c     numbers for things that other nodes name; a number is not used twice
 *   watch.c     descriptors that a thread waits for: epoll, or poll
 *   groups.c    the process groups that this node runs, and the process that ends them when it is killed
 *   post.c      messages to other nodes, kept while there is no room
 *   stream.c    bytes from one node to another, with credits
 *   ask.c       requests of this node that are not answered yet
 *   serve.c     requests of others: the server's thread
 *   block.c     what a program is started with: the form of a request's data
 *   run.c       the process service: one process of an asker
 *   process.c   the process service
 *   name.c      the name service
 *   handle.c    the asker's processes (handle_bytes.c: their input and output; handle_record.c: of records)
 *   names.c     the asker's names
 *   services.c  the table of services
 *   record.c    records of programs and kernels
 *   room.c      messages, deaths, opening and closing
 *
 * A request: the asker enters it in its table and sends REQUEST, with the record and its data. The server's handler checks it and queues it
 * for the server's thread, which does it by the service's functions. ANSWER goes back by message, and the asker's handler completes what
 * waits. So a server writes into no record, and nothing late can reach one that is used for something else.
 *
 * A server has one thread. All that services keep is of this thread alone; what handlers share with it is under the room's lock.
 */
#ifndef WEFT_GATEWAY_ROOM_H
#define WEFT_GATEWAY_ROOM_H

#include <sys/uio.h>

#include "fabric/fabric.h"
#include "weft/gpu.h"
#include "weft/request.h"
#include "weft/service.h"

struct gateway;
struct gateway_server;

/* --- table.c: under the room's lock --- */
struct gateway_slot {
    uint64_t id; /* 0: free */
    void *object;
    uint32_t next, round;
};
struct gateway_table {
    struct gateway_slot *slots;
    uint32_t made, free, used; /* free: the first free one + 1; 0: none */
};
#define GATEWAY_TABLE_BITS 20u
/* 0: the table has 2^20 entries, or there is no memory. */
uint64_t gateway_table_add(struct gateway_table *t, void *object);
void *gateway_table_find(const struct gateway_table *t, uint64_t id); /* NULL: there is no such number, any more */
void gateway_table_remove(struct gateway_table *t, uint64_t id);
/* The i-th that there is, from `*at` on; NULL: no more. */
void *gateway_table_next(const struct gateway_table *t, uint32_t *at);
void gateway_table_free(struct gateway_table *t);

/* --- watch.c: one thread --- */
enum { GATEWAY_READABLE = 1, GATEWAY_WRITABLE = 2 };
struct gateway_watch {
    int fd; /* -1: not watched */
    unsigned events;
    void (*ready)(struct gateway_watch *watch);
    void *arg;
};
struct gateway_watches;
int gateway_watches_open(struct gateway_watches **out);
void gateway_watches_close(struct gateway_watches *all);
/* Call watch->ready() whenever its descriptor is ready for one of the events, or has failed. A negative errno without a sentence. */
int gateway_watch(struct gateway_watches *all, struct gateway_watch *watch, int fd, unsigned events);
void gateway_watch_events(struct gateway_watches *all, struct gateway_watch *watch, unsigned events); /* 0: not now */
void gateway_unwatch(struct gateway_watches *all, struct gateway_watch *watch);                       /* the descriptor is closed */
void gateway_watches_wait(struct gateway_watches *all, int64_t timeout_ns);

/* --- groups.c --- */
#define GATEWAY_PROCESSES 1024u
struct gateway_groups;
/* Makes a process: early, before this one has much that a new process would inherit. */
int gateway_groups_open(struct gateway_groups **out);
/* Where the new process writes its number. NULL: all are used. Given back with 0 in it. */
_Atomic int32_t *gateway_groups_place(struct gateway_groups *all);
void gateway_groups_close(struct gateway_groups *all);

/* --- messages --- */
enum { GATEWAY_HANDLER = FAB_ROOM_HANDLERS(3) };
enum gateway_message_type {
    GATEWAY_OFFERS = 1, /* word 0: bit i: the sender offers the service with the number i */
    GATEWAY_REQUEST,    /* word 0: its number at the sender; word 1: hash of its data; payload: the record, and its data if it fits */
    GATEWAY_ANSWER,     /* to: the request; words: as the service says; payload: a sentence, or what the service says */
    GATEWAY_CANCEL,     /* word 0: the request's number at the sender */
    GATEWAY_DATA,       /* to: the stream; word 0: the sender's; 1: position; 2: bytes; 3: 1: these are the last; payload: the bytes, else
                           they are in the ring; status: of the end */
    GATEWAY_CREDIT,     /* to: the stream; word 0: how much has been taken from it */
    GATEWAY_SHUT,       /* to: the stream: its reader wants no more */
    GATEWAY_END,        /* to: the asker's process, which has ended: struct gateway_end */
};
#define GATEWAY_WORDS 6u
struct gateway_message {
    uint8_t type;
    uint8_t zero[3];
    int32_t status;
    uint64_t to;
    uint64_t word[GATEWAY_WORDS];
};
_Static_assert(sizeof(struct gateway_message) == WEFT_HEADER_MAX, "a message's header");
_Static_assert(sizeof(weft_request) + WEFT_REQUEST_INLINE == WEFT_PAYLOAD_MAX, "a request with its data");

/* --- post.c --- */
struct gateway_posts;
int gateway_posts_open(struct gateway *g);
void gateway_posts_free(struct gateway *g);
/* Send, or keep it and send it as soon as there is room. In order, as long as one thread at a time posts what is in order. Never waits,
 * and is not called with the room's lock held. -ECONNRESET: the node is gone. */
int gateway_post(struct gateway *g, uint32_t node, const struct gateway_message *m, const void *payload, size_t len);
bool gateway_posts_flush(struct gateway *g); /* true: some are left */

/* --- stream.c --- */
#define GATEWAY_RING       (UINT64_C(64) << 10)
#define GATEWAY_RING_LEAST (UINT64_C(4) << 10)
#define GATEWAY_RING_MOST  (UINT64_C(16) << 20)
/* What is to be sent when the lock is no longer held. */
struct gateway_credit {
    uint32_t node;
    struct gateway_message m; /* type 0: nothing */
};
/* One end of a stream. All under the room's lock. `first` is how much has been taken from the ring, `last` how much has come (or was
 * sent): the ring holds what is between them. */
struct gateway_stream {
    struct gateway *g;
    uint64_t id, peer;          /* here, and at the other end; 0: not known yet */
    uint32_t node;              /* the other end's */
    bool sends;                 /* it is this end that sends */
    bool ended;                 /* the last bytes have come, or were sent */
    bool shut;                  /* nobody reads any more */
    bool busy;                  /* a thread reads or writes */
    int status;                 /* of the end; a negative errno: the bytes are not all */
    weft_gaddr ring;            /* in the reader's pool */
    uint64_t bytes;             /* of it: a power of two */
    uint8_t *memory;            /* the ring; NULL: it cannot be reached from here by loads and stores */
    uint64_t first, last, told; /* told: how much credit the sender was given */
    /* Something of this has changed. Called with the lock held. */
    void (*moved)(struct gateway_stream *s);
    void *arg;
    struct gateway_credit due;         /* what moved() leaves to be sent */
    struct gateway_stream *next_moved; /* the server's */
    bool listed;
};
bool gateway_ring_fits(uint64_t bytes);
/* An end that reads; its ring is in this node's pool. */
int gateway_stream_read(struct gateway *g, uint32_t node, uint64_t bytes, void (*moved)(struct gateway_stream *), void *arg,
                        struct gateway_stream **out);
/* An end that writes to such a ring: checks it. */
int gateway_stream_write(struct gateway *g, uint32_t node, uint64_t peer, weft_gaddr ring, uint64_t bytes,
                         void (*moved)(struct gateway_stream *), void *arg, struct gateway_stream **out);
/* Forget this end. The other one is told. NULL is allowed. */
void gateway_stream_close(struct gateway_stream *s);
/* Reader, with the lock held: where its next bytes are, without a gap, and that so many have been read. */
uint64_t gateway_stream_next(const struct gateway_stream *s, const uint8_t **at);
void gateway_stream_take(struct gateway_stream *s, uint64_t n, struct gateway_credit *due);
void gateway_credit_give(struct gateway *g, const struct gateway_credit *due); /* without the lock */
/* Writer, one thread at a time: how much there is room for, and where, if the ring can be reached: in at most two pieces. */
uint64_t gateway_stream_room(struct gateway_stream *s, struct iovec piece[2]);
/* So many bytes are in the ring, or (where it cannot be reached) in `bytes`, at most WEFT_PAYLOAD_MAX. `last`: no more will come. */
int gateway_stream_send(struct gateway_stream *s, const void *bytes, uint64_t n, bool last, int status);
/* Messages and deaths; on any thread, without the lock. */
void gateway_stream_message(struct gateway *g, uint32_t from, const struct gateway_message *m, const void *payload, size_t len);
void gateway_streams_gone(struct gateway *g, uint32_t node);

/* --- ask.c --- */
struct gateway_result {
    int status;
    uint64_t word[GATEWAY_WORDS];
    const uint8_t *payload;
    size_t len;
};
struct gateway_ask;
/* The answer, or that there will be none. With the room's lock held: it must be quick, and send nothing. */
typedef void (*gateway_tell_fn)(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r);
struct gateway_ask {
    uint64_t id;
    uint32_t node;
    uint16_t service, kind;
    bool told; /* of the answer, or that nobody waits for it any more */
    int64_t deadline;
    weft_op *op; /* by which it can be cancelled; NULL: by none */
    gateway_tell_fn tell, late;
    void *arg;
    weft_gaddr data; /* freed with it; WEFT_NULL: none */
};
struct gateway_question {
    const weft_request *record; /* copied */
    const void *data;           /* record->data_bytes of them, in this node's pool if they are more than WEFT_REQUEST_INLINE */
    gateway_tell_fn tell;
    gateway_tell_fn late; /* the answer, when nobody waits for it any more, without the lock: gives back what it gave. May be NULL */
    void *arg;
    weft_op *op;
    weft_gaddr owned; /* freed when the request is done; not if this call fails */
    bool post;        /* do not wait for room towards the node */
};
/* Ask. `id` (may be NULL) is its number, for gateway_leave(). On an error tell() is not called. */
int gateway_ask(struct gateway *g, const struct gateway_question *q, uint64_t *id);
/* Nobody waits any more, for this reason; 0: tell() is not called. False: it has been answered. */
bool gateway_ask_leave(struct gateway *g, uint64_t id, int why);
/* Ask, and wait for the answer: its status, with a sentence. `out` may be NULL; its payload is not kept, but goes to `payload` (may be
 * NULL; `payload_len`: room, then what there was). */
int gateway_ask_wait(struct gateway *g, struct gateway_question *q, int64_t timeout_ns, struct gateway_result *out, void *payload,
                     size_t *payload_len);
void gateway_ask_answered(struct gateway *g, uint32_t from, const struct gateway_message *m, const void *payload, size_t len);
bool gateway_ask_cancel(struct gateway *g, const weft_op *op);
void gateway_asks_gone(struct gateway *g, uint32_t node);
int64_t gateway_asks_tick(struct gateway *g, int64_t now);
void gateway_asks_end(struct gateway *g, int why); /* all of them */
/* -EOPNOTSUPP, with a sentence that says who offers it. */
int gateway_refuse(struct gateway *g, uint32_t node, uint32_t service);
const char *gateway_service_name(const struct gateway *g, uint32_t service);
void gateway_tell_nobody(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r);
/* The sentence of a status; `text` (may be NULL): that of the server. Returns the status. */
int gateway_ask_status(struct gateway *g, const weft_request *r, int status, const char *text);

/* --- serve.c --- */
/* A request of another node (or this one), until it is answered. Of the server's thread. */
struct gateway_call {
    struct gateway_server *server;
    const struct gateway_service *service;
    uint32_t node; /* who asks */
    uint64_t ask;  /* its number there */
    weft_request record;
    uint8_t *data; /* record.data_bytes of them */
    uint64_t hash;
    struct gateway_call *hashed, *next; /* next: of those that have arrived, then of the service's */
    bool begun;                         /* the service has it */
    bool fetching;                      /* `fetch` is under way */
    _Atomic bool cancelled;
    weft_op fetch;
};
/* A new service: a file, and a line in services.c. All but `submit` are called on the server's thread. */
struct gateway_service {
    const char *name;
    uint16_t number;
    int (*open)(struct gateway_server *s, void **state);
    void (*close)(void *state);
    /* A request has come. It is answered at once or later, by gateway_answer(). The record is checked as far as all records are alike. */
    void (*begin)(void *state, struct gateway_call *c);
    void (*cancel)(void *state, struct gateway_call *c); /* answer it now */
    void (*gone)(void *state, uint32_t node);            /* its requests have been cancelled */
    int64_t (*tick)(void *state, int64_t now);           /* NULL: none. Returns after how many ns to call it again at the latest */
    /* The asker's end of records, on any thread; all may be NULL. submit(): does what needs no server, and prepares what does. 1: it goes
     * on to the server; else the status of the answer, whose words are in r->result. `arg` is for told(): turns the answer into r->result,
     * with the room's lock held. late(): see struct gateway_question. */
    int (*submit)(struct gateway *g, weft_request *r, void *data, uint64_t *arg);
    void (*told)(struct gateway *g, weft_request *r, uint64_t arg, const struct gateway_result *result, void *data);
    gateway_tell_fn late;
};
#define GATEWAY_SERVICES_MAX 63u
int gateway_server_open(struct gateway *g);
int gateway_server_start(struct gateway *g); /* its thread */
void gateway_server_end(struct gateway *g);  /* and all that its services do */
void gateway_server_free(struct gateway *g);
/* Handlers: */
void gateway_server_request(struct gateway *g, uint32_t from, const struct gateway_message *m, const void *payload, size_t len);
void gateway_server_cancel(struct gateway *g, uint32_t from, uint64_t ask);
void gateway_server_gone(struct gateway *g, uint32_t node);
/* For services: */
void gateway_answer(struct gateway_call *c, int status, const uint64_t *words, unsigned count, const void *payload, size_t len);
void gateway_answer_error(struct gateway_call *c, int status); /* with the sentence of this thread */
struct gateway *gateway_of(struct gateway_server *s);
struct gateway_watches *gateway_server_watches(struct gateway_server *s);
struct gateway_groups *gateway_server_groups(struct gateway_server *s);
/* For streams of services: moved() puts the stream on a list, and the server's thread calls `on_moved` of its argument. */
struct gateway_listener {
    void (*on_moved)(struct gateway_listener *l, struct gateway_stream *s);
};
void gateway_server_moved(struct gateway_stream *s);                                 /* with `arg`: a gateway_listener */
void gateway_server_unlist(struct gateway_server *s, struct gateway_stream *stream); /* before such a stream is closed */

/* --- block.c --- */
struct gateway_block {
    const char *program, *directory;
    char **argv, **env; /* ended by NULL; env: the changes */
    uint32_t argc, envc, limit_count;
    weft_process_limit limits[WEFT_LIMITS];
    void *memory;
};
/* Read what a SPAWN carries. All is checked. -EINVAL with a sentence, -ENOMEM. `out` points into `data`. */
int gateway_block_read(struct gateway_block *out, const weft_request *r, const uint8_t *data);
void gateway_block_clear(struct gateway_block *b);
/* The environment of a process: `base` with the changes. One allocation, which the caller frees. NULL: no memory. */
char **gateway_environment(char *const *base, char *const *changes);
/* The other way: the data of a SPAWN. -EINVAL, -E2BIG with a sentence, -ENOMEM. */
int gateway_block_write(const weft_spawn_spec *spec, weft_request *r, uint8_t **data);

/* --- process.c, name.c, handle.c, names.c --- */
struct gateway_end {
    int32_t status, signal;
    uint32_t timed_out, zero;
    uint64_t user_ns, system_ns, memory_bytes;
};
extern const struct gateway_service gateway_process, gateway_name;
int gateway_process_submit(struct gateway *g, weft_request *r, void *data, uint64_t *arg);
void gateway_process_told(struct gateway *g, weft_request *r, uint64_t arg, const struct gateway_result *result, void *data);
void gateway_process_late(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r);
int gateway_name_submit(struct gateway *g, weft_request *r, void *data, uint64_t *arg);
void gateway_name_told(struct gateway *g, weft_request *r, uint64_t arg, const struct gateway_result *result, void *data);
void gateway_handle_ended(struct gateway *g, uint32_t from, const struct gateway_message *m, const void *payload, size_t len);
bool gateway_handle_cancel(struct gateway *g, const weft_op *op);
void gateway_handles_gone(struct gateway *g, uint32_t node);
void gateway_handles_tick(struct gateway *g);
void gateway_handles_free(struct gateway *g);

/* --- services.c --- */
extern const struct gateway_service *const gateway_services[];
/* "process,name" to bits. -EINVAL with a sentence. */
int gateway_services_read(const char *text, uint64_t *out);

/* --- record.c --- */
void gateway_record_of_kernel(weft_node *w, void *record, weft_gpu_call *call, void *arg);

/* --- the room --- */
struct gateway {
    struct weft_node *w;
    const struct gateway_service *const *services; /* ended by NULL */
    base_spin lock;
    struct gateway_table asks, streams, processes;
    int64_t next_deadline;
    uint32_t *outstanding;    /* [size]: this node's requests there; under the lock */
    _Atomic uint64_t *offers; /* [size]: bits of services */
    struct gateway_posts *posts;
    struct gateway_server *server; /* NULL: this node offers nothing */
    uint64_t offered;
    struct gateway_groups *groups;
    struct weft_process *failed; /* those of records that could not be started, to be freed; under the lock */
    _Atomic bool closing;
};
static inline struct gateway *gateway_in(weft_node *w)
{
    return w->gateway;
}

/* What has to be made before the node is; NULL: it runs no processes for others. gateway_open() takes it over, also when it fails. */
int gateway_prepare(const char *serve, struct gateway_groups **out);
void gateway_groups_close(struct gateway_groups *all); /* when it does not come to that */
int gateway_open(struct weft_node *w, const char *serve, struct gateway_groups *groups);
int gateway_start(struct weft_node *w);  /* the node has joined */
void gateway_leave(struct weft_node *w); /* the node closes: ends what it does for others, and what waits for others */

#endif
