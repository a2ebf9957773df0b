/* SPDX-License-Identifier: MIT
 *
 * Records about files, sockets and processes that several threads of node 1 submit at once, as kernels of several GPUs and threads of a
 * program do: any kind with any handle, wrong lengths and offsets, handles that are closed while others use them, memory that is freed and
 * arenas that are closed while bytes are copied. Every record is answered, what is read is right, and at the end nothing is left open.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "file_test.h"
#include "kernel_test.h"
#include "weft/net.h"

#define THREADS 4u
#define RECORDS 6u /* that a thread has under way */
#define HANDLES 24u
#define BYTES   (3 * PIECE + 777)
#define SEED    5u

static const char *const ALL[] = {"WEFT_SERVE=file,net,process",    "WEFT_POOL=96M",  "WEFT_FILE_CACHE=8M",
                                  "WEFT_NET_RULES=allow=127.0.0.1", "WEFT_LOG=error", NULL};

struct wild;
struct thread {
    pthread_t id;
    struct wild *all;
    uint64_t state, submitted, well;
    weft_gaddr record[RECORDS], scratch;
    weft_op op[RECORDS];
    bool under_way[RECORDS];
    uint64_t to[RECORDS]; /* memory of this record, to be freed */
};
struct wild {
    weft_node *w;
    struct thread of[THREADS];
    _Atomic uint64_t handle[3][HANDLES]; /* of files, sockets and processes; closed ones stay in it for a while */
    _Atomic uint64_t arena;              /* memory in an arena, which is perhaps closed now */
    _Atomic bool over;
    weft_gaddr path, other, host, spawn, there; /* there: memory of node 0, too */
    uint32_t path_bytes, other_bytes, host_bytes, spawn_bytes;
    _Atomic uint32_t port; /* where node 0 listens for them; 0: nobody listens */
};

static uint64_t any_number(uint64_t *state)
{
    static const uint64_t some[] = {0,
                                    1,
                                    2,
                                    7,
                                    4096,
                                    65535,
                                    PIECE - 1,
                                    PIECE,
                                    PIECE + 1,
                                    BYTES - 1,
                                    BYTES,
                                    BYTES + 1,
                                    INT64_MAX - 1,
                                    INT64_MAX,
                                    (uint64_t)INT64_MAX + 1,
                                    UINT64_MAX - PIECE,
                                    UINT64_MAX - 1,
                                    UINT64_MAX};
    uint64_t n = random_next(state);
    return n % 3 ? some[n / 3 % (sizeof some / sizeof some[0])] : random_next(state) % BYTES;
}

/* Memory that the program may use, or that nobody has. */
static weft_gaddr any_memory(struct thread *t, unsigned i)
{
    static const uint64_t nowhere[] = {0, 1, 8, (uint64_t)1 << 48 | 8, INT64_MAX, UINT64_MAX - PIECE, UINT64_MAX - 1, UINT64_MAX};
    switch (random_next(&t->state) % 8) {
    case 0: return nowhere[random_next(&t->state) % (sizeof nowhere / sizeof nowhere[0])];
    case 1: return (random_next(&t->state) % 4) << 48 | ((96u << 20) + random_next(&t->state) % 2); /* the end of a pool */
    case 2: return atomic_load(&t->all->arena);
    case 3: return on_node(t->all->there, 0);
    case 4: return t->to[i]; /* freed already */
    default:
        if (t->to[i] == WEFT_NULL && weft_alloc(t->all->w, PIECE, &t->to[i]))
            return WEFT_NULL;
        return t->to[i];
    }
}

static uint64_t any_handle(struct thread *t, uint32_t of)
{
    uint64_t n = random_next(&t->state);
    if (n % 16 == 0)
        of = (uint32_t)(n / 16 % 3);
    return n % 32 == 1 ? n : atomic_load(&t->all->handle[of][n / 64 % HANDLES]);
}

/* Fills a record at random, but such that many of them make sense. */
static void any_record(struct thread *t, unsigned i, weft_request *r)
{
    struct wild *all = t->all;
    uint64_t *state = &t->state;
    static const uint16_t service[] = {WEFT_SERVICE_FILE, WEFT_SERVICE_NET, WEFT_SERVICE_PROCESS};
    uint32_t of = (uint32_t)(random_next(state) % 8);
    of = of < 4 ? 0 : of < 7 ? 1 : 2;
    *r = (weft_request){.version = WEFT_REQUEST_VERSION, .service = service[of], .id = ++t->submitted << 8 | i};
    r->kind = (uint16_t)(1 + random_next(state) % (of == 0 ? 6 : of == 1 ? 10 : 8));
    if (of == 0 && random_next(state) % 2)
        r->kind = WEFT_FILE_READ_RANGE;
    r->handle = any_handle(t, of);
    r->timeout_ns = random_next(state) % 8 ? 0 : (int64_t)(random_next(state) % 100000);
    bool open = of == 0 ? r->kind == WEFT_FILE_OPEN : r->kind <= (of == 1 ? WEFT_NET_LISTEN : WEFT_PROCESS_SPAWN);
    for (unsigned k = 0; k < 6 && !open; k++)
        r->arg[k] = any_number(state);
    if (!open) {
        r->arg[0] = of == 2 ? random_next(state) % 4 : any_memory(t, i);
        if (of == 2 && r->kind == WEFT_PROCESS_SIGNAL)
            r->arg[0] = 18; /* SIGCONT */
        if (of == 2 && r->kind == WEFT_PROCESS_WRITE && random_next(state) % 4) {
            r->data = t->scratch;
            r->data_bytes = random_next(state) % 5000;
        }
        if (of == 0 && r->kind == WEFT_FILE_WRITE_RANGE) /* the file would grow too much */
            r->arg[2] = r->arg[2] % 3 ? r->arg[2] % BYTES : INT64_MAX - (r->arg[2] & 0xff);
    } else if (of == 0) {
        bool writes = random_next(state) % 4 == 0;
        r->data = writes ? all->other : all->path;
        r->data_bytes = writes ? all->other_bytes : all->path_bytes;
        r->flags = writes ? WEFT_FILE_WRITE | WEFT_FILE_CREATE : 0;
    } else if (of == 1) {
        r->data = all->host;
        r->data_bytes = all->host_bytes;
        r->flags = random_next(state) % 3 ? 0 : WEFT_NET_DATAGRAMS;
        r->arg[0] = r->kind == WEFT_NET_LISTEN ? 0 : atomic_load(&all->port);
        r->arg[1] = r->arg[2] = 4096;
    } else {
        r->data = all->spawn;
        r->data_bytes = all->spawn_bytes;
        r->flags = WEFT_SPAWN_STDIN | WEFT_SPAWN_STDOUT;
        r->arg[0] = 1;
        r->arg[5] = 4096;
    }
    if (random_next(state) % 64 == 0)
        r->data_bytes = any_number(state);
    if (random_next(state) % 64 == 0)
        r->data = any_number(state);
}

/* What a record has read of the file that nobody writes must be the file's bytes, if the memory is this record's alone. */
static void answered(struct thread *t, unsigned i)
{
    weft_request *r = weft_ptr(t->all->w, t->record[i], sizeof *r);
    CHECK(r->answered == r->id);
    uint32_t of = r->service == WEFT_SERVICE_FILE ? 0 : r->service == WEFT_SERVICE_NET ? 1 : 2;
    bool opens = of == 1 ? r->kind <= WEFT_NET_ACCEPT : r->kind == 1;
    t->well += r->status == 0;
    if (r->status || !opens)
        return;
    uint64_t old = atomic_exchange(&t->all->handle[of][random_next(&t->state) % HANDLES], r->result[0]);
    if (!old)
        return;
    weft_gaddr at; /* closes the one that has lost its place */
    weft_op op;
    const weft_request ends = {.version = WEFT_REQUEST_VERSION,
                               .service = r->service,
                               .kind = of == 0   ? WEFT_FILE_CLOSE
                                       : of == 1 ? WEFT_NET_CLOSE
                                                 : WEFT_PROCESS_CLOSE,
                               .id = 1,
                               .handle = old};
    OK(weft_alloc(t->all->w, sizeof ends, &at));
    memcpy(weft_ptr(t->all->w, at, sizeof ends), &ends, sizeof ends);
    if (weft_request_start(t->all->w, at, &op) == 0)
        (void)weft_wait(t->all->w, &op, DEFAULT_TIME);
    weft_free(t->all->w, at);
}

static void *be_wild(void *arg)
{
    struct thread *t = arg;
    weft_node *w = t->all->w;
    for (uint32_t n = 0, end = repeats(3000); n < end; n++) {
        unsigned i = (unsigned)(random_next(&t->state) % RECORDS);
        if (t->under_way[i]) {
            int rc = weft_wait(w, &t->op[i], random_next(&t->state) % 2 ? 0 : DEFAULT_TIME);
            t->under_way[i] = rc == -ETIMEDOUT && weft_test(w, &t->op[i]) == -EINPROGRESS;
            if (t->under_way[i])
                continue;
            answered(t, i);
        }
        if (random_next(&t->state) % 4 == 0) {
            weft_free(w, t->to[i]);
            t->to[i] = random_next(&t->state) % 2 ? WEFT_NULL : t->to[i];
            if (t->to[i] != WEFT_NULL) { /* stays known to records as memory that is freed */
                weft_request r;
                any_record(t, i, &r);
                memcpy(weft_ptr(w, t->record[i], sizeof r), &r, sizeof r);
                int rc = weft_request_start(w, t->record[i], &t->op[i]);
                t->under_way[i] = rc == 0;
                if (t->under_way[i])
                    (void)weft_wait(w, &t->op[i], DEFAULT_TIME);
                if (t->under_way[i])
                    answered(t, i);
                t->under_way[i] = false;
                t->to[i] = WEFT_NULL;
                continue;
            }
        }
        weft_request r;
        any_record(t, i, &r);
        memcpy(weft_ptr(w, t->record[i], sizeof r), &r, sizeof r);
        t->under_way[i] = weft_request_start(w, t->record[i], &t->op[i]) == 0;
    }
    for (unsigned i = 0; i < RECORDS; i++)
        if (t->under_way[i]) {
            int rc = weft_wait(w, &t->op[i], DEFAULT_TIME);
            CHECK(rc != -ETIMEDOUT || weft_test(w, &t->op[i]) != -EINPROGRESS);
            answered(t, i);
        }
    return NULL;
}

/* Opens and closes a GPU, whose arena records name. */
static void *open_and_close(void *arg)
{
    struct wild *all = arg;
    while (!atomic_load(&all->over)) {
        uint32_t space;
        weft_gaddr at;
        weft_gpu *g = gpu_with_arena(all->w, &space);
        OK(weft_gpu_alloc(g, space, PIECE, &at));
        atomic_store(&all->arena, at);
        usleep(3000);
        OK(weft_gpu_close(g));
    }
    return NULL;
}

static void close_all(struct wild *all)
{
    static const uint16_t service[] = {WEFT_SERVICE_FILE, WEFT_SERVICE_NET, WEFT_SERVICE_PROCESS};
    static const uint16_t kind[] = {WEFT_FILE_CLOSE, WEFT_NET_CLOSE, WEFT_PROCESS_CLOSE};
    weft_request *r = weft_ptr(all->w, all->of[0].record[0], sizeof *r);
    for (uint32_t of = 0; of < 3; of++)
        for (uint32_t i = 0; i < HANDLES; i++) {
            weft_op op;
            *r = (weft_request){.version = WEFT_REQUEST_VERSION, .service = service[of], .kind = kind[of], .id = 1 + i};
            r->handle = atomic_load(&all->handle[of][i]);
            OK(weft_request_start(all->w, all->of[0].record[0], &op));
            (void)weft_wait(all->w, &op, DEFAULT_TIME);
        }
}

static void wild(weft_node *w, void *arg)
{
    _Atomic uint32_t *done = arg;
    weft_gaddr there = symmetric_alloc(w, PIECE);
    if (weft_rank(w) == 0) {
        wait_for(done, 1);
        return;
    }
    static struct wild all;
    static const char spawn[] = "cat\0\0cat";
    pthread_t gpus;
    all.w = w;
    all.there = there;
    write_file(in_folder("read"), SEED, BYTES, 0);
    all.path = at_text(w, in_folder("read"), &all.path_bytes);
    all.other = at_text(w, in_folder("written"), &all.other_bytes);
    all.host = at_text(w, "127.0.0.1", &all.host_bytes);
    OK(weft_alloc(w, sizeof spawn, &all.spawn));
    memcpy(weft_ptr(w, all.spawn, sizeof spawn), spawn, sizeof spawn);
    all.spawn_bytes = sizeof spawn;
    weft_socket *listener;
    OK(weft_net_listen(w, 0, &(const weft_net_spec){.bytes = sizeof(weft_net_spec), .host = "127.0.0.1"}, &listener, DEFAULT_TIME));
    const char *port = strrchr(weft_net_local(listener), ':');
    atomic_store(&all.port, (uint32_t)atoi(port + 1));
    CHECK(pthread_create(&gpus, NULL, open_and_close, &all) == 0);
    for (unsigned i = 0; i < THREADS; i++) {
        struct thread *t = &all.of[i];
        t->all = &all;
        t->state = i + 1;
        OK(weft_alloc(w, PIECE, &t->scratch));
        for (unsigned k = 0; k < RECORDS; k++) {
            OK(weft_alloc_aligned(w, WEFT_REQUEST_BYTES, 64, &t->record[k]));
            t->to[k] = WEFT_NULL;
        }
        CHECK(pthread_create(&t->id, NULL, be_wild, t) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(all.of[i].id, NULL);
        fprintf(stderr, "%llu records, of which %llu were carried out\n", (unsigned long long)all.of[i].submitted,
                (unsigned long long)all.of[i].well);
        CHECK(all.of[i].well > 0);
    }
    atomic_store(&all.over, true);
    pthread_join(gpus, NULL);
    close_all(&all);
    OK(weft_net_close(listener));
    for (int64_t end = now_ns() + patience_ns(20); cache_of(w).readers;) { /* nothing is left open */
        CHECK(now_ns() < end);
        usleep(1000);
    }
    weft_file *f; /* and the services go on */
    static uint8_t some[BYTES];
    size_t n;
    OK(weft_file_open(w, 0, in_folder("read"), 0, &f, DEFAULT_TIME));
    OK(weft_file_read(f, some, BYTES, 0, &n, DEFAULT_TIME));
    CHECK(n == BYTES && right(some, SEED, 0, BYTES));
    OK(weft_file_close(f));
    atomic_store(done, 1);
}

static void test_wild(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, wild, shared_words(4096), ALL), 0);
}

/* --- several threads write to one process, and close its handle --- */

struct writer {
    pthread_t id;
    weft_node *w;
    weft_gaddr record, some;
    uint64_t handle;
    _Atomic uint32_t *begun;
};

static int submit(weft_node *w, weft_gaddr at, weft_request *r)
{
    weft_op op;
    r->version = WEFT_REQUEST_VERSION;
    r->service = WEFT_SERVICE_PROCESS;
    memcpy(weft_ptr(w, at, sizeof *r), r, sizeof *r);
    OK(weft_request_start(w, at, &op));
    int rc = weft_wait(w, &op, DEFAULT_TIME);
    memcpy(r, weft_ptr(w, at, sizeof *r), sizeof *r);
    CHECK(r->answered == r->id);
    return rc;
}

static void *write_and_close(void *arg)
{
    struct writer *t = arg;
    meet(t->begun, THREADS);
    for (uint64_t i = 1, rc = 0; i <= 4 && !rc; i++) {
        weft_request r = {.id = i, .kind = WEFT_PROCESS_WRITE, .handle = t->handle, .data = t->some, .data_bytes = 300};
        int failed = submit(t->w, t->record, &r);
        rc = failed == -ENOENT;
        CHECK(!failed || failed == -EAGAIN || failed == -EPIPE || failed == -ENOENT);
    }
    for (int rc = -EBUSY; rc == -EBUSY;) { /* another thread is writing, or closes it now */
        weft_request r = {.id = 9, .kind = WEFT_PROCESS_CLOSE, .handle = t->handle};
        rc = submit(t->w, t->record, &r);
        CHECK(!rc || rc == -EBUSY || rc == -ENOENT);
    }
    return NULL;
}

static void one_process(weft_node *w, void *arg)
{
    static const char spawn[] = "cat\0\0cat";
    static struct writer of[THREADS];
    _Atomic uint32_t begun;
    weft_gaddr command;
    (void)arg;
    if (weft_rank(w) == 1) {
        OK(weft_alloc(w, sizeof spawn, &command));
        memcpy(weft_ptr(w, command, sizeof spawn), spawn, sizeof spawn);
        for (unsigned i = 0; i < THREADS; i++) {
            OK(weft_alloc_aligned(w, WEFT_REQUEST_BYTES, 64, &of[i].record));
            OK(weft_alloc(w, 300, &of[i].some));
        }
        for (uint32_t n = 0; n < repeats(60); n++) {
            weft_request r = {.id = 1, .kind = WEFT_PROCESS_SPAWN, .data = command, .data_bytes = sizeof spawn, .arg = {1}};
            r.flags = WEFT_SPAWN_STDIN | WEFT_SPAWN_STDOUT;
            CHECK(submit(w, of[0].record, &r) == 0);
            atomic_init(&begun, 0);
            for (unsigned i = 0; i < THREADS; i++) {
                of[i] = (struct writer){.w = w, .record = of[i].record, .some = of[i].some, .handle = r.result[0], .begun = &begun};
                CHECK(pthread_create(&of[i].id, NULL, write_and_close, &of[i]) == 0);
            }
            for (unsigned i = 0; i < THREADS; i++)
                pthread_join(of[i].id, NULL);
        }
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_one_process(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, one_process, NULL, ALL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_wild, folder_make, folder_remove),
                                       cmocka_unit_test(test_one_process)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
