/* All-reduces in a program over any MPI: mpicc with_mpi.c $(pkg-config --cflags --libs unisono) && mpirun -n 2 ./a.out */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unisono.h>

/* The only MPI function that Unisono needs, for its bootstrap. */
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

int main(int argc, char **argv)
{
    enum { COUNT = 100000 };
    static float expected[COUNT];
    MPI_Comm world = MPI_COMM_WORLD;
    unisono_comm *comm = NULL;
    unisono_memory *memory = NULL;
    float *gradients;
    int rank, ranks;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &ranks);
    check(unisono_start(rank, ranks, gather, &world, NULL, &comm));

    /* Any array is valid. Other ranks can read arrays in registered memory in place. */
    check(unisono_alloc(comm, COUNT * sizeof(float), &memory));
    gradients = unisono_address(memory);
    for (int i = 0; i < COUNT; i++)
        gradients[i] = expected[i] = (float)(i % 100 + rank);

    check(unisono_all_reduce(comm, gradients, COUNT, UNISONO_F32, UNISONO_SUM, NULL));
    MPI_Allreduce(MPI_IN_PLACE, expected, COUNT, MPI_FLOAT, MPI_SUM, world);
    for (int i = 0; i < COUNT; i++)
        if (gradients[i] != expected[i]) {
            fprintf(stderr, "element %d is %g, and %g by MPI\n", i, (double)gradients[i], (double)expected[i]);
            MPI_Abort(world, 1);
        }
    printf("rank %d of %d: equal\n", unisono_rank(comm), unisono_size(comm));

    unisono_release(memory);
    unisono_free(comm);
    MPI_Finalize();
    return 0;
}
