// verify_attn_gqa_sm90.cu: verify_attn_gqa (see verify_attn_gqa.cu) for sm_90a, by matrix instructions of warp groups.
//
// Algorithm  as verify_attn_gqa_rows64, in units of 64 KV rows; verify_attn_heads_groups.cuh explains
//   verify_attn_gqa_wgmma64    64 rows a block, two blocks a multiprocessor
//   verify_attn_gqa_wgmma128   128 rows;  _wgmma192   192 rows
// Inputs, Outputs   as verify_attn_gqa_rows64; partial results are joined by verify_attn_gqa_combine
// Arch       sm_90a
// Launch     wgmma64: any grid, block 256, dynamic shared HeadGroupLayout::bytes
//            wgmma128: any grid, block 384, dynamic shared HeadGroupLayout::bytes
//            wgmma192: any grid, block 512, dynamic shared HeadGroupLayout::bytes
// Numerics   as verify_attn_gqa_rows64
// Bytes      as verify_attn_gqa_rows64
#ifndef KD_UNIT
#define KD_UNIT 64       // KV rows of one step: two mask words and one tile of matrix instructions
#endif
#ifndef KD_SNAP
#define KD_SNAP 1
#endif
#ifndef KD_NARROW
#define KD_NARROW 0       // 1 with KD_CACHE "unsigned char": keys and values are 8-bit floats
#endif
#include "verify_attn_heads_groups.cuh"

static_assert(KD_NARROW == (sizeof(KD_CACHE) == 1), "KD_NARROW 1 goes with KD_CACHE \"unsigned char\"");

#define KD_GROUPS_KERNEL(name, GROUPS, BLOCKS)                                                                        \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), BLOCKS)                                          \
    name(const KD_QUERY* __restrict__ q, const KD_CACHE* __restrict__ k_cache, const KD_CACHE* __restrict__ v_cache,  \
         const KD_CACHE* __restrict__ tree_k, const KD_CACHE* __restrict__ tree_v, const unsigned* __restrict__ mask, \
         const int* __restrict__ lengths, const int* __restrict__ counts, const int* __restrict__ page_table,         \
         KD_OUT* __restrict__ out, float* __restrict__ lse, KD_PARTIAL* __restrict__ partial,                         \
         float* __restrict__ partial_lse, int* __restrict__ table, int size, int nodes, int group, int kv_heads,      \
         int words, long long page_stride, int width, int value_at, int page_size, int most_pages, int chunk_units,   \
         int most_chunks, int least_units, float scale_log2, float value_scale)                                       \
    {                                                                                                                 \
        KD_SWIZZLED_SHARED(shared);                                                                                   \
        constexpr int rows = HeadGroupLayout<GROUPS>::rows;                                                           \
        const HeadCall<KD_QUERY, KD_OUT, KD_CACHE> call = {                                                           \
            {q, k_cache, tree_k, mask, page_table, out, lse, partial, partial_lse, reinterpret_cast<int4*>(table),    \
             {lengths, counts, size, nodes, group, rows, kv_heads * ceil_div(nodes * group, rows), chunk_units,       \
              most_chunks, least_units, kv_heads},                                                                    \
             words, page_size, most_pages, page_stride, scale_log2, value_scale},                                     \
            v_cache + value_at, tree_k ? tree_v + value_at : nullptr, width};                                         \
        HeadGroups<KD_QUERY, KD_OUT, KD_CACHE, GROUPS>(call, shared).run();                                           \
    }
#ifdef __CUDACC_RTC__
#define KD_SWIZZLED_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]
#else
#define KD_SWIZZLED_SHARED(name) DYN_SHARED(unsigned char, name)
#endif
KD_GROUPS_KERNEL(verify_attn_gqa_wgmma64, 1, 2)
#if !KD_NARROW    // widening beside three groups would want more registers than are left
KD_GROUPS_KERNEL(verify_attn_gqa_wgmma192, 3, 1)
#endif
KD_GROUPS_KERNEL(verify_attn_gqa_wgmma128, 2, 1)
#undef KD_GROUPS_KERNEL
