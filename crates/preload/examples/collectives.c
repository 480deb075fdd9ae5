/* Compares the times of collectives by MPI and with the library in one run. Batches of calls alternate between PMPI_ functions, which the
 * library does not intercept, and MPI_ functions. Other programs disturb both, so the 12.5 % quantiles of the batches' times are
 * compared. Without the library, both call MPI.
 *
 *     mpicc -O2 collectives.c -o collectives && mpirun -n 2 unisono accelerate ./collectives
 */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

/* The first calls of a size are the library's trial. */
enum { TRIAL = 150, BATCHES = 40, LARGEST = 2 << 20, FUNCTIONS = 6 };

static const char *const NAMES[FUNCTIONS] = { "allreduce", "reduce", "bcast", "allgather", "alltoall", "reduce_scatter_block" };

static int rank, ranks;
static char *from, *to;

/* A call by MPI (`PMPI_`) or as the program makes it (`MPI_`). The root moves on. */
#define CALL(prefix)                                                                                         \
    switch (function) {                                                                                      \
    case 0:                                                                                                  \
        prefix##Allreduce(from, to, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);                          \
        break;                                                                                               \
    case 1:                                                                                                  \
        prefix##Reduce(from, to, bytes / 4, MPI_FLOAT, MPI_SUM, call % ranks, MPI_COMM_WORLD);               \
        break;                                                                                               \
    case 2:                                                                                                  \
        prefix##Bcast(from, bytes, MPI_BYTE, call % ranks, MPI_COMM_WORLD);                                  \
        break;                                                                                               \
    case 3:                                                                                                  \
        prefix##Allgather(from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, MPI_COMM_WORLD);                       \
        break;                                                                                               \
    case 4:                                                                                                  \
        prefix##Alltoall(from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, MPI_COMM_WORLD);                        \
        break;                                                                                               \
    default:                                                                                                 \
        prefix##Reduce_scatter_block(from, to, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);               \
    }

/* Returns the microseconds per call in a batch, on the slowest rank. */
static double batch(int function, int bytes, int calls, int is_by_mpi)
{
    PMPI_Barrier(MPI_COMM_WORLD);
    double time = MPI_Wtime();
    if (is_by_mpi)
        for (int call = 0; call < calls; call++)
            CALL(PMPI_)
    else
        for (int call = 0; call < calls; call++)
            CALL(MPI_)
    time = MPI_Wtime() - time;
    PMPI_Allreduce(MPI_IN_PLACE, &time, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return time / calls * 1e6;
}

static int ascending(const void *a, const void *b)
{
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

static void measure(int function, int bytes)
{
    int calls = bytes <= 8 << 10 ? 300 : bytes <= 256 << 10 ? 30 : 4;
    double times[2][BATCHES];
    batch(function, bytes, TRIAL, 0);
    for (int i = 0; i < BATCHES; i++)
        for (int side = 0; side < 2; side++)
            times[(side + i) % 2][i] = batch(function, bytes, calls, (side + i) % 2);
    qsort(times[0], BATCHES, sizeof(double), ascending);
    qsort(times[1], BATCHES, sizeof(double), ascending);
    double by_mpi = times[1][BATCHES / 8], accelerated = times[0][BATCHES / 8];
    if (rank == 0)
        printf("%-21s %8d %10.2f %10.2f %6.2f\n", NAMES[function], bytes, by_mpi, accelerated, by_mpi / accelerated);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    from = calloc((size_t)ranks, LARGEST);
    to = calloc((size_t)ranks, LARGEST);
    if (rank == 0)
        printf("# function                bytes     MPI us     now us  ratio\n");
    for (int function = 0; function < FUNCTIONS; function++)
        for (int bytes = 8; bytes <= LARGEST; bytes *= 8)
            measure(function, bytes);
    free(from);
    free(to);
    MPI_Finalize();
    return 0;
}
