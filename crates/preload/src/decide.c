/* The decision whether Unisono carries out a call. All ranks must make the same decision, so it depends only on values that MPI requires to
 * be identical on all of them: the function, the operation, the root, and the number of bytes. Ranks may describe equal bytes by different
 * types, so the type matters only if values are reduced. */

#include "repeat.h"

#include <limits.h>
#include <pthread.h>

static bool leave(struct call *call, enum why why)
{
    call->why = why;
    return false;
}

/* Returns the size of an element of any type, or -1 if the type is invalid or not committed. MPI_Type_size has no size for a type of 2 GiB or
 * more, and MPI 3, over which a library compiled with MPI 4 may run, has no MPI_Type_size_c. */
static MPI_Count size_of(MPI_Datatype handle)
{
    const struct type *type = type_of(handle);
    if (type != NULL)
        return type->size_bytes;
    MPI_Count bytes;
    return is_committed(handle) && PMPI_Type_size_x(handle, &bytes) == MPI_SUCCESS && bytes != MPI_UNDEFINED ? bytes : -1;
}

/* An error that MPI reports itself: the class, or the communicator whose error handler is called, depends on the MPI. */
enum { BY_MPI = -1 };

/* Returns the class of the error in a buffer, or MPI_SUCCESS. NULL is also MPI_BOTTOM, for a derived type with absolute addresses. */
static int error_in(struct buffer buffer)
{
    if (buffer.count < 0)
        return MPI_ERR_COUNT;
    if (size_of(buffer.type) < 0)
        return MPI_ERR_TYPE;
    if (buffer.address == MPI_IN_PLACE)
        return BY_MPI;
    bool is_there = buffer.address != NULL || type_of(buffer.type) == NULL;
    return buffer.count == 0 || is_there ? MPI_SUCCESS : MPI_ERR_BUFFER;
}

/* Returns the class of the error in both buffers of a call that may be in place. */
static int error_in_both(struct buffer from, struct buffer to)
{
    int error = error_in(to);
    return error != MPI_SUCCESS || from.address == MPI_IN_PLACE ? error : error_in(from);
}

/* The errors of MPI if a rank's send buffer is the memory of its own received block. MPICH checks this in every function, and Open MPI
 * at the root of a reduction and in an all-reduce of several elements, unless a setting disables it. If MPI does not report it, programs
 * work, as they do here. */
static const int ALIAS_ERRORS[FUNCTIONS] = {
#ifdef OPEN_MPI
    [REDUCE] = MPI_ERR_ARG,
    [ALLREDUCE] = BY_MPI,
#else
    [GATHER] = MPI_ERR_BUFFER,
    [SCATTER] = MPI_ERR_BUFFER,
    [SCAN] = MPI_ERR_BUFFER,
    [EXSCAN] = MPI_ERR_BUFFER,
    [ALLREDUCE] = MPI_ERR_BUFFER,
    [REDUCE] = MPI_ERR_BUFFER,
    [REDUCE_SCATTER] = MPI_ERR_BUFFER,
    [REDUCE_SCATTER_BLOCK] = MPI_ERR_BUFFER,
    [ALLGATHER] = MPI_ERR_BUFFER,
    [ALLGATHERV] = MPI_ERR_BUFFER,
    [ALLTOALL] = MPI_ERR_BUFFER,
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

/* Returns the class of the error if a rank's send buffer is the block `own` that it receives from itself, or MPI_SUCCESS. */
static int error_of_alias(enum function function, struct buffer from, struct buffer own)
{
    bool is_same = from.address == own.address && from.count == own.count && from.type == own.type;
    bool is_error = is_same && from.address != NULL && from.count != 0 && ALIAS_ERRORS[function] != MPI_SUCCESS;
#ifdef OPEN_MPI
    is_error = is_error && (function != ALLREDUCE || from.count > 1);
#endif
    return is_error && are_arguments_checked() ? ALIAS_ERRORS[function] : MPI_SUCCESS;
}

/* Returns the class of the error if a rank sends itself another number of bytes than it receives. With fewer, the bytes after them
 * would be read. */
static int error_of_length(struct buffer from, struct buffer own)
{
    bool is_equal = from.address == MPI_IN_PLACE || from.count * size_of(from.type) == own.count * size_of(own.type);
    return is_equal ? MPI_SUCCESS : MPI_ERR_COUNT;
}

/* Returns the class of the error in the buffers of a reduction. In a reduction to a root, only the root receives, and only the root may
 * be in place. In an exclusive scan, rank 0 receives nothing. */
static int error_in_reduction(enum function function, struct buffer from, struct buffer to, MPI_Comm comm, int root)
{
    int error = error_in(from);
    bool is_plain = error == MPI_SUCCESS && error_in(to) == MPI_SUCCESS && from.address != to.address;
    if (is_plain)
        return error;
    bool gets = gets_result(function, place_in(comm).rank, root);
    if (function == REDUCE && !gets)
        return error;
    if (gets || from.address == MPI_IN_PLACE)
        error = error_in_both(from, to);
    return error == MPI_SUCCESS ? error_of_alias(function, from, to) : error;
}

/* Checks the arguments of a call, since some MPIs access missing buffers. An error that MPI reports has a message with MPI's function. */
static bool refuse(struct call *call, int error)
{
    int is_inter;
    if (call->comm == MPI_COMM_NULL)
        return leave(call, INVALID);
    PMPI_Comm_test_inter(call->comm, &is_inter);
    /* An intercommunicator has other roots, and ignored counts and buffers. */
    if (is_inter)
        return leave(call, INTERCOMMUNICATOR);
    call->error = error == BY_MPI || is_refused_by_mpi(call, error) ? MPI_SUCCESS : error;
    return leave(call, INVALID);
}

/* Returns whether elements are so large, or ranks so many, that the registered memory cannot hold one element of each rank. */
static bool exceeds_stage(const struct call *call, int ranks)
{
    return call->element_bytes > STAGE_BYTES / (size_t)ranks;
}

/* Returns whether a call has more bytes than MPI can pack and unpack at once. */
static bool is_too_large(const struct call *call, int ranks)
{
    return call->op == NONE && call->bytes * (size_t)(call->function == BCAST ? 1 : ranks) > INT_MAX;
}

/* Checks the rest of a call, and chooses. It is the last check, since the choice may start a world. An invalid call never gets here,
 * since the other ranks may make no call. With `late`, an error that MPI detects only while it moves the values, this rank takes part
 * in the call, for which the other ranks wait, before it reports the error. */
static bool decides(struct call *call, int late)
{
    if (call->comm == MPI_COMM_NULL)
        return leave(call, INVALID);
    /* MPI's barrier makes progress on pending operations, which programs with windows may rely on. */
    if (call->function == BARRIER && !(settings.named >> BARRIER & 1))
        return leave(call, NOT_NAMED);
    if (call->root != 0) {
        int ranks = place_in(call->comm).ranks;
        if (call->root < 0 || call->root >= ranks)
            return refuse(call, MPI_ERR_ROOT);
    }
    struct world *world = call->world = world_of(call->comm);
    if (world->unisono == NULL && world->why != FEW_CALLS)
        return leave(call, world->why);
    if (is_too_large(call, world->ranks))
        return leave(call, TOO_LARGE);
    if (exceeds_stage(call, world->ranks))
        return leave(call, OTHER_TYPE);
    call->why = choose(call);
    if (call->why == BY_UNISONO)
        call->error = late;
    return call->why == BY_UNISONO;
}

static void begin(struct call *call, enum function function, MPI_Comm comm, int root)
{
    call->function = function;
    call->comm = comm;
    call->root = root;
    call->world = NULL;
    call->bytes = 0;
    call->op = call->dtype = NONE;
    call->mpi_op = MPI_OP_NULL;
    call->moved[0] = call->moved[1] = MPI_DATATYPE_NULL;
    call->error = MPI_SUCCESS;
    call->choice = NULL;
    call->is_in_trial = false;
    call->began = report_is_wanted ? report_now() : 0;
}

_Thread_local struct repeatable last_calls[FUNCTIONS];

/* Decides on a call that is like the last one of its function, which Unisono carries out or which is measured. Returns false if it is
 * different. `from` is also the buffer of a call with only one. */
static bool is_repeated(struct call *call, enum function function, MPI_Comm comm, const struct buffer *from, const struct buffer *to,
                        MPI_Op op, int root)
{
    const struct repeatable *same = &last_calls[function];
    if (!is_like(same, function, comm, *from, *to, op, root))
        return false;
    *call = same->call;
    call->root = root;
    call->began = report_is_wanted ? report_now() : 0;
    call->why = choose_again(call);
    return true;
}

/* Returns whether a rank exchanges one block with the block of its number in the other buffer. */
static bool is_own_by_rank(enum function function)
{
    return function == ALLGATHER || function == GATHER || function == SCATTER;
}

/* Records a decision of `choose`. */
static void note(const struct call *call, const struct buffer *to, MPI_Op op)
{
    const struct type *type = type_of(to->type);
    if (call->choice == NULL || !is_chosen(call->why) || type == NULL || call->error != MPI_SUCCESS)
        return;
    const struct world *world = call->world;
    struct repeatable *same = &last_calls[call->function];
    *same = (struct repeatable){ *call, to->type, to->count, op, atomic_load(&worlds_freed), world->rank, world->ranks, 0, type->extent_bytes };
    same->call.is_in_trial = false;
    if (is_own_by_rank(call->function))
        same->own = (size_t)(world->rank * to->count * type->extent_bytes);
}

bool is_accelerated(enum function function)
{
    return settings.functions >> function & 1;
}

/* Fills in the elements of a reduction. */
static void describe(struct call *call, const struct buffer *to, MPI_Op op, bool is_by_mpi)
{
    const struct type *type = type_of(to->type);
    size_t size_bytes = (size_t)(type == NULL ? size_of(to->type) : is_by_mpi ? type->extent_bytes : type->size_bytes);
    call->bytes = (size_t)to->count * size_bytes;
    if (is_by_mpi) {
        call->dtype = OTHER_VALUES;
        call->element_bytes = size_bytes;
        call->true_bytes = type == NULL ? size_bytes : (size_t)type->true_bytes;
        call->mpi_op = op;
        call->mpi_type = to->type;
        return;
    }
    call->dtype = type->dtype == NONE ? UNISONO_U8 : type->dtype;
    call->element_bytes = type->dtype == NONE ? 1 : size_bytes / (type->kind == COMPLEX ? 2 : 1);
}

/* Returns whether MPI's own function may reduce the values of a type that Unisono does not. */
static bool is_for_function(const struct call *call, MPI_Datatype handle, const struct type *type)
{
    if (type != NULL)
        return is_reduced_by_mpi(type, call->op);
    MPI_Count bytes = size_of(handle);
    return call->op == USER_DEFINED && bytes > 0 && bytes <= STAGE_BYTES / 2 && is_contiguous(handle);
}

bool decides_reduction(struct call *call, enum function function, MPI_Comm comm, const void *from, const struct buffer *to, MPI_Op op,
                       int root)
{
    struct buffer given = { (void *)from, to->count, to->type };
    if (is_repeated(call, function, comm, &given, to, op, root))
        return call->why == BY_UNISONO;
    begin(call, function, comm, root);
    call->op = reduction_of(op);
    if (!is_accelerated(function) || (call->op != NONE && !(settings.reductions >> call->op & 1)))
        return leave(call, LEFT_BY_SETTING);
    if (call->op == NONE)
        return leave(call, OTHER_OPERATION);
    const struct type *type = type_of(to->type);
    bool is_by_mpi = type == NULL || !is_reduced(type, call->op);
    if (is_by_mpi && !is_for_function(call, to->type, type))
        return leave(call, OTHER_TYPE);
    if (type != NULL && type->inexact >> call->op & 1)
        return leave(call, INEXACT_BY_MPI);
    if (may_round(type, call->op) && !(settings.reductions & FLOATS))
        return leave(call, LEFT_BY_SETTING);
    if (to->count == 0 || to->count == UNEQUAL)
        return leave(call, to->count == 0 ? OF_NO_BYTES : UNEVEN);
    int error = error_in_reduction(function, given, *to, comm, root);
    if (error != MPI_SUCCESS)
        return refuse(call, error);
    describe(call, to, op, is_by_mpi);
    bool is_for_unisono = decides(call, MPI_SUCCESS);
    note(call, to, op);
    return is_for_unisono;
}

/* Decides on a call that moves `bytes` from or to each rank. */
static bool decides_bytes(struct call *call, size_t bytes, int late)
{
    call->bytes = bytes;
    call->element_bytes = 1;
    call->dtype = UNISONO_U8;
    if (bytes == 0 && call->function != BARRIER)
        return leave(call, OF_NO_BYTES);
    return decides(call, late);
}

bool decides_barrier(struct call *call, MPI_Comm comm)
{
    begin(call, BARRIER, comm, 0);
    return is_accelerated(BARRIER) ? decides_bytes(call, 0, MPI_SUCCESS) : leave(call, LEFT_BY_SETTING);
}

/* Returns the class of the error in the buffers of a call that moves values. `from` is NULL if this rank has only one buffer. `late` is set
 * to the class of an error that MPI detects only while it moves them. */
static int error_in_move(const struct call *call, const struct buffer *from, const struct buffer *to, int *late)
{
    int error = from == NULL ? error_in(*to) : error_in_both(*from, *to);
    if (error != MPI_SUCCESS || from == NULL)
        return error;
    struct buffer own = *to;
    /* Only if needed, since the rank requires an MPI call. */
    if (is_own_by_rank(call->function) && ALIAS_ERRORS[call->function] != MPI_SUCCESS)
        own.address = (char *)to->address + (size_t)place_in(call->comm).rank * (size_t)to->count * (size_t)size_of(to->type);
    *late = error_of_length(*from, own);
#ifdef OPEN_MPI
    /* Open MPI compares these lengths before it moves values. */
    if (call->function == ALLTOALL && *late != MPI_SUCCESS && are_arguments_checked())
        return MPI_ERR_TRUNCATE;
#endif
    return error_of_alias(call->function, *from, own);
}

static void set_moved(struct call *call, const struct buffer *from, const struct buffer *to)
{
    call->moved[0] = to->type;
    if (from != NULL && from->address != MPI_IN_PLACE)
        call->moved[1] = from->type;
}

bool decides_move(struct call *call, enum function function, MPI_Comm comm, const struct buffer *from, const struct buffer *to, int root)
{
    int late = MPI_SUCCESS;
    if (is_repeated(call, function, comm, from == NULL ? to : from, to, MPI_OP_NULL, root))
        return call->why == BY_UNISONO;
    begin(call, function, comm, root);
    if (!is_accelerated(function))
        return leave(call, LEFT_BY_SETTING);
    int error = error_in_move(call, from, to, &late);
    if (error != MPI_SUCCESS)
        return refuse(call, error);
    set_moved(call, from, to);
    bool is_for_unisono = decides_bytes(call, (size_t)to->count * (size_t)size_of(to->type), late);
    note(call, to, MPI_OP_NULL);
    return is_for_unisono;
}

bool decides_part(struct call *call, enum function function, MPI_Comm comm, const struct buffer *part, const struct buffer *whole, int root)
{
    bool is_root = is_accelerated(function) && place_in(comm).rank == root;
    return decides_move(call, function, comm, is_root ? part : NULL, is_root ? whole : part, root);
}

/* Unisono's blocks are equal, so shorter blocks are padded, unless most bytes would be padding. */
bool decides_blocks(struct call *call, MPI_Comm comm, struct buffer from, struct buffer to, const struct block *blocks)
{
    begin(call, ALLGATHERV, comm, 0);
    if (!is_accelerated(ALLGATHERV))
        return leave(call, LEFT_BY_SETTING);
    if (blocks == NULL)
        return leave(call, INVALID);
    MPI_Count most = 0, all = 0;
    for (MPI_Count rank = 0; rank < to.count; rank++) {
        if (blocks[rank].count < 0)
            return refuse(call, MPI_ERR_COUNT);
        all += blocks[rank].count;
        most = most < blocks[rank].count ? blocks[rank].count : most;
    }
    /* The buffer may be missing if there are no elements. */
    int error = error_in_both(from, (struct buffer){ to.address, all, to.type });
    if (error != MPI_SUCCESS)
        return refuse(call, error);
    MPI_Count size_bytes = size_of(to.type);
    const struct block *block = &blocks[place_in(comm).rank];
    struct buffer own = { (char *)to.address + block->start * size_bytes, block->count, to.type };
    error = error_of_alias(ALLGATHERV, from, own);
    if (error != MPI_SUCCESS)
        return refuse(call, error);
    if (most * to.count > 2 * all)
        return leave(call, UNEVEN);
    set_moved(call, &from, &to);
    bool is_for_unisono = decides_bytes(call, (size_t)(most * size_bytes), error_of_length(from, own));
    to.count = size_bytes == 0 ? 0 : most;
    note(call, &to, MPI_OP_NULL);
    return is_for_unisono;
}
