/* The functions with counts: int, or MPI_Count in those that end with _c. entries.c includes this file once for each. */

/* Reductions. `parameter` and `argument` are those of the root, followed by a comma, or empty. */
#define REDUCTION(name, function, root, parameter, argument)                                                   \
    int MPI(name)(const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op,                       \
                  UNPACKED parameter MPI_Comm comm)                                                            \
    {                                                                                                          \
        if (is_for_mpi(function, comm, BUFFER(from, count, type), BUFFER(to, count, type), op, root))          \
            return PMPI(name)(from, to, count, type, op, UNPACKED argument comm);                              \
        CHECK_COMM(function, comm);                                                                            \
        struct call call;                                                                                      \
        struct buffer into = { to, count, type };                                                              \
        if (decides_reduction(&call, function, comm, from, &into, op, root))                                   \
            return result_of(&call, carry_reduction(&call, from == MPI_IN_PLACE ? to : from, to));             \
        return BY_MPI(call, PMPI(name)(from, to, count, type, op, UNPACKED argument comm));                    \
    }

REDUCTION(Allreduce, ALLREDUCE, 0, (), ())
REDUCTION(Reduce_scatter_block, REDUCE_SCATTER_BLOCK, 0, (), ())
REDUCTION(Scan, SCAN, 0, (), ())
REDUCTION(Exscan, EXSCAN, 0, (), ())
REDUCTION(Reduce, REDUCE, root, (int root,), (root,))

/* Moves without a root. */
#define MOVE(name, function, move)                                                                             \
    int MPI(name)(const void *from, COUNT from_count, MPI_Datatype from_type, void *to, COUNT to_count,        \
                  MPI_Datatype to_type, MPI_Comm comm)                                                         \
    {                                                                                                          \
        if (is_for_mpi(function, comm, BUFFER(from, from_count, from_type), BUFFER(to, to_count, to_type),     \
                       MPI_OP_NULL, 0))                                                                        \
            return PMPI(name)(from, from_count, from_type, to, to_count, to_type, comm);                       \
        CHECK_COMM(function, comm);                                                                            \
        struct call call;                                                                                      \
        struct buffer given = BUFFER(from, from_count, from_type), gotten = BUFFER(to, to_count, to_type);     \
        if (decides_move(&call, function, comm, &given, &gotten, 0))                                           \
            return move(&call, given, gotten);                                                                 \
        return BY_MPI(call, PMPI(name)(from, from_count, from_type, to, to_count, to_type, comm));             \
    }

MOVE(Allgather, ALLGATHER, move_all_gather)
MOVE(Alltoall, ALLTOALL, move_all_to_all)

/* Returns the count of each rank, if all are equal; UNEQUAL if not, and -1 if they are invalid. */
static MPI_Count MPI(same_count)(const COUNT *counts, int ranks)
{
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

/* Returns whether MPI carries out a reduce-scatter with these counts, without a report, which needs no further examination. */
static bool MPI(are_counts_for_mpi)(const void *from, void *to, const COUNT *counts, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    const struct repeatable *same = &last_calls[REDUCE_SCATTER];
    MPI_Count count = is_on(same, comm) ? MPI(same_count)(counts, same->ranks) : -1;
    return count >= 0 && is_for_mpi(REDUCE_SCATTER, comm, BUFFER(from, count, type), BUFFER(to, count, type), op, 0);
}

int MPI(Reduce_scatter)(const void *from, void *to, const COUNT counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    if (is_left_to_mpi(REDUCE_SCATTER, settings.functions) || MPI(are_counts_for_mpi)(from, to, counts, type, op, comm))
        return PMPI(Reduce_scatter)(from, to, counts, type, op, comm);
    CHECK_COMM(REDUCE_SCATTER, comm);
    struct call call;
    int ranks = is_accelerated(REDUCE_SCATTER) ? place_in(comm).ranks : 0;
    struct buffer part = { to, MPI(same_count)(counts, ranks), type };
    if (decides_reduction(&call, REDUCE_SCATTER, comm, from, &part, op, 0))
        return result_of(&call, carry_reduction(&call, from == MPI_IN_PLACE ? to : from, to));
    return BY_MPI(call, PMPI(Reduce_scatter)(from, to, counts, type, op, comm));
}

int MPI(Bcast)(void *buffer, COUNT count, MPI_Datatype type, int root, MPI_Comm comm)
{
    if (is_for_mpi(BCAST, comm, BUFFER(buffer, count, type), BUFFER(buffer, count, type), MPI_OP_NULL, root))
        return PMPI(Bcast)(buffer, count, type, root, comm);
    CHECK_COMM(BCAST, comm);
    struct call call;
    struct buffer values = { buffer, count, type };
    if (decides_move(&call, BCAST, comm, NULL, &values, root))
        return move_broadcast(&call, values);
    return BY_MPI(call, PMPI(Bcast)(buffer, count, type, root, comm));
}

/* Moves between one block of each rank and blocks of all ranks on the root. */
#define PART(name, function, of_part, of_whole, moved)                                                         \
    int MPI(name)(const void *from, COUNT from_count, MPI_Datatype from_type, void *to, COUNT to_count,        \
                  MPI_Datatype to_type, int root, MPI_Comm comm)                                               \
    {                                                                                                          \
        if (is_part_for_mpi(function, comm, BUFFER of_part, BUFFER of_whole, root))                            \
            return PMPI(name)(from, from_count, from_type, to, to_count, to_type, root, comm);                 \
        CHECK_COMM(function, comm);                                                                            \
        struct call call;                                                                                      \
        struct buffer part = BUFFER of_part, whole = BUFFER of_whole;                                          \
        if (decides_part(&call, function, comm, &part, &whole, root))                                          \
            return moved;                                                                                      \
        return BY_MPI(call, PMPI(name)(from, from_count, from_type, to, to_count, to_type, root, comm));       \
    }

PART(Gather, GATHER, (from, from_count, from_type), (to, to_count, to_type), move_gather(&call, part, whole))
PART(Scatter, SCATTER, (to, to_count, to_type), (from, from_count, from_type), move_scatter(&call, whole, part))

/* Returns the block of each rank, in elements of its type; NULL if there are none. */
static struct block *MPI(blocks)(const COUNT *counts, const DISPLACEMENT *displacements, int ranks)
{
    if (ranks == 0 || counts == NULL || displacements == NULL)
        return NULL;
    struct block *blocks = allocated(sizeof(*blocks) * (size_t)ranks);
    for (int rank = 0; rank < ranks; rank++)
        blocks[rank] = (struct block){ displacements[rank], counts[rank] };
    return blocks;
}

/* Returns whether MPI carries out an all-gather of blocks, whose largest block has the class of the last call's. */
static bool MPI(are_for_mpi)(MPI_Comm comm, struct buffer from, struct buffer to, const COUNT *counts, const DISPLACEMENT *displacements)
{
    const struct repeatable *same = &last_calls[ALLGATHERV];
    if (!is_on(same, comm) || counts == NULL || displacements == NULL)
        return false;
    MPI_Count all = 0, own = counts[same->rank];
    for (int rank = 0; rank < same->ranks; rank++) {
        if (counts[rank] < 0)
            return false;
        all += counts[rank];
        if (to.count < counts[rank])
            to.count = counts[rank];
    }
    bool is_own = from.count == own && from.address != (char *)to.address + displacements[same->rank] * same->extent_bytes;
    if (to.count * same->ranks > 2 * all || !(is_own || from.address == MPI_IN_PLACE))
        return false;
    from.count = to.count;
    return is_for_mpi(ALLGATHERV, comm, from, to, MPI_OP_NULL, 0);
}

int MPI(Allgatherv)(const void *from, COUNT from_count, MPI_Datatype from_type, void *to, const COUNT counts[],
                    const DISPLACEMENT displacements[], MPI_Datatype to_type, MPI_Comm comm)
{
    bool is_left = is_left_to_mpi(ALLGATHERV, settings.functions);
    if (is_left || MPI(are_for_mpi)(comm, BUFFER(from, from_count, from_type), BUFFER(to, 0, to_type), counts, displacements))
        return PMPI(Allgatherv)(from, from_count, from_type, to, counts, displacements, to_type, comm);
    CHECK_COMM(ALLGATHERV, comm);
    struct call call;
    int ranks = is_accelerated(ALLGATHERV) ? place_in(comm).ranks : 0, code;
    struct buffer given = BUFFER(from, from_count, from_type);
    struct blocks gotten = { to, to_type, MPI(blocks)(counts, displacements, ranks) };
    if (decides_blocks(&call, comm, given, &gotten))
        code = move_all_gather_v(&call, given, &gotten);
    else
        code = BY_MPI(call, PMPI(Allgatherv)(from, from_count, from_type, to, counts, displacements, to_type, comm));
    free(gotten.of_rank);
    return code;
}

#undef REDUCTION
#undef MOVE
#undef PART
