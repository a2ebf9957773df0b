/* SPDX-License-Identifier: MIT
 *
 * Forwards: the proxies (`weft proxy`) and published ports (`weft publish`) of a control node. Each has a thread that moves the bytes of
 * all its connections. It ends with the command that asked for it; with --keep it stays until --end, or the end of the cluster.
 *
 *   proxy.c, publish.c       the commands; forward_command.c: what they share
 *   standing_forward.c       the control node: its list of forwards, what `weft status` says of them, and those that are kept
 *   proxy_serve.c, proxy_udp.c, proxy_talk.c   serves the clients of a proxy, and reads what they say
 *   publish_serve.c          serves a published port; forward_loop.c: what both wait for
 */
#ifndef WEFT_CLI_FORWARD_H
#define WEFT_CLI_FORWARD_H

#include <jansson.h>
#include <stdatomic.h>

#include "cli/control.h"
#include "weft/node.h"

#define FORWARD_CONNECTIONS_MAX 16384u /* of one forward; further ones wait to be accepted */
#define FORWARD_WORD_MAX        255u   /* bytes of a host, a path, the user and the password of a proxy */
#define FORWARD_ADDRESS         80u

struct jobs;
struct forward {
    weft_node *w;
    struct jobs *jobs;
    bool publishes; /* else a proxy */
    bool kept;
    uint32_t gateway, target;      /* target: the node to which a published port leads */
    char address[FORWARD_ADDRESS]; /* where it listens, as in "127.0.0.1:1080": a proxy here, a published port at the gateway */
    char to[FORWARD_WORD_MAX + 1]; /* a published port: the path of a Unix socket; "": a port of the target's loopback */
    uint32_t to_port;              /* that port */
    char user[FORWARD_WORD_MAX + 1], password[FORWARD_WORD_MAX + 1]; /* a proxy: "": none are asked for */
    int listener;                                                    /* a proxy: non-blocking. A published port: -1 */
    int datagrams;                                                   /* a proxy: a socket of UDP for SOCKS5; -1: none */
    int control;                   /* the forward ends when the other end of this socket or pipe is closed */
    struct weft_socket *published; /* a published port: the listener at the gateway */
    /* For `weft status`. Written by the forward's thread only. `up`: from clients; `down`: to them. */
    _Atomic uint64_t connections, open, refused, up_bytes, down_bytes;
    /* Of the list: */
    int64_t began;
    int end; /* write end of the pipe that ends a kept forward; -1: none */
    struct forward *next, **at;
};

static inline void forward_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

/* Serve the clients on this thread, until the end. Return 0, or a negative errno with base_fail(). */
int proxy_serve(struct forward *f);
int publish_serve(struct forward *f);

/* --- standing_forward.c --- */
/* Serve a `weft proxy` or `weft publish` on this thread until its command ends, or pass it to a thread of its own. Sends all the answers.
 * With a signal in the request: end a kept one. */
void standing_forward(weft_node *w, struct jobs *jobs, int fd, const struct control_request *r);
json_t *forwards_list(struct jobs *jobs);
void forwards_end(struct jobs *jobs); /* after jobs_end(), from which on no more begin: the kept ones end */

/* --- forward_command.c --- */
/* Read [ADDRESS:]PORT, the address of IPv6 in brackets: `host` becomes "" without an address. -EINVAL with base_fail(). */
int forward_parse(const char *text, char host[FORWARD_WORD_MAX + 1], uint32_t *port);
/* Ask the control node. Returns the control socket, or -1 after an error was printed. `passed`: descriptors that it gets, `count` of them.
 * `address`: where the forward listens, if the control node says so. */
int forward_ask(const char *sub, const char *cluster, struct control_request *r, const int *passed, unsigned count, char host[64],
                uint32_t *node, char address[FORWARD_ADDRESS]);
/* Why the forward has ended, which its command did not want: print it. */
void forward_print_end(const char *sub, int control);
/* Wait until the control node has said that it keeps the forward. Returns the exit status. */
int forward_kept(const char *sub, int control);
int forward_stay(const char *sub, int control); /* until a signal, or the cluster's end. Returns the exit status */
/* --end: end the kept forward that listens there. Returns the exit status. */
int forward_end(const char *sub, const char *cluster, enum control_what what, const char *address);

#endif
