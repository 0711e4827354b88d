// topk_logprob.cu: which K tokens does the drafter prefer at each position, and how probable is each?
//
// Algorithm  v1: one block a request; K times the best element below the one before.
//            v2: `slices` cuts each row in up to 32 slices, one block each.  A block reads its slice once, in tiles that
//            stay in registers: the first tile's largest elements give a lower bound for the K-th, whatever reaches it
//            goes to a list in shared memory, a list that grows is cut back to its K best, which raises the bound;
//            exponentials are summed on the way.  `combine` selects and sorts the best of all slices, one block a row.
// Inputs     logits (b, D, vocab) KD_LOGIT; ids from `valid` on take no part; vocab_map (vocab,) int32 or null.
//            1 <= k <= valid <= vocab <= 2^20; any values
// Outputs    ids (b, D, k) int32, logprobs (b, D, k) float32, status (b,) int32; between the two kernels: candidates
//            (b D slices, room) uint64, counts (b D slices,) int32, peaks, sums (b D slices,) float32
// Launch     topk_logprob_v1: grid b, block 256, dynamic shared 0
// Launch     topk_logprob_slices: grid b * D * slices, block KD_TOPK_THREADS, dynamic shared 8 * (2 * KD_MAX_WIDTH + 2048)
// Launch     topk_logprob_combine: grid b * D, block 1024, dynamic shared 8 * KD_TOPK_STAGE
// Aliasing   outputs overlap nothing
// Numerics   ids are exact: float32(logit) descending, equal logits by the lower id.  log-prob = min(0, (x - max) / t -
//            log(sum)); sums in float32 in an order that depends on sizes only, so repeats are equal bit for bit
// Bytes      reads sizeof(KD_LOGIT) * D * valid, writes 8 * D * k a request
#include "topk_slice.cuh"

#define KD_TOPK_STAGE 4096
#define KD_TOPK_SLICES 32

extern "C" __global__ void __launch_bounds__(256)
topk_logprob_v1(const KD_LOGIT* __restrict__ logits, const int* __restrict__ vocab_map, int* __restrict__ ids,
    float* __restrict__ logprobs, int* __restrict__ status, int depth, int vocab, int valid, int k, double temperature)
{
    __shared__ double sums[8];
    __shared__ Composite bests[8];
    const int t = int(threadIdx.x), b = int(blockIdx.x);
    int found = 0;
    for (int d = 0; d < depth; ++d) {
        const long long row = (long long)b * depth + d;
        const KD_LOGIT* x = logits + row * vocab;
        Composite best = 0;
        int bad = 0;
        for (int i = t; i < valid; i += 256) {
            const float value = to_float(x[i]);
            bad |= !(value < KD_INFINITY);  // true for NaN as well
            best = max(best, composite(value, i));
        }
        best = block_max(best, bests);
        bad = __syncthreads_or(bad);
        const float peak = key_value(composite_key(best));
        double sum = 0.0;
        for (int i = t; i < valid && !bad; i += 256) sum += exp((double(to_float(x[i])) - double(peak)) / temperature);
        const double log_sum = log(block_sum(sum, sums));
        if (bad) found |= KD_STATUS_NON_FINITE;
        for (int rank = 0; rank < k; ++rank) {
            if (t == 0) {
                const int id = bad ? rank : composite_id(best);
                const float value = to_float(x[id]);
                const double logprob = fmin(0.0, (double(value) - double(peak)) / temperature - log_sum);
                ids[row * k + rank] = vocab_map ? vocab_map[id] : id;
                logprobs[row * k + rank] = bad ? KD_NAN : value == -KD_INFINITY ? value : float(logprob);
            }
            Composite next = 0;
            for (int i = t; i < valid && rank + 1 < k && !bad; i += 256) {
                const Composite c = composite(to_float(x[i]), i);
                if (c < best) next = max(next, c);
            }
            best = block_max(next, bests);
        }
    }
    if (t == 0) status[b] = found;
}

extern "C" __global__ void __launch_bounds__(KD_TOPK_THREADS, KD_TOPK_RESIDENT)
topk_logprob_slices(const KD_LOGIT* __restrict__ logits, Composite* __restrict__ candidates, int* __restrict__ counts,
    float* __restrict__ peaks, float* __restrict__ sums, int* __restrict__ status, int depth, int vocab, int valid,
    int slices, int k, int room, float scale)
{
    __shared__ SliceMemory memory;
    DYN_SHARED(Composite, buffer);
    const int slice = int(blockIdx.x), number = slice / slices, part = slice - number * slices;
    const LogitRow row(logits, number, vocab, valid);
    const int each = ceil_div(row.chunks, slices), first = min(part * each, row.chunks);
    SliceScan scan(memory, buffer, row, Mass(scale), k, room);
    scan.run(first, min(first + each, row.chunks));
    if (threadIdx.x == 0) {
        counts[slice] = scan.listed, peaks[slice] = scan.peak, sums[slice] = scan.sum;
        if (part == 0 && number % depth == 0) status[number / depth] = 0;
    }
    for (int i = int(threadIdx.x); i < scan.listed; i += KD_TOPK_THREADS)
        candidates[(long long)slice * room + i] = buffer[i];
}

// What the slices of one row say together.
struct RowSummary {
    int offsets[KD_TOPK_SLICES + 1];
    float peak, log_sum;
};

// Warp 0; lane = slice.
__device__ inline void summarise(RowSummary& summary, const int* counts, const float* peaks, const float* sums, int slices,
    const Mass& mass)
{
    const int lane = lane_id();
    const bool real = lane < slices;
    const float own = real ? peaks[lane] : -KD_LARGEST, peak = warp_max(own);
    const float sum = warp_sum(real && sums[lane] != 0.0f ? sums[lane] * mass.of(own, peak) : 0.0f);
    int upto = real ? counts[lane] : 0;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        const int left = __shfl_up_sync(KD_FULL_MASK, upto, offset);
        if (lane >= offset) upto += left;
    }
    summary.offsets[lane + 1] = upto;
    if (lane == 0) summary.offsets[0] = 0, summary.peak = peak, summary.log_sum = sum == 0.0f ? 0.0f : logf(sum);
}

// For select_threshold: the candidates of all slices of a row.
struct SlicedElements {
    const int* offsets;
    const Composite* candidates;
    int slices, room;

    __device__ Composite at(int i) const
    {
        int low = 0, high = slices;  // offsets[low] <= i < offsets[high]
        while (high - low > 1) {
            const int middle = (low + high) >> 1;
            if (offsets[middle] <= i) low = middle;
            else high = middle;
        }
        return candidates[(long long)low * room + i - offsets[low]];
    }
    template <class F> __device__ void operator()(F f) const
    {
        for (int i = thread_number(); i < offsets[slices]; i += int(blockDim.x)) f(at(i));
    }
};

extern "C" __global__ void __launch_bounds__(1024)
topk_logprob_combine(const Composite* __restrict__ candidates, const int* __restrict__ counts,
    const float* __restrict__ peaks, const float* __restrict__ sums, const int* __restrict__ vocab_map,
    int* __restrict__ ids, float* __restrict__ logprobs, int* __restrict__ status, int depth, int slices, int k, int room,
    int sorted, float scale, float temperature)
{
    __shared__ Counts bins;
    __shared__ RowSummary summary;
    __shared__ int listed;
    DYN_SHARED(Composite, buffer);
    const int t = int(threadIdx.x), threads = int(blockDim.x);
    const long long row = blockIdx.x, at = row * slices;
    if (t < 32) summarise(summary, counts + at, peaks + at, sums + at, slices, Mass(scale));
    bins.clear();
    if (t == 0) listed = 0;
    __syncthreads();
    int* own_ids = ids + row * k;
    float* own_logprobs = logprobs + row * k;
    const float log_sum = summary.log_sum, peak = summary.peak;
    if (log_sum != log_sum) {
        for (int i = t; i < k; i += threads) own_ids[i] = vocab_map ? vocab_map[i] : i, own_logprobs[i] = KD_NAN;
        if (t == 0) atomicOr(&status[row / depth], KD_STATUS_NON_FINITE);
        return;
    }
    const int total = summary.offsets[slices];
    const SlicedElements candidate = {summary.offsets, candidates + at * room, slices, room};
    int left = total;
    if (total <= KD_TOPK_STAGE) {
        for (int i = t; i < total; i += threads) buffer[i] = candidate.at(i);
        __syncthreads();
        if (total > sorted) {
            const Composite least = select_threshold(bins, ListElements{buffer, total}, k, sorted).least;
            left = compact(buffer, total, &listed, [&](Composite c) { return c >= least; });
        }
    } else {
        const Composite least = select_threshold(bins, candidate, k, sorted).least;
        candidate([&](Composite c) { if (c >= least) buffer[atomicAdd(&listed, 1)] = c; });
        __syncthreads();
        left = listed;
    }
    for (int i = left + t; i < sorted; i += threads) buffer[i] = 0;
    sort_descending(buffer, sorted);
    for (int i = t; i < k; i += threads) {
        const int id = composite_id(buffer[i]);
        const float x = key_value(composite_key(buffer[i]));
        own_ids[i] = vocab_map ? vocab_map[id] : id;
        own_logprobs[i] = x == -KD_INFINITY ? x : fminf(0.0f, __fdiv_rn(x - peak, temperature) - log_sum);
    }
}
