/* SPDX-License-Identifier: MIT
 *
 * Kernels on several hosts, on the GPU `host`, that read a file of node 0: they get pieces from each other. A holder is spoilt,
 * stopped, cut off or killed; there is no room for copies; the file changes.
 */
#include <errno.h>

#include "file_hosts_test.h"
#include "gateway/file_record.h"
#include "gpu/arena.h"
#include "kernel_test.h"
#include "weft/device_file.h"

#define BLOCKS 4u
#define NEXT   61 /* SEED of the file's next generation */

static const char *const ROOMY[] = {"WEFT_SERVE=file", "WEFT_POOL=512M", "WEFT_FILE_CACHE=64M", "WEFT_LOG=error", NULL};
/* There is room for three copies. */
static const char *const TIGHT[] = {"WEFT_SERVE=file", "WEFT_POOL=24M", "WEFT_FILE_CACHE=16M", "WEFT_LOG=error", NULL};

struct job {
    uint64_t record[BLOCKS], path, to[BLOCKS], part, from, end; /* the range of the file that is read, in parts of this size */
    uint32_t path_bytes, seed;
    bool handles; /* each block has a handle of its own */
    weft_device_file file[BLOCKS];
    int rc[BLOCKS];
    bool wrong[BLOCKS];
};

static void open_kernel(const weft_device *d, void *arg)
{
    struct job *job = arg;
    uint32_t b = weft_device_block(d);
    job->rc[b] = b && !job->handles ? 0 : weft_device_file_open(d, job->record[b], 0, job->path, job->path_bytes, 0, &job->file[b]);
}

static void close_kernel(const weft_device *d, void *arg)
{
    struct job *job = arg;
    uint32_t b = weft_device_block(d);
    job->rc[b] = b && !job->handles ? 0 : weft_device_file_close(d, job->record[b], &job->file[b]);
}

/* The blocks read the parts of the range in turn. */
static void read_kernel(const weft_device *d, void *arg)
{
    struct job *job = arg;
    uint32_t b = weft_device_block(d);
    const weft_device_file *f = &job->file[job->handles ? b : 0];
    const uint8_t *got = weft_device_ptr(d, job->to[b], job->part);
    uint64_t n;
    for (uint64_t at = job->from + b * job->part; at < job->end && !job->rc[b]; at += BLOCKS * job->part) {
        uint64_t want = job->end - at < job->part ? job->end - at : job->part;
        job->rc[b] = weft_device_file_read(d, job->record[b], f, job->to[b], want, at, &n);
        job->wrong[b] = job->wrong[b] || !right(got, job->seed, at, (size_t)n) || (!job->rc[b] && n != want);
    }
}

static struct job *new_job(weft_node *w, weft_gpu *g, uint32_t space, uint64_t part)
{
    static struct job job;
    job = (struct job){.part = part, .end = BYTES, .seed = SEED};
    for (uint32_t b = 0; b < BLOCKS; b++) {
        job.record[b] = new_record(w, g, space, b % 2);
        OK(weft_gpu_alloc(g, space, part, &job.to[b]));
    }
    job.path = at_text(w, in_folder("file"), &job.path_bytes);
    return &job;
}

static void run(weft_gpu *g, weft_gpu_kernel kernel, struct job *job)
{
    OK(weft_gpu_run(g, kernel, BLOCKS, job));
    for (uint32_t b = 0; b < BLOCKS; b++)
        CHECK(job->rc[b] == 0 && !job->wrong[b]);
}

static void read_range(weft_gpu *g, struct job *job, uint64_t from, uint64_t end)
{
    job->from = from;
    job->end = end;
    run(g, read_kernel, job);
}

/* The file that records of this node have open. */
static struct file_record *file_of(weft_node *w)
{
    uint32_t at = 0;
    struct file_record *f = (struct file_record *)gateway_table_next(&gateway_in(w)->objects, &at);
    CHECK(f && f->object.service == WEFT_SERVICE_FILE);
    return f;
}

/* --- the file leaves the gateway about once --- */

struct plan {
    struct hosts_board *b;
    uint64_t part;
    bool handles;
};

static void once(weft_node *w, void *arg)
{
    const struct plan *p = arg;
    struct hosts_board *b = p->b;
    be_patient(w);
    if (weft_rank(w) == 0) {
        wait_for(&b->done, weft_size(w) - 1);
        weft_file_cache c = cache_of(w);
        b->given = c.given_bytes;
        b->passed = c.passed_bytes;
        CHECK(c.disk_bytes == BYTES && c.disk_reads == PIECES);
    } else {
        uint32_t space;
        weft_gpu *g = gpu_with_arena(w, &space);
        struct job *job = new_job(w, g, space, p->part);
        job->handles = p->handles;
        CHECK(gateway_is_far(w));
        run(g, open_kernel, job);
        meet(&b->opened, weft_size(w) - 1);
        run(g, read_kernel, job);
        atomic_fetch_add(&b->done, 1);
        wait_for(&b->done, weft_size(w) - 1);
        run(g, close_kernel, job);
        if (!p->handles && p->part == PIECE)
            wait_for_no_copies(w);
        OK(weft_gpu_close(g));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void read_once(uint64_t part, bool handles)
{
    enum { READERS = 4 };
    struct plan p = {shared_words(sizeof *p.b), part, handles};
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(1 + READERS, once, &p, ROOMY), 0);
    printf("given by the gateway %.2f times, passed on %.2f times\n", (double)p.b->given / (double)BYTES,
           (double)p.b->passed / (double)BYTES);
    assert_true(p.b->given < 2 * BYTES);
    assert_true(p.b->passed > BYTES / 2);
    if (part >= PIECE) /* a node that reads a piece in small parts may get it straight from the gateway */
        assert_true(p.b->given + p.b->passed >= READERS * BYTES);
}

static void test_once(void **state)
{
    (void)state;
    read_once(PIECE, false);
}

static void test_handles(void **state)
{
    (void)state;
    read_once(2 * PIECE, true);
}

static void test_parts(void **state)
{
    (void)state;
    read_once(100000, false);
}

/* --- the kernels of one node: pieces go straight to their arena --- */

static void straight(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        uint32_t space;
        weft_gpu *g = gpu_with_arena(w, &space);
        struct job *job = new_job(w, g, space, PIECE);
        weft_pool_stats s;
        job->handles = true;
        run(g, open_kernel, job);
        run(g, read_kernel, job);
        OK(weft_pool_stat(w, &s, sizeof s));
        CHECK(s.file_bytes == 0);
        if (strcmp(stats(w, 0).transport, "rc") == 0) /* the RDMA device has moved them */
            CHECK(gpu_arenas_of(w)->direct >= PIECES);
        run(g, close_kernel, job);
        OK(weft_gpu_close(g));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_straight(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, straight, NULL, ROOMY), 0);
}

/* --- no room for copies --- */

static void tight(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    if (weft_rank(w) == 0) {
        wait_for(&b->done, weft_size(w) - 1);
        CHECK(cache_of(w).cached_bytes <= cache_of(w).limit_bytes);
        return;
    }
    uint32_t space;
    weft_pool_stats s;
    weft_gpu *g = gpu_with_arena(w, &space);
    struct job *job = new_job(w, g, space, PIECE);
    job->handles = true;
    run(g, open_kernel, job);
    meet(&b->opened, weft_size(w) - 1);
    run(g, read_kernel, job);
    OK(weft_pool_stat(w, &s, sizeof s));
    CHECK(s.file_bytes <= w->pool_bytes / FILE_KEPT_PART);
    run(g, close_kernel, job);
    atomic_fetch_add(&b->done, 1);
    OK(weft_gpu_close(g));
}

static void test_tight(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(4, tight, shared_words(sizeof(struct hosts_board)), TIGHT), 0);
}

/* --- a holder is of no use --- */

enum ill { SPOILT, SILENT, KILLED };
struct ill_plan {
    struct hosts_board *b;
    enum ill how;
    enum silence silence;
};

/* Node 1 gets the first pieces. Then its copies are spoilt, or it becomes silent, or is killed in the middle of node 2's reading. */
static void is_ill(weft_node *w, void *arg)
{
    const struct ill_plan *p = arg;
    struct hosts_board *b = p->b;
    if (weft_rank(w) == 0) {
        wait_for(&b->half, 1);
        usleep(200000);
        if (p->how == KILLED)
            CHECK(kill((pid_t)atomic_load(&b->pid), SIGKILL) == 0);
        wait_for(&b->done, 1);
        b->given = cache_of(w).given_bytes;
        b->passed = cache_of(w).passed_bytes;
        if (p->how == SILENT)
            end_silence(p->silence, b);
        return;
    }
    uint32_t space;
    weft_gpu *g = gpu_with_arena(w, &space);
    struct job *job = new_job(w, g, space, PIECE);
    run(g, open_kernel, job);
    meet(&b->opened, 2);
    if (weft_rank(w) == 1) {
        read_range(g, job, 0, 2 * FEW * PIECE);
        (void)cache_of(w); /* the answer shows that the gateway has been told of the copies */
        struct file_record *f = file_of(w);
        uint32_t copies = 0;
        for (unsigned i = 0; i < FILE_RECORD_SLOTS; i++)
            if (f->slot[i].kept) {
                copies++;
                if (p->how == SPOILT)
                    spoil(weft_ptr(w, f->slot[i].kept->at, PIECE));
            }
        CHECK(copies >= FEW);
        atomic_store(&b->pid, (uint32_t)getpid());
        wait_for(&b->done, 1);
    } else {
        wait_for(&b->pid, 1);
        if (p->how == KILLED)
            stop_asleep((pid_t)atomic_load(&b->pid));
        if (p->how == SILENT)
            make_silent(p->silence, b);
        atomic_store(&b->half, 1);
        read_range(g, job, 0, BYTES);
        if (p->how == SILENT)
            note_silence(w, p->silence, b);
        atomic_store(&b->done, 1);
    }
    run(g, close_kernel, job);
    OK(weft_gpu_close(g));
}

static void one_is_ill(enum ill how, enum silence silence)
{
    struct ill_plan p = {shared_words(sizeof *p.b), how, silence};
    int status[NODES_MAX];
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    nodes_run(3, is_ill, &p, SILENCE, status);
    assert_true(status[0] == 0 && status[2] == 0);
    assert_int_equal(how == KILLED ? WIFSIGNALED(status[1]) : status[1] == 0, 1);
    assert_true(p.b->passed > 0);
    if (how == SPOILT) /* what was spoilt was given twice */
        assert_true(p.b->given > BYTES);
    if (how == SILENT)
        check_silence(silence, p.b);
}

static void test_spoilt(void **state)
{
    (void)state;
    one_is_ill(SPOILT, STOPPED);
}

static void test_stopped(void **state)
{
    (void)state;
    one_is_ill(SILENT, STOPPED);
}

static void test_cut_off(void **state)
{
    (void)state;
    if (can_cut_off())
        one_is_ill(SILENT, CUT_OFF);
}

static void test_killed(void **state)
{
    (void)state;
    one_is_ill(KILLED, STOPPED);
}

/* --- the file changes --- */

/* All have read a part when the file is written anew. From then on they get bytes of the old generation or -ESTALE; opened again, they read
 * the new one. */
static void changes(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    if (weft_rank(w) == 0) {
        wait_for(&b->half, weft_size(w) - 1);
        write_file(in_folder("file"), NEXT, BYTES, O_TRUNC);
        wait_for(&b->done, weft_size(w) - 1);
        return;
    }
    uint32_t space, stale = 0;
    weft_gpu *g = gpu_with_arena(w, &space);
    struct job *job = new_job(w, g, space, PIECE);
    run(g, open_kernel, job);
    meet(&b->opened, weft_size(w) - 1);
    read_range(g, job, 0, BYTES / 2);
    atomic_fetch_add(&b->half, 1);
    for (int64_t end = now_ns() + patience_ns(20); stale < BLOCKS;) {
        CHECK(now_ns() < end);
        stale = 0;
        job->from = 0;
        job->end = BYTES;
        OK(weft_gpu_run(g, read_kernel, BLOCKS, job));
        for (uint32_t i = 0; i < BLOCKS; i++) {
            CHECK(!job->wrong[i]);
            CHECK(job->rc[i] == 0 || job->rc[i] == -WEFT_DEVICE_ESTALE);
            stale += job->rc[i] != 0;
            job->rc[i] = 0;
        }
    }
    run(g, close_kernel, job);
    do { /* the writer may still be at work */
        memset(job->rc, 0, sizeof job->rc);
        OK(weft_gpu_run(g, open_kernel, BLOCKS, job));
        CHECK(job->rc[0] == 0);
        job->seed = NEXT;
        job->from = 0;
        job->end = job->file[0].bytes;
        OK(weft_gpu_run(g, read_kernel, BLOCKS, job));
        for (uint32_t i = 0; i < BLOCKS; i++)
            CHECK(!job->wrong[i]);
        OK(weft_gpu_run(g, close_kernel, BLOCKS, job));
    } while (job->file[0].bytes < BYTES || job->rc[0] || job->rc[1] || job->rc[2] || job->rc[3]);
    atomic_fetch_add(&b->done, 1);
    OK(weft_gpu_close(g));
}

static void test_changes(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(4, changes, shared_words(sizeof(struct hosts_board)), HOSTS), 0);
}

#define ONE(name) cmocka_unit_test_setup_teardown(test_##name, folder_make, folder_remove)

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {ONE(once),   ONE(handles), ONE(parts),   ONE(straight), ONE(tight),
                                       ONE(spoilt), ONE(stopped), ONE(cut_off), ONE(killed),   ONE(changes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
