/* Calls that move values of any type: their buffers are packed to contiguous bytes, which Unisono moves, and unpacked again. */

#include "accelerate.h"

#include <limits.h>
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

/* Packs blocks one after the other, or unpacks them. MPI's counts are numbers of 31 bits. */
static int pack_blocks(const struct call *call, const struct blocks *blocks, char *bytes, bool unpacks)
{
    MPI_Aint lower, extent;
    MPI_Count size_bytes = size_of(blocks->type), most = size_bytes > 1 ? INT_MAX / size_bytes : INT_MAX;
    int error = PMPI_Type_get_extent(blocks->type, &lower, &extent);
    for (int rank = 0; rank < call->world->ranks; rank++) {
        char *place = (char *)blocks->address + blocks->of_rank[rank].start * extent;
        for (MPI_Count left = blocks->of_rank[rank].count; left > 0 && error == MPI_SUCCESS;) {
            int position = 0, count = (int)(left < most ? left : most), packed = (int)(count * size_bytes);
            if (unpacks)
                error = PMPI_Unpack(bytes, packed, &position, place, count, blocks->type, call->comm);
            else
                error = PMPI_Pack(place, count, blocks->type, bytes, packed, &position, call->comm);
            bytes += packed;
            place += count * extent;
            left -= count;
        }
    }
    return error;
}

/* Converts blocks in elements to blocks in bytes: in place if they are contiguous there, and packed otherwise. */
static size_t as_bytes(struct block *bytes, const struct blocks *blocks, int ranks)
{
    bool is_packed = !is_contiguous(blocks->type);
    MPI_Count size_bytes = size_of(blocks->type);
    size_t all = 0;
    for (int rank = 0; rank < ranks; rank++) {
        bytes[rank].start = is_packed ? (MPI_Aint)all : blocks->of_rank[rank].start * size_bytes;
        bytes[rank].count = blocks->of_rank[rank].count * size_bytes;
        all += (size_t)bytes[rank].count;
    }
    return is_packed ? all : 0;
}

/* Packs this rank's contribution: its buffer, or in place its own block. */
static int pack_own(struct packed *given, const struct call *call, struct buffer from, const struct blocks *to)
{
    if (from.address == MPI_IN_PLACE) {
        MPI_Aint lower, extent;
        const struct block *own = &to->of_rank[call->world->rank];
        PMPI_Type_get_extent(to->type, &lower, &extent);
        from = (struct buffer){ (char *)to->address + own->start * extent, own->count, to->type };
    }
    return pack(given, from, call->comm, true);
}

/* Carries out an all-gather of blocks through `gotten`, which receives them packed, or in place if it is NULL. */
static int gather_blocks(struct call *call, const char *given, const struct blocks *to, const struct block *bytes, char *gotten)
{
    int error = MPI_SUCCESS, code = carry_gather(call, given, gotten == NULL ? to->address : gotten, bytes);
    if (code == UNISONO_OK && gotten != NULL)
        error = pack_blocks(call, to, gotten, true);
    int own = result_of(call, code);
    return own == MPI_SUCCESS ? error : own;
}

int move_all_gather_v(struct call *call, struct buffer from, const struct blocks *to)
{
    struct packed given;
    int error = pack_own(&given, call, checked(call, from), to);
    if (error != MPI_SUCCESS)
        return cannot(call, error);
    struct block *bytes = malloc(sizeof(*bytes) * (size_t)call->world->ranks);
    size_t packed = bytes == NULL ? 0 : as_bytes(bytes, to, call->world->ranks);
    char *gotten = packed == 0 ? NULL : malloc(packed);
    if (bytes == NULL || (packed != 0 && gotten == NULL))
        error = cannot(call, MPI_ERR_NO_MEM);
    else
        error = gather_blocks(call, given.bytes, to, bytes, gotten);
    discard(&given);
    free(bytes);
    free(gotten);
    return error;
}

/* The blocks of an exchange as bytes in the order of ranks: in the buffer, or a copy. */
struct parts {
    char *bytes, *copy;
    size_t *counts, all;
};

/* Sets the address of the first byte, and the number of bytes of each block and of all. Returns whether the blocks are contiguous, one after the
 * other in the order of ranks. `counts` may be NULL. */
static bool find_parts(struct parts *parts, const struct blocks *blocks, int ranks)
{
    MPI_Count size_bytes = size_of(blocks->type);
    bool is_in_order = blocks->address != MPI_IN_PLACE && is_contiguous(blocks->type);
    MPI_Aint next = 0;
    parts->bytes = NULL;
    parts->all = 0;
    for (int rank = 0; rank < ranks; rank++) {
        const struct block *block = &blocks->of_rank[rank];
        size_t bytes = (size_t)(block->count * size_bytes);
        if (parts->counts != NULL)
            parts->counts[rank] = bytes;
        if (bytes == 0)
            continue;
        if (parts->all == 0)
            parts->bytes = (char *)blocks->address + block->start * size_bytes;
        else
            is_in_order = is_in_order && block->start == next;
        parts->all += bytes;
        next = block->start + (MPI_Aint)block->count;
    }
    /* MPI packs no larger element, so such a copy is refused like one for which there is no memory. */
    if (!is_in_order && parts->all > 0 && size_bytes > INT_MAX)
        parts->all = SIZE_MAX / 2;
    return is_in_order;
}

size_t bytes_out_of_order(const struct blocks *blocks, int ranks)
{
    struct parts parts = { 0 };
    return find_parts(&parts, blocks, ranks) ? 0 : parts.all;
}

/* Makes a copy of the parts, without their values. */
static int copy_parts(struct parts *parts)
{
    parts->bytes = parts->copy = malloc(parts->all + 1);
    return parts->copy == NULL ? MPI_ERR_NO_MEM : MPI_SUCCESS;
}

static bool overlap(const struct parts *a, const struct parts *b)
{
    return (uintptr_t)a->bytes < (uintptr_t)b->bytes + b->all && (uintptr_t)b->bytes < (uintptr_t)a->bytes + a->all;
}

static int exchange(struct call *call, const struct blocks *from, const struct blocks *to, struct parts *given, struct parts *gotten)
{
    int ranks = call->world->ranks, error = MPI_SUCCESS;
    bool gives_copy = !find_parts(given, from, ranks), gets_copy = !find_parts(gotten, to, ranks);
    if (gets_copy)
        error = copy_parts(gotten);
    if (error == MPI_SUCCESS && (gives_copy || overlap(given, gotten))) {
        error = copy_parts(given);
        if (error == MPI_SUCCESS)
            error = pack_blocks(call, from->address == MPI_IN_PLACE ? to : from, given->bytes, false);
    }
    if (error != MPI_SUCCESS)
        return cannot(call, error);
    int code = carry_exchange(call, given->bytes, given->counts, gotten->bytes, gotten->counts);
    if (code == UNISONO_OK && gets_copy)
        error = pack_blocks(call, to, gotten->bytes, true);
    int own = result_of(call, code);
    return own == MPI_SUCCESS ? error : own;
}

int move_exchange(struct call *call, const struct blocks *from, const struct blocks *to)
{
    size_t ranks = (size_t)call->world->ranks, *counts = malloc(2 * ranks * sizeof(*counts));
    struct parts given = { .counts = counts }, gotten = { .counts = counts + ranks };
    int error = counts == NULL ? cannot(call, MPI_ERR_NO_MEM) : exchange(call, from, to, &given, &gotten);
    free(counts);
    free(given.copy);
    free(gotten.copy);
    return error;
}
