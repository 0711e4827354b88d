// tree_accept_lists.cu: tree_accept for trees that come as linked lists, as EAGLE-like engines keep them.
//
// Algorithm  one thread a request: from the root, look among the children (first child, then siblings) for the token
//            that the target chose; step to it; stop when none holds it.  A link out of range ends the list, and no
//            walk looks at more than N nodes, so a cycle cannot hang it
// Inputs     candidates, index, next_token, next_sibling (b, N) int64: token of each node, its row in the flattened
//            batch, its first child and its next sibling inside the request (-1: none); targets (rows,) int64
// Outputs    predicts (rows,) int32, written at rows of the path only; accept_index (b, width) int32, rows of the
//            path, root first, padded with -1; accepted (b,) int32, drafts on the path
// Launch     tree_accept_lists_v1: grid ceil(b / 32), block 32, dynamic shared 0
// Aliasing   outputs overlap nothing
// Numerics   integers only: equal to refs/tree_accept_lists.py
// Bytes      reads 32 * nodes looked at, writes 8 * path + 4 * width a request
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(32)
tree_accept_lists_v1(const long long* __restrict__ candidates, const long long* __restrict__ index,
    const long long* __restrict__ next_token, const long long* __restrict__ next_sibling,
    const long long* __restrict__ targets, int* __restrict__ predicts, int* __restrict__ accept_index,
    int* __restrict__ accepted, int batch, int num_nodes, int width, long long rows)
{
    const int b = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (b >= batch) return;
    const long long at = (long long)b * num_nodes;
    int* path = accept_index + (long long)b * width;
    long long node = 0;
    int length = 0, looked = 0;
    while (length < width && node >= 0 && node < num_nodes) {
        const long long row = index[at + node];
        if (row < 0 || row >= rows) break;
        path[length++] = int(row);
        const long long target = targets[row];
        predicts[row] = int(target);
        node = next_token[at + node];
        while (node > 0 && node < num_nodes && candidates[at + node] != target)
            node = ++looked < num_nodes ? next_sibling[at + node] : -1;
        if (node == 0) break;  // the root is nobody's child
    }
    accepted[b] = max(length - 1, 0);
    for (; length < width; ++length) path[length] = -1;
}
