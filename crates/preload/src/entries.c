/* The functions of MPI that this library intercepts. */

#include "repeat.h"

#include <stdlib.h>
#include <string.h>

int MPI_Init(int *argc, char ***argv)
{
    bind_mpi();
    int code = PMPI_Init(argc, argv);
    if (code == MPI_SUCCESS)
        worlds_begin();
    return code;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    bind_mpi();
    int code = PMPI_Init_thread(argc, argv, required, provided);
    if (code == MPI_SUCCESS)
        worlds_begin();
    return code;
}

#if MPI_VERSION >= 4
/* MPI carries out the calls of a program that has only sessions. */
int MPI_Session_init(MPI_Info info, MPI_Errhandler handler, MPI_Session *session)
{
    bind_mpi();
    return PMPI_Session_init(info, handler, session);
}
#endif

/* The result of a call that Unisono does not carry out: MPI does, if it is valid. */
#define BY_MPI(call, code) ((call).error == MPI_SUCCESS ? by_mpi(&(call), code) : refused(&(call)))

static int by_mpi(const struct call *call, int code)
{
    call_ended(call, code != MPI_SUCCESS);
    return code;
}

/* Ends a call on a communicator that does not exist, so that the error handler is called once. */
#define CHECK_COMM(function, comm)                                                    \
    do {                                                                              \
        int error = is_accelerated(function) ? error_of_comm(comm) : MPI_SUCCESS;     \
        if (error != MPI_SUCCESS)                                                     \
            return error;                                                             \
    } while (0)

int MPI_Barrier(MPI_Comm comm)
{
    if (is_left_to_mpi(BARRIER, settings.named))
        return PMPI_Barrier(comm);
    CHECK_COMM(BARRIER, comm);
    struct call call;
    if (decides_barrier(&call, comm))
        return result_of(&call, carry_barrier(&call));
    return BY_MPI(call, PMPI_Barrier(comm));
}

static inline void note(const char *function)
{
    if (report_is_wanted)
        report_other(function);
}

/* Returns no values for any rank. Without ranks, the blocks are missing. */
static struct blocks no_blocks(int ranks)
{
    struct blocks blocks = { NULL, MPI_BYTE, ranks == 0 ? NULL : allocated(sizeof(*blocks.of_rank) * (size_t)ranks) };
    if (ranks != 0)
        memset(blocks.of_rank, 0, sizeof(*blocks.of_rank) * (size_t)ranks);
    return blocks;
}

/* Returns whether the root of a call on this communicator has blocks. An intercommunicator, which counts as one rank, may have none. */
static bool has_blocks(MPI_Comm comm, int ranks)
{
    int is_inter = 0;
    if (ranks == 1)
        PMPI_Comm_test_inter(comm, &is_inter);
    return !is_inter;
}

/* Returns the blocks of a buffer that has one, for the root, which may leave its own block in place in `whole`. */
static struct blocks block_of_root(struct buffer part, struct blocks *whole, int root, struct place place)
{
    struct blocks blocks = no_blocks(place.ranks);
    if (root < 0 || root >= place.ranks)
        return blocks;
    if (part.address == MPI_IN_PLACE && place.rank == root) {
        if (whole->of_rank != NULL)
            whole->of_rank[root].count = 0;
        return blocks;
    }
    blocks.address = part.address;
    blocks.type = part.type;
    blocks.of_rank[root].count = part.count;
    return blocks;
}

/* The other collectives, with counts of either kind. */
#define COUNT int
#define DISPLACEMENT int
#define MPI(function) MPI_##function
#define PMPI(function) PMPI_##function
#include "entries.h"
#include "others.h"
#include "exchanges.h"

STARTED(Ibarrier, Barrier, (MPI_Comm comm), (comm))

#if MPI_VERSION >= 4
#undef COUNT
#undef DISPLACEMENT
#undef MPI
#undef PMPI
#define COUNT MPI_Count
#define DISPLACEMENT MPI_Aint
#define MPI(function) MPI_##function##_c
#define PMPI(function) PMPI_##function##_c
#include "entries.h"
#include "others.h"
#include "exchanges.h"
#endif
