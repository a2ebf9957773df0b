/* SPDX-License-Identifier: MIT
 *
 * kernel_pipe: a kernel writes numbers to the standard input of a program at another node. The program sorts the numbers, and the kernel
 * reads the output. Then the kernel starts a program that would run for long, and ends it by a signal.
 *
 * Shown: weft_device_process_write() and weft_device_process_signal() (weft/device_service.h). The kernel runs on the GPU `host`; a kernel
 * for CUDA makes the same calls.
 *
 * Run:
 *     weft run -n 2 -- ./kernel_pipe
 * It prints:
 *     sorted: 1 2 4 8 9
 *     the other program was ended by signal 15
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
        fprintf(stderr, "kernel_pipe: %s: %s\n", what, weft_error());
        exit(1);
    }
}

/* --- the kernel --- */

#define BLOCKS 1u

struct job {
    uint64_t record, sort, sleep, numbers, output; /* addresses in this node's pool */
    uint64_t sort_bytes, sleep_bytes, numbers_bytes, got;
    int32_t signal;
    int rc[BLOCKS]; /* result of each block */
};

static int sort_numbers(const weft_device *d, struct job *job)
{
    uint64_t process, n = 1, put = 0;
    weft_device_exit end;
    int rc = weft_device_spawn(d, job->record, 0, WEFT_SPAWN_STDIN | WEFT_SPAWN_STDOUT, job->sort, job->sort_bytes, 2, 0, &process);
    if (rc)
        return rc;
    for (; !rc && put < job->numbers_bytes; put += n)
        rc = weft_device_process_write(d, job->record, process, job->numbers + put, job->numbers_bytes - put, &n);
    if (!rc)
        rc = weft_device_process_write(d, job->record, process, 0, 0, &n); /* the end of the input */
    for (n = 1; !rc && n; job->got += n)
        rc = weft_device_process_read(d, job->record, process, 1, job->output + job->got, 64 - job->got, &n);
    if (!rc)
        rc = weft_device_process_wait(d, job->record, process, &end);
    (void)weft_device_process_close(d, job->record, process);
    return rc;
}

static int end_program(const weft_device *d, struct job *job)
{
    uint64_t process;
    weft_device_exit end;
    int rc = weft_device_spawn(d, job->record, 0, 0, job->sleep, job->sleep_bytes, 2, 0, &process);
    if (rc)
        return rc;
    rc = weft_device_process_signal(d, job->record, process, 15); /* SIGTERM */
    if (!rc)
        rc = weft_device_process_wait(d, job->record, process, &end);
    job->signal = rc ? 0 : end.signal;
    (void)weft_device_process_close(d, job->record, process);
    return rc;
}

static void run_programs(const weft_device *d, void *arg)
{
    struct job *job = arg;
    int rc = sort_numbers(d, job);
    job->rc[0] = rc ? rc : end_program(d, job);
}

/* --- the nodes --- */

static uint64_t in_pool(weft_node *w, const void *bytes, uint64_t len)
{
    weft_gaddr at;
    check(weft_alloc_aligned(w, len, 64, &at), "alloc");
    if (bytes)
        memcpy(weft_ptr(w, at, len), bytes, len);
    else
        memset(weft_ptr(w, at, len), 0, len);
    return at;
}

static void run_kernel(weft_node *w)
{
    static const char sort[] = "sort\0\0sort\0-n", sleep[] = "sleep\0\0sleep\0"
                                                             "1000"; /* the program, its directory, and argv */
    static const char numbers[] = "8\n4\n9\n1\n2\n";
    weft_gpu *gpu;
    weft_gpu_config config = {.bytes = sizeof config, .name = "host"};
    struct job job = {.sort = in_pool(w, sort, sizeof sort),
                      .sort_bytes = sizeof sort,
                      .sleep = in_pool(w, sleep, sizeof sleep),
                      .sleep_bytes = sizeof sleep,
                      .numbers = in_pool(w, numbers, sizeof numbers),
                      .numbers_bytes = sizeof numbers - 1,
                      .output = in_pool(w, NULL, 64),
                      .record = in_pool(w, NULL, WEFT_REQUEST_BYTES)};
    check(weft_gpu_open(w, &config, &gpu), "GPU");
    check(weft_gpu_run(gpu, run_programs, BLOCKS, &job), "kernel");
    for (uint32_t b = 0; b < BLOCKS; b++)
        if (job.rc[b]) {
            fprintf(stderr, "kernel_pipe: block %u of the kernel: %s\n", b, strerror(-job.rc[b])); /* kernels use Linux's error numbers */
            exit(1);
        }
    const char *output = weft_ptr(w, job.output, 64);
    printf("sorted:");
    for (uint64_t i = 0; i < job.got; i++)
        if (output[i] != '\n')
            printf(" %c", output[i]);
    printf("\nthe other program was ended by signal %d\n", job.signal);
    check(weft_gpu_close(gpu), "GPU");
}

int main(void)
{
    weft_node *w;
    const char *rank = getenv("WEFT_RANK");
    if (rank && strcmp(rank, "0") == 0) {
        setenv("WEFT_SERVE", "process", 1);
    }
    check(weft_open(&w, NULL), "open");
    if (weft_size(w) < 2) {
        fprintf(stderr, "kernel_pipe: one node is not enough: start it by weft run -n 2 -- ./kernel_pipe\n");
        return 1;
    }
    if (weft_rank(w) == 1)
        run_kernel(w);
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");
    check(weft_close(w), "close");
    return 0;
}
