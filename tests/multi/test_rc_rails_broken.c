/* SPDX-License-Identifier: MIT
 *
 * Several devices to one peer, when some do not work: a device loses the connection to the peer, does nothing, or cannot be used yet, and
 * no operation fails; the peer dies, is stopped, or sends what is invalid. over_softverbs.py starts this with the topology "rails:4:3"; an
 * argument names the tests to run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "rc_rails_test.h"

/* --- a device loses the connection to the peer while it is used, for a while or for good --- */

#define TIMES 3

struct breaker {
    weft_node *w;
    _Atomic uint32_t rounds, over;
};

static void wait_rounds(struct breaker *b, uint32_t more)
{
    wait_for(&b->rounds, atomic_load(&b->rounds) + more);
}

/* A thread of node 0 pulls a device's cable and plugs it in again, while both nodes transfer data. */
static void *pull_and_plug(void *arg)
{
    struct breaker *b = arg;
    char words[64];
    const char *device = getenv("PULL");
    CHECK(device);
    bool first = strstr(device, ":sv0") != NULL;
    for (int i = 0; i < TIMES; i++) {
        wait_rounds(b, 3);
        weft_link_stats was = stats(b->w, 1), is;
        snprintf(words, sizeof words, "fault pull %s", device);
        softverbs(words);
        while (is = stats(b->w, 1), first ? is.breaks == was.breaks : is.rail_breaks == was.rail_breaks)
            usleep(1000);
        if (!first) { /* transfers go on without this rail */
            wait_rounds(b, 3);
            CHECK(stats(b->w, 1).rails == 2);
        }
        snprintf(words, sizeof words, "fault plug %s", device);
        softverbs(words);
        while (stats(b->w, 1).rails != 3) /* weft tries by itself to make the rail again */
            usleep(1000);
        was = stats(b->w, 1);
        wait_rounds(b, 3);
        is = stats(b->w, 1);
        CHECK(is.rail_bytes[1] > was.rail_bytes[1] && is.rail_bytes[2] > was.rail_bytes[2]);
    }
    atomic_store(&b->over, 1);
    return NULL;
}

/* Both nodes write without a pause, and check the received bytes at each signal, until the rails have broken often enough. */
static void breaks(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    uint32_t me = weft_rank(w), peer = 1 - me;
    struct breaker breaker = {.w = w};
    weft_gaddr all, source;
    pthread_t thread;
    OK(weft_alloc(w, 2 * LARGE, &all));
    OK(weft_alloc(w, 4 * LARGE, &source));
    uint64_t *word = weft_ptr(w, all, 8);
    uint8_t *data = weft_ptr(w, all + 4096, LARGE), *from = weft_ptr(w, source, 4 * LARGE);
    memset(word, 0, 8);
    fill(from + 2 * LARGE, LARGE, 7777 + me);
    meet(&stage->here, 2);
    wait_for_rails(w, peer, source + 3 * LARGE, 3);
    meet(&stage->here, 4);
    if (me == 0)
        CHECK(pthread_create(&thread, NULL, pull_and_plug, &breaker) == 0);
    for (uint64_t n = 1; !atomic_load(&stage->turn); n++) {
        fill(from, LARGE, n);
        OK(weft_put_signal(w, on_node(all, peer) + 4096, from, LARGE, on_node(all, peer), 1, NULL));
        OK(weft_get(w, from + LARGE, on_node(source, peer) + 2 * LARGE, LARGE, NULL));
        OK(weft_put(w, on_node(source, peer) + 3 * LARGE, from, LARGE, NULL));
        OK(weft_flush(w, peer, WEFT_TIMEOUT_DEFAULT));
        CHECK(filled(from + LARGE, LARGE, 7777 + peer));
        int64_t end = now_ns() + patience_ns(60);
        while (word_at(word) < n && now_ns() < end)
            weft_progress(w);
        CHECK(word_at(word) == n && filled(data, LARGE, n));
        meet(&stage->there, (uint32_t)(2 * (2 * n - 1))); /* both have flushed */
        CHECK(filled(from + 3 * LARGE, LARGE, n));
        wipe(data, LARGE);
        wipe(from + LARGE, LARGE);
        wipe(from + 3 * LARGE, LARGE);
        if (me == 0 && atomic_load(&breaker.over))
            atomic_store(&stage->turn, 1);
        meet(&stage->there, (uint32_t)(4 * n));
        atomic_store(&breaker.rounds, (uint32_t)n);
    }
    if (me == 0)
        pthread_join(thread, NULL);
    CHECK(weft_alive(w, peer) && weft_epoch(w) == 1);
    meet(&stage->done, 2);
}

static void test_breaks(void **state)
{
    (void)state;
    static const char *const devices[] = {"PULL=0:sv1", "PULL=1:sv2", "PULL=1:sv0"};
    for (int i = 0; i < 3; i++)
        run(2, breaks, shared_words(4096), (const char *const[]){devices[i], "WEFT_LOG=error", "WEFT_RECONNECT=60s", NULL});
}

/* --- a device neither completes a request nor fails it: its pieces are sent over another --- */

static void standstill(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    uint32_t peer = 1 - weft_rank(w);
    weft_gaddr all;
    OK(weft_alloc(w, 2 * LARGE, &all));
    uint8_t *from = weft_ptr(w, all, LARGE), *back = weft_ptr(w, all + LARGE, LARGE);
    meet(&stage->here, 2);
    wait_for_rails(w, peer, all, 3);
    meet(&stage->there, 2);
    if (weft_rank(w) == 0) {
        uint64_t before = stats(w, peer).rail_breaks;
        fill(from, LARGE, 5);
        softverbs("fault add withhold --device 0:sv1 --time 100s --count 1");
        OK(weft_put_blocking(w, on_node(all, peer), from, LARGE));
        OK(weft_get_blocking(w, back, on_node(all, peer), LARGE));
        CHECK(filled(back, LARGE, 5));
        CHECK(stats(w, peer).rail_breaks == before + 1 && stats(w, peer).breaks == 0);
    }
    meet(&stage->done, 2);
}

static void test_standstill(void **state)
{
    (void)state;
    run(2, standstill, shared_words(4096), (const char *const[]){"WEFT_LOG=error", "WEFT_LIVENESS=300ms", NULL});
}

/* --- a peer that dies --- */

static void dies(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr all;
    OK(weft_alloc(w, 8 * LARGE, &all));
    meet(&stage->here, 2);
    wait_for_rails(w, 1 - weft_rank(w), all, 3);
    meet(&stage->there, 2);
    if (weft_rank(w) == 1) {
        atomic_store(&stage->turn, (uint32_t)getpid());
        for (;;)
            pause();
    }
    softverbs("fault add drop --device 0:sv2");
    weft_op ops[6];
    for (int i = 0; i < 6; i++)
        OK(weft_put(w, on_node(all, 1), weft_ptr(w, all, LARGE), LARGE, &ops[i]));
    wait_for(&stage->turn, 1);
    kill((pid_t)atomic_load(&stage->turn), SIGKILL);
    for (int i = 0; i < 6; i++) {
        int rc = weft_wait(w, &ops[i], WEFT_TIMEOUT_DEFAULT);
        CHECK(rc == -ECONNRESET || rc == 0);
    }
    CHECK(weft_put_blocking(w, on_node(all, 1), weft_ptr(w, all, LARGE), LARGE) == -ECONNRESET);
}

static void test_dies(void **state)
{
    (void)state;
    int status[NODES_MAX];
    nodes_run(2, dies, shared_words(4096), (const char *const[]){"WEFT_LOG=error", NULL}, status);
    softverbs("fault clear");
    assert_int_equal(status[0], 0);
    assert_true(WIFSIGNALED(status[1]) && WTERMSIG(status[1]) == SIGKILL);
}

/* --- a device loses the connection to a stopped peer: pieces move to another rail only after the peer has confirmed that this one ended
 * --- */

static void stops(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr all;
    OK(weft_alloc(w, 16 * LARGE, &all));
    uint8_t *mine = weft_ptr(w, all, 16 * LARGE);
    meet(&stage->here, 2);
    wait_for_rails(w, 1 - weft_rank(w), all, 3);
    meet(&stage->there, 2);
    if (weft_rank(w) == 1) {
        atomic_store(&stage->turn, (uint32_t)getpid());
        wait_for(&stage->done, 1);
        for (uint32_t i = 0; i < 6; i++)
            CHECK(filled(mine + i * LARGE, LARGE, i));
        return;
    }
    weft_op ops[6];
    wait_for(&stage->turn, 1);
    pid_t pid = (pid_t)atomic_load(&stage->turn);
    stop_asleep(pid);
    softverbs("fault pull 0:sv1");
    for (uint32_t i = 0; i < 6; i++) {
        fill(mine + (8 + i) * LARGE, LARGE, i);
        OK(weft_put(w, on_node(all, 1) + i * LARGE, mine + (8 + i) * LARGE, LARGE, &ops[i]));
    }
    while (stats(w, 1).rail_breaks == 0)
        usleep(1000);
    for (int i = 0; i < 6; i++)
        CHECK(weft_test(w, &ops[i]) == -EINPROGRESS);
    kill(pid, SIGCONT);
    for (int i = 0; i < 6; i++)
        OK(weft_wait(w, &ops[i], WEFT_TIMEOUT_DEFAULT));
    CHECK(stats(w, 1).rails == 2);
    softverbs("fault plug 0:sv1");
    wait_for_rails(w, 1, all + 15 * LARGE, 3);
    atomic_store(&stage->done, 1);
}

static void test_stops(void **state)
{
    (void)state;
    run(2, stops, shared_words(4096), (const char *const[]){"WEFT_LOG=error", "WEFT_RECONNECT=60s", NULL});
}

/* --- a device cannot make a queue pair for a peer: the other rails are used until it can --- */

static void refused(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr all;
    uint32_t me = weft_rank(w), peer = 1 - me;
    OK(weft_alloc(w, 2 * LARGE, &all));
    meet(&stage->here, 2);
    wait_for_rails(w, peer, all, 2);
    OK(weft_put_blocking(w, on_node(all, peer), weft_ptr(w, all, LARGE), LARGE));
    CHECK((stats(w, peer).rail_bytes[1] == 0) != (stats(w, peer).rail_bytes[2] == 0));
    meet(&stage->there, 2);
    if (me == 0)
        softverbs("fault clear");
    wait_for_rails(w, peer, all, 3);
    meet(&stage->done, 2);
}

static void test_refused(void **state)
{
    (void)state;
    softverbs("fault add refuse --verb create_qp --errno ENOMEM --device 1:sv1");
    run(2, refused, shared_words(4096), (const char *const[]){"WEFT_LOG=error", NULL});
}

/* --- neither the answer to an offer nor the refusal finds room in the side connection: the offer is made again --- */

/* The same layout as in rc/tracks.c. */
struct rail_call {
    uint64_t magic;
    uint32_t kind, track, generation, rail, your_rail, reserved;
    struct verbs_address address;
    char text[256];
};
#define RAIL_MAGIC UINT64_C(0x77656674726c3031)

static _Atomic int full_fd = -1; /* the socket that accepts no more bytes */

ssize_t send(int fd, const void *bytes, size_t len, int flags)
{
    if (fd == full_fd) {
        errno = EAGAIN;
        return -1;
    }
    return syscall(SYS_sendto, fd, bytes, len, flags, NULL, 0);
}

struct unheard {
    _Atomic bool due, full;
    uint32_t generation[RC_TRACKS];
};

/* Runs on node 1's progress thread: fills the buffer of the side connection, until an offer has arrived and its answer found no room. */
static int64_t fill_side(weft_node *w, int64_t now, void *arg)
{
    struct unheard *u = arg;
    const struct rc_tracks *tracks = ((struct rc_link *)w->links[0].impl)->tracks;
    struct rail_call over = {
        .magic = RAIL_MAGIC, .kind = 6, .generation = UINT32_MAX}; /* about a rail that does not exist: it is ignored */
    (void)now;
    if (!atomic_load(&u->due))
        return 10 * WEFT_MS;
    for (uint32_t i = 0; i < RC_TRACKS; i++) {
        if (!u->full)
            u->generation[i] = tracks->track[i].generation;
        else if (u->generation[i] != tracks->track[i].generation)
            full_fd = -1;
    }
    if (!u->full)
        for (full_fd = w->links[0].side_fd; fab_side_send(&w->links[0], &over, sizeof over) == 0;)
            ;
    atomic_store(&u->full, true);
    return 10 * WEFT_MS;
}

static void unheard(weft_node *w, void *arg)
{
    static struct unheard u;
    struct stage *stage = arg;
    weft_gaddr all;
    uint32_t me = weft_rank(w), peer = 1 - me;
    OK(weft_alloc(w, LARGE, &all));
    meet(&stage->here, 2);
    wait_for_rails(w, peer, all, 2);
    if (me == 1) {
        OK(fab_hook(w, &(struct fab_hook){.tick = fill_side, .arg = &u}));
        atomic_store(&u.due, true);
        while (!atomic_load(&u.full))
            usleep(1000);
    }
    meet(&stage->there, 2);
    if (me == 0)
        softverbs("fault clear");
    wait_for_rails(w, peer, all, 3);
    meet(&stage->done, 2);
}

static void test_unheard(void **state)
{
    (void)state;
    softverbs("fault add refuse --verb create_qp --errno ENOMEM --device 0:sv1"); /* node 0 makes no offer for now */
    run(2, unheard, shared_words(4096), (const char *const[]){"WEFT_LOG=error", NULL});
}

/* --- a peer that sends invalid messages about rails is given up, and the error says why --- */

static const struct rail_call nonsense[] = {
    {.kind = 7, .generation = 1}, {.kind = 0}, {.kind = 5, .track = 3}, {.kind = 6, .track = UINT32_MAX},
    {.kind = 1, .generation = 2}, /* an offer by the node that does not lead */
    {.kind = 2, .generation = 1}, /* an acceptance without an address */
};

struct liar {
    weft_node *w;
    _Atomic bool due;
    bool done;
};

static int64_t lie(weft_node *w, int64_t now, void *arg)
{
    struct liar *liar = arg;
    (void)now;
    if (!atomic_load(&liar->due) || liar->done)
        return 10 * WEFT_MS;
    const char *which = getenv("NONSENSE");
    CHECK(which);
    struct rail_call m = nonsense[atoi(which)];
    m.magic = RAIL_MAGIC;
    CHECK(fab_side_send(&w->links[0], &m, sizeof m) == 0);
    liar->done = true;
    return INT64_MAX;
}

static void lies(weft_node *w, void *arg)
{
    static struct liar liar;
    struct stage *stage = arg;
    weft_gaddr all;
    uint64_t v = 1;
    OK(weft_alloc(w, LARGE, &all));
    if (weft_rank(w) == 1)
        OK(fab_hook(w, &(struct fab_hook){.tick = lie, .arg = &liar}));
    meet(&stage->here, 2);
    wait_for_rails(w, 1 - weft_rank(w), all, 3);
    meet(&stage->there, 2);
    atomic_store(&liar.due, true);
    fab_kick(w);
    if (weft_rank(w) == 0) {
        int64_t end = now_ns() + patience_ns(60);
        while (weft_alive(w, 1) && now_ns() < end)
            usleep(1000);
        CHECK(weft_put_blocking(w, on_node(all, 1), &v, sizeof v) == -ECONNRESET &&
              strstr(weft_error(), "it sent an invalid message about a further device"));
        atomic_store(&stage->done, 1);
    }
    wait_for(&stage->done, 1);
}

static void test_lies(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof nonsense / sizeof nonsense[0]; i++) {
        static char which[8][16];
        snprintf(which[i], sizeof which[i], "NONSENSE=%zu", i);
        run(2, lies, shared_words(4096), (const char *const[]){which[i], "WEFT_LOG=error", NULL});
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_breaks),  cmocka_unit_test(test_standstill), cmocka_unit_test(test_dies), cmocka_unit_test(test_stops),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_unheard),    cmocka_unit_test(test_lies),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
