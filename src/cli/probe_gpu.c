/* SPDX-License-Identifier: MIT
 *
 * Memory and CUDA's driver, for weft probe memory. On macOS Metal takes the place of CUDA (probe_metal.c).
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/probe_gpu.h"
#include "gpu/cuda_driver.h"

#define GPU_GRAIN (UINT64_C(2) << 20) /* a dmabuf covers whole pages of the GPU */

#if defined(__APPLE__)
#define ON_MACOS 1
#else
#define ON_MACOS 0
#endif

static const struct cuda_driver *const cuda = &gpu_cuda_driver;

static int probe_gpu_failed(const char *call, int code)
{
    return code ? base_fail(-EIO, "%s: %s (CUDA %d)", call, gpu_cuda_error_name(code), code) : 0;
}

static int probe_gpu_lacks(const char *call)
{
    return base_fail(-ENOSYS, "CUDA's driver has no %s", call);
}

static uint64_t address(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

static int probe_gpu_start(struct probe_gpu *g)
{
    int count = 0, rc;
    if (!gpu_cuda_usable())
        return base_fail(-ENODEV, "%s", cuda->why);
    if ((rc = probe_gpu_failed("cuDeviceGetCount", cuda->cuDeviceGetCount(&count))))
        return rc;
    if (count == 0)
        return base_fail(-ENODEV, "CUDA's driver finds no GPU: `weft gpus` shows the reason");
    if ((rc = probe_gpu_failed("cuDeviceGet", cuda->cuDeviceGet(&g->device, 0))) ||
        (rc = probe_gpu_failed("cuDeviceGetName", cuda->cuDeviceGetName(g->name, (int)sizeof g->name, g->device))) ||
        (rc = probe_gpu_failed("cuDevicePrimaryCtxRetain", cuda->cuDevicePrimaryCtxRetain(&g->context, g->device))))
        return rc;
    rc = probe_gpu_failed("cuCtxPushCurrent", cuda->cuCtxPushCurrent_v2(g->context));
    if (rc) {
        (void)cuda->cuDevicePrimaryCtxRelease_v2(g->device);
        g->context = NULL;
    }
    return rc;
}

void probe_gpu_open(struct probe_gpu *g)
{
    memset(g, 0, sizeof *g);
    if (ON_MACOS ? probe_metal_start(g) : probe_gpu_start(g))
        snprintf(g->why, sizeof g->why, "no GPU: %.300s", base_error());
}

void probe_gpu_close(struct probe_gpu *g)
{
    void *was;
    probe_metal_close(g);
    if (!g->context)
        return;
    (void)cuda->cuCtxPopCurrent_v2(&was);
    (void)cuda->cuDevicePrimaryCtxRelease_v2(g->device);
}

/* --- memory that the driver allocates --- */

static int no_cuda(const struct piece *m)
{
    return m->gpu->context ? 0 : base_fail(-ENODEV, "%s", m->gpu->why[0] ? m->gpu->why : "this GPU has no CUDA");
}

static void made(struct piece *m, const char *by, uint64_t at, bool far, void (*give_back)(struct piece *))
{
    m->at = (void *)(uintptr_t)at;
    m->made_by = by;
    m->far = far;
    m->give_back = give_back;
}

static void pinned_back(struct piece *m)
{
    (void)cuda->cuMemFreeHost(m->at);
}

int probe_gpu_pinned(struct piece *m)
{
    void *at = NULL;
    int rc = no_cuda(m);
    if (rc == 0)
        rc = cuda->cuMemHostAlloc && cuda->cuMemFreeHost ? probe_gpu_failed("cuMemHostAlloc", cuda->cuMemHostAlloc(&at, m->bytes, 0))
                                                         : probe_gpu_lacks("cuMemHostAlloc");
    if (rc == 0)
        made(m, "cuMemHostAlloc", address(at), false, pinned_back);
    return rc;
}

static void plain_back(struct piece *m)
{
    (void)cuda->cuMemFree_v2(address(m->at));
}

int probe_gpu_plain(struct piece *m)
{
    cuda_ptr at = 0;
    int rc = no_cuda(m);
    m->bytes = base_round_up(m->bytes, GPU_GRAIN);
    if (rc == 0)
        rc = probe_gpu_failed("cuMemAlloc", cuda->cuMemAlloc_v2(&at, m->bytes));
    if (rc == 0)
        made(m, "cuMemAlloc", at, true, plain_back);
    return rc;
}

int probe_gpu_managed(struct piece *m)
{
    cuda_ptr at = 0;
    int rc = no_cuda(m);
    if (rc == 0)
        rc = cuda->cuMemAllocManaged ? probe_gpu_failed("cuMemAllocManaged", cuda->cuMemAllocManaged(&at, m->bytes, CUDA_ATTACH_GLOBAL))
                                     : probe_gpu_lacks("cuMemAllocManaged");
    if (rc == 0)
        made(m, "cuMemAllocManaged", at, false, plain_back);
    return rc;
}

static void virtual_back(struct piece *m)
{
    (void)cuda->cuMemUnmap(address(m->at), m->bytes);
    (void)cuda->cuMemAddressFree(address(m->at), m->bytes);
    (void)cuda->cuMemRelease(m->handle);
}

/* Allocate memory as the library allocates arenas, and if possible such that an RDMA device can access it. */
static int virtual_make(struct piece *m, cuda_ptr *at)
{
    struct cuda_allocation kind = {.kind = CUDA_MEMORY_PINNED, .handles = CUDA_HANDLE_FD, .where = {CUDA_AT_DEVICE, m->gpu->device}};
    struct cuda_access may = {.where = {CUDA_AT_DEVICE, m->gpu->device}, .flags = CUDA_READ_WRITE};
    size_t unit = 0;
    kind.flags.rdma = 1;
    int rc = probe_gpu_failed("cuMemGetAllocationGranularity", cuda->cuMemGetAllocationGranularity(&unit, &kind, CUDA_GRANULARITY_LEAST));
    if (rc)
        return rc;
    m->bytes = base_round_up(m->bytes, unit > GPU_GRAIN ? unit : GPU_GRAIN);
    int code = cuda->cuMemCreate(&m->handle, m->bytes, &kind, 0);
    if (code) {
        kind.flags.rdma = 0;
        code = cuda->cuMemCreate(&m->handle, m->bytes, &kind, 0);
    }
    if ((rc = probe_gpu_failed("cuMemCreate", code)))
        return rc;
    if ((rc = probe_gpu_failed("cuMemAddressReserve", cuda->cuMemAddressReserve(at, m->bytes, 0, 0, 0))))
        goto no_address;
    if ((rc = probe_gpu_failed("cuMemMap", cuda->cuMemMap(*at, m->bytes, 0, m->handle, 0))))
        goto not_mapped;
    if ((rc = probe_gpu_failed("cuMemSetAccess", cuda->cuMemSetAccess(*at, m->bytes, &may, 1))))
        goto no_access;
    return 0;
no_access:
    (void)cuda->cuMemUnmap(*at, m->bytes);
not_mapped:
    (void)cuda->cuMemAddressFree(*at, m->bytes);
no_address:
    (void)cuda->cuMemRelease(m->handle);
    return rc;
}

int probe_gpu_virtual(struct piece *m)
{
    cuda_ptr at = 0;
    int rc = no_cuda(m);
    if (rc == 0)
        rc = virtual_make(m, &at);
    if (rc == 0)
        made(m, "cuMemMap", at, true, virtual_back);
    return rc;
}

static int with_dmabuf(struct piece *m, int rc)
{
    if (rc)
        return rc;
    if (!cuda->cuMemGetHandleForAddressRange)
        return probe_gpu_lacks("cuMemGetHandleForAddressRange");
    return probe_gpu_failed("cuMemGetHandleForAddressRange",
                            cuda->cuMemGetHandleForAddressRange(&m->dmabuf, address(m->at), m->bytes, CUDA_RANGE_DMABUF, 0));
}

int probe_gpu_plain_dmabuf(struct piece *m)
{
    return with_dmabuf(m, probe_gpu_plain(m));
}

int probe_gpu_virtual_dmabuf(struct piece *m)
{
    return with_dmabuf(m, probe_gpu_virtual(m));
}

/* --- which memory the GPU can access --- */

/* Let the GPU fill the memory, at the address `at` that the GPU has for it, and check the bytes. */
static int probe_gpu_write(const struct piece *m, cuda_ptr at, uint8_t byte)
{
    int rc = probe_gpu_failed("cuMemsetD8", cuda->cuMemsetD8_v2(at, byte, m->bytes));
    if (rc == 0)
        rc = probe_gpu_failed("cuCtxSynchronize", cuda->cuCtxSynchronize());
    if (rc || !m->far)
        return rc ? rc : probe_gpu_differs(m->at, m->bytes, byte, "that the processor reads");
    uint8_t *copy = malloc(m->bytes);
    if (!copy)
        return base_fail(-ENOMEM, "no memory for a copy of the bytes that the GPU writes" BASE_MEMORY_HINT);
    rc = probe_gpu_failed("cuMemcpyAsync", cuda->cuMemcpyAsync(address(copy), at, m->bytes, NULL));
    if (rc == 0)
        rc = probe_gpu_failed("cuCtxSynchronize", cuda->cuCtxSynchronize());
    if (rc == 0)
        rc = probe_gpu_differs(copy, m->bytes, byte, "that were copied back");
    free(copy);
    return rc;
}

int probe_gpu_reach(const struct piece *m, const char **call)
{
    cuda_ptr at = 0;
    if (m->gpu->metal)
        return probe_metal_reach(m, call);
    *call = m->made_by;
    int rc = no_cuda(m);
    if (rc || m->made_by)
        return rc ? rc : probe_gpu_write(m, address(m->at), 0xa5);
    *call = "cuMemHostRegister";
    rc = probe_gpu_failed(*call, cuda->cuMemHostRegister_v2(m->at, m->bytes, m->read_only ? CUDA_HOST_REGISTER_READ_ONLY : 0));
    if (rc)
        return rc;
    rc = probe_gpu_failed("cuMemHostGetDevicePointer", cuda->cuMemHostGetDevicePointer_v2(&at, m->at, 0));
    if (rc == 0 && !m->read_only)
        rc = probe_gpu_write(m, at, 0xa5);
    int undone = probe_gpu_failed("cuMemHostUnregister", cuda->cuMemHostUnregister(m->at));
    return rc ? rc : undone;
}
