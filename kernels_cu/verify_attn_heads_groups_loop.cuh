// verify_attn_heads_groups_loop.cuh: second half of struct HeadGroups: the loop over units, results, the groups' parts.

    __device__ __forceinline__ static void scale(float (&o)[columns][4], const float (&factor)[2])
    {
#pragma unroll
        for (int c = 0; c < columns; ++c) {
            o[c][0] *= factor[0], o[c][1] *= factor[0];
            o[c][2] *= factor[1], o[c][3] *= factor[1];
        }
    }

    __device__ __forceinline__ void multiply_pv(float (&o)[columns][4], const unsigned (&p)[scores / 2][4], int at) const
    {
        const Descriptor values = matrix_at(unit(at) + L::blocks * L::block_bytes, L::block_bytes);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < scores / 2; ++k) wgmma_values<T>(o, p[k], moved(values, k * 16 * 128), true);
        wgmma_commit();
    }

    // Divide by the sum of weights; write log-sums and results, to a partial result or to the result.
    __device__ __forceinline__ void finish(float (&o)[columns][4], const float (&row_max)[2], float (&row_sum)[2]) const
    {
        const HeadItem<E>& it = item();
        const int slot = it.segment.slot;
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            row_sum[half] += __shfl_xor_sync(KD_FULL_MASK, row_sum[half], 1);
            row_sum[half] += __shfl_xor_sync(KD_FULL_MASK, row_sum[half], 2);
            factor[half] = row_sum[half] == 0.0f ? 0.0f : call.keys.value_scale / row_sum[half];
        }
        scale(o, factor);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float log_sum = log_of_sum(row_max[half], row_sum[half]);
            const int row = 64 * group + 16 * warp + 8 * half + (lane >> 2);
            const bool real = it.first_row + row < it.real * call.batch().heads;
            const auto numbers = [&](int c, int j) { return o[c][2 * half + j]; };
            if (slot >= 0) {
                const long long at = (long long)slot * L::rows + row;
                if ((lane & 3) == 0) call.keys.partial_lse[at] = log_sum;
                store_row<columns>(call.keys.partial + at * KD_HEAD, real, numbers);
            } else {
                const long long at = number(own_row(row));
                if (real && (lane & 3) == 0) call.keys.lse[at] = log_sum * 0.6931471805599453f;
                store_row<columns>(call.keys.out + at * KD_HEAD, real, numbers);
            }
        }
    }

    __device__ __forceinline__ void attend_segment()
    {
        float o[columns][4], s[scores][4], row_max[2] = {kd_least, kd_least}, row_sum[2] = {0.0f, 0.0f}, factor[2];
        unsigned q[q_registers][4], p[scores / 2][4];
        load_q(q);
#pragma unroll
        for (int i = 0; i < 4 * columns; ++i) o[i / 4][i % 4] = 0.0f;
#pragma unroll
        for (int i = 0; i < 4 * scores; ++i) s[i / 4][i % 4] = 0.0f;
        const int end = item().segment.end;
        int u = item().segment.begin;
        wait_for_unit();
        multiply_qk(s, q);
        wgmma_wait<0>();
        wgmma_results(s);
        softmax(s, u, row_max, row_sum, factor);   // the result so far is 0 and needs no factor
        pack(s, p);
#pragma unroll 1
        while (++u < end) {
            const int at = stage;
            advance();
            wait_for_unit();
            multiply_qk(s, q);
            multiply_pv(o, p, at);
            wgmma_wait<1>();                       // the scores are there, weights V still run
            wgmma_results(s);
            softmax(s, u, row_max, row_sum, factor);
            wgmma_wait<0>();
            wgmma_results(o);
            warp_arrive(empty(at));
            if (__any_sync(KD_FULL_MASK, factor[0] != 1.0f || factor[1] != 1.0f)) scale(o, factor);
            pack(s, p);
        }
        multiply_pv(o, p, stage);
        wgmma_wait<0>();
        wgmma_results(o);
        warp_arrive(empty(stage));
        advance();
        finish(o, row_max, row_sum);
    }

    // A group whose rows all lie behind the last real one lets the units pass.
    __device__ __forceinline__ void skip_segment()
    {
#pragma unroll 1
        for (int u = item().segment.begin; u < item().segment.end; ++u) {
            mbarrier_wait(full(stage), phase);
            warp_arrive(empty(stage));
            advance();
        }
    }

    __device__ __forceinline__ void run()
    {
        if (threadIdx.x == 0) {
            constexpr int readers = 4 * GROUPS * kd_warp_arrivals;
            for (int i = 0; i < KD_STAGES; ++i) mbarrier_init(full(i), 128 + 4 * kd_warp_arrivals), mbarrier_init(empty(i), readers);
            for (int i = 0; i < 2; ++i) mbarrier_init(item_full(i), 128), mbarrier_init(item_empty(i), readers);
        }
        __syncthreads();
        wait_for_predecessor();
        start_successor();
        constexpr int copying = GROUPS == 3 ? 80 : 88, own = GROUPS == 3 ? 144 : GROUPS == 2 ? 208 : 168;
        constexpr int most = GROUPS == 3 ? 512 : GROUPS == 2 ? 504 : 256;      // of all groups of a block
        static_assert(GROUPS * own + copying <= most, "who asks for more registers than there are waits for ever");
        if (group == GROUPS) {
            fewer_registers<copying>();
            if (warp == 0 && !(GROUPS > 1 && KD_WEIGHED && weighed_segment(call.batch(), call.keys.table, item().segment)))
                first_work(call.batch(), call.keys.table, item().segment);
            for (; choose_item(); ++segments) copy_segment();
        } else {
            more_registers<own>();
            for (;; ++segments) {
                mbarrier_wait(item_full(segments), segments >> 1 & 1);
                const HeadItem<E>& it = item();
                if (!it.segment.active) return;
                if (it.first_row + 64 * group < it.real * call.batch().heads) attend_segment();
                else skip_segment();
                warp_arrive(item_empty(segments));
            }
        }
    }
