/* SPDX-License-Identifier: MIT
 *
 * A node that is apart (on another host than the owner), which the launcher has started. The owner sends it the address of the order. The
 * node ends when the owner is gone, or when the launcher ends it.
 */
#include "map/job.h"
#include "map/order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ORDER_WAIT (30 * WEFT_SECOND)

struct following {
    pthread_mutex_t lock;
    pthread_cond_t ordered;
    uint64_t order_at[2]; /* gaddr, length */
    char *order_bytes;
    struct map_order o;
    struct map_options options;
    bool leaving;
};

static struct map_job *serving; /* global, since a signal handler gets no argument from us */

static int serve_make(struct map_job *job)
{
    struct following *f = job->following = calloc(1, sizeof *f);
    if (!f)
        return base_fail(-ENOMEM, "no memory for the state of the job" BASE_MEMORY_HINT);
    pthread_mutex_init(&f->lock, NULL);
    base_cond_init(&f->ordered);
    pthread_mutex_init(&job->telling.lock, NULL);
    return map_guardian_start(job, MAP_SLOTS_MAX);
}

static void serve_unmake(struct map_job *job)
{
    struct following *f = job->following;
    map_guardian_end(job);
    if (!f)
        return;
    map_order_free(&f->o);
    free(f->order_bytes);
    pthread_cond_destroy(&f->ordered);
    pthread_mutex_destroy(&f->lock);
    pthread_mutex_destroy(&job->telling.lock);
    free(f);
    job->following = NULL;
}

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

/* Called when a node has gone. If the owner has gone, this node leaves. */
static void on_serve_member(weft_node *w, uint64_t epoch, uint32_t node, bool died, void *arg)
{
    (void)w, (void)epoch, (void)died;
    struct map_job *job = arg;
    struct following *f = job->following;
    if (node != 0)
        return;
    pthread_mutex_lock(&f->lock);
    bool leaving = f->leaving;
    pthread_mutex_unlock(&f->lock);
    if (!leaving)
        kill(getpid(), SIGTERM);
}

static void on_order(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)w, (void)payload, (void)payload_len;
    struct following *f = arg;
    if (from != 0 || header_len != sizeof f->order_at)
        return;
    pthread_mutex_lock(&f->lock);
    memcpy(f->order_at, header, sizeof f->order_at);
    pthread_cond_signal(&f->ordered);
    pthread_mutex_unlock(&f->lock);
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
    struct following *f = job->following;
    int64_t deadline = base_deadline(ORDER_WAIT);
    pthread_mutex_lock(&f->lock);
    while (!f->order_at[1] && base_cond_wait(&f->ordered, &f->lock, deadline))
        ;
    uint64_t at = f->order_at[0], len = f->order_at[1];
    pthread_mutex_unlock(&f->lock);
    if (!len)
        return base_fail(-ETIMEDOUT, "node 0 has not sent the description of the job in time: is its process stopped?");
    if (len > MAP_ORDER_MAX)
        return base_fail(-EPROTO,
                         "node 0 has announced a description of the job of %llu bytes, which is more than possible; run the same version "
                         "of weft on all hosts",
                         (unsigned long long)len);
    if (!(f->order_bytes = malloc(len)))
        return base_fail(-ENOMEM, "no memory to receive the description of the job from node 0" BASE_MEMORY_HINT);
    int rc = weft_get_blocking(job->w, f->order_bytes, at, len);
    return rc ? rc : map_order_read(&f->o, f->order_bytes, len);
}

static int follow_inputs(struct map_job *job, const struct map_order *o)
{
    job->input_count = o->inputs;
    if (!o->names && !o->served)
        return 0;
    job->inputs = calloc(o->inputs, sizeof *job->inputs);
    if (!job->inputs)
        return base_fail(-ENOMEM, "no memory for the names of the files" BASE_MEMORY_HINT);
    for (uint32_t i = 0; i < o->inputs; i++) {
        struct map_input *in = &job->inputs[i];
        *in = (struct map_input){.name = o->names ? o->name[i] : "", .fd = -1};
        char *end, *serve = o->served && o->serve[i][0] ? o->serve[i] : NULL;
        unsigned long home = serve ? strtoul(serve, &end, 10) : 0;
        if (!serve)
            continue;
        if (*end != ':' || home >= MAP_NODES_MAX || !end[1])
            return base_fail(-EPROTO, "the description of the job from node 0 is invalid; run the same version of weft on all hosts");
        in->path = end + 1;
        in->name = o->names ? in->name : in->path;
        in->home = (uint32_t)home;
        in->cached = true;
        if (in->home == job->rank)
            (void)map_input_look(in); /* if the file is missing, opening it for a piece reports that */
    }
    return 0;
}

/* Set up the job from the order. */
static int follow_order(struct map_job *job)
{
    struct following *f = job->following;
    const struct map_order *o = &f->o;
    f->options = (struct map_options){.retries = o->retries,
                                      .timeout_ns = o->timeout_ns,
                                      .literal = o->literal,
                                      .kernel = o->kernel,
                                      .kernel_file = o->kernel_file,
                                      .gpu = o->gpu,
                                      .command = o->kernel ? NULL : o->argv,
                                      .apart = true};
    job->options = &f->options;
    job->lease_ns = o->lease_ns;
    job->renew_ns = job->lease_ns / 4;
    atomic_store_explicit(&job->board->given, o->given, memory_order_relaxed);
    job->tallies = o->tallies;
    weft_pool_stats pool;
    int rc = weft_pool_stat(job->w, &pool, sizeof pool);
    if (rc)
        return rc;
    job->pool_bytes = pool.reserved_bytes;
    job->slots = o->slots ? o->slots : base_cpus();
    const uint64_t each = map_slot_memory(job->options);
    if (job->slots > MAP_SLOTS_MAX)
        job->slots = MAP_SLOTS_MAX;
    if (job->pool_bytes > MAP_POOL_MIN && job->slots > (job->pool_bytes - MAP_POOL_MIN) / each)
        job->slots = (uint32_t)((job->pool_bytes - MAP_POOL_MIN) / each);
    if (job->slots == 0)
        job->slots = 1;
    if ((rc = follow_inputs(job, o)))
        return rc;
    if (o->kernel)
        return map_choose_kernel(job);
    if (map_command_resolve(&job->command, o->argv, o->literal)) /* starting the command will fail, and that error is reported */
        snprintf(job->command.path, sizeof job->command.path, "%s", o->argv[0]);
    return 0;
}

static int serve_run(struct map_job *job)
{
    int rc = map_board_create(job, MAP_SLOTS_MAX);
    if (!rc)
        rc = serve_make(job);
    if (!rc)
        rc = map_environment_save(true);
    if (rc)
        return rc;
    map_signals_save();
    serving = job;
    map_on_signal(SIGPIPE, SIG_IGN);
    map_on_signal(SIGXFSZ, SIG_IGN);
    base_process_null(2); /* so that a program that reads our standard output sees end-of-file when the owner has ended */
    map_scratch_open(&job->spill);
    weft_config config = {.bytes = sizeof config};
    if ((rc = map_homes_serve(job)) || (rc = map_node_open(job, &config, on_serve_member)))
        return rc;
    /* Ignore these signals: the owner decides what happens. Until now these signals ended this node, since the owner could have ended
     * unnoticed. */
    map_on_signal(SIGINT, SIG_IGN);
    map_on_signal(SIGQUIT, SIG_IGN);
    map_on_signal(SIGTERM, on_end);
    map_on_signal(SIGHUP, on_end);
    map_nodes_stop_with(job);
    struct following *f = job->following;
    if ((rc = weft_handle(job->w, MAP_HANDLER_ORDER, on_order, f)) || (rc = weft_handle(job->w, MAP_HANDLER_PRINTS, on_prints, job)) ||
        (rc = get_order(job)) || (rc = follow_order(job)) || (rc = map_carry_start(job)) || (rc = map_homes_offer(job)) ||
        (rc = map_queue_open(job)) || (rc = map_slots_start(job)))
        return rc;
    map_slots_join(job);
    map_gpu_close(job);
    pthread_mutex_lock(&f->lock);
    f->leaving = true;
    pthread_mutex_unlock(&f->lock);
    map_tally_tell(job);
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
        fprintf(stderr, "weft map: no memory" BASE_MEMORY_HINT "\n");
        return 1;
    }
    job->apart = true;
    job->rank = rank ? (uint32_t)strtoul(rank, NULL, 10) : 0;
    job->emit.fd = job->spill.fd = job->spool.fd = -1;
    int rc = job->rank ? serve_run(job) : base_fail(-EINVAL, "--as-node is for weft's own use: leave it out (WEFT_RANK is not set)");
    if (rc) {
        /* If the owner has ended, the owner itself or the launcher reports that. */
        if (!job->w || weft_alive(job->w, 0))
            map_say(job, "node %u: %s", job->rank, weft_error());
        if (job->w) {
            end_commands(job);
            exit(1); /* free nothing, since threads may still use it; exit() lets the fabric free its RDMA devices */
        }
    }
    weft_close(job->w);
    serving = NULL; /* no other thread runs now, so a signal handler sees either the whole job or NULL */
    map_scratch_close(&job->spill);
    serve_unmake(job);
    map_board_destroy(job);
    free(job->inputs);
    free(job);
    return rc ? 1 : 0;
}
