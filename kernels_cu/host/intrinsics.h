// intrinsics.h: device functions outside any header: bits, conversions, mathematics, atomics.
//
// The C library is declared here by hand: <cmath> would cost more time to compile than all the rest.
#ifndef KD_HOST_INTRINSICS_H
#define KD_HOST_INTRINSICS_H

#include "numeric_api.h"
#include "warp.h"

// ---- bits ----
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }

inline unsigned long long __brevll(unsigned long long x)
{
    x = (x >> 1 & 0x5555555555555555ull) | (x & 0x5555555555555555ull) << 1;
    x = (x >> 2 & 0x3333333333333333ull) | (x & 0x3333333333333333ull) << 2;
    x = (x >> 4 & 0x0f0f0f0f0f0f0f0full) | (x & 0x0f0f0f0f0f0f0f0full) << 4;
    return __builtin_bswap64(x);
}

inline unsigned __brev(unsigned x) { return unsigned(__brevll(x) >> 32); }

inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    const unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= unsigned(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return result;
}

inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return unsigned((((unsigned long long)high << 32 | low) << (shift & 31)) >> 32);
}

inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return unsigned(((unsigned long long)high << 32 | low) >> (shift & 31));
}

inline int __mulhi(int x, int y) { return int((long long)x * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) { return unsigned((unsigned long long)x * y >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y)
{
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}

inline long long __mul64hi(long long x, long long y) { return (long long)((__int128)x * y >> 64); }

#define KD_REINTERPRET(name, To, From) \
    inline To name(From x) { To y; memcpy(&y, &x, sizeof y); return y; }
KD_REINTERPRET(__float_as_int, int, float)
KD_REINTERPRET(__int_as_float, float, int)
KD_REINTERPRET(__double_as_longlong, long long, double)
KD_REINTERPRET(__longlong_as_double, double, long long)
#undef KD_REINTERPRET

// ---- mathematics ----
#define KD_MATH_1(name)                                      \
    extern "C" double name(double);                          \
    extern "C" float name##f(float);                         \
    inline float name(float x) { return name##f(x); }        \
    inline double name(int x) { return name(double(x)); }
#define KD_MATH_2(name)                                      \
    extern "C" double name(double, double);                  \
    extern "C" float name##f(float, float);                  \
    inline float name(float x, float y) { return name##f(x, y); }                   \
    inline double name(float x, double y) { return name(double(x), y); }            \
    inline double name(double x, float y) { return name(x, double(y)); }            \
    inline double name(double x, int y) { return name(x, double(y)); }
KD_MATH_1(exp) KD_MATH_1(exp2) KD_MATH_1(expm1) KD_MATH_1(log) KD_MATH_1(log2) KD_MATH_1(log10) KD_MATH_1(log1p)
KD_MATH_1(sqrt) KD_MATH_1(cbrt) KD_MATH_1(sin) KD_MATH_1(cos) KD_MATH_1(tan) KD_MATH_1(tanh) KD_MATH_1(erf)
KD_MATH_1(floor) KD_MATH_1(ceil) KD_MATH_1(trunc) KD_MATH_1(round) KD_MATH_1(rint) KD_MATH_1(fabs)
KD_MATH_2(pow) KD_MATH_2(fmod) KD_MATH_2(fmin) KD_MATH_2(fmax) KD_MATH_2(copysign) KD_MATH_2(atan2) KD_MATH_2(nextafter)
#undef KD_MATH_1
#undef KD_MATH_2
extern "C" double fma(double, double, double);
extern "C" float fmaf(float, float, float);
extern "C" double ldexp(double, int);
extern "C" float ldexpf(float, int);
extern "C" double frexp(double, int*);
extern "C" float frexpf(float, int*);
inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
inline float ldexp(float x, int e) { return ldexpf(x, e); }
inline float frexp(float x, int* e) { return frexpf(x, e); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float exp10f(float x) { return powf(10.0f, x); }
inline float fdividef(float x, float y) { return x / y; }
inline int abs(int x) { return x < 0 ? -x : x; }
inline long long abs(long long x) { return x < 0 ? -x : x; }
inline long long llabs(long long x) { return x < 0 ? -x : x; }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }
template <class T> inline bool isnan(T x) { return __builtin_isnan(x); }
template <class T> inline bool isinf(T x) { return __builtin_isinf(x); }
template <class T> inline bool isfinite(T x) { return __builtin_isfinite(x); }
template <class T> inline bool signbit(T x) { return __builtin_signbit(x); }

inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return float(1.0 / sqrt(double(x))); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

namespace kd_host {

// Conversion to an integer type as PTX defines it: what is out of range gives the nearest end; NaN gives 0 from
// float to 32 bits, else the pattern with only the highest bit set.
template <class From, class T>
inline T to_integer(double x)
{
    constexpr bool is_signed = T(-1) < T(0);
    constexpr T high = is_signed ? T((1ull << (sizeof(T) * 8 - 1)) - 1) : T(-1), low = is_signed ? T(-high - 1) : T(0);
    if (x != x) return sizeof(From) == 4 && sizeof(T) == 4 ? T(0) : T(1ull << (sizeof(T) * 8 - 1));
    if (x >= double(high)) return high;
    return x <= double(low) ? low : T(x);
}

}  // namespace kd_host

#define KD_TO_INTEGER(From, from, To, to)                                                              \
    inline To __##from##2##to##_rn(From x) { return kd_host::to_integer<From, To>(rint(double(x))); }        \
    inline To __##from##2##to##_rz(From x) { return kd_host::to_integer<From, To>(trunc(double(x))); }       \
    inline To __##from##2##to##_rd(From x) { return kd_host::to_integer<From, To>(floor(double(x))); }       \
    inline To __##from##2##to##_ru(From x) { return kd_host::to_integer<From, To>(ceil(double(x))); }
KD_TO_INTEGER(float, float, int, int)
KD_TO_INTEGER(float, float, unsigned, uint)
KD_TO_INTEGER(float, float, long long, ll)
KD_TO_INTEGER(float, float, unsigned long long, ull)
KD_TO_INTEGER(double, double, int, int)
KD_TO_INTEGER(double, double, unsigned, uint)
KD_TO_INTEGER(double, double, long long, ll)
KD_TO_INTEGER(double, double, unsigned long long, ull)
#undef KD_TO_INTEGER
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __ll2float_rn(long long x) { return float(x); }
inline double __int2double_rn(int x) { return x; }
inline double __ll2double_rn(long long x) { return double(x); }
inline float __double2float_rn(double x) { return float(x); }

#define KD_MIN_MAX(A, B, Result)                                          \
    inline Result min(A left, B right)                                    \
    {                                                                     \
        const Result a = Result(left), b = Result(right);                 \
        return b < a ? b : a;                                             \
    }                                                                     \
    inline Result max(A left, B right)                                    \
    {                                                                     \
        const Result a = Result(left), b = Result(right);                 \
        return a < b ? b : a;                                             \
    }
using kd_ulong = unsigned long;
using kd_longlong = long long;
using kd_ulonglong = unsigned long long;
KD_MIN_MAX(int, int, int)
KD_MIN_MAX(unsigned, unsigned, unsigned)
KD_MIN_MAX(int, unsigned, unsigned)
KD_MIN_MAX(unsigned, int, unsigned)
KD_MIN_MAX(long, long, long)
KD_MIN_MAX(kd_ulong, kd_ulong, kd_ulong)
KD_MIN_MAX(kd_longlong, kd_longlong, kd_longlong)
KD_MIN_MAX(kd_ulonglong, kd_ulonglong, kd_ulonglong)
#undef KD_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double max(double a, float b) { return fmax(a, b); }

// ---- cached loads and stores ----
template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldca(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline T __ldlu(const T* p) { return *p; }
template <class T> inline T __ldcv(const T* p) { return *const_cast<const volatile T*>(p); }
template <class T> inline void __stwb(T* p, T x) { *p = x; }
template <class T> inline void __stcg(T* p, T x) { *p = x; }
template <class T> inline void __stcs(T* p, T x) { *p = x; }
template <class T> inline void __stwt(T* p, T x) { *p = x; }

inline long long clock64()
{
    static long long ticks = 0;  // not a time: only never the same twice
    return __atomic_add_fetch(&ticks, 1, __ATOMIC_RELAXED);
}

#endif
