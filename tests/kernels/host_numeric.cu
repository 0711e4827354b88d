// host_numeric.cu: conversions and arithmetic of 16- and 8-bit floats; test_host_numeric.py compares every pattern.
#include "common.cuh"

#define I (blockIdx.x * blockDim.x + threadIdx.x)

extern "C" __global__ void decode(float* half, float* bfloat, float* e4m3, float* e5m2, int n)
{
    if (I >= n) return;
    const unsigned short bits = (unsigned short)I;
    half[I] = __half2float(__ushort_as_half(bits));
    bfloat[I] = to_float(__ushort_as_bfloat16(bits));
    if (I >= 256) return;
    __nv_fp8_e4m3 small;
    small.__x = (unsigned char)I;
    e4m3[I] = to_float(small);
    e5m2[I] = __half2float(__half(__nv_cvt_fp8_to_halfraw((unsigned char)I, __NV_E5M2)));
}

extern "C" __global__ void encode(const float* __restrict__ x, unsigned short* half, unsigned short* bfloat, unsigned char* eight, int n)
{
    if (I >= n) return;
    half[I] = __half_as_ushort(from_float<__half>(x[I]));
    bfloat[I] = __bfloat16_as_ushort(from_float<__nv_bfloat16>(x[I]));
    eight[I] = __nv_cvt_float_to_fp8(x[I], __NV_NOSAT, __NV_E4M3);
    eight[n + I] = from_float<__nv_fp8_e4m3>(x[I]).__x;
    eight[2 * n + I] = __nv_cvt_float_to_fp8(x[I], __NV_NOSAT, __NV_E5M2);
    eight[3 * n + I] = __nv_fp8_e5m2(x[I]).__x;
}

extern "C" __global__ void encode_double(const double* __restrict__ x, unsigned short* half, unsigned short* bfloat, int n)
{
    if (I >= n) return;
    half[I] = __half_as_ushort(__double2half(x[I]));
    bfloat[I] = __bfloat16_as_ushort(__double2bfloat16(x[I]));
}

template <class T>
__device__ void arithmetic(T a, T b, T c, T* out)
{
    out[0] = __hadd(a, b), out[1] = __hsub(a, b), out[2] = __hmul(a, b), out[3] = a / b;
    out[4] = __hfma(a, b, c), out[5] = __hmax(a, b), out[6] = __hmin(a, b), out[7] = -a;
    T sum = a;
    sum += b;
    out[8] = a < b ? sum : __habs(a);
}

extern "C" __global__ void half_arithmetic(const __half* __restrict__ abc, __half* out, int n)
{
    if (I < n) arithmetic(abc[I], abc[n + I], abc[2 * n + I], out + 9 * I);
}

extern "C" __global__ void bfloat_arithmetic(const __nv_bfloat16* __restrict__ abc, __nv_bfloat16* out, int n)
{
    if (I < n) arithmetic(abc[I], abc[n + I], abc[2 * n + I], out + 9 * I);
}

extern "C" __global__ void packed(const float2* __restrict__ x, unsigned* half, unsigned* bfloat, float2* back, int n)
{
    if (I >= n) return;
    const __half2 h = __float22half2_rn(x[I]);
    const __nv_bfloat162 b = __float22bfloat162_rn(x[I]);
    const __half2 sum = __hadd2(h, __floats2half2_rn(1.0f, 2.0f));
    half[I] = __half_as_ushort(__low2half(h)) | unsigned(__half_as_ushort(__high2half(h))) << 16;
    bfloat[I] = __bfloat16_as_ushort(b.x) | unsigned(__bfloat16_as_ushort(b.y)) << 16;
    back[I] = make_float2(__low2float(sum), __high2float(sum));
    back[n + I] = __bfloat1622float2(b);
}
