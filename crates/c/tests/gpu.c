/* Tests arrays in GPU memory, with the CUDA driver that the loader finds: a stand-in in tests, or the real one in scripts/gpu-check. */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "unisono.h"

static void *driver;

#define CHECK(holds)                                                                                    \
    do {                                                                                                \
        if (!(holds)) {                                                                                 \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #holds, unisono_last_error());               \
            exit(1);                                                                                    \
        }                                                                                               \
    } while (0)

typedef void (*function)(void);

/* Returns a function of the driver. ISO C has no conversion of an object pointer to a function pointer. */
static function of_driver(const char *name) {
    void *found = dlsym(driver, name);
    function pointer;
    CHECK(found != NULL);
    memcpy(&pointer, &found, sizeof pointer);
    return pointer;
}

#define CUDA(name, types) ((int(*) types)of_driver(name))

static void *on_gpu(const float *values, size_t count) {
    unsigned long long address = 0;
    CHECK(CUDA("cuMemAlloc_v2", (unsigned long long *, size_t))(&address, count * sizeof *values) == 0);
    CHECK(CUDA("cuMemcpyHtoD_v2", (unsigned long long, const void *, size_t))(
              address, values, count * sizeof *values) == 0);
    /* The driver may return while it still copies from an internal buffer, for which the program's stream does not wait. */
    CHECK(CUDA("cuCtxSynchronize", (void))() == 0);
    return (void *)(size_t)address;
}

static void read_back(float *values, void *data, size_t count) {
    CHECK(CUDA("cuMemcpyDtoH_v2", (void *, unsigned long long, size_t))(
              values, (unsigned long long)(size_t)data, count * sizeof *values) == 0);
}

enum { COUNT = 1000 };

int main(void) {
    unisono_comm *comm = NULL;
    unisono_call call = {0};
    void *context = NULL, *stream = NULL, *data, *other;
    float values[COUNT];
    size_t start = 0, length = 0;
    CHECK(unisono_start_launched(NULL, &comm) == UNISONO_OK);
    int rank = unisono_rank(comm), size = unisono_size(comm), devices = 0;

    driver = dlopen("libcuda.so", RTLD_NOW);
    if (driver == NULL) driver = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(driver != NULL);
    CHECK(CUDA("cuInit", (unsigned))(0) == 0);
    CHECK(CUDA("cuDeviceGetCount", (int *))(&devices) == 0 && devices > 0);
    CHECK(CUDA("cuDevicePrimaryCtxRetain", (void **, int))(&context, rank % devices) == 0);
    CHECK(CUDA("cuCtxSetCurrent", (void *))(context) == 0);
    CHECK(CUDA("cuStreamCreate", (void **, unsigned))(&stream, 1) == 0);
    for (int element = 0; element < COUNT; element++) values[element] = (float)(rank + element);
    data = on_gpu(values, COUNT);

    /* The values of the root, and twice the sum of the first values of all ranks. */
    CHECK(unisono_gpu_broadcast(comm, data, COUNT, UNISONO_F32, size - 1, stream, NULL) == UNISONO_OK);
    call.label = "sum";
    CHECK(unisono_gpu_all_reduce(comm, data, COUNT, UNISONO_F32, UNISONO_SUM, stream, &call) == UNISONO_OK);
    CHECK(unisono_gpu_barrier(comm, stream, NULL) == UNISONO_OK);
    CHECK(unisono_gpu_synchronize(comm, stream, NULL) == UNISONO_OK);
    read_back(values, data, COUNT);
    for (int element = 0; element < COUNT; element++) {
        CHECK(values[element] == (float)(size * (size - 1 + element)));
    }

    /* A reduce-scatter followed by an all-gather is an all-reduce. */
    for (int element = 0; element < COUNT; element++) values[element] = (float)(rank + element);
    other = on_gpu(values, COUNT);
    CHECK(unisono_gpu_reduce_scatter(comm, other, COUNT, UNISONO_F32, UNISONO_MAX, stream, NULL) == UNISONO_OK);
    CHECK(unisono_gpu_all_gather(comm, other, COUNT, UNISONO_F32, stream, NULL) == UNISONO_OK);
    CHECK(unisono_gpu_reduce(comm, other, COUNT, UNISONO_F32, UNISONO_MIN, 0, stream, NULL) == UNISONO_OK);
    CHECK(unisono_gpu_synchronize(comm, stream, NULL) == UNISONO_OK);
    read_back(values, other, COUNT);
    for (int element = 0; element < COUNT; element++) {
        CHECK(rank != 0 || values[element] == (float)(size - 1 + element));
    }
    CHECK(unisono_own_part(comm, COUNT, &start, &length) == UNISONO_OK);
    CHECK(values[start] == (float)(size - 1 + (int)start));

    /* The program's context is still current, and arrays in host memory are invalid. */
    void *current = NULL;
    CHECK(CUDA("cuCtxGetCurrent", (void **))(&current) == 0 && current == context);
    CHECK(unisono_gpu_all_reduce(comm, values, COUNT, UNISONO_F32, UNISONO_SUM, stream, NULL) ==
          UNISONO_ERROR_UNSUPPORTED);
    CHECK(strstr(unisono_last_error(), "not in the memory of a GPU") != NULL);
    CHECK(unisono_gpu_broadcast(comm, data, COUNT, UNISONO_F32, size, stream, NULL) == UNISONO_ERROR_ARGUMENT);
    CHECK(unisono_gpu_all_reduce(comm, NULL, 0, UNISONO_F32, UNISONO_SUM, stream, NULL) == UNISONO_OK);
    if (devices > 1) {
        void *of_another = NULL;
        CHECK(CUDA("cuDevicePrimaryCtxRetain", (void **, int))(&of_another, (rank + 1) % devices) == 0);
        CHECK(CUDA("cuCtxSetCurrent", (void *))(of_another) == 0);
        for (int each = 0; each < 2; each++) {
            CHECK(unisono_gpu_broadcast(comm, data, COUNT, UNISONO_F32, 0, stream, NULL) == UNISONO_OK);
            CHECK(CUDA("cuCtxGetCurrent", (void **))(&current) == 0 && current == of_another);
        }
        CHECK(CUDA("cuCtxSetCurrent", (void *))(context) == 0);
    }

    /* The last rank makes a call that differs from the others, of a kind that all have made before. Two ranks may detect the mismatch while
     * a third is still in earlier calls, which then report it. */
    if (size > 1) {
        size_t last = rank == size - 1 ? COUNT / 2 : COUNT;
        const size_t counts[] = {COUNT / 2, COUNT, last};
        int code = UNISONO_OK;
        for (int each = 0; each < 3 && code == UNISONO_OK; each++) {
            code = unisono_gpu_all_reduce(comm, data, counts[each], UNISONO_F32, UNISONO_SUM, stream, NULL);
            if (code == UNISONO_OK) code = unisono_gpu_synchronize(comm, stream, NULL);
        }
        CHECK(code == UNISONO_ERROR_MISMATCH || code == UNISONO_ERROR_ABORTED);
        CHECK(strstr(unisono_last_error(), "of 500 f32") && strstr(unisono_last_error(), "of 1000 f32"));
    }
    printf("rank %d of %d: all right\n", rank, size);
    unisono_free(comm);
    return 0;
}
