// numeric_api.h: the functions of cuda_fp16.h, cuda_bf16.h and cuda_fp8.h that kernels use, and the packed types.
#ifndef KD_HOST_NUMERIC_API_H
#define KD_HOST_NUMERIC_API_H

#include "numeric.h"

#define KD_PACKED_FLOAT(Pair, Name)                                                           \
    struct alignas(4) Pair {                                                                  \
        Name x, y;                                                                            \
    };                                                                                        \
    inline Pair operator+(Pair a, Pair b) { return {a.x + b.x, a.y + b.y}; }                  \
    inline Pair operator-(Pair a, Pair b) { return {a.x - b.x, a.y - b.y}; }                  \
    inline Pair operator*(Pair a, Pair b) { return {a.x * b.x, a.y * b.y}; }                  \
    inline Pair __hadd2(Pair a, Pair b) { return a + b; }                                     \
    inline Pair __hsub2(Pair a, Pair b) { return a - b; }                                     \
    inline Pair __hmul2(Pair a, Pair b) { return a * b; }                                     \
    inline Pair __hmax2(Pair a, Pair b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }      \
    inline Pair __hmin2(Pair a, Pair b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }      \
    inline Pair __hfma2(Pair a, Pair b, Pair c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
    inline float __low2float(Pair a) { return float(a.x); }                                   \
    inline float __high2float(Pair a) { return float(a.y); }
KD_PACKED_FLOAT(__half2, __half)
KD_PACKED_FLOAT(__nv_bfloat162, __nv_bfloat16)
#undef KD_PACKED_FLOAT
using half2 = __half2;
using nv_bfloat162 = __nv_bfloat162;

// ---- cuda_fp16.h ----
inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __double2half(double x) { return __half(x); }
inline float __half2float(__half x) { return float(x); }
inline __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline __half2 __float22half2_rn(float2 v) { return {__half(v.x), __half(v.y)}; }
inline float2 __half22float2(__half2 v) { return {float(v.x), float(v.y)}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __half2half2(__half x) { return {x, x}; }
inline __half2 make_half2(__half x, __half y) { return {x, y}; }
inline __half __low2half(__half2 v) { return v.x; }
inline __half __high2half(__half2 v) { return v.y; }
inline unsigned short __half_as_ushort(__half x) { return x.__x; }
inline __half __ushort_as_half(unsigned short bits) { return __half(__half_raw{bits}); }
inline short __half_as_short(__half x) { return short(x.__x); }
inline __half __short_as_half(short bits) { return __ushort_as_half((unsigned short)bits); }

// ---- cuda_bf16.h ----
inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16(x); }
inline float __bfloat162float(__nv_bfloat16 x) { return float(x); }
inline __nv_bfloat162 __float2bfloat162_rn(float x) { return {__nv_bfloat16(x), __nv_bfloat16(x)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {__nv_bfloat16(v.x), __nv_bfloat16(v.y)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {float(v.x), float(v.y)}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return {x, x}; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.__x; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16(__nv_bfloat16_raw{bits}); }

// ---- cuda_fp8.h ----
typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned __nv_fp8x4_storage_t;
struct __half2_raw {
    unsigned short x, y;
};
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturate, __nv_fp8_interpretation_t kind)
{
    return kind == __NV_E4M3 ? kd_host::Fp8<4, 3>::encode(x, saturate == __NV_SATFINITE)
                             : kd_host::Fp8<5, 2>::encode(x, saturate == __NV_SATFINITE);
}

inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t kind)
{
    return __half(kind == __NV_E4M3 ? kd_host::Fp8<4, 3>::decode(x) : kd_host::Fp8<5, 2>::decode(x));
}

inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t saturate,
                                                     __nv_fp8_interpretation_t kind)
{
    const unsigned low = __nv_cvt_float_to_fp8(v.x, saturate, kind), high = __nv_cvt_float_to_fp8(v.y, saturate, kind);
    return (unsigned short)(low | high << 8);
}

inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t v, __nv_fp8_interpretation_t kind)
{
    return {__nv_cvt_fp8_to_halfraw((unsigned char)(v & 0xff), kind).x,
            __nv_cvt_fp8_to_halfraw((unsigned char)(v >> 8), kind).x};
}

#define KD_FP8(Name, kind)                                                                             \
    struct Name {                                                                                      \
        __nv_fp8_storage_t __x;                                                                        \
        Name() = default;                                                                              \
        explicit Name(float value) : __x(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, kind)) {}        \
        explicit Name(double value) : Name(kd_host::to_odd(value)) {}                                  \
        explicit Name(__half value) : Name(float(value)) {}                                            \
        explicit Name(__nv_bfloat16 value) : Name(float(value)) {}                                     \
        explicit operator __half() const { return __half(__nv_cvt_fp8_to_halfraw(__x, kind)); }        \
        explicit operator __nv_bfloat16() const { return __nv_bfloat16(float(*this)); }                \
        explicit operator float() const { return float(__half(__nv_cvt_fp8_to_halfraw(__x, kind))); }  \
    };
KD_FP8(__nv_fp8_e4m3, __NV_E4M3)
KD_FP8(__nv_fp8_e5m2, __NV_E5M2)
#undef KD_FP8

#endif
