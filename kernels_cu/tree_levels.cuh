// tree_levels.cuh: the best B paths by one block, a depth at a time, for descending rows that are <= 0.
//
// 1. Estimate the cost (-score) of the B-th best node: tree_estimate.cuh.
// 2. Take every node whose score reaches the estimate, depth by depth: a node's children are a prefix of the next
//    row, and nodes of a depth stand in lexicographic order.
// 3. If B or more of them do reach it in exact float64, the best B of all are among them: order them by score (in
//    buckets), ties by rank tuple.  If not, or if there are more than fit, estimate again; after KD_TREE_ATTEMPTS
//    the caller must search one by one.
// Only which nodes are looked at depends on the estimate; the result does not.
#ifndef KD_TREE_LEVELS_CUH
#define KD_TREE_LEVELS_CUH

#include "tree_estimate.cuh"

#ifndef KD_TREE_ATTEMPTS
#define KD_TREE_ATTEMPTS 6
#endif

// Smallest float32 log-prob under a node of `score` that still reaches `least`.  None is missed: no float32 lies
// between a number and the float32 nearest to it.
__device__ __forceinline__ float least_logprob(double score, double least)
{
    const double gap = (least - score) + least * 1e-15;  // least <= 0: a wider gap
    return fmaxf(float(gap), -3.402823466e38f);
}

// reach[row]: ranks that the best node of the depth before can have as children.
__device__ inline void find_reach(const Table& table, int width, double least, Shared& s, const Team& t)
{
    for (int row = t.warp; row < table.rows; row += t.warps) {
        const float limit = least_logprob(s.chain[row], least);
        const int sample = t.lane * 32;
        const int begun = __popc(__ballot_sync(KD_FULL_MASK, sample < width && table.at(row, min(sample, width - 1)) >= limit));
        const int rank = max(begun - 1, 0) * 32 + t.lane;
        const int more = __popc(__ballot_sync(KD_FULL_MASK, rank < width && table.at(row, min(rank, width - 1)) >= limit));
        if (t.lane == 0) s.reach[row] = begun > 0 ? (begun - 1) * 32 + more : 0;
    }
    __syncthreads();
}

// Children that the warp's node (of this lane) has in row `row`; lanes past `nodes` have none.  `first`: the node
// (0, ..., 0), whose children are known.  Returns the lane's own count; `sum` gains the warp's.
__device__ __forceinline__ int count_children(
    const Table& table, int row, int reach, float head, float limit, int nodes, bool first, int& sum, int lane)
{
    int own = 0;
    for (int p = 0; p < nodes; ++p) {
        const float least = __shfl_sync(KD_FULL_MASK, limit, p);
        int children = reach;
        if (p > 0 || !first) {
            children = __popc(__ballot_sync(KD_FULL_MASK, head >= least));
            for (int begin = 32; children == begin && begin < reach; begin += 32)
                children += __popc(__ballot_sync(
                    KD_FULL_MASK, begin + lane < reach && table.at(row, min(begin + lane, reach - 1)) >= least));
        }
        if (lane == p) own = children;
        sum += children;
    }
    return own;
}

// Candidates of all depths; returns how many there are, root included, or -1 if they do not fit.
__device__ inline int grow_levels(const Table& table, double least, const Found& f, Shared& s, const Team& t)
{
    if (t.thread == 0) f.score[0] = 0.0, f.parent[0] = 0, f.rank[0] = 0, f.depth[0] = 0;
    int begin = 0, end = 1;
    for (int row = 0; row < table.rows; ++row) {
        const int reach = s.reach[row];
        if (reach == 0) break;
        const float head = t.lane < reach ? table.at(row, t.lane) : -KD_INFINITY;
        const int share = ceil_div(end - begin, t.warps);
        const int mine = min(begin + t.warp * share, end), mine_end = min(mine + share, end);
        if (row == 0) __syncthreads();
        int sum = 0;
        for (int p = mine; p < mine_end; p += 32) {
            const int nodes = min(mine_end - p, 32);
            const float limit = least_logprob(t.lane < nodes ? f.score[p + t.lane] : 0.0, least);
            const int own = count_children(table, row, reach, head, limit, nodes, p == begin, sum, t.lane);
            if (t.lane < nodes) f.children[p + t.lane] = Index(own);
        }
        if (t.lane == 0) s.sums[t.warp] = sum;
        __syncthreads();
        const int other = t.lane < t.warps ? s.sums[t.lane] : 0;
        int at = end + __reduce_add_sync(KD_FULL_MASK, t.lane < t.warp ? other : 0);
        const int total = __reduce_add_sync(KD_FULL_MASK, other);
        if (end + total > f.capacity) return -1;
        for (int p = mine; p < mine_end; p += 32) {
            const bool in = p + t.lane < mine_end;
            const int own = in ? int(f.children[p + t.lane]) : 0;
            const double score = in ? f.score[p + t.lane] : 0.0;
            for (unsigned left = __ballot_sync(KD_FULL_MASK, own > 0); left != 0; left &= left - 1) {
                const int q = __ffs(int(left)) - 1;
                const int children = __shfl_sync(KD_FULL_MASK, own, q);
                const double above = __shfl_sync(KD_FULL_MASK, score, q);
                for (int rank = t.lane; rank < children; rank += 32) {
                    f.score[at + rank] = above + double(rank < 32 ? head : table.at(row, rank));
                    f.parent[at + rank] = Index(p + q), f.rank[at + rank] = Index(rank), f.depth[at + rank] = Index(row + 1);
                }
                at += children;
            }
        }
        __syncthreads();
        begin = end, end += total;
        if (total == 0) break;
    }
    return end;
}

// Which bucket a score falls into: ascending with cost, all of them below f.buckets.
__device__ __forceinline__ int bucket_of(double score, float per_cost, int buckets)
{
    return int(fminf(-float(score) * per_cost, float(buckets - 1)));
}

// Exclusive running totals of the buckets, in place.
__device__ inline void scan_buckets(const Found& f, Shared& s, const Team& t)
{
    const int share = ceil_div(f.buckets, t.threads);
    const int begin = min(t.thread * share, f.buckets), end = min(begin + share, f.buckets);
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
    const int depth_a = f.depth[a], depth_b = f.depth[b];
    for (int d = depth_a; d > depth_b; --d) a = f.parent[a];
    for (int d = depth_b; d > depth_a; --d) b = f.parent[b];
    return a != b ? a < b : depth_a < depth_b;
}

// order[i]: the candidate that pops as node i; place[candidate]: the reverse.  Good for nodes up to `budget`.
__device__ inline void order_found(int count, int budget, float per_cost, const Found& f, Shared& s, const Team& t)
{
    for (int i = t.thread; i < f.buckets; i += t.threads) f.bucket[i] = 0;
    __syncthreads();
    for (int i = 1 + t.thread; i < count; i += t.threads)
        atomicAdd(&f.bucket[bucket_of(f.score[i], per_cost, f.buckets)], 1u);
    __syncthreads();
    scan_buckets(f, s, t);
    for (int i = 1 + t.thread; i < count; i += t.threads)
        f.slot[atomicAdd(&f.bucket[bucket_of(f.score[i], per_cost, f.buckets)], 1u)] = Index(i);
    __syncthreads();  // each bucket's entry is now where the next bucket begins
    for (int i = 1 + t.thread; i < count; i += t.threads) {
        const int bucket = bucket_of(f.score[i], per_cost, f.buckets);
        const int begin = bucket > 0 ? int(f.bucket[bucket - 1]) : 0, end = int(f.bucket[bucket]);
        int node = begin + 1;
        for (int j = begin; j < end && begin < budget; ++j) node += f.slot[j] != i && pops_before(f, f.slot[j], i);
        f.place[i] = Index(node);
        if (node <= budget) f.order[node] = Index(i);
    }
    if (t.thread == 0) f.place[0] = 0;
    __syncthreads();
}

// Count candidates that reach `least`; s.good must be 0.
__device__ inline int count_good(int count, double least, const Found& f, Shared& s, const Team& t)
{
    int own = 0;
    for (int i = 1 + t.thread; i < count; i += t.threads) own += f.score[i] >= least;
    own = __reduce_add_sync(KD_FULL_MASK, own);
    if (t.lane == 0 && own > 0) atomicAdd(&s.good, unsigned(own));
    __syncthreads();
    return int(s.good);
}

// The whole block: put the best `budget` nodes into nodes[1..]; returns their number, root included, or 0 if the
// estimate failed.  s.chain must be known and all of s.bound, s.step, s.good be ~0u, ~0u, 0.
__device__ inline int best_levels(const Table& table, int budget, const Nodes& nodes, const Found& f, Shared& s, const Team& t)
{
    const int width = min(table.width, budget);
    float most = cost_bound(table, budget, s, t);
    const bool whole = !(most < KD_INFINITY);
    if (whole) most = whole_cost(table, s, t);
    if (!(most < KD_INFINITY)) return 0;
    const float per_cost = most > 0.0f ? KD_TREE_BINS / most : 1.0f;
    count_costs(table, width, per_cost, f, t);
    convolve_costs(table.rows, f, t);
    float cost = cost_of(1.15f * float(budget) + 4.0f, most, per_cost, table.rows, f, s, t);
    float low = 0.0f, high = KD_INFINITY;
    for (int attempt = 0; attempt < KD_TREE_ATTEMPTS; ++attempt) {
        const double least = whole && cost == most ? -double(KD_INFINITY) : -double(cost);
        find_reach(table, width, least, s, t);
        const int count = grow_levels(table, least, f, s, t);
        if (count >= 0) {
            const int good = count_good(count, least, f, s, t);
            if (good >= budget || least == -double(KD_INFINITY)) {
                const int kept = min(budget, good);
                order_found(count, kept, cost > 0.0f ? float(f.buckets) / cost : 0.0f, f, s, t);
                for (int i = t.thread; i <= kept; i += t.threads) {
                    const int from = i > 0 ? int(f.order[i]) : 0;
                    nodes.score[i] = f.score[from], nodes.rank[i] = f.rank[from], nodes.depth[i] = f.depth[from];
                    nodes.parent[i] = i > 0 ? f.place[f.parent[from]] : Index(KD_NO_NODE);
                }
                __syncthreads();
                return 1 + kept;
            }
            low = cost;
        } else {
            high = cost;
        }
        cost = high == KD_INFINITY ? (cost < most ? fminf(cost * 1.1f, most) : cost * 1.1f) : 0.5f * (low + high);
        __syncthreads();
        if (t.thread == 0) s.good = 0;
        __syncthreads();
    }
    return 0;
}

#endif
