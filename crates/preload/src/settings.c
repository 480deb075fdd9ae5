/* UNISONO_ACCELERATE: which calls may go through Unisono. */

#include "accelerate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const FUNCTION_NAMES[FUNCTIONS] = {
    "allreduce", "reduce", "bcast", "reduce_scatter", "reduce_scatter_block", "allgather", "allgatherv", "alltoall", "alltoallv",
    "gather", "gatherv", "scatter", "scatterv", "scan", "exscan", "barrier",
};

const char *const REDUCTION_NAMES[REDUCTIONS] = {
    [UNISONO_SUM] = "sum",         [UNISONO_PRODUCT] = "prod",     [UNISONO_MIN] = "min",          [UNISONO_MAX] = "max",
    [UNISONO_BIT_AND] = "band",    [UNISONO_BIT_OR] = "bor",       [UNISONO_BIT_XOR] = "bxor",     [UNISONO_LOGICAL_AND] = "land",
    [UNISONO_LOGICAL_OR] = "lor",  [UNISONO_LOGICAL_XOR] = "lxor", [MAXLOC] = "maxloc",            [MINLOC] = "minloc",
    [USER_DEFINED] = "user-defined",
};

const char *const DTYPE_NAMES[DTYPES] = {
    [UNISONO_F32] = "f32", [UNISONO_F64] = "f64", [UNISONO_F16] = "f16", [UNISONO_BF16] = "bf16", [UNISONO_I32] = "i32",
    [UNISONO_I64] = "i64", [UNISONO_U8] = "u8",   [UNISONO_U32] = "u32", [UNISONO_U64] = "u64",
    [OTHER_VALUES] = "other",
};

static const char FIXED[] = "fixed:", OF_FLOATS[] = "floats", OF_NODES[] = "nodes", OF_CUDA[] = "cuda";

int number_of(const char *name, const char *const names[], int all)
{
    for (int number = 0; number < all; number++)
        if (names[number] != NULL && strcmp(names[number], name) == 0)
            return number;
    return NONE;
}

/* Adds the setting with this name. Returns false if there is no such name. */
static bool add(struct settings *settings, const char *name)
{
    int function = number_of(name, FUNCTION_NAMES, FUNCTIONS), op = number_of(name, REDUCTION_NAMES, REDUCTIONS);
    if (function != NONE)
        settings->functions |= 1U << function;
    else if (op != NONE)
        settings->reductions |= 1U << op;
    else if (strcmp(name, OF_FLOATS) == 0)
        settings->reductions |= FLOATS;
    else if (strcmp(name, OF_NODES) == 0)
        settings->several_nodes = 1;
    else if (strcmp(name, OF_CUDA) == 0)
        settings->on_host = 1;
    else
        return false;
    return true;
}

/* Reports an invalid name in one line, since all ranks do. */
static void refuse(const char *name)
{
    char names[512] = "";
    for (int function = 0; function < FUNCTIONS; function++)
        strcat(strcat(names, " "), FUNCTION_NAMES[function]);
    for (int op = 0; op < REDUCTIONS; op++)
        if (REDUCTION_NAMES[op] != NULL)
            strcat(strcat(names, " "), REDUCTION_NAMES[op]);
    fprintf(stderr, "unisono: UNISONO_ACCELERATE names `%s`: it is `off`, or `%sFILE`, or names of what to accelerate, or names of what "
                    "to leave to MPI, each with a minus, separated by commas; the names are%s %s %s %s\n", name, FIXED, names, OF_FLOATS,
            OF_NODES, OF_CUDA);
}

/* Reads the setting of this rank. Returns false if it is invalid, which is reported. */
static bool read_names(struct settings *settings, const char *text)
{
    const struct settings all = *settings;
    struct settings chosen = { 0 }, left = { 0 };
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
    /* A list without functions leaves functions unchanged, and likewise for reductions and their types. */
    chosen.named = chosen.functions;
    if (chosen.functions == 0)
        chosen.functions = all.functions;
    if ((chosen.reductions & ~FLOATS) == 0)
        chosen.reductions = all.reductions;
    settings->functions = chosen.functions & ~left.functions;
    settings->named = chosen.named;
    settings->reductions = (chosen.reductions | FLOATS) & ~left.reductions;
    settings->several_nodes = !left.several_nodes;
    settings->on_host = chosen.on_host;
    return is_valid;
}

/* Returns whether all ranks have the same number. */
static bool is_agreed(uint64_t own)
{
    uint64_t both[] = { own, ~own };
    PMPI_Allreduce(MPI_IN_PLACE, both, 2, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    return both[0] == ~both[1];
}

/* Ends the job. All ranks call it. With MPI_Abort, MPICH's mpirun may lose earlier output. */
static void end(void)
{
    PMPI_Finalize();
    exit(2);
}

struct settings settings_agreed(void)
{
    const char *text = getenv("UNISONO_ACCELERATE"), *file = NULL;
    struct settings own = { .functions = (1U << FUNCTIONS) - 1, .reductions = ~0U, .several_nodes = 1 };
    bool is_valid = true;
    uint64_t decisions = 0;
    if (text == NULL)
        text = "";
    if (strcmp(text, "off") == 0) {
        own.functions = 0;
    } else if (strncmp(text, FIXED, strlen(FIXED)) == 0) {
        own.is_fixed = own.on_host = 1;
        file = text + strlen(FIXED);
        decisions = record_read(file);
        is_valid = decisions != 0;
    } else if (*text != '\0') {
        is_valid = read_names(&own, text);
    }
    is_valid = is_valid && record_begin();
    if (!takes_gpu_arrays())
        own.on_host = 1;
    own.is_recorded = record_may_be_wanted();
    unsigned of_all[] = { is_valid, own.functions, own.named, own.reductions, own.several_nodes, own.on_host, own.is_recorded };
    PMPI_Allreduce(MPI_IN_PLACE, of_all, 7, MPI_UNSIGNED, MPI_BAND, MPI_COMM_WORLD);
    if (!of_all[0])
        end();
    if (!is_agreed(decisions)) {
        if (file != NULL)
            fprintf(stderr, "unisono: the decisions in `%s` are not those of all ranks: copy one file to all nodes\n", file);
        end();
    }
    return (struct settings){ of_all[1], of_all[2], of_all[3], of_all[4], of_all[5], own.is_fixed, of_all[6] };
}
