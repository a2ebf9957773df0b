/* SPDX-License-Identifier: MIT
 *
 * A guard that answers slowly, as if its device waited for a peer, is not treated as dead. The end of a guard is noticed at once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "../../src/verbs/guard_ask.c"

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slow), cmocka_unit_test(test_ended)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
