/* SPDX-License-Identifier: MIT
 *
 * Progress under load: a flush ends although other threads send without a pause.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "cluster_test.h"
#include "fabric/fabric.h"

/* --- a flush waits only for operations that began before it, not until nobody sends any more --- */

struct sender {
    weft_node *w;
    _Atomic bool stop;
    _Atomic uint64_t sent;
};

static void busy_handler(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                         void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    for (int64_t start = now_ns(); now_ns() - start < *(const int64_t *)arg;)
        ;
}

static void *send_on(void *arg)
{
    struct sender *s = arg;
    uint64_t x = 0;
    while (!s->stop) {
        OK(weft_send(s->w, 1, 1, &x, sizeof x, NULL, 0, NULL));
        s->sent++;
    }
    return NULL;
}

static void flush_among_sends(weft_node *w, void *arg)
{
    OK(weft_handle(w, 1, busy_handler, arg));
    weft_gaddr word = symmetric_alloc(w, 8);
    if (weft_rank(w) == 0) {
        struct sender s = {.w = w};
        pthread_t t;
        CHECK(pthread_create(&t, NULL, send_on, &s) == 0);
        for (uint64_t i = 1, sent = 0; i <= 5; i++) {
            uint64_t back;
            for (sent += repeats(10000); s.sent < sent;) /* until the other thread is sending */
                usleep(100);
            OK(weft_put(w, on_node(word, 1), &i, sizeof i, NULL));
            OK(weft_flush(w, 1, patience_ns(5)));
            OK(weft_get_blocking(w, &back, on_node(word, 1), sizeof back));
            CHECK(back == i);
            sent = s.sent;
        }
        s.stop = true;
        pthread_join(t, NULL);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_flush_among_sends(void **state)
{
    /* With a handler slower than the sender, messages always wait at the sender; with a faster one, some are always under way. */
    static int64_t handler_takes_ns[] = {0, 2000};
    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(nodes_failed(2, flush_among_sends, &handler_takes_ns[i]), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flush_among_sends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
