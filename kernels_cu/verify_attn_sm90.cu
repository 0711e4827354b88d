// verify_attn_sm90.cu: verify_attn (see verify_attn.cu) for sm_90a, by matrix instructions of warp groups.
//
// Algorithm  as verify_attn_rows64, with 64 rows a block and units of 48 KV rows; verify_attn_groups.cuh explains
// Inputs, Outputs   as verify_attn_rows64; partial results are joined by verify_attn_combine with tile_rows = 64
// Arch       sm_90a
// Launch     any grid (one block per multiprocessor is best), block 384, dynamic shared 232336
// Numerics   as verify_attn_rows64
// Bytes      as verify_attn_rows64
#include "verify_attn_groups.cuh"

extern "C" __global__ void __launch_bounds__(384, 1)
verify_attn_wgmma(const KD_QUERY* __restrict__ q, const KD_CACHE* __restrict__ cache, const KD_CACHE* __restrict__ tree_kv,
                  const unsigned* __restrict__ mask, const int* __restrict__ lengths, const int* __restrict__ counts,
                  const int* __restrict__ page_table, KD_OUT* __restrict__ out, float* __restrict__ lse,
                  KD_PARTIAL* __restrict__ partial, float* __restrict__ partial_lse, int* __restrict__ table, int size, int nodes,
                  int heads, int words, long long page_stride, int page_size, int most_pages, int chunk_units,
                  int most_chunks, int least_units, float scale_log2, float value_scale)
{
#ifdef __CUDACC_RTC__
    extern __shared__ __align__(1024) unsigned char shared[];
#else
    DYN_SHARED(unsigned char, shared);
#endif
    constexpr int rows = GroupLayout::rows;
    const Call<KD_QUERY, KD_OUT> call = {
        q, cache, tree_kv, mask, page_table, out, lse, partial, partial_lse, reinterpret_cast<int4*>(table),
        {lengths, counts, size, nodes, heads, rows, ceil_div(nodes * heads, rows), chunk_units, most_chunks, least_units},
        words, page_size, most_pages, page_stride, scale_log2, value_scale};
    Groups<KD_QUERY, KD_OUT>(call, shared).run();
}
