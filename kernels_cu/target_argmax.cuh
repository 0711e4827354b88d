// target_argmax.cuh: the largest logit of a slice and its first id, and of a row that several blocks share.
#ifndef KD_TARGET_ARGMAX_CUH
#define KD_TARGET_ARGMAX_CUH

#include "target_row.cuh"

#define KD_ARGMAX_THREADS 1024  // most threads of a block
#define KD_ARGMAX_UNROLL 10     // chunks that a thread loads at once: argmax has registers to spare

template <int count, bool whole>
__device__ __forceinline__ float largest_of(const LogitRow& row, int base, int end)
{
    uint4 tile[count];
#pragma unroll
    for (int u = 0; u < count; ++u) tile[u] = row.read(base + u * 32, end);
    float top = -KD_INFINITY;
#pragma unroll
    for (int u = 0; u < count; ++u) {
        if (!whole) row.hide(tile[u], base + u * 32);
        top = larger(top, chunk_top(tile[u]));
    }
    return top;
}

// This thread: the largest of chunks base, base + 32, ... before `end`; NaN if one is.
__device__ __forceinline__ float largest_of_tile(const LogitRow& row, int base, int end)
{
    constexpr int half = KD_ARGMAX_UNROLL / 2;
    if (row.whole()) return largest_of<KD_ARGMAX_UNROLL, true>(row, base, end);
    const float top = largest_of<half, false>(row, base, end);
    return larger(top, largest_of<half, false>(row, base + half * 32, end));
}

// The first id in the same chunks whose logit is `x`; KD_MOST_ID if there is none.
__device__ __forceinline__ unsigned id_in_tile(const LogitRow& row, int base, int end, float x)
{
    unsigned id = KD_MOST_ID;
#pragma unroll 2
    for (int u = KD_ARGMAX_UNROLL - 1; u >= 0; --u) {
        const int c = base + u * 32;
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
    const unsigned own = lane_id() < int(blockDim.x) >> 5 ? scratch[lane_id()] : 0u;
    return __reduce_max_sync(KD_FULL_MASK, own);
}

#define KD_ARRIVED (1ull << 63)

// One thread a block: meet the other blocks of a row, in pairs, at `slots` (zero before and after, `slices` of them, a power of
// 2).  The first of a pair leaves what it has and gets 0; the second goes on with the larger of both.  What is handed over
// lies in the exchanged number itself, so that no fence is needed.  Returns the row's largest with KD_ARRIVED, or 0.
__device__ __forceinline__ unsigned long long meet(unsigned long long own, unsigned long long* slots, int slice, int slices)
{
    own |= KD_ARRIVED;
    for (int node = slices + slice; node > 1;) {
        node >>= 1;
        const unsigned long long other = atomicExch(&slots[node], own);
        if (other == 0) return 0;
        slots[node] = 0;
        own = max(own, other);
    }
    return own;
}

#endif
