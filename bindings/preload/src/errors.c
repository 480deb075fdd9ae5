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

/* An MPI error code with this text, of the class MPI_ERR_OTHER. */
static int code_of(const char *text)
{
    static int code = MPI_SUCCESS;
    if (code == MPI_SUCCESS && PMPI_Add_error_code(MPI_ERR_OTHER, &code) != MPI_SUCCESS)
        return MPI_ERR_OTHER;
    char cut[MPI_MAX_ERROR_STRING];
    snprintf(cut, sizeof(cut), "unisono: %s", text);
    PMPI_Add_error_string(code, cut);
    return code;
}

int result_of(const struct call *call, int code)
{
    if (report_is_wanted)
        report_call(call);
    if (code == UNISONO_OK)
        return MPI_SUCCESS;
    int error = code == UNISONO_ERROR_MEMORY ? MPI_ERR_NO_MEM : code_of(unisono_last_error());
    /* The other ranks have begun the call, and wait for this one. */
    if (!unisono_is_fatal(code))
        unisono_fail(call->world->unisono, unisono_last_error());
    PMPI_Comm_call_errhandler(call->comm, error);
    return error;
}
