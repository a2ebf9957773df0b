/* SPDX-License-Identifier: MIT
 *
 * Calls by which GPU kernels read and write files of a node, the gateway (weft/file.h). The rules and limits are those of weft/file.h.
 * weft/device_service.h explains records and errors. The same source can be compiled as C, C++, CUDA and Metal.
 *
 * An open file has a number as its handle. All kernels of this node may use it, in any number of threads at the same time, until it is
 * closed. The end of a kernel does not close its files.
 *
 * The gateway reads a piece of a file from its disk once, however many nodes and kernels read it. weft_device_file_read() copies from the
 * gateway's memory straight to `dst`, in any pool or arena of any node. If several nodes of other hosts have the file open, they get whole
 * pieces from each other, as weft/file.h describes. Then the bytes go through this node's pool, where they are checked. The next four
 * pieces are read ahead if a call reads more than one piece, or if successive calls read one piece after the other.
 *
 * Waiting. A request to read never waits for the disk, because that would delay the requests behind it in the ring. Instead the call
 * repeats the request, at most until weft_device.deadline_ns. Requests to open, write and sync are answered when they are done. On Metal, a
 * call reads or writes at most to the end of one piece, so `*got` and `*put` may be less than `len`.
 */
#ifndef WEFT_DEVICE_FILE_H
#define WEFT_DEVICE_FILE_H

#include "device_service.h"
#include "file.h"

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
extern "C" {
#endif

/* An open file. The other fields are those of weft_file_info, and are updated by weft_device_file_open(), weft_device_file_write() and
 * weft_device_file_stat(). */
typedef struct weft_device_file {
    uint64_t handle;
    uint64_t bytes;
#if defined(WEFT_DEVICE_METAL)
    uint64_t disk, inode; /* `disk` is the file's device; the name `device` is a word of Metal's language */
#else
    uint64_t device, inode;
#endif
    int64_t modified_ns;
    uint64_t generation;
} weft_device_file;

/* Fills a record about a file. NULL: the record is invalid. */
WEFT_DEVICE_CALL WEFT_FAR weft_request *weft_device_file_record(WEFT_NEAR const weft_device *d, uint64_t record, uint32_t kind,
                                                                WEFT_NEAR const weft_device_file *f)
{
    WEFT_FAR weft_request *r = weft_device_record(d, record, WEFT_SERVICE_FILE, kind, d->rank);
    if (r)
        r->handle = f->handle;
    return r;
}

WEFT_DEVICE_CALL void weft_device_file_tell(WEFT_FAR const weft_request *r, WEFT_NEAR weft_device_file *f)
{
    f->bytes = weft_device_request_result(r, 1);
#if defined(WEFT_DEVICE_METAL)
    f->disk = weft_device_request_result(r, 2);
#else
    f->device = weft_device_request_result(r, 2);
#endif
    f->inode = weft_device_request_result(r, 3);
    f->modified_ns = (int64_t)weft_device_request_result(r, 4);
    f->generation = weft_device_request_result(r, 5);
}

/* Opens a file of `node`. `path`: address, in this node's pool, of the file's path, which has `path_bytes` bytes and no zero byte. `flags`:
 * WEFT_FILE_WRITE and others of weft/file.h. */
WEFT_DEVICE_CALL int weft_device_file_open(WEFT_NEAR const weft_device *d, uint64_t record, uint32_t node, uint64_t path,
                                           uint64_t path_bytes, uint32_t flags, WEFT_NEAR weft_device_file *f)
{
    WEFT_FAR weft_request *r = weft_device_record(d, record, WEFT_SERVICE_FILE, WEFT_FILE_OPEN, node);
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

/* Reads `len` bytes from `offset` on to `dst`, or fewer bytes if the file ends before. `*got` is the number of bytes read, also after an
 * error. -WEFT_DEVICE_ESTALE: the file has changed since it was opened. */
WEFT_DEVICE_CALL int weft_device_file_read(WEFT_NEAR const weft_device *d, uint64_t record, WEFT_NEAR const weft_device_file *f,
                                           uint64_t dst, uint64_t len, uint64_t offset, WEFT_NEAR uint64_t *got)
{
    int rc = 0;
    *got = 0;
    while (rc == 0 && *got < len) {
        WEFT_FAR weft_request *r = weft_device_file_record(d, record, WEFT_FILE_READ_RANGE, f);
        if (!r)
            return -WEFT_DEVICE_EFAULT;
        r->arg[0] = dst + *got;
        r->arg[1] = len - *got;
        r->arg[2] = offset + *got;
        rc = weft_device_request_poll(d, record, r);
        uint64_t n = rc ? 0 : weft_device_request_result(r, 0);
        *got += n;
        if (n == 0 || WEFT_DEVICE_TURNS)
            break;
    }
    return rc;
}

/* Writes `len` bytes from `src`, in any pool or arena, to the file at `offset`. When this returns 0, the bytes are in the file. `*put` (may
 * be NULL) is the number of bytes written, also after an error. Later reads by `f` return the new contents. */
WEFT_DEVICE_CALL int weft_device_file_write(WEFT_NEAR const weft_device *d, uint64_t record, WEFT_NEAR weft_device_file *f, uint64_t src,
                                            uint64_t len, uint64_t offset, WEFT_NEAR uint64_t *put)
{
    uint64_t done = 0;
    int rc = 0;
    while (rc == 0 && done < len) {
        WEFT_FAR weft_request *r = weft_device_file_record(d, record, WEFT_FILE_WRITE_RANGE, f);
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
        if (WEFT_DEVICE_TURNS)
            break;
    }
    if (put)
        *put = done;
    return rc;
}

/* Reads the file's size and times from the disk into `*f`. -WEFT_DEVICE_ESTALE: the file has changed since it was opened. */
WEFT_DEVICE_CALL int weft_device_file_stat(WEFT_NEAR const weft_device *d, uint64_t record, WEFT_NEAR weft_device_file *f)
{
    WEFT_FAR weft_request *r = weft_device_file_record(d, record, WEFT_FILE_STAT, f);
    int rc = r ? weft_device_request_ask(d, record) : -WEFT_DEVICE_EFAULT;
    if (rc == 0)
        weft_device_file_tell(r, f);
    return rc;
}

/* Waits until all earlier writes are on the disk. */
WEFT_DEVICE_CALL int weft_device_file_sync(WEFT_NEAR const weft_device *d, uint64_t record, WEFT_NEAR const weft_device_file *f)
{
    return weft_device_file_record(d, record, WEFT_FILE_SYNC, f) ? weft_device_request_ask(d, record) : -WEFT_DEVICE_EFAULT;
}

WEFT_DEVICE_CALL int weft_device_file_close(WEFT_NEAR const weft_device *d, uint64_t record, WEFT_NEAR const weft_device_file *f)
{
    return weft_device_file_record(d, record, WEFT_FILE_CLOSE, f) ? weft_device_request_ask(d, record) : -WEFT_DEVICE_EFAULT;
}

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
}
#endif
#endif
