// verify_attn.cu: what does every tree node read from the prefix and from its ancestors?  Absorbed MLA attention.
//
// Algorithm  rows = (node, head) pairs of a request; all share one KV row per position.  Online softmax over KV rows.
//   verify_attn_v1      one block a row, float32 arithmetic, reads like the formula; the exact mode of float32 inputs
//   verify_attn_rows64  tensor cores, 64 rows a block (verify_attn_tile.cuh); _rows32, _rows16 for few rows
//   verify_attn_combine joins the partial results of tiles that were cut (verify_attn_work.cuh)
// Inputs     q        (b, N, H, 576)  KD_QUERY      cache (b, S, 576) or (pages, page_size, 576) with page_table
//            tree_kv  (b, N, 576) or null: node i is position lengths[b] + i of the cache
//            mask     (b, N, words) uint32, words = ceil(N / 32); bit j of row i: node i sees node j
//            lengths, counts (b) int32; counts null: all N nodes are real; page_table (b, most_pages) int32 or null
// Outputs    out      (b, N, H, 512)  KD_OUT        lse   (b, N, H) float32, natural logarithm
//            rows from counts[b] on, and rows that see nothing: 0 and -inf (the combining kernel writes the former)
//            partial (slots, tile_rows, 512) KD_PARTIAL, partial_lse (slots, tile_rows) float32, table (b, tiles, 4)
//            int32: scratch
// Launch     v1: grid (N * H, b), block 128.  rowsR: any grid (one block per SM and per 128 threads there is best),
//            block 256, or 128 for a single copy of rows32, rows16; dynamic shared
//            Layout::bytes a copy.  combine: grid (N * H / block_rows, b), block 512
// Numerics   scores and sums float32, weights rounded to KD_QUERY, true -inf for what is masked.  Fixed order of
//            sums: bit-identical repeats; with chunk_units > 0 a row does not depend on N or on other requests
// Bytes      the KV rows once per tile of rows (from L2 mostly), q once, out once
#include "verify_attn_tile.cuh"

// ---- v1: the formula ----

// Dot product of `a` in shared memory with a row in global memory; every lane of the warp gets the sum.
template <class T>
__device__ __forceinline__ float warp_dot(const float* a, const T* row)
{
    float sum = 0.0f;
    for (int i = lane_id(); i < kd_width; i += 32) sum = fmaf(a[i], to_float(row[i]), sum);
    return warp_sum(sum);
}

extern "C" __global__ void __launch_bounds__(128)
verify_attn_v1(const KD_QUERY* __restrict__ q, const KD_CACHE* __restrict__ cache, const KD_CACHE* __restrict__ tree_kv,
               const unsigned* __restrict__ mask, const int* __restrict__ lengths, const int* __restrict__ counts,
               const int* __restrict__ page_table, KD_OUT* __restrict__ out, float* __restrict__ lse, int nodes, int heads,
               int words, long long page_stride, int page_size, int most_pages, float scale)
{
    constexpr int threads = 128, each = KD_LATENT / threads, step = 32;
    __shared__ float q_row[kd_width], weight[step];
    const int row = blockIdx.x, node = row / heads, b = blockIdx.y, t = threadIdx.x;
    const int real = counts ? min(max(counts[b], 0), nodes) : nodes, length = max(lengths[b], 0);
    const long long at = (long long)b * nodes * heads + row;
    const KvRows<KD_CACHE> kv = kv_rows(cache, tree_kv, page_table, page_stride, page_size, most_pages, b, length, nodes, real);
    const unsigned* seen_words = mask + ((long long)b * nodes + node) * words;
    for (int i = t; i < kd_width; i += threads) q_row[i] = node < real ? to_float(q[at * kd_width + i]) : 0.0f;
    float most = -KD_INFINITY, sum = 0.0f, o[each] = {};
    for (int begin = 0; node < real && begin < kv.total; begin += step) {
        __syncthreads();
        for (int j = t / 32; j < step; j += threads / 32) {   // one warp a KV row
            const bool seen = visible_rows(seen_words, words, begin, length, kv.total) >> j & 1u;
            const float score = seen ? scale * warp_dot(q_row, kv.row(begin + j)) : -KD_INFINITY;
            if (lane_id() == 0) weight[j] = score;
        }
        __syncthreads();
        float now = most;
        for (int j = 0; j < step; ++j) now = fmaxf(now, weight[j]);
        if (now == -KD_INFINITY) continue;                    // nothing seen yet
        const float keep = expf(most - now);
        most = now;
        float step_sum = 0.0f, step_o[each] = {};             // sums of sums: thousands of terms, each step exact enough
        for (int j = 0; j < step; ++j) {
            if (weight[j] == -KD_INFINITY) continue;          // never read what is not seen: it may hold anything
            const float p = expf(weight[j] - now);
            const KD_CACHE* value = kv.row(begin + j);
            step_sum += p;
            for (int e = 0; e < each; ++e) step_o[e] = fmaf(p, to_float(value[t + threads * e]), step_o[e]);
        }
        sum = sum * keep + step_sum;
        for (int e = 0; e < each; ++e) o[e] = o[e] * keep + step_o[e];
    }
    for (int e = 0; e < each; ++e) out[at * KD_LATENT + t + threads * e] = from_float<KD_OUT>(sum > 0.0f ? o[e] / sum : 0.0f);
    if (t == 0) lse[at] = sum > 0.0f ? most + logf(sum) : -KD_INFINITY;
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
         int least_units, float scale_log2)                                                                             \
    {                                                                                                                   \
        DYN_SHARED(unsigned char, shared);                                                                              \
        constexpr int rows = Layout<MT, GROUPS>::rows, threads = GROUPS == 1 && KD_COPIES > 1 ? 128 : 0;                 \
        const Call<KD_QUERY, KD_OUT> call = {                                                                           \
            q, cache, tree_kv, mask, page_table, out, lse, partial, partial_lse, reinterpret_cast<int4*>(table),        \
            {lengths, counts, size, nodes, heads, rows, ceil_div(nodes * heads, rows), chunk_units, most_chunks, least_units, threads}, \
            words, page_size, most_pages, page_stride, scale_log2};                                                     \
        Tile<KD_QUERY, KD_OUT, MT, GROUPS>(call, shared).run();                                                         \
    }
KD_TILE_KERNEL(verify_attn_rows64, 2, 2)
KD_TILE_KERNEL(verify_attn_rows32, 2, 1)
KD_TILE_KERNEL(verify_attn_rows16, 1, 1)
#undef KD_TILE_KERNEL

#endif

// ---- partial results ----

// Eight parts of 64 threads, a thread for eight columns.  block_rows rows a block: 8 / block_rows parts share the pieces
// of a row, and part 0 of them adds their sums in ascending order.
extern "C" __global__ void __launch_bounds__(KD_LATENT, 2)
verify_attn_combine(const KD_PARTIAL* __restrict__ partial, const float* __restrict__ partial_lse, const int* __restrict__ table,
                    const int* __restrict__ counts, KD_OUT* __restrict__ out, float* __restrict__ lse, int nodes, int heads,
                    int tile_rows, int block_rows)
{
    constexpr int threads = KD_LATENT / 8;
    static_assert(threads % 32 == 0, "a warp has one row");
    __shared__ float sums[8][8][threads + 1], totals[8];
    const int lane = lane_id(), b = blockIdx.y, rows = nodes * heads, part = (int)threadIdx.x / threads, t = (int)threadIdx.x % threads;
    const int parts = 8 / block_rows, mine = part % parts, row = (int)blockIdx.x * block_rows + part / parts;
    const bool real = row < rows && (!counts || row < min(max(counts[b], 0), nodes) * heads);
    int4 note = {};
    if (real) note = reinterpret_cast<const int4*>(table)[(long long)b * ceil_div(rows, tile_rows) + row / tile_rows];
    const int first = note.x, pieces = note.y, distance = note.z;
    auto place = [&](int i) { return (long long)(i ? first + distance * i - (distance - 1) : first) * tile_rows + row % tile_rows; };
    float o[8] = {}, sum = 0.0f, most = -KD_INFINITY;
    if (pieces > 1) {
        for (int i = lane; i < pieces; i += 32) most = fmaxf(most, partial_lse[place(i)]);
        most = warp_max(most);
    }
    for (int begin = mine; begin < pieces && most > -KD_INFINITY; begin += 32 * parts) {
        const int at = begin + parts * lane, end = min(32, ceil_div(pieces - begin, parts));
        const float weights = at < pieces ? fast_exp2(partial_lse[place(at)] - most) : 0.0f;
#pragma unroll 4
        for (int i = 0; i < end; ++i) {                       // weight 0: the piece saw nothing, and its numbers are 0
            const float weight = __shfl_sync(KD_FULL_MASK, weights, i);
            float x[8];
            load_eight(partial + place(begin + parts * i) * KD_LATENT + 8 * t, x);
            sum += weight;
#pragma unroll
            for (int j = 0; j < 8; ++j) o[j] = fmaf(weight, x[j], o[j]);
        }
    }
    if (parts > 1) {
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[part][j][t] = o[j];
        if (t == 0) totals[part] = sum;
        __syncthreads();
        for (int i = 1; mine == 0 && i < parts; ++i) {
            sum += totals[part + i];
#pragma unroll
            for (int j = 0; j < 8; ++j) o[j] += sums[part + i][j][t];
        }
    }
    if (mine != 0 || row >= rows || (real && pieces <= 1)) return;   // one piece: its block wrote the result
    const long long at = (long long)b * rows + row;
    const float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) o[j] *= factor;
    store_eight(out + at * KD_LATENT + 8 * t, o);
    if (t == 0) lse[at] = sum > 0.0f ? (most + fast_log2(sum)) * 0.6931471805599453f : -KD_INFINITY;
}
