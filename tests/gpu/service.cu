// SPDX-License-Identifier: MIT
//
// Services that kernels of a real GPU ask for: blocks start a program at node 0, read what it prints into an arena of their own GPU,
// and add it up; names tell them where. Records are in the pool and in the arena. weft run -n N -- service
#include "check.cuh"
#include "weft/device_service.h"

#define BLOCKS 4u
#define LINES  2000u
#define PART   777u

__global__ void ask(const weft_device *d, uint64_t record, uint64_t in_arena, uint64_t texts, uint64_t text_bytes, uint64_t part,
                    struct report *bad)
{
    if (threadIdx.x)
        return;
    uint64_t mine = (blockIdx.x % 2 ? record : in_arena) + blockIdx.x * WEFT_REQUEST_BYTES, to = part + blockIdx.x * 4096, p, n, addr,
             bytes, sum = 0, number = 0;
    const char *at = (const char *)weft_device_ptr(d, to, PART);
    weft_device_exit end;
    KERNEL_CHECK(at != NULL);
    KERNEL(weft_device_name_lookup(d, mine, 0, "sum", true, &addr, &bytes));
    KERNEL(weft_device_spawn(d, mine, 0, WEFT_SPAWN_STDOUT, texts, text_bytes, 2, 0, &p));
    do {
        KERNEL(weft_device_process_read(d, mine, p, 1, to, PART, &n));
        for (uint64_t i = 0; i < n; i++) {
            if (at[i] == '\n') {
                sum += number;
                number = 0;
            } else {
                number = number * 10 + (uint64_t)(at[i] - '0');
            }
        }
    } while (n);
    KERNEL(weft_device_process_wait(d, mine, p, &end));
    KERNEL_CHECK(end.status == 0 && end.signal == 0);
    KERNEL(weft_device_process_close(d, mine, p));
    KERNEL_CHECK(sum == (uint64_t)LINES * (LINES + 1) / 2);
    KERNEL(weft_device_fetch_add(d, addr, sum, NULL));
}

int main(void)
{
    setenv("WEFT_SERVE", "process,name", 1);
    open_node();
    uint32_t space = 0;
    char texts[] = "seq\0\0seq\0002000"; /* program, directory, argv */
    weft_gaddr sum = same_place(8), record = same_place(BLOCKS * WEFT_REQUEST_BYTES), text = same_place(sizeof texts), part, in_arena;
    memcpy(weft_ptr(w, on_node(text, weft_rank(w)), sizeof texts), texts, sizeof texts);
    open_gpu(2, 256);
    OK(weft_gpu_arena(gpu, 16u << 20, &space));
    OK(weft_gpu_alloc(gpu, space, BLOCKS * 4096, &part));
    OK(weft_gpu_alloc(gpu, space, BLOCKS * WEFT_REQUEST_BYTES, &in_arena));
    if (weft_rank(w) == 0)
        OK(weft_name_publish(w, 0, "sum", on_node(sum, 0), 8, 60 * WEFT_SECOND));
    all_here();
    ask<<<BLOCKS, 32>>>(weft_gpu_device(gpu), on_node(record, weft_rank(w)), in_arena, on_node(text, weft_rank(w)), sizeof texts, part,
                        bad);
    KERNEL_DONE();
    all_here();
    if (weft_rank(w) == 0)
        CHECK(*(uint64_t *)weft_ptr(w, on_node(sum, 0), 8) == (uint64_t)weft_size(w) * BLOCKS * LINES * (LINES + 1) / 2);
    OK(weft_gpu_close(gpu));
    OK(weft_close(w));
    printf("all right\n");
    return 0;
}
