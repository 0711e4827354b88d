// verify_attn_loop.cuh: second half of struct Tile: the loop over units, what is written, the loop over segments.

    __device__ __forceinline__ int own_row() const   // in the tile
    {
        return group * L::group_rows + block * 8 + (lane >> 2);
    }

    // Bit j: this lane's row sees KV row 16 * u + j.
    __device__ __forceinline__ unsigned visible(int u) const
    {
        const auto& it = item();
        if ((u + 1) * KD_UNIT <= it.kv.length) return ~0u;
        const unsigned* words = mask_rows()[own_row()];
        return visible_rows(words, call.words, u * KD_UNIT, it.kv.length, it.kv.total);
    }

    // The softmax of one unit, in parts that are spread over the products of the next.
    static constexpr int softmax_parts = 8;

    __device__ __forceinline__ void softmax_part(int turn, unsigned seen, int i)
    {
        if (i == 4) gather_scores(turn, seen);
        if (i == 5) share_maximum(1);
        if (i == 6) share_maximum(2);
        if (i == 7) store_weights(turn);
    }

    // On sm_120 the loop has two registers less for what does not change in it; elsewhere it is faster with them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
    static constexpr bool spare_registers = false;
#else
    static constexpr bool spare_registers = true;
#endif

    __device__ __forceinline__ void run_units()
    {
        if (GROUPS == 2 && !spare_registers) group = renewed(group);
        const int end = item().segment.end;
        int u = item().segment.begin;
        for (int i = 0, to = stage, parity = phase; i < KD_STAGES - 1 && u + i < end; ++i) {
            copy_unit(u + i, to, parity);
            if (++to == KD_STAGES) to = 0, parity ^= 1;
        }
        mbarrier_wait(full(stage), phase);
        multiply_qk(stage, [](int) {});
        hand_over_scores(u & 1);
        group_barrier_or(false);
        unsigned seen = visible(u);
#pragma unroll 1
        for (; u < (spare_registers ? end : item().segment.end); ++u) {
            const int turn = u & 1, at = stage, parity = phase;
            if (++stage == KD_STAGES) stage = 0, phase ^= 1;
            lane = renewed(lane);   // addresses kept over the loop would cost more registers than there are
            if (u + 1 < end) {
                mbarrier_wait(full(stage), phase);
                multiply_qk(stage, [&](int i) { softmax_part(turn, seen, i); });
                hand_over_scores(turn ^ 1);
            } else {
#pragma unroll
                for (int i = 0; i < softmax_parts; ++i) softmax_part(turn, seen, i);
            }
            const bool any_moved = group_barrier_or(moved);
            if (u + KD_STAGES - 1 < end)    // into the place of the unit before this one
                copy_unit(u + KD_STAGES - 1, at ? at - 1 : KD_STAGES - 1, at ? parity ^ 1 : parity);
            if (any_moved) scale_result(turn);
            const unsigned next_seen = visible(u + 1);   // its words come while the products run
            multiply_pv(at, turn);
            seen = next_seen;
            warp_arrive(empty(at));
        }
    }

    // Store this warp's quarter of rows 8 * i .. 8 * i + 7 of the group, to a partial result or to the result.
    template <int i>
    __device__ __forceinline__ void store_eight_rows(int slot, long long request_rows, int real_rows) const
    {
        const int row = group * L::group_rows + 8 * i + (lane >> 2), far = item().segment.tile * L::rows + row;
        const int column = quarter * L::latent;
        const auto value = [&](int c, int j) { return o[i >> 1][c][2 * (i & 1) + j]; };
        KD_PARTIAL* const piece = call.partial + ((long long)slot * L::rows + row) * KD_LATENT + column;
        Out* const whole = call.out + (request_rows + far) * KD_LATENT + column;
        if constexpr (Row::fp8) return slot >= 0 ? store_fours<i>(piece, true) : store_fours<i>(whole, far < real_rows);
        if (slot >= 0) store_row<columns>(piece, true, value);
        else store_row<columns>(whole, far < real_rows, value);
    }

    // Divide by the sum of weights; write log-sums; store the quarter of the result.
    __device__ __forceinline__ void finish()
    {
        row_sum += __shfl_xor_sync(KD_FULL_MASK, row_sum, 1);
        row_sum += __shfl_xor_sync(KD_FULL_MASK, row_sum, 2);
        group_barrier_or(false);    // the last factors have been read
        const auto& it = item();
        const int heads = call.batch.heads, slot = it.segment.slot, first = it.segment.tile * L::rows;
        const long long request_rows = (long long)it.segment.request * call.batch.nodes * heads;
        if ((MT == 2 || quarter < 2) && (lane & 3) == 0) {
            store_float(scale_slot(0, lane >> 2) + 4 * block, row_sum == 0.0f ? 0.0f : call.value_scale / row_sum);
            const float log_sum = log_of_sum(row_max, row_sum);
            if (slot >= 0) call.partial_lse[(long long)slot * L::rows + own_row()] = log_sum;
            else if (first + own_row() < it.real * heads) call.lse[request_rows + first + own_row()] = log_sum * 0.6931471805599453f;
        }
        group_barrier_or(false);
        scale_result(0);
        store_eight_rows<0>(slot, request_rows, it.real * heads);
        store_eight_rows<1>(slot, request_rows, it.real * heads);
        if constexpr (MT == 2) {
            store_eight_rows<2>(slot, request_rows, it.real * heads);
            store_eight_rows<3>(slot, request_rows, it.real * heads);
        }
    }

    __device__ __forceinline__ void run()
    {
        if (warp == 0 && lane == 0) {
            for (int i = 0; i < KD_STAGES; ++i) mbarrier_init(full(i), arrivals(KD_UNIT, 4)), mbarrier_init(empty(i), L::warps * kd_warp_arrivals);
            mbarrier_init(q_full(), arrivals(L::rows, L::warps));
            q_parity() = 1;
        }
        wait_for_predecessor();
        start_successor();
        if (warp == 0) first_work(call.batch, call.table, item().segment);
        for (;;) {
            fence_async_proxy();     // scores were ordinary stores; Q comes over them by the copy engine
            __syncthreads();
            if (warp == 0) {
                next_item(call, item());
                if (lane == 0) q_parity() ^= 1;
            }
            __syncthreads();
            if (!item().segment.active) return;
            lane = renewed(lane), warp = renewed(warp);   // addresses are worth less than the registers they would hold
            place();
            row_max = kd_least, row_sum = 0.0f;
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int j = 0; j < 4 * columns; ++j) o[m][j >> 2][j & 3] = 0.0f;
            load_q();
            run_units();
            finish();
        }
    }
