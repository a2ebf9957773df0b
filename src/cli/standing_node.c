/* SPDX-License-Identifier: MIT
 *
 * One node of a standing cluster: it joins, offers all services, refreshes its desk, and ends when it is asked to. On each host one of the
 * nodes is the control node, which serves the control socket. When the control node is gone, another node of the host takes its place. When
 * a command asks a control node to end the cluster, this node sends a message to all other nodes, and leaves when they have left.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/hosts.h"
#include "cli/launch.h"
#include "cli/self.h"
#include "cli/standing.h"
#include "cluster/cluster.h"
#include "verbs/verbs.h"

#define END_HANDLER 1u
#define ROUND_NS    (200 * WEFT_MS)    /* time between two attempts to become the control node, and between two checks for new members */
#define FIRST_NS    (10 * WEFT_SECOND) /* how long the first node of a host may take to become the control node */
#define REFRESH_NS  WEFT_SECOND
#define WARN_NS     (60 * WEFT_SECOND)
#define LEARN_ALL   64u /* in a cluster of at most this many nodes, each node reads all desks at once */
/* in a larger cluster, a node that is not the control node reads this many desks a round, because N nodes read N * N desks */
#define LEARN_EACH  2u
#define LEAVE_NS    (10 * WEFT_SECOND) /* how long the other nodes may take to leave when the cluster ends */
#define LEAVE_ROUND (50 * WEFT_MS)

static _Atomic uint32_t ended; /* 1: a command or another node has asked to end the cluster */

struct standing {
    weft_node *w;
    const struct standing_place *place;
    const char *metrics;
    struct desk *desk;
    struct jobs *jobs;
    struct standing_server *server; /* NULL: this node is not the control node */
    int control;                    /* descriptor of the control node's lock; -1: another process holds it */
    /* rank of the node that should become the control node; UINT32_MAX: any. While this node lives, other nodes do not try before the time
     * `leave_it` */
    uint32_t first;
    int64_t leave_it;
    _Atomic bool tells; /* a command has asked this node to end the cluster, so it tells the other nodes */
};

static int (*join_instead)(void);

static int stopped(void)
{
    return cli_stopped() || (join_instead && join_instead());
}

static void end_node(void *arg)
{
    (void)arg;
    ended = 1;
    base_futex_wake(&ended, 1);
}

/* Called when a node has joined or is gone. A node that is gone may have been the control node. So this wakes stay(), which tries to take
 * its place. */
static void on_change(weft_node *w, uint64_t epoch, uint32_t node, bool died, void *arg)
{
    (void)w, (void)epoch, (void)node, (void)died, (void)arg;
    base_futex_wake(&ended, 1);
}

static void on_down(void *arg)
{
    struct standing *s = arg;
    s->tells = true;
    end_node(NULL);
}

static void on_end_message(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                           void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    end_node(arg);
}

/* Tell all other nodes to end, and wait until they have left. Repeats this for nodes that join meanwhile. */
static void end_all(weft_node *w)
{
    for (int64_t deadline = base_deadline(LEAVE_NS); weft_alive_count(w) > 1 && base_now_ns() < deadline; base_sleep_ns(LEAVE_ROUND))
        for (uint32_t i = 0; i < weft_size(w); i++)
            if (i != weft_rank(w) && weft_alive(w, i))
                weft_send(w, i, END_HANDLER, NULL, 0, NULL, 0, NULL);
}

/* Become the control node, if this host has none. Returns 1 if this node is the control node now, 0 if another node is, or a negative
 * errno. */
static int take_control(struct standing *s)
{
    if (s->first != UINT32_MAX && s->first != weft_rank(s->w) && weft_alive(s->w, s->first) && base_now_ns() < s->leave_it)
        return 0;
    int fd = standing_control(s->place);
    if (fd < 0)
        return fd == -EBUSY ? 0 : fd;
    int rc = standing_serve(&s->server, s->w, s->jobs, s->place, s->metrics, on_down, s);
    if (!rc) {
        s->control = fd;
        return 1;
    }
    base_context(rc, "this node cannot receive commands that are given on this host");
    standing_serve_end(s->server);
    s->server = NULL;
    close(fd);
    return rc;
}

static void stay(struct standing *s)
{
    int64_t refreshed = base_now_ns(), warned = 0;
    uint64_t epoch = 0, learned = 0; /* epoch: of the last refresh; learned: the last epoch at which the hosts of all nodes were known */
    for (; !ended && !cli_stopped(); base_futex_wait(&ended, 0, ROUND_NS)) {
        if (base_now_ns() - refreshed >= REFRESH_NS - ROUND_NS / 2 || weft_epoch(s->w) != epoch) {
            epoch = weft_epoch(s->w);
            refreshed = base_now_ns();
            desk_refresh(s->desk);
        }
        if (epoch != learned && jobs_learn(s->jobs, s->server || weft_alive_count(s->w) <= LEARN_ALL ? UINT32_MAX : LEARN_EACH))
            learned = epoch;
        if (s->server || ended || take_control(s) >= 0 || (warned && base_now_ns() - warned < WARN_NS))
            continue;
        base_log(BASE_LOG_WARN, "%s", base_error());
        warned = base_now_ns();
    }
}

/* The exit status for the launcher when the node could not join: it says whether to try again. */
static int cannot_join(int rc)
{
    const char *join = getenv("WEFT_JOIN");
    cli_error("up", "%s", base_error());
    if (!join || !join[0])
        return CLI_FAILED;
    /* -EACCES is worth another attempt, because it also occurs when a member dies while it answers */
    return rc == -ENOSPC || rc == -EINVAL ? LAUNCH_CANNOT_JOIN : LAUNCH_NOT_JOINED;
}

/* Let this node, all programs that it starts, and the node that replaces it use the Thunderbolt devices of the host through one guard
 * process. The guard is started when a device is used. WEFT_GUARD= (empty) turns this off. */
static int share_guard(const struct standing_place *p, uint32_t slot)
{
    const char *command = getenv("WEFT_GUARD");
    char path[STANDING_PATH + 16], self[4096];
    if ((command && !command[0]) || !verbs_thunderbolt_here())
        return 0;
    int n = snprintf(path, sizeof path, "%s/guard.%u", p->folder, slot);
    if (n >= STANDING_PATH)
        return base_fail(-ENAMETOOLONG, "%s: the path of a socket can have at most %d bytes: set XDG_RUNTIME_DIR to a shorter path", path,
                         STANDING_PATH - 1);
    setenv("WEFT_GUARD_SOCKET", path, 1);
    if (!command)
        setenv("WEFT_GUARD", self_path(self, sizeof self), 1);
    return 0;
}

/* Raise the limit of open files, because each connection of a proxy or gateway is an open file. Programs that this node starts for others
 * get the limit from before. */
static void raise_files(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files); /* may fail on macOS */
    }
}

int standing_node(const struct standing_place *p, uint32_t slot, uint32_t first, const char *metrics, int (*instead)(void))
{
    struct standing s = {.place = p, .metrics = metrics, .control = -1, .first = first};
    const char *home = getenv("HOME");
    signal(SIGPIPE, SIG_IGN);
    cli_catch_signals();
    join_instead = instead;
    cluster_stopped = stopped;
    setenv("WEFT_SERVE", "process,name,net,file", 1);
    int rc = share_guard(p, slot);
    if (!rc)
        rc = weft_open(&s.w, NULL);
    join_instead = NULL;
    if (rc)
        return cli_stopped() ? 128 + cli_stopped() : rc == -EINTR ? STANDING_INSTEAD : cannot_join(rc);
    raise_files();
    if ((!home || chdir(home)) && chdir("/")) /* programs start in the home folder, as with ssh */
        base_log(BASE_LOG_WARN, "cannot change to directory /: %s", base_strerror(errno));
    s.leave_it = base_deadline(FIRST_NS);
    weft_handle(s.w, END_HANDLER, on_end_message, NULL);
    weft_on_change(s.w, on_change, NULL);
    rc = desk_open(&s.desk, s.w, slot);
    if (!rc)
        rc = jobs_open(&s.jobs, s.w);
    if (!rc)
        rc = take_control(&s);
    if (rc >= 0)
        stay(&s);
    else
        cli_error("up", "%s", base_error());
    if (ended) /* from now on the launcher does not replace this node, even if it dies while it leaves */
        standing_mark_down(p);
    if (s.tells)
        end_all(s.w);
    standing_serve_end(s.server);
    if (s.control >= 0)
        close(s.control); /* now another node may take over */
    jobs_close(s.jobs);
    weft_close(s.w);
    desk_close(s.desk);
    return rc < 0 ? CLI_FAILED : ended ? 0 : cli_stopped() ? 128 + cli_stopped() : 0;
}
