// tree_budget.cu: how many nodes of each draft tree are worth their time?
//
// Algorithm  one block a request.  All threads: probability of each node; one thread: running sum in node order; all
//            threads: rate (1 + sum) / cost of each n, best rate of the block (lowest n on ties); then the slots from
//            there on become padding.
// Inputs     cost (N,) or (b, N) float64 with cost_stride 0 or N: cost of a round of n draft nodes, in any unit; or,
//            with contexts (C,) float64 ascending, (C, N): linear between contexts at the prefix of each request (its
//            root's position), flat outside.  Numbers that are not finite and above 0 are never chosen; if there is
//            no other, the tree stays as it is
// In place   tokens, parents, depths, ranks (b, N) int32; scores (b, N) float64; counts (b,) int32;
//            mask (b, N, W) uint32; positions (b, N) int32.  counts <= 0: nothing is touched
// Launch     tree_budget_v1: grid b, block 256, dynamic shared 8 * KD_MAX_NODES
// Aliasing   cost overlaps nothing
// Numerics   float64, every operation rounded by itself and in one order: equal to refs/tree_budget.py bit for bit
// Bytes      reads 16 * counts, writes (28 + 4 * W) * (N - kept) a request
#include "common.cuh"

#ifndef KD_MAX_NODES
#define KD_MAX_NODES 1025
#endif
#define KD_BUDGET_BLOCK 256

__device__ constexpr double kd_taylor[14] = {  // 1 / 0! .. 1 / 13!
    1.0, 1.0, 0.5, 0.16666666666666666, 0.041666666666666664, 0.008333333333333333, 0.001388888888888889,
    0.0001984126984126984, 2.48015873015873e-05, 2.7557319223985893e-06, 2.755731922398589e-07, 2.505210838544172e-08,
    2.08767569878681e-09, 1.6059043836821613e-10};

// exp(x) for x <= 0, the same bits everywhere: no contraction, no library function.
__device__ __forceinline__ double exact_exp(double x)
{
    if (!(x >= -700.0)) return 0.0;
    x = x < 0.0 ? x : 0.0;
    const double k = floor(__dadd_rn(__dmul_rn(x, 1.4426950408889634), 0.5));
    const double r = __dadd_rn(__dadd_rn(x, -__dmul_rn(k, 0.6931471803691238)), -__dmul_rn(k, 1.9082149292705877e-10));
    double value = kd_taylor[13];
#pragma unroll
    for (int i = 12; i >= 0; --i) value = __dadd_rn(__dmul_rn(value, r), kd_taylor[i]);
    return __dmul_rn(value, __longlong_as_double((long long)(int(k) + 1023) << 52));  // 2^k, k >= -1010: exact
}

// Two rows of a table and how far between them a prefix lies.
struct Rows { const double *low, *high; double part; };

__device__ __forceinline__ Rows rows_at(
    const double* cost, const double* contexts, int count, int num_nodes, int prefix)
{
    const double at = double(prefix);
    int c = 0;
    while (c + 1 < count && contexts[c + 1] <= at) ++c;
    const double* low = cost + (long long)c * num_nodes;
    if (c + 1 == count || at <= contexts[c]) return {low, low, 0.0};
    return {low, low + num_nodes, __ddiv_rn(__dadd_rn(at, -contexts[c]), __dadd_rn(contexts[c + 1], -contexts[c]))};
}

extern "C" __global__ void __launch_bounds__(KD_BUDGET_BLOCK)
tree_budget_v1(const double* __restrict__ cost, const double* __restrict__ contexts, int* __restrict__ tokens,
    int* __restrict__ parents, int* __restrict__ depths, int* __restrict__ ranks, double* __restrict__ scores,
    int* __restrict__ counts, unsigned* __restrict__ mask, int* __restrict__ positions, int num_nodes, int cost_stride,
    int num_contexts)
{
    DYN_SHARED(double, expected);
    __shared__ double rates[KD_BUDGET_BLOCK / 32];
    __shared__ int places[KD_BUDGET_BLOCK / 32];
    const int b = int(blockIdx.x), thread = int(threadIdx.x), threads = int(blockDim.x);
    const long long at = (long long)b * num_nodes;
    const double* own = cost + (long long)b * cost_stride;
    Rows rows = {own, own, 0.0};
    if (num_contexts) rows = rows_at(cost, contexts, num_contexts, num_nodes, positions[at]);
    const int count = min(counts[b], num_nodes);
    if (count <= 0) return;  // the whole block
    for (int n = thread; n < count; n += threads) expected[n] = n ? exact_exp(scores[at + n]) : 1.0;
    __syncthreads();
    if (thread == 0)
        for (int n = 1; n < count; ++n) expected[n] = __dadd_rn(expected[n - 1], expected[n]);
    __syncthreads();

    double rate = -1.0;  // every real rate is above 0
    int best = count - 1;
    for (int n = thread; n < count; n += threads) {
        const double price = __dadd_rn(rows.low[n], __dmul_rn(__dadd_rn(rows.high[n], -rows.low[n]), rows.part));
        if (!(price > 0.0 && price < __longlong_as_double(0x7ff0000000000000ll))) continue;
        const double gain = __ddiv_rn(expected[n], price);
        if (gain > rate) rate = gain, best = n;
    }
    for (int offset = 16; offset > 0; offset >>= 1) {
        const double other = __shfl_xor_sync(KD_FULL_MASK, rate, offset);
        const int place = __shfl_xor_sync(KD_FULL_MASK, best, offset);
        if (other > rate || (other == rate && place < best)) rate = other, best = place;
    }
    if (lane_id() == 0) rates[warp_id()] = rate, places[warp_id()] = best;
    __syncthreads();
    for (int w = 0; w < threads >> 5; ++w)
        if (rates[w] > rate || (rates[w] == rate && places[w] < best)) rate = rates[w], best = places[w];

    const int keep = best + 1, words = ceil_div(num_nodes, 32), root_position = positions[at];
    for (int i = keep + thread; i < num_nodes; i += threads) {
        tokens[at + i] = 0, parents[at + i] = -1, depths[at + i] = 0, ranks[at + i] = -1;
        scores[at + i] = __longlong_as_double(0xfff0000000000000ll);
        positions[at + i] = root_position;
        for (int w = 0; w < words; ++w) mask[(at + i) * words + w] = w == i >> 5 ? 1u << (i & 31) : 0u;
    }
    if (thread == 0) counts[b] = keep;
}
