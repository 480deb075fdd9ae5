/* Checks that the library starts no thread and handles no signal, and that a killed rank is an error on the others. The argument selects
 * how they wait. Exits with 0 if all checks pass. */

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unisono.h>

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, unisono_last_error());            \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

enum { COUNT = 100000 };

static int threads(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;)
        count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static void handles_nothing(void)
{
    for (int number = 1; number < 32; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) == 0)
            CHECK(action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN);
    }
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int count, char **arguments)
{
    static float values[COUNT];
    unisono_comm *comm = NULL;
    unisono_request *request = NULL;
    const int blocks = count == 2 && strcmp(arguments[1], "blocking") == 0;
    int code;

    CHECK(unisono_start_launched(NULL, &comm) == UNISONO_OK);
    CHECK(threads() == 1);
    for (int call = 0; call < 3; call++)
        CHECK(unisono_all_reduce(comm, values, COUNT, UNISONO_F32, UNISONO_SUM, NULL) == UNISONO_OK);
    CHECK(unisono_barrier(comm, NULL) == UNISONO_OK);
    CHECK(threads() == 1);
    handles_nothing();

    if (unisono_rank(comm) == 1)
        raise(SIGKILL);
    const double began_s = now_s();
    if (blocks) {
        code = unisono_all_reduce(comm, values, COUNT, UNISONO_F32, UNISONO_SUM, NULL);
        CHECK(threads() == 1);
    } else {
        CHECK(unisono_all_reduce_async(comm, values, COUNT, UNISONO_F32, UNISONO_SUM, NULL, &request) == UNISONO_OK);
        CHECK(threads() == 2);
        code = unisono_wait(&request);
    }
    const double took_s = now_s() - began_s;
    CHECK(code == UNISONO_ERROR_ABORTED && unisono_failed_rank() == 1);
    CHECK(strstr(unisono_last_error(), "its process was killed") != NULL);
    /* The detection takes half a second; the rest is a margin for a busy machine. */
    CHECK(took_s < 3);
    /* The remaining ranks continue. */
    CHECK(unisono_shrink(&comm) == UNISONO_OK && unisono_size(comm) == 2);
    CHECK(unisono_former_rank(comm, 0) == 0 && unisono_former_rank(comm, 1) == 2);
    for (int i = 0; i < COUNT; i++)
        values[i] = 1;
    CHECK(unisono_all_reduce(comm, values, COUNT, UNISONO_F32, UNISONO_SUM, NULL) == UNISONO_OK);
    CHECK(values[0] == 2 && values[COUNT - 1] == 2);
    handles_nothing();
    unisono_free(comm);
    CHECK(threads() == 1);
    printf("an error after %.0f ms\n", took_s * 1000);
    return 0;
}
