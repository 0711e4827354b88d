// memory.h: guarded memory: inaccessible pages around it, known bytes (canaries) in what is left of its own pages.
//
// The end of the data lies against the upper guard page, up to the 16-byte alignment of its start: an access a few
// bytes past the end faults at once and is reported with its thread; a stray write between the guard page and the
// data is found when the block ends.
#ifndef KD_HOST_MEMORY_H
#define KD_HOST_MEMORY_H

#include "block.h"
#ifdef __linux__
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <link.h>
#endif

namespace kd_host {

constexpr size_t guard_bytes = 1 << 20;  // inaccessible on either side; costs addresses, not memory

struct Guarded {
    char *region, *area, *data;  // mapping; its accessible part; the data
    size_t region_bytes, area_bytes, bytes;

    bool open(size_t wanted, size_t alignment)
    {
        bytes = wanted;
        const size_t page = page_bytes(), room = round_up(wanted, alignment);
        area_bytes = round_up(room + alignment, page);
        region_bytes = area_bytes + 2 * guard_bytes;
        void* got = mmap(nullptr, region_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
        if (got == MAP_FAILED) return region = nullptr, false;
        region = static_cast<char*>(got);
        area = region + guard_bytes;
        data = area + area_bytes - room;
        if (mprotect(area, area_bytes, PROT_READ | PROT_WRITE) != 0) return false;
        memset(area, canary, size_t(data - area));
        memset(data + bytes, canary, size_t(area + area_bytes - (data + bytes)));
        return true;
    }

    void close()
    {
        if (region) munmap(region, region_bytes);
        region = nullptr;
    }

    void make_read_only() { mprotect(area, area_bytes, PROT_READ); }

    bool owns(const char* address) const { return region && address >= region && address < region + region_bytes; }

    // Whether a canary changed; `offset` from the start of the data.
    bool changed(long long& offset) const
    {
        for (const char* p = data + bytes; p < area + area_bytes; ++p)
            if ((unsigned char)*p != canary) return offset = p - data, true;
        // memcmp with itself, one byte on: all bytes below the data are equal, and the last one is a canary.
        if ((unsigned char)data[-1] == canary && memcmp(area, area + 1, size_t(data - area) - 1) == 0) return false;
        const char* p = data - 1;
        while ((unsigned char)*p == canary) --p;
        while (p > area && (unsigned char)p[-1] != canary) --p;  // where the stray write nearest to the data began
        return offset = p - data, true;
    }
};

// Static shared memory is `static thread_local`, so it is this library's thread-local block, and all of that but
// `current` is shared memory.  Where the block cannot be found (no ELF), static shared memory starts as zeros.
struct StaticShared {
    char* base;
    size_t bytes;

#ifdef __linux__
    static int visit(dl_phdr_info* info, size_t, void* found)
    {
        StaticShared& self = *static_cast<StaticShared*>(found);
        const char* mark = reinterpret_cast<const char*>(&current);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
            if (info->dlpi_phdr[i].p_type != PT_TLS || !info->dlpi_tls_data) continue;
            char* base = static_cast<char*>(info->dlpi_tls_data);
            const size_t bytes = info->dlpi_phdr[i].p_memsz;
            if (mark < base || mark >= base + bytes) continue;
            self.base = base, self.bytes = bytes;
            return 1;
        }
        return 0;
    }
    void find()
    {
        current = nullptr;  // the block exists from the first access on
        base = nullptr;
        dl_iterate_phdr(visit, this);
    }
#else
    void find() { base = nullptr; }
#endif

    void fill() const
    {
        Thread* kept = current;
        if (base) memset(base, poison, bytes);
        current = kept;
    }
};

}  // namespace kd_host
#endif
