#include <mpi.h>

void *unisono_mpi_in_place(void) { return MPI_IN_PLACE; }
