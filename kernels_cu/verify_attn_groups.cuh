// verify_attn_groups.cuh: attention of one tile of 64 query rows by three warp groups (sm_90a).
//
//   group 0   scores Q K of unit i+1 run while it takes the softmax of unit i; result columns 0..255
//   group 1   result columns 256..511, with the weights that group 0 hands over; chooses the next segment
//   group 2   copies KV rows into a ring of three units of 48 rows
//
// Shared memory holds KV rows and Q in blocks of 64 columns, rows of 128 bytes, swizzled as wgmma.cuh says.  Nine
// blocks a unit; of Q seven blocks, the other two are registers of group 0: so much fits and no more.
#ifndef KD_VERIFY_ATTN_GROUPS_CUH
#define KD_VERIFY_ATTN_GROUPS_CUH

#define KD_UNIT 48
#include "verify_attn_kv.cuh"
#include "verify_attn_work.cuh"
#include "wgmma.cuh"

#ifndef KD_LAZY
#define KD_LAZY 8.0f      // the running maximum moves when a score is larger by this many powers of two
#endif

template <class T, class Out>
struct GroupCall {
    const T *q, *cache, *tree;
    const unsigned* mask;
    const int* pages;
    Out* out;
    float *lse, *partial, *partial_lse;
    int4* table;
    Batch batch;
    int words, page_size, most_pages;
    long long page_stride;
    float scale;                     // of q.k, times log2(e): scores are in powers of two
};

struct GroupItem {
    Segment segment;
    int length, total, real;
};

struct GroupLayout {
    static constexpr int rows = 64, stages = 3, blocks = kd_width / 64, q_blocks = blocks - 2, threads = 384;
    static constexpr int block_bytes = KD_UNIT * 128, unit_bytes = blocks * block_bytes, q_block_bytes = rows * 128;
    static constexpr int ring = 0, q = stages * unit_bytes, weights = q + q_blocks * q_block_bytes;
    static constexpr int factors = weights + 3 * 128 * 16;     // weights and factors of each thread of group 0
    static constexpr int barriers = factors + 128 * 8;         // full and empty units, full and empty weights
    static constexpr int item = barriers + (2 * stages + 2) * 8;
    static constexpr int bytes = item + 96;
    static_assert(bytes <= 232448 && sizeof(GroupItem) <= 96, "shared memory of sm_90");
    static_assert(block_bytes % 1024 == 0 && KD_LATENT == 512 && KD_ROPE == 64, "swizzled blocks; two halves of 256");
};

template <class T, class Out>
struct Groups {
    using L = GroupLayout;
    static constexpr int q_steps = 4 * L::q_blocks, register_steps = 8;

    const GroupCall<T, Out>& call;
    unsigned char* const shared;
    const shared_address base;
    const int thread, lane, warp;    // of the group
    int stage, phase, turn;          // place in the ring and its parity; parity of the weights

    __device__ __forceinline__ Groups(const GroupCall<T, Out>& call, unsigned char* shared)
        : call(call), shared(shared), base(shared_pointer(shared)), thread((int)threadIdx.x & 127), lane(lane_id()),
          warp(__shfl_sync(KD_FULL_MASK, thread >> 5, 0)), stage(0), phase(0), turn(0) {}

    __device__ __forceinline__ GroupItem& item() const { return *reinterpret_cast<GroupItem*>(shared + L::item); }
    __device__ __forceinline__ shared_address full(int i) const { return base + L::barriers + 8 * i; }
    __device__ __forceinline__ shared_address empty(int i) const { return base + L::barriers + 8 * (L::stages + i); }
    __device__ __forceinline__ shared_address weights_full() const { return base + L::barriers + 16 * L::stages; }
    __device__ __forceinline__ shared_address weights_empty() const { return base + L::barriers + 16 * L::stages + 8; }
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

    __device__ __forceinline__ void release_unit(int at) const
    {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty(at));
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

    __device__ __forceinline__ void copy_units()
    {
        const GroupItem& it = item();
        const KvRows<T> kv = kv_rows(call.cache, call.tree, call.pages, call.page_stride, call.page_size, call.most_pages,
                                     it.segment.request, it.length, call.batch.nodes, it.real);
        const int end = it.segment.end;
#pragma unroll 1
        for (int u = it.segment.begin; u < end; ++u) {
            mbarrier_wait(empty(stage), phase ^ 1);
#pragma unroll 1
            for (int i = thread >> 3; i < KD_UNIT; i += 16)   // rows from `total` on: copies of the last, masked
                copy_row<L::blocks>(unit(stage), L::block_bytes, i, kv.row(min(u * KD_UNIT + i, kv.total - 1)));
            copy_async_arrive(full(stage));
            advance();
        }
    }

    // ---- groups 0 and 1 ----

    __device__ __forceinline__ const T* q_row(int i) const
    {
        const GroupItem& it = item();
        const int heads = call.batch.heads, row = min(it.segment.tile * L::rows + i, it.real * heads - 1);
        return call.q + ((long long)it.segment.request * call.batch.nodes * heads + row) * kd_width;
    }

    __device__ __forceinline__ void copy_q(int group) const
    {
#pragma unroll 1
        for (int i = 16 * group + (thread >> 3); i < L::rows; i += 32)
            copy_row<L::q_blocks>(base + L::q, L::q_block_bytes, i, q_row(i));
        copy_async_wait();
        fence_async_proxy();
        named_barrier(1, 256);
    }

    // Divide by the sum of weights and store columns first .. first + 255 of this thread's two rows.
    __device__ __forceinline__ void store(const float (&o)[32][4], const float (&factor)[2], int first) const
    {
        const GroupItem& it = item();
        const int heads = call.batch.heads, slot = it.segment.slot, tile_row = it.segment.tile * L::rows;
        const int column = first + 2 * (lane & 3);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = 16 * warp + 8 * half + (lane >> 2);
            const float f = factor[half];
            if (slot >= 0) {
                float* to = call.partial + ((long long)slot * L::rows + row) * KD_LATENT + column;
#pragma unroll
                for (int c = 0; c < 32; ++c) store_pair(to + 8 * c, o[c][2 * half] * f, o[c][2 * half + 1] * f);
            } else if (tile_row + row < it.real * heads) {
                Out* to = call.out + ((long long)it.segment.request * call.batch.nodes * heads + tile_row + row) * KD_LATENT + column;
#pragma unroll
                for (int c = 0; c < 32; ++c) store_pair(to + 8 * c, o[c][2 * half] * f, o[c][2 * half + 1] * f);
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
