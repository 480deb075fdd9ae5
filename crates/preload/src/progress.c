/* MPI's progress. A rank that waits in an MPI call makes progress on its pending messages and one-sided accesses. A rank that waits in
 * a call of Unisono must too. A probe for a message that never arrives lets MPI make progress. */

#include "accelerate.h"

/* No message that a probe could find is sent on it. */
MPI_Comm own_world = MPI_COMM_NULL;

void progress(void)
{
    int found;
    /* It fails once a process of a fault-tolerant MPI has failed, but still makes progress. */
    PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, own_world, &found, MPI_STATUS_IGNORE);
}

static const char *look(void)
{
    progress();
    return NULL;
}

void progress_begin(void)
{
    PMPI_Comm_dup(MPI_COMM_WORLD, &own_world);
    PMPI_Comm_set_errhandler(own_world, MPI_ERRORS_RETURN);
}

void progress_of_this_thread(void)
{
    unisono_while_waiting(look);
}

void progress_end(void)
{
    unisono_while_waiting(NULL);
    PMPI_Comm_free(&own_world);
}
