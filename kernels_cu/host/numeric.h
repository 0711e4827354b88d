// numeric.h: half, bfloat16 and 8-bit floats: storage, conversions and arithmetic.
//
// Conversions round to nearest, ties to even, as the device does; a NaN becomes the device's canonical one
// (0x7fff in 16 bits).  Arithmetic is done in float and rounded once.  tests/test_host_numeric.py compares all
// bit patterns with numpy and ml_dtypes.
#ifndef KD_HOST_NUMERIC_H
#define KD_HOST_NUMERIC_H

#include "vector_types.h"

inline float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
inline unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }

namespace kd_host {

inline unsigned short half_bits(float x)
{
    const unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u;
    unsigned magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
    if (magnitude >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);  // 65520 and above
    if (magnitude < 0x38800000u)  // below 2^-14: adding 0.5 rounds at 2^-24, the step of subnormal halves
        return (unsigned short)(sign | (__float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u));
    magnitude += 0xfffu + (magnitude >> 13 & 1u);
    return (unsigned short)(sign | ((magnitude - 0x38000000u) >> 13));
}

inline float half_value(unsigned short h)
{
    const unsigned sign = unsigned(h & 0x8000) << 16, magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    // The exponent bias differs by 112; the product is exact for subnormals too.
    return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude << 13) * 0x1p112f));
}

inline unsigned short bfloat16_bits(float x)
{
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline float bfloat16_value(unsigned short b) { return __uint_as_float(unsigned(b) << 16); }

// A double rounded to odd in float's precision: rounding that once more gives the correctly rounded result.
inline float to_odd(double x)
{
    const float near = float(x);
    if (double(near) == x || x != x) return near;
    const unsigned bits = __float_as_uint(near);
    if (bits & 1u) return near;
    const bool away = (x < 0 ? -double(near) : double(near)) > (x < 0 ? -x : x);
    return __uint_as_float(away ? bits - 1u : bits + 1u);
}

// a + b rounded to odd in double's precision (the error of the sum is exact), for one rounding in __hfma.
inline double sum_to_odd(double a, double b)
{
    const double sum = a + b, part = sum - a, error = (a - (sum - part)) + (b - part);
    unsigned long long bits;
    memcpy(&bits, &sum, 8);
    if (!(error < 0 || error > 0) || (bits & 1)) return sum;
    bits += (error > 0) == (sum > 0) ? 1 : -1;
    double odd;
    memcpy(&odd, &bits, 8);
    return odd;
}

// 8-bit floats.  e4m3 has no infinity: 0x7f is NaN, 448 the largest; e5m2 is the upper half of a half.
template <int exponent_bits, int mantissa_bits>
struct Fp8 {
    static constexpr bool finite = exponent_bits == 4;
    static constexpr int bias = (1 << (exponent_bits - 1)) - 1;
    static constexpr unsigned largest = finite ? 0x7eu : 0x7bu, nan = 0x7fu, infinity = finite ? 0x7fu : 0x7cu;

    static unsigned char encode(float x, bool saturate)
    {
        constexpr int drop = 23 - mantissa_bits, smallest = 1 - bias;  // exponent of the smallest normal value
        const unsigned bits = __float_as_uint(x), sign = bits >> 24 & 0x80u;
        unsigned magnitude = bits & 0x7fffffffu, code;
        if (magnitude > 0x7f800000u) return (unsigned char)nan;
        if (magnitude < unsigned(smallest + 127) << 23) {  // adding 2^k rounds at the step of subnormals
            const float shift = __uint_as_float(unsigned(smallest + drop + 127) << 23);
            code = __float_as_uint(__uint_as_float(magnitude) + shift) - __float_as_uint(shift);
        } else {
            magnitude += (1u << (drop - 1)) - 1u + (magnitude >> drop & 1u);
            code = (magnitude - (unsigned(127 - bias) << 23)) >> drop;
        }
        if (code > largest) code = saturate ? largest : infinity;
        return (unsigned char)(sign | code);
    }

    static float decode(unsigned char code)
    {
        const unsigned sign = unsigned(code & 0x80) << 24, magnitude = code & 0x7fu;
        if (finite && magnitude == nan) return __uint_as_float(sign | 0x7fffffffu);
        if (!finite && magnitude >= infinity) return __uint_as_float(sign | 0x7f800000u | (magnitude & 3u) << 21);
        const float scale = __uint_as_float(unsigned(127 + 127 - bias) << 23);
        return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude << (23 - mantissa_bits)) * scale));
    }
};

}  // namespace kd_host

#define KD_SMALL_FLOAT(Name, Raw, encode, decode)                                           \
    struct Raw {                                                                            \
        unsigned short x;                                                                   \
    };                                                                                      \
    struct Name {                                                                           \
        unsigned short __x;                                                                 \
        Name() = default;                                                                   \
        Name(Raw raw) : __x(raw.x) {}                                                       \
        Name(float value) : __x(kd_host::encode(value)) {}                                  \
        Name(double value) : __x(kd_host::encode(kd_host::to_odd(value))) {}                \
        Name(int value) : Name(double(value)) {}                                            \
        Name(unsigned value) : Name(double(value)) {}                                       \
        operator float() const { return kd_host::decode(__x); }                             \
        operator Raw() const { return {__x}; }                                              \
        Name& operator+=(Name b) { return *this = Name(float(*this) + float(b)); }          \
        Name& operator-=(Name b) { return *this = Name(float(*this) - float(b)); }          \
        Name& operator*=(Name b) { return *this = Name(float(*this) * float(b)); }          \
        Name& operator/=(Name b) { return *this = Name(float(*this) / float(b)); }          \
    };                                                                                      \
    inline Name operator+(Name a, Name b) { return Name(float(a) + float(b)); }             \
    inline Name operator-(Name a, Name b) { return Name(float(a) - float(b)); }             \
    inline Name operator*(Name a, Name b) { return Name(float(a) * float(b)); }             \
    inline Name operator/(Name a, Name b) { return Name(float(a) / float(b)); }             \
    inline Name operator-(Name a) { a.__x ^= 0x8000; return a; }                            \
    inline bool operator==(Name a, Name b) { return float(a) == float(b); }                 \
    inline bool operator!=(Name a, Name b) { return float(a) != float(b); }                 \
    inline bool operator<(Name a, Name b) { return float(a) < float(b); }                   \
    inline bool operator<=(Name a, Name b) { return float(a) <= float(b); }                 \
    inline bool operator>(Name a, Name b) { return float(a) > float(b); }                   \
    inline bool operator>=(Name a, Name b) { return float(a) >= float(b); }                 \
    inline Name __hadd(Name a, Name b) { return a + b; }                                    \
    inline Name __hsub(Name a, Name b) { return a - b; }                                    \
    inline Name __hmul(Name a, Name b) { return a * b; }                                    \
    inline Name __hdiv(Name a, Name b) { return a / b; }                                    \
    inline Name __hneg(Name a) { return -a; }                                               \
    inline Name __habs(Name a) { a.__x &= 0x7fff; return a; }                               \
    inline bool __hisnan(Name a) { return float(a) != float(a); }                           \
    inline bool __heq(Name a, Name b) { return a == b; }                                    \
    inline bool __hlt(Name a, Name b) { return a < b; }                                     \
    inline bool __hgt(Name a, Name b) { return a > b; }                                     \
    inline Name __hmax(Name a, Name b) { return __hisnan(a) || a < b ? b : a; }             \
    inline Name __hmin(Name a, Name b) { return __hisnan(a) || b < a ? b : a; }             \
    inline Name __hfma(Name a, Name b, Name c)                                              \
    {                                                                                       \
        return Name(kd_host::sum_to_odd(double(float(a)) * double(float(b)), double(float(c))));  \
    }

KD_SMALL_FLOAT(__half, __half_raw, half_bits, half_value)
KD_SMALL_FLOAT(__nv_bfloat16, __nv_bfloat16_raw, bfloat16_bits, bfloat16_value)
#undef KD_SMALL_FLOAT
using half = __half;
using nv_bfloat16 = __nv_bfloat16;

#endif
