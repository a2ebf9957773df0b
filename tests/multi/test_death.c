/* SPDX-License-Identifier: MIT
 *
 * kill -9 of a node in the middle of anything: every survivor's operation to it ends with -ECONNRESET, nobody hangs,
 * the others go on. Also a node that writes nonsense into what it shares.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "cluster_test.h"
#include "fabric/fabric.h"
#include "fabric/ring.h"

#define VICTIM 1u

enum deed { PUTTING, GETTING, ADDING, SENDING, WAITING, IN_BARRIER, IN_LOCK, FLUSHING, DEEDS };

struct scene {
    enum deed deed;
    weft_gaddr area;
    _Atomic uint32_t changes;
};

static void on_nothing(weft *w, uint32_t from, const void *header, size_t header_len, const void *payload,
                       size_t payload_len, void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len, (void)arg;
}

static void on_change(weft *w, uint64_t epoch, uint32_t node, bool died, void *arg)
{
    struct scene *s = arg;
    if (epoch == 2 && node == VICTIM && died && !weft_alive(w, node))
        s->changes++;
}

static int do_deed(weft *w, struct scene *s, uint8_t *buffer)
{
    weft_gaddr there = on_node(s->area, VICTIM);
    bool inherited;
    int rc;
    switch (s->deed) {
    case PUTTING:
        return weft_put_now(w, there + 64, buffer, 100000);
    case GETTING:
        return weft_get_now(w, buffer, there + 64, 100000);
    case ADDING:
        return weft_fetch_add_now(w, there, 1, NULL);
    case SENDING:
        return weft_send(w, VICTIM, 1, NULL, 0, buffer, 3000, NULL);
    case WAITING: /* for a counter of the victim's */
        return weft_counter_wait(w, there + 8, 1, 10 * WEFT_SECOND);
    case IN_BARRIER:
        return weft_barrier(w, 10 * WEFT_SECOND);
    case IN_LOCK: /* whose home is the victim */
        rc = weft_lock(w, there + 16, 10 * WEFT_SECOND, &inherited);
        return rc ? rc : weft_unlock(w, there + 16);
    case FLUSHING:
        rc = weft_put(w, there + 64, buffer, 64, NULL);
        return rc ? rc : weft_flush(w, VICTIM, 10 * WEFT_SECOND);
    default:
        return 0;
    }
}

static void killed(weft *w, void *arg)
{
    struct scene s = {.deed = *(enum deed *)arg};
    uint32_t n = weft_size(w);
    OK(weft_handle(w, 1, on_nothing, NULL));
    OK(weft_on_change(w, on_change, &s));
    s.area = symmetric_alloc(w, 1u << 20);
    uint8_t *buffer = malloc(100000);
    CHECK(buffer);
    memset(buffer, 1, 100000);
    if (weft_rank(w) == VICTIM) {
        int64_t end = now_ns() + 100 * WEFT_MS;
        while (now_ns() < end) /* in the middle of its own doing, too */
            (void)weft_put_now(w, on_node(s.area, 0) + 64, buffer, 100000);
        raise(SIGKILL);
    }
    int rc;
    int64_t started, longest = 0;
    do {
        started = now_ns();
        rc = do_deed(w, &s, buffer);
        if (now_ns() - started > longest)
            longest = now_ns() - started;
        if (s.deed == IN_BARRIER && rc == 0)
            CHECK(weft_rank(w) != VICTIM);
    } while (rc == 0);
    CHECK(rc == -ECONNRESET);
    CHECK(strstr(weft_error(), "node") != NULL);
    CHECK(longest < 5 * WEFT_SECOND); /* far from the 10 s deadline: it was told */
    CHECK(!weft_alive(w, VICTIM) || s.deed == IN_BARRIER);
    /* It stays that way, and the others go on. */
    int64_t end = now_ns() + 5 * WEFT_SECOND;
    while (weft_alive(w, VICTIM) && now_ns() < end)
        usleep(100);
    CHECK(weft_put_now(w, on_node(s.area, VICTIM) + 64, buffer, 8) == -ECONNRESET);
    CHECK(weft_get_now(w, buffer, on_node(s.area, VICTIM) + 64, 8) == -ECONNRESET);
    CHECK(weft_send(w, VICTIM, 1, NULL, 0, NULL, 0, NULL) == -ECONNRESET);
    CHECK(weft_flush(w, VICTIM, WEFT_DEFAULT) == -ECONNRESET);
    while (s.changes == 0 && now_ns() < end)
        usleep(100);
    CHECK(s.changes == 1 && weft_epoch(w) == 2 && weft_alive_count(w) == n - 1);
    do
        rc = weft_barrier(w, 10 * WEFT_SECOND);
    while (rc == -ECONNRESET);
    OK(rc);
    uint32_t to = weft_rank(w) == 0 ? 2 : 0;
    OK(weft_fetch_add_now(w, on_node(s.area, to) + 24, 1, NULL));
    OK(weft_barrier(w, 10 * WEFT_SECOND));
    free(buffer);
}

static void test_killed(void **state)
{
    (void)state;
    for (enum deed d = 0; d < DEEDS; d++) {
        int status[NODES_MAX];
        nodes_run(4, killed, &d, (const char *const[]){"WEFT_LOG=error", NULL}, status);
        for (uint32_t i = 0; i < 4; i++) {
            if (i == VICTIM) {
                assert_true(WIFSIGNALED(status[i]) && WTERMSIG(status[i]) == SIGKILL);
            } else if (status[i] != 0) {
                fail_msg("deed %d: survivor %u ended with status %#x", (int)d, i, (unsigned)status[i]);
            }
        }
    }
}

/* Half of the nodes die at once; the rest barrier and work on. */
static void half_die(weft *w, void *arg)
{
    (void)arg;
    weft_gaddr area = symmetric_alloc(w, 64);
    if (weft_rank(w) % 2 == 1) {
        usleep(20000 + 500 * weft_rank(w));
        raise(SIGKILL);
    }
    /* Each may get as many errors as it noticed deaths apart; once it has seen all, those left meet again. */
    int rc;
    while (weft_alive_count(w) > 4) {
        rc = weft_barrier(w, 10 * WEFT_SECOND);
        CHECK(rc == 0 || rc == -ECONNRESET);
    }
    for (int round = 0; round < 50; round++) {
        do
            rc = weft_barrier(w, 10 * WEFT_SECOND);
        while (rc == -ECONNRESET && round == 0);
        OK(rc);
    }
    OK(weft_fetch_add_now(w, on_node(area, 0), 1, NULL));
    OK(weft_barrier(w, 10 * WEFT_SECOND));
    uint64_t sum;
    OK(weft_get_now(w, &sum, on_node(area, 0), 8));
    CHECK(sum == 4);
    OK(weft_barrier(w, 10 * WEFT_SECOND));
}

static void test_half_die(void **state)
{
    (void)state;
    int status[NODES_MAX];
    nodes_run(8, half_die, NULL, (const char *const[]){"WEFT_LOG=error", NULL}, status);
    for (int i = 0; i < 8; i += 2)
        assert_int_equal(status[i], 0);
}

/* A death is noticed while messages come without a pause. */
static void on_flood(weft *w, uint32_t from, const void *header, size_t header_len, const void *payload,
                     size_t payload_len, void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len, (void)arg;
    usleep(100);
}

static void flood(weft *w, void *arg)
{
    (void)arg;
    OK(weft_handle(w, 1, on_flood, NULL));
    OK(weft_barrier(w, WEFT_DEFAULT));
    if (weft_rank(w) == 2) {
        usleep(100000);
        raise(SIGKILL);
    }
    int64_t end = now_ns() + 8 * WEFT_SECOND;
    while (weft_rank(w) == 1 && weft_alive(w, 0) && now_ns() < end)
        (void)weft_send(w, 0, 1, NULL, 0, NULL, 0, NULL); /* until node 0 has seen it, and leaves */
    while (weft_rank(w) == 0 && weft_alive(w, 2) && now_ns() < end)
        usleep(1000);
    CHECK(now_ns() < end);
}

static void test_flood(void **state)
{
    (void)state;
    int status[NODES_MAX];
    nodes_run(3, flood, NULL, (const char *const[]){"WEFT_LOG=error", "WEFT_DEADLINE=1s", NULL}, status);
    assert_int_equal(status[0], 0);
    assert_int_equal(status[1], 0);
}

/* A stopped node is not dead: what needs no help from it goes on, and it is there again when it continues. */
static void stopped(weft *w, void *arg)
{
    _Atomic int *pid = arg;
    weft_gaddr area = symmetric_alloc(w, 4096);
    if (weft_rank(w) == 1) {
        *pid = getpid();
        OK(weft_wait_until(w, on_node(area, 1), WEFT_EQ, 1, NULL, 20 * WEFT_SECOND));
    } else {
        while (!*pid)
            usleep(100);
        kill(*pid, SIGSTOP);
        uint64_t v = 7, back = 0;
        OK(weft_put_now(w, on_node(area, 1) + 64, &v, 8));
        OK(weft_get_now(w, &back, on_node(area, 1) + 64, 8));
        CHECK(back == 7 && weft_alive(w, 1));
        CHECK(weft_barrier(w, 50 * WEFT_MS) == -ETIMEDOUT);
        kill(*pid, SIGCONT);
        OK(weft_put_signal(w, 0, NULL, 0, on_node(area, 1), 1, NULL));
        usleep(20000);
    }
}

static void test_stopped(void **state)
{
    (void)state;
    _Atomic int *pid = shared_words(4096);
    int status[NODES_MAX];
    nodes_run(2, stopped, (void *)pid, NULL, status);
    assert_int_equal(status[0], 0);
    assert_int_equal(status[1], 0);
}

/* A node that scribbles over the rings it shares is given up; the others and the scribbled-on node live. */
static void scribbled(weft *w, void *arg)
{
    const int how = *(int *)arg;
    OK(weft_handle(w, 1, on_nothing, NULL));
    weft_gaddr area = symmetric_alloc(w, 64);
    (void)area;
    if (weft_rank(w) == VICTIM) {
        /* The ring from us to node 0 is in node 0's control region, which starts with magic and bell. */
        struct ring *ring = fab_shm_ring(w, 0);
        CHECK(ring);
        uint64_t seed = (uint64_t)how;
        if (how == 0) {
            ring->cells[0].word = UINT64_MAX;
            for (unsigned i = 0; i < RING_CELLS; i++)
                __atomic_store_n(&ring->cells[i].word, random_next(&seed) | 1, __ATOMIC_RELEASE);
        } else { /* what the other side reads of our inbound ring: its head */
            struct ring *inbound = fab_shm_inbound(w, 0);
            atomic_store(&inbound->head, UINT64_C(1) << 60);
        }
        (void)weft_send(w, 0, 1, NULL, 0, NULL, 0, NULL);
        usleep(300000);
        _exit(7);
    }
    uint8_t payload[WEFT_PAYLOAD_MAX] = {0};
    int rc = 0;
    int64_t end = now_ns() + 10 * WEFT_SECOND;
    while (rc == 0 && now_ns() < end)
        rc = weft_send(w, VICTIM, 1, NULL, 0, payload, sizeof payload, NULL);
    CHECK(rc == -ECONNRESET);
    do
        rc = weft_barrier(w, 10 * WEFT_SECOND);
    while (rc == -ECONNRESET);
    OK(rc);
    OK(weft_send(w, weft_rank(w) == 0 ? 2 : 0, 1, NULL, 0, payload, sizeof payload, NULL));
    OK(weft_barrier(w, 10 * WEFT_SECOND));
}

static void test_scribbled(void **state)
{
    (void)state;
    for (int how = 0; how < 2; how++) {
        int status[NODES_MAX];
        nodes_run(3, scribbled, &how, (const char *const[]){"WEFT_LOG=error", NULL}, status);
        assert_int_equal(status[0], 0);
        assert_int_equal(status[2], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_half_die),
        cmocka_unit_test(test_flood),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_scribbled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
