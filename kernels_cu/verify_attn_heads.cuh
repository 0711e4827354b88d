// verify_attn_heads.cuh: attention of one tile of query rows of one KV head, on the tensor cores.
//
// Rows are the (node, head) pairs whose heads share a KV head.  A warp has 16 * MT of them whole: their Q, scores and
// result stay in its registers, and nothing is exchanged between warps.  The warps of a block share the KV rows, which
// come by cp.async into a ring of KD_STAGES units of KD_UNIT rows; a row in the ring is [key | value], in pieces of 16
// bytes, piece c of row i at place c ^ (i % 8), so that eight rows of one piece lie in different banks.
//
// One step = one unit:  Q K  |  copy of unit i+KD_STAGES-1  |  softmax  |  weights V
#ifndef KD_VERIFY_ATTN_HEADS_CUH
#define KD_VERIFY_ATTN_HEADS_CUH

#include "async_copy.cuh"
#include "verify_attn_heads_item.cuh"

#ifndef KD_STAGES
#define KD_STAGES 2       // units in the ring, at least 2
#endif
#ifndef KD_AHEAD
#define KD_AHEAD 0        // 1: a warp of 16 rows computes the next scores before the softmax of these
#endif
#ifndef KD_SHARED_Q
#define KD_SHARED_Q 4     // parts of 16 numbers of Q that a warp of 32 rows keeps in shared memory, for want of registers
#endif

template <int MT, int WARPS>
struct HeadLayout {
    static constexpr int threads = 32 * WARPS, warp_rows = 16 * MT, rows = warp_rows * WARPS;
    static constexpr int pitch = 4 * KD_HEAD, unit_bytes = KD_UNIT * pitch;
    static constexpr int q_steps = MT == 2 && KD_HEAD > 64 ? KD_SHARED_Q : 0;     // of Q that are kept in shared memory
    static constexpr int q = KD_STAGES * unit_bytes, barriers = q + q_steps * MT * WARPS * 512;
    static constexpr int item = barriers + 16 * KD_STAGES, bytes = item + 224;
    static_assert(KD_HEAD % 64 == 0, "a piece changes its place within 128 bytes");
    static_assert(KD_UNIT % 32 == 0 && KD_STAGES >= 2, "mask bits come 32 at a time; one unit is used, one is on the way");
    static_assert(!KD_AHEAD || MT > 1 || KD_STAGES >= 3, "with scores ahead two units are used");
    static_assert(KD_UNIT == 32 || WARPS != 3, "rows that are copied together have their numbers in one register");
    static_assert(sizeof(HeadItem<__half>) <= 224, "room for the item");
};

template <class T, class Out, class E, int MT, int WARPS>
struct HeadTile {
    using L = HeadLayout<MT, WARPS>;
    static constexpr int steps = KD_HEAD / 16, columns = KD_HEAD / 8, blocks = KD_UNIT / 8;
    static constexpr int shared_steps = L::q_steps;                                // of Q
    static constexpr int pieces = KD_HEAD / 8, together = 32 / pieces;             // of a key; rows a warp copies at once
    static constexpr bool narrow = sizeof(E) == 1;                                 // 8-bit rows, widened on their way
    static constexpr int apart = together * WARPS, rounds = ceil_div(KD_UNIT, apart), sets = KD_UNIT / 32;

    const HeadCall<T, Out, E>& call;
    unsigned char* const shared;
    const shared_address base;
    int lane;
    const int warp;
    int stage, phase;                // place in the ring of the unit at hand, and its parity
    int found[sets];                 // numbers of the rows of the unit that is copied next, a lane a row
    unsigned q[MT][steps - shared_steps][4];
    float o[MT][columns][4];         // result, not yet divided by the sum of weights
    float row_max[MT][2], row_sum[MT][2];        // of rows lane / 4 and lane / 4 + 8

    __device__ __forceinline__ HeadTile(const HeadCall<T, Out, E>& call, unsigned char* shared)
        : call(call), shared(shared), base(shared_pointer(shared)), lane(lane_id()),
          warp(__shfl_sync(KD_FULL_MASK, warp_id(), 0)), stage(0), phase(0)
    {
    }

    __device__ __forceinline__ HeadItem<E>& item() const { return *reinterpret_cast<HeadItem<E>*>(shared + L::item); }
    __device__ __forceinline__ shared_address full(int i) const { return base + L::barriers + 8 * i; }
    __device__ __forceinline__ shared_address empty(int i) const { return base + L::barriers + 8 * (KD_STAGES + i); }

    // ---- copies ----

    // Number of row t in the caches, or ~number in the tree.  No cache has 2^31 rows: one has 128 bytes at least.
    __device__ __forceinline__ int row_number(int t) const
    {
        const KvRows<E>& rows = item().keys;
        if (rows.tree && t >= rows.length) return ~(t - rows.length);
        if (!rows.pages) return t;
        const int page = t / rows.page_size;
        return (rows.pages[page] - page) * rows.page_size + t;
    }

    // Rows from `total` on are copies of the last real one: finite, and masked.
    __device__ __forceinline__ void find_rows(int u)
    {
#pragma unroll
        for (int set = 0; set < sets; ++set) found[set] = row_number(min(u * KD_UNIT + 32 * set + lane, item().keys.total - 1));
    }

    // The same for 8-bit rows, which come through registers: few loads at a time, for want of them.
    __device__ __forceinline__ void widen_unit(int u, int to)
    {
        constexpr int parts = KD_HEAD / 16, at_once = 32 / parts, step = at_once * WARPS;
        const HeadItem<E>& it = item();
        const int part = lane % parts;
#pragma unroll 1
        for (int i = warp * at_once; i < KD_UNIT; i += step) {
            const int row = i + lane / parts, number = __shfl_sync(KD_FULL_MASK, found[0], row);
            const long long from = (long long)(number < 0 ? ~number : number) * call.width + 16 * part;
            const uint4 both[2] = {*reinterpret_cast<const uint4*>((number < 0 ? it.keys.tree : it.keys.cache) + from),
                                   *reinterpret_cast<const uint4*>((number < 0 ? it.tree_values : it.values) + from)};
            unsigned char* place = shared + to * L::unit_bytes + row * L::pitch;
#pragma unroll
            for (int value = 0; value < 2; ++value, place += 2 * KD_HEAD) {
                uint4 low, high;
                widen_piece(both[value], low, high);
                *reinterpret_cast<uint4*>(place + 16 * (2 * part ^ (row & 7))) = low;
                *reinterpret_cast<uint4*>(place + 16 * ((2 * part + 1) ^ (row & 7))) = high;
            }
        }
        mbarrier_arrive(full(to));
    }

    // Copy unit u, whose rows have been found, and find those of the next.  The warps take turns, `together` rows each.
    __device__ __forceinline__ void copy_unit(int u, int to, int parity)
    {
        mbarrier_wait(empty(to), parity ^ 1);
        if constexpr (narrow) {
            widen_unit(u, to);
            if (u + 1 < item().segment.end) find_rows(u + 1);
            return;
        }
        const HeadItem<E>& it = item();
        const int first = warp * together + lane / pieces;
        const shared_address place = base + to * L::unit_bytes + first * L::pitch;
        const auto bytes = [&](const E* rows) { return reinterpret_cast<const char*>(rows) + 16 * (lane % pieces); };
        const auto copy = [&](bool some_in_tree) {
            const char *keys = bytes(it.keys.cache), *values = bytes(it.values);
            const unsigned row_bytes = call.width * (unsigned)sizeof(E);
#pragma unroll (WARPS >= 3 ? 2 : WARPS == 2 ? 1 : rounds)   // addresses of all rounds can be too many registers
            for (int i = 0; i < rounds * apart; i += apart) {
                if (i + apart > KD_UNIT && i + warp * together >= KD_UNIT) break;
                const int number = __shfl_sync(KD_FULL_MASK, found[sets == 1 ? 0 : i / 32], (i + first) % 32);
                const bool in_tree = some_in_tree && number < 0;
                const unsigned long long from = (unsigned long long)(unsigned)(in_tree ? ~number : number) * row_bytes;
                const shared_address there = place + i * L::pitch + 16 * (lane % pieces ^ ((i + first) & 7));
                copy_async_16(there, (in_tree ? bytes(it.keys.tree) : keys) + from);
                copy_async_16(there + 2 * KD_HEAD, (in_tree ? bytes(it.tree_values) : values) + from);
            }
        };
        if ((u + 1) * KD_UNIT > it.keys.length && it.keys.tree) copy(true);
        else copy(false);
        copy_async_arrive(full(to));
        if (u + 1 < it.segment.end) find_rows(u + 1);
    }

    // Row `half` of this lane in fragment m, among those of the KV head; rows behind the last real one stand for it.
    __device__ __forceinline__ int own_row(int m, int half) const
    {
        const HeadItem<E>& it = item();
        return min(it.first_row + warp * L::warp_rows + 16 * m + 8 * half + (lane >> 2), it.real * call.batch().heads - 1);
    }

    // Number of a row in the whole batch, in q, out and lse.
    __device__ __forceinline__ long long number(int row) const
    {
        const int group = call.batch().heads, node = row / group, heads = call.batch().kv_heads * group;
        return ((long long)item().segment.request * call.batch().nodes + node) * heads + item().kv_head * group + (row - node * group);
    }

    // Where this lane keeps its part of step k of Q in shared memory; nobody else reads it.
    __device__ __forceinline__ uint4& kept_q(int m, int k) const
    {
        return reinterpret_cast<uint4*>(shared + L::q)[((warp * MT + m) * shared_steps + k) * 32 + lane];
    }

    __device__ __forceinline__ void load_q()
    {
        const unsigned sign = call.keys.scale < 0.0f ? 0x80008000u : 0u;   // then -q.k is scaled by -scale: see softmax()
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            const T* low = call.keys.q + number(own_row(m, 0)) * KD_HEAD + 2 * (lane & 3);
            const T* high = call.keys.q + number(own_row(m, 1)) * KD_HEAD + 2 * (lane & 3);
            const auto pair = [](const T* row, int at) { return *reinterpret_cast<const unsigned*>(row + at); };
#pragma unroll
            for (int k = 0; k < steps; ++k) {
                const uint4 four = make_uint4(pair(low, 16 * k) ^ sign, pair(high, 16 * k) ^ sign, pair(low, 16 * k + 8) ^ sign,
                                              pair(high, 16 * k + 8) ^ sign);
                if (k < shared_steps) kept_q(m, k) = four;
                else take(q[m][k < shared_steps ? 0 : k - shared_steps], four);
            }
        }
    }

    __device__ static __forceinline__ void take(unsigned (&x)[4], uint4 four) { x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w; }

    // ---- one unit ----

    __device__ __forceinline__ void multiply_qk(int at, float (&s)[MT][blocks][4])
    {
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int j = 0; j < 4 * blocks; ++j) s[m][j >> 2][j & 3] = 0.0f;
        const shared_address rows = base + at * L::unit_bytes + ((lane & 7) + (lane >> 4) * 8) * L::pitch;
        const int place = 16 * ((lane >> 3 & 1) ^ (lane & 7));
#pragma unroll
        for (int k = 0; k < steps; ++k) {
            unsigned a[MT][4];
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) a[m][i] = q[m][k < shared_steps ? 0 : k - shared_steps][i];
            if (k < shared_steps)
#pragma unroll
                for (int m = 0; m < MT; ++m) take(a[m], kept_q(m, k));
#pragma unroll
            for (int j = 0; j < blocks / 2; ++j) {
                unsigned keys[4];
                ldmatrix_x4(keys, rows + (place ^ 32 * (k % 4)) + 128 * (k / 4) + 16 * j * L::pitch);
#pragma unroll
                for (int m = 0; m < MT; ++m) {
                    mma_m16n8k16<T>(s[m][2 * j], a[m], keys[0], keys[1]);
                    mma_m16n8k16<T>(s[m][2 * j + 1], a[m], keys[2], keys[3]);
                }
            }
        }
    }

    // Scores of what a row does not see become -inf.
    __device__ __forceinline__ void hide(int u, float (&s)[MT][blocks][4]) const
    {
        const HeadItem<E>& it = item();
        const Batch& batch = call.batch();
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const long long node = (long long)it.segment.request * batch.nodes + own_row(m, half) / batch.heads;
#pragma unroll
                for (int part = 0; part < KD_UNIT / 32; ++part) {
                    const unsigned seen = visible_rows(call.keys.mask + node * call.keys.words, call.keys.words, u * KD_UNIT + 32 * part,
                                                       it.keys.length, it.keys.total) >> 2 * (lane & 3);
#pragma unroll
                    for (int j = 0; j < 8; ++j)
                        if (!(seen >> (8 * (j / 2) + j % 2) & 1u)) s[m][4 * part + j / 2][2 * half + j % 2] = -KD_INFINITY;
                }
            }
    }

    // Scores to weights, with the running maximum; the result so far is rescaled where that has moved.
    __device__ __forceinline__ void softmax(int u, float (&s)[MT][blocks][4])
    {
        if ((u + 1) * KD_UNIT > item().keys.length) hide(u, s);
        const float scale = fmaxf(fabsf(call.keys.scale), 1e-30f);   // not 0: times -inf that is NaN
        bool moved = false;
        float factor[MT][2];
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float most = -KD_INFINITY, sum = 0.0f;
#pragma unroll
                for (int j = 0; j < blocks; ++j) most = fmaxf(most, fmaxf(s[m][j][2 * half], s[m][j][2 * half + 1]));
                most = fmaxf(most, __shfl_xor_sync(KD_FULL_MASK, most, 1));
                most = fmaxf(most, __shfl_xor_sync(KD_FULL_MASK, most, 2));
                most *= scale;
                const float now = most > row_max[m][half] + KD_LAZY ? most : row_max[m][half];
                factor[m][half] = fast_exp2(row_max[m][half] - now);
                moved |= now != row_max[m][half];
                row_max[m][half] = now;
#pragma unroll
                for (int j = 0; j < blocks; ++j) {
                    s[m][j][2 * half] = fast_exp2(fmaf(s[m][j][2 * half], scale, -now));
                    s[m][j][2 * half + 1] = fast_exp2(fmaf(s[m][j][2 * half + 1], scale, -now));
                    sum += s[m][j][2 * half] + s[m][j][2 * half + 1];
                }
                row_sum[m][half] = row_sum[m][half] * factor[m][half] + sum;
            }
        if (__any_sync(KD_FULL_MASK, moved)) scale_result(factor);
    }

#include "verify_attn_heads_loop.cuh"
};

#endif
