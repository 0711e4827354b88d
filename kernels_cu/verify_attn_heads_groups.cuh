// verify_attn_heads_groups.cuh: attention of one tile of 64 * GROUPS query rows of one KV head by warp groups (sm_90a).
//
//   groups 0 .. GROUPS-1   64 rows each: scores and result stay in registers, Q of two groups too; that of three groups
//                          lies in shared memory, of one group (two blocks a multiprocessor) half of it.  Weights V of
//                          unit i run while the group takes the softmax of unit i+1, and the products of one group while
//                          another takes its softmax
//   group GROUPS           chooses segments and copies keys and values into a ring of KD_STAGES units of 64 rows.  It
//                          runs ahead of the others into the next segment; a segment's item is one of two
//
// A unit in the ring is KD_HEAD / 64 blocks of keys, then as many of values: rows of 128 bytes, swizzled as wgmma.cuh says.
#ifndef KD_VERIFY_ATTN_HEADS_GROUPS_CUH
#define KD_VERIFY_ATTN_HEADS_GROUPS_CUH

#include "verify_attn_heads_item.cuh"
#include "verify_attn_heads_work.cuh"
#include "wgmma_heads.cuh"

#ifndef KD_STAGES
#define KD_STAGES 3       // units in the ring, at least 2
#endif

#ifndef KD_WEIGHED
#define KD_WEIGHED 1      // 0: tiles with fewer groups get as many blocks as others
#endif
template <int GROUPS>
struct HeadGroupLayout {
    static constexpr int rows = 64 * GROUPS, threads = 128 * (GROUPS + 1), blocks = KD_HEAD / 64;
    static constexpr int block_bytes = KD_UNIT * 128, unit_bytes = 2 * blocks * block_bytes;
    static constexpr int q_blocks = GROUPS == 3 ? blocks : GROUPS == 1 ? blocks / 2 : 0, q_block_bytes = 64 * 128;   // of Q, here
    static constexpr int q = KD_STAGES * unit_bytes, q_bytes = GROUPS * q_blocks * q_block_bytes;
    static constexpr int seen = q + q_bytes;                   // which KV rows of a unit each row sees; units of the tree
    static constexpr int barriers = seen + KD_STAGES * rows * KD_UNIT / 8;   // full and empty: units, two items
    static constexpr int item = barriers + 2 * (KD_STAGES + 2) * 8, item_bytes = 224, bytes = item + 2 * item_bytes;
    static_assert(KD_UNIT == 64 && KD_HEAD % 64 == 0 && KD_STAGES >= 2, "swizzled blocks; matrix instructions");
    static_assert(item % 16 == 0 && sizeof(HeadItem<__half>) <= item_bytes, "room for the item");
};

template <class T, class Out, class E, int GROUPS>
struct HeadGroups {
    using L = HeadGroupLayout<GROUPS>;
    static constexpr int steps = KD_HEAD / 16, columns = KD_HEAD / 8, rounds = KD_UNIT / 16, scores = KD_UNIT / 8, q_shared = 4 * L::q_blocks;
    static constexpr int q_registers = q_shared < steps ? steps - q_shared : 1;   // steps of 16 numbers of Q
    static constexpr bool narrow = sizeof(E) == 1;         // 8-bit rows, widened on their way

    const HeadCall<T, Out, E>& call;
    unsigned char* const shared;
    const shared_address base;
    const int thread, lane, warp, group;   // thread and warp of the group
    int stage, phase;                      // place in the ring of the unit at hand, and its parity
    int segments;                          // done so far

    __device__ __forceinline__ HeadGroups(const HeadCall<T, Out, E>& call, unsigned char* shared)
        : call(call), shared(shared), base(shared_pointer(shared)), thread((int)threadIdx.x & 127), lane(lane_id()),
          warp(__shfl_sync(KD_FULL_MASK, thread >> 5, 0)), group(__shfl_sync(KD_FULL_MASK, (int)threadIdx.x >> 7, 0)), stage(0),
          phase(0), segments(0) {}

    __device__ __forceinline__ HeadItem<E>& item(int of) const { return *reinterpret_cast<HeadItem<E>*>(shared + L::item + (of & 1) * L::item_bytes); }
    __device__ __forceinline__ HeadItem<E>& item() const { return item(segments); }
    __device__ __forceinline__ shared_address barrier(int i) const { return base + L::barriers + 8 * i; }
    __device__ __forceinline__ shared_address full(int i) const { return barrier(i); }
    __device__ __forceinline__ shared_address empty(int i) const { return barrier(KD_STAGES + i); }
    __device__ __forceinline__ shared_address item_full(int of) const { return barrier(2 * KD_STAGES + (of & 1)); }
    __device__ __forceinline__ shared_address item_empty(int of) const { return barrier(2 * KD_STAGES + 2 + (of & 1)); }
    __device__ __forceinline__ shared_address unit(int i) const { return base + i * L::unit_bytes; }
    __device__ __forceinline__ unsigned* seen(int i, int row) const
    {
        return reinterpret_cast<unsigned*>(shared + L::seen) + (i * L::rows + row) * (KD_UNIT / 32);
    }

    __device__ __forceinline__ void advance()
    {
        if (++stage == KD_STAGES) stage = 0, phase ^= 1;
    }

    // Rows were written by ordinary asynchronous copies; the matrix instructions read by another path.
    __device__ __forceinline__ void wait_for_unit() const
    {
        mbarrier_wait(full(stage), phase);
        fence_async_proxy();
    }

    // Row `row` of the tile, among those of the KV head; rows behind the last real one stand for it.
    __device__ __forceinline__ int own_row(int row) const
    {
        const HeadItem<E>& it = item();
        return min(it.first_row + row, it.real * call.batch().heads - 1);
    }

    // Number of a row in the whole batch, in q, out and lse.
    __device__ __forceinline__ long long number(int row) const
    {
        const HeadItem<E>& it = item();
        const int group = call.batch().heads, node = row / group, heads = call.batch().kv_heads * group;
        return ((long long)it.segment.request * call.batch().nodes + node) * heads + it.kv_head * group + (row - node * group);
    }

#include "verify_attn_heads_groups_copy.cuh"

    // ---- the others ----

    // The first blocks of 64 numbers of Q into shared memory, as keys lie there; two threads a row.
    __device__ __forceinline__ void store_q() const
    {
        const unsigned sign = call.keys.scale < 0.0f ? 0x80008000u : 0u;
        const int row = thread >> 1;
        const uint4* from = reinterpret_cast<const uint4*>(call.keys.q + number(own_row(64 * group + row)) * KD_HEAD);
        unsigned char* to = shared + L::q + group * L::q_blocks * L::q_block_bytes + row * 128;
        named_barrier(2 + group, 128);     // all have read that of the segment before
#pragma unroll
        for (int i = thread & 1; i < 8 * L::q_blocks; i += 2) {
            const uint4 x = from[i];
            *reinterpret_cast<uint4*>(to + i / 8 * L::q_block_bytes + ((i % 8 ^ (row & 7)) << 4)) = make_uint4(x.x ^ sign, x.y ^ sign, x.z ^ sign, x.w ^ sign);
        }
        fence_async_proxy();
        named_barrier(2 + group, 128);
    }

    __device__ __forceinline__ void load_q(unsigned (&q)[q_registers][4]) const
    {
        if constexpr (L::q_blocks > 0) store_q();
        if constexpr (q_shared == steps) return;
        const unsigned sign = call.keys.scale < 0.0f ? 0x80008000u : 0u;   // then -q.k is scaled by -scale: see softmax()
        const int row = 64 * group + 16 * warp + (lane >> 2);
        const T* rows[2] = {call.keys.q + number(own_row(row)) * KD_HEAD, call.keys.q + number(own_row(row + 8)) * KD_HEAD};
#pragma unroll
        for (int k = 0; k < q_registers; ++k)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                q[k][j] = *reinterpret_cast<const unsigned*>(rows[j % 2] + 16 * (q_shared + k) + 8 * (j / 2) + 2 * (lane & 3)) ^ sign;
    }

    __device__ __forceinline__ void multiply_qk(float (&s)[scores][4], const unsigned (&q)[q_registers][4]) const
    {
        const Descriptor keys = matrix_at(unit(stage), 0), queries = matrix_at(base + L::q + group * L::q_blocks * L::q_block_bytes, 0);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < steps; ++k) {
            const Descriptor key = moved(keys, k / 4 * L::block_bytes + k % 4 * 32);
            if (k < q_shared) wgmma_shared_keys<T>(s, moved(queries, k / 4 * L::q_block_bytes + k % 4 * 32), key, k > 0);
            else wgmma_keys<T>(s, q[k - q_shared < 0 ? 0 : k - q_shared], key, k > 0);
        }
        wgmma_commit();
    }

    // Scores of this thread's two rows to weights, and the factors for the result so far.
    __device__ __forceinline__ void softmax(float (&s)[scores][4], int u, float (&row_max)[2], float (&row_sum)[2],
                                            float (&factor)[2]) const
    {
        if ((u + 1) * KD_UNIT > item().keys.length) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const unsigned* words = seen(stage, 64 * group + 16 * warp + 8 * half + (lane >> 2));
#pragma unroll
                for (int word = 0; word < KD_UNIT / 32; ++word) {
                    const unsigned bits = words[word] >> 2 * (lane & 3);
#pragma unroll
                    for (int i = 0; i < 4; ++i)
#pragma unroll
                        for (int j = 0; j < 2; ++j)
                            if (!(bits >> (8 * i + j) & 1u)) s[4 * word + i][2 * half + j] = -KD_INFINITY;
                }
            }
        }
        const float scale = fmaxf(fabsf(call.keys.scale), 1e-30f);   // not 0: times -inf that is NaN
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = -KD_INFINITY, sum = 0.0f;
#pragma unroll
            for (int i = 0; i < scores; ++i) most = fmaxf(most, fmaxf(s[i][2 * half], s[i][2 * half + 1]));
            most = fmaxf(most, __shfl_xor_sync(KD_FULL_MASK, most, 1));
            most = fmaxf(most, __shfl_xor_sync(KD_FULL_MASK, most, 2));
            most *= scale;
            const float now = most > row_max[half] + KD_LAZY ? most : row_max[half];
            factor[half] = fast_exp2(row_max[half] - now);
            row_max[half] = now;
#pragma unroll
            for (int i = 0; i < scores; ++i)
#pragma unroll
                for (int j = 2 * half; j < 2 * half + 2; ++j) s[i][j] = fast_exp2(fmaf(s[i][j], scale, -now)), sum += s[i][j];
            row_sum[half] = row_sum[half] * factor[half] + sum;
        }
    }

    __device__ __forceinline__ static void pack(const float (&s)[scores][4], unsigned (&p)[scores / 2][4])
    {
#pragma unroll
        for (int i = 0; i < scores; ++i) p[i / 2][2 * (i % 2)] = pack_pair<T>(s[i][0], s[i][1]), p[i / 2][2 * (i % 2) + 1] = pack_pair<T>(s[i][2], s[i][3]);
    }

#include "verify_attn_heads_groups_loop.cuh"
};

#endif
