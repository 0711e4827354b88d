// verify_attn.cu: what does every tree node read from the prefix and from its ancestors?  Absorbed MLA attention.
//
// Algorithm  rows = (node, head) pairs of a request; all share one KV row per position.  Online softmax over KV rows.
//   verify_attn_v1      one block a row, float32 arithmetic, reads like the formula; the exact mode of float32 inputs
//   verify_attn_rows64  tensor cores, 64 rows a block (verify_attn_tile.cuh); few rows: verify_attn_few.cu
//   verify_attn_combine joins the partial results of tiles that were cut (verify_attn_work.cuh)
// Inputs     q        (b, N, H, 576)  KD_QUERY      cache (b, S, 576) or (pages, page_size, 576) with page_table
//            tree_kv  (b, N, 576) or null: node i is position lengths[b] + i of the cache
//            mask     (b, N, words) uint32, words = ceil(N / 32); bit j of row i: node i sees node j
//            lengths, counts (b) int32; counts null: all N nodes are real; page_table (b, most_pages) int32 or null
// Outputs    out      (b, N, H, 512)  KD_OUT        lse   (b, N, H) float32, natural logarithm
//            rows from counts[b] on, and rows that see nothing: 0 and -inf (the combining kernel writes the former)
//            partial (slots, tile_rows, 512) KD_PARTIAL, partial_lse (slots, tile_rows) float32, table (b, tiles, 4)
//            int32: scratch
// Launch     v1: grid (N * H, b), block 128.  rows64: any grid (one block per SM is best), block 256, dynamic
//            shared Layout::bytes.  combine: grid (N * H * 512 / slice * warps * 32 / block, b),
//            block 256 or, for more than 8 warps an item, 512
// Numerics   scores and sums float32, weights rounded to KD_QUERY, true -inf for what is masked.  Fixed order of
//            sums: bit-identical repeats; with chunk_units > 0 a row does not depend on N or on other requests
// Bytes      the KV rows once per tile of rows (from L2 mostly), q once, out once
#include "verify_attn_formula.cuh"
#include "verify_attn_join.cuh"
#include "verify_attn_tile.cuh"

// ---- v1: the formula ----

extern "C" __global__ void __launch_bounds__(128)
verify_attn_v1(const KD_QUERY* __restrict__ q, const KD_CACHE* __restrict__ cache, const KD_CACHE* __restrict__ tree_kv,
               const unsigned* __restrict__ mask, const int* __restrict__ lengths, const int* __restrict__ counts,
               const int* __restrict__ page_table, KD_OUT* __restrict__ out, float* __restrict__ lse, int nodes, int heads,
               int words, long long page_stride, int page_size, int most_pages, float scale)
{
    const int row = blockIdx.x, node = row / heads, b = blockIdx.y;
    const int real = counts ? min(max(counts[b], 0), nodes) : nodes, length = max(lengths[b], 0);
    const long long at = (long long)b * nodes * heads + row;
    const KvRows<KD_CACHE> kv = kv_rows(cache, tree_kv, page_table, page_stride, page_size, most_pages, b, length, nodes, real);
    const unsigned* seen_words = mask + ((long long)b * nodes + node) * words;
    const auto row_at = [&](int t) { return kv.row(t); };
    attend_row<kd_width, KD_LATENT>(q + at * kd_width, node < real ? kv.total : 0, length, row_at, row_at, seen_words, words, scale,
                                    out + at * KD_LATENT, lse + at);
}

// ---- tensor cores ----
#ifndef KD_EXACT_ONLY      // float32 inputs have v1 alone

#define KD_TILE_KERNEL(name, MT, GROUPS)                                                                                \
    extern "C" __global__ void __launch_bounds__(256, 1)                                                                \
    name(const KD_QUERY* __restrict__ q, const KD_CACHE* __restrict__ cache, const KD_CACHE* __restrict__ tree_kv,      \
         const unsigned* __restrict__ mask, const int* __restrict__ lengths, const int* __restrict__ counts,            \
         const int* __restrict__ page_table, KD_OUT* __restrict__ out, float* __restrict__ lse,                         \
         KD_PARTIAL* __restrict__ partial, float* __restrict__ partial_lse, int* __restrict__ table, int size, int nodes,    \
         int heads, int words, long long page_stride, int page_size, int most_pages, int chunk_units, int most_chunks,  \
         int least_units, float scale_log2, float value_scale)                                                          \
    {                                                                                                                   \
        DYN_SHARED(unsigned char, shared);                                                                              \
        constexpr int rows = Layout<MT, GROUPS>::rows;                                                                  \
        const Call<KD_QUERY, KD_OUT> call = {                                                                           \
            q, cache, tree_kv, mask, page_table, out, lse, partial, partial_lse, reinterpret_cast<int4*>(table),        \
            {lengths, counts, size, nodes, heads, rows, ceil_div(nodes * heads, rows), chunk_units, most_chunks, least_units}, \
            words, page_size, most_pages, page_stride, scale_log2, value_scale};                                        \
        Tile<KD_QUERY, KD_OUT, MT, GROUPS>(call, shared).run();                                                         \
    }
KD_TILE_KERNEL(verify_attn_rows64, 2, 2)
#undef KD_TILE_KERNEL

#endif

// ---- partial results ----

extern "C" __global__ void __launch_bounds__(512, sizeof(KD_PARTIAL) > 2 ? 1 : 2)   // float32: twice the words
verify_attn_combine(const KD_PARTIAL* __restrict__ partial, const float* __restrict__ partial_lse, const int* __restrict__ table,
                    const int* __restrict__ counts, KD_OUT* __restrict__ out, float* __restrict__ lse, int nodes, int heads,
                    int tile_rows, int slice, int warps)
{
    const int tiles = ceil_div(nodes * heads, tile_rows);
    join_pieces<KD_LATENT>(partial, partial_lse, table, counts, out, lse, nodes, heads, tile_rows, slice, warps,
                           [=](int b, int row) { return TileRow{b * tiles + row / tile_rows, row % tile_rows}; });
}
