// ubsan.h: where the checks of -fsanitize=undefined arrive; each becomes a fault with file, line, block and thread.
//
// Replaces the compiler's own run-time library (which need not be installed): the object is compiled with the
// checks and linked without that library.  Every record begins with the place in the source.
#ifndef KD_HOST_UBSAN_H
#define KD_HOST_UBSAN_H

#include "waits.h"

namespace kd_host {

struct UbType {
    unsigned short kind, info;  // kind 0: integer, info bit 0: signed, info >> 1: log2 of the bits
    char name[1];
};

struct UbRecord {
    const char* file;
    unsigned line, column;
    const UbType* types[2];
};

inline long long ub_integer(const UbType* type, unsigned long value)
{
    const int bits = 1 << (type->info >> 1);
    if (type->kind != 0 || bits >= 64) return (long long)value;
    const int unused = 64 - bits;
    return type->info & 1 ? (long long)((unsigned long long)value << unused) >> unused : (long long)value;
}

[[noreturn]] inline void ub_fail(const UbRecord* record, const char* what)
{
    if (!current || !current->block->in_fiber) __builtin_trap();  // in the library itself: a defect of ours
    fail("undefined", "undefined behaviour (%s:%u): %s", plain_name(record->file), record->line, what);
}

template <class... Values>
[[noreturn]] inline void ub_say(const UbRecord* record, const char* format, Values... values)
{
    char text[200];
    snprintf(text, sizeof text, format, values...);
    ub_fail(record, text);
}

}  // namespace kd_host

#define KD_UB(check, ...) \
    extern "C" __attribute__((visibility("hidden"), noreturn)) void __ubsan_handle_##check(__VA_ARGS__)
#define KD_UB_PLAIN(check, what) \
    KD_UB(check, const kd_host::UbRecord* record) { kd_host::ub_fail(record, what); }
#define KD_UB_INTEGERS(check, operation)                                                              \
    KD_UB(check, const kd_host::UbRecord* record, unsigned long a, unsigned long b)                  \
    {                                                                                                \
        const kd_host::UbType* type = record->types[0];                                              \
        kd_host::ub_say(record, "%lld " operation " %lld does not fit in %s", kd_host::ub_integer(type, a), \
                        kd_host::ub_integer(type, b), type->name);                                   \
    }

KD_UB_INTEGERS(add_overflow, "+")
KD_UB_INTEGERS(sub_overflow, "-")
KD_UB_INTEGERS(mul_overflow, "*")
KD_UB_INTEGERS(divrem_overflow, "/")
KD_UB_PLAIN(builtin_unreachable, "code marked as unreachable was reached")
KD_UB_PLAIN(missing_return, "a function with a result ended without return")
KD_UB_PLAIN(nonnull_arg, "null where the function wants a pointer")
KD_UB_PLAIN(nullability_arg, "null where the function wants a pointer")
KD_UB_PLAIN(invalid_builtin, "zero given to a count of leading or trailing zeros")

KD_UB(negate_overflow, const kd_host::UbRecord* record, unsigned long a)
{
    const kd_host::UbType* type = record->types[0];
    kd_host::ub_say(record, "the negative of %lld does not fit in %s", kd_host::ub_integer(type, a), type->name);
}

KD_UB(shift_out_of_bounds, const kd_host::UbRecord* record, unsigned long a, unsigned long b)
{
    const kd_host::UbType* type = record->types[0];
    kd_host::ub_say(record, "shift of %lld (%s) by %lld", kd_host::ub_integer(type, a), type->name,
                    kd_host::ub_integer(record->types[1], b));
}

KD_UB(out_of_bounds, const kd_host::UbRecord* record, unsigned long index)
{
    kd_host::ub_say(record, "index %lld out of range of %s", kd_host::ub_integer(record->types[1], index),
                    record->types[0]->name);
}


KD_UB(type_mismatch_v1, const kd_host::UbRecord* record, unsigned long pointer)
{
    const unsigned char* rest = reinterpret_cast<const unsigned char*>(&record->types[1]);  // log2 of alignment, kind
    const char* type = record->types[0]->name;
    if (!pointer) kd_host::ub_say(record, "null pointer to %s used", type);
    const unsigned long alignment = 1ul << rest[0];
    if (pointer & (alignment - 1))
        kd_host::ub_say(record, "address %p is not aligned to %lu bytes, as %s must be", (void*)pointer, alignment,
                        type);
    kd_host::ub_say(record, "address %p has no room for %s", (void*)pointer, type);
}

KD_UB(pointer_overflow, const kd_host::UbRecord* record, unsigned long base, unsigned long result)
{
    kd_host::ub_say(record, "pointer %p plus an offset wraps around to %p", (void*)base, (void*)result);
}

KD_UB(vla_bound_not_positive, const kd_host::UbRecord* record, unsigned long)
{
    kd_host::ub_fail(record, "array of variable length with no element");
}

KD_UB(float_cast_overflow, const kd_host::UbRecord* record, unsigned long)
{
    kd_host::ub_say(record, "value of %s does not fit in %s", record->types[0]->name, record->types[1]->name);
}

KD_UB(load_invalid_value, const kd_host::UbRecord* record, unsigned long value)
{
    kd_host::ub_say(record, "%lu is no value of %s", value, record->types[0]->name);
}

#define KD_UB_NULL_RETURN(check) \
    KD_UB(check, const void*, const kd_host::UbRecord* place)    \
    {                                                            \
        kd_host::ub_fail(place, "null returned where forbidden"); \
    }
KD_UB_NULL_RETURN(nonnull_return_v1)
KD_UB_NULL_RETURN(nullability_return_v1)
#undef KD_UB_NULL_RETURN

KD_UB(alignment_assumption, const kd_host::UbRecord* record, unsigned long, unsigned long, unsigned long)
{
    kd_host::ub_fail(record, "a pointer is not aligned as promised");
}

#undef KD_UB
#undef KD_UB_PLAIN
#undef KD_UB_INTEGERS
#endif
