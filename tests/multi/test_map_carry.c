/* SPDX-License-Identifier: MIT
 *
 * Bytes of a file that one node of `weft map` puts into another node's pool (carry.c), and a slot that waits for them (bring.c). Puts that
 * cannot begin are made by the linker's --wrap.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "file_test.h"
#include "map/job.h"
#include "queue/queue.h"

#define BYTES   ((uint64_t)MAP_ASK_BYTES)
#define COUNT   8u
#define SEED    31
#define LEASE   (1500 * WEFT_MS)
#define TAKES   (5 * WEFT_SECOND)
#define REFUSED 5

struct board {
    _Atomic uint32_t ready, done;
    _Atomic uint64_t word;
};

static _Atomic int refusals; /* how many puts of this node still fail at their start */

static bool refuse(void)
{
    int left = atomic_load(&refusals);
    while (left > 0 && !atomic_compare_exchange_weak(&refusals, &left, left - 1))
        ;
    return left > 0;
}

int __real_weft_put(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
int __wrap_weft_put(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
int __wrap_weft_put(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op)
{
    return refuse() ? -ENETDOWN : __real_weft_put(w, dst, src, len, op);
}

int __real_weft_put_signal(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal, uint64_t add, weft_op *op);
int __wrap_weft_put_signal(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal, uint64_t add, weft_op *op);
int __wrap_weft_put_signal(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal, uint64_t add, weft_op *op)
{
    return refuse() ? -ETIMEDOUT : __real_weft_put_signal(w, dst, src, len, signal, add, op);
}

/* A job with one input, a file of node 0. */
static struct map_job *job_of(weft_node *w, bool cached)
{
    static struct map_input in;
    static struct map_job job;
    struct stat st;
    in = (struct map_input){.name = in_folder("file"), .path = in_folder("file"), .cached = cached, .size = COUNT * BYTES};
    in.fd = open(in.path, O_RDONLY | O_CLOEXEC);
    CHECK(in.fd >= 0 && fstat(in.fd, &st) == 0);
    in.device = (uint64_t)st.st_dev;
    in.inode = (uint64_t)st.st_ino;
    job.w = w;
    job.rank = weft_rank(w);
    job.inputs = &in;
    job.input_count = 1;
    job.renew_ns = 10 * WEFT_SECOND;
    return &job;
}

/* Node 1 asks for all of the file, and gets it. */
static void ask_all(weft_node *w, struct map_job *job)
{
    weft_gaddr to, word;
    uint64_t seen;
    OK(weft_alloc(w, BYTES, &to));
    OK(weft_alloc(w, COUNT * sizeof(uint64_t), &word));
    memset(weft_ptr(w, word, COUNT * sizeof(uint64_t)), 0, COUNT * sizeof(uint64_t));
    for (uint64_t i = 0; i < COUNT; i++) {
        struct map_ask ask = {.what = MAP_ASK_FILE, .offset = i * BYTES, .len = BYTES, .to = to, .word = word + i * sizeof(uint64_t)};
        OK(map_ask(job, 0, &ask));
        OK(weft_wait_until(w, ask.word, WEFT_NE, 0, &seen, patience_ns(20)));
        CHECK(map_answer(seen) == 0 && right(weft_ptr(w, to, BYTES), SEED, i * BYTES, BYTES));
    }
}

/* A put that cannot begin, for lack of room or of a route, is tried again: the asking node would wait for its answer for ever. */
static void put_again(weft_node *w, void *arg)
{
    struct board *b = arg;
    struct map_job *job = job_of(w, false);
    if (weft_rank(w) == 0) {
        atomic_store(&refusals, REFUSED);
        OK(map_carry_start(job));
    }
    meet(&b->ready, 2);
    if (weft_rank(w) == 1)
        ask_all(w, job);
    meet(&b->done, 2);
    if (weft_rank(w) == 0)
        map_carry_stop(job);
    CHECK(atomic_load(&refusals) == 0);
}

static void test_put_again(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, COUNT * BYTES, O_TRUNC);
    assert_int_equal(nodes_failed(2, put_again, shared_words(sizeof(struct board))), 0);
}

/* Threads that have nothing to put keep no file open: what an open file has requested in advance takes room in the cache. */
static void idle(weft_node *w, void *arg)
{
    struct board *b = arg;
    struct map_job *job = job_of(w, true);
    if (weft_rank(w) == 0)
        OK(map_carry_start(job));
    meet(&b->ready, 2);
    if (weft_rank(w) == 1)
        ask_all(w, job);
    meet(&b->done, 2);
    if (weft_rank(w) == 0) {
        weft_file_cached c = {.readers = 1};
        int64_t deadline = now_ns() + patience_ns(20);
        bool came = false;
        while (c.readers) {
            uint64_t next = 0;
            OK(weft_file_list(w, 0, &c, sizeof c, &next, DEFAULT_TIME)); /* what is cached stays in the list */
            came = came || c.disk_reads;
            CHECK(now_ns() < deadline);
            usleep(1000);
        }
        CHECK(came && c.leases == 0);
        map_carry_stop(job);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_idle(void **state)
{
    (void)state;
    static const char *const serves[] = {"WEFT_SERVE=file", NULL};
    write_file(in_folder("file"), SEED, COUNT * BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, idle, shared_words(sizeof(struct board)), serves), 0);
}

/* A slot that waits for the bytes for longer than its lease keeps its claim. */
static void renewed(weft_node *w, void *arg)
{
    struct board *b = arg;
    weft_queue *q;
    uint32_t me = weft_rank(w);
    weft_queue_config c = {.bytes = sizeof c, .slots = 16, .lease_ns = LEASE};
    OK(weft_queue_open(w, "pieces", &c, &q));
    OK(weft_barrier(w, DEFAULT_TIME));
    if (me == 0) {
        weft_task task = {.tag = 1};
        weft_done done;
        CHECK(weft_submit(q, &task, 1, NULL, DEFAULT_TIME) == 1);
        atomic_store(&b->ready, 1);
        wait_for(&b->ready, 2);
        usleep((useconds_t)(TAKES / 1000));
        OK(weft_fetch_add_blocking(w, atomic_load(&b->word), 1, NULL));
        CHECK(weft_reap(q, &done, 1, DEFAULT_TIME) == 1);
    } else {
        static struct map_job job;
        weft_lease claim;
        weft_result result = {.status = 0};
        weft_gaddr word;
        bool accepted;
        job.w = w;
        job.queue = q;
        job.renew_ns = LEASE / 5;
        struct map_slot slot = {.job = &job, .claim = &claim};
        int64_t next = now_ns() + job.renew_ns;
        OK(weft_alloc(w, sizeof(uint64_t), &word));
        memset(weft_ptr(w, word, sizeof(uint64_t)), 0, sizeof(uint64_t));
        atomic_store(&b->word, word);
        wait_for(&b->ready, 1);
        CHECK(weft_claim(q, &claim, 1, DEFAULT_TIME) == 1);
        atomic_store(&b->ready, 2);
        OK(map_asked(&job, 0, word, &slot, &next));
        CHECK(!slot.lost && weft_complete(q, &claim, &result, 1, &accepted) == 1 && accepted);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_renewed(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, renewed, shared_words(sizeof(struct board))), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {TEST(test_put_again), TEST(test_idle), TEST(test_renewed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
