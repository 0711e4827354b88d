// row_tickets.cuh: rows that several blocks share: who is last, and the status of a request that several rows share.
//
// Counters live in global memory; every launch finds them zero and leaves them zero.
#ifndef KD_ROW_TICKETS_CUH
#define KD_ROW_TICKETS_CUH

#include "logit_rows.cuh"

struct Tickets {
    unsigned long long* request;  // (b,): finished rows in the low half, bad ones in the high half
    unsigned* row;                // (rows,): finished blocks

    __device__ Tickets(unsigned long long* memory, int batch)
        : request(memory), row(reinterpret_cast<unsigned*>(memory + batch)) {}

    // One thread: whether `blocks` blocks of the row are now finished.
    __device__ bool last_of_row(int number, int blocks) const
    {
        return blocks == 1 || atomicInc(&row[number], unsigned(blocks - 1)) == unsigned(blocks - 1);
    }

    // One thread a row.  The one that finishes a request's last row writes its status.
    __device__ void finish_row(int number, bool bad, int rows, int* status) const
    {
        unsigned long long& ticket = request[number / rows];
        const unsigned long long own = 1ull + ((unsigned long long)bad << 32), all = atomicAdd(&ticket, own) + own;
        if (unsigned(all) != unsigned(rows)) return;
        status[number / rows] = all >> 32 ? KD_STATUS_NON_FINITE : 0;
        ticket = 0;
    }
};

// What other threads wrote before their fence can be read after this one, and what this thread knows of is passed on:
// weaker and much cheaper than __threadfence, which also orders everything against everything.
__device__ __forceinline__ void fence_device()
{
#ifdef __CUDACC_RTC__
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#else
    __threadfence();
#endif
}

// All threads: whether this block is the row's last.  What the others wrote before can then be read with __ldcg.
__device__ inline bool last_block(const Tickets& tickets, int number, int blocks)
{
    __shared__ int last;
    __syncthreads();
    if (blocks == 1) return true;
    if (thread_number() == 0) {
        fence_device();
        last = tickets.last_of_row(number, blocks);
        fence_device();
    }
    __syncthreads();
    return last != 0;
}

#endif
