// target_draw.cuh: masses of a row by segments, and the token that a uniform number falls on.
#ifndef KD_TARGET_DRAW_CUH
#define KD_TARGET_DRAW_CUH

#include "target_row.cuh"

#define KD_NO_TOKEN 0x7fffffff
#define KD_DRAW_UNROLL 5  // chunks that a lane loads at once
#define KD_MOST_WARPS 32

struct PeakSum {
    float peak, sum;
};

// A row is cut in slices (a block each), a slice in segments (a warp each), all runs of whole chunks.
struct RowCut {
    LogitRow row;
    int slices;

    __device__ void segment(int number, int& first, int& end) const
    {
        const int slice = number / KD_TARGET_WARPS, each = ceil_div(row.chunks, slices), own = ceil_div(each, KD_TARGET_WARPS);
        const int slice_first = min(slice * each, row.chunks), slice_end = min(slice_first + each, row.chunks);
        first = min(slice_first + (number - slice * KD_TARGET_WARPS) * own, slice_end);
        end = min(first + own, slice_end);
    }
};

struct Segments {
    float *peaks, *sums;
    int* ties;
    long long at;  // of the row's first
    int count;
};

struct DrawMemory {
    float floats[KD_MOST_WARPS], sums[KD_MOST_WARPS];
    int ints[KD_MOST_WARPS], ties[KD_MOST_WARPS];
    double total, remaining;  // mass of the row; mass to pass over in the segment
    float peak;
    int bad, segment, ties_before, choice;
};

__device__ __forceinline__ void load_segment(const LogitRow& row, int base, int end, uint4* tile)
{
#pragma unroll
    for (int u = 0; u < KD_DRAW_UNROLL; ++u) tile[u] = row.read(base + 32 * u, end);
    if (row.whole()) return;
#pragma unroll
    for (int u = 0; u < KD_DRAW_UNROLL; ++u) row.hide(tile[u], base + 32 * u);
}

// This lane's share of chunks first..end-1: its largest logit and its mass relative to that; no product can overflow.
__device__ __noinline__ PeakSum careful_sum(LogitRow row, int first, int end, int stride, float scale)
{
    const Mass mass(scale);
    float peak = -KD_LARGEST, sum = 0.0f;
#pragma unroll 1
    for (int c = first; c < end; c += stride) {
        const uint4 chunk = row.load(c, end);
        const float top = chunk_top(chunk);
        if (top > peak) {
            sum *= mass.of(peak, top);
            peak = top;
        }
#pragma unroll
        for (int j = 0; j < KD_PACK; ++j) sum = mass.add(sum, element(chunk, j), peak);
    }
    return {peak, sum};
}

// This warp's segment: its largest logit and its mass relative to that.
__device__ __forceinline__ void add_segment(const RowCut& cut, int part, const Segments& segments, const Mass& mass)
{
    const int number = part * KD_TARGET_WARPS + warp_id(), lane = lane_id();
    const FastMass fast = {mass.scale};
    int first, end;
    cut.segment(number, first, end);
    float peak = -KD_INFINITY, offset = 0.0f, sum = 0.0f;
#pragma unroll 1
    for (int base = first; base < end; base += 32 * KD_DRAW_UNROLL) {
        uint4 tile[KD_DRAW_UNROLL];
        load_segment(cut.row, base + lane, end, tile);
        float top = chunk_top(tile[0]);
#pragma unroll
        for (int u = 1; u < KD_DRAW_UNROLL; ++u) top = larger(top, chunk_top(tile[u]));
        if (top > peak) {
            const float higher = fast.offset(top);
            sum = sum == 0.0f ? 0.0f : sum * exp2_approximate(offset - higher);
            peak = top, offset = higher;
        }
        if (top != top) sum = top;
        if (peak == -KD_INFINITY) continue;
        float parts[2] = {0.0f, 0.0f};
#pragma unroll
        for (int u = 0; u < KD_DRAW_UNROLL; ++u) {
#pragma unroll
            for (int j = 0; j < KD_PACK; ++j) parts[j & 1] += fast.of(element(tile[u], j), offset);
        }
        sum += parts[0] + parts[1];
    }
    sum = sum == 0.0f ? 0.0f : fast.relative(sum, peak, offset);
    if (__any_sync(KD_FULL_MASK, peak != -KD_INFINITY && !fast.safe(peak))) {
        const PeakSum own = careful_sum(cut.row, first + lane, end, 32, mass.scale);
        peak = own.peak, sum = own.sum;
    }
    const float most = warp_max(larger(peak, -KD_LARGEST));
    sum = warp_sum(sum == 0.0f ? 0.0f : sum * mass.of(peak, most));
    if (lane == 0) segments.peaks[segments.at + number] = most, segments.sums[segments.at + number] = sum;
}

// This lane: the mass above the edge by `of`, and how many elements equal the edge, among chunks first..end-1.
template <class Of>
__device__ __forceinline__ float sum_kept(const LogitRow& row, int first, int end, float edge, int& tied, Of of)
{
    float sum = 0.0f;
#pragma unroll 1
    for (int base = first; base < end; base += 32 * KD_DRAW_UNROLL) {
        uint4 tile[KD_DRAW_UNROLL];
        load_segment(row, base, end, tile);
#pragma unroll
        for (int u = 0; u < KD_DRAW_UNROLL; ++u) {
            if (!(chunk_top(tile[u]) >= edge)) continue;
            float own = 0.0f;
#pragma unroll
            for (int j = 0; j < KD_PACK; ++j) {
                const float x = element(tile[u], j), mass = of(x);
                if (x > edge) own += mass;
                if (x == edge) ++tied;
            }
            sum += own;
        }
    }
    return sum;
}

// This warp: the mass above the edge in chunks first..end-1, relative to the row's peak, and how many elements equal the edge.
__device__ __forceinline__ float kept_mass(const LogitRow& row, int first, int end, const Mass& mass, float peak,
    const Kept& kept, int& tied)
{
    const FastMass fast = {mass.scale};
    const float offset = fast.offset(peak);
    float sum;
    tied = 0;
    first += lane_id();
    if (fast.safe(peak)) {
        sum = sum_kept(row, first, end, kept.edge, tied, [&](float x) { return fast.of(x, offset); });
        sum = fast.relative(sum, peak, offset);
    } else {
        sum = sum_kept(row, first, end, kept.edge, tied, [&](float x) { return mass.of(x, peak); });
    }
    tied = warp_sum(tied);
    return warp_sum(sum);
}

// This warp's segment of what is kept.
__device__ __forceinline__ void add_kept_segment(const RowCut& cut, int part, const Segments& segments, const Mass& mass, float peak,
    const Kept& kept)
{
    const int number = part * KD_TARGET_WARPS + warp_id();
    int first, end, tied;
    cut.segment(number, first, end);
    const float sum = kept_mass(cut.row, first, end, mass, peak, kept, tied);
    if (lane_id() != 0) return;
    segments.peaks[segments.at + number] = peak, segments.sums[segments.at + number] = sum;
    segments.ties[segments.at + number] = tied;
}

// Where a draw falls: at this share of what there is, or at this mass relative to the peak.
struct Aim {
    double at;
    bool share;
};

// Warp 0: into which of `count` segments does it fall?  Each lane adds a run of up to `most`, in ascending order.
template <int most, class Load>
__device__ __forceinline__ void choose_segment(int count, Load load, const Aim& aim, const Kept& kept, const Mass& mass,
    DrawMemory& memory)
{
    const int lane = lane_id(), each = ceil_div(count, 32), first = lane * each;
    float peaks[most], sums[most], peak = -KD_LARGEST;
    int ties[most], tied = 0;
#pragma unroll
    for (int i = 0; i < most; ++i) {
        peaks[i] = -KD_LARGEST, sums[i] = 0.0f, ties[i] = 0;
        if (i < each && first + i < count) load(first + i, peaks[i], sums[i], ties[i]);
        if (!kept.ties) ties[i] = 0;
    }
#pragma unroll
    for (int i = 0; i < most; ++i) peak = larger(peak, peaks[i]), tied += ties[i];
    peak = warp_max(peak);
    int ties_upto = tied;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        const int left = __shfl_up_sync(KD_FULL_MASK, ties_upto, offset);
        if (lane >= offset) ties_upto += left;
    }
    const float tie_mass = kept.ties ? mass.of(kept.edge, peak) : 0.0f;
    double masses[most], own = 0.0;
    int ties_before = ties_upto - tied;
#pragma unroll
    for (int i = 0; i < most; ++i) {
        masses[i] = sums[i] == 0.0f ? 0.0 : double(sums[i] * mass.of(peaks[i], peak));
        if (kept.ties) masses[i] += double(tie_mass) * double(max(min(kept.ties - ties_before, ties[i]), 0));
        ties_before += ties[i];
        own += masses[i];
    }
    double upto = own;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        const double left = __shfl_up_sync(KD_FULL_MASK, upto, offset);
        if (lane >= offset) upto += left;
    }
    const double total = __shfl_sync(KD_FULL_MASK, upto, 31), target = aim.share ? aim.at * total : aim.at;
    const unsigned beyond = __ballot_sync(KD_FULL_MASK, upto > target && own > 0.0);
    const unsigned filled = __ballot_sync(KD_FULL_MASK, own > 0.0);
    const int chosen = beyond ? __ffs(int(beyond)) - 1 : filled ? 31 - __clz(int(filled)) : 0;
    if (lane == 0) {
        memory.bad = !(total > 0.0) || peak == KD_INFINITY;
        memory.peak = peak, memory.total = total, memory.choice = KD_NO_TOKEN;
    }
    if (lane != chosen) return;
    double before = upto - own;
    ties_before = ties_upto - tied;
    bool passed = false;
    memory.segment = first;
#pragma unroll
    for (int i = 0; i < most; ++i) {  // the first segment that ends beyond the target, or the last with any mass
        if (masses[i] > 0.0 && !passed) {
            memory.segment = first + i, memory.remaining = target - before, memory.ties_before = ties_before;
            passed = before + masses[i] > target;
        }
        before += masses[i], ties_before += ties[i];
    }
    if (!beyond) memory.remaining = KD_INFINITY;  // u of 1 or more, or NaN: the last id with any mass
}

// Warp 0: the same for segments that blocks left in global memory.
__device__ __forceinline__ void choose_segment(const Segments& segments, float u, const Kept& kept, const Mass& mass, DrawMemory& memory)
{
    constexpr int most = KD_TARGET_SLICES * KD_TARGET_WARPS / 32;
    const auto load = [&](int i, float& peak, float& sum, int& ties) {
        peak = __ldcg(&segments.peaks[segments.at + i]), sum = __ldcg(&segments.sums[segments.at + i]);
        if (kept.ties) ties = __ldcg(&segments.ties[segments.at + i]);
    };
    choose_segment<most>(segments.count, load, {double(u), true}, kept, mass, memory);
}

// All threads: the first id of the chosen segment whose cumulative mass exceeds what remains, else the last with mass.
__device__ inline int pick(const LogitRow& row, int first, int end, const Kept& kept, const Mass& mass, DrawMemory& memory)
{
    const int t = thread_number();
    const float peak = memory.peak;
    const double remaining = memory.remaining;
    int ties_before = memory.ties_before, last = -1;
    float passed = 0.0f;
    for (int base = first; base < end; base += int(blockDim.x)) {
        const uint4 chunk = row.load(base + t, end);
        float masses[KD_PACK], own = 0.0f, total;
        int tied = 0, all_tied = 0, rank = 0;
        if (kept.ties) {
#pragma unroll
            for (int j = 0; j < KD_PACK; ++j) tied += element(chunk, j) == kept.edge;
            rank = ties_before + sum_before(tied, memory.ints, all_tied);
        }
#pragma unroll
        for (int j = 0; j < KD_PACK; ++j) {
            const float x = element(chunk, j);
            const bool counts = x > kept.edge || (x == kept.edge && rank++ < kept.ties);
            masses[j] = counts ? mass.of(x, peak) : 0.0f;
            own += masses[j];
            if (masses[j] > 0.0f) last = row.id(base + t) + j;
        }
        float sum = passed + sum_before(own, memory.floats, total);
        if (own > 0.0f && double(sum + own) > remaining) {
            int choice = KD_NO_TOKEN;
#pragma unroll
            for (int j = 0; j < KD_PACK; ++j) {
                sum += masses[j];
                if (choice == KD_NO_TOKEN && masses[j] > 0.0f && double(sum) > remaining) choice = row.id(base + t) + j;
            }
            atomicMin(&memory.choice, choice == KD_NO_TOKEN ? last : choice);
        }
        __syncthreads();
        if (memory.choice != KD_NO_TOKEN) return memory.choice;
        passed += total, ties_before += all_tied;
    }
    return block_max(last, memory.ints);
}

#endif
