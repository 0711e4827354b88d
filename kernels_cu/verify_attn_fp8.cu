// verify_attn_fp8.cu: verify_attn (see verify_attn.cu) on KV rows of 8-bit floats (e4m3).
//
// Algorithm  as verify_attn.cu; rows are read as bytes and widened exactly where they are used (verify_attn_fp8.cuh)
//   verify_attn_scaled_*  rows of 656 bytes: 512 latent numbers, 4 float32 scales, 64 rotary numbers in bfloat16
//   verify_attn_plain_*   rows of 576 bytes: 512 latent and 64 rotary numbers, one scale of the call
//   *_v1, *_rows64, *_rows32, *_rows16 as in verify_attn.cu
// Inputs     cache, tree_kv uint8, in rows of 656 or 576; the others as verify_attn.cu.  value_scale: the scale of the
//            call (plain); v1 multiplies keys by it as well, the others find it in scale_log2
// Outputs    as verify_attn.cu; partial results are joined by its verify_attn_combine
// Launch     v1: grid (N * H, b), block 128.  rowsR: any grid, block 256, or 128 for a single copy of rows32, rows16;
//            dynamic shared Layout::bytes a copy
// Numerics   as verify_attn.cu against the dequantised rows: scales multiply float32 scores and weights, not keys
// Bytes      half of those of bfloat16 rows
#ifndef KD_STAGES
#define KD_STAGES 5       // Q passes through the ring: 64 rows of it need as much
#endif
#include "verify_attn_tile.cuh"

// ---- v1: the formula ----

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
        constexpr int rows = Layout<MT, GROUPS, Row>::rows, threads = GROUPS == 1 && KD_COPIES > 1 ? 128 : 0;           \
        const Call<KD_QUERY, KD_OUT, Row> call = {                                                                      \
            q, cache, tree_kv, mask, page_table, out, lse, partial, partial_lse, reinterpret_cast<int4*>(table),        \
            {lengths, counts, size, nodes, heads, rows, ceil_div(nodes * heads, rows), chunk_units, most_chunks, least_units, threads}, \
            words, page_size, most_pages, page_stride, scale_log2, value_scale};                                        \
        Tile<KD_QUERY, KD_OUT, MT, GROUPS, Row>(call, shared).run();                                                    \
    }
#ifndef KD_PLAIN_ONLY
KD_TILE_KERNEL(verify_attn_scaled_rows64, 2, 2, ScaledRow)
KD_TILE_KERNEL(verify_attn_scaled_rows32, 2, 1, ScaledRow)
KD_TILE_KERNEL(verify_attn_scaled_rows16, 1, 1, ScaledRow)
#endif
#ifndef KD_SCALED_ONLY
KD_TILE_KERNEL(verify_attn_plain_rows64, 2, 2, PlainRow)
KD_TILE_KERNEL(verify_attn_plain_rows32, 2, 1, PlainRow)
KD_TILE_KERNEL(verify_attn_plain_rows16, 1, 1, PlainRow)
#endif
#undef KD_TILE_KERNEL

#endif
