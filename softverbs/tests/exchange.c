/* SPDX-License-Identifier: MIT
 *
 * An MPI program: messages of all lengths in a ring, a reduction, and one-sided calls. It checks every byte. test_ucx.py compiles it with
 * mpicc.
 */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static unsigned char out[1 << 20], in[1 << 20];

static unsigned char byte(size_t i, int from, size_t bytes)
{
    return (unsigned char)(i * 7 + (size_t)from + bytes);
}

int main(int argc, char **argv)
{
    int rank, ranks, before, after, wrong = 0, one = 1, sum = 0;
    long *window, value;
    MPI_Win win;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    after = (rank + 1) % ranks;
    before = (rank + ranks - 1) % ranks;
    for (size_t bytes = 0; bytes <= sizeof out; bytes = bytes * 3 + 1) {
        for (size_t i = 0; i < bytes; i++)
            out[i] = byte(i, rank, bytes);
        memset(in, 0, sizeof in);
        MPI_Sendrecv(out, (int)bytes, MPI_BYTE, after, 1, in, (int)bytes, MPI_BYTE, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (size_t i = 0; i < bytes; i++)
            wrong += in[i] != byte(i, before, bytes);
    }
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    wrong += sum != ranks;

    MPI_Win_allocate(8 * sizeof *window, sizeof *window, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
    memset(window, 0, 8 * sizeof *window);
    MPI_Win_fence(0, win);
    value = rank + 100;
    MPI_Put(&value, 1, MPI_LONG, after, 3, 1, MPI_LONG, win);
    MPI_Accumulate(&value, 1, MPI_LONG, 0, 5, 1, MPI_LONG, MPI_SUM, win);
    MPI_Win_fence(0, win);
    wrong += window[3] != before + 100;
    wrong += rank == 0 && window[5] != 100L * ranks + (long)ranks * (ranks - 1) / 2;
    MPI_Win_free(&win);

    printf("rank %d of %d: %d wrong\n", rank, ranks, wrong);
    MPI_Finalize();
    return wrong != 0;
}
