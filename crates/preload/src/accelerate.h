/* Declarations shared by the files of this library. README.md describes the library. entries.h has the functions that programs call. */

#ifndef ACCELERATE_H
#define ACCELERATE_H

#include <mpi.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unisono.h>

/* The arguments of a macro's argument in parentheses. */
#define UNPACKED(...) __VA_ARGS__

/* Calls and variables within the library need no indirection by the loader. */
#pragma GCC visibility push(hidden)

/* The intercepted functions of MPI. */
enum function {
    ALLREDUCE,
    REDUCE,
    BCAST,
    REDUCE_SCATTER,
    REDUCE_SCATTER_BLOCK,
    ALLGATHER,
    ALLGATHERV,
    ALLTOALL,
    ALLTOALLV,
    GATHER,
    GATHERV,
    SCATTER,
    SCATTERV,
    SCAN,
    EXSCAN,
    BARRIER,
    FUNCTIONS
};

/* The side that carries out a call, and the reason. It is derived from values that are identical on all ranks of a communicator, and so
 * identical too. */
enum why {
    BY_UNISONO,
    LEFT_BY_SETTING,
    OF_NO_BYTES,
    TOO_LARGE,
    UNEVEN,
    OTHER_TYPE,
    OTHER_OPERATION,
    INEXACT_BY_MPI,
    INTERCOMMUNICATOR,
    ONE_RANK,
    OTHER_PROCESSES,
    MAYBE_ON_GPU,
    NOT_STARTED,
    NOT_NAMED,
    INVALID,
    /* Reasons of the choice. Reasons that calls of one class share end here, and their report has one row. */
    FEW_CALLS,
    IN_TRIAL,
    FASTER_BY_MPI,
    NOT_RECORDED,
    NO_MEMORY,
    WHYS
};

/* Returns whether either side can carry out a call, which then belongs to a class of the choice. */
static inline bool is_chosen(enum why why)
{
    return why == BY_UNISONO || why >= FEW_CALLS;
}

/* The sides of a choice. */
enum side { MPI_SIDE, UNISONO_SIDE, SIDES };

/* Unisono's state for one communicator of MPI: an attribute of it. */
struct world {
    /* NULL if MPI carries out its calls, for the reason `why`, which is FEW_CALLS if it has not started yet. */
    unisono_comm *unisono;
    enum why why;
    /* An intercommunicator counts as one rank. */
    int rank, ranks;
    /* The number of nodes, and the number of this rank's node, in the order of their first ranks. */
    int nodes, node;
    /* Whether a rank has another number than in MPI_COMM_WORLD. */
    bool is_renumbered;
    /* The calls before its start, and the choices since then. */
    int first_calls;
    struct choices *choices;
    /* Registered memory of STAGE_BYTES, through which arrays go piece by piece. */
    unisono_memory *memory;
    char *stage;
    /* All worlds of this process. */
    struct world *next;
};

/* The class of a call: calls of one function, reduction and type, and of about the same size. */
struct class {
    int function, op, dtype;
    /* The bit length of the number of bytes; 0 if ranks do not know the sizes of others (`is_exchange`). */
    int size;
};

/* The choice for one class of calls of a communicator. */
struct choice {
    enum why why;
    /* The number of calls until a trial starts; 0 during a trial. */
    uint64_t left;
    /* The calls between the next trial and the one after. */
    uint64_t next;
    /* NULL outside a trial. */
    struct samples *samples;
    struct class class;
};

/* A call of the program. */
struct call {
    enum function function;
    enum why why;
    struct world *world;
    MPI_Comm comm;
    /* Unisono's numbers of the elements' type and the reduction. An operation that only moves elements moves bytes. */
    int dtype, op;
    /* The size of an element, and of the array of one rank. */
    size_t element_bytes, bytes;
    /* The bytes of an element before its padding, for MPI's own function. */
    size_t true_bytes;
    /* The operation and the type for MPI's own function, if that reduces the values; otherwise MPI_OP_NULL. */
    MPI_Op mpi_op;
    MPI_Datatype mpi_type;
    /* The types of the buffers of a call that moves values, or MPI_DATATYPE_NULL. */
    MPI_Datatype moved[2];
    /* The bytes of an exchange that must be copied on this rank, since they are not in order. */
    size_t copied_bytes;
    int root;
    /* The class of the error if this rank finds the call invalid; otherwise MPI_SUCCESS. If Unisono carries out the call, it is reported
     * afterwards. */
    int error;
    /* The choice of its class, if there is one, and whether it belongs to a trial. */
    struct choice *choice;
    bool is_in_trial;
    /* The start time, for a report or a trial. */
    double began;
};

/* The part of a buffer that belongs to one rank: its start and its length. */
struct block {
    MPI_Aint start;
    MPI_Count count;
};

/* A buffer of one block for each rank, in elements of its type. `of_rank` is NULL if the program passed no counts. */
struct blocks {
    void *address;
    MPI_Datatype type;
    struct block *of_rank;
};

/* family.c: the MPI of the program. */

/* Makes functions of MPI visible to this library, if a module of the program has loaded them privately, as Python modules do. Called
 * before MPI's own initialisation. Ends the program if there are none. */
void bind_mpi(void);
/* Reports on rank 0 a library that intercepts MPI too, and comes after this library. Called once MPI is initialised. */
void check_later_tool(void);
/* Returns whether MPI accepts arrays in GPU memory, and the program may have some, since CUDA's driver is loaded. */
bool takes_gpu_arrays(void);

/* types.c: Unisono's types and operations for those of MPI. */

/* An operation or type that Unisono does not handle. */
enum { NONE = -1 };

/* The reductions that Unisono does not have. MPI's own function carries them out, as for types that Unisono does not reduce. */
enum { MAXLOC = UNISONO_LOGICAL_XOR + 1, MINLOC, USER_DEFINED, REDUCTIONS };
/* The type of values that MPI's own function reduces. */
enum { OTHER_VALUES = UNISONO_U64 + 1, DTYPES };

/* Pairs are of a value and an index, for MPI_MAXLOC and MPI_MINLOC. */
/* MPI defines no logical operations of Fortran's integers. */
enum kind { SIGNED, UNSIGNED, FORTRAN, FLOATING, COMPLEX, MOVED, INTEGER_PAIR, FLOATING_PAIR };

struct type {
    MPI_Datatype handle;
    enum kind kind;
    /* A pair may have padding inside or after it. Its extent is then larger than its size, and includes padding after it, which its true
     * extent does not. */
    int size_bytes;
    MPI_Aint extent_bytes, true_bytes;
    /* Unisono's number of the type, or of the parts of a complex number, or NONE. */
    int dtype;
    /* A bit for each reduction, by its number, in which MPI's result is not that of integer arithmetic on some rank. */
    unsigned inexact;
};

/* All ranks call it. */
void types_begin(void);
/* Returns whether MPI's own function may carry out a reduction of a predefined type's values. */
bool is_reduced_by_mpi(const struct type *type, int op);
/* Returns whether Unisono carries out such a reduction. It sums complex numbers part by part. For integers that it does not have, it carries out
 * bitwise operations byte by byte. */
bool is_reduced(const struct type *type, int op);
/* Returns whether a reduction may depend on the order in which values are combined. */
bool may_round(const struct type *type, int op);
/* Returns a predefined type; NULL for any other. */
const struct type *type_of(MPI_Datatype handle);
/* Returns whether elements of a type are contiguous bytes in the order in which MPI sends them. The first call for a type packs an element. */
bool is_contiguous(MPI_Datatype handle);
/* Returns whether a handle, which may be invalid, is that of a committed type. */
bool is_committed(MPI_Datatype handle);
/* Returns the number of a reduction, or NONE. */
int reduction_of(MPI_Op op);

/* integers.c: reductions of integers by MPI. */

/* Returns the reductions in which MPI's result is not that of integer arithmetic, as bits by their numbers. */
unsigned inexact_reductions(const struct type *type);

/* settings.c: the setting UNISONO_ACCELERATE. */

extern const char *const FUNCTION_NAMES[FUNCTIONS];
/* By their numbers; NULL for a mean, which MPI does not have. */
extern const char *const REDUCTION_NAMES[REDUCTIONS], *const DTYPE_NAMES[DTYPES];
/* Returns the number of a name among `all`, or NONE, also for `-`, which stands for no name. */
int number_of(const char *name, const char *const names[], int all);

struct settings {
    /* A bit for each function, and for each named function, which Unisono carries out from the first call. */
    unsigned functions, named;
    /* A bit for each reduction, by its number, and FLOATS. */
    unsigned reductions;
    /* 1 if communicators over several nodes may go through Unisono. */
    unsigned several_nodes;
    /* 1 if no buffer is in GPU memory. */
    unsigned on_host;
    /* 1 if recorded decisions replace trials. */
    unsigned is_fixed;
    /* 1 if rank 0 records decisions. */
    unsigned is_recorded;
};

/* Reductions of floating-point numbers. */
#define FLOATS (1U << 31)

/* Returns the settings that are common to all ranks of MPI_COMM_WORLD. All ranks call it. Ends the job if a setting is invalid. */
struct settings settings_agreed(void);

/* True if a report is printed. */
extern bool report_is_wanted;

/* choice.c: the choice of MPI or Unisono, by the times of the program's calls. */

enum { SIZES = 48 };

int size_of_class(size_t bytes);
/* Returns BY_UNISONO, or the reason why MPI carries out a call that either could. May start a world, so all ranks call it. */
enum why choose(struct call *call);
/* Like `choose`, for a call whose class has a choice. */
static inline enum why choose_again(struct call *call)
{
    if (call->choice->left < 2)
        return choose(call);
    call->choice->left--;
    return call->choice->why;
}
/* Records the end of a call of a trial, and decides after the last one. All ranks call it. */
void trial_call_ended(const struct call *call, double now);
void choices_free(struct choices *choices);

/* clock.c: one clock for ranks on several nodes. */

/* A time of this rank's clock, and the offset of rank 0's clock from it. */
struct reading {
    double now, ahead;
};

/* Compares the clocks of a world. All ranks call it. */
struct reading clock_compared(const struct world *world, MPI_Comm comm);
/* Converts times of this rank's clock, between two readings, to rank 0's clock. */
void clock_translate(double *moments, size_t count, struct reading first, struct reading last);

/* record.c: decisions in a file. */

/* Reads the decisions to replay. Returns a number by which ranks compare them, or 0 if they are invalid, which is reported. */
uint64_t record_read(const char *file);
/* Returns whether Unisono carries out a class according to the decisions that were read. */
bool record_has(const struct class *class, const struct world *world);
/* Opens the file of UNISONO_ACCELERATE_RECORD on rank 0. Returns false and reports it if that fails. */
bool record_begin(void);
/* Returns false on rank 0 if it records no decisions. */
bool record_may_be_wanted(void);
/* Writes the decisions of all ranks, if rank 0 records them. All ranks call it, before MPI ends. */
void record_write(void);

/* worlds.c: the worlds of communicators. */

/* The settings that are common to all ranks of MPI_COMM_WORLD. Before MPI_Init and once MPI_Finalize starts, no function is accelerated. */
extern struct settings settings;

/* Prepares this process, once MPI is initialised. All ranks call it. */
void worlds_begin(void);
/* Returns the error of a call on a communicator that does not exist, for which MPI has called the error handler; otherwise MPI_SUCCESS. It is
 * also MPI_SUCCESS for MPI_COMM_NULL, which MPI's own function reports. */
int error_of_comm(MPI_Comm comm);
/* Returns the world of a communicator, which may not have started. */
struct world *world_of(MPI_Comm comm);
/* The number of freed communicators with a world. Cached lookups compare it, since handles are reused. */
extern atomic_uint worlds_freed;
/* Starts a world that has not started yet. All ranks call it. */
void world_start(struct world *world, MPI_Comm comm);
/* The reason of the first world of this process that did not start; empty if all did. */
extern char start_error[];
/* The rank and the number of ranks of a communicator, without a world, since a rank with an invalid call may be the only one that needs
 * them. An intercommunicator counts as one rank; MPI_COMM_NULL has 0 ranks. */
struct place {
    int rank, ranks;
};
struct place place_in(MPI_Comm comm);

enum { STAGE_BYTES = 1 << 18 };

/* progress.c: progress of MPI while a rank waits for others. */

/* The library's duplicate of MPI_COMM_WORLD, which returns errors. */
extern MPI_Comm own_world;
/* Lets MPI make progress, once. */
void progress(void);
/* All ranks call it. */
void progress_begin(void);
/* Enables progress for calls on this thread. */
void progress_of_this_thread(void);
void progress_end(void);

/* A buffer of one block for each rank, or of one block. */
struct buffer {
    void *address;
    MPI_Count count;
    MPI_Datatype type;
};

#define BUFFER(address, count, type) ((struct buffer){ (void *)(address), count, type })

/* arguments.c: errors in the buffers of a call. The functions return their class, or MPI_SUCCESS. */

/* An error that MPI reports itself: the class, or the communicator whose error handler is called, depends on the MPI. */
enum { REPORTED_BY_MPI = -1 };

/* Returns the size of an element of any type, or -1 if the type is invalid or not committed. */
MPI_Count size_of(MPI_Datatype handle);
int error_in(struct buffer buffer);
/* Both buffers of a call that may be in place. */
int error_in_both(struct buffer from, struct buffer to);
/* The buffer of one block for each of `ranks` ranks. */
int error_in_blocks(const struct blocks *blocks, int ranks);
/* By function; MPI_SUCCESS if MPI does not check this. */
extern const int ALIAS_ERRORS[FUNCTIONS];
/* If a rank's send buffer is the block `own` that it receives from itself. */
int error_of_alias(enum function function, struct buffer from, struct buffer own);
/* If a rank sends itself another number of bytes than it receives. With fewer, the bytes after them would be read. */
int error_of_length(struct buffer from, struct buffer own);
/* Returns whether MPI reports an error of this class from `error_of_length` before it moves values. */
bool is_length_checked(enum function function, int error);

/* decide.c: decisions whether Unisono carries out a call, whose description they fill in. */

/* Returns whether each pair of ranks exchanges a number of values that the other ranks do not know. */
static inline bool is_exchange(enum function function)
{
    return function == ALLTOALLV || function == GATHERV || function == SCATTERV;
}

/* Returns whether a rank gets the result of a reduction. */
static inline bool gets_result(enum function function, int rank, int root)
{
    return function == REDUCE ? rank == root : function != EXSCAN || rank != 0;
}

/* The count of a reduce-scatter whose ranks have different counts. */
#define UNEQUAL INT64_MIN

/* Returns whether Unisono may carry out MPI_<function> at all. */
bool is_accelerated(enum function function);
/* Decides on a reduction of `from` to `to`, whose count and type are those of both. Buffers are passed by their address, since copies
 * of structs on the stack take more time than the rest of a repeated decision. */
bool decides_reduction(struct call *call, enum function function, MPI_Comm comm, const void *from, const struct buffer *to, MPI_Op op,
                       int root);
/* Decides on a call that moves `from`, which is NULL if a rank has only one buffer, to `to`, one block for each rank. */
bool decides_move(struct call *call, enum function function, MPI_Comm comm, const struct buffer *from, const struct buffer *to,
                  int root);
/* Decides on a call between blocks of all ranks on the root, `whole`, and one block of each rank, `part`, which the root may leave in place. */
bool decides_part(struct call *call, enum function function, MPI_Comm comm, const struct buffer *part, const struct buffer *whole,
                  int root);
/* Decides on an all-gather of blocks. */
bool decides_blocks(struct call *call, MPI_Comm comm, struct buffer from, const struct blocks *to);
/* Decides on an exchange. A rank without a buffer has empty blocks. If `has_same_counts`, the program passed one array of counts for both buffers. If
 * a rank sends itself another number of bytes than it expects, both blocks become empty. */
bool decides_exchange(struct call *call, enum function function, MPI_Comm comm, struct blocks *from, struct blocks *to, bool has_same_counts,
                      int root);
bool decides_barrier(struct call *call, MPI_Comm comm);

static inline size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* reduce_local.c: a reduction whose values MPI_Reduce_local combines. Returns a code of unisono.h. */
int carry_local_reduction(const struct call *call, const void *from, void *to);

/* carry.c: Unisono carries out a call. The functions return codes of unisono.h. */

int carry_reduction(const struct call *call, const void *from, void *to);
int carry_broadcast(const struct call *call, void *bytes);
int carry_barrier(const struct call *call);
/* An all-gather, or a gather, of which only the root has `to`. The blocks of `to` are in bytes; NULL if they are equal and contiguous. */
int carry_gather(const struct call *call, const void *from, void *to, const struct block *blocks);
int carry_all_to_all(const struct call *call, const void *from, void *to);
/* Only the root has `from`. `to` is NULL on a root in place. */
int carry_scatter(const struct call *call, const void *from, void *to);
/* Parts of these numbers of bytes, in the order of ranks. The arrays must not overlap. */
int carry_exchange(const struct call *call, const void *from, const size_t *from_bytes, void *to, const size_t *to_bytes);

/* moves.c: calls that move values of any type. The functions return the result of MPI's function. */

int move_broadcast(struct call *call, struct buffer buffer);
int move_all_gather(struct call *call, struct buffer from, struct buffer to);
int move_all_to_all(struct call *call, struct buffer from, struct buffer to);
int move_gather(struct call *call, struct buffer part, struct buffer whole);
int move_scatter(struct call *call, struct buffer whole, struct buffer part);
int move_all_gather_v(struct call *call, struct buffer from, const struct blocks *to);
int move_exchange(struct call *call, const struct blocks *from, const struct blocks *to);
/* Returns the number of bytes that must be copied since the blocks are not contiguous in the order of ranks, or 0. */
size_t bytes_out_of_order(const struct blocks *blocks, int ranks);

/* packed.c: buffers of any type as contiguous bytes. */

struct packed {
    char *bytes;
    /* The memory allocated for them, or NULL. */
    char *own;
    struct buffer buffer;
    MPI_Comm comm;
};

/* Packs a buffer, with its values if `has_values`. Returns an error of MPI, or MPI_SUCCESS. */
int pack(struct packed *packed, struct buffer buffer, MPI_Comm comm, bool has_values);
/* Unpacks the bytes to the buffer, and frees them. */
int unpack(struct packed *packed);
void discard(struct packed *packed);

/* errors.c: errors as errors of MPI. */

/* Allocates memory. The program ends if there is none. */
void *allocated(size_t bytes);
/* A communicator of this rank alone, which returns errors to this library: for questions that MPI answers only in calls. */
extern MPI_Comm quiet_comm;
void quiet_comm_begin(void);
/* Returns whether MPI's own function reports an error of this class in a call's arguments before it accesses a buffer or waits for another rank. */
bool is_refused_by_mpi(const struct call *call, int error);
/* Calls the error handler of a call's communicator. */
void handle_error(const struct call *call, int error, const char *text);
/* Returns the code of MPI's function for an invalid call, after calling the error handler of the communicator. */
int refused(const struct call *call);
/* Returns the code of MPI's function for a code of unisono.h, after calling the error handler of the communicator for an error. */
int result_of(const struct call *call, int code);

/* report.c: the report of carried out calls. */

/* Calls of one class, on the same numbers of ranks and nodes, with the same reason. */
struct row {
    struct class class;
    int ranks, nodes;
    enum why why;
    long calls[SIDES];
    double seconds;
    /* The times of the last trial, 0 if there was none, and its decision. */
    double trial[SIDES];
    enum side chosen;
    struct row *next;
};

void report_begin(void);
double report_now(void);
/* Records a call once it is done. */
void report_call(const struct call *call, double now);
/* Records a call of a function that always goes to MPI, by its name without MPI_. The string must live until the end of the program. */
void report_other(const char *function);
/* Records the decision of a trial of a call's class, and its times; NULL if it could not take place. */
void report_trial(const struct call *call, enum why why, const double *trial);
/* Returns the rows. No other thread calls MPI meanwhile. */
const struct row *report_rows(void);
/* On rank 0. */
void report_print(void);

/* Must be called when a call is done or refused. */
static inline void call_ended(const struct call *call, bool has_failed)
{
    if (!call->is_in_trial && !report_is_wanted)
        return;
    double now = report_now();
    if (report_is_wanted)
        report_call(call, now);
    if (call->is_in_trial)
        /* A side whose calls fail at once is not fast. The time is finite, since it is translated to another clock and compared on all ranks. */
        trial_call_ended(call, has_failed ? 1e30 : now);
}

#pragma GCC visibility pop

#endif
