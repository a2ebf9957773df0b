/* SPDX-License-Identifier: MIT
 *
 * Requests and answers in small pieces, for which the gateway's thread lingers (gateway/linger.c) even on a machine with few processors:
 * nothing is lost, and nobody waits for a thread that was not woken (net_test.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gateway/serve.h"
#include "net_test.h"

#define PAIRS 2u

static void *echo(void *arg)
{
    int fd = *(int *)arg;
    char some[256];
    for (ssize_t n; (n = read(fd, some, sizeof some)) > 0;)
        send_all(fd, some, (size_t)n);
    return NULL;
}

/* First one connection, then two in turns, then two whose answers are awaited together. */
static void requests(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 0) {
        /* before the first connection, so nobody uses it yet */
        gateway_server_lingering(gateway_in(w)->server)->processors = 64;
        OK(weft_barrier(w, DEFAULT_TIME));
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    OK(weft_barrier(w, DEFAULT_TIME));
    uint32_t port;
    int listener = listen_at("127.0.0.1", &port), fd[PAIRS];
    weft_socket *s[PAIRS];
    pthread_t threads[PAIRS];
    for (unsigned k = 0; k < PAIRS; k++) {
        OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port, .flags = WEFT_NET_NODELAY), &s[k], DEFAULT_TIME));
        fd[k] = accept_at(listener);
        CHECK(pthread_create(&threads[k], NULL, echo, &fd[k]) == 0);
    }
    const unsigned rounds = (unsigned)repeats(3000);
    for (unsigned i = 0; i < rounds; i++) {
        unsigned first = i < rounds / 2 ? 0 : i % PAIRS, last = i < rounds * 3 / 4 ? first : PAIRS - 1;
        for (unsigned k = first; k <= last; k++)
            OK(weft_net_send(s[k], &i, sizeof i, NULL, DEFAULT_TIME));
        for (unsigned k = first; k <= last; k++) {
            unsigned answer;
            size_t got;
            for (size_t at = 0; at < sizeof answer; at += got) {
                OK(weft_net_receive(s[k], (char *)&answer + at, sizeof answer - at, &got, DEFAULT_TIME));
                CHECK(got > 0);
            }
            CHECK(answer == i);
        }
    }
    for (unsigned k = 0; k < PAIRS; k++) {
        OK(weft_net_close(s[k]));
        pthread_join(threads[k], NULL);
        close(fd[k]);
    }
    close(listener);
    OK(weft_barrier(w, DEFAULT_TIME));
}

TEST(requests)

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_requests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
