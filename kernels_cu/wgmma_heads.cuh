// wgmma_heads.cuh: the matrix instructions of a warp group for heads of 64 and 128 numbers; wgmma.cuh explains.
//
// scores (64 x 64) = or += q (64 x 16, shared or registers) * keys; result (64 x 64 or 64 x 128) += weights (registers) * values
#ifndef KD_WGMMA_HEADS_CUH
#define KD_WGMMA_HEADS_CUH

#include "wgmma.cuh"

template <class T> __device__ __forceinline__ void wgmma_shared_keys(float (&d)[8][4], Descriptor a, Descriptor b, bool add);
template <class T> __device__ __forceinline__ void wgmma_keys(float (&d)[8][4], const unsigned (&a)[4], Descriptor b, bool add);
template <class T> __device__ __forceinline__ void wgmma_values(float (&d)[8][4], const unsigned (&a)[4], Descriptor b, bool add);
template <class T> __device__ __forceinline__ void wgmma_values(float (&d)[16][4], const unsigned (&a)[4], Descriptor b, bool add);

#ifdef __CUDACC_RTC__
#define KD_FOUR(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define KD_EIGHT_FOURS(i) \
    KD_FOUR(i), KD_FOUR(i + 1), KD_FOUR(i + 2), KD_FOUR(i + 3), KD_FOUR(i + 4), KD_FOUR(i + 5), KD_FOUR(i + 6), KD_FOUR(i + 7)
#define KD_REGISTERS_32                                                                           \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define KD_REGISTERS_64                                                                               \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "     \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, " \
    "%39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, " \
    "%58, %59, %60, %61, %62, %63}"

#define KD_WGMMA(T, type)                                                                                                    \
    template <> __device__ __forceinline__ void wgmma_shared_keys<T>(float (&d)[8][4], Descriptor a, Descriptor b, bool add) \
    {                                                                                                                        \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " "  \
                     KD_REGISTERS_32 ", %32, %33, p, 1, 1, 0, 0; }"                                                          \
                     : KD_EIGHT_FOURS(0)                                                                                     \
                     : "l"(a), "l"(b), "r"((int)add) : "memory");                                                            \
    }
KD_WGMMA(__nv_bfloat16, "bf16")
KD_WGMMA(__half, "f16")
#undef KD_WGMMA

#define KD_WGMMA(name, T, type, transposed)                                                                                 \
    template <> __device__ __forceinline__ void name<T>(float (&d)[8][4], const unsigned (&a)[4], Descriptor b, bool add)   \
    {                                                                                                                       \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " \
                     KD_REGISTERS_32 ", {%32, %33, %34, %35}, %36, p, 1, 1, " transposed "; }"                              \
                     : KD_EIGHT_FOURS(0)                                                                                    \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add) : "memory");                       \
    }
KD_WGMMA(wgmma_keys, __nv_bfloat16, "bf16", "0")
KD_WGMMA(wgmma_keys, __half, "f16", "0")
KD_WGMMA(wgmma_values, __nv_bfloat16, "bf16", "1")
KD_WGMMA(wgmma_values, __half, "f16", "1")
#undef KD_WGMMA

#define KD_WGMMA(T, type)                                                                                                          \
    template <> __device__ __forceinline__ void wgmma_values<T>(float (&d)[16][4], const unsigned (&a)[4], Descriptor b, bool add) \
    {                                                                                                                              \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " "       \
                     KD_REGISTERS_64 ", {%64, %65, %66, %67}, %68, p, 1, 1, 1; }"                                                  \
                     : KD_EIGHT_FOURS(0), KD_EIGHT_FOURS(8)                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add) : "memory");                              \
    }
KD_WGMMA(__nv_bfloat16, "bf16")
KD_WGMMA(__half, "f16")
#undef KD_WGMMA

#undef KD_FOUR
#undef KD_EIGHT_FOURS
#undef KD_REGISTERS_32
#undef KD_REGISTERS_64
#else
template <class T> inline void wgmma_shared_keys(float (&d)[8][4], Descriptor a, Descriptor b, bool add)
{
    kd_host::wgmma<T, 64>(d[0], nullptr, a, b, false, add);
}
template <class T> inline void wgmma_keys(float (&d)[8][4], const unsigned (&a)[4], Descriptor b, bool add)
{
    kd_host::wgmma<T, 64>(d[0], a, b, b, false, add);
}
template <class T> inline void wgmma_values(float (&d)[8][4], const unsigned (&a)[4], Descriptor b, bool add)
{
    kd_host::wgmma<T, 64>(d[0], a, b, b, true, add);
}
template <class T> inline void wgmma_values(float (&d)[16][4], const unsigned (&a)[4], Descriptor b, bool add)
{
    kd_host::wgmma<T, 128>(d[0], a, b, b, true, add);
}
#endif

#endif
