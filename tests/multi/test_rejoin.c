/* SPDX-License-Identifier: MIT
 *
 * A cluster that grows, and whose nodes come back. Nodes are killed and join again, with new numbers, while the other nodes go on with
 * messages, puts, atomics and tasks (rejoin_node.c). Operations on old addresses fail. Any node may be killed, even node 0.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>

#include "cluster/join.h"
#include "rejoin_test.h"

#if defined(__linux__)
#include <sys/prctl.h>
#endif

struct board *board;
static const char *grow_at = "unix:@"; /* the address at which nodes of the next test let others join, if all are on one host */

/* --- starting and ending the nodes --- */

static const char *address_of_host(uint32_t host, char *buf, size_t len)
{
    const char *first = getenv("TEST_COORD");
    if (!first)
        return board->grow;
    snprintf(buf, len, "%.*s%u:7655", (int)(strrchr(first, '.') + 1 - first), first, host + 1);
    return buf;
}

static uint32_t hosts(void)
{
    uint32_t n = 1;
    for (const char *p = getenv("TEST_NAMESPACES"); p && *p; p++)
        n += *p == ':';
    return n;
}

/* In a child: set the environment of slot `slot`. `size` 0: the node joins a running cluster. */
static void prepare(uint32_t slot, uint32_t rank, uint32_t size)
{
    char text[256] = "", one[64];
    snprintf(text, sizeof text, "%u", slot);
    if (getenv("SOFTVERBS_FABRIC"))
        setenv("SOFTVERBS_HOST", text, 1);
#if defined(__linux__)
    if (getenv("TEST_NAMESPACES")) {
        char path[64];
        snprintf(path, sizeof path, "/run/netns/h%u", slot % hosts());
        enter_namespace(path);
    }
#endif
    setenv("WEFT_POOL", "16M", 0);
    setenv("WEFT_SERVE", "process,name", 1);
    setenv("WEFT_GROW", address_of_host(slot % hosts(), one, sizeof one), 1);
    if (size) {
        snprintf(text, sizeof text, "%u", rank);
        setenv("WEFT_RANK", text, 1);
        snprintf(text, sizeof text, "%u", size);
        setenv("WEFT_SIZE", text, 1);
        setenv("WEFT_COORD", board->coord, 1);
        return;
    }
    text[0] = '\0';
    for (uint32_t i = 0; i < hosts(); i++) {
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s%s", n ? "," : "", address_of_host(i, one, sizeof one));
    }
    setenv("WEFT_JOIN", text, 1);
}

static pid_t start(uint32_t slot, uint32_t rank, uint32_t size, const char *variable, const char *value)
{
    struct place *place = &board->place[slot];
    memset(place, 0, sizeof *place);
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
#if defined(__linux__)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
#else
        (void)parent;
#endif
        prepare(slot, rank, size);
        if (variable)
            setenv(variable, value, 1);
        weft_node *w;
        int rc = weft_open(&w, NULL);
        if (rc) {
            if (!variable)
                fprintf(stderr, "slot %u: weft_open() returned %d: %s\n", slot, rc, weft_error());
            board->result[slot] = (uint32_t)-rc;
            _exit(100);
        }
        live(w, place);
    }
    assert_true(pid > 0);
    place->pid = pid;
    return pid;
}

static void until(const _Atomic uint32_t *word, uint32_t least, const char *what, uint32_t slot)
{
    for (int64_t end = now_ns() + LONG; *word < least; usleep(1000)) {
        for (uint32_t i = 0; i < SLOTS; i++) {
            int status;
            if (board->place[i].pid && waitpid(board->place[i].pid, &status, WNOHANG) > 0)
                fail_msg("the node in slot %u ended with status %#x", i, (unsigned)status);
        }
        if (now_ns() > end)
            fail_msg("%s: the node in slot %u did not get there", what, slot);
    }
}

static void founders(uint32_t n)
{
    static unsigned number;
    memset(board, 0, sizeof *board);
    if (getenv("TEST_COORD"))
        snprintf(board->coord, sizeof board->coord, "%s:%u", getenv("TEST_COORD"), 21000 + number++);
    else
        snprintf(board->coord, sizeof board->coord, "unix:@weft-rejoin-%d-%u", (int)getpid(), number++);
    snprintf(board->grow, sizeof board->grow, "%sweft-grow-%d-%u", grow_at, (int)getpid(), number);
    for (uint32_t i = 0; i < n; i++)
        start(i, i, n, NULL, NULL);
    for (uint32_t i = 0; i < n; i++)
        until(&board->place[i].up, 1, "start", i);
}

static bool is_up(uint32_t slot)
{
    return board->place[slot].pid && board->place[slot].up;
}

/* Wait until all other nodes know that the node of this slot has joined. Returns its number. */
static uint32_t joined(uint32_t slot, uint32_t above)
{
    until(&board->place[slot].up, 1, "joining", slot);
    uint32_t number = board->place[slot].number - 1;
    assert_true(number > above);
    for (uint32_t i = 0; i < SLOTS; i++)
        if (i != slot && is_up(i) && board->place[i].number < number + 1) {
            until(&board->place[i].joined[number], 1, "news of a join", i);
            assert_int_equal(board->place[i].joined[number], 1);
            assert_int_equal(board->place[i].died[number], 0);
        }
    return number;
}

/* Wait until all know that the node of this slot was killed. `newcomer`: a node that joins meanwhile, and may never have known the killed
 * one. */
static uint32_t killed_while(uint32_t slot, uint32_t newcomer)
{
    uint32_t number = board->place[slot].number - 1;
    if (killing_hangs())
        board->place[slot].order = DIE;
    else
        assert_int_equal(kill(board->place[slot].pid, SIGKILL), 0);
    assert_true(waitpid(board->place[slot].pid, NULL, 0) > 0);
    board->place[slot].pid = 0;
    for (uint32_t i = 0; i < SLOTS; i++)
        if (i != newcomer && is_up(i))
            until(&board->place[i].died[number], 1, "news of a death", i);
    return number;
}

static uint32_t killed(uint32_t slot)
{
    uint32_t number = killed_while(slot, SLOTS);
    board->dead[number] = 1;
    return number;
}

/* Wait until all nodes have gone on with their work, and have seen operations on old addresses fail. */
static void go_on(void)
{
    uint32_t dead = 0;
    for (uint32_t i = 0; i < NUMBERS; i++)
        dead += board->dead[i];
    for (uint32_t i = 0; i < SLOTS; i++)
        if (is_up(i)) {
            until(&board->place[i].turns, board->place[i].turns + 3, "going on", i);
            until(&board->place[i].done, board->place[i].done + 1, "tasks", i);
            until(&board->place[i].refused, dead, "old addresses", i);
        }
}

static void end(void)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        board->place[i].order = END;
    for (uint32_t i = 0; i < SLOTS; i++) {
        int status = 0;
        if (!board->place[i].pid)
            continue;
        assert_true(waitpid(board->place[i].pid, &status, 0) > 0);
        board->place[i].pid = 0;
        assert_int_equal(status, 0);
    }
}

/* --- the tests --- */

/* Number of open files of a node; 0 if the system does not tell. */
static uint32_t open_files(uint32_t slot)
{
    char path[64];
    uint32_t n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)board->place[slot].pid);
    DIR *files = opendir(path);
    while (files && readdir(files))
        n++;
    if (files)
        closedir(files);
    return n;
}

/* Each node in turn is killed and comes back, node 0 as well. The fourth node stays; it must not keep open files of the others that are
 * gone, nor memory of their links. */
static void test_in_turn(void **state)
{
    (void)state;
    uint32_t highest = 3, files = 0, frames = 0;
    founders(4);
    for (uint32_t round = 0; round < repeats(10); round++) {
        for (uint32_t slot = 0; slot < 3; slot++) {
            killed(slot);
            go_on();
            start(slot, 0, 0, NULL, NULL);
            highest = joined(slot, highest);
            go_on();
        }
        files = round ? files : open_files(3); /* now it has the files that it needs for three other nodes */
        frames = round ? frames : board->place[3].frames;
    }
    assert_true(board->place[3].frames <= frames + 1); /* one more: the provider may still have used those of a node that was killed */
    for (int64_t limit = now_ns() + LONG; open_files(3) > files + 2; usleep(10000))
        assert_true(now_ns() < limit);
    end();
}

/* Start a node that joins, and kill it when all members have begun to connect to it. */
static void break_off(uint32_t slot)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct cluster_settings s;
        uint8_t host[16];
        prepare(slot, 0, 0);
        base_host_id(host);
        OK(cluster_settings_resolve(&s, NULL));
        OK(cluster_enter(&s));
        for (uint32_t i = 0; i < s.rank; i++) {
            const struct wire_card *c = &s.entry->cards[i];
            struct wire_token token;
            if (!c->side[0])
                continue;
            int fd = cluster_connect(memcmp(host, c->host_id, sizeof host) ? c->away : c->side, base_deadline(LONG));
            CHECK(fd >= 0);
            join_token(&token, s.entry, s.rank, i);
            OK(join_write(fd, &token, sizeof token, base_deadline(LONG)));
            OK(join_read(fd, &token, sizeof token, base_deadline(LONG)));
        }
        raise(SIGKILL);
    }
    int status;
    assert_true(waitpid(pid, &status, 0) == pid);
    assert_true(WIFSIGNALED(status));
}

/* Nodes that are killed before they have joined leave nothing open at the members, and are not counted as members. */
static void test_broken_off(void **state)
{
    (void)state;
    uint32_t files[2], here[2];
    founders(2);
    break_off(2);
    go_on();
    for (uint32_t i = 0; i < 2; i++) {
        files[i] = open_files(i);
        here[i] = board->place[i].here;
    }
    for (uint32_t k = 0; k < 4; k++)
        break_off(2);
    for (uint32_t i = 0; i < 2; i++)
        for (int64_t limit = now_ns() + LONG; open_files(i) > files[i] + 2; usleep(10000))
            assert_true(now_ns() < limit);
    start(2, 0, 0, NULL, NULL);
    assert_int_equal(joined(2, 6), 7);
    go_on();
    for (uint32_t i = 0; i < 2; i++)
        assert_true(board->place[i].here <= here[i] + 1);
    end();
}

/* A cluster of one node grows to five; two nodes join at the same time. */
static void test_from_one(void **state)
{
    (void)state;
    founders(1);
    start(1, 0, 0, NULL, NULL);
    assert_int_equal(joined(1, 0), 1);
    for (uint32_t slot = 2; slot < 6; slot += 2) {
        start(slot, 0, 0, NULL, NULL);
        start(slot + 1, 0, 0, NULL, NULL);
        uint32_t a = joined(slot, 1), b = joined(slot + 1, 1);
        assert_true(a != b);
        for (uint32_t i = 0; i < slot; i++) {
            until(&board->place[i].joined[a], 1, "news of a join", i);
            until(&board->place[i].joined[b], 1, "news of a join", i);
        }
    }
    go_on();
    killed(0);
    go_on();
    end();
}

/* Members are killed while a node joins, among them the one that it has asked: the node still joins. */
static void test_meanwhile(void **state)
{
    (void)state;
    uint64_t seed = 16;
    uint32_t highest = 3;
    founders(4);
    for (uint32_t round = 0; round < repeats(12); round++) {
        uint32_t newcomer = (4 + round) % 5, victim = (newcomer + 1 + (uint32_t)(random_next(&seed) % 4)) % 5;
        start(newcomer, 0, 0, NULL, NULL);
        usleep((useconds_t)(random_next(&seed) % 30000));
        uint32_t number = killed_while(victim, newcomer);
        highest = joined(newcomer, highest);
        until(&board->place[newcomer].gone[number], 1, "the end of a node", newcomer);
        board->dead[number] = 1;
        go_on();
        if (victim != (newcomer + 1) % 5) { /* the newcomer of the next round takes the free slot */
            start(victim, 0, 0, NULL, NULL);
            highest = joined(victim, highest);
            killed((newcomer + 1) % 5);
        }
    }
    end();
}

/* A node without the right secret is refused, and does not disturb the others. */
static void test_secret(void **state)
{
    (void)state;
    int status;
    setenv("WEFT_SECRET", "the right one", 1);
    founders(2);
    pid_t pid = start(2, 0, 0, "WEFT_SECRET", "a wrong one");
    board->place[2].pid = 0;
    assert_true(waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 100);
    assert_int_equal(board->result[2], EACCES);
    go_on();
    /* Neither do connections that send nothing. */
    int silent[100];
    for (uint32_t i = 0; i < 100; i++)
        silent[i] = getenv("TEST_COORD") ? -1 : cluster_connect(board->grow, base_deadline(LONG));
    start(2, 0, 0, NULL, NULL);
    assert_int_equal(joined(2, 1), 2);
    assert_int_equal(board->place[0].joined[2], 1);
    for (uint32_t i = 0; i < 100; i++)
        if (silent[i] >= 0)
            close(silent[i]);
    end();
    unsetenv("WEFT_SECRET");
}

/* A member sends wrong messages about nodes that join. When it is gone, nodes join as before. */
static void test_liar(void **state)
{
    (void)state;
    founders(2);
    start(2, 0, 0, NULL, NULL);
    joined(2, 1);
    board->place[2].order = LIE;
    until(&board->place[2].obeyed, LIE, "lies", 2);
    go_on();
    killed(2);
    start(2, 0, 0, NULL, NULL);
    joined(2, 2);
    go_on();
    end();
}

/* Barriers are among the nodes that started together, even while others join and die. */
static void test_barrier(void **state)
{
    (void)state;
    founders(2);
    start(2, 0, 0, NULL, NULL);
    start(3, 0, 0, NULL, NULL);
    joined(2, 1);
    joined(3, 1);
    killed(3);
    for (uint32_t i = 0; i < 3; i++)
        board->place[i].order = BARRIER;
    for (uint32_t i = 0; i < 3; i++)
        until(&board->place[i].obeyed, BARRIER, "the barrier", i);
    assert_int_equal(board->result[0], 0);
    assert_int_equal(board->result[1], 0);
    assert_int_equal(board->result[2], EOPNOTSUPP);
    end();
}

/* Programs and names between all nodes. New nodes join at the path of a Unix socket; when its node is killed, another node listens
 * there. */
static void test_services(void **state)
{
    (void)state;
    grow_at = "unix:/tmp/";
    founders(2);
    start(2, 0, 0, NULL, NULL);
    joined(2, 1);
    killed(0);
    start(0, 0, 0, NULL, NULL);
    joined(0, 2);
    for (uint32_t i = 0; i < 3; i++)
        board->place[i].order = SERVE;
    for (uint32_t i = 0; i < 3; i++)
        until(&board->place[i].obeyed, SERVE, "programs and names", i);
    go_on();
    end();
    assert_int_not_equal(access(board->grow + strlen("unix:"), F_OK), 0); /* the last one has removed it */
    grow_at = "unix:@";
}

/* Messages to a newcomer that reads none for a while are queued, and sent when it goes on. */
static void test_queued(void **state)
{
    (void)state;
    founders(2);
    start(2, 0, 0, NULL, NULL);
    joined(2, 1);
    board->place[0].order = POST;
    until(&board->place[0].obeyed, POST, "messages to a node that is stopped", 0);
    for (uint32_t i = 0; i < 3; i++)
        board->place[i].order = SERVE;
    for (uint32_t i = 0; i < 3; i++)
        until(&board->place[i].obeyed, SERVE, "programs and names", i);
    go_on();
    end();
}

/* --- new endpoints --- */

/* The node of this slot replaces its endpoint, within its next round of work. */
static void renews(uint32_t slot)
{
    board->place[slot].order = GO_ON;
    board->place[slot].obeyed = GO_ON;
    board->place[slot].order = RENEW;
}

/* While a node joins, a member replaces its endpoint (src/fabric/ofi/watch.c), at any moment. The newcomer reaches the new one, all bytes
 * are right, and nobody counts as dead who is not. */
static void test_renewed(void **state)
{
    (void)state;
    uint64_t seed = 5;
    uint32_t highest = 2, number, died = 0, member;
    if (!getenv("TEST_NAMESPACES")) { /* over other transports nodes have no endpoints to replace */
        skip();
        return;
    }
    founders(3);
    for (uint32_t round = 0; round < repeats(24); round++) {
        member = round % 3;
        uint32_t before = board->place[member].renewed;
        start(3, 0, 0, NULL, NULL);
        usleep((useconds_t)(random_next(&seed) % 60000));
        renews(member);
        if (round % 4 == 3) /* two of them */
            renews((member + 1) % 3);
        highest = joined(3, highest);
        if (round % 4 == 2) { /* and the newcomer, as soon as it has joined */
            renews(3);
            until(&board->place[3].renewed, 2, "a new endpoint", 3);
        }
        until(&board->place[member].renewed, before + 1, "a new endpoint", member);
        go_on();
        number = killed(3);
        for (uint32_t slot = 0; slot < 3; slot++)
            for (uint32_t i = 0; i < number; i++)
                died += board->place[slot].died[i] != board->dead[i];
        assert_int_equal(died, 0);
        go_on();
    }
    end();
}

/* --- the last numbers --- */

static void on_none(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    ++*(_Atomic uint32_t *)arg;
}

/* A cluster that has used up nearly all numbers, and two nodes that join. */
static int last_number(int rank, void *arg)
{
    _Atomic uint32_t *step = arg, messages = 0;
    const uint32_t last = WEFT_MAX_NUMBERS - 1;
    weft_node *w;
    unsetenv("WEFT_RANK");
    prepare((uint32_t)rank, 0, 0);
    if (rank == 0) {
        unsetenv("WEFT_JOIN");
        OK(weft_open(&w, NULL));
        CHECK(weft_size(w) == 1);
        pthread_mutex_lock(&grow_of(w)->lock);
        grow_of(w)->highest = last - 1;
        pthread_mutex_unlock(&grow_of(w)->lock);
        OK(weft_handle(w, 1, on_none, &messages));
        *step = 1;
        wait_for(step, 4);
        wait_for(&messages, 1);
        for (time_t until = time(NULL) + 60; weft_alive_count(w) != 1 && time(NULL) < until;)
            usleep(1000); /* the other node has left, but this one may not have noticed it yet */
        CHECK(weft_size(w) == WEFT_MAX_NUMBERS && weft_alive_count(w) == 1 && messages == 1);
        OK(weft_close(w));
        return 0;
    }
    wait_for(step, (uint32_t)rank);
    int rc = weft_open(&w, NULL);
    if (rank == 2) {
        CHECK(rc == -ENOSPC && strstr(weft_error(), "start the cluster anew"));
        *step = 3;
        return 0;
    }
    CHECK(rc == 0 && weft_rank(w) == last && weft_alive_count(w) == 2);
    weft_gaddr a;
    OK(weft_alloc(w, 8, &a));
    CHECK(weft_gaddr_node(a) == last);
    OK(weft_fetch_add_blocking(w, a, 1, NULL));
    OK(weft_send(w, 0, 1, NULL, 0, NULL, 0, NULL));
    CHECK(weft_put_blocking(w, weft_gaddr_make(last - 1, 0, weft_gaddr_offset(a)), &rc, 4) == -ECONNRESET);
    *step = 2;
    wait_for(step, 3);
    OK(weft_close(w));
    *step = 4;
    return 0;
}

static void test_last_number(void **state)
{
    (void)state;
    memset(board, 0, sizeof *board);
    snprintf(board->grow, sizeof board->grow, "unix:@weft-grow-%d-last", (int)getpid());
    assert_int_equal(processes_failed(3, last_number, shared_words(sizeof(uint32_t))), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    board = shared_words(sizeof *board);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_from_one),    cmocka_unit_test(test_in_turn),  cmocka_unit_test(test_broken_off),
        cmocka_unit_test(test_meanwhile),   cmocka_unit_test(test_secret),   cmocka_unit_test(test_liar),
        cmocka_unit_test(test_barrier),     cmocka_unit_test(test_services), cmocka_unit_test(test_queued),
        cmocka_unit_test(test_last_number), cmocka_unit_test(test_renewed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
