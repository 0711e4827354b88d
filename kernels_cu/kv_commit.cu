// kv_commit.cu: keep the KV of the accepted path: its rows move from tree slots to the end of the prefix, in all layers.
//
// Algorithm  v1: one block a request; 32 bytes of all its rows at a time go to shared memory and from there to their places.
//            v2: a block takes a run of columns of one request; columns are pieces of `unit` bytes, numbered through all
//            layers.  It holds all rows of some columns in registers before it writes any.  Columns do not depend on
//            each other, so blocks need not wait for one another.
// Inputs     path (b, width) int32; path_length, lengths (b,) int32; page_table (b, max_pages) int32 or null; any values.
//            Layer l of the cache starts at cache_table[l], or, if that is null, at caches + l * layer_bytes; it holds
//            pages * page_size rows of row_bytes: row `slot` of page `page_table[b][position / page_size]`, or without a
//            table page b.  tree_kv likewise: row b * nodes + node; nodes < 0: node i is position lengths[b] + i.
//            All addresses, row_bytes and strides are multiples of `unit` (1, 2, 4, 8 or 16)
// Outputs    the cache; new_lengths, status (b,) int32.  tickets (b,) uint32: zero before and after
// Launch     kv_commit_v1: grid b, block 32, dynamic shared 32 * KD_MAX_NODES
// Launch     kv_commit_v2: grid b * ceil(layers * row_bytes / (unit * columns)), block KD_COMMIT_THREADS, dynamic shared 0;
//            width <= KD_MAX_NODES <= KD_COMMIT_THREADS * KD_COMMIT_HELD
// Aliasing   new_lengths may be lengths; sources and targets of one request may overlap; requests must not share rows
//            that are written
// Numerics   bytes are moved.  A row without a place (full cache, missing page, node outside the tree, path_length
//            outside 0..width): nothing of that request moves, bit 4
// Bytes      2 * row_bytes * layers * (rows whose place changes)
#include "common.cuh"

#ifndef KD_MAX_NODES
#define KD_MAX_NODES 1025
#endif
#ifndef KD_STATUS_CAPACITY
#define KD_STATUS_CAPACITY 16
#endif
#define KD_COMMIT_THREADS 256
#define KD_COMMIT_HELD 6  // pieces that a thread holds
#define KD_COMMIT_ROWS 8  // rows of a column that one thread can hold

typedef long long RowNumber;
#define KD_NO_ROW RowNumber(-1)

// Where rows are; the same for all layers.
struct Layout {
    const int* page_table;
    int pages, page_size, max_pages, nodes;

    __device__ RowNumber of_position(int b, RowNumber position) const
    {
        if (position < 0) return KD_NO_ROW;
        if (!page_table) return position < page_size ? RowNumber(b) * page_size + position : KD_NO_ROW;
        const RowNumber column = position / page_size;
        if (column >= max_pages) return KD_NO_ROW;
        const int page = page_table[RowNumber(b) * max_pages + column];
        return page >= 0 && page < pages ? RowNumber(page) * page_size + position % page_size : KD_NO_ROW;
    }
    __device__ RowNumber of_node(int b, int length, int node) const
    {
        if (node < 0) return KD_NO_ROW;
        if (nodes < 0) return of_position(b, RowNumber(length) + node);
        return node < nodes ? RowNumber(b) * nodes + node : KD_NO_ROW;
    }
};

struct Moves {
    long long from[KD_MAX_NODES], to[KD_MAX_NODES];  // bytes from the start of a layer
};

// All threads: fill in the moves of request b; returns how many, or -1 if one has no place.  Ends with a barrier.
__device__ inline int plan(Moves& moves, const Layout& layout, const int* path, int count, int width, int length, int b,
    int row_bytes)
{
    const int* own_path = path + RowNumber(b) * width;
    const int t = int(threadIdx.x), own_node = t < width ? own_path[t] : -1;  // read while count and length are on their way
    int bad = count < 0 || count > width;
    for (int j = t; j < count && !bad; j += int(blockDim.x)) {
        const RowNumber to = layout.of_position(b, RowNumber(length) + j);
        const RowNumber from = layout.of_node(b, length, j == t ? own_node : own_path[j]);
        bad |= to < 0 || from < 0;
        moves.to[j] = to * row_bytes, moves.from[j] = from * row_bytes;
    }
    return __syncthreads_or(bad) ? -1 : count;
}

// The start of a layer: from a table, or at equal distances.
__device__ inline unsigned char* layer_start(void* start, const long long* table, long long bytes, int layer)
{
    return table ? reinterpret_cast<unsigned char*>(table[layer]) : static_cast<unsigned char*>(start) + layer * bytes;
}

extern "C" __global__ void __launch_bounds__(32)
kv_commit_v1(void* caches, const long long* __restrict__ cache_table, void* tree_kv, const long long* __restrict__ tree_table,
    const int* __restrict__ path, const int* __restrict__ path_length, const int* lengths,
    const int* __restrict__ page_table, int* new_lengths, int* __restrict__ status, long long layer_bytes,
    long long tree_layer_bytes, int layers, int width, int nodes, int pages, int page_size, int max_pages, int row_bytes)
{
    __shared__ Moves moves;
    DYN_SHARED(unsigned char, held);  // [row][thread]
    const int b = int(blockIdx.x), t = int(threadIdx.x), length = lengths[b];
    const int count = plan(moves, {page_table, pages, page_size, max_pages, nodes}, path, path_length[b], width, length, b, row_bytes);
    for (int layer = 0; layer < layers; ++layer) {
        unsigned char* to = layer_start(caches, cache_table, layer_bytes, layer);
        const unsigned char* from = nodes < 0 ? to : layer_start(tree_kv, tree_table, tree_layer_bytes, layer);
        for (int column = t; column < row_bytes; column += 32) {
            for (int j = 0; j < count; ++j) held[j * 32 + t] = from[moves.from[j] + column];
            for (int j = 0; j < count; ++j) to[moves.to[j] + column] = held[j * 32 + t];
        }
    }
    __syncthreads();
    if (t == 0) new_lengths[b] = length + max(count, 0), status[b] = count < 0 ? KD_STATUS_CAPACITY : 0;
}

// Where layers start, in the cache and in what rows come from.
struct Places {
    void* caches;
    const long long* cache_table;
    void* tree_kv;
    const long long* tree_table;
    long long layer_bytes, tree_layer_bytes;
    bool same;  // rows come from the cache itself

    __device__ unsigned char* to(int layer) const { return layer_start(caches, cache_table, layer_bytes, layer); }
    __device__ const unsigned char* from(int layer) const
    {
        return same ? to(layer) : layer_start(tree_kv, tree_table, tree_layer_bytes, layer);
    }
};

// Whether row j changes its place: the root's often does not.
__device__ __forceinline__ bool moved(const Moves& moves, const Places& places, int j)
{
    return !places.same || moves.from[j] != moves.to[j];
}

// Where a column lies: in which layer, and where in a row.
struct Column {
    unsigned char* to;
    const unsigned char* from;

    __device__ Column(const Places& places, int piece, int in_row, int unit)
    {
        const int layer = piece / in_row, at = (piece - layer * in_row) * unit;
        to = places.to(layer) + at;
        from = places.same ? to : places.from(layer) + at;
    }
};

// Move pieces first..end-1 of up to KD_COMMIT_ROWS rows: a thread has all rows of a column.
template <class Piece>
__device__ __forceinline__ void move_columns(const Places& places, const Moves& moves, int count, int first, int end,
    int row_bytes, Column column)
{
    const int in_row = row_bytes / int(sizeof(Piece));
#pragma unroll 1
    for (int piece = first + int(threadIdx.x); piece < end; piece += KD_COMMIT_THREADS) {
        if (piece >= first + KD_COMMIT_THREADS) column = Column(places, piece, in_row, int(sizeof(Piece)));
        Piece held[KD_COMMIT_ROWS];
#pragma unroll
        for (int j = 0; j < KD_COMMIT_ROWS; ++j)
            if (j < count && moved(moves, places, j)) held[j] = *reinterpret_cast<const Piece*>(column.from + moves.from[j]);
#pragma unroll
        for (int j = 0; j < KD_COMMIT_ROWS; ++j)
            if (j < count && moved(moves, places, j)) *reinterpret_cast<Piece*>(column.to + moves.to[j]) = held[j];
    }
}

// Move pieces first..end-1 of all rows: threads share columns.
template <class Piece>
__device__ __noinline__ void move_pieces(Places places, const Moves& moves, int count, int first, int end,
    int row_bytes)
{
    const int in_row = row_bytes / int(sizeof(Piece)), columns = KD_COMMIT_THREADS * KD_COMMIT_HELD / count;
    for (int base = first; base < end; base += columns) {
        const int own = min(columns, end - base), total = count * own;
        Piece held[KD_COMMIT_HELD];
        Piece* to[KD_COMMIT_HELD];
#pragma unroll
        for (int i = 0; i < KD_COMMIT_HELD; ++i) {
            const int item = int(threadIdx.x) + i * KD_COMMIT_THREADS, j = item / own, piece = base + item - j * own;
            to[i] = nullptr;
            if (item >= total || !moved(moves, places, j)) continue;
            const int layer = piece / in_row, at = (piece - layer * in_row) * int(sizeof(Piece));
            to[i] = reinterpret_cast<Piece*>(places.to(layer) + moves.to[j] + at);
            held[i] = *reinterpret_cast<const Piece*>(places.from(layer) + moves.from[j] + at);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < KD_COMMIT_HELD; ++i)
            if (to[i]) *to[i] = held[i];
    }
}

// What the end of the kernel needs, out of registers meanwhile.
struct Rest {
    int request, blocks, length;
};

template <class Piece>
__device__ __forceinline__ void move(const Places& places, const Moves& moves, int count, int first, int end, int row_bytes,
    const Column& column)
{
    if (count <= KD_COMMIT_ROWS) move_columns<Piece>(places, moves, count, first, end, row_bytes, column);
    else move_pieces<Piece>(places, moves, count, first, end, row_bytes);
}

extern "C" __global__ void __launch_bounds__(KD_COMMIT_THREADS, 4)
kv_commit_v2(void* caches, const long long* __restrict__ cache_table, void* tree_kv, const long long* __restrict__ tree_table,
    const int* __restrict__ path, const int* __restrict__ path_length, const int* lengths,
    const int* __restrict__ page_table, int* new_lengths, int* __restrict__ status, unsigned* tickets, long long layer_bytes,
    long long tree_layer_bytes, int layers, int width, int nodes, int pages, int page_size, int max_pages, int row_bytes,
    int unit, int columns)
{
    __shared__ Moves moves;
    __shared__ Rest rest;
    const int pieces = layers * (row_bytes / unit), blocks = ceil_div(pieces, columns);
    const int b = int(blockIdx.x) / blocks, first = (int(blockIdx.x) - b * blocks) * columns, end = min(first + columns, pieces);
    const int length = lengths[b];
    if (threadIdx.x == 0) rest = {b, blocks, length};
    const Places places = {caches, cache_table, tree_kv, tree_table, layer_bytes, tree_layer_bytes, nodes < 0};
    const Column column(places, min(first + int(threadIdx.x), pieces - 1), row_bytes / unit, unit);
    const int count =
        plan(moves, {page_table, pages, page_size, max_pages, nodes}, path, path_length[b], width, length, b, row_bytes);
    if (count > 0) {
        if (unit == 16) move<uint4>(places, moves, count, first, end, row_bytes, column);
        else if (unit == 8) move<uint2>(places, moves, count, first, end, row_bytes, column);
        else if (unit == 4) move<unsigned>(places, moves, count, first, end, row_bytes, column);
        else if (unit == 2) move<unsigned short>(places, moves, count, first, end, row_bytes, column);
        else move<unsigned char>(places, moves, count, first, end, row_bytes, column);
    }
    // All blocks of a request read its length before the last one writes it: new_lengths may be lengths.
    __syncthreads();
    if (threadIdx.x != 0) return;
    const Rest own = rest;
    if (own.blocks > 1 && atomicInc(&tickets[own.request], unsigned(own.blocks - 1)) != unsigned(own.blocks - 1)) return;
    new_lengths[own.request] = own.length + max(count, 0), status[own.request] = count < 0 ? KD_STATUS_CAPACITY : 0;
}
