/* The MPI of the program. This library is compiled for the handles of one MPI: under another, no function may pass them on. */

#include "accelerate.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef OPEN_MPI
#define IS_FOR_OPEN_MPI true
static const char OWN[] = "libunisono-preload-openmpi.so", OTHER[] = "libunisono-preload-mpich.so";
#else
#define IS_FOR_OPEN_MPI false
static const char OWN[] = "libunisono-preload-mpich.so", OTHER[] = "libunisono-preload-openmpi.so";
#endif

/* For the text of any MPI's version: MPI_MAX_LIBRARY_VERSION_STRING is that of one MPI, and the largest is MPICH's. */
enum { VERSION_BYTES = 8192, PATH_BYTES = 4096 };

/* Removes this library from LD_PRELOAD. Returns false if it is not there: something else loads it. */
static bool is_removed(void)
{
    const char *text = getenv("LD_PRELOAD");
    char *names = strdup(text == NULL ? "" : text), *kept = calloc(1, strlen(names) + 2), *rest = NULL;
    bool is_there = false;
    for (char *name = strtok_r(names, ": ", &rest); name != NULL; name = strtok_r(NULL, ": ", &rest)) {
        const char *slash = strrchr(name, '/');
        if (strcmp(slash == NULL ? name : slash + 1, OWN) == 0)
            is_there = true;
        else
            strcat(strcat(kept, *kept == '\0' ? "" : ":"), name);
    }
    setenv("LD_PRELOAD", kept, 1);
    free(names);
    free(kept);
    return is_there;
}

/* Whether this is rank 0 by the variables of launchers, since MPI is not initialised. Without a launcher it is. */
static bool is_first_rank(void)
{
    const char *const names[] = { "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK" };
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        const char *rank = getenv(names[i]);
        if (rank != NULL)
            return strcmp(rank, "0") == 0;
    }
    return true;
}

/* Returns whether functions of MPI are visible to this library. If it is linked with MPI, they are. The library for MPICH in wheels is not: it serves
 * MPICH and its children, whose libraries have several names, and calls the one that the program has loaded. */
static bool is_mpi_visible(void)
{
    void *program = dlopen(NULL, RTLD_LAZY);
    return program != NULL && dlsym(program, "PMPI_Init") != NULL;
}

void bind_mpi(void)
{
    const char *const names[] = { "libmpi.so.12", "libmpich.so.12" };
    if (is_mpi_visible())
        return;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL) != NULL)
            return;
    }
    fprintf(stderr, "unisono: the program has loaded neither %s nor %s, of MPICH: for Open MPI, preload %s instead of %s\n", names[0], names[1],
            OTHER, OWN);
    exit(1);
}

/* Runs before main: the program, which has done nothing yet, is executed again without this library if its MPI is another one.
 * MPI_Get_library_version takes no handles and may be called before MPI_Init. */
__attribute__((constructor)) static void check_family(int argc, char **argv)
{
    (void)argc;
    char version[VERSION_BYTES] = "", program[PATH_BYTES] = "";
    int length;
    if (!is_mpi_visible())
        return;
    PMPI_Get_library_version(version, &length);
    bool is_open_mpi = strncmp(version, "Open MPI", strlen("Open MPI")) == 0;
    if (is_open_mpi == IS_FOR_OPEN_MPI)
        return;
    if (is_first_rank())
        fprintf(stderr, "unisono: the program uses %s: preload %s instead of %s; it runs without acceleration\n",
                is_open_mpi ? "Open MPI" : "MPICH", OTHER, OWN);
    if (is_removed() && readlink("/proc/self/exe", program, sizeof(program) - 1) > 0)
        execv(program, argv);
    fprintf(stderr, "unisono: cannot run the program without %s\n", OWN);
    _exit(1);
}
