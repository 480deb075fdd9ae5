/* Some of NCCL's headers have no `ncclBfloat16` where this is not defined. */
#define __CUDA_BF16_TYPES_EXIST__ 1
