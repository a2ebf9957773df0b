/* SPDX-License-Identifier: MIT
 *
 * Runs kernels of src/kernel/ on a GPU. The result for a span of bytes is identical to that on the processor. A user opens a GPU for one
 * kernel (struct gpu_spans), and a pass in each of its threads. A pass streams spans through three buffers of the GPU: one chunk is copied
 * to the GPU while the kernel works on the chunk before it, and the result of the chunk before that one comes back. The passes of several
 * threads share the GPU.
 */
#ifndef WEFT_GPU_SPANS_H
#define WEFT_GPU_SPANS_H

#include "gpu/gpu.h"
#include "kernel/kernel.h"

/* Whether there is a GPU version of this kernel. */
bool gpu_spans_has(const weft_kernel *kernel);

/* Counts the GPUs of this machine that can run kernels, without `host`, and gives the name of GPU `which` modulo that count. -ENODEV, with
   a sentence that ends in the remedy: there is none, or weft was built without code for it. Opens CUDA's driver: a process that will fork
   children that need the driver must not call this. */
int gpu_spans_look(uint32_t which, char name[16], uint32_t *count);

struct gpu_spans;
/* Opens the GPU of that name for `kernel`. `arg` is the kernel's argument; the caller keeps it until the GPU is closed. */
int gpu_spans_open(const char *name, const weft_kernel *kernel, const char *arg, struct gpu_spans **out);
/* Close all passes first. NULL is allowed. */
void gpu_spans_close(struct gpu_spans *s);
/* Lets the GPU copy directly from this memory, which is aligned to pages and must stay until the GPU is closed. At most four times, before
   any pass. */
int gpu_spans_attach(struct gpu_spans *s, void *memory, size_t bytes);
/* The GPU has failed, or has not answered for too long: nothing is run there any more, and passes return errors at once. */
bool gpu_spans_failed(const struct gpu_spans *s);

/* The bytes of attached memory that a pass needs, aligned to 64. */
size_t gpu_pass_bytes(void);

struct gpu_pass;
/* One thread at a time uses a pass. The caller owns `memory`, and keeps it until the pass is closed. */
int gpu_pass_open(struct gpu_spans *s, void *memory, struct gpu_pass **out);
void gpu_pass_close(struct gpu_pass *p); /* NULL is allowed */

struct gpu_input {
    const uint8_t *bytes; /* NULL: only read() gives the bytes, which is enough for kernels other than grep */
    /* NULL: all bytes are at `bytes` already. Otherwise it is called for each part of the span, from start to end. It writes the bytes from
       `at` on to `to`, which is `bytes` + `at`, or memory of the pass. An error ends the run. */
    int (*read)(void *arg, uint64_t at, void *to, size_t len);
    void (*waiting)(void *arg); /* called now and then while the GPU works; may be NULL */
    void *arg;
    uint64_t len, offset; /* like the members of weft_span */
};
/* Does the work of kernel->run(). If it fails, gpu_spans_failed() tells whether the GPU is the reason; part of the output may have been
   written. */
int gpu_pass_run(struct gpu_pass *p, const struct gpu_input *in, weft_out *out);

#endif
