/* Calls that move values of any type: their buffers are packed to contiguous bytes, which Unisono moves, and unpacked again. */

#include "accelerate.h"

#include <stdlib.h>

/* Ends a call for which this rank cannot provide its own values, so that the other ranks do not wait for it. MPI has called the error
 * handler for its own errors, but not for a lack of memory. */
static int cannot(const struct call *call, int error)
{
    bool is_memory = error == MPI_ERR_NO_MEM;
    const char *text = is_memory ? "a rank has no memory to pack values" : "a rank cannot pack the values that it sends";
    unisono_fail(call->world->unisono, text);
    call_ended(call, true);
    if (is_memory)
        handle_error(call, error, text);
    return error;
}

/* Returns the result of a call, whose bytes have arrived if Unisono's code is no error. */
static int ended(const struct call *call, int code, struct packed *to)
{
    int error = MPI_SUCCESS;
    if (code == UNISONO_OK)
        error = unpack(to);
    else
        discard(to);
    int own = result_of(call, code);
    return own == MPI_SUCCESS ? error : own;
}

int move_broadcast(struct call *call, struct buffer buffer)
{
    bool is_root = call->world->rank == call->root;
    struct packed values;
    int error = pack(&values, buffer, call->comm, is_root);
    if (error != MPI_SUCCESS)
        return cannot(call, error);
    int code = carry_broadcast(call, values.bytes);
    if (is_root) {
        discard(&values);
        return result_of(call, code);
    }
    return ended(call, code, &values);
}

/* The function that carries out a call from one buffer to another. */
typedef int carrier(const struct call *call, const void *from, void *to);

static int moved(struct call *call, struct buffer from, struct buffer to, carrier *carry)
{
    bool is_in_place = from.address == MPI_IN_PLACE;
    struct packed given = { 0 }, gotten;
    int error = pack(&gotten, to, call->comm, is_in_place);
    if (error != MPI_SUCCESS)
        return cannot(call, error);
    if (!is_in_place)
        error = pack(&given, from, call->comm, true);
    if (error != MPI_SUCCESS) {
        discard(&gotten);
        return cannot(call, error);
    }
    int code = carry(call, is_in_place ? NULL : given.bytes, gotten.bytes);
    discard(&given);
    return ended(call, code, &gotten);
}

static int gather(const struct call *call, const void *from, void *to)
{
    const void *own = from == NULL ? (char *)to + (size_t)call->world->rank * call->bytes : from;
    return carry_gather(call, own, to, NULL);
}

static int all_to_all(const struct call *call, const void *from, void *to)
{
    return carry_all_to_all(call, from == NULL ? to : from, to);
}

/* Returns the buffer of the values that this rank sends to itself: in place, where nothing is copied, if their number is an error. */
static struct buffer checked(const struct call *call, struct buffer own)
{
    if (call->error != MPI_SUCCESS)
        own.address = MPI_IN_PLACE;
    return own;
}

int move_all_gather(struct call *call, struct buffer from, struct buffer to)
{
    to.count *= call->world->ranks;
    return moved(call, checked(call, from), to, gather);
}

int move_all_to_all(struct call *call, struct buffer from, struct buffer to)
{
    from.count *= call->world->ranks;
    to.count *= call->world->ranks;
    return moved(call, checked(call, from), to, all_to_all);
}

/* A missing buffer. */
static const struct buffer NOTHING = { NULL, 0, MPI_BYTE };

int move_gather(struct call *call, struct buffer part, struct buffer whole)
{
    whole.count *= call->world->ranks;
    return moved(call, checked(call, part), call->world->rank == call->root ? whole : NOTHING, gather);
}

int move_scatter(struct call *call, struct buffer whole, struct buffer part)
{
    whole.count *= call->world->ranks;
    bool is_root = call->world->rank == call->root;
    return moved(call, is_root ? whole : NOTHING, checked(call, part).address == MPI_IN_PLACE ? NOTHING : part, carry_scatter);
}

/* Unpacks contiguous packed blocks to their positions. */
static int unpack_blocks(const struct call *call, char *bytes, void *to, MPI_Datatype type, const struct block *blocks)
{
    MPI_Aint lower, extent;
    int error = PMPI_Type_get_extent(type, &lower, &extent), size_bytes;
    PMPI_Type_size(type, &size_bytes);
    for (int rank = 0; error == MPI_SUCCESS && rank < call->world->ranks; rank++) {
        int position = 0, count = (int)blocks[rank].count;
        error = PMPI_Unpack(bytes, count * size_bytes, &position, (char *)to + blocks[rank].start * extent, count, type, call->comm);
        bytes += (size_t)count * (size_t)size_bytes;
    }
    return error;
}

/* Converts blocks in elements to blocks in bytes: in place if they are contiguous there, and packed otherwise. */
static size_t as_bytes(struct block *bytes, const struct block *blocks, const struct call *call, MPI_Datatype type)
{
    bool is_packed = !is_contiguous(type);
    int size_bytes;
    size_t all = 0;
    PMPI_Type_size(type, &size_bytes);
    for (int rank = 0; rank < call->world->ranks; rank++) {
        MPI_Aint packed = (MPI_Aint)all;
        bytes[rank].start = is_packed ? packed : blocks[rank].start * size_bytes;
        bytes[rank].count = blocks[rank].count * size_bytes;
        all += (size_t)bytes[rank].count;
    }
    return is_packed ? all : 0;
}

/* Packs this rank's contribution: its buffer, or in place its own block. */
static int pack_own(struct packed *given, const struct call *call, struct buffer from, char *to, MPI_Datatype type,
                    const struct block *blocks)
{
    if (from.address == MPI_IN_PLACE) {
        MPI_Aint lower, extent;
        const struct block *own = &blocks[call->world->rank];
        PMPI_Type_get_extent(type, &lower, &extent);
        from = (struct buffer){ to + own->start * extent, own->count, type };
    }
    return pack(given, from, call->comm, true);
}

/* Carries out an all-gather of blocks through `gotten`, which receives them packed, or in place if it is NULL. */
static int gather_blocks(struct call *call, const char *given, void *to, MPI_Datatype type, const struct block *blocks,
                         const struct block *bytes, char *gotten)
{
    int error = MPI_SUCCESS, code = carry_gather(call, given, gotten == NULL ? to : gotten, bytes);
    if (code == UNISONO_OK && gotten != NULL)
        error = unpack_blocks(call, gotten, to, type, blocks);
    int own = result_of(call, code);
    return own == MPI_SUCCESS ? error : own;
}

int move_all_gather_v(struct call *call, struct buffer from, void *to, MPI_Datatype type, const struct block *blocks)
{
    struct packed given;
    int error = pack_own(&given, call, checked(call, from), to, type, blocks);
    if (error != MPI_SUCCESS)
        return cannot(call, error);
    struct block *bytes = malloc(sizeof(*bytes) * (size_t)call->world->ranks);
    size_t packed = bytes == NULL ? 0 : as_bytes(bytes, blocks, call, type);
    char *gotten = packed == 0 ? NULL : malloc(packed);
    if (bytes == NULL || (packed != 0 && gotten == NULL))
        error = cannot(call, MPI_ERR_NO_MEM);
    else
        error = gather_blocks(call, given.bytes, to, type, blocks, bytes, gotten);
    discard(&given);
    free(bytes);
    free(gotten);
    return error;
}
