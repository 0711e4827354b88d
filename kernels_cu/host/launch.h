// launch.h: run a grid: blocks over operating-system threads, guarded arguments, faults, the C interface.
//
// kdtree_cupy/library/host_run.py is the caller.  start() copies guarded arguments and begins, wait() returns
// after a while so that Python can see Ctrl-C or a timeout, cancel() interrupts even a loop without barriers (by a
// signal to the worker threads), finish() joins, copies results back unless there was a fault, and reports.
#ifndef KD_HOST_LAUNCH_H
#define KD_HOST_LAUNCH_H

#include "kernels.h"
#include "memory.h"
#include "waits.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#define KD_HOST_API extern "C" __attribute__((visibility("default")))

struct KdHostBuffer {
    char* data;
    size_t bytes;
    int guard, writable;
    const char* label;
};

struct KdHostArgument {  // a value, or (buffer >= 0) a pointer `offset` bytes into a buffer
    const void* value;
    long long buffer;
    size_t offset;
};

struct KdHostLaunch {
    const char* kernel;
    unsigned grid[3], block[3];
    int argument_count, buffer_count, worker_count;
    const KdHostArgument* arguments;
    const KdHostBuffer* buffers;
    size_t shared_bytes, stack_bytes;
    long long seed;
};

namespace kd_host {

struct Launch;

struct Worker {
    Launch* launch;
    pthread_t thread;
    Block* block;
    Guarded shared;
    StaticShared static_shared;
    char* signal_stack;
    volatile bool started;
};

constexpr int most_workers = 16, most_arguments = 64;  // as in host_abi.py

struct Launch {
    Kernel* kernel;
    int buffer_count, worker_count;
    KdHostBuffer buffers[most_arguments];
    Guarded guarded[most_arguments];
    alignas(64) char values[4096 + 64 * most_arguments];
    void* arguments[most_arguments];
    long long blocks, next, step, shift;
    volatile int stop, cancelled;
    int running;
    pthread_mutex_t mutex;
    pthread_cond_t done;
    Worker workers[most_workers];
    struct sigaction former[5];
};

constexpr int signals[5] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGURG};
constexpr size_t signal_stack_bytes = 64 * 1024;
inline Launch* volatile launched;  // read by the signal handler; host_run.py runs one launch at a time

// ---- faults of the machine ----

inline void fail_address(Worker& worker, const char* address)
{
    Launch& launch = *worker.launch;
    Block& block = *worker.block;
    if (block.stacks.owns(address))
        fail("stack", "stack overflow: more than %zu bytes of local variables and calls", block.stacks.usable());
    if (worker.shared.owns(address))
        fail("bounds", "access at byte %lld of dynamic shared memory, which has %zu bytes",
             (long long)(address - worker.shared.data), worker.shared.bytes);
    for (int i = 0; i < launch.buffer_count; ++i) {
        const Guarded& memory = launch.guarded[i];
        if (!memory.owns(address)) continue;
        const long long at = address - memory.data;
        if (address >= memory.area && address < memory.area + memory.area_bytes)
            fail("bounds", "write at byte %lld of %s, which is read-only", at, launch.buffers[i].label);
        fail("bounds", "access at byte %lld of %s, which has %zu bytes", at, launch.buffers[i].label, memory.bytes);
    }
    fail("address", "illegal address %p%s", address, size_t(address) < 65536 ? " (a null pointer?)" : "");
}

inline void on_signal(int number, siginfo_t* info, void*)
{
    Launch* launch = launched;
    for (int i = 0; launch && i < launch->worker_count; ++i) {
        Worker& worker = launch->workers[i];
        if (!worker.started || !pthread_equal(worker.thread, pthread_self()) || !worker.block->in_fiber) continue;
        if (number == SIGURG) {
            if (launch->cancelled) fail("timeout", "still running when the launch was cancelled");
            return;
        }
        if (number == SIGFPE) fail("arithmetic", "integer division by zero, or of the smallest integer by -1");
        if (number == SIGILL) fail("trap", "illegal instruction: code that the compiler took for unreachable");
        fail_address(worker, static_cast<const char*>(info->si_addr));
    }
    if (number == SIGURG) return;
    // Not ours: returning runs the faulting instruction again, now under the process's own handler.
    for (int i = 0; launch && i < 5; ++i)
        if (signals[i] == number) sigaction(number, &launch->former[i], nullptr);
}

inline void catch_signals(Launch& launch)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // NODEFER: the handler is left without returning
    launched = &launch;
    for (int i = 0; i < 5; ++i) sigaction(signals[i], &action, &launch.former[i]);
}

inline void restore_signals(Launch& launch)
{
    for (int i = 0; i < 5; ++i) sigaction(signals[i], &launch.former[i], nullptr);
    launched = nullptr;
}

// ---- blocks ----

inline bool check_canaries(Block& block, const Guarded& memory, const char* label)
{
    long long at = 0;
    if (!memory.region || !memory.changed(at)) return true;
    set_fault(block, nullptr, "bounds");
    snprintf(block.fault.text, sizeof block.fault.text, "write at byte %lld of %s, which has %zu bytes", at, label,
             memory.bytes);
    return false;
}

inline void check_canaries(Worker& worker)
{
    Launch& launch = *worker.launch;
    bool whole = check_canaries(*worker.block, worker.shared, "dynamic shared memory");
    for (int i = 0; i < launch.buffer_count && whole; ++i)
        whole = check_canaries(*worker.block, launch.guarded[i], launch.buffers[i].label);
}

inline void run_blocks(Worker& worker)
{
    Launch& launch = *worker.launch;
    Block& block = *worker.block;
    while (!launch.stop) {
        const long long position = __atomic_fetch_add(&launch.next, 1, __ATOMIC_RELAXED);
        if (position >= launch.blocks) break;
        long long at = block.seed < 0 ? launch.blocks - 1 - position : position;
        if (block.seed > 0) at = (long long)(((__int128)position * launch.step + launch.shift) % launch.blocks);
        block.position = position;
        block.index = {unsigned(at % block.grid.x), unsigned(at / block.grid.x % block.grid.y),
                       unsigned(at / block.grid.x / block.grid.y)};
        memset(worker.shared.data, poison, worker.shared.bytes);
        worker.static_shared.fill();
        block.run();
        if (!block.fault.set && !launch.stop) check_canaries(worker);
        if (block.fault.set) launch.stop = 1;
    }
}

inline void* worker_main(void* self)
{
    Worker& worker = *static_cast<Worker*>(self);
    Launch& launch = *worker.launch;
    worker.thread = pthread_self();
    stack_t stack = {};
    stack.ss_sp = worker.signal_stack, stack.ss_size = signal_stack_bytes;
    sigaltstack(&stack, nullptr);
    worker.static_shared.find();
    worker.started = true;
    run_blocks(worker);
    worker.started = false;
    stack.ss_flags = SS_DISABLE;
    sigaltstack(&stack, nullptr);
    pthread_mutex_lock(&launch.mutex);
    if (--launch.running == 0) pthread_cond_signal(&launch.done);
    pthread_mutex_unlock(&launch.mutex);
    return nullptr;
}

inline bool open_worker(Worker& worker, Launch& launch, const KdHostLaunch& request)
{
    worker.launch = &launch;
    worker.signal_stack = static_cast<char*>(__builtin_malloc(signal_stack_bytes));
    void* memory = mmap(nullptr, sizeof(Block), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (memory == MAP_FAILED || !worker.signal_stack) return false;
    Block& block = *(worker.block = static_cast<Block*>(memory));  // zero pages: a Block needs no constructor
    block.count = int(request.block[0] * request.block[1] * request.block[2]);
    block.dim = dim3(request.block[0], request.block[1], request.block[2]);
    block.grid = dim3(request.grid[0], request.grid[1], request.grid[2]);
    block.seed = request.seed;
    block.stop = &launch.stop;
    block.kernel = launch.kernel->call;
    block.arguments = launch.arguments;
    if (!worker.shared.open(request.shared_bytes, 128)) return false;
    block.shared = worker.shared.data, block.shared_bytes = request.shared_bytes;
    return stack_pool.take(block.stacks, request.stack_bytes);
}

inline void close_worker(Worker& worker)
{
    if (worker.block) {
        stack_pool.give(worker.block->stacks);
        munmap(worker.block, sizeof(Block));
    }
    worker.shared.close();
    __builtin_free(worker.signal_stack);
}

inline bool open_arguments(Launch& launch, const KdHostLaunch& request)
{
    launch.buffer_count = request.buffer_count;
    for (int i = 0; i < request.buffer_count; ++i) {
        const KdHostBuffer& buffer = launch.buffers[i] = request.buffers[i];
        if (!buffer.guard) continue;
        if (!launch.guarded[i].open(buffer.bytes, 16)) return false;
        if (buffer.bytes) memcpy(launch.guarded[i].data, buffer.data, buffer.bytes);
        if (!buffer.writable) launch.guarded[i].make_read_only();
    }
    char* value = launch.values;
    for (int i = 0; i < request.argument_count; value += round_up(launch.kernel->sizes[i], 64), ++i) {
        const KdHostArgument& argument = request.arguments[i];
        launch.arguments[i] = value;
        if (argument.buffer < 0) {
            memcpy(value, argument.value, launch.kernel->sizes[i]);
            continue;
        }
        const KdHostBuffer& buffer = launch.buffers[argument.buffer];
        char* base = (buffer.guard ? launch.guarded[argument.buffer].data : buffer.data) + argument.offset;
        memcpy(value, &base, sizeof base);
    }
    return true;
}

inline void close_launch(Launch& launch)
{
    for (int i = 0; i < launch.worker_count; ++i) close_worker(launch.workers[i]);
    for (int i = 0; i < launch.buffer_count; ++i) launch.guarded[i].close();
    pthread_mutex_destroy(&launch.mutex);
    pthread_cond_destroy(&launch.done);
    munmap(&launch, sizeof launch);
}

inline long long common_divisor(long long a, long long b) { return b ? common_divisor(b, a % b) : a; }

// The order of blocks under a positive seed: at = (position * step + shift) mod blocks, step coprime to blocks.
inline void shuffle_blocks(Launch& launch, long long seed)
{
    Random random = {(unsigned long long)seed};
    launch.shift = (long long)(random.next() % (unsigned long long)launch.blocks);
    do launch.step = 1 + (long long)(random.next() % (unsigned long long)launch.blocks);
    while (common_divisor(launch.step, launch.blocks) != 1);
}

}  // namespace kd_host

#endif
