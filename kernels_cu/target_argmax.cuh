// target_argmax.cuh: the largest logit of a slice and its first id; the last block of a request.
#ifndef KD_TARGET_ARGMAX_CUH
#define KD_TARGET_ARGMAX_CUH

#include "target_row.cuh"

#define KD_ARGMAX_UNROLL 10  // chunks that a thread loads at once: argmax has registers to spare

template <int count, bool whole>
__device__ __forceinline__ float largest_of(const LogitRow& row, int base, int end)
{
    uint4 tile[count];
#pragma unroll
    for (int u = 0; u < count; ++u) tile[u] = row.read(base + u * KD_TARGET_THREADS, end);
    float top = -KD_INFINITY;
#pragma unroll
    for (int u = 0; u < count; ++u) {
        if (!whole) row.hide(tile[u], base + u * KD_TARGET_THREADS);
        top = larger(top, chunk_top(tile[u]));
    }
    return top;
}

// This thread: the largest of chunks base, base + KD_TARGET_THREADS, ... before `end`; NaN if one is.
__device__ __forceinline__ float largest_of_tile(const LogitRow& row, int base, int end)
{
    constexpr int half = KD_ARGMAX_UNROLL / 2;
    if (row.whole()) return largest_of<KD_ARGMAX_UNROLL, true>(row, base, end);
    const float top = largest_of<half, false>(row, base, end);
    return larger(top, largest_of<half, false>(row, base + half * KD_TARGET_THREADS, end));
}

// The first id in the same chunks whose logit is `x`; KD_MOST_ID if there is none.
__device__ __forceinline__ unsigned id_in_tile(const LogitRow& row, int base, int end, float x)
{
    unsigned id = KD_MOST_ID;
#pragma unroll 2
    for (int u = KD_ARGMAX_UNROLL - 1; u >= 0; --u) {
        const int c = base + u * KD_TARGET_THREADS;
        if (c >= end) continue;
        const uint4 chunk = row.load(c, end);
#pragma unroll
        for (int j = KD_PACK - 1; j >= 0; --j)
            if (element(chunk, j) == x) id = unsigned(row.id(c) + j);
    }
    return id;
}

// All threads: the largest value of the block.  One barrier; `scratch` has one number a warp.
__device__ __forceinline__ unsigned block_most(unsigned value, unsigned* scratch)
{
    value = __reduce_max_sync(KD_FULL_MASK, value);
    if (lane_id() == 0) scratch[warp_id()] = value;
    __syncthreads();
    unsigned most = 0;
#pragma unroll
    for (int w = 0; w < KD_TARGET_WARPS; ++w) most = max(most, scratch[w]);
    return most;
}

// All threads: whether this is the last of a request's blocks.  What thread 0 of the others wrote can then be read with
// __ldcg.
__device__ inline bool last_block_of_request(unsigned long long* tickets, int request, int blocks)
{
    __shared__ int last;
    if (thread_number() == 0) {
        fence_device();
        last = atomicAdd(&tickets[request], 1ull) + 1 == (unsigned long long)blocks;
        if (last) tickets[request] = 0;
        fence_device();
    }
    __syncthreads();
    return last != 0;
}

#endif
