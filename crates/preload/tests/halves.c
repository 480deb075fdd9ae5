/* All-reduces in each half of the ranks: 10 in the lower one, and 20 in the upper one, which ends last. */

#include "ranks.h"

int main(int argc, char **argv)
{
    MPI_Comm half;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int is_upper = rank >= ranks / 2, calls = is_upper ? 20 : 10;
    MPI_Comm_split(MPI_COMM_WORLD, is_upper, rank, &half);
    for (int i = 0; i < calls; i++)
        check(sum_of(1, half) == ranks / 2, "the sum of a half is wrong");
    if (!is_upper)
        MPI_Comm_free(&half);
    PMPI_Barrier(MPI_COMM_WORLD);
    if (is_upper)
        MPI_Comm_free(&half);
    if (rank == 0)
        printf("%d ranks: all right\n", ranks);
    MPI_Finalize();
    return 0;
}
