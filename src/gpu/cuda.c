/* SPDX-License-Identifier: MIT
 *
 * The back end `cuda`: CUDA's driver through dlopen, in the device's primary context, which the CUDA runtime uses too.
 */
#include "gpu/cuda_device.h"
#include "gpu/cuda_lanes.h"
#include "gpu/gpu.h"
#include "gpu/pci.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* One bit for each GPU that this GPU reaches over NVLink. Over PCIe, a GPU's atomic on another GPU's memory is not atomic. */
static uint64_t nvlink_peers(int index, int count)
{
    uint64_t peers = 0;
    int here, there, is;
    if (!cuda->cuDeviceGetP2PAttribute || cuda->cuDeviceGet(&here, index))
        return 0;
    for (int i = 0; i < count && i < 64; i++)
        if (i != index && cuda->cuDeviceGet(&there, i) == 0 &&
            cuda->cuDeviceGetP2PAttribute(&is, CUDA_P2P_NATIVE_ATOMICS, here, there) == 0 && is)
            peers |= UINT64_C(1) << i;
    return peers;
}

/* The value of an attribute of a device; 0 if the driver does not know the attribute. */
static int attribute(int device, int what)
{
    int value = 0;
    return cuda->cuDeviceGetAttribute && cuda->cuDeviceGetAttribute(&value, what, device) == 0 ? value : 0;
}

/* Returns why this GPU's memory cannot be registered with RDMA devices; "": it can be. `*remedy` (may be NULL) becomes what the user can
 * do; "": nothing. */
static const char *no_dmabuf(int device, const char **remedy)
{
    static const char newer[] = "install NVIDIA's driver 515 or newer";
    const char *unused, **helps = remedy ? remedy : &unused;
    *helps = newer;
    if (!cuda->cuMemGetHandleForAddressRange || !cuda->cuDeviceGetAttribute)
        return "CUDA's driver is older than 11.7 and gives no dmabufs";
    *helps = "install NVIDIA's open kernel modules in place of the proprietary ones, on Linux 5.12 or newer";
    if (!attribute(device, CUDA_DMABUF_SUPPORTED))
        return "the GPU gives no dmabufs: that takes NVIDIA's open kernel module and Linux 5.12";
    *helps = "";
    if (!attribute(device, CUDA_RDMA_WITH_VMM))
        return "the GPU does not let RDMA devices access the kind of memory that arenas use";
    *helps = newer;
    if (attribute(device, CUDA_RDMA_ORDERING) < CUDA_ORDERED_FOR_ALL &&
        (!cuda->cuFlushGPUDirectRDMAWrites || !(attribute(device, CUDA_RDMA_FLUSHES) & CUDA_FLUSH_BY_HOST)))
        return "the GPU's kernels might not see what an RDMA device has written, and its driver has no call that makes the data visible to "
               "them";
    *helps = "";
    return "";
}

static bool cuda_look(uint32_t index, weft_gpu_info *out)
{
    int count = 0, device;
    if (!gpu_cuda_usable() || cuda->cuDeviceGetCount(&count) || index >= (uint32_t)count || cuda->cuDeviceGet(&device, (int)index))
        return false;
    size_t bytes = 0;
    (void)cuda->cuDeviceGetName(out->model, sizeof out->model, device);
    if (cuda->cuDeviceTotalMem_v2(&bytes, device) == 0)
        out->memory_bytes = bytes;
    char address[16] = "";
    (void)cuda->cuDeviceGetPCIBusId(address, sizeof address, device);
    for (char *c = address; *c; c++)
        *c = *c >= 'A' && *c <= 'F' ? (char)(*c - 'A' + 'a') : *c;
    struct pci_gpu pci;
    gpu_pci_read("", address, &pci);
    gpu_pci_tell("", &pci, out);
    out->nvlink_peers = nvlink_peers((int)index, count);
    const char *remedy;
    snprintf(out->no_rdma, sizeof out->no_rdma, "%s", no_dmabuf(device, &remedy));
    snprintf(out->no_rdma_remedy, sizeof out->no_rdma_remedy, "%s", remedy);
    out->usable = true;
    return true;
}

static const char *cuda_why(void)
{
    return gpu_cuda_usable() ? "CUDA's driver knows of no GPU" : cuda->why;
}

static void cuda_close(void *device)
{
    struct cuda_device *d = device;
    for (uint32_t i = 0; i <= CUDA_STREAMS; i++) {
        void *s = i < CUDA_STREAMS ? d->stream[i] : d->word;
        if (s)
            (void)WITHIN(d, cuda->cuStreamDestroy_v2(s));
    }
    for (uint32_t i = 0; i < d->events; i++)
        (void)WITHIN(d, cuda->cuEventDestroy_v2(d->event[i]));
    (void)cuda->cuDevicePrimaryCtxRelease_v2(d->device);
    free(d);
}

static int cuda_open(uint32_t index, void **device)
{
    struct cuda_device *d = calloc(1, sizeof *d);
    if (!d)
        return base_fail(-ENOMEM, "no memory for the handle of a CUDA GPU" BASE_MEMORY_HINT);
    int code = cuda->cuDeviceGet(&d->device, (int)index);
    if (!code)
        code = cuda->cuDevicePrimaryCtxRetain(&d->context, d->device);
    if (code) {
        free(d);
        return cuda_failed(code, "opening the GPU");
    }
    for (uint32_t i = 0; !code && i <= CUDA_STREAMS; i++)
        code = WITHIN(d, cuda->cuStreamCreate(i < CUDA_STREAMS ? &d->stream[i] : &d->word, CUDA_STREAM_NON_BLOCKING));
    if (code) {
        cuda_close(d);
        return cuda_failed(code, "making a stream of the GPU");
    }
    d->rdma_ordered = attribute(d->device, CUDA_RDMA_ORDERING);
    *device = d;
    return 0;
}

/* Memory that this process has registered with CUDA: once, however many devices use it. */
struct registered {
    void *memory;
    uint32_t users;
    struct registered *next;
};
static pthread_mutex_t registered_lock = PTHREAD_MUTEX_INITIALIZER;
static struct registered *registered;

/* Finds the pointer to the entry of that memory; it points to NULL if there is none. */
static struct registered **registered_at(const void *memory)
{
    struct registered **at = &registered;
    while (*at && (*at)->memory != memory)
        at = &(*at)->next;
    return at;
}

static int cuda_register(struct cuda_device *d, void *memory, size_t bytes)
{
    struct registered *r = *registered_at(memory);
    if (!r) {
        r = malloc(sizeof *r);
        if (!r)
            return base_fail(-ENOMEM, "no memory to register %zu bytes with the GPU" BASE_MEMORY_HINT, bytes);
        int rc =
            cuda_failed(WITHIN(d, cuda->cuMemHostRegister_v2(memory, bytes, CUDA_HOST_REGISTER_PORTABLE | CUDA_HOST_REGISTER_DEVICEMAP)),
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
    struct registered **at = registered_at(memory), *r = *at;
    if (!r || --r->users)
        return;
    *at = r->next;
    free(r);
    (void)WITHIN(d, cuda->cuMemHostUnregister(memory));
}

static void cuda_detach(void *device, void *memory)
{
    pthread_mutex_lock(&registered_lock);
    cuda_unregister(device, memory);
    pthread_mutex_unlock(&registered_lock);
}

/* Forgets the memory without unregistering it, because kernels may still use it. If other memory gets the same address later, the driver
 * refuses to register that memory. */
static void cuda_forget(void *device, void *memory)
{
    (void)device;
    pthread_mutex_lock(&registered_lock);
    struct registered **at = registered_at(memory), *r = *at;
    if (r)
        *at = r->next;
    free(r);
    pthread_mutex_unlock(&registered_lock);
}

static int cuda_attach(void *device, void *memory, size_t bytes, uint64_t *there)
{
    struct cuda_device *d = device;
    cuda_ptr at = 0;
    pthread_mutex_lock(&registered_lock);
    int rc = cuda_register(d, memory, bytes);
    if (!rc) {
        rc = cuda_failed(WITHIN(d, cuda->cuMemHostGetDevicePointer_v2(&at, memory, 0)), "getting the GPU's address of registered memory");
        if (rc)
            cuda_unregister(d, memory);
    }
    pthread_mutex_unlock(&registered_lock);
    *there = at;
    return rc;
}

/* A kernel that traps makes its CUDA context unusable: from then on every call in that context fails. */
static int cuda_check(void *device)
{
    size_t available, all;
    int code = WITHIN((struct cuda_device *)device, cuda->cuMemGetInfo_v2(&available, &all));
    return code ? base_fail(-EIO,
                            "this process can no longer use the GPU cuda:%d, because a kernel has trapped or has accessed an invalid "
                            "address: %s (CUDA error %d); correct the kernel, and start the program again",
                            ((const struct cuda_device *)device)->device, gpu_cuda_error_name(code), code)
                : 0;
}

/* A thread in cuCtxSynchronize(), which has no deadline. There is no call that asks whether a context is idle, except with recent drivers.
 */
struct cuda_idle {
    void *context;
    int code;               /* the call's result; valid when `state` is CUDA_ENDED */
    _Atomic uint32_t state; /* the thread sets CUDA_ENDED, its waiter CUDA_LEFT; whichever of the two is later frees the structure */
};
enum { CUDA_WAITS, CUDA_ENDED, CUDA_LEFT };

static void *cuda_wait(void *arg)
{
    struct cuda_idle *i = arg;
    i->code = WITHIN(i, cuda->cuCtxSynchronize());
    if (atomic_exchange_explicit(&i->state, CUDA_ENDED, memory_order_acq_rel) == CUDA_LEFT)
        free(i);
    return NULL;
}

/* Waits for all kernels of the context, also those that do not use weft. If these run beyond the deadline, the thread that waits in
 * cuCtxSynchronize() goes on, and later frees `i`. */
static int cuda_idle(void *device, int64_t deadline)
{
    struct cuda_idle *i = calloc(1, sizeof *i);
    if (!i)
        return base_fail(-ENOMEM, "no memory to wait for the kernels of a GPU" BASE_MEMORY_HINT);
    i->context = ((struct cuda_device *)device)->context;
    pthread_t thread;
    int rc = base_thread(&thread, cuda_wait, i);
    if (rc) {
        free(i);
        return base_fail(rc, "cannot start a thread that waits for the kernels of a GPU: %s" BASE_THREAD_HINT, base_strerror(rc));
    }
    while (atomic_load_explicit(&i->state, memory_order_acquire) == CUDA_WAITS && base_now_ns() < deadline)
        base_sleep_ns(100 * WEFT_US);
    if (atomic_exchange_explicit(&i->state, CUDA_LEFT, memory_order_acq_rel) == CUDA_WAITS) {
        pthread_detach(thread);
        return base_fail(-ETIMEDOUT, "kernels of the GPU still run");
    }
    pthread_join(thread, NULL);
    int code = i->code;
    free(i);
    if (code && cuda_check(device))
        return 0; /* the GPU has failed, so that nothing runs on it */
    /* The driver refuses the call while another thread captures a graph. */
    return cuda_failed(code, "waiting for the kernels of the GPU");
}

static int cuda_alloc(void *device, size_t bytes, void **memory)
{
    struct cuda_device *d = device;
    cuda_ptr at = 0;
    int code = WITHIN(d, cuda->cuMemAlloc_v2(&at, bytes));
    if (code)
        return base_fail(-ENOMEM, "no memory for %zu bytes on the GPU cuda:%d: %s; end other programs that use this GPU", bytes, d->device,
                         gpu_cuda_error_name(code));
    code = WITHIN(d, cuda->cuMemsetD8Async(at, 0, bytes, d->word)); /* as in cuda_fill(), do not wait for kernels */
    if (!code)
        code = WITHIN(d, cuda->cuStreamSynchronize(d->word));
    if (code)
        (void)WITHIN(d, cuda->cuMemFree_v2(at));
    *memory = code ? NULL : (void *)(uintptr_t)at;
    return cuda_failed(code, "clearing memory of the GPU");
}

static void cuda_free(void *device, void *memory)
{
    (void)WITHIN((struct cuda_device *)device, cuda->cuMemFree_v2((cuda_ptr)(uintptr_t)memory));
}

static int cuda_fill(void *device, void *to, const void *from, size_t bytes)
{
    struct cuda_device *d = device; /* use a stream that does not wait for kernels, because kernels may run as long as the program */
    int code = WITHIN(d, cuda->cuMemcpyAsync((cuda_ptr)(uintptr_t)to, (cuda_ptr)(uintptr_t)from, bytes, d->word));
    if (!code)
        code = WITHIN(d, cuda->cuStreamSynchronize(d->word));
    return cuda_failed(code, "copying to the GPU");
}

/* --- arenas --- */

static struct cuda_allocation arena_kind(const struct cuda_device *d)
{
    return (struct cuda_allocation){.kind = CUDA_MEMORY_PINNED,
                                    .handles = CUDA_HANDLE_FD,
                                    .where = {CUDA_AT_DEVICE, d->device},
                                    .flags.rdma = attribute(d->device, CUDA_RDMA_WITH_VMM) != 0};
}

/* Allocates memory that RDMA devices may access, if the driver offers such memory; otherwise ordinary memory. */
static int memory_create(struct cuda_device *d, struct gpu_memory *m, struct cuda_allocation *kind)
{
    int code = WITHIN(d, cuda->cuMemCreate(&m->handle, m->bytes, kind, 0));
    if (!code || code == CUDA_OUT_OF_MEMORY || !kind->flags.rdma)
        return code;
    kind->flags.rdma = 0;
    return WITHIN(d, cuda->cuMemCreate(&m->handle, m->bytes, kind, 0));
}

/* Maps existing memory at new addresses, and gives this GPU access to it. */
static int map_handle(struct cuda_device *d, struct gpu_memory *m)
{
    cuda_ptr at = 0;
    struct cuda_access may = {.where = {CUDA_AT_DEVICE, d->device}, .flags = CUDA_READ_WRITE};
    int code = WITHIN(d, cuda->cuMemAddressReserve(&at, m->bytes, 0, 0, 0));
    if (code)
        return code;
    code = WITHIN(d, cuda->cuMemMap(at, m->bytes, 0, m->handle, 0));
    if (!code && (code = WITHIN(d, cuda->cuMemSetAccess(at, m->bytes, &may, 1))))
        (void)WITHIN(d, cuda->cuMemUnmap(at, m->bytes));
    if (code)
        (void)WITHIN(d, cuda->cuMemAddressFree(at, m->bytes));
    else
        m->base = (uint8_t *)(uintptr_t)(m->there = at);
    return code;
}

static void cuda_memory_close(void *device, struct gpu_memory *m)
{
    struct cuda_device *d = device;
    cuda_ptr at = (cuda_ptr)(uintptr_t)m->base;
    if (at) {
        (void)WITHIN(d, cuda->cuMemUnmap(at, m->bytes));
        (void)WITHIN(d, cuda->cuMemAddressFree(at, m->bytes));
    }
    (void)WITHIN(d, cuda->cuMemRelease(m->handle));
    if (m->fd >= 0)
        close(m->fd);
}

static int cuda_memory_open(void *device, uint64_t bytes, struct gpu_memory *out)
{
    struct cuda_device *d = device;
    struct cuda_allocation kind = arena_kind(d);
    struct gpu_memory m = {.fd = -1};
    size_t unit = 0, total = 0;
    int code = WITHIN(d, cuda->cuMemGetAllocationGranularity(&unit, &kind, CUDA_GRANULARITY_LEAST));
    if (code)
        return cuda_failed(code, "getting the page size of the GPU");
    m.bytes = base_round_up(bytes, unit);
    code = memory_create(d, &m, &kind);
    if (code) {
        (void)cuda->cuDeviceTotalMem_v2(&total, d->device);
        return base_fail(code == CUDA_OUT_OF_MEMORY ? -ENOMEM : -EIO,
                         "an arena of %llu bytes does not fit: the GPU cuda:%d has %zu bytes in all, and some of them are in use (%s); "
                         "make a smaller arena, or end other programs that use this GPU",
                         (unsigned long long)bytes, d->device, total, gpu_cuda_error_name(code));
    }
    code = map_handle(d, &m);
    if (!code)
        code = WITHIN(d, cuda->cuMemsetD8Async((cuda_ptr)(uintptr_t)m.base, 0, m.bytes, d->word));
    if (!code)
        code = WITHIN(d, cuda->cuStreamSynchronize(d->word));
    if (!code && WITHIN(d, cuda->cuMemExportToShareableHandle(&m.fd, m.handle, CUDA_HANDLE_FD, 0)))
        m.fd = -1; /* the memory cannot be exported, so other processes cannot map it */
    if (code) {
        cuda_memory_close(d, &m);
        return cuda_failed(code, "mapping an arena");
    }
    *out = m;
    return 0;
}

static int cuda_memory_import(void *device, int fd, uint64_t bytes, struct gpu_memory *out)
{
    struct cuda_device *d = device;
    struct gpu_memory m = {.bytes = bytes, .fd = -1};
    int code = WITHIN(d, cuda->cuMemImportFromShareableHandle(&m.handle, (void *)(uintptr_t)fd, CUDA_HANDLE_FD));
    if (!code && (code = map_handle(d, &m)))
        (void)WITHIN(d, cuda->cuMemRelease(m.handle));
    if (!code)
        *out = m;
    return cuda_failed(code, "mapping another node's arena");
}

/* The memory has the same addresses in all contexts of the process. The driver refuses if the two GPUs cannot access each other. */
static int cuda_memory_allow(void *device, const struct gpu_memory *m)
{
    struct cuda_device *d = device;
    struct cuda_access may = {.where = {CUDA_AT_DEVICE, d->device}, .flags = CUDA_READ_WRITE};
    int code = WITHIN(d, cuda->cuMemSetAccess((cuda_ptr)(uintptr_t)m->base, m->bytes, &may, 1));
    return cuda_failed(code, "allowing a GPU to access another GPU's memory");
}

static int cuda_memory_dmabuf(void *device, const struct gpu_memory *m)
{
    struct cuda_device *d = device;
    const char *why = no_dmabuf(d->device, NULL);
    int fd = -1;
    if (why[0])
        return base_fail(-EOPNOTSUPP, "%s", why);
    int code = WITHIN(d, cuda->cuMemGetHandleForAddressRange(&fd, (cuda_ptr)(uintptr_t)m->base, m->bytes, CUDA_RANGE_DMABUF, 0));
    return code ? base_fail(-EOPNOTSUPP, "cannot get a dmabuf of %llu bytes of the GPU's memory for RDMA devices: %s (CUDA %d)",
                            (unsigned long long)m->bytes, gpu_cuda_error_name(code), code)
                : fd;
}

static int cuda_memory_settle(void *device, bool all)
{
    struct cuda_device *d = device;
    int needed = all ? CUDA_ORDERED_FOR_ALL : CUDA_ORDERED_FOR_OWNER;
    if (d->rdma_ordered >= needed)
        return 0;
    return cuda_failed(WITHIN(d, cuda->cuFlushGPUDirectRDMAWrites(CUDA_FLUSH_THIS_CONTEXT, needed)), "cuFlushGPUDirectRDMAWrites");
}

static int event_take(struct cuda_device *d, void **event)
{
    *event = NULL;
    base_spin_lock(&d->event_lock);
    if (d->events)
        *event = d->event[--d->events];
    base_spin_unlock(&d->event_lock);
    return *event ? 0 : WITHIN(d, cuda->cuEventCreate(event, CUDA_EVENT_NO_TIMING));
}

static void event_give(struct cuda_device *d, void *event)
{
    base_spin_lock(&d->event_lock);
    bool kept = d->events < CUDA_EVENTS;
    if (kept)
        d->event[d->events++] = event;
    base_spin_unlock(&d->event_lock);
    if (!kept)
        (void)WITHIN(d, cuda->cuEventDestroy_v2(event));
}

static int cuda_copy(void *device, void *to, const void *from, size_t bytes, uint64_t *ticket)
{
    struct cuda_device *d = device;
    void *stream = d->stream[atomic_fetch_add_explicit(&d->turn, 1, memory_order_relaxed) % CUDA_STREAMS], *event;
    int code = event_take(d, &event);
    if (!code)
        code = WITHIN(d, cuda->cuMemcpyAsync((cuda_ptr)(uintptr_t)to, (cuda_ptr)(uintptr_t)from, bytes, stream));
    if (!code)
        code = WITHIN(d, cuda->cuEventRecord(event, stream));
    if (code && event)
        event_give(d, event);
    *ticket = (uint64_t)(uintptr_t)event;
    return cuda_failed(code, "starting a copy to or from the GPU");
}

static int cuda_copied(void *device, uint64_t ticket)
{
    struct cuda_device *d = device;
    void *event = (void *)(uintptr_t)ticket;
    int code = WITHIN(d, cuda->cuEventQuery(event));
    if (code == CUDA_NOT_READY)
        return -EINPROGRESS;
    event_give(d, event);
    return cuda_failed(code, "a copy to or from the GPU");
}

static int copy_word(struct cuda_device *d, void *to, const void *from)
{
    int code = WITHIN(d, cuda->cuMemcpyAsync((cuda_ptr)(uintptr_t)to, (cuda_ptr)(uintptr_t)from, 8, d->word));
    return code ? code : WITHIN(d, cuda->cuStreamSynchronize(d->word));
}

/* Copies the word from the GPU, computes the new value, and copies it back. This is correct because callers allow only one atomic on a word
 * at a time. */
static int cuda_atomic(void *device, void *word, uint32_t kind, uint64_t a, uint64_t b, uint64_t *old)
{
    uint64_t value;
    int code = copy_word(device, &value, word);
    uint64_t was = value;
    if (!code && !fab_atomic_do(kind, &value, a, b, old))
        return -EINVAL;
    if (!code && value != was)
        code = copy_word(device, word, &value);
    return cuda_failed(code, "an atomic on the GPU's memory");
}

const struct gpu_backend gpu_cuda = {
    .name = "cuda",
    .look = cuda_look,
    .why = cuda_why,
    .open = cuda_open,
    .close = cuda_close,
    .attach = cuda_attach,
    .detach = cuda_detach,
    .forget = cuda_forget,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .fill = cuda_fill,
    .check = cuda_check,
    .idle = cuda_idle,
    .memory_open = cuda_memory_open,
    .memory_import = cuda_memory_import,
    .memory_close = cuda_memory_close,
    .memory_allow = cuda_memory_allow,
    .memory_dmabuf = cuda_memory_dmabuf,
    .memory_settle = cuda_memory_settle,
    .copy = cuda_copy,
    .copied = cuda_copied,
    .atomic = cuda_atomic,
    .load = cuda_lanes_load,
    .unload = cuda_lanes_unload,
    .lane_open = cuda_lanes_open,
    .lane_close = cuda_lanes_close,
    .lane_copy = cuda_lanes_copy,
    .launch = cuda_lanes_launch,
    .lane_done = cuda_lanes_done,
};
