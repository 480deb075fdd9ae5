/* The report: who carried out which calls, why, and how long they took, on rank 0; and how long MPI takes for what Unisono carried
 * out. */

#include "accelerate.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE_CLASSES = 48, TRIES = 7 };

/* Calls of one function, on as many ranks, of about the same size, with the same fate. */
struct row {
    int function, why, ranks, size_class;
    long calls;
    double seconds;
    /* The size of the last one, for a comparison with MPI. */
    long bytes;
    struct row *next;
};

bool report_is_wanted;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct row *rows;

static const char *const WHYS_TOLD[WHYS] = {
    "unisono",
    "MPI: UNISONO_ACCELERATE leaves it to MPI",
    "MPI: there are no elements",
    "MPI: it is larger than 2 GiB",
    "MPI: the ranks' counts are too different",
    "MPI: the type is not one that Unisono reduces",
    "MPI: the operation is not one of Unisono's",
    "MPI: an intercommunicator",
    "MPI: one rank",
    "MPI: the ranks are on several nodes",
    "MPI: ranks of another MPI_COMM_WORLD",
    "MPI: Unisono did not start",
    "MPI: Unisono gains too little at this size",
    "MPI: not a valid call",
};

void report_begin(void)
{
    const char *text = getenv("UNISONO_ACCELERATE_REPORT");
    int wanted = text != NULL && strcmp(text, "1") == 0;
    PMPI_Allreduce(MPI_IN_PLACE, &wanted, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    report_is_wanted = wanted;
}

double report_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The number of bits of a size. */
static int size_class_of(size_t bytes)
{
    int bits = 0;
    for (; bytes != 0; bytes >>= 1)
        bits++;
    return bits < SIZE_CLASSES ? bits : SIZE_CLASSES - 1;
}

static int compare(const struct row *a, const struct row *b)
{
    if (a->function != b->function)
        return a->function - b->function;
    if (a->ranks != b->ranks)
        return a->ranks - b->ranks;
    return a->size_class != b->size_class ? a->size_class - b->size_class : a->why - b->why;
}

void report_call(const struct call *call)
{
    struct row key = { .function = call->function, .why = call->why };
    double seconds = report_now() - call->began;
    key.ranks = call->world == NULL ? 0 : call->world->ranks;
    key.size_class = size_class_of(call->bytes);
    pthread_mutex_lock(&lock);
    struct row **place = &rows;
    while (*place != NULL && compare(*place, &key) < 0)
        place = &(*place)->next;
    if (*place == NULL || compare(*place, &key) != 0) {
        struct row *row = allocated(sizeof(*row));
        *row = key;
        row->next = *place;
        *place = row;
    }
    (*place)->calls++;
    (*place)->seconds += seconds;
    (*place)->bytes = (long)call->bytes;
    pthread_mutex_unlock(&lock);
}

/* A call on scratch buffers, by MPI (`PMPI_`) or by Unisono (`MPI_`). */
#define MAKE(prefix)                                                                          \
    switch (row->function) {                                                                  \
    case ALLREDUCE:                                                                           \
        prefix##Allreduce(from, to, floats, MPI_FLOAT, MPI_SUM, comm);                        \
        break;                                                                                \
    case REDUCE:                                                                              \
        prefix##Reduce(from, to, floats, MPI_FLOAT, MPI_SUM, 0, comm);                        \
        break;                                                                                \
    case BCAST:                                                                               \
        prefix##Bcast(from, bytes, MPI_BYTE, 0, comm);                                        \
        break;                                                                                \
    case REDUCE_SCATTER:                                                                      \
    case REDUCE_SCATTER_BLOCK:                                                                \
        prefix##Reduce_scatter_block(from, to, floats, MPI_FLOAT, MPI_SUM, comm);             \
        break;                                                                                \
    case ALLGATHER:                                                                           \
    case ALLGATHERV:                                                                          \
        prefix##Allgather(from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, comm);                  \
        break;                                                                                \
    case ALLTOALL:                                                                            \
        prefix##Alltoall(from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, comm);                   \
        break;                                                                                \
    default:                                                                                  \
        prefix##Barrier(comm);                                                                \
    }

/* Seconds of a call, on this rank. */
static double timed(const struct row *row, char *from, char *to, MPI_Comm comm, bool is_by_mpi)
{
    int bytes = (int)row->bytes, floats = (bytes + (int)sizeof(float) - 1) / (int)sizeof(float);
    PMPI_Barrier(comm);
    double began = report_now();
    if (is_by_mpi)
        MAKE(PMPI_)
    else
        MAKE(MPI_)
    return report_now() - began;
}

static int ascending(const void *a, const void *b)
{
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

/* The medians of both, in seconds; 0 if they would need too much memory. */
struct medians {
    double by_unisono, by_mpi;
};

static struct medians measured_on(const struct row *row, MPI_Comm comm)
{
    bool has_blocks = row->function != ALLREDUCE && row->function != REDUCE && row->function != BCAST;
    size_t bytes = ((size_t)row->bytes + sizeof(float)) * (has_blocks ? (size_t)row->ranks : 1);
    char *from = calloc(1, bytes), *to = calloc(1, bytes);
    int has_memory = from != NULL && to != NULL && row->bytes < 1L << 30;
    double by_unisono[TRIES] = { 0 }, by_mpi[TRIES] = { 0 };
    PMPI_Allreduce(MPI_IN_PLACE, &has_memory, 1, MPI_INT, MPI_MIN, comm);
    for (int try = -2; has_memory && try < TRIES; try++) {
        by_unisono[try < 0 ? 0 : try] = timed(row, from, to, comm, false);
        by_mpi[try < 0 ? 0 : try] = timed(row, from, to, comm, true);
    }
    free(from);
    free(to);
    qsort(by_unisono, TRIES, sizeof(*by_unisono), ascending);
    qsort(by_mpi, TRIES, sizeof(*by_mpi), ascending);
    return (struct medians){ by_unisono[TRIES / 2], by_mpi[TRIES / 2] };
}

/* The medians on the first ranks of MPI_COMM_WORLD, as many as the calls had. All ranks call it. */
static struct medians measured(const struct row *row)
{
    int own;
    PMPI_Comm_rank(MPI_COMM_WORLD, &own);
    MPI_Comm comm;
    PMPI_Comm_split(MPI_COMM_WORLD, own < row->ranks ? 0 : MPI_UNDEFINED, own, &comm);
    if (comm == MPI_COMM_NULL)
        return (struct medians){ 0, 0 };
    struct medians medians = measured_on(row, comm);
    PMPI_Comm_free(&comm);
    return medians;
}

static void print(const struct row *row, struct medians medians)
{
    char size[32], ranks[16] = "", both[64] = "";
    snprintf(size, sizeof(size), row->size_class == 0 ? "0" : "< %ld", 1L << row->size_class);
    if (row->ranks > 0)
        snprintf(ranks, sizeof(ranks), "%d", row->ranks);
    if (medians.by_mpi > 0)
        snprintf(both, sizeof(both), "%.2f %12.2f", medians.by_unisono * 1e6, medians.by_mpi * 1e6);
    fprintf(stderr, "unisono: %-21s %5s %12s %9ld %12.2f %25s  %s\n", FUNCTION_NAMES[row->function], ranks, size, row->calls,
            row->seconds / (double)row->calls * 1e6, both, WHYS_TOLD[row->why]);
}

void report_print(void)
{
    if (!report_is_wanted)
        return;
    /* What follows are not the program's calls. */
    report_is_wanted = false;
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0)
        fprintf(stderr, "unisono: %-21s %5s %12s %9s %12s %12s %12s  %s\n", "function", "ranks", "bytes", "calls", "us per call",
                "by unisono", "by MPI", "carried out by");
    struct row *next = rows;
    for (;;) {
        struct row row = { .function = FUNCTIONS };
        if (rank == 0 && next != NULL)
            row = *next;
        PMPI_Bcast(&row, sizeof(row), MPI_BYTE, 0, MPI_COMM_WORLD);
        if (row.function == FUNCTIONS)
            return;
        struct medians medians = { 0, 0 };
        if (row.why == BY_UNISONO)
            medians = measured(&row);
        if (rank == 0) {
            print(&row, medians);
            next = next->next;
        }
    }
}
