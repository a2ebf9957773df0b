/* SPDX-License-Identifier: MIT
 *
 * Shared by the files of this folder. Words that they use:
 *
 *   owner     node 0 of the job, which cuts the input and prints the output
 *   home      the node that has the file of an input. In home.c: the owner, to which outputs are brought
 *   apart     a node is apart if it is on another host than the owner, so that it shares no memory with the owner
 *   board     memory that the nodes of a host share: which commands run, whether the job is stopped or ends
 *   order     the description of the job, which the owner sends to nodes that are apart
 *   spool     an unlinked file with pieces of streams that do not fit in memory
 *   spill     an unlinked file with captured output that does not fit in memory
 *   outcome   the result of a piece: how the piece ended, where its output is, and an error text
 *   tally     the counts of the work that a node has done
 *
 * Each file calls only those listed before it:
 *
 *   scratch.c       unlinked files for what does not fit in memory
 *   cut.c           opens the inputs, and finds the ends of pieces
 *   mapped.c        maps a piece of a file into memory
 *   spawn.c         starts one command
 *   order.c         serializes the order (order.h)
 *   progress_bar.c  the progress bar
 *   report.c        messages on stderr, and the summary
 *   emit.c          the output
 *   stream.c        inputs that can only be read from front to back
 *   tally.c         reports the work of a node that is apart to the owner
 *   capture.c       the output of one piece
 *   carry.c         gives other nodes the bytes that only this node can read
 *   bring.c         fetches bytes that only another node can read
 *   cached.c        files that one node reads once for all, through its file service
 *   command.c       runs one command on one piece
 *   gpu.c           runs the kernel on the node's GPU
 *   worker.c        the slots of a node
 *   nodes.c         the board, signals, ending all nodes and commands
 *   forks.c         nodes on this machine
 *   guardian.c      a process that kills the commands of a node that is apart when that node has ended
 *   apart.c         the owner's side of nodes on other hosts
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
#include "weft/file.h"
#include "weft/node.h"
#include "weft/pool.h"
#include "weft/queue.h"

#define MAP_CHUNK_BYTES  (256u << 10)        /* output is captured in chunks of this size */
#define MAP_INLINE_BYTES (64u << 10)         /* a last chunk of at most this size is stored inside the outcome */
#define MAP_BRING_DEPTH  4u                  /* chunks of a piece that are fetched at the same time */
#define MAP_HOME_BYTES   (1u << 20)          /* part of the owner's pool, for outputs on their way to the spill file (home.c) */
#define MAP_STEP_BYTES   (64u << 10)         /* bytes read at a time while looking for the end of a piece */
#define MAP_LENGTH_MAX   (UINT64_C(1) << 48) /* the longest piece or output of a piece; sums of such lengths cannot overflow */
#define MAP_ERRNO_MAX    4096                /* every errno is smaller */
#define MAP_PIPE_BYTES   (1 << 20)
#define MAP_STDERR_BYTES (64u << 10) /* how many bytes of a command's stderr are kept: the first half and the last half */
/* Maximum number of pieces between the first one that is not printed and the last one that is submitted, these two included. */
#define MAP_WINDOW          2048u
#define MAP_POOL_MIN        (UINT64_C(4) << 20)
#define MAP_HANDLER_RELEASE 1u /* from the owner: free the buffers at these addresses */
#define MAP_HANDLER_ORDER   2u /* from the owner: address and length of the job's description (order.h) */
#define MAP_HANDLER_ASK     3u /* struct map_ask */
/* From the owner to nodes that are apart: whether the owner is printing (map_board.printing). */
#define MAP_HANDLER_PRINTS 4u

/* --- inputs and pieces (cut.c) --- */
struct map_input {
    const char *name;
    const char *path;     /* path of the file at its home: `name` without HOST: */
    uint32_t home;        /* the node that has the file; the job's owner, unless the file is on another host */
    bool cached;          /* nodes on other hosts read the file through the file service of its home */
    int fd;               /* -1: map_input_fd() opens it when it is needed */
    bool stream;          /* can only be read from front to back */
    uint64_t start, size; /* bytes [start, size) are the input; not used for a stream */
    uint64_t device, inode;
};
#define MAP_INPUTS_OPEN 256u /* this many inputs stay open for the whole job; further inputs are opened when they are needed */

/* The one input that a thread keeps open until it needs another input. */
struct map_held {
    uint32_t input;
    int fd; /* -1: none */
};

enum map_place {
    MAP_IN_FILE,
    MAP_IN_POOL,
    MAP_IN_SPOOL,
    MAP_IN_CACHE
}; /* MAP_IN_CACHE: in the cache of the file service at the input's home, or else in the file */

struct map_piece {
    uint64_t number; /* from 0 */
    uint32_t input;
    enum map_place place;
    uint64_t offset, length; /* in the input */
    /* Depends on the place of the piece. In a file: the offset at which the input starts. In the pool: the address of the piece. In the
     * spool: the offset of the piece. In the cache: the identity of the file (map_identity()). */
    uint64_t at;
};

struct map_job;

int map_inputs_open(struct map_job *job);
void map_inputs_close(struct map_job *job);
void map_inputs_count(struct map_job *job); /* sets counts.bytes_total, from the sizes that are known so far */
int map_input_look(struct map_input *in);   /* reads the identity of the file; called at the home */
/* A descriptor of an input. The job or `held` owns it; it is valid until the next call. */
int map_input_fd(const struct map_job *job, uint32_t input, struct map_held *held);
void map_held_close(struct map_held *held);
/* Find the end of the piece that starts at `start`. `read` is like pread(2), but after an error it returns a negative errno and sets an
 * error text. */
typedef int64_t (*map_read_fn)(void *arg, void *to, size_t len, uint64_t offset);
int map_cut_file(const struct map_job *job, const struct map_input *in, map_read_fn read, void *arg, uint64_t start, uint64_t *end);
int64_t map_read_fd(void *fd, void *to, size_t len, uint64_t offset); /* a map_read_fn; `fd` points to an int */
/* Finds the first separator in bytes [0, len) that begins at `nominal` or later, and returns the offset behind it. The search begins at
 * `*scan`. If there is no separator, returns 0, and sets `*scan` to where the next search begins. GNU parallel cuts in the same way. */
size_t map_cut_find(const struct map_job *job, const uint8_t *bytes, size_t len, uint64_t nominal, size_t *scan);

/* --- scratch.c: unlinked files for what does not fit in memory --- */
struct map_scratch {
    int fd; /* the scratch file, which all nodes of a host share; -1: it could not be created, for the reason in `error` */
    int error;
    char directory[256];
};
void map_scratch_open(struct map_scratch *s);
void map_scratch_close(struct map_scratch *s);
int map_scratch_write(const struct map_scratch *s, uint64_t offset, const void *bytes, size_t len);
int map_scratch_read(const struct map_scratch *s, uint64_t offset, void *bytes, size_t len);
/* Read exactly `len` bytes. Returns -ENODATA if the file is shorter. Sets no error text. */
int map_read_at(int fd, uint64_t offset, void *bytes, size_t len);
void map_scratch_drop(const struct map_scratch *s, uint64_t offset, uint64_t len); /* frees the space on the disk */
#define MAP_SCRATCH_ALIGN 4096u /* dropped ranges must start and end at a block of the file system */

/* --- the board (nodes.c): memory that all nodes of a host share. It must outlive a node. A node that is apart shares its board only with
 * its guardian --- */
enum map_gpu {
    MAP_GPU_FINE,    /* the GPU works, or the node uses none */
    MAP_GPU_FAILING, /* the GPU has failed, and the reason is being written */
    MAP_GPU_FAILED,  /* the reason is complete */
    MAP_GPU_SAID     /* the failure was reported */
};
struct map_line {                                    /* one line for each slot; written by that slot only */
    _Alignas(BASE_CACHE_LINE) _Atomic int32_t group; /* process group of the command that runs; 0: none */
    _Atomic uint32_t busy;
    _Atomic uint64_t pieces, busy_ns, command_ns;
};
struct map_board {
    _Atomic uint32_t ending;                   /* no command may start any more */
    _Atomic uint32_t stopped;                  /* the job is stopped (Ctrl-Z), and with it every command */
    _Atomic int64_t stopped_since, stopped_ns; /* stopped_since: when the job was stopped; stopped_ns: for how long in total. Time-outs do
                                                  not count this time */
    _Atomic uint32_t printing;                 /* the owner is writing output, so memory will be freed soon */
    _Alignas(BASE_CACHE_LINE) _Atomic uint64_t spill_bytes; /* bytes of the spill file that were handed out */
    _Atomic int32_t pids[MAP_NODES_MAX];                    /* process ids of the nodes; 0: the process has ended */
    _Atomic uint32_t gpu[MAP_NODES_MAX];                    /* enum map_gpu */
    _Atomic uint64_t given; /* address of an array at the owner, [MAP_WINDOW]: how many times each piece was passed on to another node */
    char errors[MAP_NODES_MAX][256]; /* why a node could not start, or why it does not use its GPU */
    struct map_line lines[];         /* [nodes * slots] */
};
int map_board_create(struct map_job *job, size_t lines);
void map_board_destroy(struct map_job *job);
/* Owner only: install the handlers of signals that end the job, and do other one-time setup. */
void map_nodes_prepare_owner(struct map_job *job);
void map_nodes_forget(void); /* the job is over: signal handlers must no longer use `job` */
void map_on_signal(int sig, void (*handler)(int));
/* Pass the signal on to the action that was installed before: the fabric's handler, which releases devices, or the default action. Each
 * handler of a signal that ends the job calls this last. */
void map_signal_pass(int sig);
void map_nodes_stop_with(struct map_job *job); /* make Ctrl-Z stop the commands, and SIGCONT continue them */
/* weft_open() with the settings of a map node; opens the queue, too. `on_member` is called with the job when a node has gone. */
int map_node_open(struct map_job *job, const weft_config *config, weft_member_fn on_member);
int map_queue_open(struct map_job *job);
void map_line_kill(struct map_line *line); /* kills the slot's command and all processes in its group */
void map_nodes_kill_groups(struct map_job *job, uint32_t node);
/* Kill every command and every other node, and remove unfinished output files. Async-signal-safe. */
void map_end_all(struct map_job *job);

/* --- forks.c: nodes on this machine, which are forks of the owner; all called by the owner --- */
int map_forks_start(struct map_job *job);  /* start the nodes, and join the cluster with them */
void map_forks_check(struct map_job *job); /* kill the commands of nodes that have ended, and report these nodes on stderr */
void map_forks_wait(struct map_job *job);  /* at the end of the job: wait for the nodes, which leave by themselves */

/* --- guardian.c: the process that kills the commands of a node on another host when the node has ended --- */
/* `lines`: number of lines on the board. guardian.c says when to call this. */
int map_guardian_start(struct map_job *job, size_t lines);
void map_guardian_end(struct map_job *job);

/* --- tally.c: what a node on another host has done --- */
struct map_tally { /* counts that the node writes, in the owner's pool */
    uint64_t busy, pieces, busy_ns, command_ns, spilled;
    uint64_t gpu_failed; /* 0 or 1 */
};
struct map_telling { /* the node's own counts, which it puts into the owner's pool */
    pthread_mutex_t lock;
    struct map_tally tally;
    weft_op op;
    bool sent;
};
void map_tally_tell(struct map_job *job); /* send the tally to the owner; does nothing in a node that is not apart */

/* --- apart.c: nodes on hosts of their own, which the launcher has started; all called by the owner --- */
/* Returns whether the owner waits for an answer of the node that may be lost. `cut`: the node has no route now. */
struct map_owner;
typedef bool (*map_unsure_fn)(struct map_owner *o, uint32_t node, bool cut);
int map_apart_start(struct map_job *job);                        /* join the cluster with the nodes */
int map_apart_order(struct map_job *job);                        /* send the order to the nodes */
void map_apart_check(struct map_job *job, map_unsure_fn unsure); /* collect the nodes' tallies, and handle deaths */
void map_apart_printing(struct map_job *job, bool printing);     /* tell all nodes whether the owner is printing */
void map_apart_wait(struct map_job *job, map_unsure_fn unsure);  /* at the end of the job: wait for the nodes */
void map_apart_free(struct map_job *job);

/* --- carry.c: bytes that only another node can read: input files, and its spool and spill files --- */
enum map_ask_what { MAP_ASK_FILE, MAP_ASK_SPOOL, MAP_ASK_SPILL, MAP_ASK_DROP };
/* Asks the carrier to put `len` bytes to `to`. Then the carrier adds 1 to `word`. After an error it adds 1 plus the errno shifted left by
 * 32 bits. */
struct map_ask {
    uint32_t what, input;
    uint64_t file; /* for MAP_ASK_FILE: the identity that the file must have (map_identity()); 0: the identity of the file that the home has
                      opened */
    uint64_t offset, len; /* at most MAP_ASK_BYTES, except for MAP_ASK_DROP, which frees this range of the spill file */
    weft_gaddr to, word;  /* at the asking node */
};
#define MAP_ASK_BYTES (1u << 20)
int map_carry_start(struct map_job *job); /* starts to answer other nodes' requests */
void map_carry_stop(struct map_job *job);

/* --- bring.c: asks another node for bytes that only that node can read, and fetches them --- */
/* Send a request. The answer arrives in `ask->word`, which is in this node's pool. Poll that word, or call map_asked(). */
int map_ask(struct map_job *job, uint32_t node, const struct map_ask *ask);
int map_answer(
    uint64_t word); /* decodes the answer in a word: -EINPROGRESS if there is none yet, -EPROTO if it is invalid; sets no error text */
struct map_slot;
/* Waits for the answer, as long as the node is alive. Meanwhile renews the claim of `slot` (map_slot_renew()); `slot` may be NULL. */
int map_asked(struct map_job *job, uint32_t node, weft_gaddr word, struct map_slot *slot, int64_t *next);
int map_ended(struct map_job *job, weft_op *op); /* waits for the end of an operation */
struct map_span;
/* Fetch a piece from another node, into this node's memory or its spill file. */
int map_bring(struct map_slot *slot, const struct map_piece *piece, struct map_span *in);
/* Finds memory for a piece that is fetched. Returns true if the whole piece fits at `*to`. Otherwise only MAP_BRING_DEPTH chunks fit there,
 * and each chunk then goes to the spill file. */
bool map_bring_room(struct map_slot *slot, const struct map_piece *piece, weft_gaddr *to);
void map_brought(struct map_slot *slot, uint64_t length, bool whole, weft_gaddr to,
                 struct map_span *in);        /* called when all bytes have arrived */
void map_brought_drop(struct map_slot *slot); /* frees the fetched piece's space in the spill file */
/* Make the slot's buffer in the pool at least `bytes` long. Returns false if there is no memory. */
bool map_slot_buffer(struct map_slot *slot, uint64_t bytes);
/* Renew the claim on the slot's piece if the time `*next` has been reached. */
void map_slot_renew(struct map_slot *slot, int64_t *next);

/* --- cached.c: inputs that their home reads once for all nodes --- */
/* A number that identifies the file with this device and inode. */
uint64_t map_identity(uint64_t device, uint64_t inode);
/* Call this before the node is opened: the node will offer the file service for the inputs of which it is the home. */
int map_homes_serve(const struct map_job *job);
int map_homes_offer(struct map_job *job); /* when the node is open and the inputs are known: offer these inputs */
/* Owner only: waits until other homes offer their inputs, and reads the size and identity of these inputs. */
int map_homes_open(struct map_job *job);
void map_homes_close(struct map_job *job); /* owner only */
/* For map_cut_file(): reads an input that another node has. `arg`: struct map_remote */
struct map_remote {
    struct map_job *job;
    const struct map_input *in;
    uint32_t input;
};
int64_t map_read_remote(void *arg, void *to, size_t len, uint64_t offset);
/* For the carriers: an input that is open at this node's own file service. */
struct map_shown {
    weft_file *f; /* NULL: none */
    uint32_t input;
    int64_t not_before; /* after an error of the service: do not use it before this time */
};
/* Finds the bytes of a request, which are part of an input of this node, in the cache of the file service. The bytes stay in the cache
 * until weft_file_unmap(). After an error, read the bytes from the file instead. */
int map_show(struct map_job *job, struct map_shown *shown, const struct map_ask *ask, weft_file_view *view);
void map_shown_close(struct map_shown *shown);
/* Like map_bring(), but fetches the piece from the home's cache by gets. A get fails if there is no route. */
int map_bring_cached(struct map_slot *slot, const struct map_piece *piece, struct map_span *in);

/* --- spawn.c: the start of one command --- */
struct map_command {
    char path[4096];   /* path of the program */
    char *const *argv; /* the command line, as the user gave it */
    bool placeholders; /* some argument contains a placeholder such as {file} */
};
int map_command_resolve(struct map_command *c, char *const *argv, bool literal);
void map_signals_save(void); /* saves the signal dispositions that commands will get; call it before changing any disposition */
int map_environment_save(bool apart);
/* Start a command with `fds` as descriptors 0, 1, 2, in a process group of its own. `*group` gets the group's number before the command
 * runs. The command dies with this thread. Returns a negative errno without an error text. */
int map_spawn(const char *path, char *const *argv, const int fds[3], _Atomic int32_t *group, pid_t *pid);

/* --- capture.c: the output of one piece, and its storage until it is printed --- */
enum map_kind {
    MAP_OK,
    MAP_EXITED,    /* code: the exit status of the command */
    MAP_SIGNALLED, /* code: the signal */
    MAP_TIMED_OUT,
    MAP_NO_START,  /* code: errno; no node can start the command */
    MAP_NO_INPUT,  /* code: errno. Like MAP_NO_SPACE and MAP_NO_RESULT, this kind comes with an error text */
    MAP_NO_SPACE,  /* no room in the spill file; the job ends */
    MAP_NO_RESULT, /* the kernel failed */
    MAP_DEADLY,    /* several nodes died while running the piece */
};

struct map_part {
    uint64_t at;  /* gaddr, or offset in the spill file */
    uint64_t len; /* the highest bit is set if the part is in the spill file */
};
#define MAP_SPILLED (UINT64_C(1) << 63)

/* The result of a piece, in the pool of the node that ran it. Behind this struct follow parts[], the error text, and the last bytes of the
 * output. */
struct map_outcome {
    uint32_t kind;
    int32_t code; /* if it is a signal or an errno: Linux's number */
    uint32_t parts, error_len, tail_len;
    uint32_t zero;
    uint64_t output_len;
};

int map_outcome_code(const struct map_outcome *oc); /* the code; if it is a signal or an errno, this system's number */

struct map_capture {
    struct map_job *job;
    struct map_part *parts;
    uint32_t count, room;
    uint32_t given; /* number of parts that belong to the last outcome */
    uint8_t *chunk; /* the chunk that is being filled; NULL: none */
    size_t used;
    weft_gaddr at;  /* address of the chunk; WEFT_NULL: the chunk is `spare` */
    uint8_t *spare; /* private memory, used while the pool is full */
    uint64_t total;
    uint8_t *outcome; /* the outcome, built here */
    size_t outcome_room;
};
/* Finds where the next output may be written: room for at least one byte. With `may_wait`, returns -EAGAIN without an error text while the
 * pool is full and the owner is printing, because memory is then freed soon. */
int map_capture_room(struct map_capture *c, uint8_t **at, size_t *room, bool may_wait);
void map_capture_commit(struct map_capture *c, size_t len);
int map_capture_write(void *capture, const void *bytes, size_t len); /* for struct weft_out */
void map_capture_drop(struct map_capture *c);
/* End a piece: store the outcome, and its address in `result`. Drops the captured output unless `kind` is MAP_OK. */
int map_capture_finish(struct map_capture *c, enum map_kind kind, int code, const char *error, size_t error_len, weft_result *result);
/* Call this if the queue has refused the completion, before anything else is captured. It frees the last outcome and its parts. */
void map_capture_refused(struct map_capture *c, const weft_result *result);
void map_capture_close(struct map_capture *c);
#define MAP_STATUS_SPILLED 1                                /* weft_result.status: the outcome itself is in the spill file */
#define MAP_STATUS_HOME    2                                /* used by the owner only: the outcome is in its private memory */
uint64_t map_spill_take(struct map_job *job, uint64_t len); /* takes `len` bytes of the spill file; returns their offset */

/* --- command.c: one command on one piece --- */
struct map_errors { /* the first and the last bytes of a command's stderr */
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
/* Writes the kept bytes as one text to `text`, which has room for MAP_STDERR_BYTES + 64. Returns the length. */
size_t map_errors_text(const struct map_errors *e, char *text);

/* --- mapped.c: a piece of a file as memory, safe against truncation of the file. Each thread may have one such mapping --- */
struct map_mapped {
    const uint8_t *bytes; /* the piece's bytes */
    void *start;          /* start of the mapped pages */
    size_t len, page;
    volatile sig_atomic_t cut;
};
int map_mapped_open(struct map_mapped *m, int fd, uint64_t offset, uint64_t length);
bool map_mapped_close(struct map_mapped *m); /* returns true if the file was truncated, so the mapped bytes may have been wrong */

struct gpu_spans;
struct gpu_pass;

/* --- worker.c --- */
struct map_slot {
    struct map_job *job;
    uint32_t index; /* number of the slot in this node */
    struct map_line *line;
    struct map_capture capture;
    struct map_errors errors;
    char *text; /* [MAP_STDERR_BYTES + 64] */
    weft_lease *claim;
    bool lost;         /* the slot has lost the claim, because the lease ended */
    bool script;       /* the command has no interpreter line: the shell runs it */
    char **argv;       /* the command's arguments with placeholders filled in */
    weft_gaddr buffer; /* pool memory for the bytes of a piece, for kernels and for pieces that other nodes have */
    uint64_t buffer_bytes;
    bool buffer_touched;          /* the host has given the memory of the buffer */
    weft_gaddr window, words;     /* for fetching pieces from other nodes: MAP_BRING_DEPTH chunks, and an answer word for each */
    uint64_t brought_at, brought; /* offset and length of a fetched piece in the spill file, if the piece is too large for memory */
    struct gpu_pass *pass;        /* buffers of the GPU; allocated with the first piece; NULL: none */
    weft_gaddr pass_memory;       /* pool memory for the GPU's buffers */
    bool entered;                 /* the GPU's buffers were requested already */
    struct map_held held;         /* the input of the last piece */
    pthread_t thread;
};
/* Open the node's GPU, if the job is for GPUs, and start the first slot of this node. Slots start further slots while there are pieces. */
int map_slots_start(struct map_job *job);
void map_slots_join(struct map_job *job);

/* --- gpu.c: kernels on the node's GPU --- */
/* Owner only, before it has nodes or threads: check whether the job can run on GPUs, and count the GPUs. Returns -EINVAL if the options are
 * wrong. */
int map_gpu_check(struct map_job *job);
int map_gpu_open(struct map_job *job); /* call it after the node has joined; does nothing if the job is not for GPUs */
void map_gpu_close(struct map_job *job);
/* Run the kernel on a piece that starts at `offset` of its input. Returns false if the piece must run on the processor instead. */
bool map_gpu_run(struct map_slot *slot, const struct map_span *in, uint64_t offset, enum map_kind *kind, int *code);
void map_gpu_leave(struct map_slot *slot); /* free the slot's buffers on the GPU */
void map_gpu_report(struct map_job *job);  /* owner only: print which nodes no longer use their GPU */

/* --- emit.c: the output --- */
struct map_emit {
    int fd;
    const char *name;     /* for error messages */
    char *final_path;     /* NULL: written directly */
    char *temporary_path; /* NULL: the file has no name yet */
    bool exists;          /* a file existed at final_path before the job */
    struct map_job *bar;  /* the job whose progress bar is on the same terminal; no bar is drawn after the first output */
    uint8_t *buffer;      /* small outputs are gathered here */
    size_t used;
    uint64_t bytes;
};
int map_emit_open(struct map_emit *e, const char *path);
int map_emit_write(struct map_emit *e, const void *bytes, size_t len);
int map_emit_flush(struct map_emit *e);
int map_emit_close(struct map_emit *e); /* gives the file its name */
void map_emit_abandon(struct map_emit *e);

/* --- stream.c: inputs that can only be read from front to back --- */
struct map_stream {
    const struct map_input *in;
    int fd;
    uint8_t *carry; /* bytes that were read but belong to the next piece */
    size_t carry_len;
    uint64_t offset; /* position of the next piece in the input */
    bool ended;
    uint64_t spool_end;
};
/* Read the next piece. Returns 1, 0 at the end of the input, or an error. Waits for memory. */
int map_stream_next(struct map_job *job, struct map_stream *s, struct map_piece *piece);
void map_stream_reset(struct map_stream *s, const struct map_input *in, int fd); /* call it before each input */
void map_stream_close(struct map_stream *s);

/* --- report.c, progress_bar.c --- */
struct map_counts { /* kept by the owner */
    uint64_t pieces, done, failed, retried;
    uint64_t bytes_in, bytes_done, bytes_total; /* total 0: not known */
    uint64_t spilled_apart;                     /* bytes that went through temporary files of nodes that are apart */
    uint32_t nodes_died;
    int64_t start_ns, open_ns, end_ns;
};
void map_say(struct map_job *job, const char *format, ...) BASE_PRINTF(2, 3); /* "weft map: ..." on stderr */
void map_report_failure(struct map_job *job, const struct map_piece *piece, const struct map_outcome *outcome, const char *error,
                        uint32_t attempts);
int map_report_stats(struct map_job *job);
void map_progress_show(struct map_job *job);
void map_progress_clear(struct map_job *job);

/* --- the job. Every node has one; only the owner uses the owner's part --- */
struct map_apart;
struct map_carry;
struct map_job {
    const struct map_options *options;
    uint32_t nodes, slots, rank;
    uint64_t pool_bytes;
    int64_t lease_ns, renew_ns; /* lease of a claim, and how often a slot renews it */
    struct map_input *inputs;
    uint32_t input_count;
    const uint8_t *separator;
    size_t separator_len;
    struct map_command command;
    const weft_kernel *kernel;
    const char *kernel_arg;
    uint32_t gpus;         /* number of GPUs of this machine that run kernels; 0: the job needs none */
    struct gpu_spans *gpu; /* the GPU of this node; NULL: none */
    struct map_scratch spill, spool;
    struct map_board *board;
    size_t board_bytes;
    bool apart;                  /* the nodes are not forks of the owner, and share no memory with it */
    struct map_apart *with;      /* apart.c */
    struct following *following; /* serve.c */
    struct map_telling telling;
    weft_gaddr tallies; /* [MAP_NODES_MAX] of struct map_tally, the owner's */
    pid_t guardian;     /* 0: none */
    int guardian_fd;
    struct map_carry *carry; /* carry.c */
    weft_gaddr look;         /* owner only: pool memory for map_read_remote(); WEFT_NULL: this node is the home of all inputs */
    char coord[64];
    pid_t owner_pid;

    weft_node *w;
    weft_queue *queue;
    struct map_slot *slot;     /* [slots] */
    pthread_mutex_t turn_lock; /* guards the fields up to `look_ns`; `misses` is read without it, too */
    pthread_cond_t turn;       /* signalled when the slot that waits for the queue stops waiting */
    bool waits;                /* a slot waits for the queue */
    uint32_t asleep;           /* number of other idle slots */
    uint32_t slots_started;
    _Atomic uint32_t stored; /* number of outcomes that this node's slots have stored; orders them before on_release() */
    _Atomic uint32_t misses; /* number of claims in a row that found only pieces that had failed on this node before */
    int64_t look_ns;         /* misses > 0: when the node may claim again */

    /* The owner's part. */
    struct map_owner *owner; /* owner.c */
    struct map_emit emit;
    struct map_counts counts;
    bool progress;
    _Atomic bool progress_shown; /* atomic: a signal handler reads it, too */
    int64_t progress_ns;
    _Atomic bool over;    /* the work is done: nodes may leave */
    pthread_mutex_t lock; /* guards the fields below, which the feeder and the main thread share */
    pthread_cond_t changed;
    uint64_t submitted, low; /* submitted: how many pieces were handed to the queue; low: number of the first piece that is not finished */
    uint64_t input_live, spool_live; /* input_live: bytes of stream pieces in the pool; spool_live: pieces in the spool */
    bool fed;                        /* nothing more will be submitted */
    _Atomic int feed_error;          /* the feeder's error; stored after feed_text */
    char feed_text[512];
};

/* --- run.c: find the kernel that the options name; returns -EINVAL if there is none --- */
int map_choose_kernel(struct map_job *job);

/* --- owner.c: the work of node 0. Returns the exit status. If an error text is still to be printed, returns a negative errno instead.
 * After an error, or if job->over is not set, threads and nodes are still running. --- */
int map_owner_run(struct map_job *job);
void map_owner_free(struct map_job *job);

/* How many bytes of its node's pool a slot needs. */
uint64_t map_slot_memory(const struct map_options *o);

/* Whether this node is apart (on another host than the owner). */
static inline bool map_is_apart(const struct map_job *job)
{
    return job->apart && job->rank != 0;
}

static inline struct map_line *map_line(const struct map_job *job, uint32_t node, uint32_t slot)
{
    return &job->board->lines[(map_is_apart(job) ? 0 : node * job->slots) + slot];
}

/* Free the memory of a stream piece. */
void map_piece_release(struct map_job *job, const struct map_piece *piece);

#endif
