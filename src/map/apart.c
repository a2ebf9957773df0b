/* SPDX-License-Identifier: MIT
 *
 * Nodes on hosts of their own. The launcher has started them all, the owner included; they find each other by the
 * environment it gave them. The owner sends each the address of the order, and works with them by queue, gaddr and message
 * from then on.
 *
 * Who kills whom: the launcher ends the other nodes when the owner has ended, and a node ends when it sees the owner gone.
 * What commands have started ends with the node's guardian, a child in a session of its own, which nothing kills that kills
 * the node's process group: it sees on the board what runs, and in a pipe when the node has ended.
 */
#include "map/job.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fabric/fabric.h"
#include "map/order.h"
#include "map/owner.h"

#define ORDER_WAIT (30 * WEFT_SECOND)
#define LEAVE_WAIT (3 * WEFT_SECOND)
#define LOOK_NS    (20 * WEFT_MS) /* how often the owner looks whether ways lead to all nodes */

struct map_apart {
    pid_t guardian;
    int guardian_fd;
    _Atomic uint64_t died;                    /* a bit a node; the owner's */
    uint64_t said;                            /* of these, what has been said */
    uint64_t out_of_reach;                    /* and which the owner gave up, though they live: a bit a node */
    int64_t looked_ns, cut_ns[MAP_NODES_MAX]; /* since when no way leads to a node; 0: one does */
    uint64_t spilled[MAP_NODES_MAX];
    weft_gaddr given, order, tallies;
    /* A node's. */
    pthread_mutex_t lock;
    pthread_cond_t ordered;
    uint64_t order_at[2]; /* gaddr, length */
    char *order_bytes;
    struct map_order o;
    struct map_options options;
    struct map_tally tally;
    weft_op tally_op;
    bool tally_sent, leaving;
};

/* --- the guardian --- */

static _Noreturn void guard(struct map_job *job, int fd, size_t lines)
{
    char byte;
    base_process_set_apart("weft-guardian");
    while (read(fd, &byte, 1) < 0 && errno == EINTR)
        ;
    for (size_t i = 0; i < lines; i++)
        map_line_kill(&job->board->lines[i]);
    _exit(0);
}

/* Before anything is open that others must see closed when this process has ended. */
static int start_guardian(struct map_job *job, size_t lines)
{
    int fds[2], rc = base_pipe(fds, 0);
    if (rc)
        return base_fail(rc, "cannot make a pipe: %s", base_strerror(rc));
    fflush(NULL);
    pid_t pid = base_process_fork(); /* all signals stay blocked in the guardian */
    if (pid == 0) {
        close(fds[1]);
        guard(job, fds[0], lines);
    }
    close(fds[0]);
    if (pid < 0) {
        close(fds[1]);
        return base_fail((int)pid, "cannot start a process: %s", base_strerror((int)pid));
    }
    job->with->guardian = pid;
    job->with->guardian_fd = fds[1];
    return 0;
}

static int make(struct map_job *job, size_t lines)
{
    struct map_apart *a = job->with = calloc(1, sizeof *a);
    if (!a)
        return base_fail(-ENOMEM, "no memory for the job");
    a->guardian_fd = -1;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->ordered, NULL);
    return start_guardian(job, lines);
}

void map_apart_free(struct map_job *job)
{
    struct map_apart *a = job->with;
    if (!a)
        return;
    if (a->guardian_fd >= 0) {
        close(a->guardian_fd);
        base_process_reap(a->guardian);
    }
    map_order_free(&a->o);
    free(a->order_bytes);
    pthread_cond_destroy(&a->ordered);
    pthread_mutex_destroy(&a->lock);
    free(a);
    job->with = NULL;
}

/* --- the owner --- */

static struct map_job *serving; /* a signal handler has no argument of ours */
static _Atomic bool joined;

/* A node has ended that should be joining: this can come to nothing. */
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

static int give_order(struct map_job *job)
{
    struct map_apart *a = job->with;
    const struct map_options *o = job->options;
    bool names = false;
    for (uint32_t i = 0; o->command && o->command[i] && !o->literal; i++)
        names = names || strstr(o->command[i], "{file}");
    char **name = names ? calloc(job->input_count, sizeof *name) : NULL;
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
                              .tallies = a->tallies,
                              .literal = o->literal,
                              .inputs = job->input_count,
                              .names = name ? job->input_count : 0,
                              .argc = argc,
                              .kernel = o->command ? NULL : o->kernel,
                              .kernel_file = o->kernel_file,
                              .argv = (char **)(uintptr_t)o->command,
                              .name = name};
    void *bytes = NULL;
    size_t len = 0;
    int rc = map_order_write(&order, &bytes, &len);
    if (!rc && (rc = weft_alloc(job->w, len, &a->order)))
        base_fail(rc, "the command and the names of the files have %zu bytes, and a node's pool %llu: more --memory is needed", len,
                  (unsigned long long)job->pool_bytes);
    if (!rc) {
        memcpy(weft_ptr(job->w, a->order, len), bytes, len);
        uint64_t at[2] = {a->order, len};
        for (uint32_t node = 1; node < job->nodes; node++)
            weft_send(job->w, node, MAP_HANDLER_ORDER, at, sizeof at, NULL, 0, NULL); /* or it is gone already */
    }
    free(bytes);
    free(name);
    return rc;
}

int map_apart_start(struct map_job *job)
{
    int rc = make(job, (size_t)job->nodes * job->slots);
    if (rc)
        return rc;
    serving = job;
    map_on_signal(SIGUSR2, on_told);
    sigset_t told;
    sigemptyset(&told);
    sigaddset(&told, SIGUSR2);
    pthread_sigmask(SIG_UNBLOCK, &told, NULL);
    weft_config config = {.bytes = sizeof config, .pool_bytes = job->pool_bytes};
    rc = map_node_open(job, &config);
    atomic_store_explicit(&joined, true, memory_order_relaxed);
    map_nodes_prepare_owner(job);
    if (rc || (rc = map_queue_open(job)))
        return rc;
    struct map_apart *a = job->with;
    if ((rc = weft_alloc(job->w, MAP_NODES_MAX * sizeof(struct map_tally), &a->tallies)))
        return rc;
    memset(weft_ptr(job->w, a->tallies, MAP_NODES_MAX * sizeof(struct map_tally)), 0, MAP_NODES_MAX * sizeof(struct map_tally));
    return 0;
}

int map_apart_order(struct map_job *job)
{
    job->with->given = atomic_load_explicit(&job->board->given, memory_order_relaxed);
    int rc = map_carry_start(job);
    return rc ? rc : give_order(job);
}

static void take_tally(struct map_job *job, uint32_t node, bool alive)
{
    struct map_tally t;
    const struct map_tally *all = weft_ptr(job->w, job->with->tallies, MAP_NODES_MAX * sizeof t);
    memcpy(&t, &all[node], sizeof t);
    struct map_line *line = map_line(job, node, 0);
    atomic_store_explicit(&line->busy, alive ? (uint32_t)t.busy : 0, memory_order_relaxed);
    atomic_store_explicit(&line->pieces, t.pieces, memory_order_relaxed);
    atomic_store_explicit(&line->busy_ns, t.busy_ns, memory_order_relaxed);
    atomic_store_explicit(&line->command_ns, t.command_ns, memory_order_relaxed);
    job->with->spilled[node] = t.spilled;
}

uint64_t map_apart_spilled(const struct map_job *job)
{
    uint64_t sum = 0;
    for (uint32_t node = 1; job->with && node < job->nodes; node++)
        sum += job->with->spilled[node];
    return sum;
}

/* A node to which no way leads for as long as a silent one is waited for is as good as dead: its pieces run elsewhere, and as the
 * owner is gone for it, too, it ends. The same when there is a way again, and what it was asked for before still does not come. */
static void give_up_unreachable(struct map_job *job)
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
        if (!home_unsure(job->owner, node, cut) && !cut) {
            a->cut_ns[node] = 0;
            continue;
        }
        if (a->cut_ns[node] == 0)
            a->cut_ns[node] = now;
        if (now - a->cut_ns[node] < job->w->links[node].liveness_ns)
            continue;
        a->out_of_reach |= UINT64_C(1) << node;
        fab_give_up(job->w, node, "no way has led to it for too long (WEFT_LIVENESS)");
    }
}

void map_apart_check(struct map_job *job)
{
    struct map_apart *a = job->with;
    give_up_unreachable(job);
    uint64_t died = atomic_load_explicit(&a->died, memory_order_relaxed), fresh = died & ~a->said;
    a->said = died;
    for (uint32_t node = 1; node < job->nodes; node++) {
        take_tally(job, node, !(died >> node & 1));
        if (!(fresh >> node & 1))
            continue;
        job->counts.nodes_died++;
        map_say(job, "node %u %s; its pieces run again elsewhere", node,
                a->out_of_reach >> node & 1 ? "cannot be reached any more" : "is gone");
    }
}

void map_apart_printing(struct map_job *job, bool printing)
{
    uint32_t now = printing;
    for (uint32_t node = 1; node < job->nodes; node++)
        if (weft_alive(job->w, node))
            weft_send(job->w, node, MAP_HANDLER_PRINTS, &now, sizeof now, NULL, 0, NULL);
}

void map_apart_wait(struct map_job *job)
{
    int64_t deadline = base_deadline(LEAVE_WAIT);
    while (weft_alive_count(job->w) > 1 && base_now_ns() < deadline)
        base_sleep_ns(200 * WEFT_US);
    map_apart_check(job);
    map_carry_stop(job);
}

/* --- the others --- */

static void end_commands(struct map_job *job)
{
    atomic_store_explicit(&job->board->ending, 1, memory_order_seq_cst);
    map_nodes_kill_groups(job, job->rank);
}

static void on_end(int sig)
{
    if (serving)
        end_commands(serving);
    map_signal_pass(sig);
}

void map_apart_gone(struct map_job *job, uint32_t node, bool died)
{
    struct map_apart *a = job->with;
    if (job->rank == 0 && died)
        atomic_fetch_or_explicit(&a->died, UINT64_C(1) << node, memory_order_relaxed);
    if (job->rank == 0 || node != 0)
        return;
    pthread_mutex_lock(&a->lock);
    bool leaving = a->leaving;
    pthread_mutex_unlock(&a->lock);
    if (!leaving)
        kill(getpid(), SIGTERM);
}

static void on_order(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)w, (void)payload, (void)payload_len;
    struct map_apart *a = arg;
    if (from != 0 || header_len != sizeof a->order_at)
        return;
    pthread_mutex_lock(&a->lock);
    memcpy(a->order_at, header, sizeof a->order_at);
    pthread_cond_signal(&a->ordered);
    pthread_mutex_unlock(&a->lock);
}

static void on_prints(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                      void *arg)
{
    (void)w, (void)payload, (void)payload_len;
    struct map_job *job = arg;
    uint32_t now;
    if (from != 0 || header_len != sizeof now)
        return;
    memcpy(&now, header, sizeof now);
    atomic_store_explicit(&job->board->printing, now != 0, memory_order_relaxed);
}

static int get_order(struct map_job *job)
{
    struct map_apart *a = job->with;
    struct timespec until;
    int waited = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ORDER_WAIT / WEFT_SECOND;
    pthread_mutex_lock(&a->lock);
    while (!a->order_at[1] && !waited)
        waited = pthread_cond_timedwait(&a->ordered, &a->lock, &until);
    uint64_t at = a->order_at[0], len = a->order_at[1];
    pthread_mutex_unlock(&a->lock);
    if (!len)
        return base_fail(-ETIMEDOUT, "node 0 has not said what to do");
    if (len > MAP_ORDER_MAX)
        return base_fail(-EPROTO, "the order of node 0 has %llu bytes", (unsigned long long)len);
    if (!(a->order_bytes = malloc(len)))
        return base_fail(-ENOMEM, "no memory for what node 0 says");
    int rc = weft_get_blocking(job->w, a->order_bytes, at, len);
    return rc ? rc : map_order_read(&a->o, a->order_bytes, len);
}

/* The job, as the order has it. */
static int follow_order(struct map_job *job)
{
    struct map_apart *a = job->with;
    const struct map_order *o = &a->o;
    a->options = (struct map_options){.retries = o->retries,
                                      .timeout_ns = o->timeout_ns,
                                      .literal = o->literal,
                                      .kernel = o->kernel,
                                      .kernel_file = o->kernel_file,
                                      .command = o->kernel ? NULL : o->argv,
                                      .apart = true};
    job->options = &a->options;
    job->lease_ns = o->lease_ns;
    job->renew_ns = job->lease_ns / 4;
    atomic_store_explicit(&job->board->given, o->given, memory_order_relaxed);
    a->tallies = o->tallies;
    weft_pool_stats pool;
    int rc = weft_pool_stat(job->w, &pool, sizeof pool);
    if (rc)
        return rc;
    job->pool_bytes = pool.reserved_bytes;
    job->slots = o->slots ? o->slots : base_cpus();
    const uint64_t each = map_slot_memory(true);
    if (job->slots > MAP_SLOTS_MAX)
        job->slots = MAP_SLOTS_MAX;
    if (job->pool_bytes > MAP_POOL_MIN && job->slots > (job->pool_bytes - MAP_POOL_MIN) / each)
        job->slots = (uint32_t)((job->pool_bytes - MAP_POOL_MIN) / each);
    if (job->slots == 0)
        job->slots = 1;
    job->input_count = o->inputs;
    if (o->names) {
        job->inputs = calloc(o->inputs, sizeof *job->inputs);
        if (!job->inputs)
            return base_fail(-ENOMEM, "no memory for the names of the files");
        for (uint32_t i = 0; i < o->inputs; i++)
            job->inputs[i] = (struct map_input){.name = o->name[i], .fd = -1};
    }
    if (o->kernel)
        return map_choose_kernel(job);
    if (map_command_resolve(&job->command, o->argv, o->literal)) /* the pieces will tell */
        snprintf(job->command.path, sizeof job->command.path, "%s", o->argv[0]);
    return 0;
}

void map_apart_tell(struct map_job *job)
{
    if (!map_is_apart(job))
        return;
    struct map_apart *a = job->with;
    pthread_mutex_lock(&a->lock);
    if (a->tally_sent)
        weft_wait(job->w, &a->tally_op, WEFT_TIMEOUT_DEFAULT); /* most likely long ago */
    struct map_tally t = {0};
    for (uint32_t i = 0; i < job->slots; i++) {
        const struct map_line *line = map_line(job, job->rank, i);
        t.busy += atomic_load_explicit(&line->busy, memory_order_relaxed);
        t.pieces += atomic_load_explicit(&line->pieces, memory_order_relaxed);
        t.busy_ns += atomic_load_explicit(&line->busy_ns, memory_order_relaxed);
        t.command_ns += atomic_load_explicit(&line->command_ns, memory_order_relaxed);
    }
    t.spilled = atomic_load_explicit(&job->board->spill_bytes, memory_order_relaxed);
    a->tally = t;
    a->tally_sent = weft_put(job->w, a->tallies + job->rank * sizeof t, &a->tally, sizeof t, &a->tally_op) == 0;
    pthread_mutex_unlock(&a->lock);
}

static int serve(struct map_job *job)
{
    int rc = map_board_create(job, MAP_SLOTS_MAX);
    if (!rc)
        rc = make(job, MAP_SLOTS_MAX);
    if (!rc)
        rc = map_environment_save(true);
    if (rc)
        return rc;
    map_signals_save();
    serving = job;
    /* The owner decides what these mean. */
    map_on_signal(SIGINT, SIG_IGN);
    map_on_signal(SIGQUIT, SIG_IGN);
    map_on_signal(SIGPIPE, SIG_IGN);
    map_on_signal(SIGXFSZ, SIG_IGN);
    base_process_null(2); /* else the reader of the output would wait for this node too */
    map_scratch_open(&job->spill);
    weft_config config = {.bytes = sizeof config};
    if ((rc = map_node_open(job, &config)))
        return rc;
    map_on_signal(SIGTERM, on_end);
    map_on_signal(SIGHUP, on_end);
    map_nodes_stop_with(job);
    struct map_apart *a = job->with;
    if ((rc = weft_handle(job->w, MAP_HANDLER_ORDER, on_order, a)) || (rc = weft_handle(job->w, MAP_HANDLER_PRINTS, on_prints, job)) ||
        (rc = get_order(job)) || (rc = follow_order(job)) || (rc = map_carry_start(job)) || (rc = map_queue_open(job)) ||
        (rc = map_slots_start(job)))
        return rc;
    map_slots_join(job);
    pthread_mutex_lock(&a->lock);
    a->leaving = true;
    pthread_mutex_unlock(&a->lock);
    map_apart_tell(job);
    weft_flush(job->w, 0, WEFT_TIMEOUT_DEFAULT);
    weft_queue_close(job->queue);
    map_carry_stop(job);
    return 0;
}

int map_serve(void)
{
    struct map_job *job = calloc(1, sizeof *job);
    const char *rank = getenv("WEFT_RANK");
    if (!job) {
        fprintf(stderr, "weft map: no memory\n");
        return 1;
    }
    job->apart = true;
    job->rank = rank ? (uint32_t)strtoul(rank, NULL, 10) : 0;
    job->emit.fd = job->spill.fd = job->spool.fd = -1;
    int rc = job->rank ? serve(job) : base_fail(-EINVAL, "WEFT_RANK is not set: --as-node is how the launcher starts nodes");
    if (rc) {
        /* An owner that has ended says why itself, and whoever started it says so when it was killed. */
        if (!job->w || weft_alive(job->w, 0))
            map_say(job, "node %u: %s", job->rank, weft_error());
        if (job->w) {
            end_commands(job);
            exit(1); /* threads may be at work on all of this; the fabric gives its devices back */
        }
    }
    weft_close(job->w);
    serving = NULL; /* we are the only thread by now: a signal finds the job, or nothing */
    map_scratch_close(&job->spill);
    map_apart_free(job);
    map_board_destroy(job);
    free(job->inputs);
    free(job);
    return rc ? 1 : 0;
}
