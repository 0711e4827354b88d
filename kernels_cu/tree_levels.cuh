// tree_levels.cuh: the best B paths by one block, a depth at a time, for descending rows that are <= 0.
//
// 1. Estimate the cost (-score) of the B-th best node: tree_estimate.cuh.
// 2. Take every node whose score reaches the estimate, depth by depth: a node's children are a prefix of the next row,
//    and nodes of a depth stand in lexicographic order.
// 3. If B or more of them do reach it in exact float64, the best B of all are among them; if not, or if there are more
//    than fit, the estimate is moved; after KD_TREE_ATTEMPTS the caller must search one by one.
// 4. Order them by rounded score and number: tree_order.cuh checks that this is the exact order, or makes it so.
// Only which nodes are looked at depends on the estimate; the result does not.
#ifndef KD_TREE_LEVELS_CUH
#define KD_TREE_LEVELS_CUH

#include "tree_estimate.cuh"
#include "tree_order.cuh"

#ifndef KD_TREE_ATTEMPTS
#define KD_TREE_ATTEMPTS 6
#endif

// What the threads know while candidates are taken.
struct Growth {
    double least, slack;
    int row, at, good;  // `at`: number of the next candidate; `good`: how many of this thread's reach `least`
};

// Lanes with `in` set take a candidate each, in lane order from number `at` on: child `rank` of `parent`.
__device__ __forceinline__ void take(
    const Found& f, Growth& g, int at, unsigned taken, bool in, int parent, double above, float logprob, int rank, int lane)
{
    if (!in) return;
    const int i = at + __popc(taken & ((1u << lane) - 1u));
    const double score = above + double(logprob);
    f.score[i] = score;
    f.limit[i] = fmaxf(float(g.slack - score), -3.402823466e38f);
    f.link[i] = unsigned(parent) << 16 | unsigned(g.row + 1) << 10 | unsigned(rank);
    g.good += score >= g.least;
}

// Count all children of one node, 32 ranks at a time, and take them from number `at` on unless that is negative.
__device__ inline int take_all(const Table& table, const Found& f, Growth& g, int parent, int at, int lane)
{
    const float limit = f.limit[parent];
    const double above = f.score[parent];
    int children = 0;
    unsigned taken = KD_FULL_MASK;
#pragma unroll 1
    for (int begin = 0; taken == KD_FULL_MASK && begin < table.width; begin += 32) {
        const int rank = begin + lane;
        const float logprob = rank < table.width ? table.at(g.row, rank) : -KD_INFINITY;
        taken = __ballot_sync(KD_FULL_MASK, logprob >= limit);
        if (at >= 0) take(f, g, at + children, taken, logprob >= limit, parent, above, logprob, rank, lane);
        children += __popc(taken);
    }
    return children;
}

// All candidates that reach `least`; returns how many there are, root included, or -1 if they do not fit.  `good` gets
// the number of those that do reach it in float64; a few more come along through rounding.
// A round: warp 0 has one node, all others four nodes and eight ranks of each; the first node of a depth, (0, ..., 0),
// has the most children.  Where that is not enough a warp goes through its nodes one by one.  Each warp counts, then
// takes its candidates behind those of the warps before it.
__device__ inline int grow_levels(const Table& table, double least, const Found& f, Shared& s, const Team& t, int& good)
{
    // No child is missed: a float64 sum errs by less than the slack, and no float32 lies between a number and the
    // float32 nearest to it.  Never below the lowest float, so that -inf stays out.
    Growth g = {least, least + least * 1e-15, 0, 1, 0};
    if (t.thread == 0) f.score[0] = 0.0, f.limit[0] = fmaxf(float(g.slack), -3.402823466e38f), f.link[0] = 0;
    const bool wide = t.warp == 0;
    const int rank = wide ? t.lane : t.lane & 7, before = wide ? 0 : 4 * t.warp - 3, nodes = wide ? 1 : 4;
    int begin = 0, end = 1;
    __syncthreads();
#pragma unroll 1
    for (; g.row < table.rows && begin < end; ++g.row) {
        const float head = rank < table.kept ? table.shared[g.row * table.kept + rank] : -KD_INFINITY;
#pragma unroll 1
        for (int round = begin; round < end; round += 4 * t.warps - 3) {
            const int first = round + before, parent = min(first + (wide ? 0 : t.lane >> 3), end - 1);
            const bool in = head >= f.limit[parent] && first + (wide ? 0 : t.lane >> 3) < end;
            const double above = f.score[parent];
            const unsigned taken = __ballot_sync(KD_FULL_MASK, in);
            unsigned full = taken & taken >> 4;
            full &= full >> 2, full &= full >> 1;
            const bool more = wide ? taken == KD_FULL_MASK && table.width > 32 : (full & 0x01010101u) != 0 && table.width > 8;
            int children = __popc(taken);
            if (more) {
                children = 0;
                for (int p = first; p < min(first + nodes, end); ++p) children += take_all(table, f, g, p, -1, t.lane);
            }
            if (t.lane == 0) s.sums[t.warp] = children;
            __syncthreads();
            const int other = t.lane < t.warps ? s.sums[t.lane] : 0;
            int at = g.at + __reduce_add_sync(KD_FULL_MASK, t.lane < t.warp ? other : 0);
            g.at += __reduce_add_sync(KD_FULL_MASK, other);
            if (g.at > f.capacity) return -1;
            if (!more) {
                take(f, g, at, taken, in, parent, above, head, rank, t.lane);
            } else {
                for (int p = first; p < min(first + nodes, end); ++p) at += take_all(table, f, g, p, at, t.lane);
            }
            __syncthreads();
        }
        begin = end, end = g.at;
    }
    const int own = __reduce_add_sync(KD_FULL_MASK, g.good);
    if (t.lane == 0) s.sums[t.warp] = own;
    __syncthreads();
    good = __reduce_add_sync(KD_FULL_MASK, t.lane < t.warps ? s.sums[t.lane] : 0);
    return end;
}

// The whole block: put the best `budget` nodes into nodes[1..]; returns their number, root included, or 0 if no
// estimate led to them.  s.chain must be known, s.bound be ~0u and the bins clear; table.kept at least 32 or all ranks
// below the budget.
__device__ inline int best_levels(
    Table table, int budget, const Nodes& nodes, const Bins& bins, const Found& f, Shared& s, const Team& t)
{
    table.width = min(table.width, budget);
    float most = cost_bound(table, budget, s, t);
    const bool whole = !(most < KD_INFINITY);
    if (whole) most = whole_cost(table, t);
    if (!(most < KD_INFINITY)) return 0;
    count_costs(table, most > 0.0f ? KD_TREE_BINS / most : 1.0f, bins, s, t);
    convolve_costs(table.rows, bins, t);
    float cost = cost_of(1.25f * float(budget) + 4.0f, most, bins, t.lane), low = 0.0f, high = KD_INFINITY;
#pragma unroll 1
    for (int attempt = 0; attempt < KD_TREE_ATTEMPTS; ++attempt) {
        const bool all = whole && cost >= most;
        int good = 0;
        const int count = grow_levels(table, all ? -double(KD_INFINITY) : -double(cost), f, s, t, good);
        if (count >= 0 && (good >= budget || all)) {
            const float largest = all ? most : cost;
            order_found(count, largest > 1e-30f ? 4294967000.0 / (double(largest) * 1.00001) : 0.0, f, s.sums, t);
            const int kept = min(budget, good);
            if (place_nodes(count, kept, nodes, f, t)) {
                order_exactly(count, f, t);
                place_nodes(count, kept, nodes, f, t);
            }
            return 1 + kept;
        }
        if (count < 0) high = cost; else low = cost;
        cost = high < KD_INFINITY ? 0.5f * (low + high) : cost + fmaxf(most * (0.5f / KD_TREE_BINS), 0.1f * cost);
        if (whole) cost = fminf(cost, most);
        __syncthreads();
    }
    return 0;
}

#endif
