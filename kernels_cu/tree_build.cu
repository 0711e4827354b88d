// tree_build.cu: which B candidate continuations are the most probable?  One draft tree per request.
//
// Algorithm  v1: best-first search by one thread: look at every popped node's next child, pop the best.
//            v2: one block a request, depth by depth (tree_levels.cuh).  Rows that ascend or exceed 0, and rows whose
//            ties defeat the estimate, go one by one, in one warp (tree_frontier.cuh).  The same tree either way: the
//            first B nodes by (-score, rank tuple).
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

#define KD_TREE_THREADS 512
#define KD_TREE_SHARED 25088    // bytes for any N, and
#define KD_TREE_SHARED_NODE 70  // bytes for each of the N slots; struct Memory says what for

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
    const Output out = {ids + table_at, width, root_tokens[b], given(lengths, every_length, b), num_nodes,
        tokens + node_at, parents + node_at, depths + node_at, ranks + node_at, positions + node_at, scores + node_at,
        mask + node_at * ceil_div(num_nodes, 32)};
    const int budget = given(budgets, every_budget, b), max_depth = given(max_depths, every_max_depth, b);
    Table table = {logprobs + table_at, nullptr, 0, max(min(width, given(max_ranks, every_max_rank, b)), 0), width, 0};
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
    clear_mask(out, {0, 0, 1, 0, 1});
    write_nodes(out, nodes, count, {0, 0, 1, 0, 1});
}

// Four chunks of 32 ranks, a lane each, and what stands left of them; past the end the last one once more.
struct Ranks {
    float x[4], left[4];
    int row[4], rank[4];
};

// Chunks of all rows, numbered row by row.
struct Chunks {
    int in_row, total;
    float per_chunk;
    __device__ explicit Chunks(const Table& table)
        : in_row(ceil_div(table.width, 32)), total(table.rows * in_row), per_chunk(1.0f / float(max(in_row, 1)))
    {
    }
};

__device__ __forceinline__ void load_ranks(const Table& table, const Chunks& chunks, int begin, const Team& t, Ranks& r)
{
#pragma unroll
    for (int u = 0; u < 4; ++u) {
        const int chunk = min(begin + u * t.warps, chunks.total - 1);
        r.row[u] = int((float(chunk) + 0.5f) * chunks.per_chunk);
        r.rank[u] = min((chunk - r.row[u] * chunks.in_row) * 32 + t.lane, table.width - 1);
        const float* at = table.global + (r.row[u] * table.stride + r.rank[u]);
        r.x[u] = at[0], r.left[u] = at[r.rank[u] > 0 ? -1 : 0];
    }
}

// Keep the first ranks of each row in shared memory, note rows with a fault.
__device__ __forceinline__ void check_ranks(const Table& table, Shared& s, const Ranks& r)
{
    bool odd = false;
#pragma unroll
    for (int u = 0; u < 4; ++u) {
        odd = odd || !(r.x[u] <= 0.0f && r.x[u] <= r.left[u]);  // NaN is odd too
        if (r.rank[u] < table.kept) table.shared[r.row[u] * table.kept + r.rank[u]] = r.x[u];
    }
    if (!odd) return;
#pragma unroll
    for (int u = 0; u < 4; ++u) {
        if (!(r.x[u] < KD_INFINITY)) atomicMin(&s.bad_row, unsigned(r.row[u]));
        else if (r.x[u] > 0.0f || r.x[u] > r.left[u]) atomicOr(&s.unsorted_rows, 1u << r.row[u]);
    }
}

// All threads: read the table, find the rows that can be used and the status bits; clear the outputs meanwhile.
__device__ inline void read_table(Table& table, Shared& s, const Bins& bins, const Output& out, const Team& t, int& status)
{
    const Chunks chunks(table);
    const bool last = t.warp == t.warps - 1;
    float head = -KD_INFINITY;
    if (last && t.lane < table.rows && table.width > 0) head = table.global[t.lane * table.stride];
    Ranks ranks;
    if (t.warp < chunks.total) load_ranks(table, chunks, t.warp, t, ranks);
    clear_bins(bins, t);
    clear_mask(out, t);
    __syncthreads();
#pragma unroll 1
    for (int c = t.warp; c < chunks.total; c += 4 * t.warps) {
        Ranks next = ranks;
        if (c + 4 * t.warps < chunks.total) load_ranks(table, chunks, c + 4 * t.warps, t, next);
        check_ranks(table, s, ranks);
        ranks = next;
    }
    if (last) {  // costs of (0), (0, 0), ..., and the first row that offers nothing
        const unsigned empty = __ballot_sync(KD_FULL_MASK, head == -KD_INFINITY);
        float cost = -head;
#pragma unroll
        for (int offset = 1; offset < 32; offset <<= 1) {
            const float left = __shfl_up_sync(KD_FULL_MASK, cost, offset);
            if (t.lane >= offset) cost += left;
        }
        s.chain[t.lane + 1] = cost;
        if (t.lane == 0) s.chain[0] = 0.0f, s.filled = empty ? __ffs(int(empty)) - 1 : KD_MAX_DEPTH;
    }
    __syncthreads();
    const int finite = int(min(s.bad_row, unsigned(table.rows)));
    if (finite < table.rows) status |= KD_STATUS_NON_FINITE;
    if (finite > 0 && s.unsorted_rows << (32 - finite)) status |= KD_STATUS_UNSORTED;
    table.rows = min(finite, s.filled);
}

// Shared memory of a request with n slots.  Rows and bins are done with when the candidates are put in order: their
// place is used again then.
struct Memory {
    Nodes nodes;
    Found found;
    Bins bins;
    float* rows;
    int row_floats;
    __device__ Memory(unsigned char* at, int n)
    {
        const int capacity = 2 * n + 32;
        found.capacity = capacity;
        found.score = take<double>(at, capacity), nodes.score = take<double>(at, n);
        found.limit = take<float>(at, capacity), found.link = take<unsigned>(at, capacity);
        nodes.parent = take<Index>(at, n), nodes.rank = take<Index>(at, n), nodes.depth = take<Index>(at, n);
        at += 16 - ((40 + 6) * n + 512) % 16;
        unsigned char* again = at;
        bins.through = take<float>(at, KD_MAX_DEPTH * KD_TREE_BIN_ROW);
        bins.prefixes = take<float>(at, KD_MAX_DEPTH * KD_TREE_BIN_ROW);
        rows = reinterpret_cast<float*>(at), row_floats = 6 * n + 2000;
        found.sorted = take<unsigned long long>(again, capacity), found.bucket = take<unsigned>(again, capacity + 1);
        found.place = take<Index>(again, capacity), found.order = take<Index>(again, capacity);
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
    const Output out = {ids + table_at, width, root_tokens[b], given(lengths, every_length, b), num_nodes,
        tokens + node_at, parents + node_at, depths + node_at, ranks + node_at, positions + node_at, scores + node_at,
        mask + node_at * ceil_div(num_nodes, 32)};
    const int budget = given(budgets, every_budget, b), max_depth = given(max_depths, every_max_depth, b);
    int found = 0, count = budget < 0 ? 0 : 1;
    if (t.thread == 0) s.bad_row = ~0u, s.unsorted_rows = 0, s.bound = ~0u;
    if (budget <= 0) {
        clear_mask(out, t);
        __syncthreads();
    } else {
        const int wanted = usable_budget(budget, num_nodes, found);
        const int rows = max(min(depth, max_depth), 0), ranks_used = max(min(width, given(max_ranks, every_max_rank, b)), 0);
        const int kept = min(min(ranks_used, wanted), memory.row_floats / max(rows, 1) & ~31);
        Table table = {logprobs + table_at, memory.rows, rows, ranks_used, width, kept};
        read_table(table, s, memory.bins, out, t, found);
        int made = 0;
        if (wanted > 0 && table.rows > 0 && !(found & KD_STATUS_UNSORTED))
            made = best_levels(table, wanted, memory.nodes, memory.bins, memory.found, s, t);
        if (made == 0) {  // the frontier's keys and ranks take the place of the candidates' scores and links
            unsigned long long* key = reinterpret_cast<unsigned long long*>(memory.found.score);
            Index* next = reinterpret_cast<Index*>(memory.found.link);
            if (t.warp == 0) made = best_first(table, wanted, memory.nodes, key, next);
            if (t.thread == 0) s.count = made;
            __syncthreads();
            made = s.count;
        }
        count = made;
    }
    if (t.thread == 0) counts[b] = count, status[b] = found;
    write_nodes(out, memory.nodes, count, t);
}
