/* SPDX-License-Identifier: MIT
 *
 * An open GPU of the back end `cuda`, and a call in its context.
 */
#ifndef WEFT_GPU_CUDA_DEVICE_H
#define WEFT_GPU_CUDA_DEVICE_H

#include "gpu/cuda_driver.h"

static const struct cuda_driver *const cuda = &gpu_cuda_driver;

static inline int cuda_failed(int code, const char *what)
{
    return code ? base_fail(
                      -EIO,
                      "%s failed: %s (CUDA error %d); `weft gpus` shows what is wrong with a GPU, and dmesg the messages of its driver",
                      what, gpu_cuda_error_name(code), code)
                : 0;
}

#define CUDA_STREAMS 4u
#define CUDA_EVENTS  32u
struct cuda_device {
    int device;
    void *context;
    void *stream[CUDA_STREAMS]; /* streams for copies; successive copies use different streams, so that copies in both directions can run at
                                   the same time */
    void *word;                 /* the stream for atomics */
    void *feed;                 /* the stream of the copies of all lanes, while a module is loaded (cuda_lanes.c) */
    _Atomic uint32_t turn;
    base_spin event_lock;
    void *event[CUDA_EVENTS]; /* events that are not in use; kept, because making an event takes as long as a small copy */
    uint32_t events;
    int rdma_ordered; /* which writes of RDMA devices the GPU sees in order (CUDA_ORDERED_...) */
};

/* Makes a call in the device's context, whatever the thread's context is. */
#define WITHIN(d, call)                                      \
    ({                                                       \
        void *before_;                                       \
        int code_ = cuda->cuCtxPushCurrent_v2((d)->context); \
        if (code_ == 0) {                                    \
            code_ = (call);                                  \
            (void)cuda->cuCtxPopCurrent_v2(&before_);        \
        }                                                    \
        code_;                                               \
    })

#endif
