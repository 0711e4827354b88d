// async_copy.cuh: copies into shared memory that run beside the arithmetic, and the barriers that order them.
//
// A "transaction barrier" (mbarrier, 8 bytes of shared memory) counts arrivals of threads and, for bulk copies,
// bytes still on the way.  Its phase flips when both reach zero; a waiter names the parity of the phase it waits for
// to end: 0 for the first, then 1, 0, ...  Waiting for parity 1 on a fresh barrier returns at once.
//
// KD_BULK_COPY 1: one cp.async.bulk a row (sm_90 and newer).  0: 16-byte cp.async (sm_80 and newer).
// The twins copy at once, the earliest moment that the hardware may choose, so a slot that is still being read shows.
#ifndef KD_ASYNC_COPY_CUH
#define KD_ASYNC_COPY_CUH

#include "mma.cuh"

#ifndef KD_BULK_COPY
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define KD_BULK_COPY 0
#else
#define KD_BULK_COPY 1
#endif
#endif

#ifndef __CUDACC_RTC__
namespace kd_host {

struct Transactions {
    unsigned short expected, pending;
    unsigned bytes : 31, phase : 1;
};
static_assert(sizeof(Transactions) == 8, "an mbarrier is 8 bytes");

inline Transactions& transactions(shared_address p)
{
    if (size_t(p) % 8) fail("argument", "mbarrier at %p is not aligned to 8 bytes", static_cast<const void*>(p));
    return *reinterpret_cast<Transactions*>(const_cast<unsigned char*>(p));
}

inline void settle(Transactions& barrier)
{
    if (barrier.pending || barrier.bytes) return;
    barrier.pending = barrier.expected;
    barrier.phase ^= 1;
    current->block->progress = true;
}

inline void arrive(shared_address p, unsigned bytes)
{
    Transactions& barrier = transactions(p);
    if (barrier.pending == 0) fail("mbarrier", "more arrivals than the %d that were announced", barrier.expected);
    barrier.bytes += bytes;
    barrier.pending -= 1;
    settle(barrier);
}

inline void copy_16(shared_address to, const void* from, int bytes)
{
    if (size_t(to) % 16 || size_t(from) % 16 || bytes % 16)
        fail("argument", "asynchronous copy of %d bytes from %p to %p: all must be multiples of 16", bytes, from,
             static_cast<const void*>(to));
    memcpy(const_cast<unsigned char*>(to), from, size_t(bytes));
}

}  // namespace kd_host
#endif

__device__ __forceinline__ void mbarrier_init(shared_address barrier, unsigned arrivals)
{
#ifdef __CUDACC_RTC__
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#else
    kd_host::transactions(barrier) = {(unsigned short)arrivals, (unsigned short)arrivals, 0, 0};
#endif
}

__device__ __forceinline__ void mbarrier_arrive(shared_address barrier)
{
#ifdef __CUDACC_RTC__
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(barrier) : "memory");
#else
    kd_host::arrive(barrier, 0);
#endif
}

__device__ __forceinline__ void mbarrier_wait(shared_address barrier, unsigned parity)
{
#ifdef __CUDACC_RTC__
    // try_wait (sm_90) lets the hardware suspend the thread; test_wait (sm_80) only looks.
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again; }"
                 ::"r"(barrier), "r"(parity) : "memory");
#else
    unsigned done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!done);
#endif
#else
    kd_host::Transactions& one = kd_host::transactions(barrier);
    kd_host::wait_until([&] { return one.phase != parity; }, "mbarrier_wait", {__FILE__, __LINE__});
#endif
}

// Ordinary accesses to shared memory of this thread before, accesses of the copy engine after: needed where both write one place.
__device__ __forceinline__ void fence_async_proxy()
{
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// A kernel launched before its predecessor in the stream has ended: wait here for that and for what it wrote.
__device__ __forceinline__ void wait_for_predecessor()
{
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Let a successor that waits so be started once all blocks have come here.
__device__ __forceinline__ void start_successor()
{
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A number that another kernel may be writing, for guesses only: not kept where a later load would find it.
__device__ __forceinline__ int hint_of(const int* p)
{
#ifdef __CUDACC_RTC__
    int value;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
#else
    return *p;
#endif
}

// Begin to bring `bytes` (a multiple of 16, as the address is) to the L2 cache.
__device__ __forceinline__ void fetch_to_l2(const void* from, unsigned bytes)
{
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

#if KD_BULK_COPY
// Copy `bytes` (a multiple of 16, as both addresses are), which `barrier` must have been told to expect.
__device__ __forceinline__ void bulk_copy(shared_address to, const void* from, unsigned bytes, shared_address barrier)
{
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
#else
    kd_host::copy_16(to, from, int(bytes));
    kd_host::transactions(barrier).bytes -= bytes;
    kd_host::settle(kd_host::transactions(barrier));
#endif
}

// Arrive once and copy: the phase ends when the bytes have landed.
__device__ __forceinline__ void bulk_copy_arrive(shared_address to, const void* from, unsigned bytes, shared_address barrier)
{
#ifdef __CUDACC_RTC__
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#else
    kd_host::arrive(barrier, bytes);
#endif
    bulk_copy(to, from, bytes, barrier);
}

// The same two steps by one lane for the whole warp, with arguments that all lanes share: as one lane's own doing the
// compiler would make a loop over lanes of it.
__device__ __forceinline__ void bulk_expect(shared_address barrier, unsigned bytes)
{
#ifdef __CUDACC_RTC__
    asm volatile("{ .reg .pred one; elect.sync _|one, 0xffffffff; @one mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1; }"
                 ::"r"(barrier), "r"(bytes) : "memory");
#else
    if (lane_id() == 0) kd_host::arrive(barrier, bytes);
    __syncwarp();
#endif
}

__device__ __forceinline__ void bulk_copy_once(shared_address to, const void* from, unsigned bytes, shared_address barrier)
{
#ifdef __CUDACC_RTC__
    asm volatile("{ .reg .pred one; elect.sync _|one, 0xffffffff;"
                 " @one cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3]; }"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
#else
    if (lane_id() == 0) bulk_copy(to, from, bytes, barrier);
#endif
}
#endif

__device__ __forceinline__ void copy_async_16(shared_address to, const void* from)
{
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
    kd_host::copy_16(to, from, 16);
#endif
}

// Arrive once all earlier copy_async_16 of this thread have landed; does not wait.
__device__ __forceinline__ void copy_async_arrive(shared_address barrier)
{
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#else
    kd_host::arrive(barrier, 0);
#endif
}

// Barrier `number` (1..15) of `threads` threads; returns whether any of them brought a true predicate.
__device__ __forceinline__ bool named_barrier_or(int number, int threads, bool predicate)
{
#ifdef __CUDACC_RTC__
    unsigned any;
    asm volatile("{ .reg .pred mine, all; setp.ne.u32 mine, %3, 0; bar.red.or.pred all, %1, %2, mine; selp.u32 %0, 1, 0, all; }"
                 : "=r"(any) : "r"(number), "r"(threads), "r"((unsigned)predicate) : "memory");
    return any != 0;
#else
    return kd_host::barrier_sync(number, threads, predicate, "named_barrier", {__FILE__, __LINE__}) > 0;
#endif
}

__device__ __forceinline__ void named_barrier(int number, int threads)
{
#ifdef __CUDACC_RTC__
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
#else
    kd_host::barrier_sync(number, threads, false, "named_barrier", {__FILE__, __LINE__});
#endif
}

// Tell that this warp is done with what `barrier` guards: one arrival, by lane 0.  KD_EACH_LANE 1: by every lane, for
// compute-sanitizer's racecheck, which does not see that __syncwarp orders the others before lane 0.
#ifndef KD_EACH_LANE
#define KD_EACH_LANE 0
#endif
constexpr int kd_warp_arrivals = KD_EACH_LANE ? 32 : 1;

__device__ __forceinline__ void warp_arrive(shared_address barrier)
{
    __syncwarp();
    if (KD_EACH_LANE || lane_id() == 0) mbarrier_arrive(barrier);
}

#endif
