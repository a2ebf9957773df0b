/* SPDX-License-Identifier: MIT
 *
 * Metal, called through the C interface of the Objective-C runtime, which is loaded at run time. So this compiles on every system without
 * Apple's headers. It was never run.
 */
#ifndef WEFT_GPU_METAL_DRIVER_H
#define WEFT_GPU_METAL_DRIVER_H

#include "base/base.h"

struct metal_driver {
    char why[160]; /* a sentence without a full stop that tells why Metal cannot be used; "": it can be */
    void *(*objc_getClass)(const char *);
    void *(*sel_registerName)(const char *);
    void (*objc_msgSend)(void); /* cast to the type of the method that is called: METAL_SEND() */
    void *(*objc_autoreleasePoolPush)(void);
    void (*objc_autoreleasePoolPop)(void *);
    void *(*MTLCopyAllDevices)(void);
};
extern struct metal_driver gpu_metal_driver; /* written only by the first gpu_metal_usable() */

/* Loads Metal, if it is not loaded yet. Returns false if it cannot be used; `gpu_metal_driver.why` then tells why. */
bool gpu_metal_usable(void);

/* Sends `object` a message. `types`: the types of the message's arguments, which follow `name`. */
#define METAL_SEND(result, types, object, name, ...)                                         \
    (((result(*)(void *, void *METAL_TYPES types))(uintptr_t)gpu_metal_driver.objc_msgSend)( \
        (object), gpu_metal_driver.sel_registerName(name) __VA_OPT__(, ) __VA_ARGS__))
#define METAL_TYPES(...) __VA_OPT__(, ) __VA_ARGS__

/* Metal's MTLSize: three NSUInteger. */
struct metal_size {
    unsigned long width, height, depth;
};
enum { METAL_SHARED = 0, METAL_READ_WRITE = 3, METAL_COMPLETED = 4, METAL_FAMILY_3 = 5001 };

void metal_release(void *object);
void *metal_text(const char *text);    /* an NSString in the current autorelease pool; NULL: no memory */
const char *metal_words(void *string); /* its characters, valid as long as the string; "" if `string` is NULL */
void *metal_device(uint32_t index);    /* an MTLDevice, which the caller releases; returns NULL if there are fewer devices */
bool metal_device_usable(void *d, char why[160]);

/* A Metal buffer over whole pages of this process's memory, which the caller releases. Returns NULL if Metal has refused. */
void *metal_buffer_over(void *d, void *memory, size_t bytes);
uint64_t metal_buffer_there(void *buffer); /* the buffer's address for kernels */

#endif
