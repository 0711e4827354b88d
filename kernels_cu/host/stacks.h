// stacks.h: memory for fibers.  Each stack has an inaccessible page below it: an overflow faults at once, and
// launch.h reports it.
#ifndef KD_HOST_STACKS_H
#define KD_HOST_STACKS_H

#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

namespace kd_host {

inline size_t page_bytes()
{
    static const size_t bytes = size_t(sysconf(_SC_PAGESIZE));
    return bytes;
}

inline size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// The stacks of one operating-system thread.  A stack is made accessible when it is first taken and reused last
// in, first out: a kernel without barriers runs all its threads on one warm stack.
struct Stacks {
    char* base;
    static constexpr int capacity = 1024;  // threads of the largest block
    size_t stride;  // guard page included
    int fresh, free_count;
    int* free_list;

    bool open(size_t bytes)
    {
        stride = round_up(bytes, page_bytes()) + page_bytes();
        fresh = free_count = 0;
        void* got = mmap(nullptr, stride * size_t(capacity), PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
        base = got == MAP_FAILED ? nullptr : static_cast<char*>(got);
        free_list = static_cast<int*>(__builtin_malloc(sizeof(int) * size_t(capacity)));
        return base && free_list;
    }

    // All stacks are free again, also those of fibers that were abandoned.
    void reset()
    {
        for (free_count = 0; free_count < fresh; ++free_count) free_list[free_count] = fresh - 1 - free_count;
    }

    void close()
    {
        if (base) munmap(base, stride * size_t(capacity));
        __builtin_free(free_list);
    }

    // Lowest usable byte of a stack, or null when the system refuses more memory.
    char* take()
    {
        if (free_count > 0) return base + stride * size_t(free_list[--free_count]) + page_bytes();
        char* low = base + stride * size_t(fresh) + page_bytes();
        if (mprotect(low, stride - page_bytes(), PROT_READ | PROT_WRITE) != 0) return nullptr;
        ++fresh;
        return low;
    }

    void give(char* low) { free_list[free_count++] = int(size_t(low - base) / stride); }

    size_t usable() const { return stride - page_bytes(); }

    // Bytes to leave unused at the top: were all stacks alike, their hot lines would fight for one cache set.
    size_t colour(const char* low) const { return size_t(low - base) / stride % 32 * 128; }

    bool owns(const char* address) const
    {
        return base && address >= base && address < base + stride * size_t(capacity);
    }
};

constexpr int most_kept = 16;

// Stacks are kept from launch to launch: their pages are mapped and warm.
struct StackPool {
    pthread_mutex_t mutex;
    int count;
    Stacks kept[most_kept];

    bool take(Stacks& stacks, size_t bytes)
    {
        pthread_mutex_lock(&mutex);
        int at = count - 1;
        while (at >= 0 && kept[at].usable() != round_up(bytes, page_bytes())) --at;
        if (at >= 0) {
            stacks = kept[at];
            kept[at] = kept[--count];
        }
        pthread_mutex_unlock(&mutex);
        return at >= 0 || stacks.open(bytes);
    }

    void give(Stacks& stacks)
    {
        pthread_mutex_lock(&mutex);
        const bool room = stacks.base && count < most_kept;
        if (room) {
            stacks.reset();
            kept[count++] = stacks;
        }
        pthread_mutex_unlock(&mutex);
        if (!room) stacks.close();
    }

    void close()
    {
        pthread_mutex_lock(&mutex);
        while (count > 0) kept[--count].close();
        pthread_mutex_unlock(&mutex);
    }
};

inline StackPool stack_pool = {PTHREAD_MUTEX_INITIALIZER, 0, {}};

}  // namespace kd_host
#endif
