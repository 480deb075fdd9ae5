/* Whether Unisono carries out a call. All ranks must find the same, so it depends only on what MPI requires to be the same on all of
 * them: the function, the operation, the root, and the number of bytes. Ranks may describe equal bytes by different types, one by a
 * type of its own, so a type matters only where values are reduced. */

#include "accelerate.h"

#include <limits.h>

/* The sizes at which Unisono is faster, in bytes of one rank: measured on two ranks (README.md says how). A single copy by the kernel,
 * as these MPIs move larger arrays, is faster than two copies through shared memory. */
static const struct {
    size_t from, to;
} GAINS[FUNCTIONS] = {
#ifdef OPEN_MPI
    [ALLREDUCE] = { 0, SIZE_MAX },
    [REDUCE] = { 1 << 10, 8 << 10 },
    [BCAST] = { 1 << 10, 8 << 10 },
    [REDUCE_SCATTER] = { 1 << 10, SIZE_MAX },
    [REDUCE_SCATTER_BLOCK] = { 1 << 10, SIZE_MAX },
    [ALLGATHER] = { 512, 8 << 10 },
    [ALLGATHERV] = { 512, 8 << 10 },
    [ALLTOALL] = { 1 << 10, 16 << 10 },
#else
    [ALLREDUCE] = { 0, SIZE_MAX },
    [REDUCE] = { 0, SIZE_MAX },
    [BCAST] = { 128, 32 << 10 },
    [REDUCE_SCATTER] = { 0, SIZE_MAX },
    [REDUCE_SCATTER_BLOCK] = { 0, SIZE_MAX },
    [ALLGATHER] = { 64, 16 << 10 },
    [ALLGATHERV] = { 64, 16 << 10 },
    [ALLTOALL] = { 64, 32 << 10 },
#endif
    /* MPI's own moves on what pends, which programs with windows may expect of it. */
    [BARRIER] = { 1, 0 },
};

static bool leave(struct call *call, enum why why)
{
    call->why = why;
    return false;
}

/* Whether it is worth while. A function that the setting names is for Unisono at every size. */
static bool gains(const struct call *call)
{
    bool is_named = settings.named >> call->function & 1;
    return is_named || (call->bytes >= GAINS[call->function].from && call->bytes <= GAINS[call->function].to);
}

/* What a call has to be besides its type: the last question, since the answer may start a world. */
static bool decides(struct call *call)
{
    if (call->comm == MPI_COMM_NULL)
        return leave(call, INVALID);
    if (!gains(call))
        return leave(call, GAINS_LITTLE);
    struct world *world = call->world = world_of(call->comm);
    if (world == NULL)
        return leave(call, INVALID);
    if (world->unisono == NULL)
        return leave(call, world->why);
    if (call->root < 0 || call->root >= world->ranks)
        return leave(call, INVALID);
    call->why = BY_UNISONO;
    return true;
}

static void begin(struct call *call, enum function function, MPI_Comm comm, int root)
{
    call->function = function;
    call->comm = comm;
    call->root = root;
    call->world = NULL;
    call->bytes = 0;
    call->began = report_is_wanted ? report_now() : 0;
}

static bool is_set(const struct call *call)
{
    return settings.functions >> call->function & 1;
}

bool decides_reduction(struct call *call, enum function function, MPI_Comm comm, MPI_Count count, MPI_Datatype handle, MPI_Op op,
                       int root)
{
    begin(call, function, comm, root);
    call->op = reduction_of(op);
    if (!is_set(call) || (call->op != NONE && !(settings.reductions >> call->op & 1)))
        return leave(call, LEFT_BY_SETTING);
    if (call->op == NONE)
        return leave(call, OTHER_OPERATION);
    const struct type *type = type_of(handle);
    if (type == NULL || type->dtype == NONE)
        return leave(call, OTHER_TYPE);
    if (type->is_float && !(settings.reductions & FLOATS))
        return leave(call, LEFT_BY_SETTING);
    if (count <= 0)
        return leave(call, count == 0 ? OF_NO_BYTES : INVALID);
    call->dtype = type->dtype;
    call->element_bytes = (size_t)type->size_bytes;
    call->bytes = (size_t)count * call->element_bytes;
    return decides(call);
}

bool decides_bytes(struct call *call, enum function function, MPI_Comm comm, size_t bytes, int root)
{
    begin(call, function, comm, root);
    call->bytes = bytes;
    call->element_bytes = 1;
    call->dtype = UNISONO_U8;
    if (!is_set(call))
        return leave(call, LEFT_BY_SETTING);
    if (bytes == 0 && function != BARRIER)
        return leave(call, OF_NO_BYTES);
    if (!decides(call))
        return false;
    /* MPI packs and unpacks no more at once. */
    size_t all = function == BCAST ? bytes : bytes * (size_t)call->world->ranks;
    return all <= INT_MAX || leave(call, TOO_LARGE);
}

/* The size of an element of any type, or -1 if it is not valid. */
static MPI_Count size_of(MPI_Datatype handle)
{
    const struct type *type = type_of(handle);
    if (type != NULL)
        return type->size_bytes;
    int bytes;
    if (handle == MPI_DATATYPE_NULL || PMPI_Type_size(handle, &bytes) != MPI_SUCCESS || bytes == MPI_UNDEFINED)
        return -1;
    return bytes;
}

bool decides_move(struct call *call, enum function function, MPI_Comm comm, MPI_Count count, MPI_Datatype type, int root)
{
    MPI_Count size_bytes = size_of(type);
    if (count < 0 || size_bytes < 0)
        return decides_for_mpi(call, function, comm, INVALID);
    return decides_bytes(call, function, comm, (size_t)count * (size_t)size_bytes, root);
}

/* Unisono's blocks are equal, so the shorter ones are filled up: not if that makes much of nothing. */
bool decides_blocks(struct call *call, MPI_Comm comm, const struct block *blocks, MPI_Datatype type)
{
    MPI_Count size_bytes = size_of(type), ranks = world_of(comm)->ranks, most = 0, all = 0;
    for (int rank = 0; rank < ranks; rank++) {
        if (blocks[rank].count < 0 || size_bytes < 0)
            return decides_for_mpi(call, ALLGATHERV, comm, INVALID);
        all += blocks[rank].count * size_bytes;
        if (most < blocks[rank].count * size_bytes)
            most = blocks[rank].count * size_bytes;
    }
    if (most * ranks > 2 * all)
        return decides_for_mpi(call, ALLGATHERV, comm, UNEVEN);
    return decides_bytes(call, ALLGATHERV, comm, (size_t)most, 0);
}

bool decides_for_mpi(struct call *call, enum function function, MPI_Comm comm, enum why why)
{
    begin(call, function, comm, 0);
    struct world *world = call->world = comm == MPI_COMM_NULL ? NULL : world_of(comm);
    return leave(call, world != NULL && world->unisono == NULL ? world->why : why);
}
