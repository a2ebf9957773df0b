/* SPDX-License-Identifier: MIT
 *
 * The net service: a node, the asker, uses the network of another node, the gateway, over TCP and UDP. The asker's host needs no network. A
 * node offers the service if its environment variable WEFT_SERVE lists `net`. The gateway resolves names, connects, listens and accepts;
 * the asker opens no socket of the operating system.
 *
 * Memory. A connection has two ring buffers in the asker's pool: by default 64 KiB each, with datagrams 128 KiB each. Over shm the gateway
 * receives from the network directly into one ring, and sends to the network directly from the other. Over other transports the gateway
 * sends received bytes to the asker in messages, and fetches the bytes to send with gets. For these gets, all connections share 64 buffers
 * of 64 KiB at the gateway. A connection takes less than 2 KiB more at the gateway, and the system's socket buffers. A gateway has at most
 * 16,384 sockets, or fewer if its limit of open files is lower.
 *
 * Flow control. A full ring stops only its own connection. If the asker does not read, the gateway stops reading that socket, and the peer
 * must wait. If the peer does not read, weft_net_send() waits. No bytes of a TCP connection are dropped.
 *
 * Rules. The gateway's setting WEFT_NET_RULES is a list of rules such as `allow=127.0.0.1:8000` or `deny=10.0.0.0/8`. The first rule that
 * matches an address decides whether the gateway connects to that address. If no rule matches, the gateway refuses link-local and multicast
 * addresses, the metadata services of clouds and its own loopback, and connects to all others. The gateway resolves a name first, and
 * checks each address immediately before it connects to it. The rules restrict neither at which addresses the gateway listens nor from
 * where clients connect to it. Every node of the cluster may use the service, so set WEFT_SECRET to control who can join.
 *
 * Death. When the asker leaves or dies, the gateway resets its connections and closes its listeners. When the gateway leaves or dies, calls
 * end with -ECONNRESET; bytes that had arrived before can still be read.
 */
#ifndef WEFT_NET_H
#define WEFT_NET_H

#include "fabric.h"
#include "request.h"
#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A connection or a listener: its socket is at the gateway. */
typedef struct weft_socket weft_socket;

#define WEFT_NET_IPV4      0x1u  /* use IPv4 only */
#define WEFT_NET_IPV6      0x2u  /* use IPv6 only */
#define WEFT_NET_NODELAY   0x4u  /* send small amounts of data at once (TCP_NODELAY) */
#define WEFT_NET_KEEPALIVE 0x8u  /* end the connection if the peer no longer answers (SO_KEEPALIVE) */
#define WEFT_NET_REUSE     0x10u /* listen at a port even if connections used it shortly before (SO_REUSEADDR) */
/* Connect to a server on the gateway's own host: `host` is "" (the loopback address), or the absolute path of a Unix socket there, with
 * `port` 0. A gateway does this only if it also offers `process`, because then askers could as well start a program there that connects.
 * The deny rules of WEFT_NET_RULES still apply. */
#define WEFT_NET_LOOPBACK 0x20u
/* UDP. On a socket of weft_net_connect(), weft_net_send() and weft_net_receive() send and receive one datagram each, to and from the peer.
 * On a socket of weft_net_listen(), weft_net_send_to() and weft_net_receive_from() do so with any address that the rules allow. A datagram
 * arrives whole or not at all.
 */
#define WEFT_NET_DATAGRAMS 0x40u
#define WEFT_NET_FLAGS     0x7fu

#define WEFT_NET_DATAGRAM_MAX 65507u /* largest datagram that can be sent, in bytes */
#define WEFT_NET_ADDRESS      80u    /* room for an address as text, in bytes */

typedef struct weft_net_spec {
    size_t bytes;     /* sizeof(weft_net_spec): weft_net_spec s = {.bytes = sizeof s, .host = "example.com", .port = 80} */
    const char *host; /* a name or an address, at most 255 bytes. For a listener, NULL or "" means all addresses */
    uint32_t port;    /* for a listener, 0 means any free port */
    uint32_t flags;   /* WEFT_NET_... */
    /* bytes: powers of two from 4 KiB to 16 MiB; 0: 64 KiB. With datagrams: at least 128 KiB; 0: 128 KiB. For a listener: the rings of the
     * connections that it accepts */
    uint64_t receive_ring, send_ring;
    uint32_t receive_buffer, send_buffer; /* bytes of the system's socket buffers at the gateway; 0: the system's default */
    uint32_t backlog;                     /* for a listener: how many connections may wait to be accepted; 0: 128 */
    uint32_t zero;
} weft_net_spec;

/* Connects to a host. The gateway resolves a name, and tries the addresses of the name in turn.
 * Errors: -EINVAL `spec->bytes` or another field of the spec is wrong; -E2BIG `spec` sets fields that this version of the library does not
 * know; -EACCES a rule of the gateway forbids the address; -EHOSTUNREACH the name does not exist, or there is no route to the host;
 * -ECONNREFUSED no program listens at this port; -ENETUNREACH no route to the network; -EOPNOTSUPP the node does not offer `net`; -EAGAIN
 * too many requests are outstanding, or the name server does not answer; -EMFILE the gateway has too many sockets; -ENOMEM no memory at
 * this node or at the gateway, or no room in the pool; -EFAULT there is no such node; -ECONNRESET the gateway is gone; -ETIMEDOUT not
 * connected before the deadline; -ENOBUFS called in a handler, and too much is queued; -ENETDOWN no route to the gateway (tb); -EDEADLK the
 * call would wait in a handler; and other errors of connect(2). */
WEFT_API int weft_net_connect(weft_node *w, uint32_t node, const weft_net_spec *spec, weft_socket **out, int64_t timeout_ns);

/* Like weft_net_connect(), but does not wait: the op is complete when the connection is open or has failed, or with -ETIMEDOUT after the
 * node's default deadline (WEFT_DEADLINE). `*out` is set at once; close it with weft_net_close() even if the connection fails. After a
 * failure, weft_net_error() sets the sentence of weft_error().
 * Errors: -EINVAL `spec->bytes` or another field of the spec is wrong; -E2BIG `spec` sets fields that this version of the library does not
 * know; -EAGAIN too many requests are outstanding at the node; -ENOMEM no memory, or no room in the pool; -EFAULT there is no such node;
 * -ECONNRESET the node is gone. The other errors of weft_net_connect() are results of the op. */
WEFT_API int weft_net_connect_start(weft_node *w, uint32_t node, const weft_net_spec *spec, weft_socket **out, weft_op *op);

/* Listens at the gateway. weft_net_local() returns the address with the port.
 * Errors: -EINVAL `spec->bytes` or another field of the spec is wrong; -E2BIG `spec` sets fields that this version of the library does not
 * know; -EADDRINUSE the port is in use; -EADDRNOTAVAIL the gateway has no such address; -EACCES the gateway may not use the port;
 * -EHOSTUNREACH the name does not exist; -EOPNOTSUPP the node does not offer `net`; -EAGAIN too many requests are outstanding, or the name
 * server does not answer; -EMFILE the gateway has too many sockets; -ENOMEM no memory at this node or at the gateway; -EFAULT there is no
 * such node; -ECONNRESET the gateway is gone; -ETIMEDOUT no answer before the deadline; -ENOBUFS called in a handler, and too much is
 * queued; -ENETDOWN no route to the gateway (tb); -EDEADLK the call would wait in a handler. */
WEFT_API int weft_net_listen(weft_node *w, uint32_t node, const weft_net_spec *spec, weft_socket **out, int64_t timeout_ns);

/* Waits for a connection and accepts it. With WEFT_TIMEOUT_DEFAULT this waits as long as the gateway is alive. A time-out loses no
 * connection: a later call accepts the connection.
 * Errors: -EINVAL `listener` is not a listener; -ETIMEDOUT no connection came before the deadline; -EMFILE the gateway has too many
 * sockets; -ENOMEM no memory at this node or at the gateway, or no room in the pool; -EAGAIN too many requests are outstanding at the
 * gateway; -ECONNRESET the gateway is gone; -ENETDOWN no route (tb); -EDEADLK the call would wait in a handler. */
WEFT_API int weft_net_accept(weft_socket *listener, weft_socket **out, int64_t timeout_ns);

/* Like weft_net_accept(), but does not wait: the op is complete when a connection has been accepted, or the listener is gone; there is no
 * deadline. `*out` is set at once; close it with weft_net_close() in any case. After a failure, weft_net_error() sets the sentence of
 * weft_error(). Several calls may wait at the same time, weft_net_accept() included: they get connections in the order in which they were
 * made.
 * Errors: -EINVAL `listener` is not a listener; -EAGAIN too many requests are outstanding at the node, or the listener is not open yet;
 * -ENOMEM no memory, or no room in the pool; -ECONNRESET the gateway is gone. The other errors of weft_net_accept() are results of the op.
 */
WEFT_API int weft_net_accept_start(weft_socket *listener, weft_socket **out, weft_op *op);

/* The gateway: the node where the socket is. */
WEFT_API uint32_t weft_net_node(const weft_socket *s);

/* The address of the socket at the gateway, and the address of its peer, as in "10.0.0.1:80" and "[fd00::1]:80". Both are "" before the
 * socket is open; a listener has no peer, so its peer is always "". The strings are valid until weft_net_close(). */
WEFT_API const char *weft_net_local(const weft_socket *s);
WEFT_API const char *weft_net_peer(const weft_socket *s);

/* Returns 0 if the socket is open. Otherwise returns why not, and sets weft_error().
 * Errors: -EINPROGRESS the socket is not open yet (weft_error() is not set); -ECONNRESET the gateway is gone; -ECANCELED the opening was
 * cancelled; and the errors of weft_net_connect(), if opening the socket has failed. */
WEFT_API int weft_net_error(weft_socket *s);

/* Receives bytes: waits for at least one. `*got` is how many were received; 0: the peer sends no more. Only one thread at a time may
 * receive. With WEFT_TIMEOUT_DEFAULT this waits as long as the gateway is alive. On a socket with datagrams this receives one datagram,
 * which may have 0 bytes.
 * Errors: -EINVAL the socket is a listener; -EMSGSIZE the next datagram is larger than `len`: `*got` is its size, and the next call can
 * receive it; -ETIMEDOUT no bytes came before the deadline; -ECONNRESET the peer has reset the connection, or the gateway is gone; -EBUSY
 * another thread is receiving; -EPROTO the gateway has sent invalid data; -EDEADLK the call would wait in a handler; other errors of
 * recv(2); and if the socket could not be opened, the errors of weft_net_error(). */
WEFT_API int weft_net_receive(weft_socket *s, void *buf, size_t len, size_t *got, int64_t timeout_ns);

/* Sends bytes: waits until all bytes are in the ring, from which the gateway sends them. `*put` (may be NULL) is how many bytes were put
 * into the ring, also after an error. With a time-out of 0 the call sends as many bytes as there is room for; if bytes are left, it returns
 * -ETIMEDOUT without setting weft_error(). Only one thread at a time may send. On a socket with datagrams, all bytes become one datagram.
 * Errors: -EINVAL the socket is a listener; -EMSGSIZE more than WEFT_NET_DATAGRAM_MAX bytes for a datagram; -EPIPE the peer has closed the
 * connection, or weft_net_shutdown() was called; -ETIMEDOUT not all bytes were sent before the deadline; -ECONNRESET the gateway is gone;
 * -ENOMEM no memory; -EDEADLK the call would wait in a handler; and if the socket could not be opened, the errors of weft_net_error(). */
WEFT_API int weft_net_send(weft_socket *s, const void *buf, size_t len, size_t *put, int64_t timeout_ns);

/* Send a datagram to an address, and receive one from any address, as in "10.0.0.1:53" and "[fd00::1]:53". The socket is one of
 * weft_net_listen() with WEFT_NET_DATAGRAMS. `from` may be NULL. If a rule of the gateway forbids the address, the gateway drops the
 * datagram and logs that. In all else they are like weft_net_send() and weft_net_receive() with datagrams.
 * Errors: -EINVAL the socket is not one for datagrams, or it has a peer (weft_net_send_to()), or `to` is not an address; -EMSGSIZE the
 * datagram to send has more than WEFT_NET_DATAGRAM_MAX bytes, or the next one to receive is larger than `len`: then `*got` is its size, and
 * the next call can receive it; -ETIMEDOUT no room to send, or no datagram, before the deadline; -EPIPE weft_net_shutdown() was called;
 * -ECONNRESET the gateway is gone; -EPROTO the gateway has sent invalid data; -ENOMEM no memory; -EDEADLK the call would wait in a handler;
 * and if the socket could not be opened, the errors of weft_net_error(). */
WEFT_API int weft_net_send_to(weft_socket *s, const char *to, const void *buf, size_t len, int64_t timeout_ns);
WEFT_API int weft_net_receive_from(weft_socket *s, char from[WEFT_NET_ADDRESS], void *buf, size_t len, size_t *got, int64_t timeout_ns);

/* Ends sending: the peer sees the end after all bytes. Receiving goes on.
 * Errors: -EINVAL the socket is a listener; -EAGAIN the socket is not open yet; -ENOMEM no memory; and if the socket could not be opened,
 * the errors of weft_net_error(). */
WEFT_API int weft_net_shutdown(weft_socket *s);

/* Closes the socket and frees the handle. Does not wait: the gateway sends what is still in the ring, for at most ten seconds, as long as
 * this node does not leave. A node that will leave soon should first call weft_net_shutdown(), and receive until `*got` is 0. Operations
 * that are not complete end with -ECANCELED. NULL is allowed.
 * Errors: -EBUSY a thread waits in another call with this handle. */
WEFT_API int weft_net_close(weft_socket *s);

/* Like weft_net_close(), but drops the bytes that are not sent yet and resets the connection. The reset tells the peer that the stream is
 * incomplete.
 * Errors: -EBUSY a thread waits in another call with this handle. */
WEFT_API int weft_net_abort(weft_socket *s);

/* --- sending and receiving without copies and without waiting; not for datagrams --- */

/* Receive in place. weft_net_received() returns the address and the length of the first contiguous bytes in the ring. They stay there until
 * weft_net_taken() frees the first `bytes` of them. If `*bytes` is 0, the peer sends no more.
 * Errors: -EAGAIN no bytes are there now; -EINVAL the socket is a listener, or more bytes are freed than are there; -ENOTCONN the socket
 * could not be opened, and the reason is -EAGAIN; -ECONNRESET, -EPROTO and others, as weft_net_receive(). No error sets weft_error(). */
WEFT_API int weft_net_received(weft_socket *s, const void **at, size_t *bytes);
WEFT_API int weft_net_taken(weft_socket *s, size_t bytes);

/* Send in place. weft_net_room() returns the address and the length of the first contiguous free bytes in the ring. The caller writes
 * there, and weft_net_put() sends the first `bytes` of them.
 * Errors: -EAGAIN no room now; -EINVAL the socket is a listener, or more bytes are sent than there is room for; -ENOTCONN the socket could
 * not be opened, and the reason is -EAGAIN; -EPIPE, -ECONNRESET and others, as weft_net_send(); -ENOMEM no memory. Only weft_net_put() sets
 * weft_error(). */
WEFT_API int weft_net_room(weft_socket *s, void **at, size_t *bytes);
WEFT_API int weft_net_put(weft_socket *s, size_t bytes);

/* Installs a function that weft calls when the socket may have changed: it is open or could not be opened, bytes have arrived, there is
 * room to send, or the connection has ended. weft calls the function on any thread, with locks held: the function must return soon and must
 * not call weft. A typical function writes a byte to a pipe. After weft_net_close() has returned, weft does not call the function any more.
 * `fn` NULL removes the function. The function is not called for what was there before it was installed, so check the socket once
 * afterwards. */
typedef void (*weft_net_fn)(void *arg);
WEFT_API void weft_net_notify(weft_socket *s, weft_net_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif
