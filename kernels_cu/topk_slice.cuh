// topk_slice.cuh: one pass of one block over a slice of a row: a list that holds its K best, and its sum of exponentials.
#ifndef KD_TOPK_SLICE_CUH
#define KD_TOPK_SLICE_CUH

#include "radix_select.cuh"

#define KD_TOPK_THREADS 256
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
#define KD_TOPK_RESIDENT 2  // blocks of a multiprocessor: enough for its share of the bandwidth, and no spills
#else
#define KD_TOPK_RESIDENT 3
#endif
#define KD_TOPK_SPAN (KD_TOPK_THREADS * KD_UNROLL)  // chunks of a tile
#define KD_TOPK_STEP (KD_TOPK_THREADS * KD_PACK)    // most elements that one round of appending adds

struct SliceMemory {
    Counts counts;
    float scratch[32];
    int listed;
};

// Of one thread; all but `tile`, `peak` and `sum` are the same in all threads.  `buffer` holds `capacity` elements.
struct SliceScan {
    SliceMemory& memory;
    Composite* buffer;
    const LogitRow row;
    const Mass mass;
    const int k, room, capacity;
    int listed = 0;              // elements in the buffer, at the end
    float edge = -KD_INFINITY;   // logits below cannot be among the k best
    float peak = -KD_LARGEST, sum = 0.0f;
    uint4 tile[KD_UNROLL];

    __device__ SliceScan(SliceMemory& memory, Composite* buffer, const LogitRow& row, const Mass& mass, int k, int room)
        : memory(memory), buffer(buffer), row(row), mass(mass), k(k), room(room), capacity(room + KD_TOPK_STEP) {}

    __device__ void run(int first, int end)
    {
        const int t = thread_number();
        memory.counts.clear();
        if (t == 0) memory.listed = 0;
        load(first, end, tile);
        float top = -KD_INFINITY;
#pragma unroll
        for (int u = 0; u < KD_UNROLL; ++u) top = larger(top, chunk_top(tile[u]));
        peak = larger(block_max(top, memory.scratch), -KD_LARGEST);
        edge = first_edge(first, end);
        for (int base = first; base < end; base += KD_TOPK_SPAN) {
            uint4 next[KD_UNROLL];
            load(base + KD_TOPK_SPAN, end, next);
            bool more = false;
            add_masses();
#pragma unroll
            for (int u = 0; u < KD_UNROLL; ++u) more |= append(tile[u], base + u * KD_TOPK_THREADS + t);
            if (__syncthreads_or(more)) shorten(base, end);
#pragma unroll
            for (int u = 0; u < KD_UNROLL; ++u) tile[u] = next[u];
        }
        __syncthreads();
        listed = memory.listed;
        const float most = larger(block_max(peak, memory.scratch), -KD_LARGEST);
        sum = block_sum(sum == 0.0f ? 0.0f : sum * mass.of(peak, most), memory.scratch);
        peak = most;
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
        __syncthreads();
        if (row.count(first, last) <= k) return -KD_INFINITY;
        const bool by_chunk = last - first >= 4 * k;
#pragma unroll
        for (int u = 0; u < KD_UNROLL; ++u) {
            const int c = first + u * KD_TOPK_THREADS + t;
            if (c >= last) continue;
            if (by_chunk) count(chunk_top(tile[u]));
            for (int j = 0; j < KD_PACK && !by_chunk; ++j)
                if (row.has(row.id(c) + j)) count(element(tile[u], j));
        }
        __syncthreads();
        memory.counts.find(unsigned(k));
        return key_value(unsigned(memory.counts.digit) << (32 - KD_DIGIT_BITS));
    }

    __device__ void count(float x) { atomicAdd(&memory.counts.bins[order_key(x) >> (32 - KD_DIGIT_BITS)], 1u); }

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
    __device__ bool append(const uint4& chunk, int c)
    {
        bool more = false;
        if (!(chunk_top(chunk) >= edge)) return more;
#pragma unroll
        for (int j = 0; j < KD_PACK; ++j) {
            const float x = element(chunk, j);
            const int id = row.id(c) + j;
            if (!(x >= edge) || !row.has(id)) continue;
            const int slot = atomicAdd(&memory.listed, 1);
            if (slot < capacity) buffer[slot] = composite(x, id);
            more |= slot >= room;
        }
        return more;
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
            append(row.load(c, end), c);
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
        edge = threshold.edge();
    }
};

#endif
