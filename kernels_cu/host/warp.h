// warp.h: __syncthreads and the warp-wide primitives of CUDA, on top of waits.h.
//
// Values that CUDA leaves undefined (a shuffle from a lane that takes no part) read as poison, so that using one
// shows.  __activemask groups the lanes of a warp that stand at the same line when no other thread can run.
#ifndef KD_HOST_WARP_H
#define KD_HOST_WARP_H

#include "waits.h"

namespace kd_host {

// Barrier 0, with all threads of the block.
inline int sync_block(bool predicate, const char* name, Site site)
{
    return barrier_sync(0, current->block->count, predicate, name, site);
}

}  // namespace kd_host

inline void __syncthreads(KD_SITE) { kd_host::sync_block(false, "__syncthreads", {file, line}); }

inline int __syncthreads_count(int predicate, KD_SITE)
{
    return kd_host::sync_block(predicate != 0, "__syncthreads_count", {file, line});
}

inline int __syncthreads_or(int predicate, KD_SITE)
{
    return kd_host::sync_block(predicate != 0, "__syncthreads_or", {file, line}) > 0;
}

inline int __syncthreads_and(int predicate, KD_SITE)
{
    return kd_host::sync_block(predicate == 0, "__syncthreads_and", {file, line}) == 0;
}

namespace kd_host {

struct ShuffleSlot {
    unsigned long long value, result;
    int operand, width;
};

enum class Shuffle { index, up, down, exclusive_or };

// The source lane of shfl as PTX defines it, or the lane itself where that is out of its segment.
template <Shuffle mode>
inline int shuffle_source(int lane, int operand, int width)
{
    const int low = lane & ~(width - 1), high = low + width - 1, by = operand & (warp_size - 1);
    if (mode == Shuffle::index) return low | (operand & (width - 1));
    if (mode == Shuffle::up) return lane - by >= low ? lane - by : lane;
    if (mode == Shuffle::down) return lane + by <= high ? lane + by : lane;
    return (lane ^ by) <= high ? lane ^ by : lane;
}

template <Shuffle mode>
void combine_shuffle(Warp& warp, unsigned lanes)
{
    for (unsigned rest = lanes; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        ShuffleSlot& slot = *static_cast<ShuffleSlot*>(warp.slots[lane]);
        const int from = shuffle_source<mode>(lane, slot.operand, slot.width);
        slot.result = lanes >> from & 1 ? static_cast<ShuffleSlot*>(warp.slots[from])->value : ~0ull;
    }
}

template <Shuffle mode, class T>
inline T shuffle(const char* name, unsigned mask, T value, int operand, int width, Site site)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes a lane");
    if (width < 1 || width > warp_size || (width & (width - 1)))
        fail("argument", "%s (%s:%d): width %d is not a power of two up to 32", name, site.file, site.line, width);
    ShuffleSlot slot = {0, 0, operand, width};
    memcpy(&slot.value, &value, sizeof(T));
    collective(name, combine_shuffle<mode>, mask, &slot, site);
    memcpy(&value, &slot.result, sizeof(T));
    return value;
}

struct WordSlot {
    unsigned long long value, result;
    bool flag;
};

inline WordSlot& word(Warp& warp, int lane) { return *static_cast<WordSlot*>(warp.slots[lane]); }

inline void combine_ballot(Warp& warp, unsigned lanes)
{
    unsigned votes = 0;
    for (unsigned rest = lanes; rest; rest &= rest - 1)
        votes |= word(warp, __builtin_ctz(rest)).value ? rest & -rest : 0u;
    for (unsigned rest = lanes; rest; rest &= rest - 1) {
        WordSlot& slot = word(warp, __builtin_ctz(rest));
        slot.result = votes, slot.flag = votes == lanes;
    }
}

inline void combine_match(Warp& warp, unsigned lanes)
{
    for (unsigned rest = lanes; rest; rest &= rest - 1) {
        WordSlot& slot = word(warp, __builtin_ctz(rest));
        slot.result = 0;
        for (unsigned peers = lanes; peers; peers &= peers - 1)
            if (word(warp, __builtin_ctz(peers)).value == slot.value) slot.result |= peers & -peers;
        slot.flag = slot.result == lanes;
    }
}

struct Add { static unsigned of(unsigned a, unsigned b) { return a + b; } };  // signed sums wrap on the device
struct Min { template <class T> static T of(T a, T b) { return b < a ? b : a; } };
struct Max { template <class T> static T of(T a, T b) { return a < b ? b : a; } };
struct And { template <class T> static T of(T a, T b) { return a & b; } };
struct Or { template <class T> static T of(T a, T b) { return a | b; } };
struct Xor { template <class T> static T of(T a, T b) { return a ^ b; } };

template <class T, class Operation>
void combine_reduce(Warp& warp, unsigned lanes)
{
    T total = T(word(warp, __builtin_ctz(lanes)).value);
    for (unsigned rest = lanes & (lanes - 1); rest; rest &= rest - 1)
        total = Operation::of(total, T(word(warp, __builtin_ctz(rest)).value));
    for (unsigned rest = lanes; rest; rest &= rest - 1)
        word(warp, __builtin_ctz(rest)).result = (unsigned long long)total;
}

inline WordSlot meet(const char* name, Combine combine, unsigned mask, unsigned long long value, Site site)
{
    WordSlot slot = {value, 0, false};
    collective(name, combine, mask, &slot, site);
    return slot;
}

inline void combine_nothing(Warp&, unsigned) {}

template <class T>
inline unsigned long long pattern(T value)
{
    unsigned long long bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}

}  // namespace kd_host

inline void __syncwarp(unsigned mask = 0xffffffffu, KD_SITE)
{
    kd_host::collective("__syncwarp", kd_host::combine_nothing, mask, nullptr, {file, line});
}

#define KD_SHUFFLE(name, mode, Operand)                                                                \
    template <class T>                                                                                 \
    inline T name(unsigned mask, T value, Operand operand, int width = 32, KD_SITE)                    \
    {                                                                                                  \
        return kd_host::shuffle<kd_host::Shuffle::mode>(#name, mask, value, int(operand), width, {file, line}); \
    }
KD_SHUFFLE(__shfl_sync, index, int)
KD_SHUFFLE(__shfl_up_sync, up, unsigned)
KD_SHUFFLE(__shfl_down_sync, down, unsigned)
KD_SHUFFLE(__shfl_xor_sync, exclusive_or, int)
#undef KD_SHUFFLE

inline unsigned __ballot_sync(unsigned mask, int predicate, KD_SITE)
{
    return unsigned(kd_host::meet("__ballot_sync", kd_host::combine_ballot, mask, predicate != 0, {file, line}).result);
}

inline int __any_sync(unsigned mask, int predicate, KD_SITE)
{
    return kd_host::meet("__any_sync", kd_host::combine_ballot, mask, predicate != 0, {file, line}).result != 0;
}

inline int __all_sync(unsigned mask, int predicate, KD_SITE)
{
    return kd_host::meet("__all_sync", kd_host::combine_ballot, mask, predicate != 0, {file, line}).flag;
}

template <class T>
inline unsigned __match_any_sync(unsigned mask, T value, KD_SITE)
{
    const unsigned long long bits = kd_host::pattern(value);
    return unsigned(kd_host::meet("__match_any_sync", kd_host::combine_match, mask, bits, {file, line}).result);
}

template <class T>
inline unsigned __match_all_sync(unsigned mask, T value, int* predicate, KD_SITE)
{
    const kd_host::WordSlot slot =
        kd_host::meet("__match_all_sync", kd_host::combine_match, mask, kd_host::pattern(value), {file, line});
    *predicate = slot.flag;
    return slot.flag ? unsigned(slot.result) : 0u;
}

#define KD_REDUCE(name, Type, Operation)                                                               \
    inline Type name(unsigned mask, Type value, KD_SITE)                                               \
    {                                                                                                  \
        return Type(kd_host::meet(#name, kd_host::combine_reduce<Type, kd_host::Operation>, mask,      \
                                  (unsigned long long)value, {file, line}).result);                    \
    }
KD_REDUCE(__reduce_add_sync, unsigned, Add)
KD_REDUCE(__reduce_add_sync, int, Add)
KD_REDUCE(__reduce_min_sync, unsigned, Min)
KD_REDUCE(__reduce_min_sync, int, Min)
KD_REDUCE(__reduce_max_sync, unsigned, Max)
KD_REDUCE(__reduce_max_sync, int, Max)
KD_REDUCE(__reduce_and_sync, unsigned, And)
KD_REDUCE(__reduce_or_sync, unsigned, Or)
KD_REDUCE(__reduce_xor_sync, unsigned, Xor)
#undef KD_REDUCE

inline unsigned __activemask(KD_SITE) { return kd_host::active_mask({file, line}); }

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) { kd_host::pause(); }

namespace kd_host {

// printf of a kernel: straight to the file descriptor, since a stopped kernel must not take a lock of stdio with it.
__attribute__((format(printf, 1, 2))) inline int print(const char* format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    const int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    const size_t bytes = length < 0 ? 0 : size_t(length) < sizeof text ? size_t(length) : sizeof text - 1;
    return write(STDOUT_FILENO, text, bytes) < 0 ? -1 : length;
}

}  // namespace kd_host

[[noreturn]] inline void __trap() { kd_host::fail("trap", "the kernel called __trap()"); }

#endif
