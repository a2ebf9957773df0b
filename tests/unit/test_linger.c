/* SPDX-License-Identifier: MIT
 *
 * When a thread lingers before it sleeps (gateway/linger.c): only after a small piece of the same connection in the other direction, and
 * more and more rarely if nothing comes; not if there are fewer than two processors for each node. It finds what comes by a message and
 * what comes by a descriptor.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <unistd.h>

#include "gateway/gateway.h"
#include "weft.h"

static weft_node *w;
static struct gateway_watches *watches;
static struct gateway_turn turn;
static unsigned looks, comes_at, readied;

static bool come(void *arg)
{
    (void)arg;
    looks++;
    return comes_at && looks >= comes_at;
}

static void on_ready(struct gateway_watch *watch)
{
    char byte;
    assert_int_equal(read(watch->fd, &byte, 1), 1);
    readied++;
}

/* Lingers after pieces of `who`, and returns whether something came. */
static bool linger(struct gateway_linger *l, const void *who, bool up, uint64_t bytes)
{
    looks = 0;
    gateway_linger_moved(l, who, up, bytes);
    l->pause_until = 0; /* other programs may need this processor now */
    return gateway_linger(l, w, watches, &turn, come, NULL);
}

static int open_all(void **state)
{
    (void)state;
    setenv("WEFT_SPIN", "100ms", 1); /* long enough for a slow machine */
    return weft_open(&w, NULL) || gateway_watches_open(&watches);
}

static int close_all(void **state)
{
    (void)state;
    gateway_watches_close(watches);
    weft_close(w);
    return 0;
}

static void test_when(void **state)
{
    (void)state;
    struct gateway_linger l = {.processors = 2};
    int one, other;
    comes_at = 1;
    assert_false(linger(&l, &one, true, 10)); /* nothing was moved before */
    assert_true(linger(&l, &one, false, 10));
    assert_true(linger(&l, &one, true, 10));
    assert_false(gateway_linger(&l, w, watches, &turn, come, NULL)); /* once for each piece */
    assert_false(linger(&l, &one, true, 10));                        /* a stream in one direction */
    assert_false(linger(&l, &one, false, 100000));
    assert_false(linger(&l, &other, true, 10));
    assert_true(linger(&l, &other, false, 10));
}

static void test_what(void **state)
{
    (void)state;
    struct gateway_linger l = {.who = &l, .processors = 2};
    struct gateway_watch watch = {.fd = -1, .ready = on_ready};
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    assert_int_equal(gateway_watch(watches, &watch, fd[0], GATEWAY_READABLE), 0);
    assert_int_equal(write(fd[1], "x", 1), 1);
    comes_at = 0;
    assert_true(linger(&l, &l, true, 1));
    assert_int_equal(readied, 1);
    comes_at = 20;
    assert_true(linger(&l, &l, false, 1));
    assert_int_equal(looks, 20);
    gateway_unwatch(watches, &watch);
    close(fd[1]);
}

/* The turns of a thread that lingers do not wake it; those of others do. */
static unsigned woken;

static void wakes(struct gateway_turn *t)
{
    (void)t;
    woken++;
}

static bool come_by_turn(void *arg)
{
    struct gateway_turn *other = arg;
    gateway_turn(&turn);
    gateway_turn(other);
    return true;
}

static void test_turns(void **state)
{
    (void)state;
    struct gateway_linger l = {.who = &l, .processors = 2};
    struct gateway_turn other = {.wake = wakes};
    turn.wake = wakes;
    gateway_linger_moved(&l, &l, true, 1);
    assert_true(gateway_linger(&l, w, watches, &turn, come_by_turn, &other));
    assert_int_equal(woken, 1);
    gateway_turn(&turn); /* it lingers no more */
    assert_int_equal(woken, 2);
}

/* If nothing comes, it lingers again after 1, 3, 7, ... other pieces. */
static void test_misses(void **state)
{
    (void)state;
    struct gateway_linger l = {.who = &l, .up = true, .processors = 2};
    bool up = false;
    comes_at = 0;
    w->options.spin_ns = WEFT_US;
    for (unsigned round = 1, skips = 1; round <= 4; round++, skips = 2 * skips + 1) {
        assert_false(linger(&l, &l, up, 1));
        assert_true(looks > 0);
        up = !up;
        for (unsigned i = 0; i < skips; i++, up = !up) {
            assert_false(linger(&l, &l, up, 1));
            assert_int_equal(looks, 0);
        }
    }
    l = (struct gateway_linger){.who = &l, .up = true, .processors = 1};
    assert_false(linger(&l, &l, false, 1));
    assert_int_equal(looks, 0);
    w->options.spin_ns = 0; /* WEFT_SPIN=0: never */
    l = (struct gateway_linger){.who = &l, .up = true, .processors = 2};
    assert_false(linger(&l, &l, false, 1));
    assert_int_equal(looks, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_when), cmocka_unit_test(test_what), cmocka_unit_test(test_turns),
                                       cmocka_unit_test(test_misses)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
