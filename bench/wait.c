/* SPDX-License-Identifier: MIT
 *
 * The cost of waiting: the processor time of a node that waits, and how long after an event a sleeping node continues, for a signal in
 * memory and for a message; beside both, how long the kernel takes to wake a process (futex). Run with two nodes; node 1 waits and prints.
 */
#include <stdbool.h>
#include <sys/resource.h>
#include <unistd.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include "spec.h"
#include "weft.h"

enum { ON_WAKE, SLEEP_US = 2000, MOST = 100000 };

struct words { /* each on a cache line of its own, at the same offset on both nodes */
    uint64_t go[8], ack[8], sent_ns[8];
    uint32_t futex[16];
};

static weft_node *w;
static weft_gaddr mine, theirs;
static uint64_t heard, message_ns, samples[MOST];

static void must(const char *what, int rc)
{
    if (rc < 0) {
        fprintf(stderr, "weft: %s: %s (%s)\n", what, weft_error(), strerror(-rc));
        exit(1);
    }
}

static void on_wake(weft_node *node, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                    void *arg)
{
    (void)node, (void)from, (void)payload, (void)payload_len, (void)arg;
    uint64_t sent = 0, now = spec_now_ns();
    memcpy(&sent, header, header_len < 8 ? header_len : 8);
    __atomic_store_n(&message_ns, now - sent, __ATOMIC_RELAXED);
    __atomic_fetch_add(&heard, 1, __ATOMIC_RELEASE);
}

static weft_gaddr at(weft_gaddr base, size_t offset)
{
    return base + offset;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double median_us(uint64_t n)
{
    qsort(samples, n, sizeof samples[0], ascending);
    return (double)samples[n / 2] / 1e3;
}

static double cpu_seconds(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

/* Node 0: gives node 1 time to fall asleep, wakes node 1, and then waits for its answer, asleep as well. */
static void drive(const struct spec *s, uint64_t round, struct words *far)
{
    usleep(SLEEP_US);
    uint64_t now = spec_now_ns();
    if (strcmp(s->test, "wake_message") == 0) {
        must("send", weft_send(w, 1, ON_WAKE, &now, 8, NULL, 0, NULL));
    } else if (strcmp(s->test, "wake_signal") == 0) {
        must("put_signal",
             weft_put_signal(w, at(theirs, offsetof(struct words, sent_ns)), &now, 8, at(theirs, offsetof(struct words, go)), 1, NULL));
    } else {
#if defined(__linux__)
        __atomic_store_n(&far->sent_ns[0], now, __ATOMIC_RELAXED);
        __atomic_fetch_add(&far->futex[0], 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &far->futex[0], FUTEX_WAKE, 1, NULL, NULL, 0);
#else
        (void)far;
#endif
    }
    must("wait", weft_wait_until(w, at(mine, offsetof(struct words, ack)), WEFT_GE, round, NULL, WEFT_TIMEOUT_DEFAULT));
}

/* Node 1: sleeps until woken. Returns how long after the event it continued. */
static uint64_t be_woken(const struct spec *s, uint64_t round, uint64_t futex_before, struct words *here)
{
    if (strcmp(s->test, "wake_message") == 0) {
        while (__atomic_load_n(&heard, __ATOMIC_ACQUIRE) < round)
            usleep(200); /* this thread does not wait, so the progress thread is woken */
        return __atomic_load_n(&message_ns, __ATOMIC_RELAXED);
    }
    if (strcmp(s->test, "wake_signal") == 0) {
        must("wait", weft_wait_until(w, at(mine, offsetof(struct words, go)), WEFT_GE, round, NULL, WEFT_TIMEOUT_DEFAULT));
    } else {
#if defined(__linux__)
        while (__atomic_load_n(&here->futex[0], __ATOMIC_ACQUIRE) == (uint32_t)futex_before)
            syscall(SYS_futex, &here->futex[0], FUTEX_WAIT, (uint32_t)futex_before, NULL, NULL, 0);
#else
        (void)futex_before;
#endif
    }
    return spec_now_ns() - here->sent_ns[0];
}

static void wake(const struct spec *s)
{
    struct words *here = weft_ptr(w, mine, sizeof *here), *far = weft_ptr(w, theirs, sizeof *far);
    uint64_t n = s->iterations + s->warmup < MOST ? s->iterations : MOST - s->warmup, kept = 0;
    static uint64_t signals, messages, acks;
    bool message = strcmp(s->test, "wake_message") == 0, signal = strcmp(s->test, "wake_signal") == 0;
    for (uint64_t i = 0; i < n + s->warmup; i++) {
        uint64_t round = message ? ++messages : signal ? ++signals : 0;
        acks++;
        if (weft_rank(w) == 0) {
            drive(s, acks, far);
            continue;
        }
        uint64_t took = be_woken(s, round, acks > 0 ? here->futex[0] : 0, here);
        if (i >= s->warmup)
            samples[kept++] = took;
        must("ack", weft_put_signal(w, 0, NULL, 0, at(theirs, offsetof(struct words, ack)), 1, NULL));
    }
    if (weft_rank(w) == 1)
        spec_value(s, median_us(kept));
}

/* Node 1 waits for `iterations` milliseconds; prints how many percent of a core its threads used meanwhile. */
static void blocked(const struct spec *s)
{
    if (weft_rank(w) == 0) {
        must("barrier", weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
        usleep((useconds_t)s->iterations * 1000 + 200000);
        return;
    }
    must("barrier", weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    double before = cpu_seconds();
    uint64_t start = spec_now_ns();
    (void)weft_wait_until(w, at(mine, offsetof(struct words, futex)), WEFT_EQ, UINT64_MAX, NULL, (int64_t)s->iterations * WEFT_MS);
    double used = cpu_seconds() - before, took = (double)(spec_now_ns() - start) / 1e9;
    spec_value(s, 100 * used / took);
}

int main(int argc, char **argv)
{
    must("open", weft_open(&w, NULL));
    if (weft_size(w) != 2) {
        fprintf(stderr, "bench_wait wants two nodes, started by bench/run or weft run -n 2\n");
        return 2;
    }
    must("alloc", weft_alloc_aligned(w, sizeof(struct words), 64, &mine));
    memset(weft_ptr(w, mine, sizeof(struct words)), 0, sizeof(struct words));
    must("handle", weft_handle(w, ON_WAKE, on_wake, NULL));
    uint64_t all[2];
    must("exchange", weft_exchange(w, &mine, 1, all, NULL, WEFT_TIMEOUT_DEFAULT));
    theirs = all[1 - weft_rank(w)];
    for (int i = 1; i < argc; i++) {
        struct spec s;
        if (spec_parse(&s, argv[i]))
            return 2;
        must("barrier", weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
        if (strcmp(s.test, "blocked") == 0)
            blocked(&s);
        else
            wake(&s);
    }
    must("barrier", weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    return weft_close(w);
}
