// verify_attn_fp8_sm90.cu: verify_attn on 8-bit rows (see verify_attn_fp8.cu) for sm_90a, by matrix instructions of warp groups.
//
// Algorithm  as verify_attn_wgmma; group 2 widens the rows on their way into the ring (verify_attn_group2_fp8.cuh)
//   verify_attn_plain_wgmma   rows of 576 bytes, exactly
//   verify_attn_scaled_wgmma  rows of 656 bytes, numbers times their scale rounded to bfloat16: exact if scales are powers of two
// Inputs, Outputs   as verify_attn_fp8.cu; partial results are joined by verify_attn_combine with tile_rows = 64
// Arch       sm_90a
// Launch     any grid (one block per multiprocessor is best), block 384, dynamic shared 232336
// Numerics   as verify_attn_fp8.cu, but for scales that are no powers of two
// Bytes      as verify_attn_fp8.cu
#include "verify_attn_groups.cuh"

static_assert(GroupLayout::bytes == 232336, "the launch line above says so");

#define KD_GROUPS_KERNEL(name, Row)                                                                                     \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                \
    name(const KD_QUERY* __restrict__ q, const unsigned char* __restrict__ cache, const unsigned char* __restrict__ tree_kv, \
         const unsigned* __restrict__ mask, const int* __restrict__ lengths, const int* __restrict__ counts,            \
         const int* __restrict__ page_table, KD_OUT* __restrict__ out, float* __restrict__ lse,                         \
         KD_PARTIAL* __restrict__ partial, float* __restrict__ partial_lse, int* __restrict__ table, int size, int nodes,    \
         int heads, int words, long long page_stride, int page_size, int most_pages, int chunk_units, int most_chunks,  \
         int least_units, float scale_log2, float value_scale)                                                          \
    {                                                                                                                   \
        KD_SWIZZLED_SHARED(shared);                                                                                     \
        constexpr int rows = GroupLayout::rows;                                                                         \
        const Call<KD_QUERY, KD_OUT, Row> call = {                                                                      \
            q, cache, tree_kv, mask, page_table, out, lse, partial, partial_lse, reinterpret_cast<int4*>(table),        \
            {lengths, counts, size, nodes, heads, rows, ceil_div(nodes * heads, rows), chunk_units, most_chunks, least_units, 0}, \
            words, page_size, most_pages, page_stride, scale_log2, value_scale};                                        \
        Groups<KD_QUERY, KD_OUT, Row>(call, shared).run();                                                              \
    }
#ifdef __CUDACC_RTC__
#define KD_SWIZZLED_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]
#else
#define KD_SWIZZLED_SHARED(name) DYN_SHARED(unsigned char, name)
#endif
KD_GROUPS_KERNEL(verify_attn_plain_wgmma, PlainRow)
KD_GROUPS_KERNEL(verify_attn_scaled_wgmma, ScaledRow)
#undef KD_GROUPS_KERNEL
#undef KD_SWIZZLED_SHARED
