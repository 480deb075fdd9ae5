/* Worlds of Unisono, each an attribute of a communicator. A communicator has none until its first call that could be Unisono's; its
 * copies have their own; freeing it frees its world. */

#include "accelerate.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct settings settings;

/* Between MPI_Init and MPI_Finalize. */
static atomic_bool is_ready;
static int of_comm = MPI_KEYVAL_INVALID, of_process = MPI_KEYVAL_INVALID;
/* The ranks of MPI_COMM_WORLD, and those of this machine. Programs may be started from the program that are without this library. */
static MPI_Group of_job = MPI_GROUP_NULL, of_node = MPI_GROUP_NULL;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct world *worlds;

atomic_uint worlds_freed;

/* The communicator that a thread looked up last, and how many communicators had been freed by then. */
static _Thread_local struct {
    MPI_Comm comm;
    struct world *world;
    unsigned freed;
} last;

/* Leaves Unisono's world; the struct stays. */
static void leave(struct world *world)
{
    unisono_free(world->unisono);
    unisono_release(world->memory);
    world->unisono = NULL;
    world->memory = NULL;
    world->stage = NULL;
}

/* Called when a communicator is freed. */
static int comm_is_freed(MPI_Comm comm, int keyval, void *attribute, void *extra)
{
    (void)comm, (void)keyval, (void)extra;
    struct world *world = attribute;
    atomic_fetch_add(&worlds_freed, 1);
    pthread_mutex_lock(&lock);
    for (struct world **place = &worlds; *place != NULL; place = &(*place)->next)
        if (*place == world) {
            *place = world->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    leave(world);
    choices_free(world->choices);
    free(world);
    return MPI_SUCCESS;
}

/* Called when MPI_Finalize begins: MPI deletes the attributes of MPI_COMM_SELF first, while all of it still works. The structs go
 * with their communicators. */
static int process_ends(MPI_Comm comm, int keyval, void *attribute, void *extra)
{
    (void)comm, (void)keyval, (void)attribute, (void)extra;
    report_print();
    record_write();
    atomic_store(&is_ready, false);
    /* No thread may use a world that it looked up before. */
    atomic_fetch_add(&worlds_freed, 1);
    for (struct world *world = worlds; world != NULL; world = world->next)
        leave(world);
    progress_end();
    PMPI_Group_free(&of_job);
    PMPI_Group_free(&of_node);
    return MPI_SUCCESS;
}

void worlds_begin(void)
{
    MPI_Comm node;
    PMPI_Comm_group(MPI_COMM_WORLD, &of_job);
    PMPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    PMPI_Comm_group(node, &of_node);
    PMPI_Comm_free(&node);
    types_begin();
    settings = settings_agreed();
    progress_begin();
    report_begin();
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, comm_is_freed, &of_comm, NULL);
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, process_ends, &of_process, NULL);
    PMPI_Comm_set_attr(MPI_COMM_SELF, of_process, NULL);
    atomic_store(&is_ready, true);
}

/* By which the ranks of a new world find each other. */
static int gather(void *context, const void *own, void *all, size_t size_bytes)
{
    MPI_Comm comm = *(MPI_Comm *)context;
    return PMPI_Allgather(own, (int)size_bytes, MPI_BYTE, all, (int)size_bytes, MPI_BYTE, comm);
}

/* Whether all ranks of a communicator are in a group. */
static bool is_within(MPI_Comm comm, int ranks, MPI_Group group)
{
    MPI_Group these;
    PMPI_Comm_group(comm, &these);
    int *numbers = allocated(2 * sizeof(int) * (size_t)ranks), *found = numbers + ranks;
    for (int rank = 0; rank < ranks; rank++)
        numbers[rank] = rank;
    bool is = PMPI_Group_translate_ranks(these, ranks, numbers, group, found) == MPI_SUCCESS;
    for (int rank = 0; rank < ranks; rank++)
        is = is && found[rank] != MPI_UNDEFINED;
    free(numbers);
    PMPI_Group_free(&these);
    return is;
}

/* No communicator is made for that: Open MPI makes one by non-blocking collectives on `comm`, which crash after the program's own have
 * failed. */
void world_start(struct world *world, MPI_Comm comm)
{
    unisono_settings settings = { 0 };
    /* MPI waits for ever, so a program may. */
    if (getenv("UNISONO_TIMEOUT_S") == NULL)
        settings.timeout_s = 1e9;
    int code = unisono_start(world->rank, world->ranks, gather, &comm, &settings, &world->unisono);
    /* The lowest rank that could not. */
    int failed = code == UNISONO_OK ? world->ranks : world->rank;
    PMPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MIN, comm);
    world->why = failed == world->ranks ? BY_UNISONO : NOT_STARTED;
    if (world->why == BY_UNISONO)
        return;
    if (failed == world->rank)
        snprintf(world->error, sizeof(world->error), "%s", unisono_last_error());
    PMPI_Bcast(world->error, sizeof(world->error), MPI_CHAR, failed, comm);
    leave(world);
}

/* Whether a communicator can have a world: FEW_CALLS if it can. No rank waits for another here. */
static enum why place(struct world *world, MPI_Comm comm)
{
    int is_inter;
    PMPI_Comm_test_inter(comm, &is_inter);
    if (is_inter)
        return INTERCOMMUNICATOR;
    PMPI_Comm_rank(comm, &world->rank);
    PMPI_Comm_size(comm, &world->ranks);
    if (world->ranks == 1)
        return ONE_RANK;
    if (!is_within(comm, world->ranks, of_job))
        return OTHER_PROCESSES;
    return is_within(comm, world->ranks, of_node) ? FEW_CALLS : SEVERAL_NODES;
}

static struct world *new_world(MPI_Comm comm)
{
    struct world *world = allocated(sizeof(*world));
    *world = (struct world){ .ranks = 1 };
    world->why = place(world, comm);
    pthread_mutex_lock(&lock);
    world->next = worlds;
    worlds = world;
    pthread_mutex_unlock(&lock);
    PMPI_Comm_set_attr(comm, of_comm, world);
    return world;
}

/* The world of a communicator other than the last one of this thread. */
static struct world *looked_up(MPI_Comm comm)
{
    int is_there;
    struct world *world = NULL;
    if (PMPI_Comm_get_attr(comm, of_comm, &world, &is_there) != MPI_SUCCESS)
        return NULL;
    if (!is_there)
        world = new_world(comm);
    progress_of_this_thread();
    last.comm = comm;
    last.world = world;
    last.freed = atomic_load(&worlds_freed);
    return world;
}

/* Whether a communicator is the last one of this thread. */
static bool is_last(MPI_Comm comm)
{
    return last.world != NULL && last.comm == comm && last.freed == atomic_load_explicit(&worlds_freed, memory_order_relaxed);
}

struct world *world_of(MPI_Comm comm)
{
    if (!atomic_load_explicit(&is_ready, memory_order_relaxed))
        return NULL;
    return is_last(comm) ? last.world : looked_up(comm);
}

struct place place_in(MPI_Comm comm)
{
    const struct place none = { 0, 0 }, of_groups = { 0, 1 };
    struct place place = none;
    int is_inter;
    if (comm == MPI_COMM_NULL || !atomic_load_explicit(&is_ready, memory_order_relaxed))
        return none;
    if (is_last(comm))
        return (struct place){ last.world->rank, last.world->ranks };
    if (PMPI_Comm_test_inter(comm, &is_inter) != MPI_SUCCESS)
        return none;
    if (is_inter)
        return of_groups;
    PMPI_Comm_rank(comm, &place.rank);
    PMPI_Comm_size(comm, &place.ranks);
    return place;
}

char *stage_of(struct world *world)
{
    if (world->stage == NULL && unisono_alloc(world->unisono, STAGE_BYTES, &world->memory) == UNISONO_OK)
        world->stage = unisono_address(world->memory);
    return world->stage;
}
