#pragma once
#define KD_FACTOR 2.0f
#ifndef DYN_SHARED
#define DYN_SHARED(T, name) extern __shared__ T name[]
#endif
