/* SPDX-License-Identifier: MIT
 *
 * Loading CUDA's driver.
 */
#include "gpu/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct cuda_driver gpu_cuda_driver;

#define FUNCTION(name)               \
    {                                \
#name, &gpu_cuda_driver.name \
    }
static const struct {
    const char *name;
    void *at;
} functions[] = {
    FUNCTION(cuInit),
    FUNCTION(cuDeviceGetCount),
    FUNCTION(cuDeviceGet),
    FUNCTION(cuDeviceGetName),
    FUNCTION(cuDeviceTotalMem_v2),
    FUNCTION(cuDeviceGetPCIBusId),
    FUNCTION(cuDevicePrimaryCtxRetain),
    FUNCTION(cuDevicePrimaryCtxRelease_v2),
    FUNCTION(cuCtxPushCurrent_v2),
    FUNCTION(cuCtxPopCurrent_v2),
    FUNCTION(cuMemHostRegister_v2),
    FUNCTION(cuMemHostUnregister),
    FUNCTION(cuMemHostGetDevicePointer_v2),
    FUNCTION(cuMemGetInfo_v2),
    FUNCTION(cuMemAlloc_v2),
    FUNCTION(cuMemFree_v2),
    FUNCTION(cuMemsetD8_v2),
    FUNCTION(cuCtxSynchronize),
    FUNCTION(cuMemGetAllocationGranularity),
    FUNCTION(cuMemAddressReserve),
    FUNCTION(cuMemAddressFree),
    FUNCTION(cuMemCreate),
    FUNCTION(cuMemRelease),
    FUNCTION(cuMemMap),
    FUNCTION(cuMemUnmap),
    FUNCTION(cuMemSetAccess),
    FUNCTION(cuMemExportToShareableHandle),
    FUNCTION(cuMemImportFromShareableHandle),
    FUNCTION(cuStreamCreate),
    FUNCTION(cuStreamDestroy_v2),
    FUNCTION(cuStreamSynchronize),
    FUNCTION(cuMemcpyAsync),
    FUNCTION(cuMemsetD8Async),
    FUNCTION(cuEventCreate),
    FUNCTION(cuEventDestroy_v2),
    FUNCTION(cuEventRecord),
    FUNCTION(cuEventQuery),
    FUNCTION(cuModuleLoadData),
    FUNCTION(cuModuleUnload),
    FUNCTION(cuModuleGetFunction),
    FUNCTION(cuStreamWaitEvent),
    FUNCTION(cuLaunchKernel),
    FUNCTION(cuGetErrorName),
};

const char *gpu_cuda_error_name(int code)
{
    const char *name = NULL;
    return gpu_cuda_driver.cuGetErrorName && gpu_cuda_driver.cuGetErrorName(code, &name) == 0 && name ? name : "an unknown error";
}

static void cuda_load(void)
{
    gpu_cuda_driver.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!gpu_cuda_driver.library) {
        snprintf(gpu_cuda_driver.why, sizeof gpu_cuda_driver.why, "there is no CUDA driver (libcuda.so.1)");
        return;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *at = dlsym(gpu_cuda_driver.library, functions[i].name);
        memcpy(functions[i].at, &at, sizeof at);
        if (!at) {
            snprintf(gpu_cuda_driver.why, sizeof gpu_cuda_driver.why, "CUDA's driver has no %s: it is too old", functions[i].name);
            return;
        }
    }
    int code = gpu_cuda_driver.cuInit(0);
    if (code)
        snprintf(gpu_cuda_driver.why, sizeof gpu_cuda_driver.why,
                 "CUDA's driver does not start (%s): is the GPU there, and may this user open /dev/nvidia*?", gpu_cuda_error_name(code));
}

bool gpu_cuda_usable(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, cuda_load);
    return gpu_cuda_driver.library && !gpu_cuda_driver.why[0];
}
