/* SPDX-License-Identifier: MIT
 *
 * Kernels of src/kernel/ on a GPU: the same result of a span of bytes, to the byte. Whoever has spans opens a GPU for one kernel
 * (struct gpu_spans), and in each of its threads a pass, which streams spans through three buffers of the GPU: while one chunk is copied
 * there, the kernel works at the one before, and the result of the one before that comes back. Passes of several threads share the GPU.
 */
#ifndef WEFT_GPU_SPANS_H
#define WEFT_GPU_SPANS_H

#include "gpu/gpu.h"
#include "kernel/kernel.h"

/* Does this kernel have a device form? */
bool gpu_spans_has(const weft_kernel *kernel);

/* The GPUs of this machine that can run kernels, without `host`: how many, and the name of number `which`, counted around.
 * -ENODEV, with a sentence that ends in the remedy: there is none, or this weft has no code for it. Opens the driver: a process that forks
 * others, which need it too, must not call it. */
int gpu_spans_look(uint32_t which, char name[16], uint32_t *count);

struct gpu_spans;
/* Open a GPU (of that name) for `kernel`; `arg` is its argument, and stays the caller's. */
int gpu_spans_open(const char *name, const weft_kernel *kernel, const char *arg, struct gpu_spans **out);
/* Passes are closed before. NULL is allowed. */
void gpu_spans_close(struct gpu_spans *s);
/* Give the GPU memory, aligned to pages, that stays until it is closed: from there it copies bytes itself. At most four times, before any
 * pass. */
int gpu_spans_attach(struct gpu_spans *s, void *memory, size_t bytes);
/* The GPU does not work any more, or has not answered for too long: nothing is run there any more, and passes return errors at once. */
bool gpu_spans_failed(const struct gpu_spans *s);

/* What a pass needs of memory that is attached, aligned to 64. */
size_t gpu_pass_bytes(void);

struct gpu_pass;
/* By one thread at a time. `memory` stays the caller's, who keeps it until the pass is closed. */
int gpu_pass_open(struct gpu_spans *s, void *memory, struct gpu_pass **out);
void gpu_pass_close(struct gpu_pass *p); /* NULL is allowed */

struct gpu_input {
    const uint8_t *bytes; /* NULL: only read() has them, which is enough for kernels other than grep */
    /* NULL: all bytes are there. Otherwise it is called for each part of the span, from its start to its end, to write the bytes from `at`
     * on to `to`, which is `bytes` + `at`, or memory of the pass. An error ends the run. */
    int (*read)(void *arg, uint64_t at, void *to, size_t len);
    void (*waiting)(void *arg); /* called now and then while the GPU works; may be NULL */
    void *arg;
    uint64_t len, offset; /* as in weft_span */
};
/* As kernel->run(). If it fails, gpu_spans_failed() tells whether the GPU is the reason; part of the output may have been written. */
int gpu_pass_run(struct gpu_pass *p, const struct gpu_input *in, weft_out *out);

#endif
