/* SPDX-License-Identifier: MIT
 *
 * gateway: the services that nodes offer to each other (weft/service.h, weft/net.h, weft/file.h), and the requests for them. Other
 * directories call only the functions at the end of this header.
 *
 * Each file here calls only those before it:
 *
 *   table.c     gives objects numbers by which other nodes name them; no number is used twice
 *   ready_epoll.c, ready_kqueue.c   which descriptors are ready, as the system tells it (ready.h)
 *   watch.c     waits for descriptors
 *   turn.c      lets the progress thread serve in place of a thread that sleeps
 *   work.c      runs blocking work on a few threads
 *   groups.c    the programs that this node runs for other nodes, and the guardian process that ends them
 *   post.c      messages to other nodes, queued while there is no room to send them
 *   stream.c    byte streams between nodes, with flow control by credit
 *   ask.c       asker: the node's requests that are not answered yet
 *   serve.c     requests of other nodes: the server thread
 *   serve_turn.c   the progress thread does a little in its place
 *   block.c     packs program, arguments, environment and limits into the data of a request, and unpacks them
 *   pty.c       process service: the pseudo-terminal of one process
 *   run.c       process service: input and output of one process
 *   process.c   process service: starts and ends processes
 *   name.c      name service
 *   net_rules.c, net_names.c, net_udp.c, net_socket.c, net_lend.c, net_open.c, net.c   net service (net.h)
 *   handle.c asker's side of the process service (handle_signal.c: signals; handle_bytes.c: input and output; handle_record.c: requests by
 *               record)
 *   names.c     asker's side of the name service
 *   net_handle.c, net_datagrams.c, net_bytes.c, net_borrow.c   asker's side of the net service
 *   file_path.c, file_disk.c, file_holder.c, file_cache.c, file_job.c, file_watch.c, file_lease.c, file_write.c, file.c file service
 *               (file.h)
 *   file_keep.c, file_handle.c, file_slot.c, file_read.c, file_map.c, file_async.c   asker's side of the file service
 *   record_object.c, record_copy.c, net_record.c, file_record_read.c, file_record.c   requests by record (record.h)
 *   services.c  the table of services
 *   record.c    takes records from programs and GPU kernels
 *   room.c      incoming messages, deaths of nodes, opening and closing
 *
 * The asker is the node that sends a request. It enters the request in its table and sends a REQUEST message with the record and its data.
 * The server's message handler checks the request and queues it for the server thread, which calls the service's functions. The answer
 * comes in an ANSWER message, whose handler at the asker completes the operation. So a late answer cannot overwrite a record that is used
 * for another request.
 *
 * A server has one thread, which alone uses the state of services. gateway.lock protects what it shares with message handlers.
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
struct weft_socket;

/* --- table.c: called with gateway.lock held --- */
struct gateway_slot {
    uint64_t id; /* 0: the slot is free */
    void *object;
    uint32_t next, round;
};
struct gateway_table {
    struct gateway_slot *slots;
    uint32_t made, free, used; /* made: slots that exist; free: index of the first free slot plus 1, 0: none is free; used: objects */
};
#define GATEWAY_TABLE_BITS 20u
/* Adds an object and returns its number. Returns 0 if the table has 2^20 entries, or if there is no memory. */
uint64_t gateway_table_add(struct gateway_table *t, void *object);
void *gateway_table_find(const struct gateway_table *t, uint64_t id); /* returns NULL if no object has this number any more */
void gateway_table_remove(struct gateway_table *t, uint64_t id);
/* Iterates: the next object from index `*at` on; advances `*at`. Returns NULL if there are no more. */
void *gateway_table_next(const struct gateway_table *t, uint32_t *at);
void gateway_table_free(struct gateway_table *t);

/* --- watch.c: called only by the thread that waits, or by a thread that works in its place (gateway_watches_try()) --- */
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
/* From now on watch->ready() is called whenever the descriptor is ready for one of the events, or has failed. Returns 0 or a negative
 * errno; sets no weft_error() text. */
int gateway_watch(struct gateway_watches *all, struct gateway_watch *watch, int fd, unsigned events);
void gateway_watch_events(struct gateway_watches *all, struct gateway_watch *watch,
                          unsigned events);                                     /* 0: stop waiting for events, but keep the descriptor */
void gateway_unwatch(struct gateway_watches *all, struct gateway_watch *watch); /* also closes the descriptor */
void gateway_watches_wait(struct gateway_watches *all, int64_t timeout_ns);
/* Lets the caller work in place of the thread that waits for the descriptors, until gateway_watches_leave(). Returns false if the thread
 * that waits is awake, or if yet another thread works in its place. */
bool gateway_watches_try(struct gateway_watches *all);
void gateway_watches_leave(struct gateway_watches *all);

/* --- turn.c --- */
/* Work that has arrived in a message for a thread of a service that sleeps. The progress thread, which has handled the message, does a
 * little of this work itself, so that the sleeping thread need not be woken. */
struct gateway_turn {
    struct gateway_turn *next;
    bool listed;   /* the thread that handles a message will call run() */
    uint32_t runs; /* number of threads that are in run() now */
    /* called without gateway.lock. Does only little work, and never waits. If work is left, calls wake() */
    void (*run)(struct gateway_turn *t);
    void (*wake)(struct gateway_turn *t); /* wakes the sleeping thread; called with or without gateway.lock */
    void *arg;
};
/* Call this, with gateway.lock held, when the sleeping thread has something to do. If the caller handles a message and may work in place of
 * the sleeping thread, run() is called after the message. Otherwise wake() is called now. */
void gateway_turn(struct gateway_turn *t);
/* Waits until run() is not running, and earlier calls of gateway_turn() will not start it. Handlers must not call this. */
void gateway_turn_close(struct gateway *g, struct gateway_turn *t);
/* Call gateway_turns_begin() before a message is handled and gateway_turns_end() after it; the caller does not hold gateway.lock. */
struct gateway_turns {
    struct gateway_turn *first;
    bool collects;
};
void gateway_turns_begin(struct gateway_turns *t);
void gateway_turns_end(struct gateway *g, struct gateway_turns *t);

/* Like socket() and accept(), for connections that serve other nodes. The descriptors are nonblocking and close-on-exec. Return the
 * descriptor or a negative errno. Returns -EMFILE if only the descriptors that are reserved for the process itself are left. */
int gateway_socket(int family, int type);
int gateway_accept(int listener);
uint64_t gateway_connections_max(void); /* descriptors below this number are for connections of others */

/* Shares `all` items between askers. Returns whether an asker that has `own` items may have one more, while `used` items are in use. An
 * asker may have up to three times as many items as are unused. So one asker alone gets three quarters of them, and an asker without items
 * always gets some. */
static inline bool gateway_share_allows(uint32_t own, uint32_t used, uint32_t all)
{
    return used < all && own / 3 < all - used;
}

/* --- work.c --- */
struct gateway_work {
    struct gateway_work *next;
    uint32_t asker;                         /* the asker for which the job is done */
    bool left;                              /* nobody waits for the job any more */
    void (*run)(struct gateway_work *job);  /* does the work of the job on one of the threads; may block */
    void (*done)(struct gateway_work *job); /* called after run(), on the thread that gateway_works_open() says. May free the job */
};
struct gateway_works;
struct gateway_works_how {
    uint32_t threads;
    uint32_t askers; /* number of askers that share the threads; 0: jobs run in the order in which they arrived */
    uint32_t queued; /* how many jobs may be queued or running; the askers share this number; 0: no limit */
    bool leaves;     /* closing does not wait for running jobs */
    /* Frees a job whose done() will not be called, because nobody waits for the job or the threads were closed. Called on any thread. */
    void (*drop)(struct gateway_work *job);
};
/* `watches`: the thread that waits for these watches calls done(). If `watches` is NULL, the thread that ran the job calls done(). */
int gateway_works_open(struct gateway_works **out, struct gateway_watches *watches, const struct gateway_works_how *how);
/* Queues a job. Returns -EDQUOT if too many jobs are queued, or another negative errno if no thread can be started. Sets no error text. */
int gateway_work(struct gateway_works *all, struct gateway_work *job);
/* Does not run the job, but lets done() be called for it later. */
void gateway_work_skip(struct gateway_works *all, struct gateway_work *job);
/* Nobody waits for the job any more: drop() will be called for it. Call this on the thread that waits for the watches. */
void gateway_work_leave(struct gateway_works *all, struct gateway_work *job);
void gateway_works_close(struct gateway_works *all);

/* --- groups.c --- */
#define GATEWAY_PROCESSES 1024u
struct gateway_groups;
/* Starts the guardian process. Call this early, before this process has memory and descriptors that the guardian would inherit. */
int gateway_groups_open(struct gateway_groups **out);
/* A program, in memory shared with the guardian. */
struct gateway_place {
    /* number of its process group; 0: the place is free; -1: the place is reserved for a process that has not started yet */
    _Atomic int32_t number;
    _Atomic uint32_t state; /* groups.c */
    _Atomic bool session;   /* the process has a terminal, and leads a session */
    _Atomic uint64_t mark;  /* mark of the program's family (base_family_mark()) */
};
/* Returns a free place. The caller stores the new process's ID in `number`, and later 0 to free the place. Returns NULL if all places are
 * used. */
struct gateway_place *gateway_groups_place(struct gateway_groups *all);
/* Makes the guardian end the program with all its descendants. If the program has a terminal, the guardian hangs it up before that. Do not
 * reap the process until gateway_groups_ended() returns true, or until a deadline, since the guardian may be stopped. */
void gateway_groups_end(struct gateway_groups *all, struct gateway_place *p);
bool gateway_groups_ended(const struct gateway_groups *all, const struct gateway_place *p);
void gateway_groups_close(struct gateway_groups *all);

/* --- messages --- */
enum { GATEWAY_HANDLER = FAB_ROOM_HANDLERS(3) };
enum gateway_message_type {
    GATEWAY_OFFERS = 1, /* word 0: if bit i is set, the sender offers service i */
    GATEWAY_REQUEST,    /* word 0: the request's number at the sender; word 1: hash of its data; payload: the record, and its data if it
                           fits */
    GATEWAY_ANSWER,     /* `to`: the request; words: defined by the service; payload: an error text, or defined by the service */
    GATEWAY_CANCEL,     /* word 0: the request's number at the sender */
    GATEWAY_DATA, /* `to`: the receiver's stream; word 0: the sender's number of it; word 1: position; word 2: number of bytes; word 3: 1 if
                     these bytes are the last; payload: the bytes, or nothing if the bytes are in the ring; status: how the stream ended */
    GATEWAY_CREDIT,  /* `to`: the stream; word 0: how many bytes the reader has taken so far */
    GATEWAY_SHUT,    /* `to`: the stream; its reader reads no more */
    GATEWAY_END,     /* `to`: the asker's number of the process that has ended; payload: struct gateway_end */
    GATEWAY_CHANGED, /* `to`: the server's number of the file that has changed */
    GATEWAY_UNREAD,  /* `to`: the asker's number of a process that reads no more input; word 0: the stream of the process's input. The asker
                        may be writing into the stream's ring, so the asker ends the stream, and only then is the ring freed */
};
#define GATEWAY_WORDS 6u
struct gateway_message {
    uint8_t type;
    uint8_t zero[3];
    int32_t status; /* 0 or a negative errno. While the message is under way, it is Linux's errno: gateway_post() converts from this
                       system's errno, and on_message() converts back */
    uint64_t to;
    uint64_t word[GATEWAY_WORDS];
};
_Static_assert(sizeof(struct gateway_message) == WEFT_HEADER_MAX, "the header of a message has its fixed size");
_Static_assert(sizeof(weft_request) + WEFT_REQUEST_INLINE == WEFT_PAYLOAD_MAX, "a request with its data fits into one message");

/* --- post.c --- */
struct gateway_posts;
int gateway_posts_open(struct gateway *g);
void gateway_posts_free(struct gateway *g);
/* Sends a message, or queues it until there is room; never waits. Messages of one thread arrive in order. Call this without gateway.lock: a
 * message to this node itself is handled before the call returns. Returns -ECONNRESET if the node is gone. */
int gateway_post(struct gateway *g, uint32_t node, const struct gateway_message *m, const void *payload, size_t len);
bool gateway_posts_flush(struct gateway *g); /* sends queued messages; returns whether some are left */

/* --- stream.c --- */
#define GATEWAY_RING       (UINT64_C(64) << 10)
#define GATEWAY_RING_LEAST (UINT64_C(4) << 10)
#define GATEWAY_RING_MOST  (UINT64_C(16) << 20)
/* A message that is prepared while gateway.lock is held, and sent after the lock is released. */
struct gateway_credit {
    uint32_t node;
    struct gateway_message m; /* type 0: nothing */
};
/* One end of a stream, guarded by gateway.lock. `first` is how many bytes were taken from the ring so far, and `last` how many were
 * received or sent so far. The ring holds the bytes between these positions. */
struct gateway_stream {
    struct gateway *g;
    uint64_t id, peer;          /* the stream's number here and at the other end; 0: not known yet */
    uint32_t node;              /* the node of the other end */
    bool sends;                 /* this end writes; false: it reads */
    bool fetches;               /* this end reads, and fetches the bytes, because the ring is in the writer's pool */
    bool owned;                 /* the ring is freed with this end */
    bool ended;                 /* the last bytes were received, or sent */
    bool shut;                  /* the reader reads no more */
    bool busy;                  /* a thread is reading or writing */
    int status;                 /* how the stream has ended; a negative errno: bytes are missing */
    weft_gaddr ring;            /* address of the ring: in the reader's pool, or in the writer's pool if the reader fetches */
    uint64_t bytes;             /* size of the ring, a power of two */
    uint8_t *memory;            /* the ring; NULL: this process cannot map it */
    uint64_t first, last, told; /* told: the value of `first` in the last CREDIT message */
    /* Called while gateway.lock is held, when the stream's state has changed. */
    void (*moved)(struct gateway_stream *s);
    void *arg;
    struct gateway_credit due;         /* a message that moved() has prepared; it is sent after the lock is released */
    struct gateway_stream *next_moved; /* the server thread's list of changed streams */
    bool listed;
};
bool gateway_ring_fits(uint64_t bytes);
/* Makes the reading end of a stream, with a ring in this node's pool. */
int gateway_stream_read(struct gateway *g, uint32_t node, uint64_t bytes, void (*moved)(struct gateway_stream *), void *arg,
                        struct gateway_stream **out);
/* Makes the writing end of a stream. Checks the peer's ring. */
int gateway_stream_write(struct gateway *g, uint32_t node, uint64_t peer, weft_gaddr ring, uint64_t bytes,
                         void (*moved)(struct gateway_stream *), void *arg, struct gateway_stream **out);
/* Make the ends of a stream whose ring is memory of the asker. The asker frees the ring after both ends are closed. read_at: the asker's
 * end, which reads. offer: the asker's end, which writes. In both, `peer` is set when the server has answered. fetch: the server's end of
 * an offered stream. Checks the ring, and later reads the bytes from it. */
int gateway_stream_read_at(struct gateway *g, uint32_t node, weft_gaddr ring, uint64_t bytes, void (*moved)(struct gateway_stream *),
                           void *arg, struct gateway_stream **out);
int gateway_stream_offer(struct gateway *g, uint32_t node, weft_gaddr ring, uint64_t bytes, void (*moved)(struct gateway_stream *),
                         void *arg, struct gateway_stream **out);
int gateway_stream_fetch(struct gateway *g, uint32_t node, uint64_t peer, weft_gaddr ring, uint64_t bytes,
                         void (*moved)(struct gateway_stream *), void *arg, struct gateway_stream **out);
/* Closes this end and tells the other one. NULL is allowed. */
void gateway_stream_close(struct gateway_stream *s);
/* For the reader, with the lock held. next: returns how many bytes can be read in one piece, and where they are. take: `n` of these bytes
 * were read. */
uint64_t gateway_stream_next(const struct gateway_stream *s, const uint8_t **at);
void gateway_stream_take(struct gateway_stream *s, uint64_t n, struct gateway_credit *due);
void gateway_credit_give(struct gateway *g, const struct gateway_credit *due); /* the caller does not hold gateway.lock */
/* For the writer, one thread at a time. Returns for how many bytes the ring has room. If the ring is mapped, `piece` says where this room
 * is, in at most two pieces. */
uint64_t gateway_stream_room(struct gateway_stream *s, struct iovec piece[2]);
/* Announces `n` bytes that were written into the ring. If the ring is not mapped, sends the `n` bytes at `bytes`, at most WEFT_PAYLOAD_MAX.
 * `last`: the stream ends here. */
int gateway_stream_send(struct gateway_stream *s, const void *bytes, uint64_t n, bool last, int status);
/* Handle a message about a stream, and the death of a node. Called on any thread, which does not hold gateway.lock. */
void gateway_stream_message(struct gateway *g, uint32_t from, const struct gateway_message *m, const void *payload, size_t len);
void gateway_streams_gone(struct gateway *g, uint32_t node);

/* --- ask.c --- */
struct gateway_result {
    int status;
    bool answered; /* the server does not work on the request any more: the server has answered, or the request was never sent */
    uint64_t word[GATEWAY_WORDS];
    const uint8_t *payload;
    size_t len;
};
struct gateway_ask;
/* A function that gets the answer to a request, or an error if there will be no answer. Called with gateway.lock held, so it must be quick,
 * and send nothing. */
typedef void (*gateway_tell_fn)(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r);
struct gateway_ask {
    uint64_t id;
    uint32_t node;
    uint16_t service, kind;
    uint64_t handle; /* if the request starts a process: the asker's number of the process */
    bool told;       /* tell() was called, or no thread waits for the answer any more */
    int64_t deadline;
    weft_op *op; /* the op with which the program can cancel the request; NULL: there is no op */
    gateway_tell_fn tell, late;
    void *arg;
    weft_gaddr data; /* memory that is freed with the request; WEFT_NULL: none */
};
struct gateway_question {
    const weft_request *record; /* copied */
    const void *data;           /* record->data_bytes bytes. More than WEFT_REQUEST_INLINE bytes must be in this node's pool */
    gateway_tell_fn tell;
    /* Called with the answer, without the lock, if no thread waits for the answer any more: releases what the server has allocated. May be
     * NULL. */
    gateway_tell_fn late;
    void *arg;
    weft_op *op;
    weft_gaddr owned; /* memory that is freed when the request ends, unless gateway_ask() fails */
    bool post;        /* queue the message if there is no room, instead of waiting */
};
/* Sends a request. `*id` (`id` may be NULL) becomes the request's number, for gateway_ask_leave(). If this function fails, tell() is not
 * called. */
int gateway_ask(struct gateway *g, const struct gateway_question *q, uint64_t *id);
/* Sends a request without waiting, and ignores its answer. */
void gateway_ask_ignore(struct gateway *g, const weft_request *r);
/* Stops waiting for the answer: calls tell() with status `why`, unless `why` is 0. Returns false if the answer has already arrived. */
bool gateway_ask_leave(struct gateway *g, uint64_t id, int why);
/* Sends a request, waits for the answer and returns its status; sets weft_error() on failure. `out` may be NULL. The answer's payload is
 * copied to `payload` (may be NULL). `*payload_len` is the size of `payload`, and becomes the length of what was copied. */
int gateway_ask_wait(struct gateway *g, struct gateway_question *q, int64_t timeout_ns, struct gateway_result *out, void *payload,
                     size_t *payload_len);
void gateway_ask_answered(struct gateway *g, uint32_t from, const struct gateway_message *m, const void *payload, size_t len);
bool gateway_ask_cancel(struct gateway *g, const weft_op *op);
void gateway_asks_gone(struct gateway *g, uint32_t node);
int64_t gateway_asks_tick(struct gateway *g, int64_t now);
void gateway_asks_end(struct gateway *g, int why); /* ends all requests with the status `why` */
/* Returns -EOPNOTSUPP; the error text lists the nodes that offer the service. */
int gateway_refuse(struct gateway *g, uint32_t node, uint32_t service);
const char *gateway_service_name(const struct gateway *g, uint32_t service);
/* Sets the error text for a status; `text` (may be NULL) is the server's text. Returns the status. */
int gateway_ask_status(struct gateway *g, const weft_request *r, int status, const char *text);

/* --- serve.c --- */
/* A request that this node serves, until it is answered. Used by the server thread. */
struct gateway_call {
    struct gateway_server *server;
    const struct gateway_service *service;
    uint32_t node; /* the asker */
    uint64_t ask;  /* the request's number at the asker */
    weft_request record;
    uint8_t *data; /* record.data_bytes bytes */
    uint64_t hash;
    struct gateway_call *hashed, *next; /* next: in the list of requests that have arrived, later in a list of the service */
    bool begun;                         /* begin() of the service was called */
    bool fetching;                      /* `fetch` is under way */
    _Atomic bool cancelled;
    weft_op fetch;
};
/* A service. To add one, write a file and add a line to services.c. The functions before `submit` are called on the server thread. */
struct gateway_service {
    const char *name;
    uint16_t number;
    int (*open)(struct gateway_server *s, void **state);
    void (*close)(void *state);
    /* A request has arrived. The service answers it at once or later (gateway_answer()). It must check the fields that only it uses. */
    void (*begin)(void *state, struct gateway_call *c);
    void (*cancel)(void *state, struct gateway_call *c); /* the service must answer the request now */
    void (*gone)(void *state, uint32_t node);            /* called when a node is gone, after all requests of this node were cancelled */
    /* begin() and tick() take no longer than a few system calls, nor does on_moved() if the stream's ring is mapped. Therefore the progress
     * thread may call these functions while the server thread sleeps (gateway_server_brief()). */
    bool quick;
    int64_t (*tick)(void *state, int64_t now); /* may be NULL. Returns after how many ns to call tick() again at the latest */
    /* The asker's side of requests by record, on any thread. Each function may be NULL. submit() handles a record that needs no server, and
     * prepares the others. It returns 1 if the record is to be sent to the server, and GATEWAY_LATER (record.h) if the service itself will
     * answer. Otherwise it returns the status of the answer, with the result in r->result. told() gets `*arg`, and writes the server's
     * answer to r->result with gateway.lock held. late(): see struct gateway_question. */
    int (*submit)(struct gateway *g, weft_request *r, void *data, uint64_t *arg);
    void (*told)(struct gateway *g, weft_request *r, uint64_t arg, const struct gateway_result *result, void *data);
    gateway_tell_fn late;
    /* At the asker: returns whether the server's answer to a request of this kind has a valid form. If not, the request ends with -EPROTO.
     * Called on any thread, with gateway.lock held. May be NULL. */
    bool (*valid)(uint16_t kind, const struct gateway_result *r);
};
#define GATEWAY_SERVICES_MAX 63u
int gateway_server_open(struct gateway *g);
void gateway_server_take_turns(struct gateway_server *s); /* serve_turn.c. Call this after opening, before the first message arrives */
int gateway_server_start(struct gateway *g);              /* starts the server thread */
void gateway_server_end(struct gateway *g);               /* ends the thread and everything that its services run */
void gateway_server_free(struct gateway *g);
/* Called by message handlers: */
void gateway_server_request(struct gateway *g, uint32_t from, const struct gateway_message *m, const void *payload, size_t len);
void gateway_server_cancel(struct gateway *g, uint32_t from, uint64_t ask);
void gateway_server_gone(struct gateway *g, uint32_t node);
/* Called by services: */
void gateway_answer(struct gateway_call *c, int status, const uint64_t *words, unsigned count, const void *payload, size_t len);
void gateway_answer_error(struct gateway_call *c, int status); /* answers with this thread's weft_error() text */
struct gateway *gateway_of(struct gateway_server *s);
struct gateway_watches *gateway_server_watches(struct gateway_server *s);
struct gateway_groups *gateway_server_groups(struct gateway_server *s);
/* Whether the progress thread works in place of the server thread now. Then a service must do little, and leave the rest to the server
 * thread. */
bool gateway_server_brief(const struct gateway_server *s);
/* Makes the server thread poll for the next request for a moment before it sleeps. */
void gateway_server_linger(struct gateway_server *s);
/* For streams of services. Their moved() must be gateway_server_moved(), which puts the stream on a list. The server thread then calls
 * on_moved() for each stream of this list. */
struct gateway_listener {
    bool quick; /* as in struct gateway_service */
    void (*on_moved)(struct gateway_listener *l, struct gateway_stream *s);
};
void gateway_server_moved(struct gateway_stream *s); /* s->arg is a gateway_listener */
/* takes the stream off the list; call this before closing the stream */
void gateway_server_unlist(struct gateway_server *s, struct gateway_stream *stream);

/* --- block.c --- */
struct gateway_block {
    const char *program, *directory;
    char **argv, **env; /* end with NULL; env: changes to the environment */
    uint32_t argc, envc, limit_count;
    weft_process_limit limits[WEFT_LIMITS];
    void *memory;
};
/* Checks the flags and the data of a SPAWN request, and unpacks the data. `out` points into `data`. Returns 0, -EINVAL (with an error text)
 * or -ENOMEM.
 */
int gateway_block_read(struct gateway_block *out, const weft_request *r, const uint8_t *data);
void gateway_block_clear(struct gateway_block *b);
/* The environment of a process: `base` with the changes applied. One allocation, which the caller frees. Returns NULL if there is no
 * memory. */
char **gateway_environment(char *const *base, char *const *changes);
/* Packs the data of a SPAWN request. Returns 0, -EINVAL or -E2BIG (with an error text), or -ENOMEM. */
int gateway_block_write(const weft_spawn_spec *spec, weft_request *r, uint8_t **data);

/* --- process.c, name.c, handle.c, names.c --- */
struct gateway_end {
    int32_t status, signal; /* signal: with Linux's number (base_signal_out()) */
    uint32_t timed_out, zero;
    uint64_t user_ns, system_ns, memory_bytes;
};
extern const struct gateway_service gateway_process, gateway_name, gateway_net, gateway_file;
int gateway_process_submit(struct gateway *g, weft_request *r, void *data, uint64_t *arg);
void gateway_process_told(struct gateway *g, weft_request *r, uint64_t arg, const struct gateway_result *result, void *data);
void gateway_process_late(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r);
int gateway_name_submit(struct gateway *g, weft_request *r, void *data, uint64_t *arg);
void gateway_name_told(struct gateway *g, weft_request *r, uint64_t arg, const struct gateway_result *result, void *data);
/* A function that is called, with the lock held, when something about a process may have changed: it has started, could not be started or
 * has ended, or its output has arrived or ended. `soon`: a thread that waits for the process should look now. */
typedef void gateway_notice(void *arg, bool soon);
void gateway_process_notice(weft_process *p, gateway_notice *notice, void *arg);
/* Like weft_process_signal(), but does not wait: `op` (may be NULL) is complete when the server has answered. The handle may be closed
 * before that. Returns -EINPROGRESS if the process has not started yet. Returns -ESRCH if the process has ended, or could not be started.
 * These two errors do not set weft_error(). */
int gateway_process_signal(weft_process *p, int signal, weft_op *op);
void gateway_handle_ended(struct gateway *g, uint32_t from, const struct gateway_message *m, const void *payload, size_t len);
void gateway_handle_unread(struct gateway *g, uint32_t from, const struct gateway_message *m);
bool gateway_handle_cancel(struct gateway *g, const weft_op *op);
void gateway_handles_gone(struct gateway *g, uint32_t node);
void gateway_handles_tick(struct gateway *g);
void gateway_handles_free(struct gateway *g);
/* net_handle.c */
void gateway_sockets_gone(struct gateway *g, uint32_t node);
void gateway_sockets_tick(struct gateway *g);
void gateway_sockets_free(struct gateway *g);

/* net_borrow.c. Call these without the lock. They set no weft_error() text. borrow: asks the gateway to lend the socket of an open
 * connection. Send nothing until the socket is lent. borrowed: call this after notify(). It returns a descriptor or an error. After
 * -EINPROGRESS the socket is not lent yet; after any other error the connection is as before. After a descriptor, first take the bytes that
 * weft_net_received() has, then read and write the descriptor without waiting (MSG_DONTWAIT). return: the caller has closed the descriptor,
 * and uses weft_net_put() and the like again. */
int gateway_net_borrow(struct weft_socket *s);
int gateway_net_borrowed(struct weft_socket *s);
int gateway_net_return(struct weft_socket *s);
bool gateway_socket_given(struct gateway *g, uint32_t node, uint64_t what, int fd); /* returns false if the caller must close `fd` */

/* --- services.c --- */
extern const struct gateway_service *const gateway_services[];
/* Converts a list such as "process,name" to bits. Returns 0, or -EINVAL with an error text. */
int gateway_services_read(const char *text, uint64_t *out);

/* --- record_object.c, record_copy.c --- */
struct gateway_object;
struct gateway_copies;
void gateway_objects_tick(struct gateway *g);
void gateway_objects_free(struct gateway *g);
int gateway_copies_open(struct gateway *g);
void gateway_copies_end(struct gateway *g); /* waits until all copies have ended, at most until the node's deadline */
void gateway_copies_free(struct gateway *g);

/* --- record.c --- */
void gateway_record_of_kernel(weft_node *w, void *record, weft_gpu_call *call, void *arg);

/* --- room.c --- */
struct gateway {
    struct weft_node *w;
    const struct gateway_service *const *services; /* ends with NULL */
    base_spin lock;
    struct gateway_table asks, streams, processes, sockets, objects;
    int64_t next_deadline;
    uint32_t *outstanding; /* [size]: this node's unanswered requests to each node; guarded by gateway.lock */
    /* [size]: requests that gateway_ask_ignore() will send when there is room; guarded by gateway.lock. Each of them ends something that
     * the other node has given to this node, such as a lease, so the number of these requests is bounded. */
    struct gateway_later **later;
    _Atomic uint64_t *offers; /* [size]: one bit for each service that a node offers */
    struct gateway_posts *posts;
    struct gateway_server *server; /* NULL: this node offers nothing */
    uint64_t offered;
    struct gateway_groups *groups;
    struct weft_process *unused;         /* closed handles of processes that must be freed; guarded by gateway.lock */
    _Atomic bool unclosed;               /* a request to close a socket could not be sent yet */
    struct gateway_object *dead_objects; /* closed objects of records, to be freed; guarded by gateway.lock */
    struct gateway_copies *copies;
    struct weft_socket *dead; /* closed sockets to be freed, because the gateway has stopped using their rings; guarded by gateway.lock */
    char net_rules[1024];     /* WEFT_NET_RULES: which addresses this node connects to for others (net_rules.c) */
    uint32_t net_sockets;     /* how many sockets another node may have at this node; 0: its share (gateway_share_allows()) */
    uint32_t names;           /* how many names a node may publish at this node; 0: its share (gateway_share_allows()) */
    /* WEFT_FILE_ROOT: only files below this directory are served; "": all files; "-": only those in file_offers */
    char file_root[1024];
    struct file_offers *file_offers; /* files that this node's program offers; NULL: it does not offer `file` (file_path.c) */
    uint64_t file_cache;             /* WEFT_FILE_CACHE: bytes of the pool for cached files; 0: a quarter of the pool */
    /* the least time, in ns, to wait for a piece that another node has or is getting; tests change this time */
    _Atomic int64_t file_patience;
    struct weft_file *files;       /* open handles of files; guarded by gateway.lock */
    struct file_keeps *file_keeps; /* copies of pieces of files, in this node's pool (file_keep.c) */
    struct file_async *file_async; /* calls about files that are under way (file_async.c) */
    _Atomic bool closing;
};
/* --- file_handle.c --- */
void gateway_file_changed(struct gateway *g, uint32_t from, const struct gateway_message *m);

/* --- file_record.c --- */
/* Handles the gateway's report that a file has changed: the next record that reads the file will send a request, and the gateway will
 * answer it with -ESTALE. */
void gateway_file_record_changed(struct gateway *g, uint32_t from, const struct gateway_message *m);

/* --- file_keep.c --- */
int file_keeps_open(struct gateway *g);
void file_keeps_tick(struct gateway *g, int64_t now);

/* --- file_async.c --- */
int file_async_open(struct gateway *g);
void file_async_end(struct gateway *g); /* calls that were not begun end with -ECONNRESET */
void file_async_free(struct gateway *g);
static inline struct gateway *gateway_in(weft_node *w)
{
    return w->gateway;
}

/* Starts the guardian, before the node is opened. `*out` is NULL if this node runs no processes for others. gateway_open() takes ownership
 * of `*out`, also on failure. */
int gateway_prepare(const char *serve, struct gateway_groups **out);
void gateway_groups_close(struct gateway_groups *all); /* call this only if gateway_open() is never called */
struct gateway_settings {
    const char *serve, *net_rules, *file_root;
    uint64_t file_cache;
    uint32_t net_sockets, names;
};
int gateway_open(struct weft_node *w, const struct gateway_settings *settings, struct gateway_groups *groups);
int gateway_start(struct weft_node *w);  /* called when the node has joined */
void gateway_leave(struct weft_node *w); /* called when the node closes: ends its services and its own requests */

#endif
