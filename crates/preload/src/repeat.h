/* The fast path for calls that are like the last call of their function, which are not examined again. MPI alone takes 0.2 µs for 8 bytes,
 * so the decision should take a few nanoseconds. */

#ifndef REPEAT_H
#define REPEAT_H

#include "accelerate.h"

#pragma GCC visibility push(hidden)

/* The last call of each function on this thread whose class had a choice, with predefined types. A call that differs only in its
 * buffers and root is not examined again. */
struct repeatable {
    struct call call;
    MPI_Datatype type;
    MPI_Count count;
    MPI_Op op;
    unsigned freed;
    int rank, ranks;
    /* The offset of the block that this rank receives from itself. */
    size_t own;
    MPI_Aint extent_bytes;
};

extern _Thread_local struct repeatable last_calls[FUNCTIONS];

/* Returns whether the addresses of the buffers are valid. */
static inline bool are_buffers(const struct repeatable *same, enum function function, struct buffer from, struct buffer to, int root)
{
    bool gets = gets_result(function, same->rank, root);
    if (gets && (to.address == NULL || to.address == MPI_IN_PLACE))
        return false;
    /* Only the root has two buffers. */
    if (function == BCAST || ((function == GATHER || function == SCATTER) && same->rank != root))
        return true;
    if (from.address == MPI_IN_PLACE)
        return gets;
    return from.address != NULL && from.address != (char *)to.address + same->own && from.count == to.count && from.type == to.type;
}

/* Returns whether the last call of a function was on this communicator, and not on a freed one with the same handle. */
static inline bool is_on(const struct repeatable *same, MPI_Comm comm)
{
    return same->call.choice != NULL && same->call.comm == comm &&
           same->freed == atomic_load_explicit(&worlds_freed, memory_order_relaxed);
}

/* Returns whether a call is like the last one of its function. `to` has the count and the type of its class. */
static inline bool is_like(const struct repeatable *same, enum function function, MPI_Comm comm, struct buffer from, struct buffer to,
                           MPI_Op op, int root)
{
    return is_on(same, comm) && same->count == to.count && same->type == to.type && same->op == op && root >= 0 &&
           root < same->ranks && are_buffers(same, function, from, to, root);
}

/* Returns whether MPI carries out all calls of a function that is not one of `functions`, without a report. */
static inline bool is_left_to_mpi(enum function function, unsigned functions)
{
    return !report_is_wanted && !(functions >> function & 1);
}

/* Returns whether MPI carries out a call of the last call's class, which is then counted. */
static inline bool has_chosen_mpi(const struct repeatable *same)
{
    struct choice *choice = same->call.choice;
    bool has = choice->left > 1 && choice->why != BY_UNISONO;
    choice->left -= has;
    return has;
}

/* Returns whether MPI carries out a call, without a report, which needs no further examination. */
static inline bool is_for_mpi(enum function function, MPI_Comm comm, struct buffer from, struct buffer to, MPI_Op op, int root)
{
    const struct repeatable *same = &last_calls[function];
    if (is_left_to_mpi(function, settings.functions))
        return true;
    if (report_is_wanted || !is_like(same, function, comm, from, to, op, root))
        return false;
    return has_chosen_mpi(same);
}

/* Returns whether MPI carries out a call between blocks of all ranks on the root, and one of each rank. */
static inline bool is_part_for_mpi(enum function function, MPI_Comm comm, struct buffer part, struct buffer whole, int root)
{
    return is_for_mpi(function, comm, part, last_calls[function].rank == root ? whole : part, MPI_OP_NULL, root);
}

#pragma GCC visibility pop

#endif
