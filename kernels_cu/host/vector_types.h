// vector_types.h: int2, float4 and their kin, with CUDA's sizes and alignments.
#ifndef KD_HOST_VECTOR_TYPES_H
#define KD_HOST_VECTOR_TYPES_H

#include "block.h"  // uint3

#define KD_VECTOR_BODY_1(T) T x;
#define KD_VECTOR_BODY_2(T) T x, y;
#define KD_VECTOR_BODY_3(T) T x, y, z;
#define KD_VECTOR_BODY_4(T) T x, y, z, w;
#define KD_VECTOR(name, n, T, alignment)                      \
    struct alignas(alignment) name {                          \
        KD_VECTOR_BODY_##n(T)                                 \
    };
#define KD_VECTORS_124(name, T, size, most)                              \
    KD_VECTOR(name##1, 1, T, size)                                       \
    KD_VECTOR(name##2, 2, T, (2 * size < most ? 2 * size : most))        \
    KD_VECTOR(name##4, 4, T, (4 * size < most ? 4 * size : most))        \
    inline name##1 make_##name##1(T x) { return {x}; }                   \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }           \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }   \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define KD_VECTORS(name, T)             \
    KD_VECTOR(name##3, 3, T, alignof(T)) \
    KD_VECTORS_124(name, T, sizeof(T), 16)

KD_VECTORS(char, signed char)
KD_VECTORS(uchar, unsigned char)
KD_VECTORS(short, short)
KD_VECTORS(ushort, unsigned short)
KD_VECTORS(int, int)
KD_VECTORS_124(uint, unsigned, sizeof(unsigned), 16)
KD_VECTORS(long, long)
KD_VECTORS(ulong, unsigned long)
KD_VECTORS(longlong, long long)
KD_VECTORS(ulonglong, unsigned long long)
KD_VECTORS(float, float)
KD_VECTORS(double, double)

#undef KD_VECTORS
#undef KD_VECTORS_124
#undef KD_VECTOR
#undef KD_VECTOR_BODY_1
#undef KD_VECTOR_BODY_2
#undef KD_VECTOR_BODY_3
#undef KD_VECTOR_BODY_4

#endif
