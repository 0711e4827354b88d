// tree_nodes.cuh: the nodes of one request's tree in shared memory, their order, and how they are written out.
#ifndef KD_TREE_NODES_CUH
#define KD_TREE_NODES_CUH

#include "common.cuh"

#ifndef KD_MAX_DEPTH
#define KD_MAX_DEPTH 32
#endif
#ifndef KD_MAX_NODES
#define KD_MAX_NODES 1025
#endif
#ifndef KD_STATUS_NON_FINITE
#define KD_STATUS_NON_FINITE 1
#define KD_STATUS_UNSORTED 2
#define KD_STATUS_CAPACITY 16
#endif
#define KD_NO_NODE 0xffff

using Index = unsigned short;  // node numbers and ranks: at most 1024

// Nodes in pop order: node 0 is the root, parent[i] < i.
struct Nodes {
    double* score;
    Index *parent, *rank, *depth;
};

// One request's log-probs: `rows` positions of `width` ranks, rows `stride` floats apart in global memory; the first
// `kept` ranks of each also in shared memory.
struct Table {
    const float* global;
    float* shared;
    int rows, width, stride, kept;
    __device__ float at(int row, int rank) const
    {
        return rank < kept ? shared[row * kept + rank] : global[row * stride + rank];
    }
};

// A thread's place in a one-dimensional block of full warps.
struct Team {
    int lane, warp, warps, thread, threads;
};

__device__ __forceinline__ Team team()
{
    const int thread = int(threadIdx.x), threads = int(blockDim.x);
    return {thread & 31, thread >> 5, threads >> 5, thread, threads};
}

// Where one request's results go in global memory, and what is known of it beforehand.
struct Output {
    const int* ids;
    int id_stride, root, length, num_nodes;
    int *tokens, *parents, *depths, *ranks, *positions;
    double* scores;
    unsigned* mask;
};

// An integer that orders like the double, for any double but NaN; 0 is below all of them.
__device__ __forceinline__ unsigned long long order_key(double x)
{
    const long long bits = __double_as_longlong(x);
    return (unsigned long long)bits ^ (unsigned long long)((bits >> 63) | (1ull << 63));
}

__device__ __forceinline__ double order_value(unsigned long long key)
{
    return __longlong_as_double((long long)(key >> 63 ? key ^ (1ull << 63) : ~key));
}

// Does the path "node a, then rank ra" come before "node b, then rank rb" in lexicographic order?
__device__ inline bool path_before(const Nodes& nodes, int a, int ra, int b, int rb)
{
    const int depth_a = nodes.depth[a], depth_b = nodes.depth[b];
#pragma unroll 1
    for (int d = depth_a; d > depth_b; --d) ra = nodes.rank[a], a = nodes.parent[a];
#pragma unroll 1
    for (int d = depth_b; d > depth_a; --d) rb = nodes.rank[b], b = nodes.parent[b];
#pragma unroll 1
    for (int d = min(depth_a, depth_b); d > 0 && a != b; --d) {
        ra = nodes.rank[a], a = nodes.parent[a];
        rb = nodes.rank[b], b = nodes.parent[b];
    }
    return ra != rb ? ra < rb : depth_a < depth_b;
}

// All threads: clear the mask.  A barrier must lie between this and write_nodes.
__device__ inline void clear_mask(const Output& out, const Team& t)
{
    const int words = out.num_nodes * ceil_div(out.num_nodes, 32);
#pragma unroll 1
    for (int i = t.thread; i < words; i += t.threads) out.mask[i] = 0u;
}

// One mask row: the node's own bit and its ancestors', a word at a time from the highest down.
__device__ inline void write_mask_row(const Output& out, const Nodes& nodes, int node, bool real)
{
    unsigned* row = out.mask + node * ceil_div(out.num_nodes, 32);
    int word = node >> 5, up = real ? int(nodes.parent[node]) : KD_NO_NODE;
    unsigned bits = 1u << (node & 31);
#pragma unroll 1
    for (int d = 0; d < KD_MAX_DEPTH && up != KD_NO_NODE; ++d) {
        const int above = nodes.parent[up];
        if (up >> 5 != word) row[word] = bits, word = up >> 5, bits = 0u;
        bits |= 1u << (up & 31);
        up = above;
    }
    row[word] = bits;
}

// All threads: write `count` nodes and the padding behind them.
__device__ inline void write_nodes(const Output& out, const Nodes& nodes, int count, const Team& t)
{
    for (int i = t.thread; i < out.num_nodes; i += t.threads) {
        const bool real = i < count, drafted = real && i > 0;
        const int depth = drafted ? int(nodes.depth[i]) : 0, rank = drafted ? int(nodes.rank[i]) : -1;
        int token = real ? out.root : 0;
        if (drafted) token = out.ids[(depth - 1) * out.id_stride + rank];
        out.parents[i] = drafted ? int(nodes.parent[i]) : -1;
        out.depths[i] = depth;
        out.ranks[i] = rank;
        out.scores[i] = drafted ? nodes.score[i] : real ? 0.0 : -double(KD_INFINITY);
        out.positions[i] = int(unsigned(out.length) + unsigned(depth));
        write_mask_row(out, nodes, i, drafted);
        out.tokens[i] = token;  // last: it comes from global memory
    }
}

#endif
