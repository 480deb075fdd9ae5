/* MPI's progress. A rank that waits in an MPI call makes progress on its pending messages and one-sided accesses. A rank that waits in
 * a call of Unisono must too. A probe for a message that never arrives lets MPI make progress. */

#include "accelerate.h"

/* The communicator of the probe, on which no message is sent. */
static MPI_Comm quiet = MPI_COMM_NULL;

static const char *look(void)
{
    int found;
    int code = PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, quiet, &found, MPI_STATUS_IGNORE);
    return code == MPI_SUCCESS ? NULL : "MPI_Iprobe failed";
}

void progress(void)
{
    (void)look();
}

void progress_begin(void)
{
    PMPI_Comm_dup(MPI_COMM_WORLD, &quiet);
}

void progress_of_this_thread(void)
{
    unisono_while_waiting(look);
}

void progress_end(void)
{
    unisono_while_waiting(NULL);
    PMPI_Comm_free(&quiet);
}
