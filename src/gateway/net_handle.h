/* SPDX-License-Identifier: MIT
 *
 * The asker's handle of a socket at a gateway (struct weft_socket). gateway.lock protects the fields that other threads or message handlers
 * change.
 *
 * The gateway uses the rings of a connection until it has answered the request that closes the socket. So the handle and its rings stay
 * until this answer, or until the gateway is gone, even after weft_net_close() has returned.
 */
#ifndef WEFT_GATEWAY_NET_HANDLE_H
#define WEFT_GATEWAY_NET_HANDLE_H

#include "gateway/net.h"

enum socket_state { SOCKET_OPENS, SOCKET_OPEN, SOCKET_OVER };
struct weft_socket {
    struct gateway *g;
    struct weft_socket *next_dead;
    /* Of a listener: handles for connections that had not arrived when weft_net_accept() timed out, linked by this member. */
    struct weft_socket *spare;
    /* id, there: the socket's number at this node and at the gateway; ask: the number of the request that opens the socket */
    uint64_t id, there, ask;
    uint32_t node, users;
    enum socket_state state;
    bool listens;
    bool served;    /* the gateway has the socket, or may have it */
    bool closed;    /* weft_net_close() was called */
    bool unclosed;  /* the request to close the socket could not be sent yet */
    bool ended_out; /* weft_net_shutdown() was called */
    int error;      /* why the socket could not be opened; -ECONNRESET: the gateway is gone; 0: no error */
    char *text;     /* the gateway's error text; NULL: it sent none */
    weft_gaddr memory;
    uint64_t receive_ring, send_ring;
    uint32_t flags;
    struct gateway_stream *in, *out; /* in: received bytes; out: bytes to send. NULL: the socket is a listener */
    int lent;                        /* a duplicate of the gateway's descriptor of the socket; -1: the socket is not lent */
    /* lend_asked: this node has requested the socket, and gateway_net_borrowed() has not returned it yet. lend_came: the descriptor has
     * arrived, or could not be received. lend_status: the gateway's answer; -EINPROGRESS: no answer yet */
    bool lend_asked, lend_came;
    int lend_status;
    weft_net_fn notify;
    void *notify_arg;
    char what[NET_HOST_MAX + 16]; /* "HOST:PORT", for error texts */
    char local[NET_ADDRESS_TEXT], peer[NET_ADDRESS_TEXT];
};

/* Begins to open a socket; `kind`: NET_CONNECT or NET_LISTEN. With an op, does not wait. `timeout_ns`: how long the answer may take; 0:
 * until the node's deadline; INT64_MAX: for ever. */
int socket_open(weft_node *w, uint32_t node, uint32_t kind, const weft_net_spec *given, int64_t timeout_ns, weft_socket **out, weft_op *op);
void socket_notify(const struct weft_socket *s); /* the caller holds gateway.lock */
bool socket_is_settled(void *arg);               /* whether the socket `arg` is open, or could not be opened */
int socket_error(struct weft_socket *s);
/* The status of a socket that has ended. -EAGAIN becomes -ENOTCONN, because callers read -EAGAIN as "no bytes now", and would wait. */
static inline int socket_end_of(int status)
{
    return status == -EAGAIN ? -ENOTCONN : status;
}
int socket_bytes_error(struct weft_socket *s, int rc); /* sets the error text for an error of receiving or sending; returns the error */
int64_t socket_until(const struct weft_socket *s, int64_t timeout_ns);
/* Waits until ready(arg) is true. The handle cannot be closed meanwhile. */
int socket_wait(struct weft_socket *s, fab_ready_fn ready, void *arg, int64_t deadline);

/* --- net_datagrams.c: for sockets with WEFT_NET_DATAGRAMS. `from` may be NULL; `to` NULL: the socket's peer --- */
int socket_receive_datagram(struct weft_socket *s, char from[WEFT_NET_ADDRESS], void *buf, size_t len, size_t *got, int64_t timeout_ns);
int socket_send_datagram(struct weft_socket *s, const char *to, const void *buf, size_t len, int64_t timeout_ns);
/* For requests that a kernel makes by a record (weft/request.h). These functions do not wait. socket_next_datagram() reads the head of the
 * next datagram. The bytes stay in the ring, from s->in->first + sizeof *d on. Returns -EAGAIN if there is no datagram.
 * socket_datagram_taken() removes the datagram. */
int socket_next_datagram(struct weft_socket *s, struct net_datagram *d);
void socket_datagram_taken(struct weft_socket *s, const struct net_datagram *d);
/* socket_datagram_room() finds room for a datagram of `len` bytes; its head begins `*skip` bytes after s->out->last. Returns -EAGAIN if
 * there is no room. The caller writes the bytes behind the head, and then calls socket_datagram_put(), which sends the datagram. */
int socket_datagram_room(struct weft_socket *s, size_t len, uint64_t *skip);
int socket_datagram_put(struct weft_socket *s, const struct net_datagram *d, uint64_t skip);
/* Reads an address such as "10.0.0.1:53" or "[fd00::1]:53". Returns 0, or -EINVAL with an error text. */
int socket_read_address(const char *text, struct net_datagram *d);

#endif
