/* SPDX-License-Identifier: MIT
 *
 * What the files of this room share. Each calls only those before it:
 *
 *   scratch.c       unlinked files for what does not fit in memory
 *   cut.c           inputs, and where their pieces end
 *   mapped.c        a piece of a file as memory
 *   spawn.c         the start of one command
 *   order.c         what the owner tells nodes that are apart, as bytes (order.h)
 *   progress_bar.c  the bar
 *   report.c        what is said on stderr, and the summary
 *   emit.c          the output
 *   stream.c        inputs that can only be read from front to back
 *   tally.c         what a node that is apart has done, told to the owner
 *   capture.c       the output of one piece
 *   carry.c         bytes that only another node can read
 *   command.c       one command on one piece
 *   worker.c        the slots of a node
 *   nodes.c         the board, signals, the end of all
 *   forks.c         nodes on this machine
 *   guardian.c      who ends commands when a node that is apart has ended
 *   apart.c         nodes on hosts of their own, the owner's side
 *   window.c        the pieces in work (owner.h)
 *   home.c          outputs from nodes that are apart (owner.h)
 *   owner.c         the owner's loop
 *   run.c           a job, from its options to its exit status (map.h)
 *   serve.c         a node that is apart (map.h)
 */
#ifndef WEFT_MAP_JOB_H
#define WEFT_MAP_JOB_H

#include <pthread.h>
#include <signal.h>
#include <sys/types.h>

#include "base/process.h"
#include "map/map.h"
#include "kernel/kernel.h"
#include "weft/fabric.h"
#include "weft/node.h"
#include "weft/pool.h"
#include "weft/queue.h"

#define MAP_CHUNK_BYTES     (256u << 10)        /* output is captured in chunks of this size */
#define MAP_INLINE_BYTES    (64u << 10)         /* the last chunk travels inside the outcome up to this size */
#define MAP_BRING_DEPTH     4u                  /* chunks of a piece that are on their way at once */
#define MAP_HOME_BYTES      (1u << 20)          /* of the owner's pool, for outputs that come through its spill file (home.c) */
#define MAP_STEP_BYTES      (64u << 10)         /* looking for the end of a piece */
#define MAP_LENGTH_MAX      (UINT64_C(1) << 48) /* of a piece, and of its output: nobody has more, and sums do not wrap */
#define MAP_ERRNO_MAX       4096                /* beyond all of them */
#define MAP_PIPE_BYTES      (1 << 20)
#define MAP_STDERR_BYTES    (64u << 10) /* kept of a command's stderr: the first half and the last */
#define MAP_WINDOW          2048u       /* pieces between the first one not printed and the last one submitted */
#define MAP_POOL_MIN        (UINT64_C(4) << 20)
#define MAP_HANDLER_RELEASE 1u /* message from the owner: it is done with these gaddrs */
#define MAP_HANDLER_ORDER   2u /* from the owner: where the order is */
#define MAP_HANDLER_ASK     3u /* struct map_ask */
#define MAP_HANDLER_PRINTS  4u /* from the owner: whether it is printing, as on the board */

/* --- inputs and pieces (cut.c) --- */
struct map_input {
    const char *name;
    int fd;               /* -1: opened when it is needed (map_input_fd()) */
    bool stream;          /* can only be read from front to back */
    uint64_t start, size; /* bytes [start, size) are the input; a stream has neither */
    uint64_t device, inode;
};
#define MAP_INPUTS_OPEN 256u /* at most so many, the first ones, stay open for the whole job; any number of others does not */

/* The one input that is open here for now: of many small ones each is needed once. */
struct map_held {
    uint32_t input;
    int fd; /* -1: none */
};

enum map_place { MAP_IN_FILE, MAP_IN_POOL, MAP_IN_SPOOL };

struct map_piece {
    uint64_t number; /* from 0 */
    uint32_t input;
    enum map_place place;
    uint64_t offset, length; /* in the input */
    uint64_t at;             /* file: where the input starts in it; pool: the gaddr; spool: the offset there */
};

struct map_job;

int map_inputs_open(struct map_job *job);
void map_inputs_close(struct map_job *job);
/* A descriptor of an input; it is `held`'s or the job's, and good until the next call. */
int map_input_fd(const struct map_job *job, uint32_t input, struct map_held *held);
void map_held_close(struct map_held *held);
/* Where the piece that starts at `start` ends. */
int map_cut_file(const struct map_job *job, const struct map_input *in, int fd, uint64_t start, uint64_t *end);
/* The end (behind the separator) of the first separator in bytes [0, len) that begins at `nominal` or later, looking
 * from `*scan` on; 0 when there is none, `*scan` is then where to look next time. So GNU parallel cuts, too. */
size_t map_cut_find(const struct map_job *job, const uint8_t *bytes, size_t len, uint64_t nominal, size_t *scan);

/* --- scratch.c: unlinked files for what does not fit in memory --- */
struct map_scratch {
    int fd; /* -1: could not be made; `error` says why. Shared by all nodes, unless they are apart */
    int error;
    char directory[256];
};
void map_scratch_open(struct map_scratch *s);
void map_scratch_close(struct map_scratch *s);
int map_scratch_write(const struct map_scratch *s, uint64_t offset, const void *bytes, size_t len);
int map_scratch_read(const struct map_scratch *s, uint64_t offset, void *bytes, size_t len);
int map_read_at(int fd, uint64_t offset, void *bytes, size_t len); /* all of it, without a sentence; -ENODATA: it ends before */
void map_scratch_drop(const struct map_scratch *s, uint64_t offset, uint64_t len); /* gives the space back */
#define MAP_SCRATCH_ALIGN 4096u /* what is dropped must start and end on a block of the file system */

/* --- the board (nodes.c): memory that all nodes of the job share, for what must be seen of a node that is dead. A node
 * that is apart from the owner shares one with its guardian only, with its own lines --- */
struct map_line {                                    /* one a slot; written by the slot only */
    _Alignas(BASE_CACHE_LINE) _Atomic int32_t group; /* process group of the command that runs; 0: none */
    _Atomic uint32_t busy;
    _Atomic uint64_t pieces, busy_ns, command_ns;
};
struct map_board {
    _Atomic uint32_t ending;                                /* no command may start any more */
    _Atomic uint32_t stopped;                               /* the job is stopped (Ctrl-Z), and with it every command */
    _Atomic int64_t stopped_since, stopped_ns;              /* and how long it was in all; time-outs do not count it */
    _Atomic uint32_t printing;                              /* the owner is writing output, and giving memory back */
    _Alignas(BASE_CACHE_LINE) _Atomic uint64_t spill_bytes; /* handed out of the spill file */
    _Atomic int32_t pids[MAP_NODES_MAX];                    /* of the nodes; 0: gone */
    _Atomic uint64_t given;          /* gaddr of [MAP_WINDOW] words at the owner: how often a piece was left to another node */
    char errors[MAP_NODES_MAX][256]; /* why a node could not start; read after its end */
    struct map_line lines[];         /* [nodes * slots] */
};
int map_board_create(struct map_job *job, size_t lines);
void map_board_destroy(struct map_job *job);
/* Signals that end everything, and other things that are set once; in the owner. */
void map_nodes_prepare_owner(struct map_job *job);
void map_nodes_forget(void); /* there is no job any more that a signal could end */
void map_on_signal(int sig, void (*handler)(int));
/* At the end of such a handler: the signal goes to whoever had it before; the fabric, that gives its devices back then, or
 * the default. */
void map_signal_pass(int sig);
void map_nodes_stop_with(struct map_job *job); /* Ctrl-Z stops commands, too, and what continues us continues them */
/* weft_open() with what each node needs, and the queue. `on_member` is told of nodes that have gone; its argument is the job. */
int map_node_open(struct map_job *job, const weft_config *config, weft_member_fn on_member);
int map_queue_open(struct map_job *job);
void map_line_kill(struct map_line *line); /* the command that runs there, with what it has started */
void map_nodes_kill_groups(struct map_job *job, uint32_t node);
/* Kill every command and node, remove what is half written. Async-signal-safe. Returns. */
void map_end_all(struct map_job *job);

/* --- forks.c: nodes on this machine, which are forks of the owner; all called by the owner --- */
int map_forks_start(struct map_job *job);  /* start them, and join them */
void map_forks_check(struct map_job *job); /* has one ended? Its commands are killed; says so on stderr unless the job is over */
void map_forks_wait(struct map_job *job);  /* at the end: they leave by themselves */

/* --- guardian.c: who ends what a node's commands have started, when a node that is apart has ended --- */
/* Before anything is open that others must see closed when this process has ended. `lines`: of the board. */
int map_guardian_start(struct map_job *job, size_t lines);
void map_guardian_end(struct map_job *job);

/* --- tally.c: what a node that is apart has done --- */
struct map_tally { /* in the owner's pool, written by the node */
    uint64_t busy, pieces, busy_ns, command_ns, spilled;
};
struct map_telling { /* of it, by the node */
    pthread_mutex_t lock;
    struct map_tally tally;
    weft_op op;
    bool sent;
};
void map_tally_tell(struct map_job *job); /* to the owner; in a node that is not apart nothing */

/* --- apart.c: nodes on hosts of their own, which the launcher has started; all called by the owner --- */
/* Is an answer of the node outstanding that may be lost? `cut`: no way leads to it now. */
struct map_owner;
typedef bool (*map_unsure_fn)(struct map_owner *o, uint32_t node, bool cut);
int map_apart_start(struct map_job *job);                        /* join them */
int map_apart_order(struct map_job *job);                        /* tell them what to do */
void map_apart_check(struct map_job *job, map_unsure_fn unsure); /* what they have done, and whether one has died */
void map_apart_printing(struct map_job *job, bool printing);     /* told to all */
void map_apart_wait(struct map_job *job, map_unsure_fn unsure);  /* at the end */
void map_apart_free(struct map_job *job);

/* --- carry.c: bytes that only another node can read: files, and what has gone through its temporary ones --- */
enum map_ask_what { MAP_ASK_FILE, MAP_ASK_SPOOL, MAP_ASK_SPILL, MAP_ASK_DROP };
struct map_ask { /* put `len` bytes to `to`, then add to `word`: 1, and above it the errno in case */
    uint32_t what, input;
    uint64_t offset, len; /* at most MAP_CHUNK_BYTES; of MAP_ASK_DROP any: the spill is done with these */
    weft_gaddr to, word;  /* at the asking node */
};
int map_carry_start(struct map_job *job); /* answers the others, in a thread of its own */
void map_carry_stop(struct map_job *job);
/* `word` is a word of our own pool; its answer is awaited by looking at it, or with map_asked(). */
int map_ask(struct map_job *job, uint32_t node, const struct map_ask *ask);
int map_answer(uint64_t word); /* what it says, without a sentence; -EINPROGRESS: nothing yet; -EPROTO: no answer */
int map_asked(struct map_job *job, uint32_t node, weft_gaddr word);
struct map_span;
struct map_slot;
/* A piece that is elsewhere: into memory of this node, or its spill file. */
int map_bring(struct map_slot *slot, const struct map_piece *piece, struct map_span *in);
void map_brought_drop(struct map_slot *slot); /* its place in the spill file */
/* Pool memory of the slot for a piece, used again and again. False: it is too large. */
bool map_slot_buffer(struct map_slot *slot, uint64_t bytes);
/* A sign to the queue that the slot's piece is still being worked on, when it is time for one. */
void map_slot_renew(struct map_slot *slot, int64_t *next);

/* --- spawn.c: the start of one command --- */
struct map_command {
    char path[4096];   /* what is executed */
    char *const *argv; /* as given */
    bool placeholders; /* some argument has one */
};
int map_command_resolve(struct map_command *c, char *const *argv, bool literal);
void map_signals_save(void); /* the dispositions that commands are to have; before any is changed */
int map_environment_save(bool apart);
/* Start it with these descriptors as 0, 1, 2, in a process group of its own, whose number is on the board before it runs; dies with this
 * thread. 0, or a negative errno without a sentence. */
int map_spawn(const char *path, char *const *argv, const int fds[3], _Atomic int32_t *group, pid_t *pid);

/* --- capture.c: the output of one piece, and what becomes of it --- */
enum map_kind {
    MAP_OK,
    MAP_EXITED,    /* code: its exit status */
    MAP_SIGNALLED, /* code: the signal */
    MAP_TIMED_OUT,
    MAP_NO_START,  /* code: errno; another try is pointless */
    MAP_NO_INPUT,  /* code: errno; the sentence is in the error text. So for the two below */
    MAP_NO_SPACE,  /* the spill; the job ends */
    MAP_NO_RESULT, /* the kernel failed */
    MAP_DEADLY,    /* the nodes that ran it died */
};

struct map_part {
    uint64_t at;  /* gaddr, or offset in the spill file */
    uint64_t len; /* the highest bit: it is in the spill file */
};
#define MAP_SPILLED (UINT64_C(1) << 63)

/* What comes back of a piece; lies in the pool of the node that ran it, behind it parts[], the error text, and the
 * last bytes of the output. */
struct map_outcome {
    uint32_t kind;
    int32_t code;
    uint32_t parts, error_len, tail_len;
    uint32_t zero;
    uint64_t output_len;
};

struct map_capture {
    struct map_job *job;
    struct map_part *parts;
    uint32_t count, room;
    uint32_t given; /* of the parts: those of the last outcome */
    uint8_t *chunk; /* being filled; NULL: none */
    size_t used;
    weft_gaddr at;  /* of the chunk; WEFT_NULL: it is `spare` */
    uint8_t *spare; /* private, for when the pool is full */
    uint64_t total;
    uint8_t *outcome; /* built here */
    size_t outcome_room;
};
/* Where the next output may be written, at least one byte. With `may_wait`: -EAGAIN (without a sentence) while the
 * pool is full only because the output is written more slowly than it is made; memory will come free by itself. */
int map_capture_room(struct map_capture *c, uint8_t **at, size_t *room, bool may_wait);
void map_capture_commit(struct map_capture *c, size_t len);
int map_capture_write(void *capture, const void *bytes, size_t len); /* for struct weft_out */
void map_capture_drop(struct map_capture *c);
/* The end of a piece: fills in where the outcome lies. What was captured goes with MAP_OK and is dropped else. */
int map_capture_finish(struct map_capture *c, enum map_kind kind, int code, const char *error, size_t error_len, weft_result *result);
/* Nobody wants that outcome: all of it is dropped. Only the last one, before anything else is captured. */
void map_capture_refused(struct map_capture *c, const weft_result *result);
void map_capture_close(struct map_capture *c);
#define MAP_STATUS_SPILLED 1                                /* weft_result.status: the outcome itself is in the spill file */
#define MAP_STATUS_HOME    2                                /* never sent: the owner has brought the outcome into its own memory */
uint64_t map_spill_take(struct map_job *job, uint64_t len); /* room in the spill file */

/* --- command.c: one command on one piece --- */
struct map_errors { /* a command's stderr: its first and its last bytes */
    char *bytes;    /* [MAP_STDERR_BYTES] */
    uint64_t total;
};
struct map_span { /* the piece's bytes: memory, or a range of a file */
    const uint8_t *memory;
    int fd;
    uint64_t offset, length;
};
struct map_slot;
void map_command_run(struct map_slot *slot, const char *path, char *const *argv, const struct map_span *in, enum map_kind *kind, int *code);
/* The kept text in one piece; `text` has room for MAP_STDERR_BYTES + 64. */
size_t map_errors_text(const struct map_errors *e, char *text);

/* --- mapped.c: a piece of a file as memory, which survives that the file is cut short. One at a time in a thread --- */
struct map_mapped {
    const uint8_t *bytes; /* of the piece */
    void *start;          /* of the pages */
    size_t len, page;
    volatile sig_atomic_t cut;
};
int map_mapped_open(struct map_mapped *m, int fd, uint64_t offset, uint64_t length);
bool map_mapped_close(struct map_mapped *m); /* true: the file was cut short, and what has been read of it is worth nothing */

/* --- worker.c --- */
struct map_slot {
    struct map_job *job;
    uint32_t index; /* in this node */
    struct map_line *line;
    struct map_capture capture;
    struct map_errors errors;
    char *text; /* [MAP_STDERR_BYTES + 64] */
    weft_lease *claim;
    bool lost;         /* the claim is no longer ours */
    bool script;       /* the command has no interpreter line: the shell runs it */
    char **argv;       /* with placeholders filled in */
    weft_gaddr buffer; /* the piece: for kernels, and from elsewhere */
    uint64_t buffer_bytes;
    weft_gaddr window, words;     /* for pieces from elsewhere: MAP_BRING_DEPTH chunks, and a word for each */
    uint64_t brought_at, brought; /* bytes in the spill file: a piece too large for memory */
    struct map_held held;         /* the input of the last piece */
    pthread_t thread;
};
int map_slots_start(struct map_job *job); /* the first of this node's; it starts the others as there are pieces for them */
void map_slots_join(struct map_job *job);

/* --- emit.c: the output --- */
struct map_emit {
    int fd;
    const char *name;     /* for messages */
    char *final_path;     /* NULL: written directly */
    char *temporary_path; /* NULL: it has no name yet */
    bool exists;          /* there was a file at final_path before */
    struct map_job *bar;  /* whose progress bar is on this very terminal; it ends with the first output */
    uint8_t *buffer;      /* small outputs are gathered */
    size_t used;
    uint64_t bytes;
};
int map_emit_open(struct map_emit *e, const char *path);
int map_emit_write(struct map_emit *e, const void *bytes, size_t len);
int map_emit_flush(struct map_emit *e);
int map_emit_close(struct map_emit *e); /* gives the file its name */
void map_emit_abandon(struct map_emit *e);

/* --- stream.c: what can only be read from front to back --- */
struct map_stream {
    const struct map_input *in;
    int fd;
    uint8_t *carry; /* read, but of the next piece */
    size_t carry_len;
    uint64_t offset; /* of the next piece */
    bool ended;
    uint64_t spool_end;
};
/* The next piece: 1, 0 at the end, or an error. Waits for memory. */
int map_stream_next(struct map_job *job, struct map_stream *s, struct map_piece *piece);
void map_stream_reset(struct map_stream *s, const struct map_input *in, int fd); /* before an input */
void map_stream_close(struct map_stream *s);

/* --- report.c, progress_bar.c --- */
struct map_counts { /* of the owner */
    uint64_t pieces, done, failed, retried;
    uint64_t bytes_in, bytes_done, bytes_total; /* total 0: not known */
    uint64_t spilled_apart;                     /* bytes that have gone through temporary files of nodes that are apart */
    uint32_t nodes_died;
    int64_t start_ns, open_ns, end_ns;
};
void map_say(struct map_job *job, const char *format, ...) BASE_PRINTF(2, 3); /* "weft map: ..." on stderr */
void map_report_failure(struct map_job *job, const struct map_piece *piece, const struct map_outcome *outcome, const char *error,
                        uint32_t attempts);
int map_report_stats(struct map_job *job);
void map_progress_show(struct map_job *job);
void map_progress_clear(struct map_job *job);

/* --- the job: in every node; what is marked is the owner's alone --- */
struct map_apart;
struct map_carry;
struct map_job {
    const struct map_options *options;
    uint32_t nodes, slots, rank;
    uint64_t pool_bytes;
    int64_t lease_ns, renew_ns; /* how long a claim holds without a sign of its node; how often that is given */
    struct map_input *inputs;
    uint32_t input_count;
    const uint8_t *separator;
    size_t separator_len;
    struct map_command command;
    const weft_kernel *kernel;
    const char *kernel_arg;
    struct map_scratch spill, spool;
    struct map_board *board;
    size_t board_bytes;
    bool apart;                  /* the nodes are no forks of the owner: they share nothing with it but the fabric */
    struct map_apart *with;      /* apart.c */
    struct following *following; /* serve.c */
    struct map_telling telling;
    weft_gaddr tallies; /* [MAP_NODES_MAX] of struct map_tally, the owner's */
    pid_t guardian;     /* 0: none */
    int guardian_fd;
    struct map_carry *carry; /* carry.c */
    char coord[64];
    pid_t owner_pid;

    weft_node *w;
    weft_queue *queue;
    struct map_slot *slot;     /* [slots] */
    pthread_mutex_t turn_lock; /* of these four */
    pthread_cond_t turn;       /* a slot no longer waits for the queue */
    bool waits;                /* one does, */
    uint32_t asleep;           /* and so many others are idle */
    uint32_t slots_started;

    /* The owner's. */
    struct map_owner *owner; /* owner.c */
    struct map_emit emit;
    struct map_counts counts;
    bool progress;
    _Atomic bool progress_shown; /* a signal handler asks, too */
    int64_t progress_ns;
    _Atomic bool over;    /* the nodes may go */
    pthread_mutex_t lock; /* of what the feeder and the main thread share, below */
    pthread_cond_t changed;
    uint64_t submitted, low;         /* pieces handed to the queue; the first one not dealt with */
    uint64_t input_live, spool_live; /* bytes of stream pieces in the pool; pieces in the spool */
    bool fed;                        /* nothing more will be submitted */
    _Atomic int feed_error;          /* with feed_text; written before */
    char feed_text[512];
};

/* --- run.c: the options' kernel. -EINVAL with a sentence --- */
int map_choose_kernel(struct map_job *job);

/* --- owner.c: the work of node 0, from the first node's start to the last one's end. The exit status, or a negative
 * errno with a sentence not yet said; then, and while job->over is not set, threads and nodes are still at work. --- */
int map_owner_run(struct map_job *job);
void map_owner_free(struct map_job *job);

/* What a slot needs of its node's pool. */
static inline uint64_t map_slot_memory(bool apart)
{
    return (2 + (apart ? MAP_BRING_DEPTH : 0)) * (uint64_t)MAP_CHUNK_BYTES;
}

/* A node that has neither the owner's files nor its board. */
static inline bool map_is_apart(const struct map_job *job)
{
    return job->apart && job->rank != 0;
}

static inline struct map_line *map_line(const struct map_job *job, uint32_t node, uint32_t slot)
{
    return &job->board->lines[(map_is_apart(job) ? 0 : node * job->slots) + slot];
}

/* Give a stream piece's memory back. */
void map_piece_release(struct map_job *job, const struct map_piece *piece);

#endif
