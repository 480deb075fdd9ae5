/* The choice of MPI or Unisono: the faster side in a trial within the program, for each class of calls of a communicator.
 *
 * A trial consists of calls of the program, in runs by one side. All ranks count the same calls and use the same times, so their
 * decisions are identical. The time of a call is from the arrival of the last rank to the departure of the last rank, which excludes
 * the wait for a late rank. Times are on rank 0's clock, with which nodes compare theirs before and after a trial. */

#include "accelerate.h"

#include <stdlib.h>
#include <string.h>

enum {
    /* A communicator with fewer calls does not justify a world, which takes milliseconds to start. */
    CALLS_BEFORE_START = 32,
    /* MPI carries out the first calls of a class: until it has used all of its memory once, it may take ten times as long. */
    WARM_UP_CALLS = 40,
    /* The first call of a run is not measured, since ranks may still be in the previous run. */
    RUNS = 8,
    RUN_CALLS = 3,
    TRIAL_CALLS = RUNS * RUN_CALLS,
    SAMPLES = RUNS * (RUN_CALLS - 1),
    /* A trial is repeated after about 1000 calls, 10 000 and so on, since the machine may have been busy. */
    FIRST_RETRIAL = 1000,
    RETRIAL_FACTOR = 10,
    CLASSES = REDUCTIONS * DTYPES,
    /* Indices in sorted times. The shortest time may be an outlier. */
    SECOND = 1,
    THIRD = 2,
};

/* The side changes, from MPI at first, only if the other one takes less than this fraction of its time. */
static const double CLEARLY_FASTER = 0.97;

enum { ARRIVAL, DEPARTURE, MOMENTS };

/* The times at which this rank arrived and left; finally those of the last rank. */
struct samples {
    int calls;
    /* Before the first call. */
    struct reading clock;
    double moments[MOMENTS][SAMPLES];
};

/* The choices of a communicator: a row of sizes for each function, reduction and type, allocated at its first call. */
struct choices {
    struct choice *rows[FUNCTIONS][CLASSES];
};

int size_of_class(size_t bytes)
{
    int bits = bytes == 0 ? 0 : 64 - __builtin_clzll(bytes);
    return bits < SIZES ? bits : SIZES - 1;
}

/* Returns the side of a run. Both sides have the same number of runs, also for each root if the root advances with every call. */
static enum side side_of_run(int run)
{
    return __builtin_parity((unsigned)run) ? UNISONO_SIDE : MPI_SIDE;
}

static struct choice *new_row(const struct world *world, const struct call *call)
{
    struct choice *row = allocated(SIZES * sizeof(*row));
    for (int size = 0; size < SIZES; size++) {
        row[size] = (struct choice){ .why = FEW_CALLS, .left = 1 + WARM_UP_CALLS, .next = FIRST_RETRIAL };
        row[size].class = (struct class){ call->function, call->op, call->dtype, size };
        if (settings.is_fixed) {
            row[size].left = UINT64_MAX;
            row[size].why = record_has(&row[size].class, world) ? BY_UNISONO : NOT_RECORDED;
        }
    }
    return row;
}

static struct choice *choice_of(const struct call *call, struct world *world)
{
    if (world->choices == NULL) {
        world->choices = allocated(sizeof(*world->choices));
        memset(world->choices, 0, sizeof(*world->choices));
    }
    int class = call->op == NONE ? 0 : call->op * DTYPES + call->dtype;
    struct choice **row = &world->choices->rows[call->function][class];
    if (*row == NULL)
        *row = new_row(world, call);
    return *row + size_of_class(call->bytes);
}

static enum why choose_in_trial(struct call *call, struct choice *choice)
{
    call->is_in_trial = true;
    call->began = report_now();
    return side_of_run(choice->samples->calls / RUN_CALLS) == UNISONO_SIDE ? BY_UNISONO : IN_TRIAL;
}

/* Returns the bytes of the packed copies of this rank's buffers. */
static size_t bytes_to_pack(const struct call *call)
{
    if (is_exchange(call->function))
        return call->copied_bytes;
    bool has_one_block = call->function == BCAST || ((call->function == GATHER || call->function == SCATTER) && call->world->rank != call->root);
    size_t blocks = has_one_block ? 1 : (size_t)call->world->ranks, copies = 0;
    for (int i = 0; i < 2; i++)
        copies += call->moved[i] != MPI_DATATYPE_NULL && !is_contiguous(call->moved[i]);
    return copies * blocks * call->bytes;
}

/* Returns whether every rank can allocate these copies, whose lack would end a call by Unisono. */
static bool can_pack(const struct call *call)
{
    size_t bytes = bytes_to_pack(call);
    /* Volatile, since compilers assume that an unused allocation succeeds. */
    void *volatile memory = malloc(bytes);
    int can = bytes == 0 || memory != NULL;
    free(memory);
    PMPI_Allreduce(MPI_IN_PLACE, &can, 1, MPI_INT, MPI_MIN, call->comm);
    return can;
}

/* Sets when the next trial starts. */
static void postpone(struct choice *choice)
{
    choice->left = choice->next;
    choice->next *= RETRIAL_FACTOR;
}

/* Begins a trial, unless a rank lacks memory for it. */
static void begin_trial(const struct call *call, struct choice *choice)
{
    if (call->op == NONE && !can_pack(call)) {
        choice->why = NO_MEMORY;
        report_trial(call, NO_MEMORY, NULL);
        postpone(choice);
        return;
    }
    choice->samples = allocated(sizeof(*choice->samples));
    choice->samples->calls = 0;
    choice->samples->clock = clock_compared(call->world, call->comm);
    choice->left = 0;
}

static enum why started(struct world *world, MPI_Comm comm)
{
    if (world->unisono == NULL)
        world_start(world, comm);
    return world->why;
}

enum why choose(struct call *call)
{
    struct world *world = call->world;
    if (settings.named >> call->function & 1)
        return started(world, call->comm);
    if (!settings.is_fixed && world->unisono == NULL) {
        if (++world->first_calls < CALLS_BEFORE_START)
            return FEW_CALLS;
        if (started(world, call->comm) != BY_UNISONO)
            return world->why;
    }
    struct choice *choice = call->choice = choice_of(call, world);
    if (choice->left == 1)
        begin_trial(call, choice);
    if (choice->left == 0)
        return choose_in_trial(call, choice);
    choice->left--;
    return choice->why == BY_UNISONO ? started(world, call->comm) : choice->why;
}

static int ascending(const void *a, const void *b)
{
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

/* Sorts the times of a side from the arrival of the last rank at a call to the departure of the last from the `calls`th. */
static void sort_times(const struct samples *samples, enum side side, int calls, double times[])
{
    size_t count = 0;
    for (int i = 0; i < SAMPLES; i += calls)
        if (side_of_run(i / (RUN_CALLS - 1)) == side)
            times[count++] = samples->moments[DEPARTURE][i + calls - 1] - samples->moments[ARRIVAL][i];
    qsort(times, count, sizeof(*times), ascending);
}

/* Returns whether times are clearly shorter: the median is below nearly all of the other side's times. Disturbances by other programs rarely
 * cause that. */
static bool are_clearly_shorter(const double times[SAMPLES / SIDES], const double others[SAMPLES / SIDES])
{
    return times[SAMPLES / SIDES / 2] < CLEARLY_FASTER * others[SECOND];
}

/* Returns whether Unisono's runs take longer than MPI's, although its calls may not: in MPI's calls, a rank may leave before others arrive, and
 * start the next call. */
static bool are_runs_longer(const struct samples *samples)
{
    double runs[SIDES][RUNS / SIDES];
    for (enum side side = 0; side < SIDES; side++)
        sort_times(samples, side, RUN_CALLS - 1, runs[side]);
    return runs[UNISONO_SIDE][0] > runs[MPI_SIDE][THIRD];
}

/* Decides by the times of all ranks, which are exchanged here. */
static void decide(const struct call *call, struct choice *choice)
{
    struct samples *samples = choice->samples;
    double times[SIDES][SAMPLES / SIDES];
    struct reading clock = clock_compared(call->world, call->comm);
    for (int moment = 0; moment < MOMENTS; moment++)
        clock_translate(samples->moments[moment], SAMPLES, samples->clock, clock);
    PMPI_Allreduce(MPI_IN_PLACE, samples->moments, MOMENTS * SAMPLES, MPI_DOUBLE, MPI_MAX, call->comm);
    for (enum side side = 0; side < SIDES; side++)
        sort_times(samples, side, 1, times[side]);
    bool is_longer = are_runs_longer(samples);
    free(samples);
    choice->samples = NULL;
    if (is_longer || are_clearly_shorter(times[MPI_SIDE], times[UNISONO_SIDE]))
        choice->why = FASTER_BY_MPI;
    else if (are_clearly_shorter(times[UNISONO_SIDE], times[MPI_SIDE]))
        choice->why = BY_UNISONO;
    else if (choice->why != BY_UNISONO)
        choice->why = FASTER_BY_MPI;
    postpone(choice);
    report_trial(call, choice->why, (const double[SIDES]){ times[MPI_SIDE][SECOND], times[UNISONO_SIDE][SECOND] });
}

void trial_call_ended(const struct call *call, double now)
{
    struct choice *choice = call->choice;
    struct samples *samples = choice->samples;
    int run = samples->calls / RUN_CALLS, in_run = samples->calls % RUN_CALLS;
    if (in_run > 0) {
        int sample = run * (RUN_CALLS - 1) + in_run - 1;
        samples->moments[ARRIVAL][sample] = call->began;
        samples->moments[DEPARTURE][sample] = now;
    }
    if (++samples->calls == TRIAL_CALLS)
        decide(call, choice);
}

void choices_free(struct choices *choices)
{
    if (choices == NULL)
        return;
    for (int function = 0; function < FUNCTIONS; function++)
        for (int class = 0; class < CLASSES; class++) {
            struct choice *row = choices->rows[function][class];
            for (int size = 0; row != NULL && size < SIZES; size++)
                free(row[size].samples);
            free(row);
        }
    free(choices);
}
