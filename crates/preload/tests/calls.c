/* Every intercepted call, with every kind of argument, compared with the result of MPI's own function, since PMPI_ is not intercepted.
 * Run it with the library preloaded, and without. */

#include <complex.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static void check(bool is_right, const char *what, long count)
{
    if (is_right)
        return;
    fprintf(stderr, "rank %d: %s of %ld is wrong\n", rank, what, count);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Allocates `count` doubles for each rank. */
static double *array(long count)
{
    double *values = malloc(sizeof(double) * (size_t)(count * ranks + 1));
    for (long i = 0; i < count * ranks + 1; i++)
        values[i] = -1;
    return values;
}

static double *own_values(long count)
{
    double *values = array(count);
    for (long i = 0; i < count * ranks; i++)
        values[i] = (double)(i % 1000 + 7 * rank);
    return values;
}

static bool same(const double *a, const double *b, long count)
{
    return memcmp(a, b, sizeof(double) * (size_t)count) == 0;
}

/* Rank 0 has no result of an exclusive scan. */
static void scans(MPI_Comm comm, long count)
{
    double *from = own_values(count), *ours = array(count), *theirs = array(count);
    int n = (int)count;
    MPI_Scan(from, ours, n, MPI_DOUBLE, MPI_SUM, comm);
    PMPI_Scan(from, theirs, n, MPI_DOUBLE, MPI_SUM, comm);
    check(same(ours, theirs, count), "scan", count);
    memcpy(ours, from, sizeof(double) * (size_t)count);
    MPI_Scan(MPI_IN_PLACE, ours, n, MPI_DOUBLE, MPI_SUM, comm);
    check(same(ours, theirs, count), "scan in place", count);
    MPI_Exscan(from, ours, n, MPI_DOUBLE, MPI_MAX, comm);
    PMPI_Exscan(from, theirs, n, MPI_DOUBLE, MPI_MAX, comm);
    check(rank == 0 || same(ours, theirs, count), "exclusive scan", count);
    memcpy(ours, from, sizeof(double) * (size_t)count);
    MPI_Exscan(MPI_IN_PLACE, ours, n, MPI_DOUBLE, MPI_MAX, comm);
    check(rank == 0 || same(ours, theirs, count), "exclusive scan in place", count);
    free(from), free(ours), free(theirs);
}

static void reductions(MPI_Comm comm, long count)
{
    double *from = own_values(count), *ours = array(count), *theirs = array(count);
    int n = (int)count, root = ranks - 1;
    const MPI_Op ops[] = { MPI_SUM, MPI_MIN, MPI_MAX };
    for (int op = 0; op < 3; op++) {
        MPI_Allreduce(from, ours, n, MPI_DOUBLE, ops[op], comm);
        PMPI_Allreduce(from, theirs, n, MPI_DOUBLE, ops[op], comm);
        check(same(ours, theirs, count), "all-reduce", count);
        MPI_Reduce(from, ours, n, MPI_DOUBLE, ops[op], root, comm);
        PMPI_Reduce(from, theirs, n, MPI_DOUBLE, ops[op], root, comm);
        check(same(ours, theirs, count), "reduce", count);
        MPI_Reduce_scatter_block(from, ours, n, MPI_DOUBLE, ops[op], comm);
        PMPI_Reduce_scatter_block(from, theirs, n, MPI_DOUBLE, ops[op], comm);
        check(same(ours, theirs, count), "reduce-scatter", count);
    }
    scans(comm, count);
    memcpy(ours, from, sizeof(double) * (size_t)count);
    MPI_Allreduce(MPI_IN_PLACE, ours, n, MPI_DOUBLE, MPI_SUM, comm);
    PMPI_Allreduce(from, theirs, n, MPI_DOUBLE, MPI_SUM, comm);
    check(same(ours, theirs, count), "all-reduce in place", count);
    /* MPICH 4.0.2 itself crashes with other roots. */
    memcpy(ours, from, sizeof(double) * (size_t)count);
    MPI_Reduce(rank == 0 ? MPI_IN_PLACE : from, ours, n, MPI_DOUBLE, MPI_SUM, 0, comm);
    check(rank != 0 || same(ours, theirs, count), "reduce in place on the root", count);
    memcpy(ours, from, sizeof(double) * (size_t)(count * ranks));
    MPI_Reduce_scatter_block(MPI_IN_PLACE, ours, n, MPI_DOUBLE, MPI_SUM, comm);
    PMPI_Reduce_scatter_block(from, theirs, n, MPI_DOUBLE, MPI_SUM, comm);
    check(same(ours, theirs, count), "reduce-scatter in place", count);
    free(from), free(ours), free(theirs);
}

/* A type with a double at every other place. */
static MPI_Datatype spread_type(void)
{
    MPI_Datatype spread, resized;
    MPI_Type_vector(1, 1, 2, MPI_DOUBLE, &spread);
    MPI_Type_create_resized(spread, 0, 2 * sizeof(double), &resized);
    MPI_Type_commit(&resized);
    MPI_Type_free(&spread);
    return resized;
}

/* Ranks describe the same values by different types: derived ones, MPI's, and bytes. */
static void moves_of_other_types(MPI_Comm comm, long count)
{
    double *values = own_values(2 * count), *gotten = array(2 * count);
    MPI_Datatype spread = spread_type();
    int n = (int)count;
    if (rank == 0) {
        MPI_Bcast(values, n, spread, 0, comm);
    } else {
        MPI_Bcast(gotten, n, MPI_DOUBLE, 0, comm);
        for (long i = 0; i < count; i++)
            check(gotten[i] == (double)(2 * i % 1000), "broadcast of another type", count);
    }
    for (long i = 0; i < 2 * count * ranks; i++)
        gotten[i] = -1;
    MPI_Allgather(values, n, spread, gotten, n, rank % 2 ? MPI_DOUBLE : spread, comm);
    for (long i = 0; i < count * ranks; i++) {
        double expected = (double)(2 * (i % count) % 1000 + 7 * (i / count));
        check(gotten[rank % 2 ? i : 2 * i] == expected, "all-gather of another type", count);
        check(rank % 2 || gotten[2 * i + 1] == -1, "all-gather beside another type", count);
    }
    if (rank == 0)
        MPI_Gather(values, n, spread, gotten, n, MPI_DOUBLE, 0, comm);
    else
        MPI_Gather(gotten, n, rank % 2 ? MPI_DOUBLE : spread, NULL, 0, MPI_DATATYPE_NULL, 0, comm);
    for (long i = 0; rank == 0 && i < count * ranks; i++)
        check(gotten[i] == (double)(2 * (i % count) % 1000), "gather of other types", count);
    for (long i = 0; i < 2 * count * ranks; i++)
        values[i] = -1;
    if (rank == 0)
        MPI_Scatter(gotten, n, MPI_DOUBLE, values, n, spread, 0, comm);
    else
        MPI_Scatter(NULL, 0, MPI_DATATYPE_NULL, values, n, spread, 0, comm);
    for (long i = 0; i < count; i++) {
        check(values[2 * i] == (double)(2 * i % 1000), "scatter of other types", count);
        check(values[2 * i + 1] == -1, "scatter beside other types", count);
    }
    MPI_Type_free(&spread);
    free(values), free(gotten);
}

/* Blocks from and to a root, whose own block may be in place. Only the root has the buffer of all blocks. */
static void moves_of_a_root(MPI_Comm comm, long count, int root)
{
    double *from = own_values(count), *ours = array(count), *theirs = array(count);
    int n = (int)count;
    bool is_root = rank == root;
    PMPI_Gather(from, n, MPI_DOUBLE, theirs, n, MPI_DOUBLE, root, comm);
    MPI_Gather(from, n, MPI_DOUBLE, is_root ? ours : NULL, n, MPI_DOUBLE, root, comm);
    check(!is_root || same(ours, theirs, count * ranks), "gather", count);
    for (long i = 0; i < count * ranks; i++)
        ours[i] = i / count == rank ? from[i % count] : -1;
    if (is_root)
        MPI_Gather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, ours, n, MPI_DOUBLE, root, comm);
    else
        MPI_Gather(from, n, MPI_DOUBLE, NULL, 0, MPI_DATATYPE_NULL, root, comm);
    check(!is_root || same(ours, theirs, count * ranks), "gather in place", count);
    PMPI_Scatter(from, n, MPI_DOUBLE, theirs, n, MPI_DOUBLE, root, comm);
    MPI_Scatter(is_root ? from : NULL, n, MPI_DOUBLE, ours, n, MPI_DOUBLE, root, comm);
    check(same(ours, theirs, count), "scatter", count);
    memset(ours, 0, sizeof(double) * (size_t)count);
    MPI_Scatter(is_root ? from : NULL, n, MPI_DOUBLE, is_root ? MPI_IN_PLACE : ours, n, MPI_DOUBLE, root, comm);
    check(is_root || same(ours, theirs, count), "scatter in place", count);
    free(from), free(ours), free(theirs);
}

static void moves(MPI_Comm comm, long count)
{
    double *from = own_values(count), *ours = array(count), *theirs = array(count);
    int n = (int)count;
    for (int root = 0; root < ranks; root++) {
        memcpy(ours, from, sizeof(double) * (size_t)count), memcpy(theirs, from, sizeof(double) * (size_t)count);
        MPI_Bcast(ours, n, MPI_DOUBLE, root, comm);
        PMPI_Bcast(theirs, n, MPI_DOUBLE, root, comm);
        check(same(ours, theirs, count), "broadcast", count);
        moves_of_a_root(comm, count, root);
    }
    MPI_Allgather(from, n, MPI_DOUBLE, ours, n, MPI_DOUBLE, comm);
    PMPI_Allgather(from, n, MPI_DOUBLE, theirs, n, MPI_DOUBLE, comm);
    check(same(ours, theirs, count * ranks), "all-gather", count);
    for (long i = 0; i < count * ranks; i++)
        ours[i] = i / (count ? count : 1) == rank ? from[i % (count ? count : 1)] : -1;
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, ours, n, MPI_DOUBLE, comm);
    check(same(ours, theirs, count * ranks), "all-gather in place", count);
    MPI_Alltoall(from, n, MPI_DOUBLE, ours, n, MPI_DOUBLE, comm);
    PMPI_Alltoall(from, n, MPI_DOUBLE, theirs, n, MPI_DOUBLE, comm);
    check(same(ours, theirs, count * ranks), "all-to-all", count);
    memcpy(ours, from, sizeof(double) * (size_t)(count * ranks));
    MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, ours, n, MPI_DOUBLE, comm);
    check(same(ours, theirs, count * ranks), "all-to-all in place", count);
    free(from), free(ours), free(theirs);
}

/* Rank r contributes count + r elements (or count, if `is_even`), with gaps and in reverse order. */
static void unequal_moves(MPI_Comm comm, long count, bool is_even)
{
    double *from = own_values(2 * count + ranks), *ours = array(2 * count + 2 * ranks), *theirs = array(2 * count + 2 * ranks);
    int counts[ranks], starts[ranks];
    for (int i = 0; i < ranks; i++) {
        counts[i] = (int)count + (is_even ? 0 : i);
        starts[i] = (ranks - 1 - i) * (int)(count + ranks + 1);
    }
    long all = (2 * count + 2 * ranks) * ranks;
    MPI_Allgatherv(from, counts[rank], MPI_DOUBLE, ours, counts, starts, MPI_DOUBLE, comm);
    PMPI_Allgatherv(from, counts[rank], MPI_DOUBLE, theirs, counts, starts, MPI_DOUBLE, comm);
    check(same(ours, theirs, all), "all-gather of unequal blocks", count);
    for (long i = 0; i < all; i++)
        ours[i] = -1;
    memcpy(ours + starts[rank], from, sizeof(double) * (size_t)counts[rank]);
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, ours, counts, starts, MPI_DOUBLE, comm);
    check(same(ours, theirs, all), "all-gather of unequal blocks in place", count);
    MPI_Reduce_scatter(from, ours, counts, MPI_DOUBLE, MPI_SUM, comm);
    PMPI_Reduce_scatter(from, theirs, counts, MPI_DOUBLE, MPI_SUM, comm);
    check(same(ours, theirs, counts[rank]), "reduce-scatter of counts", count);
    free(from), free(ours), free(theirs);
}

/* The blocks that this rank exchanges with each rank, one after the other, or in reverse order with gaps. */
struct blocks {
    int counts[64], starts[64];
};

/* Blocks of `count` values and a few more, by the number of the rank that sends and of the one that receives. Some are empty. */
static struct blocks blocks_of(long count, bool is_sender, bool is_in_order)
{
    struct blocks blocks;
    int next = 0;
    for (int other = 0; other < ranks; other++) {
        int from = is_sender ? rank : other, to = is_sender ? other : rank;
        blocks.counts[other] = (from + 2 * to) % 5 == 4 ? 0 : (int)count + from % 2 + 2 * (to % 2);
        blocks.starts[other] = is_in_order ? next : (ranks - 1 - other) * (int)(count + 5);
        next += blocks.counts[other];
    }
    return blocks;
}

/* Rank r exchanges as many values with rank s as s with r, as in-place exchanges require. */
static void exchange_in_place(MPI_Comm comm, long count, bool is_in_order)
{
    struct blocks both = blocks_of(count, true, is_in_order);
    int next = 0;
    for (int other = 0; other < ranks; other++) {
        both.counts[other] = (int)count + (rank + other) % 3;
        both.starts[other] = is_in_order ? next : both.starts[other];
        next += both.counts[other];
    }
    double *ours = own_values(count + 5), *theirs = array(count + 5), *from = own_values(count + 5);
    memcpy(theirs, from, sizeof(double) * (size_t)((count + 5) * ranks));
    MPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, ours, both.counts, both.starts, MPI_DOUBLE, comm);
    PMPI_Alltoallv(from, both.counts, both.starts, MPI_DOUBLE, theirs, both.counts, both.starts, MPI_DOUBLE, comm);
    check(same(ours, theirs, (count + 5) * ranks), "exchange in place", count);
    free(ours), free(theirs), free(from);
}

/* Blocks of different sizes, from and to a root, whose own block may be in place. Only the root has the buffer of all blocks. */
static void exchanges_with_a_root(MPI_Comm comm, long count, bool is_in_order, int root)
{
    struct blocks sent = blocks_of(count, true, is_in_order), gotten = blocks_of(count, false, is_in_order);
    long all = (count + 5) * ranks;
    double *from = own_values(count + 5), *ours = array(count + 5), *theirs = array(count + 5);
    bool is_root = rank == root;
    const int *counts = is_root ? gotten.counts : NULL, *starts = is_root ? gotten.starts : NULL;
    PMPI_Gatherv(from, sent.counts[root], MPI_DOUBLE, theirs, counts, starts, MPI_DOUBLE, root, comm);
    MPI_Gatherv(from, sent.counts[root], MPI_DOUBLE, is_root ? ours : NULL, counts, starts, MPI_DOUBLE, root, comm);
    check(same(ours, theirs, all), "gather of blocks", count);
    for (long i = 0; i < all; i++)
        ours[i] = -1;
    if (is_root) {
        memcpy(ours + gotten.starts[root], from, sizeof(double) * (size_t)gotten.counts[root]);
        MPI_Gatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, ours, counts, starts, MPI_DOUBLE, root, comm);
    } else {
        MPI_Gatherv(from, sent.counts[root], MPI_DOUBLE, NULL, NULL, NULL, MPI_DATATYPE_NULL, root, comm);
    }
    check(same(ours, theirs, all), "gather of blocks in place", count);
    counts = is_root ? sent.counts : NULL, starts = is_root ? sent.starts : NULL;
    PMPI_Scatterv(from, counts, starts, MPI_DOUBLE, theirs, gotten.counts[root], MPI_DOUBLE, root, comm);
    for (long i = 0; i < all; i++)
        theirs[i] = ours[i] = i < gotten.counts[root] ? theirs[i] : -1;
    memset(ours, 0, sizeof(double) * (size_t)gotten.counts[root]);
    MPI_Scatterv(is_root ? from : NULL, counts, starts, is_root ? MPI_DOUBLE : MPI_DATATYPE_NULL, ours, gotten.counts[root], MPI_DOUBLE,
                 root, comm);
    check(same(ours, theirs, all), "scatter of blocks", count);
    memset(ours, 0, sizeof(double) * (size_t)gotten.counts[root]);
    MPI_Scatterv(is_root ? from : NULL, counts, starts, MPI_DOUBLE, is_root ? MPI_IN_PLACE : ours, gotten.counts[root], MPI_DOUBLE, root,
                 comm);
    check(is_root || same(ours, theirs, all), "scatter of blocks in place", count);
    free(from), free(ours), free(theirs);
}

static void exchanges(MPI_Comm comm, long count, bool is_in_order)
{
    struct blocks sent = blocks_of(count, true, is_in_order), gotten = blocks_of(count, false, is_in_order);
    double *from = own_values(count + 5), *ours = array(count + 5), *theirs = array(count + 5);
    MPI_Alltoallv(from, sent.counts, sent.starts, MPI_DOUBLE, ours, gotten.counts, gotten.starts, MPI_DOUBLE, comm);
    PMPI_Alltoallv(from, sent.counts, sent.starts, MPI_DOUBLE, theirs, gotten.counts, gotten.starts, MPI_DOUBLE, comm);
    check(same(ours, theirs, (count + 5) * ranks), "exchange", count);
    free(from), free(ours), free(theirs);
    exchange_in_place(comm, count, is_in_order);
    for (int root = 0; root < ranks; root++)
        exchanges_with_a_root(comm, count, is_in_order, root);
}

/* The buffer may be missing if there are no elements. */
static void no_elements(MPI_Comm comm)
{
    int zeros[ranks];
    memset(zeros, 0, sizeof(zeros));
    check(MPI_Allgatherv(NULL, 0, MPI_DOUBLE, NULL, zeros, zeros, MPI_DOUBLE, comm) == MPI_SUCCESS, "all-gather", 0);
    check(MPI_Allgather(NULL, 0, MPI_DOUBLE, NULL, 0, MPI_DOUBLE, comm) == MPI_SUCCESS, "all-gather of equal blocks", 0);
    check(MPI_Alltoallv(NULL, zeros, zeros, MPI_DOUBLE, zeros, zeros, zeros, MPI_DOUBLE, comm) == MPI_SUCCESS, "exchange", 0);
}

/* Integers of every type, also at unaligned addresses. */
static void types(MPI_Comm comm)
{
    enum { COUNT = 3000 };
    const struct { MPI_Datatype type; int size; } types[] = {
        { MPI_CHAR, 1 },   { MPI_SIGNED_CHAR, 1 }, { MPI_UNSIGNED_CHAR, 1 }, { MPI_SHORT, 2 },   { MPI_UNSIGNED_SHORT, 2 },
        { MPI_INT, 4 },    { MPI_UNSIGNED, 4 },    { MPI_LONG, 8 },          { MPI_INT8_T, 1 },  { MPI_UNSIGNED_LONG, 8 },
        { MPI_UINT16_T, 2 }, { MPI_UINT32_T, 4 },  { MPI_INT64_T, 8 },       { MPI_UINT64_T, 8 }, { MPI_LONG_LONG, 8 },
    };
    for (size_t t = 0; t < sizeof(types) / sizeof(*types); t++) {
        size_t bytes = COUNT * (size_t)types[t].size;
        unsigned char *from = calloc(1, bytes + 1), *ours = calloc(1, bytes + 1), *theirs = calloc(1, bytes + 1);
        for (size_t i = 0; i < bytes; i += (size_t)types[t].size)
            from[1 + i] = (unsigned char)(i / (size_t)types[t].size % 11 + (size_t)rank);
        /* MPI does not sum characters. */
        if (t > 0) {
            MPI_Allreduce(from + 1, ours + 1, COUNT, types[t].type, MPI_SUM, comm);
            PMPI_Allreduce(from + 1, theirs + 1, COUNT, types[t].type, MPI_SUM, comm);
            check(memcmp(ours, theirs, bytes + 1) == 0, "sum of a type", (long)t);
            const MPI_Op of_bits[] = { MPI_BAND, MPI_BOR, MPI_BXOR, MPI_LAND, MPI_LOR, MPI_LXOR };
            for (size_t o = 0; o < sizeof(of_bits) / sizeof(*of_bits); o++) {
                MPI_Allreduce(from + 1, ours + 1, 3, types[t].type, of_bits[o], comm);
                PMPI_Allreduce(from + 1, theirs + 1, 3, types[t].type, of_bits[o], comm);
                check(memcmp(ours, theirs, bytes + 1) == 0, "bits of a type", (long)t);
            }
        }
        MPI_Bcast(from + 1, COUNT, types[t].type, 0, comm);
        for (size_t i = 0; i < bytes; i += (size_t)types[t].size)
            check(from[1 + i] == i / (size_t)types[t].size % 11, "broadcast of a type", (long)t);
        free(from), free(ours), free(theirs);
    }
    struct { double value; int place; } pair = { rank, rank }, most;
    MPI_Allreduce(&pair, &most, 1, MPI_DOUBLE_INT, MPI_MAXLOC, comm);
    check(most.place == ranks - 1, "largest pair", 1);
}

/* Sums of complex numbers, and bitwise operations on 8-bit and 16-bit integers. */
static void parts_of_types(MPI_Comm comm)
{
    enum { COUNT = 1001 };
    float complex from[COUNT], ours[COUNT], theirs[COUNT];
    for (int i = 0; i < COUNT; i++)
        from[i] = (float)(i + rank) + (float)(i - 3 * rank) * I;
    MPI_Allreduce(from, ours, COUNT, MPI_C_FLOAT_COMPLEX, MPI_SUM, comm);
    PMPI_Allreduce(from, theirs, COUNT, MPI_C_FLOAT_COMPLEX, MPI_SUM, comm);
    check(memcmp(ours, theirs, sizeof(ours)) == 0, "sum of complex numbers", COUNT);
    /* Small enough for exact products. */
    for (int i = 0; i < COUNT; i++)
        from[i] = (float)((i + rank) % 7) + (float)(i % 5 - rank) * I;
    MPI_Allreduce(from, ours, COUNT, MPI_C_FLOAT_COMPLEX, MPI_PROD, comm);
    PMPI_Allreduce(from, theirs, COUNT, MPI_C_FLOAT_COMPLEX, MPI_PROD, comm);
    /* The order decides the sign of a zero. */
    for (int i = 0; i < COUNT; i++)
        check(ours[i] == theirs[i], "product of complex numbers", COUNT);
}

int main(int argc, char **argv)
{
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const long counts[] = { 0, 1, 3, 500, 513, 5000, 70001 };
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        reductions(MPI_COMM_WORLD, counts[i]);
        moves(MPI_COMM_WORLD, counts[i]);
        if (counts[i] > 0)
            moves_of_other_types(MPI_COMM_WORLD, counts[i]);
        unequal_moves(MPI_COMM_WORLD, counts[i], false);
        unequal_moves(MPI_COMM_WORLD, counts[i], true);
        exchanges(MPI_COMM_WORLD, counts[i], false);
        exchanges(MPI_COMM_WORLD, counts[i], true);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    no_elements(MPI_COMM_WORLD);
    types(MPI_COMM_WORLD);
    parts_of_types(MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks: all right\n", ranks);
    MPI_Finalize();
    return 0;
}
