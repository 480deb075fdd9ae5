/* Reductions of extreme integers, which some MPIs saturate or compare as signed. All calls have the result of the first one, although a trial
 * changes the side that carries them out. */

#include "ranks.h"

#include <stdint.h>
#include <string.h>

enum { CALLS = 100, COUNT = 32 };

static void unchanged(const void *values, MPI_Datatype type, MPI_Op op)
{
    uint64_t first[COUNT] = { 0 }, result[COUNT] = { 0 };
    for (int call = 0; call < CALLS; call++) {
        MPI_Allreduce(values, call == 0 ? first : result, COUNT, type, op, MPI_COMM_WORLD);
        check(call == 0 || memcmp(first, result, sizeof(first)) == 0, "the result of a reduction changes");
    }
}

/* Only the last rank has the second value, so that a saturated sum depends on the order of ranks. */
#define FILL(values, most, last)        \
    for (int i = 0; i < COUNT; i++)     \
        values[i] = rank < ranks - 1 ? most : last

int main(int argc, char **argv)
{
    int8_t bytes[COUNT];
    int16_t shorts[COUNT];
    uint8_t unsigned_bytes[COUNT];
    uint64_t longs[COUNT];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    check(sum_of(1, MPI_COMM_WORLD) == ranks, "the sum is wrong");
    FILL(bytes, 100, -100);
    FILL(shorts, 30000, -30000);
    FILL(unsigned_bytes, 200, 100);
    FILL(longs, UINT64_MAX, 1);
    unchanged(bytes, MPI_SIGNED_CHAR, MPI_SUM);
    unchanged(shorts, MPI_SHORT, MPI_SUM);
    unchanged(unsigned_bytes, MPI_UNSIGNED_CHAR, MPI_SUM);
    unchanged(longs, MPI_UNSIGNED_LONG, MPI_MIN);
    unchanged(longs, MPI_UINT64_T, MPI_MAX);
    if (rank == 0)
        printf("%d ranks: all right\n", ranks);
    MPI_Finalize();
    return 0;
}
