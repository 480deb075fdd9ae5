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

/* The class of the error in a buffer, or MPI_SUCCESS. NULL is MPI_BOTTOM too, for a type of the program's that has addresses of its own. */
static int error_in(struct buffer buffer)
{
    if (buffer.count < 0)
        return MPI_ERR_COUNT;
    if (size_of(buffer.type) < 0)
        return MPI_ERR_TYPE;
    bool is_there = buffer.address != MPI_IN_PLACE && (buffer.address != NULL || type_of(buffer.type) == NULL);
    return buffer.count == 0 || is_there ? MPI_SUCCESS : MPI_ERR_BUFFER;
}

/* The same for both buffers of a call that may be in place. */
static int error_in_both(struct buffer from, struct buffer to)
{
    int error = error_in(to);
    return error != MPI_SUCCESS || from.address == MPI_IN_PLACE ? error : error_in(from);
}

/* The same where a rank gives as many bytes as it gets of one rank, itself: of fewer, what lies behind them would be read. */
static int error_in_equal(struct buffer from, struct buffer to)
{
    int error = error_in_both(from, to);
    if (error != MPI_SUCCESS || from.address == MPI_IN_PLACE || from.count * size_of(from.type) == to.count * size_of(to.type))
        return error;
    return MPI_ERR_COUNT;
}

/* The same for a reduction to a root, which alone gets something, and alone may be in place. */
static int error_at_root(struct buffer from, struct buffer to, MPI_Comm comm, int root)
{
    int error = error_in(from);
    if (error == MPI_SUCCESS && error_in(to) == MPI_SUCCESS)
        return MPI_SUCCESS;
    return place_in(comm).rank == root ? error_in_both(from, to) : error;
}

/* Refuses a call that is not valid. That MPI would do it is not certain: some access buffers that are not there. */
static bool refuse(struct call *call, int error)
{
    int is_inter;
    if (call->comm == MPI_COMM_NULL || PMPI_Comm_test_inter(call->comm, &is_inter) != MPI_SUCCESS)
        return leave(call, INVALID);
    /* Between two groups there are other roots, and counts and buffers that do not matter. */
    if (is_inter)
        return leave(call, INTERCOMMUNICATOR);
    call->error = error;
    return leave(call, INVALID);
}

/* What a call has to be besides its type: the last question, since the answer may start a world. A call that is not valid never gets
 * there: the other ranks may make none. */
static bool decides(struct call *call)
{
    if (call->comm == MPI_COMM_NULL)
        return leave(call, INVALID);
    if (!gains(call))
        return leave(call, GAINS_LITTLE);
    if (call->root != 0) {
        int ranks = place_in(call->comm).ranks;
        if (call->root < 0 || call->root >= ranks)
            return refuse(call, MPI_ERR_ROOT);
    }
    struct world *world = call->world = world_of(call->comm);
    if (world == NULL)
        return leave(call, INVALID);
    if (world->unisono == NULL)
        return leave(call, world->why);
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
    call->error = MPI_SUCCESS;
    call->began = report_is_wanted ? report_now() : 0;
}

bool is_accelerated(enum function function)
{
    return settings.functions >> function & 1;
}

bool decides_reduction(struct call *call, enum function function, MPI_Comm comm, const void *from, struct buffer to, MPI_Op op,
                       int root)
{
    begin(call, function, comm, root);
    call->op = reduction_of(op);
    if (!is_accelerated(function) || (call->op != NONE && !(settings.reductions >> call->op & 1)))
        return leave(call, LEFT_BY_SETTING);
    if (call->op == NONE)
        return leave(call, OTHER_OPERATION);
    const struct type *type = type_of(to.type);
    /* MPI decides whether it reduces the bits of a float, or its truth. */
    if (type == NULL || type->dtype == NONE || (type->is_float && call->op >= UNISONO_BIT_AND))
        return leave(call, OTHER_TYPE);
    if (type->is_float && !(settings.reductions & FLOATS))
        return leave(call, LEFT_BY_SETTING);
    if (to.count == 0 || to.count == UNEQUAL)
        return leave(call, to.count == 0 ? OF_NO_BYTES : UNEVEN);
    struct buffer given = { (void *)from, to.count, to.type };
    int error = function == REDUCE ? error_at_root(given, to, comm, root) : error_in_both(given, to);
    if (error != MPI_SUCCESS)
        return refuse(call, error);
    call->dtype = type->dtype;
    call->element_bytes = (size_t)type->size_bytes;
    call->bytes = (size_t)to.count * call->element_bytes;
    return decides(call);
}

/* A call that moves `bytes` from or to each rank. */
static bool decides_bytes(struct call *call, size_t bytes)
{
    call->bytes = bytes;
    call->element_bytes = 1;
    call->dtype = UNISONO_U8;
    if (bytes == 0 && call->function != BARRIER)
        return leave(call, OF_NO_BYTES);
    if (!decides(call))
        return false;
    /* MPI packs and unpacks no more at once. */
    size_t all = call->function == BCAST ? bytes : bytes * (size_t)call->world->ranks;
    return all <= INT_MAX || leave(call, TOO_LARGE);
}

bool decides_barrier(struct call *call, MPI_Comm comm)
{
    begin(call, BARRIER, comm, 0);
    return is_accelerated(BARRIER) ? decides_bytes(call, 0) : leave(call, LEFT_BY_SETTING);
}

bool decides_move(struct call *call, enum function function, MPI_Comm comm, const struct buffer *from, struct buffer to, int root)
{
    begin(call, function, comm, root);
    if (!is_accelerated(function))
        return leave(call, LEFT_BY_SETTING);
    int error = from == NULL ? error_in(to) : error_in_equal(*from, to);
    if (error != MPI_SUCCESS)
        return refuse(call, error);
    return decides_bytes(call, (size_t)to.count * (size_t)size_of(to.type));
}

/* Unisono's blocks are equal, so the shorter ones are filled up: not if that makes much of nothing. */
bool decides_blocks(struct call *call, MPI_Comm comm, struct buffer from, struct buffer to, const struct block *blocks)
{
    begin(call, ALLGATHERV, comm, 0);
    if (!is_accelerated(ALLGATHERV))
        return leave(call, LEFT_BY_SETTING);
    if (blocks == NULL)
        return leave(call, INVALID);
    /* All blocks are in one buffer, and of the rank's own one the start does not matter. */
    struct buffer own = { to.address, blocks[place_in(comm).rank].count, to.type };
    int error = error_in_both(from, to);
    if (error == MPI_SUCCESS)
        error = error_in_equal(from, own);
    if (error != MPI_SUCCESS)
        return refuse(call, error);
    MPI_Count size_bytes = size_of(to.type), most = 0, all = 0;
    for (MPI_Count rank = 0; rank < to.count; rank++) {
        if (blocks[rank].count < 0)
            return refuse(call, MPI_ERR_COUNT);
        all += blocks[rank].count * size_bytes;
        if (most < blocks[rank].count * size_bytes)
            most = blocks[rank].count * size_bytes;
    }
    if (most * to.count > 2 * all)
        return leave(call, UNEVEN);
    return decides_bytes(call, (size_t)most);
}
