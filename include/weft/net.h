/* SPDX-License-Identifier: MIT
 *
 * The net service: TCP and UDP of a node that has a network, the gateway, for nodes that may have none, the askers. A node offers it if
 * WEFT_SERVE names `net`. The gateway resolves names, connects, listens and accepts; the asker needs no socket.
 *
 * Memory. A connection has two rings in the asker's pool, of 64 KiB each by default, of 128 KiB with datagrams. Over shm the gateway
 * receives into the one and sends from the other without a copy. Over other transports it sends what it receives in messages, and fetches
 * what it sends; for that it has 64 buffers of 64 KiB for all connections together. Besides, a connection takes less than 2 KiB at the
 * gateway, and the system's own socket buffers. A gateway has at most 16,384 sockets, if its limit of open files allows so many, and
 * resolves at most 1,024 names at a time, on eight threads.
 *
 * Shares. One node does not take all of that: it may have three times as much as it leaves to others, of sockets, names, threads and
 * buffers each, so one alone gets three quarters, and one that has nothing always gets some. The setting WEFT_NET_SOCKETS of the gateway
 * is another limit for the sockets of one node.
 *
 * Flow. A ring that is full stops its own connection only: if the asker does not read, the gateway does not read that socket, and the peer
 * must wait; if the peer does not read, weft_net_send() waits. Nothing is dropped.
 *
 * Rules. The setting WEFT_NET_RULES of the gateway says whom it connects to for others: the first rule that fits, such as
 * `allow=127.0.0.1:8000` or `deny=10.0.0.0/8`. Without a rule all may be reached but link-local and multicast addresses, the metadata of
 * cloud machines and the gateway's own loopback. Each address is checked just before it is connected to, after its name was resolved. A
 * name that is denied is also not reached by an alias, or a short form that the gateway's search list completes. Where
 * the gateway listens, and who connects there, is not restricted. Who may join the cluster may use the service: set WEFT_SECRET.
 *
 * Death. When the asker leaves or dies, its connections are reset and its listeners closed. When the gateway leaves or dies, calls end with
 * -ECONNRESET; what had arrived can still be read.
 */
#ifndef WEFT_NET_H
#define WEFT_NET_H

#include "fabric.h"
#include "request.h"
#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A connection or a listener at a gateway. */
typedef struct weft_socket weft_socket;

#define WEFT_NET_IPV4      0x1u  /* use IPv4 only */
#define WEFT_NET_IPV6      0x2u  /* use IPv6 only */
#define WEFT_NET_NODELAY   0x4u  /* send small pieces at once (TCP_NODELAY) */
#define WEFT_NET_KEEPALIVE 0x8u  /* notice a peer that has vanished (SO_KEEPALIVE) */
#define WEFT_NET_REUSE     0x10u /* listen at a port that connections used shortly before (SO_REUSEADDR) */
/* Connect to the gateway itself: `host` is "" (its loopback) or the absolute path of a Unix socket there (`port` 0). Only a node that also
 * offers `process` does this, where askers could start a program that connects. Deny rules of its owner hold. */
#define WEFT_NET_LOOPBACK 0x20u
/* UDP. Connected: weft_net_send() and weft_net_receive() send and receive one datagram each, to and from the peer. Or weft_net_listen():
 * then weft_net_send_to() and weft_net_receive_from(), from and to everybody whom the rules allow. Datagrams are whole, and may get lost.
 */
#define WEFT_NET_DATAGRAMS 0x40u
#define WEFT_NET_FLAGS     0x7fu

#define WEFT_NET_DATAGRAM_MAX 65507u /* bytes of a datagram that is sent */
#define WEFT_NET_ADDRESS      80u    /* bytes of an address as text */

typedef struct weft_net_spec {
    size_t bytes;                     /* sizeof(weft_net_spec): weft_net_spec s = {.bytes = sizeof s, .host = "example.com", .port = 80} */
    const char *host;                 /* a name or an address, of at most 255 bytes. To listen: NULL or "" means all addresses */
    uint32_t port;                    /* to listen: 0 means any free port */
    uint32_t flags;                   /* WEFT_NET_... */
    uint64_t receive_ring, send_ring; /* bytes: powers of two from 4 KiB to 16 MiB; 0: 64 KiB. Of a listener: for what it accepts. With
                                       * datagrams at least 128 KiB; 0: 128 KiB */
    uint32_t receive_buffer, send_buffer; /* bytes of the system's own buffers at the gateway; 0: the system's choice */
    uint32_t backlog;                     /* to listen: connections that wait to be accepted; 0: 128 */
    uint32_t zero;
} weft_net_spec;

/* Connects to a host. A name is resolved by the gateway, and its addresses are tried in turn.
 * Errors: -EINVAL a field of the spec is wrong, or `spec->bytes`; -E2BIG `spec` has fields set that this library does not know; -EACCES a
 * rule of the gateway forbids it; -EHOSTUNREACH the name is not known, or there is no route; -ECONNREFUSED nobody listens there;
 * -ENETUNREACH no network; -EOPNOTSUPP the node does not offer `net`; -EAGAIN too many requests are outstanding, or the name server does
 * not answer; -EMFILE this node, or all nodes, have too many sockets at the gateway; -ENOMEM no memory here or there, or no room in the
 * pool; -EFAULT there is no such node; -ECONNRESET the gateway is gone; -ETIMEDOUT not connected before the deadline; -ENOBUFS in a
 * handler, too much is queued; -ENETDOWN no route to the gateway (tb); -EDEADLK it would wait in a handler. Other errors of connect(2) may
 * be returned, too. */
WEFT_API int weft_net_connect(weft_node *w, uint32_t node, const weft_net_spec *spec, weft_socket **out, int64_t timeout_ns);

/* Like weft_net_connect(), but does not wait: the op is complete when the connection is open, or could not be opened. `*out` is set at
 * once; close it with weft_net_close() in any case. weft_net_error() then sets weft_error(). There is no answer after the node's deadline.
 * Errors: -EINVAL a field of the spec is wrong, or `spec->bytes`; -E2BIG `spec` has fields set that this library does not know;
 * -EAGAIN too many requests are outstanding at the node; -ENOMEM no memory, or no room in the pool; -EFAULT there is no such node;
 * -ECONNRESET the node is gone. The other errors of weft_net_connect() are results of the op. */
WEFT_API int weft_net_connect_start(weft_node *w, uint32_t node, const weft_net_spec *spec, weft_socket **out, weft_op *op);

/* Listens at the gateway. weft_net_local() tells the port.
 * Errors: -EINVAL a field of the spec is wrong, or `spec->bytes`; -E2BIG `spec` has fields set that this library does not know;
 * -EADDRINUSE the port is in use; -EADDRNOTAVAIL the gateway has no such address; -EACCES it may not use the port; -EHOSTUNREACH the name
 * is not known; -EOPNOTSUPP the node does not offer `net`; -EAGAIN too many requests are outstanding, or the name server does not answer;
 * -EMFILE the gateway has too many sockets; -ENOMEM no memory here or there; -EFAULT there is no such node; -ECONNRESET the gateway is
 * gone; -ETIMEDOUT no answer before the deadline; -ENOBUFS in a handler, too much is queued; -ENETDOWN no route to the gateway (tb);
 * -EDEADLK it would wait in a handler. */
WEFT_API int weft_net_listen(weft_node *w, uint32_t node, const weft_net_spec *spec, weft_socket **out, int64_t timeout_ns);

/* Accepts a connection. With WEFT_TIMEOUT_DEFAULT this waits as long as the gateway is alive. After a time-out no connection is lost: the
 * next call accepts it.
 * Errors: -EINVAL it is no listener; -ETIMEDOUT nobody has connected before the deadline; -EMFILE the gateway has too many sockets;
 * -ENOMEM no memory here or there, or no room in the pool; -EAGAIN too many requests are outstanding at the gateway; -ECONNRESET the
 * gateway is gone; -ENETDOWN no route (tb); -EDEADLK it would wait in a handler. */
WEFT_API int weft_net_accept(weft_socket *listener, weft_socket **out, int64_t timeout_ns);

/* Like weft_net_accept(), but does not wait: the op is complete when a connection has come, or the listener is gone; there is no deadline.
 * `*out` is set at once; close it with weft_net_close() in any case. weft_net_error() then sets weft_error(). Several may wait, also
 * together with weft_net_accept(): connections go to them in the order of the calls.
 * Errors: -EINVAL it is no listener; -EAGAIN too many requests are outstanding at the node, or the listener is not open yet; -ENOMEM no
 * memory, or no room in the pool; -ECONNRESET the gateway is gone. The other errors of weft_net_accept() are results of the op. */
WEFT_API int weft_net_accept_start(weft_socket *listener, weft_socket **out, weft_op *op);

/* The node that has the socket. */
WEFT_API uint32_t weft_net_node(const weft_socket *s);

/* Addresses, as in "10.0.0.1:80" and "[fd00::1]:80": that of the socket at the gateway, and that of its peer. "" before it is open, and for
 * the peer of a listener. Valid until weft_net_close(). */
WEFT_API const char *weft_net_local(const weft_socket *s);
WEFT_API const char *weft_net_peer(const weft_socket *s);

/* 0: the socket is open. Else why it could not be opened, or -ECONNRESET if its gateway is gone; sets weft_error().
 * Errors: -EINPROGRESS it is being opened, and weft_error() is unchanged; -ECONNRESET the gateway is gone. Others are those of
 * weft_net_connect(), and the negative ECANCELED. */
WEFT_API int weft_net_error(weft_socket *s);

/* Receives bytes: waits for at least one. `*got` is how many; 0: the peer has ended its side. Only one thread at a time may receive. With
 * WEFT_TIMEOUT_DEFAULT this waits as long as the gateway is alive. With datagrams: receives one, which may have 0 bytes.
 * Errors: -EINVAL a listener; -EMSGSIZE the next datagram is larger than `len`: it stays, and `*got` is its size; -ETIMEDOUT nothing came
 * before the deadline; -ECONNRESET the peer has reset the connection, or the gateway is gone; -EBUSY another thread receives; -EPROTO the
 * gateway has sent invalid data; -EDEADLK it would wait in a handler. Other errors of recv(2) may be returned, too, and the error of
 * opening it. */
WEFT_API int weft_net_receive(weft_socket *s, void *buf, size_t len, size_t *got, int64_t timeout_ns);

/* Sends bytes: waits until all are in the ring, from which the gateway sends them. `*put` (may be NULL) is how many, also after an error.
 * With a time-out of 0 this sends as many bytes as there is room for, and returns -ETIMEDOUT without setting weft_error() if some are left.
 * Only one thread at a time may send. With datagrams: sends all bytes as one.
 * Errors: -EINVAL a listener; -EMSGSIZE more than WEFT_NET_DATAGRAM_MAX bytes for a datagram; -EPIPE the peer takes no more, or
 * weft_net_shutdown() was called; -ETIMEDOUT not all bytes were sent before the deadline; -ECONNRESET the gateway is gone; -ENOMEM no
 * memory; -EDEADLK it would wait in a handler. And the error of opening it. */
WEFT_API int weft_net_send(weft_socket *s, const void *buf, size_t len, size_t *put, int64_t timeout_ns);

/* A datagram to and from an address, as in "10.0.0.1:53" and "[fd00::1]:53": with a socket of weft_net_listen() and WEFT_NET_DATAGRAMS.
 * `from` may be NULL. One to an address that a rule of the gateway forbids is dropped, which the gateway logs. Otherwise as weft_net_send()
 * and weft_net_receive() with datagrams.
 * Errors: -EINVAL the socket has no datagrams, or it has a peer (send_to), or `to` is no address; -EMSGSIZE more than
 * WEFT_NET_DATAGRAM_MAX bytes, or more than `len`: then the datagram stays, and `*got` is its size; -ETIMEDOUT no room, or no datagram,
 * before the deadline; -EPIPE weft_net_shutdown() was called; -ECONNRESET the gateway is gone; -EPROTO the gateway has sent invalid data;
 * -ENOMEM no memory; -EDEADLK it would wait in a handler. And the error of opening it. */
WEFT_API int weft_net_send_to(weft_socket *s, const char *to, const void *buf, size_t len, int64_t timeout_ns);
WEFT_API int weft_net_receive_from(weft_socket *s, char from[WEFT_NET_ADDRESS], void *buf, size_t len, size_t *got, int64_t timeout_ns);

/* Ends this side: the peer sees the end after all bytes. Receiving goes on.
 * Errors: -EINVAL a listener; -EAGAIN it is not open yet; -ENOMEM no memory. And the error of opening it. */
WEFT_API int weft_net_shutdown(weft_socket *s);

/* Closes the socket, whose handle must not be used any more. Does not wait: the gateway still sends what is in the ring, for at most ten
 * seconds, while this node stays. A node that leaves soon should end its side, and receive until the peer's end first. Unanswered
 * operations end with the negative ECANCELED. NULL is allowed.
 * Errors: -EBUSY a thread waits in another call with this handle. */
WEFT_API int weft_net_close(weft_socket *s);

/* The same, but drops what is not sent yet, and resets the connection: the peer does not take an incomplete stream for a complete one.
 * Errors: -EBUSY a thread waits in another call with this handle. */
WEFT_API int weft_net_abort(weft_socket *s);

/* --- without copies and without waiting; not with datagrams --- */

/* Receiving in place: `*at` and `*bytes` are what has arrived and lies together in the ring. It stays there until weft_net_taken() says how
 * many bytes of it are no longer needed. `*bytes` 0: the peer has ended its side.
 * Errors: -EAGAIN nothing is there now; -EINVAL a listener, or more bytes taken than there are; -ENOTCONN it could not be opened, for
 * the reason -EAGAIN; -ECONNRESET, -EPROTO and others, as weft_net_receive(). None sets weft_error(). */
WEFT_API int weft_net_received(weft_socket *s, const void **at, size_t *bytes);
WEFT_API int weft_net_taken(weft_socket *s, size_t bytes);

/* Sending in place: `*at` and `*bytes` are free room that lies together in the ring. weft_net_put() sends the first bytes of it.
 * Errors: -EAGAIN no room now; -EINVAL a listener, or more bytes than there is room; -ENOTCONN it could not be opened, for the
 * reason -EAGAIN; -EPIPE, -ECONNRESET and others, as weft_net_send(); -ENOMEM no memory. Only weft_net_put() sets weft_error(). */
WEFT_API int weft_net_room(weft_socket *s, void **at, size_t *bytes);
WEFT_API int weft_net_put(weft_socket *s, size_t bytes);

/* Installs a function that is called when something may have changed: the socket is open or could not be opened, bytes have arrived, there
 * is room to send, it has ended. It is called on any thread, while locks of weft are held: it must return soon and call no function of
 * weft. A typical one writes to a pipe. It is not called any more when weft_net_close() has returned. `fn` NULL: none. Installing it calls
 * nothing: look once afterwards. */
typedef void (*weft_net_fn)(void *arg);
WEFT_API void weft_net_notify(weft_socket *s, weft_net_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif
