/* SPDX-License-Identifier: MIT
 *
 * Calls by which GPU kernels read and write files of a node, the gateway (weft/file.h). Like weft/device_service.h, which tells about
 * records and errors, one source for C, C++ and CUDA. The same rules and limits hold as for programs.
 *
 * A file is a number, which all kernels of this node may use until it is closed, any number of threads at the same time. A kernel that ends
 * leaves its files open for the next one.
 *
 * The gateway reads a piece of a file from its disk once, whoever asks for it. weft_device_file_read() copies from the gateway's memory
 * straight to `dst`, which is in any pool or arena, of any node. Who reads pieces one after the other, or more than one piece in a call,
 * has the next four of them read ahead.
 *
 * Waiting. A read never waits for the disk at the node, which would delay the requests behind it in the ring. Instead the call asks again
 * and again, at most until weft_device.deadline_ns. Opening, writing and weft_device_file_sync() wait for their answer.
 */
#ifndef WEFT_DEVICE_FILE_H
#define WEFT_DEVICE_FILE_H

#include "device_service.h"
#include "file.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An open file. The fields but the first are those of weft_file_info: what the file was when it was opened, looked at or written last. */
typedef struct weft_device_file {
    uint64_t handle;
    uint64_t bytes;
    uint64_t device, inode;
    int64_t modified_ns;
    uint64_t generation;
} weft_device_file;

/* Fills a record about a file. NULL: the record is invalid. */
WEFT_DEVICE_CALL weft_request *weft_device_file_record(const weft_device *d, uint64_t record, uint32_t kind, const weft_device_file *f)
{
    weft_request *r = weft_device_record(d, record, WEFT_SERVICE_FILE, kind, d->rank);
    if (r)
        r->handle = f->handle;
    return r;
}

WEFT_DEVICE_CALL void weft_device_file_tell(const weft_request *r, weft_device_file *f)
{
    f->bytes = weft_device_request_result(r, 1);
    f->device = weft_device_request_result(r, 2);
    f->inode = weft_device_request_result(r, 3);
    f->modified_ns = (int64_t)weft_device_request_result(r, 4);
    f->generation = weft_device_request_result(r, 5);
}

/* Opens a file of `node`. `path` is the address of its path, of `path_bytes` without a zero byte, in this node's pool. `flags`:
 * WEFT_FILE_WRITE and others. */
WEFT_DEVICE_CALL int weft_device_file_open(const weft_device *d, uint64_t record, uint32_t node, uint64_t path, uint64_t path_bytes,
                                           uint32_t flags, weft_device_file *f)
{
    weft_request *r = weft_device_record(d, record, WEFT_SERVICE_FILE, WEFT_FILE_OPEN, node);
    if (!r)
        return -WEFT_DEVICE_EFAULT;
    r->flags = flags;
    r->data = path;
    r->data_bytes = path_bytes;
    int rc = weft_device_request_ask(d, record);
    if (rc)
        return rc;
    f->handle = weft_device_request_result(r, 0);
    weft_device_file_tell(r, f);
    return 0;
}

/* Reads `len` bytes from `offset` on, or those up to the end of the file, to `dst`. `*got` is how many, also after an error.
 * -WEFT_DEVICE_ESTALE: the file has changed since it was opened. */
WEFT_DEVICE_CALL int weft_device_file_read(const weft_device *d, uint64_t record, const weft_device_file *f, uint64_t dst, uint64_t len,
                                           uint64_t offset, uint64_t *got)
{
    int rc = 0;
    *got = 0;
    while (rc == 0 && *got < len) {
        weft_request *r = weft_device_file_record(d, record, WEFT_FILE_READ_RANGE, f);
        if (!r)
            return -WEFT_DEVICE_EFAULT;
        r->arg[0] = dst + *got;
        r->arg[1] = len - *got;
        r->arg[2] = offset + *got;
        rc = weft_device_request_poll(d, record, r);
        uint64_t n = rc ? 0 : weft_device_request_result(r, 0);
        *got += n;
        if (n == 0)
            break;
    }
    return rc;
}

/* Writes `len` bytes from `src`, in any pool or arena, to the file at `offset`. They are in the file when this returns 0. `*put` (may be
 * NULL) is how many, also after an error. The file's new generation is what this file reads from then on. */
WEFT_DEVICE_CALL int weft_device_file_write(const weft_device *d, uint64_t record, weft_device_file *f, uint64_t src, uint64_t len,
                                            uint64_t offset, uint64_t *put)
{
    uint64_t done = 0;
    int rc = 0;
    while (rc == 0 && done < len) {
        weft_request *r = weft_device_file_record(d, record, WEFT_FILE_WRITE_RANGE, f);
        if (!r)
            rc = -WEFT_DEVICE_EFAULT;
        if (!r)
            break;
        r->arg[0] = src + done;
        r->arg[1] = len - done < WEFT_FILE_PIECE ? len - done : WEFT_FILE_PIECE;
        r->arg[2] = offset + done;
        rc = weft_device_request_ask(d, record);
        if (rc == 0) {
            done += weft_device_request_result(r, 0);
            weft_device_file_tell(r, f);
        }
    }
    if (put)
        *put = done;
    return rc;
}

/* Looks at the disk, and fills the fields of `*f`. -WEFT_DEVICE_ESTALE: the file has changed since it was opened. */
WEFT_DEVICE_CALL int weft_device_file_stat(const weft_device *d, uint64_t record, weft_device_file *f)
{
    weft_request *r = weft_device_file_record(d, record, WEFT_FILE_STAT, f);
    int rc = r ? weft_device_request_ask(d, record) : -WEFT_DEVICE_EFAULT;
    if (rc == 0)
        weft_device_file_tell(r, f);
    return rc;
}

/* Waits until what was written is on the disk. */
WEFT_DEVICE_CALL int weft_device_file_sync(const weft_device *d, uint64_t record, const weft_device_file *f)
{
    return weft_device_file_record(d, record, WEFT_FILE_SYNC, f) ? weft_device_request_ask(d, record) : -WEFT_DEVICE_EFAULT;
}

WEFT_DEVICE_CALL int weft_device_file_close(const weft_device *d, uint64_t record, const weft_device_file *f)
{
    return weft_device_file_record(d, record, WEFT_FILE_CLOSE, f) ? weft_device_request_ask(d, record) : -WEFT_DEVICE_EFAULT;
}

#ifdef __cplusplus
}
#endif
#endif
