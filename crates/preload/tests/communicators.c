/* Tests of short-lived communicators, of subsets and of two groups, and of threads. */

#include "ranks.h"

#include <pthread.h>

/* Attributes of the program's communicators are copied as without the library. */
static int copies;

static int copied(MPI_Comm comm, int keyval, void *extra, void *value, void *copy, int *flag)
{
    (void)comm, (void)keyval, (void)extra;
    *(void **)copy = value;
    *flag = 1;
    copies++;
    return MPI_SUCCESS;
}

static void come_and_go(void)
{
    int keyval;
    MPI_Comm_create_keyval(copied, MPI_COMM_NULL_DELETE_FN, &keyval, NULL);
    MPI_Comm_set_attr(MPI_COMM_WORLD, keyval, &keyval);
    for (int i = 0; i < 20; i++) {
        MPI_Comm copy, half;
        check(sum_of(1, MPI_COMM_WORLD) == ranks, "the sum of the world is wrong");
        MPI_Comm_dup(MPI_COMM_WORLD, &copy);
        MPI_Comm_split(copy, rank % 2, -rank, &half);
        check(sum_of(rank, copy) == ranks * (ranks - 1) / 2, "the sum of a copy is wrong");
        int own = 0;
        for (int other = rank % 2; other < ranks; other += 2)
            own += other;
        check(sum_of(rank, half) == own, "the sum of a part is wrong");
        if (i % 3 != 0)
            MPI_Comm_free(&copy);
        check(sum_of(rank, half) == own, "the sum of a part is wrong after a free");
        if (i % 2 == 0)
            MPI_Comm_disconnect(&half);
    }
    check(copies == 20, "an attribute of the program is copied too often");
    MPI_Comm_delete_attr(MPI_COMM_WORLD, keyval);
    MPI_Comm_free_keyval(&keyval);
    check(sum_of(7, MPI_COMM_SELF) == 7, "the sum of one rank is wrong");
}

/* A broadcast from rank 0 to the other group, and an all-gather in which the groups contribute different counts. */
static void moves_between(MPI_Comm both)
{
    int value = rank == 0 ? 7 : 0, own[2] = { rank, rank }, gotten[2 * ranks];
    if (rank % 2 == 0)
        MPI_Bcast(&value, 1, MPI_INT, rank == 0 ? MPI_ROOT : MPI_PROC_NULL, both);
    else
        MPI_Bcast(&value, 1, MPI_INT, 0, both);
    check(value == (rank == 0 || rank % 2 == 1 ? 7 : 0), "the broadcast to the other group is wrong");
    MPI_Allgather(own, 1 + rank % 2, MPI_INT, gotten, 2 - rank % 2, MPI_INT, both);
    check(gotten[0] == 1 - rank % 2, "what the other group gives is wrong");
}

/* Two groups: each gets the sum of the other. */
static void two_groups(void)
{
    MPI_Comm half, both;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank % 2 ? 0 : 1, 3, &both);
    int others;
    MPI_Comm_remote_size(both, &others);
    check(sum_of(1, both) == others, "the sum of the other group is wrong");
    moves_between(both);
    MPI_Comm all;
    MPI_Intercomm_merge(both, rank % 2, &all);
    check(sum_of(1, all) == ranks, "the sum of merged groups is wrong");
    MPI_Comm_free(&all), MPI_Comm_free(&both), MPI_Comm_free(&half);
}

/* Each thread has its own communicator. */
static void *of_thread(void *comm)
{
    for (int i = 0; i < 200; i++)
        check(sum_of(i, *(MPI_Comm *)comm) == i * ranks, "the sum of a thread is wrong");
    return NULL;
}

static void threads(void)
{
    enum { THREADS = 3 };
    pthread_t running[THREADS];
    MPI_Comm comms[THREADS];
    for (int i = 0; i < THREADS; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
        pthread_create(&running[i], NULL, of_thread, &comms[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(running[i], NULL);
        MPI_Comm_free(&comms[i]);
    }
}

int main(int argc, char **argv)
{
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    come_and_go();
    two_groups();
    if (provided == MPI_THREAD_MULTIPLE)
        threads();
    if (rank == 0)
        printf("%d ranks: all right\n", ranks);
    MPI_Finalize();
    return 0;
}
