/* The functions in which each pair of ranks exchanges a number of values that the others do not know. entries.c includes this file once for each
 * kind of count, after others.h, which has the names of the parameters. */

/* Returns whether a buffer is like that of the last call of its function: of one block, or if it has counts, of one for each rank. */
static inline bool MPI(is_like_last)(MPI_Datatype last, struct buffer buffer, bool has_counts, const COUNT *counts, const DISPLACEMENT *starts,
                              int ranks)
{
    bool is_like = buffer.type == last && buffer.address != NULL && buffer.address != MPI_IN_PLACE && buffer.count >= 0 &&
                   (!has_counts || (counts != NULL && starts != NULL));
    for (int rank = 0; is_like && has_counts && rank < ranks; rank++)
        is_like = counts[rank] >= 0;
    return is_like;
}

/* Returns whether MPI carries out an exchange, without a report, which needs no further examination. */
static inline bool MPI(is_exchange_for_mpi)(enum function function, MPI_Comm comm, int root, struct buffer from, const COUNT *from_counts,
                                     const DISPLACEMENT *from_starts, struct buffer to, const COUNT *to_counts,
                                     const DISPLACEMENT *to_starts)
{
    const struct repeatable *same = &last_calls[function];
    if (is_left_to_mpi(function, settings.functions))
        return true;
    if (report_is_wanted || !is_on(same, comm) || root < 0 || root >= same->ranks)
        return false;
    bool has_both = function == ALLTOALLV || same->rank == root, gives_blocks = function != GATHERV, gets_blocks = function != SCATTERV;
    if ((has_both || !gives_blocks) &&
        !MPI(is_like_last)(same->call.moved[1], from, gives_blocks, from_counts, from_starts, same->ranks))
        return false;
    if ((has_both || !gets_blocks) && !MPI(is_like_last)(same->call.moved[0], to, gets_blocks, to_counts, to_starts, same->ranks))
        return false;
    if (has_both) {
        /* The blocks that this rank exchanges with itself may be the same memory. */
        const char *given = from.address, *gotten = to.address;
        MPI_Aint given_at = gives_blocks ? from_starts[same->rank] : 0, gotten_at = gets_blocks ? to_starts[same->rank] : 0;
        if (given == gotten || given + given_at * same->extent_bytes == gotten + gotten_at * same->extent_bytes)
            return false;
    }
    return has_chosen_mpi(same);
}

int MPI(Alltoallv)(EXCHANGE, MPI_Comm comm)
{
    if (MPI(is_exchange_for_mpi)(ALLTOALLV, comm, 0, BUFFER(from, 0, from_type), from_counts, from_starts, BUFFER(to, 0, to_type),
                                 to_counts, to_starts))
        return PMPI(Alltoallv)(EXCHANGED, comm);
    CHECK_COMM(ALLTOALLV, comm);
    struct call call;
    int ranks = is_accelerated(ALLTOALLV) ? place_in(comm).ranks : 0, code;
    struct block *own = from == MPI_IN_PLACE ? NULL : MPI(blocks)(from_counts, from_starts, ranks);
    struct blocks gotten = { to, to_type, MPI(blocks)(to_counts, to_starts, ranks) }, given = { (void *)from, from_type, own };
    if (from == MPI_IN_PLACE)
        given = (struct blocks){ MPI_IN_PLACE, to_type, gotten.of_rank };
    if (decides_exchange(&call, ALLTOALLV, comm, &given, &gotten, from_counts == to_counts, 0))
        code = move_exchange(&call, &given, &gotten);
    else
        code = BY_MPI(call, PMPI(Alltoallv)(EXCHANGED, comm));
    free(own);
    free(gotten.of_rank);
    return code;
}

/* Moves between a block of each rank, `part`, and blocks of all ranks on the root, `whole`. `given` and `gotten` name them. */
#define PART_OF_BLOCKS(name, function, parameters, arguments, whole_buffer, counts, starts, part_buffer, given, gotten)                  \
    int MPI(name)(UNPACKED parameters, int root, MPI_Comm comm)                                                                           \
    {                                                                                                                                     \
        struct buffer of_whole = BUFFER whole_buffer, of_part = BUFFER part_buffer;                                                       \
        if (MPI(is_exchange_for_mpi)(function, comm, root, of_##given, counts, starts, of_##gotten, counts, starts))                      \
            return PMPI(name)(UNPACKED arguments, root, comm);                                                                            \
        CHECK_COMM(function, comm);                                                                                                       \
        struct call call;                                                                                                                 \
        struct place place = is_accelerated(function) ? place_in(comm) : (struct place){ 0, 0 };                                          \
        bool is_root = place.rank == root && has_blocks(comm, place.ranks);                                                               \
        struct blocks whole = { of_whole.address, of_whole.type, is_root ? MPI(blocks)(counts, starts, place.ranks) : NULL };             \
        if (!is_root)                                                                                                                     \
            whole = no_blocks(place.ranks);                                                                                               \
        struct blocks part = block_of_root(of_part, &whole, root, place);                                                                 \
        int code;                                                                                                                         \
        if (decides_exchange(&call, function, comm, &given, &gotten, false, root))                                                        \
            code = move_exchange(&call, &given, &gotten);                                                                                 \
        else                                                                                                                              \
            code = BY_MPI(call, PMPI(name)(UNPACKED arguments, root, comm));                                                              \
        free(whole.of_rank);                                                                                                              \
        free(part.of_rank);                                                                                                               \
        return code;                                                                                                                      \
    }

PART_OF_BLOCKS(Gatherv, GATHERV, (GATHERING), (GATHERED), (to, 0, to_type), to_counts, to_starts, (from, count, from_type), part, whole)
PART_OF_BLOCKS(Scatterv, SCATTERV, (SCATTERING), (SCATTERED), (from, 0, from_type), from_counts, from_starts, (to, count, to_type), whole,
               part)

#undef PART_OF_BLOCKS
