/* SPDX-License-Identifier: MIT
 *
 * Puts to the arena of a GPU `host` through slots that the owner grants (src/gpu/grant.c): the bytes are right while several nodes share
 * the few slots, while a node with slots is stopped or dies, while the owner dies, after puts that failed, and when grants come late. No
 * piece is tiny.
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

#include "gpu/arena.h"
#include "gpu_test.h"

#define OWNER 0u
#define AREA  ((3u << 20) + 5000) /* bytes of each node in the owner's arena */
#define NODES 4

static const char *const ENVIRONMENT[] = {"WEFT_GPU_RDMA=no", "WEFT_LOG=error", "WEFT_POOL=192M", NULL};

struct staged {
    _Atomic uint32_t met[4], go_on, over;
    _Atomic int pid;
};

static struct arenas *arenas(weft_node *w)
{
    return gpu_arenas_of(w);
}

/* The owner opens an arena with an area for each node. Returns this node's area. */
static weft_gaddr area(weft_node *w, struct staged *s)
{
    weft_gaddr at = weft_gaddr_make(OWNER, 1, 1 << 16);
    if (weft_rank(w) == OWNER) {
        uint32_t space;
        weft_gpu *g = open_host(w, 1, 64);
        OK(weft_gpu_arena(g, (size_t)AREA * NODES, &space));
        OK(weft_gpu_alloc(g, space, (size_t)AREA * NODES, &at));
        CHECK(at == weft_gaddr_make(OWNER, 1, 1 << 16));
    }
    meet(&s->met[0], weft_size(w));
    return at + (uint64_t)AREA * weft_rank(w);
}

static void random_bytes(uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t x = random_next(&seed);
        memcpy(p + i, &x, n - i < 8 ? n - i : 8);
    }
}

/* Memory to put from and to get into: in the pool, or outside it. */
struct mine {
    uint8_t *near[2], *back;
    uint64_t seed;
};

static struct mine mine_open(weft_node *w)
{
    weft_gaddr at;
    struct mine m = {.near[0] = malloc(AREA), .back = malloc(AREA), .seed = weft_rank(w) + 1};
    OK(weft_alloc(w, AREA, &at));
    m.near[1] = weft_ptr(w, at, AREA);
    return m;
}

static void mine_close(struct mine *m)
{
    free(m->near[0]);
    free(m->back);
}

/* Puts random bytes, several puts at a time, and compares what is there then. Returns the error of a put or of the get. */
static int round_trip(weft_node *w, struct mine *m, weft_gaddr at)
{
    enum { PARTS = 3 };
    uint8_t *near = m->near[random_next(&m->seed) % 2];
    size_t n = 1 + random_next(&m->seed) % AREA, part = n / PARTS;
    weft_op op[PARTS];
    size_t begun = 0;
    int rc = 0;
    random_bytes(near, n, m->seed);
    for (; !rc && begun < PARTS; begun++) {
        rc = weft_put(w, at + begun * part, near + begun * part, begun < PARTS - 1 ? part : n - begun * part, &op[begun]);
        if (rc)
            break;
    }
    for (size_t i = 0; i < begun; i++) {
        int one = weft_wait(w, &op[i], WEFT_TIMEOUT_DEFAULT);
        rc = rc ? rc : one;
    }
    rc = rc ? rc : weft_get_blocking(w, m->back, at, n);
    CHECK(rc || !memcmp(near, m->back, n));
    return rc;
}

/* Nobody has slots: all were given back, or taken back. */
static void none_granted(weft_node *w)
{
    int64_t until = now_ns() + patience_ns(20);
    while (atomic_load(&arenas(w)->grants) && now_ns() < until)
        usleep(1000);
    CHECK(!atomic_load(&arenas(w)->grants));
}

/* --- all nodes put at the same time, and there are fewer slots than they could use --- */

static void node_share(weft_node *w, void *arg)
{
    struct staged *s = arg;
    weft_gaddr at = area(w, s);
    struct mine m = mine_open(w);
    for (uint32_t i = 0; weft_rank(w) != OWNER && i < repeats(20); i++)
        OK(round_trip(w, &m, at));
    meet(&s->met[1], weft_size(w));
    CHECK(weft_rank(w) != OWNER || atomic_load(&arenas(w)->landed) > 0);
    none_granted(w);
    meet(&s->met[2], weft_size(w)); /* slots are granted anew */
    if (weft_rank(w) != OWNER)
        OK(round_trip(w, &m, at));
    mine_close(&m);
    meet(&s->met[3], weft_size(w));
}

static void test_share(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(NODES, node_share, shared_words(sizeof(struct staged)), ENVIRONMENT), 0);
}

/* --- a node that has slots is killed, or stopped for a while; the others go on --- */

struct ends {
    struct staged *s;
    int signal;
};

static void end_or_stop(pid_t pid, int signal)
{
    if (signal == SIGSTOP)
        stop_asleep(pid);
    else
        kill(pid, signal);
}

static void node_ends(weft_node *w, void *arg)
{
    struct ends *e = arg;
    struct staged *s = e->s;
    uint32_t me = weft_rank(w);
    weft_gaddr at = area(w, s);
    struct mine m = mine_open(w);
    if (me == 1) {
        s->pid = getpid();
        while (!s->over) { /* until it is killed, or all others are done */
            OK(round_trip(w, &m, at));
            atomic_fetch_add(&s->met[1], 1);
            usleep(3000); /* it keeps its slots */
        }
    } else if (me != OWNER) {
        wait_for(&s->met[1], 3);
        if (me == 2)
            end_or_stop(s->pid, e->signal);
        for (uint32_t i = 0; i < repeats(10); i++)
            OK(round_trip(w, &m, at));
        atomic_fetch_add(&s->go_on, 1);
        wait_for(&s->go_on, NODES - 2);
        if (me == 2 && e->signal == SIGSTOP) {
            atomic_store(&s->over, 1);
            kill(s->pid, SIGCONT);
        }
    }
    if (me == 1)
        CHECK(e->signal == SIGSTOP);
    meet(&s->met[2], e->signal == SIGSTOP ? NODES : NODES - 1);
    none_granted(w);
    mine_close(&m);
    meet(&s->met[3], e->signal == SIGSTOP ? NODES : NODES - 1);
}

static void ends_by(int how)
{
    struct ends e = {shared_words(sizeof(struct staged)), how};
    int status[NODES_MAX];
    nodes_run(NODES, node_ends, &e, ENVIRONMENT, status);
    for (int i = 0; i < NODES; i++)
        if (how == SIGSTOP || i != 1)
            assert_int_equal(status[i], 0);
    assert_true(how == SIGSTOP || WIFSIGNALED(status[1]));
}

static void test_killed(void **state)
{
    (void)state;
    ends_by(SIGKILL);
}

static void test_stopped(void **state)
{
    (void)state;
    ends_by(SIGSTOP);
}

/* --- the owner is killed --- */

static void node_owner(weft_node *w, void *arg)
{
    struct staged *s = arg;
    weft_gaddr at = area(w, s);
    struct mine m = mine_open(w);
    if (weft_rank(w) == OWNER) {
        wait_for(&s->met[1], 10);
        raise(SIGKILL);
    }
    int rc = 0;
    while (!rc) {
        rc = round_trip(w, &m, at);
        atomic_fetch_add(&s->met[1], 1);
    }
    CHECK(rc == -ECONNRESET);
    none_granted(w);
    mine_close(&m);
}

static void test_owner(void **state)
{
    (void)state;
    int status[NODES_MAX];
    nodes_run(3, node_owner, shared_words(sizeof(struct staged)), ENVIRONMENT, status);
    assert_true(WIFSIGNALED(status[0]));
    assert_int_equal(status[1], 0);
    assert_int_equal(status[2], 0);
}

/* --- a put into a slot fails, although both nodes are alive: all slots are given back, and the next puts are right --- */

static _Atomic bool failing;
static _Atomic uint32_t failed;
enum { CUTS_MOST = 8 };
static size_t cuts[CUTS_MOST]; /* the sizes of the puts into slots of the owner; used by the thread that takes a step */
static uint32_t cuts_count;
int __real_weft_put(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
int __wrap_weft_put(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
int __wrap_weft_put(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op)
{
    bool into_slot = weft_gaddr_space(dst) == 0 && weft_gaddr_node(dst) == OWNER;
    if (into_slot && cuts_count < CUTS_MOST)
        cuts[cuts_count++] = len;
    if (!atomic_load(&failing) || !into_slot)
        return __real_weft_put(w, dst, src, len, op);
    atomic_fetch_add(&failed, 1);
    return -ENETDOWN;
}

static _Atomic bool silent; /* messages that ask for slots get lost */

/* Slots after a failed put are given back only when the link is flushed, so that no put is late. */
static void check_give(weft_node *w, uint32_t node)
{
    struct grants *g = &arenas(w)->peer[node].grants; /* the thread that sends this takes a step */
    struct fab_link *l = &w->links[node];
    CHECK(g->busy == 0 && (!g->lost || (g->flush.begun && l->transport->flushed(w, l, &g->flush))));
}

enum { LATE = 64 << 10 };
static _Atomic weft_gaddr late_slots; /* at the owner: nobody may put anything there */
static _Atomic uint32_t late;
static _Atomic uint32_t asks[ASK_LAND + 1]; /* number of requests of each kind that this node has sent to owners */
int __real_fab_send(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload, size_t len,
                    weft_op *op);
int __wrap_fab_send(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload, size_t len,
                    weft_op *op);
int __wrap_fab_send(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload, size_t len,
                    weft_op *op)
{
    struct arena_room m;
    struct arena_message ask;
    if (id == ARENA_HANDLER_ASK && header_len == sizeof ask) {
        memcpy(&ask, header, sizeof ask);
        CHECK(ask.kind >= ASK_WRITE && ask.kind <= ASK_LAND);
        atomic_fetch_add(&asks[ask.kind], 1);
    }
    if (id != ARENA_HANDLER_ROOM || header_len != sizeof m)
        return __real_fab_send(w, node, id, header, header_len, payload, len, op);
    memcpy(&m, header, sizeof m);
    if (m.kind == ROOM_GIVE)
        check_give(w, node);
    if (m.kind == ROOM_WANT && atomic_load(&silent))
        return 0;
    if (m.kind == ROOM_GRANT && atomic_load(&late_slots) && atomic_fetch_add(&late, 1) % 2 == 0) {
        m.question -= 4; /* the one before */
        m.count = GRANTS_MOST;
        m.bytes = LATE;
        for (uint32_t i = 0; i < GRANTS_MOST; i++)
            m.at[i] = atomic_load(&late_slots) + i * LATE;
        OK(__real_fab_send(w, node, id, &m, sizeof m, NULL, 0, NULL));
        usleep(2000); /* a node that took these slots would put into them now */
    }
    return __real_fab_send(w, node, id, header, header_len, payload, len, op);
}

/* Whether this node may still put into slots of the owner. */
static bool may_put(weft_node *w)
{
    struct grants *g = &arenas(w)->peer[OWNER].grants;
    base_spin_lock(&arenas(w)->stepping);
    bool may = g->count && !g->lost;
    base_spin_unlock(&arenas(w)->stepping);
    return may;
}

static void node_fails(weft_node *w, void *arg)
{
    struct staged *s = arg;
    weft_gaddr at = area(w, s);
    struct mine m = mine_open(w);
    for (uint32_t i = 0; weft_rank(w) != OWNER && i < repeats(10); i++) {
        OK(round_trip(w, &m, at));
        uint32_t before = atomic_load(&failed);
        atomic_store(&failing, true);
        int rc = round_trip(w, &m, at);
        CHECK(atomic_load(&failed) == before || !may_put(w));
        atomic_store(&failing, false);
        CHECK(rc == 0 || rc == -ENETDOWN); /* 0: it found no slot, so the owner got the bytes */
    }
    CHECK(weft_rank(w) == OWNER || atomic_load(&failed));
    meet(&s->met[1], weft_size(w));
    none_granted(w);
    mine_close(&m);
    meet(&s->met[2], weft_size(w));
}

static void test_fails(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(3, node_fails, shared_words(sizeof(struct staged)), ENVIRONMENT), 0);
}

/* --- what the owner believes, and when it uses a slot for something else --- */

/* Node 1 grants slots that cannot be its own, to a node that has asked for slots. */
static void wrong_grants(struct arenas *c)
{
    struct arena_room wrong[] = {
        {.kind = ROOM_GRANT, .count = 1, .bytes = 4096, .at = {weft_gaddr_make(OWNER, 0, 1 << 16)}},
        {.kind = ROOM_GRANT, .count = 1, .bytes = 4096, .at = {weft_gaddr_make(1, 1, 1 << 16)}},
        {.kind = ROOM_GRANT, .count = 1, .bytes = 4096, .at = {weft_gaddr_make(1, 0, 0)}},
        {.kind = ROOM_GRANT, .count = GRANTS_MOST + 1, .bytes = 4096, .at = {weft_gaddr_make(1, 0, 1 << 16)}},
        {.kind = ROOM_GRANT, .count = 1, .bytes = 0, .at = {weft_gaddr_make(1, 0, 1 << 16)}},
        {.kind = ROOM_GRANT, .count = 1, .bytes = ARENA_PIECE + 1, .at = {weft_gaddr_make(1, 0, 1 << 16)}},
    };
    struct grants *g = &c->peer[1].grants;
    bool pull;
    atomic_store(&silent, true);
    CHECK(!grant_take(c, 1, &pull) && !pull);
    atomic_store(&silent, false);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        wrong[i].question = atomic_load(&g->offer);
        grant_told(c, 1, &wrong[i], sizeof wrong[i]);
        CHECK(atomic_exchange(&g->stray, false));
    }
    (void)grant_step(c);
    CHECK(!g->count && !g->lost);
}

/* Node 1 has a slot, and sends wrong messages about it, then gives it back while its bytes are being copied. No thread takes a step
 * meanwhile: this one does. */
static void node_verifies(weft_node *w, void *arg)
{
    struct staged *s = arg;
    (void)area(w, s);
    if (weft_rank(w) == OWNER) {
        struct arenas *c = arenas(w);
        int why;
        base_spin_lock(&c->stepping);
        struct stage_slot *one = stage_take(w, &c->serves, 1, &why);
        CHECK(one && !grant_land(c, 1, one->addr, 8)); /* it is used for node 1, but was not granted */
        one->granted = true;
        atomic_fetch_add(&c->grants, 1);
        CHECK(!grant_land(c, 0, one->addr, 8)); /* another node's */
        CHECK(!grant_land(c, 1, one->addr + 8, 8));
        CHECK(!grant_land(c, 1, one->addr, (uint64_t)one->bytes + 1));
        CHECK(grant_land(c, 1, one->addr, one->bytes) == one);
        CHECK(!grant_land(c, 1, one->addr, 8)); /* it is being copied */
        CHECK(grant_stays(c, one));
        c->waiting++;
        CHECK(!grant_stays(c, one)); /* others wait for a slot */
        c->waiting--;
        grant_told(c, 1, &(struct arena_room){.kind = ROOM_GIVE}, sizeof(struct arena_room));
        CHECK(grant_step(c));
        CHECK(one->granted && one->holder == 2 && !grant_stays(c, one)); /* the copy has not ended */
        CHECK(!grant_land(c, 1, one->addr, 8));
        grant_landed(c, one, false);
        CHECK(!one->granted && !one->holder);
        wrong_grants(c);
        base_spin_unlock(&c->stepping);
        none_granted(w);
    }
    meet(&s->met[1], weft_size(w));
}

static void test_verifies(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, node_verifies, shared_words(sizeof(struct staged)), ENVIRONMENT), 0);
}

/* --- a grant comes late: it answers a question that the node has given up since, and the owner uses the slots for something else --- */

static void node_late(weft_node *w, void *arg)
{
    struct staged *s = arg;
    weft_gaddr at = area(w, s), slots;
    struct mine m = mine_open(w);
    OK(weft_alloc(w, GRANTS_MOST * LATE, &slots));
    const uint8_t *bytes = weft_ptr(w, slots, GRANTS_MOST * LATE);
    memset(weft_ptr(w, slots, GRANTS_MOST * LATE), 0, GRANTS_MOST * LATE);
    atomic_store(&late_slots, weft_rank(w) == OWNER ? slots : WEFT_NULL);
    meet(&s->met[1], weft_size(w));
    for (uint32_t i = 0; weft_rank(w) != OWNER && i < repeats(20); i++) {
        OK(round_trip(w, &m, at));
        usleep(6000); /* it gives its slots back, and asks anew */
    }
    meet(&s->met[2], weft_size(w));
    CHECK(weft_rank(w) != OWNER || (atomic_load(&late) > 1 && atomic_load(&arenas(w)->landed) > 0));
    for (size_t i = 0; i < GRANTS_MOST * LATE; i++)
        CHECK(bytes[i] == 0);
    none_granted(w);
    mine_close(&m);
    meet(&s->met[3], weft_size(w));
}

static void test_late(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, node_late, shared_words(sizeof(struct staged)), ENVIRONMENT), 0);
}

/* --- few bytes go inside the request or its answer, more bytes through the pools --- */

/* Checks that requests of these one or two kinds were sent since the last call, and no others. */
static void only(enum arena_ask kind, enum arena_ask other)
{
    uint32_t sent = 0;
    for (int k = ASK_WRITE; k <= ASK_LAND; k++) {
        uint32_t n = atomic_exchange(&asks[k], 0);
        CHECK(n == 0 || k == (int)kind || k == (int)other);
        sent += n;
    }
    CHECK(sent > 0);
}

static void node_sizes(weft_node *w, void *arg)
{
    static const size_t sizes[] = {1, 8, ARENA_LITTLE, ARENA_LITTLE + 1, 1u << 20};
    struct staged *s = arg;
    weft_gaddr at = area(w, s);
    struct mine m = mine_open(w);
    for (int pool = 0; weft_rank(w) != OWNER && pool < 2; pool++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            size_t n = sizes[i];
            bool little = n <= ARENA_LITTLE;
            random_bytes(m.near[pool], n, ++m.seed);
            OK(weft_put_blocking(w, at, m.near[pool], n));
            only(little ? ASK_WRITE : ASK_LAND, little ? ASK_WRITE : ASK_PULL);
            OK(weft_get_blocking(w, m.back, at, n));
            only(little ? ASK_READ : ASK_PUSH, little ? ASK_READ : ASK_PUSH);
            CHECK(!memcmp(m.near[pool], m.back, n));
        }
    mine_close(&m);
    meet(&s->met[1], weft_size(w));
}

static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, node_sizes, shared_words(sizeof(struct staged)), ENVIRONMENT), 0);
}

/* --- how a put is cut into pieces for the slots, and how many of them begin in one step --- */

/* Returns when this node has slots and no other thread can take a step. */
static void hold_slots(weft_node *w, struct mine *m, weft_gaddr at)
{
    const struct grants *g = &arenas(w)->peer[OWNER].grants;
    for (int64_t until = now_ns() + patience_ns(20); now_ns() < until;) {
        OK(weft_put_blocking(w, at, m->near[1], 1u << 20));
        base_spin_lock(&arenas(w)->stepping);
        if (g->count && !g->busy && !g->lost) {
            cuts_count = 0;
            return;
        }
        base_spin_unlock(&arenas(w)->stepping);
    }
    CHECK(!"the owner grants slots");
}

/* Takes one step, after hold_slots(). Returns how many puts into slots it has begun. */
static uint32_t one_step(weft_node *w)
{
    bool before = fab_nowait(true);
    CHECK(job_step(arenas(w)));
    fab_nowait(before);
    uint32_t n = cuts_count;
    base_spin_unlock(&arenas(w)->stepping);
    return n;
}

static void check_cuts(weft_node *w, struct mine *m, weft_gaddr at, size_t n)
{
    weft_op op;
    size_t sum = 0;
    hold_slots(w, m, at);
    OK(weft_put(w, at, m->near[1], n, &op));
    CHECK(one_step(w) == 1);
    OK(weft_wait(w, &op, WEFT_TIMEOUT_DEFAULT));
    base_spin_lock(&arenas(w)->stepping);
    for (uint32_t i = 0; i < cuts_count; i++) {
        CHECK(cuts[i] >= 64u << 10);
        sum += cuts[i];
    }
    base_spin_unlock(&arenas(w)->stepping);
    CHECK(sum == n);
}

static void node_cuts(weft_node *w, void *arg)
{
    static const size_t sizes[] = {512u << 10, (512u << 10) + 1, (576u << 10) + 8, 1u << 20, (2u << 20) + (512u << 10) + 1};
    struct staged *s = arg;
    weft_gaddr at = area(w, s), pool = symmetric_alloc(w, 4096), local;
    struct mine m = mine_open(w);
    if (weft_rank(w) != OWNER) {
        weft_gpu *g = open_host(w, 1, 64);
        uint32_t space;
        weft_op op[2];
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            check_cuts(w, &m, at, sizes[i]);
        OK(weft_gpu_arena(g, 1u << 20, &space));
        OK(weft_gpu_alloc(g, space, 4096, &local));
        hold_slots(w, &m, at);
        OK(weft_get(w, weft_gpu_ptr(g, local, 4096), on_node(pool, OWNER), 4096, &op[0])); /* uses no slot, so the put need not wait */
        OK(weft_put(w, at, m.near[1], 64u << 10, &op[1]));
        CHECK(one_step(w) == 1);
        for (int i = 0; i < 2; i++)
            OK(weft_wait(w, &op[i], WEFT_TIMEOUT_DEFAULT));
    }
    mine_close(&m);
    meet(&s->met[1], weft_size(w));
}

static void test_cuts(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, node_cuts, shared_words(sizeof(struct staged)), ENVIRONMENT), 0);
}

/* --- a pool without room for slots: an error that says so --- */

static void node_full(weft_node *w, void *arg)
{
    struct staged *s = arg;
    weft_gaddr at = area(w, s), all;
    uint8_t *bytes = calloc(1, AREA);
    weft_op op;
    for (size_t n = 64u << 20; weft_rank(w) == OWNER && n >= 4096; n /= 2)
        while (!weft_alloc(w, n, &all))
            ;
    meet(&s->met[1], weft_size(w));
    if (weft_rank(w) != OWNER) {
        OK(weft_put(w, at, bytes, AREA, &op));
        CHECK(weft_wait(w, &op, WEFT_TIMEOUT_DEFAULT) == -ENOMEM);
    }
    free(bytes);
    meet(&s->met[2], weft_size(w));
}

static void test_full(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, node_full, shared_words(sizeof(struct staged)), ENVIRONMENT), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_share), cmocka_unit_test(test_killed), cmocka_unit_test(test_stopped), cmocka_unit_test(test_owner),
        cmocka_unit_test(test_fails), cmocka_unit_test(test_late),   cmocka_unit_test(test_full),    cmocka_unit_test(test_verifies),
        cmocka_unit_test(test_sizes), cmocka_unit_test(test_cuts),
    };
    return cmocka_run_group_tests_name("gpu_staged", tests, NULL, NULL);
}
