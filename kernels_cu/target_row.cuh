// target_row.cuh: what the kernels of target_token share: prefix sums, the nucleus of a row.
#ifndef KD_TARGET_ROW_CUH
#define KD_TARGET_ROW_CUH

#include "row_tickets.cuh"

#define KD_TARGET_THREADS 256
#define KD_TARGET_WARPS (KD_TARGET_THREADS / 32)
#define KD_TARGET_SLICES 16  // most slices of a row

// All threads of the block: the sum over lower threads, and of all; combined in a fixed order.  `scratch` has one T a
// warp; begins and ends with a barrier.
template <class T>
__device__ T sum_before(T value, T* scratch, T& total)
{
    T upto = value;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        const T left = __shfl_up_sync(KD_FULL_MASK, upto, offset);
        if (lane_id() >= offset) upto += left;
    }
    const T left = __shfl_up_sync(KD_FULL_MASK, upto, 1);
    __syncthreads();
    if (lane_id() == 31) scratch[warp_id()] = upto;
    __syncthreads();
    const int warps = int(blockDim.x) >> 5;
    T all = lane_id() < warps ? scratch[lane_id()] : T(0);  // each warp adds the warps' sums
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        const T lower = __shfl_up_sync(KD_FULL_MASK, all, offset);
        if (lane_id() >= offset) all += lower;
    }
    const T before = __shfl_sync(KD_FULL_MASK, all, max(warp_id() - 1, 0));
    total = __shfl_sync(KD_FULL_MASK, all, 31);
    __syncthreads();
    return (warp_id() ? before : T(0)) + (lane_id() ? left : T(0));
}

// What top-p keeps of a row: logits above `edge`, and the first `ties` that equal it.
struct Nucleus {
    float peak, total;         // largest logit; mass of the row, relative to it
    float edge;
    int ties, bad;
    unsigned prefix;           // digits of the edge's key found so far
    unsigned long long above;  // mass above these digits, in units of total / 2^31
};

struct Kept {  // what a thread may count: all of a row, or its nucleus
    float edge;
    int ties;
};

#endif
