// verify_attn_kv.cuh: arguments of a call, where a KV row lies, which nodes may see it.
#ifndef KD_VERIFY_ATTN_KV_CUH
#define KD_VERIFY_ATTN_KV_CUH

#include "mma.cuh"
#include "verify_attn_work.cuh"

#ifndef KD_LATENT
#define KD_LATENT 512     // numbers of a row that are key and value
#endif
#ifndef KD_ROPE
#define KD_ROPE 64        // further numbers of a row that are key only
#endif
#ifndef KD_QUERY
#define KD_QUERY __nv_bfloat16   // number type of q, and of KV rows unless KD_CACHE says otherwise
#endif
#ifndef KD_CACHE
#define KD_CACHE KD_QUERY
#endif
#ifndef KD_OUT
#define KD_OUT KD_QUERY   // number type of the result
#endif

constexpr int kd_width = KD_LATENT + KD_ROPE;

// Rows of one request: the prefix [0, length) in the cache, then its real nodes, in `tree` or behind the prefix.
template <class T>
struct KvRows {
    const T* cache;       // of this request if not paged
    const T* tree;        // of this request, or null
    const int* pages;     // of this request, or null
    long long page_stride;
    int page_size, length, total;

    __device__ __forceinline__ const T* row(int t) const
    {
        if (tree && t >= length) return tree + (long long)(t - length) * kd_width;
        if (!pages) return cache + (long long)t * kd_width;
        const int page = t / page_size;
        return cache + pages[page] * page_stride + (long long)(t - page * page_size) * kd_width;
    }
};

template <class T>
__device__ __forceinline__ KvRows<T> kv_rows(const T* cache, const T* tree, const int* page_table, long long stride,
                                             int page_size, int most_pages, int b, int length, int nodes, int real)
{
    return {page_table ? cache : cache + b * stride, tree ? tree + (long long)b * nodes * kd_width : nullptr,
            page_table ? page_table + (long long)b * most_pages : nullptr, stride, page_size, length, length + real};
}

template <class T, class Out>
struct Call {
    const T *q, *cache, *tree;
    const unsigned* mask;
    const int* pages;
    Out* out;
    float *lse, *partial, *partial_lse;
    int4* table;
    Batch batch;
    int words, page_size, most_pages;
    long long page_stride;
    float scale;                     // of q.k, times log2(e): scores are in powers of two
};

// The segment being worked on and what follows from it, in shared memory.
template <class T>
struct Item {
    Segment segment;
    KvRows<T> kv;
    int real, spare;                 // real nodes
};

// Choose the block's next segment.  Whole warp; the caller puts barriers around it.
template <class T, class Out>
__device__ __forceinline__ void next_item(const Call<T, Out>& call, Item<T>& item)
{
    next_work(call.batch, call.table, item.segment);
    __syncwarp();
    if (lane_id() == 0 && item.segment.active) {
        const int b = item.segment.request, real = call.batch.real_nodes(b);
        item.real = real;
        item.kv = kv_rows(call.cache, call.tree, call.pages, call.page_stride, call.page_size, call.most_pages, b,
                          max(call.batch.lengths[b], 0), call.batch.nodes, real);
    }
    __syncwarp();
}

// Which of the 32 rows from `begin` on a node sees: bit j is row begin + j.  `mask` is the node's row of mask words.
// All of the prefix, of the tree what the mask says, nothing from `total` on.
__device__ __forceinline__ unsigned visible_rows(const unsigned* mask, int words, int begin, int length, int total)
{
    unsigned bits = ~0u;
    const int node = begin - length;   // of bit 0; below 0: the prefix
    if (node > -32) {
        if (node >= 0) {
            const int word = node >> 5;
            const unsigned low = word < words ? mask[word] : 0u, high = word + 1 < words ? mask[word + 1] : 0u;
            bits = __funnelshift_r(low, high, node & 31);
        } else {
            bits = mask[0] << -node | ((1u << -node) - 1u);
        }
    }
    const int left = total - begin;
    return left >= 32 ? bits : left <= 0 ? 0u : bits & ((1u << left) - 1u);
}

// Two neighbouring numbers of the result.
__device__ __forceinline__ void store_pair(float* to, float low, float high)
{
    *reinterpret_cast<float2*>(to) = make_float2(low, high);
}

template <class T>
__device__ __forceinline__ void store_pair(T* to, float low, float high)
{
    *reinterpret_cast<unsigned*>(to) = pack_pair<T>(low, high);
}

#endif
