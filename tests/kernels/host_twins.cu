// host_twins.cu: instructions that the CPU runs as their C++ twins: matrices of a warp, copies, named barriers.
#include "async_copy.cuh"

// One mma a type on given registers: a[32][4], b[32][2], d[2][32][4].
extern "C" __global__ void fragments(const unsigned* __restrict__ a, const unsigned* __restrict__ b, float* d)
{
    const int lane = lane_id();
    const unsigned mine[4] = {a[4 * lane], a[4 * lane + 1], a[4 * lane + 2], a[4 * lane + 3]};
    float brain[4], half[4];
    for (int j = 0; j < 4; ++j) brain[j] = d[4 * lane + j], half[j] = d[128 + 4 * lane + j];
    mma_m16n8k16<__nv_bfloat16>(brain, mine, b[2 * lane], b[2 * lane + 1]);
    mma_m16n8k16<__half>(half, mine, b[2 * lane], b[2 * lane + 1]);
    for (int j = 0; j < 4; ++j) d[4 * lane + j] = brain[j], d[128 + 4 * lane + j] = half[j];
}

// in[4][8][8] 16-bit numbers; each tile's rows at an address of their own.
extern "C" __global__ void matrices(const unsigned short* __restrict__ in, unsigned* out)
{
    __shared__ __align__(16) unsigned short tile[32][24];
    const int lane = lane_id();
    for (int i = 0; i < 8; ++i) tile[lane][i] = in[8 * lane + i];
    __syncwarp();
    unsigned plain[4], transposed[4];
    ldmatrix_x4(plain, shared_pointer(tile[lane]));
    ldmatrix_x4_trans(transposed, shared_pointer(tile[lane]));
    for (int j = 0; j < 4; ++j) out[4 * lane + j] = plain[j], out[128 + 4 * lane + j] = transposed[j];
}

// Thread 0 fills two slots in turn, the 64 threads behind its warp empty them: out[t] = sum over tiles of in[tile][t].
extern "C" __global__ void ring(const float* __restrict__ in, float* out, int tiles)
{
    __shared__ __align__(16) float slot[2][64];
    __shared__ __align__(8) unsigned long long full[2], empty[2];
    const int t = threadIdx.x;
    if (t == 0)
        for (int s = 0; s < 2; ++s) mbarrier_init(shared_pointer(&full[s]), 1), mbarrier_init(shared_pointer(&empty[s]), 64);
    fence_async_proxy();
    __syncthreads();
    if (t == 0)
        for (int i = 0; i < tiles; ++i) {
            mbarrier_wait(shared_pointer(&empty[i & 1]), (i >> 1 & 1) ^ 1);
#if KD_BULK_COPY
            bulk_copy_arrive(shared_pointer(slot[i & 1]), in + 64 * i, 256, shared_pointer(&full[i & 1]));
#else
            for (int j = 0; j < 64; j += 4) copy_async_16(shared_pointer(&slot[i & 1][j]), in + 64 * i + j);
            copy_async_arrive(shared_pointer(&full[i & 1]));
#endif
        }
    if (t < 32) return;
    float sum = 0.0f;
    for (int i = 0; i < tiles; ++i) {
        mbarrier_wait(shared_pointer(&full[i & 1]), i >> 1 & 1);
        sum += slot[i & 1][t - 32];
        mbarrier_arrive(shared_pointer(&empty[i & 1]));
    }
    out[t - 32] = sum;
}

// Two teams of 64 threads, each with a barrier of its own and at its own pace.
extern "C" __global__ void teams(int* out)
{
    __shared__ int seen[128];
    const int t = threadIdx.x, team = t / 64;
    for (int round = 0; round <= 2 * team; ++round) {
        seen[t] = 10 * t + round;
        named_barrier(1 + team, 64);
        out[t] = seen[t ^ 63];
        out[128 + t] = named_barrier_or(1 + team, 64, t == 64);
    }
}

extern "C" __global__ void starving(int bad)  // 31 arrivals where 32 are announced
{
    __shared__ __align__(8) unsigned long long barrier;
    if (threadIdx.x == 0) mbarrier_init(shared_pointer(&barrier), 32);
    __syncthreads();
    if (int(blockIdx.x) != bad || threadIdx.x != 7) mbarrier_arrive(shared_pointer(&barrier));
    mbarrier_wait(shared_pointer(&barrier), 0);
}
