/* Prints the time of MPI_Allreduce by size, measured as in the OSU benchmarks: warm buffers, the mean of all ranks and calls. Uses only MPI.
 *
 *     mpicc -O2 all_reduce.c -o all_reduce && mpirun -n 2 all_reduce [LARGEST_BYTES]
 */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { SMALL_CALLS = 10000, LARGE_CALLS = 20, WARM = 5, LARGE = 1 << 20 };

static int calls_of(size_t bytes)
{
    if (bytes >= LARGE)
        return LARGE_CALLS;
    return bytes >= LARGE / 64 ? SMALL_CALLS / 20 : SMALL_CALLS;
}

/* Returns the microseconds per call on this rank. Each call starts after a barrier, which is not measured. */
static double measured(const float *from, float *to, size_t bytes)
{
    int calls = calls_of(bytes), count = (int)(bytes / sizeof(float));
    double sum = 0;
    for (int call = -WARM; call < calls; call++) {
        double start = MPI_Wtime();
        MPI_Allreduce(from, to, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (call >= 0)
            sum += MPI_Wtime() - start;
        MPI_Barrier(MPI_COMM_WORLD);
    }
    return sum / calls * 1e6;
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    size_t largest = argc > 1 ? strtoull(argv[1], NULL, 10) : (size_t)64 << 20;
    float *from = malloc(largest), *to = malloc(largest);
    for (size_t i = 0; i < largest / sizeof(float); i++) {
        from[i] = 1;
        to[i] = 0;
    }
    if (rank == 0)
        printf("# bytes  us\n");
    for (size_t bytes = sizeof(float); bytes <= largest; bytes *= 2) {
        double own = measured(from, to, bytes), all;
        MPI_Reduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        for (size_t i = 0; i < bytes / sizeof(float); i++)
            if (to[i] != (float)ranks)
                MPI_Abort(MPI_COMM_WORLD, 1);
        if (rank == 0)
            printf("%zu %.2f\n", bytes, all / ranks);
    }
    free(from);
    free(to);
    MPI_Finalize();
    return 0;
}
