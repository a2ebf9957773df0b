/* SPDX-License-Identifier: MIT
 *
 * The bytes that a link counts (weft_link_stat()): those of puts, messages and gets, of each size and way, once each. WEFT_TRANSPORT
 * chooses the transport.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "cluster_test.h"

enum { MOST = 5 << 20 };
static const size_t sizes[] = {8, 200, 4096, 9000, 65537, 1 << 20, MOST - 3};
static const struct {
    size_t header, payload;
} messages[] = {{24, 0}, {24, 8}, {0, 1000}, {24, 3840}, {5, 0}, {1, 1}, {13, 999}, {0, 0}}; /* rc pads headers to 8 bytes */

static void on_message(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                       void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    atomic_fetch_add((_Atomic uint32_t *)arg, 1);
}

static weft_link_stats since(weft_node *w, const weft_link_stats *before)
{
    weft_link_stats now = stats(w, 1);
    now.sent_bytes -= before->sent_bytes;
    now.fetched_bytes -= before->fetched_bytes;
    return now;
}

/* Node 0 does everything; node 1 only makes progress. */
static void counted(weft_node *w, void *arg)
{
    _Atomic uint32_t *came = arg, *phase = came + 1;
    static uint8_t outside[MOST];
    weft_gaddr area = symmetric_alloc(w, MOST);
    OK(weft_handle(w, 1, on_message, came));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    meet(phase, 2);
    if (weft_rank(w) == 0) {
        uint8_t *const from[] = {outside, weft_ptr(w, area, MOST)};
        weft_link_stats before = stats(w, 1), now;
        bool counts = strcmp(before.transport, "shm") != 0;
        for (size_t i = 0; i < 2 * sizeof sizes / sizeof sizes[0]; i++) {
            size_t n = sizes[i / 2];
            before = stats(w, 1);
            OK(weft_put_blocking(w, on_node(area, 1), from[i % 2], n));
            OK(weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT));
            now = since(w, &before);
            CHECK(now.sent_bytes == (counts ? n : 0) && now.fetched_bytes == 0);
            OK(weft_get_blocking(w, from[i % 2], on_node(area, 1), n));
            now = since(w, &before);
            CHECK(now.sent_bytes == (counts ? n : 0) && now.fetched_bytes == (counts ? n : 0));
        }
        before = stats(w, 1);
        uint64_t sum = 0;
        for (uint32_t i = 0; i < sizeof messages / sizeof messages[0]; i++) {
            OK(weft_send(w, 1, 1, outside, messages[i].header, outside, messages[i].payload, NULL));
            sum += messages[i].header + messages[i].payload;
            wait_for(came, i + 1);
            now = since(w, &before);
            CHECK(now.sent_bytes == (counts ? sum : 0) && now.fetched_bytes == 0);
        }
    }
    meet(phase + 1, 2);
}

static void test_counted(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, counted, shared_words(64)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
