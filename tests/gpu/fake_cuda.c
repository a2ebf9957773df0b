/* SPDX-License-Identifier: MIT
 *
 * A fake CUDA driver for tests: its GPUs use memory of this process, execute copies at once, and run no kernels. It is loaded like the real
 * driver, as libcuda.so.1 (LD_LIBRARY_PATH). A GPU's memory has addresses that the processor cannot access.
 *
 * FAKE_CUDA is a list of words: gpus=N (default 1), init=CODE (the result of cuInit()), full (no memory), no-dmabuf, no-rdma, ordered=N
 * (an attribute), deaf (writes nothing), no-register=N (from then on, registration number N of memory fails), trap (a kernel has trapped),
 * capture (a thread captures a graph).
 * A test that finds fakeSay() with dlsym() can change the words later, and play a kernel with fakeStart().
 * Compiled with FAKE_CUDA_OLD it lacks the functions that drivers before CUDA 10.2 lack.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    OK = 0,
    INVALID = 1,
    NO_MEMORY = 2,
    NO_DEVICE = 100,
    ALREADY = 712,
    NOT_REGISTERED = 713,
    TRAPPED = 719,
    NOT_SUPPORTED = 801,
    CAPTURES = 900
};
enum { PIECES = 256, PAGE = 4096 };

typedef unsigned long long ptr;

/* Memory of the driver: a memfd, mapped at the GPU's address (`at`), which the processor must not use, and for the driver itself (`view`).
 * Registered memory of the host has the same address for both. */
struct piece {
    uint8_t *at, *view;
    size_t bytes;
    int fd; /* -1: memory of the host */
    bool used;
    bool mapped;  /* by cuMemMap(): only GPUs that have been given access reach it */
    int device;   /* the GPU to which the memory belongs */
    unsigned may; /* the GPUs with access, as bits */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int current = -1; /* the device of the thread's context */
static struct piece pieces[PIECES];
static const char *_Atomic said; /* the words in place of FAKE_CUDA; NULL: that holds */
static _Atomic long registrations;
static _Atomic int running; /* kernels */

static long word(const char *name, long otherwise)
{
    const char *words = atomic_load(&said), *all = words ? words : getenv("FAKE_CUDA"), *at = all ? strstr(all, name) : NULL;
    size_t n = strlen(name);
    return !at ? otherwise : at[n] == '=' ? atol(at + n + 1) : 1;
}

static struct piece *piece_at(const void *p)
{
    for (int i = 0; i < PIECES; i++)
        if (pieces[i].used && (const uint8_t *)p >= pieces[i].at && (const uint8_t *)p < pieces[i].at + pieces[i].bytes)
            return &pieces[i];
    return NULL;
}

static struct piece *piece_new(void)
{
    for (int i = 0; i < PIECES; i++)
        if (!pieces[i].used) {
            pieces[i] = (struct piece){.used = true, .fd = -1};
            return &pieces[i];
        }
    return NULL;
}

/* The driver's own address of the memory that the GPU has at `p`. */
static uint8_t *seen(ptr p)
{
    pthread_mutex_lock(&lock);
    struct piece *m = piece_at((void *)(uintptr_t)p);
    uint8_t *at = m && m->view ? m->view + ((uint8_t *)(uintptr_t)p - m->at) : (uint8_t *)(uintptr_t)p;
    pthread_mutex_unlock(&lock);
    return at;
}

/* Whether a GPU may copy to or from this memory. */
static bool reaches(ptr p)
{
    pthread_mutex_lock(&lock);
    struct piece *m = piece_at((void *)(uintptr_t)p);
    bool may = !m || !m->mapped || (current >= 0 && m->may >> current & 1);
    pthread_mutex_unlock(&lock);
    return may;
}

/* All GPUs are connected by NVLink, except the last one, and no others reach each other. */
static bool connected(int a, int b)
{
    int last = (int)word("gpus", 1) - 1;
    return a == b || (a != last && b != last);
}

/* The name of the memory contains the GPU's number, so that another process can find it, too. */
static int backing(size_t bytes, int device)
{
    char name[32];
    snprintf(name, sizeof name, "fake-cuda-%d", device);
    int fd = word("full", 0) ? -1 : memfd_create(name, MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Maps the memory of `fd` at addresses that the processor must not use, or may use (`managed`). */
static int map_piece(struct piece *m, int fd, size_t bytes, void *at, bool managed)
{
    int protection = managed ? PROT_READ | PROT_WRITE : PROT_NONE;
    m->at = mmap(at, bytes, protection, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
    m->view = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    m->bytes = bytes;
    m->fd = fd;
    return m->at == MAP_FAILED || m->view == MAP_FAILED ? NO_MEMORY : OK;
}

static int make(ptr *out, size_t bytes, bool managed)
{
    pthread_mutex_lock(&lock);
    struct piece *m = piece_new();
    size_t whole = (bytes + PAGE - 1) & ~(size_t)(PAGE - 1);
    int fd = m ? backing(whole, 0) : -1, code = fd < 0 ? NO_MEMORY : map_piece(m, fd, whole, NULL, managed);
    if (code && m)
        m->used = false;
    *out = code ? 0 : (ptr)(uintptr_t)m->at;
    pthread_mutex_unlock(&lock);
    return code;
}

static int unmake(void *at)
{
    pthread_mutex_lock(&lock);
    struct piece *m = piece_at(at);
    int code = m && m->at == at && m->view ? OK : INVALID;
    if (code == OK) {
        munmap(m->at, m->bytes);
        munmap(m->view, m->bytes);
        if (m->fd >= 0)
            close(m->fd);
        m->used = false;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

#define FAKE(...)           \
    EXPORT int __VA_ARGS__; \
    EXPORT int __VA_ARGS__

/* --- for tests --- */

FAKE(fakeSay(const char *words)) /* must stay valid */
{
    atomic_store(&registrations, 0);
    atomic_store(&said, words);
    return OK;
}

struct kernel {
    void (*play)(void *);
    void *arg;
};
static void *play(void *arg)
{
    struct kernel k = *(struct kernel *)arg;
    free(arg);
    k.play(k.arg);
    atomic_fetch_sub(&running, 1);
    return NULL;
}

/* Plays a kernel in a thread: until it returns, cuCtxSynchronize() waits. */
FAKE(fakeStart(void (*kernel)(void *), void *arg))
{
    pthread_t thread;
    struct kernel *k = malloc(sizeof *k);
    if (!k)
        return NO_MEMORY;
    *k = (struct kernel){kernel, arg};
    atomic_fetch_add(&running, 1);
    return pthread_create(&thread, NULL, play, k) || pthread_detach(thread) ? INVALID : OK;
}

FAKE(fakeRegistered(const void *memory))
{
    pthread_mutex_lock(&lock);
    struct piece *m = piece_at(memory);
    bool is = m && !m->view;
    pthread_mutex_unlock(&lock);
    return is;
}

FAKE(fakeMapped(const void *memory)) /* of a GPU */
{
    pthread_mutex_lock(&lock);
    struct piece *m = piece_at(memory);
    bool is = m && m->view;
    pthread_mutex_unlock(&lock);
    return is;
}

/* --- the driver --- */

FAKE(cuInit(unsigned flags))
{
    (void)flags;
    return (int)word("init", 0);
}
FAKE(cuDriverGetVersion(int *version))
{
#if defined(FAKE_CUDA_OLD)
    *version = 9010;
#else
    *version = 13000;
#endif
    return OK;
}
FAKE(cuDeviceGetCount(int *count))
{
    *count = (int)word("gpus", 1);
    return OK;
}
FAKE(cuDeviceGet(int *device, int index))
{
    *device = index;
    return index < word("gpus", 1) ? OK : INVALID;
}
FAKE(cuDeviceGetName(char *name, int room, int device))
{
    snprintf(name, (size_t)room, "Fake GPU %d", device);
    return OK;
}
FAKE(cuDeviceTotalMem_v2(size_t *bytes, int device))
{
    (void)device;
    *bytes = (size_t)64 << 20;
    return OK;
}
FAKE(cuDeviceGetPCIBusId(char *id, int room, int device))
{
    snprintf(id, (size_t)room, "0000:%02X:00.0", 0xf0 + device);
    return OK;
}
/* As on an H100: writes of RDMA devices are in order for the GPU itself, and for others after a flush. */
FAKE(cuDeviceGetAttribute(int *value, int attribute, int device))
{
    *value = attribute == 110   ? !word("no-rdma", 0)
             : attribute == 117 ? 1
             : attribute == 118 ? (int)word("ordered", 100)
             : attribute == 124 ? !word("no-dmabuf", 0)
                                : 0;
    return device < word("gpus", 1) ? OK : INVALID;
}
FAKE(cuFlushGPUDirectRDMAWrites(int target, int scope))
{
    return target == 0 && (scope == 100 || scope == 200) ? OK : INVALID;
}
FAKE(cuDeviceGetP2PAttribute(int *value, int attribute, int a, int b))
{
    *value = attribute == 3 && a != b && connected(a, b);
    return a == b ? INVALID : OK;
}
FAKE(cuDevicePrimaryCtxRetain(void **context, int device))
{
    *context = (void *)(uintptr_t)(device + 1);
    return OK;
}
FAKE(cuDevicePrimaryCtxRelease_v2(int device))
{
    (void)device;
    return OK;
}
FAKE(cuCtxPushCurrent_v2(void *context))
{
    current = (int)(uintptr_t)context - 1;
    return context ? OK : INVALID;
}
FAKE(cuCtxPopCurrent_v2(void **context))
{
    *context = NULL;
    current = -1;
    return OK;
}
FAKE(cuCtxSynchronize(void))
{
    if (word("capture", 0))
        return CAPTURES;
    while (!word("trap", 0) && atomic_load(&running))
        usleep(1000);
    return word("trap", 0) ? TRAPPED : OK;
}
FAKE(cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags))
{
    (void)flags;
    if (atomic_fetch_add(&registrations, 1) + 1 == word("no-register", 0))
        return NO_MEMORY;
    pthread_mutex_lock(&lock);
    struct piece *m = piece_at(memory) ? NULL : piece_new();
    int code = m ? OK : ALREADY;
    if (m) {
        m->at = memory;
        m->bytes = bytes;
    }
    pthread_mutex_unlock(&lock);
    return code;
}
FAKE(cuMemHostUnregister(void *memory))
{
    pthread_mutex_lock(&lock);
    struct piece *m = piece_at(memory);
    int code = m && m->at == memory && !m->view ? OK : NOT_REGISTERED;
    unsigned char in[1];
    if (code == OK && mincore((void *)((uintptr_t)memory & ~(uintptr_t)(PAGE - 1)), 1, in)) {
        fputs("fake CUDA: memory was unmapped before it was unregistered\n", stderr);
        abort();
    }
    if (code == OK)
        m->used = false;
    pthread_mutex_unlock(&lock);
    return code;
}
FAKE(cuMemHostGetDevicePointer_v2(ptr *there, void *memory, unsigned flags))
{
    (void)flags;
    *there = (ptr)(uintptr_t)memory;
    return OK;
}
FAKE(cuMemHostAlloc(void **memory, size_t bytes, unsigned flags))
{
    (void)flags;
    *memory = word("full", 0) ? MAP_FAILED : mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*memory == MAP_FAILED)
        return NO_MEMORY;
    *(size_t *)*memory = bytes + PAGE;
    *memory = (uint8_t *)*memory + PAGE;
    return OK;
}
FAKE(cuMemFreeHost(void *memory))
{
    uint8_t *start = (uint8_t *)memory - PAGE;
    return munmap(start, *(size_t *)(void *)start) ? INVALID : OK;
}
FAKE(cuMemGetInfo_v2(size_t *left, size_t *all))
{
    *left = *all = (size_t)64 << 20;
    return word("trap", 0) ? TRAPPED : OK;
}
FAKE(cuMemAlloc_v2(ptr *out, size_t bytes))
{
    return make(out, bytes, false);
}
FAKE(cuMemAllocManaged(ptr *out, size_t bytes, unsigned flags))
{
    return flags == 1 ? make(out, bytes, true) : INVALID;
}
FAKE(cuMemFree_v2(ptr at))
{
    return unmake((void *)(uintptr_t)at);
}
FAKE(cuMemsetD8_v2(ptr at, unsigned char byte, size_t bytes))
{
    if (!word("deaf", 0))
        memset(seen(at), byte, bytes);
    return OK;
}
FAKE(cuMemsetD8Async(ptr at, unsigned char byte, size_t bytes, void *stream))
{
    (void)stream;
    return cuMemsetD8_v2(at, byte, bytes);
}
FAKE(cuMemcpyAsync(ptr to, ptr from, size_t bytes, void *stream))
{
    (void)stream;
    if (!reaches(to) || !reaches(from))
        return INVALID;
    if (word("trap", 0))
        return TRAPPED;
    if (bytes == 8) /* other threads may read the word meanwhile */
        __atomic_store_n((uint64_t *)(void *)seen(to), __atomic_load_n((uint64_t *)(void *)seen(from), __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    else
        memcpy(seen(to), seen(from), bytes);
    return OK;
}
FAKE(cuMemGetHandleForAddressRange(void *out, ptr at, size_t bytes, int kind, unsigned long long flags))
{
    (void)flags;
    struct piece *m = piece_at((void *)(uintptr_t)at);
    if (word("no-dmabuf", 0) || kind != 1)
        return NOT_SUPPORTED;
    if (!m || !m->view || m->at != (uint8_t *)(uintptr_t)at || bytes > m->bytes)
        return INVALID;
    *(int *)out = dup(m->fd);
    return OK;
}
FAKE(cuStreamCreate(void **stream, unsigned flags))
{
    (void)flags;
    *stream = &lock;
    return OK;
}
FAKE(cuStreamDestroy_v2(void *stream))
{
    (void)stream;
    return OK;
}
FAKE(cuStreamSynchronize(void *stream))
{
    (void)stream;
    return OK;
}
FAKE(cuStreamWaitEvent(void *stream, void *event, unsigned flags))
{
    (void)stream, (void)event, (void)flags;
    return OK;
}
FAKE(cuModuleLoadData(void **module, const void *image)) /* this driver runs no kernels */
{
    (void)module, (void)image;
    return NOT_SUPPORTED;
}
FAKE(cuModuleUnload(void *module))
{
    (void)module;
    return OK;
}
FAKE(cuModuleGetFunction(void **function, void *module, const char *name))
{
    (void)function, (void)module, (void)name;
    return NOT_SUPPORTED;
}
FAKE(cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z,
                    unsigned shared, void *stream, void **arguments, void **extra))
{
    (void)function, (void)x, (void)y, (void)z, (void)threads, (void)threads_y, (void)threads_z, (void)shared;
    (void)stream, (void)arguments, (void)extra;
    return NOT_SUPPORTED;
}
FAKE(cuEventCreate(void **event, unsigned flags))
{
    (void)flags;
    *event = &lock;
    return OK;
}
FAKE(cuEventDestroy_v2(void *event))
{
    (void)event;
    return OK;
}
FAKE(cuEventRecord(void *event, void *stream))
{
    (void)event, (void)stream;
    return OK;
}
FAKE(cuEventQuery(void *event))
{
    (void)event;
    return OK;
}
FAKE(cuGetErrorName(int code, const char **name))
{
    *name = code == NO_MEMORY       ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == TRAPPED       ? "CUDA_ERROR_LAUNCH_FAILED"
            : code == NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED"
                                    : "CUDA_ERROR_OF_THE_FAKE";
    return OK;
}

#if !defined(FAKE_CUDA_OLD)
FAKE(cuMemGetAllocationGranularity(size_t *unit, const void *kind, int which))
{
    (void)kind, (void)which;
    *unit = (size_t)2 << 20;
    return OK;
}
FAKE(cuMemAddressReserve(ptr *out, size_t bytes, size_t alignment, ptr hint, unsigned long long flags))
{
    (void)alignment, (void)hint, (void)flags;
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *out = (ptr)(uintptr_t)at;
    return at == MAP_FAILED ? NO_MEMORY : OK;
}
FAKE(cuMemAddressFree(ptr at, size_t bytes))
{
    return munmap((void *)(uintptr_t)at, bytes) ? INVALID : OK;
}

/* CUmemAllocationProp and CUmemAccessDesc, as far as they are read here. */
struct place {
    int kind, device;
};
struct allocation {
    int kind, handles;
    struct place where;
};
struct access {
    struct place where;
    int flags;
};

static struct {
    size_t bytes;
    int fd;
    unsigned users;
} handles[PIECES]; /* of cuMemCreate(); by number - 1 */

static int handle_new(uint64_t *handle, int fd, size_t bytes)
{
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < PIECES && handles[i].users)
        i++;
    if (i < PIECES) {
        handles[i].fd = fd;
        handles[i].bytes = bytes;
        handles[i].users = 1;
        *handle = (uint64_t)i + 1;
    }
    pthread_mutex_unlock(&lock);
    return i < PIECES ? OK : NO_MEMORY;
}
FAKE(cuMemCreate(uint64_t *handle, size_t bytes, const void *kind, unsigned long long flags))
{
    (void)flags;
    int fd = bytes > (size_t)64 << 20 ? -1 : backing(bytes, ((const struct allocation *)kind)->where.device);
    return fd < 0 ? NO_MEMORY : handle_new(handle, fd, bytes);
}
FAKE(cuMemRelease(unsigned long long handle))
{
    pthread_mutex_lock(&lock);
    int code = handle && handle <= PIECES && handles[handle - 1].users ? OK : INVALID;
    if (code == OK && --handles[handle - 1].users == 0)
        close(handles[handle - 1].fd);
    pthread_mutex_unlock(&lock);
    return code;
}
FAKE(cuMemMap(ptr at, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags))
{
    (void)flags;
    pthread_mutex_lock(&lock);
    struct piece *m = offset ? NULL : piece_new();
    int code = m ? map_piece(m, dup(handles[handle - 1].fd), bytes, (void *)(uintptr_t)at, false) : INVALID;
    char link[64], name[64] = "";
    if (code == OK) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", m->fd);
        m->mapped = readlink(link, name, sizeof name - 1) > 0 && sscanf(name, "/memfd:fake-cuda-%d", &m->device) == 1;
    }
    pthread_mutex_unlock(&lock);
    return code;
}
FAKE(cuMemUnmap(ptr at, size_t bytes))
{
    int code = unmake((void *)(uintptr_t)at); /* the addresses stay reserved */
    void *again = mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return again == MAP_FAILED ? INVALID : code;
}
FAKE(cuMemSetAccess(ptr at, size_t bytes, const void *may, size_t count))
{
    const struct access *a = may;
    pthread_mutex_lock(&lock);
    struct piece *m = piece_at((void *)(uintptr_t)at);
    int code = m && m->bytes == bytes && count == 1 && connected(a->where.device, m->device) ? OK : INVALID;
    if (code == OK)
        m->may |= 1u << a->where.device;
    pthread_mutex_unlock(&lock);
    return code;
}
FAKE(cuMemExportToShareableHandle(void *out, unsigned long long handle, int kind, unsigned long long flags))
{
    (void)kind, (void)flags;
    *(int *)out = dup(handles[handle - 1].fd);
    return OK;
}
FAKE(cuMemImportFromShareableHandle(uint64_t *handle, void *from, int kind)) /* `from` is the descriptor itself, and stays the caller's */
{
    struct stat st;
    (void)kind;
    int fd = dup((int)(uintptr_t)from);
    if (fd < 0 || fstat(fd, &st))
        return INVALID;
    return handle_new(handle, fd, (size_t)st.st_size);
}
#endif
