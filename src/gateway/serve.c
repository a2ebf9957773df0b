/* SPDX-License-Identifier: MIT
 *
 * Serves requests of other nodes. A message handler checks a request, enters it in a table and queues it; the server thread does the rest.
 * Data that does not fit into the message is fetched from the asker's pool by a get. The hash of the data is checked, because an asker that
 * has given up may use the data's memory for something else.
 */
#include "gateway/serve.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define FETCH_MOST    (UINT64_C(8) << 20) /* maximum number of bytes that are fetched from one asker at a time */
#define FETCH_LOOK_NS (200 * WEFT_US)
#define KEEP_NS       WEFT_MS /* after this time, the server tries again to send messages for which there was no room */

struct gateway *gateway_of(struct gateway_server *s)
{
    return s->g;
}

struct gateway_watches *gateway_server_watches(struct gateway_server *s)
{
    return s->watches;
}

bool gateway_server_brief(const struct gateway_server *s)
{
    return s->brief;
}

struct gateway_groups *gateway_server_groups(struct gateway_server *s)
{
    return s->g->groups;
}

void server_wake(struct gateway_server *s)
{
    if (atomic_exchange_explicit(&s->woken, SERVER_WOKEN, memory_order_acq_rel) == SERVER_SLEEPS) {
        ssize_t n = write(s->wake[1], "", 1);
        (void)n; /* a full pipe wakes the thread as well */
    }
}

static void on_wake(struct gateway_watch *watch)
{
    char bytes[64];
    while (read(watch->fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes)
        ;
}

/* --- message handlers, on any thread --- */

static struct gateway_call **call_bucket(struct gateway_server *s, uint32_t node, uint64_t ask)
{
    return &s->calls[(ask ^ node * UINT64_C(0x9e3779b1)) % CALL_BUCKETS];
}

static struct gateway_call *call_find(struct gateway_server *s, uint32_t node, uint64_t ask)
{
    struct gateway_call *c = *call_bucket(s, node, ask);
    while (c && (c->node != node || c->ask != ask))
        c = c->hashed;
    return c;
}

static const struct gateway_service *service_of(const struct gateway *g, const weft_request *r)
{
    for (const struct gateway_service *const *s = g->services; *s; s++)
        if ((*s)->number == r->service && g->server && g->offered >> r->service & 1)
            return *s;
    return NULL;
}

static void answer_now(struct gateway *g, uint32_t node, uint64_t ask, int status)
{
    (void)gateway_post(g, node, &(struct gateway_message){.type = GATEWAY_ANSWER, .status = status, .to = ask}, NULL, 0);
}

/* Checks the fields that all services have in common. */
static int check_record(const struct gateway *g, uint32_t from, const weft_request *r, size_t inside)
{
    bool large = r->data_bytes > WEFT_REQUEST_INLINE;
    if (r->version != WEFT_REQUEST_VERSION || r->node != g->w->rank || r->data_bytes > WEFT_REQUEST_DATA_MAX || r->timeout_ns < 0 ||
        inside > WEFT_REQUEST_INLINE || (inside && inside != r->data_bytes) ||
        (large && (weft_gaddr_node(r->data) != from || weft_gaddr_space(r->data))))
        return -EINVAL;
    return 0;
}

void gateway_server_request(struct gateway *g, uint32_t from, const struct gateway_message *m, const void *payload, size_t len)
{
    struct gateway_server *s = g->server;
    weft_request r;
    if (len < sizeof r)
        return;
    memcpy(&r, payload, sizeof r);
    size_t inside = len - sizeof r;
    uint64_t ask = m->word[0];
    const struct gateway_service *service = service_of(g, &r);
    int rc = service ? check_record(g, from, &r, inside) : -EOPNOTSUPP;
    struct gateway_call *c = rc ? NULL : calloc(1, sizeof *c);
    if (c && inside && !(c->data = malloc(inside))) {
        free(c);
        c = NULL;
    }
    if (!c) {
        answer_now(g, from, ask, rc ? rc : -ENOMEM);
        return;
    }
    if (inside)
        memcpy(c->data, (const uint8_t *)payload + sizeof r, inside);
    c->server = s;
    c->service = service;
    c->node = from;
    c->ask = ask;
    c->record = r;
    c->hash = m->word[1];
    base_spin_lock(&g->lock);
    struct gateway_call **bucket = call_bucket(s, from, ask);
    bool quick = call_is_quick(c);
    rc = call_find(s, from, ask) ? -EINVAL : s->outstanding[from] >= WEFT_REQUESTS_MAX ? -EAGAIN : 0;
    if (!rc) {
        c->hashed = *bucket;
        *bucket = c;
        s->outstanding[from]++;
        *s->arrived_last = c;
        s->arrived_last = &c->next;
        if (quick)
            gateway_turn(&s->turn);
    }
    base_spin_unlock(&g->lock);
    if (rc) {
        free(c->data);
        free(c);
        answer_now(g, from, ask, rc);
    } else if (!quick) {
        server_wake(s);
    }
}

void gateway_server_cancel(struct gateway *g, uint32_t from, uint64_t ask)
{
    struct gateway_server *s = g->server;
    if (!s)
        return;
    base_spin_lock(&g->lock);
    struct gateway_call *c = call_find(s, from, ask);
    if (c) {
        c->cancelled = true;
        s->some_cancelled = true;
    }
    base_spin_unlock(&g->lock);
    if (c)
        server_wake(s);
}

void gateway_server_gone(struct gateway *g, uint32_t node)
{
    struct gateway_server *s = g->server;
    if (!s)
        return;
    base_spin_lock(&g->lock);
    s->gone[node] = 1;
    s->some_gone = true;
    base_spin_unlock(&g->lock);
    server_wake(s);
}

/* Whether the progress thread may handle the stream. It may if the ring is mapped, because then nothing must be fetched. */
static bool is_quick(const struct gateway_stream *stream)
{
    const struct gateway_listener *l = stream->arg;
    return l->quick && stream->memory;
}

void gateway_server_moved(struct gateway_stream *stream)
{
    struct gateway_server *s = stream->g->server;
    if (stream->listed)
        return;
    stream->listed = true;
    stream->next_moved = s->moved;
    s->moved = stream;
    if (is_quick(stream))
        gateway_turn(&s->turn);
    else
        server_wake(s);
}

/* --- the server thread --- */

void gateway_server_unlist(struct gateway_server *s, struct gateway_stream *stream)
{
    base_spin_lock(&s->g->lock);
    struct gateway_stream **at = &s->moved;
    while (stream->listed && *at && *at != stream)
        at = &(*at)->next_moved;
    if (stream->listed && *at)
        *at = stream->next_moved;
    stream->listed = true; /* stays set, so that the stream is not listed again */
    base_spin_unlock(&s->g->lock);
}

static void call_free(struct gateway_call *c)
{
    struct gateway_server *s = c->server;
    base_spin_lock(&s->g->lock);
    struct gateway_call **at = call_bucket(s, c->node, c->ask);
    while (*at != c)
        at = &(*at)->hashed;
    *at = c->hashed;
    s->outstanding[c->node]--;
    base_spin_unlock(&s->g->lock);
    if (c->record.data_bytes > WEFT_REQUEST_INLINE && c->data)
        s->fetched[c->node] -= c->record.data_bytes;
    free(c->data);
    free(c);
}

void gateway_answer(struct gateway_call *c, int status, const uint64_t *words, unsigned count, const void *payload, size_t len)
{
    struct gateway_message m = {.type = GATEWAY_ANSWER, .status = status, .to = c->ask};
    struct gateway *g = c->server->g;
    uint32_t node = c->node;
    if (count)
        memcpy(m.word, words, count * sizeof *words);
    call_free(c);
    (void)gateway_post(g, node, &m, payload, len);
}

void gateway_answer_error(struct gateway_call *c, int status)
{
    char text[512], own[32];
    /* The text must name this node, because the asker sees the error. */
    snprintf(own, sizeof own, "node %u", c->server->g->w->rank);
    if (status == -ENOMEM && strncmp(base_error(), own, strlen(own)) != 0)
        base_context(status, "%s", own);
    size_t n = strlen(base_error());
    n = n < sizeof text ? n : sizeof text - 1;
    memcpy(text, base_error(), n);
    gateway_answer(c, status, NULL, 0, text, n);
}

static void *state_of(const struct gateway_call *c)
{
    return c->server->state[c->service->number];
}

void server_begin(struct gateway_call *c)
{
    struct gateway_server *s = c->server;
    struct gateway *g = s->g;
    uint32_t node = c->node;
    bool late = c->cancelled;
    c->begun = true;
    c->next = NULL;
    c->service->begin(state_of(c), c);
    if (!late)
        return;
    /* The request was cancelled before it was passed to its service. So make the server look for cancelled requests again and, if the asker
     * is gone, tell the services once more. */
    base_spin_lock(&g->lock);
    s->some_cancelled = true;
    if (!fab_alive(g->w, node)) {
        s->gone[node] = 1;
        s->some_gone = true;
    }
    base_spin_unlock(&g->lock);
    if (s->brief)
        server_wake(s);
}

/* Fetches the request's data. Returns -EINPROGRESS if it has not arrived yet. */
static int call_fetch(struct gateway_call *c)
{
    struct gateway_server *s = c->server;
    struct weft_node *w = s->g->w;
    uint64_t bytes = c->record.data_bytes;
    if (!c->data) {
        if (s->fetched[c->node] + bytes > FETCH_MOST)
            return -EINPROGRESS;
        c->data = malloc(bytes);
        if (!c->data)
            return base_fail(-ENOMEM, "no memory for the %llu bytes of data of a request" BASE_MEMORY_HINT, (unsigned long long)bytes);
        s->fetched[c->node] += bytes;
    }
    if (!c->fetching) {
        int rc = weft_get_nowait(w, c->data, c->record.data, bytes, &c->fetch);
        if (rc)
            return rc == -EAGAIN ? -EINPROGRESS : rc;
        c->fetching = true;
    }
    int rc = weft_test(w, &c->fetch);
    if (rc == -EINPROGRESS)
        return rc;
    c->fetching = false;
    if (!rc && XXH3_64bits(c->data, bytes) != c->hash)
        rc = base_fail(-EINVAL,
                       "the data of a request was changed before the server had read it: leave it unchanged until the request is complete");
    return rc;
}

static void server_fetch(struct gateway_server *s)
{
    for (struct gateway_call **at = &s->fetching; *at;) {
        struct gateway_call *c = *at;
        int rc = c->cancelled && !c->fetching ? -ECANCELED : call_fetch(c);
        if (rc == -EINPROGRESS) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        if (rc)
            gateway_answer_error(c, rc);
        else
            server_begin(c);
    }
}

static void server_arrived(struct gateway_server *s)
{
    base_spin_lock(&s->g->lock);
    struct gateway_call *c = s->arrived;
    s->arrived = NULL;
    s->arrived_last = &s->arrived;
    base_spin_unlock(&s->g->lock);
    for (struct gateway_call *next; c; c = next) {
        next = c->next;
        if (c->record.data_bytes > WEFT_REQUEST_INLINE) {
            c->next = s->fetching;
            s->fetching = c;
        } else if (c->record.data_bytes && !c->data) {
            base_fail(-EINVAL,
                      "a request announces %llu bytes of data, but its message contains none; run the same version of weft on all hosts",
                      (unsigned long long)c->record.data_bytes);
            gateway_answer_error(c, -EINVAL);
        } else {
            server_begin(c);
        }
    }
}

/* Finds, from bucket `*at` on, the next request that was already passed to its service, and that is cancelled or from a node that is
 * gone. */
static struct gateway_call *next_cancelled(struct gateway_server *s, uint32_t *at)
{
    base_spin_lock(&s->g->lock);
    for (; *at < CALL_BUCKETS; ++*at)
        for (struct gateway_call *c = s->calls[*at]; c; c = c->hashed) {
            if (s->gone[c->node])
                c->cancelled = true;
            if (c->cancelled && c->begun) {
                base_spin_unlock(&s->g->lock);
                return c;
            }
        }
    base_spin_unlock(&s->g->lock);
    return NULL;
}

static void server_cancel(struct gateway_server *s)
{
    base_spin_lock(&s->g->lock);
    bool some = s->some_cancelled || s->some_gone, gone = s->some_gone;
    s->some_cancelled = s->some_gone = false;
    base_spin_unlock(&s->g->lock);
    uint32_t at = 0;
    for (struct gateway_call *c; some && (c = next_cancelled(s, &at));)
        c->service->cancel(state_of(c), c);
    for (uint32_t i = 0; gone && i < s->g->w->size; i++) {
        base_spin_lock(&s->g->lock);
        bool this = s->gone[i];
        s->gone[i] = 0;
        base_spin_unlock(&s->g->lock);
        for (const struct gateway_service *const *v = s->g->services; this && *v; v++)
            if (s->state[(*v)->number])
                (*v)->gone(s->state[(*v)->number], i);
    }
}

bool server_moved_one(struct gateway_server *s, bool quick)
{
    base_spin_lock(&s->g->lock);
    struct gateway_stream **at = &s->moved;
    while (*at && quick && !is_quick(*at))
        at = &(*at)->next_moved;
    struct gateway_stream *stream = *at;
    if (stream) {
        *at = stream->next_moved;
        stream->listed = false;
    }
    base_spin_unlock(&s->g->lock);
    if (!stream)
        return false;
    struct gateway_listener *l = stream->arg;
    l->on_moved(l, stream);
    return true;
}

static void server_moved(struct gateway_server *s)
{
    while (server_moved_one(s, false))
        ;
}

static int64_t server_tick(struct gateway_server *s)
{
    int64_t now = base_now_ns(), next = s->fetching ? FETCH_LOOK_NS : 60 * WEFT_SECOND;
    for (const struct gateway_service *const *v = s->g->services; *v; v++) {
        if (!s->state[(*v)->number] || !(*v)->tick)
            continue;
        int64_t in = (*v)->tick(s->state[(*v)->number], now);
        next = in < next ? in : next;
    }
    if (gateway_posts_flush(s->g))
        next = next < KEEP_NS ? next : KEEP_NS;
    return next < 0 ? 0 : next;
}

/* --- the server thread's loop --- */

static bool server_is_woken(void *arg)
{
    struct gateway_server *s = arg;
    return atomic_load_explicit(&s->woken, memory_order_acquire) == SERVER_WOKEN;
}

void gateway_server_linger(struct gateway_server *s)
{
    s->lingers = true;
}

/* Polls for the next request for a moment, so that an asker need not wake this thread for each request. Returns true if a request or
 * message has arrived. */
static bool server_linger(struct gateway_server *s)
{
    int sleeps = SERVER_SLEEPS, looks = SERVER_LOOKS;
    s->lingers = false;
    if (!atomic_compare_exchange_strong_explicit(&s->woken, &sleeps, SERVER_LOOKS, memory_order_seq_cst, memory_order_acquire))
        return true;
    fab_linger(s->g->w, server_is_woken, s);
    return !atomic_compare_exchange_strong_explicit(&s->woken, &looks, SERVER_SLEEPS, memory_order_seq_cst, memory_order_acquire);
}

static void *server_run(void *arg)
{
    struct gateway_server *s = arg;
    (void)fab_nowait(true);
    while (!atomic_load_explicit(&s->stop, memory_order_acquire)) {
        /* Set before the queue is read, so that anything that arrives after the reading wakes the thread again. */
        atomic_store_explicit(&s->woken, SERVER_SLEEPS, memory_order_seq_cst);
        server_arrived(s);
        server_fetch(s);
        server_moved(s);
        server_cancel(s);
        int64_t next = server_tick(s);
        s->sleeps_until = base_deadline(next);
        if (!s->lingers || !server_linger(s))
            gateway_watches_wait(s->watches, next);
    }
    return NULL;
}

/* --- opening and closing --- */

int gateway_server_open(struct gateway *g)
{
    struct gateway_server *s = calloc(1, sizeof *s);
    if (!s)
        return base_fail(-ENOMEM, "no memory for the server of service requests" BASE_MEMORY_HINT);
    g->server = s;
    s->g = g;
    s->wake[0] = s->wake[1] = -1;
    s->arrived_last = &s->arrived;
    s->wake_watch = (struct gateway_watch){.fd = -1, .ready = on_wake};
    s->outstanding = calloc(g->w->room, sizeof *s->outstanding);
    s->gone = calloc(g->w->room, sizeof *s->gone);
    s->fetched = calloc(g->w->room, sizeof *s->fetched);
    if (!s->outstanding || !s->gone || !s->fetched)
        return base_fail(-ENOMEM, "no memory for the tables of the service requests of %u nodes" BASE_MEMORY_HINT, g->w->room);
    int rc = base_pipe(s->wake, O_NONBLOCK);
    if (!rc)
        rc = gateway_watches_open(&s->watches);
    if (!rc)
        rc = gateway_watch(s->watches, &s->wake_watch, s->wake[0], GATEWAY_READABLE);
    if (rc)
        return base_fail(rc, "cannot start to serve requests of other nodes (WEFT_SERVE): %s", base_strerror(rc));
    for (const struct gateway_service *const *v = g->services; *v && !rc; v++)
        if (g->offered >> (*v)->number & 1)
            rc = (*v)->open(s, &s->state[(*v)->number]);
    return rc;
}

int gateway_server_start(struct gateway *g)
{
    struct gateway_server *s = g->server;
    int rc = base_thread(&s->thread, server_run, s);
    s->started = rc == 0;
    return rc ? base_fail(rc, "cannot start the thread that serves other nodes (WEFT_SERVE): %s" BASE_THREAD_HINT, base_strerror(rc)) : 0;
}

void gateway_server_end(struct gateway *g)
{
    struct gateway_server *s = g->server;
    if (!s)
        return;
    if (s->started) { /* (the thread is not started if the node cannot join) */
        atomic_store_explicit(&s->stop, true, memory_order_release);
        server_wake(s);
        pthread_join(s->thread, NULL);
        s->started = false;
    }
    for (struct gateway_call **at = &s->fetching; *at;) {
        struct gateway_call *c = *at;
        *at = c->next;
        if (c->fetching && weft_wait(g->w, &c->fetch, WEFT_TIMEOUT_DEFAULT) == -ETIMEDOUT)
            c->data = NULL; /* an unfinished get may still write to the memory, so it is never freed */
    }
    for (const struct gateway_service *const *v = g->services; *v; v++)
        if (s->state[(*v)->number])
            (*v)->close(s->state[(*v)->number]);
    memset(s->state, 0, sizeof s->state);
}

void gateway_server_free(struct gateway *g)
{
    struct gateway_server *s = g->server;
    if (!s)
        return;
    gateway_server_end(g);
    for (uint32_t i = 0; i < CALL_BUCKETS; i++)
        while (s->calls[i]) {
            struct gateway_call *c = s->calls[i];
            s->calls[i] = c->hashed;
            free(c->data);
            free(c);
        }
    if (s->watches)
        gateway_unwatch(s->watches, &s->wake_watch);
    gateway_watches_close(s->watches);
    if (s->wake[1] >= 0)
        close(s->wake[1]);
    free(s->outstanding);
    free(s->gone);
    free(s->fetched);
    free(s);
    g->server = NULL;
}
