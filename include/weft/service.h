/* SPDX-License-Identifier: MIT
 *
 * Services: work that a node does for other nodes on request. `process` starts programs, and `name` stores addresses of memory under names.
 * weft/net.h and weft/file.h describe two more services. A node offers the services that its environment variable WEFT_SERVE lists
 * ("process,name"; by default none). The node that offers a service is the server, and the node that uses it is the asker. A node may use
 * its own services.
 *
 * Security. A node that offers `process` lets every node of the cluster run programs as its own user. Set WEFT_SECRET to control who can
 * join.
 *
 * Calls whose names end in _start do not wait for the answer. The op of such a call is complete when the work is done (weft_test(),
 * weft_wait()); the caller owns the op and keeps it until then. If the server does not answer within the time-out, the op ends with
 * -ETIMEDOUT, and weft asks the server to cancel the request.
 *
 * Every request is a record of the form that weft/request.h defines. The calls of this header fill and send records themselves.
 *
 * Limits. An asker has at most WEFT_REQUESTS_MAX unanswered requests at one server. The server keeps 4 KiB for each request, and for each
 * asker 8 MiB of larger `data`. A server runs at most 1024 programs at a time; further programs wait. A program needs 64 KiB in the asker's
 * pool for each output, by default, and 64 KiB in the server's pool for its input. If one side of a stream is slow, the other side waits:
 * no bytes are lost. A server stores at most 65536 names. By default an asker may have up to three times as many names as are still free,
 * so other askers always get some. WEFT_NAMES sets a fixed limit for each asker instead.
 *
 * When an asker leaves or dies, the server drops the asker's requests, removes its names, and kills its programs with all their
 * descendants, except detached programs. When the server leaves or dies, even by SIGKILL, operations that wait for it end with -ECONNRESET,
 * and its programs are killed.
 */
#ifndef WEFT_SERVICE_H
#define WEFT_SERVICE_H

#include "fabric.h"
#include "request.h"
#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the node is alive and offers the service (WEFT_SERVICE_...). Just after a node has joined, the answer may still be false. */
WEFT_API bool weft_service_offered(weft_node *w, uint32_t node, uint32_t service);

/* Waits until a node offers the service, and stores the node's number in `*node`. If several nodes offer the service, the lowest number is
 * chosen.
 * Errors: -EOPNOTSUPP no node has announced the service before the deadline; -EDEADLK the call would have to wait in a handler. */
WEFT_API int weft_service_find(weft_node *w, uint32_t service, uint32_t *node, int64_t timeout_ns);

/* Sends the request in a record (weft/request.h) that is in this node's own pool. The result of the op is the record's `status`.
 * Errors: -EFAULT the record or its data is not in this node's pool, or there is no such node; -EINVAL a field is wrong; -EAGAIN too many
 * requests are outstanding at the node; -ECONNRESET the node is gone; -ENOMEM no memory; -ETIMEDOUT no room towards the node, or no
 * answer, before the deadline; -ENOBUFS called in a handler, and too much is queued; -ENETDOWN no route (tb). Errors of the service are
 * results of the op. */
WEFT_API int weft_request_start(weft_node *w, weft_gaddr record, weft_op *op);

/* Ends a pending operation with the result negative ECANCELED. The server may have carried out the request nevertheless. A process that the
 * request has started is killed.
 * Errors: -ENOENT no request or wait was started with this op, or it has ended, or its record is one that sends, receives, reads or writes
 * bytes. */
WEFT_API int weft_request_cancel(weft_node *w, weft_op *op);

/* --- processes --- */

typedef struct weft_process weft_process;

typedef struct weft_spawn_spec {
    size_t bytes;            /* sizeof(weft_spawn_spec): weft_spawn_spec s = {.bytes = sizeof s, .program = "ls", ...} */
    const char *program;     /* a path, or a name that is looked up in the server's PATH. No shell is used */
    const char *const *argv; /* the arguments from argv[0] on; ends with NULL. NULL: only the program's name */
    const char *const *env; /* changes to the environment: NAME=VALUE sets a variable, NAME removes one; ends with NULL. NULL: no changes */
    const char *directory;  /* the working directory; NULL: the server's. A relative `program` is looked up from this directory */
    const weft_process_limit *limits; /* may be NULL */
    uint32_t limit_count;             /* at most WEFT_LIMITS */
    uint32_t flags;                   /* WEFT_SPAWN_... */
    weft_gaddr stdin_data;            /* with WEFT_SPAWN_STDIN_DATA: the standard input. Keep it unchanged until the program has ended */
    uint64_t stdin_bytes;
    uint64_t stdout_ring, stderr_ring; /* bytes of the ring buffers: powers of two from 4 KiB to 16 MiB; 0: 64 KiB */
    int64_t time_limit_ns;             /* after this time the program is killed, with its descendants; 0: never */
    /* With WEFT_SPAWN_TERMINAL: the terminal's size. 0: not known. */
    uint16_t terminal_rows, terminal_columns;
    uint32_t zero;
} weft_spawn_spec;

/* How a program has ended. Times and memory include children for which the program has waited. */
typedef struct weft_exit {
    int32_t status; /* the exit status; 0 if a signal ended the program */
    int32_t signal; /* this system's number of the signal that ended the program; 0: no signal; 100: unknown to this system */
    bool timed_out; /* the server killed the program because weft_spawn_spec.time_limit_ns had passed */
    int64_t user_ns, system_ns;
    uint64_t memory_bytes; /* the largest resident set */
} weft_exit;

/* Starts a program on a node, and waits until it runs. The program leads a new process group. When the program ends, the rest of this group
 * is killed. All descendants of the program are killed in these cases: the asker closes the handle, leaves or dies; the time limit is over;
 * the program gets SIGKILL, or ends after SIGHUP, SIGINT, SIGQUIT or SIGTERM of the asker; the server leaves or dies. On macOS, only those
 * descendants are killed that are in the program's session and have living parents. The program inherits the server's environment, except
 * the cluster's secret and the variables that describe the node. It does not inherit the server's signal mask and handlers.
 * Errors: -EINVAL `spec->bytes` or another field of the spec is wrong; -E2BIG `spec` sets fields that this version of the library does not
 * know, or its strings have more than WEFT_REQUEST_DATA_MAX bytes; -ENOENT no such program, directory or interpreter; -EACCES no permission
 * to execute the program or to enter the directory; -ENOTDIR `directory` is not a directory; -ENOEXEC the file is not a program; -EPERM no
 * permission to raise a limit; -EOPNOTSUPP the node does not offer `process`; -EAGAIN too many requests are outstanding, or the node cannot
 * make a process; -EMFILE the node has too many open files; -ENOMEM no memory at this node or at the server, or no room in the pool;
 * -EFAULT there is no such node, or `stdin_data` is not a valid address; -ECONNRESET the node is gone; -ETIMEDOUT no answer before the
 * deadline; -ENOBUFS 1024 programs of this node have ended at the server, but their standard input is still open; -ENETDOWN no route (tb);
 * -EDEADLK the call would wait in a handler. Other errors of execve(2) may be returned as well. */
WEFT_API int weft_spawn(weft_node *w, uint32_t node, const weft_spawn_spec *spec, weft_process **out, int64_t timeout_ns);

/* Like weft_spawn(), but does not wait: the op is complete when the program runs or has failed to start. `*out` is set at once; close it
 * with weft_process_close() in any case. If the program could not be started, weft_process_wait() returns the error and sets weft_error().
 * Errors: -EINVAL `spec->bytes` or another field of the spec is wrong; -E2BIG `spec` sets fields that this version of the library does not
 * know, or its strings have more than WEFT_REQUEST_DATA_MAX bytes; -EOPNOTSUPP the node does not offer `process`; -EAGAIN too many requests
 * are outstanding at the node; -ENOMEM no memory, or no room in the pool; -EFAULT there is no such node; -ECONNRESET the node is gone.
 * The other errors of weft_spawn() are results of the op. */
WEFT_API int weft_spawn_start(weft_node *w, uint32_t node, const weft_spawn_spec *spec, weft_process **out, weft_op *op);

/* The node on which the process runs, and the process ID on that node; 0 before the process runs. */
WEFT_API uint32_t weft_process_node(const weft_process *p);
WEFT_API uint32_t weft_process_pid(const weft_process *p);

/* Waits until the program has ended, and stores how it ended in `*out` (may be NULL). `bytes` is sizeof *out; fields that this library does
 * not know are set to 0. Unread output can still be read. With WEFT_TIMEOUT_DEFAULT the call waits as long as the server is alive, unless
 * WEFT_DEADLINE is set. If the program could not be started, the call returns the error of the start.
 * Errors: -ETIMEDOUT the process has not ended before the deadline; -ECONNRESET the server is gone; -EDEADLK the call would wait in a
 * handler. */
WEFT_API int weft_process_wait(weft_process *p, weft_exit *out, size_t bytes, int64_t timeout_ns);

/* Starts an operation that is complete when the program has ended, or could not be started. weft_process_wait() then returns at once. If
 * it is already known that the program could not be started, this call returns the error of the start.
 * Errors: -ENOMEM no memory; -ECONNRESET the server is gone. */
WEFT_API int weft_process_wait_start(weft_process *p, weft_op *op);

/* Reads output of the process: `which` is 1 for standard output, 2 for standard error. Waits for at least one byte. `*got` is the number of
 * bytes read; 0: the output has ended. Only one thread at a time may read a stream.
 * Errors: -EINVAL this output is not sent to this node (WEFT_SPAWN_STDOUT, WEFT_SPAWN_STDERR); -ETIMEDOUT nothing arrived before the
 * deadline; -ECONNRESET the server is gone, and all that had arrived was read; -EPROTO the server sent invalid data; -EBUSY another read of
 * this stream is under way; -EDEADLK the call would wait in a handler. */
WEFT_API int weft_process_read(weft_process *p, uint32_t which, void *buf, size_t len, size_t *got, int64_t timeout_ns);

/* Like weft_process_read(), but does not wait. Do not use `buf` and `got` before the op is complete.
 * Errors: -EINVAL this output is not sent to this node; -EBUSY another read of this stream is under way; -ECONNRESET the server is gone;
 * -EPROTO the server sent invalid data. */
WEFT_API int weft_process_read_start(weft_process *p, uint32_t which, void *buf, size_t len, size_t *got, weft_op *op);

/* Writes to the process's standard input. Waits until all bytes are sent. `*put` (may be NULL) is the number of bytes sent, also after an
 * error. With a time-out of 0 the call sends as many bytes as there is room for; if bytes are left, it returns -ETIMEDOUT without setting
 * weft_error(). If the program could not be started, the call returns the error of the start.
 * Errors: -EINVAL the process was started without WEFT_SPAWN_STDIN; -EPIPE the process has closed its input or ended, or
 * weft_process_end_input() was called; -ETIMEDOUT not all bytes were sent before the deadline; -ECONNRESET the server is gone; -ENOMEM no
 * memory; -EDEADLK the call would wait in a handler. */
WEFT_API int weft_process_write(weft_process *p, const void *buf, size_t len, size_t *put, int64_t timeout_ns);

/* Ends the process's standard input: after the last written byte, the program sees the end of the file.
 * Errors: -EINVAL the process was started without WEFT_SPAWN_STDIN; -ETIMEDOUT the server has not started the process before the deadline;
 * -ENOMEM no memory; -EDEADLK the call would wait for the start in a handler. */
WEFT_API int weft_process_end_input(weft_process *p);

/* Sends a signal, in the numbering of this system, to the process group, and with WEFT_SPAWN_TERMINAL also to the terminal's
 * foreground process group. SIGKILL kills all descendants of the program. If the process could not be started, this returns the error of
 * the start.
 * Errors: -EINVAL no such signal; -ESRCH the process has ended; -ECONNRESET the server is gone; -ETIMEDOUT no answer before the deadline;
 * -EAGAIN too many requests are outstanding at the server; -EPERM the server has no permission to send the signal; -ENOMEM no memory;
 * -ENETDOWN no route (tb); -EDEADLK the call would wait in a handler. */
WEFT_API int weft_process_signal(weft_process *p, int signal, int64_t timeout_ns);

/* Sets the size of the program's terminal (WEFT_SPAWN_TERMINAL). If the size has changed, the terminal's foreground process group gets
 * SIGWINCH. If the process could not be started, this returns the error of the start.
 * Errors: -EINVAL the process has no terminal; -ESRCH the process has ended; -ECONNRESET the server is gone; -ETIMEDOUT no answer before
 * the deadline; -EAGAIN too many requests are outstanding at the server; -ENOMEM no memory; -ENETDOWN no route (tb); -EDEADLK the call
 * would wait in a handler. */
WEFT_API int weft_process_window(weft_process *p, uint16_t rows, uint16_t columns, int64_t timeout_ns);

/* Frees the handle. If the program still runs, the server kills it with its descendants. A detached program (WEFT_SPAWN_DETACHED) goes on,
 * and its further output is lost. Pending operations end with the negative ECANCELED. NULL is allowed. The call does not wait. Memory for
 * the output stays allocated until the server no longer writes to it.
 * Errors: -EBUSY a thread waits in another call with this handle. */
WEFT_API int weft_process_close(weft_process *p);

/* --- names --- */

/* A node that offers the service `name` stores names of memory ranges (address and length). In all calls, `node` is this server. A name is
 * removed when the node that has published the name leaves or dies, or the node with the memory does. All nodes must use the same server,
 * because servers do not share names. If the server leaves or dies, all its names are lost. */

/* Publishes a name. A node may publish its own names again, with other memory.
 * Errors: -EINVAL the name does not have 1 to 63 bytes; -EFAULT there is no such node or memory; -EEXIST another node has published that
 * name; -ENOSPC this node has published its share of the names; -EOPNOTSUPP the node does not offer `name`; -EAGAIN too many requests are
 * outstanding at the node; -ECONNRESET the node is gone; -ETIMEDOUT no answer before the deadline; -ENOMEM no memory; -ENETDOWN no route
 * (tb); -EDEADLK the call would wait in a handler. */
WEFT_API int weft_name_publish(weft_node *w, uint32_t node, const char *name, weft_gaddr addr, uint64_t bytes, int64_t timeout_ns);

/* Looks up a name, and fills `out`.
 * Errors: -EINVAL the name does not have 1 to 63 bytes; -ENOENT there is no such name; -EFAULT there is no such node; -EOPNOTSUPP the node
 * does not offer `name`; -EAGAIN too many requests are outstanding at the node; -ECONNRESET the node is gone; -ETIMEDOUT no answer before
 * the deadline; -ENOMEM no memory; -ENETDOWN no route (tb); -EDEADLK the call would wait in a handler. */
WEFT_API int weft_name_lookup(weft_node *w, uint32_t node, const char *name, weft_name *out, int64_t timeout_ns);

/* Waits until the name is published, and fills `out`.
 * Errors: -EINVAL the name does not have 1 to 63 bytes; -EFAULT there is no such node; -EOPNOTSUPP the node does not offer `name`; -EAGAIN
 * too many requests are outstanding at the node; -ECONNRESET the node is gone; -ETIMEDOUT no answer, or no such name, before the deadline;
 * -ENOMEM no memory; -ENETDOWN no route (tb); -EDEADLK the call would wait in a handler. */
WEFT_API int weft_name_wait(weft_node *w, uint32_t node, const char *name, weft_name *out, int64_t timeout_ns);

/* Like weft_name_lookup(), or with `wait` like weft_name_wait(), but does not wait in the call. Do not use `out` before the op is complete,
 * which takes at most `timeout_ns`.
 * Errors: -EINVAL the name does not have 1 to 63 bytes; -ENOENT there is no such name; -EFAULT there is no such node; -EOPNOTSUPP the node
 * does not offer `name`; -EAGAIN too many requests are outstanding at the node; -ECONNRESET the node is gone; -ETIMEDOUT no room towards
 * the node, no answer, or no such name, before the deadline; -ENOMEM no memory; -ENOBUFS called in a handler, and too much is queued;
 * -ENETDOWN no route (tb). */
WEFT_API int weft_name_lookup_start(weft_node *w, uint32_t node, const char *name, bool wait, weft_name *out, int64_t timeout_ns,
                                    weft_op *op);

/* Removes a name.
 * Errors: -EINVAL the name does not have 1 to 63 bytes; -ENOENT there is no such name; -EPERM another node has published it; -EFAULT there
 * is no such node; -EOPNOTSUPP the node does not offer `name`; -EAGAIN too many requests are outstanding at the node; -ECONNRESET the node
 * is gone; -ETIMEDOUT no answer before the deadline; -ENOMEM no memory; -ENETDOWN no route (tb); -EDEADLK the call would wait in a
 * handler. */
WEFT_API int weft_name_withdraw(weft_node *w, uint32_t node, const char *name, int64_t timeout_ns);

/* Lists names: stores up to `max` names in `out`, and their number in `*count`. Set `*next` to 0 before the first call. If `*next` is not 0
 * after a call, there are more names: call again. Names that are published or removed meanwhile may be missed, or listed twice. Errors:
 * -EINVAL `max` is 0; -EFAULT there is no such node; -EOPNOTSUPP the node does not offer `name`; -EAGAIN too many requests are outstanding
 * at the node; -ECONNRESET the node is gone; -ETIMEDOUT no answer before the deadline; -ENOMEM no memory, or no room in the pool; -ENETDOWN
 * no route (tb); -EDEADLK the call would wait in a handler. */
WEFT_API int weft_name_list(weft_node *w, uint32_t node, weft_name *out, uint32_t max, uint32_t *count, uint64_t *next, int64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
