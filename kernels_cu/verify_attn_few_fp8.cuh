// verify_attn_few_fp8.cuh: part of struct Few: products with KV rows of 8-bit floats, which stay 8-bit in shared memory.
//
// Scores are products in float16, whose 11 digits and range hold every e4m3 number: one instruction widens two.  Queries
// are brought into that range by a power of two for each row, which moves no number by more than 2^-32 of the row's largest;
// weights likewise.  A word of ldmatrix is four numbers of a row (keys) or two numbers of two rows (values); queries, and the places
// of results, are chosen to suit.
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

    // Where the scales of KV row g of a unit are; those of row 8 + g are `next_scales` further on.
    static constexpr int next_scales = L::row_at(8);
    __device__ __forceinline__ shared_address scales_at(int slot) const
    {
        return unit(slot) + L::row_at(renewed(lane) >> 2) + KD_LATENT;   // an address kept would cost a register too many
    }

    // x += the sum of products of 128 numbers (plain rows: of all), times what they are worth.
    __device__ __forceinline__ void add_scores(int slot, int part, const float (&one)[4], const float (&other)[4], float (&x)[2][2]) const
    {
        const float2 factor = load_float2(factor_at(warp) + 8 * (lane & 3));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float scale = Row::scaled ? load_float(scales_at(slot) + half * next_scales + 4 * part) : 1.0f;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int i = 2 * half + j;
                const float sum = (Row::scaled ? one[i] : one[i] + other[i]) * (j ? factor.y : factor.x);
                x[half][j] = Row::scaled ? fmaf(sum, scale, x[half][j]) : sum;
            }
        }
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
            add_scores(slot, step / part, s[0], s[sums - 1], x);
#pragma unroll
            for (int i = 0; i < 4; ++i) s[0][i] = 0.0f;
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

    // ---- results: weights in float16 too, as multiples of a unit ----

    // Plain rows have one unit.  Rows with scales have one for each query row and 128 numbers: the power of two that keeps
    // weights times scales below 2^15; the largest so far is 2^7 or more, so what falls below 2^-24 is no loss.
    static_assert(!Row::fp8 || Row::scaled || KD_LAZY <= 8.0f, "weights are below 2^8, and times 2^7 fit float16");
    static constexpr float least_unit = 1.0f / (1ull << 63) / (1ull << 63), plain_unit = 1.0f / 128.0f;

    __device__ __forceinline__ shared_address units_at(int part) const { return base + L::units + 128 * warp + 32 * part + 8 * (lane & 3); }
    static __device__ __forceinline__ float inverse(float power) { return __uint_as_float((254u << 23) - __float_as_uint(power)); }

    // Whole warp; x and y are those of this lane's query rows.
    __device__ __forceinline__ void set_units(int part, float x, float y) const
    {
        __syncwarp();
        if (lane < 4) store_float2(units_at(part), x, y);
        __syncwarp();
    }

    __device__ __forceinline__ void clear_units() const
    {
#pragma unroll
        for (int part = 0; part < 4; ++part) set_units(part, least_unit, least_unit);
    }

    // 2^x of a whole number x up to 0; 0 below the range.
    static __device__ __forceinline__ float whole_power(float x) { return __uint_as_float((unsigned)(127 + (int)fmaxf(x, -127.0f)) << 23); }

    // Results of 128 numbers are multiples of `to`, not of `from`, from now on.
    __device__ __forceinline__ void change_units(int part, float2 from, float2 to)
    {
        const float factor[2] = {from.x * inverse(to.x), from.y * inverse(to.y)};
#pragma unroll
        for (int c = 8 * part; c < 8 * part + 8; ++c)
#pragma unroll
            for (int i = 0; i < 4; ++i) o[c][i] *= factor[i & 1];
        set_units(part, to.x, to.y);
    }

    // Results are worth less, by powers of two: so are their units.
    __device__ __forceinline__ void lower_units(const float (&factor)[2])
    {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const float2 now = load_float2(units_at(part)), worth = make_float2(now.x * factor[0], now.y * factor[1]);
            change_units(part, worth, make_float2(fmaxf(worth.x, least_unit), fmaxf(worth.y, least_unit)));
        }
    }

    __device__ __forceinline__ void undo_units()
    {
#pragma unroll
        for (int c = 0; c < columns; ++c) {
            const float2 unit = Row::scaled ? load_float2(units_at(c / 8)) : make_float2(plain_unit, plain_unit);
#pragma unroll
            for (int i = 0; i < 4; ++i) o[c][i] *= i & 1 ? unit.y : unit.x;
        }
    }

    // The power of two that makes `most` 2^7 to 2^8.
    static __device__ __forceinline__ float unit_for(float most)
    {
        const unsigned exponent = __float_as_uint(most) >> 23;
        return __uint_as_float(min(max(exponent, 8u), 253u) - 7u << 23);
    }

    // Make units large enough for the weights times scales of a unit of KV rows.
    __device__ __forceinline__ void raise_units(shared_address scales, const float (&x)[2][2])
    {
        bool grown = false;
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const float2 unit = load_float2(units_at(part)), most = most_weight(scales + 4 * part, x);
            grown |= most.x > unit.x * 32768.0f || most.y > unit.y * 32768.0f;
        }
        if (!__any_sync(KD_FULL_MASK, grown)) return;
#pragma unroll
        for (int part = 0; part < 4; ++part) grow_units(part, most_weight(scales + 4 * part, x));
    }

    // Those of 128 numbers as a fragment of P^T.
    __device__ __forceinline__ void scaled_weights(shared_address scales, int part, const float (&x)[2][2], unsigned (&p)[2]) const
    {
        const float2 unit = load_float2(units_at(part));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float scale = load_float(scales + i * next_scales + 4 * part);
            p[i] = transpose_8x8(pack_pair<__half>(x[i][0] * scale * inverse(unit.x), x[i][1] * scale * inverse(unit.y)));
        }
    }

    // The larger of this lane's two weights times scales, for each of its query rows.
    __device__ __forceinline__ static float2 most_weight(shared_address scales, const float (&x)[2][2])
    {
        const float low = fabsf(load_float(scales)), high = fabsf(load_float(scales + next_scales));
        return make_float2(fmaxf(x[0][0] * low, x[1][0] * high), fmaxf(x[0][1] * low, x[1][1] * high));
    }

    __device__ __forceinline__ void grow_units(int part, float2 most)
    {
#pragma unroll
        for (int apart = 4; apart < 32; apart *= 2) {
            most.x = fmaxf(most.x, __shfl_xor_sync(KD_FULL_MASK, most.x, apart));
            most.y = fmaxf(most.y, __shfl_xor_sync(KD_FULL_MASK, most.y, apart));
        }
        const float2 unit = load_float2(units_at(part));
        const auto grown = [](float most, float unit) { return most > unit * 32768.0f ? unit_for(most) : unit; };
        change_units(part, unit, make_float2(grown(most.x, unit.x), grown(most.y, unit.y)));
    }

    // As multiply_pv, from the weights `x`.  Lane (g, q) has numbers 2g, 2g+1 of 16.
    __device__ __forceinline__ void multiply_pv_fp8(int slot, const float (&x)[2][2])
    {
        unsigned v[4], a[4], p[2];
        if constexpr (Row::scaled) {
            lane = renewed(lane), warp = renewed(warp);   // as in the loop
            raise_units(scales_at(slot), x);
        } else {
#pragma unroll
            for (int i = 0; i < 2; ++i) p[i] = transpose_8x8(pack_pair<__half>(x[i][0] / plain_unit, x[i][1] / plain_unit));
        }
        const shared_address rows = unit(slot) + L::row_at(lane & 15) + (lane >> 4) * 16;
#pragma unroll
        for (int c = 0; c < columns; ++c) {
            if (Row::scaled && c % 8 == 0) scaled_weights(scales_at(slot), c / 8, x, p);
            if (c % 2 == 0) ldmatrix_x4_trans(v, rows + 16 * c);
            widen_to_half(__byte_perm(v[c % 2 * 2], 0, 0x3120), a[0], a[1]), widen_to_half(__byte_perm(v[c % 2 * 2 + 1], 0, 0x3120), a[2], a[3]);
            mma_m16n8k16<__half>(o[c], a, p[0], p[1]);
        }
    }
