/* SPDX-License-Identifier: MIT
 *
 * A standing cluster: nodes that stay until `weft down`, and offer their services to the programs of their user. Its files, lowest first:
 *
 *   control.c          frames and requests of the control socket
 *   standing_place.c   the cluster's folder on this host: control socket, lock, log
 *   standing_desk.c    what a node tells of itself: host, devices, links, memory
 *   standing_told.c    what nodes have told, also those that are gone
 *   standing_task.c, standing_jobs.c   processes that were asked for by `weft exec`
 *   standing_members.c   what a node needs to join
 *   standing_proxy.c   proxies that were asked for by `weft proxy`
 *   standing_file.c    files that were asked for by `weft cat`, `weft files`, `weft pin`
 *   standing_serve.c   the control socket's server; standing_status.c: its answers to `weft status`, and to Prometheus
 *   standing_node.c    one node
 *   up.c, up_launcher.c, up_door.c, up_hosts.c, up_here.c, exec.c, status.c, jobs.c, files.c   the commands
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
    char control_lock[STANDING_PATH]; /* the node that serves the control socket has it */
    char down[STANDING_PATH];         /* a file that says to the launchers of this host that the cluster ends */
    char members[STANDING_PATH];      /* addresses of members, for nodes that join again */
};
/* Find the folder of a cluster. `name`: NULL: WEFT_CLUSTER, else "default". `make`: create it. Errors: -EINVAL the name; -EPERM the folder
 * is not this user's alone; -ENOENT it does not exist (not if `make`); others of the system. */
int standing_find(struct standing_place *p, const char *name, bool make);
/* Take the cluster's lock, for the life of this process and of those that it forks: a launcher has it. Returns the descriptor. The first
 * launcher: -EBUSY: the cluster is up. `more`: this one starts more nodes of a cluster that is up; -ECONNREFUSED: it is not. */
int standing_lock(const struct standing_place *p, bool more);
/* Whether somebody has the lock. */
bool standing_locked(const struct standing_place *p);
/* Try to become the control node of this host: take the lock for it. Returns its descriptor, which must stay open: the lock is this
 * process's alone, and is given back when it closes the descriptor or ends. -EBUSY: another process has it. */
int standing_control(const struct standing_place *p);
/* Make the file `down`: the launchers of this host end their nodes, and start none again. */
int standing_mark_down(const struct standing_place *p);
/* Listen on the control socket; replaces one that nobody listens on. Only the control node may do this. */
int standing_listen(const struct standing_place *p);
/* Connect to the control socket. `wait`: while the cluster is up here without a control node, wait for one, up to CONTROL_NODE_NS.
 * -ECONNREFUSED: the cluster is not up. */
#define CONTROL_NODE_NS (5 * WEFT_SECOND)
int standing_connect(const struct standing_place *p, bool wait);

/* --- standing_desk.c: in the pool of each node; its address has the name "weft.standing" at that node's own name service --- */
#define DESK_NAME  "weft.standing"
#define DESK_MAGIC UINT64_C(0x3330676e69646e61)
struct desk_link { /* to a living node */
    weft_link_stats stats;
    uint64_t bytes, bytes_per_second; /* that this node has sent and received over rc and tb; in the last second */
    uint32_t node, zero;
};
struct desk_page {
    uint64_t number; /* of the refresh */
    uint32_t pid, count;
    int64_t joined;      /* seconds since 1970 */
    uint32_t slot, zero; /* slot: which of the nodes of its host it is. A node that comes back has the slot of the one before it */
    char door[128];      /* address at which this node lets others join: the node's WEFT_GROW */
    weft_pool_stats pool;
    struct topo_node node;
    struct desk_link links[]; /* [count], by number of the node; the memory has room for more */
};
struct desk_head {
    uint64_t magic, newest, page_bytes; /* two pages follow: refresh K is written to page K % 2, and `newest` becomes K */
};
struct desk;
int desk_open(struct desk **out, weft_node *w, uint32_t slot);
void desk_refresh(struct desk *d);
void desk_close(struct desk *d);
/* Gets the pages of nodes. Any thread. */
struct desks;
int desks_open(struct desks **out, weft_node *w);
void desks_close(struct desks *d);
/* Get the newest page of a node: checked; the caller frees it. */
int desk_get(struct desks *d, uint32_t node, struct desk_page **out);

/* --- standing_jobs.c --- */
#define JOBS_KEPT_MAX  (1u << 20)        /* bytes of output that are kept of a detached job: the newest */
#define JOBS_ENDED_MAX 64u               /* detached jobs that have ended and are still known */
#define JOBS_GRACE_NS  (5 * WEFT_SECOND) /* between SIGTERM and SIGKILL of `weft kill` */
#define JOBS_EACH      10000u /* the jobs of control node K have numbers above K times this, so that the next control node gives others */
#define JOBS_FAILED    255    /* exit status when weft itself failed, as that of ssh */
struct jobs;
int jobs_open(struct jobs **out, weft_node *w);
void jobs_end(struct jobs *all);   /* kill all processes, and refuse new jobs */
void jobs_close(struct jobs *all); /* after jobs_end(), and when no command uses it: waits for the threads of detached jobs */
/* Run a job for the command at `fd`, until all has ended. Sends all the answers. */
void jobs_exec(struct jobs *all, int fd, const struct control_request *r);
void jobs_kill(struct jobs *all, int fd, const struct control_request *r);
void jobs_logs(struct jobs *all, int fd, const struct control_request *r);
json_t *jobs_list(struct jobs *all);

/* --- standing_told.c --- */
/* Learn the hosts of nodes that have joined, so that they are known when the nodes are gone. False: some have not told of themselves yet.
 */
bool jobs_learn(struct jobs *all);
/* desk_get(), and remember what it says of the node's host. */
int jobs_desk(struct jobs *all, uint32_t node, struct desk_page **out);
/* The node with that number or on that host, as in --on. -ENOENT. */
int jobs_node(struct jobs *all, const char *word, uint32_t *node);
/* Name of a node's host, as it told; "node K" before it did. */
void jobs_host(struct jobs *all, uint32_t node, char *out, size_t len);
uint32_t jobs_slot(struct jobs *all, uint32_t node); /* as it told; 0 before it did */
/* The nodes to show: all that live, and of those that are gone the ones that told of themselves and have no successor, that is no later
 * node with their host, door and slot. By number; the caller frees the list. Returns how many; `*out` NULL: no memory. */
uint32_t jobs_nodes(struct jobs *all, uint32_t **out);

/* --- standing_status.c --- */
json_t *standing_status(weft_node *w, struct jobs *jobs, const char *name);
char *standing_metrics(weft_node *w, struct jobs *jobs); /* the caller frees it; NULL: no memory */

json_t *standing_settings(void); /* settings of this node that a program of the cluster is to have as well */

/* --- standing_members.c --- */
/* Write the addresses of members to the place's file. False: try again. */
bool members_write(weft_node *w, struct jobs *jobs, const struct standing_place *place);
json_t *members_answer(weft_node *w, struct jobs *jobs); /* NULL with base_error() */
/* --- standing_proxy.c --- */
/* Serve a `weft proxy` on this thread, until its command ends. Sends all the answers. */
void standing_proxy(weft_node *w, struct jobs *jobs, int fd, const struct control_request *r);

/* --- standing_file.c --- */
/* Serve a command on this thread. Send all the answers. */
void standing_cat(weft_node *w, struct jobs *jobs, int fd, const struct control_request *r);
void standing_pin(weft_node *w, struct jobs *jobs, int fd, const struct control_request *r);
json_t *standing_files(weft_node *w, struct jobs *jobs);

/* --- standing_serve.c --- */
struct standing_server;
/* Serve the control socket on threads of its own, until standing_serve_end(), which also ends all jobs. `metrics`: ADDR:PORT for
 * Prometheus, NULL: none. `on_down` is called on a thread of the server when a command asks for the cluster's end. */
int standing_serve(struct standing_server **out, weft_node *w, struct jobs *jobs, const struct standing_place *p, const char *metrics,
                   void (*on_down)(void *arg), void *arg);
void standing_serve_end(struct standing_server *s);

/* --- standing_node.c --- */
/* Run one node, until it is told to end. `slot`: which of the nodes of its host it is. `first`: number of the first node of this host,
 * which is to be the control node when the cluster begins; UINT32_MAX: any. Returns the exit status, for the launcher: see launch.h.
 * `instead` is called every second or so while the node waits for others to begin a cluster with; when it returns non-zero, the node gives
 * up and STANDING_INSTEAD is returned. NULL: not. */
#define STANDING_INSTEAD (-1)
int standing_node(const struct standing_place *p, uint32_t slot, uint32_t first, const char *metrics, int (*instead)(void));

/* --- status.c: what commands share --- */
/* Connect to a cluster and send a request. Returns the socket, or a negative errno after an error was printed. */
int standing_ask(const char *sub, const char *cluster, struct control_request *r);
#define STANDING_ANSWER_NS (20 * WEFT_SECOND) /* a control node that says nothing for so long hangs */
/* Read the answer's next frame. `payload` has CONTROL_PIECE_MAX + 1 bytes; a zero byte ends it. `deadline`: for the frame to begin. Returns
 * 0, or a negative errno without base_fail(). */
int standing_answer(int fd, struct control_frame *f, char *payload, int64_t deadline);
/* Ask, and read the texts of the answer until DONE: `*out` is zero-terminated, the caller frees it. A control node that ends meanwhile is
 * followed by another one, which is asked again, so the request must be one that may be made twice. Returns 0, or the exit status after an
 * error was printed. */
#define CONTROL_TRIES 3
int standing_text(const char *sub, const char *cluster, struct control_request *r, char **out);

#endif
