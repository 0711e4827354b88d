// verify_attn_heads_work.cuh: division of work where the last tile of a KV head has fewer groups of 64 rows than the others.
#ifndef KD_VERIFY_ATTN_HEADS_WORK_CUH
#define KD_VERIFY_ATTN_HEADS_WORK_CUH

#include "verify_attn_work.cuh"

// Time of a unit, in parts, for a tile of so many rows: a guess between its groups and its copies, which are always the same.
__device__ __forceinline__ unsigned unit_time(int rows) { return 1 + 2 * (unsigned)ceil_div(rows, 64); }

// As only_segment: the block's only segment of one request, but a last tile that takes less time gets fewer blocks.
__device__ inline bool weighed_segment(const Batch& batch, int4* table, Segment& segment)
{
    if (batch.size != 1 || batch.chunk_units != 0) return false;
    const unsigned units = batch.units(0), tiles = batch.head_tiles(0), heads = batch.kv_heads;
    if (tiles < 2 || (unsigned long long)units * tiles * heads > 1u << 30) return false;
    const unsigned full = unit_time(batch.tile_rows), last = unit_time(batch.real_nodes(0) * batch.heads - (int)(tiles - 1) * batch.tile_rows);
    const unsigned blocks = min(gridDim.x, max(units * tiles * heads / batch.least_units, tiles * heads)), of_head = blocks / heads;
    if (full == last || of_head < tiles || 8 * of_head * heads < 7 * blocks) return false;
    const auto others = [=](unsigned each) { return of_head - (tiles - 1) * each; };     // blocks of the last tile
    const auto time = [=](unsigned each) { return max((units + each - 1) / each * full, (units + others(each) - 1) / others(each) * last); };
    unsigned each = max(of_head * full / ((tiles - 1) * full + last), 1u);
    if ((tiles - 1) * (each + 1) < of_head && time(each + 1) < time(each)) ++each;
    if (each > units || others(each) > units) return false;
    const unsigned head = blockIdx.x / of_head, at = blockIdx.x - head * of_head, in_head = min(at / each, tiles - 1), k = at - in_head * each;
    const unsigned pieces = in_head + 1 < tiles ? each : others(each), share = units / pieces, rest = units - share * pieces;
    if (lane_id() == 0) {
        const unsigned begin = k * share + min(k, rest), tile = head * tiles + in_head;
        segment.request = 0, segment.tile = (int)tile, segment.active = head < heads ? 2 : 0;   // 2: chosen already
        segment.begin = (int)begin, segment.end = (int)(begin + share + (k < rest)), segment.step = 1;
        segment.slot = pieces == 1 ? -1 : (int)(2 * blockIdx.x + (k == 0)), segment.at = segment.stop = 0;
        if (k == 0 && head < heads) table[tile] = make_int4((int)(2 * blockIdx.x + 1), (int)pieces, 2, 0);
    }
    __syncwarp();
    return true;
}

#endif
