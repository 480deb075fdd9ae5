/* Every function that always goes to MPI, whose calls are counted: each has the result of PMPI_. Blocks are in reverse order, with gaps. */

#include "ranks.h"

#include <string.h>

enum { MOST = 16, ROOM = 3 * MOST * MOST };

static int from[ROOM], ours[ROOM], theirs[ROOM];

static MPI_Request request = MPI_REQUEST_NULL;

static void complete(void)
{
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    /* The request of a persistent call is kept. */
    if (request != MPI_REQUEST_NULL)
        MPI_Request_free(&request);
}

/* Carries out a call with its start, by both, and compares the results. */
#define SAME_BEGUN(call, arguments, begin)                                 \
    do {                                                                   \
        int *to = ours;                                                    \
        memset(ours, -1, sizeof(ours));                                    \
        memset(theirs, -1, sizeof(theirs));                                \
        check(MPI_##call arguments == MPI_SUCCESS, #call " fails");        \
        begin;                                                             \
        complete();                                                        \
        to = theirs;                                                       \
        PMPI_##call arguments;                                             \
        begin;                                                             \
        complete();                                                        \
        (void)to;                                                          \
        check(memcmp(ours, theirs, sizeof(ours)) == 0, #call " is wrong"); \
    } while (0)

#define SAME(call, arguments) SAME_BEGUN(call, arguments, (void)0)

/* A non-blocking call and the persistent one, which has the additional argument MPI_INFO_NULL. */
#define UNPACKED(...) __VA_ARGS__
#if MPI_VERSION >= 4
#define BOTH(non_blocking, name, arguments)                                                           \
    SAME(non_blocking, (UNPACKED arguments, comm, &request));                                         \
    SAME_BEGUN(name##_init, (UNPACKED arguments, comm, MPI_INFO_NULL, &request), MPI_Start(&request))
#else
#define BOTH(non_blocking, name, arguments) SAME(non_blocking, (UNPACKED arguments, comm, &request))
#endif

/* Exchanges with the two neighbours in a ring. */
static void between_neighbors(void)
{
    MPI_Comm comm;
    const int counts[] = { 2, 2 }, starts[] = { 5, 0 };
    const MPI_Aint bytes_at[] = { 5 * sizeof(int), 0 };
    const MPI_Datatype types[] = { MPI_INT, MPI_INT };
    MPI_Cart_create(MPI_COMM_WORLD, 1, (int[]){ ranks }, (int[]){ 1 }, 0, &comm);
    SAME(Neighbor_allgather, (from, 3, MPI_INT, to, 3, MPI_INT, comm));
    SAME(Neighbor_allgatherv, (from, 2, MPI_INT, to, counts, starts, MPI_INT, comm));
    SAME(Neighbor_alltoall, (from, 3, MPI_INT, to, 3, MPI_INT, comm));
    SAME(Neighbor_alltoallv, (from, counts, starts, MPI_INT, to, counts, starts, MPI_INT, comm));
    SAME(Neighbor_alltoallw, (from, counts, bytes_at, types, to, counts, bytes_at, types, comm));
    SAME(Ineighbor_allgather, (from, 3, MPI_INT, to, 3, MPI_INT, comm, &request));
    SAME(Ineighbor_allgatherv, (from, 2, MPI_INT, to, counts, starts, MPI_INT, comm, &request));
    SAME(Ineighbor_alltoall, (from, 3, MPI_INT, to, 3, MPI_INT, comm, &request));
    SAME(Ineighbor_alltoallv, (from, counts, starts, MPI_INT, to, counts, starts, MPI_INT, comm, &request));
    SAME(Ineighbor_alltoallw, (from, counts, bytes_at, types, to, counts, bytes_at, types, comm, &request));
    MPI_Comm_free(&comm);
}

int main(int argc, char **argv)
{
    MPI_Comm comm = MPI_COMM_WORLD;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    (void)sum_of;
    int sent[MOST], sent_at[MOST], gotten[MOST], gotten_at[MOST], sizes[MOST], sizes_at[MOST], bytes_at[MOST], gotten_bytes_at[MOST];
    MPI_Datatype types[MOST];
    for (int i = 0; i < ROOM; i++)
        from[i] = 1000 * rank + i;
    for (int other = 0; other < ranks; other++) {
        sent[other] = rank + 2 * other;
        gotten[other] = other + 2 * rank;
        sizes[other] = 1 + other % 3;
        sent_at[other] = gotten_at[other] = sizes_at[other] = (ranks - 1 - other) * 3 * ranks;
        bytes_at[other] = gotten_bytes_at[other] = sent_at[other] * (int)sizeof(int);
        types[other] = MPI_INT;
    }
    int own = sizes[rank], root = ranks - 1;
    SAME(Alltoallw, (from, sent, bytes_at, types, to, gotten, gotten_bytes_at, types, comm));
    BOTH(Iallreduce, Allreduce, (from, to, 5, MPI_INT, MPI_MIN));
    BOTH(Ireduce, Reduce, (from, to, 5, MPI_INT, MPI_SUM, root));
    BOTH(Ireduce_scatter_block, Reduce_scatter_block, (from, to, 5, MPI_INT, MPI_SUM));
    BOTH(Ireduce_scatter, Reduce_scatter, (from, to, sizes, MPI_INT, MPI_SUM));
    BOTH(Iscan, Scan, (from, to, 5, MPI_INT, MPI_SUM));
    BOTH(Iexscan, Exscan, (from, to, 5, MPI_INT, MPI_SUM));
    BOTH(Ibcast, Bcast, (rank == root ? from : to, 5, MPI_INT, root));
    BOTH(Iallgather, Allgather, (from, 3, MPI_INT, to, 3, MPI_INT));
    BOTH(Iallgatherv, Allgatherv, (from, own, MPI_INT, to, sizes, sizes_at, MPI_INT));
    BOTH(Ialltoall, Alltoall, (from, 3, MPI_INT, to, 3, MPI_INT));
    BOTH(Ialltoallv, Alltoallv, (from, sent, sent_at, MPI_INT, to, gotten, gotten_at, MPI_INT));
    BOTH(Ialltoallw, Alltoallw, (from, sent, bytes_at, types, to, gotten, gotten_bytes_at, types));
    BOTH(Igather, Gather, (from, 3, MPI_INT, to, 3, MPI_INT, root));
    BOTH(Igatherv, Gatherv, (from, own, MPI_INT, to, sizes, sizes_at, MPI_INT, root));
    BOTH(Iscatter, Scatter, (from, 3, MPI_INT, to, 3, MPI_INT, root));
    BOTH(Iscatterv, Scatterv, (from, sizes, sizes_at, MPI_INT, to, own, MPI_INT, root));
    SAME(Ibarrier, (comm, &request));
    between_neighbors();
    MPI_Finalize();
    if (rank == 0)
        printf("%d ranks: all right\n", ranks);
    return 0;
}
