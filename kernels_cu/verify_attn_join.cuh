// verify_attn_join.cuh: joins the partial results of tiles that were cut, by many small items of work.
#ifndef KD_VERIFY_ATTN_JOIN_CUH
#define KD_VERIFY_ATTN_JOIN_CUH

#include "async_copy.cuh"
#include "verify_attn_kv.cuh"

// Eight neighbouring numbers, as they lie in memory until they are used.
template <class T>
struct Eight {
    uint4 words;

    __device__ __forceinline__ void load(const T* from) { words = *reinterpret_cast<const uint4*>(from); }
    __device__ __forceinline__ float operator[](int i) const
    {
        const unsigned pairs[4] = {words.x, words.y, words.z, words.w};
        return unpack_half<T>(pairs[i / 2], i % 2);
    }
};

template <>
struct Eight<float> {
    float numbers[8];

    __device__ __forceinline__ void load(const float* from)
    {
#pragma unroll
        for (int i = 0; i < 8; ++i) numbers[i] = from[i];
    }
    __device__ __forceinline__ float operator[](int i) const { return numbers[i]; }
};

struct TileRow {
    int tile, row;        // place of the tile in the table of pieces; row of it
};

// An item is `slice` columns of a row of `width`; `warps` warps of a block share it, and in a warp the lanes of equal
// columns: each takes every so many pieces, eight columns of them.  Sums in a fixed order.
// find(b, row) says in which tile a row (node * heads + head) lies; of a padding node: any tile of request b.
template <int width, class Partial, class Out, class Find>
__device__ __forceinline__ void join_pieces(const Partial* partial, const float* partial_lse, const int* table, const int* counts, Out* out,
                                            float* lse, int nodes, int heads, int tile_rows, int slice, int warps, Find find)
{
    constexpr int most_warps = 16, most_slice = 256, depth = 4;
    __shared__ float sums[most_warps][most_slice], totals[most_warps], maxima[most_warps];
    const int lane = lane_id(), warp = warp_id(), per = slice / 8, b = blockIdx.y, rows = nodes * heads;
    const int number = ((int)(blockIdx.x * blockDim.x / 32) + warp) / warps, in_item = warp % warps, slices = width / slice;
    const int row = number / slices, first_column = (number - row * slices) * slice, parts = warps * (32 / per);
    const bool real = row < rows && (!counts || row < min(max(counts[b], 0), nodes) * heads);
    wait_for_predecessor();
    start_successor();
    int4 note = {};
    TileRow where = {};
    if (row < rows) where = find(b, row), note = reinterpret_cast<const int4*>(table)[where.tile];
    const int first = note.x, pieces = real && note.y > 1 ? note.y : 0, distance = note.z;   // one: its block wrote the result
    const bool wanted = row < rows && (pieces || !real);
    if (warps == 1 && !wanted) return;                             // the whole warp
    const int tile_row = where.row;
    const long long at = (long long)b * rows + row;
    const auto place = [&](int i) { return (long long)(i ? first + distance * i - (distance - 1) : first) * tile_rows + tile_row; };
    const Partial* const columns = partial + first_column + lane % per * 8;
    float most = -KD_INFINITY, sum = 0.0f, o[8] = {}, log_sum[depth];
    Eight<Partial> x[depth] = {};
    const auto load = [&](int begin) {
#pragma unroll
        for (int k = 0; k < depth; ++k) {
            const int i = begin + lane / per + k * parts;
            log_sum[k] = -KD_INFINITY;
            if (i < pieces) log_sum[k] = partial_lse[place(i)], x[k].load(columns + place(i) * width);
        }
    };
    int begin = in_item * (32 / per);
    load(begin);
    const int leader = warp - in_item;                             // while those numbers are on their way
    for (int i = 32 * in_item + lane; i < pieces; i += 32 * warps) most = fmaxf(most, partial_lse[place(i)]);
    most = fmaxf(kd_least, warp_max(most));
    if (warps > 1) {
        if (lane == 0) maxima[warp] = most;
        __syncthreads();
        for (int w = 0; w < warps; ++w) most = fmaxf(most, maxima[leader + w]);
    }
    for (;;) {
#pragma unroll
        for (int k = 0; k < depth; ++k) {
            const float weight = fast_exp2(log_sum[k] - most);     // 0: the piece saw nothing, and its numbers are 0
            sum += weight;
#pragma unroll
            for (int j = 0; j < 8; ++j) o[j] = fmaf(weight, x[k][j], o[j]);
        }
        begin += depth * parts;
        if (begin >= pieces) break;                                // the same for the whole warp
        load(begin);
    }
    for (int apart = per; apart < 32; apart *= 2) {
        sum += __shfl_xor_sync(KD_FULL_MASK, sum, apart);
#pragma unroll
        for (int j = 0; j < 8; ++j) o[j] += __shfl_xor_sync(KD_FULL_MASK, o[j], apart);
    }
    if (warps == 1) {
        const float factor = reciprocal_or_zero(sum);
#pragma unroll
        for (int j = 0; j < 8; ++j) o[j] *= factor;
        if (wanted && lane < per) store_numbers(out + at * width + first_column + 8 * lane, o);
    } else {
        if (lane < per) {
#pragma unroll
            for (int j = 0; j < 8; j += 4) *reinterpret_cast<float4*>(&sums[warp][8 * lane + j]) = make_float4(o[j], o[j + 1], o[j + 2], o[j + 3]);
            if (lane == 0) totals[warp] = sum;
        }
        __syncthreads();
        sum = 0.0f;
#pragma unroll 4
        for (int w = 0; w < warps; ++w) sum += totals[leader + w];
        const float factor = reciprocal_or_zero(sum);
        for (int column = 32 * in_item + lane; wanted && column < slice; column += 32 * warps) {
            float total = 0.0f;
#pragma unroll 4
            for (int w = 0; w < warps; ++w) total += sums[leader + w][column];
            out[at * width + first_column + column] = from_float<Out>(total * factor);
        }
    }
    if (wanted && first_column + in_item + lane == 0) lse[at] = log_of_sum(most, sum) * 0.6931471805599453f;
}

#endif
