/* SPDX-License-Identifier: MIT
 *
 * Runs a map job's kernel on the nodes' GPUs. CUDA does not work in a process that was forked after CUDA was opened. So the owner looks for
 * GPUs in a child process, and each node opens its GPU after it has joined. If a GPU fails, its node runs its pieces on the processor from
 * then on.
 */
#include "map/job.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fabric/fabric.h"
#include "gpu/spans.h"

#define GPU_LOOK_NS (60 * WEFT_SECOND) /* how long to wait for the driver; on a large machine its start takes some seconds */

/* --- before the nodes are started --- */

/* Choose the name of this node's GPU. `option`: "host", a number, or "" (the nodes get the GPUs in turn). */
static int gpu_name(const char *option, uint32_t rank, char name[16], uint32_t *count)
{
    const struct gpu_backend *backend;
    uint32_t index;
    *count = 0;
    if (!strcmp(option, "host")) {
        snprintf(name, 16, "host");
        return 0;
    }
    int rc = gpu_spans_look(rank, name, count);
    if (rc || !option[0])
        return rc;
    *count = 1;
    snprintf(name, 16, "cuda:%.8s", option);
    return gpu_choose(name, &backend, &index);
}

struct looked {
    int rc;
    uint32_t count;
    char text[512];
};

/* Asks the driver, in a child process, which GPUs there are. */
static int gpu_look(const char *option, struct looked *l)
{
    int fd[2];
    *l = (struct looked){.rc = -EIO};
    int rc = base_pipe(fd, 0);
    if (rc)
        return base_fail(rc, "cannot make a pipe to the process that looks for GPUs: %s" BASE_FILES_HINT, base_strerror(rc));
    pid_t pid = base_process_fork();
    if (pid == 0) {
        char name[16];
        l->rc = gpu_name(option, 0, name, &l->count);
        snprintf(l->text, sizeof l->text, "%s", l->rc ? weft_error() : "");
        _exit(write(fd[1], l, sizeof *l) != sizeof *l);
    }
    close(fd[1]);
    if (pid < 0) {
        rc = base_fail((int)pid, "cannot start the process that looks for GPUs: %s" BASE_THREAD_HINT, base_strerror((int)pid));
    } else {
        struct pollfd p = {.fd = fd[0], .events = POLLIN};
        int64_t deadline = base_deadline(GPU_LOOK_NS);
        int n;
        do {
            n = poll(&p, 1, 100);
        } while (n <= 0 && base_now_ns() < deadline);
        if (n <= 0 || read(fd[0], l, sizeof *l) != sizeof *l)
            rc = base_fail(-EIO, "the GPU's driver %s", n <= 0 ? "does not answer" : "ended the process that looked for GPUs");
        base_process_kill(pid);
    }
    close(fd[0]);
    return rc;
}

int map_gpu_check(struct map_job *job)
{
    const struct map_options *o = job->options;
    struct looked l;
    if (!o->gpu)
        return 0;
    if (!gpu_spans_has(job->kernel)) {
        char names[128] = "";
        for (const weft_kernel *k = weft_kernel_next(NULL); k; k = weft_kernel_next(k)) {
            size_t len = strlen(names);
            if (gpu_spans_has(k))
                snprintf(names + len, sizeof names - len, "%s%s", len ? ", " : "", k->name);
        }
        return base_fail(-EINVAL, "kernel %s cannot run on GPUs; kernels that can: %s", job->kernel->name, names);
    }
    if (o->dry_run || !strcmp(o->gpu, "host"))
        return 0;
    int rc = gpu_look(o->gpu, &l);
    if (!rc && l.rc)
        rc = base_fail(l.rc, "--gpu: %s; --gpu=host runs the same kernel on the processor", l.text);
    job->gpus = rc ? 0 : l.count;
    return rc;
}

/* --- in each node --- */

uint64_t map_slot_memory(const struct map_options *o)
{
    return (2 + (o->apart ? MAP_BRING_DEPTH : 0)) * (uint64_t)MAP_CHUNK_BYTES + (o->gpu ? gpu_pass_bytes() : 0);
}

/* Reports once that this node runs its pieces on the processor from now on. base_error() has the reason. */
static void gpu_lost(struct map_job *job)
{
    struct map_board *b = job->board;
    uint32_t fine = MAP_GPU_FINE;
    char why[sizeof b->errors[0]];
    snprintf(why, sizeof why, "%s", weft_error());
    if (!atomic_compare_exchange_strong_explicit(&b->gpu[job->rank], &fine, MAP_GPU_FAILING, memory_order_relaxed, memory_order_relaxed))
        return;
    memcpy(b->errors[job->rank], why, sizeof why);
    atomic_store_explicit(&b->gpu[job->rank], MAP_GPU_FAILED, memory_order_release); /* pairs with map_gpu_report() */
    map_tally_tell(job);
}

void map_gpu_report(struct map_job *job)
{
    for (uint32_t node = 0; job->options->gpu && node < job->nodes; node++) {
        if (atomic_load_explicit(&job->board->gpu[node], memory_order_acquire) != MAP_GPU_FAILED)
            continue;
        atomic_store_explicit(&job->board->gpu[node], MAP_GPU_SAID, memory_order_relaxed);
        const char *why = job->board->errors[node];
        map_say(job, "node %u runs its pieces on the processor: %s", node, why[0] ? why : "its GPU has failed");
    }
}

static int attach_pools(struct map_job *job)
{
    struct weft_node *w = job->w;
    struct fab_link *l = &w->links[0];
    int rc = gpu_spans_attach(job->gpu, w->pool_base, w->pool_bytes);
    /* Let the GPU read the owner's pool, which holds the pieces of streams. If that fails, the pieces are copied. */
    void *owners = job->rank && l->transport ? l->transport->pointer(w, l, 0) : NULL;
    if (!rc && owners)
        (void)gpu_spans_attach(job->gpu, owners, l->pool_bytes);
    return rc;
}

int map_gpu_open(struct map_job *job)
{
    const struct map_options *o = job->options;
    char name[16];
    uint32_t count;
    if (!o->gpu)
        return 0;
    int rc = gpu_name(o->gpu, job->rank, name, &count);
    if (!rc)
        rc = gpu_spans_open(name, job->kernel, job->kernel_arg, &job->gpu);
    if (!rc && (rc = attach_pools(job))) {
        gpu_spans_close(job->gpu);
        job->gpu = NULL;
    }
    if (!rc || job->rank == 0) /* unlike with other nodes, the job fails if the owner's GPU cannot be opened */
        return rc ? base_context(rc, "--gpu") : 0;
    gpu_lost(job);
    return 0;
}

void map_gpu_close(struct map_job *job)
{
    gpu_spans_close(job->gpu);
    job->gpu = NULL;
}

/* --- in each slot --- */

void map_gpu_leave(struct map_slot *slot)
{
    struct map_job *job = slot->job;
    gpu_pass_close(slot->pass);
    if (job->gpu && !gpu_spans_failed(job->gpu)) /* a GPU that hangs may still write to this memory */
        weft_free(job->w, slot->pass_memory);
}

/* Allocates the slot's buffers when the slot gets its first piece. Returns false if there is no room for them. */
static bool gpu_enter(struct map_slot *slot)
{
    struct map_job *job = slot->job;
    if (slot->entered)
        return slot->pass;
    slot->entered = true;
    int rc = weft_alloc(job->w, gpu_pass_bytes(), &slot->pass_memory);
    if (!rc)
        rc = gpu_pass_open(job->gpu, weft_ptr(job->w, slot->pass_memory, gpu_pass_bytes()), &slot->pass);
    if (rc)
        gpu_lost(job);
    return !rc;
}

struct reading {
    struct map_slot *slot;
    const struct map_span *in;
    int64_t next;
    bool failed;
};

static int gpu_read(void *arg, uint64_t at, void *to, size_t len)
{
    struct reading *r = arg;
    int rc = map_read_at(r->in->fd, r->in->offset + at, to, len);
    map_slot_renew(r->slot, &r->next);
    r->failed = rc != 0;
    if (rc == -ENODATA)
        return base_fail(
            -EIO, "the input ends before the end of the piece for the GPU: the file was truncated while it was read; run the job again");
    return rc ? base_fail(rc, "cannot read a piece of the input: %s", base_strerror(rc)) : 0;
}

static void gpu_waiting(void *arg)
{
    struct reading *r = arg;
    map_slot_renew(r->slot, &r->next);
}

bool map_gpu_run(struct map_slot *slot, const struct map_span *in, uint64_t offset, enum map_kind *kind, int *code)
{
    struct map_job *job = slot->job;
    struct map_mapped mapped = {0};
    struct reading r = {.slot = slot, .in = in, .next = base_now_ns() + job->renew_ns};
    if (!job->gpu || gpu_spans_failed(job->gpu) || !gpu_enter(slot))
        return false;
    struct gpu_input input = {.bytes = in->memory, .waiting = gpu_waiting, .arg = &r, .len = in->length, .offset = offset};
    int rc = 0;
    if (!in->memory)
        input.read = gpu_read;
    if (!in->memory && job->kernel->whole_lines) { /* a kernel that prints whole lines needs all bytes of the piece in memory */
        if (map_slot_buffer(slot, in->length)) {
            input.bytes = weft_ptr(job->w, slot->buffer, slot->buffer_bytes);
        } else {
            rc = map_mapped_open(&mapped, in->fd, in->offset, in->length);
            r.failed = rc != 0;
            input.bytes = mapped.bytes;
            input.read = NULL;
        }
    }
    weft_out out = {map_capture_write, &slot->capture};
    if (!rc)
        rc = gpu_pass_run(slot->pass, &input, &out);
    *kind = !rc ? MAP_OK : r.failed ? MAP_NO_INPUT : MAP_NO_RESULT;
    *code = -rc;
    if (map_mapped_close(&mapped)) {
        *kind = MAP_NO_INPUT;
        *code = EIO;
        base_fail(-EIO,
                  "the mapped input ends before the end of the piece: the file was truncated while a GPU processed it; run the job again");
        return true;
    }
    if (rc && !r.failed && gpu_spans_failed(job->gpu)) {
        gpu_lost(job);
        map_capture_drop(&slot->capture);
        base_error_clear();
        return false;
    }
    return true;
}
