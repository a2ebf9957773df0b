/* SPDX-License-Identifier: MIT
 *
 * CUDA's driver, loaded at run time into one table of functions. The driver's constants and structures are defined in this file, so that
 * weft builds without CUDA's headers.
 */
#ifndef WEFT_GPU_CUDA_DRIVER_H
#define WEFT_GPU_CUDA_DRIVER_H

#include "base/base.h"

enum { CUDA_HOST_REGISTER_PORTABLE = 1, CUDA_HOST_REGISTER_DEVICEMAP = 2 };
enum { CUDA_MEMORY_PINNED = 1, CUDA_HANDLE_FD = 1, CUDA_AT_DEVICE = 1, CUDA_READ_WRITE = 3, CUDA_GRANULARITY_LEAST = 0 };
enum { CUDA_STREAM_NON_BLOCKING = 1, CUDA_EVENT_NO_TIMING = 2, CUDA_OUT_OF_MEMORY = 2, CUDA_NOT_READY = 600 };
enum { CUDA_NO_DEVICE = 100, CUDA_NOT_PERMITTED = 800, CUDA_SYSTEM_NOT_READY = 802, CUDA_DRIVER_MISMATCH = 803 };
enum { CUDA_HOST_REGISTER_READ_ONLY = 8, CUDA_ATTACH_GLOBAL = 1, CUDA_RANGE_DMABUF = 1, CUDA_P2P_NATIVE_ATOMICS = 3 };
/* Numbers of device attributes about RDMA, and values of two of these attributes. */
enum { CUDA_RDMA_WITH_VMM = 110, CUDA_RDMA_FLUSHES = 117, CUDA_RDMA_ORDERING = 118, CUDA_DMABUF_SUPPORTED = 124 };
enum { CUDA_FLUSH_BY_HOST = 1, CUDA_ORDERED_FOR_OWNER = 100, CUDA_ORDERED_FOR_ALL = 200 };
enum { CUDA_FLUSH_THIS_CONTEXT = 0 };

/* CUmemLocation, CUmemAllocationProp and CUmemAccessDesc, as cuda.h lays them out. */
struct cuda_place {
    int kind, device;
};
struct cuda_allocation {
    int kind, handles;
    struct cuda_place where;
    void *security;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};
struct cuda_access {
    struct cuda_place where;
    int flags;
};
_Static_assert(sizeof(struct cuda_allocation) == 32 && sizeof(struct cuda_access) == 12, "as the driver lays them out");

typedef unsigned long long cuda_ptr;
struct cuda_driver {
    void *library;
    char why[160]; /* why the driver cannot be used, as a sentence without a full stop; "": it can be used */
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
    int (*cuCtxSynchronize)(void);
    int (*cuMemGetAllocationGranularity)(size_t *, const struct cuda_allocation *, int);
    int (*cuMemAddressReserve)(cuda_ptr *, size_t, size_t, cuda_ptr, unsigned long long);
    int (*cuMemAddressFree)(cuda_ptr, size_t);
    int (*cuMemCreate)(uint64_t *, size_t, const struct cuda_allocation *, unsigned long long);
    int (*cuMemRelease)(unsigned long long);
    int (*cuMemMap)(cuda_ptr, size_t, size_t, unsigned long long, unsigned long long);
    int (*cuMemUnmap)(cuda_ptr, size_t);
    int (*cuMemSetAccess)(cuda_ptr, size_t, const struct cuda_access *, size_t);
    int (*cuMemExportToShareableHandle)(void *, unsigned long long, int, unsigned long long);
    int (*cuMemImportFromShareableHandle)(uint64_t *, void *, int);
    int (*cuStreamCreate)(void **, unsigned);
    int (*cuStreamDestroy_v2)(void *);
    int (*cuStreamSynchronize)(void *);
    int (*cuMemcpyAsync)(cuda_ptr, cuda_ptr, size_t, void *);
    int (*cuMemsetD8Async)(cuda_ptr, unsigned char, size_t, void *);
    int (*cuEventCreate)(void **, unsigned);
    int (*cuEventDestroy_v2)(void *);
    int (*cuEventRecord)(void *, void *);
    int (*cuEventQuery)(void *);
    int (*cuModuleLoadData)(void **, const void *);
    int (*cuModuleUnload)(void *);
    int (*cuModuleGetFunction)(void **, void *, const char *);
    int (*cuStreamWaitEvent)(void *, void *, unsigned);
    int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*cuGetErrorName)(int, const char **);
    /* Functions that are NULL with older drivers, which do not have them. */
    int (*cuDriverGetVersion)(int *);
    int (*cuDeviceGetP2PAttribute)(int *, int, int, int);
    int (*cuMemHostAlloc)(void **, size_t, unsigned);
    int (*cuMemFreeHost)(void *);
    int (*cuMemAllocManaged)(cuda_ptr *, size_t, unsigned);
    int (*cuDeviceGetAttribute)(int *, int, int);
    int (*cuFlushGPUDirectRDMAWrites)(int, int);
    int (*cuMemGetHandleForAddressRange)(void *, cuda_ptr, size_t, int, unsigned long long);
};

extern struct cuda_driver gpu_cuda_driver; /* written only by the first gpu_cuda_usable() */

/* Loads the driver, if it is not loaded yet. Returns false if it cannot be used; `gpu_cuda_driver.why` then tells why. */
bool gpu_cuda_usable(void);
const char *gpu_cuda_error_name(int code);

/* Facts that explain why the driver does not start. */
struct cuda_facts {
    int code;            /* the result of cuInit() */
    bool module;         /* NVIDIA's kernel module is loaded */
    char version[32];    /* the version of that module; "": unknown */
    int control;         /* errno of opening /dev/nvidiactl; 0: it can be opened */
    const char *visible; /* CUDA_VISIBLE_DEVICES; NULL: not set */
};
void gpu_cuda_explain(const struct cuda_facts *f, char *out, size_t room);
/* collects the facts, from files below the folder `root`; "" is this machine */
void gpu_cuda_facts(const char *root, struct cuda_facts *out);

#endif
