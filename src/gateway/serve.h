/* SPDX-License-Identifier: MIT
 *
 * The server of requests (serve.c, serve_turn.c).
 */
#ifndef WEFT_GATEWAY_SERVE_H
#define WEFT_GATEWAY_SERVE_H

#include "gateway/gateway.h"

#define CALL_BUCKETS 4096u

/* The server thread sleeps until its pipe is readable. */
enum server_woken {
    SERVER_SLEEPS, /* asleep or about to sleep: to wake it, write to the pipe */
    SERVER_LOOKS,  /* the thread polls `woken` */
    SERVER_WOKEN,
};

struct gateway_server {
    struct gateway *g;
    pthread_t thread;
    bool started;
    _Atomic bool stop;
    _Atomic int woken; /* enum server_woken */
    bool lingers;      /* another request is likely to arrive soon; used only by the server thread */
    bool brief;        /* the progress thread works in place of the server thread right now */
    int64_t sleeps_until;
    struct gateway_turn turn;
    int wake[2];
    struct gateway_watch wake_watch;
    struct gateway_watches *watches;
    /* Guarded by gateway.lock: */
    struct gateway_call *calls[CALL_BUCKETS];
    struct gateway_call *arrived, **arrived_last;
    struct gateway_stream *moved;
    uint32_t *outstanding; /* [size] */
    uint8_t *gone;         /* [size]: the node is gone, but the server thread has not handled that yet */
    bool some_gone, some_cancelled;
    /* Used only by the server thread: */
    struct gateway_call *fetching;
    uint64_t *fetched; /* [size]: bytes being fetched from each node */
    void *state[GATEWAY_SERVICES_MAX + 1];
};

/* Whether the progress thread may handle the request. It may if the data need not be fetched. */
static inline bool call_is_quick(const struct gateway_call *c)
{
    return c->service->quick && (c->data || !c->record.data_bytes);
}
void server_wake(struct gateway_server *s);
void server_begin(struct gateway_call *c); /* passes a request to its service */
/* Handles one stream that has changed. `quick`: only a stream that the progress thread may handle. Returns false if there is no such
 * stream. */
bool server_moved_one(struct gateway_server *s, bool quick);

#endif
