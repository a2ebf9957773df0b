/* SPDX-License-Identifier: MIT
 *
 * The net service: TCP and UDP sockets at a node that has a network, for nodes that may have none. The node that has the sockets is the
 * gateway, and a node that uses them is an asker. A node offers the service if its WEFT_SERVE names `net`. The gateway resolves names,
 * connects, listens and accepts; the asker opens no socket of its own.
 *
 * Memory. Each connection has two ring buffers in the asker's pool, one for received bytes and one for bytes to send: by default of 64 KiB
 * each, with datagrams of 128 KiB. Over shm the gateway reads and writes these rings directly. Over other transports the gateway sends
 * received bytes to the asker in messages, and fetches the bytes to send from the ring. For this it has 64 buffers of 64 KiB for all
 * connections together. In addition a connection takes less than 2 KiB at the gateway, and the system's own socket buffers. A gateway has
 * at most 16,384 sockets, or as many as its limit of open files allows, and resolves at most 1,024 names at a time, on eight threads.
 *
 * Shares. One asker never gets all sockets, names, threads or buffers of a gateway. Of each kind it may use three times as many as are
 * still free. So a single asker gets at most three quarters, and an asker that has none always gets some. The gateway's setting
 * WEFT_NET_SOCKETS also limits the sockets of each asker.
 *
 * Flow control. A full ring stops only its own connection. If the asker does not read, the gateway stops reading that socket, and the peer
 * must wait. If the peer does not read, weft_net_send() waits. No bytes of a TCP connection are dropped.
 *
 * Rules. The gateway's setting WEFT_NET_RULES says to which addresses it connects for askers. The first rule that matches decides, for
 * example `allow=127.0.0.1:8000` or `deny=10.0.0.0/8`. If no rule matches, every address is allowed except link-local and multicast
 * addresses, the metadata service of cloud machines, and the gateway's own loopback. A rule for a name or for `*` does not allow these. The
 * gateway checks each address just before it connects, after it has resolved the name. A rule that denies a name also denies its aliases
 * (DNS names whose canonical name is the denied one), and short forms that the gateway's search list completes to the name. The rules
 * restrict neither where the gateway listens nor who connects there. Every node of the cluster may use the service: set WEFT_SECRET to
 * control who can join.
 *
 * Death. When the asker leaves or dies, its connections are reset and its listeners closed. When the gateway leaves or dies, calls end with
 * -ECONNRESET; bytes that had arrived before can still be read.
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
/* Connect to the gateway itself: `host` is "" for its loopback address, or the absolute path of a Unix socket there, with `port` 0. Only a
 * gateway that also offers `process` allows this, because there an asker could start a program that connects. The deny rules of
 * WEFT_NET_RULES still hold. */
#define WEFT_NET_LOOPBACK 0x20u
/* UDP. After weft_net_connect(), weft_net_send() and weft_net_receive() send and receive one datagram each, to and from the peer. After
 * weft_net_listen(), weft_net_send_to() and weft_net_receive_from() do that, to and from all addresses that the rules allow. A datagram
 * arrives whole or not at all.
 */
#define WEFT_NET_DATAGRAMS 0x40u
#define WEFT_NET_FLAGS     0x7fu

#define WEFT_NET_DATAGRAM_MAX 65507u /* largest datagram that can be sent, in bytes */
#define WEFT_NET_ADDRESS      80u    /* room for an address as text, in bytes */

typedef struct weft_net_spec {
    size_t bytes;                     /* sizeof(weft_net_spec): weft_net_spec s = {.bytes = sizeof s, .host = "example.com", .port = 80} */
    const char *host;                 /* a name or an address, at most 255 bytes. For a listener, NULL or "" means all addresses */
    uint32_t port;                    /* for a listener, 0 means any free port */
    uint32_t flags;                   /* WEFT_NET_... */
    uint64_t receive_ring, send_ring; /* bytes of the rings: powers of two from 4 KiB to 16 MiB; 0: 64 KiB. A listener's connections get the
                                       * listener's sizes. With datagrams at least 128 KiB; 0: 128 KiB */
    uint32_t receive_buffer, send_buffer; /* bytes of the system's socket buffers at the gateway; 0: the system's default */
    uint32_t backlog;                     /* for a listener: how many connections may wait to be accepted; 0: 128 */
    uint32_t zero;
} weft_net_spec;

/* Connects to a host. The gateway resolves a name, and tries the addresses of the name in turn.
 * Errors: -EINVAL `spec->bytes` or another field of the spec is wrong; -E2BIG `spec` sets fields that this version of the library does not
 * know; -EACCES a rule of the gateway forbids the address; -EHOSTUNREACH the name does not exist, or there is no route to the host;
 * -ECONNREFUSED no program listens at this port; -ENETUNREACH no route to the network; -EOPNOTSUPP the node does not offer `net`; -EAGAIN
 * too many requests are outstanding, or the name server does not answer; -EMFILE this node, or all nodes, have too many sockets at the
 * gateway; -ENOMEM no memory at this node or at the gateway, or no room in the pool; -EFAULT there is no such node; -ECONNRESET the gateway
 * is gone; -ETIMEDOUT not connected before the deadline; -ENOBUFS called in a handler, and too much is queued; -ENETDOWN no route to the
 * gateway (tb); -EDEADLK the call would wait in a handler. Other errors of connect(2) may be returned as well. */
WEFT_API int weft_net_connect(weft_node *w, uint32_t node, const weft_net_spec *spec, weft_socket **out, int64_t timeout_ns);

/* Like weft_net_connect(), but does not wait: the op is complete when the connection is open, or could not be opened. `*out` is set at
 * once; close it with weft_net_close() in any case. If it could not be opened, weft_net_error() sets weft_error(). The op ends at the
 * node's deadline at the latest.
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

/* Like weft_net_accept(), but does not wait: the op is complete when a connection has been accepted, or the listener is gone. It has no
 * deadline. `*out` is set at once; close it with weft_net_close() in any case. After a failure, weft_net_error() sets weft_error(). Several
 * calls may wait at the same time, weft_net_accept() included: they get connections in the order of the calls.
 * Errors: -EINVAL `listener` is not a listener; -EAGAIN too many requests are outstanding at the node, or the listener is not open yet;
 * -ENOMEM no memory, or no room in the pool; -ECONNRESET the gateway is gone. The other errors of weft_net_accept() are results of the op.
 */
WEFT_API int weft_net_accept_start(weft_socket *listener, weft_socket **out, weft_op *op);

/* The gateway: the node where the socket is. */
WEFT_API uint32_t weft_net_node(const weft_socket *s);

/* The addresses of the socket at the gateway, and of its peer, as in "10.0.0.1:80" and "[fd00::1]:80". "" before the socket is open. A
 * listener has no peer: "". Valid until weft_net_close(). */
WEFT_API const char *weft_net_local(const weft_socket *s);
WEFT_API const char *weft_net_peer(const weft_socket *s);

/* Returns 0 if the socket is open. Otherwise returns why not, and sets weft_error().
 * Errors: -EINPROGRESS the socket is not open yet (weft_error() is not set); -ECONNRESET the gateway is gone. If opening the socket has
 * failed, the errors of weft_net_connect() are returned, or the negative ECANCELED if the opening was cancelled. */
WEFT_API int weft_net_error(weft_socket *s);

/* Receives bytes: waits for at least one. `*got` is how many were received; 0: the peer has ended sending. Only one thread at a time may
 * receive. With WEFT_TIMEOUT_DEFAULT this waits as long as the gateway is alive. With datagrams: receives one, which may have 0 bytes.
 * Errors: -EINVAL the socket is a listener; -EMSGSIZE the next datagram is larger than `len`: it stays, and `*got` is its size; -ETIMEDOUT
 * nothing came before the deadline; -ECONNRESET the peer has reset the connection, or the gateway is gone; -EBUSY another thread receives;
 * -EPROTO the gateway has sent invalid data; -EDEADLK the call would wait in a handler. Other errors of recv(2) may be returned, too. If
 * the socket could not be opened: the error of opening it. */
WEFT_API int weft_net_receive(weft_socket *s, void *buf, size_t len, size_t *got, int64_t timeout_ns);

/* Sends bytes: waits until all are in the ring, from which the gateway sends them. `*put` (may be NULL) is how many were put into the ring,
 * also after an error. With a time-out of 0 the call sends as many bytes as there is room for; if bytes are left, it returns -ETIMEDOUT
 * without setting weft_error(). Only one thread at a time may send. On a socket with datagrams, all bytes become one datagram.
 * Errors: -EINVAL the socket is a listener; -EMSGSIZE more than WEFT_NET_DATAGRAM_MAX bytes for a datagram; -EPIPE the peer accepts no more
 * bytes, or weft_net_shutdown() was called; -ETIMEDOUT not all bytes were sent before the deadline; -ECONNRESET the gateway is gone;
 * -ENOMEM no memory; -EDEADLK the call would wait in a handler. If the socket could not be opened: the error of opening it. */
WEFT_API int weft_net_send(weft_socket *s, const void *buf, size_t len, size_t *put, int64_t timeout_ns);

/* Send a datagram to an address, and receive one with its sender's address, as in "10.0.0.1:53" and "[fd00::1]:53". The socket comes from
 * weft_net_listen() with WEFT_NET_DATAGRAMS. `from` may be NULL. The gateway drops a datagram to an address that its rules forbid, and logs
 * that. Otherwise as weft_net_send() and weft_net_receive() with datagrams.
 * Errors: -EINVAL the socket is not one for datagrams, or it has a peer (weft_net_send_to()), or `to` is not an address; -EMSGSIZE the
 * datagram to send has more than WEFT_NET_DATAGRAM_MAX bytes, or the next one to receive is larger than `len`: then `*got` is its size, and
 * the next call can receive it; -ETIMEDOUT no room to send, or no datagram, before the deadline; -EPIPE weft_net_shutdown() was called;
 * -ECONNRESET the gateway is gone; -EPROTO the gateway has sent invalid data; -ENOMEM no memory; -EDEADLK the call would wait in a handler.
 * If the socket could not be opened: the error of opening it. */
WEFT_API int weft_net_send_to(weft_socket *s, const char *to, const void *buf, size_t len, int64_t timeout_ns);
WEFT_API int weft_net_receive_from(weft_socket *s, char from[WEFT_NET_ADDRESS], void *buf, size_t len, size_t *got, int64_t timeout_ns);

/* Ends sending: after the last byte, the peer sees the end of the stream. Receiving goes on.
 * Errors: -EINVAL the socket is a listener; -EAGAIN the socket is not open yet; -ENOMEM no memory. If the socket could not be opened: the
 * error of opening it. */
WEFT_API int weft_net_shutdown(weft_socket *s);

/* Closes the socket, whose handle must not be used any more. Does not wait: the gateway still sends what is in the ring, for at most ten
 * seconds, as long as this node does not leave. A node that leaves soon should first call weft_net_shutdown(), and receive until the peer
 * has ended sending. Operations that are not complete end with the negative ECANCELED. NULL is allowed.
 * Errors: -EBUSY a thread waits in another call with this handle. */
WEFT_API int weft_net_close(weft_socket *s);

/* Like weft_net_close(), but drops the bytes that are not sent yet and resets the connection. The reset tells the peer that the stream is
 * incomplete.
 * Errors: -EBUSY a thread waits in another call with this handle. */
WEFT_API int weft_net_abort(weft_socket *s);

/* --- sending and receiving without copies and without waiting; not for datagrams --- */

/* Receive in place. weft_net_received() gives the first received bytes that are contiguous in the ring: `*bytes` bytes at `*at`. They stay
 * there until weft_net_taken() frees the first `bytes` of them. `*bytes` 0: the peer has ended sending.
 * Errors: -EAGAIN no bytes are there now; -EINVAL the socket is a listener, or more bytes are freed than are there; -ENOTCONN opening the
 * socket has failed with -EAGAIN; -ECONNRESET, -EPROTO and others, as weft_net_receive(). None sets weft_error(). */
WEFT_API int weft_net_received(weft_socket *s, const void **at, size_t *bytes);
WEFT_API int weft_net_taken(weft_socket *s, size_t bytes);

/* Send in place. weft_net_room() gives free room that is contiguous in the ring: `*bytes` bytes at `*at`. Write there, then weft_net_put()
 * sends the first `bytes` bytes of it.
 * Errors: -EAGAIN no room now; -EINVAL the socket is a listener, or more bytes are sent than there is room for; -ENOTCONN opening the
 * socket has failed with -EAGAIN; -EPIPE, -ECONNRESET and others, as weft_net_send(); -ENOMEM no memory. Only weft_net_put() sets
 * weft_error(). */
WEFT_API int weft_net_room(weft_socket *s, void **at, size_t *bytes);
WEFT_API int weft_net_put(weft_socket *s, size_t bytes);

/* Installs a function that weft calls when the socket may have changed: it is open or could not be opened, bytes have arrived, there is
 * room to send, or the connection has ended. weft calls the function on any thread, with locks held: the function must return soon and must
 * not call weft. A typical function writes a byte to a pipe. weft does not call it after weft_net_close() has returned. `fn` NULL removes
 * the function. The call that installs it does not call it: check the socket once afterwards. */
typedef void (*weft_net_fn)(void *arg);
WEFT_API void weft_net_notify(weft_socket *s, weft_net_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif
