/* Reductions by MPI_Reduce_local, which calls the function of a user-defined operation. Unisono moves the values, and each rank
 * combines them between Unisono's calls: in the order of ranks, on the thread that called MPI, and in aligned memory. */

#include "accelerate.h"

#include <string.h>

/* Up to this size each rank that receives the result combines all of it, which takes one exchange. Above, each rank combines a part. */
enum { WHOLE_BYTES = 4096 };

/* Copies whole elements, without the padding after each, which may hold other values of the program or lie behind its buffer. */
static void copy_elements(const struct call *call, char *to, const char *from, size_t bytes)
{
    if (call->true_bytes == call->element_bytes) {
        unisono_copy(to, from, bytes);
        return;
    }
    for (size_t start = 0; start < bytes; start += call->element_bytes)
        memcpy(to + start, from + start, call->true_bytes);
}

/* Combines the blocks of ranks 0 to `last` into that of `last`. They start `block_bytes` apart, and `bytes` of each are used. */
static int combine(const struct call *call, char *blocks, size_t block_bytes, int last, size_t bytes)
{
    unisono_comm *comm = call->world->unisono;
    char *result = blocks + (size_t)last * block_bytes;
    int count = (int)(bytes / call->element_bytes);
    for (int rank = last - 1; rank >= 0 && count > 0; rank--) {
        const char *values = blocks + (size_t)rank * block_bytes;
        if (PMPI_Reduce_local(values, result, count, call->mpi_type, call->mpi_op) == MPI_SUCCESS)
            continue;
        unisono_fail(comm, "MPI_Reduce_local failed");
        /* Returns the error of a communicator that is lost. */
        return unisono_barrier(comm, NULL);
    }
    return UNISONO_OK;
}

/* Exchanges the blocks of all ranks, of `bytes` together: each rank gets those that it combines. */
static int exchange(const struct call *call, char *blocks, size_t bytes)
{
    unisono_comm *comm = call->world->unisono;
    switch (call->function) {
    case REDUCE:
        return unisono_gather(comm, blocks, bytes, UNISONO_U8, call->root, NULL);
    case REDUCE_SCATTER:
    case REDUCE_SCATTER_BLOCK:
        return unisono_all_to_all(comm, blocks, bytes, UNISONO_U8, NULL);
    default:
        return unisono_all_gather(comm, blocks, bytes, UNISONO_U8, NULL);
    }
}

static size_t block_of(const struct call *call)
{
    return STAGE_BYTES / (size_t)call->world->ranks / call->element_bytes * call->element_bytes;
}

/* Combines the whole result of a rank, piece by piece. */
static int reduce_whole(const struct call *call, char *stage, const char *from, char *to)
{
    size_t ranks = (size_t)call->world->ranks, rank = (size_t)call->world->rank, most = block_of(call);
    bool gives_all = call->function == REDUCE_SCATTER || call->function == REDUCE_SCATTER_BLOCK;
    bool gets = gets_result(call->function, call->world->rank, call->root);
    int last = call->function == SCAN ? (int)rank : call->function == EXSCAN ? (int)rank - 1 : (int)ranks - 1;
    for (size_t start = 0; start < call->bytes; start += most) {
        size_t bytes = least(most, call->bytes - start);
        for (size_t block = gives_all ? 0 : rank; block < (gives_all ? ranks : rank + 1); block++)
            copy_elements(call, stage + block * bytes, from + (gives_all ? block * call->bytes : 0) + start, bytes);
        int code = exchange(call, stage, ranks * bytes);
        if (code == UNISONO_OK && gets)
            code = combine(call, stage, bytes, last, bytes);
        if (code != UNISONO_OK)
            return code;
        if (gets)
            copy_elements(call, to + start, stage + (size_t)last * bytes, bytes);
    }
    return UNISONO_OK;
}

/* Combines a block of a piece on each rank, and exchanges the results. */
static int reduce_piece(const struct call *call, char *stage, size_t bytes)
{
    const struct world *world = call->world;
    size_t ranks = (size_t)world->ranks, rank = (size_t)world->rank, last = ranks - 1, size_bytes = call->element_bytes;
    size_t block_bytes = (bytes / size_bytes + last) / ranks * size_bytes, start = rank * block_bytes;
    size_t own = start < bytes ? least(block_bytes, bytes - start) : 0;
    int code = unisono_all_to_all(world->unisono, stage, ranks * block_bytes, UNISONO_U8, NULL);
    if (code == UNISONO_OK)
        code = combine(call, stage, block_bytes, (int)last, own);
    if (code != UNISONO_OK)
        return code;
    if (rank != last)
        unisono_copy(stage + start, stage + last * block_bytes, own);
    return exchange(call, stage, ranks * block_bytes);
}

static int reduce_divided(const struct call *call, char *stage, const char *from, char *to)
{
    size_t most = block_of(call) * (size_t)call->world->ranks;
    for (size_t start = 0; start < call->bytes; start += most) {
        size_t bytes = least(most, call->bytes - start);
        copy_elements(call, stage, from + start, bytes);
        int code = reduce_piece(call, stage, bytes);
        if (code != UNISONO_OK)
            return code;
        if (gets_result(call->function, call->world->rank, call->root))
            copy_elements(call, to + start, stage, bytes);
    }
    return UNISONO_OK;
}

int carry_local_reduction(const struct call *call, const void *from, void *to)
{
    char *stage = call->world->stage;
    bool is_divided = (call->function == ALLREDUCE || call->function == REDUCE) && call->bytes > WHOLE_BYTES;
    return is_divided ? reduce_divided(call, stage, from, to) : reduce_whole(call, stage, from, to);
}
