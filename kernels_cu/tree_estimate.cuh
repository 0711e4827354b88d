// tree_estimate.cuh: what does the B-th best node cost, about?  Only for descending rows that are <= 0.
//
// Cost is -score.  From a cost that B nodes surely do not exceed follow KD_TREE_BINS bins.  The ranks of each row are
// counted by bin; convolving neighbouring rows, then pairs of rows, and so on, gives how many paths through a stretch
// of rows have which cost, and how many of its prefixes.  float32 and rounding to bins throughout: an estimate decides
// which nodes are looked at, never the result.  The cost of (0, 0, ...) is rounded once and not row by row.
#ifndef KD_TREE_ESTIMATE_CUH
#define KD_TREE_ESTIMATE_CUH

#include "tree_nodes.cuh"

#define KD_TREE_BINS 32                  // a lane each
#define KD_TREE_BIN_ROW (2 * KD_TREE_BINS)  // as many zeros before the bins: a convolution reads there

// Scalars of a block.
struct Shared {
    unsigned bad_row, unsorted_rows, bound;
    int filled;  // rows before the first that has no finite rank
    int count;
    int sums[32];
    float chain[KD_MAX_DEPTH + 1];  // cost of the node (0, ..., 0) of each depth
};

// bins[row][bin], and the zeros before them: paths through rows, prefixes of such paths.
struct Bins {
    float *through, *prefixes;
};

// A cost that at least `budget` nodes do not exceed, the least of these for some m: the first m rows give
// ceil(budget / m) children of (0, ..., 0) each; or all paths through the first m rows, budget^(1/m) ranks wide.
// Infinite if the rows are too short for any.  s.bound must be ~0u.
__device__ inline float cost_bound(const Table& table, int budget, Shared& s, const Team& t)
{
    const float budget_log = __log2f(float(budget));
#pragma unroll 1
    for (int k = t.warp; k < min(table.rows, 8); k += t.warps) {
        const int m = k < 5 || table.rows <= 8 ? k + 1 : table.rows - (7 - k) * (table.rows - 5) / 3;
        const float share = __fdividef(1.0f, float(m));
        const int comb = int((float(budget) - 0.5f) * share), box = int(exp2f(budget_log * share) * 1.0001f);
        float comb_cost = 0.0f, box_cost = 0.0f;
        if (t.lane < m) {
            comb_cost = comb < table.width ? s.chain[t.lane] - table.at(t.lane, comb) : KD_INFINITY;
            box_cost = box < table.width ? -table.at(t.lane, box) : KD_INFINITY;
        }
        // In steps of 1/128, rounded up, the sum of 32 lanes fits; larger costs are left to the other kind.
        const unsigned steps = unsigned(fminf(box_cost, 1e6f) * 128.0f) + 1u;
        const unsigned most = __reduce_max_sync(KD_FULL_MASK, __float_as_uint(fmaxf(comb_cost, 0.0f)));
        const float sum = float(__reduce_add_sync(KD_FULL_MASK, steps)) * (1.0f / 128.0f);
        if (t.lane == 0) atomicMin(&s.bound, min(most, sum < 1e6f ? __float_as_uint(sum) : most));
    }
    __syncthreads();
    return __uint_as_float(s.bound) * 1.00001f;  // float32 sums of up to 32 terms
}

// The largest cost of any node, by one warp; for rows so short that all their nodes may be wanted.
__device__ inline float whole_cost(const Table& table, const Team& t)
{
    float cost = 0.0f;
    if (t.lane < table.rows) {
        int low = 1, high = table.width;  // find the number of finite ranks
#pragma unroll 1
        while (low < high) {
            const int middle = (low + high + 1) >> 1;
            if (table.at(t.lane, middle - 1) > -KD_INFINITY) low = middle; else high = middle - 1;
        }
        cost = -table.at(t.lane, low - 1);
    }
    return warp_sum(cost) * 1.00001f;
}

// Clear what the bins of any number of rows need.
__device__ inline void clear_bins(const Bins& bins, const Team& t)
{
    float4* at = reinterpret_cast<float4*>(bins.through);  // `prefixes` follows
#pragma unroll 1
    for (int i = t.thread; i < 2 * KD_MAX_DEPTH * KD_TREE_BIN_ROW / 4; i += t.threads) at[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// Count the ranks of each row by bin, into both halves of `bins`.
__device__ inline void count_costs(const Table& table, float per_cost, const Bins& bins, const Shared& s, const Team& t)
{
    unsigned* counts = reinterpret_cast<unsigned*>(bins.through) + KD_TREE_BINS;
    // The cost of the row's first rank, rounded as part of the sum over all rows so far.
    const float before = s.chain[min(t.lane, table.rows)] * per_cost + 0.5f;
    const float after = s.chain[min(t.lane + 1, table.rows)] * per_cost + 0.5f;
    const int offset = int(fminf(after, 1000.0f)) - int(fminf(before, 1000.0f));
#pragma unroll 1
    for (int row = t.warp; row < table.rows; row += t.warps) {
        const int first = __shfl_sync(KD_FULL_MASK, offset, row);
        const float head = table.at(row, 0);
        bool some = true;
#pragma unroll 2
        for (int begin = 0; begin < table.width && some; begin += 32) {
            const int rank = begin + t.lane;
            const float above = (head - table.at(row, min(rank, table.width - 1))) * per_cost + 0.5f;
            const int bin = first + int(fminf(above, float(KD_TREE_BINS)));
            const bool in = rank < table.width && bin < KD_TREE_BINS;
            if (in) atomicAdd(counts + row * KD_TREE_BIN_ROW + bin, 1u);
            some = __any_sync(KD_FULL_MASK, in);
        }
    }
    __syncthreads();
#pragma unroll 1
    for (int i = t.thread; i < table.rows * KD_TREE_BINS; i += t.threads) {
        const int at = (i >> 5) * KD_TREE_BIN_ROW + KD_TREE_BINS + (i & 31);
        const float count = float(reinterpret_cast<unsigned*>(bins.through)[at]);
        bins.through[at] = bins.prefixes[at] = count;
    }
    __syncthreads();
}

// The lane's bin of the convolution of two rows of bins.
__device__ __forceinline__ float convolve(const float* first, const float* second, int lane)
{
    const float4* paths = reinterpret_cast<const float4*>(first);
    const float* from = second + lane;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < KD_TREE_BINS; i += 4) {
        const float4 four = paths[i / 4];
        sum[0] += four.x * from[-i], sum[1] += four.y * from[-i - 1];
        sum[2] += four.z * from[-i - 2], sum[3] += four.w * from[-i - 3];
    }
    return fminf((sum[0] + sum[1]) + (sum[2] + sum[3]), 1e9f);
}

// Join stretches of rows two by two, a warp a pair, until prefixes[0] holds the nodes of all depths by cost.
__device__ inline void convolve_costs(int rows, const Bins& bins, const Team& t)
{
#pragma unroll 1
    for (int length = 1; length < rows; length *= 2) {
#pragma unroll 1
        for (int row = t.warp * 2 * length; row + length < rows; row += t.warps * 2 * length) {
            const int first = row * KD_TREE_BIN_ROW + KD_TREE_BINS, second = first + length * KD_TREE_BIN_ROW;
            const float through = convolve(bins.through + first, bins.through + second, t.lane);
            // A single row has no other prefix than itself.
            const float ends = length == 1 ? through : convolve(bins.through + first, bins.prefixes + second, t.lane);
            __syncwarp();
            bins.through[first + t.lane] = through;
            bins.prefixes[first + t.lane] += ends;
        }
        __syncthreads();
    }
}

// Any warp: the cost that about `wanted` nodes do not exceed; `most` if there are fewer.
__device__ inline float cost_of(float wanted, float most, const Bins& bins, int lane)
{
    const float own = bins.prefixes[KD_TREE_BINS + lane];
    float total = own;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        const float left = __shfl_up_sync(KD_FULL_MASK, total, offset);
        if (lane >= offset) total += left;
    }
    const unsigned enough = __ballot_sync(KD_FULL_MASK, total >= wanted);
    if (enough == 0) return most;
    const int bin = __ffs(int(enough)) - 1;
    const float part = (wanted - (total - own)) / fmaxf(own, 1.0f) - 0.5f;  // bin 0 begins at cost 0
    const float cost = (float(lane) + part) * most * (1.0f / KD_TREE_BINS);
    return __shfl_sync(KD_FULL_MASK, fminf(fmaxf(cost, 0.0f), most), bin);
}

#endif
