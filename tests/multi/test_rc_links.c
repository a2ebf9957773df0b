/* SPDX-License-Identifier: MIT
 *
 * The links of the rc transport: queue pairs are made at first use; the error if one cannot be made; and when one breaks and is made again,
 * no operation is lost or repeated. Started by over_softverbs.py; an argument names the tests to run ("test_un*"), else all.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "rc_links_test.h"

/* --- queue pairs are made only for pairs of nodes that exchange data --- */

static void neighbours(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    uint32_t n = weft_size(w), me = weft_rank(w), right = (me + 1) % n, left = (me + n - 1) % n;
    weft_gaddr mine;
    _Atomic uint32_t *came = malloc(sizeof *came);
    CHECK(came);
    *came = 0;
    OK(weft_handle(w, 1, count_message, (void *)came));
    OK(weft_alloc(w, 4096, &mine)); /* the first allocation is at the same offset on every node */
    for (uint32_t i = 0; i < n; i++)
        CHECK(i == me || stats(w, i).connects == 0);
    meet(&stage->here, n);
    for (int i = 0; i < 100; i++) /* both neighbours connect at the same time, each by its own first message */
        OK(weft_send(w, i % 2 ? left : right, 1, NULL, 0, NULL, 0, NULL));
    OK(weft_put_blocking(w, on_node(mine, right), &me, sizeof me));
    int64_t end = now_ns() + 40 * WEFT_SECOND;
    while (*came < 100 && now_ns() < end)
        weft_progress(w);
    CHECK(*came == 100);
    meet(&stage->there, n);
    CHECK(*(uint32_t *)weft_ptr(w, mine, 4) == left);
    for (uint32_t i = 0; i < n; i++)
        CHECK(i == me || stats(w, i).connects == (i == left || i == right));
    meet(&stage->done, n); /* leaving makes no queue pairs either, although it tells all nodes */
    free((void *)came);
}

static void test_neighbours(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(8, neighbours, shared_words(4096)), 0);
}

/* --- connecting works although the program at the other end calls nothing of weft --- */

static void alone_at_it(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr mine;
    OK(weft_alloc(w, 4096, &mine));
    meet(&stage->here, 2);
    if (weft_rank(w) == 0) {
        uint64_t v = 77, old = 0;
        OK(weft_put_blocking(w, on_node(mine, 1), &v, sizeof v));
        OK(weft_fetch_add_blocking(w, on_node(mine, 1), 1, &old));
        CHECK(old == 77);
        atomic_store(&stage->done, 1);
    }
    wait_for(&stage->done, 1); /* without a call of weft */
}

static void test_alone_at_it(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, alone_at_it, shared_words(4096)), 0);
}

/* --- connecting works although one thread there is in a handler that it runs while it waits, and another sleeps --- */

struct busy {
    weft_node *w;
    struct stage *stage;
    weft_gaddr word; /* in this node's pool */
    pthread_t poller;
    _Atomic uint32_t polls, caught;
};

static void long_handler(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                         void *arg)
{
    struct busy *b = arg;
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    if (!atomic_load(&b->polls) || !pthread_equal(pthread_self(), b->poller))
        return; /* the progress thread runs this handler: wait for the next message */
    atomic_store(&b->caught, 1);
    wait_for(&b->stage->done, 1);
}

static void *poll_for_it(void *arg)
{
    struct busy *b = arg;
    b->poller = pthread_self();
    atomic_store(&b->polls, 1);
    while (!atomic_load(&b->caught))
        CHECK(weft_wait_until(b->w, b->word, WEFT_EQ, 99, NULL, WEFT_MS) == -ETIMEDOUT);
    return NULL;
}

static void busy(weft_node *w, void *arg)
{
    struct busy b = {.w = w, .stage = arg};
    pthread_t thread;
    uint64_t v = 7;
    OK(weft_alloc(w, 4096, &b.word)); /* the first allocation is at the same offset on every node */
    OK(weft_handle(w, 1, long_handler, &b));
    meet(&b.stage->here, 3);
    if (weft_rank(w) == 0) {
        for (; !atomic_load(&b.stage->there); usleep(1000))
            OK(weft_send(w, 1, 1, NULL, 0, NULL, 0, NULL));
    } else if (weft_rank(w) == 1) {
        CHECK(pthread_create(&thread, NULL, poll_for_it, &b) == 0);
        wait_for(&b.caught, 1);
        atomic_store(&b.stage->there, 1);
        OK(weft_wait_until(w, b.word, WEFT_EQ, v, NULL, 40 * WEFT_SECOND));
        pthread_join(thread, NULL);
    } else {
        wait_for(&b.stage->there, 1);
        usleep(100000); /* by now the other thread sleeps */
        CHECK(stats(w, 1).connects == 0);
        OK(weft_put_signal(w, 0, NULL, 0, on_node(b.word, 1), v, NULL));
        OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT));
        atomic_store(&b.stage->done, 1);
    }
    wait_for(&b.stage->done, 1);
}

static void test_busy(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, busy, shared_words(4096)), 0);
}

/* --- a queue pair cannot be made: the operation fails, and the error says why --- */

static void refused(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr mine;
    OK(weft_alloc(w, 4096, &mine));
    meet(&stage->here, 3);
    if (weft_rank(w) == 0) {
        uint64_t v = 1;
        OK(weft_put_blocking(w, on_node(mine, 2), &v, sizeof v));
        int rc = weft_put_blocking(w, on_node(mine, 1), &v, sizeof v);
        CHECK(rc == -ECONNRESET);
        if (!strstr(weft_error(), "node 1") || !strstr(weft_error(), "RC queue pair") || !strstr(weft_error(), "the peer reports"))
            fprintf(stderr, "the error was: %s\n", weft_error());
        CHECK(strstr(weft_error(), "node 1") && strstr(weft_error(), "RC queue pair") && strstr(weft_error(), "the peer reports"));
        CHECK(!weft_alive(w, 1) && weft_alive(w, 2));
        OK(weft_put_blocking(w, on_node(mine, 2), &v, sizeof v)); /* operations to other nodes still work */
        atomic_store(&stage->done, 1);
    }
    if (weft_rank(w) == 1) { /* this node is told that node 0 has given it up */
        int64_t end = now_ns() + 40 * WEFT_SECOND;
        while (weft_alive(w, 0) && now_ns() < end)
            usleep(1000);
        CHECK(!weft_alive(w, 0));
    }
    wait_for(&stage->done, 1);
}

static void test_refused(void **state)
{
    (void)state;
    softverbs("fault add refuse --verb create_qp --errno ENOMEM --host 1");
    int failed = nodes_failed_with(3, refused, shared_words(4096), (const char *const[]){"WEFT_LOG=error", "WEFT_RECONNECT=0", NULL});
    softverbs("fault clear");
    assert_int_equal(failed, 0);
}

/* --- while a link connects, deadlines hold, and a death of the peer ends the wait --- */

static void silent(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr mine;
    OK(weft_alloc(w, 4096, &mine));
    if (weft_rank(w) == 1)
        stage->pid = getpid();
    meet(&stage->here, 2);
    if (weft_rank(w) == 1) {
        wait_for(&stage->done, 1);
        return;
    }
    uint64_t v = 1;
    weft_op op[2];
    stop_asleep(stage->pid);
    OK(weft_put(w, on_node(mine, 1), &v, sizeof v, &op[0]));
    CHECK(weft_wait(w, &op[0], 50 * WEFT_MS) == -ETIMEDOUT);
    CHECK(weft_flush(w, 1, 50 * WEFT_MS) == -ETIMEDOUT);
    OK(weft_fetch_add(w, on_node(mine, 1), 1, NULL, &op[1]));
    CHECK(stats(w, 1).connects == 0 && weft_test(w, &op[0]) == -EINPROGRESS);
    CHECK(kill(stage->pid, SIGKILL) == 0);
    CHECK(weft_wait(w, &op[0], WEFT_TIMEOUT_DEFAULT) == -ECONNRESET);
    CHECK(weft_wait(w, &op[1], WEFT_TIMEOUT_DEFAULT) == -ECONNRESET);
    CHECK(!weft_alive(w, 1));
}

static void test_silent(void **state)
{
    (void)state;
    int status[NODES_MAX];
    nodes_run(2, silent, shared_words(4096), (const char *const[]){"WEFT_LOG=error", NULL}, status);
    assert_int_equal(status[0], 0);
    assert_true(WIFSIGNALED(status[1]) && WTERMSIG(status[1]) == SIGKILL);
}

/* --- links that break: no operation is lost or repeated --- */

enum { MESSAGES = 500, BULK = 200000, TIMES = 4 };

struct mill {
    struct stage stage;
    const char *const *how, *const *undo;   /* arguments of softverbs that break the link, and that repair it */
    _Atomic uint32_t broken, over, came[2]; /* came: number of the last message that each node has received */
};

struct received {
    uint64_t next, wrong;
};

static void in_order(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)w, (void)from, (void)header_len;
    struct received *r = arg;
    uint64_t n;
    memcpy(&n, header, sizeof n);
    bool right = n == r->next && payload_len == (n % 3 == 0 ? 3000 : n % 3 == 1 ? 0 : 120);
    for (size_t i = 0; i < payload_len; i++)
        right = right && ((const uint8_t *)payload)[i] == (uint8_t)(n + i);
    __atomic_fetch_add(&r->wrong, !right, __ATOMIC_RELAXED);
    __atomic_store_n(&r->next, n + 1, __ATOMIC_RELEASE);
}

/* Breaks the node's link again and again; each time waits until it has broken and is connected again. */
static void *breaker(void *arg)
{
    struct {
        weft_node *w;
        struct mill *m;
    } *a = arg;
    for (int i = 0; i < TIMES; i++) {
        weft_link_stats before = stats(a->w, 1);
        softverbs(a->m->how[i % 2]);
        while (stats(a->w, 1).breaks == before.breaks)
            usleep(1000);
        softverbs(a->m->undo[i % 2]);
        while (stats(a->w, 1).connects == before.connects)
            usleep(1000);
        atomic_fetch_add(&a->m->broken, 1);
    }
    return NULL;
}

/* Both ends send, add, signal, put and get without a pause while their link breaks. */
static void mill(weft_node *w, void *arg)
{
    struct mill *m = arg;
    uint32_t me = weft_rank(w), peer = 1 - me;
    weft_gaddr mine;
    pthread_t thread;
    struct received got = {0};
    struct {
        weft_node *w;
        struct mill *m;
    } a = {w, m};
    OK(weft_handle(w, 1, in_order, &got));
    OK(weft_alloc(w, 2 << 20, &mine));
    uint64_t *words = weft_ptr(w, mine, 64), n = 0, over = 0;
    memset(words, 0, 64);
    uint8_t *bulk = malloc(BULK), *back = malloc(BULK), payload[3000];
    CHECK(bulk && back);
    meet(&m->stage.here, 2);
    if (me == 0)
        CHECK(pthread_create(&thread, NULL, breaker, &a) == 0);
    /* Until the link has broken often enough. Then node 0 chooses a later message as the last one, and both nodes end with it. */
    for (; (over = atomic_load(&m->over)) == 0 || n < over; n++) {
        size_t len = n % 3 == 0 ? 3000 : n % 3 == 1 ? 0 : 120;
        for (size_t i = 0; i < len; i++)
            payload[i] = (uint8_t)(n + i);
        OK(weft_send(w, peer, 1, &n, sizeof n, payload, len, NULL));
        uint64_t old = 0;
        OK(weft_fetch_add_blocking(w, on_node(mine, peer), 1, &old));
        CHECK(old == n);
        memset(payload, (int)n, 64);
        OK(weft_put_signal(w, on_node(mine, peer) + 64, payload, 64, on_node(mine, peer) + 8, 1, NULL));
        OK(weft_flush(w, peer, WEFT_TIMEOUT_DEFAULT)); /* `payload` may be changed again */
        if (n % 8 == 0) {
            size_t size = n % 16 ? BULK : 5000, at = 4096 + (n % 64) * 1000;
            for (size_t i = 0; i < size; i++)
                bulk[i] = (uint8_t)(n + i * 7);
            OK(weft_put(w, on_node(mine, peer) + at, bulk, size, NULL));
            OK(weft_fence(w, peer));
            OK(weft_get_blocking(w, back, on_node(mine, peer) + at, size));
            CHECK(memcmp(bulk, back, size) == 0);
        }
        if (me == 0 && over == 0 && atomic_load(&m->broken) == TIMES)
            atomic_store(&m->over, (uint32_t)(n > atomic_load(&m->came[1]) ? n : atomic_load(&m->came[1])) + MESSAGES);
        atomic_store(&m->came[me], (uint32_t)n);
    }
    int64_t end = now_ns() + 40 * WEFT_SECOND;
    while (__atomic_load_n(&got.next, __ATOMIC_ACQUIRE) < over && now_ns() < end)
        weft_progress(w);
    OK(weft_flush(w, peer, WEFT_TIMEOUT_DEFAULT));
    meet(&m->stage.there, 2);
    CHECK(__atomic_load_n(&got.next, __ATOMIC_ACQUIRE) == over && __atomic_load_n(&got.wrong, __ATOMIC_ACQUIRE) == 0);
    CHECK(__atomic_load_n(&words[0], __ATOMIC_ACQUIRE) == over && __atomic_load_n(&words[1], __ATOMIC_ACQUIRE) == over);
    weft_link_stats s = stats(w, peer);
    CHECK(s.breaks >= TIMES && s.connects > TIMES && weft_alive(w, peer) && weft_epoch(w) == 1);
    if (me == 0)
        pthread_join(thread, NULL);
    meet(&m->stage.done, 2);
    free(bulk);
    free(back);
}

static void run_mill(const char *const *how, const char *const *undo)
{
    struct mill *m = shared_words(4096);
    m->how = how;
    m->undo = undo;
    int failed = nodes_failed_with(2, mill, m, (const char *const[]){"WEFT_LOG=error", "WEFT_RECONNECT=40s", NULL});
    softverbs("fault clear");
    assert_int_equal(failed, 0);
}

static void test_lost_requests(void **state)
{
    (void)state;
    run_mill((const char *const[]){"fault add drop --host 0", "fault add drop --host 1"},
             (const char *const[]){"fault clear", "fault clear"});
}

static void test_cable(void **state)
{
    (void)state;
    run_mill((const char *const[]){"fault pull 0:sv0", "fault pull 1:sv0"}, (const char *const[]){"fault plug 0:sv0", "fault plug 1:sv0"});
}

/* --- the peer's device refuses a request: it fails, and the requests behind it are executed --- */

static void refusal(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr mine;
    OK(weft_alloc(w, 1 << 20, &mine));
    uint64_t *words = weft_ptr(w, mine, 64), v = 5, old = 0;
    memset(words, 0, 64);
    meet(&stage->here, 2);
    if (weft_rank(w) == 0) {
        struct rc_link *l = w->links[1].impl;
        weft_op op;
        uint8_t *large = weft_ptr(w, mine, 1 << 20);
        OK(weft_put_blocking(w, on_node(mine, 1), &v, sizeof v));
        for (int i = 0; i < 2; i++) {
            uint32_t right = l->peer_keys[0];
            l->peer_keys[0] ^= 0x5a5a5a; /* no other thread posts requests */
            OK(weft_put(w, on_node(mine, 1) + 4096, large, 4096, i ? NULL : &op));
            l->peer_keys[0] = right;
            for (int k = 0; k < 50; k++)
                OK(weft_fetch_add(w, on_node(mine, 1) + 8, 1, NULL, NULL));
            OK(weft_put(w, on_node(mine, 1) + 16, &v, sizeof v, NULL));
            if (i == 0) {
                CHECK(weft_wait(w, &op, WEFT_TIMEOUT_DEFAULT) == -ECONNABORTED);
                OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT));
            } else {
                CHECK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT) ==
                      -ECONNABORTED); /* the put had no op, so the flush reports its failure, once */
                OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT));
            }
        }
        OK(weft_get_blocking(w, &old, on_node(mine, 1) + 8, sizeof old));
        CHECK(old == 100);
        OK(weft_get_blocking(w, &old, on_node(mine, 1) + 16, sizeof old));
        CHECK(old == 5 && weft_alive(w, 1) && stats(w, 1).breaks >= 2);
        atomic_store(&stage->done, 1);
    }
    wait_for(&stage->done, 1);
}

static void test_refusal(void **state)
{
    (void)state;
    static const char *const settings[] = {"WEFT_LOG=error", "WEFT_RECONNECT=40s", NULL};
    assert_int_equal(nodes_failed_with(2, refusal, shared_words(4096), settings), 0);
}

/* --- a link that does not recover, or must not (WEFT_RECONNECT=0): its peer counts as dead, and the error says why --- */

static void gives_up(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr mine;
    OK(weft_alloc(w, 4096, &mine));
    meet(&stage->here, 3);
    uint64_t v = 1;
    if (weft_rank(w) == 0) {
        OK(weft_put_blocking(w, on_node(mine, 1), &v, sizeof v));
        OK(weft_put_blocking(w, on_node(mine, 2), &v, sizeof v));
        const char *expected = getenv("EXPECT");
        CHECK(expected);
        softverbs("fault pull 1:sv0");
        CHECK(weft_put_blocking(w, on_node(mine, 1), &v, sizeof v) == -ECONNRESET);
        CHECK(strstr(weft_error(), "node 1") && strstr(weft_error(), expected));
        CHECK(!weft_alive(w, 1) && weft_alive(w, 2));
        OK(weft_put_blocking(w, on_node(mine, 2), &v, sizeof v));
        atomic_store(&stage->done, 1);
    }
    wait_for(&stage->done, 1);
}

static void test_gives_up(void **state)
{
    (void)state;
    /* With WEFT_RECONNECT=0 the device gives up when the liveness time is over. */
    static const char *const how[2][5] = {{"WEFT_LOG=error", "WEFT_RECONNECT=0", "WEFT_LIVENESS=500ms", "EXPECT=failed", NULL},
                                          {"WEFT_LOG=error", "WEFT_RECONNECT=1s", "EXPECT=WEFT_RECONNECT", NULL}};
    for (int i = 0; i < 2; i++) {
        int failed = nodes_failed_with(3, gives_up, shared_words(4096), how[i]);
        softverbs("fault plug 1:sv0");
        assert_int_equal(failed, 0);
    }
}

/* --- a device that neither completes a request nor fails it --- */

static void standstill(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr mine;
    weft_link_stats stats;
    static _Atomic uint32_t came;
    OK(weft_handle(w, 1, count_message, (void *)&came));
    OK(weft_alloc(w, 4096, &mine));
    meet(&stage->here, 2);
    if (weft_rank(w) == 0) {
        uint64_t v = 1, back = 0;
        OK(weft_put_blocking(w, on_node(mine, 1), &v, sizeof v));
        softverbs("fault add withhold --time 100s --host 0 --count 1");
        v = 2;
        OK(weft_put_blocking(w, on_node(mine, 1), &v, sizeof v));
        OK(weft_get_blocking(w, &back, on_node(mine, 1), sizeof back));
        CHECK(back == 2);
        OK(weft_link_stat(w, 1, &stats, sizeof stats));
        CHECK(stats.breaks == 1 && stats.connects == 2);
        softverbs("fault add withhold --time 100s --host 0 --count 1");
        OK(weft_get_blocking(w, &back, on_node(mine, 1), sizeof back));
        OK(weft_link_stat(w, 1, &stats, sizeof stats));
        CHECK(stats.breaks == 2);
        /* The oldest request is a message, which requested no completion and was received. */
        softverbs("fault add withhold --time 100s --host 0 --count 1");
        OK(weft_send(w, 1, 1, NULL, 0, NULL, 0, NULL));
        OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT));
        OK(weft_link_stat(w, 1, &stats, sizeof stats));
        CHECK(stats.breaks == 3);
        /* No later request follows whose completion would show that the device still works. */
        softverbs("fault add withhold --time 100s --host 0 --count 1");
        OK(weft_send(w, 1, 1, NULL, 0, NULL, 0, NULL));
        for (int64_t end = now_ns() + 30 * WEFT_SECOND; stats.breaks == 3 && now_ns() < end; usleep(1000))
            OK(weft_link_stat(w, 1, &stats, sizeof stats));
        CHECK(stats.breaks == 4);
        OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT));
        atomic_store(&stage->done, 1);
    }
    wait_for(&stage->done, 1);
    if (weft_rank(w) == 1) {
        wait_for(&came, 2); /* the messages have arrived; their handler may still be running */
        CHECK(came == 2);
    }
}

static void test_standstill(void **state)
{
    (void)state;
    static const char *const settings[] = {"WEFT_LOG=error", "WEFT_LIVENESS=300ms", NULL};
    int failed = nodes_failed_with(2, standstill, shared_words(4096), settings);
    softverbs("fault clear");
    assert_int_equal(failed, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_neighbours), cmocka_unit_test(test_alone_at_it), cmocka_unit_test(test_busy),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_silent),      cmocka_unit_test(test_lost_requests),
        cmocka_unit_test(test_cable),      cmocka_unit_test(test_refusal),     cmocka_unit_test(test_gives_up),
        cmocka_unit_test(test_standstill),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
