/* SPDX-License-Identifier: MIT
 *
 * Operations for which there is no memory: a call that fails has started nothing, and its op is not left pending. The linker's --wrap
 * replaces malloc(): while `failing` is set in a thread, its allocations fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "cluster_test.h"
#include "fabric/rc/rc.h"
#include "fabric/tb/tb.h"
#include "sync/lock.h"

static _Thread_local bool failing;

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes)
{
    return failing ? NULL : __real_malloc(bytes);
}

enum kind { PUT, LARGE_PUT, GET, LARGE_GET, ADD, SWAP, COMPARE_SWAP, PUT_SIGNAL, SEND, KINDS };
enum { MOST = 20000, LARGE = 40000 };

struct stage {
    _Atomic uint32_t held, failed;
};

static void ignore(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len, (void)arg;
}

static int start(weft_node *w, enum kind kind, weft_gaddr there, weft_op *op)
{
    static uint8_t out[LARGE], in[LARGE]; /* outside the pool */
    static uint64_t old;
    switch (kind) {
    case PUT: return weft_put(w, there + 64, out, 8, op);
    case LARGE_PUT: return weft_put(w, there + 64, out, sizeof out, op);
    case GET: return weft_get(w, in, there + 64, 8, op);
    case LARGE_GET: return weft_get(w, in, there + 64, sizeof in, op);
    case ADD: return weft_fetch_add(w, there, 1, &old, op);
    case SWAP: return weft_swap(w, there + 8, 1, &old, op);
    case COMPARE_SWAP: return weft_compare_swap(w, there + 8, 0, 1, &old, op);
    case PUT_SIGNAL: return weft_put_signal(w, there + 64, out, 8, there, 1, op);
    default: return weft_send(w, 1, 1, out, 8, out, 100, op);
    }
}

/* The lock of the thread that polls for completions. The test holds it, so that no completion makes room. */
static base_spin *receiving(weft_node *w)
{
    struct rc *rc = w->rc;
    struct tb *tb = w->tb;
    const char *transport = w->links[1].transport->name;
    return strcmp(transport, "rc") == 0 ? &rc->receiving : strcmp(transport, "tb") == 0 ? &tb->receiving : NULL;
}

static void exhaust(weft_node *w, enum kind kind, weft_gaddr there)
{
    static weft_op ops[MOST];
    base_spin *looks = receiving(w);
    uint64_t before, after, signals = kind == ADD || kind == PUT_SIGNAL;
    uint32_t n = 0;
    int rc = 0;
    memset(ops, 0, sizeof ops);
    OK(weft_get_blocking(w, &before, there, 8));
    if (looks)
        base_spin_lock(looks);
    failing = true;
    while (n < MOST && rc == 0)
        rc = start(w, kind, there, &ops[n++]);
    failing = false;
    if (looks)
        base_spin_unlock(looks);
    if (!looks && kind != SEND) {
        CHECK(rc == 0); /* over shared memory these operations complete at once and need no memory */
        return;
    }
    CHECK(rc == -ENOMEM);
    CHECK(weft_test(w, &ops[--n]) != -EINPROGRESS);
    (void)weft_wait(w, &ops[n], patience_ns(5));
    CHECK(start(w, kind, there, &ops[n]) == 0); /* now there is memory */
    for (uint32_t i = 0; kind != SEND && i <= n; i++)
        OK(weft_wait(w, &ops[i], WEFT_TIMEOUT_DEFAULT));
    OK(kind == SEND ? 0 : weft_get_blocking(w, &after, there, 8));
    CHECK(kind == SEND || after - before == signals * (n + 1));
}

struct waiter {
    weft_node *w;
    weft_gaddr word;
};

static void *wait_for_lock(void *arg)
{
    struct waiter *l = arg;
    bool inherited = true;
    OK(weft_lock(l->w, l->word, patience_ns(60), &inherited));
    CHECK(!inherited);
    OK(weft_unlock(l->w, l->word));
    return NULL;
}

/* Unlocks a lock for which another node waits, while there is no memory for the message to its home. Afterwards the lock is released, or
 * still held and can be unlocked again. */
static void unlock_without(weft_node *w, weft_gaddr word)
{
    failing = true;
    int rc = weft_unlock(w, word);
    failing = false;
    CHECK(rc == 0 || rc == -ENOMEM);
    if (rc)
        OK(weft_unlock(w, word));
}

static void no_memory(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    OK(weft_handle(w, 1, ignore, NULL));
    weft_gaddr words = symmetric_alloc(w, 64 + LARGE), lock = on_node(words, 1) + 16;
    struct waiter waiter = {w, lock};
    pthread_t thread;
    if (weft_rank(w) == 0) { /* takes the lock over from a dead holder; the next holder must not be told of that death */
        bool inherited = false;
        uint64_t orphan = LOCK_ORPHAN;
        OK(weft_put_blocking(w, lock, &orphan, 8));
        OK(weft_lock(w, lock, WEFT_TIMEOUT_DEFAULT, &inherited));
        CHECK(inherited);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 1) {
        uint64_t word = 0;
        CHECK(pthread_create(&thread, NULL, wait_for_lock, &waiter) == 0);
        while (!(word & LOCK_WAITERS))
            OK(weft_get_blocking(w, &word, lock, 8));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 0) {
        for (int kind = 0; kind < KINDS; kind++) {
            if (kind == SEND) { /* node 1 stops handling messages */
                stage->held = 1;
                wait_for(&stage->held, 2);
            }
            exhaust(w, (enum kind)kind, on_node(words, 1));
        }
        unlock_without(w, lock);
        stage->failed = 1;
    } else {
        wait_for(&stage->held, 1);
        base_spin_lock(&w->progress);
        stage->held = 2;
        wait_for(&stage->failed, 1);
        base_spin_unlock(&w->progress);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    OK(weft_flush(w, 1 - weft_rank(w), WEFT_TIMEOUT_DEFAULT));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_no_memory(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, no_memory, shared_words(4096)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
