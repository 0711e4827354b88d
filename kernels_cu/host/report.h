// report.h: who waits where, when nobody can go on.
#ifndef KD_HOST_REPORT_H
#define KD_HOST_REPORT_H

#include "block.h"

namespace kd_host {

inline bool wait_alike(const Thread& a, const Thread& b)
{
    if (a.state != b.state || a.state == State::gone) return a.state == b.state;
    return a.waits_in == b.waits_in && a.site.line == b.site.line && (a.state != State::warp || a.mask == b.mask);
}

// "threads 0-15, 40 wait at __syncthreads (k.cu:7); threads 16-31 have left the kernel"
inline void Block::report_deadlock()
{
    int first = -1, used = 0, classes = 0;
    char* text = fault.text;
    const int room = int(sizeof fault.text);
    bool told[most_threads] = {};
    auto say = [&](auto... values) {
        if (used < room) used += snprintf(text + used, size_t(room - used), values...);
    };
    say("%s", "no thread can go on: ");
    for (int i = 0; i < count; ++i) {
        if (told[i]) continue;
        const Thread& a = threads[i];
        if (first < 0 && a.state != State::gone) first = i;
        if (++classes > 8) continue;
        int members = 0, ranges = 0;
        for (int j = i; j < count; ++j) members += wait_alike(a, threads[j]);
        say(members > 1 ? "%sthreads" : "%sthread", classes > 1 ? "; " : "");
        for (int j = i; j < count; ++j) {
            if (!wait_alike(a, threads[j])) continue;
            int end = j;
            while (end < count && wait_alike(a, threads[end])) told[end++] = true;
            if (ranges++ < 8) say(end - j > 1 ? " %d-%d" : " %d", j, end - 1);
            else if (ranges == 9) say("%s", " ...");
            j = end;
        }
        const char* s = members > 1 ? "" : "s";
        if (a.state == State::gone) say(" ha%s left the kernel", members > 1 ? "ve" : "s");
        else if (a.state == State::warp)
            say(" wait%s in %s(mask 0x%08x) (%s:%d)", s, a.waits_in, a.mask, a.site.file, a.site.line);
        else say(" wait%s at %s (%s:%d)", s, a.waits_in, a.site.file, a.site.line);
    }
    set_fault(*this, first < 0 ? nullptr : &threads[first], "deadlock");
}

}  // namespace kd_host
#endif
