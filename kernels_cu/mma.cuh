// mma.cuh: tensor-core and shared-memory instructions of one warp, each with its C++ twin.
//
// Lane l of a warp is written as g = l / 4 (0..7) and q = l % 4.  Fragments of mma.m16n8k16, two 16-bit numbers a
// register, low half first:
//
//   A (16 x 16)   a[0] row g,   columns 2q, 2q+1      a[1] row g+8, same columns
//                 a[2] row g,   columns 8+2q, 8+2q+1  a[3] row g+8, same columns
//   B (16 x 8)    b0   rows 2q, 2q+1, column g        b1   rows 8+2q, 8+2q+1, column g
//   D (16 x 8)    d[0], d[1] row g, columns 2q, 2q+1  d[2], d[3] row g+8
//
// ldmatrix x4 reads four 8 x 8 tiles; lane l gives the address of row l % 8 of tile l / 8 (16 bytes each), and
// register j of a lane receives row g, columns 2q, 2q+1 of tile j (rows and columns exchanged with .trans).
#ifndef KD_MMA_CUH
#define KD_MMA_CUH

#include "common.cuh"

// The low (0) or high (1) 16-bit number of a pair, as float.
template <class T> __device__ __forceinline__ float unpack_half(unsigned pair, int high);
template <> __device__ __forceinline__ float unpack_half<__nv_bfloat16>(unsigned pair, int high)
{
    return __int_as_float((int)(high ? pair & 0xffff0000u : pair << 16));
}
template <> __device__ __forceinline__ float unpack_half<__half>(unsigned pair, int high)
{
    return __half2float(__ushort_as_half((unsigned short)(pair >> 16 * high)));
}

// An address in shared memory: 32 bits for PTX, a plain pointer on the CPU.
#ifdef __CUDACC_RTC__
typedef unsigned shared_address;
__device__ __forceinline__ shared_address shared_pointer(const void* p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}
#else
typedef const unsigned char* shared_address;
inline shared_address shared_pointer(const void* p) { return static_cast<shared_address>(p); }

namespace kd_host {

struct LoadSlot {
    shared_address address;
    unsigned* registers;
    bool transposed;
};

inline void combine_ldmatrix(Warp& warp, unsigned)
{
    for (int lane = 0; lane < warp_size; ++lane) {
        const LoadSlot& to = *static_cast<LoadSlot*>(warp.slots[lane]);
        for (int tile = 0; tile < 4; ++tile) {
            unsigned short pair[2];
            for (int i = 0; i < 2; ++i) {
                const int row = to.transposed ? 2 * (lane % 4) + i : lane / 4;
                const int column = to.transposed ? lane / 4 : 2 * (lane % 4) + i;
                memcpy(&pair[i], static_cast<LoadSlot*>(warp.slots[8 * tile + row])->address + 2 * column, 2);
            }
            to.registers[tile] = pair[0] | unsigned(pair[1]) << 16;
        }
    }
}

inline void combine_transpose(Warp& warp, unsigned)
{
    unsigned short tile[8][8];
    for (int lane = 0; lane < warp_size; ++lane) memcpy(&tile[lane / 4][2 * (lane % 4)], warp.slots[lane], 4);
    for (int lane = 0; lane < warp_size; ++lane) {
        const unsigned short pair[2] = {tile[2 * (lane % 4)][lane / 4], tile[2 * (lane % 4) + 1][lane / 4]};
        memcpy(warp.slots[lane], pair, 4);
    }
}

struct MmaSlot {
    float* d;
    const unsigned* a;
    unsigned b[2];
};

// Sums in float, k ascending: tensor cores promise no more than that products are exact.
template <class T>
void combine_mma(Warp& warp, unsigned)
{
    float a[16][16], b[16][8];
    for (int lane = 0; lane < warp_size; ++lane) {
        const MmaSlot& from = *static_cast<MmaSlot*>(warp.slots[lane]);
        for (int j = 0; j < 4; ++j)
            for (int i = 0; i < 2; ++i)
                a[lane / 4 + 8 * (j % 2)][8 * (j / 2) + 2 * (lane % 4) + i] = unpack_half<T>(from.a[j], i);
        for (int j = 0; j < 2; ++j)
            for (int i = 0; i < 2; ++i) b[8 * j + 2 * (lane % 4) + i][lane / 4] = unpack_half<T>(from.b[j], i);
    }
    for (int lane = 0; lane < warp_size; ++lane) {
        float* d = static_cast<MmaSlot*>(warp.slots[lane])->d;
        for (int j = 0; j < 4; ++j) {
            const int row = lane / 4 + 8 * (j / 2), column = 2 * (lane % 4) + j % 2;
            float sum = d[j];
            for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
            d[j] = sum;
        }
    }
}

}  // namespace kd_host
#endif

__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], shared_address p)
{
#ifdef __CUDACC_RTC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
#else
    kd_host::LoadSlot slot = {p, r, false};
    kd_host::collective("ldmatrix", kd_host::combine_ldmatrix, KD_FULL_MASK, &slot, {__FILE__, __LINE__});
#endif
}

__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], shared_address p)
{
#ifdef __CUDACC_RTC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
#else
    kd_host::LoadSlot slot = {p, r, true};
    kd_host::collective("ldmatrix.trans", kd_host::combine_ldmatrix, KD_FULL_MASK, &slot, {__FILE__, __LINE__});
#endif
}

// Rows and columns exchanged of an 8 x 8 tile of which lane l has row g, columns 2q, 2q+1.
__device__ __forceinline__ unsigned transpose_8x8(unsigned pair)
{
#ifdef __CUDACC_RTC__
    unsigned other;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(pair));
    return other;
#else
    unsigned other = pair;
    kd_host::collective("movmatrix", kd_host::combine_transpose, KD_FULL_MASK, &other, {__FILE__, __LINE__});
    return other;
#endif
}

// d += a * b for one 16 x 8 tile; T is __half or __nv_bfloat16, sums are float.
template <class T> __device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

#ifdef __CUDACC_RTC__
#define KD_MMA(T, name)                                                                                       \
    template <> __device__ __forceinline__ void mma_m16n8k16<T>(float (&d)[4], const unsigned (&a)[4],        \
                                                                unsigned b0, unsigned b1)                     \
    {                                                                                                         \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}," \
            " {%8, %9}, {%0, %1, %2, %3};"                                                                    \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                  \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                  \
    }
KD_MMA(__nv_bfloat16, "bf16")
KD_MMA(__half, "f16")
#undef KD_MMA
#else
template <class T> inline void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    kd_host::MmaSlot slot = {d, a, {b0, b1}};
    kd_host::collective("mma", kd_host::combine_mma<T>, KD_FULL_MASK, &slot, {__FILE__, __LINE__});
}
#endif

// Two floats rounded to nearest even, `low` in the low half.
template <class T> __device__ __forceinline__ unsigned pack_pair(float low, float high);

template <> __device__ __forceinline__ unsigned pack_pair<__nv_bfloat16>(float low, float high)
{
#ifdef __CUDACC_RTC__
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return __bfloat16_as_ushort(__float2bfloat16_rn(low)) | unsigned(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
#endif
}

template <> __device__ __forceinline__ unsigned pack_pair<__half>(float low, float high)
{
    return __half_as_ushort(__float2half_rn(low)) | unsigned(__half_as_ushort(__float2half_rn(high))) << 16;
}

// 2^x and log2(x) with at most 2 units in the last place of error; 2^-inf = 0, log2(0) = -inf.
__device__ __forceinline__ float fast_exp2(float x)
{
#ifdef __CUDACC_RTC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

__device__ __forceinline__ float fast_log2(float x)
{
#ifdef __CUDACC_RTC__
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return log2f(x);
#endif
}

// Plain accesses by shared address: a generic pointer costs 64-bit arithmetic and twice the registers.
__device__ __forceinline__ float2 load_float2(shared_address p)
{
#ifdef __CUDACC_RTC__
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(p) : "memory");
    return v;
#else
    return *reinterpret_cast<const float2*>(p);
#endif
}

__device__ __forceinline__ float load_float(shared_address p)
{
#ifdef __CUDACC_RTC__
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(p) : "memory");
    return v;
#else
    return *reinterpret_cast<const float*>(p);
#endif
}

__device__ __forceinline__ void store_float2(shared_address p, float x, float y)
{
#ifdef __CUDACC_RTC__
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(p), "f"(x), "f"(y) : "memory");
#else
    *reinterpret_cast<float2*>(const_cast<unsigned char*>(p)) = make_float2(x, y);
#endif
}

__device__ __forceinline__ void store_float(shared_address p, float x)
{
#ifdef __CUDACC_RTC__
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(p), "f"(x) : "memory");
#else
    *reinterpret_cast<float*>(const_cast<unsigned char*>(p)) = x;
#endif
}

__device__ __forceinline__ void store_word(shared_address p, unsigned x)
{
#ifdef __CUDACC_RTC__
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(p), "r"(x) : "memory");
#else
    *reinterpret_cast<unsigned*>(const_cast<unsigned char*>(p)) = x;
#endif
}

// Forget what the compiler knows of `value`, so that it computes what depends on it here and not long before.
__device__ __forceinline__ int renewed(int value)
{
#ifdef __CUDACC_RTC__
    asm volatile("" : "+r"(value));
#endif
    return value;
}

#endif
