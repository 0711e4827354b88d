// verify_attn_few_fp8.cuh: part of struct Few: products with KV rows of 8-bit floats, which stay 8-bit in shared memory.
//
// Scores are products in float16, whose 11 digits and range hold every e4m3 number: one instruction widens two.  Queries
// are brought into that range by a power of two for each row, which is exact down to 2^-33 of the row's largest.  Results are
// products in bfloat16, for weights times scales may have any size.  A word of ldmatrix is four numbers of a row (keys) or
// two numbers of two rows (values); queries, and the places of results, are chosen to suit.
//
// Rows with scales: scores of each 128 numbers are multiplied by theirs in float, weights before they are rounded.

    static constexpr int eights = Row::fp8 && Row::scaled ? KD_LATENT / 16 : steps;   // steps on 8-bit numbers; rotary ones after them

    // Lane (g, q) gets numbers 4q .. 4q+3 of 16 of row g; rotary numbers in bfloat16 as load_q gets them.
    __device__ __forceinline__ void load_q_fp8()
    {
        const unsigned char* row = shared + L::q + (8 * group() + (lane >> 2)) * L::q_pitch;
        float most = 0.0f;
#pragma unroll
        for (int step = 0; step < steps; ++step) {
            const unsigned char* from = row + 32 * step + (step < eights ? 8 : 4) * (lane & 3);
            q[step][0] = *reinterpret_cast<const unsigned*>(from);
            q[step][1] = *reinterpret_cast<const unsigned*>(from + (step < eights ? 4 : 16));
            if (step >= eights) continue;
#pragma unroll
            for (int i = 0; i < 4; ++i) most = fmaxf(most, fabsf(unpack_half<T>(q[step][i >> 1], i & 1)));
        }
        most = fmaxf(most, __shfl_xor_sync(KD_FULL_MASK, most, 1));
        most = fmaxf(most, __shfl_xor_sync(KD_FULL_MASK, most, 2));
        const int exponent = min(max((int)(__float_as_uint(most) >> 23), 8), 253);     // the largest becomes 2^7 .. 2^8
        const float down = __uint_as_float((unsigned)(261 - exponent) << 23), up = __uint_as_float((unsigned)(exponent - 7) << 23);
#pragma unroll
        for (int step = 0; step < eights; ++step)
#pragma unroll
            for (int i = 0; i < 2; ++i) q[step][i] = pack_pair<__half>(unpack_half<T>(q[step][i], 0) * down, unpack_half<T>(q[step][i], 1) * down);
        if ((lane & 3) == 0) store_float(factor_at(warp) + 4 * (lane >> 2), up * call.scale);   // a barrier follows
    }

    // What scores of each of this warp's eight rows are times, where its sums will stand in the end.
    __device__ __forceinline__ shared_address factor_at(int warp) const { return base + L::numbers + 64 * warp; }

    // Scale of 128 numbers `part` of KV row g or 8 + g of a unit.
    __device__ __forceinline__ float row_scale(int slot, int half, int part) const
    {
        const int lane = renewed(this->lane);        // addresses kept would cost more registers than there are
        return load_float(unit(slot) + L::row_at(8 * half + (lane >> 2)) + KD_LATENT + 4 * part);
    }

    // As multiply_qk; rows with scales leave registers for one sum only.
    __device__ __forceinline__ void multiply_qk_fp8(int slot, float (&x)[2][2]) const
    {
        constexpr int part = Row::scaled ? 8 : eights, sums = Row::scaled ? 1 : 2;   // part: steps between additions to x
        const shared_address rows = unit(slot) + L::row_at(lane & 15) + (lane >> 4) * 16;
        float s[sums][4] = {};
        unsigned k[4], a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i >> 1][i & 1] = 0.0f;
#pragma unroll
        for (int step = 0; step < eights; ++step) {
            if (step % 2 == 0) ldmatrix_x4(k, rows + 16 * step);
            widen_to_half(k[step % 2 * 2], a[0], a[2]), widen_to_half(k[step % 2 * 2 + 1], a[1], a[3]);
            mma_m16n8k16<__half>(s[step % sums], a, q[step][0], q[step][1]);
            if ((step + 1) % part != 0) continue;
            const float2 factor = load_float2(factor_at(warp) + 8 * (lane & 3));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float sum = (sums > 1 ? s[0][i] + s[sums - 1][i] : s[0][i]) * (i & 1 ? factor.y : factor.x);
                x[i >> 1][i & 1] = Row::scaled ? fmaf(sum, row_scale(slot, i >> 1, step / part), x[i >> 1][i & 1]) : sum;
                s[0][i] = 0.0f;
            }
        }
        if constexpr (Row::scaled) {
#pragma unroll
            for (int step = eights; step < steps; ++step) {
                ldmatrix_x4(k, rows + Row::rope + 32 * (step - eights));
                mma_m16n8k16<T>(s[0], k, q[step][0], q[step][1]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) x[i >> 1][i & 1] = fmaf(s[0][i], call.scale, x[i >> 1][i & 1]);
        }
    }

    // As multiply_pv, from the weights `x` or, without scales, from `p`.  Lane (g, q) has numbers 2g, 2g+1 of 16.
    __device__ __forceinline__ void multiply_pv_fp8(int slot, const float (&x)[2][2], unsigned (&p)[2])
    {
        const shared_address rows = unit(slot) + L::row_at(lane & 15) + (lane >> 4) * 16;
        unsigned v[2][4], a[4];
        ldmatrix_x4_trans(v[0], rows);
#pragma unroll
        for (int c = 0; c < columns; ++c) {
            const unsigned(&now)[4] = v[c / 2 & 1];
            if (c % 2 == 0 && c + 2 < columns) ldmatrix_x4_trans(v[(c / 2 + 1) & 1], rows + 16 * (c + 2));
            if (Row::scaled && c % 8 == 0)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float scale = row_scale(slot, i, c / 8);
                    p[i] = transpose_8x8(pack_pair<T>(x[i][0] * scale, x[i][1] * scale));
                }
            widen_e4m3<false>(now[c % 2 * 2], a[0], a[1]), widen_e4m3<false>(now[c % 2 * 2 + 1], a[2], a[3]);
            mma_m16n8k16<T>(o[c], a, p[0], p[1]);
        }
    }
