// api.h: the C functions that host_run.py calls through ctypes.
#ifndef KD_HOST_API_H
#define KD_HOST_API_H

#include "launch.h"

KD_HOST_API int kd_host_version() { return 1; }

// Release memory kept for the next launch.
KD_HOST_API void kd_host_trim() { kd_host::stack_pool.close(); }

// Walk the kernels: pass null first, then what came back; null ends.
KD_HOST_API const kd_host::Kernel* kd_host_kernel(const kd_host::Kernel* before)
{
    return before ? before->next : kd_host::kernel_list();
}

KD_HOST_API void* kd_host_start(const KdHostLaunch* request)
{
    using namespace kd_host;
    page_bytes();
    void* memory = mmap(nullptr, sizeof(Launch), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    Launch& launch = *static_cast<Launch*>(memory);
    for (launch.kernel = kernel_list(); launch.kernel; launch.kernel = launch.kernel->next)
        if (strcmp(launch.kernel->name, request->kernel) == 0) break;
    launch.blocks = (long long)request->grid[0] * request->grid[1] * request->grid[2];
    shuffle_blocks(launch, request->seed);
    pthread_mutex_init(&launch.mutex, nullptr);
    pthread_cond_init(&launch.done, nullptr);
    bool ready = launch.kernel && open_arguments(launch, *request);
    while (ready && launch.worker_count < request->worker_count) {
        ready = open_worker(launch.workers[launch.worker_count++], launch, *request);
    }
    if (!ready) return close_launch(launch), nullptr;
    catch_signals(launch);
    sigset_t all, former;
    sigfillset(&all);
    for (int number : signals) sigdelset(&all, number);
    pthread_sigmask(SIG_BLOCK, &all, &former);  // inherited: the process's other signals go to other threads
    launch.running = launch.worker_count;
    for (int i = 0; i < launch.worker_count; ++i) {
        Worker& worker = launch.workers[i];
        if (pthread_create(&worker.thread, nullptr, worker_main, &worker) == 0) continue;
        pthread_mutex_lock(&launch.mutex);
        launch.running -= launch.worker_count - i;  // the threads that did start do all the blocks
        pthread_mutex_unlock(&launch.mutex);
        while (launch.worker_count > i) close_worker(launch.workers[--launch.worker_count]);
    }
    pthread_sigmask(SIG_SETMASK, &former, nullptr);
    if (launch.worker_count == 0) return restore_signals(launch), close_launch(launch), nullptr;
    return memory;
}

// Interrupt all workers.  A signal that meets one between two fibers is ignored: repeat until all have left.
inline void kd_host_interrupt(kd_host::Launch& launch)
{
    launch.cancelled = launch.stop = 1;
    pthread_mutex_lock(&launch.mutex);
    for (int i = 0; i < launch.worker_count && launch.running > 0; ++i)
        if (launch.workers[i].started) pthread_kill(launch.workers[i].thread, SIGURG);
    pthread_mutex_unlock(&launch.mutex);
}

// 1 when the grid is done, 0 when `milliseconds` passed.  After a fault of one block the others are interrupted.
KD_HOST_API int kd_host_wait(void* handle, int milliseconds)
{
    kd_host::Launch& launch = *static_cast<kd_host::Launch*>(handle);
    timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += milliseconds / 1000;
    until.tv_nsec += milliseconds % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) until.tv_sec += 1, until.tv_nsec -= 1000000000L;
    pthread_mutex_lock(&launch.mutex);
    int status = 0;
    while (launch.running > 0 && status == 0) status = pthread_cond_timedwait(&launch.done, &launch.mutex, &until);
    const int done = launch.running == 0;
    pthread_mutex_unlock(&launch.mutex);
    if (!done && launch.stop) kd_host_interrupt(launch);
    return done;
}

KD_HOST_API void kd_host_cancel(void* handle) { kd_host_interrupt(*static_cast<kd_host::Launch*>(handle)); }

// Join, copy results back if all went well, release; 1 and `fault` filled in if a block failed.
KD_HOST_API int kd_host_finish(void* handle, kd_host::Fault* fault)
{
    using namespace kd_host;
    Launch& launch = *static_cast<Launch*>(handle);
    memset(fault, 0, sizeof *fault);
    for (int i = 0; i < launch.worker_count; ++i) {
        pthread_join(launch.workers[i].thread, nullptr);
        const Fault& own = launch.workers[i].block->fault;
        const bool interrupted = strcmp(own.kind, "timeout") == 0;  // tells less than what other blocks did
        const bool first = !fault->set || strcmp(fault->kind, "timeout") == 0 || own.position < fault->position;
        if (own.set && (interrupted ? !fault->set : first)) *fault = own;
    }
    restore_signals(launch);
    if (!fault->set && launch.cancelled) {
        fault->set = true;
        snprintf(fault->kind, sizeof fault->kind, "timeout");
        snprintf(fault->text, sizeof fault->text, "the launch was cancelled");
    }
    for (int i = 0; i < launch.buffer_count && !fault->set; ++i)
        if (launch.guarded[i].region && launch.buffers[i].writable && launch.buffers[i].bytes)
            memcpy(launch.buffers[i].data, launch.guarded[i].data, launch.buffers[i].bytes);
    const int failed = fault->set;
    close_launch(launch);
    return failed;
}

#endif
