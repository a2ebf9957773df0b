/* SPDX-License-Identifier: MIT
 *
 * Memory of macOS and Metal, for weft probe memory. Compiled, never run.
 */
#include <dlfcn.h>
#include <string.h>

#include "cli/command.h"
#include "cli/probe_gpu.h"
#include "gpu/metal_driver.h"

#define IOSURFACE "/System/Library/Frameworks/IOSurface.framework/IOSurface"

struct metal_range { /* NSRange */
    unsigned long location, length;
};

/* Between pool_begin() and pool_end(), calls create temporary Objective-C objects. pool_end() frees these, and returns `rc`. */
static void *pool_begin(void)
{
    return gpu_metal_driver.objc_autoreleasePoolPush();
}
static int pool_end(void *pool, int rc)
{
    gpu_metal_driver.objc_autoreleasePoolPop(pool);
    return rc;
}

int probe_metal_start(struct probe_gpu *g)
{
    char why[160];
    if (!gpu_metal_usable())
        return base_fail(-ENODEV, "%s", gpu_metal_driver.why);
    void *pool = pool_begin(), *device = metal_device(0);
    if (!device)
        return pool_end(pool, base_fail(-ENODEV, "Metal knows of no GPU"));
    if (!metal_device_usable(device, why)) {
        metal_release(device);
        return pool_end(pool, base_fail(-ENODEV, "%s", why));
    }
    snprintf(g->name, sizeof g->name, "%s", metal_words(METAL_SEND(void *, (), device, "name")));
    g->metal = device;
    return pool_end(pool, 0);
}

void probe_metal_close(struct probe_gpu *g)
{
    metal_release(g->metal);
    g->metal = NULL;
}

static int no_metal(const struct piece *m)
{
#if defined(__APPLE__)
    return m->gpu->metal ? 0 : base_fail(-ENODEV, "%s", m->gpu->why);
#else
    (void)m;
    return base_fail(-ENODEV, "macOS only");
#endif
}

/* --- Metal's buffers --- */

static void buffer_back(struct piece *m)
{
    metal_release(m->object);
}

int probe_metal_buffer(struct piece *m)
{
    int rc = no_metal(m);
    if (rc)
        return rc;
    m->object = METAL_SEND(void *, (unsigned long, unsigned long), m->gpu->metal, "newBufferWithLength:options:", m->bytes, METAL_SHARED);
    if (!m->object)
        return base_fail(-ENOMEM, "newBufferWithLength: Metal has created no buffer of %llu bytes", (unsigned long long)m->bytes);
    m->at = METAL_SEND(void *, (), m->object, "contents");
    m->made_by = "newBufferWithLength";
    m->give_back = buffer_back;
    return 0;
}

/* --- IOSurface --- */

static void set_number(void *properties, const char *key, uint64_t value)
{
    void *number = METAL_SEND(void *, (unsigned long), gpu_metal_driver.objc_getClass("NSNumber"), "numberWithUnsignedLong:", value);
    METAL_SEND(void, (void *, void *), properties, "setObject:forKey:", number, metal_text(key));
}

/* A surface of one row of bytes. */
static void *surface_new(uint64_t bytes)
{
    void *kind = gpu_metal_driver.objc_getClass("IOSurface");
    void *properties = METAL_SEND(void *, (), gpu_metal_driver.objc_getClass("NSMutableDictionary"), "dictionary");
    if (!kind || !properties)
        return NULL;
    set_number(properties, "IOSurfaceWidth", bytes);
    set_number(properties, "IOSurfaceHeight", 1);
    set_number(properties, "IOSurfaceBytesPerElement", 1);
    set_number(properties, "IOSurfaceBytesPerRow", bytes);
    set_number(properties, "IOSurfaceAllocSize", bytes);
    return METAL_SEND(void *, (void *), METAL_SEND(void *, (), kind, "alloc"), "initWithProperties:", properties);
}

static void surface_back(struct piece *m)
{
    (void)METAL_SEND(int, (uint32_t, uint32_t *), m->object, "unlockWithOptions:seed:", 0, NULL);
    metal_release(m->object);
}

/* The surface stays locked for the processor while the piece exists. */
int probe_metal_surface(struct piece *m)
{
    int rc = no_metal(m);
    if (rc)
        return rc;
    if (!dlopen(IOSURFACE, RTLD_NOW | RTLD_LOCAL))
        return base_fail(-ENOSYS, "this system has no %s", IOSURFACE);
    void *pool = pool_begin();
    m->object = surface_new(base_round_up(m->bytes, BASE_PAGE));
    if (!m->object)
        return pool_end(pool,
                        base_fail(-ENOMEM, "initWithProperties: no IOSurface of %llu bytes was created", (unsigned long long)m->bytes));
    if (METAL_SEND(int, (uint32_t, uint32_t *), m->object, "lockWithOptions:seed:", 0, NULL)) {
        metal_release(m->object);
        return pool_end(pool, base_fail(-EIO, "lockWithOptions: the IOSurface cannot be locked for the processor"));
    }
    m->bytes = METAL_SEND(unsigned long, (), m->object, "allocationSize");
    m->at = METAL_SEND(void *, (), m->object, "baseAddress");
    m->give_back = surface_back;
    return pool_end(pool, 0);
}

/* --- which memory the GPU can access --- */

/* Lets the GPU fill the buffer, and waits until it has. */
static int fill(void *device, void *buffer, uint64_t bytes, uint8_t byte)
{
    void *queue = METAL_SEND(void *, (), device, "newCommandQueue");
    void *command = queue ? METAL_SEND(void *, (), queue, "commandBuffer") : NULL;
    void *encoder = command ? METAL_SEND(void *, (), command, "blitCommandEncoder") : NULL;
    bool done = false;
    if (encoder) {
        METAL_SEND(void, (void *, struct metal_range, uint8_t), encoder, "fillBuffer:range:value:", buffer, (struct metal_range){0, bytes},
                   byte);
        METAL_SEND(void, (), encoder, "endEncoding");
        METAL_SEND(void, (), command, "commit");
        METAL_SEND(void, (), command, "waitUntilCompleted");
        done = METAL_SEND(unsigned long, (), command, "status") == METAL_COMPLETED;
    }
    metal_release(queue);
    return done ? 0 : base_fail(-EIO, "fillBuffer: the GPU has not filled the memory");
}

int probe_metal_reach(const struct piece *m, const char **call)
{
    void *buffer = m->made_by ? m->object : NULL;
    int rc = 0;
    *call = m->made_by ? m->made_by : "newBufferWithBytesNoCopy";
    if (!buffer && ((uintptr_t)m->at % BASE_PAGE || m->bytes % BASE_PAGE))
        return base_fail(-EINVAL, "%s takes only whole pages", *call);
    void *pool = pool_begin();
    if (!buffer)
        buffer = metal_buffer_over(m->gpu->metal, m->at, m->bytes);
    if (!buffer)
        rc = base_fail(-EIO, "%s: Metal has created no buffer over this memory", *call);
    else if (!m->read_only)
        rc = fill(m->gpu->metal, buffer, m->bytes, 0xa5);
    if (!rc && !m->read_only)
        rc = probe_gpu_differs(m->at, m->bytes, 0xa5, "that the processor reads");
    if (!m->made_by)
        metal_release(buffer);
    return pool_end(pool, rc);
}
