// SPDX-License-Identifier: MIT
//
// Services that kernels of a real GPU ask for: blocks start a program at node 0, read what it prints into an arena of their own GPU,
// and add it up; names tell them where. Other programs get input and a signal, and kernels publish and withdraw names. Records are in the
// pool and in the arena. weft run -n N -- service
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

/* Texts in this node's pool: programs, and the input of one of them. */
struct programs {
    char cat[9], sleep[18], input[32];
};
static const struct programs texts_of_programs = {"cat\0\0cat", "sleep\0\0sleep\0001000", "as it went in, so it comes out\n"};

/* One program gets its input and returns it, another one is ended by a signal. */
__global__ void talk(const weft_device *d, uint64_t record, uint64_t texts, uint64_t to, struct report *bad)
{
    const uint64_t cat = texts + offsetof(struct programs, cat), sleep = texts + offsetof(struct programs, sleep),
                   input = texts + offsetof(struct programs, input), bytes = sizeof(programs::input);
    const char *in = (const char *)weft_device_ptr(d, input, bytes);
    const volatile char *out = (const volatile char *)weft_device_ptr(d, to, bytes);
    uint64_t p, n, put = 0, got = 0;
    weft_device_exit end;
    KERNEL_CHECK(in && out);
    KERNEL(weft_device_spawn(d, record, 0, WEFT_SPAWN_STDIN | WEFT_SPAWN_STDOUT, cat, sizeof(programs::cat), 1, 0, &p));
    for (; put < bytes; put += n)
        KERNEL(weft_device_process_write(d, record, p, input + put, bytes - put, &n));
    KERNEL_CHECK(put == bytes);
    KERNEL(weft_device_process_write(d, record, p, 0, 0, &n)); /* the end of the input */
    do {
        KERNEL(weft_device_process_read(d, record, p, 1, to + got, bytes - got, &n));
        got += n;
    } while (n && got < bytes);
    KERNEL_CHECK(got == bytes);
    for (uint64_t i = 0; i < bytes; i++)
        KERNEL_CHECK(out[i] == in[i]);
    KERNEL(weft_device_process_wait(d, record, p, &end));
    KERNEL_CHECK(end.status == 0 && end.signal == 0);
    KERNEL(weft_device_process_close(d, record, p));
    KERNEL(weft_device_spawn(d, record, 0, 0, sleep, sizeof(programs::sleep), 2, 0, &p));
    KERNEL(weft_device_process_signal(d, record, p, 15));
    KERNEL(weft_device_process_wait(d, record, p, &end));
    KERNEL_CHECK(end.signal == 15);
    KERNEL(weft_device_process_close(d, record, p));
}

/* Each node publishes a name at node 0, and finds the name of the next node. */
__global__ void publish(const weft_device *d, uint64_t record, uint64_t mine, struct report *bad)
{
    char name[] = "node ?";
    uint64_t addr, bytes, next = (d->rank + 1) % d->size;
    name[5] = (char)('a' + d->rank);
    KERNEL(weft_device_name_publish(d, record, 0, name, mine, 8));
    name[5] = (char)('a' + next);
    KERNEL(weft_device_name_lookup(d, record, 0, name, true, &addr, &bytes));
    KERNEL_CHECK(addr == ((mine & ((1ull << 48) - 1)) | next << 48) && bytes == 8);
}
__global__ void withdraw(const weft_device *d, uint64_t record, struct report *bad)
{
    char name[] = "node ?";
    uint64_t addr, bytes;
    name[5] = (char)('a' + d->rank);
    KERNEL(weft_device_name_withdraw(d, record, 0, name));
    KERNEL_IS(weft_device_name_lookup(d, record, 0, name, false, &addr, &bytes), -WEFT_DEVICE_ENOENT);
}

int main(void)
{
    setenv("WEFT_SERVE", "process,name", 1);
    open_node();
    uint32_t space = 0;
    char texts[] = "seq\0\0seq\0002000"; /* program, directory, argv */
    weft_gaddr sum = same_place(8), record = same_place(BLOCKS * WEFT_REQUEST_BYTES), text = same_place(sizeof texts),
               more = same_place(sizeof(programs)), part, in_arena;
    memcpy(weft_ptr(w, on_node(text, weft_rank(w)), sizeof texts), texts, sizeof texts);
    memcpy(weft_ptr(w, on_node(more, weft_rank(w)), sizeof(programs)), &texts_of_programs, sizeof(programs));
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
    talk<<<1, 1>>>(weft_gpu_device(gpu), on_node(record, weft_rank(w)), on_node(more, weft_rank(w)), part, bad);
    KERNEL_DONE();
    publish<<<1, 1>>>(weft_gpu_device(gpu), in_arena, on_node(sum, weft_rank(w)), bad);
    KERNEL_DONE();
    all_here();
    withdraw<<<1, 1>>>(weft_gpu_device(gpu), in_arena, bad);
    KERNEL_DONE();
    all_here();
    if (weft_rank(w) == 0)
        CHECK(*(uint64_t *)weft_ptr(w, on_node(sum, 0), 8) == (uint64_t)weft_size(w) * BLOCKS * LINES * (LINES + 1) / 2);
    OK(weft_gpu_close(gpu));
    OK(weft_close(w));
    printf("all right\n");
    return 0;
}
