// verify_attn_combine.cuh: joins the partial results of tiles that were cut, see verify_attn_work.cuh.
#ifndef KD_VERIFY_ATTN_COMBINE_CUH
#define KD_VERIFY_ATTN_COMBINE_CUH

#include "verify_attn_kv.cuh"

struct TileRow {
    long long tile;       // its place in the table of pieces
    int row;              // in the tile
};

// A row has `width` numbers, a thread `each` neighbours of them: eight parts of width / each threads.  block_rows rows a
// block: 8 / block_rows parts share the pieces of a row, and part 0 of them adds their sums in ascending order.
// find(b, row, real) says in which tile a row (node * heads + head) lies; real: nodes of request b.
template <int width, int each, class Partial, class Out, class Find>
__device__ __forceinline__ void combine_rows(const Partial* partial, const float* partial_lse, const int* table, const int* counts,
                                             Out* out, float* lse, int nodes, int heads, int tile_rows, int block_rows, Find find)
{
    constexpr int threads = width / each;
    static_assert(threads % 32 == 0, "a warp has one row");
    __shared__ float sums[8][each][threads + 1], totals[8];
    const int lane = lane_id(), b = blockIdx.y, rows = nodes * heads, part = (int)threadIdx.x / threads, t = (int)threadIdx.x % threads;
    const int parts = 8 / block_rows, mine = part % parts, row = (int)blockIdx.x * block_rows + part / parts;
    const int real_nodes = counts ? min(max(counts[b], 0), nodes) : nodes;
    const bool real = row < rows && row < real_nodes * heads;
    int4 note = {};
    int tile_row = 0;
    if (real) {
        const TileRow where = find(b, row, real_nodes);
        note = reinterpret_cast<const int4*>(table)[where.tile];
        tile_row = where.row;
    }
    const int first = note.x, pieces = note.y, distance = note.z;
    auto place = [&](int i) { return (long long)(i ? first + distance * i - (distance - 1) : first) * tile_rows + tile_row; };
    float o[each] = {}, sum = 0.0f, most = -KD_INFINITY;
    if (pieces > 1) {
        for (int i = lane; i < pieces; i += 32) most = fmaxf(most, partial_lse[place(i)]);
        most = fmaxf(kd_least, warp_max(most));   // all NaN: their sums are to be seen
    }
    for (int begin = mine; begin < pieces && most > -KD_INFINITY; begin += 32 * parts) {
        const int at = begin + parts * lane, end = min(32, ceil_div(pieces - begin, parts));
        const float weights = at < pieces ? fast_exp2(partial_lse[place(at)] - most) : 0.0f;
#pragma unroll 4
        for (int i = 0; i < end; ++i) {                       // weight 0: the piece saw nothing, and its numbers are 0
            const float weight = __shfl_sync(KD_FULL_MASK, weights, i);
            float x[each];
            load_numbers(partial + place(begin + parts * i) * width + each * t, x);
            sum += weight;
#pragma unroll
            for (int j = 0; j < each; ++j) o[j] = fmaf(weight, x[j], o[j]);
        }
    }
    if (parts > 1) {
#pragma unroll
        for (int j = 0; j < each; ++j) sums[part][j][t] = o[j];
        if (t == 0) totals[part] = sum;
        __syncthreads();
        for (int i = 1; mine == 0 && i < parts; ++i) {
            sum += totals[part + i];
#pragma unroll
            for (int j = 0; j < each; ++j) o[j] += sums[part + i][j][t];
        }
    }
    if (mine != 0 || row >= rows || (real && pieces <= 1)) return;   // one piece: its block wrote the result
    const long long at = (long long)b * rows + row;
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
    for (int j = 0; j < each; ++j) o[j] *= factor;
    store_numbers(out + at * width + each * t, o);
    if (t == 0) lse[at] = log_of_sum(most, sum) * 0.6931471805599453f;
}

#endif
