// target_token.cu: which token does the target choose at each node?
//
// Algorithm  v1: one block a request, row after row, in float64: best element; a draw walks the ids in ascending order.
//            argmax: `slices` blocks a row look for the largest logit, then for its first id; the blocks of a row
//            compare theirs in pairs.
//            draw: as many blocks; each warp adds the masses of its own run of ids (a segment); the row's last block
//            finds the segment that u falls into and reads it once more.  With top-p, the least logit kept comes
//            first.  bfloat16, `target_token_counts`: blocks count how often each value occurs; the row's last block finds
//            the least value kept and draws from the row.  Others: `stage` 2 draws from what is kept; `stage` 1 adds, `target_token_nucleus` finds digits of the order-preserving
//            bits, from masses counted as integers.
// Inputs     logits (b, N, vocab) KD_LOGIT, any values; ids from `valid` on take no part; uniforms (b, N) float32 or null
// Outputs    tokens (b, N) int32, status (b,) int32.  Scratch: peaks, sums, ties: one a segment; states:
//            KD_NUCLEUS_WORDS uint64 a row; bests (slices uint64 a row), totals, tickets (b + b N uint64): zero before and after;
//            totals of target_token_counts: KD_COUNT_WORDS uint32 a row, null if slices is 1
// Launch     target_token_v1: grid b, block 256, dynamic shared 0
// Launch     target_token_argmax: grid b * N * slices, block KD_ARGMAX_THREADS, dynamic shared 0; or less threads
// Launch     target_token_draw: grid b * N * slices, block KD_TARGET_THREADS, dynamic shared 0
// Launch     target_token_counts: grid b * N * slices, block KD_COUNT_THREADS, dynamic shared 4 * KD_COUNT_WORDS; or less
//            threads, or no dynamic shared if slices is 1; bfloat16 only
// Launch     target_token_nucleus: grid b * N * slices, block KD_TARGET_THREADS, dynamic shared 0
// Aliasing   outputs overlap nothing; launches that share scratch must not overlap in time
// Numerics   argmax is exact, lowest id first.  Draws: float32 sums in an order that sizes fix; an edge between two ids
//            may lie up to 1e-6 from the exact one
// Bytes      reads sizeof(KD_LOGIT) * valid a row; a draw 1 + 1/segments times that, with top-p twice, float16 four, float32 five times
#include "target_argmax.cuh"
#include "target_counts.cuh"

extern "C" __global__ void __launch_bounds__(256, 1)
target_token_v1(const KD_LOGIT* __restrict__ logits, const float* __restrict__ uniforms, int* __restrict__ tokens,
    int* __restrict__ status, int nodes, int vocab, int valid, double temperature, double top_p)
{
    __shared__ double sums[8];
    __shared__ Composite bests[8];
    const int t = int(threadIdx.x), b = int(blockIdx.x);
    int found = 0;
    for (int node = 0; node < nodes; ++node) {
        const long long row = (long long)b * nodes + node;
        const KD_LOGIT* x = logits + row * vocab;
        Composite best = 0;
        int bad = 0;
        for (int i = t; i < valid; i += 256) {
            const float value = to_float(x[i]);
            bad |= !(value < KD_INFINITY);
            best = max(best, composite(value, i));
        }
        best = block_max(best, bests);
        const double peak = key_value(composite_key(best));
        bad = __syncthreads_or(bad || peak == -KD_INFINITY);
        if (bad) found |= KD_STATUS_NON_FINITE;
        if (bad || temperature == 0.0) {
            if (t == 0) tokens[row] = bad ? -1 : composite_id(best);
            continue;
        }
        double total = 0.0;
        for (int i = t; i < valid; i += 256) total += exp((double(to_float(x[i])) - peak) / temperature);
        total = block_sum(total, sums);
        double kept = 1.0;  // mass of what is kept: the best, then one element after another
        for (int count = 1; top_p < 1.0 && count < valid && kept < top_p * total; ++count) {
            Composite next = 0;
            for (int i = t; i < valid; i += 256) {
                const Composite c = composite(to_float(x[i]), i);
                if (c < best) next = max(next, c);
            }
            best = block_max(next, bests);
            kept += exp((double(key_value(composite_key(best))) - peak) / temperature);
        }
        if (top_p == 1.0) best = 0, kept = total;
        if (t == 0) {
            int token = -1;
            double sum = 0.0;
            for (int i = 0; i < valid; ++i) {
                const double mass = exp((double(to_float(x[i])) - peak) / temperature);
                if (composite(to_float(x[i]), i) < best || mass == 0.0) continue;
                sum += mass, token = i;
                if (sum > double(uniforms[row]) * kept) break;
            }
            tokens[row] = token;
        }
    }
    if (t == 0) status[b] = found;
}

extern "C" __global__ void __launch_bounds__(KD_ARGMAX_THREADS, 1)
target_token_argmax(const KD_LOGIT* __restrict__ logits, int* __restrict__ tokens, int* __restrict__ status,
    unsigned long long* bests, unsigned long long* tickets, int nodes, int vocab, int valid, int slices)
{
    __shared__ unsigned scratch[2][32];
    const int number = int(blockIdx.x) / slices, part = int(blockIdx.x) - number * slices, t = int(threadIdx.x);
    const LogitRow row(logits, number, vocab, valid);
    const int each = ceil_div(row.chunks, slices), first = min(part * each, row.chunks), end = min(first + each, row.chunks);
    float best = -KD_INFINITY;  // NaN if there is one
    int where = end;
    for (int base = first + (t & ~31) * KD_ARGMAX_UNROLL + lane_id(); base < end; base += int(blockDim.x) * KD_ARGMAX_UNROLL) {
        const float top = largest_of_tile(row, base, end);
        if (!(top <= best) && best == best) best = top, where = base;
    }
    // Only now is it worth knowing which element: of a thread that has the block's largest.
    const unsigned most = block_most(order_key(best), scratch[0]);
    unsigned id = KD_MOST_ID;
    if (order_key(best) == most) id = id_in_tile(row, where, end, best);
    id = ~block_most(~id, scratch[1]);
    if (t != 0) return;
    // 0: nothing above -inf; all ones: NaN or +inf.  Both are bad if they are the best of the row.
    const Composite bad_row = ~Composite(0);
    Composite own = most >= order_key(KD_INFINITY) ? bad_row : Composite(most) << KD_ID_BITS | (KD_MOST_ID - id);
    if (most == KD_KEY_MINUS_INFINITY) own = 0;
    own = meet(own, bests + (long long)number * slices, part, slices);
    if (own == 0) return;
    const bool good = own != KD_ARRIVED && own != bad_row;
    tokens[number] = good ? composite_id(own) : -1;
    Tickets(tickets, int(gridDim.x) / (slices * nodes)).finish_row(number, !good, nodes, status);
}

extern "C" __global__ void __launch_bounds__(KD_TARGET_THREADS, 4)
target_token_draw(const KD_LOGIT* __restrict__ logits, const float* __restrict__ uniforms, int* __restrict__ tokens,
    int* __restrict__ status, float* peaks, float* sums, int* ties, unsigned long long* tickets, unsigned long long* states, int nodes,
    int vocab, int valid, int slices, int stage, float scale)
{
    __shared__ DrawMemory memory;
    const int number = int(blockIdx.x) / slices, part = int(blockIdx.x) - number * slices;
    const Tickets counters(tickets, int(gridDim.x) / (slices * nodes));
    const RowCut cut = {LogitRow(logits, number, vocab, valid), slices};
    const Segments segments = {peaks, sums, ties, (long long)number * slices * KD_TARGET_WARPS, slices * KD_TARGET_WARPS};
    Nucleus* state = reinterpret_cast<Nucleus*>(states + (long long)number * KD_NUCLEUS_WORDS);
    const Kept kept = stage == 2 ? Kept{state->edge, state->ties} : Kept{-KD_INFINITY, 0};
    if (stage != 2) add_segment(cut, part, segments, Mass(scale));
    else if (!state->bad) add_kept_segment(cut, part, segments, Mass(scale), state->peak, kept);
    if (!last_block(counters, number, slices)) return;
    const int t = int(threadIdx.x);
    if (t < 32 && stage == 2 && state->bad) memory.bad = 1, memory.segment = 0;
    else if (t < 32) choose_segment(segments, stage == 1 ? 0.0f : uniforms[number], kept, Mass(scale), memory);
    __syncthreads();
    const bool bad = memory.bad != 0;
    if (stage == 1) {
        if (t == 0) *state = {memory.peak, float(memory.total), -KD_INFINITY, 0, bad, 0u, 0ull};
        return;
    }
    if (t == KD_TARGET_THREADS - 1) counters.finish_row(number, bad, nodes, status);
    int first, end;
    cut.segment(memory.segment, first, end);
    const int token = bad ? -1 : pick(cut.row, first, end, kept, Mass(scale), memory);
    if (t == 0) tokens[number] = token;
}

extern "C" __global__ void __launch_bounds__(KD_COUNT_THREADS, 1)
target_token_counts(const KD_LOGIT* __restrict__ logits, const float* __restrict__ uniforms, int* __restrict__ tokens,
    int* __restrict__ status, unsigned long long* tickets, unsigned* totals, int nodes, int vocab, int valid, int slices, float scale,
    double top_p)
{
    __shared__ CountMemory memory;
    __shared__ DrawMemory draw;
    DYN_SHARED(unsigned, row_counts);
    const int number = int(blockIdx.x) / slices, part = int(blockIdx.x) - number * slices, t = int(threadIdx.x);
    const Tickets counters(tickets, int(gridDim.x) / (slices * nodes));
    const LogitRow row(logits, number, vocab, valid);
    if (t == 0) memory.row = row;
    count_values({row, slices}, part, memory);
    unsigned* counts = memory.counts;
    if (slices > 1) {
        unsigned* own_totals = totals + (long long)number * KD_COUNT_WORDS;
        add_counts(memory, own_totals);
        if (!last_block(counters, number, slices)) return;
        counts = row_counts;
        take_counts(counts, own_totals);
    } else {
        __syncthreads();
    }
    kept_by_counts(memory, counts, Mass(scale), top_p);
    const bool unclear = memory.unclear != 0;
    if (unclear) nucleus_of_row(*reinterpret_cast<MassBins*>(memory.counts), memory.row, memory.nucleus, 2, scale, top_p);
    const Nucleus& nucleus = memory.nucleus;
    const bool bad = nucleus.bad != 0;
    if (t == int(blockDim.x) - 1) counters.finish_row(number, bad, nodes, status);
    int token = -1;
    if (!bad) {
        const float u = uniforms[number];
        if (slices == 2 && !unclear) {
            choose_slice(memory, part, u, scale);
        } else {
            if (t == 0) memory.part = {0, memory.row.chunks, {nucleus.edge, nucleus.ties}, {double(u), true}};
            __syncthreads();
        }
        token = draw_from_part(memory.row, memory.part, nucleus.peak, scale, draw);
    }
    if (t == 0) tokens[number] = token;
}

extern "C" __global__ void __launch_bounds__(KD_TARGET_THREADS, 3)
target_token_nucleus(const KD_LOGIT* __restrict__ logits, unsigned long long* tickets, unsigned long long* states,
    unsigned long long* totals, int nodes, int vocab, int valid, int slices, int round, int rounds, float scale, double top_p)
{
    __shared__ MassBins bins;
    const int number = int(blockIdx.x) / slices, part = int(blockIdx.x) - number * slices;
    Nucleus& state = *reinterpret_cast<Nucleus*>(states + (long long)number * KD_NUCLEUS_WORDS);
    unsigned long long* own_totals = totals + (long long)number * KD_MASS_BINS;
    if (state.bad) return;
    const RowCut cut = {LogitRow(logits, number, vocab, valid), slices};
    const Tickets counters(tickets, int(gridDim.x) / (slices * nodes));
    const MassDigit digit = {32 - 11 * round, max(21 - 11 * round, 0), round + 1 == rounds};
    count_masses(cut, part, bins, own_totals, state, digit, Mass(scale), top_p);
    if (last_block(counters, number, slices)) next_digit(bins, own_totals, state, digit, Mass(scale), top_p);
}
