// verify_attn_heads_item.cuh: arguments of a call of verify_attn_gqa, and the segment that a block works on.
#ifndef KD_VERIFY_ATTN_HEADS_ITEM_CUH
#define KD_VERIFY_ATTN_HEADS_ITEM_CUH

#include "verify_attn_kv.cuh"

#ifndef KD_HEAD
#define KD_HEAD 128       // numbers of a key and of a value: 64 or 128
#endif

// Arguments of a call: those of verify_attn with keys as cache and tree, and the values beside them.
template <class T, class Out>
struct HeadCall {
    Call<T, Out> keys;
    const T *values, *tree_values;
    int width;            // numbers from one row to the next, in the caches and in the tree
    __device__ __forceinline__ const Batch& batch() const { return keys.batch; }
};

// The segment being worked on and what follows from it, in shared memory.
template <class T>
struct HeadItem {
    Segment segment;
    KvRows<T> keys;
    const T *values, *tree_values;   // beside keys.cache and keys.tree
    int real, kv_head, first_row;    // real nodes; first row of the tile among those of its KV head
};

// Choose the block's next segment; `quick` as in first_work.  Whole warp; the caller puts barriers around it.
template <bool quick, class T, class Out>
__device__ __forceinline__ void next_head_item(const HeadCall<T, Out>& call, HeadItem<T>& item)
{
    const Call<T, Out>& c = call.keys;
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

#endif
