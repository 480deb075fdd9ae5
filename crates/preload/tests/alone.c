/* Without a report: calls on communicators whose handles are reused, and the start of a world after an invalid call of one rank. */

#include "ranks.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* More than the calls after which a communicator has a world, and a choice for its class. */
enum { CALLS = 40 };

/* A communicator often gets the handle of a freed one, here of one with more ranks. No memory can be read behind its counts. */
static void reused_handles(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int all[64], starts[64];
    void *pages = NULL;
    check(posix_memalign(&pages, page, 2 * page) == 0 && mprotect((char *)pages + page, page, PROT_NONE) == 0, "there is no memory");
    for (int i = 0; i < 64; i++)
        starts[i] = i;
    for (int size = ranks; size > 0; size--) {
        MPI_Comm comm;
        int *counts = (int *)((char *)pages + page) - size;
        for (int i = 0; i < size; i++)
            counts[i] = 1;
        MPI_Comm_split(MPI_COMM_WORLD, rank < size ? 0 : MPI_UNDEFINED, rank, &comm);
        for (int i = 0; comm != MPI_COMM_NULL && i < CALLS; i++) {
            MPI_Allgatherv(&rank, 1, MPI_INT, all, counts, starts, MPI_INT, comm);
            check(all[size - 1] == size - 1, "an all-gather is wrong");
        }
        if (comm != MPI_COMM_NULL)
            MPI_Comm_free(&comm);
    }
    mprotect((char *)pages + page, page, PROT_READ | PROT_WRITE);
    free(pages);
}

/* A world starts on a communicator on which only rank 0 made an invalid non-blocking call, after which MPI's own blocking collectives
 * still work. */
static void invalid_call(void)
{
    static int values[64];
    MPI_Request request;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (rank == 0)
        MPI_Igather(values, 1, MPI_INT, values, 1, MPI_INT, 0, MPI_COMM_WORLD, &request);
    for (int i = 0; i < CALLS; i++)
        check(sum_of(rank, MPI_COMM_WORLD) == ranks * (ranks - 1) / 2, "the sum is wrong");
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    reused_handles();
    invalid_call();
    if (rank == 0)
        printf("%d ranks: all right\n", ranks);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
