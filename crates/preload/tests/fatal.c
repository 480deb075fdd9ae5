/* An invalid call of rank 0, whose error ends the job: `root` for a broadcast from no rank, or `buffer` for an all-reduce without one. */

#include "ranks.h"

#include <string.h>

int main(int argc, char **argv)
{
    int value = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    check(argc > 1 && sum_of(1, MPI_COMM_WORLD) == ranks, "the sum is wrong");
    if (rank == 0) {
        printf("the call is next\n");
        fflush(stdout);
    }
    if (rank == 0 && strcmp(argv[1], "root") == 0)
        MPI_Bcast(&value, 1, MPI_INT, ranks, MPI_COMM_WORLD);
    else if (rank == 0)
        MPI_Allreduce(NULL, &value, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    PMPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
