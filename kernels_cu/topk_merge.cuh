// topk_merge.cuh: the last block of a row makes one sorted list of what all slices found.
#ifndef KD_TOPK_MERGE_CUH
#define KD_TOPK_MERGE_CUH

#include "row_tickets.cuh"
#include "topk_slice.cuh"

// The candidates of all slices of a row, numbered through.
struct SlicedElements {
    const int* offsets;
    const Composite* candidates;
    int slices, room;

    __device__ Composite at(int i) const
    {
        int low = 0;  // offsets[low] <= i < offsets[low + 1]; entries past the last slice hold the total
#pragma unroll
        for (int step = KD_TOPK_SLICES / 2; step > 0; step >>= 1)
            if (offsets[low + step] <= i) low += step;
        return __ldcg(&candidates[(long long)low * room + i - offsets[low]]);
    }
    template <class F> __device__ void operator()(F f) const
    {
        const int total = offsets[slices], threads = int(blockDim.x);
        for (int base = thread_number(); base < total; base += 4 * threads) {
            Composite c[4];
#pragma unroll
            for (int u = 0; u < 4; ++u) c[u] = base + u * threads < total ? at(base + u * threads) : 0;
#pragma unroll
            for (int u = 0; u < 4; ++u)
                if (base + u * threads < total) f(c[u]);
        }
    }
};

struct RowMerge {
    SliceMemory& memory;
    Composite* buffer;
    int k, room, capacity;
    int listed = 0;
    float edge = -KD_INFINITY;

    // All threads: the row has one slice.
    __device__ void start(const SlicePart& own)
    {
        listed = own.listed, edge = own.edge;
        if (thread_number() == 0) {
            memory.peak = own.peak, memory.log_sum = own.sum == 0.0f ? 0.0f : logf(own.sum);
        }
        __syncthreads();
    }

    // All threads: bring the candidates of all slices into the buffer, those of the k best at least.
    __device__ void gather(const Composite* candidates, const SlicePart* parts, int slices, const Mass& mass)
    {
        const int t = thread_number();
        if (t < 32) summarise(parts, slices, mass);
        if (t == 0) memory.listed = 0;
        __syncthreads();
        if (memory.log_sum != memory.log_sum) return;
        const SlicedElements all = {memory.offsets, candidates, slices, room};
        listed = memory.offsets[slices], edge = memory.edge;
        if (listed > capacity) {
            select(all);
            return;
        }
        int i = t;  // in any order: the buffer is sorted later
        all([&](Composite c) { buffer[i] = c, i += int(blockDim.x); });
        __syncthreads();
    }

    // All threads: the k best of the buffer, sorted, at its start.
    __device__ void sort()
    {
        int size = 32;
        while (size < 2 * k) size <<= 1;
        if (listed > size) select(ListElements{buffer, listed});
        size = 32;
        while (size < listed) size <<= 1;
        for (int i = listed + thread_number(); i < size; i += int(blockDim.x)) buffer[i] = 0;
        sort_descending(buffer, size);
    }

    // All threads: cut `elements`, at least k, to the k best and few more, in the buffer.
    template <class Elements> __device__ void select(const Elements& elements)
    {
        const ValueBins bins(edge, memory.peak);
        const float low = edge;
        elements([&](Composite c) {
            const float x = key_value(composite_key(c));
            if (x >= low) atomicAdd(&memory.counts.bins[bins.of(x)], 1u);
        });
        __syncthreads();
        memory.counts.find(unsigned(k));
        const int digit = memory.counts.digit;
        if (int(memory.counts.above + memory.counts.inside) <= 2 * k) keep(elements, [&](Composite c) {
            const float x = key_value(composite_key(c));
            return x >= low && bins.of(x) >= digit;
        });
        else {
            const Composite least = select_threshold(memory.counts, elements, k, 2 * k).least;
            keep(elements, [&](Composite c) { return c >= least; });
        }
    }

    template <class Keep> __device__ void keep(const ListElements& elements, Keep keep)
    {
        listed = compact(buffer, elements.n, &memory.listed, keep);
    }
    template <class Keep> __device__ void keep(const SlicedElements& elements, Keep keep)
    {
        elements([&](Composite c) { if (keep(c)) buffer[atomicAdd(&memory.listed, 1)] = c; });
        __syncthreads();
        listed = memory.listed;
        __syncthreads();
    }

    // Warp 0; lane = slice.
    __device__ void summarise(const SlicePart* parts, int slices, const Mass& mass)
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
        memory.offsets[0] = 0, memory.peak = peak, memory.edge = edge;
        memory.log_sum = sum == 0.0f ? 0.0f : logf(sum);
    }
};

#endif
