// waits.h: what a thread can wait for: block barriers, warp collectives, a condition.
//
// A warp collective works by meeting: each lane leaves a pointer to its operands (on its own stack) in its slot and
// waits; the last lane of the mask computes the result of every lane, then all go on.
#ifndef KD_HOST_WAITS_H
#define KD_HOST_WAITS_H

#include "report.h"

namespace kd_host {

// ---- barriers of a block ----

inline void Block::release_barrier(int number)
{
    Barrier& barrier = barriers[number];
    int n = 0;
    for (int i = 0; i < count; ++i) {
        Thread& thread = threads[i];
        if (thread.state != State::barrier || thread.barrier != number) continue;
        thread.result = barrier.sum;
        released[n++] = i;
    }
    barrier.arrived = 0;
    release(released, n);
}

inline bool same_place(Site a, Site b)
{
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

// Barrier 0 is __syncthreads: all threads of the block, at one place of the source.  Barriers 1-15 are PTX named
// barriers: `expected` threads, wherever they stand.  Returns how many threads brought a true predicate.
inline int barrier_sync(int number, int expected, bool predicate, const char* name, Site site)
{
    Thread& self = *current;
    Block& block = *self.block;
    Barrier& barrier = block.barriers[number];
    if (barrier.arrived == 0) {
        barrier.name = name, barrier.site = site, barrier.first = self.number, barrier.expected = expected;
        barrier.sum = 0;
    } else if (barrier.name != name || barrier.expected != expected ||
               (number == 0 && !same_place(barrier.site, site))) {
        fail("barrier", "divergent barrier: thread number %d is at %s (%s:%d), thread number %d waits at %s (%s:%d)",
             self.number, name, site.file, site.line, barrier.first, barrier.name, barrier.site.file,
             barrier.site.line);
    }
    barrier.sum += predicate;
    self.barrier = number, self.waits_in = name, self.site = site;
    self.state = State::barrier;
    if (++barrier.arrived == barrier.expected) block.release_barrier(number);
    yield(self.state);
    return self.result;
}

// ---- warp collectives ----

inline void Block::complete(Warp& warp, int group)
{
    const Group done = warp.groups[group];
    warp.groups[group] = warp.groups[--warp.open];
    if (done.combine) done.combine(warp, done.arrived);
    const int base = int(&warp - warps) * warp_size;
    int n = 0;
    for (unsigned lanes = done.arrived; lanes; lanes &= lanes - 1) released[n++] = base + __builtin_ctz(lanes);
    release(released, n);
}

[[noreturn]] inline void fail_mask(const char* name, unsigned mask, Site site, const Group& other)
{
    const Thread& self = *current;
    const Thread& peer = self.block->threads[self.warp * warp_size + __builtin_ctz(other.arrived & mask)];
    fail("mask", "lane %d of warp %d is in %s(mask 0x%08x) (%s:%d) while lane %d, which that mask names, waits in "
         "%s(mask 0x%08x) (%s:%d)", self.lane, self.warp, name, mask, site.file, site.line, peer.lane, peer.waits_in,
         peer.mask, peer.site.file, peer.site.line);
}

// Meet the other lanes of `mask` in the same collective.  Lanes that ended are not waited for.
inline void collective(const char* name, Combine combine, unsigned mask, void* slot, Site site)
{
    Thread& self = *current;
    Block& block = *self.block;
    Warp& warp = block.warps[self.warp];
    const unsigned own = 1u << self.lane;
    if (!(mask & own))
        fail("mask", "%s(mask 0x%08x) (%s:%d): the mask leaves out its own caller, lane %d of warp %d", name, mask,
             site.file, site.line, self.lane, self.warp);
    self.waits_in = name, self.site = site, self.mask = mask;
    warp.slots[self.lane] = slot;
    int at = 0;
    for (; at < warp.open; ++at) {
        const Group& other = warp.groups[at];
        if (other.mask == mask && other.combine == combine) break;
        // Two groups that need a lane of each other never complete.
        if ((other.mask & own) && (other.arrived & mask)) fail_mask(name, mask, site, other);
    }
    if (at == warp.open) warp.groups[warp.open++] = {combine, mask, 0};
    Group& group = warp.groups[at];
    group.arrived |= own;
    self.state = State::warp;
    if (((group.arrived | warp.gone) & mask) == mask) block.complete(warp, at);
    yield(self.state);
}

// The end of a thread may be what the rest of its warp waited for.
inline void Block::left(Thread& thread)
{
    Warp& warp = warps[thread.warp];
    --live;
    progress = true;
    warp.gone |= 1u << thread.lane;
    warp.slots[thread.lane] = nullptr;
    for (int i = 0; i < warp.open; ++i)
        if (((warp.groups[i].arrived | warp.gone) & warp.groups[i].mask) == warp.groups[i].mask) complete(warp, i--);
}

inline unsigned active_mask(Site site)
{
    Thread& self = *current;
    self.waits_in = "__activemask", self.site = site;
    yield(State::active_mask);
    return self.mask;
}

// ---- conditions (mbarrier waits) ----

template <class Ready>
inline void wait_until(Ready ready, const char* name, Site site)
{
    Thread& self = *current;
    while (!ready()) {
        self.waits_in = name, self.site = site;
        yield(State::polling);
    }
    self.block->progress = true;
}

// Let the others run: for spin loops on shared or global memory.
inline void pause()
{
    Thread& self = *current;
    enqueue(*self.block, self.number);
    yield(State::ready);
}

}  // namespace kd_host
#endif
