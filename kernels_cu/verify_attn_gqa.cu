// verify_attn_gqa.cu: verify_attn for grouped-query models: what does every tree node read, H / kv_heads heads a KV head?
//
// Algorithm  as verify_attn.cu; rows = (node, head) pairs of a request and a KV head, which share its keys and values
//   verify_attn_gqa_v1       one block a row, float32 arithmetic; the exact mode of float32 inputs
//   verify_attn_gqa_rows64   tensor cores, 64 rows a block (verify_attn_heads.cuh); _rows128, _rows48, ... _rows16
//   verify_attn_gqa_combine  joins the partial results of tiles that were cut (verify_attn_work.cuh)
// Inputs     q        (b, N, H, D)  KD_QUERY, H = kv_heads * group, D = KD_HEAD
//            k_cache, v_cache KD_CACHE: KD_QUERY, or unsigned char: e4m3 numbers, times value_scale the values; the
//            scale of keys is in scale
//            k_cache, v_cache (b, S, kv_heads, D) or (pages, page_size, kv_heads, D) with page_table
//            tree_k, tree_v   (b, N, kv_heads, D) or null: node i is position lengths[b] + i of the caches
//            mask, lengths, counts, page_table as in verify_attn.cu
//            width: numbers from one row of a cache to the next; value_at: of the first value behind v_cache, tree_v.
//            Keys and values apart: kv_heads * D and 0.  In one row, [keys | values]: twice that, kv_heads * D
// Outputs    out      (b, N, H, D)  KD_OUT          lse   (b, N, H) float32, natural logarithm
//            rows from counts[b] on, and rows that see nothing: 0 and -inf (the combining kernel writes the former)
//            partial (slots, tile_rows, D) KD_PARTIAL, partial_lse (slots, tile_rows) float32, table (b, tiles, 4) int32,
//            tiles = kv_heads * ceil(N * group / tile_rows): scratch
// Launch     v1: grid (N * H, b), block 128
//            rows128: any grid, block 128, dynamic shared HeadLayout::bytes
//            rows64: any grid, block 128, dynamic shared HeadLayout::bytes
//            rows48: any grid, block 96, dynamic shared HeadLayout::bytes
//            rows32: any grid, block 64, dynamic shared HeadLayout::bytes
//            rows16: any grid, block 32, dynamic shared HeadLayout::bytes
//            combine: grid (N * H * D / slice * warps / (block / 32), b), block 32 * max(warps, 8)
// Numerics   as verify_attn.cu
// Bytes      keys and values once per tile of rows (from L2 mostly), q once, out once
#ifndef KD_UNIT
#define KD_UNIT 32
#endif
#ifndef KD_NARROW
#define KD_NARROW 0       // 1 with KD_CACHE "unsigned char": keys and values are 8-bit floats
#endif
#include "verify_attn_formula.cuh"
#include "verify_attn_heads.cuh"
#include "verify_attn_join.cuh"

// Elements of a row as numbers that can be read one by one.
__device__ __forceinline__ PlainNumbers numbers_of(const unsigned char* row, float scale) { return {row, scale}; }
template <class T> __device__ __forceinline__ const T* numbers_of(const T* row, float) { return row; }

extern "C" __global__ void __launch_bounds__(128, 8)
verify_attn_gqa_v1(const KD_QUERY* __restrict__ q, const KD_CACHE* __restrict__ k_cache, const KD_CACHE* __restrict__ v_cache,
                   const KD_CACHE* __restrict__ tree_k, const KD_CACHE* __restrict__ tree_v, const unsigned* __restrict__ mask,
                   const int* __restrict__ lengths, const int* __restrict__ counts, const int* __restrict__ page_table,
                   KD_OUT* __restrict__ out, float* __restrict__ lse, int nodes, int group, int kv_heads, int words,
                   long long page_stride, int width, int value_at, int page_size, int most_pages, float scale, float value_scale)
{
    const int heads = group * kv_heads, row = blockIdx.x, node = row / heads, b = blockIdx.y;
    const int real = counts ? min(max(counts[b], 0), nodes) : nodes, length = max(lengths[b], 0);
    const int first = row % heads / group * KD_HEAD;
    const long long at = (long long)b * nodes * heads + row;
    const KvRows<KD_CACHE> rows = kv_rows(k_cache, tree_k, page_table, page_stride, page_size, most_pages, b, length, nodes, real, width);
    const auto value_of = [=](int t) {
        const KD_CACHE* key = rows.row(t, width);
        return numbers_of((rows.tree && t >= length ? tree_v + (key - tree_k) : v_cache + (key - k_cache)) + value_at + first, value_scale);
    };
    attend_row<KD_HEAD, KD_HEAD>(
        q + at * KD_HEAD, node < real ? rows.total : 0, length, [=](int t) { return numbers_of(rows.row(t, width) + first, 1.0f); }, value_of,
        mask + ((long long)b * nodes + node) * words, words, scale, out + at * KD_HEAD, lse + at);
}

// ---- tensor cores ----
#ifndef KD_EXACT_ONLY      // float32 inputs have v1 alone

static_assert(KD_NARROW == (sizeof(KD_CACHE) == 1), "KD_NARROW 1 goes with KD_CACHE \"unsigned char\"");

#define KD_HEADS_KERNEL(name, MT, WARPS, BLOCKS)                                                                      \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)                                                  \
    name(const KD_QUERY* __restrict__ q, const KD_CACHE* __restrict__ k_cache, const KD_CACHE* __restrict__ v_cache,  \
         const KD_CACHE* __restrict__ tree_k, const KD_CACHE* __restrict__ tree_v, const unsigned* __restrict__ mask, \
         const int* __restrict__ lengths, const int* __restrict__ counts, const int* __restrict__ page_table,         \
         KD_OUT* __restrict__ out, float* __restrict__ lse, KD_PARTIAL* __restrict__ partial,                         \
         float* __restrict__ partial_lse, int* __restrict__ table, int size, int nodes, int group, int kv_heads,      \
         int words, long long page_stride, int width, int value_at, int page_size, int most_pages, int chunk_units,   \
         int most_chunks, int least_units, float scale_log2, float value_scale)                                       \
    {                                                                                                                 \
        DYN_SHARED(unsigned char, shared);                                                                            \
        constexpr int rows = HeadLayout<MT, WARPS>::rows;                                                             \
        const HeadCall<KD_QUERY, KD_OUT, KD_CACHE> call = {                                                           \
            {q, k_cache, tree_k, mask, page_table, out, lse, partial, partial_lse, reinterpret_cast<int4*>(table),    \
             {lengths, counts, size, nodes, group, rows, kv_heads * ceil_div(nodes * group, rows), chunk_units,       \
              most_chunks, least_units, kv_heads},                                                                    \
             words, page_size, most_pages, page_stride, scale_log2, value_scale},                                     \
            v_cache + value_at, tree_k ? tree_v + value_at : nullptr, width};                                         \
        HeadTile<KD_QUERY, KD_OUT, KD_CACHE, MT, WARPS>(call, shared).run();                                          \
    }
// 8-bit rows pass through registers, float32 results are twice as many words: fewer blocks have more registers
constexpr bool kd_tight = KD_NARROW || sizeof(KD_OUT) > 2;
KD_HEADS_KERNEL(verify_attn_gqa_rows128, 2, 4, 2)
KD_HEADS_KERNEL(verify_attn_gqa_rows64, 1, 4, kd_tight ? 2 : 3)
#if KD_UNIT == 32
KD_HEADS_KERNEL(verify_attn_gqa_rows48, 1, 3, kd_tight ? 2 : 4)
#endif
KD_HEADS_KERNEL(verify_attn_gqa_rows32, 1, 2, kd_tight ? 4 : 5)
KD_HEADS_KERNEL(verify_attn_gqa_rows16, 1, 1, 8)
#undef KD_HEADS_KERNEL

#endif

// ---- partial results ----

extern "C" __global__ void __launch_bounds__(512, sizeof(KD_PARTIAL) > 2 ? 1 : 2)   // float32: twice the words
verify_attn_gqa_combine(const KD_PARTIAL* __restrict__ partial, const float* __restrict__ partial_lse,
                        const int* __restrict__ table, const int* __restrict__ counts, KD_OUT* __restrict__ out,
                        float* __restrict__ lse, int nodes, int group, int kv_heads, int tile_rows, int slice, int warps)
{
    const int heads = group * kv_heads, tiles = kv_heads * ceil_div(nodes * group, tile_rows);
    const auto find = [=](int b, int row) {          // tiles of a KV head follow those of the one before: real ones only
        const int real = counts ? min(max(counts[b], 0), nodes) : nodes;
        const int node = row / heads, head = row - node * heads, kv_head = head / group, in_head = node * group + head - kv_head * group;
        return TileRow{b * tiles + kv_head * ceil_div(real * group, tile_rows) + in_head / tile_rows, in_head % tile_rows};
    };
    join_pieces<KD_HEAD>(partial, partial_lse, table, counts, out, lse, nodes, heads, tile_rows, slice, warps, find);
}
