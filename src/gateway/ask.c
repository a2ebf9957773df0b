/* SPDX-License-Identifier: MIT
 *
 * Requests of this node that are not answered yet. A request stays in the table until the server has answered or is gone, even if nobody
 * waits for the answer: it counts towards WEFT_REQUESTS_MAX.
 */
#include "gateway/gateway.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* By itself, the node's upkeep (progress.c) runs about once a second. For a request whose deadline is nearer than this, it must be
 * woken. */
#define LOOKS_NS (2 * WEFT_SECOND)

const char *gateway_service_name(const struct gateway *g, uint32_t service)
{
    for (const struct gateway_service *const *s = g->services; *s; s++)
        if ((*s)->number == service)
            return (*s)->name;
    return "?";
}

int gateway_refuse(struct gateway *g, uint32_t node, uint32_t service)
{
    struct weft_node *w = g->w;
    const char *name = gateway_service_name(g, service);
    uint32_t nodes = w->size;
    bool *offers = calloc(w->room, sizeof *offers);
    char who[256] = "no node";
    uint32_t n = 0;
    for (uint32_t i = 0; offers && i < nodes; i++)
        n += offers[i] = weft_service_offered(w, i, service);
    if (n)
        fab_name_nodes(offers, nodes, who, sizeof who);
    free(offers);
    return base_fail(-EOPNOTSUPP, "node %u does not offer the service '%s'; %s %s (a node that is started with WEFT_SERVE=%s offers it)",
                     node, name, who, n > 1 ? "do" : "does", name);
}

bool weft_service_offered(weft_node *w, uint32_t node, uint32_t service)
{
    struct gateway *g = gateway_in(w);
    return node < w->size && service < 64 && fab_alive(w, node) &&
           atomic_load_explicit(&g->offers[node], memory_order_acquire) >> service & 1;
}

struct finding {
    weft_node *w;
    uint32_t service, node;
};

static bool some_node_offers(void *arg)
{
    struct finding *f = arg;
    for (f->node = 0; f->node < f->w->size; f->node++)
        if (weft_service_offered(f->w, f->node, f->service))
            return true;
    return false;
}

int weft_service_find(weft_node *w, uint32_t service, uint32_t *node, int64_t timeout_ns)
{
    struct finding f = {w, service, 0};
    const char *name = gateway_service_name(gateway_in(w), service);
    int rc = fab_wait(w, some_node_offers, &f, fab_timeout(w, timeout_ns));
    if (rc == -ETIMEDOUT)
        return base_fail(-EOPNOTSUPP, "no node offers the service '%s': start one with WEFT_SERVE=%s", name, name);
    if (!rc)
        *node = f.node;
    return rc;
}

/* --- asking --- */

static int ask_send(struct gateway *g, const struct gateway_question *q, const weft_request *r, uint64_t id)
{
    uint8_t payload[WEFT_PAYLOAD_MAX];
    size_t inside = r->data_bytes <= WEFT_REQUEST_INLINE && q->data ? (size_t)r->data_bytes : 0;
    memcpy(payload, r, sizeof *r);
    if (inside)
        memcpy(payload + sizeof *r, q->data, inside);
    struct gateway_message m = {.type = GATEWAY_REQUEST, .word = {id}};
    if (q->data && r->data_bytes > inside)
        m.word[1] = XXH3_64bits(q->data, (size_t)r->data_bytes);
    if (q->post || r->node == g->w->rank) /* all messages to this node itself go through gateway_post(), which keeps their order */
        return gateway_post(g, r->node, &m, payload, sizeof *r + inside);
    return fab_send(g->w, r->node, GATEWAY_HANDLER, &m, sizeof m, payload, sizeof *r + inside, NULL);
}

static void ask_free(struct gateway *g, struct gateway_ask *a)
{
    weft_free(g->w, a->data);
    free(a);
}

/* Passes the result to the asker's function. The caller holds gateway.lock. */
static void ask_tell(struct gateway *g, struct gateway_ask *a, const struct gateway_result *r)
{
    if (a->told)
        return;
    a->told = true;
    a->tell(g, a, r);
    if (a->op)
        fab_complete(a->op, r->status);
    a->op = NULL;
}

int gateway_ask(struct gateway *g, const struct gateway_question *q, uint64_t *id)
{
    const weft_request record = *q->record, *r = &record; /* a copy, because the asker may free its record as soon as the request can end */
    if (r->node >= g->w->size)
        return base_fail(-EFAULT, "cannot send a request to node %u: there is no such node; the cluster has nodes 0 to %u", r->node,
                         g->w->size - 1);
    if (atomic_load_explicit(&g->closing, memory_order_acquire))
        return base_fail(-ECONNRESET, "this node is being closed, so it sends no more requests");
    struct gateway_ask *a = malloc(sizeof *a);
    if (!a)
        return base_fail(-ENOMEM, "no memory for a request to node %u" BASE_MEMORY_HINT, r->node);
    int64_t timeout = r->timeout_ns > 0 ? r->timeout_ns : g->w->options.deadline_ns;
    *a = (struct gateway_ask){.node = r->node,
                              .service = r->service,
                              .kind = r->kind,
                              .handle = r->service == WEFT_SERVICE_PROCESS && r->kind == WEFT_PROCESS_SPAWN ? r->arg[11] : 0,
                              .deadline = base_deadline(timeout),
                              .op = q->op,
                              .tell = q->tell,
                              .late = q->late,
                              .arg = q->arg,
                              .data = q->owned};
    bool soon = false;
    uint64_t number;
    if (q->op)
        fab_pending(q->op, r->node);
    base_spin_lock(&g->lock);
    bool room = g->outstanding[r->node] < WEFT_REQUESTS_MAX;
    number = a->id = room ? gateway_table_add(&g->asks, a) : 0;
    if (number) {
        g->outstanding[r->node]++;
        soon = a->deadline < g->next_deadline;
        g->next_deadline = soon ? a->deadline : g->next_deadline;
    }
    base_spin_unlock(&g->lock);
    int rc;
    if (!number) {
        free(a);
        rc = room ? base_fail(-ENOMEM,
                              "cannot send a request to node %u: this node's table of requests is full, or there is no memory; wait for "
                              "earlier requests first",
                              r->node)
                  : base_fail(-EAGAIN, "%u requests to node %u are not answered yet, the most possible: wait for some of them first",
                              WEFT_REQUESTS_MAX, r->node);
        goto out;
    }
    /* From here on another thread may end and free the request. */
    if (id)
        *id = number;
    if (soon && timeout < LOOKS_NS)
        fab_kick(g->w);
    rc = ask_send(g, q, r, number);
    if (!rc)
        return 0;
    base_spin_lock(&g->lock);
    a = gateway_table_find(&g->asks, number);
    bool told = !a || a->told;
    if (a) {
        gateway_table_remove(&g->asks, number);
        g->outstanding[r->node]--;
    }
    base_spin_unlock(&g->lock);
    if (a) {
        a->data = told ? a->data : WEFT_NULL;
        ask_free(g, a);
    }
    if (told)
        return 0;
out:
    if (q->op)
        fab_complete(q->op, rc);
    return rc;
}

static void tell_nobody(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    (void)g;
    (void)a;
    (void)r;
}

struct gateway_later {
    struct gateway_later *next;
    weft_request r;
};

void gateway_ask_ignore(struct gateway *g, const weft_request *r)
{
    struct gateway_later *later = NULL;
    /* try again: other requests may have been answered between the refusal and the locking */
    while (!later && gateway_ask(g, &(struct gateway_question){.record = r, .tell = tell_nobody, .post = true}, NULL) == -EAGAIN) {
        if (!(later = malloc(sizeof *later)))
            return; /* the lease or handle that the request should end then lasts until one of the two nodes ends */
        later->r = *r;
        base_spin_lock(&g->lock);
        bool full = g->outstanding[r->node] >= WEFT_REQUESTS_MAX;
        if (full) {
            later->next = g->later[r->node];
            g->later[r->node] = later;
        }
        base_spin_unlock(&g->lock);
        if (!full) {
            free(later);
            later = NULL;
        }
    }
}

/* Removes and returns the first request to `node` that waits for room. Returns NULL if no request waits. The caller holds gateway.lock. */
static struct gateway_later *later_take(struct gateway *g, uint32_t node)
{
    struct gateway_later *later = g->later[node];
    if (later)
        g->later[node] = later->next;
    return later;
}

bool gateway_ask_leave(struct gateway *g, uint64_t id, int why)
{
    struct gateway_message m = {.type = GATEWAY_CANCEL, .word = {id}};
    uint32_t node = 0;
    base_spin_lock(&g->lock);
    struct gateway_ask *a = gateway_table_find(&g->asks, id);
    bool waits = a && !a->told;
    if (waits) {
        node = a->node;
        if (why)
            ask_tell(g, a, &(struct gateway_result){.status = why});
        a->told = true;
        a->op = NULL;
    }
    base_spin_unlock(&g->lock);
    if (waits)
        (void)gateway_post(g, node, &m, NULL, 0);
    return waits;
}

bool gateway_ask_cancel(struct gateway *g, const weft_op *op)
{
    uint64_t id = 0;
    uint32_t at = 0;
    base_spin_lock(&g->lock);
    for (struct gateway_ask *a; !id && (a = gateway_table_next(&g->asks, &at));)
        id = a->op == op ? a->id : 0;
    base_spin_unlock(&g->lock);
    return id && gateway_ask_leave(g, id, -ECANCELED);
}

/* --- the answer --- */

static bool answer_is_valid(const struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    const struct gateway_service *const *s = g->services;
    while (*s && (*s)->number != a->service)
        s++;
    return r->status || !*s || !(*s)->valid || (*s)->valid(a->kind, r);
}

void gateway_ask_answered(struct gateway *g, uint32_t from, const struct gateway_message *m, const void *payload, size_t len)
{
    struct gateway_result r = {.status = m->status > 0 ? -EPROTO : m->status, .answered = true, .payload = payload, .len = len};
    memcpy(r.word, m->word, sizeof r.word);
    struct gateway_later *later = NULL;
    base_spin_lock(&g->lock);
    struct gateway_ask *a = gateway_table_find(&g->asks, m->to);
    if (a && a->node != from)
        a = NULL;
    bool late = a && a->told;
    if (a && !answer_is_valid(g, a, &r)) {
        r.status = -EPROTO;
        r.len = 0;
    }
    if (a) {
        ask_tell(g, a, &r);
        gateway_table_remove(&g->asks, a->id);
        g->outstanding[from]--;
        later = later_take(g, from);
    }
    base_spin_unlock(&g->lock);
    if (later)
        gateway_ask_ignore(g, &later->r);
    free(later);
    if (late && a->late)
        a->late(g, a, &r);
    if (a)
        ask_free(g, a);
}

static void asks_drop(struct gateway *g, uint32_t node, bool all, int why)
{
    struct gateway_ask *dropped = NULL;
    uint32_t at = 0;
    base_spin_lock(&g->lock);
    for (struct gateway_ask *a; (a = gateway_table_next(&g->asks, &at));) {
        if (!all && a->node != node)
            continue;
        ask_tell(g, a, &(struct gateway_result){.status = why});
        gateway_table_remove(&g->asks, a->id);
        g->outstanding[a->node]--;
        a->arg = dropped;
        dropped = a;
    }
    struct gateway_later *over = NULL;
    for (uint32_t i = all ? 0 : node; i < (all ? g->w->size : node + 1); i++)
        for (struct gateway_later *later; (later = later_take(g, i)); over = later)
            later->next = over;
    base_spin_unlock(&g->lock);
    for (struct gateway_later *later; (later = over);) {
        over = later->next;
        free(later);
    }
    for (struct gateway_ask *a; (a = dropped);) {
        dropped = a->arg;
        ask_free(g, a);
    }
}

void gateway_asks_gone(struct gateway *g, uint32_t node)
{
    asks_drop(g, node, false, -ECONNRESET);
}

void gateway_asks_end(struct gateway *g, int why)
{
    asks_drop(g, 0, true, why);
}

int64_t gateway_asks_tick(struct gateway *g, int64_t now)
{
    for (;;) {
        int64_t next = INT64_MAX;
        uint64_t over = 0;
        uint32_t at = 0;
        base_spin_lock(&g->lock);
        if (now >= g->next_deadline) {
            for (struct gateway_ask *a; !over && (a = gateway_table_next(&g->asks, &at));) {
                if (a->told)
                    continue;
                over = a->deadline <= now ? a->id : 0;
                next = a->deadline < next ? a->deadline : next;
            }
            g->next_deadline = over ? g->next_deadline : next;
        }
        next = g->next_deadline;
        base_spin_unlock(&g->lock);
        if (!over)
            return next == INT64_MAX ? next : next - now;
        gateway_ask_leave(g, over, -ETIMEDOUT);
    }
}

/* --- asking, and waiting --- */

struct ask_waiter {
    _Atomic int done;
    struct gateway_result r;
    char text[512];
    void *payload;
    size_t payload_room;
};

static void tell_waiter(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    (void)g;
    struct ask_waiter *waiter = a->arg;
    waiter->r = *r;
    size_t n = r->len < sizeof waiter->text - 1 ? r->len : sizeof waiter->text - 1;
    if (r->status && n)
        memcpy(waiter->text, r->payload, n);
    waiter->text[r->status ? n : 0] = '\0';
    if (!r->status && waiter->payload && r->len)
        memcpy(waiter->payload, r->payload, r->len < waiter->payload_room ? r->len : waiter->payload_room);
    atomic_store_explicit(&waiter->done, 1, memory_order_release); /* release: pairs with the acquire in waiter_told() */
}

static bool waiter_told(void *arg)
{
    return atomic_load_explicit(&((struct ask_waiter *)arg)->done, memory_order_acquire);
}

int gateway_ask_status(struct gateway *g, const weft_request *r, int status, const char *text)
{
    const char *name = gateway_service_name(g, r->service);
    if (!status)
        return 0;
    if (status == -EOPNOTSUPP)
        return gateway_refuse(g, r->node, r->service);
    if (text && text[0])
        return base_fail(status, "%s", text);
    if (status == -ECONNRESET)
        return fab_refuse_node(g->w, r->node)
                   ? base_context(status, "service '%s'", name)
                   : base_fail(status, "service '%s' of node %u: the node is gone; ask another node", name, r->node);
    if (status == -ETIMEDOUT)
        return base_fail(
            status, "service '%s' of node %u: no answer before the deadline, so the request is cancelled; try again, or allow more time",
            name, r->node);
    if (status == -EPROTO)
        return base_fail(status, "service '%s': node %u has sent an invalid answer; run the same version of weft on all hosts", name,
                         r->node);
    return base_fail(status, "service '%s' of node %u has failed: %s", name, r->node, base_strerror(status));
}

int gateway_ask_wait(struct gateway *g, struct gateway_question *q, int64_t timeout_ns, struct gateway_result *out, void *payload,
                     size_t *payload_len)
{
    struct ask_waiter waiter = {.payload = payload, .payload_room = payload_len ? *payload_len : 0};
    weft_request r = *q->record;
    uint64_t id;
    if (fab_in_handler())
        return base_fail(-EDEADLK,
                         "a handler must not wait, but this call waits for the service '%s' of node %u: call it in another thread",
                         gateway_service_name(g, r.service), r.node);
    int64_t deadline = fab_timeout(g->w, timeout_ns);
    r.timeout_ns = INT64_MAX; /* this thread waits with a deadline of its own */
    q->record = &r;
    q->tell = tell_waiter;
    q->arg = &waiter;
    int64_t before = fab_limit(deadline);
    int rc = gateway_ask(g, q, &id);
    fab_limit(before);
    if (rc)
        return rc;
    rc = fab_wait(g->w, waiter_told, &waiter, deadline);
    if (rc && !gateway_ask_leave(g, id, 0)) {
        while (!waiter_told(&waiter)) /* another thread is delivering the answer right now */
            base_relax();
        rc = 0;
    }
    rc = rc ? rc : waiter.r.status;
    waiter.r.payload = NULL;
    if (out)
        *out = waiter.r;
    if (payload_len)
        *payload_len = waiter.r.len;
    return gateway_ask_status(g, &r, rc, waiter.text);
}
