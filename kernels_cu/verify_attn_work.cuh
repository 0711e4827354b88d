// verify_attn_work.cuh: which block reads which KV rows for which query rows, and where its result goes.
//
// The rows of a request are its (node, head) pairs, row = node * heads + head; `tile_rows` of them make a tile and
// share every KV row that is read.  The KV rows of a request (prefix, then tree) come in units of KD_UNIT.  Work is
// the list of all (request, tile, unit), units running fastest:
//
//   chunk_units == 0  the list is cut into equal pieces, one a block, so that ragged batches balance.  A tile that
//                     lies whole in one piece is written at once; else each piece writes a partial result.
//   chunk_units > 0   every tile is cut at multiples of chunk_units, whatever stands beside it in the batch.
//   chunk_units < 0   every tile is cut into -chunk_units equal pieces.
//
// A partial result has a slot: 2 * block + 1 for the first piece of a tile, 2 * block for later ones, or, with
// chunks, tile_number * most_chunks + chunk.  The block with the first piece notes in `table[tile_number]` how many
// there are and where, for the kernel that combines them in ascending order.
#ifndef KD_VERIFY_ATTN_WORK_CUH
#define KD_VERIFY_ATTN_WORK_CUH

#include "common.cuh"

#ifndef KD_UNIT
#define KD_UNIT 16        // KV rows of one step
#endif
#define KD_SNAP 2         // a piece shorter than this goes to the neighbour: starting a tile costs more than that

struct Batch {
    const int* lengths;   // [batch] rows of the prefix
    const int* counts;    // [batch] real nodes, or null: all
    int size, nodes, heads;
    int tile_rows, tiles; // tiles: most tiles of one request
    int chunk_units, most_chunks, least_units;

    __device__ __forceinline__ int real_nodes(int b) const
    {
        return counts ? min(max(counts[b], 0), nodes) : nodes;
    }
    __device__ __forceinline__ int real_tiles(int b) const { return ceil_div(real_nodes(b) * heads, tile_rows); }
    __device__ __forceinline__ int units(int b) const
    {
        return (int)(((long long)max(lengths[b], 0) + real_nodes(b) + KD_UNIT - 1) / KD_UNIT);
    }
    __device__ __forceinline__ long long work(int b) const { return (long long)real_tiles(b) * units(b); }
};

struct Segment {          // lives in shared memory: the main loop has no register to spare for it
    int request, tile, begin, end;
    int slot;             // of the partial result; -1: the whole tile is here
    int active;
    long long at, stop;   // position in the list of all units (chunk_units == 0) or of all chunks
    long long total;
    int blocks;
};

struct Place { int request, tile, unit; long long tile_begin; };

// The request, tile and unit at position `at` of the list; `at` < total.  Whole warp.
__device__ inline Place find_place(const Batch& batch, long long at)
{
    long long before = 0;
    const int lane = lane_id();
    for (int base = 0;; base += 32) {
        const int b = base + lane;
        long long upto = b < batch.size ? batch.work(b) : 0;
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
            const int tile = (int)(inside / units);
            const int unit = (int)(inside - (long long)tile * units);
            return {request, tile, unit, at - unit};
        }
        before += __shfl_sync(KD_FULL_MASK, upto, 31);
    }
}

// Where piece `piece` of `blocks` begins: an equal share, moved to the edge of a tile that is less than KD_SNAP away.
__device__ inline long long piece_begin(const Batch& batch, long long total, int blocks, int piece)
{
    const long long raw = total * piece / blocks;
    if (raw <= 0 || raw >= total) return raw <= 0 ? 0 : total;
    const Place place = find_place(batch, raw);
    if (place.unit < KD_SNAP) return place.tile_begin;
    const int units = batch.units(place.request);
    return units - place.unit < KD_SNAP ? place.tile_begin + units : raw;
}

__device__ inline void first_work(const Batch& batch, Segment& segment)
{
    long long total = 0, at = blockIdx.x, stop;
    int blocks = (int)gridDim.x;
    if (batch.chunk_units == 0) {
        for (int b = lane_id(); b < batch.size; b += 32) total += batch.work(b);
        total = warp_sum(total);
        blocks = (int)min((long long)blocks, max(total / batch.least_units, 1ll));
        const bool idle = (int)blockIdx.x >= blocks || total == 0;
        at = idle ? 0 : piece_begin(batch, total, blocks, (int)blockIdx.x);
        stop = idle ? 0 : piece_begin(batch, total, blocks, (int)blockIdx.x + 1);
    } else {
        stop = (long long)batch.size * batch.tiles * batch.most_chunks;
    }
    __syncwarp();
    if (lane_id() == 0) segment.at = at, segment.stop = stop, segment.total = total, segment.blocks = blocks;
    __syncwarp();
}

// Note the pieces of a tile for the combining kernel: slot of the first, their number, distance of later slots.
__device__ __forceinline__ void note_pieces(int4* table, const Batch& batch, int request, int tile, int4 note)
{
    if (lane_id() == 0) table[(long long)request * batch.tiles + tile] = note;
}

__device__ inline void next_balanced(const Batch& batch, int4* table, Segment& segment)
{
    const long long at = segment.at, stop = segment.stop;
    __syncwarp();  // all lanes have read it before lane 0 writes
    if (at >= stop) {
        if (lane_id() == 0) segment.active = 0;
        return;
    }
    const Place place = find_place(batch, at);
    const int units = batch.units(place.request);
    const int take = (int)min((long long)(units - place.unit), stop - at);
    int slot = 2 * (int)blockIdx.x + (place.unit == 0);
    if (place.unit == 0) {
        int pieces = 1;
        if (take < units) {  // the last piece is the first whose end reaches the tile's
            const long long reach = (at + units - KD_SNAP + 1) * segment.blocks;
            pieces = (int)((reach + segment.total - 1) / segment.total) - (int)blockIdx.x;
        }
        note_pieces(table, batch, place.request, place.tile, make_int4(slot, pieces, 2, 0));
        if (pieces == 1) slot = -1;
    }
    if (lane_id() == 0) {
        segment.request = place.request, segment.tile = place.tile;
        segment.begin = place.unit, segment.end = place.unit + take;
        segment.slot = slot, segment.at = at + take, segment.active = 1;
    }
}

__device__ inline void next_chunk(const Batch& batch, int4* table, Segment& segment)
{
    const long long begin = segment.at, stop = segment.stop;
    __syncwarp();  // all lanes have read it before lane 0 writes
    for (long long at = begin; at < stop; at += gridDim.x) {  // tiles fastest: neighbours share KV rows
        const int tile = (int)(at % batch.tiles);
        const int chunk = (int)(at / batch.tiles % batch.most_chunks);
        const int request = (int)(at / ((long long)batch.tiles * batch.most_chunks));
        if (tile >= batch.real_tiles(request)) continue;
        const int units = batch.units(request);
        const int size = batch.chunk_units > 0 ? batch.chunk_units : ceil_div(units, -batch.chunk_units);
        if ((long long)chunk * size >= units) continue;
        const int pieces = ceil_div(units, size);
        const int first = (int)((request * (long long)batch.tiles + tile) * batch.most_chunks);
        if (chunk == 0) note_pieces(table, batch, request, tile, make_int4(first, pieces, 1, 0));
        if (lane_id() == 0) {
            segment.request = request, segment.tile = tile;
            segment.begin = chunk * size, segment.end = min(units, (chunk + 1) * size);
            segment.slot = pieces == 1 ? -1 : first + chunk;
            segment.at = at + gridDim.x, segment.active = 1;
        }
        return;
    }
    if (lane_id() == 0) segment.active = 0;
}

// Fill in the block's next segment.  Whole warp; the caller puts barriers around it.
__device__ __forceinline__ void next_work(const Batch& batch, int4* table, Segment& segment)
{
    if (batch.chunk_units == 0) next_balanced(batch, table, segment);
    else next_chunk(batch, table, segment);
}

#endif
