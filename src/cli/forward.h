/* SPDX-License-Identifier: MIT
 *
 * Forwards: a forward is a proxy (`weft proxy`) or a published port (`weft publish`). The control node, a node of the standing cluster on
 * this host, serves it: each forward has a thread that moves the bytes of all its connections. A forward ends with its command, or with
 * --keep at --end or at the end of the cluster.
 *
 *   proxy.c, publish.c       the commands; forward_command.c: their common part
 *   standing_forward.c       the control node: makes forwards, lists them for `weft status`, and ends them
 *   proxy_serve.c, proxy_move.c, proxy_udp.c, proxy_talk.c   serve the clients of a proxy
 *   forward_direct.c         moves the bytes of a connection over a socket that the gateway has lent
 *   publish_serve.c          serves a published port; forward_loop.c: waits, for proxies and published ports
 */
#ifndef WEFT_CLI_FORWARD_H
#define WEFT_CLI_FORWARD_H

#include <jansson.h>
#include <stdatomic.h>

#include "cli/control.h"
#include "weft/node.h"

#define FORWARD_CONNECTIONS_MAX 16384u /* maximum number of connections of one forward; further connections wait to be accepted */
#define FORWARD_WORD_MAX        255u   /* longest host, path, user or password, in bytes */
#define FORWARD_ADDRESS         80u

struct jobs;
struct forward {
    weft_node *w;
    struct jobs *jobs;
    bool publishes; /* true: a published port; false: a proxy */
    bool kept;
    uint32_t gateway, target;      /* target: for a published port, the node on the host of the server */
    char address[FORWARD_ADDRESS]; /* where it listens, as in "127.0.0.1:1080": a proxy on this host, a published port at the gateway */
    /* for a published port: path of a Unix socket at the target; "": the server is at `to_port` of the target's loopback */
    char to[FORWARD_WORD_MAX + 1];
    uint32_t to_port;                                                /* for a published port: the server's port */
    char user[FORWARD_WORD_MAX + 1], password[FORWARD_WORD_MAX + 1]; /* for a proxy: what clients must give; "": nothing */
    /* for a proxy: its listening socket, non-blocking; for a published port: -1 */
    int listener;
    int datagrams;                 /* for a proxy: a UDP socket for SOCKS5; -1: none */
    int control;                   /* the forward ends when the other end of this socket or pipe is closed */
    struct weft_socket *published; /* for a published port: the listener at the gateway */
    /* For `weft status`. Written only by the forward's thread. `up`: from clients; `down`: to clients. */
    _Atomic uint64_t connections, open, refused, up_bytes, down_bytes;
    /* Members of the control node's list: */
    int64_t began;
    int end; /* write end of the pipe that ends a kept forward; -1: the forward is not kept */
    struct forward *next, **at;
};

static inline void forward_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

/* Serve the clients on this thread until the forward ends. Return 0, or a negative errno with base_fail(). */
int proxy_serve(struct forward *f);
int publish_serve(struct forward *f);

/* --- standing_forward.c --- */
/* Handles a request of `weft proxy` or `weft publish`, and sends all answers. Serves the forward on this thread until the forward's command
 * ends; with --keep, starts a thread that serves it. If the request has a signal, ends a kept forward instead. */
void standing_forward(weft_node *w, struct jobs *jobs, int fd, const struct control_request *r);
json_t *forwards_list(struct jobs *jobs);
void forwards_alive(struct jobs *jobs); /* sends a sign of life to each command whose forward is served; never waits */
void forwards_end(struct jobs *jobs);   /* ends the kept forwards; call this after jobs_end(), so that no new forwards begin */

/* --- forward_command.c --- */
/* Reads [ADDRESS:]PORT, with an IPv6 address in brackets. Without an address, `host` becomes "". Returns 0, or -EINVAL with an error
 * text. */
int forward_parse(const char *text, char host[FORWARD_WORD_MAX + 1], uint32_t *port);
/* Sends the request to the control node, with the `count` descriptors in `passed`. Returns the connection to the control node, or -1 after
 * an error was printed. `address` becomes the address where a published port listens. */
int forward_ask(const char *sub, const char *cluster, struct control_request *r, const int *passed, unsigned count, char host[64],
                uint32_t *node, char address[FORWARD_ADDRESS]);
/* Call this after each poll() of `control`, to notice when the control node is silent. `readable`: whether poll() has reported bytes;
 * `waited_ns`: how long poll() has waited; `*silent_ns`: 0 at first. Returns false, after printing a message, if the forward has ended or
 * the control node does not answer. */
bool forward_hears(const char *sub, int control, bool readable, int64_t waited_ns, int64_t *silent_ns);
#define FORWARD_LISTEN_MS 1000 /* how long poll() may wait between two calls */
/* Waits until the control node confirms that it keeps the forward. Returns the exit status. */
int forward_kept(const char *sub, int control);
int forward_stay(const char *sub, int control); /* waits for a signal or the end of the forward. Returns the exit status */
/* --end: ends the kept forward that listens at `address`. Returns the exit status. */
int forward_end(const char *sub, const char *cluster, enum control_what what, const char *address);

#endif
