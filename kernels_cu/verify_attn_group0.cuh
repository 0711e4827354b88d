// verify_attn_group0.cuh: second half of struct Groups: scores and softmax, the hand-over, the three loops.

    __device__ __forceinline__ void multiply_qk(float (&s)[6][4], const unsigned (&q)[register_steps][4], int at) const
    {
        const int here = renewed(0);  // 28 descriptors of Q kept over the loop would be 28 registers
        const Descriptor keys = matrix_at(unit(at), 0), queries = matrix_at(base + L::q + here, 0);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < q_steps; ++k)
            wgmma_shared_keys<T>(s, moved(queries, k / 4 * L::q_block_bytes + k % 4 * 32), moved(keys, k / 4 * L::block_bytes + k % 4 * 32), k > 0);
#pragma unroll
        for (int k = 0; k < register_steps; ++k)
            wgmma_keys<T>(s, q[k], moved(keys, (L::q_blocks + k / 4) * L::block_bytes + k % 4 * 32), true);
        wgmma_commit();
    }

    // Softmax step of this thread's two rows, 12 scores each: weights to registers, the factor for what came before.
    __device__ __forceinline__ void softmax(float (&s)[6][4], int u, int at, float (&row_max)[2], float (&row_sum)[2],
                                            unsigned (&p)[3][4], float (&factor)[2]) const
    {
#pragma unroll
        for (int i = 0; i < 6; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) s[i][j] *= call.scale;
        if ((u + 1) * KD_UNIT > item().kv.length) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint2 both = seen(at)[16 * warp + 8 * half + (lane >> 2)];
                const unsigned low = both.x >> 2 * (lane & 3), high = both.y >> 2 * (lane & 3);
#pragma unroll
                for (int i = 0; i < 6; ++i)
#pragma unroll
                    for (int j = 0; j < 2; ++j)
                        if (!((i < 4 ? low >> (8 * i + j) : high >> (8 * i - 32 + j)) & 1u)) s[i][2 * half + j] = -KD_INFINITY;
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = -KD_INFINITY, sum = 0.0f;
#pragma unroll
            for (int i = 0; i < 6; ++i) most = fmaxf(most, fmaxf(s[i][2 * half], s[i][2 * half + 1]));
            most = fmaxf(most, __shfl_xor_sync(KD_FULL_MASK, most, 1));
            most = fmaxf(most, __shfl_xor_sync(KD_FULL_MASK, most, 2));
            const float now = most > row_max[half] + KD_LAZY ? most : row_max[half];
            factor[half] = fast_exp2(row_max[half] - now);
            row_max[half] = now;
#pragma unroll
            for (int i = 0; i < 6; ++i) {
                const float low = fast_exp2(s[i][2 * half] - now), high = fast_exp2(s[i][2 * half + 1] - now);
                sum += low + high;
                p[i / 2][2 * (i % 2) + half] = pack_pair<T>(low, high);
            }
            row_sum[half] = row_sum[half] * factor[half] + sum;
        }
    }

    // ---- hand-over from group 0 to group 1: thread t of one to thread t of the other, which has the same rows ----

    __device__ __forceinline__ void give(const unsigned (&p)[3][4], const float (&factor)[2])
    {
        mbarrier_wait(weights_empty(), turn ^ 1);
        uint4* weights = reinterpret_cast<uint4*>(shared + L::weights) + thread;
#pragma unroll
        for (int k = 0; k < 3; ++k) weights[128 * k] = make_uint4(p[k][0], p[k][1], p[k][2], p[k][3]);
        reinterpret_cast<float2*>(shared + L::factors)[thread] = make_float2(factor[0], factor[1]);
        mbarrier_arrive(weights_full());
        turn ^= 1;
    }

    __device__ __forceinline__ void take(unsigned (&p)[3][4], float (&factor)[2])
    {
        mbarrier_wait(weights_full(), turn);
        const uint4* weights = reinterpret_cast<const uint4*>(shared + L::weights) + thread;
#pragma unroll
        for (int k = 0; k < 3; ++k) {
            const uint4 four = weights[128 * k];
            p[k][0] = four.x, p[k][1] = four.y, p[k][2] = four.z, p[k][3] = four.w;
        }
        const float2 two = reinterpret_cast<const float2*>(shared + L::factors)[thread];
        factor[0] = two.x, factor[1] = two.y;
        mbarrier_arrive(weights_empty());
        turn ^= 1;
    }

    // ---- the three loops over units ----

    // One step of group 0; `more`: scores of the next unit are computed meanwhile.
    template <bool more>
    __device__ __forceinline__ void step(float (&o)[32][4], float (&s)[6][4], float (&next)[6][4], const unsigned (&q)[register_steps][4],
                                         int u, float (&row_max)[2], float (&row_sum)[2])
    {
        const int at = stage;
        advance();
        if (more) {
            wait_for_unit();
            multiply_qk(next, q, stage);
        }
        unsigned p[3][4];
        float factor[2];
        softmax(s, u, at, row_max, row_sum, p, factor);
        give(p, factor);
        if (__any_sync(KD_FULL_MASK, factor[0] != 1.0f || factor[1] != 1.0f)) scale(o, factor);
        wgmma_begin();
        multiply_pv(o, p, at, 0);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(o);
        warp_arrive(empty(at));
        if (more) {
            wgmma_results(next);
#pragma unroll
            for (int i = 0; i < 24; ++i) s[i / 4][i % 4] = next[i / 4][i % 4];
        }
    }

    __device__ __forceinline__ void scores_and_first_half()
    {
        float o[32][4], s[6][4], next[6][4], row_max[2] = {-1e30f, -1e30f}, row_sum[2] = {0.0f, 0.0f}, factor[2];
        unsigned q[register_steps][4];
        const T* rows[2] = {q_row(16 * warp + (lane >> 2)), q_row(16 * warp + 8 + (lane >> 2))};
#pragma unroll
        for (int k = 0; k < register_steps; ++k)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                q[k][j] = *reinterpret_cast<const unsigned*>(rows[j % 2] + 64 * L::q_blocks + 16 * k + 8 * (j / 2) + 2 * (lane & 3));
#pragma unroll
        for (int i = 0; i < 128; ++i) o[i / 4][i % 4] = 0.0f;
#pragma unroll
        for (int i = 0; i < 24; ++i) s[i / 4][i % 4] = next[i / 4][i % 4] = 0.0f;
        mbarrier_wait(q_full(), segments & 1);
        wait_for_unit();
        multiply_qk(s, q, stage);
        wgmma_wait<0>();
        wgmma_results(s);
        const int last = item().segment.end - 1;
        int u = item().segment.begin;
#pragma unroll 1
        for (; u < last; ++u) step<true>(o, s, next, q, u, row_max, row_sum);
        warp_arrive(q_empty());
        step<false>(o, s, next, q, last, row_max, row_sum);
        const auto& it = item();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            row_sum[half] += __shfl_xor_sync(KD_FULL_MASK, row_sum[half], 1);
            row_sum[half] += __shfl_xor_sync(KD_FULL_MASK, row_sum[half], 2);
            factor[half] = row_sum[half] == 0.0f ? 0.0f : call.value_scale / row_sum[half];
            const int row = 16 * warp + 8 * half + (lane >> 2), heads = call.batch.heads, far = it.segment.tile * L::rows + row;
            const float log_sum = log_of_sum(row_max[half], row_sum[half]);
            if ((lane & 3) != 0) continue;
            if (it.segment.slot >= 0) call.partial_lse[(long long)it.segment.slot * L::rows + row] = log_sum;
            else if (far < it.real * heads)
                call.lse[(long long)it.segment.request * call.batch.nodes * heads + far] = log_sum * 0.6931471805599453f;
        }
        const unsigned none[3][4] = {};
        give(none, factor);
        store(o, factor, 0);
        warp_arrive(item_empty());
    }

    __device__ __forceinline__ void second_half()
    {
        float o[32][4], factor[2];
        unsigned p[3][4];
#pragma unroll
        for (int i = 0; i < 128; ++i) o[i / 4][i % 4] = 0.0f;
        const int end = item().segment.end;
#pragma unroll 1
        for (int u = item().segment.begin; u < end; ++u) {
            take(p, factor);
            wait_for_unit();
            if (__any_sync(KD_FULL_MASK, factor[0] != 1.0f || factor[1] != 1.0f)) scale(o, factor);
            wgmma_begin();
            multiply_pv(o, p, stage, 4);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_results(o);
            warp_arrive(empty(stage));
            advance();
        }
        take(p, factor);
        store(o, factor, 256);
        warp_arrive(item_empty());
    }

    __device__ __forceinline__ void run()
    {
        if (threadIdx.x == 0) {
            for (int i = 0; i < L::stages; ++i) mbarrier_init(full(i), 128 + 4 * kd_warp_arrivals), mbarrier_init(empty(i), 8 * kd_warp_arrivals);
            mbarrier_init(weights_full(), 128), mbarrier_init(weights_empty(), 128);
            mbarrier_init(q_full(), 128), mbarrier_init(q_empty(), 4 * kd_warp_arrivals);
            for (segments = 1; segments >= 0; --segments) mbarrier_init(item_full(), 128), mbarrier_init(item_empty(), 8 * kd_warp_arrivals);
            segments = 0;
        }
        __syncthreads();
        wait_for_predecessor();
        start_successor();
        const int group = __shfl_sync(KD_FULL_MASK, (int)threadIdx.x >> 7, 0);
        constexpr int first = 248, second = 192, third = 64;
        static_assert(first + second + third <= 3 * 168, "65536 registers for 384 threads, by eights: who asks for more waits for ever");
        if (group == 2) {
            fewer_registers<third>();
            if (warp == 0) first_work(call.batch, call.table, item().segment);
            for (; choose_item(); ++segments) copy_segment();
        } else if (group == 0) {
            more_registers<first>();
            for (; next_item_here(); ++segments) scores_and_first_half();
        } else {
            more_registers<second>();
            for (; next_item_here(); ++segments) second_half();
        }
    }
