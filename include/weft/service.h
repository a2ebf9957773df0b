/* SPDX-License-Identifier: MIT
 *
 * Services: what a node does for others. A node offers those that WEFT_SERVE names ("process,name"; none by default), and any node may ask
 * one that offers: itself, too. Only nodes that have joined the cluster can ask, and a node that offers `process` lets every one of them
 * run programs as its own user: joining is the boundary of trust (WEFT_SECRET).
 *
 * All requests have one form, the record of weft/request.h. The calls here fill and submit it.
 *
 * Calls that end in _start take a weft_op, which the caller owns and keeps alive until it is complete (weft_test(), weft_wait()). An
 * operation without an answer ends with -ETIMEDOUT after its time-out, and the server is told that the request is cancelled.
 *
 * Bounds. A node has at most WEFT_REQUESTS_MAX requests outstanding at another one, which keeps at most 4 KiB for each until it is
 * answered, and beside that at most 8 MiB of larger `data` that it has fetched for one asker. A node runs at most 1024 processes for
 * others at a time; requests for more wait until one has ended. Each of them costs its asker the rings of its output (64 KiB each unless
 * said otherwise) and the server one of 64 KiB if it has an input. A name server keeps at most 65,536 names. A stream of bytes stops when
 * its ring is full, until the reader has read: nothing is dropped, and no other stream waits.
 *
 * Death. When the asker ends, its requests are dropped, its processes are ended with their process groups (unless detached), and its names
 * are no more. When the server ends, all that waits for it gets -ECONNRESET, and the processes it runs are ended, however it ended.
 */
#ifndef WEFT_SERVICE_H
#define WEFT_SERVICE_H

#include "fabric.h"
#include "request.h"
#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the node has said that it offers the service (WEFT_SERVICE_...), and has not gone. A node says so when it has joined. */
WEFT_API bool weft_service_offered(weft_node *w, uint32_t node, uint32_t service);

/* The living node with the lowest number that offers the service. Waits for one that may just be joining.
 * Errors: -EOPNOTSUPP no node has said before the deadline that it offers it; -EDEADLK it would wait in a handler. */
WEFT_API int weft_service_find(weft_node *w, uint32_t service, uint32_t *node, int64_t timeout_ns);

/* Submit a record (weft/request.h) of this node's own pool. The result of the op is the record's `status`.
 * Errors: -EFAULT the record or its data is not in this node's pool, or there is no such node; -EINVAL a field is wrong; -EAGAIN too many
 * requests are outstanding at the node; -ECONNRESET the node is gone; -ENOMEM no memory; -ETIMEDOUT no room towards the node, or no answer,
 * before the deadline; -ENOBUFS in a handler, too much is queued; -ENETDOWN no route (tb). What the service answers is the result of the
 * op. */
WEFT_API int weft_request_start(weft_node *w, weft_gaddr record, weft_op *op);

/* Stop waiting for the operation that was started with `op`: its result is ECANCELED, negative, unless it has ended before. What was asked
 * for may have happened: a process that has been started for it is ended.
 * Errors: -ENOENT no request or wait was started with this op, or it has ended. */
WEFT_API int weft_request_cancel(weft_node *w, weft_op *op);

/* --- processes --- */

typedef struct weft_process weft_process;

typedef struct weft_spawn_spec {
    size_t bytes;                     /* sizeof(weft_spawn_spec): weft_spawn_spec s = {.bytes = sizeof s, .program = "ls", ...} */
    const char *program;              /* a path, or a name that is looked for in the PATH of the node that runs it. No shell is used */
    const char *const *argv;          /* argv[0] included, ended by NULL; NULL: the program's name alone */
    const char *const *env;           /* NAME=VALUE adds or replaces, NAME alone removes; ended by NULL; NULL: no changes */
    const char *directory;            /* NULL: that of the node that runs it. A relative path of the program counts from there */
    const weft_process_limit *limits; /* may be NULL */
    uint32_t limit_count;             /* at most WEFT_LIMITS */
    uint32_t flags;                   /* WEFT_SPAWN_... */
    weft_gaddr stdin_data;            /* with WEFT_SPAWN_STDIN_DATA: its standard input, which stays as it is until it has been read */
    uint64_t stdin_bytes;
    uint64_t stdout_ring, stderr_ring; /* bytes: powers of two from 4 KiB to 16 MiB; 0: 64 KiB */
    int64_t time_limit_ns;             /* its group is killed after that; 0: never */
} weft_spawn_spec;

/* How it ended, and what it and the children that it has waited for have used. */
typedef struct weft_exit {
    int32_t status; /* of exit(); 0 when a signal ended it */
    int32_t signal; /* that ended it, as numbered where it ran; 0: none */
    bool timed_out; /* its time was over (weft_spawn_spec.time_limit_ns) */
    int64_t user_ns, system_ns;
    uint64_t memory_bytes; /* the most that was resident at a time */
} weft_exit;

/* Start a program at a node, and wait until it runs. It leads a process group of its own, which is killed when the program ends, when its
 * asker ends or closes the handle, and when the node that runs it ends. The environment is that of the node that runs it, without the
 * variables that name that node and the cluster's secret. The node's own signal mask and handlers are not passed on.
 * Errors: -EINVAL a field of the spec is wrong, or `spec->bytes`; -E2BIG `spec` has fields set that this library does not know, or more
 * than WEFT_REQUEST_DATA_MAX bytes; -ENOENT no such program, directory or interpreter; -EACCES it may not be executed, or the directory not
 * be entered; -ENOTDIR the directory is none; -ENOEXEC the file is no program; -EPERM a limit may not be raised; -EOPNOTSUPP the node does
 * not offer `process`; -EAGAIN too many requests are outstanding, or the node can make no process; -EMFILE the node has too few open files;
 * -ENOMEM no memory here or there, or no room in the pool; -EFAULT there is no such node, or `stdin_data` is no address; -ECONNRESET the
 * node is gone; -ETIMEDOUT no answer before the deadline; -ENOBUFS in a handler, too much is queued; -ENETDOWN no route (tb); -EDEADLK it
 * would wait in a handler. Other errors of execve(2) are passed on. */
WEFT_API int weft_spawn(weft_node *w, uint32_t node, const weft_spawn_spec *spec, weft_process **out, int64_t timeout_ns);

/* The same, without waiting: the op is complete when the program runs or could not be started. `*out` is set at once, and is closed by
 * weft_process_close() even if the program could not be started; weft_process_wait() then has the error with its sentence.
 * Errors: -EINVAL a field of the spec is wrong, or `spec->bytes`; -E2BIG `spec` has fields set that this library does not know, or more
 * than WEFT_REQUEST_DATA_MAX bytes; -EOPNOTSUPP the node does not offer `process`; -EAGAIN too many requests are outstanding at the node;
 * -ENOMEM no memory, or no room in the pool; -EFAULT there is no such node; -ECONNRESET the node is gone; -ETIMEDOUT no room towards the
 * node, or no answer, before the deadline; -ENOBUFS in a handler, too much is queued; -ENETDOWN no route (tb). All others of weft_spawn()
 * are results of the op. */
WEFT_API int weft_spawn_start(weft_node *w, uint32_t node, const weft_spawn_spec *spec, weft_process **out, weft_op *op);

/* Where it runs, and its number there (pid); 0 before it runs. */
WEFT_API uint32_t weft_process_node(const weft_process *p);
WEFT_API uint32_t weft_process_pid(const weft_process *p);

/* Wait for its end. `*out` (may be NULL) is filled; `bytes` is sizeof *out; fields that this library does not know are set to 0. Its output
 * may not all have been read yet. With WEFT_TIMEOUT_DEFAULT it lasts as long as the node lives that runs the program.
 * Errors: -ETIMEDOUT it has not ended before the deadline; -ECONNRESET the node that runs it is gone; -EDEADLK it would wait in a handler.
 * If it could not be started: the error of that. */
WEFT_API int weft_process_wait(weft_process *p, weft_exit *out, size_t bytes, int64_t timeout_ns);

/* The op is complete when it has ended (or could not be started); weft_process_wait() then returns at once.
 * Errors: -ENOMEM no memory; -ECONNRESET the node that runs it is gone. If it could not be started: the error of that. */
WEFT_API int weft_process_wait_start(weft_process *p, weft_op *op);

/* Read what it writes: `which` is 1, standard output, or 2, standard error. `*got` is how many bytes were read, at least 1, or 0 when there
 * will be no more. One thread at a time reads a stream.
 * Errors: -EINVAL it has no such stream; -ETIMEDOUT nothing came before the deadline; -ECONNRESET the node that runs it is gone: what
 * had arrived was read before; -EPROTO that node sent what cannot be; -EBUSY another read of this stream is under way; -EDEADLK it
 * would wait in a handler. */
WEFT_API int weft_process_read(weft_process *p, uint32_t which, void *buf, size_t len, size_t *got, int64_t timeout_ns);

/* The same as an operation: `buf` and `got` belong to weft until the op is complete.
 * Errors: -EINVAL it has no such stream; -EBUSY another read of this stream is under way; -ECONNRESET the node that runs it is gone;
 * -EPROTO that node sent what cannot be. */
WEFT_API int weft_process_read_start(weft_process *p, uint32_t which, void *buf, size_t len, size_t *got, weft_op *op);

/* Write to its standard input (WEFT_SPAWN_STDIN). Waits until all bytes are on their way; `*put` (may be NULL) is how many are, also after
 * an error. With a time-out of 0: as many as there is room for, and -ETIMEDOUT leaves weft_error() as it was. Errors: -EINVAL it has no
 * such input; -EPIPE it has closed its input or ended, or weft_process_end_input() was called; -ETIMEDOUT not all were on their way before
 * the deadline; -ECONNRESET the node that runs it is gone; -ENOMEM no memory; -EDEADLK it would wait in a handler. */
WEFT_API int weft_process_write(weft_process *p, const void *buf, size_t len, size_t *put, int64_t timeout_ns);

/* No more input comes: the program sees the end of its input when it has read what was written.
 * Errors: -EINVAL it has no such input; -ETIMEDOUT the node has not started it before the deadline; -ENOMEM no memory; -EDEADLK it would
 * wait for the start in a handler. */
WEFT_API int weft_process_end_input(weft_process *p);

/* Send a signal, as numbered where it runs, to its process group.
 * Errors: -EINVAL no such signal; -ESRCH it has ended; -ECONNRESET the node that runs it is gone; -ETIMEDOUT no answer before the deadline;
 * -EAGAIN too many requests are outstanding at the node; -EPERM the node may not send it the signal; -ENOMEM no memory; -ENETDOWN no
 * route (tb); -EDEADLK it would wait in a handler. If it could not be started: the error of that. */
WEFT_API int weft_process_signal(weft_process *p, int signal, int64_t timeout_ns);

/* Forget it: nobody may use the handle any more. If it still runs, its group is killed, unless it is detached; what a detached one writes
 * from then on is dropped. The result of operations under way on the handle is ECANCELED, negative. NULL is allowed. Does not wait.
 * Errors: -EBUSY a thread waits in a call for it. */
WEFT_API int weft_process_close(weft_process *p);

/* --- names --- */

/* A name server keeps names of memory: an address and a length. All take the node that is asked. Names die with the node that has published
 * them, with the node in whose pool they are, and with the name server. */

/* Publish. One's own name may be published again, with another address.
 * Errors: -EINVAL the name has not 1 to 63 bytes; -EFAULT there is no such node or memory; -EEXIST another node has published that name;
 * -ENOSPC the table is full; -EOPNOTSUPP the node does not offer `name`; -EAGAIN too many requests are outstanding at the node;
 * -ECONNRESET the node is gone; -ETIMEDOUT no answer before the deadline; -ENOMEM no memory; -ENOBUFS in a handler, too much is queued;
 * -ENETDOWN no route (tb); -EDEADLK it would wait in a handler. */
WEFT_API int weft_name_publish(weft_node *w, uint32_t node, const char *name, weft_gaddr addr, uint64_t bytes, int64_t timeout_ns);

/* Look a name up. weft_name_wait() waits until there is such a name. `out` has it all.
 * Errors: -EINVAL the name has not 1 to 63 bytes; -ENOENT there is no such name (lookup); -EFAULT there is no such node; -EOPNOTSUPP the
 * node does not offer `name`; -EAGAIN too many requests are outstanding at the node; -ECONNRESET the node is gone; -ETIMEDOUT no answer, or
 * no such name, before the deadline; -ENOMEM no memory; -ENOBUFS in a handler, too much is queued; -ENETDOWN no route (tb); -EDEADLK it
 * would wait in a handler. */
WEFT_API int weft_name_lookup(weft_node *w, uint32_t node, const char *name, weft_name *out, int64_t timeout_ns);
WEFT_API int weft_name_wait(weft_node *w, uint32_t node, const char *name, weft_name *out, int64_t timeout_ns);

/* The same as operations: `out` belongs to weft until the op is complete. `wait`: until there is such a name, for at most `timeout_ns`.
 * Errors: -EINVAL the name has not 1 to 63 bytes; -ENOENT there is no such name; -EFAULT there is no such node; -EOPNOTSUPP the node does
 * not offer `name`; -EAGAIN too many requests are outstanding at the node; -ECONNRESET the node is gone; -ETIMEDOUT no room towards the
 * node, no answer, or no such name, before the deadline; -ENOMEM no memory; -ENOBUFS in a handler, too much is queued; -ENETDOWN no
 * route (tb). */
WEFT_API int weft_name_lookup_start(weft_node *w, uint32_t node, const char *name, bool wait, weft_name *out, int64_t timeout_ns,
                                    weft_op *op);

/* The name is no more.
 * Errors: -EINVAL the name has not 1 to 63 bytes; -ENOENT there is no such name; -EPERM another node has published it; -EFAULT there is no
 * such node; -EOPNOTSUPP the node does not offer `name`; -EAGAIN too many requests are outstanding at the node; -ECONNRESET the node is
 * gone; -ETIMEDOUT no answer before the deadline; -ENOMEM no memory; -ENOBUFS in a handler, too much is queued; -ENETDOWN no route (tb);
 * -EDEADLK it would wait in a handler. */
WEFT_API int weft_name_withdraw(weft_node *w, uint32_t node, const char *name, int64_t timeout_ns);

/* Fill `out` with up to `max` names; `*count` is how many there were. `*next` says where to go on: 0 at first, and 0 when there are no
 * more. Names that come or go between two calls may be missed, or listed twice. Errors: -EINVAL `max` is 0; -EFAULT there is no such node;
 * -EOPNOTSUPP the node does not offer `name`; -EAGAIN too many requests are outstanding at the node; -ECONNRESET the node is gone;
 * -ETIMEDOUT no answer before the deadline; -ENOMEM no memory, or no room in the pool; -ENOBUFS in a handler, too much is queued; -ENETDOWN
 * no route (tb); -EDEADLK it would wait in a handler. */
WEFT_API int weft_name_list(weft_node *w, uint32_t node, weft_name *out, uint32_t max, uint32_t *count, uint64_t *next, int64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
