/* SPDX-License-Identifier: MIT
 *
 * The ofi transport over lines so slow that what is sent at once takes longer than the liveness time: the work goes on, slowly.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

#include "cluster_test.h"

enum { LINE_MOST = 4 << 20 };

struct line {
    const char *rate;         /* of the line, each way, as tc writes it */
    uint32_t bytes, messages; /* what is moved each way */
};

/* The slow lines are behind the hosts' interfaces, from the bridge to each host, so the kernels of the hosts do not see how long they are.
 * Their queues hold much, as those of bad lines do: nothing is lost, but everything waits behind what was sent before. */
static bool each_line(const char *verb, const char *words)
{
    char command[512];
    bool ok = true;
    for (int net = 0; net < 2; net++)
        for (int host = 0; host < 2; host++) {
            snprintf(command, sizeof command, "nsenter --net=%s tc qdisc %s dev net%d-%d root %s", getenv("TEST_BRIDGE"), verb, net, host,
                     words);
            ok = system(command) == 0 && ok;
        }
    return ok;
}

static void fill(uint8_t *bytes, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)((i * 7 + seed) % 251 + 1);
}

static bool right(const uint8_t *bytes, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        if (bytes[i] != (uint8_t)((i * 7 + seed) % 251 + 1))
            return false;
    return true;
}

static void on_message(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                       void *arg)
{
    _Atomic uint32_t *came = arg;
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    atomic_fetch_add(came, 1);
}

/* Both nodes put, send messages and get, all at the same time. */
static void go_on(weft_node *w, void *arg)
{
    struct line *line = arg;
    uint32_t me = weft_rank(w), other = 1 - me;
    static uint8_t out[LINE_MOST], in[LINE_MOST];
    static const uint8_t payload[1024];
    static _Atomic uint32_t came;
    weft_gaddr to = symmetric_alloc(w, line->bytes), from = symmetric_alloc(w, line->bytes);
    weft_op put, get;
    uint64_t old;
    OK(weft_handle(w, 1, on_message, &came));
    fill(weft_ptr(w, from, line->bytes), line->bytes, me);
    fill(out, line->bytes, 2 + me);
    OK(weft_barrier(w, patience_ns(60)));
    int64_t began = now_ns();
    OK(weft_put(w, on_node(to, other), out, line->bytes, &put));
    OK(weft_get(w, in, on_node(from, other), line->bytes, &get));
    for (uint32_t i = 0; i < line->messages; i++)
        OK(weft_send(w, other, 1, NULL, 0, payload, sizeof payload, NULL));
    OK(weft_wait(w, &put, patience_ns(100)));
    OK(weft_wait(w, &get, patience_ns(100)));
    OK(weft_fetch_add_blocking(w, on_node(to, other), 0, &old));
    CHECK(right(in, line->bytes, other));
    OK(weft_barrier(w, patience_ns(100)));
    CHECK(right(weft_ptr(w, to, line->bytes), line->bytes, 2 + other));
    for (int64_t end = now_ns() + patience_ns(100); atomic_load(&came) < line->messages && now_ns() < end;)
        usleep(1000);
    CHECK(atomic_load(&came) == line->messages);
    print_message("node %u: %u bytes each way by put and by get, and %u messages of 1 KiB, at %s: %.1f s\n", me, line->bytes,
                  line->messages, line->rate, (double)(now_ns() - began) / 1e9);
    CHECK(weft_alive(w, other) && stats(w, other).connects == 0);
    OK(weft_barrier(w, patience_ns(60)));
}

static void at_rate(const char *rate, uint32_t bytes, uint32_t messages)
{
    /* the default liveness, or more on a slow machine: WEFT_LIVENESS of the environment is for other tests */
    char liveness[48];
    snprintf(liveness, sizeof liveness, "WEFT_LIVENESS=%lldms", (long long)(patience_ns(2) / 1000000));
    const char *const environment[] = {liveness, "WEFT_DEADLINE=100s", NULL};
    struct line *line = shared_words(sizeof *line);
    *line = (struct line){.rate = rate, .bytes = bytes, .messages = messages};
    char words[128];
    snprintf(words, sizeof words, "tbf rate %s burst 5k limit 16m", rate);
    bool slow = each_line("add", words);
    int failed = slow ? nodes_failed_with(2, go_on, line, environment) : 0;
    (void)each_line("del", "");
    if (!slow) {
        print_message("the network cannot be made slow here\n");
        skip();
    }
    assert_int_equal(failed, 0);
}

static void test_megabits(void **state)
{
    (void)state;
    at_rate("10mbit", 4 << 20, 400);
}

static void test_megabit(void **state)
{
    (void)state;
    at_rate("1mbit", 512 << 10, 200);
}

static void test_kilobits(void **state)
{
    (void)state;
    at_rate("256kbit", 128 << 10, 150);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_megabits),
        cmocka_unit_test(test_megabit),
        cmocka_unit_test(test_kilobits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
