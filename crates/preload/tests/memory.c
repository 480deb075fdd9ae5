/* Broadcasts of values with gaps between them, by ranks without memory for a packed copy, which Open MPI does not need. */

#include "ranks.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { CALLS = 70, COUNT = 1 << 21 };

/* Permits this process no more than some MiB in addition. */
static void limit_memory(void)
{
    struct rlimit limit;
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    check(file != NULL && fscanf(file, "%ld", &pages) == 1, "the size of the process is unknown");
    fclose(file);
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = (rlim_t)(pages * sysconf(_SC_PAGESIZE)) + (COUNT * sizeof(int)) / 2;
    setrlimit(RLIMIT_AS, &limit);
}

int main(int argc, char **argv)
{
    MPI_Datatype spread;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Type_create_resized(MPI_INT, 0, 2 * sizeof(int), &spread);
    MPI_Type_commit(&spread);
    int *values = calloc(2 * COUNT, sizeof(int));
    /* Unisono starts before memory is short. */
    for (int i = 0; i < CALLS; i++)
        check(sum_of(1, MPI_COMM_WORLD) == ranks, "the sum is wrong");
    limit_memory();
    for (int i = 1; i <= CALLS; i++) {
        if (rank == 0)
            values[2 * COUNT - 2] = i;
        MPI_Bcast(values, COUNT, spread, 0, MPI_COMM_WORLD);
        check(values[2 * COUNT - 2] == i, "a broadcast is wrong");
    }
    MPI_Type_free(&spread);
    free(values);
    if (rank == 0)
        printf("%d ranks: all right\n", ranks);
    MPI_Finalize();
    return 0;
}
