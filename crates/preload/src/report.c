/* The report, on rank 0: the side that carried out calls, the reason, their times, and the measurements of trials. */

#include "accelerate.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

bool report_is_wanted;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct row *rows;

/* The calls of functions that always go to MPI, in the order of their first calls. */
struct other {
    const char *function;
    long calls;
};
/* More than in others.h. The last ones are empty. */
static struct other others[64];

static const char *const REASONS[WHYS] = {
    [BY_UNISONO] = "unisono",
    [LEFT_BY_SETTING] = "MPI: UNISONO_ACCELERATE leaves it to MPI",
    [OF_NO_BYTES] = "MPI: there are no elements",
    [TOO_LARGE] = "MPI: it is larger than 2 GiB",
    [UNEVEN] = "MPI: the ranks' counts are too different",
    [OTHER_TYPE] = "MPI: the type is not one that Unisono reduces",
    [OTHER_OPERATION] = "MPI: the operation is not one of Unisono's",
    [INEXACT_BY_MPI] = "MPI: its results are not those of integer arithmetic",
    [INTERCOMMUNICATOR] = "MPI: an intercommunicator",
    [ONE_RANK] = "MPI: one rank",
    [OTHER_PROCESSES] = "MPI: ranks of another MPI_COMM_WORLD",
    [MAYBE_ON_GPU] = "MPI: arrays may be in GPU memory",
    [NOT_STARTED] = "MPI: Unisono did not start",
    [NOT_NAMED] = "MPI: UNISONO_ACCELERATE does not name it",
    [INVALID] = "MPI: not a valid call",
    [FEW_CALLS] = "MPI: too few calls for a trial",
    [IN_TRIAL] = "both: the trial has not ended",
    [FASTER_BY_MPI] = "MPI: Unisono was not faster in the trial",
    [NOT_RECORDED] = "MPI: no recorded decision names Unisono",
    [NO_MEMORY] = "MPI: a rank has no memory to pack values",
};

void report_begin(void)
{
    const char *text = getenv("UNISONO_ACCELERATE_REPORT");
    report_is_wanted = text != NULL && strcmp(text, "1") == 0;
}

double report_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Calls that either side could carry out have one row, with the reason of the last call. */
static int fate_of(const struct row *row)
{
    return is_chosen(row->why) ? BY_UNISONO : row->why;
}

static int compare(const struct row *a, const struct row *b)
{
    const int differences[] = {
        a->class.function - b->class.function, a->class.op - b->class.op,     a->class.dtype - b->class.dtype,
        a->ranks - b->ranks,                   a->nodes - b->nodes,           a->class.size - b->class.size,
        fate_of(a) - fate_of(b),
    };
    for (size_t i = 0; i < sizeof(differences) / sizeof(*differences); i++)
        if (differences[i] != 0)
            return differences[i];
    return 0;
}

/* Returns the row of a call, which is created at its first call. The lock is held. */
static struct row *row_of(const struct call *call, enum why why)
{
    struct row key = { .why = why };
    if (call->world != NULL) {
        key.ranks = call->world->ranks;
        key.nodes = call->world->nodes;
    }
    key.class = (struct class){ call->function, call->op, call->dtype, size_of_class(call->bytes) };
    struct row **place = &rows;
    while (*place != NULL && compare(*place, &key) < 0)
        place = &(*place)->next;
    if (*place == NULL || compare(*place, &key) != 0) {
        struct row *row = allocated(sizeof(*row));
        *row = key;
        row->next = *place;
        *place = row;
    }
    return *place;
}

void report_call(const struct call *call, double now)
{
    pthread_mutex_lock(&lock);
    struct row *row = row_of(call, call->why);
    /* A trial's decision is kept while another communicator's trial runs. */
    if (row->trial[MPI_SIDE] == 0)
        row->why = call->is_in_trial ? IN_TRIAL : call->why;
    row->calls[call->why == BY_UNISONO ? UNISONO_SIDE : MPI_SIDE]++;
    row->seconds += now - call->began;
    pthread_mutex_unlock(&lock);
}

void report_other(const char *function)
{
    struct other *other = others;
    pthread_mutex_lock(&lock);
    while (other->function != NULL && strcmp(other->function, function) != 0)
        other++;
    other->function = function;
    other->calls++;
    pthread_mutex_unlock(&lock);
}

void report_trial(const struct call *call, enum why why, const double *trial)
{
    pthread_mutex_lock(&lock);
    struct row *row = row_of(call, why);
    row->why = why;
    row->chosen = why == BY_UNISONO ? UNISONO_SIDE : MPI_SIDE;
    if (trial != NULL)
        memcpy(row->trial, trial, sizeof(row->trial));
    pthread_mutex_unlock(&lock);
}

const struct row *report_rows(void)
{
    return rows;
}

static void print_other(const struct other *other)
{
    char name[32];
    size_t length = strlen(other->function);
    for (size_t i = 0; i <= length; i++)
        name[i] = (char)tolower(other->function[i]);
    fprintf(stderr, "unisono: %-65s %9d %9ld %12s %23s  MPI: not a function of Unisono's\n", name, 0, other->calls, "", "");
}

static void print(const struct row *row)
{
    char size[32], ranks[16] = "", nodes[16] = "", class[32] = "", trial[64] = "";
    const char *error = row->why == NOT_STARTED ? start_error : "";
    const char *of_none = is_exchange(row->class.function) ? "any" : "0";
    snprintf(size, sizeof(size), row->class.size == 0 ? of_none : "< %ld", 1L << row->class.size);
    if (row->ranks > 0)
        snprintf(ranks, sizeof(ranks), "%d", row->ranks);
    if (row->nodes > 0)
        snprintf(nodes, sizeof(nodes), "%d", row->nodes);
    if (row->class.op != NONE)
        snprintf(class, sizeof(class), "%s %s", REDUCTION_NAMES[row->class.op],
                 row->class.dtype == NONE ? "" : DTYPE_NAMES[row->class.dtype]);
    if (row->trial[MPI_SIDE] > 0)
        snprintf(trial, sizeof(trial), "%.2f %11.2f", row->trial[UNISONO_SIDE] * 1e6, row->trial[MPI_SIDE] * 1e6);
    long calls = row->calls[UNISONO_SIDE] + row->calls[MPI_SIDE];
    fprintf(stderr, "unisono: %-21s %-18s %5s %5s %12s %9ld %9ld %12.2f %23s  %s%s%s\n", FUNCTION_NAMES[row->class.function], class,
            ranks, nodes, size, row->calls[UNISONO_SIDE], row->calls[MPI_SIDE], row->seconds / (double)calls * 1e6, trial,
            REASONS[row->why], *error == '\0' ? "" : ": ", error);
}

void report_print(void)
{
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!report_is_wanted || rank != 0)
        return;
    fprintf(stderr, "unisono: %-21s %-18s %5s %5s %12s %9s %9s %12s %11s %11s  %s\n", "function", "", "ranks", "nodes", "bytes",
            "unisono", "MPI", "us per call", "unisono us", "MPI us", "chosen");
    for (const struct row *row = rows; row != NULL; row = row->next)
        print(row);
    for (const struct other *other = others; other->function != NULL; other++)
        print_other(other);
}
