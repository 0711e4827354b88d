// verify_attn_few_end.cuh: second half of struct Few: the sum over teams, the loop over segments.

    __device__ __forceinline__ float* result(int warp) const { return reinterpret_cast<float*>(shared) + warp * 8 * L::result_pitch; }

    // Teams that had work leave what they have in shared memory: maximum and sum of each row, result not divided.
    __device__ __forceinline__ void hand_in()
    {
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int apart = 4; apart < 32; apart *= 2) row_sum[j] += __shfl_xor_sync(KD_FULL_MASK, row_sum[j], apart);
        __syncthreads();             // no unit is being read
        const Segment& s = item().segment;
        const int row = 2 * (lane & 3), g = lane >> 2;
        if (s.begin + team() * s.step < s.end) {
            if (g == 0)
#pragma unroll
                for (int j = 0; j < 2; ++j) numbers(warp)[row + j] = make_float2(row_max[j], row_sum[j]);
            constexpr int lane_step = Row::fp8 ? 2 : 1, half_step = Row::fp8 ? 1 : 8;   // which 2 of 16 numbers a lane has
            const shared_address to = base + 4 * ((warp * 8 + row) * L::result_pitch + lane_step * g);
            if constexpr (Row::fp8) undo_units();
#pragma unroll
            for (int c = 0; c < columns; ++c)
#pragma unroll
                for (int i = 0; i < 4; ++i) store_float(to + 4 * ((i & 1) * L::result_pitch + 16 * c + half_step * (i >> 1)), o[c][i]);
        }
        __syncthreads();
    }

    // Add the teams' results and store, eight columns of a row at a time: four in each half of it.
    __device__ __forceinline__ void add_up() const
    {
        constexpr int pieces = KD_LATENT / 8;
        const auto& it = item();
        const int slot = it.segment.slot, first = it.segment.tile * L::rows, real = it.real * call.batch.heads;
        const int units = ceil_div(it.segment.end - it.segment.begin, it.segment.step);
        const long long request_row = (long long)it.segment.request * (call.batch.nodes * call.batch.heads) + first;
#pragma unroll 1
        for (int i = renewed((int)threadIdx.x); i < L::rows * pieces; i += L::threads) {
            const int row = i / pieces, column = i % pieces * 4;
            if (slot < 0 && first + row >= real) return;
            const float2* number = numbers(row >> 3) + (row & 7);              // of team 0; then every GROUPS warps
            const float* part = result(row >> 3) + (row & 7) * L::result_pitch + column;
            float most = kd_least, sum = 0.0f, low[4] = {}, high[4] = {};
            float2 its[L::teams];
            float4 a[L::teams], b[L::teams];
#pragma unroll
            for (int t = 0; t < L::teams; ++t) {
                its[t] = make_float2(kd_least, 0.0f), a[t] = b[t] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (t >= units) continue;                                      // the team had no work
                its[t] = number[t * 8 * GROUPS];
                a[t] = *reinterpret_cast<const float4*>(part + t * GROUPS * 8 * L::result_pitch);
                b[t] = *reinterpret_cast<const float4*>(part + t * GROUPS * 8 * L::result_pitch + KD_LATENT / 2);
                most = fmaxf(most, its[t].x);
            }
#pragma unroll
            for (int t = 0; t < L::teams; ++t) {
                const float factor = fast_exp2(its[t].x - most);
                sum = fmaf(factor, its[t].y, sum);
                low[0] = fmaf(factor, a[t].x, low[0]), low[1] = fmaf(factor, a[t].y, low[1]);
                low[2] = fmaf(factor, a[t].z, low[2]), low[3] = fmaf(factor, a[t].w, low[3]);
                high[0] = fmaf(factor, b[t].x, high[0]), high[1] = fmaf(factor, b[t].y, high[1]);
                high[2] = fmaf(factor, b[t].z, high[2]), high[3] = fmaf(factor, b[t].w, high[3]);
            }
            const float factor = reciprocal_or_zero(sum) * call.value_scale, log_sum = log_of_sum(most, sum);
#pragma unroll
            for (int j = 0; j < 4; ++j) low[j] *= factor, high[j] *= factor;
            if (slot >= 0) {
                KD_PARTIAL* to = call.partial + ((long long)slot * L::rows + row) * KD_LATENT + column;
                store_numbers(to, low), store_numbers(to + KD_LATENT / 2, high);
                if (column == 0) call.partial_lse[(long long)slot * L::rows + row] = log_sum;
            } else {
                Out* to = call.out + (request_row + row) * KD_LATENT + column;
                store_numbers(to, low), store_numbers(to + KD_LATENT / 2, high);
                if (column == 0) call.lse[request_row + row] = log_sum * 0.6931471805599453f;
            }
        }
    }

    __device__ __forceinline__ void run()
    {
        if (threadIdx.x == 32) {     // not in the warp that chooses the segment
            for (int i = 0; i < KD_SLOTS; ++i) {
                mbarrier_init(base + L::barriers + 8 * i, KD_BULK_COPY ? 1 : 32);
                mbarrier_init(base + L::barriers + 8 * (KD_SLOTS + i), GROUPS * kd_warp_arrivals);
            }
            mbarrier_init(q_full(), L::rows * (KD_BULK_COPY ? 1 : 32));
        }
        if (warp == 2) fetch_ahead(call);
        wait_for_predecessor();
        start_successor();
        if (warp == 0) first_work<KD_COMB>(call.batch, call.table, item().segment);
        for (bool first = true;; first = false) {
            if (warp == 0) next_item(call, item());
            if (threadIdx.x == 0) item().spare = first ? 0 : item().spare ^ 1;   // parity of Q
            fence_async_proxy();     // results were ordinary stores; the copy engine writes over them
            __syncthreads();
            if (!item().segment.active) return;
            run_units();
            hand_in();
            add_up();
            __syncthreads();
        }
    }
