/* SPDX-License-Identifier: MIT
 *
 * Fairness: node 1 sends to node 0 without a pause. Node 0 must still receive from node 2, and must still notice when node 1 dies or closes
 * its side connection.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "cluster_test.h"
#include "fabric/fabric.h"

enum { VICTIM, FLOODER, OTHER, NODES };
enum { FLOOD = 1, WORD };

/* In some of these tests no thread of weft wakes node 1, and node 1 must go on anyway. */
static const char *const SPINNING[] = {"WEFT_SPIN=1s", NULL};

struct fair {
    _Atomic uint32_t here, over, flooded, heard;
    _Atomic bool blocked;
    uint32_t takes_us; /* how long the handler of node 1's messages takes */
};

/* A handler that is slower than node 1 sends: so node 0 always has messages of node 1 left. */
static void slow(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    struct fair *f = arg;
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    atomic_fetch_add(&f->flooded, 1);
    usleep(f->takes_us);
}

static void hear(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    struct fair *f = arg;
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    atomic_fetch_add(&f->heard, 1);
}

/* From now on no thread of weft controls this node: it sends what it likes. */
static int64_t block(weft_node *w, int64_t now, void *arg)
{
    struct fair *f = arg;
    (void)w, (void)now;
    atomic_store(&f->blocked, true);
    while (!atomic_load(&f->over))
        usleep(1000);
    return INT64_MAX;
}

static void stop_progress(weft_node *w, struct fair *f)
{
    OK(fab_hook(w, &(struct fab_hook){.tick = block, .arg = f}));
    while (!atomic_load(&f->blocked)) {
        fab_kick(w);
        usleep(100);
    }
}

/* Whether node 2's word arrives while node 1 goes on sending. */
static bool heard_meanwhile(const struct fair *f)
{
    for (int64_t end = now_ns() + patience_ns(10); !atomic_load(&f->heard) && now_ns() < end;)
        usleep(1000);
    return atomic_load(&f->heard) > 0;
}

/* Node 2 puts a word to node 0 once node 0 is busy. After that, node 0's device always has something from node 2. */
static void say_word(weft_node *w, struct fair *f, weft_gaddr to)
{
    static const uint64_t value; /* static, because the value belongs to weft until the puts are complete, which is after this call */
    wait_for(&f->flooded, 64);
    OK(weft_send(w, VICTIM, WORD, NULL, 0, NULL, 0, NULL));
    while (!atomic_load(&f->over))
        OK(weft_put(w, to, &value, sizeof value, NULL));
}

/* The nodes that are left continue together. */
static void go_on(weft_node *w)
{
    int rc;
    while (weft_alive(w, FLOODER))
        usleep(1000);
    do
        rc = weft_barrier(w, WEFT_TIMEOUT_DEFAULT);
    while (rc == -ECONNRESET);
    OK(rc);
}

/* --- two threads of node 0 poll for messages: while one delivers, the other receives what arrives --- */

struct looker {
    weft_node *w;
    struct fair *f;
};

static void *look(void *arg)
{
    struct looker *t = arg;
    while (!atomic_load(&t->f->over))
        weft_progress(t->w);
    return NULL;
}

static void two_threads(weft_node *w, void *arg)
{
    struct fair *f = arg;
    f->takes_us = 2000;
    OK(weft_handle(w, FLOOD, slow, f));
    OK(weft_handle(w, WORD, hear, f));
    weft_gaddr to = on_node(symmetric_alloc(w, 64), VICTIM);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == VICTIM) {
        struct looker t = {w, f};
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            CHECK(pthread_create(&threads[i], NULL, look, &t) == 0);
        bool heard = heard_meanwhile(f);
        atomic_store(&f->over, 1);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        CHECK(heard);
    } else if (weft_rank(w) == FLOODER) {
        while (!atomic_load(&f->over))
            OK(weft_send(w, VICTIM, FLOOD, NULL, 0, NULL, 0, NULL));
    } else {
        say_word(w, f, to);
    }
    OK(weft_barrier(w, 100 * WEFT_SECOND)); /* the barrier comes after everything that node 1 has sent */
}

static void test_two_threads(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(NODES, two_threads, shared_words(4096), SPINNING), 0);
}

/* --- a node closes its side connection, by which the other nodes see that it is alive, and goes on sending --- */

static void sends_on(weft_node *w, void *arg)
{
    struct fair *f = arg;
    f->takes_us = 300;
    OK(weft_handle(w, FLOOD, slow, f));
    OK(weft_handle(w, WORD, hear, f));
    weft_gaddr to = on_node(symmetric_alloc(w, 64), VICTIM);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    meet(&f->here, NODES);
    if (weft_rank(w) == FLOODER) {
        stop_progress(w, f);
        for (bool closed = false; !atomic_load(&f->over);) {
            (void)weft_send(w, VICTIM, FLOOD, NULL, 0, NULL, 0, NULL);
            if (!closed && atomic_load(&f->flooded) >= 64) {
                closed = true;
                CHECK(shutdown(w->links[VICTIM].side_fd, SHUT_RDWR) == 0);
            }
        }
        _exit(0);
    }
    if (weft_rank(w) == VICTIM) {
        for (int64_t end = now_ns() + patience_ns(10); weft_alive(w, FLOODER) && now_ns() < end;)
            usleep(1000);
        bool dead = !weft_alive(w, FLOODER), heard = dead && heard_meanwhile(f);
        atomic_store(&f->over, 1);
        CHECK(dead);
        CHECK(heard);
    } else {
        say_word(w, f, to);
    }
    go_on(w);
}

static void test_sends_on(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(NODES, sends_on, shared_words(4096), SPINNING), 0);
}

/* --- a node sends without a pause over its side connection: one call reads only a bounded amount --- */

static void talks(weft_node *w, void *arg)
{
    enum { PIECES = 16, PIECE = 1024 }; /* fab_side_read() reads pieces of 1 KiB */
    static uint8_t words[2 * PIECES * PIECE];
    struct fair *f = arg;
    int before = 0;
    char next = 0;
    /* First a heartbeat, then 32 KiB of wake-ups, then only heartbeats: so the next byte tells how much was read. Over TCP the number of
     * bytes that can be read does not tell, because more arrive meanwhile. */
    memset(words, 'w', sizeof words);
    words[0] = 'h';
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == VICTIM)
        stop_progress(w, f);
    meet(&f->here, NODES);
    if (weft_rank(w) == FLOODER) {
        int fd = w->links[VICTIM].side_fd;
        for (size_t sent = 0; sent < sizeof words;) { /* all of it, before anything else */
            ssize_t n = send(fd, words + sent, sizeof words - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
            CHECK(n > 0 || errno == EAGAIN || errno == EWOULDBLOCK);
            sent += n > 0 ? (size_t)n : 0;
        }
        memset(words, 'h', sizeof words);
        while (send(fd, words, sizeof words, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
            ;
        atomic_store(&f->flooded, 1);
    } else if (weft_rank(w) == VICTIM) {
        wait_for(&f->flooded, 1);
        int fd = w->links[FLOODER].side_fd;
        bool died;
        for (int64_t end = now_ns() + patience_ns(10); before <= PIECES * PIECE && now_ns() < end;)
            CHECK(ioctl(fd, FIONREAD, &before) == 0);
        CHECK(before > PIECES * PIECE);
        (void)fab_side_read(w, &w->links[FLOODER], PIECES, &died); /* reads as the progress thread does, which is stopped here */
        CHECK(recv(fd, &next, 1, MSG_PEEK | MSG_DONTWAIT) == 1 && next == 'w');
        atomic_store(&f->over, 1);
    }
    wait_for(&f->over, 1);
}

static void test_talks(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(NODES, talks, shared_words(4096), (const char *const[]){"WEFT_LOG=error", NULL}), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_threads),
        cmocka_unit_test(test_sends_on),
        cmocka_unit_test(test_talks),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
