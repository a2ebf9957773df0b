/* SPDX-License-Identifier: MIT
 *
 * cast: the engine of `weft cast` and `weft cp`; part of the command, not of the library. It runs as nodes of a cluster of their own, which
 * the launcher starts on the hosts of a standing cluster. Node 0 is on the user's host and prints. One node is the source; the others are
 * targets. Files, lowest first:
 *
 *   wire.c     what crosses the wire: settings, blocks, records, words; all are checked here
 *   list.c     the list of files, folders and links
 *   talk.c     words to other nodes
 *   chain.c    blocks from a node to the next one of the chain, in a thread of its own
 *   ahead.c    a target: verifies a block in another thread, while the one before is written
 *   walk.c     the source: makes the list
 *   part.c     a target: the file beside another one that has its bytes until all are there
 *   dest.c     a target: DEST
 *   disk.c     a target: the folders and files below DEST
 *   finish.c   a target: links, modes and times of folders, --delete
 *   send.c     the source: sends the list and the files
 *   follow.c   the source: a file that still grows
 *   order.c    the order of the chain
 *   source.c   the source: rounds
 *   target.c   a target: takes blocks and writes them
 *   show.c     node 0: progress, messages, the summary
 *   node.c     one node, from its start to its end
 *
 * A cast goes in rounds. In the first one the source sends the list; each target compares it with its disk and answers what it needs. Then
 * the source reads each file that any target needs, once, and sends it down the chain in records, many to a block. Every record has a
 * checksum. A target names a file when all of it has arrived. If a target dies or a record is damaged, the next round begins with the
 * chain that is left: the targets tell what they need now, and only that is sent. The same mechanism continues a cast that was ended.
 */
#ifndef WEFT_CAST_CAST_H
#define WEFT_CAST_CAST_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/base.h"
#include "weft.h"

/* --- wire.c. Numbers are in the byte order of the hosts, which are all little-endian (weft_open() refuses others) --- */

#define CAST_PIECE       (1u << 20)                 /* bytes of a file in one record, at most */
#define CAST_BLOCK       (CAST_PIECE + (64u << 10)) /* bytes of a block, at most */
#define CAST_SLOTS       8u                         /* blocks that a node keeps, at most */
#define CAST_ROUNDS      200u
#define CAST_ENTRIES_MAX (1u << 24)
#define CAST_CONFIG_MAX  (4u << 20)
#define CAST_NAME_MAX    255u
#define CAST_LINK_MAX    4095u
#define CAST_FOLLOW_MAX  86400u     /* seconds */
#define CAST_ROOT        UINT32_MAX /* parent: DEST itself */

enum cast_flag {
    CAST_CHECKSUM = 0x1,
    CAST_DELETE = 0x2,
    CAST_DRY_RUN = 0x4,
    CAST_VERIFY = 0x8,
    CAST_JSON = 0x10,
    CAST_PROGRESS = 0x20,
    CAST_VERBOSE = 0x40,
    CAST_FLAGS = 0x7f
};

/* Settings, from node 0 to all: this, and zero-terminated strings: DEST; for each node the name of its host in messages, and the number of
 * its standing node; patterns to exclude; the sources. */
struct cast_head {
    char magic[8];
    uint32_t flags, size, source; /* size: nodes; source: its rank. Targets are all others but node 0 */
    uint32_t excludes, sources;
    uint32_t follow;           /* seconds after which a file that does not grow is complete; 0: files do not grow */
    uint64_t bytes_per_second; /* 0: no limit */
};
struct cast_config {
    struct cast_head head;
    const char *dest;
    const char **hosts, **numbers, **excludes, **sources; /* lists in `memory` */
    void *memory;
};
/* Check settings. Strings of `out` point into `data`. Returns 0, or a negative errno with base_error(): -EPROTO, -ENOMEM. */
int cast_config_parse(struct cast_config *out, const void *data, size_t bytes);
/* The other way: the caller frees `*data`. */
int cast_config_write(const struct cast_config *c, void **data, size_t *bytes);
void cast_config_free(struct cast_config *c);
bool cast_is_content(const char *source); /* SRC/: what is in the folder is sent, not the folder */

struct cast_block {
    uint64_t magic, round, number; /* number: from 0, in its round */
    uint32_t bytes, zero;          /* of the records, which follow */
    uint64_t hash;                 /* of the fields above */
};
enum cast_type {
    CAST_ENTRY = 1, /* of the list. file: its index; payload: struct cast_line, name, target of a symbolic link */
    CAST_LIST_END,  /* file: entries; offset: the mode of DEST, if it is made */
    CAST_DATA,      /* of a file, at `offset`; payload: bytes */
    CAST_HOLE,      /* `bytes` at `offset` are zero, and need no room on the disk; no payload */
    CAST_CHECK,     /* `bytes` at `offset` have this checksum; no payload */
    CAST_SIZE,      /* of the file that was followed; payload: struct cast_line with its final size, mode and time, and no name */
    CAST_FILE_END,  /* offset: 0, or an errno: the source could not read all of it, or it has changed meanwhile */
    CAST_ROUND_END,
};
struct cast_record {
    uint32_t type, file;
    uint64_t offset, bytes;
    uint64_t hash[2]; /* XXH3 of 128 bits over the payload, with a seed of the fields above; CAST_CHECK: as of CAST_DATA */
};
struct cast_line { /* an entry of the list, as it is sent */
    uint32_t type, parent, mode, target;
    uint64_t size;
    int64_t seconds;
    uint32_t nanoseconds, name_bytes, link_bytes, zero;
};
void cast_hash(uint64_t out[2], uint32_t type, uint32_t file, uint64_t offset, const void *data, uint64_t bytes);
/* Fill a record's checksum from its other fields. */
void cast_record_seal(struct cast_record *r, const void *payload);
void cast_block_seal(struct cast_block *b);
/* Whether the block at `b` may be read: `bytes` is how much memory there is. */
bool cast_block_fits(const struct cast_block *b, uint64_t round, uint64_t number, size_t bytes);
/* Take the next record of `bytes` bytes of records at `*at`, checked but for CAST_CHECK's and CAST_DATA's checksum. *payload: its payload.
 * Returns 1, 0 when there is no more, or -EPROTO without base_fail(). */
int cast_record_next(const uint8_t *records, uint32_t bytes, uint32_t *at, struct cast_record *out, const uint8_t **payload);

/* Messages. A word is their header. */
enum cast_kind {
    /* from the source to targets */
    CAST_BEGIN = 1, /* a round; payload: ranks of the chain, uint32_t each. a: whether the list is sent again; b: 1: verify all files */
    CAST_QUIT,
    /* from targets to the source */
    CAST_NEED,   /* payload: struct cast_need[] */
    CAST_LINKS,  /* payload: how this target reaches each node: order.c, a byte each */
    CAST_READY,  /* the round may go on: it has begun (a = 0), the list has been compared (1), all has been written (2). b: files needed */
    CAST_BROKEN, /* a block was damaged, or could not be passed on: begin another round */
    CAST_FAILED, /* this target takes no more files */
    /* from all to node 0 */
    CAST_SAY,   /* payload: a sentence. a: 1: something failed, 0: a note */
    CAST_TOTAL, /* a: files, b: bytes */
    CAST_CHAIN, /* of this round; payload: for each target, in order, uint32_t: its rank, and above 24 bits how the one before reaches it */
    CAST_STATE, /* payload: struct cast_state */
    CAST_OVER,  /* the source has ended. a: 0 all is right. b: how many sources and files it could not send */
};
struct cast_word {
    uint32_t kind, round;
    uint64_t a, b;
};
struct cast_need {
    uint32_t file, zero;
    uint64_t have, verified; /* bytes from the start that it has; that it knows to be right */
};
struct cast_state {
    uint64_t files, bytes;    /* that are right */
    uint64_t sent, discarded; /* bytes that came; of those, bytes of a file that it had already, or that were damaged */
    uint64_t failed, skipped; /* files */
    uint32_t doing, zero;     /* enum cast_doing */
};
enum cast_doing { CAST_STARTING, CAST_COMPARING, CAST_WAITING, CAST_WRITING, CAST_RELAYING, CAST_ENDED, CAST_GAVE_UP, CAST_DOINGS };
bool cast_word_fits(const struct cast_word *w, size_t header_bytes, size_t payload_bytes);

/* --- list.c --- */
enum cast_entry_type { CAST_FILE = 1, CAST_FOLDER, CAST_SYMLINK, CAST_HARDLINK, CAST_ENTRY_TYPES };
struct cast_entry {
    uint32_t type, parent, mode, target; /* target: of a hard link: the index of a file before it */
    uint64_t size;
    int64_t seconds;
    uint32_t nanoseconds;
    const char *name, *link; /* link: of a symbolic link; else "" */
};
struct cast_list {
    struct cast_entry *entry;
    uint32_t count, room;
    char **chunk; /* memory of the names */
    uint32_t chunks;
    size_t chunk_used;
    uint64_t files, bytes; /* sums */
    uint32_t mode;         /* of DEST, if it is made: of SRC, when its content is sent */
};
/* Add an entry, checked: a name is one component, a parent is a folder before it. Returns 0, or a negative errno with base_error(). */
int cast_list_add(struct cast_list *l, const struct cast_line *line, const char *name, const char *link);
/* The same from a record's payload. */
int cast_list_take(struct cast_list *l, const struct cast_record *r, const uint8_t *payload);
/* Take a CAST_SIZE. */
int cast_list_resize(struct cast_list *l, const struct cast_record *r, const uint8_t *payload);
/* Whether this is the name of an unfinished file, as cast_disk_part() makes it: such files are not copied. */
bool cast_is_part(const char *name, size_t bytes);
void cast_list_free(struct cast_list *l);
/* The path below DEST, for messages; cut off at `len`. Returns `out`. */
const char *cast_list_path(const struct cast_list *l, uint32_t index, char *out, size_t len);

/* --- one node --- */
struct cast {
    weft_node *w;
    uint32_t rank;
    struct cast_config config;
    void *config_data;                    /* what the settings' strings point into */
    weft_gaddr *rings, *filled, *credits; /* of each node: CAST_SLOTS * CAST_BLOCK; CAST_ROUNDS * CAST_SLOTS words; CAST_ROUNDS words */
    struct cast_list list;
    /* What messages have told; under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t wanted_round, chain_count; /* targets: the round that was begun last */
    uint32_t chain[WEFT_MAX_NODES];
    uint32_t send_list, verify;
    _Atomic bool quit;
    _Atomic bool lost;          /* what was sent without a weft_op may be lost: a node had no route to another one (tb) */
    struct cast_source *source; /* on the source */
    struct cast_show *show;     /* on node 0 */
    struct cast_state state;    /* of this target */
    int64_t told_ns;
    int (*stopped)(void);
};

/* The most bytes that a file may have: its size, unless it still grows. */
uint64_t cast_size_most(const struct cast *c, uint32_t file);

/* --- talk.c --- */
#define CAST_SOURCE_HANDLER 1u
#define CAST_TARGET_HANDLER 2u
#define CAST_SHOW_HANDLER   3u
uint32_t cast_handler_of(enum cast_kind kind);
bool cast_is_target(const struct cast *c, uint32_t rank);
/* Send a word. Words that a node waits for have arrived when this returns, unless that node is gone, which is noticed elsewhere, or the
 * cast ends. They may arrive twice. */
void cast_send(struct cast *c, uint32_t to, enum cast_kind kind, uint32_t round, uint64_t a, uint64_t b, const void *payload, size_t bytes);
/* Look whether all that was sent to a node has arrived. If some of it is lost, c->lost is set. */
void cast_look_lost(struct cast *c, uint32_t to);
void cast_say(struct cast *c, bool failure, const char *format, ...) BASE_PRINTF(3, 4);
void cast_tell_state(struct cast *c, enum cast_doing doing, bool now);
void cast_wait(pthread_cond_t *changed, pthread_mutex_t *lock, int64_t ns); /* for at most so long; `ns` is below a second */

/* --- chain.c --- */
/* Puts blocks to the next node of the chain, in a thread of its own: a node that reads or writes a file does not wait for the link. */
struct cast_relay {
    struct cast *c;
    uint32_t to; /* WEFT_MAX_NODES: there is no next node, and no thread */
    uint32_t round;
    pthread_t thread;
    bool running;
    weft_op op[CAST_SLOTS]; /* of block K: K % CAST_SLOTS; belongs to the thread until `put` is beyond K, then to the caller */
    bool busy[CAST_SLOTS];
    pthread_mutex_t lock;
    pthread_cond_t moved;        /* `put` has changed */
    _Atomic uint64_t put, given; /* blocks that were put; whose slots were given back, as the caller says */
    _Atomic bool stop, broken;   /* broken: a block could not be put, or it was damaged: the round must be given up */
};
uint64_t cast_word_at(struct cast *c, weft_gaddr word); /* of this node's own pool */
struct cast_block *cast_slot(struct cast *c, uint64_t number);
bool cast_arrived(struct cast *c, uint64_t round, uint64_t number); /* whether the block is in its slot at this node, or was */
void cast_wait_block(struct cast *c, uint64_t round, uint64_t number, int64_t ns);
/* The source: the block is in its slot. */
void cast_fill(struct cast *c, uint64_t round, uint64_t number);
/* Begin to put the blocks of a round to node `to`, as they come and as that node has room. The blocks of the round before have been put.
 * Returns 0, or a negative errno with base_error(). */
int cast_relay_start(struct cast_relay *r, struct cast *c, uint32_t to, uint32_t round);
/* End the thread, and wait for what is under way. May be called again. */
void cast_relay_stop(struct cast_relay *r);
bool cast_relay_has_next(const struct cast_relay *r);
/* Whether block `number` has been put, so that its slot may be used again. True also when the next node is gone. */
bool cast_relay_done(struct cast_relay *r, uint64_t number);
void cast_relay_test(struct cast_relay *r); /* look at all blocks under way, for r->broken */
/* Wait until cast_relay_done(), for at most `ns`. */
void cast_relay_wait(struct cast_relay *r, uint64_t number, int64_t ns);
/* Give a slot back to the node before. If that fails, c->lost is set. */
void cast_give_credit(struct cast *c, uint32_t to, uint64_t round);

/* --- ahead.c --- */
struct cast_ahead {
    struct cast *c;
    pthread_t thread;
    bool running;
    pthread_mutex_t lock; /* over the four below */
    pthread_cond_t asked;
    uint64_t round, number; /* the block that was asked for last */
    bool wanted, stop;
    _Atomic uint64_t right; /* the last block whose checksums are all right */
};
void cast_ahead_start(struct cast_ahead *a, struct cast *c); /* without memory for a thread, no block is verified ahead */
void cast_ahead_stop(struct cast_ahead *a);
/* Begin to verify a block that has arrived. */
void cast_ahead_ask(struct cast_ahead *a, uint64_t round, uint64_t number);
/* Whether all pieces of files in the block are known to be right. */
bool cast_ahead_is_right(const struct cast_ahead *a, uint64_t round, uint64_t number);

/* --- order.c --- */
void cast_order_tell(struct cast *c); /* a target: tell the source how it reaches the others */
/* Put the nodes of `chain` in an order that begins behind node `from`. cost[i]: a row, how node i reaches each node, less is better; NULL:
 * it is not known. */
void cast_order(const uint8_t *const *cost, uint32_t from, uint32_t *chain, uint32_t count);
const char *cast_order_link(uint32_t cost); /* the kind of link, for messages */

/* --- walk.c --- */
/* Make the list of the sources. What cannot be read or sent is said, and counted in `*failed`. */
int cast_walk(struct cast *c, uint64_t *failed);
/* Open a file of the list for reading. Returns the descriptor, or a negative errno without base_fail(). */
int cast_walk_open(struct cast *c, uint32_t index);
void cast_walk_times(struct cast_line *n, const struct stat *st);
/* Whether --exclude names an entry of the list: also used by the targets, for --delete. `path`: below DEST. */
bool cast_excluded(const struct cast_config *config, const char *path, const char *name, bool folder);

/* --- source.c --- */
int cast_source_open(struct cast *c);
void cast_source_close(struct cast *c);
void cast_source_run(struct cast *c); /* until all targets have all, or have failed */
void cast_source_word(struct cast *c, uint32_t from, const struct cast_word *w, const void *payload, size_t bytes);

/* --- part.c --- */
#define CAST_PART_NAME 48u
/* The name that a file has until it is complete, in the same folder. */
void cast_disk_part(const char *name, char out[CAST_PART_NAME]);
/* Open and lock the unfinished file of `name` in folder `at`; make it if there is none that can be used, and set `*new`. Returns the
 * descriptor, or a negative errno without base_fail(): -EBUSY: another cast writes it. */
int cast_part_open(int at, const char *name, bool *new);
bool cast_part_is(int at, const char *part, int fd); /* whether the name `part` still leads to the file that `fd` is */
bool cast_part_is_live(int at, const char *part);    /* whether a cast writes it now */

/* --- disk.c: a target's files --- */
enum cast_file_state { CAST_OTHER, CAST_RIGHT, CAST_COMPARE, CAST_WANTED, CAST_GIVEN_UP };
struct cast_file {
    uint64_t have, verified;
    uint32_t state; /* enum cast_file_state. CAST_COMPARE: the file that has the name may be right: its checksums tell */
};
#define CAST_NAMING 512u
struct cast_disk {
    struct cast *c;
    int root;          /* DEST, or the folder that it is in; -1: DEST does not exist (dry run) */
    const char *alone; /* DEST is the name of the only source, a file: its last component */
    char dest[4096];
    struct cast_file *file; /* [list.count] */
    uint64_t wanted;        /* files that are needed or may be */
    int folder;             /* the folder opened last: of entry folder_index; -1: none */
    uint32_t folder_index;
    /* The file that is being written. */
    uint32_t open_index;
    int open; /* -1: none */
    bool open_cut;
    uint64_t at;
    /* Files that are complete and get their names together. */
    struct {
        uint32_t index;
        int fd;
    } naming[CAST_NAMING];
    uint32_t naming_count, naming_max; /* naming_max: as many as there may be open files for */
    uint64_t naming_bytes;
    uint64_t flushed; /* offset in the open file up to which pages were given to the disk */
    uint8_t *piece;   /* to compare */
    bool verified;    /* the checksums of the records that come now are known to be right */
    bool verifying;   /* files have been compared a second time */
    bool made;        /* DEST was not there before */
    bool renamed;     /* files have got their names, which may not be on the disk yet */
    bool failed;      /* DEST cannot be written any more */
    bool again;       /* what a target has of a file that is followed is wrong: the next round must not wait until the file is complete */
};
/* dest.c. Open DEST, or the folder that it is in, if DEST is the name of the only file. Returns 0, or a negative errno without base_fail():
 * if d->failed, the reason was said. */
int cast_dest_open(struct cast_disk *d);
int cast_disk_open(struct cast_disk *d, struct cast *c);
void cast_disk_close(struct cast_disk *d);
/* The list is complete: make the folders, and find out what is needed. Returns 0, or a negative errno when nothing can be written. */
int cast_disk_compare(struct cast_disk *d);
void cast_disk_verify(struct cast_disk *d); /* all files that are right are to be compared again */
/* A record of a file. `payload`: CAST_DATA's. */
void cast_disk_record(struct cast_disk *d, const struct cast_record *r, const uint8_t *payload);
void cast_disk_settle(struct cast_disk *d); /* at the end of a round: give complete files their names; close the open one */
/* The folder that an entry is in; -1 after an error was said. It stays this function's. */
int cast_disk_folder(struct cast_disk *d, uint32_t index);
void cast_disk_give_up(struct cast_disk *d, uint32_t index, int error, const char *what);
/* The name of an entry in its folder. */
const char *cast_disk_name(const struct cast_disk *d, uint32_t index);

/* --- finish.c --- */
/* All files are there. `sources_failed`: some could not be read, so nothing is deleted. */
void cast_finish(struct cast_disk *d, bool sources_failed);

/* --- target.c --- */
int cast_target_run(struct cast *c);

/* --- show.c --- */
int cast_show_open(struct cast *c, bool progress);
void cast_show_close(struct cast *c);
void cast_show_word(struct cast *c, uint32_t from, const struct cast_word *w, const void *payload, size_t bytes);
int cast_show_run(struct cast *c); /* until the source has ended; returns the exit status */

/* --- node.c --- */
struct cast_options {
    struct cast_config config;
    int (*stopped)(void); /* whether a signal came */
    bool progress;        /* node 0: on a terminal */
};
/* Run node 0, until the end. Returns the exit status. */
int cast_lead(const struct cast_options *o);
/* Run another node. */
int cast_serve(int (*stopped)(void));

#endif
