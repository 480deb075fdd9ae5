/* All-reduces to which rank 0 arrives 5 ms late. A trial does not count the wait of the other ranks. */

#include "ranks.h"

#include <time.h>

int main(int argc, char **argv)
{
    enum { CALLS = 100 };
    const struct timespec pause = { 0, 5000000 };
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 0; i < CALLS; i++) {
        if (rank == 0)
            nanosleep(&pause, NULL);
        check(sum_of(1, MPI_COMM_WORLD) == ranks, "the sum is wrong");
    }
    if (rank == 0)
        printf("%d ranks: all right\n", ranks);
    MPI_Finalize();
    return 0;
}
