/* SPDX-License-Identifier: MIT
 *
 * kernel_spawn: a kernel starts a program at another node and uses its output. The program multiplies two numbers. The kernels look up a
 * name to find the memory for their results.
 *
 * Shown: weft_device_spawn(), weft_device_process_read(), weft_device_process_wait() and names in a kernel (weft/device_service.h). The
 * kernel runs on the GPU `host`; a kernel for CUDA makes the same calls.
 *
 * Run:
 *     weft run -n 3 -- ./kernel_spawn
 * It prints:
 *     the kernels' programs computed 7 + 14 = 21
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>
#include <weft/device_service.h>

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "kernel_spawn: %s: %s\n", what, weft_error());
        exit(1);
    }
}

struct job {
    uint64_t record, texts, output; /* addresses in this node's pool */
    uint64_t texts_bytes;
    int rc; /* result of the kernel */
};

static void multiply(const weft_device *d, void *arg)
{
    struct job *job = arg;
    uint64_t process, n, sum = 0, bytes, value = 0;
    weft_device_exit end;
    job->rc = weft_device_spawn(d, job->record, 0, WEFT_SPAWN_STDOUT, job->texts, job->texts_bytes, 4, 0, &process);
    if (job->rc)
        return;
    do { /* the output is a number */
        job->rc = weft_device_process_read(d, job->record, process, 1, job->output, 64, &n);
        const char *text = weft_device_ptr(d, job->output, 64);
        for (uint64_t i = 0; !job->rc && i < n; i++)
            if (text[i] >= '0' && text[i] <= '9')
                value = value * 10 + (uint64_t)(text[i] - '0');
    } while (!job->rc && n);
    if (!job->rc)
        job->rc = weft_device_process_wait(d, job->record, process, &end);
    if (!job->rc)
        job->rc = weft_device_process_close(d, job->record, process);
    if (!job->rc)
        job->rc = weft_device_name_lookup(d, job->record, 0, "sum", true, &sum, &bytes);
    if (!job->rc)
        job->rc = weft_device_fetch_add(d, sum, value, NULL);
}

int main(void)
{
    weft_node *w;
    weft_gpu *gpu;
    weft_gaddr sum;
    struct job job = {.rc = 0};
    char texts[] = "expr\0\0expr\0N\0*\0007"; /* the program, its directory, and argv */
    const char *rank = getenv("WEFT_RANK");
    if (rank && strcmp(rank, "0") == 0)
        setenv("WEFT_SERVE", "process,name", 1);
    check(weft_open(&w, NULL), "open");
    if (weft_rank(w) == 0) {
        check(weft_alloc(w, 8, &sum), "alloc");
        *(uint64_t *)weft_ptr(w, sum, 8) = 0;
        check(weft_name_publish(w, 0, "sum", sum, 8, WEFT_TIMEOUT_DEFAULT), "publish");
    } else {
        texts[11] = (char)('0' + weft_rank(w));
        check(weft_alloc_aligned(w, WEFT_REQUEST_BYTES, 64, &job.record), "alloc");
        check(weft_alloc(w, sizeof texts, &job.texts), "alloc");
        check(weft_alloc(w, 64, &job.output), "alloc");
        memset(weft_ptr(w, job.record, WEFT_REQUEST_BYTES), 0, WEFT_REQUEST_BYTES);
        memcpy(weft_ptr(w, job.texts, sizeof texts), texts, sizeof texts);
        job.texts_bytes = sizeof texts;
        weft_gpu_config config = {.bytes = sizeof config, .name = "host"};
        check(weft_gpu_open(w, &config, &gpu), "GPU");
        check(weft_gpu_run(gpu, multiply, 1, &job), "kernel");
        if (job.rc) {
            fprintf(stderr, "kernel_spawn: node %u: a call of the kernel ended with %d\n", weft_rank(w), job.rc);
            exit(1);
        }
        check(weft_gpu_close(gpu), "GPU");
    }
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");
    if (weft_rank(w) == 0)
        printf("the kernels' programs computed 7 + 14 = %llu\n", (unsigned long long)*(uint64_t *)weft_ptr(w, sum, 8));
    check(weft_close(w), "close");
    return 0;
}
