// faults.cu: kernels that go wrong in one way each, for tests of the worker process.
//
// Launch     grid 1, block 32, dynamic shared 0
#include "common.cuh"

extern "C" __global__ void crash_v1(int* x) { ((volatile int*)8)[threadIdx.x] = x[0]; }

extern "C" __global__ void beyond_v1(int* x, int n) { x[n + threadIdx.x] = 1; }

extern "C" __global__ void endless_v1(int* x)
{
    volatile int* flag = x;
    while (*flag == 0) {}
}

extern "C" __global__ void fine_v1(int* x) { x[threadIdx.x] = threadIdx.x; }
