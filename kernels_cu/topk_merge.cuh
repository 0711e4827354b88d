// topk_merge.cuh: the last block of a row makes one sorted list of what all slices found.
#ifndef KD_TOPK_MERGE_CUH
#define KD_TOPK_MERGE_CUH

#include "row_tickets.cuh"
#include "topk_slice.cuh"

// Warp 0; lane = slice.
__device__ inline void summarise(SliceMemory& memory, const SlicePart* parts, int slices, const Mass& mass)
{
    const int lane = lane_id();
    SlicePart own = {0, -KD_INFINITY, -KD_LARGEST, 0.0f};
    if (lane < slices) {
        const uint4 raw = __ldcg(reinterpret_cast<const uint4*>(&parts[lane]));
        own = {int(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z), __uint_as_float(raw.w)};
    }
    const float peak = warp_max(own.peak), edge = warp_max(own.edge);
    const float sum = warp_sum(own.sum != 0.0f ? own.sum * mass.of(own.peak, peak) : 0.0f);
    int upto = own.listed;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        const int left = __shfl_up_sync(KD_FULL_MASK, upto, offset);
        if (lane >= offset) upto += left;
    }
    memory.offsets[lane + 1] = upto;
    if (lane != 0) return;
    memory.offsets[0] = 0, memory.peak = peak, memory.reached = edge;
    memory.log_sum = sum == 0.0f ? 0.0f : logf(sum);
}

// All threads: `elements`, at least k of them, cut to the k best and few more in the buffer; returns how many.
__device__ __noinline__ int select_best(SliceMemory& list, Elements elements)
{
    const float edge = list.reached;
    const ValueBins bins(edge, list.peak);
    Counts& counts = list.counts;
#pragma unroll 4
    for (int i = thread_number(); i < elements.count; i += KD_SELECT_THREADS) {
        const float x = key_value(composite_key(elements.at(i)));
        if (x >= edge) counts.add(bins.of(x));
    }
    __syncthreads();
    find_digit(counts, unsigned(list.k));
    Composite least = Composite(order_key(bins.edge(counts.digit))) << KD_ID_BITS;
    // The edge lies a little below its bin, so a few elements more may reach it.
    if (counts.above + counts.inside > unsigned(list.k + (list.k >> 1) + 16))
        least = select_threshold(counts, elements, list.k, list.k + (list.k >> 1)).least;
    if (!elements.offsets) return compact(list.buffer, elements.count, &list.listed, least, KD_MOST_ID + 1);
    if (thread_number() == 0) list.listed = 0;
    __syncthreads();
#pragma unroll 4
    for (int i = thread_number(); i < elements.count; i += KD_SELECT_THREADS) {
        const Composite c = elements.at(i);
        if (c < least) continue;
        const int slot = atomicAdd(&list.listed, 1);
        if (slot < list.capacity) list.buffer[slot] = c;
    }
    __syncthreads();
    const int left = list.listed;
    if (left <= list.capacity) return left;
    // Thousands within the slack: again, exactly.
    const Composite exact = select_threshold(counts, elements, list.k, list.k).least;
    if (thread_number() == 0) list.listed = 0;
    __syncthreads();
    for (int i = thread_number(); i < elements.count; i += KD_SELECT_THREADS) {
        const Composite c = elements.at(i);
        if (c >= exact) list.buffer[atomicAdd(&list.listed, 1)] = c;
    }
    __syncthreads();
    return list.k;
}

// All threads: bring the candidates of all slices into the buffer, or the best of them if they are too many.
__device__ __noinline__ int gather(SliceMemory& list, const Composite* candidates, int slices)
{
    const Elements all = {candidates, list.offsets, list.offsets[slices], list.room};
    if (all.count > list.capacity) return select_best(list, all);
#pragma unroll 4
    for (int i = thread_number(); i < all.count; i += KD_SELECT_THREADS) list.buffer[i] = all.at(i);
    __syncthreads();
    return all.count;
}

// All threads: the k best of buffer[0..listed), sorted, at its start.
__device__ __noinline__ void sort_best(SliceMemory& list, int listed)
{
    int most = 32;
    while (most < 2 * list.k) most <<= 1;
    if (listed > most) listed = select_best(list, {list.buffer, nullptr, listed, 0});
    if (listed > most) {
        const Composite exact = select_threshold(list.counts, {list.buffer, nullptr, listed, 0}, list.k, list.k).least;
        listed = compact(list.buffer, listed, &list.listed, exact, KD_MOST_ID + 1);
    }
    int size = 32;
    while (size < listed) size <<= 1;
    for (int i = listed + thread_number(); i < size; i += KD_SELECT_THREADS) list.buffer[i] = 0;
    sort_descending(list.buffer, size);
}

#endif
