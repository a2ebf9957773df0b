/* SPDX-License-Identifier: MIT
 *
 * lock: a bank with two accounts in the memory of node 0. All nodes move money between the accounts at the same time. The lock keeps the
 * sum unchanged.
 *
 * It shows weft_lock(), weft_unlock(), and the weft_flush() before the unlock, which makes the writes visible to the next holder.
 *
 * Run:
 *     weft run -n 4 -- ./lock
 * It prints:
 *     1000 transfers by 4 nodes: the accounts hold 2000 together, as before
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

#define TRANSFERS 250

struct bank {
    uint64_t lock; /* 0 before its first use */
    uint64_t transfers;
    int64_t account[2];
};

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "lock: %s: %s\n", what, weft_error());
        exit(1);
    }
}

static void transfer(weft_node *w, weft_gaddr bank, int64_t amount)
{
    struct bank b;
    check(weft_lock(w, bank + offsetof(struct bank, lock), WEFT_TIMEOUT_DEFAULT, NULL), "lock");
    check(weft_get_blocking(w, &b, bank, sizeof b), "get");
    b.account[0] -= amount;
    b.account[1] += amount;
    b.transfers++;
    /* Write everything except the lock, which only the lock functions may change. */
    check(weft_put_blocking(w, bank + offsetof(struct bank, transfers), &b.transfers, sizeof b - offsetof(struct bank, transfers)), "put");
    check(weft_flush(w, weft_gaddr_node(bank), WEFT_TIMEOUT_DEFAULT), "flush");
    check(weft_unlock(w, bank + offsetof(struct bank, lock)), "unlock");
}

int main(void)
{
    weft_node *w;
    weft_gaddr bank = WEFT_NULL, all[WEFT_MAX_NODES];
    check(weft_open(&w, NULL), "open");
    uint32_t me = weft_rank(w), nodes = weft_size(w);

    if (me == 0) {
        check(weft_alloc(w, sizeof(struct bank), &bank), "alloc");
        *(struct bank *)weft_ptr(w, bank, sizeof(struct bank)) = (struct bank){.account = {1000, 1000}};
    }
    check(weft_exchange(w, &bank, 1, all, NULL, WEFT_TIMEOUT_DEFAULT), "exchange");
    bank = all[0];

    for (int i = 0; i < TRANSFERS; i++)
        transfer(w, bank, (int)me * 7 + i % 13 - 9);
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");

    if (me == 0) {
        const struct bank *b = weft_ptr(w, bank, sizeof *b);
        printf("%llu transfers by %u nodes: the accounts hold %lld together, as before\n", (unsigned long long)b->transfers, nodes,
               (long long)(b->account[0] + b->account[1]));
    }
    check(weft_close(w), "close");
    return 0;
}
