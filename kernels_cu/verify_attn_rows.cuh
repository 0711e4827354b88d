// verify_attn_rows.cuh: KV rows of 8-bit floats (e4m3): two formats, and numbers from bytes.
#ifndef KD_VERIFY_ATTN_ROWS_CUH
#define KD_VERIFY_ATTN_ROWS_CUH

#include "verify_attn_kv.cuh"

#ifndef KD_E4M3_CONVERT   // 1: the conversion instruction (sm_89 and newer); 0: bits and two or three multiplications
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
#define KD_E4M3_CONVERT 0
#else
#define KD_E4M3_CONVERT 1
#endif
#endif

// 512 latent numbers, four float32 scales (one for each 128 of them), 64 rotary numbers in bfloat16.
struct ScaledRow {
    using Element = unsigned char;
    static constexpr int scales = KD_LATENT, rope = scales + KD_LATENT / 128 * 4, length = rope + 2 * KD_ROPE, bytes = length;
    static constexpr bool fp8 = true, scaled = true;
    static_assert(KD_LATENT % 128 == 0 && rope % 16 == 0, "pieces of 16 bytes");
};

// 512 latent and 64 rotary numbers, all times one scale of the call.
struct PlainRow {
    using Element = unsigned char;
    static constexpr int rope = KD_LATENT, length = kd_width, bytes = length;
    static constexpr bool fp8 = true, scaled = false;
};

__device__ __forceinline__ float e4m3_value(unsigned char code)
{
    __nv_fp8_e4m3 number;
    number.__x = code;
    return to_float(number);
}

// A row whose numbers are read one by one.
struct ScaledNumbers {
    const unsigned char* row;

    __device__ __forceinline__ float operator[](int i) const
    {
        if (i < KD_LATENT) return e4m3_value(row[i]) * reinterpret_cast<const float*>(row + ScaledRow::scales)[i / 128];
        return to_float(reinterpret_cast<const __nv_bfloat16*>(row + ScaledRow::rope)[i - KD_LATENT]);
    }
};

struct PlainNumbers {
    const unsigned char* row;
    float scale;

    __device__ __forceinline__ float operator[](int i) const { return e4m3_value(row[i]) * scale; }
};

// Four e4m3 numbers of a word as pairs of bfloat16, exactly: bytes 0 and 2, bytes 1 and 3; widen_in_order: 0 and 1, 2 and 3.  NaN stays NaN, or, with
// keep_nan false, may become 480: for values, whose score is NaN already.
template <bool keep_nan = true>
__device__ __forceinline__ void widen_e4m3(unsigned word, unsigned& even, unsigned& odd)
{
#if !defined(__CUDACC_RTC__)
    even = pack_pair<__nv_bfloat16>(e4m3_value((unsigned char)word), e4m3_value((unsigned char)(word >> 16)));
    odd = pack_pair<__nv_bfloat16>(e4m3_value((unsigned char)(word >> 8)), e4m3_value((unsigned char)(word >> 24)));
#elif KD_E4M3_CONVERT
    asm("{ .reg .b32 ordered, x, y; .reg .b16 l, h, a, b; .reg .f32 u, v;\n\t"
        "prmt.b32 ordered, %2, 0, 0x3120; mov.b32 {l, h}, ordered;\n\t"
        "cvt.rn.f16x2.e4m3x2 x, l; cvt.rn.f16x2.e4m3x2 y, h;\n\t"
        "mov.b32 {a, b}, x; cvt.f32.f16 u, a; cvt.f32.f16 v, b; cvt.rn.bf16x2.f32 %0, v, u;\n\t"
        "mov.b32 {a, b}, y; cvt.f32.f16 u, a; cvt.f32.f16 v, b; cvt.rn.bf16x2.f32 %1, v, u; }"
        : "=r"(even), "=r"(odd) : "r"(word));
#else
    // Sign, exponent and mantissa in the places of bfloat16 are the number times 2^-120, subnormal ones too.  The code
    // of NaN becomes 480, the only one that overflows in a product with 1.078 * 2^119, and infinity * 0 is NaN.
    constexpr unsigned power_120 = 0x7b807b80u, overflow = 0x7b0a7b0au;
    const unsigned pairs[2] = {word << 8, word};
    unsigned out[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const unsigned bits = (pairs[i] & 0x80008000u) | (pairs[i] >> 4 & 0x07f007f0u);
        if constexpr (!keep_nan) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out[i]) : "r"(bits), "r"(power_120), "r"(0));
        else asm("{ .reg .b32 x, far; fma.rn.bf16x2 x, %1, %2, %4; fma.rn.bf16x2 far, x, %3, x; fma.rn.bf16x2 %0, far, %4, x; }"
            : "=r"(out[i]) : "r"(bits), "r"(power_120), "r"(overflow), "r"(0));
    }
    even = out[0], odd = out[1];
#endif
}

// Four e4m3 numbers of a word as pairs of float16, exactly: bytes 0 and 1, bytes 2 and 3.  NaN stays NaN.
__device__ __forceinline__ void widen_to_half(unsigned word, unsigned& low, unsigned& high)
{
#if !defined(__CUDACC_RTC__)
    low = pack_pair<__half>(e4m3_value((unsigned char)word), e4m3_value((unsigned char)(word >> 8)));
    high = pack_pair<__half>(e4m3_value((unsigned char)(word >> 16)), e4m3_value((unsigned char)(word >> 24)));
#elif KD_E4M3_CONVERT
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }" : "=r"(low), "=r"(high) : "r"(word));
#else
    constexpr unsigned power_8 = 0x5c005c00u, overflow = 0x58605860u;   // 2^8; 140: 480 * 141 is infinite, 448 * 141 is not
    const unsigned pairs[2] = {__byte_perm(word, 0, 0x1404), __byte_perm(word, 0, 0x3424)};
    unsigned out[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const unsigned bits = (pairs[i] & 0x80008000u) | (pairs[i] >> 1 & 0x3f803f80u);   // the number times 2^-8
        asm("{ .reg .b32 x, far; fma.rn.f16x2 x, %1, %2, %4; fma.rn.f16x2 far, x, %3, x; fma.rn.f16x2 %0, far, %4, x; }"
            : "=r"(out[i]) : "r"(bits), "r"(power_8), "r"(overflow), "r"(0));
    }
    low = out[0], high = out[1];
#endif
}

__device__ __forceinline__ void widen_in_order(unsigned word, unsigned& low, unsigned& high)
{
    widen_e4m3(__byte_perm(word, 0, 0x3120), low, high);
}

// In order, and times `scale`, rounded to bfloat16 once.
__device__ __forceinline__ void widen_scaled(unsigned word, float scale, unsigned& low, unsigned& high)
{
#if defined(__CUDACC_RTC__) && KD_E4M3_CONVERT
    asm("{ .reg .b32 x, y; .reg .b16 l, h, a, b; .reg .f32 u, v;\n\t"
        "mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 x, l; cvt.rn.f16x2.e4m3x2 y, h;\n\t"
        "mov.b32 {a, b}, x; cvt.f32.f16 u, a; cvt.f32.f16 v, b; mul.f32 u, u, %3; mul.f32 v, v, %3; cvt.rn.bf16x2.f32 %0, v, u;\n\t"
        "mov.b32 {a, b}, y; cvt.f32.f16 u, a; cvt.f32.f16 v, b; mul.f32 u, u, %3; mul.f32 v, v, %3; cvt.rn.bf16x2.f32 %1, v, u; }"
        : "=r"(low), "=r"(high) : "r"(word), "f"(scale));
#else
    unsigned pairs[2];
    widen_in_order(word, pairs[0], pairs[1]);
    using T = __nv_bfloat16;
    low = pack_pair<T>(unpack_half<T>(pairs[0], 0) * scale, unpack_half<T>(pairs[0], 1) * scale);
    high = pack_pair<T>(unpack_half<T>(pairs[1], 0) * scale, unpack_half<T>(pairs[1], 1) * scale);
#endif
}

// Four neighbouring numbers of a result.
template <class T>
__device__ __forceinline__ void store_four(T* to, float a, float b, float c, float d)
{
    *reinterpret_cast<uint2*>(to) = make_uint2(pack_pair<T>(a, b), pack_pair<T>(c, d));
}
__device__ __forceinline__ void store_four(float* to, float a, float b, float c, float d)
{
    *reinterpret_cast<float4*>(to) = make_float4(a, b, c, d);
}

#endif
