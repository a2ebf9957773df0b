/* SPDX-License-Identifier: MIT
 *
 * A node is killed (SIGKILL) while any operation is under way: every survivor's operation to it ends with -ECONNRESET, no node hangs, and
 * the others go on. Also a node that overwrites the memory that it shares.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "cluster_test.h"
#include "fabric/fabric.h"
#include "fabric/shm/shm.h"

#define VICTIM 1u

enum deed { PUTTING, GETTING, ADDING, SENDING, WAITING, IN_BARRIER, IN_LOCK, FLUSHING, DEEDS };

/* Much longer than anything here takes, also on a machine that gives a process no processor for seconds, but shorter than the time after
   which nodes_run() considers a node hung. */
#define LONG patience_ns(40)

/* Shared by all nodes. */
struct stage {
    enum deed deed;
    _Atomic uint32_t here, seen;
    _Atomic int pid;
};

struct scene {
    enum deed deed;
    weft_gaddr area;
    _Atomic uint32_t changes;
};

static void on_nothing(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                       void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len, (void)arg;
}

static void on_change(weft_node *w, uint64_t epoch, uint32_t node, bool died, void *arg)
{
    struct scene *s = arg;
    if (epoch == 2 && node == VICTIM && died && !weft_alive(w, node))
        s->changes++;
}

static int do_deed(weft_node *w, struct scene *s, uint8_t *buffer)
{
    weft_gaddr there = on_node(s->area, VICTIM);
    bool inherited;
    int rc;
    switch (s->deed) {
    case PUTTING: return weft_put_blocking(w, there + 64, buffer, 100000);
    case GETTING: return weft_get_blocking(w, buffer, there + 64, 100000);
    case ADDING: return weft_fetch_add_blocking(w, there, 1, NULL);
    case SENDING: return weft_send(w, VICTIM, 1, NULL, 0, buffer, 3000, NULL);
    case WAITING: /* waits for a counter of the victim */ return weft_counter_wait(w, there + 8, 1, LONG);
    case IN_BARRIER: return weft_barrier(w, LONG);
    case IN_LOCK: /* waits for a lock whose home is the victim */
        rc = weft_lock(w, there + 16, LONG, &inherited);
        return rc ? rc : weft_unlock(w, there + 16);
    case FLUSHING: rc = weft_put(w, there + 64, buffer, 64, NULL); return rc ? rc : weft_flush(w, VICTIM, LONG);
    default: return 0;
    }
}

static void killed(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    struct scene s = {.deed = stage->deed};
    uint32_t n = weft_size(w);
    OK(weft_handle(w, 1, on_nothing, NULL));
    OK(weft_on_change(w, on_change, &s));
    s.area = symmetric_alloc(w, 1u << 20);
    uint8_t *buffer = malloc(100000);
    CHECK(buffer);
    memset(buffer, 1, 100000);
    meet(&stage->here, n);
    if (weft_rank(w) == VICTIM) {
        int64_t end = now_ns() + 100 * WEFT_MS;
        while (now_ns() < end) /* the victim also works while it is killed */
            (void)weft_put_blocking(w, on_node(s.area, 0) + 64, buffer, 100000);
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
    CHECK(longest < LONG - 10 * WEFT_SECOND); /* much less than the deadline: the operation ended because of the death */
    CHECK(!weft_alive(w, VICTIM) || s.deed == IN_BARRIER);
    /* Later operations fail in the same way, and the other nodes continue. */
    int64_t end = now_ns() + LONG;
    while (weft_alive(w, VICTIM) && now_ns() < end)
        usleep(100);
    CHECK(weft_put_blocking(w, on_node(s.area, VICTIM) + 64, buffer, 8) == -ECONNRESET);
    CHECK(weft_get_blocking(w, buffer, on_node(s.area, VICTIM) + 64, 8) == -ECONNRESET);
    CHECK(weft_send(w, VICTIM, 1, NULL, 0, NULL, 0, NULL) == -ECONNRESET);
    CHECK(weft_flush(w, VICTIM, WEFT_TIMEOUT_DEFAULT) == -ECONNRESET);
    while (s.changes == 0 && now_ns() < end)
        usleep(100);
    CHECK(s.changes == 1 && weft_epoch(w) == 2 && weft_alive_count(w) == n - 1);
    do
        rc = weft_barrier(w, LONG);
    while (rc == -ECONNRESET);
    OK(rc);
    uint32_t to = weft_rank(w) == 0 ? 2 : 0;
    OK(weft_fetch_add_blocking(w, on_node(s.area, to) + 24, 1, NULL));
    OK(weft_barrier(w, LONG));
    free(buffer);
}

static void test_killed(void **state)
{
    (void)state;
    for (enum deed d = 0; d < DEEDS; d++) {
        int status[NODES_MAX];
        struct stage *stage = shared_words(4096);
        stage->deed = d;
        nodes_run(4, killed, stage, (const char *const[]){"WEFT_LOG=error", NULL}, status);
        for (uint32_t i = 0; i < 4; i++) {
            if (i == VICTIM) {
                assert_true(WIFSIGNALED(status[i]) && WTERMSIG(status[i]) == SIGKILL);
            } else if (status[i] != 0) {
                fail_msg("deed %d: survivor %u ended with status %#x", (int)d, i, (unsigned)status[i]);
            }
        }
    }
}

/* Half of the nodes die at once; the others continue with barriers and operations. */
static void half_die(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr area = symmetric_alloc(w, 64);
    meet(&stage->here, weft_size(w));
    if (weft_rank(w) % 2 == 1) {
        usleep(20000 + 500 * weft_rank(w)); /* by now the others are usually in barriers */
        raise(SIGKILL);
    }
    /* Each node may get an error for each death that it notices separately. When it has seen all deaths, the nodes that are left meet
       again. */
    int rc;
    while (weft_alive_count(w) > 4) {
        rc = weft_barrier(w, LONG);
        CHECK(rc == 0 || rc == -ECONNRESET);
    }
    for (int round = 0; round < 50; round++) {
        do
            rc = weft_barrier(w, LONG);
        while (rc == -ECONNRESET && round == 0);
        OK(rc);
    }
    OK(weft_fetch_add_blocking(w, on_node(area, 0), 1, NULL));
    OK(weft_barrier(w, LONG));
    uint64_t sum;
    OK(weft_get_blocking(w, &sum, on_node(area, 0), 8));
    CHECK(sum == 4);
    OK(weft_barrier(w, LONG));
}

static void test_half_die(void **state)
{
    (void)state;
    int status[NODES_MAX];
    nodes_run(8, half_die, shared_words(4096), (const char *const[]){"WEFT_LOG=error", NULL}, status);
    for (int i = 0; i < 8; i += 2)
        assert_int_equal(status[i], 0);
}

/* A death is noticed even while messages arrive without a pause. */
static void on_flood(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    struct stage *stage = arg;
    stage->seen++;
    usleep(100);
}

static void flood(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    OK(weft_handle(w, 1, on_flood, stage));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    meet(&stage->here, weft_size(w));
    if (weft_rank(w) == 2) {
        wait_for(&stage->seen, 100);
        raise(SIGKILL);
    }
    int64_t end = now_ns() + LONG;
    while (weft_rank(w) == 1 && weft_alive(w, 0) && now_ns() < end)
        (void)weft_send(w, 0, 1, NULL, 0, NULL, 0, NULL); /* until node 0 has noticed the death, and leaves */
    while (weft_rank(w) == 0 && weft_alive(w, 2) && now_ns() < end)
        usleep(1000);
    CHECK(now_ns() < end);
}

static void test_flood(void **state)
{
    (void)state;
    int status[NODES_MAX];
    nodes_run(3, flood, shared_words(4096), (const char *const[]){"WEFT_LOG=error", NULL}, status);
    assert_int_equal(status[0], 0);
    assert_int_equal(status[1], 0);
}

/* A stopped node is not dead. Operations that need no help from it go on, and it takes part again when it continues. Over a device that can
   only send and receive, and over a network, every operation needs its help, and waits for it. */
static void stopped(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr area = symmetric_alloc(w, 4096);
    meet(&stage->here, weft_size(w));
    if (weft_rank(w) == 1) {
        stage->pid = getpid();
        OK(weft_wait_until(w, on_node(area, 1), WEFT_EQ, 1, NULL, LONG));
        stage->seen = 1;
    } else {
        while (!stage->pid)
            usleep(100);
        stop_asleep(stage->pid);
        uint64_t v = 7, back = 0;
        weft_op put, get;
        weft_link_stats s;
        OK(weft_link_stat(w, 1, &s, sizeof s));
        OK(weft_put(w, on_node(area, 1) + 64, &v, 8, &put));
        OK(weft_fence(w, 1));
        OK(weft_get(w, &back, on_node(area, 1) + 64, 8, &get));
        if (strcmp(s.transport, "tb") != 0 && strcmp(s.transport, "ofi") != 0) {
            OK(weft_wait(w, &put, WEFT_TIMEOUT_DEFAULT));
            OK(weft_wait(w, &get, WEFT_TIMEOUT_DEFAULT));
            CHECK(back == 7);
        }
        CHECK(weft_barrier(w, 50 * WEFT_MS) == -ETIMEDOUT);
        CHECK(weft_alive(w, 1));
        kill(stage->pid, SIGCONT);
        OK(weft_wait(w, &put, WEFT_TIMEOUT_DEFAULT));
        OK(weft_wait(w, &get, WEFT_TIMEOUT_DEFAULT));
        CHECK(back == 7);
        OK(weft_put_signal(w, 0, NULL, 0, on_node(area, 1), 1, NULL));
        wait_for(&stage->seen, 1); /* no node leaves before this */
    }
}

static void test_stopped(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, stopped, shared_words(4096)), 0);
}

/* A call starts an operation and waits for it until its time-out. If the operation happens later, it does not touch the caller's memory. */
static void given_up(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    enum { LEN = 100 };
    weft_gaddr area = symmetric_alloc(w, 4096), there = on_node(area, 1) + 128;
    meet(&stage->here, weft_size(w));
    if (weft_rank(w) == 1) {
        stage->pid = getpid();
        OK(weft_wait_until(w, on_node(area, 1), WEFT_EQ, 1, NULL, LONG));
        const uint8_t *bytes = weft_ptr(w, there, LEN);
        for (int i = 0; i < LEN; i++)
            CHECK(bytes[i] == i);
        const uint64_t *word = weft_ptr(w, on_node(area, 1) + 64, 8);
        CHECK(*word == 5);
    } else {
        while (!stage->pid)
            usleep(100);
        uint8_t bytes[LEN], back[LEN];
        uint64_t old = 99;
        weft_op op; /* on transports that connect when a link is first used, the first operation connects */
        OK(weft_put(w, there + 1024, &old, sizeof old, &op));
        OK(weft_wait(w, &op, LONG));
        for (int i = 0; i < LEN; i++)
            bytes[i] = (uint8_t)i;
        memset(back, 0x55, sizeof back);
        stop_asleep(stage->pid); /* operations that need the stopped node's help time out: over shm no operation does, over rc only some */
        const int64_t deadline_ns = w->options.deadline_ns;
        w->options.deadline_ns = 500 * WEFT_MS; /* for the operations that time out; all others may take as long as before */
        int added = weft_fetch_add_blocking(w, on_node(area, 1) + 64, 5, &old);
        int put = weft_put_blocking(w, there, bytes, LEN), got = weft_get_blocking(w, back, there, LEN);
        w->options.deadline_ns = deadline_ns;
        kill(stage->pid, SIGCONT);
        memset(bytes, 0xEE, sizeof bytes);
        OK(weft_put_signal(w, 0, NULL, 0, on_node(area, 1), 1, NULL));
        OK(weft_flush(w, 1, LONG));
        CHECK(added == 0 || added == -ETIMEDOUT);
        CHECK(put == 0 || put == -ETIMEDOUT);
        CHECK(got == 0 || got == -ETIMEDOUT);
        CHECK(old == (added ? 99 : 0));
        for (int i = 0; i < LEN; i++)
            CHECK(got ? back[i] == 0x55 : put || back[i] == i);
    }
    meet(&stage->seen, weft_size(w)); /* no node leaves before this */
}

static void test_given_up(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, given_up, shared_words(4096)), 0);
}

/* A node overwrites the rings that it shares. It is given up; the other nodes live, and so does the node whose ring was overwritten. */
struct scribble {
    int how;
    _Atomic uint32_t here, given_up;
};

static void scribbled(weft_node *w, void *arg)
{
    struct scribble *scribble = arg;
    const int how = scribble->how;
    OK(weft_handle(w, 1, on_nothing, NULL));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    meet(&scribble->here, weft_size(w));
    if (weft_rank(w) == VICTIM) {
        /* The ring from us to node 0 is in node 0's control region, which starts with magic and bell. */
        struct ring *ring = shm_ring_to(w, 0);
        CHECK(ring);
        uint64_t seed = (uint64_t)how;
        if (how == 0) {
            ring->cells[0].word = UINT64_MAX;
            for (unsigned i = 0; i < RING_CELLS; i++)
                __atomic_store_n(&ring->cells[i].word, random_next(&seed) | 1, __ATOMIC_RELEASE);
        } else { /* the part of our inbound ring that the other side reads: its head */
            struct ring *inbound = shm_ring_from(w, 0);
            while (!scribble->given_up) { /* repeatedly, because this node's own reader corrects it */
                atomic_store(&inbound->head, UINT64_C(1) << 60);
                sched_yield();
            }
        }
        (void)weft_send(w, 0, 1, NULL, 0, NULL, 0, NULL);
        wait_for(&scribble->given_up,
                 1); /* node 0 treats this node as dead because of what it wrote; node 2 does so because this node is gone then */
        _exit(7);
    }
    uint8_t payload[WEFT_PAYLOAD_MAX] = {0};
    int rc = 0;
    int64_t end = now_ns() + LONG;
    while (rc == 0 && now_ns() < end)
        rc = weft_send(w, VICTIM, 1, NULL, 0, payload, sizeof payload, NULL);
    CHECK(rc == -ECONNRESET);
    if (weft_rank(w) == 0)
        scribble->given_up = 1;
    do
        rc = weft_barrier(w, LONG);
    while (rc == -ECONNRESET);
    OK(rc);
    OK(weft_send(w, weft_rank(w) == 0 ? 2 : 0, 1, NULL, 0, payload, sizeof payload, NULL));
    OK(weft_barrier(w, LONG));
}

static void test_scribbled(void **state)
{
    const char *transport = getenv("WEFT_TRANSPORT");
    if (transport && strcmp(transport, "shm") != 0)
        skip(); /* this test writes into rings of shared memory; tests/multi/test_rc.c does the same for frames */
    (void)state;
    for (int how = 0; how < 2; how++) {
        int status[NODES_MAX];
        struct scribble *scribble = shared_words(4096);
        scribble->how = how;
        nodes_run(3, scribbled, scribble, (const char *const[]){"WEFT_LOG=error", NULL}, status);
        assert_int_equal(status[0], 0);
        assert_int_equal(status[2], 0);
    }
}

/* --- a node leaves while a peer does not read and the socket to it is full: nevertheless the node has left, and does not count as dead ---
 */

struct leaving {
    _Atomic uint32_t here, seen;
    _Atomic int pid;
    _Atomic bool died;
};

static void on_leaving(weft_node *w, uint64_t epoch, uint32_t node, bool died, void *arg)
{
    struct leaving *s = arg;
    (void)w, (void)epoch;
    if (node == 0) {
        s->died = died;
        s->seen++;
    }
}

/* Runs in a separate process, because node 0 may have ended by then. */
static void resume_later(pid_t pid)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0)
        return;
    usleep(200000); /* by then node 0 is closing */
    kill(pid, SIGCONT);
    _exit(0);
}

static void leaves_behind(weft_node *w, void *arg)
{
    static uint8_t words[4096];
    struct leaving *s = arg;
    memset(words, 'w', sizeof words);
    if (weft_rank(w) == 1) {
        s->pid = getpid();
        OK(weft_on_change(w, on_leaving, s));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    meet(&s->here, 2);
    if (weft_rank(w) == 0) {
        stop_asleep(s->pid);
        while (send(w->links[1].side_fd, words, sizeof words, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
            ;
        while (send(w->links[1].side_fd, words, 1, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
            ;
        resume_later(s->pid);
        return;
    }
    wait_for(&s->seen, 1);
    CHECK(!s->died);
}

static void test_leaves_behind(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, leaves_behind, shared_words(4096), (const char *const[]){"WEFT_LOG=error", NULL}), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),        cmocka_unit_test(test_half_die), cmocka_unit_test(test_flood),
        cmocka_unit_test(test_stopped),       cmocka_unit_test(test_given_up), cmocka_unit_test(test_scribbled),
        cmocka_unit_test(test_leaves_behind),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
