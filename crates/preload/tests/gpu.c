/* An MPI that accepts arrays in GPU memory, and CUDA's driver, for a program that has neither. */

int MPIX_Query_cuda_support(void)
{
    return 1;
}
