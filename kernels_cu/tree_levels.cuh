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
    double least;
    float slack;
    int row, at, good;  // `at`: number of the next candidate; `good`: how many of this thread's reach `least`
};

// The log-prob of a rank, or NaN, which reaches no limit, if it must not become a node.
__device__ __forceinline__ float logprob_of(float x) { return x > -KD_INFINITY ? x : KD_NAN; }

// Lanes with `in` set take a candidate each, in lane order from number `at` on: child `rank` of `parent`, whose limit
// and score are given.
__device__ __forceinline__ void take(
    const Found& f, Growth& g, int at, unsigned taken, bool in, int parent, float limit, double above, float logprob, int rank)
{
    if (!in) return;
    const int i = at + __popc(taken & ((1u << lane_id()) - 1u));
    f.limit[i] = (limit - logprob) - g.slack;
    const double score = above + double(logprob);
    f.score[i] = score;
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
        const float logprob = rank < table.width ? logprob_of(table.at(g.row, rank)) : KD_NAN;
        taken = __ballot_sync(KD_FULL_MASK, logprob >= limit);
        if (at >= 0) take(f, g, at + children, taken, logprob >= limit, parent, limit, above, logprob, rank);
        children += __popc(taken);
    }
    return children;
}

// All candidates that reach `least`; returns how many there are, root included, or -1 if they do not fit.  `good` gets
// the number of those that do reach it in float64; a few more come along through rounding.
// A round: warp 0 has one node, all others four nodes and eight ranks of each; the first node of a depth, (0, ..., 0),
// has the most children.  A warp that finds a last rank among them goes through its nodes one by one.  Each warp
// counts, then takes its candidates behind those of the warps before it.
__device__ inline int grow_levels(const Table& table, double least, const Found& f, Shared& s, const Team& t, int& good)
{
    // Limits are float32: each step errs by less than the slack, so that no node is missed.
    Growth g = {least, least > -double(KD_INFINITY) ? float(least) * -4.8e-7f : 0.0f, 0, 1, 0};
    if (t.thread == 0) f.score[0] = 0.0, f.limit[0] = float(least) - g.slack, f.link[0] = 0;
    const bool wide = t.warp == 0;
    const int rank = wide ? t.lane : t.lane & 7, before = wide ? 0 : 4 * t.warp - 3, nodes = wide ? 1 : 4;
    const int own = before + (wide ? 0 : t.lane >> 3);
    const unsigned last_ranks = table.width <= (wide ? 32 : 8) ? 0u : wide ? 0x80000000u : 0x80808080u;
    int begin = 0, end = 1;
    __syncthreads();
#pragma unroll 1
    for (; g.row < table.rows && begin < end; ++g.row) {
        const float head = rank < table.kept ? logprob_of(table.shared[g.row * table.kept + rank]) : KD_NAN;
#pragma unroll 1
        for (int round = begin; round < end; round += 4 * t.warps - 3) {
            const int parent = min(round + own, end - 1);
            const float limit = f.limit[parent];
            const double above = f.score[parent];
            const bool in = head >= limit && round + own < end;
            const unsigned taken = __ballot_sync(KD_FULL_MASK, in);
            const int first = round + before, last = min(first + nodes, end);
            int children = __popc(taken);
            if (taken & last_ranks) {
                children = 0;
#pragma unroll 1
                for (int p = first; p < last; ++p) children += take_all(table, f, g, p, -1, t.lane);
            }
            if (t.lane == 0) s.sums[t.warp] = children;
            __syncthreads();
            const int other = t.lane < t.warps ? s.sums[t.lane] : 0;
            int at = g.at + __reduce_add_sync(KD_FULL_MASK, t.lane < t.warp ? other : 0);
            g.at += __reduce_add_sync(KD_FULL_MASK, other);
            if (g.at > f.capacity) return -1;
            if (taken & last_ranks) {
#pragma unroll 1
                for (int p = first; p < last; ++p) at += take_all(table, f, g, p, at, t.lane);
            } else {
                take(f, g, at, taken, in, parent, limit, above, head, rank);
            }
            __syncthreads();
        }
        begin = end, end = g.at;
    }
    const int warp_good = __reduce_add_sync(KD_FULL_MASK, g.good);
    if (t.lane == 0) s.sums[t.warp] = warp_good;
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
