// target_row.cuh: what the kernels of target_token share: the last block of a row, prefix sums, the nucleus of a row.
#ifndef KD_TARGET_ROW_CUH
#define KD_TARGET_ROW_CUH

#include "logit_rows.cuh"

#define KD_TARGET_THREADS 256
#define KD_TARGET_WARPS (KD_TARGET_THREADS / 32)
#define KD_TARGET_SLICES 32  // most slices of a row

// Counters in global memory that every launch finds zero and leaves zero.
struct Tickets {
    unsigned *row, *request, *flags;  // (rows,), (b,), (b,)

    __device__ Tickets(unsigned* memory, int rows, int batch) : row(memory), request(memory + rows), flags(request + batch) {}
};

// All threads: whether this block is the last of the row's `blocks` blocks to get here.  What the others wrote before
// can then be read (with __ldcg).
__device__ inline bool last_block(unsigned* ticket, int blocks)
{
    __shared__ int last;
    __threadfence();
    __syncthreads();
    if (thread_number() == 0) last = blocks == 1 || atomicInc(ticket, unsigned(blocks - 1)) == unsigned(blocks - 1);
    __syncthreads();
    __threadfence();
    return last != 0;
}

// One thread a row: write its token; whoever writes the last one of a request writes the status too.
__device__ inline void finish_row(int row, int token, int nodes, int* tokens, int* status, const Tickets& tickets)
{
    const int b = row / nodes;
    tokens[row] = token;
    if (token < 0) atomicOr(&tickets.flags[b], unsigned(KD_STATUS_NON_FINITE));
    __threadfence();
    if (atomicInc(&tickets.request[b], unsigned(nodes - 1)) == unsigned(nodes - 1))
        status[b] = int(atomicExch(&tickets.flags[b], 0u));
}

// All threads of the block: the sum over lower threads, and of all; combined in a fixed order.  `scratch` has one T a
// warp; begins and ends with a barrier.
template <class T>
__device__ T sum_before(T value, T* scratch, T& total)
{
    T upto = value;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        const T left = __shfl_up_sync(KD_FULL_MASK, upto, offset);
        if (lane_id() >= offset) upto += left;
    }
    const T left = __shfl_up_sync(KD_FULL_MASK, upto, 1);
    __syncthreads();
    if (lane_id() == 31) scratch[warp_id()] = upto;
    __syncthreads();
    T before = lane_id() ? left : T(0), all = T(0);
    for (int w = 0; w < int(blockDim.x) >> 5; ++w) {
        if (w == warp_id()) before += all;
        all += scratch[w];
    }
    total = all;
    __syncthreads();
    return before;
}

// What top-p keeps of a row: logits above `edge`, and the first `ties` that equal it.
struct Nucleus {
    float peak, total;         // largest logit; mass of the row, relative to it
    float edge;
    int ties, bad;
    unsigned prefix;           // digits of the edge's key found so far
    unsigned long long above;  // mass above these digits, in units of total / 2^42
};

struct Kept {  // what a thread may count: all of a row, or its nucleus
    float edge;
    int ties;
};

#endif
