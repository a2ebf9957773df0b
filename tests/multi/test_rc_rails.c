/* SPDX-License-Identifier: MIT
 *
 * Several devices to one peer: large puts and gets use all of them, order is kept, and when a device loses the connection to the peer no
 * operation fails. over_softverbs.py starts this with the topology "rails:4:3"; or with "crossed" and the argument "crossed", or
 * "uneven:3:2" and the argument "uneven".
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

#include "cluster_test.h"
#include "fabric/rc/rails.h"

#define LARGE ((size_t)1 << 20)

struct stage {
    _Atomic uint32_t here, there, done, turn, way;
};

/* The first put makes the queue pair of the first rail; then the other rails are made. */
static void wait_for_rails(weft_node *w, uint32_t peer, weft_gaddr at, uint32_t n)
{
    uint64_t v = 0;
    int64_t end = now_ns() + patience_ns(60);
    OK(weft_put_blocking(w, on_node(at, peer), &v, sizeof v));
    while (stats(w, peer).rails != n && now_ns() < end)
        usleep(1000);
    CHECK(stats(w, peer).rails == n);
}

static void fill(uint8_t *p, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i += 8) {
        uint64_t v = (seed << 32) + i;
        memcpy(p + i, &v, len - i < 8 ? len - i : 8);
    }
}

/* A thread of this process, the emulated device, writes the bytes that the other node puts here. The thread sanitizer sees no order between
 * that thread and the reader, because the order comes from the other process. */
#define BY_DEVICE __attribute__((no_sanitize("thread"), noinline))
typedef uint64_t any_word __attribute__((aligned(1), may_alias));

BY_DEVICE static bool filled(const uint8_t *p, size_t len, uint64_t seed)
{
    for (size_t i = 0; i + 8 <= len; i += 8)
        if (*(const volatile any_word *)(p + i) != (seed << 32) + i)
            return false;
    for (size_t i = len & ~(size_t)7; i < len; i++)
        if (((const volatile uint8_t *)p)[i] != (uint8_t)(((seed << 32) + (i & ~(size_t)7)) >> 8 * (i & 7)))
            return false;
    return true;
}

BY_DEVICE static void wipe(uint8_t *p, size_t len)
{
    for (size_t i = 0; i < len; i += 8)
        *(volatile any_word *)(p + i) = UINT64_C(0xaaaaaaaaaaaaaaaa);
}

BY_DEVICE static uint64_t word_at(const void *p)
{
    return __atomic_load_n((const uint64_t *)p, __ATOMIC_ACQUIRE);
}

BY_DEVICE static uint8_t byte_at(const uint8_t *p)
{
    return *(const volatile uint8_t *)p;
}

/* --- all devices carry data --- */

static void carry(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    uint32_t me = weft_rank(w), peer = 1 - me;
    weft_gaddr ours, theirs;
    OK(weft_alloc(w, 4 * LARGE, &ours));   /* the peer writes here */
    OK(weft_alloc(w, 4 * LARGE, &theirs)); /* the source of this node's puts */
    uint8_t *came = weft_ptr(w, ours, 4 * LARGE), *from = weft_ptr(w, theirs, 4 * LARGE);
    memset(came, 0xee, 4 * LARGE);
    meet(&stage->here, 2);
    wait_for_rails(w, peer, theirs, 3);
    meet(&stage->here, 4); /* the peer's rails are ready, too */
    CHECK(strchr(stats(w, peer).devices, ','));
    static const struct {
        size_t at, len, source;
    } cases[] = {{4096, LARGE, 0}, {4096 + 17, 2 * LARGE + 4321, 3}, {1, 256 << 10, 4095}, {8191, (256 << 10) + 1, 1}, {64, 3 * LARGE, 77}};
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t at = cases[i].at, len = cases[i].len;
        uint8_t before = byte_at(came + at - 1), after = byte_at(came + at + len);
        weft_link_stats was = stats(w, peer);
        fill(from + cases[i].source, len, 2 * i + me);
        meet(&stage->there, 2 * (3 * i + 1));
        OK(weft_put_blocking(w, on_node(ours, peer) + at, from + cases[i].source, len));
        weft_link_stats is = stats(w, peer);
        uint64_t sum = 0;
        for (int k = 0; k < 3; k++) {
            uint64_t bytes = is.rail_bytes[k] - was.rail_bytes[k];
            CHECK(bytes + 2 * 4096 >= len / 3 && bytes <= len / 3 + 2 * 4096);
            sum += bytes;
        }
        CHECK(sum == len && is.rail_bytes[3] == 0);
        meet(&stage->there, 2 * (3 * i + 2));
        CHECK(filled(came + at, len, 2 * i + peer) && byte_at(came + at - 1) == before && byte_at(came + at + len) == after);
        memset(from, 0, 4 * LARGE);
        OK(weft_get_blocking(w, from + 5, on_node(ours, peer) + at, len));
        CHECK(filled(from + 5, len, 2 * i + me) && from[4] == 0 && from[len + 5] == 0);
        meet(&stage->there, 2 * (3 * i + 3));
    }
    weft_link_stats was = stats(w, peer); /* small operations, and those on memory outside the pool, use the first rail */
    uint8_t *outside = malloc(LARGE);
    CHECK(outside);
    fill(outside, LARGE, 99 + me);
    OK(weft_put_blocking(w, on_node(ours, peer), outside, LARGE));
    OK(weft_put_blocking(w, on_node(theirs, peer), from, (256 << 10) - 1));
    weft_link_stats is = stats(w, peer);
    CHECK(memcmp(was.rail_bytes, is.rail_bytes, sizeof is.rail_bytes) == 0);
    meet(&stage->done, 2);
    CHECK(filled(came, LARGE, 99 + peer));
    free(outside);
}

static void run(int n, node_fn fn, void *arg, const char *const *environment)
{
    int failed = nodes_failed_with(n, fn, arg, environment);
    softverbs("fault clear");
    assert_int_equal(failed, 0);
}

static void test_carry(void **state)
{
    (void)state;
    run(2, carry, shared_words(4096), NULL);
}

/* --- order, while a device is slow --- */

#define ROUNDS 12u

static void count_message(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                          void *arg)
{
    (void)w, (void)from, (void)header_len, (void)payload, (void)payload_len;
    uint64_t n;
    memcpy(&n, header, sizeof n);
    __atomic_store_n((uint64_t *)arg, n, __ATOMIC_RELEASE);
}

enum way { SIGNAL, FENCE_PUT, FENCE_MESSAGE, FENCE_ATOMIC, SMALL_FIRST, FLUSH, READ_FIRST, WAYS };

/* One round of node 0: writes data, then notifies node 1 in one of several ways. `from` has three parts. */
static void write_and_tell(weft_node *w, enum way way, uint64_t n, uint64_t seed, weft_gaddr words, weft_gaddr data, uint8_t *from)
{
    uint64_t *word = (void *)(from + LARGE);
    weft_op read;
    fill(from, LARGE, seed);
    *word = n;
    if (way == SMALL_FIRST) {
        OK(weft_put(w, words + 24, word, 8, NULL));
        OK(weft_fence(w, 1));
    }
    if (way == SIGNAL)
        OK(weft_put_signal(w, data, from, LARGE, words, 1, NULL));
    else
        OK(weft_put(w, data, from, LARGE, NULL));
    if (way != SIGNAL && way != SMALL_FIRST)
        OK(weft_fence(w, 1));
    if (way == FENCE_PUT)
        OK(weft_put(w, words + 8, word, 8, NULL));
    if (way == FENCE_MESSAGE)
        OK(weft_send(w, 1, 1, &n, sizeof n, NULL, 0, NULL));
    if (way == FENCE_ATOMIC)
        OK(weft_fetch_add(w, words + 16, 1, NULL, NULL));
    if (way == READ_FIRST) {
        fill(from + 2 * LARGE, LARGE, seed + 1000);
        OK(weft_get(w, from + LARGE, data, LARGE, &read));
        OK(weft_fence(w, 1));
        OK(weft_put(w, data, from + 2 * LARGE, LARGE, NULL));
        OK(weft_wait(w, &read, WEFT_TIMEOUT_DEFAULT));
        CHECK(filled(from + LARGE, LARGE, seed));
    }
    if (way == FLUSH || way == READ_FIRST)
        OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT));
}

/* Node 0 writes and notifies node 1, which then must find all bytes. */
static void order(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    uint32_t me = weft_rank(w);
    uint64_t told = 0;
    weft_gaddr all, source;
    OK(weft_handle(w, 1, count_message, &told));
    OK(weft_alloc(w, 2 * LARGE, &all));
    OK(weft_alloc(w, 3 * LARGE, &source));
    uint64_t *words = weft_ptr(w, all, 4096);
    uint8_t *data = weft_ptr(w, all + 4096, LARGE), *from = weft_ptr(w, source, 3 * LARGE);
    memset(words, 0, 4096);
    meet(&stage->here, 2);
    if (me == 0) {
        wait_for_rails(w, 1, source, 3);
        const char *late = getenv("LATE");
        CHECK(late);
        softverbs(late);
    }
    meet(&stage->there, 2);
    for (uint32_t round = 0; round < ROUNDS * WAYS; round++) {
        enum way way = (enum way)(round % WAYS);
        uint64_t n = round / WAYS + 1, seed = n * 10 + way;
        if (me == 0) {
            write_and_tell(w, way, n, seed, on_node(all, 1), on_node(all, 1) + 4096, from);
            if (way == FLUSH || way == READ_FIRST)
                atomic_store(&stage->turn, round);
        } else {
            int64_t end = now_ns() + patience_ns(60);
            uint64_t *last = (void *)(data + LARGE - 8), expected = (seed << 32) + LARGE - 8;
            for (bool seen = false; !seen;) {
                CHECK(now_ns() < end);
                weft_progress(w);
                seen = way == SIGNAL          ? word_at(&words[0]) == n
                       : way == FENCE_PUT     ? word_at(&words[1]) == n
                       : way == FENCE_MESSAGE ? __atomic_load_n(&told, __ATOMIC_ACQUIRE) == n
                       : way == FENCE_ATOMIC  ? word_at(&words[2]) == n
                       : way == SMALL_FIRST   ? word_at(last) == expected
                                              : atomic_load(&stage->turn) == round;
            }
            if (way == SMALL_FIRST)
                CHECK(word_at(&words[3]) == n);
            else
                CHECK(filled(data, LARGE, way == READ_FIRST ? seed + 1000 : seed));
        }
        if (me == 0)
            OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT)); /* the sources may be changed again */
        meet(&stage->done, 2 * (2 * round + 1));
        if (me == 1)
            wipe(data, LARGE);
        meet(&stage->done, 2 * (2 * round + 2));
    }
    if (me == 0)
        CHECK(stats(w, 1).rail_bytes[1] > ROUNDS * LARGE && stats(w, 1).rail_bytes[2] > ROUNDS * LARGE);
    meet(&stage->here, 4);
}

static void test_order(void **state)
{
    (void)state;
    for (int rail = 0; rail < 3; rail++) {
        static char late[3][64];
        snprintf(late[rail], sizeof late[rail], "LATE=fault add delay --device 0:sv%d --time 3ms", rail);
        run(2, order, shared_words(4096), (const char *const[]){late[rail], NULL});
    }
}

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

/* --- the choice of devices --- */

static void chosen(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr all;
    const char *rails = getenv("EXPECT_RAILS"), *devices = getenv("EXPECT_DEVICES");
    CHECK(rails && devices);
    uint32_t peer = 1 - weft_rank(w), n = (uint32_t)atoi(rails);
    OK(weft_alloc(w, 2 * LARGE, &all));
    meet(&stage->here, 2);
    wait_for_rails(w, peer, all, n);
    CHECK(strcmp(stats(w, peer).devices, devices) == 0);
    OK(weft_put_blocking(w, on_node(all, peer), weft_ptr(w, all, LARGE), LARGE));
    CHECK((stats(w, peer).rail_bytes[0] > 0) == (n > 1));
    meet(&stage->done, 2);
}

static void test_chosen(void **state)
{
    (void)state;
    static const char *const how[][5] = {
        {"WEFT_RAILS=1", "EXPECT_RAILS=1", "EXPECT_DEVICES=sv0", NULL},
        {"WEFT_RAILS=2", "EXPECT_RAILS=2", "EXPECT_DEVICES=sv0, sv1", NULL},
        {"WEFT_RAILS=sv2,sv0", "EXPECT_RAILS=2", "EXPECT_DEVICES=sv2, sv0", NULL},
        {"WEFT_RAILS=sv1", "EXPECT_RAILS=1", "EXPECT_DEVICES=sv1", NULL},
        {"WEFT_DEVICE=sv1", "EXPECT_RAILS=1", "EXPECT_DEVICES=sv1", NULL},
        {"WEFT_RAILS=3", "WEFT_DEVICE=sv1", "EXPECT_RAILS=3", "EXPECT_DEVICES=sv1, sv0, sv2", NULL},
        {"WEFT_RAILS=sv1,nowhere", "WEFT_LOG=error", "EXPECT_RAILS=1", "EXPECT_DEVICES=sv1", NULL},
    };
    for (size_t i = 0; i < sizeof how / sizeof how[0]; i++)
        run(2, chosen, shared_words(4096), how[i]);
}

/* All addresses are in one subnet, so they do not show which device is connected to which: weft tries. */
static void crossed(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr all;
    uint32_t peer = 1 - weft_rank(w);
    OK(weft_alloc(w, 2 * LARGE, &all));
    meet(&stage->here, 2);
    wait_for_rails(w, peer, all, 3);
    OK(weft_put_blocking(w, on_node(all, peer), weft_ptr(w, all, LARGE), LARGE));
    CHECK(stats(w, peer).rail_bytes[1] > 0 && stats(w, peer).rail_bytes[2] > 0);
    meet(&stage->done, 2);
}

static void test_crossed(void **state)
{
    (void)state;
    run(2, crossed, shared_words(4096), NULL);
}

/* The nodes have different numbers of devices; each of the two leads once. */
static void uneven(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr all;
    uint32_t me = weft_rank(w);
    OK(weft_alloc(w, 2 * LARGE, &all));
    meet(&stage->here, 3);
    for (uint32_t peer = 0; peer < 3; peer++) {
        if (peer == me)
            continue;
        wait_for_rails(w, peer, all, 2);
        OK(weft_put_blocking(w, on_node(all, peer), weft_ptr(w, all, LARGE), LARGE));
        CHECK(stats(w, peer).rail_bytes[0] + stats(w, peer).rail_bytes[1] + stats(w, peer).rail_bytes[2] == LARGE);
    }
    meet(&stage->done, 3);
}

static void test_uneven(void **state)
{
    (void)state;
    run(3, uneven, shared_words(4096), NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_carry), cmocka_unit_test(test_order),  cmocka_unit_test(test_breaks),  cmocka_unit_test(test_standstill),
        cmocka_unit_test(test_dies),  cmocka_unit_test(test_stops),  cmocka_unit_test(test_refused), cmocka_unit_test(test_unheard),
        cmocka_unit_test(test_lies),  cmocka_unit_test(test_chosen),
    };
    const struct CMUnitTest only_crossed[] = {cmocka_unit_test(test_crossed)}, only_uneven[] = {cmocka_unit_test(test_uneven)};
    const char *which = argc > 1 ? argv[1] : "";
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    if (strcmp(which, "crossed") == 0)
        return cmocka_run_group_tests(only_crossed, NULL, NULL);
    if (strcmp(which, "uneven") == 0)
        return cmocka_run_group_tests(only_uneven, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
