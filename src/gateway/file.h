/* SPDX-License-Identifier: MIT
 *
 * The file service (weft/file.h): the gateway, which is the node that offers the service, reads its files into a cache in its pool. Each
 * file calls only those listed before it:
 *
 *   file_path.c     opens a path, below WEFT_FILE_ROOT if that is set, or a file that the program offers
 *   file_disk.c     the blocking work: opens, reads, checks, writes and syncs files
 *   file_holder.c   nodes of other hosts that have or are getting copies of a piece, and how long others wait for copies
 *   file_cache.c    the cache: generations of files, pieces, and leases of pieces
 *   file_job.c      jobs for the threads, and the answers that end them
 *   file_watch.c    notices of the system (inotify) that a file has changed
 *   file_lease.c    requests for pieces
 *   file_write.c    requests to write and to sync
 *   file.c          all other requests
 *   file_keep.c     asker: copies of pieces in its pool
 *   file_handle.c   asker: handles, and calls that need one request
 *   file_slot.c     asker: the pieces that a handle has asked for
 *   file_record_get.c   asker: copies of pieces that records read
 *   file_read.c, file_map.c, file_record_read.c, file_record.c   asker: reads, maps, and requests by record;
 *                   file_async.c: calls that do not wait
 *
 * Everything except the blocking work runs on the server thread, which alone uses the structures of this header. A piece is read from the
 * disk once, for all askers. Each asker gets the address of the piece and a lease. It copies the bytes, and then checks that the lease has
 * not ended: after the end, the gateway may use the memory for another piece. A piece that an asker maps has a lease without an end. If
 * nodes of several other hosts have a file open, the gateway may name the copy of an earlier asker instead of its own piece
 * (file_holder.c).
 *
 * A body (struct file_body) is one generation of a file: device, inode, size and modification time. These are compared before and after
 * each read from the disk. If one has changed, the body is stale: the gateway drops its pieces, and all requests for it end with -ESTALE.
 */
#ifndef WEFT_GATEWAY_FILE_H
#define WEFT_GATEWAY_FILE_H

#include <xxhash.h>

#include "gateway/gateway.h"
#include "weft/file.h"

#define FILE_THREADS  4u
#define FILE_OPEN_MAX 4096u
#define FILE_LEASE_NS (5 * WEFT_SECOND)
/* an asker does not use a lease with less time left than this, because copying a piece may take so long */
#define FILE_COPY_NS      (100 * WEFT_MS)
#define FILE_CHECK_NS     WEFT_SECOND /* how often a file that is read from the cache is compared with the disk */
#define FILE_PACE_TIMES   4           /* do not wait longer for a piece than this many times the time of earlier pieces */
#define FILE_PATIENCE_MAX (60 * WEFT_SECOND)
#define FILE_GETS_MAX     10    /* how many pieces an asker gets at the same time */
#define FILE_GETS_LEAST   2u    /* an asker may always get this many pieces at the same time */
#define FILE_HOLDERS_MAX  32u   /* how many copies of a piece the gateway remembers */
#define FILE_LEASES_MAX   4096u /* how many leases a handle may have */
#define FILE_HOT          4u    /* a piece gets huge pages after it was found in the cache this many times */
#define FILE_CACHE_MIN    (UINT64_C(4) << 20)
#define FILE_CHARGE_MIN   (UINT64_C(4) << 10) /* a smaller piece counts as this many bytes, because its structures need memory, too */

/* How many pieces a file has, and how many bytes piece `index` has. */
static inline uint64_t file_pieces(uint64_t file_bytes)
{
    return file_bytes / WEFT_FILE_PIECE + (file_bytes % WEFT_FILE_PIECE != 0);
}
static inline uint32_t file_piece_bytes(uint64_t file_bytes, uint64_t index)
{
    uint64_t left = file_bytes - index * WEFT_FILE_PIECE;
    return left < WEFT_FILE_PIECE ? (uint32_t)left : WEFT_FILE_PIECE;
}

/* The hash of a piece, never 0. */
static inline uint64_t file_hash(const void *bytes, size_t len)
{
    uint64_t hash = XXH3_64bits(bytes, len);
    return hash ? hash : 1;
}

/* --- file_path.c --- */
struct file_offers;
struct file_root {
    int fd;     /* descriptor of the directory WEFT_FILE_ROOT; -1: it is not set */
    char *path; /* the directory's path, as it was set; "-": only offered files can be opened */
    struct file_offers *offers;
};
/* Takes ownership of `offers`, also if it fails. */
int file_root_open(struct file_root *out, const char *path, struct file_offers *offers);
void file_root_close(struct file_root *root);
struct file_offers *file_offers_new(void); /* NULL: no memory */
/* Opens a regular file. Returns the descriptor or a negative errno, without base_fail(). `*outside` is set if the path leads out of the
 * root, or is not offered. */
int file_path_open(const struct file_root *root, const char *path, int flags, bool *outside);

/* --- file_disk.c --- */
struct file_identity {
    uint64_t device, inode, bytes;
    int64_t modified_ns;
};
enum file_task { FILE_TASK_OPEN, FILE_TASK_READ, FILE_TASK_CHECK, FILE_TASK_WRITE, FILE_TASK_SYNC };
struct file_job {
    struct gateway_work work;
    struct file_job *next, **at_next; /* the list of all jobs */
    struct files *all;
    enum file_task task;
    /* The request that the job answers. NULL: it was cancelled, or this job reads a piece (file_piece.waiting has the requests). */
    struct gateway_call *call;
    struct file_open *open;
    struct file_body *body;
    struct file_piece *piece;
    const struct file_root *root;
    int fd, result;
    uint32_t flags;
    uint64_t host; /* OPEN: the asker's host, as `host` of struct file_open */
    bool outside;
    struct file_identity is; /* READ and CHECK: the generation that the file must have; after OPEN and WRITE: the generation that it has */
    uint8_t *memory;         /* READ: memory of the piece; WRITE: a copy of the bytes to write, freed with the job */
    struct mem_pool *pool;   /* READ: the pool that contains `memory`; NULL: `memory` is in no pool */
    uint64_t place;          /* offset of `memory` in the pool */
    uint64_t offset, bytes;  /* the range to read or write; after WRITE, `bytes` is how many were written */
    uint64_t number;         /* after WRITE: file_open.written; 0: no thread has begun the job */
    bool hashes;             /* READ: also compute the hash of the piece */
    uint64_t hash;
    char path[WEFT_FILE_PATH_MAX + 1];
};
struct file_job *file_job_new(struct files *all, enum file_task task, void (*done)(struct gateway_work *work));
void file_job_free(struct file_job *job);
bool file_same(const struct file_identity *a, const struct file_identity *b);

/* --- file_holder.c --- */
/* How fast pieces arrive. When a piece takes longer than `took`, `took` becomes that time at once. When a piece is faster, `took` decreases
 * by a quarter of the difference. */
struct file_pace {
    int64_t came, took; /* came: when the last piece arrived (0: none yet); took: how long a piece takes */
    int64_t gap;        /* time from the end of one piece to the end of the next one, if both were under way together; 0: not known */
};
/* A node that has a copy of a piece, or is getting one. */
struct file_holder {
    struct file_holder *next;                  /* in the list of holders of the piece */
    struct file_holder *of_node, **of_node_at; /* in the list of holders of the node */
    struct file_piece *piece;
    uint32_t node;
    uint32_t given; /* how often the gateway has sent an asker to this copy */
    uint64_t host;  /* the host, as `host` of struct file_open */
    weft_gaddr at;  /* address of the copy; WEFT_NULL: the node is still getting it */
    uint64_t open;  /* while the node is getting the copy: the node's handle */
    int64_t since;  /* while the node is getting the copy: when it began */
};

/* --- file_cache.c --- */
struct file_piece {
    struct file_piece *hashed, *older, *newer, *of_body, **of_body_at;
    struct file_body *body;
    uint64_t index;
    weft_gaddr at;
    uint32_t bytes;
    uint32_t leases, hits;
    bool ready, idle;             /* ready: the bytes were read into memory; idle: in the list of pieces that may be dropped */
    struct gateway_call *waiting; /* requests that wait until the piece is ready */
    /* For nodes of other hosts: */
    uint64_t hash; /* 0: not computed yet */
    struct file_holder *holders;
    uint32_t given;                                /* how often the gateway has given its own piece to nodes of other hosts */
    struct gateway_call *delayed;                  /* requests that wait until another node has a copy; the newest request comes first */
    int64_t delayed_until;                         /* when to look at the delayed requests again */
    struct file_piece *next_delayed, **at_delayed; /* the list of pieces with delayed requests */
    bool moved;                                    /* the piece is in the list files.moved */
    struct file_piece *next_moved;
};
struct file_body {
    struct file_body *hashed;
    uint64_t generation;
    struct file_identity is;
    char *path;
    int fd; /* -1 while neither a handle nor a job uses the body */
    uint32_t opens, jobs;
    uint32_t far; /* how many open handles belong to nodes of other hosts ("far handles") */
    /* Several far handles were open at the same time, and at least one still is. So their nodes get pieces from each other. */
    bool several;
    uint32_t far_node; /* the node of the first far handle */
    bool nodes;        /* like `several`, but the far handles were of several nodes */
    bool stale, pinned;
    bool checking, again; /* checking: the file is being compared with the disk; again: a change was noticed since this comparison began */
    int wd;               /* inotify's number; -1: none */
    int64_t checked;      /* when the last comparison with the disk began */
    uint64_t cached, hits, reads;
    struct file_piece *pieces;
};
struct file_open { /* an asker's handle */
    uint64_t id;
    uint32_t node;
    uint32_t leases, jobs;
    uint64_t host; /* a number that all nodes of the asker's host share; 0: the gateway's host, or the host is not known */
    int fd;        /* a descriptor for writing; -1: the handle is only for reading */
    /* Writes through one handle run on several threads, and may end in another order than that in which they reached the disk. `written`:
     * how many writes have reached the disk; each thread gives its write the next number. `shown`: the highest number of a write after
     * which the handle was moved to a new generation. */
    _Atomic uint64_t written;
    uint64_t shown;
    bool closed; /* the asker has closed the handle or is gone. The handle is freed when its jobs have ended */
    struct file_body *body;
    struct file_pace pace; /* pace of the copies that the asker has reported */
};
struct file_lease {
    uint64_t id;
    struct file_open *open;
    struct file_piece *piece;
    int64_t end; /* INT64_MAX: the piece is mapped, so the lease has no end */
    bool gets;   /* the asker is getting a copy, so it is among the piece's holders */
};
#define FILE_BUCKETS 4096u
struct files {
    struct gateway_server *server;
    struct gateway_works *works;
    struct gateway_table opens, leases;
    struct file_root root;
    uint64_t limit, cached, leased, mapped, pinned, generations, bodies, hits, reads, read_bytes, dropped, given_bytes, passed_bytes;
    struct file_body *body[FILE_BUCKETS];
    struct file_piece **piece; /* hashed; the table grows with the number of pieces */
    uint32_t buckets, pieces;
    struct file_holder **holders;                           /* for each node, the list of its copies */
    struct file_piece *oldest, *newest;                     /* the list of idle pieces */
    void (*forget)(struct files *all, struct file_body *b); /* file_unwatch(), called when a body ends or becomes stale */
    struct file_job *jobs;
    struct gateway_watch notices;                 /* inotify */
    int64_t over;                                 /* no lease ends before this time */
    struct gateway_call *waiting, **waiting_last; /* requests that wait for room in the cache */
    struct file_piece *delayed, *moved; /* delayed: pieces with requests that wait for a copy at another node; moved: the pieces of
                                           `delayed` whose holders have changed */
    int64_t look;                       /* when to look at the delayed requests again at the latest */
};

/* --- file_holder.c --- */
void file_pace_came(struct file_pace *p, int64_t since, int64_t now); /* a piece has arrived, whose get began at `since` */
/* Until when to wait for a piece whose get began at `since`. The wait is FILE_PACE_TIMES as long as a piece takes, and at least `least`.
 * The wait begins again with each piece that arrives. */
int64_t file_pace_until(const struct file_pace *p, int64_t since, int64_t least);
/* Whether a node that is getting `gets` pieces may begin to get one more. */
bool file_pace_may_get(const struct file_pace *p, unsigned gets);
/* Chooses from where the handle's node gets the piece: `*out` becomes a holder, or NULL for the gateway itself. Returns 0, or, if the
 * request must wait for a copy that another node is getting, until when to wait. */
int64_t file_holder_choose(const struct files *all, const struct file_piece *p, const struct file_open *o, int64_t now, int64_t patience,
                           struct file_holder **out);
/* Records that the handle's node is getting a copy of the piece. Returns false if the node has a copy already, or if there is no memory. */
bool file_holder_gets(struct files *all, struct file_piece *p, const struct file_open *o, int64_t now);
/* Records that the handle's node has the copy now. */
void file_holder_has(struct files *all, struct file_piece *p, struct file_open *o, weft_gaddr at, int64_t now);
/* Records that the handle's node has stopped getting the copy. */
void file_holder_left(struct files *all, struct file_piece *p, const struct file_open *o);
bool file_holder_drop(struct files *all, struct file_piece *p, uint32_t node); /* the node's copy is gone; returns false if it had none */
/* Records that the node has no more copies of the pieces of body `b` (NULL: of all pieces). */
void file_holder_gone(struct files *all, const struct file_body *b, uint32_t node);
/* Called when a handle that was getting copies is closed. */
void file_holder_closed(struct files *all, const struct file_open *o);
void file_holders_free(struct files *all, struct file_piece *p);
/* Makes file_lease_again() look at the requests that wait for a copy of the piece. */
void file_piece_moved(struct files *all, struct file_piece *p);

/* --- file_cache.c --- */
/* Call these when a handle begins to use a body, and when it stops. */
void file_body_opened(struct file_body *b, const struct file_open *o);
void file_body_closed(struct files *all, struct file_body *b, const struct file_open *o);
/* Finds or makes the body for the generation that the file has now. Takes ownership of `fd`, also on failure. Returns NULL if there is no
 * memory. */
struct file_body *file_body_get(struct files *all, const struct file_identity *is, const char *path, int fd);
void file_body_stale(struct files *all, struct file_body *b);
/* Call this after `opens` or `jobs` was decreased. Frees a body that nothing uses */
void file_body_leave(struct files *all, struct file_body *b);
bool file_body_pin(struct files *all, struct file_body *b, bool pin); /* false if more than half of the cache would be mapped or pinned */
/* Unpins all bodies with this path except the generation `but` (may be NULL). Returns how many. */
uint32_t file_body_unpin(struct files *all, const char *path, const struct file_identity *but);
/* Returns the body with the lowest generation that is at least `from`. Returns NULL if there is none. */
struct file_body *file_body_next(struct files *all, uint64_t from);
struct file_piece *file_piece_find(struct files *all, uint64_t generation, uint64_t index);
/* Makes a piece with memory in the pool. Returns 0, -ENOMEM, or -EAGAIN if there is no room in the cache now. Sets no error text. */
int file_piece_new(struct files *all, struct file_body *b, uint64_t index, struct file_piece **out);
void file_piece_drop(struct files *all, struct file_piece *p);   /* frees a piece; no lease and no request may be left */
void file_piece_rest(struct files *all, struct file_piece *p);   /* makes a piece idle if it has no leases and no delayed requests */
void file_piece_wanted(struct files *all, struct file_piece *p); /* takes a piece off the list of idle pieces, so that it is not dropped */
/* Makes a lease. Returns 0, -ENOMEM, or -ENOBUFS if more than half of the cache would be mapped or pinned, or if the handle has too many
 * leases. Sets no error text. */
int file_lease_new(struct files *all, struct file_open *o, struct file_piece *p, bool map, struct file_lease **out);
void file_lease_end(struct files *all, struct file_lease *l);
void file_leases_of(struct files *all, const struct file_open *o); /* ends all leases of a handle */
/* Ends the leases whose time is over. Returns after how many ns the next lease ends; INT64_MAX: there is no lease. */
int64_t file_leases_over(struct files *all);
int file_cache_open(struct files *all); /* returns 0 or -ENOMEM */
void file_cache_free(struct files *all);

/* --- file_job.c --- */
/* Makes a job about an open file. If there is no memory, answers the request and returns NULL. */
struct file_job *file_job_of(struct files *all, enum file_task task, struct file_open *o, struct gateway_call *c,
                             void (*done)(struct gateway_work *work));
/* Starts a job. done() is called later in every case. If no thread can be started, the job's result is an error. */
void file_job_start(struct files *all, struct file_job *job);
void file_open_free(struct files *all, struct file_open *o);
/* The last call of done(). Releases the body and the handle that the job uses, and frees the job */
void file_job_over(struct file_job *job);
/* Takes the request out of the job, to answer the request. Returns NULL if the request was cancelled. */
struct gateway_call *file_job_call(struct file_job *job);
void file_answer_info(struct gateway_call *c, const struct file_open *o, uint64_t word);
void file_answer_failed(struct gateway_call *c, int rc, const char *path);

void file_recheck(struct files *all, struct file_body *b); /* compares the file with the disk; if it has changed, `b` becomes stale */

/* --- file_watch.c --- */
void file_watch_open(struct files *all);
void file_watch_close(struct files *all);
void file_watch(struct files *all, struct file_body *b); /* begins to watch the file; b->fd must be open */

/* --- file_lease.c --- */
void file_begin_lease(struct files *all, struct file_open *o, struct gateway_call *c);
/* Looks again at requests that wait for room in the cache, or for copies that have arrived. Call this after leases have ended. Returns
 * whether requests still wait for room. */
bool file_lease_again(struct files *all);
bool file_lease_cancel(struct files *all, struct gateway_call *c); /* returns false if the request does not wait for a piece */
/* Looks again at requests that have waited long for a copy at another node. Returns after how many ns to call this function again at the
 * latest. */
int64_t file_lease_delayed(struct files *all);
void file_begin_hold(struct files *all, struct file_open *o, struct gateway_call *c);
void file_begin_drop(struct files *all, struct gateway_call *c);

/* --- file_write.c --- */
void file_begin_write(struct files *all, struct file_open *o, struct gateway_call *c);
void file_begin_sync(struct files *all, struct file_open *o, struct gateway_call *c);

/* --- file_handle.c: for all files of the asker's side. Neither function waits --- */
void file_post_return(struct gateway *g, uint32_t node, uint64_t lease); /* ends a lease */
void file_post_close(struct gateway *g, uint32_t node, uint64_t there);  /* closes the file that has the number `there` at the gateway */

/* --- requests of the asker. "handle" means that the request names an open file --- */
enum file_kind {
    /* Opens a file. data: the path; flags: WEFT_FILE_...; arg[0]: `host` of struct file_open. Answer: word 0: the handle; payload:
     * weft_file_info */
    FILE_OPEN = 1,
    /* Requests a piece. handle; arg[0]: the number of the piece; arg[1] to arg[10]: leases to end first (0: no lease); arg[11]: with
     * FILE_HERE, the number of the node whose copy was of no use, plus 1; flags: FILE_MAPS and others, below. Answer: word 0: address of
     * the piece or, with FILE_KEEPS, of a copy at another node; word 1: its length; word 2: the lease; with FILE_KEEPS also word 3: the
     * hash of the piece; word 4: 1 if the asker is to send FILE_HOLD when it has a copy; word 5: the piece's generation */
    FILE_LEASE,
    FILE_RETURN, /* ends the lease arg[0] */
    FILE_STAT,   /* handle; compares the file with the disk. Answer: as OPEN */
    FILE_WRITE,  /* handle; data: the bytes; arg[0]: the offset. Answer: word 0: how many bytes were written; payload: as OPEN */
    FILE_SYNC,   /* handle */
    FILE_PIN,    /* handle */
    FILE_UNPIN,  /* data: the path. -ENOENT: no file with this path is pinned */
    FILE_CLOSE,  /* handle */
    /* Lists the files in the cache, one file in each answer. arg[0]: 0, or word 0 of the previous answer. Answer: word 0: 0 if this file is
     * the last one; payload: weft_file_cached */
    FILE_LIST,
    FILE_CACHE, /* Answer: payload: weft_file_cache */
    /* The asker has a copy: handle; arg[0]: the lease to end, which may have ended; arg[1]: address of the copy in the asker's pool;
     * arg[2]: generation; arg[3]: piece */
    FILE_HOLD,
    FILE_DROP, /* the asker no longer has the copy of piece arg[1] of generation arg[0] */
};
#define FILE_MAPS   0x1u  /* LEASE: the lease has no end */
#define FILE_AHEAD  0x2u  /* LEASE: answer -EAGAIN if there is no room now, or half of the cache is leased */
#define FILE_KEEPS  0x4u  /* LEASE: the asker can use a copy at another node, and will keep a copy itself */
#define FILE_HERE   0x8u  /* LEASE: the asker needs the gateway's own piece, because the copy of another node was of no use */
#define FILE_SILENT 0x10u /* LEASE with FILE_HERE: the node of arg[11] has not answered */
#define FILE_LATER  0x20u /* LEASE with FILE_KEEPS: nobody should wait for the asker's copy, which may arrive late */
/* LEASE with FILE_KEEPS: the asker can copy the bytes from the gateway's piece straight to where they are wanted. So the gateway lets the
 * asker keep a copy only if several nodes of other hosts have the file open.
 */
#define FILE_STRAIGHT 0x40u
#define FILE_ENDS_AT  1u /* index in arg[] of the first lease to end */
#define FILE_ENDS     14u
#define FILE_LOST_AT  (FILE_ENDS_AT + FILE_ENDS)

/* Whether an answer to LEASE has the address of a piece of `bytes` bytes in the pool of the gateway `node`. With `keeps`: in any pool, and
 * with a hash. */
static inline bool file_lease_fits(const struct gateway_result *r, uint32_t node, uint32_t bytes, bool keeps)
{
    return (keeps ? r->word[3] != 0 : weft_gaddr_node(r->word[0]) == node) && weft_gaddr_space(r->word[0]) == 0 && r->word[1] == bytes;
}

#endif
