/* All-reduces among processes that a launcher has started: cc without_mpi.c $(pkg-config --cflags --libs unisono), and then
 * unisono launch -n 2 -- ./a.out, torchrun, or a shell loop that sets RANK and WORLD_SIZE. */

#include <stdio.h>
#include <unisono.h>

int main(void)
{
    double loss[2];
    unisono_comm *comm = NULL;
    unisono_request *request = NULL;
    unisono_call labelled = {0};

    if (unisono_start_launched(NULL, &comm) != UNISONO_OK) {
        fprintf(stderr, "unisono: %s\n", unisono_last_error());
        return 1;
    }
    loss[0] = loss[1] = unisono_rank(comm);

    /* Non-blocking: this thread could compute in between. */
    labelled.label = "loss";
    if (unisono_all_reduce_async(comm, loss, 2, UNISONO_F64, UNISONO_MEAN, &labelled, &request) != UNISONO_OK
        || unisono_wait(&request) != UNISONO_OK) {
        fprintf(stderr, "unisono: %s\n", unisono_last_error());
        return 1;
    }
    printf("rank %d of %d: %g\n", unisono_rank(comm), unisono_size(comm), loss[0]);
    unisono_free(comm);
    return 0;
}
