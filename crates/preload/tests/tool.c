/* A tool that intercepts MPI, preloaded before or after the library: the start of MPI, or with COLLECTIVE only all-reduces. */

#include <mpi.h>

#ifdef COLLECTIVE
int MPI_Allreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    return PMPI_Allreduce(from, to, count, type, op, comm);
}
#else
int MPI_Init(int *argc, char ***argv)
{
    return PMPI_Init(argc, argv);
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    return PMPI_Init_thread(argc, argv, required, provided);
}
#endif
