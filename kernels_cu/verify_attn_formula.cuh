// verify_attn_formula.cuh: attention of one query row as the formula has it, in float32; a block of 128 threads a row.
#ifndef KD_VERIFY_ATTN_FORMULA_CUH
#define KD_VERIFY_ATTN_FORMULA_CUH

#include "verify_attn_kv.cuh"

// Dot product of `a` in shared memory with a row in global memory; every lane of the warp gets the sum.
template <int width, class Row>
__device__ __forceinline__ float warp_dot(const float* a, Row row)
{
    float sum = 0.0f;
    for (int i = lane_id(); i < width; i += 32) sum = fmaf(a[i], to_float(row[i]), sum);
    return warp_sum(sum);
}

// Keys of `key` numbers at key_at(t), values of `value` numbers at value_at(t), t from 0 to `total`; total 0: the row
// sees nothing and q is not read.  `seen_words`: mask words of the row's node.
template <int key, int value, class Query, class Out, class KeyAt, class ValueAt>
__device__ __forceinline__ void attend_row(const Query* q, int total, int length, KeyAt key_at, ValueAt value_at,
                                           const unsigned* seen_words, int words, float scale, Out* out, float* lse)
{
    constexpr int threads = 128, each = ceil_div(value, threads), step = 32;
    __shared__ float q_row[key], weight[step];
    const int t = threadIdx.x;
    const auto mine = [&](int e) { return value % threads == 0 || t + threads * e < value; };
    for (int i = t; i < key; i += threads) q_row[i] = total ? to_float(q[i]) : 0.0f;
    float most = -3.402823466e38f, sum = 0.0f, o[each] = {};  // finite, so that nothing seen yet is no NaN
    for (int begin = 0; begin < total; begin += step) {
        __syncthreads();
        for (int j = t / 32; j < step; j += threads / 32) {   // one warp a KV row
            const bool seen = visible_rows(seen_words, words, begin, length, total) >> j & 1u;
            const float score = seen ? scale * warp_dot<key>(q_row, key_at(begin + j)) : -KD_INFINITY;
            if (lane_id() == 0) weight[j] = score;
        }
        __syncthreads();
        float now = most;
        for (int j = 0; j < step; ++j) now = fmaxf(now, weight[j]);
        const float keep = expf(most - now);
        most = now;
        float step_sum = 0.0f, step_o[each] = {};             // sums of sums: thousands of terms, each step exact enough
        for (int j = 0; j < step; ++j) {
            if (weight[j] == -KD_INFINITY) continue;          // never read what is not seen: it may hold anything
            const float p = expf(weight[j] - now);
            const auto row = value_at(begin + j);
            step_sum += p;
            for (int e = 0; e < each; ++e)
                if (mine(e)) step_o[e] = fmaf(p, to_float(row[t + threads * e]), step_o[e]);
        }
        sum = sum * keep + step_sum;
        for (int e = 0; e < each; ++e) o[e] = o[e] * keep + step_o[e];
    }
    for (int e = 0; e < each; ++e)
        if (mine(e)) out[t + threads * e] = from_float<Out>(sum == 0.0f ? 0.0f : o[e] / sum);
    if (t == 0) *lse = sum == 0.0f ? -KD_INFINITY : most + logf(sum);
}

#endif
