// tree_order.cuh: put candidates into the order in which best-first search pops them.
//
// Sorted by cost, rounded to 32 bits, and by number: which is the exact order unless two costs round to the same step,
// or nodes of different depth have the same score.  So each pair of neighbours is checked exactly: score, then rank
// tuple; if one is wrong, all are compared with all.
#ifndef KD_TREE_ORDER_CUH
#define KD_TREE_ORDER_CUH

#include "tree_nodes.cuh"

#ifndef KD_TREE_PAIRS
#define KD_TREE_PAIRS 128  // up to so many candidates are compared pair by pair, more go through buckets
#endif

// Candidates in the order found, number 0 being the root; those of a depth stand in lexicographic order.  `limit`:
// smallest log-prob of a child that is still wanted.  `link`: parent's number << 16 | depth << 10 | rank.
struct Found {
    double* score;
    float* limit;
    unsigned* link;
    int capacity;
    unsigned* bucket;  // capacity + 1
    unsigned long long* sorted;
    Index *place, *order;  // order[i]: the candidate that pops as node i; place[candidate]: the reverse
};

__device__ __forceinline__ int depth_of(unsigned link) { return int(link >> 10 & 63u); }

// Does candidate a pop before candidate b?
__device__ inline bool pops_before(const Found& f, int a, int b)
{
    if (f.score[a] != f.score[b]) return f.score[a] > f.score[b];
    const int depth_a = depth_of(f.link[a]), depth_b = depth_of(f.link[b]);
#pragma unroll 1
    for (int d = depth_a; d > depth_b; --d) a = int(f.link[a] >> 16);
#pragma unroll 1
    for (int d = depth_b; d > depth_a; --d) b = int(f.link[b] >> 16);
    return a != b ? a < b : depth_a < depth_b;
}

// An integer that ascends with cost, about 2^32 steps from 0 to the largest.
__device__ __forceinline__ unsigned cost_key(double score, double per_cost)
{
    return unsigned(fmin(-score * per_cost, 4294967000.0));
}

// Each candidate counts those before it, the work of one, two or four neighbouring lanes.
__device__ inline void order_by_pairs(int count, double per_cost, const Found& f, const Team& t)
{
    unsigned* key = reinterpret_cast<unsigned*>(f.sorted);
    const int n = count - 1, padded = n + 3 & ~3;
#pragma unroll 1
    for (int i = t.thread; i < padded; i += t.threads) key[i] = i < n ? cost_key(f.score[i + 1], per_cost) : ~0u;
    __syncthreads();
    const int shift = 4 * n <= t.threads ? 2 : 2 * n <= t.threads ? 1 : 0, part = t.thread & (1 << shift) - 1;
#pragma unroll 1
    for (int begin = 0; begin < n; begin += t.threads >> shift) {
        const int i = min(begin + (t.thread >> shift), n - 1), four = i & ~3;
        const unsigned own = key[i];
        int node = 0, more = 0;
#pragma unroll 4
        for (int j = 4 * part; j < padded; j += 4 << shift) {
            const uint4 other = reinterpret_cast<const uint4*>(key)[j / 4];
            const unsigned below = own + (j < four ? 1u : 0u);  // an equal key counts if its number is lower
            node += (other.x < below) + (other.y < below);
            more += (other.z < below) + (other.w < below);
        }
        node += more;
        if (shift > 1) node += __shfl_xor_sync(KD_FULL_MASK, node, 2);
        if (shift > 0) node += __shfl_xor_sync(KD_FULL_MASK, node, 1);
#pragma unroll 1
        for (int j = four; j < i; ++j) node += key[j] == own;
        if (part == 0 && begin + (t.thread >> shift) < n) f.place[i + 1] = Index(node + 1), f.order[node + 1] = Index(i + 1);
    }
}

// Exclusive running totals of the buckets, in place; the last of them is the number of all.  `sums` as many as warps.
__device__ inline void scan_buckets(const Found& f, int* sums, const Team& t)
{
    const int buckets = f.capacity + 1, share = ceil_div(buckets, t.threads);
    const int begin = min(t.thread * share, buckets), end = min(begin + share, buckets);
    int own = 0;
#pragma unroll 1
    for (int i = begin; i < end; ++i) own += int(f.bucket[i]);
    int sum = own;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        const int left = __shfl_up_sync(KD_FULL_MASK, sum, offset);
        if (t.lane >= offset) sum += left;
    }
    if (t.lane == 31) sums[t.warp] = sum;
    __syncthreads();
    int at = sum - own + __reduce_add_sync(KD_FULL_MASK, t.lane < t.warp ? sums[t.lane] : 0);
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
        const int here = int(f.bucket[i]);
        f.bucket[i] = unsigned(at), at += here;
    }
    __syncthreads();
}

// Each candidate counts those before it in its own bucket.
__device__ inline void order_by_buckets(int count, double per_cost, const Found& f, int* sums, const Team& t)
{
    const unsigned buckets = unsigned(f.capacity);
#pragma unroll 1
    for (int i = t.thread; i <= f.capacity; i += t.threads) f.bucket[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (int i = 1 + t.thread; i < count; i += t.threads)
        f.place[i] = Index(atomicAdd(f.bucket + __umulhi(cost_key(f.score[i], per_cost), buckets), 1u));
    __syncthreads();
    scan_buckets(f, sums, t);
#pragma unroll 1
    for (int i = 1 + t.thread; i < count; i += t.threads) {
        const unsigned key = cost_key(f.score[i], per_cost);
        f.sorted[f.bucket[__umulhi(key, buckets)] + f.place[i]] = (unsigned long long)key << 32 | unsigned(i);
    }
    __syncthreads();
    for (int i = 1 + t.thread; i < count; i += t.threads) {
        const unsigned key = cost_key(f.score[i], per_cost), bucket = __umulhi(key, buckets);
        const unsigned long long own = (unsigned long long)key << 32 | unsigned(i);
        int node = int(f.bucket[bucket]) + 1;
#pragma unroll 4
        for (int j = node - 1, end = int(f.bucket[bucket + 1]); j < end; ++j) node += f.sorted[j] < own;
        f.place[i] = Index(node), f.order[node] = Index(i);
    }
}

// Fill order and place, as far as rounded costs and numbers tell.
__device__ inline void order_found(int count, double per_cost, const Found& f, int* sums, const Team& t)
{
    if (count - 1 <= KD_TREE_PAIRS) order_by_pairs(count, per_cost, f, t);
    else order_by_buckets(count, per_cost, f, sums, t);
    if (t.thread == 0) f.place[0] = 0, f.order[0] = 0;
    __syncthreads();
}

// Fill order and place by comparing all with all: for costs that differ by less than a step of the key.
__device__ inline void order_exactly(int count, const Found& f, const Team& t)
{
#pragma unroll 1
    for (int i = 1 + t.thread; i < count; i += t.threads) {
        int node = 1;
#pragma unroll 1
        for (int j = 1; j < count; ++j) node += j != i && pops_before(f, j, i);
        f.place[i] = Index(node), f.order[node] = Index(i);
    }
    __syncthreads();
}

// Write the first `kept` candidates in order to nodes[1..]; returns whether some neighbours are in the wrong order.
__device__ inline bool place_nodes(int count, int kept, const Nodes& nodes, const Found& f, const Team& t)
{
    int wrong = 0;
#pragma unroll 1
    for (int i = t.thread; i < count; i += t.threads) {
        const int from = f.order[i];
        const unsigned link = f.link[from];
        if (i > 1) wrong |= !pops_before(f, f.order[i - 1], from);
        if (i > kept) continue;
        nodes.score[i] = f.score[from], nodes.rank[i] = Index(link & 1023u), nodes.depth[i] = Index(depth_of(link));
        nodes.parent[i] = i > 0 ? f.place[link >> 16] : Index(KD_NO_NODE);
    }
    return __syncthreads_or(wrong) != 0;
}

#endif
