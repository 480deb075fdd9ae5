/* Unisono carries out a call.
 *
 * Calls whose results fill an array on every rank (broadcasts, all-to-alls, all-gathers of equal blocks) are made in that array. For other
 * calls, Unisono's arrays are in registered memory, which the other ranks access in place. The program's arrays are copied through it piece by
 * piece, while each piece is in the cache. Without it, other ranks would need a copy too, which takes as long. The program's buffers may be in
 * any memory. */

#include "accelerate.h"

/* Up to this size a call is not divided into pieces, and other ranks do not access its memory. */
enum { SMALL_BYTES = 4096 };

/* The arrays of a call, in blocks: one, or one for each rank. */
struct arrays {
    const char *from;
    char *to;
    /* The numbers of blocks that this rank contributes and receives, and of the first ones within Unisono's array. */
    size_t given, gotten, first_given, first_gotten;
    /* The size of a block, or of the largest. */
    size_t block_bytes;
    /* The positions and sizes of the blocks in `to`, unless they are equal and contiguous. */
    const struct block *blocks;
    /* The bytes of its own block that this rank contributes, if it contributes only that: all of it, or less in unequal blocks. */
    size_t own_bytes;
};

/* Makes Unisono's call on `bytes` of its array. */
static int make(const struct call *call, void *array, size_t bytes)
{
    unisono_comm *comm = call->world->unisono;
    size_t count = bytes / call->element_bytes;
    switch (call->function) {
    case ALLREDUCE:
        return unisono_all_reduce(comm, array, count, call->dtype, call->op, NULL);
    case REDUCE:
        return unisono_reduce(comm, array, count, call->dtype, call->op, call->root, NULL);
    case REDUCE_SCATTER:
    case REDUCE_SCATTER_BLOCK:
        return unisono_reduce_scatter(comm, array, count, call->dtype, call->op, NULL);
    case ALLGATHER:
    case ALLGATHERV:
        return unisono_all_gather(comm, array, count, call->dtype, NULL);
    case ALLTOALL:
        return unisono_all_to_all(comm, array, count, call->dtype, NULL);
    case GATHER:
        return unisono_gather(comm, array, count, call->dtype, call->root, NULL);
    case SCATTER:
        return unisono_scatter(comm, array, count, call->dtype, call->root, NULL);
    case SCAN:
        return unisono_scan(comm, array, count, call->dtype, call->op, NULL);
    case EXSCAN:
        return unisono_exclusive_scan(comm, array, count, call->dtype, call->op, NULL);
    case BCAST:
        return unisono_broadcast(comm, array, count, call->dtype, call->root, NULL);
    default:
        return unisono_barrier(comm, NULL);
    }
}

/* Copies this rank's part of a piece, `bytes` of each block from `start` on, to Unisono's array. */
static void give(const struct arrays *arrays, char *stage, size_t start, size_t bytes)
{
    for (size_t i = 0; i < arrays->given; i++) {
        size_t of_block = arrays->given == 1 ? arrays->own_bytes : arrays->block_bytes;
        if (start < of_block)
            unisono_copy(stage + (arrays->first_given + i) * bytes, arrays->from + i * arrays->block_bytes + start,
                         least(bytes, of_block - start));
    }
}

/* Copies this rank's result of a piece from Unisono's array. */
static void get(const struct arrays *arrays, const char *stage, size_t start, size_t bytes)
{
    for (size_t i = 0; i < arrays->gotten; i++) {
        const struct block equal = { (MPI_Aint)(i * arrays->block_bytes), (MPI_Count)arrays->block_bytes };
        const struct block *block = arrays->blocks == NULL ? &equal : &arrays->blocks[i];
        size_t of_block = (size_t)block->count;
        if (start < of_block)
            unisono_copy(arrays->to + block->start + start, stage + (arrays->first_gotten + i) * bytes,
                         least(bytes, of_block - start));
    }
}

/* Returns whether a call has a block of each rank, and not one array. */
static bool is_of_blocks(enum function function)
{
    return function != ALLREDUCE && function != REDUCE && function != SCAN && function != EXSCAN;
}

/* Carries out a call piece by piece. The number of pieces is identical on all ranks. */
static int carry(const struct call *call, const struct arrays *arrays)
{
    char *stage = call->world->stage;
    size_t blocks = is_of_blocks(call->function) ? (size_t)call->world->ranks : 1;
    /* Whole elements of any type, or one element in a world of very many ranks. */
    size_t most = STAGE_BYTES / blocks / 16 * 16;
    if (most == 0)
        most = call->element_bytes;
    for (size_t start = 0; start < arrays->block_bytes; start += most) {
        size_t bytes = least(most, arrays->block_bytes - start);
        give(arrays, stage, start, bytes);
        int code = make(call, stage, blocks * bytes);
        if (code != UNISONO_OK)
            return code;
        get(arrays, stage, start, bytes);
    }
    return UNISONO_OK;
}

static bool is_aligned(const void *array, size_t bytes)
{
    return (uintptr_t)array % bytes == 0;
}

int carry_reduction(const struct call *call, const void *from, void *to)
{
    const struct world *world = call->world;
    if (call->mpi_op != MPI_OP_NULL)
        return carry_local_reduction(call, from, to);
    bool gives_all = call->function == REDUCE_SCATTER || call->function == REDUCE_SCATTER_BLOCK;
    bool is_for_all = call->function == ALLREDUCE || call->function == SCAN;
    if (is_for_all && call->bytes <= SMALL_BYTES && is_aligned(to, call->element_bytes)) {
        if (from != to)
            unisono_copy(to, from, call->bytes);
        return make(call, to, call->bytes);
    }
    struct arrays arrays = { .from = from, .to = to, .block_bytes = call->bytes, .own_bytes = call->bytes };
    arrays.given = gives_all ? (size_t)world->ranks : 1;
    arrays.gotten = gets_result(call->function, world->rank, call->root);
    arrays.first_gotten = gives_all ? (size_t)world->rank : 0;
    return carry(call, &arrays);
}

int carry_broadcast(const struct call *call, void *bytes)
{
    return make(call, bytes, call->bytes);
}

int carry_barrier(const struct call *call)
{
    int code = make(call, NULL, 0);
    progress();
    return code;
}

/* Carries out a call in `to`, an array of one block for each rank, after copying this rank's values there from `from`, unless they are there. */
static int carry_in_place(const struct call *call, char *own, const void *from, size_t bytes, void *to)
{
    if (from != own)
        unisono_copy(own, from, bytes);
    return make(call, to, (size_t)call->world->ranks * call->bytes);
}

int carry_gather(const struct call *call, const void *from, void *to, const struct block *blocks)
{
    size_t ranks = (size_t)call->world->ranks, rank = (size_t)call->world->rank;
    if (call->function == ALLGATHER)
        return carry_in_place(call, (char *)to + rank * call->bytes, from, call->bytes, to);
    struct arrays arrays = { .from = from, .to = to, .given = 1, .first_given = rank, .block_bytes = call->bytes };
    arrays.gotten = call->function != GATHER || call->world->rank == call->root ? ranks : 0;
    arrays.blocks = blocks;
    arrays.own_bytes = blocks == NULL ? call->bytes : (size_t)blocks[rank].count;
    return carry(call, &arrays);
}

int carry_all_to_all(const struct call *call, const void *from, void *to)
{
    return carry_in_place(call, to, from, (size_t)call->world->ranks * call->bytes, to);
}

int carry_exchange(const struct call *call, const void *from, const size_t *from_bytes, void *to, const size_t *to_bytes)
{
    return unisono_all_to_all_v(call->world->unisono, from, from_bytes, to, to_bytes, UNISONO_U8, NULL);
}

int carry_scatter(const struct call *call, const void *from, void *to)
{
    size_t ranks = (size_t)call->world->ranks, rank = (size_t)call->world->rank;
    struct arrays arrays = { .from = from, .to = to, .gotten = to != NULL, .first_gotten = rank, .block_bytes = call->bytes };
    arrays.given = call->world->rank == call->root ? ranks : 0;
    return carry(call, &arrays);
}
