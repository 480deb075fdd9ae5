/* The functions with counts: int, or MPI_Count in those that end with _c. entries.c includes this file for either. */

int MPI(Allreduce)(const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct call call;
    struct buffer into = { to, count, type };
    if (decides_reduction(&call, ALLREDUCE, comm, from, &into, op, 0))
        return result_of(&call, carry_reduction(&call, from == MPI_IN_PLACE ? to : from, to));
    return BY_MPI(call, PMPI(Allreduce)(from, to, count, type, op, comm));
}

int MPI(Reduce)(const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm)
{
    struct call call;
    struct buffer into = { to, count, type };
    if (decides_reduction(&call, REDUCE, comm, from, &into, op, root))
        return result_of(&call, carry_reduction(&call, from == MPI_IN_PLACE ? to : from, to));
    return BY_MPI(call, PMPI(Reduce)(from, to, count, type, op, root, comm));
}

int MPI(Reduce_scatter_block)(const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct call call;
    struct buffer into = { to, count, type };
    if (decides_reduction(&call, REDUCE_SCATTER_BLOCK, comm, from, &into, op, 0))
        return result_of(&call, carry_reduction(&call, from == MPI_IN_PLACE ? to : from, to));
    return BY_MPI(call, PMPI(Reduce_scatter_block)(from, to, count, type, op, comm));
}

/* The count of each rank, if all have the same; UNEQUAL if not, and -1 if they are not valid. */
static MPI_Count MPI(same_count)(const COUNT *counts, MPI_Comm comm)
{
    int ranks = is_accelerated(REDUCE_SCATTER) ? place_in(comm).ranks : 0;
    bool is_equal = true;
    if (ranks == 0 || counts == NULL)
        return -1;
    for (int rank = 0; rank < ranks; rank++) {
        if (counts[rank] < 0)
            return -1;
        is_equal = is_equal && counts[rank] == counts[0];
    }
    return is_equal ? counts[0] : UNEQUAL;
}

int MPI(Reduce_scatter)(const void *from, void *to, const COUNT counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct call call;
    struct buffer part = { to, MPI(same_count)(counts, comm), type };
    if (decides_reduction(&call, REDUCE_SCATTER, comm, from, &part, op, 0))
        return result_of(&call, carry_reduction(&call, from == MPI_IN_PLACE ? to : from, to));
    return BY_MPI(call, PMPI(Reduce_scatter)(from, to, counts, type, op, comm));
}

int MPI(Bcast)(void *buffer, COUNT count, MPI_Datatype type, int root, MPI_Comm comm)
{
    struct call call;
    struct buffer values = { buffer, count, type };
    if (decides_move(&call, BCAST, comm, NULL, &values, root))
        return move_broadcast(&call, values);
    return BY_MPI(call, PMPI(Bcast)(buffer, count, type, root, comm));
}

int MPI(Allgather)(const void *from, COUNT from_count, MPI_Datatype from_type, void *to, COUNT to_count, MPI_Datatype to_type,
                   MPI_Comm comm)
{
    struct call call;
    struct buffer given = { (void *)from, from_count, from_type }, gotten = { to, to_count, to_type };
    if (decides_move(&call, ALLGATHER, comm, &given, &gotten, 0))
        return move_all_gather(&call, given, gotten);
    return BY_MPI(call, PMPI(Allgather)(from, from_count, from_type, to, to_count, to_type, comm));
}

int MPI(Alltoall)(const void *from, COUNT from_count, MPI_Datatype from_type, void *to, COUNT to_count, MPI_Datatype to_type,
                  MPI_Comm comm)
{
    struct call call;
    struct buffer given = { (void *)from, from_count, from_type }, gotten = { to, to_count, to_type };
    if (decides_move(&call, ALLTOALL, comm, &given, &gotten, 0))
        return move_all_to_all(&call, given, gotten);
    return BY_MPI(call, PMPI(Alltoall)(from, from_count, from_type, to, to_count, to_type, comm));
}

/* The block of each rank, in elements of its type; NULL if there are none. */
static struct block *MPI(blocks)(const COUNT *counts, const DISPLACEMENT *displacements, int ranks)
{
    if (ranks == 0 || counts == NULL || displacements == NULL)
        return NULL;
    struct block *blocks = allocated(sizeof(*blocks) * (size_t)ranks);
    for (int rank = 0; rank < ranks; rank++)
        blocks[rank] = (struct block){ displacements[rank], counts[rank] };
    return blocks;
}

int MPI(Allgatherv)(const void *from, COUNT from_count, MPI_Datatype from_type, void *to, const COUNT counts[],
                    const DISPLACEMENT displacements[], MPI_Datatype to_type, MPI_Comm comm)
{
    struct call call;
    int ranks = is_accelerated(ALLGATHERV) ? place_in(comm).ranks : 0, code;
    struct block *blocks = MPI(blocks)(counts, displacements, ranks);
    struct buffer given = { (void *)from, from_count, from_type }, gotten = { to, ranks, to_type };
    if (decides_blocks(&call, comm, given, gotten, blocks))
        code = move_all_gather_v(&call, given, to, to_type, blocks);
    else
        code = BY_MPI(call, PMPI(Allgatherv)(from, from_count, from_type, to, counts, displacements, to_type, comm));
    free(blocks);
    return code;
}
