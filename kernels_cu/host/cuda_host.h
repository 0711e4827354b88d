// cuda_host.h: compile an unmodified .cu file as C++17 and run its kernels on a CPU.
//
// kdtree_cupy/library/host_build.py puts this header before the user's file and a table of its kernels behind it.
//
//   fiber.h         threads as fibers              stacks.h     their memory
//   block.h         one block: run queue, faults   report.h     who waits where, in a deadlock
//   waits.h         barriers, meeting of lanes     warp.h       __syncthreads, __shfl_sync, ...
//   vector_types.h  float4, make_int2, ...         numeric.h    half, bfloat16, 8-bit floats (+ numeric_api.h)
//   intrinsics.h    __popc, __fmaf_rn, expf, ...   atomics.h    atomicAdd, atomicCAS, ...
//   memory.h        guards and canaries            kernels.h    table of kernels
//   launch.h        grids, signals                 api.h        the C interface
//   ubsan.h         reports of -fsanitize=undefined
//
// Stricter than a device: a thread that leaves the kernel before a barrier that others reach is a fault, and so is
// one block meeting at two different __syncthreads of the source.
// Shown: wrong logic and indices, divergent barriers and masks, dependence on the order of threads or blocks,
// accesses out of bounds, uninitialised shared memory, undefined behaviour.  Not shown: races of the memory model
// that no order of fibers provokes, bank conflicts, occupancy, time, the last bits of approximate functions.
// Blocks that wait for one another (cooperative grids) are not supported.
#ifndef KD_HOST_CUDA_HOST_H
#define KD_HOST_CUDA_HOST_H

#include "api.h"
#include "atomics.h"
#ifdef KD_HOST_SANITIZE
#include "ubsan.h"
#endif

#define KD_HOST 1
#define __global__ __attribute__((visibility("hidden")))
#define __device__
#define __host__
#define __constant__
#define __shared__ static thread_local
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#ifndef __clang__
#define __builtin_assume(condition) ((void)0)
#endif

#define threadIdx (kd_host::current->index)
#define blockIdx (kd_host::current->block->index)
#define blockDim (kd_host::current->block->dim)
#define gridDim (kd_host::current->block->grid)
static const int warpSize = 32;

#define printf(...) kd_host::print(__VA_ARGS__)

#undef assert
#define assert(condition)                                                                                    \
    ((condition) ? (void)0                                                                                   \
                 : kd_host::fail("assert", "assertion failed: %s (%s:%d)", #condition,                       \
                                 kd_host::plain_name(__FILE__), __LINE__))

#endif
