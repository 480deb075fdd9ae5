/* The collectives that always go to MPI. They are counted for the report, since a program that spends its time in them does not become
 * faster. entries.c includes this file for both kinds of counts: int, and MPI_Count in functions that end with _c. */

#define OTHER(name, parameters, arguments) \
    int MPI(name) parameters               \
    {                                      \
        note(#name);                       \
        return PMPI(name) arguments;       \
    }

#if MPI_VERSION >= 4
#define PERSISTENT(name, parameters, arguments) OTHER(name, parameters, arguments)
#else
#define PERSISTENT(name, parameters, arguments)
#endif

/* The non-blocking and the persistent form of MPI_<name>. */
#define STARTED(non_blocking, name, parameters, arguments)                                                           \
    OTHER(non_blocking, (UNPACKED parameters, MPI_Request * request), (UNPACKED arguments, request))                \
    PERSISTENT(name##_init, (UNPACKED parameters, MPI_Info info, MPI_Request * request), (UNPACKED arguments, info, request))

/* The parameters of a reduction, of a move, and of a move of blocks, with their names. */
#define REDUCING const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op
#define REDUCED from, to, count, type, op
#define MOVING const void *from, COUNT from_count, MPI_Datatype from_type, void *to, COUNT to_count, MPI_Datatype to_type
#define MOVED from, from_count, from_type, to, to_count, to_type
#define FROM_BLOCKS const void *from, const COUNT from_counts[], const DISPLACEMENT from_starts[]
#define TO_BLOCKS void *to, const COUNT to_counts[], const DISPLACEMENT to_starts[]
#define EXCHANGE FROM_BLOCKS, MPI_Datatype from_type, TO_BLOCKS, MPI_Datatype to_type
#define EXCHANGE_OF_TYPES FROM_BLOCKS, const MPI_Datatype from_type[], TO_BLOCKS, const MPI_Datatype to_type[]
#define EXCHANGE_BETWEEN_NEIGHBORS                                                                             \
    const void *from, const COUNT from_counts[], const MPI_Aint from_starts[], const MPI_Datatype from_type[], \
        void *to, const COUNT to_counts[], const MPI_Aint to_starts[], const MPI_Datatype to_type[]
#define EXCHANGED from, from_counts, from_starts, from_type, to, to_counts, to_starts, to_type
#define GATHERING const void *from, COUNT count, MPI_Datatype from_type, TO_BLOCKS, MPI_Datatype to_type
#define GATHERED from, count, from_type, to, to_counts, to_starts, to_type
#define SCATTERING FROM_BLOCKS, MPI_Datatype from_type, void *to, COUNT count, MPI_Datatype to_type
#define SCATTERED from, from_counts, from_starts, from_type, to, count, to_type

OTHER(Alltoallw, (EXCHANGE_OF_TYPES, MPI_Comm comm), (EXCHANGED, comm))

STARTED(Iallreduce, Allreduce, (REDUCING, MPI_Comm comm), (REDUCED, comm))
STARTED(Ireduce, Reduce, (REDUCING, int root, MPI_Comm comm), (REDUCED, root, comm))
STARTED(Ireduce_scatter_block, Reduce_scatter_block, (REDUCING, MPI_Comm comm), (REDUCED, comm))
STARTED(Ireduce_scatter, Reduce_scatter, (const void *from, void *to, const COUNT counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm),
        (from, to, counts, type, op, comm))
STARTED(Iscan, Scan, (REDUCING, MPI_Comm comm), (REDUCED, comm))
STARTED(Iexscan, Exscan, (REDUCING, MPI_Comm comm), (REDUCED, comm))
STARTED(Ibcast, Bcast, (void *buffer, COUNT count, MPI_Datatype type, int root, MPI_Comm comm), (buffer, count, type, root, comm))
STARTED(Iallgather, Allgather, (MOVING, MPI_Comm comm), (MOVED, comm))
STARTED(Iallgatherv, Allgatherv, (GATHERING, MPI_Comm comm), (GATHERED, comm))
STARTED(Ialltoall, Alltoall, (MOVING, MPI_Comm comm), (MOVED, comm))
STARTED(Ialltoallv, Alltoallv, (EXCHANGE, MPI_Comm comm), (EXCHANGED, comm))
STARTED(Ialltoallw, Alltoallw, (EXCHANGE_OF_TYPES, MPI_Comm comm), (EXCHANGED, comm))
STARTED(Igather, Gather, (MOVING, int root, MPI_Comm comm), (MOVED, root, comm))
STARTED(Igatherv, Gatherv, (GATHERING, int root, MPI_Comm comm), (GATHERED, root, comm))
STARTED(Iscatter, Scatter, (MOVING, int root, MPI_Comm comm), (MOVED, root, comm))
STARTED(Iscatterv, Scatterv, (SCATTERING, int root, MPI_Comm comm), (SCATTERED, root, comm))

/* All forms of MPI_Neighbor_<name>. */
#define BETWEEN_NEIGHBORS(name, parameters, arguments) \
    OTHER(Neighbor_##name, parameters, arguments)      \
    STARTED(Ineighbor_##name, Neighbor_##name, parameters, arguments)

BETWEEN_NEIGHBORS(allgather, (MOVING, MPI_Comm comm), (MOVED, comm))
BETWEEN_NEIGHBORS(allgatherv, (GATHERING, MPI_Comm comm), (GATHERED, comm))
BETWEEN_NEIGHBORS(alltoall, (MOVING, MPI_Comm comm), (MOVED, comm))
BETWEEN_NEIGHBORS(alltoallv, (EXCHANGE, MPI_Comm comm), (EXCHANGED, comm))
BETWEEN_NEIGHBORS(alltoallw, (EXCHANGE_BETWEEN_NEIGHBORS, MPI_Comm comm), (EXCHANGED, comm))
