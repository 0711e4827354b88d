// host_faults.cu: kernels with one mistake each, which the CPU execution must name; test_host_faults.py runs them.
//
// `bad` picks the block (x) that makes the mistake; the others behave.
#include "common.cuh"

#define HERE (int(blockIdx.x) == bad)

extern "C" __global__ void two_barriers(int bad)
{
    if (HERE && threadIdx.x >= 40) __syncthreads();
    else __syncthreads();
}

extern "C" __global__ void missing_barrier(int bad)
{
    if (HERE && threadIdx.x >= 48) return;
    __syncthreads();
}

extern "C" __global__ void barrier_against_warp(int bad)
{
    if (HERE && threadIdx.x < 7) __syncwarp(0xff);
    else __syncthreads();
    if (HERE && threadIdx.x >= 7) __syncwarp();
}

extern "C" __global__ void two_masks(int bad, int* out)
{
    const unsigned mask = HERE && threadIdx.x == 5 ? 0xfff0u : KD_FULL_MASK;
    out[threadIdx.x] = __shfl_sync(mask, int(threadIdx.x), 4);
}

extern "C" __global__ void two_collectives(int bad, int* out)
{
    if (HERE && threadIdx.x == 9) out[0] = __any_sync(KD_FULL_MASK, 1);
    else out[0] = __shfl_xor_sync(KD_FULL_MASK, 1, 1);
}

extern "C" __global__ void not_in_mask(int bad)
{
    __syncwarp(HERE ? 0xffff7fffu : KD_FULL_MASK);
}

extern "C" __global__ void lanes_elsewhere(int bad, int* out)  // waits for a lane that waits for the block
{
    if (HERE && threadIdx.x == 3) __syncthreads();
    out[threadIdx.x] = __reduce_max_sync(KD_FULL_MASK, threadIdx.x);
}

extern "C" __global__ void bad_width(int bad, int* out)
{
    out[threadIdx.x] = __shfl_sync(KD_FULL_MASK, 1, 0, HERE ? 12 : 16);
}

extern "C" __global__ void poke(int bad, const short* in, short* out, long long at, int write)
{
    if (!HERE || threadIdx.x != 2) return;
    if (write) out[at] = 7;
    else out[0] = in[at];
}

extern "C" __global__ void poke_shared(int bad, int at)
{
    DYN_SHARED(unsigned char, dynamic);
    if (HERE && threadIdx.x == 2) dynamic[at] = 1;
}

extern "C" __global__ void unwritten_shared(float* out, int n)
{
    __shared__ float whole[64];
    DYN_SHARED(float, dynamic);
    const int i = threadIdx.x;
    if (i < n) whole[i] = dynamic[i] = 1.0f;  // the rest is never written
    __syncthreads();
    out[blockIdx.x * blockDim.x + i] = whole[i] + dynamic[i];
}

extern "C" __global__ void no_barrier(int* out, int with_barrier)
{
    __shared__ int whole[64];
    const int i = threadIdx.x;
    whole[i] = i;
    if (with_barrier) __syncthreads();
    out[i] = whole[(i + 1) % 64];
}

extern "C" __global__ void last_block_wins(int* out) { out[0] = blockIdx.x; }

__device__ __noinline__ int deep(int n, volatile int* trace)
{
    volatile int local[256];
    local[n & 255] = n;
    if (n == 0) return trace[0];
    return deep(n - 1, trace) + local[n & 255];
}

extern "C" __global__ void deep_calls(int bad, int depth, int* out)
{
    out[blockIdx.x] = deep(HERE && threadIdx.x == 1 ? depth : 3, out);
}

extern "C" __global__ void divide(int bad, int zero, int* out)
{
    out[threadIdx.x] = 100 / (HERE && threadIdx.x == 6 ? zero : 5);
}

extern "C" __global__ void endless(int bad, volatile int* flag, int with_barrier)
{
    while (flag[0] == 0) {
        if (with_barrier == 2 && threadIdx.x == 0) printf("still here\n");
        if (with_barrier || !HERE) __syncthreads();
    }
}

extern "C" __global__ void fault_beside_endless(int bad, volatile int* flag)
{
    if (HERE) __trap();
    while (flag[0] == 0) {}
}

extern "C" __global__ void traps(int bad, int kind)
{
    if (!HERE || threadIdx.x != 4) return;
    if (kind == 0) __trap();
    assert(kind != 1);
}

extern "C" __global__ void undefined(int bad, int kind, int by, int* out)
{
    int small[4] = {1, 2, 3, 4};
    if (!HERE || threadIdx.x != 2) return;
    if (kind == 0) out[0] = 1 << by;
    if (kind == 1) out[0] = by + 2147483645;
    if (kind == 2) out[0] = small[by];
    if (kind == 3) out[0] = int(reinterpret_cast<float4*>(out + by)->x);
    if (kind == 4) out[0] = int(float(by) * 1e9f);
}
