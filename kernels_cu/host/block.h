// block.h: one thread block on one operating-system thread: run queue, waits, faults.
//
// Every CUDA thread is a fiber.  A fiber runs until it waits (barrier, warp collective, asynchronous copy) or
// ends; the scheduler then takes the next runnable one.  Nobody runnable while some still wait is a deadlock, and
// is reported with who waits where: a kernel never hangs on a barrier.
#ifndef KD_HOST_BLOCK_H
#define KD_HOST_BLOCK_H

#include "fiber.h"
#include "stacks.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#define KD_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace kd_host {

constexpr int warp_size = 32, most_threads = 1024, most_barriers = 16;
constexpr unsigned char poison = 0xFF, canary = 0xFA;  // NaN as a float; a value that no kernel writes on purpose

inline const char* plain_name(const char* file) { return file[0] == '.' && file[1] == '/' ? file + 2 : file; }

struct Site {
    const char* file;
    int line;
    Site() = default;
    Site(const char* file, int line) : file(plain_name(file)), line(line) {}
};

struct Fault {
    bool set, has_thread;
    char kind[16];
    unsigned block[3], thread[3];
    long long position;  // of the block in launch order: the earliest fault is the one reported
    char text[1600];
};

enum class State : unsigned char { ready, barrier, warp, active_mask, polling, gone };

struct Block;

struct Thread {
    Context context;
    Block* block;
    char* stack;  // null: not started
    uint3 index;
    int number, warp, lane;
    State state;
    const char* waits_in;  // name of the primitive, for reports
    Site site;
    unsigned mask;  // warp collective: mask; active_mask: result
    int barrier;    // number of the barrier waited for
    int result;     // of a barrier with a predicate
    unsigned spins;
};

struct Warp;
using Combine = void (*)(Warp& warp, unsigned lanes);  // reads and writes what the lanes' slots point to

struct Group {  // lanes that wait for one another
    Combine combine;
    unsigned mask, arrived;
};

struct Warp {
    unsigned gone;  // lanes that ended or never existed
    int open;
    Group groups[warp_size];
    void* slots[warp_size];
};

struct Barrier {
    const char* name;
    Site site;
    int first, arrived, expected, sum, all, any;
};

struct Random {  // splitmix64
    unsigned long long state;
    unsigned long long next()
    {
        unsigned long long z = (state += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    unsigned below(unsigned n) { return unsigned(((next() >> 32) * n) >> 32); }
};

struct Block {
    Context scheduler;
    Stacks stacks;
    Thread threads[most_threads];
    Warp warps[most_threads / warp_size];
    Barrier barriers[most_barriers];
    int queue[most_threads], released[most_threads];
    int head, queued, count, live;
    dim3 dim, grid;
    uint3 index;
    long long seed, position;  // seed 0: ascending order, -1: descending, else shuffled
    Random random;
    volatile bool in_fiber;  // a fiber runs and `scheduler` is saved: signals may leave it (set by the fiber itself)
    volatile int* stop;      // of the launch: leave as soon as possible
    bool progress;           // something changed since the polling threads last looked
    char* shared;
    size_t shared_bytes;
    void (*kernel)(void** arguments);
    void** arguments;
    Fault fault;

    void run();
    bool start(Thread& thread);
    void release(int* numbers, int n);
    void release_barrier(int number);
    void complete(Warp& warp, int group);
    void left(Thread& thread);
    bool wake();
    void report_deadlock();
};

// The running thread.  All other thread_local data of the library is static __shared__ memory (see poison_shared).
static thread_local Thread* current;

inline void yield(State state)
{
    Thread& self = *current;
    self.state = state;
    self.block->in_fiber = false;
    context_switch(self.context, self.block->scheduler);
    self.block->in_fiber = true;
}

inline void set_fault(Block& block, const Thread* thread, const char* kind)
{
    Fault& fault = block.fault;
    fault.set = true;
    fault.has_thread = thread != nullptr;
    snprintf(fault.kind, sizeof fault.kind, "%s", kind);
    fault.block[0] = block.index.x, fault.block[1] = block.index.y, fault.block[2] = block.index.z;
    if (thread) fault.thread[0] = thread->index.x, fault.thread[1] = thread->index.y, fault.thread[2] = thread->index.z;
    fault.position = block.position;
}

// Report a fault of the running thread and leave its block for good; the stacks are simply abandoned.
[[noreturn]] inline void fail(const char* kind, const char* format, ...)
{
    Thread& self = *current;
    set_fault(*self.block, &self, kind);
    va_list list;
    va_start(list, format);
    vsnprintf(self.block->fault.text, sizeof self.block->fault.text, format, list);
    va_end(list);
    self.block->in_fiber = false;
    context_switch(self.context, self.block->scheduler);
    __builtin_unreachable();
}

// ---- run queue ----

inline void enqueue(Block& block, int number)
{
    block.threads[number].state = State::ready;
    int slot = block.head + block.queued++;
    block.queue[slot >= block.count ? slot - block.count : slot] = number;
}

// Make threads runnable in the order that the seed asks for.
inline void Block::release(int* numbers, int n)
{
    progress = true;
    if (seed < 0)
        for (int i = n - 1; i >= 0; --i) enqueue(*this, numbers[i]);
    else {
        if (seed > 0)
            for (int i = n - 1; i > 0; --i) {
                int j = int(random.below(unsigned(i + 1))), swap = numbers[i];
                numbers[i] = numbers[j], numbers[j] = swap;
            }
        for (int i = 0; i < n; ++i) enqueue(*this, numbers[i]);
    }
}

inline void fiber_main()
{
    Block& block = *current->block;
    block.in_fiber = true;
    block.kernel(block.arguments);
    block.left(*current);
    yield(State::gone);
    __builtin_unreachable();
}

inline bool Block::start(Thread& thread)
{
    thread.stack = stacks.take();
    if (!thread.stack) {
        set_fault(*this, &thread, "memory");
        snprintf(fault.text, sizeof fault.text, "no memory for another stack of %zu bytes", stacks.usable());
        return false;
    }
    context_make(thread.context, thread.stack, stacks.usable() - stacks.colour(thread.stack), fiber_main);
    return true;
}

inline void Block::run()
{
    const int warp_count = (count + warp_size - 1) / warp_size;
    random.state = (unsigned long long)seed * 0x2545f4914f6cdd1dull + (unsigned long long)position;
    head = queued = 0;
    live = count;
    memset(warps, 0, sizeof(Warp) * size_t(warp_count));
    memset(barriers, 0, sizeof barriers);
    if (count % warp_size) warps[warp_count - 1].gone = ~0u << (count % warp_size);
    for (int i = 0; i < count; ++i) {
        Thread& thread = threads[i];
        thread.block = this;
        thread.stack = nullptr;
        thread.number = i, thread.warp = i / warp_size, thread.lane = i % warp_size;
        thread.index = {unsigned(i) % dim.x, unsigned(i) / dim.x % dim.y, unsigned(i) / (dim.x * dim.y)};
        released[i] = i;
    }
    release(released, count);
    while (live > 0 && !*stop && (queued > 0 || wake())) {
        Thread& thread = threads[queue[head]];
        head = head + 1 == count ? 0 : head + 1;
        --queued;
        if (!thread.stack && !start(thread)) return;
        current = &thread;
        context_switch(scheduler, thread.context);
        if (fault.set) return;
        if (thread.state == State::gone) stacks.give(thread.stack);
    }
}

// Nobody is runnable: let the callers of __activemask go together, then those that poll; else it is a deadlock.
inline bool Block::wake()
{
    int n = 0;
    for (int i = 0; i < count && n == 0; ++i) {
        if (threads[i].state != State::active_mask) continue;
        unsigned mask = 0;
        const int end = (threads[i].warp + 1) * warp_size;
        for (int j = i; j < end && j < count; ++j)
            if (threads[j].state == State::active_mask && threads[j].site.line == threads[i].site.line)
                mask |= 1u << threads[j].lane, released[n++] = j;
        for (int j = 0; j < n; ++j) threads[released[j]].mask = mask;
    }
    if (n == 0 && progress)
        for (int i = 0; i < count; ++i)
            if (threads[i].state == State::polling) released[n++] = i;
    if (n == 0) return report_deadlock(), false;
    const bool polled = threads[released[0]].state == State::polling;
    release(released, n);
    progress = !polled;
    return true;
}

}  // namespace kd_host
#endif
