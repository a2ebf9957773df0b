/* SPDX-License-Identifier: MIT
 *
 * A network that fails, run by over_network.py: an interface goes down and comes up again, or the network of libfabric fails for good while
 * the side connections still work. Bytes must be correct and in order; every failure must come in time and have a reason.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "cluster_test.h"
#include "fabric/ofi/ofi.h"
#include "fabric/transports.h"

#define WORDS 4096u

/* Sets the bridge's port of a host's interface up or down. */
static void set_port(const char *net, int host, const char *to)
{
    char line[256];
    snprintf(line, sizeof line, "nsenter --net=%s ip link set %s-%d %s", getenv("TEST_BRIDGE"), net, host, to);
    CHECK(system(line) == 0);
}

static void fill(uint64_t *words, uint64_t round)
{
    for (uint64_t i = 0; i < WORDS; i++)
        words[i] = round * WORDS + i;
}

struct plan {
    const char *net;
    int64_t away_ns; /* how long the interface of node 1's host is down */
    _Atomic uint32_t *phase;
};

/* Node 0 puts, gets and adds in rounds, one after the other. In the middle, node 1's interface goes down for a while. */
static void go_on(weft_node *w, void *arg)
{
    struct plan *p = arg;
    weft_gaddr a = symmetric_alloc(w, (WORDS + 8) * sizeof(uint64_t));
    uint64_t rounds = 40, old;
    if (weft_rank(w) == 0) {
        static uint64_t out[WORDS], in[WORDS];
        for (uint64_t r = 0; r < rounds; r++) {
            if (r == rounds / 2) {
                set_port(p->net, 1, "down");
                atomic_store(p->phase, 1);
            }
            fill(out, r);
            OK(weft_put(w, on_node(a, 1), out, sizeof out, NULL));
            OK(weft_fetch_add(w, on_node(a, 1) + WORDS * 8, 1, &old, NULL));
            OK(weft_flush(w, 1, patience_ns(60)));
            CHECK(old == r);
            OK(weft_get_blocking(w, in, on_node(a, 1), sizeof in));
            CHECK(memcmp(in, out, sizeof in) == 0);
        }
        atomic_store(p->phase, 2);
    } else {
        while (atomic_load(p->phase) == 0)
            usleep(1000);
        usleep((useconds_t)(p->away_ns / 1000));
        set_port(p->net, 1, "up");
        wait_for(p->phase, 2);
        CHECK(__atomic_load_n((uint64_t *)weft_ptr(w, a, 8) + WORDS, __ATOMIC_ACQUIRE) == rounds);
    }
    OK(weft_barrier(w, patience_ns(60)));
}

static void test_away_for_a_second(void **state)
{
    (void)state;
    struct plan p = {"net0", 1000000000, shared_words(64)};
    assert_int_equal(nodes_failed(2, go_on, &p), 0);
}

/* Only the network that libfabric uses is down: the side connections show that both nodes are alive. */
static void test_data_away(void **state)
{
    (void)state;
    static const char *const environment[] = {"WEFT_OFI_INTERFACE=net1", "WEFT_RECONNECT=60s", "WEFT_DEADLINE=100s", NULL};
    struct plan p = {"net1", 3000000000, shared_words(64)};
    assert_int_equal(nodes_failed_with(2, go_on, &p, environment), 0);
}

/* The network of libfabric is down while a put is under way. TCP tries again 12.6 s after it has begun; before, node 0 opens a new endpoint
 * and begins the put again. The bytes of the first attempt, which the kernel still has, may not overwrite those of later puts. */
static void late(weft_node *w, void *arg)
{
    enum { BYTES = 256 << 10 };
    _Atomic uint32_t *phase = arg;
    weft_gaddr a = symmetric_alloc(w, BYTES);
    OK(weft_barrier(w, patience_ns(60)));
    if (weft_rank(w) == 0) {
        static uint8_t out[BYTES], in[BYTES];
        OK(weft_put_blocking(w, on_node(a, 1), out, sizeof out)); /* from now on there is a connection */
        set_port("net1", 1, "down");
        atomic_store(phase, 1);
        memset(out, 1, sizeof out);
        OK(weft_put_blocking(w, on_node(a, 1), out, sizeof out));
        memset(out, 2, sizeof out);
        OK(weft_put_blocking(w, on_node(a, 1), out, sizeof out));
        sleep(4);
        OK(weft_get_blocking(w, in, on_node(a, 1), sizeof in));
        CHECK(memcmp(in, out, sizeof in) == 0);
        atomic_store(phase, 2);
    } else {
        wait_for(phase, 1);
        sleep(8);
        set_port("net1", 1, "up");
        wait_for(phase, 2);
    }
    OK(weft_barrier(w, patience_ns(60)));
}

static void test_late(void **state)
{
    (void)state;
    static const char *const environment[] = {"WEFT_OFI_INTERFACE=net1", "WEFT_RECONNECT=20s", "WEFT_DEADLINE=100s", NULL};
    assert_int_equal(nodes_failed_with(2, late, shared_words(64), environment), 0);
}

/* --- an outage in the middle of a get --- */

enum { LARGE = 4 << 20, VISITORS = 8 };

struct middle {
    _Atomic uint32_t down, up;
    bool slow; /* the network is slow, so that a get can be interrupted in its middle */
};

/* Connects to the peer's endpoint, and sends nothing: the provider there has accepted a connection, and waits for its request. */
static void visit(weft_node *w, uint32_t peer, int visitors[VISITORS])
{
    weft_link_stats s;
    struct sockaddr_in at = {.sin_family = AF_INET};
    OK(weft_link_stat(w, peer, &s, sizeof s));
    char *host = strrchr(s.devices, ' ') + 1, *port = strrchr(host, ':');
    *port = 0;
    at.sin_port = htons((uint16_t)atoi(port + 1));
    CHECK(inet_pton(AF_INET, host, &at.sin_addr) == 1);
    for (int i = 0; i < VISITORS; i++) {
        visitors[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(visitors[i] >= 0 && connect(visitors[i], (struct sockaddr *)&at, sizeof at) == 0);
    }
}

static void leave(const int visitors[VISITORS])
{
    static const char words[] = "this is no request to connect";
    for (int i = 0; i < VISITORS; i++) {
        (void)send(visitors[i], words, sizeof words, MSG_NOSIGNAL | MSG_DONTWAIT); /* nobody may be there any more */
        close(visitors[i]);
    }
}

/* Whether a get that is under way has written this byte. Nothing orders this read and the write. */
static __attribute__((no_sanitize("thread"), noinline)) bool written(const volatile uint8_t *at)
{
    return *at != 0;
}

/* The interface goes down when a part of the bytes has come. Node 0 opens a new endpoint; then the interface goes up. */
static void interrupt_get(weft_node *w, weft_gaddr from, struct middle *m)
{
    static uint8_t in[LARGE];
    weft_op op;
    OK(weft_get(w, in, from, sizeof in, &op));
    int64_t end = now_ns() + patience_ns(60);
    while (!written(&in[0]) && now_ns() < end)
        usleep(1000);
    set_port("net1", 1, "down");
    atomic_store(&m->down, 1);
    CHECK(written(&in[0]) && !written(&in[LARGE - 1]));
    OK(weft_wait(w, &op, patience_ns(60)));
    for (uint32_t i = 0; i < LARGE; i++)
        CHECK(in[i] == (uint8_t)(i % 251 + 1));
}

static void wait_for_new_endpoint(weft_node *w, uint32_t peer)
{
    weft_link_stats s = {.connects = 0};
    for (int64_t end = now_ns() + patience_ns(60); now_ns() < end && s.connects == 0; usleep(10000))
        OK(weft_link_stat(w, peer, &s, sizeof s));
    CHECK(s.connects > 0);
}

/* The key by which a peer writes to this node's pool. */
static uint64_t key_for(weft_node *w, uint32_t peer)
{
    struct ofi_link *l = w->links[peer].impl;
    base_spin_lock(&l->ofi->calls);
    uint64_t key = fi_mr_key(l->own.list[0]);
    base_spin_unlock(&l->ofi->calls);
    return key;
}

static void middle(weft_node *w, void *arg)
{
    struct middle *m = arg;
    uint32_t me = weft_rank(w), other = 1 - me;
    weft_gaddr large = symmetric_alloc(w, LARGE), a = symmetric_alloc(w, (WORDS + 8) * sizeof(uint64_t));
    static uint64_t out[WORDS], in[WORDS];
    int visitors[VISITORS];
    uint64_t old;
    uint8_t *mine = weft_ptr(w, large, LARGE);
    for (uint32_t i = 0; i < LARGE; i++)
        mine[i] = (uint8_t)(i % 251 + 1);
    if (me == 1)
        m->slow = system("tc qdisc add dev net1 root tbf rate 100mbit burst 64k latency 50ms") == 0;
    OK(weft_barrier(w, patience_ns(60)));
    if (!m->slow)
        return;
    OK(weft_get_blocking(w, in, on_node(a, other), sizeof in)); /* from now on there is a connection */
    visit(w, other, visitors);
    OK(weft_barrier(w, patience_ns(60)));
    if (me == 0) {
        interrupt_get(w, on_node(large, 1), m);
    } else {
        uint64_t key = key_for(w, 0);
        wait_for(&m->down, 1);
        wait_for_new_endpoint(w, 0);
        CHECK(key_for(w, 0) != key); /* nothing late that names the former key can write here */
        set_port("net1", 1, "up");
    }
    leave(visitors);
    for (uint64_t r = 0; r < 40; r++) { /* more frames than the provider has entries that it could use twice */
        fill(out, r);
        OK(weft_put_blocking(w, on_node(a, other), out, sizeof out));
        OK(weft_fetch_add_blocking(w, on_node(a, other) + WORDS * 8, 1, &old));
        CHECK(old == r);
        OK(weft_get_blocking(w, in, on_node(a, other), sizeof in));
        CHECK(memcmp(in, out, sizeof in) == 0);
    }
    OK(weft_barrier(w, patience_ns(60)));
}

static void test_middle(void **state)
{
    (void)state;
    static const char *const environment[] = {"WEFT_OFI_INTERFACE=net1", "WEFT_RECONNECT=10s", "WEFT_DEADLINE=100s", NULL};
    struct middle *m = shared_words(sizeof *m);
    int failed = nodes_failed_with(2, middle, m, environment);
    set_port("net1", 1, "up");
    assert_int_equal(failed, 0);
    if (!m->slow) {
        print_message("the network cannot be made slow here\n");
        skip();
    }
}

/* Each node gives up the other. The one that does so first knows the reason; the other may only see that its connection closes. */
struct cut {
    _Atomic uint32_t down, ended, reasons;
};

static void cut(weft_node *w, void *arg)
{
    struct cut *c = arg;
    weft_gaddr a = symmetric_alloc(w, 64);
    OK(weft_barrier(w, patience_ns(60)));
    if (weft_rank(w) == 0) {
        set_port("net1", 1, "down");
        atomic_store(&c->down, 1);
    }
    wait_for(&c->down, 1);
    int64_t began = now_ns();
    uint64_t old;
    int rc = weft_fetch_add_blocking(w, on_node(a, 1 - weft_rank(w)), 1, &old);
    CHECK(rc == -ECONNRESET);
    CHECK(now_ns() - began < patience_ns(30));
    atomic_fetch_add(&c->reasons, strstr(weft_error(), "through") ? 1 : 0);
    meet(&c->ended, 2);
}

static void test_cut(void **state)
{
    (void)state;
    static const char *const environment[] = {"WEFT_OFI_INTERFACE=net1", "WEFT_RECONNECT=4s", "WEFT_DEADLINE=100s", NULL};
    int status[NODES_MAX];
    struct cut *c = shared_words(64);
    nodes_run(2, cut, c, environment, status);
    set_port("net1", 1, "up");
    assert_int_equal(status[0], 0);
    assert_int_equal(status[1], 0);
    assert_int_not_equal(atomic_load(&c->reasons), 0);
}

/* --- a pool of several memory regions --- */

/* The pool has two regions, which end at 1 GiB. Puts, gets and additions at the last bytes of the one and the first of the other. */
static void regions(weft_node *w, void *arg)
{
    enum { EDGE = 1 << 30, POOL = EDGE + (64 << 20), SIDE = 300000 };
    static uint8_t out[2 * SIDE], in[2 * SIDE];
    uint32_t me = weft_rank(w), used, budget;
    weft_gaddr a;
    uint64_t old;
    (void)arg;
    OK(weft_alloc_aligned(w, POOL - (32 << 20), 64, &a));
    uint64_t skip = EDGE - weft_gaddr_offset(a) - SIDE;
    uint8_t *mine = weft_ptr(w, a + skip, 2 * SIDE);
    CHECK(mine && (mine - w->pool_base) + SIDE == EDGE);
    fab_ofi.regions(w, &used, &budget);
    CHECK(((struct ofi_link *)w->links[1 - me].impl)->own.count + used == 2);
    OK(weft_barrier(w, patience_ns(60)));
    if (me == 0) {
        for (uint32_t i = 0; i < 2 * SIDE; i++)
            out[i] = (uint8_t)(i % 251 + 1);
        weft_gaddr there = on_node(a, 1) + skip;
        OK(weft_put_blocking(w, there, out, sizeof out));
        OK(weft_get_blocking(w, in, there, sizeof in));
        CHECK(memcmp(in, out, sizeof in) == 0);
        OK(weft_get_blocking(w, in, there + SIDE - 20, 40)); /* small: not by RMA */
        CHECK(memcmp(in, out + SIDE - 20, 40) == 0);
        OK(weft_fetch_add_blocking(w, there + SIDE, 0, &old));
        CHECK(memcmp(&old, out + SIDE, 8) == 0);
    }
    OK(weft_barrier(w, patience_ns(60)));
    for (uint32_t i = 0; i < 2 * SIDE && me == 1; i++)
        CHECK(mine[i] == (uint8_t)(i % 251 + 1));
}

static void test_regions(void **state)
{
    (void)state;
    static const char *const environment[] = {"WEFT_POOL=1088M", NULL};
    assert_int_equal(nodes_failed_with(2, regions, NULL, environment), 0);
}

/* --- stopped peers --- */

enum { PIECE = 8 << 10, PIECES = 48 }; /* puts of the smallest size for which ofi uses RMA: together more than it has under way to a peer */

struct stopped {
    _Atomic uint32_t ready, done, pids[NODES_MAX];
};

/* Nodes 2 and up are stopped, and node 0 has begun more puts to them than it can have requests under way. Its operations to node 1 end all
 * the same. */
static void beside_stopped(weft_node *w, void *arg)
{
    struct stopped *s = arg;
    uint32_t me = weft_rank(w), n = weft_size(w);
    weft_gaddr a = symmetric_alloc(w, (PIECES + 1) * PIECE);
    static uint8_t bytes[PIECE];
    atomic_store(&s->pids[me], (uint32_t)getpid());
    OK(weft_barrier(w, patience_ns(60)));
    meet(&s->ready, n);
    if (me == 0) {
        memset(bytes, 7, sizeof bytes);
        for (uint32_t i = 2; i < n; i++)
            stop_asleep((pid_t)atomic_load(&s->pids[i]));
        for (uint32_t i = 2; i < n; i++)
            for (int k = 0; k < PIECES; k++)
                OK(weft_put(w, on_node(a, i) + (uint64_t)k * PIECE, bytes, sizeof bytes, NULL));
        for (int k = 0; k < PIECES; k++)
            OK(weft_put(w, on_node(a, 1) + (uint64_t)k * PIECE, bytes, sizeof bytes, NULL));
        OK(weft_flush(w, 1, patience_ns(20)));
        for (uint32_t i = 2; i < n; i++)
            CHECK(kill((pid_t)atomic_load(&s->pids[i]), SIGCONT) == 0);
        for (uint32_t i = 2; i < n; i++)
            OK(weft_flush(w, i, patience_ns(60)));
        atomic_store(&s->done, 1);
    }
    wait_for(&s->done, 1);
    OK(weft_barrier(w, patience_ns(60))); /* only by this does the thread sanitizer see that the puts come before the reads */
    const uint8_t *mine = weft_ptr(w, a, PIECES * PIECE);
    for (int i = 0; i < PIECES * PIECE; i++)
        CHECK(mine[i] == (me ? 7 : 0));
    OK(weft_barrier(w, patience_ns(60)));
}

static void test_beside_stopped(void **state)
{
    (void)state;
    /* long, because replacing the endpoint would end all requests, and then node 0 could begin others */
    static const char *const environment[] = {"WEFT_RECONNECT=100s", NULL};
    assert_int_equal(nodes_failed_with(12, beside_stopped, shared_words(sizeof(struct stopped)), environment), 0);
}

/* --- a peer that misbehaves --- */

/* As in watch.c. */
struct side_address {
    uint32_t magic;
    uint16_t kind, address_bytes;
    uint32_t number;
    uint8_t address[OFI_ADDRESS];
};
enum { SIDE_ADDRESS = 3, REPEATS = 10 };

static uint32_t endpoints_of(weft_node *w)
{
    const struct ofi_link *l = w->links[2].impl;
    base_spin_lock(&l->ofi->receiving);
    uint32_t count = l->ofi->generation;
    base_spin_unlock(&l->ofi->receiving);
    return count;
}

/* Node 1 says again and again that it has a new endpoint, at the address of its former one: first with the same number, then with new ones,
 * at last with old ones. Node 0 replaces its own endpoint once, then at most once a second, and for an old number never. It still reaches
 * node 2. */
static void misbehaves(weft_node *w, void *arg)
{
    _Atomic uint32_t *phase = arg;
    uint32_t me = weft_rank(w), before = 0;
    weft_gaddr a = symmetric_alloc(w, 64);
    OK(weft_barrier(w, patience_ns(60)));
    if (me == 0)
        before = endpoints_of(w);
    meet(&phase[0], 3);
    if (me == 1) {
        const struct ofi_link *l = w->links[0].impl;
        struct side_address m = {.magic = 0x32696677u, .kind = SIDE_ADDRESS, .number = 1};
        base_spin_lock(&l->ofi->receiving);
        m.address_bytes = (uint16_t)l->ofi->address_bytes;
        memcpy(m.address, l->ofi->address, l->ofi->address_bytes);
        base_spin_unlock(&l->ofi->receiving);
        for (uint32_t round = 0; round < 3; round++) {
            for (int i = 0; i < REPEATS; i++) {
                OK(fab_side_send(&w->links[0], &m, sizeof m));
                usleep(200000);
                m.number += round == 1 ? 1 : round == 2 ? UINT32_MAX : 0; /* the last ones become older and older */
            }
            meet(&phase[1 + 2 * round], 2);
            wait_for(&phase[2 + 2 * round], 1);
            m.number += round ? UINT32_MAX : 1;
        }
    }
    if (me == 0) {
        for (uint32_t round = 0; round < 3; round++) {
            int64_t began = now_ns();
            meet(&phase[1 + 2 * round], 2);
            /* 1 in the last round: what an earlier one has begun */
            uint32_t most = round == 1 ? 2 + (uint32_t)((now_ns() - began) / 1000000000) : 1;
            CHECK(endpoints_of(w) - before <= most);
            before = endpoints_of(w);
            atomic_store(&phase[2 + 2 * round], 1);
        }
        OK(weft_fetch_add_blocking(w, on_node(a, 2), 1, NULL));
        atomic_store(&phase[7], 1);
    }
    wait_for(&phase[7], 1);
}

static void test_misbehaves(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, misbehaves, shared_words(64)), 0);
}

/* --- sleep --- */

/* Whether a thread of the process runs, or waits for a processor. */
static bool runs(uint32_t pid)
{
    char path[300], line[512];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%u/task", pid);
    DIR *tasks = opendir(path);
    CHECK(tasks);
    for (struct dirent *t; (t = readdir(tasks));) {
        snprintf(path, sizeof path, "/proc/%u/task/%.20s/stat", pid, t->d_name);
        FILE *f = t->d_name[0] == '.' ? NULL : fopen(path, "r");
        const char *name_end = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
        found = found || (name_end && name_end[2] == 'R');
        if (f)
            fclose(f);
    }
    closedir(tasks);
    return found;
}

/* Node 1 waits for a word, after operations of all kinds have completed. Meanwhile its threads run only now and then. */
static void blocked(weft_node *w, void *arg)
{
    enum { LOOKS = 100 };
    _Atomic uint32_t *pid = arg;
    weft_gaddr a = symmetric_alloc(w, 64 << 10);
    uint32_t other = 1 - weft_rank(w);
    static uint8_t bytes[32 << 10];
    uint64_t old, seen;
    OK(weft_put_blocking(w, on_node(a, other) + 1024, bytes, sizeof bytes));
    OK(weft_get_blocking(w, bytes, on_node(a, other) + 1024, sizeof bytes));
    OK(weft_fetch_add_blocking(w, on_node(a, other) + 8, 1, &old));
    OK(weft_barrier(w, patience_ns(60)));
    if (weft_rank(w) == 1) {
        atomic_store(pid, (uint32_t)getpid());
        OK(weft_wait_until(w, a, WEFT_EQ, 1, &seen, patience_ns(60)));
        return;
    }
    wait_for(pid, 1);
    usleep(300000); /* first the waiting thread polls */
    int running = 0;
    for (int i = 0; i < LOOKS; i++) {
        running += runs(*pid);
        usleep(10000);
    }
    CHECK(running < LOOKS / 2);
    OK(weft_fetch_add_blocking(w, on_node(a, 1), 1, NULL));
}

static void test_blocked(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, blocked, shared_words(64)), 0);
}

/* Opens the node's endpoint anew, with a completion queue that has a descriptor to sleep on or, as for a provider that wakes nobody, none.
 */
static void reopen(struct ofi *o, bool wakes)
{
    base_spin_lock(&o->receiving);
    CHECK((o->fd >= 0) != wakes);
    uint32_t before = o->generation, now = before;
    o->traits.wakes = wakes;
    o->renew = true;
    base_spin_unlock(&o->receiving);
    fab_kick(o->w);
    for (int64_t end = now_ns() + patience_ns(60); now == before && now_ns() < end; usleep(1000)) {
        base_spin_lock(&o->receiving);
        now = o->generation;
        CHECK(now == before || (o->ep && (o->fd >= 0) == wakes));
        base_spin_unlock(&o->receiving);
    }
    CHECK(now != before);
}

/* The provider of the test wakes threads, and weft sleeps on its descriptor. Of a provider that does not, weft polls the queue; then all
 * goes on, too, also what only another node's operation begins. */
static void polled(weft_node *w, void *arg)
{
    _Atomic uint32_t *phase = arg;
    uint32_t me = weft_rank(w), other = 1 - me;
    weft_gaddr a = symmetric_alloc(w, (WORDS + 8) * sizeof(uint64_t));
    struct ofi *o = ((struct ofi_link *)w->links[other].impl)->ofi;
    static uint64_t out[WORDS], in[WORDS];
    CHECK(o->traits.wakes && o->fd >= 0);
    meet(&phase[0], 2);
    for (uint32_t round = 0; round < 2; round++) {
        if (me == 0)
            reopen(o, round == 1);
        meet(&phase[1 + round], 2);
        for (uint64_t r = 0; r < 10; r++) {
            fill(out, r);
            OK(weft_put_blocking(w, on_node(a, other), out, sizeof out));
            OK(weft_get_blocking(w, in, on_node(a, other), sizeof in));
            CHECK(memcmp(in, out, sizeof in) == 0);
            OK(weft_fetch_add_blocking(w, on_node(a, other) + WORDS * 8, 1, NULL));
            OK(weft_wait_until(w, a + WORDS * 8, WEFT_GE, 10 * round + r + 1, NULL, patience_ns(60)));
        }
        meet(&phase[3 + round], 2);
    }
}

static void test_polled(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, polled, shared_words(64)), 0);
}

/* --- signals --- */

static const int signals[] = {SIGINT, SIGTERM, SIGABRT, SIGILL, SIGBUS, SIGSEGV};
enum { SIGNALS = sizeof signals / sizeof signals[0] };

static void same_signals(weft_node *w, void *arg)
{
    const struct sigaction *was = arg;
    struct sigaction is;
    (void)w;
    for (int i = 0; i < SIGNALS; i++)
        CHECK(sigaction(signals[i], NULL, &is) == 0 && is.sa_handler == was[i].sa_handler);
}

/* libfabric and the libraries that it needs may not take over the program's signals. */
static void test_signals(void **state)
{
    (void)state;
    struct sigaction was[SIGNALS];
    for (int i = 0; i < SIGNALS; i++)
        assert_int_equal(sigaction(signals[i], NULL, &was[i]), 0);
    assert_int_equal(nodes_failed(2, same_signals, was), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocked),   cmocka_unit_test(test_signals), cmocka_unit_test(test_away_for_a_second),
        cmocka_unit_test(test_data_away), cmocka_unit_test(test_cut),     cmocka_unit_test(test_beside_stopped),
        cmocka_unit_test(test_late),      cmocka_unit_test(test_middle),  cmocka_unit_test(test_misbehaves),
        cmocka_unit_test(test_regions),   cmocka_unit_test(test_polled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
