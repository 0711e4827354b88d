// topk_logprob.cu: which K tokens does the drafter prefer at each position, and how probable is each?
//
// Algorithm  v1: one block a request; K times the best element below the one before.
//            v2: each row is cut in up to 32 slices, one block each.  A block reads its slice once: its first tile, a fair
//            sample held in registers, gives an edge; whatever reaches it is listed; exponentials are summed on the
//            way.  The last block of a row selects and sorts the best of all lists.  If the k-th best shows that a list
//            may lack an element (or a list ran over), it selects from the row itself, digit by digit.
// Inputs     logits (b, D, vocab) KD_LOGIT; ids from `valid` on take no part; vocab_map (vocab,) int32 or null.
//            1 <= k <= valid <= vocab <= 2^20; any values
// Outputs    ids (b, D, k) int32, logprobs (b, D, k) float32, status (b,) int32.  Scratch: candidates (b D slices, room)
//            uint64, parts (b D slices, 4) 32-bit words; tickets (b + b D,) uint64: zero before and after.
//            most: a power of 2, at least k and 256
// Launch     topk_logprob_v1: grid b, block 256, dynamic shared 0
// Launch     topk_logprob_v2: grid b * D * slices, block KD_TOPK_THREADS, dynamic shared 8 * (8192 + 2 * KD_MAX_WIDTH)
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
    unsigned long long* tickets, int depth, int vocab, int valid, int slices, int tiles, int group, int k, int rank, int room,
    int most, float scale, float temperature)
{
    __shared__ SliceMemory memory;
    DYN_SHARED(Composite, elements);  // slices * room, then `most` for the best
    Composite* best = elements + slices * room;
    const int t = int(threadIdx.x), number = int(blockIdx.x) / slices, slice = int(blockIdx.x) - number * slices;
    const LogitRow row(logits, number, vocab, valid);
    const long long at = (long long)number * slices;
    Composite* own_list = slices > 1 ? candidates + (at + slice) * room : elements;
    const SliceList list = {own_list, room, reinterpret_cast<int*>(best), 2 * most};
    const SlicePart own = scan_slice(memory, row, SliceCut(slice, slices, tiles, group), scale, rank, list);
    RowPart whole(own, room);
    int listed = min(own.listed, room);
    if (slices > 1) {
        for (int i = listed + t; i < room; i += KD_TOPK_THREADS) own_list[i] = 0;
        if (t == 0) parts[blockIdx.x] = own;
        if (!last_block(Tickets(tickets, int(gridDim.x) / (slices * depth)), number, slices)) return;
        whole = RowPart(parts + at, slices, room, Mass(scale));
        listed = slices * room;
    }
    const bool bad = whole.sum != whole.sum;
    if (t == KD_TOPK_THREADS - 1) Tickets(tickets, int(gridDim.x) / (slices * depth)).finish_row(number, bad, depth, status);
    const float log_sum = whole.sum == 0.0f ? 0.0f : logf(whole.sum);
    const long long first = (long long)number * k;
    const TopkOutput to = {vocab_map, ids + first, logprobs + first, whole.peak, log_sum, temperature};
    if (bad) {
        to.put_bad(k);
        return;
    }
    const Composite* others = slices > 1 ? candidates + at * room : nullptr;
    const int chosen = whole.complete ? choose(memory, whole, others, elements, listed, k, best, most) : 0;
    if (chosen != 0 && put_sorted(best, chosen, k, whole.edge, to)) return;
    put_from_row(memory, row, whole.listed >= k ? whole.low : -KD_INFINITY, best, most, k, to);
}
