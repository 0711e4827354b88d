// radix_select.cuh: the k-th largest of many 52-bit composites, by counting digits from the top; one block.
//
// Each round counts the values of one digit among the elements that agree with the digits found so far, and keeps the
// digit in which the k-th largest lies.  Counts do not depend on the order of threads, so neither does the result.
#ifndef KD_RADIX_SELECT_CUH
#define KD_RADIX_SELECT_CUH

#include "logit_rows.cuh"

#define KD_DIGIT_BITS 11
#define KD_BINS 2048

struct Counts {
    unsigned bins[KD_BINS];
    unsigned totals[32];
    int digit;
    unsigned above, inside;

    // All threads, then a barrier.
    __device__ void clear()
    {
        for (int i = thread_number(); i < KD_BINS; i += int(blockDim.x)) bins[i] = 0;
    }

    // All threads, after a barrier; at least `k` elements must be in the bins.  Finds the digit that holds the k-th
    // largest, how many lie above it and in it; clears the bins; ends with a barrier.
    __device__ void find(unsigned k)
    {
        const int t = thread_number(), each = KD_BINS / int(blockDim.x), top = KD_BINS - 1 - t * each;
        unsigned own = 0;
        for (int j = 0; j < each; ++j) own += bins[top - j];
        unsigned upto = own;
#pragma unroll
        for (int offset = 1; offset < 32; offset <<= 1) {
            const unsigned left = __shfl_up_sync(KD_FULL_MASK, upto, offset);
            if (lane_id() >= offset) upto += left;
        }
        if (lane_id() == 31) totals[warp_id()] = upto;
        __syncthreads();
        for (int w = 0; w < warp_id(); ++w) upto += totals[w];
        unsigned before = upto - own;
        const bool here = before < k && k <= upto;
        for (int j = 0; j < each; ++j) {
            const unsigned count = bins[top - j];
            bins[top - j] = 0;
            if (here && before < k && k <= before + count) digit = top - j, above = before, inside = count;
            before += count;
        }
        __syncthreads();
    }
};

// Bins of equal width between two values: one round usually tells more than a digit of a key.  All of it rises with x,
// rounding included.  If the width overflows everything is in bin 0.
struct ValueBins {
    float low, scale, slack;

    __device__ ValueBins(float low, float high) : low(low), slack(1e-6f * (fabsf(low) + fabsf(high)))
    {
        const float width = high - low;
        scale = width < KD_LARGEST ? __fdiv_rn(float(KD_BINS - 1), fmaxf(width, 1e-30f)) : 0.0f;
    }
    __device__ int of(float x) const { return int(fminf(fmaxf((x - low) * scale, 0.0f), float(KD_BINS - 1))); }

    // No x of this bin or a higher one lies below.
    __device__ float edge(int bin) const
    {
        return bin == 0 || scale == 0.0f ? low : fmaxf(low, low + __fdiv_rn(float(bin), scale) - slack);
    }
};

// For select_threshold: the elements of buffer[0..n).
struct ListElements {
    const Composite* buffer;
    int n;
    template <class F> __device__ void operator()(F f) const
    {
        for (int i = thread_number(); i < n; i += int(blockDim.x)) f(buffer[i]);
    }
};

// A threshold t such that at least k and at most `enough` elements are >= t, or exactly k.
struct Threshold {
    Composite least;
    bool exact;  // exactly k elements are >= least

    // The least logit that an element with a higher id than all so far must have to be among the k best.
    __device__ float edge() const { return key_value(composite_key(least) + (exact ? 1u : 0u)); }
};

// All threads, bins clear and a barrier passed.  `each(f)` calls f(composite) for every element of this thread; all
// threads together must have at least k.
template <class Each>
__device__ Threshold select_threshold(Counts& counts, Each each, int k, int enough)
{
    Composite prefix = 0;
    int taken = 0, settled = 32 + KD_ID_BITS;
    for (;;) {
        const int shift = max(settled - KD_DIGIT_BITS, 0);
        each([&](Composite c) {
            if (c >> settled == prefix >> settled) atomicAdd(&counts.bins[unsigned(c >> shift) & (KD_BINS - 1)], 1u);
        });
        __syncthreads();
        counts.find(unsigned(k - taken));
        prefix |= Composite(counts.digit) << shift;
        taken += int(counts.above);
        const int total = taken + int(counts.inside);
        settled = shift;
        if (total == k || total <= enough || shift == 0) return {prefix, total == k};
    }
}

// All threads: keep the elements of buffer[0..n) for which keep(c), in any order; returns how many.  Begins and ends
// with a barrier.  A write never reaches an element that has not been read: at most as many are written as were read.
template <class Keep>
__device__ int compact(Composite* buffer, int n, int* count, Keep keep)
{
    const int t = thread_number(), threads = int(blockDim.x);
    __syncthreads();
    if (t == 0) *count = 0;
    for (int base = 0; base < n; base += threads) {
        const Composite c = base + t < n ? buffer[base + t] : 0;
        const bool kept = base + t < n && keep(c);
        __syncthreads();
        if (kept) buffer[atomicAdd(count, 1)] = c;
    }
    __syncthreads();
    const int left = *count;
    __syncthreads();
    return left;
}

// All threads: sort buffer[0..size) descending; `size` is a power of 2.  Begins and ends with a barrier.
__device__ inline void sort_descending(Composite* buffer, int size)
{
    const int pairs = size >> 1;
    __syncthreads();
    for (int run = 2; run <= size; run <<= 1) {
        for (int stride = run >> 1; stride > 0; stride >>= 1) {
            for (int p = thread_number(); p < pairs; p += int(blockDim.x)) {
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
