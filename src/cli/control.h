/* SPDX-License-Identifier: MIT
 *
 * The protocol of a standing cluster's control socket: a Unix stream socket between a command (`weft exec`, `weft status`, ...) and the
 * cluster's control node, both of this host and this user. Numbers are in the byte order of the host.
 *
 * Both sides send frames. The command's first frame is its request. The next frames depend on the request ("STARTED a node" is one frame
 * for each node):
 *
 *   exec             node -> command: STARTED a node, OUT, ENDED a node, TAKEN, at last DONE. command -> node: INPUT, SIGNAL, WINDOW
 *   exec, detached   STARTED a node, then DONE with the job's number
 *   logs             OUT, DONE
 *   status, metrics, files  TEXT, DONE
 *   cat              OUT, DONE
 *   pin              TEXT without bytes, as signs of life, then DONE
 *   join             TEXT, DONE: what a node needs to join, with the secret
 *   proxy            STARTED the gateway's node; then the command sends a byte with a listening socket, and perhaps a UDP socket
 *                    (SCM_RIGHTS)
 *   publish          STARTED the gateway's node, with the address where it listens and the name of its host
 *   proxy or publish, detached: then DONE
 *   kill, down       DONE. For down the socket closes when the node has ended
 *
 * As a sign of life, the node also sends TEXT without bytes every few seconds to `weft logs`, and to an exec, proxy or publish that is not
 * detached.
 *
 * If a request fails, the node sends ERROR for node UINT32_MAX instead of DONE. When the command closes the socket, the node kills the
 * processes of the request, or ends its proxy or published port.
 */
#ifndef WEFT_CLI_CONTROL_H
#define WEFT_CLI_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weft/types.h"

#define STANDING_NAME_MAX 32u /* longest name of a cluster */
#define STANDING_PATH     100 /* longest path of a socket; macOS allows 104 bytes */

enum control_type {
    CONTROL_REQUEST = 1, /* payload: struct control_head, followed by its strings */
    CONTROL_INPUT,       /* payload: bytes for standard input; an empty payload ends the input */
    CONTROL_SIGNAL,      /* number: a signal for all processes of the job */
    CONTROL_STARTED,     /* node; number: the process's ID; payload: the name of the node's host */
    CONTROL_OUT,         /* node; number: 1 standard output, 2 standard error; payload: bytes */
    CONTROL_ENDED,       /* node; number: exit status; 128 + N for signal N; 124 if --timeout ended the process */
    CONTROL_TAKEN,       /* number: how many more bytes of input the command may send. Before the first TAKEN it may send no input */
    CONTROL_TEXT,        /* payload: a part of the answer */
    CONTROL_ERROR,       /* node, or UINT32_MAX; number: an errno; payload: the error text */
    CONTROL_DONE,        /* number: the number of the job */
    CONTROL_WINDOW,      /* from the command; number: the terminal's new size: rows | columns << 16 */
};
struct control_frame {
    uint32_t type, bytes; /* bytes: length of the payload, which follows */
    uint32_t node, number;
};
#define CONTROL_PIECE_MAX   (64u << 10)  /* longest payload of a frame other than a request */
#define CONTROL_REQUEST_MAX (5u << 20)   /* longest payload of a request */
#define CONTROL_INPUT_MAX   (256u << 10) /* maximum number of sent bytes of input that the control node has not taken yet */

enum control_what {
    CONTROL_STATUS = 1,
    CONTROL_METRICS,
    CONTROL_DOWN,
    CONTROL_EXEC,
    CONTROL_KILL,
    CONTROL_LOGS,
    CONTROL_JOIN,
    CONTROL_PROXY,
    CONTROL_PUBLISH,
    CONTROL_CAT,
    CONTROL_FILES,
    CONTROL_PIN
};
#define CONTROL_WITH_INPUT    0x1u /* exec: frames INPUT follow. Not with CONTROL_DETACHED */
#define CONTROL_DETACHED      0x2u /* exec, proxy, publish: the end of the command does not end the job, proxy or published port */
#define CONTROL_FOLLOW        0x4u /* logs: send new output until the job has ended */
#define CONTROL_WITHOUT_LINKS 0x4u /* status: the answer has no links. N nodes have N * N links, and few commands need them */
#define CONTROL_TERMINAL      0x8u /* exec on one node: the process gets a terminal. Only with CONTROL_WITH_INPUT */

#define CONTROL_MAGIC                          \
    {                                          \
        'w', 'e', 'f', 't', 'c', 't', 'l', '1' \
    }
/* The start of a request. Zero-terminated strings follow: the directory ("": none), then as many hosts, arguments and changes of the
 * environment as these fields say. */
struct control_head {
    char magic[8];
    uint32_t what, flags;
    int64_t timeout_ns; /* exec: kill the processes after this time; 0: never */
    uint32_t job, signal;
    /* How many strings there are. proxy, publish: at most one host, the gateway. Arguments of proxy: user and password, or none. Arguments
     * of publish: where to listen, and the server. To end a kept proxy or published port, `signal` is set, and the argument is the address
     * where the proxy or port listens. cat: one host; arguments: path, first byte and last byte. pin: one host; arguments: path and, to
     * unpin, "unpin" */
    uint32_t hosts, arguments, changes;
    uint32_t window; /* with CONTROL_TERMINAL: size of the terminal, rows | columns << 16; else 0 */
};

struct control_request {
    struct control_head head;
    const char *directory;
    const char **hosts, **arguments, **changes; /* NULL-terminated lists of strings in the payload */
    void *memory;
};
/* Check a request. All strings of `out` point into `payload`. Returns 0, or a negative errno with base_error(): -EPROTO, -ENOMEM. */
int control_parse(struct control_request *out, const void *payload, size_t bytes);
void control_request_free(struct control_request *r);
/* Write a request as bytes to send. The caller frees `*payload`. Returns -E2BIG if the request is larger than CONTROL_REQUEST_MAX. */
int control_write(const struct control_request *r, void **payload, size_t *bytes);
/* Whether a frame is valid from a node (`from_node`), or from a command after its request. */
static inline bool control_frame_fits(const struct control_frame *f, bool from_node)
{
    bool type = from_node ? f->type >= CONTROL_STARTED && f->type <= CONTROL_DONE
                          : f->type == CONTROL_INPUT || f->type == CONTROL_WINDOW ||
                                (f->type == CONTROL_SIGNAL && f->number >= 1 && f->number <= 64);
    bool stream = f->type != CONTROL_OUT || f->number == 1 || f->number == 2;
    return type && stream && f->bytes <= CONTROL_PIECE_MAX && (f->node < WEFT_MAX_NUMBERS || f->node == UINT32_MAX);
}

/* A control node that reads nothing and sends nothing for this time counts as hanging. */
#define CONTROL_SILENT_NS (20 * WEFT_SECOND)
#define CONTROL_ALIVE_NS  (4 * WEFT_SECOND) /* time between two signs of life */
#define CONTROL_SILENT                                                                                                        \
    "the node of the cluster that serves this host does not answer: if its process is stopped, continue it (kill -CONT), or " \
    "end it (kill -9), and another node takes over"

/* Send a frame. Blocks while the other end does not read. A command blocks for at most CONTROL_SILENT_NS. Returns 0, or a negative errno
 * without base_fail(). After -ETIMEDOUT close the socket, because a part of the frame may have been sent. */
int control_send(int fd, enum control_type type, uint32_t node, uint32_t number, const void *payload, size_t bytes);
/* Read exactly `bytes` bytes. Returns -ECONNRESET if the other end has closed the socket. Returns -ETIMEDOUT if the bytes did not arrive
 * before `deadline`. Sets no base_fail(). */
int control_read(int fd, void *to, size_t bytes, int64_t deadline);

#endif
