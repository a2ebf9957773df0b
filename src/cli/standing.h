/* SPDX-License-Identifier: MIT
 *
 * A standing cluster (weft-up(1)): nodes that run until `weft down`, and offer services to the programs of their user. Its files, lowest
 * first:
 *
 *   control.c          frames and requests of the control socket
 *   standing_place.c   the cluster's folder on this host: control socket, lock, log
 *   standing_desk.c    the desk: what a node publishes about itself: host, devices, links, memory
 *   standing_told.c    what this node has learned about all nodes, also about nodes that are gone
 *   standing_say.c, standing_task.c, standing_attend.c, standing_jobs.c processes that `weft exec` has started (standing_job.h)
 *   standing_members.c addresses, secret and settings, which a node needs to join
 *   standing_forward.c   proxies and published ports (forward.h)
 *   standing_file.c    serves `weft cat`, `weft files` and `weft pin`
 *   standing_shown.c   what a status shows: the nodes, and what they publish
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
#define STANDING_LOG_MAX (INT64_C(4) << 20) /* bytes; a larger `log` is renamed to `log.1`, and replaces the former `log.1` */
struct standing_place {
    char name[STANDING_NAME_MAX + 1];
    char folder[STANDING_PATH - 8]; /* mode 0700, owned by this user */
    char socket[STANDING_PATH], log[STANDING_PATH], lock[STANDING_PATH];
    char control_lock[STANDING_PATH]; /* held by the node that serves the control socket */
    char down[STANDING_PATH];         /* while this file exists, the launchers of this host end their nodes */
    char members[STANDING_PATH];      /* addresses of members, from which nodes join again */
};
/* Find the folder of a cluster. `name`: NULL stands for WEFT_CLUSTER, or "default" if that is not set. `make`: create the folder. Returns
 * -EINVAL if the name is not allowed. Returns -EPERM if other users can reach the folder. Returns -ENOENT if the folder does not exist. */
int standing_find(struct standing_place *p, const char *name, bool make);
/* Take the cluster's lock, for a launcher. The lock is held until this process and all processes that it forks have ended. Returns the
 * lock's descriptor. `more`: the launcher adds nodes. Returns -EBUSY if the cluster is up and `more` is false, and -ECONNREFUSED if it is
 * not up and `more` is true. */
int standing_lock(const struct standing_place *p, bool more);
/* Whether a process holds the lock. */
bool standing_locked(const struct standing_place *p);
/* Try to become the control node of this host by taking the lock `control_lock`. Returns the lock's descriptor. This process holds the lock
 * until it closes the descriptor or ends. Returns -EBUSY if another process holds the lock. */
int standing_control(const struct standing_place *p);
/* Make the file `down`. When it exists, the launchers of this host end their nodes, and start no new ones. */
int standing_mark_down(const struct standing_place *p);
/* Listen on the control socket, and remove an old socket on which nobody listens. Only the control node may do this. */
int standing_listen(const struct standing_place *p);
/* Connect to the control socket. `wait`: if the cluster is up but has no control node on this host, wait up to CONTROL_NODE_NS for one.
 * Returns -ECONNREFUSED if the cluster is not up. */
#define CONTROL_NODE_NS (5 * WEFT_SECOND)
int standing_connect(const struct standing_place *p, bool wait);

/* --- standing_desk.c: the desk is in the pool of each node; its address has the name "weft.standing" in that node's name service --- */
#define DESK_NAME  "weft.standing"
#define DESK_MAGIC UINT64_C(0x3430676e69646e61)
struct desk_link { /* the link to a living node */
    weft_link_stats stats;
    uint64_t sent_rate, fetched_rate; /* bytes per second of stats.sent_bytes and stats.fetched_bytes since the last refresh */
    uint32_t node, zero;
};
struct desk_page {
    uint64_t number; /* number of the refresh */
    uint32_t pid, count;
    int64_t joined;      /* seconds since 1970 */
    uint32_t slot, zero; /* slot: the node's place (struct launch_revive) */
    char door[128];      /* WEFT_GROW of this node: the address at which other nodes can join */
    weft_pool_stats pool;
    struct topo_node node;
    struct desk_link links[]; /* [count], in the order of the nodes' numbers; the memory has room for more */
};
struct desk_head {
    uint64_t magic, newest, page_bytes; /* two pages follow: refresh K writes page K % 2, and then sets `newest` to K */
};
struct desk;
int desk_open(struct desk **out, weft_node *w, uint32_t slot);
void desk_refresh(struct desk *d);
void desk_close(struct desk *d);
/* Reads the desks of other nodes. Any thread may use this. */
struct desks;
int desks_open(struct desks **out, weft_node *w);
void desks_close(struct desks *d);
/* Get the newest pages of nodes, and check them. The caller frees the pages. Takes two seconds at most. `links`: also get the links in the
 * pages. (If N nodes read all links of each other, these are N * N * N links.) out[i]: NULL if node nodes[i] has not answered. Returns how
 * many nodes have not answered. */
uint32_t desks_get(struct desks *d, const uint32_t *nodes, uint32_t count, bool links, struct desk_page **out);

/* --- standing_jobs.c --- */
#define JOBS_KEPT_MAX  (1u << 20)        /* bytes of a detached job's output that are kept; older output is discarded */
#define JOBS_ENDED_MAX 64u               /* how many detached jobs that have ended are still listed */
#define JOBS_GRACE_NS  (5 * WEFT_SECOND) /* time from SIGTERM to SIGKILL of `weft kill` */
/* The jobs of control node K have numbers from K * JOBS_EACH on; no other control node uses these numbers */
#define JOBS_EACH   10000u
#define JOBS_FAILED 255 /* exit status if weft itself failed, the same as that of ssh */
struct jobs;
int jobs_open(struct jobs **out, weft_node *w);
void jobs_end(struct jobs *all);   /* kills the processes of all jobs, and refuses new jobs */
void jobs_close(struct jobs *all); /* waits for the threads of detached jobs; call this after jobs_end(), when no command uses the jobs */
/* Run a job for the command that is connected at `fd`, until all its processes have ended. Sends the whole answer. */
void jobs_exec(struct jobs *all, int fd, const struct control_request *r);
void jobs_alive(struct jobs *all); /* sends a sign of life to each command that waits for its job; call this every CONTROL_ALIVE_NS */
void jobs_kill(struct jobs *all, int fd, const struct control_request *r);
void jobs_logs(struct jobs *all, int fd, const struct control_request *r);
json_t *jobs_list(struct jobs *all);

/* --- standing_told.c --- */
/* Read at most `most` desks of nodes that have joined, so that their hosts are still known when the nodes are gone. Returns false if some
 * desks were not read yet. */
bool jobs_learn(struct jobs *all, uint32_t most);
/* Like desks_get(), and remembers the hosts that the pages name. */
uint32_t jobs_desks(struct jobs *all, const uint32_t *nodes, uint32_t count, bool links, struct desk_page **out);
/* Finds the node that `word` names by its number or its host, as in --on. Returns -ENOENT if there is none. */
int jobs_node(struct jobs *all, const char *word, uint32_t *node);
/* The name of a node's host from its desk; "node K" if the desk was not read yet. */
void jobs_host(struct jobs *all, uint32_t node, char *out, size_t len);
uint32_t jobs_slot(struct jobs *all, uint32_t node); /* the slot of a node, from its desk; 0 if the desk was not read yet */
/* The nodes to show, in the order of their numbers: all living nodes, and known nodes that are gone and have no successor. A successor is a
 * later node with the same host, door (desk_page.door) and slot. Returns how many; the caller frees the list. `*out` is NULL if there is no
 * memory. */
uint32_t jobs_nodes(struct jobs *all, uint32_t **out);

/* --- standing_shown.c --- */
/* The nodes to show, in the order of their numbers, with their pages. A page is NULL if its node is gone or does not answer. */
struct shown {
    uint32_t count, *nodes;
    struct desk_page **pages;
};
int shown_get(struct shown *s, struct jobs *jobs, bool links); /* 0 (then call shown_free()) or -ENOMEM */
void shown_free(struct shown *s);
/* What a node says about its link to another node. Returns NULL if the desk says nothing about this link. */
const struct desk_link *shown_link(const struct shown *s, uint32_t node, uint32_t to);

/* --- standing_status.c --- */
/* The caller frees the texts. Return NULL if there is no memory. */
char *standing_status(weft_node *w, struct jobs *jobs, const char *name, bool links);
char *standing_metrics(weft_node *w, struct jobs *jobs);

json_t *standing_settings(void); /* settings of this node that programs started on the cluster should get, too */

/* --- standing_members.c --- */
/* Write the addresses of members to the file place->members. Returns false if not all members have answered; then try again later. */
bool members_write(weft_node *w, struct jobs *jobs, const struct standing_place *place);
json_t *members_answer(weft_node *w, struct jobs *jobs); /* NULL with base_error() */
/* --- standing_file.c --- */
/* Serve a command on this thread, and send all answers. */
void standing_cat(weft_node *w, struct jobs *jobs, int fd, const struct control_request *r);
void standing_pin(weft_node *w, struct jobs *jobs, int fd, const struct control_request *r);
json_t *standing_files(weft_node *w, struct jobs *jobs);

/* --- standing_serve.c --- */
struct standing_server;
/* Serve the control socket in threads until standing_serve_end(), which also ends all jobs. `metrics`: ADDR:PORT where Prometheus can read;
 * NULL: no metrics. When a command asks to end the cluster, a thread of the server calls `on_down`. */
int standing_serve(struct standing_server **out, weft_node *w, struct jobs *jobs, const struct standing_place *p, const char *metrics,
                   void (*on_down)(void *arg), void *arg);
void standing_serve_end(struct standing_server *s);

/* --- standing_node.c --- */
/* Run one node until it is asked to end. `slot`: its place. `first`: rank of the first node of this host, which becomes the control node
 * when the cluster begins; UINT32_MAX: any node may become it. Returns the exit status for the launcher (launch.h). `instead` (may be NULL)
 * is called about once a second while the node waits for the others with which it begins the cluster. If `instead` returns non-zero, the
 * node gives up, and standing_node() returns STANDING_INSTEAD. */
#define STANDING_INSTEAD (-1)
int standing_node(const struct standing_place *p, uint32_t slot, uint32_t first, const char *metrics, int (*instead)(void));

/* --- ask.c: used by several commands --- */
/* Connect to a cluster and send a request. Returns the socket, or a negative errno after an error was printed. */
int standing_ask(const char *sub, const char *cluster, struct control_request *r);
/* Like standing_ask(), but calls `ready` (may be NULL) before it sends the request. If `ready` returns an error (with base_fail()), prints
 * it and fails. */
int standing_ask_ready(const char *sub, const char *cluster, struct control_request *r, int (*ready)(void));
/* Read the next frame of the answer. `payload` has CONTROL_PIECE_MAX + 1 bytes, since a zero byte is appended. `deadline`: when the frame
 * must begin. Returns 0, or a negative errno without base_fail(). */
int standing_answer(int fd, struct control_frame *f, char *payload, int64_t deadline);
/* Send a request, and read the texts of the answer, until DONE, into `*out`; the caller frees it. If the control node ends meanwhile, sends
 * the request again to the next control node, so executing the request twice must be harmless. Returns 0, or the exit status after an error
 * was printed. */
#define CONTROL_TRIES 3
int standing_text(const char *sub, const char *cluster, struct control_request *r, char **out);

#endif
