/* SPDX-License-Identifier: MIT
 *
 * Runs kernels over spans of bytes on a GPU: see spans.h. The kernels are in span_kernels.h.
 *
 * The GPU's copy engine reads a chunk from the caller's memory, if that memory is attached. Otherwise the chunk is first copied to memory
 * of the pass. Kernels write their small results directly to memory of the pass.
 */
#include "gpu/spans.h"
#include "gpu/span_kernels.h"

#include <stdio.h>
#include <stdlib.h>

#define BUFFERS      3u
#define REGIONS      4u
#define GPUS_MAX     64u
#define RESULT_BYTES (128u << 10)
/* a buffer in the memory of the pass: a chunk, and the bytes that are read behind it */
#define LINE_BYTES (SPAN_CHUNK_BYTES + SPAN_SLACK_BYTES)
#define GPU_WAIT   (30 * WEFT_SECOND) /* the longest wait for a chunk: long, because other programs may use the GPU, too */
#define LOOKS      16u                /* polls of the GPU before the thread begins to sleep between polls */
#define NAP        (20 * WEFT_US)

#define PLAY(name)                                             \
    static void play_##name(const void *chunk, uint32_t block) \
    {                                                          \
        name(*(const struct span_chunk *)chunk, block);        \
    }
PLAY(span_wc)
PLAY(span_histogram)
PLAY(span_hash)
PLAY(span_grep)

static const struct gpu_code code = {
    .count = SPAN_FUNCTIONS,
    .name = {[SPAN_WC] = "span_wc", [SPAN_HISTOGRAM] = "span_histogram", [SPAN_HASH] = "span_hash", [SPAN_GREP] = "span_grep"},
    .play = {[SPAN_WC] = play_span_wc, [SPAN_HISTOGRAM] = play_span_histogram, [SPAN_HASH] = play_span_hash, [SPAN_GREP] = play_span_grep},
    .image = &gpu_span_image,
};

struct region {
    uint8_t *memory;
    uint64_t bytes, there;
};

struct gpu_spans {
    const struct gpu_backend *backend;
    void *device, *module;
    const struct form *form;
    const weft_kernel *kernel;
    const char *arg;
    struct region region[REGIONS];
    uint32_t regions;
    _Atomic bool failed;
};

struct buffer {
    void *lane;
    uint8_t *there;        /* the chunk, in the device's memory */
    uint8_t *line;         /* memory of the pass, for a chunk that is not in attached memory */
    uint8_t *result;       /* the result, in memory of the pass */
    uint64_t result_there; /* the kernels' address of `result` */
    uint64_t at;           /* where the chunk begins in the span */
    uint32_t len;
};

struct gpu_pass {
    struct gpu_spans *s;
    uint8_t *memory; /* device memory for all buffers and the state */
    uint64_t *state; /* the kernels' state, in device memory */
    uint64_t got;    /* bytes of the span that have been read */
    uint8_t *grains; /* grep: what span_grep() has found, for the whole span */
    size_t grains_room;
    struct buffer buffer[BUFFERS];
    union {
        struct kernel_wc_piece wc;
        uint64_t histogram[256];
        uint64_t hash;
    } sum; /* the sum over the chunks that are done */
};

/* What differs between kernels. */
struct form {
    const weft_kernel *kernel;
    uint32_t block_bytes;                                         /* bytes for one block; 0: one block processes the whole chunk */
    uint32_t part_bytes;                                          /* bytes of a block's result */
    bool ordered;                                                 /* the kernel of a chunk runs after the kernel of the chunk before */
    bool whole;                                                   /* end() needs the span's bytes */
    int (*begin)(struct gpu_pass *p, const struct gpu_input *in); /* may be NULL */
    int (*add)(struct gpu_pass *p, const struct gpu_input *in, const struct buffer *b, uint32_t blocks);
    int (*end)(struct gpu_pass *p, const struct gpu_input *in, weft_out *out);
};

static weft_span span_of(const struct gpu_input *in)
{
    return (weft_span){in->bytes, (size_t)in->len, in->offset};
}

/* --- combining the parts of a chunk's result --- */

static int add_wc(struct gpu_pass *p, const struct gpu_input *in, const struct buffer *b, uint32_t blocks)
{
    (void)in;
    const struct kernel_wc_piece *part = (const void *)b->result;
    for (uint32_t i = 0; i < blocks; i++)
        p->sum.wc = span_wc_join(p->sum.wc, part[i]);
    return 0;
}

static int end_wc(struct gpu_pass *p, const struct gpu_input *in, weft_out *out)
{
    p->sum.wc.start = in->offset == 0;
    return weft_out_write(out, &p->sum.wc, sizeof p->sum.wc);
}

static int add_histogram(struct gpu_pass *p, const struct gpu_input *in, const struct buffer *b, uint32_t blocks)
{
    (void)in;
    const uint32_t *part = (const void *)b->result;
    uint32_t sum[256] = {0}; /* the counts of one chunk: 32 bits are enough */
    for (uint32_t i = 0; i < blocks; i++, part += 256)
        for (uint32_t k = 0; k < 256; k++)
            sum[k] += part[k];
    for (uint32_t k = 0; k < 256; k++)
        p->sum.histogram[k] += sum[k];
    return 0;
}

static int end_histogram(struct gpu_pass *p, const struct gpu_input *in, weft_out *out)
{
    (void)in;
    return weft_out_write(out, p->sum.histogram, sizeof p->sum.histogram);
}

static int add_hash(struct gpu_pass *p, const struct gpu_input *in, const struct buffer *b, uint32_t blocks)
{
    (void)in, (void)blocks;
    memcpy(&p->sum.hash, b->result, sizeof p->sum.hash); /* valid only after the last chunk */
    return 0;
}

static int end_hash(struct gpu_pass *p, const struct gpu_input *in, weft_out *out)
{
    weft_span span = span_of(in);
    return kernel_hash_give(&span, p->sum.hash, out);
}

/* Records where the text was found. Lines are printed when all bytes have been read. */
static int add_grep(struct gpu_pass *p, const struct gpu_input *in, const struct buffer *b, uint32_t blocks)
{
    (void)in, (void)blocks;
    memcpy(p->grains + b->at / SPAN_GRAIN, b->result, (b->len + SPAN_GRAIN - 1) / SPAN_GRAIN);
    return 0;
}

static int end_grep(struct gpu_pass *p, const struct gpu_input *in, weft_out *out)
{
    weft_span span = span_of(in);
    size_t next = 0;
    int rc = 0;
    for (const uint8_t *end = p->grains + (in->len + SPAN_GRAIN - 1) / SPAN_GRAIN, *g = p->grains; !rc; g++) {
        g = memchr(g, 1, (size_t)(end - g));
        if (!g)
            break;
        uint64_t from = (uint64_t)(g - p->grains) * SPAN_GRAIN, to = from + SPAN_GRAIN < in->len ? from + SPAN_GRAIN : in->len;
        rc = kernel_grep_lines(&span, p->s->arg, from, to, &next, out);
    }
    return rc;
}

static int begin_grep(struct gpu_pass *p, const struct gpu_input *in)
{
    size_t room = in->len / SPAN_GRAIN + 1;
    uint8_t *more = room > p->grains_room ? realloc(p->grains, room) : p->grains;
    if (!more)
        return base_fail(-ENOMEM,
                         "no memory to record where the kernel grep finds the text that it looks for, in %llu bytes" BASE_MEMORY_HINT,
                         (unsigned long long)in->len);
    p->grains = more;
    p->grains_room = room > p->grains_room ? room : p->grains_room;
    return 0;
}

static const struct form forms[SPAN_FUNCTIONS] = {
    [SPAN_WC] = {&kernel_wc, SPAN_BLOCK_BYTES, sizeof(struct kernel_wc_piece), .add = add_wc, .end = end_wc},
    [SPAN_HISTOGRAM] = {&kernel_histogram, SPAN_HISTOGRAM_BYTES, 256 * sizeof(uint32_t), .add = add_histogram, .end = end_histogram},
    [SPAN_HASH] = {&kernel_xxh64, 0, sizeof(uint64_t), .ordered = true, .add = add_hash, .end = end_hash},
    [SPAN_GREP] = {&kernel_grep, SPAN_BLOCK_BYTES, SPAN_THREADS, .whole = true, .begin = begin_grep, .add = add_grep, .end = end_grep},
};
_Static_assert(SPAN_CHUNK_BYTES / SPAN_BLOCK_BYTES * sizeof(struct kernel_wc_piece) <= RESULT_BYTES, "wc's parts");
_Static_assert(SPAN_CHUNK_BYTES / SPAN_HISTOGRAM_BYTES * 256 * sizeof(uint32_t) <= RESULT_BYTES, "histogram's parts");
_Static_assert(SPAN_CHUNK_BYTES / SPAN_GRAIN + 8 <= RESULT_BYTES, "grep's grains");

static const struct form *form_of(const weft_kernel *kernel)
{
    for (uint32_t i = 0; i < SPAN_FUNCTIONS; i++)
        if (forms[i].kernel == kernel)
            return &forms[i];
    return NULL;
}

bool gpu_spans_has(const weft_kernel *kernel)
{
    return form_of(kernel) != NULL;
}

/* --- finding a GPU --- */

int gpu_spans_look(uint32_t which, char name[16], uint32_t *count)
{
    weft_gpu_info info;
    const struct gpu_backend *backend;
    char why[160] = "", names[GPUS_MAX][16];
    uint32_t index;
    *count = 0;
    if (!*code.image)
        return base_fail(-ENODEV, "this weft was built without GPU code: build it where CUDA's compiler, nvcc, is found, or clang");
    for (uint32_t i = 0; *count < GPUS_MAX && weft_gpu_look(i, &info, sizeof info) == 0; i++) {
        if (!info.usable)
            snprintf(why, sizeof why, "%s", info.why);
        else if (gpu_choose(info.name, &backend, &index) == 0 && backend != &gpu_host && backend->load)
            memcpy(names[(*count)++], info.name, sizeof names[0]);
    }
    if (!*count)
        return base_fail(-ENODEV, "there is no GPU that can be used: %s", why[0] ? why : gpu_cuda.why());
    memcpy(name, names[which % *count], sizeof names[0]);
    return 0;
}

/* --- opening --- */

void gpu_spans_close(struct gpu_spans *s)
{
    if (!s)
        return;
    /* a GPU that has failed or hangs cannot free its memory */
    bool lives = s->module && !gpu_spans_failed(s);
    for (uint32_t i = 0; i < s->regions && lives; i++)
        s->backend->detach(s->device, s->region[i].memory);
    if (lives) {
        s->backend->unload(s->device, s->module);
        s->backend->close(s->device);
    }
    free(s);
}

int gpu_spans_open(const char *name, const weft_kernel *kernel, const char *arg, struct gpu_spans **out)
{
    uint32_t index;
    struct gpu_spans *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return base_fail(-ENOMEM, "no memory to open a GPU for kernels of weft map" BASE_MEMORY_HINT);
    s->form = form_of(kernel);
    s->kernel = kernel;
    s->arg = arg;
    int rc = s->form ? 0 : base_fail(-ENOTSUP, "kernel %s cannot run on GPUs: leave out --gpu", kernel->name);
    if (!rc && s->form->whole)
        rc = kernel_grep_check(arg);
    if (!rc)
        rc = gpu_choose(name, &s->backend, &index);
    if (!rc && !s->backend->load)
        rc = base_fail(-ENOTSUP, "weft has no kernels for the GPU %s: use an NVIDIA GPU, or the GPU `host`", name);
    if (!rc && (rc = s->backend->open(index, &s->device)) == 0 && (rc = s->backend->load(s->device, &code, &s->module)))
        s->backend->close(s->device);
    if (rc)
        free(s);
    else
        *out = s;
    return rc;
}

int gpu_spans_attach(struct gpu_spans *s, void *memory, size_t bytes)
{
    if (s->regions == REGIONS)
        return base_fail(-ENOSPC, "cannot give the GPU access to more memory: it has access to %u ranges already, which is the most",
                         REGIONS);
    struct region *r = &s->region[s->regions];
    int rc = s->backend->attach(s->device, memory, bytes, &r->there);
    if (rc)
        return rc;
    r->memory = memory;
    r->bytes = bytes;
    s->regions++;
    return 0;
}

bool gpu_spans_failed(const struct gpu_spans *s)
{
    return atomic_load_explicit(&s->failed, memory_order_relaxed);
}

/* The GPU's address of attached memory; 0: it is not attached. */
static uint64_t attached(const struct gpu_spans *s, const uint8_t *memory, uint64_t bytes)
{
    for (uint32_t i = 0; i < s->regions; i++) {
        const struct region *r = &s->region[i];
        if (memory >= r->memory && bytes <= r->bytes && (uint64_t)(memory - r->memory) <= r->bytes - bytes)
            return r->there + (uint64_t)(memory - r->memory);
    }
    return 0;
}

/* --- passes --- */

size_t gpu_pass_bytes(void)
{
    return (size_t)BUFFERS * (LINE_BYTES + RESULT_BYTES);
}

void gpu_pass_close(struct gpu_pass *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < BUFFERS && !gpu_spans_failed(p->s); i++)
        if (p->buffer[i].there) /* set only if its lane is open */
            p->s->backend->lane_close(p->s->device, p->buffer[i].lane);
    if (p->memory && !gpu_spans_failed(p->s))
        p->s->backend->free(p->s->device, p->memory);
    free(p->grains);
    free(p);
}

int gpu_pass_open(struct gpu_spans *s, void *memory, struct gpu_pass **out)
{
    struct gpu_pass *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return base_fail(-ENOMEM, "no memory on this host for the list of a GPU's buffers" BASE_MEMORY_HINT);
    p->s = s;
    uint64_t there = attached(s, memory, gpu_pass_bytes());
    int rc = there ? 0 : base_fail(-EINVAL, "memory for a kernel was not given to the GPU" BASE_BUG_HINT);
    void *device_memory = NULL;
    if (!rc)
        rc = s->backend->alloc(s->device, BUFFERS * (size_t)LINE_BYTES + 4 * sizeof *p->state, &device_memory);
    if (!rc) {
        p->memory = device_memory;
        p->state = (uint64_t *)(void *)(p->memory + BUFFERS * (size_t)LINE_BYTES);
    }
    for (uint32_t i = 0; i < BUFFERS && !rc; i++) {
        struct buffer *b = &p->buffer[i];
        size_t line = i * (size_t)LINE_BYTES, result = BUFFERS * (size_t)LINE_BYTES + i * (size_t)RESULT_BYTES;
        rc = s->backend->lane_open(s->device, &b->lane);
        b->there = rc ? NULL : p->memory + line;
        b->line = (uint8_t *)memory + line;
        b->result = (uint8_t *)memory + result;
        b->result_there = there + result;
    }
    if (rc)
        gpu_pass_close(p);
    else
        *out = p;
    return rc;
}

static int pass_failed(struct gpu_pass *p, int rc)
{
    atomic_store_explicit(&p->s->failed, true, memory_order_relaxed);
    return rc;
}

static uint64_t chunk_end(const struct gpu_input *in, uint64_t at)
{
    return in->len - at < SPAN_CHUNK_BYTES ? in->len : at + SPAN_CHUNK_BYTES;
}

/* Returns an address from which the GPU can copy the chunk's bytes; NULL: an error. */
static const uint8_t *chunk_bytes(struct gpu_pass *p, const struct gpu_input *in, struct buffer *b, uint32_t len, int *rc)
{
    const uint8_t *bytes = in->bytes ? in->bytes + b->at : NULL;
    uint64_t end = b->at + len;
    *rc = 0;
    if (in->read && end > p->got) {
        /* read() writes to the caller's memory (in->bytes) or, if that is NULL, to memory of the pass */
        uint8_t *to = bytes ? (uint8_t *)(uintptr_t)in->bytes + p->got : b->line;
        *rc = in->read(in->arg, p->got, to, (size_t)(end - p->got));
        p->got = end;
    }
    if (*rc || !bytes || attached(p->s, bytes, len))
        return bytes ? bytes : b->line;
    memcpy(b->line, bytes, len);
    return b->line;
}

static uint32_t blocks_of(const struct form *f, uint32_t len)
{
    return f->block_bytes ? (len + f->block_bytes - 1) / f->block_bytes : 1;
}

static int chunk_start(struct gpu_pass *p, const struct gpu_input *in, struct buffer *b, const struct buffer *before)
{
    struct gpu_spans *s = p->s;
    const struct form *f = s->form;
    struct span_chunk c = {.bytes = b->there,
                           .len = b->len,
                           .result = (uint8_t *)(uintptr_t)b->result_there,
                           .state = p->state,
                           .total = in->len,
                           .first = b->at == 0,
                           .last = b->at + b->len == in->len};
    if (f->whole) {
        size_t n = strlen(s->arg);
        uint64_t left = in->len - b->at - b->len;
        c.text_len = n < SPAN_TEXT_MAX ? (uint32_t)n : SPAN_TEXT_MAX;
        c.behind = left < c.text_len - 1 ? (uint32_t)left : c.text_len - 1;
        memcpy(c.text, s->arg, c.text_len);
    }
    int rc;
    const uint8_t *from = chunk_bytes(p, in, b, c.len + c.behind, &rc);
    if (rc)
        return rc;
    rc = s->backend->lane_copy(s->device, b->lane, b->there, from, c.len + c.behind);
    if (!rc)
        rc = s->backend->launch(s->device, b->lane, f->ordered && before ? before->lane : NULL, s->module, (uint32_t)(f - forms),
                                blocks_of(f, b->len), SPAN_THREADS, &c);
    return rc ? pass_failed(p, rc) : 0;
}

static int chunk_wait(struct gpu_pass *p, const struct gpu_input *in, const struct buffer *b)
{
    struct gpu_spans *s = p->s;
    int64_t deadline = 0;
    for (uint32_t looks = 0;; looks++) {
        int rc = s->backend->lane_done(s->device, b->lane);
        if (rc == 0)
            return 0;
        if (rc != -EINPROGRESS)
            return pass_failed(p, rc);
        if (gpu_spans_failed(s)) /* another pass has seen the failure */
            return base_fail(-EIO, "the GPU has failed in another thread, and is not used any more; start the program again to use it");
        if (looks < LOOKS)
            continue;
        if (!deadline)
            deadline = base_deadline(GPU_WAIT);
        else if (base_now_ns() > deadline)
            return pass_failed(p, base_fail(-ETIMEDOUT,
                                            "the GPU has not finished a chunk of a few megabytes within %lld s: it hangs, or other "
                                            "programs use it; end those programs, or run without --gpu",
                                            (long long)(GPU_WAIT / WEFT_SECOND)));
        if (in->waiting)
            in->waiting(in->arg);
        base_sleep_ns(NAP);
    }
}

int gpu_pass_run(struct gpu_pass *p, const struct gpu_input *in, weft_out *out)
{
    const struct form *f = p->s->form;
    weft_span span = span_of(in);
    if (gpu_spans_failed(p->s))
        return base_fail(-EIO, "the GPU has failed before, and is not used any more; start the program again to use it");
    if (in->len == 0)
        return f->kernel->run(&span, p->s->arg, out);
    if (!in->bytes && (f->whole || !in->read))
        return base_fail(-EINVAL, "kernel %s needs all bytes of a piece in memory, but they are not there" BASE_BUG_HINT, f->kernel->name);
    memset(&p->sum, 0, sizeof p->sum);
    p->got = 0;
    uint64_t started = 0, at = 0, ended = 0; /* number of chunks started; position in bytes; number of chunks ended */
    int rc = f->begin ? f->begin(p, in) : 0;
    while (ended < started || (!rc && at < in->len)) {
        struct buffer *b;
        if (!rc && at < in->len && started - ended < BUFFERS) {
            b = &p->buffer[started % BUFFERS];
            b->at = at;
            b->len = (uint32_t)(chunk_end(in, at) - at);
            rc = chunk_start(p, in, b, started ? &p->buffer[(started - 1) % BUFFERS] : NULL);
            at += b->len;
            started += rc == 0;
            continue;
        }
        /* after an error, wait for the chunks under way, which use the buffers */
        b = &p->buffer[ended++ % BUFFERS];
        int end = chunk_wait(p, in, b);
        if (!rc && !end)
            end = f->add(p, in, b, blocks_of(f, b->len));
        rc = rc ? rc : end;
    }
    return rc ? rc : f->end(p, in, out);
}
