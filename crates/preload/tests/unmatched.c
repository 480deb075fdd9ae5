/* Broadcasts of rank 0 that no other rank receives. MPI sends short messages without a receiver, so that such a program ends. */

#include "ranks.h"

int main(int argc, char **argv)
{
    int values[100];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    check(sum_of(1, MPI_COMM_WORLD) == ranks, "the sum is wrong");
    for (int i = 0; i < 100; i++)
        values[i] = i + 1;
    for (int i = 0; rank == 0 && i < 4; i++)
        MPI_Bcast(values, 100, MPI_INT, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks: all right\n", ranks);
    MPI_Finalize();
    return 0;
}
