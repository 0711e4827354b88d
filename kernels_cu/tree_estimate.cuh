// tree_estimate.cuh: what does the B-th best node cost, about?  Only descending rows that are <= 0.
//
// Cost is -score.  The costs of one row, less that of its first rank, fall into KD_TREE_BINS bins; convolving row
// after row tells how many nodes of each depth have which cost.  float32 throughout: an estimate decides which nodes
// are looked at, never the result.
#ifndef KD_TREE_ESTIMATE_CUH
#define KD_TREE_ESTIMATE_CUH

#include "tree_nodes.cuh"

#ifndef KD_TREE_BINS
#define KD_TREE_BINS 64
#endif
#define KD_TREE_COSTS 256  // costs at which the estimate is evaluated

// Scalars of a block.
struct Shared {
    unsigned bad_row, unsorted_rows, bound, whole, step, good;
    int filled;  // rows before the first that has no finite rank
    int sums[32];
    double chain[KD_MAX_DEPTH + 1];  // score of the node (0, ..., 0) of each depth
    int reach[KD_MAX_DEPTH];         // how many ranks of a row can be in the tree at all
};

// Candidates in the order found, number 0 being the root, and tables of the estimate.  All in shared memory.
struct Found {
    double* score;
    Index *parent, *rank, *depth, *children, *slot, *place, *order;
    unsigned *bucket, *histogram;
    float* density;
    int capacity, buckets;
};

struct Team {
    int lane, warp, warps, thread, threads;
};

__device__ __forceinline__ Team team()
{
    return {lane_id(), warp_id(), int(blockDim.x) >> 5, int(threadIdx.x), int(blockDim.x)};
}

// A cost that at least `budget` nodes do not exceed: the first m rows give ceil(budget / m) nodes each, best m.
// Infinite if the rows are too short for that.
__device__ inline float cost_bound(const Table& table, int budget, Shared& s, const Team& t)
{
    for (int m = t.warp + 1; m <= table.rows; m += t.warps) {
        const int rank = ceil_div(budget, m) - 1;
        float cost = 0.0f;
        if (t.lane < m) cost = rank < table.width ? -float(s.chain[t.lane]) - table.at(t.lane, rank) : KD_INFINITY;
        const unsigned worst = __reduce_max_sync(KD_FULL_MASK, __float_as_uint(fmaxf(cost, 0.0f)));
        if (t.lane == 0) atomicMin(&s.bound, worst);
    }
    __syncthreads();
    return __uint_as_float(s.bound) * 1.00001f;  // float32 sums of up to 32 terms
}

// The largest cost of any node; for rows so short that all their nodes may be wanted.
__device__ inline float whole_cost(const Table& table, Shared& s, const Team& t)
{
    if (t.warp == 0) {
        float cost = 0.0f;
        if (t.lane < table.rows) {
            int low = 1, high = table.width;  // find the number of finite ranks
            while (low < high) {
                const int middle = (low + high + 1) >> 1;
                if (table.at(t.lane, middle - 1) > -KD_INFINITY) low = middle; else high = middle - 1;
            }
            cost = -table.at(t.lane, low - 1);
        }
        cost = warp_sum(cost);
        if (t.lane == 0) s.whole = __float_as_uint(cost);
    }
    __syncthreads();
    return __uint_as_float(s.whole) * 1.00001f;
}

// histogram[row][bin]: ranks whose cost above the row's first is nearest to bin / per_cost.  Equal bins of a warp
// are neighbours because rows descend, so each run of them is added at once.
__device__ inline void count_costs(const Table& table, int width, float per_cost, const Found& f, const Team& t)
{
    for (int i = t.thread; i < table.rows * KD_TREE_BINS; i += t.threads) f.histogram[i] = 0;
    __syncthreads();
    const int chunks = ceil_div(width, 32);
    for (int c = t.warp; c < table.rows * chunks; c += t.warps) {
        const int row = c / chunks, rank = (c - row * chunks) * 32 + t.lane;
        const float above = rank < width ? (table.at(row, 0) - table.at(row, rank)) * per_cost : KD_INFINITY;
        const bool inside = above < KD_TREE_BINS - 0.5f;
        const int bin = inside ? int(above + 0.5f) : KD_TREE_BINS;
        const int former = __shfl_up_sync(KD_FULL_MASK, bin, 1);
        const unsigned lanes = __ballot_sync(KD_FULL_MASK, inside);
        const unsigned heads = __ballot_sync(KD_FULL_MASK, inside && (t.lane == 0 || bin != former));
        const unsigned later = heads & (0xfffffffeu << t.lane);
        const int end = later ? __ffs(int(later)) - 1 : __popc(lanes);
        if (heads >> t.lane & 1) atomicAdd(&f.histogram[row * KD_TREE_BINS + bin], unsigned(end - t.lane));
    }
    __syncthreads();
}

// density[row][bin]: expected nodes of depth row + 1 by cost above the chain's, as running totals over the bins.
// The convolutions are one warp's work: each bin that occurs in a row adds a shifted copy of the former density.
__device__ inline void convolve_costs(int rows, const Found& f, const Team& t)
{
    if (t.warp == 0) {
        for (int d = 0; d < rows; ++d) {
            const unsigned* now = f.histogram + d * KD_TREE_BINS;
            float sum[KD_TREE_BINS / 32];
#pragma unroll
            for (int i = 0; i < KD_TREE_BINS / 32; ++i) sum[i] = d == 0 ? float(now[i * 32 + t.lane]) : 0.0f;
            for (int i = 0; d > 0 && i < KD_TREE_BINS; i += 32) {
                unsigned occurring = __ballot_sync(KD_FULL_MASK, now[i + t.lane] != 0);
                for (; occurring != 0; occurring &= occurring - 1) {
                    const int shift = i + __ffs(int(occurring)) - 1;
                    const float ranks = float(now[shift]);
#pragma unroll
                    for (int j = 0; j < KD_TREE_BINS / 32; ++j) {
                        const int from = j * 32 + t.lane - shift;
                        if (from >= 0) sum[j] += ranks * f.density[(d - 1) * KD_TREE_BINS + from];
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < KD_TREE_BINS / 32; ++i) f.density[d * KD_TREE_BINS + i * 32 + t.lane] = fminf(sum[i], 1e9f);
            __syncwarp();
        }
    }
    __syncthreads();
    for (int d = t.warp; d < rows; d += t.warps) {
        float before = 0.0f;
        for (int i = t.lane; i < KD_TREE_BINS; i += 32) {
            float sum = f.density[d * KD_TREE_BINS + i];
#pragma unroll
            for (int offset = 1; offset < 32; offset <<= 1) {
                const float left = __shfl_up_sync(KD_FULL_MASK, sum, offset);
                if (t.lane >= offset) sum += left;
            }
            f.density[d * KD_TREE_BINS + i] = sum + before;
            before += __shfl_sync(KD_FULL_MASK, sum, 31);
        }
    }
    __syncthreads();
}

// The smallest of KD_TREE_COSTS steps up to `most` that `wanted` nodes are expected not to exceed; `most` if none.
__device__ inline float cost_of(float wanted, float most, float per_cost, int rows, const Found& f, Shared& s, const Team& t)
{
    for (int step = t.thread; step < KD_TREE_COSTS; step += t.threads) {
        const float cost = most * float(step + 1) * (1.0f / KD_TREE_COSTS);
        float nodes = 0.0f;
        for (int d = 0; d < rows; ++d) {
            const float at = (cost + float(s.chain[d + 1])) * per_cost + 0.5f;
            if (at < 0.5f) continue;
            const int bin = int(fminf(at, KD_TREE_BINS - 1.0f));
            const float* total = f.density + d * KD_TREE_BINS;
            const float below = bin > 0 ? total[bin - 1] : 0.0f;
            nodes += bin > 0 ? below + (total[bin] - below) * fminf(at - float(bin), 1.0f) : total[0];
        }
        if (nodes >= wanted) atomicMin(&s.step, unsigned(step));
    }
    __syncthreads();
    return s.step < KD_TREE_COSTS ? most * float(s.step + 1) * (1.0f / KD_TREE_COSTS) : most;
}

#endif
