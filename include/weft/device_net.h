/* SPDX-License-Identifier: MIT
 *
 * Calls by which GPU kernels use the network of a node, the gateway (weft/net.h): TCP and UDP. The rules and limits are those of
 * weft/net.h. weft/device_service.h explains records and errors. The same source can be compiled as C, C++, CUDA and Metal.
 *
 * A socket has a number as its handle. All kernels of this node may use the socket until it is closed. One thread at a time may receive,
 * and one thread may send. The end of a kernel does not close its sockets.
 *
 * Waiting. A request never waits for the network, because that would delay the requests behind it in the ring. Instead the calls repeat the
 * request, at most until weft_device.deadline_ns. After -WEFT_DEVICE_ETIMEDOUT a call may be repeated: no bytes are lost.
 *
 * On Metal, weft_device_net_send() sends only as many bytes as the ring has room for, so `*put` may be less than `len`.
 *
 * Memory. The gateway receives into a ring in this node's pool, and sends from another ring in this pool. weft_device_net_receive() copies
 * from the ring straight to `dst`, in any pool or arena of any node. weft_device_net_received() copies nothing: the kernel reads the bytes
 * in the ring.
 */
#ifndef WEFT_DEVICE_NET_H
#define WEFT_DEVICE_NET_H

#include "device_service.h"
#include "net.h"

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
extern "C" {
#endif

/* A network address, as in records (weft/request.h). */
typedef struct weft_device_net_address {
    uint16_t port;
    uint8_t family; /* 4 or 6; 0: no address */
    uint8_t zero[5];
    uint8_t bytes[16]; /* in network order; an IPv4 address has the first four */
} weft_device_net_address;
WEFT_LAYOUT(sizeof(weft_device_net_address) == 24 && offsetof(weft_device_net_address, family) == 2 &&
            offsetof(weft_device_net_address, bytes) == 8);

/* Fills a record about a socket. NULL: the record is invalid. */
WEFT_DEVICE_CALL WEFT_FAR weft_request *weft_device_net_record(WEFT_NEAR const weft_device *d, uint64_t record, uint32_t kind,
                                                               uint64_t socket)
{
    WEFT_FAR weft_request *r = weft_device_record(d, record, WEFT_SERVICE_NET, kind, d->rank);
    if (r)
        r->handle = socket;
    return r;
}

/* Reads a network address from an answer, beginning at result[i]. */
WEFT_DEVICE_CALL void weft_device_net_tell(WEFT_FAR const weft_request *r, uint32_t i, WEFT_NEAR weft_device_net_address *out)
{
    uint64_t first = weft_device_request_result(r, i);
    out->port = (uint16_t)first;
    out->family = (uint8_t)(first >> 16);
    for (uint32_t k = 0; k < 5; k++)
        out->zero[k] = 0;
    for (uint32_t k = 0; k < 16; k++)
        out->bytes[k] = (uint8_t)(weft_device_request_result(r, i + 1 + k / 8) >> 8 * (k % 8));
}

/* Closes a socket without waiting. Bytes in the ring are still sent. */
WEFT_DEVICE_CALL int weft_device_net_close(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t socket)
{
    return weft_device_net_record(d, record, WEFT_NET_CLOSE, socket) ? weft_device_request_ask(d, record) : -WEFT_DEVICE_EFAULT;
}
/* Closes a socket, drops unsent bytes, and resets the connection. */
WEFT_DEVICE_CALL int weft_device_net_abort(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t socket)
{
    WEFT_FAR weft_request *r = weft_device_net_record(d, record, WEFT_NET_CLOSE, socket);
    if (!r)
        return -WEFT_DEVICE_EFAULT;
    r->arg[0] = 1;
    return weft_device_request_ask(d, record);
}

/* Waits until a socket is open, and stores the socket's own address and the peer's address. `own` and `peer` may be NULL. */
WEFT_DEVICE_CALL int weft_device_net_opened(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t socket,
                                            WEFT_NEAR weft_device_net_address *own, WEFT_NEAR weft_device_net_address *peer)
{
    WEFT_FAR weft_request *r = weft_device_net_record(d, record, WEFT_NET_OPENED, socket);
    int rc = r ? weft_device_request_poll(d, record, r) : -WEFT_DEVICE_EFAULT;
    if (rc == 0 && own)
        weft_device_net_tell(r, 0, own);
    if (rc == 0 && peer)
        weft_device_net_tell(r, 3, peer);
    return rc;
}

/* Waits until a new socket is open. Closes the socket if it cannot be opened. */
WEFT_DEVICE_CALL int weft_device_net_begun(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t socket)
{
    int rc = weft_device_net_opened(d, record, socket, NULL, NULL);
    WEFT_FAR const weft_request *r = (WEFT_FAR const weft_request *)weft_device_ptr(d, record, WEFT_REQUEST_BYTES);
    if (rc && r && weft_device_load(&r->answered) == r->id) /* if the record is not answered, the node still uses it */
        (void)weft_device_net_abort(d, record, socket);
    return rc;
}

WEFT_DEVICE_CALL int weft_device_net_begin(WEFT_NEAR const weft_device *d, uint64_t record, uint32_t kind, uint32_t node, uint64_t host,
                                           uint64_t host_bytes, uint32_t port, uint32_t flags, WEFT_NEAR uint64_t *socket)
{
#if defined(WEFT_DEVICE_METAL)
    WEFT_FAR const weft_request *begun = (WEFT_FAR const weft_request *)weft_device_ptr(d, record, WEFT_REQUEST_BYTES);
    if (begun && weft_device_request_begun(begun, WEFT_SERVICE_NET, WEFT_NET_OPENED)) {
        *socket = begun->handle;
        return weft_device_net_begun(d, record, *socket);
    }
#endif
    WEFT_FAR weft_request *r = weft_device_record(d, record, WEFT_SERVICE_NET, kind, node);
    if (!r)
        return -WEFT_DEVICE_EFAULT;
    r->flags = flags;
    r->data = host_bytes ? host : 0;
    r->data_bytes = host_bytes;
    r->arg[0] = port;
    int rc = weft_device_request_poll(d, record, r);
    if (rc)
        return rc;
    *socket = weft_device_request_result(r, 0);
    return weft_device_net_begun(d, record, *socket);
}
/* Connects to a host through `node`, and returns when the connection is open. `host`: address, in this node's pool, of the host's name or
 * network address as text, of `host_bytes` bytes without a zero byte. `flags`: WEFT_NET_... of weft/net.h. */
WEFT_DEVICE_CALL int weft_device_net_connect(WEFT_NEAR const weft_device *d, uint64_t record, uint32_t node, uint64_t host,
                                             uint64_t host_bytes, uint32_t port, uint32_t flags, WEFT_NEAR uint64_t *socket)
{
    return weft_device_net_begin(d, record, WEFT_NET_CONNECT, node, host, host_bytes, port, flags, socket);
}
/* Listens at `node`, or with WEFT_NET_DATAGRAMS opens a socket for datagrams. `host` and `host_bytes`: the node's address to listen at, as
 * text; 0 and 0: all its addresses. Port 0: any free port; weft_device_net_opened() tells which. */
WEFT_DEVICE_CALL int weft_device_net_listen(WEFT_NEAR const weft_device *d, uint64_t record, uint32_t node, uint64_t host,
                                            uint64_t host_bytes, uint32_t port, uint32_t flags, WEFT_NEAR uint64_t *socket)
{
    return weft_device_net_begin(d, record, WEFT_NET_LISTEN, node, host, host_bytes, port, flags, socket);
}

/* Waits for a connection of a listener. */
WEFT_DEVICE_CALL int weft_device_net_accept(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t listener, WEFT_NEAR uint64_t *socket)
{
    WEFT_FAR weft_request *r = weft_device_net_record(d, record, WEFT_NET_ACCEPT, listener);
    int rc = r ? weft_device_request_poll(d, record, r) : -WEFT_DEVICE_EFAULT;
    if (rc == 0)
        *socket = weft_device_request_result(r, 0);
    return rc;
}

/* Waits for bytes, and receives at most `len` bytes to `dst`. `*got` is the number of received bytes; 0: the peer will send no more. With
 * datagrams: receives one datagram, which may have 0 bytes. */
WEFT_DEVICE_CALL int weft_device_net_receive(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t socket, uint64_t dst, uint64_t len,
                                             WEFT_NEAR uint64_t *got)
{
    WEFT_FAR weft_request *r = weft_device_net_record(d, record, WEFT_NET_RECEIVE, socket);
    *got = 0;
    if (!r)
        return -WEFT_DEVICE_EFAULT;
    r->arg[0] = dst;
    r->arg[1] = len;
    int rc = weft_device_request_poll(d, record, r);
    if (rc == 0 || rc == -WEFT_DEVICE_EMSGSIZE)
        *got = weft_device_request_result(r, 0);
    return rc;
}
/* Like weft_device_net_receive(), for a datagram; `*from` becomes its sender's address. */
WEFT_DEVICE_CALL int weft_device_net_receive_from(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t socket,
                                                  WEFT_NEAR weft_device_net_address *from, uint64_t dst, uint64_t len,
                                                  WEFT_NEAR uint64_t *got)
{
    int rc = weft_device_net_receive(d, record, socket, dst, len, got);
    if (rc == 0)
        weft_device_net_tell((WEFT_FAR const weft_request *)weft_device_ptr(d, record, WEFT_REQUEST_BYTES), 1, from);
    return rc;
}

/* Sends `len` bytes from `src`, in any pool or arena. Waits until all bytes are in the ring, from which the gateway sends them; then `src`
 * may be reused. `*put` (may be NULL) is the number of bytes put into the ring, also after an error. With datagrams: sends all bytes as one
 * datagram. */
WEFT_DEVICE_CALL int weft_device_net_send(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t socket, uint64_t src, uint64_t len,
                                          WEFT_NEAR uint64_t *put)
{
    uint64_t done = 0;
    int rc = 0;
    while (rc == 0 && done < len) {
        WEFT_FAR weft_request *r = weft_device_net_record(d, record, WEFT_NET_SEND, socket);
        if (!r)
            rc = -WEFT_DEVICE_EFAULT;
        if (!r)
            break;
        r->arg[0] = src + done;
        r->arg[1] = len - done;
        rc = weft_device_request_poll(d, record, r);
        if (rc == 0)
            done += weft_device_request_result(r, 0);
        if (WEFT_DEVICE_TURNS)
            break;
    }
    if (put)
        *put = done;
    return rc;
}
/* Sends one datagram to an address, with a socket of weft_device_net_listen(). */
WEFT_DEVICE_CALL int weft_device_net_send_to(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t socket,
                                             WEFT_NEAR const weft_device_net_address *to, uint64_t src, uint64_t len)
{
    WEFT_FAR weft_request *r = weft_device_net_record(d, record, WEFT_NET_SEND, socket);
    if (!r)
        return -WEFT_DEVICE_EFAULT;
    r->arg[0] = src;
    r->arg[1] = len;
    r->arg[2] = to->port | (uint64_t)to->family << 16;
    for (uint32_t k = 0; k < 16; k++)
        r->arg[3 + k / 8] |= (uint64_t)to->bytes[k] << 8 * (k % 8);
    return weft_device_request_poll(d, record, r);
}

/* Ends sending: after the last byte, the peer sees the end of the stream. Receiving remains possible. */
WEFT_DEVICE_CALL int weft_device_net_shutdown(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t socket)
{
    WEFT_FAR weft_request *r = weft_device_net_record(d, record, WEFT_NET_SHUTDOWN, socket);
    return r ? weft_device_request_poll(d, record, r) : -WEFT_DEVICE_EFAULT;
}

/* Waits for bytes, and leaves them in the ring. `*at` becomes the address of the bytes, in this node's pool, and `*bytes` the number of
 * contiguous bytes; 0: the peer will send no more. The bytes stay in the ring until weft_device_net_taken(). Not for datagrams. */
WEFT_DEVICE_CALL int weft_device_net_received(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t socket, WEFT_NEAR uint64_t *at,
                                              WEFT_NEAR uint64_t *bytes)
{
    WEFT_FAR weft_request *r = weft_device_net_record(d, record, WEFT_NET_RECEIVED, socket);
    *bytes = 0;
    int rc = r ? weft_device_request_poll(d, record, r) : -WEFT_DEVICE_EFAULT;
    if (rc == 0) {
        *at = weft_device_request_result(r, 0);
        *bytes = weft_device_request_result(r, 1);
    }
    return rc;
}
/* Frees the first `bytes` received bytes in the ring. */
WEFT_DEVICE_CALL int weft_device_net_taken(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t socket, uint64_t bytes)
{
    WEFT_FAR weft_request *r = weft_device_net_record(d, record, WEFT_NET_TAKEN, socket);
    if (!r)
        return -WEFT_DEVICE_EFAULT;
    r->arg[0] = bytes;
    return weft_device_request_ask(d, record);
}

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
}
#endif
#endif
