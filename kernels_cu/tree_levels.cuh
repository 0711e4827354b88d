// tree_levels.cuh: the best B paths by one block, a depth at a time, for descending rows that are <= 0.
//
// 1. Estimate the cost (-score) of the B-th best node: tree_estimate.cuh.
// 2. One warp takes every node whose score reaches the estimate, depth by depth: a node's children are a prefix of
//    the next row, and nodes of a depth stand in lexicographic order.
// 3. If B or more of them do reach it in exact float64, the best B of all are among them; if not, or if there are more
//    than fit, the estimate is moved; after KD_TREE_ATTEMPTS the caller must search one by one.
// 4. Order them by score in buckets, ties by number, then check each neighbour pair exactly: score, then rank tuple.
// Only which nodes are looked at depends on the estimate; the result does not.
#ifndef KD_TREE_LEVELS_CUH
#define KD_TREE_LEVELS_CUH

#include "tree_estimate.cuh"

#ifndef KD_TREE_ATTEMPTS
#define KD_TREE_ATTEMPTS 6
#endif

// Candidates in the order found, number 0 being the root.  `limit`: smallest log-prob of a child that reaches the
// estimate.  `link`: parent's number << 16 | depth << 10 | rank.  The rest is for putting them in order.
struct Found {
    double* score;
    float* limit;
    unsigned* link;
    int capacity, buckets;
    unsigned* bucket;  // one more than `buckets`
    unsigned long long* sorted;
    Index *place, *order;
};

__device__ __forceinline__ int depth_of(unsigned link) { return int(link >> 10 & 63u); }

// What one warp knows while it takes candidates.
struct Growth {
    double least, slack;
    int lane, row, at, good;  // `at`: number of the next candidate; `good`: how many of the lane's reach `least`
};

// Lanes with `in` set take a candidate each, in lane order: child `rank` of `parent`.  False if they do not fit.
__device__ __forceinline__ bool take(
    const Found& f, Growth& g, unsigned taken, bool in, int parent, double above, double logprob, int rank)
{
    const int at = g.at + __popc(taken & ((1u << g.lane) - 1u));
    g.at += __popc(taken);
    if (g.at > f.capacity) return false;
    if (in) {
        const double score = above + logprob;
        f.score[at] = score;
        f.limit[at] = fmaxf(float(g.slack - score), -3.402823466e38f);
        f.link[at] = unsigned(parent) << 16 | unsigned(g.row + 1) << 10 | unsigned(rank);
        g.good += score >= g.least;
    }
    return true;
}

// All children of one node, 32 ranks at a time; `head` is the lane's log-prob among the first 32.
__device__ inline bool take_all(const Table& table, const Found& f, Growth& g, int parent, float head)
{
    const float limit = f.limit[parent];
    const double above = f.score[parent];
    unsigned taken = KD_FULL_MASK;
    for (int begin = 0; taken == KD_FULL_MASK && begin < table.width; begin += 32) {
        const int rank = begin + g.lane;
        if (begin > 0) head = rank < table.width ? table.at(g.row, rank) : -KD_INFINITY;
        taken = __ballot_sync(KD_FULL_MASK, head >= limit);
        if (!take(f, g, taken, head >= limit, parent, above, double(head), rank)) return false;
    }
    return true;
}

// One warp: all candidates that reach `least`; returns how many there are, root included, or -1 if they do not fit.
// `good` gets the number of those that do reach it in float64; a few more come along through rounding.  The first node
// of a depth, (0, ..., 0), has the most children and gets the whole warp; then come four nodes at a time, eight ranks
// each, and one by one again where eight are not enough.
__device__ inline int grow_levels(const Table& table, double least, const Found& f, int lane, int& good)
{
    // No child is missed: a float64 sum errs by less than the slack, and no float32 lies between a number and the
    // float32 nearest to it.  Never below the lowest float, so that -inf stays out.
    Growth g = {least, least + least * 1e-15, lane, 0, 1, 0};
    if (lane == 0) f.score[0] = 0.0, f.limit[0] = fmaxf(float(g.slack), -3.402823466e38f), f.link[0] = 0;
    const int narrow = lane & 7;
    int begin = 0, end = 1;
    for (; g.row < table.rows && begin < end; ++g.row) {
        const float head = lane < table.kept ? table.shared[g.row * table.kept + lane] : -KD_INFINITY;
        const float narrow_head = narrow < table.kept ? table.shared[g.row * table.kept + narrow] : -KD_INFINITY;
        const double narrow_logprob = double(narrow_head);
        __syncwarp();
        if (!take_all(table, f, g, begin, head)) return -1;
#pragma unroll 2
        for (int p = begin + 1; p < end; p += 4) {
            const int parent = min(p + (lane >> 3), end - 1);
            const bool in = narrow_head >= f.limit[parent] && p + (lane >> 3) < end;
            const double above = f.score[parent];
            const unsigned taken = __ballot_sync(KD_FULL_MASK, in);
            if (taken == 0) continue;
            unsigned full = taken & taken >> 4;
            full &= full >> 2, full &= full >> 1;
            if ((full & 0x01010101u) == 0 || table.width <= 8) {
                if (!take(f, g, taken, in, parent, above, narrow_logprob, narrow)) return -1;
            } else {
                for (int q = p; q < min(p + 4, end); ++q)
                    if (!take_all(table, f, g, q, head)) return -1;
            }
        }
        begin = end, end = g.at;
    }
    good = __reduce_add_sync(KD_FULL_MASK, g.good);
    return end;
}

// Exclusive running totals of the buckets, in place; the last of them is the number of all.
__device__ inline void scan_buckets(const Found& f, Shared& s, const Team& t)
{
    const int share = ceil_div(f.buckets + 1, t.threads);
    const int begin = min(t.thread * share, f.buckets + 1), end = min(begin + share, f.buckets + 1);
    int own = 0;
    for (int i = begin; i < end; ++i) own += int(f.bucket[i]);
    int sum = own;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        const int left = __shfl_up_sync(KD_FULL_MASK, sum, offset);
        if (t.lane >= offset) sum += left;
    }
    if (t.lane == 31) s.sums[t.warp] = sum;
    __syncthreads();
    int at = sum - own + __reduce_add_sync(KD_FULL_MASK, t.lane < t.warp ? s.sums[t.lane] : 0);
    for (int i = begin; i < end; ++i) {
        const int here = int(f.bucket[i]);
        f.bucket[i] = unsigned(at), at += here;
    }
    __syncthreads();
}

// Does candidate a pop before candidate b?  Numbers are lexicographic within a depth.
__device__ inline bool pops_before(const Found& f, int a, int b)
{
    if (f.score[a] != f.score[b]) return f.score[a] > f.score[b];
    const int depth_a = depth_of(f.link[a]), depth_b = depth_of(f.link[b]);
    for (int d = depth_a; d > depth_b; --d) a = int(f.link[a] >> 16);
    for (int d = depth_b; d > depth_a; --d) b = int(f.link[b] >> 16);
    return a != b ? a < b : depth_a < depth_b;
}

// An integer that ascends with cost, 2^32 steps from 0 to the largest.
__device__ __forceinline__ unsigned cost_key(double score, double per_cost)
{
    return unsigned(fmin(-score * per_cost, 4294967295.0));
}

// order[i]: the candidate that pops as node i; place[candidate]: the reverse.
__device__ inline void order_found(int count, double per_cost, const Found& f, Shared& s, const Team& t)
{
    for (int i = t.thread; i <= f.buckets; i += t.threads) f.bucket[i] = 0;
    __syncthreads();
    for (int i = 1 + t.thread; i < count; i += t.threads)
        f.place[i] = Index(atomicAdd(f.bucket + __umulhi(cost_key(f.score[i], per_cost), unsigned(f.buckets)), 1u));
    __syncthreads();
    scan_buckets(f, s, t);
    for (int i = 1 + t.thread; i < count; i += t.threads) {
        const unsigned key = cost_key(f.score[i], per_cost), bucket = __umulhi(key, unsigned(f.buckets));
        f.sorted[f.bucket[bucket] + f.place[i]] = (unsigned long long)key << 32 | unsigned(i);
    }
    if (t.thread == 0) f.place[0] = 0, f.order[0] = 0;
    __syncthreads();
    for (int i = 1 + t.thread; i < count; i += t.threads) {
        const unsigned key = cost_key(f.score[i], per_cost), bucket = __umulhi(key, unsigned(f.buckets));
        const unsigned long long own = (unsigned long long)key << 32 | unsigned(i);
        int node = int(f.bucket[bucket]) + 1;
        for (int j = node - 1, end = int(f.bucket[bucket + 1]); j < end; ++j) node += f.sorted[j] < own;
        f.place[i] = Index(node), f.order[node] = Index(i);
    }
    __syncthreads();
    int wrong = 0;
    for (int node = 2 + t.thread; node < count; node += t.threads) wrong |= !pops_before(f, f.order[node - 1], f.order[node]);
    if (!__syncthreads_or(wrong)) return;
    for (int i = 1 + t.thread; i < count; i += t.threads) {  // close scores in one step of the key: compare them all
        const unsigned bucket = __umulhi(cost_key(f.score[i], per_cost), unsigned(f.buckets));
        int node = int(f.bucket[bucket]) + 1;
        for (int j = node - 1, end = int(f.bucket[bucket + 1]); j < end; ++j) {
            const int other = int(unsigned(f.sorted[j]));
            node += other != i && pops_before(f, other, i);
        }
        f.place[i] = Index(node), f.order[node] = Index(i);
    }
    __syncthreads();
}

// One warp: find the candidates; s.count gets their number, root included, 0 if all estimates failed; s.kept how many
// nodes the tree has, root excluded; s.cost the largest cost of a candidate.
__device__ inline void find_candidates(
    const Table& table, int budget, float most, bool whole, const Bins& bins, const Found& f, Shared& s, int lane)
{
    const float step = most * (0.5f / KD_TREE_BINS);
    float cost = cost_of(1.25f * float(budget) + 4.0f, most, bins, lane), low = 0.0f, high = KD_INFINITY;
    if (lane == 0) s.count = 0;
    for (int attempt = 0; attempt < KD_TREE_ATTEMPTS; ++attempt) {
        const bool all = whole && cost >= most;
        int good = 0;
        const int count = grow_levels(table, all ? -double(KD_INFINITY) : -double(cost), f, lane, good);
        if (count >= 0 && (good >= budget || all)) {
            if (lane == 0) s.count = count, s.kept = min(budget, good), s.cost = all ? most : cost;
            return;
        }
        if (count < 0) high = cost; else low = cost;
        cost = high < KD_INFINITY ? 0.5f * (low + high) : cost + fmaxf(step, 0.1f * cost);
        if (whole) cost = fminf(cost, most);
        __syncwarp();
    }
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
    if (t.warp == 0) find_candidates(table, budget, most, whole, bins, f, s, t.lane);
    __syncthreads();
    const int count = s.count, kept = s.kept;
    if (count == 0) return 0;
    order_found(count, s.cost > 1e-30f ? 4294967000.0 / (double(s.cost) * 1.00001) : 0.0, f, s, t);
    for (int i = t.thread; i <= kept; i += t.threads) {
        const int from = f.order[i];
        const unsigned link = f.link[from];
        nodes.score[i] = f.score[from], nodes.rank[i] = Index(link & 1023u), nodes.depth[i] = Index(depth_of(link));
        nodes.parent[i] = i > 0 ? f.place[link >> 16] : Index(KD_NO_NODE);
    }
    __syncthreads();
    return 1 + kept;
}

#endif
