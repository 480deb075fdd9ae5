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
#define OP MPI_Op_f2c(*op)

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

ENTRY(allreduce, (void *from, void *to, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *op, const MPI_Fint *comm,
                  MPI_Fint *error))
{
    *error = MPI_Allreduce(address(from), address(to), *count, TYPE(type), OP, COMM);
}

ENTRY(reduce, (void *from, void *to, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *op, const MPI_Fint *root,
               const MPI_Fint *comm, MPI_Fint *error))
{
    *error = MPI_Reduce(address(from), address(to), *count, TYPE(type), OP, *root, COMM);
}

ENTRY(bcast, (void *buffer, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *root, const MPI_Fint *comm,
              MPI_Fint *error))
{
    *error = MPI_Bcast(address(buffer), *count, TYPE(type), *root, COMM);
}

ENTRY(reduce_scatter_block, (void *from, void *to, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *op,
                             const MPI_Fint *comm, MPI_Fint *error))
{
    *error = MPI_Reduce_scatter_block(address(from), address(to), *count, TYPE(type), OP, COMM);
}

ENTRY(reduce_scatter, (void *from, void *to, const MPI_Fint *counts, const MPI_Fint *type, const MPI_Fint *op, const MPI_Fint *comm,
                       MPI_Fint *error))
{
    *error = MPI_Reduce_scatter(address(from), address(to), counts, TYPE(type), OP, COMM);
}

ENTRY(allgather, (void *from, const MPI_Fint *from_count, const MPI_Fint *from_type, void *to, const MPI_Fint *to_count,
                  const MPI_Fint *to_type, const MPI_Fint *comm, MPI_Fint *error))
{
    *error = MPI_Allgather(address(from), *from_count, TYPE(from_type), address(to), *to_count, TYPE(to_type), COMM);
}

ENTRY(allgatherv, (void *from, const MPI_Fint *from_count, const MPI_Fint *from_type, void *to, const MPI_Fint *counts,
                   const MPI_Fint *starts, const MPI_Fint *to_type, const MPI_Fint *comm, MPI_Fint *error))
{
    *error = MPI_Allgatherv(address(from), *from_count, TYPE(from_type), address(to), counts, starts, TYPE(to_type), COMM);
}

ENTRY(alltoall, (void *from, const MPI_Fint *from_count, const MPI_Fint *from_type, void *to, const MPI_Fint *to_count,
                 const MPI_Fint *to_type, const MPI_Fint *comm, MPI_Fint *error))
{
    *error = MPI_Alltoall(address(from), *from_count, TYPE(from_type), address(to), *to_count, TYPE(to_type), COMM);
}

ENTRY(gather, (void *from, const MPI_Fint *from_count, const MPI_Fint *from_type, void *to, const MPI_Fint *to_count,
               const MPI_Fint *to_type, const MPI_Fint *root, const MPI_Fint *comm, MPI_Fint *error))
{
    *error = MPI_Gather(address(from), *from_count, TYPE(from_type), address(to), *to_count, TYPE(to_type), *root, COMM);
}

ENTRY(scatter, (void *from, const MPI_Fint *from_count, const MPI_Fint *from_type, void *to, const MPI_Fint *to_count,
                const MPI_Fint *to_type, const MPI_Fint *root, const MPI_Fint *comm, MPI_Fint *error))
{
    *error = MPI_Scatter(address(from), *from_count, TYPE(from_type), address(to), *to_count, TYPE(to_type), *root, COMM);
}

ENTRY(scan, (void *from, void *to, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *op, const MPI_Fint *comm,
             MPI_Fint *error))
{
    *error = MPI_Scan(address(from), address(to), *count, TYPE(type), OP, COMM);
}

ENTRY(exscan, (void *from, void *to, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *op, const MPI_Fint *comm,
               MPI_Fint *error))
{
    *error = MPI_Exscan(address(from), address(to), *count, TYPE(type), OP, COMM);
}

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
