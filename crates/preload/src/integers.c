/* Reductions of integers whose results by MPI are not those of integer arithmetic: the vector instructions of Open MPI 4.1.4 saturate sums of 8 and
 * 16 bits, and some MPIs compare unsigned integers as signed. If both sides carried out such calls, results would change within a run. */

#include "accelerate.h"

#include <string.h>

/* Enough for several vector instructions, and for single elements after them. */
enum { ELEMENTS = 259 };

static uint64_t reduced(int op, uint64_t a, uint64_t b, bool is_less)
{
    switch (op) {
    case UNISONO_SUM:
        return a + b;
    case UNISONO_PRODUCT:
        return a * b;
    case UNISONO_MIN:
        return is_less ? a : b;
    default:
        return is_less ? b : a;
    }
}

/* Compares MPI's function with integer arithmetic, for every pair of extreme values. */
static bool is_exact(const struct type *type, int op, MPI_Op mpi_op)
{
    size_t bytes = (size_t)type->size_bytes;
    size_t skipped = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? sizeof(uint64_t) - bytes : 0;
    uint64_t given[ELEMENTS], held[ELEMENTS], expected[ELEMENTS], highest = UINT64_MAX >> (65 - 8 * bytes);
    const uint64_t extremes[] = { 1, UINT64_MAX, highest, ~highest };
    for (size_t i = 0; i < ELEMENTS; i++) {
        uint64_t a = extremes[i % 4], b = extremes[i / 4 % 4];
        /* Without the bits that the type does not have. */
        int unused = 64 - 8 * (int)bytes;
        bool is_less = type->kind == UNSIGNED ? a << unused < b << unused : (int64_t)(a << unused) < (int64_t)(b << unused);
        uint64_t result = reduced(op, a, b, is_less);
        memcpy((char *)given + i * bytes, (char *)&a + skipped, bytes);
        memcpy((char *)held + i * bytes, (char *)&b + skipped, bytes);
        memcpy((char *)expected + i * bytes, (char *)&result + skipped, bytes);
    }
    int code = PMPI_Reduce_local(given, held, ELEMENTS, type->handle, mpi_op);
    return code == MPI_SUCCESS && memcmp(held, expected, ELEMENTS * bytes) == 0;
}

unsigned inexact_reductions(const struct type *type)
{
    static const struct {
        int op;
        MPI_Op mpi_op;
    } all[] = {
        { UNISONO_SUM, MPI_SUM },
        { UNISONO_PRODUCT, MPI_PROD },
        { UNISONO_MIN, MPI_MIN },
        { UNISONO_MAX, MPI_MAX },
    };
    unsigned inexact = 0;
    /* A type of another size is one that this MPI does not have. */
    bool is_reduced = type->size_bytes > 0 && type->size_bytes <= (int)sizeof(uint64_t);
    for (size_t i = 0; is_reduced && i < sizeof(all) / sizeof(*all); i++)
        if (!is_exact(type, all[i].op, all[i].mpi_op))
            inexact |= 1U << all[i].op;
    return inexact;
}
