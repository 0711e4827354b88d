// verify_attn_heads_loop.cuh: second half of struct HeadTile: weights V, the loop over units, results, the loop over segments.

    __device__ __forceinline__ void scale_result(const float (&factor)[MT][2])
    {
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int c = 0; c < columns; ++c)
#pragma unroll
                for (int j = 0; j < 4; ++j) o[m][c][j] *= factor[m][j >> 1];
    }

    __device__ __forceinline__ void multiply_pv(int at, const float (&s)[MT][blocks][4])
    {
        const shared_address rows = base + at * L::unit_bytes + 2 * KD_HEAD + (lane & 15) * L::pitch;
        const int place = 16 * ((lane >> 4) ^ (lane & 7));
#pragma unroll
        for (int k = 0; k < KD_UNIT / 16; ++k) {
            unsigned p[MT][4];
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    p[m][j] = pack_pair<T>(s[m][2 * k + j / 2][2 * (j % 2)], s[m][2 * k + j / 2][2 * (j % 2) + 1]);
#pragma unroll
            for (int c = 0; c < columns / 2; ++c) {
                unsigned values[4];
                ldmatrix_x4_trans(values, rows + (place ^ 32 * (c % 4)) + 128 * (c / 4) + 16 * k * L::pitch);
#pragma unroll
                for (int m = 0; m < MT; ++m) {
                    mma_m16n8k16<T>(o[m][2 * c], p[m], values[0], values[1]);
                    mma_m16n8k16<T>(o[m][2 * c + 1], p[m], values[2], values[3]);
                }
            }
        }
    }

    __device__ __forceinline__ void run_units()
    {
        const int end = item().segment.end;
        int u = item().segment.begin;
        find_rows(u);
        for (int i = 0, to = stage, parity = phase; i < KD_STAGES - 1 && u + i < end; ++i) {
            copy_unit(u + i, to, parity);
            if (++to == KD_STAGES) to = 0, parity ^= 1;
        }
        load_q();
        float s[MT][blocks][4];          // scores, then weights
        if (KD_AHEAD && MT == 1) {
            float next[MT][blocks][4];
            mbarrier_wait(full(stage), phase);
            multiply_qk(stage, s);
#pragma unroll 1
            for (; u < end; ++u) {
                const int at = stage, parity = phase;
                if (++stage == KD_STAGES) stage = 0, phase ^= 1;
                if (u + 1 < end) {
                    mbarrier_wait(full(stage), phase);
                    multiply_qk(stage, next);
                }
                if (u + KD_STAGES - 1 < end) copy_unit(u + KD_STAGES - 1, at ? at - 1 : KD_STAGES - 1, at ? parity ^ 1 : parity);
                softmax(u, s);
                multiply_pv(at, s);
                warp_arrive(empty(at));
#pragma unroll
                for (int j = 0; j < 4 * blocks; ++j) s[0][j >> 2][j & 3] = next[0][j >> 2][j & 3];
            }
            return;
        }
#pragma unroll 1
        for (; u < end; ++u) {
            if (MT == 2) lane = renewed(lane);   // addresses kept over the loop would cost more registers than there are
            mbarrier_wait(full(stage), phase);
            multiply_qk(stage, s);
            if (u + KD_STAGES - 1 < end)    // into the place of the unit before this one
                copy_unit(u + KD_STAGES - 1, stage ? stage - 1 : KD_STAGES - 1, stage ? phase ^ 1 : phase);
            softmax(u, s);
            multiply_pv(stage, s);
            warp_arrive(empty(stage));
            if (++stage == KD_STAGES) stage = 0, phase ^= 1;
        }
    }

    // Divide by the sum of weights; write log-sums and results, to a partial result or to the result.
    __device__ __forceinline__ void finish()
    {
        const HeadItem<E>& it = item();
        const int slot = it.segment.slot;
        float factor[MT][2];
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float sum = row_sum[m][half];
                sum += __shfl_xor_sync(KD_FULL_MASK, sum, 1);
                sum += __shfl_xor_sync(KD_FULL_MASK, sum, 2);
                row_sum[m][half] = sum;
                factor[m][half] = sum == 0.0f ? 0.0f : call.keys.value_scale / sum;
            }
        scale_result(factor);
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float sum = row_sum[m][half], log_sum = log_of_sum(row_max[m][half], sum);
                const int row = warp * L::warp_rows + 16 * m + 8 * half + (lane >> 2);
                const auto numbers = [&](int c, int j) { return o[m][c][2 * half + j]; };
                if (slot >= 0) {
                    const long long at = (long long)slot * L::rows + row;
                    if ((lane & 3) == 0) call.keys.partial_lse[at] = log_sum;
                    store_row<columns>(call.keys.partial + at * KD_HEAD, true, numbers);
                } else {
                    const bool real = it.first_row + row < it.real * call.batch().heads;
                    const long long at = number(own_row(m, half));
                    if (real && (lane & 3) == 0) call.keys.lse[at] = log_sum * 0.6931471805599453f;
                    store_row<columns>(call.keys.out + at * KD_HEAD, real, numbers);
                }
            }
    }

    __device__ __forceinline__ void run()
    {
        wait_for_predecessor();
        start_successor();
        if (warp == 0) {
            if (lane < KD_STAGES) mbarrier_init(full(lane), L::threads), mbarrier_init(empty(lane), WARPS * kd_warp_arrivals);
            first_work<false, false>(call.batch(), call.keys.table, item().segment);
        }
        for (;;) {
            __syncthreads();
            if (warp == 0) next_head_item<false>(call, item());
            __syncthreads();
            if (!item().segment.active) return;
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                row_max[m][0] = row_max[m][1] = kd_least, row_sum[m][0] = row_sum[m][1] = 0.0f;
#pragma unroll
                for (int j = 0; j < 4 * columns; ++j) o[m][j >> 2][j & 3] = 0.0f;
            }
            run_units();
            finish();
        }
    }
