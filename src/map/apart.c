/* SPDX-License-Identifier: MIT
 *
 * The owner's side of nodes on other hosts; job.h calls such nodes apart. The launcher has started all nodes, and tells them by environment
 * variables how to join. The owner sends each node the address of the job's description (order.h). From then on owner and nodes work
 * together by the queue, puts and gets, and messages.
 *
 * Who kills whom: the launcher ends the other nodes when the owner has ended, and a node ends itself when the owner is gone.
 * Processes that commands have started are killed by the node's guardian (guardian.c).
 */
#include "map/job.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fabric/fabric.h"
#include "map/order.h"

#define LEAVE_WAIT (3 * WEFT_SECOND)
#define LOOK_NS    (20 * WEFT_MS) /* how often the owner checks whether every node has a route */

struct map_apart {
    _Atomic uint64_t died;                    /* nodes that have died, one bit each */
    uint64_t said;                            /* the nodes of `died` that were reported to the user */
    uint64_t out_of_reach;                    /* living nodes that were given up because they had no route for too long, one bit each */
    int64_t looked_ns, cut_ns[MAP_NODES_MAX]; /* cut_ns: when the node was first seen without a route; 0: there is a route */
    weft_gaddr given, order;
};

void map_apart_free(struct map_job *job)
{
    map_guardian_end(job);
    free(job->with);
    job->with = NULL;
}

static struct map_job *serving; /* global, since a signal handler gets no argument from us */
static _Atomic bool joined;

/* Handler of the signal by which the launcher reports that a node has ended before it joined. The joining then fails. */
static void on_told(int sig)
{
    (void)sig;
    static const char text[] = "weft map: not all nodes could be started\n";
    if (atomic_load_explicit(&joined, memory_order_relaxed))
        return;
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    map_end_all(serving);
    _exit(1);
}

static void served_free(struct map_job *job, char **served)
{
    for (uint32_t i = 0; served && i < job->input_count; i++)
        free(served[i]);
    free(served);
}

/* Makes map_order.serve. */
static int served_inputs(struct map_job *job, char ***out)
{
    bool any = false;
    for (uint32_t i = 0; i < job->input_count; i++)
        any = any || job->inputs[i].cached;
    *out = any ? calloc(job->input_count, sizeof **out) : NULL;
    bool made = !any || *out;
    for (uint32_t i = 0; any && made && i < job->input_count; i++) {
        const struct map_input *in = &job->inputs[i];
        size_t room = in->cached ? strlen(in->path) + 16 : 1;
        made = ((*out)[i] = calloc(1, room));
        if (made && in->cached)
            snprintf((*out)[i], room, "%u:%s", in->home, in->path);
    }
    return made ? 0 : base_fail(-ENOMEM, "no memory for the names of %u files" BASE_MEMORY_HINT, job->input_count);
}

static int give_order(struct map_job *job)
{
    struct map_apart *a = job->with;
    const struct map_options *o = job->options;
    bool names = false;
    for (uint32_t i = 0; o->command && o->command[i] && !o->literal; i++)
        names = names || strstr(o->command[i], "{file}");
    char **name = names ? calloc(job->input_count, sizeof *name) : NULL, **served = NULL;
    int rc = served_inputs(job, &served);
    for (uint32_t i = 0; name && i < job->input_count; i++)
        name[i] = (char *)(uintptr_t)job->inputs[i].name;
    uint32_t argc = 0;
    while (o->command && o->command[argc])
        argc++;
    struct map_order order = {.slots = o->slots || o->emulated ? job->slots : 0,
                              .retries = o->retries,
                              .timeout_ns = o->timeout_ns,
                              .lease_ns = job->lease_ns,
                              .given = a->given,
                              .tallies = job->tallies,
                              .literal = o->literal,
                              .inputs = job->input_count,
                              .names = name ? job->input_count : 0,
                              .served = served ? job->input_count : 0,
                              .argc = argc,
                              .kernel = o->command ? NULL : o->kernel,
                              .kernel_file = o->kernel_file,
                              .gpu = o->gpu,
                              .argv = (char **)(uintptr_t)o->command,
                              .name = name,
                              .serve = served};
    void *bytes = NULL;
    size_t len = 0;
    rc = rc ? rc : map_order_write(&order, &bytes, &len);
    if (!rc && (rc = weft_alloc(job->w, len, &a->order)))
        base_fail(
            rc,
            "the command and the names of the files have %zu bytes, which do not fit into a node's memory of %llu bytes: raise --memory",
            len, (unsigned long long)job->pool_bytes);
    if (!rc) {
        memcpy(weft_ptr(job->w, a->order, len), bytes, len);
        uint64_t at[2] = {a->order, len};
        for (uint32_t node = 1; node < job->nodes; node++)
            weft_send(job->w, node, MAP_HANDLER_ORDER, at, sizeof at, NULL, 0, NULL); /* a failure means that the node is gone */
    }
    free(bytes);
    free(name);
    served_free(job, served);
    return rc;
}

static void on_apart_member(weft_node *w, uint64_t epoch, uint32_t node, bool died, void *arg)
{
    (void)w, (void)epoch;
    struct map_job *job = arg;
    if (died)
        atomic_fetch_or_explicit(&job->with->died, UINT64_C(1) << node, memory_order_relaxed);
}

int map_apart_start(struct map_job *job)
{
    struct map_apart *a = job->with = calloc(1, sizeof *a);
    if (!a)
        return base_fail(-ENOMEM, "no memory for the state of the job's nodes" BASE_MEMORY_HINT);
    int rc = map_guardian_start(job, (size_t)job->nodes * job->slots);
    if (rc)
        return rc;
    serving = job;
    map_on_signal(SIGUSR2, on_told);
    sigset_t told;
    sigemptyset(&told);
    sigaddset(&told, SIGUSR2);
    pthread_sigmask(SIG_UNBLOCK, &told, NULL);
    weft_config config = {.bytes = sizeof config, .pool_bytes = job->pool_bytes};
    if ((rc = map_homes_serve(job)))
        return rc;
    rc = map_node_open(job, &config, on_apart_member);
    atomic_store_explicit(&joined, true, memory_order_relaxed);
    map_nodes_prepare_owner(job);
    if (rc || (rc = map_queue_open(job)))
        return rc;
    if ((rc = weft_alloc(job->w, MAP_NODES_MAX * sizeof(struct map_tally), &job->tallies)))
        return rc;
    memset(weft_ptr(job->w, job->tallies, MAP_NODES_MAX * sizeof(struct map_tally)), 0, MAP_NODES_MAX * sizeof(struct map_tally));
    return 0;
}

int map_apart_order(struct map_job *job)
{
    job->with->given = atomic_load_explicit(&job->board->given, memory_order_relaxed);
    int rc = map_carry_start(job);
    return rc ? rc : give_order(job);
}

/* Add a node's tally to the job's. Returns the bytes that went through the node's temporary file. */
static uint64_t take_tally(struct map_job *job, uint32_t node, bool alive)
{
    struct map_tally t;
    const struct map_tally *all = weft_ptr(job->w, job->tallies, MAP_NODES_MAX * sizeof t);
    memcpy(&t, &all[node], sizeof t);
    struct map_line *line = map_line(job, node, 0);
    atomic_store_explicit(&line->busy, alive ? (uint32_t)t.busy : 0, memory_order_relaxed);
    atomic_store_explicit(&line->pieces, t.pieces, memory_order_relaxed);
    atomic_store_explicit(&line->busy_ns, t.busy_ns, memory_order_relaxed);
    atomic_store_explicit(&line->command_ns, t.command_ns, memory_order_relaxed);
    uint32_t fine = MAP_GPU_FINE;
    if (t.gpu_failed)
        atomic_compare_exchange_strong_explicit(&job->board->gpu[node], &fine, MAP_GPU_FAILED, memory_order_relaxed, memory_order_relaxed);
    return t.spilled;
}

/* Give up a node that had no route for WEFT_LIVENESS, or that has a route again but does not answer earlier requests. The node's pieces run
 * elsewhere. A node without a route to the owner ends by itself. */
static void give_up_unreachable(struct map_job *job, map_unsure_fn unsure)
{
    struct map_apart *a = job->with;
    int64_t now = base_now_ns();
    if (now - a->looked_ns < LOOK_NS)
        return;
    a->looked_ns = now;
    for (uint32_t node = 1; node < job->nodes; node++) {
        weft_link_stats s;
        if (a->out_of_reach >> node & 1 || weft_link_stat(job->w, node, &s, sizeof s))
            continue;
        bool cut = s.via == UINT32_MAX;
        if (!unsure(job->owner, node, cut) && !cut) {
            a->cut_ns[node] = 0;
            continue;
        }
        if (a->cut_ns[node] == 0)
            a->cut_ns[node] = now;
        if (now - a->cut_ns[node] < job->w->links[node].liveness_ns)
            continue;
        a->out_of_reach |= UINT64_C(1) << node;
        fab_give_up(job->w, node, "it could not be reached for longer than WEFT_LIVENESS");
    }
}

void map_apart_check(struct map_job *job, map_unsure_fn unsure)
{
    struct map_apart *a = job->with;
    give_up_unreachable(job, unsure);
    uint64_t spilled = 0, died = atomic_load_explicit(&a->died, memory_order_relaxed), fresh = died & ~a->said;
    a->said = died;
    for (uint32_t node = 1; node < job->nodes; node++) {
        spilled += take_tally(job, node, !(died >> node & 1));
        if (!(fresh >> node & 1))
            continue;
        job->counts.nodes_died++;
        map_say(job, "node %u %s; its pieces run again elsewhere", node,
                a->out_of_reach >> node & 1 ? "cannot be reached any more" : "is gone");
    }
    job->counts.spilled_apart = spilled;
    map_gpu_report(job);
}

void map_apart_printing(struct map_job *job, bool printing)
{
    uint32_t now = printing;
    for (uint32_t node = 1; node < job->nodes; node++)
        if (weft_alive(job->w, node))
            weft_send(job->w, node, MAP_HANDLER_PRINTS, &now, sizeof now, NULL, 0, NULL);
}

void map_apart_wait(struct map_job *job, map_unsure_fn unsure)
{
    int64_t deadline = base_deadline(LEAVE_WAIT);
    while (weft_alive_count(job->w) > 1 && base_now_ns() < deadline)
        base_sleep_ns(200 * WEFT_US);
    map_apart_check(job, unsure);
    map_carry_stop(job);
}
