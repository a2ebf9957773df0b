/* SPDX-License-Identifier: MIT
 *
 * A cable is pulled, and the device's driver crashes if a receive is posted after that (tb5): whatever a node does next, it queries the
 * port first. Run by over_softverbs.py on mesh:2 of tb5. A pull between the query and the post would crash any program, so both nodes are
 * stopped while the cable is pulled, when none of their threads posts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "cluster_test.h"

#define BIG  (1u << 20)
#define LONG patience_ns(60)

enum first { GET, PUT, MESSAGE, ADD, FLUSH, KINDS };

struct stage {
    _Atomic uint32_t here, pulls, pulled, over;
    _Atomic int pid[2];
};

/* A process of its own, because a node cannot stop itself. */
static void puller(struct stage *stage)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uint32_t i = 1; !atomic_load(&stage->over); usleep(1000)) {
        if (atomic_load(&stage->pulls) < i)
            continue;
        for (int node = 0; node < 2; node++)
            stop_asleep((pid_t)atomic_load(&stage->pid[node]));
        softverbs("fault pull 0:rdma_en2");
        for (int node = 0; node < 2; node++)
            CHECK(kill((pid_t)atomic_load(&stage->pid[node]), SIGCONT) == 0);
        atomic_store(&stage->pulled, i++);
    }
    _exit(0);
}

static void on_message(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                       void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len, (void)arg;
}

/* Starts an operation, which fails, or completes when the cable is back. */
static void begin(weft_node *w, enum first what, weft_gaddr to, uint8_t *mine, uint64_t *old)
{
    weft_op op;
    int rc = 0;
    switch (what) {
    case GET: rc = weft_get(w, mine, to, BIG, &op); break;
    case PUT: rc = weft_put(w, to, mine, BIG, &op); break;
    case ADD: rc = weft_fetch_add(w, to, 1, old, &op); break;
    case MESSAGE: rc = weft_send(w, 1, 1, "", 0, mine, 1000, &op); break;
    default: /* a flush waits for the cable if an operation before it was not acknowledged yet */
        rc = weft_flush(w, 1, 20 * WEFT_MS);
        rc = rc == -ETIMEDOUT ? 0 : rc;
    }
    CHECK(rc == 0 || rc == -ENETDOWN);
    if (rc == 0 && what != FLUSH)
        rc = weft_wait(w, &op, LONG);
    CHECK(rc == 0 || rc == -ENETDOWN);
}

/* Repeats a get until it returns `expected`. */
static void goes(weft_node *w, weft_gaddr to, uint8_t *mine, int expected)
{
    int rc;
    for (int64_t end = now_ns() + LONG; (rc = weft_get_blocking(w, mine, to, BIG)) != expected && now_ns() < end;)
        usleep(1000);
    CHECK(rc == expected);
}

static void pulled(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    OK(weft_handle(w, 1, on_message, NULL));
    weft_gaddr area = symmetric_alloc(w, BIG), own = symmetric_alloc(w, BIG);
    uint8_t *mine = weft_ptr(w, on_node(own, weft_rank(w)), BIG);
    uint64_t old;
    uint32_t rounds = repeats(60), met = 0, me = weft_rank(w);
    atomic_store(&stage->pid[me], getpid());
    for (uint32_t i = 0; i < rounds; i++) {
        goes(w, on_node(area, 1 - me), mine, 0);
        meet(&stage->here, 2 * ++met);
        if (me == 0) {
            atomic_store(&stage->pulls, i + 1);
            wait_for(&stage->pulled, i + 1);
            begin(w, (enum first)(i % KINDS), on_node(area, 1), mine, &old);
        }
        /* A node that queries its port only after the cable is back cannot notice the pull. So the cable is plugged in when both have
         * noticed it. */
        meet(&stage->here, 2 * ++met);
        goes(w, on_node(area, 1 - me), mine, -ENETDOWN);
        meet(&stage->here, 2 * ++met);
        if (me == 0)
            softverbs("fault plug 0:rdma_en2");
    }
    goes(w, on_node(area, 1 - me), mine, 0);
    OK(weft_barrier(w, LONG));
}

static void test_pulled(void **state)
{
    (void)state;
    struct stage *stage = shared_words(sizeof *stage);
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        puller(stage);
    int failed = nodes_failed_with(2, pulled, stage, (const char *const[]){"WEFT_LOG=error", NULL});
    atomic_store(&stage->over, 1);
    assert_true(waitpid(pid, &status, 0) == pid && status == 0);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pulled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
