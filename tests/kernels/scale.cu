// scale.cu: y = x * KD_FACTOR + shift, for tests of the library itself.
//
// Launch     scale_v1: grid ceil(n / 128), block 128, dynamic shared 0
//            reverse_v1: grid 1, block KD_BLOCK, dynamic shared 4 * KD_BLOCK bytes
#include "scale.cuh"

#ifndef KD_BLOCK
#define KD_BLOCK 256
#endif

extern "C" __global__ void __launch_bounds__(128)
scale_v1(const float* __restrict__ x, float* __restrict__ y, float shift, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * KD_FACTOR + shift;
}

// Reverses one block of n <= KD_BLOCK ints through shared memory.
extern "C" __global__ void __launch_bounds__(KD_BLOCK)
reverse_v1(const int* x, int* y, long long n)
{
    DYN_SHARED(int, staged);
    const int i = threadIdx.x;
    if (i < n) staged[i] = x[i];
    __syncthreads();
    if (i < n) y[i] = staged[n - 1 - i];
}
