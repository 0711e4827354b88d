// verify_attn_fp8.cu: verify_attn (see verify_attn.cu) on KV rows of 8-bit floats (e4m3).
//
// Algorithm  as verify_attn.cu; rows are read as bytes and widened exactly where they are used (verify_attn_fp8.cuh)
//   verify_attn_scaled_*  rows of 656 bytes: 512 latent numbers, 4 float32 scales, 64 rotary numbers in bfloat16
//   verify_attn_plain_*   rows of 576 bytes: 512 latent and 64 rotary numbers, one scale of the call
//   *_v1, *_rows64 as in verify_attn.cu; *_rows32, *_rows16: the same tile with one group, for few rows
// Inputs     cache, tree_kv uint8, in rows of 656 or 576; the others as verify_attn.cu.  value_scale: the scale of the
//            call (plain), which the tensor-core kernels find in scale_log2 as well
// Outputs    as verify_attn.cu; partial results are joined by its verify_attn_combine
// Launch     v1: grid (N * H, b), block 128.  rowsR: any grid, block 256, or 128 for a single copy of rows32, rows16;
//            dynamic shared Layout::bytes a copy
// Numerics   as verify_attn.cu against the dequantised rows: scales multiply float32 scores and weights, not keys
// Bytes      half of those of bfloat16 rows
#ifndef KD_STAGES
#define KD_STAGES 5       // Q passes through the ring: 64 rows of it need as much
#endif
#include "verify_attn_formula.cuh"
#include "verify_attn_tile.cuh"

// ---- v1: the formula ----

template <class Row, class NumbersAt>
__device__ __forceinline__ void attend(const KD_QUERY* q, const unsigned char* cache, const unsigned char* tree_kv, const unsigned* mask,
                                       const int* lengths, const int* counts, const int* page_table, KD_OUT* out, float* lse, int nodes,
                                       int heads, int words, long long page_stride, int page_size, int most_pages, float scale, NumbersAt numbers)
{
    const int row = blockIdx.x, node = row / heads, b = blockIdx.y;
    const int real = counts ? min(max(counts[b], 0), nodes) : nodes, length = max(lengths[b], 0);
    const long long at = (long long)b * nodes * heads + row;
    const auto kv = kv_rows(cache, tree_kv, page_table, page_stride, page_size, most_pages, b, length, nodes, real, Row::length);
    const auto row_at = [&](int t) { return numbers(kv.row(t, Row::length)); };
    attend_row<kd_width, KD_LATENT>(q + at * kd_width, node < real ? kv.total : 0, length, row_at, row_at,
                                    mask + ((long long)b * nodes + node) * words, words, scale, out + at * KD_LATENT, lse + at);
}

extern "C" __global__ void __launch_bounds__(128, 8)
verify_attn_scaled_v1(const KD_QUERY* __restrict__ q, const unsigned char* __restrict__ cache,
                      const unsigned char* __restrict__ tree_kv, const unsigned* __restrict__ mask,
                      const int* __restrict__ lengths, const int* __restrict__ counts, const int* __restrict__ page_table,
                      KD_OUT* __restrict__ out, float* __restrict__ lse, int nodes, int heads, int words,
                      long long page_stride, int page_size, int most_pages, float scale, float value_scale)
{
    attend<ScaledRow>(q, cache, tree_kv, mask, lengths, counts, page_table, out, lse, nodes, heads, words, page_stride, page_size,
           most_pages, scale, [=](const unsigned char* row) { return ScaledNumbers{row}; });
}

extern "C" __global__ void __launch_bounds__(128, 8)
verify_attn_plain_v1(const KD_QUERY* __restrict__ q, const unsigned char* __restrict__ cache,
                      const unsigned char* __restrict__ tree_kv, const unsigned* __restrict__ mask,
                      const int* __restrict__ lengths, const int* __restrict__ counts, const int* __restrict__ page_table,
                      KD_OUT* __restrict__ out, float* __restrict__ lse, int nodes, int heads, int words,
                      long long page_stride, int page_size, int most_pages, float scale, float value_scale)
{
    attend<PlainRow>(q, cache, tree_kv, mask, lengths, counts, page_table, out, lse, nodes, heads, words, page_stride, page_size,
           most_pages, scale, [=](const unsigned char* row) { return PlainNumbers{row, value_scale}; });
}

// ---- tensor cores ----
#ifndef KD_EXACT_ONLY      // float32 queries have v1 alone

#define KD_TILE_KERNEL(name, MT, GROUPS, Row)                                                                           \
    extern "C" __global__ void __launch_bounds__(256, 1)                                                                \
    name(const KD_QUERY* __restrict__ q, const unsigned char* __restrict__ cache, const unsigned char* __restrict__ tree_kv, \
         const unsigned* __restrict__ mask, const int* __restrict__ lengths, const int* __restrict__ counts,            \
         const int* __restrict__ page_table, KD_OUT* __restrict__ out, float* __restrict__ lse,                         \
         KD_PARTIAL* __restrict__ partial, float* __restrict__ partial_lse, int* __restrict__ table, int size, int nodes,    \
         int heads, int words, long long page_stride, int page_size, int most_pages, int chunk_units, int most_chunks,  \
         int least_units, float scale_log2, float value_scale)                                                          \
    {                                                                                                                   \
        DYN_SHARED(unsigned char, shared);                                                                              \
        constexpr int rows = Layout<MT, GROUPS, Row>::rows;                                                             \
        const Call<KD_QUERY, KD_OUT, Row> call = {                                                                      \
            q, cache, tree_kv, mask, page_table, out, lse, partial, partial_lse, reinterpret_cast<int4*>(table),        \
            {lengths, counts, size, nodes, heads, rows, ceil_div(nodes * heads, rows), chunk_units, most_chunks, least_units}, \
            words, page_size, most_pages, page_stride, scale_log2, value_scale};                                        \
        Tile<KD_QUERY, KD_OUT, MT, GROUPS, Row>(call, shared).run();                                                    \
    }
#ifndef KD_PLAIN_ONLY
KD_TILE_KERNEL(verify_attn_scaled_rows64, 2, 2, ScaledRow)
#endif
#ifndef KD_SCALED_ONLY
KD_TILE_KERNEL(verify_attn_plain_rows64, 2, 2, PlainRow)
#endif
#undef KD_TILE_KERNEL

#endif
