// tree_frontier.cuh: best-first search by one warp, a pop at a time: exact for any rows, quick for small budgets.
//
// Every popped node has one candidate in the frontier, its next child; `key` orders the candidates' scores and is 0
// where there is none.  A pop moves the node's candidate on to the next sibling and gives the new node its first
// child: just what the heap of refs/tree_build.py exposes, so rows that ascend or exceed 0 come out the same.
#ifndef KD_TREE_FRONTIER_CUH
#define KD_TREE_FRONTIER_CUH

#include "tree_nodes.cuh"

// Key of the child of rank `rank` in row `row` under a node of that score; 0 if there is none.
__device__ __forceinline__ unsigned long long child_key(const Table& table, double score, int row, int rank)
{
    if (row >= table.rows || rank >= table.width) return 0;
    const float logprob = table.at(row, rank);
    return logprob == -KD_INFINITY ? 0 : order_key(score + double(logprob));
}

// The largest key of the warp.
__device__ __forceinline__ unsigned long long warp_max_key(unsigned long long key)
{
    const unsigned high = __reduce_max_sync(KD_FULL_MASK, unsigned(key >> 32));
    const unsigned low = __reduce_max_sync(KD_FULL_MASK, unsigned(key >> 32) == high ? unsigned(key) : 0u);
    return (unsigned long long)high << 32 | low;
}

// One full warp: pop at most `budget` nodes into nodes[1..]; returns the number of nodes, root included.  `key` and
// `next` (rank of the candidate) hold one entry a node, in shared memory.
__device__ inline int best_first(const Table& table, int budget, const Nodes& nodes, unsigned long long* key, Index* next)
{
    const int lane = lane_id();
    if (lane == 0) {
        nodes.score[0] = 0.0, nodes.parent[0] = KD_NO_NODE, nodes.rank[0] = 0, nodes.depth[0] = 0;
        key[0] = child_key(table, 0.0, 0, 0), next[0] = 0;
    }
    int count = 1;
    for (; count <= budget; ++count) {
        __syncwarp();
        unsigned long long best = 0;
        int node = 0;
#pragma unroll 1
        for (int i = lane; i < count; i += 32) {
            const unsigned long long k = key[i];
            if (k > best || (k != 0 && k == best && path_before(nodes, i, next[i], node, next[node]))) best = k, node = i;
        }
        const unsigned long long top = warp_max_key(best);
        if (top == 0) break;
        unsigned tied = __ballot_sync(KD_FULL_MASK, best == top);
        int winner = __shfl_sync(KD_FULL_MASK, node, __ffs(int(tied)) - 1);
#pragma unroll 1
        for (tied &= tied - 1; tied != 0; tied &= tied - 1) {
            const int other = __shfl_sync(KD_FULL_MASK, node, __ffs(int(tied)) - 1);
            if (path_before(nodes, other, next[other], winner, next[winner])) winner = other;
        }
        const int rank = next[winner], depth = nodes.depth[winner];
        const double score = order_value(top);
        __syncwarp();
        if (lane == 0) {
            nodes.score[count] = score, nodes.parent[count] = Index(winner);
            nodes.rank[count] = Index(rank), nodes.depth[count] = Index(depth + 1);
            key[winner] = child_key(table, nodes.score[winner], depth, rank + 1), next[winner] = Index(rank + 1);
        }
        if (lane == 1) key[count] = child_key(table, score, depth + 1, 0), next[count] = 0;
    }
    return count;
}

#endif
