// atomics.h: atomic functions; real atomics, because blocks run on several operating-system threads.
#ifndef KD_HOST_ATOMICS_H
#define KD_HOST_ATOMICS_H

#include "intrinsics.h"

namespace kd_host {

// Spin locks between threads of one block would never let the holder run: give way now and then.
inline void spin_hint()
{
    if ((++current->spins & 255u) == 0) pause();
}

// *p = change(*p) for any type of 2, 4 or 8 bytes; returns the old value.
template <class T, class Change>
inline T atomic_update(T* p, Change change)
{
    T old, wanted;
    __atomic_load(p, &old, __ATOMIC_SEQ_CST);
    do wanted = change(old);
    while (!__atomic_compare_exchange(p, &old, &wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}

}  // namespace kd_host

#define KD_ATOMIC(name, T, expression) \
    inline T name(T* p, T x) { return kd_host::atomic_update(p, [x](T old) -> T { return expression; }); }
#define KD_ATOMIC_BUILTIN(name, T, operation) \
    inline T name(T* p, T x) { return __atomic_##operation(p, x, __ATOMIC_SEQ_CST); }
#define KD_ATOMIC_INTEGER(T)                                    \
    KD_ATOMIC_BUILTIN(atomicAdd, T, fetch_add)                  \
    KD_ATOMIC_BUILTIN(atomicAnd, T, fetch_and)                  \
    KD_ATOMIC_BUILTIN(atomicOr, T, fetch_or)                    \
    KD_ATOMIC_BUILTIN(atomicXor, T, fetch_xor)                  \
    KD_ATOMIC(atomicMin, T, (x < old ? x : old))                \
    KD_ATOMIC(atomicMax, T, (old < x ? x : old))                \
    inline T atomicExch(T* p, T x)                              \
    {                                                           \
        kd_host::spin_hint();                                   \
        return __atomic_exchange_n(p, x, __ATOMIC_SEQ_CST);     \
    }                                                           \
    inline T atomicCAS(T* p, T expected, T x)                   \
    {                                                           \
        kd_host::spin_hint();                                   \
        __atomic_compare_exchange_n(p, &expected, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
        return expected;                                        \
    }
KD_ATOMIC_INTEGER(int)
KD_ATOMIC_INTEGER(unsigned)
KD_ATOMIC_INTEGER(unsigned long long)
KD_ATOMIC(atomicMin, long long, (x < old ? x : old))
KD_ATOMIC(atomicMax, long long, (old < x ? x : old))
KD_ATOMIC_BUILTIN(atomicAnd, long long, fetch_and)
KD_ATOMIC_BUILTIN(atomicOr, long long, fetch_or)
KD_ATOMIC_BUILTIN(atomicXor, long long, fetch_xor)
KD_ATOMIC_BUILTIN(atomicSub, int, fetch_sub)
KD_ATOMIC_BUILTIN(atomicSub, unsigned, fetch_sub)
KD_ATOMIC(atomicInc, unsigned, (old >= x ? 0u : old + 1u))
KD_ATOMIC(atomicDec, unsigned, (old == 0u || old > x ? x : old - 1u))
KD_ATOMIC(atomicAdd, float, (old + x))
KD_ATOMIC(atomicAdd, double, (old + x))
KD_ATOMIC(atomicAdd, __half, (old + x))
KD_ATOMIC(atomicAdd, __nv_bfloat16, (old + x))
#undef KD_ATOMIC_INTEGER
#undef KD_ATOMIC_BUILTIN
#undef KD_ATOMIC

inline float atomicExch(float* p, float x)
{
    return kd_host::atomic_update(p, [x](float) { return x; });
}

inline unsigned short atomicCAS(unsigned short* p, unsigned short expected, unsigned short x)
{
    __atomic_compare_exchange_n(p, &expected, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}

#endif
