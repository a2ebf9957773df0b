/* SPDX-License-Identifier: MIT
 *
 * Calls CUDA's driver through dlopen(). Its constants are defined here, so that the build does not need its headers.
 */
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/probe_gpu.h"

enum { DMA_BUF_FD = 1 };              /* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */
#define GPU_GRAIN (UINT64_C(2) << 20) /* a dmabuf covers whole pages of the GPU */

/* Call the driver's function `name`; the types of its arguments come first. Returns 0 or a negative errno. */
static int probe_gpu_failed(const char *what, int code)
{
    return code ? base_fail(-EIO, "%s: CUDA error %d", what, code) : 0;
}

static void *symbol(struct probe_gpu *g, const char *name)
{
    return g->library ? dlsym(g->library, name) : NULL;
}

#define CALL(g, name, types, ...)                                                                               \
    ({                                                                                                          \
        int(*call_) types;                                                                                      \
        void *at_ = symbol(g, name);                                                                            \
        memcpy(&call_, &at_, sizeof at_);                                                                       \
        at_ ? probe_gpu_failed(name, call_(__VA_ARGS__)) : base_fail(-ENOSYS, "CUDA's driver has no %s", name); \
    })

int probe_gpu_open(struct probe_gpu *g)
{
    int rc;
    memset(g, 0, sizeof *g);
    g->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!g->library)
        return base_fail(-ENODEV, "no CUDA driver (libcuda.so.1)");
    if ((rc = CALL(g, "cuInit", (unsigned), 0)) || (rc = CALL(g, "cuDeviceGet", (int *, int), &g->device, 0)) ||
        (rc = CALL(g, "cuDeviceGetName", (char *, int, int), g->name, (int)sizeof g->name, g->device)) ||
        (rc = CALL(g, "cuDevicePrimaryCtxRetain", (void **, int), &g->context, g->device)))
        return rc;
    g->held = true;
    return CALL(g, "cuCtxSetCurrent", (void *), g->context);
}

void probe_gpu_close(struct probe_gpu *g)
{
    if (g->held)
        CALL(g, "cuDevicePrimaryCtxRelease_v2", (int), g->device);
    if (g->library)
        dlclose(g->library);
    memset(g, 0, sizeof *g);
}

int probe_gpu_alloc(struct probe_gpu *g, uint64_t bytes, uint64_t *address)
{
    unsigned long long at = 0;
    int rc = CALL(g, "cuMemAlloc_v2", (unsigned long long *, size_t), &at, base_round_up(bytes, GPU_GRAIN));
    *address = at;
    return rc;
}

void probe_gpu_free(struct probe_gpu *g, uint64_t address)
{
    CALL(g, "cuMemFree_v2", (unsigned long long), address);
}

int probe_gpu_dmabuf(struct probe_gpu *g, uint64_t address, uint64_t bytes, int *fd)
{
    return CALL(g, "cuMemGetHandleForAddressRange", (void *, unsigned long long, size_t, int, unsigned long long), fd, address,
                base_round_up(bytes, GPU_GRAIN), DMA_BUF_FD, 0);
}

int probe_gpu_import(struct probe_gpu *g, uint8_t *memory, uint64_t bytes, uint8_t byte)
{
    unsigned long long at = 0;
    int rc = CALL(g, "cuMemHostRegister_v2", (void *, size_t, unsigned), memory, bytes, 0);
    if (rc)
        return rc;
    if ((rc = CALL(g, "cuMemHostGetDevicePointer_v2", (unsigned long long *, void *, unsigned), &at, memory, 0)) == 0 &&
        (rc = CALL(g, "cuMemsetD8_v2", (unsigned long long, unsigned char, size_t), at, byte, bytes)) == 0)
        rc = CALL(g, "cuCtxSynchronize", (void));
    for (uint64_t i = 0; rc == 0 && i < bytes; i++)
        if (memory[i] != byte)
            rc = base_fail(-EIO, "byte %llu does not have the value that the GPU wrote", (unsigned long long)i);
    int undone = CALL(g, "cuMemHostUnregister", (void *), memory);
    return rc ? rc : undone;
}
