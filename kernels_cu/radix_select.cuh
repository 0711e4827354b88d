// radix_select.cuh: the k-th largest of many values or 52-bit composites, by counting; one block of KD_SELECT_THREADS threads.
//
// Each round counts the values of one digit among the elements that agree with the digits found so far, and keeps the
// digit in which the k-th largest lies.  Counts do not depend on the order of threads, so neither does the result.
#ifndef KD_RADIX_SELECT_CUH
#define KD_RADIX_SELECT_CUH

#include "logit_rows.cuh"

#define KD_SELECT_THREADS 256
#define KD_DIGIT_BITS 11
#define KD_BINS 2048
#define KD_NO_DIGIT (-1)

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

// All threads, after a barrier.  Finds the digit that holds the k-th largest, how many lie above it and in it, or
// KD_NO_DIGIT if there are fewer than k; clears the bins; ends with a barrier.
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
    if (t == 0) counts.digit = KD_NO_DIGIT;
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

// ---- where composites come from ----

struct ListSource {
    const Composite* list;
    int count;

    template <class Visit> __device__ __forceinline__ void each(Visit visit) const
    {
        for (int i = thread_number(); i < count; i += KD_SELECT_THREADS) visit(list[i]);
    }
};

struct RowSource {
    LogitRow row;
    float least;  // elements below are left out

    template <class Visit> __device__ __forceinline__ void each(Visit visit) const
    {
#pragma unroll 1
        for (int base = thread_number(); base < row.chunks; base += KD_SELECT_THREADS * KD_UNROLL) {
            uint4 tile[KD_UNROLL];
#pragma unroll
            for (int u = 0; u < KD_UNROLL; ++u) tile[u] = row.read(base + u * KD_SELECT_THREADS, row.chunks);
#pragma unroll
            for (int u = 0; u < KD_UNROLL; ++u) {
                const int c = base + u * KD_SELECT_THREADS, id = row.id(c);
                row.hide(tile[u], c);
                if (!(chunk_top(tile[u]) >= least)) continue;
#pragma unroll
                for (int j = 0; j < KD_PACK; ++j) {
                    const float x = element(tile[u], j);
                    if (x >= least && row.has(id + j)) visit(composite(x, id + j));
                }
            }
        }
    }
};

// All threads, bins clear and a barrier passed; there must be at least k elements.  Returns t such that at least k and at
// most `enough` elements are >= t, or exactly k.
template <class Source>
__device__ __noinline__ Composite select_threshold(Counts& counts, Source source, int k, int enough)
{
    Composite prefix = 0;
    int taken = 0, settled = 32 + KD_ID_BITS;
    for (;;) {
        const int shift = max(settled - KD_DIGIT_BITS, 0);
        source.each([&](Composite c) {
            if (c >> settled == prefix >> settled) counts.add(unsigned(c >> shift) & (KD_BINS - 1));
        });
        __syncthreads();
        find_digit(counts, unsigned(k - taken));
        prefix |= Composite(counts.digit) << shift;
        taken += int(counts.above);
        const int total = taken + int(counts.inside);
        settled = shift;
        if (total == k || total <= enough || shift == 0) return prefix;
    }
}

// All threads: put the elements >= least into `to`, in any order; returns how many there are, of which at most `room` are
// written.  Begins and ends with a barrier.
template <class Source>
__device__ __forceinline__ int collect(const Source& source, Composite least, Composite* to, int room, int* count)
{
    __syncthreads();
    if (thread_number() == 0) *count = 0;
    __syncthreads();
    source.each([&](Composite c) {
        if (c < least) return;
        const int slot = atomicAdd(count, 1);
        if (slot < room) to[slot] = c;
    });
    __syncthreads();
    return *count;
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
