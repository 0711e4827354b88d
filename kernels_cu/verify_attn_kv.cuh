// verify_attn_kv.cuh: arguments of a call, where a KV row lies, which nodes may see it.
#ifndef KD_VERIFY_ATTN_KV_CUH
#define KD_VERIFY_ATTN_KV_CUH

#include "async_copy.cuh"
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
#ifndef KD_PARTIAL
#define KD_PARTIAL KD_OUT // number type of partial results: rounding them costs less than rounding the result
#endif

#ifndef KD_LAZY
#define KD_LAZY 8.0f      // the running maximum moves when a score is larger by this many powers of two
#endif

constexpr int kd_width = KD_LATENT + KD_ROPE;
constexpr float kd_least = -1e30f;   // start of a running maximum: finite, so that -inf - maximum is no NaN

// A KV row as it lies in memory: `length` elements.  Other formats: verify_attn_rows.cuh.
template <class T>
struct NumberRow {
    using Element = T;
    static constexpr int length = kd_width, bytes = length * (int)sizeof(T);
    static constexpr bool fp8 = false, scaled = false;
};

// Rows of one request: the prefix [0, length) in the cache, then its real nodes, in `tree` or behind the prefix.
template <class T>
struct KvRows {
    const T* cache;       // of this request if not paged
    const T* tree;        // of this request, or null
    const int* pages;     // of this request, or null
    long long page_stride;
    int page_size, length, total;

    // `width`: numbers from one row to the next.
    __device__ __forceinline__ const T* row(int t, int width = kd_width) const
    {
        if (tree && t >= length) return tree + (long long)(t - length) * width;
        if (!pages) return cache + (long long)t * width;
        const int page = t / page_size;
        return cache + pages[page] * page_stride + (long long)(t - page * page_size) * width;
    }
};

template <class T>
__device__ __forceinline__ KvRows<T> kv_rows(const T* cache, const T* tree, const int* page_table, long long stride,
                                             int page_size, int most_pages, int b, int length, int nodes, int real,
                                             int width = kd_width)
{
    return {page_table ? cache : cache + b * stride, tree ? tree + (long long)b * nodes * width : nullptr,
            page_table ? page_table + (long long)b * most_pages : nullptr, stride, page_size, length, length + real};
}

template <class T, class Out, class Row = NumberRow<T>>
struct Call {
    const T* q;
    const typename Row::Element *cache, *tree;
    const unsigned* mask;
    const int* pages;
    Out* out;
    float* lse;
    KD_PARTIAL* partial;
    float* partial_lse;
    int4* table;
    Batch batch;
    int words, page_size, most_pages;
    long long page_stride;
    float scale;                     // of q.k, times log2(e): scores are in powers of two
    float value_scale;               // of all values: 1, or the scale of 8-bit rows
};

#ifndef KD_FETCH
#define KD_FETCH 4        // kernels for few rows: units a block that the L2 cache fetches before the kernel may begin
#endif

// Have the L2 cache fetch the first units of a single request while the kernel before this one ends.  A hint: nothing is
// read, and the length may be about to change.  Whole warp.
template <class T, class Out, class Row>
__device__ __forceinline__ void fetch_ahead(const Call<T, Out, Row>& call)
{
    if (KD_FETCH == 0 || call.pages || call.batch.size != 1) return;
    const int units = min(hint_of(call.batch.lengths), call.page_size) / KD_UNIT;
#pragma unroll 1
    for (int i = 0, u = (int)blockIdx.x; i < KD_FETCH && u < units; ++i, u += (int)gridDim.x)
        if (lane_id() == 0) fetch_to_l2(call.cache + (long long)u * KD_UNIT * Row::length, KD_UNIT * Row::bytes);
}

// The segment being worked on and what follows from it, in shared memory.
template <class T, class Row = NumberRow<T>>
struct Item {
    Segment segment;
    KvRows<typename Row::Element> kv;
    int real, spare;                 // real nodes
};

// Choose the block's next segment.  Whole warp; the caller puts barriers around it.
template <class T, class Out, class Row>
__device__ __forceinline__ void next_item(const Call<T, Out, Row>& call, Item<T, Row>& item)
{
    next_work(call.batch, call.table, item.segment);
    __syncwarp();
    if (lane_id() == 0 && item.segment.active) {
        const int b = item.segment.request, real = call.batch.real_nodes(b);
        item.real = real;
        item.kv = kv_rows(call.cache, call.tree, call.pages, call.page_stride, call.page_size, call.most_pages, b,
                          max(call.batch.lengths[b], 0), call.batch.nodes, real, Row::length);
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

// 1 / x, to about the last place; 0 for 0, the sum of a row that saw nothing.  (A true division is a function call.)
__device__ __forceinline__ float reciprocal_or_zero(float x)
{
#ifdef __CUDACC_RTC__
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
#else
    const float y = 1.0f / x;
#endif
    return x == 0.0f ? 0.0f : y;   // not x > 0: a NaN that was seen must be seen
}

// Logarithm of `sum` weights relative to 2^most, in powers of two: -inf for a row that saw nothing, NaN for NaN.
__device__ __forceinline__ float log_of_sum(float most, float sum) { return sum == 0.0f ? -KD_INFINITY : most + fast_log2(sum); }

// ---- results: numbers in tensor-core fragments to rows in memory and back ----

// Lane q of four holds columns 2q, 2q+1 of four tiles of 8 columns, as pairs; afterwards it holds all of tile q.
__device__ __forceinline__ void transpose_four(unsigned (&w)[4])
{
    const int q = lane_id() & 3;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {      // exchange the bit `step` of the lane and of the tile
        const bool high = q & step;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & step) continue;
            const unsigned sent = high ? w[i] : w[i | step];
            const unsigned got = __shfl_xor_sync(KD_FULL_MASK, sent, step);
            w[i] = high ? got : w[i], w[i | step] = high ? w[i | step] : got;
        }
    }
}

// Store the pairs value(c, 0), value(c, 1) of `tiles` tiles of 8 columns as one row; `to` is its first column.  Whole
// warp, eight rows at a time; rows that are not wanted are not written.
template <int tiles, class T, class Value>
__device__ __forceinline__ void store_row(T* to, bool wanted, Value value)
{
    const int q = lane_id() & 3;
#pragma unroll
    for (int c = 0; c < tiles; c += 4) {
        unsigned w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = pack_pair<T>(value(c + i, 0), value(c + i, 1));
        transpose_four(w);
        if (wanted) *reinterpret_cast<uint4*>(to + 8 * (c + q)) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

template <int tiles, class Value>
__device__ __forceinline__ void store_row(float* to, bool wanted, Value value)
{
    const int q = lane_id() & 3;
#pragma unroll
    for (int c = 0; c < tiles; ++c)
        if (wanted) *reinterpret_cast<float2*>(to + 8 * c + 2 * q) = make_float2(value(c, 0), value(c, 1));
}

// Eight, four or two neighbouring numbers.
__device__ __forceinline__ void load_words(const void* from, unsigned (&w)[4])
{
    const uint4 x = *static_cast<const uint4*>(from);
    w[0] = x.x, w[1] = x.y, w[2] = x.z, w[3] = x.w;
}

__device__ __forceinline__ void load_words(const void* from, unsigned (&w)[2])
{
    const uint2 x = *static_cast<const uint2*>(from);
    w[0] = x.x, w[1] = x.y;
}

__device__ __forceinline__ void load_words(const void* from, unsigned (&w)[1]) { w[0] = *static_cast<const unsigned*>(from); }

__device__ __forceinline__ void store_words(void* to, const unsigned (&w)[4])
{
    *static_cast<uint4*>(to) = make_uint4(w[0], w[1], w[2], w[3]);
}

__device__ __forceinline__ void store_words(void* to, const unsigned (&w)[2]) { *static_cast<uint2*>(to) = make_uint2(w[0], w[1]); }
__device__ __forceinline__ void store_words(void* to, const unsigned (&w)[1]) { *static_cast<unsigned*>(to) = w[0]; }

template <int n>
__device__ __forceinline__ void load_numbers(const float* from, float (&x)[n])
{
    constexpr int step = n % 4 ? 2 : 4;
#pragma unroll
    for (int i = 0; i < n; i += step) {
        unsigned words[step];
        load_words(from + i, words);
#pragma unroll
        for (int j = 0; j < step; ++j) x[i + j] = __uint_as_float(words[j]);
    }
}

template <class T, int n>
__device__ __forceinline__ void load_numbers(const T* from, float (&x)[n])
{
    unsigned words[n / 2];
    load_words(from, words);
#pragma unroll
    for (int i = 0; i < n; ++i) x[i] = unpack_half<T>(words[i / 2], i % 2);
}

template <int n>
__device__ __forceinline__ void store_numbers(float* to, const float (&x)[n])
{
    constexpr int step = n % 4 ? 2 : 4;
#pragma unroll
    for (int i = 0; i < n; i += step) {
        unsigned words[step];
#pragma unroll
        for (int j = 0; j < step; ++j) words[j] = __float_as_uint(x[i + j]);
        store_words(to + i, words);
    }
}

template <class T, int n>
__device__ __forceinline__ void store_numbers(T* to, const float (&x)[n])
{
    unsigned words[n / 2];
#pragma unroll
    for (int i = 0; i < n / 2; ++i) words[i] = pack_pair<T>(x[2 * i], x[2 * i + 1]);
    store_words(to, words);
}

#endif
