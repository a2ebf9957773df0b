/* SPDX-License-Identifier: MIT
 *
 * The back end `host`: blocks are threads of this process, the device's memory is ours. It is always there, and what the others are
 * compared with.
 */
#include "gpu/gpu.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
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
        return base_fail(-ENOMEM, "no memory for %zu bytes of the GPU `host`", bytes);
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
    memcpy(to, from, bytes);
    return 0;
}

struct block {
    weft_device device; /* a copy, with the block's number */
    weft_gpu_kernel kernel;
    void *arg;
    pthread_t thread;
    _Atomic uint32_t *go; /* 0: not all have been started; 1: they have; 2: they cannot be */
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
        return base_fail(-EINVAL, "a kernel of %u blocks: the GPU `host` plays at most %u", blocks, BLOCKS_MAX);
    struct block *b = calloc(blocks, sizeof *b);
    if (!b)
        return base_fail(-ENOMEM, "no memory for a kernel of %u blocks", blocks);
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
    return rc ? base_fail(-EAGAIN, "a kernel of %u blocks: thread %u cannot be started: %s; none has run", blocks, started,
                          base_strerror(rc))
              : 0;
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
    .run = host_run,
};
