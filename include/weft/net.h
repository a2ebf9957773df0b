/* SPDX-License-Identifier: MIT
 *
 * Use the network of another node, by TCP and UDP sockets at that node. The node with the sockets is the gateway: it resolves names,
 * connects, listens and accepts. The node that uses the sockets is the asker; it opens no socket of its own. A node is a gateway if its
 * WEFT_SERVE contains the service `net`.
 *
 * Memory. Each connection has two ring buffers in the asker's pool: one for received bytes, one for bytes to send. By default each has 64
 * KiB, or 128 KiB with datagrams. At the gateway a connection takes less than 2 KiB, and the system's own socket buffers. If the transport
 * is not shm, all connections of a gateway share 64 more buffers of 64 KiB. A gateway has at most 16384 sockets, or fewer if its limit of
 * open files is lower, and resolves at most 1024 names at a time.
 *
 * Shares. One asker can never take all sockets, names or buffers of a gateway. Of each kind, an asker may have up to three times as many as
 * are still free. So a single asker gets at most three quarters, and other askers always get some. WEFT_NET_SOCKETS of the gateway sets a
 * fixed limit for the sockets of each asker instead.
 *
 * Slow sides. If the asker does not read, the gateway stops reading that socket, and the peer waits. If the peer does not read,
 * weft_net_send() waits. No bytes of a connection are lost, and other connections are not affected.
 *
 * Rules. WEFT_NET_RULES restricts the addresses to which the gateway connects. The first rule that matches decides, for example
 * `allow=127.0.0.1:8000` or `deny=10.0.0.0/8`. If no rule matches, the address is allowed, unless it is link-local, multicast, the metadata
 * service of cloud machines, or the gateway's own loopback. A rule for a name or for `*` does not allow these four kinds of addresses. The
 * gateway resolves a name first and then checks each address. A rule that denies a name also denies DNS aliases of that name, and short
 * forms that the gateway's search list completes to it. No rules restrict the addresses of listeners or their clients. Any node of the
 * cluster may use the gateway: set WEFT_SECRET to control who can join.
 *
 * When the asker leaves or dies, its connections are reset and its listeners closed. When the gateway leaves or dies, calls end with
 * -ECONNRESET; bytes that had arrived before can still be read.
 */
#ifndef WEFT_NET_H
#define WEFT_NET_H

#include "request.h"
#if !defined(__METAL_VERSION__) /* Metal kernels use only the constants of this file */
#include "fabric.h"
#include "types.h"
#endif

#if defined(__cplusplus) && !defined(__METAL_VERSION__)
extern "C" {
#endif

/* A connection or a listener. Its socket is at the gateway. */
typedef struct weft_socket weft_socket;

#define WEFT_NET_IPV4      0x1u  /* use IPv4 only */
#define WEFT_NET_IPV6      0x2u  /* use IPv6 only */
#define WEFT_NET_NODELAY   0x4u  /* send small amounts of data at once (TCP_NODELAY) */
#define WEFT_NET_KEEPALIVE 0x8u  /* end the connection if the peer no longer answers (SO_KEEPALIVE) */
#define WEFT_NET_REUSE     0x10u /* listen at a port even if connections used it shortly before (SO_REUSEADDR) */
/* Connect to a server on the gateway's own host: `host` is "" for its loopback address or, with `port` 0, the absolute path of a Unix
 * socket. A gateway allows this only if it also offers `process`: with that, an asker could start a program that connects anyway. Denying
 * rules of WEFT_NET_RULES still hold. */
#define WEFT_NET_LOOPBACK 0x20u
/* Use UDP. A datagram arrives whole or not at all. After weft_net_connect(), weft_net_send() and weft_net_receive() send and receive one
 * datagram each, to and from the peer. After weft_net_listen(), weft_net_send_to() and weft_net_receive_from() send and receive datagrams
 * to and from all allowed addresses. */
#define WEFT_NET_DATAGRAMS 0x40u
#define WEFT_NET_FLAGS     0x7fu

#define WEFT_NET_DATAGRAM_MAX 65507u /* largest datagram that can be sent, in bytes */
#define WEFT_NET_ADDRESS      80u    /* room for an address as text, in bytes */

#if !defined(__METAL_VERSION__)
typedef struct weft_net_spec {
    size_t bytes;                     /* sizeof(weft_net_spec): weft_net_spec s = {.bytes = sizeof s, .host = "example.com", .port = 80} */
    const char *host;                 /* a name or an address, at most 255 bytes. For a listener, NULL or "" means all addresses */
    uint32_t port;                    /* for a listener, 0 means any free port */
    uint32_t flags;                   /* WEFT_NET_... */
    uint64_t receive_ring, send_ring; /* bytes of the rings: powers of two from 4 KiB to 16 MiB; 0: 64 KiB. With datagrams at least 128 KiB;
                                         0: 128 KiB. A listener's connections get the sizes of the listener */
    uint32_t receive_buffer, send_buffer; /* bytes of the system's socket buffers at the gateway; 0: the system's default */
    uint32_t backlog;                     /* for a listener: maximum number of connections that wait to be accepted; 0: 128 */
    uint32_t zero;
} weft_net_spec;

/* Connects to a host. The gateway resolves the name, and tries its addresses one after another.
 * Errors: -EINVAL `spec->bytes` or another field of the spec is wrong; -E2BIG `spec` sets fields that this version of the library does not
 * know; -EACCES a rule of the gateway forbids the address; -EHOSTUNREACH the name does not exist, or there is no route to the host;
 * -ECONNREFUSED no program listens at this port; -ENETUNREACH no route to the network; -EOPNOTSUPP the node does not offer `net`; -EAGAIN
 * too many requests are outstanding, or the name server does not answer; -EMFILE this node, or all nodes, have too many sockets at the
 * gateway; -ENOMEM no memory at this node or at the gateway, or no room in the pool; -EFAULT there is no such node; -ECONNRESET the gateway
 * is gone; -ETIMEDOUT not connected before the deadline; -ENETDOWN no route to the gateway (tb); -EDEADLK the call would wait in a handler.
 * Other errors of connect(2) may be returned as well. */
WEFT_API int weft_net_connect(weft_node *w, uint32_t node, const weft_net_spec *spec, weft_socket **out, int64_t timeout_ns);

/* Like weft_net_connect(), but does not wait: the op is complete when the connection is open or has failed, at the latest at the default
 * deadline. `*out` is set at once, and must be closed by weft_net_close() in any case. Calls that send or receive wait until the socket is
 * open. If opening has failed, weft_net_error() explains why.
 * Errors: -EINVAL `spec->bytes` or another field of the spec is wrong; -E2BIG `spec` sets fields that this version of the library does not
 * know; -EAGAIN too many requests are outstanding at the node; -ENOMEM no memory, or no room in the pool; -EFAULT there is no such node;
 * -ECONNRESET the node is gone. The other errors of weft_net_connect() are results of the op. */
WEFT_API int weft_net_connect_start(weft_node *w, uint32_t node, const weft_net_spec *spec, weft_socket **out, weft_op *op);

/* Listens at the gateway. weft_net_local() returns the address with the port.
 * Errors: -EINVAL `spec->bytes` or another field of the spec is wrong; -E2BIG `spec` sets fields that this version of the library does not
 * know; -EADDRINUSE the port is in use; -EADDRNOTAVAIL the gateway has no such address; -EACCES the gateway may not use the port;
 * -EHOSTUNREACH the name does not exist; -EOPNOTSUPP the node does not offer `net`; -EAGAIN too many requests are outstanding, or the name
 * server does not answer; -EMFILE the gateway has too many sockets; -ENOMEM no memory at this node or at the gateway; -EFAULT there is no
 * such node; -ECONNRESET the gateway is gone; -ETIMEDOUT no answer before the deadline; -ENETDOWN no route to the gateway (tb); -EDEADLK
 * the call would wait in a handler. */
WEFT_API int weft_net_listen(weft_node *w, uint32_t node, const weft_net_spec *spec, weft_socket **out, int64_t timeout_ns);

/* Waits for a client, and stores its connection in `*out`. With WEFT_TIMEOUT_DEFAULT this waits as long as the gateway is alive, unless
 * WEFT_DEADLINE is set. If a client arrives after a time-out, the next call accepts it. Errors: -EINVAL `listener` is not a listener;
 * -ETIMEDOUT no connection arrived before the deadline; -EMFILE the gateway has too many sockets; -ENOMEM no memory at this node or at the
 * gateway, or no room in the pool; -EAGAIN too many requests are outstanding at the gateway; -ECONNRESET the gateway is gone; -ENETDOWN no
 * route (tb); -EDEADLK the call would wait in a handler. */
WEFT_API int weft_net_accept(weft_socket *listener, weft_socket **out, int64_t timeout_ns);

/* Like weft_net_accept(), but does not wait: the op is complete when a client has connected, or the listener is gone. It has no deadline.
 * `*out` is set at once, and must be closed by weft_net_close() in any case. If accepting has failed, weft_net_error() explains why.
 * Several calls may wait at the same time, and get clients in the order of the calls.
 * Errors: -EINVAL `listener` is not a listener; -EAGAIN too many requests are outstanding at the node; -ENOMEM no memory, or no room in
 * the pool; -ECONNRESET the gateway is gone. The other errors of weft_net_accept() are results of the op.
 */
WEFT_API int weft_net_accept_start(weft_socket *listener, weft_socket **out, weft_op *op);

/* The gateway: the node where the socket is. */
WEFT_API uint32_t weft_net_node(const weft_socket *s);

/* The socket's own address at the gateway, and the address of its peer: "10.0.0.1:80" or "[fd00::1]:80". "" if the socket is not open yet;
 * a listener has no peer. Valid until weft_net_close(). */
WEFT_API const char *weft_net_local(const weft_socket *s);
WEFT_API const char *weft_net_peer(const weft_socket *s);

/* Returns 0 if the socket is open; otherwise the reason, and sets weft_error().
 * Errors: -EINPROGRESS the socket is not open yet (weft_error() is not set); -ECONNRESET the gateway is gone. If opening the socket has
 * failed, the errors of weft_net_connect() are returned, or the negative ECANCELED if the opening was cancelled. */
WEFT_API int weft_net_error(weft_socket *s);

/* Waits for at least one byte, and receives up to `len` bytes. `*got` is the number of bytes; 0: the peer will send no more. Only one
 * thread at a time may receive. With WEFT_TIMEOUT_DEFAULT this waits as long as the gateway is alive, unless WEFT_DEADLINE is set. With
 * datagrams: receives one datagram, which may have 0 bytes.
 * Errors: -EINVAL the socket is a listener; -EMSGSIZE the next datagram is larger than `len`: it stays, and `*got` is its size; -ETIMEDOUT
 * nothing arrived before the deadline; -ECONNRESET the peer has reset the connection, or the gateway is gone; -EBUSY another thread
 * receives; -EPROTO the gateway has sent invalid data; -EDEADLK the call would wait in a handler. Other errors of recv(2) may be returned,
 * too. If the socket could not be opened: the error of opening it. */
WEFT_API int weft_net_receive(weft_socket *s, void *buf, size_t len, size_t *got, int64_t timeout_ns);

/* Sends `len` bytes. Returns when all bytes are in the send ring, from which the gateway takes them. `*put` (may be NULL) is the number of
 * bytes put into the ring, also after an error. With a time-out of 0 the call sends as many bytes as the ring has room for; if bytes are
 * left, it returns -ETIMEDOUT and does not set weft_error(). Only one thread at a time may send; this is not checked. With datagrams: all
 * bytes are one datagram.
 * Errors: -EINVAL the socket is a listener; -EMSGSIZE more than WEFT_NET_DATAGRAM_MAX bytes for a datagram; -EPIPE the peer accepts no
 * more bytes, or weft_net_shutdown() was called; -ETIMEDOUT not all bytes were sent before the deadline; -ECONNRESET the gateway is gone;
 * -ENOMEM no memory; -EDEADLK the call would wait in a handler. If the socket could not be opened: the error of opening it. */
WEFT_API int weft_net_send(weft_socket *s, const void *buf, size_t len, size_t *put, int64_t timeout_ns);

/* Sends a datagram to an address, such as "10.0.0.1:53" or "[fd00::1]:53". The socket comes from weft_net_listen() with
 * WEFT_NET_DATAGRAMS. If a rule forbids the address, the gateway drops the datagram and writes a line to its log.
 * Errors: -EINVAL the socket is not one for datagrams, or has a peer, or `to` is not an address; -EMSGSIZE the datagram has more than
 * WEFT_NET_DATAGRAM_MAX bytes; -ETIMEDOUT no room before the deadline; -EPIPE weft_net_shutdown() was called; -ECONNRESET the gateway is
 * gone; -ENOMEM no memory; -EDEADLK the call would wait in a handler. If the socket could not be opened: the error of opening it. */
WEFT_API int weft_net_send_to(weft_socket *s, const char *to, const void *buf, size_t len, int64_t timeout_ns);

/* Receives a datagram, and stores the sender's address in `from` (may be NULL). Otherwise as weft_net_receive() with datagrams. Here, too,
 * only one thread at a time may receive, but this is not checked.
 * Errors: -EINVAL the socket is not one for datagrams; -EMSGSIZE the next datagram is larger than `len`: it stays, and `*got` is its size;
 * -ETIMEDOUT nothing arrived before the deadline; -ECONNRESET the gateway is gone; -EPROTO the gateway has sent invalid data; -EDEADLK the
 * call would wait in a handler. If the socket could not be opened: the error of opening it. */
WEFT_API int weft_net_receive_from(weft_socket *s, char from[WEFT_NET_ADDRESS], void *buf, size_t len, size_t *got, int64_t timeout_ns);

/* Ends sending: after the last byte, the peer sees the end of the stream. Receiving remains possible.
 * Errors: -EINVAL the socket is a listener; -EAGAIN the socket is not open yet; -ECONNRESET the gateway is gone; -ENOMEM no memory. If the
 * socket could not be opened: the error of opening it. */
WEFT_API int weft_net_shutdown(weft_socket *s);

/* Closes the socket, and returns at once. The gateway still sends the bytes in the send ring, for at most ten seconds and only while this
 * node stays in the cluster. Before this node leaves, call weft_net_shutdown() and receive until the peer has ended. Operations that are
 * not complete end with the negative ECANCELED. NULL is allowed.
 * Errors: -EBUSY a thread waits in another call with this handle. */
WEFT_API int weft_net_close(weft_socket *s);

/* Like weft_net_close(), but drops unsent bytes and resets the connection, so that the peer learns that the stream is incomplete.
 * Errors: -EBUSY a thread waits in another call with this handle. */
WEFT_API int weft_net_abort(weft_socket *s);

/* --- sending and receiving without copies and without waiting; not for datagrams --- */

/* Receive in place: weft_net_received() stores a pointer to received bytes in `*at`, and the number of these bytes in `*bytes`; 0: the peer
 * will send no more. The bytes stay in place until weft_net_taken().
 * Errors: -EAGAIN no bytes are there now; -EINVAL the socket is a listener; -ENOTCONN opening the socket has failed with -EAGAIN;
 * -ECONNRESET, -EPROTO and others, as weft_net_receive(). None sets weft_error(). */
WEFT_API int weft_net_received(weft_socket *s, const void **at, size_t *bytes);

/* Frees the first `bytes` received bytes.
 * Errors: -EINVAL the socket is a listener, or more bytes are freed than are there (weft_error() is not set). */
WEFT_API int weft_net_taken(weft_socket *s, size_t bytes);

/* Send in place: weft_net_room() stores in `*at` where to write bytes to send, and in `*bytes` how many bytes fit there. weft_net_put()
 * sends the first `bytes` of them.
 * Errors: -EAGAIN no room now; -EINVAL the socket is a listener, or more bytes are sent than there is room for; -ENOTCONN opening the
 * socket has failed with -EAGAIN; -EPIPE, -ECONNRESET and others, as weft_net_send(); -ENOMEM no memory. Only weft_net_put() sets
 * weft_error(). */
WEFT_API int weft_net_room(weft_socket *s, void **at, size_t *bytes);
WEFT_API int weft_net_put(weft_socket *s, size_t bytes);

/* Installs a function that weft calls when the socket may have changed: bytes have arrived, there is room to send, or the socket was opened
 * or closed. The function runs on any thread, with locks held: it must not wait and must not call weft. A typical function writes a byte to
 * a pipe. It is not called for earlier changes, so check the socket once after installing the function. It is not called after
 * weft_net_close() has returned. NULL removes the function. */
typedef void (*weft_net_fn)(void *arg);
WEFT_API void weft_net_notify(weft_socket *s, weft_net_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif
#endif
