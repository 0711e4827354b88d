// target_counts.cuh: the least logit that top-p keeps, from how often each bfloat16 value occurs.
//
// A row of bfloat16 logits has few distinct values: a bin for each magnitude from 2^-16 to 2^8 and sign.  One pass counts
// them; masses, their total and the value at which top_p is reached follow from the counts, with integers, in any order.
// Bins at the ends and around 0 hold several values: if they matter, the row is looked at again, digit by digit.
#ifndef KD_TARGET_COUNTS_CUH
#define KD_TARGET_COUNTS_CUH

#include "target_nucleus.cuh"

#define KD_COUNT_THREADS 1024              // most threads of a block; their number divides the bins
#define KD_COUNT_LOW 0x3780                // bfloat16 bits of 2^-16
#define KD_COUNT_SIDE (24 * 128)           // magnitudes with a bin
#define KD_COUNT_BINS (2 * KD_COUNT_SIDE)  // negative numbers, rising, then positive ones
#define KD_COUNT_WORDS 6148                // bins, then whether the row is bad; a multiple of 4
#define KD_COUNT_UNROLL 5
#define KD_COUNT_UNIT 40                   // masses are counted in units of 2^-40 of the largest

// A run of a row's chunks, what is kept of it, and where the draw falls in it.
struct Part {
    int first, end;
    Kept kept;
    Aim aim;
};

struct __align__(16) CountMemory {
    unsigned counts[KD_COUNT_WORDS];
    unsigned long long sums[KD_COUNT_THREADS / 32];
    Nucleus nucleus;
    LogitRow row;  // for later, out of registers meanwhile
    Part part;
    int bin, peak_bin, unclear;
    unsigned ties;             // elements of the row that equal the edge
    unsigned long long above;  // mass of what is larger
};

struct ValueCount {
    // Bytes from the first bin to the bins of two bfloat16 numbers, in two halves, less those of all negative bins.
    __device__ static __forceinline__ unsigned places(unsigned word)
    {
        const unsigned low = KD_COUNT_LOW * 0x10001u, high = (KD_COUNT_LOW + KD_COUNT_SIDE - 1) * 0x10001u;
        const unsigned magnitude = smaller_halves(larger_halves(word & 0x7fff7fffu, low), high) - low;
        const unsigned negative = (word >> 15 & 0x10001u) * 0xffffu;
        return (magnitude << 2 ^ negative) & 0xfffcfffcu;
    }
    __device__ static __forceinline__ void add(unsigned char* zero, unsigned word)
    {
        const unsigned both = places(word);
        atomicAdd(reinterpret_cast<unsigned*>(zero + int(short(both & 0xffffu))), 1u);
        atomicAdd(reinterpret_cast<unsigned*>(zero + (int(both) >> 16)), 1u);
    }
    __device__ static float value(int bin)
    {
        const bool negative = bin < KD_COUNT_SIDE;
        const int magnitude = negative ? KD_COUNT_SIDE - 1 - bin : bin - KD_COUNT_SIDE;
        if (magnitude == 0) return 0.0f;
        return __uint_as_float(unsigned(KD_COUNT_LOW + magnitude) << 16 | (negative ? 0x80000000u : 0u));
    }
    __device__ static bool single(int bin)
    {
        return bin > 0 && bin < KD_COUNT_BINS - 1 && bin != KD_COUNT_SIDE && bin != KD_COUNT_SIDE - 1;
    }

    // Numbers of one sign compare as their bits do; halves of both words have the sign bit clear.
    __device__ static __forceinline__ unsigned larger_halves(unsigned a, unsigned b)
    {
#ifdef __CUDACC_RTC__
        unsigned c;
        asm("max.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
        return c;
#else
        const unsigned low = max(a & 0xffffu, b & 0xffffu), high = max(a >> 16, b >> 16);
        return low | high << 16;
#endif
    }
    __device__ static __forceinline__ unsigned smaller_halves(unsigned a, unsigned b)
    {
#ifdef __CUDACC_RTC__
        unsigned c;
        asm("min.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
        return c;
#else
        const unsigned low = min(a & 0xffffu, b & 0xffffu), high = min(a >> 16, b >> 16);
        return low | high << 16;
#endif
    }
};

// All threads: count the values of this block's slice.
__device__ __forceinline__ void count_values(const RowCut& cut, int part, CountMemory& memory)
{
    const int t = thread_number(), each = ceil_div(cut.row.chunks, cut.slices);
    const int first = min(part * each, cut.row.chunks), end = min(first + each, cut.row.chunks);
    unsigned char* zero = reinterpret_cast<unsigned char*>(memory.counts + KD_COUNT_SIDE);
    for (int i = t; i < KD_COUNT_WORDS; i += int(blockDim.x)) memory.counts[i] = 0;
    __syncthreads();
    bool bad = false;
#pragma unroll 1
    for (int base = first + (t & ~31) * KD_COUNT_UNROLL + lane_id(); base < end; base += int(blockDim.x) * KD_COUNT_UNROLL) {
        uint4 tile[KD_COUNT_UNROLL];
#pragma unroll
        for (int u = 0; u < KD_COUNT_UNROLL; ++u) tile[u] = cut.row.read(base + u * 32, end);
        if (!cut.row.whole()) {
#pragma unroll
            for (int u = 0; u < KD_COUNT_UNROLL; ++u) cut.row.hide(tile[u], base + u * 32);
        }
#pragma unroll
        for (int u = 0; u < KD_COUNT_UNROLL; ++u) {
            bad |= !(chunk_top(tile[u]) < KD_INFINITY);
            if (base + u * 32 >= end) continue;
            ValueCount::add(zero, tile[u].x), ValueCount::add(zero, tile[u].y);
            ValueCount::add(zero, tile[u].z), ValueCount::add(zero, tile[u].w);
        }
    }
    bad = __syncthreads_or(bad) != 0;
    if (t == 0) memory.counts[KD_COUNT_BINS] = bad;
}

// All threads: add this block's counts to the row's.
__device__ __forceinline__ void add_counts(const CountMemory& memory, unsigned* totals)
{
    for (int i = thread_number(); i < KD_COUNT_WORDS; i += int(blockDim.x))
        if (memory.counts[i]) atomicAdd(&totals[i], memory.counts[i]);
}

// All threads: take the row's counts and leave zeros.
__device__ __forceinline__ void take_counts(unsigned* counts, unsigned* totals)
{
    uint4* from = reinterpret_cast<uint4*>(totals);
    uint4* to = reinterpret_cast<uint4*>(counts);
#pragma unroll 2
    for (int i = thread_number(); i < KD_COUNT_WORDS / 4; i += int(blockDim.x))
        to[i] = __ldcg(&from[i]), from[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
}

// What an element of a bin weighs, in units.
__device__ __forceinline__ unsigned long long mass_units(const Mass& mass, int bin, float peak)
{
    return (unsigned long long)(mass.of(ValueCount::value(bin), peak) * float(1ull << KD_COUNT_UNIT));
}

// All threads, after a barrier; `counts`: of the whole row.  What top_p keeps goes to memory.nucleus; or memory.unclear is
// set.  Ends with a barrier.
__device__ inline void kept_by_counts(CountMemory& memory, const unsigned* counts, const Mass& mass, double top_p)
{
    const int t = thread_number(), each = KD_COUNT_BINS / int(blockDim.x);
    const int top = KD_COUNT_BINS - 1 - t * each;  // this thread's bins, from the top
    int first = -1;
    for (int j = 0; j < each; ++j) {
        if (first < 0 && counts[top - j]) first = top - j;
    }
    if (t == 0) memory.peak_bin = -1, memory.bin = -1, memory.unclear = counts[KD_COUNT_BINS] != 0;
    __syncthreads();
    first = __reduce_max_sync(KD_FULL_MASK, first);
    if (first >= 0 && lane_id() == 0) atomicMax(&memory.peak_bin, first);
    __syncthreads();
    const int peak_bin = memory.peak_bin;
    const float peak = ValueCount::value(max(peak_bin, 0));
    unsigned long long sum = 0, total;
    for (int j = 0; j < each; ++j) {
        const unsigned count = counts[top - j];
        if (count) sum += count * mass_units(mass, top - j, peak);
    }
    unsigned long long before = sum_before(sum, memory.sums, total);
    const unsigned long long wanted = (unsigned long long)ceil(top_p * double(total));
    if (before < wanted && wanted <= before + sum) {
        for (int j = 0; j < each; ++j) {
            const unsigned count = counts[top - j];
            if (count == 0) continue;
            const unsigned long long own = count * mass_units(mass, top - j, peak);
            if (before < wanted && wanted <= before + own) memory.bin = top - j, memory.above = before;
            before += own;
        }
    }
    __syncthreads();
    const int bin = memory.bin;
    if (t == 0) {
        // What bins of several values may add to the error: their mass times how far it may be off.
        const float around = float(counts[KD_COUNT_SIDE]) + float(counts[KD_COUNT_SIDE - 1]);
        const float off = around * mass.of(0.0f, peak) * 0x1p-16f * mass.scale;
        const float end = counts[0] ? float(counts[0]) * mass.of(ValueCount::value(0), peak) : 0.0f;
        if (!ValueCount::single(peak_bin) || bin < 0 || !ValueCount::single(bin)) memory.unclear = 1;
        if (!(off + end <= 1e-7f * float(double(total) / double(1ull << KD_COUNT_UNIT)))) memory.unclear = 1;
    }
    if (t == 0 && !memory.unclear) {
        const float edge = ValueCount::value(bin);
        const unsigned long long one = mass_units(mass, bin, peak);
        const unsigned long long ties = min((wanted - memory.above + one - 1) / one, (unsigned long long)counts[bin]);
        memory.ties = counts[bin];
        memory.nucleus = {peak, 0.0f, edge, int(ties), 0, 0u, 0ull};
    }
    __syncthreads();
}

// All threads: of two slices, the one that u falls into goes to memory.part; the counts are those of slice `part`.  Ends with a
// barrier.
__device__ inline void choose_slice(CountMemory& memory, int part, float u, float scale)
{
    const unsigned* own = memory.counts;
    const Mass mass(scale);
    const int t = thread_number(), each = KD_COUNT_BINS / int(blockDim.x), top = KD_COUNT_BINS - 1 - t * each, edge = memory.bin;
    const float peak = memory.nucleus.peak;
    unsigned long long sum = 0, above;
    for (int j = 0; j < each && top - j > edge; ++j)
        if (own[top - j]) sum += own[top - j] * mass_units(mass, top - j, peak);
    sum_before(sum, memory.sums, above);
    if (t == 0) {
        const unsigned long long one = mass_units(mass, edge, peak);
        const int ties = memory.nucleus.ties, ties_here = int(min(own[edge], memory.ties));
        const int ties_first = min(ties, part == 0 ? ties_here : int(memory.ties) - ties_here);
        const unsigned long long all = memory.above + ties * one;
        const unsigned long long first = (part == 0 ? above : memory.above - above) + ties_first * one;
        const double target = double(u) * double(all), unit = 1.0 / double(1ull << KD_COUNT_UNIT);
        const int chunks = memory.row.chunks, half = ceil_div(chunks, 2);
        if (target < double(first) || all == first)
            memory.part = {0, half, {memory.nucleus.edge, ties_first}, {target * unit, false}};
        else
            memory.part = {half, chunks, {memory.nucleus.edge, ties - ties_first}, {(target - double(first)) * unit, false}};
    }
    __syncthreads();
}

// All threads: draw from what is kept of a part of a row, by this block alone: a warp adds a run of ids, and the run that the draw
// falls into is read once more.
__device__ __forceinline__ int draw_from_part(const LogitRow& row, const Part& part, float peak, float scale, DrawMemory& memory)
{
    const Mass mass(scale);
    const int warps = int(blockDim.x) >> 5, each = ceil_div(part.end - part.first, warps), warp = warp_id();
    int tied;
    const int own_first = part.first + warp * each;
    const float sum = kept_mass(row, own_first, min(own_first + each, part.end), mass, peak, part.kept, tied);
    if (lane_id() == 0) memory.sums[warp] = sum, memory.ties[warp] = tied;
    __syncthreads();
    if (warp == 0) {
        const auto load = [&](int i, float& own_peak, float& own_sum, int& own_ties) {
            own_peak = peak, own_sum = memory.sums[i], own_ties = memory.ties[i];
        };
        choose_segment<1>(warps, load, part.aim, part.kept, mass, memory);
    }
    __syncthreads();
    const int first = part.first + memory.segment * each;
    return pick(row, first, min(first + each, part.end), part.kept, mass, memory);
}

#endif
