/* SPDX-License-Identifier: MIT
 *
 * A standing cluster: nodes that stay until `weft down`, and offer their services to the programs of their user. Its files, lowest first:
 *
 *   control.c          frames and requests of the control socket
 *   standing_place.c   the cluster's folder on this host: control socket, lock, log
 *   standing_desk.c    what a node tells of itself: host, devices, links, memory
 *   standing_task.c, standing_jobs.c   processes that were asked for by `weft exec`
 *   standing_proxy.c   proxies that were asked for by `weft proxy`
 *   standing_serve.c   the control socket's server; standing_status.c: its answers to `weft status`, and to Prometheus
 *   standing_node.c    one node
 *   up.c, exec.c, status.c, jobs.c   the commands
 */
#ifndef WEFT_CLI_STANDING_H
#define WEFT_CLI_STANDING_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/base.h"
#include "cli/control.h"
#include "cli/topo.h"
#include "weft/node.h"
#include "weft/pool.h"

/* --- standing_place.c --- */
#define STANDING_NAME_MAX 32u
#define STANDING_LOG_MAX  (INT64_C(4) << 20) /* bytes of `log`; then it becomes `log.1`, whose former content is gone */
#define STANDING_PATH     100                /* of the socket's path: 104 is all that a socket's address holds on macOS */
struct standing_place {
    char name[STANDING_NAME_MAX + 1];
    char folder[STANDING_PATH - 8]; /* 0700, of this user */
    char socket[STANDING_PATH], log[STANDING_PATH], lock[STANDING_PATH];
};
/* Find the folder of a cluster. `name`: NULL: WEFT_CLUSTER, else "default". `make`: create it. Errors: -EINVAL the name; -EPERM the folder
 * is not this user's alone; -ENOENT it does not exist (not if `make`); others of the system. */
int standing_find(struct standing_place *p, const char *name, bool make);
/* Take the cluster's lock, for the life of this process and of those that it forks. -EBUSY: the cluster is up. Returns the descriptor. */
int standing_lock(const struct standing_place *p);
/* Whether somebody has the lock. */
bool standing_locked(const struct standing_place *p);
/* Listen on the control socket; replaces one that nobody listens on. Only the lock's holder and its nodes may do this. */
int standing_listen(const struct standing_place *p);
/* Connect to the control socket. -ECONNREFUSED: the cluster is not up. */
int standing_connect(const struct standing_place *p);

/* --- standing_desk.c: in the pool of each node; its address has the name "weft.standing" at that node's own name service --- */
#define DESK_NAME  "weft.standing"
#define DESK_MAGIC UINT64_C(0x3130676e69646e61)
struct desk_link {
    weft_link_stats stats;
    uint64_t bytes, bytes_per_second; /* that this node has sent and received over rc and tb; in the last second */
    uint32_t alive, zero;
};
struct desk_page {
    uint64_t number; /* of the refresh */
    uint32_t pid, size;
    weft_pool_stats pool;
    struct topo_node node;
    struct desk_link links[]; /* [size] */
};
struct desk_head {
    uint64_t magic, newest, page_bytes; /* two pages follow: refresh K is written to page K % 2, and `newest` becomes K */
};
struct desk;
int desk_open(struct desk **out, weft_node *w);
void desk_refresh(struct desk *d);
void desk_close(struct desk *d);
/* Gets the pages of the nodes that the cluster began with. Any thread. */
struct desks;
int desks_open(struct desks **out, weft_node *w);
void desks_close(struct desks *d);
/* Get the newest page of a node: checked; the caller frees it. -EFAULT: the cluster did not begin with this node. */
int desk_get(struct desks *d, uint32_t node, struct desk_page **out);

/* --- standing_jobs.c --- */
#define JOBS_KEPT_MAX  (1u << 20)        /* bytes of output that are kept of a detached job: the newest */
#define JOBS_ENDED_MAX 64u               /* detached jobs that have ended and are still known */
#define JOBS_GRACE_NS  (5 * WEFT_SECOND) /* between SIGTERM and SIGKILL of `weft kill` */
#define JOBS_FAILED    255               /* exit status when weft itself failed, as that of ssh */
struct jobs;
int jobs_open(struct jobs **out, weft_node *w);
void jobs_end(struct jobs *all);   /* kill all processes, and refuse new jobs */
void jobs_close(struct jobs *all); /* after jobs_end(), and when no command uses it: waits for the threads of detached jobs */
/* Run a job for the command at `fd`, until all has ended. Sends all the answers. */
void jobs_exec(struct jobs *all, int fd, const struct control_request *r);
void jobs_kill(struct jobs *all, int fd, const struct control_request *r);
void jobs_logs(struct jobs *all, int fd, const struct control_request *r);
json_t *jobs_list(struct jobs *all);
/* How many nodes the cluster began with: status and jobs know of these only. */
uint32_t jobs_size(const struct jobs *all);
/* desk_get() */
int jobs_desk(struct jobs *all, uint32_t node, struct desk_page **out);
/* The node with that number or on that host, as in --on. -ENOENT. */
int jobs_node(struct jobs *all, const char *word, uint32_t *node);
/* Name of a node's host, as it told; "node K" before it did. */
void jobs_host(struct jobs *all, uint32_t node, char *out, size_t len);

/* --- standing_status.c --- */
json_t *standing_status(weft_node *w, struct jobs *jobs, const char *name);
char *standing_metrics(weft_node *w, struct jobs *jobs); /* the caller frees it; NULL: no memory */

/* --- standing_proxy.c --- */
/* Serve a `weft proxy` on this thread, until its command ends. Sends all the answers. */
void standing_proxy(weft_node *w, struct jobs *jobs, int fd, const struct control_request *r);

/* --- standing_serve.c --- */
struct standing_server;
/* Serve the control socket on threads of its own. `metrics`: ADDR:PORT for Prometheus, NULL: none. `on_down` is called on a thread of the
 * server when a command asks for the cluster's end. */
int standing_serve(struct standing_server **out, weft_node *w, const struct standing_place *p, const char *metrics,
                   void (*on_down)(void *arg), void *arg);
void standing_serve_end(struct standing_server *s);

/* --- standing_node.c --- */
/* Run one node. `p`: it is a control node; NULL: it is not. `alone`: it was started without the others (--here), so its end is not theirs,
 * unless `weft down` has asked for it. Returns the exit status. */
int standing_node(const struct standing_place *p, const char *metrics, bool alone);

/* --- status.c: what commands share --- */
/* Connect to a cluster and send a request. Returns the socket, or a negative errno after an error was printed. */
int standing_ask(const char *sub, const char *cluster, struct control_request *r);
/* Read the answer's next frame. `payload` has CONTROL_PIECE_MAX + 1 bytes; a zero byte ends it. Returns 0, or a negative errno without
 * base_fail(). */
int standing_answer(int fd, struct control_frame *f, char *payload);
/* Read the texts of an answer until DONE: `*out` is zero-terminated, the caller frees it. Returns 0, or the exit status after an error was
 * printed. */
int standing_text(const char *sub, int fd, char **out);

#endif
