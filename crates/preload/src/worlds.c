/* Worlds of Unisono, each an attribute of a communicator. A communicator gets a world at its first call that Unisono could carry out.
 * Its duplicates have their own worlds. Freeing it frees its world. */

/* For pthread_getattr_np. */
#define _GNU_SOURCE

#include "accelerate.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

struct settings settings;

static int of_comm = MPI_KEYVAL_INVALID, of_process = MPI_KEYVAL_INVALID;
/* The ranks of MPI_COMM_WORLD. Spawned programs may run without this library. */
static MPI_Group of_job = MPI_GROUP_NULL;
/* The first rank on the node of each rank. */
static int *nodes_of_job;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct world *worlds;

char start_error[MPI_MAX_ERROR_STRING];
/* True if a world over several nodes failed to start. This process then starts no other one, since an attempt takes seconds. */
static atomic_bool is_cut_off;

atomic_uint worlds_freed;

/* The communicator that a thread looked up last, and how many communicators had been freed by then. */
static _Thread_local struct {
    MPI_Comm comm;
    struct world *world;
    unsigned freed;
} last;

/* Leaves Unisono's world, and keeps the struct. */
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

/* Called when MPI_Finalize starts: MPI first deletes the attributes of MPI_COMM_SELF, while it is fully functional. The structs are
 * freed with their communicators. */
static int process_ends(MPI_Comm comm, int keyval, void *attribute, void *extra)
{
    (void)comm, (void)keyval, (void)attribute, (void)extra;
    report_print();
    record_write();
    /* MPI carries out later calls, which sessions may make. No thread may use a world that it looked up before. */
    settings = (struct settings){ 0 };
    report_is_wanted = false;
    atomic_fetch_add(&worlds_freed, 1);
    for (struct world *world = worlds; world != NULL; world = world->next)
        leave(world);
    progress_end();
    PMPI_Comm_free(&quiet_comm);
    PMPI_Group_free(&of_job);
    free(nodes_of_job);
    return MPI_SUCCESS;
}

static void nodes_begin(void)
{
    MPI_Comm node;
    int ranks, first;
    PMPI_Comm_rank(MPI_COMM_WORLD, &first);
    PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
    PMPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    PMPI_Bcast(&first, 1, MPI_INT, 0, node);
    PMPI_Comm_free(&node);
    nodes_of_job = allocated((size_t)ranks * sizeof(int));
    PMPI_Allgather(&first, 1, MPI_INT, nodes_of_job, 1, MPI_INT, MPI_COMM_WORLD);
}

/* Makes calls of which MPI may not support some, whose errors would end the job. */
static void without_handlers(void (*calls)(void))
{
    const MPI_Comm comms[] = { MPI_COMM_WORLD, MPI_COMM_SELF };
    MPI_Errhandler before[2];
    for (int i = 0; i < 2; i++) {
        PMPI_Comm_get_errhandler(comms[i], &before[i]);
        PMPI_Comm_set_errhandler(comms[i], MPI_ERRORS_RETURN);
    }
    calls();
    for (int i = 0; i < 2; i++) {
        PMPI_Comm_set_errhandler(comms[i], before[i]);
        PMPI_Errhandler_free(&before[i]);
    }
}

void worlds_begin(void)
{
    PMPI_Comm_group(MPI_COMM_WORLD, &of_job);
    nodes_begin();
    struct settings agreed = settings_agreed();
    if (agreed.functions != 0)
        without_handlers(types_begin);
    quiet_comm_begin();
    progress_begin();
    report_begin();
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, comm_is_freed, &of_comm, NULL);
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, process_ends, &of_process, NULL);
    PMPI_Comm_set_attr(MPI_COMM_SELF, of_process, NULL);
    /* Last, since threads with sessions may call functions meanwhile. */
    settings = agreed;
    check_later_tool();
}

/* The bootstrap of a new world. */
static int gather(void *context, const void *own, void *all, size_t size_bytes)
{
    MPI_Comm comm = *(MPI_Comm *)context;
    return PMPI_Allgather(own, (int)size_bytes, MPI_BYTE, all, (int)size_bytes, MPI_BYTE, comm);
}

/* Returns the number of each rank in MPI_COMM_WORLD, which the caller frees, or NULL if other processes are among them. */
static int *numbers_in_job(MPI_Comm comm, int ranks)
{
    MPI_Group these;
    PMPI_Comm_group(comm, &these);
    int *own = allocated(2 * sizeof(int) * (size_t)ranks), *numbers = own + ranks;
    for (int rank = 0; rank < ranks; rank++)
        own[rank] = rank;
    bool are_all = PMPI_Group_translate_ranks(these, ranks, own, of_job, numbers) == MPI_SUCCESS;
    for (int rank = 0; rank < ranks; rank++) {
        are_all = are_all && numbers[rank] != MPI_UNDEFINED;
        own[rank] = numbers[rank];
    }
    PMPI_Group_free(&these);
    if (are_all)
        return own;
    free(own);
    return NULL;
}

/* Counts the nodes of a world, whose ranks have these numbers. */
static void find_nodes(struct world *world, const int *numbers)
{
    int *nodes = allocated((size_t)world->ranks * sizeof(int));
    for (int rank = 0; rank < world->ranks; rank++) {
        int first = nodes_of_job[numbers[rank]], node = 0;
        while (node < world->nodes && nodes[node] != first)
            node++;
        if (node == world->nodes)
            nodes[world->nodes++] = first;
        if (rank == world->rank)
            world->node = node;
    }
    free(nodes);
}

/* Returns whether this thread has less stack left than the start of a world needs, which takes 36 KiB. */
static bool is_stack_short(void)
{
    enum { NEEDED = 48 << 10 };
    pthread_attr_t attributes;
    void *lowest = NULL;
    size_t bytes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0)
        return false;
    pthread_attr_getstack(&attributes, &lowest, &bytes);
    pthread_attr_destroy(&attributes);
    return (uintptr_t)&attributes - (uintptr_t)lowest < NEEDED;
}

/* Returns the reason why this rank should not connect with the other ranks, or NULL. */
static const char *obstacle(const struct world *world)
{
    /* The most open files for another rank, of this node and of another one, and the number of ranks that can connect within a second. */
    enum { FILES = 1, FILES_BETWEEN_NODES = 3, MOST_RANKS = 512 };
    struct rlimit files;
    if (world->nodes > 1 && atomic_load(&is_cut_off))
        return "ranks could not connect with other nodes before";
    if (world->nodes > 1 && world->ranks > MOST_RANKS)
        return "there are more than 512 ranks on several nodes";
    if (is_stack_short())
        return "a thread has less than 48 KiB of stack left";
    int needed = world->ranks * (world->nodes == 1 ? FILES : FILES_BETWEEN_NODES);
    int free_file = eventfd(0, EFD_CLOEXEC);
    if (free_file >= 0)
        close(free_file);
    else if (errno != EMFILE)
        return strerror(errno);
    bool has_limit = getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY;
    /* The program needs files too. */
    bool are_few = free_file < 0 || (has_limit && files.rlim_cur / 2 < (rlim_t)(free_file + needed));
    return are_few ? "connections with all ranks would need more than half of the open files that `ulimit -n` permits" : NULL;
}

/* Returns whether no rank has a problem. All ranks get the problem of the lowest rank that has one. This creates no communicator: Open MPI would
 * use non-blocking collectives on `comm`, which crash after failed ones of the program. */
static bool can_all(const struct world *world, MPI_Comm comm, const char *problem)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int failed = problem == NULL ? world->ranks : world->rank;
    PMPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MIN, comm);
    if (failed == world->ranks)
        return true;
    if (failed == world->rank)
        snprintf(text, sizeof(text), "%s", problem == NULL ? "the ranks make different calls" : problem);
    PMPI_Bcast(text, sizeof(text), MPI_CHAR, failed, comm);
    pthread_mutex_lock(&lock);
    bool is_first = *start_error == '\0';
    if (is_first)
        memcpy(start_error, text, sizeof(text));
    pthread_mutex_unlock(&lock);
    if (is_first && world->rank == 0)
        fprintf(stderr, "unisono: MPI carries out calls of %d ranks on %d nodes: %s\n", world->ranks, world->nodes, text);
    return false;
}

static const char *start(struct world *world, MPI_Comm comm)
{
    /* Processes would write metrics and traces to the files of others. */
    unisono_settings settings = { .unobserved = world->is_renumbered };
    /* MPI waits for ever, so programs may rely on it. */
    if (getenv("UNISONO_TIMEOUT_S") == NULL)
        settings.timeout_s = 1e9;
    int code = unisono_start(world->rank, world->ranks, gather, &comm, &settings, &world->unisono);
    if (code == UNISONO_OK)
        code = unisono_alloc(world->unisono, STAGE_BYTES, &world->memory);
    world->stage = unisono_address(world->memory);
    return code == UNISONO_OK ? NULL : unisono_last_error();
}

/* Makes a call, in which ranks map the memory of others. A lack of memory in a call of the program would end that call. */
static const char *try_call(const struct world *world)
{
    size_t ranks = (size_t)world->ranks;
    int code = unisono_all_to_all(world->unisono, world->stage, STAGE_BYTES / ranks * ranks, UNISONO_U8, NULL);
    return code == UNISONO_OK ? NULL : unisono_last_error();
}

void world_start(struct world *world, MPI_Comm comm)
{
    world->why = NOT_STARTED;
    if (!can_all(world, comm, obstacle(world)))
        return;
    if (can_all(world, comm, start(world, comm)) && can_all(world, comm, try_call(world))) {
        world->why = BY_UNISONO;
        return;
    }
    if (world->nodes > 1)
        atomic_store(&is_cut_off, true);
    leave(world);
}

/* Returns whether a communicator can have a world: FEW_CALLS if it can. No rank waits for another here. */
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
    if (!settings.on_host)
        return MAYBE_ON_GPU;
    int *numbers = numbers_in_job(comm, world->ranks);
    if (numbers == NULL)
        return OTHER_PROCESSES;
    find_nodes(world, numbers);
    for (int rank = 0; rank < world->ranks; rank++)
        world->is_renumbered |= numbers[rank] != rank;
    free(numbers);
    return world->nodes == 1 || settings.several_nodes ? FEW_CALLS : LEFT_BY_SETTING;
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

/* Returns the world of a communicator other than the last one of this thread. */
static struct world *looked_up(MPI_Comm comm)
{
    int is_there;
    struct world *world = NULL;
    PMPI_Comm_get_attr(comm, of_comm, &world, &is_there);
    if (!is_there)
        world = new_world(comm);
    progress_of_this_thread();
    last.comm = comm;
    last.world = world;
    last.freed = atomic_load(&worlds_freed);
    return world;
}

/* Returns whether a communicator is the last one of this thread. */
static bool is_last(MPI_Comm comm)
{
    return last.world != NULL && last.comm == comm && last.freed == atomic_load_explicit(&worlds_freed, memory_order_relaxed);
}

int error_of_comm(MPI_Comm comm)
{
    int is_inter;
    return comm == MPI_COMM_NULL || is_last(comm) ? MPI_SUCCESS : PMPI_Comm_test_inter(comm, &is_inter);
}

struct world *world_of(MPI_Comm comm)
{
    return is_last(comm) ? last.world : looked_up(comm);
}

struct place place_in(MPI_Comm comm)
{
    const struct place none = { 0, 0 }, of_groups = { 0, 1 };
    struct place place = none;
    int is_inter;
    if (comm == MPI_COMM_NULL)
        return none;
    if (is_last(comm))
        return (struct place){ last.world->rank, last.world->ranks };
    PMPI_Comm_test_inter(comm, &is_inter);
    if (is_inter)
        return of_groups;
    PMPI_Comm_rank(comm, &place.rank);
    PMPI_Comm_size(comm, &place.ranks);
    return place;
}
