/* The decision whether Unisono carries out a call. All ranks must make the same decision, so it depends only on values that MPI requires to
 * be identical on all of them: the function, the operation, the root, and the number of bytes. Ranks may describe equal bytes by different
 * types, so the type matters only if values are reduced. */

#include "repeat.h"

#include <limits.h>

static bool leave(struct call *call, enum why why)
{
    call->why = why;
    return false;
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
    call->error = error == REPORTED_BY_MPI || is_refused_by_mpi(call, error) ? MPI_SUCCESS : error;
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
    call->copied_bytes = 0;
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
    /* In an exchange, other ranks may have some. */
    if (bytes == 0 && call->function != BARRIER && !is_exchange(call->function))
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
    return is_length_checked(call->function, *late) ? MPI_ERR_TRUNCATE : error_of_alias(call->function, *from, own);
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

/* Returns the block that a rank exchanges with itself. MPICH, whose check of aliases this serves, computes its address by the size. */
static struct buffer own_block(const struct blocks *blocks, int rank)
{
    const struct block *own = &blocks->of_rank[rank];
    return (struct buffer){ (char *)blocks->address + own->start * size_of(blocks->type), own->count, blocks->type };
}

/* Unisono's blocks are equal, so shorter blocks are padded, unless most bytes would be padding. */
bool decides_blocks(struct call *call, MPI_Comm comm, struct buffer from, const struct blocks *to)
{
    begin(call, ALLGATHERV, comm, 0);
    if (!is_accelerated(ALLGATHERV))
        return leave(call, LEFT_BY_SETTING);
    if (to->of_rank == NULL)
        return leave(call, INVALID);
    struct place place = place_in(comm);
    int error = error_in_blocks(to, place.ranks);
    if (error == MPI_SUCCESS && from.address != MPI_IN_PLACE)
        error = error_in(from);
    if (error != MPI_SUCCESS)
        return refuse(call, error);
    struct buffer own = own_block(to, place.rank);
    error = error_of_alias(ALLGATHERV, from, own);
    if (error != MPI_SUCCESS)
        return refuse(call, error);
    MPI_Count most = 0, all = 0, size_bytes = size_of(to->type);
    for (int rank = 0; rank < place.ranks; rank++) {
        all += to->of_rank[rank].count;
        most = most < to->of_rank[rank].count ? to->of_rank[rank].count : most;
    }
    if (most * place.ranks > 2 * all)
        return leave(call, UNEVEN);
    struct buffer largest = { to->address, size_bytes == 0 ? 0 : most, to->type };
    set_moved(call, &from, &largest);
    bool is_for_unisono = decides_bytes(call, (size_t)(most * size_bytes), error_of_length(from, own));
    note(call, &largest, MPI_OP_NULL);
    return is_for_unisono;
}

/* Returns the class of the error in the buffers of an exchange. `late` is as for `error_in_move`. */
static int error_in_exchange(const struct call *call, const struct blocks *from, const struct blocks *to, bool has_same_counts, int *late)
{
    struct place place = place_in(call->comm);
    int error = error_in_blocks(to, place.ranks);
    if (error != MPI_SUCCESS || (from->address == MPI_IN_PLACE && call->function == ALLTOALLV))
        return error;
    error = error_in_blocks(from, place.ranks);
    if (error != MPI_SUCCESS)
        return error;
    struct buffer given = own_block(from, place.rank), own = own_block(to, place.rank);
    *late = error_of_length(given, own);
    if (is_length_checked(call->function, *late))
        return MPI_ERR_TRUNCATE;
    /* MPICH compares the whole buffers of MPI_Alltoallv. */
    if (call->function == ALLTOALLV) {
        given = (struct buffer){ from->address, 1, from->type };
        own = (struct buffer){ to->address, has_same_counts, to->type };
    }
    return error_of_alias(call->function, given, own);
}

bool decides_exchange(struct call *call, enum function function, MPI_Comm comm, struct blocks *from, struct blocks *to, bool has_same_counts,
                      int root)
{
    int late = MPI_SUCCESS;
    begin(call, function, comm, root);
    if (!is_accelerated(function))
        return leave(call, LEFT_BY_SETTING);
    if (from->of_rank == NULL || to->of_rank == NULL)
        return leave(call, INVALID);
    int error = error_in_exchange(call, from, to, has_same_counts, &late);
    if (error != MPI_SUCCESS)
        return refuse(call, error);
    struct place place = place_in(comm);
    if (late != MPI_SUCCESS)
        from->of_rank[place.rank].count = to->of_rank[place.rank].count = 0;
    call->copied_bytes = bytes_out_of_order(from, place.ranks) + bytes_out_of_order(to, place.ranks);
    call->moved[0] = to->type;
    call->moved[1] = from->type;
    bool is_for_unisono = decides_bytes(call, 0, late);
    if (type_of(from->type) != NULL && from->address != MPI_IN_PLACE)
        note(call, &BUFFER(to->address, 0, to->type), MPI_OP_NULL);
    return is_for_unisono;
}
