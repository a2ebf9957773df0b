/* SPDX-License-Identifier: MIT
 *
 * What the tb transport allocates on its devices: each call that allocates something is refused once, and nothing leaks. Also how few
 * regions it needs, and how much processor time a wait for a dead or stopped node costs.
 * Run by over_softverbs.py on a mesh of 4 of tb5.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "cluster_test.h"

#define LONG patience_ns(60)

/* --- every call refused once --- */

enum { REFUSED_NODES = 3 }; /* the most nodes; with two there is no other route */

struct opening {
    char coord[64];
    uint32_t nodes;
    int64_t patience; /* how long joining may take */
    int how;          /* SIGKILL or SIGSTOP, which node 1 gets `after` us after it began; 0: no signal */
    useconds_t after;
    struct {
        int opened, barrier, closed;
        char why[1024];
    } node[REFUSED_NODES];
};

/* Starts a process that stops or kills this one after a while, and continues it later. */
static pid_t strike(const struct opening *o)
{
    pid_t victim = getpid(), pid = fork();
    if (pid)
        return pid;
    usleep(o->after);
    kill(victim, o->how);
    if (o->how == SIGSTOP)
        usleep(200000);
    kill(victim, SIGCONT);
    _exit(0);
}

static int opens(int rank, void *arg)
{
    struct opening *o = arg;
    weft_node *w = NULL;
    weft_config c = {.bytes = sizeof c,
                     .coord = o->coord,
                     .rank = (uint32_t)rank,
                     .size = o->nodes,
                     .pool_bytes = 16 << 20,
                     .join_timeout_ns = o->patience,
                     .deadline_ns = 20 * WEFT_SECOND};
    setenv("WEFT_LOG", "error", 0);
    pid_t end = rank == 1 && o->how ? strike(o) : 0;
    o->node[rank].opened = weft_open(&w, &c);
    snprintf(o->node[rank].why, sizeof o->node[rank].why, "%s", weft_error());
    if (!w)
        return o->node[rank].opened < 0 && o->node[rank].why[0] ? 0 : 1; /* every error must have a text */
    CHECK(o->node[rank].opened == 0);
    o->node[rank].barrier = weft_barrier(w, WEFT_TIMEOUT_DEFAULT);
    if (o->node[rank].barrier)
        snprintf(o->node[rank].why, sizeof o->node[rank].why, "%s", weft_error());
    o->node[rank].closed = weft_close(w);
    if (end)
        waitpid(end, NULL, 0);
    return 0;
}

/* Refuses the `nth` call of `verb` on host 1. Returns whether there was such a call; `*well`: whether all nodes succeeded. */
static bool refused(uint32_t nodes, const char *verb, const char *with, unsigned nth, int64_t patience, bool *well, bool show)
{
    static unsigned number;
    struct opening *o = shared_words(sizeof *o);
    int status[NODES_MAX];
    char words[200];
    snprintf(o->coord, sizeof o->coord, "unix:@weft-setup-%d-%u", (int)getpid(), number++);
    snprintf(words, sizeof words, "fault add refuse --verb %s --errno %s --host 1 --nth %u", verb, with, nth);
    o->nodes = nodes;
    o->patience = patience;
    softverbs(words);
    processes_run((int)nodes, opens, o, status);
    bool struck = !strstr(softverbs("fault list"), "struck 0");
    softverbs("fault clear");
    *well = true;
    for (int i = 0; i < (int)nodes; i++) {
        *well = *well && o->node[i].opened == 0 && o->node[i].barrier == 0 && o->node[i].closed == 0;
        if (status[i])
            fprintf(stderr, "%s refused at its call %u: node %d ended with %#x\n", verb, nth, i, (unsigned)status[i]);
        if (show && (o->node[i].opened || o->node[i].barrier))
            printf("  %s %u: node %d: %d, %d: %s\n", verb, nth, i, o->node[i].opened, o->node[i].barrier, o->node[i].why);
        assert_int_equal(status[i], 0);
    }
    /* The node whose call was refused names the device in its error, or went on without that device. */
    if (struck && o->node[1].opened && o->node[1].opened != -ETIMEDOUT) /* on a slow machine the time may be over */
        assert_true(strstr(o->node[1].why, "rdma_") && strstr(o->node[1].why, "node "));
    /* A node that has opened can reach all others. */
    for (int i = 0; i < (int)nodes; i++)
        assert_true(o->node[i].opened || !o->node[1].opened || o->node[i].barrier != -ETIMEDOUT);
    return struck;
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t nodes;
        const char *verb, *with;
        unsigned most; /* refuse at most this many calls, one in each run; the calls during traffic would never end */
    } calls[] = {
        {3, "open_device", "EBUSY", 100},
        {3, "query_device", "EIO", 100},
        {3, "query_port", "EIO", 12},
        {3, "query_gid", "EIO", 6},
        {3, "alloc_pd", "ENOMEM", 100},
        {3, "reg_mr", "ENOMEM", 100},
        {3, "create_comp_channel", "EMFILE", 100},
        {3, "create_cq", "ENOMEM", 100},
        {3, "create_qp", "EBUSY", 40},
        {3, "modify_qp", "EIO", 40},
        {3, "post_recv", "EIO", 4},
        {3, "post_send", "EIO", 4},
        {3, "req_notify_cq", "EIO", 3},
        {2, "create_qp", "EBUSY", 40},
        {2, "modify_qp", "EIO", 40},
    };
    bool show = getenv("WEFT_TEST_SHOW"), well;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        unsigned nth = 1, went_on = 0;
        while (nth <= calls[i].most && refused(calls[i].nodes, calls[i].verb, calls[i].with, nth, 2 * WEFT_SECOND, &well, show)) {
            went_on += well;
            nth++;
        }
        printf("  %u nodes, %-20s %u calls refused; all was well after %u of them\n", calls[i].nodes, calls[i].verb, nth - 1, went_on);
        fflush(stdout);
    }
    /* No domain has leaked: a device has only 11, so this run would fail otherwise. */
    (void)refused(3, "create_ah", "EIO", 1, LONG, &well, true);
    assert_true(well);
}

/* --- killed or stopped while they join --- */

/* Node 1 is killed or stopped. The others do not hang: they give up in time, or join and notice the death. They wait for a node that is
 * stopped only for a while. */
static void joining(int how)
{
    for (unsigned i = 0; i < 8; i++) {
        struct opening *o = shared_words(sizeof *o);
        int status[NODES_MAX];
        *o = (struct opening){.nodes = 3, .patience = how == SIGKILL ? 2 * WEFT_SECOND : LONG, .how = how, .after = i * i * 1500};
        snprintf(o->coord, sizeof o->coord, "unix:@weft-struck-%d-%d-%u", (int)getpid(), how, i);
        processes_run(3, opens, o, status);
        for (int k = 0; k < 3; k++) {
            /* Joining may be over before the signal comes. */
            assert_true(status[k] == 0 || (k == 1 && how == SIGKILL && WIFSIGNALED(status[k]) && WTERMSIG(status[k]) == SIGKILL));
            if (how == SIGSTOP)
                assert_int_equal(o->node[k].opened | o->node[k].barrier | o->node[k].closed, 0);
            else
                assert_true(o->node[k].opened || o->node[k].barrier != -ETIMEDOUT);
        }
        if (how == SIGKILL)
            softverbs("reboot 1");
    }
}

static void test_killed_joining(void **state)
{
    (void)state;
    joining(SIGKILL);
}

static void test_stopped_joining(void **state)
{
    (void)state;
    joining(SIGSTOP);
}

/* A node is killed when all have met and it begins to look for its devices: a script that is started instead of its guard kills it. */
static int killed_half_way(int rank, void *arg)
{
    struct opening *o = arg;
    char pid[16];
    if (rank == 1) {
        snprintf(pid, sizeof pid, "%d", (int)getpid());
        setenv("WEFT_TEST_PID", pid, 1);
        setenv("WEFT_GUARD", o->node[1].why, 1);
    }
    return opens(rank, arg);
}

static void test_killed_half_way(void **state)
{
    (void)state;
    struct opening *o = shared_words(sizeof *o);
    int status[NODES_MAX];
    char script[64];
    snprintf(script, sizeof script, "/tmp/weft-killer-%d", (int)getpid());
    FILE *f = fopen(script, "we");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\nkill -9 $WEFT_TEST_PID\nexec sleep 1\n");
    fclose(f);
    assert_int_equal(chmod(script, 0700), 0);
    *o = (struct opening){.nodes = 3, .patience = 300 * WEFT_SECOND};
    snprintf(o->node[1].why, sizeof o->node[1].why, "%s", script);
    snprintf(o->coord, sizeof o->coord, "unix:@weft-half-%d", (int)getpid());
    processes_run(3, killed_half_way, o, status);
    unlink(script);
    assert_true(WIFSIGNALED(status[1]) && WTERMSIG(status[1]) == SIGKILL);
    for (int i = 0; i < 3; i += 2) {
        assert_int_equal(status[i], 0);
        assert_int_equal(o->node[i].opened, -ECONNRESET);
        assert_non_null(strstr(o->node[i].why, "node 1 (pid "));
        assert_non_null(strstr(o->node[i].why, "failed while joining: it ended"));
    }
}

/* --- few regions --- */

enum { SIZES = 8, DEPTH = 8 }; /* buffers of 4 KiB to 512 KiB, DEPTH of each size for each peer */

/* Puts from many buffers to all peers at once, as collective operations do. With one region for each buffer this would need 192. */
static void pipeline(weft_node *w, void *arg)
{
    static weft_op ops[NODES_MAX][SIZES][DEPTH];
    static uint8_t *from[NODES_MAX][SIZES][DEPTH];
    uint32_t me = weft_rank(w), n = weft_size(w), buffers = 0, *regions = arg;
    weft_gaddr a, area = symmetric_alloc(w, (size_t)n * (1u << 20));
    weft_pool_stats s;
    for (uint32_t node = 0; node < n; node++)
        for (uint32_t size = 0; size < SIZES; size++)
            for (uint32_t k = 0; k < DEPTH && node != me; k++, buffers++) {
                OK(weft_alloc(w, 4096u << size, &a));
                memset(from[node][size][k] = weft_ptr(w, a, 4096u << size), (int)(me * 16 + node), 4096u << size);
            }
    CHECK(buffers == SIZES * DEPTH * (n - 1));
    OK(weft_barrier(w, LONG));
    for (uint32_t size = 0; size < SIZES; size++)
        for (uint32_t k = 0; k < DEPTH; k++)
            for (uint32_t node = 0; node < n; node++)
                if (node != me)
                    OK(weft_put(w, on_node(area, node) + (uint64_t)me * (1u << 20) + (size % 2) * (512u << 10), from[node][size][k],
                                4096u << size, &ops[node][size][k]));
    OK(weft_pool_stat(w, &s, sizeof s));
    regions[me] = s.regions_used;
    CHECK(s.reserved_bytes == UINT64_C(4) << 30 && s.regions_budget == 100);
    for (uint32_t node = 0; node < n; node++)
        for (uint32_t i = 0; i < SIZES * DEPTH && node != me; i++)
            OK(weft_wait(w, &ops[node][i / DEPTH][i % DEPTH], LONG));
    OK(weft_barrier(w, LONG));
    for (uint32_t node = 0; node < n; node++) {
        const uint8_t *came = weft_ptr(w, on_node(area, me) + (uint64_t)node * (1u << 20), 1u << 20);
        for (uint32_t i = 0; i < 1u << 20 && node != me; i++)
            CHECK(came[i] == (i % (512u << 10) < (256u << 10) << (i >= 512u << 10) ? (uint8_t)(node * 16 + me) : 0));
    }
    OK(weft_barrier(w, LONG));
    if (me == 0) { /* the number of regions that the devices report */
        const char *at = softverbs("ls --all --json");
        uint32_t devices = 0, most = 0;
        while ((at = strstr(at, "\"mr\": {")) && (at = strstr(at, "\"used\": "))) {
            uint32_t used = (uint32_t)strtoul(at + strlen("\"used\": "), NULL, 10);
            devices++;
            most = used > most ? used : most;
        }
        CHECK(devices == n * (n - 1));
        regions[NODES_MAX] = most;
    }
    OK(weft_barrier(w, LONG));
}

static void test_regions(void **state)
{
    (void)state;
    uint32_t *regions = shared_words(4096);
    assert_int_equal(nodes_failed_with(4, pipeline, regions, (const char *const[]){"WEFT_LOG=error", "WEFT_POOL=4G", NULL}), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(regions[i], regions[NODES_MAX]);
    printf("  a pool of 4 GiB, %d buffers: %u regions a device\n", SIZES * DEPTH * 3, regions[NODES_MAX]);
    assert_in_range(regions[NODES_MAX], 1, 7);
}

/* --- waiting for a node that does not answer --- */

struct vigil {
    int how; /* signal */
    _Atomic uint32_t here, over;
    _Atomic int pid;
    int64_t took, cpu; /* ns */
};

static int64_t cpu_ns(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (r.ru_utime.tv_sec + r.ru_stime.tv_sec) * WEFT_SECOND + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) * WEFT_US;
}

/* Node 1 is killed or stopped while much is under way to it, and node 0 waits for 2 s; node 2 sleeps. */
static void vigil(weft_node *w, void *arg)
{
    struct vigil *v = arg;
    uint32_t me = weft_rank(w);
    weft_gaddr area = symmetric_alloc(w, 4u << 20);
    weft_op ops[8];
    uint64_t old = 0;
    if (me == 1)
        v->pid = getpid();
    meet(&v->here, 3);
    if (me == 0) {
        uint8_t *mine = weft_ptr(w, on_node(area, 0), 4u << 20);
        if (v->how == SIGSTOP)
            stop_asleep(v->pid); /* otherwise the victim might still receive some of the puts */
        else
            CHECK(kill(v->pid, v->how) == 0);
        uint32_t began = 0;
        for (int rc = 0; began < 6 && rc == 0; began += rc == 0) {
            rc = weft_put(w, on_node(area, 1), mine, began % 2 ? 1u << 20 : 3000, &ops[began]);
            CHECK(rc == 0 || (rc == -ECONNRESET && v->how == SIGKILL)); /* the death may have been noticed already */
        }
        int64_t start = now_ns(), cpu = cpu_ns();
        if (v->how == SIGKILL) { /* node 1's word never comes; then wait for that of node 2 */
            for (uint32_t i = 0; i < began; i++) {
                int rc = weft_wait(w, &ops[i], LONG);
                CHECK(rc == -ECONNRESET || rc == 0);
            }
            CHECK(weft_wait_until(w, on_node(area, 0), WEFT_EQ, 1, NULL, 2 * WEFT_SECOND) == -ETIMEDOUT);
            CHECK(!weft_alive(w, 1));
        } else {
            CHECK(weft_wait(w, &ops[0], 2 * WEFT_SECOND) == -ETIMEDOUT);
            CHECK(weft_alive(w, 1));
        }
        v->took = now_ns() - start;
        v->cpu = cpu_ns() - cpu;
        if (v->how == SIGSTOP) { /* node 1 is not declared dead yet: continue it */
            CHECK(kill(v->pid, SIGCONT) == 0);
            for (uint32_t i = 0; i < began; i++)
                OK(weft_wait(w, &ops[i], LONG));
            OK(weft_fetch_add_blocking(w, on_node(area, 1) + (2u << 20), 5, &old));
            OK(weft_fetch_add_blocking(w, on_node(area, 1) + (2u << 20), 5, &old));
            CHECK(old == 5);
        }
        OK(weft_fetch_add_blocking(w, on_node(area, 2), 1, &old)); /* operations to other nodes work */
        v->over = 1;
    }
    wait_for(&v->over, 1);
}

static void wait_on(int how)
{
    struct vigil *v = shared_words(4096);
    int status[NODES_MAX];
    v->how = how;
    nodes_run(3, vigil, v, (const char *const[]){"WEFT_LOG=error", NULL}, status);
    assert_int_equal(status[0], 0);
    assert_int_equal(status[2], 0);
    assert_true(how == SIGKILL ? WIFSIGNALED(status[1]) : status[1] == 0);
    printf("  %s: %.0f ms of processor in %.0f ms\n", how == SIGKILL ? "killed" : "stopped", (double)v->cpu / 1e6, (double)v->took / 1e6);
    assert_true(v->cpu < v->took / 10);
}

static void test_wait_for_killed(void **state)
{
    (void)state;
    wait_on(SIGKILL);
    softverbs("reboot 1"); /* frees what the killed node had on its devices */
}

static void test_wait_for_stopped(void **state)
{
    (void)state;
    wait_on(SIGSTOP);
}

int main(int argc, char **argv)
{
    if (argc > 4) { /* arguments NODES VERB ERRNO N: run and print a single refusal */
        bool well, struck = refused((uint32_t)atoi(argv[1]), argv[2], argv[3], (unsigned)atoi(argv[4]), LONG, &well, true);
        printf("%s, %s\n", struck ? "refused" : "not called so often", well ? "all went well" : "it did not go well");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regions),        cmocka_unit_test(test_wait_for_killed), cmocka_unit_test(test_wait_for_stopped),
        cmocka_unit_test(test_killed_joining), cmocka_unit_test(test_killed_half_way), cmocka_unit_test(test_stopped_joining),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
