// verify_attn_groups.cuh: attention of one tile of 64 query rows by three warp groups (sm_90a).
//
//   group 0   scores Q K of unit i+1 run while it takes the softmax of unit i; result columns 0..255
//   group 1   result columns 256..511, with the weights that group 0 hands over
//   group 2   chooses segments and copies: Q, and KV rows into a ring of three units of 48 rows.  It runs ahead of the
//             others into the next segment; a segment's item is one of two, so that it can be chosen early.
//
// Shared memory holds KV rows and Q in blocks of 64 columns, rows of 128 bytes, swizzled as wgmma.cuh says.  Nine
// blocks a unit; of Q seven blocks, the other two are registers of group 0: so much fits and no more.
#ifndef KD_VERIFY_ATTN_GROUPS_CUH
#define KD_VERIFY_ATTN_GROUPS_CUH

#define KD_UNIT 48
#include "verify_attn_kv.cuh"
#include "wgmma.cuh"

#ifndef KD_LAZY
#define KD_LAZY 8.0f      // the running maximum moves when a score is larger by this many powers of two
#endif

struct GroupLayout {
    static constexpr int rows = 64, stages = 3, blocks = kd_width / 64, q_blocks = blocks - 2, threads = 384;
    static constexpr int block_bytes = KD_UNIT * 128, unit_bytes = blocks * block_bytes, q_block_bytes = rows * 128;
    static constexpr int ring = 0, q = stages * unit_bytes, weights = q + q_blocks * q_block_bytes;
    static constexpr int factors = weights + 3 * 128 * 16;     // weights and factors of each thread of group 0
    static constexpr int barriers = factors + 128 * 8;         // full and empty: units, weights, Q, two items
    static constexpr int item = barriers + 2 * (stages + 4) * 8, item_bytes = 144;
    static constexpr int seen = item + 2 * item_bytes;         // which KV rows of a unit each row sees; units of the tree
    static constexpr int bytes = seen + stages * rows * 8;
    static_assert(bytes <= 232448 && sizeof(Item<__half>) <= item_bytes, "shared memory of sm_90");
    static_assert(block_bytes % 1024 == 0 && KD_LATENT == 512 && KD_ROPE == 64, "swizzled blocks; two halves of 256");
};

template <class T, class Out>
struct Groups {
    using L = GroupLayout;
    static constexpr int q_steps = 4 * L::q_blocks, register_steps = 8;

    const Call<T, Out>& call;
    unsigned char* const shared;
    const shared_address base;
    const int thread, lane, warp;    // of the group
    int stage, phase, turn;          // place in the ring and its parity; parity of the weights
    int segments;                    // done so far

    __device__ __forceinline__ Groups(const Call<T, Out>& call, unsigned char* shared)
        : call(call), shared(shared), base(shared_pointer(shared)), thread((int)threadIdx.x & 127), lane(lane_id()),
          warp(__shfl_sync(KD_FULL_MASK, thread >> 5, 0)), stage(0), phase(0), turn(0), segments(0) {}

    __device__ __forceinline__ Item<T>& item() const { return *reinterpret_cast<Item<T>*>(shared + L::item + (segments & 1) * L::item_bytes); }
    __device__ __forceinline__ shared_address barrier(int i) const { return base + L::barriers + 8 * i; }
    __device__ __forceinline__ shared_address full(int i) const { return barrier(i); }
    __device__ __forceinline__ shared_address empty(int i) const { return barrier(L::stages + i); }
    __device__ __forceinline__ shared_address weights_full() const { return barrier(2 * L::stages); }
    __device__ __forceinline__ shared_address weights_empty() const { return barrier(2 * L::stages + 1); }
    __device__ __forceinline__ shared_address q_full() const { return barrier(2 * L::stages + 2); }
    __device__ __forceinline__ shared_address q_empty() const { return barrier(2 * L::stages + 3); }
    __device__ __forceinline__ shared_address item_full() const { return barrier(2 * L::stages + 4 + (segments & 1)); }
    __device__ __forceinline__ shared_address item_empty() const { return barrier(2 * L::stages + 6 + (segments & 1)); }
    __device__ __forceinline__ uint2* seen(int i) const { return reinterpret_cast<uint2*>(shared + L::seen) + i * L::rows; }
    __device__ __forceinline__ shared_address unit(int i) const { return base + L::ring + i * L::unit_bytes; }

    __device__ __forceinline__ void advance()
    {
        if (++stage == L::stages) stage = 0, phase ^= 1;
    }

    // Rows were written by ordinary asynchronous copies; the matrix instructions read by another path.
    __device__ __forceinline__ void wait_for_unit() const
    {
        mbarrier_wait(full(stage), phase);
        fence_async_proxy();
    }

    // Copy the 16-byte pieces of one row of 64 * blocks numbers that fall to this thread, 8 threads a row.
    template <int blocks>
    __device__ __forceinline__ void copy_row(shared_address to, int block_bytes, int row, const T* from) const
    {
        const int piece = thread & 7;
        const shared_address at = to + row * 128 + ((piece ^ (row & 7)) << 4);
#pragma unroll
        for (int i = 0; i < blocks; ++i) copy_async_16(at + i * block_bytes, from + 64 * i + 8 * piece);
    }

    // ---- group 2 ----

    __device__ __forceinline__ bool choose_item() const
    {
        mbarrier_wait(item_empty(), (segments >> 1 & 1) ^ 1);
        if (warp == 0) {             // the place in the list goes from item to item
            if (segments > 0 && lane == 0) item().segment = reinterpret_cast<Item<T>*>(shared + L::item + (~segments & 1) * L::item_bytes)->segment;
            __syncwarp();
            next_item(call, item());
        }
        named_barrier(1, 128);
        mbarrier_arrive(item_full());
        return item().segment.active;
    }

    __device__ __forceinline__ const T* q_row(int i) const
    {
        const auto& it = item();
        const int heads = call.batch.heads, row = min(it.segment.tile * L::rows + i, it.real * heads - 1);
        return call.q + ((long long)it.segment.request * call.batch.nodes * heads + row) * kd_width;
    }

    // Bit j of row `thread`: it sees KV row 48 * u + j.
    __device__ __forceinline__ void note_seen(int u) const
    {
        const auto& it = item();
        const int node = min((it.segment.tile * L::rows + thread) / call.batch.heads, call.batch.nodes - 1);
        const unsigned* words = call.mask + ((long long)it.segment.request * call.batch.nodes + node) * call.words;
        seen(stage)[thread] = make_uint2(visible_rows(words, call.words, u * KD_UNIT, it.kv.length, it.kv.total),
                                         visible_rows(words, call.words, u * KD_UNIT + 32, it.kv.length, it.kv.total));
    }

    __device__ __forceinline__ void copy_segment()
    {
        mbarrier_wait(q_empty(), (segments & 1) ^ 1);
#pragma unroll 1
        for (int i = thread >> 3; i < L::rows; i += 16) copy_row<L::q_blocks>(base + L::q, L::q_block_bytes, i, q_row(i));
        copy_async_arrive(q_full());
        copy_units();
    }

    __device__ __forceinline__ void copy_units()
    {
        const auto& it = item();
        const int end = it.segment.end;
#pragma unroll 1
        for (int u = it.segment.begin; u < end; ++u) {
            mbarrier_wait(empty(stage), phase ^ 1);
#pragma unroll 1
            for (int i = thread >> 3; i < KD_UNIT; i += 16)   // rows from `total` on: copies of the last, masked
                copy_row<L::blocks>(unit(stage), L::block_bytes, i, it.kv.row(min(u * KD_UNIT + i, it.kv.total - 1)));
            if ((u + 1) * KD_UNIT > it.kv.length && thread < L::rows) note_seen(u);
            warp_arrive(full(stage));
            copy_async_arrive(full(stage));
            advance();
        }
    }

    // ---- groups 0 and 1 ----

    // Wait for the next segment; false: there is none.
    __device__ __forceinline__ bool next_item_here() const
    {
        mbarrier_wait(item_full(), segments >> 1 & 1);
        return item().segment.active;
    }

    // Divide by the sum of weights and store columns first .. first + 255 of this thread's two rows.
    __device__ __forceinline__ void store(const float (&o)[32][4], const float (&factor)[2], int first) const
    {
        const auto& it = item();
        const int heads = call.batch.heads, slot = it.segment.slot, tile_row = it.segment.tile * L::rows;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = 16 * warp + 8 * half + (lane >> 2);
            const auto value = [&](int c, int j) { return o[c][2 * half + j] * factor[half]; };
            const long long slot_at = (long long)slot * L::rows + row;
            const long long at = (long long)it.segment.request * call.batch.nodes * heads + tile_row + row;
            const bool wanted = slot >= 0 || tile_row + row < it.real * heads;
            if constexpr (same_type<KD_PARTIAL, Out>) {       // one piece of code less to fetch
                store_row<32>(slot >= 0 ? call.partial + slot_at * KD_LATENT + first : call.out + at * KD_LATENT + first, wanted, value);
            } else {
                if (slot >= 0) store_row<32>(call.partial + slot_at * KD_LATENT + first, true, value);
                else store_row<32>(call.out + at * KD_LATENT + first, wanted, value);
            }
        }
    }

    __device__ __forceinline__ static void scale(float (&o)[32][4], const float (&factor)[2])
    {
#pragma unroll
        for (int c = 0; c < 32; ++c) {
            o[c][0] *= factor[0], o[c][1] *= factor[0];
            o[c][2] *= factor[1], o[c][3] *= factor[1];
        }
    }

    // o += weights * the 256 columns of values from column block `first_block` on.
    __device__ __forceinline__ void multiply_pv(float (&o)[32][4], const unsigned (&p)[3][4], int at, int first_block) const
    {
        const Descriptor values = matrix_at(unit(at) + first_block * L::block_bytes, L::block_bytes);
#pragma unroll
        for (int k = 0; k < 3; ++k) wgmma_values<T>(o, p[k], moved(values, k * 16 * 128), true);
    }

#include "verify_attn_group0.cuh"
};

#endif
