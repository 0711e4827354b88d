// tree_build.cu: which B candidate continuations are the most probable?  One draft tree per request.
//
// Algorithm  v1: best-first search by one thread: look at every popped node's next child, pop the best.
//            v2: one block a request.  Budgets above KD_TREE_FRONTIER go depth by depth (tree_levels.cuh); smaller
//            ones, rows that ascend or exceed 0 and rows whose ties defeat the estimate one by one, in one warp
//            (tree_frontier.cuh).  The same tree either way: the first B nodes by (-score, rank tuple).
// Inputs     ids, logprobs (b, D, K) int32, float32; root_tokens (b,) int32; budgets, lengths, max_depths, max_ranks
//            (b,) int32, or null and one number for all requests.  Any values; rows past max_depth, ranks from
//            max_rank on and tables of budgets <= 0 are not read
// Outputs    tokens, parents, depths, ranks, positions (b, N) int32; scores (b, N) float64; counts, status (b,) int32;
//            mask (b, N, ceil(N/32)) uint32: bit j of row i is set iff j is i or an ancestor of i.  Every element
//            is written; parents[i] < i
// Launch     tree_build_v1: grid b, block 1, dynamic shared 16 * KD_MAX_NODES
// Launch     tree_build_v2: grid b, block KD_TREE_THREADS, dynamic shared KD_TREE_SHARED + KD_TREE_SHARED_NODE * KD_MAX_NODES
// Aliasing   outputs overlap nothing
// Numerics   score = float64 sum of float32 log-probs, root to node; equal to refs/tree_build.py bit for bit
// Bytes      reads 4 * min(D, max_depth) * min(K, max_rank) a request, writes 28 * N + 4 * N * ceil(N/32)
#include "tree_frontier.cuh"
#include "tree_levels.cuh"

#ifndef KD_TREE_FRONTIER
#define KD_TREE_FRONTIER 16
#endif
#ifndef KD_TREE_THREADS
#define KD_TREE_THREADS 512
#endif
#define KD_TREE_SHARED 18432    // bytes for any N: 2 * 4 * KD_MAX_DEPTH * KD_TREE_BINS, slack of Found
#define KD_TREE_SHARED_NODE 72  // bytes for each of the N slots

// What request b was given: its own number, or everyone's.
__device__ __forceinline__ int given(const int* own, int every, int b) { return own ? own[b] : every; }

__device__ inline int usable_budget(int budget, int num_nodes, int& status)
{
    if (budget > num_nodes - 1) status |= KD_STATUS_CAPACITY;
    return min(budget, num_nodes - 1);
}

extern "C" __global__ void __launch_bounds__(1)
tree_build_v1(const int* __restrict__ ids, const float* __restrict__ logprobs, const int* __restrict__ root_tokens,
    const int* __restrict__ budgets, const int* __restrict__ lengths, const int* __restrict__ max_depths,
    const int* __restrict__ max_ranks, int* __restrict__ tokens, int* __restrict__ parents, int* __restrict__ depths,
    int* __restrict__ ranks, double* __restrict__ scores, int* __restrict__ counts, int* __restrict__ status,
    unsigned* __restrict__ mask, int* __restrict__ positions, int depth, int width, int num_nodes,
    int every_budget, int every_length, int every_max_depth, int every_max_rank)
{
    DYN_SHARED(double, score);
    Index* memory = reinterpret_cast<Index*>(score + num_nodes);
    const Nodes nodes = {score, memory, memory + num_nodes, memory + 2 * num_nodes};
    Index* next = memory + 3 * num_nodes;
    const int b = int(blockIdx.x);
    const long long request = b, table_at = request * depth * width, node_at = request * num_nodes;
    const Output out = {ids + table_at, width, root_tokens[b], given(lengths, every_length, b), num_nodes, tokens + node_at, parents + node_at,
        depths + node_at, ranks + node_at, positions + node_at, scores + node_at, mask + node_at * ceil_div(num_nodes, 32)};
    const int budget = given(budgets, every_budget, b), max_depth = given(max_depths, every_max_depth, b);
    Table table = {logprobs + table_at, 0, max(min(width, given(max_ranks, every_max_rank, b)), 0), width};
    int found = 0, count = budget < 0 ? 0 : 1;
    const int wanted = budget > 0 ? usable_budget(budget, num_nodes, found) : 0;
    for (int row = 0; budget > 0 && row < min(depth, max_depth); ++row) {
        bool finite = true, sorted = true;
        for (int r = 0; r < table.width; ++r) {
            const float x = table.at(row, r);
            finite = finite && x < KD_INFINITY;  // false for NaN as well
            sorted = sorted && x <= 0.0f && (r == 0 || !(x > table.at(row, r - 1)));
        }
        if (!finite) found |= KD_STATUS_NON_FINITE;
        if (!finite) break;
        if (!sorted) found |= KD_STATUS_UNSORTED;
        table.rows = row + 1;
    }
    score[0] = 0.0, nodes.parent[0] = KD_NO_NODE, nodes.rank[0] = 0, nodes.depth[0] = 0, next[0] = 0;
    for (; count > 0 && count <= wanted; ++count) {
        int best = -1;
        double best_score = 0.0;
        for (int i = 0; i < count; ++i) {
            if (nodes.depth[i] >= table.rows || next[i] >= table.width) continue;
            const float logprob = table.at(nodes.depth[i], next[i]);
            const double s = score[i] + double(logprob);
            if (logprob == -KD_INFINITY || (best >= 0 && s < best_score)) continue;
            if (best < 0 || s > best_score || path_before(nodes, i, next[i], best, next[best])) best = i, best_score = s;
        }
        if (best < 0) break;
        score[count] = best_score, nodes.parent[count] = Index(best), nodes.rank[count] = next[best]++;
        nodes.depth[count] = Index(nodes.depth[best] + 1), next[count] = 0;
    }
    counts[b] = count, status[b] = found;
    clear_mask(out);
    write_nodes(out, nodes, count);
}

// All threads: find the rows and ranks that can be used, and the status bits of the table.
__device__ inline void check_rows(Table& table, Shared& s, const Team& t, int& status)
{
    if (t.warp == t.warps - 1) {  // scores of (0), (0, 0), ..., and the first row that offers nothing
        const float head = t.lane < table.rows && table.width > 0 ? table.at(t.lane, 0) : -KD_INFINITY;
        const unsigned empty = __ballot_sync(KD_FULL_MASK, head == -KD_INFINITY);
        double score = 0.0;
        for (int d = 0; d < table.rows; ++d) {
            if (t.lane == 0) s.chain[d] = score;
            score += double(__shfl_sync(KD_FULL_MASK, head, d));
        }
        if (t.lane == 0) s.chain[table.rows] = score, s.filled = empty ? __ffs(int(empty)) - 1 : KD_MAX_DEPTH;
    }
    const int chunks = ceil_div(table.width, 32), total = table.rows * chunks;
    for (int c = t.warp; c < total; c += 4 * t.warps) {
        float x[4], before[4];
#pragma unroll
        for (int u = 0; u < 4; ++u) {
            const int chunk = c + u * t.warps, row = chunk / chunks, rank = (chunk - row * chunks) * 32 + t.lane;
            x[u] = chunk < total && rank < table.width ? table.at(row, rank) : -KD_INFINITY;
            before[u] = chunk < total && t.lane == 0 && rank > 0 ? table.at(row, rank - 1) : KD_INFINITY;
        }
#pragma unroll
        for (int u = 0; u < 4; ++u) {
            const int chunk = c + u * t.warps;
            const float left = __shfl_up_sync(KD_FULL_MASK, x[u], 1);
            const bool finite = x[u] < KD_INFINITY;
            const bool sorted = x[u] <= 0.0f && !(x[u] > (t.lane == 0 ? before[u] : left));
            if (!finite) atomicMin(&s.bad_row, unsigned(chunk / chunks));
            if (!sorted) atomicOr(&s.unsorted_rows, 1u << chunk / chunks);
        }
    }
    __syncthreads();
    const int finite = int(min(s.bad_row, unsigned(table.rows)));
    if (finite < table.rows) status |= KD_STATUS_NON_FINITE;
    if (finite > 0 && s.unsorted_rows << (32 - finite)) status |= KD_STATUS_UNSORTED;
    table.rows = min(finite, s.filled);
}

// Shared memory of a request with N slots; see KD_TREE_SHARED.
struct Memory {
    Nodes nodes;
    Found found;
    __device__ Memory(unsigned char* at, int n)
    {
        const int capacity = 2 * n + 32;
        found.capacity = capacity, found.buckets = 4 * n;
        nodes.score = take<double>(at, n), found.score = take<double>(at, capacity);
        found.histogram = take<unsigned>(at, KD_MAX_DEPTH * KD_TREE_BINS);
        found.density = take<float>(at, KD_MAX_DEPTH * KD_TREE_BINS), found.bucket = take<unsigned>(at, 4 * n);
        nodes.parent = take<Index>(at, n), nodes.rank = take<Index>(at, n), nodes.depth = take<Index>(at, n);
        found.order = take<Index>(at, n);
        found.parent = take<Index>(at, capacity), found.rank = take<Index>(at, capacity);
        found.depth = take<Index>(at, capacity), found.children = take<Index>(at, capacity);
        found.slot = take<Index>(at, capacity), found.place = take<Index>(at, capacity);
    }
    template <class T> __device__ static T* take(unsigned char*& at, int count)
    {
        T* taken = reinterpret_cast<T*>(at);
        at += size_t(count) * sizeof(T);
        return taken;
    }
};

extern "C" __global__ void __launch_bounds__(KD_TREE_THREADS, 1)
tree_build_v2(const int* __restrict__ ids, const float* __restrict__ logprobs, const int* __restrict__ root_tokens,
    const int* __restrict__ budgets, const int* __restrict__ lengths, const int* __restrict__ max_depths,
    const int* __restrict__ max_ranks, int* __restrict__ tokens, int* __restrict__ parents, int* __restrict__ depths,
    int* __restrict__ ranks, double* __restrict__ scores, int* __restrict__ counts, int* __restrict__ status,
    unsigned* __restrict__ mask, int* __restrict__ positions, int depth, int width, int num_nodes,
    int every_budget, int every_length, int every_max_depth, int every_max_rank)
{
    __shared__ Shared s;
    DYN_SHARED(unsigned char, dynamic);
    const Memory memory(dynamic, num_nodes);
    const Team t = team();
    const int b = int(blockIdx.x);
    const long long request = b, table_at = request * depth * width, node_at = request * num_nodes;
    const Output out = {ids + table_at, width, root_tokens[b], given(lengths, every_length, b), num_nodes, tokens + node_at, parents + node_at,
        depths + node_at, ranks + node_at, positions + node_at, scores + node_at, mask + node_at * ceil_div(num_nodes, 32)};
    const int budget = given(budgets, every_budget, b), max_depth = given(max_depths, every_max_depth, b);
    int found = 0, count = budget < 0 ? 0 : 1;
    if (t.thread == 0) s.bad_row = ~0u, s.unsorted_rows = 0, s.bound = ~0u, s.step = ~0u, s.good = 0;
    clear_mask(out);
    __syncthreads();
    if (budget > 0) {
        const int wanted = usable_budget(budget, num_nodes, found);
        Table table = {logprobs + table_at, max(min(depth, max_depth), 0), max(min(width, given(max_ranks, every_max_rank, b)), 0), width};
        check_rows(table, s, t, found);
        int made = 0;
        if (wanted > KD_TREE_FRONTIER && table.rows > 0 && !(found & KD_STATUS_UNSORTED))
            made = best_levels(table, wanted, memory.nodes, memory.found, s, t);
        if (made == 0) {  // the frontier's keys take the place of the candidates' scores
            unsigned long long* key = reinterpret_cast<unsigned long long*>(memory.found.score);
            if (t.warp == 0) made = best_first(table, wanted, memory.nodes, key, memory.found.slot);
            if (t.thread == 0) s.good = unsigned(made);
            __syncthreads();
            made = int(s.good);
        }
        count = made;
    }
    if (t.thread == 0) counts[b] = count, status[b] = found;
    write_nodes(out, memory.nodes, count);
}
