// verify_attn_heads_item.cuh: arguments of a call of verify_attn_gqa, and the segment that a block works on.
#ifndef KD_VERIFY_ATTN_HEADS_ITEM_CUH
#define KD_VERIFY_ATTN_HEADS_ITEM_CUH

#include "verify_attn_rows.cuh"

#ifndef KD_HEAD
#define KD_HEAD 128       // numbers of a key and of a value: 64 or 128
#endif

template <class E>
struct HeadRow {
    using Element = E;
};

// Arguments of a call: those of verify_attn with keys as cache and tree, and the values beside them.  E: elements of keys
// and values, T or bytes that hold 8-bit floats; their scales are in keys.scale and keys.value_scale.
template <class T, class Out, class E>
struct HeadCall {
    Call<T, Out, HeadRow<E>> keys;
    const E *values, *tree_values;
    int width;            // numbers from one row to the next, in the caches and in the tree
    __device__ __forceinline__ const Batch& batch() const { return keys.batch; }
};

// The segment being worked on and what follows from it, in shared memory.
template <class E>
struct HeadItem {
    Segment segment;
    KvRows<E> keys;
    const E *values, *tree_values;   // beside keys.cache and keys.tree
    int real, kv_head, first_row;    // real nodes; first row of the tile among those of its KV head
};

// Choose the block's next segment; `quick` as in first_work.  Whole warp; the caller puts barriers around it.
template <bool quick, class T, class Out, class E>
__device__ __forceinline__ void next_head_item(const HeadCall<T, Out, E>& call, HeadItem<E>& item)
{
    const auto& c = call.keys;
    next_work<quick>(c.batch, c.table, item.segment);
    __syncwarp();
    if (lane_id() == 0 && item.segment.active) {
        const int b = item.segment.request, real = c.batch.real_nodes(b), length = max(c.batch.lengths[b], 0);
        const int tiles = c.batch.head_tiles(b), head = item.segment.tile / tiles, at = head * KD_HEAD;
        item.real = real, item.kv_head = head, item.first_row = (item.segment.tile - head * tiles) * c.batch.tile_rows;
        item.keys = kv_rows(c.cache + at, c.tree ? c.tree + at : nullptr, c.pages, c.page_stride, c.page_size, c.most_pages, b,
                            length, c.batch.nodes, real, call.width);
        item.values = call.values + (item.keys.cache - c.cache);
        item.tree_values = c.tree ? call.tree_values + (item.keys.tree - c.tree) : nullptr;
    }
    __syncwarp();
}

// Sixteen e4m3 numbers as two pieces of eight in bfloat16.
__device__ __forceinline__ void widen_piece(uint4 from, uint4& low, uint4& high)
{
    widen_in_order(from.x, low.x, low.y), widen_in_order(from.y, low.z, low.w);
    widen_in_order(from.z, high.x, high.y), widen_in_order(from.w, high.z, high.w);
}

#endif
