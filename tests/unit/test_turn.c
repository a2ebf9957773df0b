/* SPDX-License-Identifier: MIT
 *
 * gateway_turn_close() returns only when nobody can call run() any more: not while the turn is in the list of a message's turns, and not
 * while it runs. The caller frees the turn right after the close. A close that does not wait would let freed memory be used, but only in a
 * few runs; so this test checks the waiting itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>

#include "gateway/gateway.h"

static struct gateway g;
static struct gateway_turn turn;
static _Atomic bool closing, closed;

static void *close_it(void *arg)
{
    (void)arg;
    atomic_store(&closing, true);
    gateway_turn_close(&g, &turn);
    atomic_store(&closed, true);
    return NULL;
}

static void set(bool listed, uint32_t runs)
{
    base_spin_lock(&g.lock);
    turn.listed = listed;
    turn.runs = runs;
    base_spin_unlock(&g.lock);
}

/* Checks that the close has not returned after this time. A close that does not wait would nearly always have returned by then; one that
 * waits has not, however slow the machine is. */
static void still_waits(void)
{
    while (!atomic_load(&closing))
        base_sleep_ns(WEFT_MS);
    base_sleep_ns(20 * WEFT_MS);
    assert_false(atomic_load(&closed));
}

static void test_close(void **state)
{
    (void)state;
    pthread_t thread;
    set(true, 0);
    assert_int_equal(pthread_create(&thread, NULL, close_it, NULL), 0);
    still_waits();
    set(false, 1);
    still_waits();
    set(true, 1); /* the run asks for another run */
    still_waits();
    set(true, 0);
    still_waits();
    set(false, 0);
    pthread_join(thread, NULL);
    assert_true(atomic_load(&closed));
    gateway_turn_close(&g, &turn); /* nothing to wait for */
}

static unsigned ran, woken;

static void runs(struct gateway_turn *t)
{
    (void)t;
    ran++;
}

static void wakes(struct gateway_turn *t)
{
    (void)t;
    woken++;
}

/* Not in a handler on the progress thread: the turn only wakes its thread, and is not listed. */
static void test_elsewhere(void **state)
{
    (void)state;
    struct gateway_turn t = {.run = runs, .wake = wakes};
    gateway_turn(&t);
    assert_int_equal(woken, 1);
    assert_int_equal(ran, 0);
    gateway_turn_close(&g, &t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_close), cmocka_unit_test(test_elsewhere)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
