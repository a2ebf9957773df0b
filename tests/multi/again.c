/* SPDX-License-Identifier: MIT
 *
 * A program that opens and closes a node three times (30 times with any argument), and each time exchanges other words with all nodes.
 */
#include <stdio.h>
#include <weft.h>

int main(int argc, char **argv)
{
    (void)argv;
    for (uint64_t round = 0; round < (argc > 1 ? 30 : 3); round++) {
        weft_node *w;
        uint64_t mine, all[WEFT_MAX_NODES];
        int rc = weft_open(&w, NULL);
        if (rc) {
            fprintf(stderr, "open: %s\n", weft_error());
            return 1;
        }
        mine = 100 * round + weft_rank(w);
        rc = weft_exchange(w, &mine, 1, all, NULL, WEFT_TIMEOUT_DEFAULT);
        for (uint32_t i = 0; !rc && i < weft_size(w); i++)
            rc = all[i] != 100 * round + i;
        if (rc) {
            fprintf(stderr, "round %u: %s\n", (unsigned)round, weft_error());
            return 1;
        }
        if (weft_rank(w) == 0)
            printf("round %u: %u nodes\n", (unsigned)round, weft_size(w));
        weft_close(w);
    }
    return 0;
}
