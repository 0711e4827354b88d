// logit_rows.cuh: rows of logits, read 16 bytes at a time: number types, order, exact ranks of ties, exponentials.
//
// A row starts wherever its number type allows.  It is read as "chunks": 16-byte pieces at 16-byte addresses.  The first
// and the last may reach beyond the row (not beyond the memory: the same 16 bytes hold an element of the row); what is
// read there is replaced by -inf, which no sum counts and no id names.
//
// A "composite" orders (logit, id) as the stages do: float32 logit descending, then lower id.  It is one 52-bit number,
// larger is better: the logit's order-preserving bits, then KD_MOST_ID - id.  0.0 and -0.0 are the same; 0 is no element.
#ifndef KD_LOGIT_ROWS_CUH
#define KD_LOGIT_ROWS_CUH

#include "common.cuh"

#ifndef KD_LOGIT
#define KD_LOGIT __nv_bfloat16
#endif
#ifndef KD_STATUS_NON_FINITE
#define KD_STATUS_NON_FINITE 1
#endif
#define KD_ID_BITS 20
#define KD_MOST_ID 0xfffff
#define KD_LARGEST 3.402823466e38f
#define KD_PACK (16 / int(sizeof(KD_LOGIT)))  // elements of a chunk
#define KD_UNROLL 4                           // chunks that a thread loads at once

typedef unsigned long long Composite;

// max of two numbers; the NaN without sign if either is NaN.
__device__ __forceinline__ float larger(float a, float b)
{
#ifdef __CUDACC_RTC__
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
#else
    return a != a || b != b ? KD_NAN : a < b ? b : a;
#endif
}

// block_reduce of common.cuh for blocks of KD_ROW_WARPS warps: straight code.  `scratch` holds one float a warp.
#define KD_ROW_WARPS 8
template <class Operation>
__device__ __forceinline__ float row_reduce(float value, float* scratch)
{
    value = warp_reduce<Operation>(value);
    __syncthreads();
    if (lane_id() == 0) scratch[warp_id()] = value;
    __syncthreads();
    float total = scratch[0];
#pragma unroll
    for (int w = 1; w < KD_ROW_WARPS; ++w) total = Operation::of(total, scratch[w]);
    return total;
}

__device__ __forceinline__ float row_sum(float value, float* scratch) { return row_reduce<Sum>(value, scratch); }
__device__ __forceinline__ float row_max(float value, float* scratch) { return row_reduce<Largest>(value, scratch); }

// ---- how a number type lies in 32-bit words ----

template <class T> struct Packed;

template <> struct Packed<float> {
    static constexpr int per_word = 1;
    static constexpr unsigned minus_infinity = 0xff800000u;
    __device__ static unsigned hide(unsigned word, unsigned which) { return which & 1 ? minus_infinity : word; }
    __device__ static float get(unsigned word, int) { return __uint_as_float(word); }
    __device__ static unsigned larger_words(unsigned a, unsigned b)
    {
        return __float_as_uint(larger(__uint_as_float(a), __uint_as_float(b)));
    }
};

template <> struct Packed<__nv_bfloat16> {
    static constexpr int per_word = 2;
    static constexpr unsigned minus_infinity = 0xff80ff80u;
    __device__ static unsigned hide(unsigned word, unsigned which)
    {
        const unsigned bits = (which & 1 ? 0xffffu : 0u) | (which & 2 ? 0xffff0000u : 0u);
        return (word & ~bits) | (minus_infinity & bits);
    }
    __device__ static float get(unsigned word, int i)
    {
        return __uint_as_float(i ? word & 0xffff0000u : word << 16);
    }
    __device__ static unsigned larger_words(unsigned a, unsigned b)
    {
#ifdef __CUDACC_RTC__
        unsigned c;
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
        return c;
#else
        const unsigned low = __float_as_uint(larger(get(a, 0), get(b, 0))) >> 16;
        return low | (__float_as_uint(larger(get(a, 1), get(b, 1))) & 0xffff0000u);
#endif
    }
};

template <> struct Packed<__half> {
    static constexpr int per_word = 2;
    static constexpr unsigned minus_infinity = 0xfc00fc00u;
    __device__ static unsigned hide(unsigned word, unsigned which)
    {
        const unsigned bits = (which & 1 ? 0xffffu : 0u) | (which & 2 ? 0xffff0000u : 0u);
        return (word & ~bits) | (minus_infinity & bits);
    }
    __device__ static float get(unsigned word, int i)
    {
        return to_float(__ushort_as_half((unsigned short)(i ? word >> 16 : word & 0xffffu)));
    }
    __device__ static unsigned larger_words(unsigned a, unsigned b)
    {
#ifdef __CUDACC_RTC__
        unsigned c;
        asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
        return c;
#else
        const __half low = __float2half_rn(larger(get(a, 0), get(b, 0)));
        const __half high = __float2half_rn(larger(get(a, 1), get(b, 1)));
        return __half_as_ushort(low) | unsigned(__half_as_ushort(high)) << 16;
#endif
    }
};

typedef Packed<KD_LOGIT> Words;

__device__ __forceinline__ float element(const uint4& chunk, int j)
{
    const int word = j / Words::per_word;
    return Words::get(word == 0 ? chunk.x : word == 1 ? chunk.y : word == 2 ? chunk.z : chunk.w, j % Words::per_word);
}

// The largest element of a chunk; NaN if one is.
__device__ __forceinline__ float chunk_top(const uint4& chunk)
{
    const unsigned a = Words::larger_words(chunk.x, chunk.y), b = Words::larger_words(chunk.z, chunk.w);
    const unsigned both = Words::larger_words(a, b);
    if (Words::per_word == 1) return Words::get(both, 0);
    return larger(Words::get(both, 0), Words::get(both, 1));
}

// ---- rows ----

struct LogitRow {
    const KD_LOGIT* start;  // of chunk 0, at a 16-byte address: up to KD_PACK - 1 elements before the row
    int shift, valid, chunks;

    LogitRow() = default;
    __device__ LogitRow(const KD_LOGIT* logits, long long row, int vocab, int valid) : valid(valid)
    {
        const KD_LOGIT* own = logits + row * vocab;
        shift = int((size_t(own) & 15) / sizeof(KD_LOGIT));
        start = own - shift;
        chunks = ceil_div(valid + shift, KD_PACK);
    }

    __device__ int id(int chunk) const { return chunk * KD_PACK - shift; }  // of its first element
    __device__ bool has(int id) const { return unsigned(id) < unsigned(valid); }

    // How many ids lie in chunks first..end-1.
    __device__ int count(int first, int end) const { return min(id(end), valid) - max(id(first), 0); }

    // No chunk holds elements of other rows.
    __device__ bool whole() const { return shift == 0 && chunks * KD_PACK == valid; }

    // Chunk `c` as it lies in memory, or -inf from `end` on.
    __device__ __forceinline__ uint4 read(int c, int end) const
    {
        const unsigned fill = Words::minus_infinity;
        uint4 chunk = make_uint4(fill, fill, fill, fill);
        if (c < end) chunk = __ldg(reinterpret_cast<const uint4*>(start) + c);
        return chunk;
    }

    // Elements of chunk `c` that are not of this row become -inf.
    __device__ __forceinline__ void hide(uint4& chunk, int c) const
    {
        if (c > 0 && c < chunks - 1) return;
        const int before = -id(c), after = id(c) + KD_PACK - valid;
        if (before <= 0 && (after <= 0 || c >= chunks)) return;
        const unsigned outside = (before > 0 ? (1u << before) - 1 : 0u) | (after > 0 ? ~0u << (KD_PACK - after) : 0u);
        chunk.x = Words::hide(chunk.x, outside), chunk.y = Words::hide(chunk.y, outside >> Words::per_word);
        chunk.z = Words::hide(chunk.z, outside >> 2 * Words::per_word);
        chunk.w = Words::hide(chunk.w, outside >> 3 * Words::per_word);
    }

    // Chunk `c` without elements of other rows, or -inf from `end` on.
    __device__ __forceinline__ uint4 load(int c, int end) const
    {
        uint4 chunk = read(c, end);
        hide(chunk, c);
        return chunk;
    }
};

// ---- order ----

__device__ __forceinline__ unsigned order_key(float x)
{
    unsigned bits = __float_as_uint(x);
    if (bits == 0x80000000u) bits = 0;
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

#define KD_KEY_MINUS_INFINITY 0x007fffffu

// The least logit whose key is at least `key`.
__device__ __forceinline__ float key_value(unsigned key)
{
    key = max(key, KD_KEY_MINUS_INFINITY);
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

__device__ __forceinline__ Composite composite(float x, int id)
{
    return Composite(order_key(x)) << KD_ID_BITS | unsigned(KD_MOST_ID - id);
}

__device__ __forceinline__ int composite_id(Composite c) { return KD_MOST_ID - int(unsigned(c) & KD_MOST_ID); }
__device__ __forceinline__ unsigned composite_key(Composite c) { return unsigned(c >> KD_ID_BITS); }

// ---- exponentials ----

__device__ __forceinline__ float exp2_approximate(float x)
{
#ifdef __CUDACC_RTC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

// exp((x - peak) / temperature) = exp2(a) * (1 + e ln 2), where a is the rounded exponent and e what rounding lost:
// without e, 2^17 equal terms of exponent -17 would all err by up to 2^-20 in the same direction.
struct Mass {
    float scale, least;  // log2(e) / temperature; differences below `least` have no mass

    __device__ explicit Mass(float scale) : scale(scale), least(-fminf(KD_LARGEST, __fdiv_rn(250.0f, scale))) {}

    // sum + mass; NaN if x is NaN or +inf.
    __device__ __forceinline__ float add(float sum, float x, float peak) const
    {
        const float d = larger(x - peak, least), a = __fmul_rn(d, scale), e = fmaf(d, scale, -a);
        return fmaf(exp2_approximate(a), fmaf(e, 0.693147181f, 1.0f), sum);
    }
    __device__ __forceinline__ float of(float x, float peak) const { return add(0.0f, x, peak); }
};

// Half as many instructions where the offset is exact to about 1: 2^(x * scale - offset) with one rounding, of a number
// that is small where it matters.  The offset puts the peak at 2^8: 2^17 equal terms at 2^-17 of the peak all err in the same
// direction, by half a unit in the last place of 9.
struct FastMass {
    float scale;

    __device__ __forceinline__ bool safe(float peak) const { return fabsf(peak * scale) < 16777216.0f; }
    __device__ __forceinline__ float offset(float peak) const { return __fmul_rn(peak, scale) - 8.0f; }
    __device__ __forceinline__ float of(float x, float offset) const { return exp2_approximate(fmaf(x, scale, -offset)); }

    // A sum of masses, relative to the mass of `peak`.
    __device__ __forceinline__ float relative(float sum, float peak, float offset) const
    {
        return sum * exp2_approximate(-fmaf(peak, scale, -offset));
    }
};

#endif
