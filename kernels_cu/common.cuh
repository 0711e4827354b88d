// common.cuh: what every kernel shares: number types, dynamic shared memory, reductions.
//
// One file serves NVRTC and the CPU (kernels_cu/host/cuda_host.h is then included before it).  A helper that needs
// PTX has two bodies: the asm under __CUDACC_RTC__ and its twin in C++, which is its specification.  No <cstdint>,
// no cooperative groups, no CCCL: NVRTC lacks the first, the others cost seconds of compile time.
#ifndef KD_COMMON_CUH
#define KD_COMMON_CUH

#ifdef __CUDACC_RTC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

#define KD_FULL_MASK 0xffffffffu
#define KD_INFINITY __int_as_float(0x7f800000)
#define KD_NAN __int_as_float(0x7fffffff)

// T* name: the block's dynamic shared memory, aligned to 128 bytes.
#ifdef __CUDACC_RTC__
#define DYN_SHARED(T, name)                                             \
    extern __shared__ __align__(128) unsigned char kd_dynamic_shared[]; \
    T* name = reinterpret_cast<T*>(kd_dynamic_shared)
#else
#define DYN_SHARED(T, name) T* name = reinterpret_cast<T*>(kd_host::current->block->shared)
#endif

// Number of this thread in its block, x running fastest.
__device__ __forceinline__ int thread_number()
{
    return int((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x);
}

__device__ __forceinline__ int lane_id()
{
#ifdef __CUDACC_RTC__
    unsigned lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return int(lane);
#else
    return kd_host::current->lane;
#endif
}

__device__ __forceinline__ int warp_id() { return thread_number() >> 5; }

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

template <class First, class Second> constexpr bool same_type = false;   // whole words: one-letter macros are the user's
template <class First> constexpr bool same_type<First, First> = true;

// ---- number types ----

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__nv_fp8_e4m3 x) { return float(x); }

template <class T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ __half from_float<__half>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ __nv_fp8_e4m3 from_float<__nv_fp8_e4m3>(float x) { return __nv_fp8_e4m3(x); }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

// ---- reductions: all lanes of a full warp, all threads of a block, must call them ----

struct Sum { template <class T> __device__ static T of(T a, T b) { return a + b; } };
struct Smallest { template <class T> __device__ static T of(T a, T b) { return b < a ? b : a; } };
struct Largest { template <class T> __device__ static T of(T a, T b) { return a < b ? b : a; } };

// Butterfly: every lane gets the result, and the same one, since each step combines the same pairs of lanes.
template <class Operation, class T>
__device__ __forceinline__ T warp_reduce(T value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1)
        value = Operation::of(value, __shfl_xor_sync(KD_FULL_MASK, value, offset));
    return value;
}

template <class T> __device__ __forceinline__ T warp_sum(T value) { return warp_reduce<Sum>(value); }
template <class T> __device__ __forceinline__ T warp_min(T value) { return warp_reduce<Smallest>(value); }
template <class T> __device__ __forceinline__ T warp_max(T value) { return warp_reduce<Largest>(value); }

// Every thread gets the result; blockDim must be a multiple of 32.  `scratch` holds one T a warp in shared memory
// and may be used again at once: the function begins and ends with a barrier.  Warps are combined in ascending order.
template <class Operation, class T>
__device__ __forceinline__ T block_reduce(T value, T* scratch)
{
    const int warps = int(blockDim.x * blockDim.y * blockDim.z) >> 5;
    value = warp_reduce<Operation>(value);
    __syncthreads();
    if (lane_id() == 0) scratch[warp_id()] = value;
    __syncthreads();
    T total = scratch[0];
    for (int w = 1; w < warps; ++w) total = Operation::of(total, scratch[w]);
    __syncthreads();
    return total;
}

template <class T>
__device__ __forceinline__ T block_sum(T value, T* scratch)
{
    return block_reduce<Sum>(value, scratch);
}

template <class T>
__device__ __forceinline__ T block_min(T value, T* scratch)
{
    return block_reduce<Smallest>(value, scratch);
}

template <class T>
__device__ __forceinline__ T block_max(T value, T* scratch)
{
    return block_reduce<Largest>(value, scratch);
}

#endif
