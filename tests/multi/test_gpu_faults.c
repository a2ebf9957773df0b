/* SPDX-License-Identifier: MIT
 *
 * Failures around GPUs, on the GPU `host`: nodes that stop or die while requests to them are under way, GPUs and nodes that are closed
 * while others use them, and calls with invalid arguments.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "gpu_test.h"

/* Shared by the nodes of a test and their parent. */
struct shared {
    _Atomic uint32_t ready, stopped, go_on;
    _Atomic int pid;
};

/* --- several GPUs of a node, each opened and closed by its own thread --- */

static void *open_and_close(void *arg)
{
    weft_node *w = arg;
    for (int i = 0; i < 30; i++) {
        weft_gpu *g = open_host(w, 1, 8);
        uint32_t space;
        weft_gaddr at;
        uint64_t value = 7, got = 0;
        OK(weft_gpu_arena(g, 1 << 16, &space));
        OK(weft_gpu_alloc(g, space, 64, &at));
        OK(weft_put_blocking(w, at, &value, 8));
        OK(weft_get_blocking(w, &got, at, 8));
        CHECK(got == 7);
        OK(weft_gpu_close(g));
    }
    return NULL;
}

static void node_threads(weft_node *w, void *arg)
{
    (void)arg;
    pthread_t thread[3];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&thread[i], NULL, open_and_close, w) == 0);
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
}

static void test_threads(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, node_threads, NULL), 0);
}

/* --- a stopped node: a kernel's requests to it stay under way until the kernel's node is closed --- */

struct stop_job {
    weft_gaddr at, mine;
};

static void to_the_stopped(const weft_device *d, void *arg)
{
    const struct stop_job *j = arg;
    weft_device_op op;
    for (uint32_t i = 0; weft_device_send(d, 1, 5, i, j->mine, 2000, &op) == 0;
         i++) /* until neither the stopped node nor the ring has room */
        weft_device_leave(d, &op);
    CHECK(weft_device_flush(d, 1) == -WEFT_DEVICE_ETIMEDOUT);
}

static void ignore(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len, void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)len, (void)arg;
}

static void stopped_by(struct shared *s)
{
    while (!s->pid)
        usleep(1000);
    stop_asleep(s->pid);
}

static void node_stopped(weft_node *w, void *arg)
{
    struct shared *s = arg;
    struct stop_job j = {.at = symmetric_alloc(w, 4096)};
    OK(weft_alloc(w, 4096, &j.mine));
    OK(weft_handle(w, 5, ignore, NULL));
    OK(weft_barrier(w, patience_ns(60))); /* the deadline is short, and this machine may be busy */
    if (weft_rank(w) == 1) {
        s->pid = getpid();
        while (!s->go_on)
            usleep(1000);
        _exit(0);
    }
    weft_gpu *g = open_host(w, 1, 4096);
    stopped_by(s);
    OK(weft_gpu_run(g, to_the_stopped, 1, &j));
    OK(weft_close(w));
    s->go_on = 1;
    kill(s->pid, SIGCONT);
    exit(0); /* exit() lets the address sanitizer report leaked memory */
}

static void test_stopped(void **state)
{
    (void)state;
    struct shared *s = shared_words(sizeof *s);
    const char *const environment[] = {"WEFT_DEADLINE=300ms", "WEFT_LOG=error", NULL};
    assert_int_equal(nodes_failed_with(2, node_stopped, s, environment), 0);
}

/* --- a node that is closed while kernels run --- */

struct running {
    weft_gpu *g;
    const weft_device_worker *k;
    weft_gaddr word;
    _Atomic uint32_t begun;
};

static void wait_for_ever(const weft_device *d, void *arg)
{
    struct running *r = arg;
    weft_device_task t;
    atomic_fetch_add(&r->begun, 1);
    int rc = d->block % 2 ? weft_device_next_task(d, r->k, &t) : weft_device_wait_at_least(d, r->word, 1, NULL);
    CHECK(rc == (d->block % 2 ? -WEFT_DEVICE_ESHUTDOWN : -WEFT_DEVICE_ETIMEDOUT));
}

static void *run_for_ever(void *arg)
{
    struct running *r = arg;
    OK(weft_gpu_run(r->g, wait_for_ever, 4, r));
    return NULL;
}

static int closes(int rank, void *arg)
{
    (void)rank, (void)arg;
    weft_node *w;
    weft_queue *q;
    weft_gpu_worker *k;
    pthread_t thread;
    struct running r = {0};
    setenv("WEFT_POOL", "16M", 0);
    setenv("WEFT_SIZE", "1", 1);
    OK(weft_open(&w, NULL));
    OK(weft_queue_open(w, "closes", NULL, &q));
    r.g = open_host(w, 2, 64);
    CHECK(weft_gpu_worker_open(r.g, NULL, NULL, &k) == -EINVAL && !k);
    OK(weft_gpu_worker_open(r.g, q, NULL, &k));
    r.k = weft_gpu_worker_device(k);
    r.word = symmetric_alloc(w, 64);
    CHECK(pthread_create(&thread, NULL, run_for_ever, &r) == 0);
    wait_for(&r.begun, 4);
    int64_t began = now_ns();
    OK(weft_close(w));
    CHECK(now_ns() - began < 20 * WEFT_SECOND); /* much less than the deadline, which is 30 s */
    pthread_join(thread, NULL);
    CHECK(weft_gpu_run(r.g, wait_for_ever, 4, &r) == -EINVAL);
    return 0;
}

static void test_closed(void **state)
{
    (void)state;
    assert_int_equal(processes_failed(1, closes, NULL), 0);
}

/* --- a node that dies while a kernel waits for its signal --- */

struct death {
    weft_gaddr words;
    struct shared *s;
};

static void wait_for_the_dead(const weft_device *d, void *arg)
{
    struct death *j = arg;
    weft_gaddr word = on_node(j->words, d->rank);
    uint64_t seen = 0;
    int64_t began = weft_device_now_ns();
    CHECK(weft_device_wait_for(d, d->size, word, 1, NULL) == -EINVAL);
    KERNEL(weft_device_wait_for(d, 1, word, 1, &seen)); /* this signal was sent before */
    atomic_fetch_add(&j->s->go_on, 1);
    CHECK(seen == 1 && weft_device_wait_for(d, 1, word, 2, &seen) == -WEFT_DEVICE_ECONNRESET);
    CHECK(weft_device_now_ns() - began < 20 * WEFT_SECOND);
    CHECK(weft_device_gone(d, 1) && !weft_device_gone(d, 0) && weft_device_gone(d, 77));
}

static void node_death(weft_node *w, void *arg)
{
    struct death j = {.words = symmetric_alloc(w, 64), .s = arg};
    if (weft_rank(w) == 1) {
        OK(weft_put_signal(w, 0, NULL, 0, on_node(j.words, 0), 1, NULL));
        OK(weft_flush(w, 0, WEFT_TIMEOUT_DEFAULT));
        wait_for(&j.s->go_on, 2);
        raise(SIGKILL);
    }
    weft_gpu *g = open_host(w, 1, 64);
    OK(weft_gpu_run(g, wait_for_the_dead, 2, &j));
    OK(weft_gpu_close(g));
}

static void test_death(void **state)
{
    (void)state;
    struct shared *s = shared_words(sizeof *s);
    int status[NODES_MAX];
    nodes_run(2, node_death, s, (const char *const[]){"WEFT_LOG=error", NULL}, status);
    assert_int_equal(status[0], 0);
    assert_true(WIFSIGNALED(status[1]));
}

/* --- leases of tasks that kernels have claimed --- */

struct lease_job {
    uint32_t queue;
    weft_gaddr desk; /* a lease, then a result */
    bool renews;
};

#define LEASE_NS (400 * WEFT_MS)
#define LONG_NS  (1500 * WEFT_MS) /* far longer than a lease */

/* Renews the lease for long, then completes the task. False: this thread did not run for longer than a lease, as may happen on a busy
 * machine, so the lease has ended. */
static bool renew_for_long(const weft_device *d, const struct lease_job *j, weft_gaddr result, int64_t renewed)
{
    uint64_t held;
    int rc = 1;
    for (int64_t until = renewed + LONG_NS; rc == 1 && weft_device_now_ns() < until;) {
        usleep(20000);
        int64_t before = weft_device_now_ns();
        rc = weft_device_renew(d, j->queue, j->desk, 1, &held);
        CHECK((rc == 1 && held == 1) || (rc == 0 && held == 0));
        renewed = rc ? before : renewed;
    }
    rc = rc ? weft_device_complete(d, j->queue, j->desk, result, 1, NULL) : 0;
    CHECK(rc == 1 || (rc == 0 && weft_device_now_ns() - renewed >= LEASE_NS));
    return rc == 1;
}

static void claim_and_keep(const weft_device *d, void *arg)
{
    struct lease_job *j = arg;
    weft_gaddr result = j->desk + 1024;
    uint64_t held = 0;
    int64_t claimed;
    memset(weft_device_ptr(d, result, sizeof(weft_result)), 0, sizeof(weft_result));
    do {
        claimed = weft_device_now_ns();
        CHECK(weft_device_claim(d, j->queue, j->desk, 1) == 1);
    } while (j->renews && !renew_for_long(d, j, result, claimed));
    if (!j->renews) {
        int rc = 1;
        for (int i = 0; rc == 1 && i < 20; i++) { /* on a busy machine leases last longer; then the call has renewed this one */
            usleep(LONG_NS / 1000);
            rc = weft_device_renew(d, j->queue, j->desk, 1, &held);
        }
        CHECK(rc == 0 && held == 0);
        CHECK(weft_device_complete(d, j->queue, j->desk, result, 1, NULL) == 0);
    }
    CHECK(weft_device_renew(d, j->queue, j->desk, 1, NULL) == 0);
    CHECK(weft_device_renew(d, j->queue, j->desk, WEFT_DEVICE_TASKS + 1, NULL) == -EINVAL);
    CHECK(weft_device_renew(d, j->queue + 1, j->desk, 1, NULL) == -ENOENT);
    CHECK(weft_device_renew(d, j->queue, 0, 1, NULL) == -EFAULT);
}

static void node_leases(weft_node *w, void *arg)
{
    weft_queue *q;
    weft_queue_config c = {.bytes = sizeof c, .slots = 16, .lease_ns = LEASE_NS};
    struct lease_job j = {.renews = *(bool *)arg};
    weft_task task = {.tag = 1};
    OK(weft_queue_open(w, "leases", &c, &q));
    OK(weft_alloc_aligned(w, 4096, 64, &j.desk));
    weft_gpu *g = open_host(w, 1, 64);
    OK(weft_gpu_queue(g, q, &j.queue));
    CHECK(weft_submit(q, &task, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
    OK(weft_gpu_run(g, claim_and_keep, 1, &j));
    OK(weft_gpu_close(g));
}

static void test_leases(void **state)
{
    (void)state;
    for (int renews = 0; renews < 2; renews++)
        assert_int_equal(nodes_failed(1, node_leases, &(bool){renews}), 0);
}

/* --- a kernel's fences end although the processor starts more and more operations on the same arena --- */

struct busy {
    weft_node *w;
    weft_gaddr word;
    _Atomic bool over;
};

static void *keep_busy(void *arg)
{
    struct busy *b = arg;
    enum { AT_A_TIME = 450 };
    weft_op op[AT_A_TIME];
    for (int i = 0; i < AT_A_TIME; i++)
        OK(weft_fetch_add(b->w, b->word, 1, NULL, &op[i]));
    for (uint32_t i = 0; !atomic_load(&b->over); i++) {
        OK(weft_wait(b->w, &op[i % AT_A_TIME], WEFT_TIMEOUT_DEFAULT));
        OK(weft_fetch_add(b->w, b->word, 1, NULL, &op[i % AT_A_TIME]));
    }
    for (int i = 0; i < AT_A_TIME; i++)
        OK(weft_wait(b->w, &op[i], WEFT_TIMEOUT_DEFAULT));
    return NULL;
}

static void fences(const weft_device *d, void *arg)
{
    const struct busy *b = arg;
    for (uint64_t i = 0; i < 20; i++) {
        weft_device_op op;
        KERNEL(weft_device_put_value(d, b->word + 64, i, NULL));
        KERNEL(weft_device_fence(d, 1));
        KERNEL(weft_device_put_value(d, b->word + 64, i + 1, &op));
        KERNEL(weft_device_wait(d, &op));
    }
}

static void node_fences(weft_node *w, void *arg)
{
    (void)arg;
    struct busy b = {.w = w};
    uint32_t space;
    weft_gpu *g = open_host(w, 1, 64);
    OK(weft_gpu_arena(g, 1 << 16, &space));
    OK(weft_gpu_alloc(g, space, 4096, &b.word));
    b.word = on_node(b.word, 1);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 0) {
        pthread_t thread[2];
        for (int i = 0; i < 2; i++)
            CHECK(pthread_create(&thread[i], NULL, keep_busy, &b) == 0);
        OK(weft_gpu_run(g, fences, 1, &b));
        atomic_store(&b.over, true);
        for (int i = 0; i < 2; i++)
            pthread_join(thread[i], NULL);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_fences(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, node_fences, NULL), 0);
}

/* --- an arena's owner is stopped: waits time out, the owner executes the requests when it continues, other nodes are not delayed --- */

struct own_job {
    struct shared *s;
    bool ends; /* node 0 is closed while its operations are under way */
};

#define LARGE (300u << 10)

static void node_owner(weft_node *w, void *arg)
{
    struct own_job *j = arg;
    struct shared *s = j->s;
    uint32_t space, me = weft_rank(w);
    weft_gaddr at;
    weft_gpu *g = NULL;
    if (me) {
        g = open_host(w, 1, 64);
        OK(weft_gpu_arena(g, 1 << 20, &space));
        OK(weft_gpu_alloc(g, space, 3 * LARGE, &at));
    } else {
        at = weft_gaddr_make(0, 1, 1 << 16);
    }
    OK(weft_barrier(w, patience_ns(60))); /* the deadline may be short, and this machine busy */
    if (me == 1) {
        s->pid = getpid();
        while (!s->go_on)
            usleep(1000);
        return;
    }
    if (me == 2) {
        while (!s->go_on)
            usleep(1000);
        return;
    }
    uint8_t *bytes = calloc(2, LARGE);
    weft_gaddr pool;
    uint64_t old = 0;
    weft_op op[5], other;
    OK(weft_alloc(w, LARGE, &pool));
    memset(bytes, 7, LARGE);
    stopped_by(s);
    at = on_node(at, 1);
    OK(weft_put(w, at, bytes, LARGE, &op[0]));                    /* staged */
    OK(weft_get(w, weft_ptr(w, pool, LARGE), at, LARGE, &op[1])); /* straight into the pool */
    OK(weft_get(w, bytes + LARGE, at + 8, 100, &op[2]));          /* by message */
    OK(weft_fetch_add(w, at + 2 * LARGE, 1, &old, &op[3]));
    OK(weft_put_signal(w, at + LARGE, bytes, LARGE, at + 2 * LARGE + 8, 1, &op[4]));
    for (int i = 0; i < 5; i++)
        CHECK(weft_wait(w, &op[i], 50 * WEFT_MS) == -ETIMEDOUT);
    OK(weft_put(w, on_node(at, 2), bytes, LARGE, &other)); /* the arena of another node */
    OK(weft_wait(w, &other, patience_ns(60)));
    OK(weft_get(w, bytes, on_node(at, 2), LARGE, &other));
    OK(weft_wait(w, &other, patience_ns(60)));
    if (j->ends) {
        OK(weft_close(w));
        s->go_on = 1;
        kill(s->pid, SIGCONT);
        free(bytes);
        exit(0);
    }
    kill(s->pid, SIGCONT);
    for (int i = 0; i < 5; i++)
        OK(weft_wait(w, &op[i], patience_ns(60)));
    OK(weft_get_blocking(w, &old, at + 2 * LARGE + 8, 8));
    CHECK(old == 1);
    free(bytes);
    s->go_on = 1;
}

static void test_owner(void **state)
{
    (void)state;
    for (int ends = 0; ends < 2; ends++) {
        struct own_job j = {.s = shared_words(sizeof *j.s), .ends = ends};
        const char *const environment[] = {ends ? "WEFT_DEADLINE=1s" : "WEFT_DEADLINE=10s", "WEFT_LOG=error", NULL};
        int status[NODES_MAX];
        nodes_run(3, node_owner, &j, environment, status);
        assert_int_equal(status[0], 0);
        assert_int_equal(status[2], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads), cmocka_unit_test(test_stopped), cmocka_unit_test(test_closed), cmocka_unit_test(test_death),
        cmocka_unit_test(test_leases),  cmocka_unit_test(test_fences),  cmocka_unit_test(test_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
