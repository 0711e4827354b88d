// verify_attn_few.cu: verify_attn (see verify_attn.cu) for up to 32 query rows, bound by memory.
//
// Algorithm  tiles of 8, 16 or 32 rows; verify_attn_few.cuh explains.  KV rows pass once, at the speed of a copy
// Inputs, Outputs   as verify_attn_rows64; partial results are joined by verify_attn_combine with tile_rows = 8, 16, 32
// Launch     any grid (one block per multiprocessor is best), block 128, dynamic shared 93928
//            (with KD_SLOTS 8: FewLayout::bytes; with 12: block 192 or, for 16 and 32 rows, 256)
// Numerics   as verify_attn_rows64
// Bytes      the KV rows once per tile of rows, q once a block, out once
#include "verify_attn_few.cuh"

#define KD_FEW_KERNEL(name, GROUPS)                                                                                     \
    extern "C" __global__ void __launch_bounds__(FewLayout<GROUPS>::threads, 1)                                                  \
    name(const KD_QUERY* __restrict__ q, const KD_CACHE* __restrict__ cache, const KD_CACHE* __restrict__ tree_kv,      \
         const unsigned* __restrict__ mask, const int* __restrict__ lengths, const int* __restrict__ counts,            \
         const int* __restrict__ page_table, KD_OUT* __restrict__ out, float* __restrict__ lse,                         \
         KD_PARTIAL* __restrict__ partial, float* __restrict__ partial_lse, int* __restrict__ table, int size, int nodes,    \
         int heads, int words, long long page_stride, int page_size, int most_pages, int chunk_units, int most_chunks,  \
         int least_units, float scale_log2, float value_scale)                                                          \
    {                                                                                                                   \
        DYN_SHARED(unsigned char, shared);                                                                              \
        constexpr int rows = FewLayout<GROUPS>::rows;                                                                   \
        const Call<KD_QUERY, KD_OUT> call = {                                                                           \
            q, cache, tree_kv, mask, page_table, out, lse, partial, partial_lse, reinterpret_cast<int4*>(table),        \
            {lengths, counts, size, nodes, heads, rows, ceil_div(nodes * heads, rows), chunk_units, most_chunks, least_units}, \
            words, page_size, most_pages, page_stride, scale_log2, value_scale};                                        \
        Few<KD_QUERY, KD_OUT, GROUPS>(call, shared).run();                                                              \
    }
KD_FEW_KERNEL(verify_attn_few8, 1)
KD_FEW_KERNEL(verify_attn_few16, 2)
KD_FEW_KERNEL(verify_attn_few32, 4)
#undef KD_FEW_KERNEL
