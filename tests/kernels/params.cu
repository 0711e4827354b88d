// params.cu: one kernel with every kind of parameter, for tests of the argument checks.
//
// Launch     params_v1: grid 1, block 32, dynamic shared 0
#include "common.cuh"

#ifndef KD_VALUE
#define KD_VALUE float
#endif
using Index = long long;
struct Pair { int a, b; };

extern "C" __global__ void
params_v1(const KD_VALUE* __restrict__ values, int* out, float scale, int n, Index stride, unsigned flags,
          bool on, double big, Pair pair, const void* any)
{
    if (threadIdx.x == 0) {
        out[0] = n;
        out[1] = int(stride);
        out[2] = int(flags);
        out[3] = on;
        out[4] = int(scale * 2.f);
        out[5] = int(big * 2.0);
        out[6] = pair.a + pair.b;
        out[7] = any == nullptr;
        out[8] = values == nullptr ? -1 : int(to_float(values[0]));
    }
}
