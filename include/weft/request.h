/* SPDX-License-Identifier: MIT
 *
 * Requests to the services of nodes (weft/service.h). The asker is the node that sends a request; the server is the node that answers the
 * request. A request is a record of 256 bytes in the asker's pool. The calls of weft/service.h fill and submit records. A program may also
 * fill a record itself and submit it with weft_request_start(). Kernels of GPUs use weft/device_service.h. The layout is always the same.
 *
 *   bytes      field       who writes it
 *     0 -   3  version     the asker: WEFT_REQUEST_VERSION
 *     4 -   5  service     the asker: WEFT_SERVICE_...
 *     6 -   7  kind        the asker: the kind of request, WEFT_PROCESS_..., WEFT_NAME_..., WEFT_NET_... or WEFT_FILE_...
 *     8 -  15  id          the asker: any number except 0 and the id of the record's previous request
 *    16 -  19  node        the asker: the server
 *    20 -  23  flags       the asker: see the kind; else 0
 *    24 -  31  timeout_ns  the asker: without an answer, the request ends with -ETIMEDOUT after this time; 0: WEFT_DEADLINE
 *    32 -  39  handle      the asker: the object of the request, from an earlier answer; else 0
 *    40 -  47  data        the asker: address of further data of the request, in the asker's own pool; 0: none
 *    48 -  55  data_bytes  the asker: length of `data`, at most WEFT_REQUEST_DATA_MAX
 *    56 - 191  arg         the asker: see the kind; else 0
 *   192 - 239  result      the asker's node, with the answer: see the kind
 *   240 - 243  status      the asker's node: 0 or a negative errno, with Linux's number on every system
 *   244 - 247  reserved    nobody; on Metal the kernel (weft/device_service.h)
 *   248 - 255  answered    the asker's node, last: the `id` of the request, when it is answered
 *
 * arg[i] is at byte 56 + 8 i, and result[i] at byte 192 + 8 i. Numbers are little-endian. Memory is given by address (weft/types.h), not by
 * pointer. A record is aligned to 8 bytes. Align it to 64 bytes where you can: then the asker and its node never write to the same cache
 * line. Do not change the record until the request is answered. weft reads the asker's fields and `data` while the request is submitted; if
 * `data` has more than WEFT_REQUEST_INLINE bytes, weft may read it until the request is answered. When the answer has arrived, the asker's
 * node writes `result` and `status`, and after them `answered`: a reader that sees the new `answered` also sees `result` and `status`. The
 * result of the op is `status`, with this system's error number.
 */
#ifndef WEFT_REQUEST_H
#define WEFT_REQUEST_H

#if !defined(__METAL_VERSION__)
#include <stddef.h>
#include <stdint.h>
#endif

#define WEFT_REQUEST_VERSION  1u
#define WEFT_REQUEST_BYTES    256u
#define WEFT_REQUEST_DATA_MAX (4u << 20) /* bytes of `data` */
#define WEFT_REQUEST_INLINE   3584u      /* `data` up to this size is sent with the request; the server fetches larger `data` */
#define WEFT_REQUEST_SERVICE  63u        /* the service number with which kernels submit records (weft_device_ask()) */
#define WEFT_REQUESTS_MAX     16384u     /* unanswered requests of one asker at one server; more fail with -EAGAIN */

typedef struct weft_request {
    uint32_t version;
    uint16_t service, kind;
    uint64_t id;
    uint32_t node, flags;
    int64_t timeout_ns;
    uint64_t handle;
    uint64_t data, data_bytes;
    uint64_t arg[17];
    uint64_t result[6];
    int32_t status;
    uint32_t reserved;
    uint64_t answered;
} weft_request;

/* The services. A node offers those that the environment variable WEFT_SERVE lists, such as WEFT_SERVE=process,name. */
#define WEFT_SERVICE_PROCESS 1u /* "process" */
#define WEFT_SERVICE_NAME    2u /* "name" */
#define WEFT_SERVICE_NET     3u /* "net" */
#define WEFT_SERVICE_FILE    4u /* "file" */

/* --- process --- */

/* Starts a program. `data` has the limits (weft_process_limit), and then strings that each end with a zero byte: the program, the
 * directory ("": the server's), the arguments, and the changes to the environment (NAME=VALUE sets a variable, NAME removes one).
 *
 * Fields: `flags` WEFT_SPAWN_...
 * - arg[0]: low 32 bits: number of arguments, argv[0] included; high 32 bits: number of changes to the environment
 * - arg[1]: number of limits
 * - arg[2]: ns after which the program is killed; 0: never
 * - arg[3], arg[4]: with WEFT_SPAWN_STDIN_DATA: address of the standard input, in any pool, and its length
 * - arg[5], arg[6]: bytes of the ring buffers for standard output and standard error: powers of two from 4 KiB to 16 MiB; 0: 64 KiB
 * - arg[12]: with WEFT_SPAWN_TERMINAL: low 16 bits: rows of the terminal; next 16 bits: columns
 *
 * Answered when the program runs. result[0]: a handle, which only the asker's node can use; result[1]: the process ID on the server. The
 * other requests about the program take this handle in `handle`. */
#define WEFT_PROCESS_SPAWN 1u
/* Checks once whether the process has ended. The status is -EAGAIN while it still runs. result[0]: the exit status; result[1]: Linux's
 * number of the signal that ended the process, or 0; result[2]: bit 0 is set if the server killed the process because its time was over
 * (arg[2] of the start). result[3]: ns of user time; result[4]: ns of system time; result[5]: bytes of the largest resident set. The last
 * three results include the children that the process has waited for. */
#define WEFT_PROCESS_WAIT 2u
/* Finds output that has arrived. The status is -EAGAIN if there is no output now. arg[0]: 1 for standard output, 2 for standard error.
 * result[0]: address of the output, in the asker's own pool; result[1]: its length; 0: the output has ended. */
#define WEFT_PROCESS_OUTPUT 3u
/* Frees output that was read, so that new output can overwrite it. arg[0]: 1 for standard output, 2 for standard error; arg[1]: number of
 * bytes. */
#define WEFT_PROCESS_TAKE 4u
/* Writes the bytes at `data` to the standard input (WEFT_SPAWN_STDIN): as many of the `data_bytes` as there is room for. The status is
 * -EAGAIN if there is no room now. result[0]: number of bytes written. If `data_bytes` is 0, the input ends. */
#define WEFT_PROCESS_WRITE 5u
/* Sends signal arg[0], which has Linux's number, to the process group, and with WEFT_SPAWN_TERMINAL also to the terminal's foreground
 * process group. */
#define WEFT_PROCESS_SIGNAL 6u
/* Frees the handle. Kills a running process unless it is detached. The status is -EBUSY if another request is writing to the process or
 * closing it. */
#define WEFT_PROCESS_CLOSE 7u
/* Sets the size of the terminal (WEFT_SPAWN_TERMINAL): arg[0] rows and arg[1] columns, each at most 65535. The foreground process group
 * gets SIGWINCH if the size has changed. */
#define WEFT_PROCESS_WINDOW 8u

#define WEFT_SPAWN_CLEAN_ENVIRONMENT 0x1u  /* the process inherits nothing of the server's environment */
#define WEFT_SPAWN_DETACHED          0x2u  /* the process goes on if the asker dies or closes the handle; it ends when the server ends */
#define WEFT_SPAWN_STDOUT            0x4u  /* standard output is sent to the asker; otherwise it goes to /dev/null */
#define WEFT_SPAWN_STDERR            0x8u  /* standard error is sent to the asker as a stream of its own; otherwise it goes to /dev/null */
#define WEFT_SPAWN_STDERR_TO_STDOUT  0x10u /* standard error goes to the same place as standard output */
#define WEFT_SPAWN_STDIN             0x20u /* the asker writes standard input (WEFT_PROCESS_WRITE); otherwise it is /dev/null */
#define WEFT_SPAWN_STDIN_DATA        0x40u /* standard input is memory: arg[4] bytes at address arg[3] */
/* Standard input, output and error are a new pseudo-terminal, which is the controlling terminal of the process; the process leads a
 * session. Output to the terminal is sent to the asker as standard output (WEFT_SPAWN_STDOUT). Standard input from the asker
 * (WEFT_SPAWN_STDIN) is the input of the terminal. A terminal has no end of input: to end the input as the key Ctrl-D does, write the byte
 * 4. Cannot be used together with WEFT_SPAWN_STDIN_DATA and the two flags for standard error. */
#define WEFT_SPAWN_TERMINAL 0x80u
#define WEFT_SPAWN_FLAGS    0xffu

/* A resource limit of the process (setrlimit(2)). UINT64_MAX: unlimited. */
typedef struct weft_process_limit {
    uint32_t what; /* WEFT_LIMIT_... */
    uint32_t zero;
    uint64_t soft, hard;
} weft_process_limit;
#define WEFT_LIMIT_CPU       1u /* seconds of processor time */
#define WEFT_LIMIT_FSIZE     2u /* bytes of a file that the process writes */
#define WEFT_LIMIT_DATA      3u /* bytes of the data segment */
#define WEFT_LIMIT_STACK     4u /* bytes of the stack */
#define WEFT_LIMIT_CORE      5u /* bytes of a core file */
#define WEFT_LIMIT_FILES     6u /* open files */
#define WEFT_LIMIT_MEMORY    7u /* bytes of address space */
#define WEFT_LIMIT_PROCESSES 8u /* processes of the same user */
#define WEFT_LIMITS          8u

/* --- name --- */

#define WEFT_NAME_BYTES 64u /* a name has 1 to 63 bytes and ends with a zero byte. In requests it is in arg[4] to arg[11] */

/* Publishes memory under the name. arg[0]: the memory's address; arg[1]: the memory's length. The status is -EEXIST if another node has
 * published that name. */
#define WEFT_NAME_PUBLISH 1u
/* Looks up the name. result[0]: address; result[1]: length; result[2]: the node that published the name. The status is -ENOENT if there is
 * no such name. With the flag WEFT_NAME_WAIT the server answers when the name is published. */
#define WEFT_NAME_LOOKUP 2u
/* Removes the name. The status is -EPERM if another node has published it. */
#define WEFT_NAME_WITHDRAW 3u
/* Lists names: fills `data`, which has room for arg[1] structs weft_name, with at most 40 names. arg[0]: 0 in the first request; later,
 * result[1] of the previous answer. result[0]: number of names; result[1]: 0 if there are no more. */
#define WEFT_NAME_LIST 4u

#define WEFT_NAME_WAIT 0x1u

typedef struct weft_name {
    char name[WEFT_NAME_BYTES];
    uint64_t addr, bytes;
    uint32_t owner; /* the node that has published the name */
    uint32_t zero;
} weft_name;

/* --- net --- */

/* Sockets at a node, the gateway (weft/net.h has the rules, limits and errors). CONNECT, LISTEN and ACCEPT return a handle, which only the
 * asker's node can use; the other requests take it in `handle`. A request never waits for the network: if the gateway cannot carry it out
 * now, the answer is -EAGAIN, and the asker sends it again later.
 *
 * Bytes are sent from and received to any address in a pool or an arena of any node. A request that copies bytes is answered after the
 * copy. The gateway writes received bytes into a ring in the asker's pool, and a request copies them from the ring. A kernel may also read
 * bytes in the ring (RECEIVED).
 *
 * A network address takes three words. The first word has the port in bits 0 to 15, and in bits 16 to 23 the family: 4, 6, or 0 for no
 * address. The other two words have the bytes of the address in network order, followed by zeros. */

/* Begins to connect to a host. `data`: the host's name or address, of 1 to 255 bytes, without a zero byte.
 *   flags   WEFT_NET_... of weft/net.h
 *   timeout_ns   how long opening the connection may take; 0: WEFT_DEADLINE
 *   arg[0]  the port
 *   arg[1]  size of the ring for received bytes: a power of two from 4 KiB to 16 MiB; 0: 64 KiB, or 128 KiB with datagrams
 *   arg[2]  size of the ring for bytes to send, as arg[1]
 *   arg[3]  size of the system's own buffer for received bytes; 0: the system's choice
 *   arg[4]  size of the system's own buffer for bytes to send, as arg[3]
 * Answered at once. result[0]: a handle. Requests to receive may follow at once; OPENED tells when the connection is open. */
#define WEFT_NET_CONNECT 1u
/* Listens at the gateway, or with WEFT_NET_DATAGRAMS opens a socket for datagrams from and to any address. The fields are those of
 * CONNECT, with these differences: `data` is the gateway's own address to listen at, or empty for all its addresses; port 0 is any free
 * port; arg[1] to arg[4] are for the connections that are accepted.
 *   arg[5]  connections that wait to be accepted; 0: 128 */
#define WEFT_NET_LISTEN 2u
/* Accepts a connection of a listener. The status is -EAGAIN if no connection waits now. result[0]: a handle. */
#define WEFT_NET_ACCEPT 3u
/* Closes a socket; the handle is invalid from then on. Bytes in the ring are still sent. If arg[0] is 1, these bytes are dropped instead,
 * and the connection is reset. */
#define WEFT_NET_CLOSE 4u
/* Checks once whether the socket is open. The status is -EAGAIN if it is not open yet; any other error says why it could not be opened.
 * result[0] to result[2]: the socket's own address at the gateway. result[3] to result[5]: the peer's address. */
#define WEFT_NET_OPENED 5u
/* Receives at most arg[1] bytes (not 0) to the address arg[0]. -EAGAIN: no bytes have arrived. result[0]: number of bytes; 0: the peer will
 * send no more. With datagrams: receives one datagram, which may have 0 bytes; result[1] to result[3]: the address of the sender.
 * -EMSGSIZE: the datagram is larger than arg[1]; another request can receive it. result[0]: the datagram's size. -EBUSY: another request is
 * receiving from this socket. */
#define WEFT_NET_RECEIVE 6u
/* Sends at most arg[1] bytes (not 0) from the address arg[0]. -EAGAIN: the ring has no room now. result[0]: number of bytes. With
 * datagrams: sends all bytes as one datagram; arg[2] to arg[4]: the receiver's address, for a socket without a peer. -EBUSY: another
 * request is sending on this socket. */
#define WEFT_NET_SEND 7u
/* Ends sending: after the last byte, the peer sees the end of the stream. Receiving remains possible. The status is -EAGAIN if the
 * connection is not open yet, or another request is sending. */
#define WEFT_NET_SHUTDOWN 8u
/* Finds contiguous received bytes in the ring; not for datagrams. -EAGAIN: nothing has arrived. result[0]: address of the bytes, in the
 * asker's own pool; result[1]: number of bytes; 0: the peer will send no more. The bytes stay in the ring until TAKEN. */
#define WEFT_NET_RECEIVED 9u
/* Frees the first arg[0] received bytes in the ring. */
#define WEFT_NET_TAKEN 10u

/* --- file --- */

/* Files of a node, the gateway (weft/file.h has the rules, limits and errors). OPEN returns a handle, which only the asker's node can use;
 * the other requests take it in `handle`. Any number of requests may use one handle at the same time. */

/* Opens a file. `data`: the file's path, of 1 to WEFT_FILE_PATH_MAX bytes, without a zero byte.
 *   flags   WEFT_FILE_WRITE and others of weft/file.h
 * result[0]: a handle; result[1]: the file's size; result[2], result[3]: device and inode; result[4]: modification time, in ns since 1970;
 * result[5]: the number of the file's generation at the gateway. */
#define WEFT_FILE_OPEN 1u
/* Reads at most arg[1] bytes (not 0) from the file's offset arg[2] to the address arg[0], in a pool or an arena of any node. A request
 * reads at most to the end of a piece (WEFT_FILE_PIECE). The bytes are copied straight from the gateway's cache, or from a copy of the
 * whole piece in the asker's pool (weft/device_file.h). -EAGAIN: the piece is not cached yet; send the request again. `timeout_ns` is not
 * used. result[0]: number of bytes; 0: the offset is not below the file's size. -ESTALE: the file has changed since it was opened. */
#define WEFT_FILE_READ_RANGE 2u
/* Writes arg[1] bytes, from 1 to WEFT_FILE_PIECE, from the address arg[0] to the file's offset arg[2]. Answered when the bytes are in the
 * file. result[0]: number of bytes written; result[1] to result[5]: as for OPEN. */
#define WEFT_FILE_WRITE_RANGE 3u
/* Reads the file's size and times from the disk. result[1] to result[5]: as for OPEN. The status is -ESTALE if the file has changed since
 * it was opened. */
#define WEFT_FILE_STAT 4u
/* Answered when all earlier writes are on the disk. */
#define WEFT_FILE_SYNC 5u
/* Closes the file; the handle is invalid from then on. */
#define WEFT_FILE_CLOSE 6u

#if defined(__METAL_VERSION__)
#define WEFT_LAYOUT(what) /* Metal has no offsetof; the layout is checked when this header is compiled as C */
#elif defined(__cplusplus)
#define WEFT_LAYOUT(what) static_assert(what, #what)
#else
#define WEFT_LAYOUT(what) _Static_assert(what, #what)
#endif
WEFT_LAYOUT(sizeof(weft_request) == WEFT_REQUEST_BYTES);
WEFT_LAYOUT(offsetof(weft_request, service) == 4 && offsetof(weft_request, kind) == 6 && offsetof(weft_request, id) == 8);
WEFT_LAYOUT(offsetof(weft_request, node) == 16 && offsetof(weft_request, flags) == 20 && offsetof(weft_request, timeout_ns) == 24);
WEFT_LAYOUT(offsetof(weft_request, handle) == 32 && offsetof(weft_request, data) == 40 && offsetof(weft_request, data_bytes) == 48);
WEFT_LAYOUT(offsetof(weft_request, arg) == 56 && offsetof(weft_request, result) == 192 && offsetof(weft_request, status) == 240);
WEFT_LAYOUT(offsetof(weft_request, answered) == 248);
WEFT_LAYOUT(sizeof(weft_process_limit) == 24 && offsetof(weft_process_limit, soft) == 8 && offsetof(weft_process_limit, hard) == 16);
WEFT_LAYOUT(sizeof(weft_name) == 88 && offsetof(weft_name, addr) == 64 && offsetof(weft_name, bytes) == 72);
WEFT_LAYOUT(offsetof(weft_name, owner) == 80);

#endif
