/* The functions with counts: int, or MPI_Count in those that end with _c. entries.c includes this file for either. */

int MPI(Allreduce)(const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct call call;
    if (decides_reduction(&call, ALLREDUCE, comm, count, type, op, 0))
        return result_of(&call, carry_reduction(&call, from == MPI_IN_PLACE ? to : from, to));
    return by_mpi(&call, PMPI(Allreduce)(from, to, count, type, op, comm));
}

int MPI(Reduce)(const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm)
{
    struct call call;
    if (decides_reduction(&call, REDUCE, comm, count, type, op, root))
        return result_of(&call, carry_reduction(&call, from == MPI_IN_PLACE ? to : from, to));
    return by_mpi(&call, PMPI(Reduce)(from, to, count, type, op, root, comm));
}

int MPI(Reduce_scatter_block)(const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct call call;
    if (decides_reduction(&call, REDUCE_SCATTER_BLOCK, comm, count, type, op, 0))
        return result_of(&call, carry_reduction(&call, from == MPI_IN_PLACE ? to : from, to));
    return by_mpi(&call, PMPI(Reduce_scatter_block)(from, to, count, type, op, comm));
}

/* The count of each rank, if all have the same; otherwise -1. */
static MPI_Count MPI(same_count)(const COUNT *counts, MPI_Comm comm)
{
    const struct world *world = world_of(comm);
    if (world == NULL || world->unisono == NULL)
        return -1;
    for (int rank = 1; rank < world->ranks; rank++)
        if (counts[rank] != counts[0])
            return -1;
    return counts[0];
}

int MPI(Reduce_scatter)(const void *from, void *to, const COUNT counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct call call;
    MPI_Count count = MPI(same_count)(counts, comm);
    if (count < 0 ? decides_for_mpi(&call, REDUCE_SCATTER, comm, UNEVEN)
                  : decides_reduction(&call, REDUCE_SCATTER, comm, count, type, op, 0))
        return result_of(&call, carry_reduction(&call, from == MPI_IN_PLACE ? to : from, to));
    return by_mpi(&call, PMPI(Reduce_scatter)(from, to, counts, type, op, comm));
}

int MPI(Bcast)(void *buffer, COUNT count, MPI_Datatype type, int root, MPI_Comm comm)
{
    struct call call;
    if (decides_move(&call, BCAST, comm, count, type, root))
        return move_broadcast(&call, (struct buffer){ buffer, count, type });
    return by_mpi(&call, PMPI(Bcast)(buffer, count, type, root, comm));
}

int MPI(Allgather)(const void *from, COUNT from_count, MPI_Datatype from_type, void *to, COUNT to_count, MPI_Datatype to_type,
                   MPI_Comm comm)
{
    struct call call;
    if (decides_move(&call, ALLGATHER, comm, to_count, to_type, 0))
        return move_all_gather(&call, (struct buffer){ (void *)from, from_count, from_type },
                               (struct buffer){ to, to_count, to_type });
    return by_mpi(&call, PMPI(Allgather)(from, from_count, from_type, to, to_count, to_type, comm));
}

int MPI(Alltoall)(const void *from, COUNT from_count, MPI_Datatype from_type, void *to, COUNT to_count, MPI_Datatype to_type,
                  MPI_Comm comm)
{
    struct call call;
    if (decides_move(&call, ALLTOALL, comm, to_count, to_type, 0))
        return move_all_to_all(&call, (struct buffer){ (void *)from, from_count, from_type },
                               (struct buffer){ to, to_count, to_type });
    return by_mpi(&call, PMPI(Alltoall)(from, from_count, from_type, to, to_count, to_type, comm));
}

/* The block of each rank, in elements of its type. */
static struct block *MPI(blocks)(const COUNT *counts, const DISPLACEMENT *displacements, MPI_Comm comm)
{
    const struct world *world = world_of(comm);
    if (world == NULL || world->unisono == NULL)
        return NULL;
    struct block *blocks = allocated(sizeof(*blocks) * (size_t)world->ranks);
    for (int rank = 0; rank < world->ranks; rank++)
        blocks[rank] = (struct block){ displacements[rank], counts[rank] };
    return blocks;
}

int MPI(Allgatherv)(const void *from, COUNT from_count, MPI_Datatype from_type, void *to, const COUNT counts[],
                    const DISPLACEMENT displacements[], MPI_Datatype to_type, MPI_Comm comm)
{
    struct call call;
    struct block *blocks = MPI(blocks)(counts, displacements, comm);
    int code;
    if (blocks == NULL ? decides_for_mpi(&call, ALLGATHERV, comm, UNEVEN) : decides_blocks(&call, comm, blocks, to_type))
        code = move_all_gather_v(&call, (struct buffer){ (void *)from, from_count, from_type }, to, to_type, blocks);
    else
        code = by_mpi(&call, PMPI(Allgatherv)(from, from_count, from_type, to, counts, displacements, to_type, comm));
    free(blocks);
    return code;
}
