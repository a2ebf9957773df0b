/* SPDX-License-Identifier: MIT
 *
 * The back end `host`: blocks are threads of this process, and the device's memory is memory of this process. It is always available.
 */
#include "gpu/gpu.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCKS_MAX 1024u

int64_t weft_device_now_ns(void)
{
    return base_now_ns();
}

void weft_device_pause(void)
{
    sched_yield();
}

static bool host_look(uint32_t index, weft_gpu_info *out)
{
    if (index == 0) {
        snprintf(out->model, sizeof out->model, "threads of the process, on %u processors", base_cpus());
        out->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
        snprintf(out->no_rdma, sizeof out->no_rdma, "its memory is a memfd, which only emulated RDMA devices take");
        out->usable = true;
    }
    return index == 0;
}

static int host_open(uint32_t index, void **device)
{
    (void)index;
    *device = NULL;
    return 0;
}

static void host_close(void *device)
{
    (void)device;
}

static int host_attach(void *device, void *memory, size_t bytes, uint64_t *there)
{
    (void)device, (void)bytes;
    *there = (uint64_t)(uintptr_t)memory;
    return 0;
}

static void host_detach(void *device, void *memory)
{
    (void)device, (void)memory;
}

static int host_alloc(void *device, size_t bytes, void **memory)
{
    (void)device;
    *memory = aligned_alloc(BASE_CACHE_LINE, base_round_up(bytes, BASE_CACHE_LINE));
    if (!*memory)
        return base_fail(-ENOMEM, "no memory for %zu bytes of the GPU `host`" BASE_MEMORY_HINT, bytes);
    memset(*memory, 0, bytes);
    return 0;
}

static void host_free(void *device, void *memory)
{
    (void)device;
    free(memory);
}

static int host_fill(void *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    if (bytes == 8)
        fab_copy_little(to, from, bytes); /* kernels may read the word meanwhile */
    else
        memcpy(to, from, bytes);
    return 0;
}

static int host_map(int fd, uint64_t bytes, struct gpu_memory *out)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED)
        return base_fail(-errno, "GPU `host`: cannot map %llu bytes for an arena: %s" BASE_MEMORY_HINT, (unsigned long long)bytes,
                         base_strerror(errno));
    *out = (struct gpu_memory){.base = at, .bytes = bytes, .there = (uint64_t)(uintptr_t)at, .fd = fd};
    return 0;
}

static int host_memory_open(void *device, uint64_t bytes, struct gpu_memory *out)
{
    (void)device;
    uint64_t available = base_memory_available();
    if (bytes > available)
        return base_fail(-ENOMEM, "an arena of %llu bytes does not fit: the GPU `host` has %llu bytes free; make a smaller arena",
                         (unsigned long long)bytes, (unsigned long long)available);
    int fd = base_memory_fd("weft-arena", bytes, false);
    int rc = fd < 0 ? fd : host_map(fd, bytes, out);
    if (rc && fd >= 0)
        close(fd);
    return rc;
}

static int host_memory_import(void *device, int fd, uint64_t bytes, struct gpu_memory *out)
{
    (void)device;
    int rc = base_memory_fd_check(fd, bytes);
    if (!rc)
        rc = host_map(fd, bytes, out);
    if (!rc)
        out->fd = -1;
    return rc;
}

static void host_memory_close(void *device, struct gpu_memory *m)
{
    (void)device;
    munmap(m->base, m->bytes);
    if (m->fd >= 0)
        close(m->fd);
}

static int host_memory_allow(void *device, const struct gpu_memory *m)
{
    (void)device, (void)m;
    return 0;
}

/* Returns a memfd of the memory in place of a dmabuf. The emulated devices of softverbs accept a memfd; drivers of real devices refuse
 * it. */
static int host_memory_dmabuf(void *device, const struct gpu_memory *m)
{
    (void)device;
    int fd = fcntl(m->fd, F_DUPFD_CLOEXEC, 0);
    return fd < 0 ? base_fail(-errno, "GPU `host`: cannot duplicate the descriptor of an arena's memory: %s" BASE_FILES_HINT,
                              base_strerror(errno))
                  : fd;
}

static int host_copy(void *device, void *to, const void *from, size_t bytes, uint64_t *ticket)
{
    (void)device;
    *ticket = 0;
    fab_copy_little(to, from, bytes);
    fab_fence_after_get();
    return 0;
}

static int host_copied(void *device, uint64_t ticket)
{
    (void)device, (void)ticket;
    return 0;
}

static int host_atomic(void *device, void *word, uint32_t kind, uint64_t a, uint64_t b, uint64_t *old)
{
    (void)device;
    return fab_atomic_do(kind, word, a, b, old) ? 0 : -EINVAL;
}

struct block {
    weft_device device; /* a copy with the block's number */
    weft_gpu_kernel kernel;
    void *arg;
    pthread_t thread;
    _Atomic uint32_t *go; /* read by the blocks' threads. 0: some blocks are not started yet; 1: all are; 2: starting a block has failed */
};

static void *play(void *arg)
{
    struct block *b = arg;
    uint32_t go;
    while ((go = atomic_load_explicit(b->go, memory_order_acquire)) == 0)
        base_futex_wait(b->go, 0, WEFT_SECOND);
    if (go == 1)
        b->kernel(&b->device, b->arg);
    return NULL;
}

static int host_run(void *device, const weft_device *d, weft_gpu_kernel kernel, uint32_t blocks, void *arg)
{
    (void)device;
    if (blocks > BLOCKS_MAX)
        return base_fail(-EINVAL, "the GPU `host` cannot run a kernel of %u blocks, but at most %u; use fewer blocks", blocks, BLOCKS_MAX);
    struct block *b = calloc(blocks, sizeof *b);
    if (!b)
        return base_fail(-ENOMEM, "no memory for a kernel of %u blocks" BASE_MEMORY_HINT, blocks);
    _Atomic uint32_t go = 0;
    uint32_t started = 0;
    int rc = 0;
    for (; started < blocks; started++) {
        b[started] = (struct block){.device = *d, .kernel = kernel, .arg = arg, .go = &go};
        b[started].device.block = started;
        rc = base_thread(&b[started].thread, play, &b[started]);
        if (rc)
            break;
    }
    atomic_store_explicit(&go, rc ? 2 : 1, memory_order_release);
    base_futex_wake(&go, (int)blocks);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(b[i].thread, NULL);
    free(b);
    return rc ? base_fail(-EAGAIN,
                          "GPU `host`: no block of a kernel of %u blocks has run, because thread %u cannot be started: %s" BASE_THREAD_HINT,
                          blocks, started, base_strerror(rc))
              : 0;
}

/* --- weft's own kernels: a launch runs them to their end, in two threads, so that blocks run concurrently as on a real GPU --- */

static int host_load(void *device, const struct gpu_code *code, void **module)
{
    (void)device;
    *module = (void *)(uintptr_t)code;
    return 0;
}

static void host_unload(void *device, void *module)
{
    (void)device, (void)module;
}

static int host_lane_open(void *device, void **lane)
{
    (void)device;
    *lane = NULL;
    return 0;
}

static void host_lane_close(void *device, void *lane)
{
    (void)device, (void)lane;
}

static int host_lane_copy(void *device, void *lane, void *to, const void *from, size_t bytes)
{
    (void)device, (void)lane;
    memcpy(to, from, bytes);
    return 0;
}

struct launched {
    void (*play)(const void *arg, uint32_t block);
    const void *arg;
    uint32_t blocks;
    _Atomic uint32_t next;
};

static void *play_blocks(void *arg)
{
    struct launched *l = arg;
    for (uint32_t block; (block = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed)) < l->blocks;)
        l->play(l->arg, block);
    return NULL;
}

static int host_launch(void *device, void *lane, void *after, void *module, uint32_t function, uint32_t blocks, uint32_t threads, void *arg)
{
    (void)device, (void)lane, (void)after, (void)threads;
    const struct gpu_code *code = module;
    struct launched l = {.play = code->play[function], .arg = arg, .blocks = blocks};
    pthread_t second;
    bool two = blocks > 1 && base_thread(&second, play_blocks, &l) == 0;
    play_blocks(&l);
    if (two)
        pthread_join(second, NULL);
    return 0;
}

static int host_lane_done(void *device, void *lane)
{
    (void)device, (void)lane;
    return 0;
}

const struct gpu_backend gpu_host = {
    .name = "host",
    .look = host_look,
    .open = host_open,
    .close = host_close,
    .attach = host_attach,
    .detach = host_detach,
    .alloc = host_alloc,
    .free = host_free,
    .fill = host_fill,
    .memory_open = host_memory_open,
    .memory_import = host_memory_import,
    .memory_close = host_memory_close,
    .memory_allow = host_memory_allow,
    .memory_dmabuf = host_memory_dmabuf,
    .copy = host_copy,
    .copied = host_copied,
    .atomic = host_atomic,
    .load = host_load,
    .unload = host_unload,
    .lane_open = host_lane_open,
    .lane_close = host_lane_close,
    .lane_copy = host_lane_copy,
    .launch = host_launch,
    .lane_done = host_lane_done,
    .run = host_run,
};
