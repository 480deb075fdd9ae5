/* Compares Unisono's all-reduce with MPI's, alternating in one process, on arrays that each rank has just written. Prints the medians of the
 * slowest rank's times in µs.
 * mpicc -O2 compare.c $(pkg-config --cflags --libs unisono) && mpirun -n 2 ./a.out */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unisono.h>

enum { WARM_UP = 5, MOST = 1001 };

static int gather(void *context, const void *own, void *all, size_t size_bytes)
{
    return MPI_Allgather(own, (int)size_bytes, MPI_BYTE, all, (int)size_bytes, MPI_BYTE, *(MPI_Comm *)context);
}

static void check(int code)
{
    if (code != UNISONO_OK) {
        fprintf(stderr, "unisono: %s\n", unisono_last_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static int by_size(const void *one, const void *other)
{
    const double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* Returns the median over iterations of the slowest rank's time. */
static double median(double *times, int count)
{
    MPI_Allreduce(MPI_IN_PLACE, times, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(times, (size_t)count, sizeof *times, by_size);
    return times[count / 2];
}

int main(int argc, char **argv)
{
    static double times[3][MOST];
    MPI_Comm world = MPI_COMM_WORLD;
    unisono_comm *comm = NULL;
    unisono_memory *memory = NULL;
    int rank, ranks;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &ranks);
    check(unisono_start(rank, ranks, gather, &world, NULL, &comm));
    if (rank == 0)
        printf("%10s %12s %12s %12s\n", "bytes", "registered", "array", "MPI");
    for (size_t bytes = 8; bytes <= 32 << 20; bytes *= 4) {
        const size_t count = bytes / sizeof(float);
        const int iterations = bytes > 1 << 20 ? 51 : MOST;
        float *array = calloc(count, sizeof(float));
        float *registered;
        if (array == NULL)
            MPI_Abort(world, 1);
        check(unisono_alloc(comm, bytes, &memory));
        registered = unisono_address(memory);
        for (int i = -WARM_UP; i < iterations; i++)
            for (int way = 0; way < 3; way++) {
                float *values = way == 0 ? registered : array;
                double began;
                /* As a computation does, this invalidates the array in the caches of the other ranks. */
                for (size_t element = 0; element < count; element++)
                    values[element] = 1;
                MPI_Barrier(world);
                began = MPI_Wtime();
                if (way < 2)
                    check(unisono_all_reduce(comm, values, count, UNISONO_F32, UNISONO_SUM, NULL));
                else
                    MPI_Allreduce(MPI_IN_PLACE, values, (int)count, MPI_FLOAT, MPI_SUM, world);
                if (i >= 0)
                    times[way][i] = 1e6 * (MPI_Wtime() - began);
            }
        const double medians[3] = {
            median(times[0], iterations), median(times[1], iterations), median(times[2], iterations),
        };
        if (rank == 0)
            printf("%10zu %12.2f %12.2f %12.2f\n", bytes, medians[0], medians[1], medians[2]);
        unisono_release(memory);
        free(array);
    }
    unisono_free(comm);
    MPI_Finalize();
    return 0;
}
