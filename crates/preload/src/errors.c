/* Errors of Unisono as errors of MPI. */

#include "accelerate.h"

#include <ctype.h>
#include <pthread.h>
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

MPI_Comm quiet_comm;

void quiet_comm_begin(void)
{
    /* Unlike a duplicate, it has no attributes of the program. */
    PMPI_Comm_split(MPI_COMM_SELF, 0, 0, &quiet_comm);
    PMPI_Comm_set_errhandler(quiet_comm, MPI_ERRORS_RETURN);
}

/* Returns an error class with this text, which MPI_Error_string returns. All errors of Unisono share it, with the text of the last one. */
static int class_of(const char *text)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int class = MPI_SUCCESS;
    char cut[MPI_MAX_ERROR_STRING];
    snprintf(cut, sizeof(cut), "unisono: %s", text);
    /* Calls of several threads may fail at once. */
    pthread_mutex_lock(&lock);
    bool is_there = class != MPI_SUCCESS || PMPI_Add_error_class(&class) == MPI_SUCCESS;
    if (is_there)
        PMPI_Add_error_string(class, cut);
    pthread_mutex_unlock(&lock);
    return is_there ? class : MPI_ERR_OTHER;
}

bool is_refused_by_mpi(const struct call *call, int error)
{
    if (error == MPI_ERR_ROOT)
        return true;
#ifdef OPEN_MPI
    /* Open MPI checks all types only in these functions. It does not check the counts that the root of MPI_Scatter sends, and that MPI_Allgatherv
     * receives. */
    if (error == MPI_ERR_TYPE)
        return call->function == BCAST || call->function == ALLTOALL || call->function == ALLTOALLV;
    return error == MPI_ERR_COUNT && call->function != SCATTER && call->function != ALLGATHERV;
#else
    /* MPICH does not check the counts of most reductions. */
    return error == MPI_ERR_TYPE || (error == MPI_ERR_COUNT && call->op == NONE);
#endif
}

/* The message of a fatal error handler names MPI_Comm_call_errhandler instead of the program's function, so the function is printed before. */
void handle_error(const struct call *call, int error, const char *text)
{
    MPI_Errhandler handler;
    const char *name = FUNCTION_NAMES[call->function];
    PMPI_Comm_get_errhandler(call->comm, &handler);
    if (handler == MPI_ERRORS_ARE_FATAL)
        fprintf(stderr, "unisono: MPI_%c%s: %s\n", toupper(*name), name + 1, text);
    PMPI_Errhandler_free(&handler);
    PMPI_Comm_call_errhandler(call->comm, error);
}

/* Calls the error handler for an error that MPI has a text for. */
static void handle_class(const struct call *call, int error)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    PMPI_Error_string(error, text, &length);
    handle_error(call, error, text);
}

int refused(const struct call *call)
{
    call_ended(call, true);
    handle_class(call, call->error);
    return call->error;
}

int result_of(const struct call *call, int code)
{
    call_ended(call, code != UNISONO_OK);
    if (code == UNISONO_OK) {
        if (call->error != MPI_SUCCESS)
            handle_class(call, call->error);
        return call->error;
    }
    int error = code == UNISONO_ERROR_MEMORY ? MPI_ERR_NO_MEM : class_of(unisono_last_error());
    /* The other ranks have started the call, and wait for this one. */
    if (!unisono_is_fatal(code))
        unisono_fail(call->world->unisono, unisono_last_error());
    handle_error(call, error, unisono_last_error());
    return error;
}
