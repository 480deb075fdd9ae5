/* The part of CUDA's headers that NCCL's header uses: handles that are only passed on. So no CUDA is needed to bind it. */
#ifndef UNISONO_CUDA_RUNTIME_H
#define UNISONO_CUDA_RUNTIME_H

/* Old enough that `cuda_fp8.h` is not included, and new enough for `cuda_bf16.h`. */
#define CUDART_VERSION 11000

#include <stddef.h> /* NCCL's header relies on it. */

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

#endif
