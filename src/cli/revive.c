/* SPDX-License-Identifier: MIT
 *
 * For the launcher of a standing cluster: when a node has ended, start a new one. The new node joins the running cluster, gets a new
 * number, and takes the place of the old node (struct launch_revive).
 *
 * If nodes end soon after their start, the launcher waits longer before each new start, because each start uses up a number.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/launcher.h"

#define HASTY_NS  (2 * WEFT_SECOND) /* a node that has lived for a shorter time has ended "soon" */
#define AGAIN_MIN (100 * WEFT_MS)
#define AGAIN_MAX (30 * WEFT_SECOND)
#define TRIES     3u              /* after this many attempts to join that fail in a row, the place is given up */
#define LOOK_NS   (500 * WEFT_MS) /* time between two checks whether the cluster is to end */
#define START_NS  (10 * WEFT_MS)  /* time between two checks whether the cluster is up */

static void forget(struct launcher *s)
{
    for (uint32_t i = 0; i < s->l->nodes; i++)
        s->nodes[i].waits = false;
    s->waiting = 0;
}

/* Lets a new node be started later. Returns after how many ns. */
static int64_t start_later(struct launcher *s, struct node *node, int64_t lived)
{
    int64_t delay = AGAIN_MIN;
    node->hasty = lived < HASTY_NS ? node->hasty + 1 : node->hasty / 2;
    for (uint32_t i = 1; i < node->hasty && delay < AGAIN_MAX; i++)
        delay *= 2;
    delay = delay < AGAIN_MAX ? delay : AGAIN_MAX;
    node->again = base_now_ns() + delay;
    node->waits = true;
    s->waiting++;
    return delay;
}

/* Start no more nodes at a place. When all places are given up, the launcher ends. */
static void give_up(struct launcher *s, uint32_t place, const char *why)
{
    launch_say(s, "no new node is started at place %u of this host: %s", place, why);
    s->status = s->status ? s->status : 1;
}

/* Check whether the cluster is up. When it is up, a node that ends is replaced by a new one; before that, the end of one node ends all
 * nodes. */
static void see_if_up(struct launcher *s)
{
    s->up = s->up || access(s->l->revive->up, F_OK) == 0;
}

bool revive_ended(struct launcher *s, uint32_t rank, int how)
{
    struct node *node = &s->nodes[rank];
    uint32_t place = launch_place(s, rank);
    int status = base_process_status(how);
    char name[32], what[96];
    see_if_up(s);
    if (!s->up)
        return false;
    if (status == LAUNCH_CANNOT_JOIN) {
        give_up(s, place, "the node cannot join; see its error message in this log");
        return true;
    }
    node->tries = status == LAUNCH_NOT_JOINED ? node->tries + 1 : 0;
    if (node->tries == TRIES) {
        give_up(s, place, "no node of the cluster lets a new node join: the cluster has ended, or this host cannot reach the other hosts");
        return true;
    }
    int64_t lived = base_now_ns() - node->began, delay = start_later(s, node, lived);
    if (WIFSIGNALED(how))
        snprintf(what, sizeof what, "was killed by %s", launch_signal_name(WTERMSIG(how), name, sizeof name));
    else
        snprintf(what, sizeof what, "exited with %d", status);
    launch_say(s, "the node at place %u of this host (pid %d) %s after %.1f s; a new one is started there in %.1f s", place, (int)node->pid,
               what, (double)lived / 1e9, (double)delay / 1e9);
    return true;
}

/* Set WEFT_JOIN for a new node: the addresses that the nodes of this host have written to the file or, if there is no file, those that the
 * launcher got at its start. */
static void read_members(struct launcher *s)
{
    const struct launch_revive *r = s->l->revive;
    char line[sizeof s->join - 16] = "";
    FILE *f = r->join_file ? fopen(r->join_file, "re") : NULL;
    if (f && fgets(line, sizeof line, f))
        line[strcspn(line, "\n")] = '\0';
    if (f)
        fclose(f);
    snprintf(s->join, sizeof s->join, "WEFT_JOIN=%s", line[0] ? line : r->join);
}

static void start_again(struct launcher *s, uint32_t rank)
{
    struct node *node = &s->nodes[rank];
    node->waits = false;
    s->waiting--;
    for (uint32_t i = 2 * rank; s->in && i < 2 * rank + 2; i++) { /* pass on the rest of the old node's output */
        while (s->in[i].fd >= 0 && s->in[i].drained <= (1u << 20) && relay_read(&s->in[i]) > 0)
            ;
        relay_close(&s->in[i]);
    }
    read_members(s);
    node->began = base_now_ns();
    if (launch_start_node(s, rank))
        start_later(s, node, 0); /* a start that fails counts as a node that ended soon */
}

bool revive_down(struct launcher *s)
{
    see_if_up(s); /* look often: a control node that leaves removes the socket for a moment */
    return !s->ending && access(s->l->revive->down, F_OK) == 0;
}

void revive_round(struct launcher *s)
{
    if (s->ending)
        forget(s);
    for (uint32_t i = 0; i < s->l->nodes && s->waiting; i++)
        if (s->nodes[i].waits && base_now_ns() >= s->nodes[i].again)
            start_again(s, i);
}

int64_t revive_due(const struct launcher *s)
{
    int64_t due = base_now_ns() + (s->up ? LOOK_NS : START_NS);
    for (uint32_t i = 0; i < s->l->nodes && s->waiting; i++)
        if (s->nodes[i].waits && s->nodes[i].again < due)
            due = s->nodes[i].again;
    return due;
}
