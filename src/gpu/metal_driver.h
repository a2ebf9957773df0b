/* SPDX-License-Identifier: MIT
 *
 * Metal, through the C interface of the Objective-C runtime, loaded at run time: none of Apple's headers is needed to build. It compiles
 * on every system and is found on macOS. Compiled, never run.
 */
#ifndef WEFT_GPU_METAL_DRIVER_H
#define WEFT_GPU_METAL_DRIVER_H

#include "base/base.h"

struct metal_driver {
    char why[160]; /* it cannot be used, as a sentence without an end; "": it can */
    void *(*objc_getClass)(const char *);
    void *(*sel_registerName)(const char *);
    void (*objc_msgSend)(void); /* is called as what the method is: METAL_SEND() */
    void *(*objc_autoreleasePoolPush)(void);
    void (*objc_autoreleasePoolPop)(void *);
    void *(*MTLCopyAllDevices)(void);
};
extern struct metal_driver gpu_metal_driver; /* written by gpu_metal_usable() alone, the first time */

/* Loads it, once. False: `gpu_metal_driver.why`. */
bool gpu_metal_usable(void);

/* Send `object` a message: its result, the types of its arguments after object and selector, its name, the arguments. */
#define METAL_SEND(result, types, object, name, ...)                                         \
    (((result(*)(void *, void *METAL_TYPES types))(uintptr_t)gpu_metal_driver.objc_msgSend)( \
        (object), gpu_metal_driver.sel_registerName(name) __VA_OPT__(, ) __VA_ARGS__))
#define METAL_TYPES(...) __VA_OPT__(, ) __VA_ARGS__

/* MTLSize, three NSUInteger. */
struct metal_size {
    unsigned long width, height, depth;
};
enum { METAL_SHARED = 0, METAL_READ_WRITE = 3, METAL_COMPLETED = 4, METAL_FAMILY_3 = 5001 };

void metal_release(void *object);
void *metal_text(const char *text);    /* an NSString, of the pool of now; NULL: no memory */
const char *metal_words(void *string); /* its bytes, as long as it is there; "" for none */
void *metal_device(uint32_t index);    /* an MTLDevice, the caller's; NULL: there are not so many */
bool metal_device_usable(void *d, char why[160]);

/* A buffer over memory of this process, whole pages of it; NULL: refused. The caller's. */
void *metal_buffer_over(void *d, void *memory, size_t bytes);
uint64_t metal_buffer_there(void *buffer); /* where kernels find it */

#endif
