/* Errors of Unisono as errors of MPI. */

#include "accelerate.h"

#include <stdio.h>
#include <stdlib.h>

void *allocated(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL) {
        fprintf(stderr, "unisono: there is no memory for %zu bytes\n", bytes);
        PMPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

/* An error class with this text, which the program gets by MPI_Error_string: one for all errors of Unisono, with the last one's. */
static int class_of(const char *text)
{
    static int class = MPI_SUCCESS;
    if (class == MPI_SUCCESS && PMPI_Add_error_class(&class) != MPI_SUCCESS)
        return MPI_ERR_OTHER;
    char cut[MPI_MAX_ERROR_STRING];
    snprintf(cut, sizeof(cut), "unisono: %s", text);
    PMPI_Add_error_string(class, cut);
    return class;
}

int result_of(const struct call *call, int code)
{
    if (report_is_wanted)
        report_call(call);
    if (code == UNISONO_OK)
        return MPI_SUCCESS;
    int error = code == UNISONO_ERROR_MEMORY ? MPI_ERR_NO_MEM : class_of(unisono_last_error());
    /* The other ranks have begun the call, and wait for this one. */
    if (!unisono_is_fatal(code))
        unisono_fail(call->world->unisono, unisono_last_error());
    PMPI_Comm_call_errhandler(call->comm, error);
    return error;
}
