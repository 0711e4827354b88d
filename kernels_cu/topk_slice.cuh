// topk_slice.cuh: one pass of one block over a slice of a row: a list that holds its K best, and its sum of exponentials.
#ifndef KD_TOPK_SLICE_CUH
#define KD_TOPK_SLICE_CUH

#include "radix_select.cuh"

#define KD_TOPK_THREADS 256
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
#define KD_TOPK_RESIDENT 3  // blocks of a multiprocessor
#else
#define KD_TOPK_RESIDENT 2  // enough for these chips' bandwidth; three would spill registers
#endif
#define KD_TOPK_SPAN (KD_TOPK_THREADS * KD_UNROLL)  // chunks of a tile
#define KD_TOPK_STEP (KD_TOPK_THREADS * KD_PACK)    // most elements that one round of appending adds

#define KD_TOPK_SLICES 32  // most slices of a row

struct SliceMemory {
    Counts counts;
    float scratch[32];
    int listed;
    int offsets[KD_TOPK_SLICES + 1];  // the rest: of a whole row
    float edge, peak, log_sum;
};

// What one block says of its slice.
struct __align__(16) SlicePart {
    int listed;
    float edge;  // at least k elements of the slice are this large, or it is -inf
    float peak, sum;
};

// Of one thread; all but `tile`, `peak` and `sum` are the same in all threads.  `buffer` holds `capacity` elements.
struct SliceScan {
    SliceMemory& memory;
    Composite* buffer;
    const LogitRow row;
    const Mass mass;
    const int k, room, capacity;
    float edge = -KD_INFINITY;     // logits below cannot be among the k best
    float reached = -KD_INFINITY;  // at least k elements so far are this large, or it is -inf
    float peak = -KD_LARGEST, sum = 0.0f;
    uint4 tile[KD_UNROLL];

    __device__ SliceScan(SliceMemory& memory, Composite* buffer, const LogitRow& row, const Mass& mass, int k, int room)
        : memory(memory), buffer(buffer), row(row), mass(mass), k(k), room(room), capacity(room + KD_TOPK_STEP) {}

    __device__ SlicePart run(int first, int end)
    {
        const int t = thread_number();
        memory.counts.clear();
        if (t == 0) memory.listed = 0;
        load(first, end, tile);
        float top = -KD_INFINITY;
#pragma unroll
        for (int u = 0; u < KD_UNROLL; ++u) top = larger(top, chunk_top(tile[u]));
        peak = larger(block_max(top, memory.scratch), -KD_LARGEST);
        edge = reached = first_edge(first, end);
        for (int base = first; base < end; base += KD_TOPK_SPAN) {
            uint4 next[KD_UNROLL];
            load(base + KD_TOPK_SPAN, end, next);
            add_masses();
            const bool more = append<KD_UNROLL>(tile, base + t);
            if (__syncthreads_or(more)) shorten(base, end);
#pragma unroll
            for (int u = 0; u < KD_UNROLL; ++u) tile[u] = next[u];
        }
        __syncthreads();
        const float most = larger(block_max(peak, memory.scratch), -KD_LARGEST);
        sum = block_sum(sum == 0.0f ? 0.0f : sum * mass.of(peak, most), memory.scratch);
        return {memory.listed, reached, most, sum};
    }

    __device__ void load(int base, int end, uint4* into) const
    {
#pragma unroll
        for (int u = 0; u < KD_UNROLL; ++u) into[u] = row.load(base + u * KD_TOPK_THREADS + thread_number(), end);
    }

    // A value that at least k elements of the first tile reach, or -inf.  Chunks stand for their largest element where
    // there are many more chunks than k: an eighth of the counting for a bound that is nearly as high.
    __device__ float first_edge(int first, int end)
    {
        const int last = min(end, first + KD_TOPK_SPAN), t = thread_number();
        float lowest = KD_INFINITY;
#pragma unroll
        for (int u = 0; u < KD_UNROLL; ++u)
            if (first + u * KD_TOPK_THREADS + t < last) lowest = fminf(lowest, chunk_top(tile[u]));
        lowest = block_min(lowest, memory.scratch);
        if (last - first < k) return -KD_INFINITY;  // each chunk has an element that reaches `lowest`
        const ValueBins bins(lowest, peak);
        const bool by_chunk = last - first >= 4 * k;
#pragma unroll
        for (int u = 0; u < KD_UNROLL; ++u) {
            const int c = first + u * KD_TOPK_THREADS + t;
            if (c >= last) continue;
            if (by_chunk) atomicAdd(&memory.counts.bins[bins.of(chunk_top(tile[u]))], 1u);
            for (int j = 0; j < KD_PACK && !by_chunk; ++j) {
                const float x = element(tile[u], j);
                if (x >= lowest && row.has(row.id(c) + j)) atomicAdd(&memory.counts.bins[bins.of(x)], 1u);
            }
        }
        __syncthreads();
        memory.counts.find(unsigned(k));
        return bins.edge(memory.counts.digit);
    }

    __device__ void add_masses()
    {
        float top = -KD_INFINITY;
#pragma unroll
        for (int u = 0; u < KD_UNROLL; ++u) top = larger(top, chunk_top(tile[u]));
        if (top > peak) {
            sum *= mass.of(peak, top);
            peak = top;
        }
        float parts[4] = {0.0f, 0.0f, 0.0f, 0.0f};  // short chains: less rounding, more at once
#pragma unroll
        for (int u = 0; u < KD_UNROLL; ++u) {
            wait_for(parts[3], tile[u]);
#pragma unroll
            for (int j = 0; j < KD_PACK; ++j) parts[j & 3] = mass.add(parts[j & 3], element(tile[u], j), peak);
        }
        sum += (parts[0] + parts[1]) + (parts[2] + parts[3]);
    }

    // Add what reaches the edge to the list; returns whether the list has become longer than `room`.
    template <int count> __device__ bool append(const uint4* chunks, int c)
    {
        unsigned found[count], all = 0;
        int number = 0;
#pragma unroll
        for (int u = 0; u < count; ++u) {
            found[u] = 0;
            if (!(chunk_top(chunks[u]) >= edge)) continue;
            const int id = row.id(c + u * KD_TOPK_THREADS);
#pragma unroll
            for (int j = 0; j < KD_PACK; ++j)
                if (element(chunks[u], j) >= edge && row.has(id + j)) found[u] |= 1u << j;
            number += __popc(found[u]), all |= found[u];
        }
        if (!all) return false;
        const int begin = atomicAdd(&memory.listed, number);
        int slot = begin;
#pragma unroll
        for (int u = 0; u < count; ++u) {
            if (!found[u]) continue;
            const int id = row.id(c + u * KD_TOPK_THREADS);
#pragma unroll
            for (int j = 0; j < KD_PACK; ++j) {
                if (!(found[u] >> j & 1)) continue;
                if (slot < capacity) buffer[slot] = composite(element(chunks[u], j), id + j);
                ++slot;
            }
        }
        return begin + number > room;
    }

    // All threads, after a barrier: cut the list to `room` at most.  If the tile at `base` did not fit, take it back and
    // append it again, read again, in parts that do.
    __device__ void shorten(int base, int end)
    {
        const int n = memory.listed;
        if (n <= capacity) {
            cut(n);
            return;
        }
        const int newest = max(row.id(base), 0);
        compact(buffer, capacity, &memory.listed, [&](Composite c) { return composite_id(c) < newest; });
#pragma unroll 1
        for (int u = 0; u < KD_UNROLL; ++u) {
            const int c = base + u * KD_TOPK_THREADS + thread_number();
            const uint4 chunk = row.load(c, end);
            append<1>(&chunk, c);
            __syncthreads();
            const int kept = memory.listed;
            __syncthreads();
            if (kept > room) cut(kept);
        }
    }

    __device__ void cut(int n)
    {
        const Threshold threshold = select_threshold(memory.counts, ListElements{buffer, n}, k, k + (k >> 2));
        compact(buffer, n, &memory.listed, [&](Composite c) { return c >= threshold.least; });
        edge = threshold.edge(), reached = key_value(composite_key(threshold.least));
    }
};

#endif
