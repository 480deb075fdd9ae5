/* A rank that waits in a collective makes progress on MPI's pending messages and one-sided accesses. Without that, these programs hang.
 * With an argument, tests only messages, since Open MPI 4.1 has no windows over TCP. */

#include "ranks.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 1 << 20 };

static void all_reduce(void)
{
    double one = 1, sum;
    MPI_Allreduce(&one, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    check(sum == ranks, "the sum is wrong");
}

/* Rank 0 enters the collective only once the message has arrived. Its sender waits in the collective meanwhile, and must send it there. */
static void messages(void)
{
    int *to_send = malloc(COUNT * sizeof(int)), *gotten = malloc(COUNT * sizeof(int));
    for (int i = 0; i < COUNT; i++)
        to_send[i] = i + rank;
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    MPI_Request requests[2];
    MPI_Status ended[2];
    MPI_Irecv(gotten, COUNT, MPI_INT, previous, 1, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(to_send, COUNT, MPI_INT, next, 1, MPI_COMM_WORLD, &requests[1]);
    if (rank == 0)
        MPI_Waitall(2, requests, ended);
    all_reduce();
    if (rank != 0)
        MPI_Waitall(2, requests, ended);
    check(gotten[COUNT - 1] == COUNT - 1 + previous, "the message is wrong");
    free(to_send), free(gotten);
}

/* Rank 0 accesses the windows of ranks that wait in the collective. */
static void windows(void)
{
    int *memory, *values = malloc(COUNT * sizeof(int));
    MPI_Win window;
    MPI_Win_allocate(COUNT * sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    memset(memory, 0, COUNT * sizeof(int));
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < COUNT; i++)
        values[i] = i;
    for (int other = 1; rank == 0 && other < ranks; other++) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, other, 0, window);
        MPI_Accumulate(values, COUNT, MPI_INT, other, 0, COUNT, MPI_INT, MPI_SUM, window);
        MPI_Win_unlock(other, window);
    }
    all_reduce();
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
    check(rank == 0 || memory[COUNT - 1] == COUNT - 1, "the window is wrong");
    MPI_Win_unlock(rank, window);
    MPI_Win_free(&window);
    free(values);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    all_reduce();
    for (int i = 0; i < 5; i++)
        messages();
    if (argc == 1)
        windows();
    if (rank == 0)
        printf("%d ranks: all right\n", ranks);
    MPI_Finalize();
    return 0;
}
