// verify_attn_fp8.cuh: part of struct Tile: products with KV rows of 8-bit floats.
//
// Rows stay 8-bit in shared memory; a warp widens the fragments that it has read to bfloat16, which is exact.  One
// 16-bit column of ldmatrix is two numbers, so lane q of four gets numbers 4q .. 4q+3 of 16 where the product wants
// 2q, 2q+1, 8+2q, 9+2q.  Any order will do that Q has as well: Q is loaded as pairs (4q, 4q+2) and (4q+1, 4q+3),
// and column 4q+j of the result stands in tile j % 2.
//
// Each warp has one quarter of the latent numbers, and so one of the four scales of a row: scores of that quarter are
// multiplied by it before the rotary part is added, weights before they are rounded.

    // Q fragment m of 16 numbers from `column` bytes on, in the order of the 8-bit rows.
    __device__ __forceinline__ void load_paired(unsigned (&a)[4], int m, int column) const
    {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = group * L::group_rows + ((2 * m + half) ^ block) * 8 + (lane >> 2);
            const uint2 four = *reinterpret_cast<const uint2*>(shared + row * L::q_pitch + column + 8 * (lane & 3));
            a[half] = __byte_perm(four.x, four.y, 0x5410), a[2 + half] = __byte_perm(four.x, four.y, 0x7632);
        }
    }

    // Eight rotary numbers of Q, piece c of a row, in that order too.
    __device__ __forceinline__ void store_paired(unsigned char* to, int c, int4 eight) const
    {
        const unsigned x = eight.x, y = eight.y, z = eight.z, w = eight.w;
        to += 32 * (c >> 1) + 8 * (c & 1);
        *reinterpret_cast<uint2*>(to) = make_uint2(__byte_perm(x, y, 0x5410), __byte_perm(z, w, 0x5410));
        *reinterpret_cast<uint2*>(to + 16) = make_uint2(__byte_perm(x, y, 0x7632), __byte_perm(z, w, 0x7632));
    }

    // Scale of this quarter, KV row 2q, 2q+1, 8+2q or 9+2q (i = 0..3) of a unit.
    __device__ __forceinline__ float row_scale(int at, int i) const
    {
        const int lane = renewed(this->lane);
        return load_float(unit(at) + (8 * (i >> 1) + (i & 1) + 2 * (lane & 3)) * L::pitch + KD_LATENT + 4 * quarter);
    }

    template <class Between>
    __device__ __forceinline__ void multiply_qk_fp8(int at, Between between)
    {
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int j = 0; j < 8; ++j) s[m][j >> 2][j & 3] = 0.0f;
        const shared_address rows = unit(at) + ((lane & 7) + (lane >> 4) * 8) * L::pitch;
        const shared_address latent = rows + quarter * L::latent + (lane >> 3 & 1) * 16;
        unsigned k[4], low[2], high[2];      // low: KV rows 0..7 of the unit
        constexpr int shift = GROUPS == 1 ? -1 : 1;   // when the softmax of the unit before is done: as registers allow
#pragma unroll
        for (int step = 0; step < steps; ++step) {
            if (step % 2 == 0) ldmatrix_x4(k, latent + 16 * step);
            widen_e4m3(k[step % 2], low[0], low[1]), widen_e4m3(k[2 + step % 2], high[0], high[1]);
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                mma_m16n8k16<T>(s[m][0], q[m][step], low[0], low[1]);
                mma_m16n8k16<T>(s[m][1], q[m][step], high[0], high[1]);
            }
            if (step + shift >= 0) between(step + shift);
        }
        if constexpr (Row::scaled) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float scale = row_scale(at, i);
#pragma unroll
                for (int m = 0; m < MT; ++m) s[m][i >> 1][i & 1] *= scale, s[m][i >> 1][2 + (i & 1)] *= scale;
            }
        }
#pragma unroll
        for (int step = 0; step < rope_steps; ++step) {
            if constexpr (Row::scaled) {
                ldmatrix_x4(k, rows + Row::rope + 2 * quarter * L::rope + 32 * step + (lane >> 3 & 1) * 16);
                low[0] = k[0], low[1] = k[1], high[0] = k[2], high[1] = k[3];
            } else {
                ldmatrix_x4(k, rows + Row::rope + quarter * L::rope + 16 * step);   // rows 0..7 twice, 8..15 twice
                widen_e4m3(k[0], low[0], low[1]), widen_e4m3(k[2], high[0], high[1]);
            }
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                unsigned a[4];
                ldmatrix_x4(a, base + L::rope_q + fragment_row(m) * L::rope_pitch + 2 * (quarter * L::rope + 16 * step) + (lane >> 4) * 16);
                mma_m16n8k16<T>(s[m][0], a, low[0], low[1]);
                mma_m16n8k16<T>(s[m][1], a, high[0], high[1]);
            }
        }
        if (shift < 0) between(steps - 1);
    }

    __device__ __forceinline__ void multiply_pv_fp8(int at, int turn)
    {
        const shared_address rows = unit(at) + (lane & 15) * L::pitch + quarter * L::latent + (lane >> 4) * 16;
        const int first = (group * 2 + turn) * L::group_rows;
        unsigned p[MT][4], v[2][4], low[2], high[2];     // low: KV rows 0..7 of the unit, even columns and odd ones
        ldmatrix_x4_trans(v[0], rows);
        if constexpr (Row::scaled) {
            const shared_address weight = base + L::weights + (first + (lane >> 2)) * L::weight_pitch + 8 * (lane & 3);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float even = row_scale(at, 2 * half), odd = row_scale(at, 2 * half + 1);
#pragma unroll
                for (int i = 0; i < 2 * MT; ++i) {
                    const float2 two = load_float2(weight + 8 * i * L::weight_pitch + 32 * half);
                    p[i >> 1][2 * half + (i & 1)] = pack_pair<T>(two.x * even, two.y * odd);
                }
            }
        } else {
            const shared_address weight = base + L::weights + (first + (lane & 15)) * L::weight_pitch + (lane >> 4) * 16;
#pragma unroll
            for (int m = 0; m < MT; ++m) ldmatrix_x4(p[m], weight + m * 16 * L::weight_pitch);
        }
#pragma unroll
        for (int c = 0; c < columns / 2; ++c) {          // 16 columns
            if (c % 2 == 0 && c + 2 < columns / 2) ldmatrix_x4_trans(v[(c / 2 + 1) & 1], rows + 16 * (c + 2));
            const unsigned(&now)[4] = v[c / 2 & 1];
            widen_e4m3<false>(now[2 * (c % 2)], low[0], low[1]), widen_e4m3<false>(now[2 * (c % 2) + 1], high[0], high[1]);
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                mma_m16n8k16<T>(o[m][2 * c], p[m], low[0], high[0]);
                mma_m16n8k16<T>(o[m][2 * c + 1], p[m], low[1], high[1]);
            }
        }
    }

    // As store_eight_rows; lane q has columns 4q .. 4q+3 of 16.
    template <int i, class Number>
    __device__ __forceinline__ void store_fours(Number* to, bool wanted) const
    {
        constexpr int j = 2 * (i & 1);
#pragma unroll
        for (int c = 0; c < columns / 2; ++c) {
            const float(&even)[4] = o[i >> 1][2 * c], (&odd)[4] = o[i >> 1][2 * c + 1];
            if (wanted) store_four(to + 16 * c + 4 * (lane & 3), even[j], odd[j], even[j + 1], odd[j + 1]);
        }
    }
