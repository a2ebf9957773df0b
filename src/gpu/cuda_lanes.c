/* SPDX-License-Identifier: MIT
 *
 * Launches weft's own kernels on the back end `cuda`. A lane is a stream with an event behind the stream's last kernel.
 *
 * The copies of all lanes go through one stream, one behind the other, because the copy engine loses about a microsecond when it changes
 * from one stream to another. A lane's kernels wait for the event behind the lane's last copy.
 */
#include "gpu/cuda_lanes.h"
#include "gpu/cuda_device.h"

#include <stdlib.h>

struct loaded {
    void *module;
    void *function[GPU_FUNCTIONS_MAX];
};

struct lane {
    void *stream, *event, *copied;
};

void cuda_lanes_unload(void *device, void *module)
{
    struct cuda_device *d = device;
    struct loaded *l = module;
    if (l && l->module)
        (void)WITHIN(d, cuda->cuModuleUnload(l->module));
    if (l && d->feed)
        (void)WITHIN(d, cuda->cuStreamDestroy_v2(d->feed));
    d->feed = NULL;
    free(l);
}

int cuda_lanes_load(void *device, const struct gpu_code *code, void **module)
{
    struct cuda_device *d = device;
    struct loaded *l = calloc(1, sizeof *l);
    if (!l)
        return base_fail(-ENOMEM, "no memory to load kernels on the GPU cuda:%d" BASE_MEMORY_HINT, d->device);
    int rc = cuda_failed(WITHIN(d, cuda->cuStreamCreate(&d->feed, CUDA_STREAM_NON_BLOCKING)), "making a stream of the GPU for copies");
    if (!rc)
        rc = cuda_failed(WITHIN(d, cuda->cuModuleLoadData(&l->module, *code->image)),
                         "loading the kernels on the GPU (its driver may be older than the CUDA that built them)");
    for (uint32_t i = 0; i < code->count && !rc; i++)
        rc = cuda_failed(WITHIN(d, cuda->cuModuleGetFunction(&l->function[i], l->module, code->name[i])), "finding a kernel on the GPU");
    if (rc)
        cuda_lanes_unload(d, l);
    else
        *module = l;
    return rc;
}

void cuda_lanes_close(void *device, void *lane)
{
    struct cuda_device *d = device;
    struct lane *l = lane;
    if (!l)
        return;
    if (l->event)
        (void)WITHIN(d, cuda->cuEventDestroy_v2(l->event));
    if (l->copied)
        (void)WITHIN(d, cuda->cuEventDestroy_v2(l->copied));
    if (l->stream)
        (void)WITHIN(d, cuda->cuStreamDestroy_v2(l->stream));
    free(l);
}

int cuda_lanes_open(void *device, void **lane)
{
    struct cuda_device *d = device;
    struct lane *l = calloc(1, sizeof *l);
    if (!l)
        return base_fail(-ENOMEM, "no memory for a stream of the GPU cuda:%d" BASE_MEMORY_HINT, d->device);
    int code = WITHIN(d, cuda->cuStreamCreate(&l->stream, CUDA_STREAM_NON_BLOCKING));
    if (!code)
        code = WITHIN(d, cuda->cuEventCreate(&l->event, CUDA_EVENT_NO_TIMING));
    if (!code)
        code = WITHIN(d, cuda->cuEventCreate(&l->copied, CUDA_EVENT_NO_TIMING));
    if (code)
        cuda_lanes_close(d, l);
    else
        *lane = l;
    return cuda_failed(code, "making a stream of the GPU for kernels of weft map");
}

/* The driver calls of this function run in one WITHIN, and so do those of launch(), so that the context is made current only once. If
 * another thread starts a copy between this lane's copy and the recording of its event, the lane's kernel also waits for that copy. */
static int copy(const struct lane *l, void *feed, cuda_ptr to, cuda_ptr from, size_t bytes)
{
    int code = cuda->cuMemcpyAsync(to, from, bytes, feed);
    if (!code)
        code = cuda->cuEventRecord(l->copied, feed);
    return code ? code : cuda->cuStreamWaitEvent(l->stream, l->copied, 0);
}

int cuda_lanes_copy(void *device, void *lane, void *to, const void *from, size_t bytes)
{
    struct cuda_device *d = device;
    return cuda_failed(WITHIN(d, copy(lane, d->feed, (cuda_ptr)(uintptr_t)to, (cuda_ptr)(uintptr_t)from, bytes)), "copying to the GPU");
}

static int launch(const struct lane *l, const struct lane *after, void *function, uint32_t blocks, uint32_t threads, void *arg)
{
    int code = after ? cuda->cuStreamWaitEvent(l->stream, after->event, 0) : 0;
    if (!code)
        code = cuda->cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, l->stream, &arg, NULL);
    return code ? code : cuda->cuEventRecord(l->event, l->stream);
}

int cuda_lanes_launch(void *device, void *lane, void *after, void *module, uint32_t function, uint32_t blocks, uint32_t threads, void *arg)
{
    struct loaded *m = module;
    return cuda_failed(WITHIN((struct cuda_device *)device, launch(lane, after, m->function[function], blocks, threads, arg)),
                       "starting a kernel on the GPU");
}

int cuda_lanes_done(void *device, void *lane)
{
    struct lane *l = lane;
    int code = WITHIN((struct cuda_device *)device, cuda->cuEventQuery(l->event));
    return code == CUDA_NOT_READY ? -EINPROGRESS : cuda_failed(code, "a kernel on the GPU, or the copy before it,");
}
