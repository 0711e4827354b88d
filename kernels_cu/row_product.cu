// row_product.cu: products of a few rows with a matrix of weights, y = x w^T, in float32.
//
// Algorithm  A warp makes KD_PRODUCT_COLUMNS columns of up to ROWS rows: lane l reads four numbers of each at 4 l,
//            4 (l + 32), 4 (l + 64), ... and adds up their products in that order; lanes are joined by a butterfly
//            that halves the sums a lane holds at each step.
// Inputs     x (rows, size) float32, w (columns, size) float32, both on 16-byte addresses; size a multiple of 4
// Outputs    y (rows, columns) float32; every element is written
// Launch     row_product_1: grid (1, ceil(columns / (4 * KD_PRODUCT_COLUMNS))), block 128, dynamic shared 0; 1 row
// Launch     row_product_2: grid (ceil(rows / 2), the same), block 128, dynamic shared 0
// Launch     row_product_4: grid (ceil(rows / 4), the same), block 128, dynamic shared 0
// Launch     row_product_8: grid (ceil(rows / 8), the same), block 128, dynamic shared 0
// Launch     row_product_16: grid (ceil(rows / 16), the same), block 128, dynamic shared 0
// Aliasing   y overlaps nothing
// Numerics   float32 with fused multiply-adds.  A sum has the same bits in all five kernels, whatever rows are beside
//            its own: chains of ceil(size / 128) * 4 terms, 32 of them joined in a tree
// Bytes      4 * size * columns
#include "common.cuh"

#define KD_PRODUCT_WARPS 4
#ifndef KD_PRODUCT_COLUMNS
#define KD_PRODUCT_COLUMNS 2
#endif

// Sums of all lanes: that of value i ends in values[0] of lanes i * (32 / COUNT) and those that follow.
template <int COUNT, int OFFSET, int SIZE>
__device__ __forceinline__ void join_lanes(float (&values)[SIZE], int lane)
{
    if constexpr (COUNT > 1) {
        const bool upper = lane & OFFSET;
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) {
            const float kept = upper ? values[i + COUNT / 2] : values[i], sent = upper ? values[i] : values[i + COUNT / 2];
            values[i] = kept + __shfl_xor_sync(KD_FULL_MASK, sent, OFFSET);
        }
        join_lanes<COUNT / 2, OFFSET / 2>(values, lane);
    } else if constexpr (OFFSET > 0) {
        values[0] += __shfl_xor_sync(KD_FULL_MASK, values[0], OFFSET);
        join_lanes<1, OFFSET / 2>(values, lane);
    }
}

__device__ __forceinline__ void add_products(float& sum, const float4& a, const float4& b)
{
    sum = fmaf(a.x, b.x, sum);
    sum = fmaf(a.y, b.y, sum);
    sum = fmaf(a.z, b.z, sum);
    sum = fmaf(a.w, b.w, sum);
}

template <int ROWS>
__device__ __forceinline__ void product_of_rows(const float* x, const float* w, float* y, int rows, int columns, int size)
{
    const int lane = lane_id(), first_row = int(blockIdx.x) * ROWS;
    const int first_column = (int(blockIdx.y) * KD_PRODUCT_WARPS + warp_id()) * KD_PRODUCT_COLUMNS;
    if (first_column >= columns) return;
    const int quarter = size / 4;
    const float4* inputs = reinterpret_cast<const float4*>(x + (long long)first_row * size);
    const float4* weights = reinterpret_cast<const float4*>(w + (long long)first_column * size);
    int row_at[ROWS], column_at[KD_PRODUCT_COLUMNS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) row_at[r] = min(r, rows - 1 - first_row) * quarter;  // beyond the last row: that one
#pragma unroll
    for (int c = 0; c < KD_PRODUCT_COLUMNS; ++c) column_at[c] = min(c, columns - 1 - first_column) * quarter;
    float sums[ROWS * KD_PRODUCT_COLUMNS] = {};
    constexpr int AHEAD = ROWS >= 16 ? 1 : ROWS >= 4 ? 2 : 4;  // steps whose numbers are on their way
#pragma unroll AHEAD
    for (int i = lane; i < quarter; i += 32) {
        float4 own[KD_PRODUCT_COLUMNS];
#pragma unroll
        for (int c = 0; c < KD_PRODUCT_COLUMNS; ++c) own[c] = weights[column_at[c] + i];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const float4 input = inputs[row_at[r] + i];
#pragma unroll
            for (int c = 0; c < KD_PRODUCT_COLUMNS; ++c) add_products(sums[r * KD_PRODUCT_COLUMNS + c], input, own[c]);
        }
    }
    __syncwarp();
    join_lanes<ROWS * KD_PRODUCT_COLUMNS, 16>(sums, lane);
    const int each = 32 / (ROWS * KD_PRODUCT_COLUMNS), place = lane / each;
    const int row = first_row + place / KD_PRODUCT_COLUMNS, column = first_column + place % KD_PRODUCT_COLUMNS;
    if (lane % each == 0 && row < rows && column < columns) y[(long long)row * columns + column] = sums[0];
}

#define KD_ROW_PRODUCT(name, ROWS)                                                                               \
    extern "C" __global__ void __launch_bounds__(32 * KD_PRODUCT_WARPS, 3)                                       \
    name(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y, int rows, int columns, \
         int size)                                                                                               \
    {                                                                                                            \
        product_of_rows<ROWS>(x, w, y, rows, columns, size);                                                     \
    }

KD_ROW_PRODUCT(row_product_1, 1)
KD_ROW_PRODUCT(row_product_2, 2)
KD_ROW_PRODUCT(row_product_4, 4)
KD_ROW_PRODUCT(row_product_8, 8)
KD_ROW_PRODUCT(row_product_16, 16)
#undef KD_ROW_PRODUCT
