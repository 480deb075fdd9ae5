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
    /* The size of the last one, for a comparison with MPI's. */
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

/* MPI's own call on scratch buffers. */
static void by_mpi(int function, char *from, char *to, int bytes, int ranks, MPI_Comm comm)
{
    int floats = bytes / (int)sizeof(float) + (bytes < (int)sizeof(float)), counts[ranks], starts[ranks];
    for (int rank = 0; rank < ranks; rank++) {
        counts[rank] = function == REDUCE_SCATTER ? floats : bytes;
        starts[rank] = rank * bytes;
    }
    switch (function) {
    case ALLREDUCE:
        PMPI_Allreduce(from, to, floats, MPI_FLOAT, MPI_SUM, comm);
        break;
    case REDUCE:
        PMPI_Reduce(from, to, floats, MPI_FLOAT, MPI_SUM, 0, comm);
        break;
    case BCAST:
        PMPI_Bcast(from, bytes, MPI_BYTE, 0, comm);
        break;
    case REDUCE_SCATTER:
        PMPI_Reduce_scatter(from, to, counts, MPI_FLOAT, MPI_SUM, comm);
        break;
    case REDUCE_SCATTER_BLOCK:
        PMPI_Reduce_scatter_block(from, to, floats, MPI_FLOAT, MPI_SUM, comm);
        break;
    case ALLGATHER:
        PMPI_Allgather(from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, comm);
        break;
    case ALLGATHERV:
        PMPI_Allgatherv(from, bytes, MPI_BYTE, to, counts, starts, MPI_BYTE, comm);
        break;
    case ALLTOALL:
        PMPI_Alltoall(from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, comm);
        break;
    default:
        PMPI_Barrier(comm);
    }
}

static int ascending(const void *a, const void *b)
{
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

/* Seconds of MPI's own call, the median of some, on the first ranks of MPI_COMM_WORLD. All ranks call it. 0 if it would need too
 * much memory. */
static double measured(const struct row *row)
{
    int own;
    PMPI_Comm_rank(MPI_COMM_WORLD, &own);
    MPI_Comm comm;
    PMPI_Comm_split(MPI_COMM_WORLD, own < row->ranks ? 0 : MPI_UNDEFINED, own, &comm);
    if (comm == MPI_COMM_NULL)
        return 0;
    bool has_blocks = row->function != ALLREDUCE && row->function != REDUCE && row->function != BCAST;
    size_t bytes = ((size_t)row->bytes + sizeof(float)) * (has_blocks ? (size_t)row->ranks : 1);
    char *from = malloc(bytes), *to = malloc(bytes);
    int has_memory = from != NULL && to != NULL && row->bytes < 1L << 30;
    PMPI_Allreduce(MPI_IN_PLACE, &has_memory, 1, MPI_INT, MPI_MIN, comm);
    double times[TRIES] = { 0 };
    if (has_memory) {
        memset(from, 0, bytes);
        memset(to, 0, bytes);
        for (int try = -2; try < TRIES; try++) {
            PMPI_Barrier(comm);
            double began = report_now();
            by_mpi(row->function, from, to, (int)row->bytes, row->ranks, comm);
            times[try < 0 ? 0 : try] = report_now() - began;
        }
    }
    free(from);
    free(to);
    PMPI_Comm_free(&comm);
    qsort(times, TRIES, sizeof(*times), ascending);
    return times[TRIES / 2];
}

static void print(const struct row *row, double by_mpi)
{
    char size[32], mpi[32] = "";
    snprintf(size, sizeof(size), row->size_class == 0 ? "0" : "< %ld", 1L << row->size_class);
    if (by_mpi > 0)
        snprintf(mpi, sizeof(mpi), "%.2f", by_mpi * 1e6);
    fprintf(stderr, "unisono: %-21s %5d %12s %9ld %12.2f %12s  %s\n", FUNCTION_NAMES[row->function], row->ranks, size, row->calls,
            row->seconds / (double)row->calls * 1e6, mpi, WHYS_TOLD[row->why]);
}

void report_print(void)
{
    if (!report_is_wanted)
        return;
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0)
        fprintf(stderr, "unisono: %-21s %5s %12s %9s %12s %12s  %s\n", "function", "ranks", "bytes", "calls", "us per call", "MPI's us",
                "carried out by");
    struct row *next = rows;
    for (;;) {
        struct row row = { .function = FUNCTIONS };
        if (rank == 0 && next != NULL)
            row = *next;
        PMPI_Bcast(&row, sizeof(row), MPI_BYTE, 0, MPI_COMM_WORLD);
        if (row.function == FUNCTIONS)
            return;
        double by_mpi = row.why == BY_UNISONO ? measured(&row) : 0;
        if (rank == 0) {
            print(&row, by_mpi);
            next = next->next;
        }
    }
}
