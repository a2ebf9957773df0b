/* SPDX-License-Identifier: MIT
 *
 * One node of a standing cluster: it joins, offers all services, keeps its desk, and ends when it is told to. The control node, usually
 * node 0, also serves the control socket. When a command asks it for the cluster's end it tells all other nodes by a message.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/launch.h"
#include "cli/standing.h"
#include "cluster/cluster.h"

#define END_HANDLER 1u
#define REFRESH_NS  WEFT_SECOND

static _Atomic uint32_t ended; /* 1: this node is to end */

static void end_node(void *arg)
{
    (void)arg;
    ended = 1;
    base_futex_wake(&ended, 1);
}

static void on_end_message(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                           void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    end_node(arg);
}

/* While joining: a signal, or the launcher's word that another node has failed. */
static int stopped_or_told(void)
{
    sigset_t pending;
    return cli_stopped() || (sigpending(&pending) == 0 && sigismember(&pending, LAUNCH_TOLD) == 1);
}

static void tell_others(weft_node *w)
{
    for (uint32_t i = 0; i < weft_size(w); i++)
        if (i != weft_rank(w) && weft_alive(w, i))
            weft_send(w, i, END_HANDLER, NULL, 0, NULL, 0, NULL);
}

static void stay(struct desk *desk)
{
    while (!ended && !cli_stopped()) {
        base_futex_wait(&ended, 0, REFRESH_NS);
        desk_refresh(desk);
    }
}

int standing_node(const struct standing_place *p, const char *metrics, bool alone)
{
    weft_node *w;
    struct desk *desk = NULL;
    struct standing_server *server = NULL;
    const char *home = getenv("HOME");
    sigset_t told;
    sigemptyset(&told);
    sigaddset(&told, LAUNCH_TOLD);
    sigprocmask(SIG_BLOCK, &told, NULL);
    signal(SIGPIPE, SIG_IGN);
    cli_catch_signals();
    cluster_stopped = stopped_or_told;
    setenv("WEFT_SERVE", "process,name,net", 1);
    const weft_config config = {.bytes = sizeof config, .grow = ""}; /* also if the hostfile has it: status and jobs know no newcomers */
    int rc = weft_open(&w, &config);
    if (rc)
        return cli_stopped() ? 128 + cli_stopped() : cli_error("up", "%s", base_error());
    if ((!home || chdir(home)) && chdir("/")) /* programs start here, as they do with ssh */
        base_log(BASE_LOG_WARN, "cannot change to directory /: %s", base_strerror(errno));
    weft_handle(w, END_HANDLER, on_end_message, NULL);
    rc = desk_open(&desk, w);
    if (!rc && p)
        rc = standing_serve(&server, w, p, metrics, end_node, NULL);
    if (!rc)
        stay(desk);
    if (p && (ended || (!alone && (rc || cli_stopped()))))
        tell_others(w);
    if (rc)
        cli_error("up", "%s", base_error());
    standing_serve_end(server);
    weft_close(w);
    desk_close(desk);
    return rc ? CLI_FAILED : 0;
}
