// topk_logprob.cu: which K tokens does the drafter prefer at each position, and how probable is each?
//
// Algorithm  v1: one block a request; K times the best element below the one before.
//            v2: each row is cut in up to 32 slices, one block each.  A block reads its slice once, in tiles that stay in
//            registers: the first tile's largest elements give a lower bound for the K-th, whatever reaches it goes to
//            a list in shared memory, a list that grows is cut back to its K best, which raises the bound;
//            exponentials are summed on the way.  The last block of a row selects and sorts the best of all slices.
// Inputs     logits (b, D, vocab) KD_LOGIT; ids from `valid` on take no part; vocab_map (vocab,) int32 or null.
//            1 <= k <= valid <= vocab <= 2^20; any values
// Outputs    ids (b, D, k) int32, logprobs (b, D, k) float32, status (b,) int32.  Scratch: candidates (b D slices, room)
//            uint64, parts (b D slices, 4) 32-bit words; tickets (b + b D,) uint64: zero before and after
// Launch     topk_logprob_v1: grid b, block 256, dynamic shared 0
// Launch     topk_logprob_v2: grid b * D * slices, block KD_TOPK_THREADS, dynamic shared 8 * (2 * KD_MAX_WIDTH + 2048)
// Aliasing   outputs overlap nothing; launches that share scratch must not overlap in time
// Numerics   ids are exact: float32(logit) descending, equal logits by the lower id.  log-prob = min(0, (x - max) / t -
//            log(sum)); sums in float32 in an order that depends on sizes only, so repeats are equal bit for bit
// Bytes      reads sizeof(KD_LOGIT) * D * valid, writes 8 * D * k a request
#include "topk_merge.cuh"

extern "C" __global__ void __launch_bounds__(256, 1)
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
topk_logprob_v2(const KD_LOGIT* __restrict__ logits, const int* __restrict__ vocab_map, int* __restrict__ ids,
    float* __restrict__ logprobs, int* __restrict__ status, Composite* candidates, SlicePart* parts,
    unsigned long long* tickets, int depth, int vocab, int valid, int slices, int k, int room, float scale, float temperature)
{
    __shared__ SliceMemory memory;
    DYN_SHARED(Composite, buffer);
    const Mass mass(scale);
    {
        const int number = int(blockIdx.x) / slices, part = int(blockIdx.x) - number * slices;
        const LogitRow row(logits, number, vocab, valid);
        const int each = ceil_div(row.chunks, slices), first = min(part * each, row.chunks);
        if (threadIdx.x == 0) {
            memory.row = row, memory.buffer = buffer, memory.number = number;
            memory.first = first, memory.end = min(first + each, row.chunks);
            memory.k = k, memory.room = room, memory.capacity = room + KD_TOPK_STEP;
        }
    }
    __syncthreads();
    const SlicePart own = scan_slice(memory, mass, k);
    const int t = int(threadIdx.x), number = memory.number;
    int listed = memory.listed;
    if (slices > 1) {
        if (t == 0) parts[blockIdx.x] = own;
        for (int i = t; i < listed; i += KD_TOPK_THREADS) candidates[(long long)blockIdx.x * room + i] = buffer[i];
        if (!last_block(Tickets(tickets, int(gridDim.x) / (slices * depth)), number, slices)) return;
        const long long at = (long long)number * slices;
        if (t < 32) summarise(memory, parts + at, slices, mass);
        __syncthreads();
        if (memory.log_sum == memory.log_sum) listed = gather(memory, candidates + at * room, slices);
    } else {
        if (t == 0) memory.reached = own.edge, memory.peak = own.peak, memory.log_sum = own.sum == 0.0f ? 0.0f : logf(own.sum);
        __syncthreads();
    }
    const bool bad = memory.log_sum != memory.log_sum;
    if (!bad) sort_best(memory, listed);
    const float log_sum = memory.log_sum, peak = memory.peak;
#pragma unroll 1
    for (int i = t; i < k; i += KD_TOPK_THREADS) {
        const int id = bad ? i : composite_id(buffer[i]);
        const float x = bad ? 0.0f : key_value(composite_key(buffer[i]));
        const float logprob = x == -KD_INFINITY ? x : fminf(0.0f, __fdiv_rn(x - peak, temperature) - log_sum);
        ids[(long long)number * k + i] = vocab_map ? vocab_map[id] : id;
        logprobs[(long long)number * k + i] = bad ? KD_NAN : logprob;
    }
    if (t == 0) Tickets(tickets, int(gridDim.x) / (slices * depth)).finish_row(number, bad, depth, status);
}
