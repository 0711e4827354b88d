// verify_attn_heads_groups.cuh: attention of one tile of 64 * GROUPS query rows of one KV head by warp groups (sm_90a).
//
//   groups 0 .. GROUPS-1   64 rows each: their Q, scores and result stay in registers; scores Q K of unit i+1 run while
//                          the group takes the softmax of unit i, and the products of one group while another does
//   group GROUPS           chooses segments and copies keys and values into a ring of KD_STAGES units of 64 rows.  It
//                          runs ahead of the others into the next segment; a segment's item is one of two
//
// A unit in the ring is KD_HEAD / 64 blocks of keys, then as many of values: rows of 128 bytes, swizzled as wgmma.cuh says.
#ifndef KD_VERIFY_ATTN_HEADS_GROUPS_CUH
#define KD_VERIFY_ATTN_HEADS_GROUPS_CUH

#include "verify_attn_heads_item.cuh"
#include "wgmma_heads.cuh"

#ifndef KD_STAGES
#define KD_STAGES 3       // units in the ring, at least 2
#endif

template <int GROUPS>
struct HeadGroupLayout {
    static constexpr int rows = 64 * GROUPS, threads = 128 * (GROUPS + 1), blocks = KD_HEAD / 64;
    static constexpr int block_bytes = KD_UNIT * 128, unit_bytes = 2 * blocks * block_bytes;
    static constexpr int seen = KD_STAGES * unit_bytes;        // which KV rows of a unit each row sees; units of the tree
    static constexpr int barriers = seen + KD_STAGES * rows * 8;   // full and empty: units, two items
    static constexpr int item = barriers + 2 * (KD_STAGES + 2) * 8, item_bytes = 224, bytes = item + 2 * item_bytes;
    static_assert(KD_UNIT == 64 && KD_HEAD % 64 == 0 && KD_STAGES >= 2, "two mask words a row; swizzled blocks");
    static_assert(item % 16 == 0 && sizeof(HeadItem<__half>) <= item_bytes, "room for the item");
};

template <class T, class Out, class E, int GROUPS>
struct HeadGroups {
    using L = HeadGroupLayout<GROUPS>;
    static constexpr int steps = KD_HEAD / 16, columns = KD_HEAD / 8, rounds = KD_UNIT / 16;
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
    __device__ __forceinline__ uint2* seen(int i) const { return reinterpret_cast<uint2*>(shared + L::seen) + i * L::rows; }

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

    // ---- the copying group ----

    __device__ __forceinline__ bool choose_item() const
    {
        mbarrier_wait(item_empty(segments), (segments >> 1 & 1) ^ 1);
        if (warp == 0) {                   // the place in the list goes from item to item
            if (segments > 0 && lane == 0) item().segment = item(segments - 1).segment;
            __syncwarp();
            next_head_item<true>(call, item());
        }
        named_barrier(1, 128);
        mbarrier_arrive(item_full(segments));
        return item().segment.active;
    }

    // Number of row t in the caches, or ~number in the tree.  No cache has 2^31 rows: one has 128 bytes at least.
    // Rows from `total` on are copies of the last real one: finite, and masked.
    __device__ __forceinline__ int row_number(int t) const
    {
        const KvRows<E>& rows = item().keys;
        t = min(t, rows.total - 1);
        if (rows.tree && t >= rows.length) return ~(t - rows.length);
        if (!rows.pages) return t;
        const int page = t / rows.page_size;
        return (rows.pages[page] - page) * rows.page_size + t;
    }

    __device__ __forceinline__ void find_rows(int u, int (&found)[rounds]) const
    {
#pragma unroll
        for (int i = 0; i < rounds; ++i) found[i] = row_number(u * KD_UNIT + 16 * i + (thread >> 3));
    }

    // Eight threads copy a row, 16 bytes of each block of it.
    __device__ __forceinline__ void copy_unit(const int (&found)[rounds]) const
    {
        const HeadItem<E>& it = item();
        const int piece = thread & 7;
        const unsigned row_bytes = call.width * (unsigned)sizeof(E);
#pragma unroll
        for (int i = 0; i < rounds; ++i) {
            const int row = 16 * i + (thread >> 3);
            const bool in_tree = found[i] < 0;
            const unsigned long long from = (unsigned long long)(unsigned)(in_tree ? ~found[i] : found[i]) * row_bytes + 16 * piece;
            const char* keys = reinterpret_cast<const char*>(in_tree ? it.keys.tree : it.keys.cache) + from;
            const char* values = reinterpret_cast<const char*>(in_tree ? it.tree_values : it.values) + from;
            const shared_address to = unit(stage) + row * 128 + ((piece ^ (row & 7)) << 4);
#pragma unroll
            for (int block = 0; block < L::blocks; ++block) {
                copy_async_16(to + block * L::block_bytes, keys + 128 * block);
                copy_async_16(to + (L::blocks + block) * L::block_bytes, values + 128 * block);
            }
        }
    }

    // Bit j of a row of the tile: it sees KV row 64 * u + j.
    __device__ __forceinline__ void note_seen(int u) const
    {
        const HeadItem<E>& it = item();
        const int real_rows = it.real * call.batch().heads - it.first_row;
#pragma unroll 1
        for (int row = thread; row < min(L::rows, real_rows); row += 128) {
            const int node = own_row(row) / call.batch().heads, words = call.keys.words;
            const unsigned* mask = call.keys.mask + ((long long)it.segment.request * call.batch().nodes + node) * words;
            seen(stage)[row] = make_uint2(visible_rows(mask, words, u * KD_UNIT, it.keys.length, it.keys.total),
                                          visible_rows(mask, words, u * KD_UNIT + 32, it.keys.length, it.keys.total));
        }
    }

    // Piece `i` of 16 bytes of this thread's rows of 8-bit numbers, of the unit whose rows have been found.
    __device__ __forceinline__ uint4 narrow_piece(const int (&found)[rounds], int i) const
    {
        const HeadItem<E>& it = item();
        const int number = found[i / L::blocks], part = (thread & 7) + 8 * (i % L::blocks), in_row = part % (KD_HEAD / 16);
        const E* keys = number < 0 ? it.keys.tree : it.keys.cache;
        const E* values = number < 0 ? it.tree_values : it.values;
        const long long from = (long long)(number < 0 ? ~number : number) * call.width + 16 * in_row;
        return *reinterpret_cast<const uint4*>((part < KD_HEAD / 16 ? keys : values) + from);
    }

    __device__ __forceinline__ void store_wide(uint4 from, int i) const
    {
        const int row = 16 * (i / L::blocks) + (thread >> 3), part = (thread & 7) + 8 * (i % L::blocks);   // blocks of 64: 4 parts
        unsigned char* to = shared + stage * L::unit_bytes + part / 4 * L::block_bytes + row * 128;
        uint4 low, high;
        widen_piece(from, low, high);
        *reinterpret_cast<uint4*>(to + ((2 * (part % 4) ^ (row & 7)) << 4)) = low;
        *reinterpret_cast<uint4*>(to + (((2 * (part % 4) + 1) ^ (row & 7)) << 4)) = high;
    }

    // 8-bit rows come through registers: a piece of a unit to come is under way as soon as one of this is stored.
    __device__ __forceinline__ void widen_segment()
    {
        constexpr int loads = rounds * L::blocks, ahead = GROUPS == 1 ? 2 : 1;   // units under way: as many as there are registers for
        const int end = item().segment.end;
        int found[rounds];
        uint4 loaded[ahead][loads];
#pragma unroll
        for (int j = 0; j < ahead; ++j) {
            find_rows(min(item().segment.begin + j, end - 1), found);
#pragma unroll
            for (int i = 0; i < loads; ++i) loaded[j][i] = narrow_piece(found, i);
        }
#pragma unroll 1
        for (int first = item().segment.begin; first < end; first += ahead)
#pragma unroll
            for (int j = 0; j < ahead; ++j) {
                const int u = first + j;
                if (u >= end) break;
                find_rows(min(u + ahead, end - 1), found);
                mbarrier_wait(empty(stage), phase ^ 1);
#pragma unroll
                for (int i = 0; i < loads; ++i) store_wide(loaded[j][i], i), loaded[j][i] = narrow_piece(found, i);
                if ((u + 1) * KD_UNIT > item().keys.length) note_seen(u);
                fence_async_proxy();
                warp_arrive(full(stage));
                mbarrier_arrive(full(stage));
                advance();
            }
    }

    __device__ __forceinline__ void copy_segment()
    {
        if constexpr (narrow) {
            widen_segment();
            return;
        }
        const HeadItem<E>& it = item();
        const int end = it.segment.end;
        int u = it.segment.begin, found[rounds];
        find_rows(u, found);
#pragma unroll 1
        for (; u < end; ++u) {
            mbarrier_wait(empty(stage), phase ^ 1);
            copy_unit(found);
            if ((u + 1) * KD_UNIT > it.keys.length) note_seen(u);
            warp_arrive(full(stage));
            copy_async_arrive(full(stage));
            if (u + 1 < end) find_rows(u + 1, found);
            advance();
        }
    }

    // ---- the others ----

    __device__ __forceinline__ void load_q(unsigned (&q)[steps][4]) const
    {
        const unsigned sign = call.keys.scale < 0.0f ? 0x80008000u : 0u;   // then -q.k is scaled by -scale: see softmax()
        const int row = 64 * group + 16 * warp + (lane >> 2);
        const T* rows[2] = {call.keys.q + number(own_row(row)) * KD_HEAD, call.keys.q + number(own_row(row + 8)) * KD_HEAD};
#pragma unroll
        for (int k = 0; k < steps; ++k)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                q[k][j] = *reinterpret_cast<const unsigned*>(rows[j % 2] + 16 * k + 8 * (j / 2) + 2 * (lane & 3)) ^ sign;
    }

    __device__ __forceinline__ void multiply_qk(float (&s)[8][4], const unsigned (&q)[steps][4]) const
    {
        const Descriptor keys = matrix_at(unit(stage), 0);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < steps; ++k) wgmma_keys<T>(s, q[k], moved(keys, k / 4 * L::block_bytes + k % 4 * 32), k > 0);
        wgmma_commit();
    }

    // Scores to weights of this thread's two rows, and the factors for the result so far.
    __device__ __forceinline__ void softmax(float (&s)[8][4], int u, int at, float (&row_max)[2], float (&row_sum)[2],
                                            unsigned (&p)[4][4], float (&factor)[2]) const
    {
        if ((u + 1) * KD_UNIT > item().keys.length) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint2 both = seen(at)[64 * group + 16 * warp + 8 * half + (lane >> 2)];
                const unsigned low = both.x >> 2 * (lane & 3), high = both.y >> 2 * (lane & 3);
#pragma unroll
                for (int i = 0; i < 8; ++i)
#pragma unroll
                    for (int j = 0; j < 2; ++j)
                        if (!((i < 4 ? low >> (8 * i + j) : high >> (8 * i - 32 + j)) & 1u)) s[i][2 * half + j] = -KD_INFINITY;
            }
        }
        const float scale = fmaxf(fabsf(call.keys.scale), 1e-30f);   // not 0: times -inf that is NaN
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = -KD_INFINITY, sum = 0.0f;
#pragma unroll
            for (int i = 0; i < 8; ++i) most = fmaxf(most, fmaxf(s[i][2 * half], s[i][2 * half + 1]));
            most = fmaxf(most, __shfl_xor_sync(KD_FULL_MASK, most, 1));
            most = fmaxf(most, __shfl_xor_sync(KD_FULL_MASK, most, 2));
            most *= scale;
            const float now = most > row_max[half] + KD_LAZY ? most : row_max[half];
            factor[half] = fast_exp2(row_max[half] - now);
            row_max[half] = now;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float low = fast_exp2(fmaf(s[i][2 * half], scale, -now)), high = fast_exp2(fmaf(s[i][2 * half + 1], scale, -now));
                sum += low + high;
                p[i / 2][2 * (i % 2) + half] = pack_pair<T>(low, high);
            }
            row_sum[half] = row_sum[half] * factor[half] + sum;
        }
    }

#include "verify_attn_heads_groups_loop.cuh"
};

#endif
