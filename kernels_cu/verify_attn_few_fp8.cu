// verify_attn_few_fp8.cu: verify_attn (see verify_attn.cu) on KV rows of 8-bit floats for up to 32 query rows, bound by memory.
//
// Algorithm  as verify_attn_few.cu; rows stay 8-bit until a warp widens what it has read (verify_attn_few_fp8.cuh)
// Inputs, Outputs   as verify_attn_fp8.cu; partial results are joined by verify_attn_combine with tile_rows = 8, 16, 32
// Launch     any grid (one block per multiprocessor is best), block 128, dynamic shared 85016
//            (with KD_SLOTS 16: block 256 and FewLayout::bytes)
// Numerics   as verify_attn_fp8.cu
// Bytes      the KV rows once per tile of rows, q once a block, out once
#ifndef KD_SLOTS
#define KD_SLOTS 8
#endif
#if !defined(KD_FETCH) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ / 100 == 10
#define KD_FETCH 0        // asking ahead costs a register too many on sm_100
#endif
#include "verify_attn_few.cuh"

#define KD_FEW_KERNEL(name, GROUPS, Row)                                                                                \
    extern "C" __global__ void __launch_bounds__(FewLayout<GROUPS, Row>::threads, 1)                                    \
    name(const KD_QUERY* __restrict__ q, const unsigned char* __restrict__ cache, const unsigned char* __restrict__ tree_kv, \
         const unsigned* __restrict__ mask, const int* __restrict__ lengths, const int* __restrict__ counts,            \
         const int* __restrict__ page_table, KD_OUT* __restrict__ out, float* __restrict__ lse,                         \
         KD_PARTIAL* __restrict__ partial, float* __restrict__ partial_lse, int* __restrict__ table, int size, int nodes,    \
         int heads, int words, long long page_stride, int page_size, int most_pages, int chunk_units, int most_chunks,  \
         int least_units, float scale_log2, float value_scale)                                                          \
    {                                                                                                                   \
        DYN_SHARED(unsigned char, shared);                                                                              \
        constexpr int rows = FewLayout<GROUPS, Row>::rows;                                                              \
        const Call<KD_QUERY, KD_OUT, Row> call = {                                                                      \
            q, cache, tree_kv, mask, page_table, out, lse, partial, partial_lse, reinterpret_cast<int4*>(table),        \
            {lengths, counts, size, nodes, heads, rows, ceil_div(nodes * heads, rows), chunk_units, most_chunks, least_units}, \
            words, page_size, most_pages, page_stride, scale_log2, value_scale};                                        \
        Few<KD_QUERY, KD_OUT, GROUPS, Row>(call, shared).run();                                                         \
    }
#ifndef KD_PLAIN_ONLY
KD_FEW_KERNEL(verify_attn_scaled_few8, 1, ScaledRow)
KD_FEW_KERNEL(verify_attn_scaled_few16, 2, ScaledRow)
KD_FEW_KERNEL(verify_attn_scaled_few32, 4, ScaledRow)
#endif
#ifndef KD_SCALED_ONLY
KD_FEW_KERNEL(verify_attn_plain_few8, 1, PlainRow)
KD_FEW_KERNEL(verify_attn_plain_few16, 2, PlainRow)
KD_FEW_KERNEL(verify_attn_plain_few32, 4, PlainRow)
#endif
#undef KD_FEW_KERNEL
