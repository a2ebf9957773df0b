/* SPDX-License-Identifier: MIT
 *
 * Requests by record about sockets (weft/request.h), at the asker. A record can name only sockets that a record has opened. No function
 * here waits: a record that cannot be carried out now gets the answer -EAGAIN.
 */
#include <stdlib.h>
#include <string.h>

#include "gateway/net_handle.h"
#include "gateway/record.h"

struct net_record { /* a socket that a record has opened */
    struct gateway_object object;
    weft_socket *socket;
    /* for a listener: the socket of the next connection, for which an accept is under way; NULL: no accept is under way */
    struct net_record *accepted;
    bool drop;            /* when the socket is closed, bytes that are not sent yet are dropped */
    bool receives, sends; /* a record is receiving; a record is sending; guarded by gateway.lock */
    weft_op op;
};

struct net_job { /* a record that copies bytes from or to a ring */
    struct gateway_copy copy;
    struct net_record *n;
    weft_request *r;
    bool sends, datagram;
    weft_gaddr more_from; /* the second part of received bytes that wrap from the ring's end to its start */
    uint64_t more, bytes;
    struct net_datagram head;
};

/* --- sockets --- */

static void net_free(struct gateway *g, struct gateway_object *o, bool over)
{
    struct net_record *n = (struct net_record *)(void *)o;
    if (n->accepted)
        net_free(g, &n->accepted->object, over);
    if (n->socket && !over)
        (void)(n->drop ? weft_net_abort(n->socket) : weft_net_close(n->socket));
    free(n);
}

static int net_new(struct net_record **out)
{
    struct net_record *n = calloc(1, sizeof *n);
    if (!n)
        return base_fail(-ENOMEM, "no memory to open a socket for the record of a request" BASE_MEMORY_HINT);
    n->object.service = WEFT_SERVICE_NET;
    n->object.free = net_free;
    *out = n;
    return 0;
}

/* Answers with the handle of a socket that was opened. */
static int net_give(struct gateway *g, struct net_record *n, weft_request *r)
{
    int rc = gateway_object_add(g, &n->object);
    if (rc) {
        n->drop = true;
        net_free(g, &n->object, false);
        return rc;
    }
    r->result[0] = n->object.id;
    return 0;
}

static int net_open(struct gateway *g, weft_request *r, const void *data)
{
    char host[NET_HOST_MAX + 1] = "";
    struct net_record *n = NULL;
    if (r->data_bytes > NET_HOST_MAX)
        return base_fail(-EINVAL, "the record of a request to open a socket has a host's name of %llu bytes: expected at most %u",
                         (unsigned long long)r->data_bytes, NET_HOST_MAX);
    if (r->arg[0] > 65535)
        return base_fail(-EINVAL, "the record of a request to open a socket has the port %llu: expected at most 65535",
                         (unsigned long long)r->arg[0]);
    if (r->arg[3] > INT32_MAX || r->arg[4] > INT32_MAX || r->arg[5] > INT32_MAX)
        return base_fail(-EINVAL, "the record of a request to open a socket has a number in arg[3] to arg[5] that is too large: at most %d",
                         INT32_MAX);
    if (r->data_bytes)
        memcpy(host, data, (size_t)r->data_bytes);
    if (strlen(host) != r->data_bytes)
        return base_fail(-EINVAL, "the record of a request to open a socket is invalid: its host's name contains a zero byte");
    int rc = net_new(&n);
    if (rc)
        return rc;
    const weft_net_spec spec = {.bytes = sizeof spec,
                                .host = host,
                                .port = (uint32_t)r->arg[0],
                                .flags = r->flags,
                                .receive_ring = r->arg[1],
                                .send_ring = r->arg[2],
                                .receive_buffer = (uint32_t)r->arg[3],
                                .send_buffer = (uint32_t)r->arg[4],
                                .backlog = (uint32_t)r->arg[5]};
    rc = socket_open(g->w, r->node, r->kind == WEFT_NET_LISTEN ? NET_LISTEN : NET_CONNECT, &spec, r->timeout_ns, &n->socket, &n->op);
    if (rc) {
        net_free(g, &n->object, false);
        return rc;
    }
    return net_give(g, n, r);
}

static void put_address(uint64_t out[3], const char *text)
{
    struct net_datagram d = {.bytes = 0};
    if (!text[0] || socket_read_address(text, &d))
        return;
    out[0] = d.port | (uint64_t)d.family << 16;
    memcpy(&out[1], d.address, sizeof d.address);
}

/* Returns 0 if the socket is open. Returns -EAGAIN if the socket is not open yet. */
static int net_opened(const struct net_record *n)
{
    int rc = weft_net_error(n->socket);
    return rc == -EINPROGRESS ? -EAGAIN : socket_end_of(rc);
}

static int net_tell_addresses(const struct net_record *n, weft_request *r)
{
    int rc = net_opened(n);
    if (rc)
        return rc;
    put_address(&r->result[0], weft_net_local(n->socket));
    put_address(&r->result[3], weft_net_peer(n->socket));
    return 0;
}

/* Requests the next connection of a listener, or takes it if it has arrived. Only one thread at a time may call this. */
static int accept_next(struct gateway *g, struct net_record *n, weft_request *r)
{
    struct net_record *a = n->accepted;
    int rc = net_opened(n);
    if (!rc && !a && !(rc = net_new(&a))) {
        rc = weft_net_accept_start(n->socket, &a->socket, &a->op);
        if (rc)
            net_free(g, &a->object, false);
        else
            n->accepted = a;
    }
    if (rc)
        return rc;
    rc = net_opened(a);
    if (rc == -EAGAIN)
        return rc;
    n->accepted = NULL;
    if (rc) {
        net_free(g, &a->object, false);
        return rc;
    }
    return net_give(g, a, r);
}

/* --- bytes --- */

/* Begins a record of a kind of which only one may be under way (`*busy`). Returns false if another one is under way. */
static bool net_begin(struct gateway *g, bool *busy)
{
    base_spin_lock(&g->lock);
    bool was = *busy;
    *busy = true;
    base_spin_unlock(&g->lock);
    return !was;
}

static void net_end(struct gateway *g, bool *busy)
{
    base_spin_lock(&g->lock);
    *busy = false;
    base_spin_unlock(&g->lock);
}

static int job_over(const struct net_job *j)
{
    weft_socket *s = j->n->socket;
    uint64_t skip;
    if (j->sends && j->datagram) {
        int rc = socket_datagram_room(s, j->head.bytes, &skip); /* the socket may have been closed while the bytes were copied */
        return rc ? rc : socket_datagram_put(s, &j->head, skip);
    }
    if (j->sends)
        return weft_net_put(s, (size_t)j->bytes);
    if (j->datagram)
        socket_datagram_taken(s, &j->head);
    else
        (void)weft_net_taken(s, (size_t)j->bytes);
    return 0;
}

static void job_copied(struct gateway_copy *c, int rc)
{
    struct net_job *j = (struct net_job *)(void *)c;
    struct gateway *g = c->g;
    struct net_record *n = j->n;
    weft_request *r = j->r;
    if (!rc && j->more) {
        c->to += c->bytes;
        c->from = j->more_from;
        c->bytes = j->more;
        j->more = 0;
        gateway_copy(g, c);
        return;
    }
    rc = rc ? rc : job_over(j);
    r->result[0] = rc ? 0 : j->bytes;
    net_end(g, j->sends ? &n->sends : &n->receives);
    free(j);
    gateway_record_answer(g, r, rc);
    gateway_object_leave(g, &n->object);
}

/* Starts to copy `bytes` bytes between the ring and the memory that the record names. In the ring they begin at position `ring` of its
 * stream. */
static int job_start(struct gateway *g, const struct net_job *like, const struct gateway_stream *s, uint64_t ring, uint64_t bytes)
{
    struct net_job *j = malloc(sizeof *j);
    if (!j)
        return base_fail(-ENOMEM, "no memory for a request to send or receive" BASE_MEMORY_HINT);
    uint64_t at = ring & (s->bytes - 1), gap = s->bytes - at, first = bytes < gap ? bytes : gap;
    *j = *like;
    j->bytes = bytes;
    j->more = bytes - first;
    j->more_from = s->ring;
    j->copy = (struct gateway_copy){.to = like->sends ? s->ring + at : like->r->arg[0],
                                    .from = like->sends ? like->r->arg[0] : s->ring + at,
                                    .bytes = first,
                                    .done = job_copied};
    gateway_copy(g, &j->copy);
    return GATEWAY_LATER;
}

static int receive_datagram(struct gateway *g, struct net_record *n, weft_request *r)
{
    struct net_job j = {.n = n, .r = r, .datagram = true};
    weft_socket *s = n->socket;
    int rc = socket_next_datagram(s, &j.head);
    if (rc)
        return rc;
    r->result[0] = j.head.bytes;
    r->result[1] = j.head.port | (uint64_t)j.head.family << 16;
    memcpy(&r->result[2], j.head.address, sizeof j.head.address);
    if (j.head.bytes > r->arg[1])
        return -EMSGSIZE;
    if (j.head.bytes)
        return job_start(g, &j, s->in, s->in->first + sizeof j.head, j.head.bytes);
    socket_datagram_taken(s, &j.head);
    return 0;
}

static int net_receive(struct gateway *g, struct net_record *n, weft_request *r)
{
    weft_socket *s = n->socket;
    const void *at;
    size_t have;
    if (!s->in || !r->arg[1])
        return -EINVAL;
    if (!net_begin(g, &n->receives))
        return -EBUSY;
    int rc;
    if (s->flags & WEFT_NET_DATAGRAMS)
        rc = receive_datagram(g, n, r);
    else if (!(rc = weft_net_received(s, &at, &have)) && have)
        rc = job_start(g, &(struct net_job){.n = n, .r = r}, s->in, s->in->first, have < r->arg[1] ? have : r->arg[1]);
    if (rc != GATEWAY_LATER)
        net_end(g, &n->receives);
    return rc;
}

static int send_datagram(struct gateway *g, struct net_record *n, weft_request *r)
{
    weft_socket *s = n->socket;
    struct net_job j = {.n = n, .r = r, .sends = true, .datagram = true};
    uint64_t family = r->arg[2] >> 16;
    uint64_t skip;
    int rc = net_opened(n);
    if (rc)
        return rc;
    if (r->arg[1] > WEFT_NET_DATAGRAM_MAX)
        return -EMSGSIZE;
    if (s->peer[0] ? r->arg[2] != 0 : family != 4 && family != 6)
        return -EINVAL;
    j.head = (struct net_datagram){.bytes = (uint32_t)r->arg[1], .family = (uint8_t)family, .port = (uint16_t)r->arg[2]};
    memcpy(j.head.address, &r->arg[3], sizeof j.head.address);
    rc = socket_datagram_room(s, j.head.bytes, &skip);
    return rc ? rc : job_start(g, &j, s->out, s->out->last + skip + sizeof j.head, j.head.bytes);
}

static int net_send(struct gateway *g, struct net_record *n, weft_request *r)
{
    weft_socket *s = n->socket;
    void *at;
    size_t room;
    if (!s->out || !r->arg[1])
        return -EINVAL;
    if (!net_begin(g, &n->sends))
        return -EBUSY;
    int rc;
    if (s->flags & WEFT_NET_DATAGRAMS)
        rc = send_datagram(g, n, r);
    else if (!(rc = weft_net_room(s, &at, &room)))
        rc = job_start(g, &(struct net_job){.n = n, .r = r, .sends = true}, s->out, s->out->last, room < r->arg[1] ? room : r->arg[1]);
    if (rc != GATEWAY_LATER)
        net_end(g, &n->sends);
    return rc;
}

static int net_received(struct gateway *g, struct net_record *n, weft_request *r)
{
    const void *at;
    size_t have;
    int rc = weft_net_received(n->socket, &at, &have);
    if (rc)
        return rc;
    r->result[0] = have ? weft_addr(g->w, at) : 0;
    r->result[1] = have;
    return 0;
}

/* Refused while a record is sending, because the end of the stream must not overtake the bytes of that record. */
static int net_shutdown(struct gateway *g, struct net_record *n)
{
    if (!net_begin(g, &n->sends))
        return -EAGAIN;
    int rc = weft_net_shutdown(n->socket);
    net_end(g, &n->sends);
    return rc;
}

/* Frees received bytes. Refused while a record is copying received bytes. */
static int net_taken(struct gateway *g, struct net_record *n, const weft_request *r)
{
    if (!net_begin(g, &n->receives))
        return -EBUSY;
    int rc = r->arg[0] > SIZE_MAX ? -EINVAL : weft_net_taken(n->socket, (size_t)r->arg[0]);
    net_end(g, &n->receives);
    return rc;
}

static int net_accept(struct gateway *g, struct net_record *n, weft_request *r)
{
    if (!n->socket->listens)
        return -EINVAL;
    if (!net_begin(g, &n->receives))
        return -EAGAIN; /* another record is accepting */
    int rc = accept_next(g, n, r);
    net_end(g, &n->receives);
    return rc;
}

/* --- records --- */

static int net_do(struct gateway *g, struct net_record *n, weft_request *r)
{
    switch (r->kind) {
    case WEFT_NET_ACCEPT: return net_accept(g, n, r);
    case WEFT_NET_OPENED: return net_tell_addresses(n, r);
    case WEFT_NET_RECEIVE: return net_receive(g, n, r);
    case WEFT_NET_SEND: return net_send(g, n, r);
    case WEFT_NET_SHUTDOWN: return net_shutdown(g, n);
    case WEFT_NET_RECEIVED: return net_received(g, n, r);
    case WEFT_NET_TAKEN: return net_taken(g, n, r);
    case WEFT_NET_CLOSE:
        n->drop = r->arg[0] == 1;
        gateway_object_close(g, &n->object);
        return 0;
    default: return -EINVAL;
    }
}

int gateway_net_submit(struct gateway *g, weft_request *r, void *data, uint64_t *arg)
{
    (void)arg;
    memset(r->result, 0, sizeof r->result);
    if (r->kind == WEFT_NET_CONNECT || r->kind == WEFT_NET_LISTEN)
        return net_open(g, r, data);
    struct gateway_object *o = gateway_object_use(g, r);
    if (!o)
        return -EBADF;
    int rc = net_do(g, (struct net_record *)(void *)o, r);
    if (rc != GATEWAY_LATER) /* GATEWAY_LATER: the job releases the socket */
        gateway_object_leave(g, o);
    return rc;
}
