/* SPDX-License-Identifier: MIT
 *
 * The back end `cuda`: CUDA's driver through dlopen, in the device's primary context, which the CUDA runtime uses too. The driver's numbers
 * are written out here: none of its headers is needed to build.
 */
#include "gpu/gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { HOST_REGISTER_PORTABLE = 1, HOST_REGISTER_DEVICEMAP = 2 };

typedef unsigned long long cuda_ptr;
static struct {
    void *library;
    char why[160]; /* "" : it can be used */
    int (*cuInit)(unsigned);
    int (*cuDeviceGetCount)(int *);
    int (*cuDeviceGet)(int *, int);
    int (*cuDeviceGetName)(char *, int, int);
    int (*cuDeviceTotalMem_v2)(size_t *, int);
    int (*cuDeviceGetPCIBusId)(char *, int, int);
    int (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuDevicePrimaryCtxRelease_v2)(int);
    int (*cuCtxPushCurrent_v2)(void *);
    int (*cuCtxPopCurrent_v2)(void **);
    int (*cuMemHostRegister_v2)(void *, size_t, unsigned);
    int (*cuMemHostUnregister)(void *);
    int (*cuMemHostGetDevicePointer_v2)(cuda_ptr *, void *, unsigned);
    int (*cuMemGetInfo_v2)(size_t *, size_t *);
    int (*cuMemAlloc_v2)(cuda_ptr *, size_t);
    int (*cuMemFree_v2)(cuda_ptr);
    int (*cuMemsetD8_v2)(cuda_ptr, unsigned char, size_t);
    int (*cuMemcpyHtoD_v2)(cuda_ptr, const void *, size_t);
    int (*cuCtxSynchronize)(void);
    int (*cuGetErrorName)(int, const char **);
} cuda;

#define FUNCTION(name)    \
    {                     \
#name, &cuda.name \
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
    FUNCTION(cuMemcpyHtoD_v2),
    FUNCTION(cuCtxSynchronize),
    FUNCTION(cuGetErrorName),
};

static const char *error_name(int code)
{
    const char *name = NULL;
    return cuda.cuGetErrorName && cuda.cuGetErrorName(code, &name) == 0 && name ? name : "an unknown error";
}

static void cuda_load(void)
{
    cuda.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!cuda.library) {
        snprintf(cuda.why, sizeof cuda.why, "there is no CUDA driver (libcuda.so.1)");
        return;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *at = dlsym(cuda.library, functions[i].name);
        memcpy(functions[i].at, &at, sizeof at);
        if (!at) {
            snprintf(cuda.why, sizeof cuda.why, "CUDA's driver has no %s: it is too old", functions[i].name);
            return;
        }
    }
    int code = cuda.cuInit(0);
    if (code)
        snprintf(cuda.why, sizeof cuda.why, "CUDA's driver does not start (%s): is the GPU there, and may this user open /dev/nvidia*?",
                 error_name(code));
}

static bool cuda_usable(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, cuda_load);
    return cuda.library && !cuda.why[0];
}

static int cuda_failed(int code, const char *what)
{
    return code ? base_fail(-EIO, "%s: %s (CUDA %d)", what, error_name(code), code) : 0;
}

/* One number of a file of sysfs: "16.0 GT/s PCIe", "16". */
static double read_number(const char *pci, const char *file)
{
    char path[128];
    double n = 0;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/%s", pci, file);
    FILE *f = fopen(path, "re");
    if (f) {
        if (fscanf(f, "%lf", &n) != 1)
            n = 0;
        fclose(f);
    }
    return n;
}

/* 2.5, 5, 8, 16, 32, 64 billion transfers a second: generations 1 to 6. */
static uint32_t generation(double speed)
{
    static const double speeds[] = {2.5, 5, 8, 16, 32, 64};
    uint32_t g = 0;
    while (g < sizeof speeds / sizeof *speeds && speed >= speeds[g])
        g++;
    return g;
}

static bool cuda_look(uint32_t index, weft_gpu_info *out)
{
    int count = 0, device;
    if (!cuda_usable() || cuda.cuDeviceGetCount(&count) || index >= (uint32_t)count || cuda.cuDeviceGet(&device, (int)index))
        return false;
    size_t bytes = 0;
    (void)cuda.cuDeviceGetName(out->model, sizeof out->model, device);
    if (cuda.cuDeviceTotalMem_v2(&bytes, device) == 0)
        out->memory_bytes = bytes;
    (void)cuda.cuDeviceGetPCIBusId(out->pci, sizeof out->pci, device);
    for (char *c = out->pci; *c; c++)
        *c = *c >= 'A' && *c <= 'F' ? (char)(*c - 'A' + 'a') : *c;
    out->pcie_generation = generation(read_number(out->pci, "current_link_speed"));
    out->pcie_lanes = (uint32_t)read_number(out->pci, "current_link_width");
    out->pcie_generation_most = generation(read_number(out->pci, "max_link_speed"));
    out->pcie_lanes_most = (uint32_t)read_number(out->pci, "max_link_width");
    out->usable = true;
    return true;
}

static const char *cuda_why(void)
{
    return cuda_usable() ? "CUDA's driver knows of no GPU" : cuda.why;
}

struct cuda_device {
    int device;
    void *context;
};

/* A call in the device's context, whatever context the thread has. */
#define WITHIN(d, call)                                     \
    ({                                                      \
        void *before_;                                      \
        int code_ = cuda.cuCtxPushCurrent_v2((d)->context); \
        if (code_ == 0) {                                   \
            code_ = (call);                                 \
            (void)cuda.cuCtxPopCurrent_v2(&before_);        \
        }                                                   \
        code_;                                              \
    })

static int cuda_open(uint32_t index, void **device)
{
    struct cuda_device *d = calloc(1, sizeof *d);
    if (!d)
        return base_fail(-ENOMEM, "no memory for a GPU");
    int code = cuda.cuDeviceGet(&d->device, (int)index);
    if (!code)
        code = cuda.cuDevicePrimaryCtxRetain(&d->context, d->device);
    if (code) {
        free(d);
        return cuda_failed(code, "opening the GPU");
    }
    *device = d;
    return 0;
}

static void cuda_close(void *device)
{
    struct cuda_device *d = device;
    (void)cuda.cuDevicePrimaryCtxRelease_v2(d->device);
    free(d);
}

/* Memory that this process has registered, for all devices: two GPUs of a node, or one that is opened twice, share it. */
struct registered {
    void *memory;
    uint32_t users;
    struct registered *next;
};
static pthread_mutex_t registered_lock = PTHREAD_MUTEX_INITIALIZER;
static struct registered *registered;

static int cuda_register(struct cuda_device *d, void *memory, size_t bytes)
{
    struct registered *r = registered;
    while (r && r->memory != memory)
        r = r->next;
    if (!r) {
        r = malloc(sizeof *r);
        if (!r)
            return base_fail(-ENOMEM, "no memory to register %zu bytes with the GPU", bytes);
        int rc = cuda_failed(WITHIN(d, cuda.cuMemHostRegister_v2(memory, bytes, HOST_REGISTER_PORTABLE | HOST_REGISTER_DEVICEMAP)),
                             "registering memory with the GPU");
        if (rc) {
            free(r);
            return rc;
        }
        *r = (struct registered){.memory = memory, .next = registered};
        registered = r;
    }
    r->users++;
    return 0;
}

static void cuda_unregister(struct cuda_device *d, void *memory)
{
    struct registered **at = &registered, *r;
    while ((r = *at) && r->memory != memory)
        at = &r->next;
    if (!r || --r->users)
        return;
    *at = r->next;
    free(r);
    (void)WITHIN(d, cuda.cuMemHostUnregister(memory));
}

static void cuda_detach(void *device, void *memory)
{
    pthread_mutex_lock(&registered_lock);
    cuda_unregister(device, memory);
    pthread_mutex_unlock(&registered_lock);
}

static int cuda_attach(void *device, void *memory, size_t bytes, uint64_t *there)
{
    struct cuda_device *d = device;
    cuda_ptr at = 0;
    pthread_mutex_lock(&registered_lock);
    int rc = cuda_register(d, memory, bytes);
    if (!rc) {
        rc = cuda_failed(WITHIN(d, cuda.cuMemHostGetDevicePointer_v2(&at, memory, 0)), "the GPU's address of memory");
        if (rc)
            cuda_unregister(d, memory);
    }
    pthread_mutex_unlock(&registered_lock);
    *there = at;
    return rc;
}

/* A kernel that traps ends its context: from then on every call there fails. */
static int cuda_check(void *device)
{
    size_t available, all;
    int code = WITHIN((struct cuda_device *)device, cuda.cuMemGetInfo_v2(&available, &all));
    return code ? base_fail(-EIO,
                            "the GPU's context has failed: %s (CUDA %d); a kernel has trapped, or read where there is no memory: "
                            "end this process, and start it anew",
                            error_name(code), code)
                : 0;
}

static int cuda_alloc(void *device, size_t bytes, void **memory)
{
    struct cuda_device *d = device;
    cuda_ptr at = 0;
    int code = WITHIN(d, cuda.cuMemAlloc_v2(&at, bytes));
    if (code)
        return base_fail(-ENOMEM, "no memory for %zu bytes on the GPU: %s", bytes, error_name(code));
    code = WITHIN(d, cuda.cuMemsetD8_v2(at, 0, bytes));
    if (!code)
        code = WITHIN(d, cuda.cuCtxSynchronize());
    if (code)
        (void)WITHIN(d, cuda.cuMemFree_v2(at));
    *memory = code ? NULL : (void *)(uintptr_t)at;
    return cuda_failed(code, "clearing memory of the GPU");
}

static void cuda_free(void *device, void *memory)
{
    (void)WITHIN((struct cuda_device *)device, cuda.cuMemFree_v2((cuda_ptr)(uintptr_t)memory));
}

static int cuda_fill(void *device, void *to, const void *from, size_t bytes)
{
    return cuda_failed(WITHIN((struct cuda_device *)device, cuda.cuMemcpyHtoD_v2((cuda_ptr)(uintptr_t)to, from, bytes)),
                       "copying to the GPU");
}

const struct gpu_backend gpu_cuda = {
    .name = "cuda",
    .look = cuda_look,
    .why = cuda_why,
    .open = cuda_open,
    .close = cuda_close,
    .attach = cuda_attach,
    .detach = cuda_detach,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .fill = cuda_fill,
    .check = cuda_check,
};
