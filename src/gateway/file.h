/* SPDX-License-Identifier: MIT
 *
 * The file service: files of the gateway, the node that offers the service, cached in its pool for all nodes. Its files, lowest first:
 *
 *   file_path.c     opens a path, below the root if there is one; the files that the program offers
 *   file_disk.c     what blocks: opens, reads, writes files
 *   file_cache.c    files, their generations and pieces; who uses which piece
 *   file_job.c      work for the threads, and answers
 *   file_watch.c    notices of the system that a file has changed
 *   file_lease.c    requests for pieces
 *   file_write.c    requests that change files
 *   file.c          the service: its other requests
 *   file_handle.c   the asker's handles; file_read.c, file_map.c: what the asker reads and maps;
 *                   file_async.c: calls that do not wait
 *
 * All but the blocking work runs on the server thread, which alone uses the structures here. A piece is read from the disk into the pool
 * once, however many ask for it, and every reader gets its address and a lease. A reader copies from the piece, by get or from mapped
 * memory, and looks at the clock afterwards: after the lease the gateway may use the memory for another piece. A lease without an end is a
 * piece that is mapped.
 *
 * A file (struct file_body) is one generation: device, inode, size and modification time. They are compared before and after each read from
 * the disk. If they differ, the body is stale: its pieces are dropped, and all requests for it end with -ESTALE.
 */
#ifndef WEFT_GATEWAY_FILE_H
#define WEFT_GATEWAY_FILE_H

#include "gateway/gateway.h"
#include "weft/file.h"

#define FILE_THREADS    4u
#define FILE_OPEN_MAX   4096u
#define FILE_LEASE_NS   (5 * WEFT_SECOND)
#define FILE_CHECK_NS   WEFT_SECOND /* a file that is read from the cache is compared with the disk so often */
#define FILE_LEASES_MAX 4096u       /* of one handle */
#define FILE_CACHE_MIN  (UINT64_C(4) << 20)
#define FILE_CHARGE_MIN (UINT64_C(4) << 10) /* what a small piece counts for: it also has a structure */

/* --- file_path.c --- */
struct file_offers;
struct file_root {
    int fd;     /* -1: no root */
    char *path; /* as it was given; "-": none but the offered files */
    struct file_offers *offers;
};
/* Takes `offers`, also if it fails. */
int file_root_open(struct file_root *out, const char *path, struct file_offers *offers);
void file_root_close(struct file_root *root);
struct file_offers *file_offers_new(void); /* NULL: no memory */
/* Opens a regular file. `*outside`: the path leads out of the root, or is not offered. Returns the descriptor or a negative errno, without
 * base_fail(). */
int file_path_open(const struct file_root *root, const char *path, int flags, bool *outside);

/* --- file_disk.c --- */
struct file_identity {
    uint64_t device, inode, bytes;
    int64_t modified_ns;
};
enum file_task { FILE_TASK_OPEN, FILE_TASK_READ, FILE_TASK_CHECK, FILE_TASK_WRITE, FILE_TASK_SYNC };
struct file_job {
    struct gateway_work work;
    struct file_job *next, **at_next; /* of all jobs */
    struct files *all;
    enum file_task task;
    struct gateway_call *call; /* NULL: nobody waits for it any more, or those that wait are listed at the piece */
    struct file_open *open;
    struct file_body *body;
    struct file_piece *piece;
    const struct file_root *root;
    int fd, result;
    uint32_t flags;
    bool outside;
    struct file_identity is; /* what the file is expected to be; after OPEN and WRITE: what it is */
    uint8_t *memory;         /* READ: where the piece goes; WRITE: what is written, freed with the job */
    struct mem_pool *pool;   /* READ: what has that memory, and where it is there; NULL: no pool */
    uint64_t place;
    uint64_t offset, bytes; /* after WRITE: bytes: how many were written */
    char path[WEFT_FILE_PATH_MAX + 1];
};
struct file_job *file_job_new(struct files *all, enum file_task task, void (*done)(struct gateway_work *work));
void file_job_free(struct file_job *job);
bool file_same(const struct file_identity *a, const struct file_identity *b);

/* --- file_cache.c --- */
struct file_piece {
    struct file_piece *hashed, *older, *newer, *of_body, **of_body_at;
    struct file_body *body;
    uint64_t index;
    weft_gaddr at;
    uint32_t bytes;
    uint32_t leases;
    bool ready, idle;             /* ready: it is read; idle: in the list of pieces that may be dropped */
    struct gateway_call *waiting; /* requests, until it is read */
};
struct file_body {
    struct file_body *hashed;
    uint64_t generation;
    struct file_identity is;
    char *path;
    int fd; /* -1: no handle and no job uses it */
    uint32_t opens, jobs;
    bool stale, pinned;
    bool checking, again; /* it is being compared with the disk; a change was noticed meanwhile */
    int wd;               /* inotify's number; -1: none */
    int64_t checked; /* when it was last compared with the disk, or that began */
    uint64_t cached, hits, reads;
    struct file_piece *pieces;
};
struct file_open { /* a handle of an asker */
    uint64_t id;
    uint32_t node;
    uint32_t leases, jobs;
    int fd;      /* opened for writing; -1: not */
    bool closed; /* by its asker, or the asker is gone: freed when its jobs are over */
    struct file_body *body;
};
struct file_lease {
    uint64_t id;
    struct file_open *open;
    struct file_piece *piece;
    int64_t end; /* INT64_MAX: it is mapped */
};
#define FILE_BUCKETS 4096u
struct files {
    struct gateway_server *server;
    struct gateway_works *works;
    struct gateway_table opens, leases;
    struct file_root root;
    uint64_t limit, cached, leased, mapped, pinned, generations, bodies, hits, reads, read_bytes, dropped;
    struct file_body *body[FILE_BUCKETS];
    struct file_piece *piece[FILE_BUCKETS];
    struct file_piece *oldest, *newest; /* idle pieces */
    void (*forget)(struct files *all, struct file_body *b); /* file_unwatch(): a body ends, or becomes stale */
    struct file_job *jobs;
    struct gateway_watch notices; /* inotify */
    int64_t over;                                 /* no lease is over before */
    struct gateway_call *waiting, **waiting_last; /* requests for which there is no room in the cache now */
};
/* The body of a file that is so now. Takes `fd`, also on failure. NULL: no memory. */
struct file_body *file_body_get(struct files *all, const struct file_identity *is, const char *path, int fd);
void file_body_stale(struct files *all, struct file_body *b);
void file_body_leave(struct files *all, struct file_body *b);         /* after `opens` or `jobs` has got less */
bool file_body_pin(struct files *all, struct file_body *b, bool pin); /* false: too much is mapped and pinned */
/* Unpins the files with this path, but not the one that is so. Returns how many. */
uint32_t file_body_unpin(struct files *all, const char *path, const struct file_identity *but);
/* The body with the lowest generation from `from` on. */
struct file_body *file_body_next(struct files *all, uint64_t from);
struct file_piece *file_piece_find(struct files *all, const struct file_body *b, uint64_t index);
/* Makes a piece with memory in the pool. -EAGAIN: no room now; -ENOMEM. Without base_fail(). */
int file_piece_new(struct files *all, struct file_body *b, uint64_t index, struct file_piece **out);
void file_piece_drop(struct files *all, struct file_piece *p); /* nobody uses it or waits for it */
void file_piece_rest(struct files *all, struct file_piece *p); /* it may be dropped if nobody uses it */
/* -ENOBUFS: too much is mapped and pinned, or the handle has too many leases; -ENOMEM. Without base_fail(). */
int file_lease_new(struct files *all, struct file_open *o, struct file_piece *p, bool map, uint64_t *id);
void file_lease_end(struct files *all, struct file_lease *l);
void file_leases_of(struct files *all, const struct file_open *o); /* ends those of a handle */
/* Ends those whose time is over. Returns in how many ns the next one is over; INT64_MAX: there is none. */
int64_t file_leases_over(struct files *all);
void file_cache_free(struct files *all);

/* --- file_job.c --- */
/* Makes a job about a file that is open. NULL: no memory, and the call was answered. */
struct file_job *file_job_of(struct files *all, enum file_task task, struct file_open *o, struct gateway_call *c,
                             void (*done)(struct gateway_work *work));
/* Starts a job. If there is no thread for it, done() is called at once, with that result. */
void file_job_start(struct files *all, struct file_job *job);
void file_open_free(struct files *all, struct file_open *o);
void file_job_over(struct file_job *job); /* at the end of done(): gives back what it uses, and frees it */
/* The job's call, and no longer its own; NULL: cancelled. */
struct gateway_call *file_job_call(struct file_job *job);
void file_answer_info(struct gateway_call *c, const struct file_open *o, uint64_t word);
void file_answer_failed(struct gateway_call *c, int rc, const char *path);

void file_recheck(struct files *all, struct file_body *b); /* compares it with the disk; if it has changed, it becomes stale */

/* --- file_watch.c --- */
void file_watch_open(struct files *all);
void file_watch_close(struct files *all);
void file_watch(struct files *all, struct file_body *b); /* it has a descriptor */

/* --- file_lease.c --- */
void file_begin_lease(struct files *all, struct file_open *o, struct gateway_call *c);
/* Looks whether there is room for requests that wait for it. Call it when leases have ended. Returns whether some still wait. */
bool file_lease_again(struct files *all);
bool file_lease_cancel(struct files *all, struct gateway_call *c); /* false: it waits for no piece */

/* --- file_write.c --- */
void file_begin_write(struct files *all, struct file_open *o, struct gateway_call *c);
void file_begin_sync(struct files *all, struct file_open *o, struct gateway_call *c);

/* --- what the asker sends --- */
enum file_kind {
    /* data: the path; flags: WEFT_FILE_.... Answer: word 0: the handle; payload: weft_file_info */
    FILE_OPEN = 1,
    /* handle; arg[0]: a piece's number; arg[1] to arg[6]: leases to end before, 0: none; flags: FILE_.... Answer: word 0: its address;
     * word 1: its length; word 2: the lease */
    FILE_LEASE,
    FILE_RETURN, /* arg[0]: a lease to end */
    FILE_STAT,   /* handle. Looks at the disk. Answer: as OPEN */
    FILE_WRITE,  /* handle; data: the bytes; arg[0]: where. Answer: word 0: how many were written; payload: as OPEN */
    FILE_SYNC,   /* handle */
    FILE_PIN,    /* handle */
    FILE_UNPIN,  /* data: the path. -ENOENT: no such file is pinned */
    FILE_CLOSE,  /* handle */
    FILE_LIST,   /* arg[0]: 0, or word 0 of the answer before, which is 0 after the last. Answer: payload: weft_file_cached */
    FILE_CACHE,  /* Answer: payload: weft_file_cache */
};
#define FILE_MAPS    0x1u /* LEASE: without an end */
#define FILE_AHEAD   0x2u /* LEASE: -EAGAIN if there is no room now, or half of the cache is in use */
#define FILE_ENDS_AT 1u   /* index of the first lease to end */
#define FILE_ENDS    6u

#endif
