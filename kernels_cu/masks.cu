// masks.cu: what follows from the parents of a tree from elsewhere: visible nodes, positions, linked lists.
//
// Algorithm  packed_mask: one thread a row: walk the parent links, set one bit a step.
//            bool_mask, additive_mask_*: one thread a pair: its bit of the packed mask.
//            retrieve: one thread a node: look for the first later node with this parent, and with the same parent.
//            positions: one thread a slot.
// Inputs     parents, depths (b, N) int32; counts, lengths (b,) int32; mask (b, N, W) uint32 of packed_mask.  Any
//            values: a node whose parent is not an earlier node sees itself only and is nobody's child
// Outputs    mask (b, N, W) uint32, W = ceil(N/32), bits from N on zero; visible (b, N, N) bool; added (b, N, N);
//            places (b, N) int32; index, next_token, next_sibling (b, N) int64.  Every element is written
// Launch     packed_mask: grid (ceil(N / 128), b), block 128, dynamic shared 0
// Launch     bool_mask: grid (ceil(N / 128), N, b), block 128, dynamic shared 0
// Launch     additive_mask: grid (ceil(N / 128), N, b), block 128, dynamic shared 0
// Launch     positions: grid (ceil(N / 128), b), block 128, dynamic shared 0
// Launch     retrieve: grid (ceil(N / 128), b), block 128, dynamic shared 0
// Aliasing   outputs overlap nothing
// Numerics   integers only: equal to refs/masks.py bit for bit
// Bytes      reads 4 * N * (mean depth + 1), writes 4 * N * W
#include "common.cuh"

#define KD_MASK_BLOCK 128

__device__ __forceinline__ bool has_parent(int parent, int node, int count)
{
    return node > 0 && node < count && parent >= 0 && parent < node;
}

extern "C" __global__ void __launch_bounds__(KD_MASK_BLOCK)
packed_mask(const int* __restrict__ parents, const int* __restrict__ counts, unsigned* __restrict__ mask, int num_nodes)
{
    const int node = int(blockIdx.x) * KD_MASK_BLOCK + int(threadIdx.x), b = int(blockIdx.y);
    if (node >= num_nodes) return;
    const int words = ceil_div(num_nodes, 32), count = counts[b];
    const int* parent = parents + (long long)b * num_nodes;
    unsigned* row = mask + ((long long)b * num_nodes + node) * words;
    int up = node;
    for (int w = words - 1; w >= 0; --w) {  // ancestors have ever lower numbers
        unsigned bits = 0u;
        while (up >= 0 && up >> 5 == w) {
            bits |= 1u << (up & 31);
            up = has_parent(parent[up], up, count) ? parent[up] : -1;
        }
        row[w] = bits;
    }
}

__device__ __forceinline__ bool sees(const unsigned* mask, long long row, int column, int words)
{
    return mask[row * words + (column >> 5)] >> (column & 31) & 1u;
}

extern "C" __global__ void __launch_bounds__(KD_MASK_BLOCK)
bool_mask(const unsigned* __restrict__ mask, bool* __restrict__ visible, int num_nodes)
{
    const int column = int(blockIdx.x) * KD_MASK_BLOCK + int(threadIdx.x);
    const long long row = (long long)blockIdx.z * num_nodes + blockIdx.y;
    if (column < num_nodes) visible[row * num_nodes + column] = sees(mask, row, column, ceil_div(num_nodes, 32));
}

// The number type only matters as bits: 2, 4 or 8 bytes of zero or of `hidden`.
extern "C" __global__ void __launch_bounds__(KD_MASK_BLOCK)
additive_mask(const unsigned* __restrict__ mask, unsigned char* __restrict__ added, unsigned long long hidden, int item_bytes,
    int num_nodes)
{
    const int column = int(blockIdx.x) * KD_MASK_BLOCK + int(threadIdx.x);
    const long long row = (long long)blockIdx.z * num_nodes + blockIdx.y;
    if (column >= num_nodes) return;
    const unsigned long long bits = sees(mask, row, column, ceil_div(num_nodes, 32)) ? 0ull : hidden;
    const long long at = row * num_nodes + column;
    if (item_bytes == 2) reinterpret_cast<unsigned short*>(added)[at] = (unsigned short)bits;
    if (item_bytes == 4) reinterpret_cast<unsigned*>(added)[at] = unsigned(bits);
    if (item_bytes == 8) reinterpret_cast<unsigned long long*>(added)[at] = bits;
}

extern "C" __global__ void __launch_bounds__(KD_MASK_BLOCK)
positions(const int* __restrict__ depths, const int* __restrict__ lengths, int* __restrict__ places, int num_nodes)
{
    const int node = int(blockIdx.x) * KD_MASK_BLOCK + int(threadIdx.x), b = int(blockIdx.y);
    const long long at = (long long)b * num_nodes + node;
    if (node < num_nodes) places[at] = int(unsigned(lengths[b]) + unsigned(depths[at]));
}

extern "C" __global__ void __launch_bounds__(KD_MASK_BLOCK)
retrieve(const int* __restrict__ parents, const int* __restrict__ counts, long long* __restrict__ index,
    long long* __restrict__ next_token, long long* __restrict__ next_sibling, int num_nodes)
{
    const int node = int(blockIdx.x) * KD_MASK_BLOCK + int(threadIdx.x), b = int(blockIdx.y);
    if (node >= num_nodes) return;
    const int* parent = parents + (long long)b * num_nodes;
    const int count = min(counts[b], num_nodes), own = parent[node];
    int child = -1, sibling = -1;
    for (int i = node + 1; i < count && (child < 0 || sibling < 0); ++i) {
        if (!has_parent(parent[i], i, count)) continue;
        if (child < 0 && parent[i] == node) child = i;
        if (sibling < 0 && parent[i] == own) sibling = i;
    }
    const long long at = (long long)b * num_nodes + node;
    index[at] = at;
    next_token[at] = child;
    next_sibling[at] = has_parent(own, node, count) ? sibling : -1;
}
