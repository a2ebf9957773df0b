/* SPDX-License-Identifier: MIT
 *
 * cast: the engine of `weft cast` and `weft cp`; part of the command, not of the library. A cast is a cluster of its own, whose nodes the
 * launcher starts on the hosts of a standing cluster. Node 0 runs on the user's host and prints messages and progress. One node is the
 * source: it reads the files. All other nodes but node 0 are targets: they write the files below the destination, DEST. Files, lowest
 * first:
 *
 *   wire.c     the format of settings, blocks, records and messages, and the checks of what arrives
 *   list.c     the list of files, folders and links
 *   talk.c     sends messages to other nodes
 *   chain.c    puts blocks to the next node of the chain, in a thread of its own
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
 * A cast goes in rounds. In the first round the source sends the list; each target compares the list with its disk and answers which files
 * it needs. Then the source reads each file that any target needs, once, and sends the file's bytes down the chain in records, many to a
 * block. Every record has a checksum. A target gives a file its name when the whole file has arrived. If a target dies or a record is
 * damaged, the next round begins with the targets that are left: they answer what they still need, and the source sends only that. A cast
 * that was interrupted continues in the same way when the command is given again.
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

/* --- wire.c. Numbers are little-endian, as on all hosts of weft: weft_open() fails on others --- */

#define CAST_PIECE       (1u << 20)                 /* most bytes of a file in one record */
#define CAST_BLOCK       (CAST_PIECE + (64u << 10)) /* most bytes of a block */
#define CAST_SLOTS       8u                         /* blocks in the ring of a node */
#define CAST_ROUNDS      200u
#define CAST_ENTRIES_MAX (1u << 24)
#define CAST_CONFIG_MAX  (4u << 20)
#define CAST_NAME_MAX    255u
#define CAST_LINK_MAX    4095u
#define CAST_FOLLOW_MAX  86400u     /* seconds */
#define CAST_ROOT        UINT32_MAX /* as `parent` of an entry: the entry lies in DEST itself */

enum cast_flag {
    CAST_CHECKSUM = 0x1,
    CAST_DELETE = 0x2,
    CAST_DRY_RUN = 0x4,
    CAST_VERIFY = 0x8,
    CAST_JSON = 0x10,
    CAST_PROGRESS = 0x20,
    CAST_VERBOSE = 0x40,
    CAST_LEFT_OUT = 0x80, /* a host that the command should copy to is not among the nodes */
    CAST_FLAGS = 0xff
};

/* The settings, which node 0 sends to all nodes: struct cast_head, then zero-terminated strings. The strings are DEST; for each node the
 * name of its host in messages, and the rank of that host's node in the standing cluster; the patterns to exclude; the sources. */
struct cast_head {
    char magic[8];
    uint32_t flags, size, source; /* size: number of nodes; source: rank of the source */
    uint32_t excludes, sources;
    uint32_t follow;           /* a file is complete when it has not grown for so many seconds; 0: do not wait for files to grow */
    uint64_t bytes_per_second; /* 0: no limit */
};
struct cast_config {
    struct cast_head head;
    const char *dest;
    const char **hosts, **numbers, **excludes, **sources; /* lists in `memory` */
    void *memory;
};
/* Check settings that have arrived. The strings of `out` point into `data`. Returns 0, or a negative errno with base_error(): -EPROTO,
 * -ENOMEM. */
int cast_config_parse(struct cast_config *out, const void *data, size_t bytes);
/* Write settings as bytes to send. The caller frees `*data`. */
int cast_config_write(const struct cast_config *c, void **data, size_t *bytes);
void cast_config_free(struct cast_config *c);
/* whether the path ends with '/' (SRC/): then the content of the folder is sent, not the folder itself */
bool cast_is_content(const char *source);

struct cast_block {
    uint64_t magic, round, number; /* number of the block in its round, from 0 */
    uint32_t bytes, zero;          /* bytes: size of the records that follow */
    uint64_t hash;                 /* of the fields above */
};
enum cast_type {
    CAST_ENTRY = 1, /* An entry of the list. file: its index; payload: struct cast_line, its name, the target of a symbolic link */
    CAST_LIST_END,  /* file: number of entries; offset: the mode of DEST, if the target makes DEST */
    CAST_DATA,      /* bytes of a file from `offset` on; payload: those bytes */
    CAST_HOLE,      /* the `bytes` bytes from `offset` on are zero and need no space on the disk; no payload */
    CAST_CHECK,     /* the `bytes` bytes from `offset` on have this checksum; no payload */
    CAST_SIZE,      /* a followed file is complete; payload: struct cast_line with its final size, mode and time, without a name */
    CAST_FILE_END, /* offset: 0, or an errno with Linux's number: the source could not read the whole file, or the file changed meanwhile */
    CAST_ROUND_END,
};
struct cast_record {
    uint32_t type, file;
    uint64_t offset, bytes;
    /* XXH3 of 128 bits over the payload, with a seed made of the fields above. CAST_CHECK has the checksum that CAST_DATA would have */
    uint64_t hash[2];
};
struct cast_line { /* an entry of the list, as it is sent */
    uint32_t type, parent, mode, target;
    uint64_t size;
    int64_t seconds;
    uint32_t nanoseconds, name_bytes, link_bytes, zero;
};
void cast_hash(uint64_t out[2], uint32_t type, uint32_t file, uint64_t offset, const void *data, uint64_t bytes);
/* Set a record's checksum from its other fields and its payload. */
void cast_record_seal(struct cast_record *r, const void *payload);
void cast_block_seal(struct cast_block *b);
/* Whether the block at `b` has the expected round, number and checksum, and a size that fits into `bytes`. */
bool cast_block_fits(const struct cast_block *b, uint64_t round, uint64_t number, size_t bytes);
/* Read and check the next record. `records`, `bytes`: the records of a block; `*at`: offset of the record, advanced to the next one. The
 * checksums of CAST_CHECK and CAST_DATA are not checked here. *payload: the record's payload. Returns 1, 0 when there is no more record, or
 * -EPROTO without base_fail(). */
int cast_record_next(const uint8_t *records, uint32_t bytes, uint32_t *at, struct cast_record *out, const uint8_t **payload);

/* Messages: their header is a struct cast_word. */
enum cast_kind {
    /* from the source to targets */
    /* begin a round; payload: the ranks of the chain, uint32_t each. a: 1: the list is sent again; b: 1: verify all files */
    CAST_BEGIN = 1,
    CAST_QUIT,
    /* from targets to the source */
    CAST_NEED,  /* payload: struct cast_need[] */
    CAST_LINKS, /* payload: a byte for each node: how this target reaches it (order.c) */
    /* this target has reached a stage of the round. a: 0: it has begun, 1: it has compared the list, 2: it has written all. b: files it
     * needs */
    CAST_READY,
    CAST_BROKEN, /* a block was damaged, or could not be put to the next node: the source must begin another round */
    CAST_FAILED, /* this target can write no more files */
    /* from any node to node 0 */
    /* payload: a sentence for the user. a: 1: an error, 0: a note. b: if not 0, the first b bytes of the sentence are the path of something
     * that the source does not send */
    CAST_SAY,
    CAST_TOTAL, /* payload: struct cast_sums */
    /* the chain of this round; payload: a uint32_t for each target, in order: its rank, and in bits 24 to 31 how the node before it reaches
     * it */
    CAST_CHAIN,
    CAST_STATE, /* payload: struct cast_state */
    CAST_HERE,  /* the node answers: sent every second, also while the node's main thread waits for a disk */
    /* the source has ended. a: 0: without an error, 1: something could not be sent, or not to all targets, 2: by an error of the source; b:
     * how many sources and files it could not send */
    CAST_OVER,
};
struct cast_word {
    uint32_t kind, round;
    uint64_t a, b;
};
struct cast_need {
    uint32_t file, zero;
    uint64_t have, verified; /* bytes at the start of the file that the target has; the part of them that is known to be right */
};
struct cast_sums {
    uint64_t files, bytes; /* of the list */
    uint64_t special;      /* files and folders that have a set-user-ID or set-group-ID bit, which is not copied */
};
struct cast_state {
    uint64_t files, bytes;    /* complete and right */
    uint64_t partial;         /* bytes of files that are not complete: verified now, or there already */
    uint64_t sent, discarded; /* bytes received; the part of them that was damaged, or that the target had already */
    uint64_t failed, skipped; /* files */
    uint64_t unsent;          /* the part of `failed` that the source could not read */
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
    uint32_t mode;         /* mode of DEST if a target makes DEST: the mode of SRC when the content of SRC is sent */
};
/* Check an entry and add it: its name must be one path component, its parent an earlier folder. Returns 0, or a negative errno with
 * base_error(). */
int cast_list_add(struct cast_list *l, const struct cast_line *line, const char *name, const char *link);
/* Add the entry that a CAST_ENTRY record carries. Returns as cast_list_add(). */
int cast_list_take(struct cast_list *l, const struct cast_record *r, const uint8_t *payload);
/* Set the final size, mode and time of a followed file from a CAST_SIZE record. Returns as cast_list_add(). */
int cast_list_resize(struct cast_list *l, const struct cast_record *r, const uint8_t *payload);
/* Whether this is the name of an unfinished file (cast_disk_part()). Such files are not copied. */
bool cast_is_part(const char *name, size_t bytes);
void cast_list_free(struct cast_list *l);
/* Write the path of an entry below DEST to `out`, for messages; it is cut off at `len`. Returns `out`. */
const char *cast_list_path(const struct cast_list *l, uint32_t index, char *out, size_t len);

/* --- one node --- */
struct cast {
    weft_node *w;
    uint32_t rank;
    struct cast_config config;
    void *config_data; /* memory of the settings' strings */
    /* addresses in each node's pool: the ring, CAST_SLOTS * CAST_BLOCK bytes; CAST_ROUNDS * CAST_SLOTS words; CAST_ROUNDS words */
    weft_gaddr *rings, *filled, *credits;
    struct cast_list list;
    /* State that message handlers set; protected by `lock`. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t wanted_round, chain_count; /* targets: the round that the source began last, and its chain */
    uint32_t chain[WEFT_MAX_NODES];
    uint32_t send_list, verify;
    _Atomic bool quit;
    _Atomic bool lost; /* data sent without a weft_op may be lost, because for a time there was no route to a node (tb) */
    /* Message handlers, which run in another thread, may read these at any time. */
    struct cast_source *_Atomic source; /* NULL except on the source */
    struct cast_show *_Atomic show;     /* NULL except on node 0 */
    struct cast_state state;            /* of this node, if it is a target */
    int64_t told_ns;
    const char *sub; /* struct cast_options */
    int (*stopped)(void);
};

/* The most bytes that a file may have: its size in the list; for a followed file, the limit of all files. */
uint64_t cast_size_most(const struct cast *c, uint32_t file);

/* --- talk.c --- */
#define CAST_SOURCE_HANDLER 1u
#define CAST_TARGET_HANDLER 2u
#define CAST_SHOW_HANDLER   3u
uint32_t cast_handler_of(enum cast_kind kind);
bool cast_is_target(const struct cast *c, uint32_t rank);
/* Send a message. All kinds except CAST_QUIT, CAST_SAY, CAST_TOTAL, CAST_CHAIN, CAST_STATE and CAST_HERE are repeated until they have
 * arrived, the receiver is gone, or the cast ends; they may arrive twice. */
void cast_send(struct cast *c, uint32_t to, enum cast_kind kind, uint32_t round, uint64_t a, uint64_t b, const void *payload, size_t bytes);
/* Set c->lost if some of what was sent to node `to` without a weft_op is lost. */
void cast_look_lost(struct cast *c, uint32_t to);
void cast_say(struct cast *c, bool failure, const char *format, ...) BASE_PRINTF(3, 4);
/* The source: say that it does not send `path`, and why. */
#define CAST_UNSENT_MAX 3500u /* bytes of the path that are sent; the sentence must fit into one message */
void cast_say_unsent(struct cast *c, const char *path, const char *why);
/* Send the sums of the list to node 0. */
void cast_tell_sums(struct cast *c);
void cast_tell_state(struct cast *c, enum cast_doing doing, bool now);
/* A thread that tells node 0 every second that this node answers. The main thread cannot: it may wait for a disk. */
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
    uint32_t to; /* the next node; WEFT_MAX_NODES: there is none, and no thread */
    uint32_t round;
    pthread_t thread;
    bool running;
    weft_op op[CAST_SLOTS]; /* block K uses op[K % CAST_SLOTS]. It belongs to the thread until `put` exceeds K, then to the caller */
    bool busy[CAST_SLOTS];
    pthread_mutex_t lock;
    pthread_cond_t moved;        /* signalled when `put` changes */
    _Atomic uint64_t put, given; /* number of blocks that were put to the next node; number of blocks whose slots the caller has freed */
    _Atomic bool stop, broken;   /* broken: a block was damaged or could not be put, so the round must be given up */
};
uint64_t cast_word_at(struct cast *c, weft_gaddr word); /* the value of a word in this node's own pool */
struct cast_block *cast_slot(struct cast *c, uint64_t number);
bool cast_arrived(struct cast *c, uint64_t round, uint64_t number); /* whether the block has arrived in its slot at this node */
void cast_wait_block(struct cast *c, uint64_t round, uint64_t number, int64_t ns);
/* The source: mark the block as present in its slot. */
void cast_fill(struct cast *c, uint64_t round, uint64_t number);
/* Start to put the blocks of a round to node `to`, as they arrive and as that node has free slots. All blocks of the round before must have
 * been put. Returns 0, or a negative errno with base_error(). */
int cast_relay_start(struct cast_relay *r, struct cast *c, uint32_t to, uint32_t round);
/* End the thread, and wait for the puts under way. May be called again. */
void cast_relay_stop(struct cast_relay *r);
bool cast_relay_has_next(const struct cast_relay *r);
/* Whether block `number` has been put, so that its slot may be used again. True also when the next node is gone. */
bool cast_relay_done(struct cast_relay *r, uint64_t number);
void cast_relay_test(struct cast_relay *r); /* test all puts under way; a failure sets r->broken */
/* Wait until cast_relay_done(), for at most `ns`. */
void cast_relay_wait(struct cast_relay *r, uint64_t number, int64_t ns);
/* Tell the node before this one in the chain that one more of its slots is free. If that fails, c->lost is set. */
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
void cast_order_tell(struct cast *c); /* a target: tell the source how it reaches each node */
/* Order the nodes of `chain`, which begins behind node `from`. cost[i][j]: the cost of the way from node i to node j (order.c); cost[i] is
 * NULL if not known. */
void cast_order(const uint8_t *const *cost, uint32_t from, uint32_t *chain, uint32_t count);
const char *cast_order_link(uint32_t cost); /* the kind of link that has this cost, for messages */

/* --- walk.c --- */
/* Make the list of the sources. For each file that cannot be read or sent it prints a message and increases `*failed`. */
int cast_walk(struct cast *c, uint64_t *failed);
/* Open a file of the list for reading. Returns the descriptor, or a negative errno without base_fail(). */
int cast_walk_open(struct cast *c, uint32_t index);
/* The path of a file of the list on this host, the source. */
const char *cast_walk_path(const struct cast *c, uint32_t index, char *out, size_t len);
void cast_walk_times(struct cast_line *n, const struct stat *st);
/* Whether --exclude names an entry. The targets ask this too, for --delete. `path`: below DEST. */
bool cast_excluded(const struct cast_config *config, const char *path, const char *name, bool folder);

/* --- source.c --- */
int cast_source_open(struct cast *c);
void cast_source_close(struct cast *c);
void cast_source_run(struct cast *c); /* until all targets have all files, or have failed */
void cast_source_word(struct cast *c, uint32_t from, const struct cast_word *w, const void *payload, size_t bytes);

/* --- part.c --- */
#define CAST_PART_NAME 48u
/* The name of the temporary file that holds the bytes of `name` until they are complete; in the same folder. */
void cast_disk_part(const char *name, char out[CAST_PART_NAME]);
/* Open and lock the temporary file of `name` in folder `at`. If there is none that can be used, make one and set `*new`. Returns the
 * descriptor, or a negative errno without base_fail(): -EBUSY: another cast is writing the file. */
int cast_part_open(int at, const char *name, bool *new);
bool cast_part_is(int at, const char *part, int fd); /* whether the name `part` still leads to the open file `fd` */
bool cast_part_is_live(int at, const char *part);    /* whether a cast is writing this temporary file now */

/* --- disk.c: a target's files --- */
enum cast_file_state { CAST_OTHER, CAST_RIGHT, CAST_COMPARE, CAST_WANTED, CAST_GIVEN_UP };
struct cast_file {
    uint64_t have, verified, counted; /* counted: its part of cast_state.partial */
    uint32_t state; /* enum cast_file_state. CAST_COMPARE: the file on the disk may be right already; the source's checksums decide */
};
#define CAST_NAMING 512u
struct cast_disk {
    struct cast *c;
    int root;          /* the folder DEST, or DEST's parent when `alone` is set; -1: it does not exist (dry run) */
    const char *alone; /* the last component of DEST, when DEST is the name of the only source, a file; else NULL */
    char dest[4096];
    struct cast_file *file; /* [list.count] */
    uint64_t wanted;        /* files that are needed or may be needed */
    int folder;             /* descriptor of the folder that was opened last, entry folder_index; -1: none */
    uint32_t folder_index;
    /* The file that is being written. */
    uint32_t open_index;
    int open;      /* -1: none */
    bool open_cut; /* nothing follows the right bytes in the file: it is new, or was truncated there */
    uint64_t at;
    uint64_t written; /* where the last write ended, since the file was opened; 0: nothing was written */
    /* Files that are complete and get their names together. */
    struct {
        uint32_t index;
        int fd;
    } naming[CAST_NAMING];
    uint32_t naming_count, naming_max; /* naming_max: limit by the number of files that may be open */
    uint64_t naming_bytes;
    uint64_t flushed; /* pages of the open file before this offset were handed to the disk */
    uint8_t *piece;   /* buffer to compare with */
    bool verified;    /* the checksums of the records that are read next are known to be right */
    bool verifying;   /* the second comparison (--verify) has begun */
    bool made;        /* this cast has made DEST */
    bool renamed;     /* files have got their names, and the names may not be on the disk yet */
    bool failed;      /* DEST cannot be written any more */
    bool again;       /* the target's bytes of a followed file are wrong: the next round must begin before the file is complete */
};
/* dest.c. Open DEST; or DEST's parent, if DEST is the name of the only file. Returns 0, or a negative errno without base_fail(). If
 * d->failed is set, the reason has been printed. */
int cast_dest_open(struct cast_disk *d);
int cast_disk_open(struct cast_disk *d, struct cast *c);
void cast_disk_close(struct cast_disk *d);
/* The list is complete: make the folders, and find out which files are needed. Returns 0, or a negative errno when nothing can be
 * written. */
int cast_disk_compare(struct cast_disk *d);
void cast_disk_verify(struct cast_disk *d); /* mark all files that are right to be compared again */
/* Handle a record about a file. `payload`: the bytes of a CAST_DATA record. */
void cast_disk_record(struct cast_disk *d, const struct cast_record *r, const uint8_t *payload);
void cast_disk_settle(struct cast_disk *d); /* at the end of a round: give complete files their names; close the open file */
/* The descriptor of the folder that an entry lies in; the caller must not close it. -1: it could not be opened, and the reason was
 * printed. */
int cast_disk_folder(struct cast_disk *d, uint32_t index);
void cast_disk_give_up(struct cast_disk *d, uint32_t index, int error, const char *what);
/* True: what has the name of this entry is a device, a socket or a pipe, which is never replaced; the entry has been given up. */
bool cast_disk_refuses(struct cast_disk *d, uint32_t index, const struct stat *there);
/* The name of an entry in its folder, or the name that DEST gives it. */
const char *cast_disk_name(const struct cast_disk *d, uint32_t index);

/* --- finish.c --- */
/* Make the links and set the modes and times of folders, after all files are complete; then do --delete. `sources_failed`: some sources
 * could not be read, so nothing is deleted. */
void cast_finish(struct cast_disk *d, bool sources_failed);

/* --- target.c --- */
int cast_target_run(struct cast *c);

/* --- show.c --- */
int cast_show_open(struct cast *c, bool progress, bool (*printed)(void));
void cast_show_close(struct cast *c);
void cast_show_word(struct cast *c, uint32_t from, const struct cast_word *w, const void *payload, size_t bytes);
int cast_show_run(struct cast *c); /* runs until the source has ended; returns the exit status */

/* --- node.c --- */
struct cast_options {
    const char *sub; /* the command that the user has given, "cast" or "cp": messages begin with it */
    struct cast_config config;
    int (*stopped)(void); /* whether a signal was received */
    bool progress;        /* node 0: show progress, on a terminal */
    /* node 0: whether the launcher has printed a message since the last call */
    bool (*printed)(void);
};
/* Run node 0 of a cast until the end. Returns the exit status. */
int cast_lead(const struct cast_options *o);
/* Run any other node of a cast. */
int cast_serve(const char *sub, int (*stopped)(void));

#endif
