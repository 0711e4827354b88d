// verify_attn_widen.cu: KV rows of 8-bit floats (e4m3) as bfloat16 rows in scratch memory, for the kernels of verify_attn.
//
// Algorithm  every row that the call reads, in its place: row t of request b lies in `wide` and `wide_tree` where it lies in
//            `cache` and `tree_kv`, by the same page table.  A thread has one piece of eight numbers of KD_WIDEN_ROWS rows at
//            a time; pages that requests share are written more than once, with the same numbers
// Inputs     cache, tree_kv uint8, in rows of 656 (verify_attn_widen_scaled) or 576 (verify_attn_widen_plain); lengths, counts,
//            page_table as verify_attn.cu.  page_stride: rows from page to page, or from request to request
// Outputs    wide, wide_tree bfloat16, in rows of 576; rows that the call does not read are left alone
// Launch     any grid (x, b), block 288
// Numerics   scaled: number times scale, rounded once (exact for powers of two).  plain: the number without the scale of the
//            call, exactly.  NaN stays NaN
// Bytes      the rows read once and written at twice the size
#include "async_copy.cuh"
#include "verify_attn_rows.cuh"

#ifndef KD_WIDEN_ROWS
#define KD_WIDEN_ROWS 2   // rows of a thread that are under way together
#endif

constexpr int kd_pieces = kd_width / 8, kd_widen_threads = 4 * kd_pieces;

// Eight numbers as they lie in a row: 8-bit ones and their scale, or bfloat16 ones.
template <class Row>
__device__ __forceinline__ uint4 load_piece(const unsigned char* row, int piece)
{
    if (Row::scaled && piece >= KD_LATENT / 8) return *reinterpret_cast<const uint4*>(row + Row::rope + 16 * (piece - KD_LATENT / 8));
    const uint2 eight = *reinterpret_cast<const uint2*>(row + 8 * piece);
    if constexpr (!Row::scaled) return make_uint4(eight.x, eight.y, 0u, 0u);
    else return make_uint4(eight.x, eight.y, *reinterpret_cast<const unsigned*>(row + Row::scales + 4 * (piece / 16)), 0u);
}

template <class Row>
__device__ __forceinline__ uint4 widened(uint4 from, int piece)
{
    if (Row::scaled && piece >= KD_LATENT / 8) return from;
    uint4 to;
    if constexpr (Row::scaled) {
        const float scale = __uint_as_float(from.z);
        widen_scaled(from.x, scale, to.x, to.y), widen_scaled(from.y, scale, to.z, to.w);
    } else {
        widen_in_order(from.x, to.x, to.y), widen_in_order(from.y, to.z, to.w);
    }
    return to;
}

template <class Row>
__device__ __forceinline__ void widen_rows(const unsigned char* cache, const unsigned char* tree_kv, const int* lengths, const int* counts,
                                           const int* page_table, __nv_bfloat16* wide, __nv_bfloat16* wide_tree, int nodes,
                                           long long page_stride, int page_size, int most_pages)
{
    wait_for_predecessor();
    start_successor();
    const int b = blockIdx.y, real = counts ? min(max(counts[b], 0), nodes) : nodes, length = max(lengths[b], 0);
    const auto from = kv_rows(cache, tree_kv, page_table, page_stride * Row::length, page_size, most_pages, b, length, nodes, real, Row::length);
    const auto to = kv_rows<__nv_bfloat16>(wide, wide_tree, page_table, page_stride * kd_width, page_size, most_pages, b, length, nodes, real);
    const int piece = threadIdx.x % kd_pieces, stride = 4 * gridDim.x, total = real ? from.total : 0;   // no nodes: nothing is read
    for (int t = 4 * blockIdx.x + threadIdx.x / kd_pieces; t < total; t += KD_WIDEN_ROWS * stride) {
        uint4 eight[KD_WIDEN_ROWS], *at[KD_WIDEN_ROWS];
#pragma unroll
        for (int i = 0; i < KD_WIDEN_ROWS; ++i) {
            if (t + i * stride >= total) continue;
            eight[i] = load_piece<Row>(from.row(t + i * stride, Row::length), piece);
            at[i] = reinterpret_cast<uint4*>(const_cast<__nv_bfloat16*>(to.row(t + i * stride))) + piece;
        }
#pragma unroll
        for (int i = 0; i < KD_WIDEN_ROWS; ++i)
            if (t + i * stride < total) *at[i] = widened<Row>(eight[i], piece);
    }
}

extern "C" __global__ void __launch_bounds__(kd_widen_threads)
verify_attn_widen_scaled(const unsigned char* __restrict__ cache, const unsigned char* __restrict__ tree_kv,
                         const int* __restrict__ lengths, const int* __restrict__ counts, const int* __restrict__ page_table,
                         __nv_bfloat16* __restrict__ wide, __nv_bfloat16* __restrict__ wide_tree, int nodes, long long page_stride,
                         int page_size, int most_pages)
{
    widen_rows<ScaledRow>(cache, tree_kv, lengths, counts, page_table, wide, wide_tree, nodes, page_stride, page_size, most_pages);
}

extern "C" __global__ void __launch_bounds__(kd_widen_threads)
verify_attn_widen_plain(const unsigned char* __restrict__ cache, const unsigned char* __restrict__ tree_kv,
                        const int* __restrict__ lengths, const int* __restrict__ counts, const int* __restrict__ page_table,
                        __nv_bfloat16* __restrict__ wide, __nv_bfloat16* __restrict__ wide_tree, int nodes, long long page_stride,
                        int page_size, int most_pages)
{
    widen_rows<PlainRow>(cache, tree_kv, lengths, counts, page_table, wide, wide_tree, nodes, page_stride, page_size, most_pages);
}
