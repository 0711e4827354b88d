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
    int count, kept;
    float cost;
    int sums[32];
    double chain[KD_MAX_DEPTH + 1];  // score of the node (0, ..., 0) of each depth
};

// bins[row][bin], and the zeros before them: paths through rows, prefixes of such paths.
struct Bins {
    float *through, *prefixes;
};

// Bin of the cost of (0, ..., 0) at depth `d`.
__device__ __forceinline__ int chain_bin(const Shared& s, int d, float per_cost)
{
    return int(fminf(-float(s.chain[d]) * per_cost + 0.5f, 1000.0f));
}

// A cost that at least `budget` nodes do not exceed, the best of these for m = 1, 2, ...: the first m rows give
// ceil(budget / m) children of (0, ..., 0) each; or all paths through the first m rows, budget^(1/m) ranks wide.
// Infinite if the rows are too short for any.  s.bound must be ~0u.
__device__ inline float cost_bound(const Table& table, int budget, Shared& s, const Team& t)
{
    const float budget_log = log2f(float(budget));
    for (int m = t.warp + 1; m <= table.rows; m += t.warps) {
        const float share = 1.0f / float(m);
        const int comb = int((float(budget) - 0.5f) * share), box = int(exp2f(budget_log * share) * 1.0001f);
        float comb_cost = 0.0f, box_cost = 0.0f;
        if (t.lane < m) {
            comb_cost = comb < table.width ? fmaxf(-float(s.chain[t.lane]) - table.at(t.lane, comb), 0.0f) : KD_INFINITY;
            box_cost = box < table.width ? -table.at(t.lane, box) : KD_INFINITY;
        }
        const unsigned most = __reduce_max_sync(KD_FULL_MASK, __float_as_uint(comb_cost));
        const unsigned sum = __float_as_uint(fmaxf(warp_sum(box_cost), 0.0f));
        if (t.lane == 0) atomicMin(&s.bound, min(most, sum));
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
    for (int i = t.thread; i < 2 * KD_MAX_DEPTH * KD_TREE_BIN_ROW / 4; i += t.threads) at[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// Count the ranks of each row by bin, into both halves of `bins`.
__device__ inline void count_costs(const Table& table, float per_cost, const Bins& bins, const Shared& s, const Team& t)
{
    unsigned* counts = reinterpret_cast<unsigned*>(bins.through) + KD_TREE_BINS;
    const int chunks = ceil_div(table.width, 32), total = table.rows * chunks;
    const float per_chunk = 1.0f / float(chunks);
    for (int c = t.warp; c < total; c += t.warps) {
        const int row = int((float(c) + 0.5f) * per_chunk), rank = (c - row * chunks) * 32 + t.lane;
        const float above = table.at(row, 0) - table.at(row, min(rank, table.width - 1));
        const int offset = chain_bin(s, row + 1, per_cost) - chain_bin(s, row, per_cost);
        const int bin = offset + int(fminf(above * per_cost + 0.5f, float(KD_TREE_BINS)));
        if (rank < table.width && bin < KD_TREE_BINS) atomicAdd(counts + row * KD_TREE_BIN_ROW + bin, 1u);
    }
    __syncthreads();
    for (int i = t.thread; i < table.rows * KD_TREE_BINS; i += t.threads) {
        const int at = (i >> 5) * KD_TREE_BIN_ROW + KD_TREE_BINS + (i & 31);
        const float count = float(reinterpret_cast<unsigned*>(bins.through)[at]);
        bins.through[at] = bins.prefixes[at] = count;
    }
    __syncthreads();
}

// Join stretches of rows two by two until prefixes[0] holds the nodes of all depths by cost.
__device__ inline void convolve_costs(int rows, const Bins& bins, const Team& t)
{
    for (int length = 1; length < rows; length *= 2) {
        for (int row = t.warp * 2 * length; row + length < rows; row += t.warps * 2 * length) {
            const float4* first = reinterpret_cast<const float4*>(bins.through + row * KD_TREE_BIN_ROW + KD_TREE_BINS);
            const int at = row * KD_TREE_BIN_ROW + KD_TREE_BINS + t.lane, next = at + length * KD_TREE_BIN_ROW;
            const float *second = bins.through + next, *ends = bins.prefixes + next;
            float through = 0.0f, prefixes = bins.prefixes[at];
#pragma unroll
            for (int i = 0; i < KD_TREE_BINS; i += 4) {
                const float4 paths = first[i / 4];
                through += paths.x * second[-i] + paths.y * second[-i - 1] + (paths.z * second[-i - 2] + paths.w * second[-i - 3]);
                prefixes += paths.x * ends[-i] + paths.y * ends[-i - 1] + (paths.z * ends[-i - 2] + paths.w * ends[-i - 3]);
            }
            __syncwarp();
            bins.through[at] = fminf(through, 1e9f), bins.prefixes[at] = fminf(prefixes, 1e9f);
        }
        __syncthreads();
    }
}

// One warp: the cost that about `wanted` nodes do not exceed; `most` if there are fewer.
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
