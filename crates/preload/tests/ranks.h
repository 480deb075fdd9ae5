/* Declarations shared by programs of several ranks. Each program sets its rank and the number of ranks. */

#include <mpi.h>
#include <stdio.h>

static int rank, ranks;

static void check(int is_right, const char *what)
{
    if (is_right)
        return;
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static inline int sum_of(int value, MPI_Comm comm)
{
    int sum = -1;
    check(MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, comm) == MPI_SUCCESS, "a sum fails");
    return sum;
}
