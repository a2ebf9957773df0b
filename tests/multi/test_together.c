/* SPDX-License-Identifier: MIT
 *
 * Small puts and gets over ofi that wait for room share RMA requests. All bytes are right, also if the requests are lost and begin again,
 * or if the provider refuses shared requests. Run by over_network.py.
 *
 * Usage: multi_together POOR_LIBRARY    (poor_library.c)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "cluster_test.h"
#include "fabric/ofi/ofi.h"

enum { OPERATIONS = 240, LARGEST = 64 << 10, WARM = 64 << 20 };

/* Operation i is of these bytes, and has a place of its own. Most do not begin or end at a page. */
static size_t size_of(uint32_t i)
{
    return i % 5 == 0 ? LARGEST : 8192 + i * 131 % (LARGEST - 8192);
}

static void fill(uint8_t *at, uint32_t i, uint64_t salt)
{
    uint64_t seed = salt * OPERATIONS + i;
    for (size_t k = 0; k < size_of(i); k += sizeof seed) {
        uint64_t word = random_next(&seed);
        memcpy(at + k, &word, size_of(i) - k < sizeof word ? size_of(i) - k : sizeof word);
    }
}

static const char *poor_library;

struct plan {
    bool put, renews, refused;
    uint64_t salt;
};

/* Begins all operations while no completion can be handled, so that most of them wait. Returns how many RMA requests they were. */
static uint64_t begin_all(weft_node *w, const struct plan *p, uint8_t *here, weft_gaddr there, weft_op *ops)
{
    struct ofi *o = ofi_device_at(w, 0);
    struct ofi_link *l = ofi_link_of(o, 1);
    uint64_t before = l->moved;
    base_spin_lock(&o->receiving);
    for (uint32_t i = 0; i < OPERATIONS; i++) {
        weft_gaddr far = there + (uint64_t)i * LARGEST;
        uint8_t *local = here + (size_t)i * LARGEST;
        OK(p->put ? weft_put(w, far, local, size_of(i), &ops[i]) : weft_get(w, local, far, size_of(i), &ops[i]));
    }
    o->renew = p->renews;
    base_spin_unlock(&o->receiving);
    fab_kick(w);
    for (uint32_t i = 0; i < OPERATIONS; i++)
        OK(weft_wait(w, &ops[i], patience_ns(60)));
    return l->moved - before;
}

static void share(weft_node *w, void *arg)
{
    const struct plan *p = arg;
    weft_gaddr a = symmetric_alloc(w, WARM);
    uint8_t *mine = weft_ptr(w, a, WARM), *expected = malloc(LARGEST);
    static weft_op ops[OPERATIONS];
    uint32_t source = p->put ? 0 : 1; /* the node that has the bytes at first */
    CHECK(expected);
    if (weft_rank(w) == 0) /* afterwards as much is under way as the network can take */
        OK(weft_put_blocking(w, on_node(a, 1), mine, WARM));
    OK(weft_barrier(w, patience_ns(60)));
    for (uint32_t i = 0; weft_rank(w) == source && i < OPERATIONS; i++)
        fill(mine + (size_t)i * LARGEST, i, p->salt);
    OK(weft_barrier(w, patience_ns(60)));
    if (weft_rank(w) == 0) {
        uint64_t requests = begin_all(w, p, mine, on_node(a, 1), ops);
        const struct ofi_link *l = ofi_link_of(ofi_device_at(w, 0), 1);
        CHECK((l->most_together == 1) == p->refused && l->r.endpoint.move_least == OFI_MOVE_LEAST);
        CHECK(p->refused ? requests == OPERATIONS : requests >= OPERATIONS / OFI_TOGETHER);
        CHECK(p->refused || requests <= OFI_MOVES + OPERATIONS / 2); /* those that began at once, and the others together */
    }
    OK(weft_barrier(w, patience_ns(60)));
    for (uint32_t i = 0; weft_rank(w) != source && i < OPERATIONS; i++) {
        fill(expected, i, p->salt);
        CHECK(memcmp(mine + (size_t)i * LARGEST, expected, size_of(i)) == 0);
    }
    free(expected);
    OK(weft_barrier(w, patience_ns(60)));
}

static void run(struct plan p)
{
    char library[4096];
    snprintf(library, sizeof library, "WEFT_OFI_LIBRARY=%s", poor_library);
    const char *const environment[] = {"WEFT_POOL=96M", p.refused ? library : NULL, "POOR_LIBRARY=single", NULL};
    assert_int_equal(nodes_failed_with(2, share, &p, environment), 0);
}

static void test_puts(void **state)
{
    (void)state;
    run((struct plan){.put = true, .salt = 1});
}

static void test_gets(void **state)
{
    (void)state;
    run((struct plan){.put = false, .salt = 2});
}

/* The endpoint is replaced while the requests are under way: all operations begin again. */
static void test_lost(void **state)
{
    (void)state;
    run((struct plan){.put = true, .renews = true, .salt = 3});
    run((struct plan){.put = false, .renews = true, .salt = 4});
}

/* The provider refuses shared requests: each operation has an RMA request of its own. */
static void test_refused(void **state)
{
    (void)state;
    run((struct plan){.put = true, .refused = true, .salt = 5});
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_puts), cmocka_unit_test(test_gets), cmocka_unit_test(test_lost),
                                       cmocka_unit_test(test_refused)};
    if (argc != 2)
        return 2;
    poor_library = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
