#include <mpi.h>

#define TEXT(value) #value
#define TEXT_OF(macro) TEXT(macro)

void *unisono_mpi_in_place(void) { return MPI_IN_PLACE; }

/* The MPI whose header this was compiled with, in the format of the library's version text. */
const char *unisono_mpi_of_header(void) {
#if defined(OMPI_MAJOR_VERSION)
  return "Open MPI v" TEXT_OF(OMPI_MAJOR_VERSION) "." TEXT_OF(OMPI_MINOR_VERSION) "." TEXT_OF(OMPI_RELEASE_VERSION);
#elif defined(I_MPI_VERSION)
  return "Intel(R) MPI Library " I_MPI_VERSION;
#elif defined(MVAPICH2_VERSION)
  return "MVAPICH2 " MVAPICH2_VERSION;
#elif defined(MPICH_VERSION)
  return "MPICH " MPICH_VERSION;
#else
  return "";
#endif
}
