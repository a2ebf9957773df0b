/* SPDX-License-Identifier: MIT
 *
 * A guard that answers slowly, as if its device waited for a peer, is not treated as dead. The end of a guard is noticed at once. While a
 * device takes long to open, programs of the guard that do not need it go on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "../../src/verbs/guard_ask.c"
#include "../../src/verbs/guard_shared.c"

#define LONG_CALL (GUARD_PATIENCE + WEFT_SECOND)

struct stand_in {
    int fd;
    int64_t takes;
    bool ends;
};

static void *answer(void *arg)
{
    const struct stand_in *s = arg;
    struct guard_call c;
    struct guard_answer a = {0};
    if (base_receive_fds(s->fd, &c, sizeof c, NULL, 0, base_deadline(60 * WEFT_SECOND)) == 0 && !s->ends) {
        base_sleep_ns(s->takes);
        (void)base_send_fds(s->fd, &a, sizeof a, NULL, 0);
    } else {
        close(s->fd);
    }
    return NULL;
}

static int asked(struct verbs_guard *g, struct stand_in *s, uint32_t verb)
{
    pthread_t thread;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    *g = (struct verbs_guard){.fd = ends[0], .bell = -1};
    pthread_mutex_init(&g->lock, NULL);
    s->fd = ends[1];
    assert_int_equal(pthread_create(&thread, NULL, answer, s), 0);
    int rc = guard_ask(g, &(struct guard_call){.verb = verb}, NULL, NULL, false);
    pthread_join(thread, NULL);
    close(ends[0]);
    if (!s->ends)
        close(ends[1]);
    return rc;
}

static void test_slow(void **state)
{
    (void)state;
    struct verbs_guard g;
    assert_int_equal(asked(&g, &(struct stand_in){.takes = LONG_CALL}, GUARD_MODIFY_QP), 0);
    assert_false(atomic_load(&g.gone));
}

static void test_ended(void **state)
{
    (void)state;
    struct verbs_guard g;
    assert_int_equal(asked(&g, &(struct stand_in){.ends = true}, GUARD_MODIFY_QP), ENODEV);
    assert_true(atomic_load(&g.gone));
}

/* --- one device of two takes long to open --- */

static struct ibv_device devices[2];
static struct ibv_device *list[] = {&devices[0], &devices[1], NULL};
static struct ibv_context contexts[2];
static _Atomic bool opening, may_open;

static struct ibv_device **list_two(int *count)
{
    *count = 2;
    return list;
}

static struct ibv_context *open_slowly(struct ibv_device *d)
{
    atomic_store(&opening, d == &devices[0]);
    for (int64_t deadline = base_deadline(60 * WEFT_SECOND); d == &devices[0] && !atomic_load(&may_open) && base_now_ns() < deadline;)
        base_sleep_ns(WEFT_MS);
    return &contexts[d == &devices[1]];
}

static void *open_first(void *arg)
{
    struct ibv_context *c;
    return guard_shared_open(arg, 0, &c) == 0 && c == &contexts[0] ? arg : NULL;
}

static void test_opens_slowly(void **state)
{
    (void)state;
    const struct verbs_library lib = {.get_device_list = list_two, .open_device = open_slowly};
    struct guard_shared s = {.lib = &lib};
    struct guard g = {.pid = 7, .name = " (x)"};
    struct ibv_context *c;
    pthread_t thread;
    void *right;
    char holders[100];
    guard_shared_init(&s);
    assert_int_equal(guard_shared_list(&s), 0);
    assert_int_equal(pthread_create(&thread, NULL, open_first, &s), 0);
    while (!atomic_load(&opening))
        base_sleep_ns(WEFT_MS);
    guard_shared_enter(&s, &g);
    atomic_store(&g.pairs[1], 2);
    guard_shared_holders(&s, 1, holders, sizeof holders);
    assert_string_equal(holders, "process 7 (x) 2 queue pairs and 0 regions");
    assert_int_equal(guard_shared_list(&s), 0);
    assert_int_equal(guard_shared_open(&s, 1, &c), 0);
    assert_ptr_equal(c, &contexts[1]);
    guard_shared_leave(&s, &g);
    assert_int_equal(s.device[0].opened, 0); /* the device is still being opened */
    atomic_store(&may_open, true);
    assert_int_equal(pthread_join(thread, &right), 0);
    assert_ptr_equal(right, &s);
    assert_int_equal(guard_shared_open(&s, 2, &c), ENODEV);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slow), cmocka_unit_test(test_ended), cmocka_unit_test(test_opens_slowly)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
