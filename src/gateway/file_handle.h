/* SPDX-License-Identifier: MIT
 *
 * The asker's handle of a file (struct weft_file). Each slot is for one piece: the handle waits for the answer to its request, or has a
 * lease. Answers are written to slots while gateway.lock is held. Apart from that, only the thread that reads or writes through the handle
 * (`busy`) changes slots.
 */
#ifndef WEFT_GATEWAY_FILE_HANDLE_H
#define WEFT_GATEWAY_FILE_HANDLE_H

#include "gateway/file.h"

#define FILE_AHEAD_PIECES 4u /* how many pieces of a file of this host are requested in advance */
/* Maximum number of pieces of a file of another host that are requested in advance. Their number begins with 1, and grows with each piece
 * that arrives within FILE_SLOW_NS. */
#define FILE_AHEAD_FAR 12u
/* How many of the pieces that are requested in advance are fetched at the same time. An answer arrives behind all bytes that are already
 * under way. So the next pieces must be requested early, or the network would be idle when those bytes have arrived. */
#define FILE_COPY_AHEAD 8u
#define FILE_SLOW_NS    WEFT_SECOND /* after a piece that takes longer, half as many pieces are requested in advance */
#define FILE_SLOTS      (FILE_AHEAD_FAR + 2u)
/* If a node other than the gateway sends a piece, the get may take at least FILE_HOLDER_TIMES * gateway.file_patience. */
#define FILE_HOLDER_TIMES 5
#define FILE_AWAY_PART    4  /* a program that pauses for gateway.file_patience / FILE_AWAY_PART between two reads counts as away */
#define FILE_KEPT_PART    8u /* copies take at most 1/FILE_KEPT_PART of the pool */
_Static_assert(FILE_SLOTS <= FILE_ENDS && FILE_COPY_AHEAD + 2 <= FILE_GETS_MAX, "a request can end all leases");
enum { FILE_CHANGED_READ, FILE_CHANGED_MAP };
#define FILE_MAP_AHEAD 2u
#define FILE_MAP_SLOTS (FILE_MAP_AHEAD + 2u)
#define FILE_TEXT      512u

enum slot_state {
    SLOT_FREE,
    SLOT_ASKED,
    SLOT_READY, /* there is a lease */
    SLOT_FAILED,
    SLOT_GETS, /* a copy to this node's pool is under way */
    SLOT_HELD, /* the copy has arrived, and its bytes are right */
    SLOT_TAKEN /* the copy belongs to a view now, and the lease will end */
};
/* A copy of a piece of a file of another host, in this node's pool. Other nodes may get it from here, and check the bytes by a hash. */
struct file_kept {
    struct file_kept *next, **at_next; /* guarded by gateway.lock */
    uint32_t node;                     /* the gateway */
    uint64_t generation, index;        /* which piece the copy is of; set when the gateway is told of the copy */
    weft_gaddr at;
    uint32_t room;  /* bytes of memory for the copy. Only memory for whole pieces is used again */
    uint32_t times; /* how often the memory was used */
    bool told;      /* the gateway knows of the copy */
    weft_op op;     /* the get that fills the copy */
};
struct file_slot {
    _Atomic int state; /* enum slot_state; when the answer arrives, this is written after all other members */
    int error;
    uint64_t index, ask, lease;
    weft_gaddr at;
    uint32_t bytes;
    bool claimed;              /* a map slot: a thread waits for it */
    bool keeps;                /* the request for the piece had FILE_KEEPS */
    bool tell;                 /* the gateway wants to know when the copy has arrived */
    bool lost;                 /* the copy of another node was wrong, so this node has requested the gateway's own piece (FILE_HERE) */
    uint64_t hash, generation; /* hash and generation of the piece, with `keeps` */
    struct file_kept *kept;    /* the copy; NULL: none */
    /* end of the lease by this node's clock. The time counts from before the request was sent, so at the gateway the lease ends later */
    int64_t until;
    int64_t since; /* when the answer arrived; then, when the get was begun */
    int64_t named; /* when the answer arrived */
    char text[FILE_TEXT];
};
/* The pieces that a handle has requested, mostly in order: to read them, or to map them on another host. One thread at a time uses this. */
struct file_line {
    bool maps;             /* the copies are for views; the limit of file_keep() does not apply to views */
    uint64_t last;         /* the piece that was used last; UINT64_MAX: none */
    uint32_t ahead;        /* how many pieces of a file of another host are requested in advance now */
    bool full;             /* there was no room for a get, so this call begins no further gets */
    bool cramped;          /* there is no memory for another copy, so this call requests no more pieces in advance */
    uint64_t wanted;       /* the piece for which the thread waits */
    int64_t left;          /* when the last call has ended; 0: none */
    bool away;             /* the program pauses between its calls (FILE_AWAY_PART), so it may get a piece long after the answer */
    struct file_pace pace; /* how fast the pieces arrive */
    struct file_slot slot[FILE_SLOTS];
};
struct weft_file {
    struct gateway *g;
    struct weft_file *next, **at_next; /* in the list of all handles of this node; guarded by gateway.lock */
    uint32_t node, flags;
    uint64_t there;        /* the handle's number at the gateway */
    weft_file_info info;   /* only for calls that are alone (file_use()) */
    _Atomic uint64_t size; /* info.bytes, for all other calls */
    /* The file has changed, so pieces that were requested before are of no use for reads [FILE_CHANGED_READ] or maps [FILE_CHANGED_MAP]. */
    _Atomic bool changed[2];
    _Atomic bool busy;
    _Atomic uint32_t users; /* how many threads are in calls with this handle */
    bool far;               /* the gateway is on another host */
    uint64_t ends;          /* where the last read has ended */
    char *path;
    struct file_line reads;
    /* For mapping a file of another host in order, with pieces requested in advance. One thread at a time uses this (`lining`). For other
     * threads, and for a handle that is open for writing, no pieces are requested in advance. */
    struct file_line maps_far;
    _Atomic bool lining;
    struct gateway_table copies;               /* copies of pieces (struct file_kept) that views use; guarded by gateway.lock */
    struct file_pace map_pace;                 /* how fast the pieces arrive that are mapped; guarded by gateway.lock */
    pthread_mutex_t maps;                      /* guards `mapped` and `map_slot`: several threads may map */
    uint64_t mapped;                           /* the piece that was mapped last; UINT64_MAX: none */
    struct file_slot map_slot[FILE_MAP_SLOTS]; /* pieces that were requested in advance, to be mapped */
};

/* --- file_keep.c --- */
/* Takes memory for a copy of a piece of a file of `node`: new memory, or the memory of the oldest copy that nobody uses. `bytes`: 0
 * for a copy that counts for the limit FILE_KEPT_PART. Copies for views do not count: then `bytes` is the copy's size. Returns NULL if
 * there is no memory. */
struct file_kept *file_keep(struct gateway *g, uint32_t node, uint32_t bytes);
/* Call this when a copy was checked and is right. Tells the gateway that this node has the copy, and ends the lease. `there`: the number of
 * the handle at the gateway. */
void file_keep_tell(struct gateway *g, uint64_t there, struct file_kept *k, uint64_t lease, uint64_t generation, uint64_t index);
void file_keep_leave(struct gateway *g, struct file_kept *k); /* the copy stays until its memory is needed */
/* How many pieces can be kept within the limit, with new memory and the memory of copies that nobody uses. */
uint64_t file_keep_room(struct gateway *g);
/* Until when to wait for a piece whose get began at `since`. `other`: a node other than the gateway sends it. If the gateway sends it,
 * there is no limit, because no other node may have the piece. */
int64_t file_get_until(const struct gateway *g, const struct file_pace *p, int64_t since, bool other);
/* Call these when a handle of a file of another host is opened or closed. Some time after the last one was closed, the copies are freed. */
void file_keeps_opened(struct gateway *g);
void file_keeps_closed(struct gateway *g);

/* --- file_handle.c --- */
/* Sends a request about the file and waits for the answer. `info`: the answer contains a weft_file_info, which becomes f->info. */
int file_ask(weft_file *f, weft_request *r, const void *data, bool info, struct gateway_result *out, int64_t timeout_ns);
weft_request file_request(const weft_file *f, enum file_kind kind);
/* Begin and end a call. With `alone`, only one thread at a time may be in the call. Returns -EBUSY if another thread is, and -EDEADLK in a
 * handler. */
int file_use(weft_file *f, bool alone);
void file_info_set(weft_file *f, const weft_file_info *info);
static inline uint64_t file_size(const weft_file *f)
{
    return atomic_load_explicit(&f->size, memory_order_relaxed);
}
/* If this node gets files of `node` over a network, returns a number that all nodes of this host share; otherwise 0. */
uint64_t file_far(const struct weft_node *w, uint32_t node);
int file_claim(weft_file *f); /* like file_use(f, true), for a caller that does not wait; returns 0 or -EBUSY */
void file_unuse(weft_file *f, bool alone);
static inline int file_slot_state(const struct file_slot *s)
{
    return atomic_load_explicit(&s->state, memory_order_acquire);
}
void file_map_slot_free(struct file_slot *s);
void file_map_slot_leave(weft_file *f, struct file_slot *s); /* frees a slot that no thread waits for. The caller holds `maps` */
bool file_maps_leave(weft_file *f); /* ends the leases of pieces that were mapped in advance. Returns false if there were none */
void file_slot_free(weft_file *f, struct file_slot *s);
/* Empties all slots: stops waiting for answers, and lets leases expire at the gateway. */
void file_slots_leave(weft_file *f, struct file_line *line);

int file_open_check(weft_node *w, uint32_t node, const char *path, uint32_t flags);
int file_write_check(const weft_file *f);
/* Like weft_file_write() and weft_file_sync(). Call them between file_use() and file_unuse(). */
int file_write(weft_file *f, const void *buf, size_t len, uint64_t offset, size_t *put, int64_t deadline);
int file_sync(weft_file *f, int64_t timeout_ns);

/* --- file_slot.c --- */
bool file_slot_settled(void *slot);
int file_slot_error(const weft_file *f, const struct file_slot *s);
void file_slot_return(weft_file *f, struct file_slot *s); /* ends the lease of a slot, and frees the slot */
void file_slot_told(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r);
/* Call these when a call that uses the line begins and ends. */
void file_line_begin(weft_file *f, struct file_line *line);
void file_line_end(struct file_line *line);
/* Waits until a slot has a lease of the piece, or a copy of the piece. `keeps`: prefer a copy, if there is room. */
int file_slot_get(weft_file *f, struct file_line *line, uint64_t index, bool keeps, int64_t deadline, struct file_slot **out);
/* Call this before file_slot_get(). If the piece was not requested in advance, requests it, and calls file_slot_ahead() without waiting for
 * the answer. So the network does not idle between the first pieces. */
int file_slot_begin(weft_file *f, struct file_line *line, uint64_t index, bool more, bool keeps, uint64_t end, int64_t deadline);
/* Whether the program that uses the first piece now will probably use the whole file of another host: the line is new, or has been used up
 * to the end of the file. */
bool file_line_begins(const weft_file *f, const struct file_line *line);
/* Requests the pieces after `index`, up to offset `end`, in advance. Does so only if this call needs more than piece `index` (`more`), or
 * if the previous call was for the piece before. `keeps`: prefer copies. */
void file_slot_ahead(weft_file *f, struct file_line *line, uint64_t index, bool more, bool keeps, uint64_t end);
void file_slots_expire(weft_file *f, struct file_line *line); /* call this when the file has changed */

/* --- file_read.c --- */
/* between file_use() and file_unuse() */
int file_read(weft_file *f, void *buf, size_t len, uint64_t offset, size_t *got, int64_t deadline);

#endif
