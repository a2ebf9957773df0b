/* SPDX-License-Identifier: MIT
 *
 * Runs a job from its options to its exit status. Options are checked before anything starts.
 */
#include "map/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GPU_SLOTS    3u /* the smallest default of --slots with a GPU. While the GPU works for one slot, the others read */
#define KERNEL_BLOCK (UINT64_C(256) << 20) /* claims of larger pieces get a longer lease, since a kernel may run for long on them */

/* Whether a file is empty. Reads it, since stat() reports the size 0 for files of /proc, too. */
static bool empty_file(int fd)
{
    struct stat st;
    char first;
    return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0 && pread(fd, &first, 1, 0) == 0;
}

static int dry_run(struct map_job *job)
{
    uint64_t number = 0;
    struct map_held held = {.fd = -1};
    printf("piece\toffset\tlength\tfile\n");
    for (uint32_t i = 0; i < job->input_count; i++) {
        const struct map_input *in = &job->inputs[i];
        if (in->stream && empty_file(map_input_fd(job, i, &held)))
            continue;
        if (in->stream) {
            printf("-\t-\t-\t%s (a stream: its pieces are known only when it is read)\n", in->name);
            continue;
        }
        for (uint64_t at = in->start, end; at < in->size; at = end) {
            int fd = map_input_fd(job, i, &held), rc = fd < 0 ? fd : map_cut_file(job, in, map_read_fd, &fd, at, &end);
            if (rc) {
                map_held_close(&held);
                return rc;
            }
            printf("%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%s\n", ++number, at, end - at, in->name);
        }
    }
    map_held_close(&held);
    if (fflush(stdout) || ferror(stdout))
        return base_fail(-errno, "cannot write to standard output: %s", base_strerror(errno));
    return 0;
}

/* Check whether a file can be written at `path`, without creating it. */
static int check_writable(const char *option, const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0) {
        int error = S_ISDIR(st.st_mode) ? EISDIR : access(path, W_OK) ? errno : 0;
        return error ? base_fail(-EINVAL, "%s %s: cannot be written: %s", option, path, base_strerror(error)) : 0;
    }
    if (errno != ENOENT)
        return base_fail(-EINVAL, "%s %s: cannot be written: %s", option, path, base_strerror(errno));
    const char *slash = strrchr(path, '/');
    size_t len = !slash ? 1 : slash == path ? 1 : (size_t)(slash - path);
    char *directory = strndup(slash ? path : ".", len);
    if (!directory)
        return base_fail(-ENOMEM, "no memory for the path of the output's directory" BASE_MEMORY_HINT);
    int rc = 0;
    if (!path[0] || access(directory, W_OK | X_OK))
        rc = base_fail(-EINVAL, "%s %s: cannot create a file in %s: %s", option, path, directory, base_strerror(path[0] ? errno : ENOENT));
    free(directory);
    return rc;
}

/* Whether two paths name the same regular file. The files need not exist yet. `b` NULL: compare with the open file `fd`. */
static bool same_file(const char *a, const char *b, int fd)
{
    struct stat x, y;
    bool there = (b ? stat(b, &y) : fstat(fd, &y)) == 0;
    if (stat(a, &x) == 0)
        return there && S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
    if (there || !b)
        return false;
    const char *in[2] = {a, b}, *name[2];
    struct stat directory[2];
    for (int i = 0; i < 2; i++) {
        const char *slash = strrchr(in[i], '/');
        char path[4096];
        name[i] = slash ? slash + 1 : in[i];
        snprintf(path, sizeof path, "%.*s", slash ? (int)(slash - in[i]) + 1 : 1, slash ? in[i] : ".");
        if (stat(path, &directory[i]))
            return false;
    }
    return strcmp(name[0], name[1]) == 0 && directory[0].st_dev == directory[1].st_dev && directory[0].st_ino == directory[1].st_ino;
}

/* The summary overwrites its file, which therefore must be neither an input nor the output. */
static int check_stats_file(const struct map_options *o)
{
    const char *path = o->stats_file;
    int rc = check_writable("--stats-file", path);
    if (!rc && same_file(path, o->output, STDOUT_FILENO))
        rc = base_fail(-EINVAL, "--stats-file %s: this file is the output; name another file", path);
    for (uint32_t i = 0; i < o->file_count && !rc; i++)
        if (same_file(path, strcmp(o->files[i], "-") ? o->files[i] : NULL, STDIN_FILENO))
            rc = base_fail(-EINVAL, "--stats-file %s: this file is an input; name another file", path);
    return rc;
}

/* The lease of a claim. If a node is stopped or hangs, its pieces run elsewhere only after their leases have ended. So the lease should be
 * short, but long enough that a slow node does not lose its claims. */
static void choose_lease(struct map_job *job)
{
    const struct map_options *o = job->options;
    job->lease_ns = 15 * WEFT_SECOND;
    if (o->kernel && o->block_bytes > KERNEL_BLOCK)
        job->lease_ns = 60 * WEFT_SECOND; /* a claim is renewed while the piece is read, but not while the kernel runs */
    else if (!o->kernel && o->timeout_ns && o->timeout_ns < 12 * WEFT_SECOND)
        job->lease_ns = o->timeout_ns + 3 * WEFT_SECOND;
    job->renew_ns = job->lease_ns / 4;
}

/* The kernel is given as NAME[:TEXT]. NAME is a built-in kernel or, with --kernel-from, a symbol of that file. */
int map_choose_kernel(struct map_job *job)
{
    const struct map_options *o = job->options;
    size_t n = strcspn(o->kernel, ":");
    char name[128], names[256] = "";
    if (n >= sizeof name)
        return base_fail(-EINVAL, "--kernel: there is no kernel with so long a name; `weft map --help` lists the kernels");
    memcpy(name, o->kernel, n);
    name[n] = '\0';
    job->kernel_arg = o->kernel[n] ? o->kernel + n + 1 : NULL;
    if (o->kernel_file) {
        int rc = weft_kernel_load(o->kernel_file, name, &job->kernel);
        return rc ? base_context(-EINVAL, "--kernel-from") : 0;
    }
    job->kernel = weft_kernel_find(name);
    if (job->kernel)
        return 0;
    for (const weft_kernel *k = weft_kernel_next(NULL); k; k = weft_kernel_next(k)) {
        size_t len = strlen(names);
        snprintf(names + len, sizeof names - len, "%s%s%s", len ? ", " : "", k->name, k->takes_arg ? ":TEXT" : "");
    }
    return base_fail(-EINVAL, "there is no kernel '%s'; the built-in ones are %s; use --kernel-from for one in a shared object", name,
                     names);
}

static int prepare_kernel(struct map_job *job)
{
    const struct map_options *o = job->options;
    if (o->kernel) {
        int rc = map_choose_kernel(job);
        if (rc)
            return rc;
        if (!job->kernel->takes_arg && job->kernel_arg)
            return base_fail(-EINVAL, "kernel %s takes no argument; leave out the colon and what follows it", job->kernel->name);
        if (job->kernel->takes_arg && (!job->kernel_arg || !job->kernel_arg[0]))
            return base_fail(-EINVAL, "kernel %s needs an argument: --kernel %s:TEXT", job->kernel->name, job->kernel->name);
        if (job->kernel->whole_lines && o->cut != MAP_CUT_LINES)
            return base_fail(-EINVAL, "kernel %s needs whole lines; leave out --exact and --separator", job->kernel->name);
    }
    return map_gpu_check(job);
}

static int job_prepare(struct map_job *job)
{
    const struct map_options *o = job->options;
    unsigned cpus = base_cpus();
    int rc = prepare_kernel(job);
    if (rc)
        return rc;
    /* With GPUs, one node for each GPU: several processes on one GPU would take turns. */
    job->nodes = o->nodes ? o->nodes : job->gpus ? job->gpus : cpus < 2 ? 2 : cpus > 4 ? 4 : cpus;
    uint32_t share = o->apart && !o->emulated ? 1 : job->nodes;
    job->slots = o->slots ? o->slots : cpus > share ? cpus / share : 1;
    if (job->gpus && !o->slots && job->slots < GPU_SLOTS)
        job->slots = GPU_SLOTS;
    uint64_t memory = o->memory_bytes;
    uint64_t least = MAP_POOL_MIN + job->slots * map_slot_memory(o) + (o->apart ? MAP_HOME_BYTES : 0);
    if (!memory) {
        memory = base_memory_total() / 8;
        if (memory > UINT64_C(1) << 30)
            memory = UINT64_C(1) << 30;
        if (memory < least * job->nodes)
            memory = least * job->nodes;
    }
    job->pool_bytes = memory / job->nodes;
    if (o->memory && (job->pool_bytes < least || memory > base_memory_total())) {
        char need[32], most[32];
        base_format_bytes(least * job->nodes, need, sizeof need);
        base_format_bytes(base_memory_total(), most, sizeof most);
        return base_fail(-EINVAL,
                         "--memory %s: expected at least %s (which %u node%s of %u slot%s need%s) and at most %s (the machine's memory)",
                         o->memory, need, job->nodes, job->nodes == 1 ? "" : "s", job->slots, job->slots == 1 ? "" : "s",
                         job->nodes == 1 ? "s" : "", most);
    }
    if (o->stats_file) {
        rc = check_stats_file(o);
        if (rc)
            return rc;
    }
    choose_lease(job);
    static const uint8_t newline = '\n';
    job->separator = o->cut == MAP_CUT_SEPARATOR ? (const uint8_t *)o->separator : &newline;
    job->separator_len = o->cut == MAP_CUT_EXACT ? 0 : o->cut == MAP_CUT_LINES ? 1 : o->separator_len;
    job->progress = o->progress == MAP_ALWAYS || (o->progress == MAP_AUTO && isatty(STDERR_FILENO));
    return 0;
}

int map_plan(const struct map_options *options, uint64_t *pool_bytes)
{
    struct map_job job = {.options = options};
    int rc = job_prepare(&job);
    *pool_bytes = job.pool_bytes;
    if (rc)
        map_say(&job, "%s%s", weft_error(), rc == -EINVAL ? "\nSee `weft map --help`." : "");
    return rc == -EINVAL ? 2 : rc ? 1 : 0;
}

int map_run(const struct map_options *options)
{
    struct map_job *job = calloc(1, sizeof *job);
    int rc, status = 1;
    if (!job) {
        fprintf(stderr, "weft map: no memory" BASE_MEMORY_HINT "\n");
        return status;
    }
    job->options = options;
    job->counts.start_ns = base_now_ns();
    job->apart = options->apart;
    job->emit.fd = job->spill.fd = job->spool.fd = -1;
    pthread_mutex_init(&job->lock, NULL);
    base_cond_init(&job->changed);

    rc = job_prepare(job);
    if (rc == -EINVAL) {
        map_say(job, "%s\nSee `weft map --help`.", weft_error());
        rc = 0;
        status = 2;
        goto said;
    }
    if (!rc && options->command) {
        rc = map_command_resolve(&job->command, options->command, options->literal);
        if (rc)
            status = rc == -ENOENT ? 127 : 126;
    }
    if (!rc)
        rc = map_inputs_open(job);
    if (!rc && options->dry_run) {
        rc = dry_run(job);
        status = rc ? 1 : 0;
        goto said;
    }
    if (!rc)
        rc = map_emit_open(&job->emit, options->output);
    for (uint32_t i = 0; i < job->input_count && options->progress == MAP_AUTO; i++)
        if (job->inputs[i].fd >= 0 && isatty(job->inputs[i].fd)) /* the user types the input; a progress bar would disturb that */
            job->progress = false;
    if (!rc && job->progress && isatty(job->emit.fd))
        job->emit.bar = job;
    if (!rc)
        rc = map_board_create(job, (size_t)job->nodes * job->slots);
    if (!rc)
        rc = map_environment_save(job->apart);
    if (!rc) {
        map_signals_save();
        map_scratch_open(&job->spill);
        map_scratch_open(&job->spool);
        rc = map_owner_run(job);
        if (rc >= 0) {
            status = rc;
            rc = 0;
        }
        if (rc < 0 || !job->over) {
            /* Threads and nodes are still running: end everything, then this process. */
            bool quiet = rc == -EPIPE && !options->output;
            if (rc < 0 && !quiet)
                map_say(job, "%s", weft_error());
            map_end_all(job);
            if (job->apart) /* exit() lets the fabric free its RDMA devices */
                exit(quiet ? 128 + SIGPIPE : status);
            if (quiet) { /* the reader of our standard output is gone: end by SIGPIPE, as other filters do */
                signal(SIGPIPE, SIG_DFL);
                raise(SIGPIPE);
            }
            _exit(status);
        }
    }
said:
    if (rc)
        map_say(job, "%s", weft_error());
    map_nodes_forget();
    map_owner_free(job);
    map_emit_abandon(&job->emit);
    map_inputs_close(job);
    map_scratch_close(&job->spill);
    map_scratch_close(&job->spool);
    map_apart_free(job);
    map_board_destroy(job);
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->lock);
    free(job);
    return status;
}
