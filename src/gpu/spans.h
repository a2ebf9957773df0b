/* SPDX-License-Identifier: MIT
 *
 * Runs kernels of src/kernel/ on a GPU, with the same results as on the processor. The caller opens a GPU for one kernel (struct
 * gpu_spans), and a pass in each of its threads. A pass sends spans of bytes through three buffers of the GPU, so that copies and the
 * kernel run at the same time.
 */
#ifndef WEFT_GPU_SPANS_H
#define WEFT_GPU_SPANS_H

#include "gpu/gpu.h"
#include "kernel/kernel.h"

/* Whether there is a GPU version of this kernel. */
bool gpu_spans_has(const weft_kernel *kernel);

/* Counts the GPUs of this machine that can run kernels, except `host`, and returns the name of GPU number `which` modulo that count.
 * Returns -ENODEV if there is none, or if weft was built without code for GPUs. This loads CUDA's driver, which then does not work in
 * forked children.
 */
int gpu_spans_look(uint32_t which, char name[16], uint32_t *count);

struct gpu_spans;
/* Opens the GPU of that name for `kernel`. `arg` is the kernel's argument; the caller keeps it until the GPU is closed. */
int gpu_spans_open(const char *name, const weft_kernel *kernel, const char *arg, struct gpu_spans **out);
/* The caller must close all passes first. NULL is allowed. */
void gpu_spans_close(struct gpu_spans *s);
/* Allows the GPU to copy directly from this memory, which must be aligned to pages, and stay until the GPU is closed. Call it before any
 * pass is opened, at most four times. */
int gpu_spans_attach(struct gpu_spans *s, void *memory, size_t bytes);
/* Whether the GPU has failed, or has not answered for too long. Then passes return errors at once. */
bool gpu_spans_failed(const struct gpu_spans *s);

/* The bytes of attached memory that a pass needs, aligned to 64. */
size_t gpu_pass_bytes(void);

struct gpu_pass;
/* One thread at a time uses a pass. The caller owns `memory`, and keeps it until the pass is closed. */
int gpu_pass_open(struct gpu_spans *s, void *memory, struct gpu_pass **out);
void gpu_pass_close(struct gpu_pass *p); /* NULL is allowed */

struct gpu_input {
    const uint8_t *bytes; /* NULL: only read() gives the bytes, which is enough for kernels other than grep */
    /* Writes the bytes of the span from `at` on to `to`. Called for each part of the span, from start to end; an error ends the run. NULL:
     * all bytes are at `bytes` already. */
    int (*read)(void *arg, uint64_t at, void *to, size_t len);
    void (*waiting)(void *arg); /* called now and then while the GPU works; may be NULL */
    void *arg;
    uint64_t len, offset; /* like the members of weft_span */
};
/* Computes the same as kernel->run(). After an error, a part of the output may have been written, and gpu_spans_failed() tells whether the
 * GPU is the cause. */
int gpu_pass_run(struct gpu_pass *p, const struct gpu_input *in, weft_out *out);

#endif
