/* SPDX-License-Identifier: MIT
 *
 * A program that puts bytes into the memory of the next node and checks what the previous node has put. The argument is the number of
 * rounds; without it, the program runs until it is ended. The bytes depend on the round and on the environment variable MARK_OF_PROGRAM, so
 * that two programs put different bytes. Node 0 prints its process ID and a line when
 * the first round was right, so that a test can kill it then, and another line at the end. Exit status 0: all bytes were right; 3:
 * weft_open() failed; 1: anything else.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <weft.h>

#define BYTES 300001u /* large enough for the lanes of bulk data, and not a multiple of their sizes */

static uint8_t mark;

static uint8_t byte_of(uint32_t node, uint64_t round, uint64_t i)
{
    return (uint8_t)(i * 31 + (i >> 8) * 7 + round * 13 + node * 101 + mark);
}

static int say(const char *what)
{
    fprintf(stderr, "bytes: %s: %s\n", what, weft_error());
    return 1;
}

int main(int argc, char **argv)
{
    weft_node *w;
    weft_gaddr mine[2] = {0, 0}, all[2 * WEFT_MAX_NODES];
    const char *set = getenv("MARK_OF_PROGRAM");
    mark = set ? (uint8_t)set[0] : 0;
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : UINT64_MAX;
    if (weft_open(&w, NULL)) {
        say("open");
        return 3;
    }
    uint32_t rank = weft_rank(w), size = weft_size(w), next = (rank + 1) % size, before = (rank + size - 1) % size;
    if (weft_alloc(w, BYTES, &mine[0]) || weft_alloc(w, BYTES, &mine[1]) || weft_exchange(w, mine, 2, all, NULL, WEFT_TIMEOUT_DEFAULT))
        return say("memory");
    uint8_t *from = weft_ptr(w, mine[0], BYTES), *to = weft_ptr(w, mine[1], BYTES);
    for (uint64_t round = 0; round < rounds; round++) {
        for (uint32_t i = 0; i < BYTES; i++)
            from[i] = byte_of(rank, round, i);
        if (weft_put_blocking(w, all[2 * next + 1], from, BYTES) || weft_barrier(w, WEFT_TIMEOUT_DEFAULT))
            return say("put");
        for (uint32_t i = 0; i < BYTES; i++)
            if (to[i] != byte_of(before, round, i)) {
                fprintf(stderr, "bytes: round %llu: byte %u of node %u is wrong\n", (unsigned long long)round, i, before);
                return 1;
            }
        if (weft_barrier(w, WEFT_TIMEOUT_DEFAULT))
            return say("barrier");
        if (round == 0 && rank == 0) {
            printf("begun %d\n", (int)getpid());
            fflush(stdout);
        }
    }
    if (rank == 0)
        printf("right\n");
    weft_close(w);
    return 0;
}
