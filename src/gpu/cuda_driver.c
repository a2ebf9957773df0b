/* SPDX-License-Identifier: MIT
 *
 * Loading CUDA's driver.
 */
#include "gpu/cuda_driver.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct cuda_driver gpu_cuda_driver;

#define FUNCTION(name)                      \
    {                                       \
#name, &gpu_cuda_driver.name, false \
    }
#define OPTIONAL(name)                     \
    {                                      \
#name, &gpu_cuda_driver.name, true \
    }
static const struct {
    const char *name;
    void *at;
    bool optional;
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
    OPTIONAL(cuDriverGetVersion),
    OPTIONAL(cuDeviceGetP2PAttribute),
    OPTIONAL(cuMemHostAlloc),
    OPTIONAL(cuMemFreeHost),
    OPTIONAL(cuMemAllocManaged),
    OPTIONAL(cuDeviceGetAttribute),
    OPTIONAL(cuFlushGPUDirectRDMAWrites),
    OPTIONAL(cuMemGetHandleForAddressRange),
};

const char *gpu_cuda_error_name(int code)
{
    const char *name = NULL;
    return gpu_cuda_driver.cuGetErrorName && gpu_cuda_driver.cuGetErrorName(code, &name) == 0 && name ? name : "an unknown error";
}

/* Finds the version in a line such as "NVRM version: NVIDIA UNIX x86_64 Kernel Module 580.159 ...": the first word that is a number with a
 * point in it. */
static void module_version(const char *line, char out[32])
{
    for (const char *at = line; *at;) {
        at += strspn(at, " \t\n");
        size_t n = strcspn(at, " \t\n");
        if (n > 2 && n < 32 && strspn(at, "0123456789.") == n && memchr(at, '.', n)) {
            memcpy(out, at, n);
            out[n] = '\0';
            return;
        }
        at += n;
    }
}

void gpu_cuda_facts(const char *root, struct cuda_facts *out)
{
    char path[512], line[512];
    *out = (struct cuda_facts){.visible = getenv("CUDA_VISIBLE_DEVICES")};
    snprintf(path, sizeof path, "%.400s/proc/driver/nvidia/version", root);
    FILE *f = fopen(path, "re");
    out->module = f;
    if (f) {
        if (fgets(line, sizeof line, f))
            module_version(line, out->version);
        fclose(f);
    }
    snprintf(path, sizeof path, "%.400s/dev/nvidiactl", root);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    out->control = fd < 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
}

void gpu_cuda_explain(const struct cuda_facts *f, char *out, size_t room)
{
    if (f->code == CUDA_DRIVER_MISMATCH)
        snprintf(out, room, "CUDA's driver and the kernel's module%s%s have different versions: restart this machine",
                 f->version[0] ? " " : "", f->version);
    else if (f->code == CUDA_SYSTEM_NOT_READY)
        snprintf(out, room, "CUDA's driver waits for the GPUs' NVSwitch: start nvidia-fabricmanager");
    else if (f->control == EACCES || f->control == EPERM || f->code == CUDA_NOT_PERMITTED)
        snprintf(out, room, "no permission: this user may not open /dev/nvidiactl; become a member of the group of that file");
    else if (f->code == CUDA_NO_DEVICE && f->visible)
        snprintf(out, room, "CUDA's driver shows no GPU to this process: CUDA_VISIBLE_DEVICES is \"%.60s\"", f->visible);
    else if (!f->module)
        snprintf(out, room, "CUDA's driver does not start: the kernel has no NVIDIA module (modprobe nvidia; dmesg says why that fails)");
    else if (f->control == ENOENT)
        snprintf(out, room, "CUDA's driver does not start: /dev/nvidiactl is missing; give the container its GPUs, or run nvidia-modprobe");
    else if (f->code == CUDA_NO_DEVICE)
        snprintf(out, room, "CUDA's driver finds no GPU, although the kernel's module %s is loaded: dmesg has the reason (NVRM)",
                 f->version);
    else
        snprintf(out, room, "CUDA's driver does not start (CUDA %d): dmesg may have the reason (NVRM)", f->code);
}

#define OLDEST "10.2" /* the oldest version that has all functions that weft needs */

static void cuda_say(const char *format, ...) BASE_PRINTF(1, 2);
static void cuda_say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(gpu_cuda_driver.why, sizeof gpu_cuda_driver.why, format, args);
    va_end(args);
}

static void cuda_too_old(const char *missing)
{
    int version = 0;
    if (gpu_cuda_driver.cuDriverGetVersion && gpu_cuda_driver.cuDriverGetVersion(&version) == 0 && version > 0)
        cuda_say("CUDA's driver is too old: it is for CUDA %d.%d and lacks %s; install one for CUDA " OLDEST " or newer", version / 1000,
                 version % 1000 / 10, missing);
    else
        cuda_say("CUDA's driver is too old: it lacks %s; install one for CUDA " OLDEST " or newer", missing);
}

static void cuda_load(void)
{
    struct cuda_driver *d = &gpu_cuda_driver;
    struct cuda_facts facts;
    const char *missing = NULL;
    d->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!d->library) {
        gpu_cuda_facts("", &facts);
        if (facts.module)
            cuda_say("there is no CUDA driver (libcuda.so.1), although NVIDIA's kernel module %s is loaded: install the driver's libraries",
                     facts.version);
        else
            cuda_say("there is no CUDA driver (libcuda.so.1); if this host has an NVIDIA GPU, install its driver");
        return;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *at = dlsym(d->library, functions[i].name);
        memcpy(functions[i].at, &at, sizeof at);
        if (!at && !functions[i].optional && !missing)
            missing = functions[i].name;
    }
    int code = missing ? 0 : d->cuInit(0);
    if (missing)
        cuda_too_old(missing);
    if (code) {
        gpu_cuda_facts("", &facts);
        facts.code = code;
        gpu_cuda_explain(&facts, d->why, sizeof d->why);
    }
}

bool gpu_cuda_usable(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, cuda_load);
    return gpu_cuda_driver.library && !gpu_cuda_driver.why[0];
}
