/* SPDX-License-Identifier: MIT
 *
 * Loads Metal at run time, and sends the Objective-C messages that several callers need.
 */
#include "gpu/metal_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct metal_driver gpu_metal_driver;

#if defined(__APPLE__)
static const struct {
    const char *library, *name;
    void *at;
} functions[] = {
    {"/usr/lib/libobjc.A.dylib", "objc_getClass", &gpu_metal_driver.objc_getClass},
    {"/usr/lib/libobjc.A.dylib", "sel_registerName", &gpu_metal_driver.sel_registerName},
    {"/usr/lib/libobjc.A.dylib", "objc_msgSend", &gpu_metal_driver.objc_msgSend},
    {"/usr/lib/libobjc.A.dylib", "objc_autoreleasePoolPush", &gpu_metal_driver.objc_autoreleasePoolPush},
    {"/usr/lib/libobjc.A.dylib", "objc_autoreleasePoolPop", &gpu_metal_driver.objc_autoreleasePoolPop},
    {"/System/Library/Frameworks/Foundation.framework/Foundation", NULL, NULL}, /* NSString */
    {"/System/Library/Frameworks/Metal.framework/Metal", "MTLCopyAllDevices", &gpu_metal_driver.MTLCopyAllDevices},
};

static void metal_load(void)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *library = dlopen(functions[i].library, RTLD_NOW | RTLD_LOCAL);
        void *at = library && functions[i].name ? dlsym(library, functions[i].name) : NULL;
        if (!library || (functions[i].name && !at)) {
            snprintf(gpu_metal_driver.why, sizeof gpu_metal_driver.why, "this system has no usable Metal: %.100s has no %.30s",
                     functions[i].library, functions[i].name ? functions[i].name : "library");
            return;
        }
        if (functions[i].name)
            memcpy(functions[i].at, &at, sizeof at);
    }
}
#else
static void metal_load(void)
{
    snprintf(gpu_metal_driver.why, sizeof gpu_metal_driver.why, "Metal is on macOS only");
}
#endif

bool gpu_metal_usable(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, metal_load);
    return !gpu_metal_driver.why[0];
}

void metal_release(void *object)
{
    if (object)
        METAL_SEND(void, (), object, "release");
}

void *metal_text(const char *text)
{
    return METAL_SEND(void *, (const char *), gpu_metal_driver.objc_getClass("NSString"), "stringWithUTF8String:", text);
}

const char *metal_words(void *string)
{
    const char *words = string ? METAL_SEND(const char *, (), string, "UTF8String") : NULL;
    return words ? words : "";
}

void *metal_device(uint32_t index)
{
    void *all = gpu_metal_driver.MTLCopyAllDevices();
    void *d = NULL;
    if (all && index < METAL_SEND(unsigned long, (), all, "count")) {
        d = METAL_SEND(void *, (unsigned long), all, "objectAtIndex:", index);
        METAL_SEND(void *, (), d, "retain");
    }
    metal_release(all);
    return d;
}

bool metal_device_usable(void *d, char why[160])
{
    why[0] = '\0';
    if (!METAL_SEND(bool, (), d, "hasUnifiedMemory"))
        snprintf(why, 160, "it does not share the processor's memory: weft can use only Apple's own GPUs");
    else if (!METAL_SEND(bool, (long), d, "supportsFamily:", METAL_FAMILY_3))
        snprintf(why, 160, "weft needs Metal 3 and macOS 13 or newer, for addresses of buffers in kernels");
    return !why[0];
}

void *metal_buffer_over(void *d, void *memory, size_t bytes)
{
    return METAL_SEND(void *, (void *, unsigned long, unsigned long, void *), d,
                      "newBufferWithBytesNoCopy:length:options:deallocator:", memory, bytes, METAL_SHARED, NULL);
}

uint64_t metal_buffer_there(void *buffer)
{
    return METAL_SEND(uint64_t, (), buffer, "gpuAddress");
}
