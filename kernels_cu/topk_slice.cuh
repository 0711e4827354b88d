// topk_slice.cuh: one pass of one block over a slice of a row: a list that holds its K best, and its sum of exponentials.
#ifndef KD_TOPK_SLICE_CUH
#define KD_TOPK_SLICE_CUH

#include "radix_select.cuh"

#define KD_TOPK_THREADS KD_SELECT_THREADS
#define KD_TOPK_RESIDENT 3                          // blocks of a multiprocessor
#define KD_TOPK_SPAN (KD_TOPK_THREADS * KD_UNROLL)  // chunks of a tile
#define KD_TOPK_STEP (KD_TOPK_THREADS * KD_PACK)    // most elements that one round of appending adds

struct Edge {
    float least;    // logits below cannot be among the k best
    float reached;  // at least k elements so far are this large, or it is -inf
};

struct SliceMemory {
    Counts counts;
    float scratch[KD_ROW_WARPS];
    int listed;
    Edge edge;
    int risky;  // sums must be made with care
    LogitRow row;
    int number, first, end;  // row; chunks of the slice
    Composite* buffer;
    int k, room, capacity;  // more than `room` elements are cut to k; `capacity` is room + KD_TOPK_STEP
    int offsets[KD_ROW_SLICES + 1];  // the rest: of a whole row
    float reached, peak, log_sum;
};

// What one block says of its slice.
struct __align__(16) SlicePart {
    int listed;
    float edge;  // at least k elements of the slice are this large, or it is -inf
    float peak, sum;
};

// Add elements to the list: bit u * KD_PACK + j of `found` is element j of chunk c + u * KD_TOPK_THREADS.  Returns whether
// the list has become longer than `room`.
__device__ __forceinline__ bool list_elements(SliceMemory& list, int c, unsigned found)
{
    const LogitRow& row = list.row;
    unsigned real = 0;
    for (unsigned left = found; left; left &= left - 1) {
        const int bit = __ffs(int(left)) - 1;
        if (row.has(row.id(c + bit / KD_PACK * KD_TOPK_THREADS) + bit % KD_PACK)) real |= 1u << bit;
    }
    int slot = atomicAdd(&list.listed, __popc(real));
    for (; real; real &= real - 1, ++slot) {
        const int bit = __ffs(int(real)) - 1, id = row.id(c + bit / KD_PACK * KD_TOPK_THREADS) + bit % KD_PACK;
        if (slot < list.capacity) list.buffer[slot] = composite(to_float(row.start[row.shift + id]), id);
    }
    return slot > list.room;
}

// All threads: add what reaches the edge among `count` chunks of each thread; chunks from `end` on are none.
template <int count>
__device__ __forceinline__ bool append(SliceMemory& list, const uint4* chunks, int c, int end)
{
    const float edge = list.edge.least;
    unsigned found = 0;
#pragma unroll
    for (int u = 0; u < count; ++u) {
        if (c + u * KD_TOPK_THREADS >= end || !(chunk_top(chunks[u]) >= edge)) continue;
#pragma unroll
        for (int j = 0; j < KD_PACK; ++j) found |= unsigned(element(chunks[u], j) >= edge) << (u * KD_PACK + j);
    }
    return found && list_elements(list, c, found);
}

// All threads: cut the list's n elements to its k best and few more.
__device__ __noinline__ void cut(SliceMemory& list, int n)
{
    const Threshold found = select_threshold(list.counts, {list.buffer, nullptr, n, 0}, list.k, list.k + (list.k >> 2));
    compact(list.buffer, n, &list.listed, found.least, KD_MOST_ID + 1);
    // Elements to come have higher ids, so an equal logit is not enough if exactly k are left.
    const unsigned key = composite_key(found.least);
    if (thread_number() == 0) list.edge = {key_value(key + (found.total == list.k ? 1u : 0u)), key_value(key)};
    __syncthreads();
}

// All threads, after a barrier: cut the list to `room` at most.  If the tile at chunk `base` did not fit, take it back and
// append it again, read again, in parts that do.
__device__ __noinline__ void shorten(SliceMemory& list, int base, int end)
{
    const int n = list.listed;
    if (n <= list.capacity) {
        cut(list, n);
        return;
    }
    compact(list.buffer, list.capacity, &list.listed, 0, max(list.row.id(base), 0));
#pragma unroll 1
    for (int u = 0; u < KD_UNROLL; ++u) {
        const int c = base + u * KD_TOPK_THREADS + thread_number();
        const uint4 chunk = list.row.load(c, end);
        append<1>(list, &chunk, c, end);
        __syncthreads();
        const int kept = list.listed;
        __syncthreads();
        if (kept > list.room) cut(list, kept);
    }
}

__device__ __forceinline__ void load_tile(const LogitRow& row, int base, int end, uint4* tile)
{
#pragma unroll
    for (int u = 0; u < KD_UNROLL; ++u) tile[u] = row.load(base + u * KD_TOPK_THREADS + thread_number(), end);
}

// All threads: a value that at least k elements of the first tile reach, or -inf.  Chunks stand for their largest element
// where there are many more chunks than k: an eighth of the counting for a bound that is nearly as high.
__device__ __forceinline__ float first_edge(SliceMemory& memory, const LogitRow& row, const uint4* tile, int first, int end,
    int k, float peak)
{
    const int last = min(end, first + KD_TOPK_SPAN), t = thread_number();
    float lowest = KD_INFINITY;
#pragma unroll
    for (int u = 0; u < KD_UNROLL; ++u)
        if (first + u * KD_TOPK_THREADS + t < last) lowest = fminf(lowest, chunk_top(tile[u]));
    lowest = row_min(lowest, memory.scratch);
    if (last - first < k) return -KD_INFINITY;  // below: each chunk has an element that reaches `lowest`
    const ValueBins bins(lowest, peak);
    if (last - first >= 4 * k) {
#pragma unroll
        for (int u = 0; u < KD_UNROLL; ++u)
            if (first + u * KD_TOPK_THREADS + t < last) memory.counts.add(bins.of(chunk_top(tile[u])));
    } else {
#pragma unroll 1
        for (int c = first + t; c < last; c += KD_TOPK_THREADS) {
            const uint4 chunk = row.load(c, end);
#pragma unroll
            for (int j = 0; j < KD_PACK; ++j) {
                const float x = element(chunk, j);
                if (x >= lowest && row.has(row.id(c) + j)) memory.counts.add(bins.of(x));
            }
        }
    }
    __syncthreads();
    find_digit(memory.counts, unsigned(k));
    return bins.edge(memory.counts.digit);
}

// All threads: the sum of exponentials of a slice whose numbers are so large that products overflow, or not finite.
__device__ __noinline__ float careful_sum(SliceMemory& memory, float scale, float peak)
{
    const Mass mass(scale);
    float sum = 0.0f;
#pragma unroll 1
    for (int c = memory.first + thread_number(); c < memory.end; c += KD_TOPK_THREADS) {
        const uint4 chunk = memory.row.load(c, memory.end);
#pragma unroll
        for (int j = 0; j < KD_PACK; ++j) sum = mass.add(sum, element(chunk, j), peak);
    }
    return row_sum(sum, memory.scratch);
}

// All threads: read the slice.
__device__ __forceinline__ SlicePart scan_slice(SliceMemory& memory, const Mass& mass, int k)
{
    const int t = thread_number();
    const LogitRow& row = memory.row;  // in shared memory, for want of registers
    uint4 tile[KD_UNROLL];
    load_tile(row, memory.first, memory.end, tile);
    memory.counts.clear();
    if (t == 0) memory.listed = 0;
    float top = -KD_INFINITY, sum = 0.0f;
#pragma unroll
    for (int u = 0; u < KD_UNROLL; ++u) top = larger(top, chunk_top(tile[u]));
    const FastMass fast = {mass.scale};
    float peak = larger(row_max(top, memory.scratch), -KD_LARGEST), offset = fast.offset(peak);
    const float edge = first_edge(memory, row, tile, memory.first, memory.end, k, peak);
    if (t == 0) memory.edge = {edge, edge}, memory.risky = !fast.safe(peak);  // nothing but -inf so far, say
    __syncthreads();
#pragma unroll 1
    for (int base = memory.first; base < memory.end; base += KD_TOPK_SPAN) {
        if (base > memory.first) load_tile(row, base, memory.end, tile);
        top = -KD_INFINITY;
#pragma unroll
        for (int u = 0; u < KD_UNROLL; ++u) top = larger(top, chunk_top(tile[u]));
        if (top > peak) {
            const float higher = fast.offset(top);
            sum *= exp2_approximate(offset - higher);
            peak = top, offset = higher;
        }
        float parts[2] = {0.0f, 0.0f};  // short chains: less rounding, more at once
#pragma unroll
        for (int u = 0; u < KD_UNROLL; ++u) {
            wait_for(parts[1], tile[u]);
#pragma unroll
            for (int j = 0; j < KD_PACK; ++j) parts[j & 1] += fast.of(element(tile[u], j), offset);
        }
        sum += parts[0] + parts[1];
        const bool more = append<KD_UNROLL>(memory, tile, base + t, memory.end);
        if (__syncthreads_or(more)) shorten(memory, base, memory.end);
    }
    const float most = larger(row_max(peak, memory.scratch), -KD_LARGEST);
    sum = fast.relative(sum, peak, offset);
    sum = row_sum(sum == 0.0f ? 0.0f : sum * mass.of(peak, most), memory.scratch);
    if (__syncthreads_or(memory.risky || !fast.safe(peak))) sum = careful_sum(memory, mass.scale, most);
    return {memory.listed, memory.edge.reached, most, sum};
}

#endif
