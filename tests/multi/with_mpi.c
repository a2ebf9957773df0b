/* SPDX-License-Identifier: MIT
 *
 * A program that uses both MPI and weft, started by mpirun: MPI's rank and size must equal weft's.
 *
 * Usage: multi_with_mpi FIRST     "mpi": MPI is initialized before the node is opened, and finalized after it is closed; "weft": both
 * happen while the node is open
 */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <weft.h>

int main(int argc, char **argv)
{
    bool mpi_first = argc > 1 && strcmp(argv[1], "mpi") == 0;
    weft_node *w;
    if (mpi_first)
        MPI_Init(&argc, &argv);
    for (int round = 0; round < 2; round++) {
        int rank, size, mine, sum = -1;
        if (weft_open(&w, NULL)) {
            fprintf(stderr, "open: %s\n", weft_error());
            return 1;
        }
        if (!mpi_first && round == 0)
            MPI_Init(&argc, &argv);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        mine = 1 << weft_rank(w);
        MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        int rc = weft_barrier(w, WEFT_TIMEOUT_DEFAULT);
        printf("round %d: %d of %d, %u of %u, sum %d, barrier %d\n", round, rank, size, weft_rank(w), weft_size(w), sum, rc);
        fflush(stdout);
        if (!mpi_first && round == 1)
            MPI_Finalize();
        weft_close(w);
    }
    if (mpi_first)
        MPI_Finalize();
    return 0;
}
