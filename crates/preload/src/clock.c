/* A common clock for ranks on several nodes. The clocks of nodes have different origins and slightly different speeds. All ranks of a
 * node share one. */

#include "accelerate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The number of barriers. The shortest give the tightest bounds, and the first one waits for late ranks. */
enum { BARRIERS = 10 };

enum { ENTERED, LEFT, MOMENTS };

/* The lower bound of rank 0's lead, and the negative upper bound, so that both are maxima. */
enum { LEAST, MINUS_MOST, BOUNDS };

/* Bounds the lead of rank 0's clock over this rank's: no rank leaves a barrier before every rank has entered it. */
static void find_bounds(double bounds[BOUNDS], double own[BARRIERS][MOMENTS], MPI_Comm comm)
{
    double first[BARRIERS][MOMENTS];
    for (int i = 0; i < BARRIERS; i++) {
        own[i][ENTERED] = report_now();
        PMPI_Barrier(comm);
        own[i][LEFT] = report_now();
    }
    memcpy(first, own, sizeof(first));
    PMPI_Bcast(first, BARRIERS * MOMENTS, MPI_DOUBLE, 0, comm);
    for (int i = 0; i < BARRIERS; i++) {
        bounds[LEAST] = fmax(bounds[LEAST], first[i][ENTERED] - own[i][LEFT]);
        bounds[MINUS_MOST] = fmax(bounds[MINUS_MOST], own[i][ENTERED] - first[i][LEFT]);
    }
}

struct reading clock_compared(const struct world *world, MPI_Comm comm)
{
    struct reading reading = { report_now(), 0 };
    if (world->nodes == 1)
        return reading;
    int count = BOUNDS * world->nodes;
    double *bounds = allocated((size_t)count * sizeof(double)), own[BARRIERS][MOMENTS];
    for (int i = 0; i < count; i++)
        bounds[i] = -INFINITY;
    find_bounds(bounds + BOUNDS * world->node, own, comm);
    PMPI_Allreduce(MPI_IN_PLACE, bounds, count, MPI_DOUBLE, MPI_MAX, comm);
    const double *of_node = bounds + BOUNDS * world->node;
    /* Rank 0 is on the first node. */
    reading.ahead = world->node == 0 ? 0 : (of_node[LEAST] - of_node[MINUS_MOST]) / 2;
    reading.now = own[BARRIERS - 1][LEFT];
    free(bounds);
    return reading;
}

void clock_translate(double *moments, size_t count, struct reading first, struct reading last)
{
    if (first.ahead == 0 && last.ahead == 0)
        return;
    double speed = (last.ahead - first.ahead) / (last.now - first.now);
    for (size_t i = 0; i < count; i++)
        moments[i] += first.ahead + speed * (moments[i] - first.now);
}
