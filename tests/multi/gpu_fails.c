/* SPDX-License-Identifier: MIT
 *
 * weft map --gpu=host with a GPU that fails: gpu_fails WHERE KERNEL FILE. WHERE: `open`, no node but the owner can open its GPU; `pass`, no
 * node has room for buffers there; `trap`, a kernel traps at the third piece of each node, after part of its output was written; `one`, the
 * same but not at the owner.
 *
 * The nodes are this program: the engine of the command, whose calls of src/gpu/ come here first (the linker's --wrap).
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpu/spans.h"
#include "map/map.h"

static const char *where;
static pid_t owner;
static _Atomic bool failed;
static _Atomic unsigned pieces;

static bool here(const char *name)
{
    return !strcmp(where, name);
}

int __real_gpu_spans_open(const char *name, const weft_kernel *kernel, const char *arg, struct gpu_spans **out);
int __wrap_gpu_spans_open(const char *name, const weft_kernel *kernel, const char *arg, struct gpu_spans **out);
int __wrap_gpu_spans_open(const char *name, const weft_kernel *kernel, const char *arg, struct gpu_spans **out)
{
    *out = NULL;
    return here("open") && getpid() != owner ? base_fail(-EIO, "another process uses it") : __real_gpu_spans_open(name, kernel, arg, out);
}

int __real_gpu_pass_open(struct gpu_spans *s, void *memory, struct gpu_pass **out);
int __wrap_gpu_pass_open(struct gpu_spans *s, void *memory, struct gpu_pass **out);
int __wrap_gpu_pass_open(struct gpu_spans *s, void *memory, struct gpu_pass **out)
{
    *out = NULL;
    return here("pass") ? base_fail(-ENOMEM, "it is full") : __real_gpu_pass_open(s, memory, out);
}

bool __real_gpu_spans_failed(const struct gpu_spans *s);
bool __wrap_gpu_spans_failed(const struct gpu_spans *s);
bool __wrap_gpu_spans_failed(const struct gpu_spans *s)
{
    return failed || __real_gpu_spans_failed(s);
}

int __real_gpu_pass_run(struct gpu_pass *p, const struct gpu_input *in, weft_out *out);
int __wrap_gpu_pass_run(struct gpu_pass *p, const struct gpu_input *in, weft_out *out);
int __wrap_gpu_pass_run(struct gpu_pass *p, const struct gpu_input *in, weft_out *out)
{
    int rc = __real_gpu_pass_run(p, in, out);
    if (rc || ++pieces < 3 || !(here("trap") || (here("one") && getpid() != owner)))
        return rc;
    failed = true;
    return base_fail(-EIO, "a kernel has trapped");
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    where = argv[1];
    owner = getpid();
    char *files[] = {argv[3]};
    struct map_options o = {.files = files,
                            .file_count = 1,
                            .kernel = argv[2],
                            .gpu = "host",
                            .nodes = 3,
                            .slots = 1,
                            .block_bytes = 100000,
                            .retries = 0,
                            .progress = MAP_NEVER};
    return map_run(&o);
}
