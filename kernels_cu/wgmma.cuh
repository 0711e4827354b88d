// wgmma.cuh: matrix instructions of a warp group (four warps) on sm_90a, which read shared memory by themselves.
//
// d (64 x n, float) += a (64 x 16) * b (16 x n).  Warp w of the group has rows 16w .. 16w+15 of a and d, in the
// fragment layout of mma.cuh.  Shared memory holds matrices of 128-byte rows, swizzled: the 16-byte piece p of row r
// lies at r * 128 + (p ^ r % 8) * 16 from a 1024-byte boundary.
//   *_keys    b(k, n): row n holds 64 numbers k; 8 rows of n are 1024 bytes     (KV rows as keys)
//   *_values  b(k, n): row k holds 64 numbers n; the next 64 of n lie `apart` bytes on  (the same rows as values)
// Instructions run in order but asynchronously: between wgmma_begin and wgmma_wait their registers must be left alone.
#ifndef KD_WGMMA_CUH
#define KD_WGMMA_CUH

#include "async_copy.cuh"

#ifdef __CUDACC_RTC__
typedef unsigned long long Descriptor;

// Matrix at `p`; `apart`: bytes between blocks of 64 columns (values), 0 for keys.
__device__ __forceinline__ Descriptor matrix_at(shared_address p, int apart)
{
    return (unsigned long long)((p & 0x3ffff) >> 4) | (unsigned long long)(apart >> 4) << 16 | 64ull << 32 | 1ull << 62;
}
__device__ __forceinline__ Descriptor moved(Descriptor d, int bytes) { return d + (unsigned)(bytes >> 4); }
#else
struct Descriptor {
    shared_address at;
    int apart;
};
inline Descriptor matrix_at(shared_address p, int apart) { return {p, apart}; }
inline Descriptor moved(Descriptor d, int bytes) { return {d.at + bytes, d.apart}; }

namespace kd_host {

// The 16-bit number `bytes` behind the start of a matrix, found through the swizzle.
template <class T>
inline float swizzled(Descriptor d, int bytes)
{
    const unsigned char* base = reinterpret_cast<const unsigned char*>(current->block->shared);
    const size_t plain = size_t(d.at - base) + size_t(bytes), at = plain ^ (plain >> 7 & 7) << 4;
    T value;
    memcpy(&value, base + at, 2);
    return to_float(value);
}

struct GroupSlot {
    float* d;
    const unsigned* a;
    Descriptor a_at, b_at;
    bool values, add;
};

template <class T, int n>
void combine_wgmma(Warp& warp, unsigned)
{
    const GroupSlot& call = *static_cast<GroupSlot*>(warp.slots[0]);
    const int number = int(&warp - current->block->warps) % 4;
    float a[16][16];
    static thread_local float b[16][256];
    for (int lane = 0; lane < warp_size; ++lane)
        for (int j = 0; j < 4; ++j)
            for (int i = 0; i < 2; ++i) {
                const int row = lane / 4 + 8 * (j % 2), k = 8 * (j / 2) + 2 * (lane % 4) + i;
                const int far = 16 * number + row;
                a[row][k] = call.a ? unpack_half<T>(static_cast<GroupSlot*>(warp.slots[lane])->a[j], i)
                                   : swizzled<T>(call.a_at, far / 8 * 1024 + far % 8 * 128 + 2 * k);
            }
    for (int k = 0; k < 16; ++k)
        for (int c = 0; c < n; ++c)
            b[k][c] = call.values ? swizzled<T>(call.b_at, c / 64 * call.b_at.apart + k / 8 * 1024 + k % 8 * 128 + c % 64 * 2)
                                  : swizzled<T>(call.b_at, c / 8 * 1024 + c % 8 * 128 + 2 * k);
    for (int lane = 0; lane < warp_size; ++lane) {
        float* d = static_cast<GroupSlot*>(warp.slots[lane])->d;
        for (int i = 0; i < n / 2; ++i) {
            const int row = lane / 4 + 8 * (i % 4 / 2), column = i / 4 * 8 + 2 * (lane % 4) + i % 2;
            float sum = call.add ? d[i] : 0.0f;
            for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
            d[i] = sum;
        }
    }
}

template <class T, int n>
inline void wgmma(float* d, const unsigned* a, Descriptor a_at, Descriptor b_at, bool values, bool add)
{
    GroupSlot slot = {d, a, a_at, b_at, values, add};
    collective("wgmma", combine_wgmma<T, n>, KD_FULL_MASK, &slot, {__FILE__, __LINE__});
}

}  // namespace kd_host
#endif

// Registers that instructions to come read or add to are ready.
__device__ __forceinline__ void wgmma_begin()
{
#ifdef __CUDACC_RTC__
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Close a batch of instructions.
__device__ __forceinline__ void wgmma_commit()
{
#ifdef __CUDACC_RTC__
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Wait until at most `batches` batches run.
template <int batches>
__device__ __forceinline__ void wgmma_wait()
{
#ifdef __CUDACC_RTC__
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(batches) : "memory");
#endif
}

// Tell the compiler that these registers change here: instructions that were waited for have written them.
template <int n>
__device__ __forceinline__ void wgmma_results(float (&d)[n][4])
{
#ifdef __CUDACC_RTC__
#pragma unroll
    for (int i = 0; i < n; ++i)
        asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
#endif
}

template <int registers> __device__ __forceinline__ void more_registers()
{
#ifdef __CUDACC_RTC__
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}

template <int registers> __device__ __forceinline__ void fewer_registers()
{
#ifdef __CUDACC_RTC__
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}

// scores (64 x 48) = or += q (64 x 16, shared or registers) * keys; result (64 x 256) += weights (registers) * values
template <class T> __device__ __forceinline__ void wgmma_shared_keys(float (&d)[6][4], Descriptor a, Descriptor b, bool add);
template <class T> __device__ __forceinline__ void wgmma_keys(float (&d)[6][4], const unsigned (&a)[4], Descriptor b, bool add);
template <class T> __device__ __forceinline__ void wgmma_values(float (&d)[32][4], const unsigned (&a)[4], Descriptor b, bool add);

#ifdef __CUDACC_RTC__
#include "wgmma_asm.cuh"
#else
template <class T> inline void wgmma_shared_keys(float (&d)[6][4], Descriptor a, Descriptor b, bool add)
{
    kd_host::wgmma<T, 48>(d[0], nullptr, a, b, false, add);
}
template <class T> inline void wgmma_keys(float (&d)[6][4], const unsigned (&a)[4], Descriptor b, bool add)
{
    kd_host::wgmma<T, 48>(d[0], a, b, b, false, add);
}
template <class T> inline void wgmma_values(float (&d)[32][4], const unsigned (&a)[4], Descriptor b, bool add)
{
    kd_host::wgmma<T, 256>(d[0], a, b, b, true, add);
}
#endif

#endif
