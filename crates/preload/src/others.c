/* The collectives that always go to MPI, counted for the report: a program whose time is spent in them gains nothing here. */

#include "accelerate.h"

static inline void note(const char *function)
{
    if (report_is_wanted)
        report_other(function);
}

#define COUNT int
#define DISPLACEMENT int
#define MPI(function) MPI_##function
#define PMPI(function) PMPI_##function
#include "others.h"

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
#include "others.h"
#endif
