/* SPDX-License-Identifier: MIT
 *
 * cast: the engine of `weft cast` and `weft cp`; part of the command, not of the library. A cast is a cluster of its own, whose nodes the
 * launcher starts on the hosts of a standing cluster. Node 0 runs on the user's host and prints messages and progress. One node is the
 * source: it reads the files. All other nodes but node 0 are targets: they write the files below the destination, DEST. Files, lowest
 * first:
 *
 *   wire.c     the format of settings, blocks, records and messages, and their checks
 *   list.c     the list of files, folders and links
 *   talk.c     sends messages to other nodes
 *   chain.c    sends blocks to the next node of the chain, in a thread of its own
 *   ahead.c    a target: verifies a block in another thread while the block before it is written
 *   walk.c     the source: makes the list
 *   part.c     a target: the temporary file (.part) that holds a file's bytes until the file is complete
 *   dest.c     a target: opens DEST
 *   disk.c     a target: the folders and files below DEST
 *   finish.c   a target: links, modes and times of folders, --delete
 *   send.c     the source: sends the list and the files
 *   follow.c   the source: sends a file that still grows
 *   order.c    the source: orders the chain
 *   source.c   the source: leads the rounds
 *   target.c   a target: receives blocks and writes them
 *   progress.c node 0: progress on the terminal; notices nodes that do not answer
 *   json.c     node 0: names of files in JSON
 *   show.c     node 0: messages, the summary
 *   node.c     one node, from its start to its end
 *
 * A cast consists of rounds. In the first round the source sends the list; each target compares the list with its disk and answers which
 * files it needs. Then the source reads each needed file once, and sends its bytes down the chain in records. A block contains many
 * records. Every record has a checksum. A target gives a file its name when the whole file has arrived. If a target dies or a record is
 * damaged, the next round begins with the remaining targets. These targets answer which bytes they still need, and the source sends only
 * those bytes. A cast that was interrupted continues in the same way when the command is given again.
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

/* --- wire.c. All numbers are little-endian: weft_open() fails on big-endian hosts --- */

#define CAST_PIECE       (1u << 20)                 /* maximum number of bytes of a file in one record */
#define CAST_BLOCK       (CAST_PIECE + (64u << 10)) /* the largest block, in bytes */
#define CAST_SLOTS       8u                         /* how many blocks the ring of a node has */
#define CAST_ROUNDS      200u
#define CAST_ENTRIES_MAX (1u << 24)
#define CAST_CONFIG_MAX  (4u << 20)
#define CAST_NAME_MAX    255u
#define CAST_LINK_MAX    4095u
#define CAST_FOLLOW_MAX  86400u     /* seconds */
#define CAST_ROOT        UINT32_MAX /* `parent` of an entry that is directly in DEST */

enum cast_flag {
    CAST_CHECKSUM = 0x1,
    CAST_DELETE = 0x2,
    CAST_DRY_RUN = 0x4,
    CAST_VERIFY = 0x8,
    CAST_JSON = 0x10,
    CAST_PROGRESS = 0x20,
    CAST_VERBOSE = 0x40,
    CAST_LEFT_OUT = 0x80, /* some host that the command names has no node in this cast */
    CAST_FLAGS = 0xff
};

/* The settings, which node 0 sends to all nodes: struct cast_head, then zero-terminated strings. The strings are: DEST; for each node, the
 * name of its host and the rank of that host's node in the standing cluster; the patterns to exclude; the sources. */
struct cast_head {
    char magic[8];
    uint32_t flags, size, source; /* size: number of nodes; source: rank of the source */
    uint32_t excludes, sources;
    uint32_t follow;           /* --follow: a file is complete if it has not grown for this number of seconds; 0: files are not followed */
    uint64_t bytes_per_second; /* 0: no limit */
};
struct cast_config {
    struct cast_head head;
    const char *dest;
    const char **hosts, **numbers, **excludes, **sources; /* lists in `memory` */
    void *memory;
};
/* Parse and check received settings. The strings of `out` point into `data`. Returns 0, or a negative errno with base_error(): -EPROTO,
 * -ENOMEM. */
int cast_config_parse(struct cast_config *out, const void *data, size_t bytes);
/* Serialize settings. The caller frees `*data`. */
int cast_config_write(const struct cast_config *c, void **data, size_t *bytes);
void cast_config_free(struct cast_config *c);
/* Whether the path ends with '/' (SRC/). If it does, the content of the folder is sent without the folder itself */
bool cast_is_content(const char *source);

struct cast_block {
    uint64_t magic, round, number; /* number: number of the block in its round, from 0 */
    uint32_t bytes, zero;          /* bytes: size of the records that follow */
    uint64_t hash;                 /* checksum of the fields above */
};
enum cast_type {
    /* an entry of the list. file: index of the entry; payload: struct cast_line, the entry's name, the target of a symbolic link */
    CAST_ENTRY = 1,
    CAST_LIST_END, /* file: number of entries; offset: the mode of DEST, if the target makes DEST */
    CAST_DATA,     /* payload: bytes of a file from `offset` on */
    CAST_HOLE,     /* a hole of a file: the `bytes` bytes from `offset` on are zero; no payload */
    CAST_CHECK,    /* `hash` is the checksum of the `bytes` bytes from `offset` on; no payload */
    CAST_SIZE,     /* a followed file is complete; payload: struct cast_line with its final size, mode and time, without a name */
    CAST_FILE_END, /* the end of a file. offset: 0, or an errno with Linux's number: the source could not read the whole file, or the file
                      changed meanwhile */
    CAST_ROUND_END,
};
struct cast_record {
    uint32_t type, file;
    uint64_t offset, bytes;
    /* XXH3-128 of the payload, seeded with the fields above. A CAST_CHECK record has the checksum that a CAST_DATA record with the same
     * bytes would have */
    uint64_t hash[2];
};
struct cast_line { /* the serialized form of an entry of the list */
    uint32_t type, parent, mode, target;
    uint64_t size;
    int64_t seconds;
    uint32_t nanoseconds, name_bytes, link_bytes, zero;
};
void cast_hash(uint64_t out[2], uint32_t type, uint32_t file, uint64_t offset, const void *data, uint64_t bytes);
void cast_record_seal(struct cast_record *r, const void *payload);
void cast_block_seal(struct cast_block *b);
/* Whether the block at `b` has the expected round, number and checksum, and a size that fits into `bytes`. */
bool cast_block_fits(const struct cast_block *b, uint64_t round, uint64_t number, size_t bytes);
/* Read and check the next record. `records`, `bytes`: the records of a block. `*at`: offset of the record; the call advances it. Does not
 * verify the checksums of CAST_CHECK and CAST_DATA. Returns 1; 0 at the end of the records; or -EPROTO without base_fail(). */
int cast_record_next(const uint8_t *records, uint32_t bytes, uint32_t *at, struct cast_record *out, const uint8_t **payload);

/* The kinds of messages. Each message has a struct cast_word as its header. */
enum cast_kind {
    /* --- from the source to targets --- */
    /* begin a round. payload: the ranks of the chain, as uint32_t. a = 1: the list is sent again. b = 1: verify all files */
    CAST_BEGIN = 1,
    CAST_QUIT,
    /* --- from targets to the source --- */
    CAST_NEED,  /* payload: struct cast_need[] */
    CAST_LINKS, /* payload: for each node, a byte with the cost of the link from this target (order.c) */
    /* this target has reached stage `a` of the round: 0: begun, 1: the list is compared, 2: all files are written. b: number of files that
       the target needs */
    CAST_READY,
    CAST_BROKEN, /* a block was damaged or could not be sent to the next node, so the source must begin another round */
    CAST_FAILED, /* this target can write no more files */
    /* --- from any node to node 0 --- */
    /* payload: a sentence for the user. a: 1 for an error, 0 for a note. b: if the sentence begins with a path that the source does not
       send: the length of the path; otherwise 0 */
    CAST_SAY,
    CAST_TOTAL, /* payload: struct cast_sums */
    /* the chain of this round. payload: a uint32_t for each target, in order. Bits 0 to 23: the target's rank; bits 24 to 31: the cost of
     * the link to the target from the node before the target in the chain */
    CAST_CHAIN,
    CAST_STATE, /* payload: struct cast_state */
    CAST_HERE,  /* a heartbeat, sent every second, even while the node's main thread waits for a disk */
    /* the source has ended. a: 0: without error, 1: some files or targets failed, 2: the source itself failed. b: number of sources and
       files that could not be sent */
    CAST_OVER,
};
struct cast_word {
    uint32_t kind, round;
    uint64_t a, b;
};
struct cast_need {
    uint32_t file, zero;
    /* have: how many bytes the target has at the start of the file; verified: how many of these are known to be right */
    uint64_t have, verified;
};
struct cast_sums {
    uint64_t files, bytes; /* number and bytes of all files of the list */
    uint64_t special;      /* number of files and folders with a set-user-ID or set-group-ID bit; these bits are not copied */
};
struct cast_state {
    uint64_t files, bytes;    /* number and bytes of complete, verified files */
    uint64_t partial;         /* bytes of incomplete files that the target has: verified in this cast, or left by an earlier cast */
    uint64_t sent, discarded; /* `sent`: bytes that the target has received; `discarded`: received bytes that were damaged or not needed */
    uint64_t failed, skipped; /* numbers of files */
    uint64_t unsent;          /* how many of the failed files the source could not read */
    uint32_t doing, zero;     /* enum cast_doing */
};
enum cast_doing { CAST_STARTING, CAST_COMPARING, CAST_WAITING, CAST_WRITING, CAST_RELAYING, CAST_ENDED, CAST_GAVE_UP, CAST_DOINGS };
bool cast_word_fits(const struct cast_word *w, size_t header_bytes, size_t payload_bytes);

/* --- list.c --- */
enum cast_entry_type { CAST_FILE = 1, CAST_FOLDER, CAST_SYMLINK, CAST_HARDLINK, CAST_ENTRY_TYPES };
struct cast_entry {
    uint32_t type, parent, mode, target; /* target: for a hard link, the index of an earlier file in the list */
    uint64_t size;
    int64_t seconds;
    uint32_t nanoseconds;
    const char *name, *link; /* link: the target of a symbolic link; else "" */
};
struct cast_list {
    struct cast_entry *entry;
    uint32_t count, room;
    char **chunk; /* memory that holds the names */
    uint32_t chunks;
    size_t chunk_used;
    uint64_t files, bytes; /* sums over all entries */
    uint64_t special;      /* entries that have a set-user-ID or set-group-ID bit on the source */
    uint32_t mode;         /* mode for a new DEST. If the content of SRC is sent, this is the mode of SRC */
};
/* Check and add an entry. The name must be a single path component, and the parent must be an earlier folder. Returns 0, or a negative
 * errno with base_error(). */
int cast_list_add(struct cast_list *l, const struct cast_line *line, const char *name, const char *link);
/* Add the entry from a CAST_ENTRY record. Returns what cast_list_add() returns. */
int cast_list_take(struct cast_list *l, const struct cast_record *r, const uint8_t *payload);
/* Set the final size, mode and time of a followed file from a CAST_SIZE record. Returns what cast_list_add() returns. */
int cast_list_resize(struct cast_list *l, const struct cast_record *r, const uint8_t *payload);
/* Whether this is the name of an unfinished file (cast_disk_part()). Such files are not copied. */
bool cast_is_part(const char *name, size_t bytes);
void cast_list_free(struct cast_list *l);
/* Write the path of an entry, relative to DEST, to `out` for messages. Truncates at `len`. Returns `out`. */
const char *cast_list_path(const struct cast_list *l, uint32_t index, char *out, size_t len);

/* --- one node --- */
struct cast {
    weft_node *w;
    uint32_t rank;
    struct cast_config config;
    void *config_data; /* memory of the settings' strings */
    /* For each node, addresses in its pool. rings: CAST_SLOTS * CAST_BLOCK bytes; filled: CAST_ROUNDS * CAST_SLOTS words; credits:
     * CAST_ROUNDS words */
    weft_gaddr *rings, *filled, *credits;
    struct cast_list list;
    /* State that message handlers set; protected by `lock`. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t wanted_round, chain_count; /* targets: the round that the source has begun last, and the chain of this round */
    uint32_t chain[WEFT_MAX_NODES];
    uint32_t send_list, verify;
    _Atomic bool quit;
    _Atomic bool lost; /* writes without a weft_op may be lost, because the route to a node was interrupted (tb) */
    /* Message handlers run in another thread, and may read `source` and `show` at any time. */
    struct cast_source *_Atomic source; /* NULL except on the source */
    struct cast_show *_Atomic show;     /* NULL except on node 0 */
    struct cast_state state;            /* state of this node, if it is a target */
    int64_t told_ns;
    const char *sub; /* as in struct cast_options */
    int (*stopped)(void);
};

/* The maximum size of a file: its size in the list, or the general limit if the file is followed. */
uint64_t cast_size_most(const struct cast *c, uint32_t file);

/* --- talk.c --- */
#define CAST_SOURCE_HANDLER 1u
#define CAST_TARGET_HANDLER 2u
#define CAST_SHOW_HANDLER   3u
uint32_t cast_handler_of(enum cast_kind kind);
bool cast_is_target(const struct cast *c, uint32_t rank);
/* Send a message. Messages of all kinds except CAST_QUIT, CAST_SAY, CAST_TOTAL, CAST_CHAIN, CAST_STATE and CAST_HERE are repeated until
 * they have arrived, the receiver is gone, or the cast ends. Such a message may arrive twice. */
void cast_send(struct cast *c, uint32_t to, enum cast_kind kind, uint32_t round, uint64_t a, uint64_t b, const void *payload, size_t bytes);
/* Set c->lost if a write to node `to` without a weft_op was lost. */
void cast_look_lost(struct cast *c, uint32_t to);
void cast_say(struct cast *c, bool failure, const char *format, ...) BASE_PRINTF(3, 4);
/* Called on the source. Tells the user that `path` is not sent, and why. */
#define CAST_UNSENT_MAX 3500u /* longest path for cast_say_unsent(), in bytes: the sentence with the path must fit into one message */
void cast_say_unsent(struct cast *c, const char *path, const char *why);
void cast_tell_sums(struct cast *c);
void cast_tell_state(struct cast *c, enum cast_doing doing, bool now);
/* A thread that sends node 0 a heartbeat (CAST_HERE). The main thread cannot do this, because it may wait for a disk. */
struct cast_beat {
    struct cast *c;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool running, stop;
};
int cast_beat_start(struct cast_beat *b, struct cast *c); /* 0, or a negative errno with base_error() */
void cast_beat_stop(struct cast_beat *b);

/* --- chain.c --- */
/* Puts blocks to the next node of the chain in a thread of its own, so that reading and writing files does not wait for the link. */
struct cast_relay {
    struct cast *c;
    uint32_t to; /* the next node; WEFT_MAX_NODES: there is no next node, and no thread */
    uint32_t round;
    pthread_t thread;
    bool running;
    /* block K uses op[K % CAST_SLOTS]. The thread owns this op until `put` exceeds K; after that the caller owns it */
    weft_op op[CAST_SLOTS];
    bool busy[CAST_SLOTS];
    pthread_mutex_t lock;
    pthread_cond_t moved; /* signalled when `put` changes */
    /* put: number of blocks that were sent to the next node; given: number of blocks whose slots the caller has freed */
    _Atomic uint64_t put, given;
    _Atomic bool stop, broken; /* broken: a block was damaged or could not be sent, so this round must end */
};
uint64_t cast_word_at(struct cast *c, weft_gaddr word); /* the value of a word in this node's own pool */
struct cast_block *cast_slot(struct cast *c, uint64_t number);
bool cast_arrived(struct cast *c, uint64_t round, uint64_t number); /* whether the block has arrived in its slot at this node */
void cast_wait_block(struct cast *c, uint64_t round, uint64_t number, int64_t ns);
/* Called on the source. Marks the block as present in its slot. */
void cast_fill(struct cast *c, uint64_t round, uint64_t number);
/* Start to send the blocks of a round to node `to`: each block when it has arrived here, and the node has a free slot. All blocks of the
 * round before must have been sent. Returns 0, or a negative errno with base_error(). */
int cast_relay_start(struct cast_relay *r, struct cast *c, uint32_t to, uint32_t round);
/* End the thread, and wait for its pending puts. May be called more than once. */
void cast_relay_stop(struct cast_relay *r);
bool cast_relay_has_next(const struct cast_relay *r);
/* Whether the slot of block `number` may be reused: the block was sent to the next node, or the next node is gone. */
bool cast_relay_done(struct cast_relay *r, uint64_t number);
void cast_relay_test(struct cast_relay *r); /* test all puts that are under way; if one has failed, set r->broken */
void cast_relay_wait(struct cast_relay *r, uint64_t number, int64_t ns);
/* Tell node `to`, the node before this one in the chain, that one more slot of this node is free. Sets c->lost on failure. */
void cast_give_credit(struct cast *c, uint32_t to, uint64_t round);

/* --- ahead.c --- */
struct cast_ahead {
    struct cast *c;
    pthread_t thread;
    bool running;
    pthread_mutex_t lock; /* protects the four fields below */
    pthread_cond_t asked;
    uint64_t round, number; /* the block that was asked for last */
    bool wanted, stop;
    _Atomic uint64_t right; /* the last block whose checksums are all right */
};
void cast_ahead_start(struct cast_ahead *a, struct cast *c); /* if the thread cannot be started, blocks are not verified ahead */
void cast_ahead_stop(struct cast_ahead *a);
void cast_ahead_ask(struct cast_ahead *a, uint64_t round, uint64_t number);
bool cast_ahead_is_right(const struct cast_ahead *a, uint64_t round, uint64_t number);

/* --- order.c --- */
void cast_order_tell(struct cast *c); /* called on a target: sends the source the kind of link that this target has to each other node */
/* Sort `chain` so that each node is cheap to reach from the node before it; the first node is reached from `from`. cost[i][j]: the cost of
 * the link from node i to node j (order.c). cost[i] is NULL if the costs of node i are not known. */
void cast_order(const uint8_t *const *cost, uint32_t from, uint32_t *chain, uint32_t count);
const char *cast_order_link(uint32_t cost); /* the kind of link that has this cost, for messages */

/* --- walk.c --- */
/* Make the list of all files of the sources. Prints a message for each file that cannot be sent, and counts these files in `*failed`. */
int cast_walk(struct cast *c, uint64_t *failed);
/* Open a file of the list for reading. Returns the descriptor, or a negative errno without base_fail(). */
int cast_walk_open(struct cast *c, uint32_t index);
/* The path of a file on this host, the source. */
const char *cast_walk_path(const struct cast *c, uint32_t index, char *out, size_t len);
void cast_walk_times(struct cast_line *n, const struct stat *st);
/* Whether an entry matches --exclude. `path` is relative to DEST. Targets also use this function, for --delete. */
bool cast_excluded(const struct cast_config *config, const char *path, const char *name, bool folder);

/* --- source.c --- */
int cast_source_open(struct cast *c);
void cast_source_close(struct cast *c);
void cast_source_run(struct cast *c); /* runs until all targets have all files, or have failed */
void cast_source_word(struct cast *c, uint32_t from, const struct cast_word *w, const void *payload, size_t bytes);

/* --- part.c --- */
#define CAST_PART_NAME 48u
/* The name of the temporary file for `name`, in the same folder. */
void cast_disk_part(const char *name, char out[CAST_PART_NAME]);
/* Open and lock the temporary file of `name` in folder `at`. If there is no usable file, creates one and sets `*new`. Returns the
 * descriptor, or a negative errno without an error text: -EBUSY if another cast is writing the file. */
int cast_part_open(int at, const char *name, bool *new);
bool cast_part_is(int at, const char *part, int fd); /* whether the name `part` still leads to the open file `fd` */
bool cast_part_is_live(int at, const char *part);    /* whether a cast is writing this temporary file now */

/* --- disk.c: a target's files --- */
enum cast_file_state { CAST_OTHER, CAST_RIGHT, CAST_COMPARE, CAST_WANTED, CAST_GIVEN_UP };
struct cast_file {
    uint64_t have, verified, counted; /* counted: bytes that cast_state.partial includes for this file */
    uint32_t state; /* enum cast_file_state. CAST_COMPARE: the file on the disk may be right; the source's checksums will tell */
};
#define CAST_NAMING 512u
struct cast_disk {
    struct cast *c;
    int root;          /* the folder DEST or, when `alone` is set, DEST's parent; -1: the folder does not exist (dry run) */
    const char *alone; /* the last component of DEST, if the only source is a file and DEST names its copy; otherwise NULL */
    char dest[4096];
    struct cast_file *file; /* [list.count] */
    uint64_t wanted;        /* number of files that are needed or may be needed */
    int folder;             /* descriptor of the folder that was opened last, which is entry folder_index; -1: no folder is open */
    uint32_t folder_index;
    uint32_t open_index;
    int open;      /* descriptor of the open file; -1: no file is open */
    bool open_cut; /* the file ends after its right bytes, because it is new or was truncated */
    uint64_t at;
    uint64_t written; /* offset at which the last write ended; 0: nothing was written since the file was opened */
    /* Complete files that will be renamed together to their final names. */
    struct {
        uint32_t index;
        int fd;
    } naming[CAST_NAMING];
    uint32_t naming_count, naming_max; /* naming_max: maximum number of such files, because the number of open files is limited */
    uint64_t naming_bytes;
    uint64_t flushed; /* writeback was started for the open file's pages before this offset */
    uint8_t *piece;   /* buffer for the bytes of an existing file that are compared */
    bool verified;    /* the checksums of the current block are known to be right */
    bool verifying;   /* the second comparison (--verify) has begun */
    bool made;        /* this cast has made DEST */
    bool renamed;     /* files were renamed, but the new names may not be on the disk yet */
    bool failed;      /* DEST cannot be written any more */
    bool again;       /* this target has wrong bytes of a followed file, so a round must begin before the file is complete */
};
/* dest.c. Open DEST; or DEST's parent, if DEST is the name of the only file. Returns 0, or a negative errno without base_fail(). If the
 * function sets d->failed, it has printed the reason. */
int cast_dest_open(struct cast_disk *d);
int cast_disk_open(struct cast_disk *d, struct cast *c);
void cast_disk_close(struct cast_disk *d);
/* Called with the complete list: make the folders, and determine which files are needed. Returns 0, or a negative errno when nothing can be
 * written. */
int cast_disk_compare(struct cast_disk *d);
void cast_disk_verify(struct cast_disk *d); /* mark all right files for another comparison */
/* Handle a record about a file. `payload`: the bytes of a CAST_DATA record. */
void cast_disk_record(struct cast_disk *d, const struct cast_record *r, const uint8_t *payload);
void cast_disk_settle(struct cast_disk *d); /* at the end of a round: rename complete files to their final names, and close the open file */
/* Returns the descriptor of the folder that an entry lies in; the caller must not close it. Returns -1, after printing the reason, if the
 * folder could not be opened. */
int cast_disk_folder(struct cast_disk *d, uint32_t index);
void cast_disk_give_up(struct cast_disk *d, uint32_t index, int error, const char *what);
/* Whether a device, a socket or a pipe has this entry's name. If so, gives the entry up, because cast never replaces such files. */
bool cast_disk_refuses(struct cast_disk *d, uint32_t index, const struct stat *there);
/* The name of an entry in its folder, or the name that DEST gives it. */
const char *cast_disk_name(const struct cast_disk *d, uint32_t index);

/* --- finish.c --- */
/* Called after all files are complete. Makes the links, sets the modes and times of folders, and deletes files for --delete.
 * `sources_failed`: some sources could not be read, so nothing is deleted. */
void cast_finish(struct cast_disk *d, bool sources_failed);

/* --- target.c --- */
int cast_target_run(struct cast *c);

/* --- show.c --- */
int cast_show_open(struct cast *c, bool progress, bool (*printed)(void));
void cast_show_close(struct cast *c);
void cast_show_word(struct cast *c, uint32_t from, const struct cast_word *w, const void *payload, size_t bytes);
int cast_show_run(struct cast *c); /* returns the exit status when the source has ended */

/* --- node.c --- */
struct cast_options {
    const char *sub; /* the command that the user has given, "cast" or "cp": messages begin with it */
    struct cast_config config;
    int (*stopped)(void); /* whether a signal was received */
    bool progress;        /* node 0: show progress, on a terminal */
    /* node 0: whether the launcher has printed a message since the last call */
    bool (*printed)(void);
};
/* Run node 0; cast_serve() runs any other node. Returns the exit status. */
int cast_lead(const struct cast_options *o);
int cast_serve(const char *sub, int (*stopped)(void));

#endif
