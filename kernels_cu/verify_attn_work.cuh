// verify_attn_work.cuh: which block reads which KV rows for which query rows, and where its result goes.
//
// The rows of a request are its (node, head) pairs, row = node * heads + head; `tile_rows` of them make a tile and
// share every KV row that is read.  The KV rows of a request (prefix, then tree) come in units of KD_UNIT.
//
//   chunk_units == 0  the list of all units is cut into equal pieces, one a block, so that ragged batches balance.
//                     Order of the list: first tiles of all requests, then second tiles, ...; units run fastest.
//                     Each tile's part of the list is cut into the same number of pieces if that leaves few blocks
//                     idle: blocks of different tiles then read the same rows at the same time, from the L2 cache.
//                     (If requests differ much in their number of tiles, all tiles of one request come first.)
//   chunk_units > 0   every tile is cut at multiples of chunk_units, whatever stands beside it in the batch.
//   chunk_units < 0   every tile is cut into -chunk_units equal pieces.
//
// A tile that lies whole in one piece is written at once; else each piece writes a partial result to a slot:
// 2 * block + 1 for the first piece of a tile, 2 * block for later ones, or, with chunks, tile_number * most_chunks +
// chunk.  The block with the first piece notes in `table[tile_number]` where the pieces are, for the combining kernel.
#ifndef KD_VERIFY_ATTN_WORK_CUH
#define KD_VERIFY_ATTN_WORK_CUH

#include "common.cuh"

#ifndef KD_UNIT
#define KD_UNIT 16        // KV rows of one step
#endif
#ifndef KD_SNAP
#define KD_SNAP 2         // units; a shorter piece goes to the neighbour: starting a tile costs more than that
#endif

__device__ __forceinline__ long long quotient(long long a, long long b)   // a >= 0, b > 0; mostly small
{
    return (a | b) >> 32 ? a / b : (long long)((unsigned)a / (unsigned)b);
}

struct Batch {
    const int* lengths;   // [batch] rows of the prefix
    const int* counts;    // [batch] real nodes, or null: all
    int size, nodes, heads;
    int tile_rows, tiles; // tiles: most tiles of one request
    int chunk_units, most_chunks, least_units;
    int kv_heads = 1;     // each has tiles of its own, tile = KV head * head_tiles + ...; `heads` are those of one KV head


    __device__ __forceinline__ int real_nodes(int b) const
    {
        return counts ? min(max(counts[b], 0), nodes) : nodes;
    }
    __device__ __forceinline__ int head_tiles(int b) const { return ceil_div(real_nodes(b) * heads, tile_rows); }
    __device__ __forceinline__ int real_tiles(int b) const { return kv_heads * head_tiles(b); }
    __device__ __forceinline__ int units(int b) const
    {
        return (int)(((unsigned)max(lengths[b], 0) + (unsigned)real_nodes(b) + KD_UNIT - 1u) / KD_UNIT);
    }
    // Units of request b in the list, or in one tile's part of it.
    __device__ __forceinline__ long long work(int b, bool by_tile) const
    {
        if (b >= size) return 0;
        const int count = real_tiles(b);
        return (long long)(by_tile ? count > 0 : count) * units(b);
    }
};

struct Segment {          // lives in shared memory: the main loop has no register to spare for it
    int request, tile, begin, end, step;   // units begin, begin + step, ... before end
    int slot;             // of the partial result; -1: the whole tile is here
    int active;
    int by_tile, pieces;  // pieces of one part
    long long at, stop;   // position in the list of all units (chunk_units == 0) or of all chunks
    long long part;       // units of one tile's part of the list, or of the whole list if that is cut as one
    long long tile_part;  // units of one tile's part of the list
};

struct Place {
    int request, tile, unit, units;
};

// The request, tile and unit at a position of the list.  Whole warp.
__device__ inline Place find_place(const Batch& batch, bool by_tile, long long tile_part, long long at)
{
    const int first_tile = by_tile ? (int)quotient(at, tile_part) : 0;
    at -= first_tile * tile_part;
    if (batch.size == 1) {                         // the usual case at low latency needs no scan
        const int units = batch.units(0), tile = by_tile ? 0 : (int)quotient(at, units);
        return {0, first_tile + tile, (int)(at - (long long)tile * units), units};
    }
    long long before = 0;
    const int lane = lane_id();
    for (int base = 0;; base += 32) {
        long long upto = batch.work(base + lane, by_tile);
#pragma unroll
        for (int d = 1; d < 32; d <<= 1) {
            const long long left = __shfl_up_sync(KD_FULL_MASK, upto, d);
            if (lane >= d) upto += left;
        }
        const unsigned beyond = __ballot_sync(KD_FULL_MASK, before + upto > at);
        if (beyond || base + 32 >= batch.size) {
            const int hit = beyond ? __ffs(beyond) - 1 : 31;
            const long long previous = __shfl_sync(KD_FULL_MASK, upto, max(hit - 1, 0));
            const long long inside = at - before - (hit ? previous : 0);
            const int request = min(base + hit, batch.size - 1), units = batch.units(request);
            const int tile = by_tile ? 0 : (int)quotient(inside, units);
            return {request, first_tile + tile, (int)(inside - (long long)tile * units), units};
        }
        before += __shfl_sync(KD_FULL_MASK, upto, 31);
    }
}

// Where piece k begins before it is moved to the edge of a tile: pieces of a part differ by one unit at most.
__device__ __forceinline__ long long raw_begin(const Segment& s, int k)
{
    const int row = k / s.pieces, j = k - row * s.pieces;
    const long long share = quotient(s.part, s.pieces), rest = s.part - share * s.pieces;
    return row * s.part + j * share + min((long long)j, rest);
}

// The first piece that begins at `at` or later, `at` in the part of piece `block` or at its end.
__device__ __forceinline__ int piece_from(const Segment& s, int block, long long at)
{
    const int row = block / s.pieces;
    const long long share = quotient(s.part, s.pieces), rest = s.part - share * s.pieces, long_part = rest * (share + 1);
    at -= row * s.part;
    return row * s.pieces + (int)(at <= long_part ? quotient(at + share, share + 1)
                                                  : rest + quotient(at - long_part + share - 1, share));
}

__device__ inline long long piece_begin(const Batch& batch, const Segment& s, int k)
{
    const long long raw = raw_begin(s, k);
    if (raw - quotient(raw, s.part) * s.part == 0) return raw;
    const Place place = find_place(batch, s.by_tile, s.tile_part, raw);
    if (place.unit < KD_SNAP) return raw - place.unit;
    return place.units - place.unit < KD_SNAP ? raw + place.units - place.unit : raw;
}

// The usual case at low latency, one request whose tiles are cut alike: the block's only segment, from four divisions.
// False where more is to be thought of.  With `comb` the pieces of a tile take units in turn instead of a run of units
// each: then all blocks read the same region of memory at a time.  Whole warp.
template <bool comb>
__device__ inline bool only_segment(const Batch& batch, int4* table, Segment& segment)
{
    if (batch.size != 1 || batch.chunk_units != 0) return false;
    const unsigned units = batch.units(0), tiles = batch.real_tiles(0), block = blockIdx.x;
    const unsigned long long total = (unsigned long long)units * tiles;
    if (total - 1u >= 1u << 31) return false;
    const unsigned blocks = min(gridDim.x, max((unsigned)total / batch.least_units, tiles)), each = blocks / tiles;
    if (each == 0 || 8 * each * tiles < 7 * blocks) return false;
    const unsigned share = units / each, rest = units - share * each, tile = block / each, k = block - tile * each;
    if (each > 1 && share < KD_SNAP) return false;
    if (lane_id() == 0) {
        const int begin = (int)(k * share + min(k, rest));
        segment.request = 0, segment.tile = (int)tile, segment.active = tile < tiles ? 2 : 0;   // 2: chosen already
        if (comb) segment.begin = (int)k, segment.end = (int)units, segment.step = (int)each;
        else segment.begin = begin, segment.end = begin + (int)(share + (k < rest)), segment.step = 1;
        segment.slot = each == 1 ? -1 : (int)(2 * block + (k == 0)), segment.at = segment.stop = 0;
        if (k == 0 && tile < tiles) table[tile] = make_int4((int)(2 * block + 1), (int)each, 2, 0);
    }
    __syncwarp();
    return true;
}

// Divide the list, before the first next_work; `comb` as above; without `quick` (in both) by the list alone, which
// costs fewer registers.  Whole warp.
template <bool comb = false, bool quick = true>
__device__ inline void first_work(const Batch& batch, int4* table, Segment& segment)
{
    if (quick && only_segment<comb>(batch, table, segment)) return;
    Segment s = {};
    if (batch.chunk_units != 0) {
        s.at = (int)blockIdx.x, s.stop = (long long)batch.size * batch.tiles * batch.most_chunks;
    } else {
        long long exact = 0;
        int tiles = 0, all_tiles = 0;
        for (int b = lane_id(); b < batch.size; b += 32) {
            s.tile_part += batch.work(b, true), exact += batch.work(b, false);
            tiles = max(tiles, batch.real_tiles(b)), all_tiles += batch.real_tiles(b);
        }
        s.tile_part = warp_sum(s.tile_part), exact = warp_sum(exact), tiles = warp_max(tiles), all_tiles = warp_sum(all_tiles);
        s.by_tile = tiles * s.tile_part <= exact + exact / 16;
        const long long total = s.by_tile ? tiles * s.tile_part : exact;
        int blocks = (int)min((long long)gridDim.x, max(quotient(total, batch.least_units), max((long long)all_tiles, 1ll)));
        s.part = total, s.pieces = blocks;
        if (s.by_tile && tiles > 0 && blocks >= tiles) {
            const int each = blocks / tiles;
            if (8 * each * tiles >= 7 * blocks) s.part = s.tile_part, s.pieces = each, blocks = each * tiles;
        }
        if ((int)blockIdx.x < blocks && total > 0) {
#pragma unroll 1
            for (int i = 0; i < 2; ++i) s.at = s.stop, s.stop = piece_begin(batch, s, (int)blockIdx.x + i);
        }
    }
    __syncwarp();
    if (lane_id() == 0) segment = s;
    __syncwarp();
}

__device__ inline void next_balanced(const Batch& batch, int4* table, Segment& segment)
{
    const Segment s = segment;
    __syncwarp();         // all lanes have read it before lane 0 writes
    for (long long at = s.at; at < s.stop;) {
        const Place place = find_place(batch, s.by_tile, s.tile_part, at);
        const int take = (int)min((long long)(place.units - place.unit), s.stop - at);
        const long long begin = at;
        at += take;
        if (place.tile >= batch.real_tiles(place.request)) continue;
        int slot = 2 * (int)blockIdx.x + (place.unit == 0);
        if (place.unit == 0) {
            int pieces = 1;   // the last piece is the first whose end reaches the tile's
            if (take < place.units) pieces = piece_from(s, (int)blockIdx.x, begin + place.units - KD_SNAP + 1) - (int)blockIdx.x;
            if (lane_id() == 0) table[(long long)place.request * batch.tiles + place.tile] = make_int4(slot, pieces, 2, 0);
            if (pieces == 1) slot = -1;
        }
        if (lane_id() == 0) {
            segment.request = place.request, segment.tile = place.tile;
            segment.begin = place.unit, segment.end = place.unit + take, segment.step = 1;
            segment.slot = slot, segment.at = at, segment.active = 1;
        }
        return;
    }
    if (lane_id() == 0) segment.active = 0;
}

__device__ inline void next_chunk(const Batch& batch, int4* table, Segment& segment)
{
    const long long begin = segment.at, stop = segment.stop;
    __syncwarp();         // all lanes have read it before lane 0 writes
    for (long long at = begin; at < stop; at += (int)gridDim.x) {   // tiles fastest: neighbours share KV rows
        const long long column = quotient(at, batch.tiles);
        const int tile = (int)(at - column * batch.tiles);
        const int request = (int)quotient(column, batch.most_chunks);
        const int chunk = (int)(column - (long long)request * batch.most_chunks);
        if (tile >= batch.real_tiles(request)) continue;
        const int units = batch.units(request);
        const int size = batch.chunk_units > 0 ? batch.chunk_units : ceil_div(units, -batch.chunk_units);
        if ((long long)chunk * size >= units) continue;
        const int pieces = ceil_div(units, size);
        const int first = (int)((request * (long long)batch.tiles + tile) * batch.most_chunks);
        if (lane_id() == 0) {
            if (chunk == 0) table[(long long)request * batch.tiles + tile] = make_int4(first, pieces, 1, 0);
            segment.request = request, segment.tile = tile;
            segment.begin = chunk * size, segment.end = min(units, (chunk + 1) * size), segment.step = 1;
            segment.slot = pieces == 1 ? -1 : first + chunk;
            segment.at = at + (int)gridDim.x, segment.active = 1;
        }
        return;
    }
    if (lane_id() == 0) segment.active = 0;
}

// Fill in the block's next segment.  Whole warp; the caller puts barriers around it.
template <bool quick = true>
__device__ __forceinline__ void next_work(const Batch& batch, int4* table, Segment& segment)
{
    if (quick) {
        const bool chosen = segment.active == 2;
        __syncwarp();     // all lanes have read it before lane 0 writes
        if (chosen && lane_id() == 0) segment.active = 1;
        if (chosen) return;
    }
    if (batch.chunk_units == 0) next_balanced(batch, table, segment);
    else next_chunk(batch, table, segment);
}

#endif
