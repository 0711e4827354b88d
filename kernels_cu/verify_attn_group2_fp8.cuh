// verify_attn_group2_fp8.cuh: part of struct Groups: group 2 brings KV rows of 8-bit floats into the ring as bfloat16.
//
// Eight threads have a row of a unit, pieces of 16 bytes in turn, and three rows one after the other.  Rows come through
// registers: while the numbers of one are widened and stored, those of the next are under way.

    static constexpr int pieces = Row::bytes / 16, row_loads = ceil_div(pieces, 8), row_turns = KD_UNIT / 16;

    // This thread's first piece of row `turn` of its three of unit u; rows from `total` on: the last, masked.
    __device__ __forceinline__ const uint4* row_pieces(int u, int turn) const
    {
        const auto& kv = item().kv;
        const int t = min(u * KD_UNIT + 16 * turn + (thread >> 3), kv.total - 1);
        return reinterpret_cast<const uint4*>(kv.row(t, Row::length)) + (thread & 7);
    }

    // Sixteen numbers, piece `at` of `row`, are two swizzled pieces of 16 bytes.
    __device__ __forceinline__ void store_wide(uint4 from, int at, int row) const
    {
        unsigned wide[8];
        widen_in_order(from.x, wide[0], wide[1]), widen_in_order(from.y, wide[2], wide[3]);
        widen_in_order(from.z, wide[4], wide[5]), widen_in_order(from.w, wide[6], wide[7]);
        const int piece = 2 * (at & 3);
        unsigned char* to = shared + L::ring + stage * L::unit_bytes + (at >> 2) * L::block_bytes + row * 128;
        *reinterpret_cast<uint4*>(to + ((piece ^ (row & 7)) << 4)) = make_uint4(wide[0], wide[1], wide[2], wide[3]);
        *reinterpret_cast<uint4*>(to + (((piece + 1) ^ (row & 7)) << 4)) = make_uint4(wide[4], wide[5], wide[6], wide[7]);
    }

    __device__ __forceinline__ void widen_units()
    {
        const int begin = item().segment.begin, end = item().segment.end, column = thread & 7;
        uint4 loaded[row_loads];
        const uint4* from = row_pieces(begin, 0);
#pragma unroll
        for (int i = 0; i < row_loads; ++i)
            if (8 * i + column < pieces) loaded[i] = from[8 * i];
#pragma unroll 1
        for (int u = begin; u < end; ++u) {
            mbarrier_wait(empty(stage), phase ^ 1);
#pragma unroll 1
            for (int turn = 0; turn < row_turns; ++turn) {
                const bool last = turn + 1 == row_turns;
                from = row_pieces(min(last ? u + 1 : u, end - 1), last ? 0 : turn + 1);
#pragma unroll
                for (int i = 0; i < row_loads; ++i) {
                    if (8 * i + column >= pieces) continue;
                    store_wide(loaded[i], 8 * i + column, 16 * turn + (thread >> 3));
                    loaded[i] = from[8 * i];
                }
            }
            if ((u + 1) * KD_UNIT > item().kv.length && thread < L::rows) note_seen(u);
            warp_arrive(full(stage));
            mbarrier_arrive(full(stage));
            advance();
        }
    }
