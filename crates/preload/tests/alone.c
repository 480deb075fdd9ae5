/* A world starts on a communicator on which only rank 0 made an invalid non-blocking call, after which MPI's own blocking collectives
 * still work. */

#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int rank, ranks, sum = -1, ours = -1, values[64] = { 0 };
    MPI_Request request;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (rank == 0)
        MPI_Igather(values, 1, MPI_INT, values, 1, MPI_INT, 0, MPI_COMM_WORLD, &request);
    PMPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&rank, &ours, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (ours != sum)
        MPI_Abort(MPI_COMM_WORLD, 1);
    if (rank == 0)
        printf("%d ranks: all right\n", ranks);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
