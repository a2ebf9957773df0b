/* SPDX-License-Identifier: MIT
 *
 * Requests to the services of nodes (weft/service.h): a record of 256 bytes in the pool of the node that asks. The calls of weft/service.h
 * fill and submit records themselves. A program may do so too (weft_request_start()), and so may a kernel of a GPU
 * (weft/device_service.h): the layout is the same for all.
 *
 *   bytes      field       who writes it
 *     0 -   3  version     the asker: WEFT_REQUEST_VERSION
 *     4 -   5  service     the asker: WEFT_SERVICE_...
 *     6 -   7  kind        the asker: what the service is to do, WEFT_PROCESS_... or WEFT_NAME_...
 *     8 -  15  id          the asker: any number but 0 and that of the record's former request
 *    16 -  19  node        the asker: the node that is asked
 *    20 -  23  flags       the asker: see the kind; else 0
 *    24 -  31  timeout_ns  the asker: when it has not been answered for so long, it ends with -ETIMEDOUT; 0: the node's deadline
 *    32 -  39  handle      the asker: what the request is about, from an earlier answer; else 0
 *    40 -  47  data        the asker: address in the asker's own pool, of more that belongs to the request; 0: none
 *    48 -  55  data_bytes  the asker: how much that is, at most WEFT_REQUEST_DATA_MAX
 *    56 - 191  arg         the asker: see the kind; else 0
 *   192 - 239  result      the asker's node, with the answer: see the kind
 *   240 - 243  status      the asker's node: 0 or a negative errno
 *   244 - 247  reserved    nobody
 *   248 - 255  answered    the asker's node, last: the `id` of the request that has been answered
 *
 * Numbers are little-endian. There are no pointers: memory is named by its address (weft/types.h). A record is aligned to 8 bytes; aligned
 * to 64, no cache line is written by two sides. Each word is written by one side. The record and `data` are read while the request is
 * submitted (for data over WEFT_REQUEST_INLINE bytes: until it is answered), and result to answered are written when it is answered:
 * until then the record belongs to weft. The answer's words are visible to whoever has seen `answered`.
 */
#ifndef WEFT_REQUEST_H
#define WEFT_REQUEST_H

#include <stddef.h>
#include <stdint.h>

#define WEFT_REQUEST_VERSION  1u
#define WEFT_REQUEST_BYTES    256u
#define WEFT_REQUEST_DATA_MAX (4u << 20) /* bytes of `data` */
#define WEFT_REQUEST_INLINE   3584u      /* data up to this size goes with the request; more is fetched from the asker's pool */
#define WEFT_REQUEST_SERVICE  63u        /* kernels hand records over as those of this service (weft_device_ask()) */
#define WEFT_REQUESTS_MAX     16384u     /* outstanding ones of a node at a node; more end with -EAGAIN */

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

/* The services. A node says with WEFT_SERVE=process,name which ones it offers. */
#define WEFT_SERVICE_PROCESS 1u /* "process" */
#define WEFT_SERVICE_NAME    2u /* "name" */

/* --- process --- */

/* Start a program. `data`: arg[1] limits (weft_process_limit), then texts that end with a zero byte each: the program, the directory
 * ("": that of the node), arg[0] arguments, and the changes to the environment: NAME=VALUE adds or replaces one, NAME alone removes it.
 *   flags   WEFT_SPAWN_...
 *   arg[0]  low 32 bits: arguments, argv[0] included; high: changes to the environment
 *   arg[1]  limits
 *   arg[2]  end it after so many ns; 0: never
 *   arg[3]  with WEFT_SPAWN_STDIN_DATA: the address of its standard input, in any pool; arg[4] its bytes
 *   arg[5]  bytes of the ring of standard output, a power of two from 4 KiB to 16 MiB; 0: 64 KiB
 *   arg[6]  the same of standard error
 * Answered when it runs: result[0] is its handle at the asker's node, result[1] its number (pid) where it runs. */
#define WEFT_PROCESS_SPAWN 1u
/* Has it ended? Looks once: -EAGAIN while it runs. result[0]: its exit status; result[1]: the signal that ended it, or 0; result[2]: bit 0:
 * it was ended because its time was over; result[3]: ns of processor time of it and of the children it has waited for, of the program
 * itself; result[4]: of the system for it; result[5]: the most memory it had, in bytes. */
#define WEFT_PROCESS_WAIT 2u
/* Where its next output is, in the asker's own pool. Looks once: -EAGAIN: there is none now. arg[0]: 1 or 2, standard output or error.
 * result[0]: address; result[1]: bytes there; 0: it has ended. */
#define WEFT_PROCESS_OUTPUT 3u
/* So many bytes of that have been read: they may be overwritten. arg[0]: 1 or 2; arg[1]: bytes. */
#define WEFT_PROCESS_TAKE 4u
/* Write to its standard input (WEFT_SPAWN_STDIN): `data_bytes` bytes at `data`, as many as there is room for. Looks once: -EAGAIN: there is
 * no room now. result[0]: how many. With 0 bytes: the end of its input. */
#define WEFT_PROCESS_WRITE 5u
/* Send signal arg[0] to its process group. */
#define WEFT_PROCESS_SIGNAL 6u
/* Forget the handle. A process that still runs is ended, unless it is detached. */
#define WEFT_PROCESS_CLOSE 7u

#define WEFT_SPAWN_CLEAN_ENVIRONMENT 0x1u  /* it has nothing of the environment of the node that runs it */
#define WEFT_SPAWN_DETACHED          0x2u  /* it goes on when its asker ends, or its handle is closed; it ends with the node that runs it */
#define WEFT_SPAWN_STDOUT            0x4u  /* its standard output comes to the asker's pool; else it goes to /dev/null */
#define WEFT_SPAWN_STDERR            0x8u  /* its standard error too, by itself */
#define WEFT_SPAWN_STDERR_TO_STDOUT  0x10u /* its standard error goes where its standard output goes */
#define WEFT_SPAWN_STDIN             0x20u /* its standard input comes from WEFT_PROCESS_WRITE; else it is /dev/null */
#define WEFT_SPAWN_STDIN_DATA        0x40u /* its standard input is arg[4] bytes at arg[3] */
#define WEFT_SPAWN_FLAGS             0x7fu

/* A limit of the process (setrlimit(2)). UINT64_MAX: none. */
typedef struct weft_process_limit {
    uint32_t what; /* WEFT_LIMIT_... */
    uint32_t zero;
    uint64_t soft, hard;
} weft_process_limit;
#define WEFT_LIMIT_CPU       1u /* seconds of processor time */
#define WEFT_LIMIT_FSIZE     2u /* bytes of a file that it writes */
#define WEFT_LIMIT_DATA      3u /* bytes of its data segment */
#define WEFT_LIMIT_STACK     4u /* bytes of its stack */
#define WEFT_LIMIT_CORE      5u /* bytes of a core file */
#define WEFT_LIMIT_FILES     6u /* open files */
#define WEFT_LIMIT_MEMORY    7u /* bytes of address space */
#define WEFT_LIMIT_PROCESSES 8u /* processes of its user */
#define WEFT_LIMITS          8u

/* --- name --- */

#define WEFT_NAME_BYTES 64u /* a name has 1 to 63 bytes; a zero byte ends it. It stands in arg[4] to arg[11] */

/* Publish arg[0], an address, and arg[1], its length, under the name. -EEXIST: another node has published that name. */
#define WEFT_NAME_PUBLISH 1u
/* result[0]: address; result[1]: length; result[2]: the node that published it. -ENOENT: there is no such name; with flag WEFT_NAME_WAIT it
 * is answered when there is. */
#define WEFT_NAME_LOOKUP 2u
/* The name is no more. Only who has published it can say so: else -EPERM. */
#define WEFT_NAME_WITHDRAW 3u
/* `data`: room for weft_name[arg[1]]. Fills it with names, from where arg[0] says on, 0 at first; result[0]: how many (at most 40 at once);
 * result[1]: arg[0] for the next ones; 0: there are no more. */
#define WEFT_NAME_LIST 4u

#define WEFT_NAME_WAIT 0x1u

typedef struct weft_name {
    char name[WEFT_NAME_BYTES];
    uint64_t addr, bytes;
    uint32_t owner; /* the node that has published it */
    uint32_t zero;
} weft_name;

#if defined(__cplusplus)
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
