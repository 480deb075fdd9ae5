/* The MPI of the program. This library is compiled for the handles of one MPI. Under another MPI, no function may pass them on. */

/* For dladdr1 and RTLD_NEXT. */
#define _GNU_SOURCE

#include "accelerate.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* MPIs with the same binary interface. */
struct family {
    const char *name;
    /* The library for the family, and the names under which programs load MPI, ended by NULL. */
    const char *library, *loaded_as[3];
};

static const struct family OPEN_MPI_FAMILY = { "Open MPI", "libunisono-preload-openmpi.so", { "libmpi.so.40" } };
static const struct family MPICH_FAMILY = { "MPICH", "libunisono-preload-mpich.so", { "libmpi.so.12", "libmpich.so.12" } };
static const struct family ABI_FAMILY = { "MPI's standard ABI", "libunisono-preload-abi.so", { "libmpi_abi.so.1" } };
static const struct family *const FAMILIES[] = { &OPEN_MPI_FAMILY, &MPICH_FAMILY, &ABI_FAMILY };

/* The family that this library is compiled for. */
#if defined(OPEN_MPI)
static const struct family *const OWN = &OPEN_MPI_FAMILY;
#elif defined(MPICH_NUMVERSION) || defined(I_MPI_VERSION)
static const struct family *const OWN = &MPICH_FAMILY;
#elif defined(MPI_ABI_VERSION)
static const struct family *const OWN = &ABI_FAMILY;
#else
#error "mpi.h is not of Open MPI, MPICH or one of its children, or MPI's standard ABI"
#endif

/* Large enough for the version text of any MPI: MPI_MAX_LIBRARY_VERSION_STRING is that of one MPI, and MPICH's is the largest. */
enum { VERSION_BYTES = 8192, PATH_BYTES = 4096 };

/* Removes this library from LD_PRELOAD. Returns false if it is not there, since it was loaded in another way. */
static bool is_removed(void)
{
    const char *text = getenv("LD_PRELOAD");
    char *names = strdup(text == NULL ? "" : text), *kept = calloc(1, strlen(names) + 2), *rest = NULL;
    bool is_there = false;
    for (char *name = strtok_r(names, ": ", &rest); name != NULL; name = strtok_r(NULL, ": ", &rest)) {
        const char *slash = strrchr(name, '/');
        if (strcmp(slash == NULL ? name : slash + 1, OWN->library) == 0)
            is_there = true;
        else
            strcat(strcat(kept, *kept == '\0' ? "" : ":"), name);
    }
    setenv("LD_PRELOAD", kept, 1);
    free(names);
    free(kept);
    return is_there;
}

/* Returns whether this is rank 0 according to the variables of launchers, since MPI is not initialised. True without a launcher. */
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

/* Finds a function of MPI that this library does not define. If this library is linked with MPI, all exist. The libraries in wheels,
 * except the one for Open MPI, are not linked: they serve any MPI of their family, and call the one that the program has loaded. */
static void *function_of_mpi(const char *name)
{
    void *program = dlopen(NULL, RTLD_LAZY);
    return program == NULL ? NULL : dlsym(program, name);
}

/* Makes the functions of a family visible if a module of the program has loaded them. */
static bool is_loaded(const struct family *family)
{
    for (const char *const *name = family->loaded_as; *name != NULL; name++)
        if (dlopen(*name, RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL) != NULL)
            return true;
    return false;
}

void bind_mpi(void)
{
    if (function_of_mpi("PMPI_Init") != NULL || is_loaded(OWN))
        return;
    for (size_t i = 0; i < sizeof(FAMILIES) / sizeof(*FAMILIES); i++)
        if (is_loaded(FAMILIES[i]))
            fprintf(stderr, "unisono: the program uses %s: preload %s instead of %s\n", FAMILIES[i]->name, FAMILIES[i]->library, OWN->library);
    fprintf(stderr, "unisono: cannot call MPI: the program has not loaded %s\n", OWN->name);
    exit(1);
}

bool takes_gpu_arrays(void)
{
    void *query = function_of_mpi("MPIX_Query_cuda_support");
    bool is_aware = query != NULL && ((int (*)(void))query)() == 1;
    return is_aware && dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) != NULL;
}

/* Returns whether the MPI that the program calls has the standard ABI: its function then returns the ABI version, and otherwise -1 or does not
 * exist. The function may also belong to the MPI with which this library is linked, which comes after the program's. */
static bool has_abi(void)
{
    void *init = function_of_mpi("PMPI_Init"), *abi_version = function_of_mpi("PMPI_Abi_get_version");
    int major = -1, minor = -1;
    Dl_info of_init, of_version;
    bool is_of_one = abi_version != NULL && dladdr(init, &of_init) != 0 && dladdr(abi_version, &of_version) != 0 &&
                     of_init.dli_fbase == of_version.dli_fbase;
    return is_of_one && ((int (*)(int *, int *))abi_version)(&major, &minor) == MPI_SUCCESS && major >= 0;
}

/* Returns the family of the MPI that the program calls. */
static const struct family *family_of_program(void)
{
    char version[VERSION_BYTES] = "";
    int length;
    if (has_abi())
        return &ABI_FAMILY;
    PMPI_Get_library_version(version, &length);
    return strncmp(version, "Open MPI", strlen("Open MPI")) == 0 ? &OPEN_MPI_FAMILY : &MPICH_FAMILY;
}

/* Finds the file that defines a function, and its base address, which is NULL if none does: a program that takes the address of a library's
 * function has an undefined symbol with another address. */
static Dl_info definer_of(void *function)
{
    Dl_info info = { 0 };
    ElfW(Sym) *symbol = NULL;
    bool is_defined = function != NULL && dladdr1(function, &info, (void **)&symbol, RTLD_DL_SYMENT) != 0 && symbol != NULL &&
                      symbol->st_shndx != SHN_UNDEF;
    return is_defined ? info : (Dl_info){ 0 };
}

/* The functions by which other tools are found. Most tools intercept the first ones, which start MPI, and some only collectives. */
enum { STARTS = 2 };
static const char *const INTERCEPTED[] = {
    "MPI_Init",      "MPI_Init_thread", "MPI_Allreduce", "MPI_Reduce",  "MPI_Bcast", "MPI_Reduce_scatter", "MPI_Reduce_scatter_block",
    "MPI_Allgather", "MPI_Allgatherv",  "MPI_Alltoall",  "MPI_Alltoallv", "MPI_Gather", "MPI_Gatherv",     "MPI_Scatter",
    "MPI_Scatterv",  "MPI_Scan",        "MPI_Exscan",    "MPI_Barrier",
};

/* Reports that another library or the program, and not the owner of `base`, defines an intercepted function behind `handle`. Only the first library
 * that intercepts a function gets its calls, and none calls the next one. */
static void warn_of_other(void *handle, const void *base, const char *place, const char *of_start, const char *of_others)
{
    for (size_t i = 0; base != NULL && i < sizeof(INTERCEPTED) / sizeof(*INTERCEPTED); i++) {
        Dl_info other = definer_of(dlsym(handle, INTERCEPTED[i]));
        if (other.dli_fbase == NULL || other.dli_fbase == base)
            continue;
        fprintf(stderr, "unisono: `%s` intercepts %s %s %s: %s; use only one of them\n", other.dli_fname, INTERCEPTED[i], place, OWN->library,
                i < STARTS ? of_start : of_others);
        return;
    }
}

/* Reports a library or a program that gets calls instead of this library. */
static void check_earlier_tool(void)
{
    static const char here;
    Dl_info own;
    if (is_first_rank() && dladdr(&here, &own) != 0)
        warn_of_other(dlopen(NULL, RTLD_LAZY), own.dli_fbase, "before", "Unisono carries out no calls", "Unisono gets no such calls");
}

void check_later_tool(void)
{
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0)
        warn_of_other(RTLD_NEXT, definer_of(function_of_mpi("PMPI_Init")).dli_fbase, "after", "it does not see the start of MPI",
                      "it gets no such calls");
}

/* Runs before main. If the program's MPI belongs to another family, the program, which has not started yet, is executed again without
 * this library. The version functions take no handles and may be called before MPI_Init. */
__attribute__((constructor)) static void check_family(int argc, char **argv)
{
    (void)argc;
    char program[PATH_BYTES] = "";
    if (function_of_mpi("PMPI_Init") == NULL)
        return;
    const struct family *family = family_of_program();
    if (family == OWN) {
        check_earlier_tool();
        return;
    }
    if (is_first_rank())
        fprintf(stderr, "unisono: the program uses %s: preload %s instead of %s; it runs without acceleration\n", family->name,
                family->library, OWN->library);
    if (is_removed() && readlink("/proc/self/exe", program, sizeof(program) - 1) > 0)
        execv(program, argv);
    fprintf(stderr, "unisono: cannot run the program without %s\n", OWN->library);
    _exit(1);
}
