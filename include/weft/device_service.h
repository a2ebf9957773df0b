/* SPDX-License-Identifier: MIT
 *
 * Calls by which GPU kernels use services (weft/service.h): programs and names. For sockets see weft/device_net.h, for files
 * weft/device_file.h. Like weft/device.h, the source can be compiled as C, C++, CUDA and Metal.
 *
 * Each call fills a record (weft/request.h) and submits it to the kernel's node. `record` is the address of WEFT_REQUEST_BYTES in that
 * node's pool, or in an arena of the kernel's GPU. It must be aligned to 8 bytes; with 64, the record shares no cache line. Kernels read
 * and write a record in an arena faster, but the node copies such a record from and to the GPU, which takes some microseconds. One thread
 * at a time uses a record. When a call has returned, its record may be used again. If the call has returned -WEFT_DEVICE_ETIMEDOUT, first
 * wait until the record's `answered` equals its `id`: until then the node may still write to the record.
 *
 * On Metal (compiled, never run) no call waits. A call submits its record and returns -WEFT_DEVICE_EINPROGRESS. Make the same call, with
 * the same record and arguments, in the next kernel: this call returns the result, or -WEFT_DEVICE_EINPROGRESS if there is no result yet or
 * the call needs more than one request. The record's `reserved` and the last word of `result` show whether a request has begun, so fill a
 * new record with zeros.
 *
 * A process handle is a number that all kernels of this node may use, but only one call at a time may use the same handle. Errors are
 * negative, with Linux's numbers; weft/service.h lists them.
 */
#ifndef WEFT_DEVICE_SERVICE_H
#define WEFT_DEVICE_SERVICE_H

#include "device.h"
#include "request.h"

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
extern "C" {
#endif

#if defined(WEFT_DEVICE_METAL)
/* Whether a request of this kind was submitted with the record, and its result has not been returned yet. */
WEFT_DEVICE_CALL bool weft_device_request_begun(WEFT_FAR const weft_request *r, uint32_t service, uint32_t kind)
{
    return r->reserved && r->service == service && r->kind == kind;
}
#endif

/* Fills the common fields of a record, and returns the record. NULL: the record is neither in this node's pool nor in an arena of the
 * kernel's GPU, or it is not aligned. */
WEFT_DEVICE_CALL WEFT_FAR weft_request *weft_device_record(WEFT_NEAR const weft_device *d, uint64_t record, uint32_t service, uint32_t kind,
                                                           uint32_t node)
{
    WEFT_FAR weft_request *r = (WEFT_FAR weft_request *)weft_device_ptr(d, record, WEFT_REQUEST_BYTES);
    if (!r || (record & 7) || record >> 48 != d->rank)
        return NULL;
#if defined(WEFT_DEVICE_METAL)
    if (weft_device_request_begun(r, service, kind))
        return r;
    r->reserved = 0;
#endif
    r->version = WEFT_REQUEST_VERSION;
    r->service = (uint16_t)service;
    r->kind = (uint16_t)kind;
    r->id = weft_device_load(&r->answered) + 1;
    r->id += r->id == 0;
    r->node = node;
    r->flags = 0;
    r->timeout_ns = d->deadline_ns / 2; /* shorter than the kernel's deadline, so that the node gives up first */
    r->handle = 0;
    r->data = 0;
    r->data_bytes = 0;
    for (uint32_t i = 0; i < sizeof r->arg / sizeof r->arg[0]; i++)
        r->arg[i] = 0;
    return r;
}

#if defined(WEFT_DEVICE_METAL)
/* Submits the record, or returns the result of the request that was submitted before. */
WEFT_DEVICE_CALL int weft_device_request_ask(WEFT_NEAR const weft_device *d, uint64_t record)
{
    WEFT_FAR weft_request *r = (WEFT_FAR weft_request *)weft_device_ptr(d, record, WEFT_REQUEST_BYTES);
    weft_device_op op = {0, 0, 0, 0};
    if (!r->reserved) {
        int rc = weft_device_ask_start(d, WEFT_REQUEST_SERVICE, record, &op);
        if (rc)
            return rc;
        r->result[4] = op.ticket; /* the node uses this word only after the kernel has ended */
        r->result[5] = op.ring;
        r->reserved = 1;
        weft_device_leave(d, &op);
        return -WEFT_DEVICE_EINPROGRESS;
    }
    bool answered = r->answered == r->id;
    op.ticket = r->result[4];
    op.ring = (uint32_t)r->result[5];
    if (!answered && *weft_device_ring_of(d, &op)->taken <= op.ticket)
        return -WEFT_DEVICE_EINPROGRESS; /* the request was submitted in this kernel */
    r->reserved = 0;
    if (answered)
        return r->status;
    /* The node has not accepted the record. The reason is in the place of the answer, unless a later answer has overwritten the reason. */
    uint64_t low, high;
    weft_device_load_cell(weft_device_answer_of(d, &op), &low, &high);
    return (uint32_t)(high >> 32) == (uint32_t)(op.ticket + 1) ? (int)(uint32_t)high : -WEFT_DEVICE_EFAULT;
}
#else
/* Submits the record, and waits for the answer. */
WEFT_DEVICE_CALL int weft_device_request_ask(WEFT_NEAR const weft_device *d, uint64_t record)
{
    return weft_device_ask(d, WEFT_REQUEST_SERVICE, record, NULL);
}
#endif

/* Submits the record repeatedly while the answer is -WEFT_DEVICE_EAGAIN, for example until a process has output. The call cannot tell this
 * answer from a full ring, so it also waits for room in the ring, even with d->nowait. */
WEFT_DEVICE_CALL int weft_device_request_poll(WEFT_NEAR const weft_device *d, uint64_t record, WEFT_FAR weft_request *r)
{
#if defined(WEFT_DEVICE_METAL)
    int rc = weft_device_request_ask(d, record);
    if (rc != -WEFT_DEVICE_EAGAIN || r->reserved)
        return rc;
    r->id += r->id + 1 == 0 ? 2 : 1;
    return weft_device_request_ask(d, record);
#else
    weft_device_patience p = {0, 0};
    /* pause longer each time, so that many waiting blocks do not keep the node busy */
    for (uint32_t pauses = 1;; pauses = pauses < 32 ? 2 * pauses : pauses) {
        int rc = weft_device_request_ask(d, record);
        if (rc != -WEFT_DEVICE_EAGAIN)
            return rc;
        if (weft_device_late(d, &p))
            return -WEFT_DEVICE_ETIMEDOUT;
        for (uint32_t i = 1; i < pauses; i++)
            weft_device_pause();
        r->id += r->id + 1 == 0 ? 2 : 1;
    }
#endif
}

WEFT_DEVICE_CALL uint64_t weft_device_request_result(WEFT_FAR const weft_request *r, uint32_t i)
{
    return weft_device_load(&r->result[i]);
}

/* --- programs --- */

/* Starts a program on `node`. `data`, in this node's pool, holds strings as described at WEFT_PROCESS_SPAWN in weft/request.h: program,
 * directory, `argc` arguments, `envc` changes to the environment. Returns when the program runs. */
WEFT_DEVICE_CALL int weft_device_spawn(WEFT_NEAR const weft_device *d, uint64_t record, uint32_t node, uint32_t flags, uint64_t data,
                                       uint64_t data_bytes, uint32_t argc, uint32_t envc, WEFT_NEAR uint64_t *handle)
{
    WEFT_FAR weft_request *r = weft_device_record(d, record, WEFT_SERVICE_PROCESS, WEFT_PROCESS_SPAWN, node);
    if (!r)
        return -WEFT_DEVICE_EFAULT;
    r->flags = flags;
    r->data = data;
    r->data_bytes = data_bytes;
    r->arg[0] = argc | (uint64_t)envc << 32;
    int rc = weft_device_request_ask(d, record);
    if (rc == 0)
        *handle = weft_device_request_result(r, 0);
    return rc;
}

/* How the process ended. The fields are as in weft_exit. */
typedef struct weft_device_exit {
    int32_t status, signal;
    uint64_t user_ns, system_ns, memory_bytes;
} weft_device_exit;

/* Waits until the process has ended. -WEFT_DEVICE_ETIMEDOUT: it still runs; the call may be repeated. */
WEFT_DEVICE_CALL int weft_device_process_wait(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t handle,
                                              WEFT_NEAR weft_device_exit *out)
{
    WEFT_FAR weft_request *r = weft_device_record(d, record, WEFT_SERVICE_PROCESS, WEFT_PROCESS_WAIT, d->rank);
    if (!r)
        return -WEFT_DEVICE_EFAULT;
    r->handle = handle;
    int rc = weft_device_request_poll(d, record, r);
    if (rc == 0) {
        out->status = (int32_t)weft_device_request_result(r, 0);
        out->signal = (int32_t)weft_device_request_result(r, 1);
        out->user_ns = weft_device_request_result(r, 3);
        out->system_ns = weft_device_request_result(r, 4);
        out->memory_bytes = weft_device_request_result(r, 5);
    }
    return rc;
}

/* Reads output of the process (`which`: 1 for standard output, 2 for standard error) into `dst`, in this node's pool or one of its arenas.
 * `*got` is the number of bytes read; 0: the output has ended. */
WEFT_DEVICE_CALL int weft_device_process_read(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t handle, uint32_t which,
                                              uint64_t dst, uint64_t len, WEFT_NEAR uint64_t *got)
{
#if defined(WEFT_DEVICE_METAL)
    WEFT_FAR const weft_request *begun = (WEFT_FAR const weft_request *)weft_device_ptr(d, record, WEFT_REQUEST_BYTES);
    if (begun && weft_device_request_begun(begun, WEFT_SERVICE_PROCESS, WEFT_PROCESS_TAKE)) {
        int end = weft_device_request_ask(d, record);
        *got = end ? 0 : begun->arg[1];
        return end;
    }
#endif
    WEFT_FAR weft_request *r = weft_device_record(d, record, WEFT_SERVICE_PROCESS, WEFT_PROCESS_OUTPUT, d->rank);
    *got = 0;
    if (!r)
        return -WEFT_DEVICE_EFAULT;
    r->handle = handle;
    r->arg[0] = which;
    int rc = weft_device_request_poll(d, record, r);
    uint64_t at = weft_device_request_result(r, 0), n = rc ? 0 : weft_device_request_result(r, 1);
    n = n < len ? n : len;
    if (rc || n == 0)
        return rc;
#if defined(WEFT_DEVICE_METAL)
    rc = weft_device_get(d, dst, at, n, NULL);
    rc = rc ? rc : weft_device_fence(d, d->rank); /* the bytes may be freed only after they were copied */
#else
    weft_device_op op;
    rc = weft_device_get(d, dst, at, n, &op);
    if (rc == 0) {
        rc = weft_device_wait(d, &op);
        if (rc == -WEFT_DEVICE_ETIMEDOUT)
            weft_device_leave(d, &op);
    }
#endif
    if (rc)
        return rc;
    r = weft_device_record(d, record, WEFT_SERVICE_PROCESS, WEFT_PROCESS_TAKE, d->rank);
    r->handle = handle;
    r->arg[0] = which;
    r->arg[1] = n;
    rc = weft_device_request_ask(d, record);
    if (rc == 0)
        *got = n;
    return rc;
}

/* Writes bytes from `data`, in this node's pool, to the standard input of the process: as many of the `bytes` bytes as the ring has room
 * for, at least 1. `*put` is the number of written bytes. With `bytes` 0 the call ends the input. */
WEFT_DEVICE_CALL int weft_device_process_write(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t handle, uint64_t data,
                                               uint64_t bytes, WEFT_NEAR uint64_t *put)
{
    WEFT_FAR weft_request *r = weft_device_record(d, record, WEFT_SERVICE_PROCESS, WEFT_PROCESS_WRITE, d->rank);
    *put = 0;
    if (!r)
        return -WEFT_DEVICE_EFAULT;
    r->handle = handle;
    r->data = bytes ? data : 0;
    r->data_bytes = bytes;
    int rc = weft_device_request_poll(d, record, r);
    if (rc == 0 && bytes)
        *put = weft_device_request_result(r, 0);
    return rc;
}

WEFT_DEVICE_CALL int weft_device_process_signal(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t handle, uint32_t signal)
{
    WEFT_FAR weft_request *r = weft_device_record(d, record, WEFT_SERVICE_PROCESS, WEFT_PROCESS_SIGNAL, d->rank);
    if (!r)
        return -WEFT_DEVICE_EFAULT;
    r->handle = handle;
    r->arg[0] = signal;
    return weft_device_request_poll(d, record, r);
}

WEFT_DEVICE_CALL int weft_device_process_close(WEFT_NEAR const weft_device *d, uint64_t record, uint64_t handle)
{
    WEFT_FAR weft_request *r = weft_device_record(d, record, WEFT_SERVICE_PROCESS, WEFT_PROCESS_CLOSE, d->rank);
    if (!r)
        return -WEFT_DEVICE_EFAULT;
    r->handle = handle;
    return weft_device_request_ask(d, record);
}

/* --- names --- */

/* Fills a record for a request about a name. NULL: the record is invalid, or the name has not 1 to 63 bytes. */
WEFT_DEVICE_CALL WEFT_FAR weft_request *weft_device_name(WEFT_NEAR const weft_device *d, uint64_t record, uint32_t kind, uint32_t node,
                                                         WEFT_NEAR const char *name)
{
    WEFT_FAR weft_request *r = weft_device_record(d, record, WEFT_SERVICE_NAME, kind, node);
    uint32_t n = 0;
    while (r && n < WEFT_NAME_BYTES && name[n]) {
        r->arg[4 + n / 8] |= (uint64_t)(uint8_t)name[n] << 8 * (n % 8);
        n++;
    }
    return n == 0 || n == WEFT_NAME_BYTES ? NULL : r;
}

WEFT_DEVICE_CALL int weft_device_name_publish(WEFT_NEAR const weft_device *d, uint64_t record, uint32_t node, WEFT_NEAR const char *name,
                                              uint64_t addr, uint64_t bytes)
{
    WEFT_FAR weft_request *r = weft_device_name(d, record, WEFT_NAME_PUBLISH, node, name);
    if (!r)
        return -WEFT_DEVICE_EINVAL;
    r->arg[0] = addr;
    r->arg[1] = bytes;
    return weft_device_request_ask(d, record);
}

/* Looks up a name. With `wait`, repeats the request until the name is published: a request that waits would delay later requests in the
 * ring. */
WEFT_DEVICE_CALL int weft_device_name_lookup(WEFT_NEAR const weft_device *d, uint64_t record, uint32_t node, WEFT_NEAR const char *name,
                                             bool wait, WEFT_NEAR uint64_t *addr, WEFT_NEAR uint64_t *bytes)
{
    WEFT_FAR weft_request *r = weft_device_name(d, record, WEFT_NAME_LOOKUP, node, name);
    int rc = r ? weft_device_request_ask(d, record) : -WEFT_DEVICE_EINVAL;
#if !defined(WEFT_DEVICE_METAL)
    weft_device_patience p = {0, 0};
#endif
    while (r && wait && rc == -WEFT_DEVICE_ENOENT) {
#if !defined(WEFT_DEVICE_METAL)
        if (weft_device_late(d, &p))
            return -WEFT_DEVICE_ETIMEDOUT;
#endif
        r->id += r->id + 1 == 0 ? 2 : 1;
        rc = weft_device_request_ask(d, record);
    }
    if (rc == 0) {
        *addr = weft_device_request_result(r, 0);
        *bytes = weft_device_request_result(r, 1);
    }
    return rc;
}

WEFT_DEVICE_CALL int weft_device_name_withdraw(WEFT_NEAR const weft_device *d, uint64_t record, uint32_t node, WEFT_NEAR const char *name)
{
    WEFT_FAR weft_request *r = weft_device_name(d, record, WEFT_NAME_WITHDRAW, node, name);
    return r ? weft_device_request_ask(d, record) : -WEFT_DEVICE_EINVAL;
}

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
}
#endif
#endif
