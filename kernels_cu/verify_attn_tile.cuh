// verify_attn_tile.cuh: attention of one tile of query rows, on the tensor cores.
//
// A group is four warps and 16 * MT query rows.  Warp w of a group owns a quarter of the latent numbers (and of the
// rotary ones): it multiplies that quarter of Q and K, so scores are sums over the four warps, exchanged through
// shared memory; and it owns that quarter of the result.  So each 16-byte piece of a KV row is read from shared
// memory once as key and once as value by one warp of a group, and serves all 16 * MT rows.
//
//   registers  Q quarter (latent), result quarter O in float, one 16-row score tile
//   shared     ring of KD_STAGES units of 16 KV rows, shared by GROUPS groups | scores, weights, scales, twice each
//
// One step = one unit; with one barrier of the group in it:
//   softmax of unit i (each warp: 8 rows)  |  Q K of unit i+1  |  barrier  |  copy of unit i+KD_STAGES-1  |  P V of unit i
#ifndef KD_VERIFY_ATTN_TILE_CUH
#define KD_VERIFY_ATTN_TILE_CUH

#include "async_copy.cuh"
#include "verify_attn_layout.cuh"
#include "verify_attn_rows.cuh"

template <class T, class Out, int MT, int GROUPS, class Row = NumberRow<T>>
struct Tile {
    using L = Layout<MT, GROUPS, Row>;
    static constexpr int steps = L::latent / 16, rope_steps = L::rope / 16, columns = L::latent / 8;

    const Call<T, Out, Row>& call;
    unsigned char* const shared;
    const shared_address base;
    int lane, warp, group, quarter, block;   // block: which 8 rows of the group this warp takes the softmax of
    int stage, phase;      // place in the ring of the unit whose scores come next, and its parity
    float o[MT][columns][4];         // result, not yet divided by the sum of weights
    unsigned q[MT][steps][4];
    float s[MT][2][4], own[4];       // scores: of this warp's quarter; its own 8 rows
    float row_max, row_sum, x[4], most;   // x: scores, then weights of this lane
    bool moved;                      // the running maximum of this lane's row

    __device__ __forceinline__ Tile(const Call<T, Out, Row>& call, unsigned char* shared)
        : call(call), shared(shared), base(shared_pointer(shared)), lane(lane_id()), warp(__shfl_sync(KD_FULL_MASK, warp_id(), 0)), stage(0), phase(0)
    {
        place();
    }

    // What follows from lane and warp.
    __device__ __forceinline__ void place()
    {
        group = GROUPS == 2 ? warp >> 2 : 0, quarter = warp & 3, block = quarter & (2 * MT - 1);
    }

    // Barrier of the group.
    __device__ __forceinline__ bool group_barrier_or(bool predicate) const
    {
        return named_barrier_or(1 + group, 128, predicate);
    }

    __device__ __forceinline__ Item<T, Row>& item() const { return *reinterpret_cast<Item<T, Row>*>(shared + L::item); }
    __device__ __forceinline__ const unsigned** mask_rows() const { return reinterpret_cast<const unsigned**>(shared + L::mask_rows); }
    __device__ __forceinline__ int& q_parity() const { return *reinterpret_cast<int*>(shared + L::item + 140); }
    __device__ __forceinline__ shared_address full(int i) const { return base + L::barriers + 8 * i; }
    __device__ __forceinline__ shared_address empty(int i) const { return base + L::barriers + 8 * (KD_STAGES + i); }
    __device__ __forceinline__ shared_address q_full() const { return base + L::barriers + 16 * KD_STAGES; }
    __device__ __forceinline__ shared_address unit(int i) const { return base + L::ring + i * (KD_UNIT * L::pitch); }

    // ---- copies ----

    __device__ static constexpr int arrivals(int rows, int warps) { return KD_BULK_COPY ? rows : 32 * warps; }

    // Copy `rows` rows of `bytes` to `to`, `pitch` apart, by `warps` warps, of which this is number `warp`; row_at(i) says
    // where row i lies.
    template <int rows, int warps, int bytes, int pitch, class RowAt>
    __device__ __forceinline__ void copy_rows(int warp, shared_address to, shared_address barrier, RowAt row_at) const
    {
#if KD_BULK_COPY
        constexpr int each = rows / warps;
        if (lane < each) {
            const int i = warp * each + lane;
            bulk_copy_arrive(to + i * pitch, row_at(i), bytes, barrier);
        }
#else
        constexpr int threads = 32 * warps / rows;   // of one row
        const int thread = 32 * warp + lane, i = thread / threads, first = thread % threads;
        const char* from = reinterpret_cast<const char*>(row_at(i));
#pragma unroll
        for (int c = 0; c < bytes / 16; c += threads)
            if (c + first < bytes / 16) copy_async_16(to + i * pitch + 16 * (c + first), from + 16 * (c + first));
        copy_async_arrive(barrier);
#endif
    }

    // The groups take turns.  Rows from `total` on are copies of the last real one: finite, and masked.
    __device__ __forceinline__ void copy_unit(int u, int to, int parity) const
    {
        if (GROUPS == 2 && ((u ^ group) & 1)) return;
        mbarrier_wait(empty(to), parity ^ 1);
        const auto& kv = item().kv;
        copy_rows<KD_UNIT, 4, L::row_bytes, L::pitch>(quarter, unit(to), full(to), [&](int i) { return kv.row(min(u * KD_UNIT + i, kv.total - 1), Row::length); });
    }

    // Row i of warp's fragments is row i ^ (8 * block) of the group, so that its own 8 rows come first.
    __device__ __forceinline__ int fragment_row(int m) const
    {
        return group * L::group_rows + ((2 * m + (lane >> 3 & 1)) ^ block) * 8 + (lane & 7);
    }

    __device__ __forceinline__ void load_q()
    {
        const auto& it = item();
        const int heads = call.batch.heads, last = it.real * heads - 1, first = it.segment.tile * L::rows;
        const T* q_rows = call.q + (long long)it.segment.request * call.batch.nodes * heads * kd_width;
        copy_rows<L::rows, L::warps, L::q_bytes, L::q_pitch>(warp, base, q_full(), [&](int i) { return q_rows + (long long)min(first + i, last) * kd_width; });
        if (warp == 0)
            for (int i = lane; i < L::rows; i += 32)
                mask_rows()[i] = call.mask + ((long long)it.segment.request * call.batch.nodes + min(first + i, last) / heads) * call.words;
        mbarrier_wait(q_full(), q_parity());
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int k = 0; k < steps; ++k)
                if constexpr (Row::fp8) load_paired(q[m][k], m, 2 * (quarter * L::latent + 16 * k));
                else ldmatrix_x4(q[m][k], base + fragment_row(m) * L::q_pitch + 2 * (quarter * L::latent + 16 * k) + (lane >> 4) * 16);
#pragma unroll 1
        for (int i = 32 * warp + lane; i < L::rows * (KD_ROPE / 8); i += L::threads) {
            const int row = i / (KD_ROPE / 8), c = i % (KD_ROPE / 8);
            const int4 eight = *reinterpret_cast<const int4*>(shared + row * L::q_pitch + 2 * KD_LATENT + 16 * c);
            unsigned char* to = shared + L::rope_q + row * L::rope_pitch;
            if constexpr (Row::fp8 && !Row::scaled) store_paired(to, c, eight);
            else *reinterpret_cast<int4*>(to + 16 * c) = eight;
        }
        fence_async_proxy();
        __syncthreads();             // Q is out of the ring
    }

    // ---- scores ----

    // `between(i)` is other work, done after step i while the products are under way.
    template <class Between>
    __device__ __forceinline__ void multiply_qk(int at, Between between)
    {
        if constexpr (Row::fp8) return multiply_qk_fp8(at, between);
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int j = 0; j < 8; ++j) s[m][j >> 2][j & 3] = 0.0f;
        const shared_address rows = unit(at) + ((lane & 7) + (lane >> 4) * 8) * L::pitch + (lane >> 3 & 1) * 16;
        const shared_address latent = rows + 2 * quarter * L::latent, rope = rows + 2 * (KD_LATENT + quarter * L::rope);
        unsigned k[2][4];
        ldmatrix_x4(k[0], rope_steps ? rope : latent);
#pragma unroll
        for (int step = 0; step < rope_steps + steps; ++step) {   // rotary numbers first: their Q comes from shared memory
            const int next = step + 1;
            if (next < rope_steps + steps)
                ldmatrix_x4(k[next & 1], next < rope_steps ? rope + 32 * next : latent + 32 * (next - rope_steps));
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                unsigned rope_a[4];
                if (step < rope_steps)
                    ldmatrix_x4(rope_a, base + L::rope_q + fragment_row(m) * L::rope_pitch + 2 * (quarter * L::rope + 16 * step) + (lane >> 4) * 16);
                const unsigned(&a)[4] = step < rope_steps ? rope_a : q[m][step < rope_steps ? 0 : step - rope_steps];
                mma_m16n8k16<T>(s[m][0], a, k[step & 1][0], k[step & 1][1]);
                mma_m16n8k16<T>(s[m][1], a, k[step & 1][2], k[step & 1][3]);
            }
            between(step);
        }
    }

    // Scores of 8 rows from one warp: two planes of 32 lanes x 8 bytes.
    __device__ __forceinline__ shared_address score_slot(int turn, int owner, int source) const
    {
        const int slot = MT == 2 ? owner * 3 + (owner ^ source) - 1 : owner * 4 + source;
        return base + L::scores + (group * 2 + turn) * L::score_bytes + slot * 512 + 8 * lane;
    }

    // Keep the scores of the own 8 rows, hand the others to their owners.
    __device__ __forceinline__ void hand_over_scores(int turn)
    {
#pragma unroll
        for (int j = 0; j < 4; ++j) own[j] = s[0][j >> 1][j & 1];
#pragma unroll
        for (int i = MT == 2 ? 1 : 0; i < 2 * MT; ++i) {
            const shared_address slot = score_slot(turn, i ^ block, quarter);
            store_float2(slot, s[i >> 1][0][2 * (i & 1)], s[i >> 1][0][2 * (i & 1) + 1]);
            store_float2(slot + 256, s[i >> 1][1][2 * (i & 1)], s[i >> 1][1][2 * (i & 1) + 1]);
        }
    }

    // Softmax step of the own 8 rows, in two halves with a maximum over four lanes between them.  Lane l has row l / 4,
    // KV rows 2q, 2q+1, 8+2q, 9+2q of the unit (q = l % 4).  Scores are (own + neighbour) + (other two): the same sum
    // whichever warp takes it.
    __device__ __forceinline__ void gather_scores(int turn, unsigned visible)
    {
        float2 part[3][2];
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            const shared_address slot = score_slot(turn, block, quarter ^ (i + 1));
            part[i][0] = load_float2(slot), part[i][1] = load_float2(slot + 256);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            x[2 * j] = (own[2 * j] + part[0][j].x) + (part[1][j].x + part[2][j].x);
            x[2 * j + 1] = (own[2 * j + 1] + part[0][j].y) + (part[1][j].y + part[2][j].y);
        }
        visible >>= 2 * (lane & 3);
        x[0] = visible & 1u ? x[0] * call.scale : -KD_INFINITY;
        x[1] = visible & 2u ? x[1] * call.scale : -KD_INFINITY;
        x[2] = visible & 256u ? x[2] * call.scale : -KD_INFINITY;
        x[3] = visible & 512u ? x[3] * call.scale : -KD_INFINITY;
        most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    }

    __device__ __forceinline__ void share_maximum(int lanes_apart)
    {
        most = fmaxf(most, __shfl_xor_sync(KD_FULL_MASK, most, lanes_apart));
    }

    __device__ __forceinline__ void store_weights(int turn)
    {
        const float now = most > row_max + KD_LAZY ? most : row_max;
        const float rescale = fast_exp2(row_max - now);
        row_max = now;
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = fast_exp2(x[j] - now);
        row_sum = row_sum * rescale + ((x[0] + x[1]) + (x[2] + x[3]));
        if (MT == 2 || quarter < 2) {
            const int row = (group * 2 + turn) * L::group_rows + block * 8 + (lane >> 2);
            const shared_address weight = base + L::weights + row * L::weight_pitch + (Row::scaled ? 8 : 4) * (lane & 3);
            if constexpr (Row::scaled) {      // each warp has its own scales: not rounded yet
                store_float2(weight, x[0], x[1]);
                store_float2(weight + 32, x[2], x[3]);
            } else {
                store_word(weight, pack_pair<T>(x[0], x[1]));
                store_word(weight + 16, pack_pair<T>(x[2], x[3]));
            }
            if ((lane & 3) == 0) store_float(scale_slot(turn, lane >> 2) + 4 * block, rescale);
        }
        moved = rescale != 1.0f;
    }

    // Factors of rows g, 8 + g, ... of the group, side by side.
    __device__ __forceinline__ shared_address scale_slot(int turn, int g) const
    {
        return base + L::scales + 4 * ((group * 2 + turn) * L::group_rows + g * (2 * MT));
    }

    // ---- result ----

    __device__ __forceinline__ void scale_result(int turn)
    {
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            const float2 factor = load_float2(scale_slot(turn, lane >> 2) + 8 * m);
            const float low = factor.x, high = factor.y;
#pragma unroll
            for (int c = 0; c < columns; ++c) {
                o[m][c][0] *= low, o[m][c][1] *= low;
                o[m][c][2] *= high, o[m][c][3] *= high;
            }
        }
    }

    __device__ __forceinline__ void multiply_pv(int at, int turn)
    {
        if constexpr (Row::fp8) return multiply_pv_fp8(at, turn);
        const shared_address rows = unit(at) + (lane & 15) * L::pitch + 2 * quarter * L::latent + (lane >> 4) * 16;
        const shared_address weight = base + L::weights + ((group * 2 + turn) * L::group_rows + (lane & 15)) * L::weight_pitch + (lane >> 4) * 16;
        unsigned p[MT][4], v[2][4];
        ldmatrix_x4_trans(v[0], rows);
#pragma unroll
        for (int m = 0; m < MT; ++m) ldmatrix_x4(p[m], weight + m * 16 * L::weight_pitch);
#pragma unroll
        for (int c = 0; c < columns / 2; ++c) {
            if (c + 1 < columns / 2) ldmatrix_x4_trans(v[(c + 1) & 1], rows + 32 * (c + 1));
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                mma_m16n8k16<T>(o[m][2 * c], p[m], v[c & 1][0], v[c & 1][1]);
                mma_m16n8k16<T>(o[m][2 * c + 1], p[m], v[c & 1][2], v[c & 1][3]);
            }
        }
    }

#include "verify_attn_fp8.cuh"
#include "verify_attn_loop.cuh"
};

#endif
