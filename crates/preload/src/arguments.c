/* Errors in the buffers of a call. */

#include "accelerate.h"

#include <pthread.h>

/* MPI_Type_size has no size for a type of 2 GiB or more, and MPI 3, over which a library compiled with MPI 4 may run, has no MPI_Type_size_c. */
MPI_Count size_of(MPI_Datatype handle)
{
    const struct type *type = type_of(handle);
    if (type != NULL)
        return type->size_bytes;
    MPI_Count bytes;
    return is_committed(handle) && PMPI_Type_size_x(handle, &bytes) == MPI_SUCCESS && bytes != MPI_UNDEFINED ? bytes : -1;
}

/* NULL is also MPI_BOTTOM, for a derived type with absolute addresses. */
int error_in(struct buffer buffer)
{
    if (buffer.count < 0)
        return MPI_ERR_COUNT;
    if (size_of(buffer.type) < 0)
        return MPI_ERR_TYPE;
    if (buffer.address == MPI_IN_PLACE)
        return REPORTED_BY_MPI;
    bool is_there = buffer.address != NULL || type_of(buffer.type) == NULL;
    return buffer.count == 0 || is_there ? MPI_SUCCESS : MPI_ERR_BUFFER;
}

int error_in_both(struct buffer from, struct buffer to)
{
    int error = error_in(to);
    return error != MPI_SUCCESS || from.address == MPI_IN_PLACE ? error : error_in(from);
}

int error_in_blocks(const struct blocks *blocks, int ranks)
{
    MPI_Count all = 0;
    bool is_missing = false;
    for (int rank = 0; rank < ranks; rank++) {
        const struct block *block = &blocks->of_rank[rank];
        if (block->count < 0)
            return MPI_ERR_COUNT;
        /* From MPI_BOTTOM, which is NULL too, displacements are addresses. */
        is_missing = is_missing || (block->count > 0 && block->start == 0);
        all += block->count;
    }
    return error_in((struct buffer){ blocks->address, blocks->address != NULL || is_missing ? all : 0, blocks->type });
}

/* The errors of MPI if a rank's send buffer is the memory of its own received block. MPICH checks this in every function, and Open MPI
 * at the root of a reduction and in an all-reduce of several elements, unless a setting disables it. If MPI does not report it, programs
 * work, as they do here. */
const int ALIAS_ERRORS[FUNCTIONS] = {
#ifdef OPEN_MPI
    [REDUCE] = MPI_ERR_ARG,
    [ALLREDUCE] = REPORTED_BY_MPI,
#else
    [GATHER] = MPI_ERR_BUFFER,
    [GATHERV] = MPI_ERR_BUFFER,
    [SCATTER] = MPI_ERR_BUFFER,
    [SCATTERV] = MPI_ERR_BUFFER,
    [SCAN] = MPI_ERR_BUFFER,
    [EXSCAN] = MPI_ERR_BUFFER,
    [ALLREDUCE] = MPI_ERR_BUFFER,
    [REDUCE] = MPI_ERR_BUFFER,
    [REDUCE_SCATTER] = MPI_ERR_BUFFER,
    [REDUCE_SCATTER_BLOCK] = MPI_ERR_BUFFER,
    [ALLGATHER] = MPI_ERR_BUFFER,
    [ALLGATHERV] = MPI_ERR_BUFFER,
    [ALLTOALL] = MPI_ERR_BUFFER,
    [ALLTOALLV] = MPI_ERR_BUFFER,
#endif
};

static bool arguments_are_checked;

/* Only once a call of the program has such buffers, since Intel MPI ends the program in spite of MPI_ERRORS_RETURN. */
static void try_alias(void)
{
    int value = 0;
    arguments_are_checked = PMPI_Reduce(&value, &value, 1, MPI_INT, MPI_SUM, 0, quiet_comm) != MPI_SUCCESS;
}

/* Returns whether MPI checks arguments in this run. */
static bool are_arguments_checked(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, try_alias);
    return arguments_are_checked;
}

int error_of_alias(enum function function, struct buffer from, struct buffer own)
{
    bool is_same = from.address == own.address && from.count == own.count && from.type == own.type;
    bool is_error = is_same && from.address != NULL && from.count != 0 && ALIAS_ERRORS[function] != MPI_SUCCESS;
#ifdef OPEN_MPI
    is_error = is_error && (function != ALLREDUCE || from.count > 1);
#endif
    return is_error && are_arguments_checked() ? ALIAS_ERRORS[function] : MPI_SUCCESS;
}

int error_of_length(struct buffer from, struct buffer own)
{
    bool is_equal = from.address == MPI_IN_PLACE || from.count * size_of(from.type) == own.count * size_of(own.type);
    return is_equal ? MPI_SUCCESS : MPI_ERR_COUNT;
}

bool is_length_checked(enum function function, int error)
{
#ifdef OPEN_MPI
    return (function == ALLTOALL || function == ALLTOALLV) && error != MPI_SUCCESS && are_arguments_checked();
#else
    (void)function, (void)error;
    return false;
#endif
}
