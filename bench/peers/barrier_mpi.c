/* SPDX-License-Identifier: MIT
 *
 * The time of MPI_Barrier, averaged over many in a row, as bench/barrier.c measures weft's.
 */
#include <mpi.h>

#include "../spec.h"

int main(int argc, char **argv)
{
    struct spec spec;
    int rank;
    if (argc != 2 || spec_parse(&spec, argv[1]) || strcmp(spec.test, "barrier")) {
        fprintf(stderr, "usage: %s barrier:0:ITERATIONS:WARMUP\n", argv[0]);
        return 2;
    }
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (uint64_t i = 0; i < spec.warmup; i++)
        MPI_Barrier(MPI_COMM_WORLD);
    uint64_t start = spec_now_ns();
    for (uint64_t i = 0; i < spec.iterations; i++)
        MPI_Barrier(MPI_COMM_WORLD);
    uint64_t elapsed = spec_now_ns() - start;
    if (rank == 0)
        spec_value(&spec, spec_us(elapsed, spec.iterations));
    MPI_Finalize();
    return 0;
}
