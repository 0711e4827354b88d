// target_nucleus.cuh: the least logit that top-p keeps, by digits of its order-preserving bits.
//
// A round adds the masses of all elements that agree with the digits found so far, by their next digit, and keeps the
// digit in which the mass reaches top_p.  Masses are counted as integers (units of total / 2^31), so that neither the
// order of threads nor of blocks matters.  What is less than a unit is rounded up or down by a hash of the id, so that
// the errors of many small masses cancel.  16-bit logits are known after two rounds, float32 after three.
#ifndef KD_TARGET_NUCLEUS_CUH
#define KD_TARGET_NUCLEUS_CUH

#include "target_draw.cuh"

#define KD_MASS_BINS 2048
#define KD_MASS_UNITS 2147483648.0
#define KD_NUCLEUS_WORDS 4
static_assert(sizeof(Nucleus) == 8 * KD_NUCLEUS_WORDS, "a state is four words");

struct MassBins {
    unsigned masses[KD_MASS_BINS];
    unsigned long long scratch[32];
    unsigned long long above;
    int digit;
};

struct MassDigit {
    int settled, shift;  // bits of the key above `settled` are known; this digit lies above `shift`
    bool last;
};

// All threads: add this block's masses to the row's totals, if there are any: a block that has the row alone needs none.
__device__ inline void count_masses(const RowCut& cut, int part, MassBins& bins, unsigned long long* totals,
    const Nucleus& state, const MassDigit& digit, const Mass& mass, double top_p)
{
    const int t = thread_number(), each = ceil_div(cut.row.chunks, cut.slices);
    const int first = min(part * each, cut.row.chunks), end = min(first + each, cut.row.chunks);
    const Nucleus own = state;
    const unsigned long long prefix = own.prefix;
    const float unit = __fdiv_rn(float(KD_MASS_UNITS), own.total);
    // All elements below this bound together have less than half of 1 - top_p: none of them is kept.
    float low = key_value(own.prefix);
    if (digit.settled == 32 && 1.0 - top_p > 1e-5 && mass.scale < 1e5f)
        low = own.peak + __fdiv_rn(log2f(float(0.5 * (1.0 - top_p)) * own.total / float(cut.row.valid)), mass.scale);
    for (int i = t; i < KD_MASS_BINS; i += int(blockDim.x)) bins.masses[i] = 0;
    __syncthreads();
    for (int base = first + t; base < end; base += int(blockDim.x) * KD_UNROLL) {
        uint4 tile[KD_UNROLL];
#pragma unroll
        for (int u = 0; u < KD_UNROLL; ++u) tile[u] = cut.row.load(base + u * int(blockDim.x), end);
#pragma unroll
        for (int u = 0; u < KD_UNROLL; ++u) {
            if (!(chunk_top(tile[u]) >= low)) continue;
#pragma unroll
            for (int j = 0; j < KD_PACK; ++j) {
                const float x = element(tile[u], j);
                const unsigned long long key = order_key(x);
                if (!(x >= low) || key >> digit.settled != prefix >> digit.settled) continue;
                const unsigned hash = unsigned(cut.row.id(base + u * int(blockDim.x)) + j) * 2654435769u >> 8;
                const unsigned units = __float2uint_rd(fmaf(mass.of(x, own.peak), unit, float(hash) * 0x1p-24f));
                if (units) atomicAdd(&bins.masses[unsigned(key >> digit.shift) & (KD_MASS_BINS - 1)], units);
            }
        }
    }
    __syncthreads();
    for (int i = t; i < KD_MASS_BINS && totals; i += int(blockDim.x)) {
        if (bins.masses[i]) atomicAdd(&totals[i], (unsigned long long)bins.masses[i]);
    }
}

// All threads of the row's last block: settle the next digit; zero the totals.
__device__ inline void next_digit(MassBins& bins, unsigned long long* totals, Nucleus& state, const MassDigit& digit,
    const Mass& mass, double top_p)
{
    constexpr int each = KD_MASS_BINS / KD_TARGET_THREADS;
    const int t = thread_number(), top = KD_MASS_BINS - 1 - t * each;
    const Nucleus own = state;
    const unsigned long long wanted = (unsigned long long)ceil(top_p * KD_MASS_UNITS);
    const auto mass_of_bin = [&](int i) { return totals ? __ldcg(&totals[i]) : (unsigned long long)bins.masses[i]; };
    unsigned long long sum = 0, total;
    if (t < KD_TARGET_THREADS) {
#pragma unroll 4
        for (int j = 0; j < each; ++j) sum += mass_of_bin(top - j);
    }
    if (t == 0) bins.digit = -1;
    unsigned long long before = own.above + sum_before(sum, bins.scratch, total);
    if (t < KD_TARGET_THREADS) {
#pragma unroll 4
        for (int j = 0; j < each; ++j) {
            const unsigned long long here = mass_of_bin(top - j);
            if (before < wanted && wanted <= before + here) bins.digit = top - j, bins.above = before;
            before += here;
            if (totals) totals[top - j] = 0;
        }
    }
    __syncthreads();
    if (t != 0 || bins.digit < 0) return;  // rounding kept top_p from being reached: the edge stays -inf, all is kept
    const unsigned prefix = own.prefix | unsigned(bins.digit) << digit.shift;
    state.prefix = prefix, state.above = bins.above;
    if (!digit.last) return;
    const unsigned open = (1u << digit.shift) - 1;  // bits that 16-bit logits do not have: as in any number of that sign
    const float edge = key_value(prefix >> 31 ? prefix : prefix | open);
    state.edge = edge;
    const double tie = double(mass.of(edge, own.peak)) * KD_MASS_UNITS / double(own.total);
    state.ties = int(fmin(ceil(double(wanted - bins.above) / fmax(tie, 1e-9)), 2147483647.0));
}

// All threads: the nucleus of a row by this block alone, whatever its numbers are.  Begins and ends with a barrier.
__device__ __forceinline__ void nucleus_of_row(MassBins& bins, LogitRow row, Nucleus& state, int rounds, float scale, double top_p)
{
    const Mass mass(scale);
    const PeakSum own = careful_sum(row, thread_number(), row.chunks, int(blockDim.x), scale);
    float* scratch = reinterpret_cast<float*>(bins.scratch);
    const float peak = block_max(own.peak, scratch);
    const float total = block_sum(own.sum == 0.0f ? 0.0f : own.sum * mass.of(own.peak, peak), scratch);
    const bool bad = !(total > 0.0f) || peak == KD_INFINITY;
    if (thread_number() == 0) state = {peak, total, -KD_INFINITY, 0, bad, 0u, 0ull};
    for (int round = 0; round < rounds && !bad; ++round) {
        __syncthreads();
        const MassDigit digit = {32 - 11 * round, max(21 - 11 * round, 0), round + 1 == rounds};
        count_masses({row, 1}, 0, bins, nullptr, state, digit, mass, top_p);
        next_digit(bins, nullptr, state, digit, mass, top_p);
    }
    __syncthreads();
}

#endif
