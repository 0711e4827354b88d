// topk_merge.cuh: the last block of a row makes one sorted list of what all slices listed, or looks at the row again.
#ifndef KD_TOPK_MERGE_CUH
#define KD_TOPK_MERGE_CUH

#include "row_tickets.cuh"
#include "topk_slice.cuh"

#define KD_ROW_SLICES 32    // most slices of a row
#define KD_TOPK_RANKED 192  // up to this many elements are ranked by comparing each with each
#define KD_GATHER_UNROLL 8

// What the slices of a row say together.
struct RowPart {
    float peak, sum;
    float low;      // no element below is listed, and `listed` elements are not below
    unsigned edge;  // all elements of the row whose key reaches it are listed, if `complete`
    int listed;
    bool complete;

    __device__ RowPart(const SlicePart& own, int room)
        : peak(own.peak), sum(own.sum), low(key_value(own.edge)), edge(own.edge), listed(own.listed), complete(own.listed <= room)
    {
    }

    // Each warp; lane = slice.
    __device__ __forceinline__ RowPart(const SlicePart* parts, int slices, int room, const Mass& mass)
    {
        const int lane = lane_id();
        SlicePart own = {0, 0, -KD_LARGEST, 0.0f};
        if (lane < slices) {
            const uint4 raw = __ldcg(reinterpret_cast<const uint4*>(&parts[lane]));
            own = {int(raw.x), raw.y, __uint_as_float(raw.z), __uint_as_float(raw.w)};
        }
        peak = warp_max(own.peak);
        sum = warp_sum(own.sum != 0.0f ? own.sum * mass.of(own.peak, peak) : 0.0f);
        edge = __reduce_max_sync(KD_FULL_MASK, own.edge);
        low = key_value(__reduce_min_sync(KD_FULL_MASK, lane < slices ? own.edge : 0xffffffffu));
        listed = __reduce_add_sync(KD_FULL_MASK, own.listed);
        complete = !__any_sync(KD_FULL_MASK, own.listed > room);
    }
};

// Where results go.
struct TopkOutput {
    const int* vocab_map;
    int* ids;
    float* logprobs;
    float peak, log_sum, temperature;

    __device__ __forceinline__ void put(int rank, Composite c) const
    {
        const int id = composite_id(c);
        const float x = key_value(composite_key(c));
        const float logprob = x == -KD_INFINITY ? x : fminf(0.0f, __fdiv_rn(x - peak, temperature) - log_sum);
        ids[rank] = vocab_map ? vocab_map[id] : id;
        logprobs[rank] = logprob;
    }
    __device__ void put_bad(int k) const
    {
        for (int i = thread_number(); i < k; i += KD_TOPK_THREADS) {
            ids[i] = vocab_map ? vocab_map[i] : i;
            logprobs[i] = KD_NAN;
        }
    }
};

// All threads: the best k of all that slices listed, and a few more, are put into `best`; returns how many, or 0 if there
// are less than k.  `listed` elements are in `elements` if there is no `candidates`.
__device__ __forceinline__ int choose(SliceMemory& memory, const RowPart& whole, const Composite* candidates, Composite* elements,
    int listed, int k, Composite* best, int room)
{
    const ValueBins bins(whole.low, whole.peak);
    for (int base = thread_number(); base < listed; base += KD_TOPK_THREADS * KD_GATHER_UNROLL) {
        Composite own[KD_GATHER_UNROLL];
#pragma unroll
        for (int v = 0; v < KD_GATHER_UNROLL; ++v) {
            const int i = base + v * KD_TOPK_THREADS;
            own[v] = i >= listed ? 0 : candidates ? __ldcg(&candidates[i]) : elements[i];
        }
#pragma unroll
        for (int v = 0; v < KD_GATHER_UNROLL; ++v) {
            const int i = base + v * KD_TOPK_THREADS;
            if (candidates && i < listed) elements[i] = own[v];
            if (own[v]) memory.counts.add(bins.of(key_value(composite_key(own[v]))));
        }
    }
    __syncthreads();
    find_digit(memory.counts, unsigned(k));
    if (memory.counts.digit == KD_NO_DIGIT) return 0;
    const Composite least = Composite(order_key(bins.edge(memory.counts.digit))) << KD_ID_BITS;
    const ListSource all = {elements, listed};
    const int chosen = collect(all, least, best, room, &memory.best);
    if (chosen <= room) return chosen;
    return collect(all, select_threshold(memory.counts, all, k, room), best, room, &memory.best);
}

// All threads: sort best[0..n), n >= k, and put the first k; returns whether all that matter were listed.
__device__ __forceinline__ bool put_sorted(Composite* best, int n, int k, unsigned edge, const TopkOutput& to)
{
    const int t = thread_number();
    if (n <= KD_TOPK_RANKED) {
        bool failed = false;
        for (int base = 0; base < n; base += KD_TOPK_THREADS / 4) {  // four threads an element
            const int i = base + (t >> 2);
            const Composite own = i < n ? best[i] : 0;
            int rank = 0;
            for (int j = t & 3; j < n; j += 4) rank += best[j] > own;
            rank += __shfl_xor_sync(KD_FULL_MASK, rank, 1);
            rank += __shfl_xor_sync(KD_FULL_MASK, rank, 2);
            if ((t & 3) != 0 || i >= n || rank >= k) continue;
            to.put(rank, own);
            failed |= rank == k - 1 && composite_key(own) < edge;
        }
        return __syncthreads_or(failed) == 0;
    }
    int size = KD_TOPK_THREADS;
    while (size < n) size <<= 1;
    for (int i = n + t; i < size; i += KD_TOPK_THREADS) best[i] = 0;
    sort_descending(best, size);
    for (int i = t; i < k; i += KD_TOPK_THREADS) to.put(i, best[i]);
    return composite_key(best[k - 1]) >= edge;
}

// All threads: the same from the elements of the row that are not below `least`, at least k: up to six passes by this block.
__device__ __noinline__ void put_from_row(SliceMemory& memory, LogitRow row, float least, Composite* best, int room, int k,
    TopkOutput to)
{
    __syncthreads();
    const RowSource all = {row, least};
    const Composite threshold = select_threshold(memory.counts, all, k, room);
    put_sorted(best, collect(all, threshold, best, room, &memory.best), k, 0, to);
}

#endif
