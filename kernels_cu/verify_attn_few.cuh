// verify_attn_few.cuh: attention of a tile of 8, 16 or 32 query rows, as fast as memory delivers the KV rows.
//
// KV rows are the long side of the tensor-core products: S^T = K Q^T, 16 KV rows x 8 query rows, and O^T = V^T P^T,
// 512 numbers x 8 query rows.  So a warp has eight query rows and all numbers of a KV row to itself, and needs no
// other warp inside its loop: no barrier, no exchange of scores.  Warps that share KV rows (one for each eight
// query rows) are a team; the teams of a block take units of 16 KV rows in turn, each through slots of its own, and
// their results are added in ascending order when the segment ends.
//
//   registers  Q of eight rows (72), O^T (128), scores
//   shared     slots, one unit each | numbers of the teams, barriers, item.  Q passes through the last slots before
//              units do, results through all of them afterwards
//
// Copies: a unit whose rows lie side by side is started by one lane; else a lane a row (page tables of small pages).
#ifndef KD_VERIFY_ATTN_FEW_CUH
#define KD_VERIFY_ATTN_FEW_CUH

#include "async_copy.cuh"
#include "verify_attn_rows.cuh"

#ifndef KD_SLOTS
#define KD_SLOTS 5        // of a block, a unit each: 5 fit 100 KB of shared memory, 12 fit 227 KB; of 8-bit rows 8 and 16
#endif
#ifndef KD_WARPS
#define KD_WARPS 0        // of a block; 0: 4, or 8 (6 where a team is one warp; not 8-bit rows) if there are slots
#endif
#ifndef KD_CHAINS
#define KD_CHAINS 2       // sums of scores side by side
#endif
#ifndef KD_COMB
#define KD_COMB true      // how one request is cut: see only_segment
#endif

template <int GROUPS, class Row = NumberRow<KD_QUERY>>
struct FewLayout {
    static constexpr int warps = KD_WARPS ? KD_WARPS : KD_SLOTS < 12 ? 4 : GROUPS == 1 && !Row::fp8 ? 6 : 8, threads = 32 * warps;
    static constexpr int rows = 8 * GROUPS, teams = warps / GROUPS;
    static constexpr int team_slots = KD_SLOTS / teams == 5 ? 4 : KD_SLOTS / teams;   // remainders by 5 cost registers
    static constexpr int row_bytes = Row::bytes, q_bytes = 2 * kd_width, q_pitch = q_bytes + 16;
    // Rows of a unit lie side by side in runs, as many as leave ldmatrix without bank conflicts, 16 bytes apart.  If even
    // two would meet the same banks, a product takes eight rows of one parity and then those of the other.
    static constexpr int run = row_bytes / 16 % 2 ? KD_UNIT : 2;
    static constexpr bool parity = row_bytes / 16 % 8 == 0;
    static constexpr int run_pitch = run * row_bytes + (run == KD_UNIT ? 0 : 16), unit_bytes = KD_UNIT / run * run_pitch;
    static constexpr int result_pitch = KD_LATENT + 4;         // floats; a multiple of 4 that spreads over the banks
    static constexpr int numbers = KD_SLOTS * unit_bytes, q = numbers - ceil_div(rows * q_pitch, unit_bytes) * unit_bytes;
    static constexpr int units = numbers + warps * 8 * 8;      // of results of 8-bit rows with scales
    static constexpr int barriers = units + (Row::scaled ? 128 * warps : 0);   // full, then empty: slots; then Q
    static constexpr int item = barriers + (2 * KD_SLOTS + 1) * 8, bytes = item + 144;
    static_assert(warps % GROUPS == 0 && KD_UNIT == 16 && (run == KD_UNIT || run_pitch / 16 % 2 == 1), "whole teams; no bank conflicts");
    static_assert(team_slots > 0 && warps * 8 * result_pitch * 4 <= numbers, "results of all warps fit the slots");
    static_assert(KD_LATENT % 16 == 0 && KD_ROPE % 16 == 0 && sizeof(Item<__half, Row>) <= 144, "whole products; the item");
    static_assert(parity || run == KD_UNIT || row_bytes / 16 % 8 == 4, "runs of two rows");
    static constexpr __device__ __forceinline__ int row_at(int i) { return i / run * run_pitch + i % run * row_bytes; }   // in a unit
    static constexpr __device__ __forceinline__ int number_at(int i) { return parity ? i % 8 * 2 + i / 8 : i; }           // of row i of a product
};

template <class T, class Out, int GROUPS, class Row = NumberRow<T>>
struct Few {
    using L = FewLayout<GROUPS, Row>;
    using Element = typename Row::Element;
    static constexpr int steps = kd_width / 16, columns = KD_LATENT / 16, chains = KD_CHAINS;

    const Call<T, Out, Row>& call;
    unsigned char* const shared;
    const shared_address base;
    int lane, warp;
    unsigned taken;                      // units that the team has been through: place in its ring of slots
    unsigned q[steps][2];
    float o[columns][4], row_max[2], row_sum[2];   // of rows 2q, 2q+1 (q = lane % 4); sums of this lane's KV rows

    __device__ __forceinline__ Few(const Call<T, Out, Row>& call, unsigned char* shared)
        : call(call), shared(shared), base(shared_pointer(shared)), lane(lane_id()),
          warp(__shfl_sync(KD_FULL_MASK, warp_id(), 0)), taken(0) {}

    __device__ __forceinline__ int team() const { return warp / GROUPS; }
    __device__ __forceinline__ int group() const { return warp % GROUPS; }   // which eight rows of the tile
    __device__ __forceinline__ Item<T, Row>& item() const { return *reinterpret_cast<Item<T, Row>*>(shared + L::item); }
    __device__ __forceinline__ float2* numbers(int warp) const { return reinterpret_cast<float2*>(shared + L::numbers) + 8 * warp; }
    __device__ __forceinline__ shared_address full(int slot) const { return base + L::barriers + 8 * (team() * L::team_slots + slot); }
    __device__ __forceinline__ shared_address empty(int slot) const { return full(slot) + 8 * KD_SLOTS; }
    __device__ __forceinline__ shared_address q_full() const { return base + L::barriers + 16 * KD_SLOTS; }
    __device__ __forceinline__ shared_address unit(int slot) const { return base + (team() * L::team_slots + slot) * L::unit_bytes; }

    // ---- copies, each by a whole warp ----

    // `rows` rows to `to`; `together`: they lie side by side from row_at(0) on.
    template <int rows, class RowAt>
    __device__ __forceinline__ void copy_rows(shared_address to, shared_address barrier, bool together, RowAt row_at) const
    {
#if KD_BULK_COPY
        bulk_expect(barrier, rows * L::row_bytes);
        if (together) {
            const Element* from = row_at(0);
#pragma unroll
            for (int i = 0; i < rows; i += L::run) bulk_copy_once(to + L::row_at(i), from + i * Row::length, L::run * L::row_bytes, barrier);
        } else if (lane < rows) {
            bulk_copy(to + L::row_at(lane), row_at(lane), L::row_bytes, barrier);
        }
#else
#pragma unroll 1
        for (int i = lane >> 3; i < rows; i += 4) {      // eight lanes a row
            const char* from = reinterpret_cast<const char*>(row_at(i)) + 16 * (lane & 7);
            const shared_address at = to + L::row_at(i) + 16 * (lane & 7);
#pragma unroll
            for (int c = 0; c < L::row_bytes; c += 128)
                if (c + 128 <= L::row_bytes || c + 16 * (lane & 7) < L::row_bytes) copy_async_16(at + c, from + c);
        }
        copy_async_arrive(barrier);
#endif
    }

    // Rows from `total` on are copies of the last real one: finite, and masked.
    __device__ __forceinline__ void copy_unit(int u, int slot) const
    {
        const auto& kv = item().kv;
        const bool together = (u + 1) * KD_UNIT <= (kv.tree ? kv.length : kv.total) && (!kv.pages || kv.page_size % KD_UNIT == 0);
        copy_rows<KD_UNIT>(unit(slot), full(slot), together, [&](int i) { return kv.row(min(u * KD_UNIT + i, kv.total - 1), Row::length); });
    }

    // Rows are shared out to all warps.
    __device__ __forceinline__ void copy_q() const
    {
        const auto& it = item();
        const int heads = call.batch.heads, first = it.segment.tile * L::rows, last = it.real * heads - 1;
        const T* rows = call.q + (long long)it.segment.request * (call.batch.nodes * heads) * kd_width;
        for (int i = warp; i < L::rows; i += L::warps) {
            const T* from = rows + (long long)min(first + i, last) * kd_width;
            const shared_address to = base + L::q + i * L::q_pitch;
#if KD_BULK_COPY
            bulk_expect(q_full(), L::q_bytes);
            bulk_copy_once(to, from, L::q_bytes, q_full());
#else
            for (int c = lane; c < L::q_bytes / 16; c += 32) copy_async_16(to + 16 * c, from + 8 * c);
            copy_async_arrive(q_full());
#endif
        }
    }

    // Start the first units, those whose slots Q is in (`q_slots`) or the others.
    __device__ __forceinline__ void copy_first_units(bool q_slots) const
    {
        const Segment& s = item().segment;
#pragma unroll 1
        for (int i = group(); i < L::team_slots; i += GROUPS) {
            const int u = s.begin + (team() + i * L::teams) * s.step, slot = (int)((taken + i) % L::team_slots);
            if (u < s.end && ((team() * L::team_slots + slot + 1) * L::unit_bytes > L::q) == q_slots) copy_unit(u, slot);
        }
    }

    // ---- one unit ----

    __device__ __forceinline__ void load_q()
    {
        if constexpr (Row::fp8) return load_q_fp8();
        const shared_address rows = base + L::q + (8 * group() + (lane & 7)) * L::q_pitch + 16 * (lane >> 3);
#pragma unroll
        for (int step = 0; step < steps; step += 2) {
            unsigned four[4];
            ldmatrix_x4(four, rows + 32 * step);
            q[step][0] = four[0], q[step][1] = four[1], q[step + 1][0] = four[2], q[step + 1][1] = four[3];
        }
    }

    // Scores of rows g, 8 + g of the product (g = lane / 4) for query rows 2q, 2q+1; `chains` sums side by side.
    __device__ __forceinline__ void multiply_qk(int slot, float (&x)[2][2]) const
    {
        if constexpr (Row::fp8) return multiply_qk_fp8(slot, x);
        const shared_address rows = unit(slot) + L::row_at(L::number_at(lane & 15)) + (lane >> 4) * 16;
        float s[chains][4] = {};
        unsigned k[2][4];
        ldmatrix_x4(k[0], rows);
#pragma unroll
        for (int step = 0; step < steps; ++step) {
            if (step + 1 < steps) ldmatrix_x4(k[(step + 1) & 1], rows + 32 * (step + 1));
            mma_m16n8k16<T>(s[step % chains], k[step & 1], q[step][0], q[step][1]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float sum = s[0][i];
#pragma unroll
            for (int c = 1; c < chains; ++c) sum += s[c][i];
            x[i >> 1][i & 1] = sum * call.scale;
        }
    }

    __device__ __forceinline__ void hide(int u, float (&x)[2][2]) const
    {
        const auto& it = item();
        const int heads = call.batch.heads, first = it.segment.tile * L::rows + 8 * group() + 2 * (lane & 3);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int node = min(first + j, it.real * heads - 1) / heads;
            const unsigned* words = call.mask + ((long long)it.segment.request * call.batch.nodes + node) * call.words;
            const unsigned seen = visible_rows(words, call.words, u * KD_UNIT, it.kv.length, it.kv.total) >> L::number_at(lane >> 2);
            if (!(seen & 1u)) x[0][j] = -KD_INFINITY;
            if (!(seen >> L::number_at(8) & 1u)) x[1][j] = -KD_INFINITY;
        }
    }

    // Weights of the unit as a fragment of P^T.
    __device__ __forceinline__ void softmax(float (&x)[2][2], unsigned (&p)[2])
    {
        float most[2] = {fmaxf(x[0][0], x[1][0]), fmaxf(x[0][1], x[1][1])};
        if (__any_sync(KD_FULL_MASK, most[0] > row_max[0] + KD_LAZY || most[1] > row_max[1] + KD_LAZY)) {
            float factor[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
#pragma unroll
                for (int apart = 4; apart < 32; apart *= 2) most[j] = fmaxf(most[j], __shfl_xor_sync(KD_FULL_MASK, most[j], apart));
                const float now = most[j] > row_max[j] + KD_LAZY ? (Row::scaled ? ceilf(most[j]) : most[j]) : row_max[j];
                factor[j] = Row::scaled ? whole_power(row_max[j] - now) : fast_exp2(row_max[j] - now);
                row_max[j] = now, row_sum[j] *= factor[j];
            }
            if constexpr (Row::scaled) {
                lower_units(factor);
            } else {
#pragma unroll
                for (int c = 0; c < columns; ++c)
#pragma unroll
                    for (int i = 0; i < 4; ++i) o[c][i] *= factor[i & 1];
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                x[i][j] = fast_exp2(x[i][j] - row_max[j]);
                row_sum[j] += x[i][j];
            }
            if constexpr (!Row::fp8) p[i] = transpose_8x8(pack_pair<T>(x[i][0], x[i][1]));
        }
    }

    __device__ __forceinline__ void multiply_pv(int slot, const unsigned (&p)[2])
    {
        const shared_address rows = unit(slot) + L::row_at(L::number_at((lane & 7) + (lane >> 4) * 8)) + (lane >> 3 & 1) * 16;
        unsigned v[2][4];
        ldmatrix_x4_trans(v[0], rows);
#pragma unroll
        for (int c = 0; c < columns; ++c) {
            if (c + 1 < columns) ldmatrix_x4_trans(v[(c + 1) & 1], rows + 32 * (c + 1));
            mma_m16n8k16<T>(o[c], v[c & 1], p[0], p[1]);
        }
    }

    __device__ __forceinline__ void run_units()
    {
        copy_q();
#pragma unroll 1
        for (int pass = 0; pass < 2; ++pass) {           // two passes of a loop: one piece of code less to fetch
            copy_first_units(pass);
            if (pass) break;
            mbarrier_wait(q_full(), item().spare);
            load_q();
            __syncthreads();         // Q is out of its slots
        }
        row_max[0] = row_max[1] = kd_least, row_sum[0] = row_sum[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < 4 * columns; ++i) o[i >> 2][i & 3] = 0.0f;
        if constexpr (Row::scaled) clear_units();
        const Segment& segment = item().segment;         // the loop has no register for its end
#pragma unroll 1
        for (int u = segment.begin + team() * segment.step; u < segment.end; u += L::teams * segment.step, ++taken) {
            lane = renewed(lane), warp = renewed(warp);   // addresses kept over the loop would cost more registers than there are
            const int slot = (int)(taken % L::team_slots), ahead = u + L::team_slots * L::teams * segment.step;
            const unsigned parity = taken / L::team_slots & 1u;
            mbarrier_wait(full(slot), parity);
            float x[2][2];
            unsigned p[2];
            multiply_qk(slot, x);
            if ((u + 1) * KD_UNIT > item().kv.length) hide(u, x);
            softmax(x, p);
            if constexpr (Row::fp8) multiply_pv_fp8(slot, x);
            else multiply_pv(slot, p);
            warp_arrive(empty(slot));
            if (taken % GROUPS == group() && ahead < segment.end) {   // the warps of a team take turns
                mbarrier_wait(empty(slot), parity);
                copy_unit(ahead, slot);
            }
        }
    }

#include "verify_attn_few_fp8.cuh"
#include "verify_attn_few_end.cuh"
};

#endif
