/* Calls of many classes, often enough for a choice, on ranks that arrive at different times, compared with the results of MPI. If ranks make
 * different choices, the program hangs.
 *
 *     choices ROUNDS LARGEST_PAUSE_US [FUNCTIONS]
 */

#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int rank, ranks;

static void check(bool is_right, const char *what, int count)
{
    if (is_right)
        return;
    fprintf(stderr, "rank %d: %s of %d is wrong\n", rank, what, count);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Each rank has its own numbers. */
static unsigned own_state;

static void pause_at_random(long most_us)
{
    if (most_us == 0)
        return;
    own_state = own_state * 1664525 + 1013904223;
    struct timespec time = { 0, (long)(own_state >> 8) % (most_us * 1000) };
    nanosleep(&time, NULL);
}

enum { CALLS = 17 };

/* A user-defined operation. */
static MPI_Op own_op;

static void add(void *in, void *inout, int *count, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *count; i++)
        ((int *)inout)[i] += ((int *)in)[i];
}

/* An allgather, a reduction or any other call, by the library (MPI_) or by MPI (PMPI_). */
#define CALL(prefix, to)                                                                    \
    switch (call % CALLS) {                                                                 \
    case 0:                                                                                 \
        prefix##Allreduce(from, to, count, MPI_INT, MPI_SUM, comm);                         \
        break;                                                                              \
    case 1:                                                                                 \
        prefix##Allreduce(from, to, count, MPI_INT, MPI_MAX, comm);                         \
        break;                                                                              \
    case 2:                                                                                 \
        prefix##Reduce(from, to, count, MPI_INT, MPI_SUM, root, comm);                      \
        break;                                                                              \
    case 3:                                                                                 \
        prefix##Bcast(to, count, MPI_INT, root, comm);                                      \
        break;                                                                              \
    case 4:                                                                                 \
        prefix##Allgather(from, count, MPI_INT, to, count, MPI_INT, comm);                  \
        break;                                                                              \
    case 5:                                                                                 \
        prefix##Alltoall(from, count, MPI_INT, to, count, MPI_INT, comm);                   \
        break;                                                                              \
    case 6:                                                                                 \
        prefix##Gather(from, count, MPI_INT, to, count, MPI_INT, root, comm);               \
        break;                                                                              \
    case 7:                                                                                 \
        prefix##Scatter(from, count, MPI_INT, to, count, MPI_INT, root, comm);              \
        break;                                                                              \
    case 8:                                                                                 \
        prefix##Scan(from, to, count, MPI_INT, MPI_SUM, comm);                              \
        break;                                                                              \
    case 9:                                                                                 \
        prefix##Exscan(from, to, count, MPI_INT, MPI_MAX, comm);                            \
        break;                                                                              \
    case 10:                                                                                \
        prefix##Allgatherv(from, counts[own], MPI_INT, to, counts, starts, MPI_INT, comm);  \
        break;                                                                              \
    case 11:                                                                                \
        prefix##Reduce_scatter_block(from, to, count, MPI_INT, MPI_MIN, comm);              \
        break;                                                                              \
    case 12:                                                                                \
        prefix##Allreduce(from, to, (count + 1) / 2, MPI_2INT, MPI_MAXLOC, comm);           \
        break;                                                                              \
    case 13:                                                                                \
        prefix##Alltoallv(from, pairs, starts, MPI_INT, to, pairs, starts, MPI_INT, comm);  \
        break;                                                                              \
    case 14:                                                                                \
        prefix##Gatherv(from, counts[own], MPI_INT, to, counts, starts, MPI_INT, root, comm); \
        break;                                                                              \
    case 15:                                                                                \
        prefix##Scatterv(from, counts, starts, MPI_INT, to, counts[own], MPI_INT, root, comm); \
        break;                                                                              \
    default:                                                                                \
        prefix##Reduce(from, to, count, MPI_INT, own_op, root, comm);                       \
    }

static const char *const NAMES[CALLS] = {
    "sum", "maximum", "reduce", "broadcast", "all-gather", "all-to-all", "gather", "scatter", "scan", "exclusive scan", "blocks",
    "reduce-scatter", "maximum and its place", "exchange", "gather of blocks", "scatter of blocks", "operation of the program",
};

static void make(int call, int root, int count, MPI_Comm comm)
{
    int size, own;
    MPI_Comm_size(comm, &size);
    MPI_Comm_rank(comm, &own);
    size_t all = (size_t)((count + 1) * size);
    int counts[size], starts[size], pairs[size];
    for (int i = 0; i < size; i++) {
        counts[i] = count + i % 2;
        pairs[i] = count + (i + own) % 2;
        starts[i] = i * (count + 1);
    }
    int *from = malloc(all * sizeof(int)), *ours = malloc(all * sizeof(int)), *theirs = malloc(all * sizeof(int));
    for (size_t i = 0; i < all; i++) {
        from[i] = (int)i + 31 * rank;
        ours[i] = theirs[i] = own == root ? (int)i : -1;
    }
    CALL(MPI_, ours)
    CALL(PMPI_, theirs)
    check(memcmp(ours, theirs, all * sizeof(int)) == 0, NAMES[call % CALLS], count);
    free(from), free(ours), free(theirs);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    /* Programs may change their folder, after which a relative name is another file. */
    if (argc < 3 || chdir("/") != 0)
        MPI_Abort(MPI_COMM_WORLD, 2);
    int rounds = atoi(argv[1]), functions = argc > 3 ? atoi(argv[3]) : CALLS;
    long pause_us = atol(argv[2]);
    const int counts[] = { 1, 100, 3000 };
    own_state = (unsigned)rank;
    MPI_Comm all, reversed;
    MPI_Op_create(add, 1, &own_op);
    MPI_Comm_dup(MPI_COMM_WORLD, &all);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
    for (int i = 0; i < rounds; i++)
        for (int call = 0; call < functions; call++) {
            pause_at_random(pause_us);
            make(call, i % ranks, counts[(i + call) % 3], i % 4 == 3 ? reversed : all);
        }
    MPI_Comm_free(&all);
    MPI_Comm_free(&reversed);
    MPI_Op_free(&own_op);
    if (rank == 0)
        printf("%d ranks: all right\n", ranks);
    MPI_Finalize();
    return 0;
}
