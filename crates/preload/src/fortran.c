/* Fortran functions that do not call the C functions by their public names: all of Open MPI's, and the functions without a buffer in MPICH's
 * module mpi_f08. MPI's standard ABI has no Fortran functions; Fortran bindings call its C functions. */

#include "accelerate.h"

#ifdef OPEN_MPI

#include <stdlib.h>

/* Constants of Fortran are the addresses of these variables. */
extern int mpi_fortran_in_place_, mpi_fortran_bottom_;

static void *address(void *buffer)
{
    if (buffer == &mpi_fortran_in_place_)
        return MPI_IN_PLACE;
    return buffer == &mpi_fortran_bottom_ ? MPI_BOTTOM : buffer;
}

/* `name` as compilers of Fortran write it, and as the module mpi_f08 does. */
#define ENTRY(name, parameters)                                                  \
    void mpi_##name##_ parameters;                                               \
    void mpi_##name parameters __attribute__((alias("mpi_" #name "_")));         \
    void mpi_##name##__ parameters __attribute__((alias("mpi_" #name "_")));     \
    void ompi_##name##_f parameters __attribute__((alias("mpi_" #name "_")));    \
    void mpi_##name##_ parameters

#define COMM MPI_Comm_f2c(*comm)
#define TYPE(type) MPI_Type_f2c(*type)

ENTRY(init, (MPI_Fint * error))
{
    *error = MPI_Init(NULL, NULL);
}

ENTRY(init_thread, (const MPI_Fint *required, MPI_Fint *provided, MPI_Fint *error))
{
    int level;
    *error = MPI_Init_thread(NULL, NULL, *required, &level);
    *provided = level;
}

/* A collective, whose last argument in C is the communicator. */
#define FUNCTION(name, function, parameters, arguments)                           \
    ENTRY(name, (UNPACKED parameters, const MPI_Fint *comm, MPI_Fint *error))     \
    {                                                                             \
        *error = MPI_##function(UNPACKED arguments, COMM);                        \
    }

/* The parameters of a reduction and of a move, and their values in C. A reduce-scatter has one count for each rank. */
#define REDUCING void *from, void *to, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *op
#define REDUCED(count) address(from), address(to), count, TYPE(type), MPI_Op_f2c(*op)
#define GIVING void *from, const MPI_Fint *from_count, const MPI_Fint *from_type
#define GIVEN address(from), *from_count, TYPE(from_type)
#define MOVING GIVING, void *to, const MPI_Fint *to_count, const MPI_Fint *to_type
#define MOVED GIVEN, address(to), *to_count, TYPE(to_type)
#define FROM_BLOCKS void *from, const MPI_Fint *from_counts, const MPI_Fint *from_starts, const MPI_Fint *from_type
#define GIVEN_BLOCKS address(from), from_counts, from_starts, TYPE(from_type)
#define TO_BLOCKS void *to, const MPI_Fint *to_counts, const MPI_Fint *to_starts, const MPI_Fint *to_type
#define GOTTEN_BLOCKS address(to), to_counts, to_starts, TYPE(to_type)

FUNCTION(allreduce, Allreduce, (REDUCING), (REDUCED(*count)))
FUNCTION(reduce, Reduce, (REDUCING, const MPI_Fint *root), (REDUCED(*count), *root))
FUNCTION(bcast, Bcast, (void *buffer, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *root),
         (address(buffer), *count, TYPE(type), *root))
FUNCTION(reduce_scatter_block, Reduce_scatter_block, (REDUCING), (REDUCED(*count)))
FUNCTION(reduce_scatter, Reduce_scatter, (REDUCING), (REDUCED(count)))
FUNCTION(allgather, Allgather, (MOVING), (MOVED))
FUNCTION(allgatherv, Allgatherv, (GIVING, TO_BLOCKS), (GIVEN, GOTTEN_BLOCKS))
FUNCTION(alltoall, Alltoall, (MOVING), (MOVED))
FUNCTION(alltoallv, Alltoallv, (FROM_BLOCKS, TO_BLOCKS), (GIVEN_BLOCKS, GOTTEN_BLOCKS))
FUNCTION(gather, Gather, (MOVING, const MPI_Fint *root), (MOVED, *root))
FUNCTION(gatherv, Gatherv, (GIVING, TO_BLOCKS, const MPI_Fint *root), (GIVEN, GOTTEN_BLOCKS, *root))
FUNCTION(scatter, Scatter, (MOVING, const MPI_Fint *root), (MOVED, *root))
FUNCTION(scatterv, Scatterv,
         (FROM_BLOCKS, void *to, const MPI_Fint *to_count, const MPI_Fint *to_type, const MPI_Fint *root),
         (GIVEN_BLOCKS, address(to), *to_count, TYPE(to_type), *root))
FUNCTION(scan, Scan, (REDUCING), (REDUCED(*count)))
FUNCTION(exscan, Exscan, (REDUCING), (REDUCED(*count)))

ENTRY(barrier, (const MPI_Fint *comm, MPI_Fint *error))
{
    *error = MPI_Barrier(COMM);
}

#elif !defined(MPI_ABI_VERSION)

/* The error argument is optional in this module. */
static void report(MPI_Fint *error, int code)
{
    if (error != NULL)
        *error = code;
}

void mpi_init_f08_(MPI_Fint *error);
void mpi_init_f08_(MPI_Fint *error)
{
    report(error, MPI_Init(NULL, NULL));
}

void mpi_init_thread_f08_(const MPI_Fint *required, MPI_Fint *provided, MPI_Fint *error);
void mpi_init_thread_f08_(const MPI_Fint *required, MPI_Fint *provided, MPI_Fint *error)
{
    int level;
    report(error, MPI_Init_thread(NULL, NULL, *required, &level));
    *provided = level;
}

void mpi_barrier_f08_(const MPI_Fint *comm, MPI_Fint *error);
void mpi_barrier_f08_(const MPI_Fint *comm, MPI_Fint *error)
{
    report(error, MPI_Barrier(MPI_Comm_f2c(*comm)));
}

#endif
