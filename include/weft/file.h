/* SPDX-License-Identifier: MIT
 *
 * Read and write files of another node, the gateway. A node is a gateway if its WEFT_SERVE contains the service `file`. The gateway has a
 * cache in its pool for bytes that it has read. Nodes on its host read this memory; other nodes get the bytes over the network. So a file
 * is read from the disk once, however many nodes read it.
 *
 * Other hosts. If a program reads a file of another host in order, its node fetches the next pieces in advance. The node keeps copies of
 * pieces in at most an eighth of its pool, until it has had no such file open for some seconds. If several nodes of other hosts have a file
 * open, the gateway sends each piece about once, and these nodes get copies of the piece from each other. They check such copies by a hash.
 * If the node with a copy is gone, does not answer for 5 s, or no longer has the copy, the piece comes from the gateway. A node waits at
 * most 1 s for a copy that another node is getting.
 *
 * Cache. Files are cached in pieces of WEFT_FILE_PIECE bytes. The cache takes at most WEFT_FILE_CACHE bytes of the gateway's pool, by
 * default a quarter. When the cache is full, the pieces that were not used for the longest time are dropped. A piece that a node is reading
 * stays for at most 5 s, and a mapped piece stays until it is unmapped. At most half of the cache can be mapped or pinned. A gateway has at
 * most 4096 open files, and reads its disks with at most 4 threads.
 *
 * Changes. A handle always reads the same contents of a file, a generation. If size, modification time or inode of the file changes, a new
 * generation begins, and calls that read return -ESTALE. No call mixes bytes of two generations. The gateway reads a file only when the
 * file's last change is at least 20 ms old, or 2 s on file systems that keep only whole seconds. Then any later change has another time.
 * The gateway does not notice a change that keeps size, time and inode: a program may set the time back, or may write to a mapped file
 * (mmap(2)) before the system updates the time. The gateway checks the disk whenever a file is opened. On Linux it also gets reports of
 * changes (inotify). On other systems, on network file systems that another machine changes, and beyond the user's limit of inotify
 * watches, the gateway compares the file with the disk once a second while the file is read.
 *
 * Paths. The gateway opens files as its own user. If its WEFT_FILE_ROOT is set, only files below that directory can be opened: no symbolic
 * link and no `..` leads out of that directory. If WEFT_FILE_ROOT is `-`, only files that the gateway's program has offered by
 * weft_file_offer() can be opened. Only regular files can be opened. Any node of the cluster may use the gateway: set WEFT_SECRET to
 * control who can join.
 *
 * When the node that has opened a file, the asker, leaves or dies, the gateway closes the file; pinned files stay pinned. When the gateway
 * leaves or dies, calls end with -ECONNRESET. Mapped bytes can still be read.
 */
#ifndef WEFT_FILE_H
#define WEFT_FILE_H

#include "request.h"
#if !defined(__METAL_VERSION__) /* Metal kernels use only the constants of this file */
#include "fabric.h"
#include "types.h"
#endif

#if defined(__cplusplus) && !defined(__METAL_VERSION__)
extern "C" {
#endif

/* An open file of a gateway. Close it before weft_close(). */
typedef struct weft_file weft_file;

#define WEFT_FILE_PIECE    (1u << 20) /* bytes */
#define WEFT_FILE_PATH_MAX 3584u      /* bytes of a path */

#define WEFT_FILE_WRITE    0x1u /* open for writing as well as for reading */
#define WEFT_FILE_CREATE   0x2u /* with WEFT_FILE_WRITE: create a missing file, with mode 0666 minus the gateway's umask */
#define WEFT_FILE_TRUNCATE 0x4u /* with WEFT_FILE_WRITE: empty the file */
#define WEFT_FILE_FLAGS    0x7u

#if !defined(__METAL_VERSION__)
typedef struct weft_file_info {
    uint64_t bytes; /* the file's size */
    uint64_t device, inode;
    int64_t modified_ns; /* the modification time, since 1970 */
    uint64_t generation; /* the number of the file's generation at the gateway */
} weft_file_info;

/* Opens the file `path` of the gateway. A relative path starts at the gateway's WEFT_FILE_ROOT if that is set, and otherwise at its
 * working directory.
 * Errors: -EINVAL the path is empty, unknown flags, not a regular file, or a file of /proc, which does not tell its size; -ENAMETOOLONG the
 * path has more than WEFT_FILE_PATH_MAX bytes; -EISDIR the path is a directory; -EACCES the gateway has no permission, or the file is
 * outside of WEFT_FILE_ROOT; -EPERM WEFT_FILE_ROOT is `-`, and the gateway has not offered the file for these flags; -ENOENT there is no
 * such file; -EMFILE the gateway has too many open files; -EOPNOTSUPP the node does not offer `file`; -EAGAIN too many requests are
 * outstanding; -ENOMEM no memory at this node or at the gateway; -EFAULT there is no such node; -ECONNRESET the gateway is gone; -EPROTO
 * the gateway has sent an invalid answer; -ETIMEDOUT no answer before the deadline; -ENETDOWN no route (tb); -EDEADLK the call would wait
 * in a handler. Other errors of open(2) may be returned as well. */
WEFT_API int weft_file_open(weft_node *w, uint32_t node, const char *path, uint32_t flags, weft_file **out, int64_t timeout_ns);

/* Like weft_file_open(), but does not wait: the op is complete when the file is open and `*out` is set, or when opening has failed, and at
 * the latest at the node's default deadline. Do not call weft_close() before the op is complete.
 * Errors: -EINVAL the path is empty, or a flag is unknown; -ENAMETOOLONG the path has more than WEFT_FILE_PATH_MAX bytes; -EFAULT there is
 * no such node; -ENOMEM no memory; -EAGAIN no thread can be started; -ECONNRESET this node is being closed. The other errors of
 * weft_file_open() are results of the op. */
WEFT_API int weft_file_open_start(weft_node *w, uint32_t node, const char *path, uint32_t flags, weft_file **out, weft_op *op);

/* Called by the gateway's own program: lets other nodes open the file `path` for reading, independently of WEFT_FILE_ROOT. Other nodes must
 * use exactly this path. The file need not exist yet.
 * Errors: -EINVAL the path is empty; -ENAMETOOLONG the path has more than WEFT_FILE_PATH_MAX bytes; -EOPNOTSUPP this node does not offer
 * `file`; -ENOMEM no memory. */
WEFT_API int weft_file_offer(weft_node *w, const char *path);

/* weft_file_size(): the file's size when it was opened, or after this node's last write to it. weft_file_node(): the gateway. */
WEFT_API uint64_t weft_file_size(const weft_file *f);
WEFT_API uint32_t weft_file_node(const weft_file *f);

/* Reads the file's current size, time and inode from the disk, and stores them in `*out` (may be NULL). `bytes` is sizeof *out; fields that
 * this library does not know are set to 0.
 * Errors: -ESTALE the file has changed since it was opened, and cannot be read through this handle any more; -EBUSY another thread reads
 * or writes through it; -EAGAIN too many requests are outstanding; -ENOMEM no memory; -ECONNRESET the gateway is gone; -EPROTO the gateway
 * has sent an invalid answer; -ETIMEDOUT no answer before the deadline; -ENETDOWN no route (tb); -EDEADLK the call would wait in a
 * handler. */
WEFT_API int weft_file_stat(weft_file *f, weft_file_info *out, size_t bytes, int64_t timeout_ns);

/* Reads `len` bytes from `offset` on, or fewer if the file ends before. `*got` is the number of bytes read, also after an error; 0 without
 * an error: `offset` is not below the file's size. If a program reads a file in order, weft reads the next 4 pieces ahead. If the file is
 * on another host, weft requests the next 12 pieces and gets 8 of them. A call that does not begin where the last call ended reads nothing
 * ahead, except a call that reads the whole first piece of a file on another host.
 * Errors: -ESTALE the file has changed since it was opened; -EIO and other errors of pread(2): the gateway could not read the file; -EBUSY
 * another call reads or writes through this handle; -ENOMEM no memory at this node or at the gateway; -EAGAIN too many requests are
 * outstanding; -ECONNRESET the gateway is gone; -EPROTO the gateway has sent an invalid answer; -ETIMEDOUT not all bytes arrived before the
 * deadline (over rc, tb and ofi, do not use `buf` again before weft_flush() returns); -ENETDOWN no route (tb); -EDEADLK the call would wait
 * in a handler. */
WEFT_API int weft_file_read(weft_file *f, void *buf, size_t len, uint64_t offset, size_t *got, int64_t timeout_ns);

/* Like weft_file_read(), but does not wait: the op is complete when the bytes are in `buf` and `*got` is set, or after an error. Do not use
 * `buf` and `got` before that. A handle may have only one such call under way; for several calls, open the file several times. A node works
 * on four such calls at a time; further calls wait.
 * Errors: -EBUSY another call reads or writes through this handle; -ENOMEM no memory; -EAGAIN no thread can be started; -ECONNRESET this
 * node is being closed. The other errors of weft_file_read() are results of the op. */
WEFT_API int weft_file_read_start(weft_file *f, void *buf, size_t len, uint64_t offset, size_t *got, weft_op *op);

/* Bytes of a file in memory, from an offset to the end of the piece that contains the offset. Do not write to these bytes. */
typedef struct weft_file_view {
    const void *at;
    size_t bytes;
    weft_gaddr addr; /* address of the bytes: in the gateway's pool or, if the gateway is on another host, in this node's pool */
    uint64_t own[2]; /* used by weft */
} weft_file_view;

/* Gives access to bytes of the file in memory, from `offset` to the end of the piece. On the gateway's host the bytes are in the gateway's
 * cache. On other hosts they are a copy in this node's pool; weft_file_read() would make a second copy. The bytes do not change until
 * weft_file_unmap(), even if the file does. If pieces are mapped one after another on the gateway's host, weft maps the next two pieces
 * ahead, unless more than a quarter of the cache would then be mapped or pinned. On another host weft gets the next 8 pieces ahead, if the
 * file is open for reading only, and as long as views and copies take less than an eighth of this node's pool.
 * Errors: -EINVAL `offset` is not below the file's size; -ESTALE the file has changed since it was opened; -ENOBUFS half of the gateway's
 * cache is mapped or pinned; -EIO and other errors of pread(2): the gateway could not read the file; -ENOMEM no memory at this node or at
 * the gateway, or no room in the pool; -EAGAIN too many requests are outstanding; -ECONNRESET the gateway is gone; -EPROTO the gateway has
 * sent an invalid answer; -ETIMEDOUT the piece was not there before the deadline; -ENETDOWN no route (tb); -EDEADLK the call would wait in
 * a handler. */
WEFT_API int weft_file_map(weft_file *f, uint64_t offset, weft_file_view *out, int64_t timeout_ns);

/* Ends the access to the bytes of a view. Does not wait. */
WEFT_API void weft_file_unmap(weft_file *f, weft_file_view *view);

/* Writes `len` bytes to the file at `offset`. When the call returns 0, the bytes are in the file, and this handle reads the new contents;
 * other handles must be opened again. weft_file_sync() waits until the bytes are on the disk. `*put` (may be NULL) is the number of bytes
 * written, also after an error.
 * Errors: -EBADF not opened with WEFT_FILE_WRITE; -ENOSPC the disk is full; -EFBIG the file would be too large; -EBUSY another thread
 * reads or writes through this handle; -ENOMEM no memory at this node or at the gateway, or no room in the pool; -EAGAIN too many requests
 * are outstanding; -ECONNRESET the gateway is gone; -EPROTO the gateway has sent an invalid answer; -ETIMEDOUT no answer before the
 * deadline: the bytes may be written or not; -ENETDOWN no route (tb); -EDEADLK the call would wait in a handler. Other errors of pwrite(2)
 * may be returned as well. */
WEFT_API int weft_file_write(weft_file *f, const void *buf, size_t len, uint64_t offset, size_t *put, int64_t timeout_ns);

/* Waits until all written bytes are on the disk (fsync(2)).
 * Errors: -EBADF not opened with WEFT_FILE_WRITE; -EIO the disk has failed; -EAGAIN too many requests are outstanding; -ENOMEM no memory;
 * -ECONNRESET the gateway is gone; -ETIMEDOUT no answer before the deadline; -ENETDOWN no route (tb); -EDEADLK the call would wait in a
 * handler.
 */
WEFT_API int weft_file_sync(weft_file *f, int64_t timeout_ns);

/* Like weft_file_write() and weft_file_sync(), but do not wait: the rules of weft_file_read_start() apply. `*put` is set when the op is
 * complete.
 * Errors: -EBADF not opened with WEFT_FILE_WRITE; -EBUSY another call reads or writes through this handle; -ENOMEM no memory; -EAGAIN no
 * thread can be started; -ECONNRESET this node is being closed. The other errors of weft_file_write() and weft_file_sync() are results of
 * the op. */
WEFT_API int weft_file_write_start(weft_file *f, const void *buf, size_t len, uint64_t offset, size_t *put, weft_op *op);
WEFT_API int weft_file_sync_start(weft_file *f, weft_op *op);

/* Pins the file: all pieces that were read stay in the cache, even if the file is closed or this node is gone. This ends with
 * weft_file_unpin(), or when the file changes.
 * Errors: -ENOBUFS more than half of the gateway's cache would be mapped or pinned; -ESTALE the file has changed since it was opened;
 * -EAGAIN too many requests are outstanding; -ENOMEM no memory; -ECONNRESET the gateway is gone; -ETIMEDOUT no answer before the deadline;
 * -ENETDOWN no route (tb); -EDEADLK the call would wait in a handler. */
WEFT_API int weft_file_pin(weft_file *f, int64_t timeout_ns);

/* Unpins a file. `path` is the path with which the file was opened. The file need not exist any more.
 * Errors: -ENOENT no such file is pinned; -EINVAL the path is empty or too long; -EOPNOTSUPP the node does not offer `file`; -EAGAIN too
 * many requests are outstanding; -ENOMEM no memory; -EFAULT there is no such node; -ECONNRESET the gateway is gone; -ETIMEDOUT no answer
 * before the deadline; -ENETDOWN no route (tb); -EDEADLK the call would wait in a handler. */
WEFT_API int weft_file_unpin(weft_node *w, uint32_t node, const char *path, int64_t timeout_ns);

/* Closes the file, and ends the access to the file's mapped bytes. Does not wait. NULL is allowed.
 * Errors: -EBUSY a thread waits in another call with this handle, or an operation on it is not complete. */
WEFT_API int weft_file_close(weft_file *f);

/* --- the gateway's cache --- */

typedef struct weft_file_cache {
    uint64_t limit_bytes, cached_bytes;
    uint64_t mapped_bytes, pinned_bytes; /* mapped: the sizes of mapped pieces; pinned_bytes: the sizes of all pinned files */
    uint64_t hits;                       /* requests for pieces that were already cached or being read */
    uint64_t disk_reads, disk_bytes;     /* pieces that were read from the disk, and the bytes of these pieces */
    uint64_t dropped;                    /* pieces that were dropped to make room */
    uint64_t open_files, readers;        /* files that are open or cached; handles that nodes have open */
    uint64_t given_bytes;                /* bytes of pieces that nodes of other hosts were told to get from this cache */
    uint64_t passed_bytes;               /* bytes of pieces that these nodes were told to get from each other */
} weft_file_cache;

/* Fills `*out` with the counts of the gateway's cache. `bytes` is sizeof *out; fields that this version of the library does not know are
 * set to 0.
 * Errors: -EOPNOTSUPP the node does not offer `file`; -EAGAIN too many requests are outstanding; -ENOMEM no memory; -EFAULT there is no
 * such node; -ECONNRESET the gateway is gone; -EPROTO the gateway has sent an invalid answer; -ETIMEDOUT no answer before the deadline;
 * -ENETDOWN no route (tb); -EDEADLK the call would wait in a handler. */
WEFT_API int weft_file_cache_stat(weft_node *w, uint32_t node, weft_file_cache *out, size_t bytes, int64_t timeout_ns);

/* A file that is open or cached. */
typedef struct weft_file_cached {
    char path[WEFT_FILE_PATH_MAX + 1]; /* the path by which the file was opened first */
    weft_file_info info;
    uint64_t cached_bytes, hits, disk_reads;
    uint32_t readers; /* handles that nodes have open */
    uint32_t leases;  /* pieces that are mapped, or being read now */
    bool pinned, stale;
} weft_file_cached;

/* Describes one file that is open or cached. Set `*next` to 0 before the first call. If `*next` is not 0 after a call, there are more
 * files: call again. `bytes` is sizeof *out.
 * Errors: -ENOENT no file, or no further one, is open or cached; -EOPNOTSUPP the node does not offer `file`; -EAGAIN too many requests are
 * outstanding; -ENOMEM no memory; -EFAULT there is no such node; -ECONNRESET the gateway is gone; -ETIMEDOUT no answer before the
 * deadline; -EPROTO the gateway has sent an invalid answer; -ENETDOWN no route (tb); -EDEADLK the call would wait in a handler. */
WEFT_API int weft_file_list(weft_node *w, uint32_t node, weft_file_cached *out, size_t bytes, uint64_t *next, int64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
#endif
