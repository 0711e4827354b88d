// verify_attn_heads_groups_copy.cuh: part of struct HeadGroups: the group that chooses segments and copies keys and values.

    __device__ __forceinline__ bool choose_item() const
    {
        mbarrier_wait(item_empty(segments), (segments >> 1 & 1) ^ 1);
        if (warp == 0) {                   // the place in the list goes from item to item
            if (segments > 0 && lane == 0) item().segment = item(segments - 1).segment;
            __syncwarp();
            next_head_item<true>(call, item());
        }
        named_barrier(1, 128);
        mbarrier_arrive(item_full(segments));
        return item().segment.active;
    }

    // Number of row t in the caches, or ~number in the tree.  No cache has 2^31 rows: one has 128 bytes at least.
    // Rows from `total` on are copies of the last real one: finite, and masked.
    __device__ __forceinline__ int row_number(int t) const
    {
        const KvRows<E>& rows = item().keys;
        t = min(t, rows.total - 1);
        if (rows.tree && t >= rows.length) return ~(t - rows.length);
        if (!rows.pages) return t;
        const int page = t / rows.page_size;
        return (rows.pages[page] - page) * rows.page_size + t;
    }

    __device__ __forceinline__ void find_rows(int u, int (&found)[rounds]) const
    {
#pragma unroll
        for (int i = 0; i < rounds; ++i) found[i] = row_number(u * KD_UNIT + 16 * i + (thread >> 3));
    }

    // Eight threads copy a row, 16 bytes of each block of it.
    __device__ __forceinline__ void copy_row(int i, const char* keys, const char* values) const
    {
        const int row = 16 * i + (thread >> 3);
        const shared_address to = unit(stage) + row * 128 + (((thread & 7) ^ (row & 7)) << 4);
#pragma unroll
        for (int block = 0; block < L::blocks; ++block) {
            copy_async_16(to + block * L::block_bytes, keys + 128 * block);
            copy_async_16(to + (L::blocks + block) * L::block_bytes, values + 128 * block);
        }
    }

    __device__ __forceinline__ void copy_unit(const int (&found)[rounds]) const
    {
        const HeadItem<E>& it = item();
        const unsigned row_bytes = call.width * (unsigned)sizeof(E);
#pragma unroll
        for (int i = 0; i < rounds; ++i) {
            const bool in_tree = found[i] < 0;
            const unsigned long long from = (unsigned long long)(unsigned)(in_tree ? ~found[i] : found[i]) * row_bytes + 16 * (thread & 7);
            copy_row(i, reinterpret_cast<const char*>(in_tree ? it.keys.tree : it.keys.cache) + from,
                     reinterpret_cast<const char*>(in_tree ? it.tree_values : it.values) + from);
        }
    }

    // Units that lie whole in a prefix without pages: rows follow one another, and an address costs one addition.
    __device__ __forceinline__ int copy_plain_units(int u, int end)
    {
        const HeadItem<E>& it = item();
        const int stop = it.keys.pages ? u : min(end, it.keys.length / KD_UNIT);
        if (u >= stop) return u;
        const long long row_bytes = (long long)call.width * (int)sizeof(E), step = 16 * row_bytes;
        const long long from = ((long long)u * KD_UNIT + (thread >> 3)) * row_bytes + 16 * (thread & 7);
        const char *keys = reinterpret_cast<const char*>(it.keys.cache) + from, *values = reinterpret_cast<const char*>(it.values) + from;
#pragma unroll 1
        for (; u < stop; ++u) {
            mbarrier_wait(empty(stage), phase ^ 1);
#pragma unroll
            for (int i = 0; i < rounds; ++i, keys += step, values += step) copy_row(i, keys, values);
            warp_arrive(full(stage));
            copy_async_arrive(full(stage));
            advance();
        }
        return u;
    }

    // Bit j of a row of the tile: it sees KV row KD_UNIT * u + j.
    __device__ __forceinline__ void note_seen(int u) const
    {
        const HeadItem<E>& it = item();
        const int real_rows = it.real * call.batch().heads - it.first_row;
#pragma unroll 1
        for (int row = thread; row < min(L::rows, real_rows); row += 128) {
            const int node = own_row(row) / call.batch().heads, words = call.keys.words;
            const unsigned* mask = call.keys.mask + ((long long)it.segment.request * call.batch().nodes + node) * words;
#pragma unroll
            for (int word = 0; word < KD_UNIT / 32; ++word)
                seen(stage, row)[word] = visible_rows(mask, words, u * KD_UNIT + 32 * word, it.keys.length, it.keys.total);
        }
    }

    // Piece `i` of 16 bytes of this thread's rows of 8-bit numbers, of the unit whose rows have been found.
    __device__ __forceinline__ uint4 narrow_piece(const int (&found)[rounds], int i) const
    {
        const HeadItem<E>& it = item();
        const int number = found[i / L::blocks], part = (thread & 7) + 8 * (i % L::blocks), in_row = part % (KD_HEAD / 16);
        const E* keys = number < 0 ? it.keys.tree : it.keys.cache;
        const E* values = number < 0 ? it.tree_values : it.values;
        const long long from = (long long)(number < 0 ? ~number : number) * call.width + 16 * in_row;
        return *reinterpret_cast<const uint4*>((part < KD_HEAD / 16 ? keys : values) + from);
    }

    __device__ __forceinline__ void store_wide(uint4 from, int i) const
    {
        const int row = 16 * (i / L::blocks) + (thread >> 3), part = (thread & 7) + 8 * (i % L::blocks);   // blocks of 64: 4 parts
        unsigned char* to = shared + stage * L::unit_bytes + part / 4 * L::block_bytes + row * 128;
        uint4 low, high;
        widen_piece(from, low, high);
        *reinterpret_cast<uint4*>(to + ((2 * (part % 4) ^ (row & 7)) << 4)) = low;
        *reinterpret_cast<uint4*>(to + (((2 * (part % 4) + 1) ^ (row & 7)) << 4)) = high;
    }

    // 8-bit rows come through registers: a piece of the next unit is under way as soon as one of this is stored.
    __device__ __forceinline__ void widen_segment()
    {
        constexpr int loads = rounds * L::blocks;
        const int end = item().segment.end;
        int found[rounds];
        uint4 loaded[loads];
        find_rows(item().segment.begin, found);
#pragma unroll
        for (int i = 0; i < loads; ++i) loaded[i] = narrow_piece(found, i);
#pragma unroll 1
        for (int u = item().segment.begin; u < end; ++u) {
            find_rows(min(u + 1, end - 1), found);
            mbarrier_wait(empty(stage), phase ^ 1);
#pragma unroll
            for (int i = 0; i < loads; ++i) store_wide(loaded[i], i), loaded[i] = narrow_piece(found, i);
            if ((u + 1) * KD_UNIT > item().keys.length) note_seen(u);
            fence_async_proxy();
            warp_arrive(full(stage));
            mbarrier_arrive(full(stage));
            advance();
        }
    }

    __device__ __forceinline__ void copy_segment()
    {
        if constexpr (narrow) {
            widen_segment();
            return;
        }
        const HeadItem<E>& it = item();
        const int end = it.segment.end;
        int u = copy_plain_units(it.segment.begin, end), found[rounds];
        if (u < end) find_rows(u, found);
#pragma unroll 1
        for (; u < end; ++u) {
            mbarrier_wait(empty(stage), phase ^ 1);
            copy_unit(found);
            if ((u + 1) * KD_UNIT > it.keys.length) note_seen(u);
            warp_arrive(full(stage));
            copy_async_arrive(full(stage));
            if (u + 1 < end) find_rows(u + 1, found);
            advance();
        }
    }
