// tree_accept.cu: how far does the target agree with each draft tree?
//
// Algorithm  v1: one thread a request: check every parent, then walk: look for the first child that holds the token.
//            v2: one block a request.  Every node asks at once whether it is what the target wants after its parent;
//            the lowest such child of each node is kept (atomicMin), and one thread follows these links.
// Inputs     tokens, parents (b, N) int32; counts (b,) int32; target_tokens (b, N) int32, read at parents of real
//            nodes.  Any values: a parent that is not an earlier node is reported and never stepped to or from
// Outputs    path (b, max_depth + 1) int32 padded with -1; path_length, next_token, status (b,) int32
// Launch     tree_accept_v1: grid ceil(b / 32), block 32, dynamic shared 0
// Launch     tree_accept_v2: grid b, block 1024, dynamic shared 4 * KD_MAX_NODES
// Aliasing   outputs overlap nothing
// Numerics   integers only: equal to refs/tree_accept.py bit for bit
// Bytes      reads 12 * counts, writes 4 * (max_depth + 4) a request
#include "common.cuh"

#ifndef KD_MAX_NODES
#define KD_MAX_NODES 1025
#endif
#ifndef KD_STATUS_BAD_PARENT
#define KD_STATUS_BAD_PARENT 4
#define KD_STATUS_BAD_TARGET 8
#define KD_STATUS_CAPACITY 16
#endif
#define KD_NO_CHILD 0x7fffffff

// A target token that can be matched; `vocab_size` 0 stands for no upper end.
__device__ __forceinline__ bool is_token(int token, int vocab_size)
{
    return token >= 0 && (vocab_size == 0 || token < vocab_size);
}

extern "C" __global__ void __launch_bounds__(32)
tree_accept_v1(const int* __restrict__ tokens, const int* __restrict__ parents, const int* __restrict__ counts,
    const int* __restrict__ target_tokens, int* __restrict__ path, int* __restrict__ path_length,
    int* __restrict__ next_token, int* __restrict__ status, int batch, int num_nodes, int max_depth, int vocab_size)
{
    const int b = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (b >= batch) return;
    const long long at = (long long)b * num_nodes;
    const int *token = tokens + at, *parent = parents + at, *target = target_tokens + at;
    int* own_path = path + (long long)b * (max_depth + 1);
    const int count = min(counts[b], num_nodes);
    int found = counts[b] > num_nodes ? KD_STATUS_CAPACITY : 0;
    for (int i = 1; i < count; ++i)
        if (parent[i] < 0 || parent[i] >= i) found |= KD_STATUS_BAD_PARENT;
    int length = 0, next = -1;
    for (int node = count > 0 ? 0 : -1; node >= 0 && length <= max_depth;) {
        own_path[length++] = node;
        next = target[node];
        if (!is_token(next, vocab_size)) found |= KD_STATUS_BAD_TARGET, next = -1;
        int child = node + 1;
        while (child < count && !(parent[child] == node && token[child] == next)) ++child;
        node = next >= 0 && child < count ? child : -1;
    }
    path_length[b] = length, next_token[b] = next, status[b] = found;
    for (; length <= max_depth; ++length) own_path[length] = -1;
}

extern "C" __global__ void __launch_bounds__(1024)
tree_accept_v2(const int* __restrict__ tokens, const int* __restrict__ parents, const int* __restrict__ counts,
    const int* __restrict__ target_tokens, int* __restrict__ path, int* __restrict__ path_length,
    int* __restrict__ next_token, int* __restrict__ status, int batch, int num_nodes, int max_depth, int vocab_size)
{
    DYN_SHARED(int, wanted);  // per node: its lowest child that holds the target's token
    const int b = int(blockIdx.x), thread = int(threadIdx.x), threads = int(blockDim.x);
    const long long at = (long long)b * num_nodes;
    const int *target = target_tokens + at;
    int* own_path = path + (long long)b * (max_depth + 1);
    const int given = counts[b], count = min(given, num_nodes);
    for (int i = thread; i < count; i += threads) wanted[i] = KD_NO_CHILD;
    for (int i = thread; i <= max_depth; i += threads) own_path[i] = -1;
    __syncthreads();
    int bad = 0;
    for (int i = thread + 1; i < count; i += threads) {
        const int parent = parents[at + i];
        if (parent < 0 || parent >= i) { bad = 1; continue; }
        const int token = tokens[at + i];
        if (token == target[parent] && is_token(token, vocab_size)) atomicMin(&wanted[parent], i);
    }
    bad = __syncthreads_or(bad);
    if (thread != 0) return;
    int found = (given > num_nodes ? KD_STATUS_CAPACITY : 0) | (bad ? KD_STATUS_BAD_PARENT : 0);
    int length = 0, next = -1, last = -1;
    for (int node = count > 0 ? 0 : KD_NO_CHILD; node != KD_NO_CHILD && length <= max_depth; node = wanted[node])
        own_path[length++] = last = node;
    if (last >= 0) {
        next = target[last];
        if (!is_token(next, vocab_size)) found |= KD_STATUS_BAD_TARGET, next = -1;
    }
    path_length[b] = length, next_token[b] = next, status[b] = found;
}
