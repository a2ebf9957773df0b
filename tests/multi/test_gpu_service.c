/* SPDX-License-Identifier: MIT
 *
 * Services that kernels ask for, on the GPU `host`: a kernel starts a program at another node, writes to it, reads what it prints into the
 * pool and into an arena, and publishes and looks up names. Records are in the pool and in an arena.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "cluster_test.h"
#include "weft/device_service.h"

static const char *const OFFERS[] = {"WEFT_SERVE=process,name", NULL};

#define BYTES  (1u << 16)
#define BLOCKS 3u

/* The calls of one block, with addresses in this node's memory. The texts are the arguments for `cat`, followed by those for `false`. */
struct call {
    uint64_t record, texts, text_bytes, nowhere, nowhere_bytes, in, out, word;
    bool failed;
};
struct calls {
    struct call of[BLOCKS];
    uint32_t rank;
};

#define MUST(is)                                                                                        \
    do {                                                                                                \
        if (!(is)) {                                                                                    \
            fprintf(stderr, "%s:%d: node %u, block %u: %s\n", __FILE__, __LINE__, d->rank, block, #is); \
            c->failed = true;                                                                           \
            return;                                                                                     \
        }                                                                                               \
    } while (0)

static void kernel(const weft_device *d, void *arg)
{
    uint32_t block = weft_device_block(d);
    struct call *c = &((struct calls *)arg)->of[block];
    uint64_t p, n, sent = 0, got = 0, addr, bytes;
    weft_device_exit end;
    char name[8] = {'n', (char)('0' + d->rank), (char)('0' + block), 0};
    MUST(weft_device_spawn(d, c->record, 0, WEFT_SPAWN_STDOUT, c->nowhere, c->nowhere_bytes, 1, 0, &p) == -WEFT_DEVICE_ENOENT);
    MUST(weft_device_spawn(d, c->record + 1, 0, WEFT_SPAWN_STDOUT, c->texts, c->text_bytes, 1, 0, &p) == -WEFT_DEVICE_EFAULT);
    MUST(weft_device_spawn(d, c->record, 0, WEFT_SPAWN_STDIN | WEFT_SPAWN_STDOUT, c->texts, c->text_bytes, 1, 0, &p) == 0);
    while (got < BYTES) { /* `cat` prints its input, in parts of any size */
        if (sent < BYTES && sent - got < 4096) {
            MUST(weft_device_process_write(d, c->record, p, c->in + sent, BYTES - sent < 3000 ? BYTES - sent : 3000, &n) == 0 && n > 0);
            sent += n;
        } else {
            MUST(weft_device_process_read(d, c->record, p, 1, c->out + got, BYTES - got < 1000 ? BYTES - got : 1000, &n) == 0 && n > 0);
            got += n;
        }
    }
    MUST(weft_device_process_write(d, c->record, p, 0, 0, &n) == 0);
    MUST(weft_device_process_read(d, c->record, p, 1, c->out, 1, &n) == 0 && n == 0);
    MUST(weft_device_process_wait(d, c->record, p, &end) == 0 && end.status == 0 && end.signal == 0);
    MUST(weft_device_process_close(d, c->record, p) == 0);
    MUST(weft_device_process_close(d, c->record, p) < 0);

    MUST(weft_device_spawn(d, c->record, 0, WEFT_SPAWN_STDIN, c->texts, c->text_bytes, 1, 0, &p) == 0);
    MUST(weft_device_process_signal(d, c->record, p, 15) == 0);
    MUST(weft_device_process_wait(d, c->record, p, &end) == 0 && end.signal == 15);
    MUST(weft_device_process_close(d, c->record, p) == 0);

    MUST(weft_device_name_publish(d, c->record, 0, name, c->word, 8) == 0);
    name[1] = (char)('0' + (d->rank + 1) % d->size);
    MUST(weft_device_name_lookup(d, c->record, 0, name, true, &addr, &bytes) == 0 && bytes == 8);
    MUST(weft_device_fetch_add(d, addr, 7, NULL) == 0);
    MUST(weft_device_name_lookup(d, c->record, 0, "nobody", false, &addr, &bytes) == -WEFT_DEVICE_ENOENT);
}

static weft_gaddr put_texts(weft_node *w, const char *texts, size_t bytes)
{
    weft_gaddr a;
    OK(weft_alloc(w, bytes, &a));
    memcpy(weft_ptr(w, a, bytes), texts, bytes);
    return a;
}

static void node(weft_node *w, void *arg)
{
    static const char cat[] = "cat\0\0cat", nowhere[] = "/no/such/program\0\0x"; /* program, directory, argv */
    static uint8_t got[BYTES];
    weft_gpu_config config = {.bytes = sizeof config, .name = "host"};
    struct calls all = {.rank = weft_rank(w)};
    weft_gpu *g;
    uint32_t space = 0;
    (void)arg;
    OK(weft_gpu_open(w, &config, &g));
    OK(weft_gpu_arena(g, 16u << 20, &space));
    for (uint32_t b = 0; b < BLOCKS; b++) {
        struct call *c = &all.of[b];
        if (b == 2)
            OK(weft_gpu_alloc(g, space, WEFT_REQUEST_BYTES, &c->record));
        else
            OK(weft_alloc_aligned(w, WEFT_REQUEST_BYTES, 64, &c->record));
        OK(weft_put_blocking(w, c->record, got, WEFT_REQUEST_BYTES)); /* zeros */
        c->texts = put_texts(w, cat, sizeof cat);
        c->text_bytes = sizeof cat;
        c->nowhere = put_texts(w, nowhere, sizeof nowhere);
        c->nowhere_bytes = sizeof nowhere;
        OK(weft_alloc(w, BYTES, &c->in));
        uint8_t *in = weft_ptr(w, c->in, BYTES);
        for (uint32_t i = 0; i < BYTES; i++)
            in[i] = (uint8_t)(i * 2654435761u >> 13 ^ b ^ weft_rank(w));
        if (b % 2)
            OK(weft_gpu_alloc(g, space, BYTES, &c->out));
        else
            OK(weft_alloc(w, BYTES, &c->out));
        OK(weft_alloc(w, 8, &c->word));
        memset(weft_ptr(w, c->word, 8), 0, 8);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_gpu_run(g, kernel, BLOCKS, &all));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t b = 0; b < BLOCKS; b++) {
        struct call *c = &all.of[b];
        CHECK(!c->failed);
        OK(weft_get_blocking(w, got, c->out, BYTES));
        CHECK(memcmp(got, weft_ptr(w, c->in, BYTES), BYTES) == 0);
        CHECK(*(uint64_t *)weft_ptr(w, c->word, 8) == 7);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_gpu_close(g));
}

static void test_kernels(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, node, NULL, OFFERS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kernels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
