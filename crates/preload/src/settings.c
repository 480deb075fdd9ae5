/* UNISONO_ACCELERATE: which calls may go through Unisono. */

#include "accelerate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const FUNCTION_NAMES[FUNCTIONS] = {
    "allreduce", "reduce", "bcast", "reduce_scatter", "reduce_scatter_block", "allgather", "allgatherv", "alltoall", "barrier",
};

/* What a setting names besides functions: reductions, and those of floating-point numbers. */
static const struct {
    const char *name;
    unsigned bit;
} REDUCTION_NAMES[] = {
    { "sum", 1U << UNISONO_SUM }, { "prod", 1U << UNISONO_PRODUCT }, { "min", 1U << UNISONO_MIN },
    { "max", 1U << UNISONO_MAX }, { "band", 1U << UNISONO_BIT_AND }, { "bor", 1U << UNISONO_BIT_OR },
    { "bxor", 1U << UNISONO_BIT_XOR }, { "land", 1U << UNISONO_LOGICAL_AND }, { "lor", 1U << UNISONO_LOGICAL_OR },
    { "lxor", 1U << UNISONO_LOGICAL_XOR }, { "floats", FLOATS },
};

enum { REDUCTIONS = sizeof(REDUCTION_NAMES) / sizeof(*REDUCTION_NAMES) };

/* Adds a name to the functions or reductions. Returns false if there is no such name. */
static bool add(struct settings *settings, const char *name)
{
    for (int function = 0; function < FUNCTIONS; function++)
        if (strcmp(name, FUNCTION_NAMES[function]) == 0) {
            settings->functions |= 1U << function;
            return true;
        }
    for (int i = 0; i < REDUCTIONS; i++)
        if (strcmp(name, REDUCTION_NAMES[i].name) == 0) {
            settings->reductions |= REDUCTION_NAMES[i].bit;
            return true;
        }
    return false;
}

static void refuse(const char *name)
{
    fprintf(stderr, "unisono: UNISONO_ACCELERATE names `%s`: it is `off`, or names of what to accelerate, or names of what to leave to "
                    "MPI, each with a minus, separated by commas; the names are", name);
    for (int function = 0; function < FUNCTIONS; function++)
        fprintf(stderr, " %s", FUNCTION_NAMES[function]);
    for (int i = 0; i < REDUCTIONS; i++)
        fprintf(stderr, " %s", REDUCTION_NAMES[i].name);
    fputc('\n', stderr);
}

/* The setting of this rank; false if it is not valid, which is said. */
static bool read_own(struct settings *settings)
{
    const char *text = getenv("UNISONO_ACCELERATE");
    const struct settings all = { (1U << FUNCTIONS) - 1, 0, ~0U };
    *settings = all;
    if (text == NULL || *text == '\0')
        return true;
    struct settings chosen = { 0, 0, 0 }, left = { 0, 0, 0 };
    *settings = chosen;
    if (strcmp(text, "off") == 0)
        return true;
    bool is_valid = true;
    char *names = strdup(text), *rest = NULL;
    for (char *name = strtok_r(names, ", ", &rest); name != NULL; name = strtok_r(NULL, ", ", &rest)) {
        bool is_left = *name == '-';
        if (!add(is_left ? &left : &chosen, name + is_left)) {
            refuse(name);
            is_valid = false;
        }
    }
    free(names);
    /* A list of functions says nothing of reductions, nor of their types; and the other way round. */
    chosen.named = chosen.functions;
    if (chosen.functions == 0)
        chosen.functions = all.functions;
    if ((chosen.reductions & ~FLOATS) == 0)
        chosen.reductions = all.reductions;
    *settings = (struct settings){ chosen.functions & ~left.functions, chosen.named, (chosen.reductions | FLOATS) & ~left.reductions };
    return is_valid;
}

struct settings settings_agreed(void)
{
    struct settings own;
    unsigned of_all[4] = { read_own(&own), own.functions, own.named, own.reductions };
    PMPI_Allreduce(MPI_IN_PLACE, of_all, 4, MPI_UNSIGNED, MPI_BAND, MPI_COMM_WORLD);
    if (!of_all[0]) {
        /* By MPI_Abort, MPICH's mpirun may lose what was written before. */
        PMPI_Finalize();
        exit(2);
    }
    return (struct settings){ of_all[1], of_all[2], of_all[3] };
}
