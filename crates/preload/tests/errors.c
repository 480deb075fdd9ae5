/* Invalid calls, a lack of memory, and mismatched calls. Arguments: `off` if MPI carries out every call, `lengths`, `no-memory`, or
 * `mismatch` with an optional `fatal`; `aliases` tests only aliased buffers. */

#include "ranks.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* MPI refuses invalid calls. */
static void errors(void)
{
    MPI_Comm comm;
    int value = 1, class;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    check(sum_of(1, comm) == ranks, "the sum of a copy is wrong");
    int code = MPI_Bcast(&value, 1, MPI_INT, ranks, comm);
    MPI_Error_class(code, &class);
    check(class == MPI_ERR_ROOT, "a root that is no rank is not refused");
    code = MPI_Allreduce(&value, &value, -1, MPI_INT, MPI_SUM, comm);
    MPI_Error_class(code, &class);
    check(class == MPI_ERR_COUNT || class == MPI_ERR_BUFFER, "a count below 0 is not refused");
    MPI_Comm_free(&comm);
}

static void add_pairs(void *in, void *inout, int *count, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < 2 * *count; i++)
        ((int *)inout)[i] += ((int *)in)[i];
}

/* After an invalid call of rank 0 with a new type, the ranks still agree on calls with this type. */
static void type_of_an_invalid_call(void)
{
    const MPI_Comm own[] = { MPI_COMM_WORLD, MPI_COMM_SELF };
    MPI_Op add;
    MPI_Datatype pair;
    int values[2] = { 1, rank }, sums[2] = { 0 };
    MPI_Op_create(add_pairs, 1, &add);
    MPI_Type_contiguous(2, MPI_INT, &pair);
    MPI_Type_commit(&pair);
    for (int i = 0; i < 2; i++)
        MPI_Comm_set_errhandler(own[i], MPI_ERRORS_RETURN);
    if (rank == 0)
        check(MPI_Allreduce(values, sums, 1, pair, add, MPI_COMM_NULL) != MPI_SUCCESS, "a call without a communicator is not refused");
    for (int i = 0; i < 2; i++)
        MPI_Comm_set_errhandler(own[i], MPI_ERRORS_ARE_FATAL);
    MPI_Allreduce(values, sums, 1, pair, add, MPI_COMM_WORLD);
    check(sums[0] == ranks && sums[1] == ranks * (ranks - 1) / 2, "the sum of pairs is wrong");
    MPI_Type_free(&pair);
    MPI_Op_free(&add);
}

static int errors_handled;

static void count_error(MPI_Comm *comm, int *code, ...)
{
    (void)comm, (void)code;
    errors_handled++;
}

/* A call on a communicator that does not exist calls the error handler once. MPI calls that of MPI_COMM_WORLD or MPI_COMM_SELF. */
static void error_handler_is_called_once(void)
{
    const MPI_Comm own[] = { MPI_COMM_WORLD, MPI_COMM_SELF }, invalid[] = { MPI_COMM_NULL, (MPI_Comm)0 };
    MPI_Errhandler handler;
    MPI_Op add;
    MPI_Datatype pair;
    int values[128] = { 0 }, counts[1] = { 1 }, starts[1] = { 0 };
    MPI_Comm_create_errhandler(count_error, &handler);
    MPI_Op_create(add_pairs, 1, &add);
    MPI_Type_contiguous(2, MPI_INT, &pair);
    MPI_Type_commit(&pair);
    for (int i = 0; i < 2; i++)
        MPI_Comm_set_errhandler(own[i], handler);
    for (int i = 0; i < 2; i++) {
        errors_handled = 0;
        MPI_Allreduce(values, values + 64, 1, MPI_INT, MPI_SUM, invalid[i]);
        check(errors_handled == 1, "an all-reduce without a communicator calls the error handler several times");
        MPI_Allreduce(values, values + 64, 1, pair, add, invalid[i]);
        check(errors_handled == 2, "a reduction of pairs without a communicator calls the error handler several times");
        MPI_Bcast(values, 1, MPI_INT, 1, invalid[i]);
        check(errors_handled == 3, "a broadcast without a communicator calls the error handler several times");
        MPI_Gather(values, 1, MPI_INT, values + 64, 1, MPI_INT, 0, invalid[i]);
        check(errors_handled == 4, "a gather without a communicator calls the error handler several times");
        MPI_Allgatherv(values, 1, MPI_INT, values + 64, counts, starts, MPI_INT, invalid[i]);
        check(errors_handled == 5, "an all-gather without a communicator calls the error handler several times");
        MPI_Reduce_scatter(values, values + 64, counts, MPI_INT, MPI_SUM, invalid[i]);
        check(errors_handled == 6, "a reduce-scatter without a communicator calls the error handler several times");
    }
    for (int i = 0; i < 2; i++)
        MPI_Comm_set_errhandler(own[i], MPI_ERRORS_ARE_FATAL);
    MPI_Type_free(&pair);
    MPI_Op_free(&add);
    MPI_Errhandler_free(&handler);
    errors_handled = 0;
}

/* MPIs do not refuse all of these calls. */
enum { REFUSED_BY_MPI = 9, INVALID_CALLS = 25, MOVES = 4 };

/* Makes an invalid call, and returns the class of its error. */
static int invalid_call(int number, MPI_Comm comm, int *class)
{
    double from[16] = { 0 }, to[64] = { 0 };
    int counts[ranks], starts[ranks], ones[ranks], zeros[ranks];
    for (int i = 0; i < ranks; i++) {
        counts[i] = i == ranks - 1 ? -1 : 1;
        starts[i] = i;
        ones[i] = 1;
        zeros[i] = 0;
    }
    const int classes[INVALID_CALLS] = {
        MPI_ERR_OP,   MPI_ERR_ROOT,  MPI_ERR_COUNT, MPI_ERR_TYPE,   MPI_ERR_ROOT,   MPI_ERR_COUNT, MPI_ERR_TYPE,
        MPI_ERR_TYPE, MPI_ERR_COUNT, MPI_ERR_COUNT, MPI_ERR_BUFFER, MPI_ERR_BUFFER, MPI_ERR_COUNT, MPI_ERR_COUNT,
        MPI_ERR_TYPE, MPI_ERR_ROOT,  MPI_ERR_COUNT, MPI_ERR_BUFFER, MPI_ERR_COUNT,  MPI_ERR_TYPE,  MPI_ERR_BUFFER,
        MPI_ERR_COUNT, MPI_ERR_ROOT, MPI_ERR_COUNT, MPI_ERR_TYPE,
    };
    *class = classes[number];
    switch (number) {
    case 0:
        return MPI_Allreduce(from, to, 1, MPI_DATATYPE_NULL, MPI_SUM, comm);
    case 1:
        return MPI_Reduce(from, to, 1, MPI_DOUBLE, MPI_SUM, ranks, comm);
    case 2:
        return MPI_Bcast(from, -1, MPI_DOUBLE, 0, comm);
    case 3:
        return MPI_Bcast(from, 1, MPI_DATATYPE_NULL, 0, comm);
    case 4:
        return MPI_Bcast(from, 1, MPI_DOUBLE, ranks, comm);
    case 5:
        return MPI_Allgather(from, 1, MPI_DOUBLE, to, -1, MPI_DOUBLE, comm);
    case 6:
        return MPI_Allgather(from, 1, MPI_DOUBLE, to, 1, MPI_DATATYPE_NULL, comm);
    case 7:
        return MPI_Alltoall(from, 1, MPI_DOUBLE, to, 1, MPI_DATATYPE_NULL, comm);
    case 8:
        return MPI_Reduce_scatter(from, to, counts, MPI_DOUBLE, MPI_SUM, comm);
    case REFUSED_BY_MPI:
        return MPI_Allreduce(from, to, -1, MPI_DOUBLE, MPI_SUM, comm);
    case 10:
        return MPI_Allreduce(NULL, to, 1, MPI_DOUBLE, MPI_SUM, comm);
    case 11:
        return MPI_Reduce(NULL, to, 1, MPI_DOUBLE, MPI_SUM, 0, comm);
    case 12:
        return MPI_Allgatherv(from, 1, MPI_DOUBLE, to, counts, starts, MPI_DOUBLE, comm);
    case 13:
        return MPI_Reduce_scatter_block(from, to, -1, MPI_DOUBLE, MPI_SUM, comm);
    case 14:
        return MPI_Gather(from, 1, MPI_DATATYPE_NULL, to, 1, MPI_DOUBLE, 0, comm);
    case 15:
        return MPI_Scatter(from, 1, MPI_DOUBLE, to, 1, MPI_DOUBLE, ranks, comm);
    case 16:
        return MPI_Scan(from, to, -1, MPI_DOUBLE, MPI_SUM, comm);
    case 17:
        return MPI_Exscan(NULL, to, 1, MPI_DOUBLE, MPI_SUM, comm);
    case 18:
        return MPI_Alltoallv(from, starts, starts, MPI_DOUBLE, to, counts, starts, MPI_DOUBLE, comm);
    case 19:
        return MPI_Alltoallv(from, starts, starts, MPI_DOUBLE, to, starts, starts, MPI_DATATYPE_NULL, comm);
    case 20:
        return MPI_Alltoallv(NULL, ones, zeros, MPI_DOUBLE, to, ones, zeros, MPI_DOUBLE, comm);
    case 21:
        return MPI_Gatherv(from, 1, MPI_DOUBLE, to, counts, starts, MPI_DOUBLE, 0, comm);
    case 22:
        return MPI_Scatterv(from, ones, starts, MPI_DOUBLE, to, 1, MPI_DOUBLE, ranks, comm);
    case 23:
        return MPI_Scatterv(from, ones, starts, MPI_DOUBLE, to, -1, MPI_DOUBLE, 0, comm);
    default:
        return MPI_Bcast(from, 1, (MPI_Datatype)0, 0, comm);
    }
}

/* An invalid call of rank 0 alone returns an error, even as the first one on its communicator. */
static void invalid_first_calls(int calls)
{
    for (int number = 0; number < calls; number++) {
        MPI_Comm comm;
        int expected, class = -1;
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
        if (rank == 0) {
            MPI_Error_class(invalid_call(number, comm, &expected), &class);
            if (class != expected)
                fprintf(stderr, "call %d: class %d, and not %d\n", number, class, expected);
            check(class == expected, "a call that is not valid is not refused");
        }
        /* By a message, since the others make no collective call meanwhile. */
        for (int other = 1; other < ranks; other++)
            if (rank == 0)
                MPI_Send(&class, 1, MPI_INT, other, 0, comm);
            else if (rank == other)
                MPI_Recv(&class, 1, MPI_INT, 0, 0, comm, MPI_STATUS_IGNORE);
        check(sum_of(1, comm) == ranks, "the sum after a call that is not valid is wrong");
        MPI_Comm_free(&comm);
    }
}

/* Moves values of a type. */
static int move(int number, int *from, int *to, MPI_Datatype type, MPI_Comm comm)
{
    int ones[ranks], starts[ranks];
    for (int i = 0; i < ranks; i++) {
        ones[i] = 1;
        starts[i] = i;
    }
    switch (number) {
    case 0:
        return MPI_Bcast(to, 1, type, 0, comm);
    case 1:
        return MPI_Allgather(from, 1, type, to, 1, type, comm);
    case 2:
        return MPI_Gatherv(from, 1, type, to, ones, starts, type, 0, comm);
    default:
        return MPI_Gather(from, 1, type, to, 1, type, 0, comm);
    }
}

/* A rank that makes a call with a type before it commits it gets an error at once, however often. */
static void types_that_are_not_committed(void)
{
    enum { CALLS = 120 };
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    for (int i = 0; i < CALLS * MOVES; i++) {
        MPI_Datatype type;
        int from[4] = { rank, i, i, i }, to[64] = { 0 }, class;
        if (i % 2 == 0)
            MPI_Type_contiguous(2, MPI_INT, &type);
        else
            MPI_Type_vector(2, 1, 2, MPI_INT, &type);
        if (rank == ranks - 1) {
            MPI_Error_class(move(i % MOVES, from, to, type, comm), &class);
            check(class == MPI_ERR_TYPE, "a type that is not committed is not refused");
        }
        MPI_Type_commit(&type);
        check(move(i % MOVES, from, to, type, comm) == MPI_SUCCESS, "a call with a type that was not committed before fails");
        if (i % MOVES == 1)
            check(to[0] == 0 && to[i % 2 == 0 ? 1 : 2] == i, "the values of a type that was not committed before are wrong");
        MPI_Type_free(&type);
    }
    MPI_Comm_free(&comm);
}

enum { ALIASED_CALLS = 14 };

/* A call with aliased buffers, by MPI (`PMPI_`) or by the library (`MPI_`). */
#define ALIASED_CALL(prefix)                                                                                              \
    switch (number) {                                                                                                     \
    case 0:                                                                                                               \
        code = prefix##Allreduce(all, all, 2, MPI_DOUBLE, MPI_SUM, comm);                                                 \
        break;                                                                                                            \
    case 1:                                                                                                               \
        code = prefix##Reduce(all, rank == 0 ? all : NULL, 1, MPI_DOUBLE, MPI_SUM, 0, comm);                              \
        break;                                                                                                            \
    case 2:                                                                                                               \
        code = prefix##Reduce_scatter(all, all, counts, MPI_DOUBLE, MPI_SUM, comm);                                       \
        break;                                                                                                            \
    case 3:                                                                                                               \
        code = prefix##Reduce_scatter_block(all, all, 1, MPI_DOUBLE, MPI_SUM, comm);                                      \
        break;                                                                                                            \
    case 4:                                                                                                               \
        code = prefix##Allgather(all + rank, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, comm);                                    \
        break;                                                                                                            \
    case 5:                                                                                                               \
        code = prefix##Allgatherv(all + rank, 1, MPI_DOUBLE, all, counts, starts, MPI_DOUBLE, comm);                      \
        break;                                                                                                            \
    case 6:                                                                                                               \
        code = prefix##Alltoall(all, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, comm);                                            \
        break;                                                                                                            \
    case 7:                                                                                                               \
        code = prefix##Gather(all, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, 0, comm);                                           \
        break;                                                                                                            \
    case 8:                                                                                                               \
        code = prefix##Scatter(all, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, 0, comm);                                          \
        break;                                                                                                            \
    case 9:                                                                                                               \
        code = prefix##Scan(all, all, 1, MPI_DOUBLE, MPI_SUM, comm);                                                      \
        break;                                                                                                            \
    case 10:                                                                                                              \
        code = prefix##Exscan(all, all, 1, MPI_DOUBLE, MPI_SUM, comm);                                                    \
        break;                                                                                                            \
    case 11:                                                                                                              \
        code = prefix##Alltoallv(all, counts, starts, MPI_DOUBLE, all, counts, starts, MPI_DOUBLE, comm);                 \
        break;                                                                                                            \
    case 12:                                                                                                              \
        code = prefix##Gatherv(all, 1, MPI_DOUBLE, all, counts, starts, MPI_DOUBLE, 0, comm);                             \
        break;                                                                                                            \
    default:                                                                                                              \
        code = prefix##Scatterv(all, counts, starts, MPI_DOUBLE, all, 1, MPI_DOUBLE, 0, comm);                            \
    }

/* A valid call that is like one of these. */
#define VALID_CALL(prefix)                                                                                                \
    switch (number) {                                                                                                     \
    case 1:                                                                                                               \
        code = prefix##Reduce(from, to, 1, MPI_DOUBLE, MPI_SUM, 0, comm);                                                 \
        break;                                                                                                            \
    case 7:                                                                                                               \
        code = prefix##Gather(from, 1, MPI_DOUBLE, to, 1, MPI_DOUBLE, 0, comm);                                           \
        break;                                                                                                            \
    case 8:                                                                                                               \
        code = prefix##Scatter(from, 1, MPI_DOUBLE, to, 1, MPI_DOUBLE, 0, comm);                                          \
        break;                                                                                                            \
    case 12:                                                                                                              \
        code = prefix##Gatherv(from, 1, MPI_DOUBLE, to, counts, starts, MPI_DOUBLE, 0, comm);                             \
        break;                                                                                                            \
    default:                                                                                                              \
        code = prefix##Scatterv(from, counts, starts, MPI_DOUBLE, to, 1, MPI_DOUBLE, 0, comm);                            \
    }

/* Returns the class of the error of such a call, on a separate communicator. */
static int class_of_aliases(int number, int is_by_mpi)
{
    MPI_Comm comm;
    int code, class, counts[ranks], starts[ranks];
    double all[64] = { 0 };
    for (int i = 0; i < ranks; i++) {
        counts[i] = 1;
        starts[i] = i;
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    /* Open MPI calls its handler for some of these errors. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (is_by_mpi)
        ALIASED_CALL(PMPI_)
    else
        ALIASED_CALL(MPI_)
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Error_class(code, &class);
    /* The other ranks of a call with a root have made a valid call, and wait. */
    if (code != MPI_SUCCESS && (number == 1 || number == 7 || number == 8 || number >= 12)) {
        double *from = all, to[64];
        if (is_by_mpi)
            VALID_CALL(PMPI_)
        else
            VALID_CALL(MPI_)
        check(code == MPI_SUCCESS, "a valid call after one into its own array fails");
    }
    MPI_Comm_free(&comm);
    return class;
}

/* Calls with aliased buffers end as in MPI: by default, MPICH refuses all of these, and Open MPI two. */
static void aliases(void)
{
    for (int number = 0; number < ALIASED_CALLS; number++) {
        int ours = class_of_aliases(number, 0), theirs = class_of_aliases(number, 1);
        if (ours != theirs)
            fprintf(stderr, "call %d: class %d, and not %d\n", number, ours, theirs);
        check(ours == theirs, "a call whose buffers are one does not end as in MPI");
    }
}

enum { CALLS_WITH_OWN_BLOCK = 8, EARLY_CALLS = 2 };

/* Makes a call in which rank 0 sends itself 2 elements and expects 1. */
static int call_with_own_block(int number, MPI_Comm comm)
{
    int from[64] = { 0 }, to[64], counts[ranks], starts[ranks], sizes[ranks], sent = rank == 0 ? 2 : 1;
    for (int i = 0; i < ranks; i++) {
        counts[i] = 1;
        sizes[i] = i == rank ? sent : 1;
        starts[i] = i;
    }
    switch (number) {
    case 0:
        return MPI_Alltoall(from, sent, MPI_INT, to, 1, MPI_INT, comm);
    case 1:
        return MPI_Alltoallv(from, sizes, starts, MPI_INT, to, counts, starts, MPI_INT, comm);
    case 2:
        return MPI_Allgather(from, sent, MPI_INT, to, 1, MPI_INT, comm);
    case 3:
        return MPI_Allgatherv(from, sent, MPI_INT, to, counts, starts, MPI_INT, comm);
    case 4:
        return MPI_Gather(from, sent, MPI_INT, to, 1, MPI_INT, 0, comm);
    case 5:
        return MPI_Gatherv(from, sent, MPI_INT, to, counts, starts, MPI_INT, 0, comm);
    case 6:
        return MPI_Scatterv(from, counts, starts, MPI_INT, to, sent, MPI_INT, 0, comm);
    default:
        return MPI_Scatter(from, 1, MPI_INT, to, sent, MPI_INT, 0, comm);
    }
}

/* A rank that sends itself more than it expects takes part in the call before it gets an error of class `expected`: as the first call of
 * a communicator, and then. */
static void lengths(int first, int calls, int expected)
{
    for (int number = first; number < calls; number++) {
        MPI_Comm comm;
        int class;
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
        for (int i = 0; i < 2; i++) {
            MPI_Error_class(call_with_own_block(number, comm), &class);
            check(rank != 0 || class == expected, "a block that is cut is not reported");
        }
        check(calls == 1 || sum_of(1, comm) == ranks, "the sum after a block that is cut is wrong");
        MPI_Comm_free(&comm);
    }
}

/* Exhausts the memory, once no rank is in an earlier call, which would fail too. Returns the previous limit. The heap keeps some memory
 * for small values, which every program needs. */
static struct rlimit without_memory(MPI_Comm comm)
{
    struct rlimit limit, small;
    volatile char *spare = malloc(64 << 10);
    spare[0] = 0;
    PMPI_Barrier(comm);
    free((void *)spare);
    getrlimit(RLIMIT_AS, &limit);
    small = limit;
    small.rlim_cur = 1;
    setrlimit(RLIMIT_AS, &small);
    return limit;
}

/* Tests a lack of memory for the blocks that a rank receives. */
static void no_memory_for_blocks(MPI_Errhandler handler, MPI_Datatype spread, const char *from)
{
    enum { COUNT = 1 << 22 };
    MPI_Comm comm;
    int counts[ranks], starts[ranks], class;
    char nothing[1];
    for (int i = 0; i < ranks; i++) {
        counts[i] = COUNT;
        starts[i] = i * COUNT;
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, handler);
    check(sum_of(1, comm) == ranks, "the sum of a copy is wrong");
    struct rlimit limit = without_memory(comm);
    int code = MPI_Allgatherv(from, COUNT, MPI_DOUBLE, nothing, counts, starts, spread, comm);
    setrlimit(RLIMIT_AS, &limit);
    MPI_Error_class(code, &class);
    check(class == MPI_ERR_NO_MEM && errors_handled == 2, "a lack of memory for blocks is not for the error handler");
    MPI_Comm_free(&comm);
}

/* Values of a contiguous type are not packed, which would need memory. */
static void contiguous_without_memory(void)
{
    enum { COUNT = 1 << 22 };
    MPI_Comm comm;
    MPI_Datatype pair;
    double *values = calloc(2 * COUNT, sizeof(double));
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Type_contiguous(2, MPI_DOUBLE, &pair);
    MPI_Type_commit(&pair);
    check(MPI_Bcast(values, COUNT, pair, 0, comm) == MPI_SUCCESS, "a broadcast of pairs fails");
    if (rank == 0)
        values[2 * COUNT - 1] = 7;
    struct rlimit limit = without_memory(comm);
    int code = MPI_Bcast(values, COUNT, pair, 0, comm);
    setrlimit(RLIMIT_AS, &limit);
    check(code == MPI_SUCCESS && values[2 * COUNT - 1] == 7, "a broadcast of pairs takes memory");
    MPI_Type_free(&pair);
    MPI_Comm_free(&comm);
    free(values);
}

/* Without memory to pack values, every rank's error handler is called. */
static void no_memory(void)
{
    enum { COUNT = 1 << 26 };
    MPI_Comm comm;
    MPI_Errhandler handler;
    MPI_Datatype spread;
    char *nothing = malloc(1);
    int class;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_create_errhandler(count_error, &handler);
    MPI_Comm_set_errhandler(comm, handler);
    MPI_Type_create_resized(MPI_DOUBLE, 0, 2 * sizeof(double), &spread);
    MPI_Type_commit(&spread);
    check(sum_of(1, comm) == ranks, "the sum of a copy is wrong");
    struct rlimit limit = without_memory(comm);
    int code = MPI_Bcast(nothing, COUNT, spread, 0, comm);
    setrlimit(RLIMIT_AS, &limit);
    MPI_Error_class(code, &class);
    check(class == MPI_ERR_NO_MEM && errors_handled == 1, "a lack of memory is not for the error handler");
    no_memory_for_blocks(handler, spread, nothing);
    MPI_Type_free(&spread);
    MPI_Errhandler_free(&handler);
    MPI_Comm_free(&comm);
    free(nothing);
}

/* A world needs a file for each rank. MPI carries out the calls of a communicator for which few are left. */
static void few_files(void)
{
    MPI_Comm comm;
    struct rlimit limit, small;
    int free_file = dup(0);
    close(free_file);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    getrlimit(RLIMIT_NOFILE, &limit);
    small = limit;
    small.rlim_cur = 2 * (rlim_t)free_file + 1;
    setrlimit(RLIMIT_NOFILE, &small);
    check(sum_of(1, comm) == ranks, "the sum with few files is wrong");
    setrlimit(RLIMIT_NOFILE, &limit);
    MPI_Comm_free(&comm);
}

/* Mismatched calls are an MPI error, with a text that names both. */
static void mismatch(int is_fatal)
{
    MPI_Comm comm;
    int value[2] = { 1, 1 }, sum[2], length;
    char text[MPI_MAX_ERROR_STRING];
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, is_fatal ? MPI_ERRORS_ARE_FATAL : MPI_ERRORS_RETURN);
    check(sum_of(1, comm) == ranks, "the sum of a copy is wrong");
    int code = MPI_Allreduce(value, sum, 1 + rank % 2, MPI_INT, MPI_SUM, comm);
    check(code != MPI_SUCCESS, "a mismatch is not reported");
    MPI_Error_string(code, text, &length);
    printf("rank %d: %s\n", rank, text);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "aliases") != 0) {
        errors();
        type_of_an_invalid_call();
        error_handler_is_called_once();
        types_that_are_not_committed();
        invalid_first_calls(strcmp(mode, "off") == 0 || strcmp(mode, "lengths") == 0 ? REFUSED_BY_MPI : INVALID_CALLS);
    }
    aliases();
    if (strcmp(mode, "lengths") == 0)
        lengths(0, 1, MPI_ERR_TRUNCATE);
    if (strcmp(mode, "no-memory") == 0) {
#ifdef OPEN_MPI
        /* Open MPI refuses the first ones before other ranks are involved. */
        lengths(EARLY_CALLS, CALLS_WITH_OWN_BLOCK, MPI_ERR_COUNT);
#else
        lengths(0, CALLS_WITH_OWN_BLOCK, MPI_ERR_COUNT);
#endif
        contiguous_without_memory();
        no_memory();
        few_files();
    }
    if (strcmp(mode, "mismatch") == 0)
        mismatch(argc > 2);
    if (rank == 0)
        printf("%d ranks: all right\n", ranks);
    MPI_Finalize();
    return 0;
}
