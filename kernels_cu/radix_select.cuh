// radix_select.cuh: the k-th largest of many 52-bit composites, by counting; one block of KD_SELECT_THREADS threads.
//
// Each round counts the values of one digit among the elements that agree with the digits found so far, and keeps the
// digit in which the k-th largest lies.  Counts do not depend on the order of threads, so neither does the result.
// These functions are calls: they run a few times a row, and loops around them fit the instruction cache without them.
#ifndef KD_RADIX_SELECT_CUH
#define KD_RADIX_SELECT_CUH

#include "logit_rows.cuh"

#define KD_SELECT_THREADS 256
#define KD_DIGIT_BITS 11
#define KD_BINS 2048

struct Counts {
    uint4 bins[KD_BINS / 4];
    unsigned totals[KD_SELECT_THREADS / 32];
    int digit;
    unsigned above, inside;

    __device__ void clear()
    {
        const uint4 zero = make_uint4(0, 0, 0, 0);
        for (int i = thread_number(); i < KD_BINS / 4; i += KD_SELECT_THREADS) bins[i] = zero;
    }
    __device__ __forceinline__ void add(unsigned bin) { atomicAdd(reinterpret_cast<unsigned*>(bins) + bin, 1u); }
};

// All threads, after a barrier; at least `k` elements must be in the bins.  Finds the digit that holds the k-th
// largest, how many lie above it and in it; clears the bins; ends with a barrier.
__device__ __noinline__ void find_digit(Counts& counts, unsigned k)
{
    const int t = thread_number(), top = KD_BINS / 4 - 1 - 2 * t;  // this thread's eight bins, from the top
    const uint4 high = counts.bins[top], low = counts.bins[top - 1], zero = make_uint4(0, 0, 0, 0);
    const unsigned own[8] = {high.w, high.z, high.y, high.x, low.w, low.z, low.y, low.x};
    unsigned sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += own[j];
    unsigned upto = sum;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        const unsigned left = __shfl_up_sync(KD_FULL_MASK, upto, offset);
        if (lane_id() >= offset) upto += left;
    }
    if (lane_id() == 31) counts.totals[warp_id()] = upto;
    counts.bins[top] = zero, counts.bins[top - 1] = zero;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < KD_SELECT_THREADS / 32; ++w)
        if (w < warp_id()) upto += counts.totals[w];
    unsigned before = upto - sum;
    if (before < k && k <= upto) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if (before < k && k <= before + own[j])
                counts.digit = 4 * top + 3 - j, counts.above = before, counts.inside = own[j];
            before += own[j];
        }
    }
    __syncthreads();
}

// Bins of equal width between two values: one round usually tells more than a digit of a key.  All of it rises with x,
// rounding included.  If the width overflows everything is in bin 0.
struct ValueBins {
    float low, scale, slack;

    __device__ ValueBins(float low, float high) : low(low), slack(1e-6f * (fabsf(low) + fabsf(high)))
    {
        const float width = high - low;
        scale = width < KD_LARGEST ? __fdividef(float(KD_BINS - 1), fmaxf(width, 1e-30f)) : 0.0f;
    }
    __device__ __forceinline__ unsigned of(float x) const
    {
        return unsigned(fminf(fmaxf((x - low) * scale, 0.0f), float(KD_BINS - 1)));
    }

    // No x of this bin or a higher one lies below.
    __device__ float edge(int bin) const
    {
        return bin == 0 || scale == 0.0f ? low : fmaxf(low, low + __fdividef(float(bin), scale) - slack);
    }
};

#define KD_ROW_SLICES 32  // most slices of a row

// Elements of one list, or of the lists of several slices, numbered through.
struct Elements {
    const Composite* list;
    const int* offsets;  // null: one list.  (KD_ROW_SLICES + 1,); entries from the last slice on hold the total
    int count, room;     // elements; distance between the lists of slices

    __device__ Composite at(int i) const
    {
        if (!offsets) return list[i];
        int slice = 0;  // offsets[slice] <= i < offsets[slice + 1]
#pragma unroll
        for (int step = KD_ROW_SLICES / 2; step > 0; step >>= 1)
            if (offsets[slice + step] <= i) slice += step;
        return __ldcg(&list[(long long)slice * room + i - offsets[slice]]);
    }
};

// A threshold t such that at least k and at most `enough` elements are >= t, or exactly k.
struct Threshold {
    Composite least;
    int total;  // elements >= least
};

// All threads, bins clear and a barrier passed; there must be at least k elements.
__device__ __noinline__ Threshold select_threshold(Counts& counts, Elements elements, int k, int enough)
{
    Composite prefix = 0;
    int taken = 0, settled = 32 + KD_ID_BITS;
    for (;;) {
        const int shift = max(settled - KD_DIGIT_BITS, 0);
#pragma unroll 4
        for (int i = thread_number(); i < elements.count; i += KD_SELECT_THREADS) {
            const Composite c = elements.at(i);
            if (c >> settled == prefix >> settled) counts.add(unsigned(c >> shift) & (KD_BINS - 1));
        }
        __syncthreads();
        find_digit(counts, unsigned(k - taken));
        prefix |= Composite(counts.digit) << shift;
        taken += int(counts.above);
        const int total = taken + int(counts.inside);
        settled = shift;
        if (total == k || total <= enough || shift == 0) return {prefix, total};
    }
}

// All threads: keep the elements of buffer[0..n) that are >= least and have an id below `newest`, in any order; returns
// how many, which is left in `count` too.  Begins and ends with a barrier.  A write never reaches an element that has not
// been read: at most as many are written as were read.
__device__ __noinline__ int compact(Composite* buffer, int n, int* count, Composite least, int newest)
{
    const int t = thread_number();
    __syncthreads();
    if (t == 0) *count = 0;
    for (int base = 0; base < n; base += KD_SELECT_THREADS) {
        const Composite c = base + t < n ? buffer[base + t] : 0;
        const bool kept = base + t < n && c >= least && composite_id(c) < newest;
        __syncthreads();
        if (kept) buffer[atomicAdd(count, 1)] = c;
    }
    __syncthreads();
    const int left = *count;
    __syncthreads();
    return left;
}

// All threads: sort buffer[0..size) descending; `size` is a power of 2.  Begins and ends with a barrier.
__device__ __noinline__ void sort_descending(Composite* buffer, int size)
{
    const int pairs = size >> 1;
    __syncthreads();
    for (int run = 2; run <= size; run <<= 1) {
        for (int stride = run >> 1; stride > 0; stride >>= 1) {
            for (int p = thread_number(); p < pairs; p += KD_SELECT_THREADS) {
                const int low = 2 * (p & ~(stride - 1)) + (p & (stride - 1)), high = low + stride;
                const Composite a = buffer[low], b = buffer[high];
                if ((a < b) == ((low & run) == 0)) buffer[low] = b, buffer[high] = a;
            }
            // Up to stride 32 a warp reads and writes 64 elements of its own.
            if (stride > 32 || stride == 1) __syncthreads();
            else __syncwarp();
        }
    }
}

#endif
