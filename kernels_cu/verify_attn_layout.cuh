// verify_attn_layout.cuh: shared memory of one tile of verify_attn_tile.cuh, in bytes.
#ifndef KD_VERIFY_ATTN_LAYOUT_CUH
#define KD_VERIFY_ATTN_LAYOUT_CUH

#include "verify_attn_kv.cuh"

#ifndef KD_STAGES
#define KD_STAGES 3       // units of 16 rows in the ring, at least 3
#endif

template <int MT, int GROUPS, class Row = NumberRow<KD_QUERY>>
struct Layout {
    static constexpr int warps = 4 * GROUPS, threads = 32 * warps, group_rows = 16 * MT, rows = group_rows * GROUPS;
    static constexpr int latent = KD_LATENT / 4, rope = KD_ROPE / 4;               // of one warp
    static constexpr int q_bytes = 2 * kd_width, q_pitch = q_bytes + 16;           // pitch / 16 is odd: no bank conflicts
    static constexpr int row_bytes = Row::bytes, pitch = row_bytes + (row_bytes / 16 % 2 ? 0 : 16);
    static constexpr int rope_pitch = 2 * KD_ROPE + 16, weight_pitch = Row::scaled ? 96 : 48;
    static constexpr int score_bytes = MT == 2 ? 4 * 3 * 512 : 2 * 4 * 512;        // owners x others x a quarter's scores
    static constexpr int ring = 0, scores = KD_STAGES * KD_UNIT * pitch;
    static constexpr int weights = scores + GROUPS * 2 * score_bytes;
    static constexpr int scales = weights + GROUPS * 2 * group_rows * weight_pitch;
    static constexpr int rope_q = scales + GROUPS * 2 * group_rows * 4;
    static constexpr int barriers = rope_q + rows * rope_pitch;                    // full, then empty, then Q
    static constexpr int item = barriers + (2 * KD_STAGES + 2) * 8;
    static constexpr int mask_rows = item + 144;                                   // where each row's mask words lie
    static constexpr int bytes = mask_rows + 8 * rows;
    static_assert(KD_UNIT == 16 && KD_STAGES >= 3, "a unit is one tensor-core tile; the ring holds three in use");
    static_assert(KD_LATENT % 64 == 0 && KD_ROPE % 64 == 0 && row_bytes % 16 == 0 && pitch / 16 % 2 == 1, "quarters are tensor-core tiles");
    static_assert(rows * q_pitch <= scales, "Q passes through the ring, the scores and the weights");
    static_assert(sizeof(Item<KD_QUERY, Row>) + 4 <= 144, "room for the item and the parity of Q");
};

#endif
