// host_primitives.cu: one kernel for each primitive that the CPU execution provides; test_host.py checks them.
#include "common.cuh"

static_assert(sizeof(float4) == 16 && alignof(float4) == 16 && sizeof(int2) == 8 && alignof(int2) == 8, "vectors");
static_assert(sizeof(uint3) == 12 && alignof(uint3) == 4 && sizeof(uchar4) == 4 && alignof(uchar4) == 4, "vectors");
static_assert(sizeof(ushort4) == 8 && alignof(ushort4) == 8 && sizeof(double2) == 16 && alignof(double2) == 16, "vectors");
static_assert(sizeof(__half2) == 4 && alignof(__half2) == 4 && sizeof(__nv_bfloat162) == 4, "packed halves");
static_assert(sizeof(__nv_fp8_e4m3) == 1, "8-bit floats");

#define NUMBER ((int)((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * (int)(blockDim.x * blockDim.y * blockDim.z) + thread_number())

__constant__ int kd_table[4] = {3, 1, 4, 1};

extern "C" __global__ void indices(int* out)
{
    int* row = out + 9 * NUMBER;
    row[0] = threadIdx.x, row[1] = threadIdx.y, row[2] = threadIdx.z;
    row[3] = blockIdx.x, row[4] = blockIdx.y, row[5] = blockIdx.z;
    row[6] = lane_id(), row[7] = warp_id(), row[8] = kd_table[NUMBER & 3] + warpSize;
}

extern "C" __global__ void shuffles(const float* __restrict__ value, const int* __restrict__ operand, int width, float* out)
{
    const int i = thread_number(), n = blockDim.x;
    out[i] = __shfl_sync(KD_FULL_MASK, value[i], operand[i], width);
    out[n + i] = __shfl_up_sync(KD_FULL_MASK, value[i], operand[i], width);
    out[2 * n + i] = __shfl_down_sync(KD_FULL_MASK, value[i], operand[i], width);
    out[3 * n + i] = __shfl_xor_sync(KD_FULL_MASK, value[i], operand[i], width);
}

extern "C" __global__ void shuffle_types(double* d, long long* l, unsigned short* h, unsigned* pair)
{
    const int i = thread_number();
    d[i] = __shfl_xor_sync(KD_FULL_MASK, d[i], 1);
    l[i] = __shfl_down_sync(KD_FULL_MASK, l[i], 3);
    h[i] = __half_as_ushort(__shfl_sync(KD_FULL_MASK, __ushort_as_half(h[i]), 7));
    const __nv_bfloat162 two = __shfl_up_sync(KD_FULL_MASK, __floats2bfloat162_rn(float(i), -1.0f), 2);
    pair[i] = __bfloat16_as_ushort(__low2bfloat16(two)) | unsigned(__bfloat16_as_ushort(__high2bfloat16(two))) << 16;
}

// mask[i] names the group of lanes that thread i meets: any partition of its warp.
extern "C" __global__ void votes(const unsigned* __restrict__ mask, const int* __restrict__ key, unsigned* out, int rounds)
{
    const int i = thread_number(), n = blockDim.x;
    for (int r = 0; r < rounds; ++r) {  // several times: groups run at their own pace
        out[i] = __ballot_sync(mask[i], key[i] & 1);
        out[n + i] = unsigned(__any_sync(mask[i], key[i] & 2));
        out[2 * n + i] = unsigned(__all_sync(mask[i], key[i] & 4));
        out[3 * n + i] = __match_any_sync(mask[i], key[i]);
        int same = -1;
        out[4 * n + i] = __match_all_sync(mask[i], key[i] >> 1, &same);
        out[5 * n + i] = unsigned(same);
        __syncwarp(mask[i]);
    }
}

extern "C" __global__ void reductions(const unsigned* __restrict__ mask, const int* __restrict__ value, int* out)
{
    const int i = thread_number(), n = blockDim.x;
    out[i] = __reduce_add_sync(mask[i], value[i]);
    out[n + i] = __reduce_min_sync(mask[i], value[i]);
    out[2 * n + i] = __reduce_max_sync(mask[i], value[i]);
    out[3 * n + i] = int(__reduce_add_sync(mask[i], unsigned(value[i])));
    out[4 * n + i] = int(__reduce_min_sync(mask[i], unsigned(value[i])));
    out[5 * n + i] = int(__reduce_max_sync(mask[i], unsigned(value[i])));
    out[6 * n + i] = int(__reduce_and_sync(mask[i], unsigned(value[i])));
    out[7 * n + i] = int(__reduce_or_sync(mask[i], unsigned(value[i])));
    out[8 * n + i] = int(__reduce_xor_sync(mask[i], unsigned(value[i])));
}

extern "C" __global__ void barrier_votes(const int* __restrict__ predicate, int* out)
{
    const int i = thread_number(), n = blockDim.x;
    out[i] = __syncthreads_count(predicate[i]);
    out[n + i] = __syncthreads_or(predicate[i] > 1);
    out[2 * n + i] = __syncthreads_and(predicate[i] < 2);
}

extern "C" __global__ void block_totals(const float* __restrict__ x, const int* __restrict__ k, float* sums, int* ends)
{
    __shared__ float scratch[32];
    __shared__ int whole[32];
    const int i = thread_number();
    sums[i] = block_sum(x[i], scratch);
    const int low = block_min(k[i], whole), high = block_max(k[i], whole);
    if (i == 0) ends[0] = low, ends[1] = high;
}

// Inner groups may meet often while the rest of the warp waits for them; lanes that ended are not waited for.
extern "C" __global__ void nested_groups(int* out, int lanes)
{
    const int lane = lane_id();
    int seen = lane;
    if (lane < 16)
        for (int r = 0; r < 3; ++r) seen = __shfl_xor_sync(0xffffu, seen, 1) + 1;
    if (lane >= 28) return;
    const int next = __shfl_down_sync(KD_FULL_MASK, seen, 1);
    if (lane < lanes) out[lane] = next;
}

extern "C" __global__ void active_masks(unsigned* out)
{
    const int i = thread_number();
    if (i % 3 == 0) out[i] = __activemask();
    else if (i < 40) out[i] = __activemask();
    else out[i] = __reduce_add_sync(__activemask(), 1u);
}

extern "C" __global__ void reverse_shared(const int* __restrict__ in, int* out)
{
    __shared__ int whole[256];
    DYN_SHARED(int, dynamic);
    const int i = threadIdx.x, n = blockDim.x, base = blockIdx.x * n;
    whole[i] = in[base + i];
    __syncthreads();
    dynamic[i] = whole[n - 1 - i] + 1;
    __syncthreads();
    out[base + i] = dynamic[i ^ 1];
}

extern "C" __global__ void atomics(const int* __restrict__ v, int* i, unsigned* u, unsigned long long* l, float* f, double* d, int n)
{
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    atomicAdd(&i[0], v[t]), atomicSub(&i[1], v[t]), atomicMin(&i[2], v[t]), atomicMax(&i[3], v[t]);
    atomicAnd(&i[4], v[t]), atomicOr(&i[5], v[t]), atomicXor(&i[6], v[t]);
    atomicAdd(&u[0], unsigned(v[t])), atomicMin(&u[1], unsigned(v[t])), atomicMax(&u[2], unsigned(v[t]));
    atomicInc(&u[3], 6u), atomicDec(&u[4], 6u), atomicOr(&u[5], 1u << (t & 31));
    atomicAdd(&l[0], (unsigned long long)(long long)v[t]), atomicMax(&l[1], (unsigned long long)unsigned(v[t]) << 20);
    atomicAdd(&f[0], 1.0f), atomicAdd(&d[0], double(v[t]));
    if (atomicExch(&u[6], unsigned(t)) == 0xffffffffu) atomicAdd(&u[7], 1u);  // one thread finds the first value
    if (atomicCAS(&i[7], -1, t) == -1) atomicAdd(&u[8], 1u);
    f[1 + t] = atomicExch(&f[1 + t], 2.0f) + float(atomicCAS(&l[2], 5ull, 5ull));
}

extern "C" __global__ void spin_lock(int* lock, int* total)  // the holder must get its turn
{
    for (bool waiting = true; waiting;)
        if (atomicCAS(lock, 0, 1) == 0) {
            *total += 1;
            __threadfence();
            atomicExch(lock, 0);
            waiting = false;
        }
}

extern "C" __global__ void bits(const unsigned* __restrict__ x, const unsigned* __restrict__ y, unsigned* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned a = x[i], b = y[i];
    const unsigned long long w = (unsigned long long)a << 32 | b;
    unsigned* row = out + 18 * i;
    row[0] = __popc(a), row[1] = __popcll(w), row[2] = __ffs(int(a)), row[3] = __ffsll((long long)w);
    row[4] = __clz(int(a)), row[5] = __clzll((long long)w), row[6] = __brev(a), row[7] = unsigned(__brevll(w));
    row[8] = __umulhi(a, b), row[9] = unsigned(__mulhi(int(a), int(b))), row[10] = __byte_perm(a, b, 0x7210);
    row[11] = __funnelshift_l(a, b, b), row[12] = __funnelshift_r(a, b, b);
    row[13] = min(a, b), row[14] = unsigned(max(int(a), int(b)));
    row[15] = __float_as_uint(__uint_as_float(a & 0x7f7fffffu)), row[16] = unsigned(__float_as_int(__int_as_float(7)));
    row[17] = __ldg(&x[i]);
}

extern "C" __global__ void floats(const float* __restrict__ x, const double* __restrict__ y, int* whole, long long* wide, double* real, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int* w = whole + 6 * i;
    w[0] = __float2int_rn(x[i]), w[1] = __float2int_rz(x[i]), w[2] = __float2int_rd(x[i]), w[3] = __float2int_ru(x[i]);
    w[4] = int(__float2uint_rn(x[i])), w[5] = __double2int_rz(y[i]);
    long long* l = wide + 4 * i;
    l[0] = __float2ll_rn(x[i]), l[1] = __double2ll_rz(y[i]), l[2] = (long long)__double2ull_rd(y[i]);
    l[3] = __double2uint_ru(y[i]);
    double* r = real + 8 * i;
    r[0] = fmaf(x[i], x[i], -1.0f), r[1] = __fma_rn(y[i], y[i], -1.0), r[2] = fminf(x[i], 0.5f), r[3] = fmax(y[i], 0.5);
    r[4] = __fadd_rn(x[i], 1.0f), r[5] = double(__double2float_rn(y[i])), r[6] = fabsf(x[i]), r[7] = min(x[i], 2.0f);
}
