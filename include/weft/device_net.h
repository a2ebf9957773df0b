/* SPDX-License-Identifier: MIT
 *
 * Calls by which GPU kernels use the network of a node, the gateway (weft/net.h): TCP and UDP. Like weft/device_service.h, which tells
 * about records and errors, one source for C, C++ and CUDA. The same rules and limits hold as for programs.
 *
 * A socket is a number, which all kernels of this node may use until it is closed. One thread at a time may receive from it, and one may
 * send. A kernel that ends leaves its sockets open for the next one.
 *
 * Waiting. A request never waits for the network at the node, which would delay the requests behind it in the ring. Instead the calls here
 * ask again and again, at most until weft_device.deadline_ns. After -WEFT_DEVICE_ETIMEDOUT a call may be repeated, and nothing is lost.
 *
 * Memory. The gateway receives into a ring in this node's pool, and sends from another one. weft_device_net_receive() copies from the ring
 * straight to `dst`, which is in any pool or arena, of any node. weft_device_net_received() copies nothing: kernels can read the ring.
 */
#ifndef WEFT_DEVICE_NET_H
#define WEFT_DEVICE_NET_H

#include "device_service.h"
#include "net.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An address of the network, as in records (weft/request.h). */
typedef struct weft_device_net_address {
    uint16_t port;
    uint8_t family; /* 4, 6; 0: none */
    uint8_t zero[5];
    uint8_t bytes[16]; /* in network order; of IPv4 the first four */
} weft_device_net_address;
WEFT_LAYOUT(sizeof(weft_device_net_address) == 24 && offsetof(weft_device_net_address, family) == 2 &&
            offsetof(weft_device_net_address, bytes) == 8);

/* Fills a record about a socket. NULL: the record is invalid. */
WEFT_DEVICE_CALL weft_request *weft_device_net_record(const weft_device *d, uint64_t record, uint32_t kind, uint64_t socket)
{
    weft_request *r = weft_device_record(d, record, WEFT_SERVICE_NET, kind, d->rank);
    if (r)
        r->handle = socket;
    return r;
}

/* Reads an address from words of an answer, from result[i] on. */
WEFT_DEVICE_CALL void weft_device_net_tell(const weft_request *r, uint32_t i, weft_device_net_address *out)
{
    uint64_t first = weft_device_request_result(r, i);
    out->port = (uint16_t)first;
    out->family = (uint8_t)(first >> 16);
    for (uint32_t k = 0; k < 5; k++)
        out->zero[k] = 0;
    for (uint32_t k = 0; k < 16; k++)
        out->bytes[k] = (uint8_t)(weft_device_request_result(r, i + 1 + k / 8) >> 8 * (k % 8));
}

/* Closes a socket, and does not wait: what is in the ring is still sent. */
WEFT_DEVICE_CALL int weft_device_net_close(const weft_device *d, uint64_t record, uint64_t socket)
{
    return weft_device_net_record(d, record, WEFT_NET_CLOSE, socket) ? weft_device_request_ask(d, record) : -WEFT_DEVICE_EFAULT;
}
/* The same, but drops what is not sent yet, and resets the connection. */
WEFT_DEVICE_CALL int weft_device_net_abort(const weft_device *d, uint64_t record, uint64_t socket)
{
    weft_request *r = weft_device_net_record(d, record, WEFT_NET_CLOSE, socket);
    if (!r)
        return -WEFT_DEVICE_EFAULT;
    r->arg[0] = 1;
    return weft_device_request_ask(d, record);
}

/* Waits until a socket is open, and tells its addresses; both may be NULL. */
WEFT_DEVICE_CALL int weft_device_net_opened(const weft_device *d, uint64_t record, uint64_t socket, weft_device_net_address *own,
                                            weft_device_net_address *peer)
{
    weft_request *r = weft_device_net_record(d, record, WEFT_NET_OPENED, socket);
    int rc = r ? weft_device_request_poll(d, record, r) : -WEFT_DEVICE_EFAULT;
    if (rc == 0 && own)
        weft_device_net_tell(r, 0, own);
    if (rc == 0 && peer)
        weft_device_net_tell(r, 3, peer);
    return rc;
}

WEFT_DEVICE_CALL int weft_device_net_begin(const weft_device *d, uint64_t record, uint32_t kind, uint32_t node, uint64_t host,
                                           uint64_t host_bytes, uint32_t port, uint32_t flags, uint64_t *socket)
{
    weft_request *r = weft_device_record(d, record, WEFT_SERVICE_NET, kind, node);
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
    rc = weft_device_net_opened(d, record, *socket, NULL, NULL);
    if (rc && weft_device_load(&r->answered) == r->id) /* else the node still uses the record */
        (void)weft_device_net_abort(d, record, *socket);
    return rc;
}
/* Connects to a host through `node`, and returns when the connection is open. `host` is the address of its name, or of an address as text,
 * of `host_bytes` without a zero byte, in this node's pool. `flags`: WEFT_NET_.... */
WEFT_DEVICE_CALL int weft_device_net_connect(const weft_device *d, uint64_t record, uint32_t node, uint64_t host, uint64_t host_bytes,
                                             uint32_t port, uint32_t flags, uint64_t *socket)
{
    return weft_device_net_begin(d, record, WEFT_NET_CONNECT, node, host, host_bytes, port, flags, socket);
}
/* Listens at `node`, or with WEFT_NET_DATAGRAMS opens a socket for datagrams. `host` and `host_bytes`: the address where; 0 and 0: at all
 * addresses of the node. Port 0 means any free one, which weft_device_net_opened() tells. */
WEFT_DEVICE_CALL int weft_device_net_listen(const weft_device *d, uint64_t record, uint32_t node, uint64_t host, uint64_t host_bytes,
                                            uint32_t port, uint32_t flags, uint64_t *socket)
{
    return weft_device_net_begin(d, record, WEFT_NET_LISTEN, node, host, host_bytes, port, flags, socket);
}

/* Waits for a connection. */
WEFT_DEVICE_CALL int weft_device_net_accept(const weft_device *d, uint64_t record, uint64_t listener, uint64_t *socket)
{
    weft_request *r = weft_device_net_record(d, record, WEFT_NET_ACCEPT, listener);
    int rc = r ? weft_device_request_poll(d, record, r) : -WEFT_DEVICE_EFAULT;
    if (rc == 0)
        *socket = weft_device_request_result(r, 0);
    return rc;
}

/* Receives bytes to `dst`, at most `len`: waits for at least one. `*got` is how many; 0: the peer has ended its side. With datagrams: one,
 * which may have 0 bytes. */
WEFT_DEVICE_CALL int weft_device_net_receive(const weft_device *d, uint64_t record, uint64_t socket, uint64_t dst, uint64_t len,
                                             uint64_t *got)
{
    weft_request *r = weft_device_net_record(d, record, WEFT_NET_RECEIVE, socket);
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
/* The same for a datagram, and tells where it came from. */
WEFT_DEVICE_CALL int weft_device_net_receive_from(const weft_device *d, uint64_t record, uint64_t socket, weft_device_net_address *from,
                                                  uint64_t dst, uint64_t len, uint64_t *got)
{
    int rc = weft_device_net_receive(d, record, socket, dst, len, got);
    if (rc == 0)
        weft_device_net_tell((const weft_request *)weft_device_ptr(d, record, WEFT_REQUEST_BYTES), 1, from);
    return rc;
}

/* Sends `len` bytes from `src`, in any pool or arena: waits until all are in the ring, from which the gateway sends them. `*put` (may be
 * NULL) is how many, also after an error. With datagrams: all as one. `src` may be used again when this returns 0. */
WEFT_DEVICE_CALL int weft_device_net_send(const weft_device *d, uint64_t record, uint64_t socket, uint64_t src, uint64_t len, uint64_t *put)
{
    uint64_t done = 0;
    int rc = 0;
    while (rc == 0 && done < len) {
        weft_request *r = weft_device_net_record(d, record, WEFT_NET_SEND, socket);
        if (!r)
            rc = -WEFT_DEVICE_EFAULT;
        if (!r)
            break;
        r->arg[0] = src + done;
        r->arg[1] = len - done;
        rc = weft_device_request_poll(d, record, r);
        if (rc == 0)
            done += weft_device_request_result(r, 0);
    }
    if (put)
        *put = done;
    return rc;
}
/* Sends one datagram to an address, with a socket of weft_device_net_listen(). */
WEFT_DEVICE_CALL int weft_device_net_send_to(const weft_device *d, uint64_t record, uint64_t socket, const weft_device_net_address *to,
                                             uint64_t src, uint64_t len)
{
    weft_request *r = weft_device_net_record(d, record, WEFT_NET_SEND, socket);
    if (!r)
        return -WEFT_DEVICE_EFAULT;
    r->arg[0] = src;
    r->arg[1] = len;
    r->arg[2] = to->port | (uint64_t)to->family << 16;
    for (uint32_t k = 0; k < 16; k++)
        r->arg[3 + k / 8] |= (uint64_t)to->bytes[k] << 8 * (k % 8);
    return weft_device_request_poll(d, record, r);
}

/* Ends this side: the peer sees the end after all bytes. Receiving goes on. */
WEFT_DEVICE_CALL int weft_device_net_shutdown(const weft_device *d, uint64_t record, uint64_t socket)
{
    weft_request *r = weft_device_net_record(d, record, WEFT_NET_SHUTDOWN, socket);
    return r ? weft_device_request_poll(d, record, r) : -WEFT_DEVICE_EFAULT;
}

/* Receives in place: waits for bytes, and tells where they lie together in this node's pool. They stay there until weft_device_net_taken().
 * `*bytes` 0: the peer has ended its side. Not with datagrams. */
WEFT_DEVICE_CALL int weft_device_net_received(const weft_device *d, uint64_t record, uint64_t socket, uint64_t *at, uint64_t *bytes)
{
    weft_request *r = weft_device_net_record(d, record, WEFT_NET_RECEIVED, socket);
    *bytes = 0;
    int rc = r ? weft_device_request_poll(d, record, r) : -WEFT_DEVICE_EFAULT;
    if (rc == 0) {
        *at = weft_device_request_result(r, 0);
        *bytes = weft_device_request_result(r, 1);
    }
    return rc;
}
/* The first `bytes` bytes of what has arrived are not needed any more. */
WEFT_DEVICE_CALL int weft_device_net_taken(const weft_device *d, uint64_t record, uint64_t socket, uint64_t bytes)
{
    weft_request *r = weft_device_net_record(d, record, WEFT_NET_TAKEN, socket);
    if (!r)
        return -WEFT_DEVICE_EFAULT;
    r->arg[0] = bytes;
    return weft_device_request_ask(d, record);
}

#ifdef __cplusplus
}
#endif
#endif
