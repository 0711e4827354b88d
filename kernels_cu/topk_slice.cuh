// topk_slice.cuh: one pass of one block over a slice of a row: what may be among the row's k best, and a sum of exponentials.
//
// A row is cut in "parts" of KD_TOPK_THREADS * KD_TOPK_UNROLL chunks; a slice is `tiles` parts.  Parts are interleaved
// (part p takes runs of chunks p, p + parts, ...), so that each is a fair sample of the row.  The first part of a slice
// is held in registers; its elements set an edge that a few times as many elements reach as a fair share of k would be.
// Whatever reaches the edge is listed.  Whether that was enough is checked when the row's best are known.
#ifndef KD_TOPK_SLICE_CUH
#define KD_TOPK_SLICE_CUH

#include "radix_select.cuh"

#define KD_TOPK_THREADS KD_SELECT_THREADS
#define KD_TOPK_UNROLL 5                     // chunks of a part that a thread holds
#define KD_TOPK_FEW (KD_TOPK_THREADS / 4)    // up to this rank the largest elements of threads stand for all

#define KD_TOO_MANY (1 << 20)
// Blocks of a multiprocessor: four where that does not spill registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define KD_TOPK_RESIDENT 3
#else
#define KD_TOPK_RESIDENT (KD_PACK == 8 ? 4 : 3)
#endif

struct SliceMemory {
    Counts counts;
    unsigned highs[KD_ROW_WARPS], lows[KD_ROW_WARPS];
    float scratch[KD_ROW_WARPS];
    int hits, listed, best;
};

// What one block says of its slice.
struct __align__(16) SlicePart {
    int listed;     // elements that reach the edge, or more than fit
    unsigned edge;  // key of a value
    float peak, sum;
};

// Which chunks are a thread's: chunk u of tile j is first + (j << group) + u * step.
struct SliceCut {
    int first, step, group, tiles;

    __device__ SliceCut(int slice, int slices, int tiles, int group) : group(group), tiles(tiles)
    {
        const int t = thread_number(), parts = slices * tiles;
        first = (((t >> group) * parts + slice * tiles) << group) + (t & ((1 << group) - 1));
        step = KD_TOPK_THREADS * parts;
    }
};

struct SliceList {
    Composite* elements;  // `room` of them
    int room;
    int* hits;  // chunks with an element that reaches the edge: `most` of them
    int most;
};

__device__ __forceinline__ void load_tile(const LogitRow& row, const SliceCut& cut, int first, uint4* tile)
{
#pragma unroll
    for (int u = 0; u < KD_TOPK_UNROLL; ++u) tile[u] = row.read(first + u * cut.step, row.chunks);
    if (row.whole()) return;
#pragma unroll
    for (int u = 0; u < KD_TOPK_UNROLL; ++u) row.hide(tile[u], first + u * cut.step);
}

__device__ __forceinline__ float tile_top(const uint4* tile)
{
    float top = chunk_top(tile[0]);
#pragma unroll
    for (int u = 1; u < KD_TOPK_UNROLL; ++u) top = larger(top, chunk_top(tile[u]));
    return top;
}

__device__ __forceinline__ float tile_sum(const uint4* tile, const FastMass& fast, float offset)
{
    float parts[2] = {0.0f, 0.0f};  // short chains: less rounding, more at once
#pragma unroll
    for (int u = 0; u < KD_TOPK_UNROLL; ++u) {
#pragma unroll
        for (int j = 0; j < KD_PACK; ++j) parts[j & 1] += fast.of(element(tile[u], j), offset);
    }
    return parts[0] + parts[1];
}

__device__ __forceinline__ bool is_finite_key(unsigned key)
{
    return key > KD_KEY_MINUS_INFINITY && key < order_key(KD_INFINITY);
}

// All threads: the largest of `top` over the block (NaN if one is), and the smallest finite one of `least`, or the largest.
// One barrier.
__device__ __forceinline__ void block_range(SliceMemory& memory, float top, float least, float& high, float& low)
{
    const unsigned key = order_key(least);
    const unsigned most = __reduce_max_sync(KD_FULL_MASK, order_key(top));
    const unsigned fewest = __reduce_min_sync(KD_FULL_MASK, is_finite_key(key) ? key : 0xffffffffu);
    if (lane_id() == 0) memory.highs[warp_id()] = most, memory.lows[warp_id()] = fewest;
    __syncthreads();
    unsigned highest = 0, lowest = 0xffffffffu;
#pragma unroll
    for (int w = 0; w < KD_ROW_WARPS; ++w) highest = max(highest, memory.highs[w]), lowest = min(lowest, memory.lows[w]);
    high = larger(key_value(highest), -KD_LARGEST);
    low = key_value(min(lowest, highest));
}

// This thread: note chunks with an element that reaches the edge.
__device__ __forceinline__ void note_hits(SliceMemory& memory, const SliceList& list, const uint4* tile, float edge, int first,
    int step)
{
#pragma unroll
    for (int u = 0; u < KD_TOPK_UNROLL; ++u) {
        if (!(chunk_top(tile[u]) >= edge)) continue;
        const int slot = atomicAdd(&memory.hits, 1);
        if (slot < list.most) list.hits[slot] = first + u * step;
    }
}

// All threads, hits complete and a barrier passed: list the elements of these chunks that reach the edge.
__device__ __forceinline__ void list_elements(SliceMemory& memory, const LogitRow& row, const SliceList& list, float edge)
{
    const int hits = min(memory.hits, list.most);
#pragma unroll 1
    for (int i = thread_number(); i < hits; i += KD_TOPK_THREADS) {
        const int c = list.hits[i], id = row.id(c);
        const uint4 chunk = row.load(c, row.chunks);
        unsigned found = 0;
#pragma unroll
        for (int j = 0; j < KD_PACK; ++j) found |= unsigned(element(chunk, j) >= edge) << j;
        int slot = atomicAdd(&memory.listed, __popc(found));
#pragma unroll
        for (int j = 0; j < KD_PACK; ++j) {
            if (!(found >> j & 1)) continue;
            if (slot < list.room) list.elements[slot] = composite(element(chunk, j), id + j);
            ++slot;
        }
    }
}

// All threads: the sum of exponentials of a slice whose numbers are so large that products overflow, or not finite.
__device__ __noinline__ float careful_sum(SliceMemory& memory, LogitRow row, SliceCut cut, float scale, float peak)
{
    const Mass mass(scale);
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < cut.tiles * KD_TOPK_UNROLL; ++i) {
        const int tile = i / KD_TOPK_UNROLL, u = i - tile * KD_TOPK_UNROLL, c = cut.first + (tile << cut.group) + u * cut.step;
        const uint4 chunk = row.load(c, row.chunks);
#pragma unroll
        for (int j = 0; j < KD_PACK; ++j) sum = mass.add(sum, element(chunk, j), peak);
    }
    return row_sum(sum, memory.scratch);
}

// All threads: read the slice.  `rank`: of the edge among the elements of the first tile.
__device__ __forceinline__ SlicePart scan_slice(SliceMemory& memory, const LogitRow& row, const SliceCut& cut, float scale,
    int rank, const SliceList& list)
{
    const FastMass fast = {scale};
    uint4 tile[KD_TOPK_UNROLL];
    load_tile(row, cut, cut.first, tile);
    memory.counts.clear();
    if (thread_number() == 0) memory.hits = 0, memory.listed = 0, memory.best = 0;
    const bool few = rank <= KD_TOPK_FEW;
    float top = tile_top(tile), least = top, peak, low;
    if (!few) {
        least = KD_INFINITY;
#pragma unroll
        for (int u = 0; u < KD_TOPK_UNROLL; ++u) {
            const float own = chunk_top(tile[u]);
            if (is_finite_key(order_key(own))) least = fminf(least, own);
        }
    }
    block_range(memory, top, least, peak, low);
    const ValueBins bins(low, peak);
    if (!few) {
#pragma unroll
        for (int u = 0; u < KD_TOPK_UNROLL; ++u) {
            const float own = chunk_top(tile[u]);
            if (is_finite_key(order_key(own))) memory.counts.add(bins.of(own));
        }
    } else if (is_finite_key(order_key(top))) {
        memory.counts.add(bins.of(top));
    }
    float most = peak, offset = fast.offset(peak);
    float sum = tile_sum(tile, fast, offset);
    bool risky = !fast.safe(peak);  // nothing but -inf so far, say
    __syncthreads();
    find_digit(memory.counts, unsigned(rank));
    // With so few finite elements all of them are listed.
    const float edge = memory.counts.digit == KD_NO_DIGIT ? -KD_LARGEST : bins.edge(memory.counts.digit);
    note_hits(memory, list, tile, edge, cut.first, cut.step);
#pragma unroll 1
    for (int j = 1; j < cut.tiles; ++j) {
        const int first = cut.first + (j << cut.group);
        load_tile(row, cut, first, tile);
        top = tile_top(tile);
        if (top > peak) {
            const float higher = fast.offset(top);
            sum *= exp2_approximate(offset - higher);
            peak = top, offset = higher;
        }
        sum += tile_sum(tile, fast, offset);
        note_hits(memory, list, tile, edge, first, cut.step);
    }
    if (cut.tiles > 1) most = larger(row_max(peak, memory.scratch), -KD_LARGEST), risky |= !fast.safe(peak);
    risky = __syncthreads_or(risky) != 0;
    list_elements(memory, row, list, edge);
    sum = fast.relative(sum, peak, offset);
    if (cut.tiles > 1 && sum != 0.0f) sum *= Mass(scale).of(peak, most);
    sum = risky ? careful_sum(memory, row, cut, scale, most) : row_sum(sum, memory.scratch);
    __syncthreads();
    return {memory.hits <= list.most ? memory.listed : KD_TOO_MANY, order_key(edge), most, sum};
}

#endif
