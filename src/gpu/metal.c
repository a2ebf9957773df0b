/* SPDX-License-Identifier: MIT
 *
 * The back end `metal`: Apple's GPUs, which share the processor's memory. Compiled, never run.
 *
 * All memory is pages of this process with a shared Metal buffer over them. For kernels the buffer has other addresses than for the
 * processor. Kernels are given as text, and take turns with the node (weft/device.metal.h says why).
 */
#include "gpu/gpu.h"
#include "gpu/metal_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Memory that kernels can access, and its Metal buffer. */
struct metal_piece {
    uint8_t *here;
    uint64_t there;
    size_t bytes;
    void *buffer; /* an MTLBuffer */
    uint32_t users;
    bool own; /* allocated by metal_alloc(), which must free it */
    struct metal_piece *next;
};
struct metal_open {
    void *device, *queue;
    pthread_mutex_t lock;
    struct metal_piece *pieces;
    /* The kernel that was compiled last. It is kept because programs run few kernels many times. */
    char *text, *name;
    void *pipeline;
};

/* Runs a call in an autorelease pool: temporary objects that the call creates are freed at the end. */
#define POOLED(call)                                               \
    ({                                                             \
        void *pool_ = gpu_metal_driver.objc_autoreleasePoolPush(); \
        __auto_type result_ = (call);                              \
        gpu_metal_driver.objc_autoreleasePoolPop(pool_);           \
        result_;                                                   \
    })

/* --- devices --- */

static bool metal_describe(uint32_t index, weft_gpu_info *out)
{
    void *d = metal_device(index);
    if (!d)
        return false;
    snprintf(out->model, sizeof out->model, "%s", metal_words(METAL_SEND(void *, (), d, "name")));
    out->memory_bytes = METAL_SEND(uint64_t, (), d, "recommendedMaxWorkingSetSize");
    out->external = METAL_SEND(bool, (), d, "isRemovable");
    out->usable = metal_device_usable(d, out->why);
    snprintf(out->no_rdma, sizeof out->no_rdma, "Metal gives no dmabufs");
    metal_release(d);
    return true;
}

static bool metal_look(uint32_t index, weft_gpu_info *out)
{
    return gpu_metal_usable() && POOLED(metal_describe(index, out));
}

static const char *metal_why(void)
{
    return gpu_metal_usable() ? "Metal knows of no GPU" : gpu_metal_driver.why;
}

static void metal_close(void *device)
{
    struct metal_open *m = device;
    metal_release(m->pipeline);
    metal_release(m->queue);
    metal_release(m->device);
    pthread_mutex_destroy(&m->lock);
    free(m->text);
    free(m->name);
    free(m);
}

static int metal_open(uint32_t index, void **device)
{
    struct metal_open *m = calloc(1, sizeof *m);
    if (!m)
        return base_fail(-ENOMEM, "no memory for the handle of a Metal GPU" BASE_MEMORY_HINT);
    pthread_mutex_init(&m->lock, NULL);
    m->device = metal_device(index);
    m->queue = m->device ? METAL_SEND(void *, (), m->device, "newCommandQueue") : NULL;
    if (!m->queue) {
        metal_close(m);
        return base_fail(-EIO, "GPU metal:%u: Metal has not created a command queue; perhaps too much memory is in use: end other programs",
                         index);
    }
    *device = m;
    return 0;
}

/* --- memory --- */

static int metal_piece_new(struct metal_open *m, void *memory, size_t bytes, bool own, struct metal_piece **out)
{
    struct metal_piece *p = calloc(1, sizeof *p);
    void *buffer = p ? POOLED(metal_buffer_over(m->device, memory, base_round_up(bytes, BASE_PAGE))) : NULL;
    if (!buffer) {
        free(p);
        return base_fail(-ENOMEM,
                         "Metal cannot make a buffer over %zu bytes at %p (newBufferWithBytesNoCopy failed); perhaps too much memory is in "
                         "use: end other programs",
                         bytes, memory);
    }
    *p =
        (struct metal_piece){.here = memory, .there = metal_buffer_there(buffer), .bytes = bytes, .buffer = buffer, .users = 1, .own = own};
    p->next = m->pieces;
    m->pieces = p;
    *out = p;
    return 0;
}

/* The link of the list that points to the piece with this address. */
static struct metal_piece **metal_piece_at(struct metal_open *m, const void *here)
{
    struct metal_piece **at = &m->pieces;
    while (*at && (*at)->here != (const uint8_t *)here)
        at = &(*at)->next;
    return at;
}

static void metal_piece_drop(struct metal_piece **at)
{
    struct metal_piece *p = *at;
    if (!p || --p->users)
        return;
    *at = p->next;
    metal_release(p->buffer);
    free(p);
}

static int metal_attach(void *device, void *memory, size_t bytes, uint64_t *there)
{
    struct metal_open *m = device;
    int rc = 0;
    pthread_mutex_lock(&m->lock);
    struct metal_piece *p = *metal_piece_at(m, memory);
    if (p)
        p->users++;
    else
        rc = metal_piece_new(m, memory, bytes, false, &p);
    if (!rc)
        *there = p->there;
    pthread_mutex_unlock(&m->lock);
    return rc;
}

static void metal_detach(void *device, void *memory)
{
    struct metal_open *m = device;
    pthread_mutex_lock(&m->lock);
    metal_piece_drop(metal_piece_at(m, memory));
    pthread_mutex_unlock(&m->lock);
}

/* `*memory` becomes the memory's address for kernels. Later calls take this address. */
static int metal_alloc(void *device, size_t bytes, void **memory)
{
    struct metal_open *m = device;
    struct metal_piece *p;
    size_t whole = base_round_up(bytes, BASE_PAGE);
    void *at = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (at == MAP_FAILED)
        return base_fail(-ENOMEM, "no memory for a buffer of %zu bytes for the GPU" BASE_MEMORY_HINT, bytes);
    pthread_mutex_lock(&m->lock);
    int rc = metal_piece_new(m, at, whole, true, &p);
    if (!rc)
        *memory = (void *)(uintptr_t)p->there;
    pthread_mutex_unlock(&m->lock);
    if (rc)
        munmap(at, whole);
    return rc;
}

static struct metal_piece **metal_own_at(struct metal_open *m, const void *there)
{
    struct metal_piece **at = &m->pieces;
    uint64_t a = (uint64_t)(uintptr_t)there;
    while (*at && !((*at)->own && a >= (*at)->there && a - (*at)->there < (*at)->bytes))
        at = &(*at)->next;
    return at;
}

static void metal_free(void *device, void *memory)
{
    struct metal_open *m = device;
    pthread_mutex_lock(&m->lock);
    struct metal_piece **at = metal_own_at(m, memory);
    if (*at) {
        uint8_t *here = (*at)->here;
        size_t bytes = (*at)->bytes;
        metal_piece_drop(at);
        munmap(here, bytes);
    }
    pthread_mutex_unlock(&m->lock);
}

static int metal_fill(void *device, void *to, const void *from, size_t bytes)
{
    struct metal_open *m = device;
    pthread_mutex_lock(&m->lock);
    struct metal_piece *p = *metal_own_at(m, to);
    uint64_t offset = p ? (uint64_t)(uintptr_t)to - p->there : 0;
    bool there = p && bytes <= p->bytes - offset;
    if (there)
        memcpy(p->here + offset, from, bytes);
    pthread_mutex_unlock(&m->lock);
    return there ? 0 : base_fail(-EFAULT, "%zu bytes at %p are not in memory that was allocated on this GPU", bytes, to);
}

/* --- arenas: identified by the processor's address --- */

static int metal_memory_map(struct metal_open *m, int fd, uint64_t bytes, struct gpu_memory *out)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return base_fail(-errno, "cannot map %llu bytes for an arena of the GPU: %s" BASE_MEMORY_HINT, (unsigned long long)bytes,
                         base_strerror(errno));
    *out = (struct gpu_memory){.base = at, .bytes = bytes, .fd = fd};
    int rc = metal_attach(m, at, bytes, &out->there);
    if (rc)
        munmap(at, bytes);
    return rc;
}

static int metal_memory_open(void *device, uint64_t bytes, struct gpu_memory *out)
{
    uint64_t whole = base_round_up(bytes, BASE_PAGE), available = base_memory_available();
    if (whole > available)
        return base_fail(-ENOMEM, "an arena of %llu bytes does not fit: the GPU has %llu bytes free; make a smaller arena",
                         (unsigned long long)bytes, (unsigned long long)available);
    int fd = base_memory_fd("weft-arena", whole, false);
    int rc = fd < 0 ? fd : metal_memory_map(device, fd, whole, out);
    if (rc && fd >= 0)
        close(fd);
    return rc;
}

static int metal_memory_import(void *device, int fd, uint64_t bytes, struct gpu_memory *out)
{
    int rc = base_memory_fd_check(fd, bytes);
    if (!rc)
        rc = metal_memory_map(device, fd, bytes, out);
    if (!rc)
        out->fd = -1;
    return rc;
}

static void metal_memory_close(void *device, struct gpu_memory *memory)
{
    metal_detach(device, memory->base);
    munmap(memory->base, memory->bytes);
    if (memory->fd >= 0)
        close(memory->fd);
}

static int metal_copy(void *device, void *to, const void *from, size_t bytes, uint64_t *ticket)
{
    (void)device;
    *ticket = 0;
    fab_copy_little(to, from, bytes);
    fab_fence_after_get();
    return 0;
}

static int metal_copied(void *device, uint64_t ticket)
{
    (void)device, (void)ticket;
    return 0;
}

static int metal_atomic(void *device, void *word, uint32_t kind, uint64_t a, uint64_t b, uint64_t *old)
{
    (void)device;
    return fab_atomic_do(kind, word, a, b, old) ? 0 : -EINVAL;
}

/* --- kernels --- */

static const char *metal_error_text(void *error)
{
    return error ? metal_words(METAL_SEND(void *, (), error, "localizedDescription")) : "no reason was given";
}

/* Compiles weft/device.metal.h and the program's text together, as one text. */
static int metal_compile(struct metal_open *m, const char *text, const char *name)
{
    void *error = NULL, *library = NULL, *function = NULL, *source = NULL, *wanted = metal_text(name);
    size_t room = strlen(gpu_metal_text) + strlen(text) + 2;
    char *all = malloc(room);
    int rc = 0;
    if (all) {
        snprintf(all, room, "%s\n%s", gpu_metal_text, text);
        source = metal_text(all);
    }
    free(all);
    if (!source || !wanted)
        return base_fail(-ENOMEM, "no memory for the text of a kernel that is to be compiled" BASE_MEMORY_HINT);
    library = METAL_SEND(void *, (void *, void *, void **), m->device, "newLibraryWithSource:options:error:", source, NULL, &error);
    if (!library)
        return base_fail(-EINVAL, "the kernel's text does not compile: %.400s", metal_error_text(error));
    function = METAL_SEND(void *, (void *), library, "newFunctionWithName:", wanted);
    if (!function)
        rc = base_fail(-EINVAL, "the kernel's text has no function %.60s: name a function that it has", name);
    if (!rc) {
        m->pipeline = METAL_SEND(void *, (void *, void **), m->device, "newComputePipelineStateWithFunction:error:", function, &error);
        if (!m->pipeline)
            rc = base_fail(-EINVAL, "the kernel %.60s cannot be used: %.400s", name, metal_error_text(error));
    }
    metal_release(function);
    metal_release(library);
    return rc;
}

static int metal_prepare(struct metal_open *m, const char *text, const char *name)
{
    if (m->pipeline && !strcmp(m->text, text) && !strcmp(m->name, name))
        return 0;
    metal_release(m->pipeline);
    m->pipeline = NULL;
    free(m->text);
    free(m->name);
    m->text = strdup(text);
    m->name = strdup(name);
    return m->text && m->name ? metal_compile(m, text, name)
                              : base_fail(-ENOMEM, "no memory to keep the text of a compiled kernel" BASE_MEMORY_HINT);
}

/* Copies the kernel's argument into pages of its own, with a buffer over them. */
static void *metal_argument(struct metal_open *m, const void *arg, size_t bytes)
{
    void *buffer =
        METAL_SEND(void *, (unsigned long, unsigned long), m->device, "newBufferWithLength:options:", bytes ? bytes : 16, METAL_SHARED);
    if (buffer && bytes)
        memcpy(METAL_SEND(void *, (), buffer, "contents"), arg, bytes);
    return buffer;
}

static int metal_encode(struct metal_open *m, struct metal_piece *own, uint64_t offset, void *argument, struct metal_size blocks,
                        struct metal_size threads, void **command)
{
    *command = METAL_SEND(void *, (), m->queue, "commandBuffer");
    void *e = *command ? METAL_SEND(void *, (), *command, "computeCommandEncoder") : NULL;
    if (!e)
        return base_fail(
            -EIO, "Metal has created no command buffer or encoder for the GPU; perhaps too much memory is in use: end other programs");
    METAL_SEND(void, (void *), e, "setComputePipelineState:", m->pipeline);
    METAL_SEND(void, (void *, unsigned long, unsigned long), e, "setBuffer:offset:atIndex:", own->buffer, offset, 0);
    METAL_SEND(void, (void *, unsigned long, unsigned long), e, "setBuffer:offset:atIndex:", argument, 0, 1);
    /* Kernels reach this memory only through stored addresses. Declare it as used, or the GPU may not have it mapped. */
    for (const struct metal_piece *p = m->pieces; p; p = p->next)
        METAL_SEND(void, (void *, unsigned long), e, "useResource:usage:", p->buffer, METAL_READ_WRITE);
    METAL_SEND(void, (struct metal_size, struct metal_size), e, "dispatchThreadgroups:threadsPerThreadgroup:", blocks, threads);
    METAL_SEND(void, (), e, "endEncoding");
    return 0;
}

static int metal_run(struct metal_open *m, const void *there, struct metal_size blocks, struct metal_size threads, void *arg, size_t bytes)
{
    void *command = NULL, *argument = metal_argument(m, arg, bytes);
    if (!argument)
        return base_fail(-ENOMEM, "no memory for a kernel's argument of %zu bytes" BASE_MEMORY_HINT, bytes);
    pthread_mutex_lock(&m->lock);
    struct metal_piece *own = *metal_own_at(m, there);
    uint64_t offset = own ? (uint64_t)(uintptr_t)there - own->there : 0;
    int rc =
        own ? metal_encode(m, own, offset, argument, blocks, threads, &command)
            : base_fail(-EFAULT, "the kernel's argument weft_device is not in memory of this GPU: pass what weft_gpu_device() returned");
    pthread_mutex_unlock(&m->lock);
    if (!rc) {
        METAL_SEND(void, (), command, "commit");
        METAL_SEND(void, (), command, "waitUntilCompleted");
        if (METAL_SEND(unsigned long, (), command, "status") != METAL_COMPLETED)
            rc = base_fail(-EIO, "the kernel has failed: %.400s", metal_error_text(METAL_SEND(void *, (), command, "error")));
        else if (bytes)
            memcpy(arg, METAL_SEND(void *, (), argument, "contents"), bytes);
    }
    metal_release(argument);
    return rc;
}

static int metal_run_text(void *device, const void *there, const char *text, const char *kernel, uint32_t blocks, uint32_t threads,
                          void *arg, size_t bytes)
{
    struct metal_open *m = device;
    void *pool = gpu_metal_driver.objc_autoreleasePoolPush();
    int rc = metal_prepare(m, text, kernel);
    unsigned long most = rc ? 0 : METAL_SEND(unsigned long, (), m->pipeline, "maxTotalThreadsPerThreadgroup");
    if (!rc && threads > most)
        rc = base_fail(-EINVAL, "the kernel %.60s with %u threads a block: this GPU allows at most %lu: start more blocks of fewer threads",
                       kernel, threads, most);
    if (!rc)
        rc = metal_run(m, there, (struct metal_size){blocks, 1, 1}, (struct metal_size){threads, 1, 1}, arg, bytes);
    gpu_metal_driver.objc_autoreleasePoolPop(pool);
    return rc;
}

const struct gpu_backend gpu_metal = {
    .name = "metal",
    .turns = true,
    .look = metal_look,
    .why = metal_why,
    .open = metal_open,
    .close = metal_close,
    .attach = metal_attach,
    .detach = metal_detach,
    .alloc = metal_alloc,
    .free = metal_free,
    .fill = metal_fill,
    .memory_open = metal_memory_open,
    .memory_import = metal_memory_import,
    .memory_close = metal_memory_close,
    .copy = metal_copy,
    .copied = metal_copied,
    .atomic = metal_atomic,
    .run_text = metal_run_text,
};
