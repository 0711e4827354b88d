// verify_attn_group2_fp8.cuh: part of struct Groups: group 2 brings KV rows of 8-bit floats into the ring as bfloat16.
//
// Eight threads have a row of a unit, pieces of 16 bytes in turn, and three rows one after the other.  Rows come through
// registers: a piece of the next row is under way as soon as one of this row is widened and stored.  Rows with scales are
// multiplied here, the eight pieces of a turn by one scale: exact for powers of two, else rounded to bfloat16.

    static constexpr int pieces = Row::fp8 && Row::scaled ? KD_LATENT / 16 : Row::bytes / 16, row_turns = KD_UNIT / 16;
    static constexpr int row_loads = ceil_div(pieces, 8);      // of 8-bit numbers; then scales and rotary numbers

    // Row `turn` of this thread's three of unit u; rows from `total` on: the last, masked.
    __device__ __forceinline__ const uint4* row_pieces(int u, int turn) const
    {
        const auto& kv = item().kv;
        const int t = min(u * KD_UNIT + 16 * turn + (thread >> 3), kv.total - 1);
        return reinterpret_cast<const uint4*>(kv.row(t, Row::length));
    }

    // Piece `piece` of 16 bytes of block `block` of a row in the ring.
    __device__ __forceinline__ uint4& ring_piece(int block, int row, int piece) const
    {
        unsigned char* to = shared + L::ring + stage * L::unit_bytes + block * L::block_bytes + row * 128;
        return *reinterpret_cast<uint4*>(to + ((piece ^ (row & 7)) << 4));
    }

    // Sixteen numbers, piece `at` of `row`, are two pieces of the ring.
    __device__ __forceinline__ void store_wide(uint4 from, float scale, int at, int row) const
    {
        const unsigned words[4] = {from.x, from.y, from.z, from.w};
        unsigned wide[8];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (Row::scaled) widen_scaled(words[i], scale, wide[2 * i], wide[2 * i + 1]);
            else widen_in_order(words[i], wide[2 * i], wide[2 * i + 1]);
        }
        ring_piece(at >> 2, row, 2 * (at & 3)) = make_uint4(wide[0], wide[1], wide[2], wide[3]);
        ring_piece(at >> 2, row, 2 * (at & 3) + 1) = make_uint4(wide[4], wide[5], wide[6], wide[7]);
    }

    __device__ __forceinline__ void widen_units()
    {
        const int begin = item().segment.begin, end = item().segment.end, column = thread & 7;
        uint4 loaded[row_loads], rope = {};
        float4 scales = {};
        const uint4* from = row_pieces(begin, 0);
#pragma unroll
        for (int i = 0; i < row_loads; ++i)
            if (8 * i + column < pieces) loaded[i] = from[8 * i + column];
        if constexpr (Row::scaled) scales = reinterpret_cast<const float4*>(from)[pieces], rope = from[pieces + 1 + column];
#pragma unroll 1
        for (int u = begin; u < end; ++u) {
            mbarrier_wait(empty(stage), phase ^ 1);
#pragma unroll 1
            for (int turn = 0; turn < row_turns; ++turn) {
                const bool last = turn + 1 == row_turns;
                const int row = 16 * turn + (thread >> 3);
                from = row_pieces(min(last ? u + 1 : u, end - 1), last ? 0 : turn + 1);
#pragma unroll
                for (int i = 0; i < row_loads; ++i) {
                    if (8 * i + column >= pieces) continue;
                    store_wide(loaded[i], i == 0 ? scales.x : i == 1 ? scales.y : i == 2 ? scales.z : scales.w, 8 * i + column, row);
                    loaded[i] = from[8 * i + column];
                }
                if constexpr (Row::scaled) {
                    ring_piece(KD_LATENT / 64, row, column) = rope;
                    scales = reinterpret_cast<const float4*>(from)[pieces], rope = from[pieces + 1 + column];
                }
            }
            if ((u + 1) * KD_UNIT > item().kv.length && thread < L::rows) note_seen(u);
            warp_arrive(full(stage));
            mbarrier_arrive(full(stage));
            advance();
        }
    }
